"""How the stores' queries find their rows: none scans a table that grows with the journal.

A store is opened with connections that explain each statement before they execute it, and everything that it
can do is done once. A statement that was never executed, or that is not declared here, is a failure.
"""

import ast
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.live.population.server import Server

import shoal
from shoal.live.journal.records import Row
from shoal.live.journal.stores import postgres
from shoal.live.journal.stores.base import ArchivedPart, Batch, Lease, Snapshot, Store, Traces
from shoal.live.journal.stores.postgres import PostgresStore
from shoal.live.journal.stores.sqlite import SQLiteStore
from shoal.live.protocol.errors import NotOwnerError, UnknownError

GROWING = {"journal", "arms", "gone"}
SMALL = {"population", "base", "snapshot", "schema", "keep"}
"""Tables with a few rows for each population, and `keep`, which is all looked at: any plan will do."""
SYSTEM = {"sqlite_schema", "sqlite_master", "pg_class"}

PLANS = {
    "append": ["insert arms", "insert journal", "journal by population, seq"],
    "arms": ["arms by population, digest"],
    "drop": ["arms by population, digest", "journal by population, seq"],
    "find": ["journal by population, decision"],
    "forget": [
        "arms by population, digest",
        "insert arms",
        "insert gone",
        "insert journal",
        "journal by population, seq",
    ],
    "gone": ["gone by population"],
    "has_gone": ["gone by population, hash"],
    "read": ["journal by population, seq"],
}
"""What a store's methods do with the tables that grow, once for each statement."""

EXPLAINED = {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}
OTHERS = {"", "BEGIN", "COMMIT", "CREATE", "NOTIFY", "PRAGMA", "ROLLBACK", "SET", "VACUUM"}
STORES = Path(postgres.__file__).parent
CALLS = {"execute", "executemany", "executescript", "copy", "_query", "_select", "_content", "_number"}
LEASE = 300.0
POPULATIONS, EACH = 10, 5_000


class Watch:
    """Where statements were executed from, and what they do with tables, by method of the store."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self.statements: dict[str, dict[str, list[str]]] = defaultdict(dict)

    def note(self, sql: str, explain: Callable[[], list[str]]) -> None:
        frame, method = sys._getframe(1), ""
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.parent == STORES:
                self.lines.add((path.name, frame.f_lineno))
                method = frame.f_code.co_name
            frame = frame.f_back  # type: ignore[assignment]
        verb = next(iter(sql.upper().split()), "")
        if verb not in EXPLAINED:
            assert verb in OTHERS, f"{method} executes {sql!r}, of which no plan is known"
            return
        inserted = [f"insert {table}" for table in re.findall(r"INSERT INTO (?:shoal_)?(\w+)", sql)]
        self.statements[method][sql] = inserted + explain()

    def plans(self) -> dict[str, list[str]]:
        """As in `PLANS`."""
        found = {}
        for method, statements in self.statements.items():
            uses = [use for uses in statements.values() for use in uses]
            for table in map(_table, uses):
                assert table in GROWING | SMALL | SYSTEM, f"{method} uses {table!r}: does it grow?"
            if growing := sorted(use for use in uses if _table(use) in GROWING):
                found[method] = growing
        return found

    def unseen(self, *files: str) -> list[str]:
        """Calls in a store's source that executed nothing."""
        calls = [
            (file, node)
            for file in files
            for node in ast.walk(ast.parse((STORES / file).read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS
        ]
        assert len(calls) > 30
        return [
            f"{file}:{call.lineno}"
            for file, call in calls
            if not any((file, line) in self.lines for line in range(call.lineno, (call.end_lineno or 0) + 1))
        ]


def _table(use: str) -> str:
    """The table of `insert TABLE`, `all of TABLE` or `TABLE by COLUMNS`."""
    return use.split()[-1] if use.startswith(("insert", "all of")) else use.split()[0]


def _by(table: str, condition: str) -> str:
    columns = re.findall(r"(?:^|[( ])(?:\w+\.)?([a-z]\w*) ?[<>=]", condition)
    return f"{table} by {', '.join(dict.fromkeys(columns))}" if columns else f"all of {table}"


# SQLite


class ExplainedSQLite(sqlite3.Connection):
    watch: Watch

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        self.watch.note(sql, lambda: self._uses(sql, values))
        return super().execute(sql, values)

    def executemany(self, sql: str, values: Any) -> sqlite3.Cursor:
        if values := list(values):
            self.watch.note(sql, lambda: self._uses(sql, values[0]))
        return super().executemany(sql, values)

    def _uses(self, sql: str, values: Any) -> list[str]:
        lines = [row[3] for row in super().execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        found = [re.fullmatch(r"(?:SEARCH|SCAN) (\w+)(?: .*?(?:\((.*)\))?)?", line) for line in lines]
        return [_by(one[1], one[2] or "") for one in found if one and one[1] != "CONSTANT"]


def test_plans_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    factory = type("Explained", (ExplainedSQLite,), {"watch": watch})
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=factory))
    store = SQLiteStore(tmp_path / "shop.db")
    use_all(store)
    store.close()
    SQLiteStore(store.url, read_only=True).close()
    assert watch.plans() == PLANS
    assert watch.unseen("sql.py", "sqlite.py") == []


# PostgreSQL: its planner looks at the tables, so they must be large


@pytest.fixture(scope="module")
def filled(server: Server) -> str:
    url = server.room()
    store = PostgresStore(url)
    for name in range(POPULATIONS):
        lease = store.take(store.create(f"shop {name}"), "one", LEASE)
        fill(store, lease, EACH)
        store.release(lease)
    store.close()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "INSERT INTO shoal_gone SELECT p, sha256(i::text::bytea) "
            "FROM generate_series(1, 10) AS p, generate_series(1, 2000) AS i"
        )
        db.execute("VACUUM ANALYZE")
    return url


