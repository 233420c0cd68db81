"""Naive twin of GOB.Lin, and what it shares with that of CoLin."""

import numpy as np
from tests.reference import Bools, Floats, Statistics, Twin, connected_components


class GraphTwin(Twin):
    """A given graph; ridge regression with all N·d unknowns, solved anew."""

    def __init__(
        self, n_agents: int, dim: int, *, alpha: float, ridge: float = 1.0, graph: Bools, **more: float
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge)
        self.edges = np.array(graph, dtype=np.bool_) & ~np.eye(n_agents, dtype=np.bool_)
        self.prepare(**more)

    def prepare(self) -> None:
        """Compute what follows from the graph."""

    def features(self, agent: int) -> Floats:
        """What maps an arm of an agent to all unknowns, (N·d, d)."""
        raise NotImplementedError

    def precision(self) -> Floats:
        """Of the prior of all unknowns, for a ridge of 1."""
        raise NotImplementedError

    def graph(self) -> Bools:
        return self.edges.copy()

    def pool(self, agent: int) -> list[int]:
        return next(component for component in connected_components(self.edges) if agent in component)

    def pooled(self, agent: int) -> Statistics:
        A, b = self.ridge * self.precision(), np.zeros(self.n_agents * self.dim)
        for other in range(self.n_agents):
            Z = self.features(other)
            A, b = A + Z @ self.gram[other] @ Z.T, b + Z @ self.b[other]
        Z = self.features(agent)
        inverse = np.linalg.inv(Z.T @ np.linalg.solve(A, Z))
        return Statistics(inverse, b[: self.dim], Z.T @ np.linalg.solve(A, b), 0.0)


class GOBLin(GraphTwin):
    """A penalty on differences along the edges."""

    def prepare(self, *, coupling: float = 1.0) -> None:
        self.coupling = coupling

    def precision(self) -> Floats:
        size = self.n_agents * self.dim
        M = np.eye(size)
        for i, j in np.argwhere(np.triu(self.edges)):
            difference = (self.features(int(i)) - self.features(int(j))).T  # θ_i − θ_j of all unknowns
            M = M + self.coupling * difference.T @ difference
        return M

    def features(self, agent: int) -> Floats:
        return np.asarray(np.kron(np.eye(self.n_agents)[:, [agent]], np.eye(self.dim)), dtype=np.float64)
