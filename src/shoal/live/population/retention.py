"""Retention: old rows of a journal go to an archive, and a base takes their place in the store."""

import contextlib
import math
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core import validation
from shoal.live.journal import archives, snapshots
from shoal.live.journal.archives import Archive, Base, base_of, pack_base
from shoal.live.journal.fold import Fold
from shoal.live.journal.forgetting import hash_of_joining
from shoal.live.journal.records import Catalogue, Decided, Forgotten, Joined, Observed, Row, decode
from shoal.live.journal.stores.base import ArchivedPart

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner

IMPORTED = re.compile(r"([0-9a-f]{24})-([0-9]{9,})")
"""The id that `import_log` gives to a row."""


class Archived(msgspec.Struct, frozen=True):
    """A part of the journal that has been archived."""

    path: str
    first: int
    """Its first and last sequence number."""
    last: int
    until: datetime
    """The time of its last row."""


def archive(owner: "Owner", directory: str | os.PathLike[str], before: datetime | float) -> Archived | None:
    """See `Population.archive`."""
    limit = _microseconds(before)
    place = Path(directory)
    owner.writer()  # an error if it is open for reading only
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(20, "directory must not be a file", str(place))
    place.mkdir(parents=True, exist_ok=True)
    while True:
        owner.wait_until_rebuilt()
        with owner.retaining:
            made = _try_to_archive(owner, place, limit)
        if made is not _AGAIN:
            return made


_AGAIN: Any = object()
"""Somebody was forgotten meanwhile."""


def _try_to_archive(owner: "Owner", directory: Path, limit: int) -> Archived | None:
    store, number = owner.store, owner.number
    with owner.settled() as present:
        forgotten_at, base = present.forgotten_at, base_of(store, number)
        seq = present.seq
    last = at = 0
    for row in store.read(number, base.seq, seq):
        if row.at >= limit:
            break
        last, at = row.seq, row.at
    if not last:
        return None
    path = archives.new_path(directory, owner.name, number, base.seq + 1, last)
    # Noted before it is written: if that is interrupted, the next process to open the population deletes it.
    _amend(owner, litter=(*base.litter, str(path)))
    plan = snapshots.plan_of(store, number)
    if plan is not None and plan.until > last:  # the base is to be of use to the policy in force now
        fold = snapshots.from_base(store, number, base, plan)
        snapshots.catch_up(fold, store, number, last, is_base=True)
    else:
        fold = snapshots.load(store, number, last)
    seen = _Seen(base)
    checksum = archives.write(
        path,
        seen.watch(fold, store.read(number, base.seq, last)),
        lambda digests: archives.with_wholes(digests, lambda one: store.arms(number, one)),
    )
    new = msgspec.structs.replace(
        base,
        seq=last,
        at=at,
        joined=tuple(seen.joined.items()),
        imports=seen.imports,
        archives=(*base.archives, Archive(base.seq + 1, last, str(path), checksum, home=store.home)),
    )
    with owner.settled() as present:
        if present.forgotten_at != forgotten_at:
            _delete([path])
            return _AGAIN  # type: ignore[no-any-return]
        later = [(row.decision, decode(row.body)) for row in store.read(number, last)]
        # What is still awaited must be found, and the decisions that remaining records refer to.
        keep = sorted({*fold.pending, *(decision for decision, _ in later if decision is not None)})
        needed = {record.arms for _, record in later if isinstance(record, Decided | Catalogue)}
        begun = {record.id for _, record in later if isinstance(record, Decided)}
        for decision in set(keep) - begun:
            decided = decode(store.find(number, decision)[0].body)
            if isinstance(decided, Decided):
                needed.add(decided.arms)
        unneeded = _unneeded_arms(owner, fold, seen.arms, needed)
        part = ArchivedPart(last, pack_base(new), snapshots.pack(fold), keep, unneeded)
        store.drop(owner.lease, part)
        owner.base = new
        owner.commands.clear()
    for epoch, seq in store.snapshots(number):
        if seq < last:
            store.delete_snapshot(number, epoch, seq)
    return Archived(str(path), base.seq + 1, last, datetime.fromtimestamp(at / 1e6, UTC))


