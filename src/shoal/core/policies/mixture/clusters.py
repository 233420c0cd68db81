"""Who is in which cluster: members join, leave and move; clusters open and dissolve."""

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_row, add_square
from shoal.core.policies.mixture.members import is_ghost, place_of
from shoal.core.policies.mixture.state import AGENT, CLUSTER, FORM, LOGDET, Clusters, Members, Pool
from shoal.core.policies.mixture.sums import add_lent, count_members, is_in_fresh, repair
from shoal.core.policy.steps import Pending
from shoal.core.types import Vector


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
        leave(members, clusters, pending, member)
        if count_members(clusters, own) == 0:
            dissolve(members, clusters, own)
        else:
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
def leave(members: Members, clusters: Clusters, pending: Pending, member: int) -> None:
    """Let a member be in no cluster; the sums are the caller's."""
    agent, kind = place_of(members, member)
    own = members.labels[agent, kind]
    clusters.sizes[own, kind] -= 1
    members.labels[agent, kind] = -1 - agent
    if not is_ghost(members, member):
        wait_in(clusters, pending, agent, own, -1)
        wait_in(clusters, pending, agent, -1, 1)


@compiled
def join(members: Members, clusters: Clusters, pending: Pending, member: int, cluster: int) -> None:
    """Let a member that is in no cluster be in this one."""
    agent, kind = place_of(members, member)
    if not is_ghost(members, member):
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
