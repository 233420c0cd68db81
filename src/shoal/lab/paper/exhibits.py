"""The paper's tables and figures by number: what each of them plays, and how it is shown.

Those with a grid play exactly what the paper played: its methods, five values of α, 50 runs of 50,000 rounds.
Several use the same runs, which are played once.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from matplotlib.figure import Figure

from shoal.core.atomic import write_whole
from shoal.core.validation import suggestion
from shoal.lab.experiments.figures import ALPHA, F1, REGRET, Kind, draw_panels, result_lines
from shoal.lab.experiments.report import provenance_section, setting
from shoal.lab.experiments.spec import MAIN, ExperimentSpec, MethodSpec, SpecError, check_spec
from shoal.lab.experiments.stored import Results, load_results, methods_by_environments
from shoal.lab.paper import illustrations, published
from shoal.lab.paper.comparison import as_published, drawn, is_in_paper
from shoal.lab.paper.flowchart import flow_picture
from shoal.lab.paper.presets import PRESETS, load_preset
from shoal.lab.paper.report import AS_PUBLISHED_NOTE, PAPER, agreement_sentence, other_settings, reproduction
from shoal.reporting import charts, render
from shoal.reporting.latex import latex_picture, latex_table
from shoal.reporting.sections import Document, Part, Picture, Section, Table, Text
from shoal.reporting.words import EMPTY, plus_minus

M3 = ("synthetic-m3-w1", "synthetic-m3-w7")
M6 = ("synthetic-m6-w1", "synthetic-m6-w7")
GAUSSIAN = ("gaussian-s0.5", "gaussian-s1", "gaussian-s2")
REAL = ("movielens-authors", "yahoo-ltr-authors")

STORE = Path("results") / "published"
"""Where tables, figures and the runs behind them are stored by default, so that each run is played once."""

CURVES_NOTE = (
    "At most eight curves: both settings of BASS, and each other method at the better of its two settings. "
    "Mean over runs; bands are 95% intervals of the mean."
)


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper."""

    name: str
    title: str
    """What it shows."""
    environments: tuple[str, ...]
    """Ids of the preset `paper` that are played; empty if it needs no grid."""
    show: Callable[[Results | None], Sequence[Part]]

    @property
    def number(self) -> str:
        """As the paper has it: "Table 2"."""
        return f"{self.name[:-1].capitalize()} {self.name[-1]}"


def find_exhibit(name: str) -> Exhibit:
    """A table or figure by its name, such as "table2"."""
    if name not in EXHIBITS:
        raise SpecError(
            f"unknown preset, table or figure {name!r}; {suggestion(name, (*PRESETS, *EXHIBITS))}"
        )
    return EXHIBITS[name]


def exhibit_spec(exhibit: Exhibit, *, seed: int | None = None, runs: int | None = None) -> ExperimentSpec:
    """The grid of a table or figure: part of the preset `paper`, at the published values of α."""
    paper = load_preset("paper", seed=seed, runs=runs)
    methods = []
    for method in paper.methods:
        here = [
            key for key in exhibit.environments if method.environments is None or key in method.environments
        ]
        if here and _is_published(method):
            methods.append(msgspec.structs.replace(method, environments=tuple(here)))
    spec = msgspec.structs.replace(
        paper,
        name="published",
        title=f"{exhibit.number} of the paper: {exhibit.title}",
        alphas=published.ALPHAS,
        environments=tuple(item for item in paper.environments if item.id in exhibit.environments),
        methods=tuple(methods),
    )
    check_spec(spec)
    return spec


def write_exhibit(
    exhibit: Exhibit, out: Path, drawing: render.Drawing = lambda done, total, title: None
) -> Path:
    """Write a table or figure into `out` / its name: HTML, Markdown, LaTeX and PDF.

    Its runs are those of the grid that was run last in `out`: `run_experiment(exhibit_spec(exhibit), out)`.

    Returns
    -------
    Path
        `index.html`. Beside it are `tables.md`, and a `.tex` and a `.pdf` file for each table and figure.
    """
    results = load_results(out) if exhibit.environments else None
    directory = out / exhibit.name
    page = exhibit_document(exhibit, results)
    written = render.write(page, directory, drawing)
    printed = [part for part in page.sections[0].parts if isinstance(part, Table | Picture)]
    for place, part in enumerate(printed):
        name = exhibit.name + ("" if len(printed) == 1 else "abcdef"[place])
        label = f"{'tab' if isinstance(part, Table) else 'fig'}:{name}"
        if isinstance(part, Table):
            text, figure = latex_table(part, label=label), charts.table_figure(part)
        else:
            text, figure = latex_picture(f"{name}.pdf", part.caption, label=label), part.draw()
        write_whole(directory / f"{name}.tex", text.encode())
        charts.save(figure, directory, name)
    return written


