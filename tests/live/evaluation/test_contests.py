"""Contests: shadows are what the journal says, the better surely wins, equals are seldom told apart."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import call as command
from tests.live.evaluation.shops import BANNERS, play, shop
from tests.live.places import Place
from tests.live.service.running import Caller, InProcess, wait_until

import shoal
from shoal.live.evaluation import contests
from shoal.live.evaluation.contests import Compared, compared
from shoal.live.evaluation.logs import complete, is_evaluable, outcomes
from shoal.live.evaluation.rehearsal import other_settings, refold, take_over
from shoal.live.population.owner import Owner
from shoal.live.protocol.answers import ContestStanding
from shoal.live.service import service

LAZY = {"policy": "independent", "alpha": 8.0}
"""Explores for ever, so that almost any other policy earns more."""
EAGER = {"policy": "independent", "alpha": 0.1}


def lazy(controller: Any = None, **settings: Any) -> shoal.Population:
    return shop(controller, **{**LAZY, "explore": 0.4, **settings})


def stands(population: shoal.Population) -> ContestStanding:
    found = population.contest()
    assert found is not None
    return found


def anew(population: shoal.Population) -> ContestStanding:
    """The standing from shadows that start from nothing."""
    population.owner.shadows = None
    return stands(population)


# What it says


def by_hand(population: shoal.Population, candidate: str) -> list[float]:
    """Terms of the difference, by folding the journal once for each decision."""
    fold, exporter, found = outcomes(population.owner)
    assert fold.contest is not None
    began, settings = fold.contest[0], other_settings(fold.settings, candidate, {})
    rows = list(population.owner.store.read(population.owner.number, 0))
    places = {row.decision: row.seq for row in reversed(rows) if row.decision}
    terms = []
    for one in complete(settings, found):
        seq = places[one.decided.id]
        if seq <= began or not is_evaluable(one):
            continue
        policy = refold(population.owner, settings, seq - 1).policy
        features = exporter.offer(one.decided.arms).features
        value = [float(policy.predict(one.decided.agent, x).pooled) for x in features]
        arm, other = int(policy.choose(one.decided.agent, features).arm), one.decided.greedy
        shown = one.decided.shown[0]
        assert one.reward is not None
        assert one.decided.probability is not None
        weight = ((shown == arm) - (shown == other)) / one.decided.probability
        terms.append(value[arm] - value[other] + weight * (one.reward - value[shown]))
    return terms


def test_a_shadow_is_what_the_candidate_would_have_chosen() -> None:
    population = lazy()
    play(population, 3, 5)  # it learns from these, and is not judged by them
    population.contest("bass")
    play(population, 6, 5, first=3)
    population.cancel(population.decide("agent 1").id)
    made = population.decide("agent 2")
    population.reward(made.id, 1.0)
    population.reward(made.id, -2.0, replaces=1.0)
    (found,) = stands(population).candidates
    terms = by_hand(population, "bass")
    assert found.decisions == len(terms)
    assert found.difference == pytest.approx(np.mean(terms))
    assert 0 < found.differs < found.decisions


def test_clicks_do_not_count_before_the_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do decisions in which both prefer the same arm."""
    now = [1_800_000_000_000_000]
    monkeypatch.setattr(Owner, "now", lambda _: now[0])
    population = lazy(reward_window=10.0, default_reward=0.0)
    population.contest("bass")

    def clicked(day: int) -> ContestStanding:
        for n in range(40):
            made = population.decide(f"agent {n % 4}", id=f"{day} {n}")
            if n % 3 == 1:
                population.reward(made.id, 1.0)
        return stands(population)

    assert clicked(0).candidates[0].decisions == 0
    now[0] += 20_000_000
    while population.owner.miss_rewards():
        pass
    before = stands(population)
    assert before.candidates[0].decisions == 40
    assert 0 < before.candidates[0].differs < 40
    assert clicked(1) == before
    assert anew(population) == before
    assert before.candidates[0].difference == pytest.approx(np.mean(by_hand(population, "bass")))


