"""Naive twin of CAB."""

from math import log, sqrt

import numpy as np
from tests.reference import Bools, Floats, Statistics, Twin, fit, statistics_from_sums


class CAB(Twin):
    """Neighbours of an agent for an arm; a model that takes in what they pass on."""

    def __init__(
        self, n_agents: int, dim: int, *, alpha: float, ridge: float = 1.0, gamma: float = 0.2
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge)
        self.gamma = gamma
        self.learned_from = [{agent} for agent in range(n_agents)]
        self.models = [fit([], dim, ridge)] * n_agents

    def views(self, x: Floats, t: int) -> list[tuple[float, float]]:
        """Every agent's prediction of an arm, and its width."""
        return [
            (float(x @ one.theta_hat), self.alpha * sqrt(x @ np.linalg.solve(one.A, x) * log(t + 1)))
            for one in self.models
        ]

    def near(self, agent: int, views: list[tuple[float, float]]) -> list[int]:
        """The agents whose predictions an agent cannot tell from its own."""
        mine, width = views[agent]
        return [other for other, (mean, theirs) in enumerate(views) if abs(mine - mean) <= width + theirs]

    def pool(self, agent: int) -> list[int]:
        return sorted(self.learned_from[agent])

    def graph(self) -> Bools:
        graph = super().graph()
        return graph & graph.T

    def pooled(self, agent: int) -> Statistics:
        return self.models[agent]

    def select(self, agent: int, arms: Floats, t: int) -> int:
        bounds = []
        for x in arms:
            views = self.views(x, t)
            bounds.append(np.mean([sum(views[other]) for other in self.near(agent, views)]))
        return int(np.argmax(bounds))

    def observe(self, agent: int, x: Floats, reward: float, t: int) -> None:
        views = self.views(x, t)
        sure = [other for other in self.near(agent, views) if views[other][1] < self.gamma / 4]
        takers = {agent, *sure} if agent in sure else {agent}
        before = self.communication_cost
        super().observe(agent, x, reward, t)
        self.communication_cost = before + len(takers) - 1
        for taker in takers:
            old = self.models[taker]
            gram = old.A - self.ridge * np.eye(self.dim) + np.outer(x, x)
            self.models[taker] = statistics_from_sums(gram, old.b + reward * x, self.ridge)
            self.learned_from[taker].add(agent)
