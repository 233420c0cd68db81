"""What a report consists of. Nothing here knows where tables and figures come from.

Texts are plain text and are shown verbatim, in HTML and in Markdown.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from matplotlib.figure import Figure

Mark = Literal["", "reference", "apart"]
"""How a line of a table is highlighted: as the reference of comparisons, or as outside the competition."""


@dataclass(frozen=True)
class Text:
    """A paragraph, optionally with a few bold words in front."""

    kind: ClassVar[str] = "text"
    text: str
    lead: str = ""


@dataclass(frozen=True)
class Notice:
    """Something that readers must know before they read on."""

    kind: ClassVar[str] = "notice"
    text: str


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    kind: ClassVar[str] = "bullets"
    texts: Sequence[str]


@dataclass(frozen=True)
class Definitions:
    """Names and their meanings."""

    kind: ClassVar[str] = "definitions"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """Lines of text of equal length; the first column names the line, "yes" and "no" are coloured."""

    kind: ClassVar[str] = "table"
    caption: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    marks: Sequence[Mark] = ()
    """One for each line, or empty for none."""
    wordy: bool = False
    """Whether its cells hold sentences."""
    strong: Collection[tuple[int, int]] = ()
    """Cells in bold, by line and column."""
    key: str = ""
    """What bold and italics mean, shown with the table."""

    def marked_lines(self) -> list[tuple[Mark, Sequence[str]]]:
        """The lines with their marks."""
        return list(zip(self.marks or [""] * len(self.lines), self.lines, strict=True))


@dataclass(frozen=True)
class Picture:
    """A figure, and the data of the interactive chart that replaces it where scripts run."""

    kind: ClassVar[str] = "picture"
    title: str
    caption: str
    name: str
    """Of its files, without their ending; its id on the page."""
    draw: Callable[[], Figure]
    """Called once, when the report is written."""
    chart: dict[str, Any] | None = None


Part = Text | Notice | Heading | Bullets | Definitions | Table | Picture


@dataclass(frozen=True)
class Section:
    """A section of the report with a title and an anchor; omitted if it has no parts."""

    key: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Document:
    """A whole report."""

    name: str
    """For the window title."""
    title: str
    subtitle: str
    lead: str
    """The main result in a plain sentence."""
    opening: Picture | None
    """The picture that shows it."""
    remarks: Sequence[str]
    """The next most important sentences."""
    notices: Sequence[str]
    """What readers must know before they compare."""
    sections: Sequence[Section]
    further: Mapping[str, "Document"] = field(default_factory=dict)
    """Pages of their own beside this one, by the names of their files."""

    @property
    def pictures(self) -> list[Picture]:
        """Every picture of this page, in order."""
        first = [] if self.opening is None else [self.opening]
        parts = [part for section in self.sections for part in section.parts]
        return [*first, *(part for part in parts if isinstance(part, Picture))]
