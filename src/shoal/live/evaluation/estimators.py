"""What another policy would have earned, from decisions that were logged with their probabilities.

IPS and SNIPS (Horvitz and Thompson 1952; Swaminathan and Joachims 2015), the direct method, the doubly
robust estimator (Dudík, Langford and Li 2011) and SWITCH (Wang, Agarwal and Dudík 2017). Each is the mean of
one term per decision. The terms minus their conditional means are a martingale as long as target, model and
probabilities depend on the past alone, so that the intervals also hold for logs of a policy that was learning
meanwhile.

Where rewards are rare or weights large, few terms make up most of the mean, and a normal interval fails on
the side of the long tail. So each bound is the wider of two: the normal one, and one that treats the sum as a
count of equal jumps, whose size and number follow from the terms' skewness. For terms of 0 and rare terms of
1, the latter is the interval of a Poisson count by quantiles of χ² (Garwood 1936). As Fay and Feuer (1997) do
for unequal weights, it supposes one more jump with the largest weight: rewards of the heaviest decisions may
not have been seen.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.core.types import Vector
from shoal.live.protocol.answers import Estimate

LEVEL = 0.95
LIKELY = 2.0
"""Largest weight of a decision that the log makes anyway; larger weights come from exploration."""
ENOUGH = 30
"""Explored decisions agreeing with the target below which there is no meaningful interval."""
NEGLIGIBLE = 0.02
"""Share of the target's choices that may go unseen."""
REWARDED = 5
"""Decisions agreeing with the target and with an unusual reward, below which an interval would span a factor
of five."""


@dataclass(frozen=True)
class Log:
    """Logged decisions, and what a target policy thought of them; arrays of shape (n,)."""

    rewards: Vector
    probabilities: Vector
    """The log's probability of the logged arm."""
    target: Vector
    """The target policy's probability of the logged arm."""
    predicted: Vector
    """A model's prediction for the logged arm, from earlier decisions alone."""
    expected: Vector
    """Its prediction for the target's choice."""
    wanted: Vector | None = None
    """The log's probability of the target's choice, whether it was made or not; None if unknown."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def weights(self) -> Vector:
        """How much likelier the target makes each logged choice, shape (n,)."""
        return self.target / self.probabilities

    @property
    def further(self) -> float:
        """How far a rare reward of the decision with the largest weight would move its term."""
        return float(self.weights.max()) * _jump(self.rewards - self.rewards.mean())


def mean_of(terms: Vector, name: str, clipped: float = 0.0, further: float = 0.0) -> Estimate:
    """The mean of terms, shape (n,), with its interval."""
    return Estimate(name, float(terms.mean()), *interval(terms, further=further), clipped)


def interval(terms: Vector, level: float = LEVEL, further: float = 0.0) -> tuple[float, float]:
    """The interval of the mean of terms, shape (n,); nan for a single term.

    `further` is how far above or below the mean a term not yet seen might be.
    """
    n, tail = len(terms), (1.0 - level) / 2.0
    if n < 2:
        return math.nan, math.nan
    from scipy.special import gammaincinv, ndtri  # loaded late: opening a population need not wait for it

    mean = float(terms.mean())
    centred = terms - mean
    squares = float(centred @ centred) * n / (n - 1)
    half = -float(ndtri(tail)) * math.sqrt(squares)
    ends = [-half, half]
    own = _jump(centred)
    if own:
        count = squares / own**2
        ends.append(own * (float(gammaincinv(count, tail)) - count))
    for more in {own, further} - {0.0}:  # on the side of the long tail
        jump = _jump(longer := np.append(centred, more) - more / (n + 1))
        if jump * more > 0.0:
            count = float(longer @ longer) / jump**2
            ends.append(more + jump * (float(gammaincinv(count, 1.0 - tail)) - count))
    return mean + min(ends) / n, mean + max(ends) / n


def _jump(centred: Vector) -> float:
    """The size of the equal jumps that have the variance and skewness of a sum; 0 if it is hardly skewed."""
    squares = float(centred @ centred)
    jump = float((centred * centred) @ centred) / squares if squares > 0.0 else 0.0
    return jump if abs(jump) > 1e-4 * math.sqrt(squares) else 0.0


def estimated(log: Log, terms: Vector, name: str, clipped: float = 0.0, scale: float = 1.0) -> Estimate:
    """The same for a policy's value; a reward moves its term by the weight times `scale`."""
    return _within(log, mean_of(terms, name, clipped, scale * log.further))


def _within(log: Log, found: Estimate) -> Estimate:
    """End intervals at the least and the largest reward, between which every policy earns.

    An estimate outside that range becomes nan.
    """
    least, most = float(log.rewards.min()), float(log.rewards.max())
    rounding = 1e-9 * (most - least)
    if not least - rounding <= found.value <= most + rounding:
        return Estimate(found.name, math.nan, math.nan, math.nan, found.clipped)
    value, low, high = np.clip([found.value, found.low, found.high], least, most).tolist()
    return Estimate(found.name, value, low, high, found.clipped)


