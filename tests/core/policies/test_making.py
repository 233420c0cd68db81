"""A compiled policy of one's own: what follows from the least that it says."""

import inspect
import math
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from msgspec import Meta

import shoal
from shoal.core.policy.making import (
    AGENTS,
    Common,
    LivePolicy,
    Policy,
    Statistics,
    add_sample,
    best_arm_of_row,
    rows,
    setting,
    step,
)
from shoal.core.types import Booleans, Matrix, Vector

RIDGE = 0.5


class LeastState(NamedTuple):
    common: Common
    patience: Annotated[int, setting(3), Meta(ge=0, le=9, description="Samples until alone.")]
    local: Annotated[Statistics, rows(AGENTS)]
    everyone: Annotated[Statistics, rows(1)]


class Least(Policy):
    """Everyone's samples, until an agent has `patience` of its own."""

    State = LeastState

    def _pool(self, agent: int) -> Booleans:
        found = np.full(self.n_agents, bool(self.state.local.pulls[agent] < self.state.patience))
        found[agent] = True
        return found


@step("select", LeastState)
def select(state: Any, agent: int, arms: Matrix, t: int) -> int:
    width = state.common.alpha * math.sqrt(math.log(t + 1.0))
    if state.local.pulls[agent] < state.patience:
        return best_arm_of_row(state.everyone, 0, arms, width, state.common.scored)
    return best_arm_of_row(state.local, agent, arms, width, state.common.scored)


@step("observe", LeastState)
def observe(state: Any, agent: int, x: Vector, reward: float, t: int) -> None:
    add_sample(state.local, agent, x, reward)
    add_sample(state.everyone, 0, x, reward)


def test_settings_with_a_default_are_parameters() -> None:
    assert (Least.name, Least.label) == ("least", "Least")
    assert inspect.signature(Least).parameters["patience"].default == 3
    assert "patience : int ≥ 0 and ≤ 9, default 3\n        Samples until alone." in (Least.__doc__ or "")
    policy = Least(2, 2, patience=5)
    assert (policy.state.patience, policy.parameters["patience"]) == (5, 5)
    with pytest.raises(ValueError, match="patience must be an integer of at least 0 and at most 9, got 10"):
        Least(2, 2, patience=10)
    with pytest.raises(TypeError, match="Least has no parameter 'patient'; did you mean 'patience'"):
        Least(2, 2, patient=1)
    assert "patience" not in shoal.BASS.Parameters.__struct_fields__


def test_graph_estimate_and_start_follow_from_the_pool() -> None:
    policy = Least(4, 3, ridge=RIDGE, alpha=0.0)
    assert policy.state.everyone.A.shape == (1, 3, 3)
    np.testing.assert_array_equal(policy.state.everyone.A[0], RIDGE * np.eye(3))
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 3)), rng.standard_normal(12)
    who = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 0, 1, 0])  # agents 2 and 3 have fewer than three
    for x, agent, reward in zip(X, who, y, strict=True):
        policy.update(int(agent), x, float(reward))
    patient = np.array([False, False, True, True])
    np.testing.assert_array_equal(policy.graph, np.outer(patient, patient) & ~np.eye(4, dtype=bool))
    for agent in range(4):
        used = np.full(12, True) if patient[agent] else who == agent
        expected = np.linalg.solve(RIDGE * np.eye(3) + X[used].T @ X[used], X[used].T @ y[used])
        np.testing.assert_allclose(policy.estimate(agent), expected, atol=1e-12)
        arms = rng.standard_normal((5, 3))
        assert policy.select(agent, arms) == int(np.argmax(arms @ expected))


def test_a_live_policy_must_say_what_a_pool_cannot() -> None:
    class Live(LivePolicy):
        State = LeastState

        def _pool(self, agent: int) -> Booleans:
            return np.ones(1, dtype=bool)

    with pytest.raises(TypeError, match=r"_edges.*_pooled_estimate"):
        Live(2, 2)  # type: ignore[abstract]
