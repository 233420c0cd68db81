"""Follows a population's journal and keeps what the page draws over time, in bounded memory.

A follower starts `RECENT` records before the end and reads on from there, a second's worth at a time; no
record is read twice. Numbers go into rings of time slots: the last quarter of an hour in slots of five
seconds, six hours in minutes, a week in quarters of an hour.
"""

import bisect
import threading
from array import array
from collections import OrderedDict
from typing import NamedTuple

import msgspec
import numpy as np

from shoal.core.types import Integers, Matrix
from shoal.live.journal.records import (
    Cancelled,
    Catalogue,
    Contested,
    Decided,
    Forgotten,
    Joined,
    Missed,
    Observed,
    Opened,
    Rewarded,
    Row,
    Settings,
    Tombstone,
    decode,
)
from shoal.live.journal.tally import dividend
from shoal.live.population.population import Population
from shoal.live.protocol.errors import JournalError

RECENT = 50_000
"""How many records before the end a follower starts, and starts again if it falls behind."""
AT_ONCE = 5_000
"""Records read together; between batches, other threads get their turn."""
RINGS = {5: 180, 60: 360, 900: 672}
"""Seconds of a slot, and how many are kept."""
AWAITED = 50_000
"""Decisions remembered until their rewards come."""
CUTS = 500_000
"""Separations remembered, for going back in time."""
ARMS = 10_000
"""Arms counted one by one."""
EVENTS = 200
"""Changes of the catalogue and of shoal's version that are remembered."""
OFFERS = 512
"""Sets of arms whose names are remembered."""
DELAYS = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0)
"""Bounds of the classes of reward delays, in seconds; there is one more class above the last."""

COLUMNS = (
    "decisions",
    "explored",
    "rewards",
    "observed",
    "missed",
    "cancelled",
    "cuts",
    "joined",
    "matched",
    "reward",
    "weight",
    "weighted",
    "dividend",
    "squares",
)
"""What is summed in each slot. `matched` counts rewards whose decisions are known here, `reward` is their
sum; `weighted` over `weight` estimates what uniformly drawn arms would have earned; `dividend` is what
sharing paid, and `squares` sums its squares."""
(DECISIONS, EXPLORED, REWARDS, OBSERVED, MISSED, CANCELLED, CUT, JOINED, MATCHED, REWARD, WEIGHT, WEIGHTED,
 DIVIDEND, SQUARES) = range(len(COLUMNS))  # fmt: skip
WIDTH = len(COLUMNS) + len(DELAYS) + 1
FINEST = min(RINGS)


