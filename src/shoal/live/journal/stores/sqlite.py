"""Journals in an SQLite file, with the `sqlite3` of the standard library.

One process writes: it holds a lock on a file beside the database that says who it is. Any number of others
may read at the same time.
"""

import fcntl
import os
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from shoal.core.atomic import write_whole
from shoal.live.journal.records import Row
from shoal.live.journal.stores.base import SCHEMA, ArchivedPart, Batch, Lease, Snapshot, Traces, other_schema
from shoal.live.journal.stores.sql import COLUMNS, SQLStore
from shoal.live.protocol.errors import JournalError, NotOwnerError, UnavailableError, UnknownError

SYNC = {"full": "FULL", "normal": "NORMAL"}
APPLICATION = 0x73686F61
"""Marks the file as ours, in its header."""
ONE_READ = 2_000
"""Rows read at a time."""

TABLES = """
CREATE TABLE population (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    epoch INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT '',
    last_seq INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE journal (
    population INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    agent INTEGER,
    decision TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (population, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX journal_decision ON journal (population, decision) WHERE decision IS NOT NULL;
CREATE TABLE arms (
    population INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (population, digest)
) STRICT, WITHOUT ROWID;
CREATE TABLE gone (
    population INTEGER NOT NULL,
    hash BLOB NOT NULL,
    PRIMARY KEY (population, hash)
) STRICT, WITHOUT ROWID;
CREATE TABLE base (
    population INTEGER PRIMARY KEY,
    body BLOB NOT NULL,
    state BLOB NOT NULL
) STRICT;
"""


def locked(store: Path, advice: str) -> IO[str]:
    """The file beside a store that its one writer holds a lock on, until it is closed or the process ends."""
    beside = store.with_name(f"{store.name}.lock")
    try:
        file = beside.open("a+")
    except OSError as error:
        raise OSError(error.errno, f"cannot be opened for writing: {error.strerror}", str(beside)) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        who = file.read().strip() or "another process"
        file.close()
        raise NotOwnerError(f"{store} is open for writing in {who}; {advice}") from None
    return file


