"""The benchmark of the field: every method in every scenario, ranked in one table that a new method joins.

Methods are the registered policies. Each is told what it has a parameter for (`presets.TOLD`): the noise, a
bound on the parameters, a graph where there is one. Only Oracle is told the clusters, and it is not ranked.
Ranks are compared over scenarios by Friedman's test and Nemenyi's critical difference (Demšar, "Statistical
Comparisons of Classifiers over Multiple Data Sets", JMLR 7, 2006).
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import tomli_w
from matplotlib.figure import Figure
from scipy import stats

from shoal.core.policies.registry import find_policy, policy_names
from shoal.core.types import Matrix, Vector
from shoal.lab.environments.registry import find_environment
from shoal.lab.experiments import report as harness
from shoal.lab.experiments.report import REGRET_COLUMNS, Column, table_of
from shoal.lab.experiments.spec import ExperimentSpec, SpecError, cells, parse_spec
from shoal.lab.experiments.stored import Results
from shoal.lab.experiments.summaries import Paired, SummaryRow, column, find_cells, pair_up, unique
from shoal.lab.paper.presets import as_id, preset_text, told
from shoal.reporting import charts
from shoal.reporting.sections import Document, Mark, Picture, Section, Table, Text
from shoal.reporting.words import EMPTY, counted, number

FIELD = "field"
YARDSTICKS = ("bass", "cluster_mixture")
"""The methods that all others are compared with, run by run: policies at their defaults."""
UNRANKED = ("lastfm-unit", "lastfm-counts")
"""Other recipes for data that are ranked already: one data set has one vote."""
LEVEL = 0.05


def field_spec(
    more: Sequence[str] = (), *, seed: int | None = None, runs: int | None = None
) -> ExperimentSpec:
    """The preset `field`: its scenarios, every registered policy, and `more`, each as `module:Class`."""
    content = msgspec.toml.decode(preset_text(FIELD))
    listed = {method["id"] for method in content["methods"]}
    graphs = [item["id"] for item in content["environments"] if find_environment(item["kind"]).has_graph]
    for reference in unique([*policy_names(), *more]):
        if as_id(reference) not in listed:
            content["methods"].append(_method(reference, graphs))
    spec = parse_spec(tomli_w.dumps(content).encode(), source=f"presets/{FIELD}.toml", seed=seed)
    return spec if runs is None else msgspec.structs.replace(spec, runs=runs)


def _method(reference: str, graphs: list[str]) -> dict[str, Any]:
    """A policy at its defaults, told what it has parameters for; with a graph, only where there is one."""
    try:
        parameters = told(reference)
    except (ValueError, ImportError) as error:
        raise SpecError(f"--with {reference}: {error}") from None
    method = {"id": as_id(reference), "policy": reference, "parameters": parameters}
    return {**method, "environments": graphs} if "graph" in parameters else method


@dataclass(frozen=True)
class Ranking:
    """The ranks of methods that were played in all of some scenarios; 1 is the lowest regret."""

    methods: Sequence[str]
    """By increasing mean rank."""
    environments: Sequence[str]
    ranks: Matrix
    """(scenarios, methods)"""
    friedman_p: float
    """Probability that ranks differ as much by chance; nan below three methods or two scenarios."""
    critical: float
    """Nemenyi's critical difference of mean ranks at level 0.05."""

    @property
    def means(self) -> Vector:
        """(methods,) mean rank of each."""
        return np.asarray(self.ranks.mean(axis=0))

    def cliques(self) -> list[tuple[int, int]]:
        """First and last place of each largest set of methods that Nemenyi's test cannot tell apart."""
        means, found = self.means, list[tuple[int, int]]()
        for first in range(len(means)):
            last = int(np.searchsorted(means, means[first] + self.critical, side="right")) - 1
            if last > first and (not found or last > found[-1][1]):
                found.append((first, last))
        return found


