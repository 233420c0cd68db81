"""LOCB: overlapping clusters around a few seeds (Ban and He 2021).

Some agents, drawn at random, are seeds. Each has a cluster, of everybody at first; an agent that is served is
in it if and only if its estimate is close to the seed's. An agent chooses by whichever of the clusters it is
in promises most.
"""

from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, CLUSTERS, derived, kept, rows, scratch, setting
from shoal.core.jit.compiled import inlined
from shoal.core.kernels.graphs import confidence_width, distance
from shoal.core.policy.base import Policy
from shoal.core.policy.exploring import choose_in_row
from shoal.core.policy.steps import SCORED, Common, step
from shoal.core.statistics import Statistics, add_sample, pool_rows, problem, start_rows
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST
from shoal.lab.rivals.clustered import ReleasedParameters, first_best


class LOCBState(NamedTuple):
    """State of LOCB. Clusters are numbered as their seeds are."""

    common: Common
    gamma: Annotated[float, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(CLUSTERS)]
    seeds: Annotated[Integers, kept(CLUSTERS, low=0, below=AGENTS)]
    inside: Annotated[Booleans, kept(CLUSTERS, AGENTS, fill=True)]
    widths: Annotated[Vector, derived(AGENTS)]  # F(T_i)
    best: Annotated[Matrix, scratch(2, SCORED)]  # of each arm, by the cluster that promises most


class LOCBParameters(ReleasedParameters, frozen=True, kw_only=True):
    """Parameters of LOCB."""

    n_seeds: Annotated[int, Meta(ge=1, description="Number of seeds; no more than there are agents.")] = 20
    gamma: Annotated[
        float,
        Meta(ge=0.0, le=LARGEST, description="A cluster is final once F(T) of its seed is at most γ/4."),
    ] = 0.2


class LOCB(Policy):
    """Keeps i in the cluster of seed s while `‖θ̂_i − θ̂_s‖ ≤ F(T_i) + F(T_s)`; plays the largest upper bound.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, noise_scale=0.2, seed=5)
    >>> policy = shoal.make_policy("locb", 6, 3, n_seeds=4, seed=0)
    >>> trace = shoal.simulate(policy, world, horizon=3_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

    Notes
    -----
    Departs from its source: seeds are drawn without replacement (docs/algorithms.md).
    """

    name = "locb"
    label = "LOCB"
    line_style = LineStyle("#b07aa1", "p")
    Parameters = LOCBParameters
    State = LOCBState

    @property
    def seeds(self) -> Integers:
        """The agents that clusters are built around; a copy."""
        return np.array(self.state.seeds)

    def _sizes(self, n_agents: int) -> dict[str, int]:
        return {**super()._sizes(n_agents), "clusters": min(self._parameters.n_seeds, n_agents)}

    def _join(self, state: LOCBState, first: int) -> None:
        start_rows(state.pool, 0, state.common.ridge)
        rng = np.random.default_rng(self._parameters.seed)
        state.seeds[:] = rng.choice(len(state.widths), size=len(state.seeds), replace=False)
        self._derive(state)

    def _derive(self, state: LOCBState) -> None:
        for agent, pulls in enumerate(state.local.pulls.tolist()):
            state.widths[agent] = confidence_width(pulls)

    def _problem(self, state: LOCBState) -> str:
        if len(set(state.seeds.tolist())) < len(state.seeds):
            return "seeds names an agent twice"
        if trouble := super()._problem(state) or problem(state.pool, state.common.ridge):
            return trouble
        summed = state.inside.astype(float) @ state.local.b
        same = np.allclose(summed, state.pool.b, rtol=1e-9, atol=1e-9 * (1.0 + np.abs(summed).max(initial=0)))
        return "" if same else "pool.b is not the sum over the members of each cluster"

    def _pool(self, agent: int) -> Booleans:
        used = self.state.inside[self.state.inside[:, agent]].any(axis=0)
        used[agent] = True
        return np.asarray(used)


@step("select", LOCBState)
def select(state: LOCBState, agent: int, arms: Matrix, t: int) -> int:
    """The largest upper bound of each arm over the agent's clusters, or the agent's own if it is in none."""
    common, choice, highest = state.common, 0, -np.inf
    # From the last arms to the first, so that the scores of the first ones remain.
    for start in range((arms.shape[0] - 1) // SCORED * SCORED, -1, -SCORED):
        here = arms[start : start + SCORED]
        n = here.shape[0]
        state.best[:] = -np.inf
        for s in range(state.seeds.shape[0]):
            if state.inside[s, agent]:
                choose_in_row(common, state.pool, s, here, agent, t, 1.0)
                take_larger(common.scored, state.best, n)
        if state.best[0, 0] == -np.inf:
            choose_in_row(common, state.local, agent, here, agent, t, 1.0)
            take_larger(common.scored, state.best, n)
        for k in range(n):
            common.scored[0, k] = state.best[0, k]
            common.scored[1, k] = state.best[1, k]
        k = first_best(common.scored, n)
        if common.scored[0, k] + common.scored[1, k] >= highest:
            highest = common.scored[0, k] + common.scored[1, k]
            choice = start + k
    return choice


@inlined
def take_larger(scored: Matrix, best: Matrix, n: int) -> None:
    """Replace the `best` mean and bonus of each of n arms where their sum in `scored` is larger."""
    for k in range(n):
        if scored[0, k] + scored[1, k] > best[0, k] + best[1, k]:
            best[0, k] = scored[0, k]
            best[1, k] = scored[1, k]


@step("observe", LOCBState)
def observe(state: LOCBState, agent: int, x: Vector, reward: float, t: int) -> None:
    add_sample(state.local, agent, x, reward)
    state.widths[agent] = confidence_width(state.local.pulls[agent])
    clusters, n = state.inside.shape
    for s in range(clusters):
        if state.inside[s, agent]:
            add_sample(state.pool, s, x, reward)
    for other in range(n):  # shared with every member of its clusters
        together = False
        for s in range(clusters):
            together = together or (state.inside[s, agent] and state.inside[s, other])
        state.common.cost[0] += together and other != agent


@step("revise", LOCBState)
def revise(state: LOCBState, agent: int, t: int) -> None:
    theta, width = state.local.theta_hat, state.widths
    for s in range(state.seeds.shape[0]):
        seed = state.seeds[s]
        if width[seed] > state.gamma / 4.0:  # else the cluster is final
            is_close = distance(theta[agent], theta[seed]) <= width[agent] + width[seed]
            if is_close != state.inside[s, agent]:
                state.inside[s, agent] = is_close
                pool_rows(state.local, state.inside[s], state.common.ridge, state.pool, s)
