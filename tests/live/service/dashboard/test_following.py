"""What is kept of the journal for pictures over time, and going back in it."""

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.live.service.dashboard.worlds import few, many

from shoal.live.population.controller import open as open_controller
from shoal.live.service.dashboard import data, following
from shoal.live.service.dashboard.following import COLUMNS, DELAYS, Follower, Ring

ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "water": [0.6, 0.8]}


def totals(follower: Follower) -> dict[str, float]:
    follower.catch_up()
    found = data.overview(follower, 900)
    return {name: sum(values) for name, values in found.sums.items()}


def test_sums_are_those_of_what_was_decided_and_rewarded() -> None:
    with open_controller(":memory:") as controller:
        shop = controller.population("shop", policy="bass", dim=2, explore=0.5, seed=1)
        follower = Follower(shop)
        rng = np.random.default_rng(1)
        made = [shop.decide(f"agent {k % 7}", ARMS) for k in range(200)]
        rewards = {one.id: float(rng.normal()) for one in made[:150]}
        for id, reward in rewards.items():
            shop.reward(id, reward)
        shop.cancel(made[199].id)
        shop.observe("agent 1", [1.0, 0.0], 0.5)
        found = totals(follower)
        rewarded = made[:150]
        y = np.array([rewards[one.id] for one in rewarded])
        assert found["decisions"] == 200
        assert found["explored"] == sum(one.arm != one.greedy for one in made)
        assert (found["rewards"], found["matched"], found["observed"], found["cancelled"]) == (150, 150, 1, 1)
        assert found["joined"] == 7
        assert found["reward"] == pytest.approx(y.sum(), rel=1e-5)
        own, pooled = (np.array([getattr(one, what) for one in rewarded]) for what in ("own", "pooled"))
        paid = (own - y) ** 2 - (pooled - y) ** 2
        assert found["dividend"] == pytest.approx(paid.sum(), rel=1e-4)
        assert found["squares"] == pytest.approx((paid**2).sum(), rel=1e-5)
        # what arms drawn uniformly would have earned: by inverse probabilities, of three arms each
        weights = np.array([1 / 3 / float(one.probability or 0.0) for one in rewarded])
        assert found["weight"] == pytest.approx(weights.sum(), rel=1e-5)
        assert found["weighted"] == pytest.approx((weights * y).sum(), rel=1e-4)
        chosen = Counter(str(one.arm) for one in made)
        for arm in data.arms(follower).arms:
            assert arm.chosen == chosen[arm.name]
            mine = [rewards[one.id] for one in rewarded if one.arm == arm.name]
            assert arm.rewards == len(mine)
            assert arm.mean_reward == pytest.approx(np.mean(mine))


def test_clicks_count_with_the_defaults_of_earlier_decisions() -> None:
    """So means are those of decisions, and the line of the dividend ends at the verdict."""
    with open_controller(":memory:") as controller:
        shop = controller.population(
            "shop", policy="bass", dim=2, explore=0.5, seed=1, reward_window=100.0, default_reward=0.0
        )
        follower = Follower(shop)

        def totals() -> dict[str, float]:
            follower.catch_up()
            _, sums = follower.rings[900].last(shop.owner.now() / 1e6)
            return {
                **dict(zip(COLUMNS, sums.sum(axis=0), strict=False)),
                "delays": sums[:, len(COLUMNS) :].sum(),
            }

        made = [shop.decide(f"agent {k % 7}", ARMS) for k in range(80)]
        for one in made[1::4]:
            shop.reward(one.id, 1.0)
        shop.cancel(made[0].id)
        found = totals()
        assert (found["rewards"], found["missed"], found["matched"]) == (20, 0, 1), "the second was clicked"
        shop.owner._clock_ahead += 200_000_000
        while shop.owner.miss_rewards():
            pass
        found = totals()
        assert (found["rewards"], found["missed"], found["matched"], found["reward"]) == (20, 59, 79, 20.0)
        assert sum(arm.rewards for arm in data.arms(follower).arms) == 79
        assert found["delays"] == 20, "defaults have none"
        paid = shop.dividend()
        assert paid.count == 79
        assert 79 * paid.mean == pytest.approx(found["dividend"], rel=1e-4)


def test_the_baseline_is_what_random_arms_earn() -> None:
    """Whatever the policy prefers: the estimate from decisions that explore is that of drawing uniformly."""
    with open_controller(":memory:") as controller:
        shop = controller.population("shop", policy="bass", dim=2, explore=0.3, seed=1)
        worth = {"tea": 1.0, "coffee": 0.0, "water": -1.0}
        for _ in range(20):
            made = shop.decide_many([{"agent": "a", "arms": ARMS}] * 200)
            shop.reward_many({"id": one.id, "reward": worth[one.arm]} for one in made)  # type: ignore[union-attr, index]
        follower = Follower(shop)
        found = totals(follower)
        assert found["reward"] / found["matched"] > 0.5
        assert found["weighted"] / found["weight"] == pytest.approx(0.0, abs=0.08)


def test_delays_by_class() -> None:
    with open_controller(":memory:") as controller:
        shop = controller.population("shop", policy="bass", dim=2, seed=1)
        made = [shop.decide("a", ARMS) for _ in range(3)]
        shop.reward(made[0].id, 1.0)
        shop.owner._clock_ahead += 30_000_000
        shop.reward(made[1].id, 1.0)
        shop.owner._clock_ahead += 7200_000_000
        shop.reward(made[2].id, 1.0)
        follower = Follower(shop)
        follower.catch_up()
        with follower.lock:
            _, sums = follower.rings[900].last(shop.owner.now() / 1e6)
        found = dict(zip((*DELAYS, np.inf), sums[:, len(COLUMNS) :].sum(axis=0).tolist(), strict=True))
        assert {bound for bound, count in found.items() if count} == {0.1, 60.0, 21600.0}


