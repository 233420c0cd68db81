"""Lines over rounds or parameters: as a figure for print, and as data for the page's interactive charts.

Uses matplotlib's objects, never pyplot, so nothing depends on a display or on global state.
"""

import io
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter
from PIL import Image

from shoal.core.atomic import write_whole
from shoal.core.styles import Style
from shoal.reporting.curves import Curve
from shoal.reporting.latex import pgf_text
from shoal.reporting.sections import Table

DPI = 200
"""Of saved pictures: two pixels for each pixel of a page that shows 8.6 inches in 860."""
TEXT = 8.0
"""Size of the text in a figure for print, in points, as in most captions."""
WIDTHS = {"column": 3.25, "page": 6.75}
"""Inches of the two widths of figures in print."""
FITS = 50.0
"""Largest ratio of two curves' ends on a linear axis; beyond it the axis is logarithmic."""
TICK_ROOM = 0.15
"""Least share of an axis between two ticks at points."""
PRINT: Any = {"pdf.fonttype": 42, "ps.fonttype": 42, "pgf.rcfonts": False, "pgf.texsystem": "pdflatex"}
"""How figures are saved: PDF with TrueType fonts (type 42), as publishers require; PGF in the fonts of the
document that includes it."""
BLUE, ORANGE, RED, GREEN = "#1f77b4", "#e87000", "#d62728", "#1b8a5a"
PURPLE, GREY = "#6a4fb3", "#6b6b6b"


@dataclass(frozen=True)
class ChartLine:
    """A curve with the label and style of its method."""

    label: str
    style: Style
    curve: Curve
    key: str = ""
    """Hiding a line in one chart hides the lines with the same key in all charts."""


@dataclass(frozen=True)
class Axis:
    """The axes of a kind of chart; labels on the page may be shorter than in print."""

    xlabel: str
    ylabel: str
    page_xlabel: str
    page_ylabel: str
    reading: str
    """Text before x above the list of values, e.g. "Round "."""
    switch: str = ""
    """Label of the switch to a logarithmic axis; empty if that would make no sense."""
    log: bool = False
    """Whether the axis starts out logarithmic."""
    limits: tuple[float, float] | None = None
    """Ends of the vertical axis; by default from 0 to the largest value."""
    digits: int = 0
    every_point: bool = False
    """Whether each point gets a marker, and a tick where there is room."""


class PrintedFigure(Figure):
    """A figure that is saved as print requires; see `PRINT`."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save it; `fname` and its options are those of matplotlib. PGF needs an installed LaTeX."""
        kind = options.get("format") or str(getattr(fname, "name", fname)).rpartition(".")[2]
        with matplotlib.rc_context(PRINT):
            if kind != "pgf":
                super().savefig(fname, **options)
                return
            texts = [(text, text.get_text()) for text in self.findobj(Text) if isinstance(text, Text)]
            try:
                for text, shown in texts:
                    text.set_text(pgf_text(shown))
                super().savefig(fname, **options)
            finally:
                for text, shown in texts:
                    text.set_text(shown)


def line_figure(lines: Sequence[ChartLine], title: str, axis: Axis) -> Figure:
    """Means with their 95% intervals."""
    figure = blank(width=8.6, height=4.6)
    ax = figure.subplots()
    ax.set_title(literal(title), fontsize=11)
    draw_chart(ax, lines, axis)
    ax.set(xlabel=axis.xlabel, ylabel=axis.ylabel)
    legend(figure)
    return figure


def draw_chart(ax: Axes, lines: Sequence[ChartLine], axis: Axis, *, scale: float = 1.0) -> None:
    """Draw curves on axes that fit them, labelled as on the page, with lines and markers to `scale`."""
    draw_lines(ax, lines, every_point=axis.every_point, scale=scale)
    ax.set(xlabel=axis.page_xlabel, ylabel=axis.page_ylabel)
    x = np.concatenate([line.curve.x for line in lines])
    if axis.every_point:
        _ticks_at_points(ax, sorted({float(value) for value in x}))
    else:
        ax.set_xlim(0.0, float(x.max()))
    is_log = is_logarithmic(lines, axis)
    if is_log:
        ax.set_yscale("log")
        ax.set_ylim(*_log_limits(lines, axis))
    elif axis.limits is not None:
        ax.set_ylim(*axis.limits)
    else:
        ax.set_ylim(0.0, 1.05 * _highest(lines) or 1.0)
    thousands(ax, ("" if axis.every_point else "x") + ("" if axis.limits else "y"))


