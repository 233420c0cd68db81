"""Rewards: late, repeated, contradicting, corrected, missing; for decisions of every standing."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.live.places import ARMS, Place, shop, sound

from shoal.live.population.owner import Owner
from shoal.live.population.population import Population
from shoal.live.population.views import sizes
from shoal.live.protocol.errors import ConflictError, GoneError, UnknownError

HOUR = 3_600_000_000
SLOW = 3600.0
"""A lease so long that nothing happens in the background."""


def learned(one: Population, agent: str = "ada") -> list[float]:
    """What is known of an agent: its estimate."""
    return one.owner.read(lambda fold: fold.policy.local_estimate(fold.names[agent]).tolist())


@pytest.fixture
def one(place: Place) -> Population:
    return shop(place.open(lease=SLOW))


def reopened(place: Place, one: Population, **options: Any) -> Population:
    """The population, after its process ended."""
    one._controller.close()
    return shop(place.open(lease=SLOW), **options)


def test_a_reward_counts_once(one: Population, place: Place) -> None:
    decision = one.decide("ada", ARMS)
    one.reward(decision.id, 1.0)
    before, known = one.sequence, learned(one)
    one.reward(decision.id, 1.0)
    one.reward(decision.id, 1)
    one = reopened(place, one)
    one.reward(decision.id, 1.0)
    assert (one.sequence, learned(one)) == (before, known)


def test_a_late_reward(one: Population, place: Place) -> None:
    early = one.decide("ada", ARMS)
    for _ in range(5):
        one.reward(one.decide("ada", ARMS).id, 0.0)
    one = reopened(place, one)
    one.reward(early.id, 1.0)
    assert np.any(learned(one))
    assert sound(one._controller)


def test_a_contradicting_reward_is_refused(one: Population, place: Place) -> None:
    decision = one.decide("ada", ARMS)
    one.reward(decision.id, 1.0)
    for _ in range(2):
        before = one.owner.packed()
        with pytest.raises(ConflictError, match=r"has the reward 1\.0.*replaces=1\.0") as caught:
            one.reward(decision.id, 0.0)
        assert caught.value.recorded == 1.0
        assert one.owner.packed() == before
        one = reopened(place, one)


def test_a_correction_is_exact(one: Population, place: Place) -> None:
    first, second = (one.decide("ada", {"tea": ARMS["tea"]}) for _ in range(2))
    one.reward(first.id, 1.0)
    one.reward(second.id, 1.0)
    one.reward(first.id, 0.0, replaces=1.0)
    right = shop(Place("memory", None).open(lease=SLOW))
    for reward in (0.0, 1.0):
        right.reward(right.decide("ada", {"tea": ARMS["tea"]}).id, reward)
    assert learned(one) == pytest.approx(learned(right))
    with pytest.raises(ConflictError, match=r"has the reward 0\.0, not 1\.0") as caught:
        one.reward(first.id, 0.5, replaces=1.0)
    assert caught.value.recorded == 0.0
    one.reward(first.id, 0.0, replaces=1.0)  # the same correction again
    one = reopened(place, one)
    one.reward(first.id, 0.0, replaces=1.0)
    one.reward(first.id, 0.5, replaces=0.0)
    assert sound(one._controller)
    right._controller.close()


def test_nothing_to_replace(one: Population) -> None:
    decision = one.decide("ada", ARMS)
    with pytest.raises(ConflictError, match="no reward yet"):
        one.reward(decision.id, 1.0, replaces=0.0)


def test_unknown_decisions(one: Population) -> None:
    before = one.owner.packed()
    with pytest.raises(UnknownError, match="'nobody'"):
        one.reward("nobody", 1.0)
    with pytest.raises(UnknownError, match="'nobody'"):
        one.cancel("nobody")
    assert one.owner.packed() == before


def test_cancelled(one: Population, place: Place) -> None:
    decision, other = one.decide("ada", ARMS), one.decide("ada", ARMS)
    one.cancel(decision.id)
    one.reward(other.id, 1.0)
    for _ in range(2):
        before = one.owner.packed()
        assert sizes(one.owner).pending == 0
        one.cancel(decision.id)
        with pytest.raises(ConflictError, match="cancelled"):
            one.reward(decision.id, 1.0)
        with pytest.raises(ConflictError, match=r"has a reward, 1\.0") as caught:
            one.cancel(other.id)
        assert caught.value.recorded == 1.0
        assert one.owner.packed() == before
        one = reopened(place, one)
    assert sound(one._controller)


def test_cancelling_leaves_no_trace_in_what_is_learned(one: Population) -> None:
    one.observe("ada", [1.0, 0.0], 1.0)
    before = learned(one)
    one.cancel(one.decide("ada", ARMS).id)
    assert learned(one) == before


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e200, "x", None, [1.0], 1j, 1.5, -0.5])
def test_bad_rewards_leave_nothing(reward: Any) -> None:
    place = Place("memory", None)
    one = shop(place.open(), reward_range=(0.0, 1.0))
    decision = one.decide("ada", ARMS)
    before = one.owner.packed()
    with pytest.raises(ValueError, match="reward"):
        one.reward(decision.id, reward)
    with pytest.raises(ValueError, match="reward"):
        one.observe("ada", [1.0, 0.0], reward)
    (error,) = one.reward_many([{"id": decision.id, "reward": reward}])
    assert isinstance(error, ValueError)
    one.reward(decision.id, 1.0)
    with pytest.raises(ValueError, match="reward"):
        one.reward(decision.id, reward, replaces=1.0)
    assert one.owner.packed()[1] == before[1] + 1
    place.close()


@pytest.mark.parametrize("replaces", ["x", [1.0], object(), math.nan])
def test_bad_replaced_values(replaces: Any) -> None:
    place = Place("memory", None)
    one = shop(place.open())
    decision = one.decide("ada", ARMS)
    one.reward(decision.id, 1.0)
    with pytest.raises((ValueError, ConflictError), match=r"replaces|has the reward"):
        one.reward(decision.id, 0.0, replaces=replaces)
    assert one.owner.why_lost is None
    place.close()


def test_observations(one: Population, place: Place) -> None:
    one.observe("ada", [1.0, 0.0], 1.0, id="import 1")
    before = one.sequence, learned(one)
    for _ in range(2):
        one.observe("ada", [1.0, 0.0], 1.0, id="import 1")
        others = ("ben", [1.0, 0.0], 1.0), ("ada", [0.0, 1.0], 1.0), ("ada", [1.0, 0.0], 0.0)
        for agent, x, reward in others:
            with pytest.raises(ConflictError, match="import 1"):
                one.observe(agent, x, reward, id="import 1")
        with pytest.raises(ConflictError, match="import 1"):
            one.decide("ada", ARMS, id="import 1")
        with pytest.raises((ConflictError, UnknownError), match="import 1"):
            one.reward("import 1", 1.0)
        assert (one.sequence, learned(one)) == before
        one = reopened(place, one)
    decision = one.decide("ada", ARMS, id="a")
    for _ in range(2):
        with pytest.raises(ConflictError, match="'a'"):
            one.observe("ada", ARMS[str(decision.arm)], 1.0, id="a")
        one.reward("a", 1.0)
    assert sound(one._controller)


@pytest.mark.parametrize("x", [[1.0], [1.0, 2.0, 3.0], [math.nan, 0.0], "x", None, [1e200, 0.0]])
def test_bad_observations_leave_nothing(x: Any) -> None:
    place = Place("memory", None)
    one = shop(place.open())
    before = one.owner.packed()
    with pytest.raises(ValueError, match="x"):
        one.observe("ada", x, 1.0)
    assert one.owner.packed() == before
    place.close()


def test_reward_many(one: Population, tmp_path: Path) -> None:
    first, second, third = (one.decide("ada", ARMS) for _ in range(3))
    one.cancel(third.id)
    results = one.reward_many(
        [
            {"id": first.id, "reward": 1.0},
            {"id": second.id, "reward": math.nan},
            {"id": "nobody", "reward": 1.0},
            {"id": first.id, "reward": 1.0},
            {"id": first.id, "reward": 0.0},
            {"id": third.id, "reward": 1.0},
            {"id": first.id, "reward": 0.0, "replaces": 1.0},
            {"id": second.id, "reward": 0.5},
            {"reward": 0.5},
        ]
    )
    kinds = [type(result).__name__ for result in results]
    assert kinds == [
        "NoneType", "ValueError", "UnknownError", "NoneType", "ConflictError", "ConflictError", "NoneType",
        "NoneType", "ValueError",
    ]  # fmt: skip
    assert one.observe_many([{"agent": "ben", "x": [1.0, 0.0], "reward": 1.0}, {"agent": "ben"}])[0] is None
    one.set_arms({"tea": [0.0, 1.0]})
    tea = {"agent": "ben", "arm": "tea", "reward": 1.0}
    known, neither, both = one.observe_many([tea, {"agent": "ben", "reward": 1.0}, {**tea, "x": [1.0, 0.0]}])
    assert (known, both) == (None, None)
    assert str(neither) == "an observation must have x or arm"
    one.export(tmp_path / "out.jsonl")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    named = [(line["arm"], line["x"]) for line in lines if line["kind"] == "observation"][-2:]
    assert named == [("tea", [0.0, 1.0]), ("tea", [1.0, 0.0])]
    assert sound(one._controller)


def test_a_correction_of_a_sample_that_was_dropped_changes_nothing(place: Place) -> None:
    """An agent that was found to have changed keeps its latest samples only."""
    one = shop(place.open(lease=SLOW), policy="cluster_mixture")
    decisions = []
    for reward in [5.0] * 60 + [-5.0] * 10:
        decisions.append(one.decide("ada", ARMS))
        one.reward(decisions[-1].id, reward)
        for name in ("ben", "cleo"):  # they stay as they were: ada has changed, not the cluster
            one.reward(one.decide(name, ARMS).id, 5.0)
    assert one.owner.read(lambda fold: fold.policy.state.drift.forgot[0]) > 180
    before = learned(one)
    one.reward(decisions[0].id, 4.0, replaces=5.0)
    assert learned(one) == before
    one.reward(decisions[-1].id, -4.0, replaces=-5.0)
    assert learned(one) != before
    assert sound(one._controller)


class Clock:
    """The time that a population sees."""

    def __init__(self, one: Population, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = one.owner.now()
        monkeypatch.setattr(Owner, "now", lambda _: self.time)

    def go(self, hours: float) -> None:
        self.time += int(hours * HOUR)


def test_missing_rewards_with_a_default(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"reward_window": 3600.0, "default_reward": 0.0}
    one = shop(place.open(lease=SLOW), **settings)
    clock = Clock(one, monkeypatch)
    early, rewarded = one.decide("ada", ARMS), one.decide("ada", ARMS)
    one.reward(rewarded.id, 1.0)
    clock.go(0.9)
    late = one.decide("ada", ARMS)
    assert one.owner.miss_rewards() == 0
    clock.go(0.2)
    assert one.owner.miss_rewards() == 1
    assert one.owner.miss_rewards() == 0
    with pytest.raises(ConflictError, match="has a reward"):
        one.cancel(early.id)
    before = one.sequence
    one.reward(early.id, 0.0)  # says what is recorded already
    assert one.sequence == before
    one.reward(early.id, 1.0)  # a default gives way to what is reported
    with pytest.raises(ConflictError, match=r"1\.0"):
        one.reward(early.id, 0.5)
    one = reopened(place, one)
    with pytest.raises(ConflictError, match=r"1\.0"):
        one.reward(early.id, 0.5)
    one.reward(early.id, 1.0)
    one.reward(late.id, 1.0)
    assert one.owner.miss_rewards() == 0
    assert sound(one._controller)


def test_missing_rewards_without_a_default(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    one = shop(place.open(lease=SLOW), reward_window=3600.0)
    clock = Clock(one, monkeypatch)
    first, second = one.decide("ada", ARMS), one.decide("ada", ARMS)
    clock.go(2)
    before = learned(one)
    assert one.owner.miss_rewards() == 2
    assert learned(one) == before
    one.reward(first.id, 1.0)
    assert learned(one) != before
    for _ in range(2):
        sequence = one.sequence
        one.reward(first.id, 1.0)
        with pytest.raises(ConflictError, match=r"1\.0"):
            one.reward(first.id, 0.0)
        assert one.sequence == sequence
        one = reopened(place, one)
    one.reward(first.id, 0.5, replaces=1.0)
    one.reward(second.id, 1.0)
    assert sound(one._controller)


def test_missing_rewards_of_rankings(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    one = shop(place.open(lease=SLOW), reward_window=3600.0, default_reward=0.0)
    clock = Clock(one, monkeypatch)
    ranking = one.decide("ada", ARMS, top=3)
    one.reward(ranking.id, 1.0, arm="tea")
    clock.go(2)
    assert one.owner.miss_rewards() == 2
    one = reopened(place, one)
    one.reward(ranking.id, 1.0, arm="coffee")
    with pytest.raises(ConflictError, match=r"1\.0"):
        one.reward(ranking.id, 0.5, arm="coffee")
    one.reward(ranking.id, 1.0, arm="tea")
    assert sound(one._controller)


def test_missing_rewards_are_written_in_order_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("memory", None)
    one = shop(place.open(lease=SLOW), reward_window=3600.0, default_reward=0.0)
    clock = Clock(one, monkeypatch)
    one.decide_many([{"agent": f"agent {n % 7}", "arms": ARMS, "id": f"{n:03d}"} for n in range(600)])
    clock.go(2)
    counts = [one.owner.miss_rewards() for _ in range(4)]
    assert sum(counts) == 600
    assert max(counts) <= 256
    rows = [row for row in one.owner.store.read(one.owner.lease.population, 0) if row.decision]
    assert [row.decision for row in rows[600:]] == [f"{n:03d}" for n in range(600)]
    assert sound(one._controller)
    place.close()


def test_rewards_of_the_forgotten(one: Population, place: Place) -> None:
    decision, other = one.decide("ada", ARMS), one.decide("ben", ARMS)
    one.observe("ada", [1.0, 0.0], 1.0, id="seen")
    one.forget("ada")
    for _ in range(2):
        before = one.sequence
        with pytest.raises(GoneError, match="forgotten"):
            one.reward(decision.id, 1.0)
        with pytest.raises(GoneError, match="forgotten"):
            one.cancel(decision.id)
        with pytest.raises(GoneError, match="forgotten"):
            one.decide("ada", ARMS, id=decision.id)
        with pytest.raises(GoneError, match="forgotten"):
            one.observe("ada", [1.0, 0.0], 1.0, id="seen")
        with pytest.raises(GoneError, match="forgotten"):
            one.sharing("ada")
        assert one.sequence == before
        one = reopened(place, one)
    one.reward(other.id, 1.0)
    one.decide("ada", ARMS)  # the name may be used again
    assert one.agents == ["ben", "ada"]
    assert sound(one._controller)


def test_the_store_is_asked_about_known_ids_only(
    place: Place, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = shop(place.open(lease=SLOW))
    asked: list[str] = []

    def watch(one: Population) -> None:
        find = one.owner.store.find
        monkeypatch.setattr(
            one.owner.store,
            "find",
            lambda number, id: asked.append(id) or find(number, id),  # type: ignore[func-returns-value]
        )

    watch(one)
    for number in range(20):
        one.decide("ada", ARMS, id=f"d{number}")
        one.reward(f"d{number}", 0.5)
        one.observe("ada", [1.0, 0.0], 0.5, id=f"o{number}")
    for wrong in ("d20", "o20", "nothing"):
        with pytest.raises(UnknownError, match="has made no decision"):
            one.reward(wrong, 1.0)
    assert asked == []
    one.snapshot()
    for archives in (False, True):  # what is known survives in a snapshot, and in a base
        if archives:
            one.archive(tmp_path, before=one.owner.now() / 1e6 + 1.0)
        one = reopened(place, one)
        asked.clear()
        watch(one)
        with pytest.raises(UnknownError):
            one.reward("nothing", 1.0)
        one.decide("ada", ARMS, id=f"new{archives}")
        assert asked == []
        before = one.sequence
        if not archives:
            one.reward("d3", 0.5)
            one.observe("ada", [1.0, 0.0], 0.5, id="o3")
            assert set(asked) == {"d3", "o3"}
            assert one.sequence == before
