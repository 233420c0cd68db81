"""ClusterMixture: weigh by evidence which cluster an agent belongs to, and explore what is not known of it.

Not in the paper: a policy of our own. Agents are clustered by drawing each one's cluster from its posterior
(a Chinese-restaurant process, one Gibbs step at a time). An agent chooses by all the clusters that it may
belong to, each counting by its probability.
"""

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.fields import AGENTS, COUNT, DIM, PACKED, Size, derived, kept, rows, scratch, setting
from shoal.kernels.compiled import inlined
from shoal.kernels.linalg import add_packed, add_row, dot
from shoal.kernels.mixture import (
    best_arm_of_mixture,
    factor_packed,
    largest,
    normalise,
    sum_members,
)
from shoal.kernels.random import integer_below, uniform
from shoal.kernels.ucb import LANES
from shoal.policies.base import Policy
from shoal.policies.clustered import ClusteredPolicy
from shoal.policies.parameters import Parameters
from shoal.policies.steps import Common, step
from shoal.statistics import Statistics, add_sample, amend_packed, packed_problem
from shoal.styles import LineStyle
from shoal.types import Integers, Matrix, Tensor, Vector
from shoal.validation import LARGEST, SMALLEST

LEAST_SHARE = 1e-3
"""Probability from which on a cluster counts in the choice."""
PRIOR_SAMPLES = 10.0
"""Residuals of size one that the estimate of the noise starts from."""
RESUM_AFTER = 256
"""Changes of a cluster (or as many as there are agents) after which it is summed anew."""
LOSSY = 1e4
"""Sums that were once so many times larger than what a subtraction leaves are summed anew."""


COMPONENTS = Size("components")
"""Clusters that may count in a choice: a cluster with a share of LEAST_SHARE each."""


class MixtureScratch(NamedTuple):
    """Work space."""

    total: Annotated[Vector, scratch(PACKED)]  # packed sums
    rest: Annotated[Vector, scratch(PACKED)]  # packed sums of an agent's cluster without it
    L: Annotated[Tensor, scratch(COMPONENTS, DIM, DIM)]  # factors
    y: Annotated[Matrix, scratch(COMPONENTS, DIM)]  # L⁻¹ b
    lanes: Annotated[Matrix, scratch(DIM + 5, LANES)]  # for the scores
    chances: Annotated[Vector, scratch(AGENTS + 1)]  # probability of each cluster in use, then of a new one
    shares: Annotated[Vector, scratch(AGENTS + 1)]  # those that count in the choice
    forms: Annotated[Vector, scratch(AGENTS + 1)]  # bᵀA⁻¹b of the cluster with the agent
    logdets: Annotated[Vector, scratch(AGENTS + 1)]  # its log det A
    alone: Annotated[Vector, scratch(2)]  # the same of the cluster without the agent


class Clusters(NamedTuple):
    """One row per cluster; rows in use are listed in `used`."""

    sums: Annotated[Matrix, kept(AGENTS, PACKED)]  # packed Σ x xᵀ and b of the members, removed ones included
    form: Annotated[Vector, kept(AGENTS, low=0.0)]  # bᵀA⁻¹b
    logdet: Annotated[Vector, kept(AGENTS)]  # log det A
    outdated: Annotated[Integers, kept(AGENTS, low=0, below=2)]  # 1 while the two above lack a sample
    removed: Annotated[Integers, derived(AGENTS)]  # members that were removed, but not withdrawn
    peak: Annotated[Vector, kept(AGENTS, low=0.0)]  # largest entry of the sums since they were last summed
    changes: Annotated[Integers, kept(AGENTS, **COUNT)]  # changes since then
    used: Annotated[Integers, derived(AGENTS)]  # rows in use, in order
    n_used: Annotated[Integers, derived(1)]  # how many


