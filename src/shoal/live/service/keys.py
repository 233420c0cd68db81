"""Keys to the service: stored beside the populations, as hashes; shown once, when they are made.

A key reads `shoal_ID_SECRET`. The secret is 256 random bits, so one round of SHA-256 protects it as well as
many would. A running server learns at once of keys that another process adds or revokes: an SQLite store has
a second small file, mapped into memory, whose bytes differ after each change; PostgreSQL sends notifications.
"""

import hashlib
import hmac
import json
import mmap
import secrets
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from shoal.core import validation
from shoal.live.journal.arms import checked_name
from shoal.live.journal.stores import open_store
from shoal.live.protocol.errors import UnavailableError, UnknownError

SCOPES = ("decide", "reward", "read", "admin")
"""What a key may allow: to decide, to report rewards, to look, to change populations and forget agents."""
COLUMNS = "id, digest, scopes, populations, rate, made, expires, revoked, note"
USER = "user:"
"""The note of a key for a user whom a proxy signs in begins with this."""
STALE = 10.0
"""Seconds after which keys that cannot be read again from PostgreSQL are no longer trusted."""
CHANNEL = "shoal_key"


class Key(msgspec.Struct, frozen=True):
    """What a key allows."""

    id: str
    digest: bytes
    scopes: frozenset[str]
    populations: frozenset[str] | None
    """Populations that it is for; None for all."""
    rate: float | None
    """Requests a second; None for the server's default, 0 for any number."""
    made: float
    expires: float | None
    revoked: float | None
    note: str

    def is_valid(self, now: float) -> bool:
        """Whether it has neither expired nor been revoked."""
        return self.revoked is None and (self.expires is None or now < self.expires)

    def allows(self, scope: str | None, population: str | None) -> bool:
        """Whether it allows something in a population, or, if that is None, in all of them."""
        if scope is not None and scope not in self.scopes:
            return False
        return self.populations is None or population in self.populations


ANYBODY = Key("", b"", frozenset(SCOPES), None, 0.0, 0.0, None, None, "")
"""Every caller of a server on this machine that has no keys."""


