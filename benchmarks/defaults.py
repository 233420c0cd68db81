"""Where defaults come from, and what estimating the noise does: the tables of docs/which-policy.md.

python benchmarks/defaults.py choose    # the score of each value of each parameter but α, seeds from 0
python benchmarks/defaults.py alpha     # that of each α, all else by default: seeds from 0 and from 40,000
python benchmarks/defaults.py check     # the defaults, on seeds from 40,000, as a table
python benchmarks/defaults.py noise     # BASS with its noise known, wrong and estimated, seeds from 41,000

Each takes a few minutes of one core. A value's score is its regret over that of Independent (α = 0.6) in the
same runs, as a geometric mean over the scenarios, so that none counts for more because its regret is larger.
"""

import argparse
import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.stats import t

import shoal
from shoal.core.policies.registry import find_policy
from shoal.core.types import Vector
from shoal.lab.experiments.spec import EnvironmentSpec, build_environment
from shoal.lab.paper.presets import load_preset

SCENARIOS = (
    "synthetic-m3-w1",
    "synthetic-m3-w7",
    "synthetic-m6-w7",
    "gaussian-s1",
    "continuum",
    "zipf",
    "n20",
    "bernoulli",
)
NOISY = ("synthetic-m3-w7", "gaussian-s0.5", "gaussian-s2", "noise-per-agent")
HORIZON = 20_000
CHOICE, CHECK = range(8), range(40_000, 40_008)
MEASURED = range(41_000, 41_008)
"""First seed; the form of the estimated noise was chosen on 40,000 to 40,007, so other seeds measure it."""
EARLY = 3_000
"""A horizon at which agents have few samples."""
ALPHAS = (0.1, 0.3, 0.6, 1.0, 2.0)
GAMMAS = (0.1, 0.25, 0.5, 1.0, 2.0)
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "independent": {},
    "club": {"gamma": GAMMAS},
    "sclub": {"gamma": GAMMAS},
    "cmlb": {"gamma": GAMMAS, "exploration_rounds": (500, 1_000, 2_000, 5_000)},
    "dynucb": {"n_clusters": (2, 3, 5, 10, 20, 40)},
    "bass": {"gamma": (1.5, 2.0, 2.5)},
    "cluster_mixture": {},
}


def scenarios(names: Iterable[str]) -> list[EnvironmentSpec]:
    """Some of the preset `beyond`."""
    known = {item.id: item for item in load_preset("beyond").environments}
    return [known[name] for name in names]


def play(policy: str, scenario: EnvironmentSpec, seeds: range, **parameters: Any) -> Vector:
    """Final regrets, one per seed."""
    regrets = []
    for seed in seeds:
        world = build_environment(scenario, seed)
        built = shoal.make_policy(policy, world.n_agents, world.dim, seed=seed, **parameters)
        pulling = scenario.pulling or "asynchronous"
        regrets.append(shoal.simulate(built, world, horizon=HORIZON, seed=seed, pulling=pulling).final_regret)
    return np.array(regrets)


def interval(values: Vector) -> str:
    """A mean, and half the width of its 95% interval."""
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return f"{values.mean():,.0f} ± {half:,.0f}"


def score(regrets: list[Vector], alone: list[Vector]) -> tuple[float, float]:
    """The geometric mean over scenarios of one mean regret over another, and half of its 95% interval.

    A seed gives a world in every scenario, so seeds are what the interval counts: to first order the
    logarithm of the score is a mean over seeds, each with what it adds to both means of every scenario.
    """
    mean = np.mean([np.log(own.mean() / other.mean()) for own, other in zip(regrets, alone, strict=True)])
    parts = [own / own.mean() - other / other.mean() for own, other in zip(regrets, alone, strict=True)]
    each = np.mean(parts, axis=0)
    half = t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / math.sqrt(len(each))
    return math.exp(mean), math.exp(mean) * half


def choose(policies: list[str]) -> None:
    """Print the score of each value, with the parameters before it at their best."""
    worlds = scenarios(SCENARIOS)
    alone = [play("independent", item, CHOICE, alpha=0.6) for item in worlds]
    for policy in policies:
        best: dict[str, Any] = {}
        for name, values in GRIDS[policy].items():
            scores = {}
            for value in values:
                found = [play(policy, item, CHOICE, **{**best, name: value}) for item in worlds]
                scores[value], half = score(found, alone)
                each = " ".join(
                    f"{own.mean() / other.mean():.2f}" for own, other in zip(found, alone, strict=True)
                )
                print(f"{policy:15} {name} = {value:<6} {scores[value]:.3f} ± {half:.3f}  {each}", flush=True)
            best[name] = min(scores, key=scores.__getitem__)


