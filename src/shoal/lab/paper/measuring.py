"""Small experiments that measure what the theory bounds; `shoal.lab.paper.judging` compares the two.

They satisfy the assumptions of `shoal.theory` as far as possible. They are cells of a run (`measurements`),
and their raw numbers are stored, so a change in the theory needs no new measurement.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from shoal.core.policies.bass import BASS
from shoal.core.policies.independent import Independent
from shoal.core.policies.oracle import Oracle
from shoal.core.types import Integers, Matrix, Tensor, Vector
from shoal.lab import theory
from shoal.lab.environments.base import Environment, equal_clusters
from shoal.lab.experiments.measurements import Measurement, load_outcome
from shoal.lab.metrics import misassigned_agents, same_cluster
from shoal.lab.simulation import Trace, recorded_rounds, simulate

RADII = ("beta_squared", "beta")

READINGS: tuple[Literal["printed", "derived", "corrected"], ...] = ("printed", "derived", "corrected")
"""Readings of the separation times."""


class TheorySetting(msgspec.Struct, frozen=True):
    """Sizes of the experiments. The defaults take about 15 seconds; tests use smaller ones."""

    seed: int = 0
    delta: float = 0.1
    gamma: float = 2.0
    param_norm: float = 0.0
    """S of the radius: 0, because the paper prints none. Coverage is also measured with S = 1."""
    coverage_deltas: tuple[float, ...] = (0.01, 0.1, 0.5, 0.9)
    coverage_scales: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0)
    coverage_dim: int = 3
    coverage_rounds: int = 150
    coverage_runs: int = 2000
    gaps: tuple[float, ...] = (0.2, 0.3, 0.45, 0.65, 0.9, 1.27, 1.7, 2.0)
    pairs: int = 200
    """Pairs of agents for each gap, and for each noise scale below."""
    one_arm: tuple[tuple[float, str], ...] = ((0.1, "beta_squared"), (0.01, "beta_squared"), (0.1, "beta"))
    """δ and radius of the sweeps with a single arm, the setting of the lower bound."""
    one_arm_pairs: int = 400
    low_noise_gaps: tuple[float, ...] = (1.27, 2.0)
    low_noise_ratios: tuple[float, ...] = (0.03, 0.05, 0.08, 0.12, 0.16, 0.2, 0.24, 0.27)
    """Noise scale divided by the gap; the printed upper bound on the separation time needs less than 0.29."""
    sharing_dim: int = 4
    sharing_arms: int = 10
    sharing_gaps: tuple[float, ...] = (0.0, 0.5, 1.27)
    sharing_rounds: int = 1000
    sharing_runs: int = 100
    alpha: float = 2.0
    """For the experiments on regret: the bonus α√ln(t+1) is about β after 1,000 pulls in 4 dimensions."""
    n_agents: int = 15
    n_clusters: int = 3
    cluster_gap: float = 1.27
    cluster_dim: int = 4
    cluster_rounds: int = 1000
    cluster_runs: int = 50
    points: int = 40


class Coverage(msgspec.Struct, frozen=True):
    """Share of runs in which θ was inside the ellipsoid in every round, by noise scale and δ."""

    plain: tuple[tuple[float, ...], ...]
    """With radius β."""
    widened: tuple[tuple[float, ...], ...]
    """With radius β + ‖θ‖, which the ridge requires."""


class Band(msgspec.Struct, frozen=True):
    """Mean over runs at each of several rounds, and its standard error (0 for a single run)."""

    mean: tuple[float, ...]
    error: tuple[float, ...]


class Sharing(msgspec.Struct, frozen=True):
    """Two agents, one gap and radius: regret while they share, run by run, and over rounds."""

    gap: float
    radius: str
    biases: tuple[float, float, float]
    """(θ_i − θ_j)·x_i*, the same for j, and (θ_i − θ_j)·(x_i* − x_j*)."""
    separated: tuple[int, ...]
    """Round of separation in each run, −1 if there was none."""
    regret: tuple[tuple[float, float], ...]
    """Regret of each agent up to that round, or to the end."""
    rounds: tuple[int, ...]
    together: Band
    """Mean regret of the two agents, including after the separation."""
    alone: Band
    """The same for two agents that do not share, on the same draws."""


class ClusterRuns(msgspec.Struct, frozen=True):
    """Several clusters: what one policy did, over `rounds` and run by run."""

    policy: str
    """ "beta_squared" or "beta" for BASS with that radius, or "oracle"."""
    rounds: tuple[int, ...]
    regret: Band
    """Mean regret of an agent."""
    misassigned: Band
    """Mean number of misassigned agents in a neighbourhood."""
    communication: Band
    """Communication cost so far."""
    worst_regret: tuple[float, ...]
    """Largest regret of an agent at the end of each run."""
    misassigned_total: float
    """Sum of `misassigned` over all rounds."""
    largest_cost: tuple[float, ...]
    """Largest communication cost per round so far, in each run."""


class Measured(msgspec.Struct, frozen=True):
    """Everything that `measure` found: raw numbers, no verdicts."""

    setting: TheorySetting
    coverage: Coverage
    separation: dict[str, tuple[tuple[int, ...], ...]]
    """By radius: round of separation for each gap and pair, −1 if there was none."""
    one_arm: tuple[tuple[tuple[int, ...], ...], ...]
    """The same with one arm, for each entry of `TheorySetting.one_arm`."""
    low_noise: tuple[tuple[tuple[int, ...], ...], ...]
    """The same for each of `TheorySetting.low_noise_gaps` and `low_noise_ratios`, with two arms and β²."""
    sharing: tuple[Sharing, ...]
    clusters: tuple[ClusterRuns, ...]
    """Policies that choose their arms."""
    exploring: tuple[ClusterRuns, ...]
    """BASS that pulls the basis vectors in turn, so that the designs of all agents are equal."""


class GivenArms(Environment):
    """A single arm in each round, the same for all agents: synchronous pulling as in the proofs.

    Parameters
    ----------
    arms : (K, d)
    order : (rounds,)
        The index of the arm of each round.
    **named
        As for `Environment`.
    """

    def __init__(self, arms: Matrix, order: Integers, **named: Any) -> None:
        super().__init__(arms, **named)
        self._order = order

    def arms_in(self, first: int, last: int) -> Tensor:
        """The arm of each of the rounds `first`, …, `last`, shape (rounds, 1, d)."""
        return np.ascontiguousarray(self.arms[self._order[first - 1 : last], None])

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        """Mean rewards, shape (n, 1), of `agents` (n,) in `rounds` (n,), for the arm of each round."""
        assert self.theta_star is not None  # every experiment here has parameters
        return np.asarray(np.einsum("nkd,nd->nk", arms[rounds - first], self.theta_star[agents]))


def measurements(setting: TheorySetting | None = None) -> list[Measurement]:
    """The experiments as cells of a run, one for each field of `Measured`."""
    setting = TheorySetting() if setting is None else setting
    return [
        Measurement(f"theory/{name}", msgspec.to_builtins(setting), partial(compute, setting))
        for name, compute in _EXPERIMENTS.items()
    ]


def load_measured(out: Path) -> Measured | None:
    """What a run measured, or None if any of it is missing or unreadable."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(Measured)}
    found = {name: load_outcome(out, f"theory/{name}", kinds[name]) for name in _EXPERIMENTS}
    settings = [entry.settings for entry in found.values() if entry is not None]
    if len(settings) < len(found) or any(own != settings[0] for own in settings):
        return None
    setting = msgspec.convert(settings[0], TheorySetting)
    return Measured(setting=setting, **{name: entry.outcome for name, entry in found.items() if entry})


