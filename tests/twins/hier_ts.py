"""Naive twin of HierTS, by the formulas of its source: a posterior of the mean, and one given the mean."""

from typing import Any

import numpy as np
from tests import reference


class HierTS(reference.Twin):
    """One draw from the marginal of the two posteriors."""

    exploration = "sample"

    def __init__(self, n_agents: int, dim: int, *, scatter: float, **more: Any) -> None:
        super().__init__(n_agents, dim, **more)
        self.scatter = scatter

    def pool(self, agent: int) -> list[int]:
        return list(range(self.n_agents))

    def pooled(self, agent: int) -> reference.Statistics:
        kappa, eye = self.scatter, np.eye(self.dim)
        told = [np.linalg.inv(eye + kappa * gram) for gram in self.gram]
        hyper = np.linalg.inv(
            self.ridge * eye + sum(t @ gram for t, gram in zip(told, self.gram, strict=True))
        )
        mean = hyper @ sum(t @ b for t, b in zip(told, self.b, strict=True))
        given = np.linalg.inv(eye / kappa + self.gram[agent])
        theta_hat = given @ (mean / kappa + self.b[agent])
        A = np.linalg.inv(given + given @ hyper @ given / kappa**2)
        return reference.Statistics(A, A @ theta_hat, theta_hat, float(np.linalg.slogdet(A)[1]))