class MixtureState(NamedTuple):
    """State of ClusterMixture."""

    common: Common
    spread: Annotated[float, setting()]
    log_concentration: Annotated[float, setting()]
    redraws: Annotated[int, setting()]
    learns_noise: Annotated[bool, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    lent: Annotated[Matrix, kept(AGENTS, PACKED)]  # packed Σ x xᵀ and b of each agent
    form: Annotated[Vector, derived(AGENTS)]  # its bᵀA⁻¹b
    logdet: Annotated[Vector, derived(AGENTS)]  # its log det A
    errors: Annotated[Vector, kept(AGENTS, low=0.0)]  # Σ of squared standardised prediction errors
    noise: Annotated[Vector, kept(2, low=0.0)]  # sum and count whose ratio is the noise variance
    labels: Annotated[Integers, kept(AGENTS, low=0, below=AGENTS, own=True)]  # −1 − agent: none yet
    sizes: Annotated[Integers, derived(AGENTS)]  # active members of each cluster
    clusters: Clusters
    scratch: MixtureScratch


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


class ClusterMixture(ClusteredPolicy):
    """Chooses by the mixture of all clusters k an agent may belong to, each with its probability `π_k`.

    `argmax_x m(x) + √(α² ln(t+1) Σ_k π_k xᵀA_k⁻¹x + η² Var_π(x·θ̂_k))` with `m(x) = Σ_k π_k x·θ̂_k`, where A_k
    and θ̂_k are those of the cluster with the agent in it. `π_k` is in proportion to the number of other
    members times the evidence for pooling the agent's samples with theirs, against not pooling them. After
    each of its pulls an agent's cluster is drawn from π.

    Parameters
    ----------
    spread : float
        η, how much not knowing the cluster makes an agent explore; at least 0.
    concentration : float
        c, the weight of a cluster of its own, beside the number of members of the others; positive.
    redraws : int
        Other agents, drawn at random, whose cluster is drawn again after each pull; at most 1000.
    noise_scale : float or None
        Scale of the noise; None: estimated from the agents' prediction errors.

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
    _clusters_everyone = False

    def _sizes(self, n_agents: int) -> dict[str, int]:
        return {**super()._sizes(n_agents), "components": min(n_agents + 1, int(1.0 / LEAST_SHARE))}

    def _settings(self) -> dict[str, Any]:
        own = self._parameters
        return {
            **super()._settings(),
            "log_concentration": math.log(own.concentration),
            "learns_noise": own.noise_scale is None,
        }

    def _join(self, state: MixtureState, first: int) -> None:
        state.logdet[first:] = self.dim * math.log(state.common.ridge)
        state.labels[first:] = -1 - np.arange(first, len(state.labels))
        if first == 0:
            self._forget_noise(state)

    def _forget_noise(self, state: MixtureState) -> None:
        """Estimate the noise from the agents' errors, or set it to what was given."""
        if state.learns_noise:
            counted = np.maximum(state.local.pulls - self.dim, 0).sum()
            state.noise[:] = PRIOR_SAMPLES + state.errors.sum(), PRIOR_SAMPLES + counted
        else:
            state.noise[:] = self._parameters.noise_scale**2, 1.0

    def _derive(self, state: MixtureState) -> None:
        super()._derive(state)
        clusters, work = state.clusters, state.scratch
        removed = state.labels[~state.common.active & (state.labels >= 0)]
        clusters.removed[:] = np.bincount(removed, minlength=len(clusters.removed))
        used = np.flatnonzero(state.sizes)
        clusters.used[: len(used)], clusters.n_used[0] = used, len(used)
        state.logdet[:] = self.dim * math.log(state.common.ridge)
        for agent in np.flatnonzero(state.local.pulls).tolist():
            terms = factor_packed(state.lent[agent], state.common.ridge, work.L[0], work.y[0])
            state.form[agent], state.logdet[agent] = terms
        for cluster in used[clusters.outdated[used] == 0].tolist():
            evaluate(state, cluster)

    def _problem(self, state: MixtureState) -> str:
        if trouble := Policy._problem(self, state):
            return trouble
        labels, noise = state.labels, state.noise.copy()
        if set(labels[labels >= 0]) - set(labels[self._counted(state)]):
            return "a cluster has no active member"
        with_label = labels >= 0
        summed, size = np.zeros_like(state.lent), np.zeros_like(state.lent)
        np.add.at(summed, labels[with_label], state.lent[with_label])
        np.add.at(size, labels[with_label], np.abs(state.lent[with_label]))
        if (np.abs(state.clusters.sums - summed) > 1e-6 * (size + state.clusters.peak[:, None])).any():
            return "clusters.sums is not the sum over the members of each cluster"
        if trouble := packed_problem(state.lent, state.local, state.common.ridge):
            return trouble
        self._forget_noise(state)
        if not np.allclose(noise, state.noise, rtol=1e-6, atol=0.0):
            return f"noise is {noise.tolist()}, and the errors say {state.noise.tolist()}"
        state.noise[:] = noise
        return ""

    @property
    def noise_variance(self) -> float:
        """The noise variance that evidence is measured with: estimated, or as given."""
        return float(self.state.noise[0] / self.state.noise[1])

    def posterior(self, agent: int) -> dict[int, float]:
        """Probability of each cluster that `agent` may belong to; −1 stands for one of its own."""
        agent = self._check_agent(agent)
        with self.lock:
            count = weigh(self.state, agent)
            clusters = [*self.state.clusters.used[:count].tolist(), -1]
            chances = self.state.scratch.chances[: count + 1].tolist()
        return {k: chance for k, chance in zip(clusters, chances, strict=True) if chance > 0.0}

    def explain(self, agent: int, other: int) -> MembershipExplanation:
        """Say whether two agents belong together, as far as is known, and what they lend each other."""
        with self.lock:
            i, j = self._check_agent(agent), self._check_agent(other)
            if i == j:
                raise ValueError(f"other must differ from agent, got {other!r} twice")
            (label_i, label_j), pulls = self.labels[[i, j]].tolist(), self.pulls
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
        )

    def _pooled_estimate(self, agent: int) -> Vector:
        state, work = self.state, self.state.scratch
        count = factor_components(state, agent)
        estimate = np.zeros(self.dim)
        for share, L, y in zip(work.shares[:count], work.L, work.y, strict=False):
            estimate += share * np.linalg.solve(np.tril(L).T, y)
        return np.asarray(estimate / work.shares[:count].sum())

    def _end_edges(self, agent: int) -> None:
        cluster = self.state.labels[agent]
        if cluster >= 0:
            self.state.sizes[cluster] -= 1
            self.state.clusters.removed[cluster] += 1
            if self.state.sizes[cluster] == 0:
                dissolve(self.state, cluster)

    def _amended(self, agent: int, x: Vector, change: float, removes: bool) -> None:
        state, left = self.state, int(self.state.local.pulls[agent])
        amend_packed(state.lent[agent], x, change, removes, left)
        work = state.scratch
        terms = factor_packed(state.lent[agent], state.common.ridge, work.L[0], work.y[0])
        state.form[agent], state.logdet[agent] = (
            terms if left else (0.0, self.dim * math.log(state.common.ridge))
        )
        if removes and left >= self.dim:  # its errors stay what they were, one fewer of them
            state.errors[agent] *= (left - self.dim) / (left + 1 - self.dim)
            self._forget_noise(state)
        if state.labels[agent] >= 0:
            sum_anew(state, state.labels[agent])

    def _withdraw(self, agent: int) -> None:
        state, clusters = self.state, self.state.clusters
        if state.labels[agent] >= 0:
            clusters.removed[state.labels[agent]] -= 1
        state.lent[agent], state.errors[agent], state.form[agent] = 0.0, 0.0, 0.0
        state.logdet[agent] = self.dim * math.log(state.common.ridge)
        state.labels[agent] = -1 - agent
        for cluster in clusters.used[: clusters.n_used[0]].tolist():  # it may have been in any of them
            sum_anew(state, cluster)
        if state.learns_noise:
            self._forget_noise(state)


