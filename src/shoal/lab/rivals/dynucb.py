"""DynUCB: k-means over agents, one step at a time (Nguyen and Lauw 2014).

Every agent belongs to one of M clusters, drawn at random at first. After each of its observations it
moves to the cluster whose estimate is nearest to its own.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, CLUSTERS, derived, kept, rows, scratch
from shoal.core.jit.compiled import compiled
from shoal.core.policy.parameters import Exploring
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.lab.rivals.clustered import ClusteredRival, observe_in_cluster, pool_cluster, select_from_cluster


class DynUCBState(NamedTuple):
    """State of DynUCB."""

    common: Common
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(CLUSTERS)]
    labels: Annotated[Integers, kept(AGENTS, low=0, below=CLUSTERS)]
    sizes: Annotated[Integers, derived(CLUSTERS)]  # members
    members: Annotated[Booleans, scratch(AGENTS)]


class DynUCBParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of DynUCB."""

    n_clusters: Annotated[int, Meta(ge=1, description="Number of clusters M.")] = 20


class DynUCB(ClusteredRival):
    """Agents move to the nearest of `n_clusters` clusters: `argmin_c ‖θ̂_i − θ̂_c‖`.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, seed=5)
    >>> policy = shoal.DynUCB(n_agents=6, dim=3, n_clusters=2, seed=0)
    >>> trace = shoal.simulate(policy, world, horizon=3_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

    Notes
    -----
    Departs from its source in nothing we know of; what was unclear there is settled in docs/algorithms.md.
    """

    name = "dynucb"
    label = "DynUCB"
    line_style = LineStyle("#d9489b", "D")
    in_paper = True
    Parameters = DynUCBParameters
    State = DynUCBState

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        return {"n_clusters": len(np.unique(world.labels))}

    def _sizes(self, n_agents: int) -> dict[str, int]:
        return {**super()._sizes(n_agents), "clusters": self._parameters.n_clusters}

    def _join(self, state: DynUCBState, first: int) -> None:
        rng = np.random.default_rng(self._parameters.seed)
        state.labels[:] = rng.integers(self._parameters.n_clusters, size=len(state.labels))
        super()._join(state, first)


@step("select", DynUCBState)
def select(state: DynUCBState, agent: int, arms: Matrix, t: int) -> int:
    return select_from_cluster(state, agent, arms, t)


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
