"""Forgetting people: which rows are theirs, and what is kept of them, hashes that tell that they are gone."""

import contextlib
import hashlib

from shoal.live.journal.archives import base_of, tombstone
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import Catalogue, Decided, Joined, Row, decode
from shoal.live.journal.stores.base import Store, Traces
from shoal.live.protocol.errors import UnavailableError


def keyed_hash(fold: Fold, kind: str, text: str) -> bytes:
    """What is kept of a name or id that has been forgotten."""
    data = f"{kind}:{text}".encode()
    return hashlib.blake2b(data, key=fold.settings.key, digest_size=16).digest()


def hash_of_joining(fold: Fold, row: Row, record: Joined) -> bytes:
    """Tells an agent from another of the same name that joins after it was forgotten."""
    return keyed_hash(fold, "joined", f"{row.seq}:{row.at}:{record.name}")


def merged_into(fold: Fold, agent: int) -> int:
    """The agent that another one turned out to be; itself, usually."""
    while agent in fold.merged:
        agent = fold.merged[agent]
    return agent


def traces(store: Store, number: int, fold: Fold, agents: set[int]) -> Traces:
    """What some agents have left in the journal that is in the store."""
    tombstones, hashes = [], []
    theirs: set[bytes] = set()
    others = set() if fold.catalogue is None else {fold.catalogue}  # its record may be archived
    for row in store.read(number, 0):
        record = decode(row.body)
        if isinstance(record, Decided | Catalogue):
            (theirs if row.agent in agents else others).add(record.arms)
        if row.agent not in agents:
            continue
        if isinstance(record, Joined):
            hashes.append(hash_of_joining(fold, row, record))
        if row.decision is not None:
            hashes.append(keyed_hash(fold, "decision", row.decision))
        tombstones.append(tombstone(row))
    return Traces(tombstones, hashes, sorted(theirs - others))


def names_with(store: Store, number: int, fold: Fold, hashes: set[bytes]) -> list[str]:
    """Names of agents whose joining has one of these hashes: a restored backup brought them back."""
    base = base_of(store, number)
    agents = [agent for hashed, agent in base.joined if hashed in hashes]
    for row in store.read(number, base.seq):
        record = decode(row.body)
        if isinstance(record, Joined) and hash_of_joining(fold, row, record) in hashes:
            agents.append(record.agent)
    names = [fold.called[merged_into(fold, agent)] for agent in agents]
    return list(dict.fromkeys(name for name in names if name is not None))


def finish_forgetting(store: Store, number: int, fold: Fold) -> None:
    """Finish forgetting a person, where a crash came between the commit and the rest of the work."""
    stale = [one for one in store.snapshots(number) if one[1] < fold.forgotten_at]
    for epoch, seq in stale:
        store.delete_snapshot(number, epoch, seq)
    if stale or 0 < fold.forgotten_at == fold.seq:
        with contextlib.suppress(UnavailableError):  # a reader keeps the write-ahead file
            store.scrub()
