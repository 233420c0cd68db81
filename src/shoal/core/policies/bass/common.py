"""What the two engines of BASS share: the log of cuts, radii, the exact test of a pair, the choice."""

import math
from typing import Any

from shoal.core.fields import Size
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_row, cholesky, dot, solve_cholesky, solve_lower, unpack
from shoal.core.kernels.separation import ILL_CONDITIONED, search, squared_width
from shoal.core.kernels.twofold import add_scaled, add_to_diagonal, cholesky_twofold
from shoal.core.kernels.ucb import best_arm_of_factor
from shoal.core.policy.clicks import weight_of_pending
from shoal.core.policy.cuts import Cuts, note
from shoal.core.policy.exploring import UCB, choose_by, ucb_width
from shoal.core.statistics import Statistics
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST, SMALLEST

SUBTRACTABLE = 2.0**12
"""Largest entry of agents' sums, over the ridge, with which they may be subtracted from a sum of 64: the
rounding stays below 1e-8 of the ridge, which the pooled A exceeds in every direction."""


ESTIMATED = Size("estimated")
"""Agents whose noise is estimated: all or none."""
UNRESOLVED = 1e-8
"""Share of Σ y² that rounding may have taken from a sum of squared errors: θ̂ is off, in the norm of A, by up
to 1e-8 times the size of the rewards."""


@compiled
def noise_limit(local: Statistics, agent: int, ridge: float, squares: float, quantile: float) -> float:
    """A limit of the scale of an agent's noise, from its own n samples; LARGEST if there are none.

    `Σ y² − b·θ̂ − λ‖θ̂‖²`, the sum of squared errors, exceeds R² times a χ² with n − d degrees of freedom, and
    Σ y² one with n: the lower of the two limits is taken. `quantile` is the level, as one of the normal
    distribution.
    """
    n, d = local.pulls[agent], local.b.shape[1]
    fitted = 0.0
    for m in range(d):
        fitted += (local.b[agent, m] + ridge * local.theta_hat[agent, m]) * local.theta_hat[agent, m]
    error = max(squares - fitted, 0.0) + UNRESOLVED * squares
    limit = min(over_quantile(error, n - d, quantile), over_quantile(squares, n, quantile))
    return max(math.sqrt(limit), SMALLEST)


@compiled
def over_quantile(total: float, degrees: int, quantile: float) -> float:
    """A sum of squares over a quantile of χ² by Wilson and Hilferty; LARGEST² where that is not positive."""
    if degrees < 1:
        return LARGEST**2
    spread = 2.0 / (9.0 * degrees)
    root = 1.0 - spread + quantile * math.sqrt(spread)
    return min(total / (degrees * root**3), LARGEST**2) if root > 0.0 else LARGEST**2


@compiled
def noise_limits(state: Any, agents: Integers, limits: Vector) -> None:
    """Compute the upper limits of the noise of some agents."""
    for k in range(agents.shape[0]):
        square = state.squares[agents[k]]
        limits[k] = noise_limit(state.local, agents[k], state.common.ridge, square, state.quantile)


@inlined
def scaled_radius(state: Any, agent: int) -> float:
    """c_i, which is β_i or its square."""
    noise_scale = state.noise_scale
    if math.isnan(noise_scale):
        square = state.squares[agent]
        noise_scale = noise_limit(state.local, agent, state.common.ridge, square, state.quantile)
    grown_sq = squared_width(noise_scale, state.confidence, state.local.logdet_A[agent])
    grown = math.sqrt(grown_sq)
    # The binomial, not the square of a sum: with S = 0 it is grown_sq to the bit.
    beta_sq = grown_sq + (2.0 * grown + state.offset) * state.offset
    return float(beta_sq if state.squared else grown + state.offset)


@inlined
def are_separated(state: Any, agent: int, other: int) -> bool:
    """The exact test; of two that are not separated a common point is left in `scratch.test`, or nan."""
    local = state.local
    _, _, separated = search(
        local.theta_hat[agent], local.A[agent], local.tail[agent], state.radius[agent],
        local.theta_hat[other], local.A[other], local.tail[other], state.radius[other],
        state.threshold, True, False, state.scratch.test,
    )  # fmt: skip
    return separated


@compiled
def judge_all(state: Any, agent: int, separated: Booleans) -> None:
    """Say of every other agent whether the test separates it from this one."""
    for other in range(separated.shape[0]):
        if other != agent:
            separated[other] = are_separated(state, agent, other)


@compiled
def measure_pairs(state: Any, agent: int, others: Integers, statistics: Vector) -> None:
    """Compute the statistic of the test, max f, of an agent and each of some others."""
    local = state.local
    for k in range(others.shape[0]):
        other = others[k]
        statistics[k], _, _ = search(
            local.theta_hat[agent], local.A[agent], local.tail[agent], state.radius[agent],
            local.theta_hat[other], local.A[other], local.tail[other], state.radius[other],
            state.threshold, False, True, state.scratch.test,
        )  # fmt: skip


@compiled
def log_cut(cuts: Cuts, degree: Integers, active: Booleans, agent: int, other: int, t: int) -> None:
    """Write a cut into the log, and count one neighbour less for both."""
    note(cuts, agent, other, t)
    degree[agent] -= active[other]
    degree[other] -= active[agent]


@inlined
def factor_sums(state: Any) -> bool:
    """Factor `ridge·I` plus the sums in `scratch.total` into `scratch.L`; False if it is ill-conditioned."""
    work = state.scratch
    unpack(work.total, state.common.ridge, work.L)
    return cholesky(work.L, work.L) >= ILL_CONDITIONED


@compiled
def factor_twofold(local: Any, members: Integers, ridge: float, L: Matrix, tail: Matrix) -> None:
    """Factor the pooled A of some agents, −1 beyond the last, from sums with twice the digits."""
    L[:] = 0.0
    tail[:] = 0.0
    add_to_diagonal(ridge, L, tail)
    for k in range(members.shape[0]):
        j = members[k]
        if j < 0:
            break
        add_scaled(1.0, local.A[j], local.tail[j], L, tail)
        add_to_diagonal(-ridge, L, tail)
    cholesky_twofold(L, tail)


@inlined
def moments_in_pool(state: Any, x: Vector) -> tuple[float, float]:
    """Mean and variance of `x·θ` by the pool whose factor and sums are in the scratch."""
    work, z, y = state.scratch, state.scratch.test.vectors[0], state.scratch.test.vectors[1]
    solve_lower(work.L, x, z)
    solve_lower(work.L, work.total[-x.shape[0] :], y)
    return dot(z, y), dot(z, z)


@inlined
def choose_from_pool(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """LinUCB on the pool whose factor and sums are in the scratch.

    What the agent itself waits for narrows the width, and leaves the estimate as it is.
    """
    work, common, pending = state.scratch, state.common, state.common.pending
    b, is_waiting = work.total[-arms.shape[1] :], pending.counts[agent] > 0
    if common.explores == UCB and not is_waiting:
        return best_arm_of_factor(work.L, b, arms, ucb_width(common, t), work.lanes, common.scored)
    theta_hat = work.test.vectors[0]
    solve_cholesky(work.L, b, theta_hat)
    if is_waiting:
        weight = weight_of_pending(common, state.local, agent)
        add_row(weight, pending.sums[agent], work.total[: pending.sums.shape[1]])
        unpack(work.total, common.ridge, work.L)
        cholesky(work.L, work.L)
    return choose_by(common, theta_hat, work.L, arms, agent, t, work.test.vectors[1])
