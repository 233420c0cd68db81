"""Environments whose arms depend on who pulls: what a user is offered, which patient a clinic sees.

One agent pulls per round. What it is offered is a function of the seed, the round and the agent, so all
policies are played on the same offers.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.core import validation
from shoal.core.types import Integers, Matrix, Tensor
from shoal.lab.environments.base import Environment
from shoal.lab.environments.sources import DataUnavailable, PathLike, reading_file

BLOCK = 256
"""Number of rounds whose random numbers are drawn at once."""


class OfferedArms(NamedTuple):
    """What n agents are offered, and the mean reward of each arm."""

    arms: Tensor  # (n, K, d)
    means: Matrix  # (n, K)


class PersonalOffers(Environment):
    """Base class; a subclass has `offers(rounds, agents)`, from the numbers that `_uniform` draws.

    `arms` is what agent 0 would be offered in the first round, and row i of `mean_rewards` belongs to what
    agent i would be.
    """

    def __init__(self, n_agents: int, *, draws: int, param_norm: float, seed: int | None) -> None:
        seed = validation.seed_or_none("seed", seed)
        self._draws = draws
        self._entropy = int(np.random.default_rng().integers(2**63)) if seed is None else seed
        everybody = np.arange(n_agents)
        first = self.offers(np.ones_like(everybody), everybody)
        super().__init__(first.arms[0], mean_rewards=first.means, noise="bernoulli", param_norm=param_norm)

    def offers(self, rounds: Integers, agents: Integers) -> OfferedArms:
        """What `agents` (n,) are offered in `rounds` (n,), counted from 1."""
        raise NotImplementedError

    def arms_in(self, first: int, last: int) -> Tensor:
        """Room for the arms of rounds `first`, …, `last`: `rewards_in`, which knows who pulls, fills it."""
        return np.zeros((last - first + 1, self.n_arms, self.dim))

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        """Mean rewards, shape (n, K), of `agents` (n,) in `rounds` (n,), whose offers are put into `arms`."""
        if len(np.unique(rounds)) < len(rounds):
            name = type(self).__name__
            raise ValueError(
                f"pulling must be one agent per round in {name}, where arms depend on who pulls: "
                "'asynchronous', 'zipf' or a sequence of agents"
            )
        found = self.offers(rounds, agents)
        arms[rounds - first] = found.arms
        return found.means

    def _uniform(self, rounds: Integers) -> Matrix:
        """(n, draws) numbers in [0, 1) that depend on the seed and the round alone."""
        drawn = np.empty((len(rounds), self._draws))
        blocks, places = np.divmod(rounds - 1, BLOCK)
        for block in np.unique(blocks).tolist():
            numbers = np.random.default_rng([7, self._entropy, block]).random((BLOCK, self._draws))
            drawn[blocks == block] = numbers[places[blocks == block]]
        return drawn


def given_path(path: PathLike | None, variable: str) -> Path:
    """The path that was given, or else that in an environment variable."""
    given = path or os.environ.get(variable)
    if not given:
        raise DataUnavailable(f"path must be given, here or as {variable}; docs/real-data.md says what it is")
    return Path(given)


def read_columns(path: Path, columns: Sequence[str], separator: str) -> Iterator[tuple[str, list[str]]]:
    """Some columns of a table with a heading: for each line its place, for errors, and the values."""
    if not path.is_file():
        raise DataUnavailable(f"there is no file {path}; docs/real-data.md says where to get it")
    # Only names, which are not used, have more than ASCII.
    with reading_file(path), path.open(encoding="utf-8", errors="replace", newline="") as lines:
        rows = csv.reader(lines, delimiter=separator)
        heading = next(rows, [])
        for column in columns:
            if column not in heading:
                found = validation.show(separator.join(heading))
                raise ValueError(f"{path}:1: expected a heading with {column!r}, got {found}")
        places = [heading.index(column) for column in columns]
        for row in rows:
            where = f"{path}:{rows.line_num}"
            if len(row) == len(heading):
                yield where, [row[place] for place in places]
            elif row:
                raise ValueError(f"{where}: expected {len(heading)} columns, got {len(row)}")
