"""The commands: parse, call the library, print."""

import contextlib
import math
import shlex
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:  # what these import takes seconds, which `shoal --help` need not
    from shoal.benchmark import Cost
    from shoal.experiments.runner import Progress
    from shoal.experiments.spec import ExperimentSpec
    from shoal.theory import Prediction

app = typer.Typer(
    name="shoal",
    help="Many agents, each with a linear bandit, that learn from whom to borrow samples and when to stop.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

data_app = typer.Typer(help="Fetch, look into and prepare the real data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

LINE_SECONDS = 10.0

Out = Annotated[Path | None, typer.Option(help="Directory of the results; made if it is not there.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Number of threads. [default: number of processors]")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the first run, instead of the spec's.")]
Only = Annotated[
    str | None, typer.Option(help="Compute only the cells whose id matches, e.g. 'w7/bass*a0.3'.")
]
Where = Annotated[str, typer.Option("--executor", help="threads, or dask:ADDRESS for a Dask scheduler.")]


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"shoal {installed('shoal')}")
        raise typer.Exit


@app.command()
def reproduce(
    preset: Annotated[str, typer.Argument(help="quick, tables, paper or beyond.")] = "quick",
    out: Out = None,
    jobs: Jobs = None,
    seed: Seed = None,
    only: Only = None,
    executor: Where = "threads",
) -> None:
    """Run the paper's experiments and write a report. Run it again to continue where it stopped."""
    from shoal.experiments.spec import load_preset

    spec = load_preset(preset, seed=seed)
    _run(spec, out or Path("results") / preset, jobs=jobs, only=only, executor=executor)


@app.command()
def run(
    spec: Annotated[Path, typer.Argument(help="A TOML file; see docs/experiments.md.")],
    out: Out = None,
    jobs: Jobs = None,
    seed: Seed = None,
    only: Only = None,
    executor: Where = "threads",
) -> None:
    """Run your own grid of environments, policies, parameters and seeds, and write a report."""
    from shoal.experiments.spec import directory_name, load_spec

    loaded = load_spec(spec, seed=seed)
    _run(loaded, out or Path("results") / directory_name(loaded), jobs=jobs, only=only, executor=executor)


@app.command()
def report(directory: Annotated[Path, typer.Argument(help="Where the results are.")]) -> None:
    """Write the report on the results in a directory again."""
    from shoal.experiments.results import load_results

    load_results(directory)  # says what is wrong with them, if something is
    _write_report(directory)


@app.command()
def simulate(
    policy: Annotated[str, typer.Option(help="Name of a policy; see `shoal list`.")] = "bass",
    env: Annotated[str, typer.Option(help="Name of an environment; see `shoal list`.")] = "synthetic",
    alpha: Annotated[float, typer.Option(min=0.0, help="Width of the confidence bonus.")] = 0.3,
    horizon: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 50_000,
    runs: Annotated[int, typer.Option(min=1, help="Number of runs, each with the next seed.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run.")] = 0,
    pulling: Annotated[
        str, typer.Option(help="Who pulls in a round: asynchronous, synchronous or zipf.")
    ] = "asynchronous",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", help="Of the policy, e.g. delta=0.9. Can be repeated."),
    ] = None,
    env_parameter: Annotated[
        list[str] | None, typer.Option("--env-parameter", "-e", help="Of the environment, e.g. n_agents=50.")
    ] = None,
) -> None:
    """Run one policy in one environment and show a summary. What is not given is as in the preset "paper"."""
    from shoal.experiments.runner import play_single
    from shoal.experiments.spec import single

    spec = single(
        policy,
        env,
        alpha=alpha,
        horizon=horizon,
        runs=runs,
        seed=seed,
        pulling=pulling,
        policy_parameters=dict(_assignment("--parameter", text) for text in parameter or []),
        environment_parameters=dict(_assignment("--env-parameter", text) for text in env_parameter or []),
    )
    _print_runs(play_single(spec))


@app.command()
def bounds(
    dim: Annotated[int, typer.Option(min=1, help="Dimension of the arms.")],
    gap: Annotated[float, typer.Option(help="Distance of the parameters of two agents, or clusters.")],
    delta: Annotated[float, typer.Option(help="Confidence level, in (0, 1).")],
    agents: Annotated[int, typer.Option(min=2, help="Number of agents.")],
    horizon: Annotated[int, typer.Option(min=1, help="Pulls of all agents together.")] = 50_000,
    gamma: Annotated[float, typer.Option(help="Scale of the ellipsoids.")] = 2.0,
    noise_scale: Annotated[float, typer.Option(help="Scale of the noise.")] = 1.0,
    param_norm: Annotated[
        float, typer.Option(help="Bound on the norm of the parameters, in the radius.")
    ] = 1.0,
    clusters: Annotated[int, typer.Option(min=1, help="Number of clusters, of equal size.")] = 2,
    epsilon: Annotated[float, typer.Option(help="Probability of a uniformly drawn arm.")] = 1.0,
) -> None:
    """Show what the theory predicts, before anything is run. docs/theory.md says what holds of it."""
    from shoal.theory import predictions

    rows = predictions(
        dim=dim,
        gap=gap,
        delta=delta,
        n_agents=agents,
        horizon=horizon,
        gamma=gamma,
        noise_scale=noise_scale,
        param_norm=param_norm,
        n_clusters=clusters,
        epsilon=epsilon,
    )
    _print_predictions(rows)


@app.command()
def bench(
    agents: Annotated[int, typer.Option(min=1, help="Number of agents.")] = 100,
    dim: Annotated[int, typer.Option(min=1, help="Dimension of the arms.")] = 10,
    arms: Annotated[int, typer.Option(min=1, help="Number of arms.")] = 15,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to measure.")] = 20_000,
    policy: Annotated[
        list[str] | None, typer.Option(help="Name of a policy; can be repeated. [default: all]")
    ] = None,
) -> None:
    """Measure what a round of each policy costs here, for your own sizes. docs/performance.md has ours."""
    from rich.console import Console

    from shoal.benchmark import measure

    terminal = Console(stderr=True)  # shows nothing where there is no terminal
    with terminal.status("starting") as status:
        costs = measure(
            agents=agents,
            dim=dim,
            arms=arms,
            rounds=rounds,
            policies=tuple(policy or ()),
            progress=lambda name: status.update(f"measuring {name} (compiled first, if need be)"),
        )
    _print_costs(costs, f"N={agents:,}, d={dim}, K={arms:,}: {rounds:,} rounds, one pull each, one thread")


@app.command("list")
def list_names() -> None:
    """Show the policies, environments and presets there are."""
    from rich.console import Console

    from shoal.environments.registry import environment_names
    from shoal.experiments.spec import PRESETS, cells, load_preset
    from shoal.policies.registry import policy_names

    console = Console(highlight=False)
    console.print("[bold]policies[/]      " + ", ".join(policy_names()))
    console.print("[bold]environments[/]  " + ", ".join(environment_names()))
    console.print("[bold]presets[/]")
    for name in PRESETS:
        spec = load_preset(name)
        console.print(f"  {name:<7} {len(cells(spec))} cells of {spec.runs} runs of {spec.horizon:,} rounds")


DataPath = Annotated[
    Path | None,
    typer.Argument(
        help="A MovieLens directory or zip, or a learning-to-rank file. [default: ml-latest-small]"
    ),
]
Kind = Annotated[str | None, typer.Option(help="movielens or letor, if the path does not tell.")]


@data_app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(help="Such as ml-latest-small, ml-1m or ml-25m.")
    ] = "ml-latest-small",
) -> None:
    """Download a MovieLens data set, checked against its pinned checksum, and say where it is."""
    from shoal.environments import datasets

    path = datasets.fetch(name)
    print(path)
    _print_record(datasets.inspect(path))


