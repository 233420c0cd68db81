"""Measures every figure of docs/performance.md again: `make bench` writes the page's tables.

Ratios to the naive twins of tests/reference.py, measured in the same process, are what to compare between
machines. Points of growth run in processes of their own, so that each peak of memory is its own.

    python benchmarks/bench.py            everything; compiles all policies from an empty cache, too: minutes
    python benchmarks/bench.py --crowds   crowds alone
"""

import argparse
import copy
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np

import shoal
from shoal.core.jit.compiled import OPTIONS
from shoal.core.policies.registry import policy_class
from shoal.core.policy.steps import observe, revise, select
from shoal.lab import benchmark

ROOT = Path(__file__).parents[1]
PAGE, PLOT, CROWD_PLOT, RESULTS = (
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "performance-growth.png",
    ROOT / "docs" / "performance-crowd.png",
    ROOT / "benchmarks" / "results.json",
)
BEGIN, END = "<!-- written by make bench -->\n", "<!-- until here -->\n"
SCENARIOS = {"0.2": math.pi / 16, "1.27": 7 * math.pi / 16}
POLICIES = (
    "independent", "oracle", "dynucb", "cmlb", "club", "sclub", "bass", "cluster_mixture"
)  # fmt: skip
MEMORY_LIMIT = 12e9
GROWTH: dict[str, tuple[int, ...]] = {
    "agents": (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000),
    "dim": (2, 5, 10, 20, 50, 100),
    "arms": (5, 15, 50, 150, 500, 1_000),
    "rounds": (1_000, 10_000, 100_000, 1_000_000),
}
LETTERS = {"agents": "N", "dim": "d", "arms": "K", "rounds": "T"}
POINT_SECONDS = 12.0
PULLS_PER_AGENT = 10
"""Rounds per agent where N grows: young agents cost more than old ones, so all must have the same age."""
CROWD: tuple[tuple[str, str, int, int], ...] = (
    *(("bass", world, n, 20_000) for world in ("Δ=1.27", "Gaussian") for n in (100, 1_000)),
    *(("bass", world, 10_000, rounds) for world in ("Δ=1.27", "Gaussian") for rounds in (20_000, 50_000)),
    *(("bass", world, 100_000, rounds) for world in ("Δ=1.27", "Gaussian") for rounds in (4_000, 20_000)),
    ("bass", "Δ=1.27", 1_000_000, 4_000),
    *(("cluster_mixture", "Δ=1.27", n, 20_000) for n in (100, 1_000, 10_000, 100_000, 1_000_000)),
    *(("independent", "Δ=1.27", n, 20_000) for n in (100, 1_000, 10_000, 100_000, 1_000_000)),
)
"""Policy, scenario, agents and rounds of the table of crowds."""
CROWD_SECONDS, CROWD_REPEATS = 5.0, 3
"""Points of crowds are the best of three runs, or of as many as begin within five seconds."""
LATER_ROUNDS = 4_000
"""Further rounds that are measured at the end, when the memory is in use."""
Figures = dict[str, Any]


def paper_workload(horizon: int) -> Figures:
    """Rounds per second of every policy, and of its naive twin in the first rounds."""
    print(f"N=100, d=10, K=15, asynchronous, T={horizon:,}, one thread\n")
    print(f"{'policy':16} {'gap':>5} {'rounds/s':>10} {'naive':>8} {'ratio':>8}")
    figures: Figures = {}
    for gap, angle in SCENARIOS.items():
        world = shoal.SyntheticClusters(100, 10, 3, angle, seed=0)
        cases: list[tuple[str, str, Figures]] = [(name, name, {}) for name in POLICIES]
        cases.append(("bass β²", "bass", {"radius": "beta_squared"}))
        for label, name, more in cases:
            took = benchmark.best_seconds(
                lambda name=name, more=more, world=world: benchmark.build(name, world, **more),  # type: ignore[misc]
                world,
                horizon,
                3,
                points=200,
            )
            fast, naive = horizon / took, naive_rate(name, world, 60)
            print(f"{label:16} {gap:>5} {fast:>10,.0f} {naive:>8,.0f} {fast / naive:>8,.0f}")
            figures[f"{label} {gap}"] = {"compiled": fast, "naive": naive, "ratio": fast / naive}
    return figures


