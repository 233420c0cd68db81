"""kill -9, SIGSTOP and a restarted PostgreSQL under clients that retry: nothing is lost or counted twice.

`make test` kills a few times, `make chaos` many.
"""

import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.core.attack.common import SCALE
from tests.live.places import Place
from tests.live.population.server import Server
from tests.live.population.test_kill import Toll
from tests.live.population.worker import DIM, events, follow, open_shop, plan
from tests.live.service.worker import LEASE, Nursery, wait_ready

import shoal
from shoal.live.client import exchange
from shoal.live.journal.records import decode

pytestmark = pytest.mark.slow

KILLS = 5 if SCALE == 1 else 10 * SCALE
THREADS = 4
STRAY = "from the frozen one"
"""A request of nobody's plan."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that are not answered are soon given up, so that there are many repeated ones."""
    monkeypatch.setattr(exchange, "LONGEST_ATTEMPT", 0.5)


class Callers:
    """Threads that carry out plans through clients, and write down what was acknowledged."""

    def __init__(self, *ports: int) -> None:
        self._clients = [shoal.Client(f"http://127.0.0.1:{port}", deadline=60.0) for port in ports]
        shops = [client.population("shop") for client in self._clients]
        self._clients[0].population("shop", "independent", DIM, explore=0.1, seed=1)
        self.promised: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        work = [threading.Thread(target=self._work, args=(shops[n % len(shops)], n)) for n in range(THREADS)]
        self._threads = work
        for thread in self._threads:
            thread.start()

    def _work(self, shop: Any, number: int) -> None:
        n = 0
        try:
            while not self._stop.is_set():
                follow(shop, f"{number}-{n}", self._acknowledge)
                n += 1
        except Exception as error:
            self.errors.append(error)

    def _acknowledge(self, text: str) -> None:
        key, step = text.split()
        self.promised[key] = max(self.promised[key], int(step))

    def wait_for(self, more: int) -> None:
        """Wait for so many more acknowledgements."""
        wanted = sum(self.promised.values()) + more
        deadline = time.monotonic() + 60.0
        while sum(self.promised.copy().values()) < wanted and not self.errors:
            assert time.monotonic() < deadline, "nothing is acknowledged any more"
            time.sleep(0.002)

    def finish(self) -> None:
        """Let everybody finish what they are at, and see that nobody was refused."""
        self.stop()
        assert self.errors == []

    def stop(self) -> None:
        """Let everybody finish what they are at."""
        self._stop.set()
        for thread in self._threads:
            thread.join(90.0)
            assert not thread.is_alive()
        for client in self._clients:
            client.close()


def toll(place: Place, promised: Counter[str]) -> Toll:
    """Compare what is in the store with what was acknowledged, after a dead owner's lease has ended."""
    time.sleep(LEASE)
    controller, shop = open_shop(place.url, "independent")
    try:
        done = events(list(controller.store.read(shop.owner.lease.population, 0)), decode)
        lost = sum(len(done.get(key, ())) < steps for key, steps in promised.items())
        done.pop(STRAY, None)
        twice = sum(steps != plan(key)[: len(steps)] for key, steps in done.items())
        unsound = len(controller.verify()["shop"])
        return Toll(sum(promised.values()), lost, twice, unsound)
    finally:
        controller.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def test_killed(durable: Place, nursery: Nursery) -> None:
    moments = random.Random(durable.kind)
    port = free_port()
    child = nursery.start(durable.url, port)
    wait_ready(port)
    callers = Callers(port)
    for _ in range(KILLS):
        callers.wait_for(moments.randrange(5, 80))
        nursery.kill(child)
        child = nursery.start(durable.url, port)
    callers.wait_for(20)
    callers.finish()
    nursery.kill(child)
    found = toll(durable, callers.promised)
    print(f"{durable.kind}: {KILLS} kills, {found}")
    assert found[1:] == (0, 0, 0), found
    assert found.acknowledged > 20 * KILLS


# One that acknowledges early also leaves snapshots of what it never committed.
@pytest.mark.filterwarnings("ignore:snapshot .* belongs to another journal")
@pytest.mark.parametrize("mutant", ["slow", "early"])
def test_the_harness_bites(durable: Place, nursery: Nursery, mutant: str) -> None:
    """A server that answers before the commit loses what it acknowledged; one that is only slow does not."""
    port = free_port()
    child = nursery.start(durable.url, port, mutant)
    wait_ready(port)
    callers = Callers(port)
    callers.wait_for(20)
    nursery.kill(child)
    found = toll(durable, callers.promised.copy())
    child = nursery.start(durable.url, port)  # for those who are still trying
    wait_ready(port)
    callers.stop()
    nursery.kill(child)
    if mutant == "early":
        assert found.lost > 0, found
    else:
        assert (found.lost, callers.errors) == (0, [])


def test_frozen(durable: Place, nursery: Nursery) -> None:
    """SIGSTOP: callers try again; on PostgreSQL another server takes over, and the first one notices."""
    port = free_port()
    child = nursery.start(durable.url, port)
    wait_ready(port)
    ports = [port]
    if durable.kind == "postgres":
        ports.append(free_port())
    callers = Callers(port)
    callers.wait_for(30)
    for _ in range(2 * SCALE):
        os.kill(child, signal.SIGSTOP)
        try:
            if len(ports) == 2:
                second = nursery.start(durable.url, ports[1])
                wait_ready(ports[1])
                with shoal.Client(f"http://127.0.0.1:{ports[1]}", deadline=20.0) as client:
                    client.population("shop").describe()  # it owns the population now
            else:
                time.sleep(1.0)
        finally:
            os.kill(child, signal.SIGCONT)
        if len(ports) == 2:
            with shoal.Client(f"http://127.0.0.1:{port}", deadline=20.0) as client:  # which passes it on
                client.population("shop").observe("agent 0", [0.0] * DIM, 0.0, id=STRAY)
            nursery.kill(second)
        callers.wait_for(30)
    callers.finish()
    nursery.kill(child)
    found = toll(durable, callers.promised)
    assert found[1:] == (0, 0, 0), found


def test_postgres_restarted_under_load(
    durable: Place, nursery: Nursery, request: pytest.FixtureRequest
) -> None:
    if durable.kind != "postgres":
        pytest.skip("only PostgreSQL has a server to restart")
    server: Server = request.getfixturevalue("server")
    port = free_port()
    child = nursery.start(durable.url, port)
    wait_ready(port)
    callers = Callers(port)
    for mode in ["immediate", "fast"] * SCALE:
        callers.wait_for(40)
        server.stop(mode)
        time.sleep(0.3)
        server.start()
    callers.wait_for(40)
    callers.finish()
    nursery.kill(child)
    found = toll(durable, callers.promised)
    assert found[1:] == (0, 0, 0), found
