"""Single policies: `shoal simulate`, `bounds`, `bench` and `warm`."""

import contextlib
import math
import os
import tomllib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.printing import print_table

if TYPE_CHECKING:  # importing these takes seconds, and `shoal --help` does not need them
    from shoal.lab.benchmark import Cost
    from shoal.lab.experiments.spec import Delay
    from shoal.lab.theory import Forecast

app = typer.Typer()


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
    delay: Annotated[
        str,
        typer.Option(
            help="Rounds until a reward is learned: 100, uniform:0:2000, geometric:500 (its mean) "
            "or module:function."
        ),
    ] = "0",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", help="A parameter of the policy: delta=0.9. Can be repeated."),
    ] = None,
    env_parameter: Annotated[
        list[str] | None,
        typer.Option("--env-parameter", "-e", help="A parameter of the environment: n_agents=50."),
    ] = None,
) -> None:
    """Run one policy in one environment and print a summary. Defaults are from the preset "paper"."""
    from shoal.lab.experiments.runner import play_single
    from shoal.lab.paper.presets import single

    spec = single(
        policy,
        env,
        alpha=alpha,
        horizon=horizon,
        runs=runs,
        seed=seed,
        pulling=pulling,
        delay=_delay(delay),
        policy_parameters=dict(assignment("--parameter", text) for text in parameter or []),
        environment_parameters=dict(assignment("--env-parameter", text) for text in env_parameter or []),
    )
    print_runs(play_single(spec))


@app.command()
def bounds(
    dim: Annotated[int, typer.Option(min=1, help="Dimension of the arms.")],
    gap: Annotated[float, typer.Option(help="Distance between the parameters of two agents or clusters.")],
    delta: Annotated[float, typer.Option(help="Confidence level, in (0, 1).")],
    agents: Annotated[int, typer.Option(min=2, help="Number of agents.")],
    horizon: Annotated[int, typer.Option(min=1, help="Total number of pulls.")] = 50_000,
    gamma: Annotated[float, typer.Option(help="Scale of the ellipsoids.")] = 2.0,
    noise_scale: Annotated[float, typer.Option(help="Scale of the noise.")] = 1.0,
    param_norm: Annotated[
        float, typer.Option(help="Bound on the norm of the parameters, in the radius.")
    ] = 1.0,
    clusters: Annotated[int, typer.Option(min=1, help="Number of clusters, of equal size.")] = 2,
    epsilon: Annotated[float, typer.Option(help="Probability of a uniformly drawn arm.")] = 1.0,
) -> None:
    """Show what the theory predicts, before you run anything. docs/theory.md says how much of it holds."""
    from shoal.lab.theory import predictions

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
    print_predictions(rows)


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
    """Measure what a round of each policy costs on this machine. docs/performance.md has our figures."""
    from shoal.lab.benchmark import measure

    with _status("measuring {} (compiled first if needed)") as progress:
        costs = measure(
            agents=agents, dim=dim, arms=arms, rounds=rounds, policies=tuple(policy or ()), progress=progress
        )
    print_costs(costs, f"N={agents:,}, d={dim}, K={arms:,}: {rounds:,} rounds, one pull each, one thread")


@app.command()
def warm(
    policy: Annotated[
        list[str] | None, typer.Argument(help="Names of policies; see `shoal list`. [default: all]")
    ] = None,
) -> None:
    """Compile policies now, for example in a container image, so that the first call need not wait."""
    from shoal.core.jit import cache
    from shoal.lab.warm import warm

    with _status("compiling {}") as progress:
        for name, seconds in warm(tuple(policy or ()), workers=os.cpu_count() or 1, progress=progress):
            print(f"{name:<16}{seconds:6.1f} s", flush=True)
    print(f"kept in {cache.directory()}")