@step("select", MixtureState)
def select(state: MixtureState, agent: int, arms: Matrix, t: int) -> int:
    count = factor_components(state, agent)
    within, work = state.common.alpha**2 * math.log(t + 1.0), state.scratch
    return best_arm_of_mixture(work.L, work.y, work.shares, count, arms, within, state.spread**2, work.lanes)


@step("observe", MixtureState)
def observe(state: MixtureState, agent: int, x: Vector, reward: float, t: int) -> None:
    local, clusters, cluster, work = state.local, state.clusters, state.labels[agent], state.scratch
    error = reward - dot(x, local.theta_hat[agent])
    growth = add_sample(local, agent, x, reward)
    if state.learns_noise and local.pulls[agent] > x.shape[0]:
        state.errors[agent] += error * error / growth
        state.noise[0] += error * error / growth
        state.noise[1] += 1.0
    add_packed(state.lent[agent], x, reward)
    terms = factor_packed(state.lent[agent], state.common.ridge, work.L[0], work.y[0])
    state.form[agent] = terms[0]
    state.logdet[agent] = terms[1]
    if cluster >= 0:
        add_packed(clusters.sums[cluster], x, reward)
        clusters.outdated[cluster] = 1
        clusters.changes[cluster] += 1
        clusters.peak[cluster] = max(clusters.peak[cluster], largest(clusters.sums[cluster], x.shape[0]))
        state.common.cost[0] += state.sizes[cluster] - 1


