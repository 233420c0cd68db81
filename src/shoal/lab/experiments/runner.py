"""Run an experiment: play each cell's runs on any executor, write it when done, continue where it stopped.

A task's outcome is a pure function of the task (`play_runs`), so results do not depend on where it runs.
"""

import contextlib
import functools
import json
import os
import platform
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.core import validation
from shoal.core.atomic import write_whole
from shoal.core.kernels.graphs import pairs_of, pairs_within
from shoal.lab.benchmark import processor
from shoal.lab.environments.base import Environment
from shoal.lab.environments.sources import DataUnavailable
from shoal.lab.experiments import results
from shoal.lab.experiments.executors import ExecutorLostError, as_done
from shoal.lab.experiments.fingerprint import code_fingerprint
from shoal.lab.experiments.measurements import Measurement, is_kept, keep_outcome
from shoal.lab.experiments.results import ResultsError
from shoal.lab.experiments.spec import (
    SCHEMA_VERSION,
    Cell,
    Delay,
    EnvironmentSpec,
    ExperimentSpec,
    SpecError,
    build_environment,
    build_policy,
    cells,
    check_spec,
    check_values,
    grid,
    load_spec,
    spec_hash,
    to_toml,
)
from shoal.lab.simulation import Trace, simulate

RUNS_PER_TASK = 5
"""Runs per task: few enough to keep all workers busy to the end, enough to be worth sending."""

PLAYED = ("rounds", "cpu_seconds", "wall_seconds", "thread_seconds")
"""What is known of the runs of all cells, interrupted calls included: rounds played, processor time of the
threads that played them, time from the start to the last finished cell, and that times the threads."""

SAVE_PROVENANCE_SECONDS = 5.0


@dataclass(frozen=True)
class Progress:
    """How far an experiment is; what `run_experiment` reports a few times a second."""

    cells_done: int
    """Cells on disk, including those that were there at the start."""
    cells_found: int
    """Cells that were on disk at the start."""
    cells_total: int
    rounds_done: int
    """Rounds played since the start."""
    rounds_total: int
    """Rounds to be played, including those already played."""
    seconds: float
    """Time since the start."""
    compiling: str | None = None
    """The policy being compiled, if any."""
    workers: Mapping[str, int] = field(default_factory=dict)
    """Rounds that each process of an executor has played; empty without one."""

    @property
    def rounds_per_second(self) -> float:
        """Speed since the start."""
        return self.rounds_done / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float:
        """Time left at that speed; nan before the first round."""
        left = self.rounds_total - self.rounds_done
        return left / self.rounds_per_second if self.rounds_done else float("nan")


@dataclass(frozen=True)
class Completion:
    """What a call of `run_experiment` did."""

    computed: int
    """Cells played and written."""
    found: int
    """Cells that were there already."""
    skipped: Mapping[str, str]
    """Optional environments that were skipped, and why."""


