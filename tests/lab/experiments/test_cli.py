"""The command line, as a user meets it."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.commands import Done, call

import shoal
from shoal.cli import progress
from shoal.cli.app import app
from shoal.lab.environments.registry import environment_names
from shoal.lab.experiments import results
from shoal.lab.experiments.results import load_runs
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import load_spec
from shoal.lab.paper.presets import PRESETS
from shoal.lab.theory import predictions

TINY = """
name = "tiny"
horizon = 200
runs = 2
alphas = [0.1, 1.0]

[[environments]]
id = "synthetic-m3-w7"
kind = "synthetic"
parameters = { n_agents = 6, dim = 3, n_clusters = 2, angle = 1.3744467859455345 }

[[methods]]
id = "ind"
policy = "independent"

[[methods]]
id = "bass-d0.1"
policy = "bass"
parameters = { delta = 0.1 }
"""

DOCS = Path(__file__).parents[3] / "docs"


def run(*arguments: str, cwd: Path, code: int = 0) -> Done:
    done = call(*arguments, cwd=cwd, COLUMNS="120")
    assert done.returncode == code, done
    if code == 2:
        assert "Traceback" not in done.stderr
    return done


def run_process(
    *arguments: str, cwd: Path, code: int = 0, file_size_limit: int = resource.RLIM_INFINITY
) -> Done:
    """The same, in a process of its own."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, file_size_limit))

    command = [sys.executable, "-c", "from shoal.cli import main; main()", *arguments]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, preexec_fn=limit, timeout=550
    )
    assert done.returncode == code, done
    return Done(code, done.stdout, done.stderr)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


@pytest.mark.slow
def test_run_continues_and_reports(tiny: Path) -> None:
    out = tiny / "results" / "tiny"
    run_experiment(load_spec(tiny / "tiny.toml"), out, only="bass")
    done = run_process("run", "tiny.toml", "--jobs", "2", cwd=tiny)
    assert "2 cells computed, 2 found finished, in results/tiny" in done.stdout
    assert load_runs(out).num_rows == 4 * 2
    assert json.loads((out / "provenance.json").read_text())["command"] == "shoal run tiny.toml --jobs 2"
    # On a terminal there is a bar; here, lines.
    assert "4/4 cells, " in done.stderr
    assert " rounds/s" in done.stderr
    assert "\x1b" not in done.stderr
    page = tiny / done.stdout.rsplit("Report: ", 1)[1].strip()
    page.unlink()
    assert "Report: " in run("report", "results/tiny", cwd=tiny).stdout
    assert page.is_file()


def test_a_report_that_takes_long_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with progress.drawing_display() as show:
        for done in range(9):
            show(done, 9, "a figure")
            now += 3.0
    said = [f"writing the report: figure {number} of 9" for number in (5, 9)]
    assert capsys.readouterr().err.splitlines() == said


def test_reproduce_takes_a_preset_a_seed_and_a_pattern(tmp_path: Path) -> None:
    done = run("reproduce", "--seed", "5", "--only", "w7/ind/a0.1", "--out", "here", cwd=tmp_path)
    assert "1 cells computed, 0 found finished, in here" in done.stdout
    table = load_runs(tmp_path / "here")
    assert set(table["method"].to_pylist()) == {"ind"}
    assert table["seed"].to_pylist() == list(range(5, 15))


def test_simulate_shows_a_summary(tmp_path: Path) -> None:
    done = run(
        "simulate", "--policy", "bass", "--env", "synthetic", "--horizon", "300", "--runs", "2",
        "-p", "delta=0.5", "-p", "radius=beta_squared", "-e", "n_agents=6", "-e", "dim=3",
        "--pulling", "zipf",
        cwd=tmp_path,
    )  # fmt: skip
    assert "bass in synthetic: 2 × 300 rounds" in done.stdout
    assert '"delta": 0.5' in done.stdout
    assert '"radius": "beta_squared"' in done.stdout
    assert "final regret" in done.stdout
    assert "final edges" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_simulate_leaves_out_what_a_policy_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "first_arm.py").write_text(
        "class First:\n"
        "    def __init__(self, n_agents, dim, *, alpha=0.6, seed=0): pass\n"
        "    def select(self, agent, arms): return 0\n"
        "    def update(self, agent, x, reward): pass\n"
    )
    done = run("simulate", "--policy", "first_arm:First", "--horizon", "50", "-e", "n_agents=6", cwd=tmp_path)
    assert "final regret" in done.stdout
    assert not re.search("final edges|communication cost| -1 ", done.stdout)


