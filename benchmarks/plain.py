"""Processor time of a round of ClusterMixture: as we compile it, and as plain Numba does (`SHOAL_UNITS=0`).

Two processes play the same runs in turn, so that other load on the machine affects both. The regret must be
the same, bit for bit. docs/performance.md has the figures.

    python benchmarks/plain.py [PAIRS]
"""

import os
import statistics
import subprocess
import sys

HORIZON = 4_000
PROGRAM = f"""
import sys, time
import shoal
world = shoal.GaussianClusters(50, 10, 4, n_arms=20, seed=0)

def play(seed, horizon):
    policy = shoal.ClusterMixture(50, 10, alpha=0.5, seed=seed)
    start = time.process_time()
    trace = shoal.simulate(policy, world, horizon=horizon, seed=seed, points=2)
    return (time.process_time() - start) / horizon, trace.final_regret

play(0, 50)
for line in sys.stdin:
    print(*play(int(line), {HORIZON}), flush=True)
"""


def start(units: str) -> "subprocess.Popen[str]":
    """A process that plays the seeds it is sent."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "SHOAL_UNITS": units},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def played(process: "subprocess.Popen[str]", seed: int) -> tuple[float, str]:
    """Seconds a round, and the regret."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(seed, file=process.stdin, flush=True)
    seconds, regret = process.stdout.readline().split()
    return float(seconds), regret


def main(pairs: int) -> None:
    ours, plain = processes = start("1"), start("0")
    found = []
    for pair in range(pairs):
        order = (ours, plain) if pair % 2 else (plain, ours)
        outcome = {process: played(process, pair % 6) for process in order}
        assert outcome[ours][1] == outcome[plain][1]
        found.append((outcome[ours][0], outcome[plain][0]))
    low, middle, high = statistics.quantiles((one / other for one, other in found), n=4)
    microseconds = (1e6 * statistics.median(side) for side in zip(*found, strict=True))
    print("µs a round, ours and plain: {:.1f} {:.1f}".format(*microseconds))
    print(f"ratio: {middle:.3f} (quartiles {low:.3f} and {high:.3f}, {pairs} pairs)")
    for process in processes:
        process.communicate()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 24)
