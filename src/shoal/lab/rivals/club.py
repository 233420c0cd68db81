"""CLUB: cut edges between agents whose estimates drift apart (Gentile, Li and Zappella 2014).

The graph starts complete. An edge goes when two local estimates are farther apart than their confidence
widths allow; the connected components are the clusters.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, BLOCKS, derived, kept, rows, scratch, setting
from shoal.core.jit.compiled import allocating, compiled
from shoal.core.kernels.bits import has_bit, members, set_bit
from shoal.core.kernels.graphs import (
    component_labels,
    confidence_width,
    distance,
    separation_times,
    share_a_neighbor,
)
from shoal.core.policy.base import Policy
from shoal.core.policy.cuts import (
    Cuts,
    as_rows,
    count_uncut,
    enlarged,
    note,
    problem_of_cuts,
    problem_of_sets,
)
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics, forget_row
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST
from shoal.lab.rivals.clustered import (
    ClusteredRival,
    ReleasedParameters,
    observe_in_cluster,
    pool_cluster,
    select_from_cluster,
)


class CLUBState(NamedTuple):
    """State of CLUB. A cluster's id is its lowest agent."""

    common: Common
    gamma: Annotated[float, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(AGENTS)]
    labels: Annotated[Integers, derived(AGENTS)]
    sizes: Annotated[Integers, derived(AGENTS)]  # members
    members: Annotated[Booleans, scratch(AGENTS)]
    apart: Annotated[Integers, kept(AGENTS, BLOCKS)]  # sets: whom an agent has no edge to
    cuts: Cuts
    widths: Annotated[Vector, derived(AGENTS)]  # F(T_i)


class CLUBParameters(ReleasedParameters, frozen=True, kw_only=True):
    """Parameters of CLUB."""

    gamma: Annotated[float, Meta(ge=0.0, le=LARGEST, description="Scale of the threshold.")] = 0.25


class CuttingRival(Policy):
    """Base of rivals that cut edges for good: their state has `apart`, `cuts` and `widths`."""

    @property
    def cuts(self) -> Integers:
        """The edges that were cut, in order, shape (n, 3): the two agents, and the round."""
        with self.lock:
            return as_rows(self.state.cuts)

    @property
    def separation_time(self) -> Integers:
        """Round in which each pair separated, −1 if it never did, shape (N, N)."""
        return separation_times(self.cuts, self.n_agents)

    def reserve(self, pulls: int) -> None:
        super().reserve(pulls)
        if more := enlarged(type(self).__name__, self.state.cuts, pulls, self.n_agents, self.dim):
            self.state = self.state._replace(cuts=more)
            self.pinned_state()  # lets go of the old arrays

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        return count_uncut(self.state.cuts, self.n_agents, labels)

    def _edges(self) -> Booleans:
        return ~members(self.state.apart, self.n_agents)

    def _derive(self, state: Any) -> None:
        super()._derive(state)
        for agent, pulls in enumerate(state.local.pulls.tolist()):
            state.widths[agent] = confidence_width(pulls)

    def _problem(self, state: Any) -> str:
        trouble = problem_of_cuts(state.cuts, len(state.widths)) or problem_of_sets(state.apart, state.cuts)
        return trouble or super()._problem(state)


class CLUB(CuttingRival, ClusteredRival):
    """Cuts (i, j) when `‖θ̂_i − θ̂_j‖ > γ (F(T_i) + F(T_j))`; pools connected components.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, seed=5)
    >>> policy = shoal.CLUB(n_agents=6, dim=3, gamma=2.0)
    >>> trace = shoal.simulate(policy, world, horizon=3_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

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

    def _derive(self, state: CLUBState) -> None:
        component_labels(state.apart, state.labels)
        super()._derive(state)

    def _problem_of_pools(self, state: CLUBState) -> str:
        component_labels(state.apart, state.labels)
        return super()._problem_of_pools(state)


@step("select", CLUBState)
def select(state: CLUBState, agent: int, arms: Matrix, t: int) -> int:
    return select_from_cluster(state, agent, arms, t)


@step("observe", CLUBState)
def observe(state: CLUBState, agent: int, x: Vector, reward: float, t: int) -> None:
    observe_in_cluster(state, agent, x, reward)
    state.widths[agent] = confidence_width(state.local.pulls[agent])


@step("revise", CLUBState)
def revise(state: CLUBState, agent: int, t: int) -> None:
    if cut_edges(state, agent, 0.0, t):
        relabel(state)


@compiled
def cut_edges(state: Any, agent: int, slack: float, t: int) -> bool:
    """Cut an agent from those farther away than widths and slack allow; say whether components may change."""
    theta, n = state.local.theta_hat, state.widths.shape[0]
    may_split = False
    for other in range(n):
        if other != agent and not has_bit(state.apart[agent], other):
            allowed = state.gamma * (state.widths[agent] + state.widths[other]) + slack
            if distance(theta[agent], theta[other]) > allowed:
                note(state.cuts, agent, other, t)
                set_bit(state.apart[agent], other)
                set_bit(state.apart[other], agent)
                may_split = may_split or not share_a_neighbor(state.apart, n, agent, other)
    return may_split


@allocating
def relabel(state: CLUBState) -> None:
    """Make the connected components the clusters, and sum the statistics of those that changed."""
    n = state.labels.shape[0]
    old = state.labels.copy()
    component_labels(state.apart, state.labels)
    changed = np.zeros(n, dtype=np.bool_)
    for i in range(n):
        state.sizes[i] = 0
    for i in range(n):
        state.sizes[state.labels[i]] += 1
        if old[i] != state.labels[i]:
            changed[old[i]] = True
            changed[state.labels[i]] = True
    for c in range(n):
        if changed[c] and state.sizes[c] > 0:
            pool_cluster(state, c)
        elif changed[c]:
            forget_row(state.pool, c, state.common.ridge)
