"""How many requests a key may make: each has a token bucket."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

REMEMBERED = 10_000
"""Keys whose buckets are kept."""


class Limits:
    """See the module. Used by one thread.

    Parameters
    ----------
    rate : float
        Requests a second that a key may make in the long run, by default; 0 for any number.
    burst : float
        Seconds' worth of requests that it may make at once.
    clock : callable
    """

    def __init__(
        self, rate: float = 0.0, burst: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """For each key, the tokens left at its last request, and the time of that request."""

    def take(self, key: str, rate: float | None = None) -> float:
        """Take a token; if there is none, return the seconds until there is, otherwise 0."""
        rate = self.rate if rate is None else rate
        if not rate:
            return 0.0
        size = max(1.0, rate * self.burst)
        now = self._clock()
        left, then = self._buckets.get(key, (size, now))
        left = min(size, left + (now - then) * rate)
        wait = 0.0 if left >= 1.0 else (1.0 - left) / rate
        self._buckets[key] = (left if wait else left - 1.0, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return wait

    def charge(self, key: str, cost: int) -> None:
        """Take more tokens, after `take`; if there are too few, later requests wait for them."""
        if cost > 0 and (found := self._buckets.get(key)) is not None:
            self._buckets[key] = (found[0] - cost, found[1])


def whole_seconds(wait: float) -> str:
    """Seconds as a Retry-After header has them: a whole number, at least 1."""
    return str(max(1, math.ceil(wait)))
