"""What the agents of a cluster are like: mean and spread of each of their features.

Kept up to date as agents come and go. A ghost has no features: they describe what its agent is, not what it
was.
"""

import math

import numpy as np

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.policies.mixture.state import AGENT, Clusters, Members, MixtureState, Profiles


@compiled
def note_features(members: Members, profiles: Profiles, agent: int, cluster: int, sign: float) -> None:
    """Count an agent's features among its cluster's, or no longer (Welford 1962: no digits cancel)."""
    for j in range(members.features.shape[1]):
        z = members.features[agent, j]
        if math.isnan(z):
            continue
        count, offset = profiles.counts[cluster, j] + sign, z - profiles.means[cluster, j]
        profiles.counts[cluster, j] = count
        if count == 0.0:
            profiles.means[cluster, j] = 0.0
            profiles.squares[cluster, j] = 0.0
        else:
            profiles.means[cluster, j] += sign * offset / count
            offset *= z - profiles.means[cluster, j]
            profiles.squares[cluster, j] = max(0.0, profiles.squares[cluster, j] + sign * offset)


@inlined
def clear_profile(profiles: Profiles, cluster: int) -> None:
    """Let nobody's features count in a cluster."""
    for j in range(profiles.counts.shape[1]):
        profiles.counts[cluster, j] = 0.0
        profiles.means[cluster, j] = 0.0
        profiles.squares[cluster, j] = 0.0


@compiled
def profile_anew(members: Members, clusters: Clusters) -> None:
    """Sum the features of all clusters' agents, removed ones included, anew: no rounding of others stays."""
    for cluster in range(clusters.profiles.counts.shape[0]):
        clear_profile(clusters.profiles, cluster)
    for agent in range(members.features.shape[0]):
        if members.labels[agent, AGENT] >= 0:
            note_features(members, clusters.profiles, agent, members.labels[agent, AGENT], 1.0)


def profile_problem(state: MixtureState) -> str:
    """What is wrong with the features in a loaded state, as a phrase; "" if nothing is."""
    members, found = state.pool.members, state.pool.clusters.profiles
    if not len(members.features):
        return ""
    if not np.isnan(members.features[state.common.withdrawn]).all():
        return "a withdrawn agent has features"
    there, labels = np.isfinite(members.features), np.maximum(state.labels, 0)
    there &= state.labels[:, None] >= 0
    counts, means, squares = (np.zeros_like(array) for array in found)
    np.add.at(counts, labels, there)
    np.add.at(means, labels, np.where(there, members.features, 0.0))
    means /= np.maximum(counts, 1.0)
    np.add.at(squares, labels, np.where(there, members.features - means[labels], 0.0) ** 2)
    # Rounding is of the size of what has come and gone, which is of the size of what is there.
    size = np.abs(np.where(there, members.features, 0.0)).max(axis=0)
    if not np.array_equal(counts, found.counts):
        return "pool.clusters.profiles.counts does not count the features of each cluster's agents"
    if (np.abs(means - found.means) > 1e-6 * size).any():
        return "pool.clusters.profiles.means is not the mean over the agents of each cluster"
    if (np.abs(squares - found.squares) > 1e-6 * size * size * (1.0 + counts)).any():
        return "pool.clusters.profiles.squares is not the spread of the agents of each cluster"
    votes = state.temper_votes
    if (
        np.abs(state.pool.model.temper_tally - votes.sum(axis=0)) > 1e-6 * (1.0 + np.abs(votes).sum(axis=0))
    ).any():
        return "temper_tally is not the sum of temper_votes"
    return ""
