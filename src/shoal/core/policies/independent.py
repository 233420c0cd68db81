"""LinUCB for each agent alone (Li et al. 2010): what sharing has to beat.

Every agent keeps its own ridge regression and plays the arm with the largest upper confidence bound.
"""

from typing import Annotated, NamedTuple

import numpy as np

from shoal.core.fields import AGENTS, rows
from shoal.core.policy.living import LivePolicy
from shoal.core.policy.parameters import Exploring, Rewards
from shoal.core.policy.steps import LiveCommon, select_alone, step
from shoal.core.statistics import Statistics, add_sample
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector


class IndependentParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of Independent."""

    rewards: Rewards = "real"


class IndependentState(NamedTuple):
    """State of Independent."""

    common: LiveCommon
    local: Annotated[Statistics, rows(AGENTS)]


class Independent(LivePolicy):
    """One LinUCB per agent, nothing shared.

    Chooses `argmax_k θ̂_i·x_k + α √(x_kᵀ A_i⁻¹ x_k ln(t+1))`.

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

    def _withdraw(self, agent: int) -> None:
        pass

    def _lending_changed(self, agent: int) -> None:
        pass

    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        pass


@step("select", IndependentState)
def select(state: IndependentState, agent: int, arms: Matrix, t: int) -> int:
    return select_alone(state.common, state.local, agent, arms, t)


@step("observe", IndependentState)
def observe(state: IndependentState, agent: int, x: Vector, reward: float, t: int) -> None:
    add_sample(state.local, agent, x, reward)


@step("revise", IndependentState)
def revise(state: IndependentState, agent: int, t: int) -> None:
    pass
