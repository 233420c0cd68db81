"""Figures and tables for a user's own paper: their numbers, widths, fonts and text."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.text import Text
from tests.lab.experiments.test_report import GRID
from tests.layout import check_figure, check_layout

import shoal
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import parse_spec
from shoal.lab.experiments.stored import Results
from shoal.lab.simulation import Trace
from shoal.reporting.charts import Axis, ChartLine, is_logarithmic
from shoal.reporting.curves import Curve
from shoal.reporting.latex import latex_text

PLOTS: list[Callable[..., Axes]] = [shoal.plot_regret, shoal.plot_f1, shoal.plot_alpha]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("results")
    grid = GRID.replace('label = "Told"', 'label = "Told γ=Δ/4_50%"')
    run_experiment(parse_spec(grid.encode(), source="grid.toml"), out, jobs=1)
    return shoal.load_results(out)


@pytest.fixture(scope="module")
def traces() -> dict[str, dict[float, list[Trace]]]:
    world = shoal.SyntheticClusters(n_agents=6, dim=3, n_clusters=2, angle=0.3, seed=0)
    return {
        "BASS": {
            alpha: [
                shoal.simulate(shoal.BASS(6, 3, alpha=alpha), world, horizon=60, seed=seed, points=20)
                for seed in range(3)
            ]
            for alpha in (0.1, 0.5)
        }
    }


def lines(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
        for line in ax.lines
    }


def by_hand(results: Results, environment: str, method: str) -> dict[float, list[dict[str, Any]]]:
    """The rows of a method's runs, by α."""
    found: dict[float, list[dict[str, Any]]] = {}
    for row in results.table.to_pylist():
        if (row["environment"], row["method"]) == (environment, method):
            found.setdefault(row["alpha"], []).append(row)
    return found


def test_stored_results_are_drawn_at_each_method_s_best_alpha(results: Results) -> None:
    for environment, method, label in (("near", "alone", "Alone"), ("far", "told", "Told γ=Δ/4_50%")):
        runs = by_hand(results, environment, method)
        means = {alpha: np.mean([row["final_regret"] for row in rows]) for alpha, rows in runs.items()}
        best = min(means, key=lambda alpha: means[alpha])
        for plot, column in ((shoal.plot_regret, "curve_regret"), (shoal.plot_f1, "curve_f1")):
            x, y = lines(plot(results, environment=environment))[label]
            assert x == runs[best][0]["curve_rounds"]
            assert y == pytest.approx(np.mean([row[column] for row in runs[best]], axis=0))
        x, y = lines(shoal.plot_alpha(results, environment=environment))[label]
        assert x == sorted(means)
        assert y == pytest.approx([means[alpha] for alpha in sorted(means)])


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("page", 6.75), (5.0, 5.0)])
def test_a_figure_for_print(
    plot: Callable[..., Axes], width: Any, inches: float, results: Results, tmp_path: Path
) -> None:
    ax = plot(results, width=width)
    figure: Any = ax.figure
    assert figure.get_figwidth() == inches
    check_figure(figure, tmp_path)
    assert {panel.get_title() for panel in figure.axes} == {"Near", "far"}
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert {text.get_fontsize() for text in shown} == {8.0}
    figure.savefig(tmp_path / "figure.pdf")
    assert fonts(tmp_path / "figure.pdf") == {"CIDFontType2"}


def test_five_labels_are_on_one_line_of_a_page(
    traces: dict[str, dict[float, list[Trace]]], tmp_path: Path
) -> None:
    """Though five columns of the longest would not fit."""

    def lines_of_legend(*labels: str, width: Any = "page") -> int:
        ax = shoal.plot_regret(dict.fromkeys(labels, traces["BASS"][0.1]), width=width)
        figure: Any = ax.figure
        check_figure(figure, tmp_path)
        figure.canvas.draw()
        return len({round(text.get_window_extent().y0) for text in figure.legends[0].get_texts()})

    five = "BASS", "ClusterMixture", "SCLUB", "CMLB γ=Δ/4", "Independent"
    assert lines_of_legend(*five) == 1
    assert lines_of_legend(*five, width="column") > 1
    assert lines_of_legend(*five, "ClusterMixture, drift", "Independent, binary") > 1


def fonts(path: Path) -> set[str]:
    """Kinds of the fonts in a PDF file; type 42 is embedded TrueType."""
    found = re.findall(rb"/Subtype /(Type3|Type1|TrueType|CIDFontType\d)", path.read_bytes())
    return {kind.decode() for kind in found}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_pgf_and_tables_go_into_a_document(results: Results, tmp_path: Path) -> None:
    ax = shoal.plot_alpha(results, width="column")
    figure: Any = ax.figure
    before = [text.get_text() for text in figure.findobj(Text)]
    figure.savefig(tmp_path / "alpha.pgf")
    assert [text.get_text() for text in figure.findobj(Text)] == before
    (tmp_path / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs,pgf}\begin{document}\input{alpha.pgf}"
        + results.latex(label="tab:regret")
        + results.latex("f1")
        + r"Table~\ref{tab:regret}\end{document}"
    )
    for _ in range(2):  # the second time references are known
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "undefined" not in done.stdout


