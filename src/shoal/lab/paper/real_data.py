"""The section on real data: which sets were available, and how well missing rewards are predicted."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from shoal.lab.environments import datasets
from shoal.lab.environments.sources import DataUnavailable
from shoal.lab.experiments.measurements import Measurement, load_outcome
from shoal.lab.experiments.report import Column, table_of
from shoal.lab.experiments.spec import ExperimentSpec
from shoal.lab.experiments.stored import Results
from shoal.reporting.sections import Heading, Part, Section, Text

REAL_DATA = {
    "movielens-authors": (
        "MovieLens",
        "“shoal data fetch” downloads the ratings; then run the same command again.",
    ),
    "yahoo-ltr-authors": (
        "Yahoo! learning to rank",
        "Yahoo! gives this dataset (C14) only to those who sign its agreement, so it cannot be fetched for "
        "you: sign it, download the data, and pass the file as “path” in the environment's parameters in a "
        "spec. Any other LETOR or SVMlight file works too.",
    ),
}
"""Name of each data set of the paper, and how to get it, by environment."""

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


def real_data_section(found: Results) -> Section:
    """Which data sets have results, and which were left out; no parts in an experiment without any."""
    parts: list[Part] = []
    if not any(item.kind in datasets.KINDS for item in found.spec.environments):
        return Section("real-data", "Real data", parts)
    for environment, (name, how) in REAL_DATA.items():
        if environment in found.environments:
            parts.append(Text("in the tables and figures above.", lead=name))
            continue
        planned = any(item.id == environment for item in found.spec.environments)
        reason = found.skipped.get(environment)
        if reason is not None:
            why = f"left out: {reason.rstrip('.')}"
        elif planned:
            why = "planned, but no cell of it is finished"
        else:
            why = "not part of this experiment; “shoal reproduce paper” includes it"
        parts.append(Text(f"{why}. {how}", lead=name))
    for environment, reason in found.skipped.items():
        if environment not in REAL_DATA:
            parts.append(Text(f"left out: {reason.rstrip('.')}.", lead=environment))
    return Section("real-data", "Real data", [*parts, *fill_parts(fill_errors(found))])


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
