"""Importing logs: samples that were not decided here, from CSV and Parquet files.

A file is read twice: every row is checked before the first is learned, so that a bad one is named and nothing
is half imported. Each row is an observation under an id that follows from the file and the line, so that an
import that was interrupted can be made again: rows that are there already are not counted twice.
"""

import csv
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from shoal.core import validation
from shoal.live.journal.arms import ArmSet, checked_name
from shoal.live.journal.fold import Fold
from shoal.live.protocol.errors import ControllerError, GoneError

if TYPE_CHECKING:
    from shoal.live.population.commands import Turn
    from shoal.live.population.population import Population

AT_ONCE = 1_000
"""Rows that are checked, and learned in one commit, together."""
SHOWN = 5
"""Bad rows that an error names."""
KEPT_BAD = 1_000
"""Bad rows that a result names."""

Progress = Callable[[int, int], None]


class BadRow(NamedTuple):
    """A row that cannot be learned."""

    line: int
    """Where it starts: a line of a CSV file, the heading being the first; a row of a Parquet file, from 1."""
    reason: str


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


class _Log:
    """The rows of a file, by the columns that hold what is needed."""

    def __init__(
        self,
        path: Path,
        *,
        agent: str,
        reward: str,
        features: str | Sequence[str],
        arm: str | None,
        arms: ArmSet | None,
        id: str | None,
    ) -> None:
        self.path, self.agent, self.reward, self.arm, self.id = path, agent, reward, arm, id
        self.features, self.arms = features, arms
        self.columns = [agent, reward, *([arm] if arm is not None else names_of(features))]
        if id is not None:
            self.columns.append(id)
        self.digest = _digest(path) if id is None else ""

    def samples(self) -> Iterator[_Sample | BadRow]:
        """The rows in order, their numbers not yet checked."""
        for line, row in read_rows(self.path, self.columns):
            if isinstance(row, str):
                yield BadRow(line, row)
                continue
            try:
                yield self._sample(line, row)
            except (ValueError, ControllerError) as error:
                yield BadRow(line, str(error))

    def _sample(self, line: int, row: Mapping[str, Any]) -> _Sample:
        name = row[self.agent]
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)  # logs often number their agents
        if self.arms is not None:
            assert self.arm is not None
            x: Any = self.arms.features[self.arms.position(str(row[self.arm]))]
        else:
            x = features_in(row, self.features)
        key = f"{self.digest}-{line:09d}" if self.id is None else str(row[self.id])
        return _Sample(line, checked_name(self.agent, name), x, row[self.reward], key)

    def where(self, line: int) -> str:
        """A row, for an error message."""
        return f"{self.path}, {'line' if self.path.suffix == '.csv' else 'row'} {line:,}"


def import_log(
    population: "Population",
    path: str | os.PathLike[str],
    *,
    agent: str,
    reward: str,
    features: str | Sequence[str],
    arm: str | None,
    arms: str | os.PathLike[str] | Mapping[str, Any] | None,
    id: str | None,
    skip_bad: bool,
    progress: Progress | None,
) -> Imported:
    """See `Population.import_log`."""
    if arms is not None and arm is None:
        raise ValueError("arms are given, but arm does not say which column names them")
    known_arms = None if arm is None else _arms(population, arms, arm, features)
    log = _Log(Path(path), agent=agent, reward=reward, features=features, arm=arm, arms=known_arms, id=id)
    total, bad, first = _check(population, log)
    if bad and not skip_bad:
        raise ValueError(_sentence(log, first, len(bad), total))
    return _learn(population, log, total, bad, first, skip_bad, progress)


def _check(population: "Population", log: _Log) -> tuple[int, set[int], list[BadRow]]:
    """The number of rows, the lines of those that are bad, and what is wrong with the first of them."""
    total, bad, first = 0, set[int](), list[BadRow]()
    rows = log.samples()
    while batch := list(islice(rows, AT_ONCE)):
        total += len(batch)
        for row in population.owner.read(lambda fold, batch=batch: _wrong(fold, batch, population)):  # type: ignore[misc]
            bad.add(row.line)
            if len(first) < KEPT_BAD:
                first.append(row)
    return total, bad, first


def _wrong(fold: Fold, batch: list[_Sample | BadRow], population: "Population") -> list[BadRow]:
    found = []
    for row in batch:
        if isinstance(row, BadRow):
            found.append(row)
            continue
        try:
            population.owner.commands.check_sample(fold, row.x, row.reward, row.key)
        except ValueError as error:
            found.append(BadRow(row.line, str(error)))
    return found


