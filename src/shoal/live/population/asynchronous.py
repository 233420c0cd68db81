"""A population's commands for an event loop: executed in its thread, awaited until they are committed.

A command takes less time than handing it to another thread would. So it is executed at once if nothing could
keep it waiting: the population's lock is free, its state is in memory, and the store does not have to be
asked over a network. Otherwise a thread of the pool executes it. Nobody is woken more than once per commit.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from shoal.core.policy.living import Sharing
from shoal.live.journal.committer import Ticket
from shoal.live.journal.fold import Fold
from shoal.live.population.commands import Turn
from shoal.live.population.population import PATIENCE, Population
from shoal.live.protocol.answers import Decision
from shoal.live.protocol.errors import ControllerError

Result = TypeVar("Result")


class Arrivals:
    """Wakes those who await commits, all of a commit at once. One for each event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[tuple[asyncio.Future[None], ControllerError | None]] = deque()
        self._scheduled = False

    async def wait(self, ticket: Ticket) -> None:
        """Return when the rows are committed, or raise why they were not."""
        if ticket.is_done:
            ticket.wait()
            return
        future: asyncio.Future[None] = self._loop.create_future()
        ticket.when_done(lambda error: self._arrived(future, error))
        await future

    def _arrived(self, future: "asyncio.Future[None]", error: ControllerError | None) -> None:
        self._done.append((future, error))
        if not self._scheduled:  # set before it is scheduled, cleared before they are woken: none is missed
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop is closed: nobody is waiting any more
                self._done.clear()

    def _wake(self) -> None:
        self._scheduled = False
        while self._done:
            future, error = self._done.popleft()
            if future.done():  # whoever waited has gone
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(type(error)(*error.args))


class AsyncPopulation:
    """The commands of a population for an event loop.

    Parameters
    ----------
    population : Population
    arrivals : Arrivals
    pool : Executor
        For commands that may take a while.
    """

    def __init__(self, population: Population, arrivals: Arrivals, pool: Executor) -> None:
        self.population = population
        self._arrivals, self._pool = arrivals, pool
        self._commands = population._commands
        self._is_local = population._store.is_local

    async def decide(
        self,
        agent: str,
        arms: Any = None,
        *,
        id: str | None = None,
        top: int = 1,
        scores: bool = False,
        sharing: Sharing | None = None,
        baseline: str | int | None = None,
    ) -> Decision:
        """See `Population.decide`."""
        decide = self._commands.decide
        return await self._run(3, lambda turn: decide(turn, agent, arms, id, top, scores, sharing, baseline))

    async def reward(
        self, id: str, reward: float, *, replaces: float | None = None, arm: str | int | None = None
    ) -> float | None:
        """See `Population.reward`; the seconds since the decision if this was its first reward."""

        request = {"id": id, "reward": reward, "replaces": replaces, "arm": arm}
        return await self._run(1, lambda turn: self._reward(turn, request))

    async def cancel(self, id: str) -> None:
        """See `Population.cancel`."""
        await self._run(1, lambda turn: self._commands.cancel(turn, id))

    async def observe(
        self, agent: str, x: Any = None, reward: float = 0.0, *, id: str | None = None, arm: str | None = None
    ) -> bool:
        """See `Population.observe`; whether it is new. `arm` stands for its features in the catalogue."""

        def command(turn: Turn) -> bool:
            features = x
            if arm is not None:
                offer = self._commands.offers.requested(turn.fold, None)
                features = offer.features[offer.position(arm)]
            return self._commands.observe(turn, agent, features, reward, id)

        return await self._run(2, command)

    async def decide_many(self, requests: Sequence[Mapping[str, Any]]) -> list[Decision | Exception]:
        """See `Population.decide_many`."""
        return await self._run(3 * len(requests), self.population._each(requests, self._commands.decide_one))

    async def reward_many(self, rewards: Sequence[Mapping[str, Any]]) -> list[float | Exception | None]:
        """See `Population.reward_many`; of each what `reward` returns, or its error."""
        return await self._run(len(rewards), self.population._each(rewards, self._reward))

    def _reward(self, turn: Turn, request: Mapping[str, Any]) -> float | None:
        before = len(turn.rows)
        self._commands.reward_one(turn, request)
        if len(turn.rows) == before or request.get("replaces") is not None:
            return None
        id = request["id"]
        standing = self._commands.closed.get(id) or turn.fold.pending.get(id)
        return None if standing is None else (turn.rows[-1].at - standing.at) / 1e6

    async def read(self, question: Callable[[Fold], Result]) -> Result:
        """Ask something of the state that takes little time."""
        population = self.population
        if self._is_local and population._lock.acquire(blocking=False):
            try:
                if population._fold is not None and population._lost is None:
                    return question(population._fold)
            finally:
                population._lock.release()
        return await self.call(population._read, question)

    async def call(self, method: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Anything else of a population, in a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: method(*args, **options))

    async def _run(self, n_rows: int, command: Callable[[Turn], Result]) -> Result:
        population = self.population
        if self._is_local and population._lock.acquire(blocking=False):
            try:
                at_once = population._fold is not None and population._lost is None
                if at_once:
                    result, ticket = self._perform(n_rows, command, 0.0)
            finally:
                population._lock.release()
        else:
            at_once = False
        if not at_once:
            result, ticket = await self.call(self._perform, n_rows, command, PATIENCE)
        await self._arrivals.wait(ticket)
        return result

    def _perform(
        self, n_rows: int, command: Callable[[Turn], Result], patience: float
    ) -> tuple[Result, Ticket]:
        committer = self.population._writer()
        committer.reserve(n_rows, patience)
        return self.population._perform(committer, n_rows, command)
