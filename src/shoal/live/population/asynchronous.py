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
from typing import Any, NamedTuple, TypeVar

from shoal.live.journal import committer as committing
from shoal.live.journal.committer import Committer, Ticket
from shoal.live.journal.fold import Fold
from shoal.live.population.commands import Turn, each
from shoal.live.population.owner import PATIENCE
from shoal.live.population.population import Population
from shoal.live.protocol.errors import ControllerError, UnavailableError

Result = TypeVar("Result")


class Arrivals:
    """Tells an event loop of commits, of all at once. One for each event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[tuple[Callable[[ControllerError | None], None], ControllerError | None]] = deque()
        self._scheduled = False

    def tell(self, ticket: Ticket, then: Callable[[ControllerError | None], None]) -> None:
        """Call a function in the loop when rows are committed, with what kept them from it, or None."""
        ticket.when_done(lambda error: self._arrived(then, error))

    def room(self, committer: Committer) -> "asyncio.Future[None]":
        """Done when places in the queue have become free."""
        future: asyncio.Future[None] = self._loop.create_future()
        committer.when_room(lambda: self._arrived(lambda _: _settle(future, None), None))
        return future

    def _arrived(self, then: Callable[[ControllerError | None], None], error: ControllerError | None) -> None:
        self._done.append((then, error))
        if not self._scheduled:  # set before it is scheduled, cleared before they are told: none is missed
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop is closed: nobody is waiting any more
                self._done.clear()

    def _wake(self) -> None:
        self._scheduled = False
        while self._done:
            then, error = self._done.popleft()
            then(error)


def _settle(future: "asyncio.Future[Any]", result: Any) -> None:
    """Wake who awaits a result, or an error, unless they have gone."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


class _Waiting(NamedTuple):
    """A command, and who awaits what comes of it."""

    n_rows: int
    command: Callable[[Turn], Any]
    future: "asyncio.Future[Any]"


class _Group:
    """Commands that are executed together, in order, each of which may be refused."""

    def __init__(self, waiting: list[_Waiting]) -> None:
        self.waiting, self.n_rows = waiting, sum(one.n_rows for one in waiting)
        self.results: list[Any] = []

    def __call__(self, turn: Turn) -> None:
        for one in self.waiting:
            try:
                self.results.append(one.command(turn))
            except (ValueError, ControllerError) as error:
                self.results.append(error)

    def settle(self, error: ControllerError | None = None) -> None:
        """Tell everybody what came of their command, once all of it is committed."""
        for one, result in zip(self.waiting, self.results, strict=True):
            _settle(one.future, result if error is None else type(error)(*error.args))

    def fail(self, error: Exception) -> None:
        """Nothing was executed, or the state was dropped with what was; who is to blame gets the error."""
        away = isinstance(error, ControllerError)
        for place, one in enumerate(self.waiting):
            is_theirs = away or place == len(self.results)
            _settle(
                one.future, error if is_theirs else UnavailableError(f"another command failed: {error!r}")
            )


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
        self._waiting: list[_Waiting] = []
        self._is_busy = False
        """Whether a thread executes commands; those that come meanwhile wait for the next group."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def perform(self, n_rows: int, command: Callable[[Turn], Result]) -> Result:
        """See `Owner.perform`; no thread is held up meanwhile.

        Commands that arrive in one turn of the event loop, or while a thread is at work, are executed
        together: one lock, one place in the queue and one wake-up for all of them.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append(_Waiting(n_rows, command, future))
        if len(self._waiting) == 1 and not self._is_busy:
            loop.call_soon(self._begin)
        return await future

    def _begin(self) -> None:
        """Execute what is waiting, here or in a thread."""
        # A group must find room in a queue that is nearly full; a command that needs more is alone.
        count, n_rows, most = 0, 0, committing.CAPACITY // 10
        while count < len(self._waiting) and (not count or n_rows + self._waiting[count].n_rows <= most):
            n_rows += self._waiting[count].n_rows
            count += 1
        group = _Group(self._waiting[:count])
        del self._waiting[:count]
        started = None
        if self.owner.store.is_local:
            try:
                started = self.owner.start_now(group.n_rows, group)
            except Exception as error:
                group.fail(error)
                self._go_on()
                return
        if started is None:
            self._is_busy = True
            task = asyncio.get_running_loop().create_task(self._execute(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._arrivals.tell(started[1], group.settle)
        self._go_on()

    def _go_on(self) -> None:
        self._is_busy = False
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)

    async def _execute(self, group: _Group) -> None:
        """Have commands executed in a thread, and wait for room in the queue if need be."""
        try:
            started = await self.call(self.owner.start, group.n_rows, group)
        except Exception as error:
            group.fail(error)
            return
        finally:
            self._go_on()  # others need not wait for room, or for a commit, before they try
        try:
            if started is None:
                started = await self._start_with_patience(group)
        except Exception as error:
            group.fail(error)
        else:
            self._arrivals.tell(started[1], group.settle)

    async def _start_with_patience(self, group: _Group) -> tuple[None, Ticket]:
        committer, loop = self.owner.writer(), asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            room = self._arrivals.room(committer)  # before another try: so none that becomes free is missed
            started = await self.call(self.owner.start, group.n_rows, group)
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
