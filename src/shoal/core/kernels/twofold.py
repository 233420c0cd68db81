"""Sums and Cholesky factors with twice the digits: a number is a float and a tail, what that float lacks.

With arms of squared length 1e14 and a ridge of 1, `A = ridge·I + Σ x xᵀ` in floats keeps the ridge to two
digits, and after a hundred such samples not at all: in the directions that nobody has explored, bonus,
log-determinant and test would be noise. What the floats of A lose is therefore kept beside them, wherever A
is ill-conditioned. The factor of such an A, computed with twice the digits, may be rounded to floats: its
smallest singular value is the root of A's smallest eigenvalue, so that rounding costs it half as many digits.
"""

import math

from shoal.core.jit.compiled import compiled
from shoal.core.types import Matrix, Vector

SPLIT = 134217729.0
"""2²⁷ + 1, which splits a float into two halves of 26 bits (Dekker 1971)."""
LEAST = 1e-30
"""Least pivot, relative to the diagonal: what is smaller is rounding (matrices are positive definite)."""


@compiled
def two_sum(a: float, b: float) -> tuple[float, float]:
    """`a + b` rounded, and what the rounding lost, exactly."""
    total = a + b
    z = total - a
    return total, (a - (total - z)) + (b - z)


@compiled
def two_product(a: float, b: float) -> tuple[float, float]:
    """`a·b` rounded, and what the rounding lost, exactly."""
    product = a * b
    t = SPLIT * a
    a_high = t - (t - a)
    a_low = a - a_high
    t = SPLIT * b
    b_high = t - (t - b)
    b_low = b - b_high
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


@compiled
def add_outer(A: Matrix, tail: Vector, x: Vector, sign: float) -> None:
    """Add `sign·x xᵀ`, sign ±1, to the symmetric `A + tail`; `tail` is a lower triangle, row by row."""
    position = 0
    for row in range(x.shape[0]):
        for column in range(row + 1):
            product, lost = two_product(sign * x[row], x[column])
            total, rounding = two_sum(A[row, column], product)
            high, rest = two_sum(total, tail[position] + (rounding + lost))
            A[row, column] = high
            A[column, row] = high
            tail[position] = rest
            position += 1


@compiled
def add_scaled(factor: float, A: Matrix, tail: Vector, out: Matrix, out_tail: Matrix) -> None:
    """Add `factor·(A + tail)` to the lower triangle of `out + out_tail`, both (d, d)."""
    position = 0
    for row in range(A.shape[0]):
        for column in range(row + 1):
            product, lost = two_product(factor, A[row, column])
            total, rounding = two_sum(out[row, column], product)
            rest = out_tail[row, column] + (rounding + lost + factor * tail[position])
            out[row, column], out_tail[row, column] = two_sum(total, rest)
            position += 1


@compiled
def add_to_diagonal(value: float, out: Matrix, out_tail: Matrix) -> None:
    """Add a number to each entry on the diagonal of `out + out_tail`."""
    for m in range(out.shape[0]):
        total, rounding = two_sum(out[m, m], value)
        out[m, m], out_tail[m, m] = two_sum(total, out_tail[m, m] + rounding)


@compiled
def multiply_tail(tail: Vector, v: Vector, row: int) -> float:
    """Entry `row` of `tail v` for a symmetric matrix given by its lower triangle."""
    total = 0.0
    start = row * (row + 1) // 2
    for column in range(row + 1):
        total += tail[start + column] * v[column]
    for below in range(row + 1, v.shape[0]):
        total += tail[below * (below + 1) // 2 + row] * v[below]
    return total


@compiled
def cholesky_twofold(L: Matrix, tail: Matrix) -> float:
    """Replace the lower triangle of `L + tail` by its Cholesky factor; return smallest over largest pivot.

    `linalg.cholesky` with twice the digits. `L`, zero above the diagonal, is the factor rounded.
    """
    d = L.shape[0]
    smallest = math.inf
    largest = 0.0
    for column in range(d):
        least = LEAST * L[column, column]
        for row in range(column, d):
            # Subtract what earlier columns explain; `rest` gathers what is below the last digit of `value`.
            value, rest = L[row, column], tail[row, column]
            for m in range(column):
                product, lost = two_product(L[row, m], L[column, m])
                lost += L[row, m] * tail[column, m] + tail[row, m] * L[column, m]
                value, rounding = two_sum(value, -product)
                rest += rounding - lost
            value, rest = two_sum(value, rest)
            if row == column:
                if not value > least:
                    value, rest = least, 0.0
                root = math.sqrt(value)
                product, lost = two_product(root, root)
                root_rest = ((value - product) - lost + rest) / (2.0 * root)  # Newton's step
                L[row, row], tail[row, row] = root, root_rest
                smallest, largest = min(smallest, root), max(largest, root)
            else:
                quotient = value / root
                product, lost = two_product(quotient, root)
                tail[row, column] = ((value - product) - lost + rest - quotient * root_rest) / root
                L[row, column] = quotient
                L[column, row] = 0.0
    return smallest / largest
