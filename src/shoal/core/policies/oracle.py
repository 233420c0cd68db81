"""LinUCB on the true clusters: the bound that no policy without labels can expect to reach.

The labels are given, each cluster pools the samples of all its agents from the first round on.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from shoal.core import validation
from shoal.core.fields import AGENTS, CLUSTERS, derived, rows, scratch
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.graphs import count_joined
from shoal.core.kernels.linalg import solve_cholesky
from shoal.core.kernels.twofold import add_scaled, add_to_diagonal, cholesky_twofold
from shoal.core.policy.exploring import choose_by, choose_in_row
from shoal.core.policy.living import LivePolicy, Sharing
from shoal.core.policy.parameters import Exploring
from shoal.core.policy.steps import LiveCommon, step
from shoal.core.statistics import (
    Statistics,
    add_sample,
    pool_problem,
    pool_rows,
    problem,
    start_rows,
)
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector


class OracleState(NamedTuple):
    """State of Oracle. Clusters are numbered in the order in which their labels first appear.

    An agent that does not lend uses its cluster's samples, and is not a member. One that was withdrawn has
    the label −1 − agent.
    """

    common: LiveCommon
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(CLUSTERS)]
    labels: Annotated[Integers, derived(AGENTS)]
    sizes: Annotated[Integers, derived(CLUSTERS)]  # active members
    members: Annotated[Booleans, scratch(AGENTS)]


class OracleParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of Oracle."""

    labels: Annotated[Any, Meta(description="The true cluster of each agent, integers of at least 0.")]


