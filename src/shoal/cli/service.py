"""The service: `shoal serve`, `demo`, `keys add|list|revoke|rotate`, `backup` and `restore`."""

import contextlib
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.population import AsJson, StoreUrl
from shoal.cli.printing import print_json, print_table

if TYPE_CHECKING:  # importing these takes seconds, and `shoal --help` does not need them
    from shoal.live.service.keys import Keys

app = typer.Typer()
keys_app = typer.Typer(help="Make, list, rotate and revoke keys to the service.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")


@app.command()
def serve(
    store: Annotated[
        str,
        typer.Argument(metavar="STORE", help="An SQLite file, postgresql://…, or :memory: to keep nothing."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; without a key, only a loopback address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A host name that clients may use. Can be repeated.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="For HTTPS: certificate chain, PEM.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="For HTTPS: its private key, PEM.")] = None,
    behind_tls: Annotated[
        bool,
        typer.Option(
            "--behind-tls", help="A proxy in front serves HTTPS: secure cookies, and a key is required."
        ),
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A limit, such as agents=1000. Can be repeated."),
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Where to move old records while serving.")
    ] = None,
    retain: Annotated[
        str | None, typer.Option(metavar="AGE", help="Age at which they are moved: 90d, 12h or 30m.")
    ] = None,
    sync: Annotated[
        str, typer.Option(help="full (answers survive a power failure) or normal (a crash only).")
    ] = "full",
    forgotten: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Hashes of forgotten agents, so that a restored store forgets them again. "
            "[default: beside an SQLite file, none for PostgreSQL]",
        ),
    ] = None,
    log_requests: Annotated[bool, typer.Option(help="Log each request.")] = True,
    audit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Log of administrative calls, refused callers and views of explanations. [default: stderr]",
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="A proxy that signs users in. Can be repeated."),
    ] = None,
    user_header: Annotated[
        str | None, typer.Option(metavar="NAME", help="The header in which that proxy names the user.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where other servers on the same PostgreSQL database reach this one. "
            "[default: the address it listens on]",
        ),
    ] = None,
    lease: Annotated[
        float, typer.Option(help="Seconds until others take over from a silent server (PostgreSQL).")
    ] = 3.0,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run servers on this Ray cluster; auto for the local one."),
    ] = None,
    servers: Annotated[int, typer.Option(min=1, help="Number of servers on Ray.")] = 2,
) -> None:
    """Serve decisions over HTTP, until SIGTERM or Ctrl-C. Logs go to stderr, as JSON."""
    options: dict[str, Any] = {
        "allow_hosts": allow_host or (),
        "certificate": None if certificate is None else str(certificate),
        "private_key": None if private_key is None else str(private_key),
        "limits": limit or (), "sync": sync, "log_requests": log_requests, "lease": lease,
        "behind_tls": behind_tls, "proxies": proxy or (), "user_header": user_header,
        "audit": None if audit is None else str(audit.absolute()),
        "archive": None if archive is None else str(archive.absolute()), "retain": _seconds(retain, "retain"),
        "forgotten": None if forgotten is None else str(forgotten.absolute()),
    }  # fmt: skip
    if ray is not None:
        if advertise is not None or host != "127.0.0.1":
            raise ValueError("with --ray, servers use their nodes' addresses: no --host or --advertise")
        from shoal.live.service.on_ray import serve_on_ray

        serve_on_ray(
            store, ray, servers=servers, port=port, options=options, say=lambda text: print(text, flush=True)
        )
        return
    from shoal.core.jit.narration import say_nothing_of_compiling
    from shoal.live.journal.stores.base import shown_url
    from shoal.live.service import logs, server

    say_nothing_of_compiling()
    logs.set_up()
    server.serve(
        store,
        host=host,
        port=port,
        advertise=advertise,
        on_start=lambda url: print(f"shoal serves {shown_url(store)} at {url}", flush=True),
        **options,
    )


