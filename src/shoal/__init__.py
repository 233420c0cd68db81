"""shoal: many agents, each with its own linear bandit, that learn from whom to borrow samples."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.client import AsyncClient as AsyncClient
    from shoal.client import Client as Client
    from shoal.controller.answers import Decision
    from shoal.controller.controller import Controller, open
    from shoal.controller.errors import (
        ConflictError,
        ControllerError,
        GoneError,
        NotOwnerError,
        UnavailableError,
        UnknownError,
    )
    from shoal.controller.population import Population
    from shoal.environments.base import Environment
    from shoal.environments.letor import LearningToRank
    from shoal.environments.logged import LoggedRatings
    from shoal.environments.movielens import MovieLens
    from shoal.environments.registry import environment_names, make_environment, register_environment
    from shoal.environments.sources import DataUnavailable
    from shoal.environments.synthetic import (
        ChangingAgents,
        ChangingArms,
        Continuum,
        GaussianClusters,
        JumpingAgents,
        RotatingClusters,
        SyntheticClusters,
        UnitClusters,
    )
    from shoal.plots import plot_ellipsoids, plot_graph, plot_regret
    from shoal.policies.base import Policy
    from shoal.policies.bass import BASS
    from shoal.policies.club import CLUB
    from shoal.policies.cmlb import CMLB
    from shoal.policies.dynucb import DynUCB
    from shoal.policies.files import PolicyFileError
    from shoal.policies.independent import Independent
    from shoal.policies.mixture import ClusterMixture
    from shoal.policies.oracle import Oracle
    from shoal.policies.registry import load_policy, make_policy, policy_names, register_policy
    from shoal.policies.sclub import SCLUB
    from shoal.recommendation import Recommendation, recommend
    from shoal.separation import separated, separation_statistic
    from shoal.simulation import Trace, simulate
    from shoal.theory import beta

__version__ = "0.2.0"

__all__ = [
    "BASS",
    "CLUB",
    "CMLB",
    "SCLUB",
    "ChangingAgents",
    "ChangingArms",
    "ClusterMixture",
    "ConflictError",
    "Continuum",
    "Controller",
    "ControllerError",
    "DataUnavailable",
    "Decision",
    "DynUCB",
    "Environment",
    "GaussianClusters",
    "GoneError",
    "Independent",
    "JumpingAgents",
    "LearningToRank",
    "LoggedRatings",
    "MovieLens",
    "NotOwnerError",
    "Oracle",
    "Policy",
    "PolicyFileError",
    "Population",
    "Recommendation",
    "RotatingClusters",
    "SyntheticClusters",
    "Trace",
    "UnavailableError",
    "UnitClusters",
    "UnknownError",
    "beta",
    "environment_names",
    "load_policy",
    "make_environment",
    "make_policy",
    "open",
    "plot_ellipsoids",
    "plot_graph",
    "plot_regret",
    "policy_names",
    "recommend",
    "register_environment",
    "register_policy",
    "separated",
    "separation_statistic",
    "simulate",
]


# Names are imported lazily: Numba and matplotlib take seconds to load, and `shoal --help` needs neither.
_HOMES = {
    "shoal.client": ("AsyncClient", "Client"),  # not in __all__: they need the extra `client`
    "shoal.controller.answers": ("Decision",),
    "shoal.controller.controller": ("Controller", "open"),
    "shoal.controller.errors": (
        "ConflictError",
        "ControllerError",
        "GoneError",
        "NotOwnerError",
        "UnavailableError",
        "UnknownError",
    ),
    "shoal.controller.population": ("Population",),
    "shoal.environments.base": ("Environment",),
    "shoal.environments.letor": ("LearningToRank",),
    "shoal.environments.logged": ("LoggedRatings",),
    "shoal.environments.movielens": ("MovieLens",),
    "shoal.environments.registry": ("environment_names", "make_environment", "register_environment"),
    "shoal.environments.sources": ("DataUnavailable",),
    "shoal.environments.synthetic": (
        "ChangingAgents",
        "ChangingArms",
        "Continuum",
        "GaussianClusters",
        "JumpingAgents",
        "RotatingClusters",
        "SyntheticClusters",
        "UnitClusters",
    ),
    "shoal.policies.base": ("Policy",),
    "shoal.policies.bass": ("BASS",),
    "shoal.policies.club": ("CLUB",),
    "shoal.policies.cmlb": ("CMLB",),
    "shoal.policies.dynucb": ("DynUCB",),
    "shoal.policies.files": ("PolicyFileError",),
    "shoal.policies.independent": ("Independent",),
    "shoal.policies.mixture": ("ClusterMixture",),
    "shoal.policies.oracle": ("Oracle",),
    "shoal.policies.registry": ("load_policy", "make_policy", "policy_names", "register_policy"),
    "shoal.policies.sclub": ("SCLUB",),
    "shoal.recommendation": ("Recommendation", "recommend"),
    "shoal.separation": ("separated", "separation_statistic"),
    "shoal.simulation": ("Trace", "simulate"),
    "shoal.theory": ("beta",),
    "shoal.plots": ("plot_ellipsoids", "plot_graph", "plot_regret"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = (
    "controller",
    "environments",
    "kernels",
    "metrics",
    "plots",
    "policies",
    "separation",
    "simulation",
    "theory",
)


def __getattr__(name: str) -> Any:
    """Import a public name or submodule on first access."""
    if name in _MODULES:
        return import_module(f"shoal.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """All public names, loaded or not."""
    return sorted({*globals(), *_HOME_OF, *_MODULES})
