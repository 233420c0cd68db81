"""From a sparse table of ratings to an environment: choose the arms, fill in what is missing, draw agents.

Missing cells are predicted by matrix factorisation with biases, fitted by stochastic gradient descent on
the whole table (Rendle & Schmidt-Thieme, RecSys 2008):

    r(agent, arm) ≈ μ + b_agent + b_arm + ⟨p_agent, q_arm⟩.

Observed rewards are kept unchanged. The fit has a fixed seed: an environment's seed only affects which agents
are drawn.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from shoal.core import validation
from shoal.core.types import AnyArray, Booleans, Integers, Matrix, Vector
from shoal.lab.environments.base import Environment, NoiseOptions
from shoal.lab.environments.sources import PathLike, cached, need

Codes = NDArray[np.int32]
"""Positions in a list of ids."""

Repeated = Literal["mean", "first"]

FIT_SEED = 0
"""Seed of the factorisation and of k-means."""

CHUNK = 65536
"""Number of ratings converted to Python numbers at a time."""


@dataclass(frozen=True)
class Fill:
    """Settings of the matrix factorisation that predicts missing rewards."""

    n_epochs: int
    n_factors: int
    learning_rate: float
    regularisation: float
    rounded: bool
    """Whether predictions are rounded to whole numbers."""
    scaled: bool
    """Whether rewards are divided by their standard deviation for the fit, so their unit does not matter."""


FILLS = {
    "paper": Fill(
        n_epochs=20, n_factors=100, learning_rate=0.001, regularisation=0.005, rounded=True, scaled=False
    ),
    "tuned": Fill(
        n_epochs=20, n_factors=100, learning_rate=0.01, regularisation=0.05, rounded=False, scaled=True
    ),
}
"""`"paper"`: the settings of the paper's authors, for rewards such as ratings from 1 to 5; `"tuned"`: others,
with a lower held-out error, for rewards of any scale."""

ARM_CHOICES = ("first", "most-rated")


class Numbering(dict[Any, int]):
    """Numbers ids 0, 1, … in the order of their first lookup."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


@dataclass(frozen=True, eq=False)
class Ratings:
    """A sparse table of rewards, one row per observed (agent, arm), the rows of an agent together."""

    agent_ids: AnyArray
    """(agents,) each has at least one row."""
    arm_ids: AnyArray
    """(arms,)"""
    agents: Codes
    """(n,) positions in `agent_ids`."""
    arms: Codes
    """(n,) positions in `arm_ids`."""
    rewards: Vector
    """(n,)"""

    @classmethod
    def collect(
        cls,
        agent_ids: Sequence[Any],
        arm_ids: Sequence[Any],
        agents: Any,
        arms: Any,
        rewards: Any,
        *,
        repeated: Repeated = "mean",
    ) -> "Ratings":
        """Make a table from rows in any order.

        Of several rewards of one agent for one arm it keeps their mean or the first.
        """
        agents, arms = np.asarray(agents, dtype=np.int32), np.asarray(arms, dtype=np.int32)
        rewards = np.asarray(rewards, dtype=np.float64)
        cells = agents.astype(np.int64) * len(arm_ids) + arms  # one number per (agent, arm)
        # Most tables repeat no pair. Sorting detects that with less time and memory than `np.unique` and its
        # inverse would take.
        in_order = np.sort(cells)
        if np.any(in_order[1:] == in_order[:-1]):
            _, first, cell = np.unique(cells, return_index=True, return_inverse=True)
            means = np.bincount(cell, rewards) / np.bincount(cell)
            values = means if repeated == "mean" else rewards[first]
            # Restore the order of first occurrence: gradient descent depends on the order of rows.
            order = np.argsort(first)
            agents, arms, rewards = agents[first[order]], arms[first[order]], values[order]
        if np.any(agents[1:] < agents[:-1]):
            order = np.argsort(agents, kind="stable")
            agents, arms, rewards = agents[order], arms[order], rewards[order]
        return cls(np.array(agent_ids), np.array(arm_ids), agents, arms, rewards)

    def __len__(self) -> int:
        return len(self.rewards)

    def part(self, rows: Booleans) -> "Ratings":
        """The same agents and arms, with only some of the rows."""
        return Ratings(self.agent_ids, self.arm_ids, self.agents[rows], self.arms[rows], self.rewards[rows])


@dataclass(frozen=True, eq=False)
class ArmFeatures:
    """The features of arms, in the order that `arms="first"` follows."""

    ids: AnyArray
    """(arms,)"""
    values: Matrix
    """(arms, features)"""
    source: str
    """Where they were read from, for error messages."""


