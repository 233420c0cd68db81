"""Ids of decisions: a client and a server make them in the same way."""

import os
import secrets
import time

_random_bits: list[int] = []
if hasattr(os, "register_at_fork"):  # where processes fork, both would give out the same ids
    os.register_at_fork(after_in_child=_random_bits.clear)


def new_id() -> str:
    """A new decision's id: 28 hexadecimal digits that begin with the time, so that they sort by it."""
    if not _random_bits:  # the system is asked for many at once: one call takes longer than a decision may
        _random_bits.extend(memoryview(os.urandom(8 * 512)).cast("Q").tolist())
    try:
        bits = _random_bits.pop()
    except IndexError:  # other threads took them all
        bits = secrets.randbits(64)
    return f"{time.time_ns() // 1_000_000:012x}{bits:016x}"
