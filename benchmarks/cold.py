"""How long the first `select` and `update` of each policy take, from an empty cache and from a filled one.

Processor seconds of a process of its own, import included; the last row has all policies in one process.
`make bench` runs this and writes a table of docs/performance.md.

    python benchmarks/cold.py [POLICY...]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from shoal.core.policies.registry import policy_names

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "performance.md", ROOT / "benchmarks" / "results.json"
BEGIN, END = "<!-- written by benchmarks/cold.py -->\n", "<!-- until cold.py ends -->\n"
PROGRAM = """
import sys, time
import numpy as np
import shoal
from shoal.lab import benchmark
world, arms = shoal.GaussianClusters(8, 2, 2, n_arms=3, seed=0), np.eye(2)
for name in sys.argv[1:]:
    policy = benchmark.build(name, world)
    policy.update(0, arms[policy.select(0, arms)], 1.0)
print(time.process_time())
"""


def seconds(*policies: str) -> list[float]:
    """Processor seconds of the first process, which compiles, and of a second one, which does not."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "NUMBA_CACHE_DIR": empty}
        command = [sys.executable, "-c", PROGRAM, *policies]
        runs = [
            subprocess.check_output(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(2)
        ]
    return [float(run) for run in runs]


def main() -> None:
    names = sys.argv[1:] or list(policy_names())
    figures = {}
    for label, policies in [*((name, [name]) for name in names), ("all", names)]:
        figures[label] = dict(zip(("compiling", "from the cache"), seconds(*policies), strict=True))
        print(label, *(f"{took:.1f}" for took in figures[label].values()), flush=True)
    if sys.argv[1:]:
        return
    results = json.loads(RESULTS.read_text())
    results["first_call_seconds"] = figures
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    rows = [
        f"| {name} | {row['compiling']:.1f} | {row['from the cache']:.1f} |" for name, row in figures.items()
    ]
    table = ["| policy | from an empty cache | from the cache |", "|---|--:|--:|", *rows]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(table) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
