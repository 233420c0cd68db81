"""Do two scaled confidence ellipsoids share a point? The test Ψ of Cherkaoui, Barlier and Colin (2025).

With c the squared (or, by default, plain) radius, the agents are separated iff `max_s f(s) > threshold`,
`f(s) = min_z (1−s) ‖z−θ_i‖²_{A_i}/c_i + s ‖z−θ_j‖²_{A_j}/c_j`. One Cholesky factorisation at s gives f, its
slope and the minimiser z. The lemmas are in docs/algorithms.md.

Search variable: `ratio = s/(1−s)`, so that optima close to 0 or 1 lose no digits.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np

from shoal.core.fields import DIM, TRIANGLE, scratch
from shoal.core.jit.compiled import compiled
from shoal.core.jit.pinned import pin
from shoal.core.kernels.linalg import (
    cholesky,
    dot,
    dot_compensated,
    multiply_symmetric,
    solve_cholesky,
    solve_lower,
    trace,
)
from shoal.core.kernels.twofold import add_scaled, cholesky_twofold, multiply_tail
from shoal.core.types import Integers, Matrix, Tensor, Vector

EPS = 2.220446049250313e-16
ILL_CONDITIONED = 1e-4
"""Ratio of Cholesky pivots (about the condition number to the power −½) below which solutions are refined."""
SAFETY = 1e-9
"""Relative distance from the threshold within which only the exact test decides."""
TINY = 1e-300
WELL_CONDITIONED = 1e-3
"""The same ratio, from which on pairs may be probed together."""
CLEAR = 1e-5
"""Relative distance from the threshold beyond which rounding of a well-conditioned probe cannot matter."""
LANES = 16
"""Pairs probed at once."""
UNDECIDED, APART, TOGETHER = range(3)
MAX_ITERATIONS = 200
V, Y, W, A_W, A_Y, RHS, Z = range(7)  # rows of Scratch.vectors


@compiled
def squared_width(noise_scale: float, confidence: float, logdet_A: float) -> float:
    """`(β − √ridge·S)² = R² (2 ln(1/δ) + ln det A − d ln ridge)`; `confidence` is its constant part."""
    # Rounding may take the sum, positive in exact arithmetic, to zero when δ is close to one.
    return noise_scale**2 * max(confidence + logdet_A, 1e-15)


class Scratch(NamedTuple):
    """Work space of the test for dimension d: nothing in it outlives a call."""

    vectors: Annotated[Matrix, scratch(7, DIM)]  # v, y, w, A_i w, A_j y, a right-hand side, z
    L: Annotated[Matrix, scratch(DIM, DIM)]
    tail: Annotated[Matrix, scratch(DIM, DIM)]  # what the floats of L lack


def make_scratch(dim: int) -> Scratch:
    """Allocate work space for dimension `dim`, pinned: the test is compiled for that of a policy's state."""
    scratch: Scratch = pin(Scratch(np.zeros((7, dim)), np.zeros((dim, dim)), np.zeros((dim, dim))))
    return scratch


