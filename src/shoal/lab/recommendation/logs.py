"""From a log to a recommendation: inspect it, make worlds from it, play."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from shoal.core import validation
from shoal.lab.environments.base import Environment
from shoal.lab.environments.logged import Frame
from shoal.lab.environments.sources import PathLike
from shoal.lab.recommendation import inspecting, modelling
from shoal.lab.recommendation.playing import ALONE, Progress, Recommendation, compare, taken

HORIZONS = (5_000, 20_000)
NOISE = 0.02
"""Share of shuffled copies that may show as much as a log from which something can be learned."""


def recommend(
    world: Environment | Callable[[int], Environment] | PathLike | Frame,
    *,
    features: PathLike | Frame | None = None,
    users: PathLike | Frame | None = None,
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
    """Play the policies that suit a world, and say which of them to use.

    Parameters
    ----------
    world : Environment, function of a seed that makes one, path or frame
        A function makes a world for each run, so that intervals also cover what is unknown about the world. A
        log (a CSV or Parquet file, a mapping of columns or a data frame of pandas, polars or Arrow) is
        inspected, and worlds that it may have come from are made from it.
    features : path or frame
        For a log: one row per arm, as `LoggedRatings` takes it.
    users : path or frame, optional
        For a log: what is known of its agents, one row per agent: the column `agent`, and numbers in the
        others, whose cells may be empty. `ClusterMixture` is played with these `agent_features`, too.
    agent, arm, reward : str
        Names of the log's columns.
    n_agents : int
        Most agents of a log to draw for a world.
    horizon : int, optional
        Rounds of a run; by default 30 for each agent, between 5,000 and 50,000, and for a log as many as it
        has rows, but at least 5,000 and at most 20,000.
    runs : int
        Runs behind the figures; three others are used to choose parameters.
    seed : int
        Added to the seeds of all runs.
    progress : callable
        Called after each run with the number of finished runs, their total, and what was played.
    notes : iterable of str
        What readers of the report should know about the world.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.SyntheticClusters(40, 5, 2, 1.0, seed=0)
    >>> found = shoal.recommend(world, horizon=5_000, runs=4)
    >>> found.policy
    'cluster_mixture'
    """
    if features is None:
        if users is not None:
            raise ValueError("users are for a log; a world has its own agent_features")
        if not isinstance(world, Environment) and not callable(world):
            raise ValueError("features must be given with a log: a row for each arm")
        return compare(world, horizon=horizon, runs=runs, seed=seed, progress=progress, notes=notes)
    if isinstance(world, Environment) or callable(world):
        raise ValueError("features are for a log; a world has its own")
    n_agents = validation.positive_int("n_agents", n_agents)
    log = inspecting.read(world, features, users, agent, arm, reward)
    said = [*notes, *inspecting.oddities(log)]
    if log.rewards.std() == 0.0:
        raise ValueError(f"{log.name}: every reward is {log.rewards[0]:g}: there is nothing to learn")
    tastes, p = modelling.fit(log), modelling.chance(log, seed)
    shuffled = np.random.default_rng([seed, 3]).permutation(log.rewards)
    said += about(tastes, modelling.fit(replace(log, rewards=shuffled)))
    if log.n_agents > n_agents:
        said.append(f"Of {log.n_agents:,} agents {n_agents:,} are drawn for each run.")
    rounds = int(np.clip(len(log.rewards), *HORIZONS)) if horizon is None else horizon
    found = compare(
        lambda seed: tastes.world(seed, n_agents),
        horizon=rounds, runs=runs, seed=seed, progress=progress, notes=said,
    )  # fmt: skip
    if p <= NOISE:
        return found
    alone = next(one for one in found.played if one.label == ALONE)
    why = (
        f"Noise explains this log as well: in {p:.0%} of its copies with shuffled rewards arms and tastes "
        "seem to matter as much. It does not show what agents like, and so not whether sharing helps; the "
        "runs below show what policies make of such noise."
    )
    return replace(found, **taken(alone), reason=why)


def about(tastes: modelling.Tastes, shuffled: modelling.Tastes) -> list[str]:
    """How much of the worlds is the log, and how much the model."""
    log = tastes.log
    explained, by_chance = (max(one.explained, 0.0) for one in (tastes, shuffled))
    said = [
        f"{len(log.rewards):,} rows of {log.n_agents:,} agents and {log.n_arms:,} arms. Tastes and arms "
        f"explain {explained:.0%} of the variance of rewards ({by_chance:.0%} where rewards are shuffled); "
        f"the rest is noise with a standard deviation of {tastes.noise_scale:g}.",
        f"The log determines {tastes.known:.0%} of how agents differ in their tastes. The rest is drawn "
        "from a normal distribution, anew for every run: groups that are more alike than the log can show "
        "are blurred, which favours not sharing.",
        "If a policy or a rule chose the arms in the log, less is known about arms that it avoided. Where "
        "the probabilities of its choices were recorded, `shoal evaluate` needs no model.",
    ]
    if log.users is not None:
        said.append(
            "Each agent keeps its features, and its taste is drawn from what its own rows say, whatever its "
            "features. So where rows are few, features explain less here than they may in truth."
        )
    return said
