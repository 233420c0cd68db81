"""The naive twins agree with each other and with cases worked out by hand."""

from math import log, sqrt

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from tests import reference as ref
from tests.reference import Floats

Pair = tuple[Floats, Floats, float, Floats, Floats, float]

RADII: list[ref.Radius] = ["beta", "beta_squared"]
E1, E2 = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def random_samples(rng: np.random.Generator, n: int, theta_star: Floats) -> list[ref.Sample]:
    X = rng.normal(size=(n, len(theta_star)))
    return [(x, float(x @ theta_star + rng.normal())) for x in X]


def random_pair(seed: int, radius: ref.Radius) -> Pair:
    """Two agents with random samples, apart by anything from nothing to far."""
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(1, 6))
    theta_star = rng.normal(size=dim)
    shift = rng.normal(size=dim) * rng.choice([0.1, 0.5, 1.0, 3.0])
    ridge = float(rng.choice([0.3, 1.0, 4.0]))
    parts: list[tuple[Floats, Floats, float]] = []
    for center in (theta_star, theta_star + shift):
        local = ref.fit(random_samples(rng, int(rng.integers(1, 60)), center), dim, ridge)
        beta = ref.beta(0.1, local.logdet_A - dim * log(ridge), 1.0)
        parts.append((local.theta_hat, local.A, ref.radius_constant(radius, beta)))
    return (*parts[0], *parts[1])


def observe_many(twin: ref.Twin, agent: int, theta: Floats, n: int, t: int) -> None:
    """n noiseless samples along each axis."""
    for _ in range(n):
        for x in np.eye(twin.dim):
            twin.observe(agent, x, float(x @ theta), t)


# --- linear algebra


def test_fit_by_hand() -> None:
    A, b, theta_hat, logdet_A = ref.fit([(E1, 3.0), (E1, 1.0), (2 * E2, 1.0)], 2, 0.5)
    np.testing.assert_allclose(A, np.diag([2.5, 4.5]))
    np.testing.assert_allclose(b, [4.0, 2.0])
    np.testing.assert_allclose(theta_hat, [1.6, 2 / 4.5])
    assert logdet_A == pytest.approx(log(2.5 * 4.5))


def test_scores_and_ties_by_hand() -> None:
    A, theta_hat = np.diag([4.0, 1.0]), np.array([0.5, 0.0])
    np.testing.assert_allclose(
        ref.scores(theta_hat, A, np.array([E1, E2]), 2.0, 3), [0.5 + sqrt(log(4)), 2 * sqrt(log(4))]
    )
    assert ref.choose(np.zeros(2), np.eye(2), np.array([0.5 * E1, E1, E2, E1]), 1.0, 1) == 1


def test_beta_depends_on_ridge_by_its_offset_alone_without_samples() -> None:
    for ridge in (0.1, 1.0, 7.0):
        logdet_A = ref.fit([], 3, ridge).logdet_A - 3 * log(ridge)
        assert ref.beta(0.1, logdet_A, 2.0, 0.0, ridge) == pytest.approx(2 * sqrt(2 * log(10)))
        assert ref.beta(0.1, logdet_A, 2.0, 3.0, ridge) == pytest.approx(
            3 * sqrt(ridge) + 2 * sqrt(2 * log(10))
        )


# --- separation test


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("seed", range(12))
def test_statistics_agree(seed: int, radius: ref.Radius) -> None:
    pair = random_pair(seed, radius)
    eigen = ref.separation_statistic_eigen(*pair)
    grid = ref.separation_statistic_grid(*pair, n=2001)
    assert ref.separation_statistic_mp(*pair, digits=40) == pytest.approx(eigen, rel=1e-9)
    assert eigen * (1 - 2e-4) <= grid <= eigen * (1 + 1e-9)
    assert eigen <= ref.screen(*pair) * (1 + 1e-9)


