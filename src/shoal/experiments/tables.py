"""From the table of runs to the numbers of the report.

Everything here is a pure function of a table with one row per run (see `shoal.experiments.results`). For each
method the α with the lowest mean final regret over all runs is taken, as in the paper; this looks at the same
runs that are then reported, which flatters every method alike.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import stats

from shoal.experiments import published
from shoal.experiments.published import Published
from shoal.types import Integers, Matrix, Vector

MAIN, GAMMA = "main", "gamma"
"""Groups of methods: those of the tables, and those of the figure on γ and radius."""

OURS = ("cluster_mixture",)
"""Policies that are not in the paper: shown beside its methods, never counted among them."""

BOOTSTRAP_SAMPLES = 10_000


@dataclass(frozen=True)
class Names:
    """Titles of environments and labels of methods, in the order in which the report shows them."""

    environments: Mapping[str, str]
    methods: Mapping[str, str]
    fixed: frozenset[str] = frozenset()
    """Methods whose α was given, not searched for."""

    def environment(self, key: str) -> str:
        """Title of an environment, its id where it has none."""
        return self.environments.get(key, key)

    def method(self, key: str) -> str:
        """Label of a method, its id where it has none."""
        return self.methods.get(key, key)


@dataclass(frozen=True)
class Cell:
    """All runs of one method at one α in one environment; `rows` are row numbers of the table, by run."""

    environment: str
    method: str
    policy: str
    group: str
    alpha: float
    rows: Integers


@dataclass(frozen=True)
class Summary:
    """Mean over runs with its 95% interval (Student t), standard deviation (n − 1), median."""

    mean: float
    std: float
    low: float
    high: float
    median: float
    runs: int


@dataclass(frozen=True)
class Curve:
    """Mean over runs with its 95% interval along x."""

    x: Vector
    mean: Vector
    low: Vector
    high: Vector


@dataclass(frozen=True)
class Comparison:
    """Our mean beside the printed one."""

    printed: Published
    difference: float
    """Ours minus printed; nan when the settings differ."""
    within: bool | None
    """Whether the difference is at most the tolerance; None when the settings differ."""


@dataclass(frozen=True)
class Row:
    """One line of the tables: a method in an environment, at its best α."""

    environment: str
    title: str
    method: str
    label: str
    policy: str
    fixed: bool
    """Whether α was given, not searched for."""
    cell: Cell
    regret: Summary
    regret_printed: Comparison | None
    regret_by_alpha: Curve
    f1: Summary | None
    f1_printed: Comparison | None
    f1_by_alpha: Curve | None

    @property
    def alpha(self) -> float:
        """The α with the lowest mean final regret."""
        return self.cell.alpha

    @property
    def is_ours(self) -> bool:
        """Whether the method is not in the paper but our own."""
        return self.policy in OURS

    @property
    def at_edge(self) -> bool:
        """Whether the best α is the smallest or largest of several, so that a wider grid may do better."""
        alphas = self.regret_by_alpha.x
        return len(alphas) > 1 and self.alpha in (alphas[0], alphas[-1])


@dataclass(frozen=True)
class Paired:
    """A method, the reference, against another on the same seeds; differences are reference minus other."""

    environment: str
    reference: str
    method: str
    label: str
    difference: float
    low: float
    high: float
    """95% interval of the mean difference, paired t."""
    bootstrap_low: float
    bootstrap_high: float
    """The same by bootstrap (percentiles), which does not need the differences to be normal."""
    won: float
    """Share of runs in which the reference had the lower regret."""
    sign_p: float
    """Two-sided p-value of the sign test."""
    runs: int


@dataclass(frozen=True)
class GammaPoint:
    """Final regret of BASS for one γ, radius and environment, at its best α."""

    environment: str
    radius: str
    gamma: float
    delta: float
    alpha: float
    regret: Summary


def find_cells(table: pa.Table) -> list[Cell]:
    """The cells of a table, in order of first appearance."""
    keys = list(
        zip(
            *(table[name].to_pylist() for name in ("environment", "method", "policy", "group", "alpha")),
            strict=True,
        )
    )
    runs = np.asarray(table["run"].to_pylist(), dtype=np.int64)
    members: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(keys):
        members.setdefault(key, []).append(row)
    cells = []
    for (environment, method, policy, group, alpha), rows in members.items():
        numbers = np.asarray(rows)
        by_run = numbers[np.argsort(runs[numbers], kind="stable")]
        cells.append(Cell(environment, method, policy, group, float(alpha), by_run))
    return cells


def column(table: pa.Table, name: str, cell: Cell) -> Vector:
    """A scalar column of a cell, one value per run."""
    return np.asarray(table[name].take(pa.array(cell.rows)).to_numpy(), dtype=np.float64)


def summarize(values: Vector) -> Summary:
    """Mean, standard deviation, interval and median of independent values.

    Examples
    --------
    >>> summarize(np.array([1.0, 2.0, 3.0])).mean
    2.0
    """
    n = len(values)
    mean = float(np.mean(values))
    std = float(np.std(values, ddof=1)) if n > 1 else math.nan
    half = float(stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n) if n > 1 else math.nan
    return Summary(mean, std, mean - half, mean + half, float(np.median(values)), n)


def by_method(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """The cells of each (environment, method), by increasing α."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.environment, cell.method), []).append(cell)
    return {key: sorted(entries, key=lambda cell: cell.alpha) for key, entries in found.items()}


