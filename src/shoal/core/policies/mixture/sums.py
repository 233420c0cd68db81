"""Sums of what a cluster's members lend it, kept up to date, and summed anew before rounding shows."""

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_row
from shoal.core.policies.mixture.kernels import factor_packed, largest
from shoal.core.policies.mixture.members import cluster_of, ghost_of, place_of
from shoal.core.policies.mixture.state import (
    AGENT,
    CLUSTER,
    GHOST,
    SEEN,
    Clusters,
    Members,
    MixtureScratch,
    Pool,
)
from shoal.core.types import Vector

RESUM_AFTER = 256
"""Changes of a cluster (or as many as there are agents) after which it is summed anew."""
RESUM_STEP = 256
"""Members that a round looks at while a cluster is summed anew: with more, that is spread over rounds."""
LOSSY = 1e4
"""Sums that were once so many times larger than what a subtraction leaves are summed anew."""
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
def evaluate(clusters: Clusters, work: MixtureScratch, ridge: float, cluster: int) -> None:
    """Compute a cluster's evidence from its sums."""
    terms = factor_packed(clusters.sums[cluster], ridge, work.L[0], work.y[0])
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
    return bool(pool.clusters.peak[cluster] > LOSSY * max(pool.model.ridge, size))


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
    evaluate(clusters, pool.scratch, pool.model.ridge, cluster)
