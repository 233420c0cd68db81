"""Clusters of a mixture: whose samples they sum, how probable each is for an agent, who moves where.

A *member* of a cluster is an agent, numbered 0, …, N−1, or the ghost of one, numbered N + that agent: what it
was before it changed (see `shoal.policies.drift`). A cluster's sums are those of what its members lend it.
"""

import math
from typing import Annotated, NamedTuple

from shoal.fields import (
    AGENTS,
    CLUSTERS,
    COUNT,
    DIM,
    PACKED,
    TRIANGLE,
    Size,
    derived,
    kept,
    scratch,
    setting,
)
from shoal.jit.compiled import compiled, inlined, spliced
from shoal.kernels.linalg import add_row, add_square
from shoal.kernels.mixture import factor_packed, largest, normalise, soften_packed
from shoal.kernels.ucb import LANES
from shoal.policies.steps import Pending
from shoal.types import Integers, Matrix, Tensor, Vector

AGENT, GHOST = 0, 1
"""Kinds of members: member m is of kind m // N, in row m % N."""
LEAST_SHARE = 1e-3
"""Probability from which on a cluster counts in the choice."""
RESUM_AFTER = 256
"""Changes of a cluster (or as many as there are agents) after which it is summed anew."""
RESUM_STEP = 256
"""Members that a round looks at while a cluster is summed anew: with more, that is spread over rounds."""
LOSSY = 1e4
"""Sums that were once so many times larger than what a subtraction leaves are summed anew."""


KINDS = Size("kinds", grows=False)
"""Kinds of members that there are: 2 where agents may change."""
GRID = Size("grid", grows=False)
"""Scatters to choose from; one where it is given."""
SOFT = Size("soft")
"""Agents where what they lend may differ from what they have, else 0."""
CHANGING = Size("changing")
"""Agents that may change: all, or none."""
MOVING = Size("moving")
"""Clusters that may move: all, or none."""
COMPONENTS = Size("components")
"""Clusters that may count in a choice: a cluster with a share of LEAST_SHARE each."""


class Model(NamedTuple):
    """What evidence is measured with."""

    ridge: Annotated[float, setting()]
    log_concentration: Annotated[float, setting()]
    softens: Annotated[bool, setting()]  # whether the scatter can be other than 0
    noise: Annotated[Vector, kept(2, low=0.0)]  # sum and count whose ratio is the noise variance
    grid: Annotated[Vector, derived(GRID)]  # scatters to choose from
    position: Annotated[Integers, kept(1, low=0, below=GRID)]  # the one that holds now


class Members(NamedTuple):
    """A row for each agent and, where agents may change, another for its ghost."""

    raw: Annotated[Tensor, kept(SOFT, KINDS, PACKED)]  # packed Σ x xᵀ and b, where not lent as they are
    lent: Annotated[Tensor, kept(AGENTS, KINDS, PACKED)]  # what of them is lent
    form: Annotated[Matrix, derived(AGENTS, KINDS)]  # bᵀA⁻¹b of that
    logdet: Annotated[Matrix, derived(AGENTS, KINDS)]  # log det A of that
    labels: Annotated[Integers, kept(AGENTS, KINDS, low=0, below=CLUSTERS, own=True)]  # −1 − row: in none
    lent_at: Annotated[Integers, kept(AGENTS, KINDS, low=0, below=GRID)]  # scatter that `lent` is for
    heeded: Annotated[Integers, kept(AGENTS, KINDS, **COUNT)]  # alarms of its cluster that it has heeded