def rank(rows: Sequence[SummaryRow]) -> Ranking:
    """Rank methods, except Oracle, over scenarios that all of them have a row in."""
    fair = [row for row in rows if row.policy != "oracle" and row.environment not in UNRANKED]
    regret = {(row.environment, row.method): row.regret.mean for row in fair}
    environments, methods = _without_gaps(
        unique(row.environment for row in fair), unique(row.method for row in fair), regret
    )
    table = np.array([[regret[key, method] for method in methods] for key in environments])
    n, k = len(environments), len(methods)
    if n == 0 or k < 2:
        return Ranking(methods, environments, np.ones((n, k)), math.nan, math.nan)
    ranks = stats.rankdata(table, axis=1)  # ties share the mean of their places
    order = np.argsort(ranks.mean(axis=0), kind="stable")
    p_value = math.nan
    if n > 1 and k > 2:
        p_value = float(stats.friedmanchisquare(*table.T).pvalue)
    # The studentized range for infinitely many degrees of freedom; by convention divided by √2.
    critical = float(stats.studentized_range.ppf(1.0 - LEVEL, k, np.inf)) * math.sqrt(k * (k + 1) / (12 * n))
    return Ranking([methods[at] for at in order], environments, ranks[:, order], p_value, critical)


def _without_gaps(
    environments: list[str], methods: list[str], known: Container[tuple[str, str]]
) -> tuple[list[str], list[str]]:
    """Leave out what lacks the largest share of the table, scenario or method, until nothing is missing.

    So a method that plays in a few scenarios is left out, and a scenario in which few have played, too.
    """
    missing = np.array([[(key, method) not in known for method in methods] for key in environments])
    while missing.any():
        by_scenario, by_method = missing.mean(axis=1), missing.mean(axis=0)
        axis = int(by_scenario.max() <= by_method.max())
        names, at = (environments, methods)[axis], int((by_scenario, by_method)[axis].argmax())
        missing = np.delete(missing, at, axis)
        del names[at]
    return environments, methods


# The page


@dataclass(frozen=True)
class MethodStanding:
    """A method in the table of all: its place, and how it fares against the yardsticks."""

    row: SummaryRow
    mean_rank: float
    elsewhere: float
    """Mean rank where α is chosen on other runs than those that count; nan if there is a single run."""
    firsts: int
    """Scenarios in which it has the lowest regret of the ranked methods."""
    pairs: Sequence[Sequence[Paired]]
    """The yardsticks minus it, in the order of `YARDSTICKS`, in each ranked scenario."""
    microseconds: float
    """Time per round of the least disturbed run, median over the ranked scenarios."""


def finished(found: Results) -> list[SummaryRow]:
    """The rows of methods with all runs at every α: only these are at their best α."""
    whole = {
        (cell.environment, cell.method, cell.alpha)
        for cell in find_cells(found.table)
        if len(cell.rows) >= found.spec.runs
    }
    wanted: dict[tuple[str, str], list[float]] = {}
    for cell in cells(found.spec):
        wanted.setdefault((cell.environment.id, cell.method.id), []).append(cell.alpha)
    return [
        row
        for row in found.rows
        if all(
            (row.environment, row.method, a) in whole for a in wanted.get((row.environment, row.method), [])
        )
    ]


def document(found: Results) -> Document:
    """The page on the field: the ranks of all methods, then every scenario."""
    rows = finished(found)
    ranking = rank(rows)
    left = sorted({row.label for row in found.rows} - {row.label for row in rows})
    ranked, tables = len(ranking.methods) > 1, _scenarios(found, rows, ranking)
    tested = not math.isnan(ranking.friedman_p)
    several = [key for key in UNRANKED if any(row.environment == key for row in rows)]
    return replace(
        harness.document(found),
        lead=_lead(found, rows, ranking),
        opening=_picture(found, ranking) if tested else None,
        remarks=[],
        notices=[
            *harness.skipped_notices(found),
            *harness.notices(found),
            *([f"Not shown, as some values of α are missing: {', '.join(left)}."] if left else []),
        ],
        sections=[
            Section(
                "ranks", "All methods", [*map(Text, NOTE), _standings(found, rows, ranking)] if ranked else []
            ),
            Section("recipes", "LastFM: three recipes", _recipes(found, rows) if several else []),
            Section("scenarios", "Scenario by scenario", [Text(PAIRED), *tables] if tables else []),
            harness.provenance_section(found),
        ],
    )


