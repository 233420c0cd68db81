"""shoal: many agents, each with its own linear bandit, that learn from whom to borrow samples."""

from typing import TYPE_CHECKING, Any

from shoal.environments.base import Environment
from shoal.environments.letor import LearningToRank
from shoal.environments.logged import LoggedRatings
from shoal.environments.movielens import MovieLens
from shoal.environments.sources import DataUnavailable
from shoal.environments.synthetic import (
    ChangingAgents,
    ChangingArms,
    Continuum,
    GaussianClusters,
    SyntheticClusters,
)
from shoal.policies.base import Policy, PolicyFileError
from shoal.policies.bass import BASS
from shoal.policies.club import CLUB
from shoal.policies.cmlb import CMLB
from shoal.policies.dynucb import DynUCB
from shoal.policies.independent import Independent
from shoal.policies.mixture import ClusterMixture
from shoal.policies.oracle import Oracle
from shoal.policies.registry import load_policy, make_policy, policy_names, register_policy
from shoal.policies.sclub import SCLUB
from shoal.separation import separated, separation_statistic
from shoal.simulation import Trace, simulate
from shoal.theory import beta

if TYPE_CHECKING:
    from shoal.experiments.figures import plot_ellipsoids, plot_graph, plot_regret

__version__ = "0.1.0"

__all__ = [
    "BASS",
    "CLUB",
    "CMLB",
    "SCLUB",
    "ChangingAgents",
    "ChangingArms",
    "ClusterMixture",
    "Continuum",
    "DataUnavailable",
    "DynUCB",
    "Environment",
    "GaussianClusters",
    "Independent",
    "LearningToRank",
    "LoggedRatings",
    "MovieLens",
    "Oracle",
    "Policy",
    "PolicyFileError",
    "SyntheticClusters",
    "Trace",
    "beta",
    "load_policy",
    "make_policy",
    "plot_ellipsoids",
    "plot_graph",
    "plot_regret",
    "policy_names",
    "register_policy",
    "separated",
    "separation_statistic",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import what draws only when it is asked for: matplotlib is slow to load."""
    if name.startswith("plot_") and name in __all__:
        from shoal.experiments import figures

        return getattr(figures, name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
