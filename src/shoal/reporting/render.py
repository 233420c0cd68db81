"""From sections to files, by templates: a self-contained HTML page, and Markdown."""

import base64
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader

from shoal.atomic import write_whole
from shoal.reporting.sections import Document, Picture, Section

_MARKUP = re.compile(r"[\\`*\[]|<(?=[A-Za-z/!?])|&(?=#?[A-Za-z0-9]+;)")
_ENTITIES = {"<": "&lt;", "&": "&amp;"}


def write(document: Document, directory: Path) -> Path:
    """Write `index.html` and `tables.md` into a directory and return the path of the page.

    The page embeds its pictures; `tables.md` links to them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / "tables.md", markdown(document, directory).encode())
    page = directory / "index.html"
    write_whole(page, html(document).encode())
    return page


def html(document: Document) -> str:
    """The page."""
    sections = _shown(document)
    charts = {
        part.key: part.chart
        for section in sections
        for part in section.parts
        if isinstance(part, Picture) and part.chart is not None
    }
    environment = Environment(
        loader=PackageLoader("shoal.reporting"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["inlined"] = _inlined
    data = json.dumps(charts, separators=(",", ":"), ensure_ascii=False)
    return environment.get_template("page.html").render(
        document=document,
        sections=sections,
        style=_asset("uplot.css") + _asset("report.css"),
        licence=_asset("uplot.LICENSE"),
        data=data.replace("<", "\\u003c"),  # so that no text can close the script element
        library=_asset("uplot.js"),
        script=_asset("report.js"),
    )


def markdown(document: Document, directory: Path) -> str:
    """The report as Markdown, with links to pictures relative to `directory`."""
    environment = Environment(  # not HTML: `markdown_text` escapes
        loader=PackageLoader("shoal.reporting"), trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "text": markdown_text,
        "cell": lambda text: markdown_text(text).replace("|", r"\|"),
        "link": lambda path: path.relative_to(directory).as_posix(),
    }
    text = environment.get_template("tables.md").render(document=document, sections=_shown(document))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def markdown_text(text: str) -> str:
    r"""A text on one line, with everything escaped that Markdown would take for markup, HTML included.

    Examples
    --------
    >>> markdown_text("a < b, <i>c</i> and *d*")
    'a < b, &lt;i>c&lt;/i> and \\*d\\*'
    """
    return _MARKUP.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), " ".join(text.split()))


def _shown(document: Document) -> Sequence[Section]:
    return [section for section in document.sections if section.parts]


def _asset(name: str) -> str:
    return (resources.files("shoal.reporting") / "assets" / name).read_text(encoding="utf-8")


def _inlined(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
