"""When sharing helps: lemma "Instantaneous Regret Upper Bounds", the two-agent problem, Euclidean tests.

Also what the paper says about cost ("Implementation details") and clusters ("Summary of Clustering
Assumptions").
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shoal.lab.theory import checks
from shoal.lab.theory.checks import Reading, Values
from shoal.lab.theory.confidence import beta


def instantaneous_regret_bound(
    delta: ArrayLike,
    logdet_A: ArrayLike,
    width: ArrayLike,
    *,
    gaps: ArrayLike = (),
    dim: int = 1,
    noise_scale: ArrayLike = 1.0,
    param_norm: ArrayLike = 1.0,
) -> Values:
    """Bound on an optimistic agent's regret in one round, alone or with others.

    ``2 beta(A) width`` alone, and ``2 beta(m A) width / sqrt(m) + 2/m sum(gaps)`` with m - 1 others.

    Parameters
    ----------
    delta, logdet_A, noise_scale, param_norm : array_like
        As for `beta`, A being the design of one agent.
    width : array_like
        Norm ``||x||_{A^-1}`` of the arm that is pulled.
    gaps : array_like, last axis over the other agents
        Distances ``||theta_i - theta_j||_A`` to the agents that share; none by default.
    dim : int
        Dimension, which is needed if there are any.

    Examples
    --------
    >>> round(instantaneous_regret_bound(0.1, 0.0, 1.0), 3)
    6.292
    >>> round(instantaneous_regret_bound(0.1, 0.0, 1.0, gaps=[0.5], dim=2), 3)
    5.962

    Notes
    -----
    All agents have the same design A, of ridge 1, and arms are at most 1 long. Pooling m designs is taken as
    ``m A``, ridges included, so S counts ``sqrt(m)`` times. The agent must be optimistic with beta; BASS has
    ``alpha sqrt(ln(t+1))``.

    References
    ----------
    Lemma "Instantaneous Regret Upper Bounds".
    """
    distances = checks.nonnegative("gaps", gaps)
    m = 1 + distances.shape[-1]
    pooled = checks.finite("logdet_A", logdet_A) + float(checks.count("dim", dim)) * math.log(m)
    norm = math.sqrt(m) * checks.nonnegative("param_norm", param_norm)  # the pool has the ridges of all
    radius = beta(delta, pooled, noise_scale, param_norm=norm)
    own = 2.0 * radius * checks.nonnegative("width", width) / math.sqrt(m)
    return checks.values(own + 2.0 / m * distances.sum(axis=-1))


def pair_error_bound(gap: ArrayLike, beta: ArrayLike) -> Values:
    """Error of the estimate that two agents share, ``||theta_1 - theta_2||_A / 2 + beta / sqrt 2``.

    Parameters
    ----------
    gap : array_like
        Distance of their parameters in the norm of A, the design of each of the two.
    beta : array_like
        Bound on the error of one agent's own estimate in the same norm.

    Examples
    --------
    >>> round(pair_error_bound(0.0, 2.0), 3)
    1.414

    References
    ----------
    Section "A simple two agent problem".
    """
    return checks.values(
        checks.nonnegative("gap", gap) / 2.0 + checks.nonnegative("beta", beta) / math.sqrt(2.0)
    )


def sharing_gap(
    delta: ArrayLike,
    logdet_A: ArrayLike,
    dim: int,
    noise_scale: ArrayLike = 1.0,
    *,
    param_norm: ArrayLike = 1.0,
    reading: Reading = "printed",
) -> Values:
    """Distance ``||theta_i - theta_j||_A`` up to which two agents gain by sharing.

    ``printed``: ``(2 - sqrt 2) beta(A)``; ``derived``: ``2 beta(A) - sqrt(2) beta(2A)``, at least 0.

    Parameters
    ----------
    delta, logdet_A, noise_scale, param_norm : array_like
        As for `beta`.
    dim : int
        Dimension.
    reading : {"printed", "derived"}
        The paper's condition, or what its derivation gives before it replaces ``beta(2A) / beta(A)`` by 1.

    Examples
    --------
    >>> round(sharing_gap(0.1, 0.0, 10), 3)
    1.843
    >>> round(sharing_gap(0.1, 0.0, 10, reading="derived"), 3)
    0.0

    References
    ----------
    Equations "sep_crit" and "stop_crit".
    """
    checks.one_of("reading", reading, ("printed", "derived"))
    alone = np.asarray(beta(delta, logdet_A, noise_scale, param_norm=param_norm))
    if reading == "printed":
        return checks.values((2.0 - math.sqrt(2.0)) * alone)
    both = checks.finite("logdet_A", logdet_A) + float(checks.count("dim", dim)) * math.log(2.0)
    norm = math.sqrt(2.0) * checks.nonnegative("param_norm", param_norm)
    together = np.asarray(beta(delta, both, noise_scale, param_norm=norm))
    return checks.values(np.maximum(2.0 * alone - math.sqrt(2.0) * together, 0.0))


def separation_delta(
    delta: ArrayLike,
    logdet_A: ArrayLike,
    noise_scale: ArrayLike = 1.0,
    *,
    param_norm: ArrayLike = 1.0,
    reading: Reading = "printed",
) -> Values:
    """Level at which `sharing_gap` is a test of ellipsoids: ``beta(level, A) = factor * beta(delta, A)``.

    Parameters
    ----------
    delta, logdet_A, noise_scale, param_norm : array_like
        As for `beta`.
    reading : {"printed", "derived"}
        The factor: ``1 + 1/sqrt 2``, or ``1 - 1/sqrt 2``, which is the one that matches.

    Examples
    --------
    >>> round(separation_delta(0.1, 0.0, param_norm=0.0), 5)
    0.00122
    >>> round(separation_delta(0.1, 0.0, param_norm=0.0, reading="derived"), 3)
    0.821

    Notes
    -----
    Two ellipsoids of one shape A and radius r are disjoint if their centres are more than 2r apart. With
    ``(2 - sqrt 2) beta = 2 (1 - 1/sqrt 2) beta`` the factor is ``1 - 1/sqrt 2``; the paper has a plus. A
    level of 1 means that the radius is below that of any ellipsoid of confidence: the data say nothing yet.

    References
    ----------
    Lemma "Ellipsoid Separation Under Synchronous Pulling" and the remark after it.
    """
    checks.one_of("reading", reading, ("printed", "derived"))
    factor = 1.0 + (1.0 if reading == "printed" else -1.0) / math.sqrt(2.0)
    radius = factor * np.asarray(beta(delta, logdet_A, noise_scale, param_norm=param_norm))
    scaled = np.maximum(radius - checks.nonnegative("param_norm", param_norm), 0.0)
    exponent = (
        checks.finite("logdet_A", logdet_A) - (scaled / checks.positive("noise_scale", noise_scale)) ** 2
    ) / 2.0
    return checks.values(np.exp(np.minimum(exponent, 0.0)))


class EuclideanTest(NamedTuple):
    """A test of Euclidean distances as a test of ellipsoids."""

    threshold: float
    """Two estimates further apart than this are separated."""
    kept: float
    """Share of the design's trace that counts, ``d lambda_min / tr A``; the rest is ignored."""


