"""All bounds for one problem, before anything is run: in both readings, with a remark on each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shoal.lab.theory import checks, regret
from shoal.lab.theory.checks import FloatArray, Reading, Values
from shoal.lab.theory.clusters import communication_bound, misassigned_bound
from shoal.lab.theory.confidence import beta
from shoal.lab.theory.gains import gain_cluster, gain_individual, gain_network, gamma_max
from shoal.lab.theory.separation import separation_time_lower, separation_time_upper

READINGS: tuple[Reading, ...] = ("printed", "derived")


@dataclass(frozen=True, slots=True)
class Forecast:
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
) -> tuple[Forecast, ...]:
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
    agents, clusters = int(checks.count("n_agents", n_agents)), int(checks.count("n_clusters", n_clusters))
    pulls = max(int(checks.count("horizon", horizon)) // agents, 1)
    dim, distance = int(checks.count("dim", dim)), float(checks.positive("gap", gap))
    if clusters > agents:
        raise ValueError(f"n_clusters={clusters} is out of range; it must be at most n_agents={agents}")
    if distance > 2.0:
        raise ValueError(
            f"gap={distance} is out of range; two parameters of norm at most 1 are at most 2 apart"
        )
    share, level = float(checks.fraction("epsilon", epsilon)), float(checks.delta(delta))
    problem = _Problem(
        dim, distance, level, agents, pulls, gamma, share, agents // clusters, noise_scale, param_norm
    )
    cost = float(communication_bound(agents, horizon))
    return (
        *_confidence_and_gains(problem),
        *_separation(problem),
        *_regret_while_sharing(problem),
        *_regret_under_clusters(problem),
        Forecast("communication", cost, None, "units of one observation sent to one agent"),
    )


class _Problem(NamedTuple):
    """What is predicted for, checked; `pulls` are each agent's, `smallest` is the size of a cluster."""

    dim: int
    gap: float
    delta: float
    n_agents: int
    pulls: int
    gamma: float
    epsilon: float
    smallest: int
    noise_scale: float
    param_norm: float

    def radius(self, reading: Reading) -> dict[str, Any]:
        """R and S as a reading has them: the paper prints the radius without S."""
        norm = 0.0 if reading == "printed" else self.param_norm
        return {"noise_scale": self.noise_scale, "param_norm": norm}

    def both(self, function: Callable[..., Values], **named: Any) -> tuple[float, float]:
        """A bound as printed and as derived."""
        printed, derived = (
            float(function(self.delta, self.dim, **named, **self.radius(reading), reading=reading))
            for reading in READINGS
        )
        return printed, derived

    @property
    def fraction(self) -> float:
        """Share of the agents that a cluster holds."""
        return self.smallest / self.n_agents

    def latest_separation(self, reading: Any) -> int:
        """Round by which two agents are separated, where the arms are the basis vectors."""
        half = np.zeros(self.dim)
        half[0] = self.gap / 2.0
        own: dict[str, Any] = {"delta": self.delta, "epsilon": self.epsilon, **self.radius("derived")}
        return separation_time_upper(np.eye(self.dim), half, -half, reading=reading, **own)


def _confidence_and_gains(problem: _Problem) -> tuple[Forecast, ...]:
    level, dim, gamma, pulls = problem.delta, problem.dim, problem.gamma, problem.pulls
    logdet, limit = dim * math.log1p(pulls / dim), float(gamma_max(dim, level))
    printed, derived = (float(beta(level, logdet, **problem.radius(reading))) for reading in READINGS)
    added = (
        f"after {pulls:,} pulls of an agent; derived: with S = {problem.param_norm:g} added, for the ridge"
    )
    useful = (
        f"γ = {gamma:g} {'gains' if gamma < limit else 'does not'}" if limit > 0 else "no γ keeps μ below 1"
    )
    one, mean = float(gain_individual(level, dim, gamma)), float(gain_network(level, dim))
    cluster = float(gain_cluster(level, dim, problem.n_agents, problem.fraction))
    factor = "factor on the single-agent bound; below 1 is a gain"
    return (
        Forecast("confidence radius β", printed, derived, added),
        Forecast("largest γ that gains, γ_max", limit, None, useful),
        Forecast("gain of one of two agents, μ", one, None, factor),
        Forecast("gain of the mean of two agents, μ′", mean, None, "likewise"),
        Forecast(
            "gain of an agent in its cluster, μ″", cluster, None, f"smallest cluster: {problem.smallest}"
        ),
    )