def measure(setting: TheorySetting) -> Measured:
    """Play all experiments."""
    return Measured(setting=setting, **{name: compute(setting) for name, compute in _EXPERIMENTS.items()})


def measure_coverage(setting: TheorySetting) -> Coverage:
    """Ellipsoids of single agents that pull uniformly drawn unit arms, with ‖θ‖ = 1, from round 0."""
    rng = np.random.default_rng(setting.seed)
    runs, dim = setting.coverage_runs, setting.coverage_dim
    arms = unit_arms(8, dim, rng)
    theta = unit_arms(runs, dim, rng)
    scales, deltas = np.array(setting.coverage_scales), np.array(setting.coverage_deltas)
    A = np.tile(np.eye(dim), (runs, 1, 1))
    noise_sum = np.zeros((runs, dim))
    inside = np.ones((2, len(scales), len(deltas), runs), dtype=np.bool_)
    for _ in range(setting.coverage_rounds + 1):
        # θ̂ − θ = A⁻¹ (R Σ x·noise − θ), so ‖θ̂ − θ‖_A needs neither rewards nor estimates.
        error = scales[:, None, None] * noise_sum - theta
        distance = np.sqrt(np.einsum("sri,sri->sr", error, np.linalg.solve(A, error[..., None])[..., 0]))
        radius = np.array([theory.beta(delta, np.linalg.slogdet(A)[1], param_norm=0.0) for delta in deltas])
        allowed = scales[:, None, None] * radius
        for index, extra in enumerate((0.0, 1.0)):
            inside[index] &= distance[:, None] <= allowed + extra
        x = arms[rng.integers(len(arms), size=runs)]
        A += x[:, :, None] * x[:, None, :]
        noise_sum += rng.standard_normal(runs)[:, None] * x
    plain, widened = inside.mean(axis=3)
    return Coverage(plain=_nested(plain), widened=_nested(widened))


