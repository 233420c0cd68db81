"""Naive twin of DyClu: raw samples, pseudo-inverses and the tests as its source writes them."""

from math import log, sqrt
from typing import Any

import numpy as np
from scipy.stats import chi2
from tests import reference

Model = list[reference.Sample]


class DyClu(reference.Twin):
    """χ² tests between agents, and of each sample."""

    bonus = "own"

    def __init__(self, n_agents: int, dim: int, *, noise_scale: float = 1.0, **more: Any) -> None:
        super().__init__(n_agents, dim, **more)
        self.noise = noise_scale
        self.alike = np.ones((n_agents, n_agents), dtype=np.bool_)
        self.misses: list[list[bool]] = [[] for _ in range(n_agents)]
        self.past: list[Model] = []
        self.reused: list[list[Model]] = [[] for _ in range(n_agents)]
        self.renewed: set[int] = set()

    def pool(self, agent: int) -> list[int]:
        return [other for other in range(self.n_agents) if other == agent or self.alike[agent, other]]

    def pooled(self, agent: int) -> reference.Statistics:
        return reference.fit(self.used(agent), self.dim, self.ridge)

    def used(self, agent: int) -> Model:
        models = [*(self.samples[other] for other in self.pool(agent)), *self.reused[agent]]
        return [sample for model in models for sample in model]

    def choose(
        self, theta_hat: reference.Floats, A: reference.Floats, arms: reference.Floats, agent: int, t: int
    ) -> int:
        if self.bonus == "ucb" or self.exploration == "sample":
            return super().choose(theta_hat, A, arms, agent, t)
        n, d = len(self.used(agent)), self.dim
        beta = self.noise * sqrt(d * log(1 + n / (d * self.ridge)) + 2 * log(1 / 0.01)) + sqrt(self.ridge)
        return int(
            np.argmax([theta_hat @ x + self.alpha * beta * sqrt(x @ np.linalg.solve(A, x)) for x in arms])
        )

    def arrays(self, model: Model) -> tuple[reference.Floats, reference.Floats]:
        X = np.array([x for x, _ in model]).reshape(-1, self.dim)
        return X, np.array([reward for _, reward in model])

    def are_alike(self, one: Model, other: Model) -> bool:
        X_i, y_i = self.arrays(one)
        X_j, y_j = self.arrays(other)
        X, y = self.arrays([*one, *other])
        both = np.linalg.pinv(X) @ y
        statistic = sum(
            np.linalg.norm(part @ (np.linalg.pinv(part) @ rewards - both)) ** 2
            for part, rewards in ((X_i, y_i), (X_j, y_j))
            if len(rewards)
        )
        rank = [int(np.linalg.matrix_rank(part)) if len(part) else 0 for part in (X_i, X_j, X)]
        degrees = rank[0] + rank[1] - rank[2]
        return degrees == 0 or bool(chi2.sf(statistic / self.noise**2, degrees) > 0.01)

    def observe(self, agent: int, x: reference.Floats, reward: float, t: int) -> None:
        X, y = self.arrays(self.samples[agent])
        failed = False
        if len(y) and np.linalg.matrix_rank(X) == self.dim:
            gram = np.linalg.inv(X.T @ X)
            error = reward - x @ gram @ X.T @ y
            failed = bool(chi2.sf(error**2 / (self.noise**2 * (1 + x @ gram @ x)), 1) <= 0.01)
        self.misses[agent].append(failed)
        if not failed:
            super().observe(agent, x, reward, t)
            self.renewed.add(agent)

    def revise(self, agent: int, t: int) -> None:
        if agent in self.renewed:
            self.renewed.discard(agent)
            for other in range(self.n_agents):
                if other != agent:
                    alike = self.are_alike(self.samples[agent], self.samples[other])
                    self.alike[agent, other] = self.alike[other, agent] = alike
            self.reused[agent] = [model for model in self.past if self.are_alike(self.samples[agent], model)]
        latest = self.misses[agent][-20:]
        if latest and np.mean(latest) > 0.01 + sqrt(log(1 / 0.1) / (2 * len(latest))):
            if len(self.past) == self.n_agents:
                gone = self.past.pop(0)
                self.reused = [[model for model in models if model is not gone] for models in self.reused]
            self.past.append(self.samples[agent])
            self.samples[agent], self.misses[agent] = [], []
            self.gram[agent], self.b[agent] = np.zeros((self.dim,) * 2), np.zeros(self.dim)
            self.alike[agent, :] = self.alike[:, agent] = True
