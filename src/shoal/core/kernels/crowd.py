"""One agent against a crowd: the exact test of sixteen pairs at once, points that many share, sums of rows.

An agent's *card* is a row of numbers: the lower triangle of its `Σ x xᵀ`, row by row, its b, θ̂ and c, so that
what a test or a sum needs of an agent is in one place. `separation` has the mathematics, and
docs/algorithms.md the lemmas.
"""

import math

import numpy as np

from shoal.core.jit.compiled import compiled
from shoal.core.kernels.lanes import (
    HALF,
    WIDTH,
    add,
    divide,
    drop_lowest,
    larger,
    load,
    load_from,
    lowest_bit,
    multiply,
    multiply_add,
    multiply_take,
    popcount,
    root,
    smaller,
    splat,
    store,
    store_to,
    subtract,
    transpose,
)
from shoal.core.kernels.linalg import trace
from shoal.core.kernels.separation import EPS, TINY
from shoal.core.types import Integers, Matrix, Vector

BOUND, START = range(2)
"""Rows of what `bound_lanes` writes."""
Q_I, Q_J, CURVATURE, LOW, HIGH = range(5)
"""Rows of what `probe_lanes` writes."""


def round_up(n: int) -> int:
    """The next multiple of the rows that are transposed at once."""
    return -(-n // HALF) * HALF


def card_width(dim: int) -> int:
    """Length of a card: triangle, b, θ̂, c, and room for the last eight columns to be read whole."""
    return round_up(dim * (dim + 1) // 2 + dim + round_up(dim + 1))


def gathered_rows(dim: int) -> int:
    """Rows that `gather` writes: triangles, then θ̂ and c."""
    return round_up(dim * (dim + 1) // 2) + round_up(dim + 1)


@compiled
def gather(theta_i: Vector, cards: Matrix, chosen: Integers, first: int, T: Matrix, v: Matrix) -> None:
    """Put the cards of sixteen agents side by side into `T`, without b, and `θ̂_i − θ̂_j` into `v` (d, 16)."""
    d = theta_i.shape[0]
    triangle = d * (d + 1) // 2
    below = (triangle + HALF - 1) // HALF * HALF
    for half in range(0, WIDTH, HALF):
        for column in range(0, triangle, HALF):
            transpose(cards, chosen, first + half, column, T, column, half)
        for column in range(0, d + 1, HALF):
            transpose(cards, chosen, first + half, triangle + d + column, T, below + column, half)
    for m in range(d):
        store(v, m, subtract(splat(theta_i[m]), load(T, below + m)))


@compiled
def bound_lanes(A_i: Matrix, c_i: float, ridges: Matrix, v: Matrix, T: Matrix, out: Matrix) -> None:
    """Lemma 2 in every lane: the bound, with room for rounding, and the ratio where a search would start."""
    d = A_i.shape[0]
    triangle = d * (d + 1) // 2
    ridge = load(ridges, 0)
    a, b, v_sq, steepness = splat(0.0), splat(0.0), splat(0.0), multiply(splat(float(d)), ridge)
    two = splat(2.0)
    position = 0
    for row in range(d):
        v_row = load(v, row)
        in_i, in_j = splat(0.0), splat(0.0)
        for column in range(row):
            v_column = load(v, column)
            in_i = multiply_add(splat(A_i[row, column]), v_column, in_i)
            in_j = multiply_add(load(T, position + column), v_column, in_j)
        diagonal = load(T, position + row)
        steepness = add(steepness, diagonal)
        a = multiply_add(v_row, multiply_add(two, in_i, multiply(splat(A_i[row, row]), v_row)), a)
        b = multiply_add(v_row, multiply_add(two, in_j, multiply(diagonal, v_row)), b)
        v_sq = multiply_add(v_row, v_row, v_sq)
        position += row + 1
    b = multiply_add(ridge, v_sq, b)  # cards hold the sums without the ridge
    c_j = load(T, (triangle + HALF - 1) // HALF * HALF + d)
    tiny = splat(TINY)
    start = divide(multiply_add(a, c_j, tiny), multiply_add(b, splat(c_i), tiny))
    store(out, START, root(start))
    rounding = 16.0 * d * EPS
    a = multiply_add(splat(rounding * trace(A_i)), v_sq, a)
    b = multiply_add(multiply(splat(rounding), steepness), v_sq, b)
    product = multiply(a, b)
    mixed = multiply(two, root(multiply(multiply(splat(c_i), c_j), product)))
    mixed = multiply_add(splat(c_i), b, multiply_add(c_j, a, mixed))
    store(out, BOUND, divide(product, add(mixed, tiny)))


@compiled
def probe_lanes(
    A_i: Matrix,
    c_i: float,
    ridges: Matrix,
    v: Matrix,
    T: Matrix,
    ratio: Matrix,
    L: Matrix,
    vectors: Matrix,
    out: Matrix,
) -> None:
    """`separation.probe` in every lane, at its own ratio and ridge.

    Writes q_i, q_j, curvature, least and largest inverse pivot to `out`, and leaves `y = z − θ̂_j` in the
    first d rows of `vectors` (3 d, 16); `L` (triangle, 16) is scratch. Pivots are kept inverted, so that
    nothing is divided by them again.
    """
    d = A_i.shape[0]
    triangle = d * (d + 1) // 2
    c_j = load(T, (triangle + HALF - 1) // HALF * HALF + d)
    r = divide(multiply(load(ratio, 0), splat(c_i)), c_j)
    r_ridge = multiply(r, load(ridges, 0))
    low, high, one = splat(math.inf), splat(0.0), splat(1.0)
    start = 0
    for row in range(d):
        other = 0
        for column in range(row):
            value = multiply_add(r, load(T, start + column), splat(A_i[row, column]))
            for k in range(column):
                value = multiply_take(load(L, start + k), load(L, other + k), value)
            store(L, start + column, multiply(value, load(L, other + column)))
            other += column + 1
        value = add(multiply_add(r, load(T, start + row), splat(A_i[row, row])), r_ridge)
        for k in range(row):
            entry = load(L, start + k)
            value = multiply_take(entry, entry, value)
        inverse = divide(one, root(value))
        store(L, start + row, inverse)
        low = smaller(low, inverse)
        high = larger(high, inverse)
        # Forward substitution of A_i v goes along with the factorisation.
        rhs = multiply(splat(A_i[row, 0]), load(v, 0))
        for m in range(1, d):
            rhs = multiply_add(splat(A_i[row, m]), load(v, m), rhs)
        for k in range(row):
            rhs = multiply_take(load(L, start + k), load(vectors, k), rhs)
        store(vectors, row, multiply(rhs, inverse))
        start += row + 1
    for row in range(d - 1, -1, -1):
        value = load(vectors, row)
        here = row * (row + 1) // 2 + row
        below = here
        for k in range(row + 1, d):
            below += k
            value = multiply_take(load(L, below), load(vectors, k), value)
        value = multiply(value, load(L, here))
        store(vectors, row, value)
        store(vectors, d + row, subtract(load(v, row), value))
    q_i, q_j, curvature = splat(0.0), splat(0.0), splat(0.0)
    start = 0
    for row in range(d):  # A_i w = r A_j y: one product serves both forms, and its solution the curvature
        value = multiply(splat(A_i[row, 0]), load(vectors, d))
        for m in range(1, d):
            value = multiply_add(splat(A_i[row, m]), load(vectors, d + m), value)
        q_i = multiply_add(value, load(vectors, d + row), q_i)
        q_j = multiply_add(value, load(vectors, row), q_j)
        for k in range(row):
            value = multiply_take(load(L, start + k), load(vectors, 2 * d + k), value)
        value = multiply(value, load(L, start + row))
        store(vectors, 2 * d + row, value)
        curvature = multiply_add(value, value, curvature)
        start += row + 1
    scale = multiply(r, c_j)
    store(out, Q_I, divide(q_i, splat(c_i)))
    store(out, Q_J, divide(q_j, scale))
    store(out, CURVATURE, divide(multiply(curvature, splat(c_i)), multiply(scale, scale)))
    store(out, LOW, low)
    store(out, HIGH, high)


@compiled
def points_within(limit: float, excess: Vector) -> int:
    """The set, as bits, of the 64 points whose excess is at most the limit."""
    word = np.int64(0)
    for lane in range(64):
        word |= np.int64(excess[lane] <= limit) << np.int64(lane)
    return int(word)


@compiled
def cover_greedily(sets: Integers, left: Integers, gains: Integers, chosen: Integers, room: int) -> int:
    """Choose sets that together cover the most pairs; return how many, their indices in `chosen`.

    Row k of `sets` (n, m) is a set of agents as bits, row a of the symmetric `left` (64 m, m) those whose
    pair with agent a is not covered yet. What a set would gain only falls as others are chosen (the gain is
    submodular), so a gain computed earlier is a bound, and few have to be computed again.
    """
    n, words = sets.shape
    for k in range(n):
        gains[k] = np.int64(1) << np.int64(40)
    used = 0
    while used < room:
        best = 0
        for k in range(1, n):
            if gains[k] > gains[best]:
                best = k
        if gains[best] <= 0:
            break
        bound = gains[best]
        gain = 0
        for word in range(words):
            bits = sets[best, word]
            while bits != 0:
                a = word * 64 + lowest_bit(bits)
                bits = drop_lowest(bits)
                for m in range(words):
                    gain += popcount(left[a, m] & sets[best, m])
        if gain == bound:  # up to date, and no bound is larger
            chosen[used] = best
            used += 1
            for word in range(words):
                bits = sets[best, word]
                while bits != 0:
                    a = word * 64 + lowest_bit(bits)
                    bits = drop_lowest(bits)
                    for m in range(words):
                        left[a, m] &= ~sets[best, m]
            gain = 0
        gains[best] = gain
    return used


@compiled
def add_rows(sign: float, rows: Matrix, first: int, bits: int, out: Vector) -> None:
    """Add `sign` times the beginnings of the rows `first + k`, k in `bits`, to `out`, four at a time."""
    width, stride = out.shape[0], rows.shape[1]
    whole = width // WIDTH * WIDTH
    s = splat(sign)
    left = popcount(bits)
    while left >= 4:
        a = first + lowest_bit(bits)
        bits = drop_lowest(bits)
        b = first + lowest_bit(bits)
        bits = drop_lowest(bits)
        c = first + lowest_bit(bits)
        bits = drop_lowest(bits)
        e = first + lowest_bit(bits)
        bits = drop_lowest(bits)
        left -= 4
        for at in range(0, whole, WIDTH):
            total = load_from(out, at)
            total = multiply_add(s, load_from(rows, a * stride + at), total)
            total = multiply_add(s, load_from(rows, b * stride + at), total)
            total = multiply_add(s, load_from(rows, c * stride + at), total)
            total = multiply_add(s, load_from(rows, e * stride + at), total)
            store_to(out, at, total)
        for m in range(whole, width):
            out[m] = out[m] + sign * rows[a, m] + sign * rows[b, m] + sign * rows[c, m] + sign * rows[e, m]
    while bits != 0:
        a = first + lowest_bit(bits)
        bits = drop_lowest(bits)
        for at in range(0, whole, WIDTH):
            store_to(out, at, multiply_add(s, load_from(rows, a * stride + at), load_from(out, at)))
        for m in range(whole, width):
            out[m] += sign * rows[a, m]


@compiled
def sum_kept(
    cards: Matrix,
    blocks: Matrix,
    sizes: Vector,
    subtractable: float,
    left_out: Integers,
    empty: Integers,
    out: Vector,
) -> None:
    """Sum the beginnings of the cards that are in neither of two sets; `blocks` lack those in `empty`.

    Row w of `blocks` is the sum of the 64 cards that share integer w. Where few of them are left out, those
    are subtracted from it, provided that `sizes[w]` (no entry is larger) is at most `subtractable`.
    """
    n = cards.shape[0]
    for m in range(out.shape[0]):
        out[m] = 0.0
    for w in range(left_out.shape[0]):
        known = ~empty[w]
        if n - w * 64 < 64:
            known &= (np.int64(1) << np.int64(n - w * 64)) - np.int64(1)
        gone = left_out[w] & known
        kept = known & ~gone
        if kept == 0:
            continue
        if gone == 0 or (popcount(gone) < popcount(kept) and sizes[w] <= subtractable):
            add_rows(1.0, blocks, w, 1, out)
            add_rows(-1.0, cards, w * 64, gone, out)
        else:
            add_rows(1.0, cards, w * 64, kept, out)
