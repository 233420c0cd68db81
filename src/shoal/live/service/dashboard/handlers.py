"""The handlers of the page, of its files, and of what it asks for."""

import functools
import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import shoal.reporting
from shoal.live.protocol.problems import RefusedError
from shoal.live.service.dashboard import data
from shoal.live.service.dashboard.refusals import refusals, refused_rewards
from shoal.live.service.dashboard.watching import Watched
from shoal.live.service.routing import Call, json_response

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
"""The files that are served, by name: no path is ever made from a request."""
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
        "cache-control": "no-cache",  # cached, and revalidated each time
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match", "").removeprefix("W/") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        content = small
        headers["content-encoding"] = "gzip"
    return Response(content, headers=headers, media_type=KINDS[path.suffix])


async def page(call: Call) -> Response:
    """The page."""
    return _file(call.request, STATIC / "index.html")


async def file(call: Call) -> Response:
    """One of its files."""
    path = FILES.get(call.names["path"])
    if path is None:
        raise RefusedError("unknown", "the page has no such file")
    return _file(call.request, path)


# What it asks for


async def _watched(call: Call) -> Watched:
    await call.population()  # an error says which populations the key may see
    return await call.service.watch.of(call.names["population"])


async def _answer(call: Call, function: Callable[..., Any], *arguments: Any) -> Response:
    """What a function returns, computed in a thread."""
    return json_response(await call.service.run(function, *arguments))


async def summary(call: Call) -> Response:
    """The population on the first page."""
    counts = refused_rewards(call.service.metrics, call.names["population"])
    alarms = call.service.alarms.get(call.names["population"], [])
    return await _answer(call, data.summary, (await _watched(call)).picture, *counts, alarms)


async def overview(call: Call) -> Response:
    """Time series in slots of `step` seconds."""
    step = call.number("step") or 60
    return await _answer(call, data.overview, (await _watched(call)).follower, step)


async def graph(call: Call) -> Response:
    """Who shares with whom, now or after the record `at`."""
    at, picture = call.number("at"), (await _watched(call)).picture
    if at is None:
        return await _answer(call, picture.draw)
    return json_response(await call.ask(lambda: picture.draw(at)))


async def agents(call: Call) -> Response:
    """Agents whose names contain `search`, or those at places `from`, …, `to` − 1 of the heat map."""
    first, end = call.number("from"), call.number("to")
    group = None if first is None or end is None else (first, end)
    start, search, at = call.number("start", 0), call.query.get("search", ""), call.number("at")
    picture = (await _watched(call)).picture
    if at is None:
        return await _answer(call, picture.page, search, start, group)
    return json_response(await call.ask(lambda: picture.page(search, start or 0, group, at)))


async def moment(call: Call) -> Response:
    """Figures and arms after the record `at`, or the last one that was read; replays the journal."""
    at, picture = call.number("at"), (await _watched(call)).picture
    return json_response(await call.ask(lambda: picture.moment(picture.follower.seq if at is None else at)))


async def agent(call: Call) -> Response:
    """An agent, explained."""
    return await _answer(call, (await _watched(call)).picture.agent, call.names["agent"])


async def arms(call: Call) -> Response:
    """The arms."""
    return await _answer(call, data.arms, (await _watched(call)).follower)


async def settings(call: Call) -> Response:
    """Settings and their history."""
    return await _answer(call, data.settings, (await _watched(call)).follower)


async def refused(call: Call) -> Response:
    """Refused requests to the whole server; like /metrics, for keys to all populations."""
    return await _answer(call, refusals, call.service.metrics)


async def live(call: Call) -> Response:
    """What is new, once a second, as server-sent events."""
    messages = await call.service.watch.listen(await _watched(call), call.key)
    headers = {"x-accel-buffering": "no"}  # proxies pass messages on at once
    return StreamingResponse(messages, headers=headers, media_type="text/event-stream")
