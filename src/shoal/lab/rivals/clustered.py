"""What CLUB, SCLUB, CMLB and DynUCB share: they pool whole clusters.

Each agent has a label, each label a row of pooled statistics that takes in every observation of its members.
"""

from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.graphs import count_joined
from shoal.core.policy.base import Policy
from shoal.core.policy.exploring import choose_in_row
from shoal.core.policy.parameters import Exploring
from shoal.core.statistics import (
    add_sample,
    pool_problem,
    pool_rows,
    problem,
    start_rows,
)
from shoal.core.types import Booleans, Integers, Matrix, Vector


class ReleasedParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of rivals whose released code leaves the root out of the bonus."""

    bonus: Annotated[
        Literal["ucb", "as-released"],
        Meta(description="α √(xᵀA⁻¹x ln(t+1)), or without the root around xᵀA⁻¹x."),
    ] = "ucb"

    def __post_init__(self) -> None:
        if self.exploration == "sample" and self.bonus != "ucb":
            raise ValueError(f"bonus must be 'ucb' where exploration is 'sample', got {self.bonus!r}")


class ClusteredRival(Policy):
    """Base of policies whose state has `labels`, `pool`, `sizes` (of clusters) and `members` (scratch)."""

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        return {"gamma": getattr(world, "gap", 1.0) / 4}

    @property
    def labels(self) -> Integers:
        """Cluster of each agent, shape (N,); a copy."""
        return np.array(self.state.labels)

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        return count_joined(self.state.labels, labels)

    def _edges(self) -> Booleans:
        return np.asarray(np.equal.outer(self.state.labels, self.state.labels))

    def _pool(self, agent: int) -> Booleans:
        return np.asarray(self.state.labels == self.state.labels[agent])

    def _pooled_estimate(self, agent: int) -> Vector:
        return np.asarray(self.state.pool.theta_hat[self.state.labels[agent]])

    def _join(self, state: Any, first: int) -> None:
        start_rows(state.pool, 0, state.common.ridge)
        self._derive(state)

    def _derive(self, state: Any) -> None:
        state.sizes[:] = np.bincount(state.labels, minlength=len(state.sizes))

    def _problem(self, state: Any) -> str:
        return super()._problem(state) or self._problem_of_pools(state)

    def _problem_of_pools(self, state: Any) -> str:
        """Errors in the pooled rows of a loaded state, whose labels are known."""
        return problem(state.pool, state.common.ridge) or pool_problem(
            state.pool, state.local, state.labels, state.common.ridge
        )


@inlined
def select_from_cluster(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """Choose by the statistics of the agent's cluster."""
    return choose_in_row(state.common, state.pool, state.labels[agent], arms, agent, t, 1.0)


@inlined
def observe_in_cluster(state: Any, agent: int, x: Vector, reward: float) -> None:
    """Add a sample to the agent and to its cluster, shared with the other members."""
    cluster = state.labels[agent]
    add_sample(state.local, agent, x, reward)
    add_sample(state.pool, cluster, x, reward)
    state.common.cost[0] += state.sizes[cluster] - 1


@inlined
def pool_cluster(state: Any, cluster: int) -> None:
    """Recompute a cluster's statistics from its members'."""
    for j in range(state.labels.shape[0]):
        state.members[j] = state.labels[j] == cluster
    pool_rows(state.local, state.members, state.common.ridge, state.pool, cluster)


@compiled
def first_best(scored: Matrix, n: int) -> int:
    """The first of n arms with the largest sum of mean and bonus, the two rows of `scored`."""
    best = 0
    for k in range(1, n):
        if scored[0, k] + scored[1, k] > scored[0, best] + scored[1, best]:
            best = k
    return best