@dataclass(frozen=True, eq=False)
class FilledRatings:
    """Mean rewards of all agents for the chosen arms, observed or predicted, and the arms' features."""

    agent_ids: AnyArray
    """(agents,)"""
    arm_ids: AnyArray
    """(K,)"""
    features: Matrix
    """(K, d) row k belongs to `arm_ids[k]`."""
    rewards: Matrix
    """(agents, K) column k belongs to `arm_ids[k]`."""
    observed: Booleans
    """(agents, K) True where the reward was observed."""

    def __post_init__(self) -> None:
        """Refuse arrays that are inconsistent or not finite: they may come from a file."""
        n_agents, n_arms = self.agent_ids.size, self.arm_ids.size
        fits = (
            self.agent_ids.ndim == self.arm_ids.ndim == 1
            and self.features.dtype == self.rewards.dtype == np.float64
            and self.observed.dtype == np.bool_
            and self.features.shape[:1] == (n_arms,)
            and self.rewards.shape == self.observed.shape == (n_agents, n_arms)
        )
        if not fits:
            found = ", ".join(f"{name} {array.dtype}{array.shape}" for name, array in vars(self).items())
            raise ValueError(f"the arrays of a filled table must fit together, got {found}")
        validation.matrix("rewards", self.rewards, columns=n_arms)
        validation.matrix("features", self.features)


class RatedOptions(NoiseOptions, total=False):
    """What environments of real data pass on to `RatedEnvironment`."""

    param_norm: float
    seed: int | None


class PrepareOptions(TypedDict, total=False):
    """What is chosen of the data, and how missing rewards are filled in."""

    arms: str
    n_arms: int | None
    dim: int | None
    fill: str
    cache: PathLike | None


class RatedEnvironment(Environment):
    """Agents drawn from a filled table of ratings; base class of the environments on real data.

    Attributes
    ----------
    arms : (K, d)
    mean_rewards : (N, K)
    agent_ids : (N,)
        Ids of the drawn agents in the data, in the order of the rows of `mean_rewards`.
    arm_ids : (K,)
        Ids of the arms in the data.
    observed : (N, K)
        True where the mean reward was observed, False where it was predicted.

    Notes
    -----
    An arm's features may all be zero. A linear policy always scores such an arm zero and learns nothing from
    it, and it cannot tell arms with equal features apart. Rewards are what the data says, not linear in the
    features.
    """

    def __init__(
        self,
        filled: FilledRatings,
        *,
        n_agents: int | None,
        source: str,
        param_norm: float = 1.0,
        seed: int | None = None,
        **options: Unpack[NoiseOptions],
    ) -> None:
        available = len(filled.agent_ids)
        n_agents = available if n_agents is None else validation.positive_int("n_agents", n_agents)
        if n_agents > available:
            raise ValueError(
                f"n_agents must be at most {available}, the number of agents with a reward in {source}, "
                f"got {n_agents}"
            )
        rng = np.random.default_rng(validation.seed_or_none("seed", seed))
        drawn = rng.choice(available, size=n_agents, replace=False)
        super().__init__(
            filled.features, mean_rewards=filled.rewards[drawn], param_norm=param_norm, **options
        )
        self.agent_ids = filled.agent_ids[drawn]
        self.arm_ids = filled.arm_ids
        self.observed = filled.observed[drawn]


class Prepared(NamedTuple):
    """Filled ratings and where they are kept."""

    filled: FilledRatings
    cache_file: Path
    from_cache: bool


def prepare_ratings(
    kind: str,
    files: Sequence[Path],
    read: Callable[[], tuple[Ratings, ArmFeatures]],
    *,
    arms: str = "first",
    n_arms: int | None = 30,
    dim: int | None = 10,
    fill: str = "paper",
    cache: PathLike | None = None,
    **others: Any,
) -> Prepared:
    """The result of `fill_ratings` on what `read` returns, or the same from the cache.

    The cache is keyed by the content of `files` and by all parameters, including `others`, those of `read`.
    """
    validation.one_of("arms", arms, ARM_CHOICES)
    settings = asdict(FILLS[validation.one_of("fill", fill, tuple(FILLS))])
    n_arms = None if n_arms is None else validation.positive_int("n_arms", n_arms)
    dim = None if dim is None else validation.positive_int("dim", dim)
    chosen = {"arms": arms, "n_arms": n_arms, "dim": dim}
    parameters = {**chosen, "fill": settings, "fit_seed": FIT_SEED, **others}

    def compute() -> dict[str, AnyArray]:
        ratings, features = read()
        return vars(fill_ratings(ratings, features, arms=arms, n_arms=n_arms, dim=dim, fill=fill))

    def check(arrays: dict[str, AnyArray]) -> None:
        found = FilledRatings(**arrays).features.shape
        if found[0] != (n_arms or found[0]) or found[1] != (dim or found[1]):
            raise ValueError(f"it has {found[0]} arms with {found[1]} features")

    arrays, path, hit = cached(kind, files, parameters, compute, check=check, cache=cache)
    return Prepared(FilledRatings(**arrays), path, hit)


