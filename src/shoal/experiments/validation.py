"""The theory's bounds against simulation: measure first, then judge.

`measure` plays small experiments in which the assumptions of `shoal.theory` hold as far as possible, and
keeps the raw numbers. `judge` compares them with the bounds, reading by reading, so that a change in the
theory needs no new measurement.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from scipy import stats

from shoal import theory
from shoal.environments.base import Environment, equal_clusters
from shoal.experiments.fingerprint import code_fingerprint
from shoal.experiments.results import write_whole
from shoal.metrics import misassigned_agents, same_cluster
from shoal.policies.bass import BASS
from shoal.policies.independent import Independent
from shoal.policies.oracle import Oracle
from shoal.simulation import Trace, simulate
from shoal.types import Integers, Matrix, Tensor, Vector

Verdict = Literal["yes", "no", "not decided", "does not apply"]
Side = Literal["at most", "at least"]

RADII = ("beta_squared", "beta")
RADIUS_NAMES = {"beta_squared": "β²", "beta": "β"}

READINGS: tuple[Literal["printed", "derived", "corrected"], ...] = ("printed", "derived", "corrected")
"""Readings of the separation times."""

UNSQUARED = "the test is scaled by β, not β²"
PARTED = "designs differ once agents part"
BONUS = "the bonus is α√ln(t+1), not β"
RIDGE = "the pool has one ridge, not one for each agent"


class Setting(msgspec.Struct, frozen=True):
    """Sizes of the experiments. The defaults take about 15 seconds; tests use smaller ones."""

    seed: int = 0
    delta: float = 0.1
    gamma: float = 2.0
    param_norm: float = 0.0
    """S of the radius: 0, since the paper prints none. Coverage is also measured with S = 1."""
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
    """Noise scales over the gap; the printed upper bound on the separation time needs less than 0.29."""
    sharing_dim: int = 4
    sharing_arms: int = 10
    sharing_gaps: tuple[float, ...] = (0.0, 0.5, 1.27)
    sharing_rounds: int = 1000
    sharing_runs: int = 100
    alpha: float = 2.0
    """Of the experiments on regret: its bonus α√ln(t+1) is about β after 1,000 pulls in 4 dimensions."""
    n_agents: int = 15
    n_clusters: int = 3
    cluster_gap: float = 1.27
    cluster_dim: int = 4
    cluster_rounds: int = 1000
    cluster_runs: int = 50
    points: int = 40


class Coverage(msgspec.Struct, frozen=True):
    """Shares of runs in which θ was inside the ellipsoid in every round, by noise scale and δ."""

    plain: tuple[tuple[float, ...], ...]
    """With radius β."""
    widened: tuple[tuple[float, ...], ...]
    """With radius β + ‖θ‖, which the ridge calls for."""


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
    """Mean regret of the two agents, after the separation too."""
    alone: Band
    """The same for two agents that do not share, on the same draws."""


class Clusters(msgspec.Struct, frozen=True):
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
    """Everything `measure` found: raw numbers, no verdicts."""

    setting: Setting
    code: str
    """Hash of the code that was measured."""
    coverage: Coverage
    separation: dict[str, tuple[tuple[int, ...], ...]]
    """By radius: round of separation for each gap and pair, −1 if there was none."""
    one_arm: tuple[tuple[tuple[int, ...], ...], ...]
    """The same with one arm, for each entry of `Setting.one_arm`."""
    low_noise: tuple[tuple[tuple[int, ...], ...], ...]
    """The same for each of `Setting.low_noise_gaps` and `low_noise_ratios`, with two arms and β²."""
    sharing: tuple[Sharing, ...]
    clusters: tuple[Clusters, ...]
    """Policies that choose their arms."""
    exploring: tuple[Clusters, ...]
    """BASS that pulls the basis vectors in turn, so that the designs of all agents are equal."""


class Check(msgspec.Struct, frozen=True):
    """One bound, in one reading, against one experiment."""

    result: str
    setting: str
    reading: str
    unmet: tuple[str, ...]
    """Assumptions that do not hold in this experiment; none if all do."""
    quantity: str
    """What was measured."""
    measured: float
    low: float
    high: float
    """Its 95% interval."""
    side: Side
    bound: float | None
    """None where the theory gives none."""
    runs: int
    holds: Verdict
    note: str = ""


# Measuring


class GivenArms(Environment):
    """A single arm in each round, the same for all agents: synchronous pulling as the proofs assume it.

    Parameters
    ----------
    arms : (K, d)
    order : (rounds,)
        Which arm there is in each round.
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


