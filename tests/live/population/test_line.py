"""The line in which threads leave their commands: each is executed once, by whoever leads, and answered."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.live.journal.committer import Ticket
from shoal.live.population.line import Line


def done(result: Any) -> Callable[[], tuple[Any, Ticket]]:
    return lambda: (result, Ticket(done=True))


def waiting(line: Line, n: int) -> None:
    """Return when so many commands stand in the line."""
    deadline = time.monotonic() + 20.0
    while len(line._waiting) < n:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def lock() -> Any:
    return threading.RLock()


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[], None]], threading.Thread]]:
    """Starts threads, and waits for them at the end."""
    threads: list[threading.Thread] = []

    def begin(run: Callable[[], None]) -> threading.Thread:
        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield begin
    for one in threads:
        one.join(20.0)
        assert not one.is_alive()


def test_a_free_lock_is_taken_by_the_caller(lock: Any) -> None:
    assert Line(lock).run(lambda: (threading.get_ident(), Ticket(done=True))) == threading.get_ident()
    assert not lock._is_owned()


def test_one_thread_executes_for_all(lock: Any, start: Any) -> None:
    line, by, answers = Line(lock), set(), {}

    def call(n: int) -> None:
        def execute() -> tuple[int, Ticket]:
            by.add(threading.get_ident())
            return n * n, Ticket(done=True)

        answers[n] = line.run(execute)

    with lock:
        threads = [start(lambda n=n: call(n)) for n in range(20)]
        waiting(line, 20)
    for one in threads:
        one.join(20.0)
    assert answers == {n: n * n for n in range(20)}
    assert len(by) == 1


def test_errors_reach_the_thread_whose_command_failed(lock: Any, start: Any) -> None:
    line = Line(lock)
    found: dict[int, Any] = {}

    def call(n: int) -> None:
        def execute() -> tuple[int, Ticket]:
            if n % 2:
                raise KeyboardInterrupt(n) if n == 3 else ValueError(n)
            return n, Ticket(done=True)

        try:
            found[n] = line.run(execute)
        except BaseException as error:
            found[n] = error

    with lock:
        for n in range(6):
            start(lambda n=n: call(n))
            waiting(line, n + 1)
    while len(found) < 6:
        time.sleep(0.001)
    assert [found[n] for n in (0, 2, 4)] == [0, 2, 4]
    assert [type(found[n]) for n in (1, 3, 5)] == [ValueError, KeyboardInterrupt, ValueError]
    assert line.run(done("on")) == "on"


def test_answers_wait_for_the_commit(lock: Any, start: Any) -> None:
    line, answers = Line(lock), []
    tickets = [Ticket(), Ticket()]
    with lock:
        for n in range(2):
            start(lambda n=n: answers.append(line.run(lambda: (n, tickets[n]))))
            waiting(line, n + 1)
    while line._is_led:
        time.sleep(0.001)
    assert answers == []
    tickets[1].finish()
    while answers != [1]:
        time.sleep(0.001)
    tickets[0].finish()


def test_who_has_the_lock_overtakes_the_leader(lock: Any, start: Any) -> None:
    line = Line(lock)
    order: list[str] = []

    def call(name: str) -> None:
        line.run(lambda: (order.append(name), Ticket(done=True)))  # type: ignore[func-returns-value]

    with lock:
        start(lambda: call("leader"))
        waiting(line, 1)
        call("owner")
    while len(order) < 2:
        time.sleep(0.001)
    assert order == ["owner", "leader"]


def test_the_main_thread_works_for_nobody_else(lock: Any, start: Any) -> None:
    line, by = Line(lock), []
    is_held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            release.wait(20.0)

    def execute() -> tuple[None, Ticket]:
        by.append(threading.current_thread())
        return None, Ticket(done=True)

    start(hold)
    is_held.wait(20.0)
    other = start(lambda: line.run(execute))
    waiting(line, 1)
    threading.Timer(0.05, release.set).start()
    line.run(execute)
    other.join(20.0)
    assert set(by) == {threading.main_thread(), other}


def test_every_command_is_executed_once_whatever_the_threads_do(lock: Any, start: Any) -> None:
    line, executed, answered = Line(lock), [], []

    def call(n: int) -> None:
        for k in range(200):

            def execute(pair: tuple[int, int] = (n, k)) -> tuple[Any, Ticket]:
                executed.append(pair)
                return pair, Ticket(done=True)

            answered.append(line.run(execute) == (n, k))

    threads = [start(lambda n=n: call(n)) for n in range(16)]
    for _ in range(100):
        with lock:
            time.sleep(0.0005)
    for one in threads:
        one.join(20.0)
    assert sorted(executed) == [(n, k) for n in range(16) for k in range(200)]
    assert answered == [True] * 3200
    assert not line._is_led
