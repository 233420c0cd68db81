"""Why the first call takes so long: a line on stderr, on a terminal one that shows how far it is."""

import sys
import time
from typing import Any

from numba.core import event

from shoal.core.jit import cache

names: dict[type, str] = {}
"""Policies, by the classes of their states."""
EXPECTED = 3
"""Functions to compile before their time says something about that of the others."""


class Narrator(event.Listener):  # type: ignore[misc, unused-ignore]  # untyped in some versions
    """Hears of every function that is compiled, also by other packages."""

    def __init__(self) -> None:
        self.known: set[Any] = set()  # dispatchers of ours
        self.silent = False
        self._has_spoken = False
        self._waiting: list[Any] = []  # functions that are being compiled, each called by the one before
        self._finished: set[Any] = set()
        self._done = self._total = 0
        self._policy = ""
        self._start = 0.0

    def on_start(self, event: Any) -> None:
        """A function was not found in the cache."""
        dispatcher = event.data["dispatcher"]
        if dispatcher not in self.known:
            return
        if not self._waiting:
            reach = event.data.get(
                "reach"
            )  # nothing is known beforehand about what Numba compiles in its own way
            functions = set(reach.functions) if reach is not None else set()
            self._done, self._total = 0, len(functions - self._finished)
            owners = [getattr(kind, "instance_class", None) for kind in event.data["args"]]
            self._policy = next((names[owner] for owner in owners if owner in names), "shared functions")
            self._start = time.monotonic()
        self._waiting.append(dispatcher.py_func)
        self._say()

    def on_end(self, event: Any) -> None:
        """The function is compiled, or failed to."""
        if event.data["dispatcher"] in self.known and self._waiting:
            self._finished.add(self._waiting.pop())
            self._done += 1
            self._say()

    def _say(self) -> None:
        if self.silent or sys.stderr is None:
            return
        if not sys.stderr.isatty():
            if not self._has_spoken:
                text = f"shoal: compiling, which takes some seconds, once; kept in {cache.directory()}"
                print(text, file=sys.stderr, flush=True)
            self._has_spoken = True
            return
        text = f"shoal: compiling {self._policy}"
        if 0 < self._done < self._total:
            text += f", {self._done} of {self._total} functions"
            if self._done >= EXPECTED:
                left = (time.monotonic() - self._start) / self._done * (self._total - self._done)
                text += f", about {max(1, round(left))} s left"
        print(f"\r\x1b[K{text if self._waiting else ''}", end="", file=sys.stderr, flush=True)


narrator = Narrator()
_register: Any = event.register
_register("numba:compile", narrator)


def say_nothing_of_compiling() -> None:
    """Turn the message off, for programs that show their progress themselves."""
    narrator.silent = True
