"""CoLin: an agent's parameter is a mixture of its neighbours' (Wu, Wang, Gu and Wang 2016).

Every agent has a parameter of its own, and what it is rewarded by is a weighted mean over the neighbours in a
given graph; a sample teaches about all of them.
"""

import numpy as np

from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Matrix
from shoal.lab.rivals.given_graph import GraphRival


class CoLin(GraphRival):
    """LinUCB on `vec(x w_iᵀ)`, w_i column i of W; W is the graph with loops, each row divided by its sum.

    Examples
    --------
    >>> import shoal
    >>> policy = shoal.make_policy("colin", 3, 2, graph=[[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    >>> policy.update(0, [0.0, 2.0], reward=2.0)
    >>> [float(round(policy.estimate(agent)[1], 3)) for agent in range(3)]
    [0.667, 0.667, 0.0]

    Notes
    -----
    Departs from its source in the factor of the bonus, α √ln(t+1) as for every policy (docs/algorithms.md).
    """

    name = "colin"
    label = "CoLin"
    line_style = LineStyle("#c27412", "8")

    def _prior(self, graph: Booleans) -> Matrix:
        W = graph + np.eye(len(graph))
        W /= W.sum(axis=1, keepdims=True)
        return np.asarray(W.T @ W)
