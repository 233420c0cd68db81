"""LinUCB on the true clusters: the bound that no policy without labels can expect to reach.

The labels are given, each cluster pools the samples of all its agents from the first round on.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal import validation
from shoal.policies.clustered import ClusteredPolicy, observe_in_cluster, select_from
from shoal.policies.steps import Common, step
from shoal.statistics import Statistics, make_statistics
from shoal.styles import LineStyle
from shoal.types import Booleans, Integers, Matrix, Vector


class OracleState(NamedTuple):
    """State of Oracle."""

    common: Common
    local: Statistics
    pool: Statistics
    labels: Integers  # (N,)
    sizes: Integers  # (number of clusters,)
    members: Booleans  # (N,) scratch


class Oracle(ClusteredPolicy):
    """LinUCB with the samples of all agents of the same label pooled.

    Parameters
    ----------
    labels : sequence of int, shape (n_agents,)
        The true cluster of each agent, integers of at least 0.
    """

    name = "oracle"
    label = "Oracle"
    line_style = LineStyle("#3a3a3a", "+")
    in_paper = True

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        labels: Sequence[int] | Integers,
        ridge: float = 1.0,
        epsilon: float = 0.0,
        seed: int | None = None,
    ) -> None:
        checked = _check_labels(labels, n_agents)
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, epsilon=epsilon, seed=seed, labels=checked)

    def _initial_state(self, n_agents: int) -> OracleState:
        labels, ridge = self.parameters["labels"], self.parameters["ridge"]
        n_clusters = int(labels.max()) + 1
        return OracleState(
            common=self._common(n_agents),
            local=make_statistics(n_agents, self.dim, ridge),
            pool=make_statistics(n_clusters, self.dim, ridge),
            labels=labels.copy(),
            sizes=np.bincount(labels, minlength=n_clusters),
            members=np.zeros(n_agents, dtype=np.bool_),
        )

    def add_agents(self, n: int = 1, *, labels: Sequence[int] | Integers | None = None) -> Integers:
        """Add `n` agents with the given true labels and return their ids."""
        if labels is None:
            raise ValueError("labels must be given for the agents added to Oracle")
        n = validation.positive_int("n", n)
        self._parameters["labels"] = np.concatenate([self.parameters["labels"], _check_labels(labels, n)])
        return super().add_agents(n)

    def _join(self, first: int) -> None:
        self._count_members()


def _check_labels(labels: Any, n_agents: int) -> Integers:
    array = np.asarray(labels)
    if array.shape != (n_agents,) or not np.issubdtype(array.dtype, np.integer) or array.min() < 0:
        raise ValueError(f"labels must be {n_agents} integers of at least 0, got {validation.show(labels)}")
    return array.astype(np.int64)


@step("select", OracleState)
def select(state: OracleState, agent: int, arms: Matrix, t: int) -> int:
    return select_from(state.pool, state.labels[agent], arms, state.common.alpha, t)


@step("observe", OracleState)
def observe(state: OracleState, agent: int, x: Vector, reward: float, t: int) -> None:
    observe_in_cluster(state, agent, x, reward)


@step("revise", OracleState)
def revise(state: OracleState, agent: int, t: int) -> None:
    pass
