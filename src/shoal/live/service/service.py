"""What requests share: the populations that this process serves, keys, limits, metrics and threads."""

import asyncio
import contextlib
import functools
import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET
from starlette.requests import Request

from shoal.core.policies.registry import make_policy
from shoal.core.policies.warming import FIRST, TRIAL, exercise
from shoal.live.evaluation.contests import act
from shoal.live.journal.arms import checked_name
from shoal.live.journal.patience import Patience
from shoal.live.population.asynchronous import Arrivals, AsyncPopulation
from shoal.live.population.controller import Controller
from shoal.live.population.population import Population
from shoal.live.population.quotas import NONE, Quotas
from shoal.live.protocol.answers import Alarm, ContestStanding
from shoal.live.protocol.errors import ControllerError, JournalError, LimitError, NotOwnerError, UnknownError
from shoal.live.protocol.messages import Problem
from shoal.live.protocol.problems import AWAY, BusyError, RefusedError, problem_of
from shoal.live.service.dashboard.watching import Watch
from shoal.live.service.keys import Key, Keys
from shoal.live.service.limits import Limits
from shoal.live.service.logs import log_seldom
from shoal.live.service.metrics import Metrics
from shoal.live.service.sessions import Proxy, Sessions

if TYPE_CHECKING:
    from shoal.live.service.ownership import Ownership
    from shoal.live.service.tracing import Tracing

Result = TypeVar("Result")
log = logging.getLogger("shoal.service")

HOSTS = ("localhost", "127.0.0.1", "[::1]")
HOUR = 3600.0
LAG = 0.25
"""Seconds between looks at how late the event loop is."""
MOST_ASKED = 16
"""Questions that read a whole journal and may be under way together."""
EXAMINE = 15.0
"""Seconds between looks for alarms."""
RESTS, LONGEST_REST = 20.0, 60.0
"""After a look for alarms, the next waits RESTS times as long as it took, up to LONGEST_REST seconds."""
TEND = 5.0
"""Seconds between looks at the size of the store."""
RETRY = 30.0
"""Seconds after which a population whose journal is damaged is tried again."""


class ClientGoneError(Exception):
    """The client closed the connection before it was answered."""


