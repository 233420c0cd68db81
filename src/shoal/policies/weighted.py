"""WeightedBASS: share by degree, and forgive. Not in the paper: a variant of BASS of our own.

BASS shares a neighbour's samples in full until one test, once and for good, says stop. Here a sample counts
the less the closer its owner is to being told apart, and counts more again when the two draw nearer: sharing
fades out before its bias outgrows the noise it removes, and a bad start is not held against anyone.
"""

import math
from typing import NamedTuple

import numpy as np

from shoal import validation
from shoal.kernels.compiled import inlined
from shoal.kernels.linalg import add_packed, cholesky, solve_cholesky, unpack
from shoal.kernels.separation import squared_radius
from shoal.kernels.ucb import LANES, best_arm_of_factor
from shoal.kernels.weights import pair_statistics, shares, sum_weighted
from shoal.policies.base import Policy
from shoal.policies.steps import Common, step
from shoal.statistics import Statistics, add_sample, make_statistics
from shoal.types import Booleans, Integers, Matrix, Vector

EVERYONE = np.iinfo(np.int64).max


class WeightedBASSScratch(NamedTuple):
    """Work space: nothing in it outlives a call."""

    total: Vector  # packed sums of a pool
    L: Matrix  # (d, d) its factor
    lanes: Matrix  # (d + 2, LANES) for the scores
    forms: Matrix  # (d + 2, N) for the statistics
    statistics: Vector  # (N,) g of one agent with all
    chosen: Integers  # (N + 1,) indices of agents


class WeightedBASSState(NamedTuple):
    """State of WeightedBASS."""

    common: Common
    noise_scale: float
    confidence: float  # 2 ln(1/δ) − d ln(ridge)
    threshold: float  # γ²/4
    power: float
    local: Statistics
    lent: Matrix  # (N, d(d+1)/2 + d) packed Σ x xᵀ and b of each agent, to be summed
    columns: Matrix  # its transpose, to run over agents
    beta_sq: Vector  # (N,) squared radii
    weights: Matrix  # (N, N), symmetric, 1 on the diagonal
    lends_below: Integers  # (N,) ids from here on came after it left, weight 0; 0 once it withdrew
    scratch: WeightedBASSScratch


class SharingExplanation(NamedTuple):
    """How much two agents share, why, and how far apart they would have to be to share less."""

    weight: float
    """Weight of each other's samples now."""
    statistic: float
    """g, from the agents' present samples."""
    threshold: float
    """γ²/4: the statistic from which on nothing is shared."""
    radius_agent: float
    radius_other: float
    """β of each."""
    distance: float
    """|v|, between the two estimates."""
    distance_at_half: float
    """Distance, same direction and matrices, at which the weight would be one half; inf if v = 0."""
    distance_at_end: float
    """Distance, same direction and matrices, from which on nothing would be shared; inf if v = 0."""
    pulls_agent: int
    pulls_other: int
    """Samples each has."""
    lent_by_agent: float
    lent_by_other: float
    """Samples each contributes to the other's pool: weight times pulls."""


