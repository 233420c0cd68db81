"""The report on the paper's experiments: published figures next to ours, and further sections."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.experiments import report as harness
from shoal.experiments.report import Findings, chance, ratio, setting
from shoal.experiments.summaries import Paired, Row, best_row
from shoal.paper import beyond, published
from shoal.paper.beyond import Contest, beyond_section, contests
from shoal.paper.comparison import (
    Comparison,
    comparable_environments,
    compare_f1,
    compare_regret,
    f1_columns,
    f1_remark,
    is_ours,
    mark,
    paired_comparisons,
    reference_row,
    regret_columns,
    regret_remark,
)
from shoal.paper.gamma import gamma_parts
from shoal.paper.illustrations import illustration_parts
from shoal.paper.measuring import load_measured
from shoal.paper.real_data import REAL_DATA, real_data_section
from shoal.paper.theory_section import theory_section
from shoal.reporting import render
from shoal.reporting.sections import Bullets, Document, Heading, Part, Section, Text

PAPER = "Cherkaoui, Barlier and Colin, Adaptive Sample Sharing for Multi Agent Linear Bandits, ICML 2025"

METHOD_NOTE = (
    "Each method is shown at the α with the lowest mean final regret over all runs, as in the paper. That α "
    "is chosen on the same runs that are reported, which favours every method alike; nothing is tuned per "
    "seed. Intervals are 95% intervals of the mean (Student t); std is the standard deviation between runs "
    "(n − 1). Medians are shown because some methods, DynUCB above all, have heavy tails."
)
OURS_NOTE = (
    "Methods marked “ours” are not in the paper, so there is nothing published to compare them with. They "
    "run at their default parameters, α included (“fixed”), while each other method gets its best α. The "
    "row “best α” gives ours the same advantage, and is what the figure of regret against α shows."
)
F1_NOTE = (
    "F1 of the edges of the graph against the pairs of agents in the same true cluster, at the end of the "
    "run and at the α chosen by regret. Published scores have one digit: a difference of up to 0.1, or up "
    "to the published standard deviation where that is larger, counts as agreement."
)
PAIRED_NOTE = (
    "The same seed gives every method the same arms, the same order of agents and the same noise, so "
    "methods are compared run by run, each at its best α. Differences are BASS minus the other method: "
    "negative favours BASS. The bootstrap interval does not assume normal differences, and the sign test "
    "only counts wins."
)


@dataclass(frozen=True)
class Reproduction:
    """What the harness found, and how it compares with the paper."""

    found: Findings
    pairs: list[Paired]
    """BASS against each method of the paper."""
    contests: list[Contest]
    """Our own method against others, by environment."""
    comparable: dict[str, bool]
    """For each environment with printed figures: whether ours were made in the same setting."""

    def regret(self, row: Row) -> Comparison | None:
        """A final regret next to the printed one."""
        return compare_regret(row, same=self.comparable.get(row.environment, False))

    def f1(self, row: Row) -> Comparison | None:
        """An F1 score next to the printed one."""
        return compare_f1(row, same=self.comparable.get(row.environment, False))


def reproduction(found: Findings) -> Reproduction:
    """Compare results with the paper."""
    return Reproduction(
        found=found,
        pairs=paired_comparisons(found.table, found.rows),
        contests=contests(found.table, found.rows),
        comparable=comparable_environments(found.table, found.rows),
    )


def write_report(out: Path) -> Path:
    """Like `shoal.experiments.report.write_report`, for results of the paper's presets."""
    found = harness.gather(Path(out))
    directory = found.directory / "report"
    return render.write(document(reproduction(found), directory), directory)


def document(own: Reproduction, directory: Path) -> Document:
    """The whole report; its figures are drawn into `directory`."""
    found, figures = own.found, directory / "figures"
    lead = [headline(own), beyond.summary(own.contests)]
    return Document(
        name=found.spec.name,
        title="Adaptive sample sharing: results and published figures side by side",
        subtitle=f"Experiment {found.spec.name}: {setting(found.spec)}. Paper: {PAPER}.",
        lead=" ".join(text for text in lead if text),
        remarks=scenario_sentences(own),
        notices=notices(own),
        sections=[
            _regret_section(own),
            _f1_section(own),
            harness.paired_section(found, own.pairs, [Text(PAIRED_NOTE)]),
            beyond_section(own.contests),
            harness.figures_section(found, figures),
            Section(
                "sharing",
                "How sharing works",
                [*gamma_parts(found, figures), *illustration_parts(found.directory, figures)],
            ),
            theory_section(load_measured(found.directory), figures),
            real_data_section(found),
            _provenance_section(found),
        ],
    )


def _regret_section(own: Reproduction) -> Section:
    def remark(environment: str) -> str:
        if environment not in published.FINAL_REGRET:
            return "; the paper prints no figures for this scenario"
        return "" if own.comparable[environment] else "; published figures are for another setting or data"

    notes = [Text(METHOD_NOTE), Text(OURS_NOTE)] if own.contests else [Text(METHOD_NOTE)]
    section = harness.regret_section(
        own.found, notes, more=regret_columns(own.regret), remark=remark, mark=mark
    )
    said = [text for row in own.found.rows if (text := regret_remark(row, own.regret(row))) is not None]
    return _with_remarks(section, "Differences of more than the published standard deviation", said)


