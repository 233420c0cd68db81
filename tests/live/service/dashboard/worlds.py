"""Populations to look at: of three sizes, with blocks that are known, made quickly."""

import heapq

import numpy as np

from shoal.live.population.controller import Controller
from shoal.live.population.population import Population
from shoal.live.service.demo import Life, World, make

KINDS = 3
ARMS = 6
NAMES = [f"arm {k}" for k in range(ARMS)]


def features(dim: int) -> np.ndarray:
    x = np.random.default_rng(5).normal(size=(ARMS, dim))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def few(controller: Controller, name: str = "shops", n: int = 20, seconds: float = 90.0) -> Population:
    """Agents of two kinds who were told apart by late rewards, as in the demo."""
    world = World(
        name,
        tuple(f"shop {k}" for k in range(n)),
        tuple(f"ware {k}" for k in range(8)),
        n_kinds=2,
        on_offer=3,
        rate=n / 2.0,
        delay=4.0,
        noise=0.15,
        seed=5,
    )
    population = make(controller, world)
    visits = Life(population, world, lambda: False).visits(np.random.default_rng(7))
    late: list[tuple[float, str, float]] = []
    for k in range(int(world.rate * seconds)):
        delay, decision, reward = next(visits)
        heapq.heappush(late, (k / world.rate + delay, decision, reward))
        while late[0][0] < k / world.rate:
            _, decision, reward = heapq.heappop(late)
            population.reward(decision, reward)
    return population


def many(controller: Controller, name: str, n: int, taught: int, samples: int, *, dim: int = 3) -> Population:
    """`n` agents of `KINDS` kinds, of whom the first `taught` have `samples` samples each, and the rest one.

    BASS tells those apart who have enough samples; all others share with everyone.
    """
    rng = np.random.default_rng(3)
    population = controller.population(
        name, policy="bass", dim=dim, seed=1, noise_scale=0.15, gamma=2.0, ridge=0.3, explore=0.05
    )
    x, likes = features(dim), np.eye(KINDS, dim)
    population.set_arms(dict(zip(NAMES, x.tolist(), strict=True)))
    order = [*range(n), *np.repeat(np.arange(taught), samples - 1)]
    for start in range(0, len(order), 1000):
        some = order[start : start + 1000]
        arms = rng.integers(ARMS, size=len(some))
        rewards = np.einsum("nd,nd->n", likes[np.array(some) % KINDS], x[arms])
        rewards += 0.1 * rng.normal(size=len(some))
        population.observe_many(
            {"agent": f"agent {agent}", "x": x[arm], "reward": float(reward)}
            for agent, arm, reward in zip(some, arms.tolist(), rewards.tolist(), strict=True)
        )
    return population
