"""BASS for a hundred thousand agents: points that many ellipsoids share prove most pairs at once.

A point that lies in the scaled ellipsoids of many agents proves that none of their pairs is separated (lemma 3).
Each agent has the set, as bits, of the shared points that it contains, and each 64 agents the points that all of
them contain, so that an agent only looks at those with whom it has no point in common. These are tested sixteen at
a time; what such tests find in passing are the candidates for the next shared points.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np

from shoal.fields import AGENTS, BLOCKS, DIM, PACKED, TRIANGLE, Size, derived, kept, rows, scratch, setting
from shoal.kernels.bits import FULL, WORD, as_set, has_bit, members, set_bit
from shoal.kernels.compiled import compiled, inlined
from shoal.kernels.crowd import (
    BOUND,
    CURVATURE,
    HIGH,
    LOW,
    Q_I,
    Q_J,
    START,
    add_rows,
    bound_lanes,
    card_width,
    cover_greedily,
    gather,
    gathered_rows,
    points_within,
    probe_lanes,
    sum_kept,
)
from shoal.kernels.lanes import WIDTH, drop_lowest, lowest_bit, meets
from shoal.kernels.linalg import add_packed
from shoal.kernels.separation import (
    APART,
    CLEAR,
    EPS,
    SAFETY,
    TOGETHER,
    UNDECIDED,
    WELL_CONDITIONED,
    Scratch,
    Z,
    add_rounding,
    excess_at,
    safe_limit,
)
from shoal.kernels.twofold import two_product, two_sum
from shoal.kernels.ucb import LANES
from shoal.policies.bass.common import (
    SUBTRACTABLE,
    Cuts,
    are_separated,
    choose_from_pool,
    factor_sums,
    factor_twofold,
    log_cut,
    scaled_radius,
)
from shoal.policies.steps import Common, step
from shoal.statistics import REFRESH_EVERY, Statistics, add_sample, is_steep
from shoal.types import AnyArray, Booleans, Integers, Matrix, Tensor, Vector

GROUPS = 2
"""Words of 64 shared points. With one, a tenth of the pairs more are left to test; four gain nothing over two."""
POINTS = GROUPS * WORD
RING = 512
"""Points found lately, from which shared ones are chosen."""
SAMPLE = 256
"""Agents whose pairs the choice of points is made for: three quarters that moved lately, the others evenly."""
RECENT = 192
FIRST_REFRESH = 64
"""Samples of all agents together after which points are chosen for the first time. The time between two choices
then doubles, up to one for every two agents: choosing costs about as much as a few hundred rounds."""
NUMBER, ROW, LENGTH, LIST = range(4)
"""Columns of an agent's head: from how many it was cut, 1 + its row of bits (0: none), how many cuts are listed."""
LISTED = 13
"""Cuts in a list."""
STEPS = 6
"""Newton steps that pairs take side by side before each is searched on its own."""
FEW = 3
"""Pairs that are sooner searched one by one."""
CARD, GATHERED = Size("card"), Size("gathered")


class Sets(NamedTuple):
    """Who was cut from whom: of each agent a short list, and, once that was full, a row of bits.

    A cut concerns two agents, of whom one is at work and the other's memory is cold. So the other's list, in one
    line of the cache with its length, takes the cut, and is emptied into the row of bits when full or needed. Rows
    are handed out as agents come to need them: of the N² bits a young crowd touches few.
    """

    heads: Annotated[AnyArray, derived(AGENTS, 16, dtype=np.int32)]  # NUMBER, ROW, LENGTH, then the list
    bits: Annotated[Integers, derived(AGENTS, BLOCKS, used="rows_used")]
    rows_used: Annotated[Integers, derived(1)]


class Shared(NamedTuple):
    """Points that many agents share."""

    points: Annotated[Tensor, derived(GROUPS, DIM, WORD, nan=True, fill=np.nan)]
    masks: Annotated[Integers, derived(GROUPS, WORD * BLOCKS)]  # the points that each agent contains
    everyone: Annotated[Integers, derived(GROUPS, BLOCKS)]  # the points that all of 64 agents contain
    ring: Annotated[Matrix, derived(DIM, RING, nan=True, fill=np.nan)]  # candidates
    found: Annotated[Integers, derived(1)]  # candidates so far
    recent: Annotated[Integers, derived(SAMPLE, fill=-1)]  # agents that moved lately
    moves: Annotated[Integers, derived(1)]  # samples of all agents so far
    due: Annotated[Integers, derived(1, fill=FIRST_REFRESH)]  # moves at which points are chosen anew


