"""What a reward changes: the agent's sums and the noise at once; then who is in which cluster.

A Gibbs sweep over all members would take too long in each round. So a round draws the cluster of the agent
that pulled, whose data changed, and of some others by chance. Whatever else concerns all members or clusters
is also done a little at a time, so that no round waits for it.
"""

import math

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_packed, add_weighted
from shoal.core.kernels.random import integer_below, uniform
from shoal.core.policies.mixture.choice import measure
from shoal.core.policies.mixture.clusters import add_lent, is_in_fresh, move, note_change, resum, wait_for
from shoal.core.policies.mixture.drift import forget_if_changed, tend, watch
from shoal.core.policies.mixture.evidence import NONE, log_evidence, refresh, weigh
from shoal.core.policies.mixture.features import vote_on_temper
from shoal.core.policies.mixture.members import cluster_of, ghost_of, has_ghost, is_ghost, lend, weighted
from shoal.core.policies.mixture.noise import is_look_due, learn_noises, learn_prior, look
from shoal.core.policies.mixture.state import (
    AGENT,
    BASE,
    CLUSTER,
    LAST_TENDED,
    PULLS,
    SCATTERS,
    SLOPES,
    TO_TEND,
    MixtureState,
    are_described,
    can_change,
    is_scattered,
    learns_lift,
    lift_at,
    lift_of,
    scatter_at,
    scatter_of,
)
from shoal.core.policy.steps import expect_alone, step
from shoal.core.statistics import add_sample
from shoal.core.types import Vector

FIRST_SCATTER, FIRST_OF_CLICKS = 2, 0
"""Position of the scatter to start from, where it is learned; a few clicks tell little of it."""
STEP_COST = 5.0
"""Nats that each step away from it has to bring."""
VOTE_EVERY, LATER_VOTES, LATER = 8, 32, 64
"""An agent says at every 8th pull, after 64 at every 32nd, how well each scatter explains its samples."""
TENDED = 8
"""Members that a round brings up to date when the scatter was changed or a cluster has moved."""
SCALE_EVERY = 16
"""Pulls after which the size of a cluster's estimate is computed, for each in turn."""


@step("observe", MixtureState)
def observe(state: MixtureState, agent: int, x: Vector, reward: float, t: int) -> None:
    members, clusters = state.pool.members, state.pool.clusters
    # First what the sample says of change: it has to be predicted by models that do not hold it yet.
    if can_change(state):
        watch(state, agent, x, reward)
    add_sample(state.local, agent, x, reward)
    state.squares[agent] += reward * reward
    lend_sample(state, agent, x, reward)
    if is_look_due(state.local.pulls[agent]):
        look(state, agent)
    if members.labels[agent, AGENT] >= 0:
        state.common.cost[0] += clusters.sizes[members.labels[agent, AGENT], AGENT] - 1


@inlined
def lend_sample(state: MixtureState, agent: int, x: Vector, reward: float) -> None:
    """Add a sample to what the agent lends and, if it is in a cluster, to the cluster's sums."""
    pool, model, weight = state.pool, state.pool.model, state.pool.model.weights[agent]
    members, clusters, cluster = pool.members, pool.clusters, pool.members.labels[agent, AGENT]
    if model.softens:
        add_packed(members.raw[agent, AGENT], x, reward)
    # Softened sums are no sums over samples: what was lent comes off and what is lent now goes on.
    lent_at = members.lent_at[agent, AGENT]
    if is_scattered(model) or lent_at[SLOPES] > 0.0 or lent_at[BASE] > 0.0:
        if cluster >= 0:
            add_lent(members, clusters, agent, -1.0)
        lend(pool, agent)
        if cluster >= 0:
            add_lent(members, clusters, agent, 1.0)
    else:  # what is lent changes by the sample alone
        add_weighted(members.lent[agent, AGENT], x, reward, weight)
        if cluster >= 0:
            add_weighted(clusters.sums[cluster], x, reward, weight)
            note_change(clusters, cluster)
            if is_in_fresh(clusters, cluster, agent):
                add_weighted(clusters.fresh, x, reward, weight)


@step("revise", MixtureState)
def revise(state: MixtureState, agent: int, t: int) -> None:
    is_in_cluster, lends = state.pool.members.labels[agent, AGENT] >= 0, state.common.lends[agent]
    if is_in_cluster:
        vote_in_turn(state, agent)
    if is_in_cluster or not lends:
        forget_if_changed(state, agent, t)
    if lends:  # else nobody is to notice that it has learned anything
        keep_up(state)
        sweep(state, agent)


