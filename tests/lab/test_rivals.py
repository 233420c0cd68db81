"""The field's rivals: compiled code makes the naive twins' choices, and what their sources promise holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest
from tests.core.policies.test_against_reference import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    both,
    own_parameters,
    play_both,
)
from tests.twins import dyclu

import shoal
from shoal.core.kernels.random import gamma, random_state
from shoal.core.policies.registry import BUILT_IN, RIVALS, policy_class
from shoal.lab.benchmark import typical

OWN: dict[str, dict[str, Any]] = {
    "hier_ts": {"scatter": 0.2},
    "hier_ucb": {"scatter": 0.2},
    "locb": {"n_seeds": 5, "gamma": 1.4},
    "rclumb": {"gamma": 0.6, "misspecification": 0.1},
    "rsclumb": {"gamma": 0.5, "misspecification": 0.1},
    "cab": {"gamma": 2.0},
}
"""Parameters with which these rivals have something to decide in a short run; others are typical of them."""


def parameters(name: str, environment: shoal.Environment) -> dict[str, Any]:
    if name in BUILT_IN:
        return own_parameters(name, environment, 0.6)
    return typical(policy_class(name), environment) | OWN.get(name, {})


@pytest.mark.parametrize("name", RIVALS)
def test_same_run(name: str) -> None:
    environment = shoal.SyntheticClusters(9, 3, 3, 1.3, noise_scale=0.5, seed=1)
    policy, twin = both(name, environment, 0.4, 1, **parameters(name, environment))
    play_both(policy, twin, environment, ASYNCHRONOUS, 300, seed=2)


@pytest.mark.parametrize("name", RIVALS)
def test_same_run_when_all_agents_pull_at_once_and_arms_change(name: str) -> None:
    environment = shoal.ChangingArms(6, 3, 2, n_arms=5, noise_scale=0.5, seed=4)
    policy, twin = both(name, environment, 0.4, 3, ridge=0.7, **parameters(name, environment))
    play_both(policy, twin, environment, SYNCHRONOUS, 40, seed=1)


SAMPLING = [name for name in BUILT_IN if name != "cluster_mixture"]
SAMPLING += ["locb", "rclumb", "rsclumb", "goblin", "colin"]


@pytest.mark.parametrize("name", SAMPLING)
def test_same_draws(name: str) -> None:
    """With rewards up to 20 rounds late, which only live policies foresee."""
    environment = shoal.SyntheticClusters(8, 3, 2, 1.2, noise_scale=0.5, seed=2)
    own = parameters(name, environment) | {"exploration": "sample"}
    policy, twin = both(name, environment, 0.5, 1, **own)
    play_both(policy, twin, environment, ASYNCHRONOUS, 200, seed=3, delay=("uniform", 0, 20))


@pytest.mark.parametrize("name", ["club", "sclub", "locb", "rclumb", "rsclumb"])
def test_same_run_without_the_root(name: str) -> None:
    environment = shoal.SyntheticClusters(8, 3, 2, 1.2, noise_scale=0.5, seed=2)
    own = parameters(name, environment) | {"bonus": "as-released"}
    policy, twin = both(name, environment, 0.5, 1, **own)
    play_both(policy, twin, environment, ASYNCHRONOUS, 200, seed=3)
    with pytest.raises(
        ValueError, match="bonus must be 'ucb' where exploration is 'sample', got 'as-released'"
    ):
        shoal.make_policy(name, 8, 3, bonus="as-released", exploration="sample")


def test_a_draw_belongs_to_its_agent_and_round() -> None:
    """Looking draws nothing away; the next round, another agent and another seed draw otherwise."""
    policy = shoal.Independent(3, 4, alpha=1.0, exploration="sample", seed=5)
    arms = np.random.default_rng(0).standard_normal((40, 4))
    first = policy.scores(0, arms)
    assert policy.select(0, arms) == policy.choose(0, arms).arm == first.index.argmax()
    assert np.array_equal(policy.scores(0, arms).index, first.index)
    other = shoal.Independent(3, 4, alpha=1.0, exploration="sample", seed=6)
    policy.update(1, arms[0], 0.0)  # of an agent that no other learns from
    for draws in (policy.scores(0, arms), policy.scores(2, arms), other.scores(0, arms)):
        assert not np.allclose(draws.width, first.width)


def test_draws_are_normal_with_the_pool_s_covariance() -> None:
    """4,000 rounds: of α L⁻ᵀz the mean is 0 and the covariance α² A⁻¹, within five standard errors."""
    rng, n, alpha = np.random.default_rng(1), 4_000, 0.7
    policy = shoal.Independent(2, 3, alpha=alpha, exploration="sample", seed=2)
    for x in rng.standard_normal((5, 3)):
        policy.update(0, x, 1.0)
    draws = np.empty((n, 3))
    for k in range(n):
        policy.update(1, [0.0, 0.0, 1e-9], 0.0)  # another round, and nothing learned of agent 0
        draws[k] = policy.scores(0, np.eye(3)).width
    wanted = alpha**2 * policy.state.local.A_inv[0]
    scale = np.sqrt(np.diag(wanted))
    assert (np.abs(draws.mean(axis=0)) < 5 * scale / np.sqrt(n)).all()
    errors = (draws.T @ draws / n - wanted) / np.outer(scale, scale)
    assert (np.abs(errors) < 5 * np.sqrt(2 / n)).all()
    whitened = draws @ np.linalg.cholesky(np.linalg.inv(wanted))
    assert np.abs((whitened[1:] * whitened[:-1]).mean(axis=0)).max() < 5 / np.sqrt(
        n
    )  # rounds are independent


@pytest.mark.parametrize("bonus", ["own", "ucb"])
def test_hierarchical_bonuses(bonus: str) -> None:
    environment = shoal.GaussianClusters(7, 3, 2, n_arms=6, seed=2)
    policy, twin = both("hier_ucb", environment, 0.5, 1, scatter=0.3, bonus=bonus)
    play_both(policy, twin, environment, ASYNCHRONOUS, 150, seed=3)


def test_two_draws_of_hierts_are_one() -> None:
    """Its source draws the mean, then the agent's parameter given the mean: mean and covariance are ours."""
    rng, kappa, ridge = np.random.default_rng(4), 0.2, 0.7
    policy = shoal.make_policy("hier_ts", 4, 3, alpha=1.0, ridge=ridge, scatter=kappa, seed=1)
    log = [(int(rng.integers(4)), rng.standard_normal(3), float(rng.standard_normal())) for _ in range(30)]
    for sample in log:
        policy.update(*sample)
    S, b = np.zeros((4, 3, 3)), np.zeros((4, 3))
    for agent, x, reward in log:
        S[agent] += np.outer(x, x)
        b[agent] += reward * x
    # All parameters at once: (μ, θ_1, …, θ_4) is Gaussian, with this precision.
    precision, eye = np.zeros((15, 15)), np.eye(3)
    precision[:3, :3] = (ridge + 4 / kappa) * eye
    for i in range(4):
        own = slice(3 * i + 3, 3 * i + 6)
        precision[:3, own] = precision[own, :3] = -eye / kappa
        precision[own, own] = eye / kappa + S[i]
    covariance = np.linalg.inv(precision)
    means = covariance @ np.concatenate([np.zeros(3), b.ravel()])
    for i in range(4):
        np.testing.assert_allclose(policy.estimate(i), means[3 * i + 3 : 3 * i + 6], atol=1e-9)
        L = np.tril(policy.state.L)
        np.testing.assert_allclose(
            np.linalg.inv(L @ L.T), covariance[3 * i + 3 : 3 * i + 6, 3 * i + 3 : 3 * i + 6], atol=1e-9
        )


