"""Clicks: rewards of 0 and 1, learned as samples of a linear model of the logit (assumed density filtering).

What a click says of the logit `x·θ`, whose mean and variance are m and v, is matched by a Gaussian of the
same first two moments. Its precision w does not depend on the click, and it is what an ordinary sample of
noise 1 says: the arm `√w·x` with the reward `r/√w`. So a policy makes of clicks what it makes of samples.

    κ = 1/√(1 + πv/8),  p = σ(κm),  h = κ²p(1 − p),  f = 1/(1 − vh),  w = hf,  r = wm + κ(y − p)f

docs/algorithms.md says why, and what follows.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.statistics import Statistics
from shoal.core.types import AnyArray, Vector

INTERCEPT = 3.0
"""The constant appended to every arm: its coefficient has variance 1/ridge, the base rate's logit nine times
that. Without it, rare clicks would have to be explained by the arms' features."""
CERTAIN = 30.0
"""Logit from which on a click is as good as certain: beyond, p(1 − p) would lose its digits."""
FIRST_WEIGHT = 0.1
"""About the weight of an agent's first click, for arms of length one."""


class Moments(NamedTuple):
    """What was known of the logit of an arm."""

    mean: float
    variance: float


def with_intercept(arms: AnyArray) -> AnyArray:
    """Arms, (…, d), with the constant appended, (…, d + 1)."""
    return np.concatenate([arms, np.full((*arms.shape[:-1], 1), INTERCEPT)], axis=-1)


@compiled
def sigmoid(logit: float) -> float:
    """σ(logit), without overflow."""
    e = math.exp(-abs(logit))
    return 1.0 / (1.0 + e) if logit >= 0.0 else e / (1.0 + e)


@compiled
def chance_of(mean: float, variance: float) -> float:
    """Probability of a click where the logit has this mean and variance."""
    return sigmoid(mean / math.sqrt(1.0 + math.pi * variance / 8.0))


@compiled
def sample_of_click(x: Vector, click: float, mean: float, variance: float, out: Vector) -> float:
    """Leave the arm of the sample that a click is learned as in `out`; return its reward."""
    kappa = 1.0 / math.sqrt(1.0 + math.pi * variance / 8.0)
    p = sigmoid(min(max(kappa * mean, -CERTAIN), CERTAIN))
    h = kappa * kappa * p * (1.0 - p)
    f = 1.0 / (1.0 - variance * h)  # vh is less than 2/π
    w = h * f
    root = math.sqrt(w)
    for m in range(x.shape[0]):
        out[m] = root * x[m]
    return (w * mean + kappa * (click - p) * f) / root


@inlined
def weight_of_pending(common: Any, local: Statistics, agent: int) -> float:
    """What a pull whose reward is due counts in a width: as much as the agent's samples on average.

    Sums of pending pulls are of plain arms, so that they cancel; a click's weight is known when it comes.
    """
    if not common.clicks:
        return 1.0
    last = local.b.shape[1] - 1
    weights = (local.A[agent, last, last] - common.ridge) / (INTERCEPT * INTERCEPT)
    return float((FIRST_WEIGHT + weights) / (1.0 + local.pulls[agent]))
