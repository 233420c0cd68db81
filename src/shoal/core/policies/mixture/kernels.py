"""Evidence of linear models given by packed sums, and the arm that a mixture of such models prefers."""

import math

from shoal.core.jit.compiled import compiled
from shoal.core.kernels.linalg import back_substitute, inverse_from_cholesky, unpack
from shoal.core.kernels.separation import EPS
from shoal.core.kernels.ucb import LANES
from shoal.core.types import Matrix, Tensor, Vector

PIVOTS = 8
"""Pivots multiplied before a logarithm is taken: none is much above 1e30, so that no product overflows."""


@compiled
def factor_with_base(packed: Vector, ridge: float, base: float, L: Matrix, y: Vector) -> tuple[float, float]:
    """Write the factor of `A = R + Σ x xᵀ = L Lᵀ` and `y = L⁻¹ b`; return `bᵀA⁻¹b` and log det A.

    R is diagonal: `ridge`, and `base` in the last place. `linalg.cholesky` with b as one more row, in one
    pass. Only the lower triangle of `L` is written.
    """
    d = L.shape[0]
    b = packed[packed.shape[0] - d :]
    form, logdet, product = 0.0, 0.0, 1.0
    unpack(packed, ridge, L)
    L[d - 1, d - 1] = packed[packed.shape[0] - d - 1] + base
    for column in range(d):
        pivot = L[column, column]
        least = EPS * pivot
        for m in range(column):
            pivot -= L[column, m] * L[column, m]
        root = math.sqrt(max(pivot, least))
        scale = 1.0 / root
        L[column, column] = root
        for row in range(column + 1, d):
            value = L[row, column]
            for m in range(column):
                value -= L[row, m] * L[column, m]
            L[row, column] = value * scale
        value = b[column]
        for m in range(column):
            value -= y[m] * L[column, m]
        y[column] = value * scale
        form += y[column] * y[column]
        product *= root
        if column % PIVOTS == PIVOTS - 1:
            logdet += math.log(product)
            product = 1.0
    return form, 2.0 * (logdet + math.log(product))


@compiled
def factor_packed(packed: Vector, ridge: float, L: Matrix, y: Vector) -> tuple[float, float]:
    """`factor_with_base` for a prior that is the same for all coordinates."""
    return factor_with_base(packed, ridge, ridge, L, y)


@compiled
def soften_with_base(
    packed: Vector,
    ridge: float,
    base: float,
    scatter: float,
    lift: float,
    count: int,
    out: Vector,
    L: Matrix,
    y: Vector,
    inverse: Tensor,
) -> tuple[float, float]:
    """What samples of `θ + δ` tell of θ, where δ ~ N(0, s² K): `(I + SK)⁻¹S` and `(I + SK)⁻¹b`, packed.

    `S = R + Σ x xᵀ` and `b` come from `packed`, R as in `factor_with_base`. K is diagonal: `scatter` in the
    first `count` places, and where these are not all, `lift` in the last. Returns `bᵀK(I + SK)⁻¹b` and
    log det(I + SK), of which the evidence of the scatter consists. `L`, `y` and `inverse` (2, d, d) are
    scratch; `out` may be `packed`.
    """
    form, logdet = soften_slopes(packed, ridge, base, scatter, count, out, L, y, inverse)
    if lift == 0.0:
        return form, logdet
    d = L.shape[0]
    b, last = out.shape[0] - d, out.shape[0] - 2 * d  # where the vector begins, and the matrix's last row
    own, growth = out[out.shape[0] - 1], 1.0 + lift * out[b - 1]
    position = 0
    for row in range(d - 1):
        part = lift * out[last + row] / growth
        for column in range(row + 1):
            out[position + column] -= part * out[last + column]
        out[b + row] -= part * own
        position += row + 1
    for m in range(d):
        out[last + m] /= growth
    out[out.shape[0] - 1] = own / growth
    return form + lift * own * own / growth, logdet + math.log(growth)


@compiled
def soften_slopes(
    packed: Vector,
    ridge: float,
    base: float,
    scatter: float,
    count: int,
    out: Vector,
    L: Matrix,
    y: Vector,
    inverse: Tensor,
) -> tuple[float, float]:
    """`soften_with_base` without lift: if `count` is d − 1, the last entry of δ is 0."""
    d = L.shape[0]
    position = 0
    if scatter == 0.0:
        for m in range(packed.shape[0]):
            out[m] = packed[m]
        for row in range(d):
            out[position + row] += ridge if row < d - 1 else base
            position += row + 1
        return 0.0, 0.0
    own, last = packed[packed.shape[0] - d - 1] + base, packed[packed.shape[0] - 1]
    for row in range(d):  # I + κS, which factor_packed then finds in `out`, with b behind it
        for column in range(row + 1):
            out[position + column] = scatter * packed[position + column]
        out[position + row] += 1.0 + scatter * (ridge if row < d - 1 else base)
        position += row + 1
    for m in range(d):
        out[position + m] = packed[position + m]
    form, logdet = factor_packed(out, 0.0, L, y)
    if count < d:  # The factor of the leading block is that of the whole: the last row says what it lacks.
        form -= y[d - 1] * y[d - 1]
        logdet -= 2.0 * math.log(L[d - 1, d - 1])
        for m in range(d - 1):
            own -= L[d - 1, m] * L[d - 1, m] / scatter
            last -= L[d - 1, m] * y[m]
        y[d - 1] = 0.0
        back_substitute(L, y, out[out.shape[0] - d :])
        for m in range(d - 1):
            y[m] = L[d - 1, m] / scatter
            L[d - 1, m] = 0.0
        L[d - 1, d - 1] = 1.0
        back_substitute(L, y, y)
    inverse_from_cholesky(L, inverse[0], inverse[1])
    position = 0
    for row in range(count):  # (I + κS)⁻¹S = (I − (I + κS)⁻¹) / κ
        for column in range(row + 1):
            out[position + column] = -inverse[0, row, column] / scatter
        out[position + row] += 1.0 / scatter
        position += row + 1
    if count < d:
        for m in range(d - 1):
            out[position + m] = y[m]
        out[position + d - 1] = own
        out[out.shape[0] - 1] = last
        return scatter * form, logdet
    back_substitute(L, y, out[position:])  # (I + κS)⁻¹b: stable where the inverse is not
    return scatter * form, logdet


