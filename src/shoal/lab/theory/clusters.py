"""Lemma "Expected Number of Misassigned Agents", its claimed rates, communication, the comparison table."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shoal.lab.theory import checks
from shoal.lab.theory.checks import Reading, Values
from shoal.lab.theory.confidence import beta


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
    checks.one_of("reading", reading, ("printed", "derived"))
    n_agents = checks.count("n_agents", n_agents)
    fraction = checks.fraction("cluster_fraction", cluster_fraction)
    gap = checks.nonnegative("gap", gap)
    gamma = checks.positive("gamma", gamma)
    scale = checks.positive("noise_scale", noise_scale)
    radius = beta(delta, logdet_A, scale, param_norm=param_norm)
    half_logdet = checks.finite("logdet_A", logdet_A) / 2.0
    excess = gap - gamma * radius
    if reading == "printed":
        kept = np.exp(np.minimum(half_logdet - excess**2 / 2.0, 0.0))
        # Round first: 67.00000000000001 is 67 agents, not 68.
        return checks.values(np.maximum(np.ceil(np.round(n_agents * (kept - fraction), 9)), 0.0))
    kept = np.exp(np.minimum(half_logdet - (np.maximum(excess, 0.0) / scale) ** 2 / 4.0, 0.0))
    cut = np.where(gamma >= math.sqrt(2.0), np.exp(gamma**2 / 2.0 * np.log(checks.delta(delta))), 1.0)
    return checks.values(
        (1.0 - fraction) * n_agents * kept + np.maximum(fraction * n_agents - 1.0, 0.0) * cut
    )


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
    checks.one_of("reading", reading, ("printed", "derived"))
    n_agents = checks.count("n_agents", n_agents)
    horizon = checks.count("horizon", horizon)
    power = (checks.positive("gamma", gamma) * checks.positive("noise_scale", noise_scale)) ** 2
    exponent = (power - 1.0) / 2.0 if reading == "printed" else power - 0.5
    return checks.values(n_agents * horizon**-exponent)


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
    return checks.values((checks.count("n_agents", n_agents) - 1.0) * checks.nonnegative("horizon", horizon))


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