@compiled
def probe(
    A_i: Matrix,
    tail_i: Vector,
    c_i: float,
    A_j: Matrix,
    tail_j: Vector,
    c_j: float,
    ratio: float,
    precise: bool,
    scratch: Scratch,
) -> tuple[float, float, float]:
    """Minimise over z at one s; return `q_i, q_j, k`; leave `y = z − θ_j` and `w = θ_i − z` in the scratch.

    `q_i = ‖w‖²_{A_i}/c_i`, `q_j = ‖y‖²_{A_j}/c_j`; k is the curvature, `‖L⁻¹ A_j y‖² c_i/c_j²`, with which
    `d q_j/d ln ratio = −2 ratio k` and `d q_i/d ln ratio = 2 ratio² k`.
    """
    vectors, L, tail = scratch.vectors, scratch.L, scratch.tail
    v, y, w, A_w, A_y, rhs = vectors[V], vectors[Y], vectors[W], vectors[A_W], vectors[A_Y], vectors[RHS]
    d = v.shape[0]
    # The minimum over z solves (A_i + r A_j) y = A_i v with y = z − θ_j: f's gradient in z is 0.
    r = ratio * c_i / c_j
    for row in range(d):
        for column in range(row + 1):
            L[row, column] = A_i[row, column] + r * A_j[row, column]
    condition = cholesky(L, L)
    if condition < ILL_CONDITIONED:
        # The floats of A_i + r A_j may have lost what is small in one of the two.
        L[:] = 0.0
        tail[:] = 0.0
        add_scaled(1.0, A_i, tail_i, L, tail)
        add_scaled(r, A_j, tail_j, L, tail)
        cholesky_twofold(L, tail)
    multiply_symmetric(A_i, v, rhs)
    solve_cholesky(L, rhs, y)
    for m in range(d):
        w[m] = v[m] - y[m]
    if precise or condition < ILL_CONDITIONED:
        # Iterative refinement: the stationarity A_i w = r A_j y, with residuals in doubled precision.
        for _ in range(4):
            for m in range(d):
                rhs[m] = dot_compensated(A_i[m], w) - r * dot_compensated(A_j[m], y)
                rhs[m] += multiply_tail(tail_i, w, m) - r * multiply_tail(tail_j, y, m)
            solve_cholesky(L, rhs, rhs)
            for m in range(d):
                y[m] += rhs[m]
                w[m] = v[m] - y[m]
        for m in range(d):
            A_w[m] = dot_compensated(A_i[m], w) + multiply_tail(tail_i, w, m)
            A_y[m] = dot_compensated(A_j[m], y) + multiply_tail(tail_j, y, m)
        q_i = dot_compensated(w, A_w) / c_i
        q_j = dot_compensated(y, A_y) / c_j
    else:
        multiply_symmetric(A_i, w, A_w)
        multiply_symmetric(A_j, y, A_y)
        q_i = dot(w, A_w) / c_i
        q_j = dot(y, A_y) / c_j
    # y changes with r as −(A_i + r A_j)⁻¹ A_j y, so that one triangular solve gives all of the curvature.
    solve_lower(L, A_y, rhs)
    return q_i, q_j, dot(rhs, rhs) * c_i / (c_j * c_j)


@compiled
def search(
    theta_i: Vector,
    A_i: Matrix,
    tail_i: Vector,
    c_i: float,
    theta_j: Vector,
    A_j: Matrix,
    tail_j: Vector,
    c_j: float,
    threshold: float,
    decide: bool,
    precise: bool,
    scratch: Scratch,
) -> tuple[float, float, bool]:
    """Maximise f; return its value, the s that attains it, and whether it exceeds the threshold.

    `tail_i` and `tail_j` are what A_i and A_j lack of the exact sums, as lower triangles (`Statistics.tail`).
    With `decide`, stop as soon as the verdict is certain; the value is then a lower bound of the
    maximum. When the verdict is "not separated", `scratch.vectors[Z]` holds the point found (nan where the
    tangents, not a point, decided).
    """
    vectors = scratch.vectors
    v, y, A_w, A_y, z = vectors[V], vectors[Y], vectors[A_W], vectors[A_Y], vectors[Z]
    d = theta_i.shape[0]
    # nan is what callers take for "no point": it fails every comparison, so it can never pass for a witness.
    z[:] = np.nan
    for m in range(d):
        v[m] = theta_i[m] - theta_j[m]
    multiply_symmetric(A_i, v, A_w)
    multiply_symmetric(A_j, v, A_y)
    a = dot(v, A_w)
    b = dot(v, A_y)
    if not (a > 0.0 and b > 0.0):
        v_sq = dot(v, v)
        if v_sq == 0.0:
            for m in range(d):
                z[m] = theta_j[m]
            return 0.0, 0.5, False
        a = max(a, v_sq * EPS * trace(A_i))  # rounding made a positive form vanish: any start will do
        b = max(b, v_sq * EPS * trace(A_j))
    # On the segment between the centres the two terms of f are equal at this share: a good z to start from,
    # and exactly the best one where A_i and A_j are multiples of each other.
    root_i = math.sqrt(c_i / a)
    root_j = math.sqrt(c_j / b)
    share = root_i / (root_i + root_j)
    if decide:
        # Lemma 2: restrict z to the segment between the centres. v·v bounds the rounding of a and b.
        margin = 16.0 * d * EPS * dot(v, v)
        bound = (
            math.sqrt(c_i / (a + margin * trace(A_i))) + math.sqrt(c_j / (b + margin * trace(A_j)))
        ) ** -2
        if bound <= threshold * (1.0 - SAFETY):
            for m in range(d):
                z[m] = theta_i[m] - share * v[m]
            return 0.0, 1.0 - share, False

    # In ln(s / (1 − s)), the search is symmetric in i and j, and s near 0 or 1 keeps its digits.
    log_ratio = math.log(root_j / root_i)
    low, high = -math.inf, math.inf
    low_i, low_j, high_i, high_j = 0.0, 0.0, 0.0, 0.0  # q_i and q_j at the ends of the bracket: its tangents
    best, best_s = 0.0, 0.5
    for _ in range(MAX_ITERATIONS):
        ratio = math.exp(log_ratio)
        q_i, q_j, curvature = probe(A_i, tail_i, c_i, A_j, tail_j, c_j, ratio, precise, scratch)
        f = (q_i + ratio * q_j) / (1.0 + ratio)
        if f > best:
            best, best_s = f, ratio / (1.0 + ratio)
        if decide:
            # Any s gives a lower bound of the maximum, any z an upper one: either may decide early.
            if f > threshold:
                return f, best_s, True
            if max(q_i, q_j) <= threshold:
                # A point on the very border would fail as a witness after the next rounding, so none is kept.
                if max(q_i, q_j) <= threshold * (1.0 - SAFETY):
                    for m in range(d):
                        z[m] = theta_j[m] + y[m]
                return best, best_s, False
        # f is concave in s with slope q_j − q_i (envelope theorem): the sign says where the maximum is.
        if q_j > q_i:
            low, low_i, low_j = log_ratio, q_i, q_j
        else:
            high, high_i, high_j = log_ratio, q_i, q_j
        ceiling = _ceiling(low, low_i, low_j, high, high_i, high_j)
        if (decide and ceiling <= threshold) or ceiling - best <= 4.0 * EPS * best:
            break
        log_ratio = _next(log_ratio, ratio, q_i, q_j, curvature, low, high)
        if not low < log_ratio < high:
            break  # the bracket has closed to neighbouring numbers
    return best, best_s, best > threshold


