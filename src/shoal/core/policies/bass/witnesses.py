"""BASS for up to a few thousand agents: of each pair a point is kept that both share, and checked in O(d)."""

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from shoal.core.fields import AGENTS, BLOCKS, DIM, PACKED, derived, kept, rows, scratch, setting
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.bits import FULL, WORD, has_bit, members, set_bit
from shoal.core.kernels.graphs import distance
from shoal.core.kernels.linalg import add_packed, dot, sum_packed, trace
from shoal.core.kernels.separation import (
    APART,
    EPS,
    SAFETY,
    TOGETHER,
    UNDECIDED,
    ProbeBatch,
    Scratch,
    Z,
    add_rounding,
    excess_at,
    excess_grows,
    probe_many,
    safe_limit,
)
from shoal.core.kernels.separation import LANES as PAIRS
from shoal.core.kernels.ucb import LANES
from shoal.core.policies.bass.common import (
    SEEN,
    are_separated,
    choose_from_pool,
    factor_sums,
    factor_twofold,
    log_cut,
    moments_in_pool,
    scaled_radius,
    take_counted,
    units_of_pool,
)
from shoal.core.policy.cuts import Cuts, count_neighbors, cut_newcomers, isolate, problem_of_sets
from shoal.core.policy.cuts import rejoin as join_again
from shoal.core.policy.steps import LiveCommon, step
from shoal.core.policy.units import ESTIMATED, ridge_at, ridge_of, units_of_own
from shoal.core.statistics import (
    REFRESH_EVERY,
    Statistics,
    add_own,
    amend_packed,
    is_steep,
    packed_problem,
)
from shoal.core.types import Booleans, Integers, Matrix, Tensor, Vector

OUTLIER = 1000.0
"""After a sample this surprising for the ellipsoid, the distances to the witnesses are computed afresh."""


class WitnessScratch(NamedTuple):
    """Work space."""

    total: Annotated[Vector, scratch(PACKED)]  # packed sums of a pool
    L: Annotated[Matrix, scratch(DIM, DIM)]  # its factor
    lanes: Annotated[Matrix, scratch(DIM + 2, LANES)]  # for the scores
    rows: Annotated[Matrix, scratch(DIM, AGENTS)]  # offsets of points
    chosen: Annotated[Integers, scratch(PAIRS + WORD)]  # indices of agents
    members: Annotated[Integers, scratch(AGENTS + 1)]  # of a pool
    test: Scratch
    batch: ProbeBatch


class WitnessState(NamedTuple):
    """State of BASS with witnesses."""

    common: LiveCommon
    noise_scale: Annotated[float, setting()]  # nan: estimated for each agent
    quantile: Annotated[float, setting()]  # of the normal distribution, at the level of these estimates
    offset: Annotated[float, setting()]  # √ridge · S, the part of β that does not grow
    confidence: Annotated[float, setting()]  # 2 ln(1/δ) − d ln(ridge)
    squared: Annotated[bool, setting()]  # whether the test uses β² or β
    threshold: Annotated[float, setting()]  # γ²/4
    local: Annotated[Statistics, rows(AGENTS)]
    squares: Annotated[Vector, kept(ESTIMATED, low=0.0)]  # Σ y² of each agent
    lengths: Annotated[Vector, kept(ESTIMATED, low=0.0)]  # squared: the units of its ridge
    seen: Annotated[Vector, kept(SEEN, low=0.0)]  # sums over who lends: see `common`
    lent: Annotated[Matrix, kept(AGENTS, PACKED)]  # packed Σ x xᵀ and b of each agent
    blocks: Annotated[Matrix, kept(BLOCKS, PACKED)]  # sums of 64 rows of `lent`
    apart: Annotated[Integers, kept(AGENTS, BLOCKS)]  # sets: whose samples an agent does not use
    cuts: Cuts
    degree: Annotated[Integers, derived(AGENTS)]  # active neighbours
    radius: Annotated[Vector, derived(AGENTS)]  # c_i, which is β_i or its square
    witness: Annotated[Tensor, derived(AGENTS, DIM, AGENTS, nan=True)]
    """Column j of row i is a point in both ellipsoids, or nan."""
    excess: Annotated[Matrix, derived(AGENTS, AGENTS, nan=True)]  # ‖p−θ̂_i‖²_{A_i} of that point
    scratch: WitnessScratch


