"""Clicks: regret of rewards="binary" beside real rewards and a logistic index that is told the groups.

`python benchmarks/clicks.py regret` prints the table of docs/clicks.md, `python benchmarks/clicks.py level`
that of docs/theory.md, `python benchmarks/clicks.py bases` what is learned of users whose base rates differ.
"""

import math
import sys
from typing import Any

import numpy as np

import shoal
from shoal.lab.environments.synthetic import ClickClusters
from shoal.lab.experiments.informed import ClickOracle
from shoal.reporting.words import number

WORLDS: dict[str, dict[str, Any]] = {
    "fresh": {},
    "fixed": {"fresh": False},
    "large": {"strength": 5.0, "length": math.sqrt(8.0)},
}
RATES = (0.5, 0.085, 0.02)
SEEDS, HORIZON, AGENTS = range(80_000, 80_008), 20_000, 100


class Constant:
    """Real rewards, with the constant that a user would append for the base rate."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def select(self, agent: int, arms: Any) -> int:
        return int(self.policy.select(agent, np.column_stack([arms, np.ones(len(arms))])))

    def update(self, agent: int, x: Any, reward: float) -> None:
        self.policy.update(agent, [*x, 1.0], reward)


def regret() -> None:
    columns = ("world", "rate", "told the groups", "binary", "real", "binary − real", "BASS", "alone")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name, own in WORLDS.items():
        for rate in RATES:
            found = []
            for seed in SEEDS:
                world = ClickClusters(AGENTS, 8, 4, rate=rate, seed=seed, **own)
                binary: dict[str, Any] = {"rewards": "binary"}
                policies = (
                    ClickOracle(AGENTS, 8, labels=world.labels),
                    shoal.ClusterMixture(AGENTS, 8, seed=seed, **binary),
                    Constant(shoal.ClusterMixture(AGENTS, 9, seed=seed)),
                    shoal.BASS(AGENTS, 8, **binary),
                    shoal.Independent(AGENTS, 8, **binary),
                )
                runs = [shoal.simulate(p, world, horizon=HORIZON, seed=seed, points=1) for p in policies]
                found.append([run.final_regret for run in runs])
            mean, gap = np.mean(found, axis=0), np.diff(np.array(found)[:, [2, 1]])[:, 0]
            half = 2.36 * gap.std(ddof=1) / math.sqrt(len(gap))
            cells = [f"{value:,.0f}" for value in mean]
            cells.insert(3, number("{:+,.0f}", gap.mean()) + f" ± {half:,.0f}")
            print(f"| {name} | {rate:g} | {' | '.join(cells)} |", flush=True)


def bases() -> None:
    """Regret where users' bases differ with a standard deviation of 1, and how much of that is learned."""
    print("| world | rate | own bases | spread learned |\n|---|---|--:|--:|")
    for name, own in WORLDS.items():
        for rate in RATES:
            found, learned = [], []
            for seed in SEEDS:
                world = ClickClusters(AGENTS, 8, 4, rate=rate, base_spread=1.0, seed=seed, **own)
                policy = shoal.ClusterMixture(AGENTS, 8, rewards="binary", seed=seed)
                found.append(shoal.simulate(policy, world, horizon=HORIZON, seed=seed, points=1).final_regret)
                learned.append(policy.base_spread)
            shown = f"{min(learned):.2g} to {max(learned):.2g}"
            print(f"| {name} | {rate:g} | {np.mean(found):,.0f} | {shown} |", flush=True)


def level() -> None:
    """Share of pairs of identical agents that BASS has cut after 500 pulls each."""
    print("| rewards | level | share of pairs cut |")
    print("|---|---|---|")
    n, d, pulls = 20, 8, 500
    for promised in (None, 0.05):
        for rate in (None, *RATES):
            shares = []
            for seed in range(80_000, 80_010):
                world: Any = shoal.ChangingArms(n, d, 1, seed=seed)
                own: dict[str, Any] = {"level": promised} if promised else {}
                if rate is not None:
                    world = ClickClusters(n, d, 1, rate=rate, seed=seed)
                    own["rewards"] = "binary"
                policy = shoal.BASS(n, d, **own)
                shoal.simulate(policy, world, horizon=n * pulls, seed=seed, points=1)
                shares.append(len(policy.cuts) / (n * (n - 1) / 2))
            half = 2.26 * np.std(shares, ddof=1) / math.sqrt(len(shares))
            what = "real, Gaussian noise 1" if rate is None else f"clicks, {rate:g}"
            print(f"| {what} | {promised} | {np.mean(shares):.3f} ± {half:.3f} |", flush=True)


if __name__ == "__main__":
    {"regret": regret, "bases": bases, "level": level}[sys.argv[1]]()
