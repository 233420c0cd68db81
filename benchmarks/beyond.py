"""The pictures and the table of docs/beyond.md.

python benchmarks/beyond.py pictures               # the second needs MovieLens, see docs/real-data.md
python benchmarks/beyond.py table results/beyond   # from the results of `shoal reproduce beyond`
"""

import argparse
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import shoal
from shoal.core.atomic import write_whole
from shoal.core.types import Vector
from shoal.lab.experiments.stored import load_results
from shoal.lab.experiments.summaries import Paired, SummaryRow, column, summarize
from shoal.lab.paper.beyond import Contest, contests, verdict
from shoal.reporting.charts import BLUE, DPI, GREY, ORANGE, RED, blank, thousands

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "beyond.md"
BEGIN, END = "<!-- written by benchmarks/beyond.py table -->\n", "<!-- until here -->\n"
PLAIN: dict[str, Any] = {"scatter": 0.0, "drift": False, "ridge_bonus": 0.0}
"""ClusterMixture without its additions."""
ANGLE = 7 * math.pi / 16
HORIZON = 50_000
TAIL_SEED = 18
"""A Gaussian run (σ = 1) of the plain policy that ends far above its median."""
JUMP_RUNS = 8


def pictures() -> None:
    """Draw and write the three pictures."""
    for name, draw in (("tail", draw_tail), ("scatter", draw_scatter), ("change", draw_change)):
        drawn = io.BytesIO()
        draw().savefig(drawn, format="png", dpi=DPI * 0.75, metadata={"Software": None})
        write_whole(DOCS / f"beyond-{name}.png", drawn.getvalue())
        print(f"docs/beyond-{name}.png, {len(drawn.getvalue()) / 1000:.0f} kB")


def draw_tail() -> Figure:
    """Left: regret of a tail run with and without the ridge bonus. Right: what its unlucky agents believe."""
    world = shoal.GaussianClusters(100, 10, 3, seed=TAIL_SEED)
    figure = blank(width=10.4, height=3.9)
    left, right = figure.subplots(1, 2)
    runs = {}
    for label, own, color in (("ridge_bonus=0", {"ridge_bonus": 0.0}, RED), ("default", {}, BLUE)):
        policy = shoal.ClusterMixture(100, 10, seed=TAIL_SEED, **own)
        trace = shoal.simulate(policy, world, horizon=HORIZON, seed=TAIL_SEED)
        runs[label] = policy, trace
        left.plot(trace.recorded, trace.regret[trace.recorded - 1], color=color, label=label)
    left.set(title="One run, Gaussian, σ=1", xlabel="round", ylabel="regret of all 100 agents")
    left.legend(frameon=False)
    thousands(left, "xy")

    policy, trace = runs["ridge_bonus=0"]
    assert world.labels is not None  # by construction
    lost = np.bincount(world.labels[trace.agents[-5_000:]], weights=regrets(world, trace)[-5_000:])
    agent = int(np.flatnonzero(world.labels == np.argmax(lost))[0])
    members = world.labels == world.labels[agent]
    means, arms = world.mean_rewards[agent], world.arms
    order = np.argsort(-means)[:6]
    pulls = np.bincount(trace.choices[members[trace.agents]], minlength=len(arms))
    gram = np.eye(10) + sum(n * np.outer(x, x) for n, x in zip(pulls, arms, strict=True))
    inverse = np.linalg.inv(gram)
    estimate = arms @ policy.estimate(agent)
    within = policy.parameters["alpha"] ** 2 * math.log(HORIZON + 1.0)
    width = np.sqrt(within * np.einsum("kd,de,ke->k", arms, inverse, arms))
    # As in `shoal.core.policies.mixture`, with the true size of a parameter's entries for its estimate.
    size = float(np.mean(world.theta_star**2)) if world.theta_star is not None else 1.0
    hidden = max(0.0, 9.0 * size - within) * np.sum((arms @ inverse) ** 2, axis=1)
    wide = np.sqrt(width**2 + hidden)
    for place, k in enumerate(order):
        right.errorbar(place - 0.12, estimate[k], yerr=width[k], fmt="o", color=RED, capsize=4)
        right.errorbar(place + 0.12, estimate[k], yerr=wide[k], fmt="o", color=BLUE, capsize=4)
        right.plot(place, means[k], marker="_", markersize=26, markeredgewidth=2.5, color="black")
    right.plot([], [], color="black", linewidth=2.5, label="true mean")
    right.plot([], [], color=RED, marker="o", label="estimate and LinUCB's width")
    right.plot([], [], color=BLUE, marker="o", label="… with the ridge bonus")
    right.set(
        title="At the end of the red run: a cluster's best arms",
        xlabel="pulls by the cluster",
        ylabel="reward",
        xticks=range(len(order)),
        xticklabels=[f"{pulls[k]:,}" for k in order],
    )
    right.legend(frameon=False, fontsize=9)
    for ax in (left, right):
        ax.grid(alpha=0.25)
    return figure


