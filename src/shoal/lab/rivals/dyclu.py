"""DyClu: χ² tests of which agents are alike and which have changed (Li, Wu and Wang 2021a).

Two agents are neighbours while a test of homogeneity does not tell their samples apart. A sample that an
agent's model does not explain is left out; when too many are, the model is put aside for agents that it fits.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta
from scipy.special import chdtri

from shoal.core.fields import AGENTS, BLOCKS, COUNT, DIM, PACKED, derived, kept, rows, scratch, setting
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.lanes import (
    WIDTH,
    add,
    larger,
    load,
    multiply,
    multiply_add,
    multiply_take,
    splat,
    store,
)
from shoal.core.kernels.linalg import add_row, back_substitute, unpack
from shoal.core.kernels.ucb import best_arm_of_width
from shoal.core.policies.mixture.kernels import factor_packed, predict
from shoal.core.policy.base import Policy
from shoal.core.policy.exploring import UCB, choose_by
from shoal.core.policy.parameters import Exploring
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics, add_own, add_sample, forget_row
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Tensor, Vector
from shoal.core.validation import LARGEST, SMALLEST

LEVEL = 0.01
"""Of both tests; also δ₁, the share of samples that fail without a change."""
LATE = 0.1
"""δ₂, the level at which a share of failures is a change."""
WINDOW = 20
"""Samples whose failures are counted."""
TINY = 1e-10
"""Share of a matrix's largest diagonal entry below which its remainder is rounding."""
REGULAR = 1e-6
"""Share of it above which a pivot is surely not rounding, in whatever order they come."""
FORM, RANK, LARGEST_ENTRY, PIVOT = range(4)
"""Rows of `tests`."""
GROUPS = 64 // WIDTH
"""Groups of agents in a block."""