class ProbeBatch(NamedTuple):
    """Work space of `probe_many` for dimension d; the lanes, one for each pair, come last."""

    vectors: Annotated[Tensor, scratch(4, DIM, LANES)]  # v, y, w, A_i v and then A_i w
    A: Annotated[Matrix, scratch(TRIANGLE, LANES)]  # lower triangles of A_j, row by row
    L: Annotated[Matrix, scratch(TRIANGLE, LANES)]
    scalars: Annotated[Matrix, scratch(7, LANES)]
    verdicts: Annotated[Integers, scratch(LANES)]


@compiled
def probe_many(
    i: int,
    others: Integers,
    theta_hat: Matrix,
    A: Tensor,
    c: Vector,
    threshold: float,
    batch: ProbeBatch,
) -> None:
    """The first step of `search` for up to LANES pairs at once; write what it decides into `batch.verdicts`.

    Only what is clear by a margin that no rounding reaches is decided: APART, TOGETHER (then θ̂_j + y is a
    common point), else UNDECIDED.
    """
    v, y, w, A_w = batch.vectors[0], batch.vectors[1], batch.vectors[2], batch.vectors[3]
    a, b, c_j, ratio, low, high, work = (
        batch.scalars[0], batch.scalars[1], batch.scalars[2], batch.scalars[3], batch.scalars[4],
        batch.scalars[5], batch.scalars[6],
    )  # fmt: skip
    A_i, c_i, L, d = A[i], c[i], batch.L, theta_hat.shape[1]
    # Pairs side by side, the lane as the last axis: each inner loop is one vector instruction per operation.
    for lane in range(LANES):
        j = others[min(lane, others.shape[0] - 1)]  # lanes that are left over repeat the last pair
        c_j[lane] = c[j]
        position = 0
        for row in range(d):
            v[row, lane] = theta_hat[i, row] - theta_hat[j, row]
            for column in range(row + 1):
                batch.A[position + column, lane] = A[j, row, column]
            position += row + 1

    multiply_lanes(A_i, v, A_w)
    # vᵀA_j v from the lower triangle alone: twice what is below the diagonal, and the diagonal.
    a[:] = 0.0
    b[:] = 0.0
    position = 0
    for row in range(d):
        work[:] = 0.0
        for column in range(row):
            for lane in range(LANES):
                work[lane] += batch.A[position + column, lane] * v[column, lane]
        position += row + 1
        for lane in range(LANES):
            a[lane] += v[row, lane] * A_w[row, lane]
            b[lane] += v[row, lane] * (2.0 * work[lane] + batch.A[position - 1, lane] * v[row, lane])
    for lane in range(LANES):
        # TINY lets v = 0 pass: the ratio is 1 then, the forms are 0, and the pair is together.
        ratio[lane] = math.sqrt((a[lane] * c_j[lane] + TINY) / (b[lane] * c_i + TINY))
        work[lane] = ratio[lane] * c_i / c_j[lane]
    position = 0
    for row in range(d):
        for column in range(row + 1):
            for lane in range(LANES):
                L[position + column, lane] = A_i[row, column] + work[lane] * batch.A[position + column, lane]
        position += row + 1
    cholesky_lanes(L, d, low, high)
    solve_lanes(L, A_w, y)
    for row in range(d):
        for lane in range(LANES):
            w[row, lane] = v[row, lane] - y[row, lane]
    multiply_lanes(A_i, w, A_w)
    a[:] = 0.0
    b[:] = 0.0
    for row in range(d):  # A_i w = r A_j y: one product serves both forms
        for lane in range(LANES):
            a[lane] += w[row, lane] * A_w[row, lane]
            b[lane] += y[row, lane] * A_w[row, lane]
    for lane in range(others.shape[0]):
        q_i = a[lane] / c_i
        q_j = b[lane] / (work[lane] * c_j[lane])
        batch.verdicts[lane] = UNDECIDED
        # Pivots far apart: the factor may have lost the digits that the margin CLEAR counts on.
        if low[lane] >= WELL_CONDITIONED * high[lane]:
            if (q_i + ratio[lane] * q_j) / (1.0 + ratio[lane]) > threshold * (1.0 + CLEAR):
                batch.verdicts[lane] = APART
            elif max(q_i, q_j) <= threshold * (1.0 - CLEAR):
                batch.verdicts[lane] = TOGETHER


