"""The dividend of sharing, with intervals that hold however often one looks."""

import math
from datetime import datetime
from typing import TYPE_CHECKING

from shoal.core import validation
from shoal.live.evaluation import sequences
from shoal.live.evaluation.logs import Outcome, outcomes
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import Settings
from shoal.live.journal.tally import Sums
from shoal.live.journal.tally import dividend as dividend_of
from shoal.live.protocol.answers import Dividend

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
    # The tallies in the state count from the first record on, so a window has to be summed from the journal.
    fold, _, found = outcomes(owner, since)
    values = [paid(one, fold.settings) for one in found if index is None or one.agent == index]
    terms = [value for value in values if value is not None]
    sums = Sums(len(terms), math.fsum(terms), math.fsum(value * value for value in terms))
    return summed(sums, fold.settings, method)


def paid(one: Outcome, settings: Settings) -> float | None:
    """The dividend of a decision; None if it has no reward."""
    if one.reward is None or one.cancelled:
        return None
    return dividend_of(one.decided.own, one.decided.pooled, one.reward, settings)


def summed(sums: Sums, settings: Settings, method: str = "asymptotic") -> Dividend:
    """Sums with the interval of a method."""
    if method == "bernstein":
        low, high = settings.reward_low, settings.reward_high
        if low is None or high is None:
            raise ValueError("method 'bernstein' needs to know how large rewards can be: a reward_range")
        # A difference of two squared errors, each between 0 and the square of the range.
        most = (high - low) ** 2
        bounds = sequences.empirical_bernstein(sums, -most, most)
    else:
        bounds = sequences.asymptotic(sums)
    return Dividend(sums.n, sums.mean, *bounds, _in_words(sums, *bounds))


def _in_words(sums: Sums, low: float, high: float) -> str:
    if not sums.n:
        return "no rewards yet"
    interval = f"[{low:.3g}, {high:.3g}]" if math.isfinite(low) else "too few for an interval"
    effect = "helps" if low > 0 else "harms" if high < 0 else "neither helps nor harms demonstrably"
    return f"{sums.mean:.3g} {interval} over {sums.n:,} rewards: sharing {effect}"


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
