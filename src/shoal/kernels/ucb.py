"""Upper-confidence scores of all arms (LinUCB)."""

import math

from shoal.kernels.compiled import compiled
from shoal.types import Matrix, Vector


@compiled
def best_arm(theta_hat: Vector, A_inv: Matrix, arms: Matrix, width: float) -> int:
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
        score = mean + width * math.sqrt(max(variance, 0.0))
        if score > best:
            best = score
            choice = k
    return choice
