"""Two agents who turn out to be one: the sums of both, and nothing left of the second."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import reference
from tests.core.contracts.test_policies import D, N, play, snapshot, world
from tests.core.contracts.test_sharing import build, expected, kinds, samples, twin_of

import shoal

ONE, TWO = 2, 5


@kinds
@pytest.mark.parametrize("modes", [("both", "both"), ("borrow", "both"), ("both", "none")])
def test_the_sums_are_those_of_both(kind: str, modes: tuple[str, str], tmp_path: Path) -> None:
    policy, log = build(kind, ridge=0.5), list[Any]()
    policy.set_sharing(ONE, modes[0])
    policy.set_sharing(TWO, modes[1])
    for agent, x, reward in samples(180):
        policy.update(agent, x, reward)
        log.append((agent, x, reward))
    rounds, cost, last = policy.rounds, policy.communication_cost, np.ones(D)
    policy.begin(TWO, last)
    before = policy.pulls
    policy.merge(ONE, TWO)
    assert (policy.rounds, policy.communication_cost) == (rounds + 1, cost)
    assert (policy.sharing(ONE), policy.pulls[ONE], policy.pulls[TWO]) == (
        modes[0],
        before[ONE] + before[TWO],
        0,
    )
    assert (policy.pending[ONE], policy.pending[TWO]) == (1, 0)
    merged = [(ONE if who == TWO else who, x, y) for who, x, y in log]
    local, twin = policy.state.local, twin_of(policy, merged) if kind.startswith("noise") else None
    if twin is not None:  # the ridge is measured anew, by the samples of both
        _, _, lengths, pulls = twin.sums([ONE])
        twin.units[ONE] = lengths / pulls
        twin.units[ONE] = twin.unit_of([ONE])
    if kind != "drift" or (policy.forgot < 0).all():
        ridge = twin.ridge_of([ONE]) if twin is not None else 0.5
        naive = reference.fit([(x, y) for who, x, y in merged if who == ONE], D, ridge)
        np.testing.assert_allclose(local.A[ONE], naive.A, atol=1e-9)
        np.testing.assert_allclose(local.b[ONE], naive.b, atol=1e-9)
        np.testing.assert_allclose(policy.local_estimate(ONE), naive.theta_hat, atol=1e-9)
    if kind != "drift":
        for agent in policy.agents.tolist():
            known = twin.pooled(agent).theta_hat if twin is not None else expected(policy, agent, merged)
            np.testing.assert_allclose(policy.estimate(agent), known, atol=1e-8)
    policy.update(ONE, last, 1.0, begun=True)
    assert TWO not in policy.agents
    with pytest.raises(ValueError, match="agent 5 has been removed"):
        policy.select(TWO, world().arms)
    policy.save(tmp_path / "p")
    assert play(shoal.load_policy(tmp_path / "p"), 40) == play(policy, 40)


@kinds
def test_nothing_is_left_of_the_other(kind: str, tmp_path: Path) -> None:
    policy, gone = build(kind), build(kind)
    for each in (policy, gone):
        play(each, 150)
    policy.merge(ONE, TWO)
    gone.remove_agent(TWO, withdraw=True)
    mine, other = policy.state, gone.state
    for key in ("A", "tail", "A_inv", "b", "theta_hat", "logdet_A", "traces", "pulls"):
        assert np.array_equal(getattr(mine.local, key)[TWO], getattr(other.local, key)[TWO]), key
    assert mine.common.withdrawn[TWO]
    if hasattr(policy, "cuts"):
        assert TWO not in policy.cuts[:, :2]
    if hasattr(mine, "drift"):
        for key in ("ring", "past", "held"):
            assert not getattr(mine.drift, key)[TWO].any(), key
        assert not mine.pool.members.lent[TWO].any()
        assert not mine.looks[TWO].any()
        assert (mine.squares[TWO], mine.pool.model.weights[TWO]) == (0.0, 1.0)
    if hasattr(mine, "lent"):
        assert not mine.lent[TWO].any()


def test_bass_decides_anew_whom_the_merged_agent_shares_with() -> None:
    policy, rng = build("bass", gamma=1.0), np.random.default_rng(0)
    theta = np.array([1.0, 0.0, 0.0])
    for t in range(500):
        agent, x = t % N, rng.standard_normal(D)
        policy.update(agent, x, float((-1 if agent == TWO else 1) * x @ theta + 0.1 * rng.standard_normal()))
    assert list(policy.neighbors(TWO)) == [TWO]
    policy.merge(ONE, TWO)
    for other in policy.agents.tolist():
        if other != ONE:
            found = policy.explain(ONE, other)
            assert (
                (found.statistic > found.threshold) == found.separated == (other not in policy.neighbors(ONE))
            )


@kinds
def test_wrong_merges_are_named(kind: str) -> None:
    policy = build(kind)
    play(policy, 40)
    policy.remove_agent(7)
    before = snapshot(policy)
    with pytest.raises(ValueError, match="other must differ from agent, got 3 twice"):
        policy.merge(3, 3)
    for pair in ((7, 1), (1, 7)):
        with pytest.raises(ValueError, match="agent 7 has been removed"):
            policy.merge(*pair)
    with pytest.raises(ValueError, match="agent must be in 0"):
        policy.merge(1, N)
    assert snapshot(policy) == before
