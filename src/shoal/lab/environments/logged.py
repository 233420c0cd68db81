"""A user's own log as a bandit: who was shown what, the reward, and the features of what can be shown."""

import csv
import hashlib
import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import numpy as np

from shoal.core import validation
from shoal.lab.environments import sources
from shoal.lab.environments.base import Noise, NoiseScale
from shoal.lab.environments.ratings import ArmFeatures, Numbering, RatedEnvironment, Ratings, prepare_ratings
from shoal.lab.environments.sources import PathLike

Table = Any
"""A mapping from column names to values, a pyarrow table or a pandas data frame."""


class LogOptions(TypedDict, total=False):
    """Options of `LoggedRatings`, documented there."""

    agent: str
    arm: str
    reward: str
    features: Required[PathLike | Table]
    n_agents: int | None
    n_arms: int | None
    dim: int | None
    arms: str
    fill: str
    noise: Noise
    noise_scale: NoiseScale
    param_norm: float
    seed: int | None
    cache: PathLike | None


class LoggedRatings(RatedEnvironment):
    """Agents and arms from a log of rewards.

    Several rewards of one agent for one arm are averaged. Arms are those of the feature table with a reward
    in the log. Ids are compared as text: 7 in one file is "7" in the other.

    Parameters
    ----------
    path : path
        The log, in CSV (commas between columns, with a header) or Parquet.
    features : path or table
        One row per arm: a column of the same name as the log's `arm`, and the features, which are all other
        columns, in order. A CSV or Parquet file, a mapping of columns, a pyarrow table or a data frame.
    form : "csv" or "parquet", optional
        Format of the log; by default recognised by its first bytes.
    agent, arm, reward : str
        Names of the log's columns.
    n_agents, n_arms, dim : int, optional
        How many agents are drawn, and how many arms and features are kept; by default all.
    arms : "first" or "most-rated"
        Which arms are kept: the first in `features`, or those with a reward from most agents.
    fill : "paper" or "tuned"
        How missing rewards are predicted; see `shoal.lab.environments.ratings.FILLS`.
    noise, noise_scale
        As for `Environment`.
    param_norm : float
        Used in place of the largest norm of a true parameter, which real data does not have.
    seed : int or None
        Seed of the draw of agents.
    cache : path, optional
        Directory for prepared data; by default the environment variable SHOAL_CACHE or the user's cache
        directory.

    Examples
    --------
    Would sharing have helped on my data?

    >>> world = shoal.LoggedRatings("log.csv", features="arms.csv", seed=0)  # doctest: +SKIP
    >>> policy = shoal.BASS(n_agents=world.n_agents, dim=world.dim, alpha=0.3, delta=0.1)  # doctest: +SKIP
    >>> shoal.simulate(policy, world, horizon=50_000, seed=0).final_regret  # doctest: +SKIP
    """

    def __init__(
        self,
        path: PathLike,
        *,
        features: PathLike | Table,
        form: str | None = None,
        agent: str = "agent",
        arm: str = "arm",
        reward: str = "reward",
        n_agents: int | None = None,
        n_arms: int | None = None,
        dim: int | None = None,
        arms: str = "first",
        fill: str = "tuned",
        noise: Noise = "gaussian",
        noise_scale: NoiseScale = 1.0,
        param_norm: float = 1.0,
        seed: int | None = None,
        cache: PathLike | None = None,
    ) -> None:
        path = existing(path)
        form = form_of(path) if form is None else validation.one_of("form", form, tuple(ROWS))
        files, digest = [path], None
        if isinstance(features, str | os.PathLike):
            features = existing(features)
            files.append(features)
        else:
            features = _as_arrow(features)
            digest = _table_hash(features)
        prepared = prepare_ratings(
            "logged",
            files,
            lambda: (read_log(path, ROWS[form], agent, arm, reward), read_features(features, arm)),
            arms=arms,
            n_arms=n_arms,
            dim=dim,
            fill=fill,
            cache=cache,
            columns=[agent, arm, reward],
            features=digest,
        )
        super().__init__(
            prepared.filled,
            n_agents=n_agents,
            noise=noise,
            noise_scale=noise_scale,
            param_norm=param_norm,
            seed=seed,
            source=str(path),
        )

    @classmethod
    def from_csv(cls, path: PathLike, **options: Unpack[LogOptions]) -> "LoggedRatings":
        """Read a log as CSV, whatever its first bytes."""
        return cls(path, form="csv", **options)

    @classmethod
    def from_parquet(cls, path: PathLike, **options: Unpack[LogOptions]) -> "LoggedRatings":
        """Read a log as Parquet, or raise an error that says why it is not."""
        return cls(path, form="parquet", **options)


Rows = Callable[[Any, list[str]], Iterator[tuple[str, list[Any]]]]
"""Yields the place (file and line) and the values of the named columns, row by row."""


class LogRows(NamedTuple):
    """The rows of a log, in order: positions in the lists of ids, and rewards."""

    agent_ids: list[str]
    arm_ids: list[str]
    agents: "array[int]"
    arms: "array[int]"
    rewards: "array[float]"


def read_log(path: Path, rows: Rows, agent: str, arm: str, reward: str) -> Ratings:
    """Read a log as a table of mean rewards."""
    return Ratings.collect(*read_events(path, rows, agent, arm, reward))


