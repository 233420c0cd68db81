"""Yardsticks: agents that are told what a policy has to find out.

`Informed` knows every cluster's parameter and only has to find out which cluster is its own. No policy can
know more about the clusters. The cost of finding one's cluster, plus the cost of learning the parameters when
everyone's cluster is known (Oracle), is about what a policy that knows neither has to pay.

`ClickOracle` is Oracle for rewards of 0 and 1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from shoal.core.policy.clicks import sample_of_click, with_intercept
from shoal.core.types import Matrix, Vector


class Informed:
    """Weighs the clusters by how well their parameters predicted an agent's rewards.

    `argmax_x m(x) + spread √Var_π(x·θ_k)` with `m(x) = Σ_k π_k x·θ_k`, where π is the posterior of an agent's
    cluster from a uniform prior: what `ClusterMixture` would choose if only the cluster were unknown.

    Parameters
    ----------
    n_agents, dim : int
    parameters : (M, d) or (N, d)
        Parameters of all clusters, or of all agents; equal rows count once.
    noise_scale : float
        Standard deviation of the noise.
    spread : float
        How much an agent explores because its cluster is uncertain.
    """

    def __init__(
        self, n_agents: int, dim: int, *, parameters: ArrayLike, noise_scale: float = 1.0, spread: float = 1.0
    ) -> None:
        self.n_agents, self.dim = n_agents, dim
        self.centers: Matrix = np.unique(np.asarray(parameters, dtype=np.float64), axis=0)
        if self.centers.ndim != 2 or self.centers.shape[1] != dim:
            raise ValueError(f"parameters must have shape (M, {dim}), got {self.centers.shape}")
        self.precision, self.spread = 0.5 / max(noise_scale, 1e-9) ** 2, spread
        self.logs = np.zeros((n_agents, len(self.centers)))

    def posterior(self, agent: int) -> Vector:
        """Probability of each cluster, shape (M,)."""
        weights = np.exp(self.logs[agent] - self.logs[agent].max())
        return np.asarray(weights / weights.sum())

    def select(self, agent: int, arms: Matrix) -> int:
        """Index of the arm that `agent` plays."""
        means, p = self.centers @ arms.T, self.posterior(agent)
        mean = p @ means
        return int(np.argmax(mean + self.spread * np.sqrt(p @ (means - mean) ** 2)))

    def update(self, agent: int, x: Vector, reward: float) -> None:
        """Let `agent` learn that arm `x` gave `reward`."""
        self.logs[agent] -= self.precision * (reward - self.centers @ x) ** 2


class ClickOracle:
    """A logistic index (as for `rewards="binary"`) on the true clusters, with the samples of all agents.

    Parameters
    ----------
    n_agents, dim : int
    labels : (N,)
        The true cluster of each agent, integers from 0 on.
    alpha : float
        How much is explored.
    """

    def __init__(self, n_agents: int, dim: int, *, labels: ArrayLike, alpha: float = 0.6) -> None:
        self.n_agents, self.dim, self.alpha = n_agents, dim, alpha
        self.labels = np.asarray(labels, dtype=np.int64)
        if self.labels.shape != (n_agents,):
            raise ValueError(f"labels must have shape ({n_agents},), got {self.labels.shape}")
        n_clusters = int(self.labels.max()) + 1
        self.A = np.tile(np.eye(dim + 1), (n_clusters, 1, 1))
        self.b, self.rounds = np.zeros((n_clusters, dim + 1)), 0

    def select(self, agent: int, arms: Matrix) -> int:
        """Index of the arm that `agent` plays."""
        inner, cluster = with_intercept(arms), self.labels[agent]
        A_inv = np.linalg.inv(self.A[cluster])
        mean, variance = inner @ (A_inv @ self.b[cluster]), np.einsum("kd,dk->k", inner @ A_inv, inner.T)
        self.rounds += 1
        width = self.alpha * np.sqrt(math.log(self.rounds + 1.0) * variance)
        k = int(np.argmax(mean + width))
        self.chosen = inner[k], float(mean[k]), float(variance[k])
        return k

    def update(self, agent: int, x: Vector, reward: float) -> None:
        """Let the cluster of `agent` learn whether the arm that was selected last was clicked."""
        inner, mean, variance = self.chosen
        scaled = np.empty_like(inner)
        y = sample_of_click(inner, reward, mean, variance, scaled)
        self.A[self.labels[agent]] += np.outer(scaled, scaled)
        self.b[self.labels[agent]] += y * scaled
