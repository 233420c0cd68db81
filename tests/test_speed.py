"""Speed as ratios measured in one process: a lost optimisation fails, a slow or busy machine does not.

Limits are several times away from what is measured (docs/performance.md), and times are processor times, the
best of several.
"""

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from tests import reference

import shoal
from shoal import benchmark
from shoal.jit.compiled import config

pytestmark = pytest.mark.skipif(bool(config.DISABLE_JIT), reason="says nothing without compilation")


def world_of(agents: int) -> shoal.SyntheticClusters:
    return shoal.SyntheticClusters(agents, 10, 3, 7 * math.pi / 16, seed=0)


def seconds_a_round(name: str, world: shoal.Environment, rounds: int) -> float:
    return benchmark.best_seconds(lambda: benchmark.build(name, world), world, rounds, 5) / rounds


def naive_seconds_a_round(twin: reference.Steps, world: shoal.Environment, rounds: int) -> float:
    rng = np.random.default_rng(0)
    schedule = [[int(agent)] for agent in rng.integers(world.n_agents, size=rounds)]
    start = time.thread_time()
    reference.run(twin, schedule, world.arms, lambda agent, t: world.mean_rewards[agent], np.zeros(rounds))
    return (time.thread_time() - start) / rounds


TWINS: dict[str, tuple[Callable[[shoal.Environment], reference.Steps], float]] = {
    "bass": (lambda world: reference.BASS(100, 10, alpha=0.3, delta=0.1), 2_000),
    "club": (lambda world: reference.CLUB(100, 10, alpha=0.3, gamma=0.3), 1_000),
    "independent": (lambda world: reference.Independent(100, 10, alpha=0.3), 40),
}
"""Naive twin, and how many times faster than it the compiled policy has to be."""


@pytest.mark.parametrize("name", TWINS)
def test_compiled_policy_is_far_ahead_of_its_naive_twin(name: str) -> None:
    make, limit = TWINS[name]
    world = world_of(100)
    naive = min(naive_seconds_a_round(make(world), world, 30) for _ in range(2))
    assert naive / seconds_a_round(name, world, 5_000) > limit


def test_cost_of_a_round_grows_no_faster_than_the_number_of_agents() -> None:
    """Four times the agents at four times the cost, with room for caches that overflow; N² would be 16."""
    few, many = (seconds_a_round("bass", world_of(agents), 40 * agents) for agents in (100, 400))
    assert many / few < 8


def test_a_pull_in_a_synchronous_round_costs_no_more_than_one_alone() -> None:
    world = world_of(100)
    alone, together = (
        benchmark.best_seconds(lambda: benchmark.build("bass", world), world, rounds, 5, pulling=pulling)
        for pulling, rounds in (("asynchronous", 5_000), ("synchronous", 50))
    )
    assert together / alone < 2.5


def test_online_calls_cost_little_more_than_the_rounds_themselves() -> None:
    """Looking at every array of the state in each call would double it."""
    world = world_of(100)
    calls = min(benchmark.online_microseconds(benchmark.build("bass", world), world) for _ in range(3))
    assert calls / (seconds_a_round("bass", world, 5_000) * 1e6) < 3
