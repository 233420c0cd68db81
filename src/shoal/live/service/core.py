"""What stands around the handlers: who calls, how often, what is counted and logged, how errors look."""

import asyncio
import contextlib
import itertools
import logging
import math
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import msgspec
from msgspec import UNSET
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Message, Receive, Scope, Send

from shoal.core.policies.registry import make_policy
from shoal.core.policies.warming import FIRST, TRIAL, exercise
from shoal.live.journal.arms import checked_name
from shoal.live.population.asynchronous import Arrivals, AsyncPopulation
from shoal.live.population.controller import Controller
from shoal.live.population.population import Population
from shoal.live.protocol.errors import (
    ControllerError,
    JournalError,
    NotOwnerError,
    UnknownError,
)
from shoal.live.protocol.messages import Problem, encoder
from shoal.live.protocol.problems import (
    AWAY,
    MEDIA_TYPE,
    BusyError,
    RefusedError,
    headers_of,
    kind_of,
    problem_of,
)
from shoal.live.service.keys import ANYBODY, Key, Keys
from shoal.live.service.limits import Limits, whole_seconds
from shoal.live.service.logs import log_failure, log_seldom
from shoal.live.service.metrics import Metrics
from shoal.live.service.sessions import Sessions

if TYPE_CHECKING:
    from shoal.live.service.ownership import Ownership

Result = TypeVar("Result")
_random = random.Random()  # for ids of requests, of which nothing depends; asking the system takes longer
log = logging.getLogger("shoal.live.service")

SIGNED_IN = "signed in"
"""In the table of routes: any key will do."""
PROBES = ("/livez", "/readyz")
"""Paths that are called by address, and answered however many requests are under way."""
HOSTS = ("localhost", "127.0.0.1", "[::1]")
LARGEST_BODY = 4_000_000
LARGEST_UNSIGNED = 1_000
"""Bytes of the body of a request that anybody may make: `POST /session`."""
MOST_READ = 100_000_000
"""Bytes of the bodies of all requests under way."""
MOST_WAITING = 2_000
"""Requests under way."""
MOST_CONNECTIONS = 5_000
RETRY = 30.0
"""Seconds after which a population whose journal is damaged is tried again."""
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""Of every answer. Those of the API also have the following, where a handler does not say otherwise."""
STRICT = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]


class Endpoint(NamedTuple):
    """A row of the table of routes."""

    method: str
    path: str
    scope: str | None
    """What the key must allow; SIGNED_IN for any key, None for anybody."""
    handler: Callable[["Call"], Awaitable[Response]]
    answers: Mapping[int, Any]
    """What is answered when all goes well, by status: a type, several types, or None for no content."""
    body: Any = None
    query: tuple[str, ...] = ()
    """Names of what may follow the `?`."""
    by_id: bool = False
    """Whether a conflict means that an id of the caller's stands for another request."""
    headers: tuple[str, ...] = ()
    """Further headers of what is answered when all goes well; those with 304 have an ETag."""


class Call:
    """A request, as the handlers of the table see it."""

    __slots__ = ("body", "key", "names", "query", "request", "service")

    def __init__(
        self, service: "Service", request: Request, key: Key, body: Any, query: dict[str, str]
    ) -> None:
        self.service, self.request, self.key, self.body, self.query = service, request, key, body, query
        self.names = {name: name_in(request, name) for name in request.path_params}
        """From the path: population, agent, id, arm."""

    async def population(self) -> AsyncPopulation:
        """The population in the path."""
        return await self.service.population(self.names["population"])

    def number(self, name: str, default: int | None = None, *, high: int = 2**62) -> int | None:
        """A number from the query."""
        text = self.query.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or int(text) > high:
            raise RefusedError("invalid", f"{name} must be an integer from 0 to {high:,}, got {text[:40]!r}")
        return int(text)


class ClientGoneError(Exception):
    """Nobody waits for the answer."""


