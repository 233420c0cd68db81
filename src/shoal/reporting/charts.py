"""Lines over rounds or parameters: as a figure for print, and as data for the page's interactive charts.

Uses matplotlib's objects, never pyplot, so nothing depends on a display or on global state.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from shoal.core.atomic import write_whole
from shoal.core.styles import Style
from shoal.reporting.curves import Curve

DPI = 150
BLUE, ORANGE, RED, GREEN = "#1f77b4", "#e87000", "#d62728", "#1b8a5a"
PURPLE, GREY = "#6a4fb3", "#6b6b6b"


@dataclass(frozen=True)
class ChartLine:
    """A curve with the label and style of its method."""

    label: str
    style: Style
    curve: Curve
    key: str = ""
    """Hiding a line in one chart hides those with the same key in all of them."""


@dataclass(frozen=True)
class Axis:
    """The axes of a kind of chart; labels on the page may be shorter than in print."""

    xlabel: str
    ylabel: str
    page_xlabel: str
    page_ylabel: str
    reading: str
    """What precedes x above the list of values, e.g. "Round "."""
    switch: str = ""
    """Label of the switch to a logarithmic axis; empty if that would make no sense."""
    log: bool = False
    """Whether the axis starts out logarithmic."""
    limits: tuple[float, float] | None = None
    """Ends of the vertical axis; by default from 0 to the largest value."""
    digits: int = 0
    every_point: bool = False
    """Whether each point gets a marker."""


def line_figure(lines: Sequence[ChartLine], title: str, axis: Axis) -> Figure:
    """Means with their 95% intervals."""
    figure = blank(width=8.6, height=4.6)
    ax = figure.subplots()
    ax.set_title(literal(title), fontsize=11)
    draw_lines(ax, lines, every_point=axis.every_point)
    ax.set(xlabel=axis.xlabel, ylabel=axis.ylabel, yscale="log" if axis.log else "linear")
    if axis.log:
        positive = np.concatenate([line.curve.mean[line.curve.mean > 0.0] for line in lines])
        if len(positive):  # bands may reach below zero, which this axis cannot show
            ax.set_ylim(bottom=0.5 * float(positive.min()))
    elif axis.limits is not None:
        ax.set_ylim(*axis.limits)
    else:
        ax.set_ylim(bottom=0.0)
    thousands(ax, ("" if axis.every_point else "x") + ("" if axis.limits else "y"))
    legend(figure)
    return figure


def chart_data(lines: Sequence[ChartLine], title: str, axis: Axis) -> dict[str, Any]:
    """What the page's script draws: series aligned on the union of their x."""
    union = sorted({float(x) for line in lines for x in line.curve.x})
    return {
        "title": title,
        "xlabel": axis.page_xlabel,
        "ylabel": axis.page_ylabel,
        "reading": axis.reading,
        "switch": axis.switch,
        "log": axis.log,
        "limits": axis.limits,
        "digits": axis.digits,
        "every_point": axis.every_point,
        "x": union,
        "series": [
            {
                "method": line.key or line.label,
                "label": line.label,
                **line.style._asdict(),
                **{
                    part: _aligned(union, line.curve.x.tolist(), getattr(line.curve, part).tolist())
                    for part in ("mean", "low", "high")
                },
            }
            for line in lines
        ],
    }


def _aligned(union: Sequence[float], x: Sequence[float], values: Sequence[float]) -> list[float | None]:
    at = {place: float(f"{value:.5g}") for place, value in zip(x, values, strict=True)}
    return [at.get(place) for place in union]


def save(figure: Figure, directory: Path, name: str) -> Path:
    """Write a figure as PNG and PDF and return the path of the PNG. The same figure gives the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    undated = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
    for kind, metadata in undated.items():
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, dpi=DPI, metadata=metadata)
        write_whole(directory / f"{name}.{kind}", drawn.getvalue())
    return directory / f"{name}.png"


def literal(text: str) -> str:
    """A text that matplotlib shows verbatim: "$" starts no formula, a leading "_" hides no line."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def blank(*, width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_lines(ax: Axes, lines: Sequence[ChartLine], *, every_point: bool = False) -> None:
    """Draw curves with their intervals, on a grid."""
    for index, line in enumerate(lines):
        curve, style = line.curve, line.style
        spacing = max(len(curve.x) // 8, 1)
        ax.fill_between(curve.x, curve.low, curve.high, color=style.color, alpha=0.12, linewidth=0)
        ax.plot(
            curve.x, curve.mean, color=style.color, linewidth=style.width, label=literal(line.label),
            linestyle=(0, style.dash) if style.dash else "-", marker=style.marker,
            # Markers of different methods start at different points, so that they do not overlap.
            markevery=None if every_point else (index * spacing // max(len(lines), 1), spacing),
            markersize=9 if style.marker == "*" else 5,
        )  # fmt: skip
    ax.grid(alpha=0.25)


def thousands(ax: Axes, which: str) -> None:
    """Separate thousands on the named axes: "x", "y" or both."""
    formatter = FuncFormatter(lambda value, _: f"{value:,.0f}" if value == round(value) else f"{value:g}")
    for axis in (ax.xaxis if name == "x" else ax.yaxis for name in which):
        axis.set_major_formatter(formatter)
    if "y" in which and ax.get_yscale() == "log":
        low, high = ax.get_ylim()
        few = high / low < 30
        ax.yaxis.set_minor_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}" if few and str(value)[0] in "235" else "")
        )


def legend(figure: Figure) -> None:
    """A legend beside the only panel."""
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, handlelength=3.2)


def legend_below(figure: Figure, axes: Iterable[Axes]) -> None:
    """One legend for several panels, each label once."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
