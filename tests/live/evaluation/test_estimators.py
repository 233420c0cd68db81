"""Estimates of other policies' values, against loops, another package, and simulated truth."""

import math

import numpy as np
import pytest
from tests.core.attack.common import SCALE
from tests.live.evaluation.simulated import POLICIES, RATES, WORLD, held, logs

from shoal.live.evaluation import estimators
from shoal.live.evaluation.estimators import Log, effective_size, why_not


@pytest.fixture(scope="module")
def log() -> Log:
    return logs(1, 500, explore=0.4, adaptive=True, seed=5)[0]


def test_against_loops(log: Log) -> None:
    n, w = len(log), [t / p for t, p in zip(log.target, log.probabilities, strict=True)]
    rows = list(zip(log.rewards, w, log.predicted, log.expected, strict=True))
    assert estimators.ips(log).value == pytest.approx(sum(v * r for r, v, _, _ in rows) / n)
    assert estimators.snips(log).value == pytest.approx(sum(v * r for r, v, _, _ in rows) / sum(w))
    assert estimators.direct(log).value == pytest.approx(sum(e for *_, e in rows) / n)
    assert math.isnan(estimators.direct(log).low)
    terms = [e + v * (r - q) for r, v, q, e in rows]
    found = estimators.doubly_robust(log)
    assert found.value == pytest.approx(sum(terms) / n)
    spread = math.sqrt(sum((one - sum(terms) / n) ** 2 for one in terms) / (n - 1))
    assert found.high - found.value == pytest.approx(1.959964 * spread / math.sqrt(n), rel=1e-6)
    clipped = estimators.ips(log, clip=2.0)
    assert clipped.value == pytest.approx(sum(min(v, 2.0) * r for r, v, _, _ in rows) / n)
    assert clipped.clipped == pytest.approx(sum(v > 2.0 for v in w) / n)
    assert effective_size(np.array([1.0, 1.0, 0.0, 0.0])) == 2.0


def test_switch_drops_large_weights_where_that_pays() -> None:
    n = 2000
    rng = np.random.default_rng(0)
    usual = rng.random(n) < 0.99  # whether the target wants what the log usually does
    wanted = np.where(usual, 0.9, 0.0005)
    rewards = rng.uniform(size=n)
    target = (rng.random(n) < wanted).astype(np.float64)
    target[np.flatnonzero(~usual)[0]] = 1.0  # once, with an enormous weight, it was made
    p = np.where(target > 0.0, wanted, 1.0 - wanted)
    log = Log(rewards, p, target, np.zeros(n), np.zeros(n), wanted)
    found = estimators.switch(log)
    assert found.clipped == 1 / n
    low, high = estimators.interval(estimators.doubly_robust_terms(log))
    assert found.high - found.low < 0.1 * (high - low)
    alike = Log(rewards, np.full(n, 0.5), np.full(n, 0.5), np.zeros(n), np.zeros(n))
    assert estimators.switch(alike).value == pytest.approx(estimators.doubly_robust(alike).value)


def test_against_another_package(log: Log) -> None:
    bandits = pytest.importorskip("estimators.bandits.ips", reason="vw-estimators is not installed")
    from estimators.bandits import gaussian, snips

    oracles = {"ips": bandits.Estimator(), "snips": snips.Estimator(), "gaussian": gaussian.Interval()}
    for r, p, target in zip(log.rewards, log.probabilities, log.target, strict=True):
        for oracle in oracles.values():
            oracle.add_example(p, r, target)
    assert estimators.ips(log).value == pytest.approx(oracles["ips"].get(), rel=1e-12)
    assert estimators.snips(log).value == pytest.approx(oracles["snips"].get(), rel=1e-12)
    low, high = oracles["gaussian"].get(0.05)
    found = estimators.ips(log)
    assert found.low <= low + 1e-9  # either end is the normal one, or wider
    assert found.high >= high - 1e-9
    assert found.high - found.low < 1.1 * (high - low)


@pytest.mark.parametrize("count", [5, 20, 100])
def test_of_rare_and_equal_terms_the_interval_is_that_of_a_count(count: int) -> None:
    from scipy.stats import chi2

    n, size = 1_000_000, 7.0
    terms = np.zeros(n)
    terms[:count] = size
    low, high = (end * n / size for end in estimators.interval(terms))
    assert high == pytest.approx(chi2.ppf(0.975, 2 * (count + 1)) / 2.0, rel=1e-4)
    assert low == pytest.approx(count - 1.959964 * math.sqrt(count), rel=1e-4)  # below chi2's, by a little
    assert low < chi2.ppf(0.025, 2 * count) / 2.0
    assert estimators.interval(-terms) == pytest.approx((-high * size / n, -low * size / n))
    shifted = estimators.interval(terms + 100.0)
    assert shifted == pytest.approx((100.0 + low * size / n, 100.0 + high * size / n), rel=1e-9)


