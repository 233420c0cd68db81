"""Whether a figure can be read: nothing is cut off, no text covers another or the data."""

from itertools import combinations
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from shoal.reporting import charts


def text_boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """Where the visible text of a figure is, in pixels."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    hidden = {id(text) for ax in figure.axes if not ax.get_visible() for text in ax.findobj(Text)}
    found = []
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden:
            found.append((text.get_text(), text.get_window_extent(renderer)))
    # Axes keep tick labels outside their limits, which are not drawn.
    return [(text, box) for text, box in found if _is_drawn(figure, text, box)]


def _is_drawn(figure: Figure, text: str, box: Bbox) -> bool:
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            labels = {id(tick.label1): tick for tick in ticks}
            for tick in labels.values():
                if (
                    tick.label1.get_text() == text
                    and tick.label1.get_window_extent(renderer).bounds == box.bounds
                ):
                    low, high = sorted(axis.get_view_interval())
                    return bool(low - 1e-9 <= tick.get_loc() <= high * (1 + 1e-9) + 1e-9)
    return True


def check_layout(figure: Figure) -> None:
    """Fail where text is cut off, or on other text, or a legend on data."""
    boxes = text_boxes(figure)
    assert boxes
    page = figure.bbox
    for text, box in boxes:
        assert box.x0 >= page.x0 - 1, f"{text!r} is cut off"
        assert box.y0 >= page.y0 - 1, f"{text!r} is cut off"
        assert box.x1 <= page.x1 + 1, f"{text!r} is cut off"
        assert box.y1 <= page.y1 + 1, f"{text!r} is cut off"
    for (one, first), (two, second) in combinations(boxes, 2):
        common = Bbox.intersection(first, second)
        assert common is None or common.width * common.height < 1.0, f"{one!r} overlaps {two!r}"
    for legend in figure.legends:
        for ax in figure.axes:
            common = Bbox.intersection(legend.get_window_extent(), ax.get_window_extent())
            assert common is None or not ax.get_visible() or common.width * common.height < 1.0, (
                "legend on data"
            )


def written(figure: Figure, directory: Path) -> tuple[bytes, bytes]:
    """The bytes of a figure's image and of its PDF."""
    path = charts.save(figure, directory, "figure")
    return path.read_bytes(), path.with_suffix(".pdf").read_bytes()


def check_figure(figure: Figure, directory: Path) -> None:
    """Fail unless a figure is written whole, can be read, and its axes say what they show."""
    image, vector = written(figure, directory)
    assert image.startswith(b"\x89PNG")
    assert vector.startswith(b"%PDF")
    assert min(len(image), len(vector)) > 5_000
    check_layout(figure)
    for ax in figure.axes:
        if ax.get_visible():
            assert ax.get_xlabel() or len(figure.axes) > 1
            assert ax.get_ylabel() or len(figure.axes) > 1
