"""Why an agent shares with whom it does, as data and in words."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

Name = Callable[[int], str]
"""What to call an agent."""
MOST = 5
"""Agents that a sentence names before it counts the rest."""


def numbered(agent: int) -> str:
    """What agents without names are called."""
    return f"agent {agent}"


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


class AgentExplanation(NamedTuple):
    """Whose samples an agent uses, and with whom it stopped sharing."""

    agent: int
    sharing: str
    """"both", "borrow" or "none": see `Policy.set_sharing`."""
    samples: int
    """Its own."""
    lenders: tuple[Lender, ...]
    """Those who lend it any, the most first; of the removed, those whose samples stayed."""
    stopped: tuple[Stop, ...]
    """The latest first; empty where a policy keeps no record of it."""
    apart: int
    """Active agents whose samples it does not use."""

    def text(self, name: Name = numbered) -> str:
        """The same in words."""
        who = name(self.agent)
        said = [f"{who} uses {_count(self.samples, 'sample')} of its own"]
        if self.lenders:
            lent = sum(lender.samples for lender in self.lenders)
            named = [f"{name(one.agent)} ({one.samples:.3g})" for one in self.lenders[:MOST]]
            others = _count(len(self.lenders), "other")
            said[0] += f" and {lent:.4g} of {others}: {_listed(named, len(self.lenders))}"
        elif self.sharing != "none":
            said[0] += " and nobody else's"
        if self.stopped:
            named = [
                f"{name(one.agent)} (round {one.round}, {one.margin:.3g} times the threshold now)"
                for one in self.stopped[:MOST]
            ]
            said.append(f"It stopped sharing with {_listed(named, len(self.stopped))}")
        if self.sharing == "borrow":
            said.append("Nobody else uses its samples, because it does not lend them")
        elif self.sharing == "none":
            said.append("It neither lends nor borrows")
        return ". ".join(said) + "."

    def __str__(self) -> str:
        return self.text()


class PairExplanation(NamedTuple):
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

    def text(self, name: Name = numbered) -> str:
        """The same in words."""
        return pair_text(self, name, f"their estimates are {self.distance:.3g} apart{self._limit()}")

    def _limit(self) -> str:
        return "" if math.isnan(self.threshold) else f", and {self.threshold:.3g} is allowed"

    def __str__(self) -> str:
        return self.text()


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


def pair_text(found: _Pair, name: Name, reason: str) -> str:
    """What a pair lends each other, and why."""
    one, two = name(found.agent), name(found.other)
    when = f"stopped sharing in round {found.separation_time}"
    how = "belong together" if found.together else when if found.separation_time >= 0 else "do not share"
    lent = f"{one} lends {two} {_count(found.lent_by_agent, 'sample')}, and borrows {found.lent_by_other:.4g}"
    return f"{one} and {two} {how}: {reason}. {lent}."


def _count(number: float, what: str) -> str:
    return f"{number:.4g} {what}{'' if number == 1 else 's'}"


def _listed(named: Sequence[str], total: int) -> str:
    """A list as one says it; of those not named, how many there are."""
    rest = [f"{total - len(named)} more"] if total > len(named) else []
    *most, last = [*named, *rest]
    return f"{', '.join(most)} and {last}" if most else last
