"""How the line of a method is drawn, in print and on the page. Policies set theirs as `line_style`."""

from typing import NamedTuple

DASHES: tuple[tuple[float, ...], ...] = ((), (4.0, 2.0), (1.0, 1.5), (5.0, 1.5, 1.0, 1.5))
"""Dashes of the first, second, … variant of a policy: on and off lengths in line widths; empty is solid."""


class Style(NamedTuple):
    """A line."""

    color: str
    marker: str
    dash: tuple[float, ...]
    width: float


class LineStyle(NamedTuple):
    """The lines of a policy's variants, which share colour, marker and width and differ in their dashes."""

    color: str
    marker: str
    dashes: tuple[tuple[float, ...], ...] = DASHES
    width: float = 1.5

    def variant(self, number: int) -> Style:
        """The line of variant `number`, counted from 0."""
        return Style(self.color, self.marker, self.dashes[number % len(self.dashes)], self.width)


OTHERS = (
    LineStyle("#17827f", "v"),
    LineStyle("#6a4fb3", "X"),
    LineStyle("#7a7a00", "h"),
    LineStyle("#00629b", "<"),
)
"""Styles for policies without one of their own, taken in turn."""
