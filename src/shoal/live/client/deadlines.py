"""Ends attempts in time, whatever the server does.

A time-out of httpx begins anew with each phase (waiting for a connection, connecting, writing, reading) and
each piece of a phase, so a server that sends a byte now and then can hold its caller forever. Here a phase's
time-out is what is left of the attempt when the phase begins. Within a phase, the blocking client's
connections look at the clock at each read and write; in an event loop `asyncio.timeout` ends the attempt.
"""

import time
from collections.abc import Iterator, Mapping
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
    """The extension `timeout` of a request with a deadline; looked up as phases begin."""

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

    Replacing its methods is the only way that works with any `httpx.Client`, proxies and TLS included: httpx
    reports its connections but does not accept the caller's own.
    """
    if event.endswith(("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")):
        _make_punctual(info["return_value"])


def _make_punctual(stream: Any) -> None:
    read, write, start_tls = stream.read, stream.write, stream.start_tls

    def read_in_time(max_bytes: int, timeout: float | None = None) -> Any:
        return read(max_bytes, _left_now(timeout))

    def write_in_time(buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE):
            write(buffer[start : start + PIECE], _left_now(timeout))

    def start_tls_in_time(ssl_context: Any, server_hostname: Any = None, timeout: float | None = None) -> Any:
        return start_tls(ssl_context, server_hostname, _left_now(timeout))

    stream.read, stream.write, stream.start_tls = read_in_time, write_in_time, start_tls_in_time


def _left_now(timeout: float | None) -> float | None:
    """What is left of an attempt now, given what was left as the phase began."""
    if not isinstance(timeout, _Left):
        return timeout
    if time.monotonic() >= timeout.end:
        raise httpx.ReadTimeout("no complete answer in time")
    return _until(timeout.end)
