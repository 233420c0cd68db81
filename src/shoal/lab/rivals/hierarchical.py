"""HierTS and HierBayesUCB: agents scatter around one mean that is learned with them (Hong et al. 2022).

`θ_i ~ N(μ, κσ² I)` and `μ ~ N(0, σ²/λ I)`: what the others' samples tell of μ is the prior of an agent's own
parameter. This is ClusterMixture with a single cluster, a given scatter and, for HierTS, a draw: messages and
sums are the same functions.
"""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, DIM, PACKED, derived, rows, scratch, setting
from shoal.core.jit.compiled import compiled
from shoal.core.kernels.linalg import add_row, back_substitute
from shoal.core.kernels.ucb import best_arm_of_width
from shoal.core.policies.mixture.kernels import factor_packed, soften_packed
from shoal.core.policy.base import Policy
from shoal.core.policy.exploring import SAMPLE, choose_by
from shoal.core.policy.parameters import Parameters
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics, add_own, add_sample
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Matrix, Tensor, Vector


class HierState(NamedTuple):
    """State of HierTS and HierBayesUCB."""

    common: Common
    scatter: Annotated[float, setting()]
    fixed: Annotated[bool, setting()]  # whether the width is α in every round
    local: Annotated[Statistics, rows(AGENTS)]
    lent: Annotated[Matrix, derived(AGENTS, PACKED)]  # what each agent says about the mean
    total: Annotated[Vector, scratch(PACKED)]
    L: Annotated[Matrix, scratch(DIM, DIM)]
    y: Annotated[Matrix, scratch(2, DIM)]
    inverse: Annotated[Tensor, scratch(2, DIM, DIM)]


class HierTSParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of HierTS."""

    scatter: Annotated[
        float,
        Meta(ge=0.0, le=1e6, description="κ, variance of agents around their mean, over the noise's."),
    ] = 0.3


class HierUCBParameters(HierTSParameters, frozen=True, kw_only=True):
    """Parameters of HierUCB."""

    bonus: Annotated[
        Literal["own", "ucb"], Meta(description="α √(xᵀA⁻¹x), or with ln(t+1) under the root.")
    ] = "own"


class HierTS(Policy):
    """Draws `θ̃ ~ N(A⁻¹b, α² A⁻¹)`, A and b of the agent's posterior, and plays the best arm for it.

    Examples
    --------
    >>> import shoal
    >>> policy = shoal.make_policy("hier_ts", 3, 2, scatter=0.1, seed=0)
    >>> policy.update(0, [0.0, 1.0], reward=2.0)
    >>> policy.estimate(1).round(2)  # which has seen nothing
    array([0.  , 0.95])

    Notes
    -----
    Departs from its source: one draw instead of two, with the same distribution (docs/algorithms.md).
    """

    name = "hier_ts"
    label = "HierTS"
    line_style = LineStyle("#8a5a00", "P")
    Parameters: ClassVar[type[HierTSParameters]] = HierTSParameters
    State = HierState

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "explores": SAMPLE, "fixed": False}

    def _derive(self, state: HierState) -> None:
        for agent in range(len(state.lent)):
            lend(self.pinned_state(state), agent)

    def _pool(self, agent: int) -> Booleans:
        return np.ones(self.n_agents, dtype=np.bool_)

    def _pooled_estimate(self, agent: int) -> Vector:
        believe(self.pinned_state(), agent)
        return np.array(self.state.y[0])


class HierUCB(HierTS):
    """Plays the arm with the largest `x·A⁻¹b + α √(xᵀA⁻¹x)`, A and b of the agent's posterior.

    Examples
    --------
    >>> import shoal
    >>> policy = shoal.make_policy("hier_ucb", 3, 2, scatter=0.0)
    >>> policy.update(0, [0.0, 1.0], reward=2.0)
    >>> policy.select(1, [[1.0, 0.0], [0.0, 1.0]])
    1
    """

    name = "hier_ucb"
    label = "HierBayesUCB"
    line_style = LineStyle("#b06000", "p")
    Parameters = HierUCBParameters

    def _settings(self) -> dict[str, Any]:
        return {**Policy._settings(self), "fixed": self._parameters.bonus == "own"}


@step("select", HierState)
def select(state: HierState, agent: int, arms: Matrix, t: int) -> int:
    believe(state, agent)
    common, L, theta_hat, z = state.common, state.L, state.y[0], state.y[1]
    if state.fixed:
        return best_arm_of_width(theta_hat, L, arms, common.alpha, False, z, common.scored)
    return choose_by(common, theta_hat, L, arms, agent, t, z, 1.0)


@step("observe", HierState)
def observe(state: HierState, agent: int, x: Vector, reward: float, t: int) -> None:
    add_sample(state.local, agent, x, reward)
    lend(state, agent)
    state.common.cost[0] += state.lent.shape[0] - 1


@compiled
def lend(state: HierState, agent: int) -> None:
    """Compute what an agent says about the mean: `(I + κS)⁻¹S` and `(I + κS)⁻¹b`."""
    lent = state.lent[agent]
    lent[:] = 0.0
    add_own(state.local, agent, state.common.ridge, lent)
    soften_packed(lent, 0.0, state.scatter, lent, state.L, state.y[0], state.inverse)


@compiled
def believe(state: HierState, agent: int) -> None:
    """Leave estimate and factor of the agent's posterior in `y[0]` and `L`.

    What the others tell of the mean tells, softened once more, of the agent; its own samples count in full.
    """
    total, L, y = state.total, state.L, state.y[0]
    total[:] = 0.0
    for j in range(state.lent.shape[0]):
        if j != agent:
            add_row(1.0, state.lent[j], total)
    soften_packed(total, state.common.ridge, state.scatter, total, L, y, state.inverse)
    add_own(state.local, agent, state.common.ridge, total)
    factor_packed(total, 0.0, L, y)
    back_substitute(L, y, y)
