"""The decorators for compiled code."""

import os
import pickle
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import caching, compiler

from shoal.core.jit import cache
from shoal.core.jit.narration import narrator
from shoal.core.jit.reach import Reach

config: Any = numba.config

TESTED = ("0.68.",)
"""Versions of Numba in which `core.jit.units` finds what it needs, with the same results as plain Numba."""
UNITS = numba.__version__.startswith(TESTED) and os.environ.get("SHOAL_UNITS", "1") != "0"
"""Whether functions are compiled once and called by name; otherwise as Numba does by itself."""
OPTIONS: Any = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
"""How `compiled` compiles."""
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile `function` with Numba: cached on disk, without the GIL, IEEE arithmetic (no fastmath).

    The function must not allocate arrays or assign one array's slice to another's. In return Numba omits
    reference counting, which would cost more than the arithmetic: an atomic increment and decrement per call
    for each array of a state. Nor can it return an array: see `spliced`.
    """
    return _compile(function)


def allocating(function: Function) -> Function:
    """`compiled`, for rarely called functions that allocate arrays, with reference counting."""
    return _compile(function, _nrt=True)


def spliced(function: Function) -> Function:
    """`compiled`, but as if its lines stood in each caller: for short functions that return an array."""
    return _compile(function, inline="always")


def inlined(function: Function) -> Function:
    """`compiled`, for short functions of a whole state.

    Plain Numba compiles them faster as part of their callers: even the shortest takes it a third of a second.
    """
    return _compile(function) if UNITS else spliced(function)


def _compile(function: Function, **more: Any) -> Function:
    if config.DISABLE_JIT:
        return function
    dispatcher: Any
    if UNITS:
        from shoal.core.jit.units import Kernel

        dispatcher = Kernel(function, targetoptions={**OPTIONS, **more})
    else:
        dispatcher = numba.njit(**{**OPTIONS, **more})(function)
        dispatcher._cache = _PlainCache(dispatcher)
    narrator.known.add(dispatcher)
    return cast(Function, dispatcher)


class _PlainCache(caching.NullCache):  # type: ignore[misc, unused-ignore]  # untyped in some versions
    """The cache, for what Numba compiles in its own way: each function with all that it calls."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    def _key(self, signature: Any, context: Any) -> str:
        function = self._dispatcher.py_func
        args = getattr(signature, "args", signature)
        options = sorted(self._dispatcher.targetoptions.items())
        digest = f"plain {Reach(function, args).digest} {options}"
        return cache.key(function.__qualname__, digest, context.codegen().magic_tuple())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What `save_overload` wrote, or None."""
        target_context.refresh()
        try:
            content = pickle.loads(cache.load(self._key(sig, target_context)))
        except Exception:  # there is none, or it is of a class that is no longer there
            return None
        rebuild: Any = compiler.CompileResult._rebuild
        return rebuild(target_context, *content)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled function, if another process can use it."""
        if not data.library.has_dynamic_globals and not data.lifted:
            cache.save(self._key(sig, data.target_context), pickle.dumps(data._reduce()))
