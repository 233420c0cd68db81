"""Opening again: settings, snapshots that are damaged, readers beside a writer, and what `verify` sees."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.live.places import ARMS, Place, shop, sound

from shoal.core.policies.bass import BASS
from shoal.core.policies.independent import Independent
from shoal.live.journal import committer
from shoal.live.journal.stores.base import Batch, Snapshot
from shoal.live.population.commands import Commands
from shoal.live.population.controller import open as open_controller
from shoal.live.population.population import Population
from shoal.live.protocol.answers import Decision
from shoal.live.protocol.errors import (
    ConflictError,
    JournalError,
    NotOwnerError,
    UnavailableError,
    UnknownError,
)


def busy(one: Population, n: int = 20) -> list[Decision]:
    """Something to remember."""
    decisions = [one.decide(f"agent {k % 4}", ARMS) for k in range(n)]
    for k, decision in enumerate(decisions[: n // 2]):
        one.reward(decision.id, k / n)
    return decisions


# Settings


class Bare:
    """Two methods: enough for a simulation."""

    def __init__(self, n_agents: int, dim: int) -> None: ...

    def select(self, agent: int, arms: Any) -> int:
        return 0

    def update(self, agent: int, x: Any, reward: float) -> None: ...


@pytest.mark.parametrize(("policy", "called"), [("club", "CLUB"), (f"{__name__}:Bare", "Bare")])
def test_a_policy_that_cannot_forget_is_refused(policy: str, called: str) -> None:
    controller = Place("memory", None).open()
    message = (
        rf"policy must be one for live use \(independent, oracle, bass, cluster_mixture, .*got '{policy}': "
        f"{called} cannot forget a person, nor take a correction"
    )
    with pytest.raises(ValueError, match=message):
        controller.population("shop", policy=policy, dim=2)
    assert controller.populations() == []
    shop = controller.population("shop", policy="bass", dim=2, explore=0.5, seed=1)
    shop.observe("ada", [1.0, 0.0], 1.0)
    for ask in (shop.switch, shop.what_if, shop.evaluate):
        with pytest.raises(ValueError, match=message):
            ask(policy)
    assert len(shop.switches) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"policy": "independent"},
        {"dim": 3},
        {"explore": 0.5},
        {"reward_range": (0.0, 1.0)},
        {"reward_window": 5.0},
        {"lend_after": 2},
        {"alpha": 0.77},
        {"seed": 2},
    ],
    ids=repr,
)
def test_conflicting_settings_are_refused(other: dict[str, Any]) -> None:
    place = Place("memory", None)
    controller = place.open()
    before = shop(controller).owner.packed()
    (key,) = other
    for again in (controller, place.open()):
        with pytest.raises(ConflictError, match=key.replace("_range", "_low")):
            again.population("shop", **other)
    assert again.population("shop", policy="bass", dim=2, explore=0.0, seed=1).owner.packed() == before
    place.close()


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"policy": "nothing"}, "nothing"),
        ({"dim": 0}, "dim"),
        ({"explore": 1.5}, "explore"),
        ({"explore": float("nan")}, "explore"),
        ({"reward_range": (1.0, 0.0)}, "reward_range"),
        ({"reward_window": 0.0}, "reward_window"),
        ({"default_reward": 0.0}, "reward_window"),
        ({"reward_window": 5.0, "default_reward": 2.0, "reward_range": (0.0, 1.0)}, "default_reward"),
        ({"lend_after": -1}, "lend_after"),
        ({"epsilon": 0.1}, "epsilon"),
        ({"color": "red"}, "color"),
        ({"alpha": -1.0}, "alpha"),
    ],
    ids=repr,
)
def test_bad_settings_make_no_population(settings: dict[str, Any], match: str) -> None:
    place = Place("memory", None)
    controller = place.open()
    with pytest.raises((ValueError, TypeError), match=match):
        shop(controller, **settings)
    assert controller.populations() == []
    place.close()


def test_populations_are_unknown_until_made(place: Place) -> None:
    controller = place.open()
    with pytest.raises(UnknownError, match="'shop'"):
        controller.population("shop")
    shop(controller)
    with pytest.raises(ValueError, match="name"):
        controller.population("", policy="bass", dim=2)
    assert controller.populations() == ["shop"]


def test_populations_are_independent(place: Place) -> None:
    controller = place.open()
    one = shop(controller)
    two = controller.population("bar", policy="independent", dim=3)
    decision = one.decide("ada", ARMS)
    assert two.agents == []
    with pytest.raises(UnknownError):
        two.reward(decision.id, 1.0)
    place.crash(controller)
    controller = place.open()
    assert controller.population("shop").agents == ["ada"]
    assert controller.population("bar").agents == []
    assert sound(controller)


# Snapshots


@pytest.mark.parametrize(("kind", "own"), [("bass", {"gamma": 0.5}), ("independent", {})])
def test_estimated_noise_is_recovered_to_the_bit(durable: Place, kind: str, own: dict[str, float]) -> None:
    """By following the recorded cuts, and by testing again, which `verify` does."""
    controller = durable.open()
    one, rng = shop(controller, policy=kind, noise_scale=None, **own), np.random.default_rng(0)
    for k in range(160):
        decision = one.decide(f"agent {k % 4}", ARMS)
        told = ARMS[str(decision.arm)][k % 2] + 0.2 * (1 + k % 4) * float(rng.standard_normal())
        one.reward(decision.id, told)
    one.reward(decision.id, 5.0, replaces=told)
    policy = one.owner._state().policy
    assert isinstance(policy, BASS | Independent)
    assert np.isfinite(policy.noise_scales).all()
    assert isinstance(policy, Independent) or len(policy.cuts)
    before = one.owner.packed()
    durable.crash(controller)
    controller = durable.open()
    again = controller.population("shop")
    assert again.owner.packed() == before
    assert again.owner._state().policy.parameters["noise_scale"] is None
    assert sound(controller)


def test_a_snapshot_and_the_records_after_it(place: Place) -> None:
    controller = place.open()
    one = shop(controller)
    decisions = busy(one)
    seq = one.snapshot()
    for decision in decisions[10:15]:
        one.reward(decision.id, 1.0)
    before = one.owner.packed()
    place.crash(controller)
    one = shop(place.open())
    assert one.owner.packed() == before
    assert one.owner.store.snapshots(one.owner.lease.population)[0][1] == seq


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "flipped": lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
    "of another kind": lambda content: b"PK" + content[2:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_snapshots_are_passed_over(place: Place, damage: str) -> None:
    controller = place.open()
    one = shop(controller)
    busy(one)
    one.snapshot()
    busy(one)
    one.snapshot()
    before = one.owner.packed()
    store, number = controller.store, one.owner.lease.population
    latest, _ = store.snapshots(number)
    content = store.load_snapshot(number, *latest)
    assert content is not None
    store.delete_snapshot(number, *latest)
    store.save_snapshot(number, Snapshot(*latest, DAMAGES[damage](content)))
    place.crash(controller)
    controller = place.open()
    with pytest.warns(RuntimeWarning, match="passed over"):
        one = shop(controller)
    assert one.owner.packed() == before


def test_a_snapshot_from_the_future_is_not_used(durable: Place) -> None:
    """As after restoring the database, but not its snapshots, from a backup."""
    controller = durable.open()
    one = shop(controller)
    busy(one)
    content, seq = one.owner.packed()
    controller.store.save_snapshot(
        one.owner.lease.population, Snapshot(one.owner.lease.epoch, seq + 5, content)
    )
    durable.crash(controller)
    controller = durable.open()
    with pytest.warns(RuntimeWarning, match=f"snapshot {seq + 5} .* belongs to another journal"):
        assert shop(controller).owner.packed() == (content, seq)


# Readers and other writers


def test_reading_beside_a_writer(durable: Place) -> None:
    controller = durable.open()
    one = shop(controller)
    decisions = busy(one)
    reader = durable.open(read_only=True)
    same = reader.population("shop")
    assert same.owner.packed() == one.owner.packed()
    for call in (
        lambda: same.decide("ada", ARMS),
        lambda: same.reward(decisions[-1].id, 1.0),
        lambda: same.forget("agent 0"),
        lambda: same.observe("ada", [1.0, 0.0], 1.0),
        lambda: same.set_arms(ARMS),
    ):
        with pytest.raises(NotOwnerError, match="reading only"):
            call()
    one.reward(decisions[-1].id, 1.0)
    one.decide("newcomer", ARMS)
    assert same.agents == one.agents
    assert same.owner.packed() == one.owner.packed()
    one.forget("agent 1")
    one.settle()
    assert same.owner.packed() == one.owner.packed()
    with pytest.raises(UnknownError):
        reader.population("bar")
    assert sound(reader)


def test_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"shop\.db"):
        open_controller(tmp_path / "shop.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


SECOND = """
import sys
from shoal.live.population.controller import open
from shoal.live.protocol.errors import NotOwnerError
try:
    open(sys.argv[1], lease=0.3).population("shop")
