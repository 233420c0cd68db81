"""Gains: the factors on the single-agent bound that sharing brings, from the theorems on regret."""

import math

import numpy as np
from numpy.typing import ArrayLike

from shoal.lab.theory import checks
from shoal.lab.theory.checks import FloatArray, Values


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
    return checks.values(2.0 - math.sqrt(2.0) * _beta_ratio(delta, dim, 2))


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
    gamma = checks.positive("gamma", gamma)
    return checks.values(0.5 + gamma / 4.0 + _beta_ratio(delta, dim, 2) / (2.0 * math.sqrt(2.0)))


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
    return checks.values(_beta_ratio(delta, dim, 2) / math.sqrt(2.0))


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
    n_agents = checks.count("n_agents", n_agents)
    fraction = checks.fraction("smallest_cluster_fraction", smallest_cluster_fraction)
    return checks.values(_beta_ratio(delta, dim, n_agents) / np.sqrt(fraction * n_agents))


def _beta_ratio(delta: ArrayLike, dim: ArrayLike, n_agents: ArrayLike) -> FloatArray:
    """Bound on beta(delta, N A) / beta(delta, A), from det A >= 1."""
    surprise = -np.log(checks.delta(delta))
    ratio: FloatArray = np.sqrt(1.0 + checks.count("dim", dim) * np.log(n_agents) / (2.0 * surprise))
    return ratio
