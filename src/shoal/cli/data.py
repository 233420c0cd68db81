"""Real data: `shoal data fetch`, `inspect` and `prepare`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.printing import print_table

app = typer.Typer(help="Fetch, inspect and prepare the real data sets.", no_args_is_help=True)

DataPath = Annotated[
    Path | None,
    typer.Argument(
        help="A MovieLens directory or zip, or a learning-to-rank file. [default: ml-latest-small]"
    ),
]
Kind = Annotated[str | None, typer.Option(help="movielens or letor, if the path does not show it.")]


@app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(help="Such as ml-latest-small, ml-1m or ml-25m.")
    ] = "ml-latest-small",
) -> None:
    """Download a MovieLens data set, verify its checksum and print its path."""
    from shoal.lab.environments import datasets
    from shoal.lab.environments.sources import fetch as fetch_data

    path = fetch_data(name)
    print(path)
    print_record(datasets.inspect(path))


@app.command()
def inspect(path: DataPath = None, kind: Kind = None) -> None:
    """Show what a data set holds: sizes, agents, arms, observed rewards, and its terms of use."""
    from shoal.lab.environments import datasets

    print_record(datasets.inspect(path, kind=kind))


@app.command()
def prepare(
    path: DataPath = None,
    kind: Kind = None,
    arms: Annotated[
        str | None, typer.Option(help="first or most-rated. [default: the environment's]")
    ] = None,
    fill: Annotated[str | None, typer.Option(help="paper or tuned. [default: the environment's]")] = None,
    errors: Annotated[bool, typer.Option(help="Also show the held-out errors of the fills.")] = False,
) -> None:
    """Fill in the missing rewards and cache the result, so that environments load at once."""
    from shoal.lab.environments import datasets

    print_record(datasets.prepare(path, kind=kind, arms=arms, fill=fill))
    if errors:
        for name, error in datasets.errors(path, kind=kind).items():
            print(f"held-out RMSE, {name}: {error:.3f}")


def print_record(record: Any) -> None:
    """Print a record as a table, and a value of several lines below it."""
    from dataclasses import asdict

    rows, longest = [], ""
    for name, value in asdict(record).items():
        if isinstance(value, dict):
            value = ", ".join(f"{file} ({size:,} bytes)" for file, size in value.items())
        if isinstance(value, str) and "\n" in value:
            longest = value
        else:
            shown = f"{value:.4g}" if isinstance(value, float) else value
            rows.append([name.removeprefix("n_").replace("_", " "), shown])
    print_table(None, rows)
    if longest:
        print(f"\n{longest}")
