"""Which policy for a log: `shoal recommend`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()

MOST_AGENTS = 1_000


@app.command()
def recommend(
    log: Annotated[Path, typer.Argument(help="Agents, arms and rewards, one row each: CSV or Parquet.")],
    features: Annotated[Path, typer.Option(help="The features of each arm: CSV or Parquet.")],
    users: Annotated[
        Path | None,
        typer.Option(help="What is known of each agent, in numbers: CSV or Parquet. Cells may be empty."),
    ] = None,
    agent: Annotated[str, typer.Option(help="The column of agents, in the log and of users.")] = "agent",
    arm: Annotated[str, typer.Option(help="The column of arms, in both files.")] = "arm",
    reward: Annotated[str, typer.Option(help="The log's column of rewards.")] = "reward",
    agents: Annotated[int, typer.Option(help="Most agents to draw from the log.")] = MOST_AGENTS,
    horizon: Annotated[
        int | None, typer.Option(help="Rounds of a run. [default: the rows, 5,000 to 20,000]")
    ] = None,
    runs: Annotated[int, typer.Option(help="Number of runs behind each figure.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the agents drawn and of the runs.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the report, a page with table and curves. [default: the log's name, "
            "-recommendation]",
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Inspect a log, run the policies that suit it, and say which one to use and why."""
    from shoal.cli.progress import runs_display
    from shoal.lab import recommendation

    with runs_display() as progress:
        found = recommendation.recommend(
            log, features=features, users=users, agent=agent, arm=arm, reward=reward, n_agents=agents,
            horizon=horizon, runs=runs, seed=seed, progress=progress,
        )  # fmt: skip
    print(found)
    directory = out if out is not None else Path(f"{log.stem}-recommendation")
    print(f"\nThe report is {found.report(directory)}.", file=sys.stderr)
