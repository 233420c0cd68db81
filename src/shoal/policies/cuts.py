"""What policies that cut edges for good share, BASS and CLUB: who is apart from whom, and a log of it."""

from typing import Annotated, Any, NamedTuple

import numpy as np

from shoal.fields import AGENTS, COUNT, kept, log
from shoal.kernels.bits import WORD, add_everywhere, are_mutual, as_set, count_absent, members, set_bit
from shoal.kernels.compiled import inlined
from shoal.kernels.graphs import pairs_of, pairs_within, separation_times
from shoal.policies.base import Policy
from shoal.types import AnyArray, Booleans, Integers

CUT_BYTES = 16
"""Memory of a cut in the log."""
ROOM = 2**12
"""Least room of the log of cuts."""


class Cuts(NamedTuple):
    """Log of the separations, in order; of each pair the lower id first."""

    pairs: Annotated[AnyArray, log(2, count="used", dtype=np.int32, low=0, below=AGENTS)]
    rounds: Annotated[Integers, log(count="used", **COUNT)]
    used: Annotated[Integers, kept(1, **COUNT)]


class CuttingPolicy(Policy):
    """Base of policies whose state has `cuts` and `apart`, sets of agents, each cut off or withdrawn."""

    def reserve(self, pulls: int) -> None:
        used, n = int(self.state.cuts.used[0]), self.n_agents
        if used + pulls * (n - 1) > len(self.state.cuts.rounds) < pairs_of(n):
            self._resize_cuts(min(max(2 * (used + pulls * (n - 1)), ROOM), pairs_of(n)))

    def _resize_cuts(self, room: int) -> None:
        self._refuse(CUT_BYTES * room, f"room for {room:,} cuts")
        pairs, rounds, (used,) = self.state.cuts
        more = Cuts(np.zeros((room, 2), np.int32), np.zeros(room, np.int64), self.state.cuts.used)
        more.pairs[:used], more.rounds[:used] = pairs[:used], rounds[:used]
        self._room.replace({"cuts.pairs": more.pairs, "cuts.rounds": more.rounds})
        self.state = self.state._replace(cuts=more)
        self._pinned_state()  # lets go of the old arrays

    @property
    def cuts(self) -> Integers:
        """The separations in order, shape (n, 3): the two agents, and the round."""
        with self.lock:
            pairs, rounds, (count,) = self.state.cuts
            return np.column_stack([pairs[:count].astype(np.int64), rounds[:count]])

    @property
    def separation_time(self) -> Integers:
        """Round in which each pair separated, −1 if it never did, shape (N, N)."""
        return separation_times(self.cuts, self.n_agents)

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        if not self.state.common.active.all():
            return Policy.count_edges(self, labels)
        used = int(self.state.cuts.used[0])
        edges = pairs_of(self.n_agents) - used
        if labels is None:
            return edges, 0
        ends = labels[self.state.cuts.pairs[:used]]
        return edges, pairs_within(labels) - int(np.count_nonzero(ends[:, 0] == ends[:, 1]))

    def _edges(self) -> Booleans:
        return ~members(self.state.apart, self.n_agents)

    def _part(self, state: Any, first: int) -> None:
        """Join newcomers to everyone whose samples have not been withdrawn."""
        n, withdrawn = len(state.apart), np.flatnonzero(state.common.withdrawn)
        if len(withdrawn):
            state.apart[first:, : -(-n // WORD)] = as_set(state.common.withdrawn)
            for newcomer in range(first, n):
                add_everywhere(state.apart, withdrawn, newcomer)

    def _isolate(self, agent: int) -> None:
        """Part a withdrawn agent from everyone, and forget its cuts."""
        apart, others = self.state.apart, np.arange(self.n_agents) != agent
        add_everywhere(apart, others, agent)
        apart[agent, : -(-self.n_agents // WORD)] = as_set(others)
        self._forget_cuts((self.state.cuts.pairs[: self.state.cuts.used[0]] == agent).any(axis=1))

    def _set_apart(self, agent: int, separated: Booleans) -> Booleans:
        """Cut the agent's pairs that are separated, rejoin those that are not; return which are rejoined."""
        state, n = self.state, self.n_agents
        was = members(state.apart[agent], n)
        separated = np.where(state.common.withdrawn, was, separated)
        for other in np.flatnonzero(separated & ~was).tolist():
            part(state.apart, state.cuts, agent, other, self.rounds)
        rejoined = was & ~separated
        for other in np.flatnonzero(rejoined).tolist():
            for one, two in ((agent, other), (other, agent)):
                state.apart[one, two // WORD] &= ~(np.int64(1) << (two % WORD))
        first, second = state.cuts.pairs[: state.cuts.used[0]].T
        mine = np.where(first == agent, second, first)
        self._forget_cuts(((first == agent) | (second == agent)) & rejoined[mine])
        return np.asarray(rejoined)

    def _forget_cuts(self, gone: Booleans) -> None:
        """Take some of the cuts in use out of the log."""
        pairs, rounds, used = self.state.cuts
        stay = np.flatnonzero(~gone)
        pairs[: len(stay)], rounds[: len(stay)] = pairs[stay], rounds[stay]
        pairs[len(stay) :], rounds[len(stay) :] = 0, 0
        used[0] = len(stay)

    def _count_neighbors(self, state: Any) -> Integers:
        """How many active agents each agent is not parted from, itself not counted, shape (N,)."""
        active, n = state.common.active, len(state.apart)
        apart = state.apart[:, : -(-n // WORD)]
        return np.asarray(count_absent(apart, as_set(active)) - active)

    def _problem(self, state: Any) -> str:
        n, pairs = len(state.apart), state.cuts.pairs
        apart = state.apart[:, : -(-n // WORD)]
        apart[:, -1:] &= as_set(np.ones(n, dtype=np.bool_))[-1:]  # no bits beyond the last agent
        first, second = pairs.T.astype(np.int64)
        if (first >= second).any() or len(np.unique(first * n + second)) < len(pairs):
            return "cuts.pairs are not pairs, the lower id first, each there once"
        if not (apart[first, second // WORD] >> (second % WORD) & 1).all() or not are_mutual(apart):
            return "apart does not fit the cuts, or is not mutual"
        itself = apart[np.arange(n), np.arange(n) // WORD] >> (np.arange(n) % WORD) & 1
        return "apart parts an agent from itself" if itself.any() else super()._problem(state)


@inlined
def part(apart: Integers, cuts: Cuts, agent: int, other: int, t: int) -> None:
    """Cut an edge, and write it down."""
    n = cuts.used[0]
    if n >= cuts.rounds.shape[0]:
        raise IndexError("no room in the log of cuts: call reserve(pulls) before observe and revise")
    set_bit(apart[agent], other)
    set_bit(apart[other], agent)
    cuts.pairs[n, 0] = min(agent, other)
    cuts.pairs[n, 1] = max(agent, other)
    cuts.rounds[n] = t
    cuts.used[0] = n + 1
