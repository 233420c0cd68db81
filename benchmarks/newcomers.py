"""What a description of newcomers is worth: for docs/newcomers.md, its table and docs/newcomers.png.

python benchmarks/newcomers.py

A thousand users arrive one after another and come ten times each. Some five minutes of one core.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from defaults import interval

import shoal
from shoal.core.atomic import write_whole
from shoal.core.types import Integers, Matrix
from shoal.lab.environments.synthetic import DescribedAgents
from shoal.reporting.charts import BLUE, DPI, GREY, ORANGE, blank

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "newcomers.md", DOCS / "newcomers.png"
BEGIN, END = "<!-- written by benchmarks/newcomers.py -->\n", "<!-- until here -->\n"
SEEDS = range(80_000, 80_020)
USERS, VISITS, DIM, GROUPS, EARLY = 1_000, 10, 8, 4, 3
STAY = 0.15
"""Share of the whole time within which a user's visits lie."""
KINDS: dict[str, tuple[float, int]] = {
    "not described": (0.0, 0),
    "features that tell the group of 50%": (0.83972, 1),
    "of 78%": (1.80494, 1),
    "of 93%": (2.71344, 1),
    "six useless features": (0.0, 1),
    "the same, each given five times": (0.0, 5),
}
"""Distance of the groups' features, and how often each feature is given."""
STYLES: list[dict[str, Any]] = [
    {"color": GREY, "ls": "-"},
    {"color": BLUE, "ls": ":"},
    {"color": BLUE, "ls": "--"},
    {"color": BLUE, "ls": "-"},
    {"color": ORANGE, "ls": "--"},
    {"color": ORANGE, "ls": ":"},
]


def arrivals(seed: int) -> Integers:
    """Who comes, visit by visit."""
    rng = np.random.default_rng([6, seed])
    start, later = np.sort(rng.random(USERS)), np.sort(rng.random((USERS, VISITS)), axis=1)
    users = np.repeat(rng.permutation(USERS), VISITS)
    return np.asarray(users[np.argsort((start[:, None] + STAY * later).ravel(), kind="stable")])


def play(distance: float, times: int, seed: int) -> Matrix:
    """Mean regret of a user's first, second, … visit."""
    world = DescribedAgents(USERS, DIM, GROUPS, distance=distance, noise_scale=0.5, seed=seed)
    assert world.agent_features is not None
    given = {"agent_features": np.hstack([world.agent_features] * times)} if times else {}
    policy = shoal.ClusterMixture(USERS, DIM, seed=seed, **given)
    users = arrivals(seed)
    trace = shoal.simulate(
        policy,
        world,
        horizon=len(users),
        seed=seed,
        pulling=[[user] for user in users.tolist()],
        points=len(users),
    )
    by_user = np.diff(trace.regret, prepend=0.0)[np.argsort(users, kind="stable")]
    return np.asarray(by_user.reshape(USERS, VISITS).mean(axis=0))


def main() -> None:
    """Play, write the table and draw the picture."""
    runs: dict[str, Matrix] = {}
    for kind, (distance, times) in KINDS.items():
        runs[kind] = np.array([play(distance, times, seed) for seed in SEEDS])
        print(kind, runs[kind].mean(axis=0).round(3), flush=True)
    write(runs)
    draw(runs)


def write(runs: dict[str, Matrix]) -> None:
    """Put the table into the page."""
    without = runs["not described"]
    lines = [
        "| | regret | minus not described | a decision of the first three visits | minus not described |",
        "|---|--:|--:|--:|--:|",
    ]
    for kind, found in runs.items():
        total, early = found.sum(axis=1) * USERS, found[:, :EARLY].mean(axis=1)
        cells = [f"{total.mean():,.0f}", "", f"{early.mean():.3f}", ""]
        if found is not without:
            less = (found - without)[:, :EARLY].mean(axis=1)
            cells[1] = interval(total - without.sum(axis=1) * USERS)
            half = 2.09 * less.std(ddof=1) / np.sqrt(len(less))  # t with 19 degrees of freedom
            cells[3] = f"{less.mean():.3f} ± {half:.3f}"
        lines.append(f"| {' | '.join([kind, *cells])} |".replace(" -", " −"))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    write_whole(PAGE, (before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]).encode())


def draw(runs: dict[str, Matrix]) -> None:
    """Regret of a decision over the number of the visit."""
    figure = blank(width=7.0, height=3.6)
    axes = figure.subplots()
    for (kind, found), style in zip(runs.items(), STYLES, strict=True):
        axes.plot(np.arange(1, VISITS + 1), found.mean(axis=0), marker="o", ms=3.5, label=kind, **style)
    axes.set(xlabel="visit", ylabel="regret of a decision", ylim=(0, None))
    axes.set_xticks(range(1, VISITS + 1))
    axes.legend(fontsize=8)
    figure.set_layout_engine("tight")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI * 0.75, metadata={"Software": None})
    write_whole(PICTURE, drawn.getvalue())


if __name__ == "__main__":
    main()
