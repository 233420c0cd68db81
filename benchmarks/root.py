"""What a missing square root does: for docs/missing-root.md, its table and docs/missing-root.png.

python benchmarks/root.py

CLUB, SCLUB, LOCB and RCLUMB on problems of the kind that their released code plays, with the bonus
`α √(xᵀA⁻¹x ln(t+1))` and with `α xᵀA⁻¹x √ln(t+1)`, six α each. A best α is chosen on the first seeds and
reported on the others. Some five minutes of one core.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from defaults import interval

import shoal
from shoal.core.atomic import write_whole
from shoal.core.types import Integers, Matrix, Tensor, Vector
from shoal.reporting.charts import BLUE, DPI, GREY, ORANGE, blank

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "missing-root.md", DOCS / "missing-root.png"
BEGIN, END = "<!-- written by benchmarks/root.py -->\n", "<!-- until here -->\n"
ALPHAS = (0.1, 0.3, 0.6, 1.0, 2.0, 3.0)
BONUSES = ("ucb", "as-released")
CHOOSE, REPORT = range(70_000, 70_006), range(70_006, 70_026)
AGENTS, CLUSTERS, ARMS, HORIZON = 100, 5, 20, 20_000
ITEMS, DEVIATION, FEWER, SHORTER = 200, 0.2, 40, 6_000
"""The problem that RCLUMB is for, whose bonus takes long to compute; the last are agents and horizon."""
BLOCK = 500
METHODS: dict[str, dict[str, Any]] = {
    "club": {"gamma": 1.0},
    "sclub": {"gamma": 1.0},
    "locb": {"gamma": 0.2, "n_seeds": 60},
    "rclumb": {"gamma": 1.0, "tolerance": 1.5, "misspecification": DEVIATION},
}
"""With the parameters of their released code."""


class Users(shoal.Environment):
    """Users and items `(u, 1)/√2` with u on a sphere; new items in every round, clicks by θ·x.

    With a `deviation`, 20 of 200 items are offered, means are off by up to that for each user and item, and
    rewards have Gaussian noise of 0.1.
    """

    def __init__(self, dim: int, seed: int, deviation: float = 0.0) -> None:
        self._seed, self._shape = seed, (BLOCK, ARMS, dim)
        n_agents = FEWER if deviation else AGENTS
        rng, labels = self._rng(0), np.arange(n_agents) * CLUSTERS // n_agents
        centers = _described(rng, (CLUSTERS, dim))
        self.items = _described(rng, (ITEMS, dim)) if deviation else None
        self.off = rng.uniform(-deviation, deviation, (n_agents, ITEMS))
        more: dict[str, Any] = {"noise_scale": 0.1} if deviation else {"noise": "bernoulli"}
        super().__init__(self._block(0)[0][0], theta_star=centers[labels], labels=labels, **more)

    def arms_in(self, first: int, last: int) -> Tensor:
        """Items of the rounds `first`, …, `last`, shape (rounds, K, d)."""
        return np.ascontiguousarray(self._rounds(first, last)[0])

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        """Mean rewards, shape (n, K)."""
        assert self.theta_star is not None  # by construction
        means = np.einsum("nkd,nd->nk", arms[rounds - first], self.theta_star[agents])
        if self.items is not None:
            means += self.off[agents[:, None], self._rounds(first, int(rounds.max()))[1][rounds - first]]
        return means

    def _rounds(self, first: int, last: int) -> tuple[Tensor, Integers]:
        blocks = [self._block(n) for n in range((first - 1) // BLOCK, (last - 1) // BLOCK + 1)]
        offset = (first - 1) % BLOCK
        here = slice(offset, offset + last - first + 1)
        items, names = (np.concatenate(parts)[here] for parts in zip(*blocks, strict=True))
        return items, names

    def _block(self, n: int) -> tuple[Tensor, Integers]:
        """Items of the rounds of a block, and which of the 200 they are."""
        rng = self._rng(1 + n)
        names = rng.integers(ITEMS, size=self._shape[:2])
        return (_described(rng, self._shape) if self.items is None else self.items[names]), names

    def _rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([stream, self._seed])


def _described(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Vectors `(u, 1)/√2`, u uniform on the unit sphere: their products are in [0, 1]."""
    u = rng.standard_normal((*shape[:-1], shape[-1] - 1))
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    return np.concatenate([u, np.ones((*shape[:-1], 1))], axis=-1) / np.sqrt(2.0)


