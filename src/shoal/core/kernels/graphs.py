"""Graphs on agents: connected components and distances between estimates."""

import math

import numpy as np

from shoal.core.jit.compiled import allocating, compiled
from shoal.core.kernels.bits import FULL, WORD, set_bit
from shoal.core.types import Booleans, Integers, Vector

ROWS = 1024
"""Rows of a graph processed at a time; limits memory."""


def pairs_of(n: int) -> int:
    """Number of pairs of n agents."""
    return n * (n - 1) // 2


def pairs_within(labels: Integers) -> int:
    """Number of pairs of agents with the same label; labels are small non-negative integers."""
    sizes = np.bincount(labels)
    return int(sizes @ (sizes - 1)) // 2


def count_joined(clusters: Integers, labels: Integers | None) -> tuple[int, int]:
    """Number of pairs of agents in one cluster, and of those with the same label; both are 0, 1, …"""
    if labels is None:
        return pairs_within(clusters), 0
    _, refined = np.unique(clusters * (np.max(labels, initial=0) + 1) + labels, return_inverse=True)
    return pairs_within(clusters), pairs_within(refined)


def count_edges(graph: Booleans, labels: Integers | None) -> tuple[int, int]:
    """Number of edges i < j, and of those whose ends have the same label (0 without labels)."""
    ends = within = 0  # each edge is counted from both ends
    for start in range(0, len(graph), ROWS):
        rows = np.array(graph[start : start + ROWS], dtype=np.bool_)
        rows[np.arange(len(rows)), np.arange(start, start + len(rows))] = False
        ends += int(np.count_nonzero(rows))
        if labels is not None:
            rows &= labels[start : start + ROWS, None] == labels
            within += int(np.count_nonzero(rows))
    return ends // 2, within // 2


def separation_times(cuts: Integers, n: int) -> Integers:
    """The rounds of the cuts (i, j, round) as a symmetric matrix, shape (n, n), −1 where there was no cut."""
    times = np.full((n, n), -1)
    i, j, rounds = cuts.T
    times[i, j] = times[j, i] = rounds
    return times


@compiled
def distance(u: Vector, v: Vector) -> float:
    """Euclidean distance."""
    total = 0.0
    for m in range(u.shape[0]):
        total += (u[m] - v[m]) ** 2
    return math.sqrt(total)


@compiled
def confidence_width(pulls: int) -> float:
    """`F(T) = √((1 + ln(1+T)) / (1+T))`, by which CLUB and SCLUB scale their thresholds."""
    return math.sqrt((1.0 + math.log(1.0 + pulls)) / (1.0 + pulls))


@allocating
def component_labels(apart: Integers, labels: Integers) -> None:
    """Give every node the lowest node of its component; `apart` are the sets of nodes not joined to each."""
    n = labels.shape[0]
    labels[:] = -1
    stack = np.empty(n, dtype=np.int64)
    seen = np.zeros((n + WORD - 1) // WORD, dtype=np.int64)  # a set, too: most nodes find nobody new
    for start in range(n):
        if labels[start] < 0:
            labels[start] = start
            set_bit(seen, start)
            stack[0] = start
            depth = 1
            while depth > 0:
                depth -= 1
                node = stack[depth]
                for w in range(seen.shape[0]):
                    missing = apart[node, w] | seen[w]
                    if missing == FULL:
                        continue
                    for other in range(w * WORD, min((w + 1) * WORD, n)):
                        if not (missing >> (other % WORD)) & 1:
                            labels[other] = start
                            set_bit(seen, other)
                            stack[depth] = other
                            depth += 1


@compiled
def share_a_neighbor(apart: Integers, n: int, i: int, j: int) -> bool:
    """Whether some other of n nodes is joined to both i and j; `apart` as in `component_labels`."""
    for w in range((n + WORD - 1) // WORD):
        missing = apart[i, w] | apart[j, w]
        if missing != FULL:
            for k in range(w * WORD, min((w + 1) * WORD, n)):
                if k not in (i, j) and not (missing >> (k % WORD)) & 1:
                    return True
    return False
