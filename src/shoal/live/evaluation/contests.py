"""A contest: candidates learn in the shadow from the same journal, and are compared with the present policy.

A *shadow* is the fold of the journal under a candidate's settings. At each decision since the contest began
it is asked what it would have chosen, before it learns more. Its choice is compared with the one that the
population's policy preferred, by doubly robust terms: unbiased, as arms were drawn with the recorded
probabilities. Where both prefer the same arm, the term is 0.

Everything here is computed from the journal. Shadows are a cache: they continue from where they were, and are
folded again after a restart, and after a person has been forgotten, which removes that person's samples.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from shoal.core import validation
from shoal.core.types import Vector
from shoal.live.evaluation.estimators import ENOUGH
from shoal.live.evaluation.rehearsal import other_settings, refold, settings_with, take_over
from shoal.live.evaluation.sequences import LEVEL, asymptotic
from shoal.live.journal import snapshots
from shoal.live.journal.arms import checked_by
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import (
    Cancelled,
    Contested,
    Corrected,
    Decided,
    Missed,
    Rewarded,
    Row,
    Settings,
    decode,
    encode,
)
from shoal.live.journal.tally import Sums
from shoal.live.population.exporting import Exporter
from shoal.live.protocol.answers import Contender, ContestStanding
from shoal.live.protocol.errors import ConflictError

if TYPE_CHECKING:
    from shoal.live.population.commands import Turn
    from shoal.live.population.owner import Owner

WHEN, OUT = "surely better", "out"
MOST = 8
"""Candidates."""
MOST_COUNTED = 200_000
"""Decisions in which a candidate differs that are kept; later ones are not counted."""
BY = "contest"
"""The author of a contest's switch, in its record."""


def begin(
    owner: "Owner",
    candidates: Sequence[str | Mapping[str, Any]],
    when: str | None,
    share: float | None,
    by: str,
) -> None:
    """See `Population.contest`."""
    present, explore = owner.read(lambda fold: (fold.settings, fold.settings.explore))
    if when is not None:
        validation.one_of("when", when, (WHEN,))
    if share is not None:
        explore = validation.number("share", share, low=0.0, high=1.0)
    if explore <= 0.0:
        raise ValueError(
            "share must be above 0 where nothing is explored: only random choices tell policies apart"
        )
    if len(candidates) > MOST:
        raise ValueError(f"candidates must be at most {MOST}, got {len(candidates)}")
    found: list[tuple[str, dict[str, Any]]] = []
    for one in candidates:
        parameters = {} if isinstance(one, str) else dict(one)
        policy = one if isinstance(one, str) else parameters.pop("policy", None)
        other = other_settings(present, policy, parameters)
        candidate = other.policy, other.parameters
        if candidate in [(present.policy, present.parameters), *found]:
            raise ValueError(
                f"candidates must differ from the present policy and each other, got {one!r} again"
            )
        if is_binary(other) and not is_binary(present):
            refold(owner, other, owner.read(lambda fold: fold.seq))  # refuses rewards that are no clicks
        found.append(candidate)
    record = Contested(tuple(found), when or "", explore, checked_by(by))

    def command(turn: "Turn") -> None:
        running = turn.fold.contest
        if running is None:
            turn.write(record)
        elif encode(msgspec.structs.replace(running[1], by=record.by)) != encode(record):
            raise ConflictError(f"population {owner.name!r} has another contest: end it first", None)

    owner.perform(1, command)


def is_binary(settings: Settings) -> bool:
    """Whether the policy learns rewards of 0 and 1 only."""
    return settings.parameters.get("rewards") == "binary"


def end(owner: "Owner", by: str) -> None:
    """See `Population.end_contest`."""
    record = Contested((), "", 0.0, checked_by(by))
    owner.perform(1, lambda turn: turn.write(record) if turn.fold.contest is not None else None)


def act(owner: "Owner") -> ContestStanding | None:
    """The standing; if the contest switches to a candidate that is surely better, and one is, switch to it.

    The switch is one record, which also ends the contest: after a crash it has happened, or it has not.
    """
    found = standing(owner)
    if found is None or found.when != WHEN or owner.reads_only:
        return found
    best = max(found.candidates, key=lambda one: one.low)
    if best.verdict != WHEN:
        return found
    settings = settings_with(owner.read(lambda fold: fold.settings), best.policy, best.parameters, BY)

    def still_runs(fold: Fold) -> bool:
        return fold.contest is not None and fold.contest[0] == found.sequence

    sequence = take_over(owner, settings, still_runs)
    return msgspec.structs.replace(found, switched=sequence, text=f"{found.text} Switched to {best.name}.")


