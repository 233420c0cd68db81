"""Agents who borrow and do not lend, and agents who do neither: what they and the others then choose by."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import reference
from tests.core.contracts.test_policies import LIVE, D, N, make, play, refit, snapshot, world

import shoal

SHY = 3
"""The agent who does not lend."""
kinds = pytest.mark.parametrize("kind", [*LIVE, "crowd", "noise", "noise in a crowd", "drift"])
"""Live policies, BASS for a crowd, BASS that estimates the noise, and a mixture that learns all it can."""


def build(kind: str, **more: Any) -> Any:
    """A policy of one of the `kinds`."""
    own: dict[str, Any] = {"scatter": None, "drift": True} if kind == "drift" else {}
    if kind.startswith("noise"):
        own["noise_scale"] = None
    named = {"crowd": "bass", "noise": "bass", "noise in a crowd": "bass", "drift": "cluster_mixture"}
    return make(named.get(kind, kind), **(own | more))


def samples(rounds: int, seed: int = 0) -> list[tuple[int, Any, float]]:
    """Who pulled what, and the reward: three clusters, of which the shy agent's changes."""
    rng, found = np.random.default_rng(seed), []
    theta = world().theta_star
    assert theta is not None
    for n in range(rounds):
        agent, x = int(rng.integers(N)), rng.standard_normal(D)
        sign = -1.0 if agent == SHY and n > rounds // 2 else 1.0
        found.append((agent, x, float(sign * x @ theta[agent] + 0.5 * rng.standard_normal())))
    return found


def pass_a_round(policy: Any) -> None:
    """Let a round go by in which nobody learns anything."""
    policy.begin(1, np.ones(D))
    policy.cancel(1, np.ones(D))


def pooled(policy: Any, agent: int) -> tuple[Any, Any]:
    """What an agent chooses by: the predictions and widths of some arms."""
    scores = policy.scores(agent, np.vstack([np.eye(D), np.ones((1, D)), world().arms]))
    return scores.mean, scores.width


@kinds
@pytest.mark.parametrize("mode", ["borrow", "none"])
def test_nobody_else_notices_an_agent_who_does_not_lend(kind: str, mode: str) -> None:
    policy, without = build(kind), build(kind)
    shy = (0, SHY, 4)  # the lowest id, which clusters are named after, is among them
    for agent in shy:
        policy.set_sharing(agent, mode)
        without.remove_agent(agent, withdraw=True)
    others = [agent for agent in range(N) if agent not in shy]
    for n, (agent, x, reward) in enumerate(samples(400)):
        if n % 5 == 0:
            policy.begin(agent, x)
            if agent not in shy:
                without.begin(agent, x)
        policy.update(agent, x, reward, begun=n % 5 == 0)
        if agent not in shy:
            without.update(agent, x, reward, begun=n % 5 == 0)
        else:
            pass_a_round(without)
        if n % 8 == 0:
            for other in others[n % 3 :: 3]:
                np.testing.assert_allclose(pooled(policy, other), pooled(without, other), atol=1e-9)
                assert policy.choose(other, world().arms).arm == without.choose(other, world().arms).arm
    assert np.array_equal(policy.graph[np.ix_(others, others)], without.graph[np.ix_(others, others)])
    if kind in ("cluster_mixture", "drift"):
        assert np.array_equal(policy.state.drift.rate, without.state.drift.rate)
    for other in others:
        assert not set(shy) & set(policy.neighbors(other).tolist())
        assert list(policy.neighbors(other)) == list(without.neighbors(other))


@kinds
def test_nobody_waits_for_an_agent_who_does_not_lend(kind: str) -> None:
    policy = build(kind)
    policy.set_sharing(SHY, "borrow")
    for agent, x, reward in samples(100):
        policy.update(agent, x, reward)
    before = [pooled(policy, agent) for agent in range(N)]
    policy.begin(SHY, np.ones(D))
    policy.state.common.clock[0] -= 1
    for agent in range(N):
        if agent != SHY:
            np.testing.assert_allclose(pooled(policy, agent), before[agent], atol=1e-9)
    policy.cancel(SHY, np.ones(D))
    np.testing.assert_allclose(pooled(policy, SHY), before[SHY], atol=1e-9)


