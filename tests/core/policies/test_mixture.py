"""ClusterMixture: posteriors, sums that stay those of the members, outliers, agents that come and go."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import shoal
from shoal.core.policies.mixture.clusters import RESUM_AFTER, move
from shoal.core.policies.mixture.evidence import weigh
from shoal.core.policies.mixture.kernels import factor_packed, largest
from shoal.core.policies.mixture.state import SEEN, TO_TEND
from shoal.core.policy.steps import observe, revise
from shoal.core.types import Matrix, Vector

Log = dict[int, list[tuple[Vector, float]]]
PLAIN: dict[str, Any] = {"scatter": 0, "drift": False, "ridge_bonus": 0}
"""Members of a cluster are the same and never change, and there is no bonus for what the ridge hides."""


def played(rounds: int = 200, seed: int = 0, **own: Any) -> tuple[shoal.ClusterMixture, Log]:
    """A policy after some rounds among eight agents in two clusters, and everybody's samples."""
    policy = shoal.ClusterMixture(8, 3, seed=seed, **(PLAIN | own))
    rng, log = np.random.default_rng(seed), Log({agent: [] for agent in range(8)})
    theta = np.array([[1.0, 0.5, 0.0], [-1.0, 0.5, 0.3]])
    for _ in range(rounds):
        agent = int(rng.integers(7))  # agent 7 never pulls
        x = rng.standard_normal(3)
        reward = float(x @ theta[agent % 2] + 0.7 * rng.standard_normal())
        policy.update(agent, x, reward)
        log[agent].append((x, reward))
    return policy, log


def check(policy: shoal.ClusterMixture) -> None:
    """Every cluster's sums, evidence and sizes are those of its members, computed afresh."""
    state, d = policy.state, policy.dim
    _, members, clusters, _ = state.pool
    labels, active = members.labels[:, 0], state.common.active
    used = clusters.used[: clusters.n_used[0]].tolist()
    assert used == sorted({int(label) for label in members.labels.ravel() if label >= 0})
    assert (labels[(state.local.pulls > 0) & active] >= 0).all()
    for k in range(clusters.sums.shape[0]):
        there = members.labels == k
        assert clusters.sizes[k, 0] == (there[:, 0] & active).sum()
        assert clusters.sizes[k, 1:].tolist() == there[:, 1:].sum(axis=0).tolist()
        assert clusters.removed[k] == (there[:, 0] & ~active).sum()
        assert (clusters.sizes[k].sum() > 0) == (k in used)
        fresh = members.lent[there].sum(axis=0)
        size = max(policy.parameters["ridge"], largest(fresh, d))
        np.testing.assert_allclose(clusters.sums[k], fresh, rtol=0.0, atol=1e-9 * size)
        np.testing.assert_allclose(
            clusters.pending[1 + k], state.common.pending.sums[there[:, 0]].sum(axis=0), atol=1e-9
        )
        if k in used:
            assert not clusters.outdated[k]
            prior = state.pool.model.prior[0]
            terms = factor_packed(clusters.sums[k], prior, np.eye(d), np.zeros(d))
            assert clusters.form[k] == pytest.approx(terms[0], rel=1e-6, abs=1e-6)
            assert clusters.logdet[k] == pytest.approx(terms[1], rel=1e-6, abs=1e-6)


@settings(max_examples=50)
@given(
    n=st.integers(1, 7),
    d=st.integers(1, 4),
    concentration=st.sampled_from([1e-12, 0.5, 5.0, 1e6]),
    redraws=st.integers(0, 3),
    ridge=st.sampled_from([1.0, 0.1, 7.0]),
    outliers=st.sampled_from([(1.0,), (1.0, 1e4), (1.0, 1e15), (1e-3, 1.0, 1e30)]),
    own=st.sampled_from([PLAIN, {}, {"scatter": 0.3}, {"scatter": 0, "drift": True}]),
    seed=st.integers(0, 10**6),
)
def test_sums_are_those_of_the_members(
    n: int,
    d: int,
    concentration: float,
    redraws: int,
    ridge: float,
    outliers: tuple[float, ...],
    own: dict[str, Any],
    seed: int,
) -> None:
    policy = shoal.ClusterMixture(
        n, d, concentration=concentration, redraws=redraws, ridge=ridge, noise_scale=1.0, seed=seed, **own
    )
    rng = np.random.default_rng(seed)
    for t in range(1, 50):
        there = rng.permutation(policy.agents)
        movers = there[: rng.integers(1, len(there) + 1)].tolist()
        for agent in movers:
            x = rng.choice(outliers) * rng.standard_normal(d)
            observe(policy.pinned_state(), agent, x, float(rng.choice(outliers) * rng.standard_normal()), t)
        for agent in movers:
            revise(policy.pinned_state(), agent, t)
        if t % 7 == 0:
            policy.add_agents(1)
        if t % 5 == 0 and len(policy.agents) > 1:
            policy.remove_agent(int(rng.choice(policy.agents)), withdraw=bool(rng.integers(2)))
        gone = np.flatnonzero(~policy.state.common.active & ~policy.state.common.withdrawn)
        if t % 11 == 0 and len(gone):
            policy.remove_agent(int(gone[0]), withdraw=True)
    check(policy)


