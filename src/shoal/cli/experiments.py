"""Experiments: `shoal reproduce`, `run`, `report`, `results` and `list`."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from shoal.cli.printing import print_table
from shoal.cli.progress import drawing_display, progress_display

if TYPE_CHECKING:  # importing these takes seconds, and `shoal --help` does not need them
    from concurrent.futures import Executor

    from shoal.lab.experiments.results import Entry
    from shoal.lab.experiments.runner import Completion
    from shoal.lab.experiments.spec import ExperimentSpec

app = typer.Typer()

Out = Annotated[Path | None, typer.Option(help="Directory for the results; created if missing.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Number of threads. [default: number of processors]")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the first run, instead of the spec's.")]
Only = Annotated[
    str | None, typer.Option(help="Compute only the cells whose id matches, e.g. 'w7/bass*a0.3'.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Keep stored results although the code has changed: declare that it alters none."
    ),
]
Where = Annotated[str, typer.Option("--executor", help="threads, or dask:ADDRESS for a Dask scheduler.")]
Runs = Annotated[int | None, typer.Option(min=1, help="Number of runs, instead of the spec's.")]
With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="module:Class", help="Your own method, ranked with the field's."),
]
Directory = Annotated[Path, typer.Argument(help="The results directory.")]


@app.command()
def reproduce(
    preset: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="quick, tables, paper, beyond or field; or a table or figure of the paper: see "
            "`shoal list paper`.",
        ),
    ] = "quick",
    out: Out = None,
    jobs: Jobs = None,
    seed: Seed = None,
    runs: Runs = None,
    only: Only = None,
    executor: Where = "threads",
    trust: Trust = False,
    more: With = None,
) -> None:
    """Run the paper's experiments and write a report. Run it again to continue where it stopped.

    `field` ranks every method of the field, and yours: --with module:Class.

    A table or figure, such as table2, runs only what it shows, and is written as HTML, LaTeX and PDF.
    """
    from shoal.lab.experiments.runner import run_experiment
    from shoal.lab.paper.field import FIELD, field_spec
    from shoal.lab.paper.presets import PRESETS, load_preset
    from shoal.lab.paper.reproduce import reproduce

    how: dict[str, Any] = {"jobs": jobs, "only": only, "executor": executor, "trust": trust}
    where = out or Path("results") / preset
    if preset == FIELD:
        _run(run_experiment, field_spec(more or (), seed=seed, runs=runs), where, **how)
    elif more:
        raise ValueError(f"--with adds a method to the preset {FIELD!r}, not to {preset!r}")
    elif preset in PRESETS:
        _run(reproduce, load_preset(preset, seed=seed, runs=runs), where, **how)
    else:
        _reproduce_exhibit(preset, out, seed=seed, runs=runs, **how)


@app.command()
def run(
    spec: Annotated[Path, typer.Argument(help="A TOML file; see docs/experiments.md.")],
    out: Out = None,
    jobs: Jobs = None,
    seed: Seed = None,
    only: Only = None,
    executor: Where = "threads",
    trust: Trust = False,
) -> None:
    """Run your own grid of environments, policies, parameters and seeds, and write a report."""
    from shoal.lab.experiments.runner import run_experiment
    from shoal.lab.experiments.spec import directory_name, load_spec

    loaded = load_spec(spec, seed=seed)
    where = out or Path("results") / directory_name(loaded)
    _run(run_experiment, loaded, where, jobs=jobs, only=only, executor=executor, trust=trust)


@app.command()
def report(directory: Directory) -> None:
    """Rewrite the report of a results directory."""
    _write_report(directory)


def _reproduce_exhibit(
    name: str, out: Path | None, *, seed: int | None, runs: int | None, **how: Any
) -> None:
    from shoal.lab.experiments.runner import run_experiment
    from shoal.lab.paper import exhibits

    exhibit = exhibits.find_exhibit(name)
    out = out or exhibits.STORE
    if exhibit.environments:
        spec = exhibits.exhibit_spec(exhibit, seed=seed, runs=runs)
        _play(run_experiment, spec, out, **how)
    with drawing_display() as show:
        page = exhibits.write_exhibit(exhibit, out, show)
    print(f"{exhibit.number}: {page}, and beside it Markdown, LaTeX and PDF")


class _Results(TyperGroup):
    """`shoal results DIR` is `shoal results list DIR`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["list", *args]
        return super().resolve_command(ctx, args)


results = typer.Typer(cls=_Results, help="What a results directory holds.")
app.add_typer(results, name="results")


@results.command("list")
def list_results(directory: Directory) -> None:
    """List the stored cells with their runs, time and size, and whether the last grid includes them."""
    from shoal.lab.experiments.results import inventory, load_grid

    found, grid = inventory(directory), load_grid(directory)
    print_inventory(found, grid.runs if grid else 0)


@results.command("prune")
def prune_results(
    directory: Directory, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
) -> None:
    """Delete stored cells that the last grid does not include."""
    from shoal.lab.experiments.results import inventory, prune

    old = [entry for entry in inventory(directory) if entry.why]
    if not old:
        print(f"Nothing to delete: all cells in {directory} are in the grid.")
        return
    if not yes:
        print_inventory(old, 0)
        typer.confirm(f"Delete these {len(old)} cells?", abort=True)
    gone = prune(directory)
    print(f"{len(gone)} cells deleted, {sum(entry.size for entry in gone) / 1e6:,.1f} MB")


