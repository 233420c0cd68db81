"""Numbers at the edges of what floats can hold: right against mpmath, or refused by name."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import shoal
from shoal.lab import theory

EYE = np.eye(2)


def statistic_mp(v: float, a: float, beta_i: float, b: float, beta_j: float, power: int) -> Any:
    """Closed form for proportional matrices a·I and b·I."""
    with mpmath.workdps(40):
        v, a, b, c_i, c_j = (mpmath.mpf(n) for n in (v, a, b, beta_i, beta_j))
        return v**2 / (mpmath.sqrt(c_i**power / a) + mpmath.sqrt(c_j**power / b)) ** 2


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("v", [1e-320, 1e-200, 1e-3, 1e30])
@pytest.mark.parametrize(
    "betas", [(1.0, 2.0), (1e-300, 1e-300), (1e-300, 1e300), (1e308, 5.0), (5e-324, 1.0)]
)
def test_separation_statistic(v: float, betas: tuple[float, float], power: int) -> None:
    kind = {1: "beta", 2: "beta_squared"}[power]
    for a, b in ((1.0, 1.0), (1e-30, 1e30), (4e20, 1e20)):
        ours = shoal.separation_statistic(
            [v, 0.0], a * EYE, betas[0], [0.0, 0.0], b * EYE, betas[1], radius=kind
        )
        exact = statistic_mp(v, a, betas[0], b, betas[1], power)
        assert ours == (
            math.inf if exact > mpmath.mpf("1.8e308") else pytest.approx(float(exact), rel=1e-9, abs=5e-324)
        )
        for gamma in (1e-30, 2.0, 1e30):
            threshold = mpmath.mpf(gamma) ** 2 / 4
            if abs(exact / threshold - 1) > 1e-6:
                pair = ([v, 0.0], a * EYE, betas[0], [0.0, 0.0], b * EYE, betas[1])
                assert shoal.separated(*pair, gamma=gamma, radius=kind) is bool(exact > threshold)


def test_centres_that_are_equal_at_any_scale() -> None:
    for beta in (5e-324, 1e300):
        assert shoal.separation_statistic([1e30, 0.0], EYE, beta, [1e30, 0.0], EYE, beta) == 0.0


def corrected_mp(delta: float, gap: float) -> int:
    """The round of "corrected", from its definition."""
    with mpmath.workdps(60):
        level, gap = mpmath.mpf(delta), mpmath.mpf(gap)
        edge = 2 * mpmath.sqrt(2) * erfcinv_mp(level)

        def excess(m: Any) -> Any:  # P[|Z| ≥ edge] − δ, Z normal with mean m and variance 2
            return (mpmath.erfc((edge - m) / 2) + mpmath.erfc((edge + m) / 2)) / 2 - level

        return int(mpmath.ceil((bisect_mp(excess, 0, edge + 20) / gap) ** 2))


def erfcinv_mp(level: Any) -> Any:
    return bisect_mp(lambda x: level - mpmath.erfc(x), 0, 40)


def bisect_mp(rising: Callable[[Any], Any], low: Any, high: Any) -> Any:
    low, high = mpmath.mpf(low), mpmath.mpf(high)
    for _ in range(140):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-17, 1e-16, 1e-9, 0.013, 0.1, 0.4, 0.93])
def test_separation_time_lower(delta: float) -> None:
    for gap in (0.037, 1.27):
        ours = theory.separation_time_lower(delta, gap, reading="corrected")
        assert ours == pytest.approx(corrected_mp(delta, gap), rel=1e-9)
        with mpmath.workdps(60):
            quantile = erfcinv_mp(mpmath.mpf(delta))
            derived = mpmath.ceil(
                8 * max(quantile - mpmath.erfinv(mpmath.mpf(delta)), 0) ** 2 / mpmath.mpf(gap) ** 2
            )
            printed = mpmath.ceil(8 * (quantile - mpmath.erf(mpmath.mpf(delta))) ** 2 / mpmath.mpf(gap))
        assert theory.separation_time_lower(delta, gap) == float(derived)
        assert theory.separation_time_lower(delta, gap, reading="printed") == float(printed)


def test_separation_time_of_gaps_that_vanish() -> None:
    assert theory.separation_time_lower(0.1, 1e-200) == math.inf
    assert theory.separation_time_lower(0.1, [1e-200, 0.2], reading="corrected").tolist() == [math.inf, 55.0]  # type: ignore[union-attr]


@pytest.mark.parametrize("delta", [5e-324, 1e-310, 1e-17, 0.1, 1 - 2.0**-53])
def test_radius_and_gains(delta: float) -> None:
    with mpmath.workdps(40):
        surprise = -mpmath.log(mpmath.mpf(delta))
        radius, ratio = mpmath.sqrt(2 * surprise), mpmath.sqrt(1 + 10 * mpmath.log(2) / (2 * surprise))
    assert theory.beta(delta, 0.0, param_norm=0.0) == pytest.approx(float(radius), rel=1e-14)
    assert theory.gain_network(delta, 10) == pytest.approx(float(ratio / mpmath.sqrt(2)), rel=1e-14)


def test_asymmetric_matrices_of_any_size_are_refused() -> None:
    for size in (1e-200, 1e-9, 1.0, 1e9):
        with pytest.raises(ValueError, match="is not symmetric"):
            theory.optimistic_parameter(
                [0.0, 0.0], size * np.array([[2.0, 0.5], [0.0, 2.0]]), [1.0, 0.0], 1.0
            )


HUGE = 10**400
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "gamma of BASS": (
        lambda: shoal.BASS(2, 2, alpha=0.1, delta=0.1, gamma=1e200),
        r"gamma must .* got 1e\+200",
    ),
    "small gamma of BASS": (
        lambda: shoal.BASS(2, 2, alpha=0.1, delta=0.1, gamma=1e-200),
        "gamma must .* got 1e-200",
    ),
    "gamma of CLUB": (lambda: shoal.CLUB(2, 2, alpha=0.1, gamma=1e200), r"gamma must .* got 1e\+200"),
    "gamma of SCLUB": (lambda: shoal.SCLUB(2, 2, alpha=0.1, gamma=1e200), r"gamma must .* got 1e\+200"),
    "gamma of CMLB": (lambda: shoal.CMLB(2, 2, alpha=0.1, gamma=1e200), r"gamma must .* got 1e\+200"),
    "gamma of separated": (
        lambda: shoal.separated([1.0], [[1.0]], 1.0, [0.0], [[1.0]], 1.0, gamma=1e200),
        r"gamma must .* got 1e\+200",
    ),
    "noise": (
        lambda: shoal.BASS(2, 2, alpha=0.1, delta=0.1, noise_scale=1e-200),
        "noise_scale must .* got 1e-200",
    ),
    "ridge": (
        lambda: shoal.Independent(2, 2, alpha=0.1, ridge=1e-300),
        r"ridge must .* \[1e-30, 1e\+30\], got 1e-300",
    ),
    "large ridge": (lambda: shoal.Independent(2, 2, alpha=0.1, ridge=1e300), r"ridge must .* got 1e\+300"),
    "alpha": (lambda: shoal.Independent(2, 2, alpha=1e300), r"alpha must .* got 1e\+300"),
    "huge alpha": (
        lambda: shoal.Independent(2, 2, alpha=HUGE),
        "alpha must be a number, got 1000.*characters",
    ),
    "reward": (
        lambda: shoal.Independent(2, 2, alpha=0.1).update(0, np.ones(2), HUGE),
        "reward must be a number, got 1000.*characters",
    ),
    "reward too long to print": (
        lambda: shoal.Independent(2, 2, alpha=0.1).update(0, np.ones(2), 10**6000),
        "reward must be a number, got an integer of 19932 bits",
    ),
    "x": (
        lambda: shoal.Independent(2, 2, alpha=0.1).update(0, [1, HUGE], 0.0),
        "x must be an array of numbers, got",
    ),
    "theory": (lambda: theory.beta(HUGE, 0.0), "delta=1000.* is not numeric"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_refused_reward_changes_nothing() -> None:
    policy = shoal.BASS(2, 2, alpha=0.1, delta=0.1)
    for reward in (HUGE, math.nan, 1e31):
        with pytest.raises(ValueError, match="reward must be"):
            policy.update(0, np.ones(2), reward)
    assert policy.rounds == 0
    assert not policy.state.local.b.any()


@pytest.mark.parametrize("ridge", [1e-30, 1e30])
def test_smallest_and_largest_ridge_are_right(ridge: float) -> None:
    rng, root = np.random.default_rng(0), math.sqrt(ridge)
    policies = [
        shoal.BASS(3, 2, alpha=0.3, delta=0.1, ridge=r, gamma=1.0, param_norm=0.0) for r in (1.0, ridge)
    ]
    arms = rng.standard_normal((5, 2))
    for _ in range(200):
        agent = int(rng.integers(3))
        k = policies[0].select(agent, arms)
        assert policies[1].select(agent, arms * root) == k
        reward = float(arms[k, agent % 2] * 3 + rng.standard_normal())
        policies[0].update(agent, arms[k], reward)
        policies[1].update(agent, arms[k] * root, reward)
    assert np.array_equal(policies[0].cuts, policies[1].cuts)
    assert len(policies[0].cuts) > 0