@pytest.mark.parametrize(
    ("text", "delay"),
    [("40", 40), ("uniform:0:90", ("uniform", 0, 90)), ("geometric:30.5", ("geometric", 30.5))],
)
def test_simulate_with_late_rewards(tmp_path: Path, text: str, delay: Any) -> None:
    done = run(
        "simulate", "--policy", "independent", "--env", "gaussian", "--alpha", "0.6", "--horizon", "300",
        "-e", "n_agents=6", "-e", "dim=3", "--delay", text,
        cwd=tmp_path,
    )  # fmt: skip
    world = shoal.GaussianClusters(6, 3, 3, n_arms=15, noise_scale=0.5, seed=0)
    policy = shoal.Independent(6, 3, alpha=0.6, seed=0)
    trace = shoal.simulate(policy, world, horizon=300, seed=0, delay=delay)
    assert re.search(rf"final regret +│ +{trace.final_regret:,.0f} ", done.stdout)


def test_bounds_shows_what_theory_predicts(tmp_path: Path) -> None:
    done = run(
        "bounds", "--dim", "10", "--gap", "0.2", "--delta", "0.1", "--agents", "100", "--clusters", "3",
        cwd=tmp_path,
    )  # fmt: skip
    lines = {
        line.split("│")[1].strip(): line.split("│")[2:5] for line in done.stdout.splitlines() if "│" in line
    }
    shown = {name: [text.strip() for text in rest] for name, rest in lines.items()}
    assert shown["no separation before round"][:2] == ["45", "231"]
    assert shown["separation by round"][:2] == ["–", "389,511"]
    assert shown["communication"][:2] == ["4,950,000", "–"]
    assert shown["largest γ that gains, γ_max"] == ["-0.238", "–", "no γ keeps μ below 1"]
    expected = predictions(dim=10, gap=0.2, delta=0.1, n_agents=100, n_clusters=3)
    assert [row.quantity for row in expected if row.quantity not in shown] == []
    assert list(tmp_path.iterdir()) == []


def test_list_names_everything(tmp_path: Path) -> None:
    words = run("list", cwd=tmp_path).stdout.replace(",", " ").split()
    assert {*shoal.policy_names(), *environment_names(), *PRESETS} <= {*words}


def test_list_shows_the_parameters_of_one(tmp_path: Path) -> None:
    def table(name: str) -> dict[str, list[str]]:
        lines = [line.split("│") for line in run("list", name, cwd=tmp_path).stdout.splitlines()]
        cells = [
            [part.strip() for part in line[1:-1]] for line in lines if len(line) == 6 and line[1].strip()
        ]
        return {first: rest for first, *rest in cells}

    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def __init__(self, n_agents, dim, *, speed=3): ...\n"
        "    def select(self, agent, arms): ...\n    def update(self, agent, x, reward): ...\n"
    )
    shown = table("bass")
    assert set(shown) == {"n_agents", "dim", *shoal.BASS.Parameters.__struct_fields__}
    assert shown["delta"] == ["float > 0 and < 1", "0.1", "δ of the radius β."]
    assert shown["alpha"][2] == "Width of the confidence bonus. (set by the runner)"
    assert table("cluster-mixture") == table("cluster_mixture")
    default, meaning = table("changing_arms")["noise_scale"][1:]
    assert default == "1.0"
    assert meaning.startswith("Standard deviation of Gaussian noise")  # its base says so
    assert table("mine:Mine")["speed"] == ["", "3", ""]
    assert "did you mean 'bass'?" in run("list", "bas", cwd=tmp_path, code=2).stderr


def test_bench_measures_the_sizes_it_is_given(tmp_path: Path) -> None:
    sizes = ["--agents", "12", "--dim", "3", "--arms", "4", "--rounds", "50"]
    done = run("bench", *sizes, "--policy", "independent", "--policy", "oracle", cwd=tmp_path)
    assert "N=12, d=3, K=4: 50 rounds" in done.stdout
    assert "independent" in done.stdout
    assert "oracle" in done.stdout
    assert "bass" not in done.stdout
    assert done.stderr == ""  # not a terminal


@pytest.mark.slow
def test_warm_fills_the_cache_that_is_then_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    first = run_process("warm", "independent", cwd=tmp_path)
    assert re.match(r"independent +\d+\.\d s\nkept in ", first.stdout)
    assert first.stderr == ""
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("numba-*/*")}
    assert len(files) > 4
    run_process("warm", "independent", cwd=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("numba-*/*")} == files
    assert "policy must be one of" in run("warm", "indep", cwd=tmp_path, code=2).stderr


