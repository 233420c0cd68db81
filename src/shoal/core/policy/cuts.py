"""What policies that cut edges for good share, BASS and CLUB: who is apart from whom, and a log of it.

A live policy that cuts derives from `CuttingPolicy`; CLUB uses the functions below it.
"""

import math
from abc import abstractmethod
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shoal.core.fields import AGENTS, COUNT, kept, log
from shoal.core.jit.compiled import inlined
from shoal.core.kernels.bits import WORD, add_everywhere, are_mutual, as_set, count_absent
from shoal.core.kernels.graphs import pairs_of, pairs_within, separation_times
from shoal.core.policy import memory
from shoal.core.policy.calls import checked_agent
from shoal.core.policy.explanations import Stop
from shoal.core.policy.live_steps import follow_checked
from shoal.core.policy.living import LivePolicy, as_pulls
from shoal.core.types import AnyArray, Booleans, Integers, Vector

CUT_BYTES = 16
"""Memory of a cut in the log."""
ROOM = 2**12
"""Least room of the log of cuts."""


class Cuts(NamedTuple):
    """Log of the separations, in order; of each pair the lower id first."""

    pairs: Annotated[AnyArray, log(2, count="used", dtype=np.int32, low=0, below=AGENTS)]
    rounds: Annotated[Integers, log(count="used", **COUNT)]
    used: Annotated[Integers, kept(1, **COUNT)]