def play(name: str, bonus: str) -> Matrix:
    """Final regret for every α and seed."""
    own = dict(METHODS.get(name, {})) | ({"bonus": bonus} if name in METHODS else {})
    found = np.empty((len(ALPHAS), len(CHOOSE) + len(REPORT)))
    for column, seed in enumerate((*CHOOSE, *REPORT)):
        is_off = name.endswith("rclumb")
        world, horizon = (Users(10, seed, DEVIATION), SHORTER) if is_off else (Users(5, seed), HORIZON)
        for row, alpha in enumerate(ALPHAS):
            policy = shoal.make_policy(
                name.split()[0], world.n_agents, world.dim, alpha=alpha, seed=seed, **own
            )
            trace = shoal.simulate(policy, world, horizon=horizon, seed=seed, points=2)
            found[row, column] = trace.final_regret
    return found


def best(found: Matrix) -> tuple[float, Vector]:
    """The α with the least mean regret on the seeds to choose on, and the regrets on the others."""
    row = int(found[:, : len(CHOOSE)].mean(axis=1).argmin())
    return ALPHAS[row], found[row, len(CHOOSE) :]


def main() -> None:
    """Play, write the table and draw the picture."""
    runs: dict[tuple[str, str], Matrix] = {}
    for name in (*METHODS, "independent", "independent rclumb"):
        for bonus in BONUSES if name in METHODS else BONUSES[:1]:
            runs[name, bonus] = play(name, bonus)
            print(name, bonus, runs[name, bonus][:, len(CHOOSE) :].mean(axis=1).round(), flush=True)
    lines = [
        "| | with the root, best α | without, best α | without minus with | with, α = 3 | without, α = 3 "
        "| Independent, best α |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in METHODS:
        (alpha, own), (other_alpha, other) = best(runs[name, "ucb"]), best(runs[name, "as-released"])
        alone = best(runs["independent rclumb" if name == "rclumb" else "independent", "ucb"])[1]
        large = [interval(runs[name, bonus][-1, len(CHOOSE) :]) for bonus in BONUSES]
        label = type(shoal.make_policy(name, 1, 1)).label
        cells = [f"{interval(own)} (α = {alpha:g})", f"{interval(other)} (α = {other_alpha:g})"]
        cells += [interval(other - own).replace("-", "−"), *large, interval(alone)]
        lines.append(f"| {' | '.join([label, *cells])} |")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    write_whole(PAGE, (before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]).encode())
    draw(runs)


def draw(runs: dict[tuple[str, str], Matrix]) -> None:
    """Regret over α, with and without the root, one panel for each method."""
    figure = blank(width=10.4, height=3.3)
    for axes, name in zip(figure.subplots(1, len(METHODS)), METHODS, strict=True):
        for bonus, color, label in zip(BONUSES, (BLUE, ORANGE), ("with the root", "without"), strict=True):
            regrets = runs[name, bonus][:, len(CHOOSE) :]
            half = 2.09 * regrets.std(axis=1, ddof=1) / np.sqrt(regrets.shape[1])  # t with 19 degrees
            axes.errorbar(ALPHAS, regrets.mean(axis=1), half, color=color, marker="o", ms=3.5, label=label)
        alone = runs["independent rclumb" if name == "rclumb" else "independent", "ucb"]
        axes.axhline(best(alone)[1].mean(), color=GREY, ls="--", label="Independent, best α")
        axes.set(title=type(shoal.make_policy(name, 1, 1)).label, xlabel="α", xscale="log", ylim=(0, None))
        axes.set_xticks(ALPHAS, [f"{alpha:g}" for alpha in ALPHAS], minor=False)
        axes.minorticks_off()
    figure.axes[0].set_ylabel("regret")
    figure.axes[0].legend(fontsize=8)
    figure.set_layout_engine("tight")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI * 0.75, metadata={"Software": None})
    write_whole(PICTURE, drawn.getvalue())


if __name__ == "__main__":
    main()
