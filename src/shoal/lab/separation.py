"""The separation test as functions on plain arrays."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shoal.core import validation
from shoal.core.kernels.separation import make_scratch, search
from shoal.core.types import Vector


def separation_statistic(
    theta_i: ArrayLike,
    A_i: ArrayLike,
    beta_i: float,
    theta_j: ArrayLike,
    A_j: ArrayLike,
    beta_j: float,
    *,
    radius: str = "beta",
) -> float:
    """How far apart two confidence ellipsoids are.

    `max_{s∈(0,1)} vᵀ (c_i/(1−s) A_i⁻¹ + c_j/s A_j⁻¹)⁻¹ v` with `v = θ_i − θ_j`.

    Parameters
    ----------
    theta_i, theta_j : array_like, shape (d,)
        Centres.
    A_i, A_j : array_like, shape (d, d)
        Symmetric positive-definite design matrices.
    beta_i, beta_j : float
        Confidence radii, positive.
    radius : {"beta", "beta_squared"}
        Whether c is β or β².

    Returns
    -------
    float
        At most γ²/4 exactly when the ellipsoids `‖θ − θ_i‖_{A_i} ≤ r_i` and `‖θ − θ_j‖_{A_j} ≤ r_j` share a
        point. Their radii are r = γβ/2 with "beta_squared", and r = γ√β/2 with "beta".

    Examples
    --------
    >>> import numpy as np
    >>> round(separation_statistic([2.0, 0.0], np.eye(2), 1.0, [0.0, 0.0], np.eye(2), 1.0), 12)
    1.0
    """
    value, _, _ = _search(theta_i, A_i, beta_i, theta_j, A_j, beta_j, radius, 0.0, decide=False)
    return float(value)


def separated(
    theta_i: ArrayLike,
    A_i: ArrayLike,
    beta_i: float,
    theta_j: ArrayLike,
    A_j: ArrayLike,
    beta_j: float,
    *,
    gamma: float = 2.0,
    radius: str = "beta",
) -> bool:
    """Whether two ellipsoids of radius γβ/2 (or γ√β/2, with "beta") have no common point: statistic > γ²/4.

    Parameters are those of `separation_statistic`; `gamma` is positive.

    Examples
    --------
    >>> import numpy as np
    >>> separated([3.0, 0.0], np.eye(2), 1.0, [0.0, 0.0], np.eye(2), 1.0)
    True
    >>> separated([1.0, 0.0], np.eye(2), 1.0, [0.0, 0.0], np.eye(2), 1.0)
    False
    """
    gamma = validation.number("gamma", gamma, low=validation.SMALLEST, high=validation.LARGEST)
    _, _, verdict = _search(theta_i, A_i, beta_i, theta_j, A_j, beta_j, radius, gamma**2 / 4.0, decide=True)
    return bool(verdict)


def _search(
    theta_i: Any,
    A_i: Any,
    beta_i: Any,
    theta_j: Any,
    A_j: Any,
    beta_j: Any,
    radius: str,
    threshold: float,
    *,
    decide: bool,
) -> tuple[float, float, bool]:
    if np.size(theta_i) == 0:
        raise ValueError("theta_i must have at least one entry, got none")
    theta_i = validation.vector("theta_i", theta_i, np.size(theta_i))
    theta_j = validation.vector("theta_j", theta_j, len(theta_i))
    A_i = validation.positive_definite("A_i", A_i, len(theta_i))
    A_j = validation.positive_definite("A_j", A_j, len(theta_i))
    beta_i = validation.number("beta_i", beta_i, low=0.0, open_low=True)
    beta_j = validation.number("beta_j", beta_j, low=0.0, open_low=True)
    power = {"beta": 1, "beta_squared": 2}[validation.one_of("radius", radius, ("beta", "beta_squared"))]
    # Only the difference of the centres matters. With it, the matrices and the radii scaled to about 1, no
    # product of them can overflow or underflow. A radius below 1e-200 times the other is raised to that.
    v = theta_i - theta_j
    size, steepness, radius_scale = _largest(v), max(_largest(A_i), _largest(A_j)), max(beta_i, beta_j)
    c_i, c_j = (max((beta / radius_scale) ** power, 1e-200) for beta in (beta_i, beta_j))
    up, down = [size, size, steepness], power * [radius_scale]
    exact, scratch = np.zeros(len(v) * (len(v) + 1) // 2), make_scratch(len(v))
    value, s, verdict = search(
        v / size, A_i / steepness, exact, c_i,
        np.zeros_like(v), A_j / steepness, exact, c_j,
        _ratio([threshold, *down], up), decide, True, scratch,
    )  # fmt: skip
    return _ratio([value, *up], down), s, verdict


def _largest(array: Vector) -> float:
    """A power of two near the largest entry; dividing by a power of two does not round."""
    return math.ldexp(1.0, max(math.frexp(float(np.abs(array).max()))[1], -1000))


def _ratio(factors: list[float], divisors: list[float]) -> float:
    """A ratio of products that overflows or underflows only if the ratio itself does."""
    (above, up), (below, down) = (
        (math.prod(part for part, _ in parts), sum(power for _, power in parts))
        for parts in ([math.frexp(number) for number in numbers] for numbers in (factors, divisors))
    )
    try:
        return math.ldexp(above / below, up - down)
    except OverflowError:
        return math.inf
