"""Journals on a PostgreSQL server, which several machines may share (psycopg 3).

Who owns a population is decided by its row: `epoch` counts owners, and a lease ends when nothing is appended
or renewed for a while. An append is one statement that moves `last_seq` on if owner, epoch and sequence
number are still those of the appender, and inserts the rows only then. So a process that was frozen for an
hour finds, when it wakes, that it can append nothing.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from shoal.live.journal.records import Row
from shoal.live.journal.stores.base import (
    LEASE,
    SCHEMA,
    ArchivedPart,
    Batch,
    Lease,
    PopulationOwner,
    Snapshot,
    Traces,
    other_schema,
    shown_url,
)
from shoal.live.journal.stores.sql import COLUMNS, SQLStore
from shoal.live.protocol.errors import JournalError, NotOwnerError, UnavailableError, UnknownError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:  # pragma: no cover
    raise ImportError("PostgreSQL needs psycopg: pip install 'shoal[postgres]'") from error

MUTEX = 0x73686F61
"""Held while tables are made, so that two first starts do not disturb each other."""
CHANNEL = "shoal_owner"
"""Notified when a population's owner changes."""
SYNC = {"full": "on", "normal": "off"}

TABLES = """
CREATE TABLE IF NOT EXISTS shoal_schema (version integer NOT NULL);
CREATE TABLE IF NOT EXISTS shoal_population (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    epoch bigint NOT NULL DEFAULT 0,
    owner text NOT NULL DEFAULT '',
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    last_seq bigint NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS shoal_journal (
    population bigint NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    agent bigint,
    decision text,
    body bytea NOT NULL,
    PRIMARY KEY (population, seq)
);
CREATE INDEX IF NOT EXISTS shoal_journal_decision ON shoal_journal (population, decision)
    WHERE decision IS NOT NULL;
CREATE TABLE IF NOT EXISTS shoal_arms (
    population bigint NOT NULL,
    digest bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (population, digest)
);
CREATE TABLE IF NOT EXISTS shoal_gone (
    population bigint NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (population, hash)
);
CREATE TABLE IF NOT EXISTS shoal_snapshot (
    population bigint NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (population, epoch, seq)
);
CREATE TABLE IF NOT EXISTS shoal_base (
    population bigint PRIMARY KEY,
    body bytea NOT NULL,
    state bytea NOT NULL
);
"""

# A lease is never cut short, not even by a statement that had to wait: its owner counts on it.
# Rows go in binary (%b): half the processor time of text.
HOME = "SELECT system_identifier, current_database(), current_schema() FROM pg_control_system()"

APPEND = """
WITH fence AS (
    UPDATE shoal_population
    SET last_seq = last_seq + %(n)s,
        lease_until = greatest(lease_until, now() + %(lease)s * interval '1 second')
    WHERE id = %(population)s AND epoch = %(epoch)s AND owner = %(owner)s AND last_seq = %(last_seq)s
    RETURNING id
), offered AS (
    INSERT INTO shoal_arms
    SELECT fence.id, one.* FROM fence, unnest(%(digests)b::bytea[], %(arms)b::bytea[]) AS one
    ON CONFLICT DO NOTHING
)
INSERT INTO shoal_journal
SELECT fence.id, one.* FROM fence, unnest(
    %(seq)b::bigint[], %(at)b::bigint[], %(agent)b::bigint[], %(decision)b::text[], %(body)b::bytea[]
) AS one
"""