def measure(cache: Path | None = None, setting: Setting | None = None) -> Measured:
    """Play all experiments, or read what an earlier call measured.

    Parameters
    ----------
    cache : Path, optional
        JSON file with earlier measurements: used when made with the same setting and code, else written.
    setting : Setting, optional
        Sizes of the experiments.
    """
    setting = Setting() if setting is None else setting
    code = code_fingerprint(())
    if cache is not None and cache.exists():
        try:
            stored = msgspec.json.decode(cache.read_bytes(), type=Measured)
        except (msgspec.DecodeError, UnicodeDecodeError):
            stored = None  # a damaged cache is made again
        if stored is not None and (stored.setting, stored.code) == (setting, code):
            return stored
    measured = Measured(
        setting=setting,
        code=code,
        coverage=measure_coverage(setting),
        separation={radius: measure_separation(setting, radius) for radius in RADII},
        one_arm=tuple(measure_one_arm(setting, delta, radius) for delta, radius in setting.one_arm),
        low_noise=measure_low_noise(setting),
        sharing=tuple(
            measure_sharing(setting, gap, radius) for radius in RADII for gap in setting.sharing_gaps
        ),
        clusters=tuple(measure_clusters(setting, policy) for policy in (*RADII, "oracle")),
        exploring=tuple(measure_clusters(setting, policy, in_turn=True) for policy in RADII),
    )
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_whole(cache, msgspec.json.encode(measured))
    return measured


def measure_coverage(setting: Setting) -> Coverage:
    """Ellipsoids of single agents that pull uniformly drawn unit arms, ‖θ‖ = 1, from round 0 on."""
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


def measure_separation(setting: Setting, radius: str) -> tuple[tuple[int, ...], ...]:
    """Rounds until two agents separate: d = 2, e1 or e2 drawn uniformly in each round, noise 1."""
    return tuple(
        tuple(_separation_time(setting, np.eye(2), pair_at(gap), radius, seed) for seed in _seeds(setting))
        for gap in setting.gaps
    )