def standing(owner: "Owner") -> ContestStanding | None:
    """How candidates stand now; None if there is no contest."""
    with owner.shadowing:
        owner.wait_until_rebuilt()
        with owner.settled() as fold:
            running, seq, settings = fold.contest, fold.seq, fold.settings
        shadows, owner.shadows = owner.shadows, None  # none are left half updated if this is given up
        if running is None:
            return None
        began, record = running
        if shadows is None or shadows.began != began or not shadows.catch_up(owner, seq):
            shadows = Shadows(owner, settings, began, record, seq)
        owner.shadows = shadows
        return shadows.standing(settings)


class Shadows:
    """The candidates of a contest, up to a record."""

    def __init__(self, owner: "Owner", settings: Settings, began: int, record: Contested, seq: int) -> None:
        self.began, self._record = began, record
        with owner.settled() as fold:
            exporter = Exporter(owner, fold, seq, True)
        made = [settings_with(settings, policy, parameters) for policy, parameters in record.candidates]
        self._shadows = [Shadow(one, exporter, began) for one in made]
        for one in self._shadows:
            try:
                one.fold = refold(owner, one.settings, seq, one.watch)
            except ValueError as error:
                one.problem = str(error)

    def catch_up(self, owner: "Owner", seq: int) -> bool:
        """Read new records; False, with nothing usable, if the journal has to be folded again."""
        store, number = owner.store, owner.number
        for one in self._shadows:
            try:
                if not one.problem and not snapshots.catch_up(one.fold, store, number, seq, watch=one.watch):
                    return False
            except ValueError as error:
                one.problem = str(error)
        return True

    def standing(self, present: Settings) -> ContestStanding:
        """How they stand."""
        level = 1.0 - (1.0 - LEVEL) / len(self._shadows)  # so that all intervals hold together
        candidates = [one.standing(level, present) for one in self._shadows]
        text = f"Against {present.policy} since record {self.began:,}: " + "; ".join(
            f"{one.name} {one.text}" for one in candidates
        )
        record = self._record
        return ContestStanding(
            self.began,
            present.policy,
            record.when,
            record.share,
            record.by,
            level,
            candidates,
            None,
            f"{text}.",
        )


