"""A journal that another version or machine wrote: its cuts count, and differences are reported."""

import warnings
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.live.journal.records import Opened, Rewarded, decode, encode
from shoal.live.journal.stores.memory import MemoryStore
from shoal.live.population.controller import Controller
from shoal.live.population.controller import open as open_controller

NAMES = ("ada", "ben", "cleo", "dan")
THETA = np.array([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])


def played() -> Controller:
    """Four agents, of whom two are alike."""
    controller, rng = open_controller(":memory:"), np.random.default_rng(0)
    shop = controller.population("shop", policy="bass", dim=3, seed=1)
    for n in range(240):
        arms = rng.standard_normal((4, 3))
        decision = shop.decide(NAMES[n % 4], arms)
        shop.reward(decision.id, float(arms[int(decision.arm)] @ THETA[n % 4] + 0.1 * rng.standard_normal()))
    return controller


def tampered(store: MemoryStore) -> tuple[str, str]:
    """Move the first cut of the journal to nowhere; between whom it was."""
    rows = store._journals[0].rows
    for place, (seq, at, agent, decision, body) in enumerate(rows):
        record = decode(body)
        if isinstance(record, Rewarded) and record.cuts:
            rest = msgspec.structs.replace(record, cuts=record.cuts[1:])
            rows[place] = (seq, at, agent, decision, encode(rest))
            return NAMES[agent], NAMES[record.cuts[0]]
    raise AssertionError("nobody was separated")


def test_recorded_cuts_are_applied_and_differences_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = played()
    before = controller.population("shop").graph()
    store: Any = controller.store
    one, two = tampered(store)
    for module in ("population.owner", "population.controller", "population.verification", "journal.fold"):
        monkeypatch.setattr(f"shoal.live.{module}.current_stamp", lambda: "another machine")
    again = Controller(store)
    with pytest.warns(
        RuntimeWarning, match="cuts are recorded and .* computed, as the journal was written by"
    ):
        shop = again.population("shop")
    after = shop.graph()
    i, j = (after.agents.index(name) for name in (one, two))
    assert not before.edges[i, j]
    assert after.edges[i, j]
    changed = np.argwhere(before.edges != after.edges)
    assert {tuple(pair) for pair in changed.tolist()} == {(i, j), (j, i)}
    decision = shop.decide(one, THETA)  # and life goes on
    shop.reward(decision.id, 1.0)


def test_the_same_stamp_is_followed_and_verified_on_request() -> None:
    controller = played()
    store: Any = controller.store
    one, two = tampered(store)
    again = Controller(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = again.population("shop").graph()
    assert after.edges[after.agents.index(one), after.agents.index(two)]
    problems = again.verify()["shop"]
    assert problems
    assert all("cuts are recorded and" in problem for problem in problems)


def test_another_stamp_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = played()
    for module in ("population.owner", "population.controller", "population.verification"):
        monkeypatch.setattr(f"shoal.live.{module}.current_stamp", lambda: "another machine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            shop = Controller(controller.store).population("shop")
    records = [decode(row.body) for row in controller.store.read(0, 0)]
    assert [record for record in records if isinstance(record, Opened)] == [Opened("another machine")]
    assert shop.sequence == len(records)
