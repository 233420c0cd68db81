"""Several servers on one database: who takes what, what is passed on, what a request can and cannot do."""

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from tests.commands import Done, call
from tests.live.places import Place
from tests.live.service.running import ARMS, Caller, InProcess, Process, damage, wait_until

import shoal
from shoal.live.journal.stores.base import SCHEMA, PopulationOwner
from shoal.live.journal.stores.postgres import PostgresStore
from shoal.live.population.servers import View, move, new_name, preferred, server_url, url_of
from shoal.live.protocol.errors import (
    ControllerError,
    JournalError,
    NotOwnerError,
    UnavailableError,
    UnknownError,
)
from shoal.live.service import routing
from shoal.live.service.callers import authorise
from shoal.live.service.keys import SCOPES
from shoal.live.service.server import serve
from shoal.live.service.service import RETRY

LEASE = 1.0
NAMES = [f"shop {n}" for n in range(6)]


class Two:
    """Two servers on one database, and the populations that each owns."""

    def __init__(self, place: Place, stack: ExitStack, lease: float = LEASE, **options: Any) -> None:
        self.place = place
        self.first, self.second = (
            stack.enter_context(InProcess(place.url, shares=True, lease=lease, **options)) for _ in range(2)
        )

    def __iter__(self) -> Iterator[InProcess]:
        return iter((self.first, self.second))

    def owner(self, population: str) -> InProcess | None:
        """Whoever owns a population, by the database."""
        store = self.place.store()
        try:
            url = url_of(store.standings(population)[population].owner)
        finally:
            store.close()
        return next((one for one in self if one.url == url), None)


@pytest.fixture
def two(shared: Place) -> Iterator[Two]:
    with ExitStack() as stack:
        yield Two(shared, stack)


def decide(call: Caller, path: str, id: str) -> httpx.Response:
    return call("POST", f"{path}/decisions", {"agent": "ada", "arms": ARMS, "id": id})


def run_cli(*arguments: str, code: int = 0) -> Done:
    done = call("population", *arguments, COLUMNS="200")
    assert done.returncode == code, done.stderr
    return done


def metric(server: InProcess, name: str, **labels: str) -> float:
    return server.app.metrics.registry.get_sample_value(name, labels) or 0.0


def test_whoever_is_asked_first_owns_it_and_the_other_passes_on(two: Two) -> None:
    with Caller(two.first.url) as one, Caller(two.second.url) as other:
        shop = one.make("shop")
        assert two.owner("shop") is two.first
        assert decide(other, shop, "d1").status_code == 201
        assert other("PUT", f"{shop}/decisions/d1/reward", {"reward": 1.0}).status_code == 204
        batch = {"requests": [{"agent": "ben", "arms": ARMS, "id": f"b{n}"} for n in range(5)]}
        made = other("POST", f"{shop}/decisions:batch", batch)
        assert [result["decision"]["id"] for result in made.json()["results"]] == [f"b{n}" for n in range(5)]
        assert other("GET", shop).json() == one("GET", shop).json()
        tag = other("GET", shop).headers["etag"]
        assert other("GET", shop, headers={"if-none-match": tag}).status_code == 304
        refused = other("PUT", f"{shop}/decisions/d1/reward", {"reward": 2.0})
        assert (refused.status_code, refused.json()["recorded"]) == (409, 1.0)
        assert other("GET", f"{shop}/agents/nobody").status_code == 404
        assert other("GET", f"{shop}/graph?at=3").json() == one("GET", f"{shop}/graph?at=3").json()
        assert other.http.head(shop).headers["etag"] == one.http.head(shop).headers["etag"]
        assert other("GET", "/v1/populations").json() == {"populations": ["shop"]}
        assert two.second.app.populations == {}
        assert metric(two.second, "shoal_forwarded_total", result="answered") >= 9
        assert metric(two.second, "shoal_owned_populations") == 0.0
        assert metric(two.first, "shoal_owned_populations") == 1.0
        assert "shoal_forwarded_total" in other("GET", "/metrics").text


