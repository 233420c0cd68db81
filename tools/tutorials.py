"""Tutorials: pages of docs/tutorials whose code runs from top to bottom, as a notebook's does.

    python -m tools.tutorials             run every page; renew its pictures and the output it shows
    python -m tools.tutorials ten-users   run one

In a page, a ```text block right after a ```python block is what that code prints, and a picture is a file
that code before it has written.
"""

import contextlib
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")) if page.name != "index.md"]
PART = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", flags=re.DOTALL)
PICTURE = re.compile(r"^!\[[^\]]*\]\((?P<file>[\w.-]+\.png)\)$", flags=re.MULTILINE)


class Part(NamedTuple):
    """A block of code, and what the page says it prints."""

    code: str
    output: str


def parts(text: str) -> list[Part]:
    """The code of a page."""
    return [Part(found["code"], found["output"] or "") for found in PART.finditer(text)]


def play(text: str, directory: Path) -> Iterator[str]:
    """Run a page's code, in `directory`, as one program; yield what each block prints."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, part in enumerate(parts(text), start=1):
        block, printed = directory / f"block_{number}.py", io.StringIO()
        block.write_text(part.code)  # Numba and tracebacks look for the source of what is defined
        with contextlib.chdir(directory), contextlib.redirect_stdout(printed):
            exec(compile(part.code, str(block), "exec"), space)
        yield printed.getvalue()


def renewed(text: str, printed: list[str]) -> str:
    """The page, with what its code printed."""
    outputs = iter(printed)

    def block(found: re.Match[str]) -> str:
        output = next(outputs)
        return f"```python\n{found['code']}```\n" + (f"\n```text\n{output}```\n" if output else "")

    return PART.sub(block, text)


def notebook(text: str) -> str:
    """The page as a notebook (nbformat 4.5): its code to run, its pictures shown once drawn."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str) -> None:
        if source.strip():
            more: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
            lines = source.strip("\n").splitlines(keepends=True)
            cells.append(
                {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines, **more}
            )

    def add_prose(prose: str) -> None:
        at = 0
        for found in PICTURE.finditer(prose):
            add("markdown", prose[at : found.start()])
            add("code", f'from IPython.display import Image\n\nImage("{found["file"]}")')
            at = found.end()
        add("markdown", prose[at:])

    at = 0
    for found in PART.finditer(text):
        add_prose(text[at : found.start()])
        add("code", found["code"])
        at = found.end()
    add_prose(text[at:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def main(names: list[str]) -> None:
    """Run pages and renew what they show."""
    for page in PAGES:
        if not names or page.stem in names:
            text = page.read_text()
            with tempfile.TemporaryDirectory() as directory:
                page.write_text(renewed(text, list(play(text, Path(directory)))))
                for picture in PICTURE.findall(text):
                    shutil.copy(Path(directory, picture), page.parent)


if __name__ == "__main__":
    main(sys.argv[1:])