@pytest.mark.parametrize("own", [{}, {"evidence": "as-released", "concentration": 2.0}])
def test_codband_where_agents_change(own: dict[str, Any]) -> None:
    """Periods end in the same rounds, and leave their samples in their models."""
    environment = shoal.ChangingAgents(6, 3, 3, 1.4, change_after=200, noise_scale=0.2, seed=3)
    policy, twin = both("codband", environment, 0.3, 2, noise_scale=0.2, **own)
    play_both(policy, twin, environment, ASYNCHRONOUS, 360, seed=4)
    assert policy.labels.tolist() == twin.labels
    assert policy.state.weight[0] == pytest.approx(twin.weight, rel=1e-9)
    assert policy.state.periods.sum() > 6 > 0 < policy.pulls.sum() < 360


@pytest.mark.parametrize("own", [{}, {"bonus": "ucb"}, {"exploration": "sample"}])
def test_dyclu_where_agents_change(own: dict[str, Any]) -> None:
    """Failures, models put aside and whom they are reused by: all as the twin has it."""
    environment = shoal.ChangingAgents(5, 3, 3, 1.4, change_after=150, noise_scale=0.3, seed=3)
    policy, twin = both("dyclu", environment, 0.1, 2, noise_scale=0.3, **own)
    play_both(policy, twin, environment, ASYNCHRONOUS, 300, seed=4)
    state = policy.state
    assert 1 < state.n_past[0] == len(twin.past) <= 5
    assert state.reused.sum(axis=1).tolist() == [len(models) for models in twin.reused]
    assert state.reused.any()
    assert not policy.graph[~np.eye(5, dtype=bool)].all()


