"""CMLB: explore alone, then cluster once (Ghosh, Sankararaman and Ramchandran 2022).

For the first rounds every agent learns alone. Then agents whose estimates are close are joined, clusters
that are too small are thrown together, and from then on each cluster learns as one.
"""

from typing import NamedTuple

import numpy as np

from shoal import validation
from shoal.kernels.compiled import allocating, inlined
from shoal.kernels.graphs import component_labels, distance
from shoal.policies.clustered import ClusteredPolicy, observe_in_cluster, pool_cluster, select_from
from shoal.policies.steps import Common, step
from shoal.statistics import Statistics, make_statistics
from shoal.types import Booleans, Integers, Matrix, Vector


class CMLBState(NamedTuple):
    """State of CMLB. A cluster's id is its lowest agent; before the clustering everybody is alone."""

    common: Common
    gamma: float
    exploration_rounds: int
    min_cluster_fraction: float
    formed: Booleans  # (1,) whether the clusters have been formed
    local: Statistics
    pool: Statistics
    labels: Integers  # (N,)
    sizes: Integers  # (N,)
    members: Booleans  # (N,) scratch


class CMLB(ClusteredPolicy):
    """Independent learning for `exploration_rounds` rounds, then one clustering by `‖θ̂_i − θ̂_j‖ < γ`.

    Parameters
    ----------
    gamma : float
        Distance below which two agents are joined.
    exploration_rounds : int
        Rounds of independent learning T_e.
    min_cluster_fraction : float
        Components with fewer than this share of all agents are merged into one.

    Notes
    -----
    Departs from its source: when no two agents are close, every agent stays alone (docs/algorithms.md).
    """

    name = "cmlb"
    label = "CMLB"

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        gamma: float,
        exploration_rounds: int = 1000,
        min_cluster_fraction: float = 0.1,
        ridge: float = 1.0,
        epsilon: float = 0.0,
        seed: int | None = None,
    ) -> None:
        own = {
            "gamma": validation.number("gamma", gamma, low=0.0, high=validation.LARGEST),
            "exploration_rounds": validation.positive_int("exploration_rounds", exploration_rounds),
            "min_cluster_fraction": validation.number(
                "min_cluster_fraction", min_cluster_fraction, low=0.0, high=1.0
            ),
        }
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, epsilon=epsilon, seed=seed, **own)

    def _initial_state(self, n_agents: int) -> CMLBState:
        own = self.parameters
        return CMLBState(
            common=self._common(n_agents),
            gamma=own["gamma"],
            exploration_rounds=own["exploration_rounds"],
            min_cluster_fraction=own["min_cluster_fraction"],
            formed=np.zeros(1, dtype=np.bool_),
            local=make_statistics(n_agents, self.dim, own["ridge"]),
            pool=make_statistics(n_agents, self.dim, own["ridge"]),
            labels=np.arange(n_agents),
            sizes=np.ones(n_agents, dtype=np.int64),
            members=np.zeros(n_agents, dtype=np.bool_),
        )


@step("select", CMLBState)
def select(state: CMLBState, agent: int, arms: Matrix, t: int) -> int:
    return select_from(state.pool, state.labels[agent], arms, state.common.alpha, t)


@step("observe", CMLBState)
def observe(state: CMLBState, agent: int, x: Vector, reward: float, t: int) -> None:
    observe_in_cluster(state, agent, x, reward)


@step("revise", CMLBState)
def revise(state: CMLBState, agent: int, t: int) -> None:
    if not state.formed[0] and t >= state.exploration_rounds:
        form_clusters(state)
        state.formed[0] = True


@allocating
def form_clusters(state: CMLBState) -> None:
    """The one clustering: components of the closeness graph, the small ones merged."""
    n = state.labels.shape[0]
    active = state.common.active
    close = np.zeros((n, n), dtype=np.bool_)
    any_close = False
    for i in range(n):
        for j in range(i):
            near = distance(state.local.theta_hat[i], state.local.theta_hat[j]) < state.gamma
            if near and active[i] and active[j]:
                close[i, j] = True
                close[j, i] = True
                any_close = True
    if not any_close:
        return
    component_labels(close, state.labels)
    _count(state)
    smallest = state.min_cluster_fraction * np.sum(active)
    home = -1  # where the members of small components go: the lowest of them
    for i in range(n):
        state.members[i] = active[i] and state.sizes[state.labels[i]] < smallest
        if state.members[i] and home < 0:
            home = i
    for i in range(n):
        if state.members[i]:
            state.labels[i] = home
    _count(state)
    for c in range(n):
        if state.sizes[c] > 0:
            pool_cluster(state, c)


@inlined
def _count(state: CMLBState) -> None:
    """Count the active members of every cluster."""
    state.sizes[:] = 0
    for i in range(state.labels.shape[0]):
        state.sizes[state.labels[i]] += state.common.active[i]
