"""Who did what: the audit log, keys that rotate, and users whom a proxy signs in."""

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.machines.cluster import wait_for
from tests.live.places import Place
from tests.live.service.running import ARMS, Caller, InProcess, Process
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.live.protocol.errors import UnknownError
from shoal.live.service.keys import SCOPES, open_keys
from shoal.live.service.logs import writer
from shoal.live.service.server import serve
from shoal.live.service.sessions import Proxy, Sessions

P = "/v1/populations/{population}"


class Audited:
    """A server with keys, and what its audit log says."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.file = path / "audit.jsonl"
        self.server = InProcess(
            str(path / "shop.db"), audit=writer("shoal.audit", str(self.file)), is_open=False, **options
        )
        self.key, text = self.server.keys.add(SCOPES)
        self.call = Caller(self.server.url, text)
        self.call.make("shop")
        self.file.unlink()

    def lines(self) -> list[tuple[Any, ...]]:
        """What was written since the last look: key, method, route, population and status."""
        found = (
            [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        )
        self.file.unlink(missing_ok=True)
        names = ("key", "method", "route", "population", "status")
        return [tuple(line[name] for name in names) for line in found]


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Audited]:
    found = Audited(tmp_path)
    yield found
    found.call.close()
    found.server.close()


# The audit log


def test_what_is_audited(audited: Audited) -> None:
    call, key = audited.call, audited.key.id
    shop = "/v1/populations/shop"
    for method, path, body in (
        ("POST", f"{shop}/decisions", {"agent": "agatha", "arms": ARMS, "id": "first"}),
        ("PUT", f"{shop}/decisions/first/reward", {"reward": 1.0}),
        ("GET", shop, None),
        ("GET", f"{shop}/agents/agatha", None),
        ("GET", "/v1/populations", None),
    ):
        assert call(method, path, body).status_code < 300
    assert audited.lines() == []
    assert call("GET", f"{shop}/agents/agatha/explanation").status_code == 200
    assert call.http.get("/dashboard/shop/agents/agatha").status_code == 200
    assert call("PATCH", f"{shop}/catalogue", {"arms": ARMS}).status_code == 204
    assert call("PATCH", f"{shop}/catalogue", {"arms": {}}).status_code == 422
    assert call("GET", f"{shop}/agents/agatha/explanation?other=agatha").status_code in (200, 422)
    assert call("DELETE", f"{shop}/agents/agatha").status_code == 204
    text = audited.file.read_text()
    assert "agatha" not in text
    lines = audited.lines()
    assert [line[:4] for line in lines] == [
        (key, "GET", f"{P}/agents/{{agent}}/explanation", "shop"),
        (key, "GET", "/dashboard/{population}/agents/{agent}", "shop"),
        (key, "PATCH", f"{P}/catalogue", "shop"),
        (key, "PATCH", f"{P}/catalogue", "shop"),
        (key, "GET", f"{P}/agents/{{agent}}/explanation", "shop"),
        (key, "DELETE", f"{P}/agents/{{agent}}", "shop"),
    ]
    assert [line[4] for line in lines[2:4]] == [204, 422]


def test_denials_and_sign_in(audited: Audited) -> None:
    other, text = audited.server.keys.add(["read"], ["elsewhere"])
    with Caller(audited.server.url, text) as call:
        assert call("GET", "/v1/populations/shop").status_code == 403
        assert call("POST", "/v1/populations/shop/decisions", {"agent": "ada"}).status_code == 403
    with Caller(audited.server.url) as call:
        assert call("GET", "/v1/populations/agatha").status_code == 401
        assert call("POST", "/session", {"key": "shoal_nobody_nothing"}).status_code == 401
        assert call("POST", "/session", {"key": text}).status_code == 200
    assert audited.lines() == [
        (other.id, "GET", P, "shop", 403),
        (other.id, "POST", f"{P}/decisions", "shop", 403),
        (None, "GET", P, None, 401),
        ("", "POST", "/session", None, 401),
        (other.id, "POST", "/session", None, 200),
    ]


def test_strangers_cannot_fill_the_disk(audited: Audited) -> None:
    with Caller(audited.server.url) as call:
        for _ in range(100):
            assert call("GET", "/v1/populations/shop").status_code == 401
    found = [json.loads(line) for line in audited.file.read_text().splitlines()]
    assert 20 <= len(found) < 60
    assert audited.call("PATCH", "/v1/populations/shop/catalogue", {"arms": ARMS}).status_code == 204
    last = json.loads(audited.file.read_text().splitlines()[-1])
    assert last["left_out"] + sum(line["left_out"] for line in found) + len(found) == 100


def test_a_rotated_file_and_one_that_cannot_be_written(audited: Audited, caplog: Any) -> None:
    call = audited.call
    call("PATCH", "/v1/populations/shop/catalogue", {"arms": ARMS})
    audited.file.rename(audited.file.with_suffix(".1"))
    call("PATCH", "/v1/populations/shop/catalogue", {"arms": ARMS})
    assert len(audited.lines()) == 1
    audited.file.mkdir()
    assert call("PATCH", "/v1/populations/shop/catalogue", {"arms": ARMS}).status_code == 204
    assert "the audit log cannot be written" in caplog.text
    audited.file.rmdir()


def test_the_command_s_options(tmp_path: Path) -> None:
    store, file = str(tmp_path / "shop.db"), tmp_path / "audit.jsonl"
    keys = open_keys(store)
    _, text = keys.add(SCOPES)
    keys.add(["read"], note="user:ada@example.com")
    keys.close()
    options = ("--audit", str(file), "--proxy", "127.0.0.1", "--user-header", "X-Forwarded-Email")
    with Process(store, *options) as server:
        with Caller(server.url, text) as call:
            call.make("shop", policy="independent", parameters={})
        with Caller(server.url) as call:
            found = call("GET", "/v1/populations/shop", headers={"x-forwarded-email": "ada@example.com"})
            assert found.status_code == 200
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["logger"], line["method"], line["status"]) == ("shoal.audit", "PUT", 201)
    assert file.stat().st_mode & 0o077 == 0


# Keys that rotate


def test_rotating(durable: Place) -> None:
    keys = open_keys(durable.url)
    try:
        old, text = keys.add(["decide", "read"], ["shop"], expires_in=1_000.0, rate=5.0, note="web")
        time.sleep(0.02)
        new, fresh = keys.rotate(old.id, grace=100.0)
        assert (new.scopes, new.populations, new.rate, new.note) == (old.scopes, old.populations, 5.0, "web")
        assert new.expires is not None
        assert new.expires - new.made == pytest.approx(1_000.0, abs=1e-3)
        assert keys.check(text) is not None
        assert keys.check(fresh) is not None
        ends = keys.find(old.id)
        assert ends is not None
        assert ends.expires == pytest.approx(new.made + 100.0, abs=5.0)
        keys.rotate(old.id, grace=5_000.0)  # which does not make it live longer
        again = keys.find(old.id)
        assert again is not None
        assert again.expires == ends.expires
        keys.rotate(new.id)
        assert keys.check(fresh) is None
        with pytest.raises(ValueError, match="id must be of a valid key"):
            keys.rotate(new.id)
        with pytest.raises(UnknownError, match="no key 'nobody'"):
            keys.rotate("nobody")
        with pytest.raises(ValueError, match="grace"):
            keys.rotate(old.id, grace=-1.0)
        lasting, _ = keys.add(["read"])
        assert keys.rotate(lasting.id, grace=50.0)[0].expires is None
        ended = keys.find(lasting.id)
        assert ended is not None
        assert ended.expires is not None
    finally:
        keys.close()


def test_rotating_by_command(tmp_path: Path) -> None:
    store = str(tmp_path / "shop.db")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["keys", *arguments])

    made = run("add", store, "--scope", "read").stdout.strip()
    done = run("rotate", store, made.split("_")[1], "--grace", "1h")
    assert done.exit_code == 0
    fresh = done.stdout.strip().splitlines()[0]
    keys = open_keys(store)
    try:
        assert keys.check(made) is not None
        assert keys.check(fresh) is not None
        assert run("rotate", store, made.split("_")[1]).exit_code == 0
        assert keys.check(made) is None
    finally:
        keys.close()
    assert "grace must be such as" in str(
        run("rotate", store, fresh.split("_")[1], "--grace", "soon").exception
    )
    assert "key" in run("add", store, "--scope", "read", "--user", "ada").stdout
    assert "user must be a name" in str(
        run("add", store, "--scope", "read", "--user", "a", "--note", "b").exception
    )


# Users whom a proxy signs in


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Audited]:
    """A server whose proxy has another address of this machine."""
    found = Audited(tmp_path, proxy=Proxy(frozenset({"127.0.0.7"}), b"x-forwarded-user"))
    yield found
    found.call.close()
    found.server.close()


def ask(port: int, source: str, *headers: tuple[str, str], path: str = "/session") -> tuple[int, Any]:
    """A request from one of this machine's addresses; status and answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, source_address=(source, 0), timeout=60)
    try:
        connection.putrequest("GET", path)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_the_header_is_believed_only_from_the_proxy(proxied: Audited) -> None:
    server, port = proxied.server, proxied.server.port
    ada, _ = server.keys.add(["read"], ["shop"], note="user:ada@example.com")
    says = ("X-Forwarded-User", "ada@example.com")
    status, who = ask(port, "127.0.0.7", says)
    assert (status, who["id"], who["scopes"]) == (200, ada.id, ["read"])
    for source in ("127.0.0.1", "127.0.0.8"):
        assert ask(port, source, says)[0] == 401
        forged = ("X-Forwarded-For", "127.0.0.7"), ("Forwarded", "for=127.0.0.7"), ("X-Real-IP", "127.0.0.7")
        assert ask(port, source, says, *forged)[0] == 401
    assert ask(port, "127.0.0.7")[0] == 401
    assert ask(port, "127.0.0.7", says, ("X-Forwarded-User", "root"))[0] == 400
    assert ask(port, "127.0.0.7", ("X-Forwarded-User", "ben@example.com"))[0] == 403
    assert ask(port, "127.0.0.7", ("X-Forwarded-User", ""))[0] == 403
    assert ask(port, "127.0.0.7", says, path="/metrics")[0] == 403  # the key's scopes hold
    assert ask(port, "127.0.0.7", says, ("Authorization", "Bearer shoal_nobody_nothing"))[0] == 401
    server.keys.revoke(ada.id)
    assert ask(port, "127.0.0.7", says)[0] == 403


