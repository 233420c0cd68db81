"""Data frames in and out, of whichever library the caller has: pandas, polars, Arrow (by narwhals)."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import narwhals as nw
import numpy as np

from shoal.core import validation

if TYPE_CHECKING:
    from shoal.core.parquet import pa

Library = Literal["pyarrow", "pandas", "polars"]
"""Whose frames `as_frame` makes."""
AT_ONCE = 10_000
"""Rows whose values are Python objects at a time."""

Frame = dict[str, list[Any]] | nw.DataFrame[Any]


def open_frame(name: str, source: Any) -> Frame:
    """A mapping of columns, or a data frame, as `batches` takes it; `name` is what an error calls it."""
    if isinstance(source, Mapping):
        found = {
            str(key): values.tolist() if hasattr(values, "tolist") else list(values)
            for key, values in source.items()
        }
        if (
            len(lengths := {key: len(values) for key, values in found.items()})
            and len({*lengths.values()}) > 1
        ):
            raise ValueError(f"{name} must have columns of one length, got {lengths}")
        return found
    try:
        frame = nw.from_native(source)
    except TypeError:  # not a library that narwhals knows
        if not hasattr(source, "__arrow_c_stream__"):
            wanted = "a path, a mapping of columns or a data frame (pandas, polars, Arrow)"
            raise ValueError(f"{name} must be {wanted}, got {type(source).__name__}") from None
        frame = nw.from_arrow(source, backend="pyarrow")
    except nw.exceptions.DuplicateError:
        names = list(getattr(source, "column_names", source.columns))
        twice = next(column for column in names if names.count(column) > 1)
        raise ValueError(f"{name} has {names.count(twice)} columns {twice!r}") from None
    return frame.collect() if isinstance(frame, nw.LazyFrame) else frame


def names_in(frame: Frame) -> list[str]:
    """The names of a frame's columns."""
    return list(frame) if isinstance(frame, dict) else frame.columns


def batches(frame: Frame, columns: Sequence[str]) -> Iterator[list[list[Any]]]:
    """The values of some columns, a list for each, up to AT_ONCE rows at a time; missing ones are None."""
    n_rows = len(frame[columns[0]])
    for start in range(0, n_rows, AT_ONCE):
        yield [_values(frame[column][start : start + AT_ONCE]) for column in columns]


def _values(column: Any) -> list[Any]:
    if isinstance(column, list):
        return column
    missing = column.is_null().to_list()  # which in pandas is NaN, None or NA
    return [
        None if is_missing else value.tolist() if isinstance(value, np.ndarray) else value
        for value, is_missing in zip(column.to_list(), missing, strict=True)
    ]


def as_frame(table: "pa.Table", library: Library) -> Any:
    """A pyarrow table as a frame of another library, which must be installed."""
    validation.one_of("library", library, get_args(Library))
    if importlib.util.find_spec(library) is None:
        raise ImportError(f"{library} is not installed: pip install {library}, or ask for another library")
    return nw.from_arrow(table, backend=library).to_native()
