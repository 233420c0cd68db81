"""What the measuring code counts and reports; what it measures, no test can know."""

import math
from typing import Any

import pytest

import shoal
from shoal.core.policies import registry
from shoal.lab import benchmark


def test_costs_of_the_policies_asked_for() -> None:
    seen: list[str] = []
    costs = benchmark.measure(
        agents=5, dim=2, arms=3, rounds=20, policies=("oracle", "independent"), progress=seen.append
    )
    assert [cost.policy for cost in costs] == seen == ["oracle", "independent"]
    for cost in costs:
        assert cost.microseconds > 0
        assert cost.online_microseconds > 0
        assert cost.state_bytes > 5 * (2 * 2 + 2 * 2) * 8
        assert not cost.problem


def test_every_built_in_policy_can_be_built() -> None:
    for world in (
        shoal.GaussianClusters(4, 2, 2, seed=0),
        shoal.SyntheticClusters(4, 2, 2, 1.0, seed=0),
    ):
        for name in registry.BUILT_IN:
            assert benchmark.build(name, world).n_agents == 4


class Huge:
    def __init__(self, n_agents: int, dim: int, **parameters: float) -> None:
        raise MemoryError("Huge needs 9 GB")


def test_what_does_not_fit_is_reported_and_the_rest_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registered, "huge", Huge)
    huge, plain = benchmark.measure(agents=3, dim=2, arms=3, rounds=5, policies=("huge", "independent"))
    assert huge.problem == "Huge needs 9 GB"
    assert math.isnan(huge.microseconds)
    assert plain.microseconds > 0


@pytest.mark.parametrize("name", ["agents", "dim", "arms", "rounds"])
def test_sizes_are_checked(name: str) -> None:
    sizes: dict[str, Any] = {"agents": 2, "dim": 2, "arms": 2, "rounds": 2} | {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got 0"):
        benchmark.measure(**sizes)
