"""What the two engines of BASS share: the log of cuts, radii, the exact test of a pair, the choice."""

import math
from typing import Any

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_row, cholesky, dot, solve_cholesky, solve_lower, unpack
from shoal.core.kernels.separation import ILL_CONDITIONED, search, squared_width
from shoal.core.kernels.twofold import add_scaled, add_to_diagonal, cholesky_twofold
from shoal.core.kernels.ucb import best_arm_of_factor
from shoal.core.policy.clicks import weight_of_pending
from shoal.core.policy.cuts import Cuts, note
from shoal.core.policy.exploring import UCB, choose_by, ucb_width
from shoal.core.policy.units import (
    UNRESOLVED,
    errors_of,
    length_of,
    noise_share,
    pending_length,
    ridge_of,
    scale_of,
    take_measured,
)
from shoal.core.statistics import Statistics, add_sample
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST, SMALLEST

SUBTRACTABLE = 2.0**12
"""Largest entry of agents' sums, over the ridge, with which they may be subtracted from a sum of 64: the
rounding stays below 1e-8 of the ridge, which the pooled A exceeds in every direction."""


ERRORS, SQUARES, LENGTHS, PULLS, SEEN = range(5)
"""Entries of `seen`: squared errors, rewards and lengths of arms, and samples, of who lends; their number."""


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
        limits[k] = noise_limit(state.local, agents[k], ridge_of(state, agents[k]), square, state.quantile)


@inlined
def take_counted(state: Any, agent: int, x: Vector, reward: float) -> float:
    """`take_sample`, counted in what is seen where units are learned."""
    if not math.isnan(state.noise_scale):
        return add_sample(state.local, agent, x, reward)
    count(state, agent, -1.0)
    growth = take_measured(state, agent, x, reward)
    count(state, agent, 1.0)
    return growth


@inlined
def count(state: Any, agent: int, sign: float) -> None:
    """Let an agent count in what is seen, or no longer; who does not lend never does."""
    if state.common.lends[agent]:
        state.seen[ERRORS] = max(state.seen[ERRORS] + sign * errors_of(state, agent), 0.0)
        state.seen[SQUARES] = max(state.seen[SQUARES] + sign * state.squares[agent], 0.0)
        state.seen[LENGTHS] = max(state.seen[LENGTHS] + sign * length_of(state, agent), 0.0)
        state.seen[PULLS] += sign * state.local.pulls[agent]


@compiled
def count_all(state: Any) -> None:
    """Count all agents anew."""
    state.seen[:] = 0.0
    for agent in range(state.lengths.shape[0]):
        count(state, agent, 1.0)


@inlined
def units_of_pool(state: Any, agent: int) -> tuple[float, float]:
    """Ridge of a pool, and what its widths are multiplied by: of all who lend, and of the agent."""
    if not math.isnan(state.noise_scale):
        return state.common.ridge, 1.0  # as in the paper, where α knows the noise
    errors, squares = state.seen[ERRORS], state.seen[SQUARES]
    lengths, pulls = state.seen[LENGTHS], state.seen[PULLS]
    if not state.common.lends[agent]:
        errors += errors_of(state, agent)
        squares += state.squares[agent]
        lengths += length_of(state, agent)
        pulls += state.local.pulls[agent]
    ridge = state.common.ridge
    if lengths > 0.0:
        ridge *= lengths / pulls * noise_share(errors, squares, pulls)
    elif state.common.pending.counts[agent] > 0:
        ridge *= pending_length(state, agent)
    return float(ridge), scale_of(errors, pulls)


@inlined
def scaled_radius(state: Any, agent: int) -> float:
    """c_i: β_i or its square. Where units are learned, both are squares of rewards: it is R_i β_i or β_i²."""
    noise_scale, confidence, offset = state.noise_scale, state.confidence, state.offset
    unit = 1.0
    if math.isnan(noise_scale):
        square, ridge, local = state.squares[agent], ridge_of(state, agent), state.local
        noise_scale = noise_limit(local, agent, ridge, square, state.quantile)
        confidence -= local.b.shape[1] * math.log(ridge / state.common.ridge)
        if length_of(state, agent) > 0.0:  # S is in units of rewards over those of arms
            offset *= math.sqrt(state.lengths[agent] / length_of(state, agent) * square)
        unit = noise_scale
    grown_sq = squared_width(noise_scale, confidence, state.local.logdet_A[agent])
    grown = math.sqrt(grown_sq)
    # The binomial, not the square of a sum: with S = 0 it is grown_sq to the bit.
    beta_sq = grown_sq + (2.0 * grown + offset) * offset
    return float(beta_sq if state.squared else unit * (grown + offset))


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
def factor_sums(state: Any, ridge: float) -> bool:
    """Factor `ridge·I` plus the sums in `scratch.total` into `scratch.L`; False if it is ill-conditioned."""
    work = state.scratch
    unpack(work.total, ridge, work.L)
    return cholesky(work.L, work.L) >= ILL_CONDITIONED


@compiled
def factor_twofold(state: Any, members: Integers, ridge: float, L: Matrix, tail: Matrix) -> None:
    """Factor the pooled A of some agents, −1 beyond the last, from sums with twice the digits."""
    L[:] = 0.0
    tail[:] = 0.0
    add_to_diagonal(ridge, L, tail)
    for k in range(members.shape[0]):
        j = members[k]
        if j < 0:
            break
        add_scaled(1.0, state.local.A[j], state.local.tail[j], L, tail)
        add_to_diagonal(-ridge_of(state, j), L, tail)
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
    ridge, scale = units_of_pool(state, agent)
    b, is_waiting = work.total[-arms.shape[1] :], pending.counts[agent] > 0
    if common.explores == UCB and not is_waiting:
        return best_arm_of_factor(work.L, b, arms, scale * ucb_width(common, t), work.lanes, common.scored)
    theta_hat = work.test.vectors[0]
    solve_cholesky(work.L, b, theta_hat)
    if is_waiting:
        weight = weight_of_pending(common, state.local, agent)
        add_row(weight, pending.sums[agent], work.total[: pending.sums.shape[1]])
        unpack(work.total, ridge, work.L)
        cholesky(work.L, work.L)
    return choose_by(common, theta_hat, work.L, arms, agent, t, work.test.vectors[1], scale)
