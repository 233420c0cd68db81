"""The section on real data: which sets were available, and how well missing rewards are predicted."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from scipy import stats

from shoal.core.types import Vector
from shoal.lab.environments import datasets
from shoal.lab.environments.sources import DataUnavailable
from shoal.lab.experiments.measurements import Measurement, load_outcome
from shoal.lab.experiments.report import Column, table_of
from shoal.lab.experiments.spec import ExperimentSpec
from shoal.lab.experiments.stored import Results
from shoal.lab.experiments.summaries import Summary, SummaryRow, bootstrap_draws
from shoal.lab.paper import published
from shoal.reporting.sections import Heading, Part, Section, Text
from shoal.reporting.words import EMPTY, interval, number, plus_minus

REAL_DATA = {
    "movielens": ("MovieLens", "“shoal data fetch” downloads the ratings; then run the same command again."),
    "letor": (
        "Yahoo! learning to rank",
        "Yahoo! gives this dataset (C14) only to those who sign its agreement, so it cannot be fetched for "
        "you: sign it, download the data, and pass the file as “path” in the environment's parameters in a "
        "spec. Any other LETOR or SVMlight file works too.",
    ),
}
"""Name of each data set of the paper, and how to get it, by kind of environment."""

READINGS_NOTE = (
    f"{published.STATISTICS['median']} So the median of our runs comes first, then their mean and standard "
    "deviation, at the α with the lowest mean of the published five. ρ compares the order of the 11 methods "
    "with the printed order; its 95% interval is by bootstrap over runs. “As the authors read it” pairs each "
    "movie's ratings with the genres of the next movie, as their package does (docs/real-data.md). The data "
    "are not the paper's: levels may differ."
)

FillErrors = dict[str, dict[str, float]]
"""Kind of data set → fill → root mean squared error on held-out rewards."""

NAMES = {"movielens": "MovieLens", "letor": "Learning to rank"}
FILL_NOTE = (
    "Root mean squared error on a fifth of the observed rewards, held out of the fit (one split): the means "
    "of agents and arms alone; the paper's settings (20 epochs, 100 factors, rate 0.001, regularisation "
    "0.005, rounded); the same unrounded; and the tuned ones (rate 0.01, regularisation 0.05, not rounded). "
    "A fill that does worse than the means adds noise, so results are shown for both."
)


def measurements(spec: ExperimentSpec) -> list[Measurement]:
    """Held-out errors of the fills on each of the spec's data sets, as cells of its run."""
    found = {}
    for environment in spec.environments:
        if environment.kind in datasets.KINDS and environment.kind not in found:
            path: Any = environment.parameters.get("path")
            settings = {"kind": environment.kind, "path": path}
            found[environment.kind] = Measurement(
                f"fills/{environment.kind}", settings, partial(_fill_errors, path, environment.kind)
            )
    return list(found.values())


def fill_errors(found: Results) -> FillErrors:
    """The held-out errors of the fills that a run measured."""
    kinds = dict.fromkeys(item.kind for item in found.spec.environments if item.kind in datasets.KINDS)
    kept = {kind: load_outcome(found.directory, f"fills/{kind}", dict[str, float]) for kind in kinds}
    return {kind: entry.outcome for kind, entry in kept.items() if entry is not None}


