"""Uplift over the product's own rule: by holdout and as an apprentice, against simulated truth."""

import math

import numpy as np
import pytest
from tests.live.evaluation.shops import BANNERS, TASTE, play, shop
from tests.live.places import sound

from shoal.live.evaluation.baseline import in_holdout
from shoal.live.population.owner import Owner
from shoal.live.population.population import Population
from shoal.live.protocol.errors import ConflictError

VALUES = {name: float(TASTE @ np.array(x)) for name, x in BANNERS.items()}
RULE = "banner 0"


def serve(one: Population, days: int, agents: int, *, seed: int = 0) -> None:
    """All agents like the same; some more than others."""
    rng = np.random.default_rng(seed)
    fond = rng.normal(size=agents)
    for day in range(days):
        made = one.decide_many(
            {"agent": f"agent {n}", "id": f"{seed} {day} {n}", "baseline": RULE} for n in range(agents)
        )
        one.reward_many(
            {"id": each.id, "reward": VALUES[str(each.arm)] + fond[n] + 0.3 * rng.normal()}  # type: ignore[union-attr]
            for n, each in enumerate(made)
        )


def test_a_share_of_agents_is_held_out() -> None:
    one = shop(holdout=0.3)
    serve(one, 3, 300)
    settings = one.settings
    held = [n for n in range(300) if in_holdout(settings, n)]
    assert 60 < len(held) < 120
    for n in range(300):
        decision = one.decide(f"agent {n}", baseline=RULE)
        if n in held:
            assert (decision.arm, decision.probability) == (RULE, 1.0)
    assert any(one.decide(f"agent {n}", baseline=RULE).arm != RULE for n in range(300) if n not in held)
    assert sound(one._controller)
    with pytest.raises(ValueError, match="baseline must name what it prefers"):
        one.decide("agent 1")
    assert isinstance(one.decide_many([{"agent": "agent 1"}])[0], ValueError)


def test_uplift_of_a_holdout() -> None:
    """The interval holds the truth, which the agents' own fondness hides from a comparison of decisions."""
    held, naive = 0, 0
    best = max(VALUES.values())
    for seed in range(20):
        one = shop(holdout=0.5, explore=0.0, policy="independent")
        rng = np.random.default_rng(seed)
        agents, fond = 60, 3.0 * rng.normal(size=60)
        for n in range(agents):
            for visit in range(6):
                decision = one.decide(f"agent {n}", id=f"{n} {visit}", baseline=RULE)
                # whatever the policy shows gives as much as the best, so that the truth is simple
                value = VALUES[RULE] if in_holdout(one.settings, n) else best
                one.reward(decision.id, value + fond[n] + 0.1 * rng.normal())
        found = one.uplift()
        truth = best - VALUES[RULE]
        held += found.low <= truth <= found.high
        half = 1.96 * math.sqrt(9.0 / found.n_policy + 9.0 / found.n_baseline)
        naive += abs(found.uplift - truth) <= half
        assert found.n_policy + found.n_baseline == 360
    assert held >= 17
    assert naive < held  # decisions of one agent are not so many independent ones
    assert "per decision" in str(found)


def test_rankings_are_held_out_and_compared() -> None:
    """Each place has its own reward; a decision earns their sum."""
    one, rule = shop(holdout=0.5, explore=0.0), ["banner 0", "banner 1"]
    rng = np.random.default_rng(0)
    truth: dict[bool, list[float]] = {False: [], True: []}
    for visit in range(4):
        for n in range(60):
            made = one.decide(f"agent {n}", id=f"{n} {visit}", top=2, baseline=list(rule))
            held = in_holdout(one.settings, n)
            assert not held or list(made.ranking) == rule
            assert made.probability is None
            earned = [VALUES[str(arm)] + 0.1 * rng.normal() for arm in made.ranking]
            for arm, reward in zip(made.ranking, earned, strict=True):
                one.reward(made.id, reward, arm=arm)
            truth[held].append(sum(earned))
    found = one.uplift()
    assert found.policy == pytest.approx(np.mean(truth[False]))
    assert found.baseline == pytest.approx(np.mean(truth[True]))
    assert found.low < found.uplift < found.high
    assert one.decide("agent 1", id="1 3", top=2, baseline=list(rule)).sequence > 0
    with pytest.raises(ConflictError, match="another baseline"):
        one.decide("agent 1", id="1 3", top=2, baseline=rule[::-1])
    for wrong in ("banner 0", ["banner 0", "banner 0"], ["banner 0"] * 3):
        with pytest.raises(ValueError, match="as many different arms as top, 2, got"):
            one.decide("agent 1", top=2, baseline=wrong)
    assert sound(one._controller)
    with pytest.raises(ValueError, match="top must be 1 in population 'shop', an apprentice, got 2"):
        shop(apprentice=True).decide("agent 1", top=2, baseline=list(rule))


