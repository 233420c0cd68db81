"""Who may do what: every route, the page's too, by every kind of caller. One that is not in NEEDED fails."""

import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
from starlette.routing import Route
from tests.live.service.running import ARMS, Caller, InProcess, operation_of

from shoal.live.service import sessions
from shoal.live.service.keys import SCOPES

P, D = "/v1/populations/{population}", "/dashboard/{population}"
NEEDED = {
    "GET /livez": None,
    "GET /readyz": None,
    "GET /openapi.json": None,
    "GET /metrics": "read of all",
    "POST /session": None,
    "GET /session": "any",
    "DELETE /session": None,
    "GET /v1/populations": "any",
    f"PUT {P}": "admin",
    f"GET {P}": "read",
    f"POST {P}/decisions": "decide",
    f"POST {P}/decisions:batch": "decide",
    f"GET {P}/decisions/{{id}}": "read",
    f"DELETE {P}/decisions/{{id}}": "decide",
    f"PUT {P}/decisions/{{id}}/reward": "reward",
    f"POST {P}/rewards:batch": "reward",
    f"POST {P}/observations": "reward",
    f"GET {P}/catalogue": "read",
    f"PATCH {P}/catalogue": "admin",
    f"DELETE {P}/catalogue/{{arm}}": "admin",
    f"GET {P}/agents/{{agent}}": "read",
    f"PUT {P}/agents/{{agent}}": "admin",
    f"PUT {P}/agents/{{agent}}/features": "decide",
    f"DELETE {P}/agents/{{agent}}": "admin",
    f"GET {P}/agents/{{agent}}/explanation": "read",
    f"GET {P}/graph": "read",
    f"GET {P}/events": "read",
    f"GET {P}/settings": "read",
    f"PUT {P}/settings": "admin",
    f"GET {P}/dividend": "read",
    f"GET {P}/alarms": "read",
    f"GET {P}/contest": "read",
    f"PUT {P}/contest": "admin",
    f"DELETE {P}/contest": "admin",
    f"GET {P}/uplift": "read",
    f"GET {P}/evaluation": "read",
    f"POST {P}/evaluation": "read",
    f"POST {P}/what-if": "read",
    "POST /ofrep/v1/evaluate/flags/{population}": "decide",
    "POST /ofrep/v1/evaluate/flags": "any",
    "GET /": None,
    "GET /static/{path:path}": None,
    "GET /dashboard/refusals": "read of all",
    f"GET {D}/summary": "read",
    f"GET {D}/overview": "read",
    f"GET {D}/graph": "read",
    f"GET {D}/agents": "read",
    f"GET {D}/moment": "read",
    f"GET {D}/agents/{{agent}}": "read",
    f"GET {D}/arms": "read",
    f"GET {D}/settings": "read",
    f"GET {D}/live": "read",
}
"""The scope that each route needs: None for no key at all, "any" for any key."""

BODIES: dict[str, Any] = {
    f"PUT {P}": {"policy": "bass", "dim": 2},
    f"POST {P}/decisions": {"agent": "ada", "arms": ARMS},
    f"POST {P}/decisions:batch": {"requests": [{"agent": "ada", "arms": ARMS}]},
    f"PUT {P}/decisions/{{id}}/reward": {"reward": 1.0},
    f"POST {P}/rewards:batch": {"rewards": [{"id": "first", "reward": 1.0}]},
    f"POST {P}/observations": {"agent": "ada", "x": [1.0, 0.0], "reward": 1.0},
    f"PATCH {P}/catalogue": {"arms": ARMS},
    f"PUT {P}/agents/{{agent}}": {"sharing": "both"},
    f"PUT {P}/agents/{{agent}}/features": {"agent_features": [1.0]},
    f"PUT {P}/settings": {"policy": "bass"},
    f"POST {P}/evaluation": {"policy": "independent"},
    f"POST {P}/what-if": {"policy": "independent"},
    f"PUT {P}/contest": {"candidates": [{"policy": "independent"}], "share": 0.1},
    "POST /ofrep/v1/evaluate/flags/{population}": {"context": {"targetingKey": "ada"}},
    "POST /ofrep/v1/evaluate/flags": {"context": {"targetingKey": "ada"}},
    "POST /session": {"key": "shoal_nobody_nothing"},
}


class Keyed(NamedTuple):
    """A server with a key of each kind."""

    server: InProcess
    keys: dict[str, str]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    with InProcess(str(tmp_path_factory.mktemp("keys") / "shop.db")) as server:
        with Caller(server.url) as caller:  # there are no keys yet
            caller.make("shop")
            caller.make("other")
        keys = {scope: server.keys.add([scope], ["shop"])[1] for scope in SCOPES}
        keys["all"] = server.keys.add(SCOPES)[1]
        keys["foreign"] = server.keys.add(SCOPES, ["other"])[1]
        keys["expired"] = server.keys.add(SCOPES, expires_in=0.001)[1]
        revoked, keys["revoked"] = server.keys.add(SCOPES)
        server.keys.revoke(revoked.id)
        keys["wrong"] = keys["all"][:-4] + "AAAA"
        keys["nonsense"] = "shoal_"
        time.sleep(0.01)
        yield Keyed(server, keys)


