"""The routes of the page: itself, its files, and what it asks for. All data needs the scope `read`."""

import functools
import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

import shoal.reporting
from shoal.live.protocol.problems import RefusedError
from shoal.live.service.core import Service, json_response, name_in
from shoal.live.service.dashboard import data
from shoal.live.service.dashboard.refusals import refusals
from shoal.live.service.dashboard.watching import Watch, Watched

STATIC = Path(__file__).parent / "static"
REPORTING = Path(shoal.reporting.__file__).parent / "assets"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".LICENSE": "text/plain"}
FILES = {
    **{
        path.relative_to(STATIC).as_posix(): path
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in KINDS and path.name != "index.html"
    },
    **{f"vendor/{name}": REPORTING / name for name in ("uplot.js", "uplot.css", "uplot.LICENSE")},
}
"""What may be asked for by name: no path is ever made of what a client says."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


# The page and its files


@functools.cache
def packed(path: Path) -> tuple[bytes, bytes, str]:
    """A file, the same compressed, and its ETag."""
    content = path.read_bytes()
    digest = hashlib.blake2b(content, digest_size=12).hexdigest()
    return content, gzip.compress(content, 6, mtime=0), f'"{digest}"'


def _file(request: Request, path: Path) -> Response:
    content, small, tag = packed(path)
    headers = {
        "content-security-policy": POLICY,
        "etag": tag,
        "cache-control": "no-cache",  # kept, and asked about each time
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match", "").removeprefix("W/") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        content = small
        headers["content-encoding"] = "gzip"
    return Response(content, headers=headers, media_type=KINDS[path.suffix])


async def page(request: Request) -> Response:
    """The page."""
    return _file(request, STATIC / "index.html")


async def file(request: Request) -> Response:
    """One of its files."""
    path = FILES.get(request.path_params["path"])
    if path is None:
        raise RefusedError("unknown", "the page has no such file")
    return _file(request, path)


# What it asks for


async def _watched(request: Request) -> Watched:
    service: Service = request.app
    if not hasattr(service.state, "watch"):
        service.state.watch = Watch(service)
    found: Watched = await service.state.watch.of(name_in(request, "population"))
    return found


def _number(request: Request, what: str) -> int | None:
    given = request.query_params.get(what)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise ValueError(f"{what} must be a whole number of at most 15 digits, got {given[:40]!r}")
    return int(given)


async def _answer(request: Request, function: Callable[..., Any], *arguments: Any) -> Response:
    """What a function says, computed in a thread."""
    service: Service = request.app
    return json_response(await service.run(function, *arguments))


async def summary(request: Request) -> Response:
    """The population on the first page."""
    return await _answer(request, data.summary, (await _watched(request)).picture)


async def overview(request: Request) -> Response:
    """Time series in slots of `step` seconds."""
    step = _number(request, "step") or 60
    return await _answer(request, data.overview, (await _watched(request)).follower, step)


async def graph(request: Request) -> Response:
    """Who shares with whom, now or after the record `at`."""
    return await _answer(request, (await _watched(request)).picture.draw, _number(request, "at"))


async def agents(request: Request) -> Response:
    """Agents whose names contain `search`, or those at places `from`, …, `to` − 1 of the heat map."""
    first, end = _number(request, "from"), _number(request, "to")
    group = None if first is None or end is None else (first, end)
    start = _number(request, "start") or 0
    search = request.query_params.get("search", "")
    return await _answer(request, (await _watched(request)).picture.page, search, start, group)


async def agent(request: Request) -> Response:
    """An agent, explained."""
    return await _answer(request, (await _watched(request)).picture.agent, name_in(request, "agent"))


async def arms(request: Request) -> Response:
    """The arms."""
    return await _answer(request, data.arms, (await _watched(request)).follower)


async def settings(request: Request) -> Response:
    """Settings and their history."""
    return await _answer(request, data.settings, (await _watched(request)).follower)


async def refused(request: Request) -> Response:
    """Requests to the whole server that were refused: for keys of all populations, as /metrics is."""
    service: Service = request.app
    return await _answer(request, refusals, service.metrics)


async def live(request: Request) -> Response:
    """What is new, once a second, as server-sent events."""
    watched = await _watched(request)
    messages = await request.app.state.watch.listen(watched)
    headers = {"x-accel-buffering": "no"}  # proxies pass messages on at once
    return StreamingResponse(messages, headers=headers, media_type="text/event-stream")


_P = "/dashboard/{population}"
routes: list[BaseRoute] = [
    Route("/", page),
    Route("/static/{path:path}", file),
    Route("/dashboard/refusals", refused),
    Route(f"{_P}/summary", summary),
    Route(f"{_P}/overview", overview),
    Route(f"{_P}/graph", graph),
    Route(f"{_P}/agents", agents),
    Route(f"{_P}/agents/{{agent}}", agent),
    Route(f"{_P}/arms", arms),
    Route(f"{_P}/settings", settings),
    Route(f"{_P}/live", live),
]
"""All of them, GET only."""
