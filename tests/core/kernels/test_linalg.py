"""Small dense linear algebra against NumPy, over random well- and ill-conditioned matrices."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.kernels import bits, linalg
from shoal.core.types import Matrix

DIMS = [1, 2, 3, 7, 10, 20]


def random_spd(rng: np.random.Generator, d: int, condition: float = 1e3) -> Matrix:
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    A = Q @ np.diag(np.geomspace(1.0, condition, d)) @ Q.T
    return np.asarray((A + A.T) / 2)


@pytest.mark.parametrize("d", DIMS)
def test_cholesky_and_everything_built_on_it(d: int) -> None:
    rng = np.random.default_rng(d)
    A, L, A_inv, L_inv = (
        random_spd(rng, d),
        np.full((d, d), np.nan),
        np.full((d, d), np.nan),
        np.zeros((d, d)),
    )
    before = A.copy()
    ratio = linalg.cholesky(A, L)
    np.testing.assert_allclose(L, np.linalg.cholesky(A), atol=1e-12 * 1e3)
    assert ratio == pytest.approx(np.diag(L).min() / np.diag(L).max())
    assert linalg.logdet_from_cholesky(L) == pytest.approx(np.linalg.slogdet(A)[1])
    linalg.inverse_from_cholesky(L, A_inv, L_inv)
    np.testing.assert_allclose(A @ A_inv, np.eye(d), atol=1e-10)
    assert np.array_equal(A_inv, A_inv.T)
    rhs, out = rng.standard_normal(d), np.zeros(d)
    linalg.solve_cholesky(L, rhs, out)
    np.testing.assert_allclose(A @ out, rhs, atol=1e-10)
    linalg.solve_cholesky(L, rhs, rhs)  # in place
    assert np.array_equal(rhs, out)
    assert np.array_equal(A, before)
    linalg.cholesky(A, A)  # in place
    assert np.array_equal(A, L)


def test_cholesky_of_a_matrix_that_rounding_made_singular() -> None:
    x, L = np.array([1e9, 3e9, -2e9]), np.zeros((3, 3))
    A = np.eye(3) + np.outer(x, x)  # the ones are below the last digit
    assert 0.0 < linalg.cholesky(A, L) < 1e-7
    assert np.isfinite(L).all()
    np.testing.assert_allclose(L @ L.T, A, rtol=1e-12)


@pytest.mark.parametrize("d", DIMS)
def test_products(d: int) -> None:
    rng = np.random.default_rng(d)
    A, v, out = random_spd(rng, d), rng.standard_normal(d), np.zeros(d)
    linalg.multiply_symmetric(A, v, out)
    np.testing.assert_allclose(out, A @ v, rtol=1e-12, atol=1e-10)
    assert linalg.dot(v, out) == pytest.approx(v @ A @ v)
    assert linalg.trace(A) == pytest.approx(np.trace(A))


@pytest.mark.parametrize("d", DIMS)
def test_rank_one_update_of_the_inverse(d: int) -> None:
    rng = np.random.default_rng(d)
    A, x = random_spd(rng, d), rng.standard_normal(d)
    A_inv = np.linalg.inv(A)
    A_inv = (A_inv + A_inv.T) / 2
    growth = linalg.add_sample_to_inverse(A_inv, x, np.zeros(d))
    np.testing.assert_allclose(A_inv @ (A + np.outer(x, x)), np.eye(d), atol=1e-9)
    assert np.array_equal(A_inv, A_inv.T)
    ratio = np.linalg.slogdet(A + np.outer(x, x))[1] - np.linalg.slogdet(A)[1]
    assert np.log(growth) == pytest.approx(ratio, abs=1e-10)


finite = st.floats(-1e8, 1e8, allow_nan=False, allow_subnormal=False)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=12))
def test_compensated_dot_has_twice_the_digits(pairs: list[tuple[float, float]]) -> None:
    u, v = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])
    exact = sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(0))
    size = float(sum((abs(Fraction(a) * Fraction(b)) for a, b in pairs), Fraction(0)))
    error = abs(Fraction(float(linalg.dot_compensated(u, v))) - exact)
    assert float(error) <= 2.3e-16 * abs(float(exact)) + 1e-29 * size + 1e-300


def test_compensated_dot_survives_cancellation() -> None:
    assert linalg.dot_compensated(np.array([1e16, 1.0, -1e16]), np.array([1.0, 1.0, 1.0])) == 1.0
    assert linalg.dot(np.array([1e16, 1.0, -1e16]), np.array([1.0, 1.0, 1.0])) == 0.0


@pytest.mark.parametrize("d", DIMS)
def test_packed_sums(d: int) -> None:
    rng, n = np.random.default_rng(d), 300
    packed, members = np.zeros((n, d * (d + 1) // 2 + d)), rng.random(n) < 0.5
    members[64:128] = True
    members[128:192] = False
    A_naive, b_naive = 0.5 * np.eye(d), np.zeros(d)
    for agent in range(n):
        x, reward = rng.standard_normal(d), float(rng.standard_normal())
        linalg.add_packed(packed[agent], x, reward)
        if members[agent]:
            A_naive, b_naive = A_naive + np.outer(x, x), b_naive + reward * x
    left_out = np.zeros(5, dtype=np.int64)
    for agent in np.flatnonzero(~members).tolist():
        bits.set_bit(left_out, agent)
    blocks = np.add.reduceat(packed, np.arange(0, n, 64))
    packed[64:128] = np.nan  # none is left out: only their sum is needed
    blocks[[0, 2, 3, 4]] = np.nan
    total, A = np.full(packed.shape[1], np.nan), np.zeros((d, d))
    linalg.sum_packed(packed, blocks, left_out, np.zeros(65, dtype=np.int64), total)
    linalg.unpack(total, 0.5, A)
    np.testing.assert_allclose(np.tril(A), np.tril(A_naive), atol=1e-12)
    np.testing.assert_allclose(total[-d:], b_naive, atol=1e-12)
