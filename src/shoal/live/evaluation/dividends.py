"""The dividend of sharing, with intervals that hold however often one looks."""

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shoal.core import validation
from shoal.live.evaluation import sequences
from shoal.live.evaluation.logs import Outcome, complete, outcomes
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import Settings
from shoal.live.journal.tally import Sums
from shoal.live.journal.tally import dividend as dividend_of
from shoal.live.protocol.answers import Dividend, Verdict
from shoal.reporting.words import counted, interval, number

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner

METHODS = ("asymptotic", "bernstein")


def dividend(owner: "Owner", agent: str | None, since: datetime | float | None, method: str) -> Dividend:
    """See `Population.dividend`."""
    validation.one_of("method", method, METHODS)
    if since is not None:
        return _in_window(owner, agent, moment(since), method)

    def question(fold: Fold) -> Dividend:
        if agent is None:
            return summed(fold.tally.all(), fold.settings, method)
        index = owner.commands.agent(fold, agent)
        return summed(fold.tally.of(index), fold.settings, method)

    return owner.read(question)


def _in_window(owner: "Owner", agent: str | None, since: float, method: str) -> Dividend:
    """The dividend of decisions made from a time on, from the journal."""
    index = None if agent is None else owner.read(lambda fold: owner.commands.agent(fold, agent))
    # The tallies in the state count from the first record, so a window has to be summed from the journal.
    fold, _, found = outcomes(owner, since)
    values = [
        paid(one, fold.settings)
        for one in complete(fold.settings, found)
        if index is None or one.agent == index
    ]
    terms = [value for value in values if value is not None]
    return summed(Sums.of(terms), fold.settings, method, since=since)


def paid(one: Outcome, settings: Settings) -> float | None:
    """The dividend of a decision; None if it has no reward."""
    if one.reward is None or one.cancelled:
        return None
    return dividend_of(one.decided.own, one.decided.pooled, one.reward, settings)


def summed(
    sums: Sums,
    settings: Settings,
    method: str = "asymptotic",
    *,
    since: float | None = None,
    subject: str = "sharing",
) -> Dividend:
    """The verdict on sharing: one number, its interval by a method, and a sentence that names the window.

    Every place that says whether sharing pays uses it.
    """
    if method == "bernstein":
        low, high = settings.reward_low, settings.reward_high
        if low is None or high is None:
            raise ValueError("method 'bernstein' needs a reward_range, which says how large rewards can be")
        # A difference of two squared errors, each between 0 and the square of the range.
        most = (high - low) ** 2
        bounds = sequences.empirical_bernstein(sums, -most, most)
    else:
        bounds = sequences.asymptotic(sums)
    low, high = bounds
    verdict: Verdict = "pays" if low > 0.0 else "harms" if high < 0.0 else "too early"
    if math.isfinite(low) and not sums.squares:
        verdict = "no difference"
    text = _in_words(sums, low, high, verdict, since, subject)
    return Dividend(sums.n, sums.mean, low, high, verdict, text)


def _in_words(sums: Sums, low: float, high: float, verdict: str, since: float | None, subject: str) -> str:
    window = "the start" if since is None else f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M} UTC"
    size = f"over {counted(sums.n, 'reward')} since {window}"
    if verdict == "no difference":
        return f"{subject.capitalize()} makes no difference to any prediction, {size}."
    if not math.isfinite(low):
        return f"Too early to say whether {subject} pays: {size.removeprefix('over ')}."
    # A sentence about harm gives its size, without a sign.
    mean, low, high = (-sums.mean, -high, -low) if verdict == "harms" else (sums.mean, low, high)
    words = f"{number('{:.3g}', mean)} ({interval('{:.3g}', low, high)})"
    less = "more" if verdict == "harms" else "less"
    opening = "Too early to say whether {} pays" if verdict == "too early" else f"{{}} {verdict}"
    sentence = f"{opening.format(subject)}: {words} {less} squared error per reward, {size}."
    return sentence[0].upper() + sentence[1:]


def by_agent(owner: "Owner") -> dict[str, Dividend]:
    """The dividend of each agent that has had rewards."""

    def question(fold: Fold) -> dict[str, Dividend]:
        return {
            name: summed(fold.tally.of(agent), fold.settings)
            for agent, name in enumerate(fold.called)
            if name is not None and fold.tally.counts[agent]
        }

    return owner.read(question)


def moment(since: datetime | float) -> float:
    """A time as seconds since 1970."""
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise ValueError(f"since must have a time zone, got {since.isoformat()}")
        return since.timestamp()
    return validation.number("since", since, low=0.0, high=1e12)
