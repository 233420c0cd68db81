"""OFREP: what stock providers and the published document expect, and that polling makes no decisions.

The published document is not part of the repository. SHOAL_OFREP names it (service/openapi.yaml of
github.com/open-feature/protocol), or ../shared/ofrep.yaml is it; without it, those tests are skipped.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import yaml
from openfeature import api
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from tests.live.places import Place
from tests.live.service.running import ARMS, Caller, InProcess

from shoal.live.service.ofrep import FLAGS, MOST_FLAGS

PUBLISHED = Path(os.environ.get("SHOAL_OFREP", Path(__file__).parents[4] / "shared" / "ofrep.yaml"))


def evaluate(call: Caller, flag: str, agent: str = "ada", **context: Any) -> dict[str, Any]:
    """A flag's evaluation."""
    answer = call("POST", f"{FLAGS}/{flag}", {"context": {"targetingKey": agent, **context}})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def bulk(call: Caller, agent: str = "ada", tag: str | None = None, **context: Any) -> httpx.Response:
    headers = {} if tag is None else {"if-none-match": tag}
    return call("POST", FLAGS, {"context": {"targetingKey": agent, **context}}, headers=headers)


def decision(found: dict[str, Any]) -> str:
    id = found["metadata"]["decision"]
    assert isinstance(id, str)
    return id


def sequence(call: Caller, path: str) -> int:
    return int(call("GET", path).json()["sequence"])


@pytest.fixture
def flag(call: Caller, shop: str) -> str:
    """The name of a population with a catalogue."""
    assert call("PATCH", f"{shop}/catalogue", {"arms": ARMS}).status_code == 204
    return shop.rsplit("/", 1)[1]


# Decisions


def test_a_flag_has_one_decision_until_its_reward_comes(call: Caller, flag: str, shop: str) -> None:
    first = evaluate(call, flag, email="ada@example.com")
    assert first["key"] == flag
    assert first["variant"] == first["value"]
    assert first["variant"] in ARMS
    assert first["reason"] == "TARGETING_MATCH"
    before = sequence(call, shop)
    for _ in range(3):
        assert evaluate(call, flag) == first
    assert evaluate(call, flag, "ben")["metadata"] != first["metadata"]
    assert sequence(call, shop) == before + 2  # ben joins, and has a decision
    reward = call("PUT", f"{shop}/decisions/{decision(first)}/reward", {"reward": 0.0})
    assert reward.status_code == 204
    second = evaluate(call, flag)
    assert decision(second) != decision(first)
    events = call("GET", f"{shop}/events").text
    assert "example.com" not in events
    assert call("GET", f"{shop}/decisions/{decision(first)}").json()["rewards"] == [0.0]


def test_a_decision_of_the_caller_s_own_for_each_exposure(call: Caller, flag: str) -> None:
    one, two = (evaluate(call, flag, decisionId=id) for id in ("view 1", "view 2"))
    assert (decision(one), decision(two)) == ("view 1", "view 2")
    assert evaluate(call, flag, decisionId="view 1") == one
    answer = call("POST", f"{FLAGS}/{flag}", {"context": {"targetingKey": "ben", "decisionId": "view 1"}})
    assert (answer.status_code, answer.json()["errorCode"]) == (400, "INVALID_CONTEXT")


def test_what_is_on_offer_is_part_of_it(call: Caller, flag: str, shop: str) -> None:
    whole = evaluate(call, flag)
    some = evaluate(call, flag, arms=["tea", "water"])
    assert some["variant"] in ("tea", "water")
    given = evaluate(call, flag, arms={"true": [1.0, 0.0], "false": [0.0, 1.0]})
    assert given["value"] is (given["variant"] == "true")
    assert len({decision(one) for one in (whole, some, given)}) == 3
    call("PATCH", f"{shop}/catalogue", {"arms": {"cocoa": [0.3, 0.3]}})
    assert decision(evaluate(call, flag)) not in (decision(whole), decision(some))
    call("DELETE", f"{shop}/catalogue/cocoa")
    assert evaluate(call, flag) == whole


def test_a_cancelled_decision_is_followed_by_another(call: Caller, flag: str, shop: str) -> None:
    first = evaluate(call, flag)
    assert call("DELETE", f"{shop}/decisions/{decision(first)}").status_code == 204
    second = evaluate(call, flag)
    assert decision(second) != decision(first)
    assert evaluate(call, flag) == second


