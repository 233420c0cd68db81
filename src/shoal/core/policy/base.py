"""What users see of every policy: validated online calls, inspection, explanations and files."""

import copy
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from shoal.core import fields, validation
from shoal.core.jit import narration
from shoal.core.jit.pinned import pin
from shoal.core.kernels.bits import WORD
from shoal.core.kernels.graphs import count_edges
from shoal.core.kernels.random import random_state
from shoal.core.policy import calls, files, memory
from shoal.core.policy.clicks import sigmoid, with_intercept
from shoal.core.policy.explanations import AgentExplanation, PairComparison, agent_explanation
from shoal.core.policy.exploring import explores
from shoal.core.policy.files import PolicyFileError
from shoal.core.policy.locking import give_lock
from shoal.core.policy.parameters import Parameters, check, described, extended, signature
from shoal.core.policy.steps import (
    REFUSED,
    choose_checked,
    find_chances,
    predict_checked,
    score_checked,
    update_checked,
)
from shoal.core.statistics import Statistics, problem, start_rows
from shoal.core.styles import LineStyle
from shoal.core.types import AnyArray, Booleans, Integers, Matrix, Vector

Kind = TypeVar("Kind", bound="Policy")
_ANEW = ("lock", "_pinned", "_room")
"""Attributes that a copy of a policy makes anew."""


