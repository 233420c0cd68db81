"""Sufficient statistics of linear models: one row per agent, or one row per pool of agents.

Row i holds `A = ridge·I + Σ x xᵀ`, its inverse and log-determinant, `b = Σ y x` and `theta_hat = A⁻¹ b`.
The inverse is kept up to date by rank-one updates and computed afresh from A at regular intervals, so
that rounding cannot accumulate.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np

from shoal.fields import COUNT, DIM, ROWS, kept, make, scratch
from shoal.kernels.compiled import compiled
from shoal.kernels.linalg import (
    add_sample_to_inverse,
    cholesky,
    inverse_from_cholesky,
    logdet_from_cholesky,
    multiply_symmetric,
)
from shoal.types import Booleans, Integers, Matrix, Tensor, Vector

REFRESH_EVERY = 256
"""Samples a row takes between two exact inversions."""
STEEP = 1e4
"""Growth of det A by one sample after which the inverse is computed afresh: the update loses digits."""


class Statistics(NamedTuple):
    """Rows of linear-model statistics."""

    A: Annotated[Tensor, kept(ROWS, DIM, DIM)]
    A_inv: Annotated[Tensor, kept(ROWS, DIM, DIM)]
    b: Annotated[Matrix, kept(ROWS, DIM)]
    theta_hat: Annotated[Matrix, kept(ROWS, DIM)]
    logdet_A: Annotated[Vector, kept(ROWS)]
    pulls: Annotated[Integers, kept(ROWS, **COUNT)]
    scratch: Annotated[Matrix, scratch(2 * DIM + 1, DIM)]  # a factor, its inverse, a vector


def make_statistics(n: int, dim: int, ridge: float) -> Statistics:
    """Statistics of `n` models that have seen nothing."""
    stats: Statistics = make(Statistics, {"rows": n, "dim": dim}, {})
    start_rows(stats, 0, ridge)
    return stats


def start_rows(stats: Statistics, first: int, ridge: float) -> None:
    """Make the rows from `first` on those of models that have seen nothing; b, θ̂ and pulls are 0 already."""
    dim = stats.b.shape[1]
    stats.A[first:] = ridge * np.eye(dim)
    stats.A_inv[first:] = np.eye(dim) / ridge
    stats.logdet_A[first:] = dim * math.log(ridge)


def problem(stats: Statistics, ridge: float) -> str:
    """What is wrong with rows that were loaded, as a phrase; "" if they are statistics of some samples.

    What follows from A and b is compared with them up to the rounding that updates may have left: computed
    afresh it would differ from what was saved in its last digits.
    """
    A, d = stats.A, stats.b.shape[1]
    if len(A) == 0:
        return ""
    diagonal = np.einsum("nii->ni", A)
    if not np.array_equal(A, A.transpose(0, 2, 1)) or diagonal.min() <= 0.0:
        return "A is not symmetric with a positive diagonal"
    scale = np.sqrt(diagonal)
    try:  # a little more than A, that rounding may have left singular
        np.linalg.cholesky(A / scale[:, :, None] / scale[:, None, :] + 1e-9 * np.eye(d))
    except np.linalg.LinAlgError:
        return "A is not positive definite"
    rounding = 1e-6 + 1e-10 * diagonal.sum(axis=1) / ridge
    if (np.abs(A @ stats.A_inv - np.eye(d)).max(axis=(1, 2)) > rounding).any():
        return "A_inv is not the inverse of A"
    size = np.abs(stats.b).max(axis=1) + diagonal.max(axis=1) * np.abs(stats.theta_hat).max(axis=1)
    residual = np.einsum("nij,nj->ni", A, stats.theta_hat) - stats.b
    if (np.abs(residual).max(axis=1) > rounding * size).any():
        return "theta_hat is not A⁻¹ b"
    if (np.abs(stats.logdet_A - np.linalg.slogdet(A)[1]) > d * rounding).any():
        return "logdet_A is not the log-determinant of A"
    return ""


def packed_problem(lent: Matrix, stats: Statistics, ridge: float) -> str:
    """What is wrong with packed sums of the same samples, as a phrase."""
    d = stats.b.shape[1]
    row, column = np.tril_indices(d)
    wanted = np.hstack([stats.A[:, row, column] - ridge * (row == column), stats.b])
    size = ridge + np.abs(lent).max(axis=1, initial=0.0)
    return "lent is not what local holds" if (np.abs(lent - wanted) > 1e-9 * size[:, None]).any() else ""


@compiled
def add_sample(stats: Statistics, row: int, x: Vector, reward: float) -> float:
    """Let one row take in one observation; return `1 + xᵀ A⁻¹ x`, with A as it was before."""
    d = x.shape[0]
    A = stats.A[row]
    b = stats.b[row]
    for m in range(d):
        factor = x[m]
        for column in range(d):
            A[m, column] += factor * x[column]
        b[m] += reward * factor
    growth = add_sample_to_inverse(stats.A_inv[row], x, stats.scratch[2 * d])
    stats.pulls[row] += 1
    if stats.pulls[row] % REFRESH_EVERY == 0 or growth > STEEP:
        solve_row(stats, row)
    else:
        stats.logdet_A[row] += math.log(growth)
        multiply_symmetric(stats.A_inv[row], b, stats.theta_hat[row])
    return growth


@compiled
def solve_row(stats: Statistics, row: int) -> None:
    """Compute inverse, log-determinant and estimate of a row from its A and b."""
    d = stats.b.shape[1]
    L, L_inv = stats.scratch[:d], stats.scratch[d : 2 * d]
    cholesky(stats.A[row], L)
    inverse_from_cholesky(L, stats.A_inv[row], L_inv)
    stats.logdet_A[row] = logdet_from_cholesky(L)
    multiply_symmetric(stats.A_inv[row], stats.b[row], stats.theta_hat[row])


@compiled
def pool_rows(local: Statistics, members: Booleans, ridge: float, pool: Statistics, row: int) -> None:
    """Pool the members into `pool[row]`: `A = ridge·I + Σ (A_j − ridge·I)`, `b = Σ b_j`."""
    n, d = local.b.shape
    A_local = local.A.reshape(n, d * d)
    A = pool.A[row].reshape(d * d)
    b = pool.b[row]
    A[:] = 0.0
    b[:] = 0.0
    count = 0
    pulls = 0
    for j in range(n):
        if members[j]:
            for m in range(d * d):
                A[m] += A_local[j, m]
            for m in range(d):
                b[m] += local.b[j, m]
            pulls += local.pulls[j]
            count += 1
    for m in range(d):
        A[m * d + m] -= (count - 1) * ridge
    pool.pulls[row] = pulls
    solve_row(pool, row)


@compiled
def forget_row(stats: Statistics, row: int, ridge: float) -> None:
    """Make a row one that has seen nothing."""
    d = stats.b.shape[1]
    stats.A[row] = 0.0
    for m in range(d):
        stats.A[row, m, m] = ridge
    stats.b[row] = 0.0
    stats.pulls[row] = 0
    solve_row(stats, row)
