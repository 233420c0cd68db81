"""The dividend of sharing: the fold's sums against a loop over the export."""

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.live.evaluation.shops import BANNERS, TASTE, play, shop
from tests.live.places import Place, sound

from shoal.live.evaluation.dividends import by_agent, summed
from shoal.live.evaluation.sequences import asymptotic, empirical_bernstein
from shoal.live.journal import snapshots
from shoal.live.journal.records import Forgotten
from shoal.live.journal.tally import Sums
from shoal.live.population.owner import Owner
from shoal.live.population.population import Population


def exported(one: Population, path: Path) -> list[dict[str, Any]]:
    one.export(path / "out.jsonl")
    return [json.loads(line) for line in (path / "out.jsonl").read_text().splitlines()]


def naive(lines: list[dict[str, Any]], agent: str | None = None) -> list[float]:
    """The dividend of each reward, from what the journal exports."""
    return [
        (line["own"] - line["reward"]) ** 2 - (line["pooled"] - line["reward"]) ** 2
        for line in lines
        if line["reward"] is not None and line["place"] == 0 and agent in (None, line["agent"])
    ]


def agrees(one: Population, path: Path) -> None:
    lines = exported(one, path)
    for agent in (None, *one.agents):
        terms, found = naive(lines, agent), one.dividend(agent)
        assert found.count == len(terms)
        if terms:
            assert found.mean == pytest.approx(np.mean(terms), rel=1e-9, abs=1e-9)
            in_window = one.dividend(agent, since=0.0)
            assert in_window.count == found.count
            assert in_window.mean == pytest.approx(found.mean, abs=1e-9)


def test_sums_are_those_of_the_journal(tmp_path: Path) -> None:
    one = shop(reward_window=1e8)
    play(one, 8)
    agrees(one, tmp_path)
    one.reward("1-1", 4.0, replaces=one.owner.commands.find(one.owner._fold, "1-1").rewards[0])  # type: ignore[arg-type, union-attr]
    one.reward("0-0", 1.0)  # which had not come
    ranking = one.decide("agent 3", top=2, id="ranking").ranking
    one.reward("ranking", 1.0, arm=ranking[1])  # nothing was predicted of it
    agrees(one, tmp_path)
    one.reward("ranking", -1.0, arm=ranking[0])
    one.observe("agent 2", [1.0, 0.0, 0.0], 3.0)
    one.merge("agent 1", "agent 5")
    agrees(one, tmp_path)
    play(one, 3, first=20)
    agrees(one, tmp_path)
    one.forget("agent 4")
    one.settle()
    agrees(one, tmp_path)
    assert sound(one._controller)
    terms = naive(exported(one, tmp_path))
    found = one.dividend()
    assert (found.low, found.high) == pytest.approx(
        asymptotic(Sums(len(terms), math.fsum(terms), float(np.square(terms).sum())))
    )


def test_late_rewards_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [1_800_000_000_000_000]
    monkeypatch.setattr(Owner, "now", lambda _: now[0])
    one = shop(reward_window=10.0, default_reward=0.0)
    other = shop(reward_window=10.0)
    for each in (one, other):
        play(each, 3)
        now[0] += 100_000_000
        each.owner.miss_rewards()
        agrees(each, tmp_path)
        assert each.dividend().count == (30 if each is one else 26)
        each.reward("0-0", 2.0)
        each.reward("1-6", -1.0)
        each.reward("1-6", -2.0, replaces=-1.0)
        agrees(each, tmp_path)
        assert each.dividend().count == (30 if each is one else 28)
        assert sound(each._controller)