@pytest.mark.parametrize("radius", RADII)
def test_geometry_agrees_with_statistic(radius: ref.Radius) -> None:
    verdicts = []
    for seed in range(60):
        pair = random_pair(seed, radius)
        statistic = ref.separation_statistic_eigen(*pair)
        # a threshold just below and just above the statistic, and the usual ones
        at_statistic = 2 * sqrt(statistic)
        assert not ref.ellipsoids_intersect_by_geometry(*pair, gamma=at_statistic * (1 - 1e-6))
        assert ref.ellipsoids_intersect_by_geometry(*pair, gamma=at_statistic * (1 + 1e-6))
        for gamma in (0.5, 1.0, 2.0):
            verdicts.append(ref.ellipsoids_intersect_by_geometry(*pair, gamma=gamma))
            assert verdicts[-1] == (statistic <= gamma**2 / 4)
    assert 20 < sum(verdicts) < 160  # both verdicts were exercised


def test_geometry_point_lies_in_both() -> None:
    pair = random_pair(3, "beta")
    gamma = 2.1 * sqrt(ref.separation_statistic_eigen(*pair))
    nearest, z = ref.nearest_by_geometry(*pair, gamma=gamma)
    theta_i, A_i, c_i, theta_j, A_j, c_j = pair
    assert (z - theta_i) @ A_i @ (z - theta_i) / c_i == pytest.approx(nearest)
    assert nearest <= gamma**2 / 4
    assert (z - theta_j) @ A_j @ (z - theta_j) / c_j <= gamma**2 / 4 * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_f_is_concave_and_vanishes_at_the_ends(seed: int) -> None:
    pair = random_pair(seed, "beta")
    values = np.array([ref.f(s, *pair) for s in np.linspace(0.001, 0.999, 301)])
    assert np.all(np.diff(values, 2) <= 1e-12 * values.max())
    assert max(ref.f(1e-9, *pair), ref.f(1 - 1e-9, *pair)) < 1e-4 * values.max()


def test_statistic_is_symmetric() -> None:
    theta_i, A_i, c_i, theta_j, A_j, c_j = random_pair(7, "beta")
    assert ref.separation_statistic_eigen(theta_i, A_i, c_i, theta_j, A_j, c_j) == pytest.approx(
        ref.separation_statistic_eigen(theta_j, A_j, c_j, theta_i, A_i, c_i), rel=1e-10
    )


def test_closed_form_for_equal_matrices() -> None:
    theta_i, A, c_i, theta_j, _, c_j = random_pair(5, "beta")
    v = theta_i - theta_j
    expected = v @ A @ v / (sqrt(c_i) + sqrt(c_j)) ** 2
    pair = (theta_i, A, c_i, theta_j, A, c_j)
    assert ref.separation_statistic_eigen(*pair) == pytest.approx(expected, rel=1e-10)
    assert ref.separation_statistic_mp(*pair) == pytest.approx(expected, rel=1e-12)
    assert ref.separation_statistic_grid(*pair) == pytest.approx(expected, rel=1e-4)


