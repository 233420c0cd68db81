"""A sample put right, or taken back: every policy is then what it would be had it learned the right value."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import reference
from tests.core.contracts.test_policies import LIVE, D, N, every_live_policy, make, play, refit, snapshot

import shoal
from shoal.core.policies.bass import policy as bass


def check(policy: Any, log: list[Any], ridge: float) -> None:
    """Local and pooled statistics are those of the samples in `log`."""
    for agent in policy.agents.tolist():
        naive = reference.fit([(x, y) for who, x, y in log if who == agent], D, ridge)
        local = policy.state.local
        np.testing.assert_allclose(local.A[agent], naive.A, atol=1e-9)
        np.testing.assert_allclose(local.b[agent], naive.b, atol=1e-9)
        np.testing.assert_allclose(policy.local_estimate(agent), naive.theta_hat, atol=1e-9)
        assert policy.pulls[agent] == sum(who == agent for who, _, _ in log)
        np.testing.assert_allclose(policy.estimate(agent), refit(policy, agent, log, ridge), atol=1e-9)


LEARNED: dict[str, Any] = {"scatter": None, "drift": False}
"""A mixture that learns all it can of agents who do not change."""


@pytest.mark.parametrize("name", [*LIVE, "learned"])
@pytest.mark.parametrize("reconsider", [False, True])
def test_corrections_are_exact(name: str, reconsider: bool, tmp_path: Path) -> None:
    own = LEARNED if name == "learned" else {}
    policy = make(name.replace("learned", "cluster_mixture"), ridge=0.5, **own)
    log, rng = list[Any](), np.random.default_rng(7)
    for n in range(12):
        play(policy, 25, seed=n, log=log)
        place = int(rng.integers(len(log)))
        agent, x, old = log[place]
        graph, cost, rounds = policy.graph, policy.communication_cost, policy.rounds
        if n % 2:
            policy.retract(agent, x, old, reconsider=reconsider)
            log.pop(place)
        else:
            new = float(rng.standard_normal())
            policy.correct(agent, x, old, new, reconsider=reconsider)
            log[place] = agent, x, new
        check(policy, log, 0.5)
        assert (policy.communication_cost, policy.rounds) == (cost, rounds)
        if not reconsider:
            assert np.array_equal(policy.graph, graph)
        if name in ("learned", "cluster_mixture"):
            mine = [(x, y) for who, x, y in log if who == agent]
            assert policy.state.squares[agent] == pytest.approx(sum(y**2 for _, y in mine))
            row = policy.state.looks[agent]
            assert row[1:4] == pytest.approx(
                [len(mine), sum(x @ x for x, _ in mine), sum(y**2 for _, y in mine)]
            )
    policy.save(tmp_path / "p")
    assert play(shoal.load_policy(tmp_path / "p"), 40) == play(policy, 40)


@every_live_policy
def test_a_wrong_sample_that_is_taken_back_leaves_no_trace_in_the_sums(name: str) -> None:
    policy, log = make(name), list[Any]()
    play(policy, 60, log=log)
    x = np.array([1e4, -3e3, 7.0])  # a feature in the wrong unit
    with pytest.warns(UserWarning, match="squared length"):
        policy.update(3, x, 5e5)
    policy.retract(3, x, 5e5)
    local, mine = policy.state.local, [(x, y) for who, x, y in log if who == 3]
    naive = reference.fit(mine, D, 1.0)
    np.testing.assert_allclose(local.A[3], naive.A, atol=1e-6)
    np.testing.assert_allclose(local.theta_hat[3], naive.theta_hat, atol=1e-5)


@pytest.mark.parametrize("name", [*LIVE, "learned"])
def test_taking_back_every_sample_leaves_an_agent_that_has_seen_nothing(name: str) -> None:
    own = LEARNED if name == "learned" else {}
    name = name.replace("learned", "cluster_mixture")
    policy, log = make(name, **own), list[Any]()
    play(policy, 60, log=log)
    for agent, x, y in [entry for entry in log if entry[0] == 2]:
        policy.retract(agent, x, y)
    fresh = make(name).state.local
    for key in ("A", "A_inv", "b", "theta_hat", "pulls"):
        assert np.array_equal(getattr(policy.state.local, key)[2], getattr(fresh, key)[2]), key
    if name == "cluster_mixture":
        assert not policy.state.looks[2].any()
        assert not policy.state.squares[2]
    check(policy, [entry for entry in log if entry[0] != 2], 1.0)
    with pytest.raises(ValueError, match="x must be an arm of which agent 2 has a sample"):
        policy.retract(2, log[0][1], 0.0)
    play(policy, 60)


@every_live_policy
def test_corrections_that_make_no_sense_change_nothing(name: str) -> None:
    policy, log = make(name), list[Any]()
    play(policy, 60, log=log)
    policy.remove_agent(5, withdraw=True)
    agent, x, reward = log[0]
    before = snapshot(policy)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: policy.correct(N, x, reward, 1.0), "agent must be in 0"),
        (lambda: policy.correct(agent, x[:2], reward, 1.0), "x must have shape"),
        (lambda: policy.correct(agent, x, np.nan, 1.0), "old_reward must be a finite number"),
        (lambda: policy.correct(agent, x, reward, np.inf), "new_reward must be a finite number"),
        (lambda: policy.retract(agent, x, "much"), "reward must be a number"),
        (lambda: policy.retract(agent, 100.0 * x, reward), "x must be an arm of which agent"),
        (lambda: policy.correct(5, x, reward, 1.0), "the samples of agent 5 have been withdrawn"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()
    assert snapshot(policy) == before


@pytest.mark.parametrize("engine", ["witnesses", "crowd", "with room"])
def test_bass_reconsiders_the_agent_s_pairs(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "crowd":
        monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
    policy, rng = make("bass", gamma=1.0), np.random.default_rng(0)
    if engine == "with room":  # tables that have grown are larger than they need to be
        policy = type(policy)(0, D, **policy.parameters)
        for _ in range(N):
            policy.add_agents(1)
    mistakes = []
    for t in range(400):
        x = rng.standard_normal(D)
        wrong = t % N == 4 and t < 200  # for a while agent 4's rewards have the wrong sign
        y = float(x[0] + 0.1 * rng.standard_normal())
        policy.update(t % N, x, -y if wrong else y)
        if wrong:
            mistakes.append((x, -y, y))
    assert (policy.separation_time[4] >= 0).sum() == N - 1
    others = np.delete(np.arange(N), 4)
    for x, old, new in mistakes[:-1]:
        policy.correct(4, x, old, new)
    assert (policy.separation_time[4] >= 0).sum() == N - 1  # cuts stay
    policy.correct(4, *mistakes[-1], reconsider=True)
    for other in others.tolist():
        found = policy.explain(4, other)
        assert (found.statistic > found.threshold) == found.separated == (other not in policy.neighbors(4))
    assert len(policy.neighbors(4)) == N
    assert len(policy.cuts) == 0
    assert (policy.state.degree == N - 1).all()
    for x, old, new in mistakes:  # and back again
        policy.correct(4, x, new, 50.0 * old, reconsider=True)
    assert list(policy.neighbors(4)) == [4]
    assert sorted({*policy.cuts[:, :2].ravel().tolist()}) == list(range(N))
    assert set(policy.cuts[:, 2].tolist()) == {policy.rounds}


@pytest.mark.parametrize("engine", ["witnesses", "crowd"])
def test_whoever_moves_next_tests_the_pair_with_an_agent_that_was_corrected(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "crowd":
        monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
    policy, rng = make("bass", gamma=1.0), np.random.default_rng(3)
    samples = [(t % N, x := rng.standard_normal(D), x[0] + 0.1 * rng.standard_normal()) for t in range(400)]
    for agent, x, y in samples:
        policy.update(agent, x, y)
    assert len(policy.neighbors(1)) == N
    for agent, x, y in samples:
        if agent == 4:
            policy.correct(agent, x, y, -y)
    for mover in (1, 2, 3):  # agent 4 does not
        assert 4 in policy.neighbors(mover)
        policy.update(mover, np.eye(D)[1], 0.0)
        found = policy.explain(mover, 4)
        assert found.statistic > found.threshold
        assert found.separated
