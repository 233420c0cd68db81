"""How much two agents should share: the screen of the separation test as a degree.

With `v = θ̂_i − θ̂_j`, `a = ‖v‖²_{A_i}`, `b = ‖v‖²_{A_j}` and squared radii c, the separation statistic is at
most `g = (√(c_i/a) + √(c_j/b))⁻²` (docs/algorithms.md, lemma 2). Agents are in the innermost loops, so that
several pairs are computed at once; swapping i and j changes no bit of g.
"""

import math

from shoal.kernels.compiled import compiled
from shoal.types import Integers, Matrix, Vector


@compiled
def pair_statistics(
    agent: int, theta_hat: Matrix, columns: Matrix, ridge: float, c: Vector, work: Matrix, out: Vector
) -> None:
    """Write g of `agent` with every agent into `out` (n,); 0 where the estimates are equal.

    Column j of `columns` begins with the packed `Σ x xᵀ` of agent j; `work` is scratch of shape (d + 2, n).
    """
    n, d = theta_hat.shape
    offsets, own, others = work[:d], work[d], work[d + 1]
    for m in range(d):
        center = theta_hat[agent, m]
        for j in range(n):
            offsets[m, j] = theta_hat[j, m] - center
    for j in range(n):
        own[j] = 0.0
    for m in range(d):
        for j in range(n):
            own[j] += ridge * offsets[m, j] * offsets[m, j]
    for j in range(n):
        others[j] = own[j]
    position = 0
    for row in range(d):
        for column in range(row + 1):
            times = 1.0 if row == column else 2.0
            entry = columns[position, agent]
            for j in range(n):
                product = times * offsets[row, j] * offsets[column, j]
                own[j] += entry * product
                others[j] += columns[position, j] * product
            position += 1
    c_agent = c[agent]
    for j in range(n):
        # √g = rs/(r+s) with r = √(a/c_i) and s = √(b/c_j). Rounding may take a form below zero.
        r = math.sqrt(own[j] / c_agent if own[j] > 0.0 else 0.0)
        s = math.sqrt(others[j] / c[j] if others[j] > 0.0 else 0.0)
        root = r * s / (r + s) if r + s > 0.0 else 0.0
        out[j] = root * root


@compiled
def shares(statistics: Vector, threshold: float, power: float, out: Vector) -> None:
    """Write `max(0, 1 − g/threshold)^power` of every statistic g into `out`; 0 if g is not a number."""
    for j in range(out.shape[0]):
        room = 1.0 - statistics[j] / threshold
        out[j] = room if room > 0.0 else 0.0
    if power == 2.0:
        for j in range(out.shape[0]):
            out[j] *= out[j]
    else:
        for j in range(out.shape[0]):
            out[j] **= power


@compiled
def sum_weighted(packed: Matrix, weights: Vector, chosen: Integers, out: Vector) -> None:
    """Sum the rows of `packed`, each times its weight; `chosen` (n + 1,) is scratch for those not zero."""
    count = 0
    for j in range(weights.shape[0]):  # no branch: which weights are zero is hard to predict
        chosen[count] = j
        count += weights[j] > 0.0
    out[:] = 0.0
    for n in range(count):
        row, weight = packed[chosen[n]], weights[chosen[n]]
        for m in range(out.shape[0]):
            out[m] += weight * row[m]
