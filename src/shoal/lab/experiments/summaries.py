"""From the table of runs to numbers: means, intervals, best α, differences run by run.

Everything here is a pure function of a table with one row per run (see `shoal.lab.experiments.results`). Each
method gets the α with the lowest mean final regret over all runs. That α is chosen on the same runs that are
then reported, which favours every method alike.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats

from shoal.core.parquet import pa
from shoal.core.types import Integers, Vector
from shoal.lab.experiments.spec import MAIN
from shoal.reporting.curves import Curve, half_width, mean_curve

BOOTSTRAP_SAMPLES = 10_000

REGRET, SCORE = (0.0, math.inf), (0.0, 1.0)
"""The ranges of a regret and an F1 score, where their intervals end."""


@dataclass(frozen=True)
class Names:
    """Titles of environments and labels of methods, in the order in which the report shows them."""

    environments: Mapping[str, str]
    methods: Mapping[str, str]
    fixed: frozenset[str] = frozenset()
    """Methods with a given α, not searched for."""
    twins: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For a searched method, those that differ from it in α alone: their runs are part of its search."""

    def environment(self, key: str) -> str:
        """Title of an environment, or its id if it has none."""
        return self.environments.get(key, key)

    def method(self, key: str) -> str:
        """Label of a method, or its id if it has none."""
        return self.methods.get(key, key)


@dataclass(frozen=True)
class Runs:
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
    values: Vector = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """What it summarises, one value per run."""


@dataclass(frozen=True)
class SummaryRow:
    """One line of the tables: a method in an environment, at its best α."""

    environment: str
    title: str
    method: str
    label: str
    policy: str
    fixed: bool
    """Whether α was given rather than searched for."""
    cell: Runs
    regret: Summary
    regret_by_alpha: Curve
    f1: Summary | None

    @property
    def alpha(self) -> float:
        """The α with the lowest mean final regret."""
        return self.cell.alpha

    @property
    def at_edge(self) -> bool:
        """Whether the best α is the smallest or largest of several, so a wider grid might do better.

        Below 0 there is none.
        """
        alphas = self.regret_by_alpha.x
        return len(alphas) > 1 and self.alpha in (alphas[0], alphas[-1]) and self.alpha > 0.0


@dataclass(frozen=True)
class Paired:
    """A reference method against another on the same seeds; differences are reference minus other."""

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
    """The same by bootstrap (percentiles), which does not assume normal differences."""
    won: float
    """Share of runs in which the reference had the lower regret."""
    sign_p: float
    """Two-sided p-value of the sign test."""
    runs: int


def find_cells(table: pa.Table) -> list[Runs]:
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
        # Paired comparisons go by position.
        by_run = numbers[np.argsort(runs[numbers], kind="stable")]
        cells.append(Runs(environment, method, policy, group, float(alpha), by_run))
    return cells


def column(table: pa.Table, name: str, cell: Runs) -> Vector:
    """A scalar column of a cell, one value per run."""
    return np.asarray(table[name].take(pa.array(cell.rows)).to_numpy(), dtype=np.float64)


def summarize(values: Vector, bounds: tuple[float, float] = (-math.inf, math.inf)) -> Summary:
    """Mean, standard deviation, interval and median of independent values, which lie within `bounds`.

    Examples
    --------
    >>> summarize(np.array([1.0, 2.0, 3.0])).mean
    2.0
    """
    n = len(values)
    mean = float(np.mean(values))
    std = float(np.std(values, ddof=1)) if n > 1 else math.nan
    half = float(half_width(std / math.sqrt(n), n)) if n > 1 else math.nan
    # No interval may promise what cannot be, such as a negative regret.
    low, high = max(mean - half, bounds[0]), min(mean + half, bounds[1])
    return Summary(mean, std, low, high, float(np.median(values)), n, values)


def bootstrap_draws(n: int, samples: int = BOOTSTRAP_SAMPLES) -> Integers:
    """Numbers of runs drawn with replacement, shape (samples, n)."""
    # A fixed seed: the same results give the same report, to the last digit.
    return np.random.default_rng(0).integers(n, size=(samples, n))


def by_method(cells: Iterable[Runs]) -> dict[tuple[str, str], list[Runs]]:
    """The cells of each (environment, method), by increasing α."""
    found: dict[tuple[str, str], list[Runs]] = {}
    for cell in cells:
        found.setdefault((cell.environment, cell.method), []).append(cell)
    return {key: sorted(entries, key=lambda cell: cell.alpha) for key, entries in found.items()}


def best_cell(table: pa.Table, cells: Sequence[Runs]) -> Runs:
    """The cell with the lowest mean final regret; the first of several."""
    return min(cells, key=lambda cell: float(np.mean(column(table, "final_regret", cell))))


def profile(table: pa.Table, name: str, cells: Sequence[Runs], bounds: tuple[float, float]) -> Curve:
    """Mean over runs of a column, with its interval, against the α of `cells`."""
    found = [summarize(column(table, name, cell), bounds) for cell in cells]
    mean, low, high = (
        np.array([getattr(summary, part) for summary in found]) for part in ("mean", "low", "high")
    )
    # A single run has a mean and no interval; the band is drawn as a line.
    alone = np.isnan(low)
    x = np.array([cell.alpha for cell in cells])
    return Curve(x, mean, np.where(alone, mean, low), np.where(alone, mean, high))


