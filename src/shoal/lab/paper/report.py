"""The report on the paper's experiments: published figures next to ours, and further sections."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from shoal.lab.experiments import report as harness
from shoal.lab.experiments.figures import ALPHA, REGRET
from shoal.lab.experiments.report import F1_COLUMNS, REGRET_COLUMNS, Column, chance, ratio, setting, table_of
from shoal.lab.experiments.spec import cells
from shoal.lab.experiments.stored import Results
from shoal.lab.experiments.summaries import Paired, Summary, SummaryRow, best_row, pair_up
from shoal.lab.paper import beyond, published
from shoal.lab.paper.beyond import Contest, beyond_section, contests
from shoal.lab.paper.comparison import (
    Comparison,
    as_published,
    at,
    compare_f1,
    compare_regret,
    difference_columns,
    drawn,
    f1_remark,
    has_published_sizes,
    is_in_paper,
    is_ours,
    mark,
    paired_comparisons,
    printed_column,
    reference_row,
    regret_remark,
)
from shoal.lab.paper.flowchart import TITLE, flow_picture
from shoal.lab.paper.gamma import gamma_parts
from shoal.lab.paper.illustrations import illustration_parts
from shoal.lab.paper.measuring import load_measured
from shoal.lab.paper.presets import load_preset
from shoal.lab.paper.real_data import real_data_section
from shoal.lab.paper.theory_page import theory_document
from shoal.reporting.sections import Bullets, Document, Heading, Mark, Part, Section, Text
from shoal.reporting.words import EMPTY, counted, interval, number, plus_minus

PAPER = "Cherkaoui, Barlier and Colin, Adaptive Sample Sharing for Multi Agent Linear Bandits, ICML 2025"

OURS = "beyond"
"""The preset that is about our own policy, not about the paper."""

TITLES = {
    "paper": "Adaptive sample sharing: our runs beside the published figures",
    "quick": "Adaptive sample sharing: a first look",
    OURS: "Beyond the paper: our own policy against its methods",
}

AS_PUBLISHED_NOTE = (
    "“As published” takes each method at the best of five evenly spaced values of α, "
    f"{', '.join(f'{alpha:g}' for alpha in published.ALPHAS)} ({published.INFERENCE}). "
    f"{published.STATISTICS['undecided']} So our mean and our median are both held against each figure. "
    "Differences are also given in standard errors (s.e.): of means as usual, of our medians by bootstrap, "
    "of printed medians as for normal values. A figure agrees within 3 of these or within 10% of the printed "
    "one, whichever is more; the ± within 3 or within a factor of 1.5. “Differs” marks those that do not."
)
EXPLORATION_NOTE = (
    "The paper does not say for how many rounds (Tₑ) CMLB explores alone; the first author's package has "
    "1,000. The table shows other values. That the paper ran Tₑ between T/10 and T/5 is an inference: these "
    "values were found by looking at the printed figures."
)
AT_BEST_NOTE = (
    "“At its best” takes the α with the lowest mean final regret of a finer grid, the same for every method: "
    "{alphas}. Either way α is chosen on the same runs that are reported, which favours every method alike; "
    "nothing is tuned per seed. ± is the standard deviation between runs (n − 1); intervals are 95% "
    "intervals of the mean (Student t). Medians are shown because some methods, DynUCB above all, have "
    "heavy tails."
)
PUBLISHED_CAPTION = (
    "As published: the paper's methods at the best of its five values of α, in its colours. At most eight "
    "curves: both settings of BASS, and each other method at the better of its two. Mean over runs; bands "
    "are 95% intervals of the mean."
)
MEANINGS: Mapping[Mark, str] = {"reference": "Bold: BASS.", "apart": "Italics: not in the paper."}
OURS_NOTE = (
    "Methods marked “ours” are not in the paper. They run at their default parameters, α included (“fixed”), "
    "while each other method gets its best α, an advantage that only a row “best α” gives ours."
)
F1_PRINTED_NOTE = (
    "Published scores have one digit, so each may be off by 0.05. A row agrees if it is within 3 standard "
    "errors or 0.05 of a number that rounds to the published one, whichever is more."
)


@dataclass(frozen=True)
class Reproduction:
    """What the harness found, and how it compares with the paper."""

    found: Results
    as_published: Mapping[tuple[str, str], SummaryRow]
    """Rows at the best of the published values of α, by environment and method."""
    pairs: list[Paired]
    """BASS against each method of the paper."""
    contests: list[Contest]
    """Our own method against others, by environment."""
    sizes: frozenset[str]
    """Environments with printed figures whose sizes are the paper's."""

    def reading(self, row: SummaryRow) -> SummaryRow | None:
        """The row as published, if it was run at those values of α."""
        return self.as_published.get((row.environment, row.method))

    def has_readings(self, environment: str) -> bool:
        """Whether there are two readings of an environment."""
        return any(key == environment and not row.fixed for (key, _), row in self.as_published.items())

    def comparable(self, environment: str) -> bool:
        """Whether printed figures of an environment are for the same setting and data."""
        return self._has_printed(environment) and not published.SETTINGS[environment].data

    def other_data(self, environment: str) -> str:
        """The name of the data that printed figures of an environment are for; empty if there are none."""
        return published.SETTINGS[environment].data if self._has_printed(environment) else ""

    def regret(self, row: SummaryRow) -> Comparison | None:
        """The final regret of a row, as published, beside the printed one."""
        own = self.reading(row)
        return None if own is None else compare_regret(own)

    def f1(self, row: SummaryRow) -> Comparison | None:
        """The F1 score of a row, as published, beside the printed one."""
        own = self.reading(row)
        return None if own is None else compare_f1(own)

    def _has_printed(self, environment: str) -> bool:
        return environment in self.sizes and self.has_readings(environment)