State = WitnessState


def sizes(dim: int) -> dict[str, int]:
    """Sizes that only this engine's declarations name."""
    return {}


def join(state: WitnessState, handle: Any, first: int) -> None:
    """Initialise the newcomers `first`, `first + 1`, …; `handle` is the state as it is pinned."""
    cut_newcomers(state.apart, state.common.withdrawn, first)
    # The origin is in the ellipsoids of two who have no samples.
    strangers = np.flatnonzero(state.local.pulls)
    for known in (state.witness, state.excess):
        known[:, ..., first:] = known[first:] = 0.0
        known[strangers, ..., first:] = known[first:, ..., strangers] = np.nan
    describe(handle, first, len(state.degree))


def derive(state: WitnessState, handle: Any) -> None:
    """Compute what is not saved."""
    state.degree[:] = count_neighbors(state.apart, state.common.active)
    state.witness[...] = state.excess[...] = np.nan  # the test will find points
    describe(handle, 0, len(state.degree))


def problem(state: WitnessState, ridges: Any) -> str:
    """What is wrong with a loaded state, as a phrase; `ridges` are those of `local`."""
    n = len(state.apart)
    if trouble := problem_of_sets(state.apart, state.cuts):
        return trouble
    if n == 0:
        return ""
    sums, largest = (np.add.reduceat(each, np.arange(0, n, WORD)) for each in (state.lent, abs(state.lent)))
    if (np.abs(state.blocks - sums) > 1e-9 * (largest + state.common.ridge)).any():
        return "blocks are not the sums of lent"
    return packed_problem(state.lent, state.local, ridges, state.common.lends)


def edges(state: WitnessState) -> Booleans:
    """Who uses whose samples, (N, N)."""
    return ~members(state.apart, len(state.apart))


def pool(state: WitnessState, agent: int) -> Booleans:
    """Whose samples an agent uses, (N,)."""
    return ~members(state.apart[agent], len(state.apart))


def withdraw(state: WitnessState, handle: Any, agent: int) -> None:
    """Take an agent's samples, which its own statistics no longer hold, out of everything else."""
    block = agent // WORD
    isolate(state.apart, agent)
    state.lent[agent] = 0.0
    state.blocks[block] = state.lent[block * WORD : (block + 1) * WORD].sum(axis=0)
    forget_points(state, agent)
    describe(handle, agent, agent + 1)


def forget_points(state: WitnessState, agent: int) -> None:
    """Let go of an agent's witnesses at both ends: the next of the two to pull tests the pair."""
    for known in (state.witness, state.excess):
        known[agent] = known[..., agent] = np.nan


def amend(state: WitnessState, handle: Any, agent: int, x: Vector, change: float, removes: bool) -> None:
    """Bring up to date what holds a sample of an agent, whose own statistics have been amended."""
    block = agent // WORD
    if state.common.lends[agent]:
        amend_packed(state.lent[agent], x, change, removes, state.local.pulls[agent])
    state.blocks[block] = state.lent[block * WORD : (block + 1) * WORD].sum(axis=0)
    forget_points(state, agent)
    describe(handle, agent, agent + 1)


def relend(state: WitnessState, handle: Any, agent: int) -> None:
    """Sum what an agent lends anew from its own statistics, nothing if it does not."""
    block = agent // WORD
    state.lent[agent] = 0.0
    if state.common.lends[agent]:
        add_own(state.local, agent, ridge_at(state.common.ridge, state.lengths, agent), state.lent[agent])
    state.blocks[block] = state.lent[block * WORD : (block + 1) * WORD].sum(axis=0)


def forget_tests(state: WitnessState, handle: Any) -> None:
    """Let go of all witnesses: `learn` would not notice which of them its agent's ellipsoid leaves."""
    state.witness[...] = state.excess[...] = np.nan


def rejoin(state: WitnessState, agent: int, joined: Booleans) -> None:
    """Let an agent share again with those in `joined`, whose cuts are no longer in the log."""
    join_again(state.apart, agent, joined)
    others = np.flatnonzero(joined)  # tables may have room for more agents than there are
    for known in (state.witness, state.excess):
        known[agent, ..., others] = known[others, ..., agent] = np.nan


