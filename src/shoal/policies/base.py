"""What users see of every policy: validated online calls, inspection, saving, agents that come and go."""

import copy
import io
import json
import math
import operator
import os
import threading
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from shoal import validation
from shoal.kernels.graphs import count_edges
from shoal.kernels.pinned import pin
from shoal.policies.steps import (
    BADLY_SCALED,
    NOT_BEGUN,
    REFUSED,
    Common,
    begin_checked,
    cancel_checked,
    choose_checked,
    make_common,
    update_checked,
)
from shoal.statistics import forget_row
from shoal.types import AnyArray, Booleans, Integers, Vector

FLOAT64 = np.dtype(np.float64)
_OWN = ("lock", "_pinned")
"""Attributes that a copy of a policy makes anew."""
FORMAT = 4
"""Version of the files that `save` writes. Files of format 1 come from before BASS had `param_norm`, those of
format 2 from before ill-conditioned sums had tails, those of format 3 from before rewards could be late and
members of a mixture's clusters could differ and change."""


class PolicyFileError(ValueError):
    """A file that is not, or is no longer, a policy that this version can load."""


class Policy(ABC):
    """Base class of the policies of the paper. Subclasses provide a state and the hooks below.

    Parameters
    ----------
    n_agents, dim : int
        Number of agents and dimension of the arms.
    alpha : float
        Width of the confidence bonus, at least 0.
    ridge : float
        Regularisation λ of every agent's design matrix.
    epsilon : float
        Probability of playing a uniformly drawn arm instead.
    seed : int or None
        Seed of the policy's own randomness (exploration, random starts).
    """

    name: ClassVar[str]
    label: ClassVar[str]
    """The name in published tables."""
    state: Any
    _pinned: tuple[Any, Any] = None, None
    """A state and what `pin` made of it."""
    _warned: bool = False
    """Whether a warning of badly scaled arms has been given."""
    lock: threading.RLock
    """Held by every call that works on the state: threads may share a policy, one call at a time."""

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        ridge: float = 1.0,
        epsilon: float = 0.0,
        seed: int | None = None,
        **own: Any,
    ) -> None:
        self.lock = threading.RLock()
        self._dim = validation.positive_int("dim", dim)
        n_agents = validation.positive_int("n_agents", n_agents)
        self._parameters: dict[str, Any] = {
            "alpha": validation.number("alpha", alpha, low=0.0, high=validation.LARGEST),
            "ridge": validation.number("ridge", ridge, low=validation.SMALLEST, high=validation.LARGEST),
            "epsilon": validation.number("epsilon", epsilon, low=0.0, high=1.0),
            "seed": validation.seed_or_none("seed", seed),
            **own,
        }
        self._check_memory(n_agents)
        self.state = self._initial_state(n_agents)

    # Hooks

    @abstractmethod
    def _initial_state(self, n_agents: int) -> Any:
        """A fresh state; also the source of a newcomer's rows."""

    @abstractmethod
    def _edges(self) -> Booleans:
        """The graph, removed agents and diagonal not yet taken out; a new array."""

    @abstractmethod
    def _pool(self, agent: int) -> Booleans:
        """Which agents' samples `agent` uses; a new array."""

    @abstractmethod
    def _pooled_estimate(self, agent: int) -> Vector:
        """θ̂ of the pool of `agent`."""

    def _end_edges(self, agent: int) -> None:
        """Settle what follows from `agent` leaving; it is no longer active. Its samples stay."""
        return

    def _withdraw(self, agent: int) -> None:
        """Take the samples of `agent` out of every pool; its own statistics are empty already."""
        return

    def _join(self, first: int) -> None:
        """Settle what a fresh row cannot know, for the newcomers `first`, `first + 1`, …."""
        return

    def _pair_bytes(self, n_agents: int) -> float:
        """Bytes that the state keeps for each of the N² pairs of agents."""
        return 0.0

    def reserve(self, pulls: int) -> None:
        """Make room in the state for what `pulls` more observations may add to its logs."""
        return

    def _common(self, n_agents: int) -> Common:
        chosen = {key: self._parameters[key] for key in ("alpha", "epsilon", "ridge", "seed")}
        return make_common(n_agents, self._dim, **chosen)

    # Online use

    def select(self, agent: int, arms: ArrayLike) -> int:
        """Choose an arm for `agent`: the index of a row of `arms`, (K, d), which may change between calls."""
        agent = self._check_agent(agent)
        if not (_is_plain(arms) and arms.ndim == 2 and arms.shape[1] == self._dim and arms.shape[0] > 0):
            arms = validation.matrix("arms", arms, columns=self._dim).copy()
        with self.lock:
            choice = choose_checked(self._pinned_state(), agent, arms)
        if choice < 0:
            validation.matrix("arms", arms, columns=self._dim)
        return int(choice)

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
        if answer == BADLY_SCALED:
            self.check_scale("x", x)
        if answer == NOT_BEGUN:
            raise ValueError(
                f"agent {agent} has no pull that has begun and waits for its reward, got x = {x}"
            )

    def check_scale(self, name: str, arms: Vector) -> None:
        """Refuse arms, (…, d), far too long beside the ridge; warn once if longer than they should be."""
        warning = validation.scale(name, arms, self._parameters["ridge"])
        if warning and not self._warned:
            self._warned = True
            warnings.warn(warning, stacklevel=3)

    def _pinned_state(self) -> Any:
        """The state as the compiled online calls take it; made anew when the state was replaced."""
        if self._pinned[0] is not self.state:
            self._pinned = self.state, pin(self.state)
        return self._pinned[1]

    # Copies: arrays are never shared, nor is the lock

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            return copy.deepcopy({key: value for key, value in vars(self).items() if key not in _OWN})

    def __setstate__(self, content: dict[str, Any]) -> None:
        vars(self).update(content, lock=threading.RLock())

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
        return MappingProxyType(self._parameters)

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
        """Who shares with whom: (N, N), symmetric, False on the diagonal; a copy."""
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
        return _nbytes(self.state)

    def neighbors(self, agent: int) -> Integers:
        """Ids of the agents whose samples `agent` uses, itself included (𝒩_i)."""
        agent = self._check_agent(agent)
        with self.lock:
            return np.flatnonzero(self._pool(agent) & self.state.common.active)

    def estimate(self, agent: int) -> Vector:
        """Pooled estimate θ̂ of `agent`, shape (d,); a copy."""
        agent = self._check_agent(agent)
        with self.lock:
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

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{key}={value!r}" for key, value in self._parameters.items() if np.ndim(value) == 0
        )
        return f"{type(self).__name__}(n_agents={self.n_agents}, dim={self.dim}, {shown})"

    # Agents come and go

    def add_agents(self, n: int = 1) -> Integers:
        """Add `n` agents that have seen nothing and return their ids."""
        n = validation.positive_int("n", n)
        with self.lock:
            first = self.n_agents
            self._check_memory(first + n)
            self.state = _paste(self.state, self._initial_state(first + n))
            self._pinned = None, None  # let go of the old arrays
            self._join(first)
        return np.arange(first, first + n)

    def remove_agent(self, agent: int, *, withdraw: bool = False) -> None:
        """End the edges of `agent`; its id is never used again.

        The samples it lent stay in the pools that hold them, unless `withdraw` takes them out of every pool.
        A removed agent's samples can still be withdrawn by a second call.
        """
        agent = self._check_id(agent)
        with self.lock:
            common = self.state.common
            if not common.active[agent] and (common.withdrawn[agent] or not withdraw):
                raise ValueError(f"agent {agent} has been removed already")
            if common.active[agent]:
                self._end_pending(agent)
                common.active[agent] = False
                self._end_edges(agent)
            if withdraw:
                common.withdrawn[agent] = True
                forget_row(self.state.local, agent, common.ridge)
                self._withdraw(agent)

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole policy to a file. A crash while writing leaves the old file, or none."""
        target = Path(path)
        if target.exists() and not target.is_file():
            raise ValueError(f"path must name a file, got {target}, which is something else")
        header = {
            "format": FORMAT,
            "policy": self.name,
            "n_agents": self.n_agents,
            "dim": self.dim,
            "parameters": {key: _to_json(value) for key, value in self._parameters.items()},
        }
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
        with self.lock:
            arrays |= {key: np.asarray(value) for key, value in _flatten(self.state)}
            np.savez(buffer, allow_pickle=False, **arrays)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as handle:
                handle.write(buffer.getbuffer())
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy back; it continues exactly where it was saved."""
        header, arrays = _read(Path(path))
        if header["policy"] != cls.name:
            raise PolicyFileError(f"{path} holds a {header['policy']!r} policy, not {cls.name!r}")
        policy = cls(header["n_agents"], header["dim"], **header["parameters"])
        policy.state = _restore(policy.state, arrays, str(path))
        return policy

    def _end_pending(self, agent: int) -> None:
        """Take the pending pulls of an agent that leaves out of all sums: their rewards cannot come."""
        pending = self.state.common.pending
        pending.total[0] -= pending.counts[agent]
        pending.counts[agent] = 0
        pending.sums[agent] = 0.0

    def _check_memory(self, n_agents: int) -> None:
        """Refuse, before anything is allocated, what this machine cannot hold."""
        statistics = 8 * (2 * self.dim**2 + 2 * self.dim + 2) * n_agents
        needed = statistics + self._pair_bytes(n_agents) * n_agents**2
        self._refuse(
            needed, f"{statistics / 1e9:,.1f} for statistics, the rest for pairs of agents", n_agents
        )

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
            raise ValueError(f"agent must be an integer, got {agent!r}") from None
        if not 0 <= index < len(self.state.common.active):
            raise ValueError(f"agent must be in 0, …, {self.n_agents - 1}, got {agent!r}")
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