def test_names_with_a_slash_and_the_id_of_a_request_are_passed_on(two: Two) -> None:
    with Caller(two.first.url) as one, Caller(two.second.url) as other:
        shop = one.make("caf%C3%A9%2Fbar")
        assert decide(other, shop, "d/1").status_code == 201
        answer = other("GET", f"{shop}/decisions/d%2F1", headers={"x-request-id": "0123456789abcdef"})
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == "0123456789abcdef"


def test_pages_and_streams_are_passed_on(two: Two) -> None:
    with Caller(two.first.url) as one, Caller(two.second.url) as other:
        decide(one, one.make("shop"), "d1")
        here, there = (httpx.get(f"{server.url}/dashboard/shop/graph").json() for server in two)
        assert here == there
        with other.http.stream("GET", "/dashboard/shop/live") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            text = ""
            for part in stream.iter_text():
                text += part
                if "event: tick" in text:
                    break
        assert "retry: 2000" in text


def test_each_takes_its_share_of_what_nobody_owns(shared: Place) -> None:
    controller = shared.open()
    for name in NAMES:
        controller.population(name, "independent", 2)
    with ExitStack() as stack:
        two = Two(shared, stack, lease=20.0, check_ready=False)  # both start while somebody owns all of it
        for server in two:
            wait_until(lambda server=server: httpx.get(f"{server.url}/livez").status_code == 200)  # type: ignore[misc]
            ownership = server.app.ownership
            assert ownership is not None
            wait_until(lambda ownership=ownership: len(ownership._servers) == 2)  # type: ignore[misc]
        shared.close()
        wait_until(lambda: all(two.owner(name) for name in NAMES), 10.0)
        names = [server.app.ownership.name for server in two if server.app.ownership]
        for name in NAMES:
            owner = two.owner(name)
            assert owner is not None
            assert owner.app.ownership is not None
            assert owner.app.ownership.name == preferred(name, names)


def test_a_clean_stop_hands_over_at_once(shared: Place) -> None:
    with InProcess(shared.url, shares=True, lease=30.0) as stays, Caller(stays.url) as call:
        with InProcess(shared.url, shares=True, lease=30.0) as leaves, Caller(leaves.url) as other:
            shop = other.make("shop")
            assert decide(call, shop, "d1").status_code == 201
            assert stays.app.populations == {}
        wait_until(
            lambda: "shop" in stays.app.populations, 20.0
        )  # nobody asks for it, nor has the lease ended
        assert decide(call, shop, "d1").status_code == 201
        assert call("GET", shop).json()["sequence"] == 3


def test_readers_do_not_keep_a_server_from_taking_over(shared: Place) -> None:
    """While what reads whole journals has all of its threads, a population is found, opened and served."""
    owner = shared.open(lease=60.0)
    owner.population("shop", "independent", 2)
    go_on = threading.Event()
    with InProcess(shared.url, shares=True, lease=60.0) as server, Caller(server.url) as call:
        try:
            for _ in range(8):
                server.app._slow.submit(go_on.wait, 60.0)
            shared.close()
            wait_until(lambda: "shop" in server.app.populations, 30.0)  # nobody asks for it
            assert decide(call, "/v1/populations/shop", "d1").status_code == 201
            assert not go_on.is_set()
        finally:
            go_on.set()


def test_streams_that_are_passed_on_end_with_the_server(shared: Place) -> None:
    """A page at a server, of a population that another owns, does not keep the server from stopping."""
    begun, seen = threading.Event(), []

    def look(url: str) -> None:
        with httpx.stream("GET", f"{url}/dashboard/shop/live", timeout=60.0) as stream:
            for part in stream.iter_text():
                seen.append(part)
                begun.set()

    with InProcess(shared.url, shares=True, lease=30.0) as stays, Caller(stays.url) as call:
        call.make("shop")
        leaves = InProcess(shared.url, shares=True, lease=30.0)
        leaves.waits_for_ever()
        page = threading.Thread(target=look, args=(leaves.url,), daemon=True)
        page.start()
        try:
            assert begun.wait(10.0)
        finally:
            leaves.close()
        page.join(10.0)
        assert not page.is_alive()
        assert "retry: 2000" in "".join(seen)


