"""BASS: share with everyone until a test says stop (Cherkaoui, Barlier and Colin 2025).

The graph starts complete, and an agent learns from its own samples and its neighbours'. Two agents stop
sharing, for good, when their confidence ellipsoids no longer overlap: then the bias of sharing has
outgrown the noise it removes.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.fields import (
    AGENTS,
    BLOCKS,
    COUNT,
    DIM,
    PACKED,
    TRIANGLE,
    Size,
    derived,
    kept,
    log,
    rows,
    scratch,
    setting,
)
from shoal.kernels.bits import (
    FULL,
    WORD,
    add_everywhere,
    are_mutual,
    as_set,
    count_absent,
    has_bit,
    members,
    set_bit,
)
from shoal.kernels.compiled import compiled, inlined
from shoal.kernels.graphs import distance, pairs_of, pairs_within, separation_times
from shoal.kernels.linalg import add_packed, cholesky, dot, solve_cholesky, sum_packed, trace, unpack
from shoal.kernels.separation import (
    APART,
    EPS,
    ILL_CONDITIONED,
    SAFETY,
    TOGETHER,
    UNDECIDED,
    Batch,
    Scratch,
    Z,
    add_rounding,
    excess_at,
    excess_grows,
    forms_of,
    probe_many,
    safe_limit,
    search,
    segment_bounds,
    squared_width,
)
from shoal.kernels.separation import LANES as PAIRS
from shoal.kernels.twofold import add_scaled, add_to_diagonal, cholesky_twofold
from shoal.kernels.ucb import LANES, best_arm_of_factor
from shoal.policies.base import Policy
from shoal.policies.parameters import Parameters
from shoal.policies.steps import Common, step
from shoal.statistics import REFRESH_EVERY, Statistics, add_sample, is_steep, packed_problem
from shoal.types import AnyArray, Booleans, Integers, Matrix, Tensor, Vector
from shoal.validation import LARGEST, SMALLEST

WITNESS_BYTES = 2**28
"""Memory that witnesses may take. With more agents than that allows, none are kept (see `Crowd`)."""
SUBTRACTABLE = 2.0**12
"""Largest entry of agents' sums, over the ridge, with which they may be subtracted from a sum of 64: the
rounding stays below 1e-8 of the ridge, which the pooled A exceeds in every direction."""
CUT_BYTES = 16
"""Memory of a cut in the log."""
ROOM = 2**12
"""Least room of the log of cuts."""
FEW = 3
"""Agents of 64 that are sooner tested one by one than screened together once more."""
OUTLIER = 1000.0
"""After a sample this surprising for the ellipsoid, the distances to the witnesses are computed afresh."""


WITNESSES = Size("witnesses")
"""As many as there are agents, or 0 where a crowd is kept instead."""
CROWD = Size("crowd")
"""As many as there are blocks, or 0 where witnesses are kept."""


class BASSScratch(NamedTuple):
    """Work space."""

    total: Annotated[Vector, scratch(PACKED)]  # packed sums of a pool
    L: Annotated[Matrix, scratch(DIM, DIM)]  # its factor
    lanes: Annotated[Matrix, scratch(DIM + 2, LANES)]  # for the scores
    rows: Annotated[Matrix, scratch(DIM, Size("offsets"))]  # offsets of points, from witnesses or 64 agents
    screen: Annotated[Matrix, scratch(5, WORD)]  # for the screen
    chosen: Annotated[Integers, scratch(PAIRS + WORD)]  # indices of agents
    test: Scratch
    batch: Batch


class Cuts(NamedTuple):
    """Log of the separations, in order; of each pair the lower id first."""

    pairs: Annotated[AnyArray, log(2, count="used", dtype=np.int32, low=0, below=AGENTS)]
    rounds: Annotated[Integers, log(count="used", **COUNT)]
    used: Annotated[Integers, kept(1, **COUNT)]


class Crowd(NamedTuple):
    """What serves in place of witnesses, where these would take too much memory; else empty.

    The statistics of the 64 agents that share an integer of a set stand side by side.
    """

    centers: Annotated[Tensor, derived(CROWD, DIM, WORD)]  # θ̂
    designs: Annotated[Tensor, derived(CROWD, TRIANGLE, WORD)]  # lower triangles of A
    steepness: Annotated[Matrix, derived(CROWD, WORD)]  # tr A − (d−1)·ridge, which no eigenvalue of A exceeds
    sizes: Annotated[Vector, derived(CROWD)]  # what no entry of the 64 rows of `lent` exceeds


class BASSState(NamedTuple):
    """State of BASS."""

    common: Common
    noise_scale: Annotated[float, setting()]
    offset: Annotated[float, setting()]  # √ridge · S, the part of β that does not grow
    confidence: Annotated[float, setting()]  # 2 ln(1/δ) − d ln(ridge)
    squared: Annotated[bool, setting()]  # whether the test uses β² or β
    threshold: Annotated[float, setting()]  # γ²/4
    local: Annotated[Statistics, rows(AGENTS)]
    lent: Annotated[Matrix, kept(AGENTS, PACKED)]  # packed Σ x xᵀ and b of each agent
    blocks: Annotated[Matrix, kept(BLOCKS, PACKED)]  # sums of 64 rows of `lent`
    apart: Annotated[Integers, kept(AGENTS, BLOCKS)]  # sets: whose samples an agent does not use
    cuts: Cuts
    degree: Annotated[Integers, derived(AGENTS)]  # active neighbours
    radius: Annotated[Vector, derived(AGENTS)]  # c_i, which is β_i or its square
    witness: Annotated[Tensor, derived(WITNESSES, DIM, WITNESSES, nan=True)]
    """Column j of row i is a point in both ellipsoids, or nan."""
    excess: Annotated[Matrix, derived(WITNESSES, WITNESSES, nan=True)]  # ‖p−θ̂_i‖²_{A_i} of that point
    crowd: Crowd
    scratch: BASSScratch


class BASSParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of BASS."""

    delta: Annotated[float, Meta(gt=0.0, lt=1.0, description="Confidence level of the ellipsoids.")]
    gamma: Annotated[
        float,
        Meta(ge=SMALLEST, le=LARGEST, description="Scale of the ellipsoids: larger values share longer."),
    ] = 2.0
    radius: Annotated[
        Literal["beta", "beta_squared"], Meta(description="Scale the ellipsoids by β or by β².")
    ] = "beta"
    noise_scale: Annotated[
        float, Meta(ge=SMALLEST, le=LARGEST, description="R, the scale of the sub-Gaussian noise.")
    ] = 1.0
    param_norm: Annotated[
        float, Meta(ge=0.0, le=LARGEST, description="S, a bound on the norm of every agent's parameter.")
    ] = 1.0


