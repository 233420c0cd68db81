"""Agents and clusters that change: when to forget what was learned of them.

An agent's last samples are kept one by one. If they are better explained on their own than together with what
came before, the agent has changed: it keeps the new samples, and the old ones stay behind as its ghost (see
`members`). A cluster whose members' latest samples predict the next one better than all of them do has moved:
its members' older samples lose half their weight.
"""

import math

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_packed, add_row, add_weighted, unpack
from shoal.core.policies.mixture.clusters import add_lent, join, leave, repair, take_out
from shoal.core.policies.mixture.evidence import NONE, log_evidence, refresh, weigh
from shoal.core.policies.mixture.kernels import factor_with_base, predict
from shoal.core.policies.mixture.members import (
    ghost_of,
    has_ghost,
    is_ghost,
    is_lent_as_known,
    lend,
    place_of,
    raw_of,
    soften_cluster,
    weighted,
)
from shoal.core.policies.mixture.state import (
    AGENT,
    CHANGES,
    GHOST,
    KNOWN_ERRORS,
    RECENT,
    TESTS,
    TO_TEND,
    Drift,
    MixtureState,
    Pool,
    base_of,
    can_change,
    lift_of,
    precision_of,
    scatter_of,
)
from shoal.core.statistics import solve_row
from shoal.core.types import Vector

RESIDUALS = 100.0
"""Errors in the estimate of the noise before anything is tested."""
EVERY = 2
"""Pulls of an agent between two tests for change."""
SPLITS = (24, 17, 12, 8, 5)
"""Numbers of its last samples before which an agent may be found to have changed."""
LEAST_BEFORE = 5
"""Samples there must be from before a change."""
LEAST_AFTER = 3
"""Samples there must be from after a change, when it is dated."""
SURE = 9.0
"""Log Bayes factor for a change from which on it is believed, where changes are rare."""
MEMORY = 1.5
"""Tests per agent over which the rate of changes is learned."""
MARGIN = 3.0
"""Nats short of the threshold by which samples must be less probable than average, to be tested at all."""
MOVED = 20.0
"""Nats by which a cluster's latest samples must predict better than all of them, for it to have moved."""
WINDOW = 16.0
"""Samples of each member that count as a cluster's latest."""
KEPT = 0.5
"""Weight that the older samples of a cluster's members keep when it has moved."""


@inlined
def watch(state: MixtureState, agent: int, x: Vector, reward: float) -> None:
    """Keep a sample, and how improbable it was; raise an alarm if it says that the cluster has moved."""
    pool, cluster = state.pool, state.pool.members.labels[agent, AGENT]
    cusum, improbable = pool.clusters.cusum, 0.5
    if cluster < 0 and not state.common.lends[agent] and is_noise_known(state):
        # It has no cluster to predict by: how improbable the sample was, by its own samples.
        weighted(pool, agent, pool.scratch.data)
        improbable = surprise(pool, pool.scratch.data, pool.model.prior[0], agent, x, reward)
    if cluster >= 0:
        if is_noise_known(state):
            improbable = improbability(pool, agent, x, reward)
            if state.upkeep[TO_TEND] > 0:
                cusum[cluster] = 0.0  # an alarm is still being heeded
            elif cusum[cluster] > MOVED:
                cusum[cluster] = 0.0
                pool.clusters.alarms[cluster] += 1
                state.upkeep[TO_TEND] = pool.members.labels.size
        note_latest(pool, agent, x, reward)
    remember(state.drift, agent, x, reward, improbable)


@inlined
def is_noise_known(state: MixtureState) -> bool:
    """Whether the noise is known, or estimated, well enough to call a sample improbable."""
    return bool(not state.learns_noise or state.looked[KNOWN_ERRORS] >= RESIDUALS)


# Agents that change


