"""Journals in memory: for trying things out, for tests, and as the shortest store to read."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shoal.live.journal.records import Row
from shoal.live.journal.stores.base import ArchivedPart, Batch, Lease, Snapshot, Store, Traces
from shoal.live.protocol.errors import NotOwnerError, UnavailableError, UnknownError


class _Journal:
    """What is kept of one population."""

    def __init__(self) -> None:
        self.epoch = 0
        self.owner = ""
        self.first = 1
        """Sequence number of the first row that is still there."""
        self.rows: list[tuple[Any, ...]] = []
        """Rows as plain tuples: the garbage collector soon stops looking at those."""
        self.about: dict[str, list[int]] = {}
        """Sequence numbers of the rows about each decision."""
        self.arms: dict[bytes, bytes] = {}
        self.gone: set[bytes] = set()
        self.snapshots: dict[tuple[int, int], bytes] = {}
        self.base: tuple[bytes, bytes] | None = None
        self.kept: dict[int, tuple[Any, ...]] = {}
        """Rows before the first, about decisions that awaited rewards when they were dropped."""

    @property
    def last_seq(self) -> int:
        return self.first + len(self.rows) - 1

    def row(self, seq: int) -> tuple[Any, ...]:
        return self.kept[seq] if seq < self.first else self.rows[seq - self.first]

    def replace(self, row: Row) -> None:
        self.about.pop(Row._make(self.row(row.seq)).decision or "", None)
        if row.seq < self.first:
            self.kept[row.seq] = tuple(row)
        else:
            self.rows[row.seq - self.first] = tuple(row)


class MemoryStore(Store):
    """See the module. Everything is gone when the process ends."""

    is_immediate = True

    def __init__(self) -> None:
        self.url = ":memory:"
        self._numbers: dict[str, int] = {}
        self._journals: list[_Journal] = []

    def populations(self) -> dict[str, int]:
        return dict(sorted(self._numbers.items()))

    def create(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._journals)
            self._journals.append(_Journal())
        return self._numbers[name]

    def take(self, population: int, owner: str, lease: float) -> Lease:
        if not 0 <= population < len(self._journals):
            raise UnknownError(f"there is no population number {population}")
        journal = self._journals[population]
        journal.epoch, journal.owner = journal.epoch + 1, owner
        return Lease(population, journal.epoch, journal.last_seq, owner)

    def renew(self, leases: Iterable[Lease], lease: float) -> dict[int, str]:
        return {}

    def release(self, lease: Lease) -> None:
        return

    def append(self, batches: Sequence[Batch], lease: float) -> list[Exception | None]:
        return [self._append(batch) for batch in batches]

    def _append(self, batch: Batch) -> Exception | None:
        (population, epoch, last_seq, _), rows, arms = batch
        journal = self._journals[population]
        if journal.epoch != epoch:
            return NotOwnerError(f"the population was taken over by {journal.owner}")
        if journal.last_seq != last_seq:
            if list(self.read(population, last_seq)) == list(rows):
                return None  # it is there already
            return UnavailableError(f"the journal is at record {journal.last_seq}, not {last_seq}")
        journal.rows.extend(map(tuple, rows))
        for row in rows:
            if row.decision is not None:
                journal.about.setdefault(row.decision, []).append(row.seq)
        journal.arms.update(arms)
        return None

    def last_seq(self, population: int) -> int:
        return self._journals[population].last_seq

    def read(self, population: int, after: int, upto: int | None = None) -> Iterator[Row]:
        journal = self._journals[population]
        last = journal.last_seq if upto is None else upto
        first, end = (max(seq + 1 - journal.first, 0) for seq in (after, last))
        kept = [row for seq, row in journal.kept.items() if after < seq <= last]
        return map(Row._make, kept + journal.rows[first:end])

    def find(self, population: int, decision: str) -> list[Row]:
        journal = self._journals[population]
        return [Row._make(journal.row(seq)) for seq in journal.about.get(decision, ())]

    def arms(self, population: int, digest: bytes) -> bytes | None:
        return self._journals[population].arms.get(digest)

    def has_gone(self, population: int, hashes: Sequence[bytes]) -> bool:
        return not self._journals[population].gone.isdisjoint(hashes)

    def gone(self, population: int) -> list[bytes]:
        return sorted(self._journals[population].gone)

    def forget(self, batch: Batch, traces: Traces, lease: float) -> None:
        if refused := self._append(batch):
            raise refused
        journal = self._journals[batch.lease.population]
        for row in traces.tombstones:
            journal.replace(row)
        if traces.base is not None:
            journal.base = traces.base
        journal.gone.update(traces.hashes)
        for digest in traces.arms:
            journal.arms.pop(digest, None)

    def scrub(self) -> None:
        return

    def base(self, population: int) -> bytes | None:
        found = self._journals[population].base
        return None if found is None else found[0]

    def base_state(self, population: int) -> bytes | None:
        found = self._journals[population].base
        return None if found is None else found[1]

    def set_base(self, lease: Lease, base: bytes, state: bytes | None = None) -> None:
        journal = self._journals[lease.population]
        if journal.epoch != lease.epoch:
            raise NotOwnerError("the population was taken over")
        journal.base = (base, state if state is not None else journal.base[1] if journal.base else b"")

    def drop(self, lease: Lease, part: ArchivedPart) -> None:
        self.set_base(lease, part.base, part.state)
        journal = self._journals[lease.population]
        end = max(0, part.upto + 1 - journal.first)
        dropped = [Row._make(row) for row in [*journal.kept.values(), *journal.rows[:end]]]
        kept = set(part.keep)
        journal.kept = {row.seq: tuple(row) for row in dropped if row.decision in kept}
        for row in dropped:
            if row.decision is not None and row.decision not in kept:
                stay = [seq for seq in journal.about.pop(row.decision, ()) if seq > part.upto]
                if stay:
                    journal.about[row.decision] = stay
        del journal.rows[:end]
        journal.first += end
        for digest in part.arms:
            journal.arms.pop(digest, None)

    def epoch(self, population: int) -> int:
        return self._journals[population].epoch

    def save_snapshot(self, population: int, snapshot: Snapshot) -> None:
        journal = self._journals[population]
        if snapshot.epoch == journal.epoch:
            journal.snapshots[snapshot.epoch, snapshot.seq] = snapshot.content

    def snapshots(self, population: int) -> list[tuple[int, int]]:
        return sorted(self._journals[population].snapshots, key=lambda one: (one[1], one[0]), reverse=True)

    def load_snapshot(self, population: int, epoch: int, seq: int) -> bytes | None:
        return self._journals[population].snapshots.get((epoch, seq))

    def delete_snapshot(self, population: int, epoch: int, seq: int) -> None:
        self._journals[population].snapshots.pop((epoch, seq), None)

    def now(self) -> int:
        return time.time_ns() // 1000

    def nbytes(self) -> int:
        return sum(len(row[-1]) for journal in self._journals for row in journal.rows)

    def close(self) -> None:
        return