class CuttingPolicy(LivePolicy):
    """Base of live policies whose state has `cuts`."""

    def reserve(self, pulls: int) -> None:
        if more := enlarged(type(self).__name__, self.state.cuts, pulls, self.n_agents, self.dim):
            self._room.replace({"cuts.pairs": more.pairs, "cuts.rounds": more.rounds})
            self.state = self.state._replace(cuts=more)
            self.pinned_state()  # lets go of the old arrays

    @property
    def cuts(self) -> Integers:
        """The separations in order, shape (n, 3): the two agents, and the round."""
        with self.lock:
            return as_rows(self.state.cuts)

    @abstractmethod
    def _cut_from(self, agent: int, separated: Booleans) -> None:
        """Have an agent be separated from these and from no others, as of the present round."""

    def cut_from(self, agent: int, others: ArrayLike) -> None:
        """Have `agent` be separated from the `others` and from nobody else, whatever the test says.

        For following a record of what was decided elsewhere: another machine may have rounded a statistic
        that lies at its threshold to the other side.
        """
        agent = self._check_agent(agent)
        separated = np.zeros(self.n_agents, dtype=np.bool_)
        named = [checked_agent(other, self.n_agents) for other in np.asarray(others, dtype=np.int64).tolist()]
        separated[named] = True
        separated[agent] = False
        with self._change("cut_from"):
            self.reserve(1)
            self._cut_from(agent, separated)

    def follow(
        self,
        kinds: ArrayLike,
        agents: ArrayLike,
        xs: ArrayLike,
        rewards: ArrayLike,
        cuts: ArrayLike,
        *,
        moments: ArrayLike | None = None,
    ) -> None:
        """`replay` where it is known who separates when: nothing is tested, which is most of the work.

        Parameters
        ----------
        kinds, agents, xs, rewards, moments
            As for `replay`.
        cuts : array of int, shape (m, 2)
            Position of a pull, ascending, and an agent from whom its agent separates.

        Raises
        ------
        ValueError
            At the first pull that is refused, or separates whom it cannot; those before it have been played.
        """
        steps, who, x, values = as_pulls(kinds, agents, xs, rewards, self.dim)
        foreseen = self._known_moments(steps, values, moments)
        known = np.ascontiguousarray(cuts, dtype=np.int64).reshape(-1, 2)
        position, other = known.T
        if len(known) and (
            (np.diff(position, prepend=0, append=len(steps) - 1) < 0).any()
            or not (steps[position] & 1).all()
            or (who[position] == other).any()
        ):
            raise ValueError("cuts must name pulls with a reward, in order, and agents other than theirs")
        with self._change("follow"):
            for agent in np.unique(who).tolist():
                self._check_agent(agent)
            for agent in np.unique(other).tolist():
                checked_agent(agent, self.n_agents)
            self.reserve(len(steps))
            self._forget_tests()
            inner = self.inner(x)
            first = int(follow_checked(self.pinned_state(), steps, who, inner, values, foreseen, known))
        if first >= 0:
            raise ValueError(f"pull {first} of agent {who[first]} was refused: {x[first]}, {values[first]}")

    def _forget_tests(self) -> None:
        """Let go of what the step `learn` does not keep up to date."""

    @property
    def separation_time(self) -> Integers:
        """Round in which each pair separated, −1 if it never did, shape (N, N)."""
        return separation_times(self.cuts, self.n_agents)

    def _stopped(self, agent: int) -> list[Stop]:
        cuts = self.cuts[::-1]
        mine = cuts[(cuts[:, :2] == agent).any(axis=1)]
        others = mine[:, :2].sum(axis=1) - agent
        margins, theta = self._margins(agent, others), self.state.local.theta_hat
        gaps = np.linalg.norm(theta[others] - theta[agent], axis=1)
        return [
            Stop(int(other), int(t), float(margin), float(gap), self._allowed(float(gap), float(margin)))
            for other, t, margin, gap in zip(others, mine[:, 2], margins, gaps, strict=True)
        ]

    @abstractmethod
    def _margins(self, agent: int, others: Integers) -> Vector:
        """The statistic of the test over its threshold, of an agent and each of some others."""

    degree: int
    """The statistic grows with this power of the distance between two estimates."""

    def _allowed(self, distance: float, margin: float) -> float:
        """The distance, in the direction of two estimates' difference, at which the test's margin is 1."""
        # Ellipsoids that know nothing allow any distance.
        return distance / margin ** (1.0 / self.degree) if margin > 1e-15 else math.nan

    def _round_of_cut(self, agent: int, other: int) -> int:
        """Round in which two agents separated, −1 if they did not."""
        first, second = self.state.cuts.pairs[: self.state.cuts.used[0]].T
        here = np.flatnonzero((first == min(agent, other)) & (second == max(agent, other)))
        return int(self.state.cuts.rounds[here[0]]) if len(here) else -1

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        if not self.state.common.active.all():
            return super().count_edges(labels)
        return count_uncut(self.state.cuts, self.n_agents, labels)

    def _forget_cuts_of(self, agent: int, others: Booleans) -> None:
        """Take the cuts between an agent and some others out of the log."""
        first, second = self.state.cuts.pairs[: self.state.cuts.used[0]].T
        mine = np.where(first == agent, second, first)
        self._forget_cuts(((first == agent) | (second == agent)) & others[mine])

    def _forget_cuts(self, gone: Booleans) -> None:
        """Take some of the cuts in use out of the log."""
        pairs, rounds, used = self.state.cuts
        stay = np.flatnonzero(~gone)
        pairs[: len(stay)], rounds[: len(stay)] = pairs[stay], rounds[stay]
        pairs[len(stay) :], rounds[len(stay) :] = 0, 0
        used[0] = len(stay)

    def _problem(self, state: Any) -> str:
        return problem_of_cuts(state.cuts, len(state.common.active)) or super()._problem(state)


# The log


def enlarged(owner: str, cuts: Cuts, pulls: int, n_agents: int, dim: int) -> Cuts | None:
    """A log with room for what `pulls` more observations may cut; None if there is room already."""
    used, least = int(cuts.used[0]), int(cuts.used[0]) + pulls * (n_agents - 1)
    if not least > len(cuts.rounds) < pairs_of(n_agents):
        return None
    room = min(max(2 * least, ROOM), pairs_of(n_agents))
    memory.refuse(owner, CUT_BYTES * room, f"room for {room:,} cuts", n_agents, dim)
    more = Cuts(np.zeros((room, 2), np.int32), np.zeros(room, np.int64), cuts.used)
    more.pairs[:used], more.rounds[:used] = cuts.pairs[:used], cuts.rounds[:used]
    return more


