"""Simulated logs whose truth is known, many at a time.

    python -m tests.live.evaluation.simulated [LOGS]

writes how often intervals hold with rare rewards into docs/evaluation.md.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.core.types import Matrix, Tensor, Vector
from shoal.live.evaluation import estimators
from shoal.live.evaluation.estimators import Log, why_not


class World(NamedTuple):
    """Arms drawn anew for each decision; a reward is linear in the arm, plus noise."""

    theta: Vector
    target: Vector
    """Another policy plays the arm with the largest product with this."""
    n_arms: int = 4
    noise: float = 1.0

    def arms(self, rng: np.random.Generator, *shape: int) -> Tensor:
        return rng.standard_normal((*shape, self.n_arms, len(self.theta))) + 0.3

    def value(self, size: int = 400_000) -> float:
        """What the target policy is worth."""
        arms = self.arms(np.random.default_rng(12345), size)
        best = (arms @ self.target).argmax(axis=1)
        return float((arms[np.arange(size), best] @ self.theta).mean())


WORLD = World(np.array([1.0, -0.5]), np.array([0.6, 0.8]))


def logs(n_logs: int, length: int, *, explore: float, adaptive: bool, seed: int) -> list[Log]:
    """Logs of ε-greedy agents, which learn from what they log or else were born with an opinion.

    Their own running ridge estimate is the model.
    """
    rng, world = np.random.default_rng(seed), WORLD
    d, K, each = len(world.theta), world.n_arms, np.arange(n_logs)
    A, b = np.broadcast_to(np.eye(d), (n_logs, d, d)).copy(), np.zeros((n_logs, d))
    columns: dict[str, Matrix] = {
        name: np.zeros((length, n_logs)) for name in ("rewards", "p", "target", "predicted", "expected")
    }
    for t in range(length):
        arms = world.arms(rng, n_logs)
        estimate = np.linalg.solve(A, b[..., None])[..., 0]
        means = np.einsum("nkd,nd->nk", arms, estimate)
        greedy = means.argmax(axis=1) if adaptive else arms[:, :, 0].argmax(axis=1)
        explores = rng.random(n_logs) < explore
        shown = np.where(explores, rng.integers(K, size=n_logs), greedy)
        wanted = (arms @ world.target).argmax(axis=1)
        x = arms[each, shown]
        reward = x @ world.theta + world.noise * rng.standard_normal(n_logs)
        A += x[:, :, None] * x[:, None, :]
        b += reward[:, None] * x
        columns["rewards"][t] = reward
        columns["p"][t] = explore / K + (1.0 - explore) * (shown == greedy)
        columns["target"][t] = shown == wanted
        columns["predicted"][t], columns["expected"][t] = means[each, shown], means[each, wanted]
    return [Log(*(column[:, n].copy() for column in columns.values())) for n in range(n_logs)]


# Rare rewards

RATES = (0.002, 0.005, 0.02, 0.1, 0.5)
POLICIES = {
    "close": "the logging policy, tilted: weights from about 0.5 to 2",
    "spread": "another stochastic policy: weights from 0 to about 50",
    "uniform": "always one of ten arms, logged uniformly: weight 10",
    "far": "always one arm that the log shows in 2% of its decisions: weight 50",
}
PAGE = Path(__file__).parents[3] / "docs" / "evaluation.md"


def clicks(kind: str, rate: float, length: int, rng: np.random.Generator) -> tuple[float, Log]:
    """A log of clicks on ten arms, and what another policy is worth; the model is a running mean per arm."""
    K = 10
    values = rate * np.exp(0.5 * rng.standard_normal(K))
    values = np.clip(values * rate / values.mean(), 0.0, 0.95)
    p, q = np.full(K, 1.0 / K), np.eye(K)[1]
    if kind == "close":
        p = rng.dirichlet(np.full(K, 5.0))
        q = p * np.exp(0.3 * rng.standard_normal(K))
        q /= q.sum()
    elif kind == "spread":
        p, q = 0.9 * rng.dirichlet(np.full(K, 0.5)) + 0.1 / K, rng.dirichlet(np.full(K, 0.5))
    elif kind == "far":
        p = np.full(K, 0.02) + 0.8 * np.eye(K)[0]
    shown = rng.choice(K, size=length, p=p)
    rewards = (rng.random(length) < values[shown]).astype(np.float64)
    played = shown[:, None] == np.arange(K)
    before = np.cumsum(played, axis=0) - played
    means = (np.cumsum(played * rewards[:, None], axis=0) - played * rewards[:, None]) / (before + 1.0)
    log = Log(rewards, p[shown], q[shown], means[np.arange(length), shown], means @ q)
    return float(values @ q), log


class Held(NamedTuple):
    """How often intervals held, for one policy and rate."""

    logs: int
    refused: int
    missed: dict[str, int]
    """Logs whose interval does not hold the truth, by estimator."""
    width: float
    """Median width of the doubly robust interval, over the truth."""


def held(kind: str, rate: float, n_logs: int, length: int = 10_000, seed: int = 0) -> Held:
    """Make logs, and see how often intervals hold the truth."""
    rng = np.random.default_rng([seed, list(POLICIES).index(kind), round(1e6 * rate)])
    missed = dict.fromkeys(("IPS", "SNIPS", "doubly robust"), 0)
    refused, widths = 0, []
    for _ in range(n_logs):
        truth, log = clicks(kind, rate, length, rng)
        if why_not(log):
            refused += 1
            continue
        for estimate in (estimators.ips, estimators.snips, estimators.doubly_robust):
            found = estimate(log)
            missed[found.name] += not found.low <= truth <= found.high
        widths.append((found.high - found.low) / truth)
    return Held(n_logs, refused, missed, float(np.median(widths)) if widths else float("nan"))


def table(n_logs: int) -> str:
    lines = [
        f"{n_logs:,} logs of 10,000 decisions for each row. *Wrong*: an interval was given, and does not "
        "hold the truth. *Width*: of the doubly robust interval, over the true value, median.",
        "",
        "| other policy | rewarded | IPS wrong | SNIPS wrong | doubly robust wrong | refused | width |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in POLICIES:
        for rate in RATES:
            found = held(kind, rate, n_logs, seed=1)
            cells = [f"{count / n_logs:.1%}" for count in found.missed.values()]
            width = "" if np.isnan(found.width) else f"{found.width:.2f}"
            lines.append(
                f"| {kind} | {rate:.1%} | {' | '.join(cells)} | {found.refused / n_logs:.0%} | {width} |"
            )
            print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    made = table(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    marks = r"(<!-- written by tests/live/evaluation/simulated.py -->\n).*?(\n<!-- until here -->)"
    PAGE.write_text(
        re.sub(marks, lambda found: found[1] + made + found[2], PAGE.read_text(), flags=re.DOTALL)
    )