CELLS = [("close", 0.005), ("spread", 0.002), ("far", 0.5)]


@pytest.mark.parametrize(
    ("kind", "rate"), CELLS if SCALE == 1 else [(kind, rate) for kind in POLICIES for rate in RATES]
)
def test_intervals_hold_with_rare_rewards(kind: str, rate: float) -> None:
    """In 95% of the logs, but for the chance of so many: docs/evaluation.md has the whole table."""
    n = 60 * SCALE
    found = held(kind, rate, n)
    assert all(count <= 0.05 * n + 3.0 * math.sqrt(0.05 * 0.95 * n) for count in found.missed.values())
    if (kind, rate) in CELLS:
        assert found.refused < 0.2 * n


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed logging", "adaptive logging"])
def test_intervals_hold_the_truth(adaptive: bool) -> None:
    """In 93 to 97% of 1,000 logs."""
    truth = WORLD.value()
    made = logs(1000, 1000, explore=0.3, adaptive=adaptive, seed=1)
    for estimate in (estimators.ips, estimators.doubly_robust):
        found = [estimate(log) for log in made]
        held = sum(one.low <= truth <= one.high for one in found)
        assert 930 <= held <= 970
        # and without bias: the mean of 1,000 is within three standard errors
        values = np.array([one.value for one in found])
        assert abs(values.mean() - truth) < 3.0 * values.std() / math.sqrt(1000)
    widths = [
        np.mean([one.high - one.low for one in map(e, made)])
        for e in (estimators.ips, estimators.doubly_robust)
    ]
    assert widths[1] < 0.85 * widths[0]


def test_a_log_that_cannot_tell_says_so() -> None:
    n, nothing = 1000, np.zeros(1000)
    rewards = np.linspace(0.0, 1.0, n)
    target = (np.arange(n) % 2).astype(np.float64)
    certain = why_not(Log(rewards, np.ones(n), target, nothing, nothing))
    assert certain.startswith(
        "In about 50% of the 1,000 decisions the policy would have chosen another arm, and none"
    )
    assert why_not(Log(rewards, np.ones(n), np.ones(n), nothing, nothing)) == ""
    # Three matches in a thousand.
    few = np.zeros(n)
    few[[3, 400, 900]] = 1.0
    sentence = why_not(Log(rewards, np.full(n, 0.1), few, nothing, nothing))
    assert "that arm was tried 3 times: it would take about 10,000 decisions" in sentence
    assert "more than 30,000" in why_not(Log(rewards, np.full(n, 0.1), nothing, nothing, nothing))
    assert why_not(Log(nothing[:0], nothing[:0], nothing[:0], nothing[:0], nothing[:0])).startswith(
        "There are no"
    )
    # A target that the log follows nine times out of ten is not known by these nine.
    mostly = np.ones(n)
    p = np.full(n, 0.95)
    mostly[:100] = 0.0
    assert "about 5%" in why_not(Log(rewards, p, mostly, nothing, nothing))


def test_a_log_with_too_few_rewards_says_so() -> None:
    n, rng = 10_000, np.random.default_rng(0)
    agrees = (rng.random(n) < 0.1).astype(np.float64)
    rewards = np.zeros(n)
    rewards[np.flatnonzero(agrees == 0.0)[:40]] = 1.0
    log = Log(rewards, np.full(n, 0.1), agrees, np.zeros(n), np.zeros(n))
    said = "decisions that agree with the policy none had a reward other than 0: too few to tell. It would"
    assert said in why_not(log)
    rewards[np.flatnonzero(agrees)[:3]] = 1.0
    assert "agree with the policy 3 had a reward other than 0" in why_not(log)
    assert "about 100,000 decisions" in why_not(log)
    rewards[np.flatnonzero(agrees)[:5]] = 1.0
    assert why_not(log) == ""
    assert "Every reward is 2" in why_not(Log(np.full(n, 2.0), np.full(n, 0.1), agrees, agrees, agrees))


def test_no_policy_earns_less_than_the_least_reward() -> None:
    n = 1000
    rewards = (np.arange(n) % 400 == 0).astype(np.float64)
    alike = np.full(n, 0.5)
    model = Log(rewards, alike, alike, np.full(n, 0.5), np.full(n, 0.4))  # what is predicted is far too much
    assert math.isnan(estimators.doubly_robust(model).value)
    assert estimators.ips(model).low == 0.0
    assert math.isnan(estimators.direct(Log(rewards, alike, alike, rewards, np.full(n, -0.1))).value)
