"""Does it pay? `shoal evaluate`, for a live population or a log from elsewhere."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from shoal.cli.policies import assignment
from shoal.cli.population import AsJson, columns_in, moment, opened
from shoal.cli.printing import plain, print_json, print_table

if TYPE_CHECKING:  # importing these takes seconds, and `shoal --help` does not need them
    from shoal.live.protocol.answers import Evaluation

app = typer.Typer()


@app.command()
def evaluate(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="An SQLite file or postgresql://…; or a .csv or .parquet log."),
    ],
    population: Annotated[
        str | None, typer.Option(help="Name of the population. [default: the only one]")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy to evaluate. Can be repeated, for a report.")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", help="A parameter of the policy: scatter=0. Can be repeated."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only a population's decisions since then: 2026-01-31 or 90d.")
    ] = None,
    probability: Annotated[
        str | None, typer.Option(help="Column of a log with the probability of the logged arm.")
    ] = None,
    reward: Annotated[str, typer.Option(help="Column of a log with the rewards.")] = "reward",
    agent: Annotated[str | None, typer.Option(help="Column of a log with the agents' names.")] = None,
    arm: Annotated[str | None, typer.Option(help="Column of a log with the logged arm's name.")] = None,
    arms: Annotated[Path | None, typer.Option(help="File with the features of the arms of a log.")] = None,
    features: Annotated[
        str | None,
        typer.Option(help="A column of lists, or several: x1,x2. [default: features, else all others]"),
    ] = None,
    offered: Annotated[
        str | None, typer.Option(help="Column of a log with the arms on offer. [default: all, always]")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column of a log with another policy's probability of the arm.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Column of a log by which it must be sorted.")] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column of a log in which no value may come twice.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a page to a directory.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what sharing pays, what the policy adds, and what another policy would have earned."""
    parameters = dict(assignment("--parameter", text) for text in parameter or [])
    if Path(source).suffix in (".csv", ".parquet"):
        from shoal.core.jit.narration import say_nothing_of_compiling
        from shoal.live.evaluation.candidates import evaluate_log
        from shoal.live.evaluation.logs import read_log

        if probability is None:
            raise ValueError("--probability must name the column with the probability of the logged arm")
        say_nothing_of_compiling()
        events = read_log(
            source, probability=probability, reward=reward, agent=agent, arm=arm, arms=arms,
            features=columns_in(features), offered=offered, target=target, time=time, id=id_column,
        )  # fmt: skip
        found = [evaluate_log(events, one, parameters) for one in policy or (None,)]
        if report is not None:
            from shoal.live.evaluation.report import write_log_evaluation

            page = write_log_evaluation(found, report)
        if as_json:
            print_json([plain(one) for one in found])
            return
        for one in found:
            _print_evaluation(one)
        if report is not None:
            print(f"report    {page}")
        return
    start = None if since is None else moment(since, "--since")
    with opened(source, read_only=True) as controller:
        names = controller.populations()
        if population is None and len(names) != 1:
            raise ValueError(f"--population must name one of {', '.join(names) or 'none'}")
        chosen = controller.population(population or names[0])
        settings = chosen.settings
        dividend = chosen.dividend(since=start)
        uplift = chosen.uplift(since=start) if settings.apprentice or settings.holdout else None
        wanted: list[str | None] = [*policy] if policy else [None] if parameters else []
        evaluations = [chosen.evaluate(one, since=start, **parameters) for one in wanted]
        others = [chosen.what_if(one, **parameters) for one in wanted]
        if report is not None:
            from shoal.live.evaluation.report import write_evaluation

            page = write_evaluation(chosen, report, evaluations, start)
    if as_json:
        print_json(
            {
                "dividend": plain(dividend),
                "uplift": None if uplift is None else plain(uplift),
                "evaluations": [plain(one) for one in evaluations],
                "what_if": [plain(one) for one in others],
            }
        )
        return
    print(f"dividend  {dividend}")
    if uplift is not None:
        print(f"uplift    {uplift}")
    for evaluation, other in zip(evaluations, others, strict=True):
        print()
        _print_evaluation(evaluation)
        print(f"what if   {other}")
    if report is not None:
        print(f"report    {page}")


def _print_evaluation(found: "Evaluation") -> None:
    print(f"{found.policy}, from {found.decisions:,} decisions of {found.source}")
    rows: list[list[Any]] = [_row(found.logged)]
    rows += [_row(one) for one in found.estimates]
    if found.difference is not None:
        rows.append(_row(replace(found.difference, name="more than logged")))
    if found.replayed is not None and found.replayed.value is not None:
        rows.append(
            _row(replace(found.replayed.value, name=f"replayed ({found.replayed.accepted:,} decisions)"))
        )
    print_table(("reward per decision", "value", "95%", "clipped"), rows)
    if found.sentence:
        print(found.sentence)
    else:
        print(f"The policy agrees with {found.agreement:.1%} of the decisions, ", end="")
        print(f"which are worth {found.effective_size:,.0f} of its own.")
    if found.replayed is not None and found.replayed.sentence:
        print(found.replayed.sentence)
    print(found.calibration.sentence)


def _row(one: Any) -> list[str]:
    interval = "" if math.isnan(one.low) else f"{one.low:.4g} to {one.high:.4g}"
    value = "beyond all rewards" if math.isnan(one.value) else f"{one.value:.4g}"
    return [one.name, value, interval, f"{one.clipped:.1%}" if one.clipped else ""]
