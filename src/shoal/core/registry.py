"""Classes by name: built in, registered by a program, or declared by other packages as entry points.

Policies and environments have one registry each. A spec or a command may also name a class as `module:Class`,
without registering it.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from shoal.core import validation


class Registry:
    """The classes of one kind that are known by name.

    Parameters
    ----------
    what : str
        What they are, for error messages: "policy" or "environment".
    group : str
        The entry point group that other packages declare theirs in.
    known : dict
        The built-in ones: a class, or `module:Class` for one that is imported on first use.
    problem : callable
        Returns what an object would have to be to qualify as such a class; None if it qualifies.
    """

    def __init__(
        self,
        what: str,
        group: str,
        known: dict[str, Any],
        problem: Callable[[Any], str | None],
    ) -> None:
        self._what, self._group, self._known, self._problem = what, group, known, problem

    def register(self, name: str, found: Any) -> None:
        """Register a class under a new name."""
        if not name or self._known.get(name, found) is not found:
            raise ValueError(f"name must be a new, non-empty {self._what} name, got {name!r}")
        if ":" in name:
            raise ValueError(f"name must not look like 'module:Class', got {name!r}")
        self._known[name] = self._checked(name, found)

    def names(self) -> tuple[str, ...]:
        """All names, those of other packages included."""
        declared = (entry.name for entry in entry_points(group=self._group))
        return tuple(dict.fromkeys([*self._known, *declared]))

    def named(self, name: str) -> Any:
        """The class of that name. Only imports what is built in or installed as an entry point.

        Names are written with "_"; "-" is accepted for it.
        """
        if name not in self._known and name.replace("-", "_") in self._known:
            name = name.replace("-", "_")
        if name not in self._known:
            for entry in entry_points(group=self._group):
                if entry.name == name:
                    self.register(name, entry.load())
                    break
            else:
                raise ValueError(
                    f"unknown {self._what} {name!r}; {validation.suggestion(name, self.names())}"
                )
        found = self._known[name]
        if isinstance(found, str):
            found = self._known[name] = load(found)
        return found

    def find(self, reference: str) -> Any:
        """The class of that name, or the one at `module:Class`, which is imported.

        Importing runs code: pass only names that users wrote, never one read from a results or policy file.
        """
        return self._checked(reference, load(reference)) if ":" in reference else self.named(reference)

    def _checked(self, name: str, found: Any) -> Any:
        if problem := self._problem(found):
            raise ValueError(f"{self._what} {name!r} must be {problem}, got {found!r}")
        return found


class ParameterInfo(NamedTuple):
    """What is known of a constructor's parameter."""

    name: str
    kind: str
    """Its type and bounds, in the words of the docstring."""
    default: str
    """Empty if there is none."""
    meaning: str
    """The first sentence on it in the docstring."""


def parameters(found: type) -> list[ParameterInfo]:
    """The parameters of a class, from its signature, its docstring and those of its bases.

    Examples
    --------
    >>> from shoal import BASS
    >>> parameters(BASS)[2]
    ParameterInfo(name='alpha', kind='float ≥ 0', default='0.6', meaning='Width of the confidence bonus.')
    """
    said: dict[str, tuple[str, str]] = {}
    for each in reversed(found.__mro__):
        said |= _documented(inspect.cleandoc(vars(each).get("__doc__") or ""))
    return [
        ParameterInfo(
            name,
            said.get(name, ("", ""))[0],
            "" if each.default is each.empty else repr(each.default),
            said.get(name, ("", ""))[1],
        )
        for name, each in inspect.signature(found).parameters.items()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]


def _documented(docstring: str) -> dict[str, tuple[str, str]]:
    """Type and meaning of what the sections on parameters and attributes of a docstring describe."""
    said = {}
    for heading, section in re.findall(r"^(\w+)\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", docstring, flags=re.M | re.S):
        if heading not in ("Parameters", "Attributes"):
            continue
        for names, kind, text in re.findall(
            r"^(\w[\w, ]*) : (.*)\n?((?:(?: +.*)?\n?)*)", section, flags=re.M
        ):
            words = " ".join(text.split())
            sentence = words.partition(". ")[0] + "." if ". " in words else words
            for name in names.split(", "):
                said[name] = re.sub(r", (default .*|optional)$", "", kind), sentence
    return said


def load(reference: str) -> Any:
    """Import `module:name`; the module may also be in the current directory."""
    module, _, name = reference.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"a class or function must be named as 'module:name', got {reference!r}")
    found = _import(module, reference)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ValueError(f"{reference!r}: there is no {part!r} in {_place(found)}") from None
    return found


def _import(module: str, reference: str) -> Any:
    here = os.getcwd()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but imports one that is missing
        if here in sys.path:
            raise ValueError(f"{reference!r}: there is no module {module!r} here or on the path") from None
    # A console script has its own directory on the path, not the current one. Append that, so that no file in
    # it shadows an installed module, and leave it there, for what the module imports later.
    sys.path.append(here)
    try:
        return _import(module, reference)
    except ValueError:
        sys.path.remove(here)
        raise


def _place(found: Any) -> str:
    file = getattr(found, "__file__", None)
    return str(file or getattr(found, "__name__", found))