def as_rows(cuts: Cuts) -> Integers:
    """The separations in order, shape (n, 3): the two agents, and the round."""
    used = int(cuts.used[0])
    return np.column_stack([cuts.pairs[:used].astype(np.int64), cuts.rounds[:used]])


def count_uncut(cuts: Cuts, n_agents: int, labels: Integers | None) -> tuple[int, int]:
    """Number of pairs that are not cut, and of those that join agents with the same label (0, 1, …)."""
    used = int(cuts.used[0])
    edges = pairs_of(n_agents) - used
    if labels is None:
        return edges, 0
    ends = labels[cuts.pairs[:used]]
    return edges, pairs_within(labels) - int(np.count_nonzero(ends[:, 0] == ends[:, 1]))


def problem_of_cuts(cuts: Cuts, n_agents: int) -> str:
    """What is wrong with a log that was loaded, as a phrase."""
    first, second = cuts.pairs.T.astype(np.int64)
    if (first >= second).any() or (np.diff(np.sort(first * n_agents + second)) == 0).any():
        return "cuts.pairs are not pairs, the lower id first, each there once"
    return ""


@inlined
def note(cuts: Cuts, agent: int, other: int, t: int) -> None:
    """Write a separation into the log."""
    n = cuts.used[0]
    if n >= cuts.rounds.shape[0]:
        raise IndexError("no room in the log of cuts: call reserve(pulls) before observe and revise")
    cuts.pairs[n, 0] = min(agent, other)
    cuts.pairs[n, 1] = max(agent, other)
    cuts.rounds[n] = t
    cuts.used[0] = n + 1


# Who is apart from whom, as a table of sets


def cut_newcomers(apart: Integers, withdrawn: Booleans, first: int) -> None:
    """Part newcomers from those whose samples were withdrawn; they are joined to all others."""
    n, gone = len(apart), np.flatnonzero(withdrawn)
    if len(gone):
        apart[first:, : -(-n // WORD)] = as_set(withdrawn)
        for newcomer in range(first, n):
            add_everywhere(apart, gone, newcomer)


def isolate(apart: Integers, agent: int) -> None:
    """Part an agent from everyone."""
    others = np.arange(len(apart)) != agent
    add_everywhere(apart, others, agent)
    apart[agent, : -(-len(apart) // WORD)] = as_set(others)


def rejoin(apart: Integers, agent: int, joined: Booleans) -> None:
    """Join an agent to others again."""
    apart[joined, agent // WORD] &= ~(np.int64(1) << np.int64(agent % WORD))
    apart[agent, : -(-len(apart) // WORD)] &= ~as_set(joined)


def count_neighbors(apart: Integers, active: Booleans) -> Integers:
    """How many active agents each agent is not cut from, itself not counted, shape (N,)."""
    return np.asarray(count_absent(apart[:, : -(-len(apart) // WORD)], as_set(active)) - active)


def problem_of_sets(apart: Integers, cuts: Cuts) -> str:
    """What is wrong with a table that was loaded, as a phrase; bits beyond the last agent are cleared."""
    n = len(apart)
    apart = apart[:, : -(-n // WORD)]
    apart[:, -1:] &= as_set(np.ones(n, dtype=np.bool_))[-1:]
    first, second = cuts.pairs.T.astype(np.int64)
    if not (apart[first, second // WORD] >> (second % WORD) & 1).all() or not are_mutual(apart):
        return "apart does not fit the cuts, or is not mutual"
    itself = apart[np.arange(n), np.arange(n) // WORD] >> (np.arange(n) % WORD) & 1
    return "apart cuts an agent from itself" if itself.any() else ""