@kinds
def test_an_agent_who_does_not_borrow_chooses_as_if_alone(kind: str) -> None:
    policy = build(kind, alpha=0.7)
    learns = kind.startswith("noise")
    alone = shoal.Independent(N, D, alpha=0.7, seed=0, noise_scale=None if learns else 1.0)
    policy.set_sharing(SHY, "none")
    own: list[Any] = []
    for n, (agent, x, reward) in enumerate(samples(200)):
        for each in (policy, alone):
            if n % 5 == 0:
                each.begin(agent, x)
            each.update(agent, x, reward, begun=n % 5 == 0)
        own += [(x, reward)] if agent == SHY else []
        if n > 100 and kind in ("cluster_mixture", "drift"):
            break  # it has changed, and these may notice
        assert np.array_equal(pooled(policy, SHY), pooled(alone, SHY))
        assert policy.select(SHY, world().arms) == alone.select(SHY, world().arms)
    assert list(policy.neighbors(SHY)) == [SHY]
    assert np.array_equal(policy.estimate(SHY), policy.local_estimate(SHY))
    # what it would predict if it borrowed is told all the same
    x = world().arms[1]
    told = policy.predict(SHY, x)
    ridge = twin_of(alone, [(SHY, *sample) for sample in own]).ridge_of([SHY]) if learns else 1.0
    assert told.own == pytest.approx(reference.fit(own, D, ridge).theta_hat @ x, abs=1e-9)
    policy.set_sharing(SHY, "borrow")
    assert policy.predict(SHY, x) == told
    assert policy.scores(SHY, x[None]).mean[0] == told.pooled


@kinds
def test_a_borrower_uses_its_neighbours_samples_and_its_own(kind: str) -> None:
    policy, log = build(kind, ridge=0.5), list[Any]()
    policy.set_sharing(SHY, "borrow")
    borrowed = 0
    for n, (agent, x, reward) in enumerate(samples(250)):
        policy.update(agent, x, reward)
        log.append((agent, x, reward))
        if n % 10 == 0 and kind != "drift" and n < 125:
            naive = expected(policy, SHY, log)
            np.testing.assert_allclose(policy.estimate(SHY), naive, atol=1e-9)
            np.testing.assert_allclose(policy.scores(SHY, np.eye(D)).mean, naive, atol=1e-9)
        own, pooled = policy.predict(SHY, np.ones(D))
        borrowed += own != pooled
    assert (borrowed == 0) == (kind == "independent")


def twin_of(policy: Any, log: list[Any]) -> reference.BASS:
    """A twin that learns units, and has seen the same samples; it shares as the policy does."""
    twin = reference.BASS(N, D, alpha=0.5, ridge=policy.parameters["ridge"], delta=0.1, noise_scale=None)
    for t, (agent, x, reward) in enumerate(log, start=1):
        twin.observe(agent, x, reward, t)
    twin.edges, twin.lends = policy.graph, policy.state.common.lends.tolist()
    return twin


def expected(policy: Any, agent: int, log: list[Any]) -> Any:
    """The estimate that an agent should choose by, from raw samples."""
    if hasattr(policy, "posterior"):
        return refit(policy, agent, log, 0.5)
    if policy.parameters.get("noise_scale", 1.0) is None:
        return twin_of(policy, log).pooled(agent).theta_hat
    used = policy._used(agent)
    return reference.fit([(x, y) for who, x, y in log if used[who]], D, 0.5).theta_hat


