"""Synthetic environments: the paper's two benchmarks, unit vectors, and cases that its assumptions exclude.

These are arms that change every round, agents on a line without clusters, agents and clusters that change,
members that differ and agents that lie (Wang et al. 2023), a graph with errors (Cesa-Bianchi et al. 2013),
agents who are described.
"""

import math
from typing import Unpack

import numpy as np

from shoal.core import validation
from shoal.core.types import AnyArray, Integers, Matrix, Tensor, Vector
from shoal.lab.environments.base import Environment, NoiseOptions, equal_clusters

BLOCK = 256
"""Number of rounds whose arms `ChangingArms` draws at once."""


class SyntheticClusters(Environment):
    """Pairs of cluster parameters at a given angle, with arms scattered around each.

    `θ_{2q−1} = e_{2q−1}`, `θ_{2q} = cos ω e_{2q−1} + sin ω e_{2q}`; around each θ_m, arms
    `x = θ_m + spread ‖θ_m‖ g`, g standard normal. Angles π/16 and 7π/16 give the
    gaps 0.2 and 1.27 of the paper.

    Parameters
    ----------
    n_agents : int
        Number of agents.
    dim : int
        Dimension of the arms, at least `n_clusters`.
    n_clusters : int
        Number of clusters, of sizes that differ by at most one.
    angle : float
        ω, in radians.
    arms_per_cluster : int
    arm_spread : float
    noise, noise_scale
        As for `Environment`.
    seed : int or None
        Seed of the arms.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.SyntheticClusters(n_agents=6, dim=4, n_clusters=2, angle=1.2, seed=0)
    >>> world.labels
    array([0, 0, 0, 1, 1, 1])
    >>> world.arms.shape, world.mean_rewards.shape
    ((10, 4), (6, 10))
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int,
        angle: float,
        *,
        arms_per_cluster: int = 5,
        arm_spread: float = 0.5,
        seed: int | None = None,
        **options: Unpack[NoiseOptions],
    ) -> None:
        labels = equal_clusters(n_agents, n_clusters)
        dim = validation.positive_int("dim", dim)
        if dim < n_clusters:
            raise ValueError(f"dim must be at least n_clusters = {n_clusters}, got {dim}")
        angle = validation.number("angle", angle)
        count = validation.positive_int("arms_per_cluster", arms_per_cluster)
        spread = validation.number("arm_spread", arm_spread, low=0.0)
        centers = np.zeros((n_clusters, dim))
        for m in range(n_clusters):
            if m % 2 == 0:
                centers[m, m] = 1.0
            else:
                centers[m, m - 1 : m + 1] = math.cos(angle), math.sin(angle)
        around = np.repeat(centers, count, axis=0)
        rng = np.random.default_rng(validation.seed_or_none("seed", seed))
        super().__init__(
            _scatter(around, spread, rng),
            theta_star=centers[labels],
            labels=labels,
            **options,
        )


class ClusterOptions(NoiseOptions, total=False):
    """What the environments below pass on to `SyntheticClusters`."""

    arms_per_cluster: int
    arm_spread: float


class ChangingAgents(SyntheticClusters):
    """`SyntheticClusters` whose agents change their parameters once.

    After round `change_after` a random permutation reassigns the parameters among the agents: clusters keep
    their sizes, and about one agent in `n_clusters` keeps its parameter. The arms are those of
    `SyntheticClusters` with the same seed, and do not change.

    Parameters
    ----------
    n_agents, dim, n_clusters, angle
        As for `SyntheticClusters`.
    change_after : int
        Number of rounds before the change.
    arms_per_cluster, arm_spread, noise, noise_scale
        As for `SyntheticClusters`.
    seed : int or None
        Seed of the arms and of the permutation.

    Attributes
    ----------
    theta_after : (N, d)
        True parameters after the change; `theta_star` and `mean_rewards` are those before it.
    labels : None
        No clustering is true in all rounds, so there is none to score a graph against or to pool by.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.ChangingAgents(6, 4, 2, angle=1.2, change_after=500, seed=0)
    >>> trace = shoal.simulate(shoal.ClusterMixture(6, 4, seed=0), world, horizon=1_000, seed=0)
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int,
        angle: float,
        *,
        change_after: int,
        seed: int | None = None,
        **options: Unpack[ClusterOptions],
    ) -> None:
        self.change_after = validation.positive_int("change_after", change_after)
        entropy = _entropy(seed)
        super().__init__(n_agents, dim, n_clusters, angle, seed=entropy, **options)
        assert self.theta_star is not None  # by construction
        self.labels = None
        dealt = np.random.default_rng([1, entropy]).permutation(self.n_agents)
        self.theta_after = self.theta_star[dealt]
        self._means_after = self.mean_rewards[dealt]
        self.theta_after.flags.writeable = self._means_after.flags.writeable = False

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        """Mean rewards, shape (n, K), of `agents` (n,) with the parameters they have in `rounds` (n,)."""
        after = (rounds > self.change_after)[:, None]
        return np.where(after, self._means_after[agents], self.mean_rewards[agents])


