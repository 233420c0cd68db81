"""Policies by name: the built-in ones, and other packages' through the entry point `shoal.policies`."""

import os
from importlib.metadata import entry_points
from typing import Any

from shoal.policies.base import Policy, read_policy_name
from shoal.policies.bass import BASS
from shoal.policies.club import CLUB
from shoal.policies.cmlb import CMLB
from shoal.policies.dynucb import DynUCB
from shoal.policies.independent import Independent
from shoal.policies.mixture import ClusterMixture
from shoal.policies.oracle import Oracle
from shoal.policies.sclub import SCLUB

GROUP = "shoal.policies"
_BUILT_IN = (Independent, Oracle, DynUCB, CLUB, SCLUB, CMLB, BASS, ClusterMixture)
_registered: dict[str, type] = {policy.name: policy for policy in _BUILT_IN}


def register_policy(name: str, policy: type) -> None:
    """Make a policy class known by name. A name can be given once."""
    if not name or _registered.get(name, policy) is not policy:
        raise ValueError(f"name must be a new, non-empty policy name, got {name!r}")
    _registered[name] = policy


def policy_names() -> tuple[str, ...]:
    """The names that `make_policy` knows, other packages' included."""
    return tuple(dict.fromkeys([*_registered, *(entry.name for entry in entry_points(group=GROUP))]))


def policy_class(name: str) -> type:
    """The policy class of that name."""
    if name not in _registered:
        for entry in entry_points(group=GROUP):
            if entry.name == name:
                register_policy(name, entry.load())
                break
        else:
            raise ValueError(f"unknown policy {name!r}; known are {', '.join(policy_names())}")
    return _registered[name]


def make_policy(name: str, n_agents: int, dim: int, **parameters: Any) -> Any:
    """Build a policy from its name, e.g. `make_policy("bass", 100, 10, alpha=0.3, delta=0.1)`."""
    return policy_class(name)(n_agents, dim, **parameters)


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Read back whatever policy a file holds."""
    loader: type[Policy] = policy_class(read_policy_name(path))
    return loader.load(path)
