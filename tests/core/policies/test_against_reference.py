"""Whole runs: compiled policies make the naive twins' choices and cut the same edges in the same rounds."""

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tests import reference
from tests.core.attack.common import SCALE

import shoal
from shoal.core.policies.registry import BUILT_IN, RIVALS, policy_class
from shoal.lab.benchmark import typical
from shoal.lab.environments.base import Environment

ASYNCHRONOUS, SYNCHRONOUS, SCHEDULE = "asynchronous", "synchronous", "schedule"


def both(name: str, environment: Environment, alpha: float, seed: int, **own: Any) -> tuple[Any, Any]:
    """A compiled policy and its twin, with the same parameters."""
    n, d = environment.n_agents, environment.dim
    policy = shoal.make_policy(name, n, d, alpha=alpha, seed=seed, **own)
    explored = {key: own.pop(key) for key in ("exploration", "bonus") if key in own}
    if name == "dynucb":
        own["labels"] = policy.labels
    if name == "locb":
        own["seeds"] = policy.seeds
    if name == "cluster_mixture":
        own["seed"] = seed
    home: Any = import_module(f"tests.twins.{name}") if name in RIVALS else reference
    twin = getattr(home, type(policy).__name__)(n, d, alpha=alpha, **own)
    twin.rng = reference.Xorshift(seed)
    vars(twin).update(explored)
    return policy, twin


def play_both(
    policy: Any, twin: Any, environment: Environment, pulling: str, horizon: int, seed: int, delay: Any = 0
) -> None:
    schedule: Any = pulling
    if pulling == SCHEDULE:
        rng = np.random.default_rng(seed)
        n = environment.n_agents
        schedule = [rng.permutation(n)[: rng.integers(0, n + 1)] for _ in range(horizon)]
    trace = shoal.simulate(
        policy, environment, horizon=horizon, seed=seed, pulling=schedule, points=7, delay=delay
    )
    if pulling == ASYNCHRONOUS:
        schedule = [[agent] for agent in trace.agents]
    elif pulling == SYNCHRONOUS:
        schedule = [list(range(environment.n_agents))] * horizon

    def arms(t: int) -> Any:
        return environment.arms_in(t, t)[0]

    def means(agent: int, t: int) -> Any:
        return environment.rewards_in(arms(t)[None], np.array([t]), np.array([agent]), first=t)[0]

    _, noise_source, lateness = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    noise = noise_source.standard_normal(len(trace.agents))
    noise *= np.broadcast_to(environment.noise_scale, environment.n_agents)[trace.agents]
    delays = None if delay == 0 else lateness.integers(delay[1], delay[2] + 1, size=len(trace.agents))
    naive = reference.run(twin, schedule, arms, means, noise, delays)
    assert np.array_equal(trace.agents, naive.agents)
    assert np.array_equal(trace.choices, naive.choices)
    np.testing.assert_allclose(trace.rewards, naive.rewards, rtol=1e-12)
    np.testing.assert_allclose(trace.regret, naive.regret, rtol=1e-9, atol=1e-9)
    assert np.array_equal(policy.graph, twin.graph())
    assert policy.communication_cost == twin.communication_cost == trace.communication[-1]
    assert trace.edges[-1] == twin.graph().sum() // 2
    if environment.labels is not None:
        assert trace.f1[-1] == pytest.approx(reference.f1(twin.graph(), environment.labels))
    for agent in range(environment.n_agents):
        assert list(policy.neighbors(agent)) == twin.pool(agent)
        np.testing.assert_allclose(policy.estimate(agent), twin.pooled(agent).theta_hat, atol=1e-8)
        np.testing.assert_allclose(policy.local_estimate(agent), twin.theta_hat([agent]), atol=1e-8)
        assert policy.pulls[agent] == len(twin.samples[agent])
    if hasattr(twin, "posterior"):
        same_posteriors(policy, twin)
    if hasattr(twin, "separation_time"):
        assert np.array_equal(policy.separation_time, twin.separation_time)
        assert trace.separation_time is not None
        assert np.array_equal(trace.separation_time, twin.separation_time)


