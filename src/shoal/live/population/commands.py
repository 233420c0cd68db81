"""What commands do in their turn: look up what is recorded, choose, and write records.

Everything here runs alone, with the population's lock held. A command that raises has written nothing, or a
first part that is complete; the store is asked only for what is no longer in memory.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from shoal.core import validation
from shoal.core.policy.calls import check_scale
from shoal.core.policy.living import Sharing
from shoal.core.types import Vector
from shoal.live.evaluation.baseline import in_holdout
from shoal.live.journal.archives import Base
from shoal.live.journal.arms import ArmSet, checked_by, checked_name
from shoal.live.journal.fold import Fold, Standing, standing_of
from shoal.live.journal.forgetting import keyed_hash, merged_into
from shoal.live.journal.records import (
    AnyRecord,
    Cancelled,
    Catalogue,
    Corrected,
    Decided,
    Joined,
    Merged,
    Missed,
    Mode,
    Observed,
    Profiled,
    Renamed,
    Rewarded,
    Row,
    Shares,
    decode,
    encode,
)
from shoal.live.journal.stores.base import Store
from shoal.live.population.offers import Offers
from shoal.live.population.quotas import Headroom
from shoal.live.protocol.answers import Decision, Score
from shoal.live.protocol.errors import ConflictError, ControllerError, GoneError, UnknownError
from shoal.live.protocol.ids import new_id
from shoal.live.protocol.messages import NamedReward, NewDecision, NewObservation

Result = TypeVar("Result")
SHARING = ("both", "borrow", "none")
KEPT = 20_000
"""Decisions remembered after their rewards have come: more than rows are ever in flight."""
LONGEST_ID = 128
MOST_AT_ONCE = 1_000
"""Requests that are taken together."""
MISSES_AT_ONCE = 256
"""Missing rewards that are written down together."""
MICRO = 1_000_000


class Turn:
    """A command under way: applies records, and collects their rows."""

    def __init__(self, fold: Fold, now: Callable[[], int]) -> None:
        self.fold = fold
        self.rows: list[Row] = []
        self.arms: list[tuple[bytes, bytes]] = []
        self._now = now

    def write(self, record: AnyRecord, agent: int | None = None, decision: str | None = None) -> int:
        """Apply a record and append it, completed, which is then `last`; its sequence number."""
        fold = self.fold
        seq, at = fold.seq + 1, max(fold.at, self._now())
        self.last = fold.apply(seq, at, record)
        self.rows.append(Row(seq, at, agent, decision, encode(self.last)))
        return seq


class Commands:
    """The commands of a population on a state, with what they remember between them.

    Parameters
    ----------
    name : str
        Of the population.
    store : Store
    number : int
        Of the population in the store.
    archived : callable
        What is known of the part of the journal that was archived.
    """

    DECIDES, REWARDS, OBSERVES = 3, 1, 2
    """Rows that one of these commands appends, at most."""

    def __init__(self, name: str, store: Store, number: int, archived: Callable[[], Base]) -> None:
        self._name, self._store, self._number, self._archived = name, store, number, archived
        self.closed: OrderedDict[str, Standing] = OrderedDict()
        """Decisions whose rewards have come, or will not."""
        self._observations: OrderedDict[str, Observed] = OrderedDict()
        """The latest observations with an id."""
        self.offers = Offers(store, number, name)
        self.room = Headroom()

    def clear(self) -> None:
        """Remember nothing: the state has been built anew."""
        self.closed.clear()
        self._observations.clear()
        self.offers.clear()

    def forget(self, agents: Collection[int]) -> None:
        """Remember nothing of some agents."""
        for standing in [one for one in self.closed.values() if one.decided.agent in agents]:
            del self.closed[standing.decided.id]
        self._observations.clear()
        self.offers.clear()

    # Agents

    def agent(self, fold: Fold, name: str) -> int:
        """The index of an agent that is there."""
        index = fold.names.get(checked_name("agent", name))
        if index is None:
            if self._has_gone(fold, "agent", name):
                raise GoneError(f"agent {name!r} of population {self._name!r} has been forgotten")
            raise UnknownError(f"population {self._name!r} has no agent {name!r}")
        return index

    def joining(self, turn: Turn, name: str, sharing: Sharing | None = None) -> int:
        """The index of an agent, which joins if it is new."""
        index = turn.fold.names.get(name)
        if index is None:
            self.room.check(turn.fold, agents=1)
            index = len(turn.fold.called)
            turn.write(Joined(index, name, sharing or "both"), agent=index)
        elif sharing is not None and sharing != turn.fold.sharing[index]:
            turn.write(Shares(index, sharing), agent=index)
        return index

    def describe(self, turn: Turn, name: str, agent_features: Any) -> int:
        """The index of an agent, which joins if it is new, of whom this is known from now on."""
        given = self._features(turn.fold, agent_features)
        index = self.joining(turn, name)
        if not np.array_equal(given, turn.fold.policy.features_of(index), equal_nan=True):
            turn.write(Profiled(index, given.tobytes()), agent=index)
        return index

    def _features(self, fold: Fold, given: Any) -> Vector:
        """What is known of an agent, or an error that says what the population takes."""
        if not fold.policy.agent_dim:
            raise ValueError(
                f"agent_features must be left out in population {self._name!r}, whose policy takes none "
                f"(cluster_mixture does, with agent_dim), got {validation.show(given)}"
            )
        return np.asarray(validation.features("agent_features", [given], 1, fold.policy.agent_dim)[0])

    def _recorded(self, fold: Fold, id: str) -> list[Row]:
        """The records about an id; the store is not asked about a new one."""
        return self._store.find(self._number, id) if fold.known.may_hold(id, fold.settings.key) else []

    def _has_gone(self, fold: Fold, kind: str, text: str) -> bool:
        """Whether a name or an id has been forgotten; the store is asked only if anything has been."""
        return fold.forgotten_at > 0 and self._store.has_gone(self._number, [keyed_hash(fold, kind, text)])

    def rename(self, turn: Turn, agent: str, name: str) -> None:
        index = self.agent(turn.fold, agent)
        if turn.fold.called[index] == name:
            return
        if turn.fold.names.get(name, index) != index:  # one of its own may become its first
            raise ConflictError(f"population {self._name!r} has an agent {name!r} already; merge them?", name)
        turn.write(Renamed(index, name), agent=index)

    def merge(self, turn: Turn, agent: str, other: str) -> None:
        first, second = self.agent(turn.fold, agent), self.agent(turn.fold, other)
        if first != second:
            turn.write(Merged(first, second), agent=first)
            self.closed.clear()  # decisions of `other` are `agent`'s now

    # The catalogue

    def set_arms(self, turn: Turn, given: ArmSet, by: str) -> None:
        present = self.offers.catalogue(turn.fold)
        features = {} if present is None else dict(zip(present.names or (), present.features, strict=True))
        features.update(zip(given.names or (), given.features, strict=True))
        self._set_catalogue(turn, ArmSet(np.array(list(features.values())), list(features)), by)

    def retire(self, turn: Turn, names: Sequence[str], by: str) -> None:
        present = self.offers.catalogue(turn.fold)
        known = () if present is None or present.names is None else present.names
        for name in names:
            if name not in known:
                when = ": it has been retired already" if name in list(turn.fold.retired) else ""
                raise UnknownError(f"population {self._name!r} has no arm {name!r} in its catalogue{when}")
        stay = [name for name in known if name not in names]
        if not stay:
            raise ValueError("a catalogue must keep at least one arm")
        assert present is not None
        rows = [present.position(name) for name in stay]
        self._set_catalogue(
            turn, ArmSet(np.ascontiguousarray(present.features[rows]), stay), by, tuple(names)
        )

    def _set_catalogue(self, turn: Turn, arms: ArmSet, by: str, retired: tuple[str, ...] = ()) -> None:
        checked_by(by)
        check_scale(turn.fold.policy, "arms", arms.features)
        self.room.quotas.check("arms", len(arms), f"the catalogue would have {len(arms):,} arms")
        self.room.check(turn.fold, arm_bytes=arms.features.nbytes)
        turn.arms += self.offers.news(turn.fold, arms)
        turn.write(Catalogue(arms.digest, by, retired))

    # Decisions

    def decide(self, turn: Turn, request: NewDecision) -> Decision:
        fold, agent, sharing = turn.fold, request.agent, request.sharing
        checked_name("agent", agent)
        top = validation.positive_int("top", request.top)
        decision = new_id() if request.id is None else _check_id(request.id)
        if sharing is not None:
            validation.one_of("sharing", sharing, SHARING)
        if request.agent_features is not None:
            self._features(fold, request.agent_features)
        if request.id is not None and (known := self.find(fold, decision)) is not None:
            return self._decided_before(fold, known, request)
        offer = self.offers.requested(fold, request.arms)
        if top > len(offer):
            raise ValueError(f"top must be at most the number of arms, {len(offer)}, got {top}")
        baseline = self._positions(fold, offer, request.baseline)
        if fold.settings.apprentice and top > 1:
            raise ValueError(f"top must be 1 in population {self._name!r}, an apprentice, got {top}")
        if (baseline and len(baseline) != top) or len(set(baseline)) < len(baseline):
            raise ValueError(
                f"baseline must name as many different arms as top, {top}, got "
                f"{validation.show(request.baseline)}"
            )
        if (fold.settings.apprentice or fold.settings.holdout > 0.0) and not baseline:
            raise ValueError(
                f"population {self._name!r} compares with the product's own rule: baseline must name what "
                "it prefers, got None"
            )
        self.room.check(fold, agents=agent not in fold.names, decisions=1)
        if agent not in fold.names or sharing is not None:  # nothing is written for a request that is refused
            check_scale(fold.policy, "arms", offer.features)
        index = self.joining(turn, agent, sharing)
        if request.agent_features is not None:
            self.describe(turn, agent, request.agent_features)
        mode: Mode = ""
        choice = fold.policy.choose(index, offer.features)
        table = fold.policy.scores(index, offer.features) if request.scores or top > 1 else None
        greedy = int(choice.arm)
        shown: tuple[int, ...] = (greedy,)
        probability = None
        if fold.settings.holdout > 0.0 and in_holdout(fold.settings, index):
            shown, probability, mode = baseline, 1.0 if top == 1 else None, "holdout"
        elif top > 1:
            assert table is not None
            shown = tuple(np.argsort(-table.index, kind="stable")[:top].tolist())
        else:
            mode = "apprentice" if fold.settings.apprentice else mode
            usual = baseline[0] if fold.settings.apprentice else greedy
            position, probability = explored(decision, fold.settings.key, fold.explore, len(offer), usual)
            shown = (position,)
        own, pooled = choice.own, choice.pooled
        if shown[0] != greedy:
            own, pooled = fold.policy.predict(index, offer.features[shown[0]])
        x = offer.features[list(shown)].tobytes() if len(shown) > 1 else offer.features[shown[0]].tobytes()
        record = Decided(
            decision,
            index,
            offer.digest,
            shown,
            greedy,
            probability,
            float(own),
            float(pooled),
            x,
            mode,
            baseline,
        )
        turn.arms += self.offers.news(fold, offer)
        seq = turn.write(record, index, decision)
        return self.decision(fold, record, seq, offer, table if request.scores else None)

    def _positions(
        self, fold: Fold, offer: ArmSet, baseline: str | int | Sequence[str | int] | None
    ) -> tuple[int, ...]:
        """Where among those on offer the arms of the product's own rule are."""
        if baseline is None:
            return ()
        named = [baseline] if isinstance(baseline, str | int) else baseline
        return tuple(self.offers.position(fold, offer, arm) for arm in named)

    def decision(self, fold: Fold, record: Decided, seq: int, offer: ArmSet, table: Any = None) -> Decision:
        scores = None
        if table is not None:
            rows = zip(table.mean.tolist(), table.width.tolist(), table.index.tolist(), strict=True)
            scores = {offer.name(position): Score(*row) for position, row in enumerate(rows)}
        return Decision(
            id=record.id,
            agent=fold.called[record.agent] or "",
            arm=offer.name(record.shown[0]),
            ranking=tuple(map(offer.name, record.shown)),
            probability=record.probability,
            greedy=offer.name(record.greedy),
            own=record.own,
            pooled=record.pooled,
            sequence=seq,
            scores=scores,
        )

    def _decided_before(self, fold: Fold, known: Standing, request: NewDecision) -> Decision:
        """The decision that was made for a request that comes again; scores, not recorded, are of now."""
        record, index = known.decided, known.decided.agent
        offer = self.offers.offered(fold, record.arms)
        same_agent = fold.names.get(request.agent) == index
        if not offer.answers(request.arms) or not same_agent or request.top != len(record.shown):
            raise ConflictError(f"decision {record.id!r} was made for another agent or other arms", record.id)
        if record.baseline != self._positions(fold, offer, request.baseline):
            raise ConflictError(f"decision {record.id!r} was made with another baseline", record.id)
        if request.sharing not in (None, fold.sharing[index]):
            raise ConflictError(
                f"decision {record.id!r} has been made already, and its agent's sharing is "
                f"{fold.sharing[index]!r}; change that with add",
                record.id,
            )
        table = fold.policy.scores(index, offer.features) if request.scores else None
        return self.decision(fold, record, known.seq, offer, table)

    def find(self, fold: Fold, decision: str) -> Standing | None:
        """What is recorded of a decision, in memory or in the store."""
        if (standing := fold.pending.get(decision)) is not None:
            return standing
        if (standing := self.closed.get(decision)) is not None:
            return standing
        if rows := self._recorded(fold, decision):
            if isinstance(decode(rows[0].body), Observed):
                raise ConflictError(f"{decision!r} is the id of an observation, not of a decision", decision)
            standing = standing_of(rows)
            owner = merged_into(fold, standing.decided.agent)
            standing.decided = msgspec.structs.replace(standing.decided, agent=owner)
            self.close(standing)
            return standing
        if self._has_gone(fold, "decision", decision):
            raise GoneError(f"decision {decision!r} was made for an agent that has been forgotten")
        return None

    def known(self, fold: Fold, decision: str) -> Standing:
        standing = self.find(fold, _check_id(decision))
        if standing is None:
            raise UnknownError(
                f"population {self._name!r} has made no decision {decision!r}{self._but_archived()}"
            )
        return standing

    def _but_archived(self) -> str:
        base = self._archived()
        if not base.seq:
            return ""
        until = datetime.fromtimestamp(base.at / MICRO, UTC)
        return f" that is not closed and archived: its journal was archived up to {until:%Y-%m-%d %H:%M} UTC"

    def close(self, standing: Standing) -> None:
        self.closed[standing.decided.id] = standing
        if len(self.closed) > KEPT:
            self.closed.popitem(last=False)

    def cancel(self, turn: Turn, decision: str) -> None:
        standing = self.known(turn.fold, decision)
        if standing.cancelled:
            return
        if standing.rewards or standing.missed:
            recorded = next(iter(standing.rewards.values()), None)
            raise ConflictError(f"decision {decision!r} has a reward, {recorded}: it was shown", recorded)
        turn.write(Cancelled(decision), standing.decided.agent, decision)
        self.close(standing)

    # Rewards

    def reward(self, turn: Turn, request: NamedReward) -> float | None:
        """The seconds since the decision; None if a reward was known already."""
        fold, id, replaces = turn.fold, request.id, request.replaces
        reward = self._check_reward(fold, request.reward)
        if replaces is not None:
            replaces = validation.number("replaces", replaces)
        standing = self.known(fold, id)
        decided = standing.decided
        place = self._place(fold, decided, request.arm)
        if standing.cancelled:
            raise ConflictError(f"decision {id!r} was cancelled; a reward cannot come for it", "cancelled")
        recorded = standing.rewards.get(place)
        if recorded is None:
            if replaces is not None:
                raise ConflictError(f"decision {id!r} has no reward yet that {replaces!r} could be", None)
            late = decided.id not in fold.pending
            late = late or place in standing.missed
            record = Rewarded(id, place, reward, fold.policy.rounds)
            if late:  # it was given up waiting for
                x, rounds = standing.x(place), fold.policy.rounds + 1
                predicted = (decided.own, decided.pooled) if place == 0 else (None, None)
                record = Rewarded(id, place, reward, rounds, (), decided.agent, x, *predicted)
            turn.write(record, decided.agent, id)
            if late and decided.id not in fold.pending:
                standing.note(turn.last)
            elif not standing.is_pending:
                self.close(standing)
            return (turn.rows[-1].at - standing.at) / MICRO
        if reward == recorded:
            return None
        if place not in standing.missed and replaces is None:
            raise ConflictError(
                f"decision {id!r} has the reward {recorded!r}; to correct it to {reward!r}, say "
                f"replaces={recorded!r}",
                recorded,
            )
        if replaces is not None and replaces != recorded:
            raise ConflictError(f"decision {id!r} has the reward {recorded!r}, not {replaces!r}", recorded)
        own, pooled = (decided.own, decided.pooled) if place == 0 else (None, None)
        correction = Corrected(
            id,
            place,
            recorded,
            reward,
            decided.agent,
            standing.x(place),
            standing.learned[place],
            own,
            pooled,
            standing.moments.get(place),
        )
        turn.write(correction, decided.agent, id)
        standing.note(turn.last)
        return None if replaces is not None else (turn.rows[-1].at - standing.at) / MICRO

    # Rewards that do not come

    def late(self, fold: Fold, now: int) -> list[tuple[Standing, int]]:
        """Decisions, and places in them, whose rewards are late: the oldest, a bounded number of them."""
        if (window := fold.settings.reward_window) is None:
            return []
        due = max(fold.at, now) - int(window * MICRO)
        found: list[tuple[Standing, int]] = []
        for standing in fold.pending.values():
            if standing.at > due or len(found) >= MISSES_AT_ONCE:
                break
            found += [(standing, place) for place in range(len(standing.decided.shown))]
        return [(standing, place) for standing, place in found if standing.is_open(place)]

    def miss(self, turn: Turn, late: Sequence[tuple[Standing, int]]) -> int:
        """Write down that rewards did not come; how many."""
        for standing, place in late:
            decided = standing.decided
            record = Missed(decided.id, place, turn.fold.settings.default_reward, turn.fold.policy.rounds)
            turn.write(record, decided.agent, decided.id)
            if not standing.is_pending:
                self.close(standing)
        return len(late)

    def _place(self, fold: Fold, decided: Decided, arm: str | int | None) -> int:
        """Which place of a ranking a reward is for."""
        if arm is None:
            if len(decided.shown) > 1:
                raise ValueError(f"arm must say which of the arms of decision {decided.id!r} was rewarded")
            return 0
        position = self.offers.offered(fold, decided.arms).position(arm)
        if position not in decided.shown:
            raise UnknownError(f"decision {decided.id!r} did not show the arm {arm!r}")
        return decided.shown.index(position)

    def _check_reward(self, fold: Fold, reward: float) -> float:
        low, high = fold.settings.reward_low, fold.settings.reward_high
        checked = validation.number(
            "reward",
            reward,
            low=-validation.LARGEST if low is None else low,
            high=validation.LARGEST if high is None else high,
        )
        fold.policy.check_rewards("reward", checked)
        return checked

    # Observations

    def observe(self, turn: Turn, request: NewObservation) -> bool:
        """Whether it is new."""
        fold, agent, x, id = turn.fold, checked_name("agent", request.agent), request.x, request.id
        if x is None:
            if request.arm is None:
                raise ValueError("an observation must have x or arm")
            catalogue = self.offers.requested(fold, None)
            x = catalogue.features[self.offers.position(fold, catalogue, request.arm)]
        elif request.arm is not None:
            checked_name("arm", request.arm)
        features, reward = self.check_sample(fold, x, request.reward, id)
        if id is not None and self._observed_before(fold, id, agent, features.tobytes(), reward):
            return False
        index = self.joining(turn, agent)
        record = Observed(index, features.tobytes(), reward, fold.policy.rounds + 1, id, (), request.arm)
        turn.write(record, index, id)
        if id is not None:
            self._observations[id] = record
            if len(self._observations) > KEPT:
                self._observations.popitem(last=False)
        return True

    def check_sample(self, fold: Fold, x: ArrayLike, reward: float, key: str | None) -> tuple[Vector, float]:
        if key is not None:
            _check_id(key)
        features = validation.vector("x", x, fold.settings.dim)
        check_scale(fold.policy, "x", features)
        return features, self._check_reward(fold, reward)

    def _observed_before(self, fold: Fold, key: str, agent: str, x: bytes, reward: float) -> bool:
        """Whether an observation is recorded already; `ConflictError` if another one is under its id."""
        record: AnyRecord | None = self._observations.get(key)
        if record is None and (rows := self._recorded(fold, key)):
            record = decode(rows[0].body)
        if record is None and self._has_gone(fold, "decision", key):
            raise GoneError(f"observation {key!r} was made of an agent that has been forgotten")
        if record is None and key not in fold.pending and key not in self.closed:
            return False
        if isinstance(record, Observed):
            same = fold.names.get(agent), x, reward
            if same == (merged_into(fold, record.agent), record.x, record.reward):
                return True
        raise ConflictError(f"another observation or decision is recorded under the id {key!r}", key)


