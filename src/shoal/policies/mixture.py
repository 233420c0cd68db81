"""ClusterMixture: weigh by evidence which cluster an agent belongs to, and explore what is not known of it.

Not in the paper: a policy of our own. Agents are clustered by drawing each one's cluster from its posterior
(a Chinese-restaurant process, one Gibbs step at a time). An agent chooses by all the clusters that it may
belong to, each counting by its probability. Members of a cluster resemble each other as much as the data say
(`scatter`), and agents and clusters may change (`drift`).
"""

import math
from typing import NamedTuple

import numpy as np

from shoal import validation
from shoal.kernels.compiled import compiled, inlined
from shoal.kernels.linalg import add_packed, add_row, dot
from shoal.kernels.mixture import back_substitute, best_arm_of_mixture, factor_packed, soften_packed
from shoal.kernels.random import integer_below, uniform
from shoal.policies.clustered import ClusteredPolicy
from shoal.policies.clusters import (
    AGENT,
    GHOST,
    LEAST_SHARE,
    Model,
    Pool,
    add_lent,
    count_members,
    dissolve,
    is_in_fresh,
    lend,
    log_evidence,
    make_pool,
    move,
    note_change,
    raw_of,
    refresh,
    resum,
    sum_anew,
    wait_for,
    wait_in,
    weigh,
)
from shoal.policies.drift import (
    EVERY,
    MOVED,
    RESIDUALS,
    Drift,
    find_change,
    forget,
    improbability,
    lay,
    make_drift,
    note_latest,
    remember,
    tend,
)
from shoal.policies.steps import Common, Pending, expect_alone, step
from shoal.statistics import Statistics, add_sample, make_statistics
from shoal.types import Integers, Matrix, Vector

PRIOR_SAMPLES = 10.0
"""Residuals of size one that the estimate of the noise starts from."""
SCATTERS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Scatters to choose from, where it is learned."""
FIRST_SCATTER = 2
"""Position of the one to start from."""
STEP_COST = 5.0
"""Nats that each step away from it has to bring."""
VOTE_EVERY, LATER_VOTES, LATER = 8, 32, 64
"""An agent says at every 8th pull, after 64 at every 32nd, how well each scatter explains its samples."""
TENDED = 8
"""Members that a round brings up to date when the scatter was changed or a cluster has moved."""
SCALE_EVERY = 16
"""Pulls after which the size of a cluster's estimate is computed, for each in turn."""
COMPANY = 10.0
"""Others in a cluster at which half of the ridge bonus counts: an agent alone does not pay for everyone."""


class MixtureState(NamedTuple):
    """State of ClusterMixture."""

    common: Common
    spread: float
    redraws: int
    learns_noise: bool
    ridge_bonus: float
    local: Statistics
    pool: Pool
    drift: Drift
    errors: Vector  # (N,) Σ of each agent's squared standardised prediction errors
    residuals: Integers  # (N,) how many
    votes: Matrix  # (N, grid) log evidence of each agent's samples under each scatter; no rows if it is given
    tally: Vector  # (grid,) their sums
    scale: Vector  # (1,) size of a parameter's entries, squared, over all clusters
    upkeep: Integers  # (3,) pulls so far, members still to be tended, the next of them

    @property
    def labels(self) -> Integers:
        """(N,) cluster of each agent; −1 − agent while it has none."""
        return self.pool.members.labels[AGENT]


class MembershipExplanation(NamedTuple):
    """What is known of whether two agents belong together, and what they lend each other."""

    same_cluster: bool
    """Whether both are in one cluster now."""
    probability: float
    """That the agent belongs to the cluster that the other is in now."""
    alone: float
    """Probability that the agent belongs to no cluster there is."""
    pulls_agent: int
    pulls_other: int
    """Samples each has."""
    lent_by_agent: float
    lent_by_other: float
    """Samples of each that the other uses: pulls times the probability that it belongs to their cluster."""
    scatter: float
    """κ: variance of members' parameters around their cluster's, in units of the noise's."""
    forgot_agent: int
    forgot_other: int
    """Round in which each was last found to have changed, −1 if never."""


