"""Statistics after any samples: inverse, log-determinant, estimate and pools, and nothing else touched."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import reference

from shoal.core.statistics import REFRESH_EVERY, add_sample, forget_row, make_statistics, pool_rows


@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("d", [1, 3, 10])
def test_rows_equal_a_refit(d: int, ridge: float) -> None:
    rng = np.random.default_rng(d)
    stats = make_statistics(3, d, ridge)
    samples: list[list[reference.Sample]] = [[], [], []]
    for n in range(2 * REFRESH_EVERY + 20):
        row, x, reward = int(rng.integers(2)), rng.standard_normal(d), float(rng.standard_normal())
        kept = x.copy()
        add_sample(stats, row, x, reward)
        assert np.array_equal(x, kept)
        samples[row].append((x, reward))
        if n % 97 == 0 or n > 2 * REFRESH_EVERY:
            for i in range(3):
                naive = reference.fit(samples[i], d, ridge)
                np.testing.assert_allclose(stats.A[i], naive.A, atol=1e-9)
                np.testing.assert_allclose(stats.A[i] @ stats.A_inv[i], np.eye(d), atol=1e-9)
                np.testing.assert_allclose(stats.theta_hat[i], naive.theta_hat, atol=1e-9)
                assert stats.logdet_A[i] == pytest.approx(naive.logdet_A, abs=1e-9)
                assert stats.pulls[i] == len(samples[i])
    assert np.array_equal(stats.A[2], ridge * np.eye(d))  # the row that saw nothing


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5))
def test_pool_equals_a_refit_from_raw_samples(seed: int, d: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    ridge = float(rng.choice([0.1, 1.0, 5.0]))
    local, pool = make_statistics(n, d, ridge), make_statistics(1, d, ridge)
    samples: list[list[reference.Sample]] = [[] for _ in range(n)]
    for _ in range(int(rng.integers(0, 30))):
        row, x, reward = int(rng.integers(n)), rng.standard_normal(d), float(rng.standard_normal())
        add_sample(local, row, x, reward)
        samples[row].append((x, reward))
    members = rng.random(n) < 0.6
    before = [array.copy() for array in list(local)[:6]]
    pool_rows(local, members, ridge, pool, 0)
    naive = reference.fit([s for i in np.flatnonzero(members) for s in samples[i]], d, ridge)
    np.testing.assert_allclose(pool.A[0], naive.A, atol=1e-10)
    np.testing.assert_allclose(pool.theta_hat[0], naive.theta_hat, atol=1e-10)
    assert pool.logdet_A[0] == pytest.approx(naive.logdet_A, abs=1e-10)
    assert pool.pulls[0] == sum(len(samples[i]) for i in np.flatnonzero(members))
    assert all(np.array_equal(old, new) for old, new in zip(before, list(local)[:6], strict=True))


def test_forgotten_row_is_a_fresh_one() -> None:
    stats, fresh = make_statistics(2, 3, 0.5), make_statistics(2, 3, 0.5)
    add_sample(stats, 1, np.ones(3), 2.0)
    forget_row(stats, 1, 0.5)
    for field in ("A", "A_inv", "b", "theta_hat", "pulls"):
        np.testing.assert_allclose(getattr(stats, field), getattr(fresh, field), atol=1e-15)
    np.testing.assert_allclose(stats.logdet_A, fresh.logdet_A)