def read_policy_name(path: str | os.PathLike[str]) -> str:
    """The name of the policy that a file holds."""
    return str(_read(Path(path))[0]["policy"])


def _is_log(fresh: AnyArray) -> bool:
    """Whether an array of a fresh state has no rows: such arrays may grow to any length."""
    return fresh.ndim > 0 and len(fresh) == 0


def _nbytes(state: Any) -> int:
    if isinstance(state, tuple):
        return sum(_nbytes(field) for field in state)
    return int(state.nbytes) if isinstance(state, np.ndarray) else 0


def _paste(old: Any, fresh: Any) -> Any:
    """Copy an old state into the leading corner of a larger fresh one; its work space stays fresh."""
    if hasattr(fresh, "_fields"):
        kept = [key for key in fresh._fields if key != "scratch"]
        return fresh._replace(**{key: _paste(getattr(old, key), getattr(fresh, key)) for key in kept})
    if isinstance(old, np.ndarray):
        if _is_log(fresh):
            return old
        fresh[tuple(slice(0, length) for length in old.shape)] = old
        return fresh
    return old


def _flatten(state: Any, prefix: str = "") -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for key, value in state._asdict().items():
        if key == "scratch":
            continue
        items += _flatten(value, f"{prefix}{key}.") if isinstance(value, tuple) else [(prefix + key, value)]
    return items