@compiled
def multiply_lanes(A: Matrix, vectors: Matrix, out: Matrix) -> None:
    """`A v` for every lane v."""
    for row in range(A.shape[0]):
        for lane in range(LANES):
            out[row, lane] = A[row, 0] * vectors[0, lane]
        for column in range(1, A.shape[0]):
            for lane in range(LANES):
                out[row, lane] += A[row, column] * vectors[column, lane]


@compiled
def cholesky_lanes(L: Matrix, d: int, low: Vector, high: Vector) -> None:
    """Factor every lane's matrix in place, with the pivots' inverses on the diagonal.

    Leaves the least and the largest of these inverses in `low` and `high`.
    """
    low[:] = math.inf
    high[:] = 0.0
    start = 0
    for row in range(d):
        other = 0
        for column in range(row + 1):
            for k in range(column):
                for lane in range(LANES):
                    L[start + column, lane] -= L[start + k, lane] * L[other + k, lane]
            if column < row:
                for lane in range(LANES):
                    L[start + column, lane] *= L[other + column, lane]
            other += column + 1
        for lane in range(LANES):
            # Kept inverted: a division takes as long as several products, and each pivot divides often.
            inverse = 1.0 / math.sqrt(L[start + row, lane])
            L[start + row, lane] = inverse
            low[lane] = min(low[lane], inverse)
            high[lane] = max(high[lane], inverse)
        start += row + 1


@compiled
def solve_lanes(L: Matrix, rhs: Matrix, out: Matrix) -> None:
    """Solve `L Lᵀ out = rhs` in every lane, L as `cholesky_lanes` leaves it."""
    d = rhs.shape[0]
    start = 0
    for row in range(d):
        for lane in range(LANES):
            out[row, lane] = rhs[row, lane]
        for column in range(row):
            for lane in range(LANES):
                out[row, lane] -= L[start + column, lane] * out[column, lane]
        for lane in range(LANES):
            out[row, lane] *= L[start + row, lane]
        start += row + 1
    for row in range(d - 1, -1, -1):
        start -= row + 1
        for lane in range(LANES):
            out[row, lane] *= L[start + row, lane]
        for column in range(row):
            for lane in range(LANES):
                out[column, lane] -= L[start + column, lane] * out[row, lane]


