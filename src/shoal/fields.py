"""What each field of a state holds, declared beside it.

    labels: Annotated[Integers, kept(AGENTS, below=CLUSTERS)]

says that `labels` has one entry per agent, each the index of a cluster, and that it is saved. From these
declarations follow how a state is allocated, how much memory it takes, what of it is saved, what a loaded
file must look like before compiled code may see it, and how it grows.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from shoal.types import AnyArray

COUNT: dict[str, float] = {"low": 0, "below": 2.0**62}
"""Bounds of a count: adding to it cannot overflow."""
Sizes = Mapping[str, int]
"""What the names of sizes stand for."""


class Role(Enum):
    """What becomes of a field when a policy is saved."""

    KEPT = "saved"
    DERIVED = "not saved: computed from what is"
    SCRATCH = "not saved: nothing in it outlives a call"
    SETTING = "not saved: a number that follows from the policy's parameters"


@dataclass(frozen=True)
class Size:
    """A length that depends on the policy: `times` the size of that name, plus `plus`."""

    name: str
    times: int = 1
    plus: int = 0

    def __add__(self, other: int) -> "Size":
        return replace(self, plus=self.plus + other)

    def __rmul__(self, other: int) -> "Size":
        return Size(self.name, self.times * other, self.plus * other)

    def of(self, sizes: Sizes) -> int:
        return self.times * sizes[self.name] + self.plus


AGENTS = Size("agents")
BLOCKS = Size("blocks")
"""Agents over 64, rounded up."""
DIM = Size("dim")
TRIANGLE = Size("triangle")
"""Entries of the lower triangle of a (d, d) matrix."""
PACKED = Size("packed")
"""The triangle and a vector."""
CLUSTERS = Size("clusters")
ROWS = Size("rows")
"""Rows of statistics: of agents or of clusters, as the field that holds them says with `rows`."""


@dataclass(frozen=True)
class Field:
    """Declaration of one array, or of one number (then it has no shape and is not saved)."""

    role: Role
    shape: tuple[Size | int, ...] = ()
    low: float = -math.inf
    """Least value."""
    below: Size | float = math.inf
    """What every value is less than."""
    fill: float = 0
    """Value in a fresh row."""
    nan: bool = False
    """Whether NaN is a value."""
    own: bool = False
    """Whether entry i (of each row) may be −1 − i: alone."""
    dtype: Any = None
    """Type of the entries; by default as the annotation says."""
    count: str = ""
    """For logs: the field beside it that says how many of its rows are in use. There may be room for more."""
    used: str = ""
    """For tables whose rows are handed out one by one: the field beside it that says how many were."""


@dataclass(frozen=True)
class Rows:
    """Says what the rows of a nested tuple stand for."""

    size: Size


def kept(*shape: Size | int, **more: Any) -> Field:
    """An array that is saved, and checked when loaded."""
    return Field(Role.KEPT, shape, **more)


def derived(*shape: Size | int, **more: Any) -> Field:
    """An array that is not saved, since it follows from others; the policy's `_derive` computes it."""
    return Field(Role.DERIVED, shape, **more)


def scratch(*shape: Size | int, **more: Any) -> Field:
    """Work space."""
    return Field(Role.SCRATCH, shape, **more)


def log(*row: Size | int, count: str, **more: Any) -> Field:
    """An array that is saved and grows with what happens, not with the number of agents."""
    return Field(Role.KEPT, (0, *row), count=count, **more)


def setting() -> Field:
    """A number that follows from the parameters."""
    return Field(Role.SETTING)


def rows(size: Size) -> Rows:
    """Say that the rows of this nested tuple are agents, or clusters."""
    return Rows(size)


class Leaf(NamedTuple):
    """A declared field of a state, with the state's nested tuples flattened."""

    path: tuple[str, ...]
    field: Field
    names: Mapping[str, Size]
    """What sizes are called here, where that is not their own name."""

    @property
    def name(self) -> str:
        """As in a saved file, e.g. "local.A"."""
        return ".".join(self.path)

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape, given what the sizes are."""
        return tuple(self._length(item, sizes) for item in self.field.shape)

    def below(self, sizes: Sizes) -> float:
        """What every value is less than."""
        below = self.field.below
        return self._length(below, sizes) if isinstance(below, Size) else below

    def _length(self, item: Size | int, sizes: Sizes) -> int:
        if isinstance(item, int):
            return item
        return item.of({item.name: self.names[item.name].of(sizes)} if item.name in self.names else sizes)

    def get(self, state: Any) -> Any:
        """The field's value in a state."""
        for key in self.path:
            state = getattr(state, key)
        return state

    def used(self, state: Any) -> Any:
        """The field's value, of a log what is in use of it."""
        value = self.get(state)
        if not self.field.count:
            return value
        beside = Leaf((*self.path[:-1], self.field.count), self.field, self.names)
        return value[: int(beside.get(state)[0])]


@cache
def leaves(state_class: Any) -> tuple[Leaf, ...]:
    """All declared fields of a class of states; raises TypeError where a field has no declaration."""
    return tuple(_walk(state_class, (), {}))