@app.command()
def demo(
    store: Annotated[
        str | None, typer.Argument(metavar="[STORE]", help="Where to keep it. [default: a temporary file]")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8000,
) -> None:
    """Serve three simulated live populations, and the page that shows them, until Ctrl-C."""
    import tempfile

    from shoal.core.jit.narration import say_nothing_of_compiling
    from shoal.live.service.demo import demo as run_demo

    say_nothing_of_compiling()
    print("Preparing three populations: shops, antennas and clinics ...", flush=True)

    def say(url: str) -> None:
        print(
            f"They live at {url}/ - open it in a browser. Pairs are cut within a minute. Ctrl-C ends it.",
            flush=True,
        )

    with tempfile.TemporaryDirectory(prefix="shoal-demo-") as directory:
        run_demo(store or str(Path(directory) / "demo.db"), port, say)


@keys_app.command("add")
def add_key(
    store: StoreUrl,
    scope: Annotated[str, typer.Option(help="Some of decide, reward, read and admin, with commas.")],
    population: Annotated[
        list[str] | None, typer.Option(help="A population that it opens. Can be repeated. [default: all]")
    ] = None,
    expires: Annotated[str | None, typer.Option(help="When it expires: 90d, 12h or 30m from now.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.0, help="Requests a second. [default: the server's]")
    ] = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    user: Annotated[
        str | None, typer.Option(help="A user signed in by a proxy, who needs no secret; * for all.")
    ] = None,
) -> None:
    """Make a key and show it once. A running server accepts it immediately."""
    from shoal.live.service.keys import USER

    if user is not None:
        if note or not user:
            raise ValueError(f"user must be a name, and takes the place of a note, got {user!r} and {note!r}")
        note = USER + user
    scopes = [one.strip() for one in scope.split(",")]
    with _keys(store) as keys:
        if population:
            _warn_of_unknown(store, population)
        made, text = keys.add(scopes, population or None, expires_in=_seconds(expires), rate=rate, note=note)
    if user is not None:
        print(f"key {made.id} is for {'every user' if user == '*' else user}")
        return
    print(text)
    typer.echo(f"key {made.id}; it is stored nowhere, so write it down now", err=True)


@keys_app.command("list")
def list_keys(store: StoreUrl, as_json: AsJson = False) -> None:
    """Show the keys: what they allow and until when, not their secrets."""
    with _keys(store) as keys:
        found = keys.all()
    rows: list[dict[str, Any]] = [
        {
            "id": key.id,
            "scopes": sorted(key.scopes),
            "populations": None if key.populations is None else sorted(key.populations),
            "rate": key.rate,
            "made": _time(key.made),
            "expires": _time(key.expires),
            "revoked": _time(key.revoked),
            "note": key.note,
            "valid": key.is_valid(time.time()),
        }
        for key in found
    ]
    if as_json:
        print_json(rows)
        return
    rest = ("rate", "made", "expires", "revoked", "note")
    lines = []
    for row in rows:
        where = "all" if row["populations"] is None else ", ".join(row["populations"])
        lines.append([row["id"], ", ".join(row["scopes"]), where, *(row[key] for key in rest)])
    print_table(("id", "scopes", "populations", *rest), lines, whole=("id",))


@keys_app.command("revoke")
def revoke_key(
    store: StoreUrl, key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, see `list`.")]
) -> None:
    """Revoke a key. A running server refuses it immediately."""
    with _keys(store) as keys:
        keys.revoke(key)
    print(f"revoked: {key}")


@keys_app.command("rotate")
def rotate_key(
    store: StoreUrl,
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, see `list`.")],
    grace: Annotated[
        str | None,
        typer.Option(help="How long the old one stays valid: 7d, 12h or 30m. [default: not at all]"),
    ] = None,
) -> None:
    """Replace a key by one that allows the same for as long again, and show it once."""
    with _keys(store) as keys:
        made, text = keys.rotate(key, _seconds(grace, "grace") or 0.0)
    print(text)
    typer.echo(f"key {made.id} in place of {key}; it is stored nowhere, so write it down now", err=True)


@app.command()
def backup(
    store: Annotated[str, typer.Argument(metavar="STORE", help="An SQLite file; it may be in use.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; it appears when it is complete.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a copy that exists.")] = False,
) -> None:
    """Copy a store, even while it is served. For PostgreSQL, use pg_dump."""
    from shoal.live.journal.backups import backup

    size = backup(store, target, replace=replace)
    print(f"{size:,} bytes written to {target}")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `shoal backup` made.")],
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="The SQLite file to write; no server may be using it.")
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a store that exists.")] = False,
) -> None:
    """Restore a store from a copy. Agents forgotten since it was made are forgotten again."""
    from shoal.live.journal.backups import restore

    restore(source, store, replace=replace)
    print(f"{source} is now {store}")


def _keys(store: str) -> "contextlib.closing[Keys]":
    from shoal.live.service.keys import open_keys

    if store == ":memory:":
        raise ValueError("STORE must be a file or a server: one in memory ends with its process")
    return contextlib.closing(open_keys(store))


def _warn_of_unknown(store: str, populations: list[str]) -> None:
    """Say which populations do not exist; they may be made later."""
    from shoal.live.journal.stores import open_store
    from shoal.live.population.controller import listed
    from shoal.live.protocol.errors import JournalError

    try:
        with contextlib.closing(open_store(store, read_only=True)) as opened:
            known = list(opened.populations())
    except JournalError:  # a database without tables
        known = []
    for name in populations:
        if name not in known:
            said = f"the store has no population {name!r} yet; it has {listed(known)}"
            typer.echo(f"warning: {said}", err=True)


def _seconds(text: str | None, name: str = "expires") -> float | None:
    """The seconds in a text such as 90d."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([dhm])", text)
    if not found:
        raise ValueError(f"{name} must be such as 90d, 12h or 30m, got {text!r}")
    return int(found[1]) * {"d": 86400.0, "h": 3600.0, "m": 60.0}[found[2]]


def _time(at: float | None) -> str | None:
    return None if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
