"""Around every request: limits, its id, headers, metrics, a line in the log; errors as problem documents."""

import logging
import random
import re
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.live.protocol.messages import encoder
from shoal.live.protocol.problems import MEDIA_TYPE, BusyError, RefusedError, headers_of, kind_of
from shoal.live.service.callers import check_host
from shoal.live.service.forwarding import HOP
from shoal.live.service.logs import log_failure, log_seldom
from shoal.live.service.service import ClientGoneError, Service

log = logging.getLogger("shoal.service")
_random = random.Random()  # for ids of requests, on which nothing depends; the system's randomness is slower

PROBES = ("/livez", "/readyz")
"""Paths that orchestrators call by address; they are answered however many requests are under way."""
MOST_WAITING = 2_000
"""Requests under way."""
MOST_CONNECTIONS = 5_000
DENIALS = 10.0
"""Requests a second without a valid key that are audited."""
MOST_READ = 100_000_000
"""Bytes of the bodies of all requests under way."""
SINGLE = (b"authorization", b"host", b"content-type")
"""Headers that a request may have only once."""
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""On every answer."""
TRANSPORT = [(b"strict-transport-security", b"max-age=31536000")]
"""On every answer over TLS: browsers then use nothing else."""
STRICT = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]
"""On every answer whose handler does not set them itself."""


def answered(app: ASGIApp, service: Service) -> ASGIApp:
    """Middleware that turns errors into problem documents, and counts and logs every answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        start = time.perf_counter()
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id"))
        state: dict[str, Any] = {
            "headers": headers,
            "request_id": request_id,
            "route": "none",
            "key": None,
            "user": None,
            "population": None,
            "audited": False,
            "by_id": False,
        }
        scope["state"] = state
        scope["app"] = app  # without it, Starlette answers an unknown path itself, instead of raising
        scope["path"] = scope["raw_path"].decode("ascii")  # a name may hold an encoded slash
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _audit(service, scope, status)
                given = {name for name, _ in message["headers"]}
                strict = [one for one in STRICT if one[0] not in given]
                own_id = (b"x-request-id", request_id.encode())
                safe = TRANSPORT if service.behind_tls or scope["scheme"] == "https" else ()
                message["headers"] = [*message["headers"], *HEADERS, own_id, *strict, *safe]
            await send(message)

        try:
            await app(scope, receive, send_on)
        except ClientGoneError:
            status = 499
            _audit(service, scope, status)
        except Exception as error:
            response = _problem(service, error, scope)
            if not status:
                await response(scope, receive, send_on)
        _record(service, scope, status, time.perf_counter() - start)

    return answer if service.tracing is None else service.tracing.around(answer)


def admitted(app: ASGIApp, service: Service) -> ASGIApp:
    """Middleware that bounds what all requests under way take together, and checks the host they name."""

    async def admit(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        if len(service.connections) > MOST_CONNECTIONS:
            headers = {"retry-after": "1", "connection": "close"}
            raise RefusedError("unavailable", f"{MOST_CONNECTIONS:,} connections are open", headers)
        if scope["path"] not in PROBES:
            if service.under_way >= MOST_WAITING:
                raise BusyError(f"{MOST_WAITING:,} requests are under way")
            check_host(service.hosts, scope["state"]["headers"])
        if len(scope["headers"]) != len(scope["state"]["headers"]):
            names = [name for name, _ in scope["headers"]]
            for one in SINGLE:
                if names.count(one) > 1:  # we and a proxy in front of us might each believe a different one
                    raise RefusedError("malformed", f"a request must have one header {one.decode()!r}")
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            size = len(message.get("body", b""))
            read += size
            service.bytes_read += size
            if service.bytes_read > MOST_READ:
                raise BusyError(f"requests under way have sent {MOST_READ:,} bytes")
            return message

        service.under_way += 1
        try:
            await app(scope, counted, send)
        finally:
            service.under_way -= 1
            service.bytes_read -= read

    return admit


def _problem(service: Service, error: Exception, scope: Scope) -> Response:
    """An error as a problem document; one that is unexpected is logged."""
    state = scope["state"]
    if isinstance(error, HTTPException):  # Starlette's, for an unknown path or method
        if error.status_code == 405:
            methods = ", ".join(_methods(scope))
            detail = f"{scope['method']} is none of the methods of this route: {methods}"
            error = RefusedError("method", detail, {"allow": methods})
        else:
            error = RefusedError("unknown", "there is no such route")
    if kind_of(error) == "internal":
        log_failure(log, error, state["request_id"], state["route"])
    problem = service.problem_of(error, state["request_id"], by_id=state["by_id"])
    return Response(encoder.encode(problem), problem.status, headers_of(error), MEDIA_TYPE)


def _methods(scope: Scope) -> list[str]:
    """The methods of a path. Each has a route of its own, and Starlette names only those of the first."""
    routes: list[Route] = scope["router"].routes
    return sorted(
        {name for one in routes if one.matches(scope)[0] != Match.NONE for name in one.methods or ()}
    )


def _record(service: Service, scope: Scope, status: int, seconds: float) -> None:
    """Count an answer, and write its line in the log."""
    method, state = scope["method"], scope["state"]
    service.metrics.answered(method, state["route"], status, seconds)
    if service.access_log is not None:
        key = None if state["key"] is None else state["key"].id
        service.access_log(
            {"request": state["request_id"], "method": method, "route": state["route"], "status": status,
             "key": key, "ms": round(seconds * 1e3, 3)}
        )  # fmt: skip


def _audit(service: Service, scope: Scope, status: int) -> None:
    """Log an administrative call, a refused caller or a view of an explanation, before the answer."""
    state, refused = scope["state"], status in (401, 403)
    if service.audit is None or not (state["audited"] or refused):
        return
    if status == 401 and service.limits.take("audit", DENIALS):  # strangers cannot fill the disk
        service.unaudited += 1
        return
    key = state["key"]
    fields = {
        "request": state["request_id"], "key": None if key is None else key.id, "user": state["user"],
        "method": scope["method"], "route": state["route"],
        "population": None if status in (401, 404) else state["population"],  # a stranger's text, if any
        "status": status, "forwarded": HOP in state["headers"], "left_out": service.unaudited,
    }  # fmt: skip
    service.unaudited = 0
    try:
        service.audit(fields)
    except OSError as error:
        log_seldom(log, f"the audit log cannot be written: {error}")


def _request_id(given: bytes | None) -> str:
    """The caller's id of a request, if its form shows that it holds no name; otherwise a new one."""
    if given is not None and re.fullmatch(rb"[0-9a-fA-F-]{8,64}", given):
        return given.decode()
    return f"{_random.getrandbits(64):016x}"
