"""Evidence, probabilities and scores of mixtures, against NumPy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.kernels.linalg import add_packed, back_substitute
from shoal.core.kernels.ucb import LANES
from shoal.core.policies.mixture.kernels import (
    best_arm_of_mixture,
    factor_packed,
    largest,
    normalise,
    predict,
    soften_with_base,
)
from shoal.core.types import Matrix, Vector


def packed_of(X: Matrix, rewards: Vector) -> Vector:
    d = X.shape[1]
    packed = np.zeros(d * (d + 1) // 2 + d)
    for x, reward in zip(X, rewards, strict=True):
        add_packed(packed, x, float(reward))
    return packed


@given(n=st.integers(0, 30), d=st.integers(1, 18), ridge=st.floats(0.1, 5.0), seed=st.integers(0, 10**6))
def test_evidence(n: int, d: int, ridge: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, rewards = rng.standard_normal((n, d)), rng.standard_normal(n)
    A, b = ridge * np.eye(d) + X.T @ X, X.T @ rewards
    L, y = np.zeros((d, d)), np.zeros(d)
    form, logdet = factor_packed(packed_of(X, rewards), ridge, L, y)
    np.testing.assert_allclose(L @ L.T, A, atol=1e-9)
    np.testing.assert_allclose(L @ y, b, atol=1e-9)
    assert form == pytest.approx(b @ np.linalg.solve(A, b), rel=1e-9, abs=1e-12)
    assert logdet == pytest.approx(np.linalg.slogdet(A)[1], rel=1e-9, abs=1e-12)


@given(
    n_arms=st.integers(1, 40),
    d=st.integers(1, 6),
    count=st.integers(1, 4),
    has_intercept=st.booleans(),
    within=st.sampled_from([0.0, 0.5, 3.0]),
    between=st.sampled_from([0.0, 1.0, 10.0]),
    bonus=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 10**6),
)
def test_best_arm(
    n_arms: int,
    d: int,
    count: int,
    has_intercept: bool,
    within: float,
    between: float,
    bonus: float,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    arms, shares = rng.standard_normal((n_arms, d)), rng.uniform(0.1, 2.0, size=count)
    L, y = np.zeros((count, d, d)), np.zeros((count, d))
    means, inner = np.zeros((count, n_arms)), np.zeros((count, n_arms))
    slopes = d - 1 if has_intercept else d
    hidden = (bonus * rng.integers(0, 2, size=count)).astype(np.float64)
    for c in range(count):
        X, rewards = rng.standard_normal((5, d)), 3.0 * rng.standard_normal(5)
        factor_packed(packed_of(X, rewards), 0.7, L[c], y[c])
        A = 0.7 * np.eye(d) + X.T @ X
        means[c] = arms @ np.linalg.solve(A, X.T @ rewards)
        inner[c] = within * np.einsum("kd,de,ke->k", arms, np.linalg.inv(A), arms)
        inner[c] += hidden[c] * np.sum((arms @ np.linalg.inv(A))[:, :slopes] ** 2, axis=1)
    p = shares / shares.sum()
    outer = p @ (means - p @ means) ** 2
    scores = p @ means + np.sqrt(p @ inner + between * outer)
    work = np.full((d + 7, LANES), np.nan)
    out = np.full((2, n_arms), np.nan)
    choice = best_arm_of_mixture(L, y, shares, hidden, count, arms, within, between, slopes, work, out)
    assert scores[choice] == pytest.approx(scores.max(), rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(out[0], p @ means, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(out.sum(axis=0), scores, rtol=1e-9, atol=1e-9)
    assert choice == np.argmax(out[0] + out[1])


def test_the_first_of_equal_arms() -> None:
    arms = np.ones((20, 2))
    L, y = np.eye(2)[None], np.ones((1, 2))
    work, out = np.zeros((9, LANES)), np.zeros((2, 0))
    assert best_arm_of_mixture(L, y, np.ones(1), np.ones(1), 1, arms, 1.0, 1.0, 2, work, out) == 0


@given(
    n=st.integers(0, 30),
    d=st.integers(1, 8),
    ridge=st.sampled_from([0.0, 0.7]),
    base=st.sampled_from([None, 0.0, 3.0]),
    scatter=st.sampled_from([0.0, 1e-6, 0.003, 1.0, 1e6]),
    lift=st.sampled_from([0.0, 1e-6, 0.1, 10.0]),
    seed=st.integers(0, 10**6),
)
def test_softened_sums(
    n: int, d: int, ridge: float, base: float | None, scatter: float, lift: float, seed: int
) -> None:
    """What θ + δ tells of θ: the precision of its mean is (S⁻¹ + K)⁻¹, and none without samples.

    With a `base` the last coordinate has this ridge, and a δ of its own size.
    """
    rng = np.random.default_rng(seed)
    X, rewards = rng.standard_normal((n, d)), rng.standard_normal(n)
    count, last = (d, ridge) if base is None else (d - 1, base)
    S, b = np.diag([ridge] * (d - 1) + [last]) + X.T @ X, X.T @ rewards
    packed, out = packed_of(X, rewards), np.full(d * (d + 1) // 2 + d, np.nan)
    room = np.zeros((d, d)), np.zeros(d), np.zeros((2, d, d))
    lift = lift if count < d else 0.0
    form, logdet = soften_with_base(packed, ridge, last, scatter, lift, count, out, *room)
    variances = np.diag([scatter] * count + [lift] * (d - count))
    spread = np.eye(d) + S @ variances
    rows, columns = np.tril_indices(d)
    size = max(1.0, float(np.abs(S).max()))
    np.testing.assert_allclose(out[:-d], np.linalg.solve(spread, S)[rows, columns], atol=1e-9 * size)
    np.testing.assert_allclose(out[-d:], np.linalg.solve(spread, b), atol=1e-9 * size)
    assert form == pytest.approx(b @ variances @ np.linalg.solve(spread, b), rel=1e-9, abs=1e-12)
    assert logdet == pytest.approx(np.linalg.slogdet(spread)[1], rel=1e-9, abs=1e-9)
    soften_with_base(packed, ridge, last, scatter, lift, count, packed, *room)
    assert np.array_equal(packed, out)  # in place


def test_predictions_and_estimates() -> None:
    rng = np.random.default_rng(0)
    X, rewards, x = rng.standard_normal((7, 4)), rng.standard_normal(7), rng.standard_normal(4)
    A, b = 0.5 * np.eye(4) + X.T @ X, X.T @ rewards
    L, y, theta = np.zeros((4, 4)), np.zeros(4), np.zeros(4)
    factor_packed(packed_of(X, rewards), 0.5, L, y)
    mean, variance = predict(L, y, x, np.zeros(4))
    assert mean == pytest.approx(x @ np.linalg.solve(A, b))
    assert variance == pytest.approx(x @ np.linalg.solve(A, x))
    back_substitute(L, y, theta)
    np.testing.assert_allclose(theta, np.linalg.solve(A, b))


def test_normalise() -> None:
    logs = np.array([-1000.0, -math.inf, -1000.0 + math.log(3.0), 5.0])
    assert normalise(logs, 3) == pytest.approx(-1000.0 + math.log(4.0))
    assert logs.tolist() == pytest.approx([0.25, 0.0, 0.75, 5.0])


def test_largest() -> None:
    assert largest(np.arange(1.0, 6.0), 2) == 5.0  # d = 2: x₁², x₁x₂, x₂², b
    assert largest(np.array([1.0, 99.0, 7.0, -9.0, 2.0]), 2) == 9.0  # no entry is larger than the diagonal's
