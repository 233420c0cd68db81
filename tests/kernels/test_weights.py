"""Statistics, weights and weighted sums of one agent with all others, against NumPy and the naive screen."""

import mpmath
import numpy as np
import pytest
from tests import reference

from shoal.kernels.weights import pair_statistics, shares, sum_weighted
from shoal.types import Matrix, Vector


def random_agents(n: int, d: int, ridge: float, scale: float = 1.0) -> tuple[Matrix, Matrix, Vector, Matrix]:
    """Estimates (n, d), packed sums (p, n), squared radii (n,) and the matrices (n, d, d) they stand for."""
    rng = np.random.default_rng(100 * n + d)
    xs = scale * rng.standard_normal((n, 2 * d, d)) * rng.uniform(0.1, 3.0, size=(n, 1, d))
    gram = np.einsum("jsk,jsl->jkl", xs, xs)
    rows, columns = np.tril_indices(d)
    return (
        rng.standard_normal((n, d)) / scale,
        np.ascontiguousarray(gram[:, rows, columns].T),
        rng.uniform(1.0, 20.0, n),
        gram + ridge * np.eye(d),
    )


def statistics(agent: int, theta_hat: Matrix, packed: Matrix, ridge: float, c: Vector) -> Vector:
    n, d = theta_hat.shape
    out = np.full(n, np.nan)
    pair_statistics(agent, theta_hat, packed, ridge, c, np.full((d + 2, n), np.nan), out)
    return out


@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 2), (9, 4), (18, 10)])
def test_statistics_are_the_screen_of_every_pair(n: int, d: int) -> None:
    theta_hat, packed, c, A = random_agents(n, d, 0.7)
    theta_hat[-1] = theta_hat[0]
    for i in range(n):
        naive = [reference.screen(theta_hat[i], A[i], c[i], theta_hat[j], A[j], c[j]) for j in range(n)]
        np.testing.assert_allclose(statistics(i, theta_hat, packed, 0.7, c), naive, rtol=1e-12)
    assert statistics(0, theta_hat, packed, 0.7, c)[n - 1] == 0.0


def test_both_agents_compute_the_same_bits() -> None:
    theta_hat, packed, c, _ = random_agents(15, 6, 1.0)
    matrix = np.array([statistics(i, theta_hat, packed, 1.0, c) for i in range(15)])
    assert np.array_equal(matrix, matrix.T)


@pytest.mark.parametrize("agent", [0, 1])
def test_a_form_that_rounding_takes_below_zero_counts_as_nothing(agent: int) -> None:
    """Estimates that differ along the flat direction of agent 0's steep matrix: that form is all rounding."""
    below, theta_hat, c = 0, np.array([[3e3, -1e3], [0.0, 0.0]]) / 7.0, np.array([5.0, 5.0])
    for step in range(100):
        x = np.array([1e9, 3e9]) * (1.0 + step / 7.0)
        packed, work, out = np.zeros((3, 2)), np.zeros((4, 2)), np.zeros(2)
        packed[:, 0] = x[0] ** 2, x[0] * x[1], x[1] ** 2
        pair_statistics(agent, theta_hat, packed, 1.0, c, work, out)
        if work[2 + agent, 1 - agent] < 0.0:  # where that form was summed
            below += 1
            assert out[1 - agent] == 0.0
        assert out[1 - agent] >= 0.0
    assert below > 0


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_rounding_is_of_the_size_of_the_last_digits(scale: float) -> None:
    theta_hat, packed, c, A = random_agents(6, 10, 1.0, scale)
    found = statistics(0, theta_hat, packed, 1.0, c)
    with mpmath.workdps(50):
        for j in range(1, 6):
            v = mpmath.matrix(theta_hat[0].tolist()) - mpmath.matrix(theta_hat[j].tolist())
            forms = [(v.T * mpmath.matrix(A[i].tolist()) * v)[0] for i in (0, j)]
            exact = (mpmath.sqrt(c[0] / forms[0]) + mpmath.sqrt(c[j] / forms[1])) ** -2
            assert abs(found[j] / exact - 1) < 1e-13


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 3.5])
def test_shares(power: float) -> None:
    out = np.full(6, np.nan)
    shares(np.array([0.0, 0.3, 0.6, 0.60001, 1e300, np.nan]), 0.6, power, out)
    np.testing.assert_allclose(out, [1.0, 0.5**power, 0.0, 0.0, 0.0, 0.0])


def test_weighted_sum() -> None:
    rng = np.random.default_rng(0)
    packed, weights, out = (
        rng.standard_normal((5, 7)),
        np.array([0.0, 0.25, 0.0, 1.0, 0.5]),
        np.full(7, np.nan),
    )
    packed[2] = np.inf  # a row of weight zero is not looked at
    sum_weighted(packed, weights, np.zeros(6, dtype=np.int64), out)
    np.testing.assert_allclose(out, 0.25 * packed[1] + packed[3] + 0.5 * packed[4])
