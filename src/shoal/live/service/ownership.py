"""Several servers on one PostgreSQL database: each owns some populations, and forwards requests for others.

A thread looks at the database, three times in a lease and whenever owners change: it says that this server is
alive, and reads which server owns which population. Each server takes its share of the unowned populations at
once, and another server's share one lease later. A request for an unowned population makes the server that
got it take it. Safety does not depend on any of this: the store appends nothing for a server that no longer
owns the population (see `shoal.live.journal.stores.base`).
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from shoal.live.journal.records import Settings, decode
from shoal.live.journal.stores.base import SCHEMA, PopulationOwner, Store, other_schema
from shoal.live.journal.stores.postgres import PostgresStore
from shoal.live.population.servers import Directory, View, new_name, preferred, url_of
from shoal.live.protocol.errors import ControllerError, JournalError, NotOwnerError, UnavailableError
from shoal.live.service.forwarding import Elsewhere, Forwarder, is_forwarded
from shoal.live.service.service import RETRY, Service

Result = TypeVar("Result")
log = logging.getLogger("shoal.service")
PAUSE = 0.3
"""Seconds for which requests for a population that could not be opened get the same error."""


class Ownership:
    """Which populations this server owns, and where the others are.

    Parameters
    ----------
    service : Service
        On a PostgreSQL store.
    url : str
        At which other servers reach this one.
    lease : float
        Seconds after which a silent server's populations may be taken over.
    """

    def __init__(self, service: Service, url: str, lease: float) -> None:
        store = service.controller.store
        assert isinstance(store, PostgresStore)
        self.name = new_name(url)
        self._service, self._store, self._lease = service, store, lease
        service.controller.share(self.name)
        self._directory = Directory(store, self.name, lease)
        self._forwarder = Forwarder()
        self._elsewhere: dict[str, Elsewhere] = {}
        self._servers: list[str] = []
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, tuple[float, ControllerError]] = {}
        """Populations that could not be opened: when that was tried, and the error."""
        self._free: dict[str, float] = {}
        """Unowned populations, and since when this server knows."""
        self._cold: dict[str, None] = {}
        """Populations whose policies may not be compiled here yet."""
        self._warmed: set[str] = set()
        self._warming: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = threading.Event()
        self._looked = asyncio.Event()
        self._pool = ThreadPoolExecutor(4, "shoal-owner")
        """Opens and finds populations; slow readers occupy the service's own threads."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.trouble = ""
        """Why nothing is taken over."""

    # Starting and stopping

    async def begin(self) -> None:
        """Look for the first time, and open this server's share."""
        self._loop = loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._watch, args=(loop,), name="shoal-owners", daemon=True)
        self._thread.start()
        await self._looked.wait()
        while self._opening or self._cold:
            await asyncio.wait([*self._opening.values(), *self._tasks])

    def stop(self) -> None:
        """Take no more populations. Called before they are released, not in the loop's thread."""
        self._closing.set()
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)
            self._directory.wake()
            self._thread.join(self._lease + 10.0)
        self._pool.shutdown(cancel_futures=True)

    def _cancel(self) -> None:
        for task in (*self._opening.values(), *self._tasks):
            task.cancel()

    def end_streams(self) -> None:
        """End forwarded event streams. Called in the loop's thread."""
        self._forwarder.end_streams()

    def close(self) -> None:
        """Close the connections to other servers. Called in the loop's thread."""
        self._forwarder.close()

    # Looking

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        is_blind = False
        while not self._closing.is_set():
            try:
                loop.call_soon_threadsafe(self._see, self._directory.look())
                is_blind = False
                self._closing.wait(0.05)  # one look for many changes
                self._directory.wait(self._lease / 3.0)
            except Exception as error:  # of any kind: without this thread nothing would be taken over
                if loop.is_closed():
                    break
                if not is_blind:
                    log.warning("owners cannot be seen: %r", error)
                is_blind = True
                self._closing.wait(0.2)
        self._directory.leave()

    def _see(self, view: View) -> None:
        """Note which server owns which population, and begin to take this server's share."""
        self._servers = view.servers
        trouble = other_schema(view.schema) if view.schema != SCHEMA else ""
        if trouble and trouble != self.trouble:
            log.error("the store %s; no population is taken over, those owned are served on", trouble)
        self.trouble = trouble
        for name, one in self._service.populations.items():
            standing = view.standings.get(name)
            # its own next beat would notice only later
            if standing is not None and standing.epoch > one.owner.lease.epoch:
                one.owner.lose(NotOwnerError(f"population {name!r} was taken from this server"))
        self._drop_lost()
        for name, known in list(self._elsewhere.items()):
            standing = view.standings.get(name)
            if standing is None or (standing.owner, standing.epoch) != (known.owner, known.epoch):
                del self._elsewhere[name]
                known.give_up()
        now = time.monotonic()
        self._free = {
            name: self._free.get(name, now) for name, one in view.standings.items() if not one.owner
        }
        self._cold.update(dict.fromkeys(view.standings.keys() - self._warmed))
        self._warmed = set(view.standings)
        if self._cold and (self._warming is None or self._warming.done()):
            self._warming = self._background(self._warm())
        for name, standing in view.standings.items():
            if self._note(name, standing) is None and self._is_ours_to_take(name, standing, now):
                self._open_soon(name)
        self._looked.set()

    def _note(self, name: str, standing: PopulationOwner) -> Elsewhere | None:
        """Where a population is, if another server owns it."""
        if name in self._elsewhere:
            return self._elsewhere[name]
        url = url_of(standing.owner)
        if url is None or url == url_of(self.name):
            return None
        self._elsewhere[name] = found = Elsewhere(standing.owner, url, standing.epoch)
        return found

    def _is_ours_to_take(self, name: str, standing: PopulationOwner, now: float) -> bool:
        if standing.owner or self.trouble or self._closing.is_set():
            return False
        at, error = self._failed.get(name, (0.0, None))
        is_lasting = error is not None and not isinstance(error, NotOwnerError | UnavailableError)
        if self._service.damage(name) is not None or (is_lasting and now < at + RETRY):
            return False
        if now > self._free.get(name, now) + self._lease:  # its preferred server has not taken it
            return True
        promised = standing.promised if standing.promised in self._servers else ""
        return (promised or preferred(name, self._servers)) == self.name

    def is_ours(self, name: str) -> bool:
        """Whether this server is the one that should take an unowned population."""
        is_free = name in self._free or name in self._opening
        return is_free and preferred(name, self._servers) == self.name

    def _drop_lost(self) -> None:
        """Drop the state of populations that other servers have taken over."""
        service = self._service
        for name, known in list(service.populations.items()):
            if known.owner.is_lost:
                log.warning("%s; requests for it are passed on", known.owner.why_lost)
                del service.populations[name]
                service.metrics.lost.inc()
                self._background(self._run(service.controller.drop, name))

    def _background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function that asks the store, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    # Opening

    async def _warm(self) -> None:
        """Compile the policies of all populations, so that taking one over need not wait for that."""
        while self._cold:
            name = next(iter(self._cold))
            try:
                await self._compile(name)
            except Exception as error:  # then it is compiled, or fails, when it is opened
                log.warning("the policy of population %r is not compiled yet: %s", name, error)
            finally:
                del self._cold[name]

    async def _compile(self, name: str) -> None:
        if (policy := await self._run(_policy_of, self._store, name)) is not None:
            await self._service.compiled(policy)

    def _open_soon(self, name: str) -> "asyncio.Task[None]":
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.create_task(self._open(name))
            task.add_done_callback(lambda _: self._opening.pop(name, None))
        return task

    async def _open(self, name: str) -> None:
        """Take an unowned population; an error goes to `_failed`, a damaged journal to the service."""
        service = self._service
        if name in service.populations and service.is_here(name):
            return
        try:
            self._drop_lost()
            await self._compile(name)  # before the lease is taken
            await self._run(service.controller.drop, name)
            await service.adopt(await self._run(service.controller.population, name))
            service.metrics.taken.inc()
            self._failed.pop(name, None)
        except (JournalError, ValueError) as error:
            service.note_damage(name, error)
        except ControllerError as error:
            self._failed[name] = (time.monotonic(), error)
            if not isinstance(error, NotOwnerError):
                log.warning("population %r is not served yet: %s", name, error)

    # Requests for what is not here

    async def answer(self, request: Request, name: str) -> Response | None:
        """The owner's answer to a request; None if this server now owns the population, or there is none."""
        if (task := self._opening.get(name)) is not None:
            await asyncio.shield(task)
        if self._service.is_here(name):
            return None
        if is_forwarded(request):
            raise NotOwnerError(f"population {name!r} is not owned by the server that was asked")
        there = self._elsewhere.get(name) or await self._find(name)
        if there is None:
            return None
        metrics = self._service.metrics
        try:
            headers, tracing = request.scope["state"]["headers"], self._service.tracing
            with contextlib.nullcontext() if tracing is None else tracing.forwarding(headers, there.url):
                answer = await self._forwarder.forward(request, there)
        except UnavailableError:
            metrics.child(metrics.forwarded, "failed").inc()
            raise
        metrics.child(metrics.forwarded, "answered").inc()
        return answer

    async def _find(self, name: str) -> Elsewhere | None:
        """Ask the store where a population is, and take it if it is unowned."""
        if (damage := self._service.damage(name)) is not None:
            raise damage
        at, error = self._failed.get(name, (0.0, None))
        if error is not None and time.monotonic() < at + PAUSE:
            raise type(error)(*error.args)
        standing = (await self._run(self._store.standings, name)).get(name)
        if standing is None:
            return None  # the handler makes it, or answers 404
        if standing.owner and standing.owner != self.name:
            if (there := self._note(name, standing)) is not None:
                return there
            error = NotOwnerError(f"population {name!r} is owned by {standing.owner}")
        elif self.trouble:
            error = NotOwnerError(f"population {name!r} cannot be taken: the store {self.trouble}")
        elif self._is_promised(name, standing):
            error = NotOwnerError(f"population {name!r} is being moved to {standing.promised}")
        else:
            await asyncio.shield(self._open_soon(name))
            if self._service.is_here(name):
                return None
            if (damage := self._service.damage(name)) is not None:
                raise damage
            error = self._failed.get(name, (0.0, NotOwnerError(f"population {name!r} is on the move")))[1]
        self._failed[name] = (time.monotonic(), error)
        raise type(error)(*error.args)

    def _is_promised(self, name: str, standing: PopulationOwner) -> bool:
        """Whether a population was moved to another server less than a lease ago."""
        if standing.promised in ("", self.name) or standing.promised not in self._servers:
            return False
        return time.monotonic() < self._free.setdefault(name, time.monotonic()) + self._lease


def _policy_of(store: Store, name: str) -> str | None:
    """The policy that a population was made with, if its first record is in the store."""
    number = store.populations().get(name)
    for row in () if number is None else store.read(number, 0, 1):
        with contextlib.suppress(ControllerError, ValueError, TypeError):
            record = decode(row.body)
            return record.policy if isinstance(record, Settings) else None
    return None