@inlined
def vote_in_turn(state: MixtureState, agent: int) -> None:
    """Note now and then how well each scatter explains an agent's samples, given the present clusters."""
    pool, part, pulls = state.pool, state.pool.scratch.part, state.local.pulls[agent]
    if state.votes.shape[0] > 0 and pulls % (VOTE_EVERY if pulls <= LATER else LATER_VOTES) == 0:
        refresh(pool, NONE)
        weigh(pool, agent, pulls)
        # A vote replaces the agent's last one, so that the tally is of everybody's present samples.
        weighted(pool, agent, part)
        kappa, lift = scatter_of(pool.model), lift_of(pool.model)
        for g in range(state.tally.shape[0]):
            if g < len(SCATTERS):
                found = log_evidence(pool, part, scatter_at(pool.model, g), lift, agent)
            else:
                found = log_evidence(pool, part, kappa, lift_at(pool.model, g - len(SCATTERS)), agent)
            state.tally[g] += found - state.votes[agent, g]
            state.votes[agent, g] = found


@inlined
def sweep(state: MixtureState, agent: int) -> None:
    """Draw the cluster of this agent, of some others by chance, and of the ghosts of these."""
    members, n = state.pool.members, state.pool.members.labels.shape[0]
    redraw(state, agent)
    for _ in range(state.redraws if n > 1 else 0):
        other = integer_below(state.common.rng, n - 1)
        other += other >= agent
        if members.labels[other, AGENT] >= 0 and state.common.active[other]:
            redraw(state, other)
        if has_ghost(members, other):
            redraw(state, ghost_of(members, other))


@compiled
def redraw(state: MixtureState, member: int) -> None:
    """Bring a member, who has samples, up to date and draw its cluster from its posterior."""
    pool, members, chances = state.pool, state.pool.members, state.pool.scratch.chances
    if can_change(state) or pool.model.softens:
        tend(state, member)
        if is_ghost(members, member) and cluster_of(members, member) < 0:
            return  # its cluster has moved, and it is no more
    # All but the member's own cluster, of which `weigh` computes what is left without it.
    refresh(pool, cluster_of(members, member))
    count = weigh(pool, member, 1)
    if are_described(members) and not is_ghost(members, member):
        vote_on_temper(pool, state.temper_votes, member)
    # Invert the distribution function; falling off the end by rounding draws the new cluster.
    drawn, left = 0, uniform(state.common.rng)
    while drawn < count and not left < chances[drawn]:
        left -= chances[drawn]
        drawn += 1
    move(pool, state.common.pending, member, drawn)


# What is done a little at a time


@inlined
def keep_up(state: MixtureState) -> None:
    """Do in each round a little of what concerns all members or clusters."""
    pool, upkeep = state.pool, state.upkeep
    upkeep[PULLS] += 1
    if state.votes.shape[0] > 0 and upkeep[PULLS] % pool.members.labels.shape[0] == 0:
        step_to_best_scatter(state)
    for _ in range(min(TENDED, upkeep[TO_TEND])):
        upkeep[LAST_TENDED] = (upkeep[LAST_TENDED] + 1) % pool.members.labels.size
        upkeep[TO_TEND] -= 1
        tend(state, upkeep[LAST_TENDED])
    if upkeep[PULLS] % SCALE_EVERY == 0:
        state.scale[0] = measure(pool, upkeep[PULLS] // SCALE_EVERY)
        learn_prior(state)
    if upkeep[PULLS] % pool.members.labels.shape[0] == 0:
        learn_noises(state)
    if pool.clusters.resummed[CLUSTER] >= 0:
        resum(pool)


@inlined
def step_to_best_scatter(state: MixtureState) -> None:
    """Go one step towards the scatter that explains everybody's samples best."""
    first = FIRST_OF_CLICKS if state.common.clicks else FIRST_SCATTER
    step_to_best(state, SLOPES, 0, len(SCATTERS), first)
    if learns_lift(state.pool.model):
        step_to_best(state, BASE, len(SCATTERS), state.tally.shape[0], 0)


@inlined
def step_to_best(state: MixtureState, which: int, start: int, stop: int, first: int) -> None:
    """Go one step towards the best of the places from `start` to `stop` in the tally."""
    position, best, found = state.pool.model.position, 0, -math.inf
    for g in range(stop - start):
        value = state.tally[start + g] - STEP_COST * abs(g - first)
        if value > found:
            found = value
            best = g
    # One step at a time: what every member lends depends on it, and is brought up to date slowly.
    if best != position[which]:
        position[which] += 1 if best > position[which] else -1
        state.upkeep[TO_TEND] = state.pool.members.labels.size


@step("expect", MixtureState)
def expect(state: MixtureState, agent: int, x: Vector, sign: int) -> None:
    if state.common.lends[agent]:
        wait_for(state.pool, agent, x, sign)
    expect_alone(state, agent, x, sign)
