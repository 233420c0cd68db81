"""What the page shows of a population, as plain structs. Any thread may call these functions."""

import base64
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.core.policies.registry import find_policy, policy_names
from shoal.core.policy.cuts import CuttingPolicy
from shoal.core.types import AnyArray, Booleans, Integers, Matrix, Vector
from shoal.live.evaluation.dividends import summed
from shoal.live.evaluation.rehearsal import other_settings
from shoal.live.evaluation.sequences import BURN_IN, asymptotic
from shoal.live.journal import snapshots
from shoal.live.journal.tally import Sums
from shoal.live.population.explaining import Graph
from shoal.live.population.population import Population
from shoal.live.population.views import (
    ArmOpinion,
    Past,
    PresentAgents,
    Reader,
    Sizes,
    edges,
    explained,
    lent,
    members,
    opinions,
    sizes,
    uses,
)
from shoal.live.protocol.answers import Alarm, Dividend, NamedLender, Stopped, Switch
from shoal.live.protocol.errors import UnknownError
from shoal.live.service.dashboard.blocks import ALONE, find_blocks, keep_names, spread
from shoal.live.service.dashboard.following import (
    COLUMNS,
    CUTS,
    DELAYS,
    DIVIDEND,
    MATCHED,
    RINGS,
    SQUARES,
    Follower,
    TimelineEvent,
    shown_settings,
)

MOST_DRAWN = 500
"""Agents up to which the graph itself is sent."""
BINS = 256
"""Rows and columns of the heat map, at most."""
SAMPLE = 1_024
"""Agents asked for their neighbours, where there are too many to ask them all."""
MOST_AROUND = 2_000
"""Agents in a neighbourhood."""
MOST_OPINIONS = 12
"""Arms for which an agent's predictions are shown."""
MOST_LISTED = 100
"""Lenders, partings, agents and changes of settings listed at once."""
LONGEST = 80
"""Characters of a setting in the list of changes."""
REPLAYED = 50_000
"""Records up to which the graph of an earlier moment is computed by replay."""
RESTS = 20.0
"""A picture is cached for this many times the seconds that it took to draw."""


# Over time


class Overview(msgspec.Struct, frozen=True):
    """Sums in time slots, as columns of equal length, and the reward delays over all of them."""

    sizes: Sizes
    step: int
    """Seconds of a slot."""
    starts: list[int]
    """When each slot starts, in seconds since 1970."""
    sums: dict[str, list[float]]
    """See `following.COLUMNS`."""
    dividend: Dividend
    """What sharing has paid since the start."""
    paid: dict[str, list[float | None]]
    """Mean, low and high of the same at the end of each slot."""
    delays: list[int]
    """Rewards by their delay: one class up to each of `delay_bounds`, and one above."""
    delay_bounds: tuple[float, ...]
    since: int
    """Records up to this one were not looked at, or not all of them: some were archived."""
    archived: int
    """Records up to this one were archived."""


def overview(
    follower: Follower, step: int = 60, count: int | None = None, past: Past | None = None
) -> Overview:
    """The last slots of `step` seconds, all that are kept or `count` of them, up to now or to `past`."""
    if step not in RINGS:
        raise ValueError(f"step must be one of {', '.join(map(str, RINGS))}, got {step}")
    reader: Reader = past or follower.population.owner
    now = max(time.time(), 0.0) if past is None else past.fold.at / 1e6
    with follower.lock:
        starts, sums = follower.rings[step].last(now, count)
        since = follower.first
    total = reader.read(lambda fold: fold.tally.all())
    return Overview(
        sizes(reader),
        step,
        starts.tolist(),
        {name: rounded(sums[:, place]) for place, name in enumerate(COLUMNS)},
        summed(total, follower.population.settings),
        dict(zip(("mean", "low", "high"), paid_until(total, sums), strict=True)),
        sums[:, len(COLUMNS) :].sum(axis=0).astype(int).tolist(),
        DELAYS,
        since,
        follower.population.owner.base.seq,
    )


def paid_until(total: Sums, sums: Matrix) -> list[list[float | None]]:
    """What sharing had paid by the end of each slot, with its interval: the total less what came later."""
    terms = sums[:, [MATCHED, DIVIDEND, SQUARES]]
    before = np.array(total) - (terms.sum(axis=0) - terms.cumsum(axis=0))
    known = [Sums(round(n), paid, squares) for n, paid, squares in before.tolist()]
    lines = [(one.mean, *asymptotic(one)) if one.n >= BURN_IN else (None,) * 3 for one in known]
    return [list(column) for column in zip(*lines, strict=True)]


