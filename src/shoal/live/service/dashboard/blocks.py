"""Blocks of agents that share with each other, found from who shares with whom.

A policy's graph says of each pair whether it shares; a page needs groups to colour and to sort by. The best
groups have as many sharing pairs inside, and as few parted ones, as possible (correlation clustering). They
are found greedily: the best-informed agent takes all that share with it, then the best-informed of the rest,
and so on; afterwards each agent moves to the block with which it agrees most, until none moves.

An agent with few samples shares with everyone, which says nothing. So each agent is weighted by how many it
has parted from, and an agent that shares with several blocks alike is in none of them: it is undecided.
"""

import numpy as np

from shoal.core.types import Booleans, Integers, Matrix, Vector

ALONE, UNDECIDED = -1, -2
"""Labels of agents that share with too few of any block to be in it, and of those that share with several."""
MOST = 64
"""Largest number of blocks."""
PASSES = 5
LEAST = 0.002
"""Weight of an agent that has parted from nobody; one that has parted from everybody has weight 1."""
AGREES = 0.5
"""Least agreement, between −1 and 1, with which an agent may be in a block."""
LARGE = 0.1
"""Share of all weight that a block must have for sharing with it to make an agent undecided."""


def find_blocks(edges: Booleans, samples: Integers) -> Integers:
    """A label for each agent: 0 for the largest block, 1 for the next, …, or one of those above; shape (n,).

    Parameters
    ----------
    edges : array of shape (n, n)
        Who shares with whom, symmetric; the diagonal does not matter.
    samples : array of shape (n,)
        Agents with many are better informed, and lead blocks first.
    """
    n = len(edges)
    together = edges.copy()
    together.flat[:: n + 1] = False
    weight = _weights(together.sum(axis=1), n)
    labels = np.full(n, ALONE, dtype=np.int64)
    by_samples = np.argsort(-samples, kind="stable").tolist()
    n_blocks = 0
    for leader in by_samples:
        if labels[leader] == ALONE and n_blocks < MOST:
            mine = together[leader] & (labels == ALONE)
            if mine.any():
                labels[mine], labels[leader] = n_blocks, n_blocks
                n_blocks += 1
    if n_blocks:
        _improve(labels, together, weight, n_blocks, by_samples)
        own = weight * (labels == np.arange(n_blocks)[:, None])
        labels = _with_undecided(labels, _agreement(labels, together, weight, n_blocks), own.sum(axis=1))
    return _by_size(labels)


def spread(labels: Integers, rows: Booleans) -> Integers:
    """Labels for everyone, from those of a sample; shape (N,).

    Parameters
    ----------
    labels : array of shape (s,)
    rows : array of shape (s, N)
        With which of all N agents each agent in the sample shares.
    """
    n_blocks = int(labels.max(initial=ALONE)) + 1
    if not n_blocks:
        return np.full(rows.shape[1], ALONE, dtype=np.int64)
    weight = _weights(rows.sum(axis=1) - 1, rows.shape[1])
    total = (weight * (labels == np.arange(n_blocks)[:, None])).sum(axis=1)
    found = np.empty(rows.shape[1], dtype=np.int64)
    for start in range(0, rows.shape[1], 2_048):  # a part at a time, so that other threads get their turn
        part = slice(start, start + 2_048)
        agreement = _agreement(labels, rows[:, part], weight, n_blocks)
        best = np.where(agreement.max(axis=0) > 0.0, np.argmax(agreement, axis=0), ALONE)
        found[part] = _with_undecided(best, agreement, total)
    return found


def keep_names(labels: Integers, before: Integers) -> Integers:
    """The same blocks under the labels that most of their members had before, so that colours stay.

    Parameters
    ----------
    labels, before : arrays of shape (n,)
    """
    new, old = int(labels.max(initial=ALONE)) + 1, int(before.max(initial=ALONE)) + 1
    renamed = np.full(new, ALONE, dtype=np.int64)
    if new and old:
        both = (labels >= 0) & (before >= 0)
        common = np.bincount(labels[both] * old + before[both], minlength=new * old).reshape(new, old)
        while common.max() > 0:
            here, there = np.unravel_index(int(np.argmax(common)), common.shape)
            renamed[here] = there
            common[here], common[:, there] = 0, 0
    free = iter(sorted(set(range(new + old)) - set(renamed.tolist())))
    for block in range(new):
        if renamed[block] == ALONE:
            renamed[block] = next(free)
    return np.append(renamed, [UNDECIDED, ALONE])[labels]  # −1 stands for the last, −2 for the one before


def _weights(shares_with: Integers, n: int) -> Vector:
    """The weight of each agent: the share of the n − 1 others that it has parted from."""
    return np.asarray(np.maximum(1.0 - shares_with / max(1, n - 1), LEAST))


def _agreement(labels: Integers, rows: Booleans, weight: Vector, n_blocks: int) -> Matrix:
    """How far the members of each block share with each agent: weights of those that do, less the others'.

    `rows` has a row for each agent in `labels`; an agent in both counts as parted from itself. Shape (B, n).
    """
    one_hot = ((labels == np.arange(n_blocks)[:, None]) * weight).astype(np.float32)
    return np.asarray(2.0 * (one_hot @ rows.astype(np.float32)) - one_hot.sum(axis=1)[:, None])


def _improve(labels: Integers, together: Booleans, weight: Vector, n_blocks: int, order: list[int]) -> None:
    """Move agents one by one to the block they agree with most, until none gains."""
    agreement = _agreement(labels, together, weight, n_blocks).astype(np.float64)
    signs = np.where(together, 1.0, -1.0)
    for _ in range(PASSES):
        moved = False
        for agent in order:
            at = int(labels[agent])
            mine = agreement[:, agent].copy()
            if at != ALONE:
                mine[at] += weight[agent]  # it is not cut from itself
            best = int(np.argmax(mine))
            to = best if mine[best] > 0.0 else ALONE
            if to == at or (at != ALONE and to != ALONE and mine[to] <= mine[at]):
                continue
            moved = True
            labels[agent] = to
            if at != ALONE:
                agreement[at] -= weight[agent] * signs[agent]
            if to != ALONE:
                agreement[to] += weight[agent] * signs[agent]
        if not moved:
            return


def _with_undecided(labels: Integers, agreement: Matrix, total: Vector) -> Integers:
    """The labels, but `UNDECIDED` for agents that agree with several large blocks."""
    large = total > LARGE * total.sum()
    share = agreement[large] / total[large][:, None]
    undecided = (share >= AGREES).sum(axis=0) > 1
    return np.where(undecided, UNDECIDED, labels)


def _by_size(labels: Integers) -> Integers:
    """The same blocks, numbered by size; those of one agent are dissolved."""
    found, counts = np.unique(labels[labels >= 0], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    large = found[order][counts[order] > 1]
    table = np.full(int(labels.max(initial=ALONE)) + 3, ALONE, dtype=np.int64)
    table[UNDECIDED] = UNDECIDED
    table[large] = np.arange(len(large))
    return np.asarray(table[labels])
