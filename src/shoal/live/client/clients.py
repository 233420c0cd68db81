"""`Client`, which blocks, and `AsyncClient`, which does not: two ways to carry out the same plans."""

import asyncio
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

try:
    import httpx
except ImportError as error:  # pragma: no cover
    raise ImportError("the client needs httpx: pip install 'shoal[client]'") from error

from shoal.live.client import deadlines, plans
from shoal.live.client.buffer import Buffer, Refused
from shoal.live.client.deadlines import GRACE, Timeouts
from shoal.live.client.exchange import Attempt, Pause, Plan, Reply
from shoal.live.client.plans import Arms, Fallback
from shoal.live.protocol import messages as m
from shoal.live.protocol.answers import Decision, Explanation, PairExplanation
from shoal.live.protocol.errors import NotOwnerError, UnavailableError
from shoal.live.protocol.ids import new_id

Result = TypeVar("Result")
DEADLINE = 10.0
PATIENCE = 600.0
"""Seconds that what reads a whole journal may take."""
REMEMBERED = 100_000
"""Decisions that fell back on an arm, if there is no buffer to keep them."""


class _Common:
    """What both clients have: where to call, and what is known of decisions that the service did not make."""

    def __init__(self, url: str, key: str | None, deadline: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {url!r}")
        self.url, self.deadline = url.rstrip("/"), deadline
        self._headers = {"content-type": "application/json"}
        if key is not None:
            if not re.fullmatch(r"[!-~]+", key):  # the message must not show it
                raise ValueError("key must be as `shoal keys add` showed it, without spaces")
            self._headers["authorization"] = f"Bearer {key}"
        self._fallbacks: OrderedDict[str, Fallback] = OrderedDict()
        self.buffer: Buffer | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    def _remember(self, id: str, fallback: Fallback) -> None:
        if self.buffer is not None:
            self.buffer.remember(id, fallback)
            return
        self._fallbacks[id] = fallback
        if len(self._fallbacks) > REMEMBERED:
            self._fallbacks.popitem(last=False)

    def _limit(self, deadline: float | None) -> float:
        return self.deadline if deadline is None else deadline


class Client(_Common):
    """Calls a service. Any number of threads may use it; use it as a context manager, or call `close`.

    Parameters
    ----------
    url : str
        Of the service, such as `http://127.0.0.1:8000`.
    key : str, optional
        As `shoal keys add` showed it.
    deadline : float
        Seconds within which a call returns or raises `UnavailableError`, unless the call says otherwise
        (`decide_many` and `reward_many`: for each batch of 500). Until then, whatever may have been lost on
        the way is sent again. Nothing is counted twice.
    buffer : path, optional
        A file in which rewards are kept until the service has taken them. `reward` then returns as soon as a
        reward is in it; what is left when a program ends is sent by the next one that names the file.
    http : httpx.Client, optional
        To send requests with, for proxies or certificates of one's own.

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
        self._http = http or httpx.Client(limits=httpx.Limits(max_connections=256))
        if buffer is not None:
            self.buffer = Buffer(buffer, self._send_buffered)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections, and the buffer; what is in it stays there."""
        if self.buffer is not None:
            self.buffer.close()
        self._http.close()

    def populations(self) -> list[str]:
        """Names of the populations that the key is for."""
        return self._carry_out(plans.populations(self.deadline))

    def population(
        self, name: str, policy: str | None = None, dim: int | None = None, **settings: Any
    ) -> "RemotePopulation":
        """A population, which is made, with policy and dim, if need be; see `Controller.population`."""
        if policy is not None and dim is not None:
            self._carry_out(plans.make(name, _new_population(policy, dim, settings), self.deadline))
        return RemotePopulation(self, name)

    def flush(self, deadline: float | None = None) -> bool:
        """Wait until the service has everything in the buffer; whether it has."""
        return self.buffer is None or self.buffer.flush(self._limit(deadline))

    def refused(self) -> list[Refused]:
        """Rewards in the buffer that the service refused for good."""
        return [] if self.buffer is None else self.buffer.refused()

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
        self, population: str, rewards: list[m.NamedReward], known: dict[str, Fallback]
    ) -> list[Exception | None]:
        return self._carry_out(plans.reward_many(population, rewards, known, DEADLINE))


