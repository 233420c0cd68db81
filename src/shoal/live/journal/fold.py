"""The state of a population, as the fold of its journal: the one place where a record changes anything.

The owner applies each record when it makes it, recovery applies them again in the same order, and both reach
the same state, bit for bit. When many are applied, what only the policy learns from is collected and handed
to compiled code together.
"""

import math
import platform
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import llvmlite.binding
import msgspec
import numba
import numpy as np

import shoal
from shoal.core.policies.registry import find_live_policy, find_policy
from shoal.core.policy.cuts import CuttingPolicy
from shoal.core.policy.living import LivePolicy, Sharing
from shoal.core.policy.steps import BEGIN, CANCEL, FINISH, PULL
from shoal.core.types import Integers
from shoal.live.journal.known import KnownIds
from shoal.live.journal.patience import go_on
from shoal.live.journal.records import (
    AnyRecord,
    Cancelled,
    Catalogue,
    Contested,
    Corrected,
    Decided,
    Forgotten,
    Joined,
    Merged,
    Missed,
    Observed,
    Opened,
    Profiled,
    Renamed,
    Rewarded,
    Row,
    Settings,
    Shares,
    Tombstone,
    decode,
    vector,
)
from shoal.live.journal.tally import Tally, dividend
from shoal.live.protocol.errors import JournalError

Learned = TypeVar("Learned", bound=Rewarded | Missed | Observed)
RETIRED = 10_000
"""Arms that are remembered after they were retired."""
CUTS_AT_ONCE = 4_000_000
"""Pairs that a batch of samples may cut at most: the log of cuts needs room for them."""


def current_stamp() -> str:
    """Versions and machine that the last digits of all numbers depend on."""
    versions = f"shoal {shoal.__version__}, numba {numba.__version__}, numpy {np.__version__}"
    return f"{versions}, {platform.machine()} {llvmlite.binding.get_host_cpu_name()}"