@kinds
def test_a_change_of_mind_is_exact(kind: str, tmp_path: Path) -> None:
    policy, rng, log = build(kind, ridge=0.5), np.random.default_rng(2), list[Any]()
    modes = ("both", "borrow", "none")
    for n, (agent, x, reward) in enumerate(samples(300, seed=1)):
        policy.update(agent, x, reward)
        log.append((agent, x, reward))
        if n % 4 == 0:
            who, mode = int(rng.integers(N)), modes[int(rng.integers(3))]
            policy.set_sharing(who, mode)
            assert policy.sharing(who) == mode
        if n % 30 == 0:
            policy.save(tmp_path / "p")
            again: Any = shoal.load_policy(tmp_path / "p")  # which checks every sum against the agents' own
            assert [again.sharing(each) for each in range(N)] == [policy.sharing(each) for each in range(N)]
            for key in ("labels", "sizes", "waiting", "degree"):
                if hasattr(policy.state, key):  # counts that are computed anew when a file is read
                    assert np.array_equal(getattr(again.state, key), getattr(policy.state, key)), key
    for agent in range(N):
        policy.set_sharing(agent, "both")
    assert policy.state.common.restricted[0] == 0
    if kind not in ("cluster_mixture", "drift"):
        for agent in range(N):
            np.testing.assert_allclose(policy.estimate(agent), expected(policy, agent, log), atol=1e-8)
    policy.save(tmp_path / "p")
    assert play(shoal.load_policy(tmp_path / "p"), 40) == play(policy, 40)


@kinds
def test_modes_are_the_same_for_newcomers(kind: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {"labels": [0, 1]} if kind == "oracle" else {}
    policy, other = build(kind), build(kind)
    for agent, x, reward in samples(120):
        policy.update(agent, x, reward)
        other.update(agent, x, reward)
    policy.add_agents(2, sharing="borrow", **own)
    for newcomer in other.add_agents(2, **own).tolist():
        other.set_sharing(newcomer, "borrow")
    for each in (policy, other):
        play(each, 60)
        each.remove_agent(N)
        each.remove_agent(N + 1, withdraw=True)
        play(each, 30, seed=1)
        each.save(tmp_path / ("p" if each is policy else "other"))
    assert (tmp_path / "p").read_bytes() == (tmp_path / "other").read_bytes()
    assert play(shoal.load_policy(tmp_path / "p"), 40) == play(policy, 40)


@kinds
def test_the_cost_counts_those_who_use_a_sample(kind: str) -> None:
    policy = build(kind)
    policy.set_sharing(SHY, "borrow")
    policy.set_sharing(5, "none")
    for agent, x, reward in samples(200):
        # a mixture's samples go to the agents of a cluster, of whom there are none that do not lend
        users = [other for other in policy.agents if other != agent and policy._used(other)[agent]]
        before = policy.communication_cost
        policy.update(agent, x, reward)
        if kind not in ("cluster_mixture", "drift"):
            assert policy.communication_cost - before == len(users)
        elif agent in (SHY, 5):
            assert policy.communication_cost == before


@kinds
def test_wrong_modes_are_named(kind: str) -> None:
    policy = build(kind)
    policy.remove_agent(1)
    before = snapshot(policy)
    own: dict[str, Any] = {"labels": [0]} if kind == "oracle" else {}
    message = "sharing must be one of 'both', 'borrow', 'none', got 'lend'"
    with pytest.raises(ValueError, match=message):
        policy.set_sharing(0, "lend")
    with pytest.raises(ValueError, match=message):
        policy.add_agents(1, sharing="lend", **own)
    with pytest.raises(ValueError, match="agent 1 has been removed"):
        policy.set_sharing(1, "none")
    with pytest.raises(ValueError, match="agent must be in 0"):
        policy.sharing(N)
    assert snapshot(policy) == before


def test_a_live_policy_must_say_what_becomes_of_samples_that_are_taken_back() -> None:
    class Forgetful(shoal.LivePolicy):
        name = "forgetful"
        _edges = shoal.Independent._edges
        _pool = shoal.Independent._pool
        _pooled_estimate = shoal.Independent._pooled_estimate

    with pytest.raises(TypeError, match=r"_amended.*_end_edges.*_lending_changed.*_withdraw"):
        Forgetful(2, D)  # type: ignore[abstract]