class Keys(ABC):
    """The keys of a store."""

    @abstractmethod
    def _fresh(self) -> dict[str, Key]:
        """Every key by its id, revoked ones too, in the order in which they were made."""

    def find(self, id: str) -> Key | None:
        """A key by its id, valid or not."""
        return self._fresh().get(id)

    def all(self) -> list[Key]:
        """Every key, revoked ones too, in the order in which they were made."""
        return list(self._fresh().values())

    @abstractmethod
    def _insert(self, row: tuple[Any, ...]) -> None: ...

    @abstractmethod
    def _stamp(self, id: str, column: str, at: float) -> None:
        """Record when a key was "revoked", or "expires"; an earlier time that is recorded stays."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    def listen(self) -> None:
        """Until `close`, learn of other processes' changes without asking the store at each request."""
        return

    def exist(self) -> bool:
        """Whether a key was ever made: from then on, nobody may call without one."""
        return bool(self.all())

    def add(
        self,
        scopes: Iterable[str],
        populations: Iterable[str] | None = None,
        *,
        expires_in: float | None = None,
        rate: float | None = None,
        note: str = "",
    ) -> tuple[Key, str]:
        """Make a key; returns it and its text, which is stored nowhere.

        Parameters
        ----------
        scopes : iterable of {"decide", "reward", "read", "admin"}
        populations : iterable of str, optional
            Those it is for; all by default.
        expires_in : float, optional
            Seconds from now.
        rate : float, optional
            Requests a second that it may make; 0 for any number.
        note : str
            What it is for.
        """
        chosen = list(dict.fromkeys(scopes))
        if not chosen:
            raise ValueError(f"scopes must be some of {', '.join(SCOPES)}, got none")
        for scope in chosen:
            validation.one_of("scope", scope, SCOPES)
        names = None if populations is None else sorted({checked_name("population", p) for p in populations})
        if expires_in is not None:
            expires_in = validation.number("expires_in", expires_in, low=0.0, open_low=True)
        if rate is not None:
            rate = validation.number("rate", rate, low=0.0)
        now = time.time()
        id, secret = secrets.token_hex(5), secrets.token_urlsafe(32)
        expires = None if expires_in is None else now + expires_in
        about = json.dumps(names) if names is not None else None
        self._insert((id, _digest(secret), ",".join(chosen), about, rate, now, expires, None, note))
        made = self.find(id)
        assert made is not None
        return made, f"shoal_{id}_{secret}"

    def revoke(self, id: str) -> None:
        """Make a key invalid."""
        self._known(id)
        self._stamp(id, "revoked", time.time())

    def _known(self, id: str) -> Key:
        if (key := self.find(id)) is None:
            raise UnknownError(f"no key {validation.show(id)}; `shoal keys list` shows them")
        return key

    def rotate(self, id: str, grace: float = 0.0) -> tuple[Key, str]:
        """Make a key that allows what another one does, for as long again; the old one ends after `grace`.

        Returns
        -------
        The new key, and its text, which is stored nowhere.
        """
        old, grace = self._known(id), validation.number("grace", grace, low=0.0)
        if not old.is_valid(now := time.time()):
            raise ValueError(f"id must be of a valid key: {id} has expired or was revoked")
        life = None if old.expires is None else old.expires - old.made
        made = self.add(old.scopes, old.populations, expires_in=life, rate=old.rate, note=old.note)
        self._stamp(id, "expires" if grace else "revoked", now + grace)
        return made

    def of_user(self, user: str) -> Key | None:
        """The latest valid key for a user whom a proxy signs in, or for all of them (`*`)."""
        now, found = time.time(), [key for key in reversed(self.all()) if key.note.startswith(USER)]
        notes = (USER + user, USER + "*")
        return next((key for note in notes for key in found if key.note == note and key.is_valid(now)), None)

    def check(self, text: str) -> Key | None:
        """The key that a text stands for, if it is valid."""
        parts = text.split("_", 2)
        if len(parts) != 3 or parts[0] != "shoal":
            return None
        key = self.find(parts[1])
        digest = _digest(parts[2])
        if not hmac.compare_digest(digest, digest if key is None else key.digest) or key is None:
            return None
        return key if key.is_valid(time.time()) else None

    def still_opens(self, key: Key) -> bool:
        """Whether a key that opened something is still valid; `ANYBODY` is, until there is a key."""
        if key is ANYBODY:
            return not self.exist()
        known = self.find(key.id)
        return known is not None and known.is_valid(time.time())


class MemoryKeys(Keys):
    """Keys of a store in memory: none, until some are added."""

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}

    def _fresh(self) -> dict[str, Key]:
        return self._keys

    def _insert(self, row: tuple[Any, ...]) -> None:
        self._keys[row[0]] = _key(row)

    def _stamp(self, id: str, column: str, at: float) -> None:
        key = self._keys[id]
        self._keys[id] = msgspec.structs.replace(key, **{column: min(at, getattr(key, column) or at)})

    def close(self) -> None:
        return


