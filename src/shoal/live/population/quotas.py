"""How much a service takes: one table, and what checks it before anything is written.

The library takes as much as the machine holds (`NONE`). Limits of a population are checked by its commands,
with the lock held; those of a key and of the whole server by the service (service.py).
"""

import math
from typing import Any

import msgspec

from shoal.core import validation
from shoal.live.journal.fold import Fold
from shoal.live.protocol.errors import LimitError

STANDING = 1_500
"""Bytes of a decision in memory, besides its features."""


class Quotas(msgspec.Struct, frozen=True):
    """Most of each. `docs/service.md` has the table."""

    agents: float = 100_000
    """Of a population, forgotten ones included: their places stay."""
    arms: float = 10_000
    """In a population's catalogue."""
    pending: float = 500_000
    """Decisions of a population that await rewards."""
    memory: float = 1e9
    """Bytes that a population takes in memory, as far as they grow with its agents, arms and decisions."""
    populations: float = 100
    disk: float = 20e9
    """Bytes of the store."""
    free: float = 200e6
    """Bytes that must be free where the store is (SQLite)."""
    rate: float = 1_000
    """Requests a second of a key that has no rate of its own; 0 for any number."""
    streams: float = 16
    """Open pages of a key."""
    heavy: float = 2
    """Questions of a key, at a time, that read the whole journal."""
    seconds: float = 120
    """That such a question may take."""

    @classmethod
    def of(cls, given: Any) -> "Quotas":
        """The table with some values replaced: a mapping, or texts such as `agents=1000`."""
        pairs = given.items() if isinstance(given, dict) else (one.partition("=")[::2] for one in given)
        chosen = {}
        for name, value in pairs:
            validation.one_of("limit", name, cls.__struct_fields__)
            try:
                chosen[name] = validation.number(name, float(value), low=0.0)
            except (TypeError, ValueError):
                raise ValueError(f"{name} must be a number of at least 0, got {value!r}") from None
        return cls(**chosen)

    def check(self, name: str, value: float, what: str) -> None:
        """Refuse what would be more than the limit of this name."""
        most: float = getattr(self, name)
        if value > most:
            raise LimitError(f"{what}: the limit {name} is {most:,.0f}", name)


NONE = Quotas(*[math.inf] * len(Quotas.__struct_fields__))


class Headroom:
    """Checks what a population would take if it grew. Used with the population's lock held."""

    def __init__(self) -> None:
        self.quotas = NONE
        self._counted, self._state = -1, 0.0
        """Agents for which the policy's state was measured, and its bytes then."""

    def check(self, fold: Fold, *, agents: int = 0, decisions: int = 0, arm_bytes: int = 0) -> None:
        """Refuse if there is no room for so many more."""
        quotas, present = self.quotas, len(fold.called)
        if quotas is NONE:
            return
        if agents:
            quotas.check("agents", present + agents, f"the population has {present:,} agents")
        if decisions:
            waiting = len(fold.pending)
            said = f"{waiting:,} decisions await rewards; see reward_window, or cancel those never shown"
            quotas.check("pending", waiting + decisions, said)
        if not 0 <= present - self._counted <= self._counted // 16:  # measuring takes longer than joining
            self._counted, self._state = present, float(fold.policy.nbytes)
        one = self._state / max(1, self._counted)
        held = (len(fold.uncounted or fold.pending) + decisions) * (STANDING + 8 * fold.settings.dim)
        taken = self._state + one * (present - self._counted + agents) + held + arm_bytes
        quotas.check("memory", taken, f"the population would take {taken:,.0f} bytes in memory")
