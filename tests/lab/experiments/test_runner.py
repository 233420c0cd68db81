"""The runner: the same results whoever plays, and nothing lost whenever it stops."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import shoal
from shoal.lab import simulation
from shoal.lab.experiments import executors, results, runner
from shoal.lab.experiments.executors import ExecutorLostError, open_executor
from shoal.lab.experiments.results import ResultsError, load_runs
from shoal.lab.experiments.runner import Completion, Progress, run_experiment, source_commit
from shoal.lab.experiments.spec import ExperimentSpec, SpecError, build_environment, cells, parse_spec

TIMES = ["seconds", "rounds_per_second"]

TINY = """
name = "tiny"
horizon = 200
runs = 7
points = 20
alphas = [0.1, 1.0]

[[environments]]
id = "near"
kind = "synthetic"
parameters = { n_agents = 6, dim = 3, n_clusters = 2, angle = 1.0 }

[[environments]]
id = "moving"
kind = "changing-arms"
parameters = { n_agents = 5, dim = 2, n_clusters = 2 }

[[methods]]
id = "ind"
policy = "independent"

[[methods]]
id = "oracle"
policy = "oracle"
parameters = { labels = "labels" }
environments = ["near"]

[[methods]]
id = "bass-d0.9"
policy = "bass"
parameters = { delta = 0.9, gamma = 0.5 }
group = "gamma"
"""

LONG = """
name = "long"
horizon = 10000
runs = 6
points = 20
alphas = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2]

[[environments]]
id = "near"
kind = "synthetic"
parameters = { n_agents = 30, dim = 5, n_clusters = 2, angle = 1.0 }

[[methods]]
id = "ind"
policy = "independent"

