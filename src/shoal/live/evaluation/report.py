"""A page about a population: what sharing pays, uplift, other policies, delays, agents helped and harmed."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from msgspec.structs import replace

from shoal.core.styles import Style
from shoal.core.types import Vector
from shoal.live.evaluation.dividends import by_agent, moment, paid
from shoal.live.evaluation.estimators import mean_of
from shoal.live.evaluation.logs import Outcome, complete, outcomes
from shoal.live.evaluation.sequences import running
from shoal.live.protocol.answers import Evaluation
from shoal.reporting import render
from shoal.reporting.charts import BLUE, GREY, ORANGE, Axis, ChartLine, blank, chart_data, line_figure
from shoal.reporting.curves import Curve
from shoal.reporting.sections import (
    Bullets,
    Definitions,
    Document,
    Notice,
    Part,
    Picture,
    Section,
    Table,
    Text,
)
from shoal.reporting.words import interval, number, span

if TYPE_CHECKING:
    from shoal.live.population.population import Population

POINTS = 300
"""Points of a curve."""
SHOWN = 10
"""Agents in each table."""
WINDOWS = 20
"""Equal parts of the history whose means are shown."""


def write_evaluation(
    population: "Population",
    directory: Path,
    evaluations: Sequence[Evaluation] = (),
    since: datetime | float | None = None,
) -> Path:
    """Write `index.html`, `tables.md` and figures about a population; returns the path of the page."""
    return render.write(document(population, evaluations, since), directory)


def document(
    population: "Population", evaluations: Sequence[Evaluation] = (), since: datetime | float | None = None
) -> Document:
    """The page, before it is written."""
    start = None if since is None else moment(since)
    fold, _, found = outcomes(population.owner, start)
    dividend, settings = population.dividend(since=start), fold.settings
    remarks = []
    compares = settings.apprentice or settings.holdout > 0.0
    if compares:
        remarks.append(
            f"Uplift over the product's own rule: {population.uplift(since=start)}.".replace("..", ".")
        )
    remarks += [f"{one}".rstrip(".") + "." for one in evaluations]
    times = [one.at for one in found]
    period = f"{_day(min(times))} to {_day(max(times))}" if times else "nothing yet"
    rewarded = sum(one.reward is not None for one in found)
    return Document(
        name=f"shoal: {population.name}",
        title=f"Is it paying? {population.name}",
        subtitle=f"{settings.policy}, {len(population.agents):,} agents, {len(found):,} decisions, "
        f"{rewarded:,} with a reward; {period}",
        lead=dividend.text,
        opening=None,
        remarks=remarks,
        notices=[],
        sections=[
            Section("uplift", "Uplift", _uplift(population, start) if compares else []),
            Section("dividend", "The dividend of sharing over time", _dividend(found, population)),
            Section("candidates", "Other policies", _candidates(evaluations)),
            Section("delays", "How late rewards come", _delays(found)),
            Section("agents", "Who is helped and who is harmed", _agents(population)),
            Section("meaning", "What these numbers can tell", MEANING),
        ],
    )


def write_log_evaluation(evaluations: Sequence[Evaluation], directory: Path) -> Path:
    """Write a page about policies evaluated from one log from elsewhere; returns the path of the page."""
    first = evaluations[0]
    page = Document(
        name="shoal evaluate",
        title=f"What would other policies have earned? {Path(first.source).name}",
        subtitle=f"{first.decisions:,} decisions",
        lead=f"{first.logged.value:.4g} per decision was earned.",
        opening=None,
        remarks=[f"{one}".rstrip(".") + "." for one in evaluations],
        notices=[],
        sections=[
            Section("candidates", "Estimates", _candidates(evaluations)),
            Section("meaning", "What these numbers can tell", [Definitions([ESTIMATES])]),
        ],
    )
    return render.write(page, directory)


def _uplift(population: "Population", since: float | None) -> list[Part]:
    found = population.uplift(since=since)
    if found.sentence:
        return [Notice(found.sentence)]
    line = [
        {"holdout": "agents held out", "apprentice": "as an apprentice"}[found.how],
        f"{found.n_policy:,}",
        f"{found.n_baseline:,}",
        number("{:.4g}", found.policy),
        number("{:.4g}", found.baseline),
        number("{:+.4g}", found.uplift),
        interval("{:.4g}", found.low, found.high),
    ]
    header = ["how", "decisions: policy", "rule", "reward: policy", "rule", "uplift", "95%"]
    return [Table("Mean reward per decision, of the policy and of the product's own rule", header, [line])]


def _dividend(found: list[Outcome], population: "Population") -> list[Part]:
    settings = population.settings
    known = (one for one in complete(settings, found) if one.reward is not None)
    rewarded = sorted(known, key=lambda one: one.rewarded_at)
    values = [paid(one, settings) for one in rewarded]
    terms = np.array([value for value in values if value is not None])
    if len(terms) < 2:
        return [Text("There are no rewards yet.")]
    lines = [
        ChartLine("so far", Style(BLUE, "", (), 2.0), _thinned(running(terms))),
        ChartLine("in each part", Style(ORANGE, "o", (), 1.2), _in_parts(terms)),
    ]
    # The first bounds are so wide that a picture of them would show nothing else.
    shown = np.concatenate([lines[1].curve.mean, *(_late(lines[0].curve)), [0.0]])
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    margin = 0.08 * (high - low) or 1.0
    axis = Axis(
        "rewards so far",
        "dividend: squared error saved per reward",
        "rewards so far",
        "dividend",
        reading="After rewards: ",
        limits=(low - margin, high + margin),
        digits=3,
    )
    title = "Dividend of sharing"
    caption = (
        "Mean over all rewards so far with its 95% confidence sequence, which holds at all times at once; "
        f"and means of {WINDOWS} equal parts with their 95% intervals. Above 0, sharing pays."
    )
    picture = Picture(
        title, caption, "dividend", lambda: line_figure(lines, title, axis), chart_data(lines, title, axis)
    )
    return [picture]


def _thinned(curve: Curve) -> Curve:
    keep = np.unique(np.linspace(0, len(curve.x) - 1, POINTS).round().astype(np.int64))
    # Before the burn-in there are no bounds to draw.
    known = keep[~np.isnan(curve.low[keep])]
    keep = known if len(known) else keep
    return Curve(*(np.asarray(part[keep]) for part in (curve.x, curve.mean, curve.low, curve.high)))


def _late(curve: Curve) -> tuple[Vector, Vector]:
    """The bounds of a curve without its first fifth, which would dwarf all others."""
    half = len(curve.x) // 5
    return curve.low[half:], curve.high[half:]


def _in_parts(terms: Vector) -> Curve:
    ends = np.unique(np.linspace(0, len(terms), WINDOWS + 1).round().astype(np.int64))[1:]
    starts = np.concatenate([[0], ends[:-1]])
    parts = [mean_of(terms[a:b], "") for a, b in zip(starts, ends, strict=True)]
    means, low, high = (np.array([getattr(one, side) for one in parts]) for side in ("value", "low", "high"))
    low, high = (np.where(np.isnan(side), means, side) for side in (low, high))
    return Curve(ends.astype(np.float64), means, low, high)


def _candidates(evaluations: Sequence[Evaluation]) -> list[Part]:
    parts: list[Part] = []
    for one in evaluations:
        changed = ", ".join(
            f"{key} = {value}" for key, value in one.parameters.items() if np.ndim(value) == 0
        )
        parts.append(Text(changed + ".", lead=one.policy))
        if one.sentence:
            parts.append(Notice(one.sentence))
        else:
            rows = [one.logged, *one.estimates]
            if one.difference is not None:
                rows.append(replace(one.difference, name="more than logged"))
            if one.replayed is not None and one.replayed.value is not None:
                rows.append(one.replayed.value)
            lines = [
                [
                    row.name,
                    "beyond all rewards" if math.isnan(row.value) else number("{:.4g}", row.value),
                    interval("{:.4g}", row.low, row.high),
                    f"{row.clipped:.1%}" if row.clipped else "",
                ]
                for row in rows
            ]
            caption = (
                f"Reward per decision that {one.policy} would have earned, by each estimator, from "
                f"{one.decisions:,} decisions ({one.effective_size:,.0f} effective)"
            )
            parts.append(Table(caption, ["estimate", "value", "95%", "left to the model"], lines))
        if one.replayed is not None and one.replayed.sentence:
            parts.append(Text(one.replayed.sentence))
        parts.append(Text(one.calibration.sentence, lead="Calibration"))
    shown = [one for one in evaluations if not one.sentence]
    if shown:
        title = "Candidates"
        caption = "Reward per decision with 95% intervals: as logged, and what each policy would have earned"
        parts.append(Picture(title, caption, "candidates", lambda: _draw_candidates(shown)))
    return parts


def _draw_candidates(evaluations: Sequence[Evaluation]) -> Figure:
    rows = [evaluations[0].logged]
    for one in evaluations:
        # One estimate for each policy, so that the picture can be read across.
        best = one.best
        rows.append(replace(best, name=f"{one.policy} ({best.name})"))
    figure = blank(width=8.6, height=1.2 + 0.5 * len(rows))
    ax = figure.subplots()
    for place, row in enumerate(reversed(rows)):
        color = GREY if row.name == "as logged" else BLUE
        ax.plot([row.low, row.high], [place, place], color=color, linewidth=2)
        ax.plot([row.value], [place], "o", color=color)
    ax.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.set_xlabel("reward per decision")
    ax.grid(axis="x", alpha=0.25)
    return figure


def _delays(found: list[Outcome]) -> list[Part]:
    come = [one for one in found if one.reward is not None and not one.is_default]
    if not come:
        return [Text("There are no rewards yet.")]
    late = np.array([max(one.rewarded_at - one.at, 0) / 1e6 for one in come])
    counts = {
        "rewarded": len(come),
        "missing, with a default": sum(one.is_default for one in found),
        "cancelled": sum(one.cancelled for one in found),
    }
    counts["pending or missing"] = len(found) - sum(counts.values())
    lines = [[name, f"{count:,}", f"{count / len(found):.1%}"] for name, count in counts.items()]
    quantiles = [[f"{share:.0%}", span(float(np.quantile(late, share)))] for share in (0.5, 0.9, 0.99, 1.0)]
    return [
        Table("Outcomes of decisions", ["", "decisions", "share"], lines),
        Table("Delay within which a share of the rewards came", ["share of rewards", "delay"], quantiles),
        Picture(
            "Delays",
            "Share of the rewards that came within a delay. Corrections count as rewards at their own time.",
            "delays",
            lambda: _draw_delays(late),
        ),
    ]


def _draw_delays(late: Vector) -> Figure:
    figure = blank(width=8.6, height=3.2)
    ax = figure.subplots()
    shares = np.linspace(0.0, 1.0, POINTS)
    ax.plot(np.maximum(np.quantile(late, shares), 1e-3), shares, color=BLUE, linewidth=2)
    ax.set(xscale="log", xlabel="delay (seconds)", ylabel="share of rewards", ylim=(0.0, 1.02))
    ax.grid(alpha=0.25)
    return figure


def _agents(population: "Population") -> list[Part]:
    known = {name: one for name, one in by_agent(population.owner).items() if math.isfinite(one.low)}
    if not known:
        return [Text("No agent has had enough rewards yet.")]
    helped = sum(one.low > 0.0 for one in known.values())
    harmed = sum(one.high < 0.0 for one in known.values())
    parts: list[Part] = [
        Text(
            f"Of {len(known):,} agents with enough rewards, sharing demonstrably pays for {helped:,} and "
            f"harms {harmed:,}. About {math.ceil(0.05 * len(known)):,} of these 95% intervals may be wrong."
        )
    ]
    ordered = sorted(known.items(), key=lambda item: -item[1].mean)
    for caption, some in (
        ("Most helped", ordered[:SHOWN]),
        ("Most harmed", [item for item in ordered[::-1] if item[1].mean < 0.0][:SHOWN]),
    ):
        lines = [
            [name, f"{one.count:,}", number("{:+.3g}", one.mean), interval("{:.3g}", one.low, one.high)]
            for name, one in some
        ]
        if lines:
            header = ["agent", "rewards", "dividend", "95%"]
            parts.append(Table(f"{caption}, by the mean dividend since they joined", header, lines))
    return parts


ESTIMATES = (
    "estimates",
    "what another policy would have earned. Only explored decisions are evidence; the direct method trusts "
    "its model.",
)


DIVIDEND = (
    "dividend",
    "squared error of the agents' own predictions minus that of the policy's, on the arms that were shown. "
    "It compares predictions, not earnings: better predictions of an arm that is chosen anyway earn nothing.",
)
UPLIFT = (
    "uplift",
    "difference in earnings between agents that the policy decides for and those that the product's own rule "
    "decides for. The only number here that comes from an experiment.",
)
ONCE = (
    "The dividend's interval may be looked at as often as one likes; those of the estimates and the uplift "
    "are valid for one look."
)
MEANING = (
    Definitions([DIVIDEND, UPLIFT, ESTIMATES]),
    Bullets([ONCE, "Forgotten agents are in no number on this page."]),
)


def _day(at: int) -> str:
    return f"{datetime.fromtimestamp(at / 1e6, UTC):%Y-%m-%d}"
