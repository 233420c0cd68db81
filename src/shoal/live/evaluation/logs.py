"""Logs to evaluate policies from: decisions with probabilities, from a journal or from files from elsewhere.

A whole file is checked before anything is computed from it; bad rows are named by file and line.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from shoal.core import validation
from shoal.core.logs import LogTable, listed, number, read_arms
from shoal.core.types import Integers, Matrix, Vector
from shoal.live.journal import archives
from shoal.live.journal.arms import ArmSet
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import Cancelled, Corrected, Decided, Missed, Rewarded, Settings, decode
from shoal.live.population.exporting import Exporter

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner


@dataclass(frozen=True, eq=False)
class LoggedDecisions:
    """Decisions that were logged with their probabilities, in order; n of them."""

    source: str
    agents: Integers
    """(n,) the number of each decision's agent."""
    n_agents: int
    rewards: Vector
    """(n,)"""
    probabilities: Vector
    """(n,) the probability with which the logged arm was chosen."""
    offers: Sequence[Matrix] | None = None
    """Features of the arms on offer at each decision, (K, d); None if the log has no features."""
    shown: Integers | None = None
    """(n,) position of the logged arm among them."""
    target: Vector | None = None
    """(n,) another policy's probability of the logged arm, if the log has it."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def sizes(self) -> Vector | None:
        """(n,) numbers of arms on offer."""
        return None if self.offers is None else np.array([len(one) for one in self.offers], dtype=np.float64)


# Files


def read_log(
    path: Any,
    *,
    probability: str,
    reward: str = "reward",
    agent: str | None = None,
    arm: str | None = None,
    arms: Any = None,
    features: str | Sequence[str] | None = None,
    offered: str | None = None,
    target: str | None = None,
    time: str | None = None,
    id: str | None = None,
) -> LoggedDecisions:
    """Read a log of decisions made elsewhere; docs/your-data.md describes the files.

    Parameters
    ----------
    path : path or frame
        A CSV file with a heading, a Parquet file or a data frame; one row per decision, in order.
    probability, reward : str
        Columns with the probability of the logged arm, in (0, 1], and with its reward.
    agent : str, optional
        Column with the agents' names; without it there is one agent.
    arm : str, optional
        Column with the name of the logged arm.
    arms : path, frame or mapping of names to features, optional
        Features of the arms: a file or frame with their names in a column of the same name as in the log.
    features : str or sequence of str, optional
        In that file, the column with the features as a list, or one column for each. By default the column
        `features` if there is one, otherwise all columns but that of the names.
    offered : str, optional
        Column with the names of the arms on offer, as a list. Without it, all `arms` always are.
    target : str, optional
        Column with another policy's probability of the logged arm.
    time, id : str, optional
        Columns by which rows must be sorted, and in which they must be unique.

    Raises
    ------
    ValueError
        With file, line and reason of the first bad rows.
    """
    catalogue = None if arms is None else _read_arms(arms, arm or "arm", features)
    if catalogue is not None and arm is None:
        raise ValueError("arms are given, but arm does not say which column names them")
    if offered is not None and catalogue is None:
        raise ValueError("offered names arms, but arms does not say what their features are")
    columns = {"probability": probability, "reward": reward, "agent": agent, "arm": arm}
    columns |= {"offered": offered, "target": target, "time": time, "id": id}
    reader = _Reader(catalogue, {role: column for role, column in columns.items() if column is not None})
    table = LogTable(path)
    table.read(list(reader.columns.values()), reader.take, "evaluated")
    return reader.events(table.name)


class _Reader:
    """Collects the rows of a file."""

    def __init__(self, catalogue: ArmSet | None, columns: Mapping[str, str]) -> None:
        self._catalogue, self.columns = catalogue, columns
        self._rows: list[tuple[int, float, float, float, int]] = []
        self._names: dict[str, int] = {}
        self._offers: list[Matrix] = []
        self._subsets: dict[tuple[str, ...], ArmSet] = {}
        self._latest = -math.inf
        self._lines: dict[str, int] = {}

    def take(self, line: int, values: list[Any]) -> None:
        """Check and keep a row."""
        row = dict(zip(self.columns, values, strict=True))
        column = self.columns
        # Everything is checked before anything is kept, so that a bad row leaves nothing behind.
        probability = number(column["probability"], row["probability"], low=0.0, high=1.0, open_low=True)
        reward = number(column["reward"], row["reward"])
        target = number(column["target"], row["target"], low=0.0, high=1.0) if "target" in row else 0.0
        if "id" in row and (first := self._lines.setdefault(str(row["id"]), line)) != line:
            raise ValueError(f"{column['id']} {validation.show(row['id'])} is that of row {first:,} already")
        offer = None if self._catalogue is None else self._offer(self._catalogue, row)
        moment = _moment(column["time"], row["time"]) if "time" in row else self._latest
        if moment < self._latest:
            raise ValueError(f"{column['time']} {validation.show(row['time'])} is before that of a row above")
        self._latest = moment
        position = 0
        if offer is not None:
            self._offers.append(offer.features)
            position = offer.position(str(row["arm"]))
        agent = self._names.setdefault(str(row["agent"]), len(self._names)) if "agent" in row else 0
        self._rows.append((agent, reward, probability, target, position))

    def _offer(self, catalogue: ArmSet, row: Mapping[str, Any]) -> ArmSet:
        """The arms on offer, the logged one among them."""
        arm, names = str(row["arm"]), catalogue.names or ()
        if arm not in names:
            raise ValueError(f"the arm {arm!r} has no features")
        if "offered" not in row:
            return catalogue
        on_offer = listed(self.columns["offered"], row["offered"], list[str], '["a", "b"]')
        offered = tuple(map(str, on_offer))
        if len(set(offered)) < len(offered):
            raise ValueError(
                f"{self.columns['offered']} must name each arm once, got {validation.show(on_offer)}"
            )
        # Most logs offer the same few sets again and again.
        if offered not in self._subsets:
            if missing := next((name for name in offered if name not in names), None):
                raise ValueError(f"the arm {missing!r} on offer has no features")
            self._subsets[offered] = catalogue.subset(offered)
        if arm not in offered:
            raise ValueError(f"the arm {arm!r} was chosen, but is not among those on offer")
        return self._subsets[offered]

    def events(self, source: str) -> LoggedDecisions:
        """All rows."""
        agents, rewards, probabilities, target, positions = zip(*self._rows, strict=True)
        has_arms = self._catalogue is not None
        return LoggedDecisions(
            source,
            np.array(agents, dtype=np.int64),
            max(len(self._names), 1),
            np.array(rewards),
            np.array(probabilities),
            self._offers if has_arms else None,
            np.array(positions, dtype=np.int64) if has_arms else None,
            np.array(target) if "target" in self.columns else None,
        )


def _moment(column: str, value: Any) -> float:
    """A time as a number, from a number or a date."""
    with contextlib.suppress(ValueError):
        return validation.number(column, value)
    with contextlib.suppress(ValueError, TypeError):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value.timestamp()
    raise ValueError(f"{column} must be a number or a date, got {validation.show(value)}")


def _read_arms(arms: Any, column: str, features: str | Sequence[str] | None) -> ArmSet:
    if not isinstance(arms, Mapping):
        arms = read_arms(LogTable(arms, name="arms"), column, features)
    if not arms:
        raise ValueError("arms must name at least one arm, got none")
    return ArmSet.of(arms, len(next(iter(arms.values()))))


# Journals


class Outcome(msgspec.Struct):
    """What came of a decision with one arm."""

    at: int
    """When it was made, in microseconds since 1970."""
    decided: Decided
    agent: int
    """Its agent now: agents may have been merged."""
    rewards: dict[int, float | None] = {}
    """The rewards in force, by the place of their arm in a ranking."""
    rewarded_at: int = 0
    cancelled: bool = False
    is_default: bool = False

    @property
    def reward(self) -> float | None:
        """The reward of the first arm."""
        return self.rewards.get(0)

    @property
    def earned(self) -> float | None:
        """The sum of its arms' known rewards; None if none is known."""
        known = [reward for reward in self.rewards.values() if reward is not None]
        return math.fsum(known) if known else None

    @property
    def is_open(self) -> bool:
        """Whether a reward is still due."""
        return not self.cancelled and len(self.rewards) < len(self.decided.shown)