def test_a_window_ends_a_decision(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    path = call.make("windowed", reward_window=1_000.0)
    call("PATCH", f"{path}/catalogue", {"arms": ARMS})
    now = 1_000.0 * (time.time() // 1_000.0)
    found = []
    for seconds in (1.0, 999.0, 1_001.0):
        monkeypatch.setattr("shoal.live.service.ofrep.time.time", lambda at=now + seconds: at)
        found.append(decision(evaluate(call, "windowed")))
    assert found[0] == found[1] != found[2]


def test_who_was_forgotten_begins_anew(call: Caller, flag: str, shop: str) -> None:
    first = evaluate(call, flag)
    assert call("DELETE", f"{shop}/agents/ada").status_code == 204
    assert decision(evaluate(call, flag)) != decision(first)


def test_the_product_s_own_rule(call: Caller) -> None:
    path = call.make("compared", apprentice=True)
    call("PATCH", f"{path}/catalogue", {"arms": ARMS})
    answer = call("POST", f"{FLAGS}/compared", {"context": {"targetingKey": "ada"}})
    assert (answer.status_code, answer.json()["errorCode"]) == (400, "INVALID_CONTEXT")
    assert evaluate(call, "compared", baseline="water")["variant"] == "water"
    assert evaluate(call, "compared", baseline="tea")["variant"] == "tea"


# Polling


def test_polling_writes_nothing(tmp_path: Path) -> None:
    """A poll is 304 until a reward or another catalogue changes an answer, also after a restart."""
    file, paths = str(tmp_path / "shop.db"), []
    with InProcess(file) as server, Caller(server.url) as call:
        for name in ("one", "two", "bare"):
            paths.append(call.make(name))
            if name != "bare":
                call("PATCH", f"{paths[-1]}/catalogue", {"arms": ARMS})
        first = bulk(call)
        one, two, bare = sorted(first.json()["flags"], key=lambda found: str(found.get("value", "~")) == "~")
        assert {one["key"], two["key"]} == {"one", "two"}
        assert (bare["key"], bare["errorCode"]) == ("bare", "INVALID_CONTEXT")
        before = [sequence(call, path) for path in paths]
        for _ in range(3):
            assert bulk(call, tag=f'"0", {first.headers["etag"]}').status_code == 304
        assert bulk(call, decisionId="mine", arms=["tea"]).json() == first.json()
        assert evaluate(call, "one")["metadata"] in (one["metadata"], two["metadata"])
        assert [sequence(call, path) for path in paths] == before
    with InProcess(file) as server, Caller(server.url) as call:
        assert bulk(call, tag=first.headers["etag"]).status_code == 304
        id = next(decision(found) for found in (one, two) if found["key"] == "one")
        call("PUT", f"{paths[0]}/decisions/{id}/reward", {"reward": 1.0})
        second = bulk(call, tag=first.headers["etag"])
        assert second.status_code == 200
        changed = {found["key"] for found in second.json()["flags"] if found not in first.json()["flags"]}
        assert changed == {"one"}
        call("PATCH", f"{paths[1]}/catalogue", {"arms": {"cocoa": [0.3, 0.3]}})
        assert bulk(call, tag=second.headers["etag"]).status_code == 200


def test_only_flags_that_the_key_may_decide_about(tmp_path: Path) -> None:
    with InProcess(str(tmp_path / "shop.db")) as server:
        with Caller(server.url) as call:
            for n in range(MOST_FLAGS + 1):
                call.make(f"shop {n}", policy="independent", parameters={})
        keys = {
            "two": server.keys.add(["decide"], ["shop 1", "shop 2", "nowhere"])[1],
            "readers": server.keys.add(["read"])[1],
            "all": server.keys.add(["decide"])[1],
            "slow": server.keys.add(["decide"], ["shop 1", "shop 2"], rate=1.5)[1],
        }
        with Caller(server.url, keys["two"]) as call:
            assert [one["key"] for one in bulk(call).json()["flags"]] == ["shop 1", "shop 2"]
            assert call("POST", f"{FLAGS}/shop%203", {"context": {}}).status_code == 403
        with Caller(server.url, keys["readers"]) as call:
            assert bulk(call).json() == {"flags": []}
            assert call("POST", f"{FLAGS}/shop%201", {"context": {}}).status_code == 403
        with Caller(server.url, keys["all"]) as call:
            answer = bulk(call)
            assert (answer.status_code, answer.json()["errorCode"]) == (400, "GENERAL")
            assert "101" in answer.json()["errorDetails"]
        with Caller(server.url, keys["slow"]) as call:
            for _ in range(2):  # which count as four; three are allowed at once
                assert bulk(call).status_code == 200
            answer = bulk(call)
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
        with Caller(server.url) as call:
            assert bulk(call).status_code == 401


def test_what_is_wrong(call: Caller, flag: str, shop: str) -> None:
    before = sequence(call, shop)
    for body, status, code in (
        ({}, 400, "TARGETING_KEY_MISSING"),
        ({"context": {}}, 400, "TARGETING_KEY_MISSING"),
        ({"context": {"targetingKey": ""}}, 400, "TARGETING_KEY_MISSING"),
        ({"context": {"targetingKey": 7}}, 400, "INVALID_CONTEXT"),
        ({"context": {"targetingKey": "a" * 300}}, 400, "INVALID_CONTEXT"),
        ({"context": []}, 400, "INVALID_CONTEXT"),
    ):
        for path in (f"{FLAGS}/{flag}", FLAGS):
            answer = call("POST", path, body)
            assert (answer.status_code, answer.json()["errorCode"]) == (status, code), (path, body)
            assert answer.json().get("key") == (flag if path != FLAGS else None)
            assert answer.headers["content-type"] == "application/json"
    for context in ({"arms": ["nothing"]}, {"arms": 5}, {"arms": {"a": [1.0]}}, {"baseline": "nothing"}):
        answer = call("POST", f"{FLAGS}/{flag}", {"context": {"targetingKey": "ada", **context}})
        assert (answer.status_code, answer.json()["errorCode"]) == (400, "INVALID_CONTEXT"), context
    json = {"content-type": "application/json"}
    answer = call("POST", f"{FLAGS}/{flag}", content=b"{", headers=json)
    assert (answer.status_code, answer.json()["errorCode"]) == (400, "PARSE_ERROR")
    for nowhere in ("nowhere", "%20", "a" * 300):
        answer = call("POST", f"{FLAGS}/{nowhere}", {"context": {"targetingKey": "ada"}})
        assert (answer.status_code, answer.json()["errorCode"]) == (404, "FLAG_NOT_FOUND")
    many = {"context": {"targetingKey": "ada", "arms": {str(n): [0.0, 1.0] for n in range(10_001)}}}
    assert call("POST", f"{FLAGS}/{flag}", many).status_code == 413
    assert sequence(call, shop) == before


# Several servers


def test_flags_of_other_servers(server: Any) -> None:
    place = Place("postgres", server.room())
    try:
        with (
            InProcess(place.url, shares=True, lease=30.0) as first,
            Caller(first.url) as call,
            InProcess(place.url, shares=True, lease=30.0) as second,
            Caller(second.url) as other,
        ):
            for caller, name in ((call, "one"), (other, "two")):
                path = caller.make(name)
                caller("PATCH", f"{path}/catalogue", {"arms": ARMS})
            assert not first.app.is_here("two")
            answers = [bulk(caller) for caller in (call, other)]
            assert [len(one.json()["flags"]) for one in answers] == [2, 2]
            assert answers[0].headers["etag"] == answers[1].headers["etag"]
            assert bulk(call, tag=answers[1].headers["etag"]).status_code == 304
            assert evaluate(call, "two") in answers[0].json()["flags"]
            missing = call("POST", f"{FLAGS}/nowhere", {"context": {"targetingKey": "ada"}})
            assert missing.status_code == 404
    finally:
        place.close()


# The published document


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    if not PUBLISHED.is_file():
        pytest.skip("the OFREP document is not here; SHOAL_OFREP names it")
    found: dict[str, Any] = yaml.safe_load(PUBLISHED.read_text())
    # It says in words that a flag of this kind has no value, which "exactly one of the kinds" depends on.
    found["components"]["schemas"]["codeDefaultFlag"]["not"] = {"required": ["value"]}
    return found


def test_answers_fit_the_published_document(call: Caller, flag: str, published: dict[str, Any]) -> None:
    single, every = (published["paths"][path]["post"] for path in (f"{FLAGS}/{{key}}", FLAGS))

    def check(operation: dict[str, Any], answer: httpx.Response) -> None:
        described = operation["responses"][str(answer.status_code)]
        if "content" in described:
            schema = described["content"]["application/json"]["schema"]
            whole = {**schema, "components": published["components"]}
            jsonschema_rs.validator_for(whole).validate(answer.json())

    example = single["requestBody"]["content"]["application/json"]["example"]
    answer = call("POST", f"{FLAGS}/{flag}", example)
    assert answer.status_code == 200
    check(single, answer)
    boolean = {"targetingKey": "ada", "arms": {"true": [1.0, 0.0], "false": [0.0, 1.0]}}
    check(single, call("POST", f"{FLAGS}/{flag}", {"context": boolean}))
    for path, body, status in (
        (flag, {"context": {}}, 400),
        (flag, {"context": {"targetingKey": "ada", "arms": ["nothing"]}}, 400),
        ("nowhere", example, 404),
    ):
        answer = call("POST", f"{FLAGS}/{path}", body)
        assert answer.status_code == status
        check(single, answer)
    example = every["requestBody"]["content"]["application/json"]["example"]
    answer = call("POST", FLAGS, example, params={"flagConfigEtag": "x", "flagConfigLastModified": "5"})
    assert answer.status_code == 200
    check(every, answer)
    assert "ETag" in every["responses"]["200"]["headers"]
    assert call("POST", FLAGS, example, headers={"if-none-match": answer.headers["etag"]}).status_code == 304
    answer = call("POST", FLAGS, {})
    assert answer.status_code == 400
    check(every, answer)


# A stock provider


@pytest.fixture
def provided(tmp_path: Path) -> Iterator[tuple[InProcess, Any]]:
    """A server with a key, and an OpenFeature client that has it."""
    with InProcess(str(tmp_path / "shop.db")) as server:
        with Caller(server.url) as call:
            path = call.make("drinks")
            call("PATCH", f"{path}/catalogue", {"arms": ARMS})
            path = call.make("banner")
            call("PATCH", f"{path}/catalogue", {"arms": {"true": [1.0, 0.0], "false": [0.0, 1.0]}})
        _, key = server.keys.add(["decide", "reward", "read"], rate=100.0)
        headers = {"Authorization": f"Bearer {key}"}
        provider = OFREPProvider(server.url, headers_factory=lambda: headers)
        api.set_provider(provider)
        yield server, api.get_client()
        provider.session.close()
        api.clear_providers()


def test_a_stock_provider(provided: tuple[InProcess, Any]) -> None:
    server, client = provided
    ada = EvaluationContext("ada", {"plan": "premium"})
    details = client.get_string_details("drinks", "water", ada)
    assert details.error_code is None
    assert details.value == details.variant
    assert details.value in ARMS
    assert client.get_string_details("drinks", "water", ada).flag_metadata == details.flag_metadata
    assert client.get_boolean_value("banner", False, ada) in (True, False)
    with Caller(server.url, client.provider.headers_factory()["Authorization"].split()[1]) as call:
        path = f"/v1/populations/drinks/decisions/{details.flag_metadata['decision']}"
        assert call("PUT", f"{path}/reward", {"reward": 1.0}).status_code == 204
        assert call("GET", path).json()["decision"]["arm"] == details.value
    after = client.get_string_details("drinks", "water", ada)
    assert after.flag_metadata["decision"] != details.flag_metadata["decision"]


def test_errors_of_a_stock_provider(provided: tuple[InProcess, Any]) -> None:
    server, client = provided
    ada = EvaluationContext("ada")
    for flag, context, code in (
        ("nowhere", ada, ErrorCode.FLAG_NOT_FOUND),
        ("drinks", None, ErrorCode.TARGETING_KEY_MISSING),
        ("drinks", EvaluationContext("ada", {"arms": ["nothing"]}), ErrorCode.INVALID_CONTEXT),
    ):
        details = client.get_string_details(flag, "water", context)
        assert (details.value, details.error_code) == ("water", code)
    assert client.get_boolean_details("drinks", True, ada).error_code == ErrorCode.TYPE_MISMATCH
    _, slow = server.keys.add(["decide"], rate=0.1)
    client.provider.headers_factory = lambda: {"Authorization": f"Bearer {slow}"}
    assert client.get_string_details("drinks", "water", ada).error_code is None
    details = client.get_string_details("drinks", "water", ada)
    assert (details.error_code, details.error_message[:12]) == (ErrorCode.GENERAL, "Rate limited")
    assert client.provider.retry_after is not None
    client.provider.retry_after = None
    client.provider.headers_factory = dict
    details = client.get_string_details("drinks", "water", ada)
    assert (details.value, details.error_message) == ("water", "unauthorized")