def reproduction(found: Results) -> Reproduction:
    """Compare results with the paper."""
    return Reproduction(
        found=found,
        as_published=as_published(found.table, found.names),
        pairs=paired_comparisons(found.table, found.rows),
        contests=contests(found.table, found.rows),
        sizes=frozenset(key for key in found.environments if has_published_sizes(found.table, key)),
    )


def document(own: Reproduction) -> Document:
    """The whole report."""
    found = own.found
    select = partial(_selections, own)
    opening = harness.opening_picture(found, select)
    said = [agreement_sentence(own), order_sentence(own), f1_sentence(own), beyond.summary(own.contests)]
    is_paper = found.spec.name != OURS
    explained = [Heading(TITLE), flow_picture(), *illustration_parts(found.directory)] if is_paper else []
    return Document(
        name=found.spec.name,
        title=TITLES.get(found.spec.name, TITLES["paper"]),
        subtitle=f"Experiment {found.spec.name}: {setting(found.spec)}. Paper: {PAPER}.",
        lead=opening_sentence(found),
        opening=opening,
        remarks=[*filter(None, said), *(scenario_sentence(own, key) for key in found.environments)],
        notices=notices(own),
        sections=[
            _regret_section(own),
            _f1_section(own),
            _paired_section(own),
            beyond_section(own.contests),
            harness.figures_section(found, without=opening, select=select),
            Section("sharing", "How sharing works", [*gamma_parts(found), *explained]),
            real_data_section(found, sized_rows(own)),
            _provenance_section(found),
        ],
        further={"theory": theory_document(load_measured(found.directory))} if is_paper else {},
    )


def _as_published_figures(own: Reproduction, environment: str) -> list[Part]:
    """Regret as published, beside the table: over rounds, and against the five values of α."""
    rows = drawn(row for row in own.as_published.values() if row.environment == environment)
    if not rows or not own.has_readings(environment):
        return []
    selection = harness.Selection("published", ", as published", rows)
    pictures = [harness.picture(own.found, environment, kind, selection) for kind in (REGRET, ALPHA)]
    return [dataclasses.replace(one, caption=PUBLISHED_CAPTION) for one in pictures if one is not None]


def _selections(own: Reproduction, environment: str) -> list[harness.Selection]:
    """What is drawn together at its best: the paper's methods, and ours beside BASS, Ind and Oracle."""
    rows = own.found.of(environment)
    ours = [row for row in rows if not is_in_paper(row)]
    theirs = [row for row in rows if row is reference_row(rows) or row.policy in ("independent", "oracle")]
    whole = drawn(rows)
    found = (
        []
        if {row.method for row in whole} <= {row.method for row in theirs} and ours
        else [harness.Selection("", ", each at its best", whole)]
    )
    return found + ([harness.Selection("ours", ", with ours", [*theirs, *ours])] if ours else [])