def alpha(policies: list[str]) -> None:
    """Print the score of each α, all else by default: on the seeds for choosing, then on others."""
    worlds = scenarios(SCENARIOS)
    for seeds in (CHOICE, CHECK):
        print(f"\n| α, seeds {seeds[0]:,}–{seeds[-1]:,} | {' | '.join(map(str, ALPHAS))} |")
        print("|---|" + "--:|" * len(ALPHAS))
        alone = [play("independent", item, seeds, alpha=0.6) for item in worlds]
        for policy in policies:
            cells, shares = [], []
            for value in ALPHAS:
                found = [play(policy, item, seeds, alpha=value) for item in worlds]
                cells.append("{:.2f} ± {:.2f}".format(*score(found, alone)))
                shares.append([own.mean() / other.mean() for own, other in zip(found, alone, strict=True)])
            print(f"| {find_policy(policy).label} | {' | '.join(cells)} |", flush=True)
            for value, each in zip(ALPHAS, shares, strict=True):
                print(
                    f"    {value}: {' '.join(f'{share:.2f}' for share in each)}",
                    file=sys.stderr,
                    flush=True,
                )


def check(policies: list[str]) -> None:
    """Print final regrets with all parameters at their defaults, a row for each scenario."""
    print(f"| | {' | '.join(find_policy(name).label for name in policies)} |")
    print("|---|" + "--:|" * len(policies))
    for item in scenarios(SCENARIOS):
        found = {name: play(name, item, CHECK) for name in policies}
        print(f"| {item.title} | {' | '.join(map(interval, found.values()))} |", flush=True)


def noise() -> None:
    """Print regrets of BASS by what it is told about the noise, minus that with the known (largest) noise."""
    print("| | radius | known | half of it | twice | estimated | estimated/σ, 30 and 200 pulls | below σ |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for item in scenarios(NOISY):
        for radius, gamma in (("beta", 2.0), ("beta_squared", 1.25)):
            world = build_environment(item, MEASURED[0])
            own = {"radius": radius, "gamma": gamma, "alpha": 0.3}
            regrets: dict[float | None, list[float]] = {1.0: [], 0.5: [], 2.0: [], None: []}
            for seed in MEASURED:
                world = build_environment(item, seed)
                for factor, found in regrets.items():
                    told = None if factor is None else factor * world.noise_bound
                    policy = shoal.BASS(
                        world.n_agents, world.dim, noise_scale=told, param_norm=world.param_norm, **own
                    )
                    trace = shoal.simulate(policy, world, horizon=HORIZON, seed=seed)
                    found.append(trace.final_regret)
            ratios = []
            for horizon in (EARLY, HORIZON):  # of the last run's world
                sizes = world.n_agents, world.dim
                policy = shoal.BASS(*sizes, noise_scale=None, param_norm=world.param_norm, **own)
                shoal.simulate(policy, world, horizon=horizon, seed=MEASURED[-1])
                ratios.append(policy.noise_scales / np.broadcast_to(world.noise_scale, world.n_agents))
            known = np.array(regrets[1.0])
            others = [_change(np.array(regrets[key]) - known) for key in (0.5, 2.0, None)]
            median = ", ".join(f"{np.median(ratio):.2f}" for ratio in ratios)
            below = ", ".join(f"{np.mean(ratio < 1.0):.0%}" for ratio in ratios)
            cells = (item.title, f"`{radius}`", interval(known), *others, median, below)
            print(f"| {' | '.join(cells)} |", flush=True)


def _change(values: Vector) -> str:
    return interval(values).replace("-", "−") if values.mean() < 0 else f"+{interval(values)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["choose", "alpha", "check", "noise"])
    parser.add_argument("policies", nargs="*", help="[default: all]")
    asked = parser.parse_args()
    if asked.what == "noise":
        noise()
    else:
        {"choose": choose, "alpha": alpha, "check": check}[asked.what](asked.policies or list(GRIDS))