def test_posterior_is_that_of_a_normal_model() -> None:
    """θ ~ N(0, s²/λ I) in every cluster and y = x·θ + N(0, s²): marginal likelihoods of raw rewards."""
    policy, log = played(concentration=0.8, ridge=0.6)
    variance, labels, ridge = policy.noise_variance, policy.labels, policy.state.pool.model.prior[0]
    assert (policy.noise_variances == variance).all()

    def evidence(agents: list[int]) -> float:
        X = np.array([x for agent in agents for x, _ in log[agent]])
        rewards = [reward for agent in agents for _, reward in log[agent]]
        covariance = variance * (np.eye(len(X)) + X @ X.T / ridge)
        return float(multivariate_normal.logpdf(rewards, cov=covariance))

    assert len(set(labels[:7])) > 1
    for agent in range(7):
        found = policy.posterior(agent)
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
        logs = {-1: math.log(0.8)}
        for k in set(labels[:7].tolist()):
            others = [other for other in range(7) if labels[other] == k and other != agent]
            if others:
                gain = evidence([*others, agent]) - evidence(others) - evidence([agent])
                logs[k] = gain + math.log(len(others))
        total = np.logaddexp.reduce(list(logs.values()))
        assert set(found) == set(logs)
        for k, value in logs.items():
            assert found[k] == pytest.approx(math.exp(value - total), rel=1e-6)


def test_who_has_no_samples_is_alone_and_weighs_clusters_by_their_size() -> None:
    policy, _ = played()
    assert policy.labels[7] == -1
    assert policy.neighbors(7).tolist() == [7]
    assert not policy.graph[7].any()
    sizes = np.bincount(policy.labels[:7])
    expected = {k: size / (7 + 5) for k, size in enumerate(sizes) if size} | {-1: 5 / 12}
    assert policy.posterior(7) == pytest.approx(expected)


def test_labels_recover_clusters() -> None:
    environment = shoal.SyntheticClusters(30, 5, 3, 1.3, seed=1)
    policy = shoal.ClusterMixture(30, 5, seed=1)
    trace = shoal.simulate(policy, environment, horizon=9_000, seed=1)
    assert trace.f1[-1] > 0.95
    alone = shoal.simulate(shoal.Independent(30, 5, alpha=0.6), environment, horizon=9_000, seed=1)
    assert trace.final_regret < 0.6 * alone.final_regret
    assert policy.noise_variance == pytest.approx(1.0, abs=0.05)


def test_the_noise_is_estimated() -> None:
    environment = shoal.GaussianClusters(20, 4, 2, n_arms=10, noise_scale=3.0, seed=0)
    policy, known = shoal.ClusterMixture(20, 4, seed=0), shoal.ClusterMixture(20, 4, noise_scale=0.4, seed=0)
    assert policy.noise_variance == 1.0
    for one in (policy, known):
        shoal.simulate(one, environment, horizon=4_000, seed=0)
    assert policy.noise_variance == pytest.approx(9.0, rel=0.1)
    assert known.noise_variance == pytest.approx(0.16)


def put(policy: shoal.ClusterMixture, agent: int, cluster: int) -> None:
    """Move an agent to a cluster in use, or (−1) into a new one."""
    pool = policy.state.pool
    count = weigh(pool, agent, 1)
    used = pool.clusters.used[:count].tolist()
    move(pool, policy.state.common.pending, agent, count if cluster == -1 else used.index(cluster))