def test_clicks_do_not_count_before_the_window_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the latest decisions only clicks are known. What counts is what counted when they were made."""
    now = [1_800_000_000_000_000]
    monkeypatch.setattr(Owner, "now", lambda _: now[0])
    place = Place("memory", None)
    one = shop(place.open(), reward_window=10.0, default_reward=0.0)

    def clicked(day: int) -> None:
        for n in range(60):
            made = one.decide(f"agent {n % 12}", id=f"{day} {n}")
            if n % 3 == 1:
                one.reward(made.id, 1.0)

    def windows_end() -> None:
        now[0] += 20_000_000
        while one.owner.miss_rewards():
            pass

    clicked(0)
    assert (one.dividend().count, one.dividend(since=0.0).count) == (0, 0)
    windows_end()
    agrees(one, tmp_path)
    before, alone = one.dividend(), one.dividend("agent 7")
    assert before.count == 60
    clicked(1)
    assert (one.dividend(), one.dividend("agent 7")) == (before, alone)
    assert one.dividend(since=0.0).count == one.what_if(gamma=2.0).present.count == 60
    # Corrected, forgotten, merged and cancelled before they count, and saved with the state.
    one.reward("1 1", 3.0, replaces=1.0)
    one.cancel("1 0")
    assert one.dividend().count == 61, "the first that still waits is the third"
    one.merge("agent 4", "agent 7")
    one.forget("agent 2")
    one.settle()
    assert one.dividend().count == 56, "five were of agent 2"
    assert sound(one._controller)
    one.snapshot()
    copy = snapshots.load(one.owner.store, one.owner.number)
    copy.forget(Forgotten((copy.names["agent 0"],)))
    assert {standing.decided.agent for standing in copy.uncounted.values()} == {1, 3, 4, 5, 6, 8, 9, 10, 11}
    place.crash(one._controller)
    one = shop(place.open())
    windows_end()
    agrees(one, tmp_path)
    assert one.dividend().count == 109
    assert one.owner._fold.uncounted == {}  # type: ignore[union-attr]
    assert sound(one._controller)


def test_a_window_has_only_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [1_800_000_000_000_000]
    monkeypatch.setattr(Owner, "now", lambda _: now[0])
    one = shop()
    play(one, 4)
    now[0] += 3_600_000_000
    play(one, 6, first=10)
    late = [line for line in exported(one, tmp_path) if int(str(line["id"]).split("-")[0]) >= 10]
    found = one.dividend(since=now[0] / 1e6)
    assert found.count == len(naive(late))
    assert found.mean == pytest.approx(np.mean(naive(late)))
    with pytest.raises(ValueError, match="since must have a time zone"):
        one.dividend(since=datetime(2027, 1, 1))


def test_predictions_end_where_rewards_do(tmp_path: Path) -> None:
    one = shop(reward_range=(-1, 1))
    for n in range(60):
        decision = one.decide(f"agent {n % 4}", id=str(n))
        one.reward(str(n), float(np.clip(5 * TASTE @ BANNERS[str(decision.arm)], -1, 1)))
    lines = exported(one, tmp_path)
    for line in lines:
        line["own"], line["pooled"] = np.clip([line["own"], line["pooled"]], -1, 1)
    terms, found = naive(lines), one.dividend(method="bernstein")
    assert found.mean == pytest.approx(np.mean(terms), abs=1e-12)
    sums = Sums(len(terms), math.fsum(terms), float(np.square(terms).sum()))
    assert (found.low, found.high) == pytest.approx(empirical_bernstein(sums, -4.0, 4.0))
    with pytest.raises(
        ValueError, match="'bernstein' needs a reward_range, which says how large rewards can be"
    ):
        shop().dividend(method="bernstein")
    with pytest.raises(ValueError, match="method must be"):
        one.dividend(method="other")


def poisoned(one: Population, rounds: int) -> None:
    """One honest agent among others whose rewards are those of an opposite taste."""
    rng = np.random.default_rng(0)
    for n in range(rounds):
        for name in ("honest", "false 1", "false 2"):
            decision = one.decide(name, id=f"{n} {name}")
            sign = 1.0 if name == "honest" else -1.0
            one.reward(decision.id, float(sign * TASTE @ BANNERS[str(decision.arm)] + 0.3 * rng.normal()))


def test_harm_shows() -> None:
    """Among agents of an opposite taste, with a policy that never cuts."""
    one = shop(delta=1e-9, noise_scale=50.0)
    poisoned(one, 80)
    assert one.dividend("honest").high < 0.0


def test_each_agent_has_its_own() -> None:
    one = shop()
    play(one, 6)
    found = by_agent(one.owner)
    assert found == {name: one.dividend(name) for name in one.agents}
    one.add("new")
    assert str(one.dividend("new")) == "Too early to say whether sharing pays: 0 rewards since the start."


@pytest.mark.parametrize(
    ("terms", "verdict", "words"),
    [
        ([0.5, 0.7], "too early", "Too early to say whether sharing pays: 2 rewards since"),
        ([1.0, -1.0] * 50, "too early", "Too early to say whether sharing pays: 0 (−0."),
        ([0.0] * 40, "no difference", "Sharing makes no difference to any prediction, over 40 rewards since"),
        (
            [1.0, 2.0] * 500,
            "pays",
            "Sharing pays: 1.5 (1.45 to 1.55) less squared error per reward, over 1,000",
        ),
        (
            [-1.0, -2.0] * 500,
            "harms",
            "Sharing harms: 1.5 (1.45 to 1.55) more squared error per reward, over",
        ),
    ],
)
@pytest.mark.parametrize(("since", "window"), [(None, "the start"), (0.0, "1970-01-01 00:00 UTC")])
def test_one_verdict(terms: list[float], verdict: str, words: str, since: float | None, window: str) -> None:
    sums = Sums(len(terms), math.fsum(terms), math.fsum(one * one for one in terms))
    found = summed(sums, shop().settings, since=since)
    assert found.verdict == verdict
    assert found.text.startswith(words)
    assert found.text.endswith(f" since {window}.")


def test_nothing_shared_makes_no_difference() -> None:
    one = shop(policy="independent")
    play(one, 6)
    assert one.dividend().verdict == "no difference"
