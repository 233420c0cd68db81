"""Speed as ratios measured in one process: a lost optimisation fails, a slow or busy machine does not.

Limits are several times away from what is measured (docs/performance.md), and times are processor times, the
best of several.
"""

import copy
import math
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from tests import reference
from tests.core.contracts.test_policies import OWN, every_live_policy

import shoal
from shoal.core.jit.compiled import config
from shoal.core.jit.pinned import Pinned
from shoal.core.policies.mixture.state import TO_TEND
from shoal.core.types import Vector
from shoal.lab import benchmark

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


@pytest.mark.parametrize("n_agents", [100, 2_000])
def test_online_calls_do_little_more_than_the_rounds_themselves(n_agents: int) -> None:
    """Looking at every array of the state in each call would double their cost; counted, not timed."""
    world, policy = world_of(n_agents), shoal.BASS(n_agents, 10)
    arms, called = np.array(world.arms), list[str]()
    policy.update(0, arms[policy.select(0, arms)], 1.0)
    pinned = policy.pinned_state()
    sys.setprofile(lambda frame, event, which: called.append(event) if event.endswith("call") else None)
    try:
        policy.update(1, arms[policy.select(1, arms)], 1.0)
    finally:
        sys.setprofile(None)
    assert len(called) < 48  # functions of Python and of C; 36 when this was written
    # What compiled code is handed is one address, of a description that is not made anew.
    assert isinstance(pinned, Pinned)
    assert policy.pinned_state() is pinned


@pytest.mark.parametrize("n_agents", [100, 100_000])
def test_no_update_of_the_mixture_takes_much_longer_than_others(n_agents: int) -> None:
    """While the scatter is changed, a cluster is summed anew, and one is found to have moved."""
    world, rounds = shoal.SyntheticClusters(n_agents, 4, 3, 7 * math.pi / 16, seed=0), 900

    def play() -> Vector:
        policy, rng = shoal.ClusterMixture(n_agents, 4, seed=0), np.random.default_rng(0)
        shoal.simulate(policy, world, horizon=4_000, seed=0, points=1)  # so that its memory is in use
        pool, upkeep = policy.state.pool, policy.state.upkeep
        largest = int(np.argmax(np.bincount(policy.labels[policy.labels >= 0])))
        times = np.zeros(rounds)
        for t, agent in enumerate(rng.integers(n_agents, size=rounds).tolist()):
            if t == 200:
                pool.model.position[0] += 1
                upkeep[TO_TEND] = pool.members.labels.size
            elif t == 400:
                pool.clusters.changes[largest] = 10**9
            elif t == 600:
                pool.clusters.cusum[largest] = 1e3
            k = policy.select(agent, world.arms)
            reward = float(world.mean_rewards[agent, k] + rng.standard_normal())
            start = time.thread_time_ns()
            policy.update(agent, world.arms[k], reward)
            times[t] = time.thread_time_ns() - start
        return times

    # The same run each time: what only one of them waits for is the machine's.
    times = np.min([play() for _ in range(4)], axis=0)[20:]
    assert times.max() < 20 * np.median(times)


@every_live_policy
def test_a_newcomer_among_thousands_costs_far_less_than_copying_the_state(name: str) -> None:
    labels = {"labels": np.arange(5000) % 3} if name == "oracle" else {}
    policy = shoal.make_policy(name, 5000, 16, **{"alpha": 0.3, "seed": 0, **OWN.get(name, {}), **labels})
    more = {"labels": [0]} if name == "oracle" else {}
    policy.update(0, np.ones(16), 1.0)
    policy.add_agents(1, **more)
    tracemalloc.start()  # memory instead of time: the same on every machine, busy or not
    try:
        asked = []
        for _ in range(300):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            policy.add_agents(1, **more)
            asked.append(tracemalloc.get_traced_memory()[1] - before)
        before = tracemalloc.get_traced_memory()[0]
        copied = copy.deepcopy(policy.state)
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert copied is not policy.state
    assert float(np.median(asked)) < size / 100
