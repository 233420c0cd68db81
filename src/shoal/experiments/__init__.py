"""Grids of simulations: their description, their running, their results and the report on them."""