def measure_separation(setting: TheorySetting, radius: str) -> tuple[tuple[int, ...], ...]:
    """Rounds until two agents separate: d = 2, e1 or e2 drawn uniformly in each round, noise 1."""
    return tuple(
        tuple(_separation_time(setting, np.eye(2), pair_at(gap), radius, seed) for seed in _seeds(setting))
        for gap in setting.gaps
    )


def measure_one_arm(setting: TheorySetting, delta: float, radius: str) -> tuple[tuple[int, ...], ...]:
    """Rounds until two agents with one unit arm, along their difference, separate; noise 1.

    Played only up to the largest lower bound.
    """
    times = []
    for gap in setting.gaps:
        theta = (np.array([gap / 2.0]), np.array([-gap / 2.0]))
        horizon = int(max(theory.separation_time_lower(delta, gap, reading=name) for name in READINGS))
        times.append(
            tuple(
                _separation_time(setting, np.eye(1), theta, radius, seed, delta=delta, horizon=horizon)
                for seed in _seeds(setting, setting.one_arm_pairs)
            )
        )
    return tuple(times)


def measure_low_noise(setting: TheorySetting) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """`measure_separation` with noise so low that the printed upper bound applies; β²."""
    return tuple(
        tuple(
            tuple(
                _separation_time(
                    setting, np.eye(2), pair_at(gap), "beta_squared", seed, noise_scale=ratio * gap
                )
                for seed in _seeds(setting)
            )
            for ratio in setting.low_noise_ratios
        )
        for gap in setting.low_noise_gaps
    )


def measure_sharing(setting: TheorySetting, gap: float, radius: str) -> Sharing:
    """Regret of two agents that share until they separate; synchronous, unit arms, noise 1."""
    rng = np.random.default_rng([setting.seed, 1])
    dim, horizon = setting.sharing_dim, setting.sharing_rounds
    arms = unit_arms(setting.sharing_arms, dim, rng)
    theta = np.array(pair_at(gap)) @ _plane(dim, rng)
    world = Environment(arms, theta_star=theta)
    rounds = recorded_rounds(horizon, setting.points)
    ends, regrets, curves, alones = [], [], [], []
    for seed in _seeds(setting, setting.sharing_runs):
        policy = BASS(
            2, dim, alpha=setting.alpha, delta=setting.delta, gamma=setting.gamma, radius=radius,
            param_norm=setting.param_norm, seed=seed,
        )  # fmt: skip
        trace = simulate(policy, world, horizon=horizon, seed=seed, pulling="synchronous", points=1)
        end = int(policy.separation_time[0, 1])
        by_agent = agent_regret(trace, world)
        first, second = by_agent[(end if end > 0 else horizon) - 1].tolist()
        ends.append(end)
        regrets.append((first, second))
        curves.append(by_agent.mean(axis=1)[rounds - 1])
        single = Independent(2, dim, alpha=setting.alpha, seed=seed)
        alone = simulate(single, world, horizon=horizon, seed=seed, pulling="synchronous", points=1)
        alones.append(alone.regret[rounds - 1] / 2.0)
    best = arms[np.argmax(world.mean_rewards, axis=1)]
    difference = theta[0] - theta[1]
    return Sharing(
        gap=gap,
        radius=radius,
        biases=(
            float(difference @ best[0]),
            float(-difference @ best[1]),
            float(difference @ (best[0] - best[1])),
        ),
        separated=tuple(ends),
        regret=tuple(regrets),
        rounds=tuple(rounds.tolist()),
        together=_band(curves),
        alone=_band(alones),
    )


