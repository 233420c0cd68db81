"""Who lends to whom in a population and why: what the policy says, with names and times."""

import math
from datetime import UTC, datetime

import msgspec
import numpy as np

from shoal.core.policy.explanations import in_round
from shoal.core.types import Booleans
from shoal.live.journal.fold import Fold
from shoal.live.protocol.answers import Explanation, NamedLender, PairExplanation, Stopped


class Graph(msgspec.Struct, frozen=True):
    """Who shares with whom."""

    agents: list[str]
    edges: Booleans
    """Symmetric, shape (N, N) for N agents, in their order."""


def graph_of(fold: Fold) -> Graph:
    """The graph of a state, without agents that are no longer there."""
    there = [agent for agent, name in enumerate(fold.called) if name is not None]
    names = [name for name in fold.called if name is not None]
    return Graph(names, fold.policy.graph[np.ix_(there, there)])


def explain_agent(fold: Fold, agent: int, most: int | None = None) -> Explanation:
    """Whose samples an agent uses, and with whom it stopped sharing; of each list the first `most`."""
    found = fold.policy.explain(agent)
    stopped = [
        Stopped(
            _name(fold, one.agent),
            *_when(fold, one.round),
            margin=one.margin,
            distance=one.distance,
            allowed=None if math.isnan(one.allowed) else one.allowed,
        )
        for one in found.stopped[:most]
    ]
    return Explanation(
        agent=_name(fold, agent),
        sharing=fold.sharing[agent],
        samples=found.samples,
        borrowed=float(sum(one.samples for one in found.lenders)),
        lenders=[NamedLender(_name(fold, one.agent), one.samples) for one in found.lenders[:most]],
        stopped=stopped,
        n_lenders=len(found.lenders),
        n_stopped=len(found.stopped),
        text=found.text(lambda index: _name(fold, index), lambda round_: _moment(fold, round_)),
    )


def explain_pair(fold: Fold, agent: int, other: int) -> PairExplanation:
    """Whether two agents share, and why."""
    found = fold.policy.explain(agent, other)
    said = found._asdict()
    for name in ("agent", "other", "together", "lent_by_agent", "lent_by_other"):
        said.pop(name, None)
    sequence, at = _when(fold, said.pop("separation_time", -1))
    return PairExplanation(
        agent=_name(fold, agent),
        other=_name(fold, other),
        together=bool(found.together),
        lent_by_agent=float(found.lent_by_agent),
        lent_by_other=float(found.lent_by_other),
        sequence=sequence,
        at=at,
        test=said,
        text=found.text(lambda index: _name(fold, index), lambda round_: _moment(fold, round_)),
    )


def _name(fold: Fold, agent: int) -> str:
    return fold.called[agent] or "someone who left"


def _moment(fold: Fold, round_: int) -> str:
    """When a round of the policy was, for people."""
    at = _when(fold, round_)[1]
    return in_round(round_) if at is None else f"on {datetime.fromtimestamp(at, UTC):%Y-%m-%d at %H:%M} UTC"


def _when(fold: Fold, round_: int) -> tuple[int | None, float | None]:
    """Sequence number and time of a separation in a round of the policy."""
    found = fold.when_cut(round_) if round_ >= 0 else None
    return (None, None) if found is None else (found[0], found[1] / 1e6)