class Clusters(NamedTuple):
    """One row per cluster; rows in use are listed in `used`. There are as many rows as members."""

    sums: Annotated[Matrix, kept(CLUSTERS, PACKED)]  # packed Σ x xᵀ and b that members lend, removed ones too
    form: Annotated[Vector, kept(CLUSTERS, low=0.0)]  # bᵀA⁻¹b
    logdet: Annotated[Vector, kept(CLUSTERS)]  # log det A
    outdated: Annotated[Integers, kept(CLUSTERS, low=0, below=2)]  # 1 while the two above lack a sample
    sizes: Annotated[Integers, derived(CLUSTERS, KINDS)]  # members; of the agents, active ones
    removed: Annotated[Integers, derived(CLUSTERS)]  # agents that were removed, but not withdrawn
    peak: Annotated[Vector, kept(CLUSTERS, low=0.0)]  # largest entry of the sums since they were last summed
    changes: Annotated[Integers, kept(CLUSTERS, **COUNT)]  # changes since then
    scale: Annotated[Matrix, kept(CLUSTERS, 2)]  # ‖θ̂‖² and d − λ tr A⁻¹, computed now and then
    pending: Annotated[Matrix, kept(CLUSTERS + 1, TRIANGLE)]  # of pending pulls, at 1 + cluster; 0: in none
    waiting: Annotated[Integers, kept(CLUSTERS + 1, **COUNT)]  # how many
    recent: Annotated[Matrix, kept(MOVING, PACKED)]  # packed sums of the latest samples, fading
    cusum: Annotated[Vector, kept(CLUSTERS, low=0.0)]  # evidence that the cluster has moved
    alarms: Annotated[Integers, kept(CLUSTERS, **COUNT)]  # times that it was found to have
    used: Annotated[Integers, derived(CLUSTERS)]  # rows in use, in order
    n_used: Annotated[Integers, derived(1)]  # how many
    resummed: Annotated[Integers, kept(2, low=-1, below=CLUSTERS + 1)]  # cluster being summed; members seen
    fresh: Annotated[Vector, kept(PACKED)]  # its sum so far


class MixtureScratch(NamedTuple):
    """Work space."""

    total: Annotated[Vector, scratch(PACKED)]  # packed sums
    rest: Annotated[Vector, scratch(PACKED)]  # packed sums of a member's cluster without it
    data: Annotated[Vector, scratch(PACKED)]  # packed sums, softened
    part: Annotated[Vector, scratch(PACKED)]  # packed sums of some of an agent's samples
    L: Annotated[Tensor, scratch(COMPONENTS, DIM, DIM)]  # factors
    y: Annotated[Matrix, scratch(COMPONENTS, DIM)]  # L⁻¹ b
    inverse: Annotated[Tensor, scratch(2, DIM, DIM)]
    lanes: Annotated[Matrix, scratch(DIM + 7, LANES)]  # for the scores
    chances: Annotated[Vector, scratch(CLUSTERS + 1)]  # probability of each cluster in use, then of a new one
    shares: Annotated[Vector, scratch(CLUSTERS + 1)]  # those that count in the choice
    hidden: Annotated[Vector, scratch(CLUSTERS + 1)]  # their ridge bonuses
    forms: Annotated[Vector, scratch(CLUSTERS + 1)]  # bᵀA⁻¹b of the cluster with the member
    logdets: Annotated[Vector, scratch(CLUSTERS + 1)]  # its log det A
    alone: Annotated[Vector, scratch(2)]  # the same of the cluster without the member


class Pool(NamedTuple):
    """Members and their clusters."""

    model: Model
    members: Members
    clusters: Clusters
    scratch: MixtureScratch


@inlined
def count_members(clusters: Clusters, cluster: int) -> int:
    """Agents and ghosts of a cluster."""
    count = clusters.sizes[cluster, 0]
    if clusters.sizes.shape[1] > 1:
        count += clusters.sizes[cluster, 1]
    return int(count)


@spliced
def raw_of(pool: Pool, member: int) -> Vector:
    """Packed sums of a member's own samples; a view. Without scatter they are lent as they are."""
    kind, i = divmod(member, pool.members.labels.shape[0])
    found: Vector = pool.members.raw[i, kind] if pool.model.softens else pool.members.lent[i, kind]
    return found


