"""WeightedBASS: weights are always those of the present samples; explanations; agents that come and go."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import reference

import shoal
from shoal.policies.steps import observe, revise
from shoal.policies.weighted import weigh
from shoal.types import Matrix


def direct_weights(policy: shoal.WeightedBASS) -> Matrix:
    """All weights from the policy's local statistics, pair by pair, as the rule says."""
    local, own, n = policy.state.local, policy.parameters, policy.n_agents
    weights = np.ones((n, n))
    base = policy.dim * math.log(own["ridge"])
    c = [reference.beta(own["delta"], value - base, own["noise_scale"]) ** 2 for value in local.logdet_A]
    for i in range(n):
        for j in range(n):
            g = reference.screen(local.theta_hat[i], local.A[i], c[i], local.theta_hat[j], local.A[j], c[j])
            weights[i, j] = max(0.0, 1.0 - g / (own["gamma"] ** 2 / 4)) ** own["power"]
    return weights


@settings(max_examples=60)
@given(
    n=st.integers(1, 6),
    d=st.integers(1, 5),
    power=st.sampled_from([2.0, 1.0, 0.5, 3.3]),
    gamma=st.floats(0.2, 3.0),
    ridge=st.sampled_from([1.0, 0.1, 7.0]),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
    seed=st.integers(0, 10**6),
)
def test_weights_are_those_of_the_present_samples(
    n: int, d: int, power: float, gamma: float, ridge: float, spread: float, seed: int
) -> None:
    """After rounds in which any number of agents pull: symmetric, within [0, 1], and as computed afresh."""
    policy = shoal.WeightedBASS(n, d, power=power, gamma=gamma, ridge=ridge, noise_scale=0.8)
    rng = np.random.default_rng(seed)
    centers = spread * rng.standard_normal((n, d))
    for t in range(1, 25):
        movers = rng.permutation(n)[: rng.integers(1, n + 1)].tolist()
        for agent in movers:
            x = rng.standard_normal(d)
            observe(policy.state, agent, x, float(x @ centers[agent] + rng.standard_normal()), t)
        for agent in movers:
            revise(policy.state, agent, t)
    weights = policy.weights
    assert np.array_equal(weights, weights.T)
    assert (weights.diagonal() == 1.0).all()
    assert weights.min() >= 0.0
    assert weights.max() <= 1.0
    np.testing.assert_allclose(weights, direct_weights(policy), atol=1e-9)
    for agent in range(n):  # whoever computes a weight, it is the same to the last bit
        weigh(policy.state, agent)
    assert np.array_equal(policy.weights, weights)


def two_agents(power: float = 2.0) -> shoal.WeightedBASS:
    """Agents 0 and 1 with estimates some way apart, and agent 2 with no samples."""
    policy = shoal.WeightedBASS(3, 2, power=power)
    rng = np.random.default_rng(0)
    for n in range(40):
        x = np.array([1.0, 0.5]) if n % 2 else np.array([-0.3, 1.0])
        policy.update(0, x, float(x @ [0.3, 0.0] + 0.1 * rng.standard_normal()))
        if n % 3:
            policy.update(1, x, float(x @ [-0.1, 0.2] + 0.1 * rng.standard_normal()))
    return policy


def test_a_bad_start_is_forgiven() -> None:
    policy = shoal.WeightedBASS(2, 1)
    x = np.array([1.0])
    for _ in range(30):
        policy.update(0, x, 1.0)
    for _ in range(10):
        policy.update(1, x, -3.0)  # unlucky
    assert policy.weights[0, 1] == 0.0
    assert not policy.graph.any()
    cost = policy.communication_cost
    policy.update(0, x, 1.0)
    assert policy.communication_cost == cost
    for _ in range(300):
        policy.update(1, x, 1.2)
    assert policy.weights[0, 1] > 0.5
    assert policy.graph[0, 1]
    assert policy.explain(0, 1).lent_by_other == pytest.approx(310 * policy.weights[0, 1])


def test_the_statistic_bounds_the_exact_one() -> None:
    environment = shoal.SyntheticClusters(8, 4, 3, 1.2, seed=2)
    policy = shoal.WeightedBASS(8, 4, alpha=0.5)
    shoal.simulate(policy, environment, horizon=600, seed=2)
    local = policy.state.local
    for i in range(8):
        for j in range(i):
            why = policy.explain(i, j)
            exact = shoal.separation_statistic(
                local.theta_hat[i], local.A[i], why.radius_agent,
                local.theta_hat[j], local.A[j], why.radius_other, radius="beta_squared",
            )  # fmt: skip
            assert 0.0 < exact <= why.statistic * (1 + 1e-12)


def test_the_statistic_is_exact_for_proportional_matrices() -> None:
    policy = shoal.WeightedBASS(2, 2)
    for x in (*np.eye(2), *np.eye(2)):
        policy.update(0, x, 1.0)
    for x in np.eye(2):
        policy.update(1, x, -0.5)
    why, local = policy.explain(0, 1), policy.state.local
    exact = shoal.separation_statistic(
        local.theta_hat[0], local.A[0], why.radius_agent,
        local.theta_hat[1], local.A[1], why.radius_other, radius="beta_squared",
    )  # fmt: skip
    assert why.statistic == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("power", [2.0, 0.5])
