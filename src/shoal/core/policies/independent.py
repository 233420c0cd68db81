"""LinUCB for each agent alone (Li et al. 2010): what sharing has to beat.

Every agent keeps its own ridge regression and plays the arm with the largest upper confidence bound.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, kept, rows, setting
from shoal.core.policy.parameters import Exploring, Rewards
from shoal.core.policy.steps import LiveCommon, select_alone, step
from shoal.core.policy.units import ESTIMATED, UnitPolicy, take_sample, units_of_own
from shoal.core.statistics import Statistics
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST, SMALLEST


class IndependentParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of Independent."""

    noise_scale: Annotated[
        Annotated[float, Meta(ge=SMALLEST, le=LARGEST)] | None,
        Meta(
            description="Noise, which `alpha` is multiplied by. None: of each agent, learned from its own "
            "samples; then arms or rewards times a factor make no difference (docs/algorithms.md)."
        ),
    ] = 1.0
    rewards: Rewards = "real"


class IndependentState(NamedTuple):
    """State of Independent."""

    common: LiveCommon
    noise_scale: Annotated[float, setting()]  # nan: learned for each agent
    local: Annotated[Statistics, rows(AGENTS)]
    squares: Annotated[Vector, kept(ESTIMATED, low=0.0)]  # see `shoal.core.policy.units`
    lengths: Annotated[Vector, kept(ESTIMATED, low=0.0)]


class Independent(UnitPolicy):
    """One LinUCB per agent, nothing shared.

    Chooses `argmax_k θ̂_i·x_k + α R √(x_kᵀ A_i⁻¹ x_k ln(t+1))`, with R the `noise_scale`.

    Examples
    --------
    >>> import numpy as np, shoal
    >>> policy = shoal.Independent(n_agents=2, dim=2, alpha=0.5)
    >>> arms = np.eye(2)
    >>> policy.update(0, arms[1], reward=1.0)
    >>> policy.select(0, arms)
    1
    """

    name = "independent"
    label = "Ind"
    line_style = LineStyle("#949494", "x")
    in_paper = True
    Parameters = IndependentParameters
    State = IndependentState

    @property
    def noise_scales(self) -> Vector:
        """The noise of each agent, shape (N,): `noise_scale`, or what is learned, inf without samples."""
        with self.lock:
            known = [self._own_scale(agent) for agent in range(self.n_agents)]
        return np.where((self.pulls > 0) | (not self._learns_units), known, np.inf)

    def _edges(self) -> Booleans:
        return np.zeros((self.n_agents, self.n_agents), dtype=np.bool_)

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """None, however many agents there are."""
        return 0, 0

    def _pool(self, agent: int) -> Booleans:
        return np.asarray(np.arange(self.n_agents) == agent)

    def _pooled_estimate(self, agent: int) -> Vector:
        return np.asarray(self.state.local.theta_hat[agent])

    # Nobody but the agent itself has ever used its samples.

    def _end_edges(self, agent: int) -> None:
        pass


@step("own_units", IndependentState)
def own_units(state: IndependentState, agent: int) -> tuple[float, float]:
    return units_of_own(state, agent) if math.isnan(state.noise_scale) else (state.noise_scale, 1.0)


@step("select", IndependentState)
def select(state: IndependentState, agent: int, arms: Matrix, t: int) -> int:
    return select_alone(state.common, state.local, agent, arms, t, own_units(state, agent))


@step("observe", IndependentState)
def observe(state: IndependentState, agent: int, x: Vector, reward: float, t: int) -> None:
    take_sample(state, agent, x, reward)


@step("revise", IndependentState)
def revise(state: IndependentState, agent: int, t: int) -> None:
    pass