def each(
    items: Sequence[Any], one: Callable[[Turn, Any], Result]
) -> Callable[[Turn], list[Result | Exception]]:
    """A command that takes several requests; the result of each, or its error."""
    if len(items) > MOST_AT_ONCE:
        raise ValueError(f"requests must be at most {MOST_AT_ONCE:,} at once, got {len(items):,}")

    def command(turn: Turn) -> list[Result | Exception]:
        results: list[Result | Exception] = []
        for item in items:
            try:
                results.append(one(turn, item))
            except (ValueError, ControllerError) as error:
                results.append(error)
        return results

    return command


def explored(decision: str, key: bytes, explore: float, n_arms: int, greedy: int) -> tuple[int, float]:
    """The position to show, and its probability; drawn from a hash of the id, so a retry draws the same."""
    draw = hashlib.blake2b(decision.encode(), key=key, digest_size=16).digest()
    position = greedy
    if int.from_bytes(draw[:8]) < explore * 2.0**64:
        position = int.from_bytes(draw[8:]) % n_arms
    return position, explore / n_arms + (1.0 - explore) * (position == greedy)


def _check_id(id: Any) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID or "\0" in id or not id.isprintable():
        raise ValueError(
            f"id must be a printable text of 1 to {LONGEST_ID} characters, got {validation.show(id)}"
        )
    return id
