"""The policies that may live, and every policy by name."""
