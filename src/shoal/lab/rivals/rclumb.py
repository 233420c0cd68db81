"""RCLUMB: CLUB for rewards that are not quite linear (Wang, Xie, Liu, Li and Lui 2023).

Edges are cut as CLUB cuts them, later by what the misspecification may explain; an agent pools its direct
neighbours, and its bonus also covers what their samples may be off by.
"""

from typing import Annotated, NamedTuple

from shoal.core.fields import AGENTS, BLOCKS, DIM, derived, kept, rows, scratch, scratch_rows, setting
from shoal.core.kernels.bits import has_bit, members
from shoal.core.kernels.graphs import confidence_width
from shoal.core.policy.cuts import Cuts
from shoal.core.policy.steps import SCORED, Common, step
from shoal.core.statistics import Statistics, add_sample, pool_rows
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.lab.rivals.club import CuttingRival, cut_edges
from shoal.lab.rivals.misspecified import (
    MisspecifiedParameters,
    MisspecifiedRival,
    PlayedArms,
    remember,
    select_in_doubt,
)


class RCLUMBState(NamedTuple):
    """State of RCLUMB."""

    common: Common
    gamma: Annotated[float, setting()]
    slack: Annotated[float, setting()]
    misspecification: Annotated[float, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, scratch_rows(1)]  # of the agent that chooses
    members: Annotated[Booleans, scratch(AGENTS)]
    apart: Annotated[Integers, kept(AGENTS, BLOCKS)]  # sets: whom an agent has no edge to
    cuts: Cuts
    widths: Annotated[Vector, derived(AGENTS)]  # F(T_i)
    played: PlayedArms
    lanes: Annotated[Matrix, scratch(DIM + 2, SCORED)]


class RCLUMB(CuttingRival, MisspecifiedRival):
    """Cuts (i, j) when `‖θ̂_i − θ̂_j‖ > α₁ (F(T_i) + F(T_j)) + α₂ε*`; pools direct neighbours.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, noise_scale=0.2, seed=5)
    >>> policy = shoal.make_policy("rclumb", 6, 3, misspecification=0.1)
    >>> trace = shoal.simulate(policy, world, horizon=3_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

    Notes
    -----
    Departs from its source in the factor of the bonus, α √ln(t+1) as for every policy (docs/algorithms.md).
    """

    name = "rclumb"
    label = "RCLUMB"
    line_style = LineStyle("#4e79a7", "P")
    Parameters = MisspecifiedParameters
    State = RCLUMBState

    def _join(self, state: RCLUMBState, first: int) -> None:
        self._derive(state)

    def _pool(self, agent: int) -> Booleans:
        return ~members(self.state.apart[agent], self.n_agents)


@step("select", RCLUMBState)
def select(state: RCLUMBState, agent: int, arms: Matrix, t: int) -> int:
    for other in range(state.members.shape[0]):
        state.members[other] = not has_bit(state.apart[agent], other)
    pool_rows(state.local, state.members, state.common.ridge, state.pool, 0)
    return select_in_doubt(state, state.pool, 0, state.members, arms, agent, t)


@step("observe", RCLUMBState)
def observe(state: RCLUMBState, agent: int, x: Vector, reward: float, t: int) -> None:
    add_sample(state.local, agent, x, reward)
    state.widths[agent] = confidence_width(state.local.pulls[agent])
    remember(state.played, agent, x)
    for other in range(state.widths.shape[0]):
        state.common.cost[0] += other != agent and not has_bit(state.apart[agent], other)


@step("revise", RCLUMBState)
def revise(state: RCLUMBState, agent: int, t: int) -> None:
    cut_edges(state, agent, state.slack, t)