def measure_one_arm(setting: Setting, delta: float, radius: str) -> tuple[tuple[int, ...], ...]:
    """Rounds until two agents separate that have one unit arm along their difference, noise 1.

    Only as many rounds are played as the lower bound speaks of.
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


def measure_low_noise(setting: Setting) -> tuple[tuple[tuple[int, ...], ...], ...]:
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


def measure_sharing(setting: Setting, gap: float, radius: str) -> Sharing:
    """Regret of two agents that share until they separate; synchronous, unit arms, noise 1."""
    rng = np.random.default_rng([setting.seed, 1])
    dim, horizon = setting.sharing_dim, setting.sharing_rounds
    arms = unit_arms(setting.sharing_arms, dim, rng)
    theta = np.array(pair_at(gap)) @ _plane(dim, rng)
    world = Environment(arms, theta_star=theta)
    rounds = _recorded(horizon, setting.points)
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


def measure_clusters(setting: Setting, policy: str, *, in_turn: bool = False) -> Clusters:
    """Several clusters with parameters of norm 1 at one distance; synchronous, unit arms, noise 1.

    Parameters
    ----------
    setting : Setting
    policy : str
        "oracle", or the radius of BASS.
    in_turn : bool
        Let all agents pull the basis vectors one after another, instead of choosing from unit arms.
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
    rounds = _recorded(horizon, setting.points)
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
        # With one arm a round there is nothing to regret.
        by_agent = np.zeros((horizon, n)) if in_turn else agent_regret(trace, world)
        regret.append(by_agent.mean(axis=1)[rounds - 1])
        worst.append(float(by_agent[-1].max()))
        over_rounds = misassigned_over_rounds(trace, truth, horizon)
        wrong.append(over_rounds[rounds - 1])
        totals.append(float(over_rounds.sum()))
        cost.append(trace.communication)
    return Clusters(
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
    if trace.separation_time is None:  # told the clusters
        return np.zeros(horizon)
    when = trace.separation_time
    found = np.zeros(horizon)
    changes = np.unique([0, *when[when > 0].tolist(), horizon])
    for start, stop in zip(changes[:-1], [*changes[1:-1], horizon + 1], strict=True):
        graph = (when < 0) | (when > start)
        np.fill_diagonal(graph, False)
        found[max(start, 1) - 1 : stop - 1] = misassigned_agents(graph, truth).mean()
    return found


def pair_at(gap: float) -> tuple[Vector, Vector]:
    """Two unit vectors of the plane at a distance."""
    angle = 2.0 * math.asin(gap / 2.0)
    return np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])


def equidistant(n: int, dim: int, gap: float) -> Matrix:
    """`n` vectors of norm 1, each at distance `gap` from all others, shape (n, dim)."""
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
    setting: Setting,
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
        # Ever longer stretches, each with draws of its own, until the pair separates.
        length = min(250 * 2**stretch, horizon - policy.rounds)
        order = np.random.default_rng([seed, stretch]).integers(len(arms), size=length)
        world = GivenArms(arms, order, theta_star=np.array(theta), noise_scale=noise_scale)
        simulate(policy, world, horizon=length, seed=100 * seed + stretch, pulling="synchronous", points=1)
        stretch += 1
    return int(policy.separation_time[0, 1])


def _seeds(setting: Setting, n: int | None = None) -> range:
    return range(setting.seed, setting.seed + (setting.pairs if n is None else n))


def _recorded(horizon: int, points: int) -> Any:
    """The rounds at which `simulate` records its curves."""
    return np.unique(np.linspace(0, horizon, min(points, horizon) + 1).round().astype(np.int64))[1:]


def _nested(rows: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in row) for row in rows)


def _band(rows: Any) -> Band:
    values = np.asarray(rows, dtype=np.float64)
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else values[0] * 0.0
    (mean, spread) = _nested((values.mean(axis=0), error))
    return Band(mean, spread)


# Judging


def verdict(measured: float, low: float, high: float, side: Side, bound: float) -> Verdict:
    """Whether a bound holds: "no" only when the whole interval is on its wrong side.

    Examples
    --------
    >>> verdict(0.85, 0.80, 0.89, "at least", 0.9)
    'no'
    >>> verdict(0.88, 0.83, 0.92, "at least", 0.9)
    'not decided'
    """
    if side == "at most":
        measured, low, high, bound = -measured, -high, -low, -bound
    if measured >= bound:
        return "yes"
    return "no" if high < bound else "not decided"


def share_interval(successes: int, runs: int, level: float = 0.95) -> tuple[float, float]:
    """Exact interval of a probability (Clopper and Pearson 1934)."""
    tail = (1.0 - level) / 2.0
    low = stats.beta.ppf(tail, successes, runs - successes + 1) if successes else 0.0
    high = stats.beta.ppf(1.0 - tail, successes + 1, runs - successes) if successes < runs else 1.0
    return float(low), float(high)


def band_interval(band: Band, runs: int, level: float = 0.95) -> tuple[Vector, Vector, Vector]:
    """Mean, and the ends of its interval (Student t), at each round."""
    mean, error = np.array(band.mean), np.array(band.error)
    half = float(stats.t.ppf((1.0 + level) / 2.0, max(runs - 1, 1))) * error
    return mean, mean - half, mean + half


