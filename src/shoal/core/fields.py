"""What each field of a state holds, declared beside it.

    labels: Annotated[Integers, kept(AGENTS, below=CLUSTERS)]

says that `labels` has one entry per agent, each the index of a cluster, and that it is saved. From these
declarations follow how a state is allocated, how much memory it takes, what of it is saved, what a loaded
file must look like before compiled code may see it, and how it grows.
"""

import contextlib
import math
import mmap
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from shoal.core.types import AnyArray

COUNT: dict[str, float] = {"low": 0, "below": 2.0**62}
"""Bounds of a count: adding to it cannot overflow."""
Sizes = Mapping[str, int]
"""What the names of sizes stand for."""
SPACIOUS = 2**26
"""Bytes from which on an array with a row for each agent takes memory in small pages."""


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
    grows: bool = True
    """Whether it may change when agents are added."""

    def __add__(self, other: int) -> "Size":
        return replace(self, plus=self.plus + other)

    def __rmul__(self, other: int) -> "Size":
        return Size(self.name, self.times * other, self.plus * other, self.grows)

    def of(self, sizes: Sizes) -> int:
        return self.times * sizes[self.name] + self.plus


AGENTS = Size("agents")
BLOCKS = Size("blocks")
"""Agents over 64, rounded up."""
DIM = Size("dim", grows=False)
TRIANGLE = Size("triangle", grows=False)
"""Entries of the lower triangle of a (d, d) matrix."""
PACKED = Size("packed", grows=False)
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
    """Whether entries of row i may be −1 − i: alone."""
    symmetric: bool = False
    """Whether rows are symmetric matrices, of which a file needs half."""
    dtype: Any = None
    """Type of the entries; by default as the annotation says."""
    count: str = ""
    """For logs: the field beside it that says how many of its rows are in use. There may be room for more."""
    used: str = ""
    """For tables whose rows are handed out one by one: the field beside it that says how many were."""
    default: Any = None
    """For settings: that of the parameter of this name; None if the class declares its parameters itself."""


@dataclass(frozen=True)
class Rows:
    """Says what the rows of a nested tuple stand for."""

    size: Size
    is_scratch: bool = False
    """Whether nothing in them outlives a call."""


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


def setting(default: Any = None) -> Field:
    """A number that follows from the parameters.

    With a default it makes a parameter of its name, with the bounds that a `msgspec.Meta` beside it says:

        patience: Annotated[int, setting(100), Meta(ge=0, description="Samples until …")]
    """
    return Field(Role.SETTING, default=default)


def rows(size: Size | int) -> Rows:
    """Say what the rows of this nested tuple are: agents, clusters, or so many."""
    return Rows(size if isinstance(size, Size) else Size("agents", times=0, plus=size, grows=False))


def scratch_rows(size: int) -> Rows:
    """So many rows of a nested tuple that are work space, whatever its own declarations say."""
    return replace(rows(size), is_scratch=True)


def declared_parameters(state_class: Any) -> list[tuple[str, Any, Any]]:
    """Name, type with its bounds, and default of each parameter that the settings of a state declare."""
    found = []
    for name, hint in get_type_hints(state_class, include_extras=True).items():
        marks = hint.__metadata__ if get_origin(hint) is Annotated else ()
        for field in marks:
            if isinstance(field, Field) and field.default is not None:
                bounds = tuple(mark for mark in marks if not isinstance(mark, Field))
                kind = Annotated[(hint.__origin__, *bounds)] if bounds else hint.__origin__
                found.append((name, kind, field.default))
    return found


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

    def nbytes(self, sizes: Sizes) -> int:
        """Memory of the field, before it is made."""
        return (
            0 if self.field.role is Role.SETTING else self.field.dtype.itemsize * math.prod(self.shape(sizes))
        )

    def below(self, sizes: Sizes) -> float:
        """What every value is less than."""
        below = self.field.below
        return self._length(below, sizes) if isinstance(below, Size) else below

    def _length(self, item: Size | int, sizes: Sizes) -> int:
        if isinstance(item, int):
            return item
        return item.of({item.name: self.names[item.name].of(sizes)} if item.name in self.names else sizes)

    @property
    def is_table(self) -> bool:
        """Whether an axis other than the first may grow."""
        return any(isinstance(size, Size) and size.grows for size in self.field.shape[1:])

    @property
    def lead(self) -> Size | None:
        """The size that the first axis has, where that may grow."""
        first = self.field.shape[0] if self.field.shape and not self.field.count else 0
        if isinstance(first, int) or not first.grows:
            return None
        named = self.names.get(first.name, first)
        return replace(named, plus=first.plus) if named.grows else None

    def get(self, state: Any) -> Any:
        """The field's value in a state."""
        for key in self.path:
            state = getattr(state, key)
        return state

    def used(self, state: Any, sizes: Sizes) -> Any:
        """The field's value, of a log or a table with room for more what is in use of it."""
        value = self.get(state)
        if not self.field.count:
            return value[tuple(map(slice, self.shape(sizes)))] if self.field.shape else value
        beside = Leaf((*self.path[:-1], self.field.count), self.field, self.names)
        return value[: int(beside.get(state)[0])]