@dataclass(frozen=True)
class Task:
    """Some runs of one cell: everything `play_runs` needs, and nothing that depends on where it runs."""

    cell: Cell
    runs: tuple[int, ...]
    seed: int
    horizon: int
    points: int
    pulling: str
    delay: Delay = 0


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: a row per run, its processor time, who played it and with which code."""

    rows: list[dict[str, Any]]
    cpu_seconds: float
    code: str
    worker: str = ""
    """Machine and process."""
    thread: int = 0
    """Which thread of it."""


class StoppedError(Exception):
    """Raised in worker threads to end their run when the experiment is stopped."""


def run_experiment(
    spec: ExperimentSpec,
    out: str | Path,
    *,
    jobs: int | None = None,
    only: str | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    command: str | None = None,
    measurements: Sequence[Measurement] = (),
) -> Completion:
    """Compute the cells of an experiment that are not yet in the directory `out`.

    Parameters
    ----------
    spec : ExperimentSpec
    out : path
        Created if missing. It may hold earlier results of the same spec; others are refused.
    jobs : int, optional
        Number of threads; by default the number of processors. Ignored if there is an executor.
    only : str, optional
        Compute only the cells whose id contains a match for this pattern, e.g. "near/*a0.3".
    executor : concurrent.futures.Executor, optional
        Where runs are played. It must be able to import this package; it is not shut down.
    progress : callable, optional
        Called a few times a second, in the calling thread.
    command : str, optional
        How the experiment was started, for its provenance.
    measurements : sequence of Measurement
        Further cells, after those of the grid. Those whose data or packages are missing are skipped.

    Raises
    ------
    SpecError, ResultsError, OSError
        If the spec, `out` or the disk prevents it; finished cells are not touched.
    """
    started = time.monotonic()
    check_spec(spec)
    # Everything that can fail without playing fails here, before the directory is touched.
    results.columns()  # needs pyarrow: raises now and not after the first cell
    jobs = processors() if jobs is None else validation.positive_int("jobs", jobs)
    chosen, extra = _choose(cells(spec), measurements, only)
    out = Path(out)
    identity = spec_hash(spec)
    # Data that may be missing is looked for first: hours of playing must not end in a missing file.
    skipped = _missing_environments(spec, chosen)
    wanted = [cell for cell in chosen if cell.environment.id not in skipped]
    _refuse_other_results(spec, out, identity)
    (out / results.CELLS).mkdir(parents=True, exist_ok=True)
    # Two processes would play the same cells, and each would find the other's files half there.
    with results.only_writer(out):
        results.remove_leftovers(out)
        # Under the lock: another process may just have finished one.
        there = _finished_cells(spec, out, identity)
        missing = [cell for cell in wanted if cell.id not in there]
        unmeasured = [item for item in extra if not is_kept(out, item)]
        # The first one stays: others for the same grid differ in titles at most.
        if not (out / results.SPEC).exists():
            write_whole(out / results.SPEC, to_toml(spec).encode())
        log = _Provenance(out, spec, identity, command=command, jobs=jobs, executor=executor, skipped=skipped)
        if missing or unmeasured or not (out / results.PROVENANCE).exists():
            log.save(running=bool(missing or unmeasured))
        total = len(wanted) + len(extra)
        found = total - len(missing) - len(unmeasured)
        meter = _Meter(found, total, len(missing) * spec.runs * spec.horizon, started)

        def report() -> None:
            if progress is not None:
                progress(meter.reading())

        if found < total:
            try:
                with _players(executor, jobs, meter, spec, missing) as players:
                    for cell, rows, cpu_seconds in _play_all(
                        spec, missing, players.play, meter, report, executor
                    ):
                        path = out / results.CELLS / cell.filename
                        results.write_cell(path, rows, cell_id=cell.id, spec_hash=identity)
                        meter.cells_done += 1
                        log.add(len(rows) * spec.horizon, cpu_seconds, len(meter.threads))
                    for item, outcome in _measure_all(unmeasured, players.measure, report):
                        keep_outcome(out, item, outcome)
                        meter.cells_done += 1
            finally:
                # The time that was used is recorded even if the run is interrupted.
                with contextlib.suppress(OSError):  # a full disk was already reported
                    log.save(running=False)
            report()
    return Completion(computed=meter.cells_done - found, found=found, skipped=skipped)


def play_runs(task: Task, advance: Callable[[int], None] | None = None) -> TaskResult:
    """Play the runs of a task; `advance` is called with the number of rounds played since its last call."""
    cpu = time.thread_time()
    # Processor time of this thread alone: others play at the same time.
    rows = [_play_run(task, run, advance) for run in task.runs]
    code = code_fingerprint([task.cell.environment.kind])
    worker = f"{platform.node()}/{os.getpid()}"
    return TaskResult(rows, time.thread_time() - cpu, code, worker, threading.get_ident())


def play_single(spec: ExperimentSpec) -> list[dict[str, Any]]:
    """Play a spec without writing anything; returns the rows of all its runs."""
    _missing_environments(spec, cells(spec))
    rows: list[dict[str, Any]] = []
    for cell in cells(spec):
        _warm_up(_task(spec, cell, (0,)))
        rows += play_runs(_task(spec, cell, range(spec.runs))).rows
    return rows


def processors() -> int:
    """Number of processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Choosing what to do