@inlined
def forget_if_changed(state: MixtureState, agent: int, t: int) -> None:
    """Test an agent for change when its turn comes; if it has changed, its past is no longer its own."""
    if can_change(state) and state.local.pulls[agent] % EVERY == 0 and is_noise_known(state):
        recent = find_change(state, agent)
        if recent >= 0:
            if state.common.lends[agent]:
                forget(state, agent, recent)
            else:
                drop_past(state, agent, recent)
            state.drift.forgot[agent] = t


@inlined
def remember(drift: Drift, agent: int, x: Vector, reward: float, improbable: float) -> None:
    """Keep a sample among an agent's last; the one that makes room for it counts as past."""
    d = x.shape[0]
    slot = (drift.newest[agent] + 1) % RECENT
    if drift.held[agent] == RECENT:
        add_packed(drift.past[agent], drift.ring[agent, slot, :d], drift.ring[agent, slot, d])
    else:
        drift.held[agent] += 1
    drift.newest[agent] = slot
    for m in range(d):
        drift.ring[agent, slot, m] = x[m]
    drift.ring[agent, slot, d] = reward
    drift.ring[agent, slot, d + 1] = improbable


@compiled
def add_last(drift: Drift, agent: int, first: int, stop: int, out: Vector) -> None:
    """Add an agent's samples `first`, …, `stop` − 1, counted backwards from the latest, to packed sums."""
    d = drift.ring.shape[2] - 2
    for back in range(first, stop):
        sample = drift.ring[agent, (drift.newest[agent] - back) % RECENT]
        add_packed(out, sample[:d], sample[d])


@compiled
def find_change(state: MixtureState, agent: int) -> int:
    """Number of an agent's last samples that a change came before; −1 if none is believed.

    Agents that do not lend must leave no trace: their tests say nothing of how often agents change.
    """
    pool, drift, pulls = state.pool, state.drift, state.local.pulls[agent]
    counts, kept = state.common.lends[agent], drift.held[agent]
    threshold = threshold_of(drift, counts)
    if not is_suspect(drift, agent, threshold - MARGIN):
        return -1
    refresh(pool, NONE)
    weigh(pool, agent, pulls)
    weighted(pool, agent, pool.scratch.part)
    whole = log_evidence(pool, pool.scratch.part, scatter_of(pool.model), lift_of(pool.model), agent)
    best, found = -math.inf, -1
    for s in range(len(SPLITS)):
        if SPLITS[s] <= kept and pulls - SPLITS[s] >= LEAST_BEFORE:
            gain = split_gain(pool, drift, agent, SPLITS[s]) - whole
            if gain > best:
                best = gain
                found = s
    if not best > threshold:
        return -1
    if counts:
        drift.rate[CHANGES] += 1.0
    # date it: between the next longer and the next shorter split that was tried
    longest = min(kept, pulls - LEAST_BEFORE) if found == 0 else min(kept, SPLITS[found - 1] - 1)
    shortest = LEAST_AFTER if found == len(SPLITS) - 1 else SPLITS[found + 1] + 1
    best, recent = -math.inf, SPLITS[found]
    for length in range(shortest, longest + 1):
        gain = split_gain(pool, drift, agent, length)
        if gain > best:
            best = gain
            recent = length
    return int(recent)


@inlined
def threshold_of(drift: Drift, counts: bool) -> float:
    """Log Bayes factor that a change must exceed to be believed; note another test if it `counts`."""
    tests = MEMORY * drift.held.shape[0]
    if counts:
        fading = 1.0 - 1.0 / tests
        drift.rate[TESTS] = fading * drift.rate[TESTS] + 1.0
        drift.rate[CHANGES] *= fading
    # the more often agents change, the sooner one believes that another has
    rate = (math.exp(-SURE) * tests + drift.rate[CHANGES]) / (tests + drift.rate[TESTS])
    return min(SURE, -math.log(rate))


