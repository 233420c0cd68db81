"""Stores that fail, acknowledgements that are lost, clocks that jump, owners that freeze."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.core.attack.common import SCALE
from tests.live.places import ARMS, Place, shop, sound
from tests.live.population.server import Server

from shoal.live.journal import committer
from shoal.live.journal.committer import uptime
from shoal.live.journal.records import Decided, Missed, decode
from shoal.live.journal.stores import postgres
from shoal.live.journal.stores.base import Batch, Lease, Store
from shoal.live.journal.stores.sqlite import SQLiteStore
from shoal.live.population import controller as controllers
from shoal.live.population.population import Population
from shoal.live.protocol.errors import NotOwnerError, UnavailableError, UnknownError

HOUR = 3_600_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble is given up on sooner than in real life."""
    monkeypatch.setattr(committer, "TRIES", 2)


class Trouble:
    """Makes a store's appends fail, before or after the commit."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before = self.after = 0
        self._append = store.append
        monkeypatch.setattr(store, "append", self.append)

    def append(self, batches: Sequence[Batch], lease: float) -> list[Exception | None]:
        if self.before:
            self.before -= 1
            raise UnavailableError("the disk is full")
        result = self._append(batches, lease)
        if self.after:
            self.after -= 1
            raise UnavailableError("the connection broke")
        return result


def test_an_acknowledgement_that_is_lost(durable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit went through; the store could not say so. It is found to be there."""
    controller = durable.open()
    one = shop(controller)
    trouble = Trouble(controller.store, monkeypatch)
    for number in range(3):
        trouble.after = 1
        decision = one.decide("ada", ARMS, id=f"{number}")
        trouble.after = 1
        one.reward(decision.id, 1.0)
    assert one.owner.why_lost is None
    assert one.owner.read(lambda fold: fold.observed) == [3]
    assert sound(controller)


