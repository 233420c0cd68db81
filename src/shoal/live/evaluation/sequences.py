"""Confidence sequences: intervals for a running mean that hold at all times at once, however often one looks.

Both need only the number, the sum and the sum of squares of the terms, and both cover the mean of the terms'
conditional expectations so far. Terms need be neither independent nor identically distributed.

*Asymptotic* (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, Theorem 2.5): for terms of any size with
more than two moments. The level holds in the limit of a late start, as an ordinary interval's level does with
many terms; so there is no interval below `BURN_IN` terms.

*Empirical Bernstein* (Howard, Ramdas, McAuliffe and Sekhon 2021, Theorem 4, with their polynomial stitched
boundary): for terms in a known range, for any number of them, without approximation. It is wide where most
terms are far smaller than their range.
"""

import math

import numpy as np

from shoal.core.types import Vector
from shoal.live.journal.tally import Sums
from shoal.reporting.curves import Curve

LEVEL = 0.95
BURN_IN = 30
"""Terms before the first asymptotic interval."""
BEST_AT = 500
"""Number of terms for which the asymptotic sequence is narrowest."""
STEP, POWER, ZETA = 2.0, 1.4, 3.1055472779775815
"""The stitched boundary's ratio of epochs, power of their weights 1/k^POWER, and ζ(POWER)."""


def asymptotic(sums: Sums, level: float = LEVEL) -> tuple[float, float]:
    """The interval of the asymptotic confidence sequence; infinite below `BURN_IN` terms."""
    if sums.n < BURN_IN:
        return -math.inf, math.inf
    error, n = 1.0 - level, sums.n
    # The free parameter of the theorem, chosen so that the interval is narrowest at BEST_AT terms.
    rho_sq = (-2.0 * math.log(error) + math.log(1.0 - 2.0 * math.log(error))) / BEST_AT
    inside = n * rho_sq + 1.0
    factor = math.sqrt(2.0 * inside / (n**2 * rho_sq) * math.log(math.sqrt(inside) / error))
    half = math.sqrt(sums.variance) * factor
    return sums.mean - half, sums.mean + half


def empirical_bernstein(sums: Sums, low: float, high: float, level: float = LEVEL) -> tuple[float, float]:
    """The interval for terms between `low` ≤ 0 and `high` ≥ 0.

    The variance is counted about 0, a prediction of each term that depends on nothing.
    """
    n, scale = sums.n, high - low
    if n == 0:
        return low, high
    start = scale**2 / 100.0  # the boundary is tightest from this much variance on
    v = max(sums.squares, start)
    k1 = (STEP**0.25 + STEP**-0.25) / math.sqrt(2.0)
    k2 = (math.sqrt(STEP) + 1.0) / 2.0
    epochs = math.log(v / start, STEP) + 1.0
    cost = POWER * math.log(epochs) + math.log(ZETA * 2.0 / (1.0 - level))  # half the error on either side
    half = (math.sqrt(k1**2 * v * cost + (k2 * scale * cost) ** 2) + k2 * scale * cost) / n
    return max(sums.mean - half, low), min(sums.mean + half, high)


def running(terms: Vector) -> Curve:
    """The mean of the first 1, …, n terms, shape (n,), with its asymptotic confidence sequence.

    Below `BURN_IN` terms, bounds are nan.
    """
    counts = np.arange(1, len(terms) + 1)
    sums, squares = np.cumsum(terms), np.cumsum(terms * terms)
    bounds = [
        asymptotic(Sums(int(n), float(total), float(square)))
        for n, total, square in zip(counts, sums, squares, strict=True)
    ]
    low, high = np.array(bounds).reshape(-1, 2).T
    # Charts leave out nan, and would stretch to infinity.
    low, high = (np.where(np.isfinite(side), side, math.nan) for side in (low, high))
    return Curve(counts.astype(np.float64), sums / counts, low, high)
