"""The service: `shoal serve`, `demo`, `keys add|list|revoke|rotate`, `backup` and `restore`."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.printing import print_table

app = typer.Typer()
keys_app = typer.Typer(help="Make, list, rotate and revoke keys to the service.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")

StoreUrl = Annotated[str, typer.Argument(metavar="STORE", help="An SQLite file, or postgresql://….")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def serve(
    store: Annotated[
        str,
        typer.Argument(metavar="STORE", help="An SQLite file, postgresql://…, or :memory: to keep nothing."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; without a key, one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name under which it may be called. Can be repeated.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="For HTTPS: certificate chain, PEM.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="For HTTPS: its private key, PEM.")] = None,
    behind_tls: Annotated[
        bool,
        typer.Option(
            "--behind-tls", help="A proxy in front serves HTTPS: cookies for HTTPS only, and a key."
        ),
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="How much it takes, such as agents=1000. Can be repeated."),
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Where to move old records, while it serves.")
    ] = None,
    retain: Annotated[
        str | None, typer.Option(metavar="AGE", help="Age from which on they are moved: 90d, 12h or 30m.")
    ] = None,
    sync: Annotated[
        str, typer.Option(help="What an answer survives: full (power failure) or normal.")
    ] = "full",
    forgotten: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Remembers who was forgotten, as hashes, so that a restored store forgets them again. "
            "[default: beside an SQLite file, none for PostgreSQL]",
        ),
    ] = None,
    log_requests: Annotated[bool, typer.Option(help="Log each request.")] = True,
    audit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Administrative calls, refused callers and looks at explanations. [default: in the log]",
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
        float, typer.Option(help="Seconds after which others take over from a silent server (PostgreSQL).")
    ] = 3.0,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Have servers run on this Ray cluster; auto for the one here."),
    ] = None,
    servers: Annotated[int, typer.Option(min=1, help="How many, on Ray.")] = 2,
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
            raise ValueError("with --ray, servers are at their nodes' addresses: no --host or --advertise")
        from shoal.live.service.on_ray import serve_on_ray

        serve_on_ray(
            store, ray, servers=servers, port=port, options=options, say=lambda text: print(text, flush=True)
        )
        return
    from shoal.core.jit.narration import say_nothing_of_compiling
    from shoal.live.service import logs, server

    say_nothing_of_compiling()
    logs.set_up()
    server.serve(
        store,
        host=host,
        port=port,
        advertise=advertise,
        on_start=lambda url: print(f"shoal serves {_shown(store)} at {url}", flush=True),
        **options,
    )


@app.command()
def demo(
    store: Annotated[
        str | None, typer.Argument(metavar="[STORE]", help="Where to keep it. [default: a temporary file]")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8000,
) -> None:
    """Serve three simulated populations that live, with the page that shows them, until Ctrl-C."""
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
        list[str] | None, typer.Option(help="A population it is for. Can be repeated. [default: all]")
    ] = None,
    expires: Annotated[str | None, typer.Option(help="When it ends: 90d, 12h or 30m from now.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.0, help="Requests a second. [default: the server's]")
    ] = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    user: Annotated[
        str | None, typer.Option(help="For a user whom a proxy signs in, instead of a secret; * for all.")
    ] = None,
) -> None:
    """Make a key and show it, once. A running server knows it at once."""
    from shoal.live.service.keys import USER, open_keys

    if user is not None:
        if note or not user:
            raise ValueError(f"user must be a name, and stands in place of a note, got {user!r} and {note!r}")
        note = USER + user
    keys = open_keys(_durable(store))
    try:
        scopes = [one.strip() for one in scope.split(",")]
        made, text = keys.add(scopes, population or None, expires_in=_seconds(expires), rate=rate, note=note)
    finally:
        keys.close()
    if user is not None:
        print(f"key {made.id} is for {'every user' if user == '*' else user}")
        return
    print(text)
    typer.echo(f"key {made.id}; it is not kept anywhere, so write it down now", err=True)


@keys_app.command("list")
def list_keys(store: StoreUrl, as_json: AsJson = False) -> None:
    """Show the keys: what they allow and until when, not their secrets."""
    from shoal.live.service.keys import open_keys

    keys = open_keys(_durable(store))
    try:
        found = keys.all()
    finally:
        keys.close()
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
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    rest = ("rate", "made", "expires", "revoked", "note")
    lines = []
    for row in rows:
        where = "all" if row["populations"] is None else ", ".join(row["populations"])
        lines.append([row["id"], ", ".join(row["scopes"]), where, *(row[key] for key in rest)])
    print_table(("id", "scopes", "populations", *rest), lines)


@keys_app.command("revoke")
def revoke_key(
    store: StoreUrl, key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, see `list`.")]
) -> None:
    """Let a key open nothing any more; a running server knows at once."""
    from shoal.live.service.keys import open_keys

    keys = open_keys(_durable(store))
    try:
        keys.revoke(key)
    finally:
        keys.close()
    print(f"revoked: {key}")


@keys_app.command("rotate")
def rotate_key(
    store: StoreUrl,
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, see `list`.")],
    grace: Annotated[
        str | None, typer.Option(help="How long the old one goes on: 7d, 12h or 30m. [default: not at all]")
    ] = None,
) -> None:
    """Make a key that allows the same for as long again, show it, once, and let the old one end."""
    from shoal.live.service.keys import open_keys

    keys = open_keys(_durable(store))
    try:
        made, text = keys.rotate(key, _seconds(grace, "grace") or 0.0)
    finally:
        keys.close()
    print(text)
    typer.echo(f"key {made.id} in place of {key}; it is not kept anywhere, so write it down now", err=True)


@app.command()
def backup(
    store: Annotated[str, typer.Argument(metavar="STORE", help="An SQLite file; it may be in use.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; it appears when it is complete.")],
) -> None:
    """Copy a store as of now, also while it is served. For PostgreSQL, use pg_dump."""
    from shoal.live.journal.backups import backup

    size = backup(store, target)
    print(f"{size:,} bytes written to {target}")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `shoal backup` made.")],
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="The SQLite file to be; nobody may write to it.")
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a store that is there.")] = False,
) -> None:
    """Put a copy in a store's place; who was forgotten since is forgotten again."""
    from shoal.live.journal.backups import restore

    restore(source, store, replace=replace)
    print(f"{source} is now {store}")


def _durable(store: str) -> str:
    if store == ":memory:":
        raise ValueError("STORE must be a file or a server: one in memory ends with its process")
    return store


def _seconds(text: str | None, name: str = "expires") -> float | None:
    """How long from now, of a text such as 90d."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([dhm])", text)
    if not found:
        raise ValueError(f"{name} must be such as 90d, 12h or 30m, got {text!r}")
    return int(found[1]) * {"d": 86400.0, "h": 3600.0, "m": 60.0}[found[2]]


def _time(at: float | None) -> str | None:
    return None if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def _shown(store: str) -> str:
    from shoal.live.journal.stores.base import shown_url

    return shown_url(store)
