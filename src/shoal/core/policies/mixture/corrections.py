"""What changes between rounds: samples are corrected, agents merge, leave, lend or no longer do.

Rare, so in plain Python, on a pinned state: the compiled functions that it calls take no other.
"""

import math

import numpy as np

from shoal.core.policies.mixture.clusters import dissolve, leave, sum_anew, wait_in
from shoal.core.policies.mixture.drift import add_last, lay_ghost
from shoal.core.policies.mixture.learning import redraw
from shoal.core.policies.mixture.members import lend
from shoal.core.policies.mixture.noise import learn_anew, look, measure_all, sum_looks
from shoal.core.policies.mixture.profiles import profile_anew
from shoal.core.policies.mixture.state import AGENT, CLUSTER, RECENT, Drift, MixtureState
from shoal.core.statistics import amend_packed
from shoal.core.types import Integers, Matrix, Vector


def lending_changed(state: MixtureState, agent: int) -> None:
    """Let an agent who does not lend be in no cluster, and one who does again be drawn one."""
    pool, pending = state.pool, state.common.pending
    if state.common.lends[agent]:
        wait_in(pool.clusters, pending, agent, -1, 1)
        learn_anew(state)
        if state.local.pulls[agent] > 0:
            redraw(state, agent)
    else:
        _leave_clusters(state, agent)
        profile_anew(pool.members, pool.clusters)
        wait_in(pool.clusters, pending, agent, -1, -1)
        _forget_vote(state, agent)
        learn_anew(state)
    _restart_latest(state)
    measure_all(state)


def _leave_clusters(state: MixtureState, agent: int) -> None:
    lay_ghost(state, agent)
    pool, cluster = state.pool, int(state.labels[agent])
    if cluster >= 0 and leave(pool.members, pool.clusters, state.common.pending, agent):
        sum_anew(pool, cluster)


def absorb(state: MixtureState, agent: int, other: int) -> None:
    """Let an agent have another's samples too."""
    drift, own, features = state.drift, _own_sums(state), state.pool.members.features
    own[agent] += own[other]
    if len(features):  # what is not known of the one is as of the other, who is withdrawn next
        features[agent] = np.where(np.isnan(features[agent]), features[other], features[agent])
    if len(drift.past):
        drift.past[agent] += drift.past[other]
        add_last(drift, other, 0, int(drift.held[other]), drift.past[agent])
    state.squares[agent] += state.squares[other]
    _look_again(state, agent)
    _forget_vote(state, agent)  # it votes anew when its turn comes
    if state.labels[agent] >= 0:
        sum_anew(state.pool, state.labels[agent])


def remove(state: MixtureState, agent: int) -> None:
    """Let an agent be no member of its cluster, where its samples stay as long as the cluster has others."""
    clusters, cluster = state.pool.clusters, state.labels[agent]
    if cluster >= 0:
        clusters.sizes[cluster, AGENT] -= 1
        clusters.removed[cluster] += 1
        if clusters.sizes[cluster].sum() == 0:
            dissolve(state.pool.members, clusters, cluster)


def withdraw(state: MixtureState, agent: int) -> None:
    """Leave no trace of the samples of an agent that was removed."""
    members, clusters, drift = state.pool.members, state.pool.clusters, state.drift
    lay_ghost(state, agent)
    for values in (drift.ring, drift.past, drift.held, members.raw):  # without rows where not needed
        values[agent : agent + 1] = 0
    if members.labels[agent, AGENT] >= 0:
        clusters.removed[members.labels[agent, AGENT]] -= 1
    members.lent[agent], state.squares[agent] = 0.0, 0.0
    members.features[agent : agent + 1] = math.nan
    members.labels[agent, AGENT] = -1 - agent
    profile_anew(members, clusters)
    clusters.fresh[:], clusters.resummed[CLUSTER] = 0.0, -1
    _forget_vote(state, agent)
    learn_anew(state)
    _restart_latest(state)


def describe(state: MixtureState, agent: int, features: Vector) -> None:
    """Let an agent have these features instead of those that it had."""
    state.pool.members.features[agent] = features
    if state.labels[agent] >= 0:  # what it was like has been in sums, and in its vote
        profile_anew(state.pool.members, state.pool.clusters)
        _clear(state.temper_votes, state.pool.model.temper_tally, agent)


def amend(state: MixtureState, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
    """Take in that a sample's reward was another, or that there was none."""
    left = int(state.local.pulls[agent])
    squares = state.squares[agent] - old**2 + (0.0 if removes else (old + change) ** 2)
    state.squares[agent] = max(squares, 0.0) if left else 0.0
    amend_packed(_own_sums(state)[agent], x, change, removes, left)
    if len(state.drift.past):
        _amend_history(state.drift, agent, x, change, removes, left)
    _look_again(state, agent)
    if state.labels[agent] >= 0:
        sum_anew(state.pool, state.labels[agent])
        _restart_latest(state)


def latest(drift: Drift, agent: int) -> Integers:
    """Where the samples that are kept one by one are in an agent's ring, the latest first."""
    return np.asarray((drift.newest[agent] - np.arange(drift.held[agent])) % RECENT)


def _amend_history(drift: Drift, agent: int, x: Vector, change: float, removes: bool, left: int) -> None:
    """Put a sample right where the agent's samples are kept one by one, or among those before."""
    order, d = latest(drift, agent), len(x)
    last: Matrix = drift.ring[agent, order]
    found = (last[:, :d] == x).all(axis=1) & ((last[:, d] == -change) | (not removes))
    if not found.any():
        amend_packed(drift.past[agent], x, change, removes, max(left - int(drift.held[agent]), 0))
        return
    position = int(np.argmax(found))
    if not removes:
        drift.ring[agent, order[position], d] += change
        return
    drift.ring[agent, order[position:-1]] = last[position + 1 :]
    drift.ring[agent, order[-1]] = 0.0
    drift.held[agent] -= 1


def _own_sums(state: MixtureState) -> Matrix:
    """Packed sums of all agents' own samples; a view."""
    members = state.pool.members
    return np.asarray((members.raw if state.pool.model.softens else members.lent)[:, AGENT])


def _look_again(state: MixtureState, agent: int) -> None:
    """Take in what an agent's samples, which are others than before, say of units and noise."""
    look(state, agent)
    sum_looks(state)
    lend(state.pool, agent)


def _forget_vote(state: MixtureState, agent: int) -> None:
    """Let an agent have no say in the scatter and the temper until it votes anew."""
    _clear(state.votes, state.tally, agent)
    _clear(state.temper_votes, state.pool.model.temper_tally, agent)


def _clear(votes: Matrix, tally: Vector, agent: int) -> None:
    if len(votes):
        votes[agent] = 0.0
        tally[:] = votes.sum(axis=0)


def _restart_latest(state: MixtureState) -> None:
    """Let clusters' latest samples be those that their agents keep one by one."""
    drift, clusters, labels = state.drift, state.pool.clusters, state.labels
    clusters.recent[:], clusters.cusum[:] = 0.0, 0.0
    for agent in np.flatnonzero(labels[: len(drift.held)] >= 0).tolist():
        last = np.zeros(clusters.recent.shape[1])
        add_last(drift, agent, 0, int(drift.held[agent]), last)
        clusters.recent[labels[agent]] += state.pool.model.weights[agent] * last
