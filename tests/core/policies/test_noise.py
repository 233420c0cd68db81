"""BASS that estimates the noise: each agent's from its own samples, with the same cuts as the naive twin."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2
from tests import reference
from tests.core.policies.test_against_reference import ASYNCHRONOUS, SYNCHRONOUS, both, play_both

import shoal
from shoal.core.policies.bass import crowd
from shoal.core.policies.bass import policy as bass
from shoal.core.policy.files import PolicyFileError

N, D = 8, 3


@pytest.fixture(params=["witnesses", "crowd"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both engines."""
    if request.param == "crowd":
        monkeypatch.setattr(bass, "WITNESS_BYTES", 0)


def make(n: int = N, d: int = D, **own: Any) -> shoal.BASS:
    return shoal.BASS(n, d, **{"gamma": 1.0, "seed": 0, "noise_scale": None, **own})


def samples(n: int, seed: int = 0) -> list[tuple[int, Any, float]]:
    """Pulls of agents of two kinds, whose noise differs: agent, arm, reward."""
    rng, tastes = np.random.default_rng(seed), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = []
    for _ in range(n):
        agent, x = int(rng.integers(N)), rng.standard_normal(D)
        found.append((agent, x, float(x @ tastes[agent % 2] + 0.1 * (1 + agent) * rng.standard_normal())))
    return found


def learn(policy: shoal.BASS, log: list[tuple[int, Any, float]]) -> None:
    for agent, x, y in log:
        policy.update(agent, x, y)


def naive(log: list[tuple[int, Any, float]], agent: int, ridge: float, unit: float) -> float:
    """The limit of an agent's noise as the twin computes it, its ridge measured by `unit`."""
    twin = reference.BASS(N, D, alpha=0.5, delta=0.1, ridge=ridge, noise_scale=None)
    for t, (who, x, y) in enumerate(log, start=1):
        if who == agent:
            twin.observe(who, x, y, t)
    if twin.samples[agent]:
        assert 1 / 3 < unit / twin.unit_of([agent]) < 3
        twin.units[agent] = unit
    found = twin.noise_of(agent)
    return math.inf if found == 1e30 else found


