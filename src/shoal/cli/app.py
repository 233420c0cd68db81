"""All commands; each group has its own file."""

from typing import Annotated

import typer

import shoal
from shoal.cli import data, evaluate, experiments, policies, population, recommend, service

app = typer.Typer(
    name="shoal",
    help="Many agents, each with a linear bandit, that learn whom to share samples with and when to stop.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        print(f"shoal {shoal.__version__}")
        raise typer.Exit


app.add_typer(experiments.app)
app.add_typer(policies.app)
app.add_typer(evaluate.app)
app.add_typer(recommend.app)
app.add_typer(data.app, name="data")
app.add_typer(population.app, name="population")
app.add_typer(service.app)
