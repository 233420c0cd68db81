"""Threads that want the same lock: one of them, when it gets it, does what all the others wanted to do.

If each waited for the lock itself, it would be woken to take it and again when its rows are committed, and
rows would reach the committer one by one. Here those who find the lock taken leave their command in a line.
The first of them, the leader, waits for the lock and executes the commands of all; everyone is woken once.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from shoal.live.journal.committer import Ticket
from shoal.live.protocol.errors import ControllerError

Result = TypeVar("Result")


class _Waiting:
    """A command in the line, and the thread that waits for it."""

    __slots__ = ("_wakes", "error", "execute", "leads", "result", "ticket")

    def __init__(self, execute: Callable[[], tuple[Any, Ticket]]) -> None:
        self.execute = execute
        self.leads = False
        self.result: Any = None
        self.ticket: Ticket | None = None
        self.error: BaseException | None = None
        self._wakes = threading.Lock()
        self._wakes.acquire()

    def wait(self) -> None:
        """Return when the thread leads, or its command has failed or is committed."""
        self._wakes.acquire()

    def wake(self, _: ControllerError | None = None) -> None:
        """Let `wait` return."""
        self._wakes.release()


class Line:
    """See the module.

    Parameters
    ----------
    lock : threading.RLock
        What commands are executed under; others take it as usual.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._mutex = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._is_led = False

    def run(self, execute: Callable[[], tuple[Result, Ticket]]) -> Result:
        """Execute a command with the lock held; its result, when the rows of its ticket are committed."""
        # Signals interrupt the main thread, which must not do so while it works for others. Of the rest,
        # nobody overtakes the leader but who has the lock already: that is what the leader is waiting for.
        is_alone = threading.current_thread() is threading.main_thread() or self._lock._is_owned()
        if (is_alone or not self._is_led) and self._lock.acquire(blocking=is_alone):
            try:
                result, ticket = execute()
            finally:
                self._lock.release()
            ticket.wait()
            return result
        mine = _Waiting(execute)
        with self._mutex:
            self._waiting.append(mine)
            mine.leads, self._is_led = not self._is_led, True
        if not mine.leads:
            mine.wait()
        if mine.leads:
            self._lead()
            mine.wait()
        if mine.error is not None:
            raise mine.error
        assert mine.ticket is not None
        mine.ticket.wait()
        return mine.result  # type: ignore[no-any-return]

    def _lead(self) -> None:
        """Execute what is waiting, and hand over to the first who came meanwhile."""
        with self._lock:
            with self._mutex:
                taken, self._waiting = self._waiting, []
            for one in taken:
                try:
                    one.result, one.ticket = one.execute()
                except BaseException as error:  # belongs to the thread whose command it is
                    one.error = error
        with self._mutex:
            self._is_led = bool(self._waiting)
            if self._is_led:
                self._waiting[0].leads = True
                self._waiting[0].wake()
        for one in taken:
            if one.ticket is None:
                one.wake()
            else:
                one.ticket.when_done(one.wake)
