"""BASS in a crowd: what it does is what BASS with witnesses does, and what it relies on is true."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core import fields
from shoal.core.jit.compiled import config
from shoal.core.policies.bass import crowd, witnesses
from shoal.core.policies.bass import policy as bass
from shoal.core.policies.bass.crowd import GROUPS, LENGTH, LIST, NUMBER, ROW

WORLDS: dict[str, Any] = {
    "near": lambda n, seed: shoal.SyntheticClusters(n, 5, 3, math.pi / 8, seed=seed),
    "far": lambda n, seed: shoal.SyntheticClusters(n, 5, 3, 7 * math.pi / 16, seed=seed),
    "gaussian": lambda n, seed: shoal.GaussianClusters(n, 5, 4, n_arms=15, seed=seed),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Crowds of any size, and points chosen often."""
    monkeypatch.setattr(bass, "WITNESS_BYTES", 0)


def play(
    n: int, world: str, horizon: int, seed: int, *, alpha: float = 0.3, delay: Any = 0, **own: Any
) -> tuple[shoal.BASS, shoal.Trace]:
    environment = WORLDS[world](n, seed)
    policy = shoal.BASS(n, 5, alpha=alpha, delta=0.1, **own)
    return policy, shoal.simulate(policy, environment, horizon=horizon, seed=seed, points=5, delay=delay)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "own", [{}, {"radius": "beta_squared", "gamma": 1.25}, {"ridge": 0.3, "param_norm": 0.0}]
)
def test_same_choices_and_cuts_as_with_witnesses(
    world: str, own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, n in ((0, 130), (1, 350)):
        policy, expected = play(n, world, 2500, seed, **own)
        assert isinstance(policy.state, witnesses.State)
        monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
        policy, found = play(n, world, 2500, seed, **own)
        assert isinstance(policy.state, crowd.State)
        monkeypatch.undo()
        assert np.array_equal(found.choices, expected.choices)
        assert expected.cuts is not None
        assert found.cuts is not None
        assert sorted(found.cuts.tolist()) == sorted(expected.cuts.tolist())
        assert np.array_equal(found.communication, expected.communication)
        assert np.array_equal(found.edges, expected.edges)
        assert world == "near" or len(found.cuts) > 100


@pytest.mark.parametrize("delay", [250, ("geometric", 80)])
def test_late_rewards_as_with_witnesses(delay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, expected = play(130, "far", 2500, 1, delay=delay)
    assert isinstance(policy.state, witnesses.State)
    monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
    policy, found = play(130, "far", 2500, 1, delay=delay)
    assert isinstance(policy.state, crowd.State)
    assert np.array_equal(found.choices, expected.choices)
    assert expected.cuts is not None
    assert found.cuts is not None
    assert sorted(found.cuts.tolist()) == sorted(expected.cuts.tolist())
    assert not policy.pending.any()  # what was still due at the end never comes


@pytest.mark.usefixtures("small")
def test_an_agent_s_own_pending_pulls_narrow_its_width(tmp_path: Path) -> None:
    """Against the formula, and those of others do not; with one that leaves while it waits, and a file."""
    policy, _ = play(130, "gaussian", 4000, 2, alpha=5.0)
    world = WORLDS["gaussian"](130, 2)
    rng, arms, local = np.random.default_rng(0), world.arms, policy.state.local
    begun = [(int(agent), int(rng.integers(len(arms)))) for agent in rng.integers(130, size=400)]
    for agent, k in begun:
        policy.begin(agent, arms[k])
    leaver = begun[0][0]
    policy.remove_agent(leaver)
    policy.save(tmp_path / "policy")
    for asked in (policy, shoal.BASS.load(tmp_path / "policy")):
        narrowed = 0
        for agent in policy.agents[::3].tolist():
            used = policy._pool(agent)
            assert not used.all()
            A = np.eye(5) + (local.A[used] - np.eye(5)).sum(axis=0)
            waits = [arms[k] for other, k in begun if other == agent]
            wide = A + sum((np.outer(x, x) for x in waits), np.zeros((5, 5)))
            mean = arms @ np.linalg.solve(A, local.b[used].sum(axis=0))
            width = 5.0 * math.sqrt(math.log(asked.rounds + 2.0))
            scores = [
                mean + width * np.sqrt(np.einsum("kd,de,ke->k", arms, np.linalg.inv(B), arms))
                for B in (wide, A)
            ]
            assert asked.select(agent, arms) == np.argmax(scores[0])
            narrowed += int(np.argmax(scores[0]) != np.argmax(scores[1]))
        assert narrowed > 0  # or the test would not tell


def check_invariants(policy: shoal.BASS) -> None:
    """What the engine relies on, computed the slow way."""
    state, n = policy.state, policy.n_agents
    local, shared, heads = state.local, state.shared, state.apart.heads
    cut = np.zeros((n, n), dtype=bool)
    for i, j, _ in policy.cuts:
        cut[i, j] = cut[j, i] = True
    points = np.concatenate([group.T for group in shared.points])
    for agent in range(n):
        listed = heads[agent, LIST : LIST + heads[agent, LENGTH]].tolist()
        row = state.apart.bits[heads[agent, ROW] - 1] if heads[agent, ROW] else np.zeros(1, dtype=np.int64)
        rest = [j for j in range(n) if heads[agent, ROW] and (int(row[j // 64]) >> (j % 64)) & 1]
        assert sorted(listed + rest) == np.flatnonzero(cut[agent]).tolist()
        assert heads[agent, NUMBER] == cut[agent].sum()
        others = policy.state.common.active & ~cut[agent]
        others[agent] = False
        assert not state.common.active[agent] or state.degree[agent] == others.sum()
        if state.common.withdrawn[agent]:
            continue
        for p, point in enumerate(points):  # lemma 3: a point of the mask lies in the ellipsoid
            if (int(shared.masks[p // 64, agent]) >> (p % 64)) & 1:
                offset = point - local.theta_hat[agent]
                assert offset @ local.A[agent] @ offset <= state.threshold * state.radius[agent]
    for g in range(GROUPS):
        for w in range(len(state.sizes)):
            here = shared.masks[g, w * 64 : min(n, (w + 1) * 64)]
            assert shared.everyone[g, w] == np.bitwise_and.reduce(here)
    row, column = np.tril_indices(policy.dim)
    sums = np.hstack([local.A[:, row, column] - state.common.ridge * (row == column), local.b])
    np.testing.assert_allclose(state.cards[:, : sums.shape[1]], sums, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(state.total.sum(axis=0), sums.sum(axis=0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(
        state.blocks, np.add.reduceat(sums, np.arange(0, n, 64)), rtol=1e-11, atol=1e-9
    )
    assert not state.scratch.cut.any()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("world", WORLDS)
def test_what_the_engine_relies_on(world: str) -> None:
    policy, _ = play(200, world, 3000, 3)
    check_invariants(policy)
    shared = policy.state.shared
    assert np.isfinite(shared.points[:, 0]).sum() > 3
    assert (shared.masks[:, :200] != 0).any(axis=0).mean() > 0.5  # most agents contain a shared point


@pytest.mark.usefixtures("small")
def test_pools_are_the_sums_of_those_not_cut() -> None:
    policy, _ = play(200, "gaussian", 4000, 5)
    local = policy.state.local
    for agent in range(0, 200, 7):
        used = policy._pool(agent)
        assert policy.neighbors(agent).tolist() == np.flatnonzero(used).tolist()
        A = np.eye(5) + (local.A[used] - np.eye(5)).sum(axis=0)
        expected = np.linalg.solve(A, local.b[used].sum(axis=0))
        np.testing.assert_allclose(policy.estimate(agent), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("small")
def test_agents_that_come_go_and_are_forgotten(tmp_path: Path) -> None:
    rng, policy = np.random.default_rng(0), shoal.BASS(70, 3, alpha=0.3, delta=0.1, gamma=1.5)
    centers = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [-2.0, 0.0, 1.0]])
    for t in range(3000):
        agent, x = int(rng.choice(policy.agents)), rng.standard_normal(3)
        policy.update(agent, x, float(x @ centers[agent % 3] + rng.standard_normal()))
        if t in (700, 1400, 2100):
            policy.add_agents(40)
            policy.remove_agent(int(rng.choice(policy.agents)))
            policy.remove_agent(int(rng.choice(policy.agents)), withdraw=True)
            check_invariants(policy)
    assert len(policy.cuts) > 500
    one, two = policy.agents[:2].tolist()
    why = policy.explain(one, two)
    assert why.separated == (why.separation_time >= 0)
    assert why.separated == (not policy.graph[one, two])
    policy.save(tmp_path / "policy")
    twin = shoal.BASS.load(tmp_path / "policy")
    check_invariants(twin)
    for _ in range(600):
        agent, x = int(rng.choice(policy.agents)), rng.standard_normal(3)
        assert policy.select(agent, centers) == twin.select(agent, centers)
        reward = float(x @ centers[agent % 3] + rng.standard_normal())
        policy.update(agent, x, reward)
        twin.update(agent, x, reward)
    assert sorted(policy.cuts.tolist()) == sorted(twin.cuts.tolist())
    assert np.array_equal(policy.state.local.theta_hat, twin.state.local.theta_hat)


@pytest.mark.usefixtures("small")
def test_a_withdrawn_agent_leaves_no_number_behind() -> None:
    policy, _ = play(90, "far", 800, 1)
    canary = 123456.789
    policy.update(7, np.array([1.0, 0.0, 0.0, 0.0, 0.0]), canary)
    trace_before = policy.state.local.theta_hat[7].copy()
    policy.remove_agent(7, withdraw=True)
    check_invariants(policy)
    assert (policy.cuts[:, :2] != 7).all()
    assert np.isnan(policy.state.shared.points).all()
    assert np.isnan(policy.state.shared.ring).all()
    for name, value in fields.flatten(policy.state).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
            assert not np.isclose(value, canary, rtol=1e-3).any(), name
            assert not np.isclose(value, trace_before[0], rtol=1e-9, atol=0.0).any(), name


@pytest.mark.usefixtures("small")
def test_the_total_does_not_drift() -> None:
    """A hundred thousand samples of all sizes: the sum over everyone is that of everyone's own."""
    rng, policy = np.random.default_rng(0), shoal.BASS(65, 2, alpha=0.3, delta=0.1, gamma=1e6)
    state = policy.state
    for _ in range(20_000):
        x = rng.standard_normal(2) * 10.0 ** rng.integers(-2, 3)
        policy.update(int(rng.integers(65)), x, float(rng.standard_normal()))
    sums = (state.local.A - np.eye(2)).sum(axis=0)
    np.testing.assert_allclose(state.total.sum(axis=0)[:3], sums[np.tril_indices(2)], rtol=1e-12)


PROGRAM = """
import json, numpy as np, shoal
from shoal.core.policies.bass import policy as bass
bass.WITNESS_BYTES = 0
policy = shoal.BASS(70, 3, alpha=0.3, delta=0.1, gamma=1.2)
world = shoal.GaussianClusters(70, 3, 3, n_arms=5, seed=0)
trace = shoal.simulate(policy, world, horizon=250, seed=0, points=2)
policy.remove_agent(3, withdraw=True)
policy.add_agents(2)
print(json.dumps([trace.choices.tolist(), sorted(policy.cuts.tolist()), policy.communication_cost]))
"""


def run(**more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **more},
    )
    return done.stdout


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="compares with compiled code")
def test_the_same_without_compilation() -> None:
    assert run() == run(NUMBA_DISABLE_JIT="1")


@pytest.mark.slow
@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="says nothing without compilation")
def test_the_same_on_a_machine_without_wide_vectors(tmp_path: Path) -> None:
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    assert run() == run(**plain)