class Explanation(NamedTuple):
    """Why two agents share, or stopped."""

    statistic: float
    """max f, from the agents' present samples."""
    threshold: float
    """γ²/4: above it the pair separates."""
    s: float
    """The s at which the statistic is attained."""
    radius_agent: float
    radius_other: float
    """β of each."""
    separated: bool
    separation_time: int
    """Round of the separation, −1 if there was none."""
    lent_by_agent: int
    lent_by_other: int
    """Samples each contributes to the other's pool now."""


class BASS(Policy):
    """Shares samples along the edges of a graph; cuts (i, j) when `max_s f(s) > γ²/4`.

    Parameters
    ----------
    delta : float
        Confidence level of the ellipsoids, in (0, 1).
    gamma : float
        Scale of the ellipsoids: larger values share longer.
    radius : {"beta", "beta_squared"}
        Scale the ellipsoids by β (as published figures do) or by β² (as the proofs do; try γ = 1.25 with it).
    noise_scale : float
        R, the scale of the sub-Gaussian noise.
    param_norm : float
        S, a bound on the norm of every agent's parameter: β has the summand √ridge · S. 0 is the radius as
        the paper prints it; its authors run it with S (docs/algorithms.md).

    Examples
    --------
    >>> import numpy as np, shoal
    >>> policy = shoal.BASS(n_agents=3, dim=2, alpha=0.3, delta=0.1)
    >>> arms = np.eye(2)
    >>> policy.update(0, arms[1], reward=1.0)
    >>> policy.select(2, arms)  # agent 2 has no sample of its own, and uses agent 0's
    1

    Notes
    -----
    Departs from the paper: the printed test's slips are corrected, and the radius has the term √ridge · S of
    the theorem that the paper cites (docs/algorithms.md).
    """

    name = "bass"
    label = "BASS"
    Parameters = BASSParameters
    State = BASSState

    def _sizes(self, n_agents: int) -> dict[str, int]:
        sizes = super()._sizes(n_agents)
        keeps_witnesses = n_agents**2 * 8 * (self.dim + 1) <= WITNESS_BYTES
        return {
            **sizes,
            "witnesses": n_agents if keeps_witnesses else 0,
            "crowd": 0 if keeps_witnesses else sizes["blocks"],
            "offsets": n_agents if keeps_witnesses else WORD,
        }

    def _settings(self) -> dict[str, Any]:
        own = self._parameters
        return {
            **super()._settings(),
            "offset": math.sqrt(own.ridge) * own.param_norm,
            "confidence": -2.0 * math.log(own.delta) - self.dim * math.log(own.ridge),
            "squared": own.radius == "beta_squared",
            "threshold": own.gamma**2 / 4.0,
        }

    def _join(self, state: BASSState, first: int) -> None:
        active, withdrawn = state.common.active, np.flatnonzero(state.common.withdrawn)
        state.apart[first:] = as_set(state.common.withdrawn)
        for newcomer in range(first, len(active)) if len(withdrawn) else ():
            add_everywhere(state.apart, withdrawn, newcomer)
        state.degree[:first] += active[:first] * (len(active) - first)
        state.degree[first:] = np.count_nonzero(active) - 1
        if len(state.witness):  # the origin is in both ellipsoids of two agents who have no samples
            strangers = np.flatnonzero(state.local.pulls)
            for known in (state.witness, state.excess):
                known[strangers, ..., first:] = np.nan
                known[first:, ..., strangers] = np.nan
        is_crossing = first > 0 and len(self.state.crowd.sizes) == 0
        describe(state, 0 if is_crossing else first)

    def _derive(self, state: BASSState) -> None:
        active, n = state.common.active, len(state.degree)
        state.apart[:, -1:] &= as_set(np.ones(n, dtype=np.bool_))[-1:]  # no bits beyond the last agent
        state.degree[:] = count_absent(state.apart, as_set(active)) - active
        state.witness[...] = state.excess[...] = np.nan  # the test will find points
        describe(state, 0)

    def _problem(self, state: BASSState) -> str:
        if trouble := super()._problem(state):
            return trouble
        pairs, apart, n = state.cuts.pairs, state.apart, len(state.apart)
        first, second = pairs.T.astype(np.int64)
        if (first >= second).any() or len(np.unique(first * n + second)) < len(pairs):
            return "cuts.pairs are not pairs, the lower id first, each there once"
        if not (apart[first, second // WORD] >> (second % WORD) & 1).all() or not are_mutual(apart):
            return "apart does not fit the cuts, or is not mutual"
        if n == 0:
            return ""
        sums, sizes = (np.add.reduceat(each, np.arange(0, n, WORD)) for each in (state.lent, abs(state.lent)))
        if (np.abs(state.blocks - sums) > 1e-9 * (sizes + state.common.ridge)).any():
            return "blocks are not the sums of lent"
        return packed_problem(state.lent, state.local, state.common.ridge)

    def reserve(self, pulls: int) -> None:
        used, n = int(self.state.cuts.used[0]), self.n_agents
        if used + pulls * (n - 1) > len(self.state.cuts.rounds) < pairs_of(n):
            self._resize_cuts(min(max(2 * (used + pulls * (n - 1)), ROOM), pairs_of(n)))

    def _resize_cuts(self, room: int) -> None:
        self._refuse(CUT_BYTES * room, f"room for {room:,} cuts")
        pairs, rounds, used = self.state.cuts
        resized = Cuts(np.zeros((room, 2), np.int32), np.zeros(room, np.int64), used)
        resized.pairs[: used[0]], resized.rounds[: used[0]] = pairs[: used[0]], rounds[: used[0]]
        self.state = self.state._replace(cuts=resized)
        self._pinned = None, None  # let go of the old arrays

    @property
    def cuts(self) -> Integers:
        """The separations in order, shape (n, 3): the two agents, and the round."""
        with self.lock:
            pairs, rounds, (count,) = self.state.cuts
            return np.column_stack([pairs[:count].astype(np.int64), rounds[:count]])

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        if not self.state.common.active.all():
            return super().count_edges(labels)
        used = int(self.state.cuts.used[0])
        edges = pairs_of(self.n_agents) - used
        if labels is None:
            return edges, 0
        ends = labels[self.state.cuts.pairs[:used]]
        return edges, pairs_within(labels) - int(np.count_nonzero(ends[:, 0] == ends[:, 1]))

    @property
    def separation_time(self) -> Integers:
        """Round in which each pair separated, −1 if it never did, shape (N, N)."""
        return separation_times(self.cuts, self.n_agents)

    def explain(self, agent: int, other: int) -> Explanation:
        """Say how far two agents are from separating, or when they did, and what they lend each other."""
        with self.lock:
            i, j, state = self._check_agent(agent), self._check_agent(other), self.state
            if i == j:
                raise ValueError(f"other must differ from agent, got {other!r} twice")
            return self._explain(state, i, j)

    @staticmethod
    def _explain(state: BASSState, i: int, j: int) -> Explanation:
        local = state.local
        statistic, s, _ = search(
            local.theta_hat[i], local.A[i], local.tail[i], state.radius[i],
            local.theta_hat[j], local.A[j], local.tail[j], state.radius[j],
            state.threshold, False, True, state.scratch.test,
        )  # fmt: skip
        shared = not has_bit(state.apart[i], j)
        first, second = state.cuts.pairs[: state.cuts.used[0]].T
        here = np.flatnonzero((first == min(i, j)) & (second == max(i, j)))
        when = int(state.cuts.rounds[here[0]]) if len(here) else -1
        beta = np.sqrt(state.radius) if state.squared else state.radius
        return Explanation(
            statistic=statistic,
            threshold=state.threshold,
            s=s,
            radius_agent=float(beta[i]),
            radius_other=float(beta[j]),
            separated=when >= 0,
            separation_time=when,
            lent_by_agent=int(local.pulls[i]) if shared else 0,
            lent_by_other=int(local.pulls[j]) if shared else 0,
        )

    def _edges(self) -> Booleans:
        return ~members(self.state.apart, self.n_agents)

    def _pool(self, agent: int) -> Booleans:
        return ~members(self.state.apart[agent], self.n_agents)

    def _pooled_estimate(self, agent: int) -> Vector:
        factor_pool(self.state, agent)
        estimate, scratch = np.zeros(self.dim), self.state.scratch
        solve_cholesky(scratch.L, scratch.total[-self.dim :], estimate)
        return estimate

    def _end_edges(self, agent: int) -> None:
        neighbors = self._pool(agent)
        neighbors[agent] = False
        self.state.degree[neighbors] -= 1

    def _withdraw(self, agent: int) -> None:
        state, block = self.state, agent // WORD
        here = slice(block * WORD, (block + 1) * WORD)
        others = np.arange(self.n_agents) != agent
        add_everywhere(state.apart, others, agent)
        state.apart[agent] = as_set(others)
        state.lent[agent] = 0.0
        state.blocks[block] = state.lent[here].sum(axis=0)
        state.degree[agent] = 0
        if len(state.witness):
            for known in (state.witness, state.excess):
                known[agent] = known[..., agent] = np.nan
        if len(state.crowd.sizes):
            state.crowd.sizes[block] = np.abs(state.lent[here]).max()
        describe(state, agent)
        pairs, rounds, (used,) = state.cuts
        stay = np.flatnonzero((pairs[:used] != agent).all(axis=1))
        pairs[: len(stay)], rounds[: len(stay)] = pairs[stay], rounds[stay]
        pairs[len(stay) :], rounds[len(stay) :] = 0, 0
        state.cuts.used[0] = len(stay)


@step("select", BASSState)
def select(state: BASSState, agent: int, arms: Matrix, t: int) -> int:
    factor_pool(state, agent)
    width = state.common.alpha * math.sqrt(math.log(t + 1.0))
    work = state.scratch
    return best_arm_of_factor(work.L, work.total[-arms.shape[1] :], arms, width, work.lanes)


@step("observe", BASSState)
def observe(state: BASSState, agent: int, x: Vector, reward: float, t: int) -> None:
    local, work = state.local, state.scratch
    residual = reward - dot(x, local.theta_hat[agent])
    growth = add_sample(local, agent, x, reward)
    add_packed(state.lent[agent], x, reward)
    add_packed(state.blocks[agent // WORD], x, reward)
    state.radius[agent] = scaled_radius(state, agent)
    state.common.cost[0] += state.degree[agent]
    if state.witness.shape[0] == 0:
        join_crowd(state, agent)
        return
    points, excess = state.witness[agent], state.excess[agent]
    shrink = residual * residual / growth
    if is_steep(local, agent):
        excess_at(local.theta_hat[agent], local.A[agent], points, work.rows, excess)
        add_rounding(local.A[agent], work.rows, excess)
    elif local.pulls[agent] % REFRESH_EVERY == 0 or shrink > OUTLIER * state.threshold * state.radius[agent]:
        excess_at(local.theta_hat[agent], local.A[agent], points, work.rows, excess)
    else:
        excess_grows(points, x, reward, shrink, work.rows[0], excess)


@step("revise", BASSState)
def revise(state: BASSState, agent: int, t: int) -> None:
    apart, doubtful = state.apart[agent], state.scratch.chosen
    limit = state.threshold * state.radius[agent]
    if is_steep(state.local, agent):  # the excess allows for its rounding, point by point
        limit *= 1.0 - SAFETY
    else:
        limit = safe_limit(limit, state.local.A[agent], state.common.ridge)
    count = 0
    for w in range(apart.shape[0]):
        if apart[w] != FULL:
            if state.witness.shape[0] > 0:
                excess = state.excess[agent, w * WORD : (w + 1) * WORD]
                count += list_beyond(apart[w], w * WORD, agent, excess, limit, doubtful[count:])
            else:
                count += screen_crowd(state, agent, w, doubtful[count:])
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
        chosen[count] = first + lane
        joined = (apart >> lane) & 1 == 0
        count += joined & (not values[lane] <= limit) & (first + lane != agent)
    return count


@inlined
def screen_crowd(state: BASSState, agent: int, w: int, chosen: Integers) -> int:
    """List those of 64 neighbours that lemma 2 does not prove to share a point with the agent."""
    local, crowd, work, first = state.local, state.crowd, state.scratch, w * WORD
    c, radii, offsets = state.radius[agent], state.radius[first : first + WORD], work.rows
    d = offsets.shape[0]
    a, b, v_sq, inner, bounds = work.screen[0], work.screen[1], work.screen[2], work.screen[3], work.screen[4]
    excess_at(local.theta_hat[agent], local.A[agent], crowd.centers[w], offsets, a)
    v_sq[:] = 0.0
    for m in range(d):
        for lane in range(WORD):
            v_sq[lane] += offsets[m, lane] * offsets[m, lane]
    rounding = 16.0 * d * EPS
    rounding_a = rounding * trace(local.A[agent])
    for lane in range(WORD):
        a[lane] += rounding_a * v_sq[lane]
        b[lane] = crowd.steepness[w, lane] * v_sq[lane]
    segment_bounds(c, a, radii, b, bounds)
    apart, found, certain = state.apart[agent, w], bounds[: radii.shape[0]], state.threshold * (1.0 - SAFETY)
    count = list_beyond(apart, first, agent, found, certain, chosen)
    if count > FEW:
        forms_of(offsets, crowd.designs[w], inner, b)
        for lane in range(WORD):
            b[lane] += rounding * (crowd.steepness[w, lane] + d * state.common.ridge) * v_sq[lane]
        segment_bounds(c, a, radii, b, bounds)
        count = list_beyond(apart, first, agent, found, certain, chosen)
    return count


@compiled
def describe(state: BASSState, first: int) -> None:
    """Compute radius and place in the crowd, if there is one, of the agents from `first` on."""
    for agent in range(first, state.radius.shape[0]):
        state.radius[agent] = scaled_radius(state, agent)
        if state.crowd.sizes.shape[0] > 0:
            join_crowd(state, agent)


@inlined
def join_crowd(state: BASSState, agent: int) -> None:
    """Write an agent's statistics among those of the 64 side by side."""
    theta_hat, A, crowd = state.local.theta_hat[agent], state.local.A[agent], state.crowd
    w, lane = agent // WORD, agent % WORD
    position = 0
    for row in range(theta_hat.shape[0]):
        crowd.centers[w, row, lane] = theta_hat[row]
        for column in range(row + 1):
            crowd.designs[w, position + column, lane] = A[row, column]
        position += row + 1
    crowd.steepness[w, lane] = trace(A) - (A.shape[0] - 1) * state.common.ridge
    for m in range(state.lent.shape[1]):
        crowd.sizes[w] = max(crowd.sizes[w], abs(state.lent[agent, m]))


@inlined
def settle(state: BASSState, agent: int, others: Integers, t: int) -> None:
    """Cut the edges that the exact test says must go; keep a common point of the others."""
    local, test, batch = state.local, state.scratch.test, state.scratch.batch
    batched = others.shape[0] >= PAIRS // 2
    if batched:
        probe_many(agent, others, local.theta_hat, local.A, state.radius, state.threshold, batch)
    for lane in range(others.shape[0]):
        other, point, verdict = others[lane], test.vectors[Z], batch.verdicts[lane] if batched else UNDECIDED
        separated = verdict == APART
        if verdict == UNDECIDED:
            _, _, separated = search(
                local.theta_hat[agent], local.A[agent], local.tail[agent], state.radius[agent],
                local.theta_hat[other], local.A[other], local.tail[other], state.radius[other],
                state.threshold, True, False, test,
            )  # fmt: skip
        if separated:
            cut(state, agent, other, t)
        elif state.witness.shape[0] > 0:
            if verdict == TOGETHER:
                for m in range(point.shape[0]):
                    point[m] = local.theta_hat[other, m] + batch.vectors[1, m, lane]
            keep_witness(state, agent, other, point)


@inlined
def keep_witness(state: BASSState, agent: int, other: int, point: Vector) -> None:
    """Remember a point that two agents share."""
    for m in range(point.shape[0]):
        state.witness[agent, m, other] = point[m]
        state.witness[other, m, agent] = point[m]
    state.excess[agent, other] = excess_of(state, agent, point)
    state.excess[other, agent] = excess_of(state, other, point)


@inlined
def excess_of(state: BASSState, agent: int, point: Vector) -> float:
    """`‖p−θ̂‖²_A` of a point, and, if A is ill-conditioned, what rounding may have taken from it."""
    local = state.local
    excess = squared_distance(point, local.theta_hat[agent], local.A[agent])
    if is_steep(local, agent):
        size = distance(point, local.theta_hat[agent])
        excess += 16.0 * point.shape[0] * EPS * trace(local.A[agent]) * size * size
    return excess


@inlined
def factor_pool(state: BASSState, agent: int) -> None:
    """Leave the factor of the agent's pooled A in `scratch.L`, and b at the end of `scratch.total`."""
    work = state.scratch
    sum_packed(
        state.lent, state.blocks, state.crowd.sizes, SUBTRACTABLE * state.common.ridge, state.apart[agent],
        work.chosen, work.total,
    )  # fmt: skip
    unpack(work.total, state.common.ridge, work.L)
    if cholesky(work.L, work.L) < ILL_CONDITIONED:
        factor_twofold(state, agent)


@inlined
def factor_twofold(state: BASSState, agent: int) -> None:
    """Factor the agent's pooled A from sums with twice the digits."""
    local, L, tail, ridge = state.local, state.scratch.L, state.scratch.test.tail, state.common.ridge
    L[:] = 0.0
    tail[:] = 0.0
    add_to_diagonal(ridge, L, tail)
    for j in range(local.A.shape[0]):
        if not has_bit(state.apart[agent], j) and local.pulls[j] > 0:
            add_scaled(1.0, local.A[j], local.tail[j], L, tail)
            add_to_diagonal(-ridge, L, tail)
    cholesky_twofold(L, tail)


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
def cut(state: BASSState, agent: int, other: int, t: int) -> None:
    """Remove an edge for good."""
    n = state.cuts.used[0]
    if n >= state.cuts.rounds.shape[0]:
        raise IndexError("no room in the log of cuts: call reserve(pulls) before observe and revise")
    set_bit(state.apart[agent], other)
    set_bit(state.apart[other], agent)
    state.cuts.pairs[n, 0] = min(agent, other)
    state.cuts.pairs[n, 1] = max(agent, other)
    state.cuts.rounds[n] = t
    state.cuts.used[0] = n + 1
    state.degree[agent] -= state.common.active[other]
    state.degree[other] -= state.common.active[agent]


@inlined
def scaled_radius(state: BASSState, agent: int) -> float:
    """c_i, which is β_i or its square."""
    grown_sq = squared_width(state.noise_scale, state.confidence, state.local.logdet_A[agent])
    grown = math.sqrt(grown_sq)
    # The binomial, not the square of a sum: with S = 0 it is grown_sq to the bit.
    return grown_sq + (2.0 * grown + state.offset) * state.offset if state.squared else grown + state.offset