class ClusterMixture(ClusteredPolicy):
    """Chooses by the mixture of all clusters k an agent may belong to, each with its probability `π_k`.

    `argmax_x m(x) + √(α² ln(t+1) Σ_k π_k xᵀA_k⁻¹x + η² Var_π(x·θ̂_k))` with `m(x) = Σ_k π_k x·θ̂_k`, where A_k
    and θ̂_k are those of the cluster with the agent in it. `π_k` is in proportion to the number of other
    members times the evidence for pooling the agent's samples with theirs, against not pooling them. After
    each of its pulls an agent's cluster is drawn from π. What is exact for `scatter=0, drift=False,
    ridge_bonus=0` is in docs/algorithms.md refined by the parameters of these names.

    Parameters
    ----------
    spread : float
        η, how much not knowing the cluster makes an agent explore; at least 0.
    concentration : float
        c, the weight of a cluster of its own, beside the number of members of the others; positive.
    redraws : int
        Other agents, drawn at random, whose cluster is drawn again after each pull; at least 0.
    noise_scale : float or None
        Scale of the noise; None: estimated from the agents' prediction errors.
    scatter : float or None
        κ, the variance of members' parameters around their cluster's, in units of the noise's: 0, or from
        1e-6 to 1e6; None: learned.
    drift : bool
        Whether agents and clusters may change: an agent whose latest samples do not fit those before forgets
        these, and a cluster that moves lets its members' older samples count less.
    ridge_bonus : float
        Standard deviations of a parameter's entries that the ridge may hide in directions never pulled, and
        that are explored; 0 for none.

    Examples
    --------
    >>> import numpy as np, shoal
    >>> policy = shoal.ClusterMixture(n_agents=3, dim=2, seed=0)
    >>> policy.update(0, np.array([0.0, 1.0]), reward=1.0)
    >>> round(policy.posterior(2)[0], 2)  # agent 2 has no samples: one member against c = 5
    0.17
    >>> policy.select(2, np.eye(2))
    1

    Notes
    -----
    Not in the paper, and no bound is claimed.
    """

    name = "cluster_mixture"
    label = "ClusterMixture (ours)"

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float = 0.6,
        spread: float = 1.0,
        concentration: float = 5.0,
        redraws: int = 1,
        noise_scale: float | None = None,
        scatter: float | None = None,
        drift: bool = True,
        ridge_bonus: float = 3.0,
        ridge: float = 1.0,
        epsilon: float = 0.0,
        seed: int | None = None,
    ) -> None:
        if noise_scale is not None:
            noise_scale = validation.number("noise_scale", noise_scale, low=0.0, open_low=True)
        if scatter is not None and scatter != 0:
            scatter = validation.number("scatter", scatter, low=1e-6, high=1e6)
        if not isinstance(drift, bool | np.bool_):
            raise ValueError(f"drift must be True or False, got {drift!r}")
        own = {
            "spread": validation.number("spread", spread, low=0.0),
            "concentration": validation.number("concentration", concentration, low=0.0, open_low=True),
            "redraws": validation.natural("redraws", redraws),
            "noise_scale": noise_scale,
            "scatter": scatter if scatter is None else float(scatter),
            "drift": bool(drift),
            "ridge_bonus": validation.number("ridge_bonus", ridge_bonus, low=0.0),
        }
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, epsilon=epsilon, seed=seed, **own)

    def _initial_state(self, n_agents: int) -> MixtureState:
        own, d = self.parameters, self.dim
        scale, scatter = own["noise_scale"], own["scatter"]
        known = (PRIOR_SAMPLES, PRIOR_SAMPLES) if scale is None else (scale**2, 1.0)
        model = Model(
            ridge=own["ridge"],
            log_concentration=math.log(own["concentration"]),
            softens=scatter != 0.0,
            noise=np.array(known),
            grid=np.array(SCATTERS if scatter is None else [scatter]),
            position=np.array([FIRST_SCATTER if scatter is None else 0]),
        )
        return MixtureState(
            common=self._common(n_agents),
            spread=own["spread"],
            redraws=own["redraws"],
            learns_noise=scale is None,
            ridge_bonus=own["ridge_bonus"],
            local=make_statistics(n_agents, d, own["ridge"]),
            pool=make_pool(n_agents, d, model, drift=own["drift"]),
            drift=make_drift(n_agents if own["drift"] else 0, d),
            errors=np.zeros(n_agents),
            residuals=np.zeros(n_agents, dtype=np.int64),
            votes=np.zeros((n_agents if scatter is None else 0, len(model.grid))),
            tally=np.zeros(len(model.grid)),
            scale=np.zeros(1),
            upkeep=np.zeros(3, dtype=np.int64),
        )

    @property
    def labels(self) -> Integers:
        """Cluster of each agent, −1 while it has none, shape (N,); a copy."""
        return np.asarray(np.maximum(self.state.labels, -1))

    @property
    def noise_variance(self) -> float:
        """The noise variance that evidence is measured with: estimated, or as given."""
        noise = self.state.pool.model.noise
        return float(noise[0] / noise[1])

    @property
    def scatter(self) -> float:
        """κ: variance of members' parameters around their cluster's, over the noise's; learned, or given."""
        model = self.state.pool.model
        return float(model.grid[model.position[0]])

    @property
    def forgot(self) -> Integers:
        """Round in which each agent was last found to have changed, −1 if never, shape (N,); a copy."""
        return np.array(self.state.drift.forgot) if self.parameters["drift"] else np.full(self.n_agents, -1)

    def posterior(self, agent: int) -> dict[int, float]:
        """Probability of each cluster that `agent` may belong to; −1 stands for one of its own."""
        agent = self._check_agent(agent)
        with self.lock:
            pool = self.state.pool
            count = weigh(pool, agent, int(self.state.local.pulls[agent]))
            clusters = [*pool.clusters.used[:count].tolist(), -1]
            chances = pool.scratch.chances[: count + 1].tolist()
        return {k: chance for k, chance in zip(clusters, chances, strict=True) if chance > 0.0}

    def explain(self, agent: int, other: int) -> MembershipExplanation:
        """Say whether two agents belong together, as far as is known, and what they lend each other."""
        i, j = self._check_agent(agent), self._check_agent(other)
        if i == j:
            raise ValueError(f"other must differ from agent, got {other!r} twice")
        with self.lock:
            (label_i, label_j), pulls = self.labels[[i, j]].tolist(), self.pulls
            forgot_agent, forgot_other = self.forgot[[i, j]].tolist()
            ours, theirs = self.posterior(i), self.posterior(j)
        probability = 0.0 if label_j < 0 else ours.get(label_j, 0.0)
        back = 0.0 if label_i < 0 else theirs.get(label_i, 0.0)
        return MembershipExplanation(
            same_cluster=label_i == label_j >= 0,
            probability=probability,
            alone=ours.get(-1, 0.0),
            pulls_agent=int(pulls[i]),
            pulls_other=int(pulls[j]),
            lent_by_agent=back * int(pulls[i]),
            lent_by_other=probability * int(pulls[j]),
            scatter=self.scatter,
            forgot_agent=forgot_agent,
            forgot_other=forgot_other,
        )

    def _pooled_estimate(self, agent: int) -> Vector:
        work = self.state.pool.scratch
        count = factor_components(self.state, agent, 0.0)
        estimate = np.zeros(self.dim)
        for share, L, y in zip(work.shares[:count], work.L, work.y, strict=False):
            estimate += share * np.linalg.solve(np.tril(L).T, y)
        return np.asarray(estimate / work.shares[:count].sum())

    def _join(self, first: int) -> None:
        _, members, clusters, _ = self.state.pool
        clusters.resummed[0] = -1  # who had had its turn was said in numbers that ghosts no longer have
        if self.state.upkeep[1] > 0:
            self.state.upkeep[1] = members.labels.size

    def _end_pending(self, agent: int) -> None:
        wait_in(self.state.pool.clusters, self.state.common.pending, agent, self.state.labels[agent], -1)
        super()._end_pending(agent)

    def _end_edges(self, agent: int) -> None:
        _, members, clusters, _ = self.state.pool
        cluster = members.labels[AGENT, agent]
        if cluster >= 0:
            clusters.sizes[AGENT, cluster] -= 1
            clusters.removed[cluster] += 1
            if clusters.sizes[:, cluster].sum() == 0:
                dissolve(members, clusters, cluster)

    def _withdraw(self, agent: int) -> None:
        state, (model, members, clusters, _) = self.state, self.state.pool
        if self.parameters["drift"]:
            if members.labels[GHOST, agent] >= 0:
                lay(state.pool, state.common.pending, agent)
            for rows in (state.drift.ring, state.drift.past, state.drift.kept):
                rows[agent] = 0
        cluster = members.labels[AGENT, agent]
        members.lent[:, agent] = 0.0
        if model.softens:
            members.raw[:, agent] = 0.0
        members.form[:, agent], members.logdet[:, agent] = 0.0, state.local.logdet_A[agent]
        members.labels[AGENT, agent] = -1 - agent
        if cluster >= 0:
            clusters.removed[cluster] -= 1
            sum_anew(state.pool, cluster)
        if len(state.votes):
            state.votes[agent] = 0.0
            state.tally[:] = state.votes.sum(axis=0)
        if state.learns_noise:
            state.errors[agent], state.residuals[agent] = 0.0, 0
            model.noise[:] = PRIOR_SAMPLES + state.errors.sum(), PRIOR_SAMPLES + state.residuals.sum()


