"""Compile policies ahead of time, so that the first call does not have to wait: `shoal warm`."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from shoal.core import validation
from shoal.core.jit.narration import say_nothing_of_compiling
from shoal.core.policies.registry import RIVALS, policy_names
from shoal.core.policies.warming import TRIAL, exercise
from shoal.lab.benchmark import build
from shoal.lab.environments.synthetic import GaussianClusters
from shoal.lab.simulation import simulate


def warm(
    policies: tuple[str, ...] = (), *, workers: int = 1, progress: Callable[[str], None] | None = None
) -> Iterator[tuple[str, float]]:
    """Compile what the online calls and `simulate` need, policy by policy; yield each name and its seconds.

    Code found in the cache is loaded, not compiled. By default, all registered policies but `RIVALS` are
    compiled. With several `workers`, each is a process of its own, and this one loads nothing; a script that
    asks for them needs the usual `if __name__ == "__main__":`.
    """
    for name in policies:
        validation.one_of("policy", name, policy_names())
    waiting = list(policies or (name for name in policy_names() if name not in RIVALS))
    if min(validation.positive_int("workers", workers), len(waiting)) > 1:
        yield from _warm_in_processes(waiting, workers, progress)
        return
    for name in waiting:
        if progress is not None:
            progress(name)
        yield name, _warm(name)


def _warm_in_processes(
    waiting: list[str], workers: int, progress: Callable[[str], None] | None
) -> Iterator[tuple[str, float]]:
    # Not forked: this process may have threads, and locks that they hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers, len(waiting)), context, initializer=say_nothing_of_compiling
    ) as pool:
        running = {pool.submit(_warm, name): name for name in waiting}
        for done in as_completed(running):
            name = running[done]
            waiting.remove(name)
            if progress is not None and waiting:
                progress(", ".join(waiting))
            yield name, done.result()


def _warm(name: str) -> float:
    start = time.perf_counter()
    world = _world(TRIAL)
    policy = build(name, world)
    for _ in exercise(policy, world.dim):
        pass
    for most in (0, *getattr(policy, "engine_limits", ())):
        world = _world(max(TRIAL, most + 1))
        simulate(build(name, world), world, horizon=2, seed=0)
    return time.perf_counter() - start


def _world(n_agents: int) -> GaussianClusters:
    return GaussianClusters(n_agents, 2, 2, n_arms=3, seed=0)
