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
from shoal.lab.experiments.fingerprint import (
    Facts,
    cell_facts,
    cell_key,
    cell_sources,
    delay_of,
    differences,
    same_but_code,
)
from shoal.lab.experiments.measurements import Measurement, is_kept, keep_outcome
from shoal.lab.experiments.results import Grid, GridCell, ResultsError, StoredCell
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
    to_toml,
    value_problems,
)
from shoal.lab.simulation import Trace, simulate
from shoal.reporting.words import counted

RUNS_PER_TASK = 5
"""Runs per task: few enough to keep all workers busy to the end, enough to be worth sending."""

PLAYED = ("rounds", "cpu_seconds", "wall_seconds", "thread_seconds")
"""Totals over the runs of all cells, interrupted calls included: rounds played, processor time of the threads
that played them, time from the start to the last finished cell, and that times the number of threads."""

Data = tuple[str | os.PathLike[str], ...]

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
    trusted: int = 0
    """Cells taken over from an earlier version of the code, as `trust` declared."""


@dataclass(frozen=True)
class LeftToPlay:
    """What is left to play of a cell."""

    cell: Cell
    key: str
    facts: Facts
    seeds: tuple[int, ...]
    cells: int
    """Number of cells that these results are for: several methods may have the same settings."""


@dataclass(frozen=True)
class Task:
    """Some runs of one cell: everything `play_runs` needs, and nothing that depends on where it runs."""

    cell: Cell
    seeds: tuple[int, ...]
    horizon: int
    points: int
    pulling: str
    delay: Delay = 0


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: a row per run, its processor time, who played it and with which code."""

    rows: list[dict[str, Any]]
    cpu_seconds: float
    code: Mapping[str, str]
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
    trust: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Completion:
    """Play what the grid needs and the directory `out` does not hold yet.

    Parameters
    ----------
    spec : ExperimentSpec
    out : path
        Created if missing. Stored cells that depend on the same things (see `fingerprint`) are reused, and
        only the seeds that they lack are played. Other cells stay where they are.
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
    trust : bool
        Declare that no change of the code alters stored results: cells that differ only in their code are
        reused. This is recorded with them, and in the provenance.
    say : callable
        Called with sentences about what is played again and why.

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
    if out.exists() and not out.is_dir():
        raise ResultsError(f"{out}: is not a directory")
    # Data that may be missing is looked for first: hours of playing must not end in a missing file.
    data, skipped = _build_environments(spec, chosen)
    for name, reason in skipped.items():
        say(f"Left out {name}: {reason}")
    wanted = [cell for cell in chosen if cell.environment.id in data]
    (out / results.CELLS).mkdir(parents=True, exist_ok=True)
    # Two processes would play the same cells, and each would find the other's files half there.
    with results.only_writer(out):
        results.remove_leftovers(out)
        grid = _grid(spec, data, results.load_grid(out))
        _describe(out, spec, grid)
        # Under the lock: another process may just have finished one.
        work = _left_to_play(spec, out, wanted, grid)
        trusted = _trusted(out, work) if trust else []
        log = _Provenance(
            out, spec, grid, command=command, jobs=jobs, executor=executor, skipped=skipped, trusted=trusted
        )
        if trusted:
            work = _left_to_play(spec, out, wanted, grid)
        for text in reasons(out, work):
            say(text)
        unmeasured = [item for item in extra if not is_kept(out, item)]
        missing = sum(item.cells for item in work) + len(unmeasured)
        if missing or trusted or not (out / results.PROVENANCE).exists():
            log.save(running=bool(missing))
        total = len(wanted) + len(extra)
        found = total - missing
        rounds = sum(len(item.seeds) for item in work) * spec.horizon
        meter = _Meter(found, total, rounds, started)

        def report() -> None:
            if progress is not None:
                progress(meter.reading())

        if missing:
            try:
                with _players(executor, jobs, meter, spec, work) as players:
                    for item, rows, cpu_seconds in _play_all(
                        spec, work, players.play, meter, report, executor
                    ):
                        _add_runs(out, item, rows)
                        meter.cells_done += item.cells
                        log.add(len(rows) * spec.horizon, cpu_seconds, len(meter.threads))
                    for measured, outcome in _measure_all(unmeasured, players.measure, report):
                        keep_outcome(out, measured, outcome)
                        meter.cells_done += 1
            finally:
                # The time that was used is recorded even if the run is interrupted.
                with contextlib.suppress(OSError):  # a full disk was already reported
                    log.save(running=False)
            report()
    return Completion(meter.cells_done - found, found, skipped, sum(entry["cells"] for entry in trusted))