@compiled
def is_suspect(drift: Drift, agent: int, least: float) -> bool:
    """Whether some number of an agent's last samples were less probable than average, by `least` nats.

    What is explained better on its own than with the rest cannot have been well predicted by the rest. So
    most are spared the tests, which cost as much as several rounds.
    """
    d = drift.ring.shape[2] - 2
    total = 0.0
    for back in range(drift.held[agent]):
        total += drift.ring[agent, (drift.newest[agent] - back) % RECENT, d + 1] - 0.5
        if back + 1 >= SPLITS[len(SPLITS) - 1] and total > least:
            return True
    return False


@compiled
def split_gain(pool: Pool, drift: Drift, agent: int, recent: int) -> float:
    """Log Bayes factor for a change before an agent's last `recent` samples, but for the whole's evidence."""
    part, weight = pool.scratch.part, pool.model.weights[agent]
    kappa, lift = scatter_of(pool.model), lift_of(pool.model)
    part[:] = 0.0
    add_last(drift, agent, 0, recent, part)
    for m in range(part.shape[0]):
        part[m] *= weight
    gain = log_evidence(pool, part, kappa, lift, agent)
    for m in range(part.shape[0]):
        part[m] = drift.past[agent, m]
    add_last(drift, agent, recent, drift.held[agent], part)
    for m in range(part.shape[0]):
        part[m] *= weight
    return gain + log_evidence(pool, part, kappa, lift, agent)


@compiled
def forget(state: MixtureState, agent: int, recent: int) -> None:
    """Let an agent keep only its last samples; what was before becomes its ghost, in the same cluster."""
    members, clusters, own = state.pool.members, state.pool.clusters, state.pool.members.labels[agent, AGENT]
    lay_ghost(state, agent)
    add_lent(members, clusters, agent, -1.0)
    leave_ghost(state, agent, recent, own)
    drop_past(state, agent, recent)
    add_lent(members, clusters, agent, 1.0)
    repair(state.pool, own)


@inlined
def leave_ghost(state: MixtureState, agent: int, recent: int, cluster: int) -> None:
    """Let all but an agent's last samples be those of its ghost, in this cluster."""
    pool, drift, ghost = state.pool, state.drift, ghost_of(state.pool.members, agent)
    before = raw_of(pool, ghost)
    for m in range(before.shape[0]):
        before[m] = drift.past[agent, m]
    add_last(drift, agent, recent, drift.held[agent], before)
    lend(pool, ghost)
    join(pool.members, pool.clusters, state.common.pending, ghost, cluster)


@compiled
def lay_ghost(state: MixtureState, agent: int) -> None:
    """Let the ghost of an agent go, if it has one."""
    pool, members, clusters = state.pool, state.pool.members, state.pool.clusters
    if not has_ghost(members, agent):
        return
    ghost, cluster = ghost_of(members, agent), members.labels[agent, GHOST]
    take_out(pool, ghost, cluster)
    add_lent(members, clusters, ghost, -1.0)
    if leave(members, clusters, state.common.pending, ghost):
        for m in range(pool.scratch.rest.shape[0]):
            clusters.sums[cluster, m] = pool.scratch.rest[m]
        repair(pool, cluster)


@compiled
def drop_past(state: MixtureState, agent: int, recent: int) -> None:
    """Let an agent keep only its last samples, and compute what it lends from them."""
    state.drift.past[agent] = 0.0
    state.drift.held[agent] = recent
    state.local.pulls[agent] = recent
    state.squares[agent] = squares_of_last(state.drift, agent)
    rebuild(state, agent)
    lend(state.pool, agent)


@inlined
def squares_of_last(drift: Drift, agent: int) -> float:
    """Σ y² of the samples that are kept one by one."""
    total = 0.0
    for back in range(drift.held[agent]):
        total += drift.ring[agent, (drift.newest[agent] - back) % RECENT, drift.ring.shape[2] - 2] ** 2
    return total


