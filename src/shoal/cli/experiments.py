"""Experiments: `shoal reproduce`, `run`, `report` and `list`."""

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.progress import drawing_display, progress_display

if TYPE_CHECKING:  # importing these takes seconds, and `shoal --help` does not need them
    from concurrent.futures import Executor

    from shoal.lab.experiments.runner import Completion
    from shoal.lab.experiments.spec import ExperimentSpec

app = typer.Typer()

Out = Annotated[Path | None, typer.Option(help="Directory for the results; created if missing.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Number of threads. [default: number of processors]")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the first run, instead of the spec's.")]
Only = Annotated[
    str | None, typer.Option(help="Compute only the cells whose id matches, e.g. 'w7/bass*a0.3'.")
]
Where = Annotated[str, typer.Option("--executor", help="threads, or dask:ADDRESS for a Dask scheduler.")]


Runs = Annotated[int | None, typer.Option(min=1, help="Number of runs, instead of the spec's.")]


@app.command()
def reproduce(
    preset: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="quick, tables, paper or beyond; or a table or figure of the paper: see `shoal list paper`.",
        ),
    ] = "quick",
    out: Out = None,
    jobs: Jobs = None,
    seed: Seed = None,
    runs: Runs = None,
    only: Only = None,
    executor: Where = "threads",
) -> None:
    """Run the paper's experiments and write a report. Run it again to continue where it stopped.

    A table or figure by its number, such as table2, plays exactly that and is written as HTML, Markdown,
    LaTeX and PDF.
    """
    from shoal.lab.paper.presets import PRESETS, load_preset
    from shoal.lab.paper.reproduce import reproduce

    if preset not in PRESETS:
        _reproduce_exhibit(preset, out, seed=seed, runs=runs, jobs=jobs, only=only, executor=executor)
        return
    spec = load_preset(preset, seed=seed, runs=runs)
    _run(reproduce, spec, out or Path("results") / preset, jobs=jobs, only=only, executor=executor)


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
    from shoal.lab.experiments.runner import run_experiment
    from shoal.lab.experiments.spec import directory_name, load_spec

    loaded = load_spec(spec, seed=seed)
    _run(
        run_experiment,
        loaded,
        out or Path("results") / directory_name(loaded),
        jobs=jobs,
        only=only,
        executor=executor,
    )


@app.command()
def report(directory: Annotated[Path, typer.Argument(help="The results directory.")]) -> None:
    """Write the report on a results directory again."""
    _write_report(directory)


def _reproduce_exhibit(
    name: str, out: Path | None, *, seed: int | None, runs: int | None, **how: Any
) -> None:
    from shoal.lab.paper import exhibits

    exhibit = exhibits.find_exhibit(name)
    out = out or exhibits.STORE
    if exhibit.environments:
        spec = exhibits.exhibit_spec(exhibit, seed=seed, runs=runs)
        _play(partial(exhibits.play, exhibit), spec, out, **how)
    with drawing_display() as show:
        page = exhibits.write_exhibit(exhibit, out, show)
    print(f"{exhibit.number}: {page}, and beside it Markdown, LaTeX and PDF")


@app.command("list")
def list_names(
    what: Annotated[
        str | None, typer.Argument(help="paper: its tables and figures, and how long each takes here.")
    ] = None,
) -> None:
    """List the policies, environments and presets; or, with `paper`, its tables and figures."""
    from rich.console import Console

    if what == "paper":
        _list_paper()
        return
    if what is not None:
        raise typer.BadParameter(f"must be left out or 'paper', got {what!r}", param_hint="WHAT")

    from shoal.core.policies.registry import policy_names
    from shoal.lab.environments.registry import environment_names
    from shoal.lab.experiments.spec import cells
    from shoal.lab.paper.presets import PRESETS, load_preset

    console = Console(highlight=False)
    console.print("[bold]policies[/]      " + ", ".join(policy_names()))
    console.print("[bold]environments[/]  " + ", ".join(environment_names()))
    console.print("[bold]presets[/]")
    for name in PRESETS:
        spec = load_preset(name)
        console.print(f"  {name:<7} {len(cells(spec))} cells of {spec.runs} runs of {spec.horizon:,} rounds")


def _list_paper() -> None:
    from rich.console import Console
    from rich.table import Table

    from shoal.lab.experiments.runner import processors
    from shoal.lab.experiments.spec import cells
    from shoal.lab.paper.exhibits import EXHIBITS, exhibit_spec
    from shoal.lab.paper.speed import minutes, run_seconds

    table = Table("name", "shows", "cells", "minutes", "", box=None, header_style="bold", pad_edge=False)
    table.columns[2].justify = table.columns[3].justify = "right"
    first: dict[tuple[str, ...], str] = {}
    for exhibit in EXHIBITS.values():
        if not exhibit.environments:
            table.add_row(exhibit.name, exhibit.title, "", "seconds", "")
            continue
        spec = exhibit_spec(exhibit)
        taken = minutes(spec, run_seconds(spec, say=lambda text: print(text, file=sys.stderr, flush=True)))
        note = "needs data: docs/real-data.md" if any(item.optional for item in spec.environments) else ""
        if exhibit.environments in first:
            note = f"the runs of {first[exhibit.environments]}"
        first.setdefault(exhibit.environments, exhibit.name)
        shown = f"{taken:.1f}" if taken < 10 else f"{taken:.0f}"
        table.add_row(exhibit.name, exhibit.title, str(len(cells(spec))), shown, note)
    Console(highlight=False).print(table)
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
) -> None:
    from shoal.lab.experiments.executors import run_on

    command = shlex.join(["shoal", *sys.argv[1:]])

    def play(pool: "Executor | None") -> "Completion":
        with progress_display() as show:
            return run_spec(spec, out, jobs=jobs, only=only, executor=pool, progress=show, command=command)

    try:
        done = run_on(executor, play, say=lambda text: print(text, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        print(
            f"\nStopped. Finished cells are kept in {out}; run the same command again to continue.",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    for environment, reason in done.skipped.items():
        print(f"Left out {environment}: {reason}")
    print(f"{done.computed} cells computed, {done.found} found finished, in {out}")


def _write_report(directory: Path) -> None:
    from shoal.lab.paper.reproduce import write_report

    with drawing_display() as show:
        page = write_report(directory, show)
    print(f"Report: {page}")