def play_runs(task: Task, advance: Callable[[int], None] | None = None) -> TaskResult:
    """Play the runs of a task; `advance` is called with the number of rounds played since its last call."""
    cpu = time.thread_time()
    made_with = {"software": software(), "machine": machine()}
    # Processor time of this thread alone: others play at the same time.
    rows = [_play_run(task, seed, advance) | made_with for seed in task.seeds]
    code = {name: sources.digest for name, sources in cell_sources(task.cell, task.delay).items()}
    worker = f"{platform.node()}/{os.getpid()}"
    return TaskResult(rows, time.thread_time() - cpu, code, worker, threading.get_ident())


def play_single(spec: ExperimentSpec) -> list[dict[str, Any]]:
    """Play a spec without writing anything; returns the rows of all its runs."""
    _build_environments(spec, cells(spec))
    rows: list[dict[str, Any]] = []
    for cell in cells(spec):
        _warm_up(_task(spec, cell, (0,)))
        rows += play_runs(_task(spec, cell, seeds_of(spec))).rows
    return rows


def seeds_of(spec: ExperimentSpec) -> range:
    """The seed of each run."""
    return range(spec.seed, spec.seed + spec.runs)


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


def _build_environments(
    spec: ExperimentSpec, chosen: Sequence[Cell]
) -> tuple[dict[str, Data], dict[str, str]]:
    """Build every chosen environment once: the files of each, and why others are skipped."""
    used = {cell.environment.id for cell in chosen}
    data: dict[str, Data] = {}
    skipped = {}
    problems: list[str] = []
    for index, environment in enumerate(spec.environments):
        if environment.id not in used:
            continue
        try:
            # Building one is the check: of its parameters, its data, and the policies that need its labels.
            built = _environment(environment, spec.seed)
        except (DataUnavailable, ImportError) as error:
            if environment.optional:
                skipped[environment.id] = str(error)
            else:
                problems.append(f"{spec.source or spec.name}: environments[{index}]: {error}")
            continue
        except ValueError as error:
            problems.append(f"{spec.source or spec.name}: environments[{index}].parameters: {error}")
            continue
        problems += value_problems(spec, environment, built)
        data[environment.id] = built.data_files
    if problems:
        raise SpecError(*problems)
    return data, skipped


def _grid(spec: ExperimentSpec, data: Mapping[str, Data], before: Grid | None) -> Grid:
    """The keys of all cells. Where an environment was not built, its data are assumed unchanged."""
    known = {} if before is None else {cell.id: cell for cell in before.cells}
    listed = []
    for cell in cells(spec):
        environment, method = cell.environment, cell.method
        try:
            facts = cell_facts(spec, cell, data.get(environment.id, ()))
        except ImportError:  # an optional environment, without the package that it needs
            continue
        earlier = known.get(cell.id)
        if environment.id not in data and earlier and {**earlier.facts, "data": []} == facts:
            facts = earlier.facts
        names = cell.id, environment.id, method.id, method.policy, method.group, cell.alpha
        listed.append(GridCell(*names, cell_key(facts), facts))
    return Grid(spec.seed, spec.runs, listed)


def _left_to_play(spec: ExperimentSpec, out: Path, wanted: Sequence[Cell], grid: Grid) -> list[LeftToPlay]:
    """The cells that lack runs, each with the seeds that it lacks. Stored cells are verified."""
    files, in_grid = results.files_by_key(out), {cell.id: cell for cell in grid.cells}
    by_key: dict[str, list[Cell]] = {}
    for cell in wanted:
        by_key.setdefault(in_grid[cell.id].key, []).append(cell)
    work = []
    for key, same in by_key.items():
        there = set(results.read_cell(files[key])[0]["seed"].to_pylist()) if key in files else set()
        seeds = tuple(seed for seed in seeds_of(spec) if seed not in there)
        if seeds:
            work.append(LeftToPlay(same[0], key, in_grid[same[0].id].facts, seeds, len(same)))
    return work


