"""The policies, one file each, and their registry."""
