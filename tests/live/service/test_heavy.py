"""Questions that read a whole journal: threads of their own, few for each key, given up when nobody waits."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.service.running import ARMS, Caller, InProcess, wait_until

from shoal.live.journal.patience import Patience, go_on
from shoal.live.population.controller import open as open_controller
from shoal.live.population.population import Population
from shoal.live.population.quotas import Quotas
from shoal.live.protocol.errors import UnavailableError

P = "/v1/populations/shop"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A server with a population that has some history."""
    running = InProcess(str(tmp_path_factory.mktemp("heavy") / "shop.db"), quotas=Quotas(rate=0))
    with running:
        with Caller(running.url) as call:
            call.make("shop", policy="independent", explore=0.5)
            for n in range(20):
                call("POST", f"{P}/decisions", {"agent": f"agent {n % 3}", "arms": ARMS, "id": f"d{n}"})
                call("PUT", f"{P}/decisions/d{n}/reward", {"reward": 1.0})
        yield running


class Endless:
    """What a question does that takes as long as it is let."""

    def __init__(self) -> None:
        self.under_way = 0
        self.ended: list[BaseException] = []
        self._lock = threading.Lock()

    def __call__(self, *_: Any, **__: Any) -> None:
        with self._lock:
            self.under_way += 1
        try:
            while True:
                go_on()
                time.sleep(0.01)
        except BaseException as error:
            with self._lock:
                self.ended.append(error)
                self.under_way -= 1
            raise


@pytest.fixture
def endless(asked: InProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endless]:
    found = Endless()
    for name in ("evaluate", "what_if", "uplift", "graph"):
        monkeypatch.setattr(Population, name, found)
    yield found
    wait_until(lambda: found.under_way == 0, 10.0)
    wait_until(lambda: asked.app._asked.total() == 0, 10.0)


def leave_asking(running: InProcess, path: str, key: str) -> socket.socket:
    """Ask, and do not wait: closing the socket leaves."""
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=5.0)
    asks = f"GET {P}/{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n"
    sock.sendall(asks.encode())
    return sock


def test_nothing_else_waits_for_them_and_they_end_when_the_caller_leaves(
    asked: InProcess, endless: Endless
) -> None:
    keys = [asked.keys.add(["read", "decide"])[1] for _ in range(4)]
    open_sockets = [
        leave_asking(asked, path, key)
        for key in keys[:3]
        for path in ("evaluation?policy=bass", "graph?at=3")
    ]
    wait_until(lambda: endless.under_way == 2, 10.0)
    with Caller(asked.url, keys[0]) as call:
        for method, path in (("GET", "uplift"), ("POST", "what-if")):
            refused = call(method, f"{P}/{path}", {} if method == "POST" else None)
            assert (refused.status_code, refused.json()["limit"]) == (429, "heavy")
            assert refused.headers["retry-after"] == "5"
        for path in ("/metrics", "/v1/populations", P, f"{P}/events", "/readyz"):
            assert call("GET", path).status_code == 200
        made = call("POST", f"{P}/decisions", {"agent": "ada", "arms": ARMS})
        assert made.status_code == 201
    for path in ("summary", "graph", "agents", "settings"):
        answer = httpx.get(
            f"{asked.url}/dashboard/shop/{path}", headers={"authorization": f"Bearer {keys[0]}"}, timeout=20.0
        )
        assert answer.status_code == 200
    for sock in open_sockets:
        sock.close()
    wait_until(lambda: asked.app._asked.total() == 0, 10.0)
    assert len(endless.ended) <= 6  # those that had not begun never did
    assert all(isinstance(one, UnavailableError) for one in endless.ended)


def test_they_have_a_time_limit(asked: InProcess, endless: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked.app, "quotas", Quotas(seconds=0.2))
    with Caller(asked.url, asked.keys.add(["read"])[1]) as call:
        answer = call("GET", f"{P}/uplift")
        assert (answer.status_code, answer.json()["limit"]) == (503, "seconds")
        assert "the limit seconds is 0.2" in answer.json()["detail"]


def test_forgetting_is_finished(asked: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although whoever asked has left, and whatever the time limit."""
    monkeypatch.setattr(asked.app, "quotas", Quotas(seconds=0.0))
    _, key = asked.keys.add(["admin", "read"])
    went_on = threading.Event()
    forget: Callable[..., None] = Population.forget

    def slowly(*arguments: Any) -> None:
        went_on.wait(10.0)
        forget(*arguments)

    monkeypatch.setattr(Population, "forget", slowly)
    head = f"DELETE {P}/agents/agent%201 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", asked.port)) as sock:
        sock.sendall(head.encode())
        wait_until(lambda: asked.app._asked.total() == 1, 10.0)
    went_on.set()
    with Caller(asked.url, key) as call:
        wait_until(lambda: call("GET", f"{P}/agents/agent%201").status_code == 410, 10.0)


@pytest.mark.parametrize("question", ["evaluate", "what_if", "uplift", "graph", "export", "switch"])
def test_whatever_reads_the_journal_can_be_given_up(tmp_path: Path, question: str) -> None:
    with open_controller(tmp_path / "shop.db") as controller:
        shop = controller.population("shop", "independent", 2, explore=0.5, holdout=0.0)
        for n in range(20):
            shop.reward(shop.decide("ada", [[1.0, 0.0], [0.0, 1.0]], id=str(n)).id, 1.0)
        before = shop.sequence
        calls: dict[str, Callable[[], Any]] = {
            "evaluate": lambda: shop.evaluate("bass"),
            "what_if": lambda: shop.what_if("bass"),
            "uplift": shop.uplift,
            "graph": lambda: shop.graph(5),
            "export": lambda: shop.export(tmp_path / "out.jsonl"),
            "switch": lambda: shop.switch("bass"),
        }
        patience = Patience()

        def ask() -> Any:
            patience.has_ended = True  # while it is being answered
            return calls[question]()

        with pytest.raises(UnavailableError, match="nobody waits"):
            patience.call(ask)
        assert shop.sequence == before
        assert not (tmp_path / "out.jsonl").exists()
        if question != "uplift":  # it has no holdout to compare with
            calls[question]()
