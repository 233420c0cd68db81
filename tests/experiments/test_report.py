"""The report of any grid: complete, about that grid alone, and as fast as its figures."""

import html
import json
import re
from pathlib import Path

import pytest

import shoal
from shoal.experiments.report import KINDS, gather, headline, notices, scenario_sentence, write_report
from shoal.experiments.results import ResultsError, cell_files
from shoal.experiments.runner import run_experiment
from shoal.experiments.spec import parse_spec
from shoal.experiments.summaries import best_row, paired_with
from shoal.paper import reproduce
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


def test_policies_of_the_user_s_own_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(shoal.Independent):
        name = "mine"

    class Plain:
        def __init__(self, n_agents: int, dim: int) -> None: ...
        def select(self, agent: int, arms: object) -> int:
            return 0

        def update(self, agent: int, x: object, reward: float) -> None: ...

    from shoal.policies import registry

    for name, policy in (("mine", Mine), ("first", Plain), ("second", type("Other", (Plain,), {}))):
        monkeypatch.setitem(registry._registered, name, policy)
    text = GRID.split("[[methods]]")[0]
    for name in ("mine", "first", "second"):
        text += f'[[methods]]\nid = "{name}"\npolicy = "{name}"\n'
    run_experiment(parse_spec(text.encode(), source="own.toml"), tmp_path, jobs=1, only="near")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', page, re.S)
    assert data is not None
    series = json.loads(data[1])["regret-near"]["series"]
    assert {entry["method"]: entry["marker"] for entry in series} == {
        "mine": "x",
        "first": "v",
        "second": "X",
    }


def test_harness_and_reporting_name_nothing_of_the_paper() -> None:
    package = Path(shoal.__file__).parent
    files = [*(package / "experiments").rglob("*.py"), *(package / "reporting").rglob("*.[phmj]*")]
    assert len(files) > 12
    for path in files:
        found = re.search(
            r"\b(BASS|MovieLens|Yahoo|published|ours|paper)\b", path.read_text(encoding="utf-8")
        )
        assert found is None, f"{path.name}: {found}"
