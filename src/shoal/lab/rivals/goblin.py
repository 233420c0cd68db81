"""GOB.Lin: neighbours in a given graph have similar parameters (Cesa-Bianchi, Gentile and Zappella 2013).

Ridge regression of all agents at once, with the penalty `Σ‖θ_i‖² + ε Σ_edges ‖θ_i − θ_j‖²`.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta

from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Matrix
from shoal.core.validation import LARGEST
from shoal.lab.rivals.given_graph import GraphParameters, GraphRival


class GOBLinParameters(GraphParameters, frozen=True, kw_only=True):
    """Parameters of GOB.Lin."""

    coupling: Annotated[
        float, Meta(ge=0.0, le=LARGEST, description="ε: weight of an edge beside the ridge.")
    ] = 1.0


class GOBLin(GraphRival):
    """LinUCB with the prior precision `λ (I + εL) ⊗ I` on all agents' parameters, L the graph's Laplacian.

    Examples
    --------
    >>> import shoal
    >>> policy = shoal.make_policy("goblin", 3, 2, graph=[[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    >>> policy.update(0, [0.0, 3.0], reward=3.0)
    >>> [float(round(policy.estimate(agent)[1], 3)) for agent in range(3)]
    [0.857, 0.429, 0.0]

    Notes
    -----
    Departs from its source in the factor of the bonus, α √ln(t+1) as for every policy (docs/algorithms.md).
    """

    name = "goblin"
    label = "GOB.Lin"
    line_style = LineStyle("#59a14f", ">")
    Parameters = GOBLinParameters

    def _prior(self, graph: Booleans) -> Matrix:
        laplacian = np.diag(graph.sum(axis=1)) - graph
        return np.asarray(np.linalg.inv(np.eye(len(graph)) + self._parameters.coupling * laplacian))
