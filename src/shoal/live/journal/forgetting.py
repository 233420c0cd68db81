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


class Trail:
    """What is left of some agents in a journal: read in parts, the last of them while nobody else acts."""

    def __init__(self, store: Store, number: int, fold: Fold, agents: set[int]) -> None:
        self._store, self._number, self._fold, self.agents = store, number, fold, agents
        self._seq = 0
        self._theirs: set[bytes] = set()
        self._others: set[bytes] = set()
        self._tombstones: list[Row] = []
        self._hashes: list[bytes] = []

    def read_on(self) -> None:
        """Read what was recorded since."""
        for row in self._store.read(self._number, self._seq):
            self._seq = row.seq
            record = decode(row.body)
            if isinstance(record, Decided | Catalogue):
                (self._theirs if row.agent in self.agents else self._others).add(record.arms)
            if row.agent not in self.agents:
                continue
            if isinstance(record, Joined):
                self._hashes.append(hash_of_joining(self._fold, row, record))
            if row.decision is not None:
                self._hashes.append(keyed_hash(self._fold, "decision", row.decision))
            self._tombstones.append(tombstone(row))

    def traces(self, present: Fold) -> Traces:
        """Tombstones for their rows, hashes of their ids, and arms that only they saw."""
        used = set() if present.catalogue is None else {present.catalogue}  # its record may be archived
        return Traces(self._tombstones, self._hashes, sorted(self._theirs - self._others - used))


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
