"""Grids grow: only what is new is played, and what is no longer of the grid stays."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import shoal
from shoal.lab.experiments import results, runner
from shoal.lab.experiments.report import provenance_section
from shoal.lab.experiments.results import ResultsError, load_runs
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import ExperimentSpec, load_spec, parse_spec
from shoal.lab.experiments.stored import load_results
from shoal.reporting.sections import Definitions

MINE = """
import numpy as np

RATE = {"scale": 1.0}


def outer(x):
    return np.outer(x, x)


class Pooled:
    def __init__(self, n_agents, dim, *, epsilon=0.05, seed=0):
        self.A, self.b = np.eye(dim), np.zeros(dim)
        self.epsilon, self.rng = epsilon, np.random.default_rng(seed)

    def select(self, agent, arms):
        if self.rng.random() < self.epsilon:
            return self.rng.integers(len(arms))
        return np.argmax(arms @ np.linalg.solve(self.A, self.b))

    def update(self, agent, x, reward):
        self.A += RATE["scale"] * outer(x)
        self.b += reward * x


class First(Pooled):
    def select(self, agent, arms):
        return 0
"""

GRID = """
name = "growing"
horizon = 60
runs = 3
points = 5
alphas = [0.1, 1.0]

[[environments]]
id = "near"
kind = "synthetic"
parameters = { n_agents = 6, dim = 3, n_clusters = 2, angle = 1.0 }

[[methods]]
id = "ind"
policy = "independent"

