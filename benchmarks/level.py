"""How often BASS cuts identical agents, and the γ that keeps that below a level: for docs/theory.md.

python benchmarks/level.py table       # γ for each level and each ratio of S to noise: `bass/level.py`
python benchmarks/level.py check       # `BASS(level=…)` with identical agents, other cases, seeds from 60,000
python benchmarks/level.py published   # the published setting: docs/theory-level.png, and what it shows
python benchmarks/level.py regret      # what a level costs, seeds from 61,000 (α chosen on seeds from 60,000)

All in about half an hour of one core. As long as nobody is cut, nothing depends on γ. So `table` and
`published` play without ever cutting, and keep the largest statistic of every pair so far: the share of pairs
whose largest statistic exceeds γ²/4 is the share that this γ would have cut, for all γ at once. Other pairs'
cuts make agents explore more, which this leaves out; `check` counts cuts of the policy itself.
"""

import argparse
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from defaults import interval, scenarios
from numba import njit
from scipy.stats import t

import shoal
from shoal.core.atomic import write_whole
from shoal.core.kernels.separation import make_scratch, search
from shoal.core.types import Matrix, Tensor, Vector
from shoal.lab.experiments.spec import build_environment
from shoal.reporting.charts import BLUE, DPI, GREY, ORANGE, RED, blank

DOCS = Path(__file__).parents[1] / "docs"

