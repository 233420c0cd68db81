"""From sections to files, by templates: self-contained HTML pages, and Markdown."""

import base64
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader

from shoal.core.atomic import write_whole
from shoal.reporting.charts import save
from shoal.reporting.sections import Document, Section

_MARKUP = re.compile(r"[\\`*\[]|<(?=[A-Za-z/!?])|&(?=#?[A-Za-z0-9]+;)")
_NUMBERS = re.compile(r"(?<=\d) (±|to) (?=[−+\d])")
"""Signs and words that join two numbers, which stay on one line."""
_ENTITIES = {"<": "&lt;", "&": "&amp;"}


FIGURES = "figures"
"""The directory of the figures, beside the page."""

Drawing = Callable[[int, int, str], None]
"""Called before each figure with the number of figures drawn so far, their total, and the next title."""


def write(document: Document, directory: Path, drawing: Drawing = lambda done, total, title: None) -> Path:
    """Write `index.html`, `tables.md`, the pages beside them and `figures/*` into a directory.

    A page embeds its pictures; Markdown links to them. Returns the path of `index.html`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pages = {"index": document, **document.further}
    pictures = [picture for page in pages.values() for picture in page.pictures]
    for done, picture in enumerate(pictures):
        drawing(done, len(pictures), picture.title)
        save(picture.draw(), directory / FIGURES, picture.name)
    for name, page in pages.items():
        write_whole(directory / _markdown_file(name), markdown(page, name).encode())
        write_whole(directory / f"{name}.html", html(page, directory, name).encode())
    return directory / "index.html"


def html(document: Document, directory: Path, name: str = "index") -> str:
    """A page, with the pictures that were drawn into `directory`."""
    environment = Environment(
        loader=PackageLoader("shoal.reporting"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["inlined"] = lambda picture: _inlined(directory / FIGURES / f"{picture.name}.png")
    environment.filters["joined"] = lambda text: _NUMBERS.sub("\u00a0\\1\u00a0", text)
    charts = {picture.name: picture.chart for picture in document.pictures if picture.chart is not None}
    data = json.dumps(charts, separators=(",", ":"), ensure_ascii=False)
    return environment.get_template("page.html").render(
        document=document,
        sections=_shown(document),
        is_first=name == "index",
        markdown_file=_markdown_file(name),
        figures=FIGURES,
        style=_asset("uplot.css") + _asset("report.css"),
        licence=_asset("uplot.LICENSE"),
        data=data.replace("<", "\\u003c"),  # so that no text can close the script element
        library=_asset("uplot.js"),
        script=_asset("report.js"),
    )


def markdown(document: Document, name: str = "index") -> str:
    """A page as Markdown, with links to its pictures."""
    environment = Environment(  # not HTML: `markdown_text` escapes
        loader=PackageLoader("shoal.reporting"), trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "text": markdown_text,
        "cell": lambda text: markdown_text(text).replace("|", r"\|"),
        "link": lambda picture: f"{FIGURES}/{picture.name}.png",
        "file": _markdown_file,
    }
    text = environment.get_template("tables.md").render(
        document=document, sections=_shown(document), is_first=name == "index"
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def markdown_text(text: str) -> str:
    r"""A text on one line, with all Markdown markup and HTML escaped.

    Examples
    --------
    >>> markdown_text("a < b, <i>c</i> and *d*")
    'a < b, &lt;i>c&lt;/i> and \\*d\\*'
    """
    return _MARKUP.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), " ".join(text.split()))


def _shown(document: Document) -> Sequence[Section]:
    return [section for section in document.sections if section.parts]


def _markdown_file(name: str) -> str:
    return "tables.md" if name == "index" else f"{name}.md"


def _asset(name: str) -> str:
    return (resources.files("shoal.reporting") / "assets" / name).read_text(encoding="utf-8")


def _inlined(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