def _choose(
    listed: Sequence[Cell], measurements: Sequence[Measurement], only: str | None
) -> tuple[list[Cell], list[Measurement]]:
    def matches(item: Cell | Measurement) -> bool:
        return only is None or fnmatchcase(item.id, f"*{only}*")

    chosen = [cell for cell in listed if matches(cell)], [item for item in measurements if matches(item)]
    if not any(chosen):
        raise SpecError(f"only: no cell matches {only!r}; the first is {listed[0].id!r}")
    return chosen


def _missing_environments(spec: ExperimentSpec, chosen: list[Cell]) -> dict[str, str]:
    """Build every chosen environment once; return those to skip, raise for those that are wrong."""
    used = {cell.environment.id for cell in chosen}
    skipped = {}
    for index, environment in enumerate(spec.environments):
        if environment.id not in used:
            continue
        try:
            # Building one is the check: of its parameters, its data, and the policies that need its labels.
            built = _environment(environment, spec.seed)
        except (DataUnavailable, ImportError) as error:
            if not environment.optional:
                raise SpecError(f"{spec.source or spec.name}: environments[{index}]: {error}") from None
            skipped[environment.id] = str(error)
            continue
        except ValueError as error:
            raise SpecError(
                f"{spec.source or spec.name}: environments[{index}].parameters: {error}"
            ) from None
        check_values(spec, environment, built)
    return skipped


def _refuse_other_results(spec: ExperimentSpec, out: Path, identity: str) -> None:
    """Raise if `out` belongs to another spec, before anything in it is touched."""
    if out.exists() and not out.is_dir():
        raise ResultsError(f"{out}: is not a directory")
    if (out / results.SPEC).exists():
        try:
            same = grid(load_spec(out / results.SPEC)) == grid(spec)
        except SpecError as error:
            raise ResultsError(
                f"{out}: holds a spec that cannot be read ({error}); choose another directory"
            ) from None
        if not same:
            raise ResultsError(
                f"{out}: holds the results of another spec (see {results.SPEC}); choose another directory"
            )
    for path in results.cell_files(out):
        found = results.read_cell(path).schema.metadata[b"spec_hash"].decode()
        if found != identity:
            raise ResultsError(
                f"{path}: comes from another spec or another version of the code ({found}, not {identity}); "
                "choose another directory or delete this one"
            )


def _finished_cells(spec: ExperimentSpec, out: Path, identity: str) -> set[str]:
    there = set()
    for path in results.cell_files(out):
        table = results.read_cell(path)
        if table.num_rows != spec.runs:
            raise ResultsError(
                f"{path}: has {table.num_rows} runs, not {spec.runs}; delete it to compute it again"
            )
        there.add(table.schema.metadata[b"cell"].decode())
    return there


# Playing


class _Meter:
    """Counts rounds over all threads, and tells them to stop."""

    def __init__(self, cells_found: int, cells_total: int, rounds_total: int, started: float) -> None:
        self.cells_found = self.cells_done = cells_found
        self.cells_total = cells_total
        self.rounds_done, self.rounds_total = 0, rounds_total
        self.started = started
        self.compiling: str | None = None
        self.workers: Counter[str] = Counter()
        self.threads: set[tuple[str, int]] = set()
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def advance(self, rounds: int) -> None:
        if self.stop.is_set():
            raise StoppedError
        with self._lock:
            self.rounds_done += rounds

    def reading(self) -> Progress:
        return Progress(
            self.cells_done,
            self.cells_found,
            self.cells_total,
            self.rounds_done,
            self.rounds_total,
            time.monotonic() - self.started,
            self.compiling,
            dict(self.workers),
        )


@dataclass(frozen=True)
class _Players:
    """Functions that submit work."""

    play: Callable[[Task], "Future[TaskResult]"]
    measure: Callable[[Measurement], "Future[Any]"]


