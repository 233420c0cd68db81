"""Importing logs: samples that were not decided here, from CSV and Parquet files and data frames.

A file is read twice: every row is checked before the first is learned, so that a bad one is named and nothing
is half imported. Each row is an observation under an id that follows from the file and the line, so that an
import that was interrupted can be made again: rows that are there already are not counted twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shoal.core.logs import BadRow, LogTable, columns_of, features_in, read_arms
from shoal.live.journal.arms import ArmSet, checked_name
from shoal.live.journal.fold import Fold
from shoal.live.protocol.errors import ControllerError, GoneError
from shoal.live.protocol.messages import NewObservation

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner
    from shoal.live.population.population import Population

AT_ONCE = 1_000
"""Rows that are checked, and learned in one commit, together."""
KEPT_BAD = 1_000
"""Bad rows that a result names."""

Progress = Callable[[int, int], None]


class Imported(msgspec.Struct, frozen=True):
    """What came of an import."""

    rows: int
    """Rows in the file."""
    added: int
    """Rows that were learned now."""
    known: int
    """Rows that had been learned before."""
    gone: int
    """Rows of agents that were forgotten after an earlier import; they stay forgotten."""
    n_bad: int
    """Rows that were passed over, as `skip_bad` asked for."""
    bad: tuple[BadRow, ...]
    """The first thousand of them."""


class _Sample(NamedTuple):
    line: int
    agent: str
    x: Any
    reward: Any
    key: str

    def request(self) -> NewObservation:
        """The same as a command takes it."""
        return NewObservation(self.agent, self.reward, self.x, id=self.key)


def import_log(
    population: "Population",
    source: Any,
    *,
    agent: str,
    reward: str,
    features: str | Sequence[str] | None,
    arm: str | None,
    arms: Any,
    id: str | None,
    skip_bad: bool,
    progress: Progress | None,
) -> Imported:
    """See `Population.import_log`."""
    if arms is not None and arm is None:
        raise ValueError("arms are given, but arm does not say which column names them")
    known = None if arm is None else _arms(population, arms, arm, features)
    features = features or "features"
    columns = [agent, reward, *([] if id is None else [id])]
    columns += columns_of(features) if arm is None else [arm]
    log = _Import(population.owner, LogTable(source), columns, features, known, has_ids=id is not None)
    log.check()
    if log.bad and not skip_bad:
        raise ValueError(log.table.complaint(log.first_bad, len(log.bad), log.total, "imported"))
    return log.learn(skip_bad, progress or (lambda done, total: None))


class _Import:
    """A log on its way into a population: all rows are checked, then the good ones are learned."""

    def __init__(
        self,
        owner: "Owner",
        table: LogTable,
        columns: list[str],
        features: str | Sequence[str],
        arms: ArmSet | None,
        *,
        has_ids: bool,
    ) -> None:
        self._owner, self.table, self._columns = owner, table, columns
        self._features, self._arms = features, arms
        self._digest = "" if has_ids else table.digest(columns)
        self.total = 0
        self.bad: set[int] = set()
        """Lines of bad rows."""
        self.first_bad: list[BadRow] = []

    def check(self) -> None:
        """Count the rows, and find those that are bad."""
        rows = self._samples()
        while batch := list(islice(rows, AT_ONCE)):
            self.total += len(batch)
            self._owner.read(partial(self._check, batch))

    def _check(self, batch: list[_Sample | BadRow], fold: Fold) -> None:
        for row in batch:
            try:
                if isinstance(row, BadRow):
                    raise ValueError(row.reason)
                self._owner.commands.check_sample(fold, row.x, row.reward, row.key)
            except ValueError as error:
                self._reject(row.line, str(error))

    def _reject(self, line: int, reason: str) -> None:
        self.bad.add(line)
        if len(self.first_bad) < KEPT_BAD:
            self.first_bad.append(BadRow(line, reason))

    def learn(self, skip_bad: bool, progress: Progress) -> Imported:
        """Learn the good rows, many in one commit."""
        commands, n_good, done = self._owner.commands, self.total - len(self.bad), 0
        counts = {"added": 0, "known": 0, "gone": 0}
        archived = self._owner.base.imports.get(self._digest, 0)  # up to this line, its rows were archived
        good = (row for row in self._samples() if isinstance(row, _Sample) and row.line not in self.bad)
        while batch := list(islice(good, AT_ONCE)):
            new = [row for row in batch if row.line > archived]
            counts["known"] += len(batch) - len(new)
            results = self._owner.perform_each(
                commands.OBSERVES, new, lambda turn, row: commands.observe(turn, row.request())
            )
            for row, result in zip(new, results, strict=True):
                if not isinstance(result, Exception):
                    counts["added" if result else "known"] += 1
                elif isinstance(result, GoneError):
                    counts["gone"] += 1
                elif skip_bad:  # such as another row under the same id
                    self._reject(row.line, str(result))
                else:
                    raise ValueError(
                        f"{self.table.where(row.line)}: {result}. Other rows have been imported; "
                        "importing the file again does not count them twice"
                    ) from result
            done += len(batch)
            progress(done, n_good)
        return Imported(rows=self.total, **counts, n_bad=len(self.bad), bad=tuple(self.first_bad))

    def _samples(self) -> Iterator[_Sample | BadRow]:
        """The rows in order, their numbers not yet checked."""
        for line, row in self.table.rows(self._columns):
            try:
                yield BadRow(line, row) if isinstance(row, str) else self._sample(line, *row)
            except (ValueError, ControllerError) as error:
                yield BadRow(line, str(error))

    def _sample(self, line: int, name: Any, reward: Any, *rest: Any) -> _Sample:
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)  # logs often number their agents
        key, rest = (f"{self._digest}-{line:09d}", rest) if self._digest else (str(rest[0]), rest[1:])
        if self._arms is None:
            x = features_in(self._features, rest)
        else:
            x = self._arms.features[self._arms.position(str(rest[0]))]
        return _Sample(line, checked_name(self._columns[0], name), x, reward, key)


def _arms(
    population: "Population",
    arms: Any,
    column: str,
    features: str | Sequence[str] | None,
) -> ArmSet:
    """The arms that a log names: given, in a file or a frame, or the catalogue."""
    if arms is None:
        arms = population.catalogue
        if not arms:
            raise ValueError(
                f"arms must be given: population {population.name!r} has no catalogue to find them in"
            )
    if not isinstance(arms, Mapping):
        arms = read_arms(LogTable(arms, name="arms"), column, features, population.settings.dim)
    return ArmSet.of(arms, population.settings.dim)
