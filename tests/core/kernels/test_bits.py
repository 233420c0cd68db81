"""Sets of agents as bits, against sets of Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.kernels import bits


@given(st.integers(1, 200), st.data())
def test_sets(n: int, data: st.DataObject) -> None:
    table = np.zeros((n, -(-n // bits.WORD)), dtype=np.int64)
    expected: list[set[int]] = [set() for _ in range(n)]
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    for i, j in data.draw(st.lists(pairs, max_size=30)):
        bits.set_bit(table[i], j)
        expected[i].add(j)
    everywhere = data.draw(st.integers(0, n - 1))
    bits.add_everywhere(table, slice(n // 2, None), everywhere)
    for row in expected[n // 2 :]:
        row.add(everywhere)
    found = bits.members(table, n)
    assert found.shape == (n, n)
    assert [set(np.flatnonzero(row)) for row in found] == expected
    assert np.array_equal(bits.members(table[0], n), found[0])
    assert all(bits.has_bit(table[i], j) == (j in expected[i]) for i in range(n) for j in range(0, n, 7))


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 200])
def test_whole_sets(n: int) -> None:
    rng = np.random.default_rng(n)
    graph = np.triu(rng.random((n, n)) < 0.5, 1)
    graph |= graph.T
    table = np.array([bits.as_set(row) for row in graph], dtype=np.int64).reshape(n, -(-n // bits.WORD))
    assert np.array_equal(bits.members(table, n), graph)
    those = rng.random(n) < 0.7
    assert np.array_equal(bits.count_absent(table, bits.as_set(those)), (those & ~graph).sum(axis=1))
    assert bits.are_mutual(table)
    if n > 1:
        i, j = rng.choice(n, 2, replace=False)
        table[i, j // bits.WORD] ^= np.int64(1) << (j % bits.WORD)
        assert not bits.are_mutual(table)
