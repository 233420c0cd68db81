"""The report: what it says about whole, partial and missing results, and the page in a browser."""

import dataclasses
import html
import io
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from scipy import stats
from tests.browser import Opened, needs_browser, open_browser
from tests.lab.paper.test_theory import TINY

import shoal
from shoal.lab.experiments.measurements import Measurement, keep_outcome
from shoal.lab.experiments.report import PAIRED_COLUMNS, line
from shoal.lab.experiments.results import (
    Grid,
    GridCell,
    ResultsError,
    StoredCell,
    cell_files,
    columns,
    load_runs,
    read_cell,
    write_cell,
)
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import ExperimentSpec, cells, parse_spec
from shoal.lab.experiments.stored import Results, load_results
from shoal.lab.experiments.summaries import summarize
from shoal.lab.paper import (
    beyond,
    illustrations,
    judging,
    measuring,
    published,
    real_data,
    report,
    reproduce,
    theory_page,
)
from shoal.lab.paper.presets import load_preset
from shoal.lab.paper.report import (
    Reproduction,
    agreement_sentence,
    notices,
    order_sentence,
    reproduction,
)
from shoal.reporting import render
from shoal.reporting.sections import Table

pytestmark = pytest.mark.slow

SPEC = """
name = "small <b>&amp; quick"
horizon = 300
runs = 4
alphas = [0.1, 0.5, 1.0]

[[environments]]
id = "synthetic-m3-w1"
title = "M=3, Δ<0.20"
kind = "synthetic"
parameters = { n_agents = 9, dim = 4, n_clusters = 3, angle = 0.2 }

[[environments]]
id = "yahoo-ltr"
title = "Learning to rank"
kind = "letor"
optional = true
parameters = { n_agents = 9, dim = 4, n_arms = 5, path = "/no/such/file_LONG" }

[[methods]]
id = "ind"
label = "Ind"
policy = "independent"

[[methods]]
id = "oracle"
label = "Oracle"
policy = "oracle"
parameters = { labels = "labels" }
environments = ["synthetic-m3-w1"]

[[methods]]
id = "bass-d0.1"
label = "BASS δ=0.1"
policy = "bass"
parameters = { delta = 0.1 }

[[methods]]
id = "bass-d0.9"
label = "BASS δ=0.9"
policy = "bass"
parameters = { delta = 0.9 }

[[methods]]
id = "mixture"
label = "ClusterMixture (ours)"
policy = "cluster_mixture"
alphas = [0.6]

[[methods]]
id = "mixture-best"
label = "ClusterMixture (ours), best α"
policy = "cluster_mixture"

[[methods]]
id = "bass-g1"
label = "BASS γ=1"
policy = "bass"
parameters = { delta = 0.1, gamma = 1.0, radius = "beta_squared" }
group = "gamma"
environments = ["synthetic-m3-w1"]
""".replace("LONG", 9 * "too_long_")  # wider than a telephone