def main_rows(table: pa.Table, names: Names, alphas: Collection[float] | None = None) -> list[SummaryRow]:
    """The lines of the tables of final regret and F1, by environment and method in the order of `names`.

    With `alphas`, only these values are tried; methods with a fixed α keep theirs.
    """
    played = [
        cell
        for cell in find_cells(table)
        if cell.group == MAIN and (alphas is None or cell.alpha in alphas or cell.method in names.fixed)
    ]
    tried = by_method(played)
    for (environment, method), cells in tried.items():
        known = {cell.alpha for cell in cells}
        twins = names.twins.get(method, frozenset())
        cells += [
            replace(cell, method=method)
            for cell in played
            if cell.environment == environment and cell.method in twins and cell.alpha not in known
        ]
        cells.sort(key=lambda cell: cell.alpha)
    rows = []
    for (environment, method), cells in tried.items():
        cell = best_cell(table, cells)
        regret = summarize(column(table, "final_regret", cell), REGRET)
        scores = column(table, "final_f1", cell)
        f1 = None if np.isnan(scores).any() else summarize(scores, SCORE)
        rows.append(
            SummaryRow(
                environment=environment,
                title=names.environment(environment),
                method=method,
                label=names.method(method),
                policy=cell.policy,
                fixed=method in names.fixed,
                cell=cell,
                regret=regret,
                regret_by_alpha=profile(table, "final_regret", cells, REGRET),
                f1=f1,
            )
        )
    environments, methods = _ranks(names.environments), _ranks(names.methods)
    last = len(tried) + len(environments) + len(methods)
    # In the order of the spec; rows that it no longer names come last.
    rows.sort(key=lambda row: (environments.get(row.environment, last), methods.get(row.method, last)))
    return rows


def paired_with(
    table: pa.Table,
    rows: Sequence[SummaryRow],
    reference: Callable[[Sequence[SummaryRow]], SummaryRow | None],
    is_rival: Callable[[SummaryRow, SummaryRow], bool] = lambda reference, row: row is not reference,
) -> list[Paired]:
    """In each environment, the row `reference` picks against its rivals, at best α, on the same seeds."""
    pairs = []
    for environment in unique(row.environment for row in rows):
        here = [row for row in rows if row.environment == environment]
        chosen = reference(here)
        if chosen is not None:
            pairs += [pair_up(table, chosen, row) for row in here if is_rival(chosen, row)]
    return [pair for pair in pairs if pair is not None]


def best_row(rows: Sequence[SummaryRow]) -> SummaryRow | None:
    """The row with the lowest mean final regret."""
    return min(rows, key=lambda row: row.regret.mean, default=None)


def pair_up(table: pa.Table, reference: SummaryRow | None, row: SummaryRow | None) -> Paired | None:
    """Compare two methods on the seeds that both have; None if one is missing or there are no such seeds."""
    if reference is None or row is None:
        return None
    own, other = _on_same_seeds(table, reference.cell, row.cell)
    return compare_paired(own, other, reference=reference, row=row) if len(own) else None


def compare_paired(own: Vector, other: Vector, *, reference: SummaryRow, row: SummaryRow) -> Paired:
    """Compare values of the same runs under two methods."""
    difference = summarize(own - other)
    wins, losses = int(np.sum(own < other)), int(np.sum(own > other))
    low, high = np.quantile((own - other)[bootstrap_draws(len(own))].mean(axis=1), [0.025, 0.975])
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


def curve(table: pa.Table, name: str, cell: Runs) -> Curve | None:
    """Mean and interval of `curve_regret` or `curve_f1` over rounds; None if it was not measured."""
    rows = pa.array(cell.rows)
    rounds = table["curve_rounds"].take(rows).to_pylist()
    # A mean over runs makes sense only at common rounds.
    if any(entry != rounds[0] for entry in rounds):
        raise ValueError(f"runs of {cell.environment}/{cell.method} were recorded after different rounds")
    values = np.array(table[name].take(rows).to_pylist(), dtype=np.float64)
    if np.isnan(values).any():
        return None
    bounds = SCORE if name == "curve_f1" else REGRET
    return mean_curve(np.asarray(rounds[0], dtype=np.float64), values, bounds=bounds)


def unique(values: Iterable[str]) -> list[str]:
    """Distinct values in order of first appearance."""
    return list(dict.fromkeys(values))


def _on_same_seeds(table: pa.Table, first: Runs, second: Runs) -> tuple[Vector, Vector]:
    """Final regrets of two cells, for the (run, seed) that both have."""

    def by_run(cell: Runs) -> dict[tuple[float, float], float]:
        runs, seeds = column(table, "run", cell), table["seed"].take(pa.array(cell.rows)).to_pylist()
        return dict(zip(zip(runs, seeds, strict=True), column(table, "final_regret", cell), strict=True))

    # A cell may have other seeds, or fewer runs: only runs that both have are compared.
    own, other = by_run(first), by_run(second)
    common = [key for key in own if key in other]
    return np.array([own[key] for key in common]), np.array([other[key] for key in common])


def _ranks(keys: Iterable[str]) -> dict[str, int]:
    return {key: rank for rank, key in enumerate(keys)}
