"""Sums and factors with twice the digits, against fractions and mpmath."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.kernels import twofold
from shoal.core.kernels.linalg import cholesky

numbers = st.floats(-1e40, 1e40, allow_nan=False).filter(lambda n: n == 0 or abs(n) > 1e-40)


@given(numbers, numbers)
def test_sums_and_products_are_exact(a: float, b: float) -> None:
    total, lost = twofold.two_sum(a, b)
    assert Fraction(total) + Fraction(lost) == Fraction(a) + Fraction(b)
    assert total == a + b
    product, lost = twofold.two_product(a, b)
    assert Fraction(product) + Fraction(lost) == Fraction(a) * Fraction(b)
    assert product == a * b


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 6), st.floats(0.0, 8.0))
def test_factor_keeps_what_floats_lose(seed: int, d: int, power: float) -> None:
    """The smallest singular values are those of the exact sums, where the floats of A have lost them."""
    rng, scale = np.random.default_rng(seed), 10.0**power
    A, tail = np.eye(d), np.zeros(d * (d + 1) // 2)
    exact = mpmath.eye(d)
    with mpmath.workdps(60):
        for _ in range(3):
            x = scale * rng.standard_normal(d)
            twofold.add_outer(A, tail, x, 1.0)
            column = mpmath.matrix(x.tolist())
            exact += column * column.T
        assert np.array_equal(A, A.T)
        L, L_tail = np.zeros((d, d)), np.zeros((d, d))
        twofold.add_scaled(1.0, A, tail, L, L_tail)
        twofold.add_to_diagonal(2.0, L, L_tail)
        twofold.add_to_diagonal(-2.0, L, L_tail)
        twofold.cholesky_twofold(L, L_tail)
        expected = mpmath.cholesky(exact)
        for row in range(d):
            assert L[row, row] == pytest.approx(float(expected[row, row]), rel=1e-9)
            for column in range(row):
                full = mpmath.mpf(L[row, column]) + mpmath.mpf(L_tail[row, column])
                size = float(mpmath.norm(expected[row, :]))
                assert abs(float(full - expected[row, column])) <= 1e-13 * size
        v = rng.standard_normal(d)
        form = exact * mpmath.matrix(v.tolist())
        for row in range(d):
            high = (mpmath.matrix(A.tolist()) * mpmath.matrix(v.tolist()))[row]
            assert float(high + twofold.multiply_tail(tail, v, row) - form[row]) == pytest.approx(
                0.0, abs=1e-30 * scale**2 + 1e-16 * abs(float(np.abs(tail).max()))
            )


def test_multiples_keep_their_tails() -> None:
    A, tail = np.eye(2), np.array([1e-20, 2e-20, 3e-20])
    out, out_tail = np.zeros((2, 2)), np.zeros((2, 2))
    twofold.add_scaled(0.1, A, tail, out, out_tail)
    twofold.add_scaled(-0.1, A, np.zeros(3), out, out_tail)
    np.testing.assert_allclose(np.tril(out + out_tail), [[1e-21, 0], [2e-21, 3e-21]], rtol=1e-10)


def test_a_matrix_that_even_this_finds_singular_stays_usable() -> None:
    x = np.array([1e20, 3e20])
    L, tail = np.tril(np.outer(x, x)), np.zeros((2, 2))
    assert 0.0 < twofold.cholesky_twofold(L, tail) < 1e-10
    assert np.isfinite(L).all()


def test_well_conditioned_matrices_have_the_usual_factor() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 5))
    A, L = X.T @ X, np.zeros((5, 5))
    ratio = cholesky(A, L)
    twice, tail = np.tril(A), np.zeros((5, 5))
    assert twofold.cholesky_twofold(twice, tail) == pytest.approx(ratio)
    np.testing.assert_allclose(twice, L, rtol=1e-13, atol=1e-13)
