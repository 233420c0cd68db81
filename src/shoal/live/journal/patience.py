"""Reading a whole journal can be given up: whoever asked has left, or it takes too long.

Who asks calls `Patience.call`, in the thread that reads; loops over records call `go_on` now and then.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from shoal.live.protocol.errors import UnavailableError

Result = TypeVar("Result")
_present: "ContextVar[Patience | None]" = ContextVar("patience", default=None)


class Patience:
    """For one question; any thread may end it."""

    def __init__(self) -> None:
        self.has_ended = False

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function that reads; `UnavailableError` if that is given up."""
        token = _present.set(self)
        try:
            go_on()
            return function()
        finally:
            _present.reset(token)


def go_on() -> None:
    """Raise if nobody waits any more for what this thread does."""
    present = _present.get()
    if present is not None and present.has_ended:
        raise UnavailableError("given up: nobody waits for it any more")
