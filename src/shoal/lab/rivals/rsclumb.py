"""RSCLUMB: SCLUB for rewards that are not quite linear (Wang, Xie, Liu, Li and Lui 2023).

Agents split from clusters and clusters merge as in SCLUB, with what the misspecification may explain added to
the radius; the bonus also covers what the cluster's samples may be off by.
"""

from typing import Annotated, Any, NamedTuple

from shoal.core.fields import AGENTS, COUNT, DIM, derived, kept, rows, scratch, setting
from shoal.core.policy.steps import SCORED, Common, step
from shoal.core.statistics import Statistics
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.lab.rivals import sclub
from shoal.lab.rivals.misspecified import (
    MisspecifiedParameters,
    MisspecifiedRival,
    PlayedArms,
    remember,
    select_in_doubt,
)


class RSCLUMBState(NamedTuple):
    """State of RSCLUMB: that of SCLUB, and what was played."""

    common: Common
    gamma: Annotated[float, setting()]
    slack: Annotated[float, setting()]
    misspecification: Annotated[float, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(AGENTS)]
    labels: Annotated[Integers, kept(AGENTS, low=0, below=AGENTS)]
    sizes: Annotated[Integers, derived(AGENTS)]
    members: Annotated[Booleans, scratch(AGENTS)]
    checked: Annotated[Booleans, kept(AGENTS)]
    waiting: Annotated[Integers, derived(AGENTS)]
    widths: Annotated[Vector, derived(AGENTS)]
    stage_theta: Annotated[Matrix, kept(AGENTS, DIM)]
    stage_pulls: Annotated[Integers, kept(AGENTS, **COUNT)]
    next_stage: Annotated[Integers, kept(1, low=1, below=2.0**62, fill=1)]
    played: PlayedArms
    lanes: Annotated[Matrix, scratch(DIM + 2, SCORED)]


class RSCLUMB(MisspecifiedRival, sclub.SCLUB):
    """Splits i from c when `‖θ̂_i − θ̃_c‖ > α₁ (F(T_i) + F(T̃_c)) + α₂ε*`; merges within half that radius.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, noise_scale=0.2, seed=5)
    >>> policy = shoal.make_policy("rsclumb", 6, 3, misspecification=0.1)
    >>> trace = shoal.simulate(policy, world, horizon=3_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

    Notes
    -----
    Departs from its source where SCLUB does, and in the factor of the bonus (docs/algorithms.md).
    """

    name = "rsclumb"
    label = "RSCLUMB"
    line_style = LineStyle("#9c755f", "d")
    in_paper = False
    Parameters = MisspecifiedParameters
    State = RSCLUMBState


@step("select", RSCLUMBState)
def select(state: RSCLUMBState, agent: int, arms: Matrix, t: int) -> int:
    home = state.labels[agent]
    for other in range(state.members.shape[0]):
        state.members[other] = state.labels[other] == home
    return select_in_doubt(state, state.pool, home, state.members, arms, agent, t)


@step("observe", RSCLUMBState)
def observe(state: Any, agent: int, x: Vector, reward: float, t: int) -> None:
    sclub.observe(state, agent, x, reward, t)
    remember(state.played, agent, x)


@step("revise", RSCLUMBState)
def revise(state: Any, agent: int, t: int) -> None:
    sclub.revise(state, agent, t)