def together(n: int = 4) -> shoal.ClusterMixture:
    """Agents with a few samples each, all in cluster 0, and one more without samples."""
    policy = shoal.ClusterMixture(n + 1, 2, redraws=0, noise_scale=1.0, seed=0, **PLAIN)
    rng = np.random.default_rng(0)
    for agent in range(n):
        for _ in range(5):
            policy.update(agent, rng.standard_normal(2), float(rng.standard_normal()))
    for agent in range(n):
        if policy.labels[agent] != 0:
            put(policy, agent, 0)
    assert policy.labels.tolist() == [0] * n + [-1]
    return policy


@pytest.mark.parametrize("scale", [1e5, 1e15, 1e30])
def test_an_outlier_leaves_nothing_behind(scale: float) -> None:
    policy = together()
    clean, never = policy.state.pool.clusters.sums[0].copy(), together()
    never.remove_agent(4, withdraw=True)
    observe(policy.pinned_state(), 4, np.array([scale, -0.3 * scale]), scale, 21)
    put(policy, 4, 0)
    assert policy.state.pool.clusters.sums[0].max() >= scale
    put(policy, 4, -1)
    np.testing.assert_allclose(policy.state.pool.clusters.sums[0], clean, rtol=1e-12)
    check(policy)
    policy.remove_agent(4, withdraw=True)
    np.testing.assert_allclose(policy.estimate(1), never.estimate(1), rtol=1e-9)
    for _ in range(20):
        policy.update(1, np.array([1.0, 0.0]), 0.5)
    check(policy)


@pytest.mark.parametrize("is_member", [False, True])
def test_an_outlier_s_choice_does_not_see_rounding(is_member: bool) -> None:
    """What is left of its cluster without it is summed, not subtracted, before anyone decides to move it."""
    policy = together()
    if is_member:
        observe(policy.pinned_state(), 4, np.array([1.0, 0.0]), 1.0, 21)
        put(policy, 4, 0)
    observe(policy.pinned_state(), 4, np.array([1e30, 0.0]), 1.0, 22)
    if not is_member:
        put(policy, 4, 0)
    weigh(policy.pinned_state().pool, 4, 1)
    fresh = policy.state.pool.members.lent[:4, 0].sum(axis=0)
    np.testing.assert_allclose(policy.state.pool.scratch.rest, fresh, rtol=1e-12)


def test_rounding_does_not_pile_up() -> None:
    policy = together()
    for n in range(RESUM_AFTER + 5):
        policy.update(0, np.array([0.1, 0.2]), 0.1 * (n % 3))
        assert policy.state.pool.clusters.changes.max() < RESUM_AFTER
    check(policy)


def test_clusters_take_the_lowest_free_row() -> None:
    policy = together()
    for agent, row in ((1, 1), (2, 2), (3, 3)):
        put(policy, agent, -1)
        assert policy.labels[agent] == row
    put(policy, 1, 0)
    put(policy, 3, -1)  # leaves row 3, which frees it, for row 1
    assert policy.labels.tolist() == [0, 0, 2, 1, -1]
    put(policy, 2, 0)
    assert policy.state.pool.clusters.used[: policy.state.pool.clusters.n_used[0]].tolist() == [0, 1]
    check(policy)


def test_what_removed_agents_lent_stays_with_who_pooled_it() -> None:
    policy = together()
    sums = policy.state.pool.clusters.sums[0].copy()
    for leaver in (0, 2, 3):
        policy.remove_agent(leaver)
    assert np.array_equal(policy.state.pool.clusters.sums[0], sums)
    assert policy.posterior(1)[0] > 0.0  # though nobody else is there any more
    cost = policy.communication_cost
    policy.update(1, np.array([1.0, 0.0]), 0.5)
    assert policy.communication_cost == cost
    if policy.labels[1] != 0 or not policy.state.pool.clusters.removed[0]:
        pytest.fail("the draw took agent 1 away; choose another seed")
    put(policy, 1, -1)  # nobody is left who pools them
    assert policy.labels.tolist() == [-1, 0, -1, -1, -1]
    np.testing.assert_allclose(policy.state.pool.clusters.sums[0], policy.state.pool.members.lent[1, 0])
    policy.remove_agent(2, withdraw=True)
    policy.remove_agent(1)
    assert policy.state.pool.clusters.n_used[0] == 0
    assert policy.posterior(4) == {-1: 1.0}
    check(policy)