def rounded(values: Vector) -> list[float]:
    """Numbers for a picture: six digits are more than it can show."""
    return [float(f"{value:.6g}") for value in values.tolist()]


# Arms and settings


class Arm(msgspec.Struct, frozen=True):
    """How an arm did."""

    name: str
    chosen: int
    share: float
    rewards: int
    mean_reward: float | None


class Arms(msgspec.Struct, frozen=True):
    """The arms that were chosen, the most frequent first."""

    decisions: int
    arms: list[Arm]
    others: int
    """Arms beyond those listed."""
    since: int


def arms(follower: Follower) -> Arms:
    """Share of choices and mean reward of each arm, over the records that were followed."""
    with follower.lock:
        found = [(name, one.chosen, one.rewards, one.reward) for name, one in follower.arms.items()]
        since, uncounted = follower.first, follower.other_arms.chosen
    found.sort(key=lambda one: (-one[1], one[0]))
    total = sum(one[1] for one in found) + uncounted
    listed = [
        Arm(name, chosen, chosen / max(total, 1), rewards, reward / rewards if rewards else None)
        for name, chosen, rewards, reward in found[:MOST_LISTED]
    ]
    return Arms(total, listed, len(found) - len(listed), since)


class Moment(msgspec.Struct, frozen=True):
    """Figures and arms as they were after an earlier record."""

    overview: Overview
    arms: Arms


class Difference(msgspec.Struct, frozen=True):
    """The policy or one of its parameters, before and after a change; unset where it did not exist."""

    name: str
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET


class Change(msgspec.Struct, frozen=True):
    """Settings that a population was given."""

    sequence: int
    at: float | None
    """Seconds since 1970; None if the record is in an archive."""
    by: str
    policy: str
    differences: list[Difference]
    """From the settings before; empty for the first ones."""


class Described(msgspec.Struct, frozen=True):
    """A population's settings, and how they changed."""

    settings: dict[str, object]
    changes: list[Change]
    """Of the settings, the latest first."""
    n_changes: int
    """Their total number, including the first settings."""
    events: list[TimelineEvent]
    """Changes of the catalogue and new versions of shoal, the latest first."""
    since: int
    """Events up to this record are not listed."""
    changed: int
    """See `Follower.changed`."""
    candidates: list[str]
    """Policies that can be evaluated with their defaults."""


def settings(follower: Follower) -> Described:
    """Settings with all their changes, and other events among the records that were followed."""
    with follower.lock:
        events, since, changed = follower.events[::-1], follower.first, follower.changed
    population = follower.population
    found = population.switches
    changes = [
        Change(one.sequence, one.at, one.by, one.policy, [] if before is None else differences(before, one))
        for before, one in zip([None, *found], found, strict=False)
    ]
    return Described(
        shown_settings(population.settings),
        changes[: -MOST_LISTED - 1 : -1],
        len(changes),
        events,
        since,
        changed,
        candidates(population),
    )


def differences(before: Switch, after: Switch) -> list[Difference]:
    """What differs between two settings: first the policy, then parameters by name."""
    one = {"policy": before.policy, **before.parameters}
    two = {"policy": after.policy, **after.parameters}
    names = ["policy", *sorted((one.keys() | two.keys()) - {"policy"})]
    pairs = [(name, one.get(name, msgspec.UNSET), two.get(name, msgspec.UNSET)) for name in names]
    return [Difference(name, _brief(a), _brief(b)) for name, a, b in pairs if a != b]


def _brief(value: Any) -> Any:
    """A value that fits into a line."""
    if isinstance(value, str | list | tuple | dict) and len(text := str(value)) > LONGEST:
        return f"{text[:LONGEST]}…"
    return value


def candidates(population: Population) -> list[str]:
    """Names of the policies that `Population.evaluate` takes without parameters."""
    found = []
    for name in policy_names():
        with contextlib.suppress(Exception):  # another package's policy may fail in any way, even on import
            other_settings(population.settings, name, {})
            found.append(name)
    return found


# Agents


class AgentLine(msgspec.Struct, frozen=True):
    """An agent in a list."""

    name: str
    block: int
    samples: int
    borrowed: float
    lenders: int


