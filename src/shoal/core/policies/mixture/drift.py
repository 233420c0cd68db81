"""Agents and clusters that change: when to forget what was learned of them.

An agent's last samples are kept one by one. If they are better explained on their own than together with what
came before, the agent has changed: it keeps the new samples, and the old ones stay behind as its ghost, a
member of a cluster that never acts. A cluster whose members' latest samples predict the next one better than
all of them do has moved: its members' older samples lose half their weight.
"""

import math
from typing import Annotated, NamedTuple

from shoal.core.fields import DIM, PACKED, kept
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_packed, add_row, unpack
from shoal.core.policies.mixture.clusters import (
    AGENT,
    CHANGING,
    GHOST,
    Pool,
    add_lent,
    count_members,
    dissolve,
    join,
    leave,
    lend,
    log_evidence,
    raw_of,
    refresh,
    repair,
    take_out,
    weigh,
)
from shoal.core.policies.mixture.kernels import factor_packed, predict, soften_packed
from shoal.core.policy.steps import Pending
from shoal.core.statistics import Statistics, solve_row
from shoal.core.types import Integers, Matrix, Tensor, Vector

RECENT = 24
"""Samples of an agent that are kept one by one."""
SPLITS = (24, 17, 12, 8, 5)
"""Numbers of its last samples before which an agent may be found to have changed."""
LEAST_BEFORE = 5
"""Samples there must be from before a change."""
LEAST_AFTER = 3
"""Samples there must be from after a change, when it is dated."""
EVERY = 2
"""An agent is tested at every so many of its pulls."""
SURE = 9.0
"""Log Bayes factor for a change from which on it is believed, where changes are rare."""
MEMORY = 1.5
"""Tests per agent over which the rate of changes is learned."""
MARGIN = 3.0
"""Nats short of the threshold by which samples must be less probable than average, to be tested at all."""
RESIDUALS = 100.0
"""Residuals in the estimate of the noise before anything is tested."""
MOVED = 20.0
"""Nats by which a cluster's latest samples must predict better than all of them, for it to have moved."""
WINDOW = 16.0
"""Samples of each member that count as a cluster's latest."""
KEPT = 0.5
"""Weight that the older samples of a cluster's members keep when it has moved."""


class Drift(NamedTuple):
    """What change is recognised by; no rows without `drift`."""

    ring: Annotated[Tensor, kept(CHANGING, RECENT, DIM + 2)]  # the last samples: x, y, how improbable it was
    newest: Annotated[Integers, kept(CHANGING, low=-1, below=RECENT, fill=-1)]  # position of the latest
    held: Annotated[Integers, kept(CHANGING, low=0, below=RECENT + 1)]  # how many there are
    past: Annotated[Matrix, kept(CHANGING, PACKED)]  # packed sums of those before
    forgot: Annotated[Integers, kept(CHANGING, low=-1, below=2.0**62, fill=-1)]  # round of its last change
    rate: Annotated[Vector, kept(2, low=0.0)]  # tests and changes found, fading


# Agents that change


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
def is_suspect(drift: Drift, agent: int, least: float) -> bool:
    """Whether some number of an agent's last samples were less probable than average, by so many nats.

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
    part, kappa = pool.scratch.part, pool.model.grid[pool.model.position[0]]
    part[:] = 0.0
    add_last(drift, agent, 0, recent, part)
    gain = log_evidence(pool, part, kappa, agent)
    for m in range(part.shape[0]):
        part[m] = drift.past[agent, m]
    add_last(drift, agent, recent, drift.held[agent], part)
    return gain + log_evidence(pool, part, kappa, agent)


@compiled
def find_change(pool: Pool, drift: Drift, agent: int, pulls: int, counts: bool) -> int:
    """Number of an agent's last samples that a change came before; −1 if none is believed.

    Only if it `counts` does the test tell of how often agents change.
    """
    kept, tests = drift.held[agent], MEMORY * drift.held.shape[0]
    if counts:
        fading = 1.0 - 1.0 / tests
        drift.rate[0] = fading * drift.rate[0] + 1.0
        drift.rate[1] *= fading
    # the more often agents change, the sooner one believes that another has
    rate = (math.exp(-SURE) * tests + drift.rate[1]) / (tests + drift.rate[0])
    threshold = min(SURE, -math.log(rate))
    if not is_suspect(drift, agent, threshold - MARGIN):
        return -1
    refresh(pool, pool.members.labels.size)
    weigh(pool, agent, pulls)
    kappa = pool.model.grid[pool.model.position[0]]
    whole = log_evidence(pool, raw_of(pool, agent), kappa, agent)
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
        drift.rate[1] += 1.0
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


@compiled
def forget(pool: Pool, drift: Drift, pending: Pending, local: Statistics, agent: int, recent: int) -> None:
    """Let an agent keep only its last samples; what was before becomes its ghost, in the same cluster."""
    members, clusters, own = pool.members, pool.clusters, pool.members.labels[agent, AGENT]
    ghost = members.labels.shape[0] + agent
    if members.labels[agent, GHOST] >= 0:
        lay(pool, pending, agent)
    add_lent(members, clusters, agent, -1.0)
    before = raw_of(pool, ghost)
    for m in range(before.shape[0]):
        before[m] = drift.past[agent, m]
    add_last(drift, agent, recent, drift.held[agent], before)
    lend(pool, ghost)
    join(members, clusters, pending, ghost, own)
    drop_past(pool, drift, local, agent, recent)
    add_lent(members, clusters, agent, 1.0)
    repair(pool, own)


@compiled
def drop_past(pool: Pool, drift: Drift, local: Statistics, agent: int, recent: int) -> None:
    """Let an agent keep only its last samples, and compute what it lends from them."""
    drift.past[agent] = 0.0
    drift.held[agent] = recent
    local.pulls[agent] = recent
    rebuild(pool, drift, local, agent)
    lend(pool, agent)


@compiled
def rebuild(pool: Pool, drift: Drift, local: Statistics, agent: int) -> None:
    """Sum an agent's own samples from what is kept of them."""
    raw, d = raw_of(pool, agent), local.b.shape[1]
    for m in range(raw.shape[0]):
        raw[m] = drift.past[agent, m]
    add_last(drift, agent, 0, drift.held[agent], raw)
    unpack(raw, pool.model.ridge, local.A[agent])
    local.tail[agent] = 0.0
    for row in range(d):
        local.b[agent, row] = raw[raw.shape[0] - d + row]
        for column in range(row):
            local.A[agent, column, row] = local.A[agent, row, column]
    solve_row(local, agent)