def best_cell(table: pa.Table, cells: Sequence[Cell]) -> Cell:
    """The cell with the lowest mean final regret; of several, the first."""
    return min(cells, key=lambda cell: float(np.mean(column(table, "final_regret", cell))))


def profile(table: pa.Table, name: str, cells: Sequence[Cell]) -> Curve:
    """Mean over runs of a column, with its interval, against the α of `cells`."""
    found = [summarize(column(table, name, cell)) for cell in cells]
    mean = np.array([summary.mean for summary in found])
    half = np.array([0.0 if summary.runs == 1 else summary.high - summary.mean for summary in found])
    return Curve(np.array([cell.alpha for cell in cells]), mean, mean - half, mean + half)


def is_comparable(table: pa.Table, environment: str) -> bool:
    """Whether the runs of an environment were made in the setting of the printed figures.

    Real data never count as the same: whether a user's file is the authors' cannot be known.
    """
    setting = published.SETTINGS.get(environment)
    if setting is None or setting.gap is None:
        return False
    mask = pc.equal(table["environment"], environment)
    rows = table.select(["horizon", "n_agents", "dim", "n_arms", "gap"]).filter(mask).to_pylist()
    return all(
        (row["horizon"], row["n_agents"], row["dim"], row["n_arms"]) == setting[:4]
        and abs(row["gap"] - setting.gap) < 0.01
        for row in rows
    )


def main_rows(table: pa.Table, names: Names) -> list[Row]:
    """The lines of the tables of final regret and F1, by environment and method in the order of `names`."""
    tried = by_method(cell for cell in find_cells(table) if cell.group == MAIN)
    comparable = {key: is_comparable(table, key) for key, _ in tried}
    rows = []
    for (environment, method), cells in tried.items():
        cell = best_cell(table, cells)
        regret = summarize(column(table, "final_regret", cell))
        scores = column(table, "final_f1", cell)
        f1 = None if np.isnan(scores).any() else summarize(scores)
        printed = published.FINAL_REGRET.get(environment, {}).get(method)
        printed_f1 = published.F1.get(environment, {}).get(method)
        same = comparable[environment]
        rows.append(
            Row(
                environment=environment,
                title=names.environment(environment),
                method=method,
                label=names.method(method),
                policy=cell.policy,
                fixed=method in names.fixed,
                cell=cell,
                regret=regret,
                regret_printed=_compare(regret.mean, printed, same, 0.0),
                regret_by_alpha=profile(table, "final_regret", cells),
                f1=f1,
                f1_printed=_compare(f1.mean, printed_f1, same, published.F1_DIGIT) if f1 else None,
                f1_by_alpha=profile(table, "final_f1", cells) if f1 else None,
            )
        )
    environments, methods = _ranks(names.environments), _ranks(names.methods)
    last = len(tried) + len(environments) + len(methods)
    rows.sort(key=lambda row: (environments.get(row.environment, last), methods.get(row.method, last)))
    return rows


def paired_comparisons(table: pa.Table, rows: Sequence[Row]) -> list[Paired]:
    """BASS (see `reference_row`) against all policies but ours, each at its best α, on the same seeds."""
    pairs = []
    for environment in unique(row.environment for row in rows):
        here = [row for row in rows if row.environment == environment]
        reference = reference_row(here)
        if reference is not None:
            others = [row for row in here if row.policy != reference.policy and not row.is_ours]
            pairs += [pair_up(table, reference, row) for row in others]
    return [pair for pair in pairs if pair is not None]


