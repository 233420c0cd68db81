"""Populations with a history, to be evaluated."""

from typing import Any
from unittest import mock

import numpy as np

from shoal.live.journal.stores.memory import MemoryStore
from shoal.live.population.controller import Controller
from shoal.live.population.population import Population

BANNERS = {f"banner {k}": x.tolist() for k, x in enumerate(np.random.default_rng(0).normal(size=(4, 3)))}
TASTE = np.array([1.5, -1.0, 0.5])


def shop(controller: Controller | None = None, **settings: Any) -> Population:
    """A population of its own, in memory unless a controller is given."""
    controller = controller or Controller(MemoryStore())
    settings = {"policy": "bass", "dim": 3, "seed": 1, "explore": 0.2, **settings}
    with mock.patch("secrets.token_bytes", lambda size: b"k" * size):  # the same draws in every run
        made = controller.population("shop", **settings)
    made.set_arms(BANNERS)
    return made


def play(
    shop: Population, days: int, agents: int = 10, *, first: int = 0, noise: float = 0.3, **request: Any
) -> None:
    """Days on which every agent decides and most rewards come; odd agents have the opposite taste."""
    rng = np.random.default_rng(first)
    for day in range(first, first + days):
        for n in range(agents):
            decision = shop.decide(f"agent {n}", id=f"{day}-{n}", **request)
            liking = (-1) ** n * TASTE @ BANNERS[str(decision.arm)] + noise * rng.normal()
            if (day + n) % 7:
                shop.reward(decision.id, float(np.clip(liking, -5.0, 5.0)))