[[methods]]
id = "club"
policy = "club"
parameters = { gamma = 0.5 }
"""

OWN = """
[[methods]]
id = "{id}"
policy = "{module}:{name}"
"""


def spec(text: str = GRID) -> ExperimentSpec:
    return parse_spec(text.encode(), source="growing.toml")


def change(old: str, new: str, text: str = GRID) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("grown")
    assert run_experiment(spec(), out, jobs=1).computed == 4
    return out


@pytest.fixture
def grown(tmp_path: Path, played: Path) -> Path:
    """A directory that holds the grid."""
    out = tmp_path / "out"
    subprocess.run(["cp", "-r", played, out], check=True)
    return out


def rows(out: Path) -> dict[tuple[str, str, float, int], float]:
    return {
        (row["environment"], row["method"], row["alpha"], row["seed"]): row["final_regret"]
        for row in load_runs(out).to_pylist()
    }


def provenance(out: Path) -> dict[str, str]:
    (part,) = provenance_section(load_results(out)).parts
    assert isinstance(part, Definitions)
    return dict(part.items)


FAR = """
[[environments]]
id = "far"
kind = "gaussian"
parameters = { n_agents = 6, dim = 3, n_clusters = 2 }
"""


@pytest.mark.parametrize(
    ("text", "computed", "found"),
    [
        (change("[0.1, 1.0]", "[0.1, 0.5, 1.0]"), 2, 4),
        (change("[0.1, 1.0]", "[1.0]"), 0, 2),
        (GRID + '[[methods]]\nid = "oracle"\npolicy = "oracle"\nparameters = { labels = "labels" }', 2, 4),
        (change("[[methods]]\nid = \"ind\"", FAR + "[[methods]]\nid = \"ind\""), 4, 4),
        (change('id = "ind"', 'id = "alone"\nlabel = "Alone"'), 0, 4),
        (change('id = "near"', 'id = "close"\ntitle = "Close"'), 0, 4),
        (change('policy = "club"', 'policy = "club"\ngroup = "other"'), 0, 4),
        (change("gamma = 0.5", "gamma = 0.25"), 2, 2),
        (change("gamma = 0.5", "gamma = 0.5, ridge = 2"), 2, 2),
        (change("angle = 1.0", "angle = 0.9"), 4, 0),
        (change("angle = 1.0", "angle = 1"), 0, 4),
        (change("horizon = 60", "horizon = 61"), 4, 0),
        (change("points = 5", "points = 6"), 4, 0),
        ('pulling = "zipf"\n' + GRID, 4, 0),
        ("delay = 3\n" + GRID, 4, 0),
        (change("runs = 3", "runs = 2"), 0, 4),
        ("seed = 1\n" + GRID, 4, 0),
    ],
)  # fmt: skip
def test_only_what_is_new_is_played(grown: Path, text: str, computed: int, found: int) -> None:
    before = {path: path.stat().st_mtime_ns for path in results.cell_files(grown)}
    done = run_experiment(spec(text), grown, jobs=1)
    assert (done.computed, done.found) == (computed, found)
    assert before.keys() <= {*results.cell_files(grown)}
    if not text.startswith("seed"):
        assert all(path.stat().st_mtime_ns == then for path, then in before.items())
    fresh = grown.parent / "fresh"
    run_experiment(spec(text), fresh, jobs=1)
    assert rows(grown) == rows(fresh)


def test_seeds_are_added_to_a_cell(grown: Path) -> None:
    """From 3 to 5 runs, 2 are played for each cell, and they are what a run of 5 would have given."""
    before, said = rows(grown), list[str]()
    rounds = []
    done = run_experiment(
        spec(change("runs = 3", "runs = 5")),
        grown,
        jobs=1,
        say=said.append,
        progress=lambda progress: rounds.append(progress.rounds_total),
    )
    assert (done.computed, done.found, said) == (4, 0, ["2 more runs, stored ones are kept: 4 cells to play"])
    assert set(rounds) == {4 * 2 * 60}
    assert len(results.cell_files(grown)) == 4
    now = rows(grown)
    assert before.items() <= now.items()
    assert {key[3] for key in now} == set(range(5))
    run_experiment(spec(change("runs = 3", "runs = 5")), grown.parent / "fresh", jobs=1)
    assert now == rows(grown.parent / "fresh")
    run_experiment(spec(), grown)
    assert rows(grown) == before  # the others are still there, but not of this grid


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (change("angle = 1.0", "angle = 0.9"), "angle 0.9, was 1: 4 cells to play"),
        (change("gamma = 0.5", "gamma = 0.5, ridge = 2"), "ridge 2, was by default: 2 cells to play"),
        (change("horizon = 60", "horizon = 61"), "horizon 61, was 60: 4 cells to play"),
        (change("[0.1, 1.0]", "[0.1, 0.5, 1.0]"), None),
    ],
)
def test_messages_name_what_changed(grown: Path, text: str, said: str | None) -> None:
    heard: list[str] = []
    run_experiment(spec(text), grown, jobs=1, say=heard.append)
    assert heard == ([] if said is None else [said])


# A policy of one's own


def play(directory: Path, *, trust: bool = False) -> str:
    """Play the grid there as a new process would, with modules imported anew; what it says."""
    for name in ("mine", "worlds"):
        sys.modules.pop(name, None)
    runner._environment_from.cache_clear()
    said: list[str] = []
    grid = load_spec(directory / "grid.toml")
    done = run_experiment(grid, directory / "out", jobs=1, trust=trust, say=said.append)
    return "\n".join([*said, f"{done.computed} computed, {done.found} found, {done.trusted} on trust"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits follow each other within a second
    return tmp_path


def test_an_edited_policy_is_played_again_and_nothing_else(here: Path) -> None:
    code = here / "mine.py"
    code.write_text(MINE)
    own = "".join(OWN.format(id=name.lower(), module="mine", name=name) for name in ("Pooled", "First"))
    (here / "grid.toml").write_text(GRID + own)
    assert play(here) == "8 computed, 0 found, 0 on trust"
    assert len(results.cell_files(here / "out")) == 6  # these two do not depend on α

    code.write_text(MINE.replace("return 0", "return 1  # the second"))
    again = "to play again; --trust would keep the stored results"
    assert play(here) == f"mine.First.select changed: 2 cells {again}\n2 computed, 6 found, 0 on trust"
    code.write_text(MINE.replace('"scale": 1.0', '"scale": 2.0'))
    assert play(here) == f"mine.RATE changed: 4 cells {again}\n4 computed, 4 found, 0 on trust"
    documented = MINE.replace("class Pooled:", 'class Pooled:\n    """Pools."""\n    label = "Pooled"\n')
    code.write_text(documented.replace("epsilon=0.05", "epsilon=0.06"))
    assert "mine.Pooled.__init__ changed: 4 cells" in play(here)
    code.write_text(documented)  # as it was at first, but for what is shown of it
    assert play(here) == "0 computed, 8 found, 0 on trust"


def test_code_can_be_declared_to_alter_nothing(here: Path) -> None:
    code, out = here / "mine.py", here / "out"
    code.write_text(MINE)
    (here / "grid.toml").write_text(GRID + OWN.format(id="pooled", module="mine", name="Pooled"))
    play(here)
    before = rows(out)
    code.write_text(MINE.replace("np.outer(x, x)", "x[:, None] * x"))
    assert play(here, trust=True) == "0 computed, 6 found, 2 on trust"
    assert rows(out) == before
    (declared,) = json.loads((out / "provenance.json").read_text())["trusted"]
    assert (declared["cells"], declared["changed"]) == (2, ["mine.outer"])
    kept = [stored.trusted for stored in results.stored_cells(out).values() if stored.trusted]
    assert [entry["changed"] for (entry,) in kept] == [["mine.outer"]]
    assert play(here) == "0 computed, 6 found, 0 on trust"  # declared once
    items = provenance(out)  # no code of the grid is loaded for it
    assert items["On trust"].endswith("2 stored cells declared unaffected by a change of mine.outer")


def test_a_grid_that_grew_says_what_each_part_was_played_with(grown: Path) -> None:
    for path in results.cell_files(grown)[:2]:
        table, stored = results.read_cell(path)
        earlier = pa.array(["shoal 0.9"] * len(table))
        table = table.set_column(table.schema.get_field_index("software"), "software", earlier)
        results.write_cell(path, table, stored)
    items = provenance(grown)
    assert "6 runs with shoal 0.9, on " in items["Played by"]
    assert f"6 runs with shoal {shoal.__version__}" in items["Played by"]


def test_an_environment_and_its_data_count(here: Path) -> None:
    (here / "worlds.py").write_text(
        textwrap.dedent("""
        import json
        from pathlib import Path
        import numpy as np
        import shoal

        def noise(means, agents, rng):
            return means + rng.normal(size=means.shape)

        class FromFile(shoal.Environment):
            def __init__(self, path, seed=None, noise="gaussian"):
                theta = np.array(json.loads(Path(path).read_text()))
                super().__init__(np.eye(2), theta_star=theta, noise=noise)
                self.data_files = ("more.txt",)
        """)
    )
    (here / "theta.json").write_text("[[1, 0], [0, 1]]")
    (here / "more.txt").write_text("more")
    text = GRID.replace('kind = "synthetic"', 'kind = "worlds:FromFile"')
    text = text.replace(
        "n_agents = 6, dim = 3, n_clusters = 2, angle = 1.0", 'path = "theta.json", noise = "worlds:noise"'
    )
    (here / "grid.toml").write_text(text)
    assert "4 computed, 0 found" in play(here)
    assert "0 computed, 4 found" in play(here)
    (here / "theta.json").write_text("[[1, 0], [0, 2]]")
    assert play(here).startswith("the content of path: 4 cells to play\n4 computed")
    (here / "more.txt").write_text("others")
    assert play(here).startswith("other data: 4 cells to play\n4 computed")
    code = (here / "worlds.py").read_text()
    (here / "worlds.py").write_text(code.replace("means + rng", "means + 2 * rng"))
    assert play(here).startswith("worlds.noise changed: 4 cells to play again")


# Whatever happens

LAST = 20 if os.environ.get("SHOAL_CHAOS") else 4
RUN = """
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import load_spec