def test_a_user_s_own_key_comes_before_that_for_all(proxied: Audited) -> None:
    server, port = proxied.server, proxied.server.port
    everybody, _ = server.keys.add(["read"], note="user:*")
    own, _ = server.keys.add(["read", "admin"], note="user:ada")
    server.keys.add(["read", "admin"], note="ada")
    assert ask(port, "127.0.0.7", ("X-Forwarded-User", "ada"))[1]["id"] == own.id
    assert ask(port, "127.0.0.7", ("X-Forwarded-User", "ben"))[1]["id"] == everybody.id
    ask(port, "127.0.0.7", ("X-Forwarded-User", "ben"), path="/metrics?x=1")
    ask(port, "127.0.0.7", ("X-Forwarded-User", "ben"), path="/v1/populations/shop/agents/x/explanation")
    line = json.loads(proxied.file.read_text().splitlines()[-1])
    assert (line["key"], line["user"], line["status"]) == (everybody.id, "ben", 404)


def test_a_user_is_passed_on_to_the_owner(server: Any) -> None:
    """By a signed cookie: servers share SHOAL_SESSION_SECRET, and do not believe each other's headers."""
    place, secret = Place("postgres", server.room()), "s" * 40
    proxy = Proxy(frozenset({"127.0.0.7"}), b"x-forwarded-user")
    options: dict[str, Any] = {"shares": True, "lease": 30.0, "proxy": proxy}
    try:
        with (
            InProcess(place.url, sessions=Sessions(secret), **options) as first,
            InProcess(place.url, sessions=Sessions(secret), **options) as second,
        ):
            _, text = first.keys.add(SCOPES)
            first.keys.add(["read"], note="user:ada")
            wait_for(
                lambda: second.keys.check(text) and second.keys.of_user("ada")
            )  # the notice takes a moment
            with Caller(second.url, text) as call:
                call.make("shop", policy="independent", parameters={})
            assert not first.app.is_here("shop")
            status, found = ask(
                first.port, "127.0.0.7", ("X-Forwarded-User", "ada"), path="/v1/populations/shop"
            )
            assert (status, found["name"]) == (200, "shop")
            status, _ = ask(first.port, "127.0.0.1", ("X-Forwarded-User", "ada"), path="/v1/populations/shop")
            assert status == 401
    finally:
        place.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"proxies": ["127.0.0.1"]}, "needs an address and a header"),
        ({"user_header": "X-User"}, "needs an address and a header"),
        ({"proxies": ["127.0.0.1"], "user_header": "Cookie"}, "user_header must be the name of a header"),
        ({"proxies": ["127.0.0.1"], "user_header": "a b"}, "user_header must be the name of a header"),
        ({"proxies": ["proxy.example"], "user_header": "X-User"}, "proxy.example"),
        ({"proxies": ["127.0.0.1"], "user_header": "X-User"}, "a proxy needs a key"),
    ],
)
def test_a_proxy_that_cannot_be(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        serve(str(tmp_path / "shop.db"), port=0, **options)