class Service:
    """See the module. `app.make_app` makes an application of it.

    Parameters
    ----------
    controller : Controller
        The service's from now on: it is closed when the server stops.
    keys : Keys
    is_open : bool
        Whether requests need no key while there are none: only if no other machine can reach this server.
    hosts : collection of str
        Host names that requests may use; "*" for any.
    behind_tls : bool
        Whether browsers use HTTPS, to a proxy in front of this server, whatever the scheme here.
    quotas : Quotas
        Limits on sizes and rates.
    retention : pair of a path and a number, optional
        Directory to which old records are moved once an hour, and their age in seconds.
    sessions : Sessions, optional
    proxy : Proxy, optional
        The proxy that is trusted to name the signed-in user.
    access_log, audit : callable, optional
        Take a request's fields and write its line to the log of requests and the audit log.
    tracing : Tracing, optional
        Spans and durations of requests, for OpenTelemetry.
    """

    def __init__(
        self,
        controller: Controller,
        keys: Keys,
        *,
        is_open: bool = False,
        hosts: Collection[str] = HOSTS,
        behind_tls: bool = False,
        quotas: Quotas = NONE,
        retention: tuple[str, float] | None = None,
        sessions: Sessions | None = None,
        proxy: Proxy | None = None,
        access_log: Callable[[dict[str, Any]], None] | None = None,
        audit: Callable[[dict[str, Any]], None] | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self.controller, self.keys, self.is_open, self.behind_tls = controller, keys, is_open, behind_tls
        self.hosts, self.access_log, self.quotas = frozenset(hosts), access_log, quotas
        self.retention = retention
        self.audit, self.proxy, self.tracing = audit, proxy, tracing
        self.limits = Limits(0.0 if quotas is NONE else quotas.rate)
        self.store = controller.store.url
        """Where the store is, which clients must not see."""
        self.sessions = sessions or Sessions()
        self.metrics = Metrics(self)
        self.watch = Watch(self)
        self.stopping = asyncio.Event()
        self.is_prepared = False
        """Whether every population has been opened and its policy compiled, or found damaged."""
        self.disk = (0, math.inf)
        """Bytes of the store, and those that are free beside it."""
        self.populations: dict[str, AsyncPopulation] = {}
        self.ownership: Ownership | None = None
        """Which server owns which population, where several servers share the store."""
        self.connections: Collection[object] = ()
        """Open connections to this server."""
        self.alarms: dict[str, list[Alarm]] = {}
        """The alarms of each population here, some seconds old."""
        self.contests: dict[str, ContestStanding | None] = {}
        """How the contest of each population here stood then."""
        self.unaudited = 0
        """Refused callers left out of the audit log since its last line."""
        self.under_way = 0
        """Requests under way."""
        self.bytes_read = 0
        """Bytes of the bodies of requests under way."""
        self.full: LimitError | None = None
        """Why requests that make the store larger are refused now."""
        self._elsewhere: dict[str, tuple[float, NotOwnerError]] = {}
        """Populations that another process owns: when the store is asked again, and the error until then."""
        self._damaged: dict[str, tuple[float, str]] = {}
        """Populations whose journals cannot be read: when that was tried, and why it failed."""
        self._compiled: dict[str, asyncio.Event] = {}
        """Policies that can decide; the event is set once all their other calls are compiled, too."""
        self._compiling = ""
        """The policy whose first calls are being compiled."""
        self._commands = ThreadPoolExecutor(16, "shoal-command")
        self._slow = ThreadPoolExecutor(4, "shoal-slow")
        self._heavy = ThreadPoolExecutor(2, "shoal-heavy")
        self._asked: Counter[str] = Counter()
        """Questions under way in those threads, by the id of their key."""
        self._patiences: set[Patience] = set()
        self._arrivals: Arrivals | None = None

    # Starting and stopping

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Serve from the start of the server to its end, as Starlette's `lifespan`."""
        self.begin()
        work = (self.prepare, self._tend, self._feel_lag, self._retain, self._examine)
        tasks = [asyncio.create_task(one()) for one in work]
        yield
        for task in tasks:
            task.cancel()
        self.end_streams()
        await asyncio.get_running_loop().run_in_executor(None, self.close)
        if self.ownership is not None:
            self.ownership.close()

    async def _tend(self) -> None:
        """Check now and then whether the store is too large or its disk is full."""
        while True:
            with contextlib.suppress(ControllerError, OSError):  # it is looked at again
                self.full = await self.run(self._fullness)
            await asyncio.sleep(TEND)

    async def _retain(self) -> None:
        """Move old records of each population to archives, now and then."""
        while self.retention is not None:
            directory, age = self.retention
            for name, one in list(self.populations.items()):
                archive = functools.partial(one.population.archive, directory, before=time.time() - age)
                try:
                    moved = await asyncio.get_running_loop().run_in_executor(self._heavy, archive)
                    if moved is not None:
                        log.info("population %r: records up to %d were archived", name, moved.last)
                except (ControllerError, ValueError, OSError) as error:
                    log.warning("population %r was not archived: %s", name, error)
            await asyncio.sleep(HOUR)

    async def _examine(self) -> None:
        """Check the alarms and the contest of each population that has changed, one after another."""
        seen: dict[str, int] = {}
        while True:
            for name, one in list(self.populations.items()):
                if one.owner.is_lost:
                    self.alarms.pop(name, None)
                elif seen.get(name) != (sequence := one.owner.sequence) or name not in self.alarms:
                    began = time.monotonic()
                    try:
                        self.alarms[name] = await self._look(one.population.alarms)
                        self.contests[name] = await self._look(functools.partial(act, one.owner))
                        seen[name] = sequence
                    except (ControllerError, ValueError, OSError) as error:  # it is looked at again
                        log_seldom(log, f"population {name!r} was not looked at for alarms: {error}")
                    await asyncio.sleep(min(RESTS * (time.monotonic() - began), LONGEST_REST))
            await asyncio.sleep(EXAMINE)

    async def _look(self, function: Callable[[], Result]) -> Result:
        """Call a function that may read a lot, in a thread; it is given up when the service ends."""
        patience = Patience()
        self._patiences.add(patience)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._heavy, patience.call, function)
        finally:
            patience.has_ended = True
            self._patiences.discard(patience)

    async def _feel_lag(self) -> None:
        """Measure how late the event loop wakes a sleeper: requests wait just as long."""
        while True:
            due = time.perf_counter() + LAG
            await asyncio.sleep(LAG)
            self.metrics.lag.observe(max(0.0, time.perf_counter() - due))

    def _fullness(self) -> LimitError | None:
        store = self.controller.store
        try:
            size, free = self.disk = store.nbytes(), store.free()
            self.quotas.check("disk", size, f"the store has {size:,} bytes")
            if free < self.quotas.free < math.inf:
                least = self.quotas.free
                raise LimitError(
                    f"{free:,.0f} bytes are free on disk: the limit free is {least:,.0f}", "free"
                )
        except LimitError as error:
            return error
        return None

    def begin(self) -> None:
        """Use the running event loop from now on."""
        self._arrivals = Arrivals(asyncio.get_running_loop())
        if self.controller.committer is not None:
            self.controller.committer.on_commit = self.metrics.commit.observe
        self.keys.listen()

    def end_streams(self) -> None:
        """Begin to stop: end event streams, our own and forwarded ones."""
        self.stopping.set()
        if self.ownership is not None:
            self.ownership.end_streams()

    async def prepare(self) -> None:
        """Open all populations, or this server's share of them, so that the first requests need not wait."""
        if self.ownership is not None:
            await self.ownership.begin()
        else:
            await self._open_all()
        for done in list(self._compiled.values()):
            await done.wait()
        self.is_prepared = True

    async def _open_all(self) -> None:
        waiting = dict.fromkeys(await self.run(self.controller.populations), "")
        while waiting:
            for name, known in list(waiting.items()):
                try:
                    await self.population(name)
                except (JournalError, UnknownError):
                    pass  # damaged, or a crash came before its first record
                except ControllerError as error:
                    if known != (said := str(error)):
                        log.warning("population %r is not served yet: %s", name, said)
                    waiting[name] = said
                    continue
                del waiting[name]
            if waiting:
                await asyncio.sleep(1.0)

    def trouble(self) -> str:
        """Why the store cannot commit, as far as is known; the text may name hosts and paths."""
        return "" if self.controller.committer is None else self.controller.committer.trouble

    def unprepared(self) -> str:
        """What requests still have to wait for."""
        later = (name for name, done in self._compiled.items() if not done.is_set())
        if compiling := self._compiling or next(later, ""):
            return f"the policy {compiling!r} is being compiled"
        return f"populations are being opened: {len(self.populations)} so far"

    def close(self) -> None:
        """Finish what was begun, and release the populations."""
        if self.ownership is not None:
            self.ownership.stop()
        for one in list(self._patiences):
            one.has_ended = True
        self._heavy.shutdown(cancel_futures=True)
        self._slow.shutdown(cancel_futures=True)
        self._commands.shutdown(cancel_futures=True)
        self.controller.close()
        self.keys.close()

    # What handlers use

    def problem_of(self, error: Exception, request: str | Any = UNSET, *, by_id: bool = False) -> Problem:
        """An error as a document for clients; a store's own message goes to the log instead."""
        problem, said = problem_of(error, request, by_id=by_id, hidden=self.store), str(error)
        # not the repr of an unexpected error, which may hold a name
        if problem.detail == AWAY and ("the store" in said or (self.store and self.store in said)):
            log_seldom(log, said)
        return problem

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a slow function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._slow, function, *args)

    async def ask(
        self, key: Key, request: Request, function: Callable[[], Result], *, ends: bool = True
    ) -> Result:
        """Answer a question that reads a whole journal, in threads that nothing else waits for.

        With `ends` it is given up when its caller leaves, or after the limit `seconds`.
        """
        self.check_key("heavy", key, self._asked[key.id], "such questions under way", 5)
        if self._asked.total() >= MOST_ASKED:
            raise BusyError(f"{MOST_ASKED} such questions are under way", 5.0)
        patience = Patience()
        self._asked[key.id] += 1
        self._patiences.add(patience)

        def is_done(work: "asyncio.Future[Any]") -> None:
            self._asked[key.id] -= 1
            self._patiences.discard(patience)
            if not work.cancelled():
                work.exception()  # its caller may have left

        work = asyncio.get_running_loop().run_in_executor(self._heavy, patience.call, function)
        work.add_done_callback(is_done)
        if not ends:
            return await work
        leaving: asyncio.Future[Any] = asyncio.ensure_future(_left(request))
        longest = self.quotas.seconds
        try:
            timeout = None if longest == math.inf else longest
            await asyncio.wait({work, leaving}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if leaving.done():
                raise ClientGoneError
            said = f"it was not answered in time: the limit seconds is {longest:g}"
            raise RefusedError("unavailable", said, {"retry-after": "60"}, "seconds")
        finally:
            leaving.cancel()
            patience.has_ended = True

    async def population(self, name: str) -> AsyncPopulation:
        """A population that exists."""
        known = self.populations.get(name)
        if known is not None and not known.owner.is_lost:
            return known
        until, error = self._elsewhere.get(name, (0.0, None))
        if error is not None and time.monotonic() < until:  # the store is not asked at each request
            raise NotOwnerError(*error.args)
        if (damage := self.damage(name)) is not None:
            raise damage
        checked_name("population", name)
        if self.ownership is not None and name in await self.run(self.controller.store.standings, name):
            # Lost since the request was admitted. The server it was moved to should take it, not this one.
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
        """Remember why a population's journal cannot be read, so that not every request tries again."""
        said = str(error)  # the error's traceback would keep what was read in memory
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
        """Serve an open population once its policy is compiled; other populations do not wait."""
        await self.compiled(population.settings.policy)
        known = self.populations.get(population.name)
        if known is None or known.population is not population:
            assert self._arrivals is not None
            parts = population, self._arrivals, self._commands
            known = AsyncPopulation(*parts) if self.tracing is None else self.tracing.population(*parts)
            known.commands.room.quotas = self.quotas
            self.populations[population.name] = known
        self._damaged.pop(population.name, None)
        return known

    async def compiled(self, policy: str) -> None:
        """Compile what a policy's first decision needs, once, and begin to compile the rest."""
        if policy not in self._compiled:
            steps = _exercise(policy)
            loop = asyncio.get_running_loop()
            self._compiling = policy
            await loop.run_in_executor(self._commands, _take, steps, FIRST)  # an opening waits for it
            self._compiling = ""
            self._compiled[policy] = done = asyncio.Event()
            what = policy, steps, loop, done
            # A daemon thread, so that a stop need not wait for a step, which may take seconds.
            threading.Thread(target=self._compile_on, args=what, name="shoal-compile", daemon=True).start()

    def _compile_on(
        self, policy: str, steps: Iterator[None], loop: asyncio.AbstractEventLoop, done: asyncio.Event
    ) -> None:
        """Compile the other calls of a policy."""
        try:
            while not self.stopping.is_set() and _take(steps, 1) > 0:
                pass
        except Exception as error:  # then it fails, or is compiled, when it is needed
            log.warning("policy %r is not compiled ahead: %s", policy, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(done.set)

    def is_here(self, population: str) -> bool:
        """Whether this process answers for a population: always, if no others share the store."""
        if self.ownership is None:
            return True
        known = self.populations.get(population)
        return known is not None and not known.owner.is_lost

    def check_key(self, limit: str, key: Key, count: int, what: str, retry_after: int) -> None:
        """Refuse a key that has reached a limit."""
        if count >= (most := getattr(self.quotas, limit)):
            said = f"the key {key.id} has {count} {what}: the limit {limit} is {most:,.0f}"
            raise RefusedError("too-many", said, {"retry-after": str(retry_after)}, limit)

    def charge(self, key: Key, requests: int) -> None:
        """Count a batch as `requests` requests; one of them has been counted already."""
        self.limits.charge(key.id, requests - 1)


async def _left(request: Request) -> None:
    """Return when the caller has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _exercise(policy: str) -> Iterator[None]:
    """Steps that make every call of a policy once; none if a parameter of it has no default."""
    with contextlib.suppress(ValueError, TypeError):
        yield from exercise(make_policy(policy, TRIAL, 2), 2)


def _take(steps: Iterator[None], most: int) -> int:
    """Take up to `most` steps, and return how many were taken."""
    return sum(1 for _ in itertools.islice(steps, most))