def test_version_and_help(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path).stdout == f"shoal {shoal.__version__}\n"
    assert "No such command 'x'" in run_process("x", cwd=tmp_path, code=2).stderr
    assert "reproduce" in run("--help", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "quik"], "shoal: unknown preset, table or figure 'quik'; did you mean 'quick'?"),
        (["run", "none.toml"], "shoal: none.toml: No such file or directory"),
        (
            ["run", "wrong.toml"],
            "shoal: wrong.toml: methods[1].policy: unknown policy 'bas'; did you mean 'bass'?",
        ),
        (["run", "tiny.toml", "--only", "none"], "shoal: only: no cell matches 'none'"),
        (["run", "tiny.toml", "--executor", "slurm"], "shoal: executor must be 'threads' or 'dask:ADDRESS'"),
        (["run", "tiny.toml", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["report", "nowhere"], "shoal: nowhere: no results here"),
        (["simulate", "--policy", "bas"], "unknown policy 'bas'"),
        (["simulate", "--env", "mars"], "unknown environment 'mars'; choose from synthetic, gaussian, "),
        (["simulate", "--pulling", "now"], "pulling: must be one of asynchronous, synchronous, zipf, got"),
        (
            ["simulate", "--delay", "soon"],
            "--delay must look like 100, uniform:0:2000, geometric:500 or module:function",
        ),
        (["simulate", "--delay", "uniform:9:2"], "delay: delay's low must be at most its high"),
        (
            ["simulate", "--delay", "never:9"],
            "delay: delay must be a number of rounds, ('uniform', low, high)",
        ),
        (["bench", "--policy", "bas"], "policy must be one of 'independent', 'oracle'"),
        (["simulate", "-p", "delta"], "--parameter must look like name=value, got 'delta'"),
        (["simulate", "-p", "delta=2"], "delta must be a finite number in (0, 1), got 2"),
        (["simulate", "-e", "size=2"], "environments[0].parameters.size: unknown parameter"),
        (
            ["bounds", "--dim", "3", "--gap", "3", "--delta", "0.1", "--agents", "5"],
            "shoal: gap=3.0 is out of range; two parameters of norm at most 1 are at most 2 apart",
        ),
        (["bounds", "--dim", "3", "--gap", "1", "--agents", "5"], "Missing option '--delta'"),
        (["simulte"], "No such command 'simulte'"),
    ],
)
def test_mistakes_get_one_clear_line_and_exit_code_2(tiny: Path, arguments: list[str], message: str) -> None:
    (tiny / "wrong.toml").write_text(TINY.replace('"bass"', '"bas"'))
    done = run(*arguments, cwd=tiny, code=2)
    assert message in done.stderr
    if message.startswith("shoal:"):
        assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tiny.iterdir()) == ["tiny.toml", "wrong.toml"]