def _walk(state_class: type, path: tuple[str, ...], names: Mapping[str, Size]) -> Iterator[Leaf]:
    for key, hint in get_type_hints(state_class, include_extras=True).items():
        kind, marks = (
            (hint, ()) if get_origin(hint) is not Annotated else (hint.__origin__, hint.__metadata__)
        )
        if isinstance(kind, type) and issubclass(kind, tuple):
            inner = next((mark.size for mark in marks if isinstance(mark, Rows)), None)
            yield from _walk(kind, (*path, key), names if inner is None else {**names, "rows": inner})
            continue
        found = [mark for mark in marks if isinstance(mark, Field)]
        if len(found) != 1:
            raise TypeError(
                f"field {'.'.join((*path, key))!r} of {state_class.__name__} must have one declaration, "
                "such as Annotated[Vector, kept(AGENTS)]; see shoal.fields"
            )
        field = found[0] if found[0].dtype is not None else replace(found[0], dtype=_dtype(kind))
        yield Leaf((*path, key), replace(field, dtype=np.dtype(field.dtype)), names)


def _dtype(kind: Any) -> Any:
    """Type of the entries that an annotation such as `NDArray[np.float64]` names, or of a plain number."""
    if kind in (float, int, bool):
        return kind
    scalar = get_args(get_args(kind)[1])[0]
    if scalar is Any:
        raise TypeError(f"{kind} does not say the type of its entries: declare dtype=…")
    return scalar


def nbytes(state_class: type, sizes: Sizes) -> int:
    """Memory of a fresh state, before it is made."""
    return sum(
        leaf.field.dtype.itemsize * math.prod(leaf.shape(sizes))
        for leaf in leaves(state_class)
        if leaf.field.role is not Role.SETTING
    )


def make(state_class: Any, sizes: Sizes, settings: Mapping[str, float | int | bool]) -> Any:
    """A fresh state: every array filled as declared, every setting (by its name) as given."""
    values: dict[str, Any] = {}
    for leaf in leaves(state_class):
        field = leaf.field
        if field.role is Role.SETTING:
            values[leaf.name] = field.dtype.type(settings[leaf.path[-1]]).item()
        else:
            values[leaf.name] = _filled(leaf, sizes)
    return assemble(state_class, values)


def _filled(leaf: Leaf, sizes: Sizes) -> AnyArray:
    if leaf.field.fill == 0:  # memory that nobody touches is not taken from the machine
        return np.zeros(leaf.shape(sizes), leaf.field.dtype)
    return np.full(leaf.shape(sizes), leaf.field.fill, leaf.field.dtype)


def grow(state: Any, sizes: Sizes) -> Any:
    """A state of the given, larger sizes: the old one in the leading corner of a fresh one."""
    values: dict[str, Any] = {}
    for leaf in leaves(_class(state)):
        old, field = leaf.get(state), leaf.field
        if field.role is Role.SETTING or field.count:
            values[leaf.name] = old
            continue
        new = _filled(leaf, sizes)
        if field.role is not Role.SCRATCH:
            corner = [slice(0, min(pair)) for pair in zip(old.shape, new.shape, strict=True)]
            if field.used:
                corner[0] = slice(
                    0, int(Leaf((*leaf.path[:-1], field.used), field, leaf.names).get(state)[0])
                )
            new[tuple(corner)] = old[tuple(corner)]
        values[leaf.name] = new
    return assemble(type(state), values)


def flatten(state: Any) -> dict[str, Any]:
    """The fields of a state by name, e.g. "local.A"."""
    return {leaf.name: leaf.get(state) for leaf in leaves(_class(state))}


def assemble(state_class: Any, values: Mapping[str, Any]) -> Any:
    """A state from its fields by name, e.g. "local.A"."""
    tree: dict[str, Any] = {}
    for leaf in leaves(state_class):
        branch = tree
        for key in leaf.path[:-1]:
            branch = branch.setdefault(key, {})
        branch[leaf.path[-1]] = values[leaf.name]
    return _build(state_class, tree)


def _build(state_class: Any, tree: Mapping[str, Any]) -> Any:
    hints = get_type_hints(state_class)
    return state_class(
        **{
            key: _build(hints[key], value) if isinstance(value, dict) else value
            for key, value in tree.items()
        }
    )


def problem(leaf: Leaf, array: AnyArray, sizes: Sizes) -> str:
    """What is wrong with the contents of an array, given as a phrase; "" if nothing is."""
    if array.size == 0:
        return ""
    if array.dtype.kind == "b":  # one byte each: compiled code counts with them
        largest = int(array.view(np.uint8).max())
        return f"holds the byte {largest} as a truth value" if largest > 1 else ""
    low, below = leaf.field.low, leaf.below(sizes)
    if leaf.field.own:
        array = np.where(array == -1 - np.arange(array.shape[-1]), 0, array)
    least, greatest = array.min(), array.max()
    if array.dtype.kind == "f":
        if leaf.field.nan:
            least, greatest = np.nanmin(array, initial=0.0), np.nanmax(array, initial=0.0)
        if not (np.isfinite(least) and np.isfinite(greatest)):
            return f"holds {least if not np.isfinite(least) else greatest}"
    if least < low:
        return f"holds {least}, which is less than {low:g}"
    if greatest >= below:
        return f"holds {greatest}, which is not less than {below:g}"
    return ""


def _class(state: Any) -> Any:
    return type(state)
