"""BASS: share with everyone until a test says stop (Cherkaoui, Barlier and Colin 2025).

The graph starts complete, and an agent learns from its own samples and its neighbours'. Two agents stop
sharing, for good, when their confidence ellipsoids no longer overlap: then the bias of sharing has
outgrown the noise it removes.
"""

import math
from typing import NamedTuple

import numpy as np

from shoal import validation
from shoal.kernels.compiled import compiled
from shoal.kernels.linalg import add_packed, cholesky, dot, solve_cholesky, sum_packed, unpack
from shoal.kernels.separation import Scratch, Z, excess_at, excess_grows, make_scratch, safe_limit, search
from shoal.kernels.ucb import LANES, best_arm_of_factor
from shoal.policies.base import Policy
from shoal.policies.steps import Common, step
from shoal.statistics import REFRESH_EVERY, Statistics, add_sample, make_statistics
from shoal.types import Booleans, Integers, Matrix, Tensor, Vector

OUTLIER = 1000.0
"""After a sample this surprising for the ellipsoid, the distances to the witnesses are computed afresh."""


class BASSScratch(NamedTuple):
    """Work space: nothing in it outlives a call."""

    total: Vector  # packed sums of a pool
    L: Matrix  # (d, d) its factor
    lanes: Matrix  # (d + 2, LANES) for the scores
    rows: Matrix  # (d, N) for the witnesses
    chosen: Integers  # (N + 1,) indices of agents
    test: Scratch


class BASSState(NamedTuple):
    """State of BASS."""

    common: Common
    noise_scale: float
    confidence: float  # 2 ln(1/δ) − d ln(ridge)
    squared: bool  # whether the test uses β² or β
    threshold: float  # γ²/4
    local: Statistics
    lent: Matrix  # (N, d(d+1)/2 + d) packed Σ x xᵀ and b of each agent
    connected: Booleans  # (N, N), True on the diagonal; ends only when the test cuts or samples are withdrawn
    separation_time: Integers  # (N, N)
    degree: Integers  # (N,) active neighbours
    radius: Vector  # (N,) c_i, which is β_i or its square
    witness: Tensor  # (N, d, N): column j of row i is a point in both ellipsoids, or nan
    excess: Matrix  # (N, N) ‖p−θ̂_i‖²_{A_i} of that point
    scratch: BASSScratch


class Explanation(NamedTuple):
    """Why two agents share, or stopped."""

    statistic: float
    """max f, from the agents' present samples."""
    threshold: float
    """γ²/4: above it the pair separates."""
    s: float
    """The s at which the statistic is attained."""
    radius_agent: float
    radius_other: float
    """β of each."""
    separated: bool
    separation_time: int
    """Round of the separation, −1 if there was none."""
    lent_by_agent: int
    lent_by_other: int
    """Samples each contributes to the other's pool now."""


