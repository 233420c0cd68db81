"""What there is to say of a population in a few lines."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shoal.live.journal.archives import base_of
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import Settings
from shoal.live.protocol.messages import NewPopulation

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner

FIRST = ("policy", "dim", "parameters", "explore")
FURTHER = [
    key for key in NewPopulation.__struct_fields__ if key in Settings.__struct_fields__ and key not in FIRST
]
"""Other settings, which are shown as they are recorded."""


def summary(owner: "Owner") -> dict[str, Any]:
    """Settings and sizes of a population, as plain values."""
    base = base_of(owner.store, owner.number)

    def question(fold: Fold) -> dict[str, Any]:
        settings = fold.settings
        low, high = settings.reward_low, settings.reward_high
        return {
            "name": owner.name,
            **{key: getattr(settings, key) for key in FIRST},
            "reward_range": None if low is None else f"{low:g} to {high:g}",
            **{key: getattr(settings, key) for key in FURTHER},
            "switches": len(fold.history) - 1,
            "agents": sum(name is not None for name in fold.called),
            "pending": len(fold.pending),
            "records": fold.seq,
            "last_record": _time(fold.at),
            "archived_records": base.seq,
            "archived_until": _time(base.at),
            "archives": [one.path for one in base.archives],
            "written_by": fold.stamp,
        }

    return owner.read(question)


def _time(at: int) -> str | None:
    return None if not at else f"{datetime.fromtimestamp(at / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
