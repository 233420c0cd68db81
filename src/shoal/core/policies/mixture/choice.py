"""The arm that an agent chooses: by every cluster that it may belong to, with the agent in it."""

import math

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_row, back_substitute
from shoal.core.policies.mixture.clusters import count_members
from shoal.core.policies.mixture.evidence import NONE, refresh, weigh
from shoal.core.policies.mixture.kernels import (
    best_arm_of_mixture,
    factor_packed,
    factor_with_base,
    predict,
    trace_of_inverse,
)
from shoal.core.policies.mixture.members import raw_of, soften_cluster
from shoal.core.policies.mixture.state import (
    AGENT,
    KNOWN,
    NORM,
    PULLS_SEEN,
    MixtureState,
    Pool,
    base_of,
    is_scattered,
    lift_of,
    noise_of,
    scatter_of,
)
from shoal.core.policy.clicks import INTERCEPT, weight_of_pending
from shoal.core.policy.steps import Pending, step
from shoal.core.types import Matrix, Vector

LEAST_SHARE = 1e-3
"""Probability from which on a cluster counts in the choice."""
BARE = -1.0
"""In place of the width's factor, squared: no bonuses, and nothing of what is pending."""
COMPANY = 10.0
"""Others in a cluster at which half of the ridge bonus counts: an agent alone does not pay for everyone."""


@step("select", MixtureState)
def select(state: MixtureState, agent: int, arms: Matrix, t: int) -> int:
    work = state.pool.scratch
    # In units of the noise, and by the agent's own clock: what others do is no reason to explore more.
    within = state.common.alpha**2 * noise_of(state.pool.model) * math.log(state.local.pulls[agent] + math.e)
    count = factor_components(state, agent, within)
    return best_arm_of_mixture(
        work.L, work.y, work.shares, work.hidden, count, arms, within, state.spread**2,
        state.pool.model.slopes, work.lanes, state.common.scored,
    )  # fmt: skip


@step("foresee", MixtureState)
def foresee(state: MixtureState, agent: int, x: Vector) -> tuple[float, float]:
    work, model = state.pool.scratch, state.pool.model
    if state.looked[PULLS_SEEN] == 0.0:  # arms have no unit yet: this one has the mean square of its own
        return 0.0, ((1.0 if has_slope(x, model.slopes) else 0.0) + INTERCEPT**2) / model.ridge
    refresh(state.pool, NONE)  # in a round of several pulls, clusters may lack those before this one
    count = factor_components(state, agent, BARE)
    mean, within, between, total = 0.0, 0.0, 0.0, 0.0
    for c in range(count):  # averages over the models so far (West 1979)
        m, v = predict(work.L[c], work.y[c], x, work.part)
        total += work.shares[c]
        share, offset = work.shares[c] / total, m - mean
        mean += share * offset
        within += share * (v - within)
        between = (1.0 - share) * (between + share * offset * offset)
    return mean, within + between


@inlined
def has_slope(x: Vector, slopes: int) -> bool:
    """Whether an arm is more than an intercept."""
    found = False
    for m in range(slopes):
        found = found or x[m] != 0.0
    return found


@compiled
def factor_components(state: MixtureState, agent: int, within: float) -> int:
    """Factor the clusters that count in the agent's choice, with the agent in them; count them.

    Their probabilities are left in `scratch.shares`, their ridge bonuses in `scratch.hidden`.
    """
    pool, clusters, work = state.pool, state.pool.clusters, state.pool.scratch
    count, found = weigh(pool, agent, state.local.pulls[agent]), 0
    for n in range(count + 1):
        if work.chances[n] < LEAST_SHARE:
            continue
        k = clusters.used[n] if n < count else NONE
        L, y = work.L[found], work.y[found]
        factor_component(pool, agent, k, L, y)
        if within != BARE and state.common.pending.total[0] > 0:
            weight = weight_of_pending(state.common, state.local, agent)
            widen(pool, state.common.pending, weight, state.common.lends[agent], agent, k, L, y)
        work.shares[found] = work.chances[n]
        work.hidden[found] = 0.0
        if within != BARE and state.ridge_bonus > 0.0 and k != NONE:
            work.hidden[found] = hidden_by_ridge(state, agent, k, within)
        found += 1
    return found


@inlined
def factor_component(pool: Pool, agent: int, k: int, L: Matrix, y: Vector) -> None:
    """Factor a cluster, or a new one, with the agent in it, after `weigh`."""
    clusters, work, ridge, base = pool.clusters, pool.scratch, pool.model.prior[0], base_of(pool.model)
    weight, raw, own = pool.model.weights[agent], raw_of(pool, agent), pool.members.labels[agent, AGENT]
    # With scatter, what the others know is a prior for the agent's own parameter: softened sums, then its
    # own samples in full. Without, all samples are of one parameter and simply add.
    if is_scattered(pool.model):
        others_of(pool, own, k)
        if k != own and k + 1 < work.softened.shape[0]:
            remember_softened(pool, k + 1, L, y)
        else:
            soften_cluster(pool, work.total, work.data, L, y)
        add_row(weight, raw, work.data)
        factor_packed(work.data, 0.0, L, y)
    else:
        for m in range(work.total.shape[0]):
            work.total[m] = 0.0 if k != NONE and k == own else weight * raw[m]  # there already
        if k != NONE:
            add_row(1.0, clusters.sums[k], work.total)
        factor_with_base(work.total, ridge, base, L, y)