def pair_up(table: pa.Table, reference: Row | None, row: Row | None) -> Paired | None:
    """Compare two methods on the seeds that both have; None where one is missing or there are none."""
    if reference is None or row is None:
        return None
    own, other = _on_same_seeds(table, reference.cell, row.cell)
    return compare_paired(own, other, reference=reference, row=row) if len(own) else None


def reference_row(rows: Sequence[Row]) -> Row | None:
    """The BASS that the others are compared with: δ = 0.1 where it was run, else the first."""
    ours = [row for row in rows if row.policy == "bass"]
    return next((row for row in ours if row.method == "bass-d0.1"), ours[0] if ours else None)


def compare_paired(own: Vector, other: Vector, *, reference: Row, row: Row) -> Paired:
    """Compare values of the same runs under two methods."""
    difference = summarize(own - other)
    wins, losses = int(np.sum(own < other)), int(np.sum(own > other))
    rng = np.random.default_rng(0)
    draws = rng.integers(len(own), size=(BOOTSTRAP_SAMPLES, len(own)))
    low, high = np.quantile((own - other)[draws].mean(axis=1), [0.025, 0.975])
    return Paired(
        environment=row.environment,
        reference=reference.label,
        method=row.method,
        label=row.label,
        difference=difference.mean,
        low=difference.low,
        high=difference.high,
        bootstrap_low=float(low),
        bootstrap_high=float(high),
        won=wins / len(own),
        sign_p=float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0,
        runs=len(own),
    )


def curve(table: pa.Table, name: str, cell: Cell) -> Curve | None:
    """Mean and interval of `curve_regret` or `curve_f1` over rounds; None where it was not measured."""
    rows = pa.array(cell.rows)
    rounds = table["curve_rounds"].take(rows).to_pylist()
    if any(entry != rounds[0] for entry in rounds):
        raise ValueError(f"runs of {cell.environment}/{cell.method} were recorded after different rounds")
    values = np.array(table[name].take(rows).to_pylist(), dtype=np.float64)
    return None if np.isnan(values).any() else mean_curve(np.asarray(rounds[0], dtype=np.float64), values)


def mean_curve(x: Vector, values: Matrix) -> Curve:
    """Mean of `values` (runs, points) over runs, with its 95% interval; without width for a single run."""
    n = len(values)
    mean = values.mean(axis=0)
    half = (
        stats.t.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n)
        if n > 1
        else np.zeros_like(mean)
    )
    return Curve(x, mean, mean - half, mean + half)


def gamma_points(table: pa.Table) -> list[GammaPoint]:
    """Final regret of BASS for each γ and radius of the group "gamma", at its best α.

    The BASS of the tables joins them where it has a δ of theirs, on the same values of α: it is their γ = 2.
    """
    cells = [cell for cell in find_cells(table) if cell.policy == "bass"]
    parameters = {
        (cell.environment, cell.method): json.loads(table["policy_parameters"][int(cell.rows[0])].as_py())
        for cell in cells
    }
    varied = [cell for cell in cells if cell.group == GAMMA]
    grid = {
        (cell.environment, cell.alpha, parameters[cell.environment, cell.method]["delta"]) for cell in varied
    }
    joining = [
        cell
        for cell in cells
        if cell.group == MAIN
        and (cell.environment, cell.alpha, parameters[cell.environment, cell.method]["delta"]) in grid
    ]
    points = {}
    for (environment, method), tried in by_method(joining + varied).items():
        cell = best_cell(table, tried)
        own = parameters[environment, method]
        point = GammaPoint(
            environment=environment,
            radius=str(own.get("radius", "beta")),
            gamma=float(own.get("gamma", 2.0)),
            delta=float(own["delta"]),
            alpha=cell.alpha,
            regret=summarize(column(table, "final_regret", cell)),
        )
        points[point.environment, point.radius, point.delta, point.gamma] = point
    return [points[key] for key in sorted(points)]


# Sentences