def _regret_section(own: Reproduction) -> Section:
    best = (
        Column("at its best", lambda row: at(row, "{:,.0f}", row.regret)),
        Column("95% interval", lambda row: interval("{:,.0f}", row.regret.low, row.regret.high)),
        Column("median", lambda row: f"{row.regret.median:,.0f}"),
    )

    def columns(environment: str) -> Sequence[Column]:
        if not own.has_readings(environment):
            return REGRET_COLUMNS
        first = _reading_columns(own, "{:,.0f}", lambda row: row.regret)
        if own.comparable(environment):
            printed = printed_column(own.regret, "{:,.1f}"), *difference_columns(own.regret, "{:+,.0f}")
        elif data := own.other_data(environment):
            printed = (printed_column(own.regret, "{:,.1f}", f"published, {data}"),)
        else:
            printed = ()
        return *first, *printed, *best

    found = own.found
    two = [key for key in found.environments if own.has_readings(key)]
    alphas = ", ".join(f"{alpha:g}" for alpha in sorted(found.spec.alphas))
    notes = [Text(AS_PUBLISHED_NOTE), Text(AT_BEST_NOTE.format(alphas=alphas))] if two else []
    if len(two) < len(found.environments):
        notes.append(Text(harness.METHOD_NOTE))
    if own.contests:
        notes.append(Text(OURS_NOTE))
    section = harness.regret_section(
        found,
        notes,
        columns=columns,
        remark=lambda key: f", {found.spec.runs} runs" if key in two else ", each method at its best α",
        mark=mark,
        meanings=MEANINGS,
        beside=partial(_as_published_figures, own),
    )
    said = [regret_remark(row, own.regret(row)) for row in _judged(own)]
    section = _with_remarks(section, "Final regrets that do not agree with the published ones", said)
    return Section(section.key, section.title, [*section.parts, *exploration_parts(own)])


def exploration_parts(own: Reproduction) -> list[Part]:
    """What the length of CMLB's exploration does to its rows, and to the number of rows that agree."""
    tried = {rounds: found for rounds in (None, *published.EXPLORATION) if (found := _agreement(own, rounds))}
    if len(tried) < 2:
        return []
    shown = [entry.row for entry in tried[None] if entry.row.policy == "cmlb"]

    def scanned(place: int, row: SummaryRow) -> Column:
        def text(rounds: int | None) -> str:
            mine = [entry.row for entry in tried[rounds] if entry.row.policy == "cmlb"][place]
            score = "" if mine.f1 is None else f"; F1 {mine.f1.mean:.2f}"
            s = mine.regret
            return f"{plus_minus('{:,.0f}', s.mean, s.std)} ({s.median:,.0f}{score})"

        return Column(f"{row.label}, {row.title}: mean ± std (median; F1)", text)

    columns = [
        Column("Tₑ", lambda rounds: f"{rounds or 1000:,}"),
        *(scanned(place, row) for place, row in enumerate(shown)),
        Column(
            "regrets that agree, of all methods: by mean, by median", lambda rounds: _counts(tried[rounds])
        ),
        Column("F1 that agree", lambda key: _scores(tried[key])),
    ]
    return [
        Heading("How long CMLB explores"),
        Text(EXPLORATION_NOTE),
        table_of("CMLB as published, by the length of its exploration", columns, list(tried)),
    ]


def _f1_section(own: Reproduction) -> Section:
    def columns(environment: str) -> Sequence[Column]:
        if not own.has_readings(environment):
            return F1_COLUMNS
        first = _reading_columns(own, "{:.2f}", lambda row: row.f1)
        printed = (
            (printed_column(own.f1, "{:.1f}"), *difference_columns(own.f1, "{:+.2f}")[:2])
            if own.comparable(environment)
            else ()
        )
        best = Column("at its best", lambda row: at(row, "{:.2f}", row.f1))
        return *first, *printed, best, F1_COLUMNS[2]

    notes = [Text(harness.F1_NOTE)]
    if any(own.comparable(key) for key in own.found.environments):
        notes.append(Text(F1_PRINTED_NOTE))
    section = harness.f1_section(own.found, notes, columns=columns, mark=mark, meanings=MEANINGS)
    said = [f1_remark(row, own.f1(row)) for row in _judged(own)]
    return _with_remarks(section, "Scores that do not agree with the published ones", said)


