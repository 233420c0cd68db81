"""A population's commands for an event loop: executed in its thread, awaited until they are committed.

A command takes less time than handing it to another thread would. So it is executed at once if nothing could
keep it waiting: the population's lock is free, its state is in memory, and the store does not have to be
asked over a network. Otherwise a thread of the pool executes it. Room in the queue and the commit are awaited
without one: a store that hangs would soon hold all threads. Nobody is woken more than once per commit.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from shoal.live.journal.committer import Committer, Ticket
from shoal.live.journal.fold import Fold
from shoal.live.population.commands import Turn, each
from shoal.live.population.owner import PATIENCE
from shoal.live.population.population import Population
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

    def room(self, committer: Committer) -> "asyncio.Future[None]":
        """Done when places in the queue have become free."""
        future: asyncio.Future[None] = self._loop.create_future()
        committer.when_room(lambda: self._arrived(future, None))
        return future

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
            if future.done():  # the caller has gone
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(type(error)(*error.args))


class AsyncPopulation:
    """A population for an event loop.

    Parameters
    ----------
    population : Population
    arrivals : Arrivals
    pool : Executor
        For what may take a while.
    """

    def __init__(self, population: Population, arrivals: Arrivals, pool: Executor) -> None:
        self.population, self.owner, self.commands = population, population.owner, population.owner.commands
        self._arrivals, self._pool = arrivals, pool

    async def perform(self, n_rows: int, command: Callable[[Turn], Result]) -> Result:
        """See `Owner.perform`; no thread is held up meanwhile."""
        started = await self._start(n_rows, command)
        if started is None:
            started = await self._start_with_patience(n_rows, command)
        result, ticket = started
        await self._arrivals.wait(ticket)
        return result

    async def _start(self, n_rows: int, command: Callable[[Turn], Result]) -> tuple[Result, Ticket] | None:
        """Have a command executed; None if the queue has no room."""
        if self.owner.store.is_local:
            started = self.owner.start_now(n_rows, command)
            if started is not None:
                return started
        return await self.call(self.owner.start, n_rows, command)

    async def _start_with_patience(
        self, n_rows: int, command: Callable[[Turn], Result]
    ) -> tuple[Result, Ticket]:
        committer, loop = self.owner.writer(), asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            room = self._arrivals.room(committer)  # before another try: so none that becomes free is missed
            started = await self._start(n_rows, command)
            if started is not None:
                return started
            await asyncio.wait([room], timeout=deadline - loop.time())
            if loop.time() >= deadline:
                raise committer.full()

    async def perform_each(
        self, n_rows: int, requests: Sequence[Any], one: Callable[[Turn, Any], Result]
    ) -> list[Result | Exception]:
        """See `Owner.perform_each`."""
        return await self.perform(n_rows * len(requests), each(requests, one)) if requests else []

    async def read(self, question: Callable[[Fold], Result]) -> Result:
        """See `Owner.read`; for what takes little time."""
        if self.owner.store.is_local:
            found = self.owner.peek(lambda fold: (question(fold),), waits=False)
            if found is not None:
                return found[0]
        return await self.call(self.owner.read, question)

    async def call(self, method: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Anything else of a population, in a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: method(*args, **options))
