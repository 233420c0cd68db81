"""A hash of the code that results come from, so that results of two versions are never mixed."""

import hashlib
import inspect
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from shoal.environments import base
from shoal.environments.registry import environment_class
from shoal.kernels.compiled import cache_directory


def code_fingerprint(kinds: Iterable[str]) -> str:
    """Hash of the sources of policies, kernels and simulation, and of the environments of these kinds.

    A kind whose optional packages are missing counts for nothing: it cannot be run either.
    """
    parts = {_source_hash(kind) for kind in kinds}
    # The name of that directory is the hash of the rest.
    return hashlib.sha256(" ".join([cache_directory().name, *sorted(parts)]).encode()).hexdigest()[:16]


@cache  # what counts is the code that has been imported, not a later edit
def _source_hash(kind: str) -> str:
    try:
        source = Path(inspect.getfile(environment_class(kind)))
    except ImportError:
        return ""
    return hashlib.sha256(Path(inspect.getfile(base)).read_bytes() + source.read_bytes()).hexdigest()
