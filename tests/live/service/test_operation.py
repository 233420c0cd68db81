"""The server as a process: where it listens, what it logs, how it stops, keys that others change."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from tests import commands
from tests.live.places import Place
from tests.live.service.running import ARMS, Caller, InProcess, Process, damage, wait_until

from shoal import Client
from shoal.cli.service import list_keys
from shoal.live.journal.stores.base import shown_url
from shoal.live.population.controller import open as open_controller
from shoal.live.protocol.errors import UnavailableError
from shoal.live.protocol.problems import AWAY, BusyError, problem_of


def shoal(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "shoal.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def add_key(url: str, *options: str) -> str:
    done = commands.call("keys", "add", url, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_a_key_only_this_machine(file: str) -> None:
    done = shoal("serve", file, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "host must be an address that only this machine can reach" in done.stderr
    assert "shoal keys add" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_life(durable: Place, tmp_path: Path) -> None:
    """Keys, decisions, revocation beside a running server, logs without names or secrets, and a clean end."""
    log = tmp_path / "log"
    key = add_key(
        durable.url, "--scope", "decide,reward,read,admin", "--population", "shop", "--expires", "90d"
    )
    with Process(durable.url, log=log) as server:
        server.wait_ready()
        with Caller(server.url, key) as call:
            shop = call.make("shop")
            secret_name = "Zaphod Beeblebrox"
            for n in range(20):
                made = call("POST", f"{shop}/decisions", {"agent": secret_name, "arms": ARMS, "id": f"d{n}"})
                assert made.status_code == 201
                assert call("PUT", f"{shop}/decisions/d{n}/reward", {"reward": 0.5}).status_code == 204
            call("GET", f"{shop}/agents/Zaphod%20Beeblebrox/explanation")
            call("GET", f"{shop}/agents/Zaphod%20Beeblebrox/explanation?other=Zaphod%20Beeblebrox")
            call("POST", f"{shop}/decisions", {"agent": secret_name, "arms": {"tea": [1.0]}})
            call("GET", f"{shop}/agents/Zaphod")
            assert call("GET", "/metrics").status_code == 403  # the key is for one population
            id = key.split("_")[1]
            listed = json.loads(commands.call("keys", "list", durable.url, "--json").stdout)
            assert [(one["id"], one["valid"], one["populations"]) for one in listed] == [(id, True, ["shop"])]
            assert commands.call("keys", "revoke", durable.url, id).returncode == 0
            patience = 0.0 if durable.kind == "sqlite" else 2.0  # which is told over the network
            if patience:
                wait_until(lambda: call("GET", shop).status_code == 401, patience)
            assert call("GET", shop).status_code == 401
        other = add_key(durable.url, "--scope", "decide", "--rate", "1000")
        with Caller(server.url, other) as call:
            wait_until(
                lambda: call("POST", f"{shop}/decisions", {"agent": "x", "arms": ARMS}).status_code == 201,
                3.0,
            )
        assert server.kill(signal.SIGTERM) == 0
    text = log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    requests = [line for line in lines if line["logger"] == "shoal.requests"]
    assert {"at", "request", "method", "route", "status", "ms", "key"} <= set(requests[0])
    assert any(
        line["route"] == "/v1/populations/{population}/agents/{agent}/explanation" for line in requests
    )
    for hidden in ("Zaphod", "Beeblebrox", key.split("_", 2)[2], other.split("_", 2)[2]):
        assert hidden not in text
    controller = open_controller(durable.url, lease=0.3)
    try:
        shop_ = controller.population("shop")
        assert shop_.sequence >= 42
        assert controller.verify() == {"shop": []}
    finally:
        controller.close()


def test_stopping_finishes_what_was_acknowledged_and_lets_go(durable: Place, tmp_path: Path) -> None:
    acknowledged: list[str] = []
    with Process(durable.url, log=tmp_path / "log") as server:
        server.wait_ready()
        with Caller(server.url) as call:
            call.make("shop")
        stop = threading.Event()

        def work(thread: int) -> None:
            with httpx.Client(base_url=server.url, timeout=30.0) as http:
                for n in range(100_000):
                    id = f"{thread}-{n}"
                    body = {"agent": f"agent {thread}", "arms": ARMS, "id": id}
                    try:
                        answer = http.post("/v1/populations/shop/decisions", json=body)
                    except httpx.TransportError:
                        return
                    if answer.status_code == 201:
                        acknowledged.append(id)
                    if stop.is_set():
                        return

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(acknowledged) > 50)
        code = server.kill(signal.SIGTERM)
        stop.set()
        for thread in threads:
            thread.join()
    assert code == 0
    assert "graceful" not in (tmp_path / "log").read_text()  # as uvicorn says if a request kept it waiting
    with closing(durable.store()) as store:
        assert [one.owner for one in store.standings().values()] == [""] * (durable.kind == "postgres")
    controller = open_controller(durable.url, lease=30.0)
    try:
        shop = controller.population("shop")
        before = shop.sequence
        for id in acknowledged:
            shop.decide(f"agent {id.split('-')[0]}", ARMS, id=id)
        assert shop.sequence == before
    finally:
        controller.close()


def test_a_second_server_on_the_same_file(file: str) -> None:
    with Process(file) as server:
        server.wait_ready()
        done = shoal("serve", file, "--port", "0")
        assert done.returncode == 2
        assert "is open for writing" in done.stderr
        assert "stop that process or, if it is a server, use its URL" in done.stderr


def test_ready_only_when_populations_are_open(durable: Place) -> None:
    if durable.kind != "postgres":
        pytest.skip("an SQLite file that somebody else writes to is not opened at all")
    owner = durable.open(lease=5.0)
    owner.population("shop", policy="bass", dim=2)
    with InProcess(durable.url, check_ready=False) as running:
        assert httpx.get(f"{running.url}/livez").status_code == 200
        with Caller(running.url) as call:
            answer = call("POST", "/v1/populations/shop/decisions", {"agent": "ada", "arms": ARMS})
            assert answer.status_code == 503
            assert answer.json()["type"].endswith("not-owner")
            assert "retry-after" in answer.headers
            owner.close()
            durable._open.clear()

            def decides() -> bool:
                body = {"agent": "ada", "arms": ARMS}
                return call("POST", "/v1/populations/shop/decisions", body).status_code == 201

            wait_until(decides, 20.0)
            wait_until(lambda: call("GET", "/readyz").status_code == 200)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("shop.db", "shop.db"),
        (":memory:", ":memory:"),
        ("postgresql://db.example/shop", "postgresql://db.example/shop"),
        ("postgresql://ada@db.example:5432/shop", "postgresql://ada@db.example:5432/shop"),
        ("postgresql://ada:hush@db.example,db2.example/shop", "postgresql://ada@db.example,db2.example/shop"),
        ("postgresql://ada:hu?sh=1@db.example/shop", "postgresql://ada@db.example/shop"),
        ("postgresql://ada@db.example/shop?password=hush", "postgresql://ada@db.example/shop"),
        ("postgresql://ada@/shop?host=/run&sslpassword=hu@sh", "postgresql://ada@/shop"),
        ("postgresql://db.example?password=hu@sh", "postgresql://db.example"),
        ("postgresql://ada:hu@sh@db.example/shop", "postgresql://…"),
        ("postgresql://ada:hu/sh@db.example/shop", "postgresql://…"),
    ],
)
def test_urls_are_shown_without_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert shown_url(shown) == shown


def test_clients_are_not_told_where_the_store_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a store that fails clients get a fixed text; what the driver said is in the log, and not often."""
    said = 'postgresql://ada@db.example/shop failed: connection to server at "10.0.0.9", port 5432 failed'
    with InProcess() as running, Caller(running.url) as call:
        shop = call.make()
        running.app.store = "postgresql://ada@db.example/shop"

        def fail(*_: object) -> None:
            raise UnavailableError(said, 3.0)

        monkeypatch.setattr("shoal.live.service.routing.authorise", fail)
        for _ in range(3):
            answer = call("GET", shop)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "3"
            assert answer.json()["detail"] == AWAY
    assert [one.getMessage() for one in caplog.records if "10.0.0.9" in one.getMessage()] == [said]
    problem = problem_of(BusyError("2,000 requests are under way"))
    assert problem.detail == "2,000 requests are under way"


