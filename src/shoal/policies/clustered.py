"""What the policies that pool whole clusters share: Oracle, CLUB, SCLUB, CMLB and DynUCB.

Each agent has a label, each label a row of pooled statistics that takes in every observation of its members.
"""

import math
from typing import Any

import numpy as np

from shoal.kernels.compiled import compiled, inlined
from shoal.kernels.graphs import pairs_within
from shoal.policies.base import Policy
from shoal.statistics import Statistics, add_sample, best_arm_of_row, pool_rows
from shoal.types import Booleans, Integers, Matrix, Vector


class ClusteredPolicy(Policy):
    """Base of policies whose state has `labels`, `pool`, `sizes` (active members) and `members` (scratch).

    An agent whose label is negative, and its own, is alone.
    """

    @property
    def labels(self) -> Integers:
        """Cluster of each agent, shape (N,); a copy."""
        return np.array(self.state.labels)

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
        return np.asarray(self.state.pool.theta_hat[self.state.labels[agent]])

    def _end_edges(self, agent: int) -> None:
        self.state.sizes[self.state.labels[agent]] -= 1

    def _withdraw(self, agent: int) -> None:
        pool_cluster(self.state, self.state.labels[agent])

    def _count_members(self) -> None:
        state = self.state
        state.sizes[:] = np.bincount(state.labels[state.common.active], minlength=len(state.sizes))


@inlined
def pool_cluster(state: Any, cluster: int) -> None:
    """Sum a cluster's statistics anew from its members."""
    for j in range(state.labels.shape[0]):
        state.members[j] = state.labels[j] == cluster
    pool_rows(state.local, state.members, state.common.ridge, state.pool, cluster)


@compiled
def select_from(stats: Statistics, row: int, arms: Matrix, alpha: float, t: int) -> int:
    """LinUCB on one row of statistics."""
    return best_arm_of_row(stats, row, arms, alpha * math.sqrt(math.log(t + 1.0)))


@inlined
def observe_in_cluster(state: Any, agent: int, x: Vector, reward: float) -> None:
    """Add a sample to the agent and to its cluster, shared with the other active members."""
    add_sample(state.local, agent, x, reward)
    add_sample(state.pool, state.labels[agent], x, reward)
    state.common.cost[0] += state.sizes[state.labels[agent]] - 1
