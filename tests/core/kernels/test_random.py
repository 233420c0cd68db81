"""The generator inside compiled code: uniform, reproducible, and all of its state in one array."""

import numpy as np
import pytest

from shoal.core.kernels.random import integer_below, random_state, uniform


def test_same_seed_same_numbers_and_state_is_all_there_is() -> None:
    one, two = random_state(5), random_state(5)
    first = [uniform(one) for _ in range(10)]
    assert first == [uniform(two) for _ in range(10)]
    resumed = one.copy()
    assert [uniform(one) for _ in range(5)] == [uniform(resumed) for _ in range(5)]
    assert uniform(random_state(6)) != first[0]


def test_uniform() -> None:
    state = random_state(0)
    draws = np.array([uniform(state) for _ in range(20_000)])
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    chi_square = ((counts - 1000.0) ** 2 / 1000.0).sum()
    assert chi_square < 43.8  # 99.9% quantile at 19 degrees of freedom
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.03


@pytest.mark.parametrize("n", [1, 2, 7])
def test_integers(n: int) -> None:
    state = random_state(1)
    draws = [integer_below(state, n) for _ in range(700 * n)]
    assert set(draws) == set(range(n))
    assert np.bincount(draws).min() > 550
