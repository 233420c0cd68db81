"""A population that learns clicks: what restarts, late and corrected clicks and forgotten people leave."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.live.places import ARMS, Place, shop, sound

from shoal.live.journal.records import Corrected, Missed, Observed, Rewarded, decode
from shoal.live.population.population import Population

SLOW = 3600.0
every_policy = pytest.mark.parametrize("policy", ["independent", "bass", "cluster_mixture"])


@pytest.fixture
def place(tmp_path: Path) -> Any:
    place = Place("sqlite", tmp_path / "shop.db")
    yield place
    place.close()


def made(place: Place, policy: str, **more: Any) -> Population:
    return shop(place.open(lease=SLOW), policy=policy, rewards="binary", **more)


def state(one: Population) -> bytes:
    """All that the policy knows."""
    return one.owner.read(lambda fold: bytes(fold.policy.to_bytes()))


def recorded(one: Population) -> list[Any]:
    """Rewards as the journal has them, with those that nobody waited for."""
    owner = one.owner
    with owner.settled():
        found = [decode(row.body) for row in owner.store.read(owner.number, 0)]
    return [one for one in found if isinstance(one, Rewarded | Missed | Corrected | Observed)]


def busy(one: Population, n: int = 60, seed: int = 0) -> list[str]:
    """Decisions of which every third has no reward yet."""
    rng, ids = np.random.default_rng(seed), []
    for k in range(n):
        decision = one.decide(f"agent {k % 5}", ARMS)
        if one.settings.parameters["rewards"] == "binary":
            assert 0 < decision.own < 1
            assert 0 < decision.pooled < 1
        ids.append(decision.id)
        if k % 3:
            one.reward(decision.id, float(rng.random() < (0.7 if decision.arm == "tea" else 0.2)))
    one.observe("agent 1", [0.3, 0.4], 1.0, id="seen")
    return ids


@every_policy
def test_a_restart_changes_no_bit(place: Place, policy: str) -> None:
    one = made(place, policy)
    ids = busy(one)
    one.cancel(ids[0])
    one.reward(ids[3], 1.0)  # late
    old = next(r.reward for r in recorded(one) if r.id == ids[1])
    one.reward(ids[1], 1.0 - old, replaces=old)
    assert all(r.moments is not None for r in recorded(one))
    before = state(one)
    one._controller.close()
    one = made(place, policy)
    assert state(one) == before
    one.snapshot()
    one.reward(ids[6], 0.0)
    after = state(one)
    place.crash(one._controller)
    again = place.open(lease=0.3)
    one = shop(again, policy=policy, rewards="binary")
    assert state(one) == after
    assert sound(again)
    assert one.dividend() is not None


@every_policy
def test_a_corrected_click_changes_b_by_what_it_was_learned_with(place: Place, policy: str) -> None:
    one = made(place, policy)
    first = one.decide("ada", ARMS)
    one.reward(first.id, 0.0)
    busy(one)

    def b() -> Any:
        return one.owner.read(lambda fold: fold.policy.state.local.b[fold.names["ada"]].copy())

    before, (m, v) = b(), recorded(one)[0].moments
    one._controller.close()  # so that the moments are read from the journal
    one = made(place, policy)
    one.reward(first.id, 1.0, replaces=0.0)
    assert recorded(one)[-1].moments == (m, v)
    kappa = 1 / np.sqrt(1 + np.pi * v / 8)
    p = 1 / (1 + np.exp(-kappa * m))
    moved = kappa / (1 - v * kappa**2 * p * (1 - p)) * np.array([*ARMS[str(first.arm)], 3.0])
    np.testing.assert_allclose(b() - before, moved, atol=1e-12)
    one.reward(first.id, 0.0, replaces=1.0)
    np.testing.assert_allclose(b(), before, atol=1e-12)
    assert sound(one._controller)


@every_policy
def test_a_missing_click_is_a_default_until_it_comes(place: Place, policy: str) -> None:
    one = made(place, policy, reward_window=1e-6, default_reward=0.0)
    decision = one.decide("ada", ARMS)
    busy(one, 9)
    one.owner.miss_rewards()
    missed = [r for r in recorded(one) if isinstance(r, Missed)]
    assert missed
    assert all(r.moments is not None for r in missed)
    one.reward(decision.id, 1.0)
    assert isinstance(recorded(one)[-1], Corrected)
    assert recorded(one)[-1].moments == next(r.moments for r in missed if r.id == decision.id)
    before = state(one)
    one._controller.close()
    assert state(made(place, policy)) == before


@every_policy
def test_others_keep_their_weights_when_a_person_is_forgotten(place: Place, policy: str) -> None:
    one = made(place, policy)
    busy(one)

    def sums() -> Any:
        return one.owner.read(
            lambda fold: {
                name: fold.policy.state.local.A[fold.names[name]].copy() for name in ("agent 1", "agent 4")
            }
        )

    before = sums()
    one.forget("agent 2")
    for name, A in sums().items():
        np.testing.assert_array_equal(A, before[name])
    one._controller.close()
    one = made(place, policy)
    for name, A in sums().items():
        np.testing.assert_array_equal(A, before[name])
    assert not one.owner.read(lambda fold: fold.policy.state.local.b[2].any())
    assert sound(one._controller)


def test_whatever_is_no_click_is_refused(place: Place) -> None:
    controller = place.open(lease=SLOW)
    with pytest.raises(ValueError, match=r"default_reward must be 0 or 1.*got 0.5"):
        shop(controller, rewards="binary", reward_window=5.0, default_reward=0.5)
    assert controller.populations() == []
    one = shop(controller, rewards="binary")
    decision = one.decide("ada", ARMS)
    before = one.sequence
    with pytest.raises(ValueError, match=r"reward must be 0 or 1.*got 0.5"):
        one.reward(decision.id, 0.5)
    with pytest.raises(ValueError, match=r"reward must be 0 or 1.*got 2"):
        one.observe("ada", [1.0, 0.0], 2.0)
    assert one.sequence == before


@pytest.mark.parametrize("rewards", ["real", "binary"])
def test_a_switch_learns_all_clicks_anew(place: Place, rewards: str) -> None:
    """Also from real rewards: those were 0 and 1, too; and back."""
    one = shop(place.open(lease=SLOW), policy="bass", rewards=rewards)
    ids = busy(one)
    one.switch("cluster_mixture", rewards="binary")
    one.reward(ids[0], 1.0)
    old = next(r.reward for r in recorded(one) if r.id == ids[1])
    one.reward(ids[1], 1.0 - old, replaces=old)  # of before the switch
    assert recorded(one)[-1].moments is not None
    before = state(one)
    one._controller.close()
    one = shop(place.open(lease=SLOW))
    assert state(one) == before
    one.switch("bass", rewards="real")
    one.reward(ids[3], 0.25)
    with pytest.raises(ValueError, match=r"reward.* must be 0 or 1.*got 0.25"):
        one.switch("bass", rewards="binary")
    assert sound(one._controller)