def test_withdrawn_samples_leave_the_estimate_of_the_noise() -> None:
    policy, log = played()

    def expected() -> float:
        """Errors of every agent alone, over as many as there would be without a parameter to fit."""
        rewards = sum(y**2 for samples in log.values() for _, y in samples)
        count = sum(map(len, log.values()))
        unit = sum(x @ x for samples in log.values() for x, _ in samples) / (3 * count)
        total, known = 10 * rewards / count, 10.0
        for samples in log.values():
            X, y = np.array([x for x, _ in samples]).reshape(-1, 3), np.array([y for _, y in samples])
            smooth = X @ np.linalg.solve(X.T @ X + 3 * 4.0**-7 * unit * np.eye(3), X.T)
            total += y @ y - y @ smooth @ y
            known += len(y) - np.trace(smooth)
        return float(total / known)

    for agent in range(7):
        policy.set_sharing(agent, "borrow")  # looks are taken now and then: now
        policy.set_sharing(agent, "both")
    assert policy.noise_variance == pytest.approx(expected())
    policy.remove_agent(2, withdraw=True)
    log[2] = []
    assert policy.noise_variance == pytest.approx(expected())
    assert not policy.state.pool.members.lent[2, 0].any()
    known, _ = played(noise_scale=2.0)
    known.remove_agent(2, withdraw=True)
    assert known.noise_variance == 4.0


def test_estimate_is_the_mixture_s() -> None:
    policy, log = played(concentration=0.8)
    ridge = policy.state.pool.model.prior[0]

    def theta_hat(agents: list[int]) -> Vector:
        X: Matrix = np.array([x for agent in agents for x, _ in log[agent]])
        rewards = np.array([reward for agent in agents for _, reward in log[agent]])
        return np.asarray(np.linalg.solve(ridge * np.eye(3) + X.T @ X, X.T @ rewards))

    for agent in range(7):
        kept = {k: chance for k, chance in policy.posterior(agent).items() if chance >= 1e-3}
        expected = np.zeros(3)
        for k, chance in kept.items():
            others = [other for other in range(7) if policy.labels[other] == k and other != agent]
            expected += chance * theta_hat([*others, agent])
        np.testing.assert_allclose(policy.estimate(agent), expected / sum(kept.values()), atol=1e-10)


def test_explain() -> None:
    policy, _ = played(concentration=0.8)
    labels, pulls = policy.labels, policy.pulls
    for agent, other in ((0, 1), (0, 2), (3, 6)):
        why, back = policy.explain(agent, other), policy.explain(other, agent)
        assert why.same_cluster == back.same_cluster == (labels[agent] == labels[other])
        assert why.probability == policy.posterior(agent).get(int(labels[other]), 0.0)
        assert why.alone == policy.posterior(agent)[-1]
        assert (why.pulls_agent, why.pulls_other) == (pulls[agent], pulls[other])
        assert why.lent_by_other == why.probability * pulls[other]
        assert why.lent_by_agent == back.lent_by_other
    nothing = policy.explain(0, 7)
    assert (nothing.same_cluster, nothing.probability, nothing.lent_by_other) == (False, 0.0, 0.0)
    assert policy.explain(7, 0).probability > 0.0
    with pytest.raises(ValueError, match="other must differ from agent, got 1 twice"):
        policy.explain(1, 1)
    policy.remove_agent(2)
    with pytest.raises(ValueError, match="agent 2 has been removed"):
        policy.explain(0, 2)


def test_same_seed_same_run_and_no_pairs_of_agents_in_memory() -> None:
    environment = shoal.SyntheticClusters(12, 3, 3, 1.2, seed=0)
    runs = [
        shoal.simulate(shoal.ClusterMixture(12, 3, seed=seed), environment, horizon=500, seed=0)
        for seed in (0, 0, 1)
    ]
    assert np.array_equal(runs[0].choices, runs[1].choices)
    assert not np.array_equal(runs[0].choices, runs[2].choices)
    small, large = (shoal.ClusterMixture(n, 3).nbytes for n in (2_000, 4_000))
    assert large < 2.1 * small


def test_extreme_numbers_leave_a_usable_policy() -> None:
    policy = shoal.ClusterMixture(3, 2, concentration=1e-9, ridge=0.3, seed=0)
    with pytest.warns(UserWarning, match="squared length"):  # once
        policy.update(0, np.array([1e8, 0.0]), 1.0)
    for reward in (1e30, -1e30, 1e-300, 0.0):
        for agent in range(3):
            policy.update(agent, np.array([1e8, 0.0]), reward)
            policy.update(agent, np.array([1.0, 1e-200]), reward)
            assert sum(policy.posterior(agent).values()) == pytest.approx(1.0)
            assert np.isfinite(policy.estimate(agent)).all()
            assert policy.select(agent, np.eye(2)) in (0, 1)