def _trusted(out: Path, work: Sequence[LeftToPlay]) -> list[dict[str, Any]]:
    """Reuse stored cells that differ only in their code; returns what that declares, for the provenance."""
    stored, files = results.stored_cells(out), results.files_by_key(out)
    when, counts = _now(), Counter[tuple[str, ...]]()
    for item in work:
        if item.key in files:
            continue
        rivals = [key for key, each in stored.items() if same_but_code(each.facts, item.facts)]
        if not rivals:
            continue
        tables = {key: results.read_cell(files[key])[0] for key in rivals}
        best = max(rivals, key=lambda key: (tables[key].num_rows, files[key].stat().st_mtime_ns))
        changed = results.changed_code(out, stored[best].facts, item.facts)
        entry = {"when": when, "changed": changed, "software": software()}
        kept = StoredCell(item.cell.id, item.key, item.facts, [*stored[best].trusted, entry])
        results.write_cell(results.cell_path(out, item.cell.id, item.key), tables[best], kept)
        counts[tuple(changed)] += item.cells
    return [{"when": when, "cells": count, "changed": list(changed)} for changed, count in counts.items()]


def reasons(out: Path, work: Sequence[LeftToPlay]) -> list[str]:
    """Sentences that say what will be played although something similar is stored, and why."""
    stored, files = results.stored_cells(out), results.files_by_key(out)
    counts: Counter[str] = Counter()
    for item in work:
        if item.key in files:
            counts[f"{counted(len(item.seeds), 'more run')}, stored ones are kept"] += item.cells
            continue
        alike = [each for each in stored.values() if same_but_code(each.facts, item.facts)]
        named = [each for each in stored.values() if each.id == item.cell.id]
        if alike:
            changed = min((results.changed_code(out, each.facts, item.facts) for each in alike), key=len)
            counts[f"{results.code_words(changed)} changed"] += item.cells
        elif named:
            closest = min((differences(each.facts, item.facts) for each in named), key=len)
            counts["; ".join(closest)] += item.cells
    return [
        f"{why}: {counted(count, 'cell')} to play"
        + (" again; --trust would keep the stored results" if why.endswith(" changed") else "")
        for why, count in counts.items()
    ]


def _describe(out: Path, spec: ExperimentSpec, grid: Grid) -> None:
    """Write the grid, and the code that it is played with, where they are new."""
    results.write_if_new(out / results.SPEC, to_toml(spec).encode())
    results.write_if_new(out / results.GRID, msgspec.json.encode(grid))
    known = {cell.id for cell in grid.cells}
    sources = {
        each.digest: each.parts
        for cell in cells(spec)
        if cell.id in known
        for each in cell_sources(cell, delay_of(spec, cell)).values()
    }
    for digest, parts in sources.items():
        results.save_code(out, digest, parts)


