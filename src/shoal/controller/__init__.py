"""Live use without a network: populations of named agents, decisions, late rewards, nothing lost."""