REASONS: dict[str, str] = {
    "independent": "It has no parameter but α, and the paper gives only the range of α, not its choice.",
    "oracle": "It pools the true clusters, so only α and the arms, which the paper leaves open, can differ.",
    "club": "The paper gives neither the α it chose nor how it starts the graph (here: complete).",
    "sclub": (
        "The paper does not give the α it chose, and what a new or merged cluster remembers within a stage "
        "is left open by its source (docs/algorithms.md)."
    ),
    "cmlb": (
        "It forms its clusters once, early, from few samples of each agent, so that the outcome hangs on γ "
        "against the noise. The paper gives neither the length of that exploration nor what becomes of "
        "agents without a close neighbour, and both matter (docs/algorithms.md)."
    ),
    "dynucb": (
        "An agent in a wrong cluster can stay there, so its regret has heavy tails: compare medians rather "
        "than means. The paper does not describe how it starts or when it moves an agent."
    ),
    "bass": (
        "This method should agree with print: what the paper leaves open (arms, ridge, scale of the "
        "ellipsoids) is settled in docs/algorithms.md, and no baseline's tuning is involved."
    ),
}
"""What can make a method's final regret differ from print, by policy."""


def regret_remark(row: Row) -> str | None:
    """Sentences on a final regret that differs from print by more than the printed std; None for others."""
    comparison, ours = row.regret_printed, row.regret
    if comparison is None or comparison.within is not False:
        return None
    printed = comparison.printed
    text = (
        f"{row.label}, {row.title}: {ours.mean:,.0f} here, {printed.mean:,.1f} in print, that is "
        f"{_direction(comparison, '{:,.0f}')}, {abs(comparison.difference) / printed.std:.1f} printed "
        "standard deviations."
    )
    if ours.low <= printed.mean <= ours.high:
        return f"{text} {_CHANCE.format(runs=ours.runs)}"
    text += f" {REASONS.get(row.policy, 'The reason is not known.')}"
    if row.policy in ("club", "sclub") and row.f1 is not None and row.f1.mean < 0.1:
        text += f" Its F1 of {row.f1.mean:.2f} says that agents part early, so it is close to Ind."
    return text + _other_alpha(row.regret_by_alpha, printed, printed.std, "{:,.0f}")


def f1_remark(row: Row) -> str | None:
    """Sentences on an F1 score that differs from print by more than its tolerance; None for others."""
    comparison, ours = row.f1_printed, row.f1
    if ours is None or row.f1_by_alpha is None or comparison is None or comparison.within is not False:
        return None
    printed = comparison.printed
    text = (
        f"{row.label}, {row.title}: F1 {ours.mean:.2f} here, {printed.mean:.1f} in print, that is "
        f"{_direction(comparison, '{:.2f}')}."
    )
    if ours.low <= printed.mean <= ours.high:
        return f"{text} {_CHANCE.format(runs=ours.runs)}"
    tolerance = max(printed.std, published.F1_DIGIT)
    return text + _other_alpha(row.f1_by_alpha, printed, tolerance, "{:.2f}")


_CHANCE = "Our 95% interval holds the printed mean: with {runs} runs chance alone can account for this."


def _direction(comparison: Comparison, form: str) -> str:
    size = form.format(abs(comparison.difference))
    return f"{size} {'lower' if comparison.difference < 0 else 'higher'}"


def _other_alpha(by_alpha: Curve, printed: Published, tolerance: float, form: str) -> str:
    """Whether another α of the grid would give the printed value."""
    if len(by_alpha.x) < 2:
        return ""
    nearest = int(np.argmin(np.abs(by_alpha.mean - printed.mean)))
    value = form.format(by_alpha.mean[nearest])
    text = f" Of our values of α, {by_alpha.x[nearest]:g} comes nearest to print, with {value}"
    if abs(by_alpha.mean[nearest] - printed.mean) <= tolerance:
        return f"{text}: another α is enough to explain the difference."
    return f"{text}: α alone does not explain the difference."