class Ring:
    """Sums in time slots; new slots replace the oldest."""

    def __init__(self, step: int, length: int) -> None:
        self.step, self.length = step, length
        self._sums = np.zeros((length, WIDTH))
        self._slots = np.full(length, -1, dtype=np.int64)

    def add(self, at: int, sums: list[float]) -> None:
        """Add to the slot of a time, in seconds; a time older than all slots is ignored."""
        slot = at // self.step
        place = slot % self.length
        if self._slots[place] < slot:
            self._slots[place] = slot
            self._sums[place] = 0.0
        if self._slots[place] == slot:
            self._sums[place] += sums

    def last(self, now: float, count: int | None = None) -> tuple[Integers, Matrix]:
        """Starting times and sums of the last slots up to `now`, gaps filled with zeros."""
        end = int(now // self.step)
        slots = np.arange(end - (count or self.length) + 1, end + 1)
        places = slots % self.length
        known = self._slots[places] == slots
        return slots * self.step, np.where(known[:, None], self._sums[places], 0.0)


class _Awaited(NamedTuple):
    at: int
    agent: int
    weight: float
    own: float
    pooled: float
    arms: tuple[str, ...]
    rewards: dict[int, float]
    """By place, where a missing reward counts as a default: they count with those of earlier decisions."""


class TimelineEvent(msgspec.Struct, frozen=True):
    """A change to a population other than to its settings."""

    sequence: int
    at: float
    what: str
    by: str = ""
    """Who made it, if known."""


class Counts:
    """How often an arm was chosen, and what it earned."""

    __slots__ = ("chosen", "reward", "rewards")

    def __init__(self) -> None:
        self.chosen, self.rewards, self.reward = 0, 0, 0.0


class Follower:
    """What the page shows of one population over time. One thread feeds it; any may read under `lock`."""

    def __init__(self, population: Population, upto: int | None = None) -> None:
        self.population, self._upto = population, upto
        self.lock = threading.Lock()
        self._store, self._number = population.owner.store, population.owner.number
        self._dim = population.settings.dim
        self._begin(max(0, self._last() - RECENT))

    def _last(self) -> int:
        return self._store.last_seq(self._number) if self._upto is None else self._upto

    def _archived_until(self) -> int:
        """The last record that was archived: of earlier ones, only a few are still in the store."""
        owner = self.population.owner
        return owner.read(lambda _: owner.base.seq)

    def _begin(self, after: int) -> None:
        self.seq = after
        self.first = max(after, min(self._archived_until(), self._last()))
        """Everything after this record is known here."""
        self.rings = {step: Ring(step, length) for step, length in RINGS.items()}
        self.arms: dict[str, Counts] = {}
        self.other_arms = Counts()
        self.events: list[TimelineEvent] = []
        self.changed = self.first
        """The last record that changed settings or made an event; or `first`, as skipped records may have."""
        self.joins = array("q")
        """Sequence number of each join that was seen, in order; earlier agents have none."""
        self.cut_pairs, self.cut_seqs = array("i"), array("q")
        """Separations that were seen, two agents each, and the records that made them."""
        self._awaited: OrderedDict[str, _Awaited] = OrderedDict()
        self._offers: OrderedDict[bytes, tuple[str, ...] | None] = OrderedDict()
        # Settings from before the first row are not in the rows to come.
        self._settings = self.population.settings
        self._explore(self.population.owner.read(lambda fold: fold.explore))

    # Reading on

    def catch_up(self) -> bool:
        """Read new records; returns whether there were any."""
        last = self._last()
        if last - self.seq > 2 * RECENT:  # nobody has looked at it for a long time
            with self.lock:
                self._begin(last - RECENT)
        start = self.seq
        while self.seq < last:
            upto = min(self.seq + AT_ONCE, last)
            rows = list(self._store.read(self._number, self.seq, upto))
            with self.lock:
                self._take_all(rows)
                self.seq = upto
        return self.seq > start

    def _take_all(self, rows: list[Row]) -> None:
        slots: dict[int, list[float]] = {}
        for row in rows:
            slot = row.at // 1_000_000 // FINEST
            if (sums := slots.get(slot)) is None:
                sums = slots[slot] = [0.0] * WIDTH
            self._take(row, sums)
        for slot, sums in slots.items():
            for ring in self.rings.values():
                ring.add(slot * FINEST, sums)

    def _take(self, row: Row, sums: list[float]) -> None:
        """Count a record; `sums` are those of its time slot."""
        record = decode(row.body)
        cuts: tuple[int, ...] = ()
        match record:
            case Decided():
                sums[DECISIONS] += 1.0
                sums[EXPLORED] += record.shown[0] != record.greedy
                self._decided(row, record)
            case Rewarded():
                sums[REWARDS] += 1.0
                cuts = record.cuts
                if (known := self._awaited.get(record.id)) is not None and record.place == 0:
                    sums[len(COLUMNS) + bisect.bisect_right(DELAYS, (row.at - known.at) / 1e6)] += 1.0
                self._rewarded(record.id, record.place, record.reward, sums)
            case Missed():
                sums[MISSED] += 1.0
                cuts = record.cuts
                if record.reward is not None:
                    self._rewarded(record.id, record.place, record.reward, sums)
            case Observed():
                sums[OBSERVED] += 1.0
                cuts = record.cuts
            case Cancelled():
                sums[CANCELLED] += 1.0
                self._awaited.pop(record.id, None)
                self._count_complete(sums)
            case Joined():
                sums[JOINED] += 1.0
                self.joins.append(row.seq)
            case Tombstone() if record.agent >= 0:
                self.joins.append(row.seq)
            case Forgotten():
                self._forget(set(record.agents))
            case Settings():
                self._settings = record
                self.changed = row.seq
            case Contested():
                names = ", ".join(policy for policy, _ in record.candidates)
                self._explore(record.share if names else self.population.settings.explore)
                what = f"contest begun: {names}" if names else "contest ended"
                self._note(TimelineEvent(row.seq, row.at / 1e6, what, record.by))
            case Catalogue():
                self._note(TimelineEvent(row.seq, row.at / 1e6, "catalogue of arms changed", record.by))
            case Opened():
                self._note(TimelineEvent(row.seq, row.at / 1e6, f"opened by {record.stamp}"))
        if cuts and row.agent is not None:
            sums[CUT] += len(cuts)
            self._cut(row.seq, row.agent, cuts)

    def _explore(self, share: float) -> None:
        self._settings = msgspec.structs.replace(self._settings, explore=share)

    def _rewarded(self, decision: str, place: int, reward: float, sums: list[float]) -> None:
        known = self._awaited.get(decision)
        if known is None or place >= len(known.arms):
            return
        if self._settings.default_reward is not None:
            known.rewards[place] = reward
            self._count_complete(sums)
            return
        self._count(known, place, reward, sums)
        if len(known.arms) == 1:
            del self._awaited[decision]

    def _count_complete(self, sums: list[float]) -> None:
        """Count the decisions before the first one that still awaits a reward, as the fold does."""
        while self._settings.default_reward is not None and self._awaited:
            first = next(iter(self._awaited.values()))
            if len(first.rewards) < len(first.arms):
                return
            self._awaited.popitem(last=False)
            for place, reward in first.rewards.items():
                self._count(first, place, reward, sums)

    def _count(self, known: _Awaited, place: int, reward: float, sums: list[float]) -> None:
        counts = self._counts(known.arms[place])
        counts.rewards += 1
        counts.reward += reward
        if place == 0:  # probability and predictions are of the first arm
            sums[MATCHED] += 1.0
            sums[REWARD] += reward
            sums[WEIGHT] += known.weight
            sums[WEIGHTED] += known.weight * reward
            paid = dividend(known.own, known.pooled, reward, self._settings)
            sums[DIVIDEND] += paid
            sums[SQUARES] += paid * paid

    def _decided(self, row: Row, record: Decided) -> None:
        names = self._names(record.arms)
        arms = tuple(f"arm {place}" if names is None else names[place] for place in record.shown)
        for arm in arms:
            self._counts(arm).chosen += 1
        weight = 0.0
        by_policy = not record.mode  # not by the product's own rule
        explore = self._settings.explore
        if record.probability is not None and explore > 0.0 and by_policy:
            # p = explore / K, plus 1 − explore for the preferred arm: K is not recorded, but follows
            uniform = record.probability - (1.0 - explore) * (record.shown[0] == record.greedy)
            weight = uniform / explore / record.probability
        self._awaited[record.id] = _Awaited(row.at, record.agent, weight, record.own, record.pooled, arms, {})
        # With a default, dropping the oldest would leave clicks; there, all are in the state, too.
        if len(self._awaited) > AWAITED and self._settings.default_reward is None:
            self._awaited.popitem(last=False)

    def _cut(self, seq: int, agent: int, others: tuple[int, ...]) -> None:
        pairs = np.empty((len(others), 2), dtype=np.int32)
        pairs[:, 0], pairs[:, 1] = agent, others
        self.cut_pairs.frombytes(pairs.tobytes())
        self.cut_seqs.extend([seq] * len(others))
        if len(self.cut_seqs) > 1.25 * CUTS:  # in bulk, as dropping moves all the rest
            spare = len(self.cut_seqs) - CUTS
            self.first = self.cut_seqs[spare - 1]
            del self.cut_pairs[: 2 * spare], self.cut_seqs[:spare]

    def _counts(self, arm: str) -> Counts:
        counts = self.arms.get(arm)
        if counts is None:
            if len(self.arms) >= ARMS:
                return self.other_arms
            counts = self.arms[arm] = Counts()
        return counts

    def _names(self, digest: bytes) -> tuple[str, ...] | None:
        """Names of the arms that were on offer; None if they have none."""
        if digest not in self._offers:
            offers = self.population.owner.commands.offers
            try:
                self._offers[digest] = offers.offered_in(self._dim, digest).names
            except JournalError:  # deleted with the only agent who saw them
                self._offers[digest] = None
            if len(self._offers) > OFFERS:
                self._offers.popitem(last=False)
        return self._offers[digest]

    def _note(self, event: TimelineEvent) -> None:
        self.changed = event.sequence
        self.events.append(event)
        del self.events[:-EVENTS]

    def _forget(self, agents: set[int]) -> None:
        """Drop everything about agents that the population has forgotten."""
        self._awaited = OrderedDict((id, one) for id, one in self._awaited.items() if one.agent not in agents)
        pairs = np.array(self.cut_pairs, dtype=np.int32).reshape(-1, 2)
        stay = ~np.isin(pairs, list(agents)).any(axis=1)
        seqs = np.array(self.cut_seqs, dtype=np.int64)[stay]
        self.cut_pairs, self.cut_seqs = array("i"), array("q")
        self.cut_pairs.frombytes(pairs[stay].tobytes())
        self.cut_seqs.frombytes(seqs.tobytes())

    # Going back in time

    def cuts_after(self, seq: int) -> Integers:
        """Pairs of agents that separated after a record, shape (n, 2)."""
        with self.lock:
            start = bisect.bisect_right(self.cut_seqs, seq)
            return np.array(self.cut_pairs[2 * start :], dtype=np.int64).reshape(-1, 2)

    def cuts_before(self, seq: int, count: int) -> Integers:
        """The last `count` pairs that separated up to a record, the latest first, shape (n, 2)."""
        with self.lock:
            end = bisect.bisect_right(self.cut_seqs, seq)
            pairs = self.cut_pairs[2 * max(0, end - count) : 2 * end]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)[::-1]

    def joined_after(self, seq: int) -> int:
        """How many agents joined after a record."""
        with self.lock:
            return len(self.joins) - bisect.bisect_right(self.joins, seq)


def shown_settings(settings: Settings) -> dict[str, object]:
    """Settings as a page shows them, without the secret key of the random draws."""
    shown = msgspec.structs.asdict(settings)
    del shown["key"], shown["stamp"], shown["by"]
    return {**shown.pop("parameters"), **shown}
