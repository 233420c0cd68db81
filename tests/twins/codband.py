"""Naive twin of CoDBand: models are lists of sums, densities those of scipy."""

from math import erfc, log, sqrt
from typing import Any

import numpy as np
from scipy.stats import multivariate_normal, norm
from tests import reference


class CoDBand(reference.Twin):
    """A Dirichlet-process mixture of agents' periods."""

    exploration = "sample"

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        noise_scale: float = 1.0,
        concentration: float | None = None,
        evidence: str = "joint",
        drift: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(n_agents, dim, **more)
        self.noise, self.drift, self.evidence = noise_scale, drift, evidence
        self.drawn, self.weight = concentration is None, 1.0 if concentration is None else concentration
        self.labels = [-1] * n_agents
        self.models: list[dict[str, Any]] = []
        self.misses: list[list[bool]] = [[] for _ in range(n_agents)]

    def pool(self, agent: int) -> list[int]:
        if self.labels[agent] < 0:
            return [agent]
        return [other for other in range(self.n_agents) if self.labels[other] == self.labels[agent]]

    def model(self, label: int) -> reference.Statistics:
        if not 0 <= label < len(self.models):
            return reference.statistics_from_sums(np.zeros((self.dim,) * 2), np.zeros(self.dim), self.ridge)
        return reference.statistics_from_sums(self.models[label]["S"], self.models[label]["b"], self.ridge)

    def pooled(self, agent: int) -> reference.Statistics:
        return self.model(self.labels[agent])

    def pick(self, weights: Any, u: float) -> int:
        shares = np.cumsum(weights) / np.sum(weights)
        return int(np.searchsorted(shares, u, side="right"))

    def select(self, agent: int, arms: reference.Floats, t: int) -> int:
        label = self.labels[agent]
        if label < 0:
            z = self.rng.normals(t, agent, self.dim + 1)[-1]
            weights = [*(model["periods"] for model in self.models), self.weight]
            label = self.pick(weights, 0.5 * erfc(-z / sqrt(2)))
        chosen = self.model(label)
        return self.choose(chosen.theta_hat, chosen.A, arms, agent, t)

    def observe(self, agent: int, x: reference.Floats, reward: float, t: int) -> None:
        own, n, d = self.statistics([agent]), len(self.samples[agent]), self.dim
        beta = self.noise * sqrt(d * log(1 + n / (d * self.ridge)) + 2 * log(1 / 0.01)) + sqrt(self.ridge)
        width = beta * sqrt(x @ np.linalg.solve(own.A, x)) + self.noise * float(norm.ppf(1 - 0.01 / 2))
        self.misses[agent].append(bool(abs(reward - own.theta_hat @ x) > width))
        super().observe(agent, x, reward, t)
        if self.labels[agent] >= 0:
            model = self.models[self.labels[agent]]
            model["S"], model["b"] = model["S"] + np.outer(x, x), model["b"] + reward * x

    def density(self, label: int, agent: int) -> float:
        """Log density of the samples of an agent's period, up to what is the same for all models."""
        samples = self.samples[agent][-70:] if self.evidence == "as-released" else self.samples[agent]
        X, y = np.array([x for x, _ in samples]), np.array([reward for _, reward in samples])
        model, var = self.model(label), self.noise**2
        covariance = var * (np.eye(len(y)) + X @ np.linalg.solve(model.A, X.T))
        if self.evidence == "as-released" and label < len(self.models):
            return float(norm.logpdf(y, X @ model.theta_hat, np.sqrt(np.diag(covariance))).sum())
        return float(multivariate_normal.logpdf(y, X @ model.theta_hat, covariance))

    def revise(self, agent: int, t: int) -> None:
        if not self.samples[agent]:
            return
        label, S, b = self.labels[agent], self.gram[agent], self.b[agent]
        if label >= 0:
            model = self.models[label]
            model["S"], model["b"], model["periods"] = model["S"] - S, model["b"] - b, model["periods"] - 1
            if model["periods"] == 0:
                del self.models[label]
                self.labels = [other - (other > label) for other in self.labels]
        counts = [*(model["periods"] for model in self.models), self.weight]
        logs = np.array([log(count) + self.density(k, agent) for k, count in enumerate(counts)])
        if len(self.models) == 2 * self.n_agents:
            logs = logs[:-1]
        label = self.pick(np.exp(logs - logs.max()), self.rng.uniform())
        if label == len(self.models):
            self.models.append({"S": np.zeros((self.dim,) * 2), "b": np.zeros(self.dim), "periods": 0})
        model = self.models[label]
        model["S"], model["b"], model["periods"] = model["S"] + S, model["b"] + b, model["periods"] + 1
        self.labels[agent] = label
        if self.drawn:
            self.draw_weight()
        latest = self.misses[agent][-20:]
        if self.drift and np.mean(latest) > 0.01 + sqrt(log(1 / 0.1) / (2 * len(latest))):
            self.labels[agent] = -1
            self.samples[agent], self.misses[agent] = [], []
            self.gram[agent], self.b[agent] = np.zeros((self.dim,) * 2), np.zeros(self.dim)

    def draw_weight(self) -> None:
        models, periods = len(self.models), sum(model["periods"] for model in self.models)
        one, other = self.rng.gamma(self.weight + 1), self.rng.gamma(periods)
        rate = 1 - log(one / (one + other))
        odds = (7.5 + models - 1) / (periods * rate)
        more = self.rng.uniform() < odds / (1 + odds)
        self.weight = self.rng.gamma(7.5 + models - (not more)) / rate
