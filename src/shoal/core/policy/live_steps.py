"""Steps that only live policies take: pulls whose rewards come later, and journals that are replayed."""

from typing import Any

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.jit.pinned import unpin
from shoal.core.jit.reach import generic
from shoal.core.policy.steps import (
    ACCEPTED,
    BEGIN,
    CANCEL,
    FINISH,
    NOT_BEGUN,
    REFUSED,
    STEPS,
    as_sample,
    expect,
    judge,
    observe,
    revise,
)
from shoal.core.types import Integers, Matrix, Vector
from shoal.core.validation import LARGEST


def learn(state: Any, agent: int, x: Vector, reward: float, t: int) -> None:
    """`observe` where `cut` follows instead of `revise`; what only tests need may be left out of date.

    A policy that cuts edges registers it if `observe` prepares tests; it lets go of the preparations before.
    """
    registered = STEPS.get(("learn", type(unpin(state)))) or STEPS["observe", type(unpin(state))]
    registered(state, agent, x, reward, t)


def cut(state: Any, agent: int, other: int, t: int) -> bool:
    """Cut a pair in round `t`; False, and nothing is changed, if it is cut already."""
    return bool(STEPS["cut", type(unpin(state))](state, agent, other, t))


generic(learn, lambda kind: STEPS.get(("learn", kind)) or STEPS.get(("observe", kind)))
generic(cut, lambda kind: STEPS.get(("cut", kind)))


@compiled
def begin_checked(state: Any, agent: int, x: Vector) -> int:
    """Play a round in which `agent` pulls `x`, its reward still due; refuse what is not finite."""
    answer = judge(state, x, 0.0)
    if answer != REFUSED:
        state.common.clock[0] += 1
        expect(state, agent, x, 1)
    return answer


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
    """Whether a sample is accepted, and its round; the reward of a begun pull is no longer due then."""
    answer = judge(state, x, reward)
    t = state.common.clock[0]
    if answer == REFUSED:
        return REFUSED, 0
    if begun:  # its round was counted when it began
        if state.common.pending.counts[agent] == 0:
            return NOT_BEGUN, 0
        expect(state, agent, x, -1)
    else:
        t += 1
    return answer, t


@compiled
def finish_checked(
    state: Any, agent: int, x: Vector, reward: float, begun: bool, mean: float, variance: float
) -> int:
    """`update_checked`, or, if it has `begun`, finish a pull whose round was counted then.

    `mean` and `variance` are as in `as_sample`.
    """
    answer, t = admit(state, agent, x, reward, begun)
    if answer not in (REFUSED, NOT_BEGUN):
        if state.common.clicks:
            response = as_sample(state, agent, x, reward, mean, variance)
            observe(state, agent, state.common.sample, response, t)
        else:
            observe(state, agent, x, reward, t)
        revise(state, agent, t)
        state.common.clock[0] = t
    return answer


@compiled
def replay_checked(
    state: Any, kinds: Integers, agents: Integers, xs: Matrix, rewards: Vector, moments: Matrix
) -> int:
    """Play many pulls; the position of the first that was refused, before which all were played, or −1."""
    for i in range(kinds.shape[0]):
        if kinds[i] == BEGIN:
            answer = begin_checked(state, agents[i], xs[i])
        elif kinds[i] == CANCEL:
            answer = cancel_checked(state, agents[i], xs[i])
        else:
            mean, variance, begun = moments[i, 0], moments[i, 1], kinds[i] == FINISH
            answer = finish_checked(state, agents[i], xs[i], rewards[i], begun, mean, variance)
        if answer in (REFUSED, NOT_BEGUN):
            return i
    return -1


@compiled
def follow_checked(
    state: Any,
    kinds: Integers,
    agents: Integers,
    xs: Matrix,
    rewards: Vector,
    moments: Matrix,
    cuts: Integers,
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
                if state.common.clicks:
                    mean, variance = moments[i, 0], moments[i, 1]
                    response = as_sample(state, agents[i], xs[i], rewards[i], mean, variance)
                    learn(state, agents[i], state.common.sample, response, t)
                else:
                    learn(state, agents[i], xs[i], rewards[i], t)
                state.common.clock[0] = t
                while n < cuts.shape[0] and cuts[n, 0] == i:
                    gone = state.common.withdrawn[cuts[n, 1]]
                    if not gone and not cut(state, agents[i], cuts[n, 1], t):
                        return i
                    n += 1
        if answer in (REFUSED, NOT_BEGUN):
            return i
    return -1