def leaves(state_class: Any) -> tuple[Leaf, ...]:
    """All declared fields of a class of states; raises TypeError where a field has no declaration."""
    return _leaves(state_class)


@cache
def _leaves(state_class: Any) -> tuple[Leaf, ...]:
    return tuple(_walk(state_class, (), {}))


def _walk(state_class: type, path: tuple[str, ...], names: Mapping[str, Size]) -> Iterator[Leaf]:
    for key, hint in get_type_hints(state_class, include_extras=True).items():
        kind, marks = (
            (hint, ()) if get_origin(hint) is not Annotated else (hint.__origin__, hint.__metadata__)
        )
        if isinstance(kind, type) and issubclass(kind, tuple):
            inner = next((mark for mark in marks if isinstance(mark, Rows)), None)
            known = names if inner is None else {**names, "rows": inner.size}
            for leaf in _walk(kind, (*path, key), known):
                is_work = inner is not None and inner.is_scratch
                yield leaf._replace(field=replace(leaf.field, role=Role.SCRATCH)) if is_work else leaf
            continue
        found = [mark for mark in marks if isinstance(mark, Field)]
        if len(found) != 1:
            raise TypeError(
                f"field {'.'.join((*path, key))!r} of {state_class.__name__} must have one declaration, "
                "such as Annotated[Vector, kept(AGENTS)]; see shoal.core.fields"
            )
        field = found[0] if found[0].dtype is not None else replace(found[0], dtype=_dtype(kind))
        yield Leaf((*path, key), replace(field, dtype=np.dtype(field.dtype)), names)


def _dtype(kind: Any) -> Any:
    """Type of the entries that an annotation such as `NDArray[np.float64]` names, or of a plain number."""
    if kind in (float, int, bool):
        return kind
    scalar = kind
    while inside := get_args(
        scalar
    ):  # NDArray is an alias of its own since NumPy 2.5, so it is one level less
        scalar = inside[-1]
    if scalar is Any:
        raise TypeError(f"{kind} does not say the type of its entries: declare dtype=…")
    return scalar


def nbytes(state_class: type, sizes: Sizes) -> int:
    """Memory of a fresh state, before it is made."""
    return sum(leaf.nbytes(sizes) for leaf in leaves(state_class))


def make(state_class: Any, sizes: Sizes, settings: Mapping[str, float | int | bool]) -> Any:
    """A fresh state: every array filled as declared, every setting (by its name) as given."""
    return Room(state_class, Foreseen(sizes, sizes), settings).show(sizes)


