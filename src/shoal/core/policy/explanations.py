"""Why an agent shares with whom it does, as data and in words."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from shoal.core.types import Integers, Vector

Name = Callable[[int], str]
"""What to call an agent."""
When = Callable[[int], str]
"""When a round was, as part of a sentence."""
MOST = 3
"""Agents that a sentence names before it counts the rest."""


def numbered(agent: int) -> str:
    """What agents without names are called."""
    return f"agent {agent}"


def in_round(number: int) -> str:
    """When a round was, for those who count rounds."""
    return f"in round {number:,}"


class Lender(NamedTuple):
    """Someone whose samples an agent uses."""

    agent: int
    samples: float
    """How many; where the policy is not sure that they belong together, times the probability of that."""


class Stop(NamedTuple):
    """Someone with whom an agent stopped sharing for good."""

    agent: int
    round: int
    margin: float
    """The statistic of the test over its threshold, from the two agents' present samples: above 1 they
    separate."""
    distance: float
    """How much their estimates differ now, ‖θ̂_i − θ̂_j‖."""
    allowed: float
    """How much they may differ, in that direction, before the test cuts them."""


class AgentExplanation(NamedTuple):
    """Whose samples an agent uses, and with whom it stopped sharing."""

    agent: int
    sharing: str
    """"both", "borrow" or "none": see `LivePolicy.set_sharing`."""
    samples: int
    """Its own."""
    lenders: tuple[Lender, ...]
    """Those who lend it any, the most first; of the removed, those whose samples stayed."""
    stopped: tuple[Stop, ...]
    """The latest first; empty where a policy keeps no record of it."""
    apart: int
    """Active agents whose samples it does not use."""

    def text(self, name: Name = numbered, when: When = in_round) -> str:
        """The same in words."""
        who, neither = name(self.agent), self.sharing == "none"
        said = [f"{who} has {_count(self.samples, 'sample')}" + ("" if neither else " and borrows none")]
        if self.lenders:
            lent = sum(lender.samples for lender in self.lenders)
            named = [f"{name(one.agent)} ({_number(one.samples)})" for one in self.lenders[:MOST]]
            most = ", the most from" if len(self.lenders) > MOST else ":"
            others = f"{_count(len(self.lenders), 'other')}{most} {_listed(named, len(named))}"
            said[0] = f"{said[0].removesuffix('none')}{_number(lent)} from {others}"
        if self.sharing == "borrow":
            said.append(f"{who} does not lend: nobody else uses these samples")
        elif neither:
            said[0] += ", and neither lends nor borrows"
        if self.stopped:
            last, *before = self.stopped
            reason = differing(last.distance, last.allowed, cut=True)
            said.append(f"{who} and {name(last.agent)} stopped sharing {when(last.round)}: {reason}")
            if before:
                named = [f"{name(one.agent)} ({when(one.round)})" for one in before[:MOST]]
                said.append(f"Before that, {who} stopped sharing with {_listed(named, len(before))}")
        elif self.apart and not neither:
            said.append(f"{_count(self.apart, 'other')} lend{'s' * (self.apart == 1)} {who} nothing")
        return ". ".join(said) + "."

    def __str__(self) -> str:
        return self.text()


class PairComparison(NamedTuple):
    """Whether two agents share, in a policy that compares their estimates, or is told the clusters."""

    agent: int
    other: int
    together: bool
    """Whether the policy takes them to belong together."""
    distance: float
    """‖θ̂_i − θ̂_j‖ of their own estimates."""
    threshold: float
    """What it must exceed for the two to separate; nan where the policy compares them to clusters only."""
    separation_time: int
    """Round in which they separated, −1 if they did not, or if no record is kept."""
    lent_by_agent: int
    lent_by_other: int
    """Samples each contributes to the other's pool now."""

    def text(self, name: Name = numbered, when: When = in_round) -> str:
        """The same in words."""
        reason = differing(self.distance, self.threshold, cut=self.separation_time >= 0)
        return pair_text(self, name, when, reason)

    def __str__(self) -> str:
        return self.text()


def agent_explanation(
    agent: int,
    pulls: Integers,
    lent: Vector,
    apart: int,
    *,
    sharing: str = "both",
    stopped: Sequence[Stop] = (),
) -> AgentExplanation:
    """What `lent`, shape (N,), says of an agent: the samples that it uses of each."""
    order = np.argsort(-lent, kind="stable")
    others = order[(order != agent) & (lent[order] > 0.0)]
    lenders = tuple(map(Lender, others.tolist(), lent[others].tolist()))
    return AgentExplanation(agent, sharing, int(pulls[agent]), lenders, tuple(stopped), apart)


class _Pair(Protocol):
    """What all explanations of pairs have."""

    @property
    def agent(self) -> int: ...
    @property
    def other(self) -> int: ...
    @property
    def together(self) -> bool: ...
    @property
    def separation_time(self) -> int: ...
    @property
    def lent_by_agent(self) -> float: ...
    @property
    def lent_by_other(self) -> float: ...


def pair_text(found: _Pair, name: Name, when: When, reason: str) -> str:
    """What a pair lends each other, and why."""
    one, two = name(found.agent), name(found.other)
    how = "belong together" if found.together else "do not share"
    if not found.together and found.separation_time >= 0:
        how = f"stopped sharing {when(found.separation_time)}"
    lent = f"{one} borrows {_count(found.lent_by_other, 'sample')} from {two}"
    lent += f" and lends {_number(found.lent_by_agent)}"
    if max(found.lent_by_agent, found.lent_by_other) < 0.01:
        lent = "Neither uses the other's samples"
    return f"{one} and {two} {how}: {reason}. {lent}."


def differing(distance: float, allowed: float, *, cut: bool = False) -> str:
    """How much two estimates differ, and how much the policy's test allows; nan if there is no such test."""
    said = f"their estimates differ by {_size(distance)}"
    if math.isnan(allowed):
        return said
    if cut and distance <= allowed:  # they did differ by more when they stopped
        return f"{said} now, which the test allows (up to {_size(allowed)}), but who stops does so for good"
    return f"{said} where the test allows {_size(allowed)}"


def belonging(one: str, two: str, probability: float) -> str:
    """How probable it is that one agent is in the cluster of another."""
    return f"{one} is in the cluster of {two} with probability {chance(probability)}"


def chance(probability: float) -> str:
    """A probability as one says it."""
    return f"{probability:.2g}" if probability >= 0.001 else "below 0.001"


def _number(number: float) -> str:
    """A count as one writes it; shares of samples below ten with two digits, never as a power of ten."""
    if 0.0 < number < 0.01:
        return "less than 0.01"
    return f"{number:,.0f}" if number >= 10.0 or number == int(number) else f"{number:.2g}"


def _size(number: float) -> str:
    """A measure with two digits or more, never as a power of ten."""
    if 0.0 < number < 0.0001:
        return "less than 0.0001"
    return f"{number:,.0f}" if number >= 99.5 else f"{number:.2g}"


def _count(number: float, what: str) -> str:
    return f"{_number(number)} {what}{'' if number == 1 else 's'}"


def _listed(named: Sequence[str], total: int) -> str:
    """A list as one says it; of those not named, how many there are."""
    rest = [f"{total - len(named):,} more"] if total > len(named) else []
    *most, last = [*named, *rest]
    return f"{', '.join(most)} and {last}" if most else last
