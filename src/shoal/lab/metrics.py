"""How well a policy found who belongs together: scores of graphs."""

import numpy as np

from shoal.core.types import Booleans, Integers


def same_cluster(labels: Integers) -> Booleans:
    """The graph that joins all agents with the same label, False on the diagonal."""
    graph = np.equal.outer(labels, labels)
    np.fill_diagonal(graph, False)
    return np.asarray(graph)


def f1_of_counts(found: int, edges: int, true_edges: int) -> float:
    """F1 of a graph with `edges` edges, `found` of which are true; 0 if none is.

    Examples
    --------
    >>> f1_of_counts(found=2, edges=4, true_edges=2)
    0.6666666666666666
    """
    return 2.0 * found / (edges + true_edges) if found else 0.0


def misassigned_agents(graph: Booleans, truth: Booleans) -> Integers:
    """For each agent, how many others are wrongly in its neighbourhood or wrongly outside it, shape (N,)."""
    wrong = graph ^ truth
    np.fill_diagonal(wrong, False)
    return np.asarray(wrong.sum(axis=1))
