"""The report on an experiment: one HTML page that needs nothing else, Markdown tables, and figures.

Whatever the results hold is reported, and what they lack is said: a run that was stopped early, a smaller
preset or a user's own grid all give a complete page.
"""

import base64
import contextlib
import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from shoal.environments import datasets
from shoal.environments.sources import DataUnavailable
from shoal.experiments import beyond, figures, published, tables, validation
from shoal.experiments.beyond import Contest
from shoal.experiments.figures import Line
from shoal.experiments.results import PROVENANCE, SPEC, load_results, write_whole
from shoal.experiments.spec import ExperimentSpec, cells, load_spec
from shoal.experiments.tables import Curve, GammaPoint, Names, Paired, Row, unique
from shoal.experiments.validation import Check, Measured

BEYOND = "Beyond the paper: our own policies"

REAL_DATA = {
    "movielens": (
        "MovieLens",
        "<code>shoal data fetch</code> downloads the ratings; then run the same command again.",
    ),
    "yahoo-ltr": (
        "Yahoo! learning to rank",
        "Yahoo! gives this dataset (C14) only to those who sign its agreement, so it cannot be fetched for "
        "you: sign it, download it, and name the file as <code>path</code> under the environment's "
        "parameters in a spec. Any LETOR or SVMlight file will do in its place.",
    ),
}


FillErrors = dict[str, dict[str, float]]
"""Kind of data set → way to fill → root mean squared error on held-out rewards."""
FILL_NOTE = (
    "Root mean squared error on a fifth of the observed rewards, held out of the fit (one split): the means "
    "of agents and arms alone; the paper's settings (20 epochs, 100 factors, rate 0.001, regularisation "
    "0.005, rounded); the same unrounded; and the tuned ones (rate 0.01, regularisation 0.05, not rounded). "
    "A fill that does worse than the means adds noise to what it predicts, so results are shown for both."
)


@dataclass(frozen=True)
class Report:
    """All that the page and the Markdown file are written from."""

    spec: ExperimentSpec
    provenance: Mapping[str, Any]
    skipped: Mapping[str, str]
    """Environments that were left out, with the reason."""
    cells_done: int
    cells_total: int
    rows: list[Row]
    pairs: list[Paired]
    contests: list[Contest]
    """Our own method against others, by environment."""
    gamma: list[GammaPoint]
    comparable: Mapping[str, bool]
    """For each environment with printed figures: whether ours were made in the same setting."""

    @property
    def environments(self) -> list[str]:
        """Environments with results, in the spec's order."""
        return unique(row.environment for row in self.rows)

    def title(self, environment: str) -> str:
        """Title of an environment."""
        return next((row.title for row in self.rows if row.environment == environment), environment)

    def of(self, environment: str) -> list[Row]:
        """The rows of an environment."""
        return [row for row in self.rows if row.environment == environment]


@dataclass(frozen=True)
class Chart:
    """A figure of an environment: its lines, and where its image is."""

    kind: str
    environment: str
    title: str
    xlabel: str
    ylabel: str
    caption: str
    lines: Sequence[tuple[str, Line]]
    image: Path

    @property
    def key(self) -> str:
        """Id on the page and name of the image."""
        return self.image.stem


def write_report(out: Path) -> Path:
    """Write the report on the results in `out` into `out/report` and return the path of the page.

    Parameters
    ----------
    out : Path
        A directory that an experiment was run into.

    Returns
    -------
    Path
        `out/report/index.html`. Beside it are `tables.md`, `figures/*.png` and `*.pdf`, and
        `validation.json` and `fill-errors.json`: what was measured to check the theory and the filling of
        missing rewards, kept for the next report.

    Raises
    ------
    ResultsError, SpecError
        If there are no results, or they or their spec cannot be read.
    """
    out = Path(out)
    table = load_results(out)
    report = gather(out, table)
    target = out / "report"
    charts = _draw_charts(report, table, target / "figures")
    stills = _draw_stills(report, target / "figures")
    measured = validation.measure(target / "validation.json")
    checks = validation.judge(measured)
    theory = _draw_theory(measured, target / "figures")
    errors = fill_errors(report, target / "fill-errors.json")
    write_whole(target / "tables.md", markdown(report, checks, errors).encode())
    page = target / "index.html"
    write_whole(page, _page(report, charts, stills, checks, theory, errors).encode())
    return page


