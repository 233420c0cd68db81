"""Decisions: ids, arms, catalogues, rankings, scores, probabilities, and what is refused."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.live.places import ARMS, Place, shop, sound

from shoal.core.validation import LARGEST
from shoal.live.journal.records import Decided, decode
from shoal.live.population.controller import Controller
from shoal.live.population.population import Population
from shoal.live.protocol.errors import ConflictError, UnknownError


@pytest.fixture
def controller() -> Iterator[Controller]:
    place = Place("memory", None)
    yield place.open()
    place.close()


@pytest.fixture
def one(controller: Controller) -> Population:
    return shop(controller)


def test_what_a_decision_says(one: Population) -> None:
    decision = one.decide("ada", ARMS)
    assert decision.agent == "ada"
    assert decision.arm in ARMS
    assert decision.ranking == (decision.arm,)
    assert decision.greedy == decision.arm
    assert decision.probability == 1.0
    assert decision.sequence == one.sequence == 3  # settings, joined, decided
    assert decision.scores is None
    assert one.agents == ["ada"]


def test_ids_are_ordered_by_time_and_never_the_same(one: Population) -> None:
    ids = [one.decide("ada", ARMS).id for _ in range(50)]
    assert len(set(ids)) == 50
    assert [key[:12] for key in ids] == sorted(key[:12] for key in ids)


def test_arms_without_names_are_numbered(one: Population) -> None:
    decision = one.decide("ada", [[1.0, 0.0], [0.0, 1.0]])
    assert decision.arm in (0, 1)
    one.reward(decision.id, 1.0, arm=decision.arm)


def test_the_same_request_again(place: Place) -> None:
    controller = place.open()
    one = shop(controller, explore=0.5)
    first = one.decide("ada", ARMS, id="order 7")
    one.decide("ada", ARMS)
    assert one.decide("ada", ARMS, id="order 7") == first
    one.reward("order 7", 1.0)
    assert one.decide("ada", ARMS, id="order 7") == first
    place.crash(controller)
    controller = place.open()
    one = shop(controller)
    before = one.sequence
    assert one.decide("ada", ARMS, id="order 7") == first
    assert one.sequence == before
    assert sound(controller)


@pytest.mark.parametrize(
    ("agent", "arms", "top"),
    [("ben", ARMS, 1), ("ada", {**ARMS, "tea": [1.0, 0.1]}, 1), ("ada", ARMS, 2), ("ada", [[1.0, 0.0]], 1)],
)
def test_another_request_under_an_id_is_refused(one: Population, agent: str, arms: Any, top: int) -> None:
    one.decide("ada", ARMS, id="a")
    before = one.sequence
    with pytest.raises(ConflictError, match="'a'"):
        one.decide(agent, arms, id="a", top=top)
    assert one.sequence == before


def test_the_same_request_again_has_scores_and_the_same_wishes(one: Population) -> None:
    asked: dict[str, Any] = {"id": "a", "scores": True, "sharing": "borrow", "baseline": "tea"}
    first = one.decide("ada", ARMS, **asked)
    before = one.sequence
    again = one.decide("ada", ARMS, **asked)
    assert msgspec.structs.replace(again, scores=first.scores) == first
    assert again.scores is not None
    assert again.scores.keys() == ARMS.keys()  # of now, when a reward is due
    for other in ({"baseline": "coffee"}, {"baseline": None}, {"sharing": "none"}):
        with pytest.raises(ConflictError, match="'a'"):
            one.decide("ada", ARMS, **{**asked, **other})
    one.add("ada", sharing="none")  # from now on the first request would undo a wish
    with pytest.raises(ConflictError, match="sharing is 'none'"):
        one.decide("ada", ARMS, **asked)
    assert one.sharing("ada") == "none"
    assert one.sequence == before + 1


def test_catalogue(place: Place) -> None:
    controller = place.open()
    one = shop(controller)
    with pytest.raises(ValueError, match="catalogue"):
        one.decide("ada")
    one.set_arms(ARMS)
    assert one.catalogue == ARMS
    assert one.decide("ada").arm in ARMS
    one.set_arms({"milk": [0.8, 0.6], "tea": [0.9, 0.1]})
    assert one.catalogue == {**ARMS, "tea": [0.9, 0.1], "milk": [0.8, 0.6]}
    one.retire("coffee", "water")
    place.crash(controller)
    controller = place.open()
    one = shop(controller)
    assert one.catalogue == {"tea": [0.9, 0.1], "milk": [0.8, 0.6]}
    with pytest.raises(UnknownError, match="coffee"):
        one.retire("milk", "coffee")
    with pytest.raises(ValueError, match="at least one"):
        one.retire("milk", "tea")
    assert list(one.catalogue) == ["tea", "milk"]
    assert sound(controller)


def test_a_retired_arm_is_still_rewarded(place: Place) -> None:
    controller = place.open()
    one = shop(controller)
    one.set_arms(ARMS)
    ranking = one.decide("ada", top=3)
    one.retire("tea")
    place.crash(controller)
    one = shop(place.open())
    one.reward(ranking.id, 1.0, arm="tea")
    assert "tea" not in one.catalogue
    said = r"no arm 'tea' among those on offer: it was retired on \d{4}-\d\d-\d\d at \d\d:\d\d UTC"
    one.snapshot()
    for asked in (["tea", "water"], ["tea"]):
        with pytest.raises(UnknownError, match=said):
            one.decide("ada", asked)
    with pytest.raises(UnknownError, match=said):
        one.decide("ada", baseline="tea")
    with pytest.raises(UnknownError, match="'tea' in its catalogue: it has been retired already"):
        one.retire("tea")
    with pytest.raises(UnknownError, match=r"no arm 'beer' among those on offer$"):
        one.decide("ada", ["beer"])
    place.crash(one._controller)
    one = shop(place.open())
    with pytest.raises(UnknownError, match=said):
        one.decide("ada", ["tea"])
    assert sound(one._controller)
    one.set_arms({"tea": [1.0, 0.0]})
    assert one.decide("ada", ["tea"]).arm == "tea"


def test_eligible_subsets_by_name(place: Place) -> None:
    controller = place.open()
    one = shop(controller)
    one.set_arms(ARMS)
    decision = one.decide("ada", ["water"], id="a")
    assert decision.arm == "water"
    assert one.decide("ada", {"coffee", "tea"}, id="b").arm in ("coffee", "tea")
    with pytest.raises(UnknownError, match="beer"):
        one.decide("ada", ["tea", "beer"])
    with pytest.raises(ValueError, match="at least one"):
        one.decide("ada", [])
    place.crash(controller)
    one = shop(place.open())
    assert one.decide("ada", ["water"], id="a") == decision
    one.reward("b", 1.0, arm=one.decide("ada", ["tea", "coffee"], id="b").arm)


def test_the_same_request_again_after_the_catalogue_changed(one: Population) -> None:
    """A retry must not be refused because somebody added an arm in between."""
    one.set_arms(ARMS)
    whole, part = one.decide("ada", id="a"), one.decide("ada", ["tea", "water"], id="b")
    one.set_arms({"tea": [0.5, 0.5], "milk": [0.8, 0.6]})
    one.retire("water")
    assert one.decide("ada", id="a") == whole
    assert one.decide("ada", ["water", "tea"], id="b") == part
    with pytest.raises(ConflictError):
        one.decide("ada", ["tea"], id="b")
    with pytest.raises(ConflictError):
        one.decide("ben", id="a")


def test_ranking(one: Population) -> None:
    ranking = one.decide("ada", ARMS, top=3)
    assert sorted(ranking.ranking) == sorted(ARMS)
    assert ranking.arm == ranking.ranking[0] == ranking.greedy
    assert ranking.probability is None
    with pytest.raises(ValueError, match="arm must say"):
        one.reward(ranking.id, 1.0)
    with pytest.raises(UnknownError, match="beer"):
        one.reward(ranking.id, 1.0, arm="beer")
    pair = one.decide("ada", ARMS, top=2)
    (left,) = set(ARMS) - set(pair.ranking)
    with pytest.raises(UnknownError, match="did not show"):
        one.reward(pair.id, 1.0, arm=left)
    for arm in ranking.ranking:
        one.reward(ranking.id, 0.5, arm=arm)
        one.reward(ranking.id, 0.5, arm=arm)
    with pytest.raises(ConflictError, match=r"0\.5"):
        one.reward(ranking.id, 0.0, arm="tea")
    with pytest.raises(ValueError, match="at most the number of arms"):
        one.decide("ada", ARMS, top=4)


def test_rankings_keep_their_places_over_a_crash(place: Place) -> None:
    controller = place.open()
    one = shop(controller)
    ranking = one.decide("ada", ARMS, top=3)
    one.reward(ranking.id, 1.0, arm="water")
    one.reward(ranking.id, 0.25, replaces=1.0, arm="water")
    place.crash(controller)
    controller = place.open()
    one = shop(controller)
    assert one.decide("ada", ARMS, id=ranking.id, top=3) == ranking
    with pytest.raises(ConflictError, match=r"0\.25"):
        one.reward(ranking.id, 1.0, arm="water")
    one.reward(ranking.id, 1.0, arm="tea")
    assert sound(controller)


def test_scores_of_every_arm(one: Population) -> None:
    one.observe("ada", [1.0, 0.0], 1.0)
    decision = one.decide("ada", ARMS, scores=True, top=3)
    assert decision.scores is not None
    assert list(decision.scores) == list(ARMS)
    for score in decision.scores.values():
        assert score.index == pytest.approx(score.mean + score.width)
        assert score.width > 0.0
    assert decision.ranking == tuple(sorted(ARMS, key=lambda arm: -decision.scores[arm].index))  # type: ignore[index]
    assert decision.pooled == pytest.approx(decision.scores[decision.arm].mean)


def test_recorded_probabilities_are_the_frequencies(controller: Controller) -> None:
    one = shop(controller, explore=0.3, policy="independent")
    one.observe("ada", [1.0, 0.0], 1.0)
    n = 4_000
    decisions = []
    for _ in range(n):
        decisions.append(one.decide("ada", ARMS))
        one.cancel(decisions[-1].id)
    for decision in decisions:
        assert decision.probability == pytest.approx(0.1 + 0.7 * (decision.arm == decision.greedy))
    counts = Counter(decision.arm for decision in decisions)
    for arm in ARMS:
        chances = np.array([0.1 + 0.7 * (decision.greedy == arm) for decision in decisions])
        deviation = math.sqrt(np.sum(chances * (1.0 - chances)))
        assert abs(counts[arm] - chances.sum()) < 4.0 * deviation


def test_without_exploration_a_population_is_not_evaluable(controller: Controller) -> None:
    assert not shop(controller).is_evaluable
    assert controller.population("bar", policy="bass", dim=2).is_evaluable
    assert controller.population("bar").settings.explore == 0.02


def test_what_the_journal_says_of_a_decision(one: Population, controller: Controller) -> None:
    one.observe("ada", [1.0, 0.0], 1.0)
    decision = one.decide("ada", ARMS)
    (row,) = controller.store.find(one.owner.lease.population, decision.id)
    record = decode(row.body)
    assert isinstance(record, Decided)
    assert list(ARMS)[record.shown[0]] == decision.arm
    assert (record.own, record.pooled) == (decision.own, decision.pooled)
    assert np.frombuffer(record.x).tolist() == ARMS[str(decision.arm)]
    assert controller.store.arms(one.owner.lease.population, record.arms) is not None


BAD_ARMS = [
    [[1.0]],
    [[1.0, 2.0, 3.0]],
    [],
    {},
    [[math.nan, 1.0]],
    {"tea": [math.inf, 1.0]},
    {"tea": [1e200, 1.0]},
    {"tea": [1e12, 1.0]},
    {"": [1.0, 0.0]},
    {"t" * 257: [1.0, 0.0]},
    {7: [1.0, 0.0]},
    {"tea": [1.0, 0.0], "coffee": [1.0]},
    "tea",
    5,
    object(),
]


@pytest.mark.parametrize("arms", BAD_ARMS, ids=[repr(arms)[:20] for arms in BAD_ARMS])
@pytest.mark.parametrize("agent", ["ada", "newcomer"])
def test_bad_arms_leave_nothing(one: Population, agent: str, arms: Any) -> None:
    one.decide("ada", ARMS)
    before = one.owner.packed()
    with pytest.raises(ValueError, match="arm"):
        one.decide(agent, arms, sharing="none")
    assert one.owner.packed() == before


BAD_REQUESTS: list[dict[str, Any]] = [
    {"agent": ""},
    {"agent": "a" * 257},
    {"agent": "a\0b"},
    {"agent": "\ud800"},
    {"agent": 7},
    {"agent": None},
    {"id": ""},
    {"id": "x" * 129},
    {"id": 7},
    {"id": "a\nb"},
    {"id": "\ud800"},
    {"top": 0},
    {"top": -1},
    {"top": 1.5},
    {"top": "3"},
    {"sharing": "all"},
    {"sharing": ["none"]},
]


@pytest.mark.parametrize("wrong", BAD_REQUESTS, ids=repr)
def test_bad_requests_leave_nothing(one: Population, wrong: dict[str, Any]) -> None:
    before = one.owner.packed()
    request = {"agent": "ada", "arms": ARMS, **wrong}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        one.decide(**request)
    (error,) = one.decide_many([request])
    assert isinstance(error, ValueError)
    assert one.owner.packed() == before


def test_names_of_256_characters_in_any_script(place: Place) -> None:
    controller = place.open()
    one = shop(controller)
    names = ["a" * 256, "Ада", "名" * 256, "a'; DROP TABLE journal;--", " ", "🦈"]
    for name in names:
        one.reward(one.decide(name, ARMS).id, 1.0)
    place.crash(controller)
    controller = place.open()
    assert shop(controller).agents == names
    assert sound(controller)


def test_decide_many(place: Place) -> None:
    controller = place.open()
    one = shop(controller)
    results = one.decide_many(
        [
            {"agent": "ada", "arms": ARMS, "id": "a"},
            {"agent": "ben", "arms": [[1.0]]},
            {"agent": "ada", "arms": ARMS, "id": "a"},
            {"arms": ARMS},
            {"agent": "ada", "arms": ARMS, "color": "red"},
            ["ada"],  # type: ignore[list-item]
            {"agent": "cleo", "arms": ARMS, "top": 2, "scores": True},
        ]
    )
    kinds = [type(result).__name__ for result in results]
    good, bad = "Decision", "ValueError"
    assert kinds == [good, bad, good, bad, bad, bad, good]
    assert results[0] == results[2]
    assert one.agents == ["ada", "cleo"]
    assert one.decide_many([]) == []
    with pytest.raises(ValueError, match="1,000"):
        one.decide_many([{"agent": "ada", "arms": ARMS}] * 1001)
    assert sound(controller)


def test_many_are_one_commit(durable: Place) -> None:
    controller = durable.open()
    one = shop(controller)
    assert controller.committer is not None
    before = controller.committer.commits
    decisions = one.decide_many([{"agent": f"agent {n}", "arms": ARMS} for n in range(100)])
    assert controller.committer.commits == before + 1
    one.reward_many([{"id": decision.id, "reward": 1.0} for decision in decisions])  # type: ignore[union-attr]
    assert controller.committer.commits == before + 2


def test_unhashable_and_odd_values_do_not_drop_the_state(one: Population) -> None:
    one.set_arms(ARMS)
    decision = one.decide("ada")
    before = one.owner.packed()
    for odd in ([1], {}, object(), float("nan"), b"tea"):
        with pytest.raises((ValueError, UnknownError)):
            one.reward(decision.id, 1.0, arm=odd)  # type: ignore[arg-type]
        with pytest.raises((ValueError, UnknownError)):
            one.retire(odd)  # type: ignore[arg-type]
        with pytest.raises((ValueError, UnknownError)):
            one.reward(decision.id, odd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reward"):
        one.reward(decision.id, 2 * LARGEST)
    assert one.owner.why_lost is None
    assert one.owner.packed() == before
