"""The separation test against four independent means, its properties, and the lemmas it stands on."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests import reference
from tests.core.kernels.test_linalg import random_spd

from shoal import separated, separation_statistic
from shoal.core import fields
from shoal.core.jit.pinned import pin
from shoal.core.kernels.separation import (
    APART,
    LANES,
    TOGETHER,
    UNDECIDED,
    ProbeBatch,
    V,
    W,
    Y,
    Z,
    excess_at,
    excess_grows,
    make_scratch,
    probe,
    probe_many,
    safe_limit,
    search,
)
from shoal.core.statistics import add_sample, make_statistics
from shoal.core.types import Matrix, Vector

Pair = tuple[Vector, Matrix, float, Vector, Matrix, float]
RADII = ["beta", "beta_squared"]


def exact(A: Matrix) -> Vector:
    """The low part of a matrix whose floats are all there is."""
    return np.zeros(len(A) * (len(A) + 1) // 2)


def scaled(pair: Pair, radius: Any) -> Pair:
    theta_i, A_i, beta_i, theta_j, A_j, beta_j = pair
    c_i, c_j = reference.radius_constant(radius, beta_i), reference.radius_constant(radius, beta_j)
    return theta_i, A_i, c_i, theta_j, A_j, c_j


@st.composite
def pairs(draw: st.DrawFn, max_dim: int = 6, max_condition: float = 1e6) -> Pair:
    d = draw(st.integers(1, max_dim))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = 10.0 ** rng.uniform(-2, 4, 2)
    A_i = sizes[0] * random_spd(rng, d, draw(st.floats(1.0, max_condition)))
    A_j = sizes[1] * random_spd(rng, d, draw(st.floats(1.0, max_condition)))
    v = rng.standard_normal(d) * 10.0 ** rng.uniform(-3, 2)
    theta_j = rng.standard_normal(d)
    beta_i, beta_j = 10.0 ** rng.uniform(-1, 1, 2)
    return theta_j + v, A_i, float(beta_i), theta_j, A_j, float(beta_j)


@settings(max_examples=150)
@given(pairs(), st.sampled_from(RADII))
def test_statistic_equals_the_eigenproblem_s(pair: Pair, radius: str) -> None:
    ours = separation_statistic(*pair, radius=radius)
    assert ours == pytest.approx(reference.separation_statistic_eigen(*scaled(pair, radius)), rel=1e-6)


@settings(max_examples=15)
@given(pairs(max_dim=4, max_condition=1e3), st.sampled_from(RADII))
def test_statistic_equals_a_grid_s(pair: Pair, radius: str) -> None:
    grid = reference.separation_statistic_grid(*scaled(pair, radius), n=1501)
    ours = separation_statistic(*pair, radius=radius)
    assert ours >= grid * (1 - 1e-9)
    assert ours == pytest.approx(grid, rel=1e-3)


@settings(max_examples=150)
@given(pairs(), st.sampled_from(RADII), st.floats(0.5, 3.0))
def test_verdict_is_the_geometry_s(pair: Pair, radius: str, gamma: float) -> None:
    statistic = reference.separation_statistic_eigen(*scaled(pair, radius))
    assume(abs(statistic / (gamma**2 / 4) - 1) > 1e-5)  # closer, and the judge itself is unsure
    meet = reference.ellipsoids_intersect_by_geometry(*scaled(pair, radius), gamma=gamma)
    assert separated(*pair, gamma=gamma, radius=radius) is not meet


@settings(max_examples=100)
@given(pairs(), st.sampled_from(RADII), st.floats(0.05, 0.9))
def test_verdict_close_to_the_threshold(pair: Pair, radius: str, relative: float) -> None:
    statistic = separation_statistic(*pair, radius=radius)
    gamma = 2 * statistic**0.5
    margin = 10.0 ** (-9 * relative)
    assert separated(*pair, gamma=gamma * (1 - margin), radius=radius)
    assert not separated(*pair, gamma=gamma * (1 + margin), radius=radius)


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("d", [1, 2, 5, 10])
@pytest.mark.parametrize("direction", ["random", "near-null", "stiff", "other's near-null"])
def test_condition_numbers_up_to_1e12(d: int, direction: str, radius: str) -> None:
    rng = np.random.default_rng(d)
    A_i, A_j = random_spd(rng, d, 1e12), random_spd(rng, d, 1e12)
    vectors_i, vectors_j = np.linalg.eigh(A_i)[1], np.linalg.eigh(A_j)[1]
    v = {
        "random": rng.standard_normal(d),
        "near-null": vectors_i[:, 0],
        "stiff": vectors_i[:, -1],
        "other's near-null": vectors_j[:, 0],
    }[direction]
    theta_j = 0.1 * rng.standard_normal(d)
    pair: Pair = (theta_j + v, A_i, 2.0, theta_j, A_j, 3.5)
    exact = reference.separation_statistic_mp(*scaled(pair, radius))
    assert separation_statistic(*pair, radius=radius) == pytest.approx(exact, rel=1e-8)
    assert separated(*pair, gamma=2 * exact**0.5 * (1 - 1e-7), radius=radius)
    assert not separated(*pair, gamma=2 * exact**0.5 * (1 + 1e-7), radius=radius)


@pytest.mark.parametrize("gap", [0.0, 1e-8, 1e-3, 1.0])
def test_one_matrix_that_is_ill_conditioned_beside_one_that_is_not(gap: float) -> None:
    rng = np.random.default_rng(3)
    A_i, theta_j = random_spd(rng, 6, 1e12), rng.standard_normal(6)
    pair: Pair = (theta_j + gap * np.linalg.eigh(A_i)[1][:, 0], A_i, 1.0, theta_j, np.eye(6) * 1e4, 9.0)
    exact = reference.separation_statistic_mp(*scaled(pair, "beta")) if gap else 0.0
    assert separation_statistic(*pair) == pytest.approx(exact, rel=1e-7, abs=0.0)


def test_same_center_is_never_separated() -> None:
    A = random_spd(np.random.default_rng(0), 4, 1e12)
    theta = np.full(4, 0.3)
    assert separation_statistic(theta, A, 1.0, theta, np.eye(4), 2.0) == 0.0
    assert not separated(theta, A, 1.0, theta, np.eye(4), 2.0, gamma=1e-6)


@settings(max_examples=60)
@given(pairs(), st.floats(0.1, 10.0))
def test_closed_form_for_proportional_matrices(pair: Pair, factor: float) -> None:
    theta_i, A_i, beta_i, theta_j, _, beta_j = pair
    v = theta_i - theta_j
    a, b = v @ A_i @ v, factor * (v @ A_i @ v)
    closed = (np.sqrt(beta_i / a) + np.sqrt(beta_j / b)) ** -2
    assert separation_statistic(theta_i, A_i, beta_i, theta_j, factor * A_i, beta_j) == pytest.approx(
        closed, rel=1e-7
    )


@settings(max_examples=60)
@given(pairs(max_condition=1e3), st.sampled_from(RADII), st.integers(0, 2**32))
def test_invariances(pair: Pair, radius: str, seed: int) -> None:
    theta_i, A_i, beta_i, theta_j, A_j, beta_j = pair
    value = separation_statistic(*pair, radius=radius)
    assert separation_statistic(theta_j, A_j, beta_j, theta_i, A_i, beta_i, radius=radius) == pytest.approx(
        value, rel=1e-7
    )
    rng = np.random.default_rng(seed)
    shift = rng.standard_normal(len(theta_i))
    moved = (theta_i + shift, A_i, beta_i, theta_j + shift, A_j, beta_j)
    # Adding the shift rounds the centres, and so their difference, by about 1e-16 absolute.
    size = 1e-11 / float(np.linalg.norm(theta_i - theta_j))
    assert separation_statistic(*moved, radius=radius) == pytest.approx(value, rel=max(1e-7, size))
    T = random_spd(rng, len(theta_i), 10.0)  # θ → T θ turns A into T⁻¹ A T⁻¹
    S = np.linalg.inv(T)
    mapped = (T @ theta_i, S @ A_i @ S, beta_i, T @ theta_j, S @ A_j @ S, beta_j)
    assert separation_statistic(*mapped, radius=radius) == pytest.approx(value, rel=max(1e-6, size))


@settings(max_examples=60)
@given(pairs(), st.sampled_from(RADII), st.floats(0.1, 4.0), st.floats(0.1, 4.0))
def test_monotone_in_gamma(pair: Pair, radius: str, one: float, two: float) -> None:
    small, large = sorted([one, two])
    if separated(*pair, gamma=large, radius=radius):
        assert separated(*pair, gamma=small, radius=radius)


# The lemmas of docs/algorithms.md


@settings(max_examples=100)
@given(pairs(), st.floats(-8.0, 8.0))
def test_lemma_1_probe_gives_value_slope_and_point(pair: Pair, logit: float) -> None:
    theta_i, A_i, c_i, theta_j, A_j, c_j = pair
    scratch = make_scratch(len(theta_i))
    scratch.vectors[V] = theta_i - theta_j
    ratio, h = float(np.exp(logit)), 1e-4
    s = ratio / (1 + ratio)
    q_i, q_j, curvature = probe(A_i, exact(A_i), c_i, A_j, exact(A_j), c_j, ratio, True, scratch)
    y, w = scratch.vectors[Y].copy(), scratch.vectors[W].copy()  # z − θ_j and θ_i − z
    assert (1 - s) * q_i + s * q_j == pytest.approx(reference.f(s, *pair), rel=1e-6)
    np.testing.assert_allclose(y + w, theta_i - theta_j, rtol=1e-12)
    assert q_i == pytest.approx(w @ A_i @ w / c_i, rel=1e-6)
    assert q_j == pytest.approx(y @ A_j @ y / c_j, rel=1e-6)
    plus = probe(A_i, exact(A_i), c_i, A_j, exact(A_j), c_j, ratio * np.exp(h), True, scratch)
    minus = probe(A_i, exact(A_i), c_i, A_j, exact(A_j), c_j, ratio * np.exp(-h), True, scratch)
    assert (plus[0] - minus[0]) / (2 * h) == pytest.approx(2 * ratio**2 * curvature, rel=1e-4, abs=1e-9 * q_i)
    assert (plus[1] - minus[1]) / (2 * h) == pytest.approx(-2 * ratio * curvature, rel=1e-4, abs=1e-9 * q_j)
    # f lies below its tangent at s everywhere: concave
    for other in (0.01, 0.3, 0.5, 0.8, 0.999):
        assert reference.f(other, *pair) <= ((1 - other) * q_i + other * q_j) * (1 + 1e-7)


@settings(max_examples=150)
@given(pairs())
def test_lemma_2_the_screen_is_never_below_the_maximum(pair: Pair) -> None:
    assert reference.screen(*pair) >= separation_statistic(*pair) * (1 - 1e-7)


@settings(max_examples=150)
@given(pairs(), st.floats(0.2, 4.0))
def test_lemma_3_the_point_found_lies_in_both(pair: Pair, gamma: float) -> None:
    theta_i, A_i, c_i, theta_j, A_j, c_j = pair
    scratch, threshold = make_scratch(len(theta_i)), gamma**2 / 4
    value, _, verdict = search(
        theta_i, A_i, exact(A_i), c_i, theta_j, A_j, exact(A_j), c_j, threshold, True, False, scratch
    )
    if verdict:
        assert value > threshold
    elif not np.isnan(scratch.vectors[Z]).any():
        for theta, A, c in ((theta_i, A_i, c_i), (theta_j, A_j, c_j)):
            offset = scratch.vectors[Z] - theta
            rounding = 1e-14 * np.trace(A) * (np.abs(offset).sum() + np.abs(theta).sum() * 1e-2) ** 2 / c
            assert offset @ A @ offset / c <= threshold + rounding


@settings(max_examples=100)
@given(pairs(max_condition=1e4), st.floats(0.3, 3.0))
def test_the_quick_verdict_is_the_slow_one(pair: Pair, gamma: float) -> None:
    theta_i, A_i, c_i, theta_j, A_j, c_j = pair
    threshold = gamma**2 / 4
    assume(abs(separation_statistic(*pair) / threshold - 1) > 1e-7)
    *_, quick = search(
        theta_i, A_i, exact(A_i), c_i, theta_j, A_j, exact(A_j), c_j, threshold, True, False,
        make_scratch(len(theta_i)),
    )  # fmt: skip
    assert quick == (separation_statistic(*pair) > threshold)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 20))
def test_excess_of_points(seed: int, d: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    theta, A = rng.standard_normal(d), np.eye(d) + random_spd(rng, d, 1e4)
    points = theta[:, None] + rng.standard_normal((d, n)) * 10.0 ** rng.uniform(-4, 0, n)
    excess = np.empty(n)
    excess_at(theta, A, points, np.empty((d, n)), excess)
    offsets = points - theta[:, None]
    forms = np.einsum("dn,de,en->n", offsets, A, offsets)
    np.testing.assert_allclose(excess, forms, rtol=1e-9)
    limit = float(np.median(forms))
    assert limit * (1 - 1e-6) < safe_limit(limit, A, 1.0) < limit
    points[0, 0] = np.nan
    excess_at(theta, A, points, np.empty((d, n)), excess)
    assert not excess[0] <= limit


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0.1, 1.0, 10.0]))
def test_excess_grows_with_each_sample_as_its_definition_does(seed: int, d: int, ridge: float) -> None:
    rng = np.random.default_rng(seed)
    stats = make_statistics(1, d, ridge)
    points = rng.standard_normal((d, 7))
    excess, exact, fitted, offsets = np.zeros(7), np.zeros(7), np.zeros(7), np.zeros((d, 7))
    excess_at(stats.theta_hat[0], stats.A[0], points, offsets, excess)
    for _ in range(40):
        x, reward = rng.standard_normal(d), float(rng.standard_normal())
        residual = reward - float(x @ stats.theta_hat[0])
        growth = add_sample(stats, 0, x, reward)
        excess_grows(points, x, reward, residual**2 / growth, fitted, excess)
        excess_at(stats.theta_hat[0], stats.A[0], points, offsets, exact)
        np.testing.assert_allclose(excess, exact, rtol=1e-9, atol=1e-11)


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: [np.nan, 0.0]}, "theta_i must be finite"),
        ({3: [1.0]}, r"theta_j must have shape \(2,\)"),
        ({1: np.eye(3)}, r"A_i must have shape \(2, 2\)"),
        ({4: np.diag([1.0, -1.0])}, "A_j must be positive definite"),
        ({1: np.array([[1.0, 0.5], [0.0, 1.0]])}, "A_i must be symmetric"),
        ({2: 0.0}, "beta_i must be a finite number"),
        ({5: float("inf")}, "beta_j must be a finite number"),
        ({0: [], 3: []}, "theta_i must have at least one entry"),
    ],
)
def test_bad_input_is_named(change: dict[int, Any], message: str) -> None:
    arguments: list[Any] = [[1.0, 0.0], np.eye(2), 1.0, [0.0, 0.0], np.eye(2), 1.0]
    for position, value in change.items():
        arguments[position] = value
    with pytest.raises(ValueError, match=message):
        separated(*arguments)
    with pytest.raises(ValueError, match="radius must be one of"):
        separation_statistic([1.0], np.eye(1), 1.0, [0.0], np.eye(1), 1.0, radius="betas")
    with pytest.raises(ValueError, match="gamma must be a finite number"):
        separated([1.0], np.eye(1), 1.0, [0.0], np.eye(1), 1.0, gamma=0.0)


@settings(max_examples=100)
@given(st.integers(1, 6), st.floats(0.1, 10.0), st.integers(0, 2**32))
def test_no_eigenvalue_exceeds_the_steepness(d: int, ridge: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rng.integers(0, 8), d)) * 10.0 ** rng.uniform(-3, 3)
    A = ridge * np.eye(d) + x.T @ x
    assert np.linalg.eigvalsh(A)[-1] <= (np.trace(A) - (d - 1) * ridge) * (1 + 1e-9)


def test_many_probes_at_once_decide_as_the_search_does() -> None:
    rng, d, decided = np.random.default_rng(0), 4, {UNDECIDED: 0, APART: 0, TOGETHER: 0}
    batch: ProbeBatch = pin(fields.make(ProbeBatch, {"dim": d, "triangle": d * (d + 1) // 2}, {}))
    scratch = make_scratch(d)
    for _ in range(60):
        n = int(rng.integers(1, LANES + 1))
        sizes, conditions = 10.0 ** rng.uniform(-1, 3, n + 1), 10.0 ** rng.uniform(0, 9, n + 1)
        A = np.array([s * random_spd(rng, d, kappa) for s, kappa in zip(sizes, conditions, strict=True)])
        theta_hat, c = rng.standard_normal((n + 1, d)), 10.0 ** rng.uniform(-1, 1, n + 1)
        others = rng.permutation(np.arange(1, n + 1))
        threshold = float(np.median([statistic_of(theta_hat, A, c, j, scratch) for j in others]))
        probe_many(0, others, theta_hat, A, c, threshold, batch)
        for lane, j in enumerate(others.tolist()):
            verdict = int(batch.verdicts[lane])
            decided[verdict] += 1
            statistic = statistic_of(theta_hat, A, c, j, scratch)
            if verdict == APART:
                assert statistic > threshold
            elif verdict == TOGETHER:
                assert statistic <= threshold
                point = theta_hat[j] + batch.vectors[1, :, lane]
                for agent in (0, j):
                    offset = point - theta_hat[agent]
                    assert offset @ A[agent] @ offset <= threshold * c[agent]
    assert decided[APART] > 50
    assert decided[TOGETHER] > 50
    assert decided[UNDECIDED] > 50  # close to the threshold, or ill-conditioned


def statistic_of(theta_hat: Matrix, A: Any, c: Vector, j: int, scratch: Any) -> float:
    low = exact(A[0])
    return search(theta_hat[0], A[0], low, c[0], theta_hat[j], A[j], low, c[j], 1.0, False, True, scratch)[0]