def routes(server: InProcess) -> list[str]:
    """Every route of the application, with its method."""
    found = []
    for route in server.asgi.routes:
        assert isinstance(route, Route)
        found += [f"{method} {route.path}" for method in sorted(route.methods or ()) if method != "HEAD"]
    return found


def test_the_table_is_complete(keyed: Keyed) -> None:
    assert sorted(routes(keyed.server)) == sorted(NEEDED)


def outcome(keyed: Keyed, route: str, key: str | None) -> int:
    method, _, path = route.partition(" ")
    path = re.sub(r"\{(\w+)(?::path)?\}", lambda found: {"population": "shop"}.get(found[1], "nobody"), path)
    with Caller(keyed.server.url, key) as caller:
        if operation_of(method, path) is None:  # the page's, one of which has no end
            with caller.http.stream(method, path) as answer:
                return answer.status_code
        return caller(method, path, BODIES.get(route)).status_code


@pytest.mark.parametrize("route", NEEDED)
def test_each_route_with_each_key(keyed: Keyed, route: str) -> None:
    needed = NEEDED[route]
    for name in (None, "expired", "revoked", "wrong", "nonsense"):
        status = outcome(keyed, route, None if name is None else keyed.keys[name])
        if route == "POST /session":
            assert status == 401  # the body's key is nobody's
        else:
            assert (status == 401) == (needed is not None), (name, status)
    for name in (*SCOPES, "foreign", "all"):
        status = outcome(keyed, route, keyed.keys[name])
        if route == "POST /session":
            continue
        allowed = name == "all" or needed in (None, "any", name)
        assert (status == 403) == (not allowed), (name, status)
        assert status != 401, (name, status)


def test_populations_that_a_key_is_for(keyed: Keyed) -> None:
    with Caller(keyed.server.url, keyed.keys["foreign"]) as caller:
        assert caller("GET", "/v1/populations").json() == {"populations": ["other"]}
        assert caller("PUT", "/v1/populations/mine", {"policy": "bass", "dim": 2}).status_code == 403
        assert caller("GET", f"/v1/populations/{quote('other')}").status_code == 200
        assert caller("GET", "/v1/populations/%6Fther").status_code == 200


def test_nobody_is_told_where_the_store_is(keyed: Keyed) -> None:
    with Caller(keyed.server.url, keyed.keys["all"]) as caller:
        answer = caller("GET", "/v1/populations/nowhere")
        assert answer.status_code == 404
        assert "the store has no population 'nowhere'" in answer.json()["detail"]
        assert "shop.db" not in answer.text


def test_another_form_of_authorization(keyed: Keyed) -> None:
    answer = httpx.get(f"{keyed.server.url}/v1/populations", headers={"authorization": "Basic abc"})
    assert answer.status_code == 401
    assert "send `Authorization: Bearer KEY`" in answer.json()["detail"]


def test_an_unknown_population_lists_those_that_the_key_is_for(keyed: Keyed) -> None:
    text = keyed.server.keys.add(["read"], ["other", "nowhere"])[1]
    for path in ("/v1/populations/nowhere", f"{D.format(population='nowhere')}/overview?step=5"):
        with Caller(keyed.server.url, text) as caller:
            answer = caller("GET", path)
            assert answer.json()["detail"] == "the store has no population 'nowhere'; it has 'other'"


def test_revoked_at_once(keyed: Keyed) -> None:
    made, text = keyed.server.keys.add(["read"])
    with Caller(keyed.server.url, text) as caller:
        for _ in range(3):
            assert caller("GET", "/session").json()["id"] == made.id
        keyed.server.keys.revoke(made.id)
        assert caller("GET", "/session").status_code == 401


def test_a_browser_signs_in_and_out(keyed: Keyed) -> None:
    made, text = keyed.server.keys.add(["read", "decide"], ["shop"])
    with Caller(keyed.server.url) as caller:
        assert caller("POST", "/session", {"key": text + "x"}).status_code == 401
        answer = caller("POST", "/session", {"key": text})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert text not in cookie
        assert text.rpartition("_")[2] not in cookie
        assert caller("GET", "/session").json() == {
            "id": made.id,
            "scopes": ["decide", "read"],
            "populations": ["shop"],
        }
        assert caller("GET", "/v1/populations/shop").status_code == 200
        assert caller("GET", "/v1/populations/other").status_code == 403
        body = {"agent": "ada", "arms": ARMS}
        assert caller("POST", "/v1/populations/shop/decisions", body).status_code == 201
        evil = {"origin": "http://evil.example"}
        assert caller("POST", "/v1/populations/shop/decisions", body, headers=evil).status_code == 403
        assert caller("DELETE", "/session").status_code == 204
        assert caller("GET", "/session").status_code == 401
    with Caller(keyed.server.url) as caller:
        caller("POST", "/session", {"key": text})
        keyed.server.keys.revoke(made.id)
        assert caller("GET", "/session").status_code == 401
        for value in ("x", f"{made.id}.99999999999.x", "..", "é", f"{made.id}.soon.sig"):
            caller.http.cookies.clear()
            headers = {"cookie": f"shoal_session={value}".encode()}
            assert caller("GET", "/session", headers=headers).status_code == 401


