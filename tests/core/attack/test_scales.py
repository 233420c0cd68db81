"""Arms of every scale beside the ridge, judged by exact sums of the raw samples in mpmath."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest

import shoal
from shoal.core.jit.compiled import config
from shoal.core.policies.bass import policy as bass
from shoal.core.statistics import add_sample, make_statistics, pool_rows
from shoal.core.types import Matrix, Vector

DIM = 4
SCALES = [1.0, 30.0, 1e3, 1e5, 1e7]
POLICIES: dict[str, dict[str, Any]] = {
    "independent": {},
    "oracle": {"labels": [0, 0, 0]},
    "club": {"gamma": 1e6},
    "sclub": {"gamma": 1e6},
    "cmlb": {"gamma": 1e6, "exploration_rounds": 1, "min_cluster_fraction": 0.0},
    "dynucb": {"n_clusters": 1},
    "bass": {"delta": 0.1, "gamma": 1e6},
}
"""Every policy whose pool follows from its samples, so that everybody shares, if anybody does."""


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with mpmath.workdps(50), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "got (x|an arm) with a squared length")
        yield


class Exact:
    """Sums of raw samples, exactly."""

    def __init__(self, dim: int = DIM, ridge: float = 1.0) -> None:
        self.A, self.b = mpmath.eye(dim) * mpmath.mpf(ridge), mpmath.zeros(dim, 1)
        self.size = 0.0

    def add(self, x: Vector, reward: float) -> None:
        column = mpmath.matrix(x.tolist())
        self.A, self.b = self.A + column * column.T, self.b + column * mpmath.mpf(reward)
        self.size = math.hypot(self.size, reward)

    @property
    def theta(self) -> Any:
        return mpmath.lu_solve(self.A, self.b)

    @property
    def logdet(self) -> float:
        return float(mpmath.log(mpmath.det(self.A)))

    def distance(self, theta: Vector) -> float:
        """Error of an estimate in the norm of A, which is what radius and bonus are measured in."""
        error = mpmath.matrix(theta.tolist()) - self.theta
        return float(mpmath.sqrt((error.T * self.A * error)[0]))

    def scores(self, arms: Matrix, alpha: float, t: int) -> list[float]:
        theta, inverse = self.theta, mpmath.inverse(self.A)
        width = alpha * mpmath.sqrt(mpmath.log(t + 1))
        columns = [mpmath.matrix(x.tolist()) for x in arms]
        return [float((theta.T * x)[0] + width * mpmath.sqrt((x.T * inverse * x)[0])) for x in columns]


def draw(rng: np.random.Generator, scale: float, span: int, dim: int = DIM) -> Iterator[tuple[Vector, float]]:
    """Samples whose arms lie in a subspace, and are of the given size."""
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0][:span]
    theta = rng.standard_normal(dim) / scale
    while True:
        x = scale * rng.standard_normal(span) @ basis
        yield x, float(x @ theta + rng.standard_normal())


@pytest.mark.parametrize("ridge", [1.0, 1e-3])
@pytest.mark.parametrize("span", [1, 2, DIM])
@pytest.mark.parametrize("scale", SCALES)
def test_statistics_of_a_row(scale: float, span: int, ridge: float) -> None:
    rng, stats, exact = np.random.default_rng(span), make_statistics(1, DIM, ridge), Exact(ridge=ridge)
    samples = draw(rng, scale * math.sqrt(ridge), span)
    for n in range(300):
        x, reward = next(samples)
        before = exact.A.copy()
        growth = add_sample(stats, 0, x, reward)
        exact.add(x, reward)
        if n in (0, 1, 2, 3, 4, 299):
            column = mpmath.matrix(x.tolist())
            assert growth == pytest.approx(
                float(1 + (column.T * mpmath.lu_solve(before, column))[0]), rel=1e-6
            )
            assert exact.distance(stats.theta_hat[0]) <= 1e-9 * exact.size * max(1.0, scale / 1e4)
            assert stats.logdet_A[0] == pytest.approx(exact.logdet, abs=1e-6)
    tail = np.zeros((DIM, DIM))
    tail[np.tril_indices(DIM)] = stats.tail[0]
    high, least = mpmath.matrix(stats.A[0].tolist()), float(min(mpmath.eigsy(exact.A, eigvals_only=True)))
    for row in range(DIM):
        for column in range(row + 1):
            error = high[row, column] + mpmath.mpf(tail[row, column]) - exact.A[row, column]
            assert abs(float(error)) <= 1e-7 * least  # where nothing was explored, the ridge is still there


@pytest.mark.parametrize("span", [2, DIM])
@pytest.mark.parametrize("scale", SCALES)
def test_a_pool_of_rows(scale: float, span: int) -> None:
    rng, local, pool = np.random.default_rng(3), make_statistics(6, DIM, 1.0), make_statistics(1, DIM, 1.0)
    exact, samples = Exact(), draw(np.random.default_rng(span), scale, span)
    for _ in range(120):
        x, reward = next(samples)
        row = int(rng.integers(6))
        add_sample(local, row, x, reward)
        if row < 5:
            exact.add(x, reward)
    pool_rows(local, np.arange(6) < 5, 1.0, pool, 0)
    assert exact.distance(pool.theta_hat[0]) <= 1e-9 * exact.size * max(1.0, scale / 1e4)
    assert pool.logdet_A[0] == pytest.approx(exact.logdet, abs=1e-6)
    add_sample(pool, 0, x, reward)
    exact.add(x, reward)
    assert pool.logdet_A[0] == pytest.approx(exact.logdet, abs=1e-6)


@pytest.mark.parametrize(("scale", "span"), [(1.0, DIM), (1e3, 3), (1e5, 1), (1e7, 3), (1e7, DIM)])
@pytest.mark.parametrize("name", POLICIES)
def test_choices_and_estimates(name: str, scale: float, span: int) -> None:
    """The chosen arm has the best score there is, estimates are those of the raw samples."""
    rng, policy = (
        np.random.default_rng(span),
        shoal.make_policy(name, 3, DIM, alpha=0.4, seed=0, **POLICIES[name]),
    )
    samples, alone = draw(rng, scale, span), [Exact() for _ in range(3)]
    together = Exact()
    for t in range(1, 61):
        agent, (x, reward) = int(rng.integers(3)), next(samples)
        policy.update(agent, x, reward)
        alone[agent].add(x, reward)
        together.add(x, reward)
        pool = alone[agent] if name == "independent" else together
        if t in (3, 4, 5, 30, 60):
            assert list(policy.neighbors(agent)) == ([agent] if name == "independent" else [0, 1, 2])
            arms = np.array([next(samples)[0] for _ in range(4)] + [scale * rng.standard_normal(DIM)])
            scores = pool.scores(arms, 0.4, t + 1)
            assert scores[policy.select(agent, arms)] >= max(scores) - 1e-6 * max(map(abs, scores))
            assert pool.distance(policy.estimate(agent)) <= 1e-8 * pool.size * max(1.0, scale / 1e4)
            error = alone[agent].distance(policy.local_estimate(agent))
            assert error <= 1e-8 * alone[agent].size * max(1.0, scale / 1e4)


ENGINES = pytest.mark.parametrize("witness_bytes", [bass.WITNESS_BYTES, 0], ids=["witnesses", "crowd"])


@ENGINES
@pytest.mark.parametrize(("scale", "span"), [(3e3, 2), (1e6, DIM), (1e7, 1), (1e7, 3)])
def test_agents_with_the_same_samples_stay_together(
    scale: float, span: int, witness_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bass, "WITNESS_BYTES", witness_bytes)
    for seed in range(3):
        policy = shoal.BASS(3, DIM, alpha=0.3, delta=0.1)
        samples = draw(np.random.default_rng(seed), scale, span)
        taken = [next(samples) for _ in range(100)]
        for shift in range(100):  # the same hundred, each agent in an order of its own
            for agent in range(3):
                policy.update(agent, *taken[(shift + 30 * agent) % 100])
        assert len(policy.cuts) == 0
        for other in (1, 2):
            assert policy.explain(0, other).statistic < 1e-9


def mp_statistic(one: Exact, two: Exact, delta: float) -> float:
    """The separation statistic of two agents, radii included, from their exact sums."""
    c = [mpmath.sqrt(2 * mpmath.log(1 / mpmath.mpf(delta)) + mpmath.log(mpmath.det(e.A))) for e in (one, two)]
    v, inverses = one.theta - two.theta, [mpmath.inverse(e.A) for e in (one, two)]

    def f(logit: Any) -> Any:
        s, rest = 1 / (1 + mpmath.exp(-logit)), 1 / (1 + mpmath.exp(logit))
        return (v.T * mpmath.lu_solve(inverses[0] * c[0] / rest + inverses[1] * c[1] / s, v))[0]

    low, high, golden = mpmath.mpf(-60), mpmath.mpf(60), (mpmath.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    f_left, f_right = f(left), f(right)
    for _ in range(34):  # f is concave in s: golden section, to 1e-5 in the logit and the square of that in f
        if f_left < f_right:
            low, left, f_left = left, right, f_right
            right = low + golden * (high - low)
            f_right = f(right)
        else:
            high, right, f_right = right, left, f_left
            left = high - golden * (high - low)
            f_left = f(left)
    return float(max(f_left, f_right))


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="takes long without compilation")
@ENGINES
@pytest.mark.parametrize("scales", [(1e7, 1e7), (1e7, 1.0), (1e5, 1e2)])
@pytest.mark.parametrize("span", [1, 3])
def test_statistics_of_pairs(
    span: int, scales: tuple[float, float], witness_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bass, "WITNESS_BYTES", witness_bytes)
    policy, exact = shoal.BASS(2, DIM, alpha=0.3, delta=0.1, param_norm=0.0), [Exact(), Exact()]
    samples = [draw(np.random.default_rng(7 + k), scale, span) for k, scale in enumerate(scales)]
    first = None
    for t in range(1, 31):
        for agent in (0, 1):
            x, reward = next(samples[agent])
            policy.update(agent, x, reward)
            exact[agent].add(x, reward)
            if t in (1, 2, 3, 30):
                value = mp_statistic(exact[0], exact[1], 0.1)
                assert policy.explain(0, 1).statistic == pytest.approx(value, rel=1e-5, abs=1e-9)
                if first is None and len(policy.cuts):
                    first = value
    if first is not None and policy.cuts[0, 2] <= 6:
        assert first > 1.0


@ENGINES
def test_same_cuts_with_and_without_large_arms_in_the_crowd(
    witness_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaling arms by s and the ridge by s² changes the unit of θ alone: choices and cuts stay."""
    monkeypatch.setattr(bass, "WITNESS_BYTES", witness_bytes)
    rng = np.random.default_rng(1)
    arms, centers = rng.standard_normal((6, DIM)), rng.standard_normal((2, DIM))
    plain, scaled = (
        shoal.BASS(8, DIM, alpha=0.3, delta=0.1, param_norm=0.0, ridge=ridge) for ridge in (1.0, 2.0**-46)
    )
    for _ in range(600):
        agent = int(rng.integers(8))
        k = plain.select(agent, arms)
        assert scaled.select(agent, arms / 2.0**23) == k
        reward = float(arms[k] @ centers[agent % 2] + rng.standard_normal())
        plain.update(agent, arms[k], reward)
        scaled.update(agent, arms[k] / 2.0**23, reward)
    assert np.array_equal(plain.cuts, scaled.cuts)
    assert len(plain.cuts) > 4


