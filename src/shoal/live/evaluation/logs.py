"""Logs to evaluate policies from: decisions with probabilities, from files of elsewhere or from a journal.

A file is checked whole before anything is computed from it; bad rows are named by file and line.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from shoal.core import validation
from shoal.core.types import Integers, Matrix, Vector
from shoal.live.journal import archives
from shoal.live.journal.arms import ArmSet
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import Cancelled, Corrected, Decided, Missed, Rewarded, decode
from shoal.live.population.exporting import Exporter
from shoal.live.population.importing import SHOWN, features_in, names_of, read_rows
from shoal.live.protocol.errors import UnknownError

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner


@dataclass(frozen=True, eq=False)
class LoggedDecisions:
    """Decisions that were logged with their probabilities, in order; n of them."""

    source: str
    agents: Integers
    """(n,) whose they are, numbered."""
    n_agents: int
    rewards: Vector
    """(n,)"""
    probabilities: Vector
    """(n,) with which the logged arm was chosen."""
    offers: Sequence[Matrix] | None = None
    """Of each, features of the arms on offer, (K, d); None if the log has no features."""
    shown: Integers | None = None
    """(n,) position of the logged arm among them."""
    target: Vector | None = None
    """(n,) probability with which a policy that the log knows of would have chosen the logged arm."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def sizes(self) -> Vector | None:
        """(n,) numbers of arms on offer."""
        return None if self.offers is None else np.array([len(one) for one in self.offers], dtype=np.float64)


# Files


def read_log(
    path: str | os.PathLike[str],
    *,
    probability: str,
    reward: str = "reward",
    agent: str | None = None,
    arm: str | None = None,
    arms: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    features: str | Sequence[str] = "features",
    offered: str | None = None,
    target: str | None = None,
    time: str | None = None,
    id: str | None = None,
) -> LoggedDecisions:
    """Read a log of decisions that were made elsewhere.

    Parameters
    ----------
    path : path
        A .csv file with a heading, or a .parquet file; a row for each decision, in order.
    probability, reward : str
        Columns with the probability of the logged arm, in (0, 1], and with its reward.
    agent : str, optional
        Column with the agents' names; without it there is one agent.
    arm : str, optional
        Column with the name of the logged arm.
    arms : path or mapping of names to features, optional
        Features of the arms: a file with the columns `arm` and `features`.
    features : str or sequence of str
        In that file, the column with the features as a list, or one column for each.
    offered : str, optional
        Column with the names of the arms on offer, as a list. Without it, all `arms` always were.
    target : str, optional
        Column with the probability that another policy gives to the logged arm.
    time, id : str, optional
        Columns by which rows must be sorted, and unique.

    Raises
    ------
    ValueError
        With file, line and reason of the first rows that are bad.
    """
    path = Path(path)
    catalogue = None if arms is None else _read_arms(arms, arm or "arm", features)
    if catalogue is not None and arm is None:
        raise ValueError("arms are given, but arm does not say which column names them")
    if offered is not None and catalogue is None:
        raise ValueError("offered names arms, but arms does not say what their features are")
    reader = _Reader(catalogue, probability, reward, agent, arm, offered, target, time, id)
    bad: list[str] = []
    count = total = 0
    for line, row in read_rows(path, reader.columns):
        total += 1
        try:
            if isinstance(row, str):
                raise ValueError(row)
            reader.take(line, row)
        except (ValueError, UnknownError) as error:
            count += 1
            if len(bad) < SHOWN:
                bad.append(f"{path}, {'line' if path.suffix == '.csv' else 'row'} {line:,}: {error}")
    if bad:
        more = f"; and {count - SHOWN:,} more" if count > SHOWN else ""
        raise ValueError(
            f"{'; '.join(bad)}{more}. Nothing was evaluated; {total - count:,} of {total:,} rows are good"
        )
    if not total:
        raise ValueError(f"{path} has no rows")
    return reader.events(str(path))


