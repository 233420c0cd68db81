"""What the harm guard and a quarantine of newcomers are worth, beside outliers and poisoners.

    python benchmarks/guard.py [--runs 15] [--rounds 10000]

Writes its table into docs/evaluation.md. Populations are live ones, in memory; who comes, arms' values and
noise are the same for all variants of a run, so that differences are paired.
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
AGENTS, DIM, ARMS, CLUSTERS = 60, 5, 15, 3
ANGLE = 7 * np.pi / 16
SCENARIOS = {"10% outliers": (0.1, 0.0), "5% poisoners": (0.0, 0.05), "neither": (0.0, 0.0)}
VARIANTS = {
    "nothing": {},
    "guard": {"harm_guard": True},
    "quarantine": {"lend_after": 50},
    "both": {"harm_guard": True, "lend_after": 50},
}
POLICIES = {"bass": {"alpha": 0.3}, "cluster_mixture": {"alpha": 0.6}}


def play(
    policy: str, variant: dict, scenario: tuple[float, float], seed: int, rounds: int
) -> tuple[float, float]:
    """Regret of the honest agents of clusters, and of outliers, per agent."""
    outliers, poisoners = (round(share * AGENTS) for share in scenario)
    rng = np.random.default_rng(seed)
    world = SyntheticClusters(
        AGENTS, DIM, CLUSTERS, angle=ANGLE, arms_per_cluster=ARMS // CLUSTERS, seed=seed
    )
    theta = np.array(world.theta_star)
    strange = rng.permutation(AGENTS)
    odd, false = strange[:outliers], set(strange[outliers : outliers + poisoners].tolist())
    theta[odd] = rng.normal(size=(outliers, DIM)) * np.linalg.norm(theta, axis=1).mean() / np.sqrt(DIM)
    means = theta @ world.arms.T
    with Controller(MemoryStore()) as controller:
        shop = controller.population(
            "shop", policy=policy, dim=DIM, explore=0.0, seed=seed, **POLICIES[policy], **variant
        )
        shop.set_arms({str(k): x for k, x in enumerate(world.arms)})
        who, noise = rng.integers(AGENTS, size=rounds), rng.normal(size=rounds)
        regret = np.zeros(AGENTS)
        for t in range(rounds):
            agent = int(who[t])
            decision = shop.decide(str(agent), id=str(t))
            arm = int(decision.arm)
            reward = means[agent, arm] + noise[t]
            shop.reward(str(t), float(-reward if agent in false else reward))
            regret[agent] += means[agent].max() - means[agent, arm]
    plain = np.array([a for a in range(AGENTS) if a not in false and a not in set(odd.tolist())])
    return float(regret[plain].mean()), float(regret[odd].mean()) if outliers else float("nan")


def shown(values: np.ndarray) -> str:
    return f"{values.mean():,.1f}"


def difference(values: np.ndarray, base: np.ndarray) -> str:
    change = values - base
    half = float(half_width(change.std(ddof=1) / np.sqrt(len(change)), len(change)))
    return f"{change.mean():+,.1f} ± {half:,.1f}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=10_000)
    options = parser.parse_args()
    lines = [
        f"{options.runs} runs of {options.rounds:,} rounds, {AGENTS} agents in {CLUSTERS} clusters, "
        f"d = {DIM}, K = {ARMS}, noise 1; regret per agent. Changes against *nothing* are paired, ± is their "
        "95% interval.",
        "",
        "| policy | scenario | whose regret | nothing | guard | quarantine (`lend_after=50`) | both |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for policy in POLICIES:
        for name, scenario in SCENARIOS.items():
            found = {
                variant: np.array(
                    [play(policy, settings, scenario, seed, options.rounds) for seed in range(options.runs)]
                )
                for variant, settings in VARIANTS.items()
            }
            for place, whose in enumerate(("the honest in clusters", "the outliers")):
                base = found["nothing"][:, place]
                if np.isnan(base).any():
                    continue
                cells = [difference(found[variant][:, place], base) for variant in list(VARIANTS)[1:]]
                lines.append(f"| {policy} | {name} | {whose} | {shown(base)} | {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    text = PAGE.read_text()
    table = "\n".join(lines)
    text = re.sub(
        r"(<!-- written by benchmarks/guard.py -->\n).*?(\n<!-- until here -->)",
        lambda found: found[1] + table + found[2],
        text,
        flags=re.DOTALL,
    )
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