def test_a_ring_forgets_the_oldest_and_has_no_gaps() -> None:
    ring = Ring(5, 4)
    one = [1.0] * following.WIDTH
    for at in (0, 5, 6, 15, 20, 3):  # the last is too old by then
        ring.add(at, one)
    starts, sums = ring.last(21.0)
    assert starts.tolist() == [5, 10, 15, 20]
    assert sums[:, 0].tolist() == [2.0, 0.0, 1.0, 1.0]


def test_starts_near_the_end_and_starts_again_if_it_falls_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RECENT", 50)
    with open_controller(":memory:") as controller:
        shop = controller.population("shop", policy="bass", dim=2, seed=1)
        for _ in range(100):
            shop.decide("a", ARMS)
        follower = Follower(shop)
        assert totals(follower)["decisions"] == 50
        assert (follower.first, follower.seq) == (shop.sequence - 50, shop.sequence)
        for _ in range(60):
            shop.decide("a", ARMS)
        assert totals(follower)["decisions"] == 110
        for _ in range(101):
            shop.decide("a", ARMS)
        assert follower.changed < shop.sequence - 50
        assert totals(follower)["decisions"] == 50
        assert follower.changed == shop.sequence - 50  # settings may have changed in what was passed over


def test_starts_where_the_archive_ends(tmp_path: Path) -> None:
    with open_controller(":memory:") as controller:
        shop = controller.population("shop", policy="bass", dim=2, seed=1)
        for n in range(10):
            shop.decide("a", ARMS, id=f"d{n}")
            if n != 3:
                shop.reward(f"d{n}", 1.0)
        before = Follower(shop)
        before.catch_up()
        made = shop.archive(tmp_path, before=time.time())
        assert made is not None
        follower = Follower(shop)
        assert totals(follower)["matched"] == 0
        assert (follower.first, follower.changed) == (made.last, made.last)
        shop.reward("d3", 1.0)  # whose decision is kept
        assert totals(follower)["matched"] == 1
        found = data.overview(follower)
        assert (found.since, found.archived) == (made.last, made.last)
        assert data.overview(before).since == 0  # it had seen all of them
        assert Follower(shop, made.last - 2).first == made.last - 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in {"AWAITED": 10, "CUTS": 20, "ARMS": 4, "OFFERS": 3, "EVENTS": 2}.items():
        monkeypatch.setattr(following, name, most)
    with open_controller(":memory:") as controller:
        population = few(controller, seconds=60.0)
        for k in range(30):
            population.decide("shop 1", {f"one {k}": [1.0, 0.0, 0.0, 0.0], "two": [0.0, 1.0, 0.0, 0.0]})
            population.set_arms({f"new {k}": [0.0, 0.0, 0.0, 1.0]})
        follower = Follower(population)
        follower.catch_up()
        assert len(follower._awaited) == 10
        assert 2 * len(follower.cut_seqs) == len(follower.cut_pairs) <= 50
        assert follower.first > 0  # one can go back only as far as cuts are known
        assert len(follower.arms) == 4
        assert follower.other_arms.chosen > 0
        assert len(follower._offers) == 3
        assert len(follower.events) == 2


@pytest.mark.parametrize("late", [False, True])
def test_the_graph_of_any_moment_is_that_of_the_journal(late: bool) -> None:
    with open_controller(":memory:") as controller:
        population = few(controller, seconds=40.0)
        follower = Follower(population)
        if not late:
            follower.catch_up()
        many_more = [population.decide(f"late {k}") for k in range(5)]
        population.reward_many({"id": one.id, "reward": 1.0} for one in many_more)
        population.forget("shop 3")
        population.settle()
        follower.catch_up()
        picture = data.SharingPicture(follower)
        assert len(follower.cut_seqs) > 20
        for at in np.linspace(1, population.sequence, 12).astype(int).tolist():
            drawn, graph = picture.draw(at), population.graph(at)
            assert isinstance(drawn, data.Drawing)
            assert drawn.agents == graph.agents, at
            assert drawn.n_edges == np.count_nonzero(graph.edges) // 2, at


def test_who_was_forgotten_is_in_nothing() -> None:
    with open_controller(":memory:") as controller:
        population = few(controller, seconds=40.0)
        follower = Follower(population)
        follower.catch_up()
        index = population.owner.read(lambda fold: fold.names["shop 3"])
        assert index in follower.cut_pairs
        population.decide("shop 3")
        population.forget("shop 3")
        follower.catch_up()
        assert index not in follower.cut_pairs
        assert all(one.agent != index for one in follower._awaited.values())
        picture = data.SharingPicture(follower)
        drawn = picture.draw()
        assert isinstance(drawn, data.Drawing)
        assert "shop 3" not in drawn.agents
        assert picture.page("shop 3").found == 0


def test_samples_that_were_observed_are_followed_too() -> None:
    with open_controller(":memory:") as controller:
        population = many(controller, "many", 60, 60, 12)
        follower = Follower(population)
        found = totals(follower)
        assert found["observed"] == 60 * 12
        assert (
            found["cuts"]
            == len(follower.cut_seqs)
            == population.owner.read(lambda fold: fold.count_cuts())
            > 500
        )