class Oracle(LivePolicy):
    """LinUCB with the samples of all agents of the same label pooled.

    Examples
    --------
    >>> import shoal
    >>> policy = shoal.Oracle(n_agents=4, dim=2, labels=[0, 1, 0, 1])
    >>> policy.update(0, [0.0, 1.0], reward=1.0)
    >>> policy.select(2, [[1.0, 0.0], [0.0, 1.0]])  # learns from agent 0
    1
    """

    name = "oracle"
    label = "Oracle"
    line_style = LineStyle("#3a3a3a", "+")
    in_paper = True

    Parameters = OracleParameters
    State = OracleState

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        return {"labels": world.labels}

    def __init__(self, n_agents: int, dim: int, **parameters: Any) -> None:
        if "labels" in parameters:
            _check_labels(parameters["labels"], validation.natural("n_agents", n_agents))
        super().__init__(n_agents, dim, **parameters)

    def _configure(self, dim: int, parameters: Mapping[str, Any]) -> None:
        if "labels" in parameters:
            parameters = {
                **parameters,
                "labels": _check_labels(parameters["labels"], len(parameters["labels"])),
            }
        super()._configure(dim, parameters)
        self._clusters: dict[int, int] = {}
        self._number(self._parameters.labels)

    def _number(self, labels: Integers) -> Integers:
        """The clusters of some agents, new labels getting new numbers."""
        return np.array(
            [self._clusters.setdefault(label, len(self._clusters)) for label in labels.tolist()], int
        )

    @property
    def labels(self) -> Integers:
        """Label of each agent, as given, shape (N,); a copy."""
        return np.array(self._parameters.labels)

    def _sizes(self, n_agents: int) -> dict[str, int]:
        return {**super()._sizes(n_agents), "clusters": len(self._clusters)}

    def _sizes_ahead(self, n_agents: int, present: int) -> dict[str, int]:
        clusters = -(-len(self._clusters) * n_agents // max(present, 1))
        return {**super()._sizes(n_agents), "clusters": clusters}

    def add_agents(
        self, n: int = 1, *, sharing: Sharing = "both", labels: Sequence[int] | Integers | None = None
    ) -> Integers:
        """Add `n` agents with the given true labels and return their ids."""
        if labels is None:
            raise ValueError("labels must be given for the agents added to Oracle")
        checked = _check_labels(labels, validation.positive_int("n", n))
        with self.lock:
            before = self._parameters, dict(self._clusters)
            self._parameters = replace(before[0], labels=np.concatenate([before[0].labels, checked]))
            self._number(checked)
            try:
                return super().add_agents(n, sharing=sharing)
            except BaseException:
                self._parameters, self._clusters = before
                raise

    def _join(self, state: OracleState, first: int) -> None:
        start_rows(state.pool, len(self.state.sizes) if first else 0, state.common.ridge)
        state.labels[first:] = self._number(self._parameters.labels[first:])
        np.add.at(state.sizes, state.labels[first:], 1)

    def _problem(self, state: OracleState) -> str:
        if len(self._parameters.labels) != len(state.labels):
            return f"there are {len(self._parameters.labels)} labels for {len(state.labels)} agents"
        self._derive(state)
        if trouble := super()._problem(state) or problem(state.pool, state.common.ridge):
            return trouble
        lent = np.where(state.common.lends, state.labels, -1)
        return pool_problem(state.pool, state.local, lent, state.common.ridge)

    def _derive(self, state: OracleState) -> None:
        state.labels[:] = self._number(self._parameters.labels)
        gone = np.flatnonzero(state.common.withdrawn)
        state.labels[gone] = -1 - gone
        members = state.labels[state.common.active & state.common.lends & (state.labels >= 0)]
        state.sizes[:] = np.bincount(members, minlength=len(state.sizes))

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        there = self.state.common.active
        return count_joined(self.state.labels[there], None if labels is None else labels[there])

    def _edges(self) -> Booleans:
        return np.asarray(np.equal.outer(self.state.labels, self.state.labels))

    def _pool(self, agent: int) -> Booleans:
        return np.asarray(self.state.labels == self.state.labels[agent])

    def _pooled_estimate(self, agent: int) -> Vector:
        state, cluster = self.pinned_state(), self.state.labels[agent]
        if not state.common.lends[agent]:
            factor_with_own(state.local, agent, state.pool, cluster, state.common.ridge)
            return np.asarray(state.local.scratch[self.dim])
        return np.asarray(state.pool.theta_hat[cluster])

    def _end_edges(self, agent: int) -> None:
        self.state.sizes[self.state.labels[agent]] -= self.state.common.lends[agent]

    def _lending_changed(self, agent: int) -> None:
        state, cluster = self.pinned_state(), self.state.labels[agent]
        state.sizes[cluster] += 1 if state.common.lends[agent] else -1
        pool_cluster(state, cluster)

    def _withdraw(self, agent: int) -> None:
        cluster = self.state.labels[agent]
        self.state.labels[agent] = -1 - agent
        pool_cluster(self.pinned_state(), cluster)

    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        if self.state.labels[agent] >= 0:
            pool_cluster(self.pinned_state(), self.state.labels[agent])


def _check_labels(labels: Any, n_agents: int) -> Integers:
    array = np.asarray(labels, dtype=None if n_agents else np.int64)  # an empty list is one of floats
    if array.shape != (n_agents,) or not np.issubdtype(array.dtype, np.integer) or (array < 0).any():
        raise ValueError(f"labels must be {n_agents} integers of at least 0, got {labels!r:.200}")
    return array.astype(np.int64)


@step("select", OracleState)
def select(state: OracleState, agent: int, arms: Matrix, t: int) -> int:
    """LinUCB on the statistics of the agent's cluster, and on its own samples if these are not in them."""
    cluster, d, work = state.labels[agent], arms.shape[1], state.local.scratch
    if state.common.lends[agent]:
        choice = choose_in_row(state.common, state.pool, cluster, arms, agent, t, 1.0)
    else:
        factor_with_own(state.local, agent, state.pool, cluster, state.common.ridge)
        choice = choose_by(state.common, work[d], work[:d], arms, agent, t, work[3 * d], 1.0)
    return choice


@step("observe", OracleState)
def observe(state: OracleState, agent: int, x: Vector, reward: float, t: int) -> None:
    """Add a sample to the agent and, if it lends, to its cluster, shared with the other active members."""
    common, cluster = state.common, state.labels[agent]
    add_sample(state.local, agent, x, reward)
    if common.lends[agent]:
        add_sample(state.pool, cluster, x, reward)
        if common.restricted[0] == 0:
            common.cost[0] += state.sizes[cluster] - 1
        else:
            for j in range(state.labels.shape[0]):
                is_used = state.labels[j] == cluster and common.active[j] and common.borrows[j]
                common.cost[0] += is_used and j != agent


@step("revise", OracleState)
def revise(state: OracleState, agent: int, t: int) -> None:
    pass


@inlined
def pool_cluster(state: OracleState, cluster: int) -> None:
    """Sum a cluster's statistics anew from what its members lend."""
    for j in range(state.labels.shape[0]):
        state.members[j] = state.labels[j] == cluster and state.common.lends[j]
    pool_rows(state.local, state.members, state.common.ridge, state.pool, cluster)


@compiled
def factor_with_own(local: Statistics, agent: int, pool: Statistics, cluster: int, ridge: float) -> None:
    """Pool a cluster with an agent who does not lend: leave factor and estimate in `local.scratch`.

    They are its first d rows and the one after; sums and factor are computed with twice the digits.
    """
    d = local.b.shape[1]
    L, theta, tail = local.scratch[:d], local.scratch[d], local.scratch[2 * d : 3 * d]
    L[:] = 0.0
    tail[:] = 0.0
    add_scaled(1.0, pool.A[cluster], pool.tail[cluster], L, tail)
    add_scaled(1.0, local.A[agent], local.tail[agent], L, tail)
    add_to_diagonal(-ridge, L, tail)
    cholesky_twofold(L, tail)
    for m in range(d):
        theta[m] = pool.b[cluster, m] + local.b[agent, m]
    solve_cholesky(L, theta, theta)
