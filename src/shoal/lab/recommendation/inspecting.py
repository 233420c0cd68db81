"""What a log holds, and what is odd about it: read once, before anything is played."""

from dataclasses import dataclass

import numpy as np

from shoal.core.logs import AgentTable, read_agents, read_arms
from shoal.core.types import Integers, Matrix, Vector
from shoal.lab.environments.logged import Frame, open_table, read_events
from shoal.lab.environments.sources import PathLike
from shoal.reporting.words import counted

FEW_OBSERVED = 0.2
"""Share of observed cells below which the answer rests on predictions."""
NORMS = (0.2, 5.0)
"""Norms of arms for which the ridge and the grid of α are meant."""
UNEVEN = 100.0
"""Largest ratio of two features' standard deviations."""
NAMED = 8
"""Features of agents that are named."""
FAR = 8.0
"""Standard deviations from the mean at which a reward is an outlier."""


@dataclass(frozen=True)
class RewardLog:
    """A log as it was read, row by row."""

    name: str
    """Its path, or "log"."""
    agents: Integers
    """(rows,) numbered from 0."""
    arms: Integers
    """(rows,) numbered from 0."""
    rewards: Vector
    """(rows,)"""
    features: Matrix
    """(arms, d)"""
    users: AgentTable | None = None
    """Features of the agents."""

    @property
    def n_agents(self) -> int:
        """Agents in the log."""
        return int(self.agents.max()) + 1

    @property
    def n_arms(self) -> int:
        """Arms in the log."""
        return int(self.arms.max()) + 1

    @property
    def is_binary(self) -> bool:
        """Whether all rewards are 0 or 1, and both occur."""
        return set(np.unique(self.rewards).tolist()) == {0.0, 1.0}

    @property
    def observed(self) -> float:
        """Share of the pairs of an agent and an arm that occur."""
        cells = self.agents * self.n_arms + self.arms
        return len(np.unique(cells)) / (self.n_agents * self.n_arms)


def read(
    source: PathLike | Frame,
    features: PathLike | Frame,
    users: PathLike | Frame | None,
    agent: str,
    arm: str,
    reward: str,
) -> RewardLog:
    """Read a log and its features, or raise an error that names file and line."""
    log, table = open_table(source, "log"), open_table(features, "features")
    known = read_arms(table, arm)
    # The table may have arms that are not in the log, but every arm of the log needs features.
    events = read_events(log, agent, arm, reward, (known, table.name))
    return RewardLog(
        log.name,
        np.array(events.agents, dtype=np.int64),
        np.array(events.arms, dtype=np.int64),
        np.array(events.rewards),
        np.array([known[name] for name in events.arm_ids]),
        None if users is None else read_agents(open_table(users, "users"), agent, events.agent_ids),
    )


def oddities(log: RewardLog) -> list[str]:
    """What is odd about a log, in sentences; nothing if it looks as it should."""
    return [*_of_rewards(log), *_of_agents(log), *_of_features(log), *_of_users(log)]


def _of_rewards(log: RewardLog) -> list[str]:
    said = []
    spread = float(log.rewards.std())
    if spread == 0.0:
        return [f"Every reward is {log.rewards[0]:g}: there is nothing to learn."]
    if log.observed < FEW_OBSERVED:
        said.append(
            f"{log.observed:.1%} of the pairs of an agent and an arm were observed. The rest is predicted "
            "from the features by a linear model of tastes: the answer says as much about it as about the "
            "agents."
        )
    # Normal noise hardly ever reaches eight standard deviations, however long the log.
    far = int(np.count_nonzero(np.abs(log.rewards - log.rewards.mean()) > FAR * spread))
    if far and not log.is_binary:
        said.append(
            f"{counted(far, 'reward')} more than {FAR:g} standard deviations from the mean: tails are "
            "heavy, and the bounds that policies use do not hold for them. Consider logarithms, or a cap."
        )
    if log.is_binary and min(log.rewards.mean(), 1.0 - log.rewards.mean()) < 0.005:
        said.append(
            f"{log.rewards.mean():.2%} of the rewards are 1: so few that differences take long to show."
        )
    return said


