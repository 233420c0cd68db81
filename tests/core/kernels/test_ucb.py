"""Scores of arms against the naive twin."""

from math import log, sqrt

import numpy as np
import pytest
from tests import reference
from tests.core.kernels.test_linalg import random_spd

from shoal.core.kernels.ucb import LANES, best_arm, best_arm_of_factor, best_arm_of_width
from shoal.core.types import Matrix, Vector

NOWHERE = np.zeros((2, 0))


def check_scores(out: Matrix, theta_hat: Vector, A: Matrix, arms: Matrix, width: float) -> None:
    """The two parts of the scores of as many arms as there is room for; the rest is untouched."""
    n = min(len(arms), out.shape[1])
    bonus = width * np.sqrt(np.einsum("kd,kd->k", arms, np.linalg.solve(A, arms.T).T))
    np.testing.assert_allclose(out[:, :n], [(arms @ theta_hat)[:n], bonus[:n]], rtol=1e-9, atol=1e-12)
    assert (out[:, n:] == -7.0).all()


@pytest.mark.parametrize("d", [1, 2, 5, 10, 20])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 3.0])
def test_best_arm_is_the_twin_s(d: int, alpha: float) -> None:
    rng = np.random.default_rng(d)
    for t in range(1, 40):
        A, theta_hat, arms = random_spd(rng, d), rng.standard_normal(d), rng.standard_normal((15, d))
        A_inv = np.asarray(np.linalg.inv(A), dtype=np.float64)
        width, out, L = (
            alpha * sqrt(log(t + 1)),
            np.full((2, 3 + t), -7.0),
            np.asarray(np.linalg.cholesky(A), np.float64),
        )
        assert best_arm(theta_hat, A_inv, arms, width, out) == reference.choose(theta_hat, A, arms, alpha, t)
        check_scores(out, theta_hat, A, arms, width)
        out[:] = -7.0
        choice = best_arm_of_width(theta_hat, L, arms, width, False, np.zeros(d), out)
        assert choice == reference.choose(theta_hat, A, arms, alpha, t)
        check_scores(out, theta_hat, A, arms, width)


def test_the_bonus_has_its_square_root() -> None:
    # Without the root the second arm (variance 4, mean 0) would win: 0.5·4 = 2 > 1.5·1 + 0.5·1.
    arms = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert best_arm(np.array([0.9, 0.0]), np.diag([1.0, 4.0]), arms, 0.5, NOWHERE) == 0


def test_ties_go_to_the_lowest_index() -> None:
    arms = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert best_arm(np.array([1.0, 0.0]), np.eye(2), arms, 1.0, NOWHERE) == 1
    assert best_arm(np.zeros(2), np.eye(2), np.ones((4, 2)), 1.0, NOWHERE) == 0


@pytest.mark.parametrize("d", [1, 2, 5, 10, 20])
@pytest.mark.parametrize("n_arms", [1, 14, 15, 16, 31, 50])
def test_best_arm_from_the_factor_is_the_twin_s(d: int, n_arms: int) -> None:
    rng = np.random.default_rng(100 * d + n_arms)
    lanes = np.full((d + 2, LANES), 7.0)
    for t in range(1, 20):
        A, b, arms = random_spd(rng, d), rng.standard_normal(d), rng.standard_normal((n_arms, d))
        L = np.asarray(np.linalg.cholesky(A), dtype=np.float64)
        theta_hat = np.asarray(np.linalg.solve(A, b), dtype=np.float64)
        width, out = 0.7 * sqrt(log(t + 1)), np.full((2, 20), -7.0)
        choice = best_arm_of_factor(L, b, arms, width, lanes, out)
        assert choice == reference.choose(theta_hat, A, arms, 0.7, t)
        check_scores(out, theta_hat, A, arms, width)
