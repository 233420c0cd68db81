"""How the line of a method is drawn, on paper and on the page. Policies carry theirs as `line_style`."""

from typing import NamedTuple

DASHES: tuple[tuple[float, ...], ...] = ((), (4.0, 2.0), (1.0, 1.5), (5.0, 1.5, 1.0, 1.5))
"""Lines of the first, second, … variant of a policy: on and off lengths in line widths; empty is solid."""


class Style(NamedTuple):
    """A line."""

    color: str
    marker: str
    dash: tuple[float, ...]
    width: float


class LineStyle(NamedTuple):
    """The lines of a policy's variants: they share its colour, marker and width, not its dashes."""

    color: str
    marker: str
    dashes: tuple[tuple[float, ...], ...] = DASHES
    width: float = 1.5

    def variant(self, number: int) -> Style:
        """The line of the variant of that number, counted from 0."""
        return Style(self.color, self.marker, self.dashes[number % len(self.dashes)], self.width)


OTHERS = (
    LineStyle("#17827f", "v"),
    LineStyle("#6a4fb3", "X"),
    LineStyle("#7a7a00", "h"),
    LineStyle("#00629b", "<"),
)
"""For policies that do not say how they are drawn, one after the other."""
