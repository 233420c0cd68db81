"""The one decorator for compiled code, with an on-disk cache that never runs stale code.

Numba's cache notices a change in the file of the function it cached, not in the files of the functions
that one calls. So the cache lives in a directory named after a hash of the sources of all compiled code.
"""

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

config: Any = numba.config

FLOORS = ("kernels", "policies", "statistics.py", "simulation.py")
"""Where compiled code may live."""
OPTIONS: Any = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""How `compiled` compiles."""
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile `function` with Numba: cached on disk, without the GIL, IEEE arithmetic (no fastmath).

    The function must not allocate arrays or assign one array's slice to another's. In return Numba leaves out
    the counting of references, which otherwise costs more than the arithmetic: an atomic increment and
    decrement at each call for each array of a state.
    """
    return _compile(function)


def allocating(function: Function) -> Function:
    """`compiled`, for a function that allocates arrays: rarely called, so that it may count references."""
    return _compile(function, _nrt=True)


def inlined(function: Function) -> Function:
    """`compiled`, but as a part of each caller: for short functions of a whole state.

    On its own, even the shortest of them takes Numba a third of a second.
    """
    return _compile(function, inline="always")


def _compile(function: Function, **more: Any) -> Function:
    if config.DISABLE_JIT:
        return function
    outer = config.CACHE_DIR
    config.CACHE_DIR = str(cache_directory())  # read once, when the decorator below runs
    try:
        dispatcher: Any = numba.njit(**{**OPTIONS, **more}, cache=True)(function)
    finally:
        config.CACHE_DIR = outer
    _lock_saves(dispatcher)
    return cast(Function, dispatcher)


@cache
def cache_directory() -> Path:
    """Where compiled code is kept: in `$NUMBA_CACHE_DIR` or the user's cache, by a hash of the sources."""
    package = Path(__file__).parents[1]
    sources = [path for name in FLOORS for path in sorted((package / name).rglob("*.py")) or [package / name]]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    directory = _cache_root() / digest.hexdigest()[:16]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only home: compile anew in each boot, but do compile
        directory = Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}" / directory.name
        directory.mkdir(parents=True, exist_ok=True)
    return directory


def _cache_root() -> Path:
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR) / "shoal"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "shoal" / "compiled"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "compiled"


def _lock_saves(dispatcher: Any) -> None:
    """Let one process at a time add to a cache: two at once could give one file name to two signatures."""
    save = dispatcher._cache.save_overload

    def save_alone(signature: Any, data: Any) -> None:
        if all(_is_ours(argument) for argument in getattr(signature, "args", signature)):
            with _exclusive(cache_directory() / "lock"):
                save(signature, data)

    dispatcher._cache.save_overload = save_alone


def _is_ours(argument: Any) -> bool:
    """Whether a type names no class from elsewhere, whose changes or absence the cache would not notice."""
    owner = getattr(argument, "instance_class", None)
    if owner is not None and owner.__module__.partition(".")[0] != "shoal":
        return False
    return all(_is_ours(field) for field in getattr(argument, "types", ()))


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("a") as handle:
        if sys.platform == "win32":  # msvcrt's locks give up after ten seconds; the race is rare
            yield
            return
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file releases the lock
