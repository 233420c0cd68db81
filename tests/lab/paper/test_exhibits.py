"""The paper by its own numbers: what each table and figure plays and writes, and the page that maps it."""

import re
import shutil
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.layout import check_layout
from typer.main import get_command
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import SpecError, cells
from shoal.lab.experiments.stored import Results, load_results
from shoal.lab.paper import exhibits, published, speed
from shoal.lab.paper.comparison import as_published, drawn
from shoal.lab.paper.exhibits import EXHIBITS, exhibit_spec, find_exhibit, write_exhibit
from shoal.lab.paper.flowchart import flow_chart
from shoal.lab.paper.presets import load_preset
from shoal.reporting.sections import Picture, Table

ROOT = Path(__file__).parents[3]
GRIDS = [exhibit for exhibit in EXHIBITS.values() if exhibit.environments]


@pytest.mark.parametrize("exhibit", GRIDS, ids=lambda exhibit: exhibit.name)
def test_a_grid_is_exactly_what_the_paper_played(exhibit: exhibits.Exhibit) -> None:
    spec, paper = exhibit_spec(exhibit), load_preset("paper")
    assert (spec.horizon, spec.runs, spec.alphas) == (paper.horizon, published.RUNS, published.ALPHAS)
    assert [item.id for item in spec.environments] == list(exhibit.environments)
    whole = {cell.id: cell for cell in cells(paper)}
    for cell in cells(spec):  # the same cells as in the preset `paper`, so their runs are the same
        known = whole[cell.id]
        assert cell.environment == known.environment
        assert (cell.method.policy, cell.method.parameters) == (known.method.policy, known.method.parameters)
    for key in exhibit.environments:
        here = {cell.method.id for cell in cells(spec) if cell.environment.id == key}
        printed = published.FINAL_REGRET.get(key)
        assert here == set(printed) if printed else len(here) == 11


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of table 2, small: two agents per cluster, 60 rounds."""
    out = tmp_path_factory.mktemp("published")
    exhibit = find_exhibit("table2")
    spec = exhibit_spec(exhibit, runs=2)
    small = msgspec.structs.replace(
        spec,
        horizon=60,
        points=10,
        environments=tuple(
            msgspec.structs.replace(item, parameters={**item.parameters, "n_agents": 6})
            for item in spec.environments
        ),
        methods=tuple(
            method for method in spec.methods if method.policy in ("independent", "oracle", "club", "bass")
        ),
    )
    run_experiment(small, out, jobs=1)
    return out


def stored(out: Path) -> Results:
    return load_results(out)


@pytest.mark.parametrize("name", ["table2", "table3", "figure3", "figure4", "figure5"])
def test_it_is_written_as_page_markdown_latex_and_pdf(name: str, played: Path) -> None:
    page = write_exhibit(find_exhibit(name), played)  # those that share runs with table 2 play nothing
    assert page == played / name / "index.html"
    assert find_exhibit(name).number in page.read_text(encoding="utf-8")
    assert (page.parent / "tables.md").exists()
    assert (page.parent / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    text = (page.parent / f"{name}.tex").read_text(encoding="utf-8")
    assert ("\\toprule" if name.startswith("table") else f"\\includegraphics{{{name}.pdf}}") in text


def test_ours_stand_beside_the_printed_figures(played: Path) -> None:
    (table,) = find_exhibit("table2").show(stored(played))
    assert isinstance(table, Table)
    assert table.header == ["method", "M=3, Δ=0.20", "in print", "M=3, Δ=1.27", "in print"]
    lines = {line[0]: line[1:] for line in table.lines}
    rows = as_published(stored(played).table, stored(played).names)
    for place, key in enumerate(("synthetic-m3-w1", "synthetic-m3-w7")):
        own, printed = rows[key, "bass-d0.1"].regret, published.FINAL_REGRET[key]["bass-d0.1"]
        assert lines["BASS δ=0.1"][2 * place] == f"{own.mean:,.1f} ± {own.std:,.1f}"
        assert lines["BASS δ=0.1"][2 * place + 1] == f"{printed.value:,.1f} ± {printed.spread:,.1f}"
        means = {
            line: rows[key, method].regret.mean
            for line, method in enumerate(dict.fromkeys(method for _, method in rows))
            if method != "oracle"
        }
        assert (min(means, key=lambda line: means[line]), 2 * place + 1) in table.strong
    assert "Bold" in table.key


def test_tables_and_figures_share_runs(played: Path, tmp_path: Path) -> None:
    """Another grid in the same directory plays only what no other has played, in the preset's cells, too."""
    out = tmp_path / "shared"
    shutil.copytree(played, out)
    spec = stored(played).spec
    other = msgspec.structs.replace(
        spec,
        name="other",
        environments=spec.environments[:1],
        methods=tuple(msgspec.structs.replace(method, environments=None) for method in spec.methods),
    )
    done = run_experiment(other, out, jobs=1)
    assert (done.computed, done.found) == (0, len(cells(other)))


