"""Sixteen numbers at once, as one value in compiled code.

A loop over sixteen lanes of arrays is compiled with checks of whether the arrays overlap, and goes through
memory for every intermediate result; a value of sixteen numbers stays in registers. The compiler splits it
into whatever the machine's vectors hold, so nothing here depends on how wide they are. Without compilation a
value is a NumPy array of sixteen, and the same code runs.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending

from shoal.core.jit.compiled import config
from shoal.core.types import Integers, Matrix

types: Any = numba.types
intrinsic: Any = extending.intrinsic
models: Any = extending.models
register_model: Any = extending.register_model

WIDTH = 16
"""Numbers in a value."""
HALF = 8
"""Rows that `transpose` takes at once."""
ALIGNMENT = 8
"""Of arrays in memory: that of a float."""
Lanes = Any
"""A value of sixteen numbers."""
INT, INDEX, FLOAT = ir.IntType(64), ir.IntType(32), ir.DoubleType()
VECTOR, SMALL, WORDS = ir.VectorType(FLOAT, WIDTH), ir.VectorType(FLOAT, HALF), ir.VectorType(INT, 64)


class LanesType(numba.types.Type):  # type: ignore[misc, unused-ignore]  # untyped in some versions
    """Type of a value of sixteen numbers."""

    def __init__(self) -> None:
        super().__init__(name="Lanes16")


lanes = LanesType()


class LanesModel(models.PrimitiveModel):  # type: ignore[misc, unused-ignore]
    """How such a value lies in registers."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


register_model(LanesType)(LanesModel)


def _load(context: Any, builder: Any, kind: Any, array: Any, offset: Any, vector: Any) -> Any:
    value = builder.load(_pointer(context, builder, kind, array, offset, vector))
    value.align = ALIGNMENT
    return value


def _store(context: Any, builder: Any, kind: Any, array: Any, offset: Any, value: Any) -> None:
    stored = builder.store(value, _pointer(context, builder, kind, array, offset, value.type))
    stored.align = ALIGNMENT


def _pointer(context: Any, builder: Any, kind: Any, array: Any, offset: Any, vector: Any) -> Any:
    """Where a vector starts: `offset` entries into a contiguous array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def _operation(plain: Callable[..., Any], result: Any, arguments: tuple[Any, ...], generate: Any) -> Any:
    """A function of values that compiled code generates, or its plain twin where nothing is compiled."""
    if config.DISABLE_JIT:
        return plain

    def typed(context: Any, *given: Any) -> Any:
        kinds = [kind if kind is not None else given[k] for k, kind in enumerate(arguments)]

        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            made = generate(context, builder, signature.args, values)
            return context.get_dummy_value() if made is None else made

        return result(*kinds), code

    function: Any = typed
    function.__name__ = plain.__name__
    function.__doc__ = plain.__doc__
    # Numba asks for the parameters, which a function of any number of arguments does not name.
    known = inspect.signature(plain).parameters.values()
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    function.__signature__ = inspect.Signature([context, *known])
    return intrinsic(function)


def load(array: Matrix, row: int) -> Lanes:
    """Row `row` of a contiguous (n, 16) array."""
    return array[row].copy()


def store(array: Matrix, row: int, value: Lanes) -> None:
    """Write row `row` of a contiguous (n, 16) array."""
    array[row] = value


def load_from(array: Any, offset: int) -> Lanes:
    """Sixteen entries of a contiguous array, from `offset` on, whatever its shape."""
    return array.reshape(-1)[offset : offset + WIDTH].copy()


def store_to(array: Any, offset: int, value: Lanes) -> None:
    """Write sixteen entries of a contiguous array, from `offset` on."""
    array.reshape(-1)[offset : offset + WIDTH] = value


def splat(number: float) -> Lanes:
    """The same number sixteen times."""
    return np.full(WIDTH, number)


def add(a: Lanes, b: Lanes) -> Lanes:
    """a + b."""
    return a + b


def subtract(a: Lanes, b: Lanes) -> Lanes:
    """a − b."""
    return a - b


def multiply(a: Lanes, b: Lanes) -> Lanes:
    """a · b."""
    return a * b


def divide(a: Lanes, b: Lanes) -> Lanes:
    """a / b; infinite or nan where b is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return a / b


