"""What the API does, request by request; each answer is checked against the OpenAPI document."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.live.service.running import ARMS, DOCUMENT, Caller, InProcess, wait_until

from shoal.live.journal.stores.sqlite import SQLiteStore

TYPE = "urn:shoal:problem:"


def kind(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["type"].removeprefix(TYPE)


def test_a_population_is_made_once_and_found_again(call: Caller) -> None:
    body = {"policy": "bass", "dim": 2, "parameters": {"seed": 3, "alpha": 0.5}, "reward_range": [-1, 1]}
    made = call("PUT", "/v1/populations/made once", body)
    assert made.status_code == 201
    assert made.json()["parameters"]["alpha"] == 0.5
    again = call("PUT", "/v1/populations/made once", body)
    assert (again.status_code, again.json()) == (200, made.json())
    assert kind(call("PUT", "/v1/populations/made once", {**body, "dim": 3})) == (409, "conflict")
    assert call("GET", "/v1/populations/made once").json()["reward_range"] == [-1.0, 1.0]
    assert "made once" in call("GET", "/v1/populations").json()["populations"]


@pytest.mark.parametrize("policy", ["bas", "club"])
def test_a_refused_policy_lists_those_for_live_use(call: Caller, policy: str) -> None:
    refused = call("PUT", "/v1/populations/refused", {"policy": policy, "dim": 2})
    assert kind(refused) == (422, "invalid")
    live = "one for live use (independent, oracle, bass, cluster_mixture, or a shoal.LivePolicy of your own)"
    assert f"policy must be {live}, got {policy!r}" in refused.json()["detail"]


@pytest.mark.parametrize("policy", ["independent", "bass", "cluster_mixture"])
def test_a_policy_and_a_dimension_are_enough(call: Caller, policy: str) -> None:
    made = call("PUT", f"/v1/populations/plain {policy}", {"policy": policy, "dim": 4})
    assert (made.status_code, made.json()["parameters"]["alpha"]) == (201, 0.6)


@pytest.mark.parametrize("policy", ["independent", "bass"])
def test_noise_that_is_estimated_is_null(call: Caller, policy: str) -> None:
    body = {"policy": policy, "dim": 2, "parameters": {"noise_scale": None}}
    assert call("PUT", f"/v1/populations/noisy {policy}", body).json()["parameters"]["noise_scale"] is None
    assert call("GET", f"/v1/populations/noisy {policy}").json()["parameters"]["noise_scale"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"policy": "os:system", "dim": 2},
        {"policy": "club", "dim": 2},
        {"policy": "shoal.core.policies.bass:BASS", "dim": 2},
        {"policy": "bass", "dim": 0},
        {"policy": "bass", "dim": 5000},
        {"policy": "bass"},
        {"policy": "bass", "dim": 2, "parameters": {"name": "x"}},
        {"policy": "bass", "dim": 2, "parameters": {"policy": "club"}},
        {"policy": "bass", "dim": 2, "parameters": {"alpha": -1}},
        {"policy": "bass", "dim": 2, "parameters": {"alpha": "wide"}},
        {"policy": "bass", "dim": 2, "parameters": {"unheard of": 1}},
        {"policy": "bass", "dim": 2, "parameters": {"epsilon": 0.5}},
        {"policy": "bass", "dim": 2, "explore": 2.0},
        {"policy": "bass", "dim": 2, "default_reward": 0.0},
        {"policy": "oracle", "dim": 2},
        {"policy": "bass", "dim": 2, "surprise": 1},
    ],
)
def test_settings_that_cannot_be(call: Caller, body: object) -> None:
    assert kind(call("PUT", "/v1/populations/never", body)) == (422, "invalid")
    assert "never" not in call("GET", "/v1/populations").json()["populations"]


def test_a_decision_its_reward_and_its_correction(call: Caller, shop: str) -> None:
    made = call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": "one"})
    assert made.status_code == 201
    where = made.headers["location"]
    assert where.endswith("/decisions/one")
    assert (
        call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": "one"}).json() == made.json()
    )
    assert call("PUT", f"{where}/reward", {"reward": 1.0}).status_code == 204
    before = call("GET", shop).json()["sequence"]
    assert call("PUT", f"{where}/reward", {"reward": 1}).status_code == 204
    assert call("GET", shop).json()["sequence"] == before
    other = call("PUT", f"{where}/reward", {"reward": 0.5})
    assert kind(other) == (409, "conflict")
    assert other.json()["recorded"] == 1.0
    assert call("PUT", f"{where}/reward", {"reward": 0.5, "replaces": 1.0}).status_code == 204
    assert call("GET", where).json()["rewards"] == [0.5]


def test_another_payload_under_the_same_id(call: Caller, shop: str) -> None:
    call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": "one"})
    again = call("POST", f"{shop}/decisions", {"agent": "bob", "arms": ARMS, "id": "one"})
    assert kind(again) == (422, "id-reused")
    call("POST", f"{shop}/observations", {"agent": "ada", "x": [1, 0], "reward": 1.0, "id": "two"})
    again = call("POST", f"{shop}/observations", {"agent": "ada", "x": [1, 0], "reward": 2.0, "id": "two"})
    assert kind(again) == (422, "id-reused")


def test_cancelled_unknown_and_forgotten(call: Caller, shop: str) -> None:
    call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": "one"})
    assert call("DELETE", f"{shop}/decisions/one").status_code == 204
    assert call("DELETE", f"{shop}/decisions/one").status_code == 204
    assert kind(call("PUT", f"{shop}/decisions/one/reward", {"reward": 1.0})) == (409, "conflict")
    assert kind(call("PUT", f"{shop}/decisions/two/reward", {"reward": 1.0})) == (404, "unknown")
    assert kind(call("GET", f"{shop}/agents/bob")) == (404, "unknown")
    assert kind(call("GET", "/v1/populations/nowhere")) == (404, "unknown")
    assert kind(call("GET", "/v1/nothing")) == (404, "unknown")
    call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": "three"})
    assert call("DELETE", f"{shop}/agents/ada").status_code == 204
    assert kind(call("GET", f"{shop}/agents/ada")) == (410, "gone")
    assert kind(call("PUT", f"{shop}/decisions/three/reward", {"reward": 1.0})) == (410, "gone")
    assert kind(call("DELETE", f"{shop}/agents/ada")) == (410, "gone")


@pytest.mark.parametrize("name", ["a/b", "ä b", "..", ".", "%41", "?q=1", "#", "a\nb", "🐟", ":batch", " "])
def test_names_of_all_kinds(call: Caller, shop: str, name: str) -> None:
    encoded = quote(name, safe="").replace(".", "%2E")
    made = call("POST", f"{shop}/decisions", {"agent": name, "arms": ARMS})
    assert made.json()["agent"] == name
    assert call("GET", f"{shop}/agents/{encoded}").json()["name"] == name
    assert call("GET", f"{shop}/agents/{encoded}/explanation").json()["agent"] == name


def test_batches(call: Caller, shop: str) -> None:
    requests = [{"agent": f"agent {n}", "arms": ARMS, "id": f"d{n}"} for n in range(4)]
    requests[2]["arms"] = {"tea": [1.0]}
    results = call("POST", f"{shop}/decisions:batch", {"requests": requests}).json()["results"]
    assert ["decision" in one for one in results] == [True, True, False, True]
    assert results[2]["problem"]["status"] == 422
    rewards = [{"id": f"d{n}", "reward": 1.0} for n in range(4)] + [{"id": "d0", "reward": 2.0}]
    results = call("POST", f"{shop}/rewards:batch", {"rewards": rewards}).json()["results"]
    assert [one.get("problem", {}).get("status") for one in results] == [None, None, 404, None, 409]
    assert results[4]["problem"]["recorded"] == 1.0
    assert call("POST", f"{shop}/decisions:batch", {"requests": []}).json() == {"results": []}
    many = {"rewards": [{"id": "d0", "reward": 1.0}] * 1001}
    assert kind(call("POST", f"{shop}/rewards:batch", many)) == (422, "invalid")


def test_the_catalogue(call: Caller, shop: str) -> None:
    assert kind(call("POST", f"{shop}/decisions", {"agent": "ada"})) == (422, "invalid")
    assert call("PATCH", f"{shop}/catalogue", {"arms": ARMS}).status_code == 204
    assert call("GET", f"{shop}/catalogue").json()["arms"] == ARMS
    assert call("POST", f"{shop}/decisions", {"agent": "ada"}).json()["arm"] in ARMS
    some = call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ["coffee", "water"], "scores": True})
    assert set(some.json()["scores"]) == {"coffee", "water"}
    assert kind(call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ["milk"]})) == (404, "unknown")
    assert call("DELETE", f"{shop}/catalogue/tea").status_code == 204
    assert kind(call("DELETE", f"{shop}/catalogue/tea")) == (404, "unknown")
    assert list(call("GET", f"{shop}/catalogue").json()["arms"]) == ["coffee", "water"]
    learned = call("POST", f"{shop}/observations", {"agent": "ada", "arm": "water", "reward": 1.0, "id": "o"})
    assert learned.json() == {"new": True}
    again = call("POST", f"{shop}/observations", {"agent": "ada", "arm": "water", "reward": 1.0, "id": "o"})
    assert again.json() == {"new": False}
    both = {"agent": "ada", "arm": "water", "x": [1, 0], "reward": 1.0}
    assert call("POST", f"{shop}/observations", both).json() == {"new": True}
    assert kind(call("POST", f"{shop}/observations", {"agent": "ada", "reward": 1.0})) == (422, "invalid")


def test_rankings_and_arms_without_names(call: Caller, shop: str) -> None:
    body = {"agent": "ada", "arms": [[1, 0], [0, 1], [0.6, 0.8]], "top": 2, "id": "r"}
    made = call("POST", f"{shop}/decisions", body).json()
    assert len(made["ranking"]) == 2
    assert made["probability"] is None
    first = made["ranking"][0]
    assert kind(call("PUT", f"{shop}/decisions/r/reward", {"reward": 1.0})) == (422, "invalid")
    assert call("PUT", f"{shop}/decisions/r/reward", {"reward": 1.0, "arm": first}).status_code == 204
    assert call("GET", f"{shop}/decisions/r").json()["rewards"] == [1.0, None]


def test_who_shares_with_whom(call: Caller, shop: str) -> None:
    for n in range(200):
        agent, liking = ("ada", "tea") if n % 2 else ("bob", "coffee")
        made = call("POST", f"{shop}/decisions", {"agent": agent, "arms": ARMS}).json()
        reward = 5.0 if made["arm"] == liking else -5.0
        call("PUT", f"{shop}/decisions/{made['id']}/reward", {"reward": reward})
    graph = call("GET", f"{shop}/graph").json()
    assert (graph["agents"], graph["edges"]) == (["bob", "ada"], [[], []])
    early = call("GET", f"{shop}/graph?at=6").json()
    assert early["edges"] == [[1], []]
    said = call("GET", f"{shop}/agents/ada/explanation").json()
    assert [one["agent"] for one in said["stopped"]] == ["bob"]
    pair = call("GET", f"{shop}/agents/ada/explanation?other=bob").json()
    assert pair["together"] is False
    assert pair["sequence"] == said["stopped"][0]["sequence"]
    cut = [one for one in call("GET", f"{shop}/events?limit=1000").json()["events"] if one.get("cut")]
    assert [one["sequence"] for one in cut] == [pair["sequence"]]
    assert kind(call("GET", f"{shop}/graph?at=99999")) == (404, "unknown")
    assert kind(call("GET", f"{shop}/graph?at=-1")) == (422, "invalid")
    assert kind(call("GET", f"{shop}/graph?until=1")) == (422, "invalid")


def test_agents_who_are_described(call: Caller) -> None:
    shop = call.make("described", policy="cluster_mixture", parameters={"seed": 1, "agent_dim": 2})
    arms = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0]}
    body = {"agent": "ada", "arms": arms, "agent_features": [34.0, None]}
    assert call("POST", f"{shop}/decisions", body).status_code == 201
    assert call("PUT", f"{shop}/agents/ben/features", {"agent_features": [29.0, 1.0]}).status_code == 204
    assert call("PUT", f"{shop}/agents/ben/features", {"agent_features": [29.0, 1.0]}).status_code == 204
    found = call("GET", f"{shop}/events").json()["events"]
    assert [(one["agent"], one["agent_features"]) for one in found if one["kind"] == "profiled"] == [
        ("ada", [34.0, None]),
        ("ben", [29.0, 1.0]),
    ]
    for wrong in ([1.0], [1.0, "x"], [1.0, 1e40], "tall", None):
        refused = call("PUT", f"{shop}/agents/cleo/features", {"agent_features": wrong})
        assert refused.status_code in (400, 422), wrong
        assert "agent_features" in refused.json()["detail"]
    assert call("GET", f"{shop}/agents/cleo").status_code == 404
    assert call("DELETE", f"{shop}/agents/ada").status_code == 204
    assert "34.0" not in call("GET", f"{shop}/events").text


def test_whether_it_pays(call: Caller) -> None:
    shop = call.make("paying", explore=0.5, holdout=0.1)
    assert call("GET", shop).json()["holdout"] == 0.1
    assert call("GET", f"{shop}/dividend").json()["count"] == 0
    assert call("GET", f"{shop}/evaluation").json()["estimates"] == []
    for n in range(60):
        body = {"agent": f"agent {n % 2}", "arms": ARMS, "id": f"d{n}", "baseline": "water"}
        made = call("POST", f"{shop}/decisions", body).json()
        call("PUT", f"{shop}/decisions/d{n}/reward", {"reward": 1.0 if made["arm"] == "tea" else 0.0})
    paid = call("GET", f"{shop}/dividend").json()
    assert paid["count"] > 40
    assert isinstance(paid["mean"], float)
    assert call("GET", f"{shop}/dividend?agent=agent%200").json()["count"] < paid["count"]
    assert kind(call("GET", f"{shop}/dividend?agent=nobody")) == (404, "unknown")
    found = call("GET", f"{shop}/evaluation?policy=independent").json()
    assert found["policy"] == "independent"
    assert found["decisions"] > 20
    assert kind(call("GET", f"{shop}/evaluation?policy=os:system")) == (422, "invalid")
    assert kind(call("GET", f"{shop}/evaluation?policy=oracle")) == (422, "invalid")  # it needs labels
    assert kind(call("GET", f"{shop}/evaluation?policy=club")) == (422, "invalid")  # it cannot take over
    scraped = call("GET", "/metrics").text
    for name, end in (("dividend", "mean"), ("dividend_low", "low"), ("dividend_high", "high")):
        assert (f'shoal_{name}{{population="paying"}} {paid[end]}' in scraped) == (paid[end] is not None)


def test_other_settings(call: Caller) -> None:
    shop = call.make("changing", explore=0.5, apprentice=True)
    assert kind(call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS})) == (422, "invalid")
    for n in range(40):
        body = {"agent": f"agent {n % 4}", "arms": ARMS, "id": f"d{n}", "baseline": "water"}
        made = call("POST", f"{shop}/decisions", body).json()
        assert made["arm"] == "water" or made["probability"] < 0.5
        call("PUT", f"{shop}/decisions/d{n}/reward", {"reward": 1.0 if n % 2 else -1.0})
    before = call("GET", f"{shop}/settings").json()["settings"]
    assert [(one["sequence"], one["policy"], one["by"]) for one in before] == [(1, "bass", "")]

    lifted = call("GET", f"{shop}/uplift").json()
    assert lifted["how"] == "apprentice"
    assert 0 < lifted["n_baseline"] <= 40
    assert kind(call("GET", f"{call.make('plain')}/uplift")) == (422, "invalid")
    said = call("POST", f"{shop}/what-if", {"policy": "independent"}).json()
    assert said["n_lost"] == len(said["lost"]) > 0 == said["n_gained"]
    assert said["present"]["count"] == said["other"]["count"] == 40
    eager = call("POST", f"{shop}/evaluation", {"parameters": {"alpha": 2.0}}).json()
    assert eager["policy"] == "bass"
    assert eager["decisions"] > 0

    wrong: list[dict[str, object]] = [
        {"policy": "os:system"}, {"parameters": {"beta": 1}}, {"parameters": {"by": "me"}},
        {"parameters": {"since": 0}}, {"parameters": {"dim": 3}}, {"parameters": {"alpha": -1}},
        {"parameters": {"self": 1}}, {"parameters": {"policy": "bass"}}, {"parameters": {"epsilon": 0.5}},
        {"policy": "club"},
    ]  # fmt: skip
    for candidate in wrong:
        for method, what in (("POST", "what-if"), ("POST", "evaluation"), ("PUT", "settings")):
            assert kind(call(method, f"{shop}/{what}", candidate)) == (422, "invalid"), (what, candidate)
    assert call("GET", f"{shop}/settings").json()["settings"] == before

    now = call("PUT", f"{shop}/settings", {"policy": "independent", "parameters": {"alpha": 0.5}}).json()
    assert [one["policy"] for one in now["settings"]] == ["bass", "independent"]
    assert now["settings"][-1]["parameters"]["alpha"] == 0.5
    assert now["settings"][-1]["at"] >= before[0]["at"] > 1e9
    again = call("PUT", f"{shop}/settings", {"policy": "independent", "parameters": {"alpha": 0.5}})
    assert again.json() == now  # an answer that was lost is asked for again
    assert call("GET", shop).json()["policy"] == "independent"


def test_events_come_in_pages(call: Caller, shop: str) -> None:
    for n in range(5):
        call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": f"d{n}"})
    seen, after = [], 0
    while True:
        page = call("GET", f"{shop}/events?after={after}&limit=3").json()
        if not page["events"]:
            break
        seen += [one["sequence"] for one in page["events"]]
        after = page["last"]
    assert seen == list(range(1, 8))
    assert page["last"] == 7
    assert call("GET", f"{shop}/events?after=100").json() == {"events": [], "last": 7}


def test_events_go_on_after_the_archived_ones(
    call: Caller, shop: str, running: InProcess, tmp_path: Path
) -> None:
    for n in range(8):
        call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": f"d{n}"})
        if n != 2:  # which stays open, and in the store
            call("PUT", f"{shop}/decisions/d{n}/reward", {"reward": 1.0})
    made = running.app.populations[shop.rpartition("/")[2]].population.archive(tmp_path, before=time.time())
    assert made is not None
    call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": "later"})
    later = {"sequence": made.last + 1, "id": "later"}
    first = call("GET", f"{shop}/events?limit=1").json()  # a range of numbers would hold no record
    assert [one["id"] for one in first["events"]] == ["d2"]
    rest = call("GET", f"{shop}/events?after={first['last']}&limit=1").json()
    assert [{name: one[name] for name in later} for one in rest["events"]] == [later]
    assert rest["last"] == made.last + 1
    both = call("GET", f"{shop}/events?limit=1000").json()
    assert both == {"events": first["events"] + rest["events"], "last": rest["last"]}


def test_what_has_not_changed_is_not_sent_again(call: Caller) -> None:
    shop = call.make("unchanged", holdout=0.5)
    body = {"agent": "ada", "arms": ARMS, "baseline": "tea"}
    call("POST", f"{shop}/decisions", {**body, "id": "one"})
    tagged = [
        path
        for path, found in DOCUMENT["paths"].items()
        if "304" in found.get("get", {}).get("responses", {})
    ]
    assert {path.removeprefix("/v1/populations/{population}") for path in tagged} == {
        "", "/graph", "/catalogue", "/agents/{agent}", "/agents/{agent}/explanation", "/decisions/{id}",
        "/settings", "/dividend", "/alarms", "/contest", "/uplift", "/evaluation", "/events",
    }  # fmt: skip
    paths = [path.format(population=shop.rpartition("/")[2], agent="ada", id="one") for path in tagged]
    paths += [f"{shop}/graph?at=2", f"{shop}/events?after=1", f"{shop}/dividend?agent=ada"]
    for path in paths:
        seen = call("GET", path)
        tag = seen.headers["etag"]
        assert (seen.status_code, tag[:3]) == (200, '"3-'), path
        again = call("GET", path, headers={"if-none-match": f'"1-1", {tag}'})
        assert (again.status_code, again.headers["etag"], again.content) == (304, tag, b""), path
    call("POST", f"{shop}/decisions", body)
    for path in paths:
        assert call("GET", path, headers={"if-none-match": tag}).status_code == 200


def test_a_store_that_is_made_anew_has_other_tags(file: str) -> None:
    tags = []
    for _ in range(2):
        with InProcess(file) as running, Caller(running.url) as call:
            tags.append(call("GET", call.make("shop", policy="independent")).headers["etag"])
        Path(file).unlink()
    assert tags[0] != tags[1]


def test_what_is_not_committed_has_no_tag(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be lost, and another record come under its number."""
    append, go_on = SQLiteStore.append, threading.Event()

    def slow(store: SQLiteStore, *args: Any) -> Any:
        go_on.wait(30)
        return append(store, *args)

    with InProcess(file) as running, Caller(running.url) as call, ThreadPoolExecutor(1) as pool:
        shop = call.make("shop", policy="independent")
        call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS})
        monkeypatch.setattr(SQLiteStore, "append", slow)
        deciding = pool.submit(call, "POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS})
        try:
            wait_until(lambda: call("GET", shop).json()["sequence"] == 4)
            assert "etag" not in call("GET", shop).headers
        finally:
            go_on.set()
        assert deciding.result().status_code == 201
        assert call("GET", shop).headers["etag"].startswith('"4-')


def test_more_connections_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.service.middleware.MOST_CONNECTIONS", 1)
    with InProcess() as running, Caller(running.url) as first, Caller(running.url) as second:
        assert first("GET", "/livez").status_code == 200
        refused = second("GET", "/livez")
        assert kind(refused) == (503, "unavailable")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert first("GET", "/livez").status_code == 200


def test_bodies_that_are_no_requests(call: Caller, shop: str) -> None:
    json = {"content-type": "application/json"}
    path = f"{shop}/decisions"
    before = call("GET", shop).json()["sequence"]
    assert kind(call("POST", path, content=b"{", headers=json)) == (400, "malformed")
    assert kind(call("POST", path, content=b'{"agent": "\xff"}', headers=json)) == (400, "malformed")
    assert kind(call("POST", path, content=b'{"agent": NaN}', headers=json)) == (400, "malformed")
    assert kind(call("POST", path, content=b"[" * 100_000, headers=json)) == (422, "invalid")
    assert kind(call("POST", path, content=b"{}", headers=json)) == (422, "invalid")
    assert kind(call("POST", path, content=b"[]", headers=json)) == (422, "invalid")
    refused = call("PUT", f"{shop}/agents/ada", {"sharing": "isolated"})
    assert kind(refused) == (422, "invalid")
    assert refused.json()["detail"].endswith("`$.sharing`; choose from both, borrow, none")
    several = call("POST", f"{path}:batch", {"requests": [{"agent": "ada", "sharing": "all"}]})
    assert "choose from both, borrow, none" in several.text
    assert kind(call("POST", path, content=b'{"agent": "a"}')) == (415, "media-type")
    large = b'{"agent": "' + b"a" * 5_000_000 + b'"}'
    assert kind(call("POST", path, content=large, headers=json)) == (413, "too-large")
    chunks = (b"a" * 65536 for _ in range(100))
    assert kind(call("POST", path, content=chunks, headers=json)) == (413, "too-large")
    many = {"agent": "ada", "arms": [[1.0, 0.0]] * 10_001}
    assert kind(call("POST", path, many)) == (413, "too-large")
    for arms in ([[1, 2, 3]], {"tea": [1]}, [["x"]], [], {}, [[1e300, 0]], ["tea", [1, 2]], [[1e20, 0]]):
        assert call("POST", path, {"agent": "ada", "arms": arms}).status_code == 422
    for agent in ("", "a" * 257, "a\0b", 7, None):
        assert kind(call("POST", path, {"agent": agent, "arms": ARMS})) == (422, "invalid")
    assert call("GET", shop).json()["sequence"] == before
    assert kind(call("PATCH", path)) == (405, "method")


@pytest.mark.parametrize(
    ("method", "path", "methods"),
    [
        ("POST", "/graph", "GET, HEAD"),
        ("PATCH", "/settings", "GET, HEAD, PUT"),
        ("GET", "/decisions", "POST"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    call: Caller, shop: str, method: str, path: str, methods: str
) -> None:
    answer = call(method, f"{shop}{path}")
    assert kind(answer) == (405, "method")
    assert answer.json()["detail"] == f"{method} is none of the methods of this route: {methods}"
    assert answer.headers["allow"] == methods


def test_a_host_that_is_not_ours(call: Caller, shop: str) -> None:
    assert kind(call("GET", shop, headers={"host": "evil.example"})) == (421, "host")
    assert kind(call("GET", shop, headers={"host": ""})) == (421, "host")
    assert call("GET", "/livez", headers={"host": "10.0.0.7:8000"}).status_code == 200
    assert call("GET", shop, headers={"host": "LOCALHOST:8000"}).status_code == 200


def test_pages_of_other_sites_cannot_change_anything(call: Caller, shop: str) -> None:
    body = {"agent": "ada", "arms": ARMS}
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        assert kind(call("POST", f"{shop}/decisions", body, headers=headers)) == (403, "forbidden")
    own = {"origin": str(call.http.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert call("POST", f"{shop}/decisions", body, headers=own).status_code == 201
    assert "access-control-allow-origin" not in call("GET", shop, headers=own).headers


def test_metrics(running: InProcess, call: Caller) -> None:
    shop = call.make("metrics")
    call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": "a"})
    call("PUT", f"{shop}/decisions/a/reward", {"reward": 1.0})
    call("PUT", f"{shop}/decisions/a/reward", {"reward": 2.0})
    call("PUT", f"{shop}/decisions/b/reward", {"reward": 2.0})
    text = call("GET", "/metrics").text
    for line in (
        'shoal_decisions_total{population="metrics"} 1.0',
        'shoal_rewards_total{population="metrics"} 1.0',
        'shoal_rewards_refused_total{population="metrics"} 1.0',
        'shoal_rewards_unmatched_total{population="metrics"} 1.0',
        'shoal_reward_delay_seconds_count{population="metrics"} 1.0',
        'shoal_agents{population="metrics"} 1.0',
        'shoal_edges{population="metrics"} 0.0',
        'shoal_cuts{population="metrics"} 0.0',
        "shoal_queue_rows 0.0",
    ):
        assert line in text, line
    assert "ada" not in text


def test_delays_of_batches_are_counted(running: InProcess, call: Caller) -> None:
    shop = call.make("batches")
    for id in ("a", "b"):
        call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS, "id": id})
    rewards = [
        {"id": "a", "reward": 1.0},
        {"id": "a", "reward": 1.0},  # again
        {"id": "a", "reward": 0.5, "replaces": 1.0},
        {"id": "a", "reward": 7.0},  # refused
        {"id": "b", "reward": 1.0},
        {"id": "nobody's", "reward": 1.0},
    ]
    results = call("POST", f"{shop}/rewards:batch", {"rewards": rewards}).json()["results"]
    assert ["problem" in one for one in results] == [False, False, False, True, False, True]
    found = running.app.metrics.registry.get_sample_value
    labels = {"population": "batches"}
    assert found("shoal_rewards_total", labels) == 4.0
    assert found("shoal_reward_delay_seconds_count", labels) == 2.0
    events = call("GET", f"{shop}/events").json()["events"]
    at = {kind: [one["at"] for one in events if one["kind"] == kind] for kind in ("decided", "rewarded")}
    waited = sum(at["rewarded"]) - sum(at["decided"])
    assert found("shoal_reward_delay_seconds_sum", labels) == pytest.approx(waited, abs=1e-4)


def test_the_document_is_served_and_valid(call: Caller) -> None:
    assert call("GET", "/openapi.json").json() == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"
    ids = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert len(ids) == len(set(ids))


def test_explanations_are_bounded(call: Caller, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many agents the most helpful are listed, and all are counted."""
    monkeypatch.setattr("shoal.live.service.app.MOST_LISTED", 2)
    for n in range(6):
        call("POST", f"{shop}/observations", {"agent": f"agent {n}", "x": [1.0, 0.0], "reward": 1.0})
    found = call("GET", f"{shop}/agents/agent 0/explanation").json()
    assert (len(found["lenders"]), found["n_lenders"], found["borrowed"]) == (2, 5, 5.0)
    assert (found["stopped"], found["n_stopped"]) == ([], 0)
    assert "5 others" in found["text"]


def test_graphs_of_too_many_agents_are_not_made(
    call: Caller, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        call("PUT", f"{shop}/agents/agent {n}", {"sharing": "both"})
    for name, method, path in (("MOST_IN_GRAPH", "GET", "graph"), ("MOST_COMPARED", "POST", "what-if")):
        body = {"policy": "independent"} if method == "POST" else None
        assert call(method, f"{shop}/{path}", body).status_code == 200
        monkeypatch.setattr(f"shoal.live.service.app.{name}", 2)
        refused = call(method, f"{shop}/{path}", body)
        assert refused.status_code == 413
        assert "graphs of up to 2 agents" in refused.json()["detail"]
