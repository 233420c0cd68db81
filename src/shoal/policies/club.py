"""CLUB: cut edges between agents whose estimates drift apart (Gentile, Li and Zappella 2014).

The graph starts complete. An edge goes when two local estimates are farther apart than their confidence
widths allow; the connected components are the clusters.
"""

from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.fields import AGENTS, derived, kept, rows, scratch, setting
from shoal.kernels.compiled import allocating
from shoal.kernels.graphs import component_labels, confidence_width, distance, share_a_neighbor
from shoal.policies.base import Policy
from shoal.policies.clustered import ClusteredPolicy, observe_in_cluster, pool_cluster, select_from
from shoal.policies.parameters import Parameters
from shoal.policies.steps import Common, step
from shoal.statistics import Statistics
from shoal.styles import LineStyle
from shoal.types import Booleans, Integers, Matrix, Vector
from shoal.validation import LARGEST


class CLUBState(NamedTuple):
    """State of CLUB. A cluster's id is its lowest agent."""

    common: Common
    gamma: Annotated[float, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(AGENTS)]
    labels: Annotated[Integers, derived(AGENTS)]
    sizes: Annotated[Integers, derived(AGENTS)]  # active members
    members: Annotated[Booleans, scratch(AGENTS)]
    connected: Annotated[Booleans, kept(AGENTS, AGENTS)]  # False on the diagonal
    separation_time: Annotated[Integers, kept(AGENTS, AGENTS, low=-1, below=2.0**62, fill=-1)]
    widths: Annotated[Vector, derived(AGENTS)]  # F(T_i)


class CLUBParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of CLUB."""

    gamma: Annotated[float, Meta(ge=0.0, le=LARGEST, description="Scale of the threshold.")]


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
    line_style = LineStyle("#1f77b4", "o")
    in_paper = True
    Parameters = CLUBParameters
    State = CLUBState

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

    def _edges(self) -> Booleans:
        return np.array(self.state.connected)

    def _withdraw(self, agent: int) -> None:
        state = self.state
        state.connected[agent] = state.connected[:, agent] = False
        state.separation_time[agent] = state.separation_time[:, agent] = -1
        state.widths[agent] = 1.0
        relabel(state)

    def _amended(self, agent: int, x: Vector, change: float, removes: bool) -> None:
        super()._amended(agent, x, change, removes)
        self.state.widths[agent] = confidence_width(self.state.local.pulls[agent])

    def _reconsider(self, agent: int) -> None:
        state, theta = self.state, self.state.local.theta_hat
        allowed = state.gamma * (state.widths[agent] + state.widths)
        far = [distance(theta[agent], estimate) for estimate in theta] > allowed
        joined = ~far & ~state.common.withdrawn
        joined[agent] = False
        newly = far & state.connected[agent]
        state.connected[agent] = state.connected[:, agent] = joined
        for times in (state.separation_time[agent], state.separation_time[:, agent]):
            times[newly] = self.rounds
            times[joined] = -1
        relabel(state)

    def _join(self, state: CLUBState, first: int) -> None:
        super()._join(state, first)
        meets = ~state.common.withdrawn  # newcomers meet everyone who has left samples
        state.connected[first:] = meets
        state.connected[:, first:] = meets[:, None]
        state.connected.flat[:: len(meets) + 1] = False
        state.widths[first:] = 1.0
        relabel(state)

    def _derive(self, state: CLUBState) -> None:
        component_labels(state.connected, state.labels)
        super()._derive(state)
        for agent, pulls in enumerate(state.local.pulls.tolist()):
            state.widths[agent] = confidence_width(pulls)

    def _problem(self, state: CLUBState) -> str:
        times, connected = state.separation_time, state.connected
        if not (np.array_equal(times, times.T) and np.array_equal(connected, connected.T)):
            return "connected and separation_time are not symmetric"
        if (
            connected.diagonal().any()
            or (connected & (times >= 0)).any()
            or connected[state.common.withdrawn].any()
        ):
            return "connected holds an edge to oneself, one that was cut, or one of a withdrawn agent"
        component_labels(connected, state.labels)
        return super()._problem(state)


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
