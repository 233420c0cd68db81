"""Agents by name: sharing, newcomers who must prove themselves, renaming, merging."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.live.places import ARMS, Place, shop, sound

from shoal.live.population.population import Population
from shoal.live.protocol.errors import ConflictError, GoneError, UnknownError


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("memory", None)
    yield place
    place.close()


@pytest.fixture
def one(place: Place) -> Population:
    return shop(place.open())


def estimate(one: Population, agent: str) -> list[float]:
    """What an agent knows, of its own and of others' samples."""
    return one.owner.read(lambda fold: fold.policy.estimate(fold.names[agent]).tolist())


def teach(one: Population, agent: str, n: int = 1) -> None:
    for _ in range(n):
        one.observe(agent, [1.0, 0.0], 1.0)


def test_both_lend_and_borrow(one: Population) -> None:
    teach(one, "ada", 5)
    one.add("ben")
    assert estimate(one, "ben") == estimate(one, "ada") != [0.0, 0.0]


def test_who_only_borrows_does_not_lend(one: Population) -> None:
    one.add("ada", sharing="borrow")
    teach(one, "ada", 5)
    one.add("ben")
    assert estimate(one, "ben") == [0.0, 0.0]
    teach(one, "cleo", 5)
    assert estimate(one, "ben") == estimate(one, "cleo")
    assert estimate(one, "ada")[0] > estimate(one, "ben")[0]  # from its own samples and cleo's


def test_who_shares_nothing(one: Population) -> None:
    one.decide("ada", ARMS, sharing="none")
    teach(one, "ben", 5)
    assert estimate(one, "ada") == [0.0, 0.0]
    assert (one.sharing("ada"), one.sharing("ben")) == ("none", "both")


def test_sharing_is_changed_and_kept(one: Population, place: Place) -> None:
    one.add("ada")
    teach(one, "ada", 5)
    one.add("ben")
    one.decide("ada", ARMS, sharing="none")
    before = one.sequence
    one.add("ada", sharing="none")
    assert one.sequence == before
    assert estimate(one, "ben") == [0.0, 0.0]
    one.decide("ada", ARMS)  # says nothing about sharing, so it stays
    place.crash(one._controller)
    one = shop(place.open())
    assert one.sharing("ada") == "none"
    one.add("ada", sharing="both")
    assert estimate(one, "ben") != [0.0, 0.0]
    assert sound(one._controller)


def test_newcomers_prove_themselves_first(place: Place) -> None:
    one = shop(place.open(), lend_after=3)
    one.add("ben")
    for n in range(3):
        assert estimate(one, "ben") == [0.0, 0.0]
        one.reward(one.decide("ada", ARMS).id, 1.0 + n)
    assert estimate(one, "ben") != [0.0, 0.0]
    assert one.sharing("ada") == "both"
    assert sound(one._controller)
    place.crash(one._controller)
    one = shop(place.open())
    assert estimate(one, "ben") != [0.0, 0.0]
    one.add("cleo", sharing="none")
    teach(one, "cleo", 5)
    assert estimate(one, "cleo")[1] == 0.0


def test_renaming(one: Population) -> None:
    decision = one.decide("ada", ARMS)
    teach(one, "ada", 3)
    known = estimate(one, "ada")
    one.rename("ada", "Ada Lovelace")
    assert one.agents == ["Ada Lovelace"]
    assert estimate(one, "Ada Lovelace") == known
    one.reward(decision.id, 1.0)
    with pytest.raises(UnknownError, match="'ada'"):
        one.rename("ada", "ben")
    one.decide("ada", ARMS)  # somebody new
    with pytest.raises(ConflictError, match="merge"):
        one.rename("ada", "Ada Lovelace")
    one.rename("ada", "ada")
    with pytest.raises(ValueError, match="name"):
        one.rename("ada", "")
    assert one.agents == ["Ada Lovelace", "ada"]
    assert sound(one._controller)


