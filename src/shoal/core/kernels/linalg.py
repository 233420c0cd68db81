"""Small dense symmetric positive-definite linear algebra, written as loops that allocate nothing."""

import math

import numpy as np

from shoal.core.jit.compiled import compiled
from shoal.core.kernels.bits import FULL, WORD
from shoal.core.types import Integers, Matrix, Vector


@compiled
def cholesky(A: Matrix, L: Matrix) -> float:
    """Write the lower Cholesky factor of `A` into `L`; return smallest over largest pivot.

    Only the lower triangle of `A` is read; `L` may be `A`. A pivot that rounding has taken below the last
    digit of its diagonal entry is raised to it: matrices here are positive definite by construction.
    """
    d = A.shape[0]
    smallest = np.inf
    largest = 0.0
    for column in range(d):
        pivot = A[column, column]
        least = 2.220446049250313e-16 * pivot
        for m in range(column):
            pivot -= L[column, m] * L[column, m]
        root = math.sqrt(max(pivot, least))
        smallest = min(smallest, root)
        largest = max(largest, root)
        L[column, column] = root
        scale = 1.0 / root
        for row in range(column + 1, d):
            value = A[row, column]
            for m in range(column):
                value -= L[row, m] * L[column, m]
            L[row, column] = value * scale
            L[column, row] = 0.0
    return smallest / largest


@compiled
def solve_lower(L: Matrix, rhs: Vector, out: Vector) -> None:
    """Solve `L out = rhs`; `out` may be `rhs`."""
    for row in range(L.shape[0]):
        value = rhs[row]
        for m in range(row):
            value -= L[row, m] * out[m]
        out[row] = value / L[row, row]


@compiled
def solve_cholesky(L: Matrix, rhs: Vector, out: Vector) -> None:
    """Solve `L Lᵀ out = rhs`; `out` may be `rhs`."""
    d = L.shape[0]
    solve_lower(L, rhs, out)
    for row in range(d - 1, -1, -1):
        out[row] /= L[row, row]
        for m in range(row):
            out[m] -= L[row, m] * out[row]


@compiled
def back_substitute(L: Matrix, y: Vector, theta: Vector) -> None:
    """Solve `Lᵀ theta = y`; `theta` may be `y`."""
    for row in range(L.shape[0] - 1, -1, -1):
        value = y[row]
        for m in range(row + 1, L.shape[0]):
            value -= L[m, row] * theta[m]
        theta[row] = value / L[row, row]


@compiled
def inverse_from_cholesky(L: Matrix, A_inv: Matrix, L_inv: Matrix) -> None:
    """Write `(L Lᵀ)⁻¹` into `A_inv`, exactly symmetric; `L_inv` is scratch."""
    d = L.shape[0]
    for row in range(d):
        scale = 1.0 / L[row, row]
        for column in range(d):
            L_inv[row, column] = 0.0
        L_inv[row, row] = 1.0
        for m in range(row):
            factor = L[row, m]
            for column in range(m + 1):
                L_inv[row, column] -= factor * L_inv[m, column]
        for column in range(row + 1):
            L_inv[row, column] *= scale
    A_inv[:] = 0.0
    for m in range(d):
        for row in range(m + 1):
            factor = L_inv[m, row]
            for column in range(row + 1):
                A_inv[row, column] += factor * L_inv[m, column]
    for row in range(d):
        for column in range(row):
            A_inv[column, row] = A_inv[row, column]


@compiled
def logdet_from_cholesky(L: Matrix) -> float:
    """log det of `L Lᵀ`."""
    total = 0.0
    for m in range(L.shape[0]):
        total += math.log(L[m, m])
    return 2.0 * total


@compiled
def multiply_symmetric(A: Matrix, v: Vector, out: Vector) -> None:
    """Write `A v` into `out` for a symmetric `A`."""
    d = A.shape[0]
    for column in range(d):
        out[column] = A[0, column] * v[0]
    for row in range(1, d):
        factor = v[row]
        for column in range(d):
            out[column] += A[row, column] * factor


@compiled
def dot(u: Vector, v: Vector) -> float:
    """Inner product."""
    total = 0.0
    for m in range(u.shape[0]):
        total += u[m] * v[m]
    return total


