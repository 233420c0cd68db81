"""A Starlette route for each row of the table: it checks the key, and decodes names, query and body."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from shoal.live.population.asynchronous import AsyncPopulation
from shoal.live.population.controller import no_population
from shoal.live.protocol.errors import LimitError, UnknownError
from shoal.live.protocol.messages import NewDecision, encoder
from shoal.live.protocol.problems import RefusedError
from shoal.live.service.callers import authorise
from shoal.live.service.keys import Key
from shoal.live.service.service import ClientGoneError, Result, Service

MOST_ARMS = 10_000
"""Arms on offer in one request, added up over a batch."""
LARGEST_BODY = 4_000_000
LARGEST_UNSIGNED = 1_000
"""Bytes of the body of a request that needs no key: `POST /session`."""


class Endpoint(NamedTuple):
    """A row of the table of routes."""

    method: str
    path: str
    scope: str | None
    """What the key must allow; SIGNED_IN for any key, None for no key."""
    handler: "Handler"
    """Its answer; None for no content."""
    answers: Mapping[int, Any] = {}
    """Answers to a successful request, by status: a type, several types, or None for no content.

    The page's routes have none and are not in the OpenAPI document.
    """
    body: Any = None
    query: tuple[str, ...] | None = ()
    """Parameters that the query may have; None if it is ignored."""
    by_id: bool = False
    """Whether a conflict means that the caller's id stands for another request."""
    headers: tuple[str, ...] = ()
    """Further headers of a successful answer; those with 304 have an ETag."""
    audited: bool = False
    """Whether each call is in the audit log, as are those of `admin` routes."""
    fills: bool = False
    """Whether it makes the store larger; rewards do not count, so that decisions already made can end."""
    refusal: Callable[[Service, Exception, str | None], Response | None] = lambda *_: None
    """The answer to a failed request, from its error and population; None for a problem document."""


@dataclass(slots=True)
class Call:
    """A request, as handlers see it."""

    service: Service
    request: Request
    key: Key
    names: dict[str, str]
    """From the path: population, agent, id, arm."""
    query: dict[str, str]
    body: Any

    async def population(self) -> AsyncPopulation:
        """The population in the path."""
        name, service = self.names["population"], self.service
        try:
            return await service.population(name)
        except UnknownError as error:
            there = await service.run(service.controller.populations)
            if name in there:
                raise
            allowed = [one for one in there if self.key.populations is None or one in self.key.populations]
            raise no_population("the store", name, allowed) from error

    async def ask(self, function: Callable[[], Result], *, ends: bool = True) -> Result:
        """See `Service.ask`."""
        return await self.service.ask(self.key, self.request, function, ends=ends)

    def number(self, name: str, default: int | None = None, *, high: int = 2**62) -> int | None:
        """A number from the query."""
        text = self.query.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or int(text) > high:
            raise RefusedError("invalid", f"{name} must be an integer from 0 to {high:,}, got {text[:40]!r}")
        return int(text)


Handler = Callable[[Call], Awaitable[Response | None]]


def route(one: Endpoint, service: Service) -> Route:
    """The Starlette route of a row."""
    # A GET that may answer 304 depends on the journal alone; a POST has to decide for itself.
    handler = _tagged(one.handler) if one.method == "GET" and 304 in one.answers else one.handler
    decoder = None if one.body is None else msgspec.json.Decoder(one.body)
    largest = LARGEST_BODY if one.scope is not None else LARGEST_UNSIGNED

    async def answer(request: Request, names: dict[str, str]) -> Response:
        scope = request.scope
        population = names.get("population")
        key = authorise(service, request, one.scope, population)
        if population is not None and not service.is_here(population):
            assert service.ownership is not None
            if (found := await service.ownership.answer(request, population)) is not None:
                return found
        if one.fills and service.full is not None:
            raise LimitError(str(service.full), service.full.limit)
        query = _query(scope["query_string"], one.query) if scope["query_string"] else {}
        body = None if decoder is None else _decoded(decoder, await read_body(request, largest))
        made = await handler(Call(service, request, key, names, query, body))
        return Response(status_code=204) if made is None else made

    async def endpoint(request: Request) -> Response:
        scope, names = request.scope, dict[str, str]()
        scope["state"].update(route=one.path, by_id=one.by_id, audited=one.audited or one.scope == "admin")
        try:
            names = {name: _unquoted(name, text) for name, text in scope["path_params"].items()}
            scope["state"]["population"] = names.get("population")
            return await answer(request, names)
        except Exception as error:
            if (refused := one.refusal(service, error, names.get("population"))) is None:
                raise
            return refused

    return Route(one.path, _Plain(endpoint), methods=[one.method], name=one.handler.__name__)


class _Plain:
    """An endpoint that Starlette calls as an application; as a function, it would cost a third more.

    The difference is turning errors into answers, which middleware.py does for all requests.
    """

    def __init__(self, endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def _tagged(handler: Handler) -> Handler:
    """304 if the client already has this version; for answers that depend on the journal alone."""

    async def answer(call: Call) -> Response | None:
        # Before the state is read: an answer may be newer than its tag, never older.
        tag = _etag(await call.population())
        seen = call.request.scope["state"]["headers"].get(b"if-none-match")
        if tag and seen is not None and tag["etag"].encode() in (one.strip() for one in seen.split(b",")):
            return Response(status_code=304, headers=tag)
        response = await handler(call)
        assert response is not None  # a route that answers 304 has something to answer
        response.headers.update(tag)
        return response

    return answer


def _etag(population: AsyncPopulation) -> dict[str, str]:
    """Number and time of the last record; the number alone would be the same in a new store."""
    version = population.owner.version
    return {} if version is None else {"etag": f'"{version}"', "cache-control": "private, no-cache"}


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(encoder.encode(content), status, headers, "application/json")


def check_arms(requests: Sequence[NewDecision]) -> None:
    """Refuse requests with too many arms on offer."""
    count = sum(len(one.arms) for one in requests if one.arms is not None)
    if count > MOST_ARMS:
        raise RefusedError("too-large", f"{MOST_ARMS:,} arms may be on offer in one request, got {count:,}")


async def read_body(request: Request, largest: int = LARGEST_BODY) -> bytes:
    """The body of a request, which must be JSON and not too large."""
    headers = request.scope["state"]["headers"]
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise RefusedError("media-type", "the body must be JSON, with Content-Type: application/json")
    length = headers.get(b"content-length", b"0")
    announced = int(length) if length.isdigit() else 0
    parts: list[bytes] = []
    size = 0
    while max(announced, size) <= largest:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size <= largest and not message.get("more_body"):
            return b"".join(parts)
    raise RefusedError("too-large", f"a body may have {largest:,} bytes here", {"connection": "close"})


def _unquoted(name: str, text: str) -> str:
    """A name from the path, percent-decoded."""
    if "%" not in text:
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise RefusedError("malformed", f"{name} in the path must be UTF-8, percent-encoded") from None


def _query(text: bytes, known: tuple[str, ...] | None) -> dict[str, str]:
    if known is None:
        return {}
    try:
        found = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError:
        raise RefusedError("malformed", "the query must be percent-encoded UTF-8") from None
    for name, _ in found:
        if name not in known:
            may = f"it may have {', '.join(known)}" if known else "none is expected"
            raise RefusedError("invalid", f"the query has {name[:40]!r}; {may}")
    return dict(found)


def _decoded(decoder: "msgspec.json.Decoder[Any]", body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except RecursionError:
        raise RefusedError("malformed", "the body is nested too deeply") from None