def real_data_section(found: Results, rows: Mapping[tuple[str, str], SummaryRow]) -> Section:
    """Which data sets have results, and which were left out; no parts in an experiment without any.

    `rows` are those as published, by environment and method, where their sizes are the paper's.
    """
    parts: list[Part] = []
    if not any(item.kind in datasets.KINDS for item in found.spec.environments):
        return Section("real-data", "Real data", parts)
    for kind, (name, how) in REAL_DATA.items():
        planned = [item.id for item in found.spec.environments if item.kind == kind]
        skipped = [key for key in planned if key in found.skipped]
        if any(key in found.environments for key in planned):
            parts.append(Text("in the tables and figures above.", lead=name))
        elif skipped:
            reason = found.skipped[skipped.pop(0)]
            parts.append(Text(f"left out: {reason.rstrip('.')}. {how}", lead=name))
        elif planned:
            parts.append(Text(f"planned, but no cell of it is finished. {how}", lead=name))
        else:
            why = "not part of this experiment; “shoal reproduce paper” includes it"
            parts.append(Text(f"{why}. {how}", lead=name))
        for key in skipped:
            parts.append(Text(f"left out: {found.skipped[key].rstrip('.')}.", lead=key))
    return Section(
        "real-data", "Real data", [*parts, *reading_parts(found, rows), *fill_parts(fill_errors(found))]
    )


def reading_parts(found: Results, rows: Mapping[tuple[str, str], SummaryRow]) -> list[Part]:
    """Every reading of each data set beside the printed figures, with the correlation of their ranks."""
    parts: list[Part] = []
    for name in dict.fromkeys(setting.data for setting in published.SETTINGS.values() if setting.data):
        keys = [key for key in found.environments if key in published.SETTINGS]
        keys = [key for key in keys if published.SETTINGS[key].data == name]
        keys = [key for key in keys if all((key, method) in rows for method in published.FINAL_REGRET[key])]
        if not keys:
            continue
        printed = published.FINAL_REGRET[keys[0]]
        lines = [
            [
                rows[keys[0], method].label,
                plus_minus("{:,.1f}", *figure),
                *(
                    f"{own.median:,.0f} ({plus_minus('{:,.0f}', own.mean, own.std)})"
                    for own in (rows[key, method].regret for key in keys)
                ),
            ]
            for method, figure in printed.items()
        ]
        correlations = [[rows[key, method].regret for method in printed] for key in keys]
        values = [figure.value for figure in printed.values()]
        lines.append(["Spearman's ρ with print", EMPTY, *(_correlation(own, values) for own in correlations)])
        header = ["method", f"published, {name}", *map(found.title, keys)]
        columns = [Column(text, itemgetter(place)) for place, text in enumerate(header)]
        parts.append(table_of(f"{name}: median (mean ± std) of each reading", columns, lines))
    return [Heading("Both readings beside the printed figures"), Text(READINGS_NOTE), *parts] if parts else []


def _correlation(own: Sequence[Summary], printed: Sequence[float]) -> str:
    """Spearman's ρ of the medians with print and its 95% interval, and that of the means."""
    runs = np.array([summary.values for summary in own])
    drawn = np.median(
        runs[:, bootstrap_draws(runs.shape[1], 2_000)], axis=2
    ).T  # the same runs of every method
    low, high = np.quantile([_spearman(medians, printed) for medians in drawn], [0.025, 0.975])
    means = _spearman(runs.mean(axis=1), printed)
    medians = _spearman(np.median(runs, axis=1), printed)
    return f"{number('{:.2f}', medians)} ({interval('{:.2f}', low, high)}), means {number('{:.2f}', means)}"


def _spearman(own: Vector, printed: Sequence[float]) -> float:
    return float(np.corrcoef(stats.rankdata(own), stats.rankdata(printed))[0, 1])


def fill_parts(errors: FillErrors) -> list[Part]:
    """The errors of the fills as a table; empty if there are none."""
    if not errors:
        return []
    ways = list(next(iter(errors.values())))

    def column(way: str) -> Column:
        return Column(way, lambda entry: f"{entry[1].get(way, float('nan')):.3f}")

    columns = [Column("data set", lambda entry: NAMES.get(entry[0], entry[0])), *map(column, ways)]
    table = table_of("Held-out error of each fill", columns, list(errors.items()))
    return [Heading("Filling missing rewards"), Text(FILL_NOTE), table]


def _fill_errors(path: Any, kind: str) -> Mapping[str, float]:
    try:
        return datasets.errors(path, kind=kind)
    except OSError as error:
        raise DataUnavailable(str(error)) from error