@contextlib.contextmanager
def _players(
    executor: Executor | None, jobs: int, meter: _Meter, spec: ExperimentSpec, missing: Sequence[Cell]
) -> Iterator[_Players]:
    """Functions that submit tasks. On exit, whatever is still waiting or running is stopped."""
    if executor is not None:
        submitted: list[Future[Any]] = []

        def submit_there(function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
            submitted.append(executor.submit(function, *arguments))
            return submitted[-1]

        try:
            yield _Players(
                lambda task: submit_there(play_runs, task), lambda item: submit_there(item.compute)
            )
        finally:
            for future in submitted:
                future.cancel()
        return

    # Numba compiles one function at a time. So one thread compiles policy after policy, while the others play
    # those that are ready. Tasks come in the same order; each waits until its policy is compiled.
    first = {cell.method.policy: cell for cell in reversed(missing)}
    order = list(dict.fromkeys(cell.method.policy for cell in missing))
    compiler = ThreadPoolExecutor(1, thread_name_prefix="shoal-compile")
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="shoal-play")

    def make_ready(name: str) -> None:
        meter.compiling = name
        try:
            _warm_up(_task(spec, first[name], (0,)))
        finally:
            meter.compiling = None

    # In the order in which the cells will be played.
    ready = {name: compiler.submit(make_ready, name) for name in order}

    def play_when_ready(task: Task) -> TaskResult:
        ready[task.cell.method.policy].result()
        return play_runs(task, meter.advance)

    try:
        yield _Players(
            lambda task: pool.submit(play_when_ready, task), lambda item: pool.submit(item.compute)
        )
    finally:
        meter.stop.set()  # threads cannot be cancelled: `advance` raises in each when it next reports
        compiler.shutdown(wait=False, cancel_futures=True)
        pool.shutdown(wait=False, cancel_futures=True)


def _play_all(
    spec: ExperimentSpec,
    missing: Sequence[Cell],
    submit: Callable[[Task], "Future[TaskResult]"],
    meter: _Meter,
    report: Callable[[], None],
    executor: Executor | None,
) -> Iterator[tuple[Cell, list[dict[str, Any]], float]]:
    """Play the missing cells and yield each, its rows in order of runs, once its last run is done."""
    waiting = {cell.id: _Gathered(spec.runs) for cell in missing}
    # A few runs each: long enough to hide what sending costs, short enough to share out at the end.
    submitted = (
        (cell, submit(_task(spec, cell, range(start, min(start + RUNS_PER_TASK, spec.runs)))))
        for cell in missing
        for start in range(0, spec.runs, RUNS_PER_TASK)
    )
    codes = {item.kind: code_fingerprint([item.kind]) for item in spec.environments}
    for cell, future in as_done(submitted, report):
        try:
            outcome = future.result()
        except (ValueError, OSError):
            raise
        except CancelledError as error:
            raise _lost() from error
        except Exception as error:
            if executor is None:
                raise
            raise RuntimeError(f"{cell.id} failed on the executor: {error!r}") from error
        if outcome.code != codes[cell.environment.kind]:
            raise ResultsError(
                f"{cell.id}: was played by a worker with another version of shoal; update the workers"
            )
        if executor is not None:
            meter.advance(len(outcome.rows) * spec.horizon)
            meter.workers[outcome.worker] += len(outcome.rows) * spec.horizon
        meter.threads.add((outcome.worker, outcome.thread))
        # Tasks end in any order; a cell is written when its last run is there.
        gathered = waiting[cell.id]
        gathered.add(outcome)
        if gathered.complete:
            # Rows of finished cells are let go of, since a grid may have more than fit in memory.
            del waiting[cell.id]
            yield cell, sorted(gathered.rows, key=lambda row: int(row["run"])), gathered.cpu_seconds


def _measure_all(
    missing: Sequence[Measurement],
    submit: Callable[[Measurement], "Future[Any]"],
    report: Callable[[], None],
) -> Iterator[tuple[Measurement, Any]]:
    """Make the missing measurements and yield each with its outcome; skip those whose data is missing."""
    for item, future in as_done(((item, submit(item)) for item in missing), report):
        try:
            outcome = future.result()
        except (DataUnavailable, ImportError):
            continue
        except CancelledError as error:
            raise _lost() from error
        yield item, outcome


