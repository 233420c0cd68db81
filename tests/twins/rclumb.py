"""Naive twin of RCLUMB, and what it shares with that of RSCLUMB."""

import numpy as np
from tests.reference import EdgeTwin, F, Floats, Twin, distance


class InDoubt(Twin):
    """What the two twins with a misspecification share: raw samples in the bonus."""

    misspecification: float

    def select(self, agent: int, arms: Floats, t: int) -> int:
        known = self.pooled(agent)
        A_inv = np.linalg.inv(known.A)
        samples = [x for other in self.pool(agent) for x, _ in self.samples[other]]
        doubt = np.array([sum(abs(x @ A_inv @ z) for z in samples) for x in arms])
        bonus = self.bonuses(known.A, arms, agent, t)
        return int(np.argmax(arms @ known.theta_hat + bonus + self.misspecification * doubt))


class RCLUMB(InDoubt, EdgeTwin):
    """CLUB's cuts, later by α₂ε*; direct neighbours pool."""

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        ridge: float = 1.0,
        gamma: float = 1.0,
        tolerance: float = 1.5,
        misspecification: float = 0.2,
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge)
        self.gamma, self.misspecification = gamma, misspecification
        self.slack = tolerance * misspecification

    def pool(self, agent: int) -> list[int]:
        return [other for other in range(self.n_agents) if other == agent or self.edges[agent, other]]

    def differ(self, agent: int, other: int) -> bool:
        widths = F(self.pulls([agent])) + F(self.pulls([other]))
        gap = distance(self.theta_hat([agent]), self.theta_hat([other]))
        return gap > self.gamma * widths + self.slack