def policy_parameters(policy: str, dim: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a policy that a population may have, those not given by their defaults; or an error.

    Tried out here, before anything is recorded: agents join a population by name alone.
    """
    made = find_live_policy(policy)(0, dim, **given)
    parameters = dict(made.parameters)
    for name, wanted in (("epsilon", 0), ("exploration", "ucb")):
        if parameters.get(name, wanted) != wanted:
            raise ValueError(
                f"{name} must be {wanted!r}, got {parameters[name]!r}: a population explores by `explore`, "
                "which records its probabilities"
            )
    try:
        made.add_agents(1)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"policy {policy!r} is not for populations, whose agents join one by one: {error}"
        ) from None
    return parameters


def check_default(parameters: Mapping[str, Any], default: float | None) -> None:
    """Refuse a default of missing rewards that a policy with these parameters cannot learn."""
    if parameters.get("rewards") == "binary" and default not in (None, 0, 1):
        raise ValueError(f'default_reward must be 0 or 1 with rewards="binary", got {default!r}')


class Plan(NamedTuple):
    """A policy to use from the first record on, though the journal has it only from record `until` on.

    Where a population was switched to another policy, its state is what that policy makes of all records.
    """

    settings: Settings
    until: int

    def made(self, policy: LivePolicy) -> bool:
        """Whether a policy is the one planned."""
        found = policy.parameters
        # A journal may be older than a parameter, which is then at its default.
        wanted = {one.name: one.default for one in msgspec.structs.fields(policy.Parameters)}
        wanted |= self.settings.parameters
        return (
            type(policy) is find_policy(self.settings.policy)
            and wanted.keys() == found.keys()
            and all(np.array_equal(wanted[key], found[key]) for key in wanted)
        )


class Standing:
    """What is recorded of one decision."""

    __slots__ = ("at", "cancelled", "decided", "learned", "missed", "moments", "rewards", "seq")

    def __init__(self, seq: int, at: int, decided: Decided) -> None:
        self.seq, self.at, self.decided = seq, at, decided
        self.rewards: dict[int, float] = {}
        """The reward in force of each place of the ranking that has one."""
        self.learned: dict[int, int] = {}
        """The policy's round in which it was learned."""
        self.moments: dict[int, tuple[float, float] | None] = {}
        """What it was learned with, where it is a click."""
        self.missed: set[int] = set()
        """Places whose reward did not come in time; those with a default also have a reward."""
        self.cancelled = False

    def is_open(self, place: int) -> bool:
        """Whether a reward is still due for this place."""
        return not (self.cancelled or place in self.rewards or place in self.missed)

    @property
    def is_pending(self) -> bool:
        """Whether any reward is still due."""
        return any(map(self.is_open, range(len(self.decided.shown))))

    def x(self, place: int) -> bytes:
        """Features of the arm at a place, as bytes."""
        if len(self.decided.shown) == 1:
            return self.decided.x
        size = len(self.decided.x) // len(self.decided.shown)
        return self.decided.x[place * size : (place + 1) * size]

    def note(self, record: AnyRecord) -> None:
        """Take in a record about this decision."""
        match record:
            case Rewarded():
                self.rewards[record.place] = record.reward
                self.learned[record.place] = record.round
                self.moments[record.place] = record.moments
                self.missed.discard(record.place)  # what counts now was reported
            case Missed():
                self.missed.add(record.place)
                if record.reward is not None:
                    self.rewards[record.place] = record.reward
                    self.learned[record.place] = record.round
                    self.moments[record.place] = record.moments
            case Corrected():
                self.rewards[record.place] = record.new
                self.moments[record.place] = record.moments
                self.missed.discard(record.place)
            case Cancelled():
                self.cancelled = True


def standing_of(rows: list[Row]) -> Standing:
    """What the rows of one decision say, in order."""
    decided = decode(rows[0].body)
    if not isinstance(decided, Decided):
        raise JournalError(f"record {rows[0].seq} is about a decision that is not recorded")
    standing = Standing(rows[0].seq, rows[0].at, decided)
    for row in rows[1:]:
        standing.note(decode(row.body))
    return standing


class Fold:
    """A population's state after the records up to `seq`."""

    policy: LivePolicy
    settings: Settings

    def __init__(self, plan: Plan | None = None, *, checks: bool = False) -> None:
        self.plan = plan
        self.checks = checks
        """Whether cuts that the same version recorded on this kind of machine are computed again."""
        self.seq = 0
        self.at = 0
        self.stamp = ""
        self.names: dict[str, int] = {}
        """Agents by name; those that were merged have several."""
        self.called: list[str | None] = []
        """The name of each agent, None once forgotten or merged into another."""
        self.merged: dict[int, int] = {}
        """Agents that turned out to be another one, with that one."""
        self.sharing: list[Sharing] = []
        self.observed: list[int] = []
        """Rewards that each agent has had."""
        self.tally = Tally()
        """What sharing paid them."""
        self.history: list[tuple[int, Settings]] = []
        """The settings so far, each with the record from which they were in force."""
        self.pending: dict[str, Standing] = {}
        """Decisions that await rewards, the oldest first."""
        self.uncounted: OrderedDict[str, Standing] = OrderedDict()
        """Where a missing reward counts as a default: all decisions from the first pending one on.

        Only quick rewards are known of them, and quick ones are clicks; so sums do not count them yet.
        """
        self.known = KnownIds()
        """Ids that the journal may hold; one that is not here need not be looked up."""
        self.catalogue: bytes | None = None
        self.retired: dict[str, int] = {}
        """When arms were taken out of it, the latest of them."""
        self.contest: tuple[int, Contested] | None = None
        """The contest that is on, with the record that began it."""
        self.forgotten_at = 0
        """Sequence number of the last record that forgot a person."""
        self.cut_log = array("q")
        """For each record that separated agents: the policy's round, its sequence number and its time."""
        self.differences: list[str] = []
        """Where recorded cuts differ from those computed again; under one stamp there are none."""
        self._batch: _Batch | None = None

    # Applying records

    def apply_all(self, rows: Any) -> None:
        """Apply rows in order, many at a time."""
        for row in rows:
            go_on()
            if row.seq != self.seq + 1:
                raise JournalError(f"the journal goes on with record {row.seq} after {self.seq}")
            if self._batch is None and self.seq and (self.plan is None or row.seq > self.plan.until):
                self._batch = _Batch(self)  # before that, recorded cuts are another policy's
            try:
                record = decode(row.body)
            except msgspec.MsgspecError as error:
                raise JournalError(f"record {row.seq} cannot be read: {error}") from error
            self.apply(row.seq, row.at, record)
        self._flush()
        self._batch = None

    def apply(self, seq: int, at: int, record: AnyRecord) -> AnyRecord:
        """Apply one record; if it is refused with a ValueError, nothing has changed.

        Returns
        -------
        The record, with what was found by learning it: cuts, and the moments of a click.
        """
        match record:
            case Decided():
                standing = Standing(seq, at, record)
                for place in range(len(record.shown)):
                    self._pull(BEGIN, record.agent, standing.x(place))
                self.pending[record.id] = standing
                if self.settings.default_reward is not None:
                    self.uncounted[record.id] = standing
                self.known.add(record.id, self.settings.key)
            case Rewarded() if record.agent >= 0:
                record = self._learn(PULL, record.agent, record.x, record)
                self._count(record.agent)
                self._pay(record.agent, record.own, record.pooled, record.reward)
                if record.id in self.pending:  # a ranking of which other rewards are due
                    self.pending[record.id].note(record)
            case Rewarded() | Missed():
                record = self._settle(self._pending(record.id, seq), record)
            case Observed():
                record = self._learn(PULL, record.agent, record.x, record)
                self._count(record.agent)
                if record.id is not None:
                    self.known.add(record.id, self.settings.key)
            case Cancelled():
                standing = self._pending(record.id, seq)
                for place in range(len(standing.decided.shown)):
                    self._pull(CANCEL, standing.decided.agent, standing.x(place))
                standing.note(record)
                del self.pending[record.id]
                self._count_complete()
            case Corrected():
                self._flush()
                record = self._correct(record)
            case _:
                self._flush()
                self._change(record, at)
        if isinstance(record, Rewarded | Missed | Observed) and record.cuts:
            self.cut_log.extend((record.round, seq, at))
        self.seq, self.at = seq, max(at, self.at)
        return record

    def when_cut(self, round_: int) -> tuple[int, int] | None:
        """Sequence number and time of the first record that cut edges in a round of the policy."""
        first = bisect_left(self.cut_log[::3], round_)
        if 3 * first == len(self.cut_log) or self.cut_log[3 * first] != round_:
            return None
        return self.cut_log[3 * first + 1], self.cut_log[3 * first + 2]

    @property
    def complete_until(self) -> float:
        """The sequence number from which on decisions do not count yet; infinite if all do."""
        return next((one.seq for one in self.uncounted.values()), math.inf)

    @property
    def explore(self) -> float:
        """The share of decisions that are explored now."""
        return self.settings.explore if self.contest is None else self.contest[1].share

    def predict(self, record: Decided) -> tuple[float, float]:
        """What the agent's own samples, and the policy, predict now for the first arm of a decision."""
        self._flush()
        x = vector(record.x[: len(record.x) // len(record.shown)])
        own, pooled = self.policy.predict(record.agent, x)
        return float(own), float(pooled)

    def _pending(self, decision: str, seq: int) -> Standing:
        if decision not in self.pending:
            raise JournalError(f"record {seq} is about a decision that awaits no reward")
        return self.pending[decision]

    def _settle(self, standing: Standing, record: Rewarded | Missed) -> Rewarded | Missed:
        """A reward, or the end of the wait for one."""
        agent, x = standing.decided.agent, standing.x(record.place)
        if record.reward is None:
            self._pull(CANCEL, agent, x)
        else:
            record = self._learn(FINISH, agent, x, record)
            assert record.reward is not None  # by the branch above
            self._count(agent)
            if record.place == 0 and record.id not in self.uncounted:
                self._pay(agent, standing.decided.own, standing.decided.pooled, record.reward)
        standing.note(record)
        if not standing.is_pending:
            del self.pending[standing.decided.id]
            self._count_complete()
        return record

    def _count(self, agent: int) -> None:
        self.observed[agent] += 1
        if self.observed[agent] == self.settings.lend_after and self.sharing[agent] == "both":
            self._flush()
            self.policy.set_sharing(agent, "both")

    def _count_complete(self) -> None:
        """Count the decisions before the first one that still awaits a reward."""
        while self.uncounted:
            standing = next(iter(self.uncounted.values()))
            if standing.is_pending:
                return
            self.uncounted.popitem(last=False)
            if (reward := standing.rewards.get(0)) is not None:
                decided = standing.decided
                self._pay(decided.agent, decided.own, decided.pooled, reward)

    def _pay(self, agent: int, own: float | None, pooled: float | None, reward: float) -> None:
        if own is not None and pooled is not None:
            self.tally.add(agent, dividend(own, pooled, reward, self.settings))

    def _change(self, record: AnyRecord, at: int) -> None:
        """Whatever changes more than one agent's sums."""
        match record:
            case Settings():
                self._set(record)
            case Joined():
                self._join(record)
            case Shares():
                self.sharing[record.agent] = record.sharing
                self.policy.set_sharing(record.agent, self._mode(record.agent))
            case Profiled():
                # A policy that the population is switched to may take none, or others.
                if len(record.features) == 8 * self.policy.agent_dim:
                    self.policy.set_features(record.agent, vector(record.features))
            case Renamed():
                old = self.called[record.agent]
                if old is not None:
                    del self.names[old]
                self.names[record.name], self.called[record.agent] = record.agent, record.name
            case Merged():
                self._merge(record)
            case Forgotten():
                self.forget(record)
            case Tombstone():
                if record.agent >= 0:  # its index stays taken
                    self._add_agent(None, "both")
                    self.policy.remove_agent(record.agent, withdraw=True)
            case Catalogue():
                self.catalogue = record.arms
                self.retired |= dict.fromkeys(record.retired, at)
                for name in list(self.retired)[:-RETIRED]:
                    del self.retired[name]
            case Opened():
                self.stamp = record.stamp
            case Contested():
                self.contest = (self.seq + 1, record) if record.candidates else None

    def _set(self, record: Settings) -> None:
        if not self.seq:
            chosen = record if self.plan is None else self.plan.settings
            self.policy = find_live_policy(chosen.policy)(0, chosen.dim, **chosen.parameters)
            self.policy.warns = False  # the population warns, before anything is changed
        elif (self.plan is None or self.seq + 1 >= self.plan.until) and not Plan(record, 0).made(self.policy):
            raise JournalError(f"record {self.seq + 1} switches to a policy that must see the journal first")
        self.settings, self.stamp, self.contest = record, record.stamp, None
        self.history.append((self.seq + 1, record))

    def _join(self, record: Joined) -> None:
        if record.agent != len(self.called) or record.name in self.names:
            raise JournalError(f"an agent {record.agent} joins, where {len(self.called)} would be next")
        self._add_agent(record.name, record.sharing)
        self.names[record.name] = record.agent

    def _add_agent(self, name: str | None, sharing: Sharing) -> None:
        self.called.append(name)
        self.sharing.append(sharing)
        self.observed.append(0)
        self.tally.join()
        agent = len(self.called) - 1
        self.policy.add_agents(1)
        if (mode := self._mode(agent)) != "both":
            self.policy.set_sharing(agent, mode)

    def _mode(self, agent: int) -> Sharing:
        """How an agent shares now: newcomers may have to prove themselves first."""
        waits = self.observed[agent] < self.settings.lend_after
        return "borrow" if self.sharing[agent] == "both" and waits else self.sharing[agent]

    def _merge(self, record: Merged) -> None:
        agent, other = record.agent, record.other
        self.policy.merge(agent, other)
        for name, index in self.names.items():
            if index == other:
                self.names[name] = agent
        self.called[other], self.merged[other] = None, agent
        self.observed[agent] += self.observed[other]
        self.tally.merge(agent, other)
        self.policy.set_sharing(agent, self._mode(agent))
        for standing in (*self.pending.values(), *self.uncounted.values()):
            if standing.decided.agent == other:
                standing.decided = msgspec.structs.replace(standing.decided, agent=agent)

    def forget(self, record: Forgotten) -> None:
        """Withdraw all samples of some agents, their names and their pending decisions."""
        for agent in record.agents:
            self.called[agent] = None
            self.tally.forget(agent)
            if not self.policy.state.common.withdrawn[agent]:
                self.policy.remove_agent(agent, withdraw=True)
        gone = set(record.agents)
        self.names = {name: agent for name, agent in self.names.items() if agent not in gone}
        self.pending = {key: one for key, one in self.pending.items() if one.decided.agent not in gone}
        left = ((key, one) for key, one in self.uncounted.items() if one.decided.agent not in gone)
        self.uncounted = OrderedDict(left)
        self._count_complete()
        self.forgotten_at = self.seq + 1

    def _correct(self, record: Corrected) -> Corrected:
        """Exact, as samples enter as sums; nothing if the policy has dropped the sample since.

        A click that was learned before a switch of policies is corrected by what is known now.
        """
        x, moments = vector(record.x), self._recorded_moments(record)
        if self.policy.clicks and moments is None:
            moments = self.policy.foresee(record.agent, x)
        record = msgspec.structs.replace(record, moments=moments)
        if self.policy.holds(record.agent, x, record.old, record.round, moments=moments):
            self.policy.correct(record.agent, x, record.old, record.new, moments=moments)
        standing = self.uncounted.get(record.id) or self.pending.get(record.id)
        if standing is not None:
            standing.note(record)
        if record.own is not None and record.pooled is not None and record.id not in self.uncounted:
            old, new = (
                dividend(record.own, record.pooled, reward, self.settings)
                for reward in (record.old, record.new)
            )
            self.tally.replace(record.agent, old, new)
        return record

    # Learning, one by one or together

    def _recorded_moments(
        self, record: Rewarded | Missed | Corrected | Observed
    ) -> tuple[float, float] | None:
        """What a click was learned with, if this policy learned it."""
        is_own = self.plan is None or self.seq >= self.plan.until
        return record.moments if self.policy.clicks and is_own else None

    def _learn(self, kind: int, agent: int, features: bytes, record: Learned) -> Learned:
        """Learn the reward of a record, and complete it."""
        moments = self._recorded_moments(record)
        cuts = self._pull(kind, agent, features, record.reward or 0.0, record.cuts, moments)
        if self.policy.clicks and self._batch is None:
            moments = self.policy.last_moments
        if (cuts, moments) == (record.cuts, record.moments):
            return record
        return msgspec.structs.replace(record, cuts=cuts, moments=moments)

    def _pull(
        self,
        kind: int,
        agent: int,
        features: bytes,
        reward: float = 0.0,
        cuts: tuple[int, ...] = (),
        moments: tuple[float, float] | None = None,
    ) -> tuple[int, ...]:
        if self._batch is not None:
            self._batch.add(kind, agent, features, reward, cuts, moments)
            return cuts
        before, x = self.count_cuts(), vector(features)
        if kind == BEGIN:
            self.policy.begin(agent, x)
        elif kind == CANCEL:
            self.policy.cancel(agent, x)
        else:
            self.policy.update(agent, x, reward, begun=kind == FINISH, moments=moments)
        return self.cuts_since(before, agent)

    def count_cuts(self) -> int:
        """How many pairs the policy has separated, if it is one that does so for good."""
        policy: Any = self.policy
        return int(policy.state.cuts.used[0]) if isinstance(policy, CuttingPolicy) else 0

    def ordered_cuts(self, before: int) -> Integers:
        """The pairs cut since there were `before`, sorted, shape (n, 2). Also sorts each round in the log.

        In which order a policy finds the cuts of a round depends on what it has at hand, which a loaded one
        computes anew. Rewards that were begun before share the round of the last decision.
        """
        policy: Any = self.policy
        now = self.count_cuts()
        log, rounds = policy.state.cuts.pairs, policy.state.cuts.rounds[:now]
        found: Integers = log[before:now][np.lexsort(log[before:now].T[::-1])]
        if now > before:
            first = int(np.searchsorted(rounds, rounds[before]))
            pairs = log[first:now]
            pairs[:] = pairs[np.lexsort((pairs[:, 1], pairs[:, 0], rounds[first:]))]
        return found

    def cuts_since(self, before: int, agent: int) -> tuple[int, ...]:
        """Agents that `agent` was separated from since there were `before` cuts."""
        if self.count_cuts() == before:
            return ()
        pairs = self.ordered_cuts(before)
        return tuple((pairs.sum(axis=1, dtype=np.int64) - agent).tolist())

    def _flush(self) -> None:
        if self._batch is not None:
            self._batch.play()


class _Batch:
    """Pulls that the policy has yet to play."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.stamp = current_stamp()
        self.clear()

    def clear(self) -> None:
        self.kinds: list[int] = []
        self.agents: list[int] = []
        self.xs: list[bytes] = []
        self.rewards: list[float] = []
        self.moments: list[tuple[float, float]] = []
        self.cuts: list[tuple[int, int]] = []
        """Position of a pull, and from whom its agent was separated."""
        self.size = 0

    def add(
        self,
        kind: int,
        agent: int,
        x: bytes,
        reward: float,
        cuts: tuple[int, ...],
        moments: tuple[float, float] | None,
    ) -> None:
        if not self.kinds:  # nobody joins between pulls that are played together
            self.size = max(1, min(4096, CUTS_AT_ONCE // max(1, len(self.fold.called))))
        if cuts:
            self.cuts.extend((len(self.kinds), other) for other in cuts)
        self.kinds.append(kind)
        self.agents.append(agent)
        self.xs.append(x)
        self.rewards.append(reward)
        self.moments.append(moments or (math.nan, math.nan))
        if len(self.kinds) >= self.size:
            self.play()

    def play(self) -> None:
        if not self.kinds:
            return
        policy, before = self.fold.policy, self.fold.count_cuts()
        xs = vector(b"".join(self.xs)).reshape(len(self.xs), -1)
        moments = self.moments if policy.clicks else None
        if not isinstance(policy, CuttingPolicy):
            policy.replay(self.kinds, self.agents, xs, self.rewards, moments=moments)
        elif self.fold.stamp == self.stamp and not self.fold.checks:
            policy.follow(self.kinds, self.agents, xs, self.rewards, self.cuts, moments=moments)
            self.fold.ordered_cuts(before)
        else:
            policy.replay(self.kinds, self.agents, xs, self.rewards, moments=moments)
            self._compare(policy, before)
        self.clear()

    def _compare(self, policy: CuttingPolicy, before: int) -> None:
        """Note where recorded cuts differ from those computed, and follow the record."""
        computed = self.fold.ordered_cuts(before)
        gone = policy.state.common.withdrawn  # their part in others' cuts went with them
        pairs = [(self.agents[position], other) for position, other in self.cuts]
        recorded = np.sort(np.array(pairs, dtype=np.int64).reshape(-1, 2), axis=1)
        recorded = recorded[~gone[recorded].any(axis=1)]
        recorded = recorded[np.lexsort(recorded.T[::-1])]
        if not np.array_equal(recorded, computed):
            found = f"{len(recorded)} cuts are recorded and {len(computed)} computed"
            self.fold.differences.append(f"up to record {self.fold.seq}, {found}")
            sets = (set(map(tuple, each.tolist())) for each in (recorded, computed))
            self._follow(policy, *sets)

    def _follow(self, policy: CuttingPolicy, recorded: set[Any], computed: set[Any]) -> None:
        """Cut what was cut when the journal was written, and nothing else: that is what agents lived with."""
        for agent in sorted({agent for pair in recorded ^ computed for agent in pair}):
            apart = {tuple(pair) for pair in policy.cuts[:, :2].tolist() if agent in pair}
            apart = (apart - (computed - recorded)) | {pair for pair in recorded - computed if agent in pair}
            policy.cut_from(agent, sorted({other for pair in apart for other in pair} - {agent}))