@app.command("list")
def list_names(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A policy, environment or module:Class, for its parameters; or `paper`, for its tables and "
            "figures, and how long each takes here."
        ),
    ] = None,
) -> None:
    """List the policies, environments and presets; or the parameters of one; or, with `paper`, its tables."""
    from rich.console import Console

    if name == "paper":
        _list_paper()
        return
    from shoal.core.policies.registry import policy_names
    from shoal.lab.environments.registry import environment_names
    from shoal.lab.experiments.spec import cells
    from shoal.lab.paper.field import FIELD, field_spec
    from shoal.lab.paper.presets import PRESETS, load_preset

    if name is not None:
        print_parameters(name)
        return
    console = Console(highlight=False)
    console.print("[bold]policies[/]      " + ", ".join(policy_names()))
    console.print("[bold]environments[/]  " + ", ".join(environment_names()))
    console.print("[bold]presets[/]")
    for name in (*PRESETS, FIELD):
        spec = field_spec() if name == FIELD else load_preset(name)
        console.print(f"  {name:<7} {len(cells(spec))} cells of {spec.runs} runs of {spec.horizon:,} rounds")


def _list_paper() -> None:
    from shoal.lab.experiments.runner import processors
    from shoal.lab.experiments.spec import cells
    from shoal.lab.paper.exhibits import EXHIBITS, exhibit_spec
    from shoal.lab.paper.speed import minutes, run_seconds

    rows: list[list[Any]] = []
    first: dict[tuple[str, ...], str] = {}
    for exhibit in EXHIBITS.values():
        if not exhibit.environments:
            rows.append([exhibit.name, exhibit.title, "", "seconds", ""])
            continue
        spec = exhibit_spec(exhibit)
        estimate = minutes(spec, run_seconds(spec, say=_say))
        note = "needs data: docs/real-data.md" if any(item.optional for item in spec.environments) else ""
        if exhibit.environments in first:
            note = f"the runs of {first[exhibit.environments]}"
        first.setdefault(exhibit.environments, exhibit.name)
        shown = f"{estimate:.1f}" if estimate < 10 else f"{estimate:.0f}"
        rows.append([exhibit.name, exhibit.title, len(cells(spec)), shown, note])
    print_table(("name", "shows", "cells", "minutes", ""), rows, numbers=("cells", "minutes"))
    print(f"\n`shoal reproduce NAME`; minutes with {processors()} processors, from measured runs.")


def _run(run_spec: "Callable[..., Completion]", spec: "ExperimentSpec", out: Path, **how: Any) -> None:
    _play(run_spec, spec, out, **how)
    _write_report(out)


def _play(
    run_spec: "Callable[..., Completion]",
    spec: "ExperimentSpec",
    out: Path,
    *,
    jobs: int | None,
    only: str | None,
    executor: str,
    trust: bool,
) -> None:
    from shoal.lab.experiments.executors import run_on

    command = shlex.join(["shoal", *sys.argv[1:]])
    how: dict[str, Any] = {"jobs": jobs, "only": only, "command": command, "trust": trust, "say": _say}

    def play(pool: "Executor | None") -> "Completion":
        with progress_display() as show:
            return run_spec(spec, out, executor=pool, progress=show, **how)

    try:
        done = run_on(executor, play, say=_say)
    except KeyboardInterrupt:
        _say(f"\nStopped. Finished cells are kept in {out}; run the same command again to continue.")
        raise typer.Exit(130) from None
    trusted = f" ({done.trusted} of an earlier version of the code, as declared)" if done.trusted else ""
    print(f"{done.computed} cells computed, {done.found} found finished{trusted}, in {out}")


def print_parameters(name: str) -> None:
    from rich.console import Console
    from rich.markup import escape

    from shoal.core.policies.registry import find_policy, policy_names
    from shoal.core.registry import parameters
    from shoal.core.validation import suggestion
    from shoal.lab.environments.registry import environment_names, find_environment

    known = [*policy_names(), *environment_names()]
    if ":" not in name and name.replace("-", "_") not in known and name not in known:
        raise ValueError(f"unknown policy or environment {name!r}; {suggestion(name, known)}")
    try:
        found: type = find_policy(name)
    except ValueError:
        found = find_environment(name)
    set_by_runner = ("n_agents", "dim", "alpha", "seed") if hasattr(found, "select") else ("seed",)
    rows = []
    for each in parameters(found):
        by = " (set by the runner)" if each.name in set_by_runner else ""
        rows.append([each.name, each.kind, each.default or "–", each.meaning + by])
    about = (found.__doc__ or "").strip().partition("\n")[0]
    Console(highlight=False).print(f"[bold]{escape(found.__name__)}[/]: {escape(about)}")
    print_table(("parameter", "type", "default", "meaning"), rows, lined=True)


def print_inventory(found: "list[Entry]", runs: int) -> None:
    from shoal.reporting.words import duration

    rows = []
    totals = {"of the grid": [0, 0.0, 0], "left from before": [0, 0.0, 0]}
    for entry in found:
        lacks = f" of {runs}" if not entry.why and entry.runs < runs else ""
        size = f"{entry.size / 1e3:,.0f} kB" if entry.path else "–"
        state = f"no: {entry.why}" if entry.why else "yes"
        rows.append([entry.id, f"{entry.runs}{lacks}", duration(entry.seconds), size, state])
        total = totals["left from before" if entry.why else "of the grid"]
        for place, number in enumerate((1, entry.seconds, entry.size)):
            total[place] += number
    columns = ("runs", "time", "size")
    print_table(("cell", *columns, "in the grid"), rows, numbers=columns, lined=True)
    for what, (count, seconds, total_size) in totals.items():
        if count:
            print(f"{count} cells {what}: {duration(seconds)} of playing, {total_size / 1e6:,.1f} MB")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write_report(directory: Path) -> None:
    from shoal.lab.paper.reproduce import write_report

    with drawing_display() as show:
        page = write_report(directory, show)
    print(f"Report: {page}")