def same_posteriors(policy: Any, twin: Any) -> None:
    """Clusters, their probabilities and the noise of a mixture and its twin."""
    assert policy.labels.tolist() == [-1 if label is None else label for label in twin.labels]
    assert policy.noise_variance == pytest.approx(twin.variance(), rel=1e-9)
    model = policy.state.pool.model
    assert policy.scatter == pytest.approx(twin.scatter, rel=1e-9)
    assert (model.unit[0], model.prior[0]) == pytest.approx((twin.unit, twin.prior), rel=1e-9)
    np.testing.assert_allclose(model.weights, twin.weights, rtol=1e-8)
    assert policy.temper == (twin.temper() if twin.features.shape[1] else 0.0)
    assert policy.forgot.tolist() == twin.forgot
    for agent in policy.agents:
        ours, theirs = policy.posterior(agent), twin.posterior(agent)
        assert list(ours) == list(theirs)
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), atol=1e-8)


CLASSES: dict[str, Any] = {name: policy_class(name) for name in BUILT_IN}
NAMES = list(CLASSES)
LIVE = [name for name, kind in CLASSES.items() if issubclass(kind, shoal.LivePolicy)]


def own_parameters(name: str, environment: Environment, gamma: float) -> dict[str, Any]:
    own: dict[str, dict[str, Any]] = {
        "club": {"gamma": gamma},
        "sclub": {"gamma": gamma},
        "cmlb": {"gamma": gamma, "exploration_rounds": 60},
        "dynucb": {"n_clusters": 3},
        "cluster_mixture": {"concentration": 1.5, "redraws": 2},
    }
    return {**typical(CLASSES[name], environment), **own.get(name, {})}


@pytest.mark.parametrize("pulling", [ASYNCHRONOUS, SYNCHRONOUS, SCHEDULE])
@pytest.mark.parametrize("name", NAMES)
def test_same_run(name: str, pulling: str) -> None:
    # Each policy meets both angles, and so does each way of pulling; not all three together.
    seed = (NAMES.index(name) + (pulling == SYNCHRONOUS)) % 2
    angle = (math.pi / 16, 7 * math.pi / 16)[seed]
    environment = shoal.SyntheticClusters(12, 4, 3, angle, seed=seed)
    # thresholds at which clusters form, split and merge within the run
    gamma = {"club": 0.45, "sclub": 0.7, "cmlb": 0.9}.get(name, 1.0)
    policy, twin = both(name, environment, 0.4, seed, **own_parameters(name, environment, gamma))
    horizon = 400 if pulling == ASYNCHRONOUS else 60
    if pulling != ASYNCHRONOUS and name == "cmlb":
        horizon = 80
    play_both(policy, twin, environment, pulling, horizon, seed)


SIZES = [(n, d, radius) for n, d in ((1, 1), (2, 1), (5, 2), (8, 20)) for radius in ("beta", "beta_squared")]


@pytest.mark.parametrize(("n", "d", "radius"), [*SIZES, (30, 5, "beta_squared"), (60, 3, "beta")])
def test_bass_over_sizes(n: int, d: int, radius: str) -> None:
    environment = shoal.GaussianClusters(n, d, min(3, n), n_arms=6, seed=n)
    gamma = 2.0 if radius == "beta" else 0.8
    policy, twin = both(
        "bass", environment, 0.5, 0, delta=0.3, gamma=gamma, radius=radius, ridge=0.7, noise_scale=1.3
    )
    play_both(policy, twin, environment, ASYNCHRONOUS, 300, seed=d)
    if n >= 5:
        assert (policy.separation_time > 0).any()


@pytest.mark.parametrize("noise_scale", [None, 0.8])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (5, 2), (8, 20), (25, 5)])
def test_cluster_mixture_over_sizes(n: int, d: int, noise_scale: float | None) -> None:
    environment = shoal.GaussianClusters(
        n, d, min(3, n), n_arms=20, seed=n
    )  # more arms than fit side by side
    own: dict[str, Any] = {"spread": 0.7, "concentration": 3.0, "redraws": n % 3, "ridge": 0.7}
    policy, twin = both("cluster_mixture", environment, 0.5, 3, noise_scale=noise_scale, **own)
    play_both(policy, twin, environment, ASYNCHRONOUS, 250, seed=d)
    if n == 25:
        assert len(set(policy.labels)) > 1
        assert np.bincount(policy.labels).max() > 2


