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
    """The lines of a policy's variants, which share marker, width and mostly colour, and differ in dashes."""

    color: str
    marker: str
    dashes: tuple[tuple[float, ...], ...] = DASHES
    width: float = 1.5
    further: str = ""
    """The colour of all variants but the first, where dashes alone would not tell them apart."""

    def variant(self, number: int) -> Style:
        """The line of variant `number`, counted from 0."""
        color = self.further if number and self.further else self.color
        return Style(color, self.marker, self.dashes[number % len(self.dashes)], self.width)


OTHERS = (
    LineStyle("#17827f", "v"),
    LineStyle("#2a9d5c", "X"),
    LineStyle("#7a7a00", "h"),
    LineStyle("#00629b", "<"),
)
"""Styles for policies without one of their own, taken in turn."""
