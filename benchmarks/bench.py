"""Rounds per second of every policy on the paper's workload, beside the naive reference in the same run.

Times are processor time of one thread, best of three: other programs on the machine disturb them little. The
ratio to the reference, measured in the same process, is what to compare between machines.

    python benchmarks/bench.py [--json FILE]
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np

import shoal
from shoal.policies.registry import policy_class

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import reference

BASELINES = ("independent", "oracle", "dynucb", "cmlb", "club", "sclub")
SCENARIOS = {"0.2": math.pi / 16, "1.27": 7 * math.pi / 16}


def own_parameters(name: str, world: shoal.Environment) -> dict[str, Any]:
    return {
        "independent": {},
        "oracle": {"labels": world.labels},
        "dynucb": {"n_clusters": 3},
        "club": {"gamma": world.gap / 4},
        "sclub": {"gamma": world.gap / 4},
        "cmlb": {"gamma": world.gap / 4},
        "bass": {"delta": 0.1},
        "weighted_bass": {"delta": 0.1},
    }[name]


def compiled_rate(name: str, world: shoal.Environment, horizon: int, **more: Any) -> float:
    """Rounds per second of a compiled run, compilation excluded."""
    best = math.inf
    for attempt in range(4):
        policy = shoal.make_policy(name, 100, 10, alpha=0.3, seed=0, **own_parameters(name, world), **more)
        start = time.thread_time()
        shoal.simulate(policy, world, horizon=horizon if attempt else 100, seed=0)
        if attempt:
            best = min(best, time.thread_time() - start)
    return horizon / best


def naive_rate(name: str, world: shoal.Environment, horizon: int) -> float:
    """Rounds per second of the naive twin, in the rounds that the compiled run begins with."""
    own = own_parameters(name, world)
    if name == "dynucb":
        own["labels"] = np.arange(100) % 3
    twin = getattr(reference, policy_class(name).__name__)(100, 10, alpha=0.3, **own)
    rng = np.random.default_rng(0)
    schedule = [[int(agent)] for agent in rng.integers(100, size=horizon)]
    start = time.thread_time()
    reference.run(
        twin, schedule, world.arms, lambda agent, t: world.mean_rewards[agent], rng.standard_normal(horizon)
    )
    return horizon / (time.thread_time() - start)


def online_microseconds(world: shoal.Environment) -> float:
    """Microseconds of one `select` and one `update` of BASS from Python."""
    policy, arms, rng = (
        shoal.BASS(100, 10, alpha=0.3, delta=0.1),
        np.array(world.arms),
        np.random.default_rng(0),
    )
    calls = 20_000
    agents, noise = rng.integers(100, size=calls).tolist(), rng.standard_normal(calls).tolist()
    means = world.mean_rewards.tolist()
    policy.update(0, arms[policy.select(0, arms)], 0.0)
    start = time.thread_time()
    for agent, error in zip(agents, noise, strict=True):
        k = policy.select(agent, arms)
        policy.update(agent, arms[k], means[agent][k] + error)
    return (time.thread_time() - start) / calls * 1e6


def start_up_seconds() -> dict[str, float]:
    """Processor seconds of an import, and of a second process that imports and simulates BASS."""
    program = (
        "import time; start = time.process_time(); import shoal; imported = time.process_time()\n"
        "world = shoal.SyntheticClusters(100, 10, 3, 1.0, seed=0)\n"
        "shoal.simulate(shoal.BASS(100, 10, alpha=0.3, delta=0.1), world, horizon=100, seed=0)\n"
        "print(imported - start, time.process_time() - start)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(4)
    ]
    times = np.array([run.stdout.split() for run in runs[1:]], dtype=float).min(axis=0)
    return {"import": float(times[0]), "import and simulate": float(times[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--horizon", type=int, default=50_000)
    options = parser.parse_args()
    figures: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "horizon": options.horizon,
        "rounds_per_second": {},
    }
    print(f"N=100, d=10, K=15, asynchronous, T={options.horizon:,}, one thread\n")
    print(f"{'policy':14} {'gap':>5} {'rounds/s':>10} {'naive':>8} {'ratio':>8}")
    for gap, angle in SCENARIOS.items():
        world = shoal.SyntheticClusters(100, 10, 3, angle, seed=0)
        cases: list[tuple[str, dict[str, Any]]] = [
            (name, {}) for name in (*BASELINES, "bass", "weighted_bass")
        ]
        cases.append(("bass", {"radius": "beta_squared"}))
        for name, more in cases:
            fast = compiled_rate(name, world, options.horizon, **more)
            naive = naive_rate(name, world, 60)
            label = "bass β²" if more else name
            print(f"{label:14} {gap:>5} {fast:>10,.0f} {naive:>8,.0f} {fast / naive:>8,.0f}")
            figures["rounds_per_second"][f"{label} {gap}"] = {
                "compiled": fast,
                "naive": naive,
                "ratio": fast / naive,
            }
    world = shoal.SyntheticClusters(100, 10, 3, math.pi / 16, seed=0)
    figures["online_microseconds"] = online_microseconds(world)
    print(f"\nselect + update from Python: {figures['online_microseconds']:.1f} µs")
    figures["start_up_seconds"] = start_up_seconds()
    for what, seconds in figures["start_up_seconds"].items():
        print(f"{what}: {seconds:.2f} s")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
