"""A hash of the code that produced results, so that results of two versions are never mixed."""

import hashlib
import inspect
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from shoal.core.policies.registry import find_policy
from shoal.core.registry import load
from shoal.lab.environments import base
from shoal.lab.environments.registry import find_environment

PLAYED = ("core", "lab/rivals", "lab/simulation.py")
"""What every run depends on."""


def code_fingerprint(kinds: Iterable[str]) -> str:
    """Hash of the sources of policies, kernels, simulation and the environments of these kinds.

    A kind whose optional packages are missing is ignored: it cannot be run either.
    """
    parts = {_source_hash(kind) for kind in kinds}
    return hashlib.sha256(" ".join([_played_hash(), *sorted(parts)]).encode()).hexdigest()[:16]


@cache
def _played_hash() -> str:
    package = Path(__file__).parents[2]
    sources = [path for name in PLAYED for path in sorted((package / name).rglob("*.py")) or [package / name]]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


@cache  # the code as imported, not as edited later
def _source_hash(kind: str) -> str:
    try:
        source = _source(find_environment(kind))
    except ImportError:
        return ""
    return hashlib.sha256(Path(inspect.getfile(base)).read_bytes() + source).hexdigest()


def foreign_fingerprint(policies: Iterable[str], functions: Iterable[str]) -> str:
    """Hash of the sources of policies from outside this package, and of functions such as `module:noise`.

    Empty if there are none, so that it does not affect the hashes of grids without them.
    """
    classes = [find_policy(name) for name in policies]
    # Our own are in the code's fingerprint; what users wrote has to be told apart by itself.
    foreign = [found for found in classes if not found.__module__.startswith("shoal.")]
    sources = {_source(found) for found in [*foreign, *map(load, functions)]}
    digests = sorted(hashlib.sha256(source).hexdigest() for source in sources)
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16] if digests else ""


def _source(found: Any) -> bytes:
    """The content of the file that defines it; empty if it was defined in a shell."""
    try:
        return Path(inspect.getfile(found)).read_bytes()
    except (TypeError, OSError):
        return b""