def test_it_reads_on_from_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit what it is from the start, also once a person is forgotten, who is in none of it."""
    population = lazy()
    population.contest("bass", EAGER)
    started: list[Any] = []
    real = contests.Shadows

    def counted(*given: Any) -> contests.Shadows:
        started.append(given)
        return real(*given)

    monkeypatch.setattr(contests, "Shadows", counted)
    for first in range(0, 12, 3):
        play(population, 3, 6, first=first)
        stands(population)
    assert not started, "shadows were made once, and read on"
    known = stands(population)
    assert anew(population) == known
    population.forget("agent 1")
    without = stands(population)
    assert without.candidates[0].decisions < known.candidates[0].decisions
    assert anew(population) == without
    assert without.candidates[0].difference == pytest.approx(np.mean(by_hand(population, "bass")))


def test_what_is_refused_changes_nothing() -> None:
    population = lazy()
    before = population.sequence
    for given, options, said in (
        (["bass"], {"when": "soon"}, "when must be one of 'surely better', got 'soon'"),
        (["bass"], {"share": 1.5}, "share must be"),
        (["bass"], {"share": 0.0}, "share must be above 0"),
        (["club"], {}, "club"),
        ([LAZY], {}, "candidates must differ"),
        (["bass", "bass"], {}, "candidates must differ"),
        ([{"alpha": 0.1 * n} for n in range(1, 10)], {}, "at most 8, got 9"),
        ([{"policy": "bass", "beth": 1}], {}, "beth"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            population.contest(*given, **options)
    with pytest.raises(ValueError, match="share must be above 0 where nothing is explored"):
        lazy(explore=0.0).contest("bass")
    assert (population.sequence, population.contest()) == (before, None)
    population.contest("bass")
    population.contest("bass")  # the same again
    assert population.sequence == before + 1
    with pytest.raises(shoal.ConflictError, match="has another contest"):
        population.contest(EAGER)
    population.end_contest(by="Ada")
    population.end_contest()
    assert (population.sequence, population.contest()) == (before + 2, None)


CLICKS = {**EAGER, "rewards": "binary"}


def test_candidates_may_learn_clicks_as_clicks() -> None:
    population, rng = lazy(), np.random.default_rng(0)

    def visits(n: int, reward: Callable[[], float]) -> None:
        for visit in range(n):
            made = population.decide(f"user {visit % 5}")
            population.reward(made.id, reward())

    visits(30, lambda: float(rng.random() < 0.3))
    population.contest(CLICKS, EAGER)
    visits(60, lambda: float(rng.random() < 0.3))
    before = stands(population)
    assert [one.verdict for one in before.candidates] == ["too early to say"] * 2
    assert before.candidates[0].differs > 0
    assert str(anew(population)) == str(before)
    # A reward that is no click puts out the candidate that cannot learn it, and nobody else.
    visits(1, lambda: 0.5)
    visits(10, lambda: 1.0)
    for found in (stands(population), anew(population)):
        clicks, numbers = found.candidates
        assert (clicks.verdict, clicks.low) == ("out", -np.inf)
        assert 'reward must be 0 or 1 with rewards="binary", got 0.5' in str(found)
        assert numbers.decisions == before.candidates[1].decisions + 11
    population.end_contest()
    seq = population.owner.read(lambda fold: fold.seq)
    with pytest.raises(ValueError, match="must be 0 or 1"):
        population.contest(CLICKS)
    assert population.owner.read(lambda fold: fold.seq) == seq  # nothing was begun
    assert population.contest() is None


def test_the_share_is_explored_while_the_contest_is_on() -> None:
    population = lazy(explore=0.0)

    def probabilities() -> set[float | None]:
        return {population.decide("ada").probability for _ in range(20)}

    assert probabilities() == {1.0}
    population.contest("bass", share=0.4)
    assert population.is_evaluable
    assert {round(p or 0.0, 9) for p in probabilities()} == {0.1, 0.7}
    population.end_contest()
    assert probabilities() == {1.0}


# Who wins


def test_the_better_one_takes_over_only_if_told_to(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shoal.open(path) as controller:
        population = lazy(controller)
        population.contest(EAGER, when="surely better", by="Ada")
        sequence = None
        for first in range(0, 200, 20):
            play_at_once(population, 20, first)
            found = stands(population)
            if found.switched is not None:
                sequence = found.switched
                break
        assert sequence is not None
        assert found.candidates[0].low > 0.0
        assert "Switched to independent" in str(found)
        assert population.contest() is None, "it is over"
        assert (population.switches[-1].by, population.switches[-1].sequence) == ("contest", sequence)
        assert population.settings.parameters["alpha"] == 0.1
        assert population.settings.explore == 0.4
        play(population, 1, first=500)
        before = population.decide("ada", id="again")
    with shoal.open(path) as controller:
        population = controller.population("shop")
        assert population.decide("ada", id="again").arm == before.arm
        assert controller.verify() == {"shop": []}
        population.switch_back(by="Ada")
        assert population.settings.parameters["alpha"] == 8.0
        # the same again, and nobody told it to switch
        population.contest(EAGER)
        play_at_once(population, 200, 1_000)
        assert stands(population).candidates[0].verdict == "surely better"
        assert stands(population).switched is None
        assert population.settings.parameters["alpha"] == 8.0


def play_at_once(population: shoal.Population, days: int, first: int, agents: int = 10) -> None:
    """As `play`, a day in one commit."""
    rng = np.random.default_rng(first)
    taste = np.array([1.5, -1.0, 0.5])
    for day in range(first, first + days):
        made: Any = population.decide_many({"agent": f"agent {n}", "id": f"{day}-{n}"} for n in range(agents))
        population.reward_many(
            {"id": one.id, "reward": float((-1) ** n * taste @ BANNERS[one.arm] + 0.3 * rng.normal())}
            for n, one in enumerate(made)
        )


def test_a_contest_that_ended_meanwhile_switches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    population = lazy()
    population.contest(EAGER, when="surely better")
    sure = Compared(100, 50, 40, 1.0, 0.5, 1.5)
    monkeypatch.setattr(contests, "compared", lambda *_, **__: sure)
    real = take_over

    def slow(*given: Any) -> int:
        population.end_contest()
        return real(*given)

    monkeypatch.setattr(contests, "take_over", slow)
    with pytest.raises(shoal.ConflictError, match="should no longer be switched"):
        population.contest()
    assert [one.by for one in population.switches] == [""]


@pytest.mark.parametrize("kind", ["noise", "clicks", "losses", "heavy"])
def test_equals_are_seldom_told_apart_however_often_one_looks(kind: str) -> None:
    """400 contests of two candidates with a policy that is as good; 20 looks at each."""
    rng, n, wrong = np.random.default_rng(17), 4_000, 0
    kinds: dict[str, Callable[[], Any]] = {
        "noise": lambda: rng.normal(size=n),
        "clicks": lambda: (rng.random(n) < 0.05).astype(float),
        "losses": lambda: -(rng.random(n) < 0.02).astype(float),
        "heavy": lambda: rng.standard_t(3, size=n),
    }
    draw = kinds[kind]
    looks = np.unique(np.geomspace(60, n, 20).astype(int))
    for _ in range(400):
        explore, n_arms, rewards, told = rng.choice([0.1, 0.3]), rng.integers(2, 6), draw(), False
        p = explore / n_arms + (1.0 - explore)
        usual = rng.random(n) < p
        predicted, expected = rewards.mean() + 0.1 * rng.normal(size=n), np.zeros(n)
        for _ in range(2):
            its = ~usual & (rng.random(n) < 1.0 / (n_arms - 1))
            weights = np.where(usual, -1.0 / p, its * n_arms / explore)
            for end in looks:
                parts = (each[:end] for each in (weights, expected, predicted, rewards))
                told |= compared(*parts, agreed=0, level=0.975).low > 0.0
        wrong += told
    assert wrong <= 20, "5% of 400"


# Over processes


WORKER = """
import sys, shoal
from tests.live.evaluation.test_contests import EAGER, lazy, play_at_once
controller = shoal.open(sys.argv[1])
population = lazy(controller)
population.contest("bass", EAGER, when="surely better", by="Ada")
print("ready", flush=True)
for first in range(10_000):
    play_at_once(population, 1, first)
    population.contest()
    print(population.sequence, len(population.switches), flush=True)