def _of_agents(log: RewardLog) -> list[str]:
    said = []
    rows, dim = np.bincount(log.agents), log.features.shape[1]
    if log.n_agents == 1:
        said.append("There is one agent: nobody to share with.")
    elif np.median(rows) < dim:
        said.append(
            f"Half of the agents have fewer than {dim} rows, the number of features: alone they cannot learn "
            "their own taste."
        )
    sums, squares = np.bincount(log.agents, log.rewards), np.bincount(log.agents, log.rewards**2)
    several = rows > 1
    # The variance from sums, one pass for all agents; the tolerance is rounding.
    flat = several & (squares - sums**2 / rows <= 1e-12 * np.maximum(squares, 1e-300))
    if several.any() and flat.sum() > 0.5 * several.sum():
        said.append(
            f"{flat.sum():,} of the {several.sum():,} agents with more than one row always had the same "
            "reward."
        )
    share = float(np.bincount(log.arms).max() / len(log.arms))
    if log.n_arms > 4 and share > 0.5:
        said.append(f"One arm has {share:.0%} of the rows: the log says little about the others.")
    return said


def _of_features(log: RewardLog) -> list[str]:
    said = []
    values = log.features
    norms, spreads = np.linalg.norm(values, axis=1), values.std(axis=0)
    # Without the extremes: a few odd arms are no reason to scale all.
    low, high = np.quantile(norms, [0.05, 0.95])
    if not NORMS[0] <= low <= high <= NORMS[1]:
        said.append(
            f"Arms have norms from {low:.3g} to {high:.3g} (5% to 95%); the ridge and α are meant for norms "
            "around 1. Scale the features."
        )
    varying = spreads[spreads > 0.0]
    if len(varying) > 1 and varying.max() > UNEVEN * varying.min():
        said.append(
            f"One feature varies {varying.max() / varying.min():,.0f} times as much as another: the ridge "
            "hides the smaller one. Standardise the features."
        )
    constant = int(np.count_nonzero(spreads == 0.0))
    if constant > 1 and not log.is_binary:
        said.append(f"{constant} features are the same for all arms; one such column, of ones, is enough.")
    if constant and log.is_binary:
        said.append(
            f"{constant} feature{'s are' if constant > 1 else ' is'} the same for all arms: leave such "
            "columns out, as policies for rewards of 0 and 1 have an intercept of their own."
        )
    # Directions that no arm has cannot be learned, but widen every bonus.
    rank = int(np.linalg.matrix_rank(values))
    if rank < min(values.shape):
        said.append(
            f"Of {values.shape[1]} features {rank} are independent; the others add nothing but width."
        )
    same = len(values) - len(np.unique(values, axis=0))
    if same:
        said.append(
            f"{same:,} arm{'s have' if same > 1 else ' has'} the same features as another, and cannot be "
            "told apart from it."
        )
    return said


def _of_users(log: RewardLog) -> list[str]:
    if log.users is None:
        return []
    columns, values, known, others = log.users
    shown = ", ".join(columns[:NAMED]) + (
        f" and {len(columns) - NAMED:,} more" if len(columns) > NAMED else ""
    )
    ignored = f"; {counted(others, 'row')} of agents that the log does not have ignored" if others else ""
    said = [f"{known:,} of the {log.n_agents:,} agents are described ({shown}){ignored}."]
    empty = np.isnan(values)
    low = np.where(empty, np.inf, values).min(axis=0)
    high = np.where(empty, -np.inf, values).max(axis=0)
    if flat := [repr(name) for name, is_flat in zip(columns, low >= high, strict=True) if is_flat]:
        said.append(
            f"{', '.join(flat)}: the same for all agents with an entry, which says nothing; leave out."
        )
    return said
