"""The page's files, what it may ask for and who may, and the stream of what is new."""

import asyncio
import json
import re
import threading
import time
from pathlib import Path

import httpx
import pytest
from tests.live.service.dashboard.worlds import few
from tests.live.service.running import InProcess

from shoal.live.population.quotas import Quotas
from shoal.live.service.app import endpoints
from shoal.live.service.dashboard import handlers, watching
from shoal.live.service.keys import ANYBODY

PATHS = sorted(one.path for one in endpoints() if one.handler.__module__ == handlers.__name__)


@pytest.fixture(scope="module")
def open_server():  # type: ignore[no-untyped-def]
    with InProcess() as found:
        few(found.app.controller)
        yield found


def fill(path: str) -> str:
    return (
        path.replace("{population}", "shops").replace("{agent}", "shop%201").replace("{path:path}", "main.js")
    )


def test_the_page_and_its_files(open_server: InProcess) -> None:
    with httpx.Client(base_url=open_server.url) as http:
        page = http.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", page.text), (
            "a script or style in the page"
        )
        wanted = {*re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)}
        modules = [handlers.FILES[name].read_text() for name in handlers.FILES if name.endswith(".js")]
        wanted |= {f"/static/{name}" for text in modules for name in re.findall(r'from "\./(\w+\.js)"', text)}
        assert wanted <= {f"/static/{name}" for name in handlers.FILES}
        for path in wanted:
            found = http.get(path)
            assert found.status_code == 200, path
            assert found.headers["content-encoding"] == "gzip"
            again = http.get(path, headers={"if-none-match": found.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            plain = http.get(path, headers={"accept-encoding": "identity"})
            assert plain.content == found.content
            assert plain.content == handlers.FILES[path.removeprefix("/static/")].read_bytes()


def test_only_files_of_the_page_can_be_asked_for(open_server: InProcess) -> None:
    for path in (
        "handlers.py",
        "../handlers.py",
        "..%2Fhandlers.py",
        "%2e%2e/handlers.py",
        "",
        "/etc/passwd",
        "a%00",
    ):
        with httpx.Client(base_url=open_server.url) as http:
            assert http.get(f"/static/{path}").status_code == 404, path


def test_everything_is_small_and_licensed() -> None:
    files = [handlers.STATIC / "index.html", *handlers.FILES.values()]
    assert sum(path.stat().st_size for path in files) < 500_000
    for name in handlers.FILES:
        if name.startswith("vendor/") and name.endswith(".js"):
            licence = handlers.FILES[name.replace(".js", ".LICENSE")].read_text()
            assert "Permission is hereby granted" in licence, name
    strangers = [path for path in handlers.STATIC.rglob("*") if path.is_file() and path not in files]
    assert strangers == []


def test_nothing_on_the_page_is_asked_of_another_host() -> None:
    for name, path in handlers.FILES.items():
        if not name.startswith("vendor/"):
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text()), name


def test_data_needs_a_key_that_may_read_the_population(tmp_path: Path) -> None:
    with InProcess(str(tmp_path / "shop.db")) as server:
        few(server.app.controller, seconds=10.0)
        server.app.controller.population("other", policy="bass", dim=2, seed=1)
        keys = {
            scope: server.keys.add([scope], ["shops"])[1] for scope in ("read", "decide", "reward", "admin")
        }
        keys["foreign"] = server.keys.add(["read"], ["other"])[1]
        revoked, keys["revoked"] = server.keys.add(["read"])
        server.keys.revoke(revoked.id)
        keys["of all"] = server.keys.add(["read"])[1]
        keys["expired"] = server.keys.add(["read"], expires_in=0.001)[1]
        time.sleep(0.01)
        for path in PATHS:
            for name in (None, *keys):
                headers = {} if name is None else {"authorization": f"Bearer {keys[name]}"}
                with httpx.stream("GET", server.url + fill(path), headers=headers) as answer:
                    wanted = 200
                    if path.startswith("/dashboard/"):
                        wanted = {None: 401, "revoked": 401, "expired": 401, "of all": 200}.get(name, 403)
                        if name == "read" and "{population}" in path:  # the key is for one population
                            wanted = 200
                    assert answer.status_code == wanted, (path, name)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/dashboard/nobody/summary", 404),
        ("/dashboard/shops/agents/nobody", 404),
        ("/dashboard/shops/graph?at=0", 404),
        ("/dashboard/shops/graph?at=999999", 404),
        ("/dashboard/shops/graph?at=-1", 422),
        ("/dashboard/shops/graph?at=²", 422),
        ("/dashboard/shops/graph?at=1e9", 422),
        ("/dashboard/shops/overview?step=7", 422),
        ("/dashboard/shops/overview?step=" + "9" * 400, 422),
        ("/dashboard/shops/agents?start=99999999999999", 200),
        ("/dashboard/shops/agents?from=5&to=2", 200),
        ("/dashboard/shops/agents?search=%00", 200),
        ("/dashboard/sh%ffops/summary", 400),
        ("/dashboard/shops/graph?when=1", 422),
        ("/?when=1", 200),
    ],
)
def test_odd_requests(open_server: InProcess, path: str, status: int) -> None:
    assert httpx.get(open_server.url + path).status_code == status