@step("own_units", WitnessState)
def own_units(state: WitnessState, agent: int) -> tuple[float, float]:
    return units_of_own(state, agent) if math.isnan(state.noise_scale) else (1.0, 1.0)


@step("select", WitnessState)
def select(state: WitnessState, agent: int, arms: Matrix, t: int) -> int:
    factor_pool(state, agent)
    return choose_from_pool(state, agent, arms, t)


@step("foresee", WitnessState)
def foresee(state: WitnessState, agent: int, x: Vector) -> tuple[float, float]:
    factor_pool(state, agent)
    return moments_in_pool(state, x)


@step("observe", WitnessState)
def observe(state: WitnessState, agent: int, x: Vector, reward: float, t: int) -> None:
    local, work = state.local, state.scratch
    residual = reward - dot(x, local.theta_hat[agent])
    growth = take_in(state, agent, x, reward)
    # A sample moves the agent's ellipsoid, not its witnesses, nor any other agent's distances. So O(N d)
    # brings this row up to date, where testing all pairs anew would take O(N d³).
    points, excess = state.witness[agent], state.excess[agent, : state.radius.shape[0]]
    shrink = residual * residual / growth
    # Increments lose digits where A is ill-conditioned or the sample changed θ̂ by far more than the radius.
    if is_steep(local, agent):
        excess_at(local.theta_hat[agent], local.A[agent], points, work.rows, excess)
        add_rounding(local.A[agent], work.rows, excess)
    elif (
        local.pulls[agent] % REFRESH_EVERY == 0
        or math.isnan(growth)
        or shrink > OUTLIER * state.threshold * state.radius[agent]
    ):
        excess_at(local.theta_hat[agent], local.A[agent], points, work.rows, excess)
    else:
        excess_grows(points, x, reward, shrink, work.rows[0], excess)


@step("learn", WitnessState)
def learn(state: WitnessState, agent: int, x: Vector, reward: float, t: int) -> None:
    take_in(state, agent, x, reward)  # there are no witnesses


