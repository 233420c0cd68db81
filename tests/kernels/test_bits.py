"""Sets of agents as bits, against sets of Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernels import bits


@given(st.integers(1, 200), st.data())
def test_sets(n: int, data: st.DataObject) -> None:
    table = bits.empty_sets(n)
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
