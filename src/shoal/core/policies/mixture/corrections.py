"""What changes between rounds: samples are corrected, agents merge, leave, lend or no longer do.

Rare, so in plain Python, on a pinned state: the compiled functions that it calls take no other.
"""

import math

import numpy as np

from shoal.core.policies.mixture.choice import measure
from shoal.core.policies.mixture.clusters import dissolve, leave, sum_anew, wait_in
from shoal.core.policies.mixture.drift import PRIOR_SAMPLES, add_last, lay_ghost
from shoal.core.policies.mixture.learning import redraw
from shoal.core.policies.mixture.members import lend
from shoal.core.policies.mixture.profiles import profile_anew
from shoal.core.policies.mixture.state import AGENT, CLUSTER, RECENT, Drift, MixtureState
from shoal.core.statistics import amend_packed
from shoal.core.types import Integers, Matrix, Vector


def estimate_noise(state: MixtureState) -> None:
    """Estimate the noise anew from the errors of agents who lend."""
    lends = state.common.lends
    if state.learns_noise:
        state.pool.model.noise[:] = (
            PRIOR_SAMPLES + (state.errors * lends).sum(),
            PRIOR_SAMPLES + (state.residuals * lends).sum(),
        )


def lending_changed(state: MixtureState, agent: int) -> None:
    """Let an agent who does not lend be in no cluster, and one who does again be drawn one."""
    pool, pending = state.pool, state.common.pending
    if state.common.lends[agent]:
        wait_in(pool.clusters, pending, agent, -1, 1)
        estimate_noise(state)
        lend(pool, agent)
        if state.local.pulls[agent] > 0:
            redraw(state, agent)
    else:
        _leave_clusters(state, agent)
        profile_anew(pool.members, pool.clusters)
        wait_in(pool.clusters, pending, agent, -1, -1)
        _forget_vote(state, agent)
        estimate_noise(state)
    _restart_latest(state)
    _measure_all(state)


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
    lend(state.pool, agent)
    state.errors[agent] += state.errors[other]
    state.residuals[agent] += state.residuals[other]
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
    members.lent[agent] = 0.0
    members.features[agent : agent + 1] = math.nan
    members.form[agent], members.logdet[agent] = 0.0, state.local.b.shape[1] * math.log(state.common.ridge)
    members.labels[agent, AGENT] = -1 - agent
    profile_anew(members, clusters)
    clusters.fresh[:], clusters.resummed[CLUSTER] = 0.0, -1
    for cluster in clusters.used[: clusters.n_used[0]].tolist():  # it may have been in any of them
        sum_anew(state.pool, cluster)
    _restart_latest(state)
    _measure_all(state)
    _forget_vote(state, agent)
    state.errors[agent], state.residuals[agent] = 0.0, 0
    estimate_noise(state)


def describe(state: MixtureState, agent: int, features: Vector) -> None:
    """Let an agent have these features instead of those that it had."""
    state.pool.members.features[agent] = features
    if state.labels[agent] >= 0:  # what it was like has been in sums, and in its vote
        profile_anew(state.pool.members, state.pool.clusters)
        state.temper_votes[agent] = 0.0
        state.pool.model.temper_tally[:] = state.temper_votes.sum(axis=0)


def amend(state: MixtureState, agent: int, x: Vector, change: float, removes: bool) -> None:
    """Take in that a sample's reward was another, or that there was none."""
    left, d = int(state.local.pulls[agent]), state.local.b.shape[1]
    amend_packed(_own_sums(state)[agent], x, change, removes, left)
    if len(state.drift.past):
        _amend_history(state.drift, agent, x, change, removes, left)
    lend(state.pool, agent)
    if removes and left >= d and state.residuals[agent] > 0:  # its errors stay, one fewer of them
        state.errors[agent] *= (state.residuals[agent] - 1) / state.residuals[agent]
        state.residuals[agent] -= 1
        estimate_noise(state)
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


def _forget_vote(state: MixtureState, agent: int) -> None:
    """Let an agent have no say in the scatter and the temper until it votes anew."""
    tempers = state.temper_votes, state.pool.model.temper_tally
    for votes, tally in ((state.votes, state.tally), tempers):
        if len(votes):
            votes[agent] = 0.0
            tally[:] = votes.sum(axis=0)


def _restart_latest(state: MixtureState) -> None:
    """Let clusters' latest samples be those that their agents keep one by one."""
    drift, clusters, labels = state.drift, state.pool.clusters, state.labels
    clusters.recent[:], clusters.cusum[:] = 0.0, 0.0
    for agent in np.flatnonzero(labels[: len(drift.held)] >= 0).tolist():
        add_last(drift, agent, 0, int(drift.held[agent]), clusters.recent[labels[agent]])


def _measure_all(state: MixtureState) -> None:
    """Compute how large the estimates of all clusters are."""
    for turn in range(int(state.pool.clusters.n_used[0])):
        state.scale[0] = measure(state.pool, turn)
