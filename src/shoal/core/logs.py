"""Logs and tables of arms: named columns of CSV files, Parquet files and data frames.

Everything that takes a log reads it here: `shoal recommend`, `shoal evaluate`, `shoal population import` and
`LoggedRatings`. A file is checked whole before anything is made of it; bad rows are named by file and line.
"""

import contextlib
import csv
import functools
import hashlib
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shoal.core import frames, validation
from shoal.core.types import Matrix, Vector

FORMS = ("csv", "parquet")
_digest = functools.partial(hashlib.blake2b, digest_size=12)
FEW = 5
"""Rows from which on a column that counts them is no accident."""
MOST_FEATURES = 10_000
"""Of an agent: the largest `agent_dim` of a policy."""
SHOWN = 5
"""Bad rows that an error names."""


number = functools.partial(validation.number, low=-validation.LARGEST, high=validation.LARGEST)
"""The number in a cell, which may be text: `number(column, value)`."""


class BadRow(NamedTuple):
    """A row that cannot be used."""

    line: int
    """Where it starts: a line of a CSV file, the heading being the first; otherwise a row, from 1."""
    reason: str


class LogTable:
    """Rows with named columns.

    Parameters
    ----------
    source : path or frame
        A CSV file (commas between columns, with a heading) or a Parquet file; or a mapping of columns or a
        data frame (pandas, polars, Arrow).
    form : "csv" or "parquet", optional
        Format of a file; by default recognised by its first bytes.
    name : str
        What errors call a frame; a file is called by its path.
    """

    def __init__(self, source: Any, form: str | None = None, name: str = "log") -> None:
        self.name, self.path = name, None
        if isinstance(source, str | os.PathLike):
            self.path = Path(source)
            self.name, self._form = str(self.path), form or _form_of(self.path)
            validation.one_of("form", self._form, FORMS)
        else:
            self._frame, self._form = frames.open_frame(name, source), "frame"

    def where(self, line: int) -> str:
        """A row, for an error message."""
        return f"{self.name}, {'line' if self._form == 'csv' else 'row'} {line:,}"

    def names(self) -> list[str]:
        """The names of its columns."""
        if self._form == "csv":
            return next(self._lines(), (1, list[str]()))[1]
        if self._form == "frame":
            return frames.names_in(self._frame)
        with self._parquet() as file:
            return list(file.schema_arrow.names)

    def digest(self, columns: Sequence[str]) -> str:
        """Names a file by its content, and a frame by that of some columns."""
        if self.path is not None:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, _digest).hexdigest()
        self._names_with(columns)
        content = _digest(repr(list(columns)).encode())
        for batch in frames.batches(self._frame, columns):
            content.update(repr(batch).encode())
        return content.hexdigest()

    def rows(
        self, columns: Sequence[str], required: int | None = None
    ) -> Iterator[tuple[int, list[Any] | str]]:
        """The lines of all rows with their values in some columns; if one cannot be used, why.

        No cell may be empty, or none in the first `required` columns.
        """
        names = self._names_with(columns)
        if self._form == "csv":
            places = [names.index(column) for column in columns]
            for line, row in itertools.islice(self._lines(), 1, None):
                if len(row) == len(names):
                    yield line, _filled(columns[:required], [row[place] for place in places])
                elif row:  # an empty line is no row
                    counts = f"{len(row)} fields, where the heading has {len(names)}"
                    yield line, f"{counts}: {validation.show(row)}"
            return
        for line, values in enumerate(self._values(columns), 1):
            yield line, _filled(columns[:required], list(values))

    def _names_with(self, columns: Sequence[str]) -> list[str]:
        """The names of all columns, among which each of some must be once."""
        names = self.names()
        for column in columns:
            if names.count(column) != 1:
                often = "no column" if column not in names else f"{names.count(column)} columns"
                found = ", ".join(map(repr, names)) or "none at all"
                commas = " (commas separate columns)" if self._form == "csv" and len(names) == 1 else ""
                raise ValueError(f"{self.name} has {often} {column!r}; it has {found}{commas}")
        return names

    def _values(self, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The values in some columns of a Parquet file or a frame, row by row."""
        if self._form == "frame":
            for batch in frames.batches(self._frame, columns):
                yield from zip(*batch, strict=True)
            return
        with self._parquet() as file:
            for batch in file.iter_batches(columns=list(dict.fromkeys(columns))):
                yield from zip(*(batch.column(column).to_pylist() for column in columns), strict=True)

    def read(
        self,
        columns: Sequence[str],
        take: Callable[[int, list[Any]], None],
        done: str,
        *,
        required: int | None = None,
    ) -> None:
        """Give every row to `take`, and raise an error that names those it refuses with a ValueError.

        `done` says what has not been done with any row then; `required` is that of `rows`.
        """
        bad, count, total = list[BadRow](), 0, 0
        for line, row in self.rows(columns, required):
            total += 1
            try:
                if isinstance(row, str):
                    raise ValueError(row)
                take(line, row)
            except ValueError as error:
                count += 1
                if count <= SHOWN:
                    bad.append(BadRow(line, str(error)))
        if bad:
            raise ValueError(self.complaint(bad, count, total, done))
        if not total:
            raise ValueError(f"{self.name} has no rows")

    def complaint(self, bad: Sequence[BadRow], count: int, total: int, done: str) -> str:
        """The first of `count` bad rows, and why nothing was done."""
        shown = "; ".join(f"{self.where(row.line)}: {row.reason}" for row in bad[:SHOWN])
        more = f"; and {count - SHOWN:,} more" if count > SHOWN else ""
        return f"{shown}{more}. Nothing was {done}; {total - count:,} of {total:,} rows are good"

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """The heading and the rows of a CSV file, each with the line where it starts."""
        assert self.path is not None
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            reader, line = csv.reader(file), 1
            try:
                for row in reader:
                    yield line, row
                    line = reader.line_num + 1
            except (csv.Error, UnicodeDecodeError) as error:
                # Text is decoded in blocks, so the damage may be some lines further down.
                place = f"{self.name}, line {reader.line_num + 1:,} or later"
                raise ValueError(f"{place}: damaged, or not CSV in UTF-8 ({error})") from error

    @contextlib.contextmanager
    def _parquet(self) -> Iterator[Any]:
        from shoal.core.parquet import pq

        try:
            with pq.ParquetFile(self.path) as file:
                yield file
        except Exception as error:  # damage may raise Arrow, OS, decoding or memory errors
            raise ValueError(f"{self.name}: not a Parquet file, or a damaged one ({error})") from error


def read_arms(
    table: LogTable, arm: str, features: str | Sequence[str] | None = None, dim: int | None = None
) -> dict[str, Vector]:
    """The features of arms, by their names, from a table with a row for each.

    Parameters
    ----------
    table : LogTable
    arm : str
        The column of names, which are compared as text.
    features : str or sequence of str, optional
        The column with the features as a list, or one column for each. By default the column `features` if
        there is one, otherwise all columns but `arm`, in order.
    dim : int, optional
        Number of features; by default that of the first row.
    """
    found: dict[str, Vector] = {}
    if features is None:
        names = table.names()
        features = "features" if "features" in names else [name for name in names if name != arm]

    def take(line: int, row: list[Any]) -> None:
        name, x = str(row[0]), features_in(features, row[1:])
        if name in found:
            raise ValueError(f"the arm {name!r} is there twice")
        if not np.size(x):
            raise ValueError(f"the arm {name!r} has no features")
        length = dim or len(next(iter(found.values()), np.ravel(x)))
        found[name] = validation.vector("features", x, length)

    table.read([arm, *columns_of(features)], take, "read")
    if not isinstance(features, str) and len(found) >= FEW:
        _warn_of_row_numbers(table.name, features, np.array(list(found.values())))
    return found


class AgentTable(NamedTuple):
    """What a table says of agents."""

    columns: list[str]
    values: Matrix
    """(N, p); NaN is a missing entry."""
    known: int
    """Agents with a row."""
    others: int
    """Rows of other agents, which are ignored."""


def read_agents(table: LogTable, agent: str, ids: Sequence[str]) -> AgentTable:
    """The features of the agents `ids` from a table with a row for each: all columns but `agent`, in order.

    Cells may be empty, and agents without a row have no entry.
    """
    columns = [name for name in table.names() if name != agent]
    if len(columns) > MOST_FEATURES:
        raise ValueError(
            f"{table.name} has {len(columns):,} columns of features, more than {MOST_FEATURES:,}"
        )
    places, seen = {name: place for place, name in enumerate(ids)}, set[str]()
    values = np.full((len(ids), len(columns)), np.nan)

    def entry(column: str, value: Any) -> float:
        is_missing = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
        return math.nan if is_missing else _feature(column, value)

    def take(line: int, row: list[Any]) -> None:
        name = str(row[0])
        if name in seen:
            raise ValueError(f"the agent {name!r} is there twice")
        x = [entry(column, value) for column, value in zip(columns, row[1:], strict=True)]
        seen.add(name)
        if name in places:
            values[places[name]] = x

    table.read([agent, *columns], take, "read", required=1)
    if not columns:
        raise ValueError(f"{table.name} has no column but {agent!r}: nothing is said of the agents")
    others = len(seen - places.keys())
    if others == len(seen):
        raise ValueError(f"{table.name} has no row of an agent of the log, whose first is {ids[0]!r}")
    return AgentTable(columns, values, len(seen) - others, others)


def _warn_of_row_numbers(name: str, columns: Sequence[str], values: Matrix) -> None:
    """Name a column that counts the rows, as exported tables often have one."""
    for column, counted in zip(columns, (np.diff(values, axis=0) == 1.0).all(axis=0), strict=True):
        if counted:
            warnings.warn(
                f"{name}: column {column!r} is the row's number, which says nothing of an arm; leave it out",
                stacklevel=4,
            )


def columns_of(features: str | Sequence[str]) -> list[str]:
    """The columns that hold features."""
    return [features] if isinstance(features, str) else list(features)


def features_in(features: str | Sequence[str], values: Sequence[Any]) -> Any:
    """The features in a row: a list in one column, or a number from each of several."""
    if not isinstance(features, str):
        return [_feature(column, value) for column, value in zip(features, values, strict=True)]
    return listed(features, values[0], list[float], "[0.5, 1.0]")


def _feature(column: str, value: Any) -> float:
    try:
        return float(number(column, value))
    except ValueError as error:
        try:
            float(value)
        except (TypeError, ValueError):
            advice = "for a category, give each of its values a column of 0 and 1 (one-hot)"
            raise ValueError(f"{error}; {advice}") from None
        raise  # a number, but not one that can be used


def listed(column: str, value: Any, kind: type, example: str) -> Any:
    """The list in a cell: as it is, or in CSV files as JSON."""
    try:
        return msgspec.json.decode(value, type=kind) if isinstance(value, str) else value
    except msgspec.MsgspecError:
        found = validation.show(value)
        raise ValueError(f"{column} must be a list such as {example}, got {found}") from None


def _filled(columns: Sequence[str], row: list[Any]) -> list[Any] | str:
    for column, value in zip(columns, row, strict=False):
        if value is None or value == "":
            return f"{column} is empty"
    return row


def _form_of(path: Path) -> str:
    with path.open("rb") as file:
        return "parquet" if file.read(4) == b"PAR1" or path.suffix == ".parquet" else "csv"