def fill_ratings(
    ratings: Ratings,
    features: ArmFeatures,
    *,
    arms: str = "first",
    n_arms: int | None = None,
    dim: int | None = None,
    fill: str = "tuned",
) -> FilledRatings:
    """Choose arms among those with a reward, and predict the missing rewards.

    Parameters
    ----------
    ratings : Ratings
    features : ArmFeatures
        Of every arm in `ratings`; arms without a reward are left out.
    arms : "first" or "most-rated"
        The first arms in the order of `features`, or those with the most rewards, ties in the order of
        `features`.
    n_arms, dim : int, optional
        How many arms and how many of their features, counting from the first; by default all.
    fill : "paper" or "tuned"
        See `FILLS`. The factorisation uses the whole table, whichever arms are chosen.
    """
    settings = FILLS[validation.one_of("fill", fill, tuple(FILLS))]
    rows = _feature_rows(ratings, features)
    chosen = _choose_arms(ratings, rows, features.source, arms, n_arms)
    available = features.values.shape[1]
    dim = available if dim is None else validation.positive_int("dim", dim)
    if dim > available:
        raise ValueError(f"dim must be at most {available}, the features in {features.source}, got {dim}")

    # Predict every cell of the chosen columns, then overwrite the observed ones.
    rewards = factorise(ratings, settings).predict_all(chosen)
    observed = np.zeros(rewards.shape, dtype=np.bool_)
    position = np.full(len(ratings.arm_ids), -1, dtype=np.int32)
    position[chosen] = np.arange(len(chosen))
    column = position[ratings.arms]
    kept = column >= 0
    rewards[ratings.agents[kept], column[kept]] = ratings.rewards[kept]
    observed[ratings.agents[kept], column[kept]] = True
    return FilledRatings(
        ratings.agent_ids, ratings.arm_ids[chosen], features.values[rows[chosen], :dim], rewards, observed
    )


def held_out_errors(ratings: Ratings, *, share: float = 0.2, seed: int = 0) -> dict[str, float]:
    """Root mean squared errors on rewards held out of the fit.

    Parameters
    ----------
    ratings : Ratings
    share : float
        Each reward is held out with this probability.
    seed : int
        Seed of the choice.

    Returns
    -------
    dict
        `"mean-only"`: μ + b_agent + b_arm, from `means_only`; `"paper"` and `"tuned"`: the two fills;
        `"paper, not rounded"`: shows how much of the paper's error is due to rounding.
    """
    share = validation.number("share", share, low=0.0, high=1.0, open_low=True, open_high=True)
    rng = np.random.default_rng(validation.seed_or_none("seed", seed))
    held = rng.random(len(ratings)) < share
    train, test = ratings.part(~held), ratings.part(held)
    if not (len(train) and len(test)):
        raise ValueError(f"ratings must have rows to fit and to hold out, got {len(train)} and {len(test)}")
    paper, tuned = factorise(train, FILLS["paper"]), factorise(train, FILLS["tuned"])
    models = {
        "mean-only": means_only(train),
        "paper": paper,
        "paper, not rounded": replace(paper, rounded=False),
        "tuned": tuned,
    }
    return {
        name: float(np.sqrt(np.mean((model.predict(test.agents, test.arms) - test.rewards) ** 2)))
        for name, model in models.items()
    }


@dataclass(frozen=True, eq=False)
class Factors:
    """A fitted factorisation. Agents and arms without a reward have zero biases and factors."""

    mean: float
    agent_biases: Vector
    arm_biases: Vector
    agent_factors: Matrix
    arm_factors: Matrix
    low: float
    high: float
    rounded: bool

    def predict(self, agents: Codes, arms: Codes) -> Vector:
        """Predictions of pairs, shape (n,), within the range of the observed rewards."""
        products = np.einsum("nf,nf->n", self.agent_factors[agents], self.arm_factors[arms])
        return self._within(self.mean + self.agent_biases[agents] + self.arm_biases[arms] + products)

    def predict_all(self, arms: Codes) -> Matrix:
        """Predictions of all agents for some arms, shape (agents, len(arms))."""
        products = self.agent_factors @ self.arm_factors[arms].T
        return self._within(self.mean + self.agent_biases[:, None] + self.arm_biases[arms] + products)

    def _within(self, predictions: AnyArray) -> AnyArray:
        clipped = np.clip(predictions, self.low, self.high)
        # If the ends of the range are not whole numbers, rounding may leave it again: 0.5 rounds to 0.
        return np.clip(np.rint(clipped), self.low, self.high) if self.rounded else clipped


