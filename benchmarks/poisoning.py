"""What agents who report false rewards cost the honest, and what a quarantine of newcomers is worth.

    python benchmarks/poisoning.py [--runs 8]

Writes its table into docs/evaluation.md. Populations are live, in memory; the order of agents, arms' values
and noise are the same for all variants of a run, so that differences are paired.
"""

import argparse
import re
from pathlib import Path

import numpy as np

from shoal.lab.environments.synthetic import SyntheticClusters
from shoal.live.journal.stores.memory import MemoryStore
from shoal.live.population.controller import Controller
from shoal.reporting.curves import half_width

PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"
AGENTS, DIM, ARMS, CLUSTERS, EACH = 100, 5, 15, 3, 60
ANGLE = 7 * np.pi / 16
SHARES, FLOODS = (0.01, 0.05, 0.2), (1, 50)
POLICIES = {"bass": {"alpha": 0.3}, "cluster_mixture": {"alpha": 0.6}}
LIES = ("negative", "praise")


def play(policy: str, settings: dict, share: float, flood: int, lie: str, seed: int) -> float:
    """Regret of an honest agent.

    Liars come `flood` times as often. They report the negative of each reward, or praise one arm: 3 more.
    """
    rng = np.random.default_rng(seed)
    world = SyntheticClusters(
        AGENTS, DIM, CLUSTERS, angle=ANGLE, arms_per_cluster=ARMS // CLUSTERS, seed=seed
    )
    means = np.array(world.theta_star) @ world.arms.T
    liars = rng.permutation(AGENTS)[: round(share * AGENTS)]
    weights = np.ones(AGENTS)
    weights[liars] = flood
    rounds = int(EACH * weights.sum())
    who, noise = rng.choice(AGENTS, size=rounds, p=weights / weights.sum()), rng.normal(size=rounds)
    praised, lies, regret = int(rng.integers(ARMS)), np.isin(np.arange(AGENTS), liars), np.zeros(AGENTS)
    with Controller(MemoryStore()) as controller:
        shop = controller.population(
            "shop", policy=policy, dim=DIM, explore=0.0, seed=seed, **POLICIES[policy], **settings
        )
        shop.set_arms({str(k): x for k, x in enumerate(world.arms)})
        for t, agent in enumerate(who.tolist()):
            arm = int(shop.decide(str(agent), id=str(t)).arm)
            reward = means[agent, arm] + noise[t]
            if lies[agent]:
                reward = -reward if lie == "negative" else reward + 3.0 * (arm == praised)
            shop.reward(str(t), float(reward))
            regret[agent] += means[agent].max() - means[agent, arm]
    return float(regret[~lies].mean())


def write(lines: list[str], page: Path) -> None:
    """Put the table between its markers on a page."""
    marks = r"(<!-- written by benchmarks/poisoning.py -->\n).*?(\n<!-- until here -->)"
    made = "\n".join(lines)
    text, found = re.subn(marks, lambda mark: mark[1] + made + mark[2], page.read_text(), flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"{page} must have the markers of this table once, found {found}")
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=8)
    runs = parser.parse_args().runs
    lines = [
        f"{runs} runs for each row.",
        "",
        "| policy | lie | liars | as often | nothing | `lend_after=50` |",
        "|---|---|--:|--:|--:|--:|",
    ]
    cases = [(lie, share, flood) for lie in LIES for share in SHARES for flood in FLOODS]
    for policy in POLICIES:
        for lie, share, flood in [("", 0.0, 1), *cases]:
            found = np.array(
                [
                    [
                        play(policy, settings, share, flood, lie, 500 + seed)
                        for settings in ({}, {"lend_after": 50})
                    ]
                    for seed in range(runs)
                ]
            )
            change = found[:, 1] - found[:, 0]
            half = float(half_width(change.std(ddof=1) / np.sqrt(runs), runs))
            row = f"| {policy} | {lie or 'none'} | {share:.0%} | {flood}× | {found[:, 0].mean():.1f} | "
            lines.append(row + f"{change.mean():+.1f} ± {half:.1f} |".replace("-", "−"))
            print(lines[-1], flush=True)
    write(lines, PAGE)


if __name__ == "__main__":
    main()