class JumpingAgents(SyntheticClusters):
    """`SyntheticClusters` in which some agents jump to another cluster, each at its own round.

    Who jumps, when (uniformly within the first `last_jump` rounds) and where to are random. The arms are
    those of `SyntheticClusters` with the same seed, and do not change.

    Parameters
    ----------
    n_agents, dim, n_clusters, angle
        As for `SyntheticClusters`; `n_clusters` must be at least 2.
    last_jump : int
        Number of rounds within which agents jump.
    share : float
        Share of the agents that jump, in [0, 1].
    arms_per_cluster, arm_spread, noise, noise_scale
        As for `SyntheticClusters`.
    seed : int or None
        Seed of the arms and of the jumps.

    Attributes
    ----------
    jumps_after : (N,)
        How many rounds each agent keeps its first parameter; more than `last_jump` if it never jumps.
    labels : None
        No clustering is true in all rounds.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.JumpingAgents(8, 4, 2, angle=1.2, last_jump=1_000, share=0.5, seed=0)
    >>> int((world.jumps_after <= 1_000).sum())  # of eight
    4
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int,
        angle: float,
        *,
        last_jump: int,
        share: float = 0.2,
        seed: int | None = None,
        **options: Unpack[ClusterOptions],
    ) -> None:
        last_jump = validation.positive_int("last_jump", last_jump)
        share = validation.number("share", share, low=0.0, high=1.0)
        if validation.positive_int("n_clusters", n_clusters) < 2:
            raise ValueError(f"n_clusters must be at least 2, for agents to jump between, got {n_clusters}")
        entropy = _entropy(seed)
        super().__init__(n_agents, dim, n_clusters, angle, seed=entropy, **options)
        assert self.labels is not None  # by construction
        rng, before = np.random.default_rng([2, entropy]), self.labels
        who = rng.permutation(self.n_agents)[: round(share * self.n_agents)]
        self.jumps_after = np.full(self.n_agents, last_jump + 1)
        self.jumps_after[who] = rng.integers(1, last_jump + 1, len(who))
        after = before.copy()
        # An offset of at least 1, so that everyone who jumps changes cluster.
        after[who] = (before[who] + rng.integers(1, n_clusters, len(who))) % n_clusters
        first = np.array([np.flatnonzero(before == m)[0] for m in range(n_clusters)])
        self._means_after = self.mean_rewards[first[after]]
        self.labels = None

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        """Mean rewards, shape (n, K), of `agents` (n,) with the parameters they have in `rounds` (n,)."""
        after = (rounds > self.jumps_after[agents])[:, None]
        return np.where(after, self._means_after[agents], self.mean_rewards[agents])


class RotatingClusters(SyntheticClusters):
    """`SyntheticClusters` whose parameters all rotate together, at a constant speed.

    They rotate in ⌊d/2⌋ random planes, orthogonal to each other (for odd d, one direction is fixed).

    Parameters
    ----------
    n_agents, dim, n_clusters, angle
        As for `SyntheticClusters`.
    quarter_turn : int
        Number of rounds per 90°.
    arms_per_cluster, arm_spread, noise, noise_scale
        As for `SyntheticClusters`.
    seed : int or None
        Seed of the arms and of the planes.

    Attributes
    ----------
    labels : None
        Clusters stay together, but no parameter is true in all rounds: there is no oracle.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.RotatingClusters(6, 4, 2, angle=1.2, quarter_turn=10_000, seed=0)
    >>> world.labels is None
    True
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int,
        angle: float,
        *,
        quarter_turn: int,
        seed: int | None = None,
        **options: Unpack[ClusterOptions],
    ) -> None:
        self.quarter_turn = validation.positive_int("quarter_turn", quarter_turn)
        entropy = _entropy(seed)
        super().__init__(n_agents, dim, n_clusters, angle, seed=entropy, **options)
        assert self.theta_star is not None  # by construction
        self.labels = None
        planes = np.linalg.qr(np.random.default_rng([3, entropy]).standard_normal((self.dim, self.dim)))[0]
        along, across = planes[:, 0 : self.dim // 2 * 2 : 2], planes[:, 1::2]
        # A rotation by φ in these planes maps θ to cos φ · θ + sin φ · (θ turned by 90°); the rest is fixed.
        self._turned = self.theta_star @ (along @ across.T - across @ along.T)
        self._stays = self.theta_star @ (planes[:, self.dim // 2 * 2 :] @ planes[:, self.dim // 2 * 2 :].T)

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        """Mean rewards, shape (n, K), of `agents` (n,) with the parameters they have in `rounds` (n,)."""
        phase = (math.pi / 2.0 / self.quarter_turn * (rounds - 1))[:, None]  # none in the first round
        turning = (self.theta_star - self._stays)[agents]
        theta = np.cos(phase) * turning + np.sin(phase) * self._turned[agents] + self._stays[agents]
        return np.asarray(theta @ self.arms.T)


class MisspecifiedClusters(SyntheticClusters):
    """`SyntheticClusters` whose members differ: θ_i is uniform in a ball around its cluster's parameter.

    The arms are those of `SyntheticClusters` with the same seed.

    Parameters
    ----------
    n_agents, dim, n_clusters, angle
        As for `SyntheticClusters`.
    deviation : float ≥ 0
        ε, the largest distance of an agent's parameter from that of its cluster.
    arms_per_cluster, arm_spread, noise, noise_scale
        As for `SyntheticClusters`.
    seed : int or None
        Seed of the arms and of the deviations.

    Examples
    --------
    >>> world = MisspecifiedClusters(6, 4, 2, angle=1.2, deviation=0.1, seed=0)
    >>> bool(np.linalg.norm(world.theta_star[0] - world.theta_star[1]) <= 0.2)  # of one cluster
    True
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int,
        angle: float,
        *,
        deviation: float = 0.2,
        seed: int | None = None,
        **options: Unpack[ClusterOptions],
    ) -> None:
        deviation = validation.number("deviation", deviation, low=0.0)
        entropy = _entropy(seed)
        super().__init__(n_agents, dim, n_clusters, angle, seed=entropy, **options)
        assert self.theta_star is not None  # by construction
        rng = np.random.default_rng([4, entropy])
        radii = deviation * rng.random((self.n_agents, 1)) ** (1.0 / self.dim)
        self.theta_star = self.theta_star + radii * _on_sphere(rng.standard_normal((self.n_agents, self.dim)))
        self.mean_rewards = self.theta_star @ self.arms.T
        self.param_norm = float(np.linalg.norm(self.theta_star, axis=1).max())
        self.theta_star.flags.writeable = self.mean_rewards.flags.writeable = False


class CorruptedAgents(SyntheticClusters):
    """`SyntheticClusters` in which some agents report the opposite of every reward.

    A liar reports −y for a reward y (1 − y for rewards of 0 or 1). Its own regret does not count: its mean
    rewards are 0. Regret is therefore that of the honest agents, and says what the lies cost them.

    Parameters
    ----------
    n_agents, dim, n_clusters, angle
        As for `SyntheticClusters`.
    share : float in [0, 1]
        Share of the agents that lie, drawn at random.
    arms_per_cluster, arm_spread, noise, noise_scale
        As for `SyntheticClusters`.
    seed : int or None
        Seed of the arms and of who lies.

    Attributes
    ----------
    liars : (N,)
        Who lies.
    labels : (N,)
        The liars of a cluster form one of their own: what they report follows another parameter.

    Examples
    --------
    >>> world = CorruptedAgents(8, 4, 2, angle=1.2, share=0.25, seed=0)
    >>> int(world.liars.sum())
    2
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int,
        angle: float,
        *,
        share: float = 0.2,
        seed: int | None = None,
        **options: Unpack[ClusterOptions],
    ) -> None:
        share = validation.number("share", share, low=0.0, high=1.0)
        entropy = _entropy(seed)
        super().__init__(n_agents, dim, n_clusters, angle, seed=entropy, **options)
        assert self.labels is not None  # by construction
        self.liars = np.zeros(self.n_agents, dtype=np.bool_)
        drawn = np.random.default_rng([5, entropy]).permutation(self.n_agents)
        self.liars[drawn[: round(share * self.n_agents)]] = True
        self.labels = np.where(self.liars, n_clusters + self.labels, self.labels)
        self._felt = self.mean_rewards
        self.mean_rewards = np.where(self.liars[:, None], 0.0, self.mean_rewards)
        for array in (self.liars, self.labels, self.mean_rewards):
            array.flags.writeable = False

    def draw_rewards(
        self, means: Matrix, agents: Integers, rng: np.random.Generator
    ) -> tuple[Matrix, Vector]:
        """What is reported of every arm in n pulls, as for `Environment`: liars turn it round."""
        by_arm, shared = super().draw_rewards(self._felt[agents], agents, rng)
        lies = self.liars[agents]
        opposite = 1.0 - by_arm if self.noise == "bernoulli" else -by_arm
        return np.where(lies[:, None], opposite, by_arm), np.where(lies, -shared, shared)


class GraphClusters(SyntheticClusters):
    """`SyntheticClusters` with a graph that tells who belongs together, with errors.

    Two agents are joined if they are of one cluster; then every pair is flipped with probability `flip`. For
    policies that are given a graph (`graph=`), such as GOB.Lin and CoLin. The arms are those of
    `SyntheticClusters` with the same seed.

    Parameters
    ----------
    n_agents, dim, n_clusters, angle
        As for `SyntheticClusters`.
    flip : float in [0, 1]
        Share of the pairs that the graph has wrong.
    arms_per_cluster, arm_spread, noise, noise_scale
        As for `SyntheticClusters`.
    seed : int or None
        Seed of the arms and of the errors.

    Attributes
    ----------
    graph : (N, N)
        True where two agents are joined; symmetric, without loops.

    Examples
    --------
    >>> world = GraphClusters(4, 3, 2, angle=1.2, flip=0.0, seed=0)
    >>> world.graph.astype(int)
    array([[0, 1, 0, 0],
           [1, 0, 0, 0],
           [0, 0, 0, 1],
           [0, 0, 1, 0]])
    """

    has_graph = True

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int,
        angle: float,
        *,
        flip: float = 0.1,
        seed: int | None = None,
        **options: Unpack[ClusterOptions],
    ) -> None:
        flip = validation.number("flip", flip, low=0.0, high=1.0)
        entropy = _entropy(seed)
        super().__init__(n_agents, dim, n_clusters, angle, seed=entropy, **options)
        assert self.labels is not None  # by construction
        wrong = np.triu(np.random.default_rng([6, entropy]).random((self.n_agents, self.n_agents)) < flip, 1)
        self.graph = (self.labels[:, None] == self.labels) ^ wrong ^ wrong.T
        np.fill_diagonal(self.graph, False)
        self.graph.flags.writeable = False


class GaussianClusters(Environment):
    """Cluster parameters and arms drawn from the standard normal distribution.

    Parameters
    ----------
    n_agents : int
        Number of agents.
    dim : int
        Dimension of the arms.
    n_clusters : int
        Number of clusters.
    n_arms : int
        Number of arms.
    noise, noise_scale
        As for `Environment`.
    seed : int or None
        Seed of parameters and arms.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.GaussianClusters(n_agents=6, dim=3, n_clusters=2, seed=0)
    >>> trace = shoal.simulate(shoal.BASS(6, 3), world, horizon=1_000, seed=0)
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int = 3,
        *,
        n_arms: int = 15,
        seed: int | None = None,
        **options: Unpack[NoiseOptions],
    ) -> None:
        labels = equal_clusters(n_agents, n_clusters)
        dim = validation.positive_int("dim", dim)
        rng = np.random.default_rng(validation.seed_or_none("seed", seed))
        centers = rng.standard_normal((n_clusters, dim))
        arms = rng.standard_normal((validation.positive_int("n_arms", n_arms), dim))
        super().__init__(arms, theta_star=centers[labels], labels=labels, **options)


class UnitClusters(Environment):
    """Cluster parameters and arms drawn uniformly from the unit sphere, or from its non-negative part.

    Parameters
    ----------
    n_agents : int
        Number of agents.
    dim : int
        Dimension of the arms.
    n_clusters : int
        Number of clusters.
    n_arms : int
        Number of arms.
    positive : bool
        Whether no entry is negative. Mean rewards are then in [0, 1], as `noise="bernoulli"` needs.
    noise, noise_scale
        As for `Environment`.
    seed : int or None
        Seed of parameters and arms.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(6, 3, 2, positive=True, noise="bernoulli", seed=0)
    >>> trace = shoal.simulate(shoal.BASS(6, 3, noise_scale=0.5), world, horizon=1_000, seed=0)
    >>> sorted(set(trace.rewards.tolist()))
    [0.0, 1.0]
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int = 3,
        *,
        n_arms: int = 15,
        positive: bool = False,
        seed: int | None = None,
        **options: Unpack[NoiseOptions],
    ) -> None:
        labels = equal_clusters(n_agents, n_clusters)
        dim = validation.positive_int("dim", dim)
        n_arms = validation.positive_int("n_arms", n_arms)
        drawn = np.random.default_rng(validation.seed_or_none("seed", seed)).standard_normal(
            (n_clusters + n_arms, dim)
        )
        vectors = _on_sphere(np.abs(drawn) if positive else drawn)
        # Rounding may leave the product of two unit vectors just above 1, which is no probability.
        means = np.clip(vectors[:n_clusters] @ vectors[n_clusters:].T, -1.0, 1.0)
        super().__init__(
            vectors[n_clusters:],
            theta_star=vectors[labels],
            mean_rewards=means[labels],
            labels=labels,
            **options,
        )