def _ticks_at_points(ax: Axes, points: Sequence[float]) -> None:
    """Give an axis the scale that spaces its points more evenly, and as many of their ticks as have room."""
    scales = {"linear": np.array(points)}
    if points[0] > 0.0:
        scales["log"] = np.log(points)
    places = {name: (at - at[0]) / max(at[-1] - at[0], 1e-12) for name, at in scales.items()}
    scale = max(places, key=lambda name: float(np.diff(places[name]).min(initial=1.0)))
    ax.set_xscale(scale)
    kept = [0]
    for number, place in enumerate(places[scale][1:], start=1):
        is_last = number == len(points) - 1
        if place - places[scale][kept[-1]] >= TICK_ROOM and (is_last or 1.0 - place >= TICK_ROOM):
            kept.append(number)
    ax.set_xticks([points[number] for number in kept], [f"{points[number]:g}" for number in kept])
    ax.minorticks_off()
    ax.margins(x=0.03)


def is_logarithmic(lines: Sequence[ChartLine], axis: Axis) -> bool:
    """Whether the vertical axis is logarithmic: as `axis` says, or because the curves end too far apart."""
    ends = [float(line.curve.mean[-1]) for line in lines]
    if axis.limits is not None or max(ends) <= 0.0:
        return False
    return axis.log or (bool(axis.switch) and min(ends) > 0.0 and max(ends) > FITS * min(ends))


