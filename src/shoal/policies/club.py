"""CLUB: cut edges between agents whose estimates drift apart (Gentile, Li and Zappella 2014).

The graph starts complete. An edge goes when two local estimates are farther apart than their confidence
widths allow; the connected components are the clusters.
"""

from typing import NamedTuple

import numpy as np

from shoal import validation
from shoal.kernels.compiled import allocating
from shoal.kernels.graphs import component_labels, confidence_width, distance, share_a_neighbor
from shoal.policies.base import Policy
from shoal.policies.clustered import ClusteredPolicy, observe_in_cluster, pool_cluster, select_from
from shoal.policies.steps import Common, step
from shoal.statistics import Statistics, make_statistics
from shoal.types import Booleans, Integers, Matrix, Vector


class CLUBState(NamedTuple):
    """State of CLUB. A cluster's id is its lowest agent."""

    common: Common
    gamma: float
    local: Statistics
    pool: Statistics
    labels: Integers  # (N,)
    sizes: Integers  # (N,)
    members: Booleans  # (N,) scratch
    connected: Booleans  # (N, N), False on the diagonal
    separation_time: Integers  # (N, N)
    widths: Vector  # (N,) F(T_i)


class CLUB(ClusteredPolicy):
    """Cuts (i, j) when `‖θ̂_i − θ̂_j‖ > γ (F(T_i) + F(T_j))`; pools connected components.

    Parameters
    ----------
    gamma : float
        Scale of the threshold.

    Notes
    -----
    Departs from its source: the graph starts complete, not as a random graph (docs/algorithms.md).
    """

    name = "club"
    label = "CLUB"

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        gamma: float,
        ridge: float = 1.0,
        epsilon: float = 0.0,
        seed: int | None = None,
    ) -> None:
        gamma = validation.number("gamma", gamma, low=0.0, high=validation.LARGEST)
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, epsilon=epsilon, seed=seed, gamma=gamma)

    def _initial_state(self, n_agents: int) -> CLUBState:
        sizes = np.zeros(n_agents, dtype=np.int64)
        sizes[0] = n_agents
        return CLUBState(
            common=self._common(n_agents),
            gamma=self.parameters["gamma"],
            local=make_statistics(n_agents, self.dim, self.parameters["ridge"]),
            pool=make_statistics(n_agents, self.dim, self.parameters["ridge"]),
            labels=np.zeros(n_agents, dtype=np.int64),
            sizes=sizes,
            members=np.zeros(n_agents, dtype=np.bool_),
            connected=~np.eye(n_agents, dtype=np.bool_),
            separation_time=np.full((n_agents, n_agents), -1),
            widths=np.ones(n_agents),
        )

    @property
    def separation_time(self) -> Integers:
        """Round in which each edge was cut, −1 if it never was, shape (N, N); a copy."""
        return np.array(self.state.separation_time)

    @property
    def cuts(self) -> Integers:
        """The cut edges, shape (n, 3): the two agents, and the round."""
        times = np.triu(self.state.separation_time, 1)
        i, j = np.nonzero(times > 0)
        return np.column_stack([i, j, times[i, j]])

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        return Policy.count_edges(self, labels)  # the graph, not its components

    def _pair_bytes(self, n_agents: int) -> float:
        return 9.0

    def _edges(self) -> Booleans:
        return np.array(self.state.connected)

    def _withdraw(self, agent: int) -> None:
        self.state.connected[agent] = False
        self.state.connected[:, agent] = False
        relabel(self.state)

    def _join(self, first: int) -> None:
        gone = ~self.state.common.active  # newcomers meet only those who are there
        self.state.connected[first:, gone] = False
        self.state.connected[gone, first:] = False
        relabel(self.state)


@step("select", CLUBState)
def select(state: CLUBState, agent: int, arms: Matrix, t: int) -> int:
    return select_from(state.pool, state.labels[agent], arms, state.common.alpha, t)


@step("observe", CLUBState)
def observe(state: CLUBState, agent: int, x: Vector, reward: float, t: int) -> None:
    observe_in_cluster(state, agent, x, reward)
    state.widths[agent] = confidence_width(state.local.pulls[agent])


@step("revise", CLUBState)
def revise(state: CLUBState, agent: int, t: int) -> None:
    connected = state.connected
    theta = state.local.theta_hat
    may_split = False
    for other in range(connected.shape[0]):
        if connected[agent, other]:
            allowed = state.gamma * (state.widths[agent] + state.widths[other])
            if distance(theta[agent], theta[other]) > allowed:
                connected[agent, other] = False
                connected[other, agent] = False
                state.separation_time[agent, other] = t
                state.separation_time[other, agent] = t
                may_split = may_split or not share_a_neighbor(connected, agent, other)
    if may_split:
        relabel(state)


@allocating
def relabel(state: CLUBState) -> None:
    """Make the connected components the clusters, and sum the statistics of those that changed."""
    n = state.labels.shape[0]
    old = state.labels.copy()
    component_labels(state.connected, state.labels)
    sizes = np.zeros(n, dtype=np.int64)
    changed = np.zeros(n, dtype=np.bool_)
    for i in range(n):
        sizes[state.labels[i]] += state.common.active[i]
        if old[i] != state.labels[i]:
            changed[old[i]] = True
            changed[state.labels[i]] = True
    for i in range(n):  # not sizes[:] = …, which takes a second to compile, for its error message
        state.sizes[i] = sizes[i]
        changed[state.labels[i]] = changed[state.labels[i]] or state.common.withdrawn[i]
    for c in range(n):
        if changed[c]:
            pool_cluster(state, c)
