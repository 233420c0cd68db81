"""`Client`, which blocks, and `AsyncClient`, which does not: two ways to carry out the same plans."""

import asyncio
import contextlib
import functools
import inspect
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, get_args

try:
    import httpx
except ImportError as error:  # pragma: no cover
    raise ImportError("the client needs httpx: pip install 'shoal[client]'") from error

from shoal.live.client import deadlines, plans
from shoal.live.client.buffer import Buffer, Fallback
from shoal.live.client.deadlines import GRACE, Timeouts
from shoal.live.client.exchange import Attempt, Pause, Plan, Reply, Work
from shoal.live.client.plans import Caller, Remote
from shoal.live.protocol.messages import NamedReward

P = ParamSpec("P")
Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., Any])
DEADLINE = 10.0
CONNECTIONS = 256
"""Open at a time, at most."""


class Client(Caller):
    """Calls a service. Any number of threads may use it; use it as a context manager, or call `close`.

    Parameters
    ----------
    url : str
        Of the service, such as `http://127.0.0.1:8000`.
    key : str, optional
        As `shoal keys add` showed it.
    deadline : float
        Seconds within which a call returns or raises `UnavailableError`, unless the call says otherwise
        (`decide_many` and `reward_many`: for each batch of 500). Until then, requests that may have been lost
        are sent again. Nothing is counted twice.
    buffer : path, optional
        A file in which rewards are kept until the service has taken them. `reward` then returns as soon as a
        reward is in it; the next program that names the file sends what an earlier one left there.
    http : httpx.Client, optional
        The client to send requests with, for proxies or certificates of your own.

    Examples
    --------
    Where `shoal serve` listens on `url`, and asks for no key:

    >>> import shoal
    >>> with shoal.Client(url) as client:
    ...     shop = client.population("shop", policy="bass", dim=2)
    ...     decision = shop.decide("ada", {"tea": [1, 0], "coffee": [0, 1]}, fallback="tea")
    ...     shop.reward(decision.id, 1.0)
    ...     print(shop.explain("ada").samples)
    1
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        deadline: float = DEADLINE,
        buffer: str | os.PathLike[str] | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(url, key, deadline)
        self._http = http or httpx.Client(limits=httpx.Limits(max_connections=CONNECTIONS))
        if buffer is not None:
            self.buffer = Buffer(buffer, self._send_buffered)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections and the buffer; rewards in the buffer stay there."""
        if self.buffer is not None:
            self.buffer.close()
        self._http.close()

    def populations(self) -> list[str]:
        """Names of the populations that the key is for."""
        return self._carry_out(plans.populations(self.deadline))

    def population(
        self,
        name: str,
        policy: str | None = None,
        dim: int | None = None,
        *,
        fallback: str | None = None,
        **settings: Any,
    ) -> "RemotePopulation":
        """A population; with policy and dim, it is made if missing. See `Controller.population`.

        `fallback` names the arm for when the service does not answer; it must be in the catalogue.
        """
        found = RemotePopulation(self, name, fallback)
        self._carry_out(plans.prepare(found, policy, dim, settings))
        return found

    def flush(self, deadline: float | None = None) -> bool:
        """Wait until the service has everything in the buffer; returns whether it has."""
        return self.buffer is None or self.buffer.flush(self.limit(deadline))

    def _carry_out(self, plan: Plan[Result]) -> Result:
        reply: Reply | None = None
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as end:
                found: Result = end.value
                return found
            reply = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            elif isinstance(step, Work):
                step.function()
            else:
                reply = self._attempt(step)

    def _attempt(self, step: Attempt) -> Reply:
        try:
            response = self._http.request(
                step.method,
                self.url + step.path,
                content=step.content,
                headers=self._headers,
                extensions={"timeout": Timeouts(step.timeout), "trace": deadlines.trace},
            )
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _trouble(error)
        return _reply(response)

    def _send_buffered(
        self, population: str, rewards: list[NamedReward], known: dict[str, Fallback]
    ) -> list[Exception | None]:
        return self._carry_out(plans.send_rewards(population, rewards, known, DEADLINE))


