"""LinTS: Thompson sampling for each agent alone (Agrawal and Goyal 2013).

Every agent keeps its own ridge regression, draws a parameter from what it believes and plays its best arm.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from shoal.core.fields import AGENTS, rows
from shoal.core.policy.base import Policy
from shoal.core.policy.exploring import SAMPLE, choose_in_row
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics, add_sample
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Matrix, Vector


class LinTSState(NamedTuple):
    """State of LinTS."""

    common: Common
    local: Annotated[Statistics, rows(AGENTS)]


class LinTS(Policy):
    """Plays `argmax_k θ̃·x_k` with `θ̃ ~ N(θ̂_i, α² A_i⁻¹)`: Independent with `exploration="sample"`.

    Examples
    --------
    >>> import numpy as np, shoal
    >>> policy = shoal.make_policy("lints", 2, 2, alpha=0.1, seed=0)
    >>> arms = np.eye(2)
    >>> policy.update(0, arms[1], reward=1.0)
    >>> policy.select(0, arms)
    1
    """

    name = "lints"
    label = "LinTS"
    line_style = LineStyle("#5c5c5c", "v")
    State = LinTSState

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "explores": SAMPLE}

    def _pool(self, agent: int) -> Booleans:
        return np.asarray(np.arange(self.n_agents) == agent)

    def _pooled_estimate(self, agent: int) -> Vector:
        return np.asarray(self.state.local.theta_hat[agent])


@step("select", LinTSState)
def select(state: LinTSState, agent: int, arms: Matrix, t: int) -> int:
    return choose_in_row(state.common, state.local, agent, arms, agent, t, 1.0)


@step("observe", LinTSState)
def observe(state: LinTSState, agent: int, x: Vector, reward: float, t: int) -> None:
    add_sample(state.local, agent, x, reward)
