"""Sets of agents as bits: row i of a table has a bit for each agent, 64 to an integer.

A graph on 100,000 agents takes 1.25 GB this way, and 64 agents at a time can be skipped.
"""

import numpy as np

from shoal.core.jit.compiled import compiled
from shoal.core.types import AnyArray, Booleans, Integers

WORD = 64
"""Agents per integer."""
ROWS = 1024
"""Rows of a table processed at a time; limits memory."""
FULL = -1
"""The integer with all bits set."""


def as_set(chosen: Booleans) -> Integers:
    """The chosen agents as a set, shape (⌈n/64⌉,)."""
    padded = np.zeros(-(-len(chosen) // WORD) * WORD, dtype=np.bool_)
    padded[: len(chosen)] = chosen
    return np.packbits(padded, bitorder="little").view("<i8").astype(np.int64)


def members(table: Integers, n: int) -> Booleans:
    """The sets in the rows of `table` as booleans, shape (…, n)."""
    as_bytes = table.astype("<i8", copy=False).view(np.uint8)
    return np.unpackbits(as_bytes, axis=-1, bitorder="little", count=n).view(np.bool_)


def add_everywhere(table: Integers, rows: AnyArray | slice, j: int) -> None:
    """Add j to the sets in `rows`."""
    table[rows, j // WORD] |= np.int64(1) << (j % WORD)


@compiled
def has_bit(row: Integers, j: int) -> bool:
    """Whether j is in the set."""
    return bool((row[j // WORD] >> (j % WORD)) & 1)


@compiled
def set_bit(row: Integers, j: int) -> None:
    """Add j to the set."""
    row[j // WORD] |= np.int64(1) << (j % WORD)


def count_absent(table: Integers, those: Integers) -> Integers:
    """How many of `those` are missing from each of the table's sets, shape (n,)."""
    counts = np.zeros(len(table), dtype=np.int64)
    for start in range(0, len(table), ROWS):
        missing = those & ~table[start : start + ROWS]
        # Unsigned, because NumPy counts the bits of a negative number's absolute value.
        counts[start : start + ROWS] = np.bitwise_count(missing.view(np.uint64)).sum(axis=1)
    return counts


def are_mutual(table: Integers) -> bool:
    """Whether the table is symmetric: i is in set j wherever j is in set i."""
    n = len(table)
    for w in range(table.shape[1]):  # 64 rows against the same 64 columns
        rows = members(table[w * WORD : (w + 1) * WORD], n)
        columns = members(np.ascontiguousarray(table[:, w, None]), min(WORD, n - w * WORD))
        if not np.array_equal(rows, columns.T):
            return False
    return True