def fill(store: Store, lease: Lease, n: int) -> None:
    rows = [Row(seq, seq, 0, f"visit {seq // 2}", b"x" * 100) for seq in range(1, n + 1)]
    arms = [(b"set %d" % one, b"x" * 100) for one in range(n // 5)]
    assert store.append([Batch(lease, rows, arms)], LEASE) == [None]


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Every connection of a PostgreSQL store explains what it executes."""
    watch = Watch()

    def uses(connection: Any, sql: str, values: Any) -> list[str]:
        found = psycopg.Cursor(connection).execute(f"EXPLAIN (FORMAT JSON) {sql}", values).fetchall()
        return list(_uses(found[0][0][0]["Plan"]))

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            watch.note(query, lambda: uses(self.connection, query, params))
            return super().execute(query, params, **options)

    class ServerCursor(psycopg.ServerCursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            declared = f"DECLARE explained CURSOR FOR {query}"
            watch.note(query, lambda: uses(self.connection, declared, params))
            return super().execute(query, params, **options)

    def connect(*arguments: Any, **options: Any) -> Any:
        connection = psycopg.Connection.connect(*arguments, **options)
        connection.cursor_factory, connection.server_cursor_factory = Cursor, ServerCursor
        return connection

    monkeypatch.setattr(psycopg, "connect", connect)
    return watch


def _uses(node: Any) -> Iterator[str]:
    """What a node of a plan, and those below it, do with tables."""
    kind = node["Node Type"]
    if "Index Name" in node:
        table = node["Index Name"].removeprefix("shoal_").split("_")[0]
        yield _by(table, node.get("Index Cond", ""))
    elif "Relation Name" in node and kind not in ("ModifyTable", "Bitmap Heap Scan"):
        yield f"all of {node['Relation Name'].removeprefix('shoal_')}"
    for below in node.get("Plans", ()):
        yield from _uses(below)


def test_plans_of_postgresql(filled: str, explained: Watch, server: Server) -> None:
    PostgresStore(server.room()).close()  # makes the tables
    store = PostgresStore(filled)
    with store._on("write") as db:
        postgres.make_tables(db, "CREATE TABLE IF NOT EXISTS beside (a integer)")
    use_all(store)
    store.close()
    PostgresStore(filled, read_only=True).close()
    assert explained.plans() == PLANS
    assert explained.unseen("sql.py", "postgres.py") == []


def test_postgresql_keeps_no_plan_from_when_the_journal_was_small(server: Server) -> None:
    url = server.room()
    store = PostgresStore(url)
    lease = store.take(store.create("shop"), "one", LEASE)
    fill(store, lease, 20)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("ALTER TABLE shoal_journal SET (autovacuum_enabled = off)")
        db.execute("ANALYZE shoal_journal")  # one page: scanning it is the best plan
    for _ in range(20):  # the driver prepares a statement, and the server keeps its plan
        store.find(lease.population, "unknown")
    more = [Row(seq, seq, 0, f"visit {seq}", b"x" * 100) for seq in range(21, 20_021)]
    assert store.append([Batch(lease._replace(last_seq=20), more, [])], LEASE) == [None]
    scanned = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relid = 'shoal_journal'::regclass"
    with store._on("read") as db, db.transaction():
        before = db.execute(scanned).fetchone()
        store.find(lease.population, "unknown")
        after = db.execute(scanned).fetchone()
    store.close()
    assert after == before


# Both


def use_all(store: Store) -> None:
    """Whatever a store can do, including what it refuses, in a population that may have rows already."""
    store.populations()
    number = store.create("shop 0")
    with suppress(UnknownError):
        store.take(10**6, "one", LEASE)
    lease = store.take(number, "one", LEASE)
    start = lease.last_seq
    rows = [Row(start + n, n, 0, f"decision {n}", b"body") for n in range(1, 7)]
    batch = Batch(lease, rows, [(b"digest", b"arms"), (b"other", b"arms")])
    assert store.append([batch], LEASE) == [None]
    assert store.append([batch], LEASE) == [None]  # it is there already
    lease = lease._replace(last_seq=start + 6)
    former = lease._replace(epoch=lease.epoch - 1)
    store.renew([lease, former], LEASE)
    store.standings()
    assert store.last_seq(number) == start + 6
    assert store.epoch(number) == lease.epoch
    assert list(store.read(number, start)) == rows
    assert store.find(number, "decision 3") == rows[2:3]
    assert store.arms(number, b"digest") == b"arms"
    tombstone, record = Row(start + 3, 3, None, None, b""), Row(start + 7, 7, None, None, b"")
    forgotten = Traces([tombstone], [b"hash"], [b"other"], (b"base", b"state"))
    with pytest.raises(NotOwnerError):
        store.forget(Batch(former, [record], []), forgotten, LEASE)
    store.forget(Batch(lease, [record], [(b"new", b"arms")]), forgotten, LEASE)
    assert store.has_gone(number, [b"hash", b"another"])
    assert b"hash" in store.gone(number)
    store.set_base(lease, b"base", b"state")
    store.drop(lease, ArchivedPart(start + 2, b"base", b"state", ["decision 1"], [b"digest"]))
    assert (store.base(number), store.base_state(number)) == (b"base", b"state")
    store.save_snapshot(number, Snapshot(lease.epoch, start + 7, b"content"))
    assert store.snapshots(number) == [(lease.epoch, start + 7)]
    assert store.load_snapshot(number, lease.epoch, start + 7) == b"content"
    store.delete_snapshot(number, lease.epoch, start + 7)
    assert store.now() > 0
    assert store.nbytes() > 0
    store.probe()
    store.scrub()
    store.release(lease)


def test_journals_are_asked_by_stores_alone() -> None:
    sources = [path for path in Path(shoal.__file__).parent.rglob("*.py") if path.parent != STORES]
    asks = re.compile(rf"\b(?:FROM|INTO|JOIN|UPDATE)\s+(?:shoal_)?(?:{'|'.join(GROWING)})\b")
    assert [str(path) for path in sources if asks.search(path.read_text())] == []
