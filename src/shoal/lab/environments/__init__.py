"""Worlds to learn in: arms, true parameters, mean rewards and noise. They know nothing of policies."""