class AgentPage(msgspec.Struct, frozen=True):
    """Some agents of many."""

    agents: list[AgentLine]
    found: int
    """The number of all that match."""
    start: int


class Relation(msgspec.Struct, frozen=True, array_like=True):
    """An agent that another one shares with, or did."""

    name: str
    block: int
    samples: float
    """What it lends; 0 if they have stopped sharing."""
    cut: bool


class AgentDetails(msgspec.Struct, frozen=True):
    """An agent, whom it shares with, and why."""

    name: str
    block: int
    sharing: str
    text: str
    samples: int
    borrowed: float
    lenders: list[NamedLender]
    """The most helpful first."""
    n_lenders: int
    stopped: list[Stopped]
    """The latest first."""
    n_stopped: int
    records_partings: bool
    around: list[Relation]
    """Up to `MOST_AROUND` agents: those that lend most, and those it parted from last."""
    opinions: list[ArmOpinion]
    """Up to `MOST_OPINIONS` arms of the catalogue, beginning with the one that would be chosen."""


# Who shares with whom


class Block(msgspec.Struct, frozen=True):
    """Agents that share with each other, in numbers."""

    label: int
    """−1 for agents in no block, −2 for those that share with several blocks alike."""
    agents: int
    samples: int
    within: float | None
    """Share of the pairs in it that share."""
    beyond: float | None
    """Share of the pairs with one agent in it and one outside that share."""


class BlockPair(msgspec.Struct, frozen=True, array_like=True):
    """Two blocks, or twice the same one, between which pairs of agents have parted."""

    one: int
    two: int
    pairs: int
    parted: float


class Drawing(msgspec.Struct, frozen=True, tag="graph", tag_field="kind"):
    """The graph, agent by agent."""

    sequence: int
    at: float | None
    """Time of the record, in seconds since 1970; None for now."""
    first: int
    """The earliest record that one can go back to; the last record if there is none."""
    last: int
    agents: list[str]
    labels: list[int]
    samples: list[int]
    """Of their own, now."""
    edges: str
    """Base64 of one bit per pair (0, 1), (0, 2), …, (1, 2), …, the highest bit of each byte first."""
    n_edges: int
    recent: list[tuple[int, int]]
    """The pairs that parted last, the latest first, by their places in `agents`."""
    blocks: list[Block]
    between: list[BlockPair]
    """Up to `MOST_LISTED` pairs of blocks, those with the largest share of parted pairs first."""


class HeatMap(msgspec.Struct, frozen=True, tag="heat", tag_field="kind"):
    """The graph by groups of agents, in the order of their blocks."""

    sequence: int
    at: float | None
    first: int
    last: int
    n_agents: int
    bounds: list[int]
    """Where in the order each group starts, and where the last one ends."""
    labels: list[int]
    """Block of each group."""
    cells: str
    """Base64 of one byte per pair of groups, row by row: 0 if all pairs share, otherwise the logarithm of the
    share that parted, scaled from 1 for 1e-8 to 255 for all of them."""
    asked: int
    """Agents from whose neighbours the shares were estimated; all agents if every parting is known."""
    blocks: list[Block]
    between: list[BlockPair]