def exhibit_document(exhibit: Exhibit, results: Results | None) -> Document:
    """The page of a table or figure."""
    title = f"{exhibit.number}: {exhibit.title}"
    parts = list(exhibit.show(results))
    subtitle, remarks, warned, sections = f"Paper: {PAPER}.", [], [], []
    if results is not None:
        own = reproduction(results)
        subtitle = f"{setting(results.spec)}. {subtitle}"
        remarks, warned = list(filter(None, [agreement_sentence(own)])), other_settings(own)
        parts.append(Text(AS_PUBLISHED_NOTE))
        sections = [provenance_section(results)]
    return Document(
        name=exhibit.name,
        title=title,
        subtitle=subtitle,
        lead=f"{exhibit.number} of the paper, {'played again' if results else 'drawn again'}.",
        opening=None,
        remarks=remarks,
        notices=warned,
        sections=[Section(exhibit.name, exhibit.number, parts), *sections],
    )


def _is_published(method: MethodSpec) -> bool:
    return method.group == MAIN and method.id not in published.VARIANTS and is_in_paper(method)


# How they are shown


def _beside(value: Literal["regret", "f1"], caption: str, results: Results | None) -> list[Part]:
    """A table of our results as published, with the printed figures beside each column."""
    assert results is not None
    rows = list(as_published(results.table, results.names).values())
    own = methods_by_environments(rows, value, caption)
    figures = published.FINAL_REGRET if value == "regret" else published.F1
    keys = list(dict.fromkeys(row.environment for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    form = "{:,.1f}" if value == "regret" else "{:.1f}"

    def printed(key: str, method: str) -> str:
        found = figures.get(key, {}).get(method)
        return EMPTY if found is None else plus_minus(form, *found)

    lines = [
        [
            line[0],
            *(text for place, key in enumerate(keys) for text in (line[place + 1], printed(key, method))),
        ]
        for method, line in zip(methods, own.lines, strict=True)
    ]
    header = [own.header[0], *(text for title in own.header[1:] for text in (title, "in print"))]
    strong = frozenset((line, 2 * place - 1) for line, place in own.strong)
    return [dataclasses.replace(own, header=header, lines=lines, strong=strong)]


def _curves(kinds: Sequence[Kind], results: Results | None) -> list[Part]:
    """A figure of each kind, with a panel for each environment."""
    assert results is not None
    rows = drawn(as_published(results.table, results.names).values())
    parts: list[Part] = []
    for kind in kinds:
        panels = {
            results.title(key): result_lines(kind, results, [row for row in rows if row.environment == key])
            for key in results.environments
        }

        def draw(kind: Kind = kind, panels: Any = panels) -> Figure:
            figure = draw_panels(kind.axis, panels, "page")[0].get_figure(root=True)
            assert figure is not None
            return figure

        title = f"{kind.heading[0].upper()}{kind.heading[1:]}"
        parts.append(Picture(title, f"{title}. {CURVES_NOTE}", f"published-{kind.name}", draw))
    return parts


def _illustrated(name: str, _: Results | None) -> list[Part]:
    return [illustrations.illustration(name)]


EXHIBITS = {
    exhibit.name: exhibit
    for exhibit in (
        Exhibit(
            "figure1", "what sharing does to two agents' ellipsoids", (), partial(_illustrated, "sharing")
        ),
        Exhibit(
            "figure2", "two agents' ellipsoids as they separate", (), partial(_illustrated, "separating")
        ),
        Exhibit(
            "table2",
            "final regret, M=3",
            M3,
            partial(_beside, "regret", "Final regret as published, mean ± standard deviation."),
        ),
        Exhibit("figure3", "regret over rounds, M=3", M3, partial(_curves, [REGRET])),
        Exhibit("figure4", "final regret against α, M=3", M3, partial(_curves, [ALPHA])),
        Exhibit(
            "table3",
            "F1 score of the graph, M=3",
            M3,
            partial(_beside, "f1", "F1 score as published, mean ± standard deviation."),
        ),
        Exhibit(
            "table4",
            "final regret, real data",
            REAL,
            partial(_beside, "regret", "Final regret as published, mean ± standard deviation."),
        ),
        Exhibit("figure5", "the algorithm as a flow chart", (), lambda _: [flow_picture()]),
        Exhibit(
            "figure6",
            "regret over rounds, and against α, M=3 and M=6",
            (*M3, *M6),
            partial(_curves, [REGRET, ALPHA]),
        ),
        Exhibit("figure7", "final regret against α, real data", REAL, partial(_curves, [ALPHA])),
        Exhibit(
            "figure8",
            "regret over rounds, Gaussian, three levels of noise",
            GAUSSIAN,
            partial(_curves, [REGRET]),
        ),
        Exhibit(
            "figure9",
            "F1 score over rounds, Gaussian, three levels of noise",
            GAUSSIAN,
            partial(_curves, [F1]),
        ),
    )
}
"""Every table and figure of the paper in its order, except Table 1, which has formulas."""