def outcomes(owner: "Owner", since: float | None = None) -> tuple[Fold, Exporter, list[Outcome]]:
    """The decisions in a journal, archived ones included, with their outcomes.

    Parameters
    ----------
    owner : Owner
    since : float, optional
        Seconds since 1970; only decisions made from then on.
    """
    owner.wait_until_rebuilt()
    with owner.settled() as fold:
        seq = fold.seq
    exporter = Exporter(owner, fold, seq, True)
    found: dict[str, Outcome] = {}
    for row in archives.journal(owner.store, owner.number, seq):
        record = decode(row.body)
        if isinstance(record, Decided):
            if since is None or row.at >= since * 1e6:
                found[record.id] = Outcome(row.at, record, exporter.owner(record.agent))
            continue
        if not isinstance(record, Rewarded | Missed | Corrected | Cancelled) or record.id not in found:
            continue
        one = found[record.id]
        if isinstance(record, Cancelled):
            one.cancelled = True
        else:
            one.rewards[record.place] = record.new if isinstance(record, Corrected) else record.reward
            if record.place > 0:  # probability and predictions are recorded only for the first arm
                continue
            one.rewarded_at = row.at
            one.is_default = isinstance(record, Missed)
    return fold, exporter, list(found.values())


def complete(settings: Settings, found: Sequence[Outcome]) -> Sequence[Outcome]:
    """The decisions whose mean reward says something.

    Where a missing reward counts as a default, only quick rewards are known of the latest decisions: clicks,
    whose mean is too high. So nothing counts from the first decision on that still waits (as `Fold.uncounted`
    says of sums).
    """
    if settings.default_reward is None:
        return found
    return found[: next((place for place, one in enumerate(found) if one.is_open), len(found))]


def is_evaluable(one: Outcome) -> bool:
    """Whether other policies can be evaluated from a decision: one arm, drawn by chance, with a reward."""
    chosen_by_chance = one.decided.probability is not None and one.decided.mode != "holdout"
    return chosen_by_chance and one.reward is not None and not one.cancelled