def judge(measured: Measured) -> list[Check]:
    """Compare every measurement with its bound, in every reading."""
    return [
        *check_coverage(measured),
        *check_separation_lower(measured),
        *check_separation_upper(measured),
        *check_sharing(measured),
        *check_clusters(measured),
        *check_misassigned(measured),
        *check_communication(measured),
    ]


def check_coverage(measured: Measured) -> list[Check]:
    """One check for each noise scale and radius, at the δ where coverage falls short most."""
    setting = measured.setting
    found = []
    for reading, shares in (("printed", measured.coverage.plain), ("derived", measured.coverage.widened)):
        for scale, row in zip(setting.coverage_scales, shares, strict=True):
            levels = list(zip(setting.coverage_deltas, row, strict=True))
            good = [f"{delta:g}" for delta, share in levels if share >= 1.0 - delta]
            base = f"d = {setting.coverage_dim}, R = {scale:g}, ‖θ‖ = 1"
            found.append(
                _worst_share(
                    [(f"δ = {delta:g}", share, 1.0 - delta) for delta, share in levels],
                    runs=setting.coverage_runs,
                    side="at least",
                    result="Confidence ellipsoid",
                    setting=base,
                    reading=reading,
                    unmet=(),
                    quantity="share of runs with θ inside in all rounds",
                    note=f"reached at δ = {', '.join(good)}" if good else "reached at no δ",
                )
            )
    return found


def check_separation_lower(measured: Measured) -> list[Check]:
    """Pairs that separate before the lower bound: at most δ of them may. At the gap where most do."""
    setting = measured.setting
    found = []
    for (delta, radius), times in zip(setting.one_arm, measured.one_arm, strict=True):
        for reading in READINGS:
            cases = []
            for gap, row in zip(setting.gaps, times, strict=True):
                bound = float(theory.separation_time_lower(delta, gap, reading=reading))
                cases.append((f"gap {gap:g}", _share(0 < t < bound for t in row), delta))
            found.append(
                _worst_share(
                    cases,
                    runs=setting.one_arm_pairs,
                    side="at most",
                    result="Separation time, from below",
                    setting=f"one unit arm, R = 1, δ = {delta:g}, {RADIUS_NAMES[radius]}",
                    reading=reading,
                    unmet=_radius(radius),
                    quantity="share of pairs separated before the bound",
                )
            )
    return found


def check_separation_upper(measured: Measured) -> list[Check]:
    """Pairs that are separated by the upper bound: at least 1 − δ of them must be. At the worst gap."""
    setting = measured.setting
    common: dict[str, Any] = {
        "runs": setting.pairs,
        "side": "at least",
        "result": "Separation time, from above",
        "quantity": "share of pairs separated by the bound",
    }

    def cases(sweep: Sequence[tuple[str, float, float, Sequence[int]]], reading: Any) -> list[Any]:
        made = []
        for label, gap, scale, row in sweep:
            bound = upper_bound(setting, gap, scale, reading)
            if bound is not None:
                made.append((label, _share(0 < t <= bound for t in row), 1.0 - setting.delta))
        return made

    found = []
    place = f"e1 or e2 drawn uniformly (ε = 1), R = 1, δ = {setting.delta:g}"
    for reading in READINGS:
        for radius in RADII:
            rows = measured.separation[radius]
            sweep = [(f"gap {gap:g}", gap, 1.0, row) for gap, row in zip(setting.gaps, rows, strict=True)]
            where = f"{place}, {RADIUS_NAMES[radius]}"
            made = cases(sweep, reading)
            if made:
                found.append(
                    _worst_share(made, setting=where, reading=reading, unmet=_radius(radius), **common)
                )
            elif radius == RADII[0]:
                largest = max(setting.gaps) ** 2 / 2.0
                found.append(_not_applicable(common, where, reading, largest))
    ratios = setting.low_noise_ratios
    for gap, rows in zip(setting.low_noise_gaps, measured.low_noise, strict=True):
        sweep = [
            (f"{ratio * gap:.2g}", gap, ratio * gap, row) for ratio, row in zip(ratios, rows, strict=True)
        ]
        where = (
            f"e1 or e2 drawn uniformly (ε = 1), gap {gap:g}, R from {min(ratios) * gap:.2g} to "
            f"{max(ratios) * gap:.2g}, δ = {setting.delta:g}, β²"
        )
        for reading in READINGS:
            made = cases(sweep, reading)
            good = [label for label, share, bound in made if share >= bound]
            labelled = [(f"R = {label}", share, bound) for label, share, bound in made]
            note = f"reached at R = {', '.join(good)}" if good else "reached at no R"
            if labelled:
                found.append(
                    _worst_share(labelled, setting=where, reading=reading, unmet=(), note=note, **common)
                )
    return found


