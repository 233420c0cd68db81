"""Grids of simulations: how to describe, run, store and report them."""
