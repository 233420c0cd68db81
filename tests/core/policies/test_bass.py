"""BASS: explanations, sharing before and after separation, and the witness shortcut."""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests import reference

import shoal
from shoal.core.policies.bass import crowd, witnesses
from shoal.core.policies.bass import policy as bass
from shoal.core.policy import memory, steps
from shoal.core.policy.files import PolicyFileError


def two_agents(pulls: int = 200, radius: str = "beta") -> shoal.BASS:
    policy = shoal.BASS(3, 2, alpha=0.5, delta=0.1, radius=radius)
    rng = np.random.default_rng(0)
    for n in range(pulls):
        x = np.eye(2)[n % 2]
        policy.update(0, x, x @ [1.0, 0.0] + rng.standard_normal())
        policy.update(1, x, x @ [-1.0, 0.0] + rng.standard_normal())
    return policy


@pytest.mark.parametrize("radius", ["beta", "beta_squared"])
def test_explain(radius: str) -> None:
    policy = two_agents(radius=radius)
    why = policy.explain(0, 1)
    local = policy.state.local
    betas = [float(shoal.beta(0.1, local.logdet_A[i], 1.0)) for i in range(3)]
    assert why.radius_agent == pytest.approx(betas[0])
    assert why.radius_other == pytest.approx(betas[1])
    pair = (local.theta_hat[0], local.A[0], betas[0], local.theta_hat[1], local.A[1], betas[1])
    assert why.statistic == pytest.approx(shoal.separation_statistic(*pair, radius=radius))
    cs = [b if radius == "beta" else b * b for b in betas]
    attained = reference.f(
        why.s, local.theta_hat[0], local.A[0], cs[0], local.theta_hat[1], local.A[1], cs[1]
    )
    assert attained == pytest.approx(why.statistic, rel=1e-9)
    assert why.threshold == 1.0
    assert why.separated
    assert why.separation_time == policy.separation_time[0, 1] > 0
    assert (why.lent_by_agent, why.lent_by_other) == (0, 0)
    shared = policy.explain(2, 0)
    assert not shared.separated
    assert shared.separation_time == -1
    assert (shared.lent_by_agent, shared.lent_by_other) == (0, 200)
    with pytest.raises(ValueError, match="other must differ from agent"):
        policy.explain(1, 1)


def test_separation_is_for_good() -> None:
    policy = two_agents()
    rounds = policy.separation_time[0, 1]
    for _ in range(500):
        policy.update(1, np.eye(2)[0], 1.0)  # agent 1 now looks like agent 0
    assert policy.separation_time[0, 1] == rounds
    assert not policy.graph[0, 1]


def test_the_witness_changes_no_verdict() -> None:
    """Forgetting every witness before each round tests every pair every time: same choices, same cuts."""
    environment = shoal.SyntheticClusters(20, 5, 3, 1.2, seed=1)
    for radius, gamma in (("beta", 2.0), ("beta_squared", 1.0)):
        quick = shoal.BASS(20, 5, alpha=0.3, delta=0.1, gamma=gamma, radius=radius)
        trace = shoal.simulate(quick, environment, horizon=3000, seed=1)
        plain = shoal.BASS(20, 5, alpha=0.3, delta=0.1, gamma=gamma, radius=radius)
        for agent, choice, reward in zip(trace.agents, trace.choices, trace.rewards, strict=True):
            plain.state.excess.fill(np.nan)
            assert plain.select(agent, environment.arms) == choice
            plain.update(agent, environment.arms[choice], reward)
        assert np.array_equal(quick.separation_time, plain.separation_time)
        assert (quick.separation_time > 0).sum() > 50