def upper_bound(setting: Setting, gap: float, noise_scale: float, reading: Any) -> int | None:
    """`theory.separation_time_upper` for e1 or e2 drawn uniformly; None if its condition fails."""
    try:
        return theory.separation_time_upper(
            np.eye(2),
            *pair_at(gap),
            delta=setting.delta,
            epsilon=1.0,
            noise_scale=noise_scale,
            param_norm=setting.param_norm,
            reading=reading,
        )
    except ValueError:
        return None


def check_sharing(measured: Measured) -> list[Check]:
    """Regret of two agents up to their separation, against the bound at that round."""
    setting = measured.setting
    found = []
    for radius in RADII:
        chosen = [entry for entry in measured.sharing if entry.radius == radius]
        for kind in ("one agent", "mean of both"):
            for reading in ("printed", "derived"):
                cases, shares = [], []
                promised = 1.0 - (2.0 if kind == "one agent" else 1.0) * setting.delta
                for entry in chosen:
                    ratio = _sharing_ratios(setting, entry, kind, reading)
                    cases.append((f"gap {entry.gap:g}", _share(value <= 1.0 for value in ratio), promised))
                    shares.append(max(ratio))
                where = (
                    f"two agents, d = {setting.sharing_dim}, {setting.sharing_rounds:,} rounds or until they "
                    f"separate, δ = {setting.delta:g}, γ = {setting.gamma:g}, {RADIUS_NAMES[radius]}"
                )
                found.append(
                    _worst_share(
                        cases,
                        runs=setting.sharing_runs,
                        side="at least",
                        result=f"Regret while sharing, {kind}",
                        setting=where,
                        reading=reading,
                        unmet=(*_radius(radius), BONUS, RIDGE),
                        quantity="share of runs with regret under the bound",
                        note=f"the largest regret is {max(shares):.0%} of its bound",
                    )
                )
    return found


def _sharing_ratios(setting: Setting, entry: Sharing, kind: str, reading: Any) -> list[float]:
    """Regret over bound, run by run; of the worse agent if it is about one."""
    ratios = []
    for end, regret in zip(entry.separated, entry.regret, strict=True):
        horizon = end if end > 0 else setting.sharing_rounds
        if kind == "one agent":
            bounds = theory.regret_bound_individual(
                setting.delta,
                setting.sharing_dim,
                horizon=horizon,
                gamma=setting.gamma,
                bias=entry.biases[:2],
                param_norm=setting.param_norm,
                reading=reading,
            )
            ratios.append(float(np.max(np.array(regret) / bounds)))
        else:
            bound = theory.regret_bound_network(
                setting.delta,
                setting.sharing_dim,
                horizon=horizon,
                bias=max(entry.biases[2], 0.0),
                param_norm=setting.param_norm,
                reading=reading,
            )
            ratios.append(float(np.mean(regret) / bound))
    return ratios


