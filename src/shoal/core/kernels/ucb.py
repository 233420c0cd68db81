"""Upper-confidence scores of all arms (LinUCB).

Each function leaves, in the two rows of `out`, the mean and the bonus of as many arms as `out` has columns;
an arm's score is their sum.
"""

import math

from shoal.core.jit.compiled import compiled
from shoal.core.types import Matrix, Vector

LANES = 16
"""Columns solved side by side in `best_arm_of_factor`: 15 arms and b."""


@compiled
def best_arm(theta_hat: Vector, A_inv: Matrix, arms: Matrix, width: float, out: Matrix) -> int:
    """First arm with the largest score `θ̂·x + width √(xᵀ A⁻¹ x)`; `width` is `α √ln(t+1)`."""
    n_arms, d = arms.shape
    best = -math.inf
    choice = 0
    for k in range(n_arms):
        mean = 0.0
        variance = 0.0
        for row in range(d):
            x_row = arms[k, row]
            mean += theta_hat[row] * x_row
            # xᵀ A⁻¹ x = Σ x_r (A⁻¹_rr x_r + 2 Σ_{c<r} A⁻¹_rc x_c)
            off_diagonal = 0.0
            for column in range(row):
                off_diagonal += A_inv[row, column] * arms[k, column]
            variance += x_row * (A_inv[row, row] * x_row + 2.0 * off_diagonal)
        bonus = width * math.sqrt(max(variance, 0.0))
        if k < out.shape[1]:
            out[0, k] = mean
            out[1, k] = bonus
        score = mean + bonus
        if score > best:
            best = score
            choice = k
    return choice


@compiled
def best_arm_of_factor(L: Matrix, b: Vector, arms: Matrix, width: float, lanes: Matrix, out: Matrix) -> int:
    """`best_arm` from the Cholesky factor `A = L Lᵀ` and `b`, without inverting A.

    With `z = L⁻¹ x` and `y = L⁻¹ b`: `xᵀ A⁻¹ x = z·z` and `θ̂·x = z·y`. `lanes` is
    scratch of shape (d + 2, LANES).
    """
    n_arms, d = arms.shape
    columns, means, variances = lanes[:d], lanes[d], lanes[d + 1]
    best = -math.inf
    choice = 0
    for start in range(0, n_arms, LANES - 1):
        count = min(LANES - 1, n_arms - start)
        for row in range(d):
            for k in range(count):
                columns[row, k] = arms[start + k, row]
            columns[row, LANES - 1] = b[row]
        for k in range(LANES):
            means[k] = 0.0
            variances[k] = 0.0
        for row in range(d):
            for m in range(row):
                factor = L[row, m]
                for k in range(LANES):
                    columns[row, k] -= factor * columns[m, k]
            scale = 1.0 / L[row, row]
            y = columns[row, LANES - 1] * scale
            for k in range(LANES):
                z = columns[row, k] * scale
                columns[row, k] = z
                means[k] += y * z
                variances[k] += z * z
        for k in range(count):
            mean, bonus = means[k], width * math.sqrt(variances[k])
            if start + k < out.shape[1]:
                out[0, start + k] = mean
                out[1, start + k] = bonus
            score = mean + bonus
            if score > best:
                best = score
                choice = start + k
    return choice


@compiled
def best_arm_of_width(
    theta_hat: Vector, L: Matrix, arms: Matrix, width: float, rootless: bool, z: Vector, out: Matrix
) -> int:
    """`best_arm` with estimates and widths of different samples: `θ̂·x + width ‖L⁻¹x‖`; `z` (d,) is scratch.

    For an agent that waits for rewards: what it waits for narrows the width, not the estimate. And for a
    design matrix so steep that its inverse has lost digits. If `rootless`, the norm is squared, as in several
    released codes.
    """
    best = -math.inf
    choice = 0
    for k in range(arms.shape[0]):
        mean = 0.0
        variance = 0.0
        for row in range(theta_hat.shape[0]):
            value = arms[k, row]
            mean += theta_hat[row] * value
            for m in range(row):
                value -= L[row, m] * z[m]
            z[row] = value / L[row, row]
            variance += z[row] * z[row]
        bonus = width * (variance if rootless else math.sqrt(variance))
        if k < out.shape[1]:
            out[0, k] = mean
            out[1, k] = bonus
        score = mean + bonus
        if score > best:
            best = score
            choice = k
    return choice


@compiled
def best_arm_of_draw(theta_hat: Vector, draw: Vector, arms: Matrix, width: float, out: Matrix) -> int:
    """First arm with the largest `(θ̂ + width·draw)·x`: what Thompson sampling plays."""
    best = -math.inf
    choice = 0
    for k in range(arms.shape[0]):
        mean = 0.0
        bonus = 0.0
        for m in range(theta_hat.shape[0]):
            mean += theta_hat[m] * arms[k, m]
            bonus += draw[m] * arms[k, m]
        bonus *= width
        if k < out.shape[1]:
            out[0, k] = mean
            out[1, k] = bonus
        score = mean + bonus
        if score > best:
            best = score
            choice = k
    return choice