@ENGINES
def test_engines_cut_as_exact_statistics_say(witness_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three agents with arms of 1e6 in a plane, two alike: cut in the very round in which mpmath says so."""
    monkeypatch.setattr(bass, "WITNESS_BYTES", witness_bytes)
    rng, dim = np.random.default_rng(2), 3
    policy, exact = shoal.BASS(3, dim, alpha=0.3, delta=0.1, param_norm=0.0), [Exact(dim) for _ in range(3)]
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0][:2]
    centers = np.array([[1.0, 0.3], [1.0, 0.3], [-1.0, 0.5]])
    due: dict[tuple[int, int], int] = {}
    for t in range(1, 49):
        agent, mix = (t - 1) % 3, rng.standard_normal(2)
        x, reward = 1e6 * mix @ basis, float(2.0 * mix @ centers[(t - 1) % 3] + rng.standard_normal())
        policy.update(agent, x, reward)
        exact[agent].add(x, reward)
        for other in range(3):
            pair = (min(agent, other), max(agent, other))
            if other != agent and pair not in due and mp_statistic(exact[agent], exact[other], 0.1) > 1.0:
                due[pair] = t
    assert {(int(i), int(j)): int(t) for i, j, t in policy.cuts} == due
    assert 0 < len(due) < 3


def test_sample_beyond_any_scale_is_refused_before_anything_changes() -> None:
    for name, own in POLICIES.items():
        policy = shoal.make_policy(name, 3, DIM, alpha=0.4, seed=0, **own)
        with pytest.raises(
            ValueError, match=r"x must have a squared length of at most 1e\+18 times ridge.*scale the fe"
        ):
            policy.update(0, np.full(DIM, 1e9), 1.0)
        assert policy.rounds == 0
        assert not policy.pulls.any()
        assert policy.state.local.A[0].tolist() == np.eye(DIM).tolist()
        policy.update(0, np.full(DIM, 1e8), 1.0)
        assert policy.rounds == 1


def world(scale: float) -> shoal.Environment:
    rng = np.random.default_rng(0)
    return shoal.Environment(scale * rng.standard_normal((5, DIM)), mean_rewards=rng.standard_normal((4, 5)))


def test_badly_scaled_features_are_warned_of_once() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = shoal.BASS(2, DIM, alpha=0.3, delta=0.1)
        policy.update(0, np.full(DIM, 400.0), 1.0)
        with pytest.warns(
            UserWarning, match=r"got x with a squared length of 4e\+06, 4e\+06 times ridge=1: .*scale"
        ):
            policy.update(0, np.full(DIM, 1e3), 1.0)
        policy.update(1, np.full(DIM, 1e5), 1.0)
        assert policy.rounds == 3


def test_simulations_warn_and_refuse_alike() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = shoal.Independent(4, DIM, alpha=0.3)
        with pytest.raises(ValueError, match="an arm must have a squared length of at most"):
            shoal.simulate(policy, world(1e10), horizon=5, seed=0)
        assert policy.rounds == 0
        with pytest.warns(UserWarning, match="got an arm with a squared length"):
            shoal.simulate(policy, world(1e4), horizon=5, seed=0)
        shoal.simulate(policy, world(1e4), horizon=5, seed=0)
        assert policy.rounds == 10