def test_a_damaged_population_is_named_and_the_others_are_served(
    durable: Place, caplog: pytest.LogCaptureFixture
) -> None:
    controller = durable.open()
    for name in ("good", "bad"):
        shop = controller.population(name, "independent", 2)
        shop.reward(shop.decide("ada", ARMS).id, 1.0)
    durable.close()
    damage(durable, "bad")
    with InProcess(durable.url, check_ready=False) as running, Caller(running.url) as call:
        wait_until(lambda: running.app.is_prepared)
        answer = call("GET", "/readyz")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
        assert answer.json()["type"] == "urn:shoal:problem:damaged"
        assert answer.json()["detail"] == "1 of 2 populations cannot be opened: 'bad'"
        for method, path, body in (("GET", "", None), ("POST", "/decisions", {"agent": "ada", "arms": ARMS})):
            assert call(method, f"/v1/populations/good{path}", body).status_code in (200, 201)
            for _ in range(2):
                refused = call(method, f"/v1/populations/bad{path}", body)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
                assert refused.json()["detail"].startswith("record 2 cannot be read")
        assert "shoal_damaged_populations 1.0" in call("GET", "/metrics").text
        assert call("PUT", "/v1/populations/bad", {"policy": "bass", "dim": 2}).status_code == 503
        running.keys.add(["read"])
        wait_until(lambda: call("GET", "/v1/populations").status_code == 401)
        assert call("GET", "/readyz").json()["detail"] == "1 of 2 populations cannot be opened"
        with (
            Client(running.url, running.keys.add(["read"])[1], deadline=5.0) as client,
            pytest.raises(UnavailableError, match="record 2 cannot be read"),
        ):
            client.population("bad").explain("ada")
    said = [record.getMessage() for record in caplog.records if "cannot be opened" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("population 'bad' cannot be opened: record 2 cannot be read")


def test_what_is_damaged_is_tried_again(durable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = durable.open()
    shop = controller.population("shop", "independent", 2)
    shop.reward(shop.decide("ada", ARMS).id, 1.0)
    durable.close()
    body = damage(durable, "shop")
    with InProcess(durable.url, check_ready=False) as running, Caller(running.url) as call:
        wait_until(lambda: running.app.is_prepared)
        assert call("GET", "/v1/populations/shop").status_code == 503
        damage(durable, "shop", body)  # as whoever puts a record back would
        assert call("GET", "/v1/populations/shop").status_code == 503  # not read at each request
        monkeypatch.setattr("shoal.live.service.service.RETRY", 0.0)
        assert call("GET", "/v1/populations/shop").status_code == 200
        answer = call("GET", "/readyz")
        assert (answer.status_code, answer.json()["detail"]) == (200, "1 population")


@pytest.mark.slow
def test_nothing_is_compiled_after_warm(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when a population is made nor when its journal is read again."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert shoal("warm", "independent").returncode == 0
    compiled = sorted((tmp_path / "cache").rglob("numba-*/*"))
    assert compiled
    for n in range(2):
        with Process(file) as server, Caller(server.url) as call:
            server.wait_ready()
            shop = call.make("shop", policy="independent")
            call("POST", f"{shop}/decisions", {"agent": f"agent {n}", "arms": ARMS, "id": f"d{n}"})
            call("PUT", f"{shop}/decisions/d{n}/reward", {"reward": 1.0})
            assert call("GET", f"{shop}/agents/agent 0/explanation").status_code == 200
            assert server.kill(signal.SIGTERM) == 0
    assert sorted((tmp_path / "cache").rglob("numba-*/*")) == compiled


def test_tls(file: str, tmp_path: Path) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl is not installed here")
    options = ["--certificate", str(tmp_path / "cert.pem"), "--private-key", str(tmp_path / "key.pem")]
    key = add_key(file, "--scope", "read")
    with Process(file, *options) as server:
        assert server.url.startswith("https://")
        import ssl

        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        with httpx.Client(verify=context, base_url=server.url) as http:
            wait_until(lambda: http.get("/livez").status_code == 200)
            cookie = http.post("/session", json={"key": key}).headers["set-cookie"]
            assert "; Secure" in cookie


def test_behind_a_proxy_that_ends_tls(file: str) -> None:
    done = shoal("serve", file, "--port", "0", "--behind-tls")
    assert done.returncode == 2
    assert "behind_tls needs a key" in done.stderr
    key = add_key(file, "--scope", "read")
    for options, is_secure in (((), False), (("--behind-tls",), True)):
        with Process(file, *options) as server, httpx.Client(base_url=server.url) as http:
            wait_until(lambda http=http: http.get("/livez").status_code == 200)  # type: ignore[misc]
            claimed = {"x-forwarded-proto": "https", "forwarded": "proto=https"}  # anybody can
            signed_in = http.post("/session", json={"key": key}, headers=claimed)
            assert ("; Secure" in signed_in.headers["set-cookie"]) == is_secure
            signed_out = http.delete("/session")
            assert ("; Secure" in signed_out.headers["set-cookie"]) == is_secure
            assert http.get("/v1/populations").status_code == 401


def test_ids_of_keys_can_be_copied(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    key = add_key(
        file, "--scope", "decide,reward,read,admin", "--expires", "90d", "--note", "the web shop of the north"
    )
    list_keys(file, as_json=False)
    assert key.split("_")[1] in capsys.readouterr().out


def test_a_port_that_is_taken(file: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = shoal("serve", file, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "cannot listen there" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scope", "everything"], "scope must be one of"),
        (["--scope", ""], "scope must be one of"),
        (["--scope", "read", "--expires", "soon"], "expires must be such as 90d"),
    ],
)
def test_keys_that_cannot_be(file: str, arguments: list[str], said: str) -> None:
    done = commands.call("keys", "add", file, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_key_for_a_population_that_does_not_exist(durable: Place) -> None:
    """The key is made: the population may be, too."""
    scope = "--scope", "read"
    done = commands.call("keys", "add", durable.url, *scope, "--population", "shop")
    assert "the store has no population 'shop' yet; it has none\n" in done.stderr
    with durable.open() as controller:
        controller.population("shop", policy="bass", dim=2)
        controller.population("clinic", policy="bass", dim=2)
    populations = "--population", "shop", "--population", "shp"
    for whom in ([], ["--user", "ada"]):
        done = commands.call("keys", "add", durable.url, *scope, *populations, *whom)
        assert done.returncode == 0
        assert "no population 'shp' yet; it has 'clinic', 'shop'\n" in done.stderr
        assert done.stderr.count("warning") == 1
    assert "warning" not in commands.call("keys", "add", durable.url, *scope).stderr
    listed = json.loads(commands.call("keys", "list", durable.url, "--json").stdout)
    assert [one["populations"] for one in listed] == [["shop"], ["shop", "shp"], ["shop", "shp"], None]


def test_a_key_nobody_has(file: str) -> None:
    add_key(file, "--scope", "read")
    done = commands.call("keys", "revoke", file, "nobody")
    assert done.returncode == 2
    assert "no key 'nobody'" in done.stderr
    assert os.stat(file).st_size > 0
