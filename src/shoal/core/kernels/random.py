"""Random numbers inside compiled code: one 64-bit word of state, saved and restored like any array.

Marsaglia's xorshift64 (2003). It draws what policies draw; whatever else is random in an experiment (arms,
order of agents, noise) comes from NumPy's generators.
"""

import math

import numpy as np

from shoal.core.jit.compiled import compiled
from shoal.core.types import AnyArray, Vector

HALF = np.uint64(0xFFFFFFFF)


def random_state(seed: int | None) -> AnyArray:
    """State of the generator: shape (1,), uint64, never zero."""
    word = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    return np.maximum(word, np.uint64(1))  # from 0, xorshift never leaves 0


@compiled
def uniform(state: AnyArray) -> float:
    """A number in [0, 1), with 53 random bits."""
    word = state[0]
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    state[0] = word
    return float(word >> np.uint64(11)) * (1.0 / 9007199254740992.0)  # 2⁵³


@compiled
def integer_below(state: AnyArray, n: int) -> int:
    """An integer in 0, …, n−1."""
    return min(int(uniform(state) * n), n - 1)


@compiled
def normal(state: AnyArray) -> float:
    """A standard normal number (Box and Muller 1958)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(state)))
    return radius * math.cos(2.0 * math.pi * uniform(state))


@compiled
def draw_normals(state: AnyArray, t: int, agent: int, out: Vector) -> None:
    """Fill `out` with standard normal numbers that belong to an agent's round, and leave `state` as it is.

    Whoever asks for the same agent and round gets the same numbers: a choice that draws can be repeated, and
    looked at, without changing what comes after it.
    """
    kept = state[0]
    # Philox-2x32 (Salmon et al. 2011): xorshift alone would make of neighbouring rounds similar numbers.
    left, right = (kept ^ np.uint64(t)) & HALF, (kept >> np.uint64(32)) ^ np.uint64(agent) & HALF
    key = kept & HALF
    for _ in range(10):
        product = left * np.uint64(0xD256D193)
        left, right = (product >> np.uint64(32)) ^ key ^ right, product & HALF
        key = (key + np.uint64(0x9E3779B9)) & HALF
    state[0] = max((left << np.uint64(32)) | right, np.uint64(1))
    for m in range(out.shape[0]):
        out[m] = normal(state)
    state[0] = kept


@compiled
def gamma(state: AnyArray, shape: float) -> float:
    """A number of the gamma distribution with a shape of at least 1 and rate 1 (Marsaglia and Tsang 2000)."""
    d = shape - 1.0 / 3.0
    while True:
        x = normal(state)
        v = (1.0 + x / math.sqrt(9.0 * d)) ** 3
        if v > 0.0 and math.log(1.0 - uniform(state)) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v
