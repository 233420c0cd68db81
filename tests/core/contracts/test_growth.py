"""Growth costs what it adds, and changes nothing: bit for bit as in a policy that was large at once."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.contracts.test_policies import D, N, every_live_policy, grow, make, play, snapshot

import shoal
from shoal.core import fields
from shoal.core.policies.bass import policy as bass
from shoal.core.policies.bass.crowd import CrowdState


def grown(name: str, n_agents: int, *, pieces: list[int], **changed: Any) -> Any:
    """A policy that was empty once."""
    policy = make(name, 0, **changed)
    for n in pieces:
        first = policy.n_agents
        labels = {"labels": [i % 3 for i in range(first, first + n)]} if name == "oracle" else {}
        assert list(policy.add_agents(n, **labels)) == list(range(first, first + n))
    assert policy.n_agents == n_agents
    return policy


@every_live_policy
@pytest.mark.parametrize("pieces", [[1] * 9, [4, 5], [9], [8, 1]])
def test_grown_from_nothing_is_like_large_at_once(name: str, pieces: list[int]) -> None:
    small, large = grown(name, 9, pieces=pieces), make(name, 9)
    assert snapshot(small) == snapshot(large)
    assert play(small, 120) == play(large, 120)
    assert snapshot(small) == snapshot(large)


@every_live_policy
def test_many_one_by_one_are_like_large_at_once(name: str) -> None:
    small, large = grown(name, 150, pieces=[1] * 150), make(name, 150)
    assert snapshot(small) == snapshot(large)
    for policy in (small, large):
        for agent in range(0, 150, 7):
            policy.update(agent, np.ones(D), float(agent % 3))
    assert snapshot(small) == snapshot(large)


@every_live_policy
def test_growth_in_play_is_the_same_with_and_without_room(name: str, tmp_path: Path) -> None:
    policy = make(name)
    for n in range(8):
        play(policy, 20, seed=n)
        if n == 3:
            policy.remove_agent(2)
            policy.remove_agent(5, withdraw=True)
        policy.save(tmp_path / "p")
        others = [copy.copy(policy), shoal.load_policy(tmp_path / "p")]  # a copy has no room left
        for each in (policy, *others):
            grow(each, 1 + 20 * (n == 6))
        for other in others:
            assert play(other, 30, seed=n) == play(copy.copy(policy), 30, seed=n)
            assert np.array_equal(other.graph, play_on(policy, 30, seed=n).graph)


def play_on(policy: Any, rounds: int, seed: int) -> Any:
    other = copy.copy(policy)
    play(other, rounds, seed=seed)
    return other


@every_live_policy
def test_an_empty_policy_refuses_what_needs_an_agent(name: str, tmp_path: Path) -> None:
    policy = make(name, 0)
    assert policy.n_agents == 0
    assert policy.graph.shape == (0, 0)
    assert len(policy.agents) == len(policy.pulls) == 0
    assert policy.count_edges() == (0, 0)
    calls: list[Callable[[], Any]] = [
        lambda: policy.select(0, np.eye(D)),
        lambda: policy.update(0, np.ones(D), 1.0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="agent must be one that was added: there is none yet, got 0"):
            call()
    policy.save(tmp_path / "p")
    policy = shoal.load_policy(tmp_path / "p")
    grow(policy, N)
    play(policy, 50)


def test_bass_crosses_to_its_second_engine_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bass, "WITNESS_BYTES", 70**2 * 8 * (D + 1))
    monkeypatch.setattr(bass, "MANY", 40)
    crossing, alike = make("bass", 30, gamma=1.0), make("bass", 30, gamma=1.0)
    rng = np.random.default_rng(0)
    for n in range(60):
        for _ in range(15):
            agent, x = int(rng.integers(crossing.n_agents)), rng.standard_normal(D)
            for policy in (crossing, alike):
                policy.update(agent, x, float(x[agent % 3]))
        crossing.add_agents(1)
        with monkeypatch.context() as patch:
            patch.setattr(bass, "WITNESS_BYTES", 2**28)
            alike.add_agents(1)
        assert isinstance(crossing.state, CrowdState) == (crossing.n_agents > 70), n
    assert len(alike.state.witness) == 90
    assert 0 < len(crossing.cuts) == len(alike.cuts)
    assert np.array_equal(crossing.separation_time, alike.separation_time)
    assert crossing.communication_cost == alike.communication_cost


@every_live_policy
def test_newcomers_among_hundreds_copy_at_most_one_array_a_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 300 agents to 700: nearly every call finds room, and where it ends arrays are moved one by one."""
    moved: list[str] = []
    blank = fields._blank

    def noting(leaf: fields.Leaf, sizes: fields.Sizes) -> Any:
        moved.append(leaf.name)
        return blank(leaf, sizes)

    policy = make(name, 300)
    more = {"labels": [0]} if name == "oracle" else {}
    monkeypatch.setattr(fields, "_blank", noting)
    for _ in range(400):
        state, places = policy.state, addresses(policy)
        policy.add_agents(1, **more)
        now = addresses(policy)
        changed = [array for array in now if now[array] != places[array]]
        assert len(moved) <= 1, moved
        assert changed == moved
        assert fields.flatten(state)["local.b"].shape[0] == policy.n_agents - 1  # the old state is as it was
        moved.clear()


def addresses(policy: Any) -> dict[str, int]:
    """Where each array of a state begins."""
    values = fields.flatten(policy.state).items()
    return {key: value.ctypes.data for key, value in values if isinstance(value, np.ndarray) and value.size}