def gather(out: Path, table: pa.Table) -> Report:
    """Compute everything the report says from the results in `out`."""
    spec = load_spec(out / SPEC)
    names = Names(
        environments={item.id: item.title or item.id for item in spec.environments},
        methods={item.id: item.label or item.id for item in spec.methods},
        fixed=frozenset(item.id for item in spec.methods if item.alphas and len(item.alphas) == 1),
    )
    try:
        provenance = json.loads((out / PROVENANCE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        provenance = {}
    rows = tables.main_rows(table, names)
    return Report(
        spec=spec,
        provenance=provenance,
        skipped={entry["environment"]: entry["reason"] for entry in provenance.get("skipped", [])},
        cells_done=len(tables.find_cells(table)),
        cells_total=len(cells(spec)),
        rows=rows,
        pairs=tables.paired_comparisons(table, rows),
        contests=beyond.contests(table, rows),
        gamma=tables.gamma_points(table),
        comparable={
            environment: tables.is_comparable(table, environment)
            for environment in unique(row.environment for row in rows)
            if environment in published.SETTINGS
        },
    )


# What the report says


def fill_errors(report: Report, cache: Path) -> FillErrors:
    """Held-out errors of the ways to fill missing rewards, for each data set with results that is there.

    They are kept in `cache`; a data set that is neither there nor in the cache is left out.
    """
    known: FillErrors = json.loads(cache.read_text()) if cache.exists() else {}
    for environment in report.spec.environments:
        kind = environment.kind
        if environment.id in report.environments and kind in datasets.KINDS and kind not in known:
            path: Any = environment.parameters.get("path")
            with contextlib.suppress(DataUnavailable, OSError):
                known[kind] = datasets.errors(path, kind=kind)
                write_whole(cache, json.dumps(known).encode())
    return known


def headline(report: Report) -> str:
    """The main result in a sentence or two."""
    first = [
        (environment, tables.reference_row(report.of(environment)), _best_other(report.of(environment)))
        for environment in report.environments
    ]
    judged = [(environment, ours, other) for environment, ours, other in first if ours and other]
    if not judged:
        return "These results hold no comparison of BASS with another method yet."
    wins = sum(ours.regret.mean < other.regret.mean for _, ours, other in judged)
    lead = (
        f"BASS has the lowest mean regret of all methods{' but ours' if report.contests else ''} that do not "
        f"know the clusters in {wins} of {len(judged)} scenario{'s' if len(judged) > 1 else ''}."
    )
    compared = [
        row.regret_printed
        for row in report.rows
        if row.policy == "bass" and row.regret_printed is not None and row.regret_printed.within is not None
    ]
    if compared:
        agree = sum(1 for comparison in compared if comparison.within)
        lead += f" {agree} of its {len(compared)} published figures are met within their standard deviation."
    return lead


def scenario_sentence(rows: Sequence[Row], pairs: Sequence[Paired]) -> str | None:
    """BASS, the best other method and the order of an environment, in words; None without BASS."""
    ours, other = tables.reference_row(rows), _best_other(rows)
    if ours is None:
        return None
    text = f"{ours.title}: {ours.label} ends at {ours.regret.mean:,.0f}"
    printed = ours.regret_printed
    if printed is not None and printed.within is not None:
        text += f" ({printed.printed.mean:,.1f} ± {printed.printed.std:,.1f} in print)"
    if other is not None:
        text += f"; the best other method, {other.label}, at {other.regret.mean:,.0f}, {_ratio(other, ours)}"
        pair = next((pair for pair in pairs if pair.method == other.method), None)
        if pair is not None and pair.low <= 0.0 <= pair.high:
            text += ", a difference that chance could explain (its 95% interval holds 0)"
    return f"{text}. {order_sentence(rows)}"


def order_sentence(rows: Sequence[Row]) -> str:
    """Whether mean regrets are ordered as in the paper: Oracle, then BASS, then everyone else."""
    oracle = [row for row in rows if row.policy == "oracle"]
    ours = [row for row in rows if row.policy == "bass"]
    others = [row for row in rows if row.policy not in ("oracle", "bass") and not row.is_ours]
    wrong = [
        f"{a.label} is not below {b.label}" for a in oracle for b in ours if a.regret.mean >= b.regret.mean
    ]
    wrong += [
        f"{a.label} is not below {b.label}" for a in ours for b in others if a.regret.mean >= b.regret.mean
    ]
    names = " < ".join(
        name for name, there in (("Oracle", oracle), ("BASS", ours), ("every other method", others)) if there
    )
    if " < " not in names:
        return "There is nothing to compare it with."
    return (
        f"The order {names} holds." if not wrong else f"The order {names} does not hold: {'; '.join(wrong)}."
    )


def notices(report: Report) -> list[str]:
    """What a reader must know before comparing: smaller settings, missing cells."""
    found = []
    here = report.spec
    other = [key for key, same in report.comparable.items() if not same]
    titles = "; ".join(report.title(key) for key in other if key not in REAL_DATA)
    if any(key in REAL_DATA for key in other):
        found.append(
            "Real data: the paper used MovieLens 25M and Yahoo! C14. Published figures are shown for "
            "orientation; no difference is computed, since these may be other data (the report cannot tell)."
        )
    if titles:
        found.append(
            f"Not the paper's setting ({titles}): {_setting(here)} here, T = 50,000 rounds, 100 agents and "
            f"{published.RUNS} runs in the paper. The published column is shown for orientation; "
            "differences from it mean nothing and none is computed."
        )
    elif report.comparable and here.runs < published.RUNS:
        found.append(
            f"{here.runs} runs here, {published.RUNS} in the paper: means are that much less certain (see "
            "the intervals)."
        )
    if report.cells_done < report.cells_total:
        missing = report.cells_total - report.cells_done
        why = f", because {len(report.skipped)} environments were left out or" if report.skipped else ","
        found.append(
            f"{report.cells_done:,} of {report.cells_total:,} cells are finished; {missing:,} are "
            f"missing{why} the run was restricted or stopped. A best α is the best of those that are "
            "finished."
        )
    edge = sum(row.at_edge for row in report.rows)
    if edge:
        found.append(
            f"In {edge} of {len(report.rows)} rows the best α is at the edge of the grid (marked): a wider "
            "grid could do better."
        )
    return found


METHOD_NOTE = (
    "For each method the α with the lowest mean final regret over all runs is taken, as in the paper. It "
    "is chosen on the very runs that are reported, which flatters every method alike; nothing is tuned per "
    "seed. Intervals are 95% intervals of the mean (Student t), std is the standard deviation between runs "
    "(n − 1). Medians are shown because some methods, DynUCB above all, have heavy tails."
)
OURS_NOTE = (
    "Methods marked “ours” are not in the paper, so nothing published stands beside them. They are run at "
    "their default parameters, α included (“fixed”), beside methods that each have the α that suits them "
    "best; the row “best α” gives ours that advantage, too, and is what the figure of regret against "
    "α shows."
)
F1_NOTE = (
    "F1 of the edges of the graph against the pairs of agents in the same true cluster, at the end of the "
    "run and at the α chosen by regret. Published scores have one digit: a difference of up to 0.1, or up "
    "to the published standard deviation where that is larger, counts as agreement."
)
PAIRED_NOTE = (
    "The same seed gives every method the same arms, the same order of agents and the same noise, so "
    "methods are compared run by run, each at its best α. Differences are BASS minus the other method: "
    "negative favours BASS. The bootstrap interval does not need normal differences, and the sign test "
    "only counts wins."
)

THEORY_NOTE = (
    "The bounds of the paper against small experiments of their own, in which its assumptions hold as far as "
    "they can: arms and parameters of norm at most 1, synchronous pulling, noise of known scale. The table "
    "says which assumptions do not hold in an experiment. “Printed” is the paper's statement, “derived” what "
    "its proof supports once its steps are mended, “corrected” a further repair; docs/theory.md explains "
    "each. A bound holds (yes) if the measured value is on its right side, and is broken (no) if the whole "
    "95% interval is on the wrong side; where several gaps, noise scales or rounds were tried the worst is "
    "shown, with an interval wide enough for all of them."
)
BENCHMARK_NOTE = (
    "None of this covers the benchmarks of the other sections. Their synthetic arms are not normalised (in "
    "10 dimensions their norm is 1.8 on average, not at most 1), which the bounds on regret and the upper "
    "bound on the separation time need; one agent pulls at a time, so that designs differ; and the "
    "separation test is scaled by β, not β² as in the proofs. The rows with β show what this "
    "last point does on its own."
)


def remarks(rows: Iterable[Row]) -> tuple[list[str], list[str]]:
    """Sentences on final regrets and on F1 scores that differ from print."""
    rows = list(rows)
    regret = [text for row in rows if (text := tables.regret_remark(row)) is not None]
    return regret, [text for row in rows if (text := tables.f1_remark(row)) is not None]


def provenance_items(report: Report) -> list[tuple[str, str]]:
    """Where the numbers come from, as pairs of name and text."""
    known = report.provenance
    items = [("Spec", f"{report.spec.name}, {_setting(report.spec)}, seeds {_seeds(report.spec)}")]
    if command := known.get("command"):
        items.append(("Command", str(command)))
    if versions := known.get("versions"):
        items.append(("Versions", ", ".join(f"{name} {value}" for name, value in versions.items())))
    if machine := known.get("machine"):
        items.append(
            ("Machine", f"{machine}; {known.get('cpu_count', '?')} CPUs, {known.get('executor', '')}")
        )
    if known.get("started"):
        items.append(("Started, ended", f"{known['started']}, {known.get('ended') or 'not yet'}"))
    if "wall_seconds" in known:
        items.append(("Wall time", _duration(known["wall_seconds"])))
    if "cpu_seconds" in known:
        hours = known["cpu_seconds"] / 3600.0
        items.append(
            (
                "CPU time",
                f"{hours:.2g} CPU-hours; the authors report a week on 50 CPUs, {published.CPU_HOURS:,} "
                "CPU-hours, for all of their experiments",
            )
        )
    items.append(("Cells", f"{report.cells_done:,} of {report.cells_total:,}"))
    if not known:
        items.append(("Provenance", "provenance.json is missing or cannot be read"))
    return items


def markdown(report: Report, checks: Sequence[Check] = (), errors: FillErrors | None = None) -> str:
    """The tables and remarks as Markdown; with the checks of theory and fills, if there are any."""
    text = tables.markdown_text
    parts = [
        f"# Results: {text(report.spec.name)}",
        text(headline(report)),
        text(beyond.summary(report.contests)),
    ]
    parts.append(_bullets(_scenario_sentences(report)))
    parts += [f"> {text(notice)}" for notice in notices(report)]
    parts += ["## Final regret", METHOD_NOTE, OURS_NOTE if report.contests else ""]
    regret_remarks, f1_remarks = remarks(report.rows)
    for environment in report.environments:
        rows = report.of(environment)
        parts += [
            f"### {text(report.title(environment))}",
            tables.markdown_table(tables.REGRET_HEADER, map(tables.regret_line, rows)),
        ]
    if regret_remarks:
        parts += ["### Differences of more than the published standard deviation", _bullets(regret_remarks)]
    parts += ["## F1 score", F1_NOTE]
    for environment in report.environments:
        rows = [row for row in report.of(environment) if row.f1 is not None]
        if rows:
            parts += [
                f"### {text(report.title(environment))}",
                tables.markdown_table(tables.F1_HEADER, map(tables.f1_line, rows)),
            ]
    if f1_remarks:
        parts += ["### Differences from the published scores", _bullets(f1_remarks)]
    if report.pairs:
        parts += ["## BASS against each method, run by run", PAIRED_NOTE]
        for environment in report.environments:
            pairs = [pair for pair in report.pairs if pair.environment == environment]
            if pairs:
                title = f"### {text(pairs[0].reference)}, {text(report.title(environment))}"
                parts += [title, tables.markdown_table(tables.PAIRED_HEADER, map(tables.paired_line, pairs))]
    if report.contests:
        parts += [f"## {BEYOND}", beyond.NOTE, beyond.markdown(report.contests)]
        for contest in report.contests:
            if contest.pairs:
                parts += [
                    f"### {text(contest.ours.label)}, {text(contest.title)}",
                    tables.markdown_table(tables.PAIRED_HEADER, map(tables.paired_line, contest.pairs)),
                ]
    if checks:
        parts += ["## Theory against simulation", validation.summary(checks), THEORY_NOTE]
        parts += [f"> {BENCHMARK_NOTE}", _bullets(validation.remarks(checks))]
        parts.append(tables.markdown_table(validation.HEADER, map(validation.line, checks)))
    if errors:
        parts += ["## Filling missing rewards", FILL_NOTE]
        parts.append(tables.markdown_table(_fill_header(errors), map(_fill_line, errors.items())))
    parts += ["## Provenance", _bullets(f"{name}: {text}" for name, text in provenance_items(report))]
    return "\n\n".join(part for part in parts if part) + "\n"


# Figures


@dataclass(frozen=True)
class _Kind:
    """What is drawn of every environment."""

    name: str
    heading: str
    xlabel: str
    ylabel: str
    caption: str
    draw: Callable[[Sequence[Line], str], Figure]


_MEAN = "mean over runs; bands are 95% intervals of the mean."
_KINDS = (
    _Kind(
        "regret",
        "regret over rounds",
        "round t",
        "cumulative regret",
        f"Cumulative regret at the best α of each method, {_MEAN}",
        figures.regret_figure,
    ),
    _Kind(
        "alpha",
        "final regret against α",
        "α",
        "final regret",
        f"Final regret against α, {_MEAN}",
        figures.alpha_figure,
    ),
    _Kind(
        "f1",
        "F1 score over rounds",
        "round t",
        "F1 score",
        f"F1 score of the graph at the best α of each method, {_MEAN}",
        figures.f1_figure,
    ),
)


def _draw_charts(report: Report, table: pa.Table, directory: Path) -> list[Chart]:
    charts = []
    for environment in report.environments:
        rows = report.of(environment)
        styles = figures.method_styles((row.method, row.policy) for row in rows)
        for kind in _KINDS:
            lines = []
            for row in rows:
                if kind.name == "alpha":
                    curve: Curve | None = None if row.fixed else row.regret_by_alpha
                else:
                    curve = tables.curve(table, f"curve_{kind.name}", row.cell)
                if curve is not None:
                    lines.append((row.method, Line(row.label, styles[row.method], curve)))
            if all(len(line.curve.x) < 2 for _, line in lines):
                continue  # a single α, or no labels to score against
            title = f"{report.title(environment)}: {kind.heading}"
            figure = kind.draw([line for _, line in lines], title)
            image = figures.save(figure, directory, f"{kind.name}-{environment}")
            charts.append(
                Chart(kind.name, environment, title, kind.xlabel, kind.ylabel, kind.caption, lines, image)
            )
    return charts


def _draw_stills(report: Report, directory: Path) -> list[tuple[str, str, Path]]:
    """Figures without a chart: heading, caption and image of each."""
    stills = []
    if report.gamma:
        printed = {
            environment: published.FINAL_REGRET[environment]["bass-d0.1"].mean
            for environment, same in report.comparable.items()
            if same
        }
        titles = {row.environment: row.title for row in report.rows}
        stills.append(
            (
                "The scale of the ellipsoids: γ and the radius",
                "Final regret of BASS at its best α for each γ, with ellipsoids scaled by β (the default, "
                "and what the published figures use) and by β² (what the proofs use). Bars are 95% "
                "intervals of the mean. Larger γ shares longer.",
                figures.save(figures.gamma_figure(report.gamma, titles, printed), directory, "gamma"),
            )
        )
    stills += [
        (
            "When sharing helps",
            "Two agents, d = 2, arms e1 and e2, 10 pulls each (7 and 3): 90% confidence ellipsoids of "
            "their own and of their shared samples. Sharing shrinks the ellipsoid; when the parameters "
            "differ it also moves its centre away from both.",
            figures.save(figures.sharing_illustration(), directory, "ellipsoids-sharing"),
        ),
        (
            "A pair as it separates",
            "The same two arms, drawn at random. The ellipsoids shrink with every round, and in the round "
            "in which they no longer overlap the agents stop sharing.",
            figures.save(figures.separating_illustration(), directory, "ellipsoids-separating"),
        ),
    ]
    return stills


def _draw_theory(measured: Measured, directory: Path) -> list[tuple[str, str, Path]]:
    """Figures of the theory against simulation: heading, caption and image of each."""
    own = measured.setting
    return [
        (
            "The confidence ellipsoid",
            f"Share of {own.coverage_runs:,} runs in which the true parameter (norm 1) is inside in all "
            f"rounds from 0 to {own.coverage_rounds}; d = {own.coverage_dim}, unit arms drawn uniformly. The "
            "printed radius forgets the shrinkage by the ridge, which matters when the noise is smaller than "
            "the parameter or δ is large; adding the parameter's norm mends it.",
            figures.save(figures.coverage_figure(measured), directory, "theory-coverage"),
        ),
        (
            "Separation times against the gap",
            "Two agents, synchronous, d = 2, e1 or e2 drawn uniformly in each round (ε = 1), noise 1, "
            f"δ = {own.delta:g}, γ = {own.gamma:g}, {own.pairs} pairs for each gap. The bounds are for "
            "ellipsoids scaled by β²; scaled by β, agents separate earlier than the theory covers. The "
            "printed upper bound is missing because its condition cannot be met at this noise, whatever ε.",
            figures.save(figures.separation_figure(measured), directory, "theory-separation"),
        ),
        (
            "Separation times where the printed upper bound applies",
            f"The same with little noise, {own.pairs} pairs for each noise scale. A bound is kept where the "
            "triangles are not above it. As printed and as derived, the bound counts the pulls of an arm by "
            "their mean, which is wrong for a few rounds: 2 apart, the parameters differ along e1 only, and "
            "e1 may not have been drawn yet. The corrected one allows for that.",
            figures.save(figures.low_noise_figure(measured), directory, "theory-low-noise"),
        ),
        (
            "Regret of two agents",
            f"Synchronous, d = {own.sharing_dim}, {own.sharing_arms} unit arms, noise 1, δ = {own.delta:g}, "
            f"γ = {own.gamma:g}, α = {own.alpha:g}; mean over {own.sharing_runs} runs with its 95% interval. "
            "Bounds (as printed) apply until the two separate; dotted vertical lines show the median round "
            "of that, where most pairs did. All regrets are far below their bounds: the bounds say "
            "little about what sharing gains, the distance of the lower curves does.",
            figures.save(figures.sharing_figure(measured), directory, "theory-sharing"),
        ),
        (
            "Clusters: misassigned agents, regret, communication",
            f"Synchronous, d = {own.cluster_dim}, noise 1, δ = {own.delta:g}, γ = {own.gamma:g}; mean over "
            f"{own.cluster_runs} runs with its 95% interval. Left: the printed bound starts at 0, when the "
            "graph is complete and all agents of other clusters are misassigned. With β some agents of the "
            "same cluster are cut for good, which no bound allows for. Middle: bounds on regret at the end. "
            "Right: (N − 1)T holds when T counts pulls.",
            figures.save(figures.clusters_figure(measured), directory, "theory-clusters"),
        ),
    ]


# The page


def _page(
    report: Report,
    charts: Sequence[Chart],
    stills: Sequence[tuple[str, str, Path]],
    checks: Sequence[Check],
    theory: Sequence[tuple[str, str, Path]],
    errors: FillErrors,
) -> str:
    sections = [
        ("final-regret", "Final regret", _regret_section(report)),
        ("f1", "F1 score", _f1_section(report)),
        ("paired", "Run by run", _paired_section(report)),
        ("beyond", BEYOND, _beyond_section(report)),
        ("figures", "Figures", _charts_section(report, charts)),
        ("sharing", "How sharing works", "".join(_still(*still) for still in stills)),
        ("theory", "Theory against simulation", _theory_section(checks, theory)),
        ("real-data", "Real data", _real_data_section(report) + _fill_section(errors)),
        ("provenance", "Provenance", _definitions(provenance_items(report))),
    ]
    sections = [section for section in sections if section[2]]
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in sections)
    body = "".join(f'<section id="{key}"><h2>{title}</h2>{text}</section>' for key, title, text in sections)
    noted = "".join(f"<p>{html.escape(text)}</p>" for text in notices(report))
    summary = "".join(f"<li>{html.escape(text)}</li>" for text in _scenario_sentences(report))
    lead = " ".join(text for text in (headline(report), beyond.summary(report.contests)) if text)
    data = {chart.key: _chart_data(chart) for chart in charts}
    return Template(_asset("page.html")).substitute(
        name=html.escape(report.spec.name),
        setting=html.escape(_setting(report.spec)),
        headline=html.escape(lead),
        summary=f'<ul class="remarks">{summary}</ul>' if summary else "",
        notices=f'<div class="note">{noted}</div>' if noted else "",
        links=links,
        body=body,
        style=_asset("uplot.css") + _asset("report.css"),
        licence=html.escape(_asset("uplot.LICENSE")),
        data=_inline(json.dumps(data, separators=(",", ":"), ensure_ascii=False)),
        library=_asset("uplot.js"),
        script=_asset("report.js"),
    )


def _regret_section(report: Report) -> str:
    notes = [METHOD_NOTE, OURS_NOTE] if report.contests else [METHOD_NOTE]
    parts = [f"<p>{html.escape(note)}</p>" for note in notes]
    for environment in report.environments:
        rows = report.of(environment)
        parts.append(
            _table(
                tables.REGRET_HEADER,
                rows,
                tables.regret_line,
                f"{report.title(environment)}: {_caption(report, environment)}",
            )
        )
    return "".join(parts) + _remark_list(
        remarks(report.rows)[0], "Differences of more than the published standard deviation"
    )


def _f1_section(report: Report) -> str:
    parts = []
    for environment in report.environments:
        rows = [row for row in report.of(environment) if row.f1 is not None]
        if rows:
            parts.append(
                _table(
                    tables.F1_HEADER,
                    rows,
                    tables.f1_line,
                    f"{report.title(environment)}: F1 score at the end",
                )
            )
    if not parts:
        return ""
    parts.insert(0, f"<p>{html.escape(F1_NOTE)}</p>")
    return "".join(parts) + _remark_list(remarks(report.rows)[1], "Differences from the published scores")


def _paired_section(report: Report) -> str:
    parts = []
    for environment in report.environments:
        pairs = [pair for pair in report.pairs if pair.environment == environment]
        if pairs:
            caption = f"{report.title(environment)}: {pairs[0].reference} minus each method, final regret"
            parts.append(_table(tables.PAIRED_HEADER, pairs, tables.paired_line, caption))
    return f"<p>{html.escape(PAIRED_NOTE)}</p>" + "".join(parts) if parts else ""


def _beyond_section(report: Report) -> str:
    if not report.contests:
        return ""
    parts = [f"<p>{html.escape(beyond.NOTE)}</p>"]
    parts.append(_table(beyond.HEADER, report.contests, beyond.line, "Our policies in every scenario"))
    for contest in report.contests:
        caption = f"{contest.title}: {contest.ours.label} minus each method, final regret"
        if contest.pairs:
            parts.append(_table(tables.PAIRED_HEADER, contest.pairs, tables.paired_line, caption))
    return "".join(parts)


def _charts_section(report: Report, charts: Sequence[Chart]) -> str:
    parts = []
    for environment in report.environments:
        here = [chart for chart in charts if chart.environment == environment]
        if here:
            shown = "".join(
                f'<figure data-chart="{html.escape(chart.key)}">{_image(chart.title, chart.image)}'
                f"<figcaption>{html.escape(chart.caption)}</figcaption></figure>"
                for chart in here
            )
            parts.append(f"<h3>{html.escape(report.title(environment))}</h3>{shown}")
    return "".join(parts)


def _still(heading: str, caption: str, image: Path) -> str:
    return (
        f"<h3>{html.escape(heading)}</h3><figure>{_image(heading, image)}"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _theory_section(checks: Sequence[Check], stills: Sequence[tuple[str, str, Path]]) -> str:
    listed = "".join(f"<li>{html.escape(text)}</li>" for text in validation.remarks(checks))
    parts = [
        f"<p>{html.escape(validation.summary(checks))}</p><p>{html.escape(THEORY_NOTE)}</p>",
        f'<div class="note"><p>{html.escape(BENCHMARK_NOTE)}</p></div>',
        f'<ul class="remarks">{listed}</ul>' if listed else "",
        _table(validation.HEADER, checks, validation.line, "Every bound against its experiment", wordy=True),
        *(_still(*still) for still in stills),
    ]
    return "".join(parts)


def _real_data_section(report: Report) -> str:
    parts = []
    for environment, (name, how) in REAL_DATA.items():
        if environment in report.environments:
            parts.append(f"<p>{name}: in the tables and figures above.</p>")
            continue
        planned = any(item.id == environment for item in report.spec.environments)
        reason = report.skipped.get(environment)
        if reason is not None:
            why = f"left out: {html.escape(reason.rstrip('.'))}"
        elif planned:
            why = "planned, but no cell of it is finished"
        else:
            why = "not part of this experiment; <code>shoal reproduce paper</code> includes it"
        parts.append(f"<p><strong>{name}</strong>: {why}. {how}</p>")
    for environment, reason in report.skipped.items():
        if environment not in REAL_DATA:
            parts.append(
                f"<p><strong>{html.escape(environment)}</strong>: left out: {html.escape(reason)}.</p>"
            )
    return "".join(parts)


def _fill_section(errors: FillErrors) -> str:
    if not errors:
        return ""
    table = _table(
        _fill_header(errors), list(errors.items()), _fill_line, "Held-out error of each way to fill"
    )
    return f"<h3>Filling missing rewards</h3><p>{html.escape(FILL_NOTE)}</p>{table}"


def _fill_header(errors: FillErrors) -> list[str]:
    return ["data set", *next(iter(errors.values()))]


def _fill_line(entry: tuple[str, Mapping[str, float]]) -> list[str]:
    kind, found = entry
    name = {"movielens": "MovieLens", "letor": "Learning to rank"}[kind]
    return [name, *(f"{error:.3f}" for error in found.values())]


def _table(
    header: Sequence[str], entries: Sequence[Any], line: Any, caption: str, *, wordy: bool = False
) -> str:
    """A table that scrolls within the page; `wordy` for one whose cells hold sentences."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in header)
    body = []
    for entry in entries:
        first, *rest = line(entry)
        kinds = {"bass": ' class="reference"', **dict.fromkeys(tables.OURS, ' class="ours"')}
        look = kinds.get(getattr(entry, "policy", ""), "")
        items = "".join(
            f'<td class="{text}">{text}</td>' if text in ("yes", "no") else f"<td>{html.escape(text)}</td>"
            for text in rest
        )
        body.append(f'<tr{look}><th scope="row">{html.escape(first)}</th>{items}</tr>')
    kind = ' class="wordy"' if wordy else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(caption)}">'
        f"<table{kind}>"
        f"<caption><span>{html.escape(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _chart_data(chart: Chart) -> dict[str, Any]:
    """What the page's script draws: series aligned on the union of their x."""
    union = sorted({float(x) for _, line in chart.lines for x in line.curve.x})
    return {
        "kind": chart.kind,
        "title": chart.title,
        "xlabel": chart.xlabel,
        "ylabel": chart.ylabel,
        "log": chart.kind == "alpha",
        "x": union,
        "series": [
            {
                "method": method,
                "label": line.label,
                "color": line.style.color,
                "dash": line.style.dash,
                "marker": line.style.marker,
                "width": line.style.width,
                **{
                    part: _aligned(union, line.curve.x.tolist(), getattr(line.curve, part).tolist())
                    for part in ("mean", "low", "high")
                },
            }
            for method, line in chart.lines
        ],
    }


def _aligned(union: Sequence[float], x: Sequence[float], values: Sequence[float]) -> list[float | None]:
    at = {place: float(f"{value:.5g}") for place, value in zip(x, values, strict=True)}
    return [at.get(place) for place in union]


def _remark_list(texts: Sequence[str], heading: str) -> str:
    if not texts:
        return ""
    listed = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f'<h3>{html.escape(heading)}</h3><ul class="remarks">{listed}</ul>'


def _definitions(items: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in items)
    return f"<dl>{listed}</dl>"


def _caption(report: Report, environment: str) -> str:
    text = f"final regret after {report.spec.horizon:,} rounds, each method at its best α"
    if environment not in published.FINAL_REGRET:
        return f"{text}; the paper prints no figures for this scenario"
    return (
        text
        if report.comparable[environment]
        else f"{text}; published figures are for another setting or data"
    )


def _scenario_sentences(report: Report) -> list[str]:
    found = []
    for environment in report.environments:
        pairs = [pair for pair in report.pairs if pair.environment == environment]
        found.append(scenario_sentence(report.of(environment), pairs))
    return [text for text in found if text is not None]


def _best_other(rows: Sequence[Row]) -> Row | None:
    others = [row for row in rows if row.policy not in ("bass", "oracle") and not row.is_ours]
    return min(others, key=lambda row: row.regret.mean, default=None)


def _ratio(other: Row, ours: Row) -> str:
    ratio = other.regret.mean / ours.regret.mean
    if ratio >= 1.5:
        return f"{ratio:.1f} times as much"
    return f"{abs(ratio - 1.0):.0%} {'more' if ratio >= 1.0 else 'less'}"


def _setting(spec: ExperimentSpec) -> str:
    agents = {item.parameters.get("n_agents") for item in spec.environments}
    shown = f", {agents.pop()} agents" if len(agents) == 1 and None not in agents else ""
    return f"T = {spec.horizon:,} rounds{shown}, {spec.runs} run{'s' if spec.runs > 1 else ''}"


def _seeds(spec: ExperimentSpec) -> str:
    return f"{spec.seed} to {spec.seed + spec.runs - 1}" if spec.runs > 1 else str(spec.seed)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
    )


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {tables.markdown_text(text)}" for text in texts)


def _asset(name: str) -> str:
    return (resources.files("shoal.experiments") / "assets" / name).read_text(encoding="utf-8")


def _inline(data: str) -> str:
    """JSON that cannot end the element it stands in."""
    return data.replace("<", "\\u003c")


def _image(description: str, path: Path) -> str:
    encoded = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(description)}" src="data:image/png;base64,{encoded}">'