LEVELS = (0.02, 0.05, 0.1, 0.2)
RATIOS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""√ridge · S over the noise."""
DIMS = (1, 3, 10)
DESIGNS = ((0.025, math.inf), (0.25, math.inf), (0.1, 0.3), (1.0, 0.3))
"""Squared length of arms over ridge · d, and α; inf: arms are drawn uniformly."""
PULLS, RUNS = 2_000, 60
"""Pulls of each agent on average. Half of them are pulled ten times as often as the others."""
DELTA = 0.1
OFTEN = 200
"""Pulls of an agent up to which its pairs are tested at every pull; later, when these have grown by ½%."""


@njit
def largest_statistics(
    arms: Matrix,
    means: Vector,
    activity: Vector,
    alpha: float,
    param_norm: float,
    delta: float,
    marks: Vector,
    seed: int,
    found: Tensor,
    scratch: Any,
    tail: Vector,
) -> None:
    """Play until round `marks[-1]` without a cut; noise and ridge are 1.

    `found[m, form, i, j]` becomes the largest statistic of a pair until round `marks[m]`, with β and β². All
    agents choose by what all of them know, as BASS has it while nobody is cut.
    """
    np.random.seed(seed)  # noqa: NPY002 (of compiled code, which has a generator of its own)
    n_agents, (n_arms, d) = len(activity), arms.shape
    A, A_inv = np.zeros((n_agents, d, d)), np.zeros((n_agents, d, d))
    for n in range(n_agents):
        A[n], A_inv[n] = np.eye(d), np.eye(d)
    b, theta_hat, logdet_A = np.zeros((n_agents, d)), np.zeros((n_agents, d)), np.zeros(n_agents)
    pulls, next_test = np.zeros(n_agents), np.zeros(n_agents)
    c = np.full((2, n_agents), param_norm + math.sqrt(-2.0 * math.log(delta)))
    c[1] **= 2
    pooled_inv, pooled_b, pooled = np.eye(d), np.zeros(d), np.zeros(d)
    widths = (arms**2).sum(axis=1)
    largest, mark = np.zeros((2, n_agents, n_agents)), 0
    for round in range(1, int(marks[-1]) + 1):
        i = min(np.searchsorted(activity, np.random.random()), n_agents - 1)  # noqa: NPY002
        if math.isinf(alpha):
            k = np.random.randint(n_arms)  # noqa: NPY002
        else:
            k = np.argmax(arms @ pooled + alpha * np.sqrt(np.maximum(widths, 0.0) * math.log(round + 1.0)))
        x, y = arms[k], means[k] + np.random.standard_normal()  # noqa: NPY002
        step = A_inv[i] @ x
        growth = 1.0 + x @ step
        A_inv[i] -= np.outer(step, step) / growth
        A[i] += np.outer(x, x)
        b[i] += y * x
        theta_hat[i] = A_inv[i] @ b[i]
        logdet_A[i] += math.log(growth)
        c[0, i] = param_norm + math.sqrt(logdet_A[i] - 2.0 * math.log(delta))
        c[1, i] = c[0, i] ** 2
        if not math.isinf(alpha):
            step = pooled_inv @ x
            growth = 1.0 + x @ step
            pooled_inv -= np.outer(step, step) / growth
            widths -= (arms @ step) ** 2 / growth
            pooled_b += y * x
            pooled = pooled_inv @ pooled_b
        pulls[i] += 1
        if pulls[i] >= next_test[i]:
            next_test[i] = pulls[i] * (1.0 + 1.0 / OFTEN)
            for j in range(n_agents):
                v = theta_hat[i] - theta_hat[j]
                first, second = v @ (A[i] @ v), v @ (A[j] @ v)
                if j == i or first <= 0.0 or second <= 0.0:
                    continue
                for form in range(2):  # a bound first (lemma 2 of docs/algorithms.md), then the statistic
                    bound = (math.sqrt(c[form, i] / first) + math.sqrt(c[form, j] / second)) ** -2
                    if bound > largest[form, i, j]:
                        value, _, _ = search(
                            theta_hat[i], A[i], tail, c[form, i],
                            theta_hat[j], A[j], tail, c[form, j], 1.0, False, False, scratch,
                        )  # fmt: skip
                        largest[form, i, j] = largest[form, j, i] = max(value, largest[form, i, j])
        while mark < len(marks) and round == int(marks[mark]):
            found[mark] = largest
            mark += 1


def play(
    dim: int,
    *,
    alpha: float,
    ratio: float = 1.0,
    delta: float = DELTA,
    length_sq: float,
    rates: tuple[float, ...],
    pulls: tuple[int, ...],
    runs: int,
    seed: int,
) -> Tensor:
    """`largest_statistics` of runs with identical agents, shape (runs, len(pulls), 2, N, N).

    The noise is 1, ‖θ‖ = S = `ratio`, and arms are 20 (or 2d) directions of squared length `length_sq`.
    """
    found = np.zeros((runs, len(pulls), 2, len(rates), len(rates)))
    activity, scratch = np.cumsum(rates) / np.sum(rates), make_scratch(dim)
    for run in range(runs):
        rng = np.random.default_rng([seed, run])
        arms = rng.standard_normal((max(20, 2 * dim), dim))
        arms *= math.sqrt(length_sq) / np.linalg.norm(arms, axis=1, keepdims=True)
        theta = rng.standard_normal(dim)
        theta *= ratio / np.linalg.norm(theta)
        marks = np.array(pulls) * float(len(rates))
        tail = np.zeros(dim * (dim + 1) // 2)
        own = int(rng.integers(2**31))
        largest_statistics(
            arms, arms @ theta, activity, alpha, ratio, delta, marks, own, found[run], scratch, tail
        )
    return found


def table() -> None:
    """Print γ for each dimension, ratio and level: the largest over designs, rounded up."""
    rates = (1.0,) * 4 + (10.0,) * 4
    for dim in DIMS:
        print(f"    {dim}: (")
        for ratio in RATIOS:
            rows = []
            for length_sq, alpha in DESIGNS:
                settings = {"length_sq": length_sq * dim, "rates": rates, "pulls": (PULLS,), "runs": RUNS}
                found = play(dim, alpha=alpha, ratio=ratio, seed=50_000, **settings)
                pairs = found[:, 0, 1, :4, 4:].ravel()  # of each pair, one is pulled ten times as often
                rows.append(2.0 * np.sqrt(np.quantile(pairs, [1.0 - level for level in LEVELS])))
            most = np.ceil(100.0 * np.round(np.max(rows, axis=0), 3) - 1e-9) / 100.0
            print(f"        ({', '.join(f'{gamma:.2f}' for gamma in most)}),", flush=True)
        print("    ),")


def unit(n_agents: int, dim: int, noise_scale: float = 1.0, **more: Any) -> Any:
    """Worlds of identical agents with unit arms, by seed."""
    return lambda seed: shoal.UnitClusters(
        n_agents, dim, 1, n_arms=20, noise_scale=noise_scale, seed=seed, **more
    )


UNEQUAL: dict[str, tuple[float, ...]] = {"1:10": (1.0, 10.0) * 10, "1:100": (1.0, 100.0) * 10}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "d=3": (unit(20, 3), {}),
    "d=6": (unit(20, 6), {}),
    "d=12": (unit(20, 12), {}),
    "d=12, arms at random": (unit(20, 12), {"epsilon": 1.0}),
    "d=24": (unit(10, 24), {}),
    "d=32, arms at random": (unit(10, 32), {"epsilon": 1.0}),
    "d=6, N=2": (unit(2, 6), {}),
    "d=6, N=40": (unit(40, 6), {}),
    "d=6, α=0.1": (unit(20, 6), {"alpha": 0.1}),
    "d=6, α=1": (unit(20, 6), {"alpha": 1.0}),
    "d=6, noise 0.2 (ratio 5)": (unit(20, 6, 0.2), {}),
    "d=6, noise 0.5 (ratio 2)": (unit(20, 6, 0.5), {}),
    "d=6, noise 5 (ratio 0.2)": (unit(20, 6, 5.0), {}),
    "d=6, rewards of 0 or 1": (
        lambda seed: shoal.UnitClusters(20, 6, 1, n_arms=20, positive=True, noise="bernoulli", seed=seed),
        {},
    ),
    "d=6, Gaussian arms, noise 2": (
        lambda seed: shoal.GaussianClusters(20, 6, 1, noise_scale=2.0, seed=seed), {}
    ),
    "d=6, the paper's arms": (lambda seed: shoal.SyntheticClusters(20, 6, 1, 1.0, seed=seed), {}),
    "d=6, arms that change": (lambda seed: shoal.ChangingArms(20, 6, 1, seed=seed), {}),
    "d=6, Zipf activity": (unit(20, 6), {"pulling": "zipf"}),
    "d=6, pulls 1:10": (unit(20, 6), {"pulling": "1:10"}),
    "d=6, arms at random, pulls 1:10": (unit(20, 6), {"pulling": "1:10", "epsilon": 1.0}),
    "d=6, arms at random, pulls 1:100": (unit(20, 6), {"pulling": "1:100", "epsilon": 1.0}),
    "d=6, N=10, 10,000 pulls each": (unit(10, 6), {"pulls": 10_000}),
}  # fmt: skip
"""Worlds that the table was not made from, with what differs from α = 0.3 and 1,000 pulls each."""


def wrong_cuts(
    world_of: Any, seeds: range, *, pulls: int = 1_000, pulling: str = "asynchronous", **own: Any
) -> Vector:
    """Share of pairs that BASS cuts, in each run; with unequal rates, of the pairs whose rates differ."""
    shares = []
    for seed in seeds:
        world = world_of(seed)
        n, horizon, schedule = world.n_agents, pulls * world.n_agents, pulling
        counted = ~np.eye(n, dtype=bool)
        if pulling in UNEQUAL:
            rates = np.array(UNEQUAL[pulling])
            schedule = np.random.default_rng(seed).choice(n, horizon, p=rates / rates.sum())
            counted = rates[:, None] != rates
        policy = shoal.BASS(
            n, world.dim, **{"alpha": 0.3, "seed": seed, "param_norm": world.param_norm} | own,
            noise_scale=world.noise_bound,
        )  # fmt: skip
        shoal.simulate(policy, world, horizon=horizon, seed=seed, pulling=schedule)
        shares.append((policy.separation_time[counted] >= 0).mean())
    return np.array(shares)


def percent(shares: Vector) -> str:
    """A mean share, and half the width of its 95% interval over runs."""
    half = t.ppf(0.975, len(shares) - 1) * shares.std(ddof=1) / math.sqrt(len(shares))
    return f"{shares.mean():.1%} ± {half:.1%}"


def check(runs: int = 30) -> None:
    """Print the share of identical pairs that are cut, with the published setting and with levels."""
    settings: tuple[dict[str, Any], ...] = ({}, {"level": 0.05}, {"level": 0.2})
    print("| identical agents | γ at level 0.05 | published | level 0.05 | level 0.2 |")
    print("|---|--:|--:|--:|--:|")
    for name, (world_of, own) in CASES.items():
        seeds = range(60_000, 60_000 + (runs if "N=2" not in name else 10 * runs))
        found = [percent(wrong_cuts(world_of, seeds, **own, **setting)) for setting in settings]
        world = world_of(seeds[0])
        told = {"noise_scale": world.noise_bound, "param_norm": world.param_norm}
        gamma = shoal.BASS(2, world.dim, level=0.05, **told).gamma
        print(f"| {name} | {gamma:.2f} | {' | '.join(found)} |", flush=True)


PUBLISHED_PULLS = (20, 50, 100, 200, 500, 1_000, 2_000)
PUBLISHED_DIMS, PUBLISHED_ALPHAS = (2, 5, 10, 20), (0.1, 0.3, 1.0, math.inf)


def published(runs: int = 40) -> None:
    """Draw the share of identical pairs that are cut over pulls, γ, α and d; print what is drawn."""
    found = {}
    for dim in PUBLISHED_DIMS:
        for alpha in PUBLISHED_ALPHAS:
            all_pairs = play(
                dim,
                alpha=alpha,
                length_sq=1.0,
                rates=(1.0,) * 8,
                pulls=PUBLISHED_PULLS,
                runs=runs,
                seed=51_000,
            )
            first, second = np.triu_indices(8, 1)
            found[dim, alpha] = all_pairs[..., first, second]  # runs, pulls, form, pairs
    shares = lambda dim, alpha, pulls, form, gamma: (  # noqa: E731
        found[dim, alpha][:, PUBLISHED_PULLS.index(pulls), form] > gamma**2 / 4.0
    ).mean(axis=1)
    figure = blank(width=10.4, height=3.9)
    over_pulls, over_gamma, over_alpha = figure.subplots(1, 3, sharey=True)
    gammas = np.linspace(0.7, 3.5, 57)
    for dim, color in zip(PUBLISHED_DIMS, (BLUE, ORANGE, RED, GREY), strict=True):
        line = [shares(dim, 0.3, pulls, 0, 2.0).mean() for pulls in PUBLISHED_PULLS]
        over_pulls.plot(PUBLISHED_PULLS, line, "o-", color=color, label=f"d = {dim}")
        for form, style in ((0, "-"), (1, "--")):
            line = [shares(dim, 0.3, 2_000, form, gamma).mean() for gamma in gammas]
            over_gamma.plot(gammas, line, style, color=color)
        line = [shares(dim, alpha, 2_000, 0, 2.0).mean() for alpha in PUBLISHED_ALPHAS]
        over_alpha.plot(range(4), line, "o-", color=color)
    over_pulls.set(
        xscale="log",
        xlabel="pulls of each agent",
        ylabel="share of identical pairs cut",
        title="β, γ = 2, α = 0.3",
    )
    over_gamma.set(xlabel="γ", title="β (solid) and β² (dashed), 2,000 pulls")
    over_alpha.set(xlabel="α", title="β, γ = 2, 2,000 pulls")
    over_alpha.set_xticks(range(4), ["0.1", "0.3", "1", "arms at\nrandom"])
    for ax in (over_pulls, over_gamma, over_alpha):
        ax.axhline(0.05, color="k", lw=0.8, ls=":")
        ax.set_ylim(0.0, 1.0)
    over_pulls.legend(frameon=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI * 0.75, metadata={"Software": None})
    write_whole(DOCS / "theory-level.png", drawn.getvalue())
    print("| d | α | radius | γ | 100 pulls | 500 | 2,000 |\n|--:|--:|---|--:|--:|--:|--:|")
    for dim, alpha in found:
        for form, gamma in ((0, 1.5), (0, 2.0), (0, 2.5), (0, 3.0), (1, 1.0), (1, 1.25), (1, 2.0)):
            cells = [percent(shares(dim, alpha, pulls, form, gamma)) for pulls in (100, 500, 2_000)]
            said = "random" if math.isinf(alpha) else f"{alpha:g}"
            print(f"| {dim} | {said} | {('β', 'β²')[form]} | {gamma:g} | {' | '.join(cells)} |")
    real = wrong_cuts(unit(20, 10), range(60_000, 60_020), pulls=500, delta=DELTA)
    print(f"The policy itself, 20 agents, d=10, 500 pulls each, 20 runs: {percent(real)} of pairs,")
    print(f"in {np.count_nonzero(real)} of 20 runs at least one.")


METHODS: dict[str, dict[str, Any]] = {
    "published (β, γ=2)": {},
    "level=0.2": {"level": 0.2},
    "level=0.05": {"level": 0.05},
    "proofs (β², γ=2)": {"radius": "beta_squared"},
}
CHOICE, REPORT, ALPHAS = range(60_000, 60_006), range(61_000, 61_016), (0.1, 0.3, 0.6, 1.0)


def regret(horizon: int = 20_000) -> None:
    """Print regrets, each at the α that was best on other seeds, and differences to the published setting."""

    def played(item: Any, seeds: range, alpha: float, own: dict[str, Any]) -> Vector:
        finals = []
        for seed in seeds:
            world = build_environment(item, seed)
            told = {"noise_scale": world.noise_bound, "param_norm": world.param_norm}
            policy = shoal.BASS(world.n_agents, world.dim, alpha=alpha, **told, **own)
            pulling = item.pulling or "asynchronous"
            finals.append(
                shoal.simulate(policy, world, horizon=horizon, seed=seed, pulling=pulling).final_regret
            )
        return np.array(finals)

    print(f"| | {' | '.join(METHODS)} |\n|---|{'--:|' * len(METHODS)}")
    for item in scenarios(("synthetic-m3-w1", "synthetic-m3-w7", "gaussian-s1", "zipf", "n20")):
        cells, base = [], np.zeros(0)
        for name, own in METHODS.items():
            best = min(ALPHAS, key=lambda alpha: played(item, CHOICE, alpha, own).mean())
            found = played(item, REPORT, best, own)
            base = found if name == next(iter(METHODS)) else base
            change = "" if found is base else f" ({_signed(found - base)})"
            cells.append(f"{interval(found)}{change}, α={best:g}")
        print(f"| {item.title} | {' | '.join(cells)} |", flush=True)


def _signed(values: Vector) -> str:
    return interval(values).replace("-", "−") if values.mean() < 0 else f"+{interval(values)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["table", "check", "published", "regret"])
    {"table": table, "check": check, "published": published, "regret": regret}[parser.parse_args().what]()