NOTE = (
    "Each method plays at its defaults but for α, the best of the same values, which was chosen on the runs "
    "that are reported; intervals do not cover that choice, and “α from other runs” has the mean rank where "
    "each half of the runs counts at the α that is best on the other half. Ranks are those of mean final "
    "regret in each scenario, 1 the lowest, over the scenarios that all ranked methods played. Of LastFM one "
    "recipe counts, the one by which sharing pays most. “Against” counts the scenarios in which a method's "
    "paired 95% interval of the difference lies below zero, around it, and above. Time per round is that of "
    "the least disturbed run, median over scenarios.",
    "Methods that are given a graph were played only where there is one and are not ranked; nor is Oracle, "
    "which is told the clusters, nor “clicks”: methods that learn rewards of 0 and 1 as clicks, where there "
    "are such rewards. Scenarios were picked, not drawn, and some are alike: tests say how stable ranks are "
    "over these, not what holds elsewhere. Nemenyi's test sees ranks alone, so it may not tell two methods "
    "apart of which one has less regret in most scenarios.",
)
PAIRED = (
    "Mean final regret with its 95% interval, and each method minus the yardstick on the same seeds with the "
    "95% interval of the difference (paired t): negative favours the method."
)
RECIPES = (
    "Share of clicks (by chance: one in the number of artists on offer), each method at its best α. The tags "
    "of the artists become features in three ways; docs/real-data.md says what each keeps."
)


def _standings(found: Results, rows: Sequence[SummaryRow], ranking: Ranking) -> Table:
    elsewhere = dict(zip(ranking.methods, _means_by_halves(found, ranking), strict=True))
    entries = [_standing(found, rows, ranking, method, elsewhere[method]) for method in ranking.methods]
    columns = [
        Column("method", lambda one: one.row.label),
        Column("mean rank", lambda one: f"{one.mean_rank:.2f}"),
        Column(
            "α from other runs", lambda one: EMPTY if math.isnan(one.elsewhere) else f"{one.elsewhere:.2f}"
        ),
        Column("lowest in", lambda one: str(one.firsts)),
        *(
            Column(f"against {find_policy(policy).label}", partial(_tally, at))  # type: ignore[attr-defined]
            for at, policy in enumerate(YARDSTICKS)
        ),
        Column("µs per round", lambda one: f"{one.microseconds:.3g}"),
    ]
    caption = (
        f"{len(ranking.methods)} methods over {_scenario_count(ranking)}, by mean rank. "
        f"{_test_sentence(ranking)}"
    )
    return table_of(caption, columns, entries, _mark)


def _means_by_halves(found: Results, ranking: Ranking) -> Vector:
    """Mean ranks where each half of the runs, every other one, counts at the α that is best on the rest."""
    if found.spec.runs < 2:
        return np.full(len(ranking.methods), math.nan)
    regrets: dict[tuple[str, str], list[Vector]] = {}
    for cell in find_cells(found.table):
        key = cell.environment, cell.method
        regrets.setdefault(key, []).append(column(found.table, "final_regret", cell))
    table = np.empty(ranking.ranks.shape)
    for row, environment in enumerate(ranking.environments):
        for place, method in enumerate(ranking.methods):
            by_alpha = np.array(regrets[environment, method])
            halves = by_alpha[:, ::2], by_alpha[:, 1::2]
            chosen = [half[rest.mean(axis=1).argmin()] for half, rest in (halves, halves[::-1])]
            table[row, place] = np.concatenate(chosen).mean()
    return np.asarray(stats.rankdata(table, axis=1).mean(axis=0))


def _standing(
    found: Results, rows: Sequence[SummaryRow], ranking: Ranking, method: str, elsewhere: float
) -> MethodStanding:
    place = list(ranking.methods).index(method)
    own = {row.environment: row for row in rows if row.method == method}
    pairs = [
        [
            pair
            for key in ranking.environments
            if (pair := pair_up(found.table, _yardstick(rows, key, policy), own[key])) is not None
        ]
        for policy in YARDSTICKS
    ]
    least = [column(found.table, "seconds", own[key].cell).min() for key in ranking.environments]
    return MethodStanding(
        own[ranking.environments[0]],
        float(ranking.means[place]),
        elsewhere,
        int((ranking.ranks[:, place] == ranking.ranks.min(axis=1)).sum()),
        pairs,
        1e6 * float(np.median(least)) / found.spec.horizon,
    )


