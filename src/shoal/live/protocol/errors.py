"""What can go wrong in live use. Each error says what is recorded; none of them has changed anything.

Bad input (a wrong dimension, NaN, an unknown policy) is a `ValueError`, as everywhere in shoal.
"""

from typing import Any


class ControllerError(Exception):
    """Base of the errors of live use that are not bad input.

    Examples
    --------
    >>> import shoal
    >>> shop = shoal.open(":memory:").population("shop", policy="bass", dim=2)
    >>> first = shop.decide("ada", arms=[[1.0, 0.0], [0.0, 1.0]], id="first")
    >>> try:
    ...     shop.reward("second", 1.0)
    ... except shoal.ControllerError as error:
    ...     print(type(error).__name__)
    UnknownError
    """


class UnknownError(ControllerError, LookupError):
    """No such population, agent, arm or decision.

    Examples
    --------
    >>> import shoal
    >>> shop = shoal.open(":memory:").population("shop", policy="bass", dim=2)
    >>> first = shop.decide("ada", arms=[[1.0, 0.0], [0.0, 1.0]], id="first")
    >>> try:
    ...     shop.reward("second", 1.0)
    ... except shoal.UnknownError as error:
    ...     print("no such decision")
    no such decision
    """

    def __str__(self) -> str:
        return str(self.args[0])  # a LookupError such as KeyError would show the repr


class GoneError(UnknownError):
    """It belonged to an agent that has been forgotten.

    Examples
    --------
    >>> import shoal
    >>> shop = shoal.open(":memory:").population("shop", policy="bass", dim=2)
    >>> first = shop.decide("ada", arms=[[1.0, 0.0], [0.0, 1.0]], id="first")
    >>> shop.forget("ada")
    >>> try:
    ...     shop.reward("first", 1.0)
    ... except shoal.GoneError as error:
    ...     print("forgotten")
    forgotten
    """


class ConflictError(ControllerError):
    """Something else is recorded already; `recorded` is what.

    Examples
    --------
    >>> import shoal
    >>> shop = shoal.open(":memory:").population("shop", policy="bass", dim=2)
    >>> first = shop.decide("ada", arms=[[1.0, 0.0], [0.0, 1.0]], id="first")
    >>> shop.reward("first", 1.0)
    >>> try:
    ...     shop.reward("first", 2.0)
    ... except shoal.ConflictError as error:
    ...     print(error.recorded)
    1.0
    """

    def __init__(self, message: str, recorded: Any = None) -> None:
        super().__init__(message)
        self.recorded = recorded


class UnavailableError(ControllerError):
    """The store cannot take it now. Nothing is known to be recorded; the same call may be made again.

    Examples
    --------
    >>> try:
    ...     raise UnavailableError("the disk is full", retry_after=5.0)
    ... except UnavailableError as error:
    ...     print(f"{error}; again in {error.retry_after:.0f} s")
    the disk is full; again in 5 s
    """

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LimitError(ControllerError):
    """A limit of the service is reached; `limit` is its name. Nothing is recorded.

    Examples
    --------
    >>> try:
    ...     raise LimitError("the population has 100,000 agents: the limit agents is 100,000", "agents")
    ... except LimitError as error:
    ...     print(error.limit)
    agents
    """

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class NotOwnerError(ControllerError):
    """Another process owns the population.

    Examples
    --------
    >>> import shoal, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with shoal.open(f"{directory}/shop.db") as controller:
    ...         shop = controller.population("shop", policy="bass", dim=2)
    ...         try:
    ...             shoal.open(f"{directory}/shop.db").population("shop")
    ...         except shoal.NotOwnerError:
    ...             print("another controller has it")
    another controller has it
    """


class JournalError(ControllerError):
    """The journal, or the file it is in, is damaged or of a version that cannot be read."""
