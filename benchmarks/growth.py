"""What one newcomer costs: `add_agents(1)` again and again, in microseconds of processor time.

Prints for each policy the mean, the median and the longest pause, and the least mean of some newcomers in a
row, the best measure on a shared machine; then the time of BASS's change to its second engine.
docs/guarantees.md quotes it.

    python benchmarks/growth.py [--agents 5000] [--dim 16] [--newcomers 3000] [policy …]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import shoal
from shoal.core.policies.registry import BUILT_IN, policy_class

STRETCH = 200
"""Newcomers in a row that the least mean is taken over."""
OWN: dict[str, dict[str, Any]] = {
    "bass": {"delta": 0.1},
}


def seconds(call: Callable[[], object]) -> float:
    """Processor time of this thread, which other processes do not affect."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def grow(name: str, agents: int, dim: int, newcomers: int) -> str:
    """Let a policy in which some agents have samples grow, one agent at a time, some of them pulling."""
    own = {"labels": np.arange(agents) % 3} if name == "oracle" else OWN.get(name, {})
    more = {"labels": [0]} if name == "oracle" else {}
    policy: Any = shoal.make_policy(name, agents, dim, alpha=0.3, **own)
    rng, x = np.random.default_rng(0), np.ones(dim)
    for agent in range(0, agents, max(1, agents // 300)):
        policy.update(agent, rng.standard_normal(dim), 1.0)
    took = []
    for n in range(newcomers):
        took.append(1e6 * seconds(lambda: policy.add_agents(1, **more)))
        if n % 5 == 0:
            policy.update(policy.n_agents - 1, x, 1.0)
    least = min(np.mean(took[n : n + STRETCH]) for n in range(0, newcomers, STRETCH))
    return f"{name:16s} {least:14.1f} {np.mean(took):9.1f} {np.median(took):9.1f} {np.max(took) / 1e3:12.2f}"


def cross(dim: int) -> str:
    """Let BASS grow past the largest number of agents for which it keeps witnesses."""
    policy = shoal.BASS(2, dim, alpha=0.3, delta=0.1)
    most = policy._most
    for round_trip in range(2):  # the first time compiles the second engine
        policy = shoal.BASS(most - 20, dim, alpha=0.3, delta=0.1)
        rng = np.random.default_rng(round_trip)
        for agent in rng.integers(most - 20, size=2_000):
            policy.update(int(agent), rng.standard_normal(dim), float(rng.standard_normal()))
        took = [1e3 * seconds(lambda policy=policy: policy.add_agents(1)) for _ in range(40)]
    return f"BASS from {most} to {most + 1} agents, d = {dim}: {max(took):.1f} ms"


def main() -> None:
    live = [name for name in BUILT_IN if issubclass(policy_class(name), shoal.LivePolicy)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("policies", nargs="*", default=live)
    for option, default in (("agents", 5_000), ("dim", 16), ("newcomers", 3_000)):
        parser.add_argument(f"--{option}", type=int, default=default)
    given = parser.parse_args()
    size = f"N={given.agents:,}, d={given.dim}"
    print(f"{size:16s} least mean, µs  mean, µs    median  longest, ms")
    for name in given.policies:
        print(grow(name, given.agents, given.dim, given.newcomers), flush=True)
    if "bass" in given.policies:
        print(cross(given.dim))


if __name__ == "__main__":
    main()