def _add_runs(out: Path, item: LeftToPlay, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append runs to a cell, as a whole or not at all."""
    from shoal.core.parquet import pa

    table = pa.Table.from_pylist(list(rows), schema=results.columns())
    path = results.files_by_key(out).get(item.key)
    stored = StoredCell(item.cell.id, item.key, item.facts)
    if path is not None:
        before, stored = results.read_cell(path)
        table = pa.concat_tables([before, table]).sort_by("seed")
    results.write_cell(path or results.cell_path(out, item.cell.id, item.key), table, stored)


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
    executor: Executor | None, jobs: int, meter: _Meter, spec: ExperimentSpec, work: Sequence[LeftToPlay]
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
    first = {item.cell.method.policy: item.cell for item in reversed(work)}
    order = list(dict.fromkeys(item.cell.method.policy for item in work))
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
    work: Sequence[LeftToPlay],
    submit: Callable[[Task], "Future[TaskResult]"],
    meter: _Meter,
    report: Callable[[], None],
    executor: Executor | None,
) -> Iterator[tuple[LeftToPlay, list[dict[str, Any]], float]]:
    """Play what is left and yield each cell, its rows in order of seeds, once its last run is done."""
    waiting = {item.key: _Gathered(len(item.seeds)) for item in work}
    # A few runs each: long enough to hide what sending costs, short enough to share out at the end.
    submitted = (
        (item, submit(_task(spec, item.cell, item.seeds[start : start + RUNS_PER_TASK])))
        for item in work
        for start in range(0, len(item.seeds), RUNS_PER_TASK)
    )
    for item, future in as_done(submitted, report):
        try:
            outcome = future.result()
        except (ValueError, OSError):
            raise
        except CancelledError as error:
            raise _lost() from error
        except Exception as error:
            if executor is None:
                raise
            raise RuntimeError(f"{item.cell.id} failed on the executor: {error!r}") from error
        if outcome.code != item.facts["code"]:
            raise ResultsError(
                f"{item.cell.id}: was played by a worker with another version of the code (of shoal, the "
                "policy or the environment); update the workers"
            )
        if executor is not None:
            meter.advance(len(outcome.rows) * spec.horizon)
            meter.workers[outcome.worker] += len(outcome.rows) * spec.horizon
        meter.threads.add((outcome.worker, outcome.thread))
        gathered = waiting[item.key]
        gathered.add(outcome)
        if gathered.complete:
            del waiting[item.key]
            yield item, sorted(gathered.rows, key=lambda row: int(row["seed"])), gathered.cpu_seconds


def _measure_all(
    missing: Sequence[Measurement], submit: Callable[[Measurement], "Future[Any]"], report: Callable[[], None]
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


def _task(spec: ExperimentSpec, cell: Cell, seeds: Sequence[int]) -> Task:
    pulling = cell.environment.pulling or spec.pulling
    return Task(cell, tuple(seeds), spec.horizon, spec.points, pulling, delay_of(spec, cell))


def _warm_up(task: Task) -> None:
    """Play one round, so that everything the policy needs is compiled or loaded."""
    seed = task.seeds[0]
    environment = _environment(task.cell.environment, seed)
    policy = build_policy(task.cell.method, task.cell.alpha, environment, seed)
    simulate(policy, environment, horizon=1, seed=seed, pulling=task.pulling, delay=task.delay)


def _play_run(task: Task, seed: int, advance: Callable[[int], None] | None) -> dict[str, Any]:
    cell = task.cell
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
        grid: Grid,
        *,
        command: str | None,
        jobs: int,
        executor: Executor | None,
        skipped: Mapping[str, str],
        trusted: Sequence[Mapping[str, Any]],
    ) -> None:
        self._path, self._grid = out / results.PROVENANCE, grid
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
            "schema_version": SCHEMA_VERSION,
            "seed": spec.seed,
            "command": command if command is not None else "run_experiment",
            "executor": type(executor).__name__ if executor is not None else counted(jobs, "thread"),
            "jobs": jobs,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("shoal", "numpy", "numba", "pyarrow")},
            },
            "commit": _commit(),
            "machine": machine(),
            "cpu_count": processors(),
            "started": before.get("started", now),
            "times_started": before.get("times_started", 0) + 1,
            "skipped": [{"environment": name, "reason": reason} for name, reason in skipped.items()],
            "cells_total": len(cells(spec)),
            "trusted": [*before.get("trusted", []), *trusted],
        }

    def add(self, rounds: int, cpu_seconds: float, threads: int) -> None:
        """Count a finished cell, and save from time to time: a kill loses only seconds of accounting."""
        # This process's own time does not include that of other machines.
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
            "cells_done": self._cells_done(),
            "played": {name: self._played_before[name] + self._played[name] for name in PLAYED},
        }
        write_whole(self._path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def _cells_done(self) -> int:
        files = results.files_by_key(self._path.parent)
        return sum(cell.key in files for cell in self._grid.cells)

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ResultsError(f"{self._path}: cannot be read ({error}); delete it to continue") from None
        return content if isinstance(content, dict) else {}


def source_commit(package: Path) -> str | None:
    """The commit a package directory was checked out from, with "-dirty" if it differs; None elsewhere."""
    try:
        for command in (
            # An installed package may lie inside another project's repository, but is not tracked there.
            ["git", "ls-files", "--error-unmatch", "__init__.py"],
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        ):
            said = subprocess.run(
                command, cwd=package, capture_output=True, text=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


@functools.cache
def _commit() -> str | None:
    return source_commit(Path(__file__).parents[2])


@functools.cache
def software() -> str:
    """The software that plays runs, in words; recorded with each run."""
    commit = f" ({_commit()})" if _commit() else ""
    others = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    return f"shoal {version('shoal')}{commit}, {others}, Python {platform.python_version()}"


@functools.cache
def machine() -> str:
    """The processor and the system, in words."""
    return f"{processor()}, {platform.system()} {platform.machine()}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