def _log_limits(lines: Sequence[ChartLine], axis: Axis) -> tuple[float, float]:
    """From below the lowest mean that matters to above the highest band."""
    # Over rounds, a curve's first tenth rises from zero: its start says little.
    first = 0 if axis.every_point else max(len(lines[0].curve.x) // 10, 1)
    means = np.concatenate([line.curve.mean[first:] for line in lines])
    positive = means[means > 0.0]
    low = float(positive.min()) if len(positive) else 1.0
    return 0.8 * low, 1.15 * _highest(lines)


def _highest(lines: Sequence[ChartLine]) -> float:
    """The top of the bands, but not far above the means, which wide bands from few runs would dwarf."""
    bands, means = (
        max(float(part.max()) for part in parts)
        for parts in zip(*((line.curve.high, line.curve.mean) for line in lines), strict=True)
    )
    return min(bands, 1.5 * means)


def print_size(figure: Figure) -> None:
    """Set all text of a figure in `TEXT` points."""
    for ax in figure.axes:
        ax.tick_params(labelsize=TEXT, which="both")
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_fontsize(TEXT)


def printed_axes(width: str | float, panels: int, labels: Sequence[str]) -> list[Axes]:
    """Axes for panels of a figure of a width in print, with room for a legend of `labels` below."""
    if isinstance(width, str) and width not in WIDTHS:
        known = " or ".join(repr(name) for name in WIDTHS)
        raise ValueError(f"width must be {known} or a number of inches, got {width!r}")
    inches = WIDTHS[width] if isinstance(width, str) else float(width)
    if not 1.0 <= inches <= 40.0:
        raise ValueError(f"width must be between 1 and 40 inches, got {width!r}")
    across = min(panels, max(int(inches / 2.2), 1))
    down = -(-panels // across)
    _, lines = _legend_shape(inches, labels)
    height = down * (2.3 if across == 1 and inches > 4.0 else 1.95) + 0.17 * lines + 0.1
    figure = blank(width=inches, height=height)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for ax in axes[panels:]:
        ax.set_visible(False)
    return axes[:panels]


def table_figure(table: Table) -> Figure:
    """A table in print, with the rules of booktabs and its caption below."""
    texts = [table.header, *table.lines]
    wide = [0.066 * max(len(line[place]) for line in texts) + 0.18 for place in range(len(table.header))]
    step, width = 0.18, max(sum(wide), 3.25)
    caption = textwrap.wrap(" ".join(filter(None, (table.caption, table.key))), int(width / 0.064))
    height = step * (len(texts) + len(caption) + 1.6)
    figure = blank(width=width, height=height)
    figure.set_layout_engine("none")

    def place(x: float, line: float, text: str, **look: Any) -> None:
        figure.text(x / width, 1.0 - step * line / height, text, fontsize=TEXT, va="center", **look)

    def rule(line: float, thick: float) -> None:
        y = 1.0 - step * line / height
        figure.add_artist(Line2D([0.0, sum(wide) / width], [y, y], color="black", linewidth=thick))

    for number, line in enumerate(texts):
        right = 0.0
        for column, (text, room) in enumerate(zip(line, wide, strict=True)):
            right += room
            weight = "bold" if (number - 1, column) in table.strong else "normal"
            at, side = (right - 0.06, "right") if column else (0.06, "left")
            place(at, number + 0.75, literal(text), ha=side, fontweight=weight)
    for after, thick in ((0.15, 1.0), (1.25, 0.6), (len(texts) + 0.3, 1.0)):
        rule(after, thick)
    for number, text in enumerate(caption):
        place(0.06, len(texts) + 1.0 + number, literal(text), ha="left")
    return figure


def legend_of_panels(axes: Sequence[Axes]) -> None:
    """One legend below panels in print."""
    figure = axes[0].get_figure(root=True)
    assert figure is not None
    labels = {label for ax in axes for label in ax.get_legend_handles_labels()[1]}
    across, _ = _legend_shape(figure.get_figwidth(), sorted(labels))
    legend_below(figure, axes, ncols=across, handlelength=2.4, columnspacing=1.0, handletextpad=0.5)


def _legend_shape(inches: float, labels: Sequence[str]) -> tuple[int, int]:
    """Columns and lines of a legend whose labels are set in `TEXT` points: a letter is 0.068 inches wide."""
    wide = [0.068 * len(label) + 0.5 for label in labels]
    if sum(wide) <= inches:
        return max(len(labels), 1), 1
    across = max(int(inches / max(wide)), 1)  # a column may hold several of the longest
    return across, -(-len(labels) // across)


def chart_data(lines: Sequence[ChartLine], title: str, axis: Axis) -> dict[str, Any]:
    """The data that the page's script draws: series aligned on the union of their x."""
    union = sorted({float(x) for line in lines for x in line.curve.x})
    return {
        "title": title,
        "xlabel": axis.page_xlabel,
        "ylabel": axis.page_ylabel,
        "reading": axis.reading,
        "switch": axis.switch,
        "log": is_logarithmic(lines, axis),
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
        if kind == "png":  # charts have few colours: a palette makes them a third as large
            picture = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
            drawn = io.BytesIO()
            picture.save(drawn, "PNG", optimize=True)
        write_whole(directory / f"{name}.{kind}", drawn.getvalue())
    return directory / f"{name}.png"


def literal(text: str) -> str:
    """A text that matplotlib shows verbatim: "$" starts no formula, a leading "_" hides no line."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def blank(*, width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    figure = PrintedFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_lines(
    ax: Axes, lines: Sequence[ChartLine], *, every_point: bool = False, scale: float = 1.0
) -> None:
    """Draw curves with their intervals, on a grid."""
    for index, line in enumerate(lines):
        curve, style = line.curve, line.style
        spacing = max(len(curve.x) // 8, 1)
        ax.fill_between(curve.x, curve.low, curve.high, color=style.color, alpha=0.12, linewidth=0)
        ax.plot(
            curve.x, curve.mean, color=style.color, linewidth=scale * style.width, label=literal(line.label),
            linestyle=(0, style.dash) if style.dash else "-", marker=style.marker,
            # Markers of different methods start at different points, so that they do not overlap.
            markevery=None if every_point else (index * spacing // max(len(lines), 1), spacing),
            markersize=scale * (9 if style.marker == "*" else 5),
        )  # fmt: skip
    ax.grid(alpha=0.25)


def thousands(ax: Axes, which: str) -> None:
    """Separate thousands on the named axes: "x", "y" or both."""
    formatter = FuncFormatter(lambda value, _: f"{value:,.0f}" if value == round(value) else f"{value:g}")
    for axis in (ax.xaxis if name == "x" else ax.yaxis for name in which):
        axis.set_major_formatter(formatter)
    if "y" in which and ax.get_yscale() == "log":
        low, high = ax.get_ylim()
        few = high / low < 100
        ax.yaxis.set_minor_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}" if few and str(value)[0] in "235" else "")
        )


def legend(figure: Figure) -> None:
    """A legend beside the only panel."""
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, handlelength=3.2)


def legend_below(figure: Figure, axes: Iterable[Axes], **options: Any) -> None:
    """One legend for several panels, each label once."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    options = {"ncols": 3, "frameon": False, "fontsize": 9, **options}
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", **options)
