"""A nursery of servers to be killed: it loads everything once, then forks a server for each line it reads."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import httpx
from tests.live.population.worker import follow, open_shop, rewarding_twice
from tests.live.service.running import wait_until

from shoal.live.journal.committer import Committer
from shoal.live.journal.stores import postgres
from shoal.live.population.asynchronous import Arrivals
from shoal.live.population.commands import Commands
from shoal.live.population.owner import Owner
from shoal.live.service.server import serve

LEASE = 0.5
SLOW = 0.2
"""Seconds that a commit takes at least, where it is to be slow."""


def nurse() -> None:
    """Load all there is, then fork a server for each line; children that died are taken note of."""
    for policy in sys.argv[1:]:
        controller, shop = open_shop(":memory:", policy)
        for n in range(40):
            follow(shop, f"0-{n}", lambda _: None)
        controller.close()
    assert threading.active_count() == 1
    os.write(1, b"loaded\n")
    for line in sys.stdin:
        command, *rest = line.rstrip("\n").split("\t")
        if command == "start":
            child = os.fork()
            if child == 0:
                os.close(0)
                _serve(*rest)
                os._exit(0)
            os.write(1, b"%d\n" % child)
        else:
            os.kill(int(rest[0]), signal.SIGKILL)
            os.waitpid(int(rest[0]), 0)
            os.write(1, b"dead\n")


def _serve(url: str, port: str, mutant: str, lease: str) -> None:
    if mutant == "unfenced":  # appends whoever the owner is, and does not look who that is
        postgres.APPEND = postgres.APPEND.replace("AND epoch = %(epoch)s AND owner = %(owner)s ", "")
        postgres.PostgresStore.renew = lambda *_: {}  # type: ignore[method-assign]
        Owner.lose = lambda *_: None  # type: ignore[method-assign]
    if mutant == "twice":
        Commands.reward = rewarding_twice  # type: ignore[method-assign, assignment]
    if mutant == "early":

        def at_once(self: Any, ticket: Any, then: Any) -> None:
            then(None)

        Arrivals.tell = at_once  # type: ignore[method-assign]
    if mutant in ("early", "slow"):  # whatever is answered now is committed later, or never
        commit = Committer._commit

        def later(self: Any, items: Any) -> None:
            time.sleep(SLOW)
            commit(self, items)

        Committer._commit = later  # type: ignore[method-assign]
    serve(url, port=int(port), lease=float(lease), log_requests=False)


class Nursery:
    """Starts servers, and kills them."""

    def __init__(self, *policies: str) -> None:
        command = [sys.executable, "-m", "tests.live.service.worker", *policies]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: IO[bytes] = self._process.stdin
        self._stdout: IO[bytes] = self._process.stdout
        assert self._stdout.readline() == b"loaded\n"
        self.children: set[int] = set()

    def start(self, url: str, port: int, mutant: str = "", lease: float = LEASE) -> int:
        """A server, which may not listen yet."""
        self._say(f"start\t{url}\t{port}\t{mutant}\t{lease}")
        child = int(self._stdout.readline())
        self.children.add(child)
        return child

    def kill(self, child: int) -> None:
        """End a server with SIGKILL."""
        self._say(f"kill\t{child}")
        assert self._stdout.readline() == b"dead\n"
        self.children.discard(child)

    def _say(self, text: str) -> None:
        self._stdin.write(f"{text}\n".encode())
        self._stdin.flush()

    def close(self) -> None:
        for child in list(self.children):
            self.kill(child)
        self._stdin.close()
        assert self._process.wait(30) == 0
        self._stdout.close()


def wait_ready(port: int) -> None:
    """Wait until a server can be used."""
    wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5.0).status_code == 200)


if __name__ == "__main__":
    nurse()
