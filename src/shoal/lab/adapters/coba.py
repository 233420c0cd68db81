"""A shoal policy as a learner of coba, the library for contextual bandit experiments by Mark Rucker.

coba knows contexts and actions. The agent is read from the context, and an action's features are the arm.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from coba.primitives import Learner

from shoal.core.policies.registry import make_policy
from shoal.core.policy.exploring import draws_arms


def first_of(context: Any) -> int:
    """The agent that a context names: the context itself, its first entry, its entry "agent"; 0 for none."""
    if context is None:
        return 0
    if isinstance(context, Mapping):
        return int(context["agent"])
    return int(context[0]) if isinstance(context, Sequence) else int(context)


class CobaLearner(Learner):  # type: ignore[misc]
    """A policy by its name, for `coba.Experiment`. Each evaluation plays a fresh one.

    Parameters
    ----------
    policy : str
        Name of a policy, or `module:Class`.
    n_agents, dim : int
        As for the policy.
    agent : callable
        The agent's number from a context; by default the context, its first entry or its entry "agent".
    **parameters
        Of the policy. It must not draw arms (`epsilon`, Thompson sampling): coba would need the probability.

    Examples
    --------
    >>> from shoal.lab.adapters.coba import CobaLearner
    >>> learner = CobaLearner("bass", n_agents=10, dim=3, alpha=0.3)
    >>> learner.predict([7], [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)])
    ((1.0, 0.0, 0.0), 1.0)
    >>> learner.learn([7], (1.0, 0.0, 0.0), 0.5, 1.0)
    """

    def __init__(
        self,
        policy: str,
        n_agents: int,
        dim: int,
        *,
        agent: Callable[[Any], int] = first_of,
        **parameters: Any,
    ) -> None:
        # What is wrong fails here, not in the middle of an experiment.
        if draws_arms(make_policy(policy, n_agents, dim, **parameters)):
            raise ValueError(
                f"coba needs every action's probability, and {policy} as asked for draws its arms: take "
                "epsilon=0 and a policy that chooses by upper confidence bounds"
            )
        self._made_by, self._agent = (policy, n_agents, dim, parameters), agent
        self._policy: Any = None

    @property
    def params(self) -> Mapping[str, Any]:
        """What coba's table of learners says of it."""
        policy, n_agents, dim, parameters = self._made_by
        return {"family": f"shoal {policy}", "n_agents": n_agents, "dim": dim, **parameters}

    def predict(self, context: Any, actions: Sequence[Any]) -> tuple[Any, float]:
        """The chosen action, with probability 1."""
        return actions[self._playing().select(self._agent(context), np.array(actions, dtype=float))], 1.0

    def score(self, context: Any, actions: Sequence[Any], action: Any) -> float:
        """1 for the action that would be chosen, else 0."""
        return float(self.predict(context, actions)[0] == action)

    def learn(self, context: Any, action: Any, reward: float, probability: float, **kwargs: Any) -> None:
        """Learn the reward of an action."""
        self._playing().update(self._agent(context), np.array(action, dtype=float), float(reward))

    def _playing(self) -> Any:
        # Made when it is needed: coba copies learners before it plays them, in other processes, too.
        if self._policy is None:
            policy, n_agents, dim, parameters = self._made_by
            self._policy = make_policy(policy, n_agents, dim, **parameters)
        return self._policy