except NotOwnerError as error:
    print(error)
"""


def test_a_second_writer_is_told_who_has_it(durable: Place) -> None:
    controller = durable.open()
    one = shop(controller)
    command = [sys.executable, "-c", SECOND, durable.url]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert f"process {os.getpid()} on " in told
    one.decide("ada", ARMS)
    assert sound(controller)


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE journal (x)")
    before = path.read_bytes()
    with pytest.raises(JournalError, match="not a database of shoal"):
        open_controller(path)
    assert path.read_bytes()[:18] == before[:18] or path.stat().st_size == len(before)
    path.write_bytes(b"hello, world" * 1000)
    with pytest.raises(JournalError, match=r"shop\.db"):
        open_controller(path)
    with pytest.raises(OSError, match="shop"):
        open_controller(tmp_path / "nowhere" / "shop.db")


# verify


def test_verify_sees_what_is_wrong(tmp_path: Path) -> None:
    for number, sql in enumerate(
        [
            "UPDATE journal SET seq = 999 WHERE seq = 5",
            "UPDATE journal SET body = (SELECT body FROM journal WHERE seq = 8) WHERE seq = 10",
            "DELETE FROM journal WHERE seq = 12",
            "UPDATE journal SET body = x'ff00' WHERE seq = 12",
            "UPDATE journal SET body = x'ff00' WHERE seq = 13",
        ]
    ):
        path = tmp_path / f"{number}.db"
        place = Place("sqlite", path)
        controller = place.open()
        one = shop(controller)
        busy(one)
        if number % 2:
            one.snapshot()
        place.close()
        with closing(sqlite3.connect(path)) as other:
            other.execute(sql)
            other.commit()
        controller = place.open()
        (problems,) = controller.verify().values()
        assert problems, sql
        place.close()


def test_verify_sees_a_state_that_drifted() -> None:
    place = Place("memory", None)
    controller = place.open()
    one = shop(controller)
    busy(one)
    one.owner.read(lambda fold: fold.policy.update(0, [1.0, 0.0], 1e-9))
    (problem,) = controller.verify()["shop"]
    assert "state in memory" in problem
    place.close()


# The queue


def test_a_slow_store_slows_its_callers_down(durable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped; who finds no place in time is told."""
    # Room for ada, ten samples and a few more records, or for eight decisions, but not for both.
    monkeypatch.setattr(committer, "CAPACITY", 8 * Commands.DECIDES + 6)
    monkeypatch.setattr("shoal.live.population.owner.PATIENCE", 0.05)
    controller = durable.open()
    one = shop(controller)
    go = threading.Event()
    append = controller.store.append

    def slow(batches: list[Batch], lease: float) -> list[Exception | None]:
        assert go.wait(20)
        return append(batches, lease)

    with monkeypatch.context() as context:
        context.setattr(controller.store, "append", slow)
        threads = [
            threading.Thread(target=lambda k=k: one.observe("ada", [1.0, 0.0], 1.0, id=f"{k}"))
            for k in range(10)
        ]
        for thread in threads:
            thread.start()
        with pytest.raises(UnavailableError, match="wait to be committed"):
            one.decide_many([{"agent": "ben", "arms": ARMS}] * 8)
        go.set()
        for thread in threads:
            thread.join()
    monkeypatch.setattr("shoal.live.population.owner.PATIENCE", 10.0)
    one.decide_many([{"agent": "ben", "arms": ARMS}] * 8)
    assert one.owner.read(lambda fold: fold.observed) == [10, 0]
    assert controller.committer is not None
    deadline = time.monotonic() + 60.0  # places are given back just after callers are told
    while controller.committer._in_flight and time.monotonic() < deadline:
        time.sleep(0.001)
    assert controller.committer._in_flight == 0
    assert sound(controller)


