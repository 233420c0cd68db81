"""A request and its repetitions, however it is sent: a plan yields attempts and pauses, and gets replies.

Every request of the client may be repeated without being counted twice: whatever makes something has an id.
So whatever may have gone wrong on the way is tried again, after a random pause, until the deadline.
"""

import random
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import msgspec

from shoal.controller.errors import ControllerError, UnavailableError
from shoal.service.messages import Problem
from shoal.service.problems import error_of

Result = TypeVar("Result")
REPEATED = frozenset({0, 408, 429, 502, 503, 504})
"""Statuses after which a request is made again; 0 stands for no answer at all."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
LONGEST_ATTEMPT = 5.0
"""Seconds until an attempt is given up."""


class Attempt(NamedTuple):
    """A request to send."""

    method: str
    path: str
    content: bytes | None
    timeout: float


class Pause(NamedTuple):
    """Seconds to wait."""

    seconds: float


class Reply(NamedTuple):
    """What came back."""

    status: int
    content: bytes = b""
    retry_after: float | None = None
    trouble: str = ""
    """Why nothing did."""


Plan = Generator[Attempt | Pause, Reply | None, Result]


def exchange(
    method: str,
    path: str,
    body: Any = None,
    *,
    deadline: float,
    longest: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan[tuple[Reply, int]]:
    """Make a request until it is answered; the reply, and how often it was tried.

    An attempt is given up after `longest` seconds, LONGEST_ATTEMPT by default.
    """
    content = None if body is None else msgspec.json.encode(body)
    until = clock() + deadline
    tried = 0
    while True:
        timeout = max(0.001, min(until - clock(), longest or LONGEST_ATTEMPT))
        reply = yield Attempt(method, path, content, timeout)
        assert reply is not None
        tried += 1
        if reply.status not in REPEATED:
            return reply, tried
        # Full jitter: callers who failed together do not come back together.
        pause = random.uniform(0.0, min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tried, 20)))
        pause = max(pause, reply.retry_after or 0.0)
        if clock() + pause >= until:
            raise UnavailableError(
                f"no answer within {deadline:g} s and {tried} attempts: {_said(reply)}",
                reply.retry_after or 1.0,
            )
        yield Pause(pause)


def content_of(reply: Reply, kind: type[Result]) -> Result:
    """What a reply holds, or the error that it stands for."""
    if not 200 <= reply.status < 300:
        raise error_in(reply)
    if kind is type(None):
        return None
    return msgspec.json.decode(reply.content, type=kind)


def error_in(reply: Reply) -> Exception:
    """The error that a reply stands for."""
    try:
        problem = msgspec.json.decode(reply.content, type=Problem)
    except msgspec.DecodeError:
        return ControllerError(f"the service answered with status {reply.status}")
    return error_of(problem, reply.retry_after or 1.0)


def _said(reply: Reply) -> str:
    return reply.trouble if not reply.status else str(error_in(reply))