def _f1_section(own: Reproduction) -> Section:
    section = harness.f1_section(own.found, [Text(F1_NOTE)], more=f1_columns(own.f1), mark=mark)
    said = [text for row in own.found.rows if (text := f1_remark(row, own.f1(row))) is not None]
    return _with_remarks(section, "Differences from the published scores", said)


def _with_remarks(section: Section, heading: str, said: Sequence[str]) -> Section:
    more: list[Part] = [Heading(heading), Bullets(said)] if said else []
    return Section(section.key, section.title, [*section.parts, *more])


def _provenance_section(found: Findings) -> Section:
    seconds = found.provenance.get("cpu_seconds")
    if seconds is None:
        return harness.provenance_section(found)
    text = (
        f"{harness.cpu_time(seconds)}; the authors report a week on 50 CPUs, {published.CPU_HOURS:,} "
        "CPU-hours, for all of their experiments"
    )
    return harness.provenance_section(found, [("CPU time", text)])


# What it says


def headline(own: Reproduction) -> str:
    """The main result in a sentence or two."""
    found = own.found
    first = [
        (reference_row(found.of(environment)), _best_other(found.of(environment)))
        for environment in found.environments
    ]
    judged = [(bass, other) for bass, other in first if bass and other]
    if not judged:
        return "These results hold no comparison of BASS with another method yet."
    wins = sum(bass.regret.mean < other.regret.mean for bass, other in judged)
    lead = (
        f"BASS has the lowest mean regret of all methods{' but ours' if own.contests else ''} that do not "
        f"know the clusters in {wins} of {len(judged)} scenario{'s' if len(judged) > 1 else ''}."
    )
    compared = [comparison for row in found.rows if row.policy == "bass" and (comparison := own.regret(row))]
    verdicts = [comparison.within for comparison in compared if comparison.within is not None]
    if verdicts:
        lead += f" {sum(verdicts)} of its {len(verdicts)} published figures are met"
        lead += " within their standard deviation."
    return lead


def scenario_sentences(own: Reproduction) -> list[str]:
    """A sentence or two on each environment with BASS."""
    return [
        text
        for environment in own.found.environments
        if (text := _scenario_sentence(own, own.found.of(environment))) is not None
    ]


def _scenario_sentence(own: Reproduction, rows: Sequence[Row]) -> str | None:
    """BASS, the best other method and the order of methods in an environment; None without BASS."""
    bass, other = reference_row(rows), _best_other(rows)
    if bass is None:
        return None
    text = f"{bass.title}: {bass.label} ends at {bass.regret.mean:,.0f}"
    printed = own.regret(bass)
    if printed is not None and printed.within is not None:
        text += f" ({printed.printed.mean:,.1f} ± {printed.printed.std:,.1f} in print)"
    if other is not None:
        text += f"; the best other method, {other.label}, at {other.regret.mean:,.0f}, {ratio(other, bass)}"
        text += chance(other, own.pairs)
    return f"{text}. {order_sentence(rows)}"


def order_sentence(rows: Sequence[Row]) -> str:
    """Whether mean regrets are ordered as in the paper: Oracle, then BASS, then everyone else."""
    oracle = [row for row in rows if row.policy == "oracle"]
    bass = [row for row in rows if row.policy == "bass"]
    others = [row for row in rows if row.policy not in ("oracle", "bass") and not is_ours(row)]
    wrong = [
        f"{a.label} is not below {b.label}"
        for first, second in ((oracle, bass), (bass, others))
        for a in first
        for b in second
        if a.regret.mean >= b.regret.mean
    ]
    names = " < ".join(
        name for name, there in (("Oracle", oracle), ("BASS", bass), ("every other method", others)) if there
    )
    if " < " not in names:
        return "There is nothing to compare it with."
    return (
        f"The order {names} holds." if not wrong else f"The order {names} does not hold: {'; '.join(wrong)}."
    )


def notices(own: Reproduction) -> list[str]:
    """What readers must know before they compare: smaller settings, other data, missing cells."""
    said = []
    found, here = own.found, own.found.spec
    other = [key for key, same in own.comparable.items() if not same]
    titles = "; ".join(found.title(key) for key in other if key not in REAL_DATA)
    if any(key in REAL_DATA for key in other):
        said.append(
            "Real data: the paper used MovieLens 25M and Yahoo! C14. Published figures are shown for "
            "reference; no difference is computed, since these may be other data (the report cannot tell)."
        )
    if titles:
        said.append(
            f"Not the paper's setting ({titles}): {setting(here)} here, T = 50,000 rounds, 100 agents and "
            f"{published.RUNS} runs in the paper. The published column is shown for reference; differences "
            "from it mean nothing and none is computed."
        )
    elif own.comparable and here.runs < published.RUNS:
        said.append(
            f"{here.runs} runs here, {published.RUNS} in the paper: the means are less certain (see the "
            "intervals)."
        )
    return [*said, *harness.notices(found)]


def _best_other(rows: Sequence[Row]) -> Row | None:
    return best_row([row for row in rows if row.policy not in ("bass", "oracle") and not is_ours(row)])
