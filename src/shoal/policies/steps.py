"""The steps of a round, as generic functions that compiled and plain code call alike.

A policy file registers its own compiled `select`, `observe` and `revise` for its state class, and `expect`
where it has use for pulls whose rewards are still due; a call picks by the class of the state, at compile
time inside compiled code. The simulation loop therefore has a stable signature and its compiled form is
found again on disk by the next process.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

from shoal.fields import AGENTS, COUNT, TRIANGLE, kept, leaves, scratch, setting
from shoal.jit.compiled import compiled, config, inlined
from shoal.jit.pinned import unpin
from shoal.jit.reach import generic
from shoal.kernels.linalg import add_square, add_triangle, cholesky, dot
from shoal.kernels.random import integer_below, uniform
from shoal.kernels.ucb import best_arm_of_width
from shoal.statistics import Statistics, best_arm_of_row
from shoal.types import AnyArray, Booleans, Integers, Matrix, Vector
from shoal.validation import BAD_SCALE, LARGEST, LARGEST_SCALE

Function = TypeVar("Function", bound=Callable[..., Any])
REFUSED, ACCEPTED, BADLY_SCALED, NOT_BEGUN = range(4)
BEGIN, FINISH, CANCEL, PULL = range(4)
"""Kinds of pulls to replay: its reward is due; came; will never come; and both at once."""
SCORED = 128
"""Arms whose scores a choice leaves behind; those of more are computed so many at a time."""
BAD_ARMS, SILENT = -1, -2
"""Answers in place of an arm: an entry is not a number of fair size; `select` leaves no scores."""
_STEPS: dict[tuple[str, type], Callable[..., Any]] = {}


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
    rng: Annotated[AnyArray, kept(1, low=1, dtype=np.uint64)]  # 0 would draw nothing but zeros
    clock: Annotated[Integers, kept(1, **COUNT)]  # rounds completed
    cost: Annotated[Integers, kept(1, **COUNT)]  # communication cost so far
    active: Annotated[Booleans, kept(AGENTS, fill=True)]  # False once an agent was removed
    withdrawn: Annotated[Booleans, kept(AGENTS)]  # True once its samples were taken back
    lends: Annotated[Booleans, kept(AGENTS, fill=True)]  # whether others may use its samples
    borrows: Annotated[Booleans, kept(AGENTS, fill=True)]  # whether it uses those of others
    reserved: Annotated[Integers, kept(1, **COUNT)]  # agents that do not do both
    pending: Pending
    scored: Annotated[Matrix, scratch(2, SCORED)]  # mean and bonus of the arms that `select` last compared


def step(name: str, state_class: type) -> Callable[[Function], Function]:
    """Register the decorated function, compiled, as step `name` of the policies whose state is `state_class`.

    Compiled code knows a named tuple by the name of its class and the types of its fields, so the name
    must be unique. Every field of the class is declared (see `shoal.fields`).
    """
    leaves(state_class)
    for _, known in _STEPS:
        if known is not state_class and known.__name__ == state_class.__name__:
            raise ValueError(
                f"state_class must have a name of its own, got a second {state_class.__name__!r}"
            )

    def register(function: Function) -> Function:
        implementation = compiled(function)
        _STEPS[name, state_class] = implementation
        return implementation

    return register


def select(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """Choose an arm for `agent` in round `t` from its pool, without exploration.

    Changes nothing but scratch: what is learned never depends on how often somebody chose. It takes the first
    arm with the largest sum of mean and bonus, and leaves both in `common.scored`, for the arms that fit.
    """
    return int(_STEPS["select", type(unpin(state))](state, agent, arms, t))


def observe(state: Any, agent: int, x: Vector, reward: float, t: int) -> None:
    """Let `agent` and the pools it belongs to take in one observation."""
    _STEPS["observe", type(unpin(state))](state, agent, x, reward, t)


def revise(state: Any, agent: int, t: int) -> None:
    """Reconsider whom `agent` shares with, after all observations of round `t`."""
    _STEPS["revise", type(unpin(state))](state, agent, t)


def learn(state: Any, agent: int, x: Vector, reward: float, t: int) -> None:
    """`observe` where `part` follows instead of `revise`; what only tests need may be left out of date.

    A policy that cuts edges registers it if `observe` prepares tests; it lets go of the preparations before.
    """
    registered = _STEPS.get(("learn", type(unpin(state)))) or _STEPS["observe", type(unpin(state))]
    registered(state, agent, x, reward, t)


def part(state: Any, agent: int, other: int, t: int) -> bool:
    """Separate two agents in round `t`; False, and nothing is changed, if they are separated already."""
    return bool(_STEPS["part", type(unpin(state))](state, agent, other, t))


def expect(state: Any, agent: int, x: Vector, sign: int) -> None:
    """Let a reward be due for a pull of `x` (`sign` 1), or no longer (−1): it came, or never will."""
    registered: Any = _STEPS.get(("expect", type(unpin(state))), expect_alone)
    registered(state, agent, x, sign)


@compiled
def expect_alone(state: Any, agent: int, x: Vector, sign: int) -> None:
    """`expect` for policies that keep no sums of pending pulls but those of each agent."""
    pending = state.common.pending
    pending.counts[agent] += sign
    pending.total[0] += sign
    add_square(pending.sums[agent], x, float(sign))
    if pending.counts[agent] == 0:
        pending.sums[agent] = 0.0  # rounding must not outlive the pulls


# What compiled code calls is the registered function itself: one that calls it would be one more function of
# a whole state to compile.
if not config.DISABLE_JIT:
    for _step in (select, observe, revise, part):
        generic(_step, lambda kind, name=_step.__name__: _STEPS.get((name, kind)))  # type: ignore[misc]
    generic(learn, lambda kind: _STEPS.get(("learn", kind)) or _STEPS.get(("observe", kind)))
    generic(expect, lambda kind: _STEPS.get(("expect", kind), expect_alone))


@inlined
def choose(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """`select`, except that with probability epsilon a uniformly drawn arm is played."""
    if state.common.epsilon > 0.0 and uniform(state.common.rng) < state.common.epsilon:
        return integer_below(state.common.rng, arms.shape[0])
    return select_as_set(state, agent, arms, t)


@inlined
def select_as_set(state: Any, agent: int, arms: Matrix, t: int) -> int:
    """`select`, or `select_alone` for an agent that does not borrow."""
    if not state.common.borrows[agent]:
        return select_alone(state.common, state.local, agent, arms, t)
    return select(state, agent, arms, t)


@compiled
def select_alone(common: Common, local: Statistics, agent: int, arms: Matrix, t: int) -> int:
    """LinUCB on the agent's own samples; what it waits for narrows the width."""
    width = common.alpha * math.sqrt(math.log(t + 1.0))
    if common.pending.counts[agent] == 0:
        return best_arm_of_row(local, agent, arms, width, common.scored)
    d = arms.shape[1]
    L = local.scratch[:d]
    for row in range(d):
        for column in range(row + 1):
            L[row, column] = local.A[agent, row, column]
    add_triangle(common.pending.sums[agent], L)
    cholesky(L, L)
    return best_arm_of_width(local.theta_hat[agent], L, arms, width, local.scratch[3 * d], common.scored)


