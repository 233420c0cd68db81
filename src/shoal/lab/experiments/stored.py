"""The results of a grid as one object: its runs, its spec, and a row for each method at its best α."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoal.core.frames import Library, as_frame
from shoal.core.parquet import pa
from shoal.lab.experiments import summaries
from shoal.lab.experiments.results import PROVENANCE, SPEC, load_grid, load_runs, stored_cells
from shoal.lab.experiments.spec import ExperimentSpec, MethodSpec, cells, read_spec
from shoal.lab.experiments.summaries import Names, SummaryRow, unique
from shoal.reporting.latex import latex_table
from shoal.reporting.sections import Table
from shoal.reporting.words import EMPTY, plus_minus


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
    """Cells with all their runs."""
    cells_total: int
    names: Names
    rows: list[SummaryRow]
    trusted: Sequence[Mapping[str, Any]] = ()
    """Changes of the code that were declared to alter none of these results; see `results.StoredCell`."""

    def frame(self, library: Library = "pyarrow") -> Any:
        """The runs as a data frame of pyarrow, pandas or polars, one row each; it must be installed."""
        return as_frame(self.table, library)

    @property
    def environments(self) -> list[str]:
        """Environments with results, in the spec's order."""
        return unique(row.environment for row in self.rows)

    def title(self, environment: str) -> str:
        """Title of an environment."""
        return next((row.title for row in self.rows if row.environment == environment), environment)

    def latex(
        self,
        value: Literal["regret", "f1"] = "regret",
        *,
        environments: Iterable[str] | None = None,
        methods: Iterable[str] | None = None,
        caption: str | None = None,
        label: str = "",
    ) -> str:
        r"""Format a table of methods by environments, mean ± standard deviation, as LaTeX (booktabs).

        Parameters
        ----------
        value : "regret" or "f1"
            Final regret, or final F1 score.
        environments, methods : iterable of str, optional
            Ids in the grid; by default all, in its order.
        caption : str, optional
            By default it says what the numbers are.
        label : str
            The table's name for `\ref`.

        Examples
        --------
        >>> print(load_results("results/quick").latex(label="tab:regret"))  # doctest: +SKIP
        """
        keys = self._known("environments", environments, self.environments)
        wanted = self._known("methods", methods, unique(row.method for row in self.rows))
        rows = [row for key in keys for row in self.of(key) if row.method in wanted]
        said = {"regret": "Final regret", "f1": "F1 score of the graph"}
        if value not in said:
            raise ValueError(f'value must be "regret" or "f1", got {value!r}')
        if caption is None:
            caption = (
                f"{said[value]} after {self.spec.horizon:,} rounds, mean ± standard deviation of "
                f"{self.spec.runs} runs, each method at its best α."
            )
        return latex_table(methods_by_environments(rows, value), caption=caption, label=label)

    def _known(self, argument: str, chosen: Iterable[str] | None, known: Sequence[str]) -> list[str]:
        wanted = list(known) if chosen is None else [chosen] if isinstance(chosen, str) else list(chosen)
        for name in wanted:
            if name not in known:
                raise ValueError(f"{argument} must be among {', '.join(known)}, got {name!r}")
        return wanted

    def of(self, environment: str) -> list[SummaryRow]:
        """The rows of an environment."""
        return [row for row in self.rows if row.environment == environment]


def methods_by_environments(
    rows: Sequence[SummaryRow], value: Literal["regret", "f1"], caption: str = ""
) -> Table:
    """A line per method, a column per environment, mean ± standard deviation; the best is in bold."""
    form = "{:,.1f}" if value == "regret" else "{:.2f}"
    keys, methods = unique(row.environment for row in rows), unique(row.method for row in rows)
    found = {
        (row.method, row.environment): (row, summary)
        for row in rows
        if (summary := getattr(row, value)) is not None
    }
    strong = set()
    for place, key in enumerate(keys, start=1):
        fair = [
            (summary.mean, line)
            for line, method in enumerate(methods)
            if (method, key) in found
            for row, summary in [found[method, key]]
            if row.policy != "oracle"
        ]
        if fair:
            best = min(fair)[0] if value == "regret" else max(fair)[0]
            strong |= {(line, place) for mean, line in fair if form.format(mean) == form.format(best)}

    def cell(method: str, key: str) -> str:
        if (method, key) not in found:
            return EMPTY
        summary = found[method, key][1]
        return plus_minus(form, summary.mean, summary.std)

    has_oracle = any(row.policy == "oracle" for row in rows)
    fair_of = " of the methods that are not told the clusters" if has_oracle else ""
    titles, labels = ({row.environment: row.title for row in rows}, {row.method: row.label for row in rows})
    return Table(
        caption,
        ["method", *(titles[key] for key in keys)],
        [[labels[method], *(cell(method, key) for key in keys)] for method in methods],
        strong=frozenset(strong),
        key=f"Bold: the {'lowest' if value == 'regret' else 'highest'} mean{fair_of}." if strong else "",
    )


def _twins(spec: ExperimentSpec, method: MethodSpec) -> frozenset[str]:
    """Methods with a fixed α that differ from a searched one in nothing else."""
    if method.alphas and len(method.alphas) == 1:
        return frozenset()
    return frozenset(
        item.id
        for item in spec.methods
        if item.alphas
        and len(item.alphas) == 1
        and (item.policy, item.parameters, item.group) == (method.policy, method.parameters, method.group)
    )


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
    table, spec = load_runs(out), read_spec(out / SPEC)
    grid, stored = load_grid(out), stored_cells(out)
    in_grid = [stored[cell.key] for cell in (grid.cells if grid else []) if cell.key in stored]
    names = Names(
        environments={item.id: item.title or item.id for item in spec.environments},
        methods={item.id: item.label or item.id for item in spec.methods},
        fixed=frozenset(item.id for item in spec.methods if item.alphas and len(item.alphas) == 1),
        twins={item.id: _twins(spec, item) for item in spec.methods},
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
        cells_done=sum(len(cell.rows) >= spec.runs for cell in summaries.find_cells(table)),
        cells_total=len(cells(spec)),
        names=names,
        rows=summaries.main_rows(table, names),
        trusted=[entry for cell in in_grid for entry in cell.trusted],
    )
