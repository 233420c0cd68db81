"""Archived parts of a journal: Parquet files, and the base from which the rest is folded.

A file holds the rows of a range of sequence numbers as they were, and the arms that they refer to. The store
keeps the *base*: the state up to the last archived row, and where the files are. The base, not the files, is
what the population needs to go on; the files are for looking back, and for forgetting without a trace.
"""

import hashlib
import os
import re
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.core.atomic import whole_file
from shoal.live.journal.patience import go_on
from shoal.live.journal.records import (
    Catalogue,
    Decided,
    Joined,
    Keyed,
    Row,
    Settings,
    Tombstone,
    decode,
    encode,
)
from shoal.live.journal.stores.base import Store
from shoal.live.protocol.errors import JournalError

ROWS_AT_ONCE = 20_000
"""Rows in one row group of a file."""


class Archive(msgspec.Struct, frozen=True, array_like=True):
    """A file with a part of the journal."""

    first: int
    last: int
    path: str
    checksum: bytes
    """Of the file's bytes."""
    wipe: tuple[int, ...] = ()
    """Agents who have been forgotten, but whose rows are still in the file."""
    home: str = ""
    """The store that wrote the file, and alone may delete it: a copy of the store refers to it, too."""


class Base(Keyed, msgspec.Struct, frozen=True, array_like=True):
    """Where the journal in the store begins, and what is known of the part before."""

    seq: int = 0
    """The last row that was archived."""
    at: int = 0
    """Its time, in microseconds since 1970."""
    joined: tuple[tuple[bytes, int], ...] = ()
    """Hashes of the archived joinings, with the agents: tell whom a restored backup brought back."""
    imports: dict[str, int] = {}
    """Imported files whose rows have been archived, with the last line of each."""
    archives: tuple[Archive, ...] = ()
    litter: tuple[str, ...] = ()
    """Files to delete: begun and not finished, or replaced by one without a forgotten person."""
    key: bytes = b""
    """The journal's, from its first record: what has another key belongs to another journal."""
    home: str = ""
    """The store that `litter` is of."""


class ArchivedArms(NamedTuple):
    """A set of arms in an archive."""

    digest: bytes
    body: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Base)
pack_base = _encoder.encode


def base_of(store: Store, population: int) -> Base:
    """The base of a population's journal, with its key; at 0 if nothing has been archived.

    The base of another journal is passed over: the population was made anew, and only its rows were deleted.
    """
    # Read before the base, since the commit that writes one drops the first record.
    try:
        first = [decode(row.body) for row in store.read(population, 0, 1)]
    except msgspec.MsgspecError as error:
        raise JournalError(f"record 1 cannot be read: {error}") from error
    data = store.base(population)
    base = Base() if data is None else _decoder.decode(data)
    key = first[0].key if first and isinstance(first[0], Settings) else base.key
    if base.key == key:
        # What the store that this is a copy of was about to delete may be of use to it by now.
        litter = base.litter if store.is_home(base.home) else ()
        return msgspec.structs.replace(base, litter=litter, home=store.home)
    if data is not None:
        warnings.warn(
            f"the base of population {population} in {store.url} belongs to another journal; "
            "it is passed over",
            RuntimeWarning,
            stacklevel=2,
        )
    return Base(key=key, home=store.home)


# Files


