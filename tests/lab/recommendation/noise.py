"""Logs of clicks with tastes, or without: how often `recommend` finds any.

    python -m tests.lab.recommendation.noise [LOGS]

writes its table into docs/your-data.md.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from shoal.lab.recommendation.inspecting import RewardLog
from shoal.lab.recommendation.logs import NOISE
from shoal.lab.recommendation.modelling import chance

PAGE = Path(__file__).parents[3] / "docs" / "your-data.md"
CASES = [(rate, dim) for rate in (0.005, 0.05, 0.5) for dim in (8, 29)]


def clicks(rate: float, dim: int, seed: int, rows: int = 10_000) -> RewardLog:
    """200 agents of four tastes, 40 arms; log-odds vary by 1 (standard deviation) with tastes and arms."""
    rng = np.random.default_rng([seed, dim, round(1e6 * rate)])
    features = rng.normal(size=(40, dim)) / np.sqrt(dim)
    tastes = rng.normal(size=(4, dim))[rng.integers(4, size=200)]
    agents, arms = rng.integers(200, size=rows), rng.integers(40, size=rows)
    agents[:200], arms[:40] = np.arange(200), np.arange(40)
    odds = np.einsum("nd,nd->n", tastes[agents], features[arms])
    p = np.exp(odds - odds.max())
    p *= rate / p.mean() if rate < 0.2 else 1.0
    p = p if rate < 0.2 else 1.0 / (1.0 + np.exp(-odds))
    rewards = (rng.random(rows) < p).astype(np.float64)
    return RewardLog("clicks", agents, arms, rewards, features)


def found(rate: float, dim: int, logs: int, *, shuffled: bool, rows: int = 10_000) -> int:
    """In how many logs something is found, of so many with tastes, or with their rewards shuffled."""
    count = 0
    for seed in range(logs):
        log = clicks(rate, dim, seed, rows)
        if shuffled:
            log = replace(log, rewards=np.random.default_rng(seed).permutation(log.rewards))
        count += chance(log) <= NOISE
    return count


def table(logs: int) -> str:
    some = max(logs // 3, 1)
    lines = [f"| rewarded | features | shuffled, of {logs} | with tastes, of {some} |", "|--:|--:|--:|--:|"]
    for rate, dim in CASES:
        cells = found(rate, dim, logs, shuffled=True), found(rate, dim, some, shuffled=False)
        lines.append(f"| {rate:.1%} | {dim} | {cells[0]} | {cells[1]} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    made = table(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
    marks = r"(<!-- written by tests/lab/recommendation/noise.py -->\n).*?(\n<!-- until here -->)"
    PAGE.write_text(re.sub(marks, lambda part: part[1] + made + part[2], PAGE.read_text(), flags=re.DOTALL))
