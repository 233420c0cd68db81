"""Bounds on regret: of an agent alone, while two share, under clusters, and when told its cluster."""

from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from shoal.lab.theory import checks
from shoal.lab.theory.checks import Reading, Values
from shoal.lab.theory.confidence import beta
from shoal.lab.theory.gains import gain_cluster, gain_individual, gain_network


class _SingleAgent(TypedDict, total=False):
    """What the other bounds pass on to `nu`."""

    logdet_A: ArrayLike | None
    noise_scale: ArrayLike
    param_norm: ArrayLike
    reading: Reading


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
    checks.one_of("reading", reading, ("printed", "derived"))
    dim = checks.count("dim", dim)
    horizon = checks.nonnegative("horizon", horizon)
    potential = dim * np.log1p(horizon / dim)
    radius = beta(delta, potential if logdet_A is None else logdet_A, noise_scale, param_norm=param_norm)
    constant = 4.0 if reading == "printed" else 8.0
    return checks.values(np.sqrt(constant * horizon * potential) * radius)


def regret_bound_individual(
    delta: ArrayLike,
    dim: ArrayLike,
    *,
    horizon: ArrayLike,
    gamma: ArrayLike,
    bias: ArrayLike,
    **single: Unpack[_SingleAgent],
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
    alone = nu(delta, dim, horizon, **single)
    loss = checks.nonnegative("horizon", horizon) / 2.0 * checks.finite("bias", bias)
    return checks.values(gain_individual(delta, dim, gamma) * alone + loss)


def regret_bound_network(
    delta: ArrayLike, dim: ArrayLike, *, horizon: ArrayLike, bias: ArrayLike, **single: Unpack[_SingleAgent]
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
    alone = nu(delta, dim, horizon, **single)
    loss = checks.nonnegative("horizon", horizon) / 4.0 * checks.nonnegative("bias", bias)
    return checks.values(gain_network(delta, dim) * alone + loss)


def regret_bound_clustered(
    delta: ArrayLike,
    dim: ArrayLike,
    *,
    horizon: ArrayLike,
    n_agents: ArrayLike,
    smallest_cluster_fraction: ArrayLike,
    misassigned_total: ArrayLike,
    parameter_norm: ArrayLike,
    **single: Unpack[_SingleAgent],
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
    alone = nu(delta, dim, horizon, **single)
    gain = gain_cluster(delta, dim, n_agents, smallest_cluster_fraction)
    members = checks.fraction("smallest_cluster_fraction", smallest_cluster_fraction) * checks.count(
        "n_agents", n_agents
    )
    norm = checks.nonnegative("parameter_norm", parameter_norm)
    total = checks.nonnegative("misassigned_total", misassigned_total)
    return checks.values(gain * alone + 4.0 * norm * total / (checks.delta(delta) * members))


def regret_bound_oracle(
    delta: ArrayLike,
    dim: ArrayLike,
    *,
    horizon: ArrayLike,
    n_agents: ArrayLike,
    smallest_cluster_fraction: ArrayLike = 1.0,
    **single: Unpack[_SingleAgent],
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
    alone = nu(delta, dim, horizon, **single)
    return checks.values(gain_cluster(delta, dim, n_agents, smallest_cluster_fraction) * alone)


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
    alone = nu(delta, dim, horizon, logdet_A=logdet_A, noise_scale=noise_scale, param_norm=param_norm)
    return checks.values(alone / checks.count("n_agents", n_agents))
