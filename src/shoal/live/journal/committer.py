"""One thread per store that commits what populations append: all that is waiting, in one transaction.

Populations hand their rows over in order, while they hold their own lock; callers wait outside of it. The
number of rows in flight is bounded: a caller first takes a place for each of its rows, and waits for one if
need be, so that a slow store slows its callers down and nothing is dropped.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from shoal.live.journal.records import Row
from shoal.live.journal.stores.base import Batch, Lease, Store
from shoal.live.protocol.errors import ControllerError, NotOwnerError, UnavailableError

CAPACITY = 10_000
"""Rows in flight."""
AT_ONCE = 2_000
"""Rows in one transaction, about."""
TRIES = 3
"""Times that a commit is tried."""


class Leaseholder(Protocol):
    """What the committer knows of a population."""

    lease: Lease
    sure_until: float
    """See `uptime`: until then nobody else can have taken the population over."""

    def lose(self, error: ControllerError) -> None:
        """Drop the state in memory: rows that it holds were not committed."""


def uptime() -> float:
    """Seconds that pass as real time does, also while the machine sleeps, where it can tell."""
    return time.clock_gettime(_CLOCK)


_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Ticket:
    """Stands for rows on their way to the store."""

    __slots__ = ("_callbacks", "_error", "_lock")

    def __init__(self, *, done: bool = False) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[ControllerError | None], None]] = []
        self._error: ControllerError | None = None
        if not done:
            self._lock.acquire()

    def finish(self, error: ControllerError | None = None) -> None:
        """Let those who wait go on."""
        self._error = error
        self._lock.release()
        if self._callbacks:
            self._call()

    def when_done(self, callback: Callable[[ControllerError | None], None]) -> None:
        """Have a function called, once, with what kept the rows from being committed, or None.

        It is called by the thread that commits, or at once if there is nothing to wait for.
        """
        self._callbacks.append(callback)
        if self.is_done:  # both threads may come here; each callback is taken by one of them
            self._call()

    def _call(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._callbacks.pop()(self._error)

    def wait(self) -> None:
        """Return when the rows are committed, or raise why they were not."""
        with self._lock:
            if self._error is not None:
                raise type(self._error)(*self._error.args) from self._error

    @property
    def is_done(self) -> bool:
        """Whether `wait` would not wait."""
        return not self._lock.locked()


class _Item(NamedTuple):
    owner: Leaseholder
    life: object
    rows: Sequence[Row]
    arms: Sequence[tuple[bytes, bytes]]
    ticket: Ticket


class Committer:
    """See the module.

    Parameters
    ----------
    store : Store
    lease : float
        Seconds for which a population is owned after its last append.
    beat : callable
        Called about every third of a lease, by the same thread.
    """

    def __init__(self, store: Store, lease: float, beat: Callable[[], None]) -> None:
        self.store, self.lease = store, lease
        self._beat = beat
        self._queue: deque[_Item] = deque()
        self._mutex = threading.Lock()
        # Two, so that those who wait for places and the thread that waits for rows do not wake each other.
        self._work, self._room = threading.Condition(self._mutex), threading.Condition(self._mutex)
        self._awaiting_room: list[Callable[[], None]] = []
        self._in_flight = 0
        self._closing = False
        self._dead: dict[object, ControllerError] = {}
        """Lives of populations whose rows were refused, and why: what they sent after that is refused too."""
        self.commits = 0
        self.failures = 0
        """Commits that were given up."""
        self.trouble = ""
        """Why the store cannot commit, as far as is known."""
        self.on_commit: Callable[[float], object] = lambda seconds: None
        """Called with the time that each commit took."""
        self._thread = threading.Thread(target=self._run, name="shoal-committer", daemon=True)
        self._thread.start()

    def reserve(self, n: int, timeout: float) -> None:
        """Take places for `n` rows; `UnavailableError` if there are none for `timeout` seconds."""
        if self.store.is_immediate:
            return
        with self._mutex:
            if not self._room.wait_for(lambda: self._fits(n), timeout):
                raise self.full()

    def try_reserve(self, n: int) -> bool:
        """Take places for `n` rows, if as many are free."""
        if self.store.is_immediate:
            return True
        with self._mutex:
            return self._fits(n)

    def _fits(self, n: int) -> bool:
        if self._closing:
            raise UnavailableError(f"{self.store.url} is being closed")
        if self._in_flight + n > CAPACITY:
            return False
        self._in_flight += n
        return True

    def when_room(self, callback: Callable[[], None]) -> None:
        """Have a function called, once and soon, when places have become free, or none will any more."""
        with self._mutex:
            self._awaiting_room.append(callback)

    def full(self) -> UnavailableError:
        """What a caller is told who has waited for places long enough."""
        return UnavailableError(f"{self._in_flight:,} rows wait to be committed to {self.store.url}")

    def _tell_of_room(self) -> None:
        self._room.notify_all()
        callbacks, self._awaiting_room = self._awaiting_room, []
        for callback in callbacks:
            callback()

    def give_back(self, n: int) -> None:
        """Return places that were not needed."""
        if n and not self.store.is_immediate:
            with self._mutex:
                self._in_flight -= n
                self._tell_of_room()

    def submit(
        self, owner: Leaseholder, life: object, rows: Sequence[Row], arms: Sequence[tuple[bytes, bytes]]
    ) -> Ticket:
        """Append rows for which places were taken, in the order of these calls.

        `life` identifies the state in memory that the rows belong to.
        """
        item = _Item(owner, life, rows, arms, Ticket())
        if self.store.is_immediate:
            self._commit([item])
            return item.ticket
        with self._mutex:
            self._queue.append(item)
            self._work.notify()
        return item.ticket

    @property
    def in_flight(self) -> int:
        """Rows that wait to be committed."""
        return self._in_flight

    def close(self) -> None:
        """Commit what is waiting, and stop."""
        with self._mutex:
            self._closing = True
            self._work.notify()
            self._tell_of_room()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        next_beat = time.monotonic() + self.lease / 3
        while True:
            with self._mutex:
                self._work.wait_for(
                    lambda: self._queue or self._closing, max(next_beat - time.monotonic(), 0.0)
                )
                if self._closing and not self._queue:
                    return
                items = self._take()
            if items:
                start = time.perf_counter()
                self._commit(items)
                self.on_commit(time.perf_counter() - start)
                with self._mutex:
                    self._in_flight -= sum(len(item.rows) for item in items)
                    self._tell_of_room()
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat = time.monotonic() + self.lease / 3

    def _take(self) -> list[_Item]:
        items, count = [], 0
        while self._queue and count < AT_ONCE:
            items.append(self._queue.popleft())
            count += len(items[-1].rows)
        return items

    def _commit(self, items: list[_Item]) -> None:
        """Commit the rows of several populations in one transaction, and tell their callers."""
        by_owner: dict[int, list[_Item]] = {}
        for item in items:
            if item.life in self._dead:
                item.ticket.finish(self._dead[item.life])
            else:
                by_owner.setdefault(id(item.owner), []).append(item)
        groups = list(by_owner.values())
        batches = [_batch(group) for group in groups]
        sure_until = uptime() + self.lease  # from before the first try, which may be the one that succeeds
        for group, batch, error in zip(groups, batches, self._append(batches), strict=True):
            owner = group[0].owner
            if error is None:
                population, epoch, _, name = owner.lease
                owner.lease = Lease(population, epoch, batch.rows[-1].seq, name)
                owner.sure_until = sure_until
            else:
                self._dead[group[0].life] = error
                owner.lose(error)
            for item in group:
                item.ticket.finish(error)

    def _append(self, batches: list[Batch]) -> list[ControllerError | None]:
        """Append, again if the outcome is unknown: a batch that is there already is not appended twice."""
        if not batches:
            return []
        for attempt in range(TRIES):
            try:
                refused = self.store.append(batches, self.lease)
                self.commits += 1
                self.trouble = ""
                return [_as_controller_error(error) for error in refused]
            except NotOwnerError as error:
                return [error] * len(batches)
            except Exception as error:
                trouble = _as_controller_error(error)
                if attempt + 1 < TRIES:
                    time.sleep(0.05 * 4**attempt)
        self.failures += 1
        self.trouble = str(trouble)
        return [trouble] * len(batches)


def _batch(group: list[_Item]) -> Batch:
    """The rows of one population; often those of a single caller."""
    first = group[0]
    if len(group) == 1:
        return Batch(first.owner.lease, first.rows, first.arms)
    rows = [row for item in group for row in item.rows]
    return Batch(first.owner.lease, rows, [one for item in group for one in item.arms])


def _as_controller_error(error: Exception | None) -> ControllerError | None:
    if error is None or isinstance(error, ControllerError):
        return error
    return UnavailableError(f"the store failed: {error}")
