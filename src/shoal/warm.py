"""Compile policies ahead of time, so that the first call does not have to wait: `shoal warm`."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from shoal import validation
from shoal.benchmark import build
from shoal.environments.synthetic import GaussianClusters
from shoal.policies.registry import policy_names
from shoal.simulation import simulate


def warm(
    policies: tuple[str, ...] = (), *, progress: Callable[[str], None] | None = None
) -> Iterator[tuple[str, float]]:
    """Compile what the online calls and `simulate` need, policy by policy; yield each name and its seconds.

    Code found in the cache is loaded, not compiled. By default all registered policies are compiled.
    """
    for name in policies:
        validation.one_of("policy", name, policy_names())
    world = GaussianClusters(4, 2, 2, n_arms=3, seed=0)
    for name in policies or policy_names():
        if progress is not None:
            progress(name)
        start = time.perf_counter()
        _exercise(build(name, world), world)
        simulate(build(name, world), world, horizon=2, seed=0)
        yield name, time.perf_counter() - start


def _exercise(policy: Any, world: GaussianClusters) -> None:
    """Make each kind of online call once."""
    for agent in range(3):
        policy.update(agent, world.arms[policy.select(agent, world.arms)], 1.0)
    for name in ("choose", "scores"):
        if hasattr(policy, name):  # user-defined policies need not have them
            getattr(policy, name)(0, world.arms)
    for name in ("neighbors", "estimate", "remove_agent"):
        if hasattr(policy, name):
            getattr(policy, name)(0)
    if hasattr(policy, "explain"):
        policy.explain(1, 2)
