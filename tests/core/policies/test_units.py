"""BASS and Independent with `noise_scale=None`: arms and rewards in any units make the same choices."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.policies.test_against_reference import ASYNCHRONOUS, SYNCHRONOUS, both, play_both

import shoal
from shoal.core.policies.bass import policy as bass
from shoal.core.policy.files import PolicyFileError

LATE = ("uniform", 0, 12)


def make(kind: str, **own: Any) -> Any:
    """A policy of 8 agents; BASS has two engines."""
    own = {"noise_scale": None, "seed": 0, **own}
    if kind == "independent":
        return shoal.Independent(8, 3, **own)
    with pytest.MonkeyPatch.context() as patch:
        if kind == "crowd":
            patch.setattr(bass, "WITNESS_BYTES", 0)
        return shoal.BASS(8, 3, **{"gamma": 1.5, **own})


KINDS = pytest.mark.parametrize("kind", ["independent", "witnesses", "crowd"])


def play(kind: str, arm: float, reward: float, rounds: int = 250, **own: Any) -> tuple[list[int], Any]:
    """Choices and the policy of a life with arms and rewards times factors, in which all can happen."""
    policy, rng, theta = make(kind, **own), np.random.default_rng(3), np.eye(3)
    choices, log = [], []
    with pytest.MonkeyPatch.context() as patch:
        if kind == "crowd":
            patch.setattr(bass, "WITNESS_BYTES", 0)
        for t in range(rounds):
            agent, arms = int(rng.choice(policy.agents)), rng.standard_normal((6, 3))
            k = policy.select(agent, arm * arms)
            y = reward * float(arms[k] @ theta[agent % 3] + 0.5 * rng.standard_normal())
            if t % 5 == 0:  # its reward is late
                policy.begin(agent, arm * arms[k])
                choices += [policy.select(agent, arm * arms)]
            policy.update(agent, arm * arms[k], y, begun=t % 5 == 0)
            choices.append(k)
            log.append((agent, arm * arms[k], y))
            if t == 100:
                policy.set_sharing(1, "none")
                policy.set_sharing(2, "borrow")
                policy.remove_agent(5, withdraw=True)
                policy.add_agents(1)
            if t == 150:
                for who, x, old in [entry for entry in log if entry[0] == 3][:2]:
                    policy.correct(who, x, old, -old)
                    policy.retract(who, x, -old)
                policy.merge(4, 6)
    return choices, policy


@KINDS
@pytest.mark.parametrize("exploration", ["ucb", "sample"])
def test_powers_of_two_make_no_difference_at_all(kind: str, exploration: str) -> None:
    plain, policy = play(kind, 1.0, 1.0, exploration=exploration)
    for arm, reward in ((2.0**-9, 1.0), (1.0, 2.0**-9), (2.0**8, 2.0**-3)):
        choices, scaled = play(kind, arm, reward, exploration=exploration)
        assert choices == plain
        assert np.array_equal(scaled.state.local.theta_hat * arm, policy.state.local.theta_hat * reward)
        assert np.array_equal(scaled.graph, policy.graph)
    if kind != "independent":
        assert len(policy.cuts) > 0


@KINDS
@settings(max_examples=15, deadline=None)
@given(arm=st.floats(-3, 3), reward=st.floats(-3, 3))
def test_units_make_no_difference(kind: str, arm: float, reward: float) -> None:
    plain, policy = play(kind, 1.0, 1.0, 160)
    choices, scaled = play(kind, 10.0**arm, 10.0**reward, 160)
    assert choices == plain
    assert np.array_equal(scaled.graph, policy.graph)
    np.testing.assert_allclose(
        scaled.state.local.theta_hat * 10.0**arm, policy.state.local.theta_hat * 10.0**reward, rtol=1e-6
    )


@KINDS
def test_units_make_no_difference_in_a_simulation(kind: str) -> None:
    theta = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])[np.arange(8) % 2]
    arms = np.random.default_rng(0).standard_normal((6, 3))
    found = []
    for arm, reward in ((1.0, 1.0), (2.0**-4, 2.0**7)):
        world = shoal.Environment(arm * arms, theta_star=reward / arm * theta, noise_scale=0.5 * reward)
        found.append(shoal.simulate(make(kind), world, horizon=500, seed=1).choices)
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("exploration", ["ucb", "sample"])
@pytest.mark.parametrize(("pulling", "delay"), [(ASYNCHRONOUS, 0), (SYNCHRONOUS, 0), (ASYNCHRONOUS, LATE)])
@pytest.mark.parametrize("noise_scale", [None, 0.4])
def test_independent_is_its_twin(exploration: str, pulling: str, delay: Any, noise_scale: Any) -> None:
    world = shoal.SyntheticClusters(5, 3, 2, 1.2, noise_scale=0.4, seed=1)
    own = {"exploration": exploration, "noise_scale": noise_scale, "ridge": 0.7}
    policy, twin = both("independent", world, 0.5, 0, **own)
    play_both(policy, twin, world, pulling, 250 if pulling == ASYNCHRONOUS else 40, 0, delay)


def test_an_agent_alone_and_one_that_shares_nothing_choose_alike() -> None:
    """Whatever others do: its units are its own."""
    rng, alone, shy = np.random.default_rng(0), make("independent"), make("witnesses")
    shy.set_sharing(2, "none")
    for _ in range(150):
        agent, arms = int(rng.integers(8)), rng.standard_normal((5, 3))
        k = shy.select(2, arms)
        assert k == alone.select(2, arms)
        y = float(rng.standard_normal() * (1 + 9 * (agent != 2)))
        shy.update(agent, arms[k], y)
        if agent == 2:
            alone.update(agent, arms[k], y)
        else:
            alone.begin(7, arms[k])  # a round passes
            alone.cancel(7, arms[k])


@KINDS
def test_who_leaves_takes_its_units_along(kind: str) -> None:
    """A withdrawn agent's samples, however large, leave nothing, to the bit for those who stay."""
    rng, with_it, without = np.random.default_rng(0), make(kind), make(kind)
    for t in range(200):
        agent, x = t % 8, rng.standard_normal(3)
        y = float(x[0] + 0.3 * rng.standard_normal())
        if agent == 3:
            with_it.update(3, 1e3 * x, 1e6 * y)
        else:
            with_it.update(agent, x, y)
            without.update(agent, x, y)
    for policy in (with_it, without):
        policy.remove_agent(3, withdraw=True)
    others = [0, 1, 2, 4, 5, 6, 7]
    for name in ("squares", "lengths"):
        assert np.array_equal(getattr(with_it.state, name), getattr(without.state, name))
    assert np.array_equal(with_it.state.local.A[others], without.state.local.A[others])
    if kind != "independent":
        assert np.array_equal(with_it.state.seen, without.state.seen)


