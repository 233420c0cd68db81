"""Scores and predictions: what `select` compares, told without changing anything."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from tests import reference
from tests.core.contracts.test_policies import (
    BY_ARM,
    LIVE,
    D,
    N,
    every_policy,
    make,
    play,
    refit,
    snapshot,
    world,
)
from tests.core.contracts.test_sharing import build, kinds

import shoal
from shoal.core.fields import AGENTS, rows
from shoal.core.policy.exploring import SAMPLE
from shoal.core.policy.steps import SCORED, LiveCommon, step
from shoal.core.statistics import Statistics


def read(policy: Any, rng: np.random.Generator) -> None:
    """Everything that only looks, in some order."""
    agent, arms = int(rng.choice(policy.agents)), rng.standard_normal((int(rng.integers(1, 40)), D))
    for _ in range(int(rng.integers(1, 4))):
        policy.select(agent, arms)
        policy.choose(agent, arms)
        policy.scores(agent, arms)
        policy.predict(agent, arms[0])
        policy.estimate(agent)
        policy.neighbors(agent)
        policy.explain(agent)
        policy.explain(agent, int(policy.agents[policy.agents != agent][0]))
        assert policy.graph.shape == (policy.n_agents, policy.n_agents)


@every_policy
@pytest.mark.parametrize("late", [False, True])
def test_the_index_is_what_select_compares(name: str, late: bool) -> None:
    policy, rng, log = make(name, ridge=0.5), np.random.default_rng(3), list[Any]()
    for n in range(25):
        play(policy, 12, seed=n, log=log)
        agent, arms = int(rng.integers(N)), rng.standard_normal((int(rng.integers(1, 3 * SCORED)), D))
        if late and name in LIVE:
            policy.begin(agent, arms[0])
        scores = policy.scores(agent, arms)
        mean, width, index = scores.mean, scores.width, scores.index
        assert np.array_equal(index, mean + width)
        assert policy.select(agent, arms) == np.argmax(index)
        if name not in BY_ARM:
            np.testing.assert_allclose(mean, arms @ policy.estimate(agent), atol=1e-9)
            np.testing.assert_allclose(mean, arms @ refit(policy, agent, log, 0.5), atol=1e-8)
        assert (width >= 0.0).all() or policy.state.common.explores == SAMPLE
        arm, own, pooled = policy.choose(agent, arms)
        assert (arm, pooled) == (np.argmax(index), mean[arm])
        alone = reference.fit([(x, y) for who, x, y in log if who == agent], D, 0.5)
        assert own == pytest.approx(alone.theta_hat @ arms[arm], abs=1e-9)
        k = len(arms) - 1
        assert policy.predict(agent, arms[k]).pooled == mean[k]
        assert policy.predict(agent, arms[k]).own == pytest.approx(alone.theta_hat @ arms[k], abs=1e-9)


@every_policy
def test_the_first_of_equal_arms_is_chosen(name: str) -> None:
    policy = make(name)
    play(policy, 60)
    for n in (1, 2, 15, 16, 17, SCORED + 5):
        arms = np.tile(world().arms[3], (n, 1))
        assert policy.choose(4, arms).arm == policy.select(4, arms) == 0
        index = policy.scores(4, arms).index
        assert (index == index[0]).all()


@kinds
def test_looking_changes_nothing(kind: str, tmp_path: Path) -> None:
    watched, alone, rng = build(kind), build(kind), np.random.default_rng(0)
    for policy in (watched, alone):
        policy.set_sharing(2, "borrow")
        policy.set_sharing(4, "none")
    for n in range(120):
        agent, x, reward = int(rng.choice(alone.agents)), rng.standard_normal(D), float(rng.standard_normal())
        read(watched, rng)
        for policy in (watched, alone):
            if n == 60:
                policy.remove_agent(8, withdraw=True)
            if n % 7 == 0:
                policy.begin(agent % 8, x)
            policy.update(agent % 8, x, reward, begun=n % 7 == 0)
        read(watched, rng)
        if n % 10 == 0:
            for policy, path in ((watched, "watched"), (alone, "alone")):
                policy.save(tmp_path / path)
            assert (tmp_path / "watched").read_bytes() == (tmp_path / "alone").read_bytes()
    if not kind.endswith("crowd"):  # a crowd's lists of cuts are put in order when they are looked at
        assert snapshot(watched) == snapshot(alone)


@every_policy
def test_exploration_is_not_drawn(name: str) -> None:
    policy, greedy = make(name, epsilon=1.0), make(name)
    x = world().arms[2]
    for agent in range(N):
        for each in (policy, greedy):
            each.update(agent, x, 1.0)
        assert policy.choose(agent, world().arms) == greedy.choose(agent, world().arms)
    assert policy.scores(1, world().arms).index.tolist() == greedy.scores(1, world().arms).index.tolist()


@every_policy
def test_wrong_calls_are_named(name: str) -> None:
    policy = make(name)
    before = snapshot(policy)
    for call in (policy.choose, policy.scores):
        with pytest.raises(ValueError, match="agent must be in 0"):
            call(N, np.eye(D))
        with pytest.raises(ValueError, match=r"arms must have shape \(n, 3\)"):
            call(0, np.eye(2))
        with pytest.raises(ValueError, match="arms must be finite"):
            call(0, np.full((2, D), np.nan))
    with pytest.raises(ValueError, match=r"x must have shape \(3,\), got \(2,\)"):
        policy.predict(0, np.ones(2))
    with pytest.raises(ValueError, match="x must be finite"):
        policy.predict(0, [np.inf, 0.0, 0.0])
    assert snapshot(policy) == before


class SilentState(NamedTuple):
    """State of a policy whose choice leaves no scores."""

    common: LiveCommon
    local: Annotated[Statistics, rows(AGENTS)]


@step("select", SilentState)
def select(state: SilentState, agent: int, arms: Any, t: int) -> int:
    return 0


def test_a_policy_that_does_not_tell_its_scores() -> None:
    class Silent(shoal.Independent):
        name = "silent"
        State = SilentState  # type: ignore[assignment]

    policy = Silent(2, D, alpha=0.5)
    assert isinstance(policy.state.local, Statistics)
    assert policy.select(0, np.eye(D)) == 0
    for call in (policy.choose, policy.scores):
        with pytest.raises(TypeError, match="Silent does not tell its scores: its step select must leave"):
            call(0, np.eye(D))
