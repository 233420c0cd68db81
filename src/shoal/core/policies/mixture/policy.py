"""ClusterMixture: weigh by evidence which cluster an agent belongs to, and explore what is not known of it.

Not in the paper: a policy of our own. Agents are clustered by drawing each one's cluster from its posterior
(a Chinese-restaurant process, one Gibbs step at a time). An agent chooses by all the clusters that it may
belong to, each counting by its probability. Members of a cluster resemble each other as much as the data say
(`scatter`), and agents and clusters may change (`drift`).
"""

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from shoal.core.fields import AGENTS, COUNT, Size, kept, rows, setting
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.graphs import count_joined
from shoal.core.kernels.linalg import add_packed, add_row, dot
from shoal.core.kernels.random import integer_below, uniform
from shoal.core.policies.mixture.clusters import (
    AGENT,
    GHOST,
    GRID,
    LEAST_SHARE,
    Pool,
    add_lent,
    count_members,
    dissolve,
    evaluate,
    is_in_fresh,
    leave,
    lend,
    log_evidence,
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
from shoal.core.policies.mixture.drift import (
    EVERY,
    MOVED,
    RECENT,
    RESIDUALS,
    Drift,
    add_last,
    drop_past,
    find_change,
    forget,
    improbability,
    lay,
    note_latest,
    remember,
    tend,
)
from shoal.core.policies.mixture.kernels import (
    back_substitute,
    best_arm_of_mixture,
    factor_packed,
    soften_packed,
)
from shoal.core.policy.calls import checked_agent
from shoal.core.policy.explanations import Name, When, belonging, in_round, numbered, pair_text
from shoal.core.policy.living import LivePolicy
from shoal.core.policy.parameters import Parameters
from shoal.core.policy.steps import LiveCommon, Pending, expect_alone, step
from shoal.core.statistics import Statistics, add_sample, amend_packed, packed_problem
from shoal.core.styles import LineStyle
from shoal.core.types import AnyArray, Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST, SMALLEST

PRIOR_SAMPLES = 10.0
"""Residuals of size one that the estimate of the noise starts from."""
SCATTERS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Scatters to choose from, where it is learned."""
FIRST_SCATTER = 2
"""Position of the one to start from."""
LEAST_SCATTER = 1e-6
"""Smallest scatter that can be given, beside 0."""
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


VOTERS = Size("voters")
"""Agents where the scatter is learned, else 0."""


class MixtureState(NamedTuple):
    """State of ClusterMixture."""

    common: LiveCommon
    spread: Annotated[float, setting()]
    redraws: Annotated[int, setting()]
    learns_noise: Annotated[bool, setting()]
    ridge_bonus: Annotated[float, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Pool
    drift: Drift
    errors: Annotated[Vector, kept(AGENTS, low=0.0)]  # Σ of squared standardised prediction errors
    residuals: Annotated[Integers, kept(AGENTS, **COUNT)]  # how many
    votes: Annotated[Matrix, kept(VOTERS, GRID)]  # log evidence of each agent's samples under each scatter
    tally: Annotated[Vector, kept(GRID)]  # their sums
    scale: Annotated[Vector, kept(1, low=0.0)]  # size of a parameter's entries, squared, over all clusters
    upkeep: Annotated[Integers, kept(3, **COUNT)]  # pulls so far, members left to tend, the next one

    @property
    def labels(self) -> Integers:
        """(N,) cluster of each agent; −1 − agent while it has none."""
        return np.asarray(self.pool.members.labels[:, AGENT])


class MixtureParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of ClusterMixture."""

    alpha: Annotated[float, Meta(ge=0.0, le=LARGEST, description="Width of the confidence bonus.")] = 0.6
    spread: Annotated[
        float,
        Meta(ge=0.0, le=LARGEST, description="η, how much not knowing the cluster makes an agent explore."),
    ] = 1.0
    concentration: Annotated[
        float,
        Meta(
            ge=SMALLEST,
            le=LARGEST,
            description="c, the weight of a cluster of one's own beside the others' numbers of members.",
        ),
    ] = 5.0
    redraws: Annotated[
        int, Meta(ge=0, le=1000, description="Other agents whose cluster is drawn again after each pull.")
    ] = 1
    noise_scale: Annotated[
        Annotated[float, Meta(ge=SMALLEST, le=LARGEST)] | None,
        Meta(description="Scale of the noise; None: estimated from the agents' prediction errors."),
    ] = None
    scatter: Annotated[
        Annotated[float, Meta(ge=0.0, le=1e6)] | None,
        Meta(description="κ, variance of members' parameters over the noise's; 0: the same; None: learned."),
    ] = None
    drift: Annotated[bool, Meta(description="Whether agents and clusters may change.")] = True
    ridge_bonus: Annotated[
        float,
        Meta(
            ge=0.0, le=1000.0, description="Standard deviations of what the ridge may hide that are explored."
        ),
    ] = 3.0


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
    agent: int
    other: int

    @property
    def together(self) -> bool:
        """Whether both are in one cluster now."""
        return self.same_cluster

    @property
    def separation_time(self) -> int:
        """Not recorded."""
        return -1

    def text(self, name: Name = numbered, when: When = in_round) -> str:
        """The same in words."""
        reason = belonging(name(self.agent), name(self.other), self.probability)
        changed = [
            f" {name(who)} was found to have changed {when(changed)}."
            for who, changed in ((self.agent, self.forgot_agent), (self.other, self.forgot_other))
            if changed >= 0
        ]
        return pair_text(self, name, when, reason) + "".join(changed)

    def __str__(self) -> str:
        return self.text()


class ClusterMixture(LivePolicy):
    """Chooses by the mixture of all clusters k an agent may belong to, each with its probability `π_k`.

    `argmax_x m(x) + √(α² ln(t+1) Σ_k π_k xᵀA_k⁻¹x + η² Var_π(x·θ̂_k))` with `m(x) = Σ_k π_k x·θ̂_k`, where A_k
    and θ̂_k are those of the cluster with the agent in it. `π_k` is in proportion to the number of other
    members times the evidence for pooling the agent's samples with theirs, against not pooling them. After
    each of its pulls an agent's cluster is drawn from π. What is exact for `scatter=0, drift=False,
    ridge_bonus=0` is in docs/algorithms.md refined by the parameters of these names.

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

    line_style = LineStyle("#5b2a86", "P", dashes=((3.0, 1.0, 3.0, 1.0, 1.0, 1.0), (2.0, 1.0)), width=2.2)
    Parameters = MixtureParameters
    State = MixtureState

    def _configure(self, dim: int, parameters: Any) -> None:
        super()._configure(dim, parameters)
        scatter = self._parameters.scatter
        if scatter is not None and 0.0 < scatter < LEAST_SCATTER:  # (I − (I + κS)⁻¹)/κ would lose its digits
            raise ValueError(f"scatter must be 0, at least {LEAST_SCATTER:g} or None, got {scatter!r}")

    def _sizes(self, n_agents: int) -> dict[str, int]:
        own = self._parameters
        members = n_agents * (2 if own.drift else 1)
        return {
            **super()._sizes(n_agents),
            "kinds": 2 if own.drift else 1,
            "clusters": members,
            "components": min(members + 1, int(1.0 / LEAST_SHARE)) + 1,
            "grid": len(SCATTERS) if own.scatter is None else 1,
            "soft": 0 if own.scatter == 0.0 else n_agents,
            "voters": n_agents if own.scatter is None else 0,
            "changing": n_agents if own.drift else 0,
            "moving": members if own.drift else 0,
        }

    def _settings(self) -> dict[str, Any]:
        own = self._parameters
        return {
            **super()._settings(),
            "log_concentration": math.log(own.concentration),
            "learns_noise": own.noise_scale is None,
            "softens": own.scatter != 0.0,
        }

    def _join(self, state: MixtureState, first: int) -> None:
        model, members, clusters, _ = state.pool
        members.logdet[first:] = self.dim * math.log(state.common.ridge)
        members.labels[first:] = -1 - np.arange(first, len(members.labels))[:, None]
        model.grid[:] = self._grid()
        clusters.resummed[0] = -1  # whose turn was over is said in numbers that ghosts no longer have
        if state.upkeep[1] > 0:
            state.upkeep[1] = members.labels.size
        if first == 0:
            model.position[0] = FIRST_SCATTER if self._parameters.scatter is None else 0
            self._forget_noise(state)

    def _grid(self) -> tuple[float, ...]:
        return SCATTERS if self._parameters.scatter is None else (self._parameters.scatter,)

    def _forget_noise(self, state: MixtureState) -> None:
        """Estimate the noise from the errors of agents who lend, or set it to what was given."""
        noise, lends = state.pool.model.noise, state.common.lends
        if state.learns_noise:
            noise[:] = (
                PRIOR_SAMPLES + (state.errors * lends).sum(),
                PRIOR_SAMPLES + (state.residuals * lends).sum(),
            )
        else:
            noise[:] = self._parameters.noise_scale**2, 1.0

    def _derive(self, state: MixtureState) -> None:
        model, members, clusters, work = self._pinned_state(state).pool
        model.grid[:] = self._grid()
        labels, there = members.labels, members.labels >= 0
        removed = labels[~state.common.active & there[:, AGENT], AGENT]
        clusters.removed[:] = np.bincount(removed, minlength=len(clusters.removed))
        there[:, AGENT] &= state.common.active
        for kind in range(labels.shape[1]):
            found = labels[there[:, kind], kind]
            clusters.sizes[:, kind] = np.bincount(found, minlength=len(clusters.removed))
        used = np.flatnonzero(clusters.sizes.sum(axis=1))
        clusters.used[: len(used)], clusters.n_used[0] = used, len(used)
        members.logdet[:] = self.dim * math.log(model.ridge)
        for i, kind in np.argwhere((labels >= 0) | (np.arange(labels.shape[1]) == AGENT)).tolist():
            if kind == GHOST or state.local.pulls[i] > 0:
                terms = factor_packed(members.lent[i, kind], model.ridge, work.L[0], work.y[0])
                members.form[i, kind], members.logdet[i, kind] = terms
        for cluster in used[clusters.outdated[used] == 0].tolist():
            evaluate(clusters, work, model.ridge, cluster)

    def _problem(self, state: MixtureState) -> str:
        if trouble := super()._problem(state):
            return trouble
        model, members, clusters, _ = state.pool
        labels, noise, pending = members.labels, model.noise.copy(), state.common.pending
        ghosts = labels[:, GHOST:]
        counted = state.common.active & state.common.lends & (state.labels >= 0)
        alive = set(labels[counted, AGENT]) | set(ghosts[ghosts >= 0])
        if set(labels[labels >= 0]) - alive:
            return "a cluster has no active member"
        if not -1 <= clusters.resummed[0] < len(clusters.sums):
            return "pool.clusters.resummed names no cluster"
        summed, size = np.zeros_like(clusters.sums), np.zeros_like(clusters.sums)
        np.add.at(summed, labels[labels >= 0], members.lent[labels >= 0])
        np.add.at(size, labels[labels >= 0], np.abs(members.lent[labels >= 0]))
        if (np.abs(clusters.sums - summed) > 1e-6 * (size + clusters.peak[:, None])).any():
            return "clusters.sums is not the sum over the members of each cluster"
        waiting = np.zeros_like(clusters.waiting)
        np.add.at(waiting, 1 + np.maximum(labels[:, AGENT], -1), pending.counts * state.common.lends)
        if (labels[~state.common.lends] >= 0).any():
            return "an agent who does not lend is in a cluster"
        if not np.array_equal(waiting, clusters.waiting):
            return "pool.clusters.waiting does not count the pending pulls of each cluster's agents"
        own = members.raw[:, AGENT] if model.softens else members.lent[:, AGENT]
        everyone = np.ones(len(labels), dtype=np.bool_)
        if trouble := packed_problem(own, state.local, state.common.ridge, everyone):
            return trouble
        self._forget_noise(state)
        if not np.allclose(noise, model.noise, rtol=1e-6, atol=0.0):
            return f"noise is {noise.tolist()}, and the errors say {model.noise.tolist()}"
        model.noise[:] = noise
        return ""

    @property
    def labels(self) -> Integers:
        """Cluster of each agent, −1 for those that have none, shape (N,); a copy."""
        return np.asarray(np.maximum(self.state.labels, -1))

    def _edges(self) -> Booleans:
        return np.asarray(np.equal.outer(self.state.labels, self.state.labels))

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        there = self.state.common.active & (self.state.labels >= 0)
        return count_joined(self.state.labels[there], None if labels is None else labels[there])

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
        return np.array(self.state.drift.forgot) if self._parameters.drift else np.full(self.n_agents, -1)

    def posterior(self, agent: int) -> dict[int, float]:
        """Probability of each cluster that `agent` may belong to; −1 stands for one of its own."""
        agent = self._check_agent(agent)
        with self.lock:
            pool = self._pinned_state().pool
            count = weigh(pool, agent, int(self.state.local.pulls[agent]))
            clusters = [*pool.clusters.used[:count].tolist(), -1]
            chances = pool.scratch.chances[: count + 1].tolist()
        return {k: chance for k, chance in zip(clusters, chances, strict=True) if chance > 0.0}

    def _pool(self, agent: int) -> Booleans:
        """Who is in its cluster; of one who does not lend, and so has none, in the most probable one."""
        if self.state.common.lends[agent]:
            return np.asarray(self.state.labels == self.state.labels[agent])
        chances = self.posterior(agent)
        likeliest = max(chances, key=lambda cluster: chances[cluster])
        found = (self.state.labels == likeliest) & (likeliest >= 0)
        found[agent] = True
        return np.asarray(found)

    def lent(self, agent: int) -> Vector:
        labels, chances = self.state.labels, self.posterior(agent)
        shares = np.array([chances.get(label, 0.0) if label >= 0 else 0.0 for label in labels.tolist()])
        lent = np.where(shares >= LEAST_SHARE, shares * self.state.local.pulls, 0.0)
        lent[agent] = 0.0
        return np.asarray(lent * self.state.common.borrows[agent])

    def _explain_pair(self, agent: int, other: int) -> MembershipExplanation:
        i, j, common = agent, other, self.state.common
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
            lent_by_agent=back * int(pulls[i]) * bool(common.borrows[j]),
            lent_by_other=probability * int(pulls[j]) * bool(common.borrows[i]),
            scatter=self.scatter,
            forgot_agent=forgot_agent,
            forgot_other=forgot_other,
            agent=i,
            other=j,
        )

    def _pooled_estimate(self, agent: int) -> Vector:
        work = self.state.pool.scratch
        count = factor_components(self._pinned_state(), agent, 0.0)
        estimate = np.zeros(self.dim)
        for share, L, y in zip(work.shares[:count], work.L, work.y, strict=False):
            estimate += share * np.linalg.solve(np.tril(L).T, y)
        return np.asarray(estimate / work.shares[:count].sum())

    def _end_pending(self, agent: int) -> None:
        state = self._pinned_state()
        if state.common.lends[agent]:
            wait_in(state.pool.clusters, state.common.pending, agent, state.labels[agent], -1)
        super()._end_pending(agent)

    def _lending_changed(self, agent: int) -> None:
        """Let an agent who does not lend be in no cluster, and one who does again be drawn one."""
        state = self._pinned_state()
        pending, (_, members, clusters, _) = state.common.pending, state.pool
        if state.common.lends[agent]:
            wait_in(clusters, pending, agent, -1, 1)
            self._forget_noise(state)
            lend(state.pool, agent)
            if state.local.pulls[agent] > 0:
                redraw(state.pool, pending, state.common.rng, agent)
        else:
            if self._parameters.drift and members.labels[agent, GHOST] >= 0:
                lay(state.pool, pending, agent)
            cluster = int(members.labels[agent, AGENT])
            if cluster >= 0:
                leave(members, clusters, pending, agent)
                if count_members(clusters, cluster) == 0:
                    dissolve(members, clusters, cluster)
                else:
                    sum_anew(state.pool, cluster)
            wait_in(clusters, pending, agent, -1, -1)
            if len(state.votes):
                state.votes[agent] = 0.0
                state.tally[:] = state.votes.sum(axis=0)
            self._forget_noise(state)
        if self._parameters.drift:
            self._restart_latest()
        self._measure_all()

    def _move_pending(self, agent: int, other: int) -> None:
        state = self._pinned_state()
        for who, sign in ((agent, -1), (other, -1), (agent, 1)):
            if sign > 0:
                super()._move_pending(agent, other)
            if state.common.lends[who]:
                wait_in(state.pool.clusters, state.common.pending, who, state.labels[who], sign)

    def _absorb(self, agent: int, other: int) -> None:
        state = self._pinned_state()
        model, members, _, _ = state.pool
        own = members.raw if model.softens else members.lent
        own[agent, AGENT] += own[other, AGENT]
        if self._parameters.drift:
            drift = state.drift
            drift.past[agent] += drift.past[other]
            add_last(drift, other, 0, int(drift.held[other]), drift.past[agent])
        lend(state.pool, agent)
        state.errors[agent] += state.errors[other]
        state.residuals[agent] += state.residuals[other]
        if len(state.votes):  # it votes anew when its turn comes
            state.votes[agent] = 0.0
            state.tally[:] = state.votes.sum(axis=0)
        if state.labels[agent] >= 0:
            sum_anew(state.pool, state.labels[agent])

    def _measure_all(self) -> None:
        """Compute how large the estimates of all clusters are."""
        for turn in range(int(self.state.pool.clusters.n_used[0])):
            self.state.scale[0] = measure(self._pinned_state().pool, turn)

    def _end_edges(self, agent: int) -> None:
        _, members, clusters, _ = self._pinned_state().pool
        cluster = members.labels[agent, AGENT]
        if cluster >= 0:
            clusters.sizes[cluster, AGENT] -= 1
            clusters.removed[cluster] += 1
            if clusters.sizes[cluster].sum() == 0:
                dissolve(members, clusters, cluster)

    def holds(self, agent: int, x: ArrayLike, reward: float, learned: int) -> bool:
        """Whether a sample still counts: an agent found to have changed keeps its latest ones only."""
        agent = checked_agent(agent, self.n_agents)
        with self.lock:
            if not self._parameters.drift or self.state.drift.forgot[agent] < learned:
                return True
            order = (self.state.drift.newest[agent] - np.arange(self.state.drift.held[agent])) % RECENT
            kept = self.state.drift.ring[agent, order, : self.dim + 1]
            return bool((kept == [*np.asarray(x, dtype=np.float64), reward]).all(axis=1).any())

    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        state, left = self._pinned_state(), int(self.state.local.pulls[agent])
        model, members, _, _ = state.pool
        own = members.raw if model.softens else members.lent
        amend_packed(own[agent, AGENT], x, change, removes, left)
        if self._parameters.drift:
            self._amend_history(agent, x, change, removes, left)
        lend(state.pool, agent)
        if removes and left >= self.dim and state.residuals[agent] > 0:  # its errors stay, one fewer of them
            state.errors[agent] *= (state.residuals[agent] - 1) / state.residuals[agent]
            state.residuals[agent] -= 1
            self._forget_noise(state)
        if state.labels[agent] >= 0:
            sum_anew(state.pool, state.labels[agent])
            if self._parameters.drift:
                self._restart_latest()

    def _amend_history(self, agent: int, x: Vector, change: float, removes: bool, left: int) -> None:
        """Put a sample right where the agent's samples are kept one by one, or among those before."""
        drift, d = self.state.drift, self.dim
        order = (drift.newest[agent] - np.arange(drift.held[agent])) % RECENT  # the latest first
        last = drift.ring[agent, order]
        found = (last[:, :d] == x).all(axis=1) & ((last[:, d] == -change) | (not removes))
        if not found.any():
            amend_packed(drift.past[agent], x, change, removes, max(left - int(drift.held[agent]), 0))
            return
        position = int(np.argmax(found))
        if not removes:
            drift.ring[agent, order[position], d] += change
            return
        drift.ring[agent, order[position:-1]] = last[position + 1 :]
        drift.ring[agent, order[-1]] = 0.0
        drift.held[agent] -= 1

    def _withdraw(self, agent: int) -> None:
        state = self._pinned_state()
        model, members, clusters, _ = state.pool
        if self._parameters.drift:
            if members.labels[agent, GHOST] >= 0:
                lay(state.pool, state.common.pending, agent)
            for values in (state.drift.ring, state.drift.past, state.drift.held):
                values[agent] = 0
        if members.labels[agent, AGENT] >= 0:
            clusters.removed[members.labels[agent, AGENT]] -= 1
        members.lent[agent] = 0.0
        if model.softens:
            members.raw[agent] = 0.0
        members.form[agent], members.logdet[agent] = 0.0, self.dim * math.log(state.common.ridge)
        members.labels[agent, AGENT] = -1 - agent
        clusters.fresh[:], clusters.resummed[0] = 0.0, -1
        for cluster in clusters.used[: clusters.n_used[0]].tolist():  # it may have been in any of them
            sum_anew(state.pool, cluster)
        if self._parameters.drift:
            self._restart_latest()
        self._measure_all()
        if len(state.votes):
            state.votes[agent] = 0.0
            state.tally[:] = state.votes.sum(axis=0)
        state.errors[agent], state.residuals[agent] = 0.0, 0
        self._forget_noise(state)

    def _restart_latest(self) -> None:
        """Let clusters' latest samples be those that their agents keep one by one."""
        state = self._pinned_state()
        (_, members, clusters, _), drift = state.pool, state.drift
        clusters.recent[:], clusters.cusum[:] = 0.0, 0.0
        for agent in np.flatnonzero(members.labels[:, AGENT] >= 0).tolist():
            add_last(drift, agent, 0, int(drift.held[agent]), clusters.recent[members.labels[agent, AGENT]])


@step("select", MixtureState)
def select(state: MixtureState, agent: int, arms: Matrix, t: int) -> int:
    within, work = state.common.alpha**2 * math.log(t + 1.0), state.pool.scratch
    count = factor_components(state, agent, within)
    return best_arm_of_mixture(
        work.L, work.y, work.shares, work.hidden, count, arms, within, state.spread**2, work.lanes,
        state.common.scored,
    )  # fmt: skip


@step("observe", MixtureState)
def observe(state: MixtureState, agent: int, x: Vector, reward: float, t: int) -> None:
    local, pool, members, clusters = state.local, state.pool, state.pool.members, state.pool.clusters
    cluster, noise, work = members.labels[agent, AGENT], pool.model.noise, pool.scratch
    # First what the sample says of change: it has to be predicted by models that do not hold it yet.
    if state.drift.held.shape[0] > 0:
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
    # Prediction errors over √(1 + xᵀA⁻¹x) are independent with the noise's variance; residuals are not.
    error = reward - dot(x, local.theta_hat[agent])
    growth = add_sample(local, agent, x, reward)
    if state.learns_noise and local.pulls[agent] > x.shape[0]:
        state.errors[agent] += error * error / growth
        state.residuals[agent] += 1
        if state.common.lends[agent]:
            noise[0] += error * error / growth
            noise[1] += 1.0
    if not state.common.lends[agent] and state.drift.held.shape[0] > 0 and is_noise_known(state):
        # It has no cluster to predict by: how improbable the sample was, by its own samples.
        improbable = 0.5 * noise[1] / noise[0] * error * error / growth + 0.5 * math.log(growth)
        state.drift.ring[agent, state.drift.newest[agent], x.shape[0] + 1] = improbable
    position = pool.model.position[0]
    if pool.model.softens:
        add_packed(members.raw[agent, AGENT], x, reward)
    # Softened sums are no sums over samples: what was lent comes off and what is lent now goes on.
    if pool.model.grid[position] > 0.0 or members.lent_at[agent, AGENT] != position:
        if cluster >= 0:
            add_lent(members, clusters, agent, -1.0)
        lend(pool, agent)
        if cluster >= 0:
            add_lent(members, clusters, agent, 1.0)
    else:  # what is lent changes by the sample alone
        lent = members.lent[agent, AGENT]
        add_packed(lent, x, reward)
        terms = factor_packed(lent, pool.model.ridge, work.L[0], work.y[0])
        members.form[agent, AGENT] = terms[0]
        members.logdet[agent, AGENT] = terms[1]
        if cluster >= 0:
            add_packed(clusters.sums[cluster], x, reward)
            note_change(clusters, cluster)
            if is_in_fresh(clusters, cluster, agent):
                add_packed(clusters.fresh, x, reward)
    if cluster >= 0:
        state.common.cost[0] += clusters.sizes[cluster, AGENT] - 1


@step("revise", MixtureState)
def revise(state: MixtureState, agent: int, t: int) -> None:
    pool, drift, pending, local = state.pool, state.drift, state.common.pending, state.local
    labels, rng, can_change = pool.members.labels, state.common.rng, drift.held.shape[0] > 0
    n, pulls = labels.shape[0], local.pulls[agent]
    if not state.common.lends[agent]:  # nobody is to notice that it has learned anything
        if can_change and pulls % EVERY == 0 and is_noise_known(state):
            recent = find_change(pool, drift, agent, pulls, False)
            if recent >= 0:
                drop_past(pool, drift, local, agent, recent)
                drift.forgot[agent] = t
        return
    if labels[agent, AGENT] >= 0:
        if state.votes.shape[0] > 0 and pulls % (VOTE_EVERY if pulls <= LATER else LATER_VOTES) == 0:
            vote(state, agent)
        if can_change and pulls % EVERY == 0 and is_noise_known(state):
            recent = find_change(pool, drift, agent, pulls, True)
            if recent >= 0:
                forget(pool, drift, pending, local, agent, recent)
                drift.forgot[agent] = t
    # A Gibbs sweep a few members at a time: this agent, whose data changed, and some others by chance.
    keep_up(state)
    for n_drawn in range(2 * (1 + (state.redraws if n > 1 else 0))):
        is_ghost = n_drawn % 2 == 1  # each agent's turn, then its ghost's
        if not is_ghost:
            who = agent
            if n_drawn > 0:
                who = integer_below(rng, n - 1)
                who += who >= agent
            member = who
            if n_drawn > 0 and (labels[who, AGENT] < 0 or not state.common.active[who]):
                continue
        else:
            member = n + who
            if n_drawn == 1 or not can_change or labels[who, GHOST] < 0:
                continue
        if can_change or pool.model.softens:
            tend(pool, drift, pending, local, member)
            if is_ghost and labels[who, GHOST] < 0:
                continue  # its cluster has moved, and it is no more
        redraw(pool, pending, rng, member)


@compiled
def redraw(pool: Pool, pending: Pending, rng: AnyArray, member: int) -> None:
    """Draw the cluster of a member, who has samples, from its posterior."""
    labels, n = pool.members.labels, pool.members.labels.shape[0]
    # All but the member's own cluster, of which `weigh` computes what is left without it.
    refresh(pool, labels[member % n, member // n])
    count = weigh(pool, member, 1)
    # Invert the distribution function; falling off the end by rounding draws the new cluster.
    drawn, left = 0, uniform(rng)
    while drawn < count and not left < pool.scratch.chances[drawn]:
        left -= pool.scratch.chances[drawn]
        drawn += 1
    move(pool, pending, member, drawn)


@step("expect", MixtureState)
def expect(state: MixtureState, agent: int, x: Vector, sign: int) -> None:
    if state.common.lends[agent]:
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
    # A vote replaces the agent's last one, so that the tally is of everybody's present samples.
    refresh(pool, pool.members.labels.size)
    weigh(pool, agent, state.local.pulls[agent])
    for g in range(grid.shape[0]):
        found = log_evidence(pool, pool.members.raw[agent, AGENT], grid[g], agent)
        state.tally[g] += found - state.votes[agent, g]
        state.votes[agent, g] = found


@inlined
def keep_up(state: MixtureState) -> None:
    """What has to be done now and then, a little of it in each round: no round waits for all of it."""
    pool, upkeep, position = state.pool, state.upkeep, state.pool.model.position
    n, members = pool.members.labels.shape[0], pool.members.labels.size
    upkeep[0] += 1
    if state.votes.shape[0] > 0 and upkeep[0] % n == 0:
        best, found = 0, -math.inf
        for g in range(state.tally.shape[0]):
            value = state.tally[g] - STEP_COST * abs(g - FIRST_SCATTER)
            if value > found:
                found = value
                best = g
        # One step at a time: what every member lends depends on it, and is brought up to date slowly.
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
    raw, own, ridge = raw_of(pool, agent), pool.members.labels[agent, AGENT], model.ridge
    count, found = weigh(pool, agent, state.local.pulls[agent]), 0
    for n in range(count + 1):
        if work.chances[n] < LEAST_SHARE:
            continue
        L, y = work.L[found], work.y[found]
        k = clusters.used[n] if n < count else -1
        is_own = k >= 0 and k == own
        # With scatter, what the others know is a prior for the agent's own parameter: softened sums, then its
        # own samples in full. Without, all samples are of one parameter and simply add.
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
            widen(pool, pending, state.common.lends[agent], agent, k, L, y)
        work.shares[found] = work.chances[n]
        work.hidden[found] = 0.0
        if state.ridge_bonus > 0.0 and n < count:
            others = count_members(clusters, k) - (1 if is_own else 0)
            # The larger of all clusters' and its own: a cluster that knows few directions looks small.
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
def widen(pool: Pool, pending: Pending, lends: bool, agent: int, k: int, L: Matrix, y: Vector) -> None:
    """Let what a model waits for narrow its width: its factor takes in pending pulls, its estimate stays.

    Pulls of those who have no cluster count by the probability of being together with them.
    """
    model, clusters, work, own = pool.model, pool.clusters, pool.scratch, pool.members.labels[agent, AGENT]
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
        if own < 0 and lends:
            lone -= mine
        if k >= 0:
            theirs = clusters.pending[1 + k, m] - (mine if k == own else 0.0)
        work.total[m] += theirs + share * lone
    # The estimate is kept aside: pending pulls have no rewards yet, and would pull it towards 0.
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
