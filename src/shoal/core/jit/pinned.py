"""A state that compiled code finds by its address.

To hand a named tuple of thirty arrays to compiled code, Numba inspects each of them at each call, which takes
longer than the round itself. A pinned state is inspected once: what compiled code needs to know of its arrays
(address, shape, strides) goes into a buffer of integers, and a call passes the buffer's address.

Compiled functions pass that address on to each other and read a field where they use it. As a value, a state
is some hundreds of numbers, which every function takes apart and every call puts together again: compiling
that took longer than compiling the arithmetic.

`_words` writes the buffer and `_layout` says where each field begins in it. Nothing in the buffer says what
kind of thing comes next, because the Numba type of the state does.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core.typing import templates
from numba.extending import models, register_model, typeof_impl
from numba.np import arrayobj

from shoal.core.jit.compiled import config
from shoal.core.types import AnyArray

typeof: Any = numba.typeof
types: Any = numba.types
unbox: Any = extending.unbox
NativeValue: Any = extending.NativeValue
AttributeTemplate: Any = templates.AttributeTemplate
infer_getattr: Any = templates.infer_getattr
lower_getattr_generic: Any = extending.lower_getattr_generic
populate_array: Any = arrayobj.populate_array
WORD: Any = ir.IntType(64)
BYTES = 8
"""Bytes of a word."""


class Pinned:
    """A state and the buffer that describes it. Arrays of the state may change, but not move.

    Its attributes are the fields of the state; named tuples among them are pinned too, in the same buffer.
    """

    __slots__ = ("_numba_type_", "address", "state", "words")

    def __init__(self, state: Any, kind: "PinnedType") -> None:
        words = np.array(list(_words(state)), dtype=np.int64)
        self._set(state, kind, words, words.ctypes.data)

    def _set(self, state: Any, kind: "PinnedType", words: AnyArray, address: int) -> None:
        self.state = state  # a reference to each array: none is freed while its address is in use
        self.words = words
        self.address = address
        self._numba_type_ = kind

    def stretched(self, state: Any, places: list[AnyArray], lengths: list[int]) -> "Pinned":
        """Pin a state whose arrays stand where those of this one do, and of which some are longer.

        `places[k]` are the places, among `words`, of the lengths that are now `lengths[k]`.
        """
        other, words = Pinned.__new__(Pinned), self.words.copy()  # never written once compiled code has it
        for place, length in zip(places, lengths, strict=True):
            words[place] = length
        other._set(state, self._numba_type_, words, words.ctypes.data)
        return other

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.state, name)
        if not isinstance(value, tuple):
            return value
        position, kind = self._numba_type_.layout[name]
        inner = Pinned.__new__(Pinned)
        inner._set(value, kind, self.words, self.address + BYTES * position)
        return inner

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self._numba_type_.layout)

    def __reduce__(self) -> tuple[Any, ...]:
        return pin, (self.state,)  # the arrays of a copy are elsewhere: describe them anew


def pin(state: Any, like: Any = None) -> Any:
    """Pin a state, or return it as it is: without compilation, or with a field of a kind not known here.

    `like` is what this function made of a state whose arrays were of the same types, if there was one: to
    find out the types takes longer than all the rest.
    """
    if config.DISABLE_JIT:
        return state
    if isinstance(like, Pinned) and type(like.state) is type(state):
        return Pinned(state, like._numba_type_)
    kind = typeof(state)
    return Pinned(state, PinnedType(kind)) if _is_plain(kind) else state


def unpin(pinned: Any) -> Any:
    """The state again, pinned or not."""
    return pinned.state if isinstance(pinned, Pinned) else pinned


class PinnedType(numba.types.Type):  # type: ignore[misc, unused-ignore]  # untyped in some versions
    """Type of a pinned state: known by the type of the state, all its fields included."""

    def __init__(self, kind: Any) -> None:
        self.types = (kind,)
        self.instance_class = kind.instance_class
        self.layout = _layout(kind)
        # Short, because Numba names every compiled function after the types of its arguments, many times.
        digest = hashlib.sha256(str(kind).encode()).hexdigest()[:16]
        super().__init__(name=f"Pinned({kind.instance_class.__name__}, {digest})")

    @property
    def key(self) -> Any:
        return self.instance_class, self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return PinnedType, self.types


def _layout(kind: Any) -> dict[str, tuple[int, Any]]:
    """Where each field of a type of named tuples begins in the words, and what compiled code sees there."""
    layout, position = {}, 0
    for name, field in zip(kind.fields, kind.types, strict=True):
        is_tuple = isinstance(field, types.BaseTuple)
        layout[name] = position, PinnedType(field) if is_tuple else field
        position += _count_words(field)
    return layout


def _count_words(kind: Any) -> int:
    if isinstance(kind, types.BaseTuple):
        return sum(_count_words(field) for field in kind.types)
    return 2 + 2 * kind.ndim if isinstance(kind, types.Array) else 1


# To compiled code a pinned state is a pointer without further structure.
register_model(PinnedType)(models.OpaqueModel)


@typeof_impl.register(Pinned)
def _typeof(value: Pinned, context: Any) -> Any:
    return value._numba_type_


def _address(kind: Any, value: Any, c: Any) -> Any:
    """Generate what each call runs: take the attribute `address`, an int, as a pointer."""
    address = c.pyapi.object_getattr_string(value, "address")
    pointer = c.pyapi.long_as_voidptr(address)
    c.pyapi.decref(address)
    return NativeValue(pointer)


unbox(PinnedType)(_address)


class _Fields(AttributeTemplate):  # type: ignore[misc, unused-ignore]  # untyped in some versions
    """Tells Numba the type of `state.field`."""

    key = PinnedType

    def generic_resolve(self, kind: PinnedType, name: str) -> Any:
        return kind.layout[name][1] if name in kind.layout else None


infer_getattr(_Fields)


def _field(context: Any, builder: Any, kind: PinnedType, value: Any, name: str) -> Any:
    """Generate what `state.field` runs: the mirror image of `_words`."""
    position, field = kind.layout[name]
    words = builder.bitcast(value, WORD.as_pointer())
    unchanging = builder.module.add_metadata([])

    def word(offset: int) -> Any:
        found = builder.load(builder.gep(words, [WORD(position + offset)]))
        # Nobody writes to the words while compiled code runs. Told so, LLVM need not read them again after
        # each write to an array, which for all it knows might be to the words.
        found.set_metadata("invariant.load", unchanging)
        return found

    if isinstance(field, PinnedType):
        return builder.bitcast(builder.gep(words, [WORD(position)]), value.type)
    if isinstance(field, types.Array):
        array, ndim = context.make_array(field)(context, builder), field.ndim
        data = builder.inttoptr(word(0), array.data.type)
        shape = [word(2 + axis) for axis in range(ndim)]
        strides = [word(2 + ndim + axis) for axis in range(ndim)]
        # Without meminfo Numba neither counts references to the array nor frees it: Python owns it.
        populate_array(array, data, shape, strides, word(1), meminfo=None)
        return array._getvalue()
    if isinstance(field, types.Float):
        return builder.bitcast(word(0), ir.DoubleType())
    # What is left of what `_is_plain` lets through: booleans, which are one bit wide, and int64.
    return builder.trunc(word(0), ir.IntType(1)) if isinstance(field, types.Boolean) else word(0)


lower_getattr_generic(PinnedType)(_field)


def _is_plain(kind: Any) -> bool:
    """Whether a type is one that `_words` can take apart and `_field` can read."""
    if isinstance(kind, types.BaseNamedTuple):
        return all(_is_plain(field) for field in kind.types)
    return isinstance(kind, types.Array) or kind in (types.float64, types.int64, types.boolean)


def _words(value: Any) -> Iterator[int]:
    """The integers that describe a state: address, itemsize, shape and strides of arrays, and numbers."""
    if isinstance(value, tuple):
        for field in value:
            yield from _words(field)
    elif isinstance(value, np.ndarray):
        yield value.__array_interface__["data"][0]  # quicker than value.ctypes.data
        yield value.itemsize
        yield from value.shape
        yield from value.strides
    elif isinstance(value, float):
        yield int(np.float64(value).view(np.int64))  # its bits
    else:
        yield int(value)


def places_of_lengths(state: Any) -> list[int]:
    """Where in `words` the length of each field of a state stands, in order; −1 where it has none."""
    places, position = [], 0
    for value in _flat(state):
        is_array = isinstance(value, np.ndarray) and value.ndim > 0
        places.append(position + 2 if is_array else -1)
        position += 2 + 2 * value.ndim if isinstance(value, np.ndarray) else 1
    return places


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for field in value:
            yield from _flat(field)
    else:
        yield value