@compiled
def lend(pool: Pool, member: int) -> None:
    """Compute what a member lends, and its evidence, from its own samples; clusters are the caller's."""
    model, members, work = pool.model, pool.members, pool.scratch
    kind, i = divmod(member, members.labels.shape[0])
    lent, L, y = members.lent[i, kind], work.L[0], work.y[0]
    if model.softens:
        soften_packed(members.raw[i, kind], 0.0, model.grid[model.position[0]], lent, L, y, work.inverse)
    terms = factor_packed(lent, model.ridge, L, y)
    members.form[i, kind] = terms[0]
    members.logdet[i, kind] = terms[1]
    members.lent_at[i, kind] = model.position[0]


@compiled
def refresh(pool: Pool, but: int) -> None:
    """Bring the evidence of all clusters but one up to date with their sums."""
    clusters, work = pool.clusters, pool.scratch
    for n in range(clusters.n_used[0]):
        k = clusters.used[n]
        if k != but and clusters.outdated[k]:
            evaluate(clusters, work, pool.model.ridge, k)


@inlined
def evaluate(clusters: Clusters, work: MixtureScratch, ridge: float, cluster: int) -> None:
    """Compute a cluster's evidence from its sums."""
    terms = factor_packed(clusters.sums[cluster], ridge, work.L[0], work.y[0])
    clusters.form[cluster] = terms[0]
    clusters.logdet[cluster] = terms[1]
    clusters.outdated[cluster] = 0


@compiled
def weigh(pool: Pool, member: int, samples: int) -> int:
    """Leave the probability of each cluster in use, and then of a new one, in `scratch.chances`; count them.

    The member is taken out of its own cluster first; `scratch.rest` and `scratch.alone` are what is left of
    it, `forms` and `logdets` what each cluster's evidence is with the member in it. Changes no more than
    that. `samples` is how many it has.
    """
    model, members, clusters, work = pool.model, pool.members, pool.clusters, pool.scratch
    kind, i = divmod(member, members.labels.shape[0])
    own, count, lent = members.labels[i, kind], clusters.n_used[0], members.lent[i, kind]
    form, logdet, ridge = members.form[i, kind], members.logdet[i, kind], model.ridge
    # Gaussian evidence of packed sums is precision·bᵀA⁻¹b − ½ log det A, up to terms that cancel: yᵀy is in
    # both hypotheses, and so never kept.
    precision = 0.5 * model.noise[1] / model.noise[0]
    prior = work.y.shape[1] * math.log(ridge)
    for n in range(count):
        k = clusters.used[n]
        others, form_k, logdet_k = count_members(clusters, k), clusters.form[k], clusters.logdet[k]
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
            # Leave-one-out: evidence for staying must not count the member's samples twice.
            take_out(pool, member, k)
            terms = factor_packed(work.rest, ridge, work.L[0], work.y[0])
            work.alone[0] = form_k = terms[0]
            work.alone[1] = logdet_k = terms[1]
        elif samples > 0:  # without samples only the cluster's size speaks
            for m in range(work.total.shape[0]):
                work.total[m] = clusters.sums[k, m] + lent[m]
            terms = factor_packed(work.total, ridge, work.L[0], work.y[0])
            work.forms[n] = terms[0]
            work.logdets[n] = terms[1]
        gain = precision * (work.forms[n] - form_k - form) - 0.5 * (
            work.logdets[n] - logdet_k - logdet + prior
        )
        work.chances[n] = gain + math.log(max(others, 1))
    work.forms[count] = form
    work.logdets[count] = logdet
    work.chances[count] = model.log_concentration
    normalise(work.chances, count + 1)
    return int(count)


