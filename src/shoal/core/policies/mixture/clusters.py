"""Clusters: the sums of what their members lend them, and who is in which.

Sums are kept up to date as members come and go, and summed anew before rounding shows.
"""

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_row, add_square
from shoal.core.policies.mixture.kernels import factor_with_base, largest
from shoal.core.policies.mixture.members import cluster_of, ghost_of, is_ghost, place_of
from shoal.core.policies.mixture.profiles import clear_profile, note_features
from shoal.core.policies.mixture.state import (
    AGENT,
    CLUSTER,
    FORM,
    GHOST,
    LOGDET,
    SEEN,
    Clusters,
    Members,
    MixtureScratch,
    Pool,
    base_of,
)
from shoal.core.policy.steps import Pending
from shoal.core.types import Vector

RESUM_AFTER = 256
"""Changes of a cluster (or as many as there are agents) after which it is summed anew."""
RESUM_STEP = 256
"""Members that a round looks at while a cluster is summed anew: with more, that is spread over rounds."""
LOSSY = 1e4
"""Sums that were once this many times larger than what a subtraction leaves are summed anew."""
NOBODY = -1
"""In place of a member."""


@inlined
def count_members(clusters: Clusters, cluster: int) -> int:
    """Agents and ghosts of a cluster."""
    count = clusters.sizes[cluster, AGENT]
    if clusters.sizes.shape[1] > GHOST:
        count += clusters.sizes[cluster, GHOST]
    return int(count)


@inlined
def evaluate(clusters: Clusters, work: MixtureScratch, ridge: float, base: float, cluster: int) -> None:
    """Compute a cluster's evidence from its sums."""
    terms = factor_with_base(clusters.sums[cluster], ridge, base, work.L[0], work.y[0])
    clusters.form[cluster], clusters.logdet[cluster] = terms
    clusters.outdated[cluster] = 0


@compiled
def add_lent(members: Members, clusters: Clusters, member: int, sign: float) -> None:
    """Add what a member lends to its cluster's sums, or take it off."""
    at = place_of(members, member)
    cluster, lent = members.labels[at], members.lent[at]
    add_row(sign, lent, clusters.sums[cluster])
    note_change(clusters, cluster)
    if is_in_fresh(clusters, cluster, member):
        add_row(sign, lent, clusters.fresh)


@inlined
def note_change(clusters: Clusters, cluster: int) -> None:
    """Note that a cluster's sums have changed."""
    d = clusters.sums.shape[1] - clusters.pending.shape[1]
    clusters.changes[cluster] += 1
    clusters.outdated[cluster] = 1
    clusters.peak[cluster] = max(clusters.peak[cluster], largest(clusters.sums[cluster], d))


@inlined
def take_out(pool: Pool, member: int, cluster: int) -> None:
    """Leave a cluster's sums without the member's in `scratch.rest`; subtract where that loses little."""
    clusters, rest = pool.clusters, pool.scratch.rest
    lent = pool.members.lent[place_of(pool.members, member)]
    # O(d²) where nothing is lost; summing the other members anew takes O(N d²).
    for m in range(rest.shape[0]):
        rest[m] = clusters.sums[cluster, m] - lent[m]
    if is_lossy(pool, cluster, rest):
        sum_lent(pool.members, cluster, member, rest)


@inlined
def is_lossy(pool: Pool, cluster: int, left: Vector) -> bool:
    """Whether a cluster's sums were once so large that their rounding shows in what is left of them."""
    size = largest(left, pool.scratch.y.shape[1])
    return bool(pool.clusters.peak[cluster] > LOSSY * max(pool.model.prior[0], size))


@compiled
def sum_lent(members: Members, cluster: int, left_out: int, out: Vector) -> None:
    """Sum what the members of a cluster, but one, lend."""
    out[:] = 0.0
    row, column = place_of(members, left_out)
    n, kinds = members.labels.shape
    for kind in range(kinds):
        for i in range(n):
            if members.labels[i, kind] == cluster and not (i == row and kind == column):
                add_row(1.0, members.lent[i, kind], out)


# A cluster with many members is summed anew over several rounds


