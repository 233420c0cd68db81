"""Short looks at a population's state, for pages that show it while it works.

A reader holds the population's lock, and decisions wait. Each function here takes time in proportion to
what it returns, and `uses` lets go of the lock between a few agents and the next few.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from shoal.core.policy.cuts import CuttingPolicy
from shoal.core.types import Booleans, Integers
from shoal.live.journal.fold import Fold
from shoal.live.population.explaining import explain_agent
from shoal.live.population.owner import Owner
from shoal.live.protocol.answers import Explanation

T = TypeVar("T")
AT_ONCE = 64
"""Agents whose neighbours are looked up before others get their turn."""


class Reader(Protocol):
    """Whatever answers questions about a state: the owner about now, `Past` about an earlier moment."""

    def read(self, question: Callable[[Fold], T]) -> T:
        """What a function says of the state."""
        ...


class Past(NamedTuple):
    """A population after an earlier record."""

    fold: Fold

    def read(self, question: Callable[[Fold], T]) -> T:
        """See `Reader`."""
        return question(self.fold)


class Sizes(msgspec.Struct, frozen=True):
    """How much there is of everything."""

    sequence: int
    at: float
    """Time of the last record, in seconds since 1970."""
    agents: int
    pending: int
    """Decisions that await rewards."""
    cuts: int | None
    """Pairs that have stopped sharing; None for a policy that does not record them."""


class PresentAgents(NamedTuple):
    """The agents that are there, in the order in which they joined."""

    indices: Integers
    names: list[str]
    samples: Integers
    """Samples of their own."""


class Lent(NamedTuple):
    """What an agent uses of others."""

    others: int
    samples: float


def sizes(reader: Reader) -> Sizes:
    """How much there is of everything."""

    def question(fold: Fold) -> Sizes:
        there = len(fold.called) - fold.called.count(None)
        cuts = fold.count_cuts() if isinstance(fold.policy, CuttingPolicy) else None
        return Sizes(fold.seq, fold.at / 1e6, there, len(fold.pending), cuts)

    return reader.read(question)


def members(reader: Reader) -> PresentAgents:
    """Who is there."""

    def question(fold: Fold) -> PresentAgents:
        there = [index for index, name in enumerate(fold.called) if name is not None]
        indices = np.array(there, dtype=np.int64)
        return PresentAgents(
            indices, [name for name in fold.called if name is not None], fold.policy.pulls[indices]
        )

    return reader.read(question)


def edges(owner: Owner, indices: Integers) -> Booleans:
    """Who belongs with whom among some agents, shape (n, n); the policy's whole graph is made for it."""
    return owner.read(lambda fold: fold.policy.graph[np.ix_(indices, indices)])


def uses(owner: Owner, indices: Integers, among: Integers) -> Booleans:
    """Whose samples each of some agents uses, its own included, shape (len(indices), len(among))."""
    found = np.zeros((len(indices), len(among)), dtype=np.bool_)
    for start in range(0, len(indices), AT_ONCE):
        some = indices[start : start + AT_ONCE].tolist()

        def question(fold: Fold, some: list[int] = some) -> list[Integers | None]:
            # forgotten agents have no neighbours to ask for
            return [fold.policy.neighbors(one) if fold.called[one] is not None else None for one in some]

        for row, used in enumerate(owner.read(question), start):
            if used is not None:
                mark = np.zeros(max(int(among[-1]), int(used[-1])) + 1, dtype=np.bool_)
                mark[used] = True
                found[row] = mark[among]
    return found


def lent(reader: Reader, indices: list[int]) -> list[Lent]:
    """How many others' samples each of some agents uses, and how many samples that makes."""

    def question(fold: Fold) -> list[Lent]:
        found = []
        for index in indices:
            samples = fold.policy.lent(index)
            found.append(Lent(int(np.count_nonzero(samples)), float(samples.sum())))
        return found

    return reader.read(question)


class ArmOpinion(msgspec.Struct, frozen=True):
    """What a policy thinks of an arm, for an agent."""

    arm: str
    own: float
    """Reward that the agent's own samples predict."""
    pooled: float
    """The same with borrowed ones."""
    bonus: float
    """What is added for what is not known yet; the arm with the largest sum is chosen."""


def opinions(owner: Owner, agent: str, most: int) -> list[ArmOpinion]:
    """What an agent's policy thinks of the arms in the catalogue, the one it would choose first."""

    def question(fold: Fold) -> list[ArmOpinion]:
        arms, index = owner.commands.offers.catalogue(fold), owner.commands.agent(fold, agent)
        if arms is None or arms.names is None:
            return []
        scores = fold.policy.scores(index, arms.features)
        best = np.argsort(-scores.index, kind="stable")[:most].tolist()
        own = [fold.policy.predict(index, arms.features[arm]).own for arm in best]
        return [
            ArmOpinion(arms.names[arm], float(alone), float(scores.mean[arm]), float(scores.width[arm]))
            for arm, alone in zip(best, own, strict=True)
        ]

    return owner.read(question)


def explained(owner: Owner, agent: str, most: int) -> Explanation:
    """Whose samples an agent uses, and with whom it stopped sharing: the first `most` of each."""
    return owner.read(lambda fold: explain_agent(fold, owner.commands.agent(fold, agent), most))