def ips(log: Log, clip: float = math.inf) -> Estimate:
    """Inverse propensity scores: unbiased but noisy; cutting weights above `clip` biases it."""
    weights = log.weights
    cut = float(np.mean(weights > clip))
    return estimated(log, np.minimum(weights, clip) * log.rewards, "IPS", cut)


def snips(log: Log) -> Estimate:
    """IPS over the sum of the weights: a little biased, far less noisy; its interval by linearisation."""
    weights = log.weights
    if not weights.any():
        return Estimate("SNIPS", math.nan, math.nan, math.nan, 0.0)
    value = float(weights @ log.rewards / weights.sum())
    # The interval of a ratio of two means, linearised at its value.
    return estimated(
        log, value + weights * (log.rewards - value) / weights.mean(), "SNIPS", 0.0, 1.0 / weights.mean()
    )


def direct(log: Log) -> Estimate:
    """What the model expects. It is as good as the model, and no amount of data tells how good that is."""
    return _within(log, Estimate("direct", float(log.expected.mean()), math.nan, math.nan, 1.0))


def doubly_robust_terms(log: Log, clip: float = math.inf) -> Vector:
    """The model's expectation, corrected by its weighted error where the target agrees, shape (n,)."""
    # Where the weight is beyond the limit, only the prediction counts.
    kept = np.where(log.weights <= clip, log.weights, 0.0)
    return log.expected + kept * (log.rewards - log.predicted)


def doubly_robust(log: Log) -> Estimate:
    """Unbiased if the probabilities are right, precise if the model is good as well."""
    return estimated(log, doubly_robust_terms(log), "doubly robust")


def switch(log: Log) -> Estimate:
    """Doubly robust, but the model alone where weights are large; the interval ignores the model's bias.

    The threshold is the quantile of the weights with the smallest bound on the squared error: variance, plus
    the square of the share left to the model times the range of the rewards. Where that share has to be
    estimated by weights, the bound is seldom small enough for anything to be left to the model.
    """
    weights = log.weights
    scale = float(np.ptp(log.rewards))
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
    return estimated(log, doubly_robust_terms(log, threshold), "SWITCH", cut)


ESTIMATORS: tuple[Callable[[Log], Estimate], ...] = (ips, snips, direct, doubly_robust, switch)


def effective_size(weights: Vector) -> float:
    """How many equally weighted decisions would be worth as much: (Σw)² / Σw²."""
    squares = float(weights @ weights)
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def why_no_target(log: Log, column: str) -> str:
    """Why a column cannot hold probabilities of another policy; "" if it can.

    If every arm had a chance, the mean weight is 1 apart from noise, whatever the other policy is.
    """
    weights = log.weights
    low, high = interval(weights, 0.999)
    if low <= 1.0 <= high:
        return ""
    return (
        f"{column} over the logged probability is {weights.mean():.3g} on average ({low:.3g} to {high:.3g}), "
        "where it must be 1 apart from noise: it is not another policy's probability of the logged arm, or "
        "that policy chooses arms that had no chance."
    )


def why_not(log: Log) -> str:
    """Why a log cannot tell what the target is worth, as a sentence with the size it would need; or "".

    The target's choices that the log makes anyway have small weights. Its other choices are seen only where
    the log explored: if they are more than a negligible share, enough of them must have been seen. And where
    most rewards are equal, such as 0 without a click, only the other rewards tell policies apart.
    """
    if not len(log):
        return "There are no decisions with a probability and a reward."
    return _unseen(log) or _unrewarded(log)


def _unrewarded(log: Log) -> str:
    n, agrees = len(log), log.weights > 0.0
    values, counts = np.unique(log.rewards, return_counts=True)
    usual = float(values[counts.argmax()])
    if len(values) == 1:
        return f"Every reward is {usual:g}: nothing tells policies apart."
    found = int(np.count_nonzero(agrees & (log.rewards != usual)))
    if found >= REWARDED:
        return ""
    size = f"about {_rounded(n * ENOUGH / found):,}" if found else f"more than {n * ENOUGH:,}"
    return (
        f"Of the {np.count_nonzero(agrees):,} decisions that agree with the policy {found or 'none'} had a "
        f"reward other than {usual:g}: too few to tell. It would take {size} decisions."
    )


def _unseen(log: Log) -> str:
    n, weights = len(log), log.weights
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
            f"{share}, and none was explored: no log of this kind, of any size, can tell what that would "
            "have earned. Let the population explore."
        )
    if not found:
        return f"{share}, and not once was that arm tried: it would take more than {n * ENOUGH:,} decisions."
    needed = _rounded(n * ENOUGH / found)
    times = "once" if found == 1 else f"{found} times"
    return f"{share}, and that arm was tried {times}: it would take about {needed:,} decisions."


def _rounded(size: float) -> int:
    """A number of decisions, rounded up to two digits."""
    unit = int(10 ** max(0, len(str(math.ceil(size))) - 2))
    return math.ceil(size / unit) * unit
