"""Write one small saved policy of each kind in the format of the present code, and how it goes on.

Run once when the format changes, into a directory of its own, which is then never written again:

    .venv/bin/python -m tests.saved.make tests/saved/format-N
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import shoal

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
FIRST = {"bass-noise": 9}
"""Formats before which there was no such file."""


def build(name: str) -> Any:
    """A policy that has played, with agents that came and went, and some who do not lend."""
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
        agent = int(rng.choice(policy.agents))
        k = policy.select(agent, world.arms)
        policy.update(agent, world.arms[k], float(world.mean_rewards[agent % N, k] + rng.standard_normal()))
        choices.append(k)
    return choices


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir()
    expected = {}
    for name in OWN:
        policy = build(name)
        policy.save(folder / f"{name}.shoal")
        expected[name] = {"choices": go_on(policy, 100, seed=3), "graph": policy.graph.astype(int).tolist()}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
