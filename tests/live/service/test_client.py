"""The client: repeated requests count once, deadlines hold, and rewards outlive the caller."""

import asyncio
import contextlib
import gzip
import inspect
import itertools
import math
import random
import re
import select
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
import numpy as np
import pytest
from tests.live.service.running import ARMS, InProcess, wait_until
from tests.live.service.worker import Nursery, wait_ready

import shoal
from shoal.live.client import AsyncRemotePopulation, RemotePopulation
from shoal.live.client.buffer import Buffer
from shoal.live.client.exchange import Attempt, Pause, Reply, exchange
from shoal.live.population import exporting
from shoal.live.protocol.answers import Explanation
from shoal.live.protocol.messages import NewDecision

SETTINGS: dict[str, Any] = {"policy": "bass", "dim": 2, "explore": 0.0, "seed": 1}


class Lossy(httpx.HTTPTransport):
    """Loses requests, or answers, as it is told."""

    def __init__(self, fate: Callable[[], str]) -> None:
        super().__init__()
        self._fate = fate

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        fate = self._fate()
        if fate == "request lost":
            raise httpx.ConnectError("lost", request=request)
        response = super().handle_request(request)
        if fate == "answer lost":
            response.read()
            response.close()
            raise httpx.ReadError("lost", request=request)
        return response


class Scripted:
    """A server whose answers, or what it sends in place of them, are written by the test.

    `answer` takes a connection that has sent a request (of a large one, the beginning), and how many requests
    there were before.
    """

    def __init__(
        self, answer: Callable[[socket.socket, int], None], tls: ssl.SSLContext | None = None
    ) -> None:
        self._answer, self._tls = answer, tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._socket.getsockname()[1]}"
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self.connections = 0
        self.open = 0
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self.open += 1
            self._threads.append(threading.Thread(target=self._talk, args=(connection,)))
            self._threads[-1].start()

    def _talk(self, connection: socket.socket) -> None:
        connection.settimeout(20.0)
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            while read_request(connection):
                self._answer(connection, next(self._numbers))
        except OSError:
            pass
        connection.close()
        self.open -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in (self._accepting, *self._threads):
            thread.join(30)
            assert not thread.is_alive()


MADE = {
    "id": "one",
    "agent": "ada",
    "arm": "water",
    "ranking": ["water"],
    "probability": 1.0,
    "greedy": "water",
    "own": 0.0,
    "pooled": 0.0,
    "sequence": 3,
}


def answer_of(body: bytes, status: str = "201 Created", *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""])
    return head.encode() + body


def read_request(connection: socket.socket) -> bool:
    """Take a request of up to 64 kB, or the beginning of a larger one; whether there was one."""
    text = connection.recv(65536)
    while text:
        head, end, body = text.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head.lower())
        if end and len(body) >= min(int(found[1]) if found else 0, 65536 - len(head)):
            return True
        more = connection.recv(65536)
        text = text + more if more else b""
    return False


def drip(connection: socket.socket, text: bytes, slowly: bytes) -> None:
    """Send text at once, and more byte by byte, over and over: for as long as somebody reads."""
    connection.sendall(text)
    for n in itertools.cycle(range(len(slowly))):
        time.sleep(0.02)
        connection.sendall(slowly[n : n + 1])


