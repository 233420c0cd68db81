"""The charts of an experiment, with a line for each method: readable, whole, the same bytes each time."""

import re
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.lab.test_plots import METHODS
from tests.layout import check_figure, written

from shoal.core.policies.registry import policy_class, policy_names
from shoal.core.styles import OTHERS
from shoal.lab.experiments.figures import KINDS
from shoal.lab.plots import method_styles
from shoal.reporting.charts import ChartLine, chart_data, line_figure, literal
from shoal.reporting.curves import Curve

AXES = {kind.name: kind.axis for kind in KINDS}


def lines(high: float = 20_000.0, points: int = 40) -> list[ChartLine]:
    """A line for each method of the tables, from 0 to between a fiftieth of `high` and `high`."""
    x = np.linspace(1.0, 50_000.0, points)
    styles = method_styles(METHODS)
    shown = []
    for index, (method, _) in enumerate(METHODS):
        mean = high * (0.02 + 0.98 * index / 12.0) * np.sqrt(x / 50_000.0)
        shown.append(
            ChartLine(f"{method} γ=Δ/4", styles[method], Curve(x, mean, mean * 0.9 - 0.01, mean * 1.1 + 0.01))
        )
    return shown


BUILDERS: dict[str, Callable[[], Figure]] = {
    "regret": lambda: line_figure(lines(), "M=3, Δ=0.20: regret over rounds", AXES["regret"]),
    "alpha": lambda: line_figure(lines(points=10), "M=3, Δ=0.20: final regret against α", AXES["alpha"]),
    "narrow alpha": lambda: line_figure(lines(points=2), "final regret against α", AXES["alpha"]),
    "f1": lambda: line_figure(lines(1.0), "M=3, Δ=0.20: F1 score over rounds", AXES["f1"]),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_figure_is_written_whole_and_readable(name: str, tmp_path: Path) -> None:
    check_figure(BUILDERS[name](), tmp_path)


def test_files_hold_no_dates_or_ids(tmp_path: Path) -> None:
    first = written(BUILDERS["alpha"](), tmp_path)
    time.sleep(1.1)  # dates in files count seconds
    assert written(BUILDERS["alpha"](), tmp_path) == first


def test_the_page_can_draw_every_marker() -> None:
    script = (resources.files("shoal.reporting") / "assets" / "report.js").read_text(encoding="utf-8")
    shapes = script[script.index("const shapes = {") : script.index("const open =")]
    drawn = set(re.findall(r'^    "?([^\s":]+)"?: \(c, x, y, r\)', shapes, flags=re.M))
    built_in = {policy_class(name).line_style.marker for name in policy_names()}  # type: ignore[attr-defined]
    assert built_in | {style.marker for style in OTHERS} <= drawn
    assert "|| shapes.o" in script  # another package's policy may have any


def test_series_are_aligned_on_all_x() -> None:
    styles = method_styles([("a", "bass"), ("b", "club")])
    one, two = (Curve(x, x, x - 1.0, x + 1.0) for x in (np.array([1.0, 2.0]), np.array([2.0, 3.0])))
    data = chart_data(
        [ChartLine("A", styles["a"], one, "a"), ChartLine("B", styles["b"], two)], "t", AXES["alpha"]
    )
    assert data["x"] == [1.0, 2.0, 3.0]
    assert [series["mean"] for series in data["series"]] == [[1.0, 2.0, None], [None, 2.0, 3.0]]
    assert [series["method"] for series in data["series"]] == ["a", "B"]
    assert data["series"][0]["marker"] == "*"


@pytest.mark.parametrize("text", ["$x$", r"\$5", "_x", "a$b"])
def test_labels_are_shown_as_they_are(text: str) -> None:
    figure = Figure()
    shown = figure.text(0.5, 0.5, literal(text))
    parsed, is_math = shown._preprocess_math(shown.get_text())  # type: ignore[attr-defined]
    assert (parsed.strip(), is_math) == (text, False)