def _presented(call: Method, plan: Callable[..., Plan[Any]]) -> Method:
    """Show a method with its plan's name, docstring and arguments, and what the plan results in."""
    functools.update_wrapper(call, plan)
    known = inspect.signature(plan)
    _, *arguments = known.parameters.values()
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    _, _, result = get_args(known.return_annotation)
    call.__signature__ = inspect.Signature([first, *arguments], return_annotation=result)  # type: ignore[attr-defined]
    return call


def _blocking(
    plan: Callable[Concatenate[Remote, P], Plan[Result]],
) -> Callable[Concatenate["RemotePopulation", P], Result]:
    """A method that carries out a plan, and has its arguments and docstring."""

    def call(self: "RemotePopulation", /, *args: P.args, **options: P.kwargs) -> Result:
        return self.client._carry_out(plan(self, *args, **options))

    return _presented(call, plan)


class RemotePopulation(Remote):
    """A population of a service. Its methods are those of `shoal.Population`."""

    client: Client

    decide = _blocking(plans.decide)
    decide_many = _blocking(plans.decide_many)
    cancel = _blocking(plans.cancel)
    reward = _blocking(plans.reward)
    reward_many = _blocking(plans.reward_many)
    observe = _blocking(plans.observe)
    agent = _blocking(plans.agent)
    add = _blocking(plans.add)
    set_features = _blocking(plans.set_features)
    forget = _blocking(plans.forget)
    explain = _blocking(plans.explain)
    graph = _blocking(plans.graph)
    events = _blocking(plans.events)
    dividend = _blocking(plans.dividend)
    alarms = _blocking(plans.alarms)
    uplift = _blocking(plans.uplift)
    evaluate = _blocking(plans.evaluate)
    what_if = _blocking(plans.what_if)
    switch = _blocking(plans.switch)
    switch_back = _blocking(plans.switch_back)
    switches = _blocking(plans.switches)
    contest = _blocking(plans.contest)
    end_contest = _blocking(plans.end_contest)
    catalogue = _blocking(plans.catalogue)
    set_arms = _blocking(plans.set_arms)
    retire = _blocking(plans.retire)
    describe = _blocking(plans.describe)


