"""The parameters of the policies: each declared once, with its bounds, in a frozen struct.

    gamma: Annotated[float, Meta(gt=0.0, description="Scale of the ellipsoids.")] = 2.0

From this follow the signature of the policy's class, the checks of what it is given, its `repr`, what specs
and saved files may say, and the tables of docs and command line.
"""

import inspect
import textwrap
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo, fields

from shoal.core import validation
from shoal.core.fields import declared_parameters
from shoal.core.validation import LARGEST, SMALLEST

Kind = TypeVar("Kind", bound="Parameters")


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """What every policy takes, as keyword arguments."""

    alpha: Annotated[float, Meta(ge=0.0, le=LARGEST, description="Width of the confidence bonus.")] = 0.6
    ridge: Annotated[
        float, Meta(ge=SMALLEST, le=LARGEST, description="Regularisation λ of every design matrix.")
    ] = 1.0
    epsilon: Annotated[
        float, Meta(ge=0.0, le=1.0, description="Probability of playing a uniformly drawn arm instead.")
    ] = 0.0
    seed: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Seed of the policy's own randomness.")
    ] = None


class Exploring(Parameters, frozen=True, kw_only=True):
    """What policies take that choose by `shoal.core.policy.exploring`."""

    exploration: Annotated[
        Literal["ucb", "sample"],
        Meta(description="Upper confidence bounds, or a draw from N(θ̂, α² A⁻¹) (Thompson sampling)."),
    ] = "ucb"


Rewards = Annotated[
    Literal["real", "binary"],
    Meta(description='Any numbers; or 0 and 1, of which the logit is linear in the arm ("binary": clicks).'),
]
"""Parameter `rewards` of the policies that learn clicks."""


def extended(kind: type[Parameters], owner: Any) -> type[Parameters]:
    """The parameters of a class of policies: those it inherits, and those that its state declares."""
    more = [each for each in declared_parameters(owner.State) if each[0] not in kind.__struct_fields__]
    if not more:
        return kind
    name, module = f"{owner.__name__}Parameters", owner.__module__
    made: Any = msgspec.defstruct(name, more, bases=(kind,), module=module, frozen=True, kw_only=True)
    return made  # type: ignore[no-any-return]


def check(kind: type[Kind], owner: str, given: Mapping[str, Any]) -> Kind:
    """The parameters that `given` says, or an error that names the one that is wrong."""
    known = {field.name: field for field in fields(kind)}
    for name in given:
        if name not in known:
            raise TypeError(f"{owner} has no parameter {name!r}; {validation.suggestion(name, known)}")
    missing = [repr(name) for name, field in known.items() if field.required and name not in given]
    if missing:
        raise TypeError(f"{owner} needs {', '.join(missing)}")
    return kind(**{name: check_one(known[name], value) for name, value in given.items()})


def check_one(field: FieldInfo, value: Any) -> Any:
    """A value of one parameter, as the struct keeps it."""
    kind, meta = _unwrap(field.type)
    if get_origin(kind) in (Union, types.UnionType):
        if value is None and types.NoneType in get_args(kind):
            return None
        kind, meta = _unwrap(next(option for option in get_args(kind) if option is not types.NoneType))
        if kind is int:
            return validation.seed_or_none(field.name, value)
    if get_origin(kind) is Literal:
        return validation.one_of(field.name, value, get_args(kind))
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{field.name} must be True or False, got {validation.show(value)}")
        return value
    if kind is int:
        return validation.integer(
            field.name, value, low=meta.ge if meta else None, high=meta.le if meta else None
        )
    if kind is float:
        low, high = (meta.gt, meta.lt) if meta else (None, None)
        bounds = {} if meta is None else {"low": _first(low, meta.ge), "high": _first(high, meta.le)}
        return validation.number(
            field.name,
            value,
            open_low=low is not None,
            open_high=high is not None,
            **{key: bound for key, bound in bounds.items() if bound is not None},
        )
    return value


def described(kind: type[Parameters], docstring: str, given: Mapping[str, str]) -> str:
    """A class's docstring with a section on its parameters, before its examples and notes."""
    lines = ["    Parameters", "    ----------"]
    lines += ["    n_agents : int", "        Number of agents."]
    lines += ["    dim : int", "        Dimension of the arms."]
    for field in fields(kind):
        meta = _unwrap(field.type)[1]
        shown = "" if field.required else f", default {field.default!r}"
        lines += [f"    {field.name} : {_words(field.type)}{shown}"]
        lines += (
            textwrap.wrap(meta.description or "", 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
            if meta
            else []
        )
    for name, meaning in given.items():
        lines += [f"    {name} : array, optional", f"        {meaning}"]
    section = "\n".join(lines) + "\n"
    for heading in ("    Examples\n", "    Notes\n"):
        before, found, after = docstring.partition(heading)
        if found:
            return f"{before}{section}\n{found}{after}"
    return f"{docstring.rstrip()}\n\n{section}    "


def _words(kind: Any) -> str:
    """A type with its bounds, in the words of a docstring."""
    inner, meta = _unwrap(kind)
    if get_origin(inner) is Literal:
        return "{" + ", ".join(map(repr, get_args(inner))) + "}"
    if get_origin(inner) in (Union, types.UnionType):
        return " or ".join(
            "None" if option is types.NoneType else _words(option) for option in get_args(inner)
        )
    return "sequence" if inner is Any else f"{inner.__name__}{_bounds(meta)}"


def _bounds(meta: Meta | None) -> str:
    """Bounds in words; those that only keep squares and quotients finite are left out."""
    if meta is None:
        return ""
    low, high = meta.ge, meta.le
    words = [f"> {meta.gt:g}"] if meta.gt is not None else []
    words += ["> 0" if low == SMALLEST else f"≥ {low:g}"] if low is not None else []
    words += [f"< {meta.lt:g}"] if meta.lt is not None else []
    words += [f"≤ {high:g}"] if high is not None and high != LARGEST else []
    return " " + " and ".join(words) if words else ""


def signature(kind: type[Parameters], given: Mapping[str, str]) -> inspect.Signature:
    """Signature of a policy's class: `(n_agents, dim, *, …)`."""
    first = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=int)
        for name in ("n_agents", "dim")
    ]
    required_first = sorted(fields(kind), key=lambda field: not field.required)
    return inspect.Signature(
        [
            *first,
            *(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if field.required else field.default,
                    annotation=_unwrap(field.type)[0],
                )
                for field in required_first
            ),
            *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in given),
        ]
    )


def _unwrap(hint: Any) -> tuple[Any, Meta | None]:
    if get_origin(hint) is not Annotated:
        return hint, None
    return hint.__origin__, next((mark for mark in hint.__metadata__ if isinstance(mark, Meta)), None)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
