"""Who may act on a population: its lock, its state in memory, its lease and the queue of its rows.

`read` asks something of the state, `perform` executes a command and returns when its rows are committed, and
`settled` holds the population still. An event loop cannot wait in `perform`: it calls `start_now`, or `start`
in a thread, and awaits room in the queue and the commit (asynchronous.py), for as long as a thread waits.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.live.journal import snapshots
from shoal.live.journal.archives import Base, base_of
from shoal.live.journal.committer import Committer, Ticket, uptime
from shoal.live.journal.fold import Fold, current_stamp
from shoal.live.journal.forgetting import finish_forgetting
from shoal.live.journal.stores.base import Lease, Store
from shoal.live.population.commands import MICRO, Commands, Turn, each
from shoal.live.population.line import Line
from shoal.live.population.snapshotter import Process
from shoal.live.protocol.errors import ControllerError, NotOwnerError, UnavailableError

if TYPE_CHECKING:
    from shoal.live.evaluation.contests import Shadows

Result = TypeVar("Result")
PATIENCE = 10.0
"""Seconds that a command waits for places in the queue, whether a thread or an event loop waits for it.

A store that works empties a full queue within a second or two. A refused caller asks again and sends
everything twice, so a short wait is the cheaper answer; on a store that hangs, this ends it.
"""


class Owner:
    """See the module. Any number of threads may use it.

    Parameters
    ----------
    store : Store
    committer : Committer, optional
        Commits for all populations of the store; without one, the population is open for reading only.
    name : str
        Of the population.
    lease : Lease
        The right to append, with what is committed so far.
    sure_until : float
        By `uptime`; until then the lease cannot have ended.
    """

    def __init__(
        self, store: Store, committer: Committer | None, name: str, lease: Lease, sure_until: float = 0.0
    ) -> None:
        self.store, self.name, self.number = store, name, lease.population
        self.lease, self.sure_until = lease, sure_until
        self.base = Base()
        """What is known of the part of the journal that was archived."""
        self.commands = Commands(name, store, self.number, lambda: self.base)
        self.retaining = threading.Lock()
        """Held while archives are written."""
        self.shadowing = threading.Lock()
        """Held while the standing of a contest is computed."""
        self.shadows: Shadows | None = None
        self.snapshotter: Process | None = None
        self.snapshot_seq = 0
        """Sequence number of the last snapshot that was made here."""
        self._committer = committer
        self._lock = threading.RLock()
        self._line = Line(self._lock)
        self._fold: Fold | None = None
        self._life = object()
        self._lost: ControllerError | None = None
        self._ticket = Ticket(done=True)
        self._clock_ahead = store.now() - int(uptime() * MICRO)
        self._rebuilding: threading.Thread | None = None

    # Reading

    def read(self, question: Callable[[Fold], Result]) -> Result:
        """Ask something of the state."""
        with self._lock:
            answer = question(self._state())
            self._vouch()
            return answer

    def peek(self, question: Callable[[Fold], Result], *, waits: bool = True) -> Result | None:
        """Ask something of what is in memory, without a look at the store; None if nothing is.

        With `waits=False` also None if the lock is taken.
        """
        if not self._lock.acquire(blocking=waits):
            return None
        try:
            return question(self._fold) if self._fold is not None and self._lost is None else None
        finally:
            self._lock.release()

    def alone(self) -> contextlib.AbstractContextManager[object]:
        """Nobody else acts inside; what was done before may still be on its way to the store."""
        return self._lock

    @contextlib.contextmanager
    def settled(self) -> Iterator[Fold]:
        """The state, all of it committed; nobody else acts inside."""
        with self._lock:
            fold = self._state()
            self._ticket.wait()
            self._vouch()
            yield fold

    def packed(self) -> tuple[bytes, int]:
        """The present state, all of it committed, as the bytes of a snapshot, and its sequence number."""
        with self.settled() as fold:
            return snapshots.pack(fold), fold.seq

    @property
    def sequence(self) -> int:
        """Number of the last record in memory, committed or not."""
        return 0 if self._fold is None else self._fold.seq

    @property
    def version(self) -> str | None:
        """Number and time of the last record, if the state certainly follows from the records so far.

        A store that is made anew has the same numbers again, but not the same times. None while records are
        on their way, which may be lost, while the state changes without one, and while the population may be
        another server's, which reading it will tell.
        """
        fold = self._fold
        if fold is None or self.is_rebuilding or fold.seq != self.lease.last_seq or not self.is_sure:
            return None
        return f"{fold.seq}-{fold.at}"

    # Acting

    def perform(self, n_rows: int, command: Callable[[Turn], Result]) -> Result:
        """Execute a command that appends up to `n_rows` rows; its result, when they are committed."""
        self.writer().reserve(n_rows, PATIENCE)
        return self._line.run(lambda: self._execute(n_rows, command))

    def perform_each(
        self, n_rows: int, requests: Iterable[Any], one: Callable[[Turn, Any], Result]
    ) -> list[Result | Exception]:
        """Execute a command for each request, all in one commit; the result of each, or its error."""
        items = list(requests)
        return self.perform(n_rows * len(items), each(items, one)) if items else []

    def start(self, n_rows: int, command: Callable[[Turn], Result]) -> tuple[Result, Ticket] | None:
        """As `perform`, without waiting for queue or commit: the result holds once the ticket is done.

        None, with nothing done, if the queue has no room.
        """
        return self._execute(n_rows, command) if self.writer().try_reserve(n_rows) else None

    def start_now(self, n_rows: int, command: Callable[[Turn], Result]) -> tuple[Result, Ticket] | None:
        """As `start`; None also if that had to wait for the lock, or for the state to be loaded."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self.start(n_rows, command) if self.is_loaded else None
        finally:
            self._lock.release()

    def _execute(self, n_rows: int, command: Callable[[Turn], Result]) -> tuple[Result, Ticket]:
        """Execute a command for whose rows there are places."""
        committer = self.writer()
        turn = None
        ticket = self._ticket
        try:
            with self._lock:
                turn = Turn(self._state(), self.now)
                try:
                    result = command(turn)
                except (ValueError, ControllerError):
                    self._vouch(turn)
                    raise  # nothing was changed, or a first part, which is complete and recorded
                except BaseException as error:  # the state may be half changed
                    turn.rows.clear()
                    self.lose(UnavailableError(f"the command failed: {error!r}"))
                    raise
                else:
                    self._vouch(turn)
                finally:
                    if turn.rows:
                        self._ticket = committer.submit(self, self._life, turn.rows, turn.arms)
                    ticket = self._ticket  # without rows: what the answer rests on may be on its way
        finally:
            committer.give_back(n_rows - (len(turn.rows) if turn else 0))
        return result, ticket

    def miss_rewards(self) -> int:
        """Write down which rewards did not come within the window, oldest decisions first; how many.

        The committer's thread calls this now and then. It must not wait for a command, nor end: what cannot
        be done now is left for the next time.
        """
        if self._committer is None or not self._lock.acquire(blocking=False):
            return 0
        try:
            late = self.peek(lambda fold: self.commands.late(fold, self.now()))
            done = self.start_now(len(late), lambda turn: self.commands.miss(turn, late)) if late else None
            return 0 if done is None else done[0]
        except Exception:  # the state was dropped if it may be half changed
            return 0
        finally:
            self._lock.release()

    def now(self) -> int:
        """The store's clock, as it was when the population was opened: setting the clock changes nothing."""
        return int(uptime() * MICRO) + self._clock_ahead

    def writer(self) -> Committer:
        """What commits for this population; `NotOwnerError` if it is open for reading only."""
        if self._committer is None:
            raise NotOwnerError(f"population {self.name!r} is open for reading only")
        return self._committer

    # The lease

    @property
    def reads_only(self) -> bool:
        """Whether another process writes, and this one follows."""
        return self._committer is None

    @property
    def is_lost(self) -> bool:
        """Whether another process owns the population by now, or it has been closed here."""
        return isinstance(self._lost, NotOwnerError)

    @property
    def why_lost(self) -> ControllerError | None:
        """What became of the state in memory, if it is of no use any more."""
        return self._lost

    @property
    def is_sure(self) -> bool:
        """Whether it is known, without asking the store, that nobody else has taken the population over."""
        return self.reads_only or self.store.is_local or uptime() < self.sure_until

    def _vouch(self, turn: Turn | None = None) -> None:
        """Ask the store whether we are still the owner, if that is not sure and no rows will tell.

        Without this, an answer could rest on a state that is not the present one any more.
        """
        if (turn is not None and turn.rows) or self.is_sure:
            return
        seconds = self.writer().lease
        sure_until = uptime() + seconds
        if lost := self.store.renew([self.lease], seconds):
            error = NotOwnerError(f"population {self.name!r} was taken over by {lost[self.number]}")
            self.lose(error)
            raise error
        self.sure_until = sure_until

    def lose(self, error: ControllerError) -> None:
        """Drop the state in memory; the next command rebuilds it. Takes no lock: the committer calls it."""
        self._lost = error

    def close(self) -> None:
        """Commit what is on its way, and let go of the population."""
        with self._lock:
            was_loaded = self.is_loaded
            self._lost = NotOwnerError(f"population {self.name!r} has been closed")
            if was_loaded and not self.reads_only:
                try:
                    self._ticket.wait()
                finally:
                    self.store.release(self.lease)

    # The state

    @property
    def is_loaded(self) -> bool:
        """Whether there is a state in memory that can be used."""
        return self._fold is not None and self._lost is None

    def _state(self) -> Fold:
        """The state in memory, rebuilt if the last one was dropped. Call it with the lock held."""
        if isinstance(self._lost, NotOwnerError):
            raise NotOwnerError(*self._lost.args)
        if self._fold is None or self._lost is not None:
            return self._recover()
        if self.reads_only:  # take in what the owner has committed since
            fold, last = self._fold, self.store.last_seq(self.number)
            if fold.seq > last or (
                fold.seq < last and not snapshots.catch_up(fold, self.store, self.number, last)
            ):
                self._fold = snapshots.load(self.store, self.number)
        return self._fold

    def _recover(self) -> Fold:
        """Build the state from the store."""
        with contextlib.suppress(ControllerError):
            self._ticket.wait()  # nothing of the old state is on its way any more
        fold = snapshots.load(self.store, self.number)
        self._fold, self._life, self._lost = fold, object(), None
        self.base = base_of(self.store, self.number)
        self.lease = self.lease._replace(last_seq=fold.seq)
        self._ticket = Ticket(done=True)
        self.commands.clear()
        if not self.reads_only:
            finish_forgetting(self.store, self.number, fold)
        if fold.differences:
            warnings.warn(
                f"population {self.name!r}: {'; '.join(fold.differences[:3])}, as the journal was written by "
                f"{fold.stamp} and read by {current_stamp()}",
                RuntimeWarning,
                stacklevel=3,
            )
        return fold

    def replace(self, fold: Fold) -> None:
        """Go on with another state of the same journal. Call it when all is `settled`."""
        self._fold = fold
        self.commands.closed.clear()

    def rebuild_soon(self, prepare: Callable[[], None]) -> None:
        """Fold the journal again in a thread, once it is prepared: rows in it have become tombstones."""
        thread = threading.Thread(
            target=self._rebuild, args=(prepare,), name=f"shoal-rebuild-{self.name}", daemon=True
        )
        self._rebuilding = thread
        thread.start()

    def _rebuild(self, prepare: Callable[[], None]) -> None:
        try:
            prepare()
            fold = snapshots.load(self.store, self.number)
            with self._lock:
                if threading.current_thread() is not self._rebuilding or self._lost is not None:
                    return  # another person was forgotten meanwhile, or the state will be rebuilt anyway
                self._ticket.wait()
                if snapshots.catch_up(fold, self.store, self.number, self._state().seq):
                    self.replace(fold)
        except ControllerError as error:
            self.lose(error if isinstance(error, NotOwnerError) else UnavailableError(str(error)))

    @property
    def is_rebuilding(self) -> bool:
        """Whether the state is being rebuilt since a person was forgotten."""
        return self._rebuilding is not None and self._rebuilding.is_alive()

    def wait_until_rebuilt(self) -> None:
        """Return when the state is not being rebuilt any more. Call it without the lock."""
        thread = self._rebuilding
        if thread is not None and thread is not threading.current_thread():
            thread.join()
