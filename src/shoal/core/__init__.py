"""What a policy is, and the policies that may live: no environments, no results, no network."""
