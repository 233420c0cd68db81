"""The report on an experiment: what its results say, as sections of text, tables and figures.

It reports what the results hold and says what is missing: a run that was stopped early, or a grid of one
method, still gives a complete page. Only means and intervals are computed here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from shoal.lab.experiments import summaries
from shoal.lab.experiments.figures import KINDS, REGRET, Kind, result_lines
from shoal.lab.experiments.spec import ExperimentSpec, cells
from shoal.lab.experiments.stored import Results
from shoal.lab.experiments.summaries import Paired, SummaryRow, best_row
from shoal.reporting import charts
from shoal.reporting.sections import Definitions, Document, Heading, Mark, Part, Picture, Section, Table, Text
from shoal.reporting.words import EMPTY, counted, duration, interval, number, plus_minus

METHOD_NOTE = (
    "Each method is shown at the α with the lowest mean final regret over all runs. That α is chosen on the "
    "same runs that are reported, which favours every method alike; nothing is tuned per seed. Intervals "
    "are 95% intervals of the mean (Student t); std is the standard deviation between runs (n − 1). Medians "
    "are shown because some methods have heavy tails."
)
F1_NOTE = (
    "F1 of the edges of the graph against the pairs of agents in the same true cluster, at the end of the "
    "run and at the α chosen by regret."
)
PAIRED_NOTE = (
    "The same seed gives every method the same arms, the same order of agents and the same noise, so "
    "methods are compared run by run, each at its best α. Differences are {first} minus the other: negative "
    "favours {first}. The bootstrap interval does not assume normal differences, and the sign test only "
    "counts wins."
)


def document(found: Results) -> Document:
    """The whole report."""
    pairs = summaries.paired_with(found.table, found.rows, partial(reference_row, found.spec))
    opening = opening_picture(found)
    return Document(
        name=found.spec.name,
        title=found.spec.title or f"Results: {found.spec.name}",
        subtitle=f"{setting(found.spec)}.",
        lead=scenario_sentence(found, found.environments[0]),
        opening=opening,
        remarks=[scenario_sentence(found, key) for key in found.environments[1:]],
        notices=[*skipped_notices(found), *notices(found)],
        sections=[
            regret_section(found, [Text(METHOD_NOTE)], mark=partial(_mark, found.spec), meanings=MEANINGS),
            f1_section(found, [Text(F1_NOTE)], mark=partial(_mark, found.spec), meanings=MEANINGS),
            paired_section(found, pairs, [Text(PAIRED_NOTE.format(first="the first method"))]),
            figures_section(found, without=opening),
            provenance_section(found),
        ],
    )


def reference_row(spec: ExperimentSpec, rows: Sequence[SummaryRow]) -> SummaryRow | None:
    """The method that a spec compares the others with; by default, or where it was not run, the best."""
    return next((row for row in rows if row.method == spec.reference), best_row(rows))


MEANINGS: Mapping[Mark, str] = {"reference": "Bold: the method that the others are compared with."}


def _mark(spec: ExperimentSpec, row: SummaryRow) -> Mark:
    return "reference" if row.method == spec.reference else ""


# What it says


def scenario_sentence(found: Results, environment: str) -> str:
    """How the methods of an environment rank, and by how much the first leads or the reference differs."""
    best, *others = sorted(found.of(environment), key=lambda row: row.regret.mean)
    runs = f"mean of {best.regret.runs} runs" if best.regret.runs > 1 else "one run"
    text = f"{best.title}, {found.spec.horizon:,} rounds: {best.label} has the lowest regret, "
    text += f"{best.regret.mean:,.0f} ({runs})"
    if not others:
        return f"{text}. There is nothing to compare it with."
    # Against the reference if there is one; if that is the best itself, against the next best.
    own = reference_row(found.spec, found.of(environment))
    other = others[0] if own is None or own is best else own
    text += f"; {'next is ' if other is others[0] else ''}{other.label} at {other.regret.mean:,.0f}, "
    text += ratio(other, best)
    return f"{text}{chance(summaries.pair_up(found.table, best, other))}."


def chance(pair: Paired | None) -> str:
    """A remark if the difference of two methods may be due to chance; otherwise empty."""
    if pair is not None and pair.low <= 0.0 <= pair.high:
        return ", a difference that chance could explain (its 95% interval contains 0)"
    return ""


def ratio(other: SummaryRow, own: SummaryRow) -> str:
    """How much more regret one method has than another, in words."""
    if own.regret.mean <= 0.0:
        return "as little" if other.regret.mean <= 0.0 else "more"
    times = other.regret.mean / own.regret.mean
    if times >= 1.5:
        return f"{times:.1f} times as much"
    return f"{abs(times - 1.0):.0%} {'more' if times >= 1.0 else 'less'}"


def notices(found: Results) -> list[str]:
    """What readers must know before they compare: missing cells, best values at the edge of the grid."""
    said = []
    # Cells of environments that were left out are missing on purpose.
    expected = sum(cell.environment.id not in found.skipped for cell in cells(found.spec))
    if found.cells_done < expected:
        said.append(
            f"{found.cells_done:,} of {expected:,} cells are finished, because the run was restricted or "
            "stopped. “Best α” means the best among the cells that have runs."
        )
    edge = sum(row.at_edge for row in found.rows)
    if edge:
        said.append(
            f"In {edge} of {len(found.rows)} rows the best α is at the edge of the grid (marked): a wider "
            "grid might do better."
        )
    return said


def skipped_notices(found: Results) -> list[str]:
    """Which environments were skipped, and why."""
    return [f"{name} was left out: {reason.rstrip('.')}." for name, reason in found.skipped.items()]


def setting(spec: ExperimentSpec) -> str:
    """Sizes of an experiment, in words."""
    agents = {item.parameters.get("n_agents") for item in spec.environments}
    shown = f", {agents.pop()} agents" if len(agents) == 1 and None not in agents else ""
    return f"T = {spec.horizon:,} rounds{shown}, {counted(spec.runs, 'run')}"


# Tables: a column is a heading and a function that fills its cells


class Column(NamedTuple):
    """A column of a table."""

    header: str
    text: Callable[[Any], str]


REGRET_COLUMNS = (
    Column("method", lambda row: row.label),
    Column(
        "best α",
        lambda row: f"{row.alpha:g}" + (" (fixed)" if row.fixed else " (edge)" if row.at_edge else ""),
    ),
    Column("mean ± std", lambda row: plus_minus("{:,.0f}", row.regret.mean, row.regret.std)),
    Column("95% interval", lambda row: interval("{:,.0f}", row.regret.low, row.regret.high)),
    Column("median", lambda row: f"{row.regret.median:,.0f}"),
    Column("runs", lambda row: str(row.regret.runs)),
)
F1_COLUMNS = (
    Column("method", lambda row: row.label),
    Column("mean ± std", lambda row: plus_minus("{:.2f}", row.f1.mean, row.f1.std)),
    Column("95% interval", lambda row: interval("{:.2f}", row.f1.low, row.f1.high)),
    Column("runs", lambda row: str(row.f1.runs)),
)
PAIRED_COLUMNS = (
    Column("against", lambda pair: pair.label),
    Column("mean difference", lambda pair: number("{:+,.0f}", pair.difference)),
    Column("95% interval (paired t)", lambda pair: interval("{:+,.0f}", pair.low, pair.high)),
    Column(
        "95% interval (bootstrap)", lambda pair: interval("{:+,.0f}", pair.bootstrap_low, pair.bootstrap_high)
    ),
    Column("runs won", lambda pair: f"{pair.won:.0%}"),
    Column("sign test p", lambda pair: "< 0.001" if pair.sign_p < 0.001 else f"{pair.sign_p:.3f}"),
    Column("runs", lambda pair: str(pair.runs)),
)


def line(columns: Iterable[Column], entry: Any) -> list[str]:
    """A line of a table, as text."""
    return [column.text(entry) for column in columns]


def table_of(
    caption: str,
    columns: Sequence[Column],
    entries: Sequence[Any],
    mark: Callable[[Any], Mark] = lambda _: "",
    *,
    wordy: bool = False,
    meanings: Mapping[Mark, str] | None = None,
) -> Table:
    """A table with a line for each entry, without columns that would be empty (all dashes).

    `meanings` says what each mark stands for; those that occur are explained with the table.
    """
    first, *others = columns
    filled = [first, *(column for column in others if any(column.text(entry) != EMPTY for entry in entries))]
    header = [column.header for column in filled]
    lines = [line(filled, entry) for entry in entries]
    marks = [mark(entry) for entry in entries]
    key = " ".join(text for sign, text in (meanings or {}).items() if sign in marks)
    return Table(caption, header, lines, marks, wordy, key=key)


def regret_section(
    found: Results,
    notes: Sequence[Part],
    *,
    columns: Callable[[str], Sequence[Column]] = lambda _: REGRET_COLUMNS,
    remark: Callable[[str], str] = lambda _: ", each method at its best α",
    mark: Callable[[SummaryRow], Mark] = lambda _: "",
    meanings: Mapping[Mark, str] | None = None,
    beside: Callable[[str], Sequence[Part]] = lambda _: (),
) -> Section:
    """Final regret by environment, in the columns of each, with a remark on each in its caption.

    The parts `beside` an environment's table follow it.
    """
    caption = f"final regret after {found.spec.horizon:,} rounds"
    return Section(
        "final-regret",
        "Final regret",
        [
            *notes,
            *(
                part
                for key in found.environments
                for part in (
                    table_of(
                        f"{found.title(key)}: {caption}{remark(key)}",
                        columns(key),
                        found.of(key),
                        mark,
                        meanings=meanings,
                    ),
                    *beside(key),
                )
            ),
        ],
    )


def f1_section(
    found: Results,
    notes: Sequence[Part],
    *,
    columns: Callable[[str], Sequence[Column]] = lambda _: F1_COLUMNS,
    mark: Callable[[SummaryRow], Mark] = lambda _: "",
    meanings: Mapping[Mark, str] | None = None,
) -> Section:
    """F1 scores by environment, in the columns of each; no parts if there are no scores."""
    scored = {key: [row for row in found.of(key) if row.f1 is not None] for key in found.environments}
    tables = [
        table_of(f"{found.title(key)}: F1 score at the end", columns(key), rows, mark, meanings=meanings)
        for key, rows in scored.items()
        if rows
    ]
    return Section("f1", "F1 score", [*notes, *tables] if tables else [])


def paired_section(found: Results, pairs: Sequence[Paired], notes: Sequence[Part]) -> Section:
    """Differences run by run, by environment; no parts if there are none."""
    tables = []
    for key in found.environments:
        here = [pair for pair in pairs if pair.environment == key]
        if here:
            caption = f"{found.title(key)}: {here[0].reference} minus each method, final regret"
            tables.append(table_of(caption, PAIRED_COLUMNS, here))
    return Section("paired", "Run by run", [*notes, *tables] if tables else [])


def provenance_section(found: Results, more: Sequence[tuple[str, str]] = ()) -> Section:
    """Where the numbers come from; `more` items replace those of the same name."""
    known, spec = found.provenance, found.spec
    seeds = f"{spec.seed} to {spec.seed + spec.runs - 1}" if spec.runs > 1 else str(spec.seed)
    items = {"Spec": f"{spec.name}, {setting(spec)}, seeds {seeds}"}
    if command := known.get("command"):
        items["Command"] = str(command)
    if versions := known.get("versions"):
        items["Versions"] = ", ".join(f"{name} {value}" for name, value in versions.items())
    if commit := known.get("commit"):
        items["Commit"] = str(commit)
    if machine := known.get("machine"):
        items["Machine"] = f"{machine}; {known.get('cpu_count', '?')} CPUs, {known.get('executor', '')}"
    if known.get("started"):
        items["Started, ended"] = f"{known['started']}, {known.get('ended') or 'not yet'}"
    if "wall_seconds" in known:
        items["Wall time"] = duration(known["wall_seconds"])
    if "cpu_seconds" in known:
        items["CPU time"] = cpu_time(known["cpu_seconds"])
    items |= dict(more)
    items |= _several(found)
    if (played := known.get("played")) and played.get("thread_seconds", 0.0) > 0.0:
        items["Speed"] = speed(played)
    items["Cells"] = f"{found.cells_done:,} of {found.cells_total:,}"
    if not known:
        items["Provenance"] = "provenance.json is missing or cannot be read"
    return Section("provenance", "Provenance", [Definitions(list(items.items()))])


def _several(found: Results) -> dict[str, str]:
    """Software and machines of a grid that grew, if they differ between runs, and results taken on trust."""
    made = Counter(zip(*(found.table[name].to_pylist() for name in ("software", "machine")), strict=True))
    items = {}
    if len(made) > 1:
        listed = [f"{count:,} runs with {what}, on {where}" for (what, where), count in made.most_common()]
        items["Played by"] = "; ".join(listed) + ". The items above describe the last call"
    if found.trusted:
        cells = Counter((entry["when"], ", ".join(entry["changed"])) for entry in found.trusted)
        items["On trust"] = "; ".join(
            f"on {when}, {counted(count, 'stored cell')} declared unaffected by a change of {what}"
            for (when, what), count in cells.items()
        )
    return items


def speed(played: Mapping[str, float]) -> str:
    """Rounds per second, and the efficiency against one core, in words; see `runner.PLAYED`.

    One core plays `rounds / cpu_seconds` rounds a second. If every thread always did, they would play that
    many each; efficiency is the share of it that was reached, `cpu_seconds / thread_seconds`.
    """
    rate = played["rounds"] / played["wall_seconds"]
    threads = played["thread_seconds"] / played["wall_seconds"]
    efficiency = played["cpu_seconds"] / played["thread_seconds"]
    return (
        f"{rate:,.0f} rounds per second on {threads:.3g} thread{'s' * (threads != 1)}, compiling and waiting "
        f"included; efficiency against one core {efficiency:.0%} (processor time of the runs / wall time "
        "of the threads)"
    )


def cpu_time(seconds: float) -> str:
    """Processor time, in words."""
    return f"{seconds / 3600.0:.2g} CPU-hours"


# Figures


class Selection(NamedTuple):
    """Some methods of an environment that are drawn together."""

    name: str
    """Ends the figures' names; empty for the only or main selection."""
    words: str
    """Added to their titles."""
    rows: Sequence[SummaryRow]


