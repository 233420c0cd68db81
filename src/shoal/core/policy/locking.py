"""The lock of a policy, and what becomes of it when the process forks.

A child process has only the thread that forked. If another one held a policy's lock at that moment, nobody in
the child will ever release it, and the state may be half changed: there the lock raises instead of hanging.
"""

import os
import threading
import weakref
from typing import Any, NoReturn


class BrokenLock:
    """Stands in for a lock that nobody can release."""

    def __enter__(self) -> NoReturn:
        raise RuntimeError(
            "this process was forked while another thread was using the policy, whose state may be half "
            "changed; fork while no thread uses it, or load it from a file in the child"
        )

    def __exit__(self, *exception: object) -> None:
        return


_owners: "weakref.WeakSet[Any]" = weakref.WeakSet()


def give_lock(owner: Any) -> None:
    """Give an object a lock of its own, as its attribute `lock`."""
    owner.lock = threading.RLock()
    _owners.add(owner)


def _check_locks() -> None:
    for owner in list(_owners):
        if isinstance(owner.lock, BrokenLock):
            continue
        if owner.lock.acquire(blocking=False):  # free, or held by the thread that forked
            owner.lock.release()
        else:
            owner.lock = BrokenLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_check_locks)