def test_a_browser_is_signed_out_when_its_time_is_over(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    with Caller(keyed.server.url) as caller:
        cookie = (
            caller("POST", "/session", {"key": keyed.keys["all"]}).headers["set-cookie"].partition(";")[0]
        )
        caller.http.cookies.clear()  # a browser that keeps it longer than it was told to
        start = time.time()
        for seconds, status in ((sessions.LONGEST - 60.0, 200), (sessions.LONGEST + 60.0, 401)):
            monkeypatch.setattr(sessions, "time", SimpleNamespace(time=lambda at=start + seconds: at))
            assert caller("GET", "/session", headers={"cookie": cookie}).status_code == status


def test_the_first_key_closes_a_server_that_was_open(tmp_path: Any) -> None:
    with InProcess(str(tmp_path / "shop.db")) as server, Caller(server.url) as caller:
        assert caller("GET", "/session").json()["id"] == "anybody"
        made, text = server.keys.add(["read"])
        assert caller("GET", "/session").status_code == 401
        server.keys.revoke(made.id)
        assert caller("GET", "/session").status_code == 401  # and nothing opens it again
        assert text.startswith(f"shoal_{made.id}_")


def test_rates(keyed: Keyed) -> None:
    _, text = keyed.server.keys.add(["read", "decide"], rate=2.0)
    with Caller(keyed.server.url, text) as caller:
        answers = [caller("GET", "/v1/populations/shop") for _ in range(8)]
        assert [one.status_code for one in answers[:4]] == [200] * 4
        refused = answers[-1]
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
    _, text = keyed.server.keys.add(["decide"], rate=2.0)
    with Caller(keyed.server.url, text) as caller:
        batch = {"requests": [{"agent": "ada", "arms": ARMS}] * 5}
        assert caller("POST", "/v1/populations/shop/decisions:batch", batch).status_code == 200
        refused = caller(
            "POST", "/v1/populations/shop/decisions:batch", batch
        )  # a batch counts all its requests
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1


def test_signing_in_is_slow_per_address(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who guesses keys keeps nobody else out: behind a proxy, its callers' addresses count."""
    _, text = keyed.server.keys.add(["read"])
    monkeypatch.setattr(keyed.server.app, "behind_tls", True)
    with Caller(keyed.server.url) as caller:

        def sign_in(key: str, address: str) -> int:
            headers = {"x-forwarded-for": f"192.0.2.1, {address}"}
            return caller("POST", "/session", {"key": key}, headers=headers).status_code

        assert [sign_in("shoal_guess_guess", "198.51.100.7") for _ in range(30)].count(429) >= 10
        assert sign_in(text, "198.51.100.8") == 200


def test_a_key_that_decides_does_not_change_how_others_share(keyed: Keyed) -> None:
    path = "/v1/populations/shop/decisions"
    with Caller(keyed.server.url, keyed.keys["decide"]) as caller:
        body = {"agent": "newcomer", "arms": ARMS, "sharing": "borrow"}
        assert caller("POST", path, body).status_code == 201  # it joins that way
        assert caller("POST", path, body).status_code == 201  # and stays
        refused = caller("POST", path, {**body, "sharing": "none"})
        assert refused.status_code == 403
        assert "sharing must be 'borrow' or left out" in refused.json()["detail"]
        batch = caller("POST", f"{path}:batch", {"requests": [{**body, "sharing": "both"}, body]}).json()
        assert [one.get("problem", {}).get("status") for one in batch["results"]] == [403, None]
    with Caller(keyed.server.url, keyed.keys["all"]) as caller:
        assert caller("GET", "/v1/populations/shop/agents/newcomer").json()["sharing"] == "borrow"
        assert caller("POST", path, {**body, "sharing": "none"}).status_code == 201
        assert caller("GET", "/v1/populations/shop/agents/newcomer").json()["sharing"] == "none"


@pytest.mark.parametrize("second", ["authorization", "content-type"])
def test_headers_that_decide_are_given_once(keyed: Keyed, second: str) -> None:
    headers = [("authorization", f"Bearer {keyed.keys['all']}"), ("content-type", "application/json")]
    given = [*headers, (second, dict(headers)[second])]
    answer = httpx.get(f"{keyed.server.url}/v1/populations", headers=given)
    assert answer.status_code == 400
    assert second in answer.json()["detail"]