def test_nobody_is_on_both_sides() -> None:
    one = shop(holdout=0.5)
    serve(one, 3, 60)
    assert "nobody was on both sides" in str(one.uplift())
    held = [in_holdout(one.settings, n) for n in range(60)]
    first, second = held.index(False), held.index(True)
    before = one.uplift()
    one.merge(f"agent {first}", f"agent {second}")  # one person, who saw both
    found = one.uplift()
    assert "1 agent was on both sides and left out" in str(found)
    assert (found.n_policy, found.n_baseline) == (before.n_policy - 3, before.n_baseline - 3)


def test_too_few_agents() -> None:
    one = shop(holdout=0.1)
    serve(one, 3, 12)
    found = one.uplift()
    assert "an interval needs 10 of each" in found.sentence
    assert math.isnan(found.uplift)
    assert str(found) == found.sentence
    with pytest.raises(ValueError, match="compares with nothing: make it with a holdout"):
        shop().uplift()


def test_clicks_do_not_count_before_the_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the latest decisions only clicks are known: counting them would double the share of clicks."""
    now = [1_800_000_000_000_000]
    monkeypatch.setattr(Owner, "now", lambda _: now[0])
    one = shop(holdout=0.5, explore=0.5, reward_window=10.0, default_reward=0.0)

    def clicked(day: int) -> None:
        for n in range(60):
            made = one.decide(f"agent {n}", id=f"{day} {n}", baseline=RULE)
            if n % 3 == 1:
                one.reward(made.id, 1.0)

    clicked(0)
    now[0] += 20_000_000
    while one.owner.miss_rewards():
        pass
    before, value = one.uplift(), one.evaluate("independent").logged
    clicked(1)
    after = one.uplift()
    assert before.n_policy + before.n_baseline == 60
    assert (after.policy, after.baseline, after.n_policy) == (before.policy, before.baseline, before.n_policy)
    assert one.evaluate("independent").logged == value


def test_an_apprentice_only_looks_on() -> None:
    one = shop(apprentice=True, explore=0.0)
    serve(one, 4, 20)
    assert {one.decide(f"agent {n}", baseline=RULE).arm for n in range(20)} == {RULE}
    found = one.uplift()
    assert "chance did so 0 times: it would take more than" in found.sentence
    assert found.baseline == pytest.approx(np.mean([VALUES[RULE]]), abs=1.0)
    assert sound(one._controller)


def test_uplift_of_an_apprentice() -> None:
    one = shop(apprentice=True, explore=0.4)
    serve(one, 120, 20)
    found = one.uplift()
    assert not found.sentence
    # What the policy would have chosen, decision by decision, is recorded; its true value is known here.
    rows = one.owner.store.read(one.owner.number, 0)
    from shoal.live.journal.records import Decided, decode

    names = list(BANNERS)
    greedy = [VALUES[names[d.greedy]] for row in rows if isinstance(d := decode(row.body), Decided)]
    truth = float(np.mean(greedy)) - VALUES[RULE]
    assert found.low < truth < found.high
    assert found.low > 0.0
    assert found.policy - found.baseline == pytest.approx(found.uplift)


def test_baselines_are_recorded_where_nothing_is_compared() -> None:
    one = shop()
    play(one, 2, baseline=RULE)
    assert sound(one._controller)