@step("revise", MixtureState)
def revise(state: MixtureState, agent: int, t: int) -> None:
    n, rng = state.labels.shape[0], state.common.rng
    for n_drawn in range(1 + (state.redraws if n > 1 else 0)):
        who = agent
        if n_drawn > 0:
            who = integer_below(rng, n - 1)
            who += who >= agent
        if n_drawn > 0 and (state.labels[who] < 0 or not state.common.active[who]):
            continue
        refresh(state, state.labels[who])
        count = weigh(state, who)
        drawn, left = 0, uniform(rng)
        while drawn < count and not left < state.scratch.chances[drawn]:
            left -= state.scratch.chances[drawn]
            drawn += 1
        move(state, who, drawn)


@inlined
def refresh(state: MixtureState, but: int) -> None:
    """Bring the evidence of all clusters but one up to date with their sums."""
    for n in range(state.clusters.n_used[0]):
        k = state.clusters.used[n]
        if k != but and state.clusters.outdated[k]:
            evaluate(state, k)


@inlined
def evaluate(state: MixtureState, cluster: int) -> None:
    """Compute a cluster's evidence from its sums."""
    clusters, work = state.clusters, state.scratch
    terms = factor_packed(clusters.sums[cluster], state.common.ridge, work.L[0], work.y[0])
    clusters.form[cluster] = terms[0]
    clusters.logdet[cluster] = terms[1]
    clusters.outdated[cluster] = 0


@inlined
def weigh(state: MixtureState, agent: int) -> int:
    """Leave the probability of each cluster in use, and then of a new one, in `scratch.chances`; count them.

    The agent is taken out of its own cluster first; `scratch.rest` and `scratch.alone` are what is left of
    it, `forms` and `logdets` what each cluster's evidence is with the agent in it. Changes no more than that.
    """
    clusters, work, ridge = state.clusters, state.scratch, state.common.ridge
    own, count = state.labels[agent], clusters.n_used[0]
    precision = 0.5 * state.noise[1] / state.noise[0]
    form, logdet = state.form[agent], state.logdet[agent]
    prior = state.local.b.shape[1] * math.log(ridge)
    for n in range(count):
        k = clusters.used[n]
        others, form_k, logdet_k = state.sizes[k], clusters.form[k], clusters.logdet[k]
        work.forms[n] = form_k
        work.logdets[n] = logdet_k
        if k == own:
            others -= 1
            if others == 0 and clusters.removed[k] == 0:
                work.chances[n] = -math.inf
                continue
            if clusters.outdated[k]:
                terms = factor_packed(clusters.sums[k], ridge, work.L[0], work.y[0])
                work.forms[n] = terms[0]
                work.logdets[n] = terms[1]
            take_out(state, agent, k)
            terms = factor_packed(work.rest, ridge, work.L[0], work.y[0])
            work.alone[0] = form_k = terms[0]
            work.alone[1] = logdet_k = terms[1]
        elif state.local.pulls[agent] > 0:
            for m in range(work.total.shape[0]):
                work.total[m] = clusters.sums[k, m] + state.lent[agent, m]
            terms = factor_packed(work.total, ridge, work.L[0], work.y[0])
            work.forms[n] = terms[0]
            work.logdets[n] = terms[1]
        gain = precision * (work.forms[n] - form_k - form) - 0.5 * (
            work.logdets[n] - logdet_k - logdet + prior
        )
        work.chances[n] = gain + math.log(max(others, 1))
    work.forms[count] = form
    work.logdets[count] = logdet
    work.chances[count] = state.log_concentration
    normalise(work.chances, count + 1)
    return int(count)


@inlined
def take_out(state: MixtureState, agent: int, cluster: int) -> None:
    """Leave a cluster's sums without the agent's in `scratch.rest`; subtract where that loses little."""
    clusters, rest = state.clusters, state.scratch.rest
    for m in range(rest.shape[0]):
        rest[m] = clusters.sums[cluster, m] - state.lent[agent, m]
    if is_lossy(state, cluster, rest):
        sum_members(state.labels, cluster, agent, state.lent, rest)


@inlined
def is_lossy(state: MixtureState, cluster: int, left: Vector) -> bool:
    """Whether a cluster's sums were once so large that their rounding shows in what is left of them."""
    size = largest(left, state.local.b.shape[1])
    return bool(state.clusters.peak[cluster] > LOSSY * max(state.common.ridge, size))


