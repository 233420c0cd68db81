"""Sufficient statistics of linear models: one row per agent, or one row per pool of agents.

Row i holds `A = ridge·I + Σ x xᵀ`, its inverse and log-determinant, `b = Σ y x` and `theta_hat = A⁻¹ b`.
The inverse is kept up to date by rank-one updates and computed afresh from A at regular intervals, so
that rounding cannot accumulate. A row whose A is ill-conditioned (arms large beside the ridge, in some
directions and not in others) is *steep*: what the floats of A lose is kept in `tail`, and everything is
computed from a factor with twice the digits, sample by sample.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np

from shoal.core.fields import COUNT, DIM, ROWS, TRIANGLE, kept, make, scratch
from shoal.core.jit.compiled import compiled
from shoal.core.jit.pinned import pin
from shoal.core.kernels.linalg import (
    add_sample_to_inverse,
    cholesky,
    dot,
    inverse_from_cholesky,
    logdet_from_cholesky,
    multiply_symmetric,
    solve_cholesky,
    solve_lower,
    trace,
    unpack,
)
from shoal.core.kernels.twofold import add_outer, add_scaled, add_to_diagonal, cholesky_twofold
from shoal.core.kernels.ucb import best_arm, best_arm_of_width
from shoal.core.types import AnyArray, Booleans, Integers, Matrix, Tensor, Vector

REFRESH_EVERY = 256
"""Samples a row takes between two exact inversions."""
STEEP = 1e4
"""Growth of det A by one sample after which the inverse is computed afresh: the update loses digits."""
ILL_CONDITIONED = 2.0**23
"""Product of the traces of A and its inverse from which on a row is steep. Up to it, `A⁻¹ b` by rank-one
updates is off, in the norm of A, by less than 1e-8 times the size of the rewards; beyond, by as much more."""


class Statistics(NamedTuple):
    """Rows of linear-model statistics."""

    A: Annotated[Tensor, kept(ROWS, DIM, DIM, symmetric=True)]
    tail: Annotated[Matrix, kept(ROWS, TRIANGLE)]
    """What A lacks of the exact sums, where a row is or was steep; lower triangles."""
    A_inv: Annotated[Tensor, kept(ROWS, DIM, DIM, symmetric=True)]
    b: Annotated[Matrix, kept(ROWS, DIM)]
    theta_hat: Annotated[Matrix, kept(ROWS, DIM)]
    logdet_A: Annotated[Vector, kept(ROWS)]
    traces: Annotated[Matrix, kept(ROWS, 2, low=0.0)]
    """Of A, and of its inverse when that was last computed from A: it only falls."""
    pulls: Annotated[Integers, kept(ROWS, **COUNT)]
    scratch: Annotated[Matrix, scratch(3 * DIM + 1, DIM)]  # a factor, its inverse, its tail part, a vector


def make_statistics(n: int, dim: int, ridge: float) -> Statistics:
    """Statistics of `n` models that have seen nothing, pinned as those in a policy's state are."""
    stats: Statistics = make(Statistics, {"rows": n, "dim": dim, "triangle": dim * (dim + 1) // 2}, {})
    start_rows(stats, 0, ridge)
    pinned: Statistics = pin(stats)
    return pinned


def start_rows(stats: Statistics, first: int, ridge: float) -> None:
    """Make rows from `first` on, which are 0, those of models that have seen nothing."""
    dim = stats.b.shape[1]
    # Diagonals as strides of flat rows: a view, made in half the time that einsum takes.
    stats.A[first:].reshape(-1, dim * dim)[:, :: dim + 1] = ridge
    stats.A_inv[first:].reshape(-1, dim * dim)[:, :: dim + 1] = 1.0 / ridge
    stats.logdet_A[first:] = dim * math.log(ridge)
    stats.traces[first:] = dim * ridge, dim / ridge


def problem(stats: Statistics, ridge: AnyArray | float) -> str:
    """What is wrong with rows that were loaded, as a phrase; "" if they are statistics of some samples.

    What follows from A and b is compared with them up to the rounding that updates may have left: computed
    afresh it would differ from what was saved in its last digits.
    """
    A, A_inv, d = stats.A, stats.A_inv, stats.b.shape[1]
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
    if (np.abs(A @ A_inv - np.eye(d)).max(axis=(1, 2)) > rounding).any():
        return "A_inv is not the inverse of A"
    size = np.abs(stats.b).max(axis=1) + diagonal.max(axis=1) * np.abs(stats.theta_hat).max(axis=1)
    residual = np.einsum("nij,nj->ni", A, stats.theta_hat) - stats.b
    if (np.abs(residual).max(axis=1) > rounding * size).any():
        return "theta_hat is not A⁻¹ b"
    if (np.abs(stats.logdet_A - np.linalg.slogdet(A)[1]) > d * rounding).any():
        return "logdet_A is not the log-determinant of A"
    of_A, of_inverse = stats.traces.T
    falls = of_inverse < (1.0 - 1e-6) * np.einsum("nii->n", A_inv)
    if falls.any() or not np.allclose(of_A, diagonal.sum(axis=1), rtol=1e-6):
        return "traces are not those of A and its inverse"
    return ""


def amend_packed(packed: Vector, x: Vector, change: float, removes: bool, left: int) -> None:
    """What `amend_row` does, for packed sums of a row of which `left` samples are left."""
    d = len(x)
    packed[-d:] += change * x
    if removes:
        row, column = np.tril_indices(d)
        packed[:-d] -= x[row] * x[column]
    if left == 0:
        packed[:] = 0.0


def packed_problem(lent: Matrix, stats: Statistics, ridge: AnyArray | float, lends: Booleans) -> str:
    """What is wrong with packed sums of the samples of those who lend, as a phrase; others' are 0."""
    d = stats.b.shape[1]
    row, column = np.tril_indices(d)
    own = np.broadcast_to(ridge, len(lent))[:, None] * (row == column)
    wanted = np.hstack([stats.A[:, row, column] - own, stats.b]) * lends[:, None]
    size = ridge + np.abs(lent).max(axis=1, initial=0.0)
    return "lent is not what local holds" if (np.abs(lent - wanted) > 1e-9 * size[:, None]).any() else ""


def pool_problem(pool: Statistics, local: Statistics, labels: Integers, ridge: float) -> str:
    """What is wrong with pooled rows, as a phrase: each is the sum over its members, −1 being no label."""
    if not len(labels) or not len(pool.b):
        return ""
    counted, d = labels >= 0, local.b.shape[1]
    for name, start in (("A", ridge * np.eye(d)), ("b", 0.0), ("pulls", 0)):
        ours, theirs = getattr(local, name)[counted], getattr(pool, name)
        summed, size = np.zeros(theirs.shape), np.zeros(len(theirs))
        np.add.at(summed, labels[counted], ours - start)
        np.add.at(size, labels[counted], np.abs(ours).reshape(len(ours), -1).max(axis=1, initial=0.0))
        gap = np.abs(theirs - start - summed).reshape(len(theirs), -1).max(axis=1)
        if (gap > 1e-9 * (size + ridge)).any():
            return f"pool.{name} is not the sum over the members of each cluster"
    return ""


@compiled
def add_sample(stats: Statistics, row: int, x: Vector, reward: float) -> float:
    """Let one row take in one observation; return `1 + xᵀ A⁻¹ x`, with A as it was before."""
    d = x.shape[0]
    A, A_inv, b = stats.A[row], stats.A_inv[row], stats.b[row]
    stats.pulls[row] += 1
    stats.traces[row, 0] += dot(x, x)
    if is_steep(stats, row):
        stats.traces[row, 1] = trace(A_inv)
        if is_steep(stats, row):
            return add_sample_twofold(stats, row, x, reward)
    for m in range(d):
        factor = x[m]
        for column in range(d):
            A[m, column] += factor * x[column]
        b[m] += reward * factor
    growth = add_sample_to_inverse(A_inv, x, stats.scratch[3 * d])
    if stats.pulls[row] % REFRESH_EVERY == 0 or growth > STEEP:
        solve_row(stats, row)
    else:
        stats.logdet_A[row] += math.log(growth)
        multiply_symmetric(A_inv, b, stats.theta_hat[row])
    return growth


@compiled
def add_sample_twofold(stats: Statistics, row: int, x: Vector, reward: float) -> float:
    """The rest of `add_sample` for a row that is steep, or would be with this sample."""
    for m in range(x.shape[0]):
        stats.b[row, m] += reward * x[m]
    before = stats.logdet_A[row]
    add_outer(stats.A[row], stats.tail[row], x, 1.0)
    solve_row(stats, row)
    return math.exp(stats.logdet_A[row] - before)


@compiled
def amend_row(stats: Statistics, row: int, x: Vector, change: float, removes: bool) -> None:
    """Add `change·x` to b; if it `removes` the sample x, take it out of A; compute the rest anew."""
    for m in range(x.shape[0]):
        stats.b[row, m] += change * x[m]
    if removes:  # with twice the digits: what is left may be small beside what goes
        add_outer(stats.A[row], stats.tail[row], x, -1.0)
        stats.pulls[row] -= 1
    solve_row(stats, row)


def lacks(stats: Statistics, row: int, ridge: float, x: Vector) -> bool:
    """Whether a row cannot have learned from x: less than nothing would be left of its other samples."""
    if stats.pulls[row] == 0:
        return True
    left = stats.A[row] - np.outer(x, x) - ridge * np.eye(len(x))
    rounding = 1e-9 * (np.trace(stats.A[row]) + x @ x)
    others = stats.pulls[row] > 1
    return bool(np.linalg.eigvalsh(left)[0] < -rounding or (not others and np.abs(left).max() > rounding))


@compiled
def solve_row(stats: Statistics, row: int) -> None:
    """Compute inverse, log-determinant and estimate of a row from its A and b."""
    d = stats.b.shape[1]
    L, L_inv = stats.scratch[:d], stats.scratch[d : 2 * d]
    cholesky(stats.A[row], L)
    inverse_from_cholesky(L, stats.A_inv[row], L_inv)
    stats.traces[row, 0] = trace(stats.A[row])
    stats.traces[row, 1] = trace(stats.A_inv[row])
    if is_steep(stats, row):
        factor_steep(stats, row)
        inverse_from_cholesky(L, stats.A_inv[row], L_inv)
        stats.traces[row, 1] = trace(stats.A_inv[row])
    stats.logdet_A[row] = logdet_from_cholesky(L)
    # Not A⁻¹ b: that multiplies the rounding of the inverse, large where A is small, by a b where A is large.
    solve_cholesky(L, stats.b[row], stats.theta_hat[row])


@compiled
def is_steep(stats: Statistics, row: int) -> bool:
    """Whether the A of a row is ill-conditioned, as far as its traces tell."""
    return bool(stats.traces[row, 0] * stats.traces[row, 1] > ILL_CONDITIONED)


@compiled
def factor_steep(stats: Statistics, row: int) -> None:
    """Leave the factor of a row's A, tail part included, in the first d rows of the scratch."""
    d = stats.b.shape[1]
    L, tail = stats.scratch[:d], stats.scratch[2 * d : 3 * d]
    for m in range(d):
        for column in range(m + 1):
            L[m, column] = stats.A[row, m, column]
    unpack(stats.tail[row], 0.0, tail)
    cholesky_twofold(L, tail)


@compiled
def factor_row(stats: Statistics, row: int) -> None:
    """Leave the factor of a row's A in the first d rows of the scratch."""
    if is_steep(stats, row):
        factor_steep(stats, row)
    else:
        cholesky(stats.A[row], stats.scratch[: stats.b.shape[1]])


@compiled
def moments_of_row(stats: Statistics, row: int, x: Vector) -> tuple[float, float]:
    """Mean and variance of `x·θ` under one row, with noise 1: `x·θ̂` and `xᵀA⁻¹x`."""
    d = stats.b.shape[1]
    factor_row(stats, row)
    z = stats.scratch[3 * d]
    solve_lower(stats.scratch[:d], x, z)
    return dot(x, stats.theta_hat[row]), dot(z, z)


@compiled
def best_arm_of_row(stats: Statistics, row: int, arms: Matrix, width: float, out: Matrix) -> int:
    """LinUCB on one row: the first arm with the largest score `θ̂·x + width √(xᵀ A⁻¹ x)`.

    The two parts of each score are left in `out` (see `shoal.core.kernels.ucb`).
    """
    if not is_steep(stats, row):
        return best_arm(stats.theta_hat[row], stats.A_inv[row], arms, width, out)
    # A large arm in a direction that is well known: the rounding of the inverse would be all of its bonus.
    factor_steep(stats, row)
    d = stats.b.shape[1]
    L, z = stats.scratch[:d], stats.scratch[3 * d]
    return best_arm_of_width(stats.theta_hat[row], L, arms, width, False, z, out)


@compiled
def pool_rows(local: Statistics, members: Booleans, ridge: float, pool: Statistics, row: int) -> None:
    """Pool the members into `pool[row]`: `A = ridge·I + Σ (A_j − ridge·I)`, `b = Σ b_j`."""
    n, d = local.b.shape
    A_local = local.A.reshape(n, d * d)
    A = pool.A[row].reshape(d * d)
    b = pool.b[row]
    A[:] = 0.0
    b[:] = 0.0
    pool.tail[row] = 0.0
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
    if is_steep(pool, row):
        sum_twofold(local, members, ridge, pool, row)
        solve_row(pool, row)


@compiled
def sum_twofold(local: Statistics, members: Booleans, ridge: float, pool: Statistics, row: int) -> None:
    """Sum the members' A, tail parts included, into those of `pool[row]`."""
    n, d = local.b.shape
    A, tail = pool.scratch[:d], pool.scratch[2 * d : 3 * d]
    A[:] = 0.0
    tail[:] = 0.0
    add_to_diagonal(ridge, A, tail)
    for j in range(n):
        if members[j]:
            add_scaled(1.0, local.A[j], local.tail[j], A, tail)
            add_to_diagonal(-ridge, A, tail)
    position = 0
    for m in range(d):
        for column in range(m + 1):
            pool.A[row, m, column] = A[m, column]
            pool.A[row, column, m] = A[m, column]
            pool.tail[row, position] = tail[m, column]
            position += 1


@compiled
def add_own(local: Statistics, agent: int, ridge: float, total: Vector) -> None:
    """Add an agent's own packed sums to those of a pool."""
    d = local.b.shape[1]
    position = 0
    for row in range(d):
        for column in range(row + 1):
            total[position] += local.A[agent, row, column]
            position += 1
        total[position - 1] -= ridge
    for m in range(d):
        total[position + m] += local.b[agent, m]


@compiled
def forget_row(stats: Statistics, row: int, ridge: float) -> None:
    """Make a row one that has seen nothing."""
    d = stats.b.shape[1]
    stats.A[row] = 0.0
    stats.tail[row] = 0.0
    for m in range(d):
        stats.A[row, m, m] = ridge
    stats.b[row] = 0.0
    stats.pulls[row] = 0
    solve_row(stats, row)