@KINDS
def test_rewards_of_zero_and_arms_of_zero(kind: str) -> None:
    """Before there is a unit, it makes no difference which one is taken."""
    arms = np.eye(3)
    for size in (1.0, 2.0**-10, 2.0**10):
        policy = make(kind)
        policy.update(0, np.zeros(3), 0.0)
        played = []
        for _ in range(6):
            played.append(policy.select(0, size * arms))
            policy.update(0, size * arms[played[-1]], 0.0)
        assert played == [0, 1, 2, 0, 1, 2]  # it goes on exploring
        assert np.isfinite(policy.estimate(0)).all()


@KINDS
def test_taking_back_every_sample_leaves_no_unit(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    if kind == "crowd":
        monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
    policy, rng = make(kind), np.random.default_rng(0)
    pulls = [(rng.standard_normal(3) * 100.0, float(rng.standard_normal())) for _ in range(9)]
    policy.update(2, np.zeros(3), 0.0)
    for x, y in pulls:
        policy.update(2, x, y)
    for x, y in pulls:
        policy.retract(2, x, y)
    np.testing.assert_allclose(policy.state.local.A[2], np.eye(3), atol=1e-9)
    assert policy.state.lengths[2] == 0.0
    policy.save(tmp_path / "p")
    shoal.load_policy(tmp_path / "p")


@KINDS
def test_files_go_on_and_lies_are_refused(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    policy = play(kind, 1.0, 1.0)[1]
    if kind == "crowd":
        monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
    policy.save(tmp_path / "p")
    again = shoal.load_policy(tmp_path / "p")
    rng = np.random.default_rng(1)
    for _ in range(60):
        agent, arms = int(rng.choice(policy.agents)), rng.standard_normal((5, 3))
        k = policy.select(agent, arms)
        assert k == again.select(agent, arms)
        for one in (policy, again):
            one.update(agent, arms[k], float(arms[k, 0]))
    assert bytes(policy.to_bytes()) == bytes(again.to_bytes())
    lies = [("lengths", factor, "lengths are not those|seen is not") for factor in (1e3, 0.0)]
    lies += [("seen", 7.0, "seen is not the sum")] if kind != "independent" else []
    for name, factor, message in lies:
        wrong = copy.deepcopy(policy)
        getattr(wrong.state, name)[0] *= factor
        wrong.save(tmp_path / "p")
        with pytest.raises(PolicyFileError, match=message):
            shoal.load_policy(tmp_path / "p")


def test_the_noise_given_multiplies_the_width() -> None:
    rng, one, other = np.random.default_rng(0), shoal.Independent(2, 3), shoal.Independent(2, 3)
    other = shoal.Independent(2, 3, alpha=0.3, noise_scale=2.0)
    for _ in range(30):
        arms = rng.standard_normal((4, 3))
        assert np.array_equal(one.scores(0, arms).index, other.scores(0, arms).index)
        for policy in (one, other):
            policy.update(0, arms[0], float(arms[0, 0]))
    with pytest.raises(ValueError, match="clicks have no noise_scale, got None"):
        shoal.Independent(2, 3, rewards="binary", noise_scale=None)


def test_the_noise_is_learned() -> None:
    for scale in (0.1, 1.0, 30.0):
        policy, rng = shoal.Independent(1, 4, noise_scale=None), np.random.default_rng(0)
        for _ in range(500):
            x = rng.standard_normal(4)
            policy.update(0, x, float(x.sum() + scale * rng.standard_normal()))
        bonus = policy.scores(0, np.eye(4)).width
        width = 0.6 * np.sqrt(np.diag(policy.state.local.A_inv[0]) * np.log(policy.rounds + 2))
        assert bonus == pytest.approx(policy.noise_scales[0] * width, rel=1e-9)
        assert policy.noise_scales[0] == pytest.approx(scale, rel=0.15)
    assert shoal.Independent(1, 4, noise_scale=None).noise_scales[0] == np.inf
    assert shoal.Independent(1, 4, noise_scale=0.5).noise_scales[0] == 0.5
