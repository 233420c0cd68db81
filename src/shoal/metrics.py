"""Numbers that say how well a policy did, computed from graphs and labels."""

import numpy as np

from shoal.kernels.graphs import count_edges
from shoal.types import Booleans, Integers, Vector


def edge_count(graph: Booleans) -> int:
    """Number of edges i < j."""
    return count_edges(graph, None)[0]


def same_cluster(labels: Integers) -> Booleans:
    """The graph that joins all agents with the same label, False on the diagonal."""
    graph = np.equal.outer(labels, labels)
    np.fill_diagonal(graph, False)
    return np.asarray(graph)


def f1_score(graph: Booleans, truth: Booleans) -> float:
    """F1 of the edges of `graph` against those of `truth`, over i < j; 0 when no true edge is found.

    Examples
    --------
    >>> truth = same_cluster(np.array([0, 0, 1]))
    >>> f1_score(truth, truth)
    1.0
    """
    return f1_of_counts(edge_count(graph & truth), edge_count(graph), edge_count(truth))


def f1_of_counts(found: int, edges: int, true_edges: int) -> float:
    """F1 of a graph with so many edges, `found` of which are among the true ones."""
    return 2.0 * found / (edges + true_edges) if found else 0.0


def misassigned_agents(graph: Booleans, truth: Booleans) -> Integers:
    """For each agent, how many others are wrongly in or wrongly out of its neighbourhood, shape (N,)."""
    wrong = graph ^ truth
    np.fill_diagonal(wrong, False)
    return np.asarray(wrong.sum(axis=1))


def cumulative_regret(mean_rewards: Vector, choices: Integers) -> Vector:
    """Cumulative pseudo-regret of choices, from the mean rewards (n, K) each choice could have had."""
    taken = np.take_along_axis(mean_rewards, choices[:, None], axis=1)[:, 0]
    return np.cumsum(mean_rewards.max(axis=1) - taken)