@inlined
def is_worn(state: MixtureState, cluster: int) -> bool:
    """Whether rounding may have piled up in a cluster's sums."""
    if state.clusters.changes[cluster] >= max(RESUM_AFTER, state.labels.shape[0]):
        return True
    return is_lossy(state, cluster, state.clusters.sums[cluster])


@inlined
def factor_components(state: MixtureState, agent: int) -> int:
    """Factor the clusters that count in the agent's choice, with the agent in them; count them.

    Their probabilities are left in `scratch.shares`.
    """
    clusters, work = state.clusters, state.scratch
    count, found = weigh(state, agent), 0
    for n in range(count + 1):
        if work.chances[n] < LEAST_SHARE:
            continue
        is_own = n < count and clusters.used[n] == state.labels[agent]
        for m in range(work.total.shape[0]):
            work.total[m] = 0.0 if is_own else state.lent[agent, m]  # there already
        if n < count:
            add_row(1.0, clusters.sums[clusters.used[n]], work.total)
        work.shares[found] = work.chances[n]
        factor_packed(work.total, state.common.ridge, work.L[found], work.y[found])
        found += 1
    return found


@inlined
def move(state: MixtureState, agent: int, drawn: int) -> None:
    """Put an agent into the cluster at position `drawn` of those in use, or into a new one, after `weigh`."""
    clusters, work, own = state.clusters, state.scratch, state.labels[agent]
    is_new = drawn == clusters.n_used[0]
    cluster = -1 if is_new else clusters.used[drawn]
    if own >= 0 and cluster != own:
        leave(state, agent, own)
    if is_new:
        cluster = open_cluster(state)
    if cluster != own or is_new:
        state.labels[agent] = cluster
        state.sizes[cluster] += 1
        add_row(1.0, state.lent[agent], clusters.sums[cluster])
        clusters.changes[cluster] += 1
        found = largest(clusters.sums[cluster], state.local.b.shape[1])
        clusters.peak[cluster] = max(clusters.peak[cluster], found)
    clusters.form[cluster] = work.forms[drawn]
    clusters.logdet[cluster] = work.logdets[drawn]
    clusters.outdated[cluster] = 0
    if is_worn(state, cluster):
        sum_anew(state, cluster)


@inlined
def leave(state: MixtureState, agent: int, cluster: int) -> None:
    """Take an agent out of its cluster, after `weigh`."""
    clusters, work = state.clusters, state.scratch
    state.labels[agent] = -1 - agent
    state.sizes[cluster] -= 1
    if state.sizes[cluster] == 0:
        dissolve(state, cluster)
        return
    for m in range(work.rest.shape[0]):
        clusters.sums[cluster, m] = work.rest[m]
    clusters.form[cluster] = work.alone[0]
    clusters.logdet[cluster] = work.alone[1]
    clusters.outdated[cluster] = 0
    clusters.changes[cluster] += 1
    if is_worn(state, cluster):
        sum_anew(state, cluster)


@inlined
def sum_anew(state: MixtureState, cluster: int) -> None:
    """Sum a cluster's statistics from its members."""
    clusters = state.clusters
    sum_members(state.labels, cluster, -1, state.lent, clusters.sums[cluster])
    clusters.peak[cluster] = largest(clusters.sums[cluster], state.local.b.shape[1])
    clusters.changes[cluster] = 0
    evaluate(state, cluster)


@inlined
def open_cluster(state: MixtureState) -> int:
    """Put the lowest free row to use."""
    used, count = state.clusters.used, state.clusters.n_used
    cluster = 0
    while cluster < count[0] and used[cluster] == cluster:
        cluster += 1
    for n in range(count[0], cluster, -1):
        used[n] = used[n - 1]
    used[cluster] = cluster
    count[0] += 1
    return cluster


@inlined
def dissolve(state: MixtureState, cluster: int) -> None:
    """Free the row of a cluster that has no active member, with what removed agents left in it."""
    clusters = state.clusters
    if clusters.removed[cluster] > 0:
        for j in range(state.labels.shape[0]):
            if state.labels[j] == cluster:
                state.labels[j] = -1 - j
    clusters.sums[cluster] = 0.0
    clusters.form[cluster] = 0.0
    clusters.logdet[cluster] = 0.0
    clusters.peak[cluster] = 0.0
    clusters.changes[cluster] = 0
    clusters.outdated[cluster] = 0
    clusters.removed[cluster] = 0
    found = 0
    for n in range(clusters.n_used[0]):
        clusters.used[found] = clusters.used[n]
        found += clusters.used[n] != cluster
    clusters.n_used[0] = found