@compiled
def _ceiling(low: float, low_i: float, low_j: float, high: float, high_i: float, high_j: float) -> float:
    """Largest value that two tangents of the concave f leave possible."""
    if low == -math.inf:
        return max(high_i, high_j)
    if high == math.inf:
        return max(low_i, low_j)
    # The tangent at s has the values q_i at 0 and q_j at 1: they meet where both are equally high.
    rise = low_j - low_i
    fall = high_i - high_j
    if not rise + fall > 0.0:
        return max(low_i, low_j)
    s = min(max((high_i - low_i) / (rise + fall), 0.0), 1.0)
    return min((1.0 - s) * low_i + s * low_j, (1.0 - s) * high_i + s * high_j)


@compiled
def _next(
    log_ratio: float, ratio: float, q_i: float, q_j: float, curvature: float, low: float, high: float
) -> float:
    """Newton's step on ½ ln(q_i/q_j), which increases with ln ratio; bisection if it leaves the bracket."""
    slope = curvature * ratio * (q_i + ratio * q_j)
    if slope > 0.0 and q_i > 0.0 and q_j > 0.0:
        # Newton on the logarithm: q_i/q_j is close to a power of the ratio, so that this is nearly a line.
        step = -0.5 * math.log(q_i / q_j) * q_i * q_j / slope
        if abs(step) < 30.0 and low < log_ratio + step < high:
            return log_ratio + step
    if low == -math.inf:
        return log_ratio - 2.0
    if high == math.inf:
        return log_ratio + 2.0
    return 0.5 * (low + high)


@compiled
def excess_at(theta: Vector, A: Matrix, points: Matrix, offsets: Matrix, out: Vector) -> None:
    """Write `‖p−θ‖²_A` of the first n columns p of `points` into `out` (n,); `offsets` (d, n) is scratch.

    Here and below matrices may have more columns than that.
    """
    d, n = points.shape[0], out.shape[0]
    for m in range(d):
        center = theta[m]
        for j in range(n):
            offsets[m, j] = points[m, j] - center
    for j in range(n):
        out[j] = 0.0
    for row in range(d):
        # Points in the inner loop, where they lie side by side: it vectorises, and A is read once in all.
        weight = A[row, row]
        for j in range(n):
            out[j] += weight * offsets[row, j] * offsets[row, j]
        for column in range(row):
            weight = 2.0 * A[row, column]
            for j in range(n):
                out[j] += weight * offsets[row, j] * offsets[column, j]


@compiled
def add_rounding(A: Matrix, offsets: Matrix, out: Vector) -> None:
    """Add to each form `vᵀ A v`, v a column of `offsets` (d, n), what rounding may have taken from it."""
    d, n = offsets.shape[0], out.shape[0]
    scale = 16.0 * d * EPS * trace(A)
    for row in range(d):
        for j in range(n):
            out[j] += scale * offsets[row, j] * offsets[row, j]


@compiled
def excess_grows(
    points: Matrix, x: Vector, reward: float, shrink: float, fitted: Vector, excess: Vector
) -> None:
    """Bring `‖p−θ̂‖²_A` of every column p of `points` up to date after a sample; `fitted` (n,) is scratch.

    It is the regularised squared error of p minus the least one, so it grows by `(y − x·p)² − shrink`, where
    `shrink = (y − x·θ̂)² / (1 + xᵀ A⁻¹ x)`, θ̂ and A before the sample, is the growth of the least one.
    """
    d, n = points.shape[0], excess.shape[0]
    for j in range(n):
        fitted[j] = 0.0
    for m in range(d):
        factor = x[m]
        for j in range(n):
            fitted[j] += factor * points[m, j]
    for j in range(n):
        excess[j] += (reward - fitted[j]) ** 2 - shrink


@compiled
def safe_limit(limit: float, A: Matrix, ridge: float) -> float:
    """What a computed form may be for the true one to be at most `limit`: A ⪰ ridge·I bounds its rounding."""
    return float(limit * (1.0 - SAFETY - 16.0 * A.shape[0] * EPS * trace(A) / ridge))