class RemotePopulation:
    """A population of a service. Its methods are those of `shoal.Population`."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.name = client, name

    def __repr__(self) -> str:
        return f"<population {self.name!r} of {self._client.url}>"

    def decide(
        self,
        agent: str,
        arms: Arms = None,
        *,
        id: str | None = None,
        top: int = 1,
        scores: bool = False,
        sharing: m.Sharing | None = None,
        baseline: str | int | None = None,
        fallback: str | int | None = None,
        deadline: float | None = None,
    ) -> Decision:
        """Choose an arm for an agent; see `Population.decide`.

        Parameters
        ----------
        fallback : str or int, optional
            The arm to return if the service does not answer in time. Such a decision has sequence number 0,
            and the service learns its reward, when you report it, as an observation.
        deadline : float, optional
            Seconds to wait for the service.
        """
        client, request = self._client, plans.new_decision(agent, arms, id, top, scores, sharing, baseline)
        known = None if fallback is None else plans.fallback_of(self.name, request, fallback)
        try:
            return client._carry_out(plans.decide(self.name, request, client._limit(deadline)))
        except (UnavailableError, NotOwnerError):
            if known is None or fallback is None:
                raise
        made = plans.fallback_decision(request, fallback)
        client._remember(made.id, known)
        return made

    def decide_many(
        self, requests: Iterable[Mapping[str, Any]], *, deadline: float | None = None
    ) -> list[Decision | Exception]:
        """`decide` for many requests, each a mapping of its arguments; of each, its decision or its error."""
        made = [plans.new_decision_of(one) for one in requests]
        return self._client._carry_out(plans.decide_many(self.name, made, self._client._limit(deadline)))

    def reward(
        self,
        id: str,
        reward: float,
        *,
        replaces: float | None = None,
        arm: str | int | None = None,
        deadline: float | None = None,
    ) -> None:
        """Report the reward of a decision; see `Population.reward`. With a buffer, it is sent later."""
        client = self._client
        if client.buffer is not None:
            client.buffer.put(self.name, [plans.named_reward(id, reward, replaces, arm)])
            return
        limit = client._limit(deadline)
        known = client._fallbacks.get(id)
        if known is not None:
            client._carry_out(plans.observe_fallback(id, known, float(reward), limit))
        else:
            client._carry_out(plans.reward(self.name, id, m.Reward(float(reward), replaces, arm), limit))

    def reward_many(
        self, rewards: Iterable[Mapping[str, Any]], *, deadline: float | None = None
    ) -> list[Exception | None]:
        """`reward` for many decisions, each a mapping of its arguments; of each, its error or None.

        With a buffer, all of them are put there at once, and none has an error yet.
        """
        client, made = self._client, [plans.named_reward_of(one) for one in rewards]
        if client.buffer is not None:
            client.buffer.put(self.name, made)
            return [None] * len(made)
        limit = client._limit(deadline)
        return client._carry_out(plans.reward_many(self.name, made, client._fallbacks, limit))

    def cancel(self, id: str) -> None:
        """Take back a decision that was never shown."""
        self._client._carry_out(plans.cancel(self.name, id, self._client.deadline))

    def observe(
        self,
        agent: str,
        x: Sequence[float] | None = None,
        reward: float = 0.0,
        *,
        arm: str | None = None,
        id: str | None = None,
    ) -> bool:
        """Let an agent learn from an arm tried elsewhere (features, or a name); whether it was new."""
        body = _observation(agent, x, reward, arm, id)
        return self._client._carry_out(plans.observe(self.name, body, self._client.deadline))

    def explain(self, agent: str, other: str | None = None) -> Explanation | PairExplanation:
        """Say whose samples an agent uses and with whom it stopped sharing, or the same of a pair."""
        return self._client._carry_out(plans.explain(self.name, agent, other, self._client.deadline))

    def graph(self, at: int | None = None) -> m.GraphContent:
        """Who shares with whom, now or after the record `at`."""
        return self._client._carry_out(plans.graph(self.name, at, self._client.deadline))

    def events(self, after: int = 0, limit: int = 100) -> m.Events:
        """Records of the journal after one."""
        return self._client._carry_out(plans.events(self.name, after, limit, self._client.deadline))

    def describe(self) -> m.Population:
        """Settings and sizes."""
        return self._client._carry_out(plans.describe(self.name, self._client.deadline))

    def agent(self, agent: str) -> m.Agent:
        """How an agent shares, and how many rewards it has had."""
        return self._client._carry_out(plans.agent(self.name, agent, self._client.deadline))

    def dividend(self, agent: str | None = None) -> m.Dividend:
        """What sharing pays, of all agents or one."""
        return self._client._carry_out(plans.dividend(self.name, agent, self._client.deadline))

    def uplift(self, *, deadline: float = PATIENCE) -> m.Uplift:
        """What the policy earns more than the product's own rule, by `holdout` or as an `apprentice`."""
        return self._client._carry_out(plans.uplift(self.name, deadline))

    def evaluate(
        self, policy: str | None = None, *, deadline: float = PATIENCE, **parameters: Any
    ) -> m.Evaluation:
        """What another policy, or other parameters, would have earned."""
        body = m.Candidate(policy, parameters)
        return self._client._carry_out(plans.evaluate(self.name, body, deadline))

    def what_if(
        self, policy: str | None = None, *, deadline: float = PATIENCE, **parameters: Any
    ) -> m.WhatIf:
        """Who would share with whom under another policy or other parameters, and what that would pay."""
        body = m.Candidate(policy, parameters)
        return self._client._carry_out(plans.what_if(self.name, body, deadline))

    def switch(self, policy: str | None = None, *, deadline: float = PATIENCE, **parameters: Any) -> int:
        """Go on with another policy or other parameters; see `Population.switch`."""
        body = m.Candidate(policy, parameters)
        return self._client._carry_out(plans.switch(self.name, body, deadline))

    def switch_back(self, *, deadline: float = PATIENCE) -> int:
        """Go on with the policy and parameters from before the last switch."""
        return self._client._carry_out(plans.switch_back(self.name, deadline))

    def switches(self) -> list[m.Switch]:
        """The policies and parameters so far, the first ones included, and who made them so."""
        return self._client._carry_out(plans.switches(self.name, self._client.deadline))

    def add(self, agent: str, *, sharing: m.Sharing = "both") -> None:
        """Let an agent join before its first decision, or change how it shares."""
        self._client._carry_out(plans.add(self.name, agent, sharing, self._client.deadline))

    def forget(self, agent: str) -> None:
        """Forget a person; see `Population.forget`."""
        self._client._carry_out(plans.forget(self.name, agent, self._client.deadline))

    def catalogue(self) -> dict[str, list[float]]:
        """The arms that the population keeps, with their features."""
        return self._client._carry_out(plans.catalogue(self.name, self._client.deadline))

    def set_arms(self, arms: Mapping[str, Iterable[float]]) -> None:
        """Add arms to the catalogue, or change their features."""
        self._client._carry_out(plans.set_arms(self.name, arms, self._client.deadline))

    def retire(self, arm: str) -> None:
        """Take an arm out of the catalogue."""
        self._client._carry_out(plans.retire(self.name, arm, self._client.deadline))


