"""What users see of every policy: validated online calls, inspection, saving, agents that come and go."""

import copy
import math
import operator
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeGuard, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from shoal.core import fields, validation
from shoal.core.jit.pinned import Pinned, pin, places_of_lengths
from shoal.core.kernels.bits import WORD
from shoal.core.kernels.graphs import count_edges
from shoal.core.kernels.random import random_state
from shoal.core.policy import files
from shoal.core.policy.explanations import AgentExplanation, Lender, PairExplanation, Stop
from shoal.core.policy.files import PolicyFileError
from shoal.core.policy.locking import give_lock
from shoal.core.policy.parameters import Parameters, check, described, signature
from shoal.core.policy.steps import (
    BADLY_SCALED,
    BEGIN,
    NOT_BEGUN,
    PULL,
    REFUSED,
    SILENT,
    begin_checked,
    cancel_checked,
    choose_checked,
    predict_checked,
    replay_checked,
    revise,
    score_checked,
    update_checked,
)
from shoal.core.statistics import (
    amend_row,
    forget_row,
    lacks,
    make_statistics,
    pool_rows,
    problem,
    start_rows,
)
from shoal.core.styles import LineStyle
from shoal.core.types import AnyArray, Booleans, Integers, Matrix, Vector

FLOAT64 = np.dtype(np.float64)
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
_OWN = ("lock", "_pinned", "_room")
"""Attributes that a copy of a policy makes anew."""


@dataclass(frozen=True)
class Scores:
    """What `select` compares, for each arm; arrays of shape (K,)."""

    mean: Vector
    """Predicted reward."""
    width: Vector
    """Bonus for what is not known yet."""
    index: Vector
    """Their sum. `select` takes the first arm with the largest."""


class Prediction(NamedTuple):
    """Two predictions of an arm's reward."""

    own: float
    """By ridge regression on the agent's own samples alone."""
    pooled: float
    """By the samples that the agent uses: the mean in `Scores`."""


class Choice(NamedTuple):
    """An arm chosen without exploration, and what was predicted of its reward."""

    arm: int
    own: float
    pooled: float