def naive_rate(name: str, world: shoal.Environment, horizon: int) -> float:
    """Rounds per second of the naive twin."""
    sys.path.insert(0, str(ROOT))
    from tests import reference

    own = {key: value for key, value in benchmark.build(name, world).parameters.items() if key != "seed"}
    for key in ("epsilon", "radius", "noise_scale"):  # as the twins have them anyway
        own.pop(key, None)
    if name == "cluster_mixture":
        own["seed"] = 0
    if name in ("oracle", "dynucb"):
        own["labels"] = world.labels if name == "oracle" else np.arange(100) % 3
    twin = getattr(reference, policy_class(name).__name__)(100, 10, **own)
    rng = np.random.default_rng(0)
    schedule = [[int(agent)] for agent in rng.integers(100, size=horizon)]
    start = time.thread_time()
    reference.run(
        twin, schedule, world.arms, lambda agent, t: world.mean_rewards[agent], rng.standard_normal(horizon)
    )
    return horizon / (time.thread_time() - start)


def growth_point(sizes: dict[str, int]) -> Figures:
    """Cost and peak memory of BASS for some sizes, in this process; as many rounds as time allows."""
    wanted = sizes["rounds"]
    world = shoal.GaussianClusters(sizes["agents"], sizes["dim"], 3, n_arms=sizes["arms"], seed=0)
    benchmark.seconds(benchmark.build("bass", world), world, 1)  # loads the compiled code
    policy = benchmark.build("bass", world)
    rounds, took = 0, 0.0
    while rounds < wanted and took < POINT_SECONDS:
        block = min(max(rounds, 100), wanted - rounds)
        took += benchmark.seconds(policy, world, block)
        rounds += block
    return {
        "microseconds": took / rounds * 1e6,
        "rounds": rounds,
        "complete": rounds == wanted,
        "state_bytes": policy.nbytes,
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """Peak memory of this process. On Linux `ru_maxrss` would begin with its parent's."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def growth() -> Figures:
    """BASS against N, d, K and T, each point in a process of its own."""
    usual = {"agents": 100, "dim": 10, "arms": 15, "rounds": 20_000}
    figures: Figures = {}
    for size, values in GROWTH.items():
        print(f"\n{LETTERS[size]:>9} {'µs/round':>9} {'rounds':>9} {'state MB':>9} {'peak MB':>9}")
        figures[size] = {}
        for value in values:
            rounds = PULLS_PER_AGENT * value if size == "agents" else usual["rounds"]
            point = in_own_process("growth_point", usual | {"rounds": rounds, size: value})
            figures[size][str(value)] = point
            print(f"{value:>9,} {point_row(point)}")
        figures[size]["slope"] = slope(figures[size])
    return figures


def crowds() -> Figures:
    """What a round, the memory and a snapshot cost against N, each point in a process of its own."""
    figures: Figures = {}
    print(
        f"\n{'policy':16} {'world':>9} {'N':>9} {'rounds':>7} µs, times, later, MB, file MB, save s, load s"
    )
    for name, world, n, rounds in CROWD:
        point = in_own_process("crowd_point", {"name": name, "world": world, "n": n, "rounds": rounds})
        figures[f"{name}|{world}|{n}|{rounds}"] = point
        row = " ".join(crowd_row(point))
        print(f"{name:16} {world:>9} {n:>9,} {rounds:>7,} {row}", flush=True)
    return figures


def crowd_point(case: Figures) -> Figures:
    """Cost of a round, also as a multiple of Independent's with 100 agents; memory; saving and loading."""
    name, n, rounds = case["name"], case["n"], case["rounds"]
    few = shoal.SyntheticClusters(100, 10, 3, SCENARIOS["1.27"], seed=0)
    unit = benchmark.best_seconds(lambda: benchmark.build("independent", few), few, 20_000, 5) / 20_000
    world: shoal.Environment = shoal.GaussianClusters(n, 10, 3, n_arms=15, seed=0)
    if case["world"] != "Gaussian":
        world = shoal.SyntheticClusters(n, 10, 3, SCENARIOS["1.27"], seed=0)
    some = shoal.SyntheticClusters(min(n, 1_000), 10, 3, SCENARIOS["1.27"], seed=0)
    benchmark.seconds(benchmark.build(name, some), some, 1)  # loads the compiled code
    times: list[float] = []
    while not times or (len(times) < CROWD_REPEATS and sum(times) < CROWD_SECONDS):
        policy = None  # one at a time in memory
        policy = benchmark.build(name, world)
        times.append(benchmark.seconds(policy, world, rounds))
    took, peak = min(times) / rounds, peak_bytes()
    start = time.thread_time()
    shoal.simulate(policy, world, horizon=LATER_ROUNDS, seed=1, points=1)
    later = (time.thread_time() - start) / LATER_ROUNDS
    figures = {"microseconds": took * 1e6, "times": took / unit, "later": later * 1e6, "peak_bytes": peak}
    if 5 * policy.nbytes > MEMORY_LIMIT:  # a load holds the file, two states and what checks them
        return figures
    with tempfile.TemporaryDirectory() as folder:
        path, start = Path(folder) / "policy", time.thread_time()
        policy.save(path)
        saved, size = time.thread_time(), path.stat().st_size
        type(policy).load(path)
        loaded = time.thread_time()
    return {**figures, "file_bytes": size, "save": saved - start, "load": loaded - saved}


def crowd_row(point: Figures) -> list[str]:
    if "problem" in point:
        return [str(point["problem"]), *[""] * 6]
    return [
        f"{point['microseconds']:,.1f}",
        f"{point['times']:,.0f}",
        f"{point['later']:,.1f}" if "later" in point else "–",
        f"{point['peak_bytes'] / 1e6:,.0f}",
        *(
            [f"{point['file_bytes'] / 1e6:,.1f}", f"{point['save']:.2f}", f"{point['load']:.2f}"]
            if "load" in point
            else ["–"] * 3
        ),
    ]


def in_own_process(function: str, sizes: Figures) -> Figures:
    """Call a function of this module in a fresh process with limited memory."""
    code = (
        f"import sys, json; sys.path.insert(0, {str(Path(__file__).parent)!r}); import bench\n"
        f"bench.limit_memory()\nprint(json.dumps(bench.{function}({sizes!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        return dict(json.loads(done.stdout))
    if "MemoryError" not in done.stderr:
        raise RuntimeError(done.stderr)
    said = re.search(r"needs at least [\d.,]+ GB", done.stderr)  # a policy that knows beforehand
    return {"problem": said[0] if said else f"needs more than {MEMORY_LIMIT / 1e9:.0f} GB"}


def limit_memory() -> None:
    """Let allocations of this process fail beyond the limit."""
    if hasattr(resource, "RLIMIT_DATA"):
        resource.setrlimit(resource.RLIMIT_DATA, (int(MEMORY_LIMIT), int(MEMORY_LIMIT)))


def point_row(point: Figures, separator: str = " ") -> str:
    if "problem" in point:
        return str(point["problem"]) + 3 * separator
    return separator.join(
        [
            f"{point['microseconds']:>9,.1f}",
            f"{point['rounds']:>9,}",
            f"{point['state_bytes'] / 1e6:>9,.1f}",
            f"{point['peak_bytes'] / 1e6:>9,.0f}",
        ]
    )


def measured(points: Figures) -> list[tuple[float, Figures]]:
    """The points that ran, by size."""
    return [
        (float(size), point) for size, point in points.items() if size != "slope" and "problem" not in point
    ]


def slope(points: Figures) -> float:
    """Exponent p of `cost ∝ size^p`, by least squares of logarithms, over points with all their rounds."""
    rows = [row for row in measured(points) if row[1]["complete"]]
    x, y = np.log([size for size, _ in rows]), np.log([point["microseconds"] for _, point in rows])
    return float(np.polyfit(x, y, 1)[0])


@numba.njit(**OPTIONS)  # type: ignore[untyped-decorator, unused-ignore]
def _choose_all(state: Any, agents: Any, arms: Any, t: int) -> int:
    total = 0
    for agent in agents:
        total += select(state, agent, arms, t)
    return total


@numba.njit(**OPTIONS)  # type: ignore[untyped-decorator, unused-ignore]
def _learn_all(
    state: Any, agents: Any, arms: Any, choices: Any, rewards: Any, t: int, revising: bool
) -> None:
    for event in range(agents.shape[0]):
        observe(state, agents[event], arms[choices[event]], rewards[event], t)
        if revising:
            revise(state, agents[event], t)


def steps() -> Figures:
    """Microseconds of each step of a round of BASS, in rounds 50,001 to 60,000 of the paper's workload."""
    figures: Figures = {}
    for gap, angle in SCENARIOS.items():
        world = shoal.SyntheticClusters(100, 10, 3, angle, seed=0)
        policy = benchmark.build("bass", world)
        shoal.simulate(policy, world, horizon=50_000, seed=0)
        twin = copy.deepcopy(policy.state)
        trace = shoal.simulate(policy, world, horizon=10_000, seed=1)
        arms, events = np.array(world.arms), (trace.choices, trace.rewards)

        def best(function: Any, *arguments: Any, state: Any = twin) -> float:
            times = []
            for _ in range(4):
                own = copy.deepcopy(state)
                start = time.thread_time()
                function(own, *arguments)
                times.append(time.thread_time() - start)
            return min(times[1:]) / 10_000 * 1e6

        learn = best(_learn_all, trace.agents, arms, *events, 60_000, False)
        both = best(_learn_all, trace.agents, arms, *events, 60_000, True)
        figures[gap] = {
            "select": best(_choose_all, trace.agents, arms, 60_000),
            "observe": learn,
            "revise": max(both - learn, 0.0),
        }
    return figures


def synchronous() -> Figures:
    """Microseconds per pull when one agent pulls in a round, and when all do."""
    world = shoal.SyntheticClusters(100, 10, 3, math.pi / 16, seed=0)

    def pull(pulling: str, rounds: int, pulls: int) -> float:
        took = benchmark.best_seconds(
            lambda: benchmark.build("bass", world), world, rounds, 3, pulling=pulling
        )
        return took / pulls * 1e6

    return {
        "asynchronous": pull("asynchronous", 30_000, 30_000),
        "synchronous": pull("synchronous", 300, 30_000),
    }


def online() -> Figures:
    """Microseconds of `select` and `update` from Python, best of three."""
    world = shoal.SyntheticClusters(100, 10, 3, math.pi / 16, seed=0)
    return {
        name: min(
            benchmark.online_microseconds(benchmark.build(name, world), world, 20_000) for _ in range(3)
        )
        for name in ("independent", "bass")
    }


SIMULATE = (
    "import time; start = time.process_time(); import shoal; imported = time.process_time()\n"
    "world = shoal.SyntheticClusters(100, 10, 3, 1.0, seed=0)\n"
    "shoal.simulate(shoal.BASS(100, 10, alpha=0.3, delta=0.1), world, horizon=100, seed=0)\n"
    "print(imported - start, time.process_time() - start)"
)
COMPILE = (
    "import time; start = time.process_time(), time.perf_counter()\n"
    "import shoal; from shoal import benchmark\n"
    "world = shoal.SyntheticClusters(100, 10, 3, 1.0, seed=0)\n"
    f"for name in {POLICIES!r}: benchmark.seconds(benchmark.build(name, world), world, 1)\n"
    "print(time.process_time() - start[0], time.perf_counter() - start[1])"
)


def start_up() -> Figures:
    """Processor seconds of an import, of a second process that simulates, and of compiling everything."""

    def run(program: str, **environment: str) -> list[float]:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **environment},
        )
        return [float(word) for word in done.stdout.split()]

    imported, simulated = np.min([run(SIMULATE) for _ in range(4)][1:], axis=0)
    with tempfile.TemporaryDirectory() as empty:
        cold, wall = run(COMPILE, NUMBA_CACHE_DIR=empty)
    return {
        "import": imported,
        "second process: import and simulate BASS": simulated,
        "cold compilation of all policies": cold,
        "the same by the clock": wall,
    }


