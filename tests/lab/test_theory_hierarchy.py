"""The bound for HierTS: its information against exact determinants, and its regret against simulation."""

import math

import numpy as np
import pytest

import shoal
from shoal.lab import theory
from shoal.lab.environments.base import Environment


@pytest.mark.parametrize("scatter", [0.0, 0.05, 1.0])
def test_what_rounds_tell_is_within_the_bound(scatter: float) -> None:
    """Twice the information is ln det(I + K) of the rounds' covariance; the bound has it under a root."""
    dim, n_agents, ridge, horizon = 3, 5, 0.5, 80
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((horizon, dim))
        x *= rng.uniform(size=(horizon, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
        agents = rng.integers(n_agents, size=horizon)
        covariance = (x @ x.T) * (1.0 / ridge + scatter * np.equal.outer(agents, agents))
        exact = np.linalg.slogdet(np.eye(horizon) + covariance)[1]
        variance = scatter + 1.0 / ridge
        bound = theory.regret_bound_hierarchy(
            dim,
            horizon=horizon,
            n_agents=n_agents,
            n_arms=1,
            scatter=scatter,
            ridge=ridge,
            delta=math.exp(-0.5),
        )
        slack = horizon * math.sqrt(variance / (2.0 * math.pi)) * math.exp(-0.5)
        told = (float(bound) - slack) ** 2 * math.log1p(variance) / (horizon * variance)
        assert exact <= told


@pytest.mark.parametrize("scatter", [0.0, 0.1, 1.0])
def test_regret_of_hier_ts_is_within_the_bound(scatter: float) -> None:
    """40 draws of 20 agents from the prior that HierTS is told; docs/theory.md quotes the means."""
    n_agents, dim, n_arms, horizon, regrets = 20, 3, 10, 2_000, []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        theta_star = rng.standard_normal(dim) + math.sqrt(scatter) * rng.standard_normal((n_agents, dim))
        arms = rng.standard_normal((n_arms, dim))
        arms /= np.linalg.norm(arms, axis=1, keepdims=True)
        policy = shoal.make_policy("hier_ts", n_agents, dim, scatter=scatter, alpha=1.0, seed=seed)
        world = Environment(arms, theta_star=theta_star)
        regrets.append(shoal.simulate(policy, world, horizon=horizon, seed=seed).final_regret)
    error = float(np.std(regrets, ddof=1)) / math.sqrt(len(regrets))
    bound = theory.regret_bound_hierarchy(
        dim, horizon=horizon, n_agents=n_agents, n_arms=n_arms, scatter=scatter
    )
    assert np.mean(regrets) + 3.0 * error <= bound


def test_limits_of_the_bound() -> None:
    """Without scatter one model serves all; a mean that is known leaves less to learn."""
    own = {"horizon": 1_000, "n_arms": 5}
    alone = theory.regret_bound_hierarchy(4, n_agents=10, scatter=0.5, ridge=1e12, **own)
    assert theory.regret_bound_hierarchy(4, n_agents=10, scatter=0.5, **own) > alone
    one = theory.regret_bound_hierarchy(4, n_agents=1, scatter=0.0, **own)
    assert theory.regret_bound_hierarchy(4, n_agents=10, scatter=0.0, **own) == pytest.approx(one)
    with pytest.raises(ValueError, match=r"scatter=-1\. is out of range"):
        theory.regret_bound_hierarchy(4, n_agents=1, scatter=-1.0, **own)
