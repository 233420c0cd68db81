"""CAB: whom an agent learns with depends on the arm (Gentile, Li, Kar, Karatzoglou, Zappella and Etrue 2017).

For every arm the agents whose predictions of it cannot be told apart from one's own are neighbours, and their
predictions are averaged. Once an agent is sure enough of an arm, its samples also go to those neighbours.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, kept, rows, scratch, setting
from shoal.core.jit.compiled import compiled
from shoal.core.policy.base import Policy
from shoal.core.policy.exploring import ucb_width
from shoal.core.policy.parameters import Parameters
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics, add_sample, problem, start_rows
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Matrix, Vector
from shoal.core.validation import LARGEST


class CABState(NamedTuple):
    """State of CAB. An agent's model has its own samples, and those that neighbours passed on."""

    common: Common
    gamma: Annotated[float, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    model: Annotated[Statistics, rows(AGENTS)]
    learned_from: Annotated[Booleans, kept(AGENTS, AGENTS)]  # whose samples a model has
    views: Annotated[Matrix, scratch(2, AGENTS)]  # every agent's prediction of an arm, and its width


class CABParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of CAB."""

    gamma: Annotated[
        float,
        Meta(ge=0.0, le=LARGEST, description="Samples are passed on where widths are below γ/4."),
    ] = 0.2


class CAB(Policy):
    """Plays the arm with the largest sum of prediction and width, averaged over its neighbours.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, noise_scale=0.2, seed=5)
    >>> policy = shoal.make_policy("cab", 6, 3, alpha=0.1)
    >>> trace = shoal.simulate(policy, world, horizon=3_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

    Notes
    -----
    Departs from its source in the width, α √(xᵀA⁻¹x ln(t+1)) as for every policy (docs/algorithms.md).
    """

    name = "cab"
    label = "CAB"
    line_style = LineStyle("#3f8f8a", "H")
    Parameters = CABParameters
    State = CABState

    def _join(self, state: CABState, first: int) -> None:
        start_rows(state.model, 0, state.common.ridge)
        np.fill_diagonal(state.learned_from, True)

    def _problem(self, state: CABState) -> str:
        if not state.learned_from.diagonal().all():
            return "learned_from leaves out an agent's own samples"
        return super()._problem(state) or problem(state.model, state.common.ridge)

    def _pool(self, agent: int) -> Booleans:
        return np.array(self.state.learned_from[agent])

    def _pooled_estimate(self, agent: int) -> Vector:
        return np.asarray(self.state.model.theta_hat[agent])


@step("select", CABState)
def select(state: CABState, agent: int, arms: Matrix, t: int) -> int:
    """Average predictions and widths over each arm's neighbours."""
    width, scored = ucb_width(state.common, t), state.common.scored
    predictions, widths = state.views[0], state.views[1]
    choice, highest = 0, -np.inf
    for k in range(arms.shape[0]):
        look(state.model, arms[k], width, state.views)
        count, mean, bonus = 0, 0.0, 0.0
        for other in range(predictions.shape[0]):
            if abs(predictions[agent] - predictions[other]) <= widths[agent] + widths[other]:
                count += 1
                mean += predictions[other]
                bonus += widths[other]
        mean /= count
        bonus /= count
        if k < scored.shape[1]:
            scored[0, k] = mean
            scored[1, k] = bonus
        if mean + bonus > highest:
            highest = mean + bonus
            choice = k
    return choice


@step("observe", CABState)
def observe(state: CABState, agent: int, x: Vector, reward: float, t: int) -> None:
    add_sample(state.local, agent, x, reward)
    look(state.model, x, ucb_width(state.common, t), state.views)
    predictions, widths, sure = state.views[0], state.views[1], state.gamma / 4.0
    for other in range(predictions.shape[0]):
        is_near = abs(predictions[agent] - predictions[other]) <= widths[agent] + widths[other]
        if other == agent or (is_near and widths[agent] < sure and widths[other] < sure):
            add_sample(state.model, other, x, reward)
            state.learned_from[other, agent] = True
            state.common.cost[0] += other != agent


@compiled
def look(model: Statistics, x: Vector, width: float, views: Matrix) -> None:
    """Write every agent's prediction of an arm, and its width, into the rows of `views`."""
    d = x.shape[0]
    for agent in range(views.shape[1]):
        A_inv, theta = model.A_inv[agent], model.theta_hat[agent]
        mean = 0.0
        variance = 0.0
        for row in range(d):
            mean += theta[row] * x[row]
            # xᵀ A⁻¹ x = Σ x_r (A⁻¹_rr x_r + 2 Σ_{c<r} A⁻¹_rc x_c)
            off_diagonal = 0.0
            for column in range(row):
                off_diagonal += A_inv[row, column] * x[column]
            variance += x[row] * (A_inv[row, row] * x[row] + 2.0 * off_diagonal)
        views[0, agent] = mean
        views[1, agent] = width * math.sqrt(max(variance, 0.0))