@inlined
def are_fair(arms: Matrix) -> bool:
    """Whether all entries are numbers of fair size."""
    fair = True
    for k in range(arms.shape[0]):
        for m in range(arms.shape[1]):
            fair = fair and abs(arms[k, m]) <= LARGEST
    return fair


@compiled
def choose_checked(state: Any, agent: int, arms: Matrix) -> int:
    """`choose` in the round after the last; BAD_ARMS if an entry of `arms` is not a number of fair size."""
    if not are_fair(arms):
        return BAD_ARMS
    return choose(state, agent, arms, state.common.clock[0] + 1)


@compiled
def predict_checked(state: Any, agent: int, arms: Matrix) -> tuple[int, float, float]:
    """`select_as_set` in the round after the last, and of that arm the own and the pooled prediction.

    The latter is that of `select`: for an agent that does not borrow, what it would be if it did.
    """
    if not are_fair(arms):
        return BAD_ARMS, 0.0, 0.0
    t, scored = state.common.clock[0] + 1, state.common.scored
    scored[0] = math.nan
    choice = select_as_set(state, agent, arms, t)
    place = choice
    if place >= scored.shape[1] or not state.common.borrows[agent]:
        scored[0] = math.nan
        select(state, agent, arms[choice : choice + 1], t)
        place = 0
    if math.isnan(scored[0, place]):
        return SILENT, 0.0, 0.0
    return choice, dot(state.local.theta_hat[agent], arms[choice]), scored[0, place]


