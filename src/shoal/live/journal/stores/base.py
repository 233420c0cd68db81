"""What a store does. It keeps rows and hands them back; it knows nothing of what they mean.

Of each population it keeps `epoch`, `owner`, `lease_until` and `last_seq`. Every append names the owner, its
epoch and the sequence number that it goes on from, and fails if one of them has moved on (a fence): what a
process appends after another one has taken the population over is refused, however long it was frozen in
between.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import shoal
from shoal.live.journal.records import Row

SCHEMA = 1
"""Version of the tables."""
LEASE = 3.0
"""Seconds after which a population whose owner is silent may be taken over."""

_URL = re.compile(r"\w+://(?:(?P<user>[^:@/?]*)(?::[^@/]*)?(?=@))?(?P<place>@?[^@?]*)(?:\?.*)?", re.DOTALL)


class Lease(NamedTuple):
    """The right to append to a population's journal."""

    population: int
    epoch: int
    last_seq: int
    owner: str
    """Whose right it is. Epochs may repeat after a failover that lost commits; names do not."""


class Batch(NamedTuple):
    """Rows of one population to append, from one sequence number on, with the arms that they refer to."""

    lease: Lease
    """`last_seq` is what the rows go on from."""
    rows: Sequence[Row]
    arms: Sequence[tuple[bytes, bytes]]


class Snapshot(NamedTuple):
    """A kept state: bytes that stand for the fold up to `seq`."""

    epoch: int
    seq: int
    content: bytes


class Traces(NamedTuple):
    """What somebody who is to be forgotten has left in a store."""

    tombstones: Sequence[Row]
    """To replace their rows by."""
    hashes: Sequence[bytes]
    """To be kept, so that they are known to be gone."""
    arms: Sequence[bytes]
    """Digests of sets of arms to delete: only they were offered them."""
    base: tuple[bytes, bytes] | None = None
    """Replaces the base and its state, if they are in it."""


class ArchivedPart(NamedTuple):
    """The first part of a journal, which has been archived and may be deleted."""

    upto: int
    base: bytes
    state: bytes
    """After that part."""
    keep: Sequence[str]
    """Rows about these decisions stay, to be found; `read` may return them."""
    arms: Sequence[bytes]
    """Digests of sets of arms that are no longer needed."""


class PopulationOwner(NamedTuple):
    """Who owns a population."""

    number: int
    epoch: int
    owner: str
    """"" if nobody does."""
    promised: str
    """The server that should take an unowned population: it was moved there, and not taken yet."""


class Store(ABC):
    """Journals of populations. Reading methods may be called from any thread."""

    url: str
    read_only = False
    is_immediate = False
    """Whether appending takes so little time that callers do it themselves, without a thread for it."""
    is_local = True
    """Whether one process has it to itself: reading waits for no network, and no lease ends."""
    home = ""
    """Where the store is: a copy is elsewhere, though everything in it is the same."""

    def is_home(self, home: str) -> bool:
        """Whether something was written by this store, and not by one that this is a copy of.

        A store that has moved leaves none behind: what was written before is still its own.
        """
        return home in ("", self.home)

    @abstractmethod
    def populations(self) -> dict[str, int]:
        """The populations by name, with their numbers."""

    @abstractmethod
    def create(self, name: str) -> int:
        """Make a population, or find it; its number."""

    @abstractmethod
    def take(self, population: int, owner: str, lease: float) -> Lease:
        """Own a population for `lease` seconds, from now or the last append; or say who does."""

    @abstractmethod
    def renew(self, leases: Iterable[Lease], lease: float) -> dict[int, str]:
        """Keep owning populations that nothing is appended to; of those that are lost, who owns them now."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """No longer own a population, so that another process need not wait."""

    def standings(self, name: str | None = None) -> dict[str, PopulationOwner]:
        """Who owns the populations, or one; nothing from a store that one process has to itself.

        Without those whose first record is missing: they are being made, or a crash kept them from being.
        """
        return {}

    @abstractmethod
    def append(self, batches: Sequence[Batch], lease: float) -> list[Exception | None]:
        """Commit batches, each completely or not at all; of each, why not.

        Appending the same batch again after its outcome was unknown is safe: its rows are found to be there.
        Other rows in their place are not taken for them.
        """

    @abstractmethod
    def last_seq(self, population: int) -> int:
        """The last sequence number that is committed."""

    @abstractmethod
    def read(self, population: int, after: int, upto: int | None = None) -> Iterator[Row]:
        """Committed rows with sequence numbers above `after`, in order, all as of one moment."""

    @abstractmethod
    def find(self, population: int, decision: str) -> list[Row]:
        """Committed rows about a decision, in order."""

    @abstractmethod
    def arms(self, population: int, digest: bytes) -> bytes | None:
        """The bytes of a set of arms."""

    @abstractmethod
    def has_gone(self, population: int, hashes: Sequence[bytes]) -> bool:
        """Whether something with one of these hashes has been forgotten."""

    @abstractmethod
    def gone(self, population: int) -> list[bytes]:
        """All hashes of what has been forgotten."""

    @abstractmethod
    def forget(self, batch: Batch, traces: Traces, lease: float) -> None:
        """Append a batch, and wipe out traces; all or nothing."""

    @abstractmethod
    def scrub(self) -> None:
        """Leave no bytes of what was forgotten, as far as this store can."""

    @abstractmethod
    def base(self, population: int) -> bytes | None:
        """What is known of the part of the journal that was archived."""

    @abstractmethod
    def base_state(self, population: int) -> bytes | None:
        """The state after that part."""

    @abstractmethod
    def set_base(self, lease: Lease, base: bytes, state: bytes | None = None) -> None:
        """Replace the base and, if given, its state; `NotOwnerError` under another epoch."""

    @abstractmethod
    def drop(self, lease: Lease, part: ArchivedPart) -> None:
        """Set the base and delete the rows that it stands for, and sets of arms; all or nothing.

        `NotOwnerError` under another epoch.
        """

    @abstractmethod
    def epoch(self, population: int) -> int:
        """The present owner's epoch."""

    @abstractmethod
    def save_snapshot(self, population: int, snapshot: Snapshot) -> None:
        """Keep a snapshot, unless the population has another epoch by now."""

    @abstractmethod
    def snapshots(self, population: int) -> list[tuple[int, int]]:
        """Epochs and sequence numbers of the snapshots, the latest first."""

    @abstractmethod
    def load_snapshot(self, population: int, epoch: int, seq: int) -> bytes | None:
        """The bytes of a snapshot."""

    @abstractmethod
    def delete_snapshot(self, population: int, epoch: int, seq: int) -> None:
        """Delete a snapshot, if it is there."""

    @abstractmethod
    def now(self) -> int:
        """Microseconds since 1970 on the store's clock."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on disk."""

    def probe(self) -> None:
        """Commit something that changes nothing; raise if that fails."""
        return

    def free(self) -> float:
        """Bytes that are free where it is kept, as far as this process can tell."""
        return math.inf

    @abstractmethod
    def close(self) -> None:
        """Release everything."""


def other_schema(version: int) -> str:
    """Says that the tables have another version than ours."""
    return f"has schema {version}, and this is shoal {shoal.__version__}, which reads schema {SCHEMA}"


def shown_url(url: str) -> str:
    """A URL as it may be shown: without a password, and without the query, where another may be."""
    scheme, mark, _ = url.partition("://")
    if not mark:
        return url
    found = _URL.fullmatch(url)
    return f"{scheme}://…" if found is None else f"{scheme}://{found['user'] or ''}{found['place']}"
