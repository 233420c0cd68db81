"""The γ with which BASS cuts two identical agents with no more than a given probability.

The test is that of the proofs, `radius="beta_squared"`, whose γ = 2 hardly ever cuts anybody. What smaller γ
do was simulated (`python benchmarks/level.py table`; docs/theory.md, "The level"). The number of agents does
not matter, the dimension a little, the ratio of √ridge · S to the noise a lot.
"""

import math
from typing import Any

import numpy as np

LEVELS = (0.02, 0.05, 0.1, 0.2)
RATIOS = (0.1, 0.3, 1.0, 3.0, 10.0)
GAMMAS = {
    1: (
        (1.81, 1.63, 1.46, 1.27),
        (1.66, 1.53, 1.37, 1.19),
        (1.37, 1.27, 1.14, 1.01),
        (1.10, 1.01, 0.98, 0.93),
        (1.40, 1.37, 1.32, 1.26),
    ),
    3: (
        (1.70, 1.57, 1.46, 1.33),
        (1.60, 1.43, 1.31, 1.21),
        (1.41, 1.25, 1.14, 1.05),
        (1.08, 1.00, 0.95, 0.88),
        (1.34, 1.29, 1.22, 1.10),
    ),
    10: (
        (1.60, 1.47, 1.36, 1.27),
        (1.53, 1.39, 1.29, 1.22),
        (1.29, 1.18, 1.13, 1.07),
        (1.00, 0.95, 0.91, 0.86),
        (1.15, 1.10, 1.07, 1.02),
    ),
}
"""γ for dimensions, ratios √ridge · S / R and levels: the largest over lengths of arms and ways to choose
them, for pairs of which one agent is pulled ten times as often as the other. Beyond 10 dimensions it falls
slowly, and that of 10 is taken. Journals and files keep the level and not γ: other numbers here would change
the cuts of policies that exist."""
DELTA, MOST_DIM = 0.1, 32


def calibrated_gamma(own: Any, dim: int) -> float:
    """γ for the level of some parameters of BASS, or an error that says what is not tabulated."""
    if own.noise_scale is None:
        raise ValueError("level needs to know the noise: give noise_scale, got None")
    if own.delta != DELTA:
        raise ValueError(f"level is tabulated for delta={DELTA}, got {own.delta!r}")
    if dim > MOST_DIM:
        raise ValueError(f"level is tabulated for up to {MOST_DIM} dimensions, got dim={dim}; give gamma")
    ratio = math.sqrt(own.ridge) * own.param_norm / own.noise_scale
    for name, value, known in (
        ("level", own.level, LEVELS),
        ("√ridge · param_norm / noise_scale", ratio, RATIOS),
    ):
        if not known[0] <= value <= known[-1]:
            raise ValueError(f"{name} must be from {known[0]:g} to {known[-1]:g} for a level, got {value:g}")
    # Over logarithms γ is close to linear: interpolate over levels, then ratios, then dimensions.
    for_dim = []
    for table in GAMMAS.values():
        for_ratio = [np.interp(math.log(own.level), np.log(LEVELS), row) for row in table]
        for_dim.append(np.interp(math.log(ratio), np.log(RATIOS), for_ratio))
    return float(np.interp(math.log(dim), np.log(list(GAMMAS)), for_dim))