def test_what_waits_is_committed_together(durable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = durable.open()
    one, n, submitted = shop(controller), 16, threading.Semaphore(0)
    committer, append = controller.committer, controller.store.append
    assert committer is not None
    submit = committer.submit

    def counted_submit(*arguments: Any) -> Any:
        ticket = submit(*arguments)
        submitted.release()
        return ticket

    def slow_append(*arguments: Any) -> Any:
        """The first commit takes until everybody has handed in what they have."""
        monkeypatch.setattr(controller.store, "append", append)
        for _ in range(n):
            assert submitted.acquire(timeout=60.0)
        return append(*arguments)

    monkeypatch.setattr(committer, "submit", counted_submit)
    monkeypatch.setattr(controller.store, "append", slow_append)
    before = committer.commits
    work = [threading.Thread(target=one.observe, args=(f"agent {k}", [1.0, 0.0], 1.0)) for k in range(n)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert committer.commits - before <= 2
    assert one.owner.read(lambda fold: fold.observed) == [1] * n
    assert sound(controller)


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_sync(durable: Place, sync: str) -> None:
    controller = durable.open(sync=sync)
    busy(shop(controller))
    durable.crash(controller)
    assert sound(durable.open(sync=sync))
    with pytest.raises(ValueError, match="sync"):
        durable.open(sync="sometimes")


def test_a_journal_that_cannot_be_read_is_not_kept_open(tmp_path: Path) -> None:
    """The error, and with it whatever it has come through, may live on in another thread."""
    path = str(tmp_path / "shop.db")
    with open_controller(path) as controller:
        shop(controller).decide("ada", ARMS)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE journal SET body = x'00ff' WHERE seq = 2")
        db.commit()
    with open_controller(path) as controller:
        with pytest.raises(JournalError, match="record 2 cannot be read") as caught:
            controller.population("shop")
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA busy_timeout = 0")
            (is_busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not is_busy
        assert caught.value.__traceback__ is not None


def test_a_catalogue_that_was_read_back_is_taken_as_it_is_by_compiled_code(durable: Place) -> None:
    controller = durable.open()
    shop(controller).set_arms(ARMS)
    controller.close()
    one = shop(durable.open())
    catalogue = one.owner.read(lambda fold: one.owner.commands.offers.catalogue(fold))
    assert catalogue is not None
    assert catalogue.features.flags.carray  # a read-only one would be copied by every decision