class SQLiteStore(SQLStore):
    """See the module.

    Parameters
    ----------
    path : path
    sync : {"full", "normal"}
        "full" survives a power failure; "normal" survives a crash of the process, but a power failure may
        undo the last commits.
    read_only : bool
        Read while another process writes.
    """

    prefix, mark = "", "?"
    # Without the hint, SQLite reads the population from its first record on: the primary key is in order.
    by_decision = "journal INDEXED BY journal_decision"

    def __init__(self, path: str | os.PathLike[str], *, sync: str = "full", read_only: bool = False) -> None:
        self.path = Path(path)
        self.url = str(path)
        self.home = str(self.path.resolve())
        self.read_only = read_only
        self._lock_file: IO[str] | None = None
        self._reading = threading.RLock()
        self._writing = threading.RLock()
        if read_only and not self.path.is_file():
            raise FileNotFoundError(2, "No such file", str(path))
        try:
            if not read_only:
                self._lock()
            self._writer = self._connect(sync)
            self._prepare()
            self._reader = self._connect(sync)
            if not read_only:
                self._sweep()
        except BaseException:
            self._unlock()
            raise

    # Opening and closing

    def is_home(self, home: str) -> bool:
        """Whether something was written by this store: here, or where there is no file any more."""
        return super().is_home(home) or not Path(home).is_file()

    def _connect(self, sync: str) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                str(self.path), timeout=10.0, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            if self.read_only:
                connection.execute("PRAGMA query_only = ON")
            else:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA synchronous = {SYNC[sync]}")
                connection.execute("PRAGMA secure_delete = ON")
            return connection
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{self.path} cannot be opened: {error}") from error

    def _prepare(self) -> None:
        """Make the tables, or check that this version knows them."""
        with self._transaction() as db:
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if (application, tables) == (0, 0) and not self.read_only:
                for statement in TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                db.execute(f"PRAGMA user_version = {SCHEMA}")
                return
        if application != APPLICATION:
            raise JournalError(f"{self.path} is not a database of shoal")
        if version != SCHEMA:
            raise JournalError(f"{self.path} {other_schema(version)}")

    def _lock(self) -> None:
        """Be the one process that writes, and say so to others."""
        advice = (
            "stop that process or, if it is a server, use its URL; in Python, read_only=True reads beside it"
        )
        file = locked(self.path, advice)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._lock_file = file

    def _unlock(self) -> None:
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def close(self) -> None:
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()
            self._unlock()

    # Transactions

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing:
            try:
                self._writer.execute("BEGIN" if self.read_only else "BEGIN IMMEDIATE")
            except sqlite3.DatabaseError as error:
                raise self._unavailable(error) from error
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException as error:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                if isinstance(error, sqlite3.DatabaseError):
                    raise self._unavailable(error) from error
                raise

    def _unavailable(self, error: sqlite3.Error) -> Exception:
        if "malformed" in str(error) or "not a database" in str(error):
            return JournalError(f"{self.path} is damaged: {error}")
        return UnavailableError(f"{self.path} cannot be written: {error}")

    def _query(self, sql: str, *values: Any) -> list[Any]:
        with self._reading:
            try:
                return self._reader.execute(sql, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise JournalError(f"{self.path} cannot be read: {error}") from error

    # Populations and leases

    def create(self, name: str) -> int:
        with self._transaction() as db:
            db.execute("INSERT INTO population (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
            (number,) = db.execute("SELECT id FROM population WHERE name = ?", (name,)).fetchone()
        return int(number)

    def take(self, population: int, owner: str, lease: float) -> Lease:
        with self._transaction() as db:
            found = db.execute(
                "UPDATE population SET epoch = epoch + 1, owner = ? WHERE id = ? RETURNING epoch, last_seq",
                (owner, population),
            ).fetchall()
        if not found:
            raise UnknownError(f"{self.path} has no population number {population}")
        epoch, last_seq = found[0]
        return Lease(population, epoch, last_seq, owner)

    def renew(self, leases: Iterable[Lease], lease: float) -> dict[int, str]:
        return {}  # the lock on the file lasts as long as the process

    def release(self, lease: Lease) -> None:
        return

    # The journal

    def append(self, batches: Sequence[Batch], lease: float) -> list[Exception | None]:
        with self._transaction() as db:
            return [self._append(db, batch) for batch in batches]

    def _append(self, db: sqlite3.Connection, batch: Batch) -> Exception | None:
        (population, epoch, last_seq, _), rows, arms = batch
        moved = db.execute(
            "UPDATE population SET last_seq = ? WHERE id = ? AND epoch = ? AND last_seq = ?",
            (last_seq + len(rows), population, epoch, last_seq),
        ).rowcount
        if not moved:
            return self._moved_on(db, batch)
        if arms:
            db.executemany(
                "INSERT INTO arms VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                [(population, *one) for one in arms],
            )
        db.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)", [(population, *row) for row in rows])
        return None

    def read(self, population: int, after: int, upto: int | None = None) -> Iterator[Row]:
        last = self.last_seq(population) if upto is None else upto
        with self._snapshot() as db:
            while after < last:
                try:
                    rows = db.execute(
                        f"SELECT {COLUMNS} FROM journal "
                        "WHERE population = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
                        (population, after, last, ONE_READ),
                    ).fetchall()
                except sqlite3.DatabaseError as error:
                    raise JournalError(f"{self.path} cannot be read: {error}") from error
                if not rows:
                    return
                yield from map(Row._make, rows)
                after = rows[-1][0]

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees the database as of one moment."""
        with closing(sqlite3.connect(str(self.path), timeout=10.0, isolation_level=None)) as db:
            db.execute("BEGIN")
            yield db

    # Forgetting and retention

    def has_gone(self, population: int, hashes: Sequence[bytes]) -> bool:
        sql = f"SELECT 1 FROM gone WHERE population = ? AND hash IN ({', '.join('?' * len(hashes))}) LIMIT 1"
        return bool(self._query(sql, population, *hashes))

    def forget(self, batch: Batch, traces: Traces, lease: float) -> None:
        population = batch.lease.population
        with self._transaction() as db:
            if refused := self._append(db, batch):
                raise refused
            db.executemany(
                "UPDATE journal SET agent = NULL, decision = NULL, body = ? WHERE population = ? AND seq = ?",
                [(row.body, population, row.seq) for row in traces.tombstones],
            )
            db.executemany(
                "INSERT INTO gone VALUES (?, ?) ON CONFLICT DO NOTHING",
                [(population, one) for one in traces.hashes],
            )
            db.executemany(
                "DELETE FROM arms WHERE population = ? AND digest = ?",
                [(population, one) for one in traces.arms],
            )
            if traces.base is not None:
                self._set_base(db, batch.lease, *traces.base)

    def scrub(self) -> None:
        """Free pages are zeroed as they are freed; what is left are frames of the write-ahead file."""
        self._sweep()
        deadline = time.monotonic() + 10.0
        while True:
            with self._writing:
                (busy, _, _) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                return
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{self.path}: a reader keeps the write-ahead file, in which forgotten rows may still "
                    "be; call scrub() when it is gone"
                )
            time.sleep(0.05)

    def set_base(self, lease: Lease, base: bytes, state: bytes | None = None) -> None:
        with self._transaction() as db:
            self._set_base(db, lease, base, state)

    def _set_base(self, db: sqlite3.Connection, lease: Lease, base: bytes, state: bytes | None) -> None:
        now, owner = db.execute(
            "SELECT epoch, owner FROM population WHERE id = ?", (lease.population,)
        ).fetchone()
        if now != lease.epoch:
            raise NotOwnerError(f"{self.path}: the population was taken over by {owner or 'another process'}")
        db.execute(
            "INSERT INTO base VALUES (?, ?, ifnull(?, x'')) "
            "ON CONFLICT DO UPDATE SET body = excluded.body, state = ifnull(?, state)",
            (lease.population, base, state, state),
        )

    def drop(self, lease: Lease, part: ArchivedPart) -> None:
        population = lease.population
        with self._transaction() as db:
            self._set_base(db, lease, part.base, part.state)
            db.execute("CREATE TEMP TABLE IF NOT EXISTS keep (decision TEXT PRIMARY KEY) WITHOUT ROWID")
            db.execute("DELETE FROM keep")
            db.executemany("INSERT INTO keep VALUES (?)", [(one,) for one in part.keep])
            db.execute(
                "DELETE FROM journal WHERE population = ? AND seq <= ? "
                "AND (decision IS NULL OR decision NOT IN (SELECT decision FROM keep))",
                (population, part.upto),
            )
            db.execute("DELETE FROM keep")
            db.executemany(
                "DELETE FROM arms WHERE population = ? AND digest = ?",
                [(population, one) for one in part.arms],
            )

    # Snapshots: files beside the database, since writing a large one into it would keep the owner waiting

    def _directory(self) -> Path:
        return self.path.with_name(f"{self.path.name}-snapshots")

    def _sweep(self) -> None:
        """Delete what a process that was killed while it wrote a snapshot has left."""
        for path in self._directory().glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def save_snapshot(self, population: int, snapshot: Snapshot) -> None:
        if snapshot.epoch != self.epoch(population):
            return
        self._directory().mkdir(exist_ok=True)
        write_whole(
            self._directory() / f"{population}-{snapshot.epoch}-{snapshot.seq}.snapshot", snapshot.content
        )

    def snapshots(self, population: int) -> list[tuple[int, int]]:
        found = []
        for path in self._directory().glob(f"{population}-*.snapshot"):
            _, epoch, seq = path.stem.split("-")
            found.append((int(epoch), int(seq)))
        return sorted(found, key=lambda one: (one[1], one[0]), reverse=True)

    def load_snapshot(self, population: int, epoch: int, seq: int) -> bytes | None:
        try:
            return (self._directory() / f"{population}-{epoch}-{seq}.snapshot").read_bytes()
        except FileNotFoundError:
            return None

    def delete_snapshot(self, population: int, epoch: int, seq: int) -> None:
        (self._directory() / f"{population}-{epoch}-{seq}.snapshot").unlink(missing_ok=True)

    def now(self) -> int:
        return time.time_ns() // 1000

    def nbytes(self) -> int:
        beside = [self.path, *self.path.parent.glob(f"{self.path.name}-wal")]
        return sum(path.stat().st_size for path in beside)

    def probe(self) -> None:
        with self._transaction() as db:
            db.execute(f"PRAGMA user_version = {SCHEMA}")  # a page is written, although it is the same

    def free(self) -> float:
        return shutil.disk_usage(self.path.parent).free

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the database as of now, while it is in use."""
        with closing(sqlite3.connect(str(target))) as copy:
            self._writer.backup(copy)
