"""What live use costs compared with its bare parts, as ratios measured in one run.

`make bench` runs this and writes the table of docs/live.md. With a number it takes that many rewards for the
recovery, instead of a million; with `--ids` it measures decisions with ids, and keeps the other figures.

    python benchmarks/controller.py [REWARDS | --ids]
"""

import contextlib
import gc
import json
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shoal

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.live.population.server import Server, find_binaries  # noqa: E402

from shoal.live.journal import snapshots  # noqa: E402
from shoal.live.journal.records import Observed, Row, encode  # noqa: E402
from shoal.live.journal.stores import open_store  # noqa: E402
from shoal.live.journal.stores.base import Batch  # noqa: E402

PAGE = ROOT / "docs" / "live.md"
RESULTS = ROOT / "benchmarks" / "controller.json"
BEGIN, END = "<!-- written by make bench -->\n", "<!-- until here -->\n"
N, D, K = 1_000, 16, 50
CALLERS = 64
SECONDS = 4.0
REPEATS = 5
JOURNALS = (1_000, 100_000, 1_000_000)
"""Sizes, in records, of the journals in which decisions with ids are made."""

rng = np.random.default_rng(0)
ARMS = rng.normal(size=(K, D)) / 4
THETA = rng.normal(size=(4, D)) / 4
LIKING = THETA @ ARMS.T
"""Expected rewards, by taste and arm."""
NAMES = [f"agent {i}" for i in range(N)]
CATALOGUE = {f"arm {k}": ARMS[k] for k in range(K)}


def population(controller: shoal.Controller, policy: str = "bass") -> shoal.Population:
    """A population of the size that is measured."""
    made = controller.population(policy, policy=policy, dim=D, seed=1)
    if not made.catalogue:
        made.set_arms(CATALOGUE)
    return made


# In memory


def in_memory(rounds: int = 4_000) -> dict[str, float]:
    """Processor time of `decide` and `reward` over that of `select` and `update`."""
    policy = shoal.BASS(N, D, seed=1)
    live = population(shoal.open(":memory:"))
    agents = rng.integers(N, size=(REPEATS + 2) * rounds).tolist()
    noise = rng.normal(size=len(agents)).tolist()

    def bare(start: int) -> None:
        for t in range(start, start + rounds):
            agent = agents[t]
            k = policy.select(agent, ARMS)
            policy.update(agent, ARMS[k], LIKING[agent % 4, k] + noise[t])

    def with_names(start: int) -> None:
        for t in range(start, start + rounds):
            agent = agents[t]
            decision = live.decide(NAMES[agent])
            live.reward(decision.id, LIKING[agent % 4, int(decision.arm[4:])] + noise[t])

    costs: dict[Any, list[float]] = {bare: [], with_names: []}
    for part in range(REPEATS + 2):
        for run in costs:
            gc.collect()
            start = time.process_time()
            run(part * rounds)
            costs[run].append((time.process_time() - start) / rounds * 1e6)
    ours, theirs = min(costs[with_names][2:]), min(costs[bare][2:])
    return {"bare_us": theirs, "controller_us": ours, "ratio": ours / theirs}


# Durable


def durable(url: str, policy: str) -> dict[str, float]:
    """Rows per second with 64 callers, over those of 64 callers that only insert the same rows."""
    controller = shoal.open(url, snapshot_every=0)
    live = population(controller, policy)
    for start in range(0, N, 500):
        live.decide_many({"agent": name} for name in NAMES[start : start + 500])
    runs = []
    for _ in range(3):
        before, commits = live.sequence, _commits(controller)
        start_time, cpu = time.perf_counter(), time.process_time()
        _call(live)
        seconds, cpu = time.perf_counter() - start_time, time.process_time() - cpu
        rows = [tuple(row) for row in live._store.read(live._number, before)]
        callers, alone = _insert(url, rows)
        runs.append(
            {
                "rows_per_s": len(rows) / seconds,
                "bare_rows_per_s": callers,
                "ratio": len(rows) / seconds / callers,
                "bare_alone_rows_per_s": alone,
                "rows_per_commit": len(rows) / (_commits(controller) - commits),
                "cpu_us_per_row": cpu / len(rows) * 1e6,
            }
        )
    controller.close()
    return max(runs, key=lambda run: run["ratio"])


