"""The steps of a round, as generic functions that compiled and plain code call alike.

A policy file registers its own compiled `select`, `observe` and `revise` for its state class, `expect` where
it has use for pulls whose rewards are still due, and `foresee` if it learns clicks; a call picks by the class
of the state, at compile time inside compiled code. The simulation loop therefore has a stable signature and
its compiled form is found again on disk by the next process. What only live policies do in a round is in
`live_steps`.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

from shoal.core.fields import AGENTS, COUNT, DIM, TRIANGLE, kept, leaves, scratch, setting
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.jit.pinned import unpin
from shoal.core.jit.reach import generic
from shoal.core.kernels.linalg import add_square, add_triangle, cholesky, dot
from shoal.core.kernels.random import integer_below, uniform
from shoal.core.policy.clicks import chance_of, sample_of_click, weight_of_pending
from shoal.core.policy.exploring import choose_by, choose_in_row
from shoal.core.statistics import Statistics, moments_of_row
from shoal.core.types import AnyArray, Booleans, Integers, Matrix, Vector
from shoal.core.validation import BAD_SCALE, LARGEST, LARGEST_SCALE

Function = TypeVar("Function", bound=Callable[..., Any])
REFUSED, ACCEPTED, BADLY_SCALED, NOT_BEGUN = range(4)
BEGIN, FINISH, CANCEL, PULL = range(4)
"""Kinds of pulls to replay: its reward is due; came; will never come; and both at once."""
SCORED = 128
"""Arms whose scores a choice leaves behind; with more arms, scores are computed this many at a time."""
BAD_ARMS, SILENT = -1, -2
"""Answers in place of an arm: an entry is NaN, infinite or larger than LARGEST; `select` leaves no scores."""
STEPS: dict[tuple[str, type], Callable[..., Any]] = {}


class Pending(NamedTuple):
    """Pulls that have begun and whose rewards are still due."""

    counts: Annotated[Integers, kept(AGENTS, **COUNT)]  # of each agent
    sums: Annotated[Matrix, kept(AGENTS, TRIANGLE)]  # packed Σ x xᵀ of them
    total: Annotated[Integers, kept(1, **COUNT)]  # of all agents


class Common(NamedTuple):
    """What every policy's state holds, as its field `common`."""

    alpha: Annotated[float, setting()]
    epsilon: Annotated[float, setting()]
    ridge: Annotated[float, setting()]
    explores: Annotated[int, setting()]  # how: see `shoal.core.policy.exploring`
    rng: Annotated[AnyArray, kept(1, low=1, dtype=np.uint64)]  # 0 would draw nothing but zeros
    clock: Annotated[Integers, kept(1, **COUNT)]  # rounds completed
    cost: Annotated[Integers, kept(1, **COUNT)]  # communication cost so far
    scored: Annotated[Matrix, scratch(2, SCORED)]  # mean and bonus of the arms that `select` last compared


class LiveCommon(NamedTuple):
    """What the state of a live policy holds instead: also who is there, who shares how, and what is due."""

    alpha: Annotated[float, setting()]
    epsilon: Annotated[float, setting()]
    ridge: Annotated[float, setting()]
    explores: Annotated[int, setting()]
    clicks: Annotated[bool, setting()]  # whether rewards are 0 or 1: see `shoal.core.policy.clicks`
    rng: Annotated[AnyArray, kept(1, low=1, dtype=np.uint64)]
    clock: Annotated[Integers, kept(1, **COUNT)]
    cost: Annotated[Integers, kept(1, **COUNT)]
    active: Annotated[Booleans, kept(AGENTS, fill=True)]  # False once an agent was removed
    withdrawn: Annotated[Booleans, kept(AGENTS)]  # True once its samples were taken back
    lends: Annotated[Booleans, kept(AGENTS, fill=True)]  # whether others may use its samples
    borrows: Annotated[Booleans, kept(AGENTS, fill=True)]  # whether it uses those of others
    restricted: Annotated[Integers, kept(1, **COUNT)]  # agents that do not do both
    pending: Pending
    scored: Annotated[Matrix, scratch(2, SCORED)]
    moments: Annotated[Vector, scratch(2)]  # mean and variance of the logit of the last click
    sample: Annotated[Vector, scratch(DIM)]  # the arm that it was learned as


