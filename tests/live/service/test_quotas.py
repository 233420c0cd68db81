"""How much a server takes: each limit is named in the answer, and nothing is recorded of what is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.live.service.running import ARMS, Caller, InProcess, wait_until

import shoal
from shoal.live.population import offers
from shoal.live.population.quotas import Quotas
from shoal.live.service import service

SMALL = Quotas(agents=3, arms=3, pending=4, memory=1.05e8, populations=3, rate=0)


@pytest.fixture(scope="module")
def limited() -> Iterator[InProcess]:
    with InProcess(quotas=SMALL) as running:
        yield running


@pytest.fixture
def small(limited: InProcess) -> Iterator[Caller]:
    with Caller(limited.url) as call:
        call.make("shop", policy="independent")
        yield call


P = "/v1/populations/shop"


def refused(call: Caller, limit: str, method: str, path: str, body: Any) -> None:
    """The limit is named, and nothing is recorded."""
    before = call("GET", P).json()["sequence"]
    answer = call(method, path, body)
    assert (answer.status_code, answer.json()["type"]) == (507, "urn:shoal:problem:limit"), answer.text
    assert answer.json()["limit"] == limit
    assert f"the limit {limit} is " in answer.json()["detail"]
    assert call("GET", P).json()["sequence"] == before


def test_agents(small: Caller) -> None:
    for agent in ("ada", "bob", "cleo"):
        assert small("PUT", f"{P}/agents/{agent}", {"sharing": "both"}).status_code == 204
    refused(small, "agents", "PUT", f"{P}/agents/dora", {"sharing": "both"})
    refused(small, "agents", "POST", f"{P}/decisions", {"agent": "dora", "arms": ARMS})
    refused(small, "agents", "POST", f"{P}/observations", {"agent": "dora", "x": [1, 0], "reward": 1})
    batch = {"requests": [{"agent": "dora", "arms": ARMS}, {"agent": "ada", "arms": ARMS, "id": "one"}]}
    first, second = small("POST", f"{P}/decisions:batch", batch).json()["results"]
    assert (first["problem"]["limit"], second["decision"]["agent"]) == ("agents", "ada")
    assert small("PUT", f"{P}/decisions/one/reward", {"reward": 1.0}).status_code == 204


def test_arms(small: Caller) -> None:
    assert small("PATCH", f"{P}/catalogue", {"arms": ARMS}).status_code == 204
    refused(small, "arms", "PATCH", f"{P}/catalogue", {"arms": {"milk": [1.0, 1.0]}})
    assert small("PATCH", f"{P}/catalogue", {"arms": {"tea": [1.0, 0.5]}}).status_code == 204


def test_decisions_that_await_rewards(small: Caller) -> None:
    body = {"agent": "ada", "arms": ARMS}
    small("PUT", f"{P}/agents/ada", {"sharing": "both"})
    ids = [small("POST", f"{P}/decisions", body).json()["id"] for _ in range(4)]
    refused(small, "pending", "POST", f"{P}/decisions", body)
    assert small("PUT", f"{P}/decisions/{ids[0]}/reward", {"reward": 1.0}).status_code == 204
    assert small("POST", f"{P}/decisions", {**body, "id": "again"}).status_code == 201
    assert small("POST", f"{P}/decisions", {**body, "id": "again"}).status_code == 201  # known already
    assert small("DELETE", f"{P}/decisions/again").status_code == 204


def test_memory_and_populations(small: Caller, limited: InProcess) -> None:
    """An agent with 1,024 features takes tens of megabytes, of which 100 are allowed here."""
    for name in ("wide", "third"):
        small.make(name, policy="independent", dim=1024)
    answer = small("PUT", "/v1/populations/fourth", {"policy": "bass", "dim": 2})
    assert (answer.status_code, answer.json()["limit"]) == (507, "populations")
    assert small("PUT", P, {"policy": "independent", "dim": 2}).status_code == 200
    assert "fourth" not in small("GET", "/v1/populations").json()["populations"]
    answers = [small("PUT", f"/v1/populations/wide/agents/{n}", {"sharing": "both"}) for n in range(3)]
    assert [one.status_code for one in answers] == [204, 204, 507]
    assert answers[-1].json()["limit"] == "memory"
    held = limited.app.populations["wide"].owner.read(lambda fold: fold.policy.nbytes)
    assert 0.5 * SMALL.memory < held <= SMALL.memory


def test_disk(limited: InProcess, small: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards of decisions that were made are taken all the same."""
    monkeypatch.setattr(service, "TEND", 0.01)
    body = {"agent": "ada", "arms": ARMS, "id": "before"}
    small("DELETE", f"{P}/decisions/before")
    small("POST", f"{P}/decisions", body)
    fakes: list[tuple[str, Callable[[], float]]] = [("nbytes", lambda: 21e9), ("free", lambda: 1e8)]
    for (method, fake), limit in zip(fakes, ("disk", "free"), strict=True):
        with monkeypatch.context() as patch:
            patch.setattr(limited.app.controller.store, method, fake)
            limited.app.full = limited.app._fullness()
            refused(small, limit, "POST", f"{P}/decisions", {"agent": "ada", "arms": ARMS})
            refused(small, limit, "PATCH", f"{P}/catalogue", {"arms": ARMS})
            assert small("PUT", f"{P}/decisions/before/reward", {"reward": 1.0}).status_code == 204
            assert small("GET", P).status_code == 200
    limited.app.full = limited.app._fullness()
    assert limited.app.full is None


