"""A yardstick: agents that know every cluster's parameter and only have to find out which is their own.

No policy can know more about the clusters. The cost of finding one's cluster, plus the cost of learning the
parameters when everyone's cluster is known (Oracle), is about what a policy that knows neither has to pay.
"""

import numpy as np
from numpy.typing import ArrayLike

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
