"""The harm guard: an agent whose dividend is below 0 beyond its interval chooses by its own samples alone.

It acts at the choice and nowhere else. The agent goes on lending, and what it would be predicted if it
borrowed goes on being recorded, so that it is let back when that pays. Each spell of borrowing, or of not
borrowing, is judged by its own rewards, with a confidence sequence of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.controller.evaluation.sequences import BURN_IN, asymptotic
from shoal.controller.fold import Fold
from shoal.controller.records import Guarded
from shoal.policies.base import Policy


def judge(fold: Fold, agent: int) -> Guarded | None:
    """The record with which an agent stops borrowing now, or begins again; None if nothing changes."""
    if not fold.settings.harm_guard or fold.sharing[agent] == "none":
        return None
    sums = fold.tally.spell(agent)
    is_guarded = fold.tally.guarded[agent]
    if sums.n < BURN_IN or (sums.total > 0.0) != is_guarded:
        return None
    low, high = asymptotic(sums)
    if (low > 0.0) if is_guarded else (high < 0.0):
        return Guarded(agent, is_guarded, sums.n, sums.mean, low, high)
    return None


@contextmanager
def without_borrowing(policy: Policy, agent: int) -> Iterator[None]:
    """Let an agent choose, in this block, as one that borrows nothing; no other state is touched."""
    borrows = policy.state.common.borrows
    with policy.lock:
        before = bool(borrows[agent])
        borrows[agent] = False
        try:
            yield
        finally:
            borrows[agent] = before
