"""CMLB: explore alone, then cluster once (Ghosh, Sankararaman and Ramchandran 2022).

For the first rounds every agent learns alone. Then agents whose estimates are close are joined, clusters
that are too small are thrown together, and from then on each cluster learns as one.
"""

from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, derived, kept, rows, scratch, setting
from shoal.core.jit.compiled import allocating, inlined
from shoal.core.kernels.graphs import distance
from shoal.core.policy.parameters import Exploring
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST
from shoal.lab.rivals.clustered import ClusteredRival, observe_in_cluster, pool_cluster, select_from_cluster


class CMLBState(NamedTuple):
    """State of CMLB. A cluster's id is its lowest agent; before the clustering everybody is alone."""

    common: Common
    gamma: Annotated[float, setting()]
    exploration_rounds: Annotated[int, setting()]
    min_cluster_fraction: Annotated[float, setting()]
    formed: Annotated[Booleans, kept(1)]  # whether the clusters have been formed
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(AGENTS)]
    labels: Annotated[Integers, kept(AGENTS, low=0, below=AGENTS)]
    sizes: Annotated[Integers, derived(AGENTS)]  # members
    members: Annotated[Booleans, scratch(AGENTS)]


class CMLBParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of CMLB."""

    gamma: Annotated[
        float, Meta(ge=0.0, le=LARGEST, description="Distance below which two agents are joined.")
    ] = 0.1
    exploration_rounds: Annotated[int, Meta(ge=1, description="Rounds of independent learning T_e.")] = 1000
    min_cluster_fraction: Annotated[
        float,
        Meta(
            ge=0.0, le=1.0, description="Components with a smaller share of all agents are merged into one."
        ),
    ] = 0.1


class CMLB(ClusteredRival):
    """Independent learning for `exploration_rounds` rounds, then one clustering by `‖θ̂_i − θ̂_j‖ < γ`.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, seed=5)
    >>> policy = shoal.CMLB(n_agents=6, dim=3, gamma=1.0, exploration_rounds=600)
    >>> trace = shoal.simulate(policy, world, horizon=3_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

    Notes
    -----
    Departs from its source: when no two agents are close, every agent stays alone (docs/algorithms.md).
    """

    name = "cmlb"
    label = "CMLB"
    line_style = LineStyle("#d62728", "^")
    in_paper = True
    Parameters = CMLBParameters
    State = CMLBState

    def _join(self, state: CMLBState, first: int) -> None:
        state.labels[:] = np.arange(len(state.labels))
        super()._join(state, first)


@step("select", CMLBState)
def select(state: CMLBState, agent: int, arms: Matrix, t: int) -> int:
    return select_from_cluster(state, agent, arms, t)


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
    n, theta = state.labels.shape[0], state.local.theta_hat
    labels = np.full(n, -1, dtype=np.int64)
    stack = np.empty(n, dtype=np.int64)
    any_close = False
    for start in range(n):
        if labels[start] < 0:
            labels[start] = start
            stack[0] = start
            depth = 1
            while depth > 0:  # everyone close to a member belongs to the component
                depth -= 1
                node = stack[depth]
                for other in range(start + 1, n):
                    if labels[other] < 0 and distance(theta[node], theta[other]) < state.gamma:
                        labels[other] = start
                        stack[depth] = other
                        depth += 1
                        any_close = True
    if not any_close:
        return
    for i in range(n):
        state.labels[i] = labels[i]
    _count(state)
    smallest = state.min_cluster_fraction * n
    home = -1  # where the members of small components go: the lowest of them
    for i in range(n):
        state.members[i] = state.sizes[state.labels[i]] < smallest
        if state.members[i] and home < 0:
            home = i
    for i in range(n):
        if state.members[i]:
            state.labels[i] = home
    _count(state)
    for c in range(n):  # also those without members, which hold what departed agents had learned
        pool_cluster(state, c)


@inlined
def _count(state: CMLBState) -> None:
    """Count the members of every cluster."""
    state.sizes[:] = 0
    for i in range(state.labels.shape[0]):
        state.sizes[state.labels[i]] += 1