def measure_clusters(setting: TheorySetting, policy: str, *, in_turn: bool = False) -> ClusterRuns:
    """Several clusters with parameters of norm 1 at one distance; synchronous, unit arms, noise 1.

    Parameters
    ----------
    setting : TheorySetting
    policy : str
        "oracle", or the radius of BASS.
    in_turn : bool
        Let all agents pull the basis vectors in turn, instead of choosing from unit arms.
    """
    rng = np.random.default_rng([setting.seed, 2])
    n, dim, horizon = setting.n_agents, setting.cluster_dim, setting.cluster_rounds
    labels = equal_clusters(n, setting.n_clusters)
    theta = equidistant(setting.n_clusters, dim, setting.cluster_gap)[labels]
    if in_turn:
        world: Environment = GivenArms(np.eye(dim), np.arange(horizon) % dim, theta_star=theta, labels=labels)
    else:
        world = Environment(unit_arms(setting.sharing_arms, dim, rng), theta_star=theta, labels=labels)
    truth = same_cluster(labels)
    rounds = recorded_rounds(horizon, setting.points)
    regret, worst, wrong, totals, cost = [], [], [], [], []
    for seed in _seeds(setting, setting.cluster_runs):
        player: Any
        if policy == "oracle":
            player = Oracle(n, dim, alpha=setting.alpha, labels=labels, seed=seed)
        else:
            player = BASS(
                n, dim, alpha=setting.alpha, delta=setting.delta, gamma=setting.gamma, radius=policy,
                param_norm=setting.param_norm, seed=seed,
            )  # fmt: skip
        trace = simulate(
            player, world, horizon=horizon, seed=seed, pulling="synchronous", points=setting.points
        )
        # With one arm per round there is no regret.
        by_agent = np.zeros((horizon, n)) if in_turn else agent_regret(trace, world)
        regret.append(by_agent.mean(axis=1)[rounds - 1])
        worst.append(float(by_agent[-1].max()))
        over_rounds = misassigned_over_rounds(trace, truth, horizon)
        wrong.append(over_rounds[rounds - 1])
        totals.append(float(over_rounds.sum()))
        cost.append(trace.communication)
    return ClusterRuns(
        policy=policy,
        rounds=tuple(rounds.tolist()),
        regret=_band(regret),
        misassigned=_band(wrong),
        communication=_band(cost),
        worst_regret=tuple(worst),
        misassigned_total=float(np.mean(totals)),
        largest_cost=tuple((np.array(cost) / rounds).max(axis=1).tolist()),
    )


def agent_regret(trace: Trace, world: Environment) -> Matrix:
    """Cumulative pseudo-regret of each agent after each round, shape (rounds, N), of a synchronous trace."""
    lost = world.mean_rewards.max(axis=1, keepdims=True) - world.mean_rewards
    return np.asarray(np.cumsum(lost[trace.agents, trace.choices].reshape(-1, world.n_agents), axis=0))


def misassigned_over_rounds(trace: Trace, truth: Any, horizon: int) -> Vector:
    """Mean number of misassigned agents per neighbourhood after each round, shape (horizon,)."""
    if trace.separation_time is None:  # the oracle, which knows the clusters
        return np.zeros(horizon)
    when = trace.separation_time
    found = np.zeros(horizon)
    # The graph changes only at cuts: count once for each stretch between two of them.
    changes = np.unique([0, *when[when > 0].tolist(), horizon])
    for start, stop in zip(changes[:-1], [*changes[1:-1], horizon + 1], strict=True):
        graph = (when < 0) | (when > start)
        np.fill_diagonal(graph, False)
        found[max(start, 1) - 1 : stop - 1] = misassigned_agents(graph, truth).mean()
    return found


