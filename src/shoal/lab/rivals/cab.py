"""CAB: whom an agent learns with depends on the arm (Gentile, Li, Kar, Karatzoglou, Zappella and Etrue 2017).

For every arm the agents whose predictions of it cannot be told apart from one's own are neighbours, and their
predictions are averaged. Once an agent is sure enough of an arm, its samples also go to those neighbours.
"""

from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, DIM, kept, rows, scratch, setting
from shoal.core.jit.compiled import compiled
from shoal.core.kernels.lanes import WIDTH, add, larger, load, multiply, multiply_add, root, splat, store
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
    lanes: Annotated[Matrix, scratch(DIM, WIDTH)]  # sixteen arms side by side
    predictions: Annotated[Matrix, scratch(AGENTS, WIDTH)]  # every agent's, of these arms
    widths: Annotated[Matrix, scratch(AGENTS, WIDTH)]


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
    predictions, widths = state.predictions, state.widths
    choice, highest = 0, -np.inf
    for first in range(0, arms.shape[0], WIDTH):
        for lane in range(min(WIDTH, arms.shape[0] - first)):
            for m in range(arms.shape[1]):
                state.lanes[m, lane] = arms[first + lane, m]
        look(state.model, state.lanes, width, predictions, widths)
        for lane in range(min(WIDTH, arms.shape[0] - first)):
            k, own, bonus = first + lane, predictions[agent, lane], widths[agent, lane]
            count, sum_of_means, sum_of_widths = 0, 0.0, 0.0
            for other in range(predictions.shape[0]):
                if abs(own - predictions[other, lane]) <= bonus + widths[other, lane]:
                    count += 1
                    sum_of_means += predictions[other, lane]
                    sum_of_widths += widths[other, lane]
            if k < scored.shape[1]:
                scored[0, k] = sum_of_means / count
                scored[1, k] = sum_of_widths / count
            if (sum_of_means + sum_of_widths) / count > highest:
                highest = (sum_of_means + sum_of_widths) / count
                choice = k
    return choice


@step("observe", CABState)
def observe(state: CABState, agent: int, x: Vector, reward: float, t: int) -> None:
    add_sample(state.local, agent, x, reward)
    for m in range(x.shape[0]):
        state.lanes[m, 0] = x[m]
    look(state.model, state.lanes, ucb_width(state.common, t), state.predictions, state.widths)
    predictions, widths, sure = state.predictions[:, 0], state.widths[:, 0], state.gamma / 4.0
    for other in range(predictions.shape[0]):
        is_near = abs(predictions[agent] - predictions[other]) <= widths[agent] + widths[other]
        if other == agent or (is_near and widths[agent] < sure and widths[other] < sure):
            add_sample(state.model, other, x, reward)
            state.learned_from[other, agent] = True
            state.common.cost[0] += other != agent


@compiled
def look(model: Statistics, arms: Matrix, width: float, predictions: Matrix, widths: Matrix) -> None:
    """Write every agent's predictions of sixteen arms, side by side, and their widths."""
    for agent in range(predictions.shape[0]):
        A_inv, theta = model.A_inv[agent], model.theta_hat[agent]
        mean, variance = splat(0.0), splat(0.0)
        for row in range(theta.shape[0]):
            x = load(arms, row)
            mean = multiply_add(splat(theta[row]), x, mean)
            # xᵀ A⁻¹ x = Σ x_r (A⁻¹_rr x_r + 2 Σ_{c<r} A⁻¹_rc x_c)
            off_diagonal = splat(0.0)
            for column in range(row):
                off_diagonal = multiply_add(splat(A_inv[row, column]), load(arms, column), off_diagonal)
            own = multiply_add(splat(A_inv[row, row]), x, add(off_diagonal, off_diagonal))
            variance = multiply_add(x, own, variance)
        store(predictions, agent, mean)
        store(widths, agent, multiply(splat(width), root(larger(variance, splat(0.0)))))
