"""Where runs are played: on threads of this process, or by the workers of a Dask scheduler."""

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from typing import Any, TypeVar

PATIENCE_SECONDS = 120.0
"""How long to wait for a lost scheduler."""
CONNECT_SECONDS = 10.0
RETRY_SECONDS = 1.0

POLL_SECONDS = 0.25
"""Seconds between two reports of progress, if nothing ends."""
Done = TypeVar("Done")
Item = TypeVar("Item")


class ExecutorLostError(ConnectionError):
    """The executor dropped tasks that nobody had cancelled: its scheduler is gone."""


@contextlib.contextmanager
def open_executor(name: str) -> Iterator[Executor | None]:
    """The executor a user names: "threads" (None: `run_experiment` makes its own) or "dask:ADDRESS"."""
    kind, _, address = name.partition(":")
    if name == "threads":
        yield None
        return
    if kind != "dask" or not address:
        raise ValueError(f"executor must be 'threads' or 'dask:ADDRESS', got {name!r}")
    try:
        from distributed import Client
    except ImportError:
        raise ValueError(
            "executor 'dask' needs Dask; install it with: pip install 'shoal[cluster]'"
        ) from None
    connect = partial(Client, address, timeout=CONNECT_SECONDS)
    with _without_its_complaints(), connect() as client:
        yield DaskExecutor(client)


class DaskExecutor(Executor):
    """Like Dask's own executor, whose future never ends if the scheduler is lost while fetching its result.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    def submit(self, function: Callable[..., Done], /, *given: Any, **named: Any) -> "Future[Done]":
        here: Future[Done] = Future()

        def end(there: Any) -> None:
            if not here.set_running_or_notify_cancel():
                return
            try:
                here.set_result(there.result())
            except BaseException as error:
                here.set_exception(error if there.status == "error" else CancelledError("lost"))

        # Dask moves a dead worker's tasks to another one; `retries` repeats those that fail temporarily.
        there = self.client.submit(function, *given, pure=False, retries=2, **named)
        there.add_done_callback(end)
        here.add_done_callback(
            lambda one: there.cancel() if one.cancelled() and there.status != "cancelled" else None
        )
        return here


def run_on(
    name: str,
    run: Callable[[Executor | None], Done],
    *,
    patience: float = PATIENCE_SECONDS,
    say: Callable[[str], None] = lambda text: None,
) -> Done:
    """Run something on the executor of a name; if its scheduler is lost, wait for it and run it again.

    Parameters
    ----------
    name : str
        See `open_executor`.
    run : callable
        Takes the executor. It is called again from the start, so it should find what is already finished,
        as `run_experiment` does.
    patience : float
        Seconds to wait for the scheduler, each time that it is lost.
    say : callable
        Called with sentences about what happens.

    Raises
    ------
    ExecutorLostError
        If the scheduler does not return in time.
    """
    deadline: float | None = None
    while True:
        try:
            with open_executor(name) as executor:
                if deadline is not None:
                    say("The scheduler is back; continuing with what is not finished.")
                # Each loss has the full patience.
                deadline = None
                return run(executor)
        except ExecutorLostError as error:
            say(f"{error} Waiting up to {patience:.0f} s for it to return.")
            deadline = time.monotonic() + patience
        except OSError:
            # Never connected: more likely a wrong address than a scheduler that is starting.
            if deadline is None:
                raise
            if time.monotonic() >= deadline:
                raise ExecutorLostError(
                    f"{name}: the scheduler did not return within {patience:.0f} s; finished cells are kept, "
                    "run the same command again to continue"
                ) from None
        time.sleep(RETRY_SECONDS)


def as_done(
    submitted: Iterable[tuple[Item, "Future[Done]"]], report: Callable[[], None] = lambda: None
) -> Iterator[tuple[Item, "Future[Done]"]]:
    """Each future when it has ended, with what was submitted; `report` is called now and then meanwhile."""
    # Through a queue, because callbacks run in worker threads and files are written in this one.
    done: queue.SimpleQueue[tuple[Item, Future[Done]]] = queue.SimpleQueue()
    left = 0
    for item, future in submitted:
        future.add_done_callback(partial(lambda item, future: done.put((item, future)), item))
        left += 1
    while left:
        report()
        with contextlib.suppress(queue.Empty):
            yield done.get(timeout=POLL_SECONDS)
            left -= 1


@contextlib.contextmanager
def _without_its_complaints() -> Iterator[None]:
    """Keep Dask's client from logging a traceback per lost connection; `run_on` says it in a sentence."""
    logger = logging.getLogger("distributed.client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