class Room:
    """The arrays of a state, with room for more rows than are in use.

    Arrays are as long as was foreseen when they were made; a state shows of each the rows in use, which move
    only when there is no room left for more. Axes other than the first are not cut to what is in use: rows of
    a table have to stay where they are. Memory that nobody has touched is not taken from the machine.
    """

    def __init__(
        self, state_class: Any, foreseen: "Foreseen", settings: Mapping[str, float | int | bool]
    ) -> None:
        self.state_class = state_class
        self._same: dict[int, Any] = {}
        self.least: Sizes = foreseen.least(state_class)
        self.known: Sizes = self.least  # there is surely room for these
        self.values: list[Any] = [
            leaf.field.dtype.type(settings[leaf.path[-1]]).item()
            if leaf.field.role is Role.SETTING
            else _blank(leaf, foreseen.of(leaf))
            for leaf in leaves(state_class)
        ]

    @classmethod
    def of(cls, state: Any) -> "Room":
        """The room of a state that has no more than it uses."""
        room = cls.__new__(cls)
        room.state_class, room.least, room.known, room._same = type(state), {}, {}, {}
        room.values = list(flatten(state).values())
        return room

    def show(self, sizes: Sizes) -> Any:
        """The state of the given sizes."""
        lengths = self.lengths(sizes)
        values = [
            value if lead < 0 else value[: lengths[lead]]
            for value, lead in zip(self.values, _plan(self.state_class).leads, strict=True)
        ]
        return _build(_plan(self.state_class).tree, values, self._same)

    def lengths(self, sizes: Sizes) -> list[int]:
        """The different lengths that arrays of a state of the given sizes have, where these may grow."""
        return [size.of(sizes) for size in _plan(self.state_class).sizes]

    def by_length(self, of_fields: list[Any]) -> list[AnyArray]:
        """Group what is given of each field by which of the `lengths` the field has."""
        leads = _plan(self.state_class).leads
        return [
            np.array([item for item, lead in zip(of_fields, leads, strict=True) if lead == n])
            for n in range(max(leads) + 1)
        ]

    def replace(self, values: Mapping[str, Any]) -> None:
        """Put other arrays in the place of some, by name."""
        names = [leaf.name for leaf in leaves(self.state_class)]
        for name, value in values.items():
            self.values[names.index(name)] = value
        self._same = {}

    def take_over(self, other: "Room", sizes: Sizes) -> None:
        """Copy what a state of another class and of the given sizes keeps, as far as this one has it."""
        old = {
            leaf.name: (leaf, value)
            for leaf, value in zip(leaves(other.state_class), other.values, strict=True)
        }
        for n, leaf in enumerate(leaves(self.state_class)):
            if leaf.name in old and leaf.field.role is Role.KEPT:
                before, value = old[leaf.name]
                if leaf.field.count:
                    self.values[n] = value
                    continue
                corner = tuple(map(slice, before.shape(sizes)))
                self.values[n][corner] = value[corner]
        self._same = {}

    def is_enough(self, sizes: Sizes) -> bool:
        """Whether there is room for a state of the given sizes."""
        if self.known and all(map(operator.le, sizes.values(), self.known.values())):
            return True
        if any(self._lacks(leaf, value, sizes) for leaf, value in self._arrays()):
            return False
        if self.least and not any(self._lacks(leaf, value, self.least) for leaf, value in self._arrays()):
            self.known = self.least
        return True

    def enlarge(self, old: Sizes, new: Sizes, foreseen: "Foreseen", *, ahead: Sizes) -> None:
        """Make room for `new` sizes: arrays that have too little become as long as is `foreseen`.

        Besides, one array that would not have enough for the sizes `ahead` is enlarged already, so that not
        all have to be in one call.
        """
        values = list(self.values)  # replaced all together: memory may run out on the way
        wanted = list(ahead.values())
        for n, (leaf, value) in enumerate(zip(leaves(self.state_class), self.values, strict=True)):
            if leaf.field.role is Role.SETTING or leaf.field.count:
                continue
            is_short, is_early = self._lacks(leaf, value, new), self._lacks(leaf, value, ahead)
            if is_short or is_early:
                values[n] = _blank(leaf, foreseen.of(leaf))
                if leaf.field.role is not Role.SCRATCH:
                    corner = tuple(map(slice, map(min, leaf.shape(old), value.shape)))
                    if leaf.field.used:
                        corner = (slice(int(self._beside(leaf, leaf.field.used)[0])), *corner[1:])
                    values[n][corner] = value[corner]
                if not is_short:
                    ahead = new  # one is enough
        self.values, self.known, self._same = values, {}, {}
        if not self.least or any(map(operator.gt, wanted, self.least.values())):
            self.least = foreseen.least(self.state_class)  # else some are still being brought to the last one

    def _beside(self, leaf: Leaf, name: str) -> AnyArray:
        """The array of that name in the same tuple as a field."""
        paths = [other.path for other in leaves(self.state_class)]
        found: AnyArray = self.values[paths.index((*leaf.path[:-1], name))]
        return found

    def _arrays(self) -> Iterator[tuple[Leaf, AnyArray]]:
        for leaf, value in zip(leaves(self.state_class), self.values, strict=True):
            if leaf.field.role is not Role.SETTING and not leaf.field.count:
                yield leaf, value

    @staticmethod
    def _lacks(leaf: Leaf, value: AnyArray, sizes: Sizes) -> bool:
        return any(map(operator.lt, value.shape, leaf.shape(sizes)))


