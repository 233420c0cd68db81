"""Tells Griffe, which only reads sources, about docstrings and signatures that are made with a class.

A policy's parameters are defined once, in a struct; its docstring and signature are made from that.
"""

import importlib
import inspect
from typing import Any

import griffe


class Described(griffe.Extension):
    """Give policies the docstrings and signatures that Python shows."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Replace what the source says about a policy by what `help` would show."""
        if not cls.path.startswith(("shoal.core.policies.", "shoal.core.policy.", "shoal.lab.rivals.")):
            return
        found = getattr(importlib.import_module(cls.module.path), cls.name, None)
        if found is None or not hasattr(found, "Parameters") or "__signature__" not in vars(found):
            return
        cls.docstring = griffe.Docstring(inspect.cleandoc(found.__doc__ or ""), parent=cls, parser="numpy")
        parameters = [
            griffe.Parameter(
                name,
                kind=getattr(griffe.ParameterKind, parameter.kind.name.lower()),
                default=None if parameter.default is parameter.empty else repr(parameter.default),
            )
            for name, parameter in inspect.signature(found).parameters.items()
        ]
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))