def test_a_stream_whose_first_part_comes_while_the_server_stops_ends(shared: Place) -> None:
    """The owner is slow to begin: the answer that then comes is ended, too."""
    asked, go_on = threading.Event(), threading.Event()

    def own() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            asked.set()
            go_on.wait(10.0)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            with suppress(OSError):
                connection.recv(1)  # until the other end closes it

    with socket.create_server(("127.0.0.1", 0)) as listener:
        owner = shared.open(lease=60.0)
        owner.share(new_name(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        owner.population("shop", "independent", 2)
        threads = [threading.Thread(target=own, daemon=True)]
        server = InProcess(shared.url, shares=True, lease=LEASE)
        server.waits_for_ever()
        path = f"{server.url}/dashboard/shop/live"
        threads.append(
            threading.Thread(target=httpx.get, args=(path,), kwargs={"timeout": 60.0}, daemon=True)
        )
        for thread in threads:
            thread.start()
        try:
            assert asked.wait(10.0)
            server._server.should_exit = True
            wait_until(server.app.stopping.is_set, 5.0)
            go_on.set()
        finally:
            server.close()
        for thread in threads:
            thread.join(10.0)


def test_what_a_silent_server_owned_is_taken_after_its_lease(shared: Place) -> None:
    owner = shared.open(lease=LEASE)
    owner.share(new_name("http://127.0.0.1:9"))  # where nobody listens
    owner.population("shop", "bass", 2, seed=1)
    with InProcess(shared.url, shares=True, lease=LEASE) as server, Caller(server.url) as call:
        refused = decide(call, "/v1/populations/shop", "d1")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert metric(server, "shoal_forwarded_total", result="failed") == 1.0
        shared.crash(owner)
        wait_until(lambda: decide(call, "/v1/populations/shop", "d1").status_code == 201, 10.0)


def test_a_population_without_its_first_record(shared: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A crash came while it was made: nobody takes it, and whoever asks may make it."""
    store = shared.store()
    number = store.create("shop")
    with ExitStack() as stack:
        stack.callback(store.close)
        two = Two(shared, stack)
        time.sleep(1.5 * LEASE)  # after which any server takes what nobody owns
        assert store.epoch(number) == 0
        assert caplog.records == []
        with Caller(two.first.url) as one, Caller(two.second.url) as other:
            assert other("GET", "/v1/populations/shop").status_code == 404
            shop = one.make("shop")
            wait_until(lambda: decide(other, shop, "d1").status_code == 201, 5.0)
        assert two.owner("shop") is two.first


def test_what_cannot_be_opened_is_tried_now_and_then(two: Two) -> None:
    """Whatever the reason; without being asked for, not each time that somebody looks."""
    ownership = two.first.app.ownership
    assert ownership is not None
    free, now = PopulationOwner(1, 1, "", ownership.name), time.monotonic()
    reasons: list[tuple[ControllerError, bool]] = [
        (JournalError("damaged"), False), (UnknownError("no first record"), False),
        (NotOwnerError("another was faster"), True), (UnavailableError("the store is away"), True),
    ]  # fmt: skip
    for error, is_tried in reasons:
        ownership._failed["shop"] = (now, error)
        assert ownership._is_ours_to_take("shop", free, now) == is_tried
        assert ownership._is_ours_to_take("shop", free, now + 1.01 * RETRY)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", 503),
        (b"HTTP/1.1 200 OK\r\ncontent-le", 503),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhalf of it", 503),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 503),
        (b"\x00\xff" * 500, 503),
        (b"HTTP/1.1 302 Found\r\nlocation: http://evil.example/\r\ncontent-length: 0\r\n\r\n", 302),
        (b"HTTP/1.1 404 Not Found\r\nset-cookie: a=b\r\nx-evil: 1\r\ncontent-length: 2\r\n\r\n{}", 404),
    ],
)
def test_answers_of_an_owner_that_is_none_of_ours(shared: Place, answer: bytes, status: int) -> None:
    """Whoever listens at the owner's address: its answer is passed on, or there is none; nothing hangs."""
    asked: list[bytes] = []

    def listen() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    asked.append(connection.recv(65536))
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        owner = shared.open(lease=60.0)
        owner.share(new_name(f"http://127.0.0.1:{port}"))
        owner.population("shop", "independent", 2)
        thread = threading.Thread(target=listen)
        thread.start()
        with InProcess(shared.url, shares=True, lease=LEASE) as server:
            path = f"{server.url}/v1/populations/shop?x=%20y"
            headers = {"x-request-id": "0123456789abcdef", "x-forwarded-for": "1.2.3.4", "cookie": "c=d"}
            found = httpx.get(path, headers=headers, timeout=20.0)
            assert found.status_code == status
            assert ("retry-after" in found.headers) == (status == 503)
            assert not {"set-cookie", "x-evil"} & set(found.headers)
            assert httpx.get(f"{server.url}/readyz").status_code == 200
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10.0)
    head, *sent = asked[0].removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert head == b"GET /v1/populations/shop?x=%20y HTTP/1.1"
    assert sorted(sent) == [
        b"cookie: c=d", b"host: 127.0.0.1:%d" % port, b"x-request-id: 0123456789abcdef", b"x-shoal-hop: 1",
    ]  # fmt: skip


def test_a_server_that_was_taken_from_passes_on(two: Two) -> None:
    with Caller(two.first.url) as one, Caller(two.second.url) as other:
        shop = one.make("shop")
        decide(one, shop, "d1")
        ownership = two.second.app.ownership
        assert ownership is not None
        with closing(PostgresStore(two.place.url)) as store:
            # At once: the first server renews its lease all the while.
            with store._on("write") as db, db.transaction():
                db.execute("UPDATE shoal_population SET lease_until = now() - interval '1 second'")
                taken = store.take(store.populations()["shop"], ownership.name, 60.0)
            store.release(taken)
        refused = decide(one, shop, "d2")
        assert refused.status_code in (201, 503)
        wait_until(lambda: decide(one, shop, "d2").status_code == 201, 10.0)
        wait_until(lambda: decide(other, shop, "d3").status_code == 201, 10.0)
        assert one("GET", shop).json()["sequence"] == 5


def test_no_log_holds_a_name(shared: Place, tmp_path: Path) -> None:
    with Process(shared.url, log=tmp_path / "1") as first, Process(shared.url, log=tmp_path / "2") as second:
        first.wait_ready()
        second.wait_ready()
        with Caller(first.url) as one, Caller(second.url) as other:
            shop = one.make("shop")
            body = {"agent": "Zaphod", "arms": ARMS}
            assert other("POST", f"{shop}/decisions", body).status_code == 201
            assert other("GET", f"{shop}/agents/Zaphod").status_code == 200
        for server in (second, first):
            assert server.kill(signal.SIGTERM) == 0
    for number in "12":
        text = (tmp_path / number).read_text()
        assert "/v1/populations/{population}/agents/{agent}" in text
        assert "Zaphod" not in text


# Moving


@pytest.mark.slow
def test_moved(two: Two) -> None:
    with Caller(two.first.url) as one, Caller(two.second.url) as other:
        shop = one.make("shop")
        decide(one, shop, "d1")
        done = run_cli("move", two.place.url, "shop", "--to", two.second.url)
        assert done.stdout == f"'shop' goes to {two.second.url}, from {two.first.url}\n"
        wait_until(lambda: two.owner("shop") is two.second, 10.0)
        wait_until(lambda: decide(one, shop, "d2").status_code == 201, 10.0)
        wait_until(lambda: two.first.app.populations == {}, 10.0)  # when it looks next
        assert metric(two.first, "shoal_lost_total") == 1.0
        assert decide(other, shop, "d1").json() == decide(one, shop, "d1").json()
        assert one("GET", shop).json()["sequence"] == 4
        assert "already" in run_cli("move", two.place.url, "shop", "--to", f"{two.second.url}/").stdout
        (listed,) = json.loads(run_cli("list", two.place.url, "--json").stdout)
        assert listed["owner"] == two.second.url
        assert two.second.url in run_cli("list", two.place.url).stdout


def test_moved_under_load(two: Two) -> None:
    """Back and forth while threads decide: all is answered in the end, and recorded once."""
    with Caller(two.first.url) as call:
        call.make("shop")
    stop, errors, made = threading.Event(), list[Exception](), list[str]()

    def work(number: int) -> None:
        try:
            with shoal.Client([two.first.url, two.second.url][number % 2], deadline=60.0) as client:
                shop = client.population("shop")
                for n in range(100_000):
                    if stop.is_set():
                        return
                    shop.decide("ada", ARMS, id=f"{number}-{n}")
                    made.append(f"{number}-{n}")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    store = PostgresStore(two.place.url)
    for target in (two.second, two.first, two.second):
        before = len(made)
        move(store, "shop", target.url)
        wait_until(lambda target=target: two.owner("shop") is target, 20.0)  # type: ignore[misc]
        wait_until(lambda before=before: len(made) > before + 20 or bool(errors), 30.0)  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join(60.0)
    rows = [row.decision for row in store.read(store.populations()["shop"], 0) if row.decision]
    store.close()
    assert errors == []
    assert sorted(rows) == sorted(made)


def test_a_request_let_in_before_a_move_does_not_undo_it(two: Two) -> None:
    """Its body comes when the population has been moved, and the other server has not taken it yet."""
    there = two.second.app.ownership
    assert there is not None
    there._is_ours_to_take = lambda *_: False  # type: ignore[method-assign]
    with Caller(two.first.url) as one:
        shop = one.make("shop")
    body = json.dumps({"agent": "ada", "arms": ARMS, "id": "d1"}).encode()
    head = f"POST {shop}/decisions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    store = PostgresStore(two.place.url)
    with socket.create_connection(("127.0.0.1", two.first.port), timeout=20.0) as slow:
        slow.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:10])
        time.sleep(0.2)
        known = two.first.app.populations["shop"].population
        move(store, "shop", two.second.url)
        wait_until(lambda: known.owner.is_lost, 5.0)
        slow.sendall(body[10:])
        assert slow.recv(4096).startswith(b"HTTP/1.1 503 ")
    assert store.standings()["shop"].owner == ""
    store.close()


