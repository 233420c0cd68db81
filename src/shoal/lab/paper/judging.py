"""The theory's bounds against measurements, reading by reading: which hold, which are broken."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from scipy import stats

from shoal.core.types import Vector
from shoal.lab import theory
from shoal.lab.environments.base import equal_clusters
from shoal.lab.paper.measuring import (
    RADII,
    READINGS,
    Band,
    ClusterRuns,
    Measured,
    Sharing,
    TheorySetting,
    pair_at,
)
from shoal.reporting.curves import half_width

Verdict = Literal["yes", "no", "not decided", "does not apply"]
Side = Literal["at most", "at least"]

RADIUS_NAMES = {"beta_squared": "β²", "beta": "β"}
UNSQUARED = "the test is scaled by β, not β²"
CUT = "designs differ once pairs are cut"
BONUS = "the bonus is α√ln(t+1), not β"
RIDGE = "the pool has one ridge, not one for each agent"


class Check(msgspec.Struct, frozen=True):
    """One bound, in one reading, against one experiment."""

    result: str
    setting: str
    reading: str
    unmet: tuple[str, ...]
    """Assumptions that do not hold in this experiment; empty if all do."""
    quantity: str
    """What was measured."""
    measured: float
    low: float
    high: float
    """Its 95% interval."""
    side: Side
    bound: float | None
    """None if the theory gives none."""
    runs: int
    holds: Verdict
    note: str = ""


def verdict(measured: float, low: float, high: float, side: Side, bound: float) -> Verdict:
    """Whether a bound holds: "no" only if the whole interval is on the wrong side.

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
    """Mean and the ends of its interval (Student t) at each round."""
    mean = np.array(band.mean)
    half = half_width(np.array(band.error), max(runs, 2), level)  # the error of a single run is 0
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
    """One check for each noise scale and radius, at the δ where coverage falls shortest."""
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
    """Pairs that separate before the lower bound, at most a share δ; at the gap where most of them do."""
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
    """Pairs that are separated by the upper bound, at least a share 1 − δ; at the worst gap."""
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


def upper_bound(setting: TheorySetting, gap: float, noise_scale: float, reading: Any) -> int | None:
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


def _sharing_ratios(setting: TheorySetting, entry: Sharing, kind: str, reading: Any) -> list[float]:
    """Regret divided by its bound, run by run; for "one agent", of the worse agent."""
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
                    unmet=(BONUS, RIDGE) if oracle else (*_radius(entry.policy), CUT, BONUS, RIDGE),
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
        ends = [float(end[-1]) for end in band_interval(entry.regret, setting.cluster_runs)]
        found.append(
            _checked(
                ends,
                "at least",
                bound,
                result="Regret from below (ν/N)",
                setting=f"{where}; the oracle pools {members}",
                reading="printed",
                unmet=(BONUS, RIDGE),
                quantity="mean regret of an agent",
                runs=setting.cluster_runs,
                note="a fraction of an upper bound bounds nothing from below",
            )
        )
    return found


def cluster_bound(setting: TheorySetting, entry: ClusterRuns, reading: Any) -> float:
    """Bound on an agent's regret; for BASS with the measured number of misassigned agents."""
    smallest = int(np.bincount(equal_clusters(setting.n_agents, setting.n_clusters)).min())
    fraction = smallest / setting.n_agents
    common: dict[str, Any] = {
        "horizon": setting.cluster_rounds,
        "n_agents": setting.n_agents,
        "param_norm": setting.param_norm,
        "reading": reading,
    }
    if entry.policy == "oracle":
        # The printed corollary has 1/√N, the theorem behind it 1/√(ρ_min N).
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
    """Mean number of misassigned agents, at the round where it exceeds its bound the most."""
    setting = measured.setting
    found = []
    for entry in measured.exploring:
        for reading in ("printed", "derived"):
            bounds = misassigned_curve(setting, np.array(entry.rounds), reading)
            level = _shared_level(len(bounds))  # the worst of many rounds is picked
            means, lows, highs = band_interval(entry.misassigned, setting.cluster_runs, level)
            worst = int(np.argmax(means - bounds))
            ends = [float(end[worst]) for end in (means, lows, highs)]
            over = np.flatnonzero(means > bounds)
            when = f"worst after {entry.rounds[worst]:,} rounds"
            if len(over) and over[-1] + 1 < len(bounds):
                when += f"; under the bound from round {entry.rounds[over[-1] + 1]:,} on"
            elif len(over):
                when += "; above the bound to the end"
            found.append(
                _checked(
                    ends,
                    "at most",
                    float(bounds[worst]),
                    result="Misassigned agents",
                    setting=(
                        f"{setting.n_agents} agents, {setting.n_clusters} clusters {setting.cluster_gap:g} "
                        f"apart, basis vectors of d = {setting.cluster_dim} in turn, δ = {setting.delta:g}, "
                        f"{RADIUS_NAMES[entry.policy]}"
                    ),
                    reading=reading,
                    unmet=_radius(entry.policy),
                    quantity="mean number in a neighbourhood",
                    runs=setting.cluster_runs,
                    note=when,
                )
            )
    return found


def misassigned_curve(setting: TheorySetting, rounds: Any, reading: Any) -> Vector:
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
                holds=verdict(largest, largest, largest, "at most", bound),  # a single run above it breaks it
                note="deterministic: the interval is the range over runs",
            )
        )
    return found


def _worst_share(
    cases: Sequence[tuple[str, float, float]], *, runs: int, side: Side, note: str = "", **named: Any
) -> Check:
    """The check for the worst case; its interval is wide enough for all cases together."""
    sign = 1.0 if side == "at least" else -1.0
    label, share, bound = min(cases, key=lambda case: sign * (case[1] - case[2]))
    low, high = share_interval(round(share * runs), runs, _shared_level(len(cases)))
    where = f"worst at {label}" if len({case[1] - case[2] for case in cases}) > 1 else ""
    note = "; ".join(text for text in (where, note) if text)
    return _checked((share, low, high), side, bound, runs=runs, note=note, **named)


def _checked(estimate: Sequence[float], side: Side, bound: float, **named: Any) -> Check:
    """A comparison of an estimate, with the ends of its interval, with a bound."""
    measured, low, high = estimate
    holds = verdict(measured, low, high, side, bound)
    return Check(measured=measured, low=low, high=high, side=side, bound=bound, holds=holds, **named)


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
