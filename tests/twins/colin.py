"""Naive twin of CoLin."""

import numpy as np
from tests.reference import Floats
from tests.twins.goblin import GraphTwin


class CoLin(GraphTwin):
    """Rewards by a weighted mean of the neighbours' parameters."""

    def prepare(self) -> None:
        W = self.edges + np.eye(self.n_agents)
        self.W = W / W.sum(axis=1, keepdims=True)

    def precision(self) -> Floats:
        return np.eye(self.n_agents * self.dim)

    def features(self, agent: int) -> Floats:
        return np.kron(self.W[:, [agent]], np.eye(self.dim))