@pytest.mark.parametrize("radius", ["beta", "beta_squared"])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (5, 2), (6, 10), (16, 4)])
def test_same_runs_as_the_twin(n: int, d: int, radius: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both engines, online and in simulations; the noise differs from agent to agent."""
    scales = np.array([0.3, 0.8, 2.0])[np.arange(n) % 3]
    environment = shoal.GaussianClusters(n, d, min(3, n), n_arms=6, noise_scale=scales.tolist(), seed=n)
    gamma = 2.0 if radius == "beta" else 0.8
    own: dict[str, Any] = {"delta": 0.3, "gamma": gamma, "radius": radius, "ridge": 0.7, "noise_scale": None}
    policy, twin = both("bass", environment, 0.5, 0, **own)
    trace = shoal.simulate(copy.deepcopy(policy), environment, horizon=350, seed=d)
    for t, (agent, k, reward) in enumerate(
        zip(trace.agents, trace.choices, trace.rewards, strict=True), start=1
    ):
        assert policy.select(agent, environment.arms) == k == twin.select(agent, environment.arms, t)
        policy.update(agent, environment.arms[k], reward)
        twin.observe(agent, environment.arms[k], reward, t)
        twin.revise(agent, t)
    limits = np.array([twin.noise_of(agent) for agent in range(n)])
    np.testing.assert_allclose(policy.noise_scales, np.where(limits < 1e30, limits, np.inf), rtol=1e-7)
    monkeypatch.setattr(bass, "WITNESS_BYTES", 0)
    other = shoal.make_policy("bass", n, d, alpha=0.5, seed=0, **own)
    assert isinstance(other.state, crowd.State)
    there = shoal.simulate(other, environment, horizon=350, seed=d)
    assert np.array_equal(there.choices, trace.choices)
    found: Any
    for found in (policy, trace, other, there):
        assert np.array_equal(found.separation_time, twin.separation_time)
    if n >= 5:
        assert (policy.separation_time > 0).any()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("pulling", [ASYNCHRONOUS, SYNCHRONOUS])
def test_same_compiled_runs_as_the_twin(pulling: str) -> None:
    environment = shoal.SyntheticClusters(8, 3, 2, 7 * math.pi / 16, seed=1)
    policy, twin = both("bass", environment, 0.4, 0, delta=0.1, gamma=1.0, noise_scale=None)
    play_both(policy, twin, environment, pulling, 400 if pulling == ASYNCHRONOUS else 50, 0)
    assert (policy.separation_time > 0).any()


@pytest.mark.usefixtures("engine")
def test_agents_that_come_and_go() -> None:
    rng, environment = np.random.default_rng(2), shoal.SyntheticClusters(9, 3, 3, 1.2, seed=2)
    policy, twin = both("bass", environment, 0.4, 0, delta=0.1, gamma=1.0, noise_scale=None)
    theta = environment.theta_star
    assert theta is not None
    for t in range(1, 401):
        agent = int(rng.choice(policy.agents))
        k = policy.select(agent, environment.arms)
        assert k == twin.select(agent, environment.arms, t)
        x = environment.arms[k]
        reward = float(x @ theta[agent % 9] + (0.2 + agent % 3) * rng.normal())
        policy.update(agent, x, reward)
        twin.observe(agent, x, reward, t)
        twin.revise(agent, t)
        if t in (60, 200, 300):
            leaver = int(rng.choice(policy.agents))
            policy.remove_agent(leaver, withdraw=t == 200)
            twin.leave(leaver, withdraw=t == 200)
        if t in (100, 250):
            policy.add_agents(2)
            twin.join(2)
    there = policy.agents
    assert np.array_equal(policy.graph[np.ix_(there, there)], twin.graph()[np.ix_(there, there)])
    assert np.array_equal(policy.separation_time, twin.separation_time)
    assert (policy.separation_time > 0).any()


@pytest.mark.usefixtures("engine")
def test_an_agent_s_limit_depends_on_nobody_else() -> None:
    log, policy = samples(400), make()
    learn(policy, log)
    for agent in range(N):
        alone = make()
        learn(alone, [entry for entry in log if entry[0] == agent])
        assert alone.noise_scales[agent] == policy.noise_scales[agent]
        assert alone.state.radius[agent] == policy.state.radius[agent]


@pytest.mark.usefixtures("engine")
def test_corrections_withdrawals_and_merges_are_exact(tmp_path: Path) -> None:
    policy, log = make(ridge=0.5), samples(300)
    learn(policy, log)

    def check(policy: shoal.BASS, gone: tuple[int, ...] = ()) -> None:
        for agent in set(range(N)) - set(gone):
            assert policy.noise_scales[agent] == pytest.approx(
                naive(log, agent, 0.5, policy.state.lengths[agent]), rel=1e-8
            )
            assert policy.state.squares[agent] == pytest.approx(
                sum(y**2 for who, _, y in log if who == agent), rel=1e-12
            )
        for agent in gone:
            assert policy.state.squares[agent] == 0.0
        again = policy._engine(policy.n_agents)
        before = policy.state.radius.copy()
        again.describe(policy.pinned_state(), 0, policy.n_agents)
        assert np.array_equal(before, policy.state.radius)  # nothing lags behind

    check(policy)
    for place in (5, 90, 200):
        agent, x, old = log[place]
        policy.correct(agent, x, old, 3.0, reconsider=place == 90)
        log[place] = agent, x, 3.0
        check(policy)
    for place in (150, 30):
        agent, x, old = log.pop(place)
        policy.retract(agent, x, old)
        check(policy)
    policy.save(tmp_path / "p")
    again = shoal.BASS.load(tmp_path / "p")
    assert np.array_equal(again.state.radius, policy.state.radius)
    assert again.parameters["noise_scale"] is None
    policy.remove_agent(6, withdraw=True)
    log = [entry for entry in log if entry[0] != 6]
    check(policy, (6,))
    policy.merge(1, 3)
    log = [(1 if who == 3 else who, x, y) for who, x, y in log]
    check(policy, (3, 6))


@pytest.mark.usefixtures("engine")
def test_taking_back_every_sample_leaves_no_square() -> None:
    policy, log = make(), samples(60)
    learn(policy, log)
    for agent, x, y in [entry for entry in log if entry[0] == 2]:
        policy.retract(agent, x, y)
    assert policy.state.squares[2] == 0.0
    policy.correct(4, next(x for who, x, _ in log if who == 4), 1e6, 0.0)  # not what it had learned
    assert policy.state.squares[4] == 0.0
    assert np.isfinite(policy.state.radius).all()


@pytest.mark.usefixtures("engine")
def test_with_no_more_samples_than_dimensions_rewards_count_as_noise() -> None:
    policy, rng = make(3, 4, gamma=0.1), np.random.default_rng(0)
    rewards = []
    for t in range(40):
        x = rng.standard_normal(4)
        policy.update(1, x, 100.0 * x[0])
        if t < 4:
            policy.update(0, x, -100.0 * x[0])
            rewards.append(-100.0 * x[0])
    middle = reference.chi_square_quantile(4, 0.5)
    assert policy.noise_scales[0] == pytest.approx(math.sqrt(np.sum(np.square(rewards)) / middle))
    assert policy.noise_scales[1] < 5.0
    assert policy.noise_scales[2] == math.inf
    assert policy.graph[1, 2]
    said = policy.explain(1, 2)
    assert math.isnan(said.allowed)
    assert math.isinf(said.noise_other)
    assert "agent 2 has too few samples to tell that from noise" in str(said)
    assert np.isfinite(policy.explain(0, 1).allowed)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("param_norm", [0.0, 1.0])
@pytest.mark.parametrize("size", [0.0, 1e-12, 1.0, 1e12])
def test_rewards_without_noise(size: float, param_norm: float) -> None:
    """The limit is then what rounding cannot tell from none, and numbers stay numbers."""
    policy, rng = (
        make(4, 3, param_norm=param_norm, radius="beta_squared", gamma=2.0),
        np.random.default_rng(0),
    )
    for t in range(200):
        x = rng.standard_normal(3)
        policy.update(t % 4, x, size * float(x[t % 2]))
    assert np.isfinite(policy.state.radius).all()
    assert (policy.state.radius > 0.0).all()
    assert (policy.noise_scales < 0.1 * size + 1e-29).all()
    if size >= 1.0:
        assert not policy.graph[0, 1]
    if size <= param_norm:  # else S says nothing of what the ridge does to estimates
        assert policy.graph[0, 2]
        assert policy.graph[1, 3]


def test_the_quantile_is_that_of_chi_square() -> None:
    for delta in (0.5, 0.3, 0.1, 0.01, 1e-4):
        for degrees in (1, 2, 5, 10, 40, 300):
            approximate, exact = reference.chi_square_quantile(degrees, delta), chi2.ppf(delta, degrees)
            assert approximate <= exact * (
                1.001 if delta <= 0.1 else 1.035
            )  # or the limit would be too small
            assert degrees < 10 or delta < 0.01 or approximate >= 0.98 * exact


@pytest.mark.parametrize(
    ("radius", "delta", "level"),
    [
        ("beta_squared", 0.02, 0.02),
        ("beta_squared", 0.1, 0.1),
        ("beta_squared", 0.9, 0.5),
        ("beta", 0.1, 0.5),
    ],
)
def test_the_limit_exceeds_the_noise_as_often_as_it_says(radius: str, delta: float, level: float) -> None:
    """For arms that were chosen beforehand: 2,000 agents with 12 samples each."""
    n, d, rng = 2000, 4, np.random.default_rng(1)
    policy = make(n, d, radius=radius, delta=delta)
    arms, theta = rng.standard_normal((12, d)), rng.standard_normal((n, d))
    agents = np.tile(np.arange(n), 12)
    xs = np.repeat(arms, n, axis=0)
    rewards = np.einsum("nd,nd->n", xs, theta[agents]) + 1.7 * rng.standard_normal(12 * n)
    policy.follow(np.full(12 * n, 3), agents, xs, rewards, np.zeros((0, 2), int))
    missed, chance = np.mean(policy.noise_scales < 1.7), 3.0 * math.sqrt(level * (1.0 - level) / n)
    assert 0.5 * level - chance <= missed <= level + chance  # and it is not wider than it need be


def test_known_noise_takes_no_sums_of_squares() -> None:
    assert make(noise_scale=1.0).state.squares.shape == (0,)
    assert make(noise_scale=2.0).noise_scales.tolist() == [2.0] * N


def test_files_that_lie_are_refused(tmp_path: Path) -> None:
    policy = make()
    learn(policy, samples(20))
    for value, message in ((-1.0, "'squares'"), (np.nan, "'squares'")):
        wrong = copy.deepcopy(policy)
        wrong.state.squares[0] = value
        wrong.save(tmp_path / "p")
        with pytest.raises(PolicyFileError, match=message):
            shoal.load_policy(tmp_path / "p")
    wrong = make()
    wrong.state.squares[3] = 1.0
    wrong.save(tmp_path / "p")
    with pytest.raises(PolicyFileError, match="squares are not 0 where there are no samples"):
        shoal.load_policy(tmp_path / "p")
