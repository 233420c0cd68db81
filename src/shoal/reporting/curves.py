"""Means over runs and their intervals, which charts draw."""

import math
from dataclasses import dataclass

import numpy as np

from shoal.core.types import Matrix, Vector


@dataclass(frozen=True)
class Curve:
    """Mean over runs with its 95% interval, along x; all of shape (points,)."""

    x: Vector
    mean: Vector
    low: Vector
    high: Vector


def mean_curve(x: Vector, values: Matrix, *, bounds: tuple[float, float] = (-math.inf, math.inf)) -> Curve:
    """Mean of `values` (runs, points) over runs, with its 95% interval; a single run has zero width.

    An interval ends at the `bounds` of the values' range, such as (0, 1) for a score.
    """
    n, mean = len(values), values.mean(axis=0)
    half = half_width(values.std(axis=0, ddof=1) / math.sqrt(n), n) if n > 1 else np.zeros_like(mean)
    return Curve(x, mean, np.maximum(mean - half, bounds[0]), np.minimum(mean + half, bounds[1]))


def half_width(error: Vector | float, runs: int, level: float = 0.95) -> Vector:
    """Half the width of a mean's confidence interval (Student t), from its standard error over ≥ 2 runs."""
    from scipy.special import stdtrit  # takes a tenth of a second that opening a population need not wait

    return np.asarray(stdtrit(runs - 1, (1.0 + level) / 2.0) * error)
