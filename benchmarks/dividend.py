"""Whether the dividend of sharing has the sign that regret says it should, in scenarios of `beyond`.

    python benchmarks/dividend.py [--runs 6] [--rounds 8000]

Each policy is played with its dividend, and Independent on the same draws. Writes its table into
docs/evaluation.md.
"""

import argparse
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.core.policies.registry import find_policy
from shoal.lab.benchmark import typical
from shoal.reporting.curves import half_width

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evaluation.md"
SCENARIOS = (
    "synthetic-m3-w1", "synthetic-m3-w7", "gaussian-s1", "continuum", "n20", "jump", "bernoulli",
)  # fmt: skip
SEED = 30_000


def interval(values: np.ndarray[Any, Any], form: str) -> str:
    half = float(half_width(values.std(ddof=1) / np.sqrt(len(values)), len(values)))
    return f"{form.format(values.mean())} ± {form.format(half).lstrip('+')}".replace("-", "−")


def sign(values: np.ndarray[Any, Any]) -> int:
    """The sign of a mean whose interval excludes 0; 0 otherwise."""
    half = float(half_width(values.std(ddof=1) / np.sqrt(len(values)), len(values)))
    return int(np.sign(values.mean())) if abs(values.mean()) > half else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=8_000)
    options = parser.parse_args()
    preset = tomllib.loads((ROOT / "src/shoal/lab/paper/presets/beyond.toml").read_text())
    worlds = {one["id"]: one for one in preset["environments"]}
    lines = [
        f"{options.runs} runs of {options.rounds:,} rounds each, seeds from {SEED:,} on; ± is a 95% interval "
        "over runs, regret is that of all agents, paired with Independent at the same α (0.3).",
        "",
        "| scenario | policy | dividend per reward | in the last half | regret saved | sign agrees |",
        "|---|---|--:|--:|--:|---|",
    ]
    for name in SCENARIOS:
        spec = worlds[name]
        for policy in ("bass", "cluster_mixture"):
            paid, late, saved = [], [], []
            for seed in range(SEED, SEED + options.runs):
                parameters = dict(spec["parameters"])
                if "last_jump" in parameters:
                    parameters["last_jump"] = options.rounds
                world = shoal.make_environment(spec["kind"], **parameters, seed=seed)
                own = typical(find_policy(policy), world)
                made = shoal.make_policy(policy, world.n_agents, world.dim, alpha=0.3, seed=seed, **own)
                played = {
                    "horizon": options.rounds,
                    "seed": seed,
                    "pulling": spec.get("pulling", "asynchronous"),
                }
                trace = shoal.simulate(made, world, dividend=True, **played)
                alone = shoal.make_policy("independent", world.n_agents, world.dim, alpha=0.3, seed=seed)
                assert trace.dividends is not None
                paid.append(trace.dividends.mean())
                late.append(trace.dividends[len(trace.dividends) // 2 :].mean())
                saved.append(shoal.simulate(alone, world, **played).final_regret - trace.final_regret)
            a, b, c = map(np.array, (paid, late, saved))
            signs = sign(a), sign(c)
            agrees = "unclear" if 0 in signs else "yes" if signs[0] == signs[1] else "no"
            cells = [
                spec["title"],
                policy,
                interval(a, "{:+.3f}"),
                interval(b, "{:+.4f}"),
                interval(c, "{:+,.0f}"),
                agrees,
            ]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    text = re.sub(
        r"(<!-- written by benchmarks/dividend.py -->\n).*?(\n<!-- until here -->)",
        lambda found: found[1] + "\n".join(lines) + found[2],
        PAGE.read_text(),
        flags=re.DOTALL,
    )
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
