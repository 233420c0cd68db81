"""Refuse what takes more memory than this machine has, before any of it is allocated."""

import math
import os

from shoal.core import fields


def check(owner: str, state_class: type, sizes: fields.Sizes) -> None:
    """Refuse a state of the policy class `owner` that this machine cannot hold."""
    n_agents, dim = sizes["agents"], sizes["dim"]
    statistics = 8 * (2 * dim**2 + 2 * dim + 2) * n_agents
    rest = f"{statistics / 1e9:,.1f} for the agents' statistics"
    refuse(owner, fields.nbytes(state_class, sizes), rest, n_agents, dim)


def refuse(owner: str, needed: float, what: str, n_agents: int, dim: int) -> None:
    """Raise if this machine does not have `needed` bytes."""
    if needed > (available := physical_memory()):
        raise MemoryError(
            f"{owner} with n_agents={n_agents}, dim={dim} needs at least "
            f"{needed / 1e9:,.1f} GB ({what}); this machine has {available / 1e9:,.1f} GB"
        )


def physical_memory() -> float:
    """Bytes of memory that this machine has, as far as it tells."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return math.inf