def test_renaming_to_a_second_name(one: Population, place: Place) -> None:
    for name in ("ada", "ada@work"):
        teach(one, name, 2)
    one.merge("ada", "ada@work")
    known = estimate(one, "ada")
    one.rename("ada", "ada@work")
    assert one.agents == ["ada@work"]
    assert estimate(one, "ada@work") == known
    place.crash(one._controller)
    one = shop(place.open())
    assert one.agents == ["ada@work"]
    with pytest.raises(UnknownError, match="'ada'"):
        one.explain("ada")
    one.forget("ada@work")
    assert one.agents == []
    assert sound(one._controller)


@pytest.mark.parametrize("policy", ["bass", "independent", "cluster_mixture"])
def test_merging_adds_samples(place: Place, policy: str) -> None:
    one = shop(place.open(), policy=policy)
    pending = one.decide("ada@work", [[0.0, 1.0]])
    for n in range(4):
        one.observe("ada" if n % 2 else "ada@work", [1.0, 0.1 * n], 0.3 * n)
    one.observe("ben", [0.5, 0.5], 0.1)
    one.merge("ada", "ada@work")
    assert one.agents == ["ada", "ben"]
    one.reward(pending.id, 0.7)
    one.observe("ada@work", [0.2, 0.2], 0.2)  # still a name of hers
    xs = np.array([[1.0, 0.1 * n] for n in range(4)] + [[0.0, 1.0], [0.2, 0.2]])
    ys = np.array([0.3 * n for n in range(4)] + [0.7, 0.2])
    ridge = one.owner.read(lambda fold: fold.policy.parameters["ridge"])
    local = one.owner.read(lambda fold: fold.policy.local_estimate(fold.names["ada"]).tolist())
    assert local == pytest.approx(np.linalg.solve(ridge * np.eye(2) + xs.T @ xs, xs.T @ ys).tolist())
    before = one.sequence
    one.merge("ada", "ada@work")
    assert one.sequence == before
    with pytest.raises(UnknownError, match="nobody"):
        one.merge("ada", "nobody")
    assert sound(one._controller)
    one.forget("ada@work")
    with pytest.raises(GoneError):
        one.decide("ada", ARMS, id=pending.id)
    assert one.agents == ["ben"]
    assert sound(one._controller)


def test_merging_merged_ones(one: Population, place: Place) -> None:
    decision = one.decide("a", ARMS, id="first")
    one.observe("a", [1.0, 0.0], 1.0, id="seen")
    for name in ("b", "c"):
        teach(one, name)
    one.merge("b", "a")
    one.merge("c", "b")
    place.crash(one._controller)
    one = shop(place.open())
    assert one.decide("a", ARMS, id="first").arm == decision.arm
    one.reward("first", 1.0)
    for name in "abc":
        one.observe(name, [1.0, 0.0], 1.0, id="seen")
    assert one.owner.read(lambda fold: fold.observed[fold.names["a"]]) == 4
    assert sound(one._controller)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("add", ("",)),
        ("add", (7,)),
        ("sharing", ("nobody",)),
        ("forget", ("nobody",)),
        ("rename", ("nobody", "x")),
        ("merge", ("ada", "nobody")),
        ("explain", ("nobody",)),
    ],
)
def test_bad_names_leave_nothing(one: Population, call: str, arguments: tuple[Any, ...]) -> None:
    one.add("ada")
    before = one.owner.packed()
    with pytest.raises((ValueError, UnknownError)):
        getattr(one, call)(*arguments)
    assert one.owner.packed() == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Zoe\u0308", "normal form C"),
        ("ada\u202egnp.exe", "bidirectional controls"),
        ("\u2066ada\u2069", "bidirectional controls"),
        ("ada\u200f", "bidirectional controls"),
    ],
)
def test_names_that_look_like_others_are_refused(place: Place, one: Population, name: str, said: str) -> None:
    before = one.sequence
    for call in (
        lambda: place.open().population(name, "independent", 2),
        lambda: one.decide(name, ARMS),
        lambda: one.add(name),
        lambda: one.observe(name, [1.0, 0.0], 1.0),
        lambda: one.decide("ada", {name: [1.0, 0.0]}),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    assert one.sequence == before
    for fine in ("Zo\u00eb", "\u05e2\u05d3\u05d4", "👩\u200d🚀"):
        one.add(fine)