@inlined
def remember_softened(pool: Pool, row: int, L: Matrix, y: Vector) -> None:
    """Leave `scratch.total`, softened, in `scratch.data`; computed only if it is not what it was last time.

    From one choice to the next most clusters stay as they are, and comparing sums is far cheaper than this.
    """
    work, ridge = pool.scratch, pool.model.prior[0]
    kappa, lift = scatter_of(pool.model), lift_of(pool.model)
    source, size = work.softened_from[row], work.total.shape[0]
    is_same = source[size] == ridge and source[size + 1] == kappa and source[size + 2] == lift
    m = 0
    while is_same and m < size:
        is_same = source[m] == work.total[m]
        m += 1
    if not is_same:
        soften_cluster(pool, work.total, work.softened[row], L, y)
        for m in range(size):
            source[m] = work.total[m]
        source[size] = ridge
        source[size + 1] = kappa
        source[size + 2] = lift
    for m in range(size):
        work.data[m] = work.softened[row, m]


@inlined
def others_of(pool: Pool, own: int, k: int) -> None:
    """Leave the sums of cluster k, or of a new one, without the agent in `scratch.total`, after `weigh`."""
    work = pool.scratch
    for m in range(work.total.shape[0]):
        work.total[m] = 0.0 if k == NONE else (work.rest[m] if k == own else pool.clusters.sums[k, m])


@inlined
def hidden_by_ridge(state: MixtureState, agent: int, k: int, within: float) -> float:
    """Factor of ‖A⁻¹x‖² in the bonus of a cluster: how much its ridge may hide of an agent's parameter."""
    clusters, ridge = state.pool.clusters, state.pool.model.prior[0]
    others = count_members(clusters, k) - (1 if k == state.pool.members.labels[agent, AGENT] else 0)
    # The larger of all clusters' and its own: a cluster that knows few directions looks small.
    size = max(state.scale[0], clusters.scale[k, NORM] / max(clusters.scale[k, KNOWN], 1.0))
    size *= others / (others + COMPANY)
    # ζ xᵀA⁻¹x has ζ λ ‖A⁻¹x‖² of this in it already
    return float(max(0.0, ridge * (state.ridge_bonus**2 * size * ridge - within)))


@compiled
def widen(
    pool: Pool, pending: Pending, weight: float, lends: bool, agent: int, k: int, L: Matrix, y: Vector
) -> None:
    """Let what a model waits for narrow its width: its factor takes in pending pulls, its estimate stays.

    Pulls of those who have no cluster count by the probability of being together with them.
    """
    model, clusters, work, own = pool.model, pool.clusters, pool.scratch, pool.members.labels[agent, AGENT]
    if clusters.waiting[0] + pending.counts[agent] + (clusters.waiting[1 + k] if k != NONE else 0) == 0:
        return
    members, theta = 0, work.part
    for n in range(clusters.n_used[0]):
        members += count_members(clusters, clusters.used[n])
    company = count_members(clusters, k) if k != NONE else 1
    share = company / (members + (0 if k != NONE else 1) + math.exp(model.log_concentration))
    others_of(pool, own, k)
    for m in range(pending.sums.shape[1]):
        lone, theirs, mine = clusters.pending[0, m], 0.0, pending.sums[agent, m]
        if own < 0 and lends:
            lone -= mine
        if k != NONE:
            theirs = clusters.pending[1 + k, m] - (mine if k == own else 0.0)
        work.total[m] += weight * (theirs + share * lone)
    # The estimate is kept aside: pending pulls have no rewards yet, and would pull it towards 0.
    back_substitute(L, y, theta)
    soften_cluster(pool, work.total, work.data, L, y)
    add_row(model.weights[agent], raw_of(pool, agent), work.data)
    for m in range(pending.sums.shape[1]):
        work.data[m] += weight * pending.sums[agent, m]
    factor_packed(work.data, 0.0, L, y)
    for row in range(y.shape[0]):  # so that L⁻ᵀy is the estimate as it was
        value = 0.0
        for m in range(row, y.shape[0]):
            value += L[m, row] * theta[m]
        y[row] = value


@compiled
def measure(pool: Pool, turn: int) -> float:
    """Compute how large the estimate of the cluster whose turn it is is, and in how many directions known.

    Returns the size of a parameter's entries, squared, over all clusters.
    """
    clusters, work, ridge = pool.clusters, pool.scratch, pool.model.prior[0]
    count, slopes = clusters.n_used[0], pool.model.slopes
    if count == 0:
        return 0.0
    k, L, y, z = clusters.used[turn % count], work.L[0], work.y[0], work.y[1]
    factor_with_base(clusters.sums[k], ridge, base_of(pool.model), L, y)
    norm, unknown = 0.0, trace_of_inverse(L, slopes, z)
    back_substitute(L, y, y)
    for m in range(slopes):
        norm += y[m] * y[m]
    clusters.scale[k, NORM] = norm
    clusters.scale[k, KNOWN] = slopes - ridge * unknown
    norms, known = 0.0, 1.0
    for n in range(count):
        members = count_members(clusters, clusters.used[n])
        norms += members * clusters.scale[clusters.used[n], NORM]
        known += members * clusters.scale[clusters.used[n], KNOWN]
    return norms / known
