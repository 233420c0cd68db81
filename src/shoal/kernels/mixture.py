"""Evidence of linear models given by packed sums, and the arm that a mixture of such models prefers."""

import math

from shoal.kernels.compiled import compiled
from shoal.kernels.linalg import add_row, cholesky, dot, logdet_from_cholesky, solve_lower, unpack
from shoal.types import Integers, Matrix, Tensor, Vector

LANES = 16
"""Arms scored side by side."""


@compiled
def factor_packed(packed: Vector, ridge: float, L: Matrix, y: Vector) -> None:
    """Write the factor of `A = ridge·I + Σ x xᵀ = L Lᵀ` into `L`, and `L⁻¹ b` into `y`."""
    unpack(packed, ridge, L)
    cholesky(L, L)
    solve_lower(L, packed[packed.shape[0] - L.shape[0] :], y)


@compiled
def evidence_terms(packed: Vector, ridge: float, L: Matrix, y: Vector) -> tuple[float, float]:
    """`bᵀA⁻¹b` and log det A of packed sums; `L` and `y` are left as by `factor_packed`."""
    factor_packed(packed, ridge, L, y)
    return dot(y, y), logdet_from_cholesky(L)


@compiled
def best_arm_of_mixture(
    L: Tensor, y: Matrix, shares: Vector, count: int, arms: Matrix, within: float, between: float, work: Matrix
) -> int:
    """First arm with the largest score `m(x) + √(within Σ_k p_k xᵀA_k⁻¹x + between Var_p(x·θ_k))`.

    `m(x) = Σ_k p_k x·θ_k`, over the first `count` models, factored by `factor_packed`; p is in proportion to
    `shares`. With `z = L⁻¹ x`: `xᵀ A⁻¹ x = z·z` and `x·θ = z·y`. `work` is scratch of shape (d + 5, LANES).
    """
    n_arms, d = arms.shape
    columns, means, variances = work[:d], work[d], work[d + 1]
    mean, inner, outer = work[d + 2], work[d + 3], work[d + 4]
    best = -math.inf
    choice = 0
    for start in range(0, n_arms, LANES):
        here = min(LANES, n_arms - start)
        for k in range(LANES):
            mean[k] = 0.0
            inner[k] = 0.0
            outer[k] = 0.0
        total = 0.0
        for c in range(count):
            for row in range(d):
                for k in range(LANES):
                    columns[row, k] = arms[start + k, row] if k < here else 0.0
            for k in range(LANES):
                means[k] = 0.0
                variances[k] = 0.0
            for row in range(d):
                for m in range(row):
                    factor = L[c, row, m]
                    for k in range(LANES):
                        columns[row, k] -= factor * columns[m, k]
                scale = 1.0 / L[c, row, row]
                y_row = y[c, row]
                for k in range(LANES):
                    z = columns[row, k] * scale
                    columns[row, k] = z
                    means[k] += y_row * z
                    variances[k] += z * z
            total += shares[c]
            step = shares[c] / total
            for k in range(LANES):  # averages over the models so far (West 1979)
                offset = means[k] - mean[k]
                mean[k] += step * offset
                inner[k] += step * (variances[k] - inner[k])
                outer[k] = (1.0 - step) * (outer[k] + step * offset * offset)
        for k in range(here):
            score = mean[k] + math.sqrt(within * inner[k] + between * outer[k])
            if score > best:
                best = score
                choice = start + k
    return choice


@compiled
def normalise(logs: Vector, count: int) -> None:
    """Turn the first `count` log-weights, not all −inf, into probabilities."""
    top, total = -math.inf, 0.0
    for n in range(count):
        top = max(top, logs[n])
    for n in range(count):
        logs[n] = math.exp(logs[n] - top)
        total += logs[n]
    for n in range(count):
        logs[n] /= total


@compiled
def largest(packed: Vector, d: int) -> float:
    """Largest absolute entry of packed sums; those of `Σ x xᵀ` are largest on its diagonal."""
    found, diagonal, b = 0.0, -1, packed.shape[0] - d
    for row in range(d):
        diagonal += row + 1
        found = max(found, packed[diagonal], abs(packed[b + row]))
    return found


@compiled
def sum_members(labels: Integers, cluster: int, left_out: int, packed: Matrix, out: Vector) -> None:
    """Sum the rows of `packed` of a cluster's members but one."""
    out[:] = 0.0
    for j in range(labels.shape[0]):
        if labels[j] == cluster and j != left_out:
            add_row(1.0, packed[j], out)