@pytest.mark.parametrize("pulling", ["asynchronous", "synchronous"])
def test_without_witnesses_nothing_changes(pulling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where witnesses would take too much memory, the same choices and the same cuts come without them."""
    environment = shoal.SyntheticClusters(150, 4, 3, 1.2, seed=1)
    traces = []
    for limit in (bass.WITNESS_BYTES, 0):
        monkeypatch.setattr(bass, "WITNESS_BYTES", limit)
        policy = shoal.BASS(150, 4, alpha=0.3, delta=0.1)
        assert isinstance(policy.state, witnesses.State if limit else crowd.State)
        horizon = 60 if pulling == "synchronous" else 9000
        traces.append(shoal.simulate(policy, environment, horizon=horizon, seed=1, pulling=pulling))
    with_witnesses, without = traces
    assert np.array_equal(with_witnesses.choices, without.choices)
    times, expected = without.separation_time, with_witnesses.separation_time
    assert times is not None
    assert expected is not None
    assert np.count_nonzero(times > 0) > 2000
    assert np.array_equal(times, expected)
    assert np.array_equal(with_witnesses.f1, without.f1)


def test_agents_come_and_go_across_the_limit_of_witnesses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few, many = (shoal.BASS(70, 2, alpha=0.3, delta=0.1, gamma=1.5) for _ in range(2))
    rng, centers = np.random.default_rng(5), np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    for t in range(6000):
        if t in (1500, 3000, 4000):
            for policy, limit in ((few, 70**2 * 8 * 3), (many, 2**28)):
                monkeypatch.setattr(bass, "WITNESS_BYTES", limit)
                if t == 1500:
                    policy.remove_agent(3)
                    policy.add_agents(10)
                else:
                    policy.remove_agent(t // 1000, withdraw=True)
            if t == 4000:
                few.save(tmp_path / "few")
                monkeypatch.setattr(bass, "WITNESS_BYTES", 70**2 * 8 * 3)
                few = shoal.BASS.load(tmp_path / "few")
        agent, x = int(rng.choice(few.agents)), rng.standard_normal(2)
        reward = float(x @ centers[agent % 3] + rng.standard_normal())
        few.update(agent, x, reward)
        many.update(agent, x, reward)
    assert isinstance(few.state, crowd.State)
    assert isinstance(many.state, witnesses.State)
    assert np.array_equal(few.separation_time, many.separation_time)
    assert np.array_equal(few.graph, many.graph)
    assert few.communication_cost == many.communication_cost
    assert 0 < few.count_edges()[0] == np.count_nonzero(np.triu(few.graph))


def test_steps_without_room_for_their_cuts_are_refused() -> None:
    policy = shoal.BASS(2, 2, alpha=0.5, delta=0.1)

    def learn_apart() -> None:
        for n in range(400):
            x = np.eye(2)[n % 2]
            for agent, sign in ((0, 1.0), (1, -1.0)):
                steps.observe(policy.pinned_state(), agent, x, sign * float(x[0]), n)
                steps.revise(policy.pinned_state(), agent, n)

    with pytest.raises(IndexError, match="no room in the log of cuts: call reserve"):
        learn_apart()
    assert len(policy.cuts) == 0
    assert policy.graph[0, 1]  # nothing was cut without being written down


def test_a_damaged_log_of_cuts_is_refused(tmp_path: Path) -> None:
    two_agents().save(tmp_path / "policy")
    with np.load(tmp_path / "policy") as archive:
        arrays = {**archive}
    for name in ("cuts.pairs", "cuts.rounds"):
        damaged = {**arrays, name: arrays[name][:0]}
        with (tmp_path / "damaged").open("wb") as handle:
            np.savez(handle, **damaged)
        with pytest.raises(PolicyFileError, match=r"cuts.used is 1, but .cuts.(pairs|rounds). has 0 rows"):
            shoal.BASS.load(tmp_path / "damaged")


def test_room_for_cuts_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = shoal.BASS(200, 2, alpha=0.3, delta=0.1)
    monkeypatch.setattr(memory, "physical_memory", lambda: 1e5)
    with pytest.raises(MemoryError, match="room for 19,900 cuts"):
        policy.reserve(200)
    assert len(policy.state.cuts.rounds) == 0


def test_memory_is_refused_before_it_is_taken() -> None:
    with pytest.raises(MemoryError, match=r"BASS with n_agents=20000000, dim=3 needs at least 50,0"):
        shoal.BASS(20_000_000, 3, alpha=0.3, delta=0.1)
    policy = shoal.BASS(2, 3, alpha=0.3, delta=0.1)
    with pytest.raises(MemoryError, match="this machine has"):
        policy.add_agents(20_000_000)
    assert policy.n_agents == 2
    arrays = [value for field in policy.state if isinstance(field, tuple) for value in field]
    assert sum(getattr(value, "nbytes", 0) for value in arrays) < policy.nbytes < 20_000


def test_every_kept_witness_lies_in_both_ellipsoids() -> None:
    environment = shoal.SyntheticClusters(12, 4, 3, 1.2, seed=1)
    for pulling in ("asynchronous", "synchronous"):
        policy = shoal.BASS(12, 4, alpha=0.3, delta=0.1)
        shoal.simulate(policy, environment, horizon=200, seed=1, pulling=pulling)
        state, checked = policy.state, 0
        for i, j in np.argwhere(policy.graph):
            point = state.witness[i, :, j]
            for agent in (i, j):
                offset = point - state.local.theta_hat[agent]
                if not np.isnan(point).any():
                    assert offset @ state.local.A[agent] @ offset <= state.threshold * state.radius[agent]
                    checked += 1
        assert checked > 20


def test_witnesses_after_growth_outliers_and_refreshes_change_no_verdict() -> None:
    """Arrivals, surprising rewards, over 256 samples per agent: as if every pair were tested every time."""
    quick, plain = (shoal.BASS(4, 2, alpha=0.3, delta=0.1, gamma=1.5) for _ in range(2))
    rng, centers = np.random.default_rng(5), np.array([[1.0, 0.0], [0.9, 0.2], [0.0, 1.0]])
    for t in range(2400):
        if t in (500, 900):
            quick.add_agents(2)
            plain.add_agents(2)
        agent, x = int(rng.integers(quick.n_agents)), rng.standard_normal(2)
        reward = float(x @ centers[agent % 3] + rng.standard_normal()) + (300.0 if t % 701 == 700 else 0.0)
        plain.state.excess.fill(np.nan)
        quick.update(agent, x, reward)
        plain.update(agent, x, reward)
        assert np.array_equal(quick.state.apart, plain.state.apart), t
    assert quick.pulls.max() > 256
    assert (quick.separation_time > 0).any()
    assert quick.graph.any()


def test_excess_is_kept_to_within_the_margin() -> None:
    environment = shoal.SyntheticClusters(10, 4, 3, 1.2, seed=1)
    policy = shoal.BASS(10, 4, alpha=0.3, delta=0.1)
    shoal.simulate(policy, environment, horizon=6000, seed=1)
    state, compared = policy.state, 0
    for i, j in np.argwhere(policy.graph):
        offset = state.witness[i, :, j] - state.local.theta_hat[i]
        exact = offset @ state.local.A[i] @ offset
        if np.isfinite(exact):
            assert abs(state.excess[i, j] - exact) < 1e-10 * state.threshold * state.radius[i]
            compared += 1
    assert compared > 10


def test_extreme_rewards_and_levels_leave_a_usable_policy() -> None:
    policy = shoal.BASS(2, 2, alpha=0.1, delta=float(np.nextafter(1.0, 0.0)), ridge=0.3)
    for reward in (1e30, -1e30, 1e-300, 0.0):
        policy.update(0, np.array([1.0, 0.0]), reward)
        policy.update(1, np.array([0.0, 1e-200]), reward)
    assert np.isfinite(policy.estimate(0)).all()
    assert policy.select(0, np.eye(2)) in (0, 1)
    with pytest.raises(
        ValueError, match=r"reward must be a finite number in \[-1e\+30, 1e\+30\], got 1e\+160"
    ):
        policy.update(0, np.array([1.0, 0.0]), 1e160)
    with pytest.raises(ValueError, match=r"x must be at most 1e\+30 in size, got 1e\+40"):
        policy.update(0, np.array([1e40, 0.0]), 1.0)
    assert policy.rounds == 8


@pytest.mark.filterwarnings("ignore:got x with a squared length")
@pytest.mark.parametrize("scale", [1e5, 1e8])
def test_features_of_a_wild_scale(scale: float) -> None:
    rng, policy = np.random.default_rng(0), shoal.BASS(2, 3, alpha=0.1, delta=0.1)
    for _ in range(300):
        x = scale * rng.standard_normal(3)
        policy.update(0, x, float(x @ [1.0, -1.0, 0.5]) / scale)
    np.testing.assert_allclose(policy.local_estimate(0) * scale, [1.0, -1.0, 0.5], rtol=1e-6)
    local = policy.state.local
    assert np.abs(local.A[0] @ local.A_inv[0] - np.eye(3)).max() < 1e-8


def test_threads_may_share_a_policy() -> None:
    policy, arms = shoal.BASS(8, 4, alpha=0.3, delta=0.1), np.random.default_rng(0).standard_normal((15, 4))
    for n in range(400):
        policy.update(n % 8, arms[n % 15], float(n % 7))
    alone = [policy.select(agent, arms) for agent in range(8)]

    def ask(agent: int) -> bool:
        return all(policy.select(agent, arms) == alone[agent] for _ in range(3000))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(8)))


# The norm bound S


@pytest.mark.parametrize("radius", ["beta", "beta_squared"])
@pytest.mark.parametrize(("norm", "ridge"), [(0.0, 1.0), (1.0, 1.0), (2.5, 0.4)])
def test_the_radius_is_that_of_the_theory(radius: str, norm: float, ridge: float) -> None:
    policy = shoal.BASS(3, 2, alpha=0.3, delta=0.1, radius=radius, param_norm=norm, ridge=ridge)
    for x in np.random.default_rng(0).standard_normal((20, 2)):
        policy.update(0, x, float(x[0]))
    for agent in range(3):
        logdet = policy.state.local.logdet_A[agent] - 2 * math.log(ridge)
        beta = float(shoal.beta(0.1, logdet, param_norm=norm, ridge=ridge))
        assert policy.state.radius[agent] == pytest.approx(beta if radius == "beta" else beta**2, rel=1e-12)
        assert policy.explain(agent, (agent + 1) % 3).radius_agent == pytest.approx(beta, rel=1e-12)


def test_a_larger_bound_shares_longer() -> None:
    world = shoal.SyntheticClusters(20, 4, 2, 1.2, seed=0)
    edges = []
    for norm in (0.0, 1.0, 4.0):
        policy = shoal.BASS(20, 4, alpha=0.3, delta=0.1, param_norm=norm, seed=0)
        shoal.simulate(policy, world, horizon=1_000, seed=0)
        edges.append(policy.count_edges()[0])
    assert edges[0] < edges[1] < edges[2]
