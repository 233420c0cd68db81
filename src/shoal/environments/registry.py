"""Environments by name. Each is imported when first asked for: those of real data need optional packages."""

from importlib import import_module
from typing import Any

from shoal.environments.base import Environment

_PLACES = {
    "synthetic": ("synthetic", "SyntheticClusters"),
    "gaussian": ("synthetic", "GaussianClusters"),
    "changing-arms": ("synthetic", "ChangingArms"),
    "changing-agents": ("synthetic", "ChangingAgents"),
    "continuum": ("synthetic", "Continuum"),
    "movielens": ("movielens", "MovieLens"),
    "letor": ("letor", "LearningToRank"),
}


def environment_names() -> tuple[str, ...]:
    """The names that `make_environment` knows."""
    return tuple(_PLACES)


def environment_class(name: str) -> type[Environment]:
    """The environment class of that name."""
    if name not in _PLACES:
        raise ValueError(f"unknown environment {name!r}; known are {', '.join(_PLACES)}")
    module, attribute = _PLACES[name]
    found: type[Environment] = getattr(import_module(f"shoal.environments.{module}"), attribute)
    return found


def make_environment(name: str, **parameters: Any) -> Environment:
    """Build an environment from its name, e.g. `make_environment("gaussian", n_agents=9, dim=3)`."""
    return environment_class(name)(**parameters)