def test_an_owner_hears_of_a_move_at_once(shared: Place) -> None:
    """It is notified; its next beat is far away."""
    with ExitStack() as stack:
        two = Two(shared, stack, lease=60.0)
        with Caller(two.first.url) as one:
            shop = one.make("shop")
            known = two.first.app.populations["shop"].population
            store = PostgresStore(shared.url)
            move(store, "shop", two.second.url)
            store.close()
            wait_until(lambda: known.owner.is_lost, 5.0)
            wait_until(lambda: one("GET", shop).status_code == 200, 10.0)
        assert two.owner("shop") is two.second


def test_moves_that_cannot_be(two: Two) -> None:
    store = PostgresStore(two.place.url)
    try:
        with pytest.raises(UnknownError, match=f"no server at http://10.0.0.9:1; .*{two.first.url}"):
            move(store, "shop", "http://10.0.0.9:1")
        with pytest.raises(UnknownError, match="no population 'shop'"):
            move(store, "shop", two.first.url)
        with pytest.raises(ValueError, match="the URL of a server must be such as"):
            move(store, "shop", "10.0.0.9")
    finally:
        store.close()
    assert "STORE must be postgresql" in run_cli("move", "shop.db", "shop", "--to", "http://x", code=2).stderr


def test_a_server_that_does_not_take_what_it_was_given(two: Two) -> None:
    """It may be wedged; after one lease, somebody else does."""
    with Caller(two.first.url) as one:
        shop = one.make("shop")
        ownership = two.second.app.ownership
        assert ownership is not None
        ownership._is_ours_to_take = lambda *_: False  # type: ignore[method-assign]
        store = PostgresStore(two.place.url)
        start = time.monotonic()
        move(store, "shop", two.second.url)
        store.close()
        wait_until(lambda: two.owner("shop") is two.first, 10.0)
        assert time.monotonic() - start > 0.5 * LEASE
        wait_until(lambda: decide(one, shop, "d1").status_code == 201, 10.0)