def _reading_columns(
    own: Reproduction, form: str, value: Callable[[SummaryRow], Summary | None]
) -> tuple[Column, Column]:
    """The method, and its value as published."""

    def read(row: SummaryRow) -> str:
        reading = own.reading(row)
        return EMPTY if reading is None else at(reading, form, value(reading))

    return Column("method", lambda row: row.label), Column("as published", read)


def sized_rows(own: Reproduction) -> dict[tuple[str, str], SummaryRow]:
    """The rows as published whose sizes are the paper's, by environment and method."""
    return {key: row for key, row in own.as_published.items() if row.environment in own.sizes}


def _judged(own: Reproduction) -> list[SummaryRow]:
    """The rows as published whose printed figures are for the same setting."""
    return [row for row in own.as_published.values() if own.comparable(row.environment)]


def _paired_section(own: Reproduction) -> Section:
    """BASS against each method, run by run; first against Ind in both readings."""
    section = harness.paired_section(own.found, own.pairs, [Text(harness.PAIRED_NOTE.format(first="BASS"))])
    if not section.parts:
        return section
    both = [pair for key in own.found.environments if (pair := _against_ind(own, key)) is not None]
    note, *tables = section.parts
    if not both:
        return section
    table = table_of("BASS δ=0.1 minus Ind in both readings, final regret", BOTH_COLUMNS, both)
    return Section(section.key, section.title, [note, table, *tables])


def _against_ind(own: Reproduction, environment: str) -> tuple[str, Paired, Paired] | None:
    """BASS minus Ind as published and at their best."""
    here = own.found.of(environment)
    bass, ind = reference_row(here), next((row for row in here if row.policy == "independent"), None)
    if bass is None or ind is None or own.reading(bass) is None or own.reading(ind) is None:
        return None
    first = pair_up(own.found.table, own.reading(bass), own.reading(ind))
    best = pair_up(own.found.table, bass, ind)
    return None if first is None or best is None else (bass.title, first, best)


def _gain(pair: Paired) -> str:
    return f"{number('{:+,.0f}', pair.difference)} ({interval('{:+,.0f}', pair.low, pair.high)})"


BOTH_COLUMNS = (
    Column("scenario", lambda entry: entry[0]),
    Column("as published (95% interval)", lambda entry: _gain(entry[1])),
    Column("runs won", lambda entry: f"{entry[1].won:.0%}"),
    Column("at their best (95% interval)", lambda entry: _gain(entry[2])),
    Column("runs won", lambda entry: f"{entry[2].won:.0%}"),
    Column("runs", lambda entry: str(entry[2].runs)),
)


def _with_remarks(section: Section, heading: str, said: Sequence[str | None]) -> Section:
    texts = [text for text in said if text is not None]
    more: list[Part] = [Heading(heading), Bullets(texts)] if texts else []
    return Section(section.key, section.title, [*section.parts, *more])


def _provenance_section(found: Results) -> Section:
    seconds = found.provenance.get("cpu_seconds")
    if seconds is None or not _is_all_of_the_paper(found):
        return harness.provenance_section(found)
    text = (
        f"{harness.cpu_time(seconds)}; the authors report a week on 50 CPUs, {published.CPU_HOURS:,} "
        "CPU-hours, for all of their experiments"
    )
    return harness.provenance_section(found, [("CPU time", text)])


def _is_all_of_the_paper(found: Results) -> bool:
    """Whether all experiments of the paper were run, at its sizes."""
    paper = load_preset("paper")
    return (
        (found.spec.name, found.spec.horizon, found.spec.runs) == (paper.name, paper.horizon, published.RUNS)
        and found.cells_done == len(cells(paper))
        and not found.skipped
    )


# What it says

WORDS = {
    "independent": "agents that learn alone ({label}) end at",
    "oracle": "agents that are told their clusters ({label}) at",
}
"""How the opening sentence names a method, by policy."""