def _tally(at: int, one: MethodStanding) -> str:
    if one.row.method == YARDSTICKS[at] or not one.pairs[at]:
        return EMPTY
    better = sum(pair.low > 0.0 for pair in one.pairs[at])
    worse = sum(pair.high < 0.0 for pair in one.pairs[at])
    return f"{better} lower, {len(one.pairs[at]) - better - worse} level, {worse} higher"


def _scenarios(found: Results, rows: Sequence[SummaryRow], ranking: Ranking) -> list[Table]:
    def rank_of(row: SummaryRow) -> str:
        if row.method not in ranking.methods or row.environment not in ranking.environments:
            return EMPTY
        places = list(ranking.environments).index(row.environment), list(ranking.methods).index(row.method)
        return f"{ranking.ranks[places]:g}"

    columns = [
        *(one for one in REGRET_COLUMNS if one.header in ("method", "best α")),
        Column("rank", rank_of),
        Column("regret", lambda row: f"{row.regret.mean:,.0f} ± {row.regret.high - row.regret.mean:,.0f}"),
        *(
            Column(
                f"minus {find_policy(policy).label}",  # type: ignore[attr-defined]
                partial(_difference, found, rows, policy),
            )
            for policy in YARDSTICKS
        ),
    ]
    tables = []
    for key in unique(row.environment for row in rows):
        here = sorted((row for row in rows if row.environment == key), key=lambda row: row.regret.mean)
        caption = f"{found.title(key)}: final regret after {found.spec.horizon:,} rounds"
        tables.append(table_of(caption, columns, here, _mark))
    return tables


def _difference(found: Results, rows: Sequence[SummaryRow], policy: str, row: SummaryRow) -> str:
    own = _yardstick(rows, row.environment, policy)
    pair = None if row.method == policy else pair_up(found.table, own, row)
    if pair is None:
        return EMPTY
    half = (pair.high - pair.low) / 2.0
    return f"{number('{:+,.0f}', -pair.difference)} ± {half:,.0f}"


def _recipes(found: Results, rows: Sequence[SummaryRow]) -> list[Text | Table]:
    """The share of clicks on LastFM, with a column for each recipe."""
    kinds = {item.id: item.kind for item in found.spec.environments}
    here = [row for row in rows if kinds.get(row.environment) == "lastfm"]
    keys = unique(row.environment for row in here)
    clicks = {(row.method, row.environment): 1.0 - row.regret.mean / found.spec.horizon for row in here}
    methods = unique(row.method for row in here)
    labels = {row.method: row.label for row in here}
    methods.sort(key=lambda method: -clicks.get((method, keys[0]), 0.0))
    alphas = {(row.method, row.environment): row.alpha for row in here}

    def cell(method: str, key: str) -> str:
        at = method, key
        return f"{clicks[at]:.3f} (α={alphas[at]:g})" if at in clicks else EMPTY

    best = {key: max(value for (_, other), value in clicks.items() if other == key) for key in keys}
    strong = {
        (line, place)
        for line, method in enumerate(methods)
        for place, key in enumerate(keys, start=1)
        if clicks.get((method, key)) == best[key]
    }
    lines = [[labels[method], *(cell(method, key) for key in keys)] for method in methods]
    caption = f"LastFM: share of clicks in {found.spec.horizon:,} rounds, mean of {found.spec.runs} runs"
    header = ["method", *(found.title(key) for key in keys)]
    return [Text(RECIPES), Table(caption, header, lines, strong=strong, key="Bold: the most clicks.")]