def _separation(problem: _Problem) -> tuple[Forecast, ...]:
    printed, derived, corrected = (
        float(separation_time_lower(problem.delta, problem.gap, reading=reading))
        for reading in ("printed", "derived", "corrected")
    )
    holds = f"with its steps corrected: {corrected:,.0f}; neither other reading holds in all simulations"
    chance = f"corrected for chance in the draws: {problem.latest_separation('corrected'):,}"
    latest = float(problem.latest_separation("derived"))
    try:
        in_print: float | None = problem.latest_separation("printed")
    except ValueError:
        in_print, chance = None, f"printed: none, its condition on ε is not met; {chance}"
    return (
        Forecast("no separation before round", printed, derived, holds),
        Forecast("separation by round", in_print, latest, f"for γ = 2; {chance}"),
    )


def _regret_while_sharing(problem: _Problem) -> tuple[Forecast, ...]:
    pulls, gap, gamma = problem.pulls, problem.gap, problem.gamma
    together = min(problem.latest_separation("derived"), pulls)
    one = problem.both(regret.regret_bound_individual, horizon=together, gamma=gamma, bias=gap)
    mean = problem.both(regret.regret_bound_network, horizon=together, bias=2.0 * gap)
    worst = f"{together:,} rounds together, the worst bias"
    return (
        Forecast("regret of an agent alone, ν", *problem.both(regret.nu, horizon=pulls), f"{pulls:,} pulls"),
        Forecast("regret of one of two while sharing", *one, worst),
        Forecast("mean regret of two while sharing", *mean, "likewise"),
    )


def _regret_under_clusters(problem: _Problem) -> tuple[Forecast, ...]:
    fraction, wrong = problem.fraction, {reading: _misassigned(problem, reading) for reading in READINGS}
    pooled: dict[str, Any] = {"horizon": problem.pulls, "n_agents": problem.n_agents}

    def clustered(*own: Any, reading: Reading, **named: Any) -> Values:
        named |= {"smallest_cluster_fraction": fraction, "misassigned_total": wrong[reading].sum()}
        return regret.regret_bound_clustered(*own, parameter_norm=1.0, reading=reading, **named)

    def oracle(*own: Any, reading: Reading, **named: Any) -> Values:
        named["smallest_cluster_fraction"] = 1.0 if reading == "printed" else fraction
        return regret.regret_bound_oracle(*own, reading=reading, **named)

    learning, knowing = problem.both(clustered, **pooled), problem.both(oracle, **pooled)
    scale = float(regret.regret_lower(problem.delta, problem.dim, **pooled, **problem.radius("printed")))
    printed, derived = (float(wrong[reading][-1]) for reading in READINGS)
    no_bound = "in the neighbourhood of an agent; printed is no bound in general"
    return (
        Forecast("regret of an agent under clusters", *learning, "includes the price of misassigned agents"),
        Forecast("regret of an agent told its cluster", *knowing, "printed for one cluster only"),
        Forecast("scale of regret, ν/N", scale, None, "printed as a lower bound, which it is not"),
        Forecast("misassigned agents in the end", printed, derived, no_bound),
    )


def _misassigned(problem: _Problem, reading: Reading) -> FloatArray:
    """Bound on the misassigned agents of each round, where the basis vectors are pulled in turn."""
    rounds = np.arange(1, problem.pulls + 1) / problem.dim  # of each basis vector: A = (1 + rounds) I
    gap, logdet = problem.gap * rounds / np.sqrt(1.0 + rounds), problem.dim * np.log1p(rounds)
    test: dict[str, Any] = {"delta": problem.delta, "gamma": problem.gamma, **problem.radius(reading)}
    bound = misassigned_bound(
        problem.n_agents, problem.fraction, gap=gap, logdet_A=logdet, reading=reading, **test
    )
    return np.asarray(bound)