def draw(figures: Figures) -> None:
    """Microseconds and peak memory against each size, on logarithmic axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from shoal.reporting.charts import BLUE, DPI, GREY, ORANGE

    figure = Figure(figsize=(10.0, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(GROWTH), sharey="row", squeeze=False)
    for column, size in enumerate(GROWTH):
        rows = measured(figures[size])
        x = [value for value, _ in rows]
        time_axis, memory_axis = axes[0][column], axes[1][column]
        cost = [point["microseconds"] for _, point in rows]
        time_axis.plot(x, cost, color=ORANGE, marker="*", markersize=9, linewidth=2.2)
        short = [(value, point["microseconds"]) for value, point in rows if not point["complete"]]
        if short:
            time_axis.plot(*zip(*short, strict=True), "o", color=GREY, fillstyle="none", markersize=13)
        if size in ("agents", "arms"):
            linear = [cost[0] * value / x[0] for value in x]
            time_axis.plot(x, linear, color=GREY, linestyle=(0, (4, 2)), linewidth=1.0)
        time_axis.set_title(f"{LETTERS[size]}: slope {figures[size]['slope']:.2f}", fontsize=11)
        peak = [point["peak_bytes"] / 1e6 for _, point in rows]
        memory_axis.plot(x, peak, color=BLUE, marker="o", markersize=5, linewidth=1.5)
        memory_axis.set_xlabel(LETTERS[size])
        for ax in (time_axis, memory_axis):
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.grid(alpha=0.25)
    axes[0][0].set_ylabel("µs a round (dashed: linear)")
    axes[1][0].set_ylabel("peak memory, MB")
    lowest = min(point["microseconds"] for size in GROWTH for _, point in measured(figures[size]))
    axes[0][0].set_ylim(bottom=lowest / 2)
    figure.savefig(PLOT, dpi=DPI, metadata={"Software": None})


def draw_crowds(points: Figures) -> None:
    """Microseconds, peak memory and recovery from a snapshot, against the number of agents."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from shoal.reporting.charts import BLUE, DPI, GREY, ORANGE

    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    times, memory, recovery = figure.subplots(1, 3)
    lines = (
        ("BASS, Δ=1.27", "bass", "Δ=1.27", ORANGE, "*"),
        ("BASS, Gaussian", "bass", "Gaussian", ORANGE, "o"),
        ("ClusterMixture", "cluster_mixture", "Δ=1.27", BLUE, "s"),
        ("Independent", "independent", "Δ=1.27", GREY, "x"),
    )
    for label, name, world, color, marker in lines:
        chosen = {}
        for key, point in points.items():
            policy, where, n, rounds = key.split("|")
            if (policy, where, rounds) == (name, world, "20000") and "problem" not in point:
                chosen[int(n)] = point
        style = "--" if world == "Gaussian" else "-"
        for ax, key, unit in (
            (times, "microseconds", 1.0), (memory, "peak_bytes", 1e6), (recovery, "load", 1.0)
        ):  # fmt: skip
            values = {n: point[key] / unit for n, point in chosen.items() if key in point}
            ax.plot(
                *zip(*values.items(), strict=True), color=color, marker=marker, linestyle=style, label=label
            )
    for ax, label in (
        (times, "µs a round, over 20,000 rounds"),
        (memory, "peak memory, MB"),
        (recovery, "seconds to load a snapshot"),
    ):
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("N")
        ax.set_ylabel(label)
        ax.grid(alpha=0.25)
    times.legend(fontsize=9)
    figure.savefig(CROWD_PLOT, dpi=DPI, metadata={"Software": None})


