"""Whoever withdraws leaves nothing behind, in memory or in a file; newcomers do not mind who has left."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.contracts.test_policies import D, N, every_live_policy, grow, make, play

from shoal.core import fields
from shoal.core.policies.bass import policy as bass


def agent_axes(leaf: fields.Leaf) -> list[int]:
    """Axes of an array that count agents (or clusters named after agents)."""
    sizes = [size.name if isinstance(size, fields.Size) else "" for size in leaf.field.shape]
    names = [leaf.names[name].name if name in leaf.names else name for name in sizes]
    return [
        axis
        for axis, name in enumerate(names)
        if name in ("agents", "clusters", "soft", "changing", "voters")
    ]


def floats(array: Any) -> set[bytes]:
    return {value.tobytes() for value in np.asarray(array, dtype=np.float64).ravel()}


def canaries(policy: Any, agent: int) -> set[bytes]:
    """Numbers that only the agent's samples can have made: those in its rows, columns and pool."""
    found: set[bytes] = set()
    of_others: set[bytes] = set()
    labels = policy.state.labels if hasattr(policy.state, "labels") else np.full(policy.n_agents, -1)
    for leaf in fields.leaves(type(policy.state)):
        array = leaf.get(policy.state)
        if leaf.field.role is fields.Role.SETTING or array.dtype != np.float64 or not array.size:
            continue
        of_clusters = leaf.path[0] in ("pool", "stage_theta") and leaf.path[:2] != ("pool", "members")
        for axis in agent_axes(leaf):
            rows = np.moveaxis(array, axis, 0)
            mine = int(labels[agent]) if of_clusters else agent
            if mine >= 0:
                found |= floats(rows[mine])
            if not of_clusters and len(agent_axes(leaf)) == 1:
                of_others |= floats(np.delete(rows, mine, axis=0))
    return found - of_others - floats(fields.flatten(make(policy.name).state)["local.A"]) - floats([1.0, 0.0])


@every_live_policy
@pytest.mark.parametrize("left_before", [False, True])
def test_no_number_of_a_withdrawn_agent_remains(name: str, left_before: bool, tmp_path: Path) -> None:
    policy, agent = make(name), 4
    play(policy, 150)
    found = canaries(policy, agent)
    assert len(found) > 3 * D
    if left_before:
        policy.remove_agent(agent)
    policy.remove_agent(agent, withdraw=True)
    policy.save(tmp_path / "p")
    content = (tmp_path / "p").read_bytes()
    for leaf in fields.leaves(type(policy.state)):
        array = leaf.get(policy.state)
        if leaf.field.role is not fields.Role.SETTING and array.dtype == np.float64:
            assert not found & floats(array), leaf.name
    assert not [value for value in found if value in content]
    play(policy, 60)


def test_no_number_of_a_withdrawn_agent_remains_in_a_crowd(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
    test_no_number_of_a_withdrawn_agent_remains("bass", False, tmp_path)


@every_live_policy
def test_a_withdrawn_agent_s_place_is_as_if_it_had_never_been_used(name: str) -> None:
    policy = make(name)
    play(policy, 150)
    policy.remove_agent(4, withdraw=True)
    fresh = make(name, N).state.local
    for key in ("A", "A_inv", "b", "theta_hat", "pulls"):
        assert np.array_equal(getattr(policy.state.local, key)[4], getattr(fresh, key)[4]), key
    if hasattr(policy, "cuts"):
        assert not (policy.cuts[:, :2] == 4).any()
        assert (policy.separation_time[4] == -1).all()


@every_live_policy
def test_newcomers_use_a_removed_agent_s_samples_as_if_it_had_stayed(name: str) -> None:
    stayed = make(name)
    play(stayed, 40)
    left, probe = copy.copy(stayed), copy.copy(stayed)
    grow(probe, 1)
    lenders = np.flatnonzero(probe._pool(N)[:N])
    assert len(lenders) or name in ("independent", "cluster_mixture")  # alone
    leaver = int(lenders[0]) if len(lenders) else 0
    left.remove_agent(leaver)
    for policy in (stayed, left):
        grow(policy, 1)
    assert np.array_equal(stayed._pool(N), left._pool(N))
    if name != "cluster_mixture":  # there an agent that left no longer counts as a member
        np.testing.assert_allclose(stayed.estimate(N), left.estimate(N), atol=1e-12)
    assert left._pool(N)[leaver] == (len(lenders) > 0)
    assert leaver not in left.neighbors(N)


@pytest.mark.parametrize("name", ["bass", "cluster_mixture"])
def test_explain_refuses_removed_agents(name: str) -> None:
    policy = make(name)
    play(policy, 60)
    policy.remove_agent(3)
    for pair in ((3, 1), (1, 3)):
        with pytest.raises(ValueError, match="agent 3 has been removed"):
            policy.explain(*pair)
