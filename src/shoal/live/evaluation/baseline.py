"""Comparison with the product's own rule: agents that it still decides for, and the uplift over it."""

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

from shoal.live.evaluation.estimators import ENOUGH, mean_of
from shoal.live.evaluation.logs import Outcome, complete, outcomes
from shoal.live.journal.records import Settings
from shoal.live.protocol.answers import Uplift
from shoal.reporting.curves import half_width

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner

FEWEST = 10
"""Agents on either side, below which there is no interval."""


def in_holdout(settings: Settings, agent: int) -> bool:
    """Whether the product's own rule decides for an agent: drawn once, from a hash of its number."""
    # Computed rather than recorded, so that an agent is held out for good, from before its first decision.
    draw = hashlib.blake2b(b"holdout:%d" % agent, key=settings.key, digest_size=8).digest()
    return int.from_bytes(draw) < settings.holdout * 2.0**64


def uplift(owner: "Owner", since: float | None = None) -> Uplift:
    """See `Population.uplift`."""
    fold, _, found = outcomes(owner, since)
    shown = [one for one in complete(fold.settings, found) if not one.cancelled]
    if fold.settings.apprentice:
        some = [one for one in shown if one.reward is not None and one.decided.mode == "apprentice"]
        return _of_apprentice(some)
    if fold.settings.holdout <= 0.0:
        raise ValueError(
            f"population {owner.name!r} compares with nothing: make it with a holdout, or as an apprentice"
        )
    return _of_holdout([one for one in shown if one.decided.baseline])


def _of_holdout(shown: list[Outcome]) -> Uplift:
    """Agents, not decisions, were drawn, so the interval is over agents.

    A person who had two names, merged since, may have been drawn on both sides, and is left out.
    """
    means, errors, counts, sizes = [], [], [], []
    sides = [[one for one in shown if (one.decided.mode == "holdout") == held] for held in (False, True)]
    both = {one.agent for one in sides[0]} & {one.agent for one in sides[1]}
    checked = "nobody was on both sides"
    if both:
        checked = f"{len(both):,} agent{'s were' if len(both) > 1 else ' was'} on both sides and left out"
    for side in sides:
        by_agent: dict[int, list[float]] = {}
        for one in side:
            if one.agent not in both and (earned := one.earned) is not None:
                by_agent.setdefault(one.agent, []).append(earned)
        sums = np.array([math.fsum(rewards) for rewards in by_agent.values()])
        numbers = np.array([len(rewards) for rewards in by_agent.values()], dtype=np.float64)
        n, groups = float(numbers.sum()), len(by_agent)
        mean = float(sums.sum() / n) if n else math.nan
        # The mean is a ratio of two sums over agents; its error is that of its linearisation (delta method).
        spread = float(((sums - mean * numbers) ** 2).sum()) if n else math.nan
        means.append(mean)
        errors.append(math.sqrt(spread * groups / (groups - 1)) / n if groups > 1 else math.nan)
        counts.append(int(n))
        sizes.append(groups)
    if min(sizes) < FEWEST:
        sentence = (
            f"The policy has decided for {sizes[0]} agents and the product's rule for {sizes[1]}; an "
            f"interval needs {FEWEST} of each; {checked}."
        )
        nothing = math.nan, math.nan, math.nan
        return Uplift("holdout", means[0], means[1], *nothing, counts[0], counts[1], sentence)
    difference = means[0] - means[1]
    # The smaller group decides how far the tails reach.
    half = float(half_width(math.hypot(*errors), min(sizes)))
    bounds = difference - half, difference + half
    return _found(f"holdout; {checked}", means[0], means[1], difference, *bounds, counts[0], counts[1])


def _of_apprentice(some: list[Outcome]) -> Uplift:
    """Decisions where chance chose the policy's preference, against those where it chose the rule's."""
    rewards = np.array([one.reward for one in some], dtype=np.float64)
    p = np.array([one.decided.probability for one in some], dtype=np.float64)
    places = [(one.decided.shown[0], one.decided.greedy, one.decided.baseline[0]) for one in some]
    shown, ours, theirs = np.array(places, dtype=np.int64).reshape(-1, 3).T
    differ = ours != theirs
    # Where the two agree there is nothing to compare; the evidence is where chance sided with the policy.
    found = int(np.count_nonzero(differ & (shown == ours)))
    n_rule = int(np.count_nonzero(shown == theirs))
    mean = float(rewards[shown == theirs].mean()) if n_rule else math.nan
    if found < ENOUGH:
        n, wanted = len(some), int(np.count_nonzero(differ))
        size = f"about {math.ceil(n * ENOUGH / found):,}" if found else f"more than {max(n, 1) * ENOUGH:,}"
        sentence = (
            f"Of {n:,} decisions the policy would have made {wanted:,} differently, and chance did so "
            f"{found} times: it would take {size} decisions, or more exploration."
        )
        return Uplift("apprentice", math.nan, mean, math.nan, math.nan, math.nan, found, n_rule, sentence)
    # Both weights are 1 on average, so subtracting the mean reward leaves the difference as it is. It lowers
    # the noise: a constant added to all rewards must not widen the interval.
    terms = ((shown == ours).astype(np.float64) - (shown == theirs)) / p * (rewards - rewards.mean())
    gain = mean_of(terms, "")
    value = float(np.mean((shown == theirs) / p * (rewards - rewards.mean())) + rewards.mean())
    return _found("apprentice", value + gain.value, value, gain.value, gain.low, gain.high, found, n_rule)


def _found(
    how: str, policy: float, rule: float, gain: float, low: float, high: float, n_policy: int, n_rule: int
) -> Uplift:
    text = (
        f"{gain:+.4g} [{low:+.4g}, {high:+.4g}] per decision: {policy:.4g} for the policy, {rule:.4g} for "
        f"the product's rule ({how})"
    )
    return Uplift(how.split(";")[0], policy, rule, gain, low, high, n_policy, n_rule, text)