class _Seen:
    """What is worth knowing of rows that are archived."""

    def __init__(self, base: Base) -> None:
        self.joined = dict(base.joined)
        self.imports = dict(base.imports)
        self.arms: set[bytes] = set()

    def watch(self, fold: Fold, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            record = decode(row.body)
            match record:
                case Joined():
                    self.joined[hash_of_joining(fold, row, record)] = record.agent
                case Decided() | Catalogue():
                    self.arms.add(record.arms)
                case Observed() if record.id and (found := IMPORTED.fullmatch(record.id)):
                    file, line = found[1], int(found[2])
                    self.imports[file] = max(line, self.imports.get(file, 0))
            yield row


def _unneeded_arms(owner: "Owner", fold: Fold, archived: set[bytes], needed: set[bytes]) -> list[bytes]:
    """Sets of arms that only archived rows refer to."""
    if fold.catalogue is not None:
        needed.add(fold.catalogue)

    def find(digest: bytes) -> bytes | None:
        return owner.store.arms(owner.number, digest)

    stay = {digest for digest, _ in archives.with_wholes(needed, find)}
    return sorted({digest for digest, _ in archives.with_wholes(archived, find)} - stay)


def _microseconds(before: datetime | float) -> int:
    if isinstance(before, datetime):
        if before.tzinfo is None:
            raise ValueError(f"before must have a time zone, got {before.isoformat()}")
        return math.floor(before.timestamp() * 1e6)
    return math.floor(validation.number("before", before, low=0.0, high=1e12) * 1e6)


# Forgetting


def base_without(owner: "Owner", agents: set[int]) -> tuple[bytes, bytes] | None:
    """The base, its samples of some agents withdrawn, to be stored at once; None without a base.

    Their rows in the archives are marked, for `clean`.
    """
    store, number = owner.store, owner.number
    base = base_of(store, number)
    if not base.seq:
        return None
    fold = snapshots.from_base(store, number, base)
    there = tuple(sorted(agent for agent in agents if agent < len(fold.called)))
    if there:
        fold.forget(Forgotten(there))
    marked = tuple(
        msgspec.structs.replace(one, wipe=tuple(sorted({*one.wipe, *there}))) for one in base.archives
    )
    new = msgspec.structs.replace(
        base,
        joined=tuple((hashed, agent) for hashed, agent in base.joined if agent not in agents),
        archives=marked if there else base.archives,
    )
    return pack_base(new), snapshots.pack(fold)


def needs_cleaning(base: Base) -> bool:
    """Whether files hold a forgotten person, or are of no use."""
    return bool(base.litter) or any(one.wipe and archives.is_there(one) for one in base.archives)


def clean(owner: "Owner") -> None:
    """Write archives again without the people who were forgotten, and make the base from them.

    Archives that cannot be reached now stay marked, and the base stays the one that their samples were
    withdrawn from.
    """
    store, number = owner.store, owner.number
    with owner.retaining:
        with owner.alone():
            base = base_of(store, number)
            if not needs_cleaning(base):
                return
            targets = {
                one: archives.new_path(Path(one.path).parent, owner.name, number, one.first, one.last)
                for one in base.archives
                if one.wipe and archives.is_there(one)
            }
            _delete(base.litter)
            started = _amend(owner, litter=tuple(map(str, targets.values())))
        done = tuple(
            archives.rewrite(one, targets[one], store.home) if one in targets else one
            for one in base.archives
        )
        state = None
        if targets and all(archives.is_there(one) and not one.wipe for one in done):
            plan = snapshots.plan_of(store, number)
            state = snapshots.pack(snapshots.from_archives(done, base.seq, plan))
        # The store that this one is a copy of still needs its files; people are forgotten there by its owner.
        old = tuple(one.path for one in targets if store.is_home(one.home))
        with owner.alone():
            if base_of(store, number) != started:
                return  # another person was forgotten meanwhile: it will be done again
            _amend(owner, state, archives=done, litter=old)
        _delete(old)
        with owner.alone():
            left = tuple(one for one in base_of(store, number).litter if one not in old)
            _amend(owner, litter=left)


def _amend(owner: "Owner", state: bytes | None = None, **changes: Any) -> Base:
    """Change the base, and its state if it is given."""
    with owner.alone():
        base = msgspec.structs.replace(base_of(owner.store, owner.number), **changes)
        owner.store.set_base(owner.lease, pack_base(base), state)
        owner.base = base
        return base


def _delete(paths: Any) -> None:
    for path in paths:
        for one in (Path(path), archives.part(path)):
            with contextlib.suppress(OSError):
                one.unlink(missing_ok=True)
