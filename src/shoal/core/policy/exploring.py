"""How a policy explores: by upper confidence bounds, or by draws from what it believes.

A policy whose parameters are `Exploring` leaves its choice to the two functions here: they take the estimate
and the factor of the pool that the agent uses.
"""

import math
from collections.abc import Mapping
from typing import Any

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import back_substitute
from shoal.core.kernels.random import draw_normals
from shoal.core.kernels.ucb import best_arm_of_draw, best_arm_of_width
from shoal.core.statistics import Statistics, best_arm_of_row, factor_row
from shoal.core.types import Matrix, Vector

UCB, SAMPLE, AS_RELEASED = range(3)
"""Values of `common.explores`."""


def explores(parameters: Mapping[str, Any]) -> int:
    """What `common.explores` is under the given parameters."""
    if parameters.get("exploration") == "sample":
        return SAMPLE
    return AS_RELEASED if parameters.get("bonus") == "as-released" else UCB


def draws_arms(policy: Any) -> bool:
    """Whether a built-in policy's choice is a draw: by `epsilon`, or from what it believes."""
    common = getattr(getattr(policy, "state", None), "common", None)
    return common is not None and (common.epsilon > 0.0 or common.explores == SAMPLE)


@inlined
def ucb_width(common: Any, t: int) -> float:
    """`α √ln(t+1)`, which every bonus is multiplied by."""
    return float(common.alpha * math.sqrt(math.log(t + 1.0)))


@compiled
def choose_in_row(
    common: Any, stats: Statistics, row: int, arms: Matrix, agent: int, t: int, scale: float
) -> int:
    """The arm that `agent` plays in round `t` on one row of statistics; `scale` multiplies α."""
    if common.explores == UCB:
        return best_arm_of_row(stats, row, arms, scale * ucb_width(common, t), common.scored)
    factor_row(stats, row)
    d = stats.b.shape[1]
    L, z = stats.scratch[:d], stats.scratch[3 * d]
    return choose_by(common, stats.theta_hat[row], L, arms, agent, t, z, scale)


@compiled
def choose_by(
    common: Any, theta_hat: Vector, L: Matrix, arms: Matrix, agent: int, t: int, z: Vector, scale: float
) -> int:
    """The same on an estimate and the factor `A = L Lᵀ`; `z` (d,) is scratch.

    A draw is `θ̂ + α L⁻ᵀz` with normal z, that is `N(θ̂, α² A⁻¹)`; it belongs to the agent's round.
    """
    if common.explores == SAMPLE:
        draw_normals(common.rng, t, agent, z)
        back_substitute(L, z, z)
        return best_arm_of_draw(theta_hat, z, arms, scale * common.alpha, common.scored)
    rootless = common.explores == AS_RELEASED
    return best_arm_of_width(theta_hat, L, arms, scale * ucb_width(common, t), rootless, z, common.scored)