def test_mp_at_condition_number_1e12() -> None:
    """Proportional matrices have a closed form; the powers of two keep the inputs exact."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    A = Q @ np.diag([1.0, 1e4, 1e8, 1e12]) @ Q.T
    A = (A + A.T) / 2
    theta_i, theta_j = Q[:, 0].copy(), np.zeros(4)
    with mpmath.workdps(60):
        v = mpmath.matrix(theta_i.tolist())
        norm_sq = (v.T * mpmath.matrix(A.tolist()) * v)[0]
        expected = float(norm_sq / (1 + mpmath.sqrt(3) / 4) ** 2)
    found = ref.separation_statistic_mp(theta_i, A, 1.0, theta_j, 16 * A, 3.0)
    assert found == pytest.approx(expected, rel=1e-14)


def test_equal_estimates_are_never_separated() -> None:
    theta_i, A_i, c_i, _, A_j, c_j = random_pair(1, "beta")
    assert ref.separation_statistic_eigen(theta_i, A_i, c_i, theta_i, A_j, c_j) == 0.0
    assert ref.ellipsoids_intersect_by_geometry(theta_i, A_i, c_i, theta_i, A_j, c_j, gamma=1e-3)


# --- policies

ARMS = np.random.default_rng(11).normal(size=(6, 3))
THETA_STAR = np.array([[1.5, 0.0, 0.0], [0.0, 1.5, 0.0]])
LABELS = [0, 1, 0, 1, 0]


def make_twins(ridge: float = 1.0) -> list[ref.Twin]:
    n_agents, dim = 5, 3
    return [
        ref.Independent(n_agents, dim, alpha=0.5, ridge=ridge),
        ref.Oracle(n_agents, dim, alpha=0.5, ridge=ridge, labels=LABELS),
        ref.BASS(n_agents, dim, alpha=0.5, ridge=ridge, delta=0.1),
        ref.BASS(n_agents, dim, alpha=0.5, ridge=ridge, delta=0.1, gamma=1.0, radius="beta_squared"),
        ref.CLUB(n_agents, dim, alpha=0.5, ridge=ridge, gamma=0.7),
        ref.SCLUB(n_agents, dim, alpha=0.5, ridge=ridge, gamma=0.7),
        ref.CMLB(
            n_agents, dim, alpha=0.5, ridge=ridge, gamma=0.7, exploration_rounds=30, min_cluster_fraction=0.3
        ),
        ref.DynUCB(n_agents, dim, alpha=0.5, ridge=ridge, n_clusters=2, labels=[0, 0, 1, 1, 1]),
    ]


def make_schedule(kind: str, rng: np.random.Generator) -> list[list[int]]:
    if kind == "one":
        return [[int(rng.integers(5))] for _ in range(90)]
    if kind == "all":
        return [list(range(5)) for _ in range(20)]
    return [[int(agent) for agent in rng.permutation(5)[: rng.integers(0, 6)]] for _ in range(40)]


def simulate(twin: ref.Twin, kind: str) -> ref.Run:
    rng = np.random.default_rng(2)
    schedule = make_schedule(kind, rng)
    return ref.run(
        twin,
        schedule,
        ARMS,
        lambda agent, t: np.asarray(ARMS @ THETA_STAR[LABELS[agent]]),
        0.5 * rng.normal(size=sum(map(len, schedule))),
    )


@pytest.mark.parametrize("kind", ["one", "all", "some"])
@pytest.mark.parametrize("index", range(8))
def test_every_twin_over_a_run(index: int, kind: str) -> None:
    twin = make_twins(ridge=0.5)[index]
    result = simulate(twin, kind)
    graph = twin.graph()
    assert np.array_equal(graph, graph.T)
    assert not graph.diagonal().any()
    assert np.all(np.diff(result.regret) >= 0)
    assert len(result.agents) == len(result.choices) == len(result.rewards) == twin.pulls(range(5))
    assert 0 <= twin.communication_cost <= 4 * len(result.agents)
    for agent in range(5):
        pool = twin.pool(agent)
        assert pool == sorted(set(pool))
        assert agent in pool
        assert set(np.flatnonzero(graph[agent])) <= set(pool)
        refit = ref.fit([sample for member in pool for sample in twin.samples[member]], 3, 0.5)
        pooled = twin.statistics(pool)
        np.testing.assert_allclose(pooled.A, refit.A, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(pooled.theta_hat, refit.theta_hat, rtol=1e-9, atol=1e-12)
        assert pooled.logdet_A == pytest.approx(refit.logdet_A)
    if isinstance(twin, ref.EdgeTwin):
        off_diagonal = ~np.eye(5, dtype=bool)
        assert np.array_equal(twin.separation_time[off_diagonal] == -1, graph[off_diagonal])


def test_run_orders_the_steps_of_a_round() -> None:
    calls: list[tuple[str, int, int]] = []

    class Recorder:
        def select(self, agent: int, arms: Floats, t: int) -> int:
            calls.append(("select", agent, t))
            return agent

        def observe(self, agent: int, x: Floats, reward: float, t: int) -> None:
            calls.append(("observe", agent, t))
            assert x[0] == 10 * t + agent

        def revise(self, agent: int, t: int) -> None:
            calls.append(("revise", agent, t))

    result = ref.run(
        Recorder(),
        [[1, 0], [], [0]],
        lambda t: np.array([[10.0 * t], [10.0 * t + 1]]),
        lambda agent, t: np.array([1.0, 4.0 + t]),
        [0.25, 0.5, 0.75],
    )
    first = [(step, agent, 1) for step in ("select", "observe", "revise") for agent in (1, 0)]
    assert calls == [*first, ("select", 0, 3), ("observe", 0, 3), ("revise", 0, 3)]
    np.testing.assert_array_equal(result.choices, [1, 0, 0])
    np.testing.assert_allclose(result.rewards, [5.25, 1.5, 1.75])
    np.testing.assert_allclose(result.regret, [4.0, 4.0, 10.0])


def test_bass_cuts_what_geometry_separates() -> None:
    twin = ref.BASS(4, 2, alpha=1.0, delta=0.1)
    for agent, theta in enumerate([E1, E1, E2, E2]):
        observe_many(twin, agent, 2 * theta, 40, agent + 1)
    assert twin.communication_cost == 4 * 80 * 3
    for agent in range(3):  # agent 3 never revises, yet its edges to 0 and 1 go with theirs
        for other in range(4):
            if other != agent:
                intersect = ref.ellipsoids_intersect_by_geometry(
                    *twin.ellipsoid(agent), *twin.ellipsoid(other), gamma=2.0
                )
                assert intersect == (agent // 2 == other // 2)
        twin.revise(agent, 5 + agent)
    assert [twin.pool(agent) for agent in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    np.testing.assert_array_equal(
        twin.separation_time, [[-1, -1, 5, 5], [-1, -1, 6, 6], [5, 6, -1, -1], [5, 6, -1, -1]]
    )


def test_bass_pools_direct_neighbours_only_but_club_components() -> None:
    bass = ref.BASS(4, 2, alpha=1.0, delta=0.1)
    club = ref.CLUB(4, 2, alpha=1.0, gamma=1.0)
    path: NDArray[np.bool_] = np.zeros((4, 4), dtype=bool)  # 0 - 2 - 1, and 3 alone
    path[0, 2] = path[2, 0] = path[2, 1] = path[1, 2] = True
    bass.edges, club.edges = path.copy(), path.copy()
    assert [bass.pool(agent) for agent in range(4)] == [[0, 2], [1, 2], [0, 1, 2], [3]]
    assert [club.pool(agent) for agent in range(4)] == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [3]]
    assert not club.graph()[0, 1]
    assert ref.connected_components(path) == [[0, 1, 2], [3]]


def test_club_cuts_beyond_the_widths() -> None:
    separation = float(np.linalg.norm(E1 - E2)) * 30 / 31  # the ridge shrinks both estimates
    widths = 2 * ref.F(60)
    for factor, cut in ((0.999, True), (1.001, False)):
        twin = ref.CLUB(3, 2, alpha=1.0, gamma=factor * separation / widths)
        for agent, theta in enumerate([E1, E2, E1]):
            observe_many(twin, agent, theta, 30, 1)
        twin.revise(1, 9)
        assert twin.pool(0) == ([0, 2] if cut else [0, 1, 2])
        assert twin.separation_time[0, 1] == (9 if cut else -1)
        assert twin.separation_time[0, 2] == -1


def test_sclub_splits_and_merges_two_clusters() -> None:
    twin = ref.SCLUB(4, 2, alpha=1.0, gamma=0.5)
    for agent, theta in enumerate([E1, E1, E2, E2]):
        observe_many(twin, agent, theta, 50, 1)
    assert twin.remembered[0][1] == 0  # stage 1 began with nothing
    for agent, theta in enumerate([E1, E1, E2, E2]):
        twin.observe(agent, E1, float(theta[0]), 3)
    assert twin.stage == 2
    assert twin.remembered[0][1] == 400
    np.testing.assert_allclose(twin.remembered[0][0], [100 / 201, 100 / 201])

    twin.revise(0, 3)
    assert twin.labels == [1, 0, 0, 0]
    assert twin.remembered[1][1] == 101
    twin.revise(1, 3)  # splits to cluster 2, which is fully checked and joins cluster 1
    assert twin.labels == [1, 1, 0, 0]
    assert twin.remembered[1][1] == 202
    twin.revise(2, 3)  # cluster 0 still remembers the mixture, and id 2 is free again
    assert twin.labels == [1, 1, 2, 0]
    twin.revise(3, 3)  # alone: nothing to split from; 0 and 2 are now fully checked and close
    assert twin.labels == [1, 1, 0, 0]
    assert sorted(twin.remembered) == [0, 1]
    assert twin.communication_cost == 3 * 404

    twin.observe(0, E1, 1.0, 6)
    assert all(twin.checked)
    twin.observe(0, E1, 1.0, 7)
    assert twin.stage == 3
    assert not any(twin.checked)
    assert twin.remembered[1][1] == 203


def test_sclub_stages_begin_at_1_3_7_15() -> None:
    twin = ref.SCLUB(1, 2, alpha=1.0, gamma=0.5)
    begins = []
    for t in range(1, 32):
        before = twin.stage
        twin.observe(0, E1, 1.0, t)
        if twin.stage != before:
            begins.append(t)
    assert begins == [1, 3, 7, 15, 31]


def cmlb_after(thetas: list[Floats], gamma: float, fraction: float) -> ref.CMLB:
    twin = ref.CMLB(
        len(thetas), 2, alpha=1.0, gamma=gamma, exploration_rounds=3, min_cluster_fraction=fraction
    )
    for agent, theta in enumerate(thetas):
        observe_many(twin, agent, theta, 200, 2)
        twin.revise(agent, 2)
    assert not twin.graph().any()
    assert twin.communication_cost == 0
    twin.observe(0, E1, float(thetas[0][0]), 3)
    twin.revise(0, 3)
    return twin


def test_cmlb_merges_small_components() -> None:
    thetas = [E1, E1, E1, E2, -E1, -E2]
    twin = cmlb_after(thetas, 0.5, 0.5)
    assert [twin.pool(agent) for agent in range(6)] == [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3
    assert twin.communication_cost == 0
    twin.observe(0, E1, 1.0, 4)
    assert twin.communication_cost == 2
    assert [cmlb_after(thetas, 0.5, 0.1).pool(agent) for agent in (2, 3)] == [[0, 1, 2], [3]]


def test_cmlb_leaves_everybody_alone_when_the_graph_is_empty() -> None:
    twin = cmlb_after([E1, E2, -E1, -E2], 0.5, 0.5)
    assert twin.clustered
    assert [twin.pool(agent) for agent in range(4)] == [[0], [1], [2], [3]]


def test_cmlb_clusters_even_when_nobody_pulls_in_the_last_exploration_round() -> None:
    twin = ref.CMLB(2, 2, alpha=1.0, gamma=1.0, exploration_rounds=2)
    twin.observe(0, E1, 0.1, 1)
    twin.revise(0, 1)
    assert twin.pool(0) == [0]
    twin.observe(1, E1, 0.1, 3)
    twin.revise(1, 3)
    assert twin.pool(0) == [0, 1]


def test_dynucb_moves_to_the_nearest() -> None:
    twin = ref.DynUCB(3, 2, alpha=1.0, n_clusters=3, labels=[0, 1, 0])
    for agent, theta in enumerate([E1, E2, E2]):
        observe_many(twin, agent, theta, 20, 1)
    assert twin.communication_cost == 2 * 40
    twin.revise(2, 1)
    assert twin.labels == [0, 1, 1]
    twin.revise(0, 1)
    assert twin.labels == [0, 1, 1]


def test_dynucb_empty_clusters_sit_at_zero_and_ties_go_low() -> None:
    twin = ref.DynUCB(2, 2, alpha=1.0, n_clusters=4, labels=[2, 3])
    twin.observe(0, E1, 0.0, 1)
    twin.revise(0, 1)
    assert twin.labels == [0, 3]


def test_f1_by_hand() -> None:
    labels = [0, 0, 0, 1, 1]
    twins = make_twins()
    assert ref.f1(twins[0].graph(), LABELS) == 0.0
    assert ref.f1(twins[1].graph(), LABELS) == 1.0
    graph: NDArray[np.bool_] = np.zeros((5, 5), dtype=bool)
    for i, j in [(0, 1), (3, 4), (0, 4)]:  # two hits, one false alarm, two misses
        graph[i, j] = graph[j, i] = True
    assert ref.f1(graph, labels) == pytest.approx(4 / 7)
