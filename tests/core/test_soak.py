"""A million updates leave the inverse as good as new."""

import numpy as np
import pytest

from shoal.core.jit.compiled import compiled
from shoal.core.statistics import Statistics, add_sample, make_statistics
from shoal.core.types import Matrix


@compiled
def add_many(stats: Statistics, xs: Matrix, repeats: int) -> None:
    for _ in range(repeats):
        for k in range(xs.shape[0]):
            add_sample(stats, 0, xs[k], 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_million_updates(scale: float) -> None:
    rng = np.random.default_rng(0)
    xs = scale * rng.standard_normal((1000, 10)) * np.geomspace(1e-2, 1.0, 10)  # uneven directions
    stats = make_statistics(1, 10, 1.0)
    add_many(stats, xs, 1000)
    assert stats.pulls[0] == 1_000_000
    exact = np.eye(10) + 1000.0 * xs.T @ xs
    np.testing.assert_allclose(stats.A[0], exact, rtol=1e-9)
    assert np.abs(stats.A[0] @ stats.A_inv[0] - np.eye(10)).max() < 1e-8
    assert stats.logdet_A[0] == pytest.approx(np.linalg.slogdet(exact)[1], abs=1e-8)