class WeightedBASS(Policy):
    """Pools the samples of agent j with weight `w_ij = max(0, 1 − g_ij/(γ²/4))^power`.

    `g_ij = (β_i/‖v‖_{A_i} + β_j/‖v‖_{A_j})⁻²` with `v = θ̂_i − θ̂_j` says how far apart the two are. It chooses
    by LinUCB on `A = ridge·I + Σ_j w_ij (A_j − ridge·I)` and `b = Σ_j w_ij b_j`.

    Parameters
    ----------
    delta : float
        Confidence level of the ellipsoids, in (0, 1).
    gamma : float
        Scale of the ellipsoids: larger values share more, and longer.
    power : float
        How fast the weight falls as the statistic grows; positive. Towards 0: all or nothing.
    noise_scale : float
        R, the scale of the sub-Gaussian noise.

    Examples
    --------
    >>> import numpy as np, shoal
    >>> policy = shoal.WeightedBASS(n_agents=3, dim=2)
    >>> policy.update(0, np.array([0.0, 1.0]), reward=1.0)
    >>> policy.select(2, np.eye(2))  # agent 2 has no sample of its own, and uses agent 0's
    1
    >>> policy.weights[2].round(2)  # at nearly full weight
    array([0.95, 1.  , 1.  ])

    Notes
    -----
    Not in the paper. Its guarantees are for an exact test and full sharing; none is claimed here.
    """

    name = "weighted_bass"
    label = "WeightedBASS (ours)"

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float = 0.6,
        delta: float = 0.1,
        gamma: float = 1.75,
        power: float = 2.0,
        noise_scale: float = 1.0,
        ridge: float = 1.0,
        epsilon: float = 0.0,
        seed: int | None = None,
    ) -> None:
        own = {
            "delta": validation.number("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True),
            "gamma": validation.number("gamma", gamma, low=0.0, open_low=True),
            "power": validation.number("power", power, low=0.0, open_low=True),
            "noise_scale": validation.number("noise_scale", noise_scale, low=0.0, open_low=True),
        }
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, epsilon=epsilon, seed=seed, **own)

    def _initial_state(self, n_agents: int) -> WeightedBASSState:
        own, d = self.parameters, self.dim
        size = d * (d + 1) // 2 + d
        state = WeightedBASSState(
            common=self._common(n_agents),
            noise_scale=own["noise_scale"],
            confidence=-2.0 * math.log(own["delta"]) - d * math.log(own["ridge"]),
            threshold=own["gamma"] ** 2 / 4.0,
            power=own["power"],
            local=make_statistics(n_agents, d, own["ridge"]),
            lent=np.zeros((n_agents, size)),
            columns=np.zeros((size, n_agents)),
            beta_sq=np.zeros(n_agents),
            weights=np.ones((n_agents, n_agents)),
            lends_below=np.full(n_agents, EVERYONE),
            scratch=WeightedBASSScratch(
                total=np.zeros(size),
                L=np.zeros((d, d)),
                lanes=np.zeros((d + 2, LANES)),
                forms=np.zeros((d + 2, n_agents)),
                statistics=np.zeros(n_agents),
                chosen=np.zeros(n_agents + 1, dtype=np.int64),
            ),
        )
        state.beta_sq[:] = own_radius(state, 0)
        return state

    def _pair_bytes(self, n_agents: int) -> float:
        return 8.0

    @property
    def weights(self) -> Matrix:
        """Weight of j's samples in i's pool: (N, N), symmetric, 1 on the diagonal; a copy.

        A removed agent keeps the weight at which others still pool its samples, until it withdraws them.
        """
        with self.lock:
            return np.array(self.state.weights)

    def explain(self, agent: int, other: int) -> SharingExplanation:
        """Say how much two agents share, and at which distances they would share half, or nothing."""
        i, j, state = self._check_id(agent), self._check_id(other), self.state
        if i == j:
            raise ValueError(f"other must differ from agent, got {other!r} twice")
        with self.lock:
            compare(state, i)
            statistic, weight = float(state.scratch.statistics[j]), float(state.weights[i, j])
            distance = float(np.linalg.norm(state.local.theta_hat[i] - state.local.theta_hat[j]))
            pulls_agent, pulls_other = (int(state.local.pulls[k]) for k in (i, j))
            radius_agent, radius_other = (math.sqrt(state.beta_sq[k]) for k in (i, j))
        # g grows with the square of the distance, all else equal
        end = distance * math.sqrt(state.threshold / statistic) if statistic > 0.0 else math.inf
        return SharingExplanation(
            weight=weight,
            statistic=statistic,
            threshold=state.threshold,
            radius_agent=radius_agent,
            radius_other=radius_other,
            distance=distance,
            distance_at_half=end * math.sqrt(1.0 - 0.5 ** (1.0 / state.power)),
            distance_at_end=end,
            pulls_agent=pulls_agent,
            pulls_other=pulls_other,
            lent_by_agent=weight * pulls_agent,
            lent_by_other=weight * pulls_other,
        )

    def _edges(self) -> Booleans:
        return np.asarray(self.state.weights > 0.0)

    def _pool(self, agent: int) -> Booleans:
        return np.asarray(self.state.weights[agent] > 0.0)

    def _pooled_estimate(self, agent: int) -> Vector:
        factor_pool(self.state, agent)
        estimate, scratch = np.zeros(self.dim), self.state.scratch
        solve_cholesky(scratch.L, scratch.total[-self.dim :], estimate)
        return estimate

    def _end_edges(self, agent: int) -> None:
        self.state.lends_below[agent] = self.n_agents

    def _withdraw(self, agent: int) -> None:
        state = self.state
        state.lends_below[agent] = 0
        state.lent[agent] = 0.0
        state.columns[:, agent] = 0.0
        state.beta_sq[agent] = own_radius(state, agent)
        state.weights[agent] = 0.0
        state.weights[:, agent] = 0.0
        state.weights[agent, agent] = 1.0

    def _join(self, first: int) -> None:
        for newcomer in range(first, self.n_agents):
            weigh(self.state, newcomer)


