"""Pinned states: compiled code sees through them what it sees in the state itself."""

import copy
import os
import pickle
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

import shoal
from shoal.core.jit.compiled import compiled
from shoal.core.jit.pinned import Pinned, pin, typeof, unpin
from shoal.core.types import AnyArray, Booleans, Matrix, Tensor, Vector

WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"


class Inner(NamedTuple):
    weights: Vector
    flags: Booleans


class Outer(NamedTuple):
    scale: float
    number: int
    negate: bool
    block: Tensor
    columns: Matrix  # every other column of a larger one: strides that are not of the shape
    inner: Inner
    small: AnyArray  # uint64


def make(scale: float = 1.5, negate: bool = True) -> Outer:
    return Outer(
        scale=scale,
        number=-3,
        negate=negate,
        block=np.arange(24.0).reshape(2, 3, 4),
        columns=np.arange(30.0).reshape(5, 6)[:, ::2],
        inner=Inner(np.array([2.0, -1.0, 0.5]), np.array([True, False, True])),
        small=np.array([2**63 + 1], dtype=np.uint64),
    )


@compiled
def digest(state: Any) -> float:
    total = state.scale * state.number
    for m in range(state.inner.weights.shape[0]):
        if state.inner.flags[m]:
            total += state.inner.weights[m] * state.block[1, m, 3]
    for row in range(state.columns.shape[0]):
        for column in range(state.columns.shape[1]):
            total += (row + 1) * state.columns[row, column] ** (column + 1)
    total += float(state.small[0] % np.uint64(1000))
    return float(-total if state.negate else total)


@compiled
def write(state: Any, value: float) -> None:
    state.inner.weights[1] = value
    state.columns[4, 2] = value


@pytest.mark.parametrize("scale", [1.5, -0.0, np.inf, 1e-320])
@pytest.mark.parametrize("negate", [True, False])
def test_pinned_state_reads_as_the_state(scale: float, negate: bool) -> None:
    state = make(scale, negate)
    assert isinstance(pin(state), Pinned) != WITHOUT_JIT
    assert digest(pin(state)) == digest(state)
    assert unpin(pin(state)) is state


def test_writes_arrive_in_the_state() -> None:
    state = make()
    write(pin(state), 9.0)
    assert state.inner.weights.tolist() == [2.0, 9.0, 0.5]
    assert state.columns[4, 2] == 9.0


@compiled
def weigh(inner: Any) -> float:
    return float(inner.weights[0] + inner.weights[1])


@compiled
def weigh_within(state: Any) -> float:
    return weigh(state.inner)


def test_a_part_of_a_pinned_state_is_pinned_in_place() -> None:
    pinned = pin(make())
    assert weigh_within(pinned) == weigh(pinned.inner) == weigh(make().inner) == 1.0
    pinned.inner.weights[0] = 5.0
    assert weigh_within(pinned) == weigh(pinned.inner) == 4.0
    scale, _, _, _, _, inner, _ = pinned
    assert scale == 1.5
    assert weigh(inner) == 4.0
    if not WITHOUT_JIT:
        assert isinstance(inner, Pinned)
        assert inner.words is pinned.words


def test_what_is_no_field_is_refused() -> None:
    @compiled
    def read(state: Any) -> float:
        return float(state.nothing)

    with pytest.raises((AttributeError, numba.TypingError), match="nothing"):
        read(pin(make()))


@pytest.mark.skipif(WITHOUT_JIT, reason="states are not pinned without compilation")
def test_the_type_of_a_pinned_state_survives_pickling() -> None:
    kind = typeof(pin(make()))
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert typeof(pin(Odder(np.ones(2), 1.0))) != typeof(pin(Odder(np.ones((2, 2)), 1.0)))


class Odder(NamedTuple):
    values: AnyArray
    number: float


def test_pinned_state_keeps_its_arrays_alive() -> None:
    pinned, expected = pin(make()), digest(make())
    rubbish = [np.full(24, float(n)) for n in range(100)]
    assert digest(pinned) == expected
    assert len(rubbish) == 100


def test_a_copy_has_arrays_of_its_own() -> None:
    state = make()
    twin = copy.deepcopy(pin(state))
    write(twin, 7.0)
    assert unpin(twin).inner.weights[1] == 7.0
    assert state.inner.weights[1] == -1.0


class Odd(NamedTuple):
    values: Vector
    name: str


def test_a_state_of_unknown_kind_is_passed_on_as_it_is() -> None:
    state = Odd(np.ones(2), "odd")
    assert pin(state) is state


@pytest.mark.skipif(WITHOUT_JIT, reason="takes long without compilation")
def test_online_calls_follow_a_state_that_was_replaced() -> None:
    arms = np.eye(3)
    policy = shoal.Independent(2, 3, alpha=0.1)
    policy.update(0, arms[1], 1.0)
    first = policy.state
    policy.state = copy.deepcopy(first)
    policy.update(0, arms[1], 1.0)
    assert first.local.pulls.tolist() == [1, 0]
    assert policy.pulls.tolist() == [2, 0]
    fresh = shoal.Independent(2, 3, alpha=0.1)
    policy.state, policy._room = fresh.state, fresh._room
    assert [policy.select(0, arms), policy.rounds] == [0, 0]
    new = policy.add_agents(1)
    policy.update(int(new[0]), arms[2], 2.0)
    assert policy.pulls.tolist() == [0, 0, 1]