class AsyncClient(Caller):
    """Calls a service from an event loop; for the parameters, and what they do, see `Client`.

    Use it as an asynchronous context manager, or await `close`. Rewards in a buffer are sent by a thread.

    Examples
    --------
    Where `shoal serve` listens on `url`, and asks for no key:

    >>> import asyncio
    >>> import shoal
    >>> async def main():
    ...     async with shoal.AsyncClient(url) as client:
    ...         cafe = await client.population("cafe", policy="bass", dim=2)
    ...         decision = await cafe.decide("ben", {"tea": [1, 0], "coffee": [0, 1]}, fallback="tea")
    ...         await cafe.reward(decision.id, 1.0)
    ...         return (await cafe.explain("ben")).samples
    >>> asyncio.run(main())
    1
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        deadline: float = DEADLINE,
        buffer: str | os.PathLike[str] | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(url, key, deadline)
        self._http, self._tls = http, httpx.create_ssl_context()
        self._idle: list[httpx.AsyncClient] = []
        self._places = asyncio.Semaphore(CONNECTIONS)
        self._sender: Client | None = None
        if buffer is not None:
            self._sender = Client(url, key, deadline=deadline, buffer=buffer)
            self.buffer = self._sender.buffer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections and the buffer; rewards in the buffer stay there."""
        if self._sender is not None:
            await asyncio.to_thread(self._sender.close)
        for http in (*self._idle, *([] if self._http is None else [self._http])):
            await http.aclose()

    async def populations(self) -> list[str]:
        """Names of the populations that the key is for."""
        return await self._carry_out(plans.populations(self.deadline))

    async def population(
        self,
        name: str,
        policy: str | None = None,
        dim: int | None = None,
        *,
        fallback: str | None = None,
        **settings: Any,
    ) -> "AsyncRemotePopulation":
        """A population; with policy and dim, it is made if missing. See `Client.population`."""
        found = AsyncRemotePopulation(self, name, fallback)
        await self._carry_out(plans.prepare(found, policy, dim, settings))
        return found

    async def flush(self, deadline: float | None = None) -> bool:
        """Wait until the service has everything in the buffer; returns whether it has."""
        return self.buffer is None or await asyncio.to_thread(self.buffer.flush, self.limit(deadline))

    async def _carry_out(self, plan: Plan[Result]) -> Result:
        reply: Reply | None = None
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as end:
                found: Result = end.value
                return found
            reply = None
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Work):
                await asyncio.to_thread(step.function)
            else:
                reply = await self._attempt(step)

    async def _attempt(self, step: Attempt) -> Reply:
        # httpx bounds each phase by itself; this bounds them all together.
        now = asyncio.get_running_loop().time
        end = now() + step.timeout
        try:
            async with asyncio.timeout_at(end + GRACE) as limit:

                async def trace(event: str, _: Mapping[str, Any]) -> None:
                    if event.endswith("send_request_headers.started") and not limit.expired():
                        limit.reschedule(end)  # connected

                async with self._connection() as http:
                    response = await http.request(
                        step.method,
                        self.url + step.path,
                        content=step.content,
                        headers=self._headers,
                        extensions={"timeout": Timeouts(end - now()), "trace": trace},
                    )
        except TimeoutError:
            return _trouble(httpx.ReadTimeout("no complete answer in time"))
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _trouble(error)
        return _reply(response)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[httpx.AsyncClient]:
        """A connection of its own for each request: the one used last, or a new one.

        Each is a pool of one, as httpx goes through all connections and requests of a pool whenever one of
        them begins or ends: n at a time would take n² steps.
        """
        if self._http is not None:
            yield self._http
            return
        async with self._places:
            one = httpx.Limits(max_connections=1)
            http = self._idle.pop() if self._idle else httpx.AsyncClient(limits=one, verify=self._tls)
            try:
                yield http
            finally:
                self._idle.append(http)


def _awaited(
    plan: Callable[Concatenate[Remote, P], Plan[Result]],
) -> Callable[Concatenate["AsyncRemotePopulation", P], Coroutine[Any, Any, Result]]:
    """A method that awaits a plan, and has its arguments and docstring."""

    async def call(self: "AsyncRemotePopulation", /, *args: P.args, **options: P.kwargs) -> Result:
        return await self.client._carry_out(plan(self, *args, **options))

    return _presented(call, plan)


class AsyncRemotePopulation(Remote):
    """A population of a service, for an event loop. Its methods are those of `RemotePopulation`."""

    client: AsyncClient

    decide = _awaited(plans.decide)
    decide_many = _awaited(plans.decide_many)
    cancel = _awaited(plans.cancel)
    reward = _awaited(plans.reward)
    reward_many = _awaited(plans.reward_many)
    observe = _awaited(plans.observe)
    agent = _awaited(plans.agent)
    add = _awaited(plans.add)
    set_features = _awaited(plans.set_features)
    forget = _awaited(plans.forget)
    explain = _awaited(plans.explain)
    graph = _awaited(plans.graph)
    events = _awaited(plans.events)
    dividend = _awaited(plans.dividend)
    alarms = _awaited(plans.alarms)
    uplift = _awaited(plans.uplift)
    evaluate = _awaited(plans.evaluate)
    what_if = _awaited(plans.what_if)
    switch = _awaited(plans.switch)
    switch_back = _awaited(plans.switch_back)
    switches = _awaited(plans.switches)
    contest = _awaited(plans.contest)
    end_contest = _awaited(plans.end_contest)
    catalogue = _awaited(plans.catalogue)
    set_arms = _awaited(plans.set_arms)
    retire = _awaited(plans.retire)
    describe = _awaited(plans.describe)


def _reply(response: httpx.Response) -> Reply:
    after = response.headers.get("retry-after", "")
    return Reply(response.status_code, response.content, float(after) if after.isdecimal() else None)


def _trouble(error: Exception) -> Reply:
    return Reply(0, trouble=f"{type(error).__name__}: {error}")
