"""Environments by name: the built-in ones, and other packages' through the entry point `shoal.environments`.

Built-in ones are imported on first use: those of real data need optional packages.
"""

from typing import Any

from shoal.core.registry import Registry
from shoal.lab.environments.base import Environment

GROUP = "shoal.environments"
_registered: dict[str, Any] = {
    "synthetic": "shoal.lab.environments.synthetic:SyntheticClusters",
    "gaussian": "shoal.lab.environments.synthetic:GaussianClusters",
    "unit": "shoal.lab.environments.synthetic:UnitClusters",
    "changing_arms": "shoal.lab.environments.synthetic:ChangingArms",
    "clicks": "shoal.lab.environments.synthetic:ClickClusters",
    "changing_agents": "shoal.lab.environments.synthetic:ChangingAgents",
    "jumping_agents": "shoal.lab.environments.synthetic:JumpingAgents",
    "rotating_clusters": "shoal.lab.environments.synthetic:RotatingClusters",
    "misspecified": "shoal.lab.environments.synthetic:MisspecifiedClusters",
    "corrupted_agents": "shoal.lab.environments.synthetic:CorruptedAgents",
    "graph_clusters": "shoal.lab.environments.synthetic:GraphClusters",
    "described_agents": "shoal.lab.environments.synthetic:DescribedAgents",
    "continuum": "shoal.lab.environments.synthetic:Continuum",
    "movielens": "shoal.lab.environments.movielens:MovieLens",
    "letor": "shoal.lab.environments.letor:LearningToRank",
    "lastfm": "shoal.lab.environments.lastfm:LastFM",
    "warfarin": "shoal.lab.environments.warfarin:Warfarin",
    "logged": "shoal.lab.environments.logged:LoggedRatings",
}


def _problem(found: Any) -> str | None:
    if isinstance(found, type) and issubclass(found, Environment):
        return None
    return "a class derived from shoal.Environment"


_registry = Registry("environment", GROUP, _registered, _problem)


def register_environment(name: str, environment: type[Environment]) -> None:
    """Register an environment class under a new name.

    Examples
    --------
    >>> class Still(Environment):
    ...     "Two arms, everyone alike."
    ...     def __init__(self, n_agents, seed=None):
    ...         super().__init__([[1.0, 0.0], [0.0, 1.0]], theta_star=[[1.0, 0.0]] * n_agents)
    >>> register_environment("still", Still)
    >>> make_environment("still", n_agents=3).n_agents
    3
    """
    _registry.register(name, environment)


def environment_names() -> tuple[str, ...]:
    """The names that `make_environment` accepts, those of other packages included.

    Examples
    --------
    >>> environment_names()[:3]
    ('synthetic', 'gaussian', 'unit')
    """
    return _registry.names()


def find_environment(reference: str) -> type[Environment]:
    """The environment class of that name, or the one at `module:Class`; see `core.registry`."""
    found: type[Environment] = _registry.find(reference)
    return found


def make_environment(name: str, **parameters: Any) -> Environment:
    """Build an environment from its name, e.g. `make_environment("gaussian", n_agents=9, dim=3)`.

    A class that is not registered is named as `module:Class`.

    Examples
    --------
    >>> make_environment("gaussian", n_agents=9, dim=3, seed=0).n_arms
    15
    """
    return find_environment(name)(**parameters)