def pair_at(gap: float) -> tuple[Vector, Vector]:
    """Two unit vectors of the plane at distance `gap`."""
    angle = 2.0 * math.asin(gap / 2.0)
    return np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])


def equidistant(n: int, dim: int, gap: float) -> Matrix:
    """`n` vectors of norm 1, each at distance `gap` from all others, shape (n, dim)."""
    # The rows of a Cholesky factor have the inner products of the Gram matrix.
    correlation = 1.0 - gap**2 / 2.0
    gram = np.full((n, n), correlation) + (1.0 - correlation) * np.eye(n)
    try:
        factor = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        raise ValueError(f"gap={gap} is too large for {n} vectors of norm 1") from None
    if n > dim:
        raise ValueError(f"dim={dim} is too small for {n} vectors; it must be at least {n}")
    return np.hstack([factor, np.zeros((n, dim - n))])


def unit_arms(n: int, dim: int, rng: np.random.Generator) -> Matrix:
    """Vectors drawn uniformly from the unit sphere, shape (n, dim)."""
    arms = rng.standard_normal((n, dim))
    return np.asarray(arms / np.linalg.norm(arms, axis=1, keepdims=True))


def _plane(dim: int, rng: np.random.Generator) -> Matrix:
    """Two orthonormal vectors, shape (2, dim)."""
    return np.asarray(np.linalg.qr(rng.standard_normal((dim, 2)))[0].T)


def _separation_time(
    setting: TheorySetting,
    arms: Matrix,
    theta: tuple[Vector, Vector],
    radius: str,
    seed: int,
    *,
    delta: float | None = None,
    noise_scale: float = 1.0,
    horizon: int = 100_000,
) -> int:
    policy = BASS(
        2, arms.shape[1], alpha=1.0, delta=setting.delta if delta is None else delta, gamma=setting.gamma,
        radius=radius, noise_scale=noise_scale, param_norm=setting.param_norm, seed=seed,
    )  # fmt: skip
    stretch = 0
    while policy.separation_time[0, 1] < 0 and policy.rounds < horizon:
        # In ever longer stretches, each with its own draws, until the pair separates.
        length = min(250 * 2**stretch, horizon - policy.rounds)
        order = np.random.default_rng([seed, stretch]).integers(len(arms), size=length)
        world = GivenArms(arms, order, theta_star=np.array(theta), noise_scale=noise_scale)
        simulate(policy, world, horizon=length, seed=100 * seed + stretch, pulling="synchronous", points=1)
        stretch += 1
    return int(policy.separation_time[0, 1])


def _seeds(setting: TheorySetting, n: int | None = None) -> range:
    return range(setting.seed, setting.seed + (setting.pairs if n is None else n))


def _nested(rows: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in row) for row in rows)


def _band(rows: Any) -> Band:
    values = np.asarray(rows, dtype=np.float64)
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else values[0] * 0.0
    (mean, spread) = _nested((values.mean(axis=0), error))
    return Band(mean, spread)


def _measure_separations(setting: TheorySetting) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {radius: measure_separation(setting, radius) for radius in RADII}


def _measure_one_arms(setting: TheorySetting) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(measure_one_arm(setting, delta, radius) for delta, radius in setting.one_arm)


def _measure_all_sharing(setting: TheorySetting) -> tuple[Sharing, ...]:
    return tuple(measure_sharing(setting, gap, radius) for radius in RADII for gap in setting.sharing_gaps)


def _measure_choosing(setting: TheorySetting) -> tuple[ClusterRuns, ...]:
    return tuple(measure_clusters(setting, policy) for policy in (*RADII, "oracle"))


def _measure_exploring(setting: TheorySetting) -> tuple[ClusterRuns, ...]:
    return tuple(measure_clusters(setting, policy, in_turn=True) for policy in RADII)


_EXPERIMENTS: dict[str, Callable[[TheorySetting], Any]] = {
    "coverage": measure_coverage,
    "separation": _measure_separations,
    "one_arm": _measure_one_arms,
    "low_noise": measure_low_noise,
    "sharing": _measure_all_sharing,
    "clusters": _measure_choosing,
    "exploring": _measure_exploring,
}
"""By field of `Measured`."""