@inlined
def take_in(state: WitnessState, agent: int, x: Vector, reward: float) -> float:
    """Add a sample to all sums; `1 + xᵀ A⁻¹ x` with A as it was before, or NaN: see `take_sample`."""
    growth = take_counted(state, agent, x, reward)
    if state.common.lends[agent]:
        add_packed(state.lent[agent], x, reward)
        add_packed(state.blocks[agent // WORD], x, reward)
        state.common.cost[0] += state.degree[agent]
        if state.common.restricted[0] > 0:
            for j in range(state.degree.shape[0]):
                if state.common.active[j] and not state.common.borrows[j]:
                    state.common.cost[0] -= not has_bit(state.apart[agent], j)
    state.radius[agent] = scaled_radius(state, agent)
    return growth


@step("cut", WitnessState)
def cut_if_joined(state: WitnessState, agent: int, other: int, t: int) -> bool:
    if has_bit(state.apart[agent], other):
        return False
    cut_pair(state, agent, other, t)
    return True


@step("revise", WitnessState)
def revise(state: WitnessState, agent: int, t: int) -> None:
    apart, doubtful = state.apart[agent, : state.blocks.shape[0]], state.scratch.chosen
    limit = state.threshold * state.radius[agent]
    if is_steep(state.local, agent):  # the excess allows for its rounding, point by point
        limit *= 1.0 - SAFETY
    else:
        limit = safe_limit(limit, state.local.A[agent], ridge_of(state, agent))
    # Sixteen doubtful pairs are tested as a batch as soon as they are found; what is left over comes last.
    count, n = 0, state.radius.shape[0]
    for w in range(apart.shape[0]):
        if apart[w] != FULL:
            excess = state.excess[agent, w * WORD : min((w + 1) * WORD, n)]
            count += list_beyond(apart[w], w * WORD, agent, excess, limit, doubtful[count:])
        is_last = w == apart.shape[0] - 1
        while count >= PAIRS or (is_last and count > 0):
            taken = min(count, PAIRS)
            count -= taken
            settle(state, agent, doubtful[count : count + taken], t)


@compiled
def list_beyond(apart: int, first: int, agent: int, values: Vector, limit: float, chosen: Integers) -> int:
    """List the agent's neighbours among `first`, … whose value is not at most `limit`, and count them."""
    count = 0
    for lane in range(values.shape[0]):
        # Written always and kept only if counted: without a branch that nobody could predict.
        chosen[count] = first + lane
        joined = (apart >> lane) & 1 == 0
        count += joined & (not values[lane] <= limit) & (first + lane != agent)
    return count


@inlined
def settle(state: WitnessState, agent: int, others: Integers, t: int) -> None:
    """Cut the edges that the exact test says must go; keep a common point of the others."""
    local, test, batch = state.local, state.scratch.test, state.scratch.batch
    # A batch costs the same however few lanes are in use.
    batched = others.shape[0] >= PAIRS // 2
    if batched:
        probe_many(agent, others, local.theta_hat, local.A, state.radius, state.threshold, batch)
    for lane in range(others.shape[0]):
        other, point, verdict = others[lane], test.vectors[Z], batch.verdicts[lane] if batched else UNDECIDED
        separated = verdict == APART
        if verdict == UNDECIDED:
            separated = are_separated(state, agent, other)
        if separated:
            cut_pair(state, agent, other, t)
        else:
            # The exact test leaves its point in `test.vectors[Z]`; a batch, the offset from θ̂ of each lane.
            if verdict == TOGETHER:
                for m in range(point.shape[0]):
                    point[m] = local.theta_hat[other, m] + batch.vectors[1, m, lane]
            keep_witness(state, agent, other, point)


@inlined
def cut_pair(state: WitnessState, agent: int, other: int, t: int) -> None:
    """Let two agents share no more, for good."""
    log_cut(state.cuts, state.degree, state.common.active, agent, other, t)
    set_bit(state.apart[agent], other)
    set_bit(state.apart[other], agent)


@inlined
def keep_witness(state: WitnessState, agent: int, other: int, point: Vector) -> None:
    """Remember a point that two agents share."""
    for m in range(point.shape[0]):
        state.witness[agent, m, other] = point[m]
        state.witness[other, m, agent] = point[m]
    # Both ends keep the point with their own distance to it: it is found stale by whichever moves away first.
    state.excess[agent, other] = excess_of(state, agent, point)
    state.excess[other, agent] = excess_of(state, other, point)


@inlined
def excess_of(state: WitnessState, agent: int, point: Vector) -> float:
    """`‖p−θ̂‖²_A` of a point, and, if A is ill-conditioned, what rounding may have taken from it."""
    local = state.local
    excess = squared_distance(point, local.theta_hat[agent], local.A[agent])
    if is_steep(local, agent):
        size = distance(point, local.theta_hat[agent])
        excess += 16.0 * point.shape[0] * EPS * trace(local.A[agent]) * size * size
    return excess


@compiled
def squared_distance(point: Vector, theta: Vector, A: Matrix) -> float:
    """`‖point − θ‖²_A`."""
    total = 0.0
    for row in range(theta.shape[0]):
        inner = 0.0
        for column in range(theta.shape[0]):
            inner += A[row, column] * (point[column] - theta[column])
        total += inner * (point[row] - theta[row])
    return total


@inlined
def factor_pool(state: WitnessState, agent: int) -> None:
    """Leave the factor of the agent's pooled A in `scratch.L`, and b at the end of `scratch.total`."""
    work = state.scratch
    apart = state.apart[agent, : state.blocks.shape[0]]
    sum_packed(state.lent, state.blocks, apart, work.chosen, work.total)
    if not state.common.lends[agent]:
        add_own(state.local, agent, ridge_of(state, agent), work.total)
    ridge = units_of_pool(state, agent)[0]
    if not factor_sums(state, ridge):
        count = 0
        for j in range(state.radius.shape[0]):
            is_used = state.common.lends[j] or j == agent
            if is_used and state.local.pulls[j] > 0 and not has_bit(state.apart[agent], j):
                work.members[count] = j
                count += 1
        work.members[count] = -1
        factor_twofold(state, work.members, ridge, work.L, work.test.tail)


@compiled
def describe(state: Any, first: int, stop: int) -> None:
    """Compute the radius of the agents `first`, …, `stop` − 1."""
    for agent in range(first, stop):
        state.radius[agent] = scaled_radius(state, agent)