def _commits(controller: shoal.Controller) -> int:
    assert controller.committer is not None
    return controller.committer.commits


def _call(live: shoal.Population) -> None:
    deadline = time.perf_counter() + SECONDS

    def caller() -> None:
        mine = np.random.default_rng()
        while time.perf_counter() < deadline:
            agent = int(mine.integers(N))
            decision = live.decide(NAMES[agent])
            live.reward(decision.id, LIKING[agent % 4, int(str(decision.arm)[4:])])

    _together(caller)


class _Group:
    """The bare part: callers that hand over rows, and a thread that inserts waiting rows in one commit."""

    def __init__(self, insert: Callable[[list[Any]], None]) -> None:
        self._insert = insert
        self._waiting: list[tuple[Any, threading.Lock]] = []
        self._changed = threading.Condition()
        self._done = False

    def put(self, row: Any) -> None:
        lock = threading.Lock()
        lock.acquire()
        with self._changed:
            self._waiting.append((row, lock))
            self._changed.notify()
        lock.acquire()

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._done)
                if not self._waiting:
                    return
                taken, self._waiting = self._waiting, []
            self._insert([row for row, _ in taken])
            for _, lock in taken:
                lock.release()

    def stop(self) -> None:
        with self._changed:
            self._done = True
            self._changed.notify()


def _insert(url: str, rows: list[Any]) -> tuple[float, float]:
    """Rows per second of bare inserts into a table like the journal: of 64 callers, and 64 at a time."""
    with (_postgres_table if "://" in url else _sqlite_table)(url) as insert:
        group = _Group(insert)
        given = iter(rows)
        lock = threading.Lock()

        def caller() -> None:
            while True:
                with lock:
                    row = next(given, None)
                if row is None:
                    return
                group.put(row)

        committer = threading.Thread(target=group.run)
        committer.start()
        start = time.perf_counter()
        _together(caller)
        by_callers = len(rows) / (time.perf_counter() - start)
        group.stop()
        committer.join()
    with (_postgres_table if "://" in url else _sqlite_table)(url) as insert:
        start = time.perf_counter()
        for first in range(0, len(rows), CALLERS):
            insert(rows[first : first + CALLERS])
        return by_callers, len(rows) / (time.perf_counter() - start)


def _together(run: Callable[..., None], *arguments: Any) -> None:
    threads = [threading.Thread(target=run, args=arguments) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def _sqlite_table(path: str) -> Iterator[Callable[[list[Any]], None]]:
    beside = Path(path).with_name("bare.db")
    beside.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(beside, isolation_level=None, check_same_thread=False)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(
            "CREATE TABLE journal "
            "(seq INTEGER PRIMARY KEY, at INTEGER, agent INTEGER, decision TEXT, body BLOB)"
        )
        db.execute("CREATE INDEX journal_decision ON journal (decision)")

        def insert(group: list[Any]) -> None:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?)", group)
            db.execute("COMMIT")

        yield insert


@contextlib.contextmanager
def _postgres_table(url: str) -> Iterator[Callable[[list[Any]], None]]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS bare")
        db.execute(
            "CREATE TABLE bare (seq bigint PRIMARY KEY, at bigint, agent bigint, decision text, body bytea)"
        )
        db.execute("CREATE INDEX ON bare (decision)")

        def insert(group: list[Any]) -> None:
            columns = [list(column) for column in zip(*group, strict=True)]
            db.execute(
                "INSERT INTO bare SELECT * FROM "
                "unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::bytea[])",
                columns,
            )

        yield insert


# Ids


