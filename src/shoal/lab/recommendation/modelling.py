"""Worlds that a log may have come from: every agent's taste is drawn from what the log says about it.

Treating the rewards in a log as the truth would turn its noise into worlds: where an agent had an arm once,
chance would decide which of its arms is best. So tastes are modelled (random effects, Laird & Ware 1982):

    reward = ⟨taste of the agent, features of the arm⟩ + effect of the arm + noise,

with tastes from one normal distribution, whose mean and covariance are fitted by expectation-maximisation. A
world takes one draw of each agent's taste given the agent's own rows. Draws, unlike means, are as different
from each other as the tastes themselves, so that worlds favour sharing no more than the log does.

A model finds tastes even in noise, above all where rewards are rare. So the log is compared with copies of it
whose rewards are shuffled, in which there is nothing to find.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.types import Integers, Matrix, Tensor, Vector
from shoal.lab.environments.base import Environment
from shoal.lab.recommendation.inspecting import RewardLog

STEPS = 60
"""Most steps of expectation-maximisation."""
CLOSE = 1e-4
"""Relative change of the covariance at which it ends."""
SHUFFLES = 99
"""Copies with shuffled rewards that a log is compared with."""
WEIGHT = 5.0
"""Number of an agent's rows that weigh as much in its mean reward as the mean of all rows."""
TURNS = 4
"""How often tastes and effects of arms are fitted, each given the other."""


@dataclass(frozen=True)
class Tastes:
    """What a log says about the tastes of its agents."""

    log: RewardLog
    mean: Vector
    """(d,) of all agents."""
    covariance: Matrix
    """(d, d) of tastes between agents."""
    means: Matrix
    """(N, d) of each agent, given its rows."""
    covariances: Tensor
    """(N, d, d) of each agent, given its rows."""
    effects: Vector
    """(K,) of arms, beyond their features."""
    noise_scale: float

    @property
    def known(self) -> float:
        """How much of the differences between agents the log determines: 0 nothing, 1 everything."""
        total = float(np.trace(self.covariance))
        left = float(np.trace(self.covariances, axis1=1, axis2=2).mean())
        return 1.0 - left / total if total > 0.0 else 1.0

    @property
    def explained(self) -> float:
        """Share of the variance of rewards that tastes and arms explain, on the rows they were fitted to."""
        return 1.0 - self.noise_scale**2 / float(self.log.rewards.var())

    def world(self, seed: int, n_agents: int) -> Environment:
        """A world that the log may have come from, with some of its agents."""
        rng = np.random.default_rng([seed, 1])
        # Another part of a large log in every run, so that intervals cover the choice of agents, too.
        chosen = rng.choice(len(self.means), size=min(n_agents, len(self.means)), replace=False)
        # A little more than the covariance, which is singular where an agent's rows settle a direction.
        factors = np.linalg.cholesky(self.covariances[chosen] + 1e-12 * np.eye(len(self.mean)))
        draws = rng.standard_normal((len(chosen), len(self.mean), 1))
        tastes = self.means[chosen] + (factors @ draws)[..., 0]
        rewards = tastes @ self.log.features.T + self.effects
        norm = float(np.linalg.norm(self.means, axis=1).max())
        if self.log.is_binary:
            world = Environment(
                self.log.features,
                mean_rewards=_probabilities(
                    rewards, np.bincount(self.log.arms), float(self.log.rewards.mean())
                ),
                noise="bernoulli",
                param_norm=norm,
            )
        else:
            world = Environment(
                self.log.features, mean_rewards=rewards, noise_scale=self.noise_scale, param_norm=norm
            )
        if self.log.users is not None:
            world.agent_features = self.log.users.values[chosen]
        return world


def _probabilities(linear: Matrix, counts: Integers, mean: float) -> Matrix:
    """Probabilities in the order of a linear model's values, with about their spread, shape (n, K).

    The linear model does not know that probabilities end at 0 and 1, and cutting its values there would make
    rewards more frequent than they are. So the values are used as log-odds, with a slope that keeps the
    spread (exactly, for small probabilities and normal values), and shifted until agents have the log's mean
    reward if each is offered arms as often, `counts`, as in the log.
    """
    spread = max(float(linear.std()), 1e-300)
    slope = math.sqrt(math.log1p((spread / (mean * (1.0 - mean))) ** 2)) / spread
    odds, low, high = slope * (linear - linear.mean()), -60.0, 60.0
    shares = counts / (len(linear) * counts.sum())
    for _ in range(60):
        middle = (low + high) / 2.0
        is_low = float((shares / (1.0 + np.exp(-odds - middle))).sum()) < mean
        low, high = (middle, high) if is_low else (low, middle)
    return np.asarray(1.0 / (1.0 + np.exp(-odds - low)))


def chance(log: RewardLog, seed: int = 0) -> float:
    """The share of copies with shuffled rewards, the log included, in which arms and tastes matter as much.

    They may matter in three ways, of which the most striking counts. Where nothing matters, every order of
    the rewards is equally likely, so the share is a p-value, whatever the rewards' distribution.
    """
    rng = np.random.default_rng([seed, 2])
    spreads = log.features[log.arms].std(axis=0)
    x = (log.features - log.features[log.arms].mean(axis=0)) / np.where(spreads > 0.0, spreads, 1.0)
    scaled = replace(log, features=x)
    inverse = np.linalg.pinv(x[log.arms].T @ x[log.arms])
    copies = [log.rewards, *(rng.permutation(log.rewards) for _ in range(SHUFFLES))]
    found = np.array([_strengths(scaled, rewards, inverse) for rewards in copies])
    scores = ((found - found.mean(axis=0)) / np.maximum(found.std(axis=0), 1e-300)).max(axis=1)
    return float(np.mean(scores >= scores[0]))


