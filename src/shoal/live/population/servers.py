"""Which servers share a PostgreSQL database, and what an operator does about who owns what.

Each server has a row with its name, renewed like a lease. The name is the URL at which the others reach it
and, after a `#`, a few digits of the process's own: so a server that was restarted is not taken for the one
before. Only servers write these names; nobody is ever called at a URL that came from a client.
"""

import contextlib
import hashlib
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg

from shoal.live.journal.stores.base import PopulationOwner, shown_url
from shoal.live.journal.stores.postgres import CHANNEL, PostgresStore, make_tables
from shoal.live.protocol.errors import UnavailableError, UnknownError

TABLE = "CREATE TABLE IF NOT EXISTS shoal_server (name text PRIMARY KEY, until timestamptz NOT NULL)"


class View(NamedTuple):
    """What a server sees when it looks."""

    schema: int
    """Version of the tables."""
    servers: list[str]
    """Names of the servers that are alive, this one included."""
    standings: dict[str, PopulationOwner]


class Directory:
    """A server's row among the others', and its view of them. Used by one thread.

    Parameters
    ----------
    store : PostgresStore
    name : str
        The server's own.
    lease : float
        Seconds for which a server counts as alive after it was last heard of.
    """

    def __init__(self, store: PostgresStore, name: str, lease: float) -> None:
        self._store, self.name, self._lease = store, name, lease
        self._connection: Any = None

    def look(self) -> View:
        """Say that this server is alive, and see who else is, and who owns what."""
        with self._connected() as db:
            db.execute(
                "INSERT INTO shoal_server VALUES (%s, now() + %s * interval '1 second') "
                "ON CONFLICT (name) DO UPDATE SET until = excluded.until",
                (self.name, self._lease),
            )
            schema = db.execute("SELECT max(version) FROM shoal_schema").fetchone()[0]
            return View(schema, servers(db), self._store.standings())

    def wait(self, patience: float) -> None:
        """Return when owners have changed, or after `patience` seconds."""
        with self._connected() as db:
            for _ in db.notifies(timeout=patience, stop_after=1):
                pass

    def wake(self) -> None:
        """End `wait`, from another thread."""
        with contextlib.suppress(UnavailableError), self._store.writing() as db:
            db.execute(f"NOTIFY {CHANNEL}")

    def leave(self) -> None:
        """Say that this server is no longer there."""
        with contextlib.suppress(UnavailableError), self._connected() as db:  # or it will be noticed
            db.execute("DELETE FROM shoal_server WHERE name = %s", (self.name,))
        self._disconnect()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """The connection, made again after it broke."""
        try:
            if self._connection is None:
                self._connection = self._store.connect()
                make_tables(self._connection, TABLE)
                self._connection.execute("DELETE FROM shoal_server WHERE until < now() - interval '1 day'")
                self._connection.execute(f"LISTEN {CHANNEL}")
            yield self._connection
        except psycopg.Error as error:
            self._disconnect()
            raise UnavailableError(f"{self._store.url} failed: {' '.join(str(error).split())}") from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def servers(db: Any) -> list[str]:
    """Names of the servers that are alive."""
    if db.execute("SELECT to_regclass('shoal_server')").fetchone()[0] is None:
        return []
    rows = db.execute("SELECT name FROM shoal_server WHERE until > now() ORDER BY name").fetchall()
    return [name for (name,) in rows]


def move(store: PostgresStore, population: str, url: str) -> str:
    """Let a population go to the server at a URL; whom it was taken from, "" if nobody owned it.

    Its epoch moves on, so its owner can append nothing from this moment on. For one lease nobody but that
    server takes it.
    """
    target = server_url(url)
    with store.writing() as db:
        alive = servers(db)
        found = next((name for name in alive if url_of(name) == target), None)
        if found is None:
            there = ", ".join(filter(None, map(url_of, alive))) or "none"
            raise UnknownError(f"{store.url} has no server at {target}; there are: {there}")
        with db.transaction():
            row = db.execute(
                "SELECT id, CASE WHEN lease_until > now() THEN owner ELSE '' END FROM shoal_population "
                "WHERE name = %s FOR UPDATE",
                (population,),
            ).fetchone()
            if row is None:
                raise UnknownError(f"{store.url} has no population {population!r}")
            number, owner = row
            if owner != found:
                db.execute(
                    "UPDATE shoal_population SET epoch = epoch + 1, owner = %s, lease_until = '-infinity' "
                    "WHERE id = %s",
                    (found, number),
                )
                db.execute(f"NOTIFY {CHANNEL}")
    return str(owner)


def preferred(population: str, names: Collection[str]) -> str:
    """The server that is to take a population that nobody owns: all agree, and each has its share."""
    return max(names, key=lambda one: hashlib.blake2b(f"{one} {population}".encode(), digest_size=8).digest())


def new_name(url: str) -> str:
    """A server's name: its URL, and what tells it from another process there."""
    return f"{server_url(url)}#{secrets.token_hex(4)}"


def url_of(owner: str) -> str | None:
    """Where an owner can be reached, if it is a server."""
    url, mark, _ = owner.partition("#")
    try:
        return server_url(url) if mark else None
    except ValueError:
        return None


def server_url(url: str) -> str:
    """A URL at which a server can be reached, checked."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    host = parts.hostname
    if (
        parts.scheme not in ("http", "https")
        or not host
        or "@" in parts.netloc
        or (parts.path, parts.query, parts.fragment) not in (("", "", ""), ("/", "", ""))
    ):
        raise ValueError(
            "the URL of a server must be such as http://10.0.0.5:8000, without user, path or query, "
            f"got {shown_url(url)[:200]!r}"
        )
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + (f":{port}" if port else "")
