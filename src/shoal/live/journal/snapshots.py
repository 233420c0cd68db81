"""Snapshots: a fold as bytes, with a checksum. They save time and are never the truth.

A snapshot that is torn, flipped, of a newer format, of another journal, or holds somebody who has been
forgotten since, is passed over: the one before it is used, or the whole journal. A journal is known by the
random key in its first record, as stores and populations are made anew under the same name and number.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import msgspec

from shoal.core.policies.registry import policy_from_bytes
from shoal.core.policy.files import PolicyFileError
from shoal.core.policy.living import LivePolicy, Sharing
from shoal.live.journal.archives import Archive, Base, base_of, read
from shoal.live.journal.fold import Fold, Plan, Standing
from shoal.live.journal.known import KnownIds
from shoal.live.journal.records import SWITCHES, Contested, Decided, Forgotten, Row, Settings, decode
from shoal.live.journal.stores.base import Store
from shoal.live.journal.tally import Tally
from shoal.live.protocol.errors import JournalError

FORMAT = 1
"""Version of the snapshots that are written. Later ones add fields at the end, with a default."""
MAGIC = b"shoal snapshot\n"
CHECKSUM = 32
KEPT = 2
"""Snapshots kept of each population: the last, and one to fall back on."""
TRIES = 3
"""Times that loading begins again because the journal was archived meanwhile."""


Watch = Callable[[Fold, Row], None]


class _Waiting(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    at: int
    decided: Decided
    rewards: dict[int, float]
    learned: dict[int, int]
    missed: list[int]
    moments: dict[int, tuple[float, float] | None] = {}


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
    observed: list[int]
    pending: list[_Waiting]
    """With those of which all is known, but that do not count yet."""
    catalogue: bytes | None
    retired: dict[str, int]
    forgotten_at: int
    cut_log: bytes
    policy: bytes
    tally: Tally
    history: list[tuple[int, Settings]]
    known: KnownIds
    contest: tuple[int, Contested] | None = None


AS_THEY_ARE = tuple(
    name for name in _Content.__struct_fields__ if name not in ("format", "pending", "cut_log", "policy")
)
"""What a fold and its snapshot hold in the same form."""


class SnapshotError(ValueError):
    """Bytes that are no snapshot, or no longer one."""


def pack(fold: Fold) -> bytes:
    """The bytes of a snapshot."""
    waiting = [
        _Waiting(one.seq, one.at, one.decided, one.rewards, one.learned, sorted(one.missed), one.moments)
        for one in (fold.uncounted or fold.pending).values()
    ]
    own: dict[str, Any] = {name: getattr(fold, name) for name in AS_THEY_ARE}
    own |= {"pending": waiting, "cut_log": fold.cut_log.tobytes()}
    content = msgspec.msgpack.encode(
        _Content(format=FORMAT, policy=bytes(fold.policy.to_bytes()), **own),
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
        if not 1 <= version <= FORMAT:
            raise SnapshotError(f"{source} has format {version}; this version of shoal reads up to {FORMAT}")
        kept = msgspec.msgpack.decode(content, type=_Content)
        fold = Fold()
        policy = policy_from_bytes(kept.policy, source)
        if not isinstance(policy, LivePolicy):
            raise SnapshotError(f"{source} holds a policy that is not for live use, {policy.name!r}")
        fold.policy = policy
    except (msgspec.MsgspecError, PolicyFileError) as error:
        raise SnapshotError(f"{source} cannot be read: {error}") from error
    fold.policy.warns = False
    for name in AS_THEY_ARE:
        setattr(fold, name, getattr(kept, name))
    fold.cut_log.frombytes(kept.cut_log)
    for one in kept.pending:
        standing = Standing(one.seq, one.at, one.decided)
        standing.rewards, standing.learned, standing.missed = one.rewards, one.learned, set(one.missed)
        standing.moments = one.moments
        if standing.is_pending:
            fold.pending[one.decided.id] = standing
        if fold.settings.default_reward is not None:
            fold.uncounted[one.decided.id] = standing
    return fold


def plan_of(store: Store, population: int, upto: int | None = None) -> Plan | None:
    """The policy that a population was last switched to, if it was, and that record is in the store."""
    rows = [row for row in store.find(population, SWITCHES) if upto is None or row.seq <= upto]
    if not rows:
        return None
    settings = decode(rows[-1].body)
    assert isinstance(settings, Settings)
    return Plan(settings, rows[-1].seq)


def load(
    store: Store,
    population: int,
    upto: int | None = None,
    *,
    watch: Watch | None = None,
    checks: bool = False,
) -> Fold:
    """The fold of a population's journal up to a sequence number.

    It starts from the latest snapshot that is good, or else from the base, if a part of the journal has been
    archived. What lies before the base is read from the archives. `watch` is called with fold and row before
    each row in the store is applied. `checks`: compute recorded cuts again (see `Fold.checks`).
    """
    for _ in range(TRIES):
        last = store.last_seq(population) if upto is None else upto
        base = base_of(store, population)
        if last < base.seq:
            return from_archives(base.archives, last, checks=checks)
        found = _from_snapshot(store, population, base, last, watch, checks)
        if found is not None:
            return found
        fold = from_base(store, population, base, plan_of(store, population, last), checks=checks)
        if catch_up(fold, store, population, last, is_base=True, watch=watch):
            break  # otherwise more was archived meanwhile
    if fold.seq < last:
        raise JournalError(
            f"the journal of population {population} in {store.url} ends at record {fold.seq} of {last}"
        )
    return fold


def _from_snapshot(
    store: Store, population: int, base: Base, last: int, watch: Watch | None, checks: bool
) -> Fold | None:
    for epoch, seq in own_snapshots(store, population):
        if not base.seq <= seq <= last:
            continue
        data = store.load_snapshot(population, epoch, seq)
        if data is None:
            continue
        try:
            fold = unpack(data, _source(store, population, seq))
        except SnapshotError as error:
            warnings.warn(f"{error}; it is passed over", RuntimeWarning, stacklevel=2)
            continue
        if (fold.settings.key, fold.seq) != (base.key, seq):
            _disown(store, population, epoch, seq)
            continue
        fold.checks = checks
        if catch_up(fold, store, population, last, watch=watch):
            return fold
    return None


def own_snapshots(store: Store, population: int) -> list[tuple[int, int]]:
    """Epochs and sequence numbers of the snapshots, the latest first, as far as the journal reaches."""
    listed = store.snapshots(population)
    end = store.last_seq(population)  # read after them: no snapshot of this journal is ahead of it
    for epoch, seq in listed:
        if seq > end:
            _disown(store, population, epoch, seq)
    return [one for one in listed if one[1] <= end]


def _disown(store: Store, population: int, epoch: int, seq: int) -> None:
    """Pass over a snapshot of another journal. The owner deletes it: it would count as the latest one."""
    if not store.read_only:
        store.delete_snapshot(population, epoch, seq)
    source = _source(store, population, seq)
    warnings.warn(f"{source} belongs to another journal; it is passed over", RuntimeWarning, stacklevel=2)


def _source(store: Store, population: int, seq: int) -> str:
    return f"snapshot {seq} of population {population} in {store.url}"


def from_base(
    store: Store, population: int, base: Base, plan: Plan | None = None, *, checks: bool = False
) -> Fold:
    """The state up to the last archived row; if its bytes are damaged, from the archives.

    From them, too, if it is another policy's than the one that was switched to afterwards.
    """
    if not base.seq:
        return Fold(plan, checks=checks)
    if plan is not None and plan.until <= base.seq:
        plan = None
    source = f"the base of population {population} in {store.url}"
    try:
        fold = unpack(store.base_state(population) or b"", source)
        if (fold.settings.key, fold.seq) != (base.key, base.seq):
            raise SnapshotError(f"{source} belongs to another journal")
        fold.plan = plan
        if not (plan or Plan(fold.settings, 0)).made(fold.policy):
            fold = from_archives(base.archives, base.seq, plan, checks=checks)
    except SnapshotError as error:
        try:
            fold = from_archives(base.archives, base.seq, plan, checks=checks)
        except JournalError as missing:
            raise JournalError(f"{error}, and {missing}") from error
        warnings.warn(f"{error}; the archives are read instead", RuntimeWarning, stacklevel=2)
    fold.checks = checks
    return fold


def from_archives(
    archives: tuple[Archive, ...], upto: int, plan: Plan | None = None, *, checks: bool = False
) -> Fold:
    """The state up to a sequence number, from nothing but archives."""

    def rows() -> Iterator[Row]:
        for archive in archives:
            if archive.first <= upto:
                yield from (row for row in read(archive) if isinstance(row, Row) and row.seq <= upto)

    if plan is None:
        for row in rows():
            if row.decision == SWITCHES and isinstance(settings := decode(row.body), Settings):
                plan = Plan(settings, row.seq)
    fold = Fold(plan, checks=checks)
    fold.apply_all(rows())
    return fold


def catch_up(
    fold: Fold,
    store: Store,
    population: int,
    upto: int,
    *,
    is_base: bool = False,
    watch: Watch | None = None,
) -> bool:
    """Apply what a fold lacks.

    False, with nothing of use done, if someone in it has been forgotten since (a base never holds such a
    one), if what it lacks has been archived, or if its last record is another than the journal's: a copy of
    the store was put back, or a power failure undid commits, and the journal has gone on differently.
    """
    start, stale = fold.seq, False

    def rows() -> Any:
        nonlocal stale
        for row in store.read(population, max(start - 1, 0), upto):
            if row.seq == start and row.at == fold.at:
                continue
            is_next = row.seq == fold.seq + 1
            if not is_next or (start and not is_base and _is_break(row)):
                stale = True
                return
            if watch is not None:
                watch(fold, row)
            yield row

    with closing(rows()) as missing:  # an error would keep it open, and with it a connection to the store
        fold.apply_all(missing)
    return not stale


def _is_break(row: Row) -> bool:
    """Whether a fold that lacks a row has to start again from the beginning."""
    return isinstance(decode(row.body), Forgotten | Settings)


def prune(store: Store, population: int) -> None:
    """Delete all but the latest snapshots."""
    for epoch, seq in store.snapshots(population)[KEPT:]:
        store.delete_snapshot(population, epoch, seq)
