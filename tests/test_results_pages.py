"""The pages of results come from results alone."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.lab.paper.test_field import small
from tests.lab.paper.test_report import POLICIES, published_results

from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.stored import load_results
from shoal.lab.paper.report import agreement_sentence, reproduction

ROOT = Path(__file__).parents[1]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", ROOT / "tools" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "results", module)
    spec.loader.exec_module(module)
    return module


def pages(root: Path) -> tuple[Path, Path]:
    (root / "docs" / "results").mkdir(parents=True)
    readme, numbers = root / "README.md", root / "docs" / "results" / "README.md"
    readme.write_text("a\n<!-- reproduced -->\nold\n<!-- /reproduced -->\nb\n", encoding="utf-8")
    blocks = "".join(f"<!-- {name} -->\nold\n<!-- /{name} -->\nd\n" for name in ("tables", "paper"))
    numbers.write_text(f"c\n{blocks}", encoding="utf-8")
    return readme, numbers


def test_a_full_run_renews_the_pages(results: ModuleType, tmp_path: Path) -> None:
    out = published_results(tmp_path / "out", {"club-g4": -1000.0})
    readme, numbers = pages(tmp_path / "root")
    results.publish(out, tmp_path / "root")
    said = agreement_sentence(reproduction(load_results(out)))
    assert said in readme.read_text(encoding="utf-8")
    text = numbers.read_text(encoding="utf-8")
    assert text.startswith("c\n<!-- tables -->\n`shoal reproduce tables`")
    assert text.endswith("<!-- /tables -->\nd\n<!-- paper -->\nold\n<!-- /paper -->\nd\n")
    assert text.count("old") == 1
    assert said in text
    assert "| CLUB-G4 | 4,823 (5,823) |" in text
    assert "| M=3, Δ=1.27 | 5,365 ± 3 | 193 ± 3 | 1,518 ± 3 |" in text  # at their best; ours was not run
    target = tmp_path / "root" / "docs" / "results" / "tables"
    page = (target / "tables.md").read_text(encoding="utf-8")
    linked = re.findall(r"\(figures/([^)]+)\)", page)
    beside = page[: page.index("## F1 score")]  # as published, beside the table
    for kind in ("regret", "alpha"):
        assert f"(figures/{kind}-synthetic-m3-w7-published.png)" in beside
    assert {path.name for path in (target / "figures").iterdir()} == set(linked)
    before = text
    results.publish(out, tmp_path / "root")  # once more, the same
    assert numbers.read_text(encoding="utf-8") == before


def test_how_long_cmlb_explores_is_on_the_page(results: ModuleType, tmp_path: Path) -> None:
    policies = POLICIES | {
        "cmlb-g4": ("cmlb", '{ gamma = "gap/4" }'),
        "cmlb-g4-e5000": ("cmlb", '{ gamma = "gap/4", exploration_rounds = 5000 }'),
    }
    out = published_results(tmp_path / "out", {"cmlb-g4": 10_000.0}, policies)
    readme, numbers = pages(tmp_path / "root")
    results.publish(out, tmp_path / "root")
    section = numbers.read_text(encoding="utf-8").split("<!-- /tables -->")[0]
    assert "5 of 5 F1 scores if CMLB explores for Tₑ = 5,000 (T/10)" in section
    assert "CMLB as published, by the length of its exploration:\n\n| Tₑ |" in section
    assert "5 of 5 F1 scores if CMLB explores for Tₑ = 5,000 (T/10)" in readme.read_text(encoding="utf-8")


def test_the_field_has_its_ranks_on_the_page(results: ModuleType, tmp_path: Path) -> None:
    out, root = tmp_path / "out", tmp_path / "root"
    spec = small(methods=("independent", "bass", "lints", "oracle"))  # the test of ranks takes three of them
    run_experiment(spec, out, jobs=1)
    _, numbers = pages(root)
    numbers.write_text("<!-- field -->\nold\n<!-- /field -->\n", encoding="utf-8")
    results.publish(out, root)
    text = numbers.read_text(encoding="utf-8")
    assert "`shoal reproduce field` ([report](field/tables.md)): 16 cells of 4 runs of 120 rounds" in text
    assert "| BASS |" in text
    assert "Oracle" not in text
    assert (root / "docs" / "results" / "field" / "figures" / "critical-difference.png").exists()


def test_what_is_not_whole_is_not_published(results: ModuleType, tmp_path: Path) -> None:
    out = published_results(tmp_path / "out", {})
    next((out / "cells").iterdir()).unlink()
    readme, _ = pages(tmp_path / "root")
    before = readme.read_text(encoding="utf-8")
    with pytest.raises(results.ResultsError, match="23 of 24 cells are finished"):
        results.publish(out, tmp_path / "root")
    spec = (out / "spec.toml").read_text(encoding="utf-8")
    (out / "spec.toml").write_text(spec.replace('name = "tables"', 'name = "mine"'), encoding="utf-8")
    with pytest.raises(results.ResultsError, match="'mine' is not a preset"):
        results.publish(out, tmp_path / "root")
    assert readme.read_text(encoding="utf-8") == before


def test_a_page_without_a_place_is_refused(results: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here", encoding="utf-8")
    with pytest.raises(results.ResultsError, match="has no place for tables"):
        results.renew(page, "tables", "text")