def ids(url: str, decisions: int = 500) -> dict[str, Any]:
    """Times of a decision with an id and without, in turn, and of a reward for an unknown id, by records."""
    found = {}
    for records in JOURNALS:
        with shoal.open(url, snapshot_every=0) as controller:
            population(controller).decide_many({"agent": name} for name in NAMES)
        lengthen(url, "bass", records)
        with shoal.open(url, snapshot_every=0) as controller:
            times = _in_turn(population(controller), f"visit {records}", decisions)
        one: dict[str, float] = {}
        for kind, some in times.items():
            one[f"{kind}_ms"], one[f"{kind}_cpu_ms"] = (np.median(some, axis=0) * 1e3).tolist()
        one["ratio"] = one["with_ms"] / one["without_ms"]
        one["cpu_ratio"] = one["with_cpu_ms"] / one["without_cpu_ms"]
        found[str(records)] = one
        print(records, json.dumps(found[str(records)]), flush=True)
    return found


def _in_turn(live: shoal.Population, visit: str, n: int) -> dict[str, list[tuple[float, float]]]:
    times: dict[str, list[tuple[float, float]]] = {"without": [], "with": [], "unknown": []}
    for k in range(n):
        name = NAMES[k % N]
        times["without"].append(_elapsed(live.decide, name))
        times["with"].append(_elapsed(live.decide, name, id=f"{visit} {k}"))
        times["unknown"].append(_elapsed(_reward_unknown, live))
    return times


def lengthen(url: str, name: str, records: int, at_once: int = 50_000) -> None:
    """Append observations with ids to a population's journal until it has this many records."""
    with contextlib.closing(open_store(url)) as store:
        number = store.create(name)
        lease = store.take(number, "benchmark", 600.0)
        start, rows = lease.last_seq, []
        at = store.now()
        for seq in range(start + 1, records + 1):
            id, agent = f"seen {seq:012d}", seq % N
            record = Observed(agent, ARMS[seq % K].tobytes(), float(LIKING[agent % 4, seq % K]), seq, id)
            rows.append(Row(seq, at, agent, id, encode(record)))
            if len(rows) == at_once or seq == records:
                assert store.append([Batch(lease, rows, [])], 600.0) == [None]
                lease, rows = lease._replace(last_seq=seq), []
        store.release(lease)


def _reward_unknown(live: shoal.Population) -> None:
    with contextlib.suppress(shoal.UnknownError):
        live.reward("unknown", 0.5)


