"""What a compiled policy of one's own is made from, in one place.

docs/adding-a-policy.md goes through it; what each name does is said where it is defined.
"""

from shoal.core.fields import AGENTS, CLUSTERS, DIM, derived, kept, rows, scratch, setting
from shoal.core.jit.compiled import allocating, compiled, spliced
from shoal.core.policy.base import Policy
from shoal.core.policy.living import LivePolicy
from shoal.core.policy.parameters import Parameters
from shoal.core.policy.steps import Common, LiveCommon, step
from shoal.core.statistics import Statistics, add_sample, best_arm_of_row, start_rows
from shoal.core.styles import LineStyle

__all__ = [
    "AGENTS",
    "CLUSTERS",
    "DIM",
    "Common",
    "LineStyle",
    "LiveCommon",
    "LivePolicy",
    "Parameters",
    "Policy",
    "Statistics",
    "add_sample",
    "allocating",
    "best_arm_of_row",
    "compiled",
    "derived",
    "kept",
    "rows",
    "scratch",
    "setting",
    "spliced",
    "start_rows",
    "step",
]