class _Reader:
    """Collects the rows of a file."""

    def __init__(
        self,
        catalogue: ArmSet | None,
        probability: str,
        reward: str,
        agent: str | None,
        arm: str | None,
        offered: str | None,
        target: str | None,
        time: str | None,
        id: str | None,
    ) -> None:
        self._catalogue = catalogue
        self._probability, self._reward, self._agent, self._arm = probability, reward, agent, arm
        self._offered, self._target, self._time, self._id = offered, target, time, id
        wanted = (probability, reward, agent, arm, offered, target, time, id)
        self.columns = list(dict.fromkeys(one for one in wanted if one is not None))
        self._rows: list[tuple[int, float, float, float, int]] = []
        self._names: dict[str, int] = {}
        self._offers: list[Matrix] = []
        self._subsets: dict[tuple[str, ...], ArmSet] = {}
        self._latest: Any = None
        self._lines: dict[str, int] = {}

    def take(self, line: int, row: Mapping[str, Any]) -> None:
        """Check and keep a row."""
        for column in self.columns:
            if row[column] is None or row[column] == "":
                raise ValueError(f"{column} is empty")
        probability = _number(self._probability, row, low=0.0, high=1.0, open_low=True)
        reward = _number(self._reward, row, low=-validation.LARGEST, high=validation.LARGEST)
        target = 0.0 if self._target is None else _number(self._target, row, low=0.0, high=1.0)
        if self._id is not None and (first := self._lines.setdefault(str(row[self._id]), line)) != line:
            raise ValueError(f"{self._id} {validation.show(row[self._id])} is that of row {first:,} already")
        position = 0
        if self._catalogue is not None:
            assert self._arm is not None
            offer = self._catalogue if self._offered is None else self._subset(row[self._offered])
            name = str(row[self._arm])
            if name not in (self._catalogue.names or ()):
                raise ValueError(f"the arm {name!r} has no features")
            if name not in (offer.names or ()):
                raise ValueError(f"the arm {name!r} was chosen, but is not among those on offer")
            position = offer.position(name)
            self._offers.append(offer.features)
        if self._time is not None:
            moment = _moment(self._time, row[self._time])
            if self._latest is not None and moment < self._latest:
                if self._catalogue is not None:
                    self._offers.pop()
                raise ValueError(
                    f"{self._time} {validation.show(row[self._time])} is before that of a row above"
                )
            self._latest = moment
        agent = 0 if self._agent is None else self._names.setdefault(str(row[self._agent]), len(self._names))
        self._rows.append((agent, reward, probability, target, position))

    def _subset(self, value: Any) -> ArmSet:
        assert self._catalogue is not None
        if isinstance(value, str):
            try:
                value = msgspec.json.decode(value, type=list[str])
            except msgspec.MsgspecError:
                raise ValueError(
                    f'{self._offered} must be a list such as ["a", "b"], got {validation.show(value)}'
                ) from None
        names = tuple(map(str, value))
        if names not in self._subsets:
            for name in names:
                if name not in (self._catalogue.names or ()):
                    raise ValueError(f"the arm {name!r} on offer has no features")
            self._subsets[names] = self._catalogue.subset(names)
        return self._subsets[names]

    def events(self, source: str) -> LoggedDecisions:
        """All rows."""
        agents, rewards, probabilities, target, positions = zip(*self._rows, strict=True)
        return LoggedDecisions(
            source,
            np.array(agents, dtype=np.int64),
            max(len(self._names), 1),
            np.array(rewards),
            np.array(probabilities),
            self._offers if self._catalogue is not None else None,
            np.array(positions, dtype=np.int64) if self._catalogue is not None else None,
            np.array(target) if self._target is not None else None,
        )


def _number(column: str, row: Mapping[str, Any], **bounds: Any) -> float:
    value = row[column]
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"{column} must be a number, got {validation.show(value)}") from None
    return validation.number(column, value, **bounds)


def _moment(column: str, value: Any) -> float:
    """A time as a number: it is one, or a date."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{column} must be a number or a date, got {validation.show(value)}") from None
    return value.timestamp() if isinstance(value, datetime) else validation.number(column, value)


def _read_arms(
    arms: str | os.PathLike[str] | Mapping[str, Any], column: str, features: str | Sequence[str]
) -> ArmSet:
    if isinstance(arms, Mapping):
        found = dict(arms)
    else:
        path, found = Path(arms), {}
        for line, row in read_rows(path, [column, *names_of(features)]):
            try:
                if isinstance(row, str):
                    raise ValueError(row)
                x = np.asarray(features_in(row, features), dtype=np.float64)
                dim = len(next(iter(found.values()))) if found else x.size
                if not x.size:
                    raise ValueError(f"the arm {row[column]!r} has no features")
                if row[column] in found:
                    raise ValueError(f"the arm {row[column]!r} is there twice")
                found[str(row[column])] = validation.vector("features", x, dim)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, row {line:,}: {error}") from None
    if not found:
        raise ValueError("arms must name at least one arm, got none")
    return ArmSet.of(found, len(next(iter(found.values()))))


# Journals


class Outcome(msgspec.Struct):
    """What came of a decision with one arm."""

    at: int
    """When it was made, in microseconds since 1970."""
    decided: Decided
    agent: int
    """Whose it is now: agents may have been merged."""
    reward: float | None = None
    """The reward in force."""
    rewarded_at: int = 0
    cancelled: bool = False
    is_default: bool = False


def outcomes(owner: "Owner", since: float | None = None) -> tuple[Fold, Exporter, list[Outcome]]:
    """The decisions in a journal, archived ones included, with what came of the first arm of each.

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
        elif record.place == 0:
            one.reward = record.new if isinstance(record, Corrected) else record.reward
            one.rewarded_at = row.at
            one.is_default = isinstance(record, Missed)
    return fold, exporter, list(found.values())


def is_evaluable(one: Outcome) -> bool:
    """Whether other policies can be evaluated from a decision: one arm, drawn by chance, with a reward."""
    chosen_by_chance = one.decided.probability is not None and one.decided.mode != "holdout"
    return chosen_by_chance and one.reward is not None and not one.cancelled
