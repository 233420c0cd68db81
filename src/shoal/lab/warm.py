"""Compile policies ahead of time, so that the first call does not have to wait: `shoal warm`."""

import time
from collections.abc import Callable, Iterator

from shoal.core import validation
from shoal.core.policies.registry import policy_names
from shoal.core.policies.warming import TRIAL, exercise
from shoal.lab.benchmark import build
from shoal.lab.environments.synthetic import GaussianClusters
from shoal.lab.simulation import simulate


def warm(
    policies: tuple[str, ...] = (), *, progress: Callable[[str], None] | None = None
) -> Iterator[tuple[str, float]]:
    """Compile what the online calls and `simulate` need, policy by policy; yield each name and its seconds.

    Code found in the cache is loaded, not compiled. By default all registered policies are compiled.
    """
    for name in policies:
        validation.one_of("policy", name, policy_names())
    for name in policies or policy_names():
        if progress is not None:
            progress(name)
        start = time.perf_counter()
        world = _world(TRIAL)
        policy = build(name, world)
        for _ in exercise(policy, world.dim):
            pass
        for most in (0, *getattr(policy, "engine_limits", ())):
            world = _world(max(TRIAL, most + 1))
            simulate(build(name, world), world, horizon=2, seed=0)
        yield name, time.perf_counter() - start


def _world(n_agents: int) -> GaussianClusters:
    return GaussianClusters(n_agents, 2, 2, n_arms=3, seed=0)
