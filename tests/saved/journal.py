"""Write a small journal with every kind of record in the schema of the present code, and what it says.

Run once when the schema changes, into a directory of its own, which is then never written again:

    .venv/bin/python -m tests.saved.journal tests/saved/journal-N
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.live.population.population import Population


def play(shop: Population, first: int, rounds: int) -> dict[str, float]:
    """Decisions for six agents of two tastes, most of them rewarded; the rewards."""
    rng, rewards = np.random.default_rng(first), {}
    for n in range(first, first + rounds):
        arms = rng.standard_normal((4, 3))
        decision = shop.decide(f"agent {n % 6}", arms, id=f"visit {n}")
        liking = float(arms[int(decision.arm)] @ [2.0 - 4.0 * (n % 2), 0.0, 0.5])
        if n % 5:
            rewards[decision.id] = liking + 0.1 * float(rng.standard_normal())
            shop.reward(decision.id, rewards[decision.id])
    return rewards


def said(shop: Population) -> dict[str, Any]:
    """What is to be read back: all of it follows from the journal alone."""
    graph = shop.graph()
    explained: Any = {name: shop.explain(name) for name in graph.agents}
    return {
        "agents": graph.agents,
        "edges": graph.edges.astype(int).tolist(),
        "catalogue": shop.catalogue,
        "sharing": {name: shop.sharing(name) for name in graph.agents},
        "samples": {name: explained[name].samples for name in graph.agents},
        "borrowed": {name: explained[name].borrowed for name in graph.agents},
    }


def write(directory: Path) -> None:
    """A database, the file beside it that remembers who was forgotten, and what the journal says."""
    directory.mkdir(parents=True)
    with shoal.open(directory / "shop.db", lease=0.3) as controller:
        shop = controller.population(
            "shop", policy="bass", dim=3, seed=1, reward_range=(-50, 50), lend_after=2, reward_window=1.0
        )
        rewards = play(shop, 0, 120)
        shop.reward("visit 7", 3.0, replaces=rewards["visit 7"])
        shop.decide("agent 1", np.eye(3), id="never shown")
        shop.cancel("never shown")
        shop.set_arms({"tea": [1.0, 0.0, 0.0], "coffee": [0.0, 1.0, 0.0]})
        ranking = shop.decide("agent 2", top=2, id="ranking")
        shop.reward("ranking", 1.0, arm=ranking.ranking[1])
        shop.observe("agent 3", [0.0, 0.0, 1.0], 0.5, id="seen elsewhere")
        shop.add("agent 4", sharing="borrow")
        shop.rename("agent 0", "ada")
        shop.merge("ada", "agent 2")
        time.sleep(1.5)  # until what has no reward yet is missed
        play(shop, 200, 30)
        shop.forget("agent 5")
        shop.settle()
    with shoal.open(directory / "shop.db") as controller:
        shop = controller.population("shop")
        expected = {"sequence": shop.sequence, **said(shop)}
    (directory / "said.json").write_text(json.dumps(expected, indent=1))
    (directory / "shop.db.lock").unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