def test_explain(power: float) -> None:
    policy = two_agents(power=power)
    why, local = policy.explain(0, 1), policy.state.local
    assert 0.0 < why.weight == policy.weights[0, 1] < 1.0
    assert why.threshold == 1.75**2 / 4
    assert why.weight == pytest.approx((1.0 - why.statistic / why.threshold) ** power)
    assert why.radius_agent == pytest.approx(float(shoal.beta(0.1, local.logdet_A[0], 1.0)))
    assert why.radius_other == pytest.approx(float(shoal.beta(0.1, local.logdet_A[1], 1.0)))
    assert why.distance == pytest.approx(np.linalg.norm(local.theta_hat[0] - local.theta_hat[1]))
    assert (why.pulls_agent, why.pulls_other) == tuple(policy.pulls[:2])
    assert why.lent_by_agent == why.weight * why.pulls_agent
    assert why.lent_by_other == why.weight * why.pulls_other
    back = policy.explain(1, 0)
    assert (back.weight, back.statistic) == (why.weight, why.statistic)
    assert back.distance_at_end == pytest.approx(why.distance_at_end)
    assert (back.radius_agent, back.lent_by_other) == (why.radius_other, why.lent_by_agent)
    with pytest.raises(ValueError, match="other must differ from agent, got 1 twice"):
        policy.explain(1, 1)


@pytest.mark.parametrize("power", [2.0, 0.5])
def test_what_explain_says_would_happen_happens(power: float) -> None:
    policy = two_agents(power=power)
    why, theta_hat = policy.explain(0, 1), policy.state.local.theta_hat
    v = (theta_hat[1] - theta_hat[0]) / why.distance

    def weight_at(distance: float) -> float:
        theta_hat[1] = theta_hat[0] + distance * v
        weigh(policy.state, 0)
        return float(policy.weights[0, 1])

    assert weight_at(why.distance) == pytest.approx(why.weight)
    assert weight_at(why.distance_at_half) == pytest.approx(0.5)
    assert weight_at(why.distance_at_end * (1 + 1e-9)) == 0.0
    assert weight_at(why.distance_at_end * (1 - 1e-6)) > 0.0


def test_equal_estimates_share_in_full() -> None:
    policy = shoal.WeightedBASS(2, 2)
    why = policy.explain(0, 1)
    assert (why.weight, why.statistic, why.distance) == (1.0, 0.0, 0.0)
    assert why.distance_at_half == why.distance_at_end == math.inf


def test_weights_is_a_copy() -> None:
    policy = two_agents()
    before = policy.weights
    policy.weights.fill(0.5)
    assert np.array_equal(policy.weights, before)


def test_what_a_removed_agent_lent_still_follows_the_others_moves() -> None:
    policy = two_agents()
    weights = policy.weights
    policy.remove_agent(1)
    assert np.array_equal(policy.weights, weights)
    assert not policy.graph[1].any()
    for _ in range(60):
        policy.update(0, np.array([1.0, 0.5]), -0.05)  # now agent 0 looks like agent 1
    assert policy.weights[0, 1] > weights[0, 1]
    for _ in range(200):
        policy.update(0, np.array([1.0, 0.5]), 3.0)
    assert policy.weights[0, 1] == policy.weights[1, 0] == 0.0


def test_newcomers_pool_only_those_who_are_there() -> None:
    policy = two_agents()
    policy.remove_agent(1)
    (newcomer,) = policy.add_agents(1)
    assert policy.weights[newcomer, 1] == policy.weights[1, newcomer] == 0.0
    np.testing.assert_allclose(policy.weights[newcomer, [0, 2]], direct_weights(policy)[newcomer, [0, 2]])
    assert 0.0 < policy.weights[newcomer, 0] < 1.0
    for _ in range(3):
        policy.update(newcomer, np.array([1.0, 0.5]), 0.3)
        policy.update(0, np.array([1.0, 0.5]), 0.3)
    assert policy.weights[newcomer, 1] == 0.0
    assert policy.weights[0, 1] > 0.0
    assert policy.explain(newcomer, 1).lent_by_other == 0.0


def test_withdrawn_samples_never_count_again() -> None:
    policy = two_agents()
    policy.remove_agent(1, withdraw=True)
    policy.update(0, np.array([1.0, 0.0]), 0.3)
    assert policy.weights[0, 1] == policy.weights[1, 0] == 0.0
    assert policy.weights[1, 1] == 1.0
    np.testing.assert_allclose(policy.estimate(0), policy.local_estimate(0))  # agent 2 has nothing to lend
    assert not policy.state.lent[1].any()  # nor are they in its files
    assert not policy.state.columns[:, 1].any()


def test_extreme_rewards_and_levels_leave_a_usable_policy() -> None:
    for power in (2.0, 0.4):
        policy = shoal.WeightedBASS(2, 2, delta=float(np.nextafter(1.0, 0.0)), ridge=0.3, power=power)
        for reward in (1e30, -1e30, 1e-300, 0.0):
            policy.update(0, np.array([1e30, 0.0]), reward)
            policy.update(0, np.array([1.0, 0.0]), reward)
            policy.update(1, np.array([0.0, 1e-200]), reward)
            assert np.isfinite(policy.weights).all()
        assert np.isfinite(policy.estimate(0)).all()
        assert policy.select(0, np.eye(2)) in (0, 1)
