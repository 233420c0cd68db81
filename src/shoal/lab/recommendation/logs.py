"""From a log to a recommendation: inspect it, make worlds of it, play."""

from typing import Any

import numpy as np

from shoal.core import validation
from shoal.lab.environments.sources import PathLike
from shoal.lab.recommendation import inspecting, modelling
from shoal.lab.recommendation.playing import Progress, Recommendation, recommend

HORIZONS = (5_000, 20_000)


def recommend_for_log(
    path: PathLike,
    *,
    features: PathLike | Any,
    agent: str = "agent",
    arm: str = "arm",
    reward: str = "reward",
    n_agents: int = 1_000,
    horizon: int | None = None,
    runs: int = 6,
    seed: int = 0,
    progress: Progress = lambda done, total, what: None,
) -> Recommendation:
    """Inspect a log, play in worlds that it may have come from, and say which policy to take.

    `n_agents` is the most that are drawn for a world; a run has as many rounds as the log has rows, but at
    least 5,000 and at most 20,000.
    """
    n_agents = validation.positive_int("n_agents", n_agents)
    log = inspecting.read(path, features, agent=agent, arm=arm, reward=reward)
    said = inspecting.oddities(log)
    if log.rewards.std() == 0.0:
        raise ValueError(f"{log.path}: every reward is {log.rewards[0]:g}: there is nothing to learn")
    tastes = modelling.fit(log)
    said += about(tastes)
    if log.n_agents > n_agents:
        said.append(f"Of {log.n_agents:,} agents {n_agents:,} are drawn for each run.")
    rounds = int(np.clip(len(log.rewards), *HORIZONS)) if horizon is None else horizon
    return recommend(
        lambda seed: tastes.world(seed, n_agents),
        horizon=rounds, runs=runs, seed=seed, progress=progress, notes=said,
    )  # fmt: skip


def about(tastes: modelling.Tastes) -> list[str]:
    """How much of the worlds is the log, and how much the model."""
    log = tastes.log
    said = [
        f"{len(log.rewards):,} rows of {log.n_agents:,} agents and {log.n_arms:,} arms. Tastes and arms "
        f"explain {max(tastes.explained, 0.0):.0%} of the variance of rewards; the rest is noise with a "
        f"standard deviation of {tastes.noise_scale:g}.",
        f"The log tells {tastes.known:.0%} of how agents differ in their tastes. The rest is drawn from a "
        "normal distribution, anew for every run: groups that are more alike than the log can show are "
        "blurred, which favours going it alone.",
        "If a policy or a rule chose what the log shows, arms that it avoided are known less well. Where the "
        "probabilities of its choices were recorded, `shoal evaluate` answers without a model.",
    ]
    return said
