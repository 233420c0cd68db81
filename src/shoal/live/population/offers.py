"""The arms on offer in a population: its catalogue, and sets that the store keeps once, by their digest."""

from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from shoal.live.journal.arms import ArmSet, are_names, restored
from shoal.live.journal.fold import Fold
from shoal.live.journal.stores.base import Store
from shoal.live.protocol.errors import JournalError, UnknownError

REMEMBERED = 64
"""Sets that are known to be in the store."""
MOST_BYTES = 64_000_000
"""Of their features."""


class Offers:
    """See the module.

    Parameters
    ----------
    store : Store
    number, name : int, str
        The population's.
    """

    def __init__(self, store: Store, number: int, name: str) -> None:
        self._store, self._number, self._name = store, number, name
        self._known: OrderedDict[bytes, ArmSet] = OrderedDict()
        self._bytes = 0
        self._latest: ArmSet | None = None

    def clear(self) -> None:
        """Know nothing of the store any more: what was on its way there may not have arrived."""
        self._known.clear()
        self._bytes = 0
        self._latest = None

    def catalogue(self, fold: Fold) -> ArmSet | None:
        """The arms that the population keeps."""
        if fold.catalogue is None:
            return None
        if self._latest is None or self._latest.digest != fold.catalogue:
            self._latest = self.offered(fold, fold.catalogue)
        return self._latest

    def requested(self, fold: Fold, arms: Any) -> ArmSet:
        """The arms of a request: with features, by name from the catalogue, or the whole catalogue."""
        by_name = arms is not None and are_names(arms)
        if arms is not None and not by_name:
            return ArmSet.of(arms, fold.settings.dim)
        catalogue = self.catalogue(fold)
        if catalogue is None:
            raise ValueError(
                f"arms must be given with features: population {self._name!r} has no catalogue of arms"
            )
        if not by_name:
            return catalogue
        try:
            return catalogue.subset(arms)
        except UnknownError:
            for name in arms:
                self.position(fold, catalogue, name)
            raise

    def position(self, fold: Fold, offer: ArmSet, arm: Any) -> int:
        """Where an arm stands in an offer; the error says if it was retired from the catalogue."""
        try:
            return offer.position(arm)
        except UnknownError as error:
            if not isinstance(arm, str) or arm not in fold.retired:
                raise
            day = datetime.fromtimestamp(fold.retired[arm] / 1e6, UTC)
            raise UnknownError(f"{error}: it was retired on {day:%Y-%m-%d at %H:%M} UTC") from None

    def news(self, fold: Fold, arms: ArmSet) -> list[tuple[bytes, bytes]]:
        """What the store has to keep so that a set of arms can be found again; often nothing."""
        if arms.digest in self._known:
            self._known.move_to_end(arms.digest)
            return []
        self._known[arms.digest] = arms
        self._bytes += arms.features.nbytes
        while len(self._known) > REMEMBERED or (self._bytes > MOST_BYTES and len(self._known) > 1):
            self._bytes -= self._known.popitem(last=False)[1].features.nbytes
        return [(arms.digest, arms.stored())]

    def offered(self, fold: Fold, digest: bytes) -> ArmSet:
        """A set of arms that was on offer."""
        return self.offered_in(fold.settings.dim, digest)

    def offered_in(self, dim: int, digest: bytes) -> ArmSet:
        """The same, for features of a dimension."""
        if (known := self._known.get(digest)) is not None:
            return known

        def find(wanted: bytes) -> bytes:
            data = self._store.arms(self._number, wanted)
            if data is None:
                raise JournalError(f"population {self._name!r} lacks the arms {wanted.hex()}")
            return data

        return restored(find(digest), dim, find)