run_experiment(load_spec("grid.toml"), "out", jobs=1)
"""


def test_a_kill_while_runs_are_added_loses_none(tmp_path: Path) -> None:
    """Killed while growing run by run: stored runs are never fewer, and all come out."""
    text = change("horizon = 60", "horizon = 2000").replace("runs = 3", "runs = 2")
    out = tmp_path / "out"
    (tmp_path / "grid.toml").write_text(text)
    play(tmp_path)
    stored = {path.name: 2 for path in results.cell_files(out)}
    kills = 0
    for runs in range(3, LAST + 1):
        (tmp_path / "grid.toml").write_text(text.replace("runs = 2", f"runs = {runs}"))
        process = subprocess.Popen([sys.executable, "-c", RUN], cwd=tmp_path, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 100
        times = {path: path.stat().st_mtime_ns for path in results.cell_files(out)}
        while process.poll() is None and time.monotonic() < deadline:
            if any(path.stat().st_mtime_ns != then for path, then in times.items()):
                process.send_signal(signal.SIGKILL)  # a cell has just been replaced, another may be half way
                kills += 1
                break
            time.sleep(0.001)
        process.wait(timeout=100)
        for path in results.cell_files(out):
            table = results.read_cell(path)[0]
            assert table.num_rows >= stored[path.name]
            assert table["seed"].to_pylist() == list(range(table.num_rows))
            stored[path.name] = table.num_rows
    assert kills
    play(tmp_path)
    assert set(results.read_cell(path)[0].num_rows for path in results.cell_files(out)) == {LAST}
    run_experiment(spec(text.replace("runs = 2", f"runs = {LAST}")), tmp_path / "fresh")
    assert rows(out) == rows(tmp_path / "fresh")


def test_two_processes_and_two_threads_do_not_write_at_once(tmp_path: Path) -> None:
    text = change("horizon = 60", "horizon = 20000")
    (tmp_path / "grid.toml").write_text(text)
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", RUN],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=200)[1] for process in pair]
    codes = sorted(process.returncode for process in pair)
    assert codes[0] == 0
    if codes[1]:  # unless one began when the other was done
        assert any("another process is writing results here" in text for text in said)

    def grow(runs: int) -> str:
        try:
            run_experiment(spec(text.replace("runs = 3", f"runs = {runs}")), tmp_path / "out", jobs=1)
        except ResultsError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(grow, (4, 5)))
    assert "" in said
    assert all("another process is writing" in text for text in said if text)
    run_experiment(spec(text.replace("runs = 3", "runs = 5")), tmp_path / "out", jobs=1)
    run_experiment(spec(text.replace("runs = 3", "runs = 5")), tmp_path / "fresh", jobs=1)
    assert rows(tmp_path / "out") == rows(tmp_path / "fresh")