def test_saves_and_goes_on_while_everything_is_under_way(tmp_path: Path) -> None:
    """Ghosts, alarms, a scatter that was just changed, pulls that are pending: all of it is in the file."""
    environment = shoal.ChangingAgents(12, 4, 3, 1.3, change_after=600, noise_scale=0.5, seed=1)
    policy = shoal.ClusterMixture(12, 4, seed=3)
    shoal.simulate(policy, environment, horizon=900, seed=1, delay=("uniform", 0, 20))
    assert (policy.state.pool.members.labels[:, 1] >= 0).any()
    policy.begin(3, environment.arms[0])
    policy.state.upkeep[TO_TEND] = 20
    policy.save(tmp_path / "p")
    loaded = shoal.ClusterMixture.load(tmp_path / "p")
    loaded.update(3, environment.arms[0], 1.0, begun=True)
    policy.update(3, environment.arms[0], 1.0, begun=True)
    runs = [shoal.simulate(one, environment, horizon=400, seed=2, delay=5) for one in (policy, loaded)]
    assert np.array_equal(runs[0].choices, runs[1].choices)
    assert np.array_equal(policy.forgot, loaded.forgot)
    check(policy)
    check(loaded)


def test_scatter_is_learned_where_agents_differ() -> None:
    """Agents of one cluster, all a little apart: κ grows; of true clusters: it does not."""
    rng = np.random.default_rng(0)
    arms = rng.standard_normal((12, 4))
    apart = np.array([1.0, -0.5, 0.3, 0.0]) + 0.35 * rng.standard_normal((60, 4))
    policy = shoal.ClusterMixture(60, 4, seed=0, drift=False)
    shoal.simulate(policy, shoal.Environment(arms, theta_star=apart), horizon=18_000, seed=0)
    assert policy.state.pool.model.position[0] >= 4
    same = shoal.ClusterMixture(20, 4, seed=0)
    shoal.simulate(same, shoal.SyntheticClusters(20, 4, 2, 1.3, seed=0), horizon=6_000, seed=0)
    assert same.state.pool.model.position[0] <= 2


def test_what_no_one_explored_is_explored() -> None:
    """A cluster of others that never pulled an arm in a direction of its own: the bonus has it tried."""

    def choice(bonus: float) -> int:
        policy = shoal.ClusterMixture(30, 3, alpha=0.1, scatter=0, ridge_bonus=bonus, noise_scale=0.1, seed=0)
        for agent in range(30):
            for _ in range(8):
                policy.update(agent, np.array([1.0, 0.0, 0.0]), 2.0)
                policy.update(agent, np.array([0.0, 1.0, 0.0]), -2.0)
        return policy.select(0, np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))

    assert (choice(0.0), choice(3.0)) == (0, 1)


def test_a_choice_softens_only_clusters_that_have_changed() -> None:
    policy, _ = played(scatter=0.03, redraws=0)
    softened, used = policy.state.pool.scratch.softened, policy.state.pool.clusters.used
    arms, rows = np.eye(3), 1 + used[: policy.state.pool.clusters.n_used[0]]
    policy.select(7, arms)  # agent 7 has no samples: all clusters count
    assert len(rows) > 1
    assert softened[rows].any(axis=1).all()
    softened[:] = 5.0
    policy.select(7, arms)
    assert (softened == 5.0).all()
    policy.update(0, arms[0], 1.0)
    policy.select(7, arms)
    changed = 1 + policy.labels[0]
    assert not (softened[changed] == 5.0).any()
    assert (np.delete(softened, changed, axis=0) == 5.0).all()