class SQLiteKeys(Keys):
    """Keys in the populations' own file; short transactions beside other writers."""

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            open_store(path).close()
        self._db = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        self._mark = _open_mark(Path(f"{path}.keys"))
        self._seen, self._read_at = b"", 0.0
        self._keys: dict[str, Key] = {}
        self._write(
            "CREATE TABLE IF NOT EXISTS key (id TEXT PRIMARY KEY, digest BLOB NOT NULL, "
            "scopes TEXT NOT NULL, populations TEXT, rate REAL, made REAL NOT NULL, expires REAL, "
            "revoked REAL, note TEXT NOT NULL) STRICT"
        )

    def _write(self, sql: str, *values: Any) -> None:
        try:
            with self._lock:
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute(sql, values)
            self._mark[:] = secrets.token_bytes(len(self._mark))
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"keys cannot be written: {error}") from error

    def _fresh(self) -> dict[str, Key]:
        """All keys; a query for each request would cost as much as the request."""
        now = time.monotonic()
        if self._seen != self._mark[:] or now > self._read_at + 1.0:
            seen = self._mark[:]  # before the keys are read, so that a change meanwhile is read again
            with self._lock:
                rows = self._db.execute(f"SELECT {COLUMNS} FROM key ORDER BY made").fetchall()
            self._keys = {row[0]: _key(row) for row in rows}
            self._seen, self._read_at = seen, now
        return self._keys

    def _insert(self, row: tuple[Any, ...]) -> None:
        self._write(f"INSERT INTO key ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)

    def _stamp(self, id: str, column: str, at: float) -> None:
        self._write(f"UPDATE key SET {column} = min(coalesce({column}, ?1), ?1) WHERE id = ?2", at, id)

    def close(self) -> None:
        self._db.close()
        self._mark.close()


def _open_mark(path: Path) -> mmap.mmap:
    """A few bytes that all processes share without system calls."""
    with path.open("a+b") as file:
        if file.tell() < 16:
            file.write(bytes(16))
            file.flush()
        return mmap.mmap(file.fileno(), 16)


class PostgresKeys(Keys):
    """Keys in the populations' own database; a thread hears of changes."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._url, self._psycopg = url, psycopg
        self._closing = threading.Event()
        self._keys: dict[str, Key] = {}
        self._read_at = time.monotonic()
        from shoal.live.journal.stores.postgres import make_tables

        with closing(self._connect()) as db:
            make_tables(
                db,
                "CREATE TABLE IF NOT EXISTS shoal_key (id text PRIMARY KEY, digest bytea NOT NULL, "
                "scopes text NOT NULL, populations text, rate float8, made float8 NOT NULL, expires float8, "
                "revoked float8, note text NOT NULL)",
            )
            self._read(db)
        self._thread: threading.Thread | None = None

    def listen(self) -> None:
        self._thread = threading.Thread(target=self._listen, name="shoal-keys", daemon=True)
        self._thread.start()

    def _connect(self) -> Any:
        from shoal.live.journal.stores.postgres import connect

        try:
            return connect(self._url, connect_timeout=5, application_name="shoal keys")
        except self._psycopg.Error as error:
            raise UnavailableError(f"keys cannot be reached: {' '.join(str(error).split())}") from error

    def _read(self, db: Any) -> None:
        at = time.monotonic()
        rows = db.execute(f"SELECT {COLUMNS} FROM shoal_key ORDER BY made").fetchall()
        self._keys = {row[0]: _key((row[0], bytes(row[1]), *row[2:])) for row in rows}
        self._read_at = at

    def _listen(self) -> None:
        while not self._closing.is_set():
            with suppress(Exception), closing(self._connect()) as db:  # it is tried again
                db.execute(f"LISTEN {CHANNEL}")
                while not self._closing.is_set():
                    self._read(db)
                    for _ in db.notifies(timeout=1.0, stop_after=1):
                        pass
            self._closing.wait(0.5)

    def _fresh(self) -> dict[str, Key]:
        if self._thread is None:  # a command, which does not listen for changes
            with closing(self._connect()) as db:
                self._read(db)
        elif time.monotonic() - self._read_at > STALE:
            raise UnavailableError("keys cannot be read from the store")
        return self._keys

    def _insert(self, row: tuple[Any, ...]) -> None:
        marks = ", ".join(["%s"] * len(row))
        self._write(f"INSERT INTO shoal_key ({COLUMNS}) VALUES ({marks})", *row)

    def _stamp(self, id: str, column: str, at: float) -> None:
        self._write(f"UPDATE shoal_key SET {column} = least({column}, %s) WHERE id = %s", at, id)

    def _write(self, sql: str, *values: Any) -> None:
        with closing(self._connect()) as db:
            try:
                db.execute(sql, values)
                db.execute(f"NOTIFY {CHANNEL}")
                self._read(db)
            except self._psycopg.Error as error:
                raise UnavailableError(f"keys cannot be written: {' '.join(str(error).split())}") from error

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(3.0)


def open_keys(url: str) -> Keys:
    """The keys of a store, which is named as `shoal.open` takes it."""
    if url == ":memory:":
        return MemoryKeys()
    return PostgresKeys(url) if "://" in url else SQLiteKeys(url)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _key(row: Any) -> Key:
    id, digest, scopes, populations, *rest = row
    about = None if populations is None else frozenset(json.loads(populations))
    return Key(id, digest, frozenset(scopes.split(",")), about, *rest)