@contextlib.contextmanager
def _status(text: str) -> Iterator[Callable[[str], None]]:
    """A function that shows which policy is at work, on a terminal only."""
    from rich.console import Console

    from shoal.core.jit.narration import say_nothing_of_compiling

    say_nothing_of_compiling()  # the status line does
    with Console(stderr=True).status("starting") as status:
        yield lambda name: status.update(text.format(name))


def print_runs(rows: list[dict[str, Any]]) -> None:
    import numpy as np
    from rich.console import Console

    first, lines = rows[0], []
    what = f"{first['policy']} in {first['environment']}: {len(rows)} × {first['horizon']:,} rounds"
    for name in ("final_regret", "final_f1", "final_edges", "communication_cost", "separated_share",
                 "rounds_per_second"):  # fmt: skip
        values = np.array([row[name] for row in rows], dtype=float)
        known = values >= 0.0 if name in ("final_edges", "communication_cost") else ~np.isnan(values)
        if known.all():
            spread = values.std(ddof=1) if len(values) > 1 else float("nan")
            shown = [
                f"{value:,.3f}" if name in ("final_f1", "separated_share") else f"{value:,.0f}"
                for value in (values.mean(), spread, values.min(), values.max())
            ]
            lines.append([name.replace("_", " "), *("–" if text == "nan" else text for text in shown)])
    columns = ("mean", "std", "min", "max")
    print_table(("", *columns), lines, numbers=columns, title=what)
    Console(highlight=False).print(first["policy_parameters"], soft_wrap=True)  # on one line, easy to copy


def print_predictions(rows: "tuple[Forecast, ...]") -> None:
    lines = []
    for row in rows:
        values = ("–" if value is None else _significant(value) for value in (row.printed, row.derived))
        lines.append([row.quantity, *values, row.remark])
    columns = ("printed", "derived")
    caption = "printed: as in the paper; derived: what its proofs support; arms of norm at most 1, and β²"
    title = "What the theory predicts"
    print_table(("quantity", *columns, "remark"), lines, numbers=columns, title=title, caption=caption)


def print_costs(costs: "list[Cost]", title: str) -> None:
    lines = []
    plain = next((cost.microseconds for cost in costs if cost.policy == "independent"), None)
    for cost in costs:
        if cost.problem:
            lines.append([cost.policy, *["–"] * 5])
            continue
        times = f"{cost.microseconds / plain:,.1f}" if plain and math.isfinite(plain) else "–"
        round_ = f"{cost.microseconds:,.2f}", f"{1e6 / cost.microseconds:,.0f}", times
        online = f"{cost.online_microseconds:,.1f}"
        lines.append([cost.policy, *round_, f"{cost.state_bytes / 1e6:,.1f} MB", online])
    columns = ("µs a round", "rounds/s", "× independent", "state", "online µs")
    print_table(("policy", *columns), lines, numbers=columns, title=title)
    print("online: one select and one update, called from Python")
    for cost in costs:
        if cost.problem:
            print(f"{cost.policy}: {cost.problem}")


def _significant(value: float) -> str:
    if 0.0 < abs(value) < 0.001:
        return "< 0.001"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000.0 else f"{value:.3g}"


def _delay(text: str) -> "Delay":
    """`100` as 100, `geometric:500` as ("geometric", 500), `module:function` as it is."""
    kind, *numbers = text.split(":")
    try:
        if not numbers:
            return int(kind)
        if kind not in ("uniform", "geometric") and numbers[0].isidentifier():
            return text
        return (kind, *(float(number) if "." in number else int(number) for number in numbers))
    except ValueError:
        raise ValueError(
            f"--delay must look like 100, uniform:0:2000, geometric:500 or module:function, got {text!r}"
        ) from None


def assignment(option: str, text: str) -> tuple[str, Any]:
    """`delta=0.9` as ("delta", 0.9); `estimated` is None; else what is not a TOML value is a string."""
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise ValueError(f"{option} must look like name=value, got {text!r}")
    if value == "estimated":
        return name, None
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
