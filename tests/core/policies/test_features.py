"""Agents who are described: what features do to memberships, and that nothing of them stays behind."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.attack.test_withdrawal import floats
from tests.core.contracts.test_policies import kept
from tests.core.contracts.test_sharing import build

import shoal
from shoal.core import fields
from shoal.core.policy.files import pack, parse

N, D = 12, 3
THETA = np.array([[1.0, 0.5, 0.0], [-1.0, 0.5, 0.5]])


def described(useful: bool = True, seed: int = 0) -> Any:
    """Features of agents in two clusters: one that may tell them apart, one that does not, some missing."""
    Z = np.random.default_rng(seed).standard_normal((N, 2)) + 7.0
    Z[: N // 2, 0] += 6.0 if useful else 0.0
    Z[1, 1] = Z[8, 0] = np.nan
    return Z


def play(policy: Any, rounds: int, seed: int = 1) -> list[int]:
    rng, choices = np.random.default_rng(seed), []
    for _ in range(rounds):
        agent, arms = int(rng.choice(policy.agents)), rng.standard_normal((6, D))
        choices.append(policy.select(agent, arms))
        mean = arms[choices[-1]] @ THETA[int(agent % N >= N // 2)]
        policy.update(agent, arms[choices[-1]], float(mean + 0.3 * rng.standard_normal()))
    return choices


def played(rounds: int = 250, **own: Any) -> shoal.ClusterMixture:
    policy = shoal.ClusterMixture(N, D, agent_features=described(), seed=3, **own)
    play(policy, rounds)
    return policy


def test_a_newcomer_who_is_described_is_known_at_once() -> None:
    policy = played()
    alike, other, unknown = policy.add_agents(
        3, agent_features=[[13.0, 7.0], [7.0, 7.0], [math.nan] * 2]
    ).tolist()
    first, last = policy.labels[[0, N - 1]].tolist()
    assert policy.temper == 1.0
    assert policy.posterior(alike)[first] > 0.6 > 0.1 > policy.posterior(alike)[last]
    assert policy.posterior(other)[last] > 0.6 > 0.1 > policy.posterior(other)[first]
    # The share of a cluster of its own is c over the number of agents and c: of that, features say nothing.
    assert policy.posterior(unknown)[-1] == pytest.approx(5 / (N + 5))
    found = policy.explain(alike, 0)
    assert found.by_rewards == pytest.approx(policy.posterior(unknown)[first])
    assert f"({found.by_rewards:.2g} without features)" in str(found)
    assert "without features" not in str(policy.explain(unknown, 0))


def test_useless_features_given_often_lose_their_say() -> None:
    Z = np.hstack([described(useful=False)] * 6)
    policy = shoal.ClusterMixture(N, D, agent_features=Z, seed=3)
    play(policy, 400)
    assert policy.temper < 1.0


def test_features_that_are_all_missing_change_nothing() -> None:
    policy = shoal.ClusterMixture(N, D, agent_features=np.full((N, 2), np.nan), seed=3)
    assert play(policy, 300) == play(shoal.ClusterMixture(N, D, seed=3), 300)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((N, 3)), r"agent_features must have shape \(1, p\) with agent_dim = 2, got \(1, 12, 3\)"),
        ([1.0], r"must have shape \(1, p\) with agent_dim = 2, got \(1, 1\)"),
        ([1.0, math.inf], r"agent_features must be finite, got inf at index \(0, 1\)"),
        ([1.0, -1e40], r"at most 1e\+30 in size, got -1e\+40"),
        (["tall", "old"], "agent_features must be an array of numbers"),
    ],
)
def test_bad_features_are_refused_before_anything_changes(given: Any, message: str) -> None:
    policy = played(40)
    before = bytes(policy.to_bytes())
    with pytest.raises(ValueError, match=message):
        policy.set_features(2, given)
    with pytest.raises(ValueError, match="agent_features must"):
        policy.add_agents(1, agent_features=[given])
    with pytest.raises(ValueError, match="agent must be in 0, …, 11, got 12"):
        policy.set_features(N, [1.0, 2.0])
    assert bytes(policy.to_bytes()) == before
    policy.remove_agent(3)
    with pytest.raises(ValueError, match="agent 3 has been removed"):
        policy.set_features(3, [1.0, 2.0])


def test_constructors_check_features() -> None:
    with pytest.raises(
        ValueError, match=r"must have shape \(12, p\) with any number of features, got \(3, 2\)"
    ):
        shoal.ClusterMixture(N, D, agent_features=np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"with agent_dim = 5, got \(12, 2\)"):
        shoal.ClusterMixture(N, D, agent_features=described(), agent_dim=5)
    with pytest.raises(ValueError, match="agent_dim must be"):
        shoal.ClusterMixture(N, D, agent_dim=-1)
    with pytest.raises(ValueError, match="agent_dim = 0"):
        shoal.ClusterMixture(N, D).set_features(0, [1.0])
    policy = shoal.ClusterMixture(N, D, agent_dim=2)
    assert np.isnan(policy.agent_features).all()
    assert shoal.ClusterMixture(N, D).agent_features.shape == (N, 0)


def check(policy: Any) -> None:
    """Profiles are those of the agents who are in each cluster."""
    profiles = policy.state.pool.clusters.profiles
    for cluster in range(len(profiles.counts)):
        for j, column in enumerate(policy.agent_features[policy.state.labels == cluster].T):
            there = column[~np.isnan(column)]
            assert profiles.counts[cluster, j] == len(there)
            if len(there):
                np.testing.assert_allclose(profiles.means[cluster, j], there.mean(), rtol=1e-12)
                squares = np.sum((there - there.mean()) ** 2)
                np.testing.assert_allclose(profiles.squares[cluster, j], squares, atol=1e-9)


def test_profiles_follow_whoever_comes_goes_merges_or_stops_lending() -> None:
    policy = played(120)
    check(policy)
    policy.add_agents(3, agent_features=described()[:3])
    play(policy, 120, seed=2)
    check(policy)
    changes: list[Callable[[], None]] = [
        lambda: policy.remove_agent(0),
        lambda: policy.merge(1, 2),
        lambda: policy.set_sharing(4, "borrow"),
        lambda: policy.set_features(5, [1e12, math.nan]),
        lambda: policy.set_features(5, [12.0, 1.0]),
        lambda: policy.remove_agent(0, withdraw=True),
        lambda: policy.set_sharing(4, "both"),
    ]
    for change in changes:
        change()
        check(policy)
        play(policy, 40, seed=3)
        check(policy)
    assert policy.agent_features[1, 1] == described()[2, 1]  # what was missing, as of whom it was merged with
    assert np.isnan(policy.agent_features[[0, 2]]).all()


@pytest.mark.parametrize("how", ["withdraw", "merge", "change"])
def test_no_number_of_a_person_s_features_stays(how: str, tmp_path: Path) -> None:
    policy = shoal.ClusterMixture(N, D, agent_features=described(), seed=3)
    policy.set_features(4, [14.0 + math.pi, math.e])
    play(policy, 250)
    found = floats(policy.agent_features[4])
    if how == "merge":
        policy.merge(5, 4)
    elif how == "change":
        policy.set_features(4, [12.0, 6.0])
    else:
        policy.remove_agent(4, withdraw=True)
    content = bytes(policy.to_bytes())
    assert not [value for value in found if value in content]
    for leaf in fields.leaves(type(policy.state)):
        if leaf.field.role is not fields.Role.SETTING:
            assert not found & floats(leaf.get(policy.state)), leaf.name
    # What is summed is, to the bit, what it would be had the person never said so.
    again = copy.copy(policy)
    again.set_features(0, policy.agent_features[0])
    for ours, theirs in zip(
        policy.state.pool.clusters.profiles, again.state.pool.clusters.profiles, strict=True
    ):
        assert np.array_equal(ours, theirs)
    if how != "merge":
        assert not policy.state.temper_votes[4].any()
    np.testing.assert_allclose(policy.state.pool.model.temper_tally, policy.state.temper_votes.sum(axis=0))


def test_nothing_stays_in_sums_of_who_stops_lending() -> None:
    policy = shoal.ClusterMixture(N, D, agent_features=described() / 3.0, seed=3)
    play(policy, 250)
    policy.set_sharing(4, "borrow")
    again = copy.copy(policy)
    again.set_features(0, policy.agent_features[0])
    for ours, theirs in zip(
        policy.state.pool.clusters.profiles, again.state.pool.clusters.profiles, strict=True
    ):
        assert np.array_equal(ours, theirs)
    assert not policy.state.temper_votes[4].any()


def test_a_cluster_that_dissolves_has_no_profile() -> None:
    policy = played()
    members = np.flatnonzero(policy.labels == policy.labels[0])
    assert len(members) > 2
    for agent in members.tolist():
        policy.remove_agent(agent)
        check(policy)
    assert not policy.state.pool.clusters.profiles.counts[policy.labels[0]].any() or policy.labels[0] < 0


def test_a_saved_policy_goes_on_with_what_it_knows_of_agents(tmp_path: Path) -> None:
    policy = played()
    policy.save(tmp_path / "p")
    loaded = shoal.ClusterMixture.load(tmp_path / "p")
    assert np.array_equal(loaded.agent_features, policy.agent_features, equal_nan=True)
    assert play(loaded, 100, seed=5) == play(policy, 100, seed=5)
    for name, array in kept(policy).items():
        assert np.array_equal(array, kept(loaded)[name], equal_nan=array.dtype.kind == "f"), name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pool.members.features", math.inf, "holds inf"),
        ("pool.members.features", -1e40, "less than -1e.30"),
        ("pool.members.features", 3.0, "profiles.counts does not count"),
        ("pool.clusters.profiles.counts", -1.0, "holds -1.0, which is less than 0"),
        ("pool.clusters.profiles.counts", 1e9, "profiles.counts does not count"),
        ("pool.clusters.profiles.means", 1.0, "profiles.means is not the mean"),
        ("pool.clusters.profiles.squares", 99.0, "profiles.squares is not the spread"),
        ("pool.model.temper_tally", 5.0, "temper_tally is not the sum"),
        ("temper_votes", math.nan, "holds nan"),
    ],
)
def test_a_file_whose_features_do_not_fit_is_refused(field: str, value: float, message: str) -> None:
    contents = parse(Path("p"), bytes(played(60).to_bytes()))
    header = {
        "policy": contents.policy,
        "n_agents": N,
        "dim": D,
        "parameters": contents.parameters,
    }
    array = np.full_like(contents.arrays[field], value)
    with pytest.raises(shoal.PolicyFileError, match=message):
        restore(pack(header, {**contents.arrays, field: array}))
    withdrawn = {**contents.parameters, "agent_dim": 3}
    with pytest.raises(shoal.PolicyFileError, match="expected"):
        restore(pack({**header, "parameters": withdrawn}, contents.arrays))


def restore(content: Any) -> Any:
    from shoal.core.policies.registry import policy_from_bytes

    return policy_from_bytes(bytes(content), "p")


def test_a_withdrawn_agent_with_features_is_refused() -> None:
    policy = played(60)
    policy.remove_agent(4, withdraw=True)
    policy.state.pool.members.features[4] = 1.0
    with pytest.raises(shoal.PolicyFileError, match="a withdrawn agent has features"):
        restore(policy.to_bytes())


def test_nobody_notices_what_is_known_of_an_agent_who_does_not_lend() -> None:
    def run(features: list[float]) -> Any:
        policy = shoal.ClusterMixture(N, D, agent_features=described(), seed=3)
        policy.set_sharing(2, "borrow")
        policy.set_features(2, features)
        play(policy, 250)
        return {
            k: v for k, v in kept(policy).items() if "features" not in k and k.startswith("pool.clusters")
        }

    ours, theirs = run([1e3, -1e3]), run([math.nan] * 2)
    for name, array in ours.items():
        # It may have chosen other arms; but where the others are, and what they are like, is the same.
        if "profiles" in name:
            assert np.array_equal(array, theirs[name]), name


def test_policies_of_a_kind_can_be_built() -> None:
    assert build("drift", agent_dim=2).temper == 1.0