Select = Callable[[str], Sequence[Selection]]
"""The selections of an environment; a figure of each kind is drawn for each of them."""


def opening_picture(found: Results, select: Select | None = None) -> Picture | None:
    """Regret over rounds in the first environment: of its last selection, or of all methods."""
    *_, selection = _selections(found, found.environments[0], select)
    return picture(found, found.environments[0], REGRET, selection)


def figures_section(
    found: Results, *, without: Picture | None = None, select: Select | None = None
) -> Section:
    """The charts of every environment, `without` the one that is shown elsewhere."""
    parts: list[Part] = []
    for key in found.environments:
        pictures = [
            picture(found, key, kind, selection)
            for selection in _selections(found, key, select)
            for kind in KINDS
        ]
        shown = [
            drawn
            for drawn in pictures
            if drawn is not None and (without is None or drawn.name != without.name)
        ]
        if shown:
            parts += [Heading(found.title(key)), *shown]
    return Section("figures", "Figures", parts)


def picture(found: Results, environment: str, kind: Kind, selection: Selection) -> Picture | None:
    """A chart of one kind; None if there is nothing to draw."""
    lines = result_lines(kind, found, selection.rows)
    if all(len(line.curve.x) < 2 for line in lines):
        return None  # a single α, or no labels to score against
    title = f"{found.title(environment)}: {kind.heading}{selection.words}"
    return Picture(
        title,
        kind.caption,
        "-".join(filter(None, (kind.name, environment, selection.name))),
        partial(charts.line_figure, lines, title, kind.axis),
        charts.chart_data(lines, title, kind.axis),
    )


def _selections(found: Results, environment: str, select: Select | None) -> Sequence[Selection]:
    return [Selection("", "", found.of(environment))] if select is None else select(environment)
