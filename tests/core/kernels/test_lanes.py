"""Values of sixteen numbers, compiled or not: what NumPy says of the same arrays."""

import numpy as np
import pytest

from shoal.core.jit.compiled import compiled
from shoal.core.kernels import lanes
from shoal.core.types import Integers, Matrix, Vector


@compiled
def arithmetic(a: Matrix, out: Matrix, number: float) -> None:
    x, y, z = lanes.load(a, 0), lanes.load(a, 1), lanes.load(a, 2)
    lanes.store(out, 0, lanes.add(x, y))
    lanes.store(out, 1, lanes.subtract(x, y))
    lanes.store(out, 2, lanes.multiply(x, y))
    lanes.store(out, 3, lanes.divide(x, y))
    lanes.store(out, 4, lanes.multiply_add(x, y, z))
    lanes.store(out, 5, lanes.multiply_take(x, y, z))
    lanes.store(out, 6, lanes.root(x))
    lanes.store(out, 7, lanes.smaller(x, y))
    lanes.store(out, 8, lanes.larger(x, y))
    lanes.store(out, 9, lanes.splat(number))


def test_arithmetic() -> None:
    a, out = np.random.default_rng(0).standard_normal((3, 16)), np.zeros((10, 16))
    x, y, z = a
    arithmetic(a, out, 2.5)
    with np.errstate(invalid="ignore"):
        expected = [x + y, x - y, x * y, x / y, x * y + z, z - x * y, np.sqrt(x)]
    expected += [np.minimum(x, y), np.maximum(x, y), np.full(16, 2.5)]
    np.testing.assert_allclose(out, expected, rtol=1e-14, atol=1e-14)


@compiled
def copy_sixteen(source: Vector, first: int, target: Vector, at: int) -> None:
    lanes.store_to(target, at, lanes.load_from(source, first))


def test_sixteen_from_anywhere() -> None:
    source, target = np.arange(40.0), np.zeros(40)
    copy_sixteen(source, 5, target, 11)
    assert target.tolist() == [0.0] * 11 + [*np.arange(5.0, 21.0)] + [0.0] * 13


@compiled
def transpose(rows: Matrix, chosen: Integers, out: Matrix) -> None:
    lanes.transpose(rows, chosen, 1, 2, out, 3, 8)


def test_transpose() -> None:
    rng, out = np.random.default_rng(0), np.zeros((12, 16))
    rows, chosen = rng.standard_normal((30, 11)), rng.integers(30, size=9)
    transpose(rows, chosen, out)
    assert np.array_equal(out[3:11, 8:], rows[chosen[1:], 2:10].T)
    assert not out[:3].any()
    assert not out[:, :8].any()


@compiled
def bits_of(word: int, found: Integers) -> int:
    count = 0
    while word != 0:
        found[count] = lanes.lowest_bit(word)
        word = lanes.drop_lowest(word)
        count += 1
    return count


@compiled
def count_bits(word: int) -> int:
    return lanes.popcount(word)


@pytest.mark.parametrize("word", [0, 1, -1, 5, -(2**63), 2**62 + 6, -2])
def test_bits_of_words(word: int) -> None:
    found, expected = np.zeros(64, dtype=np.int64), [k for k in range(64) if (word >> k) & 1]
    count = bits_of(word, found)
    assert found[:count].tolist() == expected
    assert count_bits(word) == len(expected)


@compiled
def meeting(words: Integers, first: int, own: int) -> int:
    return lanes.meets(words, first, own)


def test_words_that_meet() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(-(2**63), 2**63, size=200) & rng.integers(-(2**63), 2**63, size=200)
    own = 0x00F0000000000101
    found = meeting(words, 70, own)
    assert [(found >> k) & 1 for k in range(64)] == [int(words[70 + k] & own != 0) for k in range(64)]