def is_live(state_class: Any) -> bool:
    """Whether states of a class are those of a live policy."""
    return state_class.__annotations__.get("common") is LiveCommon


def step(name: str, state_class: type) -> Callable[[Function], Function]:
    """Register the decorated function, compiled, as step `name` of the policies whose state is `state_class`.

    Compiled code knows a named tuple by the name of its class and the types of its fields, so the name
    must be unique. Every field of the class is declared (see `shoal.core.fields`).
    """
    leaves(state_class)
    for _, known in STEPS:
        if known is not state_class and known.__name__ == state_class.__name__:
            raise ValueError(
                f"state_class must have a name of its own, got a second {state_class.__name__!r}"
            )

    def register(function: Function) -> Function:
        implementation = compiled(function)
        STEPS[name, state_class] = implementation
        return implementation

    return register


def select(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """Choose an arm for `agent` in round `t` from its pool, without exploration.

    Changes nothing but scratch: what is learned never depends on how often an arm was chosen. It takes the
    first arm with the largest sum of mean and bonus, and leaves both in `common.scored`, as far as they fit.
    """
    return int(STEPS["select", type(unpin(state))](state, agent, arms, t))


def observe(state: Any, agent: int, x: Vector, reward: float, t: int) -> None:
    """Let `agent` and the pools it belongs to take in one observation."""
    STEPS["observe", type(unpin(state))](state, agent, x, reward, t)


def revise(state: Any, agent: int, t: int) -> None:
    """Reconsider whom `agent` shares with, after all observations of round `t`."""
    _revising(type(unpin(state)))(state, agent, t)


def _revising(state_class: type) -> Any:
    """What `revise` is for a class of states."""
    return STEPS.get(("revise", state_class), revise_nothing)


@compiled
def revise_nothing(state: Any, agent: int, t: int) -> None:
    """`revise` for policies whose sharing does not depend on what was observed."""


def expect(state: Any, agent: int, x: Vector, sign: int) -> None:
    """Let a reward be due for a pull of `x` (`sign` 1), or no longer (−1): it came, or never will."""
    _expecting(type(unpin(state)))(state, agent, x, sign)


def _expecting(state_class: type) -> Any:
    """What `expect` is for a class of states."""
    default = expect_alone if is_live(state_class) else expect_nothing
    return STEPS.get(("expect", state_class), default)


@compiled
def expect_nothing(state: Any, agent: int, x: Vector, sign: int) -> None:
    """`expect` for policies that are not live: a late reward is news to them."""


@compiled
def expect_alone(state: Any, agent: int, x: Vector, sign: int) -> None:
    """`expect` for policies that keep no sums of pending pulls but those of each agent."""
    pending = state.common.pending
    pending.counts[agent] += sign
    pending.total[0] += sign
    add_square(pending.sums[agent], x, float(sign))
    if pending.counts[agent] == 0:
        pending.sums[agent] = 0.0  # rounding must not outlive the pulls


# Clicks


def foresee(state: Any, agent: int, x: Vector) -> tuple[float, float]:
    """Mean and variance of `x·θ` by the pool of `agent`, without what is pending."""
    found: tuple[float, float] = _foreseeing(type(unpin(state)))(state, agent, x)
    return found


def _foreseeing(state_class: type) -> Any:
    """What `foresee` is for a class of states; those of live policies may learn clicks."""
    return STEPS.get(("foresee", state_class), foresee_alone if is_live(state_class) else None)


@compiled
def foresee_alone(state: Any, agent: int, x: Vector) -> tuple[float, float]:
    """`foresee` by the agent's own samples."""
    return moments_of_row(state.local, agent, x)


@compiled
def as_sample(state: Any, agent: int, x: Vector, click: float, mean: float, variance: float) -> float:
    """Leave the arm of the sample that a click is learned as in `common.sample`; return its reward.

    `mean` and `variance` are those of the logit, NaN for what the agent foresees now; they are kept in
    `common.moments` until the next click.
    """
    common = state.common
    if math.isnan(mean):
        if common.borrows[agent]:
            mean, variance = foresee(state, agent, x)
        else:
            mean, variance = foresee_alone(state, agent, x)
    common.moments[0] = mean
    common.moments[1] = variance
    return sample_of_click(x, click, mean, variance, common.sample)


def take_in(state: Any, agent: int, x: Vector, reward: float, t: int) -> None:
    """`observe`, or, where rewards are clicks, `observe` the sample that this one is learned as."""
    _taking(type(unpin(state)))(state, agent, x, reward, t)


def _taking(state_class: type) -> Any:
    return take_in_live if is_live(state_class) else STEPS.get(("observe", state_class))


@compiled
def take_in_live(state: Any, agent: int, x: Vector, reward: float, t: int) -> None:
    """`take_in` for live policies."""
    if state.common.clicks:
        reward = as_sample(state, agent, x, reward, math.nan, math.nan)
        observe(state, agent, state.common.sample, reward, t)
    else:
        observe(state, agent, x, reward, t)


@compiled
def find_chances(state: Any, agent: int, arms: Matrix, out: Matrix) -> None:
    """Write probabilities of a click, by the agent's own samples and by its pool, into the rows of `out`."""
    for k in range(arms.shape[0]):
        mean, variance = foresee_alone(state, agent, arms[k])
        out[0, k] = chance_of(mean, variance)
        mean, variance = foresee(state, agent, arms[k])
        out[1, k] = chance_of(mean, variance)


# What compiled code calls is the registered function itself: one that calls it would be one more function of
# a whole state to compile.
for _step in (select, observe):
    generic(_step, lambda kind, name=_step.__name__: STEPS.get((name, kind)))  # type: ignore[misc]
generic(revise, _revising)
generic(expect, _expecting)
generic(foresee, _foreseeing)
generic(take_in, _taking)


# Agents that do not borrow choose by their own samples; only live policies have them.


def borrows(state: Any, agent: int) -> bool:
    """Whether an agent uses the samples of others."""
    return bool(_borrowing(type(unpin(state)))(state, agent))


def _borrowing(state_class: type) -> Any:
    return borrows_as_set if is_live(state_class) else borrows_always


@compiled
def borrows_as_set(state: Any, agent: int) -> bool:
    """`borrows` for live policies."""
    return bool(state.common.borrows[agent])


@compiled
def borrows_always(state: Any, agent: int) -> bool:
    """`borrows` for policies that know no other agents."""
    return True


def select_as_set(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """`select`, or `select_alone` for an agent that does not borrow."""
    return int(_selecting(type(unpin(state)))(state, agent, arms, t))


def _selecting(state_class: type) -> Any:
    return select_if_set if is_live(state_class) else STEPS.get(("select", state_class))


def own_units(state: Any, agent: int) -> tuple[float, float]:
    """What multiplies α, and pulls that are pending, for an agent that chooses by its own samples."""
    found: tuple[float, float] = _measuring(type(unpin(state)))(state, agent)
    return found


def _measuring(state_class: type) -> Any:
    return STEPS.get(("own_units", state_class), units_as_given)


@compiled
def units_as_given(state: Any, agent: int) -> tuple[float, float]:
    """`own_units` for policies that learn none."""
    return 1.0, 1.0


@compiled
def select_if_set(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """`select_as_set` for live policies."""
    if not state.common.borrows[agent]:
        return select_alone(state.common, state.local, agent, arms, t, own_units(state, agent))
    return select(state, agent, arms, t)


generic(borrows, _borrowing)
generic(select_as_set, _selecting)
generic(own_units, _measuring)


@inlined
def choose(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """`select`, except that with probability epsilon a uniformly drawn arm is played."""
    if state.common.epsilon > 0.0 and uniform(state.common.rng) < state.common.epsilon:
        return integer_below(state.common.rng, arms.shape[0])
    return select_as_set(state, agent, arms, t)


@compiled
def select_alone(
    common: LiveCommon, local: Statistics, agent: int, arms: Matrix, t: int, units: tuple[float, float]
) -> int:
    """Choose by the agent's own samples, in `own_units`; what it waits for narrows the width."""
    scale, weight = units
    if common.pending.counts[agent] == 0:
        return choose_in_row(common, local, agent, arms, agent, t, scale)
    d = arms.shape[1]
    L = local.scratch[:d]
    for row in range(d):
        for column in range(row + 1):
            L[row, column] = local.A[agent, row, column]
    add_triangle(weight * weight_of_pending(common, local, agent), common.pending.sums[agent], L)
    cholesky(L, L)
    return choose_by(common, local.theta_hat[agent], L, arms, agent, t, local.scratch[3 * d], scale)


@inlined
def are_finite(arms: Matrix) -> bool:
    """Whether all entries are finite and within LARGEST."""
    finite = True
    for k in range(arms.shape[0]):
        for m in range(arms.shape[1]):
            finite = finite and abs(arms[k, m]) <= LARGEST
    return finite


@compiled
def choose_checked(state: Any, agent: int, arms: Matrix) -> int:
    """`choose` in the round after the last; BAD_ARMS if an entry of `arms` is NaN, infinite or too large."""
    if not are_finite(arms):
        return BAD_ARMS
    return choose(state, agent, arms, state.common.clock[0] + 1)


@compiled
def predict_checked(state: Any, agent: int, arms: Matrix) -> tuple[int, float, float]:
    """`select_as_set` in the round after the last, and of that arm the own and the pooled prediction.

    The latter is that of `select`: for an agent that does not borrow, what it would be if it did.
    """
    if not are_finite(arms):
        return BAD_ARMS, 0.0, 0.0
    t, scored = state.common.clock[0] + 1, state.common.scored
    scored[0] = math.nan
    choice = select_as_set(state, agent, arms, t)
    place = choice
    if place >= scored.shape[1] or not borrows(state, agent):
        scored[0] = math.nan
        select(state, agent, arms[choice : choice + 1], t)
        place = 0
    if math.isnan(scored[0, place]):
        return SILENT, 0.0, 0.0
    return choice, dot(state.local.theta_hat[agent], arms[choice]), scored[0, place]


@compiled
def score_checked(state: Any, agent: int, arms: Matrix, out: Matrix) -> int:
    """Write mean and bonus of every arm, in the round after the last, into the rows of `out`, (2, K)."""
    if not are_finite(arms):
        return BAD_ARMS
    t, scored = state.common.clock[0] + 1, state.common.scored
    for start in range(0, arms.shape[0], scored.shape[1]):
        here = min(scored.shape[1], arms.shape[0] - start)
        scored[0] = math.nan
        select_as_set(state, agent, arms[start : start + here], t)
        for k in range(here):
            if math.isnan(scored[0, k]):
                return SILENT
            out[0, start + k] = scored[0, k]
            out[1, start + k] = scored[1, k]
    return 0


@inlined
def judge(state: Any, x: Vector, reward: float) -> int:
    """Whether a sample is finite; one that is longer than it should be beside the ridge is BADLY_SCALED."""
    for m in range(x.shape[0]):
        if not abs(x[m]) <= LARGEST:
            return REFUSED
    size = dot(x, x)
    if not abs(reward) <= LARGEST or size > LARGEST_SCALE * state.common.ridge:
        return REFUSED
    return BADLY_SCALED if size > BAD_SCALE * state.common.ridge else ACCEPTED


@compiled
def update_checked(state: Any, agent: int, x: Vector, reward: float) -> int:
    """Play a round in which only `agent` pulled; refuse, changing nothing, what is not finite."""
    answer = judge(state, x, reward)
    if answer != REFUSED:
        t = state.common.clock[0] + 1
        observe(state, agent, x, reward, t)
        revise(state, agent, t)
        state.common.clock[0] = t
    return answer