class Continuum(Environment):
    """Agents on a line, without clusters: `θ_i = θ_0 + spread z_i u`, z_i uniform in [−1, 1].

    θ_0 and u are random orthonormal vectors. Arms are scattered as in `SyntheticClusters`, around points of
    the same line, evenly spaced from end to end: `x = c + arm_spread ‖c‖ g`, g standard normal.

    Parameters
    ----------
    n_agents : int
        Number of agents.
    dim : int
        Dimension of the arms, at least 2.
    spread : float
        Half the length of the line.
    n_arms : int
    arm_spread : float
    noise, noise_scale
        As for `Environment`.
    seed : int or None
        Seed of parameters and arms.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.Continuum(n_agents=6, dim=3, spread=0.5, seed=0)
    >>> world.labels is None
    True

    Notes
    -----
    `labels` is None: there is nothing to score a graph against, and no oracle.
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        spread: float = 0.8,
        n_arms: int = 15,
        arm_spread: float = 0.5,
        seed: int | None = None,
        **options: Unpack[NoiseOptions],
    ) -> None:
        n_agents, dim = validation.positive_int("n_agents", n_agents), validation.positive_int("dim", dim)
        if dim < 2:
            raise ValueError(f"dim must be at least 2, for a line orthogonal to its midpoint, got {dim}")
        spread = validation.number("spread", spread, low=0.0)
        n_arms = validation.positive_int("n_arms", n_arms)
        arm_spread = validation.number("arm_spread", arm_spread, low=0.0)
        rng = np.random.default_rng(validation.seed_or_none("seed", seed))
        middle, direction = np.linalg.qr(rng.standard_normal((dim, 2)))[0].T
        theta_star = middle + spread * rng.uniform(-1.0, 1.0, (n_agents, 1)) * direction
        around = middle + spread * np.linspace(-1.0, 1.0, n_arms)[:, None] * direction
        super().__init__(_scatter(around, arm_spread, rng), theta_star=theta_star, **options)


class ChangingArms(Environment):
    """Clusters on the unit sphere, with new arms from the unit ball in every round.

    Parameters
    ----------
    n_agents : int
        Number of agents.
    dim : int
        Dimension of the arms.
    n_clusters : int
        Number of clusters.
    n_arms : int
        Number of arms.
    noise, noise_scale
        As for `Environment`.
    seed : int or None
        Seed of parameters and arms. Round t has the same arms in every run.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.ChangingArms(n_agents=6, dim=3, n_clusters=2, seed=0)
    >>> trace = shoal.simulate(shoal.BASS(6, 3), world, horizon=1_000, seed=0)
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int = 3,
        *,
        n_arms: int = 15,
        seed: int | None = None,
        **options: Unpack[NoiseOptions],
    ) -> None:
        labels = equal_clusters(n_agents, n_clusters)
        dim = validation.positive_int("dim", dim)
        n_arms = validation.positive_int("n_arms", n_arms)
        self._entropy = _entropy(seed)
        self._shape = (BLOCK, n_arms, dim)
        centers = _on_sphere(self._rng(0).standard_normal((n_clusters, dim)))
        super().__init__(self._block(0)[0], theta_star=centers[labels], labels=labels, **options)

    def arms_in(self, first: int, last: int) -> Tensor:
        """Arms of the rounds `first`, …, `last` (counted from 1), shape (rounds, K, d)."""
        start, stop = first - 1, last
        blocks = [self._block(index) for index in range(start // BLOCK, (stop - 1) // BLOCK + 1)]
        offset = start - start // BLOCK * BLOCK
        return np.ascontiguousarray(np.concatenate(blocks)[offset : offset + stop - start])

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        """Mean rewards, shape (n, K), of `agents` (n,) in `rounds` (n,), for the arms of each round."""
        assert self.theta_star is not None  # by construction
        return np.asarray(np.einsum("nkd,nd->nk", arms[rounds - first], self.theta_star[agents]))

    def _block(self, index: int) -> Tensor:
        rng = self._rng(1 + index)  # a stream per block, so that any rounds can be drawn on their own
        directions = _on_sphere(rng.standard_normal(self._shape))
        # The radius of a uniform point of the ball has density proportional to r^(d−1).
        return np.asarray(directions * rng.random((*self._shape[:2], 1)) ** (1.0 / self._shape[2]))

    def _rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([stream, self._entropy])


class ClickClusters(ChangingArms):
    """Rewards of 0 and 1, clicks, whose logit is linear in the arm: a base plus `θ*·x`.

    Parameters
    ----------
    n_agents : int
        Number of agents.
    dim : int
        Dimension of the arms.
    n_clusters : int
        Number of clusters.
    n_arms : int
        Number of arms.
    rate : float in (0, 1)
        Mean probability of a click over all arms and agents.
    strength : float
        The largest that an arm can add to the logit.
    length : float
        Length of every arm.
    base_spread : float
        Standard deviation of agents' own bases around the common one.
    fresh : bool
        Whether arms are new in every round.
    seed : int or None
        Seed of parameters and arms.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.make_environment("clicks", n_agents=6, dim=3, n_clusters=2, rate=0.2, seed=0)
    >>> policy = shoal.ClusterMixture(6, 3, rewards="binary", seed=0)
    >>> sorted(set(shoal.simulate(policy, world, horizon=200, seed=0).rewards.tolist()))
    [0.0, 1.0]
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int = 4,
        *,
        n_arms: int = 15,
        rate: float = 0.1,
        strength: float = 3.0,
        length: float = 1.0,
        base_spread: float = 0.0,
        fresh: bool = True,
        seed: int | None = None,
    ) -> None:
        labels = equal_clusters(n_agents, n_clusters)
        dim, n_arms = validation.positive_int("dim", dim), validation.positive_int("n_arms", n_arms)
        rate = validation.number("rate", rate, low=0.0, high=1.0, open_low=True, open_high=True)
        strength = validation.number("strength", strength, low=0.0, high=100.0)
        self._length = validation.number("length", length, low=0.0, high=1e6, open_low=True)
        self._fresh, self._entropy, self._shape = bool(fresh), _entropy(seed), (BLOCK, n_arms, dim)
        centers = _on_sphere(self._rng(0).standard_normal((n_clusters, dim))) * strength / self._length
        seen = self._block(0) if fresh else self._block(0)[:1]
        logits = np.einsum("tkd,cd->tkc", seen, centers)
        low, high = -200.0, 200.0
        for _ in range(60):  # bisection: the mean probability grows with the base
            self.base = (low + high) / 2.0
            low, high = (low, self.base) if _logistic(self.base + logits).mean() > rate else (self.base, high)
        spread = validation.number("base_spread", base_spread, low=0.0, high=100.0)
        own = np.random.default_rng([8, self._entropy, 1]).standard_normal((len(labels), 1))
        self._bases = self.base + spread * own
        means = _logistic(self._bases + logits[0].T[labels])
        self._weights = centers[labels]  # of the logit: no `theta_star`, whose rewards would be linear
        Environment.__init__(self, seen[0], mean_rewards=means, labels=labels, noise="bernoulli")

    def arms_in(self, first: int, last: int) -> Tensor:
        return super().arms_in(first, last) if self._fresh else self.arms[None].copy()

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        if not self._fresh:
            return np.asarray(self.mean_rewards[agents])
        logits = np.einsum("nkd,nd->nk", arms[rounds - first], self._weights[agents])
        return _logistic(self._bases[agents] + logits)

    def _block(self, index: int) -> Tensor:
        return np.asarray(_on_sphere(self._rng(1 + index).standard_normal(self._shape)) * self._length)


def _logistic(logits: AnyArray) -> AnyArray:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * logits))


class DescribedAgents(ChangingArms):
    """`ChangingArms` whose agents are described by features that tell their cluster, more or less.

    There is a feature for each cluster, standard normal and larger by `distance` for its members, and
    `useless` further ones. In four clusters the largest of the first four is the right one for 50% of the
    agents at `distance` 0.84, for 78% at 1.8, and for 93% at 2.7; 0 makes all features useless.

    Parameters
    ----------
    n_agents, dim, n_clusters
        As for `ChangingArms`.
    distance : float
        By how many standard deviations a feature is larger for the members of its cluster.
    useless : int
        Features that tell nothing.
    n_arms, noise, noise_scale
        As for `ChangingArms`.
    seed : int or None
        Seed of parameters, arms and features.

    Attributes
    ----------
    agent_features : (N, n_clusters + useless)
        The features, each in a unit of its own.

    Examples
    --------
    >>> import shoal
    >>> world = DescribedAgents(6, 3, 2, distance=5.0, seed=0)
    >>> policy = shoal.ClusterMixture(6, 3, agent_features=world.agent_features, seed=0)
    >>> trace = shoal.simulate(policy, world, horizon=100, seed=0)
    """

    def __init__(
        self,
        n_agents: int,
        dim: int,
        n_clusters: int = 4,
        *,
        distance: float = 1.8,
        useless: int = 2,
        n_arms: int = 15,
        seed: int | None = None,
        **options: Unpack[NoiseOptions],
    ) -> None:
        distance = validation.number("distance", distance, low=0.0)
        useless = validation.natural("useless", useless)
        entropy = _entropy(seed)
        super().__init__(n_agents, dim, n_clusters, n_arms=n_arms, seed=entropy, **options)
        assert self.labels is not None  # by construction
        rng = np.random.default_rng([7, entropy, 1])
        drawn = rng.standard_normal((self.n_agents, n_clusters + useless))
        drawn[np.arange(self.n_agents), self.labels] += distance
        self.agent_features = 7.0 + drawn * 10.0 ** rng.uniform(-1.0, 2.0, drawn.shape[1])
        self.agent_features.flags.writeable = False


def _entropy(seed: int | None) -> int:
    """The seed, or a random one if it is None."""
    seed = validation.seed_or_none("seed", seed)
    return int(np.random.default_rng().integers(2**63)) if seed is None else seed


def _scatter(around: Matrix, spread: float, rng: np.random.Generator) -> Matrix:
    """One arm near each of these points: `c + spread ‖c‖ g`, g standard normal."""
    norms = np.linalg.norm(around, axis=1, keepdims=True)
    return np.asarray(around + spread * norms * rng.standard_normal(around.shape))


def _on_sphere(vectors: Tensor) -> Tensor:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
