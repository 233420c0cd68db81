"""The yardsticks: agents that are told the clusters' parameters, and an Oracle for clicks."""

import numpy as np
import pytest

import shoal
from shoal.lab.experiments.informed import ClickOracle, Informed


def test_who_is_told_the_clusters_finds_its_own() -> None:
    world = shoal.SyntheticClusters(12, 4, 3, 1.2, seed=0)
    assert world.theta_star is not None
    policy = Informed(12, 4, parameters=world.theta_star)
    assert policy.centers.shape == (3, 4)  # equal rows count once
    trace = shoal.simulate(policy, world, horizon=3_000, seed=0)
    alone = shoal.simulate(shoal.Independent(12, 4, alpha=0.3), world, horizon=3_000, seed=0)
    assert trace.final_regret < 0.3 * alone.final_regret
    for agent in range(12):
        found = policy.centers[int(np.argmax(policy.posterior(agent)))]
        assert np.array_equal(found, world.theta_star[agent])


def test_posterior_is_bayes_rule() -> None:
    policy = Informed(1, 2, parameters=[[1.0, 0.0], [0.0, 1.0]], noise_scale=0.5)
    x, reward = np.array([1.0, 0.5]), 0.8
    policy.update(0, x, reward)
    weights = np.exp(-0.5 * (reward - np.array([0.5, 1.0])) ** 2 / 0.25)  # rows are sorted
    np.testing.assert_allclose(policy.posterior(0), weights / weights.sum())
    with pytest.raises(ValueError, match=r"parameters must have shape \(M, 3\)"):
        Informed(1, 3, parameters=[[1.0, 0.0]])


def test_click_oracle_chooses_as_one_agent_with_all_samples_of_its_cluster() -> None:
    rng = np.random.default_rng(0)
    told = ClickOracle(4, 3, labels=[0, 1, 0, 1])
    pooled = shoal.Independent(2, 3, alpha=0.6, rewards="binary")
    for _ in range(300):
        agent, arms = int(rng.integers(4)), rng.standard_normal((6, 3))  # of different lengths: no ties
        chosen = told.select(agent, arms)
        assert chosen == pooled.select(agent % 2, arms)
        click = float(rng.random() < 0.3)
        told.update(agent, arms[chosen], click)
        pooled.update(agent % 2, arms[chosen], click)


def test_click_oracle_pools_a_cluster() -> None:
    world = shoal.make_environment("clicks", n_agents=40, dim=4, n_clusters=2, rate=0.3, seed=0)
    assert world.labels is not None
    told = shoal.simulate(ClickOracle(40, 4, labels=world.labels), world, horizon=2_000, seed=0)
    alone = shoal.simulate(
        shoal.Independent(40, 4, alpha=0.6, rewards="binary"), world, horizon=2_000, seed=0
    )
    assert told.final_regret < 0.5 * alone.final_regret
    with pytest.raises(ValueError, match=r"labels must have shape \(3,\), got \(2,\)"):
        ClickOracle(3, 4, labels=[0, 1])