class DyCluState(NamedTuple):
    """State of DyClu."""

    common: Common
    noise_scale: Annotated[float, setting()]
    has_own_bonus: Annotated[bool, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    alike: Annotated[Booleans, kept(AGENTS, AGENTS, fill=True)]
    renewed: Annotated[Booleans, kept(AGENTS)]  # whether an agent's model has to be compared again
    missed: Annotated[Booleans, kept(AGENTS, WINDOW)]  # samples that failed, in turn
    tested: Annotated[Integers, kept(AGENTS, **COUNT)]  # samples since the model was new, failures included
    past: Annotated[Matrix, kept(AGENTS, PACKED)]  # sums of models put aside, in turn
    past_pulls: Annotated[Integers, kept(AGENTS, **COUNT)]
    n_past: Annotated[Integers, kept(1, **COUNT)]
    reused: Annotated[Booleans, kept(AGENTS, AGENTS)]  # which of them an agent uses
    forms: Annotated[Matrix, derived(2, AGENTS)]  # bᵀS⁺b of each agent's model, and of each put aside
    ranks: Annotated[Matrix, derived(2, AGENTS)]
    sums: Annotated[Tensor, derived(2 * GROUPS * BLOCKS, PACKED, WIDTH)]  # of both, sixteen side by side
    limits: Annotated[Vector, derived(DIM + 1)]  # of χ², by degrees of freedom
    own: Annotated[Vector, scratch(PACKED)]
    total: Annotated[Vector, scratch(PACKED)]
    factors: Annotated[Matrix, scratch(PACKED, WIDTH)]
    tests: Annotated[Matrix, scratch(4, WIDTH)]
    L: Annotated[Matrix, scratch(DIM, DIM)]
    y: Annotated[Vector, scratch(DIM)]
    z: Annotated[Vector, scratch(DIM)]


class DyCluParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of DyClu."""

    noise_scale: Annotated[float, Meta(ge=SMALLEST, le=LARGEST, description="σ of the noise.")] = 1.0
    bonus: Annotated[
        Literal["own", "ucb"],
        Meta(description="α times the width of the pool's confidence ellipsoid, or α √(xᵀA⁻¹x ln(t+1))."),
    ] = "own"


class DyClu(Policy):
    """Pools the agents, and the models set aside, that a χ² test cannot tell from the agent's own.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, noise_scale=0.3, seed=5)
    >>> policy = shoal.make_policy("dyclu", 6, 3, noise_scale=0.3, alpha=0.3)
    >>> trace = shoal.simulate(policy, world, horizon=2_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

    Notes
    -----
    Departs from its source: at most N models are put aside, the oldest go (docs/algorithms.md).
    """

    name = "dyclu"
    label = "DyClu"
    line_style = LineStyle("#3f7d20", "X")
    Parameters = DyCluParameters
    State = DyCluState

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        return {"noise_scale": world.noise_scale} if world.noise_scale > 0 else {}

    def _settings(self) -> dict[str, Any]:
        found = super()._settings()
        own = self._parameters.bonus == "own" and found["explores"] == UCB
        return {**found, "has_own_bonus": own}

    def _join(self, state: DyCluState, first: int) -> None:
        self._derive(state)

    def _derive(self, state: DyCluState) -> None:
        state.limits[0] = np.inf  # nothing to tell apart
        state.limits[1:] = chdtri(np.arange(1, len(state.limits)), LEVEL)
        for agent in range(len(state.alike)):
            measure_own(self.pinned_state(state), agent)
            measure(self.pinned_state(state), 1, agent, state.past[agent])

    def _pool(self, agent: int) -> Booleans:
        pool = np.array(self.state.alike[agent])
        pool[agent] = True
        return pool

    def _pooled_estimate(self, agent: int) -> Vector:
        believe(self.pinned_state(), agent)
        return np.array(self.state.y)

    def _problem(self, state: DyCluState) -> str:
        if not np.array_equal(state.alike, state.alike.T):
            return "alike is not symmetric"
        return super()._problem(state)


@step("select", DyCluState)
def select(state: DyCluState, agent: int, arms: Matrix, t: int) -> int:
    n, common, d = believe(state, agent), state.common, arms.shape[1]
    if not state.has_own_bonus:
        return choose_by(common, state.y, state.L, arms, agent, t, state.z, 1.0)
    beta = state.noise_scale * math.sqrt(d * math.log(1.0 + n / (d * common.ridge)) - 2.0 * math.log(LEVEL))
    width = common.alpha * (beta + math.sqrt(common.ridge))
    return best_arm_of_width(state.y, state.L, arms, width, False, state.z, common.scored)


@step("observe", DyCluState)
def observe(state: DyCluState, agent: int, x: Vector, reward: float, t: int) -> None:
    failed = is_unexplained(state, agent, x, reward)
    state.missed[agent, state.tested[agent] % WINDOW] = failed
    state.tested[agent] += 1
    if failed:
        return
    add_sample(state.local, agent, x, reward)
    measure_own(state, agent)
    state.renewed[agent] = True
    for j in range(state.alike.shape[0]):
        state.common.cost[0] += j != agent and state.alike[agent, j]


@step("revise", DyCluState)
def revise(state: DyCluState, agent: int, t: int) -> None:
    n, misses = min(state.tested[agent], WINDOW), 0
    if state.renewed[agent]:
        compare(state, agent)
        state.renewed[agent] = False
    for m in range(n):
        misses += state.missed[agent, m]
    if n > 0 and misses / n > LEVEL + math.sqrt(-math.log(LATE) / (2.0 * n)):
        put_aside(state, agent)


@compiled
def believe(state: DyCluState, agent: int) -> int:
    """Leave estimate and factor of an agent's pool in `y` and `L`; count its samples."""
    total, n = state.total, 0
    total[:] = 0.0
    for j in range(state.alike.shape[0]):
        if j == agent or state.alike[agent, j]:
            add_own(state.local, j, state.common.ridge, total)
            n += state.local.pulls[j]
        if state.reused[agent, j]:
            add_row(1.0, state.past[j], total)
            n += state.past_pulls[j]
    factor_packed(total, state.common.ridge, state.L, state.y)
    back_substitute(state.L, state.y, state.y)
    return n


@compiled
def is_unexplained(state: DyCluState, agent: int, x: Vector, reward: float) -> bool:
    """Whether a sample is too far from what an agent's samples predict, once they span all directions."""
    if state.ranks[0, agent] < x.shape[0]:
        return False
    read_own(state, agent, state.own)
    factor_packed(state.own, 0.0, state.L, state.y)
    mean, variance = predict(state.L, state.y, x, state.z)
    return bool((reward - mean) ** 2 >= state.limits[1] * state.noise_scale**2 * (1.0 + variance))


@compiled
def compare(state: DyCluState, agent: int) -> None:
    """Test an agent's model against those of all others, and against those put aside."""
    n = state.alike.shape[0]
    read_own(state, agent, state.own)
    for first in range(0, n, WIDTH):
        others = min(WIDTH, n - first)
        add_together(state, 0, first)
        for lane in range(others):
            j = first + lane
            if j != agent:
                state.alike[agent, j] = are_alike(state, agent, 0, j)
                state.alike[j, agent] = state.alike[agent, j]
        others = min(others, state.n_past[0] - first)
        if others > 0:
            add_together(state, 1, first)
        for lane in range(others):
            state.reused[agent, first + lane] = are_alike(state, agent, 1, first + lane)


@inlined
def are_alike(state: DyCluState, agent: int, kind: int, other: int) -> bool:
    """Test whether an agent's samples and another model's, added by `add_together`, are of one parameter.

    `‖X_i(θ̂_i − θ̂)‖² + ‖X_j(θ̂_j − θ̂)‖²`, θ̂ of both, is what their residuals grow by when they share an
    estimate: the difference of forms `bᵀS⁺b`.
    """
    lane = other % WIDTH
    both, common_rank = state.tests[FORM, lane], int(state.tests[RANK, lane])
    if common_rank < 0:
        group = group_of(state, kind, other)
        for m in range(state.total.shape[0]):
            state.total[m] = state.own[m] + state.sums[group, m, lane]
        both, common_rank = form_and_rank(state.total, state.L, state.y)
    degrees = int(state.ranks[0, agent] + state.ranks[kind, other] - common_rank)
    growth = state.forms[0, agent] + state.forms[kind, other] - both
    return bool(growth < state.limits[degrees] * state.noise_scale**2)


@inlined
def group_of(state: DyCluState, kind: int, place: int) -> int:
    """Which of `sums` a model is in."""
    return int(kind * (state.sums.shape[0] // 2) + place // WIDTH)


@inlined
def add_together(state: DyCluState, kind: int, first: int) -> None:
    """Leave in `tests`, for sixteen models from `first` on, form and rank of their sums with `own`."""
    sums = state.sums[group_of(state, kind, first)]
    form_together(state.own, sums, state.y.shape[0], state.factors, state.tests)


@compiled
def form_together(own: Vector, sums: Matrix, d: int, L: Matrix, out: Matrix) -> None:
    """`form_and_rank` of `own` and each lane of `sums` together, by Cholesky in the given order.

    The rows of packed sums are the triangle of S and, as one more row, b: a factor's last row is L⁻¹b. Where
    a pivot is 0, so is the rest of its column. A rank below 0 says that a pivot was in doubt, and that the
    other function has to tell.
    """
    largest, form, start = splat(0.0), splat(0.0), 0
    for row in range(d):
        start += row
        largest = larger(largest, add(splat(own[start + row]), load(sums, start + row)))
        start += 1
    store(out, LARGEST_ENTRY, largest)
    store(out, RANK, splat(0.0))
    start = 0
    for row in range(d + 1):
        other = 0
        for column in range(row):
            value = add(splat(own[start + column]), load(sums, start + column))
            for k in range(column):
                value = multiply_take(load(L, start + k), load(L, other + k), value)
            value = multiply(value, load(L, other + column))
            store(L, start + column, value)
            if row == d:
                form = multiply_add(value, value, form)
            other += column + 1
        if row < d:
            pivot = add(splat(own[start + row]), load(sums, start + row))
            for k in range(row):
                entry = load(L, start + k)
                pivot = multiply_take(entry, entry, pivot)
            store(out, PIVOT, pivot)
            for lane in range(WIDTH):  # diagonal entries are kept inverted
                share = out[PIVOT, lane] / max(out[LARGEST_ENTRY, lane], SMALLEST)
                L[start + row, lane] = 1.0 / math.sqrt(out[PIVOT, lane]) if share > REGULAR else 0.0
                out[RANK, lane] += 1.0 if share > REGULAR else 0.0 if share <= TINY else -1e6
            start += row + 1
    store(out, FORM, form)


@compiled
def measure_own(state: DyCluState, agent: int) -> None:
    """`measure` an agent's model."""
    read_own(state, agent, state.own)
    measure(state, 0, agent, state.own)


@compiled
def measure(state: DyCluState, kind: int, place: int, packed: Vector) -> None:
    """Keep a model's sums beside the others', and compute its form and rank."""
    group, lane = group_of(state, kind, place), place % WIDTH
    for m in range(packed.shape[0]):
        state.sums[group, m, lane] = packed[m]
    state.forms[kind, place], state.ranks[kind, place] = form_and_rank(packed, state.L, state.y)


@inlined
def read_own(state: DyCluState, agent: int, out: Vector) -> None:
    """Write an agent's sums into `out`."""
    out[:] = 0.0
    add_own(state.local, agent, state.common.ridge, out)


@compiled
def form_and_rank(packed: Vector, S: Matrix, b: Vector) -> tuple[float, int]:
    """`bᵀS⁺b` and the rank of S, by elimination, largest diagonal entry first; `S` and `b` are scratch."""
    d = b.shape[0]
    unpack(packed, 0.0, S)
    largest = 0.0
    for row in range(d):
        b[row] = packed[packed.shape[0] - d + row]
        largest = max(largest, S[row, row])
        for column in range(row):
            S[column, row] = S[row, column]
    form, rank = 0.0, 0
    for _ in range(d):
        best = 0
        for row in range(1, d):
            best = row if S[row, row] > S[best, best] else best
        pivot = S[best, best]
        if pivot <= TINY * largest:
            break
        rank += 1
        form += b[best] * b[best] / pivot
        for row in range(d):
            factor = S[row, best] / pivot
            if row != best and factor != 0.0:
                b[row] -= factor * b[best]
                for column in range(d):
                    S[row, column] -= factor * S[best, column]
        for row in range(d):
            S[row, best] = 0.0
            S[best, row] = 0.0
    return form, rank


@compiled
def put_aside(state: DyCluState, agent: int) -> None:
    """Set a model aside, in place of the oldest if there is no room; its agent starts again with everyone."""
    n = state.alike.shape[0]
    place = state.n_past[0] % n
    read_own(state, agent, state.past[place])
    state.past_pulls[place] = state.local.pulls[agent]
    state.n_past[0] += 1
    forget_row(state.local, agent, state.common.ridge)
    state.tested[agent] = 0
    measure_own(state, agent)
    measure(state, 1, place, state.past[place])
    for j in range(n):
        state.reused[j, place] = False
        state.alike[agent, j] = True
        state.alike[j, agent] = True