def opening_sentence(found: Results) -> str:
    """What the first picture shows, in a plain sentence: Ind, BASS, ours and Oracle, those that were run."""
    here = found.of(found.environments[0])
    bass, ours = reference_row(here), next((row for row in here if is_ours(row)), None)
    alone, oracle = (next((row for row in here if row.policy == name), None) for name in WORDS)
    rows = [row for row in (alone, bass, ours, oracle) if row is not None]
    if len(rows) < 2:
        return harness.scenario_sentence(found, found.environments[0])
    said = ", ".join(
        f"{WORDS.get(row.policy, '{label} ends at').format(label=row.label)} {row.regret.mean:,.0f}"
        for row in rows
    )
    return (
        f"{rows[0].title}, regret after {found.spec.horizon:,} rounds: {said} (mean of "
        f"{counted(rows[0].regret.runs, 'run')}, less is better)."
    )


class Agreement(NamedTuple):
    """A row as published and how it compares with print."""

    row: SummaryRow
    regret: Comparison
    f1: Comparison | None


def _agreement(own: Reproduction, exploration: int | None = None) -> list[Agreement]:
    """The published methods, CMLB with that `exploration`; none if it was not run."""
    judged = {(row.environment, row.method): row for row in _judged(own)}
    rows = [row for row in judged.values() if row.method not in published.VARIANTS]
    if exploration is not None:
        longer = [judged.get((row.environment, f"{row.method}-e{exploration}"), row) for row in rows]
        if longer == rows:
            return []
        rows = longer
    compared = [(row, own.regret(row), own.f1(row)) for row in rows]
    return [Agreement(row, regret, f1) for row, regret, f1 in compared if regret is not None]


def _counts(found: Sequence[Agreement]) -> str:
    by_mean, by_median, _ = _tally(found)
    return f"{by_mean} and {by_median} of {len(found)}"


def _scores(found: Sequence[Agreement]) -> str:
    return f"{_tally(found)[2]} of {sum(entry.f1 is not None for entry in found)}"


def agreement_sentence(own: Reproduction) -> str:
    """How many of the published figures come out, and how far the others are off; empty without any."""
    judged = _agreement(own)
    if not judged:
        return ""
    longer = {rounds: found for rounds in published.EXPLORATION if (found := _agreement(own, rounds))}
    shown, condition = judged, ""
    if longer:
        most = max(_tally(found) for found in longer.values())
        best = [rounds for rounds, found in longer.items() if _tally(found) == most]
        shown = longer[best[0]]
        values = " or ".join(f"{rounds:,} (T/{own.found.spec.horizon // rounds})" for rounds in best)
        condition = f" if CMLB explores for Tₑ = {values} rounds"
    text = (
        f"As published, {_counts(shown)} final regrets agree with the printed ones, by their mean and by "
        f"their median over runs, and {_scores(shown)} F1 scores{condition}"
    )
    text += _missed(shown)
    if longer:
        text += (
            " That is an inference: the paper gives no Tₑ, and these values were found by looking at its "
            f"figures. With 1,000, its package's default, it is {_counts(judged)} and {_scores(judged)}"
            f"{_missed(judged)}"
        )
    spreads = [entry.regret.spread for entry in judged if entry.regret.spread is not None]
    ratios = [math.exp(found.difference) for found in spreads]
    text += f" The ± agree in {sum(found.agrees for found in spreads)} of {len(spreads)}"
    return f"{text} (ours over printed ×{min(ratios):.2f} to ×{max(ratios):.2f})." if ratios else f"{text}."


def _tally(found: Sequence[Agreement]) -> tuple[int, int, int]:
    """How many regrets agree by mean and by median, and how many F1 scores."""
    return (
        sum(entry.regret.mean.agrees for entry in found),
        sum(entry.regret.median.agrees for entry in found),
        sum(entry.f1 is not None and entry.f1.mean.agrees for entry in found),
    )


def _missed(found: Sequence[Agreement]) -> str:
    missed = [_named(entry) for entry in found if not entry.regret.mean.agrees]
    return f"; not {', '.join(missed)}." if missed else "."


