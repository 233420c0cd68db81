"""What sharing has paid each agent so far: a part of a population's state, kept by the fold.

The *dividend* of a reward is the squared error of what the agent's own samples predicted when the arm was
chosen, minus that of what the policy predicted. Positive: those who lend to the agent helped.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from shoal.core.types import AnyArray
from shoal.live.journal.records import Settings


def dividend(own: float, pooled: float, reward: float, settings: Settings) -> float:
    """The dividend of one reward; predictions end where rewards are known to."""
    low, high = settings.reward_low, settings.reward_high
    if low is not None and high is not None:
        own, pooled = min(max(own, low), high), min(max(pooled, low), high)
    return (own - reward) ** 2 - (pooled - reward) ** 2


class Sums(NamedTuple):
    """What is kept of a sequence of terms."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, terms: Sequence[float] | AnyArray) -> "Sums":
        """Of terms, shape (n,)."""
        values = np.asarray(terms, dtype=np.float64)
        return cls(len(values), float(values.sum()), float(values @ values))

    @property
    def mean(self) -> float:
        """nan if there are no terms."""
        return self.total / self.n if self.n else math.nan

    @property
    def variance(self) -> float:
        """Of the terms about their mean."""
        return max(self.squares / self.n - self.mean**2, 0.0) if self.n else math.nan


class Tally(msgspec.Struct, array_like=True):
    """Sums of dividends, one entry for each agent."""

    counts: list[int] = []
    totals: list[float] = []
    squares: list[float] = []

    def join(self) -> None:
        """An agent more."""
        self.counts.append(0)
        self.totals.append(0.0)
        self.squares.append(0.0)

    def add(self, agent: int, value: float) -> None:
        """A reward has come."""
        self.counts[agent] += 1
        self.totals[agent] += value
        self.squares[agent] += value * value

    def replace(self, agent: int, old: float, new: float) -> None:
        """A reward was corrected."""
        self.totals[agent] += new - old
        self.squares[agent] += new * new - old * old

    def merge(self, agent: int, other: int) -> None:
        """The rewards of `other` are `agent`'s."""
        self.counts[agent] += self.counts[other]
        self.totals[agent] += self.totals[other]
        self.squares[agent] += self.squares[other]
        self.forget(other)

    def forget(self, agent: int) -> None:
        """Keep nothing of an agent."""
        self.counts[agent], self.totals[agent], self.squares[agent] = 0, 0.0, 0.0

    def of(self, agent: int) -> Sums:
        """All rewards of an agent."""
        return Sums(self.counts[agent], self.totals[agent], self.squares[agent])

    def all(self) -> Sums:
        """All rewards of all agents."""
        return Sums(sum(self.counts), sum(self.totals), sum(self.squares))