def read_events(path: Path, rows: Rows, agent: str, arm: str, reward: str) -> LogRows:
    """Read all rows of a log."""
    agent_codes, arm_codes = Numbering(), Numbering()
    agents, arms, rewards = array("i"), array("i"), array("d")
    for place, (who, what, value) in rows(path, [agent, arm, reward]):
        if who in (None, "") or what in (None, ""):
            raise ValueError(f"{place}: {agent} and {arm} must not be empty, got {who!r} and {what!r}")
        rewards.append(_number(place, reward, value))
        agents.append(agent_codes[str(who)])
        arms.append(arm_codes[str(what)])
    if not rewards:
        raise ValueError(f"{path}: no rows")
    return LogRows(list(agent_codes), list(arm_codes), agents, arms, rewards)


def read_features(features: Path | Table, arm: str) -> ArmFeatures:
    """Read the features of arms: the column `arm` holds their ids, every other column is a feature."""
    source = str(features) if isinstance(features, Path) else "features"
    rows: Rows
    if not isinstance(features, Path):
        names, rows = features.column_names, _table_rows
    elif form_of(features) == "csv":
        with sources.reading_file(features), open(features, encoding="utf-8-sig", newline="") as file:
            names = next(csv.reader(file), [])
        rows = _csv_rows
    else:
        names, rows = _parquet_file(features)[1], _parquet_rows
    columns = [name for name in names if name != arm]
    _check_once(source, names, names)
    if arm not in names or not columns:
        found = validation.show(names)
        raise ValueError(f"{source}: expected a column {arm!r} and columns of features, got {found}")
    numbers: dict[str, list[float]] = {}
    for place, (what, *values) in rows(features, [arm, *columns]):
        if str(what) in numbers:
            raise ValueError(f"{place}: arm {str(what)!r} is there twice")
        numbers[str(what)] = [
            _number(place, column, value) for column, value in zip(columns, values, strict=True)
        ]
    if not numbers:
        raise ValueError(f"{source}: no arms")
    return ArmFeatures(np.array(list(numbers)), np.array(list(numbers.values())), source)


def _csv_rows(path: Path, columns: list[str]) -> Iterator[tuple[str, list[Any]]]:
    with sources.reading_file(path), open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        positions = _positions(f"{path}:1", header, columns)
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if len(row) == len(header):
                yield place, [row[position] for position in positions]
            elif row:
                found = validation.show(",".join(row))
                raise ValueError(f"{place}: expected {len(header)} columns, got {len(row)}: {found}")


def _parquet_rows(path: Path, columns: list[str]) -> Iterator[tuple[str, list[Any]]]:
    file, names = _parquet_file(path)
    _positions(str(path), names, columns)
    with sources.reading_archive(path):  # errors in the consumer of the rows are not raised here
        yield from _number_rows(f"{path}: row ", file.iter_batches(columns=columns), columns)


ROWS: dict[str, Rows] = {"csv": _csv_rows, "parquet": _parquet_rows}
"""The reader of each form of log."""


def _table_rows(table: Table, columns: list[str]) -> Iterator[tuple[str, list[Any]]]:
    return _number_rows("features: row ", table.to_batches(), columns)


def _number_rows(prefix: str, batches: Iterable[Any], columns: list[str]) -> Iterator[tuple[str, list[Any]]]:
    number = 0
    for batch in batches:
        for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            number += 1
            yield f"{prefix}{number}", list(row)


def _positions(place: str, header: list[str], columns: list[str]) -> list[int]:
    missing = [column for column in columns if column not in header]
    if missing:
        wanted, found = ", ".join(columns), validation.show(header)
        raise ValueError(f"{place}: expected the columns {wanted} (commas between), got {found}")
    _check_once(place, header, columns)
    return [header.index(column) for column in columns]


def _check_once(place: str, header: list[str], columns: list[str]) -> None:
    counts = Counter(header)
    for column in columns:
        if counts[column] > 1:
            raise ValueError(
                f"{place}: the column {column!r} is there {counts[column]} times, and must be there once"
            )


def _parquet_file(path: Path) -> tuple[Any, list[str]]:
    """The open file and the names of its columns."""
    from shoal.core.parquet import pq

    try:
        file = pq.ParquetFile(path)
        return file, list(file.schema_arrow.names)
    except Exception as error:  # damage may raise Arrow, OS, decoding or memory errors
        raise ValueError(f"{path}: not a Parquet file, or a damaged one ({error})") from error


def _as_arrow(table: Table) -> Table:
    from shoal.core.parquet import pa

    return table if isinstance(table, pa.Table) else pa.table(table)


def _table_hash(table: Table) -> str:
    columns = [(name, table.column(j).to_pylist()) for j, name in enumerate(table.column_names)]
    return hashlib.sha256(repr(columns).encode()).hexdigest()


def _number(place: str, column: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= validation.LARGEST:
        limit = f" of at most {validation.LARGEST:g} in size" if math.isfinite(number) else ""
        raise ValueError(f"{place}: {column} must be a finite number{limit}, got {value!r}")
    return number


def existing(path: PathLike) -> Path:
    """The path of a file that is there."""
    path = Path(path)
    if not path.is_file():
        raise sources.DataUnavailable(f"there is no file {path}")
    return path


def form_of(path: Path) -> str:
    """The form of a file, "csv" or "parquet", by its first bytes."""
    with open(path, "rb") as file:
        return "parquet" if file.read(4) == b"PAR1" else "csv"
