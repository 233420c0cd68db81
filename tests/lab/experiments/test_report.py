"""The report of any grid: complete, about that grid alone, and as fast as its figures."""

import dataclasses
import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import Opened, needs_browser, open_browser

import shoal
from shoal.core.policies import registry
from shoal.lab.experiments.figures import KINDS
from shoal.lab.experiments.report import (
    Column,
    document,
    notices,
    scenario_sentence,
    speed,
    table_of,
)
from shoal.lab.experiments.results import ResultsError, cell_files
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import SpecError, parse_spec
from shoal.lab.experiments.stored import load_results
from shoal.lab.paper.reproduce import write_report
from shoal.reporting import render
from shoal.reporting.sections import Table

GRID = """
name = "my grid"
title = "Is it worth being told?"
horizon = 200
runs = 4
alphas = [0.1, 0.5, 1.0]

[[environments]]
id = "near"
title = "Near"
kind = "synthetic"
parameters = { n_agents = 6, dim = 3, n_clusters = 2, angle = 0.3 }

[[environments]]
id = "far"
kind = "gaussian"
parameters = { n_agents = 6, dim = 3, n_clusters = 2, n_arms = 4 }

[[environments]]
id = "absent"
kind = "letor"
optional = true
parameters = { n_agents = 6, dim = 3, n_arms = 4, path = "/no/such/file" }

[[methods]]
id = "alone"
label = "Alone"
policy = "independent"

[[methods]]
id = "told"
label = "Told"
policy = "oracle"
parameters = { labels = "labels" }
environments = ["near", "far"]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    run_experiment(parse_spec(GRID.encode(), source="grid.toml"), out, jobs=1, command="shoal run grid.toml")
    return out


@pytest.fixture(scope="module")
def page(results: Path) -> Path:
    return write_report(results)


def test_report_is_complete(results: Path, page: Path) -> None:
    target = results / "report"
    assert page == target / "index.html"
    names = {f"{kind.name}-{environment}" for kind in KINDS for environment in ("near", "far")}
    assert {path.name for path in (target / "figures").iterdir()} == {
        f"{name}.{ending}" for name in names for ending in ("png", "pdf")
    }
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == len(names)
    for section in ("final-regret", "f1", "paired", "figures", "provenance"):
        assert f'<section id="{section}">' in text
        assert f'href="#{section}"' in text


def test_report_speaks_of_the_grid_alone(results: Path, page: Path) -> None:
    markup = re.sub(r"<(script|style)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
    markup = re.sub(r'src="data:[^"]*"', "", markup)
    reason = load_results(results).skipped["absent"].rstrip(".")  # in the words of the environment
    for text in (html.unescape(markup), (results / "report" / "tables.md").read_text(encoding="utf-8")):
        text = text.replace(reason, "").replace(render.markdown_text(reason), "")
        for word in ("BASS", "paper", "published", "ours", "MovieLens", "Yahoo", "authors", "theory"):
            assert not re.search(rf"\b{word}\b", text), word


def test_page_and_markdown_hold_the_same_numbers(results: Path, page: Path) -> None:
    found = load_results(results)
    text = (results / "report" / "tables.md").read_text(encoding="utf-8")
    for row in found.rows:
        shown = f"{row.regret.mean:,.0f} ± {row.regret.std:,.0f}"
        assert shown in text
        assert shown in page.read_text(encoding="utf-8").replace("\u00a0", " ")
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (results / "report" / picture).is_file()
    assert "shoal run grid.toml" in text
    assert "absent was left out" in text


def test_the_best_method_and_the_next_are_named(results: Path) -> None:
    found = load_results(results)
    for environment in found.environments:
        best, other = sorted(found.of(environment), key=lambda row: row.regret.mean)
        text = scenario_sentence(found, environment)
        assert (
            f"{best.label} has the lowest regret, {best.regret.mean:,.0f} (mean of 4 runs); next is " in text
        )
        assert f"{other.label} at {other.regret.mean:,.0f}, " in text
    one = dataclasses.replace(found, rows=found.of("near")[:1])
    assert scenario_sentence(one, "near").endswith("There is nothing to compare it with.")


def test_it_opens_with_a_plain_sentence_and_the_first_picture(results: Path, page: Path) -> None:
    found = load_results(results)
    opened = document(found)
    assert opened.title == "Is it worth being told?"
    assert opened.lead == scenario_sentence(found, "near")
    assert opened.opening is not None
    assert opened.opening.name == "regret-near"
    assert opened.remarks == [scenario_sentence(found, "far")]
    names = [picture.name for picture in opened.pictures]
    assert len(names) == len(set(names))  # each picture once
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert (
        text.index("<h1>")
        < text.index(opened.lead)
        < text.index('data-chart="regret-near"')
        < text.index("<table")
    )


def test_the_spec_names_the_reference(results: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(results, tmp_path / "out"))
    spec = (out / "spec.toml").read_text(encoding="utf-8")
    assert 'reference = ""' in spec
    for name, other in (("alone", "told"), ("told", "alone")):
        (out / "spec.toml").write_text(
            spec.replace('reference = ""', f'reference = "{name}"'), encoding="utf-8"
        )
        found = load_results(out)
        (paired,) = [section for section in document(found).sections if section.key == "paired"]
        tables = [part for part in paired.parts if isinstance(part, Table)]
        labels = {row.method: row.label for row in found.rows}
        assert [table.caption.split(": ")[1] for table in tables] == [
            f"{labels[name]} minus each method, final regret"
        ] * 2
        assert all([line[0] for line in table.lines] == [labels[other]] for table in tables)
        (regret,) = [section for section in document(found).sections if section.key == "final-regret"]
        for table in regret.parts:
            if isinstance(table, Table):
                marks = {line[0]: mark for mark, line in table.marked_lines()}
                assert marks == {labels[name]: "reference", labels[other]: ""}
        for (
            environment
        ) in found.environments:  # the sentence says where the reference is, also if it is not second
            assert labels[name] in scenario_sentence(found, environment)
    with pytest.raises(SpecError, match="reference: unknown method 'ind'; choose from alone, told"):
        parse_spec(GRID.replace("runs = 4", 'runs = 4\nreference = "ind"').encode(), source="grid.toml")


def test_there_are_no_empty_columns() -> None:
    columns = (Column("a", str), Column("none", lambda _: "–"), Column("some", lambda n: "–" if n else "0"))
    table = table_of("c", columns, [0, 1])
    assert (list(table.header), list(table.lines)) == (["a", "some"], [["0", "0"], ["1", "–"]])


def test_what_is_drawn_is_said(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int, str]] = []
    write_report(results, lambda *said: seen.append(said))
    assert [done for done, *_ in seen] == list(range(6))
    assert {total for _, total, _ in seen} == {6}
    assert seen[0][2] == "Near: regret over rounds"


def test_a_grid_of_one_method_at_one_alpha_is_reported(results: Path, tmp_path: Path) -> None:
    text = GRID.split("[[methods]]")[0].replace("[0.1, 0.5, 1.0]", "[0.1]")
    text += '[[methods]]\nid = "alone"\npolicy = "independent"\n'
    run_experiment(parse_spec(text.encode(), source="one.toml"), tmp_path, jobs=1, only="near")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert 'id="paired"' not in page
    assert "Near, 200 rounds: Ind has the lowest regret" in page
    assert "There is nothing to compare it with." in page
    assert "1 of 3 cells are finished" in page
    assert not list((tmp_path / "report" / "figures").glob("alpha-*"))


def test_missing_cells_and_edges_are_said(results: Path) -> None:
    found = load_results(results)
    said = " ".join(notices(found))
    assert "cells are finished" not in said  # all but those of the environment that was left out
    fewer = dataclasses.replace(found, cells_done=found.cells_done - 1)
    expected = len(cell_files(results))
    assert expected < found.cells_total
    assert f"{expected - 1} of {expected} cells are finished" in " ".join(notices(fewer))
    assert ("at the edge of the grid" in said) == any(row.at_edge for row in found.rows)


def test_no_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="no results"):
        write_report(tmp_path)
    assert not (tmp_path / "report").exists()


def test_only_presets_get_the_sections_of_the_paper(results: Path, page: Path, tmp_path: Path) -> None:
    assert 'id="theory"' not in page.read_text(encoding="utf-8")
    spec = (results / "spec.toml").read_text()
    assert "BASS" not in spec
    named = spec.replace('name = "my grid"', 'name = "quick"')  # a name alone is not enough
    (results / "spec.toml").write_text(named)
    try:
        assert 'id="theory"' not in write_report(results).read_text(encoding="utf-8")
    finally:
        (results / "spec.toml").write_text(spec)
        write_report(results)


class Plain:
    """A policy of a user's own, which does not say how it is drawn."""

    def __init__(self, n_agents: int, dim: int) -> None: ...
    def select(self, agent: int, arms: object) -> int:
        return 0

    def update(self, agent: int, x: object, reward: float) -> None: ...


