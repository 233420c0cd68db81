"""Write a small journal with a holdout, guarded agents and a switch of policies, and what it says.

Run once when these records change, into a directory of its own, which is then never written again:

    .venv/bin/python -m tests.saved.evaluated tests/saved/evaluated-N
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.live.population.population import Population

ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "water": [0.6, 0.8]}


def play(shop: Population, first: int, rounds: int) -> None:
    """One agent among two whose taste is the opposite, and six who are mostly held out."""
    rng = np.random.default_rng(first)
    for n in range(first, first + rounds):
        names = ["honest", "other 1", "other 2", *([f"more {n % 6}"] if n % 3 == 0 else [])]
        for name in names:
            decision = shop.decide(name, ARMS, id=f"{name} {n}", baseline="tea")
            sign = 1.0 if name == "honest" else -1.0
            liking = sign * float(np.array(ARMS[str(decision.arm)]) @ [1.5, -1.0]) + 0.2 * rng.normal()
            if n % 9:
                shop.reward(decision.id, float(np.clip(liking, -3, 3)))


def said(shop: Population) -> dict[str, Any]:
    """What is to be read back: all of it follows from the journal alone."""
    found = {name: shop.dividend(name) for name in shop.agents}
    uplift = shop.uplift()
    return {
        "dividends": {name: [one.count, one.mean, one.guarded] for name, one in found.items()},
        "switches": [[one.sequence, one.policy] for one in shop.switches],
        "uplift": [uplift.n_policy, uplift.n_baseline, uplift.policy, uplift.baseline],
        "agents": shop.agents,
    }


def write(directory: Path) -> None:
    """A database, and what the journal says."""
    directory.mkdir(parents=True)
    with shoal.open(directory / "shop.db", lease=0.3) as controller:
        shop = controller.population(
            "shop", policy="bass", dim=2, seed=1, explore=0.2, reward_range=(-3, 3), reward_window=1.0,
            harm_guard=True, holdout=0.3, delta=1e-9, noise_scale=50.0,
        )  # fmt: skip
        play(shop, 0, 60)
        time.sleep(1.5)
        while shop.owner.read(lambda fold: len(fold.pending)):
            shop.owner.miss_rewards()
        shop.reward("honest 9", 1.0)  # late
        shop.reward("honest 9", 0.5, replaces=1.0)
        shop.forget("more 3")
        shop.settle()
        shop.switch("cluster_mixture", scatter=0.0)
        play(shop, 100, 10)
        shop.switch_back()
        play(shop, 200, 5)
        time.sleep(1.5)
        while shop.owner.read(lambda fold: len(fold.pending)):
            shop.owner.miss_rewards()
    with shoal.open(directory / "shop.db") as controller:
        shop = controller.population("shop")
        expected = {"sequence": shop.sequence, **said(shop)}
    assert any(guarded for _, _, guarded in expected["dividends"].values())
    (directory / "said.json").write_text(json.dumps(expected, indent=1))
    (directory / "shop.db.lock").unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