@compiled
def soften_packed(
    packed: Vector, ridge: float, scatter: float, out: Vector, L: Matrix, y: Vector, inverse: Tensor
) -> tuple[float, float]:
    """`soften_with_base` where all coordinates scatter, and the prior is the same for all."""
    return soften_slopes(packed, ridge, ridge, scatter, L.shape[0], out, L, y, inverse)


@compiled
def trace_of_inverse(L: Matrix, count: int, z: Vector) -> float:
    """The first `count` terms of `tr A⁻¹ = ‖L⁻¹‖²`, by columns of L⁻¹; `z` (d,) is scratch."""
    d, found = L.shape[0], 0.0
    for column in range(count):
        for row in range(column, d):
            value = 1.0 if row == column else 0.0
            for m in range(column, row):
                value -= L[row, m] * z[m]
            z[row] = value / L[row, row]
            found += z[row] * z[row]
    return found


@compiled
def predict(L: Matrix, y: Vector, x: Vector, z: Vector) -> tuple[float, float]:
    """`x·θ̂` and `xᵀA⁻¹x` of a model from `factor_packed`; `z` (d,) is scratch."""
    mean, variance = 0.0, 0.0
    for row in range(x.shape[0]):
        value = x[row]
        for m in range(row):
            value -= L[row, m] * z[m]
        value /= L[row, row]
        z[row] = value
        mean += value * y[row]
        variance += value * value
    return mean, variance


@compiled
def best_arm_of_mixture(
    L: Tensor,
    y: Matrix,
    shares: Vector,
    hidden: Vector,
    count: int,
    arms: Matrix,
    within: float,
    between: float,
    slopes: int,
    work: Matrix,
    out: Matrix,
) -> int:
    """First arm with the largest `m(x) + √(Σ_k p_k (w xᵀA_k⁻¹x + h_k ‖A_k⁻¹x‖²) + between Var_p(x·θ_k))`.

    w is `within`, `m(x) = Σ_k p_k x·θ_k`, over the first `count` models, factored by `factor_packed`; p is in
    proportion to `shares`, h is `hidden`. With `z = L⁻¹ x`: `xᵀ A⁻¹ x = z·z`, `x·θ = z·y` and
    `‖A⁻¹x‖ = ‖L⁻ᵀz‖`, of which the first `slopes` entries count. `work` is scratch of shape (d + 7, LANES);
    `out` is as in `shoal.core.kernels.ucb`.
    """
    n_arms, d = arms.shape
    columns, means, variances, norms = work[:d], work[d], work[d + 1], work[d + 5]
    mean, inner, outer, extra = work[d + 2], work[d + 3], work[d + 4], work[d + 6]
    best = -math.inf
    choice = 0
    for start in range(0, n_arms, LANES):
        here = min(LANES, n_arms - start)
        for k in range(LANES):
            mean[k] = 0.0
            inner[k] = 0.0
            outer[k] = 0.0
            extra[k] = 0.0
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
            if hidden[c] > 0.0:
                for k in range(LANES):
                    norms[k] = 0.0
                for row in range(d - 1, -1, -1):
                    scale = 1.0 / L[c, row, row]
                    for k in range(LANES):
                        z = columns[row, k] * scale
                        columns[row, k] = z
                        norms[k] += z * z if row < slopes else 0.0
                    for m in range(row):
                        factor = L[c, row, m]
                        for k in range(LANES):
                            columns[m, k] -= factor * columns[row, k]
            for k in range(LANES):
                extra[k] += step * ((hidden[c] * norms[k] if hidden[c] > 0.0 else 0.0) - extra[k])
            for k in range(LANES):  # averages over the models so far (West 1979)
                offset = means[k] - mean[k]
                mean[k] += step * offset
                inner[k] += step * (variances[k] - inner[k])
                outer[k] = (1.0 - step) * (outer[k] + step * offset * offset)
        for k in range(here):
            bonus = math.sqrt(within * inner[k] + between * outer[k] + extra[k])
            if start + k < out.shape[1]:
                out[0, start + k] = mean[k]
                out[1, start + k] = bonus
            score = mean[k] + bonus
            if score > best:
                best = score
                choice = start + k
    return choice


@compiled
def normalise(logs: Vector, count: int) -> float:
    """Turn the first `count` log-weights, not all −inf, into probabilities; return the log of their sum."""
    top, total = -math.inf, 0.0
    for n in range(count):
        top = max(top, logs[n])
    for n in range(count):
        logs[n] = math.exp(logs[n] - top)
        total += logs[n]
    for n in range(count):
        logs[n] /= total
    return top + math.log(total)


@compiled
def largest(packed: Vector, d: int) -> float:
    """Largest absolute entry of packed sums; those of `Σ x xᵀ` are largest on its diagonal."""
    found, diagonal, b = 0.0, -1, packed.shape[0] - d
    for row in range(d):
        diagonal += row + 1
        found = max(found, packed[diagonal], abs(packed[b + row]))
    return found
