"""Snapshots: a fold as bytes, with a checksum. They save time and are never the truth.

A snapshot that is torn, flipped, of a newer format, or holds somebody who has been forgotten since, is passed
over: the one before it is used, or the whole journal.
"""

import hashlib
import warnings
from typing import Any

import msgspec

from shoal.controller.errors import JournalError
from shoal.controller.fold import Fold, Standing
from shoal.controller.records import Decided, Forgotten, Settings, decode
from shoal.controller.stores.base import Store
from shoal.policies.base import Sharing
from shoal.policies.files import PolicyFileError
from shoal.policies.registry import policy_from_bytes

FORMAT = 1
MAGIC = b"shoal snapshot\n"
CHECKSUM = 32
KEPT = 2
"""Snapshots kept of each population: the last, and one to fall back on."""


class _Waiting(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    at: int
    decided: Decided
    rewards: dict[int, float]
    learned: dict[int, int]
    missed: list[int]


class _Content(msgspec.Struct, frozen=True, array_like=True):
    format: int
    seq: int
    at: int
    stamp: str
    settings: Settings
    names: dict[str, int]
    called: list[str | None]
    merged: dict[int, int]
    sharing: list[Sharing]
    taught: list[int]
    pending: list[_Waiting]
    catalogue: bytes | None
    forgotten_at: int
    cut_log: bytes
    policy: bytes


class SnapshotError(ValueError):
    """Bytes that are no snapshot, or no longer one."""


def pack(fold: Fold) -> bytes:
    """The bytes of a snapshot."""
    waiting = [
        _Waiting(one.seq, one.at, one.decided, one.rewards, one.learned, sorted(one.missed))
        for one in fold.pending.values()
    ]
    content = msgspec.msgpack.encode(
        _Content(
            FORMAT,
            fold.seq,
            fold.at,
            fold.stamp,
            fold.settings,
            fold.names,
            fold.called,
            fold.merged,
            fold.sharing,
            fold.taught,
            waiting,
            fold.catalogue,
            fold.forgotten_at,
            fold.cut_log.tobytes(),
            bytes(fold.policy.to_bytes()),
        )
    )
    return MAGIC + hashlib.blake2b(content, digest_size=CHECKSUM).digest() + content


def unpack(data: bytes, source: str) -> Fold:
    """The fold in the bytes of a snapshot; `SnapshotError` if they are not one."""
    start = len(MAGIC) + CHECKSUM
    content = memoryview(data)[start:]
    if (
        data[: len(MAGIC)] != MAGIC
        or hashlib.blake2b(content, digest_size=CHECKSUM).digest() != data[len(MAGIC) : start]
    ):
        raise SnapshotError(f"{source} is damaged")
    try:
        first, *_ = msgspec.msgpack.decode(content, type=list[msgspec.Raw])
        version = msgspec.msgpack.decode(first)
        if version != FORMAT:
            raise SnapshotError(f"{source} has format {version}; this version reads {FORMAT}")
        kept = msgspec.msgpack.decode(content, type=_Content)
        fold = Fold()
        fold.policy = policy_from_bytes(kept.policy, source)
    except (msgspec.MsgspecError, PolicyFileError) as error:
        raise SnapshotError(f"{source} cannot be read: {error}") from error
    fold.policy.warns = False
    fold.settings, fold.stamp, fold.seq, fold.at = kept.settings, kept.stamp, kept.seq, kept.at
    fold.names, fold.called, fold.sharing, fold.taught = kept.names, kept.called, kept.sharing, kept.taught
    fold.catalogue, fold.forgotten_at, fold.merged = kept.catalogue, kept.forgotten_at, kept.merged
    fold.cut_log.frombytes(kept.cut_log)
    for one in kept.pending:
        standing = Standing(one.seq, one.at, one.decided)
        standing.rewards, standing.learned, standing.missed = one.rewards, one.learned, set(one.missed)
        fold.pending[one.decided.id] = standing
    return fold


def load(store: Store, population: int, upto: int | None = None) -> Fold:
    """The fold of a population's journal up to a sequence number, from the latest snapshot that is good."""
    last = store.last_seq(population) if upto is None else upto
    for epoch, seq in store.snapshots(population):
        if seq > last:
            continue
        source = f"snapshot {seq} of population {population} in {store.url}"
        data = store.load_snapshot(population, epoch, seq)
        if data is None:
            continue
        try:
            fold = unpack(data, source)
        except SnapshotError as error:
            warnings.warn(f"{error}; it is passed over", RuntimeWarning, stacklevel=2)
            continue
        if fold.seq == seq and catch_up(fold, store, population, last):
            return fold
    fold = Fold()
    catch_up(fold, store, population, last)
    if fold.seq < last:
        raise JournalError(
            f"the journal of population {population} in {store.url} ends at record {fold.seq} of {last}"
        )
    return fold


def catch_up(fold: Fold, store: Store, population: int, upto: int) -> bool:
    """Apply what a fold lacks; False, with nothing of use done, if someone in it has been forgotten since."""
    start, stale = fold.seq, False

    def rows() -> Any:
        nonlocal stale
        for row in store.read(population, start, upto):
            if start and isinstance(decode(row.body), Forgotten):
                stale = True
                return
            yield row

    fold.apply_all(rows())
    return not stale


def prune(store: Store, population: int, keep: int = KEPT) -> None:
    """Delete all but the latest snapshots."""
    for epoch, seq in store.snapshots(population)[keep:]:
        store.delete_snapshot(population, epoch, seq)