def _elapsed(run: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[float, float]:
    """Seconds by the clock, and of processor time."""
    start, cpu = time.perf_counter(), time.process_time()
    run(*arguments, **options)
    return time.perf_counter() - start, time.process_time() - cpu


# Recovery and bytes


def recovery(directory: Path, rewards: int) -> dict[str, float]:
    """Seconds to open a population again, by replay and from a snapshot; bytes per decision."""
    path = directory / "recovery.db"
    with shoal.open(path, snapshot_every=0) as controller:
        live = population(controller)
        for start in range(0, rewards, 1_000):
            _play(live, min(1_000, rewards - start))
            if start + 1_000 == rewards - rewards // 100:
                live.snapshot()
    kept = list(path.with_name("recovery.db-snapshots").iterdir())
    with contextlib.closing(open_store(str(path), read_only=True)) as store:
        bytes_before = _used(path)
        tail = store.last_seq(1) - store.snapshots(1)[0][1]
        from_snapshot = min(_timed(lambda: snapshots.load(store, 1)) for _ in range(2))
        for one in kept:
            one.rename(directory / one.name)
        by_replay = _timed(lambda: snapshots.load(store, 1))
        for one in kept:
            (directory / one.name).rename(one)
    old = directory / "old"
    old.mkdir()
    with shoal.open(path, snapshot_every=0) as controller:
        seconds = _timed(lambda: population(controller).archive(old, before=time.time()))
    archived = sum(one.stat().st_size for one in old.iterdir())
    return {
        "rewards": rewards,
        "replay_s": by_replay,
        "snapshot_s": from_snapshot,
        "rewards_after_snapshot": tail // 2,
        "bytes_per_decision": bytes_before / rewards,
        "archived_bytes_per_decision": archived / rewards,
        "bytes_left": _used(path),
        "archive_s": seconds,
    }


def _play(live: shoal.Population, n: int) -> None:
    made: Any = live.decide_many({"agent": NAMES[agent]} for agent in rng.integers(N, size=n))
    noise = rng.normal(size=n)
    live.reward_many(
        {"id": one.id, "reward": LIKING[int(one.agent[6:]) % 4, int(one.arm[4:])] + noise[k]}
        for k, one in enumerate(made)
    )


def _used(path: Path) -> int:
    """Bytes of a database that are in use: dropped rows leave pages to be used again."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        (pages,), (free,), (size,) = (
            db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


def _timed(run: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    run()
    return time.process_time() - start


@contextlib.contextmanager
def _server() -> Iterator[Server | None]:
    binaries = find_binaries()
    if binaries is None:
        yield None
        return
    server = Server(binaries)
    try:
        yield server
    finally:
        server.remove()


def _urls(directory: Path, server: Server | None) -> dict[str, str]:
    """An empty store of each kind."""
    directory.mkdir(exist_ok=True)
    urls = {"sqlite": str(directory / "durable.db")}
    if server is not None:
        urls["postgres"] = server.room()
    return urls


# The page


def table(found: dict[str, Any]) -> str:
    """The figures for the page."""
    memory, kept = found["memory"], found["recovery"]
    rows = [
        ("`decide` + `reward` in memory, over `select` + `update`", f"{memory['ratio']:.1f} ×",
         f"{memory['controller_us']:.0f} µs over {memory['bare_us']:.0f} µs"),
    ]  # fmt: skip
    for store in ("sqlite", "postgres"):
        for policy, one in found.get(store, {}).items():
            rows.append(
                (
                    f'{store}, `sync="full"`, {policy}, 64 callers, over 64 who only insert the same rows',
                    f"{one['ratio']:.2f} ×",
                    f"{one['rows_per_s']:,.0f} over {one['bare_rows_per_s']:,.0f} rows/s",
                )
            )
    for store, sizes in found.get("ids", {}).items():
        for records, one in sizes.items():
            rows.append(
                (
                    f"{store}, `decide` with an id, over one without, {int(records):,} records",
                    f"{one['ratio']:.2f} ×",
                    f"{one['with_ms']:.2f} over {one['without_ms']:.2f} ms, {one['cpu_ratio']:.2f} × in "
                    f"processor time; a reward for an unknown id {one['unknown_ms']:.2f} ms",
                )
            )
    rows += [
        (
            f"opening after {kept['rewards']:,} rewards, by replay",
            f"{kept['replay_s']:.1f} s",
            "processor time",
        ),
        (
            f"the same from a snapshot, {kept['rewards_after_snapshot']:,} rewards before the end",
            f"{kept['snapshot_s']:.1f} s",
            "processor time",
        ),
        ("bytes per rewarded decision, SQLite", f"{kept['bytes_per_decision']:,.0f}", "with its indexes"),
        (
            "the same, archived",
            f"{kept['archived_bytes_per_decision']:,.0f}",
            f"Parquet; the database keeps {kept['bytes_left'] / 1e6:.1f} MB, most of it the base",
        ),
    ]
    lines = ["| | | |", "|---|---:|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:] == ["--ids"]:
        found: dict[str, Any] = json.loads(RESULTS.read_text())
    else:
        found = {"memory": in_memory()}
        print(json.dumps(found), flush=True)
    with tempfile.TemporaryDirectory() as name, _server() as server:
        directory = Path(name)
        if sys.argv[1:] != ["--ids"]:
            rewards = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
            for store, url in _urls(directory, server).items():
                found[store] = {policy: durable(url, policy) for policy in ("bass", "independent")}
                print(json.dumps(found[store]), flush=True)
            found["recovery"] = recovery(directory, rewards)
            print(json.dumps(found["recovery"]), flush=True)
        found["ids"] = {store: ids(url) for store, url in _urls(directory / "ids", server).items()}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(head + BEGIN + table(found) + END + tail)


if __name__ == "__main__":
    main()
