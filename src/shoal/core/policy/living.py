"""Policies for live use: agents come, go, merge and withdraw, samples are corrected, pulls are pending.

A population needs all of it, so it takes no other policy. The hooks that a subclass has to define are
abstract: without one of them a pool would keep samples that were taken back, and nobody would notice.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from shoal.core import fields, validation
from shoal.core.jit.pinned import Pinned, places_of_lengths
from shoal.core.policy import calls, memory
from shoal.core.policy.base import Policy, learn
from shoal.core.policy.clicks import Moments, sample_of_click
from shoal.core.policy.explanations import AgentExplanation, Stop, agent_explanation
from shoal.core.policy.live_steps import begin_checked, cancel_checked, finish_checked, replay_checked
from shoal.core.policy.steps import BEGIN, PULL, as_sample, revise
from shoal.core.statistics import amend_row, forget_row, lacks, make_statistics, pool_rows, start_rows
from shoal.core.types import AnyArray, Booleans, Integers, Matrix, Vector

MANY = 256
"""Agents from which on a new policy has room for more."""
SPARE = 32
"""Newcomers that tables have room for at least."""
AMPLE = 2**15
"""Agents for whom there is room, in all other arrays, when a policy has grown once."""
Sharing = Literal["both", "borrow", "none"]
"""How an agent shares: it lends and borrows, only borrows, or does neither."""
_MODES: dict[str, tuple[bool, bool]] = {"both": (True, True), "borrow": (False, True), "none": (False, False)}
"""Whether it lends, and whether it borrows."""


class LivePolicy(Policy):
    """Base class of the policies that populations take: Independent, Oracle, BASS and ClusterMixture.

    The field `common` of its state is a `LiveCommon`.

    Examples
    --------
    >>> import shoal
    >>> issubclass(shoal.BASS, shoal.LivePolicy), issubclass(shoal.CLUB, shoal.LivePolicy)
    (True, False)
    """

    _places: list[AnyArray] | None = None
    """Where lengths that grow stand in what is pinned."""

    # Hooks

    @abstractmethod
    def _edges(self) -> Booleans:
        """The graph, without those who left."""

    @abstractmethod
    def _pooled_estimate(self, agent: int) -> Vector:
        """θ̂ of what `agent` uses, of those who lend."""

    @abstractmethod
    def _end_edges(self, agent: int) -> None:
        """Settle what follows from `agent` leaving; it is no longer active. Its samples stay."""

    @abstractmethod
    def _withdraw(self, agent: int) -> None:
        """Take the samples of `agent` out of whatever holds them; its own statistics are empty already."""

    @abstractmethod
    def _lending_changed(self, agent: int) -> None:
        """Bring up to date what holds the samples of `agent`, who has just begun to lend them, or stopped.

        From then on nothing that others use depends on them, or everything does as if it had always lent.
        """

    @abstractmethod
    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        """Bring up to date what holds a sample of `agent`, whose statistics have been amended already.

        Its reward, which was `old`, has changed by `change`, or, if this `removes` it, the sample is gone.
        """

    def _absorb(self, agent: int, other: int) -> None:
        """Let `agent` have what the policy keeps of `other`; its statistics and pending pulls are it already.

        Afterwards `other` is withdrawn.
        """
        self._amended(agent, np.zeros(self.inner_dim), 0.0, 0.0, removes=False)

    def _ridge_of(self, agent: int) -> float:
        """The ridge of an agent's own statistics."""
        return float(self.state.common.ridge)

    def _common_ridge(self, agent: int, other: int) -> float:
        """The ridge of two agents' own statistics, after making it the same for both."""
        return self._ridge_of(agent)

    def _reconsider(self, agent: int) -> None:
        """Decide from the present samples whom `agent` shares with."""
        revise(self.pinned_state(), agent, self.rounds)

    def _end_pending(self, agent: int) -> None:
        """Take the pending pulls of an agent that leaves out of all sums: their rewards cannot come."""
        pending = self.state.common.pending
        pending.total[0] -= pending.counts[agent]
        pending.counts[agent] = 0
        pending.sums[agent] = 0.0

    @classmethod
    def superseded(cls, given: Collection[str]) -> frozenset[str]:
        """Parameters that no longer hold once those named are given anew."""
        return frozenset()

    @property
    def agent_dim(self) -> int:
        """Features that describe an agent; 0 where a policy takes none."""
        return 0

    def features_of(self, agent: int) -> Vector:
        """What is known of an agent, shape (agent_dim,), NaN where nothing is; a copy."""
        return np.empty(0)

    def set_features(self, agent: int, agent_features: ArrayLike) -> None:
        """Say what is known of `agent`, shape (agent_dim,), where the policy takes that."""
        validation.features("agent_features", [agent_features], 1, self.agent_dim)

    @property
    def engine_limits(self) -> tuple[int, ...]:
        """Numbers of agents above which other compiled code serves."""
        return ()

    def _sizes_ahead(self, n_agents: int, present: int) -> dict[str, int]:
        """The sizes of `n_agents`, kept in the same way as those of the `present` ones."""
        return self._sizes(n_agents)

    def _tables_ahead(self, n_agents: int) -> dict[str, int]:
        """Sizes to make room for in tables: half as many agents more, if they fit into memory."""
        sizes = self._sizes_ahead(n_agents + n_agents // 2 + SPARE, n_agents)
        needed = fields.nbytes(self._state_class(n_agents), sizes)
        return sizes if needed <= memory.physical_memory() else self._sizes(n_agents)

    def _make_room(self, n_agents: int) -> fields.Room:
        """Arrays for `n_agents` agents: no longer than that where they are few and quickly copied."""
        exact, kind = self._sizes(n_agents), self._state_class(n_agents)
        memory.check(type(self).__name__, kind, exact)
        foreseen = fields.Foreseen(exact, exact)
        if n_agents >= MANY:
            foreseen = foresee(kind, n_agents, self._sizes_ahead, self._tables_ahead(n_agents))
        try:
            return fields.Room(kind, foreseen, self._settings())
        except MemoryError:  # a machine that promises no memory beyond what it has
            return fields.Room(kind, fields.Foreseen(exact, exact), self._settings())

    def _problem(self, state: Any) -> str:
        common = state.common
        if (common.withdrawn & (common.active | (state.local.pulls > 0))).any():
            return "an agent is withdrawn, and active or with samples"
        if (common.lends & ~common.borrows).any() or (common.withdrawn & ~common.lends).any():
            return "an agent lends and does not borrow, or is withdrawn and does not lend"
        if common.restricted[0] != np.count_nonzero(~common.lends):
            return f"restricted is {common.restricted[0]}, and {(~common.lends).sum()} agents do not lend"
        pending = common.pending
        if pending.counts[~common.active].any() or pending.total[0] != pending.counts.sum():
            return "pulls are pending that nobody waits for"
        return super()._problem(state)

    # Online use

    def update(
        self,
        agent: int,
        x: ArrayLike,
        reward: float,
        *,
        begun: bool = False,
        moments: tuple[float, float] | None = None,
    ) -> None:
        """Let `agent` learn that arm `x`, shape (d,), gave `reward`.

        One call is one round, unless the pull was announced by `begin`: pass `begun=True` then, and the pull
        is no longer pending. `moments` are for following a record of clicks: what `foresee` said at the time.
        """
        mean, variance = (math.nan, math.nan) if moments is None else self._checked_moments(moments)
        learn(self, finish_checked, agent, x, reward, bool(begun), mean, variance)

    def foresee(self, agent: int, x: ArrayLike) -> Moments:
        """What is known now of the logit of a click on arm `x`, shape (d,); a click is learned by it.

        Only with `rewards="binary"`. `correct` and `retract` need what it was when the click was learned.
        """
        self._refuse_moments(not self.clicks, "foresee")
        agent, x = self._check_agent(agent), validation.vector("x", x, self.dim)
        with self.lock:
            state = self.pinned_state()
            as_sample(state, agent, self.inner(x), 0.0, math.nan, math.nan)
            return self.last_moments

    @property
    def last_moments(self) -> Moments:
        """What was known of the logit when the last click was learned, or foreseen."""
        return Moments(*self.state.common.moments.tolist())

    def _refuse_moments(self, wrong: bool, name: str) -> None:
        if wrong:
            raise ValueError(f'{name} is for rewards="binary"')

    def _checked_moments(self, moments: Any) -> Moments:
        self._refuse_moments(not self.clicks, "moments")
        if moments is None:
            raise ValueError('moments must be given with rewards="binary": what foresee said at the time')
        mean, variance = moments
        return Moments(
            validation.number("moments' mean", mean, low=-validation.LARGEST, high=validation.LARGEST),
            validation.number("moments' variance", variance, low=0.0, high=validation.LARGEST),
        )

    def _as_sample(self, x: Vector, click: float, moments: Any) -> tuple[Vector, float]:
        """The sample that a click was learned as."""
        self.check_rewards("reward", click)
        sample = np.empty(self.inner_dim)
        response = sample_of_click(self.inner(x), float(click), *self._checked_moments(moments), sample)
        return sample, response

    def begin(self, agent: int, x: ArrayLike) -> None:
        """Let `agent` pull arm `x`, shape (d,), now; its reward will come later. One call is one round.

        Until then policies that can (see docs/algorithms.md) count on what the pending pull will tell. Its
        reward is given to `update` with `begun=True`; if none will ever come, call `cancel`.
        """
        agent, x = self._check_agent(agent), calls.checked_arm(x, self.dim)
        with self.lock:
            answer = begin_checked(self.pinned_state(), agent, self.inner(x))
        calls.check_answer(self, answer, agent, x)

    def cancel(self, agent: int, x: ArrayLike) -> None:
        """Expect no reward any more for a pull of `x` by `agent` that has begun."""
        agent, x = self._check_agent(agent), calls.checked_arm(x, self.dim)
        with self.lock:
            answer = cancel_checked(self.pinned_state(), agent, self.inner(x))
        calls.check_answer(self, answer, agent, x)

    def replay(
        self,
        kinds: ArrayLike,
        agents: ArrayLike,
        xs: ArrayLike,
        rewards: ArrayLike,
        *,
        moments: ArrayLike | None = None,
    ) -> None:
        """Play many pulls at once: as `begin`, `update` and `cancel` one by one, to the bit, but faster.

        Parameters
        ----------
        kinds : array of int, shape (n,)
            Of each pull 0 (`begin`), 1 (`update` of one that has begun), 2 (`cancel`) or 3 (`update`).
        agents : array of int, shape (n,)
        xs : array of shape (n, d)
        rewards : array of shape (n,)
            Those of kinds 1 and 3 count.
        moments : array of shape (n, 2), optional
            With `rewards="binary"`, what `foresee` said of each; NaN: as of now.

        Raises
        ------
        ValueError
            At the first pull that is refused; those before it have been played.
        """
        steps, who, x, values = as_pulls(kinds, agents, xs, rewards, self.dim)
        known = self._known_moments(steps, values, moments)
        with self._change("replay"):
            for agent in np.unique(who).tolist():
                self._check_agent(agent)
            self.reserve(int(np.count_nonzero(steps & 1)))
            first = int(replay_checked(self.pinned_state(), steps, who, self.inner(x), values, known))
        if first >= 0:
            raise ValueError(f"pull {first} of agent {who[first]} was refused: {x[first]}, {values[first]}")

    def _known_moments(self, kinds: Integers, rewards: Vector, moments: ArrayLike | None) -> Matrix:
        """Moments to replay pulls with, NaN where they are to be found; and their rewards are checked."""
        self.check_rewards("rewards", rewards[kinds & 1 == 1])
        if moments is None:
            return np.full((len(kinds), 2), np.nan)
        self._refuse_moments(not self.clicks, "moments")
        known = np.ascontiguousarray(moments, dtype=np.float64)
        mean, variance = known.reshape(-1, 2).T
        if known.shape != (len(kinds), 2) or (np.isnan(mean) != np.isnan(variance)).any():
            raise ValueError(f"moments must be {len(kinds)} pairs, got an array of shape {known.shape}")
        if (np.abs(known) > validation.LARGEST).any() or (variance < 0.0).any():
            raise ValueError("moments must be finite, and variances at least 0")
        return known

    @property
    def pending(self) -> Integers:
        """Pulls of each agent that have begun and whose rewards are still due, shape (N,); a copy."""
        return np.array(self.state.common.pending.counts)

    # Samples put right

    def correct(
        self,
        agent: int,
        x: ArrayLike,
        old_reward: float,
        new_reward: float,
        *,
        reconsider: bool = False,
        moments: tuple[float, float] | None = None,
    ) -> None:
        """Put right a sample of `agent`: arm `x`, shape (d,), gave `new_reward`, not `old_reward`.

        The agent's and its pool's statistics are, up to rounding, those of having learned the right value.
        What was decided meanwhile stays (arms, cuts, clusters), unless `reconsider` has the policy decide
        anew, from the present samples, whom the agent shares with. What is estimated along the way stays too:
        ClusterMixture keeps its estimate of the noise. Costs no round.

        With `rewards="binary"`, `moments` are what `foresee` said when the click was learned.
        """
        x = validation.vector("x", x, self.dim)
        old, new = (
            validation.number(name, value, low=-validation.LARGEST, high=validation.LARGEST)
            for name, value in (("old_reward", old_reward), ("new_reward", new_reward))
        )
        if self.clicks or moments is not None:
            self.check_rewards("new_reward", new)
            sample, old = self._as_sample(x, old, moments)
            x, new = sample, self._as_sample(x, new, moments)[1]
        self._amend("correct", agent, x, old, new - old, removes=False, reconsider=reconsider)

    def retract(
        self,
        agent: int,
        x: ArrayLike,
        reward: float,
        *,
        reconsider: bool = False,
        moments: tuple[float, float] | None = None,
    ) -> None:
        """Take back a sample of `agent`: arm `x` that gave `reward`; otherwise like `correct`."""
        x = validation.vector("x", x, self.dim)
        reward = validation.number("reward", reward, low=-validation.LARGEST, high=validation.LARGEST)
        if self.clicks or moments is not None:
            x, reward = self._as_sample(x, reward, moments)
        self._amend("retract", agent, x, reward, -reward, removes=True, reconsider=reconsider)

    def holds(
        self,
        agent: int,
        x: ArrayLike,
        reward: float,
        learned: int,
        *,
        moments: tuple[float, float] | None = None,
    ) -> bool:
        """Whether a sample that `agent` learned in round `learned` still counts; some policies drop some."""
        return True

    def _amend(
        self, what: str, agent: int, x: Vector, old: float, change: float, *, removes: bool, reconsider: bool
    ) -> None:
        agent = calls.checked_agent(agent, self.n_agents)
        with self._change(what):
            common, local = self.state.common, self.pinned_state().local
            if common.withdrawn[agent]:
                raise ValueError(f"the samples of agent {agent} have been withdrawn")
            # Of a click, the arm's weight may be that of another policy, and only b changes.
            if (
                not local.pulls[agent]
                if self.clicks and not removes
                else lacks(local, agent, self._ridge_of(agent), x)
            ):
                raise ValueError(
                    f"x must be an arm of which agent {agent} has a sample, got {validation.show(x)}"
                )
            if removes and local.pulls[agent] == 1:
                forget_row(local, agent, common.ridge)
            else:
                amend_row(local, agent, x, change, removes)
            self._amended(agent, x, old, change, removes)
            if reconsider:
                self.reserve(1)
                self._reconsider(agent)

    # Agents come and go

    def sharing(self, agent: int) -> Sharing:
        """How `agent` shares; see `set_sharing`."""
        common, agent = self.state.common, self._check_agent(agent)
        return "both" if common.lends[agent] else "borrow" if common.borrows[agent] else "none"

    def set_sharing(self, agent: int, sharing: Sharing) -> None:
        """Say whether others may use the samples of `agent`, and whether it uses theirs.

        "both": it lends and borrows, as agents do by default. "borrow": nobody else uses its
        samples; from then on nothing that others choose by depends on them. "none": besides, it uses
        nobody's, and chooses as `Independent` does. The policy goes on judging who belongs together, so that
        a change back takes effect at once: what its pool sums is then, up to rounding, what it would be had
        the agent always lent. What was decided meanwhile (cuts, clusters) stays. Costs no round.
        """
        agent = self._check_agent(agent)
        validation.one_of("sharing", sharing, tuple(_MODES))
        with self._change("set_sharing"):
            self._set_sharing(agent, sharing)

    def _set_sharing(self, agent: int, sharing: str) -> None:
        common = self.state.common
        lends, borrows = _MODES[sharing]
        common.borrows[agent] = borrows
        if common.lends[agent] != lends:
            common.lends[agent] = lends
            common.restricted[0] += -1 if lends else 1
            self._lending_changed(agent)

    def add_agents(self, n: int = 1, *, sharing: Sharing = "both") -> Integers:
        """Add `n` agents that have seen nothing and return their ids; they share as `set_sharing` says."""
        n = validation.positive_int("n", n)
        validation.one_of("sharing", sharing, tuple(_MODES))
        with self._change("add_agents"):
            first = self.n_agents
            room = self._room
            try:
                state = self._stretch(first, first + n)
                start_rows(state.local, first, state.common.ridge)
                self._join(state, first)
            except BaseException:  # the arrays of the state are still those of the old room
                self._room = room
                raise
            self.pinned_state(state)  # lets go of the old arrays
            self.state = state
            for newcomer in range(first, first + n if sharing != "both" else first):
                self._set_sharing(newcomer, sharing)
        return np.arange(first, first + n)

    def _stretch(self, first: int, n_agents: int) -> Any:
        """The state with rows for newcomers, yet to be initialised; the present one stays as it is."""
        sizes, ahead = self._sizes(n_agents), self._sizes_ahead(n_agents + n_agents // 16, n_agents)
        room, (pinned_state, pinned) = self._room, self._pinned
        kind = self._state_class(n_agents)
        if kind is not room.state_class:
            self._room, self._places = self._make_room(n_agents), None
            self._room.take_over(room, self._sizes(first))
            return self._room.show(sizes)
        if not room.is_enough(ahead):
            memory.check(type(self).__name__, kind, sizes)
            self._room = copy.copy(room)
            foreseen = foresee(kind, n_agents, self._sizes_ahead, self._tables_ahead(n_agents))
            self._room.enlarge(self._sizes(first), sizes, foreseen, ahead=ahead)
            return self._room.show(sizes)
        state = room.show(sizes)
        if isinstance(pinned, Pinned) and pinned_state is self.state:
            if self._places is None:
                self._places = room.by_length(places_of_lengths(state))
            self._pinned = state, pinned.stretched(state, self._places, room.lengths(sizes))
        return state

    def merge(self, agent: int, other: int) -> None:
        """Let two agents be one, who has the samples of both: `agent` stays, `other` is gone.

        The statistics of `agent` are, up to rounding, those of having learned both sequences of samples;
        `other` leaves no trace, as if withdrawn. Its pulls whose rewards are still due become those of
        `agent`, who goes on sharing as it did. Whom it shares with is decided anew, from the samples of both.
        What ClusterMixture keeps beside sums: the errors that tell of the noise add up; the last samples that
        a change would be noticed by stay those of `agent`, and those of `other` count as from before. Costs
        no round.
        """
        i, j = self._check_agent(agent), self._check_agent(other)
        if i == j:
            raise ValueError(f"other must differ from agent, got {other!r} twice")
        with self._change("merge"):
            local, ridge = self.state.local, self._common_ridge(i, j)
            both, sums = np.zeros(self.n_agents, np.bool_), make_statistics(1, self.inner_dim, ridge)
            both[[i, j]] = True
            pool_rows(self.pinned_state().local, both, ridge, sums, 0)
            self._move_pending(i, j)
            for leaf in fields.leaves(type(local)):
                if leaf.field.role is fields.Role.KEPT:
                    leaf.get(local)[i] = leaf.get(sums)[0]
            self._absorb(i, j)
            self._remove(j, withdraw=True)
            self.reserve(1)
            self._reconsider(i)

    def _move_pending(self, agent: int, other: int) -> None:
        """Let rewards that are due to `other` be due to `agent`."""
        pending = self.state.common.pending
        pending.counts[agent] += pending.counts[other]
        pending.sums[agent] += pending.sums[other]
        pending.counts[other], pending.sums[other] = 0, 0.0

    def remove_agent(self, agent: int, *, withdraw: bool = False) -> None:
        """End the edges of `agent`; its id is never used again.

        Its samples stay where they are, and newcomers use them as they would had it stayed, unless `withdraw`
        takes them out of everything that was computed from them. A removed agent's samples can still be
        withdrawn by a second call.
        """
        agent = calls.checked_agent(agent, self.n_agents)
        with self._change("remove_agent"):
            common = self.state.common
            if not common.active[agent] and (common.withdrawn[agent] or not withdraw):
                raise ValueError(f"agent {agent} has been removed already")
            self._remove(agent, withdraw=withdraw)

    def _remove(self, agent: int, *, withdraw: bool) -> None:
        common = self.state.common
        if common.active[agent]:
            self._end_pending(agent)
            common.active[agent] = False
            self._end_edges(agent)
        if withdraw:
            common.withdrawn[agent] = True
            forget_row(self.pinned_state().local, agent, common.ridge)
            self._withdraw(agent)
            common.lends[agent] = common.borrows[agent] = True
            common.restricted[0] = np.count_nonzero(~common.lends)
            for leaf in fields.leaves(type(self.state)):
                if leaf.field.role is fields.Role.SCRATCH:  # where its samples may have passed through
                    leaf.get(self.state)[...] = 0

    @contextmanager
    def _change(self, what: str) -> Iterator[None]:
        """Hold the lock for a change in several steps, between which a signal handler may run."""
        with self.lock:
            if self.changing:
                calls.refuse_while_changing(self.changing)
            self.changing = what
            try:
                yield
            finally:
                self.changing = ""

    # Inspection

    @property
    def agents(self) -> Integers:
        """Ids of the agents that have not been removed."""
        return np.flatnonzero(self.state.common.active)

    @property
    def graph(self) -> Booleans:
        """Who belongs together, as far as the policy knows: (N, N), symmetric, False on the diagonal; a copy.

        Who of them lends and borrows is another matter: see `neighbors` and `set_sharing`.
        """
        with self.lock:
            edges, gone = super().graph, ~self.state.common.active
        if gone.any():
            edges[gone] = False
            edges[:, gone] = False
        return edges

    def neighbors(self, agent: int) -> Integers:
        """Ids of the agents whose samples `agent` uses, itself included (𝒩_i)."""
        agent = self._check_agent(agent)
        with self.lock:
            return np.flatnonzero(self._used(agent) & self.state.common.active)

    def _used(self, agent: int) -> Booleans:
        """Whose samples `agent` uses, removed agents' included; a new array."""
        common = self.state.common
        used = self._pool(agent) & common.lends & common.borrows[agent]
        used[agent] = True
        return np.asarray(used)

    def estimate(self, agent: int) -> Vector:
        """Pooled estimate θ̂ of `agent`, or its own if it does not borrow, shape (d,); a copy."""
        agent = self._check_agent(agent)
        with self.lock:
            return super().estimate(agent) if self.state.common.borrows[agent] else self.local_estimate(agent)

    @overload
    def explain(self, agent: int) -> AgentExplanation: ...
    @overload
    def explain(self, agent: int, other: int) -> Any: ...
    def explain(self, agent: int, other: int | None = None) -> Any:
        """Say whose samples `agent` uses and with whom it stopped sharing; or the same of it and one `other`.

        What is returned are named tuples whose `str()` is in words; their `text(name)` takes a function that
        says what an agent is called.
        """
        if other is not None:
            return super().explain(agent, other)
        i = self._check_agent(agent)
        with self.lock:
            lent = self.lent(i)
            apart = int(np.count_nonzero(self.state.common.active & ~self._used(i) & (lent == 0.0)))
            return agent_explanation(
                i, self.pulls, lent, apart, sharing=self.sharing(i), stopped=self._stopped(i)
            )

    def lent(self, agent: int) -> Vector:
        """Samples that every other agent lends to `agent`, shape (N,)."""
        lent = np.where(self._used(agent), self.state.local.pulls, 0.0)
        lent[agent] = 0.0
        return lent

    def _stopped(self, agent: int) -> list[Stop]:
        """With whom `agent` stopped sharing, the latest first, where the policy records it."""
        return []

    def _check_agent(self, agent: int) -> int:
        index = super()._check_agent(agent)
        if not self.state.common.active[index]:
            raise ValueError(f"agent {agent} has been removed")
        return index


def foresee(
    state_class: type, n_agents: int, sizes_ahead: Callable[[int, int], fields.Sizes], tables: fields.Sizes
) -> fields.Foreseen:
    """Sizes to make room for when arrays are made for `n_agents` agents.

    Memory that is not touched costs nothing, so there may be much of it, unless the machine could not hold
    it. The columns of tables are paid for with every row.
    """
    arrays = [leaf for leaf in fields.leaves(state_class) if not leaf.is_table]
    many, available = max(16 * n_agents, AMPLE), 0.5 * memory.physical_memory()
    while many > n_agents:
        ample = sizes_ahead(many, n_agents)
        if sum(leaf.nbytes(ample) for leaf in arrays) <= available:
            return fields.Foreseen(ample, tables)
        many //= 2
    exact = sizes_ahead(n_agents, n_agents)
    return fields.Foreseen(exact, exact)


def as_pulls(
    kinds: ArrayLike, agents: ArrayLike, xs: ArrayLike, rewards: ArrayLike, dim: int
) -> tuple[Integers, Integers, Matrix, Vector]:
    """Pulls to replay, as arrays that compiled code takes; which agents there are is not checked."""
    steps, who = (np.ascontiguousarray(array, dtype=np.int64) for array in (kinds, agents))
    x = validation.matrix("xs", xs, columns=dim)
    values = np.ascontiguousarray(rewards, dtype=np.float64)
    if not len(steps) == len(who) == len(x) == len(values):
        raise ValueError(
            f"kinds, agents, xs and rewards must be of one length, got {len(steps)}, {len(who)}, "
            f"{len(x)} and {len(values)}"
        )
    if ((steps < BEGIN) | (steps > PULL)).any():
        raise ValueError("kinds must be 0, 1, 2 or 3")
    return steps, who, x, values
