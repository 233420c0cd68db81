"""Hostile specs, labels, disks and signals: an experiment ends in results or in one clear line."""

import html
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.commands import Done, call

from shoal.lab.experiments import results
from shoal.lab.experiments.results import load_runs, read_cell
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import ExperimentSpec, SpecError, parse_spec
from shoal.lab.paper.reproduce import write_report

ROOT = Path(__file__).parents[3]

ENVIRONMENT = """
[[environments]]
id = "{id}"
title = {title}
kind = "synthetic"
parameters = {{ n_agents = 4, dim = 2, n_clusters = 2, angle = 1.0 }}
"""
METHOD = """
[[methods]]
id = "{id}"
label = {label}
policy = "{policy}"
"""


def spec_text(
    *,
    name: str = "hostile",
    environments: tuple[str, ...] = ("world",),
    methods: tuple[str, ...] = ("ind",),
    title: str = "",
    label: str = "",
    seed: int = 0,
) -> str:
    text = f"name = {json.dumps(name)}\nhorizon = 30\nruns = 2\nseed = {seed}\nalphas = [0.1, 1.0]\n"
    for item in environments:
        text += ENVIRONMENT.format(id=item, title=json.dumps(title))
    for item in methods:
        text += METHOD.format(id=item, label=json.dumps(label), policy="independent")
    return text


def spec(**changes: Any) -> ExperimentSpec:
    return parse_spec(spec_text(**changes).encode(), source="hostile.toml")


