"""The confidence radius, gains, separation times and regret bounds of BASS as functions.

Reference: H. Cherkaoui, M. Barlier, I. Colin, "Adaptive Sample Sharing for Multi Agent Linear Bandits",
ICML 2025.

A bound is the single-agent bound ``nu`` times a gain (``gain_*``), plus a bias paid for sharing with agents
that differ. Where the paper's statement and its own proof disagree, or where a proof step fails, the function
has a ``reading``: ``"printed"`` is the statement, ``"derived"`` what follows once the step is repaired.
`docs/theory.md` lists every such step. Functions broadcast over arrays; scalars give a ``float``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.core.validation import show

FloatArray: TypeAlias = NDArray[np.float64]
Values: TypeAlias = float | FloatArray
Reading: TypeAlias = Literal["printed", "derived"]


class _Radius(TypedDict):
    """What `nu` passes on to `beta`."""

    logdet_A: ArrayLike | None
    noise_scale: ArrayLike
    param_norm: ArrayLike


# Two agents with gamma = 2 stay together while ||theta_i - theta_j||_A <= (2 + sqrt 2) beta.
SEPARATION_FACTOR = (2.0 + math.sqrt(2.0)) ** 2


# --- confidence -----------------------------------------------------------------------------------------


def beta(
    delta: ArrayLike,
    logdet_A: ArrayLike,
    noise_scale: ArrayLike = 1.0,
    *,
    param_norm: ArrayLike = 1.0,
    ridge: ArrayLike = 1.0,
) -> Values:
    """Radius of the confidence ellipsoid, ``sqrt(ridge) S + R sqrt(2 ln(1/delta) + logdet_A)``.

    Parameters
    ----------
    delta : array_like
        Probability, in (0, 1), that the ellipsoid misses the true parameter in some round.
    logdet_A : array_like
        Log-determinant of the design matrix relative to the ridge: ``log det A - dim * log(ridge)``. With
        ridge 1 it is ``log det A``.
    noise_scale : array_like
        Sub-Gaussian scale R of the noise.
    param_norm : array_like
        S, a bound on the norm of the true parameter. 0 is the radius as the paper prints it.
    ridge : array_like
        Regularisation of the design matrix.

    Examples
    --------
    >>> round(beta(0.1, 0.0), 4)
    3.146
    >>> beta(0.1, [0.0, 1.0, 2.0], param_norm=0.0).round(3)
    array([2.146, 2.368, 2.57 ])

    Notes
    -----
    The self-normalised bound behind it controls ``||sum x noise||`` in the inverse-design norm, in all
    rounds at once. The ridge estimate has a second error, at most ``sqrt(ridge) ||theta||``, which the first
    term covers. The paper prints the radius without it; then, before any observation, the ellipsoid misses
    every theta longer than ``R sqrt(2 ln(1/delta))``.

    References
    ----------
    Theorem "Confidence Ellipsoid for Bandit Parameter Estimation"; Abbasi-Yadkori et al. (2011), Theorem 2.
    """
    delta = _check_delta(delta)
    logdet = _finite("logdet_A", logdet_A)
    scale = _positive("noise_scale", noise_scale)
    offset = np.sqrt(_positive("ridge", ridge)) * _nonnegative("param_norm", param_norm)
    radicand = logdet - 2.0 * np.log(delta)
    if np.any(radicand < 0):
        raise ValueError(
            f"logdet_A={_show(logdet)} makes 2 ln(1/delta) + logdet_A negative; it must be taken relative to "
            "the ridge (log det A - dim * log(ridge)), which is never below 0"
        )
    return _values(offset + scale * np.sqrt(radicand))


def optimistic_parameter(theta_hat: ArrayLike, A: ArrayLike, x: ArrayLike, beta: float) -> FloatArray:
    """Parameter in the ellipsoid that is best for arm x, ``theta_hat + beta A^-1 x / ||x||_{A^-1}``.

    Parameters
    ----------
    theta_hat : array_like, shape (d,)
        Centre of the ellipsoid.
    A : array_like, shape (d, d)
        Symmetric positive definite shape.
    x : array_like, shape (d,) or (K, d)
        One arm, or several; the result has the same shape.
    beta : float
        Radius, not squared, at least 0.

    Examples
    --------
    >>> optimistic_parameter([1.0, 0.0], [[4.0, 0.0], [0.0, 1.0]], [1.0, 0.0], 2.0)
    array([2., 0.])

    Notes
    -----
    The paper allows a semi-definite A; the formula needs a definite one (otherwise the reward may be
    unbounded) and an arm other than 0 (otherwise every parameter gives the same reward).

    References
    ----------
    Lemma "Characterization of the optimistic true bandit parameter".
    """
    centre = _finite("theta_hat", theta_hat)
    shape = _finite("A", A)
    arms = _finite("x", x)
    radius = float(_nonnegative("beta", beta))
    if centre.ndim != 1 or centre.size == 0:
        raise ValueError(f"theta_hat has shape {centre.shape}; it must be a vector (d,)")
    dim = centre.size
    if shape.shape != (dim, dim):
        raise ValueError(f"A has shape {shape.shape}; it must be {(dim, dim)} to go with theta_hat")
    if arms.ndim not in (1, 2) or arms.shape[-1] != dim:
        raise ValueError(f"x has shape {arms.shape}; it must be {(dim,)} or (K, {dim}) to go with theta_hat")
    if np.abs(shape - shape.T).max() > 1e-8 * np.abs(shape).max():
        raise ValueError(f"A={shape.tolist()} is not symmetric; a design matrix must be")
    try:
        np.linalg.cholesky(shape)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"A={shape.tolist()} is not positive definite; a design matrix with a ridge is"
        ) from None
    direction = np.linalg.solve(shape, arms.T).T
    width = np.sqrt(np.sum(direction * arms, axis=-1, keepdims=True))
    if np.any(width == 0):
        raise ValueError("x contains a zero arm; every parameter promises it the same, so give a nonzero arm")
    optimistic: FloatArray = centre + radius * direction / width
    return optimistic


# --- gains ----------------------------------------------------------------------------------------------


def gamma_max(dim: ArrayLike, delta: ArrayLike) -> Values:
    """Supremum of the relaxations gamma for which the individual gain is below one.

    ``2 - sqrt(2) sqrt(1 + dim ln 2 / (2 ln(1/delta)))``

    Parameters
    ----------
    dim : array_like
        Dimension of the arms.
    delta : array_like
        Confidence level in (0, 1).

    Examples
    --------
    >>> round(gamma_max(10, 0.001), 2)
    0.27
    >>> round(gamma_max(10, 0.1), 2)
    -0.24

    Notes
    -----
    A value at or below 0 means that no gamma works. This is so whenever ``dim > 2 ln(1/delta) / ln 2``,
    for example in the published experiments (dim 10, delta 0.1 and 0.9, gamma 2). The value is below ``2 -
    sqrt 2``, whereas keeping agents of one cluster together needs ``gamma >= sqrt 2`` (see
    `misassigned_bound`), so no gamma satisfies both. When paired agents pull the same arm, their averaged
    reward is one observation with noise ``R / sqrt 2``; the ratio ``beta(2A) / beta(A)`` and with it the root
    in the formula can then be replaced by 1.

    References
    ----------
    Remark after the theorem "Individual Regret During the Collaboration Phase".
    """
    return _values(2.0 - math.sqrt(2.0) * _beta_ratio(delta, dim, 2))


def gain_individual(delta: ArrayLike, dim: ArrayLike, gamma: ArrayLike) -> Values:
    """Factor mu on the single-agent bound while two agents share.

    ``1/2 + gamma/4 + sqrt(1 + dim ln 2 / (2 ln(1/delta))) / (2 sqrt 2)``

    Parameters
    ----------
    delta, dim : array_like
        Confidence level in (0, 1) and dimension.
    gamma : array_like
        Relaxation of the separation test, above 0.

    Examples
    --------
    >>> round(gain_individual(0.001, 10, 0.2), 3)
    0.983
    >>> round(gain_individual(0.001, 10, 2.0), 3)
    1.433

    Notes
    -----
    Below one exactly when ``gamma < gamma_max(dim, delta)``. At the published ``gamma = 2`` it always
    exceeds one: the bound then promises no gain, whatever the experiments show. The proof pools two equal
    designs as ``2A`` and takes the pooled estimate as the mean of the two, which holds when the pooled
    ridge is doubled too; it also uses two confidence events, so the probability is ``1 - 2 delta``.

    References
    ----------
    Theorem "Individual Regret During the Collaboration Phase".
    """
    gamma = _positive("gamma", gamma)
    return _values(0.5 + gamma / 4.0 + _beta_ratio(delta, dim, 2) / (2.0 * math.sqrt(2.0)))


def gain_network(delta: ArrayLike, dim: ArrayLike) -> Values:
    """Factor mu' on the single-agent bound for the mean regret of two sharing agents.

    ``sqrt(1 + dim ln 2 / (2 ln(1/delta))) / sqrt 2``

    Parameters
    ----------
    delta, dim : array_like
        Confidence level in (0, 1) and dimension.

    Examples
    --------
    >>> round(gain_network(0.001, 10), 3)
    0.867

    Notes
    -----
    Pulling is synchronous, and both agents pull the same arm while they share. The gain is at most
    `gain_individual` exactly when the root is at most ``sqrt(2) (1 + gamma/2)``.

    References
    ----------
    Theorem "Regret During the Collaboration Phase".
    """
    return _values(_beta_ratio(delta, dim, 2) / math.sqrt(2.0))


def gain_cluster(
    delta: ArrayLike, dim: ArrayLike, n_agents: ArrayLike, smallest_cluster_fraction: ArrayLike
) -> Values:
    """Factor mu'' on the single-agent bound for an agent that shares with its cluster.

    ``sqrt(1 + dim ln N / (2 ln(1/delta))) / sqrt(rho_min N)``

    Parameters
    ----------
    delta, dim : array_like
        Confidence level in (0, 1) and dimension.
    n_agents : array_like
        Number N of agents.
    smallest_cluster_fraction : array_like
        Share rho_min of the agents that the smallest cluster holds, in (0, 1].

    Examples
    --------
    >>> round(gain_cluster(0.1, 10, 100, 0.33), 3)
    0.577
    >>> gain_cluster(0.1, 10, 1, 1.0)
    1.0

    Notes
    -----
    Assumes that all agents of the neighbourhood have equal designs. After the first separations they do not.

    References
    ----------
    Theorem "Cumulative Pseudo-Regret with Clustered Agents".
    """
    n_agents = _count("n_agents", n_agents)
    fraction = _fraction("smallest_cluster_fraction", smallest_cluster_fraction)
    return _values(_beta_ratio(delta, dim, n_agents) / np.sqrt(fraction * n_agents))


# --- separation times -----------------------------------------------------------------------------------


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

    delta = _check_delta(delta)
    gap = _positive("gap", gap)
    _one_of("reading", reading, ("derived", "printed", "corrected"))
    if reading == "printed":
        return _values(np.ceil(8.0 * (erfcinv(delta) - erf(delta)) ** 2 / gap))
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
    _one_of("reading", reading, ("printed", "derived", "corrected"))
    level = float(_check_delta(delta))
    share = float(_fraction("epsilon", epsilon))
    scale = float(_positive("noise_scale", noise_scale))
    matrix = _finite("arms", arms)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"arms has shape {matrix.shape}; it must be (K, d) with at least one arm")
    dim: int = matrix.shape[1]
    first, second = _finite("theta_i", theta_i), _finite("theta_j", theta_j)
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

    offset = math.sqrt(SEPARATION_FACTOR) * float(_nonnegative("param_norm", param_norm))
    spread = 2.0 * float(squares.max()) * surprise if reading == "corrected" else 0.0

    def separated(t: int) -> bool:
        mean = share * signal * t
        bias = math.sqrt(gap**2 + max(mean - math.sqrt(spread * mean), 0.0)) - gap
        width = offset + math.sqrt(factor * (2.0 * surprise + dim * math.log1p(t / dim)))
        return bias * bias > width * width

    # One crossing: the left square is convex in t; the right one concave, like its root, and larger at 0.
    return _first_true(separated)


# --- regret ---------------------------------------------------------------------------------------------


def nu(
    delta: ArrayLike,
    dim: ArrayLike,
    horizon: ArrayLike,
    *,
    logdet_A: ArrayLike | None = None,
    noise_scale: ArrayLike = 1.0,
    param_norm: ArrayLike = 1.0,
    reading: Reading = "printed",
) -> Values:
    """Regret bound of a single agent, ``sqrt(4 beta^2 T dim ln(1 + T/dim))``.

    Parameters
    ----------
    delta, dim : array_like
        Confidence level in (0, 1) and dimension.
    horizon : array_like
        Number T of pulls, at least 0.
    logdet_A : array_like, optional
        Log-determinant of the design matrix after T pulls, for `beta`. By default the worst case for arms
        of norm at most 1, ``dim ln(1 + T/dim)``; longer arms, as in the synthetic
        experiments, can exceed it.
    noise_scale, param_norm : array_like
        R and S, as in `beta`.
    reading : {"printed", "derived"}
        "derived" is ``sqrt 2`` times larger, see the notes.

    Examples
    --------
    >>> round(nu(0.1, 10, 1000), 1)
    3490.7
    >>> round(nu(0.1, 10, 1000, logdet_A=20.0, param_norm=0.0), 1)
    2131.3

    Notes
    -----
    For arms of norm at most 1 and ridge 1. The sum of ``||x_t||^2`` in the inverse-design norm is at most ``2
    log det A`` when the design is the one the arm was chosen with, and without the 2 only when the design
    already holds ``x_t``. The printed constant 4 takes the second for the first; "derived" has 8, the
    constant of Abbasi-Yadkori et al. (2011). The paper's statement has ``param_norm=0``.

    References
    ----------
    Theorem "Individual Regret During the Collaboration Phase"; Abbasi-Yadkori et al. (2011), Theorem 3.
    """
    _one_of("reading", reading, ("printed", "derived"))
    dim = _count("dim", dim)
    horizon = _nonnegative("horizon", horizon)
    potential = dim * np.log1p(horizon / dim)
    radius = beta(delta, potential if logdet_A is None else logdet_A, noise_scale, param_norm=param_norm)
    constant = 4.0 if reading == "printed" else 8.0
    return _values(np.sqrt(constant * horizon * potential) * radius)


def regret_bound_individual(
    delta: ArrayLike,
    dim: ArrayLike,
    *,
    horizon: ArrayLike,
    gamma: ArrayLike,
    bias: ArrayLike,
    logdet_A: ArrayLike | None = None,
    noise_scale: ArrayLike = 1.0,
    param_norm: ArrayLike = 1.0,
    reading: Reading = "printed",
) -> Values:
    """Regret of one of two agents until they separate, ``mu nu + (T_s / 2) bias``.

    Parameters
    ----------
    delta, dim : array_like
        Confidence level in (0, 1) and dimension.
    horizon : array_like
        Separation time T_s.
    gamma : array_like
        Relaxation of the separation test.
    bias : array_like
        ``(theta_i - theta_j) . x_i``, x_i the best arm of agent i; may be negative.
    logdet_A, noise_scale, param_norm, reading
        As in `nu`.

    Examples
    --------
    >>> round(regret_bound_individual(0.001, 10, horizon=1000, gamma=0.2, bias=0.1), 1)
    3744.0

    Notes
    -----
    See also `gain_individual` and `nu`. The bias is linear in the separation time: the bound is below the
    single-agent one only when agents that differ separate early.

    References
    ----------
    Theorem "Individual Regret During the Collaboration Phase".
    """
    radius: _Radius = {"logdet_A": logdet_A, "noise_scale": noise_scale, "param_norm": param_norm}
    single = nu(delta, dim, horizon, **radius, reading=reading)
    loss = _nonnegative("horizon", horizon) / 2.0 * _finite("bias", bias)
    return _values(gain_individual(delta, dim, gamma) * single + loss)


def regret_bound_network(
    delta: ArrayLike,
    dim: ArrayLike,
    *,
    horizon: ArrayLike,
    bias: ArrayLike,
    logdet_A: ArrayLike | None = None,
    noise_scale: ArrayLike = 1.0,
    param_norm: ArrayLike = 1.0,
    reading: Reading = "printed",
) -> Values:
    """Mean regret of two agents until they separate, ``mu' nu + (T_s / 4) bias``.

    Parameters
    ----------
    delta, dim : array_like
        Confidence level in (0, 1) and dimension.
    horizon : array_like
        Separation time T_s.
    bias : array_like
        ``(theta_i - theta_j) . (x_i - x_j)``, x_i and x_j the best arms of the two; never negative.
    logdet_A, noise_scale, param_norm, reading
        As in `nu`.

    Examples
    --------
    >>> round(regret_bound_network(0.001, 10, horizon=1000, bias=0.1), 1)
    3280.4

    Notes
    -----
    See `gain_network` and `nu`.

    References
    ----------
    Theorem "Regret During the Collaboration Phase".
    """
    radius: _Radius = {"logdet_A": logdet_A, "noise_scale": noise_scale, "param_norm": param_norm}
    single = nu(delta, dim, horizon, **radius, reading=reading)
    loss = _nonnegative("horizon", horizon) / 4.0 * _nonnegative("bias", bias)
    return _values(gain_network(delta, dim) * single + loss)


def regret_bound_clustered(
    delta: ArrayLike,
    dim: ArrayLike,
    *,
    horizon: ArrayLike,
    n_agents: ArrayLike,
    smallest_cluster_fraction: ArrayLike,
    misassigned_total: ArrayLike,
    parameter_norm: ArrayLike,
    logdet_A: ArrayLike | None = None,
    noise_scale: ArrayLike = 1.0,
    param_norm: ArrayLike = 1.0,
    reading: Reading = "printed",
) -> Values:
    """Regret of one agent under clusters, ``mu'' nu + 4 L C / (delta rho_min N)``.

    Parameters
    ----------
    delta, dim : array_like
        Confidence level in (0, 1) and dimension.
    horizon : array_like
        Number T of the agent's pulls.
    n_agents, smallest_cluster_fraction : array_like
        N and rho_min, as in `gain_cluster`.
    misassigned_total : array_like
        C, the sum of `misassigned_bound` over the rounds until the agent has found its cluster, at least 0.
    parameter_norm : array_like
        L, a bound on the norm of every parameter.
    logdet_A, noise_scale, param_norm, reading
        As in `nu`.

    Examples
    --------
    >>> round(regret_bound_clustered(0.1, 10, horizon=500, n_agents=100, smallest_cluster_fraction=0.33,
    ...                              misassigned_total=50.0, parameter_norm=1.0), 1)
    1295.5

    Notes
    -----
    The proof applies Markov's inequality in every round; applied once, to the sum, it gives the same
    formula without a union over rounds. The last round of the sum has to be the last separation from agents
    of *other* clusters (as printed, over all agents, it is infinite). The notes of `gain_cluster`, `nu` and
    `misassigned_bound` apply too.

    References
    ----------
    Theorem "Cumulative Pseudo-Regret with Clustered Agents".
    """
    radius: _Radius = {"logdet_A": logdet_A, "noise_scale": noise_scale, "param_norm": param_norm}
    single = nu(delta, dim, horizon, **radius, reading=reading)
    gain = gain_cluster(delta, dim, n_agents, smallest_cluster_fraction)
    members = _fraction("smallest_cluster_fraction", smallest_cluster_fraction) * _count("n_agents", n_agents)
    norm = _nonnegative("parameter_norm", parameter_norm)
    total = _nonnegative("misassigned_total", misassigned_total)
    return _values(gain * single + 4.0 * norm * total / (_check_delta(delta) * members))


def regret_bound_oracle(
    delta: ArrayLike,
    dim: ArrayLike,
    *,
    horizon: ArrayLike,
    n_agents: ArrayLike,
    smallest_cluster_fraction: ArrayLike = 1.0,
    logdet_A: ArrayLike | None = None,
    noise_scale: ArrayLike = 1.0,
    param_norm: ArrayLike = 1.0,
    reading: Reading = "printed",
) -> Values:
    """Regret of one agent that is told its cluster, ``mu'' nu``.

    Parameters
    ----------
    delta, dim : array_like
        Confidence level in (0, 1) and dimension.
    horizon : array_like
        Number T of the agent's pulls.
    n_agents : array_like
        Number N of agents.
    smallest_cluster_fraction : array_like
        rho_min. The default of 1 gives the printed corollary.
    logdet_A, noise_scale, param_norm, reading
        As in `nu`.

    Examples
    --------
    >>> round(regret_bound_oracle(0.1, 10, horizon=500, n_agents=100), 1)
    709.4

    Notes
    -----
    The corollary prints ``1 / sqrt(N)``; the theorem it is said to follow from gives ``1 / sqrt(rho_min
    N)``. The two agree only for one cluster, so pass rho_min when there are more.

    References
    ----------
    Corollary "Cumulative pseudo regret upper-bound for Oracle".
    """
    radius: _Radius = {"logdet_A": logdet_A, "noise_scale": noise_scale, "param_norm": param_norm}
    single = nu(delta, dim, horizon, **radius, reading=reading)
    return _values(gain_cluster(delta, dim, n_agents, smallest_cluster_fraction) * single)


def regret_lower(
    delta: ArrayLike,
    dim: ArrayLike,
    *,
    horizon: ArrayLike,
    n_agents: ArrayLike,
    logdet_A: ArrayLike | None = None,
    noise_scale: ArrayLike = 1.0,
    param_norm: ArrayLike = 1.0,
) -> Values:
    """The paper's yardstick for one agent among N equal ones, ``nu / N``.

    Parameters
    ----------
    delta, dim : array_like
        Confidence level in (0, 1) and dimension.
    horizon : array_like
        Number T of the agent's pulls.
    n_agents : array_like
        Number N of agents, which all have the same parameter and know it.
    logdet_A, noise_scale, param_norm
        As in `nu`.

    Examples
    --------
    >>> round(regret_lower(0.1, 10, horizon=500, n_agents=100), 2)
    21.39

    Notes
    -----
    The paper calls it a lower bound and gives no proof. ``nu`` bounds regret from above, so a fraction of
    it bounds nothing from below: with one arm, or arms that tie, the regret is 0. Read it as a scale. For N
    agents that pool T pulls each, the usual arguments give a scale of ``nu / sqrt(N)`` per agent.

    References
    ----------
    Discussion after the theorem "Cumulative Pseudo-Regret with Clustered Agents".
    """
    radius: _Radius = {"logdet_A": logdet_A, "noise_scale": noise_scale, "param_norm": param_norm}
    return _values(nu(delta, dim, horizon, **radius) / _count("n_agents", n_agents))


# --- clusters and communication -------------------------------------------------------------------------


def misassigned_bound(
    n_agents: ArrayLike,
    cluster_fraction: ArrayLike,
    *,
    gap: ArrayLike,
    logdet_A: ArrayLike,
    delta: ArrayLike,
    gamma: ArrayLike = 2.0,
    noise_scale: ArrayLike = 1.0,
    param_norm: ArrayLike = 1.0,
    reading: Reading = "printed",
) -> Values:
    """Bound on the expected number of agents wrongly in, or out of, a neighbourhood.

    ``printed``: ``ceil(N p - rho N)``, ``p = sqrt(det A) exp(-(gap - gamma beta)^2 / 2)``;
    ``derived``: ``(1 - rho) N p + (rho N - 1) q``,
    ``p = sqrt(det A) exp(-max(gap - gamma beta, 0)^2 / (4 R^2))``,
    and ``q = delta^(gamma^2 / 2)`` if ``gamma >= sqrt 2``, otherwise 1.

    Parameters
    ----------
    n_agents : array_like
        Number N of agents.
    cluster_fraction : array_like
        Share rho of the agents that the agent's own cluster holds, in (0, 1].
    gap : array_like
        Smallest distance, in the norm of A, between parameters of different clusters.
    logdet_A : array_like
        Log-determinant of the common design matrix, relative to the ridge.
    delta, gamma, noise_scale, param_norm : array_like
        Confidence level, relaxation, noise scale and bound on the parameters' norm of the separation test.
    reading : {"printed", "derived"}
        The paper's statement, or what its proof supports.

    Examples
    --------
    >>> misassigned_bound(100, 0.34, gap=0.0, logdet_A=60.0, delta=0.1, gamma=0.5)
    66.0
    >>> bound = misassigned_bound(100, 0.34, gap=[9, 14, 20], logdet_A=8, delta=0.1, reading="derived")
    >>> bound.round(2)
    array([66.33,  9.26,  0.33])

    Notes
    -----
    Everything is computed in logarithms, and p, a bound on a probability, is capped at 1. The printed form
    falls below 0 once ``p < rho``; it is clipped at 0, because the quantity is a count. So it lies in
    ``[0, (1 - rho) N]``.

    The printed form is not a bound in general. While ``gap < gamma beta`` the square turns a test without
    power into an apparent certainty: before the first pull the graph is complete and ``(1 - rho) N`` agents
    are misassigned, yet it says 0 for gamma 2. It also lacks the noise scale and the factor 2 of the
    variance of a difference, and applies p, which is about agents of other clusters, to all N. The derived
    form repairs these and adds agents of the same cluster that were cut, for which the paper's lemma claims
    probability delta without a union over pairs and needs ``gamma >= sqrt 2``. Both need a common design
    matrix (synchronous pulling) and the squared radius in the test. With ridge estimates the distance that
    matters is ``||(I - A^-1)(theta_i - theta_j)||_A``: pass that as gap.

    References
    ----------
    Lemma "Expected Number of Misassigned Agents".
    """
    _one_of("reading", reading, ("printed", "derived"))
    n_agents = _count("n_agents", n_agents)
    fraction = _fraction("cluster_fraction", cluster_fraction)
    gap = _nonnegative("gap", gap)
    gamma = _positive("gamma", gamma)
    scale = _positive("noise_scale", noise_scale)
    radius = beta(delta, logdet_A, scale, param_norm=param_norm)
    half_logdet = _finite("logdet_A", logdet_A) / 2.0
    excess = gap - gamma * radius
    if reading == "printed":
        kept = np.exp(np.minimum(half_logdet - excess**2 / 2.0, 0.0))
        # Round first: 67.00000000000001 is 67 agents, not 68.
        return _values(np.maximum(np.ceil(np.round(n_agents * (kept - fraction), 9)), 0.0))
    kept = np.exp(np.minimum(half_logdet - (np.maximum(excess, 0.0) / scale) ** 2 / 4.0, 0.0))
    cut = np.where(gamma >= math.sqrt(2.0), np.exp(gamma**2 / 2.0 * np.log(_check_delta(delta))), 1.0)
    return _values((1.0 - fraction) * n_agents * kept + np.maximum(fraction * n_agents - 1.0, 0.0) * cut)


def misassigned_rate(
    n_agents: ArrayLike,
    horizon: ArrayLike,
    *,
    gamma: ArrayLike = 2.0,
    noise_scale: ArrayLike = 1.0,
    reading: Reading = "printed",
) -> Values:
    """Claimed decay, up to a constant, of the number of misassigned agents.

    ``printed`` (the comparison table): ``N / sqrt(T)^(gamma^2 R^2 - 1)``;
    ``derived`` (the appendix): ``N / T^(gamma^2 R^2 - 1/2)``.

    Parameters
    ----------
    n_agents, horizon : array_like
        N and T, both at least 1.
    gamma, noise_scale : array_like
        Relaxation of the test and noise scale R.
    reading : {"printed", "derived"}
        The table's rate or the appendix's.

    Examples
    --------
    >>> misassigned_rate(100, 100, gamma=2.0)
    0.1
    >>> misassigned_rate(100, 100, gamma=1.0, reading="derived")
    10.0

    Notes
    -----
    Neither follows from `misassigned_bound`. Without the gap, its printed form is ``N det(A)^((1 - gamma^2
    R^2)/2)`` up to a constant: the table's rate if ``det A`` grows like T, ``N / T^(gamma^2 R^2 - 1)`` if
    ``sqrt(det A)`` does, as the appendix says; exploring all directions gives ``det A`` of order ``T^d``.
    And the squared gap, which is dropped, grows like T against ``log T`` for the squared radius, so the true
    number decays exponentially once the test has power. That more noise should mean faster decay is an
    artefact of the noise scale missing from the lemma.

    References
    ----------
    Table "Summary of available upper-bounds for clustered agents"; appendix "Asymptotic Analysis".
    """
    _one_of("reading", reading, ("printed", "derived"))
    n_agents = _count("n_agents", n_agents)
    horizon = _count("horizon", horizon)
    power = (_positive("gamma", gamma) * _positive("noise_scale", noise_scale)) ** 2
    exponent = (power - 1.0) / 2.0 if reading == "printed" else power - 0.5
    return _values(n_agents * horizon**-exponent)


def communication_bound(n_agents: ArrayLike, horizon: ArrayLike) -> Values:
    """Largest possible communication cost, ``(N - 1) T``.

    Parameters
    ----------
    n_agents : array_like
        Number N of agents.
    horizon : array_like
        Total number T of pulls, over all agents.

    Examples
    --------
    >>> communication_bound(100, 50_000)
    4950000.0

    Notes
    -----
    Attained by a graph that stays complete. The count is one unit per observation and neighbour, so T
    counts pulls. Under synchronous pulling, for which the paper states it, a round has N pulls: pass ``N *
    rounds``.

    References
    ----------
    Section "Description of the algorithm".
    """
    return _values((_count("n_agents", n_agents) - 1.0) * _nonnegative("horizon", horizon))


@dataclass(frozen=True, slots=True)
class Asymptotic:
    """One row of the comparison table: orders of growth as text."""

    name: str
    regret: str
    misassigned: str


def asymptotics() -> tuple[Asymptotic, ...]:
    """The paper's comparison of the algorithms under clusters, as printed.

    Examples
    --------
    >>> for row in asymptotics():
    ...     print(f"{row.name:7}{row.regret}")
    DynUCB not available
    CLUB   O(d √(M/N) √T log T)
    SCLUB  O(d √(M/N) √T log T)
    CMLB   O(√d / √(ρ_min N) · √T (log T)²)
    BASS   O(√d / √(ρ_min N) · √T log(T/d))

    Notes
    -----
    The BASS row loses a factor d. Its theorem gives ``mu'' nu`` with ``nu = O(d √T log T)`` and ``mu'' =
    O(√(d log N) / √(ρ_min N))``, that is ``d^(3/2)``. Using that ``beta(N A) / beta(A)`` tends to 1 instead
    of its bound gives ``O(d / √(ρ_min N) √T log T)``: the rate of CLUB for clusters of equal size, not a
    better one.

    References
    ----------
    Table "Summary of available upper-bounds for clustered agents".
    """
    unknown = "not available"
    club = "O(d √(M/N) √T log T)"
    return (
        Asymptotic("DynUCB", unknown, unknown),
        Asymptotic("CLUB", club, unknown),
        Asymptotic("SCLUB", club, unknown),
        Asymptotic("CMLB", "O(√d / √(ρ_min N) · √T (log T)²)", unknown),
        Asymptotic("BASS", "O(√d / √(ρ_min N) · √T log(T/d))", "O(N / √T^(γ²R² − 1))"),
    )


@dataclass(frozen=True, slots=True)
class Prediction:
    """One line of `predictions`: a quantity, its value as printed and as derived, and a remark."""

    quantity: str
    printed: float | None
    """None if the paper gives no value or the condition of its bound cannot be met."""
    derived: float | None
    """None if there is no other reading."""
    remark: str


def predictions(
    *,
    dim: int,
    gap: float,
    delta: float,
    n_agents: int,
    horizon: int = 50_000,
    gamma: float = 2.0,
    noise_scale: float = 1.0,
    param_norm: float = 1.0,
    n_clusters: int = 2,
    epsilon: float = 1.0,
) -> tuple[Prediction, ...]:
    """What the theory predicts for a problem, before anything is run.

    Assumes arms and parameters of norm at most 1, synchronous pulling, the squared radius and clusters of
    equal size. Where a bound depends on the arms, they are the basis vectors, pulled equally often. "printed"
    uses the radius without S, as in the paper; "derived" uses it with S.

    Parameters
    ----------
    dim : int
        Dimension.
    gap : float
        Distance between two agents' parameters, or those of the nearest clusters, above 0 and at most 2.
    delta : float
        Confidence level in (0, 1).
    n_agents : int
        Number N of agents.
    horizon : int
        Total number of pulls: rounds of asynchronous pulling. Each agent has ``horizon / N``.
    gamma : float
        Relaxation of the separation test.
    noise_scale : float
        Sub-Gaussian scale R of the noise.
    param_norm : float
        S of the radius, as in `beta`.
    n_clusters : int
        Number of clusters.
    epsilon : float
        Probability of a uniformly drawn arm, for the upper bound on the separation time.

    Examples
    --------
    >>> rows = {row.quantity: row for row in predictions(dim=10, gap=0.2, delta=0.1, n_agents=100)}
    >>> rows["no separation before round"].derived
    231.0
    """
    n = int(_count("n_agents", n_agents))
    clusters = int(_count("n_clusters", n_clusters))
    pulls = max(int(_count("horizon", horizon)) // n, 1)
    dim = int(_count("dim", dim))
    distance = float(_positive("gap", gap))
    if clusters > n:
        raise ValueError(f"n_clusters={clusters} is out of range; it must be at most n_agents={n}")
    if distance > 2.0:
        raise ValueError(
            f"gap={distance} is out of range; two parameters of norm at most 1 are at most 2 apart"
        )
    fraction = (n // clusters) / n
    share = float(_fraction("epsilon", epsilon))
    first = np.zeros(dim)
    first[0] = distance / 2.0
    level = float(_check_delta(delta))
    readings: dict[Reading, dict[str, Any]] = {
        "printed": {"noise_scale": noise_scale, "param_norm": 0.0},
        "derived": {"noise_scale": noise_scale, "param_norm": param_norm},
    }

    def both(function: Callable[..., Values], *arguments: Any, **named: Any) -> tuple[float, float]:
        printed, derived = (
            float(function(*arguments, **named, **noise, reading=reading))
            for reading, noise in readings.items()
        )
        return printed, derived

    corrected = float(separation_time_lower(level, distance, reading="corrected"))
    pair: dict[str, Any] = {"delta": level, "epsilon": share, **readings["derived"]}
    upper = separation_time_upper(np.eye(dim), first, -first, reading="derived", **pair)
    latest = separation_time_upper(np.eye(dim), first, -first, reading="corrected", **pair)
    allowing = f"corrected for chance in the draws: {latest:,}"
    try:
        upper_printed: float | None = separation_time_upper(np.eye(dim), first, -first, **pair)
        upper_remark = f"for γ = 2; {allowing}"
    except ValueError:
        upper_printed = None
        upper_remark = f"for γ = 2; printed: none, its condition on ε is not met; {allowing}"
    together = min(upper, pulls)
    rounds = np.arange(1, pulls + 1) / dim  # pulls of each basis vector: A = (1 + rounds) I
    wrong: dict[str, Any] = {
        "gap": distance * rounds / np.sqrt(1.0 + rounds),
        "logdet_A": dim * np.log1p(rounds),
        "delta": level,
        "gamma": gamma,
    }
    misassigned = {
        reading: np.asarray(misassigned_bound(n, fraction, **wrong, **noise, reading=reading))
        for reading, noise in readings.items()
    }
    limit = float(gamma_max(dim, level))
    useful = (
        "no γ keeps μ below 1" if limit <= 0 else f"γ = {gamma:g} {'gains' if gamma < limit else 'does not'}"
    )
    clustered = [
        float(
            regret_bound_clustered(
                level,
                dim,
                horizon=pulls,
                n_agents=n,
                smallest_cluster_fraction=fraction,
                misassigned_total=float(misassigned[reading].sum()),
                parameter_norm=1.0,
                reading=reading,
                **noise,
            )
        )
        for reading, noise in readings.items()
    ]
    radius = {
        reading: float(beta(level, dim * math.log1p(pulls / dim), **noise))
        for reading, noise in readings.items()
    }
    return (
        Prediction(
            "confidence radius β",
            radius["printed"],
            radius["derived"],
            f"after {pulls:,} pulls of an agent; derived: with S = {param_norm:g} added, for the ridge",
        ),
        Prediction("largest γ that gains, γ_max", limit, None, useful),
        Prediction(
            "gain of one of two agents, μ",
            float(gain_individual(level, dim, gamma)),
            None,
            "factor on the single-agent bound; below 1 is a gain",
        ),
        Prediction("gain of the mean of two agents, μ′", float(gain_network(level, dim)), None, "likewise"),
        Prediction(
            "gain of an agent in its cluster, μ″",
            float(gain_cluster(level, dim, n, fraction)),
            None,
            f"smallest cluster: {n // clusters}",
        ),
        Prediction(
            "no separation before round",
            float(separation_time_lower(level, distance, reading="printed")),
            float(separation_time_lower(level, distance)),
            f"with its steps corrected: {corrected:,.0f}; neither other reading holds in all simulations",
        ),
        Prediction("separation by round", upper_printed, float(upper), upper_remark),
        Prediction("regret of an agent alone, ν", *both(nu, level, dim, pulls), f"{pulls:,} pulls"),
        Prediction(
            "regret of one of two while sharing",
            *both(regret_bound_individual, level, dim, horizon=together, gamma=gamma, bias=distance),
            f"{together:,} rounds together, the worst bias",
        ),
        Prediction(
            "mean regret of two while sharing",
            *both(regret_bound_network, level, dim, horizon=together, bias=2.0 * distance),
            "likewise",
        ),
        Prediction(
            "regret of an agent under clusters",
            clustered[0],
            clustered[1],
            "includes the price of misassigned agents",
        ),
        Prediction(
            "regret of an agent told its cluster",
            float(regret_bound_oracle(level, dim, horizon=pulls, n_agents=n, **readings["printed"])),
            float(
                regret_bound_oracle(
                    level,
                    dim,
                    horizon=pulls,
                    n_agents=n,
                    smallest_cluster_fraction=fraction,
                    reading="derived",
                    **readings["derived"],
                )
            ),
            "printed for one cluster only",
        ),
        Prediction(
            "scale of regret, ν/N",
            float(regret_lower(level, dim, horizon=pulls, n_agents=n, **readings["printed"])),
            None,
            "printed as a lower bound, which it is not",
        ),
        Prediction(
            "misassigned agents in the end",
            float(misassigned["printed"][-1]),
            float(misassigned["derived"][-1]),
            "in the neighbourhood of an agent; printed is no bound in general",
        ),
        Prediction(
            "communication",
            float(communication_bound(n, horizon)),
            None,
            "units of one observation sent to one agent",
        ),
    )


# --- checks and shapes ----------------------------------------------------------------------------------


def _beta_ratio(delta: ArrayLike, dim: ArrayLike, n_agents: ArrayLike) -> FloatArray:
    """Bound on beta(delta, N A) / beta(delta, A), from det A >= 1."""
    surprise = -np.log(_check_delta(delta))
    ratio: FloatArray = np.sqrt(1.0 + _count("dim", dim) * np.log(n_agents) / (2.0 * surprise))
    return ratio


def _squared_ceiling(numerator: FloatArray, denominator: FloatArray) -> Values:
    """The square of a ratio, rounded up; infinite where it is too large for a float."""
    with np.errstate(over="ignore"):
        return _values(np.ceil(np.square(numerator / denominator)))


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


def _values(array: ArrayLike) -> Values:
    """An array, or a plain float for an array without axes."""
    result = np.asarray(array, dtype=np.float64)
    return float(result) if result.ndim == 0 else result


def _show(array: FloatArray) -> str:
    return np.array2string(array, threshold=6, precision=6)


def _finite(name: str, value: ArrayLike) -> FloatArray:
    return _checked(name, value, np.isfinite, "finite")


def _positive(name: str, value: ArrayLike) -> FloatArray:
    return _checked(name, value, lambda v: np.isfinite(v) & (v > 0), "finite and above 0")


def _nonnegative(name: str, value: ArrayLike) -> FloatArray:
    return _checked(name, value, lambda v: np.isfinite(v) & (v >= 0), "finite and at least 0")


def _count(name: str, value: ArrayLike) -> FloatArray:
    return _checked(
        name, value, lambda v: np.isfinite(v) & (v >= 1) & (v == np.floor(v)), "a whole number of at least 1"
    )


def _fraction(name: str, value: ArrayLike) -> FloatArray:
    return _checked(name, value, lambda v: (v > 0) & (v <= 1), "in (0, 1]")


def _check_delta(value: ArrayLike) -> FloatArray:
    return _checked("delta", value, lambda v: (v > 0) & (v < 1), "in (0, 1)")


def _checked(
    name: str, value: ArrayLike, accept: Callable[[FloatArray], NDArray[np.bool_]], right: str
) -> FloatArray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={show(value)} is not numeric; it must be {right}") from None
    if not np.all(accept(array)):
        raise ValueError(f"{name}={_show(array)} is out of range; it must be {right}")
    return array


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; it must be one of {', '.join(map(repr, allowed))}")
