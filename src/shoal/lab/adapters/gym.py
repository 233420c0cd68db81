"""An environment of shoal as a `gymnasium.Env`: the agent and its arms are the observation."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.core import validation
from shoal.core.types import AnyArray
from shoal.lab.environments.base import Environment

BLOCK = 256
"""Number of rounds drawn at once."""


class BanditEnv(gymnasium.Env[dict[str, Any], int]):
    """One pull per step: observe who pulls and the arms, choose one, get its reward.

    `info["regret"]` is the regret of the step, in means. An episode ends after `horizon` steps (truncated);
    `reset(seed=…)` starts the rounds of the environment again, with other agents and other noise.

    Parameters
    ----------
    environment : Environment
    horizon : int
        Number of steps of an episode.

    Examples
    --------
    >>> import shoal
    >>> from shoal.lab.adapters.gym import BanditEnv
    >>> env = BanditEnv(shoal.GaussianClusters(6, 3, n_arms=4, seed=0), horizon=100)
    >>> seen, _ = env.reset(seed=0)
    >>> seen["arms"].shape, int(seen["agent"])
    ((4, 3), 5)
    >>> seen, reward, ended, truncated, info = env.step(0)
    """

    def __init__(self, environment: Environment, *, horizon: int = 10_000) -> None:
        self.environment = environment
        self.horizon = validation.positive_int("horizon", horizon)
        shape = environment.n_arms, environment.dim
        self.action_space = spaces.Discrete(environment.n_arms)  # type: ignore[assignment]
        self.observation_space = spaces.Dict(
            {
                "agent": spaces.Discrete(environment.n_agents),
                "arms": spaces.Box(-np.inf, np.inf, shape=shape, dtype=np.float64),
            }
        )
        self._round = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._round = 1
        self._draw()
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Pull an arm of the agent that was observed last."""
        if self._round == 0:
            raise ValueError("reset must be called before step")
        if not self.action_space.contains(action):
            raise ValueError(f"action must be an arm in 0, …, {self.environment.n_arms - 1}, got {action!r}")
        at = self._round - self._first
        reward = float(self._by_arm[at, action] + self._shared[at])
        regret = float(self._means[at].max() - self._means[at, action])
        is_over = self._round >= self.horizon
        self._round += 1
        if self._round - self._first == BLOCK:
            self._draw()
        return self._observation(), reward, False, is_over, {"regret": regret}

    def _draw(self) -> None:
        """The next rounds: who pulls, the arms, and what each would give."""
        self._first = self._round
        rounds = np.arange(self._first, self._first + BLOCK)
        self._agents = self.np_random.integers(self.environment.n_agents, size=BLOCK)
        self._arms = self.environment.arms_in(self._first, self._first + BLOCK - 1)
        self._means = self.environment.rewards_in(self._arms, rounds, self._agents, first=self._first)
        self._by_arm, self._shared = self.environment.draw_rewards(self._means, self._agents, self.np_random)

    def _observation(self) -> dict[str, Any]:
        at = self._round - self._first
        arms: AnyArray = self._arms[at if len(self._arms) > 1 else 0].copy()
        return {"agent": np.int64(self._agents[at]), "arms": arms}
