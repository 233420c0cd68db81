"""The results of a grid as one object: its runs, its spec, and a row for each method at its best α."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.frames import Library, as_frame
from shoal.core.parquet import pa
from shoal.lab.experiments import summaries
from shoal.lab.experiments.results import PROVENANCE, SPEC, load_runs
from shoal.lab.experiments.spec import ExperimentSpec, cells, load_spec
from shoal.lab.experiments.summaries import Names, SummaryRow, unique


@dataclass(frozen=True)
class Results:
    """The stored runs of a grid, and each method at its best α.

    Examples
    --------
    >>> import shoal
    >>> results = shoal.load_results("results/quick")  # doctest: +SKIP
    >>> for row in results.of("synthetic-m3-w1"):  # doctest: +SKIP
    ...     print(row.label, row.alpha, row.regret.mean)
    """

    directory: Path
    spec: ExperimentSpec
    table: pa.Table
    """One row per run, see `shoal.lab.experiments.results`."""
    provenance: Mapping[str, Any]
    skipped: Mapping[str, str]
    """Environments that were skipped, with the reason."""
    cells_done: int
    cells_total: int
    names: Names
    rows: list[SummaryRow]

    def frame(self, library: Library = "pyarrow") -> Any:
        """The runs as a data frame of pyarrow, pandas or polars, a row for each; it must be installed."""
        return as_frame(self.table, library)

    @property
    def environments(self) -> list[str]:
        """Environments with results, in the spec's order."""
        return unique(row.environment for row in self.rows)

    def title(self, environment: str) -> str:
        """Title of an environment."""
        return next((row.title for row in self.rows if row.environment == environment), environment)

    def of(self, environment: str) -> list[SummaryRow]:
        """The rows of an environment."""
        return [row for row in self.rows if row.environment == environment]


def load_results(directory: str | Path) -> Results:
    """Read the results that `shoal run` or `shoal reproduce` wrote, and summarise them.

    Parameters
    ----------
    directory : path
        The results directory, e.g. `results/quick`.

    Returns
    -------
    Results

    Raises
    ------
    ResultsError, SpecError
        If there are no results, or they or their spec cannot be read.

    Examples
    --------
    >>> import shoal
    >>> results = shoal.load_results("results/quick")  # doctest: +SKIP
    >>> [(row.label, row.alpha, row.regret.mean) for row in results.rows]  # doctest: +SKIP
    """
    out = Path(directory)
    table, spec = load_runs(out), load_spec(out / SPEC)
    names = Names(
        environments={item.id: item.title or item.id for item in spec.environments},
        methods={item.id: item.label or item.id for item in spec.methods},
        fixed=frozenset(item.id for item in spec.methods if item.alphas and len(item.alphas) == 1),
    )
    try:
        provenance = json.loads((out / PROVENANCE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        provenance = {}
    return Results(
        directory=out,
        spec=spec,
        table=table,
        provenance=provenance,
        skipped={entry["environment"]: entry["reason"] for entry in provenance.get("skipped", [])},
        cells_done=len(summaries.find_cells(table)),
        cells_total=len(cells(spec)),
        names=names,
        rows=summaries.main_rows(table, names),
    )