[[methods]]
id = "bass-d0.1"
policy = "bass"
parameters = { delta = 0.1 }
"""


def spec(text: str = TINY) -> ExperimentSpec:
    return parse_spec(text.encode(), source="tiny.toml")


def numbers(out: Path) -> str:
    """All results but the times, as text: the same text means the same bits, and nan is nan."""
    return repr(load_runs(out).drop_columns(TIMES).to_pylist())


def identities(out: Path) -> dict[str, tuple[int, int]]:
    found = {path.name: path.stat() for path in results.cell_files(out)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference")
    run_experiment(spec(), out, jobs=1)
    return out


@pytest.fixture(scope="module")
def long_reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("long")
    run_experiment(spec(LONG), out)
    return out


def test_rows_are_what_the_library_gives_for_the_same_seed(reference: Path) -> None:
    rows = load_runs(reference).to_pylist()
    assert [row["run"] for row in rows] == 10 * list(range(7))
    row = next(
        r
        for r in rows
        if (r["environment"], r["method"], r["alpha"], r["run"]) == ("near", "bass-d0.9", 0.1, 3)
    )
    world = shoal.SyntheticClusters(n_agents=6, dim=3, n_clusters=2, angle=1.0, seed=3)
    policy = shoal.BASS(6, 3, alpha=0.1, delta=0.9, gamma=0.5, seed=3)
    trace = shoal.simulate(policy, world, horizon=200, seed=3, points=20)
    assert trace.separation_time is not None
    times = trace.separation_time[:3, 3:].ravel()
    assert (times > 0).any()
    assert row["curve_rounds"] == list(range(10, 201, 10))
    assert row["curve_regret"] == trace.regret[9::10].tolist()
    assert row["curve_f1"] == trace.f1.tolist()
    assert row["curve_edges"] == trace.edges.tolist()
    assert row["final_regret"] == trace.final_regret
    assert (row["final_f1"], row["final_edges"]) == (trace.f1[-1], trace.edges[-1])
    assert row["communication_cost"] == policy.communication_cost
    assert row["first_separation"] == pytest.approx(times[times > 0].mean())
    assert row["separated_share"] == (times > 0).mean()
    assert (row["seed"], row["horizon"], row["n_agents"], row["dim"], row["n_arms"]) == (3, 200, 6, 3, 10)
    assert (row["policy"], row["group"], row["gap"]) == ("bass", "gamma", world.gap)
    assert json.loads(row["environment_parameters"]) == {
        "n_agents": 6,
        "dim": 3,
        "n_clusters": 2,
        "angle": 1.0,
    }
    parameters = json.loads(row["policy_parameters"])
    assert (parameters["alpha"], parameters["delta"], parameters["radius"]) == (0.1, 0.9, "beta")
    assert row["rounds_per_second"] == pytest.approx(200 / row["seconds"])


def test_an_environment_can_have_its_own_pulling(tmp_path: Path) -> None:
    own = TINY.replace('kind = "synthetic"', 'kind = "synthetic"\npulling = "zipf"')
    assert own != TINY
    run_experiment(spec(own), tmp_path, jobs=1, only="/ind/a0.1")
    for row in load_runs(tmp_path).to_pylist():
        world = build_environment(spec().environments[row["environment"] != "near"], row["seed"])
        pulling = "zipf" if row["environment"] == "near" else "asynchronous"
        policy = shoal.Independent(world.n_agents, world.dim, alpha=0.1)
        trace = shoal.simulate(policy, world, horizon=200, seed=row["seed"], pulling=pulling)
        assert row["final_regret"] == trace.final_regret


def test_labels_are_left_out_and_symbols_resolved_in_the_parameters(tmp_path: Path, reference: Path) -> None:
    rows = load_runs(reference).to_pylist()
    assert "labels" not in json.loads(
        next(row for row in rows if row["method"] == "oracle")["policy_parameters"]
    )
    club = TINY.replace('policy = "oracle"', 'policy = "club"').replace(
        'labels = "labels"', 'gamma = "gap/4"'
    )
    run_experiment(spec(club), tmp_path, only="near/oracle/a0.1")
    row = load_runs(tmp_path).to_pylist()[0]
    assert json.loads(row["policy_parameters"])["gamma"] == row["gap"] / 4


def test_every_method_and_alpha_is_played_on_the_same_seeds(reference: Path) -> None:
    rows = [row for row in load_runs(reference).to_pylist() if row["environment"] == "near"]
    for run in range(7):
        assert {row["seed"] for row in rows if row["run"] == run} == {run}


def test_two_threads_give_the_same_numbers_as_one(tmp_path: Path, reference: Path) -> None:
    assert run_experiment(spec(), tmp_path, jobs=2) == Completion(computed=10, found=0, skipped={})
    assert numbers(tmp_path) == numbers(reference)


def test_playing_does_not_hold_the_interpreter_s_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads play at the same time: while one plays thousands of rounds in one go, this one goes on."""
    playing, play = threading.Event(), simulation.play

    def watched(*arguments: Any) -> Any:
        playing.set()
        try:
            return play(*arguments)
        finally:
            playing.clear()

    wide = LONG.replace("n_agents = 30, dim = 5", "n_agents = 200, dim = 12").replace(
        "points = 20", "points = 1"
    )
    task = runner._task(spec(wide.replace("horizon = 10000", "horizon = 8000")), cells(spec(wide))[-1], (0,))
    runner._warm_up(task)
    monkeypatch.setattr(simulation, "play", watched)
    turns = 0
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(runner.play_runs, task)
        while not future.done():
            time.sleep(0.001)
            turns += playing.is_set()
    assert future.result()
    assert turns > 10  # with the lock held, none but before and after playing


