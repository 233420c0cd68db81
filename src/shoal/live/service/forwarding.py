"""Passes requests on to the server that owns a population, and its answers back.

A request is passed on once: a header marks it, and the server that gets it answers or refuses. The header
grants nothing. Neither server trusts the other: each checks the caller's key, which is sent along.

Both ends are ours, so the connections need little of HTTP; a general HTTP client would take several times the
processor time of a decision.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.live.protocol.problems import BusyError
from shoal.live.service.routing import read_body

HOP = b"x-shoal-hop"
"""Header of a request that another server has passed on."""
SENT = (b"authorization", b"cookie", b"content-type", b"if-none-match", b"traceparent", b"tracestate")
"""Headers of a request that are passed on. A browser's Origin has been checked here."""
RETURNED = ("content-type", "etag", "cache-control", "location", "retry-after", "www-authenticate",
            "x-accel-buffering")  # fmt: skip
"""Headers of an answer that are passed back; those that all answers have are added here."""
PATIENCE = 120.0
"""Seconds. An owner that is frozen is given up as soon as its lease has ended, whatever this says."""
CONNECT_PATIENCE = 2.0
STREAM_PATIENCE = 60.0
"""Seconds without a message after which a stream is given up; the page asks again."""
KEPT, KEPT_FOR = 64, 30.0
"""Connections to a server that are kept open, and for how many seconds; it keeps them longer."""


class Elsewhere:
    """A population that another server owns, and the requests that wait for its answers."""

    __slots__ = ("_loop", "epoch", "owner", "url", "waiting")

    def __init__(self, owner: str, url: str, epoch: int) -> None:
        self.owner, self.url, self.epoch = owner, url, epoch
        self.waiting: set[asyncio.Timeout] = set()
        self._loop = asyncio.get_running_loop()

    def give_up(self) -> None:
        """Stop waiting: another server owns it, or will."""
        for one in self.waiting:
            one.reschedule(self._loop.time())
        self.waiting.clear()


class ForwardedReply(NamedTuple):
    """A server's answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    stream: "asyncio.Queue[bytes] | None"
    """The parts of an event stream as they come; an empty one is the last."""


class Connection(asyncio.Protocol):
    """A connection to another server, for one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply: asyncio.Future[ForwardedReply] | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._stream: asyncio.Queue[bytes] | None = None
        self.is_usable = True
        """Whether another request may follow."""
        self.used = 0.0
        """When it was last used."""

    async def ask(self, request: bytes) -> ForwardedReply:
        """Send a request; the answer, or OSError."""
        if self._transport is None or not self.is_usable:
            raise ConnectionResetError("the connection was closed")
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._body = {}, []
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def abort(self) -> None:
        """Close at once."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    def end_stream(self) -> None:
        """End an event stream here."""
        if self._stream is not None:
            self._stream.put_nowait(b"")

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_usable = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionResetError("the connection was closed"))
        self.end_stream()

    def data_received(self, data: bytes) -> None:
        if self._reply is None:  # no request is under way
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("content-type", "").startswith("text/event-stream"):
            self._stream = asyncio.Queue()
            self.is_usable = False
            self._answer(b"")

    def on_body(self, body: bytes) -> None:
        if self._stream is None:
            self._body.append(body)
        else:
            self._stream.put_nowait(body)

    def on_message_complete(self) -> None:
        if self._stream is None:
            self.is_usable = self.is_usable and self._parser.should_keep_alive()
            self._answer(b"".join(self._body))
            self._reply = None
        else:
            self.end_stream()

    def _answer(self, body: bytes) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(
                ForwardedReply(self._parser.get_status_code(), self._headers, body, self._stream)
            )


class Forwarder:
    """Connections to other servers, kept open."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Connection]] = {}
        self._all: set[Connection] = set()
        self._context: ssl.SSLContext | None = None
        self._is_ending = False

    def end_streams(self) -> None:
        """End event streams: those under way, and those still to come."""
        self._is_ending = True
        for connection in self._all:
            connection.end_stream()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._all:
            connection.abort()

    async def forward(self, request: Request, there: Elsewhere) -> Response:
        """The owner's answer; `BusyError` if there is none."""
        scope = request.scope
        body = await read_body(request) if scope["method"] in ("POST", "PUT", "PATCH") else None
        message = _message(request, there.url, body)
        try:
            async with asyncio.timeout(PATIENCE) as limit:
                there.waiting.add(limit)
                try:
                    connection, reply = await self._ask(there.url, message)
                finally:
                    there.waiting.discard(limit)
        except OSError as error:  # a TimeoutError is one, too
            raise BusyError(
                f"the population's owner does not answer ({type(error).__name__}); another will take over"
            ) from None
        headers = {name: reply.headers[name] for name in RETURNED if name in reply.headers}
        if reply.stream is not None:
            if self._is_ending:
                connection.end_stream()
            return StreamingResponse(self._parts(connection, reply.stream), reply.status, headers)
        self._keep(there.url, connection)
        return Response(reply.body, reply.status, headers)

    async def _ask(self, url: str, message: bytes) -> tuple[Connection, ForwardedReply]:
        connection = await self._connection(url)
        try:
            return connection, await connection.ask(message)
        except BaseException:
            self._drop(connection)
            raise

    async def _connection(self, url: str) -> Connection:
        idle = self._idle.setdefault(url, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable and time.monotonic() < connection.used + KEPT_FOR:
                return connection
            self._drop(connection)
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        if is_tls and self._context is None:
            self._context = ssl.create_default_context()  # SSL_CERT_FILE names an authority of one's own
        async with asyncio.timeout(CONNECT_PATIENCE):
            _, connection = await asyncio.get_running_loop().create_connection(
                Connection,
                str(parts.hostname),
                parts.port or (443 if is_tls else 80),
                ssl=self._context if is_tls else None,
            )
        self._all.add(connection)
        return connection

    def _keep(self, url: str, connection: Connection) -> None:
        idle = self._idle.setdefault(url, [])
        if connection.is_usable and len(idle) < KEPT:
            connection.used = time.monotonic()
            idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.abort()

    async def _parts(self, connection: Connection, stream: "asyncio.Queue[bytes]") -> AsyncIterator[bytes]:
        """A stream, until either end closes it, or nothing has come for STREAM_PATIENCE seconds."""
        try:
            while True:
                async with asyncio.timeout(STREAM_PATIENCE):
                    part = await stream.get()
                if not part:
                    return
                yield part
        except TimeoutError:
            return
        finally:
            self._drop(connection)


def is_forwarded(request: Request) -> bool:
    """Whether another server has passed a request on, or the caller claims so."""
    return HOP in request.scope["state"]["headers"]


def _message(request: Request, url: str, body: bytes | None) -> bytes:
    """A request as it goes over the wire. All that the caller sent has been through a parser."""
    scope = request.scope
    given = scope["state"]["headers"]
    method = "GET" if scope["method"] == "HEAD" else scope["method"]  # the body is left out on the way back
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    lines = [
        method.encode() + b" " + scope["path"].encode("ascii") + query + b" HTTP/1.1",
        b"host: " + urlsplit(url).netloc.encode("ascii"),
        HOP + b": 1",
        b"x-request-id: " + scope["state"]["request_id"].encode("ascii"),
        *(name + b": " + given[name] for name in SENT if name in given),
    ]
    if body is not None:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")