# Markdown


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; the first column is text, the others numbers."""
    rule = ["---", *("---:" for _ in header[1:])]
    rows = [[markdown_text(item).replace("|", r"\|") for item in line] for line in [header, *lines]]
    return "\n".join("| " + " | ".join(line) + " |" for line in [rows[0], rule, *rows[1:]])


_MARKUP = re.compile(r"[\\`*\[]|<(?=[A-Za-z/!?])|&(?=#?[A-Za-z0-9]+;)")


def markdown_text(text: str) -> str:
    """A text on one line with nothing in it that Markdown would take for markup, HTML included."""
    entities = {"<": "&lt;", "&": "&amp;"}
    return _MARKUP.sub(lambda found: entities.get(found[0], f"\\{found[0]}"), " ".join(text.split()))


REGRET_HEADER = (
    "method",
    "best α",
    "mean ± std",
    "95% interval",
    "median",
    "runs",
    "published",
    "difference",
    "within its std",
)
F1_HEADER = ("method", "mean ± std", "95% interval", "runs", "published", "difference", "within tolerance")
PAIRED_HEADER = (
    "against",
    "mean difference",
    "95% interval (paired t)",
    "95% interval (bootstrap)",
    "runs won",
    "sign test p",
    "runs",
)


def regret_line(row: Row) -> list[str]:
    """A line of the table of final regret, as text."""
    s = row.regret
    alpha = f"{row.alpha:g}" + (" (fixed)" if row.fixed else " (edge)" if row.at_edge else "")
    return [
        row.label,
        alpha,
        _plus_minus(s, "{:,.0f}"),
        _interval(s.low, s.high, "{:,.0f}"),
        f"{s.median:,.0f}",
        str(s.runs),
        *_comparison(row, row.regret_printed, "{:,.1f}", "{:+,.0f}"),
    ]


def f1_line(row: Row) -> list[str]:
    """A line of the table of F1 scores, as text; only for rows that have a score."""
    s = row.f1
    if s is None:
        raise ValueError(f"{row.environment}/{row.method} has no F1 score")
    return [
        row.label,
        _plus_minus(s, "{:.2f}"),
        _interval(s.low, s.high, "{:.2f}"),
        str(s.runs),
        *_comparison(row, row.f1_printed, "{:.1f}", "{:+.2f}"),
    ]


def paired_line(pair: Paired) -> list[str]:
    """A line of the paired comparison, as text."""
    return [
        pair.label,
        _number("{:+,.0f}", pair.difference),
        _interval(pair.low, pair.high, "{:+,.0f}"),
        _interval(pair.bootstrap_low, pair.bootstrap_high, "{:+,.0f}"),
        f"{pair.won:.0%}",
        "< 0.001" if pair.sign_p < 0.001 else f"{pair.sign_p:.3f}",
        str(pair.runs),
    ]


def unique(values: Iterable[str]) -> list[str]:
    """Distinct values in order of first appearance."""
    return list(dict.fromkeys(values))


def _compare(ours: float, printed: Published | None, comparable: bool, least: float) -> Comparison | None:
    if printed is None:
        return None
    if not comparable:
        return Comparison(printed, math.nan, None)
    difference = ours - printed.mean
    return Comparison(printed, difference, abs(difference) <= max(printed.std, least) + 1e-12)


def _on_same_seeds(table: pa.Table, first: Cell, second: Cell) -> tuple[Vector, Vector]:
    """Final regrets of two cells, for the (run, seed) that both have."""

    def by_run(cell: Cell) -> dict[tuple[float, float], float]:
        runs, seeds = column(table, "run", cell), table["seed"].take(pa.array(cell.rows)).to_pylist()
        return dict(zip(zip(runs, seeds, strict=True), column(table, "final_regret", cell), strict=True))

    own, other = by_run(first), by_run(second)
    common = [key for key in own if key in other]
    return np.array([own[key] for key in common]), np.array([other[key] for key in common])


def _ranks(keys: Iterable[str]) -> dict[str, int]:
    return {key: rank for rank, key in enumerate(keys)}


def _number(form: str, value: float) -> str:
    """A number as text, with a minus sign rather than a hyphen, and none before a zero."""
    text = form.format(value)
    if text.startswith("-") and not text.strip("-0.,"):
        text = text[1:]
    return text.replace("-", "−")


def _plus_minus(s: Summary, form: str) -> str:
    return _number(form, s.mean) if math.isnan(s.std) else f"{_number(form, s.mean)} ± {_number(form, s.std)}"


def _interval(low: float, high: float, form: str) -> str:
    return "–" if math.isnan(low) else f"{_number(form, low)} to {_number(form, high)}"


def _comparison(row: Row, comparison: Comparison | None, form: str, signed: str) -> list[str]:
    if comparison is None:
        return ["not in the paper" if row.is_ours else "–", "–", "–"]
    printed = f"{form.format(comparison.printed.mean)} ± {form.format(comparison.printed.std)}"
    if comparison.within is None:
        return [printed, "–", "–"]
    return [printed, _number(signed, comparison.difference), "yes" if comparison.within else "no"]