def f1_sentence(own: Reproduction) -> str:
    """Where methods of the paper find unknown clusters better than BASS; empty if nowhere."""
    said = []
    for key in own.found.environments if own.found.spec.name != OURS else ():
        scores = {
            row.label: row.f1
            for row in own.found.of(key)
            if row.f1 is not None and is_in_paper(row) and row.policy != "oracle"
        }
        bass = {row.label: scores[row.label] for row in own.found.of(key) if row.policy == "bass" and row.f1}
        better = {
            label: score
            for label, score in scores.items()
            if label not in bass and any(score.low > theirs.high for theirs in bass.values())
        }
        if better:
            listed = ", ".join(f"{label} {score.mean:.2f}" for label, score in (better | bass).items())
            said.append(f"{own.found.title(key)}: {listed}")
    if not said:
        return ""
    return (
        "Against the paper, which says that BASS finds the clusters best: methods with a higher F1 score "
        f"than one of BASS's settings, each at its best α ({'; '.join(said)})."
    )


def _named(entry: Agreement) -> str:
    errors, share = entry.regret.mean.errors, entry.regret.mean.difference / entry.regret.printed.value
    text = f"{entry.row.label} in {entry.row.title}, {number('{:+.0%}', share)}"
    return text if not math.isfinite(errors) else f"{text} or {abs(errors):.1f} standard errors"


def order_sentence(own: Reproduction) -> str:
    """In how many scenarios BASS is the best of the paper's methods, and which are above it elsewhere."""
    found = own.found
    judged = [
        (bass, other)
        for key in found.environments
        if (bass := reference_row(found.of(key))) and (other := _best_other(found.of(key)))
    ]
    if not judged:
        return "These results hold no comparison of BASS with another method yet."
    lost = [
        f"{other.label} in {other.title}" for bass, other in judged if bass.regret.mean >= other.regret.mean
    ]
    text = (
        f"At its best, BASS has the lowest mean regret of the paper's methods that do not know the clusters "
        f"in {len(judged) - len(lost)} of {counted(len(judged), 'scenario')}"
    )
    return f"{text}; lower are {'; '.join(lost)}." if lost else f"{text}."


def scenario_sentence(own: Reproduction, environment: str) -> str:
    """The methods of an environment from the lowest regret up to BASS and the best of the paper's others."""
    rows = sorted(own.found.of(environment), key=lambda row: row.regret.mean)
    bass, other = reference_row(rows), _best_other(rows)
    last = max((rows.index(row) for row in (bass, other) if row is not None), default=len(rows) - 1)
    said = ", ".join(f"{row.label} {row.regret.mean:,.0f}" for row in rows[: last + 1])
    text = f"{rows[0].title}, lowest regret first, each at its best: {said}"
    if bass is not None and other is not None:
        text += f"; {other.label} against {bass.label}: {ratio(other, bass)}"
        text += chance(pair_up(own.found.table, bass, other))
    return f"{text}."


def notices(own: Reproduction) -> list[str]:
    """What readers must know before they compare: smaller settings, other data, missing cells."""
    return [*other_settings(own), *harness.notices(own.found)]


def other_settings(own: Reproduction) -> list[str]:
    """Where these results are of other sizes or data than the paper's."""
    said = []
    found, here = own.found, own.found.spec
    data = [name for key in found.environments if (name := own.other_data(key))]
    if data:
        said.append(
            f"Real data: the paper used {' and '.join(data)}. Its figures are shown beside ours, but no "
            "difference is computed, since these may be other data (the report cannot tell)."
        )
    smaller = [
        found.title(key)
        for key in found.environments
        if key in published.SETTINGS and key not in own.sizes and here.name != OURS
    ]
    if smaller:
        said.append(
            f"Not the paper's setting ({'; '.join(smaller)}): {setting(here)} here, T = 50,000 rounds, 100 "
            f"agents and {published.RUNS} runs in the paper. So no published figures are shown; “shoal "
            "reproduce tables” runs the paper's setting."
        )
    elif any(map(own.comparable, found.environments)) and here.runs < published.RUNS:
        said.append(
            f"{here.runs} runs here, {published.RUNS} in the paper: the means are less certain (see the "
            "intervals)."
        )
    return said


def _best_other(rows: Sequence[SummaryRow]) -> SummaryRow | None:
    return best_row([row for row in rows if row.policy not in ("bass", "oracle") and is_in_paper(row)])