def test_withdrawal_takes_the_ghost_along() -> None:
    environment = shoal.ChangingAgents(12, 4, 3, 1.3, change_after=600, noise_scale=0.5, seed=1)
    policy = shoal.ClusterMixture(12, 4, seed=3)
    shoal.simulate(policy, environment, horizon=1_200, seed=1)
    members = policy.state.pool.members
    ghost = int(np.flatnonzero(members.labels[:, 1] >= 0)[0])
    policy.remove_agent(ghost)  # its samples stay, and its ghost's
    assert members.labels[ghost, 1] >= 0
    check(policy)
    policy.remove_agent(ghost, withdraw=True)
    for rows in (members.raw, members.lent, policy.state.drift.ring, policy.state.drift.past):
        assert not rows[ghost].any()
    assert members.labels[ghost].tolist() == [-1 - ghost] * 2
    check(policy)
    for agent in policy.agents:
        policy.update(int(agent), environment.arms[0], 0.5)
    check(policy)


@pytest.mark.parametrize("n_agents", [100, 3_000])
def test_no_update_waits_for_all_agents(n_agents: int) -> None:
    """What a round looks at beyond its own agent is bounded, however many there are."""
    policy = shoal.ClusterMixture(n_agents, 3, seed=0)
    state, rng = policy.state, np.random.default_rng(0)
    environment = shoal.SyntheticClusters(n_agents, 3, 3, 1.3, seed=0)
    shoal.simulate(policy, environment, horizon=4 * n_agents, seed=0)
    state.pool.model.position[0] += 1  # as if the scatter had just been changed
    state.upkeep[TO_TEND] = state.pool.members.labels.size
    for _ in range(5):
        lent, left = state.pool.members.lent_at.copy(), int(state.upkeep[TO_TEND])
        agent = int(rng.integers(n_agents))
        policy.update(agent, environment.arms[0], 0.3)
        assert (state.pool.members.lent_at != lent).any(
            axis=-1
        ).sum() <= 8 + 2  # 8 in turn, who pulled, who was redrawn
        assert left - int(state.upkeep[TO_TEND]) == 8
    check(policy)
    cluster = int(policy.labels[0])
    state.pool.clusters.changes[cluster] = 10**6  # summed anew, but not at once if there are many
    policy.update(0, environment.arms[0], 0.3)
    seen = int(state.pool.clusters.resummed[SEEN])
    assert seen <= 2 * 256
    for _ in range(3 * n_agents // 256 + 3):
        policy.update(int(rng.integers(n_agents)), environment.arms[1], 0.3)
    assert state.pool.clusters.changes[cluster] < 10**6 or policy.labels[0] != cluster
    check(policy)


def test_whoever_may_belong_is_not_said_to_lend_nothing() -> None:
    world = shoal.UnitClusters(30, 5, 3, n_arms=20, noise_scale=0.5, seed=1)
    policy = shoal.ClusterMixture(30, 5, seed=0)
    shoal.simulate(policy, world, horizon=150, seed=0)
    for agent in range(30):
        found = policy.explain(agent)
        assert len(found.lenders) > len(policy.neighbors(agent)) - 1  # nothing is sure yet
        assert len(found.lenders) + found.apart <= 29


@pytest.mark.filterwarnings("ignore:got x with a squared length")
@settings(max_examples=25, deadline=None)
@given(
    arm=st.floats(-3, 3),
    reward=st.floats(-3, 3),
    noise=st.sampled_from([0.05, 0.5, 3.0]),
    seed=st.integers(0, 50),
)
def test_units_make_no_difference(arm: float, reward: float, noise: float, seed: int) -> None:
    """Arms and rewards times any factor: the same choices, clusters, and changes found."""
    plain, scaled = (shoal.ClusterMixture(8, 3, seed=seed) for _ in range(2))
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((3, 3))
    scales = np.array([1.0, 1.0, 4.0])  # noises differ
    for t in range(300):
        agent, arms = int(rng.choice(plain.agents)), rng.standard_normal((6, 3))
        k = plain.select(agent, arms)
        assert scaled.select(agent, 10.0**arm * arms) == k
        y = float(
            arms[k] @ theta[(agent + (t > 200)) % 3] + noise * scales[agent % 3] * rng.standard_normal()
        )
        plain.update(agent, arms[k], y)
        scaled.update(agent, 10.0**arm * arms[k], 10.0**reward * y)
        if t == 150:
            for policy in (plain, scaled):
                policy.remove_agent(5, withdraw=True)
                policy.add_agents(1)
                policy.set_sharing(2, "borrow")
    assert scaled.labels.tolist() == plain.labels.tolist()
    assert scaled.forgot.tolist() == plain.forgot.tolist()
    ratio = 10.0 ** (2.0 * reward)
    assert scaled.noise_variance == pytest.approx(ratio * plain.noise_variance, rel=1e-6)