"""


def test_killed_it_goes_on_exactly(tmp_path: Path) -> None:
    """What was recorded is there, and the standing is that of somebody who was never killed."""
    path = tmp_path / "shop.db"
    for lines in (6, 9):
        program = WORKER.replace("range(10_000)", f"range({1000 * lines}, 10_000)")
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert process.stdout is not None
        for _ in range(lines):
            line = process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(20)
        process.stdout.close()
        with shoal.open(path) as controller:
            population = controller.population("shop")
            assert population.sequence >= int(line.split()[0])
            found = stands(population)
            assert (found.when, found.by) == ("surely better", "Ada")
            assert anew(population) == found
            assert controller.verify() == {"shop": []}


def test_a_restart_goes_on(place: Place) -> None:
    """On every store, from a snapshot and from the journal alone."""
    with place.open(lease=30.0) as controller:
        population = lazy(controller)
        population.contest("bass", EAGER, share=0.3)
        play_at_once(population, 5, 0)
        before = stands(population)
    for first, saves in ((10, True), (20, False)):
        with place.open(lease=30.0) as controller:
            population = controller.population("shop")
            assert stands(population) == before
            play_at_once(population, 1, first)
            if saves:
                population.snapshot()
            before = stands(population)
            assert before.candidates[0].decisions == 50 + first
            assert before.share == 0.3


def test_archived_decisions_count(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with shoal.open(tmp_path / "shop.db") as controller:
        population = lazy(controller)
        population.contest(EAGER)
        play_at_once(population, 20, 0)
        before = stands(population)
        population.archive(tmp_path, before=population.owner.now() / 1e6 + 1.0)
        assert anew(population) == before
        play_at_once(population, 2, 50)
        assert stands(population).candidates[0].decisions == before.candidates[0].decisions + 20


def test_on_the_command_line(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    with shoal.open(path) as controller:
        play_at_once(lazy(controller), 3, 0)

    def run(*arguments: str) -> Any:
        done = command("population", "contest", path, "shop", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert run() is None
    found = run("--candidate", "independent,alpha=0.1", "--candidate", "bass", "--switch", "--share", "0.3")
    assert (found["when"], found["share"]) == ("surely better", 0.3)
    assert [one["name"] for one in found["candidates"]] == ["independent, alpha=0.1", "bass"]
    assert found["candidates"][0]["parameters"]["alpha"] == 0.1
    shown = command("population", "contest", path, "shop").stdout
    assert "too early to say" in shown
    assert run("--end") is None
    assert command("population", "contest", path, "shop", "--switch").returncode == 2


def test_a_service_switches_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "EXAMINE", 0.05)
    monkeypatch.setattr(service, "RESTS", 0.0)  # or after a slow look we would wait a minute for the next
    path = str(tmp_path / "shop.db")
    with shoal.open(path) as controller:
        lazy(controller)
    with InProcess(path) as running, Caller(running.url) as call, shoal.Client(running.url) as client:
        here = running.app.populations["shop"].population
        remote = client.population("shop")
        assert remote.contest() is None
        found = remote.contest(EAGER, when="surely better")
        assert found is not None
        assert call("GET", "/v1/populations/shop/contest").json()["contest"]["candidates"][0]["low"] is None
        wrong = {"candidates": [{"policy": "os:system"}]}
        assert call("PUT", "/v1/populations/shop/contest", wrong).status_code == 422
        for day in range(0, 400, 10):
            play_at_once(here, 10, day)
            if len(here.switches) > 1:
                break
        wait_until(lambda: remote.switches()[-1].by == "contest")
        wait_until(lambda: running.app.contests["shop"] is None)
        assert remote.contest() is None
        remote.contest("bass")
        remote.end_contest()
        assert remote.contest() is None
        events = remote.events(after=here.sequence - 2).events
        assert [(one.kind, one.by) for one in events] == [("contested", None)] * 2