@step("select", MixtureState)
def select(state: MixtureState, agent: int, arms: Matrix, t: int) -> int:
    within, work = state.common.alpha**2 * math.log(t + 1.0), state.pool.scratch
    count = factor_components(state, agent, within)
    return best_arm_of_mixture(
        work.L, work.y, work.shares, work.hidden, count, arms, within, state.spread**2, work.lanes
    )


@step("observe", MixtureState)
def observe(state: MixtureState, agent: int, x: Vector, reward: float, t: int) -> None:
    local, pool, members, clusters = state.local, state.pool, state.pool.members, state.pool.clusters
    cluster, noise, work = members.labels[AGENT, agent], pool.model.noise, pool.scratch
    if state.drift.kept.shape[0] > 0:
        improbable = 0.5
        if cluster >= 0:
            if is_noise_known(state):
                improbable = improbability(pool, agent, x, reward)
                if state.upkeep[1] > 0:
                    clusters.cusum[cluster] = 0.0  # an alarm is still being heeded
                elif clusters.cusum[cluster] > MOVED:
                    clusters.cusum[cluster] = 0.0
                    clusters.alarms[cluster] += 1
                    state.upkeep[1] = members.labels.size
            note_latest(pool, agent, x, reward)
        remember(state.drift, agent, x, reward, improbable)
    error = reward - dot(x, local.theta_hat[agent])
    growth = add_sample(local, agent, x, reward)
    if state.learns_noise and local.pulls[agent] > x.shape[0]:
        state.errors[agent] += error * error / growth
        state.residuals[agent] += 1
        noise[0] += error * error / growth
        noise[1] += 1.0
    position = pool.model.position[0]
    if pool.model.softens:
        add_packed(members.raw[AGENT, agent], x, reward)
    if pool.model.grid[position] > 0.0 or members.lent_at[AGENT, agent] != position:
        if cluster >= 0:
            add_lent(members, clusters, agent, -1.0)
        lend(pool, agent)
        if cluster >= 0:
            add_lent(members, clusters, agent, 1.0)
    else:  # what is lent changes by the sample alone
        lent = members.lent[AGENT, agent]
        add_packed(lent, x, reward)
        terms = factor_packed(lent, pool.model.ridge, work.L[0], work.y[0])
        members.form[AGENT, agent] = terms[0]
        members.logdet[AGENT, agent] = terms[1]
        if cluster >= 0:
            add_packed(clusters.sums[cluster], x, reward)
            note_change(clusters, cluster)
            if is_in_fresh(clusters, cluster, agent):
                add_packed(clusters.fresh, x, reward)
    if cluster >= 0:
        state.common.cost[0] += clusters.sizes[AGENT, cluster] - 1