def test_an_append_that_is_carried_out_late(durable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection broke and its caller was told; it comes just before the next append, of as many rows."""
    controller = durable.open()
    one = shop(controller)
    for id in ("late", "next"):
        one.decide("ada", ARMS, id=id)
    store, waiting = controller.store, list[Batch]()
    append = store.append

    def break_off(batches: Sequence[Batch], lease: float) -> list[Exception | None]:
        waiting[:] = batches
        raise UnavailableError("the connection broke")

    def append_behind(batches: Sequence[Batch], lease: float) -> list[Exception | None]:
        append(waiting, lease)
        return append(batches, lease)

    monkeypatch.setattr(store, "append", break_off)
    with pytest.raises(UnavailableError, match="broke"):
        one.reward("late", 1.0)
    one.agents  # noqa: B018 - the state is built again, without that reward
    monkeypatch.setattr(store, "append", append_behind)
    with pytest.raises(UnavailableError, match="the journal of population 'shop' is at record"):
        one.reward("next", 0.5)
    monkeypatch.setattr(store, "append", append)
    one.reward("next", 0.5)
    one.reward("late", 1.0)
    durable.crash(controller)
    assert shop(durable.open()).owner.read(lambda fold: fold.observed) == [2]


def test_a_fence_without_last_seq_would_not_find_it(durable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness bites: without `last_seq` in the fence, what was committed is taken for lost."""
    controller = durable.open()
    one = shop(controller)
    monkeypatch.setattr(postgres, "APPEND", postgres.APPEND.replace(" AND last_seq = %(last_seq)s", ""))
    if isinstance(controller.store, SQLiteStore):
        monkeypatch.setattr(SQLiteStore, "_append", without_last_seq)
    Trouble(controller.store, monkeypatch).after = 1
    with pytest.raises(UnavailableError):
        one.decide("ada", ARMS)


def without_last_seq(self: SQLiteStore, db: Any, batch: Batch) -> Exception | None:
    (population, epoch, last_seq, _), rows, _ = batch
    db.execute(
        "UPDATE population SET last_seq = ? WHERE id = ? AND epoch = ?",
        (last_seq + len(rows), population, epoch),
    )
    db.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)", [(population, *row) for row in rows])
    return None


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_fails_for_long(durable: Place, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Every call may be made again, whatever became of it the first time."""
    controller = durable.open()
    one = shop(controller, policy="cluster_mixture", agent_dim=2)
    first = one.decide("ada", ARMS, id="first")
    trouble = Trouble(controller.store, monkeypatch)

    def insist(call: Callable[[], Any]) -> None:
        setattr(trouble, when, 2)
        with pytest.raises(UnavailableError):
            call()
        call()
        call()

    insist(lambda: one.decide("ben", ARMS, id="second"))
    insist(lambda: one.reward(first.id, 1.0))
    insist(lambda: one.reward(first.id, 0.5, replaces=1.0))
    insist(lambda: one.observe("cleo", [1.0, 0.0], 1.0, id="third"))
    insist(lambda: one.cancel("second"))
    insist(lambda: one.set_arms(ARMS))
    insist(lambda: one.add("dan", sharing="none"))
    insist(lambda: one.set_features("eve", [1.0, None]))
    insist(lambda: one.decide("eve", ARMS, id="fourth", agent_features=[2.0, 3.0]))
    assert one.features_of("eve") == [2.0, 3.0]
    assert one.agents == ["ada", "ben", "cleo", "dan", "eve"]
    assert one.owner.read(lambda fold: fold.observed) == [1, 0, 1, 0, 0]
    assert one.catalogue == ARMS
    assert sound(controller)


def test_callers_behind_a_failed_one_are_told_too(durable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = durable.open()
    one = shop(controller)
    trouble = Trouble(controller.store, monkeypatch)
    results: list[str] = []

    def work(thread: int) -> None:
        for number in range(30):
            key = f"{thread}-{number}"
            while True:
                try:
                    one.reward(one.decide(f"agent {thread}", ARMS, id=key).id, 1.0)
                    break
                except UnavailableError:
                    results.append(key)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for number in range(6):
        setattr(trouble, "before" if number % 2 else "after", 2)
        while trouble.before or trouble.after:
            threads[0].join(0.005)
    for thread in threads:
        thread.join()
    assert results
    assert one.owner.read(lambda fold: fold.observed) == [30] * 4
    assert sound(controller)


def test_a_command_that_fails_for_its_own_reasons(durable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have on its way to the store is neither lost nor counted twice by the recovery."""
    controller = durable.open()
    one = shop(controller)
    started, go = threading.Event(), threading.Event()
    append = controller.store.append

    def slow(batches: Sequence[Batch], lease: float) -> list[Exception | None]:
        started.set()
        assert go.wait(20)
        return append(batches, lease)

    monkeypatch.setattr(controller.store, "append", slow)
    thread = threading.Thread(target=lambda: one.observe("ada", [1.0, 0.0], 1.0, id="a"))
    thread.start()
    assert started.wait(20)

    def broken(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as context:
        context.setattr(one.owner.commands, "cancel", broken)
        with pytest.raises(MemoryError):
            one.cancel("a")
    other = threading.Thread(target=lambda: one.observe("ben", [1.0, 0.0], 1.0, id="b"))
    other.start()
    go.set()
    thread.join(20)
    other.join(20)
    assert one.agents == ["ada", "ben"]
    assert sound(controller)


def test_opening_a_population_while_the_committer_beats(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat must not wait for whoever opens a population, who waits for a commit."""
    controller = place.open(lease=0.1)
    begin = controllers._begin

    def slow(*arguments: Any) -> None:
        assert controller.committer is not None
        beaten = threading.Event()
        beat = controller.committer._beat

        def beat_and_tell() -> None:
            beaten.set()
            beat()

        monkeypatch.setattr(controller.committer, "_beat", beat_and_tell)
        assert beaten.wait(20)
        begin(*arguments)

    monkeypatch.setattr(controllers, "_begin", slow)
    done = threading.Event()

    def make() -> None:
        shop(controller)
        done.set()

    threading.Thread(target=make, daemon=True).start()
    assert done.wait(20)


def test_a_beat_that_fails_does_not_end_the_committer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = place.open(lease=0.1)
    one = shop(controller)
    beaten = threading.Event()

    def broken(*_: Any) -> dict[int, str]:
        beaten.set()
        raise RuntimeError("out of order")

    with monkeypatch.context() as context:
        context.setattr(controller.store, "renew", broken)
        assert beaten.wait(20)
        beaten.clear()
        assert beaten.wait(20)
    one.decide("ada", ARMS)
    assert sound(controller)


def test_closing_what_cannot_be_reached(durable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is let go of, and the trouble is reported."""
    controller = durable.open()
    shop(controller)

    def broken(*_: Any) -> None:
        raise UnavailableError("no route to host")

    monkeypatch.setattr(controller.store, "release", broken)
    with pytest.raises(UnavailableError, match="no route"):
        controller.close()
    assert controller.committer is not None
    assert not controller.committer._thread.is_alive()
    shop(durable.open())
    durable._open.remove(controller)


def test_a_server_that_stops(server: Server) -> None:
    """`pg_ctl stop -m immediate` under load, and start: what was acknowledged is there, once."""
    place = Place("postgres", server.room())
    controller = place.open()
    one = shop(controller)
    failed: list[Exception] = []
    halt = threading.Event()
    done = [0] * 4

    def work(thread: int) -> None:
        while not halt.is_set():
            key = f"{thread}-{done[thread]}"
            try:
                one.reward(one.decide(f"agent {thread}", ARMS, id=key).id, 1.0)
                done[thread] += 1
            except UnavailableError as error:
                failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(SCALE):
        target = sum(done) + 10
        while sum(done) < target:
            halt.wait(0.005)
        server.stop("immediate")
        before = len(failed)
        while len(failed) == before:
            halt.wait(0.005)
        server.start()
    target = sum(done) + 10
    while sum(done) < target:
        halt.wait(0.005)
    halt.set()
    for thread in threads:
        thread.join()
    by_name = dict(zip(one.agents, one.owner.read(lambda fold: fold.observed), strict=True))
    for number, count in enumerate(done):
        assert by_name[f"agent {number}"] in (count, count + 1)  # the last may have failed after its commit
    assert sound(controller)
    place.close()


LIMITED = """
import resource, signal, sys
from pathlib import Path
from shoal.live.protocol.errors import UnavailableError
from tests.live.places import ARMS, Place, shop, sound

path = Path(sys.argv[1])
controller = Place("sqlite", path).open()
one = shop(controller, policy="independent")
done = 0
limit = 200_000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    while done < 10_000:
        one.decide_many([{"agent": "ada", "arms": ARMS, "id": f"{done}-{n}"} for n in range(50)])
        done += 1
except UnavailableError as error:
    print(error)
failed = 0
for _ in range(3):
    try:
        one.observe("ben", [1.0, 0.0], 1.0, id="b")
    except UnavailableError:
        failed += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
one.observe("ben", [1.0, 0.0], 1.0, id="b")
rows = sum(row.decision is not None for row in controller.store.read(one.owner.lease.population, 0))
assert rows in (50 * done + 1, 50 * (done + 1) + 1), (rows, done)
assert sound(controller)
controller.close()
print("fine", done, failed)
"""


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """Reaching the limit is an error that says so; once there is room again, work goes on."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "shop.db")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout
    assert "cannot be written" in done.stdout


def test_a_clock_that_jumps(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a process runs, its clock may be set as one likes: no reward is missed for it."""
    controller = place.open(lease=3600.0)
    one = shop(controller, reward_window=3600.0, default_reward=0.0)
    real = time.time_ns
    decisions = []
    for shift in (0, 24, -24, 0):
        monkeypatch.setattr(time, "time_ns", lambda shift=shift: real() + shift * HOUR * 1000)
        decisions.append(one.decide("ada", ARMS))
        assert one.owner.miss_rewards() == 0
    monkeypatch.undo()
    rows = list(controller.store.read(one.owner.lease.population, 0))
    assert [row.at for row in rows] == sorted(row.at for row in rows)
    assert rows[-1].at - rows[0].at < HOUR // 60
    for decision in decisions:
        one.reward(decision.id, 1.0)
    assert sound(controller)


RESTARTED = """
import os, sys
from shoal.live.population.controller import open
from tests.live.places import ARMS, sound

settings = {"reward_window": 3600.0, "default_reward": 0.0, "seed": 1}
for key, offset in zip("abcd", sys.argv[2:]):
    os.environ["FAKETIME"] = offset
    with open(sys.argv[1], lease=0.5) as controller:
        one = controller.population("shop", policy="independent", dim=2, **settings)
        print(one.owner.miss_rewards())
        one.decide("ada", ARMS, id=key)
        assert sound(controller)
"""


def answers(one: Population) -> list[Callable[[], Any]]:
    """Calls that append nothing; the last is refused for its own reasons."""
    return [
        lambda: one.agents,
        lambda: one.add("ada", sharing="none"),
        lambda: one.decide("ada", ARMS, id="d1"),
        lambda: one.reward("unknown", 1.0),
    ]


def owned_shop(place: Place) -> Population:
    one = shop(place.open(lease=60.0))
    one.decide("ada", ARMS, id="d1")
    one.add("ada", sharing="none")
    return one


def test_an_owner_that_is_not_sure_asks_the_store(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What appends nothing is not seen by the fence; an owner whose lease may have ended asks."""
    one, asked = owned_shop(place), list[float]()
    renew = one.owner.store.renew

    def unreachable(leases: Iterable[Lease], lease: float) -> dict[int, str]:
        asked.append(lease)
        raise UnavailableError("the store cannot be reached")

    monkeypatch.setattr(one.owner.store, "renew", unreachable)
    *calls, refused = answers(one)
    for call in calls:
        call()
    with pytest.raises(UnknownError):
        refused()
    assert asked == []
    one.owner.sure_until = uptime() - 1.0
    if place.kind != "postgres":  # which nobody else can take
        for call in calls:
            call()
        assert asked == []
        return
    for call in (*calls, refused):
        with pytest.raises(UnavailableError, match="cannot be reached"):
            call()
    assert asked == [60.0] * 4
    monkeypatch.setattr(one.owner.store, "renew", renew)
    for call in calls:
        call()
    assert one.owner.sure_until > uptime() + 50.0
    with one.owner.store._on("write") as db:  # type: ignore[attr-defined]
        db.execute("UPDATE shoal_population SET lease_until = '-infinity'")
    other = place.store()
    other.take(one.owner.lease.population, "two", 60.0)
    other.close()
    one.owner.sure_until = uptime() - 1.0
    for call in (refused, *calls):
        with pytest.raises(NotOwnerError, match="taken over by two"):
            call()


def test_how_long_an_owner_is_sure(server: Server) -> None:
    """From before the store was asked: a late answer does not make a lease longer."""
    place = Place("postgres", server.room())
    controller = place.open(lease=60.0)
    begin = uptime()
    one = shop(controller)
    renewals: list[Callable[[], Any]] = [lambda: one.decide("ada", ARMS), controller._beat]
    for renewal in renewals:
        assert begin + 60.0 <= one.owner.sure_until <= uptime() + 60.0
        begin = uptime()
        one.owner.sure_until = 0.0
        renewal()
    assert begin + 60.0 <= one.owner.sure_until <= uptime() + 60.0
    place.close()


@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed here")
def test_restarts_under_a_wrong_clock(durable: Place) -> None:
    """A day behind, a day ahead, and right again: order stands, and defaults are written once."""

    offsets = ["+0d", "-1d", "+1d", "+0d"]
    command = ["faketime", "-f", "+0d", sys.executable, "-c", RESTARTED, durable.url, *offsets]
    environment = {**os.environ, "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    # Nothing is missing because time went back. A server's clock is its own; a file's is that of whoever
    # opens it, and a day may well have passed.
    ahead = 2 if durable.kind == "sqlite" else 0
    assert list(map(int, done.stdout.split())) == [0, 0, ahead, 0]
    controller = durable.open()
    one = controller.population("shop")
    rows = list(controller.store.read(one.owner.lease.population, 0))
    assert [row.at for row in rows] == sorted(row.at for row in rows)
    records = [decode(row.body) for row in rows]
    assert [record.id for record in records if isinstance(record, Decided)] == ["a", "b", "c", "d"]
    assert [record.id for record in records if isinstance(record, Missed)] == ["a", "b"][:ahead]
    for key in "abcd":
        one.reward(key, 1.0)
    assert one.owner.read(lambda fold: fold.observed) == [4]
    assert sound(controller)


FIRST = """
import sys
from shoal.live.population.controller import open
from shoal.live.protocol.errors import NotOwnerError
from tests.live.places import ARMS

print("loaded", flush=True)
sys.stdin.readline()
try:
    with open(sys.argv[1], lease=0.5) as controller:
        one = controller.population("shop", policy="independent", dim=2, seed=1)
        one.decide(sys.argv[2], ARMS)
        print("decided")
except NotOwnerError as error:
    print(error)
"""


def test_two_first_starts_at_once(durable: Place) -> None:
    """One makes the tables and the population; the other waits for it or is told who has them."""
    command = [sys.executable, "-c", FIRST, durable.url]
    both = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("ada", "ben")
    ]
    for process in both:
        assert line(process) == "loaded"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    told = [answer for answer in answers if answer != "decided"]
    assert len(told) < 2
    assert all("process" in answer for answer in told)
    controller = durable.open()
    assert len(controller.population("shop").agents) == 2 - len(told)
    assert sound(controller)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


FROZEN = """
import sys, threading
from shoal.live.population.controller import open
from shoal.live.protocol.errors import ControllerError
from tests.live.places import ARMS

controller = open(sys.argv[1], lease=0.5)
one = controller.population("shop", policy="independent", dim=2, seed=1)
print("ready", flush=True)

def work(thread):
    n = 0
    while True:
        try:
            one.decide("old", ARMS, id=f"old-{thread}-{n}")
            n += 1
        except ControllerError as error:
            if thread == 0:
                print(type(error).__name__, error, flush=True)
            return

threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
try:
    one.decide("old", ARMS, id="once more")
except ControllerError as error:
    print(type(error).__name__, error, flush=True)
try:
    controller.close()
except ControllerError as error:
    pass
"""


def test_a_frozen_owner(server: Server) -> None:
    """SIGSTOP, another owner after the lease, SIGCONT: not a row of the old one, who says why it stopped."""
    place = Place("postgres", server.room())
    process = subprocess.Popen([sys.executable, "-c", FROZEN, place.url], stdout=subprocess.PIPE, text=True)
    assert line(process) == "ready"
    watcher = place.store()
    number = watcher.populations()["shop"]
    while watcher.last_seq(number) < 20:
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)
    controller = place.open(lease=0.5)
    one = controller.population("shop")
    start = one.sequence
    decisions = [one.decide("new", ARMS) for _ in range(5)]
    process.send_signal(signal.SIGCONT)
    answers = process.communicate(timeout=60)[0].splitlines()
    assert len(answers) == 2
    for answer in answers:
        assert answer.startswith("NotOwnerError")
        assert f"process {os.getpid()} on " in answer
    for decision in decisions:
        one.reward(decision.id, 1.0)
    rows = list(controller.store.read(one.owner.lease.population, start))
    assert not [row for row in rows if row.decision and row.decision.startswith("old")]
    assert sound(controller)
    watcher.close()
    place.close()
    assert process.returncode == 0