def check_clusters(measured: Measured) -> list[Check]:
    """Regret per agent of BASS and the oracle under clusters, and the paper's lower bound."""
    setting = measured.setting
    where = (
        f"{setting.n_agents} agents, {setting.n_clusters} clusters {setting.cluster_gap:g} apart, "
        f"d = {setting.cluster_dim}, {setting.cluster_rounds:,} pulls each, δ = {setting.delta:g}"
    )
    found = []
    for entry in measured.clusters:
        oracle = entry.policy == "oracle"
        for reading in ("printed", "derived"):
            bound = cluster_bound(setting, entry, reading)
            ratio = np.array(entry.worst_regret) / bound
            found.append(
                _worst_share(
                    [("", _share(value <= 1.0 for value in ratio), 1.0 - setting.delta)],
                    runs=setting.cluster_runs,
                    side="at least",
                    result="Regret of the oracle" if oracle else "Regret under clusters",
                    setting=where if oracle else f"{where}, {RADIUS_NAMES[entry.policy]}",
                    reading=reading,
                    unmet=(BONUS, RIDGE) if oracle else (*_radius(entry.policy), PARTED, BONUS, RIDGE),
                    quantity="share of runs with every agent's regret under the bound",
                    note=f"the largest regret is {ratio.max():.0%} of its bound",
                )
            )
    oracle_runs = [entry for entry in measured.clusters if entry.policy == "oracle"]
    for entry in oracle_runs:
        members = int(np.bincount(equal_clusters(setting.n_agents, setting.n_clusters)).min())
        bound = float(
            theory.regret_lower(
                setting.delta,
                setting.cluster_dim,
                horizon=setting.cluster_rounds,
                n_agents=members,
                param_norm=setting.param_norm,
            )
        )
        mean, low, high = (float(ends[-1]) for ends in band_interval(entry.regret, setting.cluster_runs))
        found.append(
            Check(
                result="Regret from below (ν/N)",
                setting=f"{where}; the oracle pools {members}",
                reading="printed",
                unmet=(BONUS, RIDGE),
                quantity="mean regret of an agent",
                measured=mean,
                low=low,
                high=high,
                side="at least",
                bound=bound,
                runs=setting.cluster_runs,
                holds=verdict(mean, low, high, "at least", bound),
                note="a fraction of an upper bound bounds nothing from below",
            )
        )
    return found


def cluster_bound(setting: Setting, entry: Clusters, reading: Any) -> float:
    """Bound on an agent's regret; for BASS with the misassigned agents that were measured."""
    smallest = int(np.bincount(equal_clusters(setting.n_agents, setting.n_clusters)).min())
    fraction = smallest / setting.n_agents
    common: dict[str, Any] = {
        "horizon": setting.cluster_rounds,
        "n_agents": setting.n_agents,
        "param_norm": setting.param_norm,
        "reading": reading,
    }
    if entry.policy == "oracle":
        # The corollary as printed has 1/√N; the theorem behind it 1/√(ρ_min N).
        own = 1.0 if reading == "printed" else fraction
        return float(
            theory.regret_bound_oracle(
                setting.delta, setting.cluster_dim, smallest_cluster_fraction=own, **common
            )
        )
    return float(
        theory.regret_bound_clustered(
            setting.delta,
            setting.cluster_dim,
            smallest_cluster_fraction=fraction,
            misassigned_total=entry.misassigned_total,
            parameter_norm=1.0,
            **common,
        )
    )


