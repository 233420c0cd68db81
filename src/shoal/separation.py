"""The separation test as functions on plain arrays."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shoal import validation
from shoal.kernels.separation import make_scratch, search


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
        At most γ²/4 as long as the ellipsoids, scaled by γ/2, share a point.

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
    """Whether two confidence ellipsoids, scaled by γ/2, have no point in common: statistic > γ²/4.

    Parameters are those of `separation_statistic`; `gamma` is positive.
    """
    gamma = validation.number("gamma", gamma, low=0.0, open_low=True)
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
    # Only the difference of the centres counts; scaled to size one, no square of it can overflow or vanish.
    v = theta_i - theta_j
    size = float(np.abs(v).max()) or 1.0
    c_i, c_j, scratch = beta_i**power, beta_j**power, make_scratch(len(v))
    value, s, verdict = search(
        v / size, A_i, c_i, np.zeros_like(v), A_j, c_j, threshold / size**2, decide, True, scratch
    )
    return value * size**2, s, verdict