def new_path(directory: Path, name: str, number: int, first: int, last: int) -> Path:
    """Where to write an archive; never the same twice."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:60] or "population"
    token = secrets.token_hex(4)
    return directory.resolve() / f"{slug}-{number}-{first:010d}-{last:010d}-{token}.parquet"


def part(path: str | Path) -> Path:
    """The name under which an archive is written until it is complete."""
    return Path(f"{path}.part")


def write(path: Path, rows: Iterator[Row], arms_of: Any) -> bytes:
    """Write an archive atomically; the checksum of its bytes.

    `arms_of(digests)` gives those sets of arms, and the ones that they are parts of.
    """
    from shoal.core.parquet import pa, pq

    schema = pa.schema(
        [
            ("seq", pa.int64()),
            ("at", pa.int64()),
            ("agent", pa.int64()),
            ("decision", pa.string()),
            ("digest", pa.binary()),
            ("body", pa.binary()),
        ]
    )
    digests: set[bytes] = set()

    def tables() -> Iterator[list[Any]]:
        group: list[Any] = []
        for row in rows:
            record = decode(row.body)
            if isinstance(record, Decided | Catalogue):
                digests.add(record.arms)
            group.append((row.seq, row.at, row.agent, row.decision, None, row.body))
            if len(group) == ROWS_AT_ONCE:
                yield group
                group = []
        group += [(None, None, None, None, digest, body) for digest, body in arms_of(digests)]
        if group:
            yield group

    with (
        whole_file(path, part(path)) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for group in tables():
            columns = [list(column) for column in zip(*group, strict=True)]
            writer.write_table(pa.table(columns, schema=schema))
    return _checksum(path)


def _checksum(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).digest()


def is_there(archive: Archive) -> bool:
    """Whether the file can be read now."""
    return os.access(archive.path, os.R_OK)


def check(archive: Archive) -> None:
    """`JournalError` if the file is not the one that was written."""
    try:
        if _checksum(Path(archive.path)) != archive.checksum:
            raise JournalError(f"the archive {archive.path} is damaged: its checksum is another")
    except OSError as error:
        raise JournalError(f"the archive {archive.path} cannot be read: {error.strerror}") from error


def read(archive: Archive) -> Iterator[Row | ArchivedArms]:
    """What an archive holds, rows in order; those of people who have been forgotten as tombstones."""
    from shoal.core.parquet import pa, pq

    check(archive)
    wiped = set(archive.wipe)
    try:
        with pq.ParquetFile(archive.path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE):
                for seq, at, agent, decision, digest, body in zip(
                    *(column.to_pylist() for column in batch.columns), strict=True
                ):
                    if seq is None:
                        yield ArchivedArms(digest, body)
                        continue
                    row = Row(seq, at, agent, decision, body)
                    yield tombstone(row) if agent in wiped else row
    except (pa.ArrowException, OSError) as error:
        raise JournalError(f"the archive {archive.path} cannot be read: {error}") from error


def tombstone(row: Row) -> Row:
    """What takes the place of a forgotten agent's row."""
    record = decode(row.body)
    slot = record.agent if isinstance(record, Joined) else -1
    return Row(row.seq, row.at, None, None, encode(Tombstone(slot)))


def rewrite(archive: Archive, path: Path, home: str) -> Archive:
    """Write an archive again at `path`, without the people who have been forgotten."""
    kept = {one.digest: one.body for one in read(archive) if isinstance(one, ArchivedArms)}

    def arms_of(digests: set[bytes]) -> list[tuple[bytes, bytes]]:
        return with_wholes(digests, kept.get)

    rows = (one for one in read(archive) if isinstance(one, Row))
    return Archive(archive.first, archive.last, str(path), write(path, rows, arms_of), home=home)


def with_wholes(digests: set[bytes], find: Any) -> list[tuple[bytes, bytes]]:
    """Sets of arms by digest, together with the sets that they are parts of."""
    from shoal.live.journal.arms import Stored

    found: dict[bytes, bytes] = {}
    wanted = set(digests)
    while wanted:
        digest = wanted.pop()
        body = find(digest)
        if body is None or digest in found:
            continue  # deleted with the only agent who saw them
        found[digest] = body
        whole = msgspec.msgpack.decode(body, type=Stored).whole
        if whole is not None:
            wanted.add(whole)
    return sorted(found.items())


def journal(store: Store, population: int, upto: int | None = None) -> Iterator[Row]:
    """The whole journal, the archived part from its files; `JournalError` if one cannot be read."""
    base = base_of(store, population)
    for archive in base.archives:
        if upto is not None and archive.first > upto:
            return
        for one in read(archive):
            if isinstance(one, Row) and (upto is None or one.seq <= upto):
                go_on()
                yield one
    for row in store.read(population, base.seq, upto):
        go_on()
        yield row


def arms_in(archives: tuple[Archive, ...]) -> dict[bytes, bytes]:
    """All sets of arms in some archives."""
    return {
        one.digest: one.body for archive in archives for one in read(archive) if isinstance(one, ArchivedArms)
    }
