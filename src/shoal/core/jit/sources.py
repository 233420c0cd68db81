"""What a result was computed by: the functions and constants that plain Python code reaches, by name.

`Reach` follows compiled functions, whose calls are all known. Plain code calls methods, so a class that is
reached brings its methods with it. Of this package's own classes only methods whose names occur in what is
reached count: an edit of `Policy.save` concerns no simulation. Classes of other people count as a whole, but
for how they are shown, because their code may make up names that do not occur in it.
"""

import dis
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import msgspec

from shoal.core.jit.reach import _ADDRESS, VERSIONED, Reach, _generic

OWN = "shoal"
COMPILER = "shoal.core.jit"
"""How code is compiled does not change what it computes."""
SHOWN = ("label", "line_style", "in_paper", "typical", "name")
"""Attributes of a policy that say how it is presented."""
_UNUSED = ("__repr__", "__str__", "__reduce__", "__init_subclass__")
_PLAIN = bool | int | float | complex | str | bytes | None


class Sources(Reach):
    """All that some functions and classes reach.

    Parameters
    ----------
    roots : functions, classes, or partial calls of them
    caller : Sources, optional
        What calls them. The names in it count as called, and what it reaches is left out.

    Attributes
    ----------
    parts : dict
        A hash for each function, class and constant, by its qualified name.
    digest : str
        The hash of all of them.
    """

    def __init__(self, roots: Iterable[Any], caller: "Sources | None" = None) -> None:
        roots = tuple(roots)
        self.functions = []
        self._classes = ()
        self._hash = hashlib.sha256()
        self._seen = dict(caller._seen) if caller else {}
        self._names: set[str] = set(caller._names) if caller else set()
        self._generics: set[Any] = set(caller._generics) if caller else set()
        self._states: set[type] = set()
        self._queue: deque[Any] = deque()
        self._waiting: list[tuple[type | ModuleType, str, Any]] = []
        self._module = ""
        self._packages = {OWN, *(_package(getattr(_bare(each), "__module__", "")) for each in roots)}
        self.parts: dict[str, str] = {}
        for each in roots:
            self._visit(each)
        while self._queue or self._release():
            each = self._queue.popleft()
            visit = self._visit_class if isinstance(each, type) else self._visit_function
            self._part(_qualified(each), functools.partial(visit, each))
        listed = sorted(self.parts.items())
        self.digest = hashlib.sha256(repr(listed).encode()).hexdigest()[:16]

    def _constant(self, name: str, value: Any) -> None:
        if name not in self.parts:
            before = self._hash
            self._part(name, functools.partial(self._visit, value))
            self._hash = before

    def _part(self, name: str, visit: Callable[[], None]) -> None:
        self._hash = hashlib.sha256()
        visit()
        number = 1 + sum(known.partition("#")[0] == name for known in self.parts)
        self.parts[name if number == 1 else f"{name}#{number}"] = self._hash.hexdigest()[:12]

    def _release(self) -> bool:
        """Queue what is known to be reached by now; whether there is anything."""
        used = [item for item in self._waiting if self._is_used(*item)]
        self._waiting = [item for item in self._waiting if not self._is_used(*item)]
        for owner, name, member in used:
            if self._is_code(member):
                self._visit(member)
            else:
                self._constant(f"{_qualified(owner)}.{name}", member)
        for function in self._generics:
            for state in sorted(self._states, key=lambda kind: kind.__qualname__):
                try:
                    self._visit(_generic[function](state))
                except KeyError:  # the class has no such step
                    continue
        return bool(self._queue)

    def _is_used(self, owner: type | ModuleType, name: str, member: Any) -> bool:
        if not _is_own(_qualified(owner)):
            return True
        return name in self._names or (name.startswith("__") and name not in _UNUSED)

    def _is_code(self, value: Any) -> bool:
        return isinstance(_bare(value), FunctionType | type | property)

    def _visit(self, value: Any) -> None:
        value = _bare(value)
        if isinstance(value, FunctionType | type):
            self._note(value.__module__, value.__qualname__)
            if id(value) not in self._seen and self._is_followed(value.__module__):
                self._seen[id(value)] = len(self._seen)
                self._queue.append(value)
                if value in _generic:
                    self._generics.add(value)
                    self._visit(_generic[value])
        elif isinstance(value, functools.partial):
            self._visit((value.func, value.args, value.keywords))
        elif isinstance(value, property):
            self._visit((value.fget, value.fset))
        elif isinstance(value, MethodType):
            self._visit((value.__func__, type(value.__self__)))
        elif isinstance(value, dict):
            self._visit(tuple(value.items()))
        elif isinstance(value, set):
            self._visit(frozenset(value))
        elif isinstance(value, msgspec.Struct | Enum) or is_dataclass(value):
            self._note(_ADDRESS.sub("", repr(value)))
            self._visit(type(value))
        elif isinstance(value, _PLAIN | tuple | list | frozenset) or hasattr(value, "dtype"):
            super()._visit(value)
        else:  # an object: what it holds is state, its class is code
            self._visit(type(value))

    def _visit_global(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType):  # itself a value, such as one of several engines
            if id(value) not in self._seen and self._is_followed(value.__name__):
                self._seen[id(value)] = len(self._seen)
                own = {key: each for key, each in vars(value).items() if _is_defined_in(value, _bare(each))}
                self._waiting += [(value, key, each) for key, each in sorted(own.items())]
            return
        # A collection in this package is a constant or a registry, which other imports change.
        is_collection = isinstance(value, dict | list | set)
        if is_collection and _is_own(self._module) and not (name.isupper() and _is_plain(value)):
            return
        if self._is_code(value):
            self._visit(value)
        else:
            self._constant(f"{self._module}.{name}", value)

    def _visit_function(self, function: FunctionType) -> None:
        self._module = function.__module__
        super()._visit_function(function)
        self._visit(function.__kwdefaults__)
        for found in _imported(function.__code__, function.__globals__.get("__package__")):
            self._visit(found)

    def _visit_code(self, code: CodeType, doc: str | None = None) -> None:
        super()._visit_code(code, doc)
        self._names.update(code.co_names)
        self._names.update(each for each in code.co_consts if isinstance(each, str) and each.isidentifier())

    def _visit_class(self, kind: type) -> None:
        for base in kind.__mro__[1:]:
            self._visit(base)
        members = dict(vars(kind))
        if hasattr(kind, "_fields"):
            self._states.add(kind)
            self._note(kind._fields, _ADDRESS.sub("", repr(inspect.get_annotations(kind))))
        if issubclass(kind, msgspec.Struct):
            self._note(kind.__struct_fields__)
            self._visit(kind.__struct_defaults__)
        is_record = hasattr(kind, "_fields") or issubclass(kind, msgspec.Struct)
        self._waiting += [
            (kind, name, each)
            for name, each in sorted(members.items())
            if self._is_code(each) or not (is_record or name in SHOWN or name.startswith("__"))
        ]

    def _is_followed(self, module: str) -> bool:
        return _package(module) in self._packages or _is_users(_package(module))