class Foreseen(NamedTuple):
    """Sizes to make room for: of arrays with one axis that grows, and of tables, where both do."""

    rows: Sizes
    tables: Sizes

    def of(self, leaf: Leaf) -> Sizes:
        """Those that concern a field."""
        return self.tables if leaf.is_table else self.rows

    def least(self, state_class: Any) -> Sizes:
        """Those for which all arrays have room."""
        return self.tables if any(leaf.is_table for leaf in leaves(state_class)) else self.rows


def _blank(leaf: Leaf, sizes: Sizes) -> AnyArray:
    shape, field = leaf.shape(sizes), leaf.field
    if field.fill != 0:
        return np.full(shape, field.fill, field.dtype)
    if leaf.nbytes(sizes) >= SPACIOUS and not leaf.is_table and hasattr(mmap, "MADV_NOHUGEPAGE"):
        return _spacious(shape, field.dtype, leaf.nbytes(sizes))
    return np.zeros(shape, field.dtype)


def _spacious(shape: tuple[int, ...], dtype: Any, nbytes: int) -> AnyArray:
    """Zeros of which only what is written to takes memory.

    NumPy asks for huge pages. With those, the first pull of nearly every agent would wait until two megabytes
    have been cleared for it, in each array.
    """
    try:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes:,} bytes cannot be had: {error}") from error
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)


class Layout(NamedTuple):
    """How to show a state of some class."""

    leads: list[int]
    """By which of `sizes` each field is cut; −1: by none."""
    sizes: list[Size]
    tree: Any


@cache
def _plan(state_class: Any) -> Layout:
    sizes: list[Size] = []
    leads: list[int] = []
    for leaf in leaves(state_class):
        lead = leaf.lead
        if lead is not None and lead not in sizes:
            sizes.append(lead)
        leads.append(-1 if lead is None else sizes.index(lead))
    return Layout(leads, sizes, _tree(state_class, leads, 0))


def _tree(state_class: Any, leads: list[int], first: int) -> tuple[Any, list[Any], int, bool]:
    """A class of tuples, the place or tree of each of its fields, where it ends, and whether it grows."""
    fields: list[Any] = []
    place, grows = first, False
    for hint in get_type_hints(state_class).values():
        if isinstance(hint, type) and issubclass(hint, tuple):
            inner = _tree(hint, leads, place)
            fields.append(inner)
            place, grows = inner[2], grows or inner[3]
        else:
            fields.append(place)
            grows = grows or leads[place] >= 0
            place += 1
    return state_class, fields, place, grows


def _build(tree: Any, values: list[Any], same: dict[int, Any]) -> Any:
    """Nested tuples of the values; those in which nothing grows are kept in `same`, by where they end."""
    state_class, places, end, grows = tree
    if not grows and end in same:
        return same[end]
    built = state_class(
        *[values[place] if type(place) is int else _build(place, values, same) for place in places]
    )
    if not grows:
        same[end] = built
    return built


def flatten(state: Any) -> dict[str, Any]:
    """The fields of a state by name, e.g. "local.A"."""
    return {leaf.name: leaf.get(state) for leaf in leaves(type(state))}


def problem(leaf: Leaf, array: AnyArray, sizes: Sizes) -> str:
    """What is wrong with the contents of an array, given as a phrase; "" if nothing is."""
    if array.size == 0:
        return ""
    if array.dtype.kind == "b":  # one byte each: compiled code counts with them
        largest = int(array.view(np.uint8).max())
        return f"holds the byte {largest} as a truth value" if largest > 1 else ""
    low, below = leaf.field.low, leaf.below(sizes)
    if leaf.field.own:
        rows = np.arange(len(array)).reshape(-1, *[1] * (array.ndim - 1))
        array = np.where(array == -1 - rows, 0, array)
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
