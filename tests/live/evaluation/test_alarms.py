"""Alarms: each sounds where it should, not a step before, and seldom by chance however often one looks."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.commands import call as command
from tests.live.service.running import ARMS, Caller, InProcess, wait_until

import shoal
from shoal.live.evaluation.alarms import ALARMS, AgentSums, Window, sounding
from shoal.live.journal.records import Decided, Missed, Rewarded, Row, Settings, encode
from shoal.live.population.owner import Owner
from shoal.live.protocol.answers import Alarm
from shoal.live.service import service

NOBODY = AgentSums([], *(np.zeros(0),) * 3)
N_ARMS = 4
Story = Callable[[int, np.random.Generator], dict[str, Any]]


def settings(explore: float = 0.0, reward_window: float | None = None) -> Settings:
    key = b"key"
    return Settings("bass", 1, {}, explore, None, None, reward_window, None, 0, key, "", 0.0, False, "")


def rows(n: int, story: Story, explore: float = 0.0) -> Iterator[Row]:
    """A decision a second and, unless the story says otherwise, its reward at once."""
    rng, seq = np.random.default_rng(7), 0
    for t in range(n):
        one = {"agent": t % 3, "shown": 0, "greedy": 0, "pooled": 0.0, "reward": 1.0, **story(t, rng)}
        p = explore / N_ARMS + (1.0 - explore) * (not explore or one["shown"] == one["greedy"])
        decided = Decided(
            str(t), one["agent"], b"offer", (one["shown"],), one["greedy"], p, 0.0, one["pooled"], b"", "", ()
        )
        records: list[Any] = [decided]
        if one["reward"] is not None:
            records.append(Rewarded(str(t), 0, float(one["reward"]), t))
        for record in records:
            seq += 1
            yield Row(seq, (t + 1) * 1_000_000, None, None, encode(record))


def found(n: int, story: Story, explore: float = 0.0, split: int = 0, **others: float) -> dict[str, Alarm]:
    window = Window(settings(explore, **others), split, lambda digest, place: (N_ARMS, place))
    window.take(rows(n, story, explore))
    return {one.name: one for one in sounding(window, NOBODY)}


def healthy(t: int, rng: np.random.Generator) -> dict[str, Any]:
    """Two arms, told apart by a policy that predicts them, a tenth of choices drawn."""
    drawn = rng.random() < 0.1
    shown = int(rng.integers(N_ARMS)) if drawn else t // 5 % 2
    return {"shown": shown, "greedy": t // 5 % 2, "pooled": -shown, "reward": -shown + rng.normal()}


def test_nothing_is_wrong_with_a_healthy_population() -> None:
    assert found(3_000, healthy, 0.1, 3_000) == {}
    assert found(0, healthy) == {}


def test_no_rewards() -> None:
    def until(end: int) -> Story:
        return lambda t, rng: healthy(t, rng) | ({"reward": None} if t >= end or t % 10 == 3 else {})

    assert "no rewards" not in found(300 + 99, until(300), 0.1)
    alarm = found(300 + 120, until(300), 0.1)["no rewards"]
    assert alarm.severity == "fault"
    assert "No reward has come for 120 decisions and 2.0 minutes" in alarm.sentence
    assert "the longest such gaps were 2 decisions" in alarm.sentence
    # none at all: rewards may take an hour, or as long as the population says
    assert "no rewards" not in found(3_600, until(0))
    assert "no rewards" in found(3_602, until(0))
    assert "no rewards" not in found(3_602, until(0), reward_window=7_200.0)

    def in_batches(t: int, rng: np.random.Generator) -> dict[str, Any]:
        return healthy(t, rng) | ({} if t % 200 == 0 and t <= 1_000 else {"reward": None})

    assert "no rewards" not in found(1_390, in_batches, 0.1), "gaps of 200 are usual here"
    assert "no rewards" in found(1_402, in_batches, 0.1)


def test_rewards_that_never_vary() -> None:
    def same(t: int, rng: np.random.Generator) -> dict[str, Any]:
        return healthy(t, rng) | {"reward": 0.5}

    assert "constant rewards" not in found(299, same)
    alarm = found(300, same)["constant rewards"]
    assert alarm.high == pytest.approx(1.0 - 0.05 ** (1 / 300))
    assert "constant rewards" not in found(
        300, lambda t, rng: same(t, rng) | ({"reward": 0} if t == 9 else {})
    )


def test_exploration_is_gone() -> None:
    def always(share: float) -> Story:
        return lambda t, rng: healthy(t, rng) | {"shown": int(rng.random() < share), "greedy": 0}

    alarm = found(3_000, always(0.0))["no exploration"]
    assert (alarm.value, alarm.low) == (0.0, 0.0)
    assert 0.0 < alarm.high < 0.01
    assert "as if there were 1.00 arms" in alarm.sentence
    assert "no exploration" not in found(3_000, always(0.02)), "2% are tried"
    assert "no exploration" not in found(300, always(0.0)), "too few to be sure"


def test_a_policy_that_does_not_learn() -> None:
    def predicting(wrong: float) -> Story:
        def story(t: int, rng: np.random.Generator) -> dict[str, Any]:
            one = healthy(t, rng)
            return one | {"pooled": one["pooled"] if rng.random() > wrong else rng.normal()}

        return story

    alarm = found(4_000, predicting(1.0), 0.1)["not learning"]
    assert alarm.high < 0.02
    assert alarm.low < alarm.value < alarm.high
    assert "not learning" not in found(4_000, predicting(0.0), 0.1)

    def noisy(t: int, rng: np.random.Generator) -> dict[str, Any]:
        one = healthy(t, rng)
        return one | {"reward": one["reward"] + 5.0 * rng.normal()}

    assert "not learning" not in found(4_000, noisy, 0.1), "too few to be sure"
    # a population that always shows its best arm predicts as well as the mean does: no fault
    settled: Story = lambda t, rng: healthy(t, rng) | {"shown": 0, "greedy": 0, "reward": rng.normal()}  # noqa: E731
    assert "not learning" not in found(4_000, settled, 0.0)


def test_drift() -> None:
    def turning(at: int) -> Story:
        def story(t: int, rng: np.random.Generator) -> dict[str, Any]:
            one = healthy(t, rng)
            return one | {"reward": one["reward"] + (2.0 if t >= at else 0.0)}

        return story

    alarm = found(2_400, turning(2_200), 0.1, split=4_000)["drift"]
    assert alarm.low > 0.0
    assert "drift" not in found(2_400, turning(9_999), 0.1, split=4_000)


def test_converged_and_on_what() -> None:
    def better(difference: float) -> Story:
        def story(t: int, rng: np.random.Generator) -> dict[str, Any]:
            shown = int(rng.integers(N_ARMS)) if rng.random() < 0.3 else 0
            return {"shown": shown, "pooled": 0.5 * shown, "reward": difference * (shown == 0) + rng.normal()}

        return story

    alarm = found(4_000, better(1.0), 0.3)["converged"]
    assert alarm.severity == "note"
    assert alarm.low < 0.75 < alarm.high, "an arm drawn at random is the best in a quarter"
    alarm = found(4_000, better(-1.0), 0.3)["wrong arms"]
    assert alarm.severity == "fault"
    assert alarm.low < -0.75 < alarm.high < 0.0
    assert "Too little was explored" in found(4_000, better(1.0), 0.0)["converged"].sentence


def with_defaults(
    n: int, window: int, rate: Callable[[int, int], float], split: int, pooled: float = 0.1
) -> dict[str, Alarm]:
    """A decision a second, a click at once or, `window` seconds later, a default of 0."""
    rng, due, seqs = np.random.default_rng(7), list[bool](), list[int]()
    found: list[Any] = []
    for t in range(n):
        if t >= window and due[t - window]:
            found.append(Missed(str(t - window), 0, 0.0, 0))
        shown = int(rng.integers(N_ARMS)) if rng.random() < 0.3 else 0
        p = 0.3 / N_ARMS + 0.7 * (shown == 0)
        found.append(Decided(str(t), 0, b"offer", (shown,), 0, p, 0.0, pooled, b"", "", ()))
        seqs.append(len(found))
        due.append(bool(rng.random() >= rate(t, shown)))
        if not due[t]:
            found.append(Rewarded(str(t), 0, 1.0, 0))
    first = next((t for t in range(max(n - window, 0), n) if due[t]), None)
    made = msgspec.structs.replace(settings(0.3, float(window)), default_reward=0.0)
    seen = Window(
        made, split, lambda digest, place: (N_ARMS, place), math.inf if first is None else seqs[first]
    )
    seen.take(Row(k, k * 1_000_000, None, None, encode(one)) for k, one in enumerate(found, 1))
    return {one.name: one for one in sounding(seen, NOBODY)}


def test_clicks_and_defaults_count_together() -> None:
    """Clicks come at once, and defaults a window later."""
    assert "constant rewards" not in with_defaults(2_000, 10_000, lambda t, arm: 0.3, 0), "only clicks so far"
    assert "constant rewards" in with_defaults(2_000, 100, lambda t, arm: 1.0, 0)
    assert "constant rewards" in with_defaults(2_000, 100, lambda t, arm: 0.0, 0)
    # Nothing changes: neither where defaults of the first half come in the second, nor at its end.
    for window in (100, 900, 1_500):
        assert "drift" not in with_defaults(2_000, window, lambda t, arm: 0.3, 1_500)
        assert "drift" not in with_defaults(2_000, window, lambda t, arm: 0.9, 1_500, 0.9)
    assert "drift" in with_defaults(2_000, 100, lambda t, arm: 0.1 if t < 1_000 else 0.9, 1_950)
    # Which arms are better only clicks and defaults together can tell.
    assert "wrong arms" in with_defaults(4_000, 100, lambda t, arm: 0.5 * (arm != 0), 0)
    alarm = with_defaults(4_000, 100, lambda t, arm: 0.5 * (arm == 0), 0)["converged"]
    assert alarm.low < 0.375 < alarm.high


def test_no_constant_rewards_before_the_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_800_000_000_000_000]
    monkeypatch.setattr(Owner, "now", lambda _: now[0])
    with shoal.open(":memory:") as controller:
        one = controller.population(
            "shop", policy="independent", dim=2, reward_window=1e6, default_reward=0.0
        )
        for _ in range(2):
            made = one.decide_many({"agent": f"agent {n % 3}", "arms": ARMS} for n in range(900))
            one.reward_many({"id": each.id, "reward": 1.0} for each in decided(made)[::2])
        assert "constant rewards" not in [each.name for each in one.alarms()]
        now[0] += 2_000_000_000_000
        while one.owner.miss_rewards():
            pass
        assert "constant rewards" not in [each.name for each in one.alarms()]


def test_an_agent_harmed() -> None:
    rng = np.random.default_rng(3)
    terms = rng.normal(size=(50, 400))
    terms[7] -= 1.0
    sums = [np.array([each.sum(axis=1)]).ravel() for each in (np.ones_like(terms), terms, terms * terms)]
    names: list[str | None] = [f"agent {i}" for i in range(50)]
    window = Window(settings(), 0, lambda digest, place: (2, place))
    (alarm,) = sounding(window, AgentSums(names, *sums))
    assert alarm.name == "harm"
    assert "1 agent is harmed by sharing: 'agent 7'" in alarm.sentence
    assert alarm.low < -1.0 < alarm.high < 0.0
    names[7] = None  # forgotten
    assert sounding(window, AgentSums(names, *sums)) == []


def test_chance_sounds_seldom_however_often_one_looks() -> None:
    """300 populations of 20 agents whom sharing neither helps nor harms, and in whom nothing drifts."""
    rng, harmed, drifted = np.random.default_rng(11), 0, 0
    looks = np.unique(np.geomspace(30, 1_000, 25).astype(int))
    window = Window(settings(), 0, lambda digest, place: (2, place))
    for _ in range(300):
        terms = rng.normal(size=(20, 1_000)) * rng.exponential(size=(20, 1))
        errors = rng.normal(size=2_000) ** 2
        alarms: set[str] = set()
        for n in looks:
            some = terms[:, :n]
            sums = (np.full(20, n), some.sum(axis=1), (some * some).sum(axis=1))
            window.errors = (errors[:1_000].tolist(), errors[1_000 : 1_000 + n].tolist())
            alarms |= {one.name for one in sounding(window, AgentSums(["a"] * 20, *sums))}
        harmed += "harm" in alarms
        drifted += "drift" in alarms
    assert harmed <= 15, "5% of 300"
    assert drifted <= 15


def decided(made: list[Any]) -> list[shoal.Decision]:
    assert all(isinstance(one, shoal.Decision) for one in made)
    return made


def test_of_a_population_and_by_the_doctor(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    with shoal.open(path) as controller:
        well = controller.population("shop", policy="independent", dim=2)
        made = well.decide_many({"agent": f"agent {n % 3}", "arms": ARMS} for n in range(300))
        well.reward_many({"id": one.id, "reward": n % 2} for n, one in enumerate(decided(made)))
        assert [one.name for one in well.alarms() if one.severity == "fault"] == []
        bad = controller.population("bad", policy="independent", dim=2, explore=0.0)
        made = bad.decide_many({"agent": f"agent {n % 3}", "arms": ARMS} for n in range(300))
        bad.reward_many({"id": one.id, "reward": 2.0} for one in decided(made))
        assert str(bad.alarms()[0]).startswith("constant rewards: All of the last 300 rewards are 2")
    assert command("population", "doctor", path, "shop").returncode == 0
    done = command("population", "doctor", path, "bad")
    assert done.returncode == 1
    assert "constant rewards" in done.stdout
    (alarm, *_) = json.loads(command("population", "doctor", path, "bad", "--json").stdout)
    assert (alarm["name"], alarm["severity"], alarm["value"]) == ("constant rewards", "fault", 0.0)


def test_in_metrics_and_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "EXAMINE", 0.05)
    monkeypatch.setattr(service, "RESTS", 0.0)  # or after a slow look we would wait a minute for the next
    with InProcess() as running, Caller(running.url) as call, shoal.Client(running.url) as client:
        path = call.make("quiet", policy="independent")
        call.make("shop", policy="independent")
        remote = client.population("shop")
        made = remote.decide_many({"agent": f"agent {n % 3}", "arms": ARMS} for n in range(300))
        remote.reward_many({"id": one.id, "reward": 1.0} for one in decided(made))
        lines = [f'shoal_alarm{{alarm="{kind}",population="quiet"}} 0.0' for kind in ALARMS]
        lines.append('shoal_alarm{alarm="constant rewards",population="shop"} 1.0')
        wait_until(lambda: all(line in call("GET", "/metrics").text for line in lines))
        assert call("GET", f"{path}/alarms").json() == {"alarms": []}
        assert remote.alarms() == running.app.populations["shop"].population.alarms()
        assert remote.alarms() == running.app.alarms["shop"]
        found = client._http.get(f"{running.url}/dashboard/shop/summary").json()["alarms"]
        assert [one["name"] for one in found] == [one.name for one in remote.alarms()]
        done = command("population", "doctor", running.url, "shop")
        assert (done.returncode, "constant rewards" in done.stdout) == (1, True)
