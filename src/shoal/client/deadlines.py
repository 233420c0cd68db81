"""Ends attempts in time, whatever the server does.

A time-out of httpx begins anew with each phase (waiting for a connection, connecting, writing, reading) and
each piece of a phase, so that a server that sends a byte now and then holds its caller for as long as it
likes. Here a phase's time-out is what is left of the attempt when the phase begins. Within a phase, the
blocking client's connections look at the clock at each read and write; in an event loop `asyncio.timeout`
ends the attempt.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

PHASES = ("pool", "connect", "write", "read")
SHORTEST = 0.001
GRACE = 0.25
"""Seconds by which connecting in an event loop may be late before it is cancelled.

Its own time-outs end it earlier, except in transports that have none: a connection that is cancelled in the
middle of a TLS handshake would stay open.
"""
PIECE = 65_536
"""Bytes to write between looks at the clock, which matters if the request is large and its reader slow."""


class _Left(float):
    """Seconds until the end of an attempt, which httpx takes for a time-out; `end` is by `time.monotonic`."""

    end: float


def _until(end: float) -> _Left:
    left = _Left(max(SHORTEST, end - time.monotonic()))
    left.end = end
    return left


class Timeouts(Mapping[str, float]):
    """The extension `timeout` of a request that ends so many seconds from now; looked up as phases begin."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def __getitem__(self, phase: str) -> float:
        return _until(self._end)

    def __iter__(self) -> Iterator[str]:
        return iter(PHASES)

    def __len__(self) -> int:
        return len(PHASES)


def trace(event: str, info: Mapping[str, Any]) -> None:
    """The extension `trace` of a blocking request: makes each new connection look at the clock.

    Replacing its methods is the one way that works with any `httpx.Client`, proxies and TLS included: httpx
    tells of connections but takes none of the caller's own.
    """
    if event.endswith(("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")):
        stream = info["return_value"]
        stream.read = _punctual(stream.read)
        stream.write = _in_pieces(_punctual(stream.write))
        stream.start_tls = _punctual(stream.start_tls)


def _punctual(call: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a connection that gives its time-out as what is left now, not when the phase began."""

    def punctual(*args: Any, timeout: float | None = None, **options: Any) -> Any:
        if isinstance(timeout, _Left):
            if time.monotonic() >= timeout.end:
                raise httpx.ReadTimeout("no complete answer in time")
            timeout = _until(timeout.end)
        return call(*args, timeout=timeout, **options)

    return punctual


def _in_pieces(write: Callable[..., Any]) -> Callable[..., None]:
    def in_pieces(buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE):
            write(buffer[start : start + PIECE], timeout=timeout)

    return in_pieces
