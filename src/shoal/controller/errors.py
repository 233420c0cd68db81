"""What can go wrong in live use. Each error says what is recorded; none of them has changed anything.

Bad input (a wrong dimension, NaN, an unknown policy) is a `ValueError`, as everywhere in shoal.
"""

from typing import Any


class ControllerError(Exception):
    """Base of the errors of live use that are not bad input."""


class UnknownError(ControllerError, LookupError):
    """No such population, agent, arm or decision."""

    def __str__(self) -> str:
        return str(self.args[0])  # a LookupError such as KeyError would show the repr


class GoneError(UnknownError):
    """It belonged to an agent that has been forgotten."""


class ConflictError(ControllerError):
    """Something else is recorded already; `recorded` is what."""

    def __init__(self, message: str, recorded: Any = None) -> None:
        super().__init__(message)
        self.recorded = recorded


class UnavailableError(ControllerError):
    """The store cannot take it now. Nothing is known to be recorded; the same call may be made again."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotOwnerError(ControllerError):
    """Another process owns the population."""


class JournalError(ControllerError):
    """The journal, or the file it is in, is damaged or of a version that cannot be read."""
