"""The report of any grid: complete, about that grid alone, and as fast as its figures."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import Opened, needs_browser, open_browser

import shoal
from shoal.experiments.report import KINDS, gather, headline, notices, scenario_sentence, write_report
from shoal.experiments.results import ResultsError, cell_files
from shoal.experiments.runner import run_experiment
from shoal.experiments.spec import parse_spec
from shoal.experiments.summaries import best_row, paired_with
from shoal.paper import reproduce
from shoal.policies import registry
from shoal.reporting import render

GRID = """
name = "my grid"
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
    reason = gather(results).skipped["absent"].rstrip(".")  # in the words of the environment
    for text in (html.unescape(markup), (results / "report" / "tables.md").read_text(encoding="utf-8")):
        text = text.replace(reason, "").replace(render.markdown_text(reason), "")
        for word in ("BASS", "paper", "published", "ours", "MovieLens", "Yahoo", "authors", "theory"):
            assert not re.search(rf"\b{word}\b", text), word


def test_page_and_markdown_hold_the_same_numbers(results: Path, page: Path) -> None:
    found = gather(results)
    text = (results / "report" / "tables.md").read_text(encoding="utf-8")
    for row in found.rows:
        shown = f"{row.regret.mean:,.0f} ± {row.regret.std:,.0f}"
        assert shown in text
        assert shown in page.read_text(encoding="utf-8")
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (results / "report" / picture).is_file()
    assert "shoal run grid.toml" in text
    assert "absent was left out" in text


def test_the_best_method_and_the_next_are_named(results: Path) -> None:
    found = gather(results)
    pairs = paired_with(found.table, found.rows, best_row)
    for environment in found.environments:
        best, other = sorted(found.of(environment), key=lambda row: row.regret.mean)
        text = scenario_sentence(found.of(environment), pairs)
        assert f"{best.label} ends at {best.regret.mean:,.0f}; the next, {other.label}, at" in text
    assert re.fullmatch(r"(Alone|Told) has the lowest mean regret in [12] of 2 scenarios\.", headline(found))
    assert scenario_sentence(found.of("near")[:1], []).endswith("There is nothing to compare it with.")


def test_a_grid_of_one_method_at_one_alpha_is_reported(results: Path, tmp_path: Path) -> None:
    text = GRID.split("[[methods]]")[0].replace("[0.1, 0.5, 1.0]", "[0.1]")
    text += '[[methods]]\nid = "alone"\npolicy = "independent"\n'
    run_experiment(parse_spec(text.encode(), source="one.toml"), tmp_path, jobs=1, only="near")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert 'id="paired"' not in page
    assert "alone has the lowest mean regret in 1 of 1 scenario." in page
    assert "1 of 3 cells are finished" in page
    assert not list((tmp_path / "report" / "figures").glob("alpha-*"))


def test_missing_cells_and_edges_are_said(results: Path) -> None:
    found = gather(results)
    said = " ".join(notices(found))
    assert f"{len(cell_files(results))} of {found.cells_total} cells are finished" in said
    assert ("at the edge of the grid" in said) == any(row.at_edge for row in found.rows)


def test_no_results_is_an_error(tmp_path: Path) -> None:
    for write in (write_report, reproduce.write_report):
        with pytest.raises(ResultsError, match="no results"):
            write(tmp_path)
    assert not (tmp_path / "report").exists()


def test_only_presets_get_the_sections_of_the_paper(results: Path, page: Path, tmp_path: Path) -> None:
    before = page.read_bytes()
    assert reproduce.write_report(results).read_bytes() == before
    spec = (results / "spec.toml").read_text()
    assert "BASS" not in spec
    named = spec.replace('name = "my grid"', 'name = "quick"')  # a name alone is not enough
    (results / "spec.toml").write_text(named)
    try:
        assert 'id="theory"' not in reproduce.write_report(results).read_text(encoding="utf-8")
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
    files = [*(package / "experiments").rglob("*.py"), *(package / "reporting").rglob("*.[phmj]*")]
    assert len(files) > 12
    for path in files:
        found = re.search(
            r"\b(BASS|MovieLens|Yahoo|published|ours|paper)\b", path.read_text(encoding="utf-8")
        )
        assert found is None, f"{path.name}: {found}"