@compiled
def log_evidence(pool: Pool, raw: Vector, scatter: float, agent: int) -> float:
    """Log evidence of samples with packed sums `raw`, as one agent's in place of this one, after `weigh`.

    The clusters are as they stand, the agent's own without it.
    """
    model, clusters, work, ridge = pool.model, pool.clusters, pool.scratch, pool.model.ridge
    own, count = pool.members.labels[agent, AGENT], clusters.n_used[0]
    precision = 0.5 * model.noise[1] / model.noise[0]
    prior = work.y.shape[1] * math.log(ridge)
    data, L, y = work.data, work.L[0], work.y[0]
    # Integrating out the agent's deviation from its cluster leaves softened sums and two terms of their own.
    scattered = soften_packed(raw, 0.0, scatter, data, L, y, work.inverse)
    terms = factor_packed(data, ridge, L, y)
    work.chances[count] = model.log_concentration + precision * terms[0] - 0.5 * (terms[1] - prior)
    n_others = 0
    for n in range(count):
        k = clusters.used[n]
        others, form, logdet = count_members(clusters, k), clusters.form[k], clusters.logdet[k]
        rest = clusters.sums[k]
        if k == own:
            others -= 1
            form, logdet, rest = work.alone[0], work.alone[1], work.rest
            if others == 0 and clusters.removed[k] == 0:
                work.chances[n] = -math.inf
                continue
        for m in range(data.shape[0]):
            work.total[m] = rest[m] + data[m]
        terms = factor_packed(work.total, ridge, L, y)
        gain = precision * (terms[0] - form) - 0.5 * (terms[1] - logdet)
        work.chances[n] = gain + math.log(max(others, 1))
        n_others += others
    found = normalise(work.chances, count + 1) - math.log(n_others + math.exp(model.log_concentration))
    return float(found + precision * scatter * scattered[0] - 0.5 * scattered[1])


