"""Clusters of agents with made-up parameters: the paper's two benchmarks, and one with moving arms."""

import math

import numpy as np

from shoal import validation
from shoal.environments.base import Environment, equal_clusters
from shoal.types import Integers, Matrix, Tensor

BLOCK = 256
"""Rounds whose arms are drawn together in `ChangingArms`."""


class SyntheticClusters(Environment):
    """Pairs of cluster parameters at a given angle, with arms scattered around each.

    `θ_{2q−1} = e_{2q−1}`, `θ_{2q} = cos ω e_{2q−1} + sin ω e_{2q}`; around each θ_m, arms
    `x = θ_m + spread ‖θ_m‖ g`, g standard normal. Angles π/16 and 7π/16 give the
    gaps 0.2 and 1.27 of the paper.

    Parameters
    ----------
    n_agents, dim, n_clusters : int
        `dim` must be at least `n_clusters`.
    angle : float
        ω, in radians.
    arms_per_cluster : int
    arm_spread : float
    noise_scale : float
    seed : int or None
        Seed of the arms.
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int,
        angle: float,
        *,
        arms_per_cluster: int = 5,
        arm_spread: float = 0.5,
        noise_scale: float = 1.0,
        seed: int | None = None,
    ) -> None:
        labels = equal_clusters(n_agents, n_clusters)
        dim = validation.positive_int("dim", dim)
        if dim < n_clusters:
            raise ValueError(f"dim must be at least n_clusters = {n_clusters}, got {dim}")
        angle = validation.number("angle", angle)
        count = validation.positive_int("arms_per_cluster", arms_per_cluster)
        spread = validation.number("arm_spread", arm_spread, low=0.0)
        centers = np.zeros((n_clusters, dim))
        for m in range(n_clusters):
            if m % 2 == 0:
                centers[m, m] = 1.0
            else:
                centers[m, m - 1 : m + 1] = math.cos(angle), math.sin(angle)
        around = np.repeat(centers, count, axis=0)
        rng = np.random.default_rng(validation.seed_or_none("seed", seed))
        norms = np.linalg.norm(around, axis=1, keepdims=True)
        arms = around + spread * norms * rng.standard_normal(around.shape)
        super().__init__(arms, theta_star=centers[labels], labels=labels, noise_scale=noise_scale)


class GaussianClusters(Environment):
    """Cluster parameters and arms drawn from the standard normal distribution.

    Parameters
    ----------
    n_agents, dim, n_clusters, n_arms : int
    noise_scale : float
    seed : int or None
        Seed of parameters and arms.
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int = 3,
        *,
        n_arms: int = 15,
        noise_scale: float = 1.0,
        seed: int | None = None,
    ) -> None:
        labels = equal_clusters(n_agents, n_clusters)
        dim = validation.positive_int("dim", dim)
        rng = np.random.default_rng(validation.seed_or_none("seed", seed))
        centers = rng.standard_normal((n_clusters, dim))
        arms = rng.standard_normal((validation.positive_int("n_arms", n_arms), dim))
        super().__init__(arms, theta_star=centers[labels], labels=labels, noise_scale=noise_scale)


class ChangingArms(Environment):
    """Clusters on the unit sphere, with arms drawn anew from the unit ball in every round.

    Parameters
    ----------
    n_agents, dim, n_clusters, n_arms : int
    noise_scale : float
    seed : int or None
        Seed of parameters and arms. Round t has the same arms in every run.
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int = 3,
        *,
        n_arms: int = 15,
        noise_scale: float = 1.0,
        seed: int | None = None,
    ) -> None:
        labels = equal_clusters(n_agents, n_clusters)
        dim = validation.positive_int("dim", dim)
        n_arms = validation.positive_int("n_arms", n_arms)
        self._entropy = _entropy(seed)
        self._shape = (BLOCK, n_arms, dim)
        centers = _on_sphere(self._rng(0).standard_normal((n_clusters, dim)))
        super().__init__(
            self._block(0)[0], theta_star=centers[labels], labels=labels, noise_scale=noise_scale
        )

    def arms_in(self, first: int, last: int) -> Tensor:
        """Arms of the rounds `first`, …, `last` (counted from 1), shape (rounds, K, d)."""
        start, stop = first - 1, last
        blocks = [self._block(index) for index in range(start // BLOCK, (stop - 1) // BLOCK + 1)]
        offset = start - start // BLOCK * BLOCK
        return np.ascontiguousarray(np.concatenate(blocks)[offset : offset + stop - start])

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers) -> Matrix:
        """Mean rewards, shape (n, K), of `agents` (n,) whose arms are `arms[rounds]`."""
        assert self.theta_star is not None  # by construction
        return np.asarray(np.einsum("nkd,nd->nk", arms[rounds], self.theta_star[agents]))

    def _block(self, index: int) -> Tensor:
        rng = self._rng(1 + index)
        directions = _on_sphere(rng.standard_normal(self._shape))
        return np.asarray(directions * rng.random((*self._shape[:2], 1)) ** (1.0 / self._shape[2]))

    def _rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([stream, self._entropy])


def _entropy(seed: int | None) -> int:
    """The seed, or where there is none, one drawn once."""
    seed = validation.seed_or_none("seed", seed)
    return int(np.random.default_rng().integers(2**63)) if seed is None else seed


def _on_sphere(vectors: Tensor) -> Tensor:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
