"""Populations: who may act, what acts, and what products call."""
