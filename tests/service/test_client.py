"""The client: repeated requests count once, deadlines hold, and rewards outlive the caller."""

import asyncio
import inspect
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.service.running import ARMS, InProcess

import shoal
from shoal.client import AsyncRemotePopulation, RemotePopulation
from shoal.client.exchange import Attempt, Pause, Reply, exchange
from shoal.controller.answers import Explanation

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
        " or m.startswith(('shoal.policies', 'shoal.kernels', 'shoal.jit', 'shoal.controller.population'))]\n"
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
    plan = exchange("GET", "/", deadline=100.0, clock=lambda: now)
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
        again = exchange("GET", "/", deadline=100.0, clock=lambda: now)
        next(again)
        first = again.send(Reply(0, trouble="lost"))
        assert isinstance(first, Pause)
        pauses.append(first.seconds)
    assert 0.0 <= min(pauses) < 0.02
    assert 0.08 < max(pauses) <= 0.1  # jitter over all of the interval
    plan = exchange("GET", "/", deadline=2.0, clock=lambda: now)
    next(plan)
    with pytest.raises(shoal.UnavailableError, match="no answer within 2 s"):
        plan.send(Reply(429, b"", 3.0))


def test_what_the_service_says_for_good_is_not_repeated() -> None:
    for status in (400, 404, 409, 422):
        plan = exchange("GET", "/", deadline=2.0)
        next(plan)
        with pytest.raises(StopIteration):
            plan.send(Reply(status))


def test_a_fallback_when_the_service_is_down(running: InProcess) -> None:
    is_up = False
    with lossy_client(running, lambda: "fine" if is_up else "request lost") as client:
        shop = shoal.client.RemotePopulation(client, "fallback")
        with pytest.raises(ValueError, match="fallback must be one of the arms"):
            shop.decide("ada", ARMS, fallback="milk", deadline=0.1)
        start = time.monotonic()
        made = shop.decide("ada", ARMS, fallback="tea", deadline=0.2)
        assert time.monotonic() - start < 2.0
        assert (made.arm, made.sequence, made.probability) == ("tea", 0, None)
        with pytest.raises(shoal.UnavailableError):
            shop.decide("ada", ARMS, deadline=0.1)
        is_up = True
        shop = client.population("fallback", **SETTINGS)
        shop.reward(made.id, 1.0)
        shop.reward(made.id, 1.0)
        kinds = [one.kind for one in shop.events().events]
        assert kinds == ["settings", "joined", "observed"]


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


def test_addresses_that_are_none() -> None:
    with pytest.raises(ValueError, match="url must begin with http"):
        shoal.Client("127.0.0.1:8000")
    for key in ("", "shoal_1_secret\n", "shoal 1"):
        with pytest.raises(ValueError, match="key must be as") as caught:
            shoal.Client("http://127.0.0.1:8000", key)
        assert "secret" not in str(caught.value)