class SharingPicture:
    """Who shares with whom in one population, cached until it has changed."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.population: Population = follower.population
        self._made = (-1, -1)
        self._not_before = 0.0
        self._labels = np.zeros(0, dtype=np.int64)
        """Label of each agent by its index, removed ones included."""
        self.there = PresentAgents(self._labels, [], self._labels)
        self._edges: Booleans = np.zeros((0, 0), dtype=np.bool_)
        self._sample = self._labels
        self._drawn: Drawing | HeatMap | None = None
        self._replayed: Graph | None = None
        """The graph at the moment that is drawn, for a policy that does not record cuts."""
        self._replay: tuple[int, Past, Follower] | None = None
        """The earlier moment that was asked for last."""
        self._replaying = threading.Lock()
        self._lock = threading.RLock()
        """Held while the picture is refreshed or drawn: requests come from several threads."""

    # Blocks

    def _refresh(self) -> None:
        """Find the blocks again, if something is new and the last search was long enough ago for its cost."""
        now = sizes(self.population.owner)
        key = (now.agents, now.sequence if now.cuts is None else now.cuts)
        if key == self._made or time.monotonic() < self._not_before:
            return
        began = time.monotonic()
        there = members(self.population.owner)
        n = len(there.names)
        if n <= MOST_DRAWN:
            sample = np.arange(n)
            rows = edges(self.population.owner, there.indices)
            found = find_blocks(rows, there.samples)
        else:
            size = min(n, SAMPLE)
            # one of every few that joined in succession, as groups of the heat map are formed
            bounds = np.linspace(0, n, size + 1).astype(np.int64)
            sample = np.random.default_rng(0).integers(bounds[:-1], bounds[1:])
            rows = uses(self.population.owner, there.indices[sample], there.indices)
            inner = rows[:, sample]
            found = spread(find_blocks(inner | inner.T, there.samples[sample]), rows)
        before = np.full(int(there.indices.max(initial=-1)) + 1, ALONE, dtype=np.int64)
        known = min(len(before), len(self._labels))
        before[:known] = self._labels[:known]
        labels = np.full_like(before, ALONE)
        labels[there.indices] = keep_names(found, before[there.indices])
        self.there, self._edges, self._sample, self._labels = there, rows, sample, labels
        self._made, self._drawn = key, None
        self._not_before = time.monotonic() + RESTS * (time.monotonic() - began)

    @property
    def has_cuts(self) -> bool:
        """Whether the policy cuts pairs for good, so that records say which and when."""
        return issubclass(find_policy(self.population.settings.policy), CuttingPolicy)

    @property
    def span(self) -> tuple[int, int]:
        """The first and last record that one can go back to."""
        last = self.follower.seq
        if self.has_cuts:
            return max(1, self.follower.first), last
        return (1, last) if last <= REPLAYED else (last, last)

    # Pictures

    def draw(self, at: int | None = None) -> Drawing | HeatMap:
        """The graph now or after the record `at`; as a heat map if there are many agents."""
        first, last = self.span
        if at is not None and not first <= at <= last:
            raise UnknownError(f"the page can go back to records {first}, …, {last}, got {at}")
        when = None if at is None else self._time_of(at)
        # Replayed before taking the lock, for which other pages wait.
        replayed = None if at is None or self.has_cuts else self.population.graph(at)
        with self._lock:
            self._refresh()
            self._replayed = replayed
            make = self._heat_map if len(self.there.names) > MOST_DRAWN else self._drawing
            if at is not None:
                return make(at, when, first, last)
            if self._drawn is None:
                self._drawn = make(None, None, first, last)
            return msgspec.structs.replace(self._drawn, sequence=last, first=first, last=last)

    def _time_of(self, seq: int) -> float | None:
        row = next(iter(self.population.owner.store.read(self.population.owner.number, seq - 1, seq)), None)
        return None if row is None else row.at / 1e6

    def _earlier(self, at: int) -> tuple[Integers, Booleans]:
        """Places of the agents that were there after a record, and which of them shared."""
        names = self.there.names
        if (graph := self._replayed) is not None:
            places = {name: place for place, name in enumerate(names)}
            here = [place for place, name in enumerate(graph.agents) if name in places]
            stayed = np.array([places[graph.agents[place]] for place in here], dtype=np.int64)
            return stayed, graph.edges[np.ix_(here, here)]
        together = self._edges.copy()
        one, two = self._places(self.follower.cuts_after(at)).T
        together[one, two] = together[two, one] = True
        stayed = np.flatnonzero(self._was_there(at))
        return stayed, together[np.ix_(stayed, stayed)]

    def _was_there(self, at: int) -> Booleans:
        """Whether each agent had joined by the record `at`: they join in the order of their indices."""
        n = len(self._labels) - self.follower.joined_after(at)
        return np.asarray(self.there.indices < n)

    def _places(self, pairs: Integers) -> Integers:
        """Pairs of indices as places in the picture, without agents that have left since."""
        place = np.full(max(len(self._labels), int(pairs.max(initial=-1)) + 1), -1, dtype=np.int64)
        place[self.there.indices] = np.arange(len(self.there.indices))
        found = place[pairs]
        return found[(found >= 0).all(axis=1)]

    def _drawing(self, at: int | None, when: float | None, first: int, last: int) -> Drawing:
        there = self.there
        if at is None:
            stayed, together = np.arange(len(there.names)), self._edges
            labels = self._labels[there.indices]
        else:
            stayed, together = self._earlier(at)
            now = self._labels[there.indices[stayed]]
            labels = keep_names(find_blocks(together, there.samples[stayed]), now)
        upper = np.triu_indices(len(stayed), 1)
        bits = together[upper]
        pairs = self.follower.cuts_before(last if at is None else at, MOST_LISTED)
        shown = np.full(len(there.names), -1, dtype=np.int64)
        shown[stayed] = np.arange(len(stayed))
        recent = shown[self._places(pairs)]
        apart = ~np.eye(len(stayed), dtype=np.bool_)
        return Drawing(
            last if at is None else at,
            when,
            first,
            last,
            [there.names[place] for place in stayed.tolist()],
            labels.tolist(),
            there.samples[stayed].tolist(),
            base64.b64encode(np.packbits(bits).tobytes()).decode(),
            int(np.count_nonzero(bits)),
            [(int(one), int(two)) for one, two in recent if one >= 0 and two >= 0],
            *block_tables(labels, together & apart, apart, np.ones(len(stayed)), there.samples[stayed]),
        )

    def _heat_map(self, at: int | None, when: float | None, first: int, last: int) -> HeatMap:
        there = self.there
        labels = self._labels[there.indices]
        present = np.ones(len(labels), dtype=np.bool_)
        if at is not None:
            if not self.has_cuts:
                raise UnknownError(
                    f"with more than {MOST_DRAWN} agents the page goes back in time only where the policy "
                    "separates pairs for good"
                )
            present = self._was_there(at)
        order, starts, group, group_labels = grouped(labels)
        n_groups = len(starts)
        members_of = np.bincount(group[present], minlength=n_groups).astype(np.float64)
        samples = np.bincount(group[present], there.samples[present], minlength=n_groups)
        if (cuts := self._all_cuts(at)) is not None:
            n_asked, possible = int(present.sum()), np.outer(members_of, members_of) - np.diag(members_of)
            parted = np.zeros((n_groups, n_groups))
            np.add.at(parted, tuple(group[cuts].T), 1.0)
            together = possible - parted - parted.T
        else:
            n_asked, together, possible = self._asked(at, present, order, starts, group, group_labels)
        share = np.where(possible > 0.0, 1.0 - together / np.maximum(possible, 1.0), 0.0)
        level = np.clip(255.0 + 254.0 / 8.0 * np.log10(np.maximum(share, 1e-9)), 1.0, 255.0)
        return HeatMap(
            last if at is None else at,
            when,
            first,
            last,
            int(np.count_nonzero(present)),
            [*starts.tolist(), len(labels)],
            group_labels.tolist(),
            base64.b64encode(np.where(share > 0.0, np.rint(level), 0).astype(np.uint8).tobytes()).decode(),
            n_asked,
            *block_tables(group_labels, together, possible, members_of, samples),
        )

    def _all_cuts(self, at: int | None) -> Integers | None:
        """Pairs that had parted, by place, if every one of them was seen; shape (n, 2)."""
        now, then = (
            np.unique(np.sort(self._places(self.follower.cuts_before(until, CUTS)), axis=1), axis=0)
            for until in (self.follower.seq, self.follower.seq if at is None else at)
        )
        # Another policy finds its own cuts in old records; those are not in the journal.
        is_known = self.has_cuts and len(self.population.switches) == 1 and len(now) >= self._made[1]
        return then if is_known else None

    def _asked(
        self,
        at: int | None,
        present: Booleans,
        order: Integers,
        starts: Integers,
        group: Integers,
        group_labels: Integers,
    ) -> tuple[int, AnyArray, AnyArray]:
        """How many agents were asked; for each two groups, the pairs that share and all pairs asked about."""
        n_groups = len(starts)
        members_of = np.bincount(group[present], minlength=n_groups).astype(np.float64)
        asked = self._sample[present[self._sample]]
        rows = self._edges[present[self._sample]]
        if at is not None:
            rows = rows & present
        # the number of agents in each group that each asked agent shares with, shape (asked, groups)
        ends = [*starts[1:].tolist(), len(order)]
        parts = [order[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        by_group = np.stack([np.count_nonzero(rows[:, one], axis=1) for one in parts], axis=1)
        by_group = by_group.astype(np.float64)
        by_group[np.arange(len(asked)), group[asked]] -= 1.0  # itself
        counted = np.zeros((n_groups, n_groups), dtype=np.float64)
        np.add.at(counted, group[asked], by_group)
        n_asked = np.bincount(group[asked], minlength=n_groups).astype(np.float64)
        pairs = n_asked[:, None] * members_of[None, :] - np.diag(n_asked)
        together, possible = counted + counted.T, pairs + pairs.T
        if at is not None:
            one, two = group[self._places(self.follower.cuts_after(at))].T
            again = np.zeros((n_groups, n_groups), dtype=np.float64)
            np.add.at(again, (one, two), 1.0)
            all_pairs = np.maximum(np.outer(members_of, members_of), 1.0)
            together = together + possible * np.minimum((again + again.T) / all_pairs, 1.0)
        if not possible.all():  # nobody was asked about two groups: use their blocks' shares
            of_block = (group_labels[:, None] == np.unique(group_labels)).astype(np.float64)
            wide = [of_block @ (of_block.T @ one @ of_block) @ of_block.T for one in (together, possible)]
            together, possible = (
                np.where(possible > 0.0, a, b) for a, b in zip((together, possible), wide, strict=True)
            )
        return len(asked), np.minimum(together, possible), possible

    # Earlier moments, by replay

    def _past(self, at: int) -> tuple[Past, Follower]:
        """The state after the record `at`, and what a page would have followed until then."""
        last = self.follower.seq
        if not 1 <= at <= last:
            raise UnknownError(f"the population has records 1, …, {last}, got at = {at}")
        if last > REPLAYED:
            raise UnknownError(
                f"figures and tables of earlier moments take a journal of up to {REPLAYED:,} records"
            )
        with self._replaying:
            if self._replay is None or self._replay[0] != at:
                owner = self.population.owner
                past = Past(snapshots.load(owner.store, owner.number, at))
                follower = Follower(self.population, at)
                follower.catch_up()
                self._replay = at, past, follower
            return self._replay[1:]

    def moment(self, at: int) -> Moment:
        """Figures and arms after the record `at`."""
        past, follower = self._past(at)
        return Moment(overview(follower, 5, past=past), arms(follower))

    # Agents

    def page(
        self, search: str = "", start: int = 0, group: tuple[int, int] | None = None, at: int | None = None
    ) -> AgentPage:
        """Agents whose names contain `search`, or those at a range of places in the heat map's order."""
        with self._lock:
            self._refresh()
            there, labels = self.there, self._labels[self.there.indices]
        reader: Reader = self.population.owner
        if at is not None:
            reader = self._past(at)[0]
            there = members(reader)
            labels = self._labels[there.indices]
            if isinstance(drawn := self.draw(at), Drawing):
                block = dict(zip(drawn.agents, drawn.labels, strict=True))
                labels = np.array([block.get(name, ALONE) for name in there.names], dtype=np.int64)
        names = there.names
        places: Sequence[int]
        if group is not None:
            order, *_ = grouped(labels)
            places = order[group[0] : group[1]].tolist()
        else:
            wanted = search.casefold()
            places = [place for place, name in enumerate(names) if wanted in name.casefold()]
        shown = places[start : start + MOST_LISTED]
        borrowed = lent(reader, there.indices[list(shown)].tolist())
        lines = [
            AgentLine(names[place], int(labels[place]), int(there.samples[place]), one.samples, one.others)
            for place, one in zip(shown, borrowed, strict=True)
        ]
        return AgentPage(lines, len(places), start)

    def agent(self, name: str) -> AgentDetails:
        """An agent with its explanation and neighbourhood."""
        with self._lock:
            self._refresh()
            block = dict(zip(self.there.names, self._labels[self.there.indices].tolist(), strict=True))
        found = explained(self.population.owner, name, MOST_AROUND)
        half = MOST_AROUND // 2
        n_lenders = min(len(found.lenders), MOST_AROUND - min(len(found.stopped), half))
        around = [
            Relation(one.agent, block.get(one.agent, ALONE), one.samples, False)
            for one in found.lenders[:n_lenders]
        ]
        around += [
            Relation(one.agent, block.get(one.agent, ALONE), 0.0, True)
            for one in found.stopped[: MOST_AROUND - len(around)]
        ]
        return AgentDetails(
            found.agent,
            block.get(found.agent, ALONE),
            found.sharing,
            found.text,
            found.samples,
            found.borrowed,
            found.lenders[:MOST_LISTED],
            found.n_lenders,
            found.stopped[:MOST_LISTED],
            found.n_stopped,
            self.has_cuts,
            around,
            opinions(self.population.owner, name, MOST_OPINIONS),
        )


