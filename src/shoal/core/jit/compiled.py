"""The decorators for compiled code, with an on-disk cache that never runs stale code.

Numba's cache notices a change in the cached function's own file, not in the files of the functions it calls.
So the cache is in a directory named after a hash of the sources of all compiled code.

A cache that was filled ahead of time (`shoal warm`) also works where it is read-only, as in a container.
"""

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import platformdirs
from filelock import FileLock
from numba.core import caching, event

config: Any = numba.config

FLOORS = (
    "core/jit",
    "core/kernels",
    "core/policy",
    "core/policies",
    "core/statistics.py",
    "lab/rivals",
    "lab/simulation.py",
)
"""Where compiled code may live."""
OPTIONS: Any = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
"""How `compiled` compiles."""
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile `function` with Numba: cached on disk, without the GIL, IEEE arithmetic (no fastmath).

    The function must not allocate arrays or assign one array's slice to another's. In return Numba omits
    reference counting, which would cost more than the arithmetic: an atomic increment and decrement per call
    for each array of a state.
    """
    return _compile(function)


def allocating(function: Function) -> Function:
    """`compiled`, for rarely called functions that allocate arrays, with reference counting."""
    return _compile(function, _nrt=True)


def inlined(function: Function) -> Function:
    """`compiled`, but inlined into each caller: for short functions of a whole state.

    Compiled separately, even the shortest of them takes Numba a third of a second.
    """
    return _compile(function, inline="always")


def _compile(function: Function, **more: Any) -> Function:
    if config.DISABLE_JIT:
        return function
    outer = config.CACHE_DIR
    config.CACHE_DIR = str(cache_directory())  # Numba reads it once, when it makes the dispatcher
    try:
        with _without_trying_to_write():
            dispatcher: Any = numba.njit(**{**OPTIONS, **more}, cache=True)(function)
    finally:
        config.CACHE_DIR = outer
    _guard_saves(dispatcher)
    _narrator.known.add(dispatcher)
    return cast(Function, dispatcher)


# Where compiled code is kept


@cache
def cache_directory() -> Path:
    """Where compiled code is kept: in `$NUMBA_CACHE_DIR` or the user's cache, by a hash of the sources."""
    package = Path(__file__).parents[2]
    sources = [path for name in FLOORS for path in sorted((package / name).rglob("*.py")) or [package / name]]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    wanted = _cache_root() / digest
    if _can_write(wanted) or _is_filled(wanted):
        return wanted
    directory = _private_directory() / digest
    directory.mkdir(exist_ok=True)
    warnings.warn(
        f"compiled code cannot be kept in {wanted.parent}. It goes to {directory.parent}, and is compiled "
        "again whenever that is emptied. Set NUMBA_CACHE_DIR to a writable directory, or to one that "
        "`shoal warm` has filled.",
        RuntimeWarning,
        stacklevel=2,
    )
    return directory


def _cache_root() -> Path:
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR) / "shoal"
    return platformdirs.user_cache_path("shoal") / "compiled"


def _can_write(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def _is_filled(directory: Path) -> bool:
    """Whether a read-only directory holds compiled code."""
    try:
        return any(directory.iterdir())
    except OSError:
        return False


def _private_directory() -> Path:
    """A temporary directory that nobody else can write to, because what is cached there will be run."""
    if sys.platform == "win32":  # temporary directories are the user's own there
        return Path(tempfile.gettempdir())
    directory = Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()  # not stat: the name may be a link that another user made
        private = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o022 == 0
        if stat.S_ISDIR(found.st_mode) and private:
            return directory
    return Path(tempfile.mkdtemp(prefix="shoal-"))


@cache
def _is_read_only() -> bool:
    return not _can_write(cache_directory())


@contextlib.contextmanager
def _without_trying_to_write() -> Iterator[None]:
    """Let Numba read from a filled, read-only directory; by default it first tests that it can write."""
    locator: Any = caching._CacheLocator
    trial = locator.ensure_cache_path
    if _is_read_only():
        locator.ensure_cache_path = lambda self: None
    try:
        yield
    finally:
        locator.ensure_cache_path = trial


def _guard_saves(dispatcher: Any) -> None:
    """Let one process at a time write to the cache: two could give one file name to two signatures."""
    save = dispatcher._cache.save_overload

    def save_alone(signature: Any, data: Any) -> None:
        ours = all(_is_ours(argument) for argument in getattr(signature, "args", signature))
        if ours and not _is_read_only():
            with FileLock(cache_directory() / "lock"):
                save(signature, data)

    dispatcher._cache.save_overload = save_alone


def _is_ours(argument: Any) -> bool:
    """Whether a type involves only classes of this package: the cache would not notice changes in others."""
    owner = getattr(argument, "instance_class", None)
    if owner is not None and owner.__module__.partition(".")[0] != "shoal":
        return False
    return all(_is_ours(field) for field in getattr(argument, "types", ()))


# What a user sees


class _Narrator(event.Listener):  # type: ignore[misc, unused-ignore]  # untyped in some versions
    """Says on stderr, once per process, why the first call takes so long."""

    def __init__(self) -> None:
        self.known: set[Any] = set()
        self.silent = False

    def on_start(self, event: Any) -> None:
        """A function was not found in the cache."""
        if not self.silent and event.data["dispatcher"] in self.known:
            self.silent = True
            print(
                f"shoal: compiling, which takes some seconds, once; kept in {cache_directory()}",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event: Any) -> None:
        """The function is compiled."""


_narrator = _Narrator()
_register: Any = event.register
_register("numba:compile", _narrator)


def say_nothing_of_compiling() -> None:
    """Turn the message off, for programs that show their progress themselves."""
    _narrator.silent = True
