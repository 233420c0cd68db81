"""Make every online call of a policy once, so that nothing is left to compile when it matters."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from shoal.core.policies.registry import policy_from_bytes
from shoal.core.policy.base import Policy
from shoal.core.policy.cuts import CuttingPolicy
from shoal.core.policy.living import LivePolicy
from shoal.core.types import Matrix

TRIAL = 8
"""Agents of a trial; some of them are merged or removed in it."""
FIRST = 10
"""Steps after which a decision and its reward have nothing left to compile."""


def exercise(policy: Any, dim: int) -> Iterator[None]:
    """Make each kind of online call, with each engine that the policy has; one at each step.

    Its agents are used up. A policy of ours must have `TRIAL` of them; one of a user's own need have no more
    than `select` and `update`.
    """
    if not isinstance(policy, Policy):
        _play(policy, 0, np.eye(dim))
        return
    for most in (0, *getattr(policy, "engine_limits", ())):
        if policy.n_agents <= most and isinstance(policy, LivePolicy):
            policy.add_agents(most - policy.n_agents + TRIAL)
        for call in _calls(policy):
            call()
            yield


def _play(policy: Any, agent: int, arms: Matrix) -> None:
    policy.update(agent, arms[policy.select(agent, arms)], 1.0)


def _calls(policy: Policy) -> list[Callable[[], Any]]:
    arms = np.eye(policy.dim)
    x, (a, b, c, d, e) = arms[0], policy.agents[-5:].tolist()
    pulls = [3], [a], arms[:1], [1.0]
    calls: list[Callable[[], Any]] = [
        *(partial(_play, policy, agent, arms) for agent in (a, b, c, d)),
        lambda: policy.choose(a, arms),
        lambda: policy.scores(a, arms),
        lambda: policy.predict(a, x),
    ]
    if isinstance(policy, LivePolicy):
        calls += [
            lambda: policy.begin(a, x),
            lambda: policy.choose(a, arms),  # with a reward due
            lambda: policy.update(a, x, 1.0, begun=True),
            lambda: policy.begin(a, x),
            lambda: policy.cancel(a, x),
            lambda: policy.correct(a, x, 1.0, 0.0, reconsider=True),
            lambda: policy.retract(a, x, 0.0),
            lambda: policy.set_sharing(a, "none"),
            lambda: policy.select(a, arms),
            lambda: policy.set_sharing(a, "both"),
            lambda: policy.explain(a, b),
            lambda: policy.merge(a, b),
            lambda: policy.remove_agent(c, withdraw=True),
            lambda: policy.remove_agent(d),
            lambda: policy.replay(*pulls),
        ]
    calls += [
        lambda: policy.neighbors(a),
        lambda: policy.estimate(a),
        lambda: policy.explain(a),
        lambda: policy_from_bytes(bytes(policy.to_bytes()), "a trial"),
    ]
    if isinstance(policy, CuttingPolicy):
        calls += [
            lambda: policy.cut_from(a, []),
            lambda: policy.cut_from(a, [e]),
            lambda: policy.follow(*pulls, np.empty((0, 2))),
        ]
    return calls
