"""Live populations: `shoal population list`, `show`, `export`, `import`, `forget`, `verify`, `archive`,
`switch`, `contest`, `doctor` and `move`."""

import contextlib
import getpass
import math
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal.cli.policies import assignment
from shoal.cli.printing import plain, print_json, print_table
from shoal.reporting.words import counted

if TYPE_CHECKING:  # importing these takes seconds, and `shoal --help` does not need them
    from shoal.live.client import Client
    from shoal.live.journal.stores.base import PopulationOwner
    from shoal.live.population.controller import Controller
    from shoal.live.protocol.answers import Contender

app = typer.Typer(help="Look at, export, import, check and prune live populations.", no_args_is_help=True)

StoreUrl = Annotated[str, typer.Argument(metavar="STORE", help="An SQLite file, or postgresql://….")]
AnyUrl = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="An SQLite file, postgresql://…, or http(s)://… of a service, with a key in SHOAL_KEY.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="POPULATION", help="Name of the population.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("list")
def list_(store: AnyUrl, as_json: AsJson = False) -> None:
    """Show which populations a store holds, and how large they are."""
    shown: tuple[str, ...] = ("name", "policy", "dim", "agents", "pending", "records", "last_record")
    if _is_service(store):
        shown = ("name", "policy", "dim", "agents", "pending", "sequence")
        with _client(store) as client:
            rows = [_described(client, name) for name in client.populations()]
    else:
        from shoal.live.population.summaries import summary

        with opened(store, read_only=True) as controller:
            standings = controller.store.standings()
            rows = [
                {**summary(controller.population(name).owner), "owner": owned_by(standings.get(name))}
                for name in controller.populations()
            ]
        if standings:  # a file has one process
            shown = (*shown, "owner")
    if as_json:
        print_json(rows)
    else:
        print_table(shown, [[row[key] for key in shown] for row in rows], whole=("owner",))


@app.command()
def show(store: AnyUrl, population: Name, as_json: AsJson = False) -> None:
    """Show a population's settings, sizes and archives."""
    if _is_service(store):
        with _client(store) as client:
            found = _described(client, population)
    else:
        from shoal.live.population.summaries import summary

        with opened(store, read_only=True) as controller:
            found = summary(controller.population(population).owner)
    if as_json:
        print_json(found)
    else:
        print_table(None, [[key, value] for key, value in found.items()])


@app.command()
def export(
    store: StoreUrl,
    population: Name,
    path: Annotated[Path, typer.Argument(help="A .parquet or .jsonl file to write.")],
    archived: Annotated[bool, typer.Option(help="Include archived records.")] = True,
    as_json: AsJson = False,
) -> None:
    """Write decisions, observations and the rewards in force to a file."""
    with opened(store, read_only=True) as controller:
        rows = controller.population(population).export(path, archived=archived)
    print_json({"rows": rows, "path": str(path)}) if as_json else print(f"{rows:,} rows written to {path}")