def pass_on(connection: socket.socket, url: str) -> None:
    """Be a proxy that was asked to connect to a server."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as server:
        connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        while True:
            for one in select.select([connection, server], [], [], 20.0)[0]:
                text = one.recv(65536)
                (server if one is connection else connection).sendall(text)
                if not text:
                    raise ConnectionError("one side has closed")


taken: list[int] = []
"""Bytes that `read_slowly` has read, in pieces."""


def read_slowly(connection: socket.socket) -> None:
    """Take a large request as slowly as keeps it coming."""
    while piece := connection.recv(65536):
        taken.append(len(piece))
        time.sleep(0.01)


@pytest.fixture
def client(running: InProcess) -> Iterator[shoal.Client]:
    with shoal.Client(running.url) as found:
        yield found


def lossy_client(running: InProcess, fate: Callable[[], str], **options: Any) -> shoal.Client:
    return shoal.Client(running.url, http=httpx.Client(transport=Lossy(fate)), **options)


def test_importing_it_loads_neither_numba_nor_a_policy() -> None:
    program = (
        "import sys, shoal; shoal.Client, shoal.AsyncClient, shoal.Decision, shoal.ConflictError\n"
        "heavy = ('numba', 'llvmlite', 'numpy', 'scipy', 'starlette')\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in heavy"
        " or m.startswith(('shoal.core', 'shoal.live.population'))]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def test_both_clients_do_the_same() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(shoal.Client) == public(shoal.AsyncClient)
    assert public(RemotePopulation) == public(AsyncRemotePopulation)
    for name in public(RemotePopulation):
        sync, other = getattr(RemotePopulation, name), getattr(AsyncRemotePopulation, name)
        assert inspect.iscoroutinefunction(other)
        assert inspect.signature(sync) == inspect.signature(other)


def test_a_decision_s_arguments_are_written_once() -> None:
    """A field of the request is an argument of `decide`, in the library and in both clients."""
    request, own = inspect.signature(NewDecision), inspect.signature(shoal.Population.decide)
    asked = inspect.signature(RemotePopulation.decide)
    here = [(one.name, one.kind, one.default) for one in own.parameters.values()][1:]
    there = [(one.name, one.kind, one.default) for one in asked.parameters.values()][1:]
    fields = [(one.name, one.kind, one.default) for one in request.parameters.values()]
    assert here == fields
    assert there[: len(fields)] == fields
    assert [name for name, *_ in there[len(fields) :]] == ["fallback", "deadline"]
    assert asked.return_annotation is shoal.Decision
    assert "Seconds to wait for the service." in (RemotePopulation.decide.__doc__ or "")


def test_results_are_those_of_the_library(running: InProcess, client: shoal.Client) -> None:
    shop = client.population("same", **{**SETTINGS, "apprentice": True})
    here = running.app.populations["same"].population
    assert math.isnan(shop.dividend().mean)
    assert str(shop.dividend()) == "Too early to say whether sharing pays: 0 rewards since the start."
    for n in range(3):
        made = shop.decide("ada", ARMS, baseline="tea")
        shop.reward(made.id, float(n))
    ours = (here.dividend(), here.evaluate("independent"), here.what_if(), here.uplift(), here.switches)
    theirs = (
        shop.dividend(),
        shop.evaluate("independent"),
        shop.what_if(),
        shop.uplift(),
        shop.switches(),
    )
    assert [type(one) for one in theirs] == [type(one) for one in ours]
    assert msgspec.json.encode(theirs) == msgspec.json.encode(ours)
    assert [str(one) for one in theirs[:4]] == [str(one) for one in ours[:4]]
    assert math.isnan(theirs[3].uplift)
    assert theirs[3].sentence == ours[3].sentence != ""


def test_all_it_does(client: shoal.Client) -> None:
    shop = client.population("all of it", **SETTINGS)
    assert "all of it" in client.populations()
    shop.set_arms({**ARMS, "milk": [0.5, 0.5]})
    shop.retire("milk")
    assert shop.catalogue() == ARMS
    made = shop.decide("ada", id="one", scores=True)
    assert isinstance(made, shoal.Decision)
    assert made.scores is not None
    assert set(made.scores) == set(ARMS)
    assert shop.decide("ada", id="one") == msgspec.structs.replace(made, scores=None)
    shop.reward("one", 1.0)
    with pytest.raises(shoal.ConflictError) as caught:
        shop.reward("one", 2.0)
    assert caught.value.recorded == 1.0
    shop.reward("one", 2.0, replaces=1.0)
    shop.decide("ada", ["tea", "water"], id="two")
    shop.cancel("two")
    assert shop.observe("bob", [1.0, 0.0], 0.5, id="three")
    assert not shop.observe("bob", [1.0, 0.0], 0.5, id="three")
    assert shop.observe("bob", arm="tea", reward=0.5)
    shop.add("cleo", sharing="none")
    assert shop.agent("cleo").sharing == "none"
    assert shop.agent("ada").rewards == 1
    assert shop.describe().agents == 3
    assert shop.graph().agents == ["ada", "bob", "cleo"]
    assert isinstance(shop.explain("ada"), Explanation)
    assert "ada" in str(shop.explain("ada", "bob"))
    assert shop.events(limit=2).events[0].kind == "settings"
    assert shop.dividend().count == shop.dividend("ada").count == 1
    assert shop.evaluate("independent").policy == "independent"
    assert shop.what_if("independent").n_lost == 3
    with pytest.raises(ValueError, match="holdout"):
        shop.uplift()
    assert shop.switch("independent", alpha=0.5) == shop.switch("independent", alpha=0.5)
    assert shop.switch_back() > shop.switches()[1].sequence
    assert [one.policy for one in shop.switches()] == ["bass", "independent", "bass"]
    shop.forget("bob")
    with pytest.raises(shoal.GoneError):
        shop.agent("bob")
    with pytest.raises(shoal.UnknownError):
        shop.agent("nobody")
    with pytest.raises(ValueError, match="reward"):
        shop.reward("one", float("1e40"))
    with pytest.raises(ValueError, match="shape"):
        shop.decide("ada", {"tea": [1.0]})


def test_the_products_own_rule(client: shoal.Client) -> None:
    shop = client.population("ruled", **{**SETTINGS, "apprentice": True})
    assert shop.decide("ada", ARMS, baseline="water").arm == "water"
    (made,) = shop.decide_many([{"agent": "ada", "arms": ARMS, "baseline": "tea"}])
    assert isinstance(made, shoal.Decision)
    assert made.arm == "tea"


def test_agents_who_are_described(client: shoal.Client, running: InProcess) -> None:
    shop = client.population("described", **{**SETTINGS, "policy": "cluster_mixture", "agent_dim": 2})
    shop.decide("ada", ARMS, agent_features=np.array([34.0, np.nan]))
    (made,) = shop.decide_many([{"agent": "ben", "arms": ARMS, "agent_features": (29.0, 1.0)}])
    assert isinstance(made, shoal.Decision)
    shop.set_features("ada", [35.0, math.nan])
    with pytest.raises(ValueError, match="agent_features"):
        shop.set_features("ada", [35.0])

    async def use() -> None:
        async with shoal.AsyncClient(running.url) as other:
            await (await other.population("described")).set_features("ben", [29.0, None])

    asyncio.run(use())
    known = [one.agent_features for one in shop.events().events if one.kind == "profiled"]
    assert known == [[34.0, None], [29.0, 1.0], [35.0, None], [29.0, None]]


def test_many_at_once(client: shoal.Client) -> None:
    shop = client.population("many", **SETTINGS)
    made = shop.decide_many({"agent": f"agent {n % 50}", "arms": ARMS} for n in range(1200))
    assert all(isinstance(one, shoal.Decision) for one in made)
    errors = shop.reward_many(
        [{"id": one.id, "reward": 1.0} for one in made if isinstance(one, shoal.Decision)]
        + [{"id": "none of these", "reward": 1.0}]
    )
    assert not any(errors[:1200])
    assert isinstance(errors[1200], shoal.UnknownError)


def test_an_event_loop(running: InProcess, tmp_path: Path) -> None:
    async def use() -> None:
        async with shoal.AsyncClient(running.url, buffer=tmp_path / "rewards.db") as client:
            shop = await client.population("loop", **SETTINGS)
            made = await asyncio.gather(*(shop.decide(f"agent {n}", ARMS) for n in range(40)))
            await asyncio.gather(*(shop.reward(one.id, 0.5) for one in made))
            assert await client.flush(20.0)
            assert [(await shop.agent(f"agent {n}")).rewards for n in range(40)] == [1] * 40
            assert await shop.decide_many([{"agent": "x", "arms": ARMS}])
        async with shoal.AsyncClient(running.url) as client:
            shop = await client.population("loop")
            await shop.reward((await shop.decide("ada", ARMS)).id, 1.0)
            with pytest.raises(shoal.UnknownError):
                await shop.reward("nothing", 1.0)

    asyncio.run(use())


def test_lost_requests_and_answers_count_once(running: InProcess) -> None:
    draw = random.Random(5)

    def fate() -> str:
        return draw.choices(["fine", "request lost", "answer lost"], [6, 2, 3])[0]

    with lossy_client(running, fate, deadline=60.0) as client:
        shop = client.population("lossy", **SETTINGS)
        before = shop.describe().sequence
        for n in range(12):
            made = shop.decide("ada", ARMS)
            shop.reward(made.id, n / 10)
            shop.observe("ada", [1.0, 0.0], n / 10)
        made_many = shop.decide_many([{"agent": "ada", "arms": ARMS}] * 10)
        shop.reward_many(
            [{"id": one.id, "reward": 1.0} for one in made_many if isinstance(one, shoal.Decision)]
        )
        shop.forget("ada")
        assert shop.describe().sequence - before == 1 + 3 * 12 + 20 + 1


def test_pauses_obey_the_server_and_the_deadline() -> None:
    now = 0.0
    pauses = []
    plan = exchange("GET", "/", type(None), deadline=100.0, clock=lambda: now)
    step = next(plan)
    for _ in range(8):
        assert isinstance(step, Attempt)
        assert step.timeout <= min(5.0, 100.0 - now)
        step = plan.send(Reply(503, b"", 3.0))
        assert isinstance(step, Pause)
        assert step.seconds >= 3.0
        now += step.seconds
        step = plan.send(None)
    for _ in range(200):
        again = exchange("GET", "/", type(None), deadline=100.0, clock=lambda: now)
        next(again)
        first = again.send(Reply(0, trouble="lost"))
        assert isinstance(first, Pause)
        pauses.append(first.seconds)
    assert 0.0 <= min(pauses) < 0.02
    assert 0.08 < max(pauses) <= 0.1  # jitter over all of the interval
    plan = exchange("GET", "/", type(None), deadline=2.0, clock=lambda: now)
    next(plan)
    with pytest.raises(shoal.UnavailableError, match="no answer within 2 s"):
        plan.send(Reply(429, b"", 3.0))


def test_what_the_service_says_for_good_is_not_repeated() -> None:
    for status in (400, 404, 409, 422):
        plan = exchange("GET", "/", type(None), deadline=2.0)
        next(plan)
        with pytest.raises(shoal.ControllerError, match=f"answered with status {status}"):
            plan.send(Reply(status))


BODY = msgspec.json.encode(MADE)
BAD = {
    "a head that drips": lambda c: drip(c, b"HTTP/1.1 201 Created\r\nx-long: ", b"x"),
    "a body that drips": lambda c: drip(c, b"HTTP/1.1 201 Created\r\ncontent-length: 1000000\r\n\r\n", b" "),
    "chunks without end": lambda c: drip(
        c, b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"
    ),
    "half of a body": lambda c: (c.sendall(answer_of(BODY)[:-9]), c.shutdown(socket.SHUT_WR)),
    "a page": lambda c: c.sendall(answer_of(b"<p>Welcome to the hotel's network", "200 OK")),
    "JSON of another kind": lambda c: c.sendall(answer_of(b'{"is_fine": true}', "200 OK")),
    "no body": lambda c: c.sendall(answer_of(b"", "200 OK")),
    "broken compression": lambda c: c.sendall(answer_of(BODY, "201 Created", "content-encoding: gzip")),
    "a strange Retry-After": lambda c: c.sendall(answer_of(b"", "503 Busy", "retry-after: \u00b2")),
    "nothing": lambda c: c.recv(1),
    "a slow reader": read_slowly,
}


def decide(client: shoal.Client | shoal.AsyncClient, **options: Any) -> shoal.Decision:
    """A decision by either kind of client, which is closed then."""

    async def asynchronously(client: shoal.AsyncClient) -> shoal.Decision:
        async with client:
            return await (await client.population("x")).decide("ada", **options)

    if isinstance(client, shoal.AsyncClient):
        return asyncio.run(asynchronously(client))
    with client:
        return client.population("x").decide("ada", **options)


@pytest.mark.parametrize("kind", [shoal.Client, shoal.AsyncClient])
@pytest.mark.parametrize("how", BAD)
def test_deadlines_hold_whatever_the_server_does(
    kind: type, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.live.client.clients.GRACE", 10.0)  # for custom transports: not needed here
    arms: Any = {f"arm {n}": [1 / 3] * 1000 for n in range(1000)} if how == "a slow reader" else ARMS
    fallback = next(iter(arms))
    with Scripted(lambda connection, _: BAD[how](connection)) as server:
        taken.clear()
        made = decide(kind(server.url), arms=arms, fallback=fallback, deadline=0.4)  # what drips never ends
        assert sum(taken) < 10_000_000  # half of what the slow reader would take
        assert (made.arm, made.sequence) == (fallback, 0)
        wait_until(lambda: server.open == 0, 10.0)  # what was given up is closed
        with pytest.raises(shoal.UnavailableError, match=r"no answer within 0.1 s and \d+ attempts: \w+"):
            decide(kind(server.url), arms=ARMS, deadline=0.1)


@pytest.mark.parametrize("kind", [shoal.Client, shoal.AsyncClient])
@pytest.mark.parametrize("how", ["a page", "broken compression", "half of a body", "a body that drips"])
def test_an_answer_that_cannot_be_read_is_asked_for_again(
    kind: type, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.live.client.exchange.LONGEST_ATTEMPT", 0.2)
    fine = answer_of(gzip.compress(BODY), "201 Created", "content-encoding: gzip")

    def answer(connection: socket.socket, number: int) -> None:
        BAD[how](connection) if number < 2 else connection.sendall(fine)

    with Scripted(answer) as server:
        assert decide(kind(server.url), arms=ARMS, deadline=20.0).sequence == 3


def test_an_answer_given_up_leaves_its_connection_to_nobody() -> None:
    """With one connection at most, what is not closed, or reused half read, fails the next call."""

    def answer(connection: socket.socket, number: int) -> None:
        if number % 2:
            BAD["a body that drips"](connection)
        else:
            connection.sendall(answer_of(BODY))

    limits = httpx.Limits(max_connections=1)
    with Scripted(answer) as server:
        with shoal.Client(server.url, http=httpx.Client(limits=limits)) as client:
            shop = client.population("x")
            for n in range(6):
                made = shop.decide("ada", ARMS, fallback="tea", deadline=0.15 if n % 2 else 5.0)
                assert made.sequence == (0 if n % 2 else 3)
            assert server.connections == 3  # each used until its answer was given up

        async def use() -> None:
            async with shoal.AsyncClient(server.url, http=httpx.AsyncClient(limits=limits)) as client:
                shop = await client.population("x")
                for n in range(6):
                    made = await shop.decide("ada", ARMS, fallback="tea", deadline=0.15 if n % 2 else 5.0)
                    assert made.sequence == (0 if n % 2 else 3)
            assert server.connections == 6

        asyncio.run(use())


def test_deadlines_hold_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.client.clients.GRACE", 10.0)  # for custom transports: not needed here
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl is not installed here")
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))

    def check(url: str, answered: int, **options: Any) -> None:
        clients = (
            shoal.Client(url, http=httpx.Client(verify=trust, **options)),
            shoal.AsyncClient(url, http=httpx.AsyncClient(verify=trust, **options)),
        )
        for client in clients:
            assert decide(client, arms=ARMS, fallback="tea", deadline=0.4).sequence == answered

    with (
        Scripted(lambda connection, _: connection.sendall(answer_of(BODY)), own) as server,
        Scripted(lambda connection, _: pass_on(connection, server.url)) as proxy,
    ):
        check(server.url, 3)
        check(server.url, 3, proxy=proxy.url)
    with (
        Scripted(lambda connection, _: BAD["a body that drips"](connection), own) as server,
        Scripted(lambda connection, _: pass_on(connection, server.url)) as proxy,
    ):
        check(server.url, 0)
        check(server.url, 0, proxy=proxy.url)
    with Scripted(lambda *_: None) as server:  # which does not answer the handshake
        check(server.url.replace("http:", "https:"), 0)


def test_waiting_for_a_connection_and_connecting_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting takes for ever, since nobody accepts; one at a time may, so that another waits first."""
    given: dict[threading.Thread, float] = {}
    connect = socket.create_connection

    def connecting(address: Any, timeout: float, **options: Any) -> socket.socket:
        given.setdefault(threading.current_thread(), timeout)
        return connect(address, timeout, **options)

    monkeypatch.setattr(socket, "create_connection", connecting)
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # fill the queue of those to be accepted
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        http = httpx.Client(limits=httpx.Limits(max_connections=1))
        client = stack.enter_context(shoal.Client(f"http://127.0.0.1:{full.getsockname()[1]}", http=http))
        shop = client.population("x")

        def first() -> None:
            shop.decide("ada", ARMS, fallback="tea", deadline=0.8)

        thread = threading.Thread(target=first)
        thread.start()
        time.sleep(0.05)
        assert shop.decide("ada", ARMS, fallback="tea", deadline=1.0).sequence == 0
        thread.join()
        assert given.pop(thread) > 0.5
        assert given.pop(threading.current_thread(), 0.0) < 0.5  # what waiting has left of its second


