"""CLUB: cut edges between agents whose estimates drift apart (Gentile, Li and Zappella 2014).

The graph starts complete. An edge goes when two local estimates are farther apart than their confidence
widths allow; the connected components are the clusters.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, BLOCKS, derived, kept, rows, scratch, setting
from shoal.core.jit.compiled import allocating, inlined
from shoal.core.kernels.bits import has_bit, members, set_bit
from shoal.core.kernels.graphs import component_labels, confidence_width, distance, share_a_neighbor
from shoal.core.policy.clustered import ClusteredPolicy, observe_in_cluster, pool_cluster, select_from_cluster
from shoal.core.policy.cuts import (
    Cuts,
    CuttingPolicy,
    isolate,
    note,
    part_newcomers,
    problem_of_sets,
    rejoin,
)
from shoal.core.policy.explanations import PairExplanation
from shoal.core.policy.parameters import Parameters
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics, forget_row
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST


class CLUBState(NamedTuple):
    """State of CLUB. A cluster's id is its lowest agent."""

    common: Common
    gamma: Annotated[float, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(AGENTS)]
    labels: Annotated[Integers, derived(AGENTS)]
    sizes: Annotated[Integers, derived(AGENTS)]  # active members
    members: Annotated[Booleans, scratch(AGENTS)]
    apart: Annotated[Integers, kept(AGENTS, BLOCKS)]  # sets: whom an agent has no edge to
    cuts: Cuts
    widths: Annotated[Vector, derived(AGENTS)]  # F(T_i)


class CLUBParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of CLUB."""

    gamma: Annotated[float, Meta(ge=0.0, le=LARGEST, description="Scale of the threshold.")] = 0.25


class CLUB(CuttingPolicy, ClusteredPolicy):
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
    degree = 1
    Parameters = CLUBParameters
    State = CLUBState

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        return {"gamma": getattr(world, "gap", 1.0) / 4}

    def _edges(self) -> Booleans:
        return ~members(self.state.apart, self.n_agents)

    def _margins(self, agent: int, others: Integers) -> Vector:
        theta, widths = self.state.local.theta_hat, self.state.widths
        gaps = np.linalg.norm(theta[others] - theta[agent], axis=1)
        with np.errstate(divide="ignore"):  # γ may be 0
            return np.asarray(gaps / (self.state.gamma * (widths[others] + widths[agent])))

    def _explain_pair(self, agent: int, other: int) -> PairExplanation:
        found: PairExplanation = super()._explain_pair(agent, other)
        allowed = self.state.gamma * (self.state.widths[agent] + self.state.widths[other])
        when = self._round_of_cut(agent, other)
        return found._replace(threshold=float(allowed), separation_time=when)

    def _withdraw(self, agent: int) -> None:
        isolate(self.state.apart, agent)
        self._forget_cuts_of(agent, np.ones(self.n_agents, dtype=np.bool_))
        self.state.widths[agent] = 1.0
        relabel(self._pinned_state())

    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        super()._amended(agent, x, old, change, removes)
        self.state.widths[agent] = confidence_width(self.state.local.pulls[agent])

    def _reconsider(self, agent: int) -> None:
        state, theta = self._pinned_state(), self.state.local.theta_hat
        allowed = state.gamma * (state.widths[agent] + state.widths)
        far = np.array([distance(theta[agent], other) for other in theta]) > allowed
        self._part_from(agent, far)

    def _part_from(self, agent: int, separated: Booleans) -> None:
        state = self._pinned_state()
        was, known = members(state.apart[agent], self.n_agents), ~state.common.withdrawn
        for other in np.flatnonzero(separated & ~was & known).tolist():
            separate(state, agent, other, self.rounds)
        rejoin(state.apart, agent, was & ~separated & known)
        self._forget_cuts_of(agent, was & ~separated & known)
        relabel(state)

    def _join(self, state: CLUBState, first: int) -> None:
        super()._join(state, first)
        part_newcomers(state.apart, state.common.withdrawn, first)
        state.widths[first:] = 1.0
        if len(state.labels) == first:
            return
        # Newcomers have edges to everyone with samples: all of these are one component, as they mostly were.
        lowest = int(np.argmin(state.common.withdrawn))
        state.labels[first:] = lowest
        is_one = np.array_equal(state.labels == lowest, ~state.common.withdrawn)
        if is_one and state.common.reserved[0] == 0:
            state.sizes[lowest] += len(state.labels) - first
        else:
            relabel(self._pin(state))

    def _lending_changed(self, agent: int) -> None:
        state, before = self._pinned_state(), int(self.state.labels[agent])
        relabel(state)
        for cluster in {before, int(state.labels[agent])} & set(state.labels.tolist()):
            pool_cluster(state, cluster)

    def _derive(self, state: CLUBState) -> None:
        find_clusters(self._pin(state))
        super()._derive(state)
        for agent, pulls in enumerate(state.local.pulls.tolist()):
            state.widths[agent] = confidence_width(pulls)

    def _problem(self, state: CLUBState) -> str:
        find_clusters(self._pin(state))
        return super()._problem(state) or problem_of_sets(state.apart, state.cuts)


@step("select", CLUBState)
def select(state: CLUBState, agent: int, arms: Matrix, t: int) -> int:
    return select_from_cluster(state, agent, arms, t)


@step("observe", CLUBState)
def observe(state: CLUBState, agent: int, x: Vector, reward: float, t: int) -> None:
    observe_in_cluster(state, agent, x, reward)
    state.widths[agent] = confidence_width(state.local.pulls[agent])


@step("revise", CLUBState)
def revise(state: CLUBState, agent: int, t: int) -> None:
    theta, n = state.local.theta_hat, state.labels.shape[0]
    may_split = False
    is_simple = state.common.reserved[0] == 0  # everyone who is joined to two joins the two
    for other in range(n):
        if other != agent and not has_bit(state.apart[agent], other):
            allowed = state.gamma * (state.widths[agent] + state.widths[other])
            if distance(theta[agent], theta[other]) > allowed:
                separate(state, agent, other, t)
                may_split = may_split or not (is_simple and share_a_neighbor(state.apart, n, agent, other))
    if may_split:
        relabel(state)


@step("part", CLUBState)
def part(state: CLUBState, agent: int, other: int, t: int) -> bool:
    if has_bit(state.apart[agent], other):
        return False
    separate(state, agent, other, t)
    relabel(state)
    return True


@inlined
def separate(state: CLUBState, agent: int, other: int, t: int) -> None:
    """Cut an edge, and write it down."""
    note(state.cuts, agent, other, t)
    set_bit(state.apart[agent], other)
    set_bit(state.apart[other], agent)


@allocating
def find_clusters(state: CLUBState) -> None:
    """Label the connected components of those who lend; others follow their lowest neighbour's."""
    lends, n = state.common.lends, state.labels.shape[0]
    component_labels(state.apart, lends, state.labels)
    for i in range(n):
        if not lends[i]:
            for j in range(n):
                if lends[j] and not state.common.withdrawn[j] and not has_bit(state.apart[i], j):
                    state.labels[i] = state.labels[j]
                    break


@allocating
def relabel(state: CLUBState) -> None:
    """Make the connected components the clusters, and sum the statistics of those that changed."""
    n = state.labels.shape[0]
    old = state.labels.copy()
    find_clusters(state)
    sizes = np.zeros(n, dtype=np.int64)
    is_used = np.zeros(n, dtype=np.bool_)
    changed = np.zeros(n, dtype=np.bool_)
    for i in range(n):
        sizes[state.labels[i]] += state.common.active[i] and state.common.lends[i]
        is_used[state.labels[i]] = True
        if old[i] != state.labels[i]:
            changed[old[i]] = True
            changed[state.labels[i]] = True
    for i in range(n):  # not sizes[:] = …, which takes a second to compile, for its error message
        state.sizes[i] = sizes[i]
        changed[state.labels[i]] = changed[state.labels[i]] or state.common.withdrawn[i]
    for c in range(n):
        if changed[c] and is_used[c]:
            pool_cluster(state, c)
        elif changed[c]:
            forget_row(state.pool, c, state.common.ridge)
