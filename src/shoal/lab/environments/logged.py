"""A user's own log as a bandit: who was shown what, the reward, and the features of what can be shown."""

import os
from array import array
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple, Required, Unpack

import numpy as np

from shoal.core.logs import LogTable, number, read_arms
from shoal.lab.environments import sources
from shoal.lab.environments.ratings import (
    ArmFeatures,
    Numbering,
    RatedEnvironment,
    RatedOptions,
    Ratings,
    prepare_ratings,
)
from shoal.lab.environments.sources import PathLike

Frame = Any
"""A mapping from column names to values, or a data frame: pandas, polars, Arrow."""


class LogOptions(RatedOptions, total=False):
    """Options of `LoggedRatings`, documented there."""

    agent: str
    arm: str
    reward: str
    features: Required[PathLike | Frame]
    n_agents: int | None
    n_arms: int | None
    dim: int | None
    arms: str
    fill: str
    cache: PathLike | None


class LoggedRatings(RatedEnvironment):
    """Agents and arms from a log of rewards.

    Several rewards of one agent for one arm are averaged. Arms are those of the feature table with a reward
    in the log. Ids are compared as text: 7 in one file is "7" in the other.

    Parameters
    ----------
    path : path or frame
        The log, in CSV (commas between columns, with a header) or Parquet; or a mapping of columns or a data
        frame (pandas, polars, Arrow).
    features : path or frame
        One row per arm: a column of the same name as the log's `arm`, and the features, which are a list in
        the column `features`, or all other columns, in order.
    form : "csv" or "parquet", optional
        Format of the log; by default recognised by its first bytes.
    agent, arm, reward : str
        Names of the log's columns.
    n_agents : int, optional
        How many agents are drawn; by default all.
    n_arms : int, optional
        How many arms are kept; by default all.
    dim : int, optional
        How many features are kept; by default all.
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
        path: PathLike | Frame,
        *,
        features: PathLike | Frame,
        form: str | None = None,
        agent: str = "agent",
        arm: str = "arm",
        reward: str = "reward",
        n_agents: int | None = None,
        n_arms: int | None = None,
        dim: int | None = None,
        arms: str = "first",
        fill: str = "tuned",
        cache: PathLike | None = None,
        **options: Unpack[RatedOptions],
    ) -> None:
        log, table = open_table(path, "log", form), open_table(features, "features")

        def read() -> tuple[Ratings, ArmFeatures]:
            ratings = Ratings.collect(*read_events(log, agent, arm, reward))
            known = read_arms(table, arm)
            return ratings, ArmFeatures(np.array(list(known)), np.array(list(known.values())), table.name)

        prepared = prepare_ratings(
            "logged",
            [one.path for one in (log, table) if one.path is not None],
            read,
            arms=arms,
            n_arms=n_arms,
            dim=dim,
            fill=fill,
            cache=cache,
            columns=[agent, arm, reward],
            log=None if log.path is not None else log.digest([agent, arm, reward]),
            features=None if table.path is not None else table.digest(table.names()),
        )
        super().__init__(prepared.filled, n_agents=n_agents, source=log.name, **options)

    @classmethod
    def from_csv(cls, path: PathLike, **options: Unpack[LogOptions]) -> "LoggedRatings":
        """Read a log as CSV, whatever its first bytes."""
        return cls(path, form="csv", **options)

    @classmethod
    def from_parquet(cls, path: PathLike, **options: Unpack[LogOptions]) -> "LoggedRatings":
        """Read a log as Parquet, or raise an error that says why it is not."""
        return cls(path, form="parquet", **options)


class LogRows(NamedTuple):
    """The rows of a log, in order: positions in the lists of ids, and rewards."""

    agent_ids: list[str]
    arm_ids: list[str]
    agents: "array[int]"
    arms: "array[int]"
    rewards: "array[float]"


def read_events(
    table: LogTable, agent: str, arm: str, reward: str, known: tuple[Container[str], str] | None = None
) -> LogRows:
    """Read all rows of a log, whose arms must be among the `known` ones, of a table of this name."""
    agent_codes, arm_codes = Numbering(), Numbering()
    agents, arms, rewards = array("i"), array("i"), array("d")

    def take(line: int, row: list[Any]) -> None:
        if known is not None and str(row[1]) not in known[0]:
            raise ValueError(f"arm {str(row[1])!r} has no row in {known[1]}")
        rewards.append(number(reward, row[2]))
        agents.append(agent_codes[str(row[0])])
        arms.append(arm_codes[str(row[1])])

    table.read([agent, arm, reward], take, "read")
    return LogRows(list(agent_codes), list(arm_codes), agents, arms, rewards)


def open_table(source: PathLike | Frame, name: str, form: str | None = None) -> LogTable:
    """A table, or an error that names a file that is not there; errors call a frame `name`."""
    if isinstance(source, str | os.PathLike) and not Path(source).is_file():
        raise sources.DataUnavailable(f"there is no file {source}")
    return LogTable(source, form, name)