def _strengths(log: RewardLog, rewards: Vector, inverse: Matrix) -> tuple[float, float, float]:
    """How much features matter to all agents, arms to all agents, and features to each agent.

    An agent's mean reward is taken out, as it says nothing about what to choose.
    """
    counts, sums = np.bincount(log.agents), np.bincount(log.agents, rewards)
    means = (sums + WEIGHT * rewards.mean()) / (counts + WEIGHT)
    left = rewards - means[log.agents]
    of_arms = np.bincount(log.arms, left, minlength=log.n_arms)
    counts = np.maximum(np.bincount(log.arms, minlength=log.n_arms), 1)
    common = log.features.T @ of_arms
    own = _products(log, left - (of_arms / counts)[log.arms])
    return float(common @ inverse @ common), float((of_arms**2 / counts).sum()), float((own**2).sum())


def fit(log: RewardLog) -> Tastes:
    """Fit tastes, and what arms have beyond their features, in turns."""
    variance, dim = float(log.rewards.var()), log.features.shape[1]
    # These do not depend on rewards, and so not on the turn.
    squares = _squares(log)
    effects = np.zeros(log.n_arms)
    mean, noise = np.zeros(dim), variance
    covariance = np.eye(dim) * variance / max(float((log.features**2).sum(axis=1).mean()), 1e-12)
    for _ in range(TURNS):
        rewards = log.rewards - effects[log.arms]
        products = _products(log, rewards)
        energy = float(rewards @ rewards)
        mean, covariance, noise = _maximise(squares, products, energy, mean, covariance, noise, len(rewards))
        # Where the model explains every reward, the noise would be 0 and its inverse infinite.
        noise = max(noise, 1e-12 * variance)
        means, covariances = _posterior(squares, products, mean, covariance, noise)
        # What tastes leave unexplained is split into effects of arms and noise.
        left = log.rewards - np.einsum("nd,nd->n", means[log.agents], log.features[log.arms])
        effects = _effects(log, left, noise)
    return Tastes(log, mean, covariance, means, covariances, effects, float(f"{np.sqrt(noise):.3g}"))


def _maximise(
    squares: Tensor,
    products: Matrix,
    energy: float,
    mean: Vector,
    covariance: Matrix,
    noise: float,
    rows: int,
) -> tuple[Vector, Matrix, float]:
    """Mean and covariance of tastes and the variance of the noise, by expectation-maximisation."""
    for _ in range(STEPS):
        means, covariances = _posterior(squares, products, mean, covariance, noise)
        before, mean = covariance, means.mean(axis=0)
        centred = means - mean
        # Spread between agents plus uncertainty about each: without the latter they would be too alike.
        covariance = covariances.mean(axis=0) + centred.T @ centred / len(means)
        # Σ (y − ⟨taste, x⟩)² over all rows, expected given the rows, from sums alone.
        left = energy - 2.0 * np.einsum("nd,nd->", means, products)
        left += np.einsum("nd,nde,ne->", means, squares, means)
        left += np.einsum("nde,ned->", squares, covariances)
        noise = max(float(left) / rows, 1e-300)
        if np.abs(covariance - before).max() < CLOSE * np.abs(before).max():
            break
    return mean, covariance, noise


def _squares(log: RewardLog) -> Tensor:
    """Σ x xᵀ of each agent's rows, (N, d, d)."""
    order = np.argsort(log.agents, kind="stable")
    ends = np.cumsum(np.bincount(log.agents, minlength=log.n_agents))
    own = (log.features[log.arms[part]] for part in np.split(order, ends[:-1]))
    return np.array([x.T @ x for x in own])


def _products(log: RewardLog, rewards: Vector) -> Matrix:
    """Σ y x of each agent's rows, (N, d)."""
    columns = (rewards * x for x in log.features[log.arms].T)
    return np.array([np.bincount(log.agents, column, minlength=log.n_agents) for column in columns]).T


def _posterior(
    squares: Tensor, products: Matrix, mean: Vector, covariance: Matrix, noise: float
) -> tuple[Matrix, Tensor]:
    """Mean and covariance of each agent's taste, given its rows and the distribution of tastes."""
    dim = len(mean)
    floor = 1e-9 * max(float(np.trace(covariance)) / dim, 1e-300)  # tastes may be all alike in some direction
    prior = np.linalg.inv(covariance + floor * np.eye(dim))
    covariances = np.linalg.inv(prior + squares / noise)
    # Rounding makes the inverse slightly asymmetric, and Cholesky would use only one half.
    covariances = (covariances + covariances.transpose(0, 2, 1)) / 2.0
    means = np.einsum("nde,ne->nd", covariances, prior @ mean + products / noise)
    return means, covariances


def _effects(log: RewardLog, left: Vector, noise: float) -> Vector:
    """Effects of arms beyond their features, shrunk by how much of them may be noise."""
    counts = np.bincount(log.arms, minlength=log.n_arms)
    effects = np.bincount(log.arms, left, minlength=log.n_arms) / counts
    # The variance of effects beyond that of noise (method of moments).
    spread = max(float((effects**2 - noise / counts).mean()), 0.0)
    return np.asarray(effects * spread / (spread + noise / counts))
