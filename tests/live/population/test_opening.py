"""Opening a store and its populations."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.live.places import Place, shop, sound

from shoal.live.population.controller import open as open_controller


@pytest.mark.timeout(60)
def test_a_slow_start_does_not_stop_the_committer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_controller(tmp_path / "shop.db", lease=0.1) as controller:
        create = controller.store.create

        def slow(name: str) -> Any:
            time.sleep(0.3)  # meanwhile the committer's time has come to renew leases
            return create(name)

        monkeypatch.setattr(controller.store, "create", slow)
        controller.population("shop", policy="independent", dim=2)
        assert controller.verify() == {"shop": []}


def test_whole_numbers_as_reward_range(place: Place) -> None:
    """They are recorded as what they are read back as, so that the state in memory is the journal's."""
    controller = place.open()
    shop(controller, reward_range=(-10, 10), reward_window=5, default_reward=1)
    assert sound(controller)


def test_a_policy_that_must_be_told_of_newcomers(place: Place) -> None:
    """Oracle needs labels, which agents who join by name do not bring: nothing is recorded."""
    controller = place.open()
    with pytest.raises(ValueError, match=r"policy 'oracle' is not for populations.*labels must be given"):
        controller.population("shop", policy="oracle", dim=2, labels=[])
    assert controller.populations() == []
