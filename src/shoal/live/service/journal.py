"""The journal as events: what happened, with names instead of numbers."""

import math
from itertools import islice
from typing import Any

from shoal.live.journal.records import SWITCHES, Decided, Merged, Profiled, decode, vector
from shoal.live.population.owner import Owner
from shoal.live.protocol.messages import Event, Events


def events_of(owner: Owner, after: int, limit: int) -> Events:
    """Up to `limit` committed records after the record `after`; archived ones are skipped."""
    store, number = owner.store, owner.number
    names, dim = owner.read(lambda fold: (list(fold.called), fold.settings.dim))
    # Of archived records, only those of open decisions are still in the store: few, but anywhere.
    last = min(store.last_seq(number), max(after, owner.base.seq) + limit)
    offers: dict[bytes, Any] = {}

    def name(agent: int | None) -> str | None:
        return names[agent] if agent is not None and 0 <= agent < len(names) else None

    def event(row: Any) -> Event:
        record: Any = decode(row.body)
        shown = None
        if isinstance(record, Decided):
            if record.arms not in offers:
                offers[record.arms] = owner.commands.offers.offered_in(dim, record.arms)
            shown = [offers[record.arms].name(position) for position in record.shown]
        cuts = getattr(record, "cuts", ())
        return Event(
            sequence=row.seq,
            at=row.at / 1e6,
            kind=type(record).__name__.lower(),
            agent=name(row.agent),
            id=None if row.decision == SWITCHES else row.decision,
            arms=shown,
            probability=getattr(record, "probability", None),
            own=getattr(record, "own", None),
            pooled=getattr(record, "pooled", None),
            reward=getattr(record, "new", getattr(record, "reward", None)),
            replaces=getattr(record, "old", None),
            place=getattr(record, "place", None) or None,
            cut=[found for other in cuts if (found := name(other)) is not None] or None,
            sharing=getattr(record, "sharing", None),
            agent_features=_features(record) if isinstance(record, Profiled) else None,
            other=name(record.other) if isinstance(record, Merged) else None,
            by=getattr(record, "by", None) or None,
        )

    rows = store.read(number, after, last) if after < last else ()
    found = [event(row) for row in islice(rows, limit)]
    return Events(found, found[-1].sequence if found else min(after, store.last_seq(number)))


def _features(record: Profiled) -> list[float | None]:
    """What a record says of an agent, as JSON has it."""
    return [None if math.isnan(z) else z for z in vector(record.features).tolist()]