@compiled
def rebuild(state: MixtureState, agent: int) -> None:
    """Sum an agent's own samples from what is kept of them."""
    drift, local, raw, d = state.drift, state.local, raw_of(state.pool, agent), state.local.b.shape[1]
    for m in range(raw.shape[0]):
        raw[m] = drift.past[agent, m]
    add_last(drift, agent, 0, drift.held[agent], raw)
    unpack(raw, state.common.ridge, local.A[agent])
    local.tail[agent] = 0.0
    for row in range(d):
        local.b[agent, row] = raw[raw.shape[0] - d + row]
        for column in range(row):
            local.A[agent, column, row] = local.A[agent, row, column]
    solve_row(local, agent)


# Clusters that move


@compiled
def improbability(pool: Pool, agent: int, x: Vector, reward: float) -> float:
    """How improbable a reward is for an agent in its cluster, −log p; note what it says of the cluster."""
    model, clusters, work = pool.model, pool.clusters, pool.scratch
    cluster = pool.members.labels[agent, AGENT]
    take_out(pool, agent, cluster)
    soften_cluster(pool, work.rest, work.data, work.L[0], work.y[0])
    add_row(model.weights[agent], raw_of(pool, agent), work.data)
    found = surprise(pool, work.data, 0.0, agent, x, reward)
    lately = surprise(pool, clusters.recent[cluster], model.prior[0], agent, x, reward)
    clusters.cusum[cluster] = max(0.0, clusters.cusum[cluster] + found - lately)
    return float(found)


@compiled
def surprise(pool: Pool, sums: Vector, ridge: float, agent: int, x: Vector, reward: float) -> float:
    """−log p of an agent's reward, but for a constant, by packed sums and a ridge."""
    L, y, weight = pool.scratch.L[0], pool.scratch.y[0], pool.model.weights[agent]
    factor_with_base(sums, ridge, base_of(pool.model) if ridge > 0.0 else 0.0, L, y)
    mean, variance = predict(L, y, x, pool.scratch.y[1])
    growth = 1.0 + weight * variance
    return float(weight * precision_of(pool.model) * (reward - mean) ** 2 / growth + 0.5 * math.log(growth))


@inlined
def note_latest(pool: Pool, agent: int, x: Vector, reward: float) -> None:
    """Add a sample to its cluster's latest; older ones fade, the sooner the fewer agents there are."""
    cluster = pool.members.labels[agent, AGENT]
    recent, size = pool.clusters.recent[cluster], pool.clusters.sizes[cluster, AGENT]
    fading = 1.0 - 1.0 / (WINDOW * max(size, 1))
    for m in range(recent.shape[0]):
        recent[m] *= fading
    add_weighted(recent, x, reward, pool.model.weights[agent])


@compiled
def tend(state: MixtureState, member: int) -> None:
    """Bring what a member lends up to date with its cluster's alarms and with the scatter."""
    pool, members, clusters = state.pool, state.pool.members, state.pool.clusters
    at = place_of(members, member)
    agent = at[0]
    cluster = members.labels[at]
    if cluster < 0:
        return
    is_alarmed = members.heeded[at] != clusters.alarms[cluster]
    if is_alarmed and is_ghost(members, member):
        lay_ghost(state, agent)  # what it knew of the cluster is no longer so
    elif is_alarmed or not is_lent_as_known(pool, member):
        add_lent(members, clusters, member, -1.0)
        if is_alarmed:
            members.heeded[at] = clusters.alarms[cluster]
            fade_past(state, agent)
        lend(pool, member)
        add_lent(members, clusters, member, 1.0)


@inlined
def fade_past(state: MixtureState, agent: int) -> None:
    """Let the older samples of an agent count half."""
    drift, pulls = state.drift, state.local.pulls
    for m in range(drift.past.shape[1]):
        drift.past[agent, m] *= KEPT
    last = squares_of_last(drift, agent)
    state.squares[agent] = last + KEPT * max(state.squares[agent] - last, 0.0)
    pulls[agent] = drift.held[agent] + (pulls[agent] - drift.held[agent]) // 2
    rebuild(state, agent)
