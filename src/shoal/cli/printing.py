"""What commands print: tables for people, JSON for programs."""

import json
from collections.abc import Collection, Sequence
from typing import Any


def plain(found: Any) -> Any:
    """Structs as JSON has them: null instead of NaN and infinity."""
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(found))


def print_json(value: Any) -> None:
    """For programs."""
    print(json.dumps(value, indent=2, default=str))


def print_table(
    headings: Sequence[str] | None,
    rows: Sequence[Sequence[Any]],
    *,
    numbers: Collection[str] = (),
    whole: Collection[str] = (),
    title: str | None = None,
    caption: str | None = None,
    lined: bool = False,
) -> None:
    """For people. `numbers` are the headings of columns of numbers, `whole` of those that must not wrap.

    A table with a title has lines, too.
    """
    from rich.box import HEAVY_HEAD
    from rich.console import Console
    from rich.table import Table

    box = HEAVY_HEAD if title or lined else None
    table = Table(title=title, caption=caption, box=box, show_header=headings is not None)
    for heading in headings or ("", ""):
        is_number = heading in numbers
        justify: Any = "right" if is_number else "left"
        no_wrap = is_number or heading in whole
        table.add_column(heading.replace("_", " "), overflow="fold", justify=justify, no_wrap=no_wrap)
    for row in rows:
        table.add_row(*map(shown_as_text, row))
    Console(highlight=False).print(table)


def shown_as_text(value: Any) -> str:
    from rich.markup import escape

    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return escape(", ".join(f"{key}={one!r}" for key, one in value.items()))
    if isinstance(value, list):
        return escape("\n".join(map(str, value)))
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else escape(str(value))
