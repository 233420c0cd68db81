"""An event loop waits for commands as long as a thread does, and holds no thread up meanwhile."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.live.places import ARMS, shop

from shoal.live.journal import committer as committing
from shoal.live.journal.committer import Committer
from shoal.live.population.asynchronous import Arrivals, AsyncPopulation
from shoal.live.population.controller import Controller
from shoal.live.population.controller import open as open_controller
from shoal.live.protocol.answers import Decision
from shoal.live.protocol.errors import UnavailableError
from shoal.live.protocol.messages import NewDecision

PLACES = 5


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    monkeypatch.setattr(committing, "CAPACITY", PLACES)
    with open_controller(tmp_path / "shop.db") as controller:
        yield controller


def committer_of(controller: Controller) -> Committer:
    assert controller.committer is not None
    return controller.committer


def run(controller: Controller, test: Callable[[AsyncPopulation], Awaitable[Any]], threads: int = 1) -> Any:
    async def main() -> Any:
        with ThreadPoolExecutor(threads) as pool:
            return await test(AsyncPopulation(population, Arrivals(asyncio.get_running_loop()), pool))

    population = shop(controller)
    return asyncio.run(main())


def decide(population: AsyncPopulation, id: str) -> "asyncio.Task[Decision]":
    commands, request = population.commands, NewDecision("ada", ARMS, id=id)
    return asyncio.create_task(
        population.perform(commands.DECIDES, lambda turn: commands.decide(turn, request))
    )


async def waiting(committer: Committer, n: int) -> None:
    """Return when so many commands wait for room."""
    async with asyncio.timeout(20.0):
        while len(committer._awaiting_room) < n:
            await asyncio.sleep(0.001)


def test_a_full_queue_is_waited_for(controller: Controller) -> None:
    committer = committer_of(controller)

    async def test(population: AsyncPopulation) -> None:
        committer.reserve(PLACES, 0.0)
        tasks = [decide(population, f"{n}") for n in range(4)]
        await waiting(committer, 4)
        assert await population.call(threading.active_count), "no thread of the pool, which has one, waits"
        assert population.owner.sequence == 1
        committer.give_back(PLACES)
        assert [(await task).id for task in tasks] == ["0", "1", "2", "3"]
        assert population.owner.lease.last_seq == 1 + 1 + 4  # ada joined

    run(controller, test)
    committer.close()  # its thread gives places back after it has told of the commit
    assert committer.in_flight == 0


def test_not_for_ever(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.population.asynchronous.PATIENCE", 0.05)
    committer = committer_of(controller)

    async def test(population: AsyncPopulation) -> None:
        committer.reserve(PLACES, 0.0)
        with pytest.raises(UnavailableError, match="5 rows wait to be committed"):
            await decide(population, "first")
        committer.give_back(PLACES)
        assert (await decide(population, "first")).sequence == 3

    run(controller, test)


def test_whoever_waits_when_the_store_is_closed_is_told(controller: Controller) -> None:
    committer = committer_of(controller)

    async def test(population: AsyncPopulation) -> None:
        committer.reserve(PLACES, 0.0)
        task = decide(population, "first")
        await waiting(committer, 1)
        await asyncio.to_thread(committer.close)
        with pytest.raises(UnavailableError, match="is being closed"):
            await task

    run(controller, test)


def test_a_lock_that_is_taken_is_waited_for_in_a_thread(controller: Controller) -> None:
    async def test(population: AsyncPopulation) -> int:
        taken, free = threading.Event(), threading.Event()

        def hold() -> None:
            with population.owner.alone():
                taken.set()
                assert free.wait(20.0)

        holder = threading.Thread(target=hold)
        holder.start()
        assert taken.wait(20.0)
        task = decide(population, "first")
        asked = asyncio.create_task(population.read(lambda fold: fold.seq))
        await asyncio.sleep(0.01)
        assert not task.done()
        assert not asked.done()
        free.set()
        holder.join()
        assert (await task).sequence == 3
        return await asked

    assert run(controller, test, threads=2) in (1, 3)


def test_commands_that_arrive_together_are_executed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is refused is refused alone; after one that fails, all may be asked again."""
    submitted: list[int] = []
    submit = Committer.submit

    def counted(self: Committer, owner: Any, life: Any, rows: Any, arms: Any) -> Any:
        submitted.append(len(rows))
        return submit(self, owner, life, rows, arms)

    monkeypatch.setattr(Committer, "submit", counted)

    async def test(population: AsyncPopulation) -> None:
        submitted.clear()
        commands, bad = population.commands, NewDecision("ada", [[1.0, 2.0, 3.0]], id="bad")
        tasks = [decide(population, f"{n}") for n in range(20)]
        tasks.insert(7, asyncio.create_task(population.perform(3, lambda turn: commands.decide(turn, bad))))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found.pop(7), ValueError)
        assert [one.sequence for one in found] == list(range(3, 23))  # type: ignore[union-attr]
        assert submitted == [21]  # ada joined

        def broken(turn: Any) -> Decision:
            raise ZeroDivisionError("a bug")

        tasks = [decide(population, f"later {n}") for n in range(4)]
        tasks.insert(2, asyncio.create_task(population.perform(3, broken)))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = [type(one) for one in found]
        assert kinds == [UnavailableError, UnavailableError, ZeroDivisionError, *[UnavailableError] * 2]
        assert population.owner.lease.last_seq == 22
        again = [decide(population, f"later {n}") for n in range(4)]
        assert [(await one).sequence for one in again] == [23, 24, 25, 26]

    with open_controller(tmp_path / "shop.db") as controller:
        run(controller, test)