@compiled
def repair(pool: Pool, cluster: int) -> None:
    """Sum a cluster anew if rounding may have piled up in its sums."""
    clusters, n = pool.clusters, pool.members.labels.shape[0]
    if is_lossy(pool, cluster, clusters.sums[cluster]):
        sum_anew(pool, cluster)
    elif clusters.changes[cluster] >= max(RESUM_AFTER, n) and clusters.resummed[CLUSTER] < 0:
        clusters.resummed[CLUSTER] = cluster
        clusters.resummed[SEEN] = 0
        clusters.fresh[:] = 0.0
        resum(pool)


@compiled
def resum(pool: Pool) -> None:
    """Look at some more members of the cluster that is being summed anew; at the end, take the new sums.

    At once for as many agents as that costs nothing; with more, a round need not wait for all of them.
    """
    members, clusters = pool.members, pool.clusters
    cluster, first = clusters.resummed[CLUSTER], clusters.resummed[SEEN]
    last = ghost_of(members, 0)
    if clusters.sizes.shape[1] > GHOST and (clusters.sizes[cluster, GHOST] > 0 or first > last):
        last = members.labels.size
    # Members that change meanwhile correct `fresh` themselves if their turn is over (`is_in_fresh`).
    stop = min(first + RESUM_STEP, last)
    for member in range(first, stop):
        if cluster_of(members, member) == cluster:
            add_row(1.0, members.lent[place_of(members, member)], clusters.fresh)
    clusters.resummed[SEEN] = stop
    if stop == last:
        for m in range(clusters.fresh.shape[0]):
            clusters.sums[cluster, m] = clusters.fresh[m]
        settle(pool, cluster)


@inlined
def is_in_fresh(clusters: Clusters, cluster: int, member: int) -> bool:
    """Whether a member's cluster is being summed anew and its own turn in that is over."""
    return bool(clusters.resummed[CLUSTER] == cluster and member < clusters.resummed[SEEN])


@compiled
def sum_anew(pool: Pool, cluster: int) -> None:
    """Sum a cluster's statistics from its members, at once."""
    sum_lent(pool.members, cluster, NOBODY, pool.clusters.sums[cluster])
    settle(pool, cluster)


@inlined
def settle(pool: Pool, cluster: int) -> None:
    """Note that a cluster's sums are fresh."""
    clusters = pool.clusters
    clusters.peak[cluster] = largest(clusters.sums[cluster], pool.scratch.y.shape[1])
    clusters.changes[cluster] = 0
    if clusters.resummed[CLUSTER] == cluster:
        clusters.resummed[CLUSTER] = -1
    evaluate(clusters, pool.scratch, pool.model.prior[0], base_of(pool.model), cluster)


# Who is in which cluster


@compiled
def move(pool: Pool, pending: Pending, member: int, drawn: int) -> None:
    """Put a member into the cluster at position `drawn` of those in use, or into a new one, after `weigh`."""
    members, clusters, work = pool.members, pool.clusters, pool.scratch
    at = place_of(members, member)
    own = members.labels[at]
    is_new = drawn == clusters.n_used[0]
    cluster = -1 if is_new else clusters.used[drawn]
    # `weigh` has left the sums and the evidence of the cluster without the member: nothing is computed again.
    if own >= 0 and cluster != own:
        if is_in_fresh(clusters, own, member):
            add_row(-1.0, members.lent[at], clusters.fresh)
        if leave(members, clusters, pending, member):
            for m in range(work.rest.shape[0]):
                clusters.sums[own, m] = work.rest[m]
            clusters.form[own] = work.alone[FORM]
            clusters.logdet[own] = work.alone[LOGDET]
            clusters.outdated[own] = 0
            clusters.changes[own] += 1
            repair(pool, own)
    if is_new:
        cluster = open_cluster(clusters)
    if cluster != own or is_new:
        join(members, clusters, pending, member, cluster)
    clusters.form[cluster] = work.forms[drawn]
    clusters.logdet[cluster] = work.logdets[drawn]
    clusters.outdated[cluster] = 0
    repair(pool, cluster)