def _lost() -> ExecutorLostError:
    return ExecutorLostError("Lost the executor: it dropped what it was given. Finished cells are kept.")


@dataclass
class _Gathered:
    runs: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    cpu_seconds: float = 0.0

    def add(self, outcome: TaskResult) -> None:
        self.rows += outcome.rows
        self.cpu_seconds += outcome.cpu_seconds

    @property
    def complete(self) -> bool:
        return len(self.rows) == self.runs


def _task(spec: ExperimentSpec, cell: Cell, runs: Sequence[int]) -> Task:
    pulling = cell.environment.pulling or spec.pulling
    delay = spec.delay if cell.environment.delay is None else cell.environment.delay
    return Task(cell, tuple(runs), spec.seed, spec.horizon, spec.points, pulling, delay)


def _warm_up(task: Task) -> None:
    """Play one round, so that everything the policy needs is compiled or loaded."""
    environment = _environment(task.cell.environment, task.seed)
    policy = build_policy(task.cell.method, task.cell.alpha, environment, task.seed)
    simulate(policy, environment, horizon=1, seed=task.seed, pulling=task.pulling, delay=task.delay)


def _play_run(task: Task, run: int, advance: Callable[[int], None] | None) -> dict[str, Any]:
    seed, cell = task.seed + run, task.cell
    environment = _environment(cell.environment, seed)
    policy = build_policy(cell.method, cell.alpha, environment, seed)
    # Making the environment and the policy is not counted: it may read files, or compile.
    begin = time.perf_counter()
    trace = simulate(
        policy,
        environment,
        horizon=task.horizon,
        seed=seed,
        pulling=task.pulling,
        delay=task.delay,
        points=task.points,
        progress=advance,
    )
    seconds = time.perf_counter() - begin
    first_separation, separated_share = _separation(trace, environment)
    return {
        "environment": cell.environment.id,
        "method": cell.method.id,
        "policy": cell.method.policy,
        "group": cell.method.group,
        "alpha": cell.alpha,
        "run": run,
        "seed": seed,
        "horizon": task.horizon,
        "n_agents": environment.n_agents,
        "dim": environment.dim,
        "n_arms": environment.n_arms,
        "gap": environment.gap,
        "environment_parameters": json.dumps(cell.environment.parameters, sort_keys=True),
        "policy_parameters": json.dumps(_plain_parameters(policy, cell), sort_keys=True),
        "final_regret": trace.final_regret,
        "final_f1": float(trace.f1[-1]),
        "final_edges": int(trace.edges[-1]),
        "communication_cost": int(trace.communication[-1]),
        "seconds": seconds,
        "rounds_per_second": task.horizon / seconds,
        "curve_rounds": trace.recorded,
        "curve_regret": trace.regret[trace.recorded - 1],
        "curve_f1": trace.f1,
        "curve_edges": trace.edges,
        "first_separation": first_separation,
        "separated_share": separated_share,
    }


# All methods and α of a seed play in the same world, which real data takes long to make.
@functools.lru_cache(maxsize=128)
def _environment_from(encoded: bytes, seed: int) -> Environment:
    return build_environment(msgspec.json.decode(encoded, type=EnvironmentSpec), seed)


def _environment(environment: EnvironmentSpec, seed: int) -> Environment:
    """The environment of a run; cached, because every method and α uses it and its arrays are read-only."""
    return _environment_from(msgspec.json.encode(environment), seed)


def _plain_parameters(policy: Any, cell: Cell) -> dict[str, Any]:
    """The parameters the policy was built with, without arrays (labels)."""
    parameters = getattr(policy, "parameters", {**cell.method.parameters, "alpha": cell.alpha})
    return {
        key: value for key, value in parameters.items() if isinstance(value, bool | int | float | str | None)
    }