def messages(url: str, count: int) -> list[dict[str, object]]:
    found = []
    with httpx.stream("GET", url, timeout=20.0) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                if len(found) == count:
                    return found
    return found


def test_what_is_new_is_told_once_a_second(open_server: InProcess) -> None:
    shops = open_server.app.controller.population("shops")
    stop = threading.Event()

    def live() -> None:
        while not stop.wait(0.01):
            shops.reward(shops.decide("shop 1").id, 0.5)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        began = time.monotonic()
        found = messages(f"{open_server.url}/dashboard/shops/live", 3)
        took = time.monotonic() - began
    finally:
        stop.set()
        thread.join()
    sequences = [one["sizes"]["sequence"] for one in found]  # type: ignore[index]
    assert sequences[0] < sequences[1] < sequences[2]
    assert took > 1.0
    last = found[-1]["slots"]["5"]  # type: ignore[index]
    assert sum(last["sums"]["decisions"]) > 10
    assert (found[-1]["refused"], found[-1]["unmatched"]) == (0, 0)
    with httpx.Client(base_url=open_server.url) as http:
        assert (
            http.put("/v1/populations/shops/decisions/nobody/reward", json={"reward": 1.0}).status_code == 404
        )
        shops.reward(shops.decide("shop 1").id, 0.5)
    assert messages(f"{open_server.url}/dashboard/shops/live", 2)[-1]["unmatched"] == 1


def test_a_change_of_settings_is_told(open_server: InProcess) -> None:
    shops = open_server.app.controller.population("shops")
    url = f"{open_server.url}/dashboard/shops"
    before = httpx.get(f"{url}/settings").json()
    (tick,) = messages(f"{url}/live", 1)
    assert tick["changed"] == before["changed"]
    shops.reward(shops.decide("shop 1").id, 0.5)
    time.sleep(1.1)
    (tick,) = messages(f"{url}/live", 1)
    assert tick["changed"] == before["changed"]  # decisions are no changes
    at = shops.switch(by="Ada", gamma=2.5)
    time.sleep(1.1)
    (tick,) = messages(f"{url}/live", 1)
    now = httpx.get(f"{url}/settings").json()
    assert tick["changed"] == now["changed"] == at
    assert (now["changes"][0]["sequence"], now["changes"][0]["by"]) == (at, "Ada")
    assert now["changes"][0]["differences"] == [{"name": "gamma", "before": 1.0, "after": 2.5}]