def euclidean_test(A: ArrayLike, radius: float) -> EuclideanTest:
    """The ellipsoid test with ``lambda_min(A) I`` in place of A, as criteria by Euclidean distance are.

    Parameters
    ----------
    A : array_like, shape (d, d)
        Symmetric positive definite design of both agents.
    radius : float
        Radius of the ellipsoids in the norm of A.

    Examples
    --------
    >>> euclidean_test([[100.0, 0.0], [0.0, 4.0]], 1.0)
    EuclideanTest(threshold=1.0, kept=0.07692307692307693)

    Notes
    -----
    The balls contain the ellipsoids, so every pair that this test separates is separated by the ellipsoids,
    too, but not the other way round: it needs up to ``sqrt(lambda_max / lambda_min)`` times the distance.

    References
    ----------
    Remark after lemma "Ellipsoid Separation Under Synchronous Pulling".
    """
    shape = checks.finite("A", A)
    if shape.ndim != 2 or shape.shape[0] != shape.shape[1] or not np.allclose(shape, shape.T):
        raise ValueError(f"A has shape {shape.shape}; it must be a symmetric matrix (d, d)")
    smallest = float(np.linalg.eigvalsh(shape)[0])
    if smallest <= 0.0:
        raise ValueError(f"A={shape.tolist()} is not positive definite; a design matrix with a ridge is")
    size = float(checks.nonnegative("radius", radius))
    return EuclideanTest(2.0 * size / math.sqrt(smallest), len(shape) * smallest / float(np.trace(shape)))


def complexity(
    horizon: ArrayLike,
    n_agents: ArrayLike,
    n_arms: ArrayLike,
    dim: ArrayLike,
    *,
    reading: Reading = "printed",
) -> Values:
    """Order of BASS's operations, ``T (N + K d^2 + (N + 1) d^3)``; ``derived`` has N - 1.

    Parameters
    ----------
    horizon, n_agents, n_arms, dim : array_like
        T, N, K and d.
    reading : {"printed", "derived"}
        The main text, or the appendix, which counts the tests of one agent with all others.

    Examples
    --------
    >>> complexity(50_000, 100, 15, 10)
    5130000000.0
    >>> complexity(50_000, 100, 15, 10, reading="derived")
    5030000000.0

    Notes
    -----
    Ours needs fewer: see docs/performance.md.

    References
    ----------
    Section "Algorithm" and appendix "Implementation details".
    """
    checks.one_of("reading", reading, ("printed", "derived"))
    tests = checks.count("n_agents", n_agents) + (1.0 if reading == "printed" else -1.0)
    d = checks.count("dim", dim)
    per_round = checks.count("n_agents", n_agents) + checks.count("n_arms", n_arms) * d**2 + tests * d**3
    return checks.values(checks.count("horizon", horizon) * per_round)


class ClusteringAssumption(NamedTuple):
    """An assumption on the agents' parameters, and who makes it."""

    assumption: str
    made_by: tuple[str, ...]


def clustering_assumptions() -> list[ClusteringAssumption]:
    """The paper's list of assumptions on clusters, the weakest first.

    Examples
    --------
    >>> clustering_assumptions()[0]
    ClusteringAssumption(assumption='none', made_by=('BASS',))

    References
    ----------
    Appendix "Summary of Clustering Assumptions".
    """
    apart = ("Gentile2014", "Li2016", "Li2018", "Ghosh2022", "Wang2023", "Yang2024")
    return [
        ClusteringAssumption("none", ("BASS",)),
        ClusteringAssumption("equal parameters within a cluster", ("BASS, theorem on clusters",)),
        ClusteringAssumption("equal parameters within a cluster, clusters at least a gap apart", apart),
        ClusteringAssumption("similar parameters within a cluster, clusters may overlap", ("Ban2021",)),
    ]