@step("revise", MixtureState)
def revise(state: MixtureState, agent: int, t: int) -> None:
    pool, drift, pending, local = state.pool, state.drift, state.common.pending, state.local
    labels, rng, can_change = pool.members.labels, state.common.rng, drift.kept.shape[0] > 0
    n, pulls = labels.shape[1], local.pulls[agent]
    if labels[AGENT, agent] >= 0:
        if state.votes.shape[0] > 0 and pulls % (VOTE_EVERY if pulls <= LATER else LATER_VOTES) == 0:
            vote(state, agent)
        if can_change and pulls % EVERY == 0 and is_noise_known(state):
            recent = find_change(pool, drift, agent, pulls)
            if recent >= 0:
                forget(pool, drift, pending, local, agent, recent)
                drift.forgot[agent] = t
    keep_up(state)
    for n_drawn in range(2 * (1 + (state.redraws if n > 1 else 0))):
        is_ghost = n_drawn % 2 == 1  # each agent's turn, then its ghost's
        if not is_ghost:
            who = agent
            if n_drawn > 0:
                who = integer_below(rng, n - 1)
                who += who >= agent
            member = who
            if n_drawn > 0 and (labels[AGENT, who] < 0 or not state.common.active[who]):
                continue
        else:
            member = n + who
            if n_drawn == 1 or not can_change or labels[GHOST, who] < 0:
                continue
        if can_change or pool.model.softens:
            tend(pool, drift, pending, local, member)
            if is_ghost and labels[GHOST, who] < 0:
                continue  # its cluster has moved, and it is no more
        refresh(pool, labels[member // n, who])
        count = weigh(pool, member, n)
        drawn, left = 0, uniform(rng)
        while drawn < count and not left < pool.scratch.chances[drawn]:
            left -= pool.scratch.chances[drawn]
            drawn += 1
        move(pool, pending, member, drawn)


@step("expect", MixtureState)
def expect(state: MixtureState, agent: int, x: Vector, sign: int) -> None:
    wait_for(state.pool, agent, x, sign)
    expect_alone(state, agent, x, sign)


@inlined
def is_noise_known(state: MixtureState) -> bool:
    """Whether the noise is known, or estimated, well enough to call a sample improbable."""
    return bool(not state.learns_noise or state.pool.model.noise[1] >= PRIOR_SAMPLES + RESIDUALS)


@inlined
def vote(state: MixtureState, agent: int) -> None:
    """Note how well each scatter explains an agent's samples, with the clusters as they stand."""
    pool, grid = state.pool, state.pool.model.grid
    refresh(pool, pool.members.labels.size)
    weigh(pool, agent, state.local.pulls[agent])
    for g in range(grid.shape[0]):
        found = log_evidence(pool, pool.members.raw[AGENT, agent], grid[g], agent)
        state.tally[g] += found - state.votes[agent, g]
        state.votes[agent, g] = found


@inlined
def keep_up(state: MixtureState) -> None:
    """What has to be done now and then, a little of it in each round: no round waits for all of it."""
    pool, upkeep, position = state.pool, state.upkeep, state.pool.model.position
    n, members = pool.members.labels.shape[1], pool.members.labels.size
    upkeep[0] += 1
    if state.votes.shape[0] > 0 and upkeep[0] % n == 0:
        best, found = 0, -math.inf
        for g in range(state.tally.shape[0]):
            value = state.tally[g] - STEP_COST * abs(g - FIRST_SCATTER)
            if value > found:
                found = value
                best = g
        if best != position[0]:
            position[0] += 1 if best > position[0] else -1
            upkeep[1] = members
    for _ in range(min(TENDED, upkeep[1])):
        upkeep[2] = (upkeep[2] + 1) % members
        upkeep[1] -= 1
        tend(pool, state.drift, state.common.pending, state.local, upkeep[2])
    if state.ridge_bonus > 0.0 and upkeep[0] % SCALE_EVERY == 0:
        state.scale[0] = measure(pool, upkeep[0] // SCALE_EVERY)
    if pool.clusters.resummed[0] >= 0:
        resum(pool)


@compiled
def measure(pool: Pool, turn: int) -> float:
    """Compute how large the estimate of the cluster whose turn it is is, and in how many directions known.

    Returns the size of a parameter's entries, squared, over all clusters.
    """
    clusters, work, ridge = pool.clusters, pool.scratch, pool.model.ridge
    count, d = clusters.n_used[0], work.y.shape[1]
    if count == 0:
        return 0.0
    k, L, y, z = clusters.used[turn % count], work.L[0], work.y[0], work.y[1]
    factor_packed(clusters.sums[k], ridge, L, y)
    norm, unknown = 0.0, 0.0
    for column in range(d):  # tr A⁻¹ = ‖L⁻¹‖², a column of L⁻¹ at a time
        for row in range(column, d):
            value = 1.0 if row == column else 0.0
            for m in range(column, row):
                value -= L[row, m] * z[m]
            z[row] = value / L[row, row]
            unknown += z[row] * z[row]
    back_substitute(L, y, y)
    for m in range(d):
        norm += y[m] * y[m]
    clusters.scale[k, 0] = norm
    clusters.scale[k, 1] = d - ridge * unknown
    norms, known = 0.0, 1.0
    for n in range(count):
        members = count_members(clusters, clusters.used[n])
        norms += members * clusters.scale[clusters.used[n], 0]
        known += members * clusters.scale[clusters.used[n], 1]
    return norms / known


@compiled
def factor_components(state: MixtureState, agent: int, within: float) -> int:
    """Factor the clusters that count in the agent's choice, with the agent in them; count them.

    Their probabilities are left in `scratch.shares`, their ridge bonuses in `scratch.hidden`.
    """
    pool, pending, model = state.pool, state.common.pending, state.pool.model
    clusters, work, kappa = pool.clusters, pool.scratch, model.grid[model.position[0]]
    raw, own, ridge = raw_of(pool, agent), pool.members.labels[AGENT, agent], model.ridge
    count, found = weigh(pool, agent, state.local.pulls[agent]), 0
    for n in range(count + 1):
        if work.chances[n] < LEAST_SHARE:
            continue
        L, y = work.L[found], work.y[found]
        k = clusters.used[n] if n < count else -1
        is_own = k >= 0 and k == own
        if kappa > 0.0:
            others_of(pool, own, k)
            soften_packed(work.total, ridge, kappa, work.data, L, y, work.inverse)
            add_row(1.0, raw, work.data)
            factor_packed(work.data, 0.0, L, y)
        else:
            for m in range(work.total.shape[0]):
                work.total[m] = 0.0 if is_own else raw[m]  # there already
            if n < count:
                add_row(1.0, clusters.sums[k], work.total)
            factor_packed(work.total, ridge, L, y)
        if pending.total[0] > 0:
            widen(pool, pending, agent, k, L, y)
        work.shares[found] = work.chances[n]
        work.hidden[found] = 0.0
        if state.ridge_bonus > 0.0 and n < count:
            others = count_members(clusters, k) - (1 if is_own else 0)
            size = max(state.scale[0], clusters.scale[k, 0] / max(clusters.scale[k, 1], 1.0))
            size *= others / (others + COMPANY)
            # ζ xᵀA⁻¹x has ζ λ ‖A⁻¹x‖² of this in it already
            work.hidden[found] = max(0.0, ridge * (state.ridge_bonus**2 * size * ridge - within))
        found += 1
    return found


@inlined
def others_of(pool: Pool, own: int, k: int) -> None:
    """Leave the sums of cluster k (−1: a new one) without the agent in `scratch.total`, after `weigh`."""
    work = pool.scratch
    for m in range(work.total.shape[0]):
        work.total[m] = 0.0 if k < 0 else (work.rest[m] if k == own else pool.clusters.sums[k, m])


@compiled
def widen(pool: Pool, pending: Pending, agent: int, k: int, L: Matrix, y: Vector) -> None:
    """Let what a model waits for narrow its width: its factor takes in pending pulls, its estimate stays.

    Pulls of those who have no cluster count by the probability of being together with them.
    """
    model, clusters, work, own = pool.model, pool.clusters, pool.scratch, pool.members.labels[AGENT, agent]
    if clusters.waiting[0] + pending.counts[agent] + (clusters.waiting[1 + k] if k >= 0 else 0) == 0:
        return
    members, theta = 0, work.part
    for n in range(clusters.n_used[0]):
        members += count_members(clusters, clusters.used[n])
    company = count_members(clusters, k) if k >= 0 else 1
    share = company / (members + (0 if k >= 0 else 1) + math.exp(model.log_concentration))
    others_of(pool, own, k)
    for m in range(pending.sums.shape[1]):
        lone, theirs, mine = clusters.pending[0, m], 0.0, pending.sums[agent, m]
        if own < 0:
            lone -= mine
        if k >= 0:
            theirs = clusters.pending[1 + k, m] - (mine if k == own else 0.0)
        work.total[m] += theirs + share * lone
    back_substitute(L, y, theta)
    soften_packed(work.total, model.ridge, model.grid[model.position[0]], work.data, L, y, work.inverse)
    add_row(1.0, raw_of(pool, agent), work.data)
    for m in range(pending.sums.shape[1]):
        work.data[m] += pending.sums[agent, m]
    factor_packed(work.data, 0.0, L, y)
    for row in range(y.shape[0]):  # so that L⁻ᵀy is the estimate as it was
        value = 0.0
        for m in range(row, y.shape[0]):
            value += L[m, row] * theta[m]
        y[row] = value
