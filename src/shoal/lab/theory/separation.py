"""Theorems "Lower Bound on the Separation Time" and "Upper Bound on the Separation Time"."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from shoal.lab.theory import checks
from shoal.lab.theory.checks import FloatArray, Values

SEPARATION_FACTOR = (2.0 + math.sqrt(2.0)) ** 2
"""Two agents with gamma = 2 stay together while ‖θ_i − θ_j‖_A ≤ (2 + √2) β: the square of that factor."""


def separation_time_lower(
    delta: ArrayLike, gap: ArrayLike, reading: Literal["derived", "printed", "corrected"] = "derived"
) -> Values:
    """Round before which two agents at distance ``gap`` should not be separated.

    ``derived``: ``ceil(8 (erfinv(1 - delta) - erfinv(delta))^2 / gap^2)``, and 0 if ``delta >= 1/2``;
    ``printed``: ``ceil(8 (erfinv(1 - delta) - erf(delta))^2 / gap)``;
    ``corrected``: ``ceil(m^2 / gap^2)``, where m solves
    ``P[|Z| >= 2 sqrt(2) erfinv(1 - delta)] = delta`` for Z normal with mean m and variance 2.

    Parameters
    ----------
    delta : array_like
        Confidence level in (0, 1).
    gap : array_like
        Euclidean distance between the two true parameters, above 0.
    reading : {"derived", "printed", "corrected"}
        The result of the paper's proof, its statement, or the result of the repaired proof.

    Examples
    --------
    >>> separation_time_lower(0.1, 0.2)
    231.0
    >>> separation_time_lower(0.1, 0.2, reading="printed")
    45.0
    >>> separation_time_lower(0.1, [0.2, 1.27], reading="corrected")
    array([55.,  2.])

    Notes
    -----
    The setting is the simplest one: a single unit arm along the difference, standard Gaussian noise of known
    law, a radius that does not grow. Three steps of the proof fail. The two tails of ``|Z|`` are taken as
    equal though Z has a mean; Z has variance 2 but is standardised by 2, not by ``sqrt 2``; and the round at
    which separation has probability ``1 - delta`` is not one before which it is unlikely. At the derived
    round and ``delta = 0.1`` the agents are in fact separated with probability 0.43. For ``delta >= 1/2``
    the proof's equation has no solution, which its square hides; "derived" is 0 there.

    "corrected" asks that separation *in that round* have probability delta. It says nothing about all earlier
    rounds together: a radius that does not grow is crossed sooner or later even at gap 0. With the growing
    radius of `beta` separation comes later. At gap 0.2 and ``delta = 0.1`` some 3 % of simulated pairs
    separate before the derived round, but at ``delta = 0.01`` some 4 % do, more than delta allows. Before
    the corrected round fewer than 1 % do in either case.

    References
    ----------
    Theorem "Lower Bound on the Separation Time".
    """
    from scipy.special import erf, erfcinv, erfinv, log_ndtr

    delta = checks.delta(delta)
    gap = checks.positive("gap", gap)
    checks.one_of("reading", reading, ("derived", "printed", "corrected"))
    if reading == "printed":
        return checks.values(np.ceil(8.0 * (erfcinv(delta) - erf(delta)) ** 2 / gap))
    if reading == "derived":
        return _squared_ceiling(math.sqrt(8.0) * np.maximum(erfcinv(delta) - erfinv(delta), 0.0), gap)
    # Z = sqrt(2) (h + Y) with Y standard normal, h = m / sqrt(2): bisect for the h at which both tails
    # together are delta. In logarithms, so that no delta is too small.
    edge = 2.0 * erfcinv(delta)
    low, high = np.zeros_like(edge), edge + 9.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        below = np.logaddexp(log_ndtr(middle - edge), log_ndtr(-middle - edge)) < np.log(delta)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return _squared_ceiling(math.sqrt(2.0) * high, gap)


def separation_time_upper(
    arms: ArrayLike,
    theta_i: ArrayLike,
    theta_j: ArrayLike,
    *,
    delta: float,
    epsilon: float,
    noise_scale: float = 1.0,
    param_norm: float = 1.0,
    reading: Literal["printed", "derived", "corrected"] = "printed",
) -> int:
    """Round by which two agents should be separated at ``gamma = 2``.

    With ``Q = mean_k (x_k . (theta_i - theta_j))^2`` and ``c = (2 + sqrt 2)^2 R^2``:

    ``printed``: ``ceil(4 c ln(1/delta) / (2 epsilon Q - c))``, which needs ``epsilon > c / (2 Q)``;
    ``derived``: the smallest t such that, from t on,
    ``sqrt(g^2 + epsilon Q t) - g > (2 + sqrt 2) beta``, where ``beta`` has the log-determinant
    ``dim ln(1 + t/dim)`` and ``g = ||theta_i - theta_j||``; it needs no condition on epsilon;
    ``corrected``: the same with ``epsilon Q t - sqrt(2 b epsilon Q t ln(1/delta))``, at least 0, in
    place of ``epsilon Q t``, where ``b = max_k (x_k . (theta_i - theta_j))^2``.

    Parameters
    ----------
    arms : array_like, shape (K, d)
        The arms, of norm at most 1.
    theta_i, theta_j : array_like, shape (d,)
        The two true parameters.
    delta : float
        Confidence level in (0, 1).
    epsilon : float
        Probability, in (0, 1], of a uniformly drawn arm.
    noise_scale : float
        Sub-Gaussian scale R of the noise.
    param_norm : float
        S of the radius in the test, as in `beta`; ignored by the printed statement, which has none.
    reading : {"printed", "derived", "corrected"}
        The paper's statement, or one of the two repaired ones.

    Examples
    --------
    >>> arms = [[1.0, 0.0], [0.0, 1.0]]
    >>> separation_time_upper(arms, [1.0, 0.0], [-1.0, 0.0], delta=0.1, epsilon=0.5, noise_scale=0.3)
    11
    >>> separation_time_upper(arms, [1.0, 0.0], [-1.0, 0.0], delta=0.1, epsilon=0.5, reading="derived")
    342
    >>> separation_time_upper(arms, [1.0, 0.0], [-1.0, 0.0], delta=0.1, epsilon=0.5, reading="corrected")
    440

    Notes
    -----
    Unit arms give ``Q <= ||theta_i - theta_j||^2 <= 4 L^2``, so the printed condition fails for every
    epsilon when ``L = R = 1``: it is met only when the signal is well above the noise. It is also printed
    with ``>=``; at equality the bound is infinite. The proof bounds ``log det A`` by ``(dim/2) ln(1 +
    t/dim) <= t/2``; unit arms give only ``dim ln(1 + t/dim)``, twice that. "derived" keeps the logarithm,
    so it needs no condition, and accounts for the ridge (the term g). Both replace the number of pulls of an
    arm by a lower bound, ``epsilon t / K``, on its mean. That is wrong for bounds of a few rounds: with
    arms e1 and e2, parameters 2 apart along e1 and noise 0.06, "printed" is 1 and "derived" 2, when e1 has
    been drawn with probability 1/2 and 3/4. "corrected" allows for this (a Chernoff bound on the draws, which
    costs another delta of probability). All assume synchronous pulling and the squared radius in the test.

    References
    ----------
    Theorem "Upper Bound on the Separation Time".
    """
    checks.one_of("reading", reading, ("printed", "derived", "corrected"))
    level = float(checks.delta(delta))
    share = float(checks.fraction("epsilon", epsilon))
    scale = float(checks.positive("noise_scale", noise_scale))
    matrix = checks.finite("arms", arms)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"arms has shape {matrix.shape}; it must be (K, d) with at least one arm")
    dim: int = matrix.shape[1]
    first, second = checks.finite("theta_i", theta_i), checks.finite("theta_j", theta_j)
    for name, theta in (("theta_i", first), ("theta_j", second)):
        if theta.shape != (dim,):
            raise ValueError(f"{name} has shape {theta.shape}; it must be {(dim,)} to go with arms")
    squares = (matrix @ (first - second)) ** 2
    signal = float(np.mean(squares))
    if signal == 0.0:
        raise ValueError("theta_i and theta_j give every arm the same mean reward; no rule can separate them")
    factor = SEPARATION_FACTOR * scale**2
    surprise = math.log(1.0 / level)
    if reading == "printed":
        smallest = factor / (2.0 * signal)
        if smallest >= 1.0:
            raise ValueError(
                f"epsilon={share} cannot work, and no epsilon <= 1 is enough: the bound needs "
                f'Q > {factor / 2.0:.6g} and Q is {signal:.6g}; reading="derived" has no such condition'
            )
        if share <= smallest:
            raise ValueError(
                f"epsilon={share} is too small for these parameters; it must be above {smallest:.6g}"
            )
        return math.ceil(4.0 * factor * surprise / (2.0 * share * signal - factor))
    gap = float(np.linalg.norm(first - second))

    offset = math.sqrt(SEPARATION_FACTOR) * float(checks.nonnegative("param_norm", param_norm))
    spread = 2.0 * float(squares.max()) * surprise if reading == "corrected" else 0.0

    def separated(t: int) -> bool:
        mean = share * signal * t
        bias = math.sqrt(gap**2 + max(mean - math.sqrt(spread * mean), 0.0)) - gap
        width = offset + math.sqrt(factor * (2.0 * surprise + dim * math.log1p(t / dim)))
        return bias * bias > width * width

    # One crossing: the left square is convex in t; the right one concave, like its root, and larger at 0.
    return _first_true(separated)


def _squared_ceiling(numerator: FloatArray, denominator: FloatArray) -> Values:
    """The square of a ratio, rounded up; infinite where it is too large for a float."""
    with np.errstate(over="ignore"):
        return checks.values(np.ceil(np.square(numerator / denominator)))


def _first_true(condition: Callable[[int], bool]) -> int:
    """Smallest t >= 1 at which the condition holds; it must hold from then on."""
    high = 1
    while not condition(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if condition(middle) else (middle, high)
    return high
