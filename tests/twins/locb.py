"""Naive twin of LOCB."""

from collections.abc import Sequence

import numpy as np
from tests.reference import F, Floats, Twin, distance


class LOCB(Twin):
    """Clusters around seeds, which may overlap; the largest upper bound of any that an agent is in."""

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        ridge: float = 1.0,
        gamma: float = 0.2,
        seeds: Sequence[int],
        n_seeds: int = 20,
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge)
        self.gamma = gamma
        assert len(seeds) == min(n_seeds, n_agents)
        self.clusters = {int(seed): set(range(n_agents)) for seed in seeds}

    def mine(self, agent: int) -> list[list[int]]:
        """The clusters that an agent is in; itself alone if there is none."""
        return [sorted(them) for them in self.clusters.values() if agent in them] or [[agent]]

    def pool(self, agent: int) -> list[int]:
        return sorted({other for them in self.mine(agent) for other in them})

    def select(self, agent: int, arms: Floats, t: int) -> int:
        bounds = []
        for them in self.mine(agent):
            known = self.statistics(them)
            bounds.append(arms @ known.theta_hat + self.bonuses(known.A, arms, agent, t))
        return int(np.argmax(np.max(bounds, axis=0)))

    def revise(self, agent: int, t: int) -> None:
        for seed, them in self.clusters.items():
            if F(self.pulls([seed])) > self.gamma / 4:
                allowed = F(self.pulls([agent])) + F(self.pulls([seed]))
                if distance(self.theta_hat([agent]), self.theta_hat([seed])) <= allowed:
                    them.add(agent)
                else:
                    them.discard(agent)
