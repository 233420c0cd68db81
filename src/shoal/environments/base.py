"""What every environment offers to a simulation."""

from typing import Any

import numpy as np

from shoal import validation
from shoal.types import Integers, Matrix, Tensor


class Environment:
    """Agents and arms with a mean reward for each pair.

    Attributes
    ----------
    arms : (K, d)
        The arms; where they change every round, those of the first.
    mean_rewards : (N, K)
        Mean reward of every agent for every one of `arms`; where they change, those of the first round.
    theta_star : (N, d) or None
        True parameters, where there are any; where they change, those of the first round.
    labels : (N,) or None
        True clusters, where there are any.
    noise_scale : float
        Standard deviation of the Gaussian noise on rewards.
    param_norm : float
        Largest norm of a true parameter, in any round. Without true parameters the bound that was given, or
        nan.
    """

    def __init__(
        self,
        arms: Matrix,
        *,
        theta_star: Matrix | None = None,
        mean_rewards: Matrix | None = None,
        labels: Integers | None = None,
        noise_scale: float = 1.0,
        param_norm: float | None = None,
    ) -> None:
        arms = np.asarray(arms, dtype=np.float64)
        self.arms = validation.matrix("arms", arms, columns=arms.shape[-1]).copy()
        self.dim, self.n_arms = self.arms.shape[1], self.arms.shape[0]
        self.theta_star = None
        if theta_star is not None:
            self.theta_star = validation.matrix("theta_star", theta_star, columns=self.dim).copy()
        if mean_rewards is None:
            if self.theta_star is None:
                raise ValueError("theta_star or mean_rewards must be given")
            mean_rewards = self.theta_star @ self.arms.T
        self.mean_rewards = validation.matrix("mean_rewards", mean_rewards, columns=self.n_arms).copy()
        self.n_agents = len(self.mean_rewards)
        if self.theta_star is not None and len(self.theta_star) != self.n_agents:
            raise ValueError(f"theta_star must have {self.n_agents} rows, got {len(self.theta_star)}")
        self.labels = None
        if labels is not None:
            given = np.asarray(labels)
            if given.shape != (self.n_agents,) or not np.issubdtype(given.dtype, np.integer):
                raise ValueError(f"labels must be {self.n_agents} integers, got {given.dtype}{given.shape}")
            self.labels = given.astype(np.int64)
        self.noise_scale = validation.number("noise_scale", noise_scale, low=0.0)
        self.param_norm = float("nan")
        if param_norm is not None:
            self.param_norm = validation.number("param_norm", param_norm, low=0.0)
        elif self.theta_star is not None:
            self.param_norm = float(np.linalg.norm(self.theta_star, axis=1).max())
        for array in (self.arms, self.theta_star, self.mean_rewards, self.labels):
            if array is not None:
                array.flags.writeable = False

    @property
    def gap(self) -> float:
        """Δ_min: the smallest distance between two different true parameters; nan without any two."""
        if self.theta_star is None:
            return float("nan")
        distinct = np.unique(self.theta_star, axis=0)
        if len(distinct) < 2:
            return float("nan")
        from scipy.spatial import cKDTree  # takes longer to import than the rest of this package

        nearest, _ = cKDTree(distinct).query(distinct, k=2)  # of each, the first is itself
        return float(nearest[:, 1].min())

    def arms_in(self, first: int, last: int) -> Tensor:
        """Arms of rounds `first`, …, `last` (from 1 on): shape (rounds, K, d), or (1, K, d) if they stay."""
        return self.arms[None].copy()

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        """Mean rewards, shape (n, K), of `agents` (n,) in `rounds` (n,), counted from 1.

        `arms` are what `arms_in` gave from round `first` on: those of round t are `arms[t - first]`, or
        `arms[0]` if they stay.
        """
        return np.asarray(self.mean_rewards[agents])

    def __repr__(self) -> str:
        shape = f"n_agents={self.n_agents}, dim={self.dim}, n_arms={self.n_arms}"
        return f"{type(self).__name__}({shape}, noise_scale={self.noise_scale:g})"


def equal_clusters(n_agents: Any, n_clusters: Any) -> Integers:
    """Labels of clusters as equal as possible, the larger ones last: 33, 33, 34."""
    n_agents = validation.positive_int("n_agents", n_agents)
    n_clusters = validation.positive_int("n_clusters", n_clusters)
    if n_clusters > n_agents:
        raise ValueError(f"n_clusters must be at most n_agents = {n_agents}, got {n_clusters}")
    size, larger = divmod(n_agents, n_clusters)
    sizes = np.full(n_clusters, size)
    sizes[n_clusters - larger :] += 1
    return np.repeat(np.arange(n_clusters), sizes)