def small_measurements(spec: ExperimentSpec) -> list[Measurement]:
    """What the report needs beside the grid, less of it for the section on theory, to save time."""
    return [*measuring.measurements(TINY), *illustrations.measurements(), *real_data.measurements(spec)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small experiment, played: one environment, and one whose data is missing."""
    out = tmp_path_factory.mktemp("results")
    spec = parse_spec(SPEC.encode(), source="small.toml")
    done = run_experiment(
        spec, out, jobs=1, command="shoal run small.toml", measurements=small_measurements(spec)
    )
    assert set(done.skipped) == {"yahoo-ltr"}
    return out


@pytest.fixture(scope="module")
def page(results: Path) -> Path:
    return written(results)


def written(out: Path) -> Path:
    """The paper's report on results, whatever their spec."""
    return render.write(report.document(reproduction(load_results(out))), out / "report")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are made and not drawn, where only what is written matters."""

    def save(figure: Any, directory: Path, name: str) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.png").write_bytes(b"")
        return directory / f"{name}.png"

    monkeypatch.setattr(render, "save", save)


def copy_of(results: Path, target: Path) -> Path:
    return Path(shutil.copytree(results, target, ignore=shutil.ignore_patterns("report")))


PRINTED_SPEC = """
name = "tables"
horizon = 50000
runs = 2
alphas = [0.1, 0.3, 0.825, 1.55, 2.275, 3.0]

[[environments]]
id = "synthetic-m3-w7"
title = "M=3, Δ=1.27"
kind = "synthetic"
parameters = { n_agents = 100, dim = 10, n_clusters = 3, angle = 1.3744467859455345 }
"""
POLICIES = {
    "ind": ("independent", "{}"),
    "oracle": ("oracle", '{ labels = "labels" }'),
    "bass-d0.1": ("bass", "{ delta = 0.1 }"),
    "club-g4": ("club", '{ gamma = "gap/4" }'),
}


def published_results(
    out: Path,
    shifts: dict[str, float],
    policies: dict[str, tuple[str, str]] = POLICIES,
    scores: dict[str, float] | None = None,
) -> Path:
    """Results in the paper's setting, made up, not played: at α = 0.825 the printed figures, shifted.

    At α = 0.3, which is not one of the published values, every regret is 100 lower.
    """
    text = PRINTED_SPEC
    for method, (policy, parameters) in policies.items():
        text += f'\n[[methods]]\nid = "{method}"\nlabel = "{method.upper()}"\npolicy = "{policy}"\n'
        text += f"parameters = {parameters}\n"
    (out / "cells").mkdir(parents=True)
    (out / "spec.toml").write_text(text, encoding="utf-8")
    made_up = []
    for method, (policy, _) in policies.items():
        for alpha in (0.3, *published.ALPHAS):
            known = published.VARIANTS.get(method, method)
            mean = published.FINAL_REGRET["synthetic-m3-w7"][known].value + shifts.get(method, 0.0)
            mean += {0.3: -100.0, 0.825: 0.0}.get(alpha, 50.0)
            score = (scores or {}).get(method, published.F1["synthetic-m3-w7"][known].value)
            made_up += [
                _made_up(method, policy, alpha, run, mean + 4.0 * run - 2.0, score) for run in range(2)
            ]
    _store(out, made_up)
    return out


def _store(out: Path, made_up: list[dict[str, Any]]) -> None:
    """Write rows as the results of a grid, in place of those that are there."""
    by_cell: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in made_up:
        names = row["environment"], row["method"], row["policy"], row["group"], row["alpha"]
        by_cell.setdefault(names, []).append(row)
    cells = []
    for number, (names, rows) in enumerate(by_cell.items()):
        place, method, policy, group, alpha = names
        cells.append(GridCell("made up", place, method, policy, group, alpha, str(number), {}))
        path = out / "cells" / f"made-up-{number}.parquet"
        table = pa.Table.from_pylist(rows, schema=columns())
        write_cell(path, table, StoredCell("made up", str(number), {}))
    (out / "grid.json").write_bytes(msgspec.json.encode(Grid(0, 2, cells)))


def _made_up(method: str, policy: str, alpha: float, run: int, regret: float, score: float) -> dict[str, Any]:
    return {
        "environment": "synthetic-m3-w7",
        "method": method,
        "policy": policy,
        "group": "main",
        "alpha": alpha,
        "seed": run,
        "horizon": 50_000,
        "n_agents": 100,
        "dim": 10,
        "n_arms": 15,
        "gap": 1.27,
        "environment_parameters": "{}",
        "policy_parameters": '{"delta": 0.1}',
        "final_regret": regret,
        "final_f1": score,
        "final_edges": 1,
        "communication_cost": 1,
        "seconds": 1.0,
        "rounds_per_second": 1.0,
        "curve_rounds": [25_000, 50_000],
        "curve_regret": [regret / 2.0, regret],
        "curve_f1": [score, score],
        "curve_edges": [1, 1],
        "first_separation": 1.0,
        "separated_share": 0.5,
        "software": "shoal",
        "machine": "none",
    }


def gathered(out: Path) -> Reproduction:
    return reproduction(load_results(out))


def markdown(own: Reproduction) -> str:
    """The report as Markdown."""
    return render.markdown(report.document(own))


def test_report_is_complete(results: Path, page: Path) -> None:
    target = results / "report"
    assert page == target / "index.html"
    images = {path.name for path in (target / "figures").iterdir()}
    kinds = ["regret", "alpha", "f1"]
    names = [f"{kind}-synthetic-m3-w1{whose}" for kind in kinds for whose in ("", "-ours")]
    names += ["gamma", "flow-chart"]
    names += ["ellipsoids-sharing", "ellipsoids-separating", "theory-coverage", "theory-separation"]
    names += ["theory-low-noise", "theory-sharing", "theory-clusters"]
    assert images == {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}
    text, theory = ((target / name).read_text(encoding="utf-8") for name in ("index.html", "theory.html"))
    assert text.count("data:image/png;base64,") == 10
    assert theory.count("data:image/png;base64,") == 5
    for section in (
        "final-regret",
        "f1",
        "paired",
        "beyond",
        "figures",
        "sharing",
        "real-data",
        "provenance",
    ):
        assert f'<section id="{section}">' in text
        assert f'href="#{section}"' in text
    assert 'href="theory.html"' in text
    assert 'href="index.html"' in theory


def test_page_needs_nothing_else(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    markup = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    addresses = re.findall(r"""(?:src|link [^>]*href)="([^"]+)|url\(([^)]+)""", markup)
    assert len(addresses) == 11
    for address in map("".join, addresses):
        assert address.startswith("data:"), address
    assert "@import" not in text
    for link in re.findall(r'<a href="([^"#]+)"', markup):  # what one may follow lies beside it
        assert (page.parent / link).is_file(), link


def test_names_from_the_spec_cannot_break_the_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "small &lt;b&gt;&amp;amp; quick" in text
    assert "<b>" not in text
    assert "M=3, Δ&lt;0.20" in text
    data = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', text, re.S)
    assert data is not None
    assert "<" not in data[1]
    assert json.loads(data[1])["regret-synthetic-m3-w1"]["title"].startswith("M=3, Δ<0.20")


def test_page_and_tables_hold_the_numbers(results: Path, page: Path) -> None:
    own = gathered(results)
    text = (results / "report" / "tables.md").read_text(encoding="utf-8")
    for row in own.found.rows:
        shown = f"{row.regret.mean:,.0f} ± {row.regret.std:,.0f}"
        assert shown in text
        assert shown in shown_by(page)
    assert text == markdown(own)
    assert "shoal run small.toml" in text
    assert "CPU-hours" in text
    assert "8,400 CPU-hours" not in text  # that is for all of the paper's experiments
    assert f"Commit: {own.found.provenance['commit']}" in text
    assert f"shoal {shoal.__version__}" in text


def shown_by(page: Path) -> str:
    """The text of a page as it reads."""
    return html.unescape(page.read_text(encoding="utf-8")).replace("\u00a0", " ")


def test_the_authors_time_is_compared_only_where_all_of_their_work_was_done(results: Path) -> None:
    found = load_results(results)
    paper = load_preset("paper")
    whole = dataclasses.replace(
        found, spec=paper, skipped={}, cells_done=len(cells(paper)), provenance={"cpu_seconds": 7200.0}
    )

    def said(own: Results) -> bool:
        return "8,400 CPU-hours" in str(report._provenance_section(own))

    assert said(whole)
    assert not said(dataclasses.replace(whole, cells_done=10))
    assert not said(dataclasses.replace(whole, skipped={"yahoo-ltr": "no file"}))
    assert not said(dataclasses.replace(whole, spec=load_preset("tables")))
    assert not said(dataclasses.replace(whole, spec=msgspec.structs.replace(paper, runs=10)))


def test_our_own_method_is_set_apart(results: Path, page: Path) -> None:
    own = gathered(results)
    (contest,) = own.contests
    text = (results / "report" / "tables.md").read_text(encoding="utf-8")
    shown = shown_by(page)
    assert "of the paper's methods" in order_sentence(own)
    of_defaults = (beyond.DEFAULTS, beyond.MINUS_DEFAULTS)  # this grid has no settings beside the defaults
    columns = [one for one in (*beyond.MEANS, *beyond.DIFFERENCES) if one not in of_defaults]
    for said in (
        beyond.summary(own.contests), beyond.NOTE, report.OURS_NOTE, *line(columns, contest),
        *(part for pair in contest.pairs for part in line(PAIRED_COLUMNS, pair)),
    ):  # fmt: skip
        assert said in text
        assert said in shown
    lines = [line for line in text.splitlines() if line.startswith("| ClusterMixture (ours) |")]
    assert lines[0].split(" | ")[1] == "0.6 (fixed)"
    assert shown.count('<tr class="apart">') == 4  # two rows, in both tables
    chart = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', shown, re.S)
    assert chart is not None
    drawn = {key: [s["method"] for s in value["series"]] for key, value in json.loads(chart[1]).items()}
    assert not any("mixture" in method for method in drawn["regret-synthetic-m3-w1"])
    assert "mixture" in drawn["regret-synthetic-m3-w1-ours"]
    assert "mixture" not in drawn["alpha-synthetic-m3-w1-ours"]  # one α is no curve
    assert "mixture-best" in drawn["alpha-synthetic-m3-w1-ours"]
    assert "Bold: BASS. Italics: not in the paper." in shown


@pytest.mark.usefixtures("page", "undrawn")
def test_errors_of_the_fills_are_kept_and_shown(results: Path, tmp_path: Path) -> None:
    assert real_data.fill_errors(load_results(results)) == {}  # no real data among these results
    assert "Filling missing rewards" not in (results / "report" / "tables.md").read_text(encoding="utf-8")
    out = copy_of(results, tmp_path / "out")
    keep_outcome(out, Measurement("fills/letor", {}, dict), {"mean-only": 0.7953, "paper": 0.9188})
    page = written(out).read_text(encoding="utf-8")
    text = (out / "report" / "tables.md").read_text(encoding="utf-8")
    assert "| Learning to rank | 0.795 | 0.919 |" in text
    assert "<td>0.919</td>" in page
    assert "Filling missing rewards" in text
    both = {"movielens": {"mean-only": 0.8904, "paper": 0.9379}, "letor": {"mean-only": 0.7, "paper": 0.9}}
    _, _, table = real_data.fill_parts(both)
    assert table.lines[0] == ["MovieLens", "0.890", "0.938"]  # type: ignore[union-attr]


def checks_of(results: Path) -> list[judging.Check]:
    """The checks of the theory, from what the run kept."""
    measured = measuring.load_measured(results)
    assert measured is not None
    return judging.judge(measured)


def test_theory_is_held_against_simulation(results: Path, page: Path) -> None:
    assert "Every bound against its experiment" not in shown_by(page)  # it has a page of its own
    section = shown_by(page.parent / "theory.html")
    tables = (results / "report" / "theory.md").read_text(encoding="utf-8")
    checks = checks_of(results)
    assert {check.holds for check in checks} >= {"yes", "no", "does not apply"}
    for text in (section, tables):
        assert theory_page.BENCHMARK_NOTE in text
        assert theory_page.summary(checks) in text
        for remark in theory_page.remarks(checks):
            assert remark in text
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", section)
    assert len(rows) == len(checks)
    for row, check in zip(rows, checks, strict=True):
        assert f">{check.holds}</td>" in row
        assert all(text in row for text in line(theory_page.COLUMNS, check))
        assert "| " + " | ".join(line(theory_page.COLUMNS, check)) + " |" in tables
    assert section.count('<td class="no">') == sum(check.holds == "no" for check in checks)


def test_the_report_simulates_nothing(results: Path, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = page.read_bytes()
    for module in (measuring, illustrations):
        monkeypatch.setattr(module, "simulate", lambda *_, **__: pytest.fail("simulated while reporting"))
        monkeypatch.setattr(module, "BASS", lambda *_, **__: pytest.fail("built while reporting"))
    assert written(results).read_bytes() == before


@pytest.mark.usefixtures("undrawn")
def test_measurements_that_are_missing_are_said(results: Path, tmp_path: Path) -> None:
    out = copy_of(results, tmp_path / "out")
    (out / "measurements" / "theory__coverage.json").unlink()
    page = written(out)
    assert "Not measured here: run the same command again" in shown_by(page.parent / "theory.html")
    assert '<section id="sharing">' in shown_by(page)


@pytest.mark.usefixtures("page")
def test_another_setting_is_said_and_not_flagged(results: Path) -> None:
    found = gathered(results)
    assert not found.comparable("synthetic-m3-w1")
    assert any(
        "T = 300 rounds" in text and "no published figures are shown" in text for text in notices(found)
    )
    text = (results / "report" / "tables.md").read_text(encoding="utf-8")
    for word in ("6,100.7", "| published", "| difference", "agrees", "in print", "As published"):
        assert word not in text


def test_missing_data_is_explained_and_the_rest_complete(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<strong>Yahoo! learning to rank</strong>: left out" in text
    assert "/no/such/file" in text
    assert "shoal data fetch" in text


@pytest.mark.usefixtures("undrawn")
def test_missing_cells_are_said(results: Path, tmp_path: Path) -> None:
    out = copy_of(results, tmp_path / "partial")
    for path in (out / "cells").glob("*__ind__*"):
        path.unlink()
    (out / "provenance.json").unlink()
    shutil.rmtree(out / "measurements")
    found = gathered(out)
    assert [row.method for row in found.found.rows] == [
        "oracle",
        "bass-d0.1",
        "bass-d0.9",
        "mixture",
        "mixture-best",
    ]
    assert any("are finished" in text for text in notices(found))
    page = written(out)
    assert "provenance.json is missing" in (out / "report" / "tables.md").read_text(encoding="utf-8")
    assert "no comparison of BASS" in order_sentence(found)  # the Oracle is not a rival
    assert [pair.method for pair in found.pairs] == ["oracle"]
    assert page.exists()


@pytest.mark.usefixtures("undrawn")
def test_results_without_bass(results: Path, tmp_path: Path) -> None:
    out = copy_of(results, tmp_path / "ind")
    for path in (out / "cells").iterdir():
        if "__ind__" not in path.name:
            path.unlink()
    text = written(out).read_text(encoding="utf-8")
    assert 'id="paired"' not in text
    assert "no comparison of BASS" in text


def test_no_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="no results"):
        written(tmp_path)
    assert not (tmp_path / "report").exists()


def test_both_readings_stand_beside_the_printed_figures(tmp_path: Path) -> None:
    own = gathered(published_results(tmp_path / "out", {"club-g4": -1000.0, "bass-d0.1": 100.0}))
    assert own.comparable("synthetic-m3-w7")
    text = markdown(own)
    assert published.INFERENCE in text  # the five values are an inference, and called one
    assert (
        "| method | as published | published | mean: difference (in s.e.) | median: difference (in s.e.) "
        "| ±, ours over printed | at its best | 95% interval | median |"
    ) in text
    assert (
        "| BASS-D0.1 | 1,718 ± 3 at α=0.825 | 1,617.5 ± 689.8 | +100 (+1.0) | +100 (+0.8) | ×0.00, differs "
        "| 1,618 ± 3 at α=0.3 |"
    ) in text
    assert (
        "| CLUB-G4 | 4,823 ± 3 at α=0.825 | 5,822.7 ± 430.6 | −1,000 (−16.4), differs | −1,000 (−13.1)"
        in text
    )
    assert text.count("in print") == 1  # one sentence for the row that differs
    assert "CLUB-G4, M=3, Δ=1.27: mean 4,823 here, 5,822.7 in print, 17% lower, 16.4 standard errors." in text
    said = agreement_sentence(own)
    assert said == (
        "As published, 3 and 3 of 4 final regrets agree with the printed ones, by their mean and by their "
        "median over runs, and 4 of 4 F1 scores; not CLUB-G4 in M=3, Δ=1.27, −17% or 16.4 standard errors. "
        "The ± agree in 0 of 4 (ours over printed ×0.00 to ×0.01)."
    )
    assert "Tₑ" not in said  # CMLB was not run
    assert "| M=3, Δ=1.27 | −3,748 (−3,748 to −3,748) | 100% | −3,748" in text  # BASS minus Ind
    assert any("2 runs here, 50 in the paper" in text for text in notices(own))
    assert order_sentence(own) == (
        "At its best, BASS has the lowest mean regret of the paper's methods that do not know the clusters "
        "in 1 of 1 scenario."
    )


def test_how_long_cmlb_explores_is_scanned_and_called_an_inference(tmp_path: Path) -> None:
    policies = POLICIES | {
        "cmlb-g4": ("cmlb", '{ gamma = "gap/4" }'),
        "cmlb-g4-e5000": ("cmlb", '{ gamma = "gap/4", exploration_rounds = 5000 }'),
    }
    own = gathered(published_results(tmp_path / "out", {"cmlb-g4": 10_000.0}, policies))
    said = agreement_sentence(own)
    assert said.startswith("As published, 5 and 5 of 5 final regrets agree")
    assert "5 of 5 F1 scores if CMLB explores for Tₑ = 5,000 (T/10) rounds. That is an inference" in said
    assert "its package's default, it is 4 and 4 of 5 and 5 of 5; not CMLB-G4 in M=3, Δ=1.27, +186%" in said
    text = markdown(own)
    assert report.EXPLORATION_NOTE in text
    assert "| 1,000 | 15,372 ± 3 (15,372; F1 0.00) | 4 and 4 of 5 | 5 of 5 |" in text
    assert "| 5,000 | 5,372 ± 3 (5,372; F1 0.00) | 5 and 5 of 5 | 5 of 5 |" in text


def test_a_higher_score_than_bass_s_is_said(tmp_path: Path) -> None:
    policies = POLICIES | {"dynucb": ("dynucb", "{ n_clusters = 3 }")}
    assert report.f1_sentence(gathered(published_results(tmp_path / "a", {}, policies))) == ""
    scores = {"bass-d0.1": 0.66, "dynucb": 0.7}
    own = gathered(published_results(tmp_path / "b", {}, policies, scores))
    said = report.f1_sentence(own)
    assert said.endswith("each at its best α (M=3, Δ=1.27: DYNUCB 0.70, BASS-D0.1 0.66).")  # not Oracle
    assert said in report.document(own).remarks


def test_readings_of_real_data_stand_side_by_side_with_rank_correlations(tmp_path: Path) -> None:
    printed = published.FINAL_REGRET["movielens-authors"]
    runs = np.arange(6.0) - 2.5
    order = dict(zip(printed, sorted(figure.value for figure in printed.values()), strict=True))
    tables = {
        "movielens-authors": {key: figure.value for key, figure in printed.items()},
        "movielens-rated": order,
    }
    rows = {
        (key, method): SimpleNamespace(label=method, regret=summarize(mean + runs))
        for key, means in tables.items()
        for method, mean in means.items()
    }
    found: Any = SimpleNamespace(environments=[*tables, "yahoo-ltr"], title=str.upper)
    *_, table = real_data.reading_parts(found, rows)  # type: ignore[arg-type]
    assert isinstance(table, Table)
    assert table.header == ["method", "published, MovieLens 25M", "MOVIELENS-AUTHORS", "MOVIELENS-RATED"]
    assert len(table.lines) == 12
    assert table.lines[0] == ["ind", "11,825.2 ± 594.1", "11,825 (11,825 ± 2)", "10,273 (10,273 ± 2)"]
    expected = stats.spearmanr(list(order.values()), [figure.value for figure in printed.values()]).statistic
    last = table.lines[-1]
    assert last[2] == "1.00 (1.00 to 1.00), means 1.00"
    assert last[3].endswith(f"means {expected:.2f}".replace("-", "−"))
    assert "an inference" in real_data.READINGS_NOTE


def test_without_all_five_values_there_is_one_reading(tmp_path: Path) -> None:
    out = published_results(tmp_path / "out", {})
    at_three = [path for path in cell_files(out) if set(read_cell(path)[0]["alpha"].to_pylist()) == {3.0}]
    assert len(at_three) == len(POLICIES)
    for path in at_three:
        path.unlink()
    own = gathered(out)
    assert not own.comparable("synthetic-m3-w7")
    text = markdown(own)
    assert "as published" not in text
    assert "| method | best α | mean ± std |" in text


def test_nothing_is_said_that_the_table_contradicts(results: Path, tmp_path: Path) -> None:
    """A sentence on a scenario lists the rows from the lowest up: none is left out."""
    for own in (
        gathered(results),
        gathered(published_results(tmp_path / "a", {})),
        gathered(published_results(tmp_path / "b", {"oracle": 2000.0, "ind": -5000.0})),
    ):
        for environment in own.found.environments:
            rows = sorted(own.found.of(environment), key=lambda row: row.regret.mean)
            listed = ", ".join(f"{row.label} {row.regret.mean:,.0f}" for row in rows)
            said = report.scenario_sentence(own, environment).split("each at its best: ")[1].split(";")[0]
            assert listed.startswith(said.removesuffix("."))
            assert len(said.split(", ")) >= 2


def test_a_method_below_bass_is_named(tmp_path: Path) -> None:
    own = gathered(published_results(tmp_path / "out", {"oracle": 2000.0, "ind": -5000.0}))
    assert "in 0 of 1 scenario; lower are IND in M=3, Δ=1.27." in order_sentence(own)


def test_it_opens_with_the_first_scenario_in_a_plain_sentence(tmp_path: Path) -> None:
    own = gathered(published_results(tmp_path / "out", {}))
    opened = report.document(own)
    assert opened.lead == (
        "M=3, Δ=1.27, regret after 50,000 rounds: agents that learn alone (IND) end at 5,365, BASS-D0.1 ends "
        "at 1,518, agents that are told their clusters (ORACLE) at 193 (mean of 2 runs, less is better)."
    )
    assert opened.opening is not None
    assert opened.opening.name == "regret-synthetic-m3-w7"


def test_figures_of_other_data_are_shown_and_not_compared(tmp_path: Path) -> None:
    out = published_results(tmp_path / "out", {})
    spec = (out / "spec.toml").read_text(encoding="utf-8")
    (out / "spec.toml").write_text(spec.replace("synthetic-m3-w7", "movielens-rated"), encoding="utf-8")
    changed = {"environment": "movielens-rated", "gap": math.nan, "n_arms": 30}
    _store(out, [row | changed for row in load_runs(out).to_pylist()])
    own = gathered(out)
    assert (own.comparable("movielens-rated"), own.other_data("movielens-rated")) == (False, "MovieLens 25M")
    text = markdown(own)
    assert (
        "| method | as published | published, MovieLens 25M | at its best | 95% interval | median |" in text
    )
    assert "11,825.2 ± 594.1" in text
    assert any("the paper used MovieLens 25M" in said for said in notices(own))
    assert agreement_sentence(own) == ""


def test_a_difference_that_may_be_chance_is_said(tmp_path: Path) -> None:
    out = published_results(tmp_path / "out", {"ind": 1617.5 - 5465.0 + 1.0, "club-g4": 0.0})
    found = load_results(out)

    def said(found: Results) -> str:
        return report.scenario_sentence(reproduction(found), "synthetic-m3-w7")

    # As made up, the difference is the same in every run.
    assert "chance could explain" not in said(found)
    rows = found.table
    regrets = np.array(rows["final_regret"].to_pylist())
    methods, runs = np.array(rows["method"].to_pylist()), np.array(rows["run"].to_pylist())
    regrets += 50.0 * ((methods == "ind") & (runs == 0))
    position = rows.schema.get_field_index("final_regret")
    changed = rows.set_column(position, "final_regret", [regrets.tolist()])
    assert "chance could explain" in said(dataclasses.replace(found, table=changed))


def test_our_own_preset_has_no_page_on_the_theory(results: Path, tmp_path: Path) -> None:
    out = copy_of(results, tmp_path / "out")
    spec = (out / "spec.toml").read_text(encoding="utf-8")
    (out / "spec.toml").write_text(
        spec.replace(json.dumps(load_results(results).spec.name), '"beyond"'), encoding="utf-8"
    )
    own = report.document(gathered(out))
    assert own.further == {}
    assert own.title == report.TITLES["beyond"]
    assert not any(item.id.startswith("theory") for item in reproduce.measurements(load_preset("beyond")))
    assert any(item.id.startswith("theory") for item in reproduce.measurements(load_preset("quick")))


# The page in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@needs_browser
def test_page_renders_without_complaint_or_network(browser: Any, page: Path) -> None:
    opened = Opened(browser, page)
    assert opened.view.evaluate("document.documentElement.dataset.ready") == "6"
    assert opened.view.locator("figure.live").count() == 6
    assert opened.view.locator("figure.live img:visible").count() == 0  # the chart is in its place
    box = opened.first.locator(".plot canvas").first.bounding_box()
    assert box["width"] > 500
    assert box["height"] > 200
    for image in opened.view.locator("figure:not(.live) img").all():
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")
    assert [url for url in opened.requests if not url.startswith("data:")] == [page.as_uri()]
    assert opened.complaints == []
    opened.view.close()


@needs_browser
def test_methods_can_be_chosen(browser: Any, page: Path) -> None:
    opened = Opened(browser, page)
    whole = opened.pixels()
    opened.first.get_by_label("Ind", exact=True).uncheck()
    assert opened.pixels() != whole
    for figure in opened.view.locator("figure.live").all():  # chosen for the whole page
        assert not figure.get_by_label("Ind", exact=True).is_checked()
    opened.first.get_by_role("button", name="Show all").click()
    assert opened.first.get_by_label("Ind", exact=True).is_checked()
    opened.view.mouse.move(0, 0)
    assert opened.pixels() == whole
    assert opened.complaints == []
    opened.view.close()


@needs_browser
def test_hovering_and_arrow_keys_show_values(browser: Any, page: Path, results: Path) -> None:
    opened = Opened(browser, page)
    row = next(row for row in gathered(results).found.rows if row.method == "bass-d0.1")
    assert opened.round() == 300
    assert opened.value("BASS δ=0.1").startswith(f"{row.regret.mean:,.0f} (")
    area = opened.first.locator(".u-over").bounding_box()
    opened.view.mouse.move(area["x"] + area["width"] / 3, area["y"] + area["height"] / 2)
    shown = opened.round()
    assert 90 < shown < 110
    table = load_runs(results)
    at = next(k for k, t in enumerate(table["curve_rounds"][0].as_py()) if t == shown)
    curves = np.array([table["curve_regret"][int(index)].as_py() for index in row.cell.rows])
    assert opened.value("BASS δ=0.1").startswith(f"{curves[:, at].mean():,.0f} (")
    opened.first.locator(".plot").focus()
    opened.view.keyboard.press("ArrowRight")
    assert opened.round() > shown
    assert opened.complaints == []
    opened.view.close()


@needs_browser
def test_zoom_reset_and_logarithm(browser: Any, page: Path) -> None:
    opened = Opened(browser, page)
    opened.view.mouse.move(0, 0)
    whole = opened.pixels()
    area = opened.first.locator(".u-over").bounding_box()
    opened.view.mouse.move(area["x"] + 0.5 * area["width"], area["y"] + 0.5 * area["height"])
    opened.view.mouse.down()
    opened.view.mouse.move(area["x"] + 0.75 * area["width"], area["y"] + 0.8 * area["height"], steps=4)
    opened.view.mouse.up()
    # Half-way across what is now a quarter of the rounds, which began half-way.
    opened.view.mouse.move(area["x"] + 0.5 * area["width"], area["y"] + 0.5 * area["height"])
    assert 180 < opened.round() < 195
    opened.view.mouse.move(0, 0)
    assert opened.pixels() != whole
    opened.first.get_by_role("button", name="Reset zoom").click()
    opened.view.mouse.move(0, 0)
    assert opened.pixels() == whole
    opened.first.get_by_label("logarithmic axis").check()
    assert opened.pixels() != whole
    opened.first.get_by_label("logarithmic axis").uncheck()
    assert opened.pixels() == whole
    assert opened.complaints == []
    opened.view.close()


@needs_browser
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_page_fits_its_width(browser: Any, page: Path, width: int) -> None:
    opened = Opened(browser, page, viewport={"width": width, "height": 800})
    assert opened.view.evaluate("document.documentElement.scrollWidth") <= width
    box = opened.first.locator(".plot canvas").first.bounding_box()
    assert 0 < box["x"] < box["x"] + box["width"] < width
    opened.view.set_viewport_size({"width": 390, "height": 800})
    opened.view.wait_for_function(
        "document.querySelector('.plot canvas').getBoundingClientRect().right < 390"
    )
    assert opened.complaints == []
    opened.view.close()


@needs_browser
def test_page_works_without_scripts_and_on_paper(browser: Any, page: Path) -> None:
    plain = browser.new_context(java_script_enabled=False)
    still = plain.new_page()
    still.goto(page.as_uri())
    assert still.locator("figure img:visible").count() == 10
    plain.close()
    opened = Opened(browser, page)
    opened.view.emulate_media(media="print")
    assert opened.view.locator("figure img:visible").count() == 10
    assert opened.view.locator(".plot:visible, .buttons:visible").count() == 0
    opened.view.close()


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_either_scheme(browser: Any, page: Path, scheme: str) -> None:
    """Contrast of every piece of text with the background behind it is at least 4.5 (WCAG AA)."""
    opened = Opened(browser, page, color_scheme=scheme)
    poor = opened.view.evaluate(
        """() => {
          const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
          const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
            .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
            .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
          const behind = (node) => {
            for (; node; node = node.parentElement) {
              const rgb = parse(getComputedStyle(node).backgroundColor);
              if (rgb.length === 3 || rgb[3] === 1) return rgb;
            }
            return [255, 255, 255];
          };
          const found = [];
          for (const node of document.querySelectorAll("body *")) {
            const own = [...node.childNodes].some((part) => part.nodeType === 3 && part.data.trim());
            if (!own || !node.offsetParent || ["SCRIPT", "STYLE"].includes(node.tagName)) continue;
            const text = light(parse(getComputedStyle(node).color)), page = light(behind(node));
            const contrast = (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05);
            if (contrast < 4.5) found.push(node.tagName + ": " + node.textContent.slice(0, 40));
          }
          return found;
        }"""
    )
    assert poor == []
    opened.view.close()


@needs_browser
def test_nothing_is_cut_off_at_1300_and_on_a_telephone_it_is_said_what_scrolls(
    browser: Any, page: Path
) -> None:
    hidden = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth + 1).length"
    for name in ("index.html", "theory.html"):
        opened = browser.new_page(viewport={"width": 1300, "height": 900})
        opened.goto((page.parent / name).as_uri())
        boxes = opened.locator(".scroll, .still")
        assert boxes.count() > 0
        assert boxes.evaluate_all(hidden) == 0
        assert opened.locator("p.sideways:visible").count() == 0
        opened.set_viewport_size({"width": 420, "height": 900})
        opened.wait_for_function("document.querySelector('.wide') !== null")
        assert boxes.evaluate_all(hidden) == opened.locator("p.sideways:visible").count() > 0
        # A picture with text is not shrunk to a third.
        for image in opened.locator("figure:not(.live) img").all():
            assert image.bounding_box()["width"] > 600
        opened.close()


@needs_browser
def test_the_first_screen_shows_the_first_chart(browser: Any, page: Path) -> None:
    opened = Opened(browser, page, viewport={"width": 1300, "height": 900})
    opened.view.evaluate("scrollTo(0, 0)")
    box = opened.first.locator(".plot canvas").first.bounding_box()
    assert 0 < box["y"] < box["y"] + box["height"] < 900
    opened.view.close()


@needs_browser
def test_the_dark_reaches_the_charts(browser: Any, page: Path) -> None:
    """Where nothing is drawn a chart is as dark as the page, and its axes are light."""
    shades = {}
    for scheme in ("light", "dark"):
        opened = Opened(browser, page, color_scheme=scheme)
        with Image.open(io.BytesIO(opened.pixels())) as image:
            grey = np.asarray(image.convert("L"))
        shades[scheme] = float(np.median(grey)), float(grey.min()), float(grey.max())
        opened.view.close()
    assert shades["light"][0] > 230
    assert shades["dark"][0] < 60
    assert shades["dark"][2] > 150