@pytest.mark.parametrize("own", [{}, {"scatter": 0.0, "drift": False}])
def test_a_mixture_of_agents_whose_noises_differ(own: dict[str, Any]) -> None:
    noise = [0.05, 0.5, 5.0] * 4
    environment = shoal.GaussianClusters(12, 3, 2, n_arms=6, noise_scale=noise, seed=1)
    policy, twin = both("cluster_mixture", environment, 0.5, 1, **own)
    play_both(policy, twin, environment, ASYNCHRONOUS, 500, seed=1)
    found = policy.noise_variances
    assert found[::3].max() < found[1::3].min() < found[1::3].max() < found[2::3].min()


@pytest.mark.parametrize("name", ["club", "sclub", "cmlb", "dynucb", "oracle", "independent"])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 3), (40, 2)])
def test_baselines_over_sizes(name: str, n: int, d: int) -> None:
    environment = shoal.GaussianClusters(n, d, min(3, n), n_arms=6, seed=n)
    own = own_parameters(name, environment, 0.5)
    policy, twin = both(name, environment, 0.5, 1, ridge=2.0, **own)
    play_both(policy, twin, environment, ASYNCHRONOUS, 250, seed=d)


@pytest.mark.parametrize("name", NAMES)
def test_arms_that_change_every_round(name: str) -> None:
    environment = shoal.ChangingArms(8, 3, 2, n_arms=5, noise_scale=0.5, seed=4)
    policy, twin = both(name, environment, 0.4, 0, **own_parameters(name, environment, 0.6))
    play_both(policy, twin, environment, ASYNCHRONOUS, 300, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("angle", "radius"), [(math.pi / 16, "beta"), (7 * math.pi / 16, "beta_squared")])
def test_bass_at_the_paper_s_dimension(angle: float, radius: str) -> None:
    environment = shoal.SyntheticClusters(20, 10, 3, angle, seed=3)
    gamma = 2.0 if radius == "beta" else 1.0
    policy, twin = both("bass", environment, 0.3, 0, delta=0.1, gamma=gamma, radius=radius)
    play_both(policy, twin, environment, ASYNCHRONOUS, 1000 if SCALE == 1 else 3000, seed=9)
    assert (policy.separation_time > 0).any()


@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("seed", range(3))
def test_agents_that_come_and_go(name: str, seed: int) -> None:
    """Online rounds with arrivals, departures and withdrawals: choices, edges, pools and cost agree."""
    rng = np.random.default_rng(seed)
    environment = shoal.SyntheticClusters(9, 3, 3, 1.2, seed=seed)
    policy, twin = both(name, environment, 0.4, seed, **own_parameters(name, environment, 1.0))
    theta_star = {agent: environment.theta_star[agent] for agent in range(9)}  # type: ignore[index]
    for t in range(1, 361):
        agent = int(rng.choice(policy.agents))
        choice = policy.select(agent, environment.arms)
        assert choice == twin.select(agent, environment.arms, t)
        x, reward = (
            environment.arms[choice],
            float(environment.arms[choice] @ theta_star[agent] + rng.normal()),
        )
        policy.update(agent, x, reward)
        twin.observe(agent, x, reward, t)
        twin.revise(agent, t)
        if t in (25, 50, 150, 300):
            leaver, withdraw = int(rng.choice(policy.agents)), t in (50, 300)
            policy.remove_agent(leaver, withdraw=withdraw)
            twin.leave(leaver, withdraw=withdraw)
        if t in (40, 200):
            new = policy.add_agents(2, labels=[0, 0]) if name == "oracle" else policy.add_agents(2)
            twin.join(2)
            for newcomer in new.tolist():
                theta_star[newcomer] = theta_star[newcomer % 9]
        if name == "cluster_mixture":
            there = np.bincount(policy.labels[policy.agents][policy.labels[policy.agents] >= 0], minlength=1)
            assert np.array_equal(policy.state.pool.clusters.sizes[: len(there), 0], there)
        elif hasattr(policy.state, "sizes"):
            count = {label: 0 for label in range(len(policy.state.sizes))}
            for i in policy.agents[policy.labels[policy.agents] >= 0]:
                count[policy.labels[i]] += 1
            assert policy.state.sizes.tolist() == list(count.values())
        if t % 20 == 0:
            there = policy.agents
            assert np.array_equal(policy.graph[np.ix_(there, there)], twin.graph()[np.ix_(there, there)])
            assert policy.communication_cost == twin.communication_cost
            for agent in there:
                assert list(policy.neighbors(agent)) == [i for i in twin.pool(agent) if twin.active[i]]
                np.testing.assert_allclose(policy.estimate(agent), twin.pooled(agent).theta_hat, atol=1e-8)
            if hasattr(twin, "posterior"):
                same_posteriors(policy, twin)
    if hasattr(twin, "separation_time"):
        assert np.array_equal(policy.separation_time, twin.separation_time)


