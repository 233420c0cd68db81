"""Features of agents: those described alike are more probably in one cluster, as far as that proves right.

The probability of a cluster is multiplied by `[p(z | cluster) / p(z)]^τ`, z being the agent's features. Each
feature is Gaussian around its cluster's mean; its variances within clusters and between them follow from who
is in which cluster now. A feature that does not differ between clusters says nothing. The *temper* τ
is the one under which features would have foretold best which clusters explain the rewards, so that useless
features, or the same one given twice, cost nothing.
"""

import math

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.policies.mixture.clusters import count_members
from shoal.core.policies.mixture.members import cluster_of, is_ghost
from shoal.core.policies.mixture.state import AGENT, BETWEEN, CENTRE, WITHIN, Clusters, Model, Pool
from shoal.core.types import Matrix, Vector

TEMPER_GRID = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
"""Tempers to choose from."""
PRIOR_COUNT = 4.0
"""Agents, as different as all are, that the estimate of a variance within clusters starts from."""
NEGLIGIBLE = 1e-9
"""Share of a feature's variance that must lie between clusters for it to say anything."""


@inlined
def temper_of(model: Model) -> float:
    """τ, the temper that holds now: 1 unless the votes say otherwise."""
    best, found = 1.0, -math.inf
    for g in range(len(TEMPER_GRID)):
        value = model.temper_tally[g] - (1.0 - TEMPER_GRID[g])
        if value > found:
            found = value
            best = TEMPER_GRID[g]
    return best


@compiled
def measure_features(clusters: Clusters, out: Matrix) -> None:
    """Mean of each feature, its variance within clusters and between them, as `MixtureScratch.variances`."""
    profiles = clusters.profiles
    for j in range(out.shape[1]):
        n, used, squares, mean, within, between = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for m in range(clusters.n_used[0]):
            k = clusters.used[m]
            count = profiles.counts[k, j]
            if count > 0.0:
                n += count
                used += 1.0
                squares += count * count
                mean += (profiles.means[k, j] - mean) * (count / n)
                within += profiles.squares[k, j]
        for m in range(clusters.n_used[0]):
            k = clusters.used[m]
            between += profiles.counts[k, j] * (profiles.means[k, j] - mean) ** 2
        out[CENTRE, j] = mean
        out[WITHIN, j] = 0.0
        out[BETWEEN, j] = 0.0
        freedom = n - squares / max(n, 1.0)
        if used > 1.0 and freedom > 1.0:
            total = (within + between) / n
            out[WITHIN, j] = (within + PRIOR_COUNT * total) / (n - used + PRIOR_COUNT)
            excess = (between - (used - 1.0) * out[WITHIN, j]) / freedom
            if excess > NEGLIGIBLE * total:
                out[BETWEEN, j] = excess


@compiled
def heed_features(pool: Pool, member: int) -> None:
    """Add to the log-weights in `scratch.chances` what the member's features say of each cluster in use.

    The weights as they were are left in `scratch.gains`, and what was added, with temper 1, in
    `scratch.ratios`.
    """
    members, clusters, work = pool.members, pool.clusters, pool.scratch
    count, temper = clusters.n_used[0], temper_of(pool.model)
    for n in range(count + 1):
        work.gains[n] = work.chances[n]
        work.ratios[n] = 0.0
    if is_ghost(members, member):
        return
    measure_features(clusters, work.variances)
    own = cluster_of(members, member)
    for n in range(count):
        work.ratios[n] = log_ratio(pool, member, clusters.used[n], clusters.used[n] == own)
        work.chances[n] += temper * work.ratios[n]


@compiled
def log_ratio(pool: Pool, agent: int, cluster: int, is_own: bool) -> float:
    """log p(z | cluster) / p(z) of an agent's features, the agent not counted in it."""
    profiles, variances, found = pool.clusters.profiles, pool.scratch.variances, 0.0
    for j in range(variances.shape[1]):
        z, within, between = pool.members.features[agent, j], variances[WITHIN, j], variances[BETWEEN, j]
        if math.isnan(z) or between == 0.0:
            continue
        count, mean, centre = profiles.counts[cluster, j], profiles.means[cluster, j], variances[CENTRE, j]
        total = count * (mean - centre)
        if is_own:
            count -= 1.0
            total -= z - centre
        # The cluster's own mean is N(centre, between), known by `count` agents of its own.
        prior = within / between
        variance = within * (1.0 + 1.0 / (count + prior))
        distance = z - centre - total / (count + prior)
        found += 0.5 * (math.log((within + between) / variance) - distance * distance / variance)
        found += 0.5 * (z - centre) ** 2 / (within + between)
    return found


@compiled
def vote_on_temper(pool: Pool, votes: Matrix, agent: int) -> None:
    """Note under each temper how well an agent's features foretell which clusters its samples fit.

    After `weigh`. A vote replaces the agent's last one.
    """
    clusters, work, tally = pool.clusters, pool.scratch, pool.model.temper_tally
    own, count = pool.members.labels[agent, AGENT], clusters.n_used[0]
    for n in range(count):
        k = clusters.used[n]
        others = count_members(clusters, k) - (1 if k == own else 0)
        # A cluster of its own that the agent is in has no weight.
        work.priors[n] = math.log(max(others, 1)) if work.gains[n] > -math.inf else -math.inf
    work.priors[count] = pool.model.log_concentration
    for g in range(len(TEMPER_GRID)):
        # log Σ_k P_τ(k | z) e^{gain_k}: both sums are over weights n_k [p(z | k) / p(z)]^τ
        found = log_sum(work.gains, work.ratios, TEMPER_GRID[g], count + 1)
        found -= log_sum(work.priors, work.ratios, TEMPER_GRID[g], count + 1)
        tally[g] += found - votes[agent, g]
        votes[agent, g] = found


@inlined
def log_sum(logs: Vector, ratios: Vector, temper: float, count: int) -> float:
    """log Σ e^{logs + temper · ratios} over the first `count`, not all −inf."""
    top, total = -math.inf, 0.0
    for n in range(count):
        top = max(top, logs[n] + temper * ratios[n])
    for n in range(count):
        total += math.exp(logs[n] + temper * ratios[n] - top)
    return top + math.log(total)
