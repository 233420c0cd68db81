"""Random numbers inside compiled code: one 64-bit word of state, saved and restored like any array.

Marsaglia's xorshift64 (2003). It only draws arms to explore; whatever else is random in an experiment (arms,
order of agents, noise) comes from NumPy's generators.
"""

import numpy as np

from shoal.core.jit.compiled import compiled
from shoal.core.types import AnyArray


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
