"""From a log to a recommendation: inspect it, make worlds of it, play."""

from collections.abc import Callable, Iterable

import numpy as np

from shoal.core import validation
from shoal.lab.environments.base import Environment
from shoal.lab.environments.logged import Frame
from shoal.lab.environments.sources import PathLike
from shoal.lab.recommendation import inspecting, modelling
from shoal.lab.recommendation.playing import Progress, Recommendation, compare

HORIZONS = (5_000, 20_000)


def recommend(
    world: Environment | Callable[[int], Environment] | PathLike | Frame,
    *,
    features: PathLike | Frame | None = None,
    agent: str = "agent",
    arm: str = "arm",
    reward: str = "reward",
    n_agents: int = 1_000,
    horizon: int | None = None,
    runs: int = 6,
    seed: int = 0,
    progress: Progress = lambda done, total, what: None,
    notes: Iterable[str] = (),
) -> Recommendation:
    """Play the policies that fit in a world, and say which of them to take.

    Parameters
    ----------
    world : Environment, function of a seed that makes one, path or frame
        A function makes a world for each run, so that intervals also cover what is not known of the world. A
        log (a CSV or Parquet file, a mapping of columns or a data frame of pandas, polars or Arrow) is
        inspected, and worlds that it may have come from are made of it.
    features : path or frame
        For a log: a row for each arm, as `LoggedRatings` takes it.
    agent, arm, reward : str
        Names of the log's columns.
    n_agents : int
        How many agents of a log are drawn for a world, at most.
    horizon : int, optional
        Rounds of a run; by default 30 for each agent, between 5,000 and 50,000, and for a log as many as it
        has rows, but at least 5,000 and at most 20,000.
    runs : int
        Runs that the figures are from; three others are used to choose.
    seed : int
        Added to the seeds of all runs.
    progress : callable
        Told after each run how many are finished, how many there are, and what was played.
    notes : iterable of str
        What readers should know of the world, for the report.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.SyntheticClusters(40, 5, 2, 1.0, seed=0)
    >>> found = shoal.recommend(world, horizon=5_000, runs=4)
    >>> found.policy
    'cluster_mixture'
    """
    if features is None:
        if not isinstance(world, Environment) and not callable(world):
            raise ValueError("features must be given with a log: a row for each arm")
        return compare(world, horizon=horizon, runs=runs, seed=seed, progress=progress, notes=notes)
    if isinstance(world, Environment) or callable(world):
        raise ValueError("features are for a log; a world has its own")
    n_agents = validation.positive_int("n_agents", n_agents)
    log = inspecting.read(world, features, agent, arm, reward)
    said = [*notes, *inspecting.oddities(log)]
    if log.rewards.std() == 0.0:
        raise ValueError(f"{log.name}: every reward is {log.rewards[0]:g}: there is nothing to learn")
    tastes = modelling.fit(log)
    said += about(tastes)
    if log.n_agents > n_agents:
        said.append(f"Of {log.n_agents:,} agents {n_agents:,} are drawn for each run.")
    rounds = int(np.clip(len(log.rewards), *HORIZONS)) if horizon is None else horizon
    return compare(
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