def test_progress_ends_with_everything_done(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run_experiment(spec(), tmp_path, jobs=2, progress=seen.append)
    assert [reading.rounds_done for reading in seen] == sorted(reading.rounds_done for reading in seen)
    assert (seen[-1].cells_done, seen[-1].cells_total) == (10, 10)
    assert seen[-1].rounds_done == seen[-1].rounds_total == 10 * 7 * 200
    assert seen[-1].seconds_left == 0.0
    assert seen[-1].rounds_per_second > 0.0


def test_running_again_repeats_nothing_and_only_fills_in_the_rest(tmp_path: Path, reference: Path) -> None:
    assert run_experiment(spec(), tmp_path, only="near/ind").computed == 2
    before = identities(tmp_path)
    assert run_experiment(spec(), tmp_path) == Completion(computed=8, found=2, skipped={})
    assert before.items() <= identities(tmp_path).items()
    assert numbers(tmp_path) == numbers(reference)
    everything, provenance = identities(tmp_path), (tmp_path / "provenance.json").read_bytes()
    assert run_experiment(spec(), tmp_path) == Completion(computed=0, found=10, skipped={})
    assert identities(tmp_path) == everything
    assert (tmp_path / "provenance.json").read_bytes() == provenance


def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"only: no cell matches 'nothing'; the first is 'near/ind/a0\.10'"):
        run_experiment(spec(), tmp_path / "out", only="nothing")
    assert not (tmp_path / "out").exists()


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ResultsError, match="out: is not a directory"):
        run_experiment(spec(), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_corrupt_cell_stops_the_run_until_it_is_deleted(tmp_path: Path, reference: Path) -> None:
    run_experiment(spec(), tmp_path, only="near")
    (damaged,) = (tmp_path / "cells").glob("near__oracle__a1.00-*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-100])
    before = identities(tmp_path)
    with pytest.raises(ResultsError, match=r"near__oracle__a1\.00-\w+\.parquet: corrupt or truncated"):
        run_experiment(spec(), tmp_path)
    assert identities(tmp_path) == before
    damaged.unlink()
    assert run_experiment(spec(), tmp_path).computed == 5
    assert numbers(tmp_path) == numbers(reference)


def test_wrong_values_are_found_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"tiny.toml: method 'bass-d0.9': cannot be built for near: delta must be"
    ):
        run_experiment(spec(TINY.replace("delta = 0.9", "delta = 9.0")), tmp_path / "out")
    with pytest.raises(
        SpecError, match=r"tiny.toml: environments\[0\].parameters: n_clusters must be at most"
    ):
        run_experiment(spec(TINY.replace("n_clusters = 2, angle", "n_clusters = 7, angle")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_environment_without_its_data_is_left_out_if_optional(tmp_path: Path) -> None:
    ranked = TINY.replace('kind = "changing-arms"', 'kind = "letor"\noptional = true')
    ranked = ranked.replace("n_agents = 5, dim = 2, n_clusters = 2", f'path = "{tmp_path / "none.txt"}"')
    said: list[tuple[str, bool]] = []
    out = tmp_path / "out"
    summary = run_experiment(spec(ranked), out, say=lambda text: said.append((text, out.exists())))
    assert (summary.computed, list(summary.skipped)) == (6, ["moving"])
    assert said == [(f"Left out moving: {summary.skipped['moving']}", False)]  # before anything is played
    (entry,) = json.loads((tmp_path / "out" / "provenance.json").read_text())["skipped"]
    assert entry == {"environment": "moving", "reason": summary.skipped["moving"]}
    assert "none.txt" in entry["reason"]
    with pytest.raises(SpecError, match=r"tiny.toml: environments\[1\]: .*none.txt"):
        run_experiment(spec(ranked.replace("optional = true", "")), tmp_path / "other")


def test_provenance_says_what_made_the_results_and_times_add_up(tmp_path: Path) -> None:
    run_experiment(spec(), tmp_path, only="near/ind", command="shoal run tiny.toml", jobs=2)
    first = json.loads((tmp_path / "provenance.json").read_text())
    assert first["versions"].keys() == {"python", "shoal", "numpy", "numba", "pyarrow"}
    assert first["versions"]["shoal"] == shoal.__version__
    assert (first["command"], first["seed"], first["jobs"]) == ("shoal run tiny.toml", 0, 2)
    assert (first["cells_done"], first["cells_total"], first["times_started"]) == (2, 10, 1)
    assert first["machine"]
    assert first["commit"] == source_commit(Path(shoal.__file__).parent)
    assert first["started"] <= first["ended"]
    played = first["played"]
    assert played["rounds"] == 2 * 7 * 200
    assert 0.0 < played["cpu_seconds"] <= played["thread_seconds"]
    assert played["thread_seconds"] in (played["wall_seconds"], 2 * played["wall_seconds"])
    earlier = {**first, "wall_seconds": 1000.0, "cpu_seconds": 2000.0}
    (tmp_path / "provenance.json").write_text(json.dumps(earlier))
    run_experiment(spec(), tmp_path)
    second = json.loads((tmp_path / "provenance.json").read_text())
    assert (second["cells_done"], second["times_started"], second["started"]) == (10, 2, first["started"])
    assert first["wall_seconds"] > 0.0
    assert first["cpu_seconds"] > 0.0
    assert second["wall_seconds"] > 1000.0
    assert second["cpu_seconds"] > 2000.0
    assert second["played"]["rounds"] == 10 * 7 * 200
    assert all(second["played"][name] > played[name] for name in played)


def test_the_commit_is_that_of_the_package_s_own_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *named, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    assert source_commit(package) is None  # no repository
    git("init", "--quiet")
    assert source_commit(package) is None  # in a repository, but not of it
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    git("tag", "v1")
    commit = git("rev-parse", "--short=12", "HEAD").strip()
    assert source_commit(package) == commit
    (package / "__init__.py").write_text("changed = True")
    assert source_commit(package) == f"{commit}-dirty"


def test_a_worker_s_error_stops_the_run_and_leaves_finished_cells(tmp_path: Path) -> None:
    class Failing(Executor):
        calls = 0

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
            future: Future[Any] = Future()
            self.calls += 1
            if self.calls > 5:
                future.set_exception(MemoryError("no memory left"))
            else:
                future.set_result(fn(*args, **kwargs))
            return future

    with pytest.raises(RuntimeError, match="failed on the executor: MemoryError"):
        run_experiment(spec(), tmp_path, executor=Failing())
    assert len(results.cell_files(tmp_path)) == 2
    assert run_experiment(spec(), tmp_path).found == 2


def test_workers_with_other_code_are_noticed(tmp_path: Path) -> None:
    class Outdated(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
            outcome, future = fn(*args, **kwargs), Future[Any]()
            future.set_result(runner.TaskResult(outcome.rows, outcome.cpu_seconds, {"policy": "older"}))
            return future

    with pytest.raises(ResultsError, match=r"near/ind/a0\.10: was played by a worker with another version"):
        run_experiment(spec(), tmp_path, executor=Outdated())
    assert results.cell_files(tmp_path) == []


# Stopping in the middle


@contextlib.contextmanager
def started(tmp_path: Path, after_cells: int, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """`shoal run` on the long spec, caught when it has finished a few cells."""
    (tmp_path / "long.toml").write_text(LONG)
    command = [sys.executable, "-c", "from shoal.cli import main; main()", "run", "long.toml", "--out", "out"]
    command += more
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 200
        while len(results.cell_files(tmp_path / "out")) < after_cells:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield process
    finally:
        process.kill()
        process.communicate()


def finish(tmp_path: Path, before: dict[str, tuple[int, int]], expected: Path) -> None:
    out = tmp_path / "out"
    assert 0 < len(before) < len(cells(spec(LONG)))
    load_runs(out)
    summary = run_experiment(spec(LONG), out)
    assert summary.found == len(before)
    assert before.items() <= identities(out).items()
    assert numbers(out) == numbers(expected)
    assert not list(out.rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("after_cells", [1, 13])
def test_a_kill_loses_no_finished_cell(tmp_path: Path, long_reference: Path, after_cells: int) -> None:
    with started(tmp_path, after_cells) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (tmp_path / "out" / "cells" / ".near__ind__a1.20.parquet.1.tmp").write_bytes(b"half")
    finish(tmp_path, identities(tmp_path / "out"), long_reference)


def test_an_interrupt_stops_cleanly_and_says_how_to_go_on(tmp_path: Path, long_reference: Path) -> None:
    with started(tmp_path, 3) as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Stopped. Finished cells are kept in out; run the same command again to continue." in errors
    assert "Traceback" not in errors
    before = identities(tmp_path / "out")
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["cells_done"] == len(before)
    assert provenance["ended"] is not None
    finish(tmp_path, before, long_reference)


def test_a_cell_that_an_interrupt_found_written_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cell = results.write_cell

    def write_and_stop(*arguments: Any, **options: Any) -> None:
        write_cell(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "write_cell", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec(), tmp_path)
    assert len(results.cell_files(tmp_path)) == 1
    assert json.loads((tmp_path / "provenance.json").read_text())["cells_done"] == 1


# Dask


class Cluster(NamedTuple):
    """A scheduler and two worker processes, as on a real cluster."""

    address: str
    scheduler: "subprocess.Popen[bytes]"
    workers: list["subprocess.Popen[bytes]"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    where = tmp_path / "scheduler.json"
    scheduler = _start("dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", where)
    workers = [
        _start("dask_worker", "--scheduler-file", where, "--nthreads", "1", "--no-nanny", "--no-dashboard")
        for _ in range(2)
    ]
    try:
        deadline = time.monotonic() + 60
        while not where.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield Cluster(json.loads(where.read_text())["address"], scheduler, workers)
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def _start(command: str, *arguments: Any) -> "subprocess.Popen[bytes]":
    program = [sys.executable, "-m", f"distributed.cli.{command}", *map(str, arguments)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        program, env={**os.environ, "PYTHONWARNINGS": "ignore"}, stdout=quiet, stderr=quiet
    )


class Fatal:
    """A result that kills a process on its way."""

    def __init__(self, process: int) -> None:
        self._process = process

    def __reduce__(self) -> Any:
        os.kill(self._process, signal.SIGKILL)
        return int, ()


@pytest.mark.slow
def test_dask_gives_the_same_numbers_and_a_killed_worker_loses_nothing(
    tmp_path: Path, long_reference: Path, cluster: Cluster
) -> None:
    address, scheduler, workers = cluster
    alive_at_the_end = []
    by_worker: dict[str, int] = {}

    def kill_one(progress: Progress) -> None:
        by_worker.update(progress.workers)
        if progress.cells_done >= 5 and workers[0].poll() is None:
            workers[0].kill()
            workers[0].wait()
        alive_at_the_end.append(progress.cells_done)

    with open_executor(f"dask:{address}") as executor:
        assert executor is not None
        _wait_for_workers(executor, 2)
        summary = run_experiment(spec(LONG), tmp_path / "out", executor=executor, progress=kill_one)
        # The last result of all is lost with the scheduler that fetches it: whoever waits for it is told.
        with pytest.raises(CancelledError):
            executor.submit(Fatal, scheduler.pid).result(timeout=200)
    assert scheduler.wait() == -signal.SIGKILL
    assert workers[0].returncode == -signal.SIGKILL
    assert min(count for count in alive_at_the_end if count >= 5) < 24
    assert summary == Completion(computed=24, found=0, skipped={})
    assert numbers(tmp_path / "out") == numbers(long_reference)
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["executor"] == "DaskExecutor"
    played = provenance["played"]
    assert {int(worker.rpartition("/")[2]) for worker in by_worker} <= {worker.pid for worker in workers}
    assert sum(by_worker.values()) == played["rounds"] == 24 * 6 * 10_000
    assert played["thread_seconds"] == len(by_worker) * played["wall_seconds"]


@pytest.mark.slow
def test_a_scheduler_that_is_killed_and_started_again_loses_nothing(
    tmp_path: Path, long_reference: Path
) -> None:
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    processes: list[subprocess.Popen[bytes]] = []

    def start_cluster() -> None:
        processes.append(_start("dask_scheduler", "--port", port, "--host", "127.0.0.1", "--no-dashboard"))
        processes.append(
            _start(
                "dask_worker",
                address,
                "--nthreads",
                "1",
                "--no-nanny",
                "--no-dashboard",
                "--death-timeout",
                60,
            )
        )

    start_cluster()
    try:
        deadline = time.monotonic() + 60
        while not _listens(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with started(tmp_path, 3, "--executor", f"dask:{address}") as process:
            for one in processes:
                one.kill()
                one.wait()
            before = identities(tmp_path / "out")
            start_cluster()
            _, errors = process.communicate(timeout=200)
    finally:
        for one in processes:
            one.kill()
            one.wait()
    assert process.returncode == 0, errors
    assert "Lost the executor: it dropped what it was given. Finished cells are kept." in errors
    assert "The scheduler is back; continuing with what is not finished." in errors
    assert "Traceback" not in errors
    assert 0 < len(before) < 24
    assert before.items() <= identities(tmp_path / "out").items()
    assert numbers(tmp_path / "out") == numbers(long_reference)
    assert "efficiency against one core" in (tmp_path / "out" / "report" / "tables.md").read_text()


def test_a_scheduler_that_stays_away_ends_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    @contextlib.contextmanager
    def open_once(name: str) -> Iterator[None]:
        opened.append(name)
        if len(opened) > 1:
            raise OSError("connection refused")
        yield None

    def lose(_: Executor | None) -> None:
        raise ExecutorLostError("Lost it.")

    def fill(_: Executor | None) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(executors, "open_executor", open_once)
    monkeypatch.setattr(executors, "RETRY_SECONDS", 0.01)
    said: list[str] = []
    with pytest.raises(
        ExecutorLostError, match="dask:x: the scheduler did not return within 0 s; finished cells"
    ):
        executors.run_on("dask:x", lose, patience=0.05, say=said.append)
    assert said == ["Lost it. Waiting up to 0 s for it to return."]
    assert len(opened) > 2
    opened.clear()
    with pytest.raises(OSError, match="disk full"):  # not the scheduler's fault: not tried again
        executors.run_on("dask:x", fill)
    assert len(opened) == 1


def test_an_executor_that_drops_tasks_is_lost_not_wrong(tmp_path: Path) -> None:
    class Dropping(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
            future = Future[Any]()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    with pytest.raises(ExecutorLostError, match="Finished cells are kept"):
        run_experiment(spec(), tmp_path, executor=Dropping())


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def _wait_for_workers(executor: Any, count: int) -> None:
    executor.client.wait_for_workers(count, timeout=60)


@pytest.mark.parametrize("name", ["dask", "dask:", "slurm:here", ""])
def test_unknown_executors_are_refused(name: str) -> None:
    with (
        pytest.raises(ValueError, match="executor must be 'threads' or 'dask:ADDRESS'"),
        open_executor(name),
    ):
        pass


def test_separation_counts_only_pairs_of_different_clusters() -> None:
    world = shoal.SyntheticClusters(n_agents=4, dim=2, n_clusters=2, angle=1.0, seed=0)
    cuts = np.array([[0, 1, 5], [0, 2, 10], [3, 1, 30]])  # the first is of one cluster
    policy = shoal.BASS(4, 2, alpha=1.0, delta=0.1)
    trace = shoal.simulate(policy, world, horizon=1, seed=0)
    object.__setattr__(trace, "cuts", cuts)
    assert runner._separation(trace, world) == (20.0, 0.5)
