"""Our figures next to the published ones: which are comparable, how far apart they are, and why."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.parquet import pa, pc
from shoal.core.policies.registry import policy_class
from shoal.lab.experiments.report import Column
from shoal.lab.experiments.spec import MethodSpec
from shoal.lab.experiments.summaries import (
    Names,
    Paired,
    Summary,
    SummaryRow,
    bootstrap_draws,
    main_rows,
    paired_with,
)
from shoal.lab.paper import published
from shoal.lab.paper.published import Published
from shoal.reporting.sections import Mark
from shoal.reporting.words import EMPTY, number, plus_minus

REFERENCE = "bass-d0.1"
"""The method that the others are compared with, where it was run."""


AGREES_ERRORS, AGREES_SHARE, AGREES_FACTOR = 3.0, 0.1, 1.5
"""A figure agrees with the printed one within AGREES_ERRORS standard errors of their difference or within
AGREES_SHARE of the printed one, whichever is more; a spread within as many errors or within AGREES_FACTOR."""

BOOTSTRAP_SAMPLES = 2_000
MEDIAN_ERROR = math.sqrt(math.pi / 2.0)
"""Standard error of a median over that of a mean, for normal values: printed medians come with no more."""


@dataclass(frozen=True)
class Distance:
    """One of our figures beside the printed one."""

    ours: float
    difference: float
    """Ours minus printed; for spreads the logarithm of their ratio."""
    errors: float
    """The same, beyond rounding, in standard errors of the difference; nan for one run."""
    agrees: bool


@dataclass(frozen=True)
class Comparison:
    """Our runs beside the printed figure: by their mean, their median, and their standard deviation."""

    printed: Published
    mean: Distance
    median: Distance
    spread: Distance | None
    """None if a spread is 0."""


def is_ours(row: SummaryRow) -> bool:
    """Whether the method is a policy of ours: shown next to the paper's methods, never counted among them."""
    return _in_paper(row) is False


def is_in_paper(row: SummaryRow | MethodSpec) -> bool:
    """Whether the paper runs the method's policy."""
    return _in_paper(row) is True


def _in_paper(row: SummaryRow | MethodSpec) -> bool | None:
    """Whether a policy of this package is in the paper; None for any other policy, such as a yardstick."""
    try:
        return bool(getattr(policy_class(row.policy), "in_paper", False))
    except ValueError:
        return None


def mark(row: SummaryRow) -> Mark:
    """How a method's line is highlighted in the tables."""
    return "reference" if row.policy == "bass" else "" if is_in_paper(row) else "apart"


def reference_row(rows: Sequence[SummaryRow]) -> SummaryRow | None:
    """The BASS that the others are compared with: δ = 0.1 where it was run, else the first."""
    variants = [row for row in rows if row.policy == "bass"]
    return next((row for row in variants if row.method == REFERENCE), variants[0] if variants else None)


def paired_comparisons(table: pa.Table, rows: Sequence[SummaryRow]) -> list[Paired]:
    """BASS (see `reference_row`) against the paper's others, each at its best α, on the same seeds."""
    return paired_with(
        table, rows, reference_row, lambda reference, row: row.policy != reference.policy and is_in_paper(row)
    )


def as_published(table: pa.Table, names: Names) -> dict[tuple[str, str], SummaryRow]:
    """The rows of the tables at the best of the values in `published.ALPHAS`, by environment and method.

    Only the paper's methods that were run at all of these values: ours were not published.
    """
    rows = main_rows(table, names, published.ALPHAS)
    return {
        (row.environment, row.method): row
        for row in rows
        if is_in_paper(row) and set(row.regret_by_alpha.x) == set(published.ALPHAS)
    }


def drawn(rows: Iterable[SummaryRow]) -> list[SummaryRow]:
    """The rows that a figure shows, at most eight curves: both BASS, each other policy at its better setting.

    Policies and variants that are not in the paper are left out. The better setting is the same in all
    environments of the rows.
    """
    fair = [row for row in rows if is_in_paper(row) and row.method not in published.VARIANTS]
    totals: dict[str, dict[str, float]] = {}
    for row in fair:
        of_policy = totals.setdefault(row.policy, {})
        of_policy[row.method] = of_policy.get(row.method, 0.0) + row.regret.mean
    best = {policy: min(total, key=lambda method: total[method]) for policy, total in totals.items()}
    return [row for row in fair if row.policy == "bass" or best[row.policy] == row.method]


def has_published_sizes(table: pa.Table, environment: str) -> bool:
    """Whether the runs of an environment have the sizes of the printed figures, if there are any."""
    setting = published.SETTINGS.get(environment)
    if setting is None:
        return False
    names = ["horizon", "n_agents", "dim", "n_arms", "gap"]
    rows = table.filter(pc.equal(table["environment"], environment)).select(names).to_pylist()
    return all(
        (row["horizon"], row["n_agents"], row["dim"], row["n_arms"]) == setting[:4]
        and (setting.gap is None or abs(row["gap"] - setting.gap) < 0.01)
        for row in rows
    )


def compare_regret(row: SummaryRow) -> Comparison | None:
    """Final regret beside the printed one, or None if there is none."""
    printed = _printed(published.FINAL_REGRET, row)
    return None if printed is None else _compare(row.regret, printed, AGREES_SHARE * printed.value, 0.0)


def compare_f1(row: SummaryRow) -> Comparison | None:
    """F1 score beside the printed one, which has one digit, or None if there is none."""
    printed = _printed(published.F1, row)
    half_digit = published.F1_DIGIT / 2.0
    return None if printed is None or row.f1 is None else _compare(row.f1, printed, half_digit, half_digit)


def _printed(figures: Mapping[str, Mapping[str, Published]], row: SummaryRow) -> Published | None:
    method = published.VARIANTS.get(row.method, row.method)
    return figures.get(row.environment, {}).get(method)


