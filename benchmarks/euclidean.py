"""What a test of Euclidean distances throws away: docs/theory-euclidean.png, for docs/theory.md.

`python benchmarks/euclidean.py` takes seconds. Such a test is the ellipsoid test with λ_min(A)·I in place of
the design A (`shoal.lab.theory.euclidean_test`). Left: two agents in the plane with one design, whose
ellipsoids are apart while the balls still overlap. Right: the share of a LinUCB agent's history that the
balls keep, d·λ_min/tr(A), in the paper's scenario with Δ = 1.27; mean over 100 agents and 5 runs.
"""

import math
from pathlib import Path

import numpy as np

import shoal
from shoal.core.types import Matrix, Vector
from shoal.lab.theory import beta, euclidean_test
from shoal.reporting.charts import BLUE, DPI, GREY, ORANGE, blank

PULLS = np.array([1, 2, 5, 10, 20, 50, 100, 200, 400])
RUNS, HORIZON, DIM, AGENTS = 5, 50_000, 10, 100


def kept_by_pulls(seed: int) -> tuple[Matrix, Vector]:
    """`kept` of every agent after each of `PULLS`, and how much further apart ellipsoids are in the end."""
    world = shoal.SyntheticClusters(n_agents=AGENTS, dim=DIM, n_clusters=3, angle=7 * math.pi / 16, seed=seed)
    policy = shoal.Independent(AGENTS, DIM, alpha=0.825, seed=seed)
    trace = shoal.simulate(policy, world, horizon=HORIZON, seed=seed, points=1)
    found, ratios = np.empty((AGENTS, len(PULLS))), np.empty(AGENTS)
    for agent in range(AGENTS):
        x = world.arms[trace.choices[trace.agents == agent]]
        designs = [np.eye(DIM) + x[:n].T @ x[:n] for n in PULLS]
        found[agent] = [euclidean_test(A, 1.0).kept for A in designs]
        v = (world.theta_star - world.theta_star[agent])[world.labels != world.labels[agent]]
        # How much sooner the ellipsoids separate: distances in both norms, against their thresholds.
        ratios[agent] = np.median(
            np.sqrt(np.einsum("nd,de,ne->n", v, designs[-1], v))
            / 2.0
            / (np.linalg.norm(v, axis=1) / euclidean_test(designs[-1], 1.0).threshold)
        )
    return found, ratios


def main() -> None:
    """Draw the picture and print what it shows."""
    runs = [kept_by_pulls(seed) for seed in range(RUNS)]
    kept = np.array([found.mean(axis=0) for found, _ in runs])
    ratios = np.concatenate([ratio for _, ratio in runs])
    figure = blank(width=10.0, height=4.2)
    left, right = figure.subplots(1, 2)

    A, centres = np.diag([60.0, 3.0]), (np.array([0.0, 0.0]), np.array([1.1, 0.2]))
    radius = float(beta(0.1, math.log(180.0), param_norm=0.0))
    angle = np.linspace(0.0, 2.0 * math.pi, 200)
    circle = np.array([np.cos(angle), np.sin(angle)])
    ball = euclidean_test(A, radius).threshold / 2.0
    for name, centre, colour in zip(("agent 1", "agent 2"), centres, (BLUE, ORANGE), strict=True):
        outline = centre[:, None] + radius * np.linalg.inv(np.sqrt(A)) @ circle
        left.plot(*outline, color=colour, label=f"{name}: ellipsoid of A")
        around = centre[:, None] + ball * circle
        left.plot(*around, color=colour, linestyle="--", label=f"{name}: λ_min(A)·I")
        left.plot(*centre, color=colour, marker="^")
    left.set(aspect="equal", ylim=(-2.1, 3.2))
    left.set_title("A = diag(60, 3): the ellipsoids are apart, the balls are not", fontsize=9)
    left.legend(loc="upper left", fontsize=7)
    right.plot(PULLS, kept.mean(axis=0), color=BLUE, marker="o")
    right.fill_between(PULLS, kept.min(axis=0), kept.max(axis=0), color=BLUE, alpha=0.2)
    right.axhline(1.0, color=GREY, linewidth=0.8)
    right.set(
        xscale="log", ylim=(0.0, 1.05), xlabel="pulls of the agent", ylabel="share kept, d·λ_min / tr A"
    )
    right.set_title("LinUCB, d = 10, Δ = 1.27: what the balls keep of the history", fontsize=9)
    figure.savefig(Path(__file__).parents[1] / "docs" / "theory-euclidean.png", dpi=DPI)
    for n, share in zip(PULLS, kept.mean(axis=0), strict=True):
        print(f"{n} pulls: {share:.1%} kept")
    low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
    print(f"distance over threshold after {PULLS[-1]} pulls, ellipsoids over balls: median {middle:.1f}")
    print(f"(5% to 95% of agents: {low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