def _separation(trace: Trace, environment: Environment) -> tuple[float, float]:
    """Among pairs from different clusters: mean round of separation, and the share that was separated."""
    if trace.cuts is None or environment.labels is None:
        return float("nan"), float("nan")
    # Labels may be any integers; counting pairs needs them from 0 on.
    _, labels = np.unique(environment.labels, return_inverse=True)
    i, j, rounds = trace.cuts.T
    cut = rounds[labels[i] != labels[j]]
    pairs = pairs_of(len(labels)) - pairs_within(labels)
    return float(cut.mean()) if len(cut) else float("nan"), len(cut) / pairs if pairs else float("nan")


# Provenance


class _Provenance:
    """Writes `provenance.json`; times add up over interrupted runs."""

    def __init__(
        self,
        out: Path,
        spec: ExperimentSpec,
        identity: str,
        *,
        command: str | None,
        jobs: int,
        executor: Executor | None,
        skipped: Mapping[str, str],
    ) -> None:
        self._path = out / results.PROVENANCE
        before = self._read()
        self._wall_before, self._cpu_before = before.get("wall_seconds", 0.0), before.get("cpu_seconds", 0.0)
        self._elsewhere = 0.0
        self._played_before: dict[str, float] = {**dict.fromkeys(PLAYED, 0), **before.get("played", {})}
        self._played: dict[str, float] = dict.fromkeys(PLAYED, 0)
        self._began, self._cpu_began = time.monotonic(), time.process_time()
        self._remote = executor is not None
        self._saved = time.monotonic()
        now = _now()
        self._content: dict[str, Any] = {
            "spec": spec.name,
            "spec_hash": identity,
            "schema_version": SCHEMA_VERSION,
            "seed": spec.seed,
            "command": command if command is not None else "run_experiment",
            "executor": type(executor).__name__ if executor is not None else _threads(jobs),
            "jobs": jobs,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("shoal", "numpy", "numba", "pyarrow")},
            },
            "commit": source_commit(Path(__file__).parents[2]),
            "machine": f"{processor()}, {platform.system()} {platform.machine()}",
            "cpu_count": processors(),
            "started": before.get("started", now),
            "times_started": before.get("times_started", 0) + 1,
            "skipped": [{"environment": name, "reason": reason} for name, reason in skipped.items()],
            "cells_total": len(cells(spec)),
        }

    def add(self, rounds: int, cpu_seconds: float, threads: int) -> None:
        """Count a finished cell, and save from time to time: a kill loses only seconds of accounting."""
        # Processor time of other machines is not in this process's own.
        if self._remote:
            self._elsewhere += cpu_seconds
        wall = time.monotonic() - self._began
        self._played = {
            "rounds": self._played["rounds"] + rounds,
            "cpu_seconds": self._played["cpu_seconds"] + cpu_seconds,
            "wall_seconds": wall,
            "thread_seconds": wall * threads,
        }
        if time.monotonic() - self._saved > SAVE_PROVENANCE_SECONDS:
            self.save(running=True)

    def save(self, *, running: bool) -> None:
        self._saved = time.monotonic()
        content = {
            **self._content,
            "ended": None if running else _now(),
            "wall_seconds": self._wall_before + self._saved - self._began,
            "cpu_seconds": self._cpu_before + time.process_time() - self._cpu_began + self._elsewhere,
            "cells_done": len(results.cell_files(self._path.parent)),
            "played": {name: self._played_before[name] + self._played[name] for name in PLAYED},
        }
        write_whole(self._path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ResultsError(f"{self._path}: cannot be read ({error}); delete it to continue") from None
        return content if isinstance(content, dict) else {}


def _threads(jobs: int) -> str:
    return "1 thread" if jobs == 1 else f"{jobs} threads"


def source_commit(package: Path) -> str | None:
    """The commit a package directory was checked out from, with "-dirty" if it differs; None elsewhere."""
    try:
        for command in (
            # An installed package may lie inside somebody else's repository, but is not tracked there.
            ["git", "ls-files", "--error-unmatch", "__init__.py"],
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        ):
            said = subprocess.run(
                command, cwd=package, capture_output=True, text=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