class AsyncClient(_Common):
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
        self._http = http or httpx.AsyncClient(limits=httpx.Limits(max_connections=256))
        self._sender: Client | None = None
        if buffer is not None:
            self._sender = Client(url, key, deadline=deadline, buffer=buffer)
            self.buffer = self._sender.buffer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections, and the buffer; what is in it stays there."""
        if self._sender is not None:
            await asyncio.to_thread(self._sender.close)
        await self._http.aclose()

    async def populations(self) -> list[str]:
        """Names of the populations that the key is for."""
        return await self._carry_out(plans.populations(self.deadline))

    async def population(
        self, name: str, policy: str | None = None, dim: int | None = None, **settings: Any
    ) -> "AsyncRemotePopulation":
        """A population, which is made, with policy and dim, if need be; see `Controller.population`."""
        if policy is not None and dim is not None:
            await self._carry_out(plans.make(name, _new_population(policy, dim, settings), self.deadline))
        return AsyncRemotePopulation(self, name)

    async def flush(self, deadline: float | None = None) -> bool:
        """Wait until the service has everything in the buffer; whether it has."""
        return self.buffer is None or await asyncio.to_thread(self.buffer.flush, self._limit(deadline))

    def refused(self) -> list[Refused]:
        """Rewards in the buffer that the service refused for good."""
        return [] if self.buffer is None else self.buffer.refused()

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
            else:
                reply = await self._attempt(step)

    async def _attempt(self, step: Attempt) -> Reply:
        end = asyncio.get_running_loop().time() + step.timeout
        try:
            async with asyncio.timeout_at(end + GRACE) as limit:

                async def trace(event: str, _: Mapping[str, Any]) -> None:
                    if event.endswith("send_request_headers.started") and not limit.expired():
                        limit.reschedule(end)  # connected

                response = await self._http.request(
                    step.method,
                    self.url + step.path,
                    content=step.content,
                    headers=self._headers,
                    extensions={"timeout": Timeouts(step.timeout), "trace": trace},
                )
        except TimeoutError:
            return _trouble(httpx.ReadTimeout("no complete answer in time"))
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _trouble(error)
        return _reply(response)


class AsyncRemotePopulation:
    """A population of a service, for an event loop. Its methods are those of `RemotePopulation`."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client, self.name = client, name

    def __repr__(self) -> str:
        return f"<population {self.name!r} of {self._client.url}>"

    async def decide(
        self,
        agent: str,
        arms: Arms = None,
        *,
        id: str | None = None,
        top: int = 1,
        scores: bool = False,
        sharing: m.Sharing | None = None,
        baseline: str | int | None = None,
        fallback: str | int | None = None,
        deadline: float | None = None,
    ) -> Decision:
        """See `RemotePopulation.decide`."""
        client, request = self._client, plans.new_decision(agent, arms, id, top, scores, sharing, baseline)
        known = None if fallback is None else plans.fallback_of(self.name, request, fallback)
        try:
            return await client._carry_out(plans.decide(self.name, request, client._limit(deadline)))
        except (UnavailableError, NotOwnerError):
            if known is None or fallback is None:
                raise
        made = plans.fallback_decision(request, fallback)
        await asyncio.to_thread(client._remember, made.id, known)
        return made

    async def decide_many(
        self, requests: Iterable[Mapping[str, Any]], *, deadline: float | None = None
    ) -> list[Decision | Exception]:
        """See `RemotePopulation.decide_many`."""
        made = [plans.new_decision_of(one) for one in requests]
        limit = self._client._limit(deadline)
        return await self._client._carry_out(plans.decide_many(self.name, made, limit))

    async def reward(
        self,
        id: str,
        reward: float,
        *,
        replaces: float | None = None,
        arm: str | int | None = None,
        deadline: float | None = None,
    ) -> None:
        """See `RemotePopulation.reward`."""
        client = self._client
        if client.buffer is not None:
            one = plans.named_reward(id, reward, replaces, arm)
            await asyncio.to_thread(client.buffer.put, self.name, [one])
            return
        limit = client._limit(deadline)
        known = client._fallbacks.get(id)
        if known is not None:
            await client._carry_out(plans.observe_fallback(id, known, float(reward), limit))
        else:
            body = m.Reward(float(reward), replaces, arm)
            await client._carry_out(plans.reward(self.name, id, body, limit))

    async def reward_many(
        self, rewards: Iterable[Mapping[str, Any]], *, deadline: float | None = None
    ) -> list[Exception | None]:
        """See `RemotePopulation.reward_many`."""
        client, made = self._client, [plans.named_reward_of(one) for one in rewards]
        if client.buffer is not None:
            await asyncio.to_thread(client.buffer.put, self.name, made)
            return [None] * len(made)
        limit = client._limit(deadline)
        return await client._carry_out(plans.reward_many(self.name, made, client._fallbacks, limit))

    async def cancel(self, id: str) -> None:
        """Take back a decision that was never shown."""
        await self._client._carry_out(plans.cancel(self.name, id, self._client.deadline))

    async def observe(
        self,
        agent: str,
        x: Sequence[float] | None = None,
        reward: float = 0.0,
        *,
        arm: str | None = None,
        id: str | None = None,
    ) -> bool:
        """See `RemotePopulation.observe`."""
        body = _observation(agent, x, reward, arm, id)
        return await self._client._carry_out(plans.observe(self.name, body, self._client.deadline))

    async def explain(self, agent: str, other: str | None = None) -> Explanation | PairExplanation:
        """Say whose samples an agent uses and with whom it stopped sharing, or the same of a pair."""
        return await self._client._carry_out(plans.explain(self.name, agent, other, self._client.deadline))

    async def graph(self, at: int | None = None) -> m.GraphContent:
        """Who shares with whom, now or after the record `at`."""
        return await self._client._carry_out(plans.graph(self.name, at, self._client.deadline))

    async def events(self, after: int = 0, limit: int = 100) -> m.Events:
        """Records of the journal after one."""
        return await self._client._carry_out(plans.events(self.name, after, limit, self._client.deadline))

    async def dividend(self, agent: str | None = None) -> m.Dividend:
        """What sharing pays, of all agents or one."""
        return await self._client._carry_out(plans.dividend(self.name, agent, self._client.deadline))

    async def uplift(self, *, deadline: float = PATIENCE) -> m.Uplift:
        """What the policy earns more than the product's own rule, by `holdout` or as an `apprentice`."""
        return await self._client._carry_out(plans.uplift(self.name, deadline))

    async def evaluate(
        self, policy: str | None = None, *, deadline: float = PATIENCE, **parameters: Any
    ) -> m.Evaluation:
        """What another policy, or other parameters, would have earned."""
        body = m.Candidate(policy, parameters)
        return await self._client._carry_out(plans.evaluate(self.name, body, deadline))

    async def what_if(
        self, policy: str | None = None, *, deadline: float = PATIENCE, **parameters: Any
    ) -> m.WhatIf:
        """Who would share with whom under another policy or other parameters, and what that would pay."""
        body = m.Candidate(policy, parameters)
        return await self._client._carry_out(plans.what_if(self.name, body, deadline))

    async def switch(
        self, policy: str | None = None, *, deadline: float = PATIENCE, **parameters: Any
    ) -> int:
        """Go on with another policy or other parameters; see `Population.switch`."""
        body = m.Candidate(policy, parameters)
        return await self._client._carry_out(plans.switch(self.name, body, deadline))

    async def switch_back(self, *, deadline: float = PATIENCE) -> int:
        """Go on with the policy and parameters from before the last switch."""
        return await self._client._carry_out(plans.switch_back(self.name, deadline))

    async def switches(self) -> list[m.Switch]:
        """The policies and parameters so far, the first ones included, and who made them so."""
        return await self._client._carry_out(plans.switches(self.name, self._client.deadline))

    async def add(self, agent: str, *, sharing: m.Sharing = "both") -> None:
        """Let an agent join before its first decision, or change how it shares."""
        await self._client._carry_out(plans.add(self.name, agent, sharing, self._client.deadline))

    async def catalogue(self) -> dict[str, list[float]]:
        """The arms that the population keeps, with their features."""
        return await self._client._carry_out(plans.catalogue(self.name, self._client.deadline))

    async def retire(self, arm: str) -> None:
        """Take an arm out of the catalogue."""
        await self._client._carry_out(plans.retire(self.name, arm, self._client.deadline))

    async def describe(self) -> m.Population:
        """Settings and sizes."""
        return await self._client._carry_out(plans.describe(self.name, self._client.deadline))

    async def agent(self, agent: str) -> m.Agent:
        """How an agent shares, and how many rewards it has had."""
        return await self._client._carry_out(plans.agent(self.name, agent, self._client.deadline))

    async def set_arms(self, arms: Mapping[str, Iterable[float]]) -> None:
        """Add arms to the catalogue, or change their features."""
        await self._client._carry_out(plans.set_arms(self.name, arms, self._client.deadline))

    async def forget(self, agent: str) -> None:
        """Forget a person; see `Population.forget`."""
        await self._client._carry_out(plans.forget(self.name, agent, self._client.deadline))


def _new_population(policy: str, dim: int, settings: dict[str, Any]) -> m.NewPopulation:
    """A request from keyword arguments: those that are not the population's are its policy's."""
    own = {key: settings.pop(key) for key in m.NewPopulation.__struct_fields__ if key in settings}
    return m.NewPopulation(policy, dim, **own, parameters=settings)


def _observation(
    agent: str, x: Sequence[float] | None, reward: float, arm: str | None, id: str | None
) -> m.NewObservation:
    features = None if x is None else [float(one) for one in x]
    return m.NewObservation(agent, float(reward), features, arm, new_id() if id is None else id)


def _reply(response: httpx.Response) -> Reply:
    after = response.headers.get("retry-after", "")
    return Reply(response.status_code, response.content, float(after) if after.isdecimal() else None)


def _trouble(error: Exception) -> Reply:
    return Reply(0, trouble=f"{type(error).__name__}: {error}")