def test_traces_are_drawn_alike(traces: dict[str, dict[float, list[Trace]]]) -> None:
    runs = traces["BASS"][0.1]
    x, y = lines(shoal.plot_f1({"BASS": runs}))["BASS"]
    assert x == runs[0].recorded.tolist()
    assert y == pytest.approx(np.mean([trace.f1 for trace in runs], axis=0))
    x, y = lines(shoal.plot_alpha(traces))["BASS"]
    assert x == [0.1, 0.5]
    assert y == pytest.approx(
        [np.mean([trace.final_regret for trace in traces["BASS"][alpha]]) for alpha in x]
    )
    check_layout(shoal.plot_alpha(traces, width="column").figure)  # type: ignore[arg-type]
    single = shoal.plot_f1(runs[0])  # a trace alone
    assert lines(single)["run 0"][1] == runs[0].f1.tolist()


def test_what_cannot_be_drawn_is_said(results: Results, traces: dict[str, dict[float, list[Trace]]]) -> None:
    runs = traces["BASS"][0.1]
    figure: Any = shoal.plot_regret(runs).figure
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: shoal.plot_regret(results, environment="absent"), "environment must be one of near, far"),
        (lambda: shoal.plot_regret(results, labels="a"), "labels must be left out with results"),
        (lambda: shoal.plot_regret(runs, environment="near"), "environment must be left out with traces"),
        (lambda: shoal.plot_regret(runs, methods=["CLUB"]), "methods must be among run 0.*got 'CLUB'"),
        (lambda: shoal.plot_regret(results, methods=["CLUB"]), "no regret over rounds of CLUB"),
        (lambda: shoal.plot_regret(results, ax=figure.axes[0]), "ax has room for one"),
        (lambda: shoal.plot_regret(runs, width="wide"), "width must be 'column' or 'page' or a number"),  # type: ignore[arg-type]
        (lambda: shoal.plot_regret(runs, width=0.2), "width must be between 1 and 40 inches"),
        (lambda: shoal.plot_regret(runs, width="page", ax=figure.axes[0]), "width must be left out with ax"),
        (lambda: shoal.plot_alpha({"BASS": runs}), "traces must be given by label and α"),  # type: ignore[dict-item]
        (lambda: results.latex("cost"), "value must be"),  # type: ignore[arg-type]
        (lambda: results.latex(methods=["bass"]), "methods must be among alone, told, got 'bass'"),
        (lambda: results.latex(environments="here"), "environments must be among near, far, got 'here'"),
    ]
    for attempt, message in attempts:
        with pytest.raises(ValueError, match=message):
            attempt()


def test_a_table_for_print(results: Results) -> None:
    text = results.latex(label="tab:regret")
    assert r"\toprule" in text
    assert r"\label{tab:regret}" in text
    assert r"Told $\gamma$=$\Delta$/4\_50\% & " in text
    alone, told = (
        {key: next(row for row in results.of(key) if row.method == name) for key in ("near", "far")}
        for name in ("alone", "told")
    )
    for row, bold in ((alone["near"], True), (told["near"], False)):  # Told is told: it is not compared
        shown = f"{row.regret.mean:,.1f} $\\pm$ {row.regret.std:,.1f}"
        assert (rf"\textbf{{{shown}}}" in text) is bold
        assert shown in text
    assert "Near & far" in text
    only = results.latex("f1", environments=["far"], methods=["told"], caption="Mine.")
    assert r"\caption{Mine.}" in only
    assert "Told" in only
    assert "Alone" not in only
    assert latex_text(r"a\b{c}~^&#$ “x”") == (
        r"a\textbackslash{}b\{c\}\textasciitilde{}\textasciicircum{}\&\#\$ ``x''"
    )


def test_an_axis_fits_its_curves() -> None:
    def line(end: float) -> ChartLine:
        x = np.linspace(1.0, 100.0, 50)
        mean = end * x / 100.0
        return ChartLine(f"{end}", shoal.BASS.line_style.variant(0), Curve(x, mean, mean, mean))

    axis = Axis("t", "regret", "t", "regret", reading="", switch="logarithmic axis")
    assert not is_logarithmic([line(100.0), line(4000.0)], axis)
    assert is_logarithmic([line(100.0), line(6000.0)], axis)  # the lower one could not be seen
    score = Axis("t", "score", "t", "score", reading="", limits=(0.0, 1.0))
    assert not is_logarithmic([line(0.01), line(1.0)], score)