@inlined
def take_out(pool: Pool, member: int, cluster: int) -> None:
    """Leave a cluster's sums without the member's in `scratch.rest`; subtract where that loses little."""
    clusters, rest, n = pool.clusters, pool.scratch.rest, pool.members.labels.shape[0]
    lent = pool.members.lent[member % n, member // n]
    # O(d²) where nothing is lost; summing the other members anew takes O(N d²).
    for m in range(rest.shape[0]):
        rest[m] = clusters.sums[cluster, m] - lent[m]
    if is_lossy(pool, cluster, rest):
        sum_lent(pool.members, cluster, member, rest)


@compiled
def sum_lent(members: Members, cluster: int, left_out: int, out: Vector) -> None:
    """Sum what the members of a cluster, but one, lend."""
    out[:] = 0.0
    n, kinds = members.labels.shape
    for kind in range(kinds):
        for i in range(n):
            if members.labels[i, kind] == cluster and kind * n + i != left_out:
                add_row(1.0, members.lent[i, kind], out)


@inlined
def is_lossy(pool: Pool, cluster: int, left: Vector) -> bool:
    """Whether a cluster's sums were once so large that their rounding shows in what is left of them."""
    size = largest(left, pool.scratch.y.shape[1])
    return bool(pool.clusters.peak[cluster] > LOSSY * max(pool.model.ridge, size))


@compiled
def add_lent(members: Members, clusters: Clusters, member: int, sign: float) -> None:
    """Add what a member lends to its cluster's sums, or take it off."""
    kind, i = divmod(member, members.labels.shape[0])
    cluster, lent = members.labels[i, kind], members.lent[i, kind]
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
def is_in_fresh(clusters: Clusters, cluster: int, member: int) -> bool:
    """Whether a member's cluster is being summed anew and its own turn in that is over."""
    return bool(clusters.resummed[0] == cluster and member < clusters.resummed[1])


@compiled
def move(pool: Pool, pending: Pending, member: int, drawn: int) -> None:
    """Put a member into the cluster at position `drawn` of those in use, or into a new one, after `weigh`."""
    members, clusters, work = pool.members, pool.clusters, pool.scratch
    kind, i = divmod(member, members.labels.shape[0])
    own = members.labels[i, kind]
    is_new = drawn == clusters.n_used[0]
    cluster = -1 if is_new else clusters.used[drawn]
    # `weigh` has left the sums and the evidence of the cluster without the member: nothing is computed again.
    if own >= 0 and cluster != own:
        if is_in_fresh(clusters, own, member):
            add_row(-1.0, members.lent[i, kind], clusters.fresh)
        leave(members, clusters, pending, member)
        if count_members(clusters, own) == 0:
            dissolve(members, clusters, own)
        else:
            for m in range(work.rest.shape[0]):
                clusters.sums[own, m] = work.rest[m]
            clusters.form[own] = work.alone[0]
            clusters.logdet[own] = work.alone[1]
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
    kind, i = divmod(member, members.labels.shape[0])
    own = members.labels[i, kind]
    clusters.sizes[own, kind] -= 1
    members.labels[i, kind] = -1 - i
    if kind == AGENT:
        wait_in(clusters, pending, i, own, -1)
        wait_in(clusters, pending, i, -1, 1)


@compiled
def join(members: Members, clusters: Clusters, pending: Pending, member: int, cluster: int) -> None:
    """Let a member that is in no cluster be in this one."""
    kind, i = divmod(member, members.labels.shape[0])
    if kind == AGENT:
        wait_in(clusters, pending, i, -1, -1)
        wait_in(clusters, pending, i, cluster, 1)
    clusters.sizes[cluster, kind] += 1
    members.labels[i, kind] = cluster
    members.heeded[i, kind] = clusters.alarms[cluster]  # those of before are not about it
    add_lent(members, clusters, member, 1.0)


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


@compiled
def repair(pool: Pool, cluster: int) -> None:
    """Sum a cluster anew if rounding may have piled up in its sums."""
    clusters, n = pool.clusters, pool.members.labels.shape[0]
    if is_lossy(pool, cluster, clusters.sums[cluster]):
        sum_anew(pool, cluster)
    elif clusters.changes[cluster] >= max(RESUM_AFTER, n) and clusters.resummed[0] < 0:
        clusters.resummed[0] = cluster
        clusters.resummed[1] = 0
        clusters.fresh[:] = 0.0
        resum(pool)


@compiled
def resum(pool: Pool) -> None:
    """Look at some more members of the cluster that is being summed anew; at the end, take the new sums.

    At once for as many agents as that costs nothing; with more, a round need not wait for all of them.
    """
    members, clusters, n = pool.members, pool.clusters, pool.members.labels.shape[0]
    cluster, first = clusters.resummed[0], clusters.resummed[1]
    last = n
    if clusters.sizes.shape[1] > 1 and (clusters.sizes[cluster, GHOST] > 0 or first > n):
        last = 2 * n
    # Members that change meanwhile correct `fresh` themselves if their turn is over (`is_in_fresh`).
    stop = min(first + RESUM_STEP, last)
    for position in range(first, stop):
        if members.labels[position % n, position // n] == cluster:
            add_row(1.0, members.lent[position % n, position // n], clusters.fresh)
    clusters.resummed[1] = stop
    if stop == last:
        for m in range(clusters.fresh.shape[0]):
            clusters.sums[cluster, m] = clusters.fresh[m]
        settle(pool, cluster)


@compiled
def sum_anew(pool: Pool, cluster: int) -> None:
    """Sum a cluster's statistics from its members, at once."""
    sum_lent(pool.members, cluster, pool.members.labels.size, pool.clusters.sums[cluster])
    settle(pool, cluster)


@inlined
def settle(pool: Pool, cluster: int) -> None:
    """Note that a cluster's sums are fresh."""
    clusters = pool.clusters
    clusters.peak[cluster] = largest(clusters.sums[cluster], pool.scratch.y.shape[1])
    clusters.changes[cluster] = 0
    if clusters.resummed[0] == cluster:
        clusters.resummed[0] = -1
    evaluate(clusters, pool.scratch, pool.model.ridge, cluster)


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
    if clusters.resummed[0] == cluster:
        clusters.resummed[0] = -1
    found = 0
    for n in range(clusters.n_used[0]):
        clusters.used[found] = clusters.used[n]
        found += clusters.used[n] != cluster
    clusters.n_used[0] = found
