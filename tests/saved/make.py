"""Write what the present code saves, a file of each policy and a store, and what both say when read again.

    python -m tests.saved.make [FOLDER]

FOLDER is `tests/saved/format-N` if none is named, and must not exist. Once N has been released, its folder is
never written again: it is there to show that later versions read it.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.core.policy.files import FORMAT

N, D = 9, 3
OWN: dict[str, dict[str, Any]] = {
    "independent": {},
    "oracle": {"labels": [0, 1, 2] * 3},
    "dynucb": {"n_clusters": 3},
    "club": {"gamma": 0.4},
    "sclub": {"gamma": 0.5},
    "cmlb": {"gamma": 0.9, "exploration_rounds": 60},
    "bass": {"delta": 0.1, "gamma": 1.6},
    "cluster_mixture": {"concentration": 2.0, "redraws": 2},
    "bass-noise": {"delta": 0.1, "gamma": 1.6, "noise_scale": None},
}
"""Parameters of each file's policy, whose name is what comes before a hyphen."""
ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "water": [0.6, 0.8]}
WINDOW = 0.3
"""Seconds after which a reward in the store is missed."""


# Saved policies


def build(name: str) -> Any:
    """A policy that has played; one for live use with agents that came and went, and some who do not lend."""
    kind, own = name.partition("-")[0], {"alpha": 0.5, "seed": 0, "epsilon": 0.1} | OWN[name]
    policy = shoal.make_policy(kind, N, D, **own)
    go_on(policy, 120, seed=1)
    if isinstance(policy, shoal.LivePolicy):
        policy.remove_agent(1)
        policy.remove_agent(2, withdraw=True)
        more: dict[str, Any] = {"labels": [0, 1]} if name == "oracle" else {}
        policy.add_agents(2, **more)
        policy.set_sharing(3, "borrow")
        policy.set_sharing(10, "none")
    go_on(policy, 60, seed=2)
    return policy


def go_on(policy: Any, rounds: int, seed: int) -> list[int]:
    """Play some rounds; the arms that were chosen."""
    rng, world, choices = np.random.default_rng(seed), shoal.SyntheticClusters(N, D, 3, 1.2, seed=0), []
    for _ in range(rounds):
        agent = int(rng.choice(getattr(policy, "agents", N)))
        k = policy.select(agent, world.arms)
        policy.update(agent, world.arms[k], float(world.mean_rewards[agent % N, k] + rng.standard_normal()))
        choices.append(k)
    return choices


def relations(policy: Any) -> Any:
    """Who shares with whom, by the graph or, if there is none, by labels."""
    return np.asarray(policy.graph if hasattr(policy, "graph") else policy.labels).astype(int).tolist()


def write_policies(folder: Path) -> None:
    """A file of each policy, and how it goes on."""
    expected = {}
    for name in OWN:
        policy = build(name)
        policy.save(folder / f"{name}.shoal")
        expected[name] = {"choices": go_on(policy, 100, seed=3), "relations": relations(policy)}
    (folder / "policies.json").write_text(json.dumps(expected) + "\n")


# A store: journal and snapshot


def play(shop: shoal.Population, first: int, rounds: int) -> None:
    """One agent among two whose taste is the opposite, and six of whom some are held out."""
    rng = np.random.default_rng(first)
    for n in range(first, first + rounds):
        for name in ["honest", "other 1", "other 2", *([f"more {n // 3 % 6}"] if n % 3 == 0 else [])]:
            decision = shop.decide(name, ARMS, id=f"{name} {n}", baseline="tea")
            sign = 1.0 if name == "honest" else -1.0
            liking = sign * float(np.array(ARMS[str(decision.arm)]) @ [1.5, -1.0]) + 0.2 * rng.normal()
            if n % 9:
                shop.reward(decision.id, float(np.clip(liking, -3, 3)))


def said(shop: shoal.Population) -> dict[str, Any]:
    """What is to be read back: all of it follows from the journal alone."""
    graph, uplift = shop.graph(), shop.uplift()
    dividends = {name: shop.dividend(name) for name in shop.agents}
    explained: Any = {name: shop.explain(name) for name in shop.agents}
    return {
        "agents": graph.agents,
        "edges": graph.edges.astype(int).tolist(),
        "catalogue": shop.catalogue,
        "sharing": {name: shop.sharing(name) for name in graph.agents},
        "samples": {name: one.samples for name, one in explained.items()},
        "borrowed": {name: one.borrowed for name, one in explained.items()},
        "dividends": {name: [one.count, one.mean] for name, one in dividends.items()},
        "switches": [[one.sequence, one.policy] for one in shop.switches],
        "uplift": [uplift.n_policy, uplift.n_baseline, uplift.policy, uplift.baseline],
    }


def miss(shop: shoal.Population) -> None:
    """Wait until rewards that have not come count as missing."""
    time.sleep(2 * WINDOW)
    while shop.owner.miss_rewards():
        pass


def live(shop: shoal.Population) -> None:
    """Have nearly every kind of record written."""
    play(shop, 0, 40)
    miss(shop)
    shop.reward("honest 9", 1.0)  # late
    shop.reward("honest 9", 0.5, replaces=1.0)
    shop.decide("honest", ARMS, id="never shown", baseline="tea")
    shop.cancel("never shown")
    shop.set_arms(ARMS, by="ada")
    shop.observe("other 1", [0.0, 1.0], 0.5, id="seen elsewhere")
    shop.add("newcomer", sharing="borrow")
    shop.add("more 4", sharing="none")
    shop.rename("more 0", "grace")
    shop.merge("grace", "more 3")
    shop.forget("more 5")
    shop.settle()
    shop.switch("cluster_mixture", scatter=0.0)
    play(shop, 100, 4)
    shop.switch_back()
    play(shop, 200, 4)
    miss(shop)


def part(shelf: shoal.Population) -> tuple[str | int, ...]:
    """Have one of three agents cut from the others, and half of a ranking rewarded; the ranking."""
    for n in range(40):
        for name, liking in {"ada": 5.0, "ben": 5.0, "eve": -5.0}.items():
            x = ARMS["tea" if n % 2 else "water"]
            shelf.observe(name, x, liking * x[0])
    ranking = shelf.decide("ada", ARMS, top=2, id="ranking").ranking
    shelf.reward("ranking", 1.0, arm=ranking[1])
    return ranking


def write_store(folder: Path) -> None:
    """A database with a snapshot and some records after it, who was forgotten, and what the journal says."""
    path = folder / "shop.db"
    with shoal.open(path, lease=0.3) as controller:
        shop = controller.population(
            "shop", policy="bass", dim=2, seed=1, explore=0.2, reward_range=(-3, 3), reward_window=WINDOW,
            lend_after=2, holdout=0.3, delta=1e-9, noise_scale=50.0,
        )  # fmt: skip
        live(shop)
        shop.snapshot()
        play(shop, 300, 2)
        shelf = controller.population("shelf", policy="bass", dim=2, seed=1)
        ranking = part(shelf)
    with shoal.open(path) as controller:
        shop, edges = controller.population("shop"), controller.population("shelf").graph().edges
        expected = {"sequence": shop.sequence, "ranking": ranking, **said(shop)}
    assert edges.sum() == 2  # Ada and Ben share, Eve with nobody
    (folder / "store.json").write_text(json.dumps(expected, indent=1) + "\n")
    path.with_name("shop.db.lock").unlink()


def write(folder: Path) -> None:
    """All of it."""
    folder.mkdir()
    write_policies(folder)
    write_store(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name(f"format-{FORMAT}"))
