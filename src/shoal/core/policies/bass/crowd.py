"""BASS for a hundred thousand agents: points that many ellipsoids share prove most pairs at once.

A point that lies in the scaled ellipsoids of many agents proves that none of their pairs is separated (lemma
4). Each agent has the set, as bits, of the shared points that it contains, and each 64 agents the points that
all of them contain, so that an agent only looks at those with whom it has no point in common. These are
tested sixteen at a time; what such tests find in passing are the candidates for the next shared points.
"""

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from shoal.core.fields import (
    AGENTS,
    BLOCKS,
    DIM,
    PACKED,
    TRIANGLE,
    Size,
    derived,
    kept,
    rows,
    scratch,
    setting,
)
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.bits import FULL, WORD, has_bit, members, set_bit
from shoal.core.kernels.crowd import (
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
from shoal.core.kernels.lanes import WIDTH, drop_lowest, lowest_bit, meets
from shoal.core.kernels.linalg import add_packed
from shoal.core.kernels.separation import (
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
from shoal.core.kernels.twofold import two_product, two_sum
from shoal.core.kernels.ucb import LANES
from shoal.core.policies.bass.common import (
    SEEN,
    SUBTRACTABLE,
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
from shoal.core.policy.cuts import Cuts
from shoal.core.policy.steps import LiveCommon, step
from shoal.core.policy.units import ESTIMATED, ridge_at, ridge_of, units_of_own
from shoal.core.statistics import REFRESH_EVERY, Statistics, is_steep
from shoal.core.types import AnyArray, Booleans, Integers, Matrix, Tensor, Vector

GROUPS = 2
"""Words of 64 shared points: with one, more pairs are left to test, and four gain nothing over two."""
POINTS = GROUPS * WORD
RING = 512
"""Points found lately, from which shared ones are chosen."""
SAMPLE = 256
"""Agents whose pairs the choice of points is made for: those that moved lately, and some evenly spread."""
RECENT = 192
FIRST_REFRESH = 64
"""Samples of all agents together after which points are chosen for the first time. The time between two
choices then doubles, up to one for every two agents: choosing costs as much as a few hundred rounds."""
NUMBER, ROW, LENGTH, LIST = range(4)
"""Columns of an agent's head: from how many it was cut, 1 + its row of bits (0: none), cuts in the list."""
LISTED = 13
"""Cuts in a list."""
STEPS = 6
"""Newton steps that pairs take side by side before each is searched on its own."""
FEW = 3
"""Pairs that are sooner searched one by one."""
CARD, GATHERED = Size("card", grows=False), Size("gathered", grows=False)


class Sets(NamedTuple):
    """Who was cut from whom: of each agent a short list, and, once that was full, a row of bits.

    A cut concerns two agents, of whom one is at work and the other's memory is cold. So the other's list, in
    one line of the cache with its length, takes the cut, and is emptied into the row of bits when full or
    needed. Rows are handed out as agents come to need them: of the N² bits a young crowd touches few.
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


class Sixteen(NamedTuple):
    """Work space for tests of sixteen pairs, side by side."""

    cards: Annotated[Matrix, scratch(GATHERED, WIDTH)]
    v: Annotated[Matrix, scratch(DIM, WIDTH)]
    ratio: Annotated[Matrix, scratch(1, WIDTH)]
    ridges: Annotated[Matrix, scratch(1, WIDTH)]
    open: Annotated[
        Booleans, scratch(WIDTH)
    ]  # whether a pair is to be decided, then whether it shares a point
    factors: Annotated[Matrix, scratch(TRIANGLE, WIDTH)]
    vectors: Annotated[Matrix, scratch(3 * DIM, WIDTH)]
    out: Annotated[Matrix, scratch(5, WIDTH)]


class ChoiceScratch(NamedTuple):
    """Work space for the choice of shared points."""

    offsets: Annotated[Matrix, scratch(DIM, WORD)]
    excess: Annotated[Vector, scratch(WORD)]
    candidates: Annotated[Matrix, scratch(DIM, RING + POINTS)]
    far: Annotated[Matrix, scratch(DIM, RING + POINTS)]
    distances: Annotated[Vector, scratch(RING + POINTS)]
    sets: Annotated[
        Integers, scratch(RING + POINTS, SAMPLE // WORD)
    ]  # agents of the sample that contain each
    left: Annotated[Integers, scratch(SAMPLE, SAMPLE // WORD)]
    gains: Annotated[Integers, scratch(RING + POINTS)]
    chosen: Annotated[Integers, scratch(POINTS)]
    sample: Annotated[Integers, scratch(SAMPLE)]


class CrowdScratch(NamedTuple):
    """Work space."""

    total: Annotated[Vector, scratch(PACKED)]  # packed sums of a pool
    L: Annotated[Matrix, scratch(DIM, DIM)]  # its factor
    lanes: Annotated[Matrix, scratch(DIM + 2, LANES)]  # for the scores
    cut: Annotated[Integers, scratch(BLOCKS)]  # the set of an agent whose cuts are listed; zero between calls
    agents: Annotated[Integers, scratch(2, AGENTS + WIDTH)]  # whom to test, and whom to test further
    ratios: Annotated[Matrix, scratch(2, AGENTS + WIDTH)]  # at which ratio
    sixteen: Sixteen
    choice: ChoiceScratch
    test: Scratch


class Kinds(NamedTuple):
    """Agents that are tested together, or not at all; sets as bits."""

    fresh: Annotated[Integers, derived(BLOCKS)]  # without samples
    gone: Annotated[Integers, derived(BLOCKS)]  # whose samples were withdrawn
    silent: Annotated[Integers, derived(BLOCKS)]  # without samples, or who do not lend them


class CrowdState(NamedTuple):
    """State of BASS in a crowd."""

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
    blocks: Annotated[Matrix, kept(BLOCKS, PACKED)]  # packed Σ x xᵀ and b, summed over 64 agents
    total: Annotated[Matrix, kept(2, PACKED)]  # summed over all; what the floats of the first row lack
    cuts: Cuts
    cards: Annotated[Matrix, derived(AGENTS, CARD)]  # packed Σ x xᵀ and b, θ̂ and c of each agent
    sizes: Annotated[Vector, derived(BLOCKS)]  # what no entry of the sums of 64 agents exceeds
    degree: Annotated[Integers, derived(AGENTS)]  # active neighbours
    radius: Annotated[Vector, derived(AGENTS)]  # c_i, which is β_i or its square
    kinds: Kinds
    apart: Sets
    shared: Shared
    scratch: CrowdScratch


State = CrowdState


def sizes(dim: int) -> dict[str, int]:
    """Sizes that only this engine's declarations name."""
    return {"card": card_width(dim), "gathered": gathered_rows(dim)}


def join(state: CrowdState, handle: Any, first: int) -> None:
    """Initialise the newcomers `first`, `first + 1`, …; `handle` is the state as it is pinned."""
    if first == 0:
        state.shared.due[0] = FIRST_REFRESH
    describe(handle, first, len(state.degree))


def start(state: CrowdState, handle: Any) -> None:
    """Go on from the blocks and the log of another engine."""
    sum_total(state.blocks, state.total)
    derive(state, handle)


def derive(state: CrowdState, handle: Any) -> None:
    """Compute what is not saved."""
    n, active = len(state.degree), state.common.active
    list_cuts(handle.cuts, handle.apart)
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
    describe(handle, 0, len(state.degree))


def forget_points(state: CrowdState) -> None:
    """Let go of all shared points, candidates, and of who moved lately; choose points anew soon."""
    state.shared.points[...] = state.shared.ring[...] = np.nan
    state.shared.found[0], state.shared.recent[:] = 0, -1
    state.shared.due[0] = state.shared.moves[0] + FIRST_REFRESH


def forget_tests(state: CrowdState, handle: Any) -> None:
    """Let go of the shared points, so that `learn` need not find out who still contains them."""
    if not np.isnan(state.shared.points).all():
        forget_points(state)
        describe(handle, 0, len(state.degree))


def problem(state: CrowdState, ridges: Any) -> str:
    """What is wrong with a loaded state, as a phrase; `ridges` are those of `local`."""
    local, n, d = state.local, len(state.degree), state.local.b.shape[1]
    row, column = np.tril_indices(d)
    own = np.broadcast_to(ridges, n)[:, None] * (row == column)
    lent = np.hstack([local.A[:, row, column] - own, local.b])
    lent *= state.common.lends[:, None]
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
    is_list = with_cuts(state.apart, agent, state.scratch.cut)
    cut = np.array(state.scratch.cut if is_list else state.apart.bits[state.apart.heads[agent, ROW] - 1])
    if is_list:
        clear_cuts(state.apart, agent, state.scratch.cut)
    used = ~members(cut, n) & ~state.common.withdrawn
    used[agent] = True
    return np.asarray(used)


def withdraw(state: CrowdState, handle: Any, agent: int) -> None:
    """Take an agent's samples, which its own statistics no longer hold, out of everything else."""
    list_cuts(handle.cuts, handle.apart)  # its own are no longer in the log
    forget_points(state)
    describe(handle, 0, len(state.degree))
    sum_block(state.cards, state.kinds.silent, agent // WORD, state.blocks[agent // WORD])
    sum_total(state.blocks, state.total)


def amend(state: CrowdState, handle: Any, agent: int, x: Vector, change: float, removes: bool) -> None:
    """Bring up to date what holds a sample of an agent, whose own statistics have been amended."""
    relend(state, handle, agent)


def relend(state: CrowdState, handle: Any, agent: int) -> None:
    """Sum what an agent lends anew from its own statistics, nothing if it does not."""
    w = agent // WORD
    describe(handle, agent, agent + 1)
    sum_block(state.cards, state.kinds.silent, w, state.blocks[w])
    sum_total(state.blocks, state.total)


def rejoin(state: CrowdState, agent: int, joined: Booleans) -> None:
    """Let an agent share again with those in `joined`, whose cuts are no longer in the log."""
    list_cuts(state.cuts, state.apart)


@compiled
def list_cuts(cuts: Cuts, sets: Sets) -> None:
    """Put the cuts of the log into the agents' lists and rows, after emptying these."""
    heads = sets.heads
    for agent in range(heads.shape[0]):
        if heads[agent, ROW] > 0:
            for w in range(sets.bits.shape[1]):
                sets.bits[heads[agent, ROW] - 1, w] = 0
        for k in range(heads.shape[1]):
            heads[agent, k] = 0
    sets.rows_used[0] = 0
    for n in range(cuts.used[0]):
        one, two = cuts.pairs[n, 0], cuts.pairs[n, 1]
        note_cut(sets, one, two)
        note_cut(sets, two, one)


@compiled
def describe(state: Any, first: int, stop: int) -> None:
    """Compute what is derived of the agents `first`, …, `stop` − 1, and of the blocks they are in."""
    local, kinds = state.local, state.kinds
    n = state.radius.shape[0]
    for agent in range(first, stop):
        w, bit = agent // WORD, np.int64(1) << np.int64(agent % WORD)
        state.radius[agent] = scaled_radius(state, agent)
        write_card(local, agent, ridge_of(state, agent), state.radius[agent], state.cards[agent])
        kinds.fresh[w] &= ~bit
        kinds.gone[w] &= ~bit
        kinds.silent[w] &= ~bit
        if local.pulls[agent] == 0 or not state.common.lends[agent]:
            kinds.silent[w] |= bit
        if state.common.withdrawn[agent]:
            kinds.gone[w] |= bit
        elif local.pulls[agent] == 0:
            kinds.fresh[w] |= bit
    for w in range(first // WORD, (stop + WORD - 1) // WORD):
        state.sizes[w] = 0.0
        for agent in range(w * WORD, min(n, (w + 1) * WORD)):
            state.sizes[w] = max(state.sizes[w], largest_of(state.cards[agent], state.total.shape[1]))
    mark_points(
        local, state.radius, state.threshold, state.common.ridge, state.lengths, kinds, state.shared,
        state.scratch.choice, first, stop,
    )  # fmt: skip


@compiled
def write_card(local: Statistics, agent: int, ridge: float, radius: float, card: Vector) -> None:
    """Write down what tests and sums need of an agent."""
    d = local.b.shape[1]
    position = 0
    for row in range(d):
        for column in range(row + 1):
            card[position] = local.A[agent, row, column]
            position += 1
        card[position - 1] -= ridge
    for m in range(d):
        card[position + m] = local.b[agent, m]
        card[position + d + m] = local.theta_hat[agent, m]
    card[position + 2 * d] = radius


@compiled
def largest_of(card: Vector, packed: int) -> float:
    """How large the entries of an agent's sums are."""
    largest = 0.0
    for m in range(packed):
        largest = max(largest, abs(card[m]))
    return largest


@compiled
def sum_block(cards: Matrix, silent: Integers, w: int, block: Vector) -> None:
    """Sum what 64 agents lend anew, so that no rounding piles up."""
    n = cards.shape[0]
    for m in range(block.shape[0]):
        block[m] = 0.0
    every = np.int64(FULL)
    if n - w * WORD < WORD:
        every = (np.int64(1) << np.int64(n - w * WORD)) - np.int64(1)
    add_rows(1.0, cards, w * WORD, int(every & ~silent[w]), block)


@compiled
def sum_total(blocks: Matrix, total: Matrix) -> None:
    """Sum all blocks anew."""
    total[:] = 0.0
    for w in range(blocks.shape[0]):
        for m in range(blocks.shape[1]):
            total[0, m], lost = two_sum(total[0, m], blocks[w, m])
            total[1, m] += lost


# Sets of cuts


@compiled
def note_cut(sets: Sets, agent: int, other: int) -> None:
    """Put a cut into an agent's list."""
    head = sets.heads[agent]
    if head[LENGTH] == LISTED:
        empty_list(sets, agent)
    head[LIST + head[LENGTH]] = other
    head[LENGTH] += 1
    head[NUMBER] += 1


@compiled
def empty_list(sets: Sets, agent: int) -> None:
    """Move an agent's listed cuts into its row of bits, which it gets if it has none."""
    head = sets.heads[agent]
    if head[ROW] == 0:
        sets.rows_used[0] += 1
        head[ROW] = sets.rows_used[0]
    bits = sets.bits[head[ROW] - 1]
    for k in range(head[LENGTH]):
        set_bit(bits, head[LIST + k])
    head[LENGTH] = 0


@compiled
def with_cuts(sets: Sets, agent: int, cut: Integers) -> bool:
    """Make an agent's cuts a set: True if that is `cut`, to be cleared again, else its row of bits."""
    head = sets.heads[agent]
    if head[ROW] > 0:
        empty_list(sets, agent)
        return False
    for k in range(head[LENGTH]):
        set_bit(cut, head[LIST + k])
    return True


@compiled
def clear_cuts(sets: Sets, agent: int, cut: Integers) -> None:
    """Leave `cut` as empty as it was."""
    head = sets.heads[agent]
    for k in range(head[LENGTH]):
        cut[head[LIST + k] // WORD] = 0


@compiled
def is_cut(sets: Sets, agent: int, other: int) -> bool:
    """Whether two agents were cut."""
    head = sets.heads[agent]
    for k in range(head[LENGTH]):
        if head[LIST + k] == other:
            return True
    return head[ROW] > 0 and has_bit(sets.bits[head[ROW] - 1], other)


@compiled
def cut_pair(state: CrowdState, agent: int, other: int, t: int) -> None:
    """Let two agents share no more, for good."""
    log_cut(state.cuts, state.degree, state.common.active, agent, other, t)
    note_cut(state.apart, agent, other)
    note_cut(state.apart, other, agent)


# The choice


@step("own_units", CrowdState)
def own_units(state: CrowdState, agent: int) -> tuple[float, float]:
    return units_of_own(state, agent) if math.isnan(state.noise_scale) else (1.0, 1.0)


@step("select", CrowdState)
def select(state: CrowdState, agent: int, arms: Matrix, t: int) -> int:
    factor_pool(state, agent)
    return choose_from_pool(state, agent, arms, t)


@step("foresee", CrowdState)
def foresee(state: CrowdState, agent: int, x: Vector) -> tuple[float, float]:
    factor_pool(state, agent)
    return moments_in_pool(state, x)


@inlined
def factor_pool(state: CrowdState, agent: int) -> None:
    """Leave the factor of the agent's pooled A in `scratch.L`, and b at the end of `scratch.total`."""
    work, ridge = state.scratch, units_of_pool(state, agent)[0]
    sum_pool(
        state.total, state.blocks, state.cards, state.sizes, state.apart, state.kinds.silent,
        state.shared.moves[0], ridge, agent, work.cut, work.total,
    )  # fmt: skip
    if not state.common.lends[agent]:
        add_rows(1.0, state.cards, agent, 1, work.total)
    if not factor_sums(state, ridge):
        count = 0
        for j in range(state.radius.shape[0]):
            is_used = state.common.lends[j] or j == agent
            if is_used and state.local.pulls[j] > 0 and not is_cut(state.apart, agent, j):
                work.agents[0, count] = j
                count += 1
        work.agents[0, count] = -1
        factor_twofold(state, work.agents[0], ridge, work.L, work.test.tail)


@compiled
def sum_pool(
    sums: Matrix,
    blocks: Matrix,
    cards: Matrix,
    sizes: Vector,
    sets: Sets,
    silent: Integers,
    moves: int,
    ridge: float,
    agent: int,
    scratch_cut: Integers,
    total: Vector,
) -> None:
    """Sum an agent's pool into `total`: everyone less those cut, if these are few, else 64 by 64."""
    head = sets.heads[agent]
    largest = 0.0
    for m in range(total.shape[0]):
        total[m] = sums[0, m] + sums[1, m]
        largest = max(largest, abs(total[m]))
    # Each subtraction rounds by at most half a unit in the last place of the total: in all below 1e-8 ridge.
    subtractable = (head[NUMBER] + 1) * 0.5 * EPS * largest <= 1e-8 * ridge
    if subtractable and head[ROW] == 0:
        for k in range(head[LENGTH]):
            if not has_bit(silent, head[LIST + k]):  # their sums are not in the total
                add_rows(-1.0, cards, head[LIST + k], 1, total)
        return
    is_list = with_cuts(sets, agent, scratch_cut)
    cut = scratch_cut if is_list else sets.bits[head[ROW] - 1, : scratch_cut.shape[0]]
    # No more agents have samples than there were moves: less than half of those are cut.
    if subtractable and 2 * head[NUMBER] < min(moves, cards.shape[0]):
        for w in range(cut.shape[0]):
            if cut[w] & ~silent[w] != 0:
                add_rows(-1.0, cards, w * WORD, cut[w] & ~silent[w], total)
    else:
        sum_kept(cards, blocks, sizes, SUBTRACTABLE * ridge, cut, silent, total)
    if is_list:
        clear_cuts(sets, agent, scratch_cut)


@step("observe", CrowdState)
def observe(state: CrowdState, agent: int, x: Vector, reward: float, t: int) -> None:
    shared = state.shared
    take_in(state, agent, x, reward)
    mark_agent(
        state.local, state.radius, state.threshold, ridge_of(state, agent), shared.points, shared.masks,
        state.scratch.choice, agent,
    )  # fmt: skip
    mark_block(shared.masks, shared.everyone, state.radius.shape[0], agent // WORD)


@step("learn", CrowdState)
def learn(state: CrowdState, agent: int, x: Vector, reward: float, t: int) -> None:
    take_in(state, agent, x, reward)  # there are no points, and nobody contains any
    state.shared.due[0] = state.shared.moves[0] + FIRST_REFRESH


@step("cut", CrowdState)
def cut_if_joined(state: CrowdState, agent: int, other: int, t: int) -> bool:
    if is_cut(state.apart, agent, other):
        return False
    cut_pair(state, agent, other, t)
    return True


@inlined
def take_in(state: CrowdState, agent: int, x: Vector, reward: float) -> None:
    """Add a sample to all sums."""
    local, shared, card, w = state.local, state.shared, state.cards[agent], agent // WORD
    # Everything that others read of this agent is brought up to date here, in O(d²), with no work per pair.
    take_counted(state, agent, x, reward)
    state.radius[agent] = scaled_radius(state, agent)
    write_card(local, agent, ridge_of(state, agent), state.radius[agent], card)
    state.sizes[w] = max(state.sizes[w], largest_of(card, state.total.shape[1]))
    # It has a sample now, and is no longer like all the others without one.
    state.kinds.fresh[w] &= ~(np.int64(1) << np.int64(agent % WORD))
    if state.common.lends[agent]:
        state.kinds.silent[w] &= ~(np.int64(1) << np.int64(agent % WORD))
        if local.pulls[agent] % REFRESH_EVERY == 0:
            sum_block(state.cards, state.kinds.silent, w, state.blocks[w])
        else:
            add_packed(state.blocks[w], x, reward)
        add_to_total(state.total, x, reward)
        state.common.cost[0] += state.degree[agent]
        if state.common.restricted[0] > 0:
            for j in range(state.degree.shape[0]):
                if state.common.active[j] and not state.common.borrows[j]:
                    state.common.cost[0] -= not is_cut(state.apart, agent, j)
    shared.recent[shared.moves[0] % SAMPLE] = agent
    shared.moves[0] += 1


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


@compiled
def mark_agent(
    local: Statistics,
    radius: Vector,
    threshold: float,
    ridge: float,
    points: Tensor,
    masks: Integers,
    work: ChoiceScratch,
    agent: int,
) -> None:
    """Find out which shared points an agent contains, with a margin for rounding."""
    theta, A, limit = local.theta_hat[agent], local.A[agent], threshold * radius[agent]
    steep = is_steep(local, agent)
    limit = limit * (1.0 - SAFETY) if steep else safe_limit(limit, A, ridge)
    for g in range(GROUPS):
        excess_at(theta, A, points[g], work.offsets, work.excess)
        if steep:
            add_rounding(A, work.offsets, work.excess)
        masks[g, agent] = points_within(limit, work.excess)


@compiled
def mark_block(masks: Integers, everyone: Integers, n: int, w: int) -> None:
    """Find out which points all of 64 agents contain."""
    for g in range(GROUPS):
        all_of_them = np.int64(FULL)
        for agent in range(w * WORD, min(n, (w + 1) * WORD)):
            all_of_them &= masks[g, agent]
        everyone[g, w] = all_of_them


@compiled
def mark_points(
    local: Statistics,
    radius: Vector,
    threshold: float,
    ridge: float,
    lengths: Vector,
    kinds: Kinds,
    shared: Shared,
    work: ChoiceScratch,
    first: int,
    stop: int,
) -> None:
    """Find out which points the agents `first`, …, `stop` − 1 contain: all that have no samples the same.

    Agents whose samples were withdrawn are tested with nobody, and count as if they contained every point.
    """
    # Most of a young crowd has no samples: their ellipsoids are the same, so one of them answers for all.
    masks, known, n = shared.masks, -1, radius.shape[0]
    for agent in range(first, stop):
        is_fresh = has_bit(kinds.fresh, agent)
        if has_bit(kinds.gone, agent):
            for g in range(GROUPS):
                masks[g, agent] = FULL
        elif is_fresh and known >= 0:
            for g in range(GROUPS):
                masks[g, agent] = masks[g, known]
        else:
            own = ridge_at(ridge, lengths, agent)
            mark_agent(local, radius, threshold, own, shared.points, masks, work, agent)
            known = agent if is_fresh else known
    for w in range(first // WORD, (stop + WORD - 1) // WORD):
        mark_block(masks, shared.everyone, n, w)


@compiled
def keep_candidate(shared: Shared, point: Vector) -> None:
    """Remember a point that two agents share."""
    if math.isnan(point[0]):  # tangents decided, not a point
        return
    at = shared.found[0] % RING
    shared.found[0] += 1
    for m in range(point.shape[0]):
        shared.ring[m, at] = point[m]


@compiled
def refresh_points(
    local: Statistics,
    radius: Vector,
    threshold: float,
    ridge: float,
    lengths: Vector,
    kinds: Kinds,
    sets: Sets,
    shared: Shared,
    work: ChoiceScratch,
) -> None:
    """Choose the shared points anew: those, old or found lately, that prove most pairs of some agents."""
    n, d = local.b.shape
    for m in range(d):
        for k in range(RING):
            work.candidates[m, k] = shared.ring[m, k]
        for k in range(POINTS):
            work.candidates[m, RING + k] = shared.points[k // WORD, m, k % WORD]
    # N² pairs are too many to choose for. Those who moved lately are the ones whose pairs are tested next.
    count = draw_sample(shared, kinds, n, work.sample)
    work.sets[:] = 0
    work.left[:] = 0
    for k in range(count):
        i = work.sample[k]
        bit = np.int64(1) << np.int64(k % WORD)
        # With a margin for rounding, as in `mark_agent`, which has the last word.
        limit = safe_limit(threshold * radius[i], local.A[i], ridge_at(ridge, lengths, i))
        excess_at(local.theta_hat[i], local.A[i], work.candidates, work.far, work.distances)
        for c in range(RING + POINTS):
            if work.distances[c] <= limit:
                work.sets[c, k // WORD] |= bit
        for m in range(count):
            # Pairs that still share are what points are to prove; those cut need none.
            if m != k and not is_cut(sets, i, work.sample[m]):
                work.left[m, k // WORD] |= bit
    used = cover_greedily(work.sets, work.left, work.gains, work.chosen, POINTS)
    for p in range(POINTS):
        for m in range(d):
            point = work.candidates[m, work.chosen[p]] if p < used else math.nan
            shared.points[p // WORD, m, p % WORD] = point
    # New points: nobody knows yet who contains them. This is the O(N d²) that makes refreshing rare.
    mark_points(local, radius, threshold, ridge, lengths, kinds, shared, work, 0, n)
    shared.due[0] = shared.moves[0] + max(min(shared.moves[0], n // 2), FIRST_REFRESH)


@compiled
def draw_sample(shared: Shared, kinds: Kinds, n: int, sample: Integers) -> int:
    """Put different agents into `sample`, those that moved lately first, and count them."""
    count = 0
    for k in range(SAMPLE):
        agent = k * n // SAMPLE
        if k < RECENT:
            agent = shared.recent[(shared.moves[0] - 1 - k) % SAMPLE]
        new = agent >= 0 and not has_bit(kinds.gone, max(agent, 0))
        for m in range(count):
            new = new and sample[m] != agent
        if new:
            sample[count] = agent
            count += 1
    return count


# The test


@step("revise", CrowdState)
def revise(state: CrowdState, agent: int, t: int) -> None:
    shared, work = state.shared, state.scratch
    if shared.moves[0] >= shared.due[0]:
        refresh_points(
            state.local, state.radius, state.threshold, state.common.ridge, state.lengths, state.kinds,
            state.apart, shared, work.choice,
        )  # fmt: skip
    is_list = with_cuts(state.apart, agent, work.cut)
    row = state.apart.heads[agent, ROW] - 1
    cut = work.cut if is_list else state.apart.bits[row, : work.cut.shape[0]]
    # Two agents that contain one point share it, which by lemma 1 proves that they are not separated. Sets of
    # 64 points and 64 agents as words leave few pairs to test.
    count, other = list_unproved(shared, state.kinds, cut, agent, state.radius.shape[0], work.agents[0])
    fresh_count = 0
    if other >= 0:  # without samples, and so like all others without
        if are_separated(state, agent, other):
            fresh_count = list_fresh(state.kinds.fresh, cut, work.agents[1])
        else:
            keep_candidate(shared, work.test.vectors[Z])
    # Before any new cut: these go into the lists that the set was made from.
    if is_list:
        clear_cuts(state.apart, agent, work.cut)
    for k in range(fresh_count):
        cut_pair(state, agent, work.agents[1, k], t)
    left, source = settle_by_sixteen(state, agent, count, t)
    for k in range(left):
        other = work.agents[source, k]
        if are_separated(state, agent, other):
            cut_pair(state, agent, other, t)
        else:
            keep_candidate(shared, work.test.vectors[Z])


@compiled
def list_unproved(
    shared: Shared, kinds: Kinds, cut: Integers, agent: int, n: int, listed: Integers
) -> tuple[int, int]:
    """List the neighbours with whom the agent shares none of the points; return how many.

    Of those without samples, who are all alike, only one is returned, −1 if there is none.
    """
    count, other = 0, -1
    for w in range(cut.shape[0]):
        # One word rules out 64 agents at once, if all of them contain one of the agent's points.
        proved = cut[w] == FULL
        for g in range(GROUPS):
            proved = proved or shared.masks[g, agent] & shared.everyone[g, w] != 0
        if proved:
            continue
        first = w * WORD
        left = ~(cut[w] | kinds.gone[w])
        if n - first < WORD:
            left &= (np.int64(1) << np.int64(n - first)) - np.int64(1)
        if w == agent // WORD:
            left &= ~(np.int64(1) << np.int64(agent % WORD))
        for g in range(GROUPS):
            left &= ~meets(shared.masks[g], first, shared.masks[g, agent])
        fresh = left & kinds.fresh[w]
        left &= ~fresh
        while left != 0:
            listed[count] = first + lowest_bit(left)
            left = drop_lowest(left)
            count += 1
        if fresh != 0:
            other = first + lowest_bit(fresh)
    return count, other


@compiled
def list_fresh(fresh: Integers, cut: Integers, listed: Integers) -> int:
    """List the agents without samples that are not cut, and count them."""
    count = 0
    for w in range(cut.shape[0]):
        left = fresh[w] & ~cut[w]
        while left != 0:
            listed[count] = w * WORD + lowest_bit(left)
            left = drop_lowest(left)
            count += 1
    return count


@inlined
def settle_by_sixteen(state: CrowdState, agent: int, count: int, t: int) -> tuple[int, int]:
    """Test the first `count` agents listed, sixteen at a time, and cut those found separated from the agent.

    Return how many are left undecided, and in which row of `scratch.agents` they are.
    """
    work, local, radius = state.scratch, state.local, state.radius[agent]
    certain = state.threshold * (1.0 - SAFETY)
    lucky, kept = t * 7919, False  # whose point becomes a candidate: as good as drawn
    source, left = 0, count
    for number in range(STEPS + 1):
        if left == 0 or (number > 0 and left < FEW):
            break
        target, still = 1 - source, 0
        # Undecided pairs move up into full sixteens after each step: no lane works on what is settled.
        repeat_last(work.agents[source], left)
        for start in range(0, left, WIDTH):
            here, lanes = min(WIDTH, left - start), work.sixteen
            gather(local.theta_hat[agent], state.cards, work.agents[source], start, lanes.cards, lanes.v)
            for lane in range(WIDTH):
                lanes.ridges[0, lane] = ridge_of(state, work.agents[source, start + lane])
            unproved = here
            if number == 0:
                unproved = open_by_bound(local.A[agent], radius, certain, here, lanes)
            else:
                for lane in range(WIDTH):
                    lanes.open[lane] = lane < here
                    lanes.ratio[0, lane] = work.ratios[source, start + min(lane, here - 1)]
            is_probed = number > 0 or 2 * unproved > WIDTH  # too few: they are put together first
            if is_probed:
                probe_lanes(
                    local.A[agent], radius, lanes.ridges, lanes.v, lanes.cards, lanes.ratio, lanes.factors,
                    lanes.vectors, lanes.out,
                )  # fmt: skip
            for lane in range(here):
                if lanes.open[lane]:
                    other, ratio, verdict = work.agents[source, start + lane], lanes.ratio[0, lane], UNDECIDED
                    if is_probed:
                        verdict = judge(lanes.out, lane, ratio, state.threshold)
                        ratio = next_ratio(lanes.out, lane, ratio)
                    lanes.open[lane] = verdict == TOGETHER
                    work.agents[target, still] = other
                    work.ratios[target, still] = ratio
                    still += verdict == UNDECIDED
                    if verdict == APART:
                        cut_pair(state, agent, other, t)
            if is_probed and not kept and start + WIDTH > lucky % left:
                kept = keep_point(state.shared, local.theta_hat, work.agents[source], start, lanes)
        source, left = target, still
    return left, source


@compiled
def open_by_bound(A_i: Matrix, c_i: float, certain: float, here: int, lanes: Sixteen) -> int:
    """Mark the lanes that lemma 2 leaves open, and count them; the ratios are where searches start."""
    bound_lanes(A_i, c_i, lanes.ridges, lanes.v, lanes.cards, lanes.out)
    count = 0
    for lane in range(WIDTH):
        lanes.open[lane] = lane < here and not lanes.out[BOUND, lane] <= certain
        lanes.ratio[0, lane] = lanes.out[START, lane]
        count += lanes.open[lane]
    return count


@compiled
def keep_point(shared: Shared, theta_hat: Matrix, listed: Integers, start: int, lanes: Sixteen) -> bool:
    """Remember the point of the first pair, of those just probed, that shares one, if there is any."""
    for lane in range(WIDTH):
        if lanes.open[lane]:
            at = shared.found[0] % RING
            shared.found[0] += 1
            for m in range(theta_hat.shape[1]):
                shared.ring[m, at] = theta_hat[listed[start + lane], m] + lanes.vectors[m, lane]
            return True
    return False


@compiled
def repeat_last(listed: Integers, count: int) -> None:
    """Fill the sixteen that the last agents of a list are tested with."""
    for k in range(count, count + WIDTH):
        listed[k] = listed[count - 1]


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
    """Newton's step on ½ ln(q_i/q_j), as in the search, but for its bracket: at most by a factor of e³."""
    q_i, q_j = out[Q_I, lane], out[Q_J, lane]
    slope = out[CURVATURE, lane] * ratio * (q_i + ratio * q_j)
    if not (slope > 0.0 and q_i > 0.0 and q_j > 0.0):
        return ratio
    step = -0.5 * math.log(q_i / q_j) * q_i * q_j / slope
    return ratio * math.exp(min(max(step, -3.0), 3.0))