class CrowdScratch(NamedTuple):
    """Work space."""

    total: Annotated[Vector, scratch(PACKED)]  # packed sums of a pool
    L: Annotated[Matrix, scratch(DIM, DIM)]  # its factor
    lanes: Annotated[Matrix, scratch(DIM + 2, LANES)]  # for the scores
    cut: Annotated[Integers, scratch(BLOCKS)]  # the set of an agent whose cuts are listed; zero between calls
    agents: Annotated[Integers, scratch(2, AGENTS + WIDTH)]  # whom to test, and whom to test further
    ratios: Annotated[Matrix, scratch(2, AGENTS + WIDTH)]  # at which ratio
    offsets: Annotated[Matrix, scratch(DIM, WORD)]
    excess: Annotated[Vector, scratch(WORD)]
    cards: Annotated[Matrix, scratch(GATHERED, WIDTH)]  # of sixteen agents, side by side; as all that follow
    v: Annotated[Matrix, scratch(DIM, WIDTH)]
    ratio: Annotated[Matrix, scratch(1, WIDTH)]
    open: Annotated[
        Booleans, scratch(WIDTH)
    ]  # whether a pair is still to be decided, then whether it shares a point
    factors: Annotated[Matrix, scratch(TRIANGLE, WIDTH)]
    vectors: Annotated[Matrix, scratch(3 * DIM, WIDTH)]
    out: Annotated[Matrix, scratch(5, WIDTH)]
    candidates: Annotated[Matrix, scratch(DIM, RING + POINTS)]  # for the choice of points; as all that follow
    far: Annotated[Matrix, scratch(DIM, RING + POINTS)]
    distances: Annotated[Vector, scratch(RING + POINTS)]
    sets: Annotated[Integers, scratch(RING + POINTS, SAMPLE // WORD)]
    left: Annotated[Integers, scratch(SAMPLE, SAMPLE // WORD)]
    gains: Annotated[Integers, scratch(RING + POINTS)]
    chosen: Annotated[Integers, scratch(POINTS)]
    sample: Annotated[Integers, scratch(SAMPLE)]
    test: Scratch


class CrowdState(NamedTuple):
    """State of BASS in a crowd."""

    common: Common
    noise_scale: Annotated[float, setting()]
    offset: Annotated[float, setting()]  # √ridge · S, the part of β that does not grow
    confidence: Annotated[float, setting()]  # 2 ln(1/δ) − d ln(ridge)
    squared: Annotated[bool, setting()]  # whether the test uses β² or β
    threshold: Annotated[float, setting()]  # γ²/4
    local: Annotated[Statistics, rows(AGENTS)]
    blocks: Annotated[Matrix, kept(BLOCKS, PACKED)]  # packed Σ x xᵀ and b, summed over 64 agents
    total: Annotated[Matrix, kept(2, PACKED)]  # summed over all; what the floats of the first row lack
    cuts: Cuts
    cards: Annotated[Matrix, derived(AGENTS, CARD)]  # packed Σ x xᵀ and b, θ̂ and c of each agent
    sizes: Annotated[Vector, derived(BLOCKS)]  # what no entry of the sums of 64 agents exceeds
    degree: Annotated[Integers, derived(AGENTS)]  # active neighbours
    radius: Annotated[Vector, derived(AGENTS)]  # c_i, which is β_i or its square
    fresh: Annotated[Integers, derived(BLOCKS)]  # set: agents without samples
    gone: Annotated[Integers, derived(BLOCKS)]  # set: agents whose samples were withdrawn
    apart: Sets
    shared: Shared
    scratch: CrowdScratch


State = CrowdState


def sizes(dim: int) -> dict[str, int]:
    """Sizes that only this engine's declarations name."""
    return {"card": card_width(dim), "gathered": gathered_rows(dim)}


def join(state: CrowdState, first: int) -> None:
    """Initialise the newcomers `first`, `first + 1`, …."""
    if first == 0:
        state.shared.due[0] = FIRST_REFRESH
    describe(state, first)


def start(state: CrowdState) -> None:
    """Go on from the blocks and the log of another engine."""
    sum_total(state)
    derive(state)


def derive(state: CrowdState) -> None:
    """Compute what is not saved."""
    n, active = len(state.degree), state.common.active
    state.apart.rows_used[0] = 0
    list_cuts(state)
    every = int(np.count_nonzero(active))
    ends = state.cuts.pairs[: state.cuts.used[0]]
    state.degree[:] = every - active
    for one, two in ((0, 1), (1, 0)):
        state.degree[:] -= np.bincount(ends[:, one], weights=active[ends[:, two]], minlength=n).astype(
            np.int64
        )
    state.degree[state.common.withdrawn] = 0
    state.shared.moves[0] = state.local.pulls.sum()
    forget_points(state)
    describe(state, 0)


def forget_points(state: CrowdState) -> None:
    """Let go of all shared points, candidates, and of who moved lately; choose points anew soon."""
    state.shared.points[...] = state.shared.ring[...] = np.nan
    state.shared.found[0], state.shared.recent[:] = 0, -1
    state.shared.due[0] = state.shared.moves[0] + FIRST_REFRESH


def problem(state: CrowdState) -> str:
    """What is wrong with a loaded state, as a phrase."""
    local, n, d = state.local, len(state.degree), state.local.b.shape[1]
    row, column = np.tril_indices(d)
    lent = np.hstack([local.A[:, row, column] - state.common.ridge * (row == column), local.b])
    starts = np.arange(0, n, WORD)
    sums, largest = (np.add.reduceat(each, starts) for each in (lent, np.abs(lent))) if n else (lent, lent)
    if (np.abs(state.blocks - sums) > 1e-9 * (largest + state.common.ridge)).any():
        return "blocks are not the sums of what local holds"
    if (
        np.abs(state.total.sum(axis=0) - sums.sum(axis=0)) > 1e-9 * (largest.sum(axis=0) + state.common.ridge)
    ).any():
        return "total is not the sum of what local holds"
    return "a withdrawn agent has cuts" if state.common.withdrawn[state.cuts.pairs].any() else ""


def edges(state: CrowdState) -> Booleans:
    """Who uses whose samples, (N, N)."""
    n = len(state.degree)
    joined = np.ones((n, n), dtype=np.bool_)
    one, two = state.cuts.pairs[: state.cuts.used[0]].T
    joined[one, two] = joined[two, one] = False
    withdrawn = state.common.withdrawn
    joined[withdrawn] = joined[:, withdrawn] = False
    joined[withdrawn, withdrawn] = True
    return joined


def pool(state: CrowdState, agent: int) -> Booleans:
    """Whose samples an agent uses, (N,)."""
    n = len(state.degree)
    is_list = with_cuts(state, agent)
    cut = np.array(state.scratch.cut if is_list else state.apart.bits[state.apart.heads[agent, ROW] - 1])
    if is_list:
        clear_cuts(state, agent)
    used = ~members(cut, n) & ~state.common.withdrawn
    used[agent] = True
    return np.asarray(used)


def withdraw(state: CrowdState, agent: int) -> None:
    """Take an agent's samples, which its own statistics no longer hold, out of everything else."""
    state.apart.rows_used[0] = 0
    list_cuts(state)  # its own are no longer in the log
    forget_points(state)
    describe(state, 0)
    sum_block(state, agent // WORD)
    sum_total(state)


@compiled
def list_cuts(state: CrowdState) -> None:
    """Put the cuts of the log into the agents' lists and sets."""
    heads, bits = state.apart.heads, state.apart.bits
    for agent in range(heads.shape[0]):
        if heads[agent, ROW] > 0:
            for w in range(bits.shape[1]):
                bits[heads[agent, ROW] - 1, w] = 0
        for k in range(heads.shape[1]):
            heads[agent, k] = 0
    for n in range(state.cuts.used[0]):
        one, two = state.cuts.pairs[n, 0], state.cuts.pairs[n, 1]
        note_cut(state, one, two)
        note_cut(state, two, one)


@compiled
def describe(state: CrowdState, first: int) -> None:
    """Compute what is derived of each agent from `first` on, and of the blocks they are in."""
    local, shared = state.local, state.shared
    n = state.radius.shape[0]
    for agent in range(first, n):
        w, bit = agent // WORD, np.int64(1) << np.int64(agent % WORD)
        state.radius[agent] = scaled_radius(state, agent)
        write_card(state, agent)
        state.fresh[w] &= ~bit
        state.gone[w] &= ~bit
        if state.common.withdrawn[agent]:
            state.gone[w] |= bit
        elif local.pulls[agent] == 0:
            state.fresh[w] |= bit
    for w in range(first // WORD, state.sizes.shape[0]):
        state.sizes[w] = 0.0
        for agent in range(w * WORD, min(n, (w + 1) * WORD)):
            measure(state, agent)
    mark_points(state, first)


@inlined
def write_card(state: CrowdState, agent: int) -> None:
    """Write down what tests and sums need of an agent."""
    local, card = state.local, state.cards[agent]
    d = local.b.shape[1]
    position = 0
    for row in range(d):
        for column in range(row + 1):
            card[position] = local.A[agent, row, column]
            position += 1
        card[position - 1] -= state.common.ridge
    for m in range(d):
        card[position + m] = local.b[agent, m]
        card[position + d + m] = local.theta_hat[agent, m]
    card[position + 2 * d] = state.radius[agent]


@inlined
def measure(state: CrowdState, agent: int) -> None:
    """Note how large the entries of an agent's sums are."""
    w = agent // WORD
    for m in range(state.total.shape[1]):
        state.sizes[w] = max(state.sizes[w], abs(state.cards[agent, m]))


@compiled
def sum_block(state: CrowdState, w: int) -> None:
    """Sum 64 agents anew, so that no rounding piles up."""
    n, block = state.radius.shape[0], state.blocks[w]
    for m in range(block.shape[0]):
        block[m] = 0.0
    every = np.int64(FULL)
    if n - w * WORD < WORD:
        every = (np.int64(1) << np.int64(n - w * WORD)) - np.int64(1)
    add_rows(1.0, state.cards, w * WORD, every, block)


@compiled
def sum_total(state: CrowdState) -> None:
    """Sum all blocks anew."""
    state.total[:] = 0.0
    for w in range(state.blocks.shape[0]):
        for m in range(state.blocks.shape[1]):
            state.total[0, m], lost = two_sum(state.total[0, m], state.blocks[w, m])
            state.total[1, m] += lost


# Sets of cuts


@compiled
def note_cut(state: CrowdState, agent: int, other: int) -> None:
    """Put a cut into an agent's list."""
    head = state.apart.heads[agent]
    if head[LENGTH] == LISTED:
        empty_list(state, agent)
    head[LIST + head[LENGTH]] = other
    head[LENGTH] += 1
    head[NUMBER] += 1


@compiled
def empty_list(state: CrowdState, agent: int) -> None:
    """Move an agent's listed cuts into its row of bits, which it gets if it has none."""
    head = state.apart.heads[agent]
    if head[ROW] == 0:
        state.apart.rows_used[0] += 1
        head[ROW] = state.apart.rows_used[0]
    bits = state.apart.bits[head[ROW] - 1]
    for k in range(head[LENGTH]):
        set_bit(bits, head[LIST + k])
    head[LENGTH] = 0


@compiled
def with_cuts(state: CrowdState, agent: int) -> bool:
    """Make an agent's cuts a set; True if that is `scratch.cut`, to be cleared, else its row of bits."""
    head = state.apart.heads[agent]
    if head[ROW] > 0:
        empty_list(state, agent)
        return False
    for k in range(head[LENGTH]):
        set_bit(state.scratch.cut, head[LIST + k])
    return True


@compiled
def clear_cuts(state: CrowdState, agent: int) -> None:
    """Leave `scratch.cut` as empty as it was."""
    head = state.apart.heads[agent]
    for k in range(head[LENGTH]):
        state.scratch.cut[head[LIST + k] // WORD] = 0


@compiled
def is_cut(state: CrowdState, agent: int, other: int) -> bool:
    """Whether two agents were cut."""
    head = state.apart.heads[agent]
    for k in range(head[LENGTH]):
        if head[LIST + k] == other:
            return True
    return head[ROW] > 0 and has_bit(state.apart.bits[head[ROW] - 1], other)


# The choice


@step("select", CrowdState)
def select(state: CrowdState, agent: int, arms: Matrix, t: int) -> int:
    factor_pool(state, agent)
    return choose_from_pool(state, arms, t)


@inlined
def factor_pool(state: CrowdState, agent: int) -> None:
    """Leave the factor of the agent's pooled A in `scratch.L`, and b at the end of `scratch.total`."""
    sum_pool(state, agent)
    if not factor_sums(state):
        work = state.scratch
        count = 0
        for j in range(state.radius.shape[0]):
            if state.local.pulls[j] > 0 and not is_cut(state, agent, j):
                work.agents[0, count] = j
                count += 1
        work.agents[0, count] = -1
        factor_twofold(state.local, work.agents[0], state.common.ridge, work.L, work.test.tail)


@inlined
def sum_pool(state: CrowdState, agent: int) -> None:
    """Sum an agent's pool into `scratch.total`: everyone less its cuts, if these are few, else 64 by 64."""
    head, total, ridge = state.apart.heads[agent], state.scratch.total, state.common.ridge
    largest = 0.0
    for m in range(total.shape[0]):
        total[m] = state.total[0, m] + state.total[1, m]
        largest = max(largest, abs(total[m]))
    # Each subtraction rounds by at most half a unit in the last place of the total: in all less than 1e-8 ridge.
    subtractable = (head[NUMBER] + 1) * 0.5 * EPS * largest <= 1e-8 * ridge
    if subtractable and head[ROW] == 0:
        for k in range(head[LENGTH]):
            add_rows(-1.0, state.cards, head[LIST + k], 1, total)
        return
    is_list = with_cuts(state, agent)
    cut = state.scratch.cut if is_list else state.apart.bits[head[ROW] - 1]
    # An agent has a sample for every move but its first: there are no more of them than moves.
    if subtractable and 2 * head[NUMBER] < min(state.shared.moves[0], state.radius.shape[0]):
        for w in range(cut.shape[0]):
            if cut[w] & ~state.fresh[w] != 0:
                add_rows(-1.0, state.cards, w * WORD, cut[w] & ~state.fresh[w], total)
    else:
        sum_kept(state.cards, state.blocks, state.sizes, SUBTRACTABLE * ridge, cut, state.fresh, total)
    if is_list:
        clear_cuts(state, agent)


@step("observe", CrowdState)
def observe(state: CrowdState, agent: int, x: Vector, reward: float, t: int) -> None:
    local, shared, w = state.local, state.shared, agent // WORD
    add_sample(local, agent, x, reward)
    state.radius[agent] = scaled_radius(state, agent)
    state.common.cost[0] += state.degree[agent]
    write_card(state, agent)
    measure(state, agent)
    if local.pulls[agent] % REFRESH_EVERY == 0:
        sum_block(state, w)
    else:
        add_packed(state.blocks[w], x, reward)
    add_to_total(state.total, x, reward)
    state.fresh[w] &= ~(np.int64(1) << np.int64(agent % WORD))
    shared.recent[shared.moves[0] % SAMPLE] = agent
    shared.moves[0] += 1
    mark_agent(state, agent)
    mark_block(state, w)


@compiled
def add_to_total(total: Matrix, x: Vector, reward: float) -> None:
    """`linalg.add_packed` with twice the digits: a sum over everyone takes in every sample there is."""
    d = x.shape[0]
    position = 0
    for row in range(d + 1):
        for column in range(row + 1 if row < d else d):
            product, lost = two_product(x[row] if row < d else reward, x[column])
            total[0, position], rounding = two_sum(total[0, position], product)
            total[1, position] += rounding + lost
            position += 1


# Shared points


@inlined
def mark_agent(state: CrowdState, agent: int) -> None:
    """Find out which shared points an agent contains, with a margin for rounding."""
    local, work = state.local, state.scratch
    theta, A, limit = local.theta_hat[agent], local.A[agent], state.threshold * state.radius[agent]
    steep = is_steep(local, agent)
    limit = limit * (1.0 - SAFETY) if steep else safe_limit(limit, A, state.common.ridge)
    for g in range(GROUPS):
        excess_at(theta, A, state.shared.points[g], work.offsets, work.excess)
        if steep:
            add_rounding(A, work.offsets, work.excess)
        state.shared.masks[g, agent] = points_within(limit, work.excess)


@inlined
def mark_block(state: CrowdState, w: int) -> None:
    """Find out which points all of 64 agents contain; those whose samples were withdrawn do not count."""
    n, masks = state.radius.shape[0], state.shared.masks
    for g in range(GROUPS):
        all_of_them = np.int64(FULL)
        for agent in range(w * WORD, min(n, (w + 1) * WORD)):
            all_of_them &= masks[g, agent]
        state.shared.everyone[g, w] = all_of_them


@compiled
def mark_points(state: CrowdState, first: int) -> None:
    """Find out which points each agent from `first` on contains: all that have no samples contain the same."""
    masks, known = state.shared.masks, -1
    for agent in range(first, state.radius.shape[0]):
        is_fresh = has_bit(state.fresh, agent)
        if has_bit(state.gone, agent):
            for g in range(GROUPS):
                masks[g, agent] = FULL
        elif is_fresh and known >= 0:
            for g in range(GROUPS):
                masks[g, agent] = masks[g, known]
        else:
            mark_agent(state, agent)
            known = agent if is_fresh else known
    for w in range(first // WORD, state.sizes.shape[0]):
        mark_block(state, w)


@compiled
def keep_candidate(state: CrowdState, point: Vector) -> None:
    """Remember a point that two agents share."""
    if math.isnan(point[0]):  # tangents decided, not a point
        return
    at = state.shared.found[0] % RING
    state.shared.found[0] += 1
    for m in range(point.shape[0]):
        state.shared.ring[m, at] = point[m]


@compiled
def refresh_points(state: CrowdState) -> None:
    """Choose the shared points anew: those, old or found lately, that prove most pairs of a sample of agents."""
    local, shared, work = state.local, state.shared, state.scratch
    n, d = local.b.shape
    for m in range(d):
        for k in range(RING):
            work.candidates[m, k] = shared.ring[m, k]
        for k in range(POINTS):
            work.candidates[m, RING + k] = shared.points[k // WORD, m, k % WORD]
    count = draw_sample(state)
    work.sets[:] = 0
    work.left[:] = 0
    for k in range(count):
        i = work.sample[k]
        bit = np.int64(1) << np.int64(k % WORD)
        limit = safe_limit(state.threshold * state.radius[i], local.A[i], state.common.ridge)
        excess_at(local.theta_hat[i], local.A[i], work.candidates, work.far, work.distances)
        for c in range(RING + POINTS):
            if work.distances[c] <= limit:
                work.sets[c, k // WORD] |= bit
        for m in range(count):
            if m != k and not is_cut(state, i, work.sample[m]):
                work.left[m, k // WORD] |= bit
    used = cover_greedily(work.sets, work.left, work.gains, work.chosen, POINTS)
    for p in range(POINTS):
        for m in range(d):
            point = work.candidates[m, work.chosen[p]] if p < used else math.nan
            shared.points[p // WORD, m, p % WORD] = point
    mark_points(state, 0)
    shared.due[0] = shared.moves[0] + min(max(shared.moves[0], FIRST_REFRESH), max(n // 2, FIRST_REFRESH))


@inlined
def draw_sample(state: CrowdState) -> int:
    """Put different agents into `scratch.sample`, those that moved lately first, and count them."""
    shared, sample, n = state.shared, state.scratch.sample, state.radius.shape[0]
    count = 0
    for k in range(SAMPLE):
        agent = k * n // SAMPLE
        if k < RECENT:
            agent = shared.recent[(shared.moves[0] - 1 - k) % SAMPLE]
        new = agent >= 0 and not has_bit(state.gone, max(agent, 0))
        for m in range(count):
            new = new and sample[m] != agent
        if new:
            sample[count] = agent
            count += 1
    return count


# The test


@step("revise", CrowdState)
def revise(state: CrowdState, agent: int, t: int) -> None:
    if state.shared.moves[0] >= state.shared.due[0]:
        refresh_points(state)
    is_list = with_cuts(state, agent)
    cut = state.scratch.cut if is_list else state.apart.bits[state.apart.heads[agent, ROW] - 1]
    count, other = list_unproved(state, agent, cut)
    fresh_count = 0
    if other >= 0:  # without samples, and so like all others without
        if are_separated(state, agent, other):
            fresh_count = list_fresh(state, cut)
        else:
            keep_candidate(state, state.scratch.test.vectors[Z])
    if is_list:
        clear_cuts(state, agent)
    for k in range(fresh_count):
        separate(state, agent, state.scratch.agents[1, k], t)
    settle(state, agent, count, t)


@inlined
def list_unproved(state: CrowdState, agent: int, cut: Integers) -> tuple[int, int]:
    """List the neighbours with whom the agent shares none of the points in `scratch.agents[0]`; return how many.

    Of those without samples, who are all alike, only one is returned, −1 if there is none.
    """
    shared, listed, n = state.shared, state.scratch.agents, state.radius.shape[0]
    count, other = 0, -1
    for w in range(cut.shape[0]):
        proved = cut[w] == FULL
        for g in range(GROUPS):
            proved = proved or shared.masks[g, agent] & shared.everyone[g, w] != 0
        if proved:
            continue
        first = w * WORD
        left = ~(cut[w] | state.gone[w])
        if n - first < WORD:
            left &= (np.int64(1) << np.int64(n - first)) - np.int64(1)
        if w == agent // WORD:
            left &= ~(np.int64(1) << np.int64(agent % WORD))
        for g in range(GROUPS):
            left &= ~meets(shared.masks[g], first, shared.masks[g, agent])
        fresh = left & state.fresh[w]
        left &= ~fresh
        while left != 0:
            listed[0, count] = first + lowest_bit(left)
            left = drop_lowest(left)
            count += 1
        if fresh != 0:
            other = first + lowest_bit(fresh)
    return count, other


@inlined
def list_fresh(state: CrowdState, cut: Integers) -> int:
    """List the agents without samples that are not cut in `scratch.agents[1]`, and count them."""
    count = 0
    for w in range(cut.shape[0]):
        left = state.fresh[w] & ~cut[w]
        while left != 0:
            state.scratch.agents[1, count] = w * WORD + lowest_bit(left)
            left = drop_lowest(left)
            count += 1
    return count


@compiled
def separate(state: CrowdState, agent: int, other: int, t: int) -> None:
    """Remove an edge for good."""
    log_cut(state, agent, other, t)
    note_cut(state, agent, other)
    note_cut(state, other, agent)


@compiled
def settle(state: CrowdState, agent: int, count: int, t: int) -> None:
    """Test the first `count` agents listed, and cut those that are separated from the agent."""
    work, certain = state.scratch, state.threshold * (1.0 - SAFETY)
    lucky, kept = t * 7919 % max(count, 1), False  # whose point becomes a candidate: as good as drawn
    left = 0
    repeat_last(work.agents[0], count)
    for start in range(0, count, WIDTH):
        here, unproved = min(WIDTH, count - start), 0
        gather(state.local.theta_hat[agent], state.cards, work.agents[0], start, work.cards, work.v)
        bound_lanes(
            state.local.A[agent], state.radius[agent], state.common.ridge, work.v, work.cards, work.out
        )  # fmt: skip
        for lane in range(WIDTH):
            work.open[lane] = lane < here and not work.out[BOUND, lane] <= certain  # lemma 2
            work.ratio[0, lane] = work.out[START, lane]
            unproved += work.open[lane]
        if 2 * unproved > WIDTH:  # as they are gathered, go on with them at once
            left = probe_gathered(state, agent, 0, start, 1, left, t)
            kept = kept or (start + WIDTH > lucky and keep_gathered(state, 0, start))
        else:
            for lane in range(here):
                work.agents[1, left] = work.agents[0, start + lane]
                work.ratios[1, left] = work.ratio[0, lane]
                left += work.open[lane]
    source = 1
    for _ in range(STEPS):
        if left < FEW:
            break
        still = 0
        repeat_last(work.agents[source], left)
        for start in range(0, left, WIDTH):
            gather(state.local.theta_hat[agent], state.cards, work.agents[source], start, work.cards, work.v)
            for lane in range(WIDTH):
                work.open[lane] = lane < left - start
                work.ratio[0, lane] = work.ratios[source, min(start + lane, left - 1)]
            still = probe_gathered(state, agent, source, start, 1 - source, still, t)
            kept = kept or (start + WIDTH > lucky % left and keep_gathered(state, source, start))
        source, left = 1 - source, still
    for k in range(left):
        if are_separated(state, agent, work.agents[source, k]):
            separate(state, agent, work.agents[source, k], t)
        else:
            keep_candidate(state, work.test.vectors[Z])


@compiled
def probe_gathered(
    state: CrowdState, agent: int, source: int, start: int, target: int, count: int, t: int
) -> int:
    """Take a step of the search with the agents gathered; list those that lemma 1 leaves open, and count them."""
    work = state.scratch
    probe_lanes(
        state.local.A[agent], state.radius[agent], state.common.ridge, work.v, work.cards, work.ratio,
        work.factors, work.vectors, work.out,
    )  # fmt: skip
    for lane in range(WIDTH):
        if work.open[lane]:
            other = work.agents[source, start + lane]
            verdict = judge(work.out, lane, work.ratio[0, lane], state.threshold)
            work.open[lane] = verdict == TOGETHER
            if verdict == APART:
                separate(state, agent, other, t)
            elif verdict == UNDECIDED:
                work.agents[target, count] = other
                work.ratios[target, count] = next_ratio(work.out, lane, work.ratio[0, lane])
                count += 1
    return count


@compiled
def keep_gathered(state: CrowdState, source: int, start: int) -> bool:
    """Remember the point of the first pair, of those just probed, that shares one, if there is such a pair."""
    work, point = state.scratch, state.scratch.test.vectors[Z]
    for lane in range(WIDTH):
        if work.open[lane]:
            other = work.agents[source, start + lane]
            for m in range(point.shape[0]):
                point[m] = state.local.theta_hat[other, m] + work.vectors[m, lane]
            keep_candidate(state, point)
            return True
    return False


@compiled
def repeat_last(listed: Integers, count: int) -> None:
    """Fill the sixteen that the last agents of a list are tested with."""
    for k in range(count, count + WIDTH):
        listed[k] = listed[max(count - 1, 0)]


@compiled
def judge(out: Matrix, lane: int, ratio: float, threshold: float) -> int:
    """What lemma 1 says of a lane, by a margin that its rounding cannot reach."""
    if out[LOW, lane] >= WELL_CONDITIONED * out[HIGH, lane]:
        q_i, q_j = out[Q_I, lane], out[Q_J, lane]
        if (q_i + ratio * q_j) / (1.0 + ratio) > threshold * (1.0 + CLEAR):
            return APART
        if q_i <= threshold * (1.0 - CLEAR) and q_j <= threshold * (1.0 - CLEAR):
            return TOGETHER
    return UNDECIDED


@compiled
def next_ratio(out: Matrix, lane: int, ratio: float) -> float:
    """Newton's step on ½ ln(q_i/q_j), as in the search, but without its bracket: never more than e³ at once."""
    q_i, q_j = out[Q_I, lane], out[Q_J, lane]
    slope = out[CURVATURE, lane] * ratio * (q_i + ratio * q_j)
    if not (slope > 0.0 and q_i > 0.0 and q_j > 0.0):
        return ratio
    step = -0.5 * math.log(q_i / q_j) * q_i * q_j / slope
    return ratio * math.exp(min(max(step, -3.0), 3.0))