@data_app.command()
def inspect(path: DataPath = None, kind: Kind = None) -> None:
    """Show what a data set holds: sizes, agents, arms, observed rewards, and its terms of use."""
    from shoal.environments import datasets

    _print_record(datasets.inspect(path, kind=kind))


@data_app.command()
def prepare(
    path: DataPath = None,
    kind: Kind = None,
    arms: Annotated[str, typer.Option(help="first or most-rated.")] = "first",
    fill: Annotated[str, typer.Option(help="paper or tuned.")] = "paper",
    errors: Annotated[bool, typer.Option(help="Also show the held-out errors of the fills.")] = False,
) -> None:
    """Fill the missing rewards and keep the result, so that environments start at once."""
    from shoal.environments import datasets

    _print_record(datasets.prepare(path, kind=kind, arms=arms, fill=fill))
    if errors:
        for name, error in datasets.errors(path, kind=kind).items():
            print(f"held-out RMSE, {name}: {error:.3f}")


def _run(spec: "ExperimentSpec", out: Path, *, jobs: int | None, only: str | None, executor: str) -> None:
    from shoal.experiments.runner import open_executor, run_experiment

    command = shlex.join(["shoal", *sys.argv[1:]])
    try:
        with open_executor(executor) as pool, _display() as show:
            summary = run_experiment(
                spec, out, jobs=jobs, only=only, executor=pool, progress=show, command=command
            )
    except KeyboardInterrupt:
        print(
            f"\nStopped. Finished cells are kept in {out}; run the same command again to continue.",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    for environment, reason in summary.skipped.items():
        print(f"Left out {environment}: {reason}")
    print(f"{summary.computed} cells computed, {summary.found} found finished, in {out}")
    _write_report(out)


def _write_report(directory: Path) -> None:
    from shoal.experiments.report import write_report

    print(f"Report: {write_report(directory)}")


def _print_runs(rows: list[dict[str, Any]]) -> None:
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    first = rows[0]
    what = f"{first['policy']} in {first['environment']}: {len(rows)} × {first['horizon']:,} rounds"
    table = Table(title=what)
    for heading in ("", "mean", "std", "min", "max"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in (
        "final_regret",
        "final_f1",
        "final_edges",
        "communication_cost",
        "separated_share",
        "rounds_per_second",
    ):
        values = np.array([row[name] for row in rows], dtype=float)
        if not np.isnan(values).any():
            spread = values.std(ddof=1) if len(values) > 1 else float("nan")
            shown = [
                f"{value:,.3f}" if name in ("final_f1", "separated_share") else f"{value:,.0f}"
                for value in (values.mean(), spread, values.min(), values.max())
            ]
            table.add_row(name.replace("_", " "), *("–" if text == "nan" else text for text in shown))
    console = Console()
    console.print(table)
    console.print(first["policy_parameters"], soft_wrap=True, highlight=False)  # on one line, to be copied


def _print_predictions(rows: "tuple[Prediction, ...]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title="What the theory predicts",
        caption="printed: as in the paper; derived: as its proofs support; for arms of norm at most 1 and β²",
    )
    table.add_column("quantity")
    for heading in ("printed", "derived"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("remark")
    for row in rows:
        values = ("–" if value is None else _significant(value) for value in (row.printed, row.derived))
        table.add_row(row.quantity, *values, row.remark)
    Console().print(table)


def _print_costs(costs: "list[Cost]", title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    table.add_column("policy")
    for heading in ("µs a round", "rounds/s", "× independent", "state", "online µs"):
        table.add_column(heading, justify="right", no_wrap=True)
    plain = next((cost.microseconds for cost in costs if cost.policy == "independent"), None)
    for cost in costs:
        if cost.problem:
            table.add_row(cost.policy, *["–"] * 5)
            continue
        table.add_row(
            cost.policy,
            f"{cost.microseconds:,.2f}",
            f"{1e6 / cost.microseconds:,.0f}",
            f"{cost.microseconds / plain:,.1f}" if plain and math.isfinite(plain) else "–",
            f"{cost.state_bytes / 1e6:,.1f} MB",
            f"{cost.online_microseconds:,.1f}",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print("online: one select and one update, called from Python")
    for cost in costs:
        if cost.problem:
            console.print(f"{cost.policy}: {cost.problem}", markup=False)


def _print_record(record: Any) -> None:
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    longest = ""
    for name, value in asdict(record).items():
        if isinstance(value, dict):
            value = ", ".join(f"{file} ({size:,} bytes)" for file, size in value.items())
        text = _shown(value)
        if "\n" in text:
            longest = text
        else:
            table.add_row(name.removeprefix("n_").replace("_", " "), text)
    console = Console(highlight=False)
    console.print(table)
    if longest:
        console.print("\n" + longest, markup=False)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    )


def _significant(value: float) -> str:
    if 0.0 < abs(value) < 0.001:
        return "< 0.001"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000.0 else f"{value:.3g}"


def _assignment(option: str, text: str) -> tuple[str, Any]:
    """`delta=0.9` as ("delta", 0.9); what is not a TOML value is a string."""
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise ValueError(f"{option} must look like name=value, got {text!r}")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


@contextlib.contextmanager
def _display() -> Iterator[Any]:
    """Something to show progress with: a live bar on a terminal, now and then a line elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    speed = TextColumn("{task.fields[speed]}")
    with Bar(*columns, speed, TimeRemainingColumn(compact=True), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None, speed="")

        def show(progress: "Progress") -> None:
            cells = f"{progress.cells_done}/{progress.cells_total} cells"
            what = f"{cells}, compiling {progress.compiling}" if progress.compiling else cells
            speed = f"{progress.rounds_per_second:,.0f} rounds/s"
            bar.update(
                task,
                completed=progress.rounds_done,
                total=progress.rounds_total,
                description=what,
                speed=speed,
            )

        yield show


class _Lines:
    """Prints a line when another tenth is done, ten seconds have passed or another policy is made ready."""

    def __init__(self) -> None:
        self._tenth = 0
        self._compiling: str | None = None
        self._printed = time.monotonic()

    def __call__(self, progress: "Progress") -> None:
        now = time.monotonic()
        tenth = 10 * progress.rounds_done // progress.rounds_total
        if progress.compiling not in (None, self._compiling):
            self._compiling = progress.compiling
            print(f"compiling {progress.compiling}", file=sys.stderr, flush=True)
        ended = progress.cells_done == progress.cells_total
        if ended or tenth > self._tenth or now - self._printed > LINE_SECONDS:
            self._tenth, self._printed = tenth, now
            left = f", {progress.seconds_left:.0f} s left" if progress.rounds_done else ""
            cells = f"{progress.cells_done}/{progress.cells_total} cells"
            print(f"{cells}, {progress.rounds_per_second:,.0f} rounds/s{left}", file=sys.stderr, flush=True)