class Shadow:
    """One candidate, and its choices since the contest began.

    Parameters
    ----------
    settings : Settings
        With its policy and parameters.
    exporter : Exporter
        Finds the arms on offer.
    began : int
        The record that began the contest; earlier decisions are learned from, but not counted.
    """

    fold: Fold
    problem = ""
    """Why it is out: what it cannot learn, such as a reward of 0.5 if it learns clicks."""

    def __init__(self, settings: Settings, exporter: Exporter, began: int) -> None:
        self.settings, self._exporter, self._began = settings, exporter, began
        self._agreeing: dict[str, int] = {}
        """Decisions in which both prefer the same arm, and that await their reward, with their records."""
        self._agreed = array("q")
        """The records of those whose reward has come."""
        self._places: dict[str, int] = {}
        """Decisions in which they differ, with their place in the columns."""
        self._columns = tuple(array("d") for _ in range(5))
        """Its record, weight, expected difference, prediction for the arm that was shown; reward, nan until
        it comes."""

    def watch(self, fold: Fold, row: Row) -> None:
        """Note a record before the fold learns from it."""
        if row.seq <= self._began:
            return
        record = decode(row.body)
        if isinstance(record, Decided):
            if record.probability is not None and record.mode != "holdout":
                self._ask(fold, row.seq, record)
        elif isinstance(record, Cancelled):
            self._agreeing.pop(record.id, None)
            self._reward(record.id, math.nan)
        elif isinstance(record, Rewarded | Missed | Corrected) and record.place == 0:
            reward = record.new if isinstance(record, Corrected) else record.reward
            if reward is not None:
                if record.id in self._agreeing:
                    self._agreed.append(self._agreeing.pop(record.id))
                self._reward(record.id, reward)

    def _ask(self, fold: Fold, seq: int, record: Decided) -> None:
        """Ask what the candidate would have chosen."""
        if len(self._places) >= MOST_COUNTED:
            return
        _, predicted = fold.predict(record)
        features = self._exporter.offer(record.arms).features
        choice = fold.policy.choose(record.agent, features)
        arm, shown, other = int(choice.arm), record.shown[0], record.greedy
        if arm == other:
            self._agreeing[record.id] = seq
        else:
            assert record.probability is not None
            expected = predicted
            if shown != other:
                expected = float(fold.policy.predict(record.agent, features[other]).pooled)
            self._places[record.id] = len(self._places)
            weight = ((shown == arm) - (shown == other)) / record.probability
            values = seq, weight, float(choice.pooled) - expected, predicted, math.nan
            for column, value in zip(self._columns, values, strict=True):
                column.append(value)

    def _reward(self, decision: str, reward: float) -> None:
        if (place := self._places.get(decision)) is not None:
            self._columns[-1][place] = reward

    def standing(self, level: float, present: Settings) -> Contender:
        """How the candidate stands."""
        policy, parameters = self.settings.policy, self.settings.parameters
        usual = other_settings(present, policy, {}).parameters
        special = [f"{key}={value}" for key, value in parameters.items() if value != usual.get(key)]
        name = ", ".join([policy, *special])
        if self.problem:
            nothing = Compared(0, 0, 0, math.nan, -math.inf, math.inf)
            return Contender(name, policy, parameters, *nothing, OUT, f"{OUT} ({self.problem})")
        until = self.fold.complete_until
        places, *columns = (np.array(each) for each in self._columns)
        agreed = int(np.count_nonzero(np.array(self._agreed) < until))
        found = compared(*(each[places < until] for each in columns), agreed=agreed, level=level)
        verdict = WHEN if found.low > 0.0 else "surely worse" if found.high < 0.0 else "too early to say"
        text = (
            f"{verdict} (differs in {found.differs:,} of {found.decisions:,} decisions; chance chose its arm "
            f"{found.seen:,} time{'s' * (found.seen != 1)})"
        )
        if math.isfinite(found.low):
            text = f"{found.mean:+.3g} [{found.low:+.3g}, {found.high:+.3g}] per decision, {text}"
        return Contender(name, policy, parameters, *found, verdict, text)


class Compared(NamedTuple):
    """How much more a candidate's choices would have earned per decision, with its confidence sequence."""

    decisions: int
    differs: int
    seen: int
    mean: float
    low: float
    high: float


def compared(
    weights: Vector, expected: Vector, predicted: Vector, rewards: Vector, *, agreed: int, level: float
) -> Compared:
    """Compare a candidate's choices with others, from decisions in which they differ; arrays of shape (n,).

    Chance may not yet have shown the worst outcome of the candidate's choices. So the lower bound supposes
    that the next one falls short of its prediction by as much as any reward did, at the largest weight so
    far, and the upper bound supposes the opposite, as do the intervals of `estimators`.

    Parameters
    ----------
    weights : Vector
        1/p where chance showed the candidate's arm, −1/p where it showed the other's, else 0.
    expected : Vector
        A model's prediction for the candidate's arm, minus that for the other's.
    predicted : Vector
        Its prediction for the arm that was shown.
    rewards : Vector
        nan where none has come.
    agreed : int
        Decisions with a reward in which both prefer the same arm, so that the difference is 0.
    level : float
    """
    known = ~np.isnan(rewards)
    weights, surprises = weights[known], (rewards - predicted)[known]
    terms = expected[known] + weights * surprises
    n, seen = agreed + len(terms), int(np.count_nonzero(weights > 0.0))
    total, squares = float(terms.sum()), float(terms @ terms)
    low, high = -math.inf, math.inf
    if seen >= ENOUGH:
        bad, good = (float(weights.max() * each) for each in (surprises.min(), surprises.max()))
        low, _ = asymptotic(Sums(n + 1, total + min(bad, 0.0), squares + bad**2), level)
        _, high = asymptotic(Sums(n + 1, total + max(good, 0.0), squares + good**2), level)
    return Compared(n, len(terms), seen, total / n if n else math.nan, low, high)
