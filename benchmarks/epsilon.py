"""Does uniform exploration (ε_e) change BASS? For docs/theory.md: `python benchmarks/epsilon.py`.

The bound on the separation time from above lets agents pull a uniformly drawn arm with probability ε_e, and
the paper says that this made no difference in practice. Here BASS plays with ε_e = 0, with two small values,
and with the smallest ε_e that meets the theorem's condition for every pair of clusters of a run, on the same
seeds: 50 runs of 50,000 rounds, a minute or two of one core for each line. In the synthetic scenarios with
noise 1 no ε_e up to 1 meets the condition.
"""

import argparse
from typing import Any

import numpy as np
from scipy.stats import t

import shoal
from shoal.core.types import Vector
from shoal.lab.metrics import f1_of_counts, same_cluster
from shoal.lab.theory import SEPARATION_FACTOR

SCALES = (0.5, 1.0)
SMALL = (0.0, 0.001, 0.01)


def condition(world: Any) -> float:
    """The smallest ε_e that the theorem allows for all pairs of different agents."""
    theta = np.unique(world.theta_star, axis=0)
    differences = [a - b for i, a in enumerate(theta) for b in theta[:i]]
    smallest = min(float(np.mean((world.arms @ v) ** 2)) for v in differences)
    return SEPARATION_FACTOR * world.noise_scale**2 / (2.0 * smallest)


def play(scale: float, epsilon: float | None, seed: int, horizon: int) -> tuple[float, float, float]:
    """ε_e, final regret and F1 of one run; None takes the theorem's ε_e."""
    world = shoal.GaussianClusters(
        n_agents=100, dim=10, n_clusters=3, n_arms=15, noise_scale=scale, seed=seed
    )
    used = min(condition(world), 1.0) if epsilon is None else epsilon
    policy = shoal.BASS(
        100, 10, alpha=0.5, delta=0.1, noise_scale=scale, param_norm=world.param_norm, epsilon=used, seed=seed
    )
    trace = shoal.simulate(policy, world, horizon=horizon, seed=seed, points=1)
    graph, truth = policy.graph, same_cluster(world.labels)
    score = f1_of_counts(int((graph & truth).sum()), int(graph.sum()), int(truth.sum()))
    return used, trace.final_regret, score


def interval(values: Vector, form: str) -> str:
    """A mean, and half the width of its 95% interval."""
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{form} ± {form.replace('+', '')}".format(values.mean(), half)


def main() -> None:
    """Print a line for each noise and ε_e."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--horizon", type=int, default=50_000)
    args = parser.parse_args()
    print("| noise | ε_e | regret | minus ε_e = 0, run by run | F1 | minus ε_e = 0 |")
    print("|---|---|--:|--:|--:|--:|")
    for scale in SCALES:
        base = None
        for epsilon in (*SMALL, None):
            rows = np.array([play(scale, epsilon, seed, args.horizon) for seed in range(args.runs)])
            base = rows if base is None else base
            name = f"{epsilon:g}" if epsilon is not None else f"the theorem's, {np.median(rows[:, 0]):.2f}"
            texts = [f"σ={scale:g}", name]
            for column, form in ((1, "{:,.0f}"), (2, "{:.2f}")):
                difference = interval(rows[:, column] - base[:, column], form.replace(":", ":+"))
                texts += [interval(rows[:, column], form), "–" if rows is base else difference]
            print(f"| {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