@dataclass(frozen=True)
class Scores:
    """What `select` compares, for each arm; arrays of shape (K,).

    With `rewards="binary"` it compares logits, and these are probabilities: that of a click, and the one
    whose logit is compared. The width is their difference, negative where the bonus is small: doubt itself
    moves the predicted probability towards a half.
    """

    mean: Vector
    """Predicted reward."""
    width: Vector
    """Bonus for what is not known yet; where a policy samples, what its draw adds."""
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
    """Base class of policies that are compiled: they choose, learn, are simulated, saved and explained.

    `Policy(n_agents, dim, **parameters)`; the parameters are those of the class's `Parameters`. A subclass
    provides a state, its steps (`shoal.core.policy.steps`) and the hooks below. Populations need more of a
    policy, and take `LivePolicy` only.

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
    given: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Arrays that its constructor takes besides, and that become state: their names and meanings."""
    State: ClassVar[type]
    """A NamedTuple with fields `common` and `local`, every field declared (see `shoal.core.fields`)."""
    state: Any
    dim: int
    """Dimension of the arms."""
    clicks: bool
    """Whether rewards are 0 or 1: see `shoal.core.policy.clicks`."""
    inner_dim: int
    """Dimension of the arms as steps take them: one more where rewards are clicks."""
    _room: fields.Room
    """The state's arrays."""
    _parameters: Any
    _pinned: tuple[Any, Any] = None, None
    """A state and what `pin` made of it."""
    warns: bool = True
    """Whether badly scaled arms will be warned of; they are once."""
    changing: str = ""
    """What is being done to the state, in several steps, by the thread that holds the lock."""
    lock: threading.RLock
    """Held by every call that works on the state: threads may share a policy, one call at a time."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not hasattr(cls, "label"):
            cls.name, cls.label = cls.__name__.lower(), cls.__name__
        if "State" in vars(cls) and "Parameters" not in vars(cls):
            cls.Parameters = extended(cls.Parameters, cls)
        cls.__signature__ = signature(cls.Parameters, cls.given)  # type: ignore[attr-defined]
        if "__doc__" in vars(cls) and cls.__doc__:
            cls.__doc__ = described(cls.Parameters, cls.__doc__, cls.given)

    def __init__(self, n_agents: int, dim: int, **parameters: Any) -> None:
        self._configure(dim, parameters)
        n_agents = validation.natural("n_agents", n_agents)
        self._room = self._make_room(n_agents)
        state = self._room.show(self._sizes(n_agents))
        state.common.rng[:] = random_state(self._parameters.seed)
        start_rows(state.local, 0, state.common.ridge)
        self._join(state, 0)
        self.state = state

    def _configure(self, dim: int, parameters: Mapping[str, Any]) -> None:
        """Everything but the state."""
        give_lock(self)
        self.dim = validation.positive_int("dim", dim)
        self._parameters = check(self.Parameters, type(self).__name__, parameters)
        self.clicks = getattr(self._parameters, "rewards", "real") == "binary"
        self.inner_dim = self.dim + self.clicks

    def inner(self, arms: AnyArray) -> AnyArray:
        """Arms, (…, d), as steps take them."""
        return with_intercept(arms) if self.clicks else arms

    def check_rewards(self, name: str, rewards: ArrayLike) -> None:
        """Refuse rewards that are not clicks, where the policy learns clicks."""
        values = np.asarray(rewards)
        if self.clicks and (wrong := (values != 0.0) & (values != 1.0)).any():
            raise ValueError(f'{name} must be 0 or 1 with rewards="binary", got {values[wrong][0]}')

    # Hooks

    def _sizes(self, n_agents: int) -> dict[str, int]:
        """What the names of sizes in the state's declarations stand for, with `n_agents` agents."""
        triangle = self.inner_dim * (self.inner_dim + 1) // 2
        return {
            "agents": n_agents,
            "blocks": -(-n_agents // WORD),
            "dim": self.inner_dim,
            "triangle": triangle,
            "packed": triangle + self.inner_dim,
            "clusters": n_agents,
        }

    def _state_class(self, n_agents: int) -> Any:
        """The class of the state of `n_agents` agents."""
        return self.State

    def _settings(self) -> dict[str, Any]:
        """The numbers that the state declares as settings: by default, parameters of the same name."""
        own = msgspec.structs.asdict(self._parameters)
        return {**own, "explores": explores(own), "clicks": self.clicks}

    def _make_room(self, n_agents: int) -> fields.Room:
        """The arrays of a state of `n_agents` agents, if this machine can hold them."""
        sizes, kind = self._sizes(n_agents), self._state_class(n_agents)
        memory.check(type(self).__name__, kind, sizes)
        return fields.Room(kind, fields.Foreseen(sizes, sizes), self._settings())

    def _join(self, state: Any, first: int) -> None:
        """Initialise what declarations cannot, for the agents `first`, `first + 1`, …

        `first` is 0 when the policy is new, and always if it is not a live one. By default, statistics beside
        `local` start as those of models that have seen nothing.
        """
        for name, value in zip(state._fields, state, strict=True):
            if isinstance(value, Statistics) and name != "local":
                start_rows(value, first, state.common.ridge)

    def _ridges(self, state: Any) -> Any:
        """The ridge of agents' own statistics: one for all, or one for each, shape (N,)."""
        return state.common.ridge

    def _derive(self, state: Any) -> None:
        """Compute what is declared as derived from what is kept."""
        return

    def _problem(self, state: Any) -> str:
        """What is wrong with a loaded state, as a phrase, before `_derive`; "" if nothing is."""
        return problem(state.local, self._ridges(state))

    def _edges(self) -> Booleans:
        """The graph; the diagonal does not count; a new array. By default, who uses each other's samples."""
        pools = np.array([self._pool(agent) for agent in range(self.n_agents)]).reshape(self.n_agents, -1)
        return np.asarray(pools & pools.T)

    @abstractmethod
    def _pool(self, agent: int) -> Booleans:
        """Which agents' samples `agent` uses, its own included; a new array."""

    def _pooled_estimate(self, agent: int) -> Vector:
        """θ̂ of the pool of `agent`; by default ridge regression on the samples of `_pool`."""
        local, pool = self.state.local, self._pool(agent)
        prior = self.state.common.ridge * np.eye(self.inner_dim)
        A = prior + (local.A[pool] - prior).sum(axis=0)
        return np.asarray(np.linalg.solve(A, local.b[pool].sum(axis=0)))

    def reserve(self, pulls: int) -> None:
        """Make room in the state for what `pulls` more observations may add to its logs."""
        return

    # Online use

    def select(self, agent: int, arms: ArrayLike) -> int:
        """Choose an arm for `agent`: the index of a row of `arms`, (K, d), which may change between calls."""
        agent, arms = self._check_agent(agent), calls.checked_arms(arms, self.dim)
        with self.lock:
            if self.changing:
                calls.refuse_while_changing(self.changing)
            choice = choose_checked(self.pinned_state(), agent, self.inner(arms))
        if choice < 0:
            calls.refuse_arms(type(self).__name__, choice, arms)
        return int(choice)

    def choose(self, agent: int, arms: ArrayLike) -> Choice:
        """Choose as `select` does with `epsilon=0`, and predict the reward of the arm chosen.

        Nothing changes, not even the random state: any number of these calls, and of calls of `scores`,
        `predict` and `explain`, leaves the policy, saved or continued, the same bit for bit. So does `select`
        where `epsilon` is 0.
        """
        agent, arms = self._check_agent(agent), calls.checked_arms(arms, self.dim)
        with self.lock:
            if self.changing:
                calls.refuse_while_changing(self.changing)
            state, inner = self.pinned_state(), self.inner(arms)
            choice, own, pooled = predict_checked(state, agent, inner)
            if self.clicks and choice >= 0:
                own, pooled = self._chances(agent, inner[choice : choice + 1])[:, 0].tolist()
        if choice < 0:
            calls.refuse_arms(type(self).__name__, choice, arms)
        return Choice(choice, own, pooled)

    def scores(self, agent: int, arms: ArrayLike) -> Scores:
        """What `select` would compare if it chose for `agent` among the rows of `arms`, (K, d), now.

        The index is, to the bit, what it compares; with `epsilon=0`, `select` returns `index.argmax()`.
        """
        agent, arms = self._check_agent(agent), calls.checked_arms(arms, self.dim)
        out = np.empty((2, len(arms)))
        with self.lock:
            if self.changing:
                calls.refuse_while_changing(self.changing)
            inner = self.inner(arms)
            answer = score_checked(self.pinned_state(), agent, inner, out)
            if self.clicks and answer >= 0:
                own, pooled = self._chances(agent, inner)
                index = np.array([sigmoid(logit) for logit in (out[0] + out[1]).tolist()])
                mean = pooled if self.state.common.borrows[agent] else own
                return Scores(mean, index - mean, index)
        if answer < 0:
            calls.refuse_arms(type(self).__name__, answer, arms)
        return Scores(out[0], out[1], out[0] + out[1])

    def _chances(self, agent: int, inner: Matrix) -> Matrix:
        """Probability of a click on each arm by the agent's own samples and by its pool's, shape (2, K)."""
        chances = np.empty((2, len(inner)))
        find_chances(self.pinned_state(), agent, inner, chances)
        return chances

    def predict(self, agent: int, x: ArrayLike) -> Prediction:
        """Predict the reward of arm `x`, shape (d,), for `agent`, by its own samples and by its pool's."""
        x = validation.vector("x", x, self.dim)
        _, own, pooled = self.choose(agent, np.ascontiguousarray(x)[None])
        return Prediction(own, pooled)

    def update(self, agent: int, x: ArrayLike, reward: float) -> None:
        """Let `agent` learn that arm `x`, shape (d,), gave `reward`. One call is one round."""
        learn(self, update_checked, agent, x, reward)

    def pinned_state(self, state: Any = None) -> Any:
        """The policy's state, or another one, as compiled functions take it; made anew if it is new."""
        state = self.state if state is None else state
        if self._pinned[0] is not state:
            self._pinned = state, pin(state, self._pinned[1])
            narration.names[type(state)] = getattr(self, "name", type(self).__name__)
        return self._pinned[1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies share no array, and have a lock of their own."""
        with self.lock:
            own = {key: value for key, value in vars(self).items() if key not in _ANEW}
            return _rebuilt, (type(self), copy.deepcopy(own))

    # Inspection

    @property
    def n_agents(self) -> int:
        """Number of ids given out so far, removed agents included."""
        return len(self.state.local.pulls)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The constructor's keyword arguments, read-only."""
        return MappingProxyType(msgspec.structs.asdict(self._parameters))

    @property
    def agents(self) -> Integers:
        """Ids of the agents."""
        return np.arange(self.n_agents)

    @property
    def rounds(self) -> int:
        """Rounds played so far."""
        return int(self.state.common.clock[0])

    @property
    def graph(self) -> Booleans:
        """Who belongs together, as far as is known: (N, N), symmetric, False on the diagonal; a copy."""
        with self.lock:
            edges = self._edges()
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
            return np.flatnonzero(self._pool(agent))

    def estimate(self, agent: int) -> Vector:
        """Pooled estimate θ̂ of `agent`, shape (d,); a copy. With binary rewards, of the logit."""
        agent = self._check_agent(agent)
        with self.lock:
            return self._pooled_estimate(agent)[: self.dim].copy()

    def local_estimate(self, agent: int) -> Vector:
        """Estimate θ̂ of `agent` from its own samples alone, shape (d,); a copy."""
        return np.array(self.state.local.theta_hat[self._check_agent(agent), : self.dim])

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
        i = self._check_agent(agent)
        with self.lock:
            if other is None:
                used = self._pool(i)
                return agent_explanation(i, self.pulls, np.where(used, self.pulls, 0.0), int((~used).sum()))
            j = self._check_agent(other)
            if i == j:
                raise ValueError(f"other must differ from agent, got {other!r} twice")
            return self._explain_pair(i, j)

    def _explain_pair(self, agent: int, other: int) -> Any:
        local, lends, borrows = self.state.local, self.neighbors(other), self.neighbors(agent)
        return PairComparison(
            agent=agent,
            other=other,
            together=bool(self._pool(agent)[other]),
            distance=float(np.linalg.norm(local.theta_hat[agent] - local.theta_hat[other])),
            threshold=math.nan,
            separation_time=-1,
            lent_by_agent=int(local.pulls[agent] * (agent in lends)),
            lent_by_other=int(local.pulls[other] * (other in borrows)),
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.parameters.items() if np.ndim(value) == 0)
        return f"{type(self).__name__}(n_agents={self.n_agents}, dim={self.dim}, {shown})"

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole policy to a file. A crash while writing leaves the old file, or none."""
        files.write_atomically(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes | memoryview:
        """The bytes of the file that `save` writes."""
        with self.lock:
            if self.changing:
                calls.refuse_while_changing(self.changing)
            header = {
                "policy": self.name,
                "n_agents": self.n_agents,
                "dim": self.dim,
                "parameters": {key: files.to_json(value) for key, value in self.parameters.items()},
            }
            sizes, leaves = self._sizes(self.n_agents), fields.leaves(type(self.state))
            kept = [leaf for leaf in leaves if leaf.field.role is fields.Role.KEPT]
            arrays: dict[str, Any] = {}
            for leaf in kept:
                arrays |= files.shortened(leaf, leaf.used(self.state, sizes), sizes)
            return files.pack(header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy back; it continues exactly where it was saved."""
        return restore(cls, Path(path), files.read(Path(path)))

    def _check_agent(self, agent: int) -> int:
        return calls.checked_agent(agent, self.n_agents)


def learn(
    policy: Policy, step: Callable[..., int], agent: int, x: ArrayLike, reward: Any, *more: Any
) -> None:
    """Let a compiled step take in a sample of an agent, and say why if it refuses."""
    agent, x = policy._check_agent(agent), calls.checked_arm(x, policy.dim)
    try:
        reward = float(reward)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"reward must be a number, got {validation.show(reward)}") from None
    policy.check_rewards("reward", reward)
    with policy.lock:
        if policy.changing:
            calls.refuse_while_changing(policy.changing)
        policy.reserve(1)
        answer = step(policy.pinned_state(), agent, policy.inner(x), reward, *more)
    if answer == REFUSED:
        validation.number("reward", reward, low=-validation.LARGEST, high=validation.LARGEST)
    calls.check_answer(policy, answer, agent, x)


def restore(kind: type[Kind], path: Path, contents: files.Contents) -> Kind:
    """The policy that a file holds, every part of it checked; `path` is what errors call it."""
    if contents.policy != kind.name:
        raise PolicyFileError(f"{path} holds a {contents.policy!r} policy, not {kind.name!r}")
    files.check_sizes(path, contents)
    policy = kind.__new__(kind)
    try:
        policy._configure(contents.dim, contents.parameters)
        sizes, state_class = policy._sizes(contents.n_agents), policy._state_class(contents.n_agents)
        # Before room is made: what parameters say of sizes is not to be trusted either.
        arrays = files.check_arrays(path, state_class, contents.arrays, sizes, strict=contents.strict)
        policy._room, leaves = policy._make_room(contents.n_agents), fields.leaves(state_class)
        logs = {leaf.name for leaf in leaves if leaf.field.count}
        policy._room.replace({name: arrays[name] for name in logs})
        policy.state = policy._room.show(sizes)
        for leaf in leaves:
            if leaf.name in arrays and leaf.name not in logs:
                found, target = arrays[leaf.name], leaf.used(policy.state, sizes)
                if isinstance(found, np.ndarray):
                    target[...] = found
                else:
                    found.put_into(target)
        if trouble := policy._problem(policy.state):
            raise PolicyFileError(f"{path}: {trouble}")
        policy._derive(policy.state)
    except PolicyFileError:
        raise
    except Exception as error:  # parameters of a wrong type, sizes beyond this machine
        raise PolicyFileError(f"{path} does not hold a {kind.name!r} policy: {error}") from error
    return policy


def _rebuilt(kind: type[Kind], content: dict[str, Any]) -> Kind:
    """A policy from what `__reduce__` says of it."""
    policy = kind.__new__(kind)
    vars(policy).update(content)
    give_lock(policy)
    policy._room = fields.Room.of(policy.state)
    return policy
