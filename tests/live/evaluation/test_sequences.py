"""Confidence sequences hold the running mean at all times at once, in as many streams as they promise."""

import math

import mpmath
import numpy as np
import pytest

from shoal.core.types import Matrix
from shoal.live.evaluation.sequences import (
    BEST_AT,
    BURN_IN,
    POWER,
    ZETA,
    asymptotic,
    empirical_bernstein,
    running,
)
from shoal.live.journal.tally import Sums

STREAMS, LENGTH = 400, 4000


def independent(rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Skewed terms with the same law; and their conditional means."""
    terms = rng.exponential(size=(STREAMS, LENGTH)) - 0.8
    return terms, np.full_like(terms, 0.2)


def heteroscedastic(rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Terms that become quieter, with a mean that decays, as dividends do while agents learn."""
    t = np.arange(1, LENGTH + 1)
    means = np.broadcast_to(1.0 / np.sqrt(t), (STREAMS, LENGTH))
    return means + (0.3 + 2.0 / np.sqrt(t)) * rng.uniform(-1.0, 1.0, (STREAMS, LENGTH)), means


def adaptive(rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Terms whose mean and spread depend on the terms before."""
    terms, means = np.zeros((STREAMS, LENGTH)), np.zeros((STREAMS, LENGTH))
    level = np.zeros(STREAMS)
    for t in range(LENGTH):
        means[:, t] = 0.5 * np.tanh(level)
        terms[:, t] = means[:, t] + rng.uniform(-1.0, 1.0, STREAMS) * (0.5 + 0.5 * (level > 0))
        level = 0.8 * level + terms[:, t]
    return terms, means


def looks() -> list[int]:
    """Times to look at, all of them early on."""
    return sorted({*range(1, 200), *np.geomspace(200, LENGTH, 60).astype(int).tolist()})


@pytest.mark.parametrize("stream", [independent, heteroscedastic, adaptive])
@pytest.mark.parametrize("method", ["asymptotic", "bernstein"])
def test_hold_at_all_times(stream: object, method: str) -> None:
    terms, means = stream(np.random.default_rng(3))  # type: ignore[operator]
    if method == "bernstein":
        terms, means = np.clip(terms, -2.5, 2.5), means
        if stream is independent:  # whose clipped mean is E min(X, 3.3) − 0.8
            means = np.full_like(terms, 1.0 - math.exp(-3.3) - 0.8)
    sums, squares, truth = np.cumsum(terms, 1), np.cumsum(terms**2, 1), np.cumsum(means, 1)
    missed, widths = 0, []
    for row in range(STREAMS):
        outside = False
        for n in looks():
            so_far = Sums(n, float(sums[row, n - 1]), float(squares[row, n - 1]))
            low, high = (
                asymptotic(so_far) if method == "asymptotic" else empirical_bernstein(so_far, -2.5, 2.5)
            )
            outside |= not low <= truth[row, n - 1] / n <= high
        widths.append(high - low)
        missed += outside
    assert missed <= 0.05 * STREAMS
    assert np.mean(widths) < (0.25 if method == "asymptotic" else 0.8)


def test_a_fixed_interval_does_not() -> None:
    terms, _ = independent(np.random.default_rng(3))
    n = np.arange(BURN_IN, LENGTH + 1)
    mean = np.cumsum(terms, 1)[:, n - 1] / n
    half = 1.96 / np.sqrt(n)
    assert np.mean((np.abs(mean - 0.2) > half).any(axis=1)) > 0.2


def test_the_boundary_is_the_published_one() -> None:
    """The normal mixture, checked by integrating the mixture itself; and the constants."""
    assert pytest.approx(float(mpmath.zeta(POWER)), rel=1e-14) == ZETA
    n, error = 700, 0.05
    low, high = asymptotic(Sums(n, 0.0, float(n)))
    assert -low == high
    rho_sq = (-2.0 * math.log(error) + math.log(1.0 - 2.0 * math.log(error))) / BEST_AT
    mpmath.mp.dps = 30
    # Where Σ terms is n·high, the mixture of exp(λS − λ²n/2) over λ ~ N(0, ρ²) has reached 1/error.
    total = n * mpmath.mpf(high)
    mixture = mpmath.quad(
        lambda z: (
            mpmath.exp(z * total - z * z * n / 2 - z * z / (2 * rho_sq)) / mpmath.sqrt(2 * mpmath.pi * rho_sq)
        ),
        [-1, 0, total / n, 1],
    )
    assert float(mixture * error) == pytest.approx(1.0, rel=1e-9)


def test_few_terms_have_no_asymptotic_interval() -> None:
    assert asymptotic(Sums(BURN_IN - 1, 1.0, 1.0)) == (-math.inf, math.inf)
    assert empirical_bernstein(Sums(), -1.0, 1.0) == (-1.0, 1.0)
    assert math.isnan(Sums().mean)
    curve = running(np.arange(100.0))
    assert np.isnan(curve.low[: BURN_IN - 1]).all()
    np.testing.assert_allclose(curve.mean, np.arange(100) / 2)
    so_far = np.arange(60.0)
    assert (curve.low[59], curve.high[59]) == asymptotic(
        Sums(60, float(so_far.sum()), float(so_far @ so_far))
    )