@pytest.mark.parametrize("name", NAMES)
def test_late_rewards(name: str) -> None:
    """Rewards up to 40 rounds late: the same choices, and the same pulls are waited for."""
    environment = shoal.SyntheticClusters(8, 3, 2, 1.2, seed=2)
    policy, twin = both(name, environment, 0.5, 1, **own_parameters(name, environment, 0.6))
    play_both(policy, twin, environment, ASYNCHRONOUS, 350, seed=3, delay=("uniform", 0, 40))
    if name in LIVE:
        assert not policy.pending.any()  # what was still due at the end never comes


@pytest.mark.parametrize("delay", [0, ("uniform", 0, 30)])
@pytest.mark.parametrize("own", [{}, {"scatter": 0.0}, {"scatter": 0.02, "drift": False, "ridge_bonus": 0.0}])
def test_a_mixture_of_agents_that_change(own: dict[str, Any], delay: Any) -> None:
    """Agents change clusters half-way: found in the same rounds, with the same ghosts left behind."""
    environment = shoal.ChangingAgents(9, 3, 3, 1.4, change_after=450, noise_scale=0.4, seed=3)
    policy, twin = both("cluster_mixture", environment, 0.5, 2, concentration=2.0, ridge=0.7, **own)
    play_both(policy, twin, environment, ASYNCHRONOUS, 900, seed=4, delay=delay)
    if own.get("drift", True):
        assert (policy.forgot > 450).sum() >= 3
        ghosts = policy.state.pool.members.labels[:, 1]
        assert {agent: int(ghosts[agent]) for agent in np.flatnonzero(ghosts >= 0)} == twin.ghosts
        assert twin.ghosts


@pytest.mark.parametrize("kind", ["useful", "useless", "often"])
def test_a_mixture_of_agents_who_are_described(kind: str) -> None:
    """Features that tell the cluster, or nothing, or nothing three times; some missing, one of them constant.

    Agents come, go and are described anew on the way; some change, so that there are ghosts.
    """
    environment = shoal.SyntheticClusters(9, 3, 3, 1.4, seed=3)
    rng = np.random.default_rng(5)
    Z = rng.standard_normal((9, 2))
    if kind == "useful":
        Z[:, 0] = 1e6 + np.repeat([0.0, 4.0, 9.0], 3) + 0.3 * rng.standard_normal(9)
    Z = np.hstack([Z] * (3 if kind == "often" else 1) + [np.full((9, 1), 0.1)])
    Z[4, 1] = Z[7, 0] = np.nan
    policy, twin = both("cluster_mixture", environment, 0.5, 2, concentration=2.0, agent_features=Z)
    tempers = set()
    for t in range(1, 301):
        agent, arms = int(rng.choice(policy.agents)), rng.standard_normal((5, 3))
        choice = policy.select(agent, arms)
        assert choice == twin.select(agent, arms, t), t
        theta = [3.0, -1.0, 1.0] if (agent % 9) // 3 == (t > 150) else [-1.0, 1.0, (agent % 9) // 3]
        reward = float(arms[choice] @ theta + 0.4 * rng.standard_normal())
        policy.update(agent, arms[choice], reward)
        twin.observe(agent, arms[choice], reward, t)
        twin.revise(agent, t)
        tempers.add(policy.temper)
        if t == 100:
            policy.set_features(3, Z[5])
            twin.features[3], twin.temper_votes[3] = Z[5], [0.0] * 6
            policy.add_agents(1, agent_features=Z[:1])
            twin.join(1)
            twin.features[9] = Z[0]
            policy.remove_agent(1)
            twin.leave(1, withdraw=False)
            policy.remove_agent(6, withdraw=True)
            twin.leave(6, withdraw=True)
        if t % 50 == 0:
            same_posteriors(policy, twin)
    assert len(tempers) > 1 or kind == "useful"
    assert kind != "useful" or policy.temper > 0.0
    assert policy.forgot.max() > 150


