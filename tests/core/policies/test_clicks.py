"""Clicks: compiled policies against naive twins, and what policies promise also holds for them."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import reference
from tests.core.contracts.test_policies import kept, snapshot

import shoal
from shoal.core.policies.bass import policy as bass
from shoal.core.policies.mixture.state import BASE, LIFTS, SCATTERS
from shoal.core.policy.clicks import INTERCEPT, sample_of_click
from shoal.core.policy.steps import BEGIN, CANCEL, FINISH, PULL
from shoal.lab.environments.synthetic import ClickClusters

N, D = 7, 3
OWN: dict[str, dict[str, Any]] = {
    "independent": {},
    "bass": {"gamma": 0.6},
    "crowd": {"gamma": 0.6},
    "cluster_mixture": {"concentration": 2.0, "redraws": 2},
    "personal": {"concentration": 2.0, "redraws": 2},
    "plain mixture": {"scatter": 0, "ridge_bonus": 0},
    "drifting": {"drift": True, "scatter": 0.05, "ridge_bonus": 3.0},
}
MIXTURES = ("personal", "plain mixture", "drifting")
NAMES = {"crowd": "bass"} | dict.fromkeys(MIXTURES, "cluster_mixture")
every_kind = pytest.mark.parametrize("kind", list(OWN))


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(request.node, "callspec") and request.node.callspec.params.get("kind") == "crowd":
        monkeypatch.setattr(bass, "WITNESS_BYTES", 0)


def make(kind: str, n: int = N, **more: Any) -> Any:
    own = {"alpha": 0.5, "seed": 3, "rewards": "binary", **OWN[kind], **more}
    return shoal.make_policy(NAMES.get(kind, kind), n, D, **own)


def twin_of(policy: Any) -> reference.Clicks:
    own = {key: policy.parameters[key] for key in ("alpha", "ridge")}
    if policy.name == "bass":
        own |= {key: policy.parameters[key] for key in ("gamma", "delta", "radius", "param_norm")}
    if policy.name == "cluster_mixture":
        keys = ("spread", "concentration", "redraws", "scatter", "drift", "ridge_bonus", "seed")
        own |= {key: policy.parameters[key] for key in keys} | {"noise_scale": 1.0, "clicks": True}
    kind: Any = getattr(reference, type(policy).__name__)
    return reference.Clicks(kind(policy.n_agents, D + 1, **own))


def world(rng: np.random.Generator, own: float = 0.0) -> tuple[Any, Any]:
    """Arms, and a click on an arm by an agent: two groups, a fifth of clicks; `own`: how bases differ."""
    arms = rng.standard_normal((6, D))

    def click(agent: int, x: Any) -> float:
        logit = 2.0 * x[agent % 2] - 2.0 + own * (agent - N // 2)
        return float(rng.random() < 1 / (1 + np.exp(-logit)))

    return arms, click


def play(policy: Any, rounds: int, seed: int = 0, log: list[Any] | None = None) -> list[int]:
    rng, choices = np.random.default_rng(seed), []
    for _ in range(rounds):
        arms, click = world(rng)
        agent = int(rng.choice(policy.agents))
        k = policy.select(agent, arms)
        y = click(agent, arms[k])
        if log is not None:
            log.append([agent, arms[k], y, policy.foresee(agent, arms[k])])
        policy.update(agent, arms[k], y)
        choices.append(k)
    return choices


@every_kind
@pytest.mark.parametrize("late", [False, True])
def test_the_same_run_as_the_twin(kind: str, late: bool) -> None:
    rng = np.random.default_rng(5)
    policy = make(kind)
    twin, due, t = twin_of(policy), list[Any](), 0
    policy.set_sharing(6, "none")
    twin.twin.lends[6] = twin.twin.borrows[6] = False
    if policy.name == "cluster_mixture":
        twin.twin.learn_anew()  # as whenever somebody no longer lends
    if kind == "personal":  # so few agents would not make it learn that their bases differ
        twin.twin.lifts = (0.2, *LIFTS[1:])
        policy.state.pool.model.grid[len(SCATTERS)] = 0.2
    for t in range(1, 301):
        arms, click = world(rng, 1.5 if kind == "personal" else 0.0)
        agent = int(rng.integers(N))
        k = policy.select(agent, arms)
        assert k == twin.select(agent, arms, t)
        found = policy.foresee(agent, arms[k])
        assert found == pytest.approx(twin.twin.logit(agent, twin.inner(arms[k])[0]), rel=1e-6, abs=1e-9)
        y = click(agent, arms[k])
        if late:
            policy.begin(agent, arms[k])
            twin.expect(agent, arms[k], 1)
            due.append((agent, arms[k], y))
            if len(due) < 12:
                continue
            agent, x, y = due.pop(int(rng.integers(12)))
            twin.expect(agent, x, -1)
        else:
            x = arms[k]
        policy.update(agent, x, y, begun=late)
        twin.observe(agent, x, y, t)
        twin.revise(agent, t)
    inner = twin.twin
    if policy.name == "cluster_mixture":
        assert (policy.state.pool.members.lent_at[:, 0, BASE].max() > 0.0) == (kind == "personal")
    assert np.array_equal(policy.graph, inner.graph())
    for agent in range(N):
        pooled = inner.pooled(agent) if agent != 6 else inner.statistics([6])
        np.testing.assert_allclose(policy.estimate(agent), pooled.theta_hat[:D], atol=1e-7)
        x = rng.standard_normal(D)
        if agent != 6:
            assert policy.predict(agent, x).pooled == pytest.approx(twin.chance(agent, x), abs=1e-9)
        assert policy.scores(agent, x[None]).mean[0] == pytest.approx(twin.chance(agent, x), abs=1e-9)
    if policy.name == "bass":
        assert np.array_equal(policy.separation_time, inner.separation_time)
        assert (policy.separation_time > 0).any()


@pytest.mark.parametrize("spread", [0.0, 1.5])
def test_bases_that_differ_are_learned_and_split_no_cluster(spread: float) -> None:
    world = ClickClusters(60, 4, 2, rate=0.3, base_spread=spread, seed=4)
    policy = shoal.ClusterMixture(60, 4, rewards="binary", seed=4)
    shoal.simulate(policy, world, horizon=12_000, seed=4, points=1)
    assert policy.base_spread == (pytest.approx(spread, rel=0.5) if spread else 0.0)
    assert len(set(policy.labels)) <= 4
    assert shoal.ClusterMixture(2, 2).base_spread == 0.0  # of real rewards there is no base


def test_a_click_by_hand() -> None:
    """The formulas at m = 0, v = 8/π: κ² = 1/2, p = 1/2, vh = 1/π."""
    x, out, v = np.array([1.0, -2.0]), np.empty(2), 8 / np.pi
    f = 1 / (1 - 1 / np.pi)
    w = f / 8
    for click in (0.0, 1.0):
        r = sample_of_click(x, click, 0.0, v, out) * np.sqrt(w)
        np.testing.assert_allclose(out, np.sqrt(w) * x, rtol=1e-12)
        assert r == pytest.approx((click - 0.5) * f / np.sqrt(2), rel=1e-12)


@pytest.mark.parametrize("mean", [-1e30, -800.0, 0.0, 800.0, 1e30])
@pytest.mark.parametrize("variance", [0.0, 1.0, 1e30])
def test_a_click_that_was_certain_is_a_finite_sample(mean: float, variance: float) -> None:
    out = np.empty(1)
    for click in (0.0, 1.0):
        assert np.isfinite(sample_of_click(np.ones(1), click, mean, variance, out))
        assert 0.0 < out[0] < np.inf


@every_kind
def test_corrections_are_those_of_the_sums(kind: str) -> None:
    policy, log, rng = make(kind, ridge=0.7), list[Any](), np.random.default_rng(1)
    for n in range(8):
        play(policy, 20, seed=n, log=log)
        place = int(rng.integers(len(log)))
        agent, x, y, moments = log[place]
        if not policy.holds(agent, x, y, 0, moments=moments):
            continue
        if n % 2:
            policy.retract(agent, x, y, moments=moments)
            log.pop(place)
        else:
            before = policy.state.local.b[agent].copy()
            policy.correct(agent, x, y, 1.0 - y, moments=moments)
            log[place][2] = 1.0 - y
            m, v = moments
            kappa = 1 / np.sqrt(1 + np.pi * v / 8)
            p = 1 / (1 + np.exp(-kappa * m))
            moved = kappa / (1 - v * kappa**2 * p * (1 - p)) * (1 - 2 * y) * np.array([*x, INTERCEPT])
            np.testing.assert_allclose(policy.state.local.b[agent] - before, moved, atol=1e-9)
        if kind == "drifting":
            continue  # it may have dropped samples
        for who in range(N):
            samples = []
            for other, arm, click, known in log:
                sample = np.empty(D + 1)
                if other == who:
                    mean, variance = known
                    inner = np.array([*arm, INTERCEPT])
                    response = sample_of_click(inner, click, mean, variance, sample)
                    samples.append((sample, response))
            naive = reference.fit(samples, D + 1, 0.7)
            np.testing.assert_allclose(policy.state.local.A[who], naive.A, atol=1e-9)
            np.testing.assert_allclose(policy.local_estimate(who), naive.theta_hat[:D], atol=1e-8)
    play(policy, 30)


@every_kind
def test_files_copies_and_looking(kind: str, tmp_path: Path) -> None:
    policy = make(kind)
    play(policy, 120)
    before = snapshot(policy)
    arms = np.random.default_rng(0).standard_normal((4, D))
    scores = policy.scores(1, arms)
    assert policy.select(1, arms) == scores.index.argmax() == policy.choose(1, arms).arm
    assert ((scores.mean > 0) & (scores.mean < 1) & (scores.index < 1)).all()
    np.testing.assert_allclose(scores.mean + scores.width, scores.index)
    found = policy.choose(1, arms)
    assert (found.own, found.pooled) == policy.predict(1, arms[found.arm])
    for look in (policy.explain(0), policy.explain(0, 1), policy.foresee(0, arms[0])):
        assert str(look)
    assert snapshot(policy) == before
    policy.save(tmp_path / "p")
    loaded, twin = shoal.load_policy(tmp_path / "p"), copy.deepcopy(policy)
    assert loaded.parameters == policy.parameters
    assert loaded.dim == D == len(loaded.estimate(0)) == len(loaded.local_estimate(0))
    assert play(loaded, 60, seed=9) == play(policy, 60, seed=9) == play(twin, 60, seed=9)


@every_kind
def test_pending_pulls_cancel_exactly(kind: str) -> None:
    policy, rng = make(kind), np.random.default_rng(0)
    play(policy, 80)
    before, xs = kept(policy)["common.pending.sums"].copy(), rng.standard_normal((10, D))
    arms = rng.standard_normal((5, D))
    wide = policy.scores(1, arms)
    for x in xs:
        policy.begin(1, x)
    narrow = policy.scores(1, arms)
    np.testing.assert_array_equal(narrow.mean, wide.mean)
    assert (narrow.index < wide.index).all()
    for x in xs[::-1]:
        policy.cancel(1, x)
    assert np.array_equal(kept(policy)["common.pending.sums"], before)
    policy.state.common.clock[0] -= 10  # widths grow with the rounds
    np.testing.assert_allclose(policy.scores(1, arms).index, wide.index, rtol=1e-9)


@every_kind
def test_withdrawal_and_merging_leave_sums_of_the_others(kind: str) -> None:
    policy, log = make(kind), list[Any]()
    play(policy, 150, log=log)
    policy.begin(2, np.ones(D))
    both = policy.state.local.A[0] + policy.state.local.A[1] - np.eye(D + 1)
    policy.merge(0, 1)
    np.testing.assert_allclose(policy.state.local.A[0], both, atol=1e-9)
    policy.remove_agent(2, withdraw=True)
    fresh = make(kind).state.local
    for gone in (1, 2):
        assert np.array_equal(policy.state.local.A[gone], fresh.A[gone])
        assert not policy.state.local.b[gone].any()
    assert not policy.state.common.sample.any()
    assert not policy.state.common.moments.any()
    newcomer = int(policy.add_agents(1)[0])
    play(policy, 60, seed=4)
    assert 0 < policy.predict(newcomer, np.ones(D)).pooled < 1


@every_kind
def test_replay_is_exact_with_and_without_the_recorded_moments(kind: str) -> None:
    rng, policy = np.random.default_rng(2), make(kind)
    kinds, agents, xs, ys, moments, waiting = (list[Any]() for _ in range(6))
    for t in range(160):
        arms, click = world(rng)
        agent = int(rng.integers(N))
        x = arms[policy.select(agent, arms)]
        step, y, known = (BEGIN, 0.0, (np.nan, np.nan)) if t % 3 else (PULL, click(agent, x), None)
        if t % 3 == 2 and waiting:
            step = FINISH if t % 4 else CANCEL
            agent, x = waiting.pop(0)
            y = click(agent, x)
        if step == BEGIN:
            policy.begin(agent, x)
            waiting.append((agent, x))
        elif step == CANCEL:
            policy.cancel(agent, x)
        else:
            known = policy.foresee(agent, x)
            policy.update(agent, x, y, begun=step == FINISH)
            assert policy.last_moments == known
        for column, value in ((kinds, step), (agents, agent), (xs, x), (ys, y), (moments, known)):
            column.append(value)
    one, other = make(kind), make(kind)
    one.replay(kinds, agents, xs, ys)
    other.replay(kinds, agents, xs, ys, moments=moments)
    assert snapshot(one) == snapshot(other) == snapshot(policy)
    if policy.name == "bass":
        third = make(kind)
        third.follow(kinds, agents, xs, ys, np.empty((0, 2)), moments=moments)
        np.testing.assert_allclose(third.state.local.A, policy.state.local.A, atol=1e-12)
    altered = np.array(moments, dtype=np.float64)
    altered[:, 1] += 1.0
    other = make(kind)
    other.replay(kinds, agents, xs, ys, moments=altered)
    assert not np.array_equal(other.state.local.A, policy.state.local.A)


@every_kind
def test_whatever_is_no_click_is_refused_and_changes_nothing(kind: str) -> None:
    policy = make(kind)
    play(policy, 30)
    x, before = np.ones(D), snapshot(policy)
    known = policy.foresee(0, x)
    for wrong in (0.5, -1.0, 2, np.nan):
        with pytest.raises(ValueError, match=rf"reward must be 0 or 1.*got {wrong}"):
            policy.update(0, x, wrong)
    with pytest.raises(ValueError, match=r"rewards must be 0 or 1.*got 0.25"):
        policy.replay([PULL, PULL], [0, 1], [x, x], [1.0, 0.25])
    with pytest.raises(ValueError, match=r"new_reward must be 0 or 1.*got 3"):
        policy.correct(0, x, 0.0, 3.0, moments=known)
    with pytest.raises(ValueError, match=r"moments must be given"):
        policy.correct(0, x, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"moments must be given"):
        policy.retract(0, x, 0.0)
    with pytest.raises(ValueError, match=r"variance must be a finite number in"):
        policy.update(0, x, 1.0, moments=(0.0, -1.0))
    with pytest.raises(ValueError, match=r"moments must be 1 pairs"):
        policy.replay([PULL], [0], [x], [1.0], moments=[[0.0, np.nan]])
    with pytest.raises(ValueError, match=r"environment's rewards must be 0 or 1"):
        shoal.simulate(policy, shoal.SyntheticClusters(N, D, 2, 1.0, seed=0), horizon=5, seed=0)
    with pytest.raises(ValueError, match=r"arms must have 3 columns|shape"):
        policy.select(0, np.ones((2, D + 1)))
    assert snapshot(policy) == before
    real = shoal.make_policy(policy.name, N, D)
    with pytest.raises(ValueError, match='foresee is for rewards="binary"'):
        real.foresee(0, x)
    with pytest.raises(ValueError, match='moments is for rewards="binary"'):
        real.update(0, x, 1.0, moments=(0.0, 1.0))
    assert not real.pulls.any()


def test_parameters() -> None:
    assert shoal.ClusterMixture(2, 2, rewards="binary").parameters["drift"] is False
    assert shoal.ClusterMixture(2, 2, rewards="binary").parameters["ridge_bonus"] == 1.0
    assert shoal.ClusterMixture(2, 2, rewards="binary", ridge_bonus=2).parameters["ridge_bonus"] == 2.0
    assert shoal.ClusterMixture(2, 2, rewards="binary").noise_variance == 1.0
    assert shoal.ClusterMixture(2, 2).parameters["drift"] is True
    for kind in (shoal.ClusterMixture, shoal.BASS):
        with pytest.raises(ValueError, match=r"clicks have no noise_scale, got 0.5"):
            kind(2, 2, rewards="binary", noise_scale=0.5)
    with pytest.raises(ValueError, match=r"rewards must be"):
        shoal.Independent(2, 2, rewards="counts")
    with pytest.raises(TypeError, match=r"no parameter 'rewards'"):
        shoal.Oracle(2, 2, labels=[0, 0], rewards="binary")


@every_kind
@pytest.mark.parametrize("delay", [0, 7])
def test_the_compiled_loop_plays_as_the_online_calls_do(kind: str, delay: Any) -> None:
    class Plain:
        """Hides the class, so that `simulate` makes online calls."""

        def __init__(self, policy: Any) -> None:
            self.select, self.update = policy.select, policy.update
            self.begin, self.cancel = policy.begin, policy.cancel

    clicks = shoal.UnitClusters(N, D, 2, positive=True, noise="bernoulli", seed=1)
    how: dict[str, Any] = {"horizon": 250, "seed": 4, "delay": delay}
    fast, slow = make(kind), make(kind)
    ours = shoal.simulate(fast, clicks, **how)
    theirs = shoal.simulate(Plain(slow), clicks, **how)
    assert np.array_equal(ours.choices, theirs.choices)
    assert np.array_equal(fast.state.local.b, slow.state.local.b)
    assert set(ours.rewards) == {0.0, 1.0}
    paid = shoal.simulate(make(kind), clicks, horizon=40, seed=4, dividend=True).dividends
    assert paid is not None
    assert (np.abs(paid) < 1).all()


@pytest.mark.parametrize("kind", ["cluster_mixture", "plain mixture", "drifting"])
@pytest.mark.parametrize("factor", [1e-3, 30.0])
def test_the_unit_of_arms_makes_no_difference(kind: str, factor: float) -> None:
    """Arms times a factor: the same choices, clusters and predictions."""
    own = dict(OWN[kind])
    if own.get("scatter"):
        own["scatter"] = None  # one that is given has a unit
    plain, scaled = (make(kind, **own) for _ in range(2))
    rng = np.random.default_rng(4)
    for t in range(300):
        arms, click = world(rng)
        agent = int(rng.choice(plain.agents))
        k = plain.select(agent, arms)
        assert scaled.select(agent, factor * arms) == k
        y = click(agent, arms[k])
        plain.update(agent, arms[k], y)
        scaled.update(agent, factor * arms[k], y)
        if t == 150:
            for policy in (plain, scaled):
                policy.remove_agent(5, withdraw=True)
                policy.add_agents(1)
    assert scaled.labels.tolist() == plain.labels.tolist()
    assert scaled.predict(0, factor * arms[0]).pooled == pytest.approx(
        plain.predict(0, arms[0]).pooled, rel=1e-5
    )
    assert scaled.state.pool.model.prior[0] != scaled.state.pool.model.ridge