def test_only_so_many_models_are_put_aside() -> None:
    """An agent that changes all the time, and one that does not and is seldom there: the oldest models go."""
    rng = np.random.default_rng(0)
    policy = shoal.make_policy("dyclu", 2, 2, noise_scale=0.1)
    twin = dyclu.DyClu(2, 2, alpha=0.6, noise_scale=0.1)
    for t in range(1, 201):
        agent, x = int(t % 12 == 0), rng.standard_normal(2)
        turn = 1.0 if agent == 1 else (-1.0) ** (t // 30)
        reward = float(x @ [1.0, turn] + 0.1 * rng.standard_normal())
        policy.update(agent, x, reward)
        twin.observe(agent, x, reward, t)
        twin.revise(agent, t)
        assert policy.pulls.tolist() == [len(samples) for samples in twin.samples]
        assert policy.state.reused.sum(axis=1).tolist() == [len(models) for models in twin.reused]
        for each in range(2):
            np.testing.assert_allclose(policy.estimate(each), twin.pooled(each).theta_hat, atol=1e-8)
    assert policy.state.n_past[0] > 3


def test_the_gamma_distribution() -> None:
    rng = random_state(3)
    for shape in (1.0, 2.5, 40.0):
        drawn = np.array([gamma(rng, shape) for _ in range(4_000)])
        assert kstest(drawn, "gamma", (shape,)).pvalue > 1e-3


def test_lints_is_independent_that_samples() -> None:
    world = shoal.GaussianClusters(5, 3, 2, n_arms=6, seed=0)
    own: dict[str, Any] = {"alpha": 0.4, "seed": 3}
    one = shoal.simulate(shoal.make_policy("lints", 5, 3, **own), world, horizon=300, seed=1)
    two = shoal.simulate(shoal.Independent(5, 3, exploration="sample", **own), world, horizon=300, seed=1)
    assert np.array_equal(one.choices, two.choices)
    greedy = shoal.simulate(shoal.Independent(5, 3, **own), world, horizon=300, seed=1)
    assert not np.array_equal(one.choices, greedy.choices)


IRREGULAR = np.zeros((7, 7), dtype=bool)
for _i, _j in ((0, 1), (1, 2), (1, 3), (3, 0), (4, 5)):  # a triangle with a tail, a pair, and one alone
    IRREGULAR[_i, _j] = IRREGULAR[_j, _i] = True


@pytest.mark.parametrize(("name", "own"), [("goblin", {"coupling": 0.3}), ("colin", {})])
def test_same_run_on_an_irregular_graph(name: str, own: dict[str, Any]) -> None:
    environment = shoal.GaussianClusters(7, 2, 3, n_arms=5, noise_scale=0.5, seed=3)
    policy, twin = both(name, environment, 0.5, 0, ridge=0.6, graph=IRREGULAR, **own)
    play_both(policy, twin, environment, ASYNCHRONOUS, 350, seed=1)
    assert policy.neighbors(2).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["goblin", "colin"])
def test_without_edges_a_given_graph_leaves_everybody_alone(name: str) -> None:
    environment = shoal.GaussianClusters(5, 3, 2, n_arms=6, seed=0)
    policy = shoal.make_policy(name, 5, 3, alpha=0.4, graph=np.zeros((5, 5)))
    alone = shoal.Independent(5, 3, alpha=0.4)
    ours, theirs = (shoal.simulate(each, environment, horizon=400, seed=1) for each in (policy, alone))
    assert np.array_equal(ours.choices, theirs.choices)
    assert policy.communication_cost == 0


@pytest.mark.parametrize(("field", "by"), [("covariance", 0.01), ("theta", 0.01), ("updates", 0.01)])
def test_what_does_not_follow_from_the_samples_is_refused(field: str, by: float, tmp_path: Path) -> None:
    environment = shoal.GaussianClusters(7, 2, 3, n_arms=5, seed=3)
    policy = shoal.make_policy("goblin", 7, 2, graph=IRREGULAR)
    shoal.simulate(policy, environment, horizon=150, seed=0)
    policy.save(tmp_path / "policy")
    shoal.load_policy(tmp_path / "policy")
    getattr(policy.state, field)[...] += by
    policy.save(tmp_path / "policy")
    with pytest.raises(shoal.PolicyFileError, match="does not follow from the samples"):
        shoal.load_policy(tmp_path / "policy")
