"""DynUCB: k-means over agents, one step at a time (Nguyen and Lauw 2014).

Every agent belongs to one of M clusters, drawn at random at first. After each of its observations it
moves to the cluster whose estimate is nearest to its own.
"""

from typing import NamedTuple

import numpy as np

from shoal import validation
from shoal.kernels.compiled import compiled
from shoal.kernels.random import integer_below
from shoal.policies.clustered import ClusteredPolicy, observe_in_cluster, pool_cluster, select_from
from shoal.policies.steps import Common, step
from shoal.statistics import Statistics, make_statistics
from shoal.styles import LineStyle
from shoal.types import Booleans, Integers, Matrix, Vector


class DynUCBState(NamedTuple):
    """State of DynUCB."""

    common: Common
    local: Statistics
    pool: Statistics
    labels: Integers  # (N,)
    sizes: Integers  # (M,)
    members: Booleans  # (N,) scratch


class DynUCB(ClusteredPolicy):
    """Agents move to the nearest of `n_clusters` clusters: `argmin_c ‖θ̂_i − θ̂_c‖`.

    Parameters
    ----------
    n_clusters : int
        Number of clusters M.

    Notes
    -----
    Departs from its source in nothing we know of; what was unclear there is settled in docs/algorithms.md.
    """

    name = "dynucb"
    label = "DynUCB"
    line_style = LineStyle("#d9489b", "D")
    in_paper = True

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        n_clusters: int,
        ridge: float = 1.0,
        epsilon: float = 0.0,
        seed: int | None = None,
    ) -> None:
        n_clusters = validation.positive_int("n_clusters", n_clusters)
        super().__init__(
            n_agents, dim, alpha=alpha, ridge=ridge, epsilon=epsilon, seed=seed, n_clusters=n_clusters
        )

    def _initial_state(self, n_agents: int) -> DynUCBState:
        n_clusters, ridge = self.parameters["n_clusters"], self.parameters["ridge"]
        labels = np.random.default_rng(self.parameters["seed"]).integers(n_clusters, size=n_agents)
        return DynUCBState(
            common=self._common(n_agents),
            local=make_statistics(n_agents, self.dim, ridge),
            pool=make_statistics(n_clusters, self.dim, ridge),
            labels=labels,
            sizes=np.bincount(labels, minlength=n_clusters),
            members=np.zeros(n_agents, dtype=np.bool_),
        )

    def _join(self, first: int) -> None:
        for newcomer in range(first, self.n_agents):
            self.state.labels[newcomer] = integer_below(self.state.common.rng, self.parameters["n_clusters"])
        self._count_members()


@step("select", DynUCBState)
def select(state: DynUCBState, agent: int, arms: Matrix, t: int) -> int:
    return select_from(state.pool, state.labels[agent], arms, state.common.alpha, t)


@step("observe", DynUCBState)
def observe(state: DynUCBState, agent: int, x: Vector, reward: float, t: int) -> None:
    observe_in_cluster(state, agent, x, reward)


@step("revise", DynUCBState)
def revise(state: DynUCBState, agent: int, t: int) -> None:
    old = state.labels[agent]
    new = nearest(state.local.theta_hat[agent], state.pool.theta_hat)
    if new != old:
        state.labels[agent] = new
        state.sizes[old] -= 1
        state.sizes[new] += 1
        pool_cluster(state, old)
        pool_cluster(state, new)


@compiled
def nearest(theta: Vector, centers: Matrix) -> int:
    """Index of the row of `centers` nearest to `theta`, the lowest on ties."""
    best = np.inf
    choice = 0
    for c in range(centers.shape[0]):
        distance = 0.0
        for m in range(theta.shape[0]):
            distance += (theta[m] - centers[c, m]) ** 2
        if distance < best:
            best = distance
            choice = c
    return choice