class Service:
    """The application, by the ASGI protocol.

    Parameters
    ----------
    controller : Controller
        The service's from now on: it is closed when the server stops.
    keys : Keys
    table : sequence of Endpoint
    further : sequence of Starlette's routes
        Those of the dashboard.
    is_open : bool
        Whether anybody may call while there are no keys: only if nobody but this machine can reach us.
    hosts : collection of str
        Names under which the server may be called; "*" for any.
    behind_tls : bool
        Whether browsers reach it by HTTPS at a proxy in front, whatever the scheme here.
    limits : Limits
    access_log : callable, optional
        Takes the fields of each request's line.
    """

    def __init__(
        self,
        controller: Controller,
        keys: Keys,
        table: Sequence[Endpoint],
        further: Sequence[BaseRoute] = (),
        *,
        is_open: bool = False,
        hosts: Collection[str] = HOSTS,
        behind_tls: bool = False,
        limits: Limits | None = None,
        access_log: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.controller, self.keys, self.is_open, self.table = controller, keys, is_open, table
        self.hosts, self.limits, self._access_log = frozenset(hosts), limits or Limits(), access_log
        self.behind_tls = behind_tls
        self.store = controller.store.url
        """Where the store is, which clients are not told."""
        self.sessions = Sessions()
        self.metrics = Metrics(self)
        self.stopping = asyncio.Event()
        self.is_prepared = False
        """Whether all populations have been opened and their policies compiled, or cannot be."""
        self.populations: dict[str, AsyncPopulation] = {}
        self.ownership: Ownership | None = None
        """Who owns what, where other servers share the store."""
        self.state = SimpleNamespace(service=self)
        self._elsewhere: dict[str, tuple[float, NotOwnerError]] = {}
        self._damaged: dict[str, tuple[float, str]] = {}
        """Populations that could not be opened because of what is recorded: when that was tried, and why."""
        self._compiled: dict[str, asyncio.Event] = {}
        """Policies that can decide, and whether the rest of them is compiled, too."""
        self._under_way = 0
        self._read = 0
        """Bytes of bodies that requests under way have sent."""
        self.connections: Collection[object] = ()
        """Those that the server has open."""
        self._commands = ThreadPoolExecutor(16, "shoal-command")
        self._slow = ThreadPoolExecutor(4, "shoal-slow")
        self._arrivals: Arrivals | None = None
        self.routes = [*(_route(one) for one in table), *map(_guarded, further)]
        self._router = Router(self.routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        if scope["type"] != "http":
            return
        start = time.perf_counter()
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id"))
        state = {
            "headers": headers,
            "request_id": request_id,
            "route": "none",
            "key": None,
            "by_id": False,
            "read": 0,
        }
        scope["app"], scope["state"] = self, state
        scope["path"] = scope["raw_path"].decode("ascii")  # a name may hold an encoded slash
        answer = _Answer(send, request_id)
        try:
            await self._answer(scope, receive, answer)
        except ClientGoneError:
            answer.status = 499
        except Exception as error:
            await self._refuse(error, scope, receive, answer)
        seconds = time.perf_counter() - start
        method, route = scope["method"], str(state["route"])
        self.metrics.answered(method, route, answer.status, seconds)
        if self._access_log is not None:
            key = state["key"].id if isinstance(state["key"], Key) else None
            self._access_log(
                {"request": request_id, "method": method, "route": route, "status": answer.status, "key": key,
                 "ms": round(seconds * 1e3, 3)}
            )  # fmt: skip

    async def _answer(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        if self._under_way >= MOST_WAITING and scope["path"] not in PROBES:
            raise BusyError(f"{MOST_WAITING:,} requests are under way")
        if len(self.connections) > MOST_CONNECTIONS:
            headers = {"retry-after": "1", "connection": "close"}
            raise RefusedError("unavailable", f"{MOST_CONNECTIONS:,} connections are open", headers)
        self._check_host(scope["path"], scope["state"]["headers"])
        self._under_way += 1
        try:
            await self._router(scope, receive, answer)
        finally:
            self._under_way -= 1
            self._read -= scope["state"]["read"]

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        """Answer with a problem document, if nothing has been answered yet."""
        state = scope["state"]
        if isinstance(error, HTTPException):  # Starlette's, for an unknown path or another method
            kind = "method" if error.status_code == 405 else "unknown"
            error = RefusedError(kind, "there is nothing of that kind here", dict(error.headers or {}))
        if kind_of(error) == "internal":
            log_failure(log, error, state["request_id"], state["route"])
        if not answer.status:
            problem = self.problem_of(error, state["request_id"], by_id=state["by_id"])
            response = Response(encoder.encode(problem), problem.status, headers_of(error), MEDIA_TYPE)
            await response(scope, receive, answer)

    def problem_of(self, error: Exception, request: str | Any = UNSET, *, by_id: bool = False) -> Problem:
        """An error as a document for clients; what a store says of its failure goes to the log instead."""
        problem, said = problem_of(error, request, by_id=by_id, hidden=self.store), str(error)
        # not the repr of an unexpected error, which may hold a name
        if problem.detail == AWAY and ("the store" in said or (self.store and self.store in said)):
            log_seldom(log, said)
        return problem

    def _check_host(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuse to be called by a name that is not ours, as a page that is after our answers would do."""
        if "*" in self.hosts or path in PROBES:
            return
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if host not in self.hosts and re.sub(r":\d+$", "", host) not in self.hosts:
            raise RefusedError("host", f"this server is not called {host[:100]!r}; --allow-host adds a name")

    # Starting and stopping

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self.begin()
        preparing = asyncio.create_task(self.prepare())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        preparing.cancel()
        self.end_streams()
        await asyncio.get_running_loop().run_in_executor(None, self.close)
        if self.ownership is not None:
            self.ownership.close()
        await send({"type": "lifespan.shutdown.complete"})

    def begin(self) -> None:
        """Belong to the event loop that is running."""
        self._arrivals = Arrivals(asyncio.get_running_loop())
        self.keys.listen()

    def end_streams(self) -> None:
        """Begin to stop: answers without an end, our own and those passed on, end now."""
        self.stopping.set()
        if self.ownership is not None:
            self.ownership.end_streams()

    async def prepare(self) -> None:
        """Open all populations, or this server's share of them, so that the first requests need not wait."""
        if self.ownership is not None:
            await self.ownership.begin()
            await self._all_compiled()
            self.is_prepared = True
            return
        waiting = dict.fromkeys(await self.run(self.controller.populations), "")
        while waiting:
            for name, known in list(waiting.items()):
                try:
                    await self.population(name)
                except (JournalError, UnknownError):
                    pass  # damaged, or never made: a crash came between
                except ControllerError as error:
                    if known != (said := str(error)):
                        log.warning("population %r is not served yet: %s", name, said)
                    waiting[name] = said
                    continue
                del waiting[name]
            if waiting:
                await asyncio.sleep(1.0)
        await self._all_compiled()
        self.is_prepared = True

    async def _all_compiled(self) -> None:
        for done in list(self._compiled.values()):
            await done.wait()

    def close(self) -> None:
        """Finish what was begun, and release the populations."""
        if self.ownership is not None:
            self.ownership.stop()
        self._slow.shutdown(cancel_futures=True)
        self._commands.shutdown(cancel_futures=True)
        self.controller.close()
        self.keys.close()

    # What handlers use

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call what may take long, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._slow, function, *args)

    async def population(self, name: str) -> AsyncPopulation:
        """A population that exists."""
        known = self.populations.get(name)
        if known is not None and not known.owner.is_lost:
            return known
        until, error = self._elsewhere.get(name, (0.0, None))
        if error is not None and time.monotonic() < until:  # whoever owns it is not asked at each request
            raise NotOwnerError(*error.args)
        if (damage := self.damage(name)) is not None:
            raise damage
        checked_name("population", name)
        if self.ownership is not None and name in await self.run(self.controller.store.standings, name):
            # Lost since the request was let in. Whoever it was moved to is to take it, and not we again.
            raise NotOwnerError(f"population {name!r} is no longer owned by the server that was asked")
        loop = asyncio.get_running_loop()
        try:
            return await self.adopt(
                await loop.run_in_executor(self._commands, self.controller.population, name)
            )
        except NotOwnerError as error:
            self._elsewhere[name] = (time.monotonic() + 1.0, error)
            raise
        except (JournalError, ValueError) as error:
            raise self.note_damage(name, error) from error

    def note_damage(self, name: str, error: Exception) -> JournalError:
        """Remember why what is recorded of a population cannot be read; it is not tried at each request."""
        said = str(error)  # the error itself would keep, by its traceback, what was read
        if self._damaged.get(name, (0.0, ""))[1] != said:
            log.error("population %r cannot be opened: %s", name, said)
        self._damaged[name] = (time.monotonic(), said)
        return JournalError(said)

    def damage(self, name: str) -> JournalError | None:
        """Why a population could not be opened a short while ago."""
        at, said = self._damaged.get(name, (-math.inf, ""))
        return JournalError(said) if time.monotonic() < at + RETRY else None

    def unopened(self) -> list[str]:
        """Populations that this server should serve, and whose journals are damaged."""
        if self.ownership is None:
            return sorted(self._damaged)
        return [name for name in sorted(self._damaged) if self.ownership.is_ours(name)]

    async def adopt(self, population: Population) -> AsyncPopulation:
        """Serve a population that is open; first its policy is compiled, for which nobody else waits."""
        await self.compiled(population.settings.policy)
        known = self.populations.get(population.name)
        if known is None or known.population is not population:
            assert self._arrivals is not None
            known = AsyncPopulation(population, self._arrivals, self._commands)
            self.populations[population.name] = known
        self._damaged.pop(population.name, None)
        return known

    async def compiled(self, policy: str) -> None:
        """Have what a first decision needs of a policy compiled, once, and begin with the rest of it."""
        if policy not in self._compiled:
            steps = _exercise(policy)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._commands, _take, steps, FIRST)  # an opening waits for it
            self._compiled[policy] = done = asyncio.Event()
            what = policy, steps, loop, done
            # A thread of its own, for which no stop has to wait: a step may take seconds.
            threading.Thread(target=self._compile_on, args=what, name="shoal-compile", daemon=True).start()

    def _compile_on(
        self, policy: str, steps: Iterator[None], loop: asyncio.AbstractEventLoop, done: asyncio.Event
    ) -> None:
        """Take the other steps."""
        try:
            while not self.stopping.is_set() and _take(steps, 1) > 0:
                pass
        except Exception as error:  # then it fails, or is compiled, when it is needed
            log.warning("policy %r is not compiled ahead: %s", policy, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(done.set)

    def is_here(self, population: str) -> bool:
        """Whether this process is the one to answer for a population: always, if there are no others."""
        if self.ownership is None:
            return True
        known = self.populations.get(population)
        return known is not None and not known.owner.is_lost

    # Who is calling

    def authorise(self, request: Request, scope: str | None, population: str | None) -> Key:
        """The key of a request, if it allows this."""
        state = request.scope["state"]
        key: Key = self.key_of(request) if scope is not None else ANYBODY
        state["key"] = key
        if key.id and (wait := self.limits.take(key.id, key.rate)):
            raise too_many(key, wait)
        if scope not in (None, SIGNED_IN) and not key.allows(scope, population):
            where = "all populations" if population is None else "this population"
            raise RefusedError("forbidden", f"the key {key.id} does not have scope {scope!r} for {where}")
        return key

    def key_of(self, request: Request) -> Key:
        """The key that a request was made with."""
        headers = request.scope["state"]["headers"]
        given = headers.get(b"authorization")
        if given is not None:
            kind, _, text = given.decode("latin-1").partition(" ")
            key = self.keys.check(text.strip()) if kind.lower() == "bearer" else None
            if key is None:
                raise unauthenticated("the key is not known, has expired or was revoked")
            return key
        if request.method not in ("GET", "HEAD"):
            _check_origin(headers)
        if (cookie := headers.get(b"cookie")) is not None and (id := self.sessions.key(cookie)) is not None:
            key = self.keys.find(id)
            if key is not None and key.is_valid(time.time()):
                return key
        if self.is_open and not self.keys.exist():
            return ANYBODY
        raise unauthenticated("send a key as `Authorization: Bearer shoal_…`; `shoal keys add` makes one")

    def count_read(self, state: dict[str, Any], size: int) -> None:
        """Count bytes of a body, which a request holds until it is answered."""
        state["read"] += size
        self._read += size
        if self._read > MOST_READ:
            raise BusyError(f"requests under way have sent {MOST_READ:,} bytes")

    def charge(self, key: Key, requests: int) -> None:
        """Count a batch as so many requests; one of them has been counted."""
        self.limits.charge(key.id, requests - 1)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(encoder.encode(content), status, headers, "application/json")


def name_in(request: Request, name: str) -> str:
    """A name from the path, percent-decoded."""
    text: str = request.path_params[name]
    if "%" not in text:
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise RefusedError("malformed", f"{name} in the path must be UTF-8, percent-encoded") from None


def unauthenticated(detail: str) -> RefusedError:
    """Nobody is known to be calling."""
    return RefusedError("unauthenticated", detail, {"www-authenticate": "Bearer"})


def too_many(key: Key, wait: float) -> RefusedError:
    """A key's rate is exceeded."""
    return RefusedError(
        "too-many", f"the key {key.id} may go on in {wait:.2f} s", {"retry-after": whole_seconds(wait)}
    )


# From a row of the table to a route


def _route(one: Endpoint) -> Route:
    decoder = None if one.body is None else msgspec.json.Decoder(one.body)
    in_population = "{population}" in one.path
    largest = LARGEST_BODY if one.scope is not None else LARGEST_UNSIGNED

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        service: Service = scope["app"]
        state = scope["state"]
        state["route"], state["by_id"] = one.path, one.by_id
        population = name_in(request, "population") if in_population else None
        key = service.authorise(request, one.scope, population)
        if population is not None and not service.is_here(population):
            assert service.ownership is not None
            if (answer := await service.ownership.answer(request, population)) is not None:
                await answer(scope, receive, send)
                return
        query = _query(scope["query_string"], one.query) if scope["query_string"] else {}
        body = None
        if decoder is not None:
            body = _decoded(decoder, await read_body(request, largest))
        response = await one.handler(Call(service, request, key, body, query))
        await response(scope, receive, send)

    return Route(one.path, _Plain(endpoint), methods=[one.method], name=one.handler.__name__)


class _Plain:
    """A function by the ASGI protocol, which Starlette calls without wrapping it."""

    def __init__(self, function: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._function = function

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._function(scope, receive, send)


def _guarded(route: BaseRoute) -> BaseRoute:
    """A route of the dashboard; one that shows data needs scope `read`."""
    if not isinstance(route, Route):
        return route
    needs_key = route.path.startswith(("/v1/", "/dashboard/"))
    handler, path = route.endpoint, route.path

    async def endpoint(request: Request) -> Response:
        service: Service = request.scope["app"]
        request.scope["state"]["route"] = path
        population = name_in(request, "population") if "population" in request.path_params else None
        service.authorise(request, "read" if needs_key else None, population)
        if population is not None and not service.is_here(population):
            assert service.ownership is not None
            if (answer := await service.ownership.answer(request, population)) is not None:
                return answer
        response: Response = await handler(request)
        return response

    return Route(path, endpoint, methods=sorted(route.methods or ["GET"]), name=route.name)


def _query(text: bytes, known: tuple[str, ...]) -> dict[str, str]:
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


async def read_body(request: Request, largest: int = LARGEST_BODY) -> bytes:
    """The body of a request, which must be JSON and not too large."""
    state = request.scope["state"]
    headers = state["headers"]
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise RefusedError("media-type", "the body must be JSON, with Content-Type: application/json")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > largest:
        raise _too_large(largest)
    service: Service = request.scope["app"]
    parts: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part: bytes = message.get("body", b"")
        service.count_read(state, len(part))
        if state["read"] > largest:
            raise _too_large(largest)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _too_large(largest: int) -> RefusedError:
    return RefusedError("too-large", f"a body may have {largest:,} bytes here", {"connection": "close"})


def _check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Refuse what another site's page makes a browser send; a browser says where a request comes from."""
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site not in (None, b"same-origin", b"none"):
        raise RefusedError("forbidden", "pages of other sites may not call this")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get(b"host", b"").lower():
        raise RefusedError("forbidden", "pages of other sites may not call this")


def _request_id(given: bytes | None) -> str:
    """The caller's id of a request, if it is one that cannot hold a name, or a new one."""
    if given is not None and re.fullmatch(rb"[0-9a-fA-F-]{8,64}", given):
        return given.decode()
    return f"{_random.getrandbits(64):016x}"


class _Answer:
    """Sends an answer on, with the headers that all of them have."""

    __slots__ = ("_id", "_send", "status")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._id, self.status = send, request_id, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"]
            given = {name for name, _ in headers}
            headers = [*headers, *HEADERS, (b"x-request-id", self._id.encode())]
            message["headers"] = headers + [one for one in STRICT if one[0] not in given]
        await self._send(message)


def _exercise(policy: str) -> Iterator[None]:
    """Steps that make every call of a policy once; none if it has parameters that must be given."""
    with contextlib.suppress(ValueError, TypeError):
        yield from exercise(make_policy(policy, TRIAL, 2), 2)


def _take(steps: Iterator[None], most: int) -> int:
    """Take so many steps, or as many as there are; how many were taken."""
    return sum(1 for _ in itertools.islice(steps, most))
