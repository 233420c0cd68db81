"""Places to keep journals in, one of each kind of store, and what tests do to them."""

from pathlib import Path
from typing import Any

from shoal.live.journal.stores.base import Store
from shoal.live.journal.stores.memory import MemoryStore
from shoal.live.journal.stores.sqlite import SQLiteStore
from shoal.live.population.controller import Controller
from shoal.live.population.controller import open as open_controller
from shoal.live.population.population import Population

LEASE = 0.3
ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "water": [0.6, 0.8]}


class Place:
    """A store that can be opened again, as often as one likes.

    Parameters
    ----------
    kind : {"memory", "sqlite", "postgres"}
    url : str or path
        None for a store in memory.
    """

    def __init__(self, kind: str, url: str | Path | None) -> None:
        self.kind = kind
        self.url = "" if url is None else str(url)
        self._memory = MemoryStore()
        self._open: list[Controller] = []

    def store(self) -> Store:
        """The bare store."""
        if self.kind == "memory":
            return self._memory
        if self.kind == "sqlite":
            return SQLiteStore(self.url)
        from shoal.live.journal.stores.postgres import PostgresStore

        return PostgresStore(self.url)

    def open(self, **options: Any) -> Controller:
        """A controller."""
        options = {"lease": LEASE, **options}
        if self.kind == "memory":
            controller = Controller(self._memory, **options)
        else:
            controller = open_controller(self.url, **options)
        self._open.append(controller)
        return controller

    def crash(self, controller: Controller) -> None:
        """End a controller as a killed process would: nothing is released, nothing more is written."""
        self._open.remove(controller)
        assert controller.committer is not None
        controller.committer.close()
        controller.store.close()

    def close(self) -> None:
        """Close what is still open."""
        while self._open:
            self._open.pop().close()


def shop(controller: Controller, **settings: Any) -> Population:
    """A population to try things out on; it does not explore unless told to."""
    if "shop" not in controller.populations():
        settings = {"policy": "bass", "dim": 2, "explore": 0.0, "seed": 1, **settings}
    return controller.population("shop", **settings)


def sound(controller: Controller) -> bool:
    """Whether nothing is wrong with any population; if something is, pytest shows it."""
    problems = controller.verify()
    assert problems == {name: [] for name in problems}
    return True
