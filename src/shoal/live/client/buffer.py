"""Rewards on their way to the service, in an SQLite file, so that a restart of the caller loses none.

`put` returns when rewards are on disk. A thread sends them, oldest first, and deletes those that the service
has taken. Those that it refuses for good are kept apart for inspection.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.live.protocol.errors import NotOwnerError, UnavailableError, UnknownError
from shoal.live.protocol.messages import NamedReward

log = logging.getLogger("shoal.client")
TABLES = """
CREATE TABLE IF NOT EXISTS waiting (n INTEGER PRIMARY KEY AUTOINCREMENT, population TEXT, body BLOB) STRICT;
CREATE TABLE IF NOT EXISTS fallback (id TEXT PRIMARY KEY, at REAL, body BLOB) STRICT;
CREATE TABLE IF NOT EXISTS refused (n INTEGER PRIMARY KEY, population TEXT, body BLOB, reason TEXT) STRICT;
"""
AT_ONCE = 500
"""Rewards that are sent together."""
REMEMBERED = 90 * 86400.0
"""Seconds within which rewards of decisions that the service did not make may come."""
PAUSE = 0.5
"""Seconds between attempts to send."""


class Fallback(msgspec.Struct, frozen=True):
    """What is known about a decision that the service did not make: enough to let it learn the reward."""

    population: str
    agent: str
    x: list[float] | None
    arm: str | None


class Refused(NamedTuple):
    """A reward that the service refused for good."""

    population: str
    reward: NamedReward
    reason: str


class Buffer:
    """See the module.

    Parameters
    ----------
    path : path
        Of the file, which is created if missing.
    send : callable
        Takes a population, rewards, and what is known about decisions that the service did not make, by id;
        returns an error or None for each reward; it may raise.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        send: Callable[[str, list[NamedReward], dict[str, Fallback]], list[Exception | None]],
    ) -> None:
        self._send = send
        self._db = sqlite3.connect(Path(path), timeout=10.0, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        # `put` promises that a reward survives a crash of the machine, not only of the process.
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(TABLES)
        # Nobody reports rewards that late; without this the file would grow forever.
        self._db.execute("DELETE FROM fallback WHERE at < ?", (time.time() - REMEMBERED,))
        self._mutex = threading.Lock()
        self._work = threading.Condition(self._mutex)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="shoal-buffer", daemon=True)
        self._thread.start()

    def put(self, population: str, rewards: Sequence[NamedReward]) -> None:
        """Keep rewards, all of them or none, until the service has taken them."""
        rows = [(population, msgspec.json.encode(one)) for one in rewards]
        with self._mutex:
            with self._transaction():
                self._db.executemany("INSERT INTO waiting (population, body) VALUES (?, ?)", rows)
            self._work.notify()

    def remember(self, id: str, fallback: Fallback) -> None:
        """Keep what is known about a decision that the service did not make."""
        with self._mutex:
            body = msgspec.json.encode(fallback)
            self._db.execute("INSERT OR REPLACE INTO fallback VALUES (?, ?, ?)", (id, time.time(), body))

    def fallback(self, id: str) -> Fallback | None:
        """What is known about a decision that the service did not make."""
        with self._mutex:
            found = self._db.execute("SELECT body FROM fallback WHERE id = ?", (id,)).fetchone()
        return None if found is None else msgspec.json.decode(found[0], type=Fallback)

    def refused(self) -> list[Refused]:
        """What the service refused for good."""
        with self._mutex:
            rows = self._db.execute("SELECT population, body, reason FROM refused ORDER BY n").fetchall()
        return [Refused(one[0], msgspec.json.decode(one[1], type=NamedReward), one[2]) for one in rows]

    def __len__(self) -> int:
        with self._mutex:
            return int(self._db.execute("SELECT count(*) FROM waiting").fetchone()[0])

    def flush(self, deadline: float) -> bool:
        """Wait until everything is sent, or until the deadline; returns whether everything is sent."""
        until = time.monotonic() + deadline
        while len(self):
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def close(self) -> None:
        """Stop sending; what is left is sent when the file is opened again."""
        with self._mutex:
            self._closing = True
            self._work.notify()
        self._thread.join()
        self._db.close()

    def _run(self) -> None:
        while True:
            with self._mutex:
                # Within the lock, so that nothing is put between looking and waiting.
                rows = self._db.execute(
                    "SELECT n, population, body FROM waiting ORDER BY n LIMIT ?", (AT_ONCE,)
                ).fetchall()
                if self._closing:
                    return
                if not rows:
                    self._work.wait()
                    continue
            # In the order in which they were put: a correction must not overtake what it corrects.
            if not all(self._send_some(name, list(some)) for name, some in groupby(rows, lambda row: row[1])):
                with self._mutex:
                    if not self._closing:
                        self._work.wait(PAUSE)

    def _send_some(self, population: str, rows: list[Any]) -> bool:
        """Send rewards of one population; returns whether all of them are dealt with."""
        rewards = [msgspec.json.decode(body, type=NamedReward) for _, _, body in rows]
        known = {one.id: found for one in rewards if (found := self.fallback(one.id)) is not None}
        errors: Sequence[Exception | None]
        try:
            errors = self._send(population, rewards, known)
        except (UnknownError, ValueError) as reason:  # no such population: trying again would not help
            errors = [reason] * len(rows)
        except Exception as reason:
            log.warning("rewards wait to be sent: %s", reason)
            return False
        done: list[tuple[int]] = []
        refused: list[tuple[int, str, bytes, str]] = []
        # Rewards that the service cannot take now stay; refused ones are put aside, to block no others.
        for (n, _, body), error in zip(rows, errors, strict=True):
            if error is None:
                done.append((n,))
            elif not isinstance(error, UnavailableError | NotOwnerError):
                done.append((n,))
                refused.append((n, population, body, str(error)))
                log.warning("a reward was refused: %s", type(error).__name__)
        # Together, so that a crash neither loses a refusal nor sends it again.
        with self._mutex, self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO refused VALUES (?, ?, ?, ?)", refused)
            self._db.executemany("DELETE FROM waiting WHERE n = ?", done)
        return len(done) == len(rows)

    def _transaction(self) -> sqlite3.Connection:
        """Begin a transaction; as a context manager, it is committed, or rolled back after an error."""
        self._db.execute("BEGIN IMMEDIATE")
        return self._db