@compiled
def leave(members: Members, clusters: Clusters, pending: Pending, member: int) -> bool:
    """Let a member be in no cluster; say whether its cluster has others, whose sums are the caller's."""
    agent, kind = place_of(members, member)
    own = members.labels[agent, kind]
    clusters.sizes[own, kind] -= 1
    members.labels[agent, kind] = -1 - agent
    if not is_ghost(members, member):
        note_features(members, clusters.profiles, agent, own, -1.0)
        wait_in(clusters, pending, agent, own, -1)
        wait_in(clusters, pending, agent, -1, 1)
    if count_members(clusters, own) > 0:
        return True
    dissolve(members, clusters, own)
    return False


@compiled
def join(members: Members, clusters: Clusters, pending: Pending, member: int, cluster: int) -> None:
    """Let a member that is in no cluster be in this one."""
    agent, kind = place_of(members, member)
    if not is_ghost(members, member):
        note_features(members, clusters.profiles, agent, cluster, 1.0)
        wait_in(clusters, pending, agent, -1, -1)
        wait_in(clusters, pending, agent, cluster, 1)
    clusters.sizes[cluster, kind] += 1
    members.labels[agent, kind] = cluster
    members.heeded[agent, kind] = clusters.alarms[cluster]  # those of before are not about it
    add_lent(members, clusters, member, 1.0)


@inlined
def open_cluster(clusters: Clusters) -> int:
    """Put the lowest free row to use."""
    used, count = clusters.used, clusters.n_used
    # The lowest, not the last freed: labels then depend on the clusters alone, not on their history.
    cluster = 0
    while cluster < count[0] and used[cluster] == cluster:
        cluster += 1
    for n in range(count[0], cluster, -1):
        used[n] = used[n - 1]
    used[cluster] = cluster
    count[0] += 1
    return cluster


@compiled
def dissolve(members: Members, clusters: Clusters, cluster: int) -> None:
    """Free the row of a cluster that has no member left, with what removed agents left in it."""
    if clusters.removed[cluster] > 0:
        for j in range(members.labels.shape[0]):
            if members.labels[j, AGENT] == cluster:
                members.labels[j, AGENT] = -1 - j
    clusters.sums[cluster] = 0.0
    clusters.form[cluster] = 0.0
    clusters.logdet[cluster] = 0.0
    clear_profile(clusters.profiles, cluster)
    clusters.scale[cluster] = 0.0
    clusters.peak[cluster] = 0.0
    clusters.changes[cluster] = 0
    clusters.outdated[cluster] = 0
    clusters.removed[cluster] = 0
    clusters.cusum[cluster] = 0.0
    clusters.alarms[cluster] = 0
    if clusters.recent.shape[0] > 0:
        clusters.recent[cluster] = 0.0
    if clusters.resummed[CLUSTER] == cluster:
        clusters.resummed[CLUSTER] = -1
    found = 0
    for n in range(clusters.n_used[0]):
        clusters.used[found] = clusters.used[n]
        found += clusters.used[n] != cluster
    clusters.n_used[0] = found


# Pending pulls of a cluster's agents


@inlined
def wait_in(clusters: Clusters, pending: Pending, agent: int, cluster: int, sign: int) -> None:
    """Count the pending pulls of an agent among those of a cluster (none: negative), or no longer."""
    row = 1 + max(cluster, -1)
    if pending.counts[agent] > 0:
        clusters.waiting[row] += sign * pending.counts[agent]
        add_row(float(sign), pending.sums[agent], clusters.pending[row])
        if clusters.waiting[row] == 0:
            clusters.pending[row] = 0.0  # rounding must not outlive the pulls


@inlined
def wait_for(pool: Pool, agent: int, x: Vector, sign: int) -> None:
    """Count one pending pull of an agent in its cluster, or no longer."""
    clusters, row = pool.clusters, 1 + max(pool.members.labels[agent, AGENT], -1)
    clusters.waiting[row] += sign
    add_square(clusters.pending[row], x, float(sign))
    if clusters.waiting[row] == 0:
        clusters.pending[row] = 0.0