def test_a_mixture_whose_clusters_move() -> None:
    """All parameters turn by 180°: alarms, samples that lose half their weight, ghosts that go."""
    rng, d = np.random.default_rng(0), 3
    policy = shoal.ClusterMixture(6, d, noise_scale=0.5, seed=1)
    twin = reference.ClusterMixture(6, d, noise_scale=0.5, seed=1)
    for t in range(1, 801):
        agent, angle = int(rng.integers(6)), np.pi * max(0.0, t - 200) / 200
        theta = 2.0 * np.array([np.cos(angle), np.sin(angle), 0.3 * (agent % 2)])
        arms = rng.standard_normal((5, d))
        choice = policy.select(agent, arms)
        assert choice == twin.select(agent, arms, t)
        reward = float(arms[choice] @ theta + 0.5 * rng.standard_normal())
        policy.update(agent, arms[choice], reward)
        twin.observe(agent, arms[choice], reward, t)
        twin.revise(agent, t)
        assert policy.pulls.tolist() == [len(one) for one in twin.samples]
    same_posteriors(policy, twin)
    assert max(twin.alarms.values(), default=0) > 0 or max(twin.forgot) > 0


@pytest.mark.parametrize("name", [*LIVE, "drift"])
def test_same_run_with_agents_who_do_not_lend(name: str) -> None:
    """Choices, estimates and pools of everyone, with some who only borrow and one who does neither."""
    own: dict[str, Any] = {"scatter": 0.0, "drift": False, "ridge_bonus": 0.0}
    if name != "cluster_mixture":
        own = {}
    name = name.replace("drift", "cluster_mixture")
    environment = shoal.SyntheticClusters(10, 3, 3, 1.3, seed=4)
    own = own_parameters(name, environment, 1.0) | own
    policy, twin = both(name, environment, 0.4, 0, **own)
    for agent, mode in ((0, "borrow"), (4, "borrow"), (7, "none")):
        policy.set_sharing(agent, mode)
        twin.lends[agent], twin.borrows[agent] = False, mode == "borrow"
    rng = np.random.default_rng(1)
    for t in range(1, 301):
        agent, arms = int(rng.integers(10)), environment.arms
        k = policy.select(agent, arms)
        assert k == twin.select(agent, arms, t), (t, agent)
        turned = -1.0 if agent == 4 and t > 180 else 1.0  # an agent who only borrows changes
        reward = float(turned * environment.mean_rewards[agent, k] + 0.5 * rng.standard_normal())
        policy.update(agent, arms[k], reward)
        twin.observe(agent, arms[k], reward, t)
        twin.revise(agent, t)
        if t % 25 == 0:
            for each in range(10):
                if name != "cluster_mixture":
                    assert list(policy.neighbors(each)) == twin.uses(each)
                elif twin.borrows[each]:
                    assert policy.posterior(each).keys() == twin.posterior(each).keys()
                wanted = twin.pooled(each).theta_hat if twin.borrows[each] else twin.theta_hat([each])
                np.testing.assert_allclose(policy.estimate(each), wanted, atol=1e-8)
    if name != "cluster_mixture":
        assert policy.communication_cost == twin.communication_cost
    else:
        same_posteriors(policy, twin)
        assert not policy.parameters["drift"] or policy.forgot[4] > 180