class PopulationSummary(msgspec.Struct, frozen=True):
    """A population on the first page: its last hour, minute by minute."""

    name: str
    policy: str
    sizes: Sizes
    starts: list[int]
    decisions: list[float]
    rewards: list[float]
    mean_reward: float | None
    """Of the hour."""
    dividend: Dividend
    """What sharing has paid since the start."""
    refused: int
    """See `Tick`."""
    unmatched: int
    blocks: list[Block]
    alarms: list[Alarm]
    """Some seconds old; those that call for action have the severity "fault"."""


def summary(
    picture: "SharingPicture", refused: int, unmatched: int, alarms: list[Alarm]
) -> PopulationSummary:
    """The last hour of a population."""
    follower = picture.follower
    found = overview(follower, 60, 60)
    total = {name: sum(values) for name, values in found.sums.items()}
    n = total["matched"]
    return PopulationSummary(
        follower.population.name,
        follower.population.settings.policy,
        found.sizes,
        found.starts,
        found.sums["decisions"],
        found.sums["rewards"],
        total["reward"] / n if n else None,
        found.dividend,
        refused,
        unmatched,
        picture.draw().blocks,
        alarms,
    )


def grouped(labels: Integers) -> tuple[Integers, Integers, Integers, Integers]:
    """Agents in the order of their blocks, in at most `BINS` groups that each lie within a block.

    Returns
    -------
    order, starts, group, group_labels
        Agents in order; where in it each group starts; the group of each agent; the block of each group.
    """
    n = len(labels)
    found, counts = np.unique(labels, return_counts=True)
    # large blocks first, loners and undecided last
    ranked = np.argsort(np.where(found < 0, found - 1, counts))[::-1]
    rank = np.empty(len(found), dtype=np.int64)
    rank[ranked] = np.arange(len(found))
    order = np.argsort(rank[np.searchsorted(found, labels)], kind="stable")
    width = -(-n // max(1, BINS - len(found)))
    starts, group_labels, start = [], [], 0
    for place in ranked.tolist():
        size = int(counts[place])
        for offset in range(0, size, width):
            starts.append(start + offset)
            group_labels.append(int(found[place]))
        start += size
    group = np.empty(n, dtype=np.int64)
    group[order] = np.searchsorted(starts, np.arange(n), side="right") - 1
    return order, np.array(starts), group, np.array(group_labels)


def _rank(block: Block) -> tuple[int, int, int]:
    """Blocks by size, then agents in no block, then the undecided."""
    return -min(block.label, 0), -block.agents, block.label


def block_tables(
    labels: Integers, together: AnyArray, possible: AnyArray, members_of: AnyArray, samples: AnyArray
) -> tuple[list[Block], list[BlockPair]]:
    """Blocks in numbers, the largest first, and the pairs that parted, the largest share first.

    Parameters
    ----------
    labels : array of shape (g,)
        The block of each group of agents; a group may be one agent.
    together, possible : arrays of shape (g, g)
        Ordered pairs of agents between each two groups: those that share, and all that were looked at.
    members_of, samples : arrays of shape (g,)
    """
    found, place = np.unique(labels, return_inverse=True)
    of_block = np.eye(len(found))[place]
    shared, pairs = (of_block.T @ one @ of_block for one in (together, possible))
    sizes, held = of_block.T @ members_of, of_block.T @ samples
    blocks = []
    for k, label in enumerate(found.tolist()):
        rest, others = shared[k].sum() - shared[k, k], pairs[k].sum() - pairs[k, k]
        within = float(shared[k, k] / pairs[k, k]) if pairs[k, k] else None
        beyond = float(rest / others) if others else None
        blocks.append(Block(label, int(sizes[k]), int(held[k]), within, beyond))
    between = []
    for one, two in np.argwhere(np.triu(pairs > shared)).tolist():
        n = sizes[one] * sizes[two] if one != two else sizes[one] * (sizes[one] - 1) / 2
        parted = n * (1.0 - shared[one, two] / pairs[one, two])
        between.append(BlockPair(int(found[one]), int(found[two]), int(n), float(parted)))
    between.sort(key=lambda one: (-one.parted / one.pairs, one.one, one.two))
    return sorted(blocks, key=_rank), between[:MOST_LISTED]