def test_refused_requests_by_status_for_keys_of_all_populations(tmp_path: Path) -> None:
    with InProcess(str(tmp_path / "shop.db")) as server:
        few(server.app.controller, seconds=5.0)
        keys = {
            "all": server.keys.add(["read", "decide"])[1],
            "one": server.keys.add(["read", "decide"], ["shops"])[1],
            "slow": server.keys.add(["read"], ["shops"], rate=0.1)[1],
        }
        decisions = "/v1/populations/shops/decisions"

        def answer(method: str, path: str, key: str | None = None, json: object = None) -> httpx.Response:
            headers = {} if key is None else {"authorization": f"Bearer {keys[key]}"}
            return httpx.request(method, server.url + path, headers=headers, json=json)

        def status(method: str, path: str, key: str | None = None, json: object = None) -> int:
            return answer(method, path, key, json).status_code

        asked_too_early = answer("GET", "/dashboard/refusals", "all").json()  # whether it was ready
        assert {one["status"] for one in asked_too_early} <= {503}
        assert [status("POST", decisions, json={"agent": "a"}) for _ in range(3)] == [401] * 3
        assert status("POST", decisions, "one", json={"agent": 5}) == 422
        assert status("POST", decisions, "one", json={"agent": "shop 1", "arms": 5}) == 422
        assert status("GET", "/dashboard/shops/overview?step=7", "one") == 422
        assert status("GET", "/nowhere") == 404
        assert status("GET", "/dashboard/refusals", "one") == 403
        statuses = [status("GET", "/v1/populations/shops", "slow") for _ in range(10)]
        assert statuses.count(429) > 0
        found = [
            one for one in answer("GET", "/dashboard/refusals", "all").json() if one not in asked_too_early
        ]
        assert {one["status"]: one["count"] for one in found} == {
            401: 3, 403: 1, 404: 1, 422: 3, 429: statuses.count(429)
        }  # fmt: skip
        assert [one["status"] for one in found] == sorted(one["status"] for one in found)
        by_status = {one["status"]: one for one in found}
        assert by_status[422]["meaning"] == "The request is not valid"
        assert by_status[422]["requests"] == [
            ["POST …/decisions", 2],
            ["GET /dashboard/{population}/overview", 1],
        ]
        assert by_status[404]["requests"] == [["GET of an unknown path", 1]]


def test_so_many_pages_and_no_more(open_server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_LISTENERS", 2)
    url = f"{open_server.url}/dashboard/shops/live"
    with httpx.stream("GET", url) as one, httpx.stream("GET", url) as two:
        assert (one.status_code, two.status_code) == (200, 200)
        third = httpx.get(url)
        assert (third.status_code, third.headers["retry-after"]) == (503, "5")
    deadline = time.monotonic() + 10
    while True:  # when they are closed, others may come
        with httpx.stream("GET", url) as answer:
            if answer.status_code == 200:
                break
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_page_that_leaves_before_its_stream_begins_is_not_counted(open_server: InProcess) -> None:
    assert httpx.get(f"{open_server.url}/dashboard/shops/summary").status_code == 200
    watch = open_server.app.watch
    known = watch._watched["shops"]
    before = known.listeners
    asyncio.run(watch.listen(known, ANYBODY))  # what it returns is never asked for a message
    assert known.listeners == before


def test_streams_end_when_the_server_stops() -> None:
    server = InProcess()
    server.waits_for_ever()
    few(server.app.controller, seconds=5.0)
    with httpx.stream("GET", f"{server.url}/dashboard/shops/live") as answer:
        lines = answer.iter_lines()
        next(lines)
        server.close()
        for _ in lines:
            pass


def test_a_page_asks_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STREAM", 1.5)
    with InProcess() as server:
        few(server.app.controller, seconds=5.0)
        assert len(messages(f"{server.url}/dashboard/shops/live", 100)) < 100  # it ends


def test_a_stream_ends_with_its_key_and_a_key_has_few_of_them(tmp_path: Path) -> None:
    with InProcess(str(tmp_path / "shop.db"), quotas=Quotas(streams=1)) as server:
        few(server.app.controller, seconds=5.0)
        url = f"{server.url}/dashboard/shops/live"
        revoked, text = server.keys.add(["read"])
        _, expiring = server.keys.add(["read"], expires_in=1.5)
        for key in (text, expiring):
            headers = {"authorization": f"Bearer {key}"}
            with httpx.stream("GET", url, headers=headers, timeout=20.0) as answer:
                lines = answer.iter_lines()
                next(lines)
                refused = httpx.get(url, headers=headers)
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
                assert refused.json()["limit"] == "streams"
                if key == text:
                    server.keys.revoke(revoked.id)
                assert sum(1 for _ in lines) < 30  # in the 300 s of a stream there are more
        assert server.app.watch._watched["shops"].listeners == 0
