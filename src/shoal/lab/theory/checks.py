"""Arguments and results of the theory's functions: arrays or plain numbers, checked."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.core.validation import show

FloatArray: TypeAlias = NDArray[np.float64]
Values: TypeAlias = float | FloatArray
Reading: TypeAlias = Literal["printed", "derived"]


def values(array: ArrayLike) -> Values:
    """An array, or a plain float for an array without axes."""
    result = np.asarray(array, dtype=np.float64)
    return float(result) if result.ndim == 0 else result


def finite(name: str, value: ArrayLike) -> FloatArray:
    return checked(name, value, np.isfinite, "finite")


def positive(name: str, value: ArrayLike) -> FloatArray:
    return checked(name, value, lambda v: np.isfinite(v) & (v > 0), "finite and above 0")


def nonnegative(name: str, value: ArrayLike) -> FloatArray:
    return checked(name, value, lambda v: np.isfinite(v) & (v >= 0), "finite and at least 0")


def count(name: str, value: ArrayLike) -> FloatArray:
    return checked(
        name, value, lambda v: np.isfinite(v) & (v >= 1) & (v == np.floor(v)), "a whole number of at least 1"
    )


def fraction(name: str, value: ArrayLike) -> FloatArray:
    return checked(name, value, lambda v: (v > 0) & (v <= 1), "in (0, 1]")


def delta(value: ArrayLike) -> FloatArray:
    return checked("delta", value, lambda v: (v > 0) & (v < 1), "in (0, 1)")


def checked(
    name: str, value: ArrayLike, accept: Callable[[FloatArray], NDArray[np.bool_]], right: str
) -> FloatArray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={show(value)} is not numeric; it must be {right}") from None
    if not np.all(accept(array)):
        raise ValueError(f"{name}={show_array(array)} is out of range; it must be {right}")
    return array


def show_array(array: FloatArray) -> str:
    return np.array2string(array, threshold=6, precision=6)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; it must be one of {', '.join(map(repr, allowed))}")
