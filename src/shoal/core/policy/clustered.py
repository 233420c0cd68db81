"""What the policies that pool whole clusters share: Oracle, CLUB, SCLUB, CMLB and DynUCB.

Each agent has a label, each label a row of pooled statistics that takes in every observation of its members.
"""

import math
from typing import Any, ClassVar

import numpy as np

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.graphs import pairs_within
from shoal.core.kernels.linalg import solve_cholesky
from shoal.core.kernels.twofold import add_scaled, add_to_diagonal, cholesky_twofold
from shoal.core.kernels.ucb import best_arm_of_width
from shoal.core.policy.base import Policy
from shoal.core.statistics import Statistics, add_sample, best_arm_of_row, pool_rows, problem, start_rows
from shoal.core.types import Booleans, Integers, Matrix, Vector


class ClusteredPolicy(Policy):
    """Base of policies whose state has `labels`, `pool`, `sizes` (active members) and `members` (scratch).

    An agent whose label is −1 − agent is alone: its samples were withdrawn, or it has no cluster yet. One
    that does not lend follows the cluster of its label: it uses the cluster's samples, and is not a member.
    """

    _clusters_everyone: ClassVar[bool] = True
    """Whether every active agent has a cluster."""

    @property
    def labels(self) -> Integers:
        """Cluster of each agent, −1 for those that have none, shape (N,); a copy."""
        return np.asarray(np.maximum(self.state.labels, -1))

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        active = self.state.common.active & (self.state.labels >= 0)
        clusters = self.state.labels[active]
        if labels is None:
            return pairs_within(clusters), 0
        _, refined = np.unique(clusters * (np.max(labels) + 1) + labels[active], return_inverse=True)
        return pairs_within(clusters), pairs_within(refined)

    def _edges(self) -> Booleans:
        return np.asarray(np.equal.outer(self.state.labels, self.state.labels))

    def _pool(self, agent: int) -> Booleans:
        return np.asarray(self.state.labels == self.state.labels[agent])

    def _pooled_estimate(self, agent: int) -> Vector:
        state, cluster = self._pinned_state(), self.state.labels[agent]
        if not state.common.lends[agent]:
            factor_with_own(state.local, agent, state.pool, cluster, state.common.ridge)
            return np.asarray(state.local.scratch[self.dim])
        return np.asarray(state.pool.theta_hat[cluster])

    def _end_edges(self, agent: int) -> None:
        self.state.sizes[self.state.labels[agent]] -= self.state.common.lends[agent]

    def _lending_changed(self, agent: int) -> None:
        state, cluster = self._pinned_state(), self.state.labels[agent]
        state.sizes[cluster] += 1 if state.common.lends[agent] else -1
        pool_cluster(state, cluster)

    def _withdraw(self, agent: int) -> None:
        cluster = self.state.labels[agent]
        self.state.labels[agent] = -1 - agent
        pool_cluster(self._pinned_state(), cluster)

    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        if self.state.labels[agent] >= 0:
            pool_cluster(self._pinned_state(), self.state.labels[agent])

    def _join(self, state: Any, first: int) -> None:
        start_rows(state.pool, first, state.common.ridge)

    def _derive(self, state: Any) -> None:
        state.sizes[:] = np.bincount(state.labels[self._counted(state)], minlength=len(state.sizes))

    @staticmethod
    def _counted(state: Any) -> Booleans:
        """Which agents count among the members of their cluster."""
        return np.asarray(state.common.active & state.common.lends & (state.labels >= 0))

    def _problem(self, state: Any) -> str:
        if self._clusters_everyone and (state.labels[state.common.active] < 0).any():
            return "an active agent has no cluster"
        if trouble := super()._problem(state):
            return trouble
        return problem(state.pool, state.common.ridge) or self._pool_problem(state)

    @staticmethod
    def _pool_problem(state: Any) -> str:
        """What is wrong with the clusters' statistics, as a phrase: each is the sum of its members'."""
        local, pool, labels = state.local, state.pool, state.labels
        with_label = (labels >= 0) & state.common.lends
        if not (len(labels) and len(pool.b)):
            return ""
        for name, start in (("A", state.common.ridge * np.eye(local.b.shape[1])), ("b", 0.0), ("pulls", 0)):
            ours, theirs = getattr(local, name), getattr(pool, name)
            summed, size = np.zeros(theirs.shape), np.zeros(len(theirs))
            np.add.at(summed, labels[with_label], (ours - start)[with_label])
            np.add.at(
                size, labels[with_label], np.abs(ours[with_label]).reshape(with_label.sum(), -1).max(axis=1)
            )
            gap = np.abs(theirs - start - summed).reshape(len(theirs), -1).max(axis=1)
            if (gap > 1e-9 * (size + state.common.ridge)).any():
                return f"pool.{name} is not the sum over the members of each cluster"
        return ""


@inlined
def pool_cluster(state: Any, cluster: int) -> None:
    """Sum a cluster's statistics anew from what its members lend."""
    for j in range(state.labels.shape[0]):
        state.members[j] = state.labels[j] == cluster and state.common.lends[j]
    pool_rows(state.local, state.members, state.common.ridge, state.pool, cluster)


@inlined
def select_from_cluster(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """LinUCB on the statistics of the agent's cluster, and on its own samples if these are not in them."""
    width = state.common.alpha * math.sqrt(math.log(t + 1.0))
    cluster, scored, d = state.labels[agent], state.common.scored, arms.shape[1]
    if state.common.lends[agent]:
        choice = best_arm_of_row(state.pool, cluster, arms, width, scored)
    else:
        local, work = state.local, state.local.scratch
        factor_with_own(local, agent, state.pool, cluster, state.common.ridge)
        choice = best_arm_of_width(work[d], work[:d], arms, width, work[3 * d], scored)
    return choice


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


@inlined
def observe_in_cluster(state: Any, agent: int, x: Vector, reward: float) -> None:
    """Add a sample to the agent and, if it lends, to its cluster, shared with the other active members."""
    common, cluster = state.common, state.labels[agent]
    add_sample(state.local, agent, x, reward)
    if common.lends[agent]:
        add_sample(state.pool, cluster, x, reward)
        if common.reserved[0] == 0:
            common.cost[0] += state.sizes[cluster] - 1
        else:
            for j in range(state.labels.shape[0]):
                is_used = state.labels[j] == cluster and common.active[j] and common.borrows[j]
                common.cost[0] += is_used and j != agent