def _compare(ours: Summary, printed: Published, least: float, rounding: float) -> Comparison:
    """Runs beside a printed figure, which may be off by `rounding`; up to `least` beyond that they agree."""
    theirs = printed.spread / math.sqrt(published.RUNS)
    own = ours.std / math.sqrt(ours.runs)
    drawn = ours.values[bootstrap_draws(ours.runs, BOOTSTRAP_SAMPLES)]
    own_median = float(np.median(drawn, axis=1).std()) if ours.runs > 1 else math.nan
    spread = None
    if printed.spread > 0.0 and ours.std > 0.0:
        # On a logarithmic scale. Our error is by bootstrap, the printed one's is that of normal values.
        known = drawn.std(axis=1, ddof=1)
        log_error = float(np.log(known[known > 0.0]).std())
        normal = 1.0 / math.sqrt(2.0 * (published.RUNS - 1))
        ratio = math.log(ours.std / printed.spread)
        spread = _distance(ours.std, ratio, math.hypot(log_error, normal), math.log(AGREES_FACTOR), 0.0)
    return Comparison(
        printed,
        _distance(ours.mean, ours.mean - printed.value, math.hypot(own, theirs), least, rounding),
        _distance(
            ours.median,
            ours.median - printed.value,
            math.hypot(own_median, MEDIAN_ERROR * theirs),
            least,
            rounding,
        ),
        spread,
    )


def _distance(ours: float, difference: float, error: float, least: float, rounding: float) -> Distance:
    beyond = max(abs(difference) - rounding - 1e-9, 0.0)
    errors = math.copysign(beyond / error if error else math.inf if beyond else 0.0, difference)
    tolerance = max(least, 0.0 if math.isnan(error) else AGREES_ERRORS * error)
    return Distance(ours, difference, errors, beyond <= tolerance)


# Columns

Compare = Callable[[SummaryRow], Comparison | None]


def at(row: SummaryRow, form: str, summary: Summary | None) -> str:
    """A mean with its standard deviation and the α that gave it."""
    if summary is None:
        return EMPTY
    how = " (fixed)" if row.fixed else " (edge)" if row.at_edge else ""
    return f"{plus_minus(form, summary.mean, summary.std)} at α={row.alpha:g}{how}"


def printed_column(compare: Compare, form: str, header: str = "published") -> Column:
    """What is printed, with its ±."""

    def text(row: SummaryRow) -> str:
        found = compare(row)
        return EMPTY if found is None else plus_minus(form, *found.printed)

    return Column(header, text)


def difference_columns(compare: Compare, signed: str) -> tuple[Column, ...]:
    """How far our means and medians are from the printed figures, and our spreads, and whether they agree."""

    def difference(name: str) -> Column:
        def text(row: SummaryRow) -> str:
            found = compare(row)
            return EMPTY if found is None else _said(signed, getattr(found, name))

        return Column(f"{name}: difference (in s.e.)", text)

    def spread(row: SummaryRow) -> str:
        found = compare(row)
        if found is None or found.spread is None:
            return EMPTY
        return f"×{math.exp(found.spread.difference):.2f}{_no(found.spread)}"

    return difference("mean"), difference("median"), Column("±, ours over printed", spread)


def _said(signed: str, found: Distance) -> str:
    text = number(signed, found.difference)
    # Left out where rounding can explain all of it, or where neither figure has a standard error.
    if found.errors and math.isfinite(found.errors):
        text += f" ({number('{:+.1f}', found.errors)})"
    return f"{text}{_no(found)}"


def _no(found: Distance) -> str:
    return "" if found.agrees else ", differs"


# Sentences

REASONS: dict[str, str] = {
    "independent": "It has no parameter but α.",
    "oracle": "It has no parameter but α, and its regret has heavy tails: a run in fifty can move the mean.",
    "club": "The paper does not say how it starts the graph (here: complete).",
    "sclub": "Its source leaves open what a new or merged cluster remembers within a stage.",
    "cmlb": (
        "It forms its clusters once and for good, and the paper gives neither the length of the exploration "
        "before that nor what happens to agents without a close neighbour."
    ),
    "dynucb": "An agent in a wrong cluster can stay there: its regret has heavy tails, and its mean moves.",
    "bass": "What the paper leaves open (arms, ridge, scale of ellipsoids) is settled in docs/algorithms.md.",
}
"""What may make a method's final regret differ from the printed one, by policy."""


def regret_remark(row: SummaryRow, found: Comparison | None) -> str | None:
    """A sentence on a final regret that does not agree with the printed one, else None."""
    if found is None or found.mean.agrees:
        return None
    share = abs(found.mean.difference) / found.printed.value
    return (
        f"{row.label}, {row.title}: mean {row.regret.mean:,.0f} here, {found.printed.value:,.1f} in print, "
        f"{share:.0%} {_direction(found)}{_errors(found)}. "
        f"{REASONS.get(row.policy, 'The reason is not known.')}"
    )


def f1_remark(row: SummaryRow, found: Comparison | None) -> str | None:
    """A sentence on an F1 score that does not agree with the printed one, else None."""
    if found is None or found.mean.agrees or row.f1 is None:
        return None
    return (
        f"{row.label}, {row.title}: F1 {row.f1.mean:.2f} here, {found.printed.value:.1f} in print, "
        f"{abs(found.mean.difference):.2f} {_direction(found)}{_errors(found)}."
    )


def _errors(found: Comparison) -> str:
    errors = found.mean.errors
    return "" if not math.isfinite(errors) else f", {abs(errors):.1f} standard errors"


def _direction(found: Comparison) -> str:
    return "lower" if found.mean.difference < 0 else "higher"