@compiled
def lay(pool: Pool, pending: Pending, agent: int) -> None:
    """Let the ghost of an agent go."""
    members, clusters, cluster = pool.members, pool.clusters, pool.members.labels[agent, GHOST]
    ghost = members.labels.shape[0] + agent
    take_out(pool, ghost, cluster)
    add_lent(members, clusters, ghost, -1.0)
    leave(members, clusters, pending, ghost)
    if count_members(clusters, cluster) == 0:
        dissolve(members, clusters, cluster)
        return
    for m in range(pool.scratch.rest.shape[0]):
        clusters.sums[cluster, m] = pool.scratch.rest[m]
    repair(pool, cluster)


# Clusters that move


@compiled
def improbability(pool: Pool, agent: int, x: Vector, reward: float) -> float:
    """How improbable a reward is for an agent in its cluster, −log p; note what it says of the cluster."""
    model, clusters, work, cluster = (
        pool.model,
        pool.clusters,
        pool.scratch,
        pool.members.labels[agent, AGENT],
    )
    kappa, precision = model.grid[model.position[0]], 0.5 * model.noise[1] / model.noise[0]
    L, y, z = work.L[0], work.y[0], work.y[1]
    take_out(pool, agent, cluster)
    soften_packed(work.rest, model.ridge, kappa, work.data, L, y, work.inverse)
    add_row(1.0, raw_of(pool, agent), work.data)
    factor_packed(work.data, 0.0, L, y)
    mean, variance = predict(L, y, x, z)
    found = precision * (reward - mean) ** 2 / (1.0 + variance) + 0.5 * math.log1p(variance)
    factor_packed(clusters.recent[cluster], model.ridge, L, y)
    mean, variance = predict(L, y, x, z)
    lately = precision * (reward - mean) ** 2 / (1.0 + variance) + 0.5 * math.log1p(variance)
    clusters.cusum[cluster] = max(0.0, clusters.cusum[cluster] + found - lately)
    return float(found)


@inlined
def note_latest(pool: Pool, agent: int, x: Vector, reward: float) -> None:
    """Add a sample to its cluster's latest; older ones fade, the sooner the fewer agents there are."""
    cluster = pool.members.labels[agent, AGENT]
    recent, size = pool.clusters.recent[cluster], pool.clusters.sizes[cluster, AGENT]
    fading = 1.0 - 1.0 / (WINDOW * max(size, 1))
    for m in range(recent.shape[0]):
        recent[m] *= fading
    add_packed(recent, x, reward)


@compiled
def tend(pool: Pool, drift: Drift, pending: Pending, local: Statistics, member: int) -> None:
    """Bring what a member lends up to date with its cluster's alarms and with the scatter."""
    members, clusters = pool.members, pool.clusters
    kind, i = divmod(member, members.labels.shape[0])
    cluster = members.labels[i, kind]
    if cluster < 0:
        return
    is_alarmed = members.heeded[i, kind] != clusters.alarms[cluster]
    if is_alarmed and kind == GHOST:
        lay(pool, pending, i)  # what it knew of the cluster is no longer so
    elif is_alarmed or members.lent_at[i, kind] != pool.model.position[0]:
        add_lent(members, clusters, member, -1.0)
        if is_alarmed:
            members.heeded[i, kind] = clusters.alarms[cluster]
            for m in range(drift.past.shape[1]):
                drift.past[i, m] *= KEPT
            local.pulls[i] = drift.held[i] + (local.pulls[i] - drift.held[i]) // 2
            rebuild(pool, drift, local, i)
        lend(pool, member)
        add_lent(members, clusters, member, 1.0)
