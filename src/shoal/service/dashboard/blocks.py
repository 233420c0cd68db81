"""Blocks of agents that share with each other, found from who shares with whom.

A policy's graph says of each pair whether they share; a page needs groups to colour and to sort by. The best
ones have as many sharing pairs inside, and as few parted ones, as possible (correlation clustering). They are
searched for greedily: the best informed agent takes whoever shares with it, then the best informed of the
rest, and so on; afterwards each agent moves to the block with which it agrees most, until nobody wants to.
"""

import numpy as np

from shoal.types import Booleans, Integers

ALONE = -1
"""Label of whoever shares with too few of any block to be in it."""
MOST = 64
"""Blocks that are told apart."""
PASSES = 5


def find_blocks(edges: Booleans, samples: Integers) -> Integers:
    """A label for each agent: 0 for the largest block, 1 for the next, …, or `ALONE`; shape (n,).

    Parameters
    ----------
    edges : array of shape (n, n)
        Who shares with whom, symmetric; the diagonal does not matter.
    samples : array of shape (n,)
        Who has many is better informed, and asked first.
    """
    n = len(edges)
    together = edges.copy()
    together.flat[:: n + 1] = False
    labels = np.full(n, ALONE, dtype=np.int64)
    by_samples = np.argsort(-samples, kind="stable")
    n_blocks = 0
    for leader in by_samples.tolist():
        if labels[leader] == ALONE and n_blocks < MOST:
            mine = together[leader] & (labels == ALONE)
            if mine.any():
                labels[mine], labels[leader] = n_blocks, n_blocks
                n_blocks += 1
    if n_blocks:
        _improve(labels, together, n_blocks, by_samples.tolist())
    return _by_size(labels)


def _improve(labels: Integers, together: Booleans, n_blocks: int, order: list[int]) -> None:
    """Move agents one by one to where they agree most, until nobody gains."""
    one_hot = (labels == np.arange(n_blocks)[:, None]).astype(np.float32)
    shared = one_hot @ together.astype(np.float32)  # (blocks, n): how many of a block an agent shares with
    sizes = one_hot.sum(axis=1)
    ties = together.astype(np.float32)
    for _ in range(PASSES):
        moved = False
        for agent in order:
            at = int(labels[agent])
            others = sizes.copy()
            if at != ALONE:
                others[at] -= 1.0
            agreement = 2.0 * shared[:, agent] - others  # pairs that share, less those that do not
            best = int(np.argmax(agreement))
            to = best if agreement[best] > 0.0 else ALONE
            if to == at or (at != ALONE and to != ALONE and agreement[to] <= agreement[at]):
                continue
            moved = True
            labels[agent] = to
            if at != ALONE:
                shared[at] -= ties[agent]
                sizes[at] -= 1.0
            if to != ALONE:
                shared[to] += ties[agent]
                sizes[to] += 1.0
        if not moved:
            return


def spread(labels: Integers, rows: Booleans) -> Integers:
    """Labels for everyone, from those of a sample and whose samples they use; shape (N,).

    Parameters
    ----------
    labels : array of shape (s,)
    rows : array of shape (s, N)
        Of each in the sample, with whom of all N it shares.
    """
    n_blocks = int(labels.max(initial=ALONE)) + 1
    if not n_blocks:
        return np.full(rows.shape[1], ALONE, dtype=np.int64)
    one_hot = (labels == np.arange(n_blocks)[:, None]).astype(np.float32)
    sizes = one_hot.sum(axis=1)
    found = np.empty(rows.shape[1], dtype=np.int64)
    for start in range(0, rows.shape[1], 2_048):  # a part at a time, so that others get their turn
        part = slice(start, start + 2_048)
        agreement = 2.0 * (one_hot @ rows[:, part].astype(np.float32)) - sizes[:, None]
        best = np.argmax(agreement, axis=0)
        found[part] = np.where(agreement.max(axis=0) > 0.0, best, ALONE)
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
        both = (labels != ALONE) & (before != ALONE)
        common = np.bincount(labels[both] * old + before[both], minlength=new * old).reshape(new, old)
        while common.max() > 0:
            here, there = np.unravel_index(int(np.argmax(common)), common.shape)
            renamed[here] = there
            common[here], common[:, there] = 0, 0
    free = iter(sorted(set(range(new + old)) - set(renamed.tolist())))
    for block in range(new):
        if renamed[block] == ALONE:
            renamed[block] = next(free)
    return np.where(labels == ALONE, ALONE, renamed[labels])


def _by_size(labels: Integers) -> Integers:
    """The same blocks, numbered by size; those of one agent are dissolved."""
    found, counts = np.unique(labels[labels != ALONE], return_counts=True)
    table = np.full(max(MOST, int(labels.max(initial=0)) + 1), ALONE, dtype=np.int64)
    order = np.argsort(-counts, kind="stable")
    large = found[order][counts[order] > 1]
    table[large] = np.arange(len(large))
    return np.where(labels == ALONE, ALONE, table[labels])
