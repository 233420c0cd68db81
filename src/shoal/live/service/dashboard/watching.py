"""Follows the populations that a page has asked for, and tells open pages once a second what is new."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from shoal.live.population.population import Population
from shoal.live.population.views import Sizes
from shoal.live.protocol.answers import Alarm, ContestStanding
from shoal.live.protocol.errors import ControllerError
from shoal.live.protocol.messages import encoder
from shoal.live.protocol.problems import BusyError
from shoal.live.service.dashboard.data import Overview, SharingPicture, overview
from shoal.live.service.dashboard.following import RINGS, Follower
from shoal.live.service.dashboard.refusals import refused_rewards
from shoal.live.service.keys import Key

if TYPE_CHECKING:
    from shoal.live.service.service import Service

TICK = 1.0
"""Seconds between messages to open pages."""
IDLE = 5.0
"""Seconds between looks at the journal while no page is open."""
MOST_LISTENERS = 64
"""Open pages in all."""
STREAM = 300.0
"""Seconds until a stream ends, and the page asks for another."""
PATIENCE = 15.0
"""Seconds of silence after which a page is told that nothing is new, so that proxies keep the connection."""


class Tick(msgspec.Struct, frozen=True):
    """What is new."""

    sizes: Sizes
    slots: dict[int, Overview]
    """The last two slots of each ring, by their length in seconds."""
    refused: int
    """Rewards refused since the service started: out of range, or other than recorded."""
    unmatched: int
    """Rewards for unknown decisions since then."""
    changed: int
    """See `Follower.changed`."""
    alarms: list[Alarm]
    contest: ContestStanding | None
    """As they were some seconds ago."""


class Watched:
    """A population with its follower and its picture."""

    def __init__(self, population: Population) -> None:
        self.follower = Follower(population)
        self.picture = SharingPicture(self.follower)
        self.listeners = 0
        self.message = b""
        self.number = 0
        """Of the message."""
        self.looked = 0.0
        self.news = asyncio.Event()
        self.busy = asyncio.Lock()

    @property
    def is_lost(self) -> bool:
        """Whether another server owns the population by now; pages then ask again, and are passed on."""
        return self.follower.population.owner.is_lost

    def look(self, service: "Service") -> bytes:
        """Read new records; returns the message about them, for pages."""
        self.follower.catch_up()
        slots = {step: overview(self.follower, step, 2) for step in RINGS}
        tick = Tick(
            slots[60].sizes,
            slots,
            *refused_rewards(service.metrics, self.follower.population.name),
            self.follower.changed,
            service.alarms.get(self.follower.population.name, []),
            service.contests.get(self.follower.population.name),
        )
        return b"event: tick\ndata: " + encoder.encode(tick) + b"\n\n"


class Watch:
    """All populations that one service watches."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._watched: dict[str, Watched] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_key: Counter[str] = Counter()
        """Open pages by the id of their key."""

    async def of(self, name: str) -> Watched:
        """A population, read up to a moment ago, and followed from now on."""
        population = (await self._service.population(name)).population
        known = self._watched.get(name)
        if known is None or known.follower.population is not population:
            known = await self._service.run(Watched, population)
            if (other := self._watched.get(name)) and other.follower.population is population:
                known = other  # another request was faster
            else:
                self._watched[name] = known
                task = asyncio.create_task(self._follow(name, known))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if time.monotonic() - known.looked > TICK:
            await self._look(known)
        return known

    async def _look(self, known: Watched) -> None:
        async with known.busy:
            if time.monotonic() - known.looked < TICK / 2:
                return
            message = await self._service.run(known.look, self._service)
            known.looked = time.monotonic()
            if message != known.message:
                known.message, known.number = message, known.number + 1
            known.news.set()
            known.news = asyncio.Event()

    async def _follow(self, name: str, known: Watched) -> None:
        """Read new records for as long as the service runs and owns the population."""
        stopping = self._service.stopping
        while self._watched.get(name) is known and not known.is_lost:
            pause = TICK if known.listeners else IDLE
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), pause)
            if stopping.is_set():
                return
            with contextlib.suppress(ControllerError):  # the store is away; it is tried again
                await self._look(known)

    async def listen(self, known: Watched, key: Key) -> AsyncIterator[bytes]:
        """Messages for one page, for as long as its key is valid."""
        if sum(one.listeners for one in self._watched.values()) >= MOST_LISTENERS:
            raise BusyError(f"{MOST_LISTENERS} pages are open already", 5.0)
        self._service.check_key("streams", key, self._of_key[key.id], "pages open", 5)
        return self._messages(known, key)

    async def _messages(self, known: Watched, key: Key) -> AsyncIterator[bytes]:
        end, spoke, seen = time.monotonic() + STREAM, time.monotonic(), -1
        stopping = asyncio.ensure_future(self._service.stopping.wait())
        known.listeners += 1  # here, as this is never reached for a page that leaves at once
        self._of_key[key.id] += 1
        try:
            yield b"retry: 2000\n\n"
            while time.monotonic() < end and not stopping.done() and not known.is_lost:
                if not self._service.keys.still_opens(key):
                    return
                if known.number != seen:
                    seen, spoke = known.number, time.monotonic()
                    yield known.message
                news = asyncio.ensure_future(known.news.wait())
                await asyncio.wait((news, stopping), timeout=TICK, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if time.monotonic() > spoke + PATIENCE:
                    spoke = time.monotonic()
                    yield b": nothing new\n\n"
        finally:
            stopping.cancel()
            known.listeners -= 1
            self._of_key[key.id] -= 1
