"""Compiled functions on arrays. They know nothing of agents, policies or files, and validate nothing."""
