"""kill -9 while four threads work: what was acknowledged is there, once, and the state is the journal's fold.

`make test` kills 25 times, `make chaos` 1,000.
"""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest
from tests.core.attack.common import SCALE
from tests.live.places import Place
from tests.live.population.worker import acknowledged, events, open_shop, plan

from shoal.live.journal.records import decode

pytestmark = pytest.mark.slow

POLICIES = ["independent", "bass", "cluster_mixture"]
KILLS = 7 if SCALE == 1 else 13 * SCALE
"""Of each store and policy."""


class Nursery:
    """Starts workers, and kills them."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.live.population.worker", *POLICIES]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: IO[bytes] = self._process.stdin
        self._stdout: IO[bytes] = self._process.stdout
        assert self._stdout.readline() == b"loaded\n"

    def kill_one(
        self, url: str, log: Path, policy: str, *, acknowledgements: int | None, mutant: str = ""
    ) -> None:
        """Start a worker and kill it after so many acknowledgements, or, if None, while it starts."""
        size = log.stat().st_size if log.exists() else 0
        self._stdin.write(f"{url}\t{log}\t{policy}\t{mutant}\n".encode())
        self._stdin.flush()
        child = int(self._stdout.readline())
        if acknowledgements is None:
            select.select([], [], [], size % 97 / 2000.0)
        else:
            assert self._stdout.readline() == b"ready\n"
            deadline = time.monotonic() + 20.0
            while log.stat().st_size < size + 6 * acknowledgements:  # a line has 6 bytes, or a few more
                assert time.monotonic() < deadline, "the worker has stopped working"
                select.select([], [], [], 0.0007)
        os.kill(child, signal.SIGKILL)
        while self._stdout.readline() != b"dead\n":
            pass

    def close(self) -> None:
        self._stdin.close()
        assert self._process.wait(30) == 0
        self._stdout.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


class Toll(NamedTuple):
    """What killing did."""

    acknowledged: int
    lost: int
    twice: int
    unsound: int


def toll(place: Place, log: Path, policy: str) -> Toll:
    """Compare what a killed worker left with what it acknowledged and had planned."""
    controller, shop = open_shop(place.url, policy)
    try:
        done = events(list(controller.store.read(shop.owner.lease.population, 0)), decode)
        promised = acknowledged(log)
        lost = sum(len(done.get(key, ())) < steps for key, steps in promised.items())
        twice = sum(steps != plan(key)[: len(steps)] for key, steps in done.items())
        rewards = [kind for steps in done.values() for kind, _ in steps if kind in ("rewarded", "observed")]
        unsound = len(controller.verify()["shop"])
        unsound += sum(shop.owner.read(lambda fold: fold.observed)) != len(rewards)
        return Toll(sum(promised.values()), lost, twice, unsound)
    finally:
        controller.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_killed(durable: Place, tmp_path: Path, nursery: Nursery, policy: str) -> None:
    log = tmp_path / "acknowledged"
    moments = random.Random(f"{durable.kind} {policy}")
    for number in range(KILLS):
        many = None if number % 4 == 3 else moments.randrange(60)
        nursery.kill_one(durable.url, log, policy, acknowledgements=many)
        if number % 3 == 2 or number == KILLS - 1:  # in between, the next worker recovers
            last = toll(durable, log, policy)
            assert (last.lost, last.twice, last.unsound) == (0, 0, 0), last
    print(f"{durable.kind}, {policy}: {KILLS} kills, {last}")
    assert last.acknowledged > 10 * KILLS


# One that acknowledges early also leaves snapshots of what it never committed.
@pytest.mark.filterwarnings("ignore:snapshot .* belongs to another journal")
@pytest.mark.parametrize("mutant", ["early", "twice"])
def test_the_harness_bites(durable: Place, tmp_path: Path, nursery: Nursery, mutant: str) -> None:
    """A controller that acknowledges before the commit, and one that counts a repeated reward again."""
    log = tmp_path / "acknowledged"
    for _ in range(8):
        nursery.kill_one(durable.url, log, "independent", mutant=mutant, acknowledgements=50)
        last = toll(durable, log, "independent")
        if (last.lost if mutant == "early" else last.twice) > 0:
            return
    pytest.fail(f"{mutant} was not caught")
