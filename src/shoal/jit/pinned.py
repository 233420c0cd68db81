"""A state that compiled code finds by its address.

To hand a named tuple of thirty arrays to compiled code, Numba inspects each of them at each call, which takes
longer than the round itself. A pinned state is inspected once: what compiled code needs to know of its arrays
(address, shape, strides) goes into a buffer of integers, and a call passes the buffer's address.

`_words` writes that buffer and `_read` generates the code that reads it; the two walk the state in the same
order, and neither stores what kind of thing comes next, because the Numba type of the state says so.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.extending import intrinsic, models, overload, register_model, typeof_impl
from numba.np import arrayobj

from shoal.jit.compiled import config
from shoal.types import AnyArray

typeof: Any = numba.typeof
types: Any = numba.types
unbox: Any = extending.unbox
NativeValue: Any = extending.NativeValue
populate_array: Any = arrayobj.populate_array
WORD: Any = ir.IntType(64)


class Pinned:
    """A state and the buffer that describes it. Arrays of the state may change, but not move."""

    __slots__ = ("_numba_type_", "address", "state", "words")

    def __init__(self, state: Any, kind: "PinnedType") -> None:
        self.state = state  # a reference to each array: none is freed while its address is in use
        self.words = np.array(list(_words(state)), dtype=np.int64)
        self.address = self.words.ctypes.data
        self._numba_type_ = kind

    def stretched(self, state: Any, places: list[AnyArray], lengths: list[int]) -> "Pinned":
        """Pin a state whose arrays stand where those of this one do, and of which some are longer.

        `places[k]` are the places, among `words`, of the lengths that are now `lengths[k]`.
        """
        other = Pinned.__new__(Pinned)
        other.state, other.words, other._numba_type_ = state, self.words.copy(), self._numba_type_
        for place, length in zip(places, lengths, strict=True):
            other.words[place] = length
        other.address = other.words.ctypes.data
        return other

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
    """The state again; for compiled code and plain code, pinned or not."""
    return pinned.state if isinstance(pinned, Pinned) else pinned


class PinnedType(numba.types.Type):  # type: ignore[misc, unused-ignore]  # untyped in some versions
    """Type of a pinned state: known by the type of the state, all its fields included."""

    def __init__(self, kind: Any) -> None:
        self.types = (kind,)
        super().__init__(name=f"Pinned({kind})")

    @property
    def key(self) -> Any:
        return self.types


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


@overload(unpin)
def _overload_unpin(pinned: Any) -> Any:
    is_pinned = isinstance(pinned, PinnedType)  # known while compiling, so that one branch below is left out

    def implementation(pinned: Any) -> Any:
        return _load(pinned) if is_pinned else pinned

    return implementation


def _read(typing_context: Any, pinned: Any) -> Any:
    (kind,) = pinned.types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = builder.bitcast(arguments[0], WORD.as_pointer())
        position = itertools.count()  # counts while code is generated: each load has a fixed offset

        def word() -> Any:
            return builder.load(builder.gep(words, [WORD(next(position))]))

        def read(kind: Any) -> Any:
            """The mirror image of `_words`."""
            if isinstance(kind, types.BaseTuple):
                return context.make_tuple(builder, kind, [read(field) for field in kind.types])
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder)
                data = builder.inttoptr(word(), array.data.type)
                itemsize = word()
                shape, strides = ([word() for _ in range(kind.ndim)] for _ in range(2))
                # Without meminfo Numba neither counts references to the array nor frees it: Python owns it.
                populate_array(array, data, shape, strides, itemsize, meminfo=None)
                return array._getvalue()
            if isinstance(kind, types.Float):
                return builder.bitcast(word(), ir.DoubleType())
            # What is left of what `_is_plain` lets through: booleans, which are one bit wide, and int64.
            return builder.trunc(word(), ir.IntType(1)) if isinstance(kind, types.Boolean) else word()

        return read(kind)

    return kind(pinned), generate


_load: Any = intrinsic(_read)


def _is_plain(kind: Any) -> bool:
    """Whether a type is one that `_words` and `_load` can take apart and put together."""
    if isinstance(kind, types.BaseTuple):
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
