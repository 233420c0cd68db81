"""The harm guard: an agent whose dividend is below 0 beyond its interval chooses by its own samples alone.

It acts at the choice and nowhere else. The agent goes on lending, and what it would be predicted if it
borrowed goes on being recorded, so that it is let back when that pays, or does no more harm that one could
see. Each period of at most `PERIOD` rewards is judged by itself, with a confidence sequence of its own: an
agent that was helped as a newcomer can be harmed as a regular. Every verdict is a record with its evidence.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.core.policy.living import LivePolicy
from shoal.live.evaluation.sequences import BURN_IN, asymptotic
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import Guarded

PERIOD = 200
"""Rewards of an agent after which it is judged by new ones."""


def judge(fold: Fold, agent: int) -> Guarded | None:
    """The record with which an agent stops borrowing, begins again, or goes on after a full period.

    None before that, and in populations without a guard.
    """
    if not fold.settings.harm_guard or fold.sharing[agent] == "none":
        return None
    sums = fold.tally.period(agent)
    if sums.n < BURN_IN:
        return None
    low, high = asymptotic(sums)
    is_over, borrows = sums.n >= PERIOD, not fold.tally.guarded[agent]
    # Harm has to be shown to end borrowing. To begin again it is enough that a whole period shows none: the
    # agent loses what sharing would pay as long as it is kept away.
    if borrows and high < 0.0:
        borrows = False
    elif not borrows and (low > 0.0 or (is_over and high >= 0.0)):
        borrows = True
    elif not is_over:
        return None
    return Guarded(agent, borrows, sums.n, sums.mean, low, high)


@contextmanager
def without_borrowing(policy: LivePolicy, agent: int) -> Iterator[None]:
    """Let an agent choose, in this block, as one that borrows nothing; no other state is touched."""
    borrows = policy.state.common.borrows
    with policy.lock:
        before = bool(borrows[agent])
        borrows[agent] = False
        try:
            yield
        finally:
            borrows[agent] = before