@compiled
def add_sample_to_inverse(A_inv: Matrix, x: Vector, A_inv_x: Vector) -> float:
    """Replace `A⁻¹` by `(A + x xᵀ)⁻¹` (Sherman–Morrison); return `1 + xᵀ A⁻¹ x`, the growth of det A."""
    d = x.shape[0]
    multiply_symmetric(A_inv, x, A_inv_x)
    growth = 1.0 + dot(x, A_inv_x)
    for row in range(d):
        factor = A_inv_x[row] / growth
        for column in range(row + 1):
            A_inv[row, column] -= factor * A_inv_x[column]
    for row in range(d):
        for column in range(row):
            A_inv[column, row] = A_inv[row, column]
    return growth


@compiled
def trace(A: Matrix) -> float:
    """Sum of the diagonal."""
    total = 0.0
    for m in range(A.shape[0]):
        total += A[m, m]
    return total


@compiled
def dot_compensated(u: Vector, v: Vector) -> float:
    """Inner product as if computed in twice the precision (Ogita, Rump and Oishi 2005, algorithm Dot2)."""
    total = 0.0
    error = 0.0
    for m in range(u.shape[0]):
        a = u[m]
        b = v[m]
        product = a * b
        # Dekker's product: split each factor into two halves of 26 bits.
        t = 134217729.0 * a
        a_high = t - (t - a)
        a_low = a - a_high
        t = 134217729.0 * b
        b_high = t - (t - b)
        b_low = b - b_high
        product_error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
        new_total = total + product
        z = new_total - total
        sum_error = (total - (new_total - z)) + (product - z)
        total = new_total
        error += product_error + sum_error
    return total + error


@compiled
def add_packed(packed: Vector, x: Vector, reward: float) -> None:
    """Add a sample to packed sums: the lower triangle of `Σ x xᵀ`, row by row, then `Σ y x`."""
    d = x.shape[0]
    position = 0
    for row in range(d):
        factor = x[row]
        for column in range(row + 1):
            packed[position + column] += factor * x[column]
        position += row + 1
    for m in range(d):
        packed[position + m] += reward * x[m]


@compiled
def add_weighted(packed: Vector, x: Vector, reward: float, weight: float) -> None:
    """`add_packed` of a sample that counts `weight`."""
    d = x.shape[0]
    position = 0
    for row in range(d):
        factor = weight * x[row]
        for column in range(row + 1):
            packed[position + column] += factor * x[column]
        position += row + 1
    for m in range(d):
        packed[position + m] += weight * reward * x[m]


@compiled
def add_square(packed: Vector, x: Vector, factor: float) -> None:
    """Add `factor · x xᵀ` to the lower triangle of a matrix, packed row by row."""
    position = 0
    for row in range(x.shape[0]):
        scaled = factor * x[row]
        for column in range(row + 1):
            packed[position + column] += scaled * x[column]
        position += row + 1


@compiled
def sum_packed(packed: Matrix, blocks: Matrix, left_out: Integers, chosen: Integers, out: Vector) -> None:
    """Sum the rows of `packed` whose bits in the set `left_out` are clear; `chosen` (65,) is scratch.

    Row w of `blocks` is the sum of the 64 rows that share integer w; it serves where none is left out.
    """
    n = packed.shape[0]
    out[:] = 0.0
    for w in range(left_out.shape[0]):
        if left_out[w] == FULL:
            continue
        last = min(WORD, n - w * WORD)
        count = list_bits(~left_out[w], w * WORD, last, chosen) if left_out[w] != 0 else last
        if count == last:
            add_row(1.0, blocks[w], out)
        else:
            for k in range(count):
                add_row(1.0, packed[chosen[k]], out)


@compiled
def list_bits(word: int, first: int, length: int, chosen: Integers) -> int:
    """Write `first` + the positions of the bits set among the lowest `length` to `chosen`, and count them."""
    count = 0
    for lane in range(length):  # no branch: which are set is hard to predict
        chosen[count] = first + lane
        count += (word >> lane) & 1
    return count


@compiled
def add_row(factor: float, row: Vector, out: Vector) -> None:
    """Add a multiple of a vector."""
    for m in range(out.shape[0]):
        out[m] += factor * row[m]


@compiled
def unpack(packed: Vector, ridge: float, A: Matrix) -> None:
    """Write `ridge·I + Σ x xᵀ` into the lower triangle of `A`; `Σ y x` is the last d entries of `packed`."""
    position = 0
    for row in range(A.shape[0]):
        for column in range(row + 1):
            A[row, column] = packed[position + column]
        A[row, row] += ridge
        position += row + 1


@compiled
def add_triangle(factor: float, packed: Vector, A: Matrix) -> None:
    """Add a multiple of a packed lower triangle to that of `A`."""
    position = 0
    for row in range(A.shape[0]):
        for column in range(row + 1):
            A[row, column] += factor * packed[position + column]
        position += row + 1
