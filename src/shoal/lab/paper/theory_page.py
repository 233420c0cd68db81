"""The page on theory against simulation: which bounds hold, in words, a table and figures."""

from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.figure import Figure

from shoal.lab.experiments.report import Column, table_of
from shoal.lab.paper.judging import UNSQUARED, Check, judge
from shoal.lab.paper.measuring import Measured, TheorySetting
from shoal.lab.paper.theory_figures import (
    clusters_figure,
    coverage_figure,
    low_noise_figure,
    separation_figure,
    sharing_figure,
)
from shoal.reporting.sections import Document, Heading, Part, Picture, Section, Text

TITLE = "Theory against simulation"
THEORY_NOTE = (
    "The paper's bounds against small experiments that satisfy its assumptions as far as possible: arms and "
    "parameters of norm at most 1, synchronous pulling, noise of known scale. The table says which "
    "assumptions do not hold in an experiment. “Printed” is the paper's statement, “derived” what its proof "
    "supports once its steps are repaired, “corrected” a further repair; docs/theory.md explains each. A "
    "bound holds (yes) if the measured value is on the right side, and is broken (no) if the whole 95% "
    "interval is on the wrong side. Where several gaps, noise scales or rounds were tried, the worst is "
    "shown, with an interval wide enough for all of them."
)
BENCHMARK_NOTE = (
    "None of this covers the benchmarks of the report. Their synthetic arms are not normalised (in "
    "10 dimensions their norm is 1.8 on average, not at most 1), which the bounds on regret and the upper "
    "bound on the separation time need; one agent pulls at a time, so designs differ; and the separation "
    "test is scaled by β, not by β² as in the proofs. The rows with β show the effect of this last point "
    "alone."
)


def theory_document(measured: Measured | None) -> Document:
    """The page on the theory: verdicts on what a run measured."""
    checks = [] if measured is None else judge(measured)
    lead = "Not measured here: run the same command again, without --only."
    sections = []
    if measured is not None:
        lead = summary(checks)
        table = table_of("Every bound against its experiment", COLUMNS, checks, wordy=True)
        sections.append(Section("bounds", "Every bound", [Text(THEORY_NOTE), table]))
        parts: list[Part] = []
        for name, heading, caption, draw in _figures(measured.setting):
            picture = Picture(heading, caption, f"theory-{name}", partial(draw, measured))
            parts += [Heading(heading), picture]
        sections.append(Section("experiments", "The experiments", parts))
    return Document(
        name="theory",
        title=TITLE,
        subtitle="Small experiments of their own, run beside the benchmarks of the report.",
        lead=lead,
        opening=None,
        remarks=remarks(checks),
        notices=[BENCHMARK_NOTE] if checks else [],
        sections=sections,
    )


def summary(checks: Sequence[Check]) -> str:
    """How many bounds hold, in a sentence."""
    counts = {name: sum(check.holds == name for check in checks) for name in ("yes", "no", "not decided")}
    other = len(checks) - sum(counts.values())
    text = f"{counts['yes']} of {len(checks)} comparisons hold and {counts['no']} are broken"
    if counts["not decided"]:
        text += f"; in {counts['not decided']} the interval does not decide"
    return f"{text}; {other} cannot be made: the bound's condition cannot be met." if other else f"{text}."


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


def _measured_text(check: Check) -> str:
    if check.bound is None:
        return check.note
    text = f"{check.quantity}: {_number(check.measured)} ({_number(check.low)} to {_number(check.high)})"
    return f"{text}; {check.note}" if check.note else text


def _number(value: float) -> str:
    if abs(value) >= 100.0:
        return f"{value:,.0f}"
    return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) <= 1.0 else f"{value:.1f}"


COLUMNS = (
    Column("result", lambda check: check.result),
    Column("experiment", lambda check: check.setting),
    Column("reading", lambda check: check.reading),
    Column(
        "assumptions", lambda check: "all hold" if not check.unmet else f"not met: {'; '.join(check.unmet)}"
    ),
    Column("measured", _measured_text),
    Column("bound", lambda check: "none" if check.bound is None else f"{check.side} {_number(check.bound)}"),
    Column("runs", lambda check: f"{check.runs:,}"),
    Column("holds", lambda check: check.holds),
)


def _figures(own: TheorySetting) -> list[tuple[str, str, str, Callable[[Measured], Figure]]]:
    """Name, heading, caption and drawing function of each figure."""
    return [
        (
            "coverage",
            "The confidence ellipsoid",
            f"Share of {own.coverage_runs:,} runs in which the true parameter (norm 1) is inside in all "
            f"rounds from 0 to {own.coverage_rounds}; d = {own.coverage_dim}, unit arms drawn uniformly. The "
            "printed radius ignores the shrinkage by the ridge, which matters when the noise is smaller than "
            "the parameter or δ is large; adding the parameter's norm repairs it.",
            coverage_figure,
        ),
        (
            "separation",
            "Separation times against the gap",
            "Two agents, synchronous, d = 2, e1 or e2 drawn uniformly in each round (ε = 1), noise 1, "
            f"δ = {own.delta:g}, γ = {own.gamma:g}, {own.pairs} pairs for each gap. The bounds are for "
            "ellipsoids scaled by β²; scaled by β, agents separate earlier than the theory covers. The "
            "printed upper bound is missing because no ε meets its condition at this noise.",
            separation_figure,
        ),
        (
            "low-noise",
            "Separation times where the printed upper bound applies",
            f"The same with little noise, {own.pairs} pairs for each noise scale. A bound holds where the "
            "triangles are not above it. As printed and as derived, the bound uses the mean number of pulls "
            "of an arm, which is wrong over a few rounds: 2 apart, the parameters differ along e1 only, and "
            "e1 may not have been drawn yet. The corrected bound allows for that.",
            low_noise_figure,
        ),
        (
            "sharing",
            "Regret of two agents",
            f"Synchronous, d = {own.sharing_dim}, {own.sharing_arms} unit arms, noise 1, δ = {own.delta:g}, "
            f"γ = {own.gamma:g}, α = {own.alpha:g}; mean over {own.sharing_runs} runs with its 95% interval. "
            "Bounds (as printed) apply until the two separate; dotted vertical lines show the median round "
            "of separation, if most pairs separated. All regrets are far below their bounds: what sharing "
            "gains is seen in the distance between the lower curves, not in the bounds.",
            sharing_figure,
        ),
        (
            "clusters",
            "Clusters: misassigned agents, regret, communication",
            f"Synchronous, d = {own.cluster_dim}, noise 1, δ = {own.delta:g}, γ = {own.gamma:g}; mean over "
            f"{own.cluster_runs} runs with its 95% interval. Left: the printed bound starts at 0, when the "
            "graph is complete and all agents of other clusters are misassigned. With β some agents of the "
            "same cluster are cut for good, which no bound allows for. Middle: bounds on regret at the end. "
            "Right: (N − 1)T holds when T counts pulls.",
            clusters_figure,
        ),
    ]