def check_misassigned(measured: Measured) -> list[Check]:
    """Mean number of misassigned agents, at the round where it is highest above its bound."""
    setting = measured.setting
    found = []
    for entry in measured.exploring:
        for reading in ("printed", "derived"):
            bounds = misassigned_curve(setting, np.array(entry.rounds), reading)
            level = _shared_level(len(bounds))
            means, lows, highs = band_interval(entry.misassigned, setting.cluster_runs, level)
            worst = int(np.argmax(means - bounds))
            mean, low, high = float(means[worst]), float(lows[worst]), float(highs[worst])
            over = np.flatnonzero(means > bounds)
            when = f"worst after {entry.rounds[worst]:,} rounds"
            if len(over) and over[-1] + 1 < len(bounds):
                when += f"; under the bound from round {entry.rounds[over[-1] + 1]:,} on"
            elif len(over):
                when += "; above the bound to the end"
            found.append(
                Check(
                    result="Misassigned agents",
                    setting=(
                        f"{setting.n_agents} agents, {setting.n_clusters} clusters {setting.cluster_gap:g} "
                        f"apart, basis vectors of d = {setting.cluster_dim} in turn, δ = {setting.delta:g}, "
                        f"{RADIUS_NAMES[entry.policy]}"
                    ),
                    reading=reading,
                    unmet=_radius(entry.policy),
                    quantity="mean number in a neighbourhood",
                    measured=mean,
                    low=low,
                    high=high,
                    side="at most",
                    bound=float(bounds[worst]),
                    runs=setting.cluster_runs,
                    holds=verdict(mean, low, high, "at most", float(bounds[worst])),
                    note=when,
                )
            )
    return found


def misassigned_curve(setting: Setting, rounds: Any, reading: Any) -> Vector:
    """`theory.misassigned_bound` over rounds, for basis vectors in turn: A = (1 + t/d) I."""
    pulls = np.asarray(rounds, dtype=np.float64) / setting.cluster_dim
    smallest = int(np.bincount(equal_clusters(setting.n_agents, setting.n_clusters)).min())
    return np.asarray(
        theory.misassigned_bound(
            setting.n_agents,
            smallest / setting.n_agents,
            gap=setting.cluster_gap * pulls / np.sqrt(1.0 + pulls),
            logdet_A=setting.cluster_dim * np.log1p(pulls),
            delta=setting.delta,
            gamma=setting.gamma,
            param_norm=setting.param_norm,
            reading=reading,
        )
    )


def check_communication(measured: Measured) -> list[Check]:
    """Largest communication cost over all runs and rounds, per round, against (N − 1)T."""
    setting = measured.setting
    entries = [entry for entry in (*measured.clusters, *measured.exploring) if entry.policy != "oracle"]
    found = []
    for reading, pulls in (("printed (T in rounds)", 1), ("derived (T in pulls)", setting.n_agents)):
        bound = float(theory.communication_bound(setting.n_agents, pulls))
        ratios = np.array([value for entry in entries for value in entry.largest_cost])
        largest = float(ratios.max())
        found.append(
            Check(
                result="Communication",
                setting=f"{setting.n_agents} agents, synchronous, both radii, all runs above",
                reading=reading,
                unmet=(),
                quantity="largest cost per round",
                measured=largest,
                low=float(ratios.min()),
                high=largest,
                side="at most",
                bound=bound,
                runs=len(ratios),
                holds=verdict(largest, largest, largest, "at most", bound),  # one run beyond it is enough
                note="deterministic: the interval is the range over runs",
            )
        )
    return found


