"""Experiments: `shoal reproduce`, `run`, `report` and `list`."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from shoal.lab.paper.presets import load_preset
    from shoal.lab.paper.reproduce import reproduce

    spec = load_preset(preset, seed=seed)
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


@app.command("list")
def list_names() -> None:
    """List the policies, environments and presets."""
    from rich.console import Console

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


def _run(
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
    _write_report(out)


def _write_report(directory: Path) -> None:
    from shoal.lab.paper.reproduce import write_report

    with drawing_display() as show:
        page = write_report(directory, show)
    print(f"Report: {page}")