def test_the_size_of_a_store_is_looked_at(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TEND", 0.05)
    arms = {f"arm {n}": [float(n)] * 64 for n in range(100)}
    running = InProcess(str(tmp_path / "shop.db"), quotas=Quotas(disk=100_000))
    with running, Caller(running.url) as call:
        shop = call.make("shop", policy="independent", dim=64)

        def is_full() -> bool:
            arms["arm 0"][0] += 1.0
            return call("POST", f"{shop}/decisions", {"agent": "ada", "arms": arms}).status_code == 507

        wait_until(is_full, 20.0)
        with shoal.Client(running.url) as client, pytest.raises(shoal.LimitError) as caught:
            client.population("shop").decide("ada", arms)
        assert caught.value.limit == "disk"


def test_a_default_rate(tmp_path: Any) -> None:
    with InProcess(str(tmp_path / "shop.db"), quotas=Quotas(rate=2)) as running:
        with Caller(running.url, running.keys.add(["read"])[1]) as call:
            answers = [call("GET", "/v1/populations") for _ in range(10)]
            last = answers[-1]
            assert (last.status_code, last.json()["limit"]) == (429, "rate")
        with Caller(running.url, running.keys.add(["read"], rate=0.0)[1]) as call:
            assert all(call("GET", "/v1/populations").status_code == 200 for _ in range(10))


def test_the_table_is_given_by_name() -> None:
    assert Quotas.of(["agents=1000", "rate=0"]) == Quotas(agents=1000.0, rate=0.0)
    assert Quotas.of({"disk": 5e9}) == Quotas(disk=5e9)
    for text, said in (
        ("agent=5", "limit must be one of 'agents'"),
        ("agents=many", "agents must be a number"),
    ):
        with pytest.raises(ValueError, match=said):
            Quotas.of([text])


def test_offers_that_are_remembered_are_few_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "MOST_BYTES", 10_000)
    with shoal.open(":memory:") as controller:
        for dim, count in ((2, offers.REMEMBERED), (100, 10_000 // (2 * 100 * 8))):
            shop = controller.population(f"shop {dim}", "independent", dim)
            for n in range(100):
                shop.decide("ada", [[float(n)] * dim, [0.0] * dim])
            known = shop.owner.commands.offers._known
            assert len(known) == count
            assert sum(one.features.nbytes for one in known.values()) <= 10_000
            assert shop.decide("ada", [[0.0] * dim, [0.0] * dim]).sequence == 103  # seen before