def _restore(state: Any, arrays: Mapping[str, AnyArray], path: str, prefix: str = "") -> Any:
    changed: dict[str, Any] = {}
    for key, value in state._asdict().items():
        name = prefix + key
        if key == "scratch":
            continue
        if isinstance(value, tuple):
            changed[key] = _restore(value, arrays, path, f"{name}.")
            continue
        if name not in arrays:
            raise PolicyFileError(f"{path} lacks the array {name!r}")
        saved, expected = arrays[name], np.asarray(value)
        shape = (len(saved), *expected.shape[1:]) if saved.ndim and _is_log(expected) else expected.shape
        if saved.shape != shape or saved.dtype != expected.dtype:
            raise PolicyFileError(
                f"{path}: array {name!r} is {saved.dtype}{saved.shape}, "
                f"expected {expected.dtype}{expected.shape}"
            )
        changed[key] = saved if isinstance(value, np.ndarray) else saved.item()
    return state._replace(**changed)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    content = path.read_bytes()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        header = dict(json.loads(arrays.pop("header").tobytes()))
        version = header["format"]
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise PolicyFileError(f"{path} is not a readable policy file: {error}") from error
    if version not in (1, 2, 3, FORMAT):
        raise PolicyFileError(f"{path} has format {version!r}; this version reads formats 1 to {FORMAT}")
    for key in ("policy", "n_agents", "dim", "parameters"):
        if key not in header:
            raise PolicyFileError(f"{path} lacks {key!r} in its header")
    if version == 1 and header["policy"] == "bass":  # its radius was the printed one: no later cut may change
        header["parameters"] = {**header["parameters"], "param_norm": 0.0}
        arrays["offset"] = np.zeros(())
    if version < 4:
        n, d = header["n_agents"], header["dim"]
        arrays["common.pending.counts"] = np.zeros(n, np.int64)
        arrays["common.pending.sums"] = np.zeros((n, d * (d + 1) // 2))
        arrays["common.pending.total"] = np.zeros(1, np.int64)
        if header["policy"] == "cluster_mixture":
            header["parameters"] = {
                **header["parameters"],
                "scatter": 0.0,
                "drift": False,
                "ridge_bonus": 0.0,
            }
            arrays = _with_pool(arrays, n, d)
    if version < 3:
        for name in [key for key in arrays if key.endswith(".A_inv")]:
            _add_tails(arrays, name.removesuffix("A_inv"))
    return header, arrays


def _with_pool(arrays: dict[str, AnyArray], n: int, d: int) -> dict[str, AnyArray]:
    """The state of a ClusterMixture of before members could differ or change, as one whose members do not."""
    counted = np.maximum(arrays["local.pulls"] - d, 0) if arrays["learns_noise"] else np.zeros(n, np.int64)
    fresh: dict[str, AnyArray] = {
        "ridge_bonus": np.array(0.0),
        "residuals": counted,
        "votes": np.zeros((0, 1)),
        "tally": np.zeros(1),
        "scale": np.zeros(1),
        "upkeep": np.zeros(3, np.int64),
        "pool.model.ridge": arrays["common.ridge"],
        "pool.model.log_concentration": arrays["log_concentration"],
        "pool.model.softens": np.array(False),
        "pool.model.noise": arrays["noise"],
        "pool.model.grid": np.zeros(1),
        "pool.model.position": np.zeros(1, np.int64),
        "pool.members.raw": np.zeros((1, 0, d * (d + 1) // 2 + d)),
        "pool.members.lent_at": np.zeros((1, n), np.int64),
        "pool.members.heeded": np.zeros((1, n), np.int64),
        "pool.clusters.sizes": arrays["sizes"][None],
        "pool.clusters.scale": np.zeros((n, 2)),
        "pool.clusters.pending": np.zeros((n + 1, d * (d + 1) // 2)),
        "pool.clusters.waiting": np.zeros(n + 1, np.int64),
        "pool.clusters.recent": np.zeros((0, d * (d + 1) // 2 + d)),
        "pool.clusters.cusum": np.zeros(n),
        "pool.clusters.alarms": np.zeros(n, np.int64),
        "pool.clusters.resummed": np.array([-1, 0]),
        "pool.clusters.fresh": np.zeros(d * (d + 1) // 2 + d),
        "drift.ring": np.zeros((0, 24, d + 2)),
        "drift.newest": np.zeros(0, np.int64),
        "drift.kept": np.zeros(0, np.int64),
        "drift.past": np.zeros((0, d * (d + 1) // 2 + d)),
        "drift.forgot": np.zeros(0, np.int64),
        "drift.rate": np.zeros(2),
    }
    fresh |= {f"pool.members.{key}": arrays[key][None] for key in ("lent", "form", "logdet", "labels")}
    return (
        arrays
        | {f"pool.{key}": value for key, value in arrays.items() if key.startswith("clusters.")}
        | fresh
    )


def _add_tails(arrays: dict[str, AnyArray], prefix: str) -> None:
    """Give statistics that were saved before they had tails and traces what they lack."""
    A, A_inv = arrays[f"{prefix}A"], arrays[f"{prefix}A_inv"]
    n, d = A.shape[:2]
    arrays[f"{prefix}tail"] = np.zeros((n, d * (d + 1) // 2))
    arrays[f"{prefix}traces"] = np.trace([A, A_inv], axis1=2, axis2=3).T.copy()


def _to_json(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
