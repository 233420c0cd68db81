"""A request and its repetitions, however it is sent: a plan yields steps, and gets replies to attempts.

Every request of the client may be repeated without being counted twice: a request that makes something has an
id. So a request that may have been lost on the way is made again, after a random pause, until the deadline.
"""

import random
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import msgspec

from shoal.live.protocol.errors import ControllerError, UnavailableError
from shoal.live.protocol.messages import Problem
from shoal.live.protocol.problems import error_of

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


class Work(NamedTuple):
    """A call that may block, such as one that writes to a file; an event loop makes it in a thread."""

    function: Callable[[], Any]


class Reply(NamedTuple):
    """What came back."""

    status: int
    content: bytes = b""
    retry_after: float | None = None
    trouble: str = ""
    """Why nothing came back, or nothing that can be read."""


Plan = Generator[Attempt | Pause | Work, Reply | None, Result]


def exchange(
    method: str,
    path: str,
    kind: type[Result],
    body: Any = None,
    *,
    deadline: float,
    longest: float | None = None,
    done: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan[Result]:
    """Make a request until it is answered; return what the answer holds, or raise the error it stands for.

    Parameters
    ----------
    kind : type
        What the answer holds. An answer that cannot be read as that counts as none: it is not the service's,
        or not complete.
    deadline : float
        Seconds.
    longest : float, optional
        Seconds until an attempt is given up; LONGEST_ATTEMPT by default.
    done : int, optional
        The status that tells a repeated request that an earlier attempt succeeded, whose answer was lost.
    """
    content = None if body is None else msgspec.json.encode(body)
    until = clock() + deadline
    tried = 0
    while True:
        # An attempt gets a part of the time: a server that hangs must leave some for the next attempt.
        timeout = max(0.001, min(until - clock(), longest or LONGEST_ATTEMPT))
        reply = yield Attempt(method, path, content, timeout)
        assert reply is not None
        tried += 1
        if reply.status not in REPEATED:
            try:
                # In the first answer the status `done` is an error; later, an earlier attempt has succeeded.
                return content_of(Reply(204) if tried > 1 and reply.status == done else reply, kind)
            except msgspec.DecodeError as error:
                trouble = f"the answer, with status {reply.status}, cannot be read: {error}"
                reply = reply._replace(trouble=trouble)
        # Full jitter: callers that failed together do not come back together.
        pause = random.uniform(0.0, min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tried, 20)))
        pause = max(pause, reply.retry_after or 0.0)
        # Raised now: waiting until the deadline would change nothing.
        if clock() + pause >= until:
            raise UnavailableError(
                f"no answer within {deadline:g} s and {tried} attempts: {reply.trouble or error_in(reply)}",
                reply.retry_after or 1.0,
            )
        yield Pause(pause)


def content_of(reply: Reply, kind: type[Result]) -> Result:
    """What a reply holds, or the error that it stands for; DecodeError if it holds something else."""
    if not 200 <= reply.status < 300:
        raise error_in(reply)
    if kind is type(None):
        if reply.content:
            raise msgspec.DecodeError("there should be nothing in it")
        return None
    return msgspec.json.decode(reply.content, type=kind)


def error_in(reply: Reply) -> Exception:
    """The error that a reply stands for."""
    try:
        problem = msgspec.json.decode(reply.content, type=Problem)
    except msgspec.DecodeError:
        return ControllerError(f"the service answered with status {reply.status}")
    return error_of(problem, reply.retry_after or 1.0)
