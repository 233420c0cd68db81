"""Copies of an SQLite store, made while it is in use, and putting one back."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from shoal.live.journal.stores.sqlite import APPLICATION, locked
from shoal.live.protocol.errors import ConflictError, JournalError


def backup(store: str | os.PathLike[str], target: str | os.PathLike[str], *, replace: bool = False) -> int:
    """Copy a store, as of one moment, while it is written to; the copy's bytes.

    The copy appears when it is complete and found to be sound.

    Parameters
    ----------
    store, target : path
    replace : bool
        Whether a file that is there may be replaced, such as an earlier copy.
    """
    source, target = _existing(store), Path(target)
    if target.exists() and target.samefile(source):
        raise ValueError(f"the copy must be another file than {source}")
    _check_free(target, replace)
    with _copied(source, target) as copy:
        os.replace(copy, target)
    return target.stat().st_size


def restore(source: str | os.PathLike[str], store: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Put a copy in a store's place, while nobody writes to it.

    People forgotten since are forgotten again at the next opening, by the file `….forgotten` beside the
    store, and keys that were revoked since stay revoked, if the store that is replaced can still be read.

    Parameters
    ----------
    source, store : path
    replace : bool
        Whether a store that is there may be replaced.
    """
    source, store = _existing(source), Path(store)
    if store.exists() and store.samefile(source):
        raise ValueError(f"the copy must be another file than {store}")
    with locked(store, "stop it first"):
        _check_free(store, replace)
        revoked = _revoked(store)
        with _copied(source, store) as copy:
            with closing(sqlite3.connect(copy)) as db:
                if revoked and _has_keys(db):
                    db.executemany("UPDATE key SET revoked = coalesce(revoked, ?) WHERE id = ?", revoked)
                    db.commit()
            for name in (f"{store.name}-wal", f"{store.name}-shm"):  # of the one that is replaced
                store.with_name(name).unlink(missing_ok=True)
            shutil.rmtree(store.with_name(f"{store.name}-snapshots"), ignore_errors=True)
            os.replace(copy, store)


def _check_free(path: Path, replace: bool) -> None:
    if path.exists() and not replace:
        raise ConflictError(f"{path} exists; `replace` (--replace) puts the copy in its place", str(path))


def _existing(path: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(path):
        raise ValueError("a PostgreSQL database is copied with pg_dump, and put back with pg_restore")
    if not Path(path).is_file():
        raise FileNotFoundError(2, "No such file", os.fspath(path))
    return Path(path)


@contextmanager
def _copied(source: Path, target: Path) -> Iterator[Path]:
    """A sound copy of a database, beside where it is to go."""
    made = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            with closing(sqlite3.connect(source, timeout=10.0)) as db, closing(sqlite3.connect(made)) as copy:
                (application,) = db.execute("PRAGMA application_id").fetchone()
                if application != APPLICATION:
                    raise JournalError(f"{source} is not a database of shoal")
                db.backup(copy)  # in one step, which others' commits do not start again
                (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
                copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{source} cannot be copied: {error}") from error
        if found != "ok":
            raise JournalError(f"{source} is damaged: {found}")
        with made.open("rb") as file:
            os.fsync(file.fileno())
        yield made
        folder = os.open(target.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    finally:
        for name in (made.name, f"{made.name}-wal", f"{made.name}-shm"):
            made.with_name(name).unlink(missing_ok=True)


def _revoked(store: Path) -> list[tuple[float, str]]:
    """When which keys of a store were revoked; none if it cannot be read."""
    if not store.exists():
        return []
    try:
        with closing(sqlite3.connect(store)) as db:
            if not _has_keys(db):
                return []
            return db.execute("SELECT revoked, id FROM key WHERE revoked IS NOT NULL").fetchall()
    except sqlite3.DatabaseError:
        return []


def _has_keys(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'key'").fetchone() is not None
