"""SCLUB: clusters that split and merge in stages (Li, Chen, Li and Leung 2019).

In stages of doubling length, an agent whose estimate is far from what its cluster's was at the stage's
start splits off; two clusters all of whose agents were checked in this stage merge when their estimates
are close.
"""

from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, COUNT, DIM, derived, kept, rows, scratch, setting
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.graphs import confidence_width, distance
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics
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


class SCLUBState(NamedTuple):
    """State of SCLUB."""

    common: Common
    gamma: Annotated[float, setting()]
    slack: Annotated[float, setting()]  # what RSCLUMB adds to the splitting radius
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(AGENTS)]
    labels: Annotated[Integers, kept(AGENTS, low=0, below=AGENTS)]
    sizes: Annotated[Integers, derived(AGENTS)]  # members
    members: Annotated[Booleans, scratch(AGENTS)]
    checked: Annotated[Booleans, kept(AGENTS)]  # agents served in this stage
    waiting: Annotated[Integers, derived(AGENTS)]  # members of each cluster that are not checked
    widths: Annotated[Vector, derived(AGENTS)]  # F of each cluster's pulls
    stage_theta: Annotated[Matrix, kept(AGENTS, DIM)]  # each cluster's estimate at the stage's start
    stage_pulls: Annotated[Integers, kept(AGENTS, **COUNT)]  # and its pulls
    next_stage: Annotated[Integers, kept(1, low=1, below=2.0**62, fill=1)]  # the round it starts in


class SCLUBParameters(ReleasedParameters, frozen=True, kw_only=True):
    """Parameters of SCLUB."""

    gamma: Annotated[float, Meta(ge=0.0, le=LARGEST, description="Scale of the thresholds.")] = 0.25


class SCLUB(ClusteredRival):
    """Splits i from c when `‖θ̂_i − θ̃_c‖ > γ (F(T_i) + F(T̃_c))`; merges clusters within half that radius.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, seed=5)
    >>> policy = shoal.SCLUB(n_agents=6, dim=3, gamma=2.0)
    >>> trace = shoal.simulate(policy, world, horizon=3_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

    Notes
    -----
    Departs from its source: no split on arrival frequencies (docs/algorithms.md).
    """

    name = "sclub"
    label = "SCLUB"
    line_style = LineStyle("#8c564b", "s")
    in_paper = True
    Parameters: ClassVar[type[ReleasedParameters]] = SCLUBParameters
    State: ClassVar[type] = SCLUBState

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "slack": 0.0}

    def _derive(self, state: SCLUBState) -> None:
        super()._derive(state)
        state.waiting[:] = np.bincount(state.labels[~state.checked], minlength=len(state.waiting))
        for cluster, pulls in enumerate(state.pool.pulls.tolist()):
            state.widths[cluster] = confidence_width(pulls)

    def _problem(self, state: SCLUBState) -> str:
        following = int(state.next_stage[0]) + 1
        if following & (following - 1):
            return f"next_stage is {following - 1}, and stages start in rounds 1, 3, 7, 15, …"
        return super()._problem(state)


@step("select", SCLUBState)
def select(state: SCLUBState, agent: int, arms: Matrix, t: int) -> int:
    return select_from_cluster(state, agent, arms, t)


@step("observe", SCLUBState)
def observe(state: SCLUBState, agent: int, x: Vector, reward: float, t: int) -> None:
    if t >= state.next_stage[0]:
        start_stage(state, t)
    observe_in_cluster(state, agent, x, reward)
    home = state.labels[agent]
    state.widths[home] = confidence_width(state.pool.pulls[home])


@step("revise", SCLUBState)
def revise(state: SCLUBState, agent: int, t: int) -> None:
    home = state.labels[agent]
    theta = state.local.theta_hat[agent]
    widths = confidence_width(state.local.pulls[agent]) + confidence_width(state.stage_pulls[home])
    allowed = state.gamma * widths + state.slack
    if not state.checked[agent]:
        state.checked[agent] = True
        state.waiting[home] -= 1
    now = home
    if state.sizes[home] > 1 and distance(theta, state.stage_theta[home]) > allowed:
        now = split(state, agent)
    merge(state, home, now)


@inlined
def start_stage(state: SCLUBState, t: int) -> None:
    """Uncheck everybody and remember every cluster's estimate and pulls."""
    while t >= state.next_stage[0]:
        state.next_stage[0] = 2 * state.next_stage[0] + 1  # stages start at t = 1, 3, 7, 15, …
    for n in range(state.sizes.shape[0]):
        state.checked[n] = False
        state.waiting[n] = state.sizes[n]
        remember(state, n)


@compiled
def split(state: SCLUBState, agent: int) -> int:
    """Move a checked agent to the lowest free cluster and return its id."""
    home = state.labels[agent]
    new = 0
    while state.sizes[new] > 0:
        new += 1
    state.labels[agent] = new
    state.sizes[home] -= 1
    state.sizes[new] = 1
    state.waiting[new] = 0
    renew(state, home)
    renew(state, new)
    remember(state, new)
    return new


@compiled
def merge(state: SCLUBState, touched: int, also_touched: int) -> None:
    """Merge fully checked close clusters, one of them touched; lowest ids first, until none is left."""
    low, high = next_merge(state, touched, also_touched)
    while low >= 0:
        for j in range(state.labels.shape[0]):
            if state.labels[j] == high:
                state.labels[j] = low
        state.sizes[low] += state.sizes[high]
        state.sizes[high] = 0
        renew(state, low)
        renew(state, high)
        remember(state, low)
        touched = low if touched == high else touched
        also_touched = low if also_touched == high else also_touched
        low, high = next_merge(state, touched, also_touched)


@compiled
def next_merge(state: SCLUBState, touched: int, also_touched: int) -> tuple[int, int]:
    """The first pair (low < high) to merge, in lexicographic order; (−1, −1) if there is none."""
    n = state.sizes.shape[0]
    for low in range(n):
        if not is_checked(state, low):
            continue
        if low in (touched, also_touched):
            for high in range(low + 1, n):
                if is_checked(state, high) and are_close(state, low, high):
                    return low, high
        else:
            for high in (min(touched, also_touched), max(touched, also_touched)):
                if high > low and is_checked(state, high) and are_close(state, low, high):
                    return low, high
    return -1, -1


@inlined
def is_checked(state: SCLUBState, cluster: int) -> bool:
    """Whether a cluster has members, all of them checked in this stage."""
    return bool(state.sizes[cluster] > 0 and state.waiting[cluster] == 0)


@inlined
def are_close(state: SCLUBState, low: int, high: int) -> bool:
    """Whether two clusters' estimates are within half the splitting radius."""
    allowed = 0.5 * state.gamma * (state.widths[low] + state.widths[high]) + 0.5 * state.slack
    return bool(distance(state.pool.theta_hat[low], state.pool.theta_hat[high]) < allowed)


@inlined
def renew(state: SCLUBState, cluster: int) -> None:
    """Recompute a cluster's statistics."""
    pool_cluster(state, cluster)
    state.widths[cluster] = confidence_width(state.pool.pulls[cluster])


@inlined
def remember(state: SCLUBState, cluster: int) -> None:
    """Use a cluster's present statistics as those of the stage's start."""
    for m in range(state.stage_theta.shape[1]):
        state.stage_theta[cluster, m] = state.pool.theta_hat[cluster, m]
    state.stage_pulls[cluster] = state.pool.pulls[cluster]
