"""Passes requests on to the server that owns a population, and its answers back.

A request is passed on once: a header says so, and whoever gets it answers or refuses. The header allows
nothing. Neither server trusts the other: each looks at the caller's key itself, which is sent along.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.controller.errors import UnavailableError
from shoal.service.core import read_body

HOP = b"x-shoal-hop"
"""Header of a request that another server has passed on."""
SENT = (b"authorization", b"cookie", b"content-type", b"if-none-match")
"""Headers of a request that are passed on. What a browser says of a page's origin has been looked at here."""
RETURNED = ("content-type", "etag", "cache-control", "location", "retry-after", "www-authenticate",
            "x-accel-buffering")  # fmt: skip
"""Headers of an answer that are passed back; those that all answers have are added here."""
TIMEOUT = httpx.Timeout(120.0, connect=2.0, pool=5.0)
"""Seconds. An owner that is frozen is given up as soon as its lease has ended, whatever this says."""
STREAM_PATIENCE = 60.0
"""Seconds without a message after which a stream is given up; the page asks again."""


class Elsewhere:
    """A population that another server owns, and the requests that wait for its answers."""

    __slots__ = ("_loop", "epoch", "owner", "url", "waiting")

    def __init__(self, owner: str, url: str, epoch: int) -> None:
        self.owner, self.url, self.epoch = owner, url, epoch
        self.waiting: set[asyncio.Timeout] = set()
        self._loop = asyncio.get_running_loop()

    def give_up(self) -> None:
        """Wait no longer, once: somebody else owns it, or will."""
        for one in self.waiting:
            one.reschedule(self._loop.time())
        self.waiting.clear()


class Forwarder:
    """Connections to other servers, kept open."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=256, max_keepalive_connections=64, keepalive_expiry=30.0),
            verify=ssl.create_default_context(),  # SSL_CERT_FILE names an authority of one's own
            follow_redirects=False,
            trust_env=False,  # no proxy is between servers
        )

    async def close(self) -> None:
        """End the connections."""
        await self._http.aclose()

    async def forward(self, request: Request, there: Elsewhere) -> Response:
        """The owner's answer; `UnavailableError` if there is none."""
        scope = request.scope
        content = await read_body(request) if scope["method"] in ("POST", "PUT", "PATCH") else None
        given = scope["state"]["headers"]
        headers = [(name, given[name]) for name in SENT if name in given]
        headers += [
            (HOP, b"1"),
            (b"x-request-id", scope["state"]["request_id"].encode()),
            (b"accept-encoding", b"identity"),
        ]
        query = scope["query_string"].decode("ascii")
        url = httpx.URL(there.url + scope["path"] + (f"?{query}" if query else ""))
        sent = self._http.build_request(scope["method"], url, headers=headers, content=content)
        try:
            async with asyncio.timeout(None) as limit:
                there.waiting.add(limit)
                try:
                    answer = await self._http.send(sent, stream=True)
                    if answer.headers.get("content-type", "").startswith("text/event-stream"):
                        return StreamingResponse(_messages(answer), answer.status_code, _headers(answer))
                    body = await answer.aread()
                finally:
                    there.waiting.discard(limit)
        except (httpx.HTTPError, TimeoutError) as error:
            raise UnavailableError(
                f"the population's owner does not answer ({type(error).__name__}); another will take over"
            ) from None
        return Response(body, answer.status_code, _headers(answer))


def is_forwarded(request: Request) -> bool:
    """Whether another server has passed a request on, or somebody says so."""
    return HOP in request.scope["state"]["headers"]


def _headers(answer: httpx.Response) -> dict[str, str]:
    return {name: answer.headers[name] for name in RETURNED if name in answer.headers}


async def _messages(answer: httpx.Response) -> AsyncIterator[bytes]:
    """A stream, until either end closes it or nothing comes any more."""
    parts = answer.aiter_raw()
    try:
        while True:
            async with asyncio.timeout(STREAM_PATIENCE):
                yield await anext(parts)
    except (StopAsyncIteration, httpx.HTTPError, TimeoutError):
        return
    finally:
        await answer.aclose()
