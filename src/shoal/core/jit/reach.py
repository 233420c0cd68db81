"""What compiled code was made from: a hash of all that a function reaches.

A function reaches its own bytecode, the functions it calls, the constants and classes it names, and so on.
Whatever changes the compiled code changes the hash, and an edit elsewhere does not. Bytecode, because it is
there where no source is (a notebook), and because comments and line numbers do not matter.
"""

import dis
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher

types: Any = numba.types
VERSIONED = {"numba", "numpy", "llvmlite", *sys.stdlib_module_names}
"""Packages whose functions are known by their names: their versions are in the key of a cache's entry."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_generic: dict[Any, Callable[[type], Any]] = {}


class Reach:
    """All that a function reaches when it is called with arguments of these types.

    `digest` is the hash, `functions` holds the compiled functions, each once.
    """

    def __init__(self, function: FunctionType, kinds: Iterable[Any]) -> None:
        kinds = tuple(kinds)
        self.functions: list[FunctionType] = []
        self._classes = tuple(dict.fromkeys(_classes(kinds)))
        self._seen: dict[int, int] = {}
        self._hash = hashlib.sha256()
        for kind in kinds:
            self._note(_ADDRESS.sub("", str(kind)))
            self._visit(getattr(kind, "dispatcher", None))  # a function that is passed as an argument
        for each in (*self._classes, function):
            self._visit(each)
        self.digest = self._hash.hexdigest()[:32]

    def _note(self, *facts: object) -> None:
        self._hash.update("\0".join(map(str, facts)).encode(errors="surrogatepass") + b"\1")

    def _visit(self, value: Any) -> None:
        if isinstance(value, Dispatcher):
            self._note(sorted(value.targetoptions.items()))
            value = value.py_func
            if id(value) not in self._seen:
                self.functions.append(value)
        value = getattr(value, "_defn", value)  # what an intrinsic generates its code with
        if isinstance(value, FunctionType | type):
            known = self._seen.get(id(value))
            self._note(value.__module__, value.__qualname__, known)
            if known is not None or _is_versioned(value.__module__):
                return
            self._seen[id(value)] = len(self._seen)
        if isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, type):
            self._note(getattr(value, "_fields", ()))
        elif isinstance(value, tuple | list):
            self._note(type(value).__qualname__, len(value))
            for each in value:
                self._visit(each)
        elif isinstance(value, np.ndarray):
            self._note(value.dtype, value.shape, value.tobytes().hex())
        elif isinstance(value, frozenset):
            self._note(sorted(map(repr, value)))  # in an order of its own in each process
        else:
            self._note(type(value).__qualname__, _ADDRESS.sub("", repr(value)))

    def _visit_function(self, function: FunctionType) -> None:
        if function in _generic:
            for each in self._classes:
                self._visit(_generic[function](each))
            return
        self._visit_code(function.__code__, function.__doc__)
        self._visit(function.__defaults__)
        for cell in function.__closure__ or ():
            try:
                self._visit(cell.cell_contents)
            except ValueError:  # not assigned yet
                self._note("empty")
        for name, *attributes in _globals(function.__code__):
            value = function.__globals__.get(name)
            while attributes and isinstance(value, ModuleType) and not _is_versioned(value.__name__):
                value = getattr(value, attributes.pop(0), None)
            self._note(name, *attributes)
            self._visit_global(name, value)

    def _visit_global(self, name: str, value: Any) -> None:
        if not isinstance(value, ModuleType):
            self._visit(value)

    def _visit_code(self, code: CodeType, doc: str | None = None) -> None:
        self._note(code.co_code.hex(), code.co_exceptiontable.hex(), code.co_names, code.co_varnames)
        self._note(code.co_argcount, code.co_freevars, code.co_cellvars)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._visit_code(constant)
            elif constant != doc:
                self._visit(constant)


def _classes(kinds: Iterable[Any]) -> Iterator[type]:
    """The classes of named tuples among types, and among the types of their fields."""
    for kind in kinds:
        if (owner := getattr(kind, "instance_class", None)) is not None:
            yield owner
        yield from _classes(getattr(kind, "types", ()))


def _is_versioned(module: str) -> bool:
    return module.partition(".")[0] in VERSIONED


@cache
def _globals(code: CodeType) -> list[list[str]]:
    """The global names that bytecode reads, each with the attributes that it then asks for."""
    found: list[list[str]] = []
    extends = False
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.append([instruction.argval])
            extends = True
        elif extends and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found[-1].append(instruction.argval)
        elif instruction.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL"):
            extends = False
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _globals(constant)
    return [list(names) for names in dict.fromkeys(map(tuple, found))]


# Functions that are picked by the class of a state


class GenericType(numba.types.Callable, numba.types.Dummy):  # type: ignore[misc, unused-ignore]
    """Type of a function in whose place compiled code calls one picked by the class of the first argument."""

    def __init__(self, name: str, pick: Callable[[type], Any]) -> None:
        self.pick = pick
        super().__init__(f"generic({name})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """The signature of such a call, once what it calls is compiled."""
        return types.Dispatcher(self.pick(args[0].instance_class)).get_call_type(context, args, kws)

    def get_call_signatures(self) -> Any:
        """None is known before the class is."""
        return (), True

    def get_impl_key(self, signature: Any) -> Any:
        """What the called function's code is registered under."""
        return self.pick(signature.args[0].instance_class).get_overload(signature)


def generic(function: Any, pick: Callable[[type], Any]) -> None:
    """Let compiled code call, in place of `function`, what `pick` returns for the class of its state."""
    _generic[function] = pick
    infer_global: Any = numba.core.typing.templates.infer_global
    infer_global(function, GenericType(function.__name__, pick))