def _learn(
    population: "Population",
    log: _Log,
    total: int,
    bad: set[int],
    first: list[BadRow],
    skip_bad: bool,
    progress: Progress | None,
) -> Imported:
    n_good = total - len(bad)
    added = known = gone = done = 0
    archived = population.owner.base.imports.get(log.digest, 0)  # up to this line, its rows were archived
    good = (row for row in log.samples() if isinstance(row, _Sample) and row.line not in bad)
    while batch := list(islice(good, AT_ONCE)):
        done += len(batch)
        new = [row for row in batch if row.line > archived]
        known += len(batch) - len(new)
        for row, result in zip(new, _observed(population, new), strict=True):
            if isinstance(result, GoneError):
                gone += 1
            elif isinstance(result, Exception) and not skip_bad:
                raise ValueError(
                    f"{log.where(row.line)}: {result}. Other rows have been imported; importing the file "
                    "again does not count them twice"
                ) from result
            elif isinstance(result, Exception):  # such as another row under the same id
                bad.add(row.line)
                first.append(BadRow(row.line, str(result)))
            elif result:
                added += 1
            else:
                known += 1
        if progress is not None:
            progress(done, n_good)
    return Imported(total, added, known, gone, len(bad), tuple(first[:KEPT_BAD]))


def _observed(population: "Population", samples: list[_Sample]) -> list[Any]:
    """Learn samples that have been checked; of each its error, or whether it is new."""
    commands = population.owner.commands

    def one(turn: "Turn", sample: _Sample) -> bool:
        return commands.observe(turn, sample.agent, sample.x, sample.reward, sample.key)

    return population.owner.perform_each(commands.OBSERVES, samples, one)


def _sentence(log: _Log, first: list[BadRow], count: int, total: int) -> str:
    shown = "; ".join(f"{log.where(row.line)}: {row.reason}" for row in first[:SHOWN])
    more = f"; and {count - SHOWN:,} more" if count > SHOWN else ""
    return f"{shown}{more}. Nothing was imported; {total - count:,} of {total:,} rows are good"


# Files


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The rows of a file with their lines; of one that cannot be read, why."""
    if path.suffix == ".csv":
        return _rows_of_csv(path, columns)
    if path.suffix == ".parquet":
        return _rows_of_parquet(path, columns)
    raise ValueError(f"path must end in .csv or .parquet, got {str(path)!r}")


def _rows_of_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            heading = next(reader, [])
            places = [(column, place) for place, column in enumerate(heading) if column in columns]
            _check_columns(path, columns, heading)
            line = reader.line_num + 1
            for row in reader:
                if len(row) == len(heading):
                    yield line, {column: row[place] for column, place in places}
                elif row:  # an empty line is none
                    yield line, f"{len(row)} fields, where the heading has {len(heading)}"
                line = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}, line {reader.line_num + 1:,}: {error}") from error


def _rows_of_parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    from shoal.core.parquet import pa, pq

    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, columns, file.schema_arrow.names)
            line = 0
            for batch in file.iter_batches(AT_ONCE, columns=list(columns)):
                values = [batch.column(column).to_pylist() for column in columns]
                for row in zip(*values, strict=True):
                    line += 1
                    empty = [column for column, value in zip(columns, row, strict=True) if value is None]
                    found: dict[str, Any] | str = dict(zip(columns, row, strict=True))
                    yield line, f"{empty[0]} is empty" if empty else found
    except pa.ArrowException as error:
        raise ValueError(f"{path} is no Parquet file that can be read: {error}") from error


def _check_columns(path: Path, columns: Sequence[str], there: Sequence[str]) -> None:
    for column in columns:
        if there.count(column) != 1:
            often = "no column" if column not in there else f"{there.count(column)} columns"
            raise ValueError(
                f"{path} has {often} {column!r}; it has {', '.join(map(repr, there)) or 'none at all'}"
            )


def _digest(path: Path) -> str:
    """Names a file by its content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()


# Features


def names_of(features: str | Sequence[str]) -> list[str]:
    return [features] if isinstance(features, str) else list(features)


def features_in(row: Mapping[str, Any], features: str | Sequence[str]) -> Any:
    """The features in a row: one list, in a CSV file as JSON, or a number from each of several columns."""
    if not isinstance(features, str):
        return [row[column] for column in features]
    value = row[features]
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value, type=list[float])
    except msgspec.MsgspecError:
        raise ValueError(
            f"{features} must be a list such as [0.5, 1.0], got {validation.show(value)}"
        ) from None


def _arms(
    population: "Population",
    arms: str | os.PathLike[str] | Mapping[str, Any] | None,
    column: str,
    features: str | Sequence[str],
) -> ArmSet:
    """The arms that a log names: given, in a file, or the catalogue."""
    if arms is None:
        arms = population.catalogue
        if not arms:
            raise ValueError(
                f"arms must be given: population {population.name!r} has no catalogue to find them in"
            )
    if not isinstance(arms, Mapping):
        path, found = Path(arms), dict[str, Any]()
        for line, row in read_rows(path, [column, *names_of(features)]):
            if isinstance(row, str):
                raise ValueError(f"{path}, row {line:,}: {row}")
            name = str(row[column])
            if name in found:
                raise ValueError(f"{path}, row {line:,}: the arm {name!r} is there twice")
            try:
                x = validation.vector("features", features_in(row, features), population.settings.dim)
            except ValueError as error:
                raise ValueError(f"{path}, row {line:,}: {error}") from None
            found[name] = np.ascontiguousarray(x)
        arms = found
    return ArmSet.of(arms, population.settings.dim)