def _bare(value: Any) -> Any:
    """What decorators made a value from."""
    while True:
        for name in ("py_func", "__wrapped__", "__func__", "_defn"):
            # Not a method: the object it belongs to counts, too.
            inner = None if isinstance(value, type | MethodType | ModuleType) else vars_of(value, name)
            if inner is not None:
                value = inner
                break
        else:
            return value.func if isinstance(value, functools.cached_property) else value


def vars_of(value: Any, name: str) -> Any:
    """An attribute, of objects that may have any `__getattr__`."""
    found = inspect.getattr_static(value, name, None)
    return None if found is None else getattr(value, name, None)


def _qualified(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


def _is_defined_in(module: ModuleType, value: Any) -> bool:
    if isinstance(value, FunctionType | type):
        return value.__module__ == module.__name__
    return _is_plain(value) and value is not None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(each) for each in value.items())
    if isinstance(value, tuple | list | set):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _package(module: str) -> str:
    return COMPILER if module.startswith(COMPILER) else module.partition(".")[0]


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == OWN


@cache
def _is_users(package: str) -> bool:
    """Whether a package is a user's own code, rather than installed or part of Python."""
    if package in VERSIONED or package == COMPILER:
        return False
    module = sys.modules.get(package)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    files = [place for place in places if place]
    if not files:
        return package == "__main__"
    return not any("-packages" in place for place in files)


@cache
def _imported(code: CodeType, package: str | None) -> tuple[Any, ...]:
    """What the imports inside a function's code name, as far as it can be imported."""
    found: list[Any] = []
    module: Any = None
    before: list[Any] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level = next((each.argval for each in before[::-1] if isinstance(each.argval, int)), 0)
            try:
                name = importlib.util.resolve_name("." * level + instruction.argval, package or "")
                module = importlib.import_module(name) if _package(name) == OWN or _is_local(name) else None
            except (ImportError, ValueError):
                module = None
        elif instruction.opname == "IMPORT_FROM" and module is not None:
            found.append(getattr(module, instruction.argval, None))
        before = [*before[-1:], instruction]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _imported(constant, package)
    return tuple(each for each in found if not isinstance(each, ModuleType))


def _is_local(name: str) -> bool:
    """Whether a module, perhaps not imported yet, is a user's own."""
    package = _package(name)
    if package in sys.modules:
        return _is_users(package)
    spec = importlib.util.find_spec(package)
    return spec is not None and package not in VERSIONED and "-packages" not in str(spec.origin)