def test_a_corrupt_file_is_refused_and_left_alone(tiny: Path) -> None:
    run_experiment(load_spec(tiny / "tiny.toml"), tiny / "out")
    (damaged,) = (tiny / "out" / "cells").glob("synthetic-m3-w7__ind__a0.10-*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:500])
    for command in (["run", "tiny.toml", "--out", "out"], ["report", "out"]):
        errors = run(*command, cwd=tiny, code=2).stderr
        assert errors.startswith(f"shoal: {damaged.relative_to(tiny)}: corrupt or truncated")
    assert damaged.stat().st_size == 500


def test_stored_cells_are_listed_and_what_is_left_over_is_deleted(tiny: Path) -> None:
    run_experiment(load_spec(tiny / "tiny.toml"), tiny / "out")
    grown = TINY.replace("[0.1, 1.0]", "[0.1, 0.5]").replace("runs = 2", "runs = 3")
    (tiny / "tiny.toml").write_text(grown.replace("delta = 0.1", "delta = 0.2"))
    run_experiment(load_spec(tiny / "tiny.toml"), tiny / "out", only="bass")
    text = run("results", "out", cwd=tiny).stdout
    lines = {
        tuple(part.strip() for part in line.split("│")[1:-1])
        for line in text.splitlines()
        if line.startswith("│")
    }
    shown = {(cell, runs, state) for cell, runs, _, _, state in lines}
    assert shown == {
        ("synthetic-m3-w7/ind/a0.10", "2 of 3", "yes"),
        ("synthetic-m3-w7/ind/a0.50", "0 of 3", "yes"),
        ("synthetic-m3-w7/bass-d0.1/a0.10", "3", "yes"),
        ("synthetic-m3-w7/bass-d0.1/a0.50", "3", "yes"),
        ("synthetic-m3-w7/ind/a1.00", "2", "no: not in the grid"),
        ("synthetic-m3-w7/bass-d0.1/a1.00", "2", "no: not in the grid"),
        ("synthetic-m3-w7/bass-d0.1/a0.10", "2", "no: delta 0.2, was 0.1"),
    }
    assert re.search(r"4 cells of the grid: .* s of playing, 0\.\d MB\n3 cells left from before: ", text)
    assert run("results", "list", "out", cwd=tiny).stdout == text
    kept = repr(load_runs(tiny / "out").to_pylist())
    refused = run("results", "prune", "out", cwd=tiny, code=1)  # nobody answers
    assert "Delete these 3 cells?" in refused.stdout
    assert len(results.cell_files(tiny / "out")) == 6
    assert "3 cells deleted, 0." in run("results", "prune", "out", "--yes", cwd=tiny).stdout
    assert len(results.cell_files(tiny / "out")) == 3
    assert repr(load_runs(tiny / "out").to_pylist()) == kept
    assert "Nothing to delete" in run("results", "prune", "out", cwd=tiny).stdout
    assert "no results here" in run("results", "nowhere", cwd=tiny, code=2).stderr


def test_all_errors_of_a_spec_are_said_a_line_each(tiny: Path) -> None:
    (tiny / "tiny.toml").write_text(TINY.replace('"bass"', '"bas"').replace('"synthetic"', '"sinthetic"'))
    assert run("run", "tiny.toml", cwd=tiny, code=2).stderr.splitlines() == [
        "shoal: tiny.toml: environments[0].kind: unknown environment 'sinthetic'; did you mean 'synthetic'?",
        "shoal: tiny.toml: methods[1].policy: unknown policy 'bas'; did you mean 'bass'?",
    ]
    wrong = TINY.replace("delta = 0.1", "delta = 2").replace(
        'policy = "ind', 'parameters = {ridge = -1}\npolicy = "ind'
    )
    (tiny / "tiny.toml").write_text(wrong)
    said = run("run", "tiny.toml", cwd=tiny, code=2).stderr.splitlines()
    assert len(said) == 2
    assert "method 'ind': cannot be built for synthetic-m3-w7: ridge must be" in said[0]
    assert "method 'bass-d0.1': cannot be built for synthetic-m3-w7: delta must be" in said[1]


def test_a_full_disk_is_said_and_finished_cells_stay(tiny: Path) -> None:
    spec = load_spec(tiny / "tiny.toml")
    run_experiment(spec, tiny / "warm")  # nothing is left to compile, which would also be written
    run_experiment(spec, tiny / "out", only="bass")
    before = {path: path.stat().st_ino for path in results.cell_files(tiny / "out")}
    errors = run_process("run", "tiny.toml", "--out", "out", cwd=tiny, code=2, file_size_limit=3000).stderr
    assert "cells/synthetic-m3-w7__ind__a" in errors
    assert ".parquet: could not be written: File too large" in errors
    assert {path: path.stat().st_ino for path in results.cell_files(tiny / "out")} == before
    assert not list((tiny / "out").rglob("*.tmp"))
    assert run_experiment(spec, tiny / "out").found == 2


def commands(group: Any, path: str = "shoal") -> Iterator[tuple[str, Any]]:
    """Every command with its full name, those of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_and_option_is_documented() -> None:
    page_of = {
        "shoal data": "real-data",
        "shoal population": "live",
        "shoal keys": "service",
        "shoal serve": "service",
        "shoal backup": "service",
        "shoal restore": "service",
        "shoal demo": "dashboard",
        "shoal evaluate": "evaluation",
        "shoal recommend": "your-data",
    }
    pages = {name: (DOCS / f"{name}.md").read_text() for name in ("experiments", *page_of.values())}
    found = dict(commands(typer.main.get_command(app)))
    assert {"shoal run", "shoal bench", "shoal data fetch", "shoal data prepare"} <= set(found)
    assert {"shoal population list", "shoal population forget"} <= set(found)
    for name, command in found.items():
        text = pages[page_of.get(name) or page_of.get(name.rpartition(" ")[0], "experiments")]
        assert name in text
        for parameter in command.params:
            for option in (opt for opt in parameter.opts if opt.startswith("--") and opt != "--help"):
                assert option in text, f"{name} {option}"