def factorise(ratings: Ratings, settings: Fill) -> Factors:
    """Fit biases and factors with scikit-surprise's SVD."""
    algorithm = need("surprise").SVD(
        n_epochs=settings.n_epochs,
        n_factors=settings.n_factors,
        lr_all=settings.learning_rate,
        reg_all=settings.regularisation,
        random_state=FIT_SEED,
    )
    # The steps of gradient descent grow with the rewards: at a standard deviation of 50 they overshoot, more
    # with every step, until everything is NaN. So fit r/s, where s is the standard deviation, then multiply
    # the biases and one of the two factors by s. No need to centre: the model has a mean μ.
    spread = float(ratings.rewards.std())
    is_constant = spread <= 1e-12 * np.abs(ratings.rewards).max()  # any spread is rounding error
    scale = spread if settings.scaled and not is_constant else 1.0
    algorithm.fit(_TrainingSet(ratings, scale))
    if not all(np.isfinite(part).all() for part in (algorithm.bu, algorithm.bi, algorithm.pu, algorithm.qi)):
        farthest = float(np.abs(ratings.rewards - ratings.rewards.mean()).max())
        raise ValueError(
            f"rewards could not be factorised: their standard deviation is {spread:g} and the largest "
            f"distance from their mean is {farthest / spread:.3g} times that. Use fill='tuned', which scales "
            "them, or scale them yourself; clip outliers"
        )
    # Factors start at random values. Without a reward nothing corrects them, and zero is a better guess.
    algorithm.pu[np.bincount(ratings.agents, minlength=len(ratings.agent_ids)) == 0] = 0.0
    algorithm.qi[np.bincount(ratings.arms, minlength=len(ratings.arm_ids)) == 0] = 0.0
    return Factors(
        float(ratings.rewards.mean()),
        scale * algorithm.bu,
        scale * algorithm.bi,
        scale * algorithm.pu,
        algorithm.qi,
        float(ratings.rewards.min()),
        float(ratings.rewards.max()),
        settings.rounded,
    )


def means_only(ratings: Ratings) -> Factors:
    """The mean of each arm, and for each agent the mean of its residuals; no factors."""
    mean = float(ratings.rewards.mean())
    arm_biases = _means(ratings.arms, ratings.rewards - mean, len(ratings.arm_ids))
    left = ratings.rewards - mean - arm_biases[ratings.arms]
    agent_biases = _means(ratings.agents, left, len(ratings.agent_ids))
    none = (np.zeros((len(agent_biases), 1)), np.zeros((len(arm_biases), 1)))
    low, high = float(ratings.rewards.min()), float(ratings.rewards.max())
    return Factors(mean, agent_biases, arm_biases, *none, low, high, rounded=False)


class _TrainingSet:
    """The part of surprise's `Trainset` that SVD uses. The original's lists of tuples are far larger."""

    def __init__(self, ratings: Ratings, scale: float) -> None:
        self._ratings, self._scale = ratings, scale
        self.n_users, self.n_items = len(ratings.agent_ids), len(ratings.arm_ids)
        self.global_mean = float(ratings.rewards.mean()) / scale

    def all_ratings(self) -> Iterator[tuple[int, int, float]]:
        table = self._ratings
        for start in range(0, len(table), CHUNK):
            rows = slice(start, start + CHUNK)
            rewards = (table.rewards[rows] / self._scale).tolist()
            yield from zip(table.agents[rows].tolist(), table.arms[rows].tolist(), rewards, strict=True)


def _feature_rows(ratings: Ratings, features: ArmFeatures) -> Integers:
    """(arms,) the row of `features` that belongs to each of `ratings.arm_ids`."""
    rows = {arm: row for row, arm in enumerate(features.ids.tolist())}
    missing = [arm for arm in ratings.arm_ids.tolist() if arm not in rows]
    if missing:
        raise ValueError(
            f"{features.source}: {len(missing)} arms with rewards have no row, the first is {missing[0]!r}"
        )
    return np.array([rows[arm] for arm in ratings.arm_ids.tolist()], dtype=np.int64)


def _choose_arms(ratings: Ratings, rows: Integers, source: str, arms: str, n_arms: int | None) -> Codes:
    """(K,) positions in `ratings.arm_ids`."""
    validation.one_of("arms", arms, ARM_CHOICES)
    n_arms = len(rows) if n_arms is None else validation.positive_int("n_arms", n_arms)
    if n_arms > len(rows):
        raise ValueError(
            f"n_arms must be at most {len(rows)}, the arms of {source} with rewards, got {n_arms}"
        )
    counts = np.bincount(ratings.arms, minlength=len(rows))
    order = np.argsort(rows) if arms == "first" else np.lexsort((rows, -counts))
    return order[:n_arms].astype(np.int32)


def _means(groups: Codes, values: Vector, n_groups: int) -> Vector:
    counts = np.bincount(groups, minlength=n_groups)
    return np.asarray(np.bincount(groups, values, minlength=n_groups) / np.maximum(counts, 1))
