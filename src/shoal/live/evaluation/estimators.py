"""What another policy would have earned, from decisions that were logged with their probabilities.

IPS and SNIPS (Horvitz and Thompson 1952; Swaminathan and Joachims 2015), the direct method, the doubly
robust estimator (Dudík, Langford and Li 2011) and SWITCH (Wang, Agarwal and Dudík 2017). Each is the mean of
one term per decision. The terms minus their conditional means are a martingale as long as target, model and
probabilities depend on the past alone, so that the intervals, by the martingale central limit theorem, also
hold for logs of a policy that was learning meanwhile.
"""

import math
from dataclasses import dataclass

import numpy as np

from shoal.core.types import Vector
from shoal.live.protocol.answers import Estimate

Z = 1.959963984540054
"""Of a 95% interval."""
LIKELY = 2.0
"""Decisions with weights up to this are ones that the log makes anyway; larger ones need exploration."""
ENOUGH = 30
"""Explored decisions that agree with the target, below which there is no interval to speak of."""
NEGLIGIBLE = 0.02
"""Share of the target's choices that may go unseen."""


@dataclass(frozen=True)
class Log:
    """Logged decisions, and what a target policy thought of them; arrays of shape (n,)."""

    rewards: Vector
    probabilities: Vector
    """With which the logged arm was chosen."""
    target: Vector
    """Probability with which the target policy would have chosen it."""
    predicted: Vector
    """Reward that a model, from earlier decisions alone, expects of the logged arm."""
    expected: Vector
    """Reward that it expects of what the target would have chosen."""
    wanted: Vector | None = None
    """Probability with which the log makes the target's choice, whether it did or not; None if unknown."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def weights(self) -> Vector:
        """How much likelier the target makes each logged choice, shape (n,)."""
        return self.target / self.probabilities


def mean_of(terms: Vector, name: str, clipped: float = 0.0) -> Estimate:
    """The mean of terms, shape (n,), with its interval."""
    value = float(terms.mean())
    half = Z * float(terms.std(ddof=1)) / math.sqrt(len(terms)) if len(terms) > 1 else math.nan
    return Estimate(name, value, value - half, value + half, clipped)


def ips(log: Log, clip: float = math.inf) -> Estimate:
    """Inverse propensity scores: unbiased, noisy; weights above `clip` are cut, which biases it."""
    weights = log.weights
    cut = float(np.mean(weights > clip))
    return mean_of(np.minimum(weights, clip) * log.rewards, "IPS", cut)


def snips(log: Log) -> Estimate:
    """IPS over the sum of the weights: a little biased, far less noisy; its interval by linearisation."""
    weights = log.weights
    if not weights.any():
        return Estimate("SNIPS", math.nan, math.nan, math.nan, 0.0)
    value = float(weights @ log.rewards / weights.sum())
    # The interval of a ratio of two means, linearised at its value.
    spread = mean_of(weights * (log.rewards - value) / weights.mean(), "")
    return Estimate("SNIPS", value, value + spread.low, value + spread.high, 0.0)


def direct(log: Log) -> Estimate:
    """What the model expects. As good as the model, and no data of any size tells how good."""
    return Estimate("direct", float(log.expected.mean()), math.nan, math.nan, 1.0)


def doubly_robust_terms(log: Log, clip: float = math.inf) -> Vector:
    """The model's expectation, corrected by its weighted error where the target agrees, shape (n,)."""
    # Where the weight is beyond the limit, the prediction stands alone.
    kept = np.where(log.weights <= clip, log.weights, 0.0)
    return log.expected + kept * (log.rewards - log.predicted)


def doubly_robust(log: Log) -> Estimate:
    """Unbiased if the probabilities are right, precise if the model is good as well."""
    return mean_of(doubly_robust_terms(log), "doubly robust")


def switch(log: Log) -> Estimate:
    """Doubly robust, but where weights are large the model alone, whose bias its interval does not hold.

    The threshold is the one, among quantiles of the weights, with the smallest bound on the squared error:
    variance, plus the square of the share that the model decides times the range of the rewards. Where that
    share has to be estimated by weights, the bound is seldom small enough for anything to be left to it.
    """
    weights = log.weights
    scale = float(np.ptp(log.rewards))
    # Of the possible thresholds, the one with the smallest bound on the squared error: variance, and the most
    # that predictions can be wrong by where they stand alone.
    best, threshold = math.inf, math.inf
    for tau in np.unique(np.quantile(weights[weights > 0.0], np.linspace(0.0, 1.0, 21))):
        share = float(
            np.mean(np.where(weights > tau, weights, 0.0) if log.wanted is None else log.wanted * tau < 1.0)
        )
        bias = scale * min(share, 1.0)
        error = float(doubly_robust_terms(log, tau).var()) / len(log) + bias**2
        if error < best:
            best, threshold = error, float(tau)
    cut = float(np.mean(weights > threshold))
    return mean_of(doubly_robust_terms(log, threshold), "SWITCH", cut)


ESTIMATORS = (ips, snips, direct, doubly_robust, switch)


def effective_size(weights: Vector) -> float:
    """How many equally weighted decisions tell as much: (Σw)² / Σw²."""
    squares = float(weights @ weights)
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def why_not(log: Log) -> str:
    """Why a log cannot tell what the target is worth, as a sentence with the size it would need; or "".

    The target's choices that the log makes anyway have small weights. The others are seen only where the log
    explored: if that is more than a negligible share of them, enough must have been seen.
    """
    n, weights = len(log), log.weights
    if not n:
        return "There are no decisions with a probability and a reward."
    # A larger weight means that the arm was shown by chance, against the logging policy.
    unlikely = weights > LIKELY
    unseen = 1.0 - float(np.mean(np.where(unlikely, 0.0, weights)))
    if log.wanted is not None:
        unseen = float(np.mean(log.wanted * LIKELY < 1.0))
    found = int(np.count_nonzero(unlikely))
    if unseen <= NEGLIGIBLE or found >= ENOUGH:
        return ""
    share = f"In about {max(unseen, 0.0):.0%} of the {n:,} decisions the policy would have chosen another arm"
    if (log.probabilities == 1.0).all():
        return (
            f"{share}, and none was explored: no log of this kind can tell what that would have given, "
            "whatever its size. Let the population explore."
        )
    if not found:
        return f"{share}, and not once was that arm tried: it would take more than {n * ENOUGH:,} decisions."
    needed = math.ceil(n * ENOUGH / found)
    # Rounded up to two digits, since it rests on a handful of cases.
    digits = max(0, len(str(needed)) - 2)
    needed = math.ceil(needed / 10**digits) * 10**digits
    times = "once" if found == 1 else f"{found} times"
    return f"{share}, and that arm was tried {times}: it would take about {needed:,} decisions."
