"""Any interleaving of calls, crashes and restarts, against a model that only knows who was told what."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.core.attack.common import SCALE
from tests.live.places import ARMS, Place, sound
from tests.live.population.server import Server

from shoal.live.journal.fold import standing_of
from shoal.live.population.owner import Owner
from shoal.live.population.population import Population
from shoal.live.protocol.errors import ConflictError, GoneError, UnknownError

NAMES = ["ada", "ben", "cleo", "Дан"]
WINDOW = 3600
names = st.sampled_from(NAMES)
POLICIES = ["bass", "independent", "cluster_mixture"]
values = st.sampled_from([0.0, 0.5, 1.0, -0.25])
picks = st.integers(0, 2)


@dataclass
class Shown:
    """What the model knows of a decision: whose it is, what it showed, and the reward of each arm."""

    person: object
    ranking: tuple[str, ...]
    rewards: dict[str, float] = field(default_factory=dict)
    defaults: set[str] = field(default_factory=set)
    missed: set[str] = field(default_factory=set)
    cancelled: bool = False


class Machine(RuleBasedStateMachine):
    """A population and its model, side by side."""

    place: Place
    clock: list[int]

    @initialize(policy=st.sampled_from(POLICIES), default=st.sampled_from([None, 0.0]))
    def make(self, policy: str, default: float | None) -> None:
        self.default = default
        self.options: dict[str, Any] = {
            "policy": policy, "dim": 2, "explore": 0.3, "seed": 1, "reward_window": WINDOW,
            "default_reward": default,
        }  # fmt: skip
        if policy == "cluster_mixture":
            self.options["agent_dim"] = 2
        self.people: dict[str, object] = {}
        self.called: dict[object, str] = {}
        self.shown: dict[str, Shown] = {}
        self.samples: dict[object, list[tuple[list[float], float]]] = {}
        self.seen: dict[str, tuple[object, str, float]] = {}
        self.features: dict[object, Any] = {}
        self.forgotten: set[str] = set()
        self.open()

    def open(self) -> None:
        self.controller = self.place.open(sync="normal") if self.place.url else self.place.open()
        self.one: Population = self.controller.population("shop", **self.options)

    def person(self, name: str) -> object:
        """Whoever has this name; somebody new, if nobody has."""
        person = self.people.setdefault(name, object())
        self.called.setdefault(person, name)
        return person

    def expect(self, error: type[Exception] | None, call: Callable[[], Any]) -> Any:
        """Make a call that must be answered, or be refused without a trace."""
        if error is None:
            return call()
        before = self.one.sequence
        with pytest.raises(error):
            call()
        assert self.one.sequence == before
        return None

    # Decisions

    @rule(name=names, top=st.sampled_from([1, 1, 2]), own=st.booleans(), times=st.integers(1, 3))
    def decide(self, name: str, top: int, own: bool, times: int) -> None:
        for _ in range(times):
            key = f"own-{len(self.shown)}" if own else None
            decision = self.one.decide(name, ARMS, id=key, top=top)
            self.shown[decision.id] = Shown(self.person(name), decision.ranking)  # type: ignore[arg-type]

    @precondition(lambda self: self.shown)
    @rule(pick=picks, name=names)
    def decide_again(self, pick: int, name: str) -> None:
        key, one = self.pick(pick)
        error: type[Exception] | None = None if self.people.get(name) is one.person else ConflictError
        decision = self.expect(
            GoneError if key in self.forgotten else error,
            lambda: self.one.decide(name, ARMS, id=key, top=len(one.ranking)),
        )
        assert decision is None or decision.ranking == one.ranking

    def pick(self, number: int) -> tuple[str, Shown]:
        """One of the latest decisions, so that calls meet."""
        key = list(self.shown)[-1 - number % min(3, len(self.shown))]
        return key, self.shown[key]

    @precondition(lambda self: self.shown)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        key, one = self.pick(pick)
        error = ConflictError if one.rewards or one.missed else None
        self.expect(GoneError if key in self.forgotten else error, lambda: self.one.cancel(key))
        one.cancelled |= error is None

    # Rewards

    @precondition(lambda self: self.shown)
    @rule(pick=picks, place=st.integers(0, 1), value=values, replaces=st.none() | values)
    def reward(self, pick: int, place: int, value: float, replaces: float | None) -> None:
        key, one = self.pick(pick)
        arm = one.ranking[place % len(one.ranking)]
        recorded = one.rewards.get(arm)
        error: type[Exception] | None = None
        if key in self.forgotten:
            error = GoneError
        elif one.cancelled or (recorded is None and replaces is not None):
            error = ConflictError
        elif recorded is not None and value != recorded:
            wrong = replaces != recorded and (replaces is not None or arm not in one.defaults)
            error = ConflictError if wrong else None
        self.expect(error, lambda: self.one.reward(key, value, arm=arm, replaces=replaces))
        if error is None and value != recorded:
            one.rewards[arm] = value
            one.defaults.discard(arm)

    @precondition(lambda self: self.shown)
    @rule(pick=picks, value=values)
    def first_reward(self, pick: int, value: float) -> None:
        self.reward(pick, 0, value, None)

    @precondition(lambda self: self.shown)
    @rule(pick=picks, value=values, again=st.booleans())
    def correct(self, pick: int, value: float, again: bool) -> None:
        recorded = next(iter(self.pick(pick)[1].rewards.values()), 0.0)
        self.reward(pick, 0, recorded if again else value, recorded)

    @rule(name=names, arm=st.sampled_from(list(ARMS)), value=values, key=st.sampled_from([None, "i1", "i2"]))
    def observe(self, name: str, arm: str, value: float, key: str | None) -> None:
        error: type[Exception] | None = None
        if key in self.forgotten:
            error = GoneError
        elif key in self.seen and self.seen[key] != (self.people.get(name), arm, value):
            error = ConflictError
        self.expect(error, lambda: self.one.observe(name, ARMS[arm], value, id=key))
        if error is None and key not in self.seen:
            self.samples.setdefault(self.person(name), []).append((ARMS[arm], value))
            if key is not None:
                self.seen[key] = (self.person(name), arm, value)

    @rule()
    def time_passes(self) -> None:
        self.clock[0] += 2 * WINDOW * 1_000_000
        while self.one.owner.read(lambda fold: len(fold.pending)):  # all of them are late now
            self.one.owner.miss_rewards()
        for one in self.shown.values():
            if one.cancelled:
                continue
            for arm in set(one.ranking) - set(one.rewards) - one.missed:
                one.missed.add(arm)
                if self.default is not None:
                    one.rewards[arm] = self.default
                    one.defaults.add(arm)

    # People

    @rule(
        name=names,
        features=st.lists(st.sampled_from([None, 1.0, 2.5]), min_size=2, max_size=2),
        at_once=st.booleans(),
    )
    def describe(self, name: str, features: list[float | None], at_once: bool) -> None:
        takes = self.one.owner.read(lambda fold: fold.policy.agent_dim) > 0
        if at_once:
            decision = self.expect(
                None if takes else ValueError, lambda: self.one.decide(name, ARMS, agent_features=features)
            )
            if takes:
                self.shown[decision.id] = Shown(self.person(name), decision.ranking)
        else:
            self.expect(None if takes else ValueError, lambda: self.one.set_features(name, features))
        if takes:
            self.features[self.person(name)] = np.array(features, dtype=float)

    @rule(kind=st.sampled_from(["rename", "merge", "forget"]), name=names, other=names)
    def change_people(self, kind: str, name: str, other: str) -> None:
        if kind == "forget":
            self.forget(name)
        else:
            getattr(self, kind)(name, other)

    def rename(self, name: str, new: str) -> None:
        person = self.people.get(name)
        is_free = self.people.get(new, person) is person  # nobody's, or one of its own
        error: type[Exception] | None = None if is_free else ConflictError
        self.expect(UnknownError if person is None else error, lambda: self.one.rename(name, new))
        if person is not None and error is None:
            del self.people[self.called[person]]
            self.people[new] = person
            self.called[person] = new

    def merge(self, name: str, other: str) -> None:
        error = None if {name, other} <= set(self.people) else UnknownError
        self.expect(error, lambda: self.one.merge(name, other))
        if error is None:
            first, second = self.people[name], self.people[other]
            if first is second:
                return
            self.people = {key: first if who is second else who for key, who in self.people.items()}
            self.samples.setdefault(first, []).extend(self.samples.pop(second, []))
            nothing = np.full(2, np.nan)
            ours, theirs = self.features.get(first, nothing), self.features.pop(second, nothing)
            self.features[first] = np.where(np.isnan(ours), theirs, ours)
            for key, (who, arm, value) in self.seen.items():
                self.seen[key] = (first if who is second else who, arm, value)
            for one in self.shown.values():
                one.person = first if one.person is second else one.person

    def forget(self, name: str) -> None:
        self.expect(None if name in self.people else UnknownError, lambda: self.one.forget(name))
        if (person := self.people.get(name)) is not None:
            self.people = {key: who for key, who in self.people.items() if who is not person}
            self.forgotten |= {key for key, one in self.shown.items() if one.person is person}
            self.forgotten |= {key for key, (who, *_) in self.seen.items() if who is person}

    # Other policies

    @rule(policy=st.sampled_from([*POLICIES, None]))
    def switch(self, policy: str | None) -> None:
        if policy is None:
            error = None if len(self.one.switches) > 1 else ConflictError
            self.expect(error, self.one.switch_back)
        else:
            self.one.switch(policy)
        self.options["policy"] = self.one.settings.policy
        self.options.pop("agent_dim", None)  # it is recorded

    # Ends and beginnings

    @rule(kind=st.sampled_from(["crash", "reopen", "snapshot"]))
    def end(self, kind: str) -> None:
        if kind == "snapshot":
            self.one.snapshot()
            return
        if kind == "crash":
            self.one.settle()
            self.place.crash(self.controller)
        else:
            self.controller.close()
        self.open()
        if kind == "reopen":
            self.agrees()

    def agrees(self) -> None:
        """The journal holds what was acknowledged, once, and the state is that of just these samples."""
        assert sound(self.controller)
        assert sorted(self.people) == sorted(self.one.owner.read(lambda fold: fold.names))
        samples = {who: list(some) for who, some in self.samples.items()}
        for key, one in self.shown.items():
            rows = self.controller.store.find(self.one.owner.lease.population, key)
            assert (not rows) == (key in self.forgotten)
            if rows:
                standing = standing_of(rows)
                assert {
                    one.ranking[place]: reward for place, reward in standing.rewards.items()
                } == one.rewards
            samples.setdefault(one.person, []).extend((ARMS[arm], y) for arm, y in one.rewards.items())
        self.dividends_agree()
        for name, who in self.people.items():
            xs = np.array([x for x, _ in samples.get(who, [])]).reshape(-1, 2)
            ys = np.array([y for _, y in samples.get(who, [])])
            indexes, policy = self.one.owner.read(lambda fold: (fold.names, fold.policy))
            if policy.agent_dim:
                known = self.features.get(who, np.full(2, np.nan))
                assert np.array_equal(self.one.features_of(name), known, equal_nan=True)
            if any(round >= 0 for round in getattr(policy, "forgot", ())):
                continue  # somebody was found to have changed, and their earlier samples dropped
            expected = np.linalg.solve(policy.parameters["ridge"] * np.eye(2) + xs.T @ xs, xs.T @ ys)
            np.testing.assert_allclose(policy.local_estimate(indexes[name]), expected, atol=1e-9)

    def dividends_agree(self) -> None:
        """What sharing paid is the sum over all first arms that have a reward, of whoever they are now.

        With a default, only over decisions before the first one that still waits.
        """
        paid: dict[object, list[float]] = {}
        for key, one in self.shown.items():
            if rows := self.controller.store.find(self.one.owner.lease.population, key):
                standing, reward = standing_of(rows), one.rewards.get(one.ranking[0])
                record = standing.decided
                if self.default is not None and standing.is_pending:
                    break
                if reward is not None:
                    value = (record.own - reward) ** 2 - (record.pooled - reward) ** 2
                    paid.setdefault(one.person, []).append(value)
        for name, who in self.people.items():
            found, values = self.one.dividend(name), paid.get(who, [])
            assert found.count == len(values)
            if values:
                np.testing.assert_allclose(found.mean, np.mean(values), atol=1e-9)

    def teardown(self) -> None:
        try:
            if hasattr(self, "one"):
                self.agrees()
        finally:
            self.place.close()


def run(make_place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch, examples: int) -> None:
    clock = [1_800_000_000_000_000]
    monkeypatch.setattr(Owner, "now", lambda _: clock[0])

    def machine() -> Machine:
        one = Machine()
        one.place, one.clock = make_place(), clock
        return one

    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]  # it may be any function that makes one
        settings=settings(
            max_examples=examples * SCALE,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    run(lambda: Place("memory", None), monkeypatch, 50)


def test_in_sqlite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    count = iter(range(10**9))
    run(lambda: Place("sqlite", tmp_path / f"{next(count)}.db"), monkeypatch, 10)


def test_in_postgres(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    run(lambda: Place("postgres", server.room()), monkeypatch, 3)
