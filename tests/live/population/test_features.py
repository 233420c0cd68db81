"""Agents who are described: recorded, replayed, put right, forgotten."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.live.places import ARMS, Place, shop, sound

from shoal.live.journal.records import Profiled, decode
from shoal.live.population import snapshotter
from shoal.live.population.population import Population


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place("sqlite", tmp_path / "shop.db")
    yield place
    place.close()


@pytest.fixture
def one(place: Place) -> Population:
    return shop(place.open(), policy="cluster_mixture", agent_dim=2)


def live(one: Population) -> None:
    """Two kinds of people, who are described and like different things."""
    rng = np.random.default_rng(0)
    for n in range(240):
        kind, who = n % 2, f"p{n % 12}"
        features = [40.0 * kind + rng.standard_normal(), math.nan if n % 5 == 0 else 1.0]
        decision = one.decide(who, ARMS, agent_features=features if n < 12 else None)
        one.reward(decision.id, float(ARMS[str(decision.arm)][kind] + 0.1 * rng.standard_normal()))


def records(one: Population) -> list[Profiled]:
    rows = one.owner.store.read(one.owner.number, 0, one.sequence)
    return [found for row in rows if isinstance(found := decode(row.body), Profiled)]


def test_a_newcomer_is_chosen_for_by_what_is_known(one: Population) -> None:
    live(one)
    assert one.decide("young", ARMS, agent_features=[0.0, None]).arm == "tea"
    assert one.decide("old", ARMS, agent_features=[40.0, 1.0]).arm == "coffee"
    assert np.array_equal(one.features_of("young"), [0.0, math.nan], equal_nan=True)
    assert "without features" in str(one.explain("young", "p0"))


def test_what_is_known_survives_a_crash_and_a_snapshot(one: Population, place: Place) -> None:
    live(one)
    one.set_features("p3", [41.0, None])
    state = one.owner.packed()[0]
    place.crash(one._controller)
    one = shop(place.open())
    assert one.owner.packed()[0] == state
    assert np.array_equal(one.features_of("p3"), [41.0, math.nan], equal_nan=True)
    one.snapshot()
    one.set_features("p4", [1.0, 2.0])
    state = one.owner.packed()[0]
    place.crash(one._controller)
    one = shop(place.open())
    assert one.owner.packed()[0] == state
    assert one.features_of("p4") == [1.0, 2.0]
    assert sound(one._controller)


def test_the_same_again_writes_nothing(one: Population) -> None:
    one.set_features("ada", [3.0, math.nan])
    assert one.agents == ["ada"]
    before = one.sequence
    one.set_features("ada", [3.0, None])
    assert one.sequence == before
    decision = one.decide("ada", ARMS, agent_features=[3.0, None], id="d")
    assert one.sequence == before + 1
    one.set_features("ada", [4.0, 1.0])
    assert one.decide("ada", ARMS, agent_features=[3.0, None], id="d") == decision  # a repeated request
    assert one.features_of("ada") == [4.0, 1.0]
    assert len(records(one)) == 2


@pytest.mark.parametrize("wrong", [[1.0], [1.0, 2.0, 3.0], [1.0, math.inf], "tall", [[1.0, 2.0]]])
def test_bad_features_are_refused_without_a_trace(one: Population, wrong: object) -> None:
    for call in (
        lambda: one.set_features("ada", wrong),  # type: ignore[arg-type]
        lambda: one.decide("ada", ARMS, agent_features=wrong),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="agent_features must"):
            call()
    assert one.agents == []


def test_a_policy_that_takes_none_says_so(place: Place) -> None:
    one = shop(place.open())
    with pytest.raises(ValueError, match="agent_features must be left out in population 'shop'"):
        one.decide("ada", ARMS, agent_features=[1.0])
    assert one.agents == []


def test_forgetting_takes_the_description_along(one: Population, place: Place) -> None:
    live(one)
    secret = 40.0 + math.pi
    one.set_features("p5", [secret, math.e])
    one.set_features("p5", [secret + 1.0, math.e])
    one.snapshot()
    one.forget("p5")
    found = {np.float64(value).tobytes() for value in (secret, secret + 1.0, math.e)}
    assert not [value for value in found if value in one.owner.packed()[0]]
    assert not [record for record in records(one) if any(value in record.features for value in found)]
    one._controller.close()
    place._open.clear()
    for file in Path(place.url).parent.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [value for value in found if value in content], file
    one = shop(place.open())
    assert sound(one._controller)


def test_merging_keeps_what_is_known_of_either(one: Population) -> None:
    one.set_features("ada", [3.0, None])
    one.set_features("ben", [5.0, 6.0])
    one.merge("ada", "ben")
    assert one.features_of("ben") == one.features_of("ada") == [3.0, 6.0]
    one.set_features("ben", [7.0, 8.0])
    assert one.features_of("ada") == [7.0, 8.0]
    assert sound(one._controller)


def test_other_policies_read_the_same_journal(one: Population) -> None:
    live(one)
    state = one.owner.packed()[0]
    one.switch("bass")
    with pytest.raises(ValueError, match="must be left out"):
        one.set_features("p1", [1.0, 2.0])
    one.switch_back()
    assert one.features_of("p1")[0] == pytest.approx(40.0, abs=4.0)
    one.switch("cluster_mixture", agent_dim=3)  # what was said does not fit, so nothing is known
    assert np.isnan(one.features_of("p1")).all()
    assert state != one.owner.packed()[0]
    assert sound(one._controller)


def test_predictions_are_reproduced(one: Population, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshotter.Sample.__init__, "__defaults__", (1,))
    live(one)
    report = snapshotter.write_snapshot(one._controller.store, "shop")
    assert (report.checked, report.differences) == (240, [])
