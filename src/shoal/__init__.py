"""shoal: many agents, each with its own linear bandit, that learn from whom to borrow samples."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.core.policies.bass import BASS
    from shoal.core.policies.independent import Independent
    from shoal.core.policies.mixture import ClusterMixture
    from shoal.core.policies.oracle import Oracle
    from shoal.core.policies.registry import load_policy, make_policy, policy_names, register_policy
    from shoal.core.policy.base import Policy
    from shoal.core.policy.files import PolicyFileError
    from shoal.core.policy.living import LivePolicy
    from shoal.lab.environments.base import Environment
    from shoal.lab.environments.lastfm import LastFM
    from shoal.lab.environments.letor import LearningToRank
    from shoal.lab.environments.logged import LoggedRatings
    from shoal.lab.environments.movielens import MovieLens
    from shoal.lab.environments.registry import environment_names, make_environment, register_environment
    from shoal.lab.environments.sources import DataUnavailable
    from shoal.lab.environments.synthetic import (
        ChangingAgents,
        ChangingArms,
        Continuum,
        GaussianClusters,
        JumpingAgents,
        RotatingClusters,
        SyntheticClusters,
        UnitClusters,
    )
    from shoal.lab.environments.warfarin import Warfarin
    from shoal.lab.experiments.figures import plot_alpha, plot_f1, plot_regret
    from shoal.lab.experiments.stored import load_results
    from shoal.lab.plots import plot_ellipsoids, plot_graph
    from shoal.lab.recommendation import Recommendation, recommend
    from shoal.lab.rivals.club import CLUB
    from shoal.lab.rivals.cmlb import CMLB
    from shoal.lab.rivals.dynucb import DynUCB
    from shoal.lab.rivals.sclub import SCLUB
    from shoal.lab.separation import separated, separation_statistic
    from shoal.lab.simulation import Trace, simulate
    from shoal.lab.theory import beta
    from shoal.live.client import AsyncClient as AsyncClient
    from shoal.live.client import Client as Client
    from shoal.live.population.controller import Controller, open
    from shoal.live.population.population import Population
    from shoal.live.protocol.answers import Decision
    from shoal.live.protocol.errors import (
        ConflictError,
        ControllerError,
        GoneError,
        LimitError,
        NotOwnerError,
        UnavailableError,
        UnknownError,
    )

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
    "LastFM",
    "LearningToRank",
    "LimitError",
    "LivePolicy",
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
    "Warfarin",
    "beta",
    "environment_names",
    "load_policy",
    "load_results",
    "make_environment",
    "make_policy",
    "open",
    "plot_alpha",
    "plot_ellipsoids",
    "plot_f1",
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
    "shoal.live.client": ("AsyncClient", "Client"),  # not in __all__: they need the extra `client`
    "shoal.live.protocol.answers": ("Decision",),
    "shoal.live.population.controller": ("Controller", "open"),
    "shoal.live.protocol.errors": (
        "ConflictError",
        "ControllerError",
        "GoneError",
        "LimitError",
        "NotOwnerError",
        "UnavailableError",
        "UnknownError",
    ),
    "shoal.live.population.population": ("Population",),
    "shoal.lab.environments.base": ("Environment",),
    "shoal.lab.environments.lastfm": ("LastFM",),
    "shoal.lab.environments.letor": ("LearningToRank",),
    "shoal.lab.environments.logged": ("LoggedRatings",),
    "shoal.lab.environments.movielens": ("MovieLens",),
    "shoal.lab.environments.registry": ("environment_names", "make_environment", "register_environment"),
    "shoal.lab.environments.sources": ("DataUnavailable",),
    "shoal.lab.environments.synthetic": (
        "ChangingAgents",
        "ChangingArms",
        "Continuum",
        "GaussianClusters",
        "JumpingAgents",
        "RotatingClusters",
        "SyntheticClusters",
        "UnitClusters",
    ),
    "shoal.lab.environments.warfarin": ("Warfarin",),
    "shoal.lab.experiments.stored": ("load_results",),
    "shoal.core.policy.base": ("Policy",),
    "shoal.core.policy.living": ("LivePolicy",),
    "shoal.core.policies.bass": ("BASS",),
    "shoal.lab.rivals.club": ("CLUB",),
    "shoal.lab.rivals.cmlb": ("CMLB",),
    "shoal.lab.rivals.dynucb": ("DynUCB",),
    "shoal.core.policy.files": ("PolicyFileError",),
    "shoal.core.policies.independent": ("Independent",),
    "shoal.core.policies.mixture": ("ClusterMixture",),
    "shoal.core.policies.oracle": ("Oracle",),
    "shoal.core.policies.registry": ("load_policy", "make_policy", "policy_names", "register_policy"),
    "shoal.lab.rivals.sclub": ("SCLUB",),
    "shoal.lab.recommendation": ("Recommendation", "recommend"),
    "shoal.lab.separation": ("separated", "separation_statistic"),
    "shoal.lab.simulation": ("Trace", "simulate"),
    "shoal.lab.theory": ("beta",),
    "shoal.lab.experiments.figures": ("plot_alpha", "plot_f1", "plot_regret"),
    "shoal.lab.plots": ("plot_ellipsoids", "plot_graph"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {
    "environments": "lab",
    "metrics": "lab",
    "plots": "lab",
    "separation": "lab",
    "simulation": "lab",
    "theory": "lab",
}
"""Modules of documented functions, by the wing they are in: `shoal.theory` is `shoal.lab.theory`."""


def __getattr__(name: str) -> Any:
    """Import a public name or submodule on first access."""
    if name in _MODULES:
        return import_module(f"shoal.{_MODULES[name]}.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """All public names, loaded or not."""
    return sorted({*globals(), *_HOME_OF, *_MODULES})
