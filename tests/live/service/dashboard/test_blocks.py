"""Blocks of agents that share."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.types import Booleans, Integers
from shoal.live.service.dashboard.blocks import ALONE, LEAST, UNDECIDED, find_blocks, keep_names, spread


def blocks_with_noise(sizes: list[int], wrong: float, seed: int) -> tuple[Booleans, Integers]:
    """Who shares with whom in blocks of these sizes, with some pairs the wrong way round."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    edges = labels[:, None] == labels
    flipped = np.triu(rng.random(edges.shape) < wrong, 1)
    return edges ^ (flipped | flipped.T), labels


def partition(labels: Integers) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == one).tolist()) for one in set(labels.tolist())}


@pytest.mark.parametrize("seed", range(5))
def test_finds_blocks_in_spite_of_wrong_pairs(seed: int) -> None:
    edges, labels = blocks_with_noise([60, 40, 25, 12], 0.1, seed)
    samples = np.random.default_rng(seed).integers(1, 50, size=len(labels))
    assert partition(find_blocks(edges, samples)) == partition(labels)


def test_labels_go_by_size() -> None:
    edges, _ = blocks_with_noise([5, 30, 12], 0.0, 0)
    found = find_blocks(edges, np.ones(47, dtype=np.int64))
    assert np.bincount(found).tolist() == [30, 12, 5]


def test_everyone_together_and_everyone_alone() -> None:
    samples = np.arange(9)
    assert find_blocks(np.ones((9, 9), dtype=np.bool_), samples).tolist() == [0] * 9
    assert find_blocks(np.zeros((9, 9), dtype=np.bool_), samples).tolist() == [ALONE] * 9
    assert find_blocks(np.zeros((0, 0), dtype=np.bool_), samples[:0]).tolist() == []


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_blocks_are_better_than_none(n: int, density: float, seed: int) -> None:
    """Inside blocks, more share than have parted, each agent counted by how many it has parted from."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((n, n)) < density, 1)
    edges = upper | upper.T
    labels = find_blocks(edges, rng.integers(0, 9, size=n))
    weight = [max(LEAST, 1 - edges[agent].sum() / (n - 1)) for agent in range(n)]
    gain = 0.0
    for one in range(n):
        for two in range(one):
            if labels[one] == labels[two] >= 0:
                gain += weight[one] * weight[two] * (1 if edges[one, two] else -1)
    assert gain >= -1e-9
    blocks = set(labels.tolist()) - {ALONE, UNDECIDED}
    assert blocks == set(range(len(blocks)))
    assert all(np.count_nonzero(labels == one) > 1 for one in blocks)


def test_who_shares_with_everyone_is_undecided() -> None:
    """Two blocks that were told apart, among many who have too few samples for it."""
    labels = np.repeat([0, 1, UNDECIDED], [40, 30, 300])
    edges = (labels[:, None] == labels) | (labels[:, None] == UNDECIDED) | (labels == UNDECIDED)
    found = find_blocks(edges, np.ones(370, dtype=np.int64))
    assert found.tolist() == labels.tolist()
    sample = np.arange(0, 370, 2)
    some = find_blocks(edges[np.ix_(sample, sample)], np.ones(185, dtype=np.int64))
    assert spread(some, edges[sample]).tolist() == labels.tolist()


def test_a_sample_speaks_for_all() -> None:
    edges, labels = blocks_with_noise([300, 200, 100], 0.05, 3)
    sample = np.arange(0, 600, 5)
    found = find_blocks(edges[np.ix_(sample, sample)], np.ones(len(sample), dtype=np.int64))
    everyone = spread(found, edges[sample] | (sample[:, None] == np.arange(600)))
    assert partition(everyone) == partition(labels)


def test_blocks_keep_their_names() -> None:
    before = np.array([2, 2, 2, 0, 0, 0, ALONE, 5])
    now = np.array([0, 0, 0, 1, 1, 2, 2, 2])  # the second block lost one to a new one, with the last two
    assert keep_names(now, before).tolist() == [2, 2, 2, 0, 0, 5, 5, 5]
    assert keep_names(now, np.full(8, ALONE)).tolist() == now.tolist()
    assert keep_names(np.array([ALONE, 0, 0]), np.array([0, 0, ALONE])).tolist() == [ALONE, 0, 0]
    assert keep_names(np.array([UNDECIDED, ALONE]), np.array([0, 0])).tolist() == [UNDECIDED, ALONE]
