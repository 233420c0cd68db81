"""Snapshots by a second process."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.live.journal import snapshots
from shoal.live.journal.records import Decided, decode, encode
from shoal.live.journal.stores import open_store
from shoal.live.journal.stores.base import Snapshot
from shoal.live.population import snapshotter
from shoal.live.population.controller import Controller
from shoal.live.population.controller import open as open_controller
from shoal.live.population.population import Population

ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "water": [0.6, 0.8]}
CANARY = "canary-zq7"


def shop(controller: Controller) -> Population:
    return controller.population("shop", policy="bass", dim=2, seed=1, delta=0.9)


def live(population: Population, n: int = 30, agents: tuple[str, ...] = ("ada", "ben", "cat")) -> None:
    for number in range(n):
        agent = agents[number % len(agents)]
        decision = population.decide(agent, ARMS, scores=False)
        population.reward(decision.id, 1.0 if (decision.arm == "tea") == (agent == "ada") else -1.0)


def run(url: str, name: str = "shop") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "shoal.live.population.snapshotter", url, name]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def files(path: Path) -> list[str]:
    return sorted(one.name for one in path.with_name(f"{path.name}-snapshots").glob("*"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def test_beside_an_owner_who_goes_on(path: Path) -> None:
    with open_controller(path, snapshot_every=0) as controller:
        population = shop(controller)
        live(population)
        seq = population.sequence
        done = run(str(path))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"snapshot {seq}, ")
        assert files(path) == [f"1-1-{seq}.snapshot"]
        state = population.owner.packed()[0]
        assert population.owner.store.load_snapshot(1, 1, seq) == state
        live(population)
        assert run(str(path)).returncode == 0
        assert len(files(path)) == 2
        after = population.owner.packed()[0]
    with open_controller(path) as controller:
        assert shop(controller).owner.packed()[0] == after


def test_who_asks_for_nothing_is_told(path: Path) -> None:
    with open_controller(path) as controller:
        shop(controller)
    assert run(str(path), "other").stderr == f"shoal: {path} has no population 'other'\n"
    done = run(str(path.with_name("none.db")))
    assert done.returncode == 1
    assert "No such file" in done.stderr
    assert snapshotter.main(["only one"]) == 2


def test_predictions_of_all_kinds_are_reproduced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`choose` among many arms, `predict` of an explored one, rankings: all as recorded, to the bit."""
    monkeypatch.setattr(snapshotter.Sample.__init__, "__defaults__", (1,))
    for policy in ("bass", "cluster_mixture"):
        with open_controller(":memory:") as controller:
            population = controller.population(policy, policy=policy, dim=2, seed=1, explore=0.5)
            live(population, 60)
            population.decide("ada", ARMS, top=2, id="ranking")
            population.add("dan", sharing="borrow")
            live(population, 20, ("dan", "ada"))
            report = snapshotter.write_snapshot(controller.store, policy)
            assert (report.checked, report.differences) == (81, [])
            assert report.seq == population.sequence


def test_a_wrong_prediction_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshotter.Sample.__init__, "__defaults__", (1,))
    with open_controller(":memory:") as controller:
        population = shop(controller)
        live(population)
        journal = controller.store._journals[0]  # type: ignore[attr-defined]
        place = max(i for i, row in enumerate(journal.rows) if isinstance(decode(row[-1]), Decided))
        row, record = journal.rows[place], decode(journal.rows[place][-1])
        assert isinstance(record, Decided)
        changed = msgspec.structs.replace(record, pooled=0.123)
        journal.rows[place] = (*row[:-1], encode(changed))
        report = snapshotter.write_snapshot(controller.store, "shop")
        assert report.seq == 0
        assert len(report.differences) == 1
        assert f"record {row[0]} predicts" in report.differences[0]
        assert not controller.store.snapshots(0)