class Policy(ABC):
    """Base class of the policies of the paper. Subclasses provide a state and the hooks below.

    `Policy(n_agents, dim, **parameters)`; the parameters are those of the class's `Parameters`.

    Examples
    --------
    >>> import shoal
    >>> policy = shoal.BASS(n_agents=2, dim=2)
    >>> isinstance(policy, shoal.Policy)
    True
    >>> policy.update(0, [0.0, 1.0], reward=2.0)
    >>> policy.estimate(0)
    array([0., 1.])
    >>> print(policy.explain(1))
    agent 1 has 0 samples and borrows 1 from 1 other: agent 0 (1).
    """

    name: ClassVar[str]
    label: ClassVar[str]
    """The name in published tables."""
    line_style: ClassVar[LineStyle]
    """How its curves are drawn."""
    in_paper: ClassVar[bool] = False
    """Whether the paper runs it, so that published figures can stand beside it."""
    Parameters: ClassVar[type[Parameters]] = Parameters
    """What the class takes beside the sizes."""
    State: ClassVar[type]
    """A NamedTuple with fields `common` and `local`, every field declared (see `shoal.core.fields`)."""
    state: Any
    _room: fields.Room
    """The state's arrays, with room for newcomers."""
    _parameters: Any
    _pinned: tuple[Any, Any] = None, None
    """A state and what `pin` made of it."""
    _places: list[AnyArray] | None = None
    """Where lengths that grow stand in what is pinned."""
    warns: bool = True
    """Whether badly scaled arms will be warned of; they are once."""
    _changing: str = ""
    """What is being done to the state, in several steps, by the thread that holds the lock."""
    lock: threading.RLock
    """Held by every call that works on the state: threads may share a policy, one call at a time."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.__signature__ = signature(cls.Parameters)  # type: ignore[attr-defined]
        if "__doc__" in vars(cls) and cls.__doc__:
            cls.__doc__ = described(cls.Parameters, cls.__doc__)

    def __init__(self, n_agents: int, dim: int, **parameters: Any) -> None:
        self._configure(dim, parameters)
        self.state = self._fresh_state(validation.natural("n_agents", n_agents))

    def _configure(self, dim: int, parameters: Mapping[str, Any]) -> None:
        """Everything but the state."""
        give_lock(self)
        self._dim = validation.positive_int("dim", dim)
        self._parameters = check(self.Parameters, type(self).__name__, parameters)

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        """Parameters, beside alpha and seed, to try the policy with in an environment: published ones."""
        return {}

    # Hooks

    def _sizes(self, n_agents: int) -> dict[str, int]:
        """What the names of sizes in the state's declarations stand for, with so many agents."""
        triangle = self.dim * (self.dim + 1) // 2
        return {
            "agents": n_agents,
            "blocks": -(-n_agents // WORD),
            "dim": self.dim,
            "triangle": triangle,
            "packed": triangle + self.dim,
            "clusters": n_agents,
        }

    def _state_class(self, n_agents: int) -> Any:
        """The class of the state of so many agents."""
        return self.State

    def _settings(self) -> dict[str, Any]:
        """The numbers that the state declares as settings: by default, parameters of the same name."""
        return msgspec.structs.asdict(self._parameters)

    def _join(self, state: Any, first: int) -> None:
        """Initialise what declarations cannot, for the newcomers `first`, `first + 1`, …; 0 when new."""
        return

    def _derive(self, state: Any) -> None:
        """Compute what is declared as derived from what is kept."""
        return

    def _problem(self, state: Any) -> str:
        """What is wrong with a loaded state, as a phrase, before `_derive`; "" if nothing is."""
        common = state.common
        if (common.withdrawn & (common.active | (state.local.pulls > 0))).any():
            return "an agent is withdrawn, and active or with samples"
        if (common.lends & ~common.borrows).any() or (common.withdrawn & ~common.lends).any():
            return "an agent lends and does not borrow, or is withdrawn and does not lend"
        if common.reserved[0] != np.count_nonzero(~common.lends):
            return (
                f"reserved is {common.reserved[0]}, and {np.count_nonzero(~common.lends)} agents do not lend"
            )
        pending = common.pending
        if pending.counts[~common.active].any() or pending.total[0] != pending.counts.sum():
            return "pulls are pending that nobody waits for"
        return problem(state.local, common.ridge)

    @abstractmethod
    def _edges(self) -> Booleans:
        """The graph, removed agents and diagonal not yet taken out; a new array."""

    @abstractmethod
    def _pool(self, agent: int) -> Booleans:
        """Which agents' samples `agent` uses, removed ones' included; a new array."""

    @abstractmethod
    def _pooled_estimate(self, agent: int) -> Vector:
        """θ̂ of the pool of `agent`."""

    def _end_edges(self, agent: int) -> None:
        """Settle what follows from `agent` leaving; it is no longer active. Its samples stay."""
        return

    def _withdraw(self, agent: int) -> None:
        """Take the samples of `agent` out of whatever holds them; its own statistics are empty already."""
        return

    def _end_pending(self, agent: int) -> None:
        """Take the pending pulls of an agent that leaves out of all sums: their rewards cannot come."""
        pending = self.state.common.pending
        pending.total[0] -= pending.counts[agent]
        pending.counts[agent] = 0
        pending.sums[agent] = 0.0

    def _lending_changed(self, agent: int) -> None:
        """Bring up to date what holds the samples of `agent`, who has just begun to lend them, or stopped.

        From then on nothing that others use depends on them, or everything does as if it had always lent. A
        policy that does not define it has no agents who do not lend.
        """
        return

    @property
    def _engine_limits(self) -> tuple[int, ...]:
        """Numbers of agents above which other compiled code serves."""
        return ()

    def _absorb(self, agent: int, other: int) -> None:
        """Let `agent` have what the policy keeps of `other`; its statistics and pending pulls are it already.

        Afterwards `other` is withdrawn.
        """
        self._amended(agent, np.zeros(self._dim), 0.0, 0.0, removes=False)

    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        """Bring up to date what holds a sample of `agent`, whose statistics have been amended already.

        Its reward, which was `old`, has changed by `change`, or, if this `removes` it, the sample is gone. A
        policy that keeps more than its agents' own statistics and does not define it cannot `correct`.
        """
        return

    def _reconsider(self, agent: int) -> None:
        """Decide from the present samples whom `agent` shares with."""
        revise(self._pinned_state(), agent, self.rounds)

    def reserve(self, pulls: int) -> None:
        """Make room in the state for what `pulls` more observations may add to its logs."""
        return

    def _fresh_state(self, n_agents: int) -> Any:
        """The state of so many agents that have seen nothing."""
        sizes = self._sizes(n_agents)
        self._check_memory(sizes)
        self._room = self._make_room(n_agents)
        state = self._room.show(sizes)
        state.common.rng[:] = random_state(self._parameters.seed)
        self._start_newcomers(state, 0)
        return state

    def _make_room(self, n_agents: int) -> fields.Room:
        """Arrays for so many agents: no longer than that where they are few and quickly copied."""
        exact = self._sizes(n_agents)
        foreseen = self._foreseen(n_agents) if n_agents >= MANY else fields.Foreseen(exact, exact)
        try:
            return fields.Room(self._state_class(n_agents), foreseen, self._settings())
        except MemoryError:  # a machine that promises no memory beyond what it has
            exactly = fields.Foreseen(exact, exact)
            return fields.Room(self._state_class(n_agents), exactly, self._settings())

    def _foreseen(self, n_agents: int) -> fields.Foreseen:
        """Sizes to make room for when arrays are made for so many agents.

        Memory that is not touched costs nothing, so there may be much of it, unless the machine could not
        hold it. The columns of tables are paid for with every row.
        """
        tables = self._tables_ahead(n_agents)
        arrays = [leaf for leaf in fields.leaves(self._state_class(n_agents)) if not leaf.is_table]
        many, available = max(16 * n_agents, AMPLE), 0.5 * _physical_memory()
        while many > n_agents:
            ample = self._sizes_ahead(many, n_agents)
            if sum(leaf.nbytes(ample) for leaf in arrays) <= available:
                return fields.Foreseen(ample, tables)
            many //= 2
        return fields.Foreseen(self._sizes(n_agents), self._sizes(n_agents))

    def _tables_ahead(self, n_agents: int) -> dict[str, int]:
        """Sizes to make room for in tables: half as many agents more, if they fit into memory."""
        sizes = self._sizes_ahead(n_agents + n_agents // 2 + SPARE, n_agents)
        needed = fields.nbytes(self._state_class(n_agents), sizes)
        return sizes if needed <= _physical_memory() else self._sizes(n_agents)

    def _sizes_ahead(self, n_agents: int, present: int) -> dict[str, int]:
        """The sizes of `n_agents`, kept in the same way as those of the `present` ones."""
        return self._sizes(n_agents)

    def _start_newcomers(self, state: Any, first: int) -> None:
        start_rows(state.local, first, state.common.ridge)
        self._join(state, first)

    # Online use

    def select(self, agent: int, arms: ArrayLike) -> int:
        """Choose an arm for `agent`: the index of a row of `arms`, (K, d), which may change between calls."""
        agent, arms = self._check_agent(agent), self._check_arms(arms)
        with self.lock:
            if self._changing:
                self._refuse_if_changing()
            choice = choose_checked(self._pinned_state(), agent, arms)
        if choice < 0:
            self._refuse_arms(choice, arms)
        return int(choice)

    def choose(self, agent: int, arms: ArrayLike) -> Choice:
        """Choose as `select` does with `epsilon=0`, and predict the reward of the arm chosen.

        Nothing changes, not even the random state: any number of these calls, and of calls of `scores`,
        `predict` and `explain`, leaves the policy, saved or continued, the same bit for bit. So does `select`
        where `epsilon` is 0.
        """
        agent, arms = self._check_agent(agent), self._check_arms(arms)
        with self.lock:
            if self._changing:
                self._refuse_if_changing()
            choice, own, pooled = predict_checked(self._pinned_state(), agent, arms)
        if choice < 0:
            self._refuse_arms(choice, arms)
        return Choice(choice, own, pooled)

    def scores(self, agent: int, arms: ArrayLike) -> Scores:
        """What `select` would compare if it chose for `agent` among the rows of `arms`, (K, d), now.

        The index is, to the bit, what it compares; with `epsilon=0`, `select` returns `index.argmax()`.
        """
        agent, arms = self._check_agent(agent), self._check_arms(arms)
        out = np.empty((2, len(arms)))
        with self.lock:
            if self._changing:
                self._refuse_if_changing()
            answer = score_checked(self._pinned_state(), agent, arms, out)
        if answer < 0:
            self._refuse_arms(answer, arms)
        return Scores(out[0], out[1], out[0] + out[1])

    def predict(self, agent: int, x: ArrayLike) -> Prediction:
        """Predict the reward of arm `x`, shape (d,), for `agent`, by its own samples and by its pool's."""
        x = validation.vector("x", x, self._dim)
        _, own, pooled = self.choose(agent, np.ascontiguousarray(x)[None])
        return Prediction(own, pooled)

    def _check_arms(self, arms: ArrayLike) -> Matrix:
        if _is_plain(arms) and arms.ndim == 2 and arms.shape[1] == self._dim and arms.shape[0] > 0:
            return arms
        return validation.matrix("arms", arms, columns=self._dim).copy()

    def _refuse_arms(self, answer: int, arms: Matrix) -> None:
        if answer == SILENT:
            raise TypeError(
                f"{type(self).__name__} does not tell its scores: its step select must leave mean and bonus "
                "of each arm in state.common.scored"
            )
        validation.matrix("arms", arms, columns=self._dim)

    def update(self, agent: int, x: ArrayLike, reward: float, *, begun: bool = False) -> None:
        """Let `agent` learn that arm `x`, shape (d,), gave `reward`.

        One call is one round, unless the pull was announced by `begin`: pass `begun=True` then, and the pull
        is no longer pending.
        """
        agent, x = self._check_agent(agent), self._check_arm(x)
        try:
            reward = float(reward)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"reward must be a number, got {validation.show(reward)}") from None
        with self.lock:
            if self._changing:
                self._refuse_if_changing()
            self.reserve(1)
            answer = update_checked(self._pinned_state(), agent, x, reward, bool(begun))
        if answer == REFUSED:
            validation.number("reward", reward, low=-validation.LARGEST, high=validation.LARGEST)
        self._check_answer(answer, agent, x)

    def begin(self, agent: int, x: ArrayLike) -> None:
        """Let `agent` pull arm `x`, shape (d,), now; its reward will come later. One call is one round.

        Until then policies that can (see docs/algorithms.md) count on what the pending pull will tell. Its
        reward is given to `update` with `begun=True`; if none will ever come, call `cancel`.
        """
        agent, x = self._check_agent(agent), self._check_arm(x)
        with self.lock:
            answer = begin_checked(self._pinned_state(), agent, x)
        self._check_answer(answer, agent, x)

    def cancel(self, agent: int, x: ArrayLike) -> None:
        """Expect no reward any more for a pull of `x` by `agent` that has begun."""
        agent, x = self._check_agent(agent), self._check_arm(x)
        with self.lock:
            answer = cancel_checked(self._pinned_state(), agent, x)
        self._check_answer(answer, agent, x)

    def replay(self, kinds: ArrayLike, agents: ArrayLike, xs: ArrayLike, rewards: ArrayLike) -> None:
        """Play many pulls at once: as `begin`, `update` and `cancel` one by one, to the bit, but faster.

        Parameters
        ----------
        kinds : array of int, shape (n,)
            Of each pull 0 (`begin`), 1 (`update` of one that has begun), 2 (`cancel`) or 3 (`update`).
        agents : array of int, shape (n,)
        xs : array of shape (n, d)
        rewards : array of shape (n,)
            Those of kinds 1 and 3 count.

        Raises
        ------
        ValueError
            At the first pull that is refused; those before it have been played.
        """
        steps, who, x, values = self._pulls(kinds, agents, xs, rewards)
        with self._change("replay"):
            self._check_agents(who)
            self.reserve(int(np.count_nonzero(steps & 1)))
            first = int(replay_checked(self._pinned_state(), steps, who, x, values))
        if first >= 0:
            raise ValueError(f"pull {first} of agent {who[first]} was refused: {x[first]}, {values[first]}")

    def _pulls(
        self, kinds: ArrayLike, agents: ArrayLike, xs: ArrayLike, rewards: ArrayLike
    ) -> tuple[Integers, Integers, Matrix, Vector]:
        """Pulls to replay, as arrays that compiled code takes; which agents there are is not checked."""
        steps, who = (np.ascontiguousarray(array, dtype=np.int64) for array in (kinds, agents))
        x = validation.matrix("xs", xs, columns=self._dim)
        values = np.ascontiguousarray(rewards, dtype=np.float64)
        if not len(steps) == len(who) == len(x) == len(values):
            raise ValueError(
                f"kinds, agents, xs and rewards must be of one length, got {len(steps)}, {len(who)}, "
                f"{len(x)} and {len(values)}"
            )
        if ((steps < BEGIN) | (steps > PULL)).any():
            raise ValueError("kinds must be 0, 1, 2 or 3")
        return steps, who, x, values

    def _check_agents(self, agents: Integers) -> None:
        for agent in np.unique(agents).tolist():
            self._check_agent(agent)

    @property
    def pending(self) -> Integers:
        """Pulls of each agent that have begun and whose rewards are still due, shape (N,); a copy."""
        return np.array(self.state.common.pending.counts)

    def _check_arm(self, x: ArrayLike) -> Vector:
        if _is_plain(x) and x.shape == (self._dim,):
            return x
        return validation.vector("x", x, self._dim).copy()

    def _check_answer(self, answer: int, agent: int, x: Vector) -> None:
        if answer == REFUSED:
            self.check_scale("x", validation.vector("x", x, self._dim))
        elif answer == BADLY_SCALED:
            self.check_scale("x", x)
        elif answer == NOT_BEGUN:
            raise ValueError(f"agent {agent} has no pull that has begun and awaits its reward, got x = {x}")

    def check_scale(self, name: str, arms: Vector) -> None:
        """Refuse arms, (…, d), far too long beside the ridge; warn once if longer than they should be."""
        warning = validation.scale(name, arms, self._parameters.ridge)
        if warning and self.warns:
            self.warns = False
            warnings.warn(warning, stacklevel=3)

    def _pinned_state(self) -> Any:
        """The state as compiled functions take it; made anew when the state was replaced."""
        if self._pinned[0] is not self.state:
            self._pin(self.state)
        return self._pinned[1]

    def _pin(self, state: Any) -> Any:
        """A state as compiled functions that take a pinned one want it."""
        if self._pinned[0] is not state:
            self._pinned = state, pin(state, self._pinned[1])
        return self._pinned[1]

    # Copies: arrays are never shared, nor is the lock

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            return copy.deepcopy({key: value for key, value in vars(self).items() if key not in _OWN})

    def __setstate__(self, content: dict[str, Any]) -> None:
        vars(self).update(content)
        give_lock(self)
        self._room = fields.Room.of(self.state)

    # Inspection

    @property
    def n_agents(self) -> int:
        """Number of ids given out so far, removed agents included."""
        return len(self.state.common.active)

    @property
    def dim(self) -> int:
        """Dimension of the arms."""
        return self._dim

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The constructor's keyword arguments, read-only."""
        return MappingProxyType(msgspec.structs.asdict(self._parameters))

    @property
    def agents(self) -> Integers:
        """Ids of the agents that have not been removed."""
        return np.flatnonzero(self.state.common.active)

    @property
    def rounds(self) -> int:
        """Rounds played so far."""
        return int(self.state.common.clock[0])

    @property
    def graph(self) -> Booleans:
        """Who belongs together, as far as the policy knows: (N, N), symmetric, False on the diagonal; a copy.

        Who of them lends and borrows is another matter: see `neighbors` and `set_sharing`.
        """
        with self.lock:
            edges, gone = self._edges(), ~self.state.common.active
        if gone.any():
            edges[gone] = False
            edges[:, gone] = False
        edges.flat[:: len(edges) + 1] = False
        return edges

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        return count_edges(self.graph, labels)

    @property
    def nbytes(self) -> int:
        """Memory of the state, in bytes."""
        sizes = self._sizes(self.n_agents)
        logs = [leaf.get(self.state) for leaf in fields.leaves(type(self.state)) if leaf.field.count]
        return fields.nbytes(type(self.state), sizes) + sum(int(log.nbytes) for log in logs)

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
            if not self.state.common.borrows[agent]:
                return self.local_estimate(agent)
            return self._pooled_estimate(agent).copy()

    def local_estimate(self, agent: int) -> Vector:
        """Estimate θ̂ of `agent` from its own samples alone, shape (d,); a copy."""
        return np.array(self.state.local.theta_hat[self._check_agent(agent)])

    @property
    def pulls(self) -> Integers:
        """Samples each agent has, shape (N,); a copy."""
        return np.array(self.state.local.pulls)

    @property
    def communication_cost(self) -> int:
        """Number of (observation, other agent it was shared with) pairs so far."""
        return int(self.state.common.cost[0])

    @overload
    def explain(self, agent: int) -> AgentExplanation: ...
    @overload
    def explain(self, agent: int, other: int) -> Any: ...
    def explain(self, agent: int, other: int | None = None) -> Any:
        """Say whose samples `agent` uses and with whom it stopped sharing; or the same of it and one `other`.

        What is returned are named tuples whose `str()` is in words; their `text(name)` takes a function that
        says what an agent is called.
        """
        with self.lock:
            i = self._check_agent(agent)
            if other is None:
                return self._explain_agent(i)
            j = self._check_agent(other)
            if i == j:
                raise ValueError(f"other must differ from agent, got {other!r} twice")
            return self._explain_pair(i, j)

    def _explain_agent(self, agent: int) -> AgentExplanation:
        lent = self._lent(agent)
        lenders = [Lender(int(who), float(lent[who])) for who in np.argsort(-lent, kind="stable")]
        return AgentExplanation(
            agent=agent,
            sharing=self.sharing(agent),
            samples=int(self.state.local.pulls[agent]),
            lenders=tuple(lender for lender in lenders if lender.samples > 0.0),
            stopped=tuple(self._stopped(agent)),
            apart=int(np.count_nonzero(self.state.common.active & ~self._used(agent) & (lent == 0.0))),
        )

    def _explain_pair(self, agent: int, other: int) -> Any:
        local = self.state.local
        return PairExplanation(
            agent=agent,
            other=other,
            together=bool(self._pool(agent)[other]),
            distance=float(np.linalg.norm(local.theta_hat[agent] - local.theta_hat[other])),
            threshold=math.nan,
            separation_time=-1,
            lent_by_agent=int(local.pulls[agent] * self._used(other)[agent]),
            lent_by_other=int(local.pulls[other] * self._used(agent)[other]),
        )

    def _lent(self, agent: int) -> Vector:
        """Samples that every other agent lends to `agent`, shape (N,)."""
        lent = np.where(self._used(agent), self.state.local.pulls, 0.0)
        lent[agent] = 0.0
        return lent

    def _stopped(self, agent: int) -> list[Stop]:
        """With whom `agent` stopped sharing, the latest first, where the policy records it."""
        return []

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.parameters.items() if np.ndim(value) == 0)
        return f"{type(self).__name__}(n_agents={self.n_agents}, dim={self.dim}, {shown})"

    # Samples put right

    def correct(
        self, agent: int, x: ArrayLike, old_reward: float, new_reward: float, *, reconsider: bool = False
    ) -> None:
        """Put right a sample of `agent`: arm `x`, shape (d,), gave `new_reward`, not `old_reward`.

        The agent's and its pool's statistics are, up to rounding, those of having learned the right value.
        What was decided meanwhile stays (arms, cuts, clusters), unless `reconsider` has the policy decide
        anew, from the present samples, whom the agent shares with. What is estimated along the way stays too:
        ClusterMixture keeps its estimate of the noise. Costs no round. A policy of your own that keeps pools
        refuses, unless it defines `_amended` (docs/adding-a-policy.md).
        """
        x = validation.vector("x", x, self._dim)
        old, new = (
            validation.number(name, value, low=-validation.LARGEST, high=validation.LARGEST)
            for name, value in (("old_reward", old_reward), ("new_reward", new_reward))
        )
        self._amend("correct", agent, x, old, new - old, removes=False, reconsider=reconsider)

    def retract(self, agent: int, x: ArrayLike, reward: float, *, reconsider: bool = False) -> None:
        """Take back a sample of `agent`: arm `x` that gave `reward`; otherwise like `correct`."""
        x = validation.vector("x", x, self._dim)
        reward = validation.number("reward", reward, low=-validation.LARGEST, high=validation.LARGEST)
        self._amend("retract", agent, x, reward, -reward, removes=True, reconsider=reconsider)

    def holds(self, agent: int, x: ArrayLike, reward: float, learned: int) -> bool:
        """Whether a sample that `agent` learned in round `learned` still counts; some policies drop some."""
        return True

    def _amend(
        self, what: str, agent: int, x: Vector, old: float, change: float, *, removes: bool, reconsider: bool
    ) -> None:
        agent = self._check_id(agent)
        self._check_amendable(what)
        with self._change(what):
            common, local = self.state.common, self._pinned_state().local
            if common.withdrawn[agent]:
                raise ValueError(f"the samples of agent {agent} have been withdrawn")
            if lacks(local, agent, common.ridge, x):
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

    def _check_amendable(self, what: str) -> None:
        if type(self)._amended is not Policy._amended:
            return
        for leaf in fields.leaves(type(self.state)):
            is_own = leaf.path[0] in ("common", "local")
            if not is_own and leaf.field.role in (fields.Role.KEPT, fields.Role.DERIVED):
                raise ValueError(
                    f"{type(self).__name__} cannot {what} samples: it keeps state.{leaf.path[0]} beside its "
                    "agents' own statistics, so it must define _amended, which brings that up to date"
                )

    # Agents come and go

    def sharing(self, agent: int) -> Sharing:
        """How `agent` shares; see `set_sharing`."""
        common, agent = self.state.common, self._check_agent(agent)
        return "both" if common.lends[agent] else "borrow" if common.borrows[agent] else "none"

    def set_sharing(self, agent: int, sharing: Sharing) -> None:
        """Say whether others may use the samples of `agent`, and whether it uses theirs.

        "both": it lends and borrows, as agents do unless told otherwise. "borrow": nobody else uses its
        samples; from then on nothing that others choose by depends on them. "none": besides, it uses
        nobody's, and chooses as `Independent` does. The policy goes on judging who belongs together, so that
        a change back takes effect at once: what its pool sums is then, up to rounding, what it would be had
        the agent always lent. What was decided meanwhile (cuts, clusters) stays. Costs no round.
        """
        agent = self._check_agent(agent)
        self._check_sharing(sharing)
        with self._change("set_sharing"):
            self._set_sharing(agent, sharing)

    def _check_sharing(self, sharing: Any) -> None:
        validation.one_of("sharing", sharing, tuple(_MODES))
        if sharing != "both" and type(self)._lending_changed is Policy._lending_changed:
            raise TypeError(
                f"{type(self).__name__} knows only agents that lend and borrow, got sharing={sharing!r}: "
                "it must heed state.common.lends and define _lending_changed"
            )

    def _set_sharing(self, agent: int, sharing: str) -> None:
        common = self.state.common
        lends, borrows = _MODES[sharing]
        common.borrows[agent] = borrows
        if common.lends[agent] != lends:
            common.lends[agent] = lends
            common.reserved[0] += -1 if lends else 1
            self._lending_changed(agent)

    def add_agents(self, n: int = 1, *, sharing: Sharing = "both") -> Integers:
        """Add `n` agents that have seen nothing and return their ids; they share as `set_sharing` says."""
        n = validation.positive_int("n", n)
        self._check_sharing(sharing)
        with self._change("add_agents"):
            first = self.n_agents
            room = self._room
            try:
                state = self._stretch(first, first + n)
                self._start_newcomers(state, first)
            except BaseException:  # the arrays of the state are still those of the old room
                self._room = room
                raise
            self._pin(state)  # lets go of the old arrays
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
            self._check_memory(sizes)
            self._room, self._places = self._make_room(n_agents), None
            self._room.take_over(room, self._sizes(first))
            return self._room.show(sizes)
        if not room.is_enough(ahead):
            self._check_memory(sizes)
            self._room = copy.copy(room)
            self._room.enlarge(self._sizes(first), sizes, self._foreseen(n_agents), ahead=ahead)
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
            common, local = self.state.common, self.state.local
            both, sums = np.zeros(self.n_agents, np.bool_), make_statistics(1, self._dim, common.ridge)
            both[[i, j]] = True
            pool_rows(self._pinned_state().local, both, common.ridge, sums, 0)
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
        agent = self._check_id(agent)
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
            forget_row(self._pinned_state().local, agent, common.ridge)
            self._withdraw(agent)
            common.lends[agent] = common.borrows[agent] = True
            common.reserved[0] = np.count_nonzero(~common.lends)
            for leaf in fields.leaves(type(self.state)):
                if leaf.field.role is fields.Role.SCRATCH:  # where its samples may have passed through
                    leaf.get(self.state)[...] = 0

    @contextmanager
    def _change(self, what: str) -> Iterator[None]:
        """Hold the lock for a change in several steps, between which a signal handler may run."""
        with self.lock:
            self._refuse_if_changing()
            self._changing = what
            try:
                yield
            finally:
                self._changing = ""

    def _refuse_if_changing(self) -> None:
        if self._changing:
            raise RuntimeError(
                f"the policy is in the middle of {self._changing}, which a signal handler has interrupted; "
                "save or change it when that has returned"
            )

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole policy to a file. A crash while writing leaves the old file, or none."""
        files.write_atomically(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes | memoryview:
        """The bytes of the file that `save` writes."""
        with self.lock:
            self._refuse_if_changing()
            header = {
                "policy": self.name,
                "n_agents": self.n_agents,
                "dim": self.dim,
                "parameters": {key: files.to_json(value) for key, value in self.parameters.items()},
            }
            sizes, leaves = self._sizes(self.n_agents), fields.leaves(type(self.state))
            kept = [leaf for leaf in leaves if leaf.field.role is fields.Role.KEPT]
            return files.pack(header, {leaf.name: leaf.used(self.state, sizes) for leaf in kept})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy back; it continues exactly where it was saved."""
        return cls._from_contents(Path(path), files.read(Path(path)))

    @classmethod
    def _from_contents(cls, path: Path, contents: files.Contents) -> Self:
        if contents.policy != cls.name:
            raise PolicyFileError(f"{path} holds a {contents.policy!r} policy, not {cls.name!r}")
        files.check_sizes(path, contents)
        policy = cls.__new__(cls)
        try:
            policy._configure(contents.dim, contents.parameters)
            sizes = policy._sizes(contents.n_agents)
            kind = policy._state_class(contents.n_agents)
            arrays = files.check_arrays(path, kind, contents.arrays, sizes, strict=contents.strict)
            policy._check_memory(sizes)
            policy._fill(arrays, sizes)
            if trouble := policy._problem(policy.state):
                raise PolicyFileError(f"{path}: {trouble}")
            policy._derive(policy.state)
        except PolicyFileError:
            raise
        except Exception as error:  # parameters of a wrong type, sizes beyond this machine
            raise PolicyFileError(f"{path} does not hold a {cls.name!r} policy: {error}") from error
        return policy

    def _fill(self, arrays: Mapping[str, Any], sizes: fields.Sizes) -> None:
        """Make a state that holds these arrays."""
        self._room = self._make_room(sizes["agents"])
        leaves = fields.leaves(self._room.state_class)
        logs = {leaf.name for leaf in leaves if leaf.field.count}
        self._room.replace({name: arrays[name] for name in logs})
        self.state = self._room.show(sizes)
        for leaf in leaves:
            if leaf.name in arrays and leaf.name not in logs:
                leaf.used(self.state, sizes)[...] = arrays[leaf.name]

    def _check_memory(self, sizes: fields.Sizes) -> None:
        """Refuse, before anything is allocated, what this machine cannot hold."""
        needed = fields.nbytes(self._state_class(sizes["agents"]), sizes)
        statistics = 8 * (2 * self.dim**2 + 2 * self.dim + 2) * sizes["agents"]
        rest = f"{statistics / 1e9:,.1f} for the agents' statistics"
        self._refuse(needed, rest, sizes["agents"])

    def _refuse(self, needed: float, what: str, n_agents: int | None = None) -> None:
        """Raise if this machine does not have so many bytes."""
        if needed > (available := _physical_memory()):
            n_agents = self.n_agents if n_agents is None else n_agents
            raise MemoryError(
                f"{type(self).__name__} with n_agents={n_agents}, dim={self.dim} needs at least "
                f"{needed / 1e9:,.1f} GB ({what}); this machine has {available / 1e9:,.1f} GB"
            )

    def _check_id(self, agent: int) -> int:
        try:
            index = operator.index(agent)
        except TypeError:
            raise ValueError(f"agent must be an integer, got {validation.show(agent)}") from None
        if not 0 <= index < len(self.state.common.active):
            known = (
                f"in 0, …, {self.n_agents - 1}" if self.n_agents else "one that was added: there is none yet"
            )
            raise ValueError(f"agent must be {known}, got {agent!r}")
        return index

    def _check_agent(self, agent: int) -> int:
        index = self._check_id(agent)
        if not self.state.common.active[index]:
            raise ValueError(f"agent {agent} has been removed")
        return index


def _physical_memory() -> float:
    """Bytes of memory that this machine has, as far as it tells."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return math.inf


def _is_plain(array: Any) -> TypeGuard[Vector]:
    """Whether an array is of the one layout that the online calls are compiled for."""
    return type(array) is np.ndarray and array.dtype == FLOAT64 and array.flags.carray