def test_a_figure_has_the_same_few_methods_in_every_panel(played: Path) -> None:
    results = stored(played)
    shown = drawn(as_published(results.table, results.names).values())
    by_panel = {key: [row.method for row in shown if row.environment == key] for key in results.environments}
    first, second = by_panel.values()
    assert first == second
    assert [method for method in first if method.startswith("bass")] == ["bass-d0.1", "bass-d0.9"]
    rows = as_published(results.table, results.names)
    totals = {
        method: sum(rows[key, method].regret.mean for key in results.environments)
        for method in ("club-g4", "club-g2")
    }
    assert [method for method in first if method.startswith("club")] == [
        min(totals, key=lambda method: totals[method])  # the better of its two settings
    ]
    assert len(first) <= 8
    (part,) = find_exhibit("figure3").show(results)
    assert isinstance(part, Picture)
    check_layout(part.draw())


def test_the_flow_chart_can_be_read() -> None:
    figure = flow_chart()
    check_layout(figure)
    said = " ".join(text.get_text() for text in figure.axes[0].texts)
    for word in ("select", "observe", "revise", "Cut"):
        assert word in said


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"unknown preset, table or figure 'table1'; did you mean 'table"):
        find_exhibit("table1")


def test_minutes_follow_from_measured_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = exhibit_spec(find_exhibit("table4"), runs=3)  # real data: a stand-in is timed
    small: Any = msgspec.structs.replace(
        spec,
        horizon=20,
        methods=tuple(item for item in spec.methods if item.policy in ("independent", "club")),
    )
    said: list[str] = []
    taken = speed.run_seconds(small, cache=tmp_path, say=said.append)
    assert said == ["Measuring the speed of this machine, once: 6 runs …"]
    assert set(taken) == {f"{cell.environment.id}/{cell.method.id}" for cell in cells(small)}
    assert speed.run_seconds(small, cache=tmp_path, say=said.append) == taken  # kept
    assert len(said) == 1
    monkeypatch.setattr(speed, "processors", lambda: 2)
    total = sum(seconds * 5 * 3 for seconds in taken.values())  # five values of α, three runs
    assert speed.minutes(small, taken) == pytest.approx(total / 2 / 60)


def test_the_commands_list_and_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        speed,
        "run_seconds",
        lambda spec, **_: dict.fromkeys(
            [f"{cell.environment.id}/{cell.method.id}" for cell in cells(spec)], 12.0
        ),
    )
    monkeypatch.setattr(speed, "processors", lambda: 2)
    listed = CliRunner().invoke(app, ["list", "paper"], env={"COLUMNS": "150"})
    assert listed.exit_code == 0, listed.output
    for name in EXHIBITS:
        assert name in listed.output
    assert re.search(r"table2 .* 110 +550 ", listed.output)  # 110 cells, 50 runs, 12 seconds, 2 processors
    assert re.search(r"figure3 .*the runs of table2", listed.output)
    drawn_ = CliRunner().invoke(app, ["reproduce", "figure1", "--out", str(tmp_path)])
    assert drawn_.exit_code == 0, drawn_.output
    assert (tmp_path / "figure1" / "figure1.pdf").exists()


def test_the_map_of_the_paper_names_what_exists() -> None:
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] != "in the paper"]
    assert len(rows) > 35
    group: Any = get_command(app)
    for what, command, function, file, result in rows:
        for name in re.findall(r"`shoal (\w+)", command):
            assert name in group.commands, what
        for name in re.findall(r"reproduce (\w+)", command):
            assert name in EXHIBITS, what
        for name in re.findall(r"`shoal\.([\w.]+)`", function):
            assert attrgetter(name)(shoal) is not None
        assert (ROOT / file.strip("`")).exists(), what
        target, _, anchor = re.findall(r"\]\(([^)]+)\)", result)[0].partition("#")
        linked = ROOT / "docs" / (target or "paper.md")
        assert linked.exists(), what
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), flags=re.M)
            found = {
                re.sub(r"[^\w]+", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip()) for text in headings
            }
            assert anchor in found, (what, anchor)
    mapped = " ".join(row[0] for row in rows)
    for exhibit in EXHIBITS.values():
        assert exhibit.number in mapped
    assert "Table 1" in mapped
