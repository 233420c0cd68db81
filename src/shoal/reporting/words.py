"""How a report writes numbers."""

import math

EMPTY = "–"
"""Stands for a missing value."""


def number(form: str, value: float) -> str:
    """A number as text, with a minus sign rather than a hyphen, and none before a zero.

    Examples
    --------
    >>> number("{:+,.0f}", -1234.5), number("{:.1f}", -0.01)
    ('−1,234', '0.0')
    """
    text = form.format(value)
    if text.startswith("-") and not text.strip("-0.,"):
        text = text[1:]
    return text.replace("-", "−")


def counted(number: int, what: str) -> str:
    """A number of things: "1 row", "1,200 rows"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def plus_minus(form: str, mean: float, spread: float) -> str:
    """A mean with its standard deviation, or alone if that is nan."""
    return number(form, mean) if math.isnan(spread) else f"{number(form, mean)} ± {number(form, spread)}"


def interval(form: str, low: float, high: float) -> str:
    """The ends of an interval; a dash if there is none."""
    return EMPTY if math.isnan(low) else f"{number(form, low)} to {number(form, high)}"


def duration(seconds: float) -> str:
    """A duration in suitable units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
    )


def span(seconds: float) -> str:
    """A time in words."""
    for size, unit in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"