def multiply_add(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a · b + c, rounded once where the machine can."""
    return a * b + c


def multiply_take(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """c − a · b, rounded once where the machine can."""
    return c - a * b


def root(a: Lanes) -> Lanes:
    """√a; nan where a is negative."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(a)


def smaller(a: Lanes, b: Lanes) -> Lanes:
    """The smaller of each pair; b where one is nan."""
    return np.where(a < b, a, b)


def larger(a: Lanes, b: Lanes) -> Lanes:
    """The larger of each pair; b where one is nan."""
    return np.where(a > b, a, b)


def transpose(
    rows: Matrix, chosen: Integers, first: int, column: int, out: Matrix, row: int, lane: int
) -> None:
    """Write `rows[chosen[first + m], column + k]` to `out[row + k, lane + m]`, k and m below 8."""
    out[row : row + HALF, lane : lane + HALF] = rows[chosen[first : first + HALF], column : column + HALF].T


def meets(words: Integers, first: int, own: int) -> int:
    """The word whose bit k says whether `words[first + k]` and `own` have a bit in common, k below 64."""
    found = (words[first : first + 64] & np.int64(own)) != 0
    return int(np.packbits(found, bitorder="little").view(np.int64)[0])


def popcount(word: int) -> int:
    """Number of bits that are set."""
    return (int(word) & 0xFFFFFFFFFFFFFFFF).bit_count()


def lowest_bit(word: int) -> int:
    """Position of the lowest bit that is set."""
    word = int(word)
    return (word & -word).bit_length() - 1


def drop_lowest(word: int) -> int:
    """The word without its lowest bit."""
    bits = int(word) & 0xFFFFFFFFFFFFFFFF
    return np.uint64(bits & (bits - 1)).view(np.int64)  # type: ignore[return-value]


def _generate_load(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    offset = builder.mul(values[1], INT(WIDTH))
    return _load(context, builder, kinds[0], values[0], offset, VECTOR)


def _generate_store(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    _store(context, builder, kinds[0], values[0], builder.mul(values[1], INT(WIDTH)), values[2])


def _generate_load_from(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    return _load(context, builder, kinds[0], values[0], values[1], VECTOR)


def _generate_store_to(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    _store(context, builder, kinds[0], values[0], values[1], values[2])


def _generate_splat(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    return _repeat(builder, values[0], VECTOR)


def _repeat(builder: Any, value: Any, vector: Any) -> Any:
    empty = ir.Constant(vector, ir.Undefined)
    once = builder.insert_element(empty, value, INDEX(0))
    return builder.shuffle_vector(
        once, empty, ir.Constant(ir.VectorType(INDEX, vector.count), [0] * vector.count)
    )


def _call(builder: Any, name: str, values: Any) -> Any:
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(values))
    return builder.call(builder.module.declare_intrinsic(f"{name}.v{WIDTH}f64", (), kind), values)


def _generate_multiply_add(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    return _call(builder, "llvm.fmuladd", values)


def _generate_multiply_take(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    return _call(builder, "llvm.fmuladd", [builder.fneg(values[0]), values[1], values[2]])


def _generate_root(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    return _call(builder, "llvm.sqrt", values)


def _binary(name: str) -> Any:
    return lambda context, builder, kinds, values: getattr(builder, name)(*values)


def _choice(relation: str) -> Any:
    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(relation, *values), *values)

    return generate


def _generate_transpose(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    rows, chosen, first, column, out, row, lane = values
    width = builder.extract_value(context.make_array(kinds[0])(context, builder, rows).shape, 1)
    indices = context.make_array(kinds[1])(context, builder, chosen).data
    x = []
    for m in range(HALF):
        index = builder.load(builder.gep(indices, [builder.add(first, INT(m))]))
        offset = builder.add(builder.mul(index, width), column)
        x.append(_load(context, builder, kinds[0], rows, offset, SMALL))
    for half in (1, 2, 4):  # swap the off-diagonal blocks of this size
        y = list(x)
        low = [k if k & half == 0 else (k ^ half) + HALF for k in range(HALF)]
        high = [(k | half) if k & half == 0 else k + HALF for k in range(HALF)]
        for m in range(HALF):
            if m & half == 0:
                pair = x[m], x[m | half]
                y[m], y[m | half] = (
                    builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(INDEX, HALF), order))
                    for order in (low, high)
                )
        x = y
    for k in range(HALF):
        offset = builder.add(builder.mul(builder.add(row, INT(k)), INT(WIDTH)), lane)
        _store(context, builder, kinds[4], out, offset, x[k])


def _generate_meets(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    words = _load(context, builder, kinds[0], values[0], values[1], WORDS)
    common = builder.and_(words, _repeat(builder, values[2], WORDS))
    return builder.bitcast(builder.icmp_unsigned("!=", common, ir.Constant(WORDS, [0] * 64)), INT)


_I, _F, _ONE = types.intp, types.float64, (lanes,)
if not config.DISABLE_JIT:
    load = _operation(load, lanes, (None, _I), _generate_load)
    store = _operation(store, types.none, (None, _I, lanes), _generate_store)
    load_from = _operation(load_from, lanes, (None, _I), _generate_load_from)
    store_to = _operation(store_to, types.none, (None, _I, lanes), _generate_store_to)
    splat = _operation(splat, lanes, (_F,), _generate_splat)
    add = _operation(add, lanes, 2 * _ONE, _binary("fadd"))
    subtract = _operation(subtract, lanes, 2 * _ONE, _binary("fsub"))
    multiply = _operation(multiply, lanes, 2 * _ONE, _binary("fmul"))
    divide = _operation(divide, lanes, 2 * _ONE, _binary("fdiv"))
    multiply_add = _operation(multiply_add, lanes, 3 * _ONE, _generate_multiply_add)
    multiply_take = _operation(multiply_take, lanes, 3 * _ONE, _generate_multiply_take)
    root = _operation(root, lanes, _ONE, _generate_root)
    smaller = _operation(smaller, lanes, 2 * _ONE, _choice("<"))
    larger = _operation(larger, lanes, 2 * _ONE, _choice(">"))
    transpose = _operation(transpose, types.none, (None, None, _I, _I, None, _I, _I), _generate_transpose)
    meets = _operation(meets, types.int64, (None, _I, types.int64), _generate_meets)
    popcount = _operation(popcount, types.int64, (types.int64,), lambda c, b, k, values: b.ctpop(values[0]))
    lowest_bit = _operation(
        lowest_bit, types.int64, (types.int64,), lambda c, b, k, values: b.cttz(values[0], ir.IntType(1)(0))
    )
    drop_lowest = _operation(
        drop_lowest,
        types.int64,
        (types.int64,),
        lambda c, b, k, values: b.and_(values[0], b.sub(values[0], INT(1))),
    )