def shoal(
    *arguments: str, cwd: Path, before: str = "", file_size_limit: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own; `before` is executed ahead of everything."""

    def limit() -> None:
        if file_size_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, file_size_limit))

    program = f"{before}\nfrom shoal.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=120,
    )


def assert_one_line(done: "subprocess.CompletedProcess[str] | Done", *words: str) -> None:
    assert done.returncode == 2, done
    assert done.stderr.startswith("shoal: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


# Names


def test_every_cell_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Ids are no part of what a cell depends on, and their join in a file name need not be unique."""
    small = spec(environments=("a__b", "a"), methods=("c", "b__c"))
    assert run_experiment(small, tmp_path, jobs=1).computed == 8
    assert len(results.cell_files(tmp_path)) == 2  # two values of α; the rest have the same settings
    assert load_runs(tmp_path).num_rows == 8 * small.runs
    again = run_experiment(small, tmp_path, jobs=1)
    assert (again.computed, again.found) == (0, 8)


def test_ids_that_name_one_file_where_case_does_not_count_are_refused() -> None:
    with pytest.raises(SpecError, match=r"methods\[1\]\.id: 'IND' and 'ind' differ in case only"):
        spec(methods=("ind", "IND"))


def test_ids_too_long_for_a_file_name_are_refused() -> None:
    spec(environments=(100 * "e",), methods=(100 * "m",))
    with pytest.raises(SpecError, match=r"environments\[0\]\.id: must have at most 100 characters, got 101"):
        spec(environments=(101 * "e",))


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/b", "..", ".", "", "a\\b", "a\0b", 200 * "x"])
def test_a_name_cannot_lead_out_of_the_results(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "one" / "two"
    inner.mkdir(parents=True)
    (inner / "s.toml").write_text(spec_text(name=name))
    assert_one_line(call("run", "s.toml", cwd=inner), "s.toml: name: ", "--out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["one", "s.toml", "two"]


# Labels and titles


HOSTILE_TEXTS = [
    r"$\frac",
    r"$x_{1$ and $",
    r"\$5 and $6$",
    "_hidden",
    "a | b",
    "<script>alert(1)</script>",
    "&lt;i&gt;",
    "[link](javascript:alert(1)) `code` *bold*",
    "two\nlines",
    "</script><script>",
    "{{ 7 * 7 }} {% raw %} {# x #}",
]


def test_any_label_and_title_is_reported_as_it_is(tmp_path: Path) -> None:
    methods = tuple(f"m{index}" for index in range(len(HOSTILE_TEXTS)))
    text = spec_text(methods=methods, title=" ".join(HOSTILE_TEXTS), name=" ".join(HOSTILE_TEXTS))
    for method, label in zip(methods, HOSTILE_TEXTS, strict=True):
        text = text.replace(f'id = "{method}"\nlabel = ""', f'id = "{method}"\nlabel = {json.dumps(label)}')
    run_experiment(parse_spec(text.encode(), source="hostile.toml"), tmp_path, jobs=1)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    for label in HOSTILE_TEXTS:
        assert html.escape(label) in page
    markup = re.sub(r"<(script|style)\b[^>]*>.*?</\1>", "", page, flags=re.S)
    assert "<script" not in markup
    assert "<i>" not in markup
    table = (tmp_path / "report" / "tables.md").read_text(encoding="utf-8")
    assert not re.search(r"<[a-zA-Z/!?]", table)
    rows = next(part for part in table.split("\n\n") if part.startswith("| method")).splitlines()
    assert len(rows) == 2 + len(methods)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_what_markdown_would_read_as_markup_is_escaped(tmp_path: Path) -> None:
    run_experiment(spec(label="a | <b>b</b> &amp; [c](d) `e` *f*", title="t"), tmp_path, jobs=1)
    write_report(tmp_path)
    table = (tmp_path / "report" / "tables.md").read_text(encoding="utf-8")
    assert r"| a \| &lt;b>b&lt;/b> &amp;amp; \[c](d) \`e\` \*f\* |" in table


# Numbers


@pytest.mark.parametrize("seed", [2**63 - 1, 2**63, 2**64, 10**30])
def test_seeds_that_no_column_can_hold_are_refused(tmp_path: Path, seed: int) -> None:
    (tmp_path / "s.toml").write_text(spec_text(seed=seed))
    assert_one_line(call("run", "s.toml", cwd=tmp_path), "s.toml: ", "seed")
    (tmp_path / "s.toml").write_text(spec_text())
    assert_one_line(call("run", "s.toml", "--seed", str(seed), cwd=tmp_path), "s.toml: seed: ")
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]


def test_the_largest_seeds_are_played(tmp_path: Path) -> None:
    run_experiment(spec(seed=2**63 - 2), tmp_path, jobs=1, only="a0.1")
    assert load_runs(tmp_path)["seed"].to_pylist() == [2**63 - 2, 2**63 - 1]


# Disks, files and signals


@pytest.mark.slow
def test_a_disk_full_while_the_report_is_written_is_said_and_the_report_can_be_made_later(
    tmp_path: Path,
) -> None:
    run_experiment(spec(), tmp_path / "out", jobs=1)
    write_report(tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    sizes = sorted(len(content) for path, content in before.items() if "report" in path.parts)
    for limit in (1000, sizes[-1] - 1):  # at the first file, and at the last
        done = shoal("report", "out", cwd=tmp_path, file_size_limit=limit)
        assert_one_line(done, "out/report/", "could not be written: File too large")
        assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == set(before)
        assert all(path.read_bytes() == content for path, content in before.items())
    assert write_report(tmp_path / "out").read_bytes() == before[tmp_path / "out" / "report" / "index.html"]


def test_a_report_where_nothing_may_be_written_is_one_line(tmp_path: Path) -> None:
    run_experiment(spec(), tmp_path / "out", jobs=1)
    (tmp_path / "out" / "report").write_text("in the way")
    assert_one_line(call("report", "out", cwd=tmp_path), "out/report")


def test_parquet_files_are_read_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python file handle that pyarrow's threads let go of while the interpreter ends aborts the process."""
    run_experiment(spec(), tmp_path, jobs=1, only="a0.1")
    (path,) = results.cell_files(tmp_path)
    given: list[Any] = []
    opened = pq.ParquetFile

    def spy(source: Any, *arguments: Any, **named: Any) -> Any:
        given.append(source)
        return opened(source, *arguments, **named)

    monkeypatch.setattr(pq, "ParquetFile", spy)
    read_cell(path)
    assert [type(source) for source in given] == [str]


@pytest.mark.parametrize("module", ["numba", "typer", "numpy", "rich"])
def test_an_interrupt_while_importing_is_no_traceback(tmp_path: Path, module: str) -> None:
    before = f"""
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
    done = shoal("list", cwd=tmp_path, before=before)
    assert done.returncode == 130, done
    assert "Traceback" not in done.stderr
    assert done.stderr.strip() in ("", "shoal: stopped")