def test_a_page_in_place_of_an_answer_takes_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.live.client.clients.DEADLINE", 0.2)
    page = answer_of(b"<p>Welcome to the hotel's network", "200 OK", "retry-after: 60")
    with Scripted(lambda connection, _: connection.sendall(page)) as server:
        with shoal.Client(server.url) as client, pytest.raises(shoal.UnavailableError, match="status 200"):
            client.population("x").reward("one", 1.0, deadline=20.0)
        with shoal.Client(server.url, buffer=tmp_path / "rewards.db") as client:
            client.population("x").reward("one", 1.0)
            assert not client.flush(0.3)
            assert client.refused() == []


def test_a_fallback_when_the_service_is_down(running: InProcess, tmp_path: Path) -> None:
    is_up = False
    with lossy_client(running, lambda: "fine" if is_up else "request lost") as client:
        shop = shoal.live.client.RemotePopulation(client, "fallback")
        with pytest.raises(ValueError, match="fallback must be one of the arms"):
            shop.decide("ada", ARMS, fallback="milk", deadline=0.1)
        made = shop.decide("ada", ARMS, fallback="tea", deadline=0.2)
        assert (made.arm, made.sequence, made.probability) == ("tea", 0, None)
        with pytest.raises(shoal.UnavailableError):
            shop.decide("ada", ARMS, deadline=0.1)
        is_up = True
        shop = client.population("fallback", **SETTINGS)
        shop.reward(made.id, 1.0)
        shop.reward(made.id, 1.0)
        kinds = [one.kind for one in shop.events().events]
        assert kinds == ["settings", "joined", "observed"]
        exporting.export(running.app.populations["fallback"].owner, tmp_path / "out.jsonl", archived=True)
        (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
        assert msgspec.json.decode(line)["arm"] == "tea"


def test_a_misspelt_fallback_is_refused_when_the_population_is_named(running: InProcess) -> None:
    fate = "fine"
    with lossy_client(running, lambda: fate) as client:
        client.population("spelt", **SETTINGS).set_arms(ARMS)
        with pytest.raises(ValueError, match=r"catalogue \(tea, coffee, water\), got 'tae'"):
            client.population("spelt", fallback="tae")
        with pytest.raises(ValueError, match="falback cannot be set without policy and dim"):
            client.population("spelt", falback="tea")
        shop = client.population("spelt", fallback="tea")
        assert shop.decide("ada").sequence > 0
        client.deadline, fate = 0.1, "request lost"
        assert (shop.decide("ada").arm, shop.decide("ada").sequence) == ("tea", 0)
        assert shop.decide("ada", fallback="water").arm == "water"
        assert client.population("spelt", fallback="tea").decide("ada").arm == "tea"  # it may start then, too


def test_a_fallback_although_the_service_decided(running: InProcess, tmp_path: Path) -> None:
    fate = "fine"
    with lossy_client(running, lambda: fate, buffer=tmp_path / "rewards.db") as client:
        shop = client.population("fallback too", **SETTINGS)
        shop.set_arms(ARMS)
        fate = "answer lost"
        made = shop.decide("ada", fallback="water", deadline=0.2)
        assert made.sequence == 0
        fate = "fine"
    with lossy_client(running, lambda: fate, buffer=tmp_path / "rewards.db") as client:  # the caller restarts
        shop = client.population("fallback too")
        shop.reward(made.id, 1.0)
        assert client.flush(20.0)
        kinds = [one.kind for one in shop.events().events]
        assert kinds == ["settings", "catalogue", "joined", "decided", "cancelled", "observed"]
        assert not client.refused()


def test_what_fell_back_is_known_to_the_next_program_at_once(
    running: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.live.client.clients.DEADLINE", 0.2)
    buffer = tmp_path / "rewards.db"
    with lossy_client(running, lambda: "request lost", buffer=buffer) as client:
        shop = client.population("left")
        shop.reward(shop.decide("ada", ARMS, fallback="tea", deadline=0.1).id, 1.0)
    with shoal.Client(running.url) as client:
        client.population("left", **SETTINGS)
    begin = Buffer.__init__

    def begin_and_send(self: Buffer, *arguments: Any) -> None:
        begin(self, *arguments)
        wait_until(lambda: len(self) == 0)  # sent before the client has got the buffer

    monkeypatch.setattr(Buffer, "__init__", begin_and_send)
    with shoal.Client(running.url, buffer=buffer) as client:
        assert client.refused() == []
        assert [one.kind for one in client.population("left").events().events][-1] == "observed"


def test_rewards_outlive_the_caller(running: InProcess, tmp_path: Path) -> None:
    buffer = tmp_path / "rewards.db"
    with shoal.Client(running.url) as client:
        shop = client.population("buffered", **SETTINGS)
        made = [shop.decide("ada", ARMS) for _ in range(20)]
    program = (
        "import sys, os, shoal\n"
        "client = shoal.Client(sys.argv[1], buffer=sys.argv[2])\n"
        "shop = client.population('buffered')\n"
        "for id in sys.argv[3:]: shop.reward(id, 1.0)\n"
        "shop.reward('none of these', 1.0)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    nowhere = "http://127.0.0.1:9"
    ids = [one.id for one in made]
    done = subprocess.run([sys.executable, "-c", program, nowhere, str(buffer), *ids], timeout=60)
    assert done.returncode == -9
    with shoal.Client(running.url, buffer=buffer) as client:
        assert client.flush(20.0)
        assert client.population("buffered").agent("ada").rewards == 20
        ((population, reward, reason),) = client.refused()
        assert (population, reward.id) == ("buffered", "none of these")
        assert "no decision" in reason


def test_many_rewards_outlive_the_service_and_the_caller(nursery: Nursery, file: str, tmp_path: Path) -> None:
    buffer = tmp_path / "rewards.db"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    child = nursery.start(file, port)
    wait_ready(port)
    with shoal.Client(url) as client:
        shop = client.population("shop", "independent", 2, explore=0.0, seed=1)
        made = [f"decision {n}" for n in range(600)]
        shop.decide_many({"agent": "ada", "arms": ARMS, "id": id} for id in made)
    nursery.kill(child)
    program = (
        "import sys, os, shoal\n"
        "client = shoal.Client(sys.argv[1], buffer=sys.argv[2], deadline=0.1)\n"
        "shop = client.population('shop')\n"
        "made = shop.decide('ada', {'tea': [1.0, 0.0]}, fallback='tea')\n"
        "ids = [made.id, *sys.argv[3:], 'none of these']\n"
        "assert shop.reward_many({'id': id, 'reward': 1.0} for id in ids) == [None] * len(ids)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, url, str(buffer), *made], timeout=60)
    assert done.returncode == -9
    nursery.start(file, port)
    wait_ready(port)
    with shoal.Client(url, buffer=buffer) as client:
        assert client.flush(30.0)
        assert [(one.reward.id, one.reason) for one in client.refused()] == [
            ("none of these", "population 'shop' has made no decision 'none of these'")
        ]
        shop = client.population("shop")
        kinds = [one.kind for after in (0, 1000) for one in shop.events(after, 1000).events]
        assert kinds.count("rewarded") == 600
        assert kinds.count("observed") == 1


@pytest.mark.parametrize("is_buffered", [False, True])
def test_many_rewards_of_which_some_fell_back(nursery: Nursery, file: str, is_buffered: bool) -> None:
    """Both kinds of client; the service is killed, and comes back."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options: dict[str, Any] = {"buffer": f"{file}.rewards"} if is_buffered else {}
    child = nursery.start(file, port)
    wait_ready(port)

    def rewards(made: list[shoal.Decision]) -> list[dict[str, Any]]:
        first, second, *others = made
        some = [second, *others, first]
        return [{"id": "none", "reward": 1.0}, *({"id": one.id, "reward": 1} for one in some)]

    def check(errors: list[Exception | None]) -> None:
        if is_buffered:
            assert errors == [None] * 5
        else:
            assert isinstance(errors[0], shoal.UnknownError)
            assert errors[1:] == [None] * 4

    with shoal.Client(url, **options) as client:
        shop = client.population("shop", "independent", 2, explore=0.0, seed=1)
        made = [shop.decide("ada", ARMS), shop.decide("ada", ARMS)]
        nursery.kill(child)
        made += [shop.decide("ada", ARMS, fallback="tea", deadline=0.1) for _ in range(2)]
        if not is_buffered:
            with pytest.raises(shoal.UnavailableError):
                shop.reward_many(rewards(made), deadline=0.1)
            with pytest.raises(shoal.UnavailableError):
                shop.reward_many(rewards(made)[2:4], deadline=0.1)  # those that fell back
        child = nursery.start(file, port)
        wait_ready(port)
        check(shop.reward_many(rewards(made)))
        assert client.flush()
        kinds = [one.kind for one in shop.events().events]
        assert (kinds.count("rewarded"), kinds.count("observed")) == (2, 2)

    async def use() -> None:
        async with shoal.AsyncClient(url, **options) as client:
            shop = await client.population("shop")
            made = [await shop.decide("bob", ARMS), await shop.decide("bob", ARMS)]
            nursery.kill(child)
            made += [await shop.decide("bob", ARMS, fallback="tea", deadline=0.1) for _ in range(2)]
            nursery.start(file, port)
            await asyncio.to_thread(wait_ready, port)
            check(await shop.reward_many(rewards(made)))
            assert await client.flush()
            kinds = [one.kind for one in (await shop.events()).events]
            assert (kinds.count("rewarded"), kinds.count("observed")) == (4, 4)

    asyncio.run(use())


def test_what_can_be_no_reward_does_not_enter_the_buffer(tmp_path: Path) -> None:
    with shoal.Client("http://127.0.0.1:9", buffer=tmp_path / "rewards.db") as client:
        shop = client.population("x")
        for reward in (float("nan"), float("inf"), 1e40):
            with pytest.raises(
                ValueError, match=r"cannot be sent: .* at `\$.reward`, got .*(nan|inf|1e\+40)"
            ):
                shop.reward("one", reward)
            with pytest.raises(
                ValueError, match=r"cannot be sent: .* at `\$.reward`, got .*(nan|inf|1e\+40)"
            ):
                shop.reward_many([{"id": "one", "reward": 1.0}, {"id": "two", "reward": reward}])
        for bad in (
            {"id": ""},
            {"id": 7},
            {"id": "a" * 129},
            {"id": "a", "arm": 0.5},
            {"id": "a", "replaces": 1e40},
        ):
            with pytest.raises(ValueError, match=rf"cannot be sent: .* at `\$.{list(bad)[-1]}`"):
                shop.reward_many([{"id": "one", "reward": 1.0}, {"reward": 1.0, **bad}])
        with pytest.raises(ValueError, match="a reward has no 'value'"):
            shop.reward_many([{"id": "one", "value": 1.0}])
        with pytest.raises(ValueError, match="each reward must have 'reward'"):
            shop.reward_many([{"id": "one"}])
        assert client.buffer is not None
        assert len(client.buffer) == 0


def test_many_rewards_enter_the_buffer_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.live.client.clients.DEADLINE", 0.2)
    buffer = tmp_path / "rewards.db"
    with shoal.Client("http://127.0.0.1:9", buffer=buffer) as client:
        shop = client.population("x")
        with contextlib.closing(sqlite3.connect(buffer)) as other:
            other.execute(
                "CREATE TRIGGER full BEFORE INSERT ON waiting WHEN CAST(NEW.body AS TEXT) LIKE '%no room%'"
                " BEGIN SELECT RAISE(ABORT, 'no room'); END"
            )
        assert client.buffer is not None
        with pytest.raises(sqlite3.IntegrityError, match="no room"):
            shop.reward_many({"id": id, "reward": 1.0} for id in ("one", "two", "no room", "three"))
        assert len(client.buffer) == 0
        assert shop.reward_many([]) == []
        shop.reward_many({"id": id, "reward": 1.0} for id in ("one", "two"))
        assert len(client.buffer) == 2


def test_addresses_that_are_none() -> None:
    with pytest.raises(ValueError, match="url must begin with http"):
        shoal.Client("127.0.0.1:8000")
    for key in ("", "shoal_1_secret\n", "shoal 1"):
        with pytest.raises(ValueError, match="key must be as") as caught:
            shoal.Client("http://127.0.0.1:8000", key)
        assert "secret" not in str(caught.value)


def test_many_at_once_cost_no_more_than_a_few(running: InProcess) -> None:
    """Functions called by the client for a decision and its reward: as many among 160 as among 10."""

    async def calls(client: shoal.AsyncClient, at_once: int) -> float:
        cafe = await client.population("busy cafe", policy="independent", dim=2)

        async def pair(n: int) -> None:
            decision = await cafe.decide(f"agent {n % 5}", ARMS, deadline=60.0)
            await cafe.reward(decision.id, 1.0)

        await asyncio.gather(*(pair(n) for n in range(at_once)))  # connections are made
        count = 0

        def counted(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(counted)
        try:
            for _ in range(160 // at_once):
                await asyncio.gather(*(pair(n) for n in range(at_once)))
        finally:
            sys.setprofile(None)
        return count / 160

    async def measure() -> tuple[float, float]:
        async with shoal.AsyncClient(running.url, deadline=60.0) as client:
            few = await calls(client, 10)
        async with shoal.AsyncClient(running.url, deadline=60.0) as client:
            many = await calls(client, 160)
            assert len(client._idle) <= 160
        return few, many

    few, many = asyncio.run(measure())
    assert many < 1.5 * few


def test_no_more_connections_than_there_may_be(running: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.client.clients.CONNECTIONS", 3)

    async def ask() -> int:
        async with shoal.AsyncClient(running.url, deadline=30.0) as client:
            await asyncio.gather(*(client.populations() for _ in range(20)))
            return len(client._idle)

    assert asyncio.run(ask()) == 3