class Fancy(Plain):
    """One with a marker that the page's script has not heard of."""

    line_style = shoal.BASS.line_style._replace(marker="$f$")


@pytest.fixture(scope="module")
def own_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The report on policies of a user's own."""
    out = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        own = {"mine": type("Mine", (shoal.Independent,), {"name": "mine"}), "fancy": Fancy}
        own |= {name: type(name, (Plain,), {}) for name in ("first", "second")}
        text = GRID.split("[[methods]]")[0]
        for name, policy in own.items():
            patch.setitem(registry._registered, name, policy)
            text += f'[[methods]]\nid = "{name}"\npolicy = "{name}"\n'
        run_experiment(parse_spec(text.encode(), source="own.toml"), out, jobs=1, only="near")
        yield write_report(out)


def test_policies_of_the_user_s_own_are_told_apart(own_page: Path) -> None:
    text = own_page.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', text, re.S)
    assert data is not None
    series = json.loads(data[1])["regret-near"]["series"]
    markers = {entry["method"]: entry["marker"] for entry in series}
    assert markers == {"mine": "x", "fancy": "$f$", "first": "v", "second": "X"}


@needs_browser
def test_policies_of_the_user_s_own_are_drawn(own_page: Path) -> None:
    with open_browser() as browser:
        opened = Opened(browser, own_page)
        assert opened.view.locator("figure.live").count() == 3
        assert opened.complaints == []
        whole = opened.pixels()
        opened.first.get_by_label("second", exact=True).uncheck()
        assert opened.pixels() != whole


def test_harness_and_reporting_name_nothing_of_the_paper() -> None:
    package = Path(shoal.__file__).parent
    files = [*(package / "lab" / "experiments").rglob("*.py"), *(package / "reporting").rglob("*.[phmj]*")]
    files = [path for path in files if "__pycache__" not in path.parts]
    assert len(files) > 12
    for path in files:
        found = re.search(
            r"\b(BASS|MovieLens|Yahoo|published|ours|paper)\b", path.read_text(encoding="utf-8")
        )
        assert found is None, f"{path.name}: {found}"


def test_speed_is_rounds_per_second_and_efficiency_against_one_core() -> None:
    played = {"rounds": 1_000_000, "cpu_seconds": 30.0, "wall_seconds": 10.0, "thread_seconds": 40.0}
    said = speed(played)
    assert said.startswith("100,000 rounds per second on 4 threads, compiling and waiting included; ")
    assert "efficiency against one core 75% " in said
    assert " on 1 thread, " in speed({**played, "thread_seconds": 10.0})