def remarks(checks: Sequence[Check]) -> list[str]:
    """A few sentences on each result that simulation breaks, with the reading under which it holds."""
    said = []
    for result in dict.fromkeys(check.result for check in checks if check.holds == "no"):
        here = [check for check in checks if check.result == result]
        broken = []
        for reading in dict.fromkeys(check.reading for check in here):
            tried = [check for check in here if check.reading == reading and check.bound is not None]
            failed = [check for check in tried if check.holds == "no"]
            if failed:
                plural = "s" if len(tried) > 1 else ""
                broken.append(f"as {reading} in {len(failed)} of {len(tried)} experiment{plural}")
        rescued: list[set[str]] = []
        lost = []
        for place in dict.fromkeys(check.setting for check in here if check.holds == "no"):
            good = {check.reading for check in here if check.setting == place and check.holds == "yes"}
            if good:
                rescued.append(good)
            else:
                lost.append(next(check for check in here if check.setting == place))
        text = f"{result}: broken {', '.join(broken)}."
        if rescued:
            common = set.intersection(*rescued)
            ordered = [name for name in dict.fromkeys(check.reading for check in here) if name in common]
            text += f" It holds as {' and as '.join(ordered) if ordered else 'another reading in each'}"
            text += ", except in what follows." if lost else "."
        for check in lost:
            why = f", where {UNSQUARED}" if UNSQUARED in check.unmet else ""
            text += f" No reading holds in this experiment: {check.setting}{why}."
        said.append(text)
    return said


def summary(checks: Sequence[Check]) -> str:
    """How many bounds hold, in a sentence."""
    counts = {name: sum(check.holds == name for check in checks) for name in ("yes", "no", "not decided")}
    other = len(checks) - sum(counts.values())
    text = f"{counts['yes']} of {len(checks)} comparisons hold and {counts['no']} are broken"
    if counts["not decided"]:
        text += f"; in {counts['not decided']} the interval does not decide"
    return f"{text}; {other} cannot be made: the bound's condition cannot be met." if other else f"{text}."


HEADER = ("result", "experiment", "reading", "assumptions", "measured", "bound", "runs", "holds")


def line(check: Check) -> list[str]:
    """A line of the table, as text."""
    bound = "none" if check.bound is None else f"{check.side} {_number(check.bound)}"
    return [
        check.result,
        check.setting,
        check.reading,
        "all hold" if not check.unmet else f"not met: {'; '.join(check.unmet)}",
        _measured_text(check),
        bound,
        f"{check.runs:,}",
        check.holds,
    ]


def _measured_text(check: Check) -> str:
    if check.bound is None:
        return check.note
    text = f"{check.quantity}: {_number(check.measured)} ({_number(check.low)} to {_number(check.high)})"
    return f"{text}; {check.note}" if check.note else text


def _number(value: float) -> str:
    if abs(value) >= 100.0:
        return f"{value:,.0f}"
    return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) <= 1.0 else f"{value:.1f}"


def _worst_share(
    cases: Sequence[tuple[str, float, float]], *, runs: int, side: Side, note: str = "", **named: Any
) -> Check:
    """The check at the case whose share is furthest on the wrong side; its interval holds for all cases."""
    sign = 1.0 if side == "at least" else -1.0
    label, share, bound = min(cases, key=lambda case: sign * (case[1] - case[2]))
    low, high = share_interval(round(share * runs), runs, _shared_level(len(cases)))
    where = f"worst at {label}" if len({case[1] - case[2] for case in cases}) > 1 else ""
    return Check(
        measured=share,
        low=low,
        high=high,
        side=side,
        bound=bound,
        runs=runs,
        holds=verdict(share, low, high, side, bound),
        note="; ".join(text for text in (where, note) if text),
        **named,
    )


def _not_applicable(common: dict[str, Any], where: str, reading: str, largest: float) -> Check:
    needed = theory.SEPARATION_FACTOR / 2.0
    return Check(
        setting=where,
        reading=reading,
        unmet=("the condition on ε cannot be met",),
        measured=math.nan,
        low=math.nan,
        high=math.nan,
        bound=None,
        holds="does not apply",
        note=f"no ε is enough: Q is at most {largest:g} here and must exceed {needed:.2f} R²",
        **common,
    )


def _shared_level(cases: int) -> float:
    """Level of each of several intervals that hold together with probability 0.95 (Bonferroni)."""
    return 1.0 - 0.05 / cases


def _share(events: Any) -> float:
    return float(np.mean([bool(event) for event in events]))


def _radius(radius: str) -> tuple[str, ...]:
    return (UNSQUARED,) if radius == "beta" else ()