@compiled
def score_checked(state: Any, agent: int, arms: Matrix, out: Matrix) -> int:
    """Write mean and bonus of every arm, in the round after the last, into the rows of `out`, (2, K)."""
    if not are_fair(arms):
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


@compiled
def begin_checked(state: Any, agent: int, x: Vector) -> int:
    """Play a round in which `agent` pulls `x`, its reward still due; refuse numbers of unfair size."""
    for m in range(x.shape[0]):
        if not abs(x[m]) <= LARGEST:
            return REFUSED
    size = dot(x, x)
    if size > LARGEST_SCALE * state.common.ridge:
        return REFUSED
    state.common.clock[0] += 1
    expect(state, agent, x, 1)
    return BADLY_SCALED if size > BAD_SCALE * state.common.ridge else ACCEPTED


@compiled
def cancel_checked(state: Any, agent: int, x: Vector) -> int:
    """Expect no reward any more for a pull that has begun; refuse, changing nothing, one that has not."""
    for m in range(x.shape[0]):
        if not abs(x[m]) <= LARGEST:
            return REFUSED
    if state.common.pending.counts[agent] == 0:
        return NOT_BEGUN
    expect(state, agent, x, -1)
    return ACCEPTED


@inlined
def admit(state: Any, agent: int, x: Vector, reward: float, begun: bool) -> tuple[int, int]:
    """Whether a sample is fair, and its round; the reward of a pull that has begun is no longer due then.

    A sample that is longer than it should be beside the ridge is accepted as BADLY_SCALED.
    """
    for m in range(x.shape[0]):
        if not abs(x[m]) <= LARGEST:
            return REFUSED, 0
    size = dot(x, x)
    if not abs(reward) <= LARGEST or size > LARGEST_SCALE * state.common.ridge:
        return REFUSED, 0
    t = state.common.clock[0]
    if begun:  # its round was counted when it began
        if state.common.pending.counts[agent] == 0:
            return NOT_BEGUN, 0
        expect(state, agent, x, -1)
    else:
        t += 1
    return BADLY_SCALED if size > BAD_SCALE * state.common.ridge else ACCEPTED, t


@compiled
def update_checked(state: Any, agent: int, x: Vector, reward: float, begun: bool) -> int:
    """Finish a round in which only `agent` pulled, or a pull that has begun; refuse, changing nothing."""
    answer, t = admit(state, agent, x, reward, begun)
    if answer not in (REFUSED, NOT_BEGUN):
        observe(state, agent, x, reward, t)
        revise(state, agent, t)
        state.common.clock[0] = t
    return answer


@compiled
def replay_checked(state: Any, kinds: Integers, agents: Integers, xs: Matrix, rewards: Vector) -> int:
    """Play many pulls; the position of the first that was refused, before which all were played, or −1."""
    for i in range(kinds.shape[0]):
        if kinds[i] == BEGIN:
            answer = begin_checked(state, agents[i], xs[i])
        elif kinds[i] == CANCEL:
            answer = cancel_checked(state, agents[i], xs[i])
        else:
            answer = update_checked(state, agents[i], xs[i], rewards[i], kinds[i] == FINISH)
        if answer in (REFUSED, NOT_BEGUN):
            return i
    return -1


@compiled
def follow_checked(
    state: Any, kinds: Integers, agents: Integers, xs: Matrix, rewards: Vector, cuts: Integers
) -> int:
    """`replay_checked` without tests: of each row of `cuts` the pull with this position separates two agents.

    Withdrawn agents have no cuts: those with them are passed over.
    """
    n = 0
    for i in range(kinds.shape[0]):
        if kinds[i] == BEGIN:
            answer = begin_checked(state, agents[i], xs[i])
        elif kinds[i] == CANCEL:
            answer = cancel_checked(state, agents[i], xs[i])
        else:
            answer, t = admit(state, agents[i], xs[i], rewards[i], kinds[i] == FINISH)
            if answer not in (REFUSED, NOT_BEGUN):
                learn(state, agents[i], xs[i], rewards[i], t)
                state.common.clock[0] = t
                while n < cuts.shape[0] and cuts[n, 0] == i:
                    gone = state.common.withdrawn[cuts[n, 1]]
                    if not gone and not part(state, agents[i], cuts[n, 1], t):
                        return i
                    n += 1
        if answer in (REFUSED, NOT_BEGUN):
            return i
    return -1
