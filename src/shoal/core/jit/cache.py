"""Compiled code on disk: one file for each function and types of arguments, named by what it was made from.

Entries are never changed: another source, version or machine has other names. So processes need no locks, and
stale code is never found. A file that is missing, damaged or unreadable is compiled again. What was not used
for longest is deleted once there is too much of it.

A cache that was filled ahead of time (`shoal warm`) also works where it is read-only, as in a container.
"""

import contextlib
import hashlib
import os
import pickle
import stat
import sys
import tempfile
import time
import uuid
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
import platformdirs

config: Any = numba.config

SWITCHES = (
    *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS"),
    *("BOUNDSCHECK", "USING_SVML", "DEBUGINFO_DEFAULT", "ENABLE_PROFILING", "CAPTURED_ERRORS"),
)
"""Settings of Numba that change the code; those of the processor are part of `machine`."""
LARGEST = 100_000_000
"""Bytes of entries that are kept, those of other versions included; all policies take five million."""
_CHECKSUM = 32
_DAY = 86_400.0


@cache
def directory() -> Path:
    """Where compiled code is kept: in `$NUMBA_CACHE_DIR` or the user's cache."""
    name = f"numba-{numba.__version__}-py{sys.version_info.major}.{sys.version_info.minor}"
    wanted = _root() / name
    if _can_write(wanted) or _is_filled(wanted):
        return wanted
    found = _private_directory() / name
    found.mkdir(exist_ok=True)
    warnings.warn(
        f"compiled code cannot be kept in {wanted.parent}. It goes to {found.parent}, and is compiled "
        "again whenever that is emptied. Set NUMBA_CACHE_DIR to a writable directory, or to one that "
        "`shoal warm` has filled.",
        RuntimeWarning,
        stacklevel=2,
    )
    return found


def _root() -> Path:
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR) / "shoal"
    return platformdirs.user_cache_path("shoal") / "compiled"


def _can_write(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError:
        return False
    return True


def _is_filled(place: Path) -> bool:
    """Whether a read-only directory holds compiled code."""
    try:
        return any(place.iterdir())
    except OSError:
        return False


def _private_directory() -> Path:
    """A temporary directory that nobody else can write to, because what is cached there will be run."""
    if sys.platform == "win32":  # temporary directories are the user's own there
        return Path(tempfile.gettempdir())
    place = Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()  # not stat: the name may be a link that another user made
        private = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o022 == 0
        if stat.S_ISDIR(found.st_mode) and private:
            return place
    return Path(tempfile.mkdtemp(prefix="shoal-"))


# Entries


def key(name: str, digest: str, machine: Any) -> str:
    """The name of an entry: of a function called `name` that reaches `digest`, for such a processor."""
    switches = [getattr(config, switch, None) for switch in SWITCHES]
    facts = digest, machine, switches, _compiler()
    plain = "".join(letter if letter.isalnum() else "_" for letter in name)[-40:]
    return f"{plain}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}"


@cache
def _compiler() -> tuple[str, ...]:
    """Whatever turns a function into code: versions, and this package's own part in it."""
    own = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    versions = sys.version, numba.__version__, llvmlite.__version__, np.__version__
    return *versions, hashlib.sha256(own).hexdigest()


def load(name: str) -> Any:
    """The content of an entry; None if there is none, or it is damaged."""
    path = directory() / name
    try:
        content = path.read_bytes()
        with contextlib.suppress(OSError):  # read-only
            if path.stat().st_mtime < time.time() - _DAY:
                path.touch()  # for `_prune`
        if hashlib.sha256(content[_CHECKSUM:]).digest() != content[:_CHECKSUM]:
            return None
        return pickle.loads(content[_CHECKSUM:])
    except Exception:  # whatever is wrong with it, it can be compiled
        return None


def save(name: str, content: Any) -> bool:
    """Write an entry, whole or not at all; False if it cannot be written."""
    _prune()
    temporary = directory() / f".{uuid.uuid4().hex}.tmp"
    try:
        # Not by value: a class of `__main__` is that of the process that loads the entry.
        written = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
        temporary.write_bytes(hashlib.sha256(written).digest() + written)
        temporary.replace(directory() / name)
    except (OSError, pickle.PicklingError, AttributeError, TypeError):  # of a class that has no name, as well
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


@cache
def _prune() -> None:
    """Delete the entries that were used least recently, as far as there are too many; once in a process."""
    found = []
    for path in directory().parent.glob("numba-*/*"):
        with contextlib.suppress(OSError):  # another process deletes, too
            state = path.stat()
            found.append((state.st_mtime, state.st_size, path))
    excess = sum(size for _, size, _ in found) - LARGEST
    for _, size, path in sorted(found):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            excess -= size