def wait_for(condition: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_controller_starts_it(path: Path) -> None:
    with open_controller(path, snapshot_every=20, lease=0.3) as controller:
        population = shop(controller)
        live(population)
        wait_for(lambda: files(path) and files(path)[-1].endswith(".snapshot"))
        assert population.owner.snapshotter is not None
        first = int(files(path)[-1].split("-")[2].split(".")[0])
        assert 20 <= first <= population.sequence
        assert population.owner.store.load_snapshot(1, 1, first) == snapshots.pack(
            snapshots.load(population.owner.store, 1, first)
        )


def test_its_failure_is_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_controller(path, snapshot_every=20, lease=0.1) as controller:
        population = shop(controller)
        assert population.owner.snapshotter is not None
        population.owner.snapshotter._url = str(path.with_name("none.db"))
        with caplog.at_level(logging.WARNING, "shoal.controller"):
            live(population)
            wait_for(lambda: caplog.records)
            assert "writing a snapshot ended with 1" in caplog.text
            caplog.clear()
            population.owner.snapshotter._url = "\ud800"  # cannot even be said
            live(population)
            wait_for(lambda: caplog.records)
            assert "no snapshot could be started" in caplog.text
        live(population, 3)
        assert controller.verify() == {"shop": []}


def test_a_clean_close_writes_one_if_it_is_worth_it(path: Path) -> None:
    with open_controller(path, snapshot_every=1_000) as controller:
        live(shop(controller), 20)
    assert not files(path)
    with open_controller(path, snapshot_every=1_000) as controller:
        population = shop(controller)
        live(population, 40)
        seq = population.sequence
    assert files(path) == [f"1-2-{seq}.snapshot"]
    with open_controller(path, snapshot_every=1_000) as controller:
        live(shop(controller), 5)
    assert files(path) == [f"1-2-{seq}.snapshot"]


def test_killed_in_the_middle(path: Path) -> None:
    with open_controller(path, snapshot_every=0) as controller:
        population = shop(controller)
        live(population)
        program = (
            "import os, signal, sys, shoal.core.atomic\n"
            "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
            "from shoal.live.population.snapshotter import main\n"
            "main(sys.argv[1:])\n"
        )
        done = subprocess.run([sys.executable, "-c", program, str(path), "shop"], timeout=300)
        assert done.returncode == -signal.SIGKILL
        (left,) = files(path)
        assert left.endswith(".tmp")
        state = population.owner.packed()[0]
    with open_controller(path, snapshot_every=0) as controller:
        assert shop(controller).owner.packed()[0] == state
        assert not files(path)
        assert controller.verify() == {"shop": []}


def test_nobody_is_left_in_a_snapshot_that_comes_late(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the rows; somebody is forgotten; then it writes."""
    with open_controller(path, snapshot_every=0) as controller:
        population = shop(controller)
        live(population, agents=("ada", CANARY, "ben"))
        reader = open_store(str(path), read_only=True)
        pack = snapshots.pack

        def slow(fold: Any) -> bytes:
            content = pack(fold)
            monkeypatch.setattr(snapshots, "pack", pack)
            population.forget(CANARY)
            population.settle()
            return content

        monkeypatch.setattr(snapshots, "pack", slow)
        snapshotter.write_snapshot(reader, "shop")
        reader.close()
        assert not files(path)
        live(population)
        assert run(str(path)).returncode == 0
        assert controller.verify() == {"shop": []}


def test_forgetting_ends_a_snapshot_under_way(path: Path) -> None:
    with open_controller(path, snapshot_every=0) as controller:
        population = shop(controller)
        live(population, agents=("ada", CANARY, "ben"))
        process = snapshotter.Process(str(path), 1)
        population.owner.snapshotter = process
        process.tend(population.owner)
        child = process._running
        assert child is not None
        os.kill(child.pid, signal.SIGSTOP)
        (path.with_name("shop.db-snapshots")).mkdir(exist_ok=True)
        (path.with_name("shop.db-snapshots") / ".half.tmp").write_text(CANARY)
        population.forget(CANARY)
        assert child.poll() is not None
        population.settle()
        found = b"".join(one.read_bytes() for one in path.parent.rglob("*") if one.is_file())
        assert CANARY.encode() not in found


def test_fenced_by_the_epoch(path: Path) -> None:
    with open_controller(path, snapshot_every=0) as controller:
        population = shop(controller)
        content, seq = population.owner.packed()
        population.owner.store.save_snapshot(1, Snapshot(population.owner.lease.epoch - 1, seq, content))
        assert not files(path)


@pytest.mark.parametrize("decided", [False, True])
def test_cuts_come_in_one_order(decided: bool, path: Path) -> None:
    """A policy that was loaded finds the cuts of a round in another order than one that was not."""
    names = [f"agent {number}" for number in range(300)]
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(16, 2))
    for part in (0, 3, 6, 9, 12):
        with open_controller(path, snapshot_every=0) as controller:
            population = shop(controller)
            samples: list[dict[str, Any]] = [
                {"agent": name, "x": x, "reward": (-1) ** number * x[0] + 0.1 * rng.normal()}
                for number, name in enumerate(names)
                for x in xs[part : part + 3]
            ]
            if decided:  # all rewards are learned in the round of the last decision
                made: Any = population.decide_many(
                    {"agent": one["agent"], "arms": [one["x"]]} for one in samples
                )
                pairs = zip(made, samples, strict=True)
                errors = population.reward_many({"id": d.id, "reward": one["reward"]} for d, one in pairs)
            else:
                errors = population.observe_many(samples)
            assert not any(errors)
            population.snapshot()
    with open_controller(path, snapshot_every=0) as controller:
        population = shop(controller)
        assert population.owner.read(lambda fold: fold.count_cuts()) > 10_000
        assert controller.verify() == {"shop": []}