def _lead(found: Results, rows: Sequence[SummaryRow], ranking: Ranking) -> str:
    if len(ranking.methods) < 2:
        return (
            "Too little has been played to rank methods: that takes two with every α and every run in a "
            "scenario. --only 'synthetic-m3-w1/' plays all of one scenario."
        )
    labels = {row.method: row.label for row in rows}
    if math.isnan(ranking.friedman_p):
        return (
            f"{_scenario_count(ranking)} and {counted(found.spec.runs, 'run')} are too few to say which "
            "method is best; the paired intervals say what is certain here."
        )
    best, *others = (f"{labels[m]} ({ranking.means[at]:.2f})" for at, m in enumerate(ranking.methods))
    return (
        f"Over {_scenario_count(ranking)} of {found.spec.horizon:,} rounds and {found.spec.runs} "
        f"runs, {best} has the lowest mean rank of {len(ranking.methods)} methods, then "
        f"{', '.join(others[:2])}. {_test_sentence(ranking)}"
    )


def _scenario_count(ranking: Ranking) -> str:
    return counted(len(ranking.environments), "scenario")


def _test_sentence(ranking: Ranking) -> str:
    if math.isnan(ranking.friedman_p):
        return "There are too few methods or scenarios for Friedman's test."
    shown = "p < 0.001" if ranking.friedman_p < 0.001 else f"p = {ranking.friedman_p:.3f}"
    return (
        f"Friedman's test that all rank alike: {shown}; mean ranks that differ by less than "
        f"{ranking.critical:.2f} are not significantly different (Nemenyi, 5%)."
    )


def _picture(found: Results, ranking: Ranking) -> Picture:
    labels = {row.method: row.label for row in found.rows}
    title = "Mean ranks and critical difference"
    caption = f"1 is best. Bars join methods that the test cannot tell apart. {_test_sentence(ranking)}"
    draw = partial(critical_difference_figure, ranking, [labels[method] for method in ranking.methods])
    return Picture(title, caption, "critical-difference", draw)


def critical_difference_figure(ranking: Ranking, labels: Sequence[str]) -> Figure:
    """Mean ranks on a line, best on the left, and bars over those that Nemenyi's test cannot tell apart."""
    means, bars = ranking.means, ranking.cliques()
    half = -(-len(means) // 2)
    top = 0.35 * len(bars) + 0.6
    figure = charts.blank(width=8.6, height=0.27 * (half + top) + 1.0)
    ax = figure.subplots()
    ax.set(xlim=(0.5, len(means) + 0.5), ylim=(-half - 0.5, top + 0.9))
    ax.axis("off")
    ax.plot([1, len(means)], [top, top], color="black", linewidth=1)
    for place in range(1, len(means) + 1):
        ax.plot([place, place], [top, top + 0.15], color="black", linewidth=1)
        ax.text(place, top + 0.25, str(place), ha="center", va="bottom", fontsize=9)
    ax.plot([1, 1 + ranking.critical], [top + 1.1] * 2, color=charts.RED, linewidth=2, clip_on=False)
    said = f"critical difference {ranking.critical:.2f}"
    ax.text(1.25 + ranking.critical, top + 1.1, said, color=charts.RED, fontsize=9, va="center")
    for at, (first, last) in enumerate(bars):
        y = top - 0.35 * (at + 1)
        ax.plot([means[first] - 0.06, means[last] + 0.06], [y, y], color=charts.BLUE, linewidth=3.5)
    for at, (mean, label) in enumerate(zip(means, labels, strict=True)):
        is_left = at < half
        y = -(at if is_left else len(means) - 1 - at) - 0.1
        end, side = (0.7, "right") if is_left else (len(means) + 0.3, "left")
        ax.plot([mean, mean, end], [top, y, y], color=charts.GREY, linewidth=0.8)
        text = f"{label}  {mean:.2f}" if is_left else f"{mean:.2f}  {label}"
        ax.text(end + (-0.08 if is_left else 0.08), y, charts.literal(text), ha=side, va="center", fontsize=9)
    return figure


def _yardstick(rows: Sequence[SummaryRow], environment: str, policy: str) -> SummaryRow | None:
    return next((row for row in rows if (row.environment, row.method) == (environment, policy)), None)


def _mark(entry: Any) -> Mark:
    row = entry if isinstance(entry, SummaryRow) else entry.row
    return "apart" if row.policy == "oracle" else "reference" if row.method in YARDSTICKS else ""