def test_looking_goes_on_whatever_goes_wrong(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    ownership = two.first.app.ownership
    assert ownership is not None
    directory, looked = ownership._directory, threading.Event()
    look = directory.look

    def fail() -> View:
        directory.look = look_again  # type: ignore[method-assign]
        raise TypeError("nobody thought of this")

    def look_again() -> View:
        looked.set()
        return look()

    directory.look = fail  # type: ignore[method-assign]
    assert looked.wait(5.0)
    assert "nobody thought of this" in caplog.text


# Damaged journals


def test_a_damaged_population_makes_one_server_unready_and_the_rest_is_served(shared: Place) -> None:
    controller = shared.open()
    for name in NAMES:
        controller.population(name, "independent", 2).decide("ada", ARMS)
    shared.close()
    damage(shared, NAMES[0])
    with ExitStack() as stack:
        two = Two(shared, stack, check_ready=False)

        def unready() -> list[InProcess]:
            return [server for server in two if httpx.get(f"{server.url}/readyz").status_code == 503]

        wait_until(lambda: all(two.owner(name) for name in NAMES[1:]))
        wait_until(lambda: all(server.app.damage(NAMES[0]) for server in two))  # each has tried
        wait_until(lambda: len(unready()) == 1)
        (one,) = unready()
        assert one.app.ownership is not None
        assert preferred(NAMES[0], one.app.ownership._servers) == one.app.ownership.name
        with Caller(one.url) as call:
            ready = call("GET", "/readyz").json()
            assert ready["type"] == "urn:shoal:problem:damaged"
            assert ready["detail"].endswith(f"populations cannot be opened: {NAMES[0]!r}")
        for server in two:
            with Caller(server.url) as call:
                for name in NAMES[1:]:
                    assert call("GET", f"/v1/populations/{name}").status_code == 200
                refused = call("GET", f"/v1/populations/{NAMES[0]}")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
                assert refused.json()["detail"].startswith("record 2 cannot be read")
        with psycopg.connect(shared.url, autocommit=True) as db:
            db.execute("DELETE FROM shoal_population WHERE name = %s", (NAMES[0],))
        wait_until(lambda: unready() == [], 10.0)


# Other versions


def test_a_newer_schema_is_refused_by_name_and_what_is_owned_is_kept(two: Two) -> None:
    said = rf"has schema {SCHEMA + 1}, and this is shoal [\w.]+, which reads schema {SCHEMA}$"
    with Caller(two.first.url) as one, Caller(two.second.url) as other:
        mine, yours = one.make("mine"), other.make("yours")
        with psycopg.connect(two.place.url, autocommit=True) as db:
            db.execute("INSERT INTO shoal_schema VALUES (%s)", (SCHEMA + 1,))
        ownership = two.first.app.ownership
        assert ownership is not None
        wait_until(lambda: bool(ownership.trouble), 5.0)
        assert re.search(said, ownership.trouble)
        assert decide(one, mine, "d1").status_code == 201
        assert decide(one, yours, "d1").status_code == 201  # passed on
        two.second.close()
        time.sleep(1.5 * LEASE)
        refused = decide(one, yours, "d2")
        assert refused.status_code == 503
        assert re.search(said, refused.json()["detail"])
        assert decide(one, mine, "d2").status_code == 201
        ready = one("GET", "/readyz")
        assert ready.status_code == 200
        assert re.search(said, ready.json()["detail"])
        with pytest.raises(JournalError, match=said):
            two.place.store()
        store = two.first.app.controller.store  # opened when the schema was ours
        with pytest.raises(NotOwnerError, match=said):
            store.take(store.populations()["yours"], "somebody", LEASE)
        assert store.standings()["yours"].owner == ""


# What a request can and cannot do


def test_one_hop_only(two: Two) -> None:
    with Caller(two.first.url) as one, Caller(two.second.url) as other:
        shop = one.make("shop")
        headers = {"x-shoal-hop": "1"}
        answer = other("GET", shop, headers=headers)
        assert answer.status_code == 503
        assert answer.json()["type"].endswith("not-owner")
        assert int(answer.headers["retry-after"]) >= 1
        assert one("GET", shop, headers=headers).status_code == 200


def test_keys_are_looked_at_by_both(shared: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        two = Two(shared, stack)
        with Caller(two.first.url) as one:
            shop = one.make("shop")
        good = two.first.keys.add(SCOPES)[1]
        other = two.first.keys.add(SCOPES, ["other"])[1]
        gone, revoked = two.first.keys.add(SCOPES)
        two.first.keys.revoke(gone.id)
        wait_until(lambda: all(len(server.keys.all()) == 3 for server in two), 5.0)
        for hop in ({}, {"x-shoal-hop": "1"}):
            for server in two:
                for key, status in ((None, 401), (revoked, 401), (other, 403), ("shoal_x_y", 401)):
                    with Caller(server.url, key) as call:
                        assert call("GET", shop, headers=hop).status_code == status
        with Caller(two.second.url, good) as call:
            assert call("GET", shop).status_code == 200
        # The owner does not take the other server's word: one that checks nothing gets nowhere.
        any_key = two.second.keys.all()[0]
        monkeypatch.setattr(
            routing,
            "authorise",
            lambda service, *rest: any_key if service is two.second.app else authorise(service, *rest),
        )
        for key, status in ((None, 401), (revoked, 401), (other, 403), (good, 200)):
            with Caller(two.second.url, key) as call:
                assert call("GET", shop).status_code == status


def test_a_browser_is_known_to_all_that_share_a_secret(shared: Place) -> None:
    from shoal.live.service.sessions import Sessions

    with ExitStack() as stack:
        two = Two(shared, stack)
        with Caller(two.first.url) as one:
            shop = one.make("shop")
        key = two.first.keys.add(SCOPES)[1]
        wait_until(lambda: two.second.keys.exist(), 5.0)
        with Caller(two.second.url) as call:
            assert call("POST", "/session", {"key": key}).status_code == 200
            assert call("GET", "/session").status_code == 200
            assert call("GET", shop).status_code == 401  # the owner does not know the cookie
        for server in two:
            server.app.sessions = Sessions("a secret of all servers together")
        with Caller(two.second.url) as call:
            assert call("POST", "/session", {"key": key}).status_code == 200
            assert call("GET", shop).status_code == 200
            evil = {"origin": "http://evil.example"}
            assert call("DELETE", f"{shop}/agents/ada", headers=evil).status_code == 403
    with pytest.raises(ValueError, match="SHOAL_SESSION_SECRET must have at least 32 characters, got 5"):
        Sessions("short")


@pytest.mark.parametrize(
    "url",
    ["", "shop", "ftp://host", "http://", "http://user:pw@host", "http://host/path", "http://host?x=1",
     "http://host:port", "file:///etc/passwd", "http://host#x"],
)  # fmt: skip
def test_urls_that_no_server_has(url: str) -> None:
    with pytest.raises(ValueError, match=r"the URL of a server must be such as http://10\.0\.0\.5:8000"):
        server_url(url)
    assert url_of(f"{url}#0123") is None or "#" in url


def test_owners_that_are_not_servers_are_not_called() -> None:
    assert url_of("process 12 on host") is None
    assert url_of("http://10.0.0.5:8000") is None  # without a process's own digits
    assert url_of(new_name("http://10.0.0.5:8000/")) == "http://10.0.0.5:8000"
    assert url_of(new_name("https://[::1]:8000")) == "https://[::1]:8000"


def test_what_a_server_cannot_advertise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="advertise is for servers that share a PostgreSQL database"):
        serve(str(tmp_path / "shop.db"), advertise="http://10.0.0.5:8000")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="the URL of a server must be such as"):
        serve("postgresql://nobody@127.0.0.1:1/none", advertise="10.0.0.5:8000")


def test_a_server_advertises_where_it_listens(shared: Place) -> None:
    with Process(shared.url, "--advertise", "http://localhost:1") as first, Process(shared.url) as second:
        first.wait_ready()
        second.wait_ready()
        with psycopg.connect(shared.url) as db:
            rows = db.execute("SELECT name FROM shoal_server WHERE until > now()").fetchall()
        assert {url_of(name) for (name,) in rows} == {"http://localhost:1", second.url}
