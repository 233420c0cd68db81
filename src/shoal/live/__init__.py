"""Live use: named agents, late rewards, nothing lost."""
