"""Our figures next to the published ones: which are comparable, how far apart they are, and why."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.experiments.report import Column
from shoal.experiments.summaries import Paired, Row, paired_with, unique
from shoal.metrics import Curve
from shoal.paper import published
from shoal.paper.published import Published
from shoal.policies.registry import policy_class
from shoal.reporting.sections import Mark
from shoal.reporting.words import number

REFERENCE = "bass-d0.1"
"""The method that the others are compared with, where it was run."""


@dataclass(frozen=True)
class Comparison:
    """Our mean next to the printed one."""

    printed: Published
    difference: float
    """Ours minus printed; nan when the settings differ."""
    within: bool | None
    """Whether the difference is at most the tolerance; None when the settings differ."""


def is_ours(row: Row) -> bool:
    """Whether the method is not in the paper: shown next to its methods, never counted among them."""
    try:
        return not getattr(policy_class(row.policy), "in_paper", False)
    except ValueError:  # a policy that is no longer installed
        return False


def mark(row: Row) -> Mark:
    """How a method's line is highlighted in the tables."""
    return "reference" if row.policy == "bass" else "apart" if is_ours(row) else ""


def reference_row(rows: Sequence[Row]) -> Row | None:
    """The BASS that the others are compared with: δ = 0.1 where it was run, else the first."""
    variants = [row for row in rows if row.policy == "bass"]
    return next((row for row in variants if row.method == REFERENCE), variants[0] if variants else None)


def paired_comparisons(table: pa.Table, rows: Sequence[Row]) -> list[Paired]:
    """BASS (see `reference_row`) against all policies but ours, each at its best α, on the same seeds."""
    return paired_with(
        table,
        rows,
        reference_row,
        lambda reference, row: row.policy != reference.policy and not is_ours(row),
    )


def comparable_environments(table: pa.Table, rows: Sequence[Row]) -> dict[str, bool]:
    """For each environment with printed figures: whether ours were made in the same setting."""
    return {
        environment: is_comparable(table, environment)
        for environment in unique(row.environment for row in rows)
        if environment in published.SETTINGS
    }


def is_comparable(table: pa.Table, environment: str) -> bool:
    """Whether the runs of an environment were made in the setting of the printed figures.

    Real data is never comparable: we cannot know whether a user's file is the authors'.
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


def compare_regret(row: Row, *, same: bool) -> Comparison | None:
    """Final regret next to the printed one, or None. `same`: whether the settings agree."""
    printed = published.FINAL_REGRET.get(row.environment, {}).get(row.method)
    return None if printed is None else _compare(row.regret.mean, printed, same, 0.0)


def compare_f1(row: Row, *, same: bool) -> Comparison | None:
    """F1 score next to the printed one, or None. `same`: whether the settings agree."""
    printed = published.F1.get(row.environment, {}).get(row.method)
    return (
        None
        if printed is None or row.f1 is None
        else _compare(row.f1.mean, printed, same, published.F1_DIGIT)
    )


Compare = Callable[[Row], Comparison | None]


def regret_columns(compare: Compare) -> tuple[Column, ...]:
    """The columns that compare our final regrets with the printed ones."""
    return _columns(compare, "{:,.1f}", "{:+,.0f}", "within its std")


def f1_columns(compare: Compare) -> tuple[Column, ...]:
    """The columns that compare our F1 scores with the printed ones."""
    return _columns(compare, "{:.1f}", "{:+.2f}", "within tolerance")


def _columns(compare: Compare, form: str, signed: str, verdict: str) -> tuple[Column, ...]:
    def printed(row: Row) -> str:
        comparison = compare(row)
        if comparison is None:
            return "not in the paper" if is_ours(row) else "–"
        return f"{form.format(comparison.printed.mean)} ± {form.format(comparison.printed.std)}"

    def difference(row: Row) -> str:
        comparison = compare(row)
        if comparison is None or comparison.within is None:
            return "–"
        return number(signed, comparison.difference)

    def within(row: Row) -> str:
        comparison = compare(row)
        if comparison is None or comparison.within is None:
            return "–"
        return "yes" if comparison.within else "no"

    return Column("published", printed), Column("difference", difference), Column(verdict, within)


def _compare(ours: float, printed: Published, same: bool, least: float) -> Comparison:
    if not same:
        return Comparison(printed, math.nan, None)
    difference = ours - printed.mean
    return Comparison(printed, difference, abs(difference) <= max(printed.std, least) + 1e-12)


# Sentences

REASONS: dict[str, str] = {
    "independent": "Its only parameter is α, and the paper gives the range of α but not the value it chose.",
    "oracle": "It pools the true clusters, so only α and the arms, which the paper leaves open, can differ.",
    "club": "The paper gives neither the α it chose nor how it starts the graph (here: complete).",
    "sclub": (
        "The paper does not give the α it chose, and what a new or merged cluster remembers within a stage "
        "is left open by its source (docs/algorithms.md)."
    ),
    "cmlb": (
        "It forms its clusters once, early, from few samples of each agent, so the outcome depends on γ "
        "relative to the noise. The paper gives neither the length of that exploration nor what happens to "
        "agents without a close neighbour, and both matter (docs/algorithms.md)."
    ),
    "dynucb": (
        "An agent in a wrong cluster can stay there, so its regret has heavy tails: compare medians rather "
        "than means. The paper does not describe how it starts or when it moves an agent."
    ),
    "bass": (
        "This method should agree with the paper: what the paper leaves open (arms, ridge, scale of the "
        "ellipsoids) is settled in docs/algorithms.md, and no baseline's tuning is involved."
    ),
}
"""Why a method's final regret may differ from the printed one, by policy."""


def regret_remark(row: Row, comparison: Comparison | None) -> str | None:
    """Sentences on a final regret that is more than the printed std away from the printed mean, else None."""
    ours = row.regret
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


def f1_remark(row: Row, comparison: Comparison | None) -> str | None:
    """Sentences on an F1 score that differs from the printed one by more than its tolerance, else None."""
    ours = row.f1
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


_CHANCE = "Our 95% interval contains the printed mean: with {runs} runs, chance alone can explain this."


def _direction(comparison: Comparison, form: str) -> str:
    size = form.format(abs(comparison.difference))
    return f"{size} {'lower' if comparison.difference < 0 else 'higher'}"


def _other_alpha(by_alpha: Curve, printed: Published, tolerance: float, form: str) -> str:
    """Whether another α of the grid would give the printed value."""
    if len(by_alpha.x) < 2:
        return ""
    nearest = int(np.argmin(np.abs(by_alpha.mean - printed.mean)))
    value = form.format(by_alpha.mean[nearest])
    text = f" Of our values of α, {by_alpha.x[nearest]:g} comes closest to the printed mean, with {value}"
    if abs(by_alpha.mean[nearest] - printed.mean) <= tolerance:
        return f"{text}: another α is enough to explain the difference."
    return f"{text}: α alone does not explain the difference."