def draw_scatter() -> Figure:
    """κ over time, on clusters, on a continuum and on MovieLens."""
    worlds: dict[str, Callable[[int], shoal.Environment]] = {
        "Clusters, M=3, Δ=1.27": lambda seed: shoal.SyntheticClusters(100, 10, 3, ANGLE, seed=seed),
        "Continuum": lambda seed: shoal.Continuum(100, 10, seed=seed),
        "MovieLens, tuned fill": lambda seed: shoal.MovieLens(n_agents=100, dim=10, arms="first", seed=seed),
    }
    figure = blank(width=10.4, height=3.2)
    panels = figure.subplots(1, 3, sharey=True)
    for ax, (title, world) in zip(panels, worlds.items(), strict=True):
        for seed, color in enumerate((BLUE, ORANGE, RED, GREY, "#1b8a5a")):
            policy, rounds, found = shoal.ClusterMixture(100, 10, seed=seed), [0], []
            found.append(policy.scatter)

            def note(played: int, policy: Any = policy, rounds: Any = rounds, found: Any = found) -> None:
                rounds.append(rounds[-1] + played)
                found.append(policy.scatter)

            shoal.simulate(policy, world(seed), horizon=HORIZON, seed=seed, points=500, progress=note)
            shift = 1.0 + 0.05 * (seed - 2)  # so that equal lines can be told apart
            ax.step(rounds, np.maximum(found, 3e-4) * shift, where="post", color=color, linewidth=1.4)
        grid = (3e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
        ax.set(title=title, xlabel="round", yscale="log", ylim=(2e-4, 1.4))
        ax.set_yticks(grid, ["0", *(f"{value:g}" for value in grid[1:])])
        ax.minorticks_off()
        thousands(ax, "x")
        ax.grid(alpha=0.25)
        ax.set_xticks([0, 25_000, 50_000])
    panels[0].set_ylabel("κ")
    return figure


def draw_change() -> Figure:
    """Left: one agent that jumps, with and without change detection. Right: how soon all are caught."""
    figure = blank(width=10.4, height=3.6)
    left, right = figure.subplots(1, 2)
    waits: dict[tuple[int, int], int] = {}
    missed: list[float] = []
    runs = {}
    for seed in range(JUMP_RUNS):
        world = shoal.JumpingAgents(100, 10, 3, ANGLE, last_jump=HORIZON, seed=seed)
        policy, caught = shoal.ClusterMixture(100, 10, seed=seed), np.full(100, -1)

        def note(_: int, policy: Any = policy, caught: Any = caught, jumps: Any = world.jumps_after) -> None:
            forgot = policy.forgot
            caught[(caught < 0) & (forgot > jumps)] = forgot[(caught < 0) & (forgot > jumps)]

        trace = shoal.simulate(policy, world, horizon=HORIZON, seed=seed, points=1_000, progress=note)
        runs[seed] = world, trace, caught
        paid = regrets(world, trace)
        for agent in np.flatnonzero(world.jumps_after <= HORIZON).tolist():
            own = np.flatnonzero(trace.agents == agent) + 1  # its rounds
            after = own[own > world.jumps_after[agent]]
            if len(after) < 40:
                continue  # jumps too close to the end to be caught
            if caught[agent] < 0:
                missed.append(float(paid[after - 1].sum()))
            else:
                waits[seed, agent] = int(np.sum(after <= caught[agent]))
    usual = float(np.median(list(waits.values())))
    seed, agent = min(waits, key=lambda who: (abs(waits[who] - usual), abs(_jump(runs, who) - HORIZON // 2)))
    world, trace, caught = runs[seed]
    plain = shoal.ClusterMixture(100, 10, seed=seed, drift=False)
    other = shoal.simulate(plain, world, horizon=HORIZON, seed=seed)
    for label, run, color in (("drift=False", other, RED), ("default", trace, BLUE)):
        mine = run.agents == agent
        left.plot(np.flatnonzero(mine) + 1, np.cumsum(regrets(world, run)[mine]), color=color, label=label)
    left.axvline(world.jumps_after[agent], color=GREY, linestyle="--", label="jumps")
    left.axvline(caught[agent], color=BLUE, linestyle=":", label="caught")
    left.set(title="One agent that jumps to another cluster", xlabel="round", ylabel="its regret")
    thousands(left, "xy")
    left.legend(frameon=False)
    total, steps = len(waits) + len(missed), np.sort(list(waits.values()))
    right.step(steps, np.arange(1, len(steps) + 1) / total, where="post", color=BLUE)
    right.set(
        title=f"{total} agents that jump, {JUMP_RUNS} runs",
        xlabel="own pulls since the jump",
        ylabel="share that was caught",
        ylim=(0.0, 1.02),
        xlim=(0, 100),
    )
    for ax in (left, right):
        ax.grid(alpha=0.25)
    print(f"caught {len(waits)} of {total}, after {usual:.0f} pulls in the median;")
    cost = f"median {np.median(missed):.0f}, worst {max(missed):.0f}"
    print(f"regret after the jump of those that were not: {cost}")
    return figure


def _jump(runs: dict[int, Any], who: tuple[int, int]) -> int:
    return int(runs[who[0]][0].jumps_after[who[1]])


DELAYS: dict[str, Any] = {
    "0": 0,
    "100 rounds": 100,
    "2,000 rounds": 2_000,
    "geometric, mean 500": ("geometric", 500),
    "uniform in 0–2,000": ("uniform", 0, 2_000),
}
LATE: dict[str, Callable[[int, int], shoal.Policy]] = {
    "ClusterMixture": lambda n, seed: shoal.ClusterMixture(n, 10, seed=seed),
    "BASS": lambda n, seed: shoal.BASS(n, 10, alpha=0.3, delta=0.1, param_norm=1.0, seed=seed),
    "Ind": lambda n, seed: shoal.Independent(n, 10, alpha=0.6, seed=seed),
}


class Unaware:
    """A policy that is not told of pulls whose rewards are late."""

    def __init__(self, policy: shoal.Policy) -> None:
        self.select, self.update = policy.select, policy.update
        self.n_agents, self.dim = policy.n_agents, policy.dim


def delays(n_agents: int, runs: int, first: int, names: Sequence[str]) -> None:
    """Print regret with late rewards, and how it differs from that of the same policy, unaware."""
    print(f"N={n_agents:,}, M=3, Δ=1.27, {runs} runs of {HORIZON:,} rounds, seeds from {first:,} on")
    print(f"| delay | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")
    for title, delay in DELAYS.items():
        cells = []
        for name in names:
            aware, unaware = [], []
            for seed in range(first, first + runs):
                world = shoal.SyntheticClusters(n_agents, 10, 3, ANGLE, seed=seed)
                for found, policy in (
                    (aware, LATE[name](n_agents, seed)),
                    (unaware, Unaware(LATE[name](n_agents, seed))),
                ):
                    if delay != 0 or found is aware:
                        trace = shoal.simulate(
                            policy, world, horizon=HORIZON, seed=seed, delay=delay, points=1
                        )
                        found.append(trace.final_regret)
            text = f"{np.mean(aware):,.0f}"
            if unaware:
                s = summarize(np.array(aware) - np.array(unaware))
                text += f" ({s.mean:+,.0f} ± {s.high - s.mean:,.0f})".replace("-", "−")
            cells.append(text)
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def regrets(world: shoal.Environment, trace: shoal.Trace) -> Vector:
    """Regret of each pull; one agent pulls in each round."""
    rounds = np.arange(1, len(trace.agents) + 1)
    means = world.rewards_in(world.arms[None], rounds, trace.agents, first=1)
    return np.asarray(means.max(axis=1) - means[rounds - 1, trace.choices])


def table(out: Path) -> None:
    """Write the page's table from the results in `out`."""
    found = load_results(out)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    if not after:
        raise ValueError(f"{PAGE} has no lines {BEGIN.strip()!r} and {END.strip()!r}")
    judged = contests(found.table, found.rows)
    informed = {row.environment: row for row in found.rows if row.method == "informed"}
    lines = [
        f"{found.spec.runs} runs of {found.spec.horizon:,} rounds on seeds from {found.spec.seed:,} on.",
        "",
        "| scenario | Oracle | Ind (α) | BASS (α) | ClusterMixture: mean (median, worst) | minus Ind "
        "| below Ind | minus BASS | below BASS | worst BASS | over Oracle + Informed |",
        "|---|--:|--:|--:|--:|--:|---|--:|---|--:|--:|",
    ]
    for contest in judged:
        worst = [_worst(found.table, row) for row in (contest.ours, contest.bass)]
        s = contest.ours.regret
        against_ind, against_bass = contest.against(contest.independent), contest.against(contest.bass)
        cells = [
            contest.title,
            "–" if contest.oracle is None else f"{contest.oracle.regret.mean:,.0f}",
            *(_tuned(row) for row in (contest.independent, contest.bass)),
            f"{s.mean:,.0f} ({s.median:,.0f}, {worst[0]})",
            *(_difference(against_ind), verdict(against_ind)),
            *(_difference(against_bass), verdict(against_bass), worst[1]),
            _yardstick(contest, informed.get(contest.ours.environment)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(_tally(judged, name) for name in ("Ind", "BASS"))]
    for contest in judged:
        if contest.defaults is not None:
            minus = _difference(contest.against(contest.defaults))
            lines.append(f"- {contest.title}: {contest.ours.label} minus {contest.defaults.label}: {minus}.")
    write_whole(PAGE, (before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + after).encode())
    print(f"wrote the table of {len(judged)} scenarios into {PAGE}")


def _worst(found: Any, row: SummaryRow | None) -> str:
    return "–" if row is None else f"{column(found, 'final_regret', row.cell).max():,.0f}"


def _tuned(row: SummaryRow | None) -> str:
    return "–" if row is None else f"{row.regret.mean:,.0f} ({row.alpha:g})"


def _difference(pair: Paired | None) -> str:
    if pair is None:
        return "–"
    return f"{pair.difference:+,.0f} ± {pair.high - pair.difference:,.0f}".replace("-", "−")


def _yardstick(contest: Contest, informed: SummaryRow | None) -> str:
    if informed is None or contest.oracle is None:
        return "–"
    return f"{contest.ours.regret.mean / (contest.oracle.regret.mean + informed.regret.mean):.2f}"


def _tally(judged: Sequence[Contest], name: str) -> str:
    """How often ours is below a rival, above it, or neither for sure."""
    rivals = [contest.bass if name == "BASS" else contest.independent for contest in judged]
    words = [verdict(contest.against(rival)) for contest, rival in zip(judged, rivals, strict=True)]
    lost = [contest.title for contest, word in zip(judged, words, strict=True) if word == "no"]
    counts = f"below in {words.count('yes')}, unclear in {words.count('unclear')}, above in {len(lost)}"
    return f"- Against {name}: {counts}{': ' + '; '.join(lost) if lost else ''}."


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pictures")
    commands.add_parser("table").add_argument("results", type=Path)
    late = commands.add_parser("delays")
    late.add_argument("--agents", type=int, default=100)
    late.add_argument("--runs", type=int, default=8)
    late.add_argument("--seed", type=int, default=41_000)
    late.add_argument("--policy", action="append", choices=LATE)
    options = parser.parse_args()
    if options.command == "pictures":
        pictures()
    elif options.command == "delays":
        delays(options.agents, options.runs, options.seed, options.policy or tuple(LATE))
    else:
        table(options.results)


if __name__ == "__main__":
    main()