class PostgresStore(SQLStore):
    """See the module.

    Parameters
    ----------
    url : str
        `postgresql://user@host/database`, as PostgreSQL's own tools take it.
    sync : {"full", "normal"}
        "full" survives a crash of the server; with "normal" that may undo the last commits.
    read_only : bool
    lease : float
        Seconds for which an answer may be missing before the server counts as unreachable.
    """

    prefix, mark = "shoal_", "%s"
    is_local = False

    def __init__(
        self, url: str, *, sync: str = "full", read_only: bool = False, lease: float = LEASE
    ) -> None:
        self._conninfo = url
        self.url = shown_url(url)
        self._synchronous = SYNC[sync]
        self.read_only = read_only
        self._lease = lease
        self._writing, self._reading = threading.RLock(), threading.RLock()
        self._connections: dict[str, Any] = {}
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    # Connections, made again when they break

    def connect(self, plans: str = "DEFAULT") -> Any:
        """A connection of the caller's own."""
        try:
            connection = connect(self._conninfo, self._lease, connect_timeout=10, application_name="shoal")
            connection.execute(f"SET synchronous_commit = {self._synchronous}; SET plan_cache_mode = {plans}")
        except psycopg.Error as error:
            raise UnavailableError(f"{self.url} cannot be reached: {_line(error)}") from error
        if self.read_only:
            connection.read_only = True
        return connection

    @contextmanager
    def _on(self, which: str) -> Iterator[Any]:
        """The connection for writing or reading, for one use."""
        with self._writing if which == "write" else self._reading:
            connection = self._connections.get(which)
            if connection is None or connection.closed:
                # A plan kept from when the journal was small would scan it when it has grown.
                plans = "force_custom_plan" if which == "read" else "DEFAULT"
                connection = self._connections[which] = self.connect(plans)
            try:
                yield connection
            except psycopg.Error as error:
                if connection.closed or isinstance(error, psycopg.OperationalError):
                    connection.close()
                raise UnavailableError(f"{self.url} failed: {_line(error)}") from error

    def writing(self) -> AbstractContextManager[Any]:
        """The connection that writes, for one use: there are tables beside the journal's."""
        return self._on("write")

    def _query(self, sql: str, *values: Any) -> list[Any]:
        for attempt in range(2):  # a connection that broke while it was idle is found out by using it
            try:
                with self._on("read") as db:
                    return list(db.execute(sql, values).fetchall())
            except UnavailableError:
                if attempt:
                    raise
        raise AssertionError("not reached")

    def _prepare(self) -> None:
        with self._on("write") as db:
            if not self.read_only:
                with _making_tables(db):
                    found = db.execute("SELECT to_regclass('shoal_schema')").fetchone()
                    if found[0] is None:
                        db.execute(TABLES)
                        db.execute("INSERT INTO shoal_schema VALUES (%s)", (SCHEMA,))
            found = db.execute("SELECT to_regclass('shoal_schema')").fetchone()
            if found[0] is None:
                raise JournalError(f"{self.url} holds no tables of shoal")
            (version,) = db.execute("SELECT max(version) FROM shoal_schema").fetchone()
            # One restored from a dump is on another server, or has another name there.
            self.home = " ".join(map(str, db.execute(HOME).fetchone()))
        if version != SCHEMA:
            raise JournalError(f"{self.url} {other_schema(version)}")

    def close(self) -> None:
        with self._writing, self._reading:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    # Populations and leases

    def create(self, name: str) -> int:
        with self._on("write") as db:
            db.execute("INSERT INTO shoal_population (name) VALUES (%s) ON CONFLICT DO NOTHING", (name,))
            (number,) = db.execute("SELECT id FROM shoal_population WHERE name = %s", (name,)).fetchone()
        return int(number)

    def take(self, population: int, owner: str, lease: float) -> Lease:
        with self._on("write") as db:
            found = db.execute(
                "UPDATE shoal_population SET epoch = epoch + 1, owner = %s, "
                "lease_until = now() + %s * interval '1 second' "
                "WHERE id = %s AND lease_until < now() AND (SELECT max(version) FROM shoal_schema) = %s "
                "RETURNING epoch, last_seq",
                (owner, lease, population, SCHEMA),
            ).fetchone()
            if found is not None:
                db.execute(f"NOTIFY {CHANNEL}")
                epoch, last_seq = found
                return Lease(population, epoch, last_seq, owner)
            (version,) = db.execute("SELECT max(version) FROM shoal_schema").fetchone()
            known = db.execute(
                "SELECT name, owner, extract(epoch FROM greatest(lease_until, now()) - now()) "
                "FROM shoal_population WHERE id = %s",
                (population,),
            ).fetchone()
        if known is None:
            raise UnknownError(f"{self.url} has no population number {population}")
        name, who, rest = known
        if version != SCHEMA:  # another process has migrated the tables since we opened them
            raise NotOwnerError(f"population {name!r} cannot be taken: {self.url} {other_schema(version)}")
        raise NotOwnerError(
            f"population {name!r} in {self.url} is owned by {who}, whose lease has {max(rest, 0):.1f} s to go"
        )

    def standings(self, name: str | None = None) -> dict[str, PopulationOwner]:
        rows = self._query(
            "SELECT name, id, epoch, CASE WHEN lease_until > now() THEN owner ELSE '' END, "
            "CASE WHEN lease_until = '-infinity' THEN owner ELSE '' END "
            "FROM shoal_population WHERE last_seq > 0 AND (%s::text IS NULL OR name = %s) ORDER BY name",
            name,
            name,
        )
        return {found: PopulationOwner(*rest) for found, *rest in rows}

    def renew(self, leases: Iterable[Lease], lease: float) -> dict[int, str]:
        lost = {}
        with self._on("write") as db:
            for one in leases:
                found = db.execute(
                    "UPDATE shoal_population "
                    "SET lease_until = greatest(lease_until, now() + %s * interval '1 second') "
                    "WHERE id = %s AND epoch = %s AND owner = %s",
                    (lease, one.population, one.epoch, one.owner),
                )
                if not found.rowcount:
                    sql = "SELECT owner FROM shoal_population WHERE id = %s"
                    owner = db.execute(sql, (one.population,)).fetchone()
                    lost[one.population] = owner[0] if owner and owner[0] else "another process"
        return lost

    def release(self, lease: Lease) -> None:
        with self._on("write") as db:
            db.execute(
                "UPDATE shoal_population SET lease_until = '-infinity', owner = '' "
                "WHERE id = %s AND epoch = %s AND owner = %s",
                (lease.population, lease.epoch, lease.owner),
            )
            db.execute(f"NOTIFY {CHANNEL}")

    # The journal

    def append(self, batches: Sequence[Batch], lease: float) -> list[Exception | None]:
        with self._on("write") as db:
            return [self._append(db, batch, lease) for batch in batches]

    def _append(self, db: Any, batch: Batch, lease: float) -> Exception | None:
        (population, epoch, last_seq, owner), rows, arms = batch
        seq, at, agent, decision, body = map(list, zip(*rows, strict=True))
        values = {
            "n": len(rows), "lease": lease,
            "population": population, "epoch": epoch, "owner": owner, "last_seq": last_seq,
            "digests": [digest for digest, _ in arms], "arms": [content for _, content in arms],
            "seq": seq, "at": at, "agent": agent, "decision": decision, "body": body,
        }  # fmt: skip
        if db.execute(APPEND, values).rowcount == len(rows):
            return None
        return self._moved_on(db, batch)

    def read(self, population: int, after: int, upto: int | None = None) -> Iterator[Row]:
        last = self.last_seq(population) if upto is None else upto
        if after >= last:
            return
        connection = self.connect()
        try:
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                with connection.cursor(name="journal") as cursor:
                    cursor.itersize = 5_000
                    cursor.execute(
                        f"SELECT {COLUMNS} FROM shoal_journal "
                        "WHERE population = %s AND seq > %s AND seq <= %s ORDER BY seq",
                        (population, after, last),
                        binary=True,
                    )
                    for row in cursor:
                        yield Row._make(row)
        except psycopg.Error as error:
            raise UnavailableError(f"{self.url} failed: {_line(error)}") from error
        finally:
            connection.close()

    # Forgetting and retention

    def has_gone(self, population: int, hashes: Sequence[bytes]) -> bool:
        sql = "SELECT 1 FROM shoal_gone WHERE population = %s AND hash = ANY(%s) LIMIT 1"
        return bool(self._query(sql, population, list(hashes)))

    def forget(self, batch: Batch, traces: Traces, lease: float) -> None:
        population = batch.lease.population
        with self._on("write") as db, db.transaction():
            if refused := self._append(db, batch, lease):
                raise refused
            db.execute(
                "UPDATE shoal_journal SET agent = NULL, decision = NULL, body = one.body "
                "FROM unnest(%s::bigint[], %s::bytea[]) AS one (seq, body) "
                "WHERE population = %s AND shoal_journal.seq = one.seq",
                ([row.seq for row in traces.tombstones], [row.body for row in traces.tombstones], population),
            )
            db.execute(
                "INSERT INTO shoal_gone SELECT %s, one FROM unnest(%s::bytea[]) AS one "
                "ON CONFLICT DO NOTHING",
                (population, list(traces.hashes)),
            )
            db.execute(
                "DELETE FROM shoal_arms WHERE population = %s AND digest = ANY(%s)",
                (population, list(traces.arms)),
            )
            if traces.base is not None:
                self._set_base(db, batch.lease, *traces.base)

    def scrub(self) -> None:
        """Remove dead rows; write-ahead files and backups are for the server's operator to let expire."""
        with self._on("write") as db:
            db.execute("VACUUM shoal_journal, shoal_arms, shoal_snapshot, shoal_base")

    def set_base(self, lease: Lease, base: bytes, state: bytes | None = None) -> None:
        with self._on("write") as db, db.transaction():
            self._set_base(db, lease, base, state)

    def _set_base(self, db: Any, lease: Lease, base: bytes, state: bytes | None) -> None:
        found = db.execute(
            "SELECT owner FROM shoal_population WHERE id = %s AND epoch = %s AND owner = %s FOR UPDATE",
            (lease.population, lease.epoch, lease.owner),
        ).fetchone()
        if found is None:
            raise NotOwnerError(f"a population in {self.url} was taken over by another process")
        db.execute(
            "INSERT INTO shoal_base VALUES (%(population)s, %(base)s, coalesce(%(state)s, ''::bytea)) "
            "ON CONFLICT (population) DO UPDATE SET body = excluded.body, "
            "state = coalesce(%(state)s, shoal_base.state)",
            {"population": lease.population, "base": base, "state": state},
        )

    def drop(self, lease: Lease, part: ArchivedPart) -> None:
        population = lease.population
        with self._on("write") as db, db.transaction():
            self._set_base(db, lease, part.base, part.state)
            db.execute(
                "DELETE FROM shoal_journal WHERE population = %s AND seq <= %s AND NOT EXISTS "
                "(SELECT 1 FROM unnest(%s::text[]) AS one WHERE one = decision)",
                (population, part.upto, list(part.keep)),
            )
            db.execute(
                "DELETE FROM shoal_arms WHERE population = %s AND digest = ANY(%s)",
                (population, list(part.arms)),
            )

    # Snapshots

    def save_snapshot(self, population: int, snapshot: Snapshot) -> None:
        with self._on("write") as db:
            db.execute(
                "INSERT INTO shoal_snapshot SELECT id, epoch, %s, %s FROM shoal_population "
                "WHERE id = %s AND epoch = %s "
                "ON CONFLICT (population, epoch, seq) DO UPDATE SET body = excluded.body",
                (snapshot.seq, snapshot.content, population, snapshot.epoch),
            )

    def snapshots(self, population: int) -> list[tuple[int, int]]:
        return self._query(
            "SELECT epoch, seq FROM shoal_snapshot WHERE population = %s ORDER BY seq DESC, epoch DESC",
            population,
        )

    def load_snapshot(self, population: int, epoch: int, seq: int) -> bytes | None:
        where = "population", population, "epoch", epoch, "seq", seq
        return self._content("body", "snapshot", *where)

    def delete_snapshot(self, population: int, epoch: int, seq: int) -> None:
        with self._on("write") as db:
            db.execute(
                "DELETE FROM shoal_snapshot WHERE population = %s AND epoch = %s AND seq = %s",
                (population, epoch, seq),
            )

    def now(self) -> int:
        return int(self._query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0])

    def nbytes(self) -> int:
        sizes = self._query(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
            "WHERE starts_with(relname, 'shoal_') AND relkind = 'r'"
        )
        return int(sizes[0][0] or 0)


def connect(url: str, lease: float = LEASE, **options: Any) -> Any:
    """A connection that breaks when the other machine is silently gone; by default nobody notices for hours.

    What was sent must be acknowledged within a lease, or two seconds; while nothing is sent, the machine is
    asked whether it is there. What the URL says about any of this, or about `options`, is in force instead.
    """
    options = {
        "tcp_user_timeout": max(2_000, int(1_000 * lease)),  # milliseconds
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        **options,
    }
    said = conninfo_to_dict(url)
    rest = {name: value for name, value in options.items() if name not in said}
    return psycopg.connect(url, autocommit=True, **rest)


@contextmanager
def _making_tables(db: Any) -> Iterator[None]:
    """Let one process at a time make tables: two that find none would disturb each other."""
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (MUTEX,))
        yield


def make_tables(db: Any, sql: str) -> None:
    """Make tables beside those of the store, if they are not there."""
    with _making_tables(db):
        db.execute(sql)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