class BASS(Policy):
    """Shares samples along the edges of a graph; cuts (i, j) when `max_s f(s) > γ²/4`.

    Parameters
    ----------
    delta : float
        Confidence level of the ellipsoids, in (0, 1).
    gamma : float
        Scale of the ellipsoids: larger values share longer.
    radius : {"beta", "beta_squared"}
        Scale the ellipsoids by β (as published figures do) or by β² (as the proofs do; try γ = 1.25 with it).
    noise_scale : float
        R, the scale of the sub-Gaussian noise.

    Examples
    --------
    >>> import numpy as np, shoal
    >>> policy = shoal.BASS(n_agents=3, dim=2, alpha=0.3, delta=0.1)
    >>> arms = np.eye(2)
    >>> policy.update(0, arms[1], reward=1.0)
    >>> policy.select(2, arms)  # agent 2 has no sample of its own, and uses agent 0's
    1

    Notes
    -----
    Departs from the paper: the printed test's slips are corrected (docs/algorithms.md).
    """

    name = "bass"
    label = "BASS"

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        delta: float,
        gamma: float = 2.0,
        radius: str = "beta",
        noise_scale: float = 1.0,
        ridge: float = 1.0,
        epsilon: float = 0.0,
        seed: int | None = None,
    ) -> None:
        own = {
            "delta": validation.number("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True),
            "gamma": validation.number("gamma", gamma, low=0.0, open_low=True),
            "radius": validation.one_of("radius", radius, ("beta", "beta_squared")),
            "noise_scale": validation.number("noise_scale", noise_scale, low=0.0, open_low=True),
        }
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, epsilon=epsilon, seed=seed, **own)

    def _initial_state(self, n_agents: int) -> BASSState:
        own, d = self.parameters, self.dim
        state = BASSState(
            common=self._common(n_agents),
            noise_scale=own["noise_scale"],
            confidence=-2.0 * math.log(own["delta"]) - d * math.log(own["ridge"]),
            squared=own["radius"] == "beta_squared",
            threshold=own["gamma"] ** 2 / 4.0,
            local=make_statistics(n_agents, d, own["ridge"]),
            lent=np.zeros((n_agents, d * (d + 1) // 2 + d)),
            connected=np.ones((n_agents, n_agents), dtype=np.bool_),
            separation_time=np.full((n_agents, n_agents), -1),
            degree=np.full(n_agents, n_agents - 1),
            radius=np.zeros(n_agents),
            witness=np.zeros((n_agents, d, n_agents)),
            excess=np.zeros((n_agents, n_agents)),
            scratch=BASSScratch(
                total=np.zeros(d * (d + 1) // 2 + d),
                L=np.zeros((d, d)),
                lanes=np.zeros((d + 2, LANES)),
                rows=np.zeros((d, n_agents)),
                chosen=np.zeros(n_agents + 1, dtype=np.int64),
                test=make_scratch(d),
            ),
        )
        state.radius[:] = scaled_radius(state, 0)
        return state

    @property
    def separation_time(self) -> Integers:
        """Round in which each pair separated, −1 if it never did, shape (N, N); a copy."""
        return np.array(self.state.separation_time)

    def explain(self, agent: int, other: int) -> Explanation:
        """Say how far two agents are from separating, or when they did, and what they lend each other."""
        i, j, state = self._check_id(agent), self._check_id(other), self.state
        if i == j:
            raise ValueError(f"other must differ from agent, got {other!r} twice")
        local = state.local
        with self.lock:
            statistic, s, _ = search(
                local.theta_hat[i], local.A[i], state.radius[i],
                local.theta_hat[j], local.A[j], state.radius[j],
                state.threshold, False, True, state.scratch.test,
            )  # fmt: skip
        beta = np.sqrt(state.radius) if state.squared else state.radius
        shared = bool(state.connected[i, j])
        return Explanation(
            statistic=statistic,
            threshold=state.threshold,
            s=s,
            radius_agent=float(beta[i]),
            radius_other=float(beta[j]),
            separated=bool(state.separation_time[i, j] >= 0),
            separation_time=int(state.separation_time[i, j]),
            lent_by_agent=int(local.pulls[i]) if shared else 0,
            lent_by_other=int(local.pulls[j]) if shared else 0,
        )

    def _edges(self) -> Booleans:
        return np.array(self.state.connected)

    def _pool(self, agent: int) -> Booleans:
        return np.array(self.state.connected[agent])

    def _pooled_estimate(self, agent: int) -> Vector:
        factor_pool(self.state, agent)
        estimate, scratch = np.zeros(self.dim), self.state.scratch
        solve_cholesky(scratch.L, scratch.total[-self.dim :], estimate)
        return estimate

    def _end_edges(self, agent: int) -> None:
        self._count_neighbors()

    def _withdraw(self, agent: int) -> None:
        others = np.arange(self.n_agents) != agent
        self.state.connected[agent, others] = False
        self.state.connected[others, agent] = False
        self.state.lent[agent] = 0.0
        self.state.radius[agent] = scaled_radius(self.state, agent)

    def _join(self, first: int) -> None:
        state = self.state
        for known in (state.witness, state.excess):  # no common point yet: the test will find one
            known[:first, ..., first:] = np.nan
            known[first:, ..., :first] = np.nan
        gone = ~state.common.active  # newcomers meet only those who are there
        state.connected[first:, gone] = False
        state.connected[gone, first:] = False
        self._count_neighbors()

    def _count_neighbors(self) -> None:
        state = self.state
        state.degree[:] = (state.connected & state.common.active).sum(axis=1) - state.common.active


@step("select", BASSState)
def select(state: BASSState, agent: int, arms: Matrix, t: int) -> int:
    factor_pool(state, agent)
    width = state.common.alpha * math.sqrt(math.log(t + 1.0))
    work = state.scratch
    return best_arm_of_factor(work.L, work.total[-arms.shape[1] :], arms, width, work.lanes)


@step("observe", BASSState)
def observe(state: BASSState, agent: int, x: Vector, reward: float, t: int) -> None:
    local, points, work = state.local, state.witness[agent], state.scratch
    residual = reward - dot(x, local.theta_hat[agent])
    growth = add_sample(local, agent, x, reward)
    add_packed(state.lent[agent], x, reward)
    state.radius[agent] = scaled_radius(state, agent)
    state.common.cost[0] += state.degree[agent]
    shrink = residual * residual / growth
    if local.pulls[agent] % REFRESH_EVERY == 0 or shrink > OUTLIER * state.threshold * state.radius[agent]:
        excess_at(local.theta_hat[agent], local.A[agent], points, work.rows, state.excess[agent])
    else:
        excess_grows(points, x, reward, shrink, work.rows[0], state.excess[agent])


@step("revise", BASSState)
def revise(state: BASSState, agent: int, t: int) -> None:
    limit = safe_limit(state.threshold * state.radius[agent], state.local.A[agent], state.common.ridge)
    connected, excess = state.connected[agent], state.excess[agent]
    doubtful, count = state.scratch.chosen, 0
    for other in range(connected.shape[0]):
        doubtful[count] = other
        count += connected[other] & (not excess[other] <= limit) & (other != agent)
    for n in range(count):
        settle(state, agent, doubtful[n], t)


@compiled
def settle(state: BASSState, agent: int, other: int, t: int) -> None:
    """Cut the edge if the exact test says so, otherwise keep the common point it found."""
    local, point = state.local, state.scratch.test.vectors[Z]
    _, _, separated = search(
        local.theta_hat[agent], local.A[agent], state.radius[agent],
        local.theta_hat[other], local.A[other], state.radius[other],
        state.threshold, True, False, state.scratch.test,
    )  # fmt: skip
    if separated:
        cut(state, agent, other, t)
    else:
        for m in range(point.shape[0]):
            state.witness[agent, m, other] = point[m]
            state.witness[other, m, agent] = point[m]
        state.excess[agent, other] = squared_distance(point, local.theta_hat[agent], local.A[agent])
        state.excess[other, agent] = squared_distance(point, local.theta_hat[other], local.A[other])


@compiled
def factor_pool(state: BASSState, agent: int) -> None:
    """Leave the factor of the agent's pooled A in `scratch.L`, and b at the end of `scratch.total`."""
    work = state.scratch
    sum_packed(state.lent, state.connected[agent], work.chosen, work.total)
    unpack(work.total, state.common.ridge, work.L)
    cholesky(work.L, work.L)


@compiled
def squared_distance(point: Vector, theta: Vector, A: Matrix) -> float:
    """`‖point − θ‖²_A`."""
    total = 0.0
    for row in range(theta.shape[0]):
        inner = 0.0
        for column in range(theta.shape[0]):
            inner += A[row, column] * (point[column] - theta[column])
        total += inner * (point[row] - theta[row])
    return total


@compiled
def cut(state: BASSState, agent: int, other: int, t: int) -> None:
    """Remove an edge for good."""
    state.connected[agent, other] = False
    state.connected[other, agent] = False
    state.separation_time[agent, other] = t
    state.separation_time[other, agent] = t
    state.degree[agent] -= state.common.active[other]
    state.degree[other] -= state.common.active[agent]


@compiled
def scaled_radius(state: BASSState, agent: int) -> float:
    """c_i: `β_i = R √(2 ln(1/δ) + ln det A_i − d ln ridge)`, or its square."""
    # Rounding may take the sum, positive in exact arithmetic, to zero when δ is close to one.
    beta_sq = state.noise_scale**2 * max(state.confidence + state.local.logdet_A[agent], 1e-15)
    return beta_sq if state.squared else math.sqrt(beta_sq)
