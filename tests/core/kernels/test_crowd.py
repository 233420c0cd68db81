"""One agent against many: lanes against the test of a single pair, sums and covers against plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import reference
from tests.core.kernels.test_linalg import random_spd
from tests.core.kernels.test_separation import exact

from shoal.core.kernels import bits, crowd
from shoal.core.kernels.lanes import WIDTH
from shoal.core.kernels.separation import V, Y, make_scratch, probe
from shoal.core.types import Booleans, Integers, Matrix, Vector

RIDGE = 0.7


def random_cards(rng: np.random.Generator, n: int, d: int) -> tuple[Matrix, Matrix, Matrix, Vector]:
    """Cards of agents with their θ̂, A and c."""
    theta, c = rng.standard_normal((n, d)), rng.uniform(1.0, 4.0, n)
    A = np.array([RIDGE * np.eye(d) + random_spd(rng, d, 30.0) * rng.uniform(0.1, 10) for _ in range(n)])
    row, column = np.tril_indices(d)
    cards = np.zeros((n, crowd.card_width(d)))
    packed = len(row)
    cards[:, :packed] = A[:, row, column] - RIDGE * (row == column)
    cards[:, packed : packed + d] = rng.standard_normal((n, d))
    cards[:, packed + d : packed + 2 * d] = theta
    cards[:, packed + 2 * d] = c
    return cards, theta, A, c


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 11))
def test_sixteen_pairs_are_bounded_and_probed_as_one(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    cards, theta, A, c = random_cards(rng, 40, d)
    chosen = rng.integers(1, 40, size=20)
    T, v, out = np.full((crowd.gathered_rows(d), WIDTH), np.nan), np.zeros((d, WIDTH)), np.zeros((5, WIDTH))
    crowd.gather(theta[0], cards, chosen, 3, T, v)
    here, ridges = chosen[3:19], np.full((1, WIDTH), RIDGE)
    np.testing.assert_array_equal(v, (theta[0] - theta[here]).T)
    crowd.bound_lanes(A[0], c[0], ridges, v, T, out)
    starts = out[crowd.START].copy()
    for lane, j in enumerate(here):
        pair = (theta[0], A[0], float(c[0]), theta[j], A[j], float(c[j]))
        assert out[crowd.BOUND, lane] == pytest.approx(reference.screen(*pair), rel=1e-9)
    ratio, L, vectors = (
        starts[None] * rng.uniform(0.5, 2.0, WIDTH),
        np.zeros((d * (d + 1) // 2, WIDTH)),
        np.zeros((3 * d, WIDTH)),
    )
    crowd.probe_lanes(A[0], c[0], ridges, v, T, ratio, L, vectors, out)
    scratch = make_scratch(d)
    for lane, j in enumerate(here):
        scratch.vectors[V] = theta[0] - theta[j]
        q_i, q_j, curvature = probe(
            A[0], exact(A[0]), c[0], A[j], exact(A[j]), c[j], ratio[0, lane], True, scratch
        )
        found = out[[crowd.Q_I, crowd.Q_J, crowd.CURVATURE], lane]
        np.testing.assert_allclose(found, [q_i, q_j, curvature], rtol=1e-8, atol=1e-14)
        np.testing.assert_allclose(vectors[:d, lane], scratch.vectors[Y], rtol=1e-8, atol=1e-12)
        assert 0.0 < out[crowd.LOW, lane] <= out[crowd.HIGH, lane]


def test_points_within() -> None:
    excess = np.random.default_rng(0).standard_normal(64)
    excess[[3, 63]] = np.nan, -9.0
    word = int(crowd.points_within(0.2, excess))
    assert [(word >> k) & 1 for k in range(64)] == [int(value <= 0.2) for value in excess]


def as_words(table: Booleans) -> Integers:
    words: Integers = np.packbits(table, axis=1, bitorder="little").view(np.int64)
    return words


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.floats(0.05, 0.6))
def test_greedy_cover(seed: int, share: float) -> None:
    """The choices of a greedy algorithm that counts every gain anew, and no more than there is room for."""
    rng = np.random.default_rng(seed)
    member, left = rng.random((30, 128)) < share, rng.random((128, 128)) < 0.3
    left |= left.T
    sets, open_pairs = as_words(member), as_words(left)
    chosen, gains = np.zeros(8, dtype=np.int64), np.zeros(30, dtype=np.int64)
    used = crowd.cover_greedily(sets, open_pairs, gains, chosen, 8)
    covered = left.copy()
    for k in range(used):
        naive = [int(covered[np.ix_(m, m)].sum()) for m in member]
        assert naive[chosen[k]] == max(naive)
        covered[np.ix_(member[chosen[k]], member[chosen[k]])] = False
    assert np.array_equal(as_words(covered), open_pairs)
    assert used == 8 or not any(covered[np.ix_(m, m)].any() for m in member)


@pytest.mark.parametrize("width", [2, 5, 65, 16])
def test_sums_of_cards(width: int) -> None:
    rng, n = np.random.default_rng(0), 300
    cards = np.zeros((n, 80))
    cards[:, :width] = rng.standard_normal((n, width))
    empty, left_out = np.zeros(5, dtype=np.int64), np.zeros(5, dtype=np.int64)
    left = rng.random(n) < np.repeat([0.05, 0.5, 0.95, 0.0, 1.0], 64)[:n]
    none = (rng.random(n) < 0.2) & ~left
    cards[none] = 0.0
    for agent in np.flatnonzero(left).tolist():
        bits.set_bit(left_out, agent)
    for agent in np.flatnonzero(none).tolist():
        bits.set_bit(empty, agent)
    blocks = np.add.reduceat(cards[:, :width], np.arange(0, n, 64))
    expected = cards[~left, :width].sum(axis=0)
    cards[none] = np.nan  # nobody adds them
    for sizes in (np.zeros(5), np.full(5, 9.0)):  # those too large are not subtracted
        total = np.full(width, np.nan)
        crowd.sum_kept(cards, blocks, sizes, 1.0, left_out, empty, total)
        np.testing.assert_allclose(total, expected, atol=1e-12)
    known = cards.copy()
    known[np.flatnonzero(~left & ~none & (np.arange(n) < 64))] = np.nan
    crowd.sum_kept(known, blocks, np.zeros(5), 1.0, left_out, empty, total)
    np.testing.assert_allclose(total, expected, atol=1e-12)
    crowd.sum_kept(known, blocks, np.full(5, 9.0), 1.0, left_out, empty, total)
    assert np.isnan(total).all()