def crowd_table(points: Figures) -> list[str]:
    """The table of crowds."""
    lines = [
        "",
        "**Crowds**, d=10, K=15: processor time of a round from the first on (the best of up to "
        f"{CROWD_REPEATS}), also as a multiple of one of Independent with 100 agents in the same process, "
        f"and in the {LATER_ROUNDS:,} rounds after that; peak memory of the process; a saved policy, and the "
        "processor seconds of saving and loading it, checks included.",
        "",
        "![µs a round, peak memory and recovery against N](performance-crowd.png)",
        "",
        "| policy | scenario | N | rounds | µs a round | times Independent | µs later | peak, MB | file, MB "
        "| save, s | load, s |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for key, point in points.items():
        name, world, n, rounds = key.split("|")
        cells = [name, world, f"{int(n):,}", f"{int(rounds):,}", *crowd_row(point)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def tables(figures: Figures) -> str:
    """The generated part of the page."""
    made, growing = figures["machine"], figures["growth"]
    lines = [
        f"{made['processor']}, {made['cpus']} processors, {made['system']}; Python {made['python']}, "
        f"NumPy {made['numpy']}, Numba {made['numba']}. Processor time of one thread.",
        "",
        f"**The paper's workload:** N=100, d=10, K=15, asynchronous, T={figures['horizon']:,}, "
        "200 points of curves.",
        "",
        "| policy | gap | rounds/s | naive twin | ratio |",
        "|---|---|--:|--:|--:|",
    ]
    for case, row in figures["rounds_per_second"].items():
        policy, gap = case.rsplit(" ", 1)
        lines.append(
            f"| {policy} | {gap} | {row['compiled']:,.0f} | {row['naive']:,.0f} | {row['ratio']:,.0f} |"
        )
    lines += [
        "",
        "**Growth of BASS**, Gaussian scenario, from N=100, d=10, K=15, T=20,000; "
        f"T={PULLS_PER_AGENT}·N where N grows, and "
        f"whatever {POINT_SECONDS:.0f} s allow where that takes longer. Peak memory is the whole process's, "
        "Python and compiler included. The slope is the exponent of a power of the size, fitted to the "
        "points that had all their rounds.",
        "",
        "![µs a round and peak memory against N, d, K and T](performance-growth.png)",
        "",
        "Circled: points with fewer rounds, so that their agents are younger.",
    ]
    for size, points in growing.items():
        lines += [
            "",
            f"| {LETTERS[size]} | µs a round | rounds | state, MB | peak, MB |",
            "|--:|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {int(value):,} | {' | '.join(part.strip() for part in point_row(point, '|').split('|'))} |"
            for value, point in points.items()
            if value != "slope"
        ]
        lines += ["", f"Slope {points['slope']:.2f}."]
    lines += crowd_table(figures["crowds"])
    pulls, calls = figures["microseconds_per_pull"], figures["online_microseconds"]
    lines += [
        "",
        f"**Synchronous rounds:** {pulls['synchronous']:.2f} µs a pull when all 100 agents pull in each "
        f"round, {pulls['asynchronous']:.2f} when one does.",
        "",
        f"**Online calls**, `select` and `update` together from Python, checks included: BASS "
        f"{calls['bass']:.1f} µs, Independent {calls['independent']:.1f} µs.",
        "",
        "**Start-up**, seconds: "
        + "; ".join(f"{what} {took:.2f}" for what, took in figures["start_up_seconds"].items())
        + ".",
        "",
        "**Steps of a BASS round**, µs, in rounds 50,001 to 60,000:",
        "",
        "| gap | select | observe | revise |",
        "|---|--:|--:|--:|",
        *(
            f"| {gap} | {row['select']:.2f} | {row['observe']:.2f} | {row['revise']:.2f} |"
            for gap, row in figures["steps_microseconds"].items()
        ),
        "",
    ]
    return "\n".join(lines)


def write_page(figures: Figures) -> None:
    """Put the tables between the page's two marks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + "\n" + tables(figures) + "\n" + END + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--horizon", type=int, default=50_000, help="rounds of the paper's workload")
    parser.add_argument(
        "--page", action="store_true", help="measure nothing, and write the page from what was measured last"
    )
    parser.add_argument(
        "--crowds", action="store_true", help="measure crowds alone, and keep the other figures"
    )
    options = parser.parse_args()
    begin = time.perf_counter()
    figures: Figures = {"machine": benchmark.machine(), "horizon": options.horizon}
    if options.crowds or options.page:
        figures = json.loads(RESULTS.read_text())
    else:
        measure_all(figures)
    if not options.page:
        figures["crowds"] = crowds()
    draw_crowds(figures["crowds"])
    write_page(figures)
    RESULTS.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    print(f"wrote {PAGE}, {PLOT.name} and {RESULTS}, in {time.perf_counter() - begin:.0f} s")


def measure_all(figures: Figures) -> None:
    """Measure everything but crowds."""
    figures["rounds_per_second"] = paper_workload(figures["horizon"])
    figures["growth"] = growth()
    for name, section in (
        ("microseconds_per_pull", synchronous),
        ("online_microseconds", online),
        ("steps_microseconds", steps),
        ("start_up_seconds", start_up),
    ):
        figures[name] = section()
        print(f"\n{name}: {json.dumps(figures[name], indent=2)}")
    draw(figures["growth"])


if __name__ == "__main__":
    main()
