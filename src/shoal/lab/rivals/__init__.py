"""Policies of other papers, to compare with."""
