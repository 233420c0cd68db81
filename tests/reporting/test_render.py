"""Sections to files: the same content in HTML and in Markdown, whatever the texts hold."""

import html
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from shoal.reporting import render, words
from shoal.reporting.charts import blank, save
from shoal.reporting.sections import (
    Bullets,
    Definitions,
    Document,
    Heading,
    Notice,
    Part,
    Picture,
    Section,
    Table,
    Text,
)


def document(*sections: Section, **changes: Any) -> Document:
    values: dict[str, Any] = {
        "name": "a name",
        "title": "A title",
        "subtitle": "A subtitle",
        "lead": "The lead.",
        "opening": None,
        "remarks": ["first remark", "second remark"],
        "notices": ["a notice"],
        "sections": sections,
    }
    return Document(**{**values, **changes})


def draw() -> Figure:
    return blank(width=1.0, height=1.0)


TABLE = Table("A caption", ["what", "number", "holds"], [["x", "1", "yes"], ["y", "2", "no"]], ["", "apart"])


def test_every_part_is_in_both(tmp_path: Path) -> None:
    parts: list[Part] = [
        Text("some words"),
        Text("more words", lead="Bold"),
        Notice("take care"),
        Heading("a heading"),
        Bullets(["one", "two"]),
        Definitions([("name", "meaning")]),
        TABLE,
        Picture("a picture", "its caption", "drawn", draw),
    ]
    page = render.write(document(Section("first", "First", parts), Section("none", "Empty", [])), tmp_path)
    text, markdown = page.read_text(encoding="utf-8"), (tmp_path / "tables.md").read_text(encoding="utf-8")
    for shown in (text, markdown):
        for word in (
            "A title", "A subtitle", "The lead.", "first remark", "a notice", "First", "some words", "Bold",
            "take care", "a heading", "two", "meaning", "A caption", "holds", "a picture", "its caption",
        ):  # fmt: skip
            assert word in shown, word
        assert "Empty" not in shown  # a section without parts is left out
    assert markdown.splitlines()[0] == "# A title"
    assert "**Bold**: more words" in markdown
    assert "- first remark\n- second remark\n" in markdown
    assert "![a picture](figures/drawn.png)\n\nits caption" in markdown
    assert "> take care" in markdown
    assert "- name: meaning" in markdown
    assert '<tr class="apart"><th scope="row">y</th><td>2</td><td class="no">no</td></tr>' in text
    assert text.startswith("<!doctype html>")
    assert "\n\n\n" not in markdown


def test_a_table_in_markdown() -> None:
    text = render.markdown(document(Section("s", "S", [TABLE])))
    assert "\n| what | number | holds |\n| --- | ---: | ---: |\n| x | 1 | yes |\n| y | 2 | no |\n" in text


@pytest.mark.parametrize(
    "hostile",
    [
        "a | b",
        "<script>alert(1)</script>",
        "</script>",
        "{{ 7 * 7 }}{% raw %}{# x #}",
        "&lt; &#60;",
        "[x](javascript:alert(1)) `c` *b* \\",
        "two\nlines\n\n# no heading",
    ],
)
def test_texts_are_shown_as_they_are(hostile: str, tmp_path: Path) -> None:
    chart = {"title": hostile, "x": [], "series": []}
    save(draw(), tmp_path / "figures", "drawn")
    parts: list[Part] = [
        Text(hostile, lead=hostile),
        Heading(hostile),
        Bullets([hostile]),
        Definitions([(hostile, hostile)]),
        Table(hostile, [hostile, "b"], [[hostile, hostile]]),
        Picture(hostile, hostile, "drawn", draw, chart),
    ]
    whole = document(Section("s", hostile, parts), title=hostile, lead=hostile, notices=[hostile])
    page = render.html(whole, tmp_path)
    body = page[page.index("<main>") : page.index("</main>")]
    assert html.unescape(body).count(hostile) >= 10
    assert "<script>" not in body
    data = re.search(r'id="chart-data">(.*?)</script>', page, re.S)
    assert data is not None
    assert "<" not in data[1]
    markdown = render.markdown(whole)
    assert not re.search(r"<[A-Za-z/!?]", markdown)
    assert len(re.findall(r"^#", markdown, flags=re.M)) == 4  # title, section, heading, caption
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {3}


def test_it_opens_with_the_picture_and_links_to_what_lies_beside_it(tmp_path: Path) -> None:
    opening = Picture("first picture", "what it shows", "opening", draw)
    other = Picture("other picture", "a bound", "bound", draw)
    beside = document(Section("b", "Bounds", [other]), title="Theory", lead="Some hold.")
    seen: list[tuple[int, int, str]] = []
    page = render.write(
        document(Section("s", "Tables", [TABLE]), opening=opening, further={"theory": beside}),
        tmp_path,
        lambda *said: seen.append(said),
    )
    assert seen == [(0, 2, "first picture"), (1, 2, "other picture")]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"index.html", "tables.md", "theory.html", "theory.md", "figures"}
    for text in (page.read_text(encoding="utf-8"), (tmp_path / "tables.md").read_text(encoding="utf-8")):
        places = [
            text.index(word)
            for word in ("A title", "The lead.", "what it shows", "first remark", "A caption")
        ]
        assert places == sorted(places)
        assert "Some hold." not in text
    for name in ("index.html", "theory.html"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        links = [link for link in re.findall(r'href="([^"#]+)"', text) if not link.startswith("data:")]
        assert links
        assert all((tmp_path / link).is_file() for link in links), links
    text = page.read_text(encoding="utf-8")
    assert {"theory.html", "tables.md", "figures/opening.pdf"} <= set(re.findall(r'href="([^"#]+)"', text))
    assert "[Theory](theory.md)" in (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "[Back to the report](tables.md)" in (tmp_path / "theory.md").read_text(encoding="utf-8")


def test_two_numbers_stay_on_one_line(tmp_path: Path) -> None:
    table = Table("c", ["what", "n"], [["a ± b", "1 ± 2 (−3 to +4)"]])
    text = render.html(document(Section("s", "S", [table])), tmp_path)
    assert "<td>1\u00a0±\u00a02 (−3\u00a0to\u00a0+4)</td>" in text


def test_lines_and_marks_must_fit() -> None:
    with pytest.raises(ValueError, match="longer"):
        Table("c", ["a"], [["1"], ["2"]], [""]).marked_lines()


def test_numbers_are_written_alike() -> None:
    assert [words.counted(n, "row") for n in (0, 1, 2, 1_200)] == ["0 rows", "1 row", "2 rows", "1,200 rows"]
    assert words.number("{:+,.0f}", -1234.4) == "−1,234"
    assert words.number("{:.2f}", -0.001) == "0.00"
    assert words.plus_minus("{:.1f}", 1.0, float("nan")) == "1.0"
    assert words.interval("{:.0f}", -3.0, 4.0) == "−3 to 4"
    assert words.interval("{:.0f}", float("nan"), 4.0) == "–"
    assert [words.duration(seconds) for seconds in (1.25, 61, 7300)] == ["1.2 s", "1 min 1 s", "2 h 1 min"]
