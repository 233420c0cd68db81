"""Simulated logs whose truth is known, many at a time."""

from typing import NamedTuple

import numpy as np

from shoal.core.types import Matrix, Tensor, Vector
from shoal.live.evaluation.estimators import Log


class World(NamedTuple):
    """Arms drawn anew for each decision; a reward is linear in the arm, plus noise."""

    theta: Vector
    target: Vector
    """Another policy plays the arm with the largest product with this."""
    n_arms: int = 4
    noise: float = 1.0

    def arms(self, rng: np.random.Generator, *shape: int) -> Tensor:
        return rng.standard_normal((*shape, self.n_arms, len(self.theta))) + 0.3

    def value(self, size: int = 400_000) -> float:
        """What the target policy is worth."""
        arms = self.arms(np.random.default_rng(12345), size)
        best = (arms @ self.target).argmax(axis=1)
        return float((arms[np.arange(size), best] @ self.theta).mean())


WORLD = World(np.array([1.0, -0.5]), np.array([0.6, 0.8]))


def logs(n_logs: int, length: int, *, explore: float, adaptive: bool, seed: int) -> list[Log]:
    """Logs of ε-greedy agents, which learn from what they log or else were born with an opinion.

    Their own running ridge estimate is the model.
    """
    rng, world = np.random.default_rng(seed), WORLD
    d, K, each = len(world.theta), world.n_arms, np.arange(n_logs)
    A, b = np.broadcast_to(np.eye(d), (n_logs, d, d)).copy(), np.zeros((n_logs, d))
    columns: dict[str, Matrix] = {
        name: np.zeros((length, n_logs)) for name in ("rewards", "p", "target", "predicted", "expected")
    }
    for t in range(length):
        arms = world.arms(rng, n_logs)
        estimate = np.linalg.solve(A, b[..., None])[..., 0]
        means = np.einsum("nkd,nd->nk", arms, estimate)
        greedy = means.argmax(axis=1) if adaptive else arms[:, :, 0].argmax(axis=1)
        explores = rng.random(n_logs) < explore
        shown = np.where(explores, rng.integers(K, size=n_logs), greedy)
        wanted = (arms @ world.target).argmax(axis=1)
        x = arms[each, shown]
        reward = x @ world.theta + world.noise * rng.standard_normal(n_logs)
        A += x[:, :, None] * x[:, None, :]
        b += reward[:, None] * x
        columns["rewards"][t] = reward
        columns["p"][t] = explore / K + (1.0 - explore) * (shown == greedy)
        columns["target"][t] = shown == wanted
        columns["predicted"][t], columns["expected"][t] = means[each, shown], means[each, wanted]
    return [Log(*(column[:, n].copy() for column in columns.values())) for n in range(n_logs)]
