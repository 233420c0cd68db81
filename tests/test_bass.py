"""BASS: explanations, sharing before and after separation, and the witness shortcut."""

import numpy as np
import pytest
from tests import reference

import shoal


def two_agents(pulls: int = 200, radius: str = "beta") -> shoal.BASS:
    policy = shoal.BASS(3, 2, alpha=0.5, delta=0.1, radius=radius)
    rng = np.random.default_rng(0)
    for n in range(pulls):
        x = np.eye(2)[n % 2]
        policy.update(0, x, x @ [1.0, 0.0] + rng.standard_normal())
        policy.update(1, x, x @ [-1.0, 0.0] + rng.standard_normal())
    return policy


@pytest.mark.parametrize("radius", ["beta", "beta_squared"])
def test_explain(radius: str) -> None:
    policy = two_agents(radius=radius)
    why = policy.explain(0, 1)
    local = policy.state.local
    betas = [float(shoal.beta(0.1, local.logdet_A[i], 1.0)) for i in range(3)]
    assert why.radius_agent == pytest.approx(betas[0])
    assert why.radius_other == pytest.approx(betas[1])
    pair = (local.theta_hat[0], local.A[0], betas[0], local.theta_hat[1], local.A[1], betas[1])
    assert why.statistic == pytest.approx(shoal.separation_statistic(*pair, radius=radius))
    cs = [b if radius == "beta" else b * b for b in betas]
    attained = reference.f(
        why.s, local.theta_hat[0], local.A[0], cs[0], local.theta_hat[1], local.A[1], cs[1]
    )
    assert attained == pytest.approx(why.statistic, rel=1e-9)
    assert why.threshold == 1.0
    assert why.separated
    assert why.separation_time == policy.separation_time[0, 1] > 0
    assert (why.lent_by_agent, why.lent_by_other) == (0, 0)
    shared = policy.explain(2, 0)
    assert not shared.separated
    assert shared.separation_time == -1
    assert (shared.lent_by_agent, shared.lent_by_other) == (0, 200)
    with pytest.raises(ValueError, match="other must differ from agent"):
        policy.explain(1, 1)


def test_separation_is_for_good() -> None:
    policy = two_agents()
    rounds = policy.separation_time[0, 1]
    for _ in range(500):
        policy.update(1, np.eye(2)[0], 1.0)  # agent 1 now looks like agent 0
    assert policy.separation_time[0, 1] == rounds
    assert not policy.graph[0, 1]


def test_the_witness_changes_no_verdict() -> None:
    """Forgetting every witness before each round tests every pair every time: same choices, same cuts."""
    environment = shoal.SyntheticClusters(20, 5, 3, 1.2, seed=1)
    for radius, gamma in (("beta", 2.0), ("beta_squared", 1.0)):
        quick = shoal.BASS(20, 5, alpha=0.3, delta=0.1, gamma=gamma, radius=radius)
        trace = shoal.simulate(quick, environment, horizon=3000, seed=1)
        plain = shoal.BASS(20, 5, alpha=0.3, delta=0.1, gamma=gamma, radius=radius)
        for agent, choice, reward in zip(trace.agents, trace.choices, trace.rewards, strict=True):
            plain.state.excess.fill(np.nan)
            assert plain.select(agent, environment.arms) == choice
            plain.update(agent, environment.arms[choice], reward)
        assert np.array_equal(quick.separation_time, plain.separation_time)
        assert (quick.separation_time > 0).sum() > 50


def test_every_kept_witness_lies_in_both_ellipsoids() -> None:
    environment = shoal.SyntheticClusters(12, 4, 3, 1.2, seed=1)
    for pulling in ("asynchronous", "synchronous"):
        policy = shoal.BASS(12, 4, alpha=0.3, delta=0.1)
        shoal.simulate(policy, environment, horizon=200, seed=1, pulling=pulling)
        state, checked = policy.state, 0
        for i, j in np.argwhere(policy.graph):
            point = state.witness[i, :, j]
            for agent in (i, j):
                offset = point - state.local.theta_hat[agent]
                if not np.isnan(point).any():
                    assert offset @ state.local.A[agent] @ offset <= state.threshold * state.radius[agent]
                    checked += 1
        assert checked > 20
