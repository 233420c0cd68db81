"""What a round costs on this machine, in time and memory: for `shoal bench` and for benchmarks/bench.py.

Times are processor time of one thread, without compilation. Other programs disturb that less than wall time.
"""

import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core import validation
from shoal.core.policies.registry import RIVALS, find_policy, make_policy, policy_names
from shoal.lab.environments.base import Environment
from shoal.lab.environments.synthetic import GaussianClusters
from shoal.lab.simulation import simulate

CLUSTERS = 3
ONLINE_CALLS = 5_000


@dataclass(frozen=True)
class Cost:
    """What one policy costs. If it does not fit into memory, only `problem` is set."""

    policy: str
    microseconds: float = math.nan
    """Per round of `simulate`, in which one agent pulls."""
    online_microseconds: float = math.nan
    """Of one `select` and one `update` from Python."""
    state_bytes: int = 0
    problem: str = ""


def measure(
    *,
    agents: int,
    dim: int,
    arms: int,
    rounds: int = 20_000,
    policies: tuple[str, ...] = (),
    progress: Callable[[str], None] | None = None,
) -> list[Cost]:
    """Measure policies, by default all but `RIVALS`, with `agents` agents in three clusters."""
    for name, value in (("agents", agents), ("dim", dim), ("arms", arms), ("rounds", rounds)):
        validation.positive_int(name, value)
    for name in policies:
        validation.one_of("policy", name, policy_names())
    world = GaussianClusters(agents, dim, min(CLUSTERS, agents), n_arms=arms, seed=0)
    costs = []
    for name in policies or [name for name in policy_names() if name not in RIVALS]:
        if progress is not None:
            progress(name)
        try:
            costs.append(_cost(name, world, rounds))
        except MemoryError as error:
            costs.append(Cost(name, problem=str(error) or "does not fit into memory"))
    return costs


def typical(policy: Any, world: Environment) -> dict[str, Any]:
    """The published parameters, besides alpha and seed, for trying a policy class in an environment."""
    found: dict[str, Any] = getattr(policy, "typical", lambda world: {})(world)
    return found


def build(name: str, world: Environment, **more: Any) -> Any:
    """A fresh policy for `world`, with the published parameters where the world provides them."""
    own = typical(find_policy(name), world)
    return make_policy(name, world.n_agents, world.dim, **{"alpha": 0.3, "seed": 0} | own | more)


def seconds(policy: Any, world: Environment, rounds: int, **how: Any) -> float:
    """Processor time of `rounds` rounds of an already compiled policy, without curves."""
    start = time.thread_time()
    simulate(policy, world, horizon=rounds, seed=0, **{"points": 1} | how)
    return time.thread_time() - start


def best_seconds(make: Callable[[], Any], world: Environment, rounds: int, repeat: int, **how: Any) -> float:
    """The smallest of several `seconds`, each of a fresh policy."""
    seconds(make(), world, 1, **how)  # compiles, or loads from the cache
    return min(seconds(make(), world, rounds, **how) for _ in range(repeat))


def online_microseconds(policy: Any, world: Environment, calls: int = ONLINE_CALLS) -> float:
    """Processor time of one `select` and one `update` from Python, validation included."""
    arms, rng = np.array(world.arms), np.random.default_rng(0)
    agents, noise = rng.integers(world.n_agents, size=calls).tolist(), rng.standard_normal(calls).tolist()
    means = world.mean_rewards.tolist()
    policy.update(0, arms[policy.select(0, arms)], 0.0)
    start = time.thread_time()
    for agent, error in zip(agents, noise, strict=True):
        k = policy.select(agent, arms)
        policy.update(agent, arms[k], means[agent][k] + error)
    return (time.thread_time() - start) / calls * 1e6


def machine() -> dict[str, Any]:
    """The machine and versions behind the figures."""
    return {
        "processor": processor(),
        "cpus": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba", "llvmlite", "shoal")},
    }


def _cost(name: str, world: Environment, rounds: int) -> Cost:
    policy = build(name, world)
    size, online = getattr(policy, "nbytes", 0), online_microseconds(policy, world)
    del policy  # one at a time in memory
    took = best_seconds(lambda: build(name, world), world, rounds, 2)
    return Cost(name, took / rounds * 1e6, online, size)


def processor() -> str:
    """The model of this machine's processor, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