@step("select", WeightedBASSState)
def select(state: WeightedBASSState, agent: int, arms: Matrix, t: int) -> int:
    factor_pool(state, agent)
    width = state.common.alpha * math.sqrt(math.log(t + 1.0))
    work = state.scratch
    return best_arm_of_factor(work.L, work.total[-arms.shape[1] :], arms, width, work.lanes)


@step("observe", WeightedBASSState)
def observe(state: WeightedBASSState, agent: int, x: Vector, reward: float, t: int) -> None:
    add_sample(state.local, agent, x, reward)
    add_packed(state.lent[agent], x, reward)
    add_packed(state.columns[:, agent], x, reward)
    state.beta_sq[agent] = own_radius(state, agent)
    weights, active = state.weights[agent], state.common.active
    sharing = 0
    for other in range(weights.shape[0]):
        sharing += active[other] & (weights[other] > 0.0)
    state.common.cost[0] += sharing - 1


@step("revise", WeightedBASSState)
def revise(state: WeightedBASSState, agent: int, t: int) -> None:
    weigh(state, agent)


@inlined
def weigh(state: WeightedBASSState, agent: int) -> None:
    """Compute the agent's weights with all others afresh."""
    weights, statistics = state.weights[agent], state.scratch.statistics
    compare(state, agent)
    shares(statistics, state.threshold, state.power, weights)
    for other in range(weights.shape[0]):
        if agent >= state.lends_below[other]:
            weights[other] = 0.0
        state.weights[other, agent] = weights[other]
    weights[agent] = 1.0


@inlined
def compare(state: WeightedBASSState, agent: int) -> None:
    """Leave g of the agent with every agent in `scratch.statistics`."""
    theta_hat, ridge, work = state.local.theta_hat, state.common.ridge, state.scratch
    pair_statistics(agent, theta_hat, state.columns, ridge, state.beta_sq, work.forms, work.statistics)


@inlined
def factor_pool(state: WeightedBASSState, agent: int) -> None:
    """Leave the factor of the agent's pooled A in `scratch.L`, and b at the end of `scratch.total`."""
    work = state.scratch
    sum_weighted(state.lent, state.weights[agent], work.chosen, work.total)
    unpack(work.total, state.common.ridge, work.L)
    cholesky(work.L, work.L)


@inlined
def own_radius(state: WeightedBASSState, agent: int) -> float:
    """β_i²."""
    return squared_radius(state.noise_scale, state.confidence, state.local.logdet_A[agent])