@app.command("import")
def import_(
    store: StoreUrl,
    population: Name,
    path: Annotated[Path, typer.Argument(help="A CSV or Parquet file with one row per sample.")],
    agent: Annotated[str, typer.Option(help="Column with the agents' names.")] = "agent",
    reward: Annotated[str, typer.Option(help="Column with the rewards.")] = "reward",
    features: Annotated[
        str | None,
        typer.Option(
            help="Column of lists, or several: x1,x2. [default: features; in --arms, else all others]"
        ),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="Column with the arm's name, instead of features.")] = None,
    arms: Annotated[
        Path | None, typer.Option(help="File with the arms' features. [default: the catalogue]")
    ] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="Column with ids of the rows.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip bad rows instead of importing nothing.")
    ] = False,
    policy: Annotated[
        str | None, typer.Option(help="Policy of a population that does not exist yet.")
    ] = None,
    dim: Annotated[
        int | None, typer.Option(min=1, help="Dimension of a population that does not exist yet.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Learn from a log. Importing it again, or after an interruption, counts no row twice."""
    with opened(store, create=policy is not None) as controller, _progress("importing") as progress:
        done = controller.population(population, policy, dim).import_log(
            path,
            agent=agent,
            reward=reward,
            features=columns_in(features),
            arm=arm,
            arms=arms,
            id=id_column,
            skip_bad=skip_bad,
            progress=progress,
        )
    if as_json:
        print_json({key: getattr(done, key) for key in ("rows", "added", "known", "gone", "n_bad")})
        return
    print(f"{done.added:,} of {done.rows:,} rows learned; {done.known:,} were known, {done.gone:,} forgotten")
    for row in done.bad[:10]:
        print(f"skipped {path}, {row.line:,}: {row.reason}")
    if done.n_bad > 10:
        print(f"and {done.n_bad - 10:,} more")


def columns_in(features: str | None) -> str | list[str] | None:
    """What `--features` names: one column with lists, or several with a number each."""
    return features.split(",") if features and "," in features else features


@app.command()
def forget(
    store: AnyUrl,
    population: Name,
    agent: Annotated[str, typer.Argument(help="Name of the agent.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget a person: their samples, rows and name, in the store and in all archives within reach."""
    if _is_service(store):
        with _client(store) as client:
            remote = client.population(population)
            remote.agent(agent)  # an error if there is no such agent
            if not yes:
                typer.confirm(f"Forget {agent!r} of {population!r} for good?", abort=True, err=True)
            remote.forget(agent)
        print(f"forgotten: {agent!r}")
        return
    from shoal.live.journal.archives import base_of
    from shoal.live.population.controller import existing

    with opened(store) as controller:
        chosen = existing(controller, population)
        chosen.sharing(agent)  # an error if there is no such agent
        if not yes:
            typer.confirm(f"Forget {agent!r} of {population!r} for good?", abort=True, err=True)
        chosen.forget(agent)
        chosen.settle()
        held = [one.path for one in base_of(chosen.owner.store, chosen.owner.number).archives if one.wipe]
    print(f"forgotten: {agent!r}")
    for path in held:
        print(f"out of reach, and still holding their rows: {path}", file=sys.stderr)


@app.command()
def verify(
    store: StoreUrl,
    population: Annotated[str | None, typer.Argument(help="Name of a population. [default: all]")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that journals are complete and reproduce the state; the exit code is 1 if not."""
    with opened(store, read_only=True) as controller:
        problems = controller.verify(*([] if population is None else [population]))
    if as_json:
        print_json(problems)
    else:
        for name, found in problems.items():
            print(f"{name}: {counted(len(found), 'problem') if found else 'sound'}")
            for problem in found:
                print(f"  {problem}")
    if any(problems.values()):
        raise typer.Exit(1)


@app.command()
def doctor(store: AnyUrl, population: Name, as_json: AsJson = False) -> None:
    """Say what is wrong with a population, and what to do; the exit code is 1 if something is."""
    with _client(store) if _is_service(store) else opened(store, read_only=True) as source:
        found = source.population(population).alarms()
    if as_json:
        print_json(plain(found))
    elif found:
        print_table(("alarm", "what", "what to do"), [[one.name, one.sentence, one.advice] for one in found])
    else:
        print("nothing is wrong")
    if any(one.severity == "fault" for one in found):
        raise typer.Exit(1)


@app.command()
def archive(
    store: StoreUrl,
    population: Name,
    directory: Annotated[Path, typer.Argument(help="Where to write the Parquet file.")],
    before: Annotated[
        str, typer.Option(help="Move rows from before 2026-01-31, 2026-01-31T12:00+01:00 or 90d ago.")
    ],
    as_json: AsJson = False,
) -> None:
    """Move old rows of the journal to a file; a base takes their place."""
    from shoal.live.population.controller import existing

    limit = moment(before)
    with opened(store) as controller:
        made = existing(controller, population).archive(directory, before=limit)
    if as_json:
        print_json(
            None
            if made is None
            else {"path": made.path, "first": made.first, "last": made.last, "until": made.until}
        )
    elif made is None:
        print(f"no rows from before {limit:%Y-%m-%d %H:%M} UTC")
    else:
        print(f"records {made.first:,} to {made.last:,} moved to {made.path}")


@app.command()
def switch(
    store: AnyUrl,
    population: Name,
    policy: Annotated[str | None, typer.Option(help="Another policy. [default: the present one]")] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", help="A parameter of the policy: delta=0.9. Can be repeated."),
    ] = None,
    back: Annotated[bool, typer.Option("--back", help="Undo the last switch.")] = False,
    as_json: AsJson = False,
) -> None:
    """Switch a population to another policy or other parameters, which first learn its whole journal."""
    if back and (policy or parameter):
        raise ValueError("--back undoes the last switch: leave out --policy and --parameter")
    parameters = dict(assignment("--parameter", text) for text in parameter or [])
    if _is_service(store):
        with _client(store) as client:
            remote = client.population(population)
            sequence = remote.switch_back() if back else remote.switch(policy, **parameters)
            now: Any = remote.switches()[-1]
    else:
        from shoal.live.population.controller import existing

        with opened(store) as controller:
            chosen = existing(controller, population)
            by = _user()
            sequence = chosen.switch_back(by=by) if back else chosen.switch(policy, by=by, **parameters)
            now = chosen.switches[-1]
    if as_json:
        print_json({"sequence": sequence, "policy": now.policy, "parameters": now.parameters})
    else:
        print(f"{population!r} goes on with {now.policy} from record {sequence:,}")


@app.command()
def contest(
    store: AnyUrl,
    population: Name,
    candidate: Annotated[
        list[str] | None,
        typer.Option(help="A policy that competes: bass, or bass,alpha=0.3. Can be repeated."),
    ] = None,
    switches: Annotated[
        bool, typer.Option("--switch", help="Switch automatically to a candidate that is surely better.")
    ] = False,
    share: Annotated[float | None, typer.Option(help="Share of decisions that explore meanwhile.")] = None,
    end: Annotated[bool, typer.Option("--end", help="End the contest.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let policies compete with the present one in the shadow, or show how they stand."""
    if end and candidate:
        raise ValueError("--end takes no --candidate")
    if not candidate and (switches or share is not None):
        raise ValueError("--switch and --share are for a new contest: name its policies with --candidate")
    names = [_candidate(one) for one in candidate or []]
    when: Literal["surely better"] | None = "surely better" if switches else None
    with contextlib.ExitStack() as stack:
        if _is_service(store):
            remote = stack.enter_context(_client(store)).population(population)
            if end:
                remote.end_contest()
            found = remote.contest(*names, when=when, share=share)
        else:
            from shoal.live.population.controller import existing

            controller = stack.enter_context(opened(store, read_only=not (end or names)))
            chosen = existing(controller, population)
            if end:
                chosen.end_contest(by=_user())
            found = chosen.contest(*names, when=when, share=share, by=_user())
    if as_json:
        print_json(plain(found))
    elif found is None:
        print("the contest has ended" if end else "there is no contest")
    else:
        rows = [
            [one.name, one.verdict, _interval(one), one.decisions, one.differs] for one in found.candidates
        ]
        print_table(("candidate", "verdict", f"more than {found.policy}", "decisions", "differs"), rows)
        print(found)


def _candidate(text: str) -> dict[str, Any]:
    policy, *parameters = text.split(",")
    return {"policy": policy, **dict(assignment("--candidate", one) for one in parameters)}


def _interval(one: "Contender") -> str:
    return "" if not math.isfinite(one.low) else f"{one.difference:+.3g} [{one.low:+.3g}, {one.high:+.3g}]"


@app.command()
def move(
    store: Annotated[str, typer.Argument(metavar="STORE", help="postgresql://….")],
    population: Name,
    to: Annotated[str, typer.Option(metavar="URL", help="The new owner, as `list` shows it.")],
) -> None:
    """Move a population to another server. Requests under way get a 503 and may be repeated."""
    if not store.startswith(("postgresql://", "postgres://")):
        raise ValueError("STORE must be postgresql://…: other stores have one server")
    from shoal.live.journal.stores.postgres import PostgresStore
    from shoal.live.population.servers import move as move_to
    from shoal.live.population.servers import url_of

    with contextlib.closing(PostgresStore(store)) as opened_store:
        before = move_to(opened_store, population, to)
    if before and url_of(before) == url_of(f"{to}#"):
        print(f"{population!r} is owned by {to} already")
    else:
        print(f"{population!r} goes to {to}" + (f", from {url_of(before) or before}" if before else ""))


def owned_by(standing: "PopulationOwner | None") -> str | None:
    """Who owns a population, for people: a server's URL, or another process."""
    if standing is None or not standing.owner:
        return None
    from shoal.live.population.servers import url_of

    return url_of(standing.owner) or standing.owner


def _user() -> str:
    """The user's name, for the record; empty if the system does not know it."""
    try:
        return getpass.getuser()
    except OSError:  # no such user, as in a container
        return ""


def _is_service(store: str) -> bool:
    return store.startswith(("http://", "https://"))


def _client(url: str) -> "Client":
    from shoal.live.client import Client

    return Client(url, os.environ.get("SHOAL_KEY") or None)


def _described(client: "Client", name: str) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(client.population(name).describe())


@contextlib.contextmanager
def opened(store: str, *, read_only: bool = False, create: bool = False) -> Iterator["Controller"]:
    """A controller of a store that exists, unless it may be created."""
    if _is_service(store):
        raise ValueError(
            "STORE must be a file or a database here, not a service; run this where the store is"
        )
    if not create and "://" not in store and not Path(store).is_file():
        raise FileNotFoundError(2, "No such file", store)  # a mistyped path must not become a new store
    from shoal.core.jit.narration import say_nothing_of_compiling
    from shoal.live.population.controller import open as open_controller

    say_nothing_of_compiling()
    with open_controller(store, read_only=read_only) as controller:
        yield controller


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Any]:
    """A bar on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def moment(text: str, option: str = "--before") -> datetime:
    """A time from a date, a date with a time, or a number of days ago."""
    if text.endswith("d") and text[:-1].isdigit():
        return datetime.now(UTC) - timedelta(days=int(text[:-1]))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{option} must be a date such as 2026-01-31, or a number of days such as 90d, got {text!r}"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
