"""Checks of arguments. Each error names the argument, its value and what would be valid."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from shoal.core.types import Matrix, Vector

LARGEST = 1e30
"""Larger numbers are refused: their squares and products could overflow in the statistics."""

SMALLEST = 1e-30
"""Smaller scales (of the ridge, the noise, the test) are refused for the same reason."""
LARGEST_SCALE = 1e18
"""Arms with a larger squared length, in units of the ridge, are refused: rounding would distort estimates."""
BAD_SCALE = 1e6
"""Arms with a larger squared length, in units of the ridge, cause a warning: extended precision is slower."""


def integer(name: str, value: Any, *, low: float | None = None, high: float | None = None) -> int:
    """An integer from `low` to `high`, both included; None for no bound."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or (low is not None and value < low) or (high is not None and value > high):
        bounds = [f"of at least {low:g}"] if low is not None else []
        bounds += [f"at most {high:g}"] if high is not None else []
        raise ValueError(
            f"{name} must be {' '.join(['an integer', ' and '.join(bounds)]).strip()}, got {show(value)}"
        )
    return int(value)


def positive_int(name: str, value: Any) -> int:
    """An integer of at least one."""
    return integer(name, value, low=1)


def natural(name: str, value: Any) -> int:
    """An integer of at least zero."""
    return integer(name, value, low=0)


def number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """A finite number between `low` and `high`; each end is included unless it is open."""
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {show(value)}") from None
    inside = (result > low if open_low else result >= low) and (
        result < high if open_high else result <= high
    )
    if not (math.isfinite(result) and inside):
        left, right = (
            "(" if open_low or low == -math.inf else "[",
            ")" if open_high or high == math.inf else "]",
        )
        interval = f"{left}{low:g}, {high:g}{right}"
        raise ValueError(f"{name} must be a finite number in {interval}, got {show(value)}")
    return result


def show(value: Any) -> str:
    """A value for an error message, truncated if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return f"an integer of {value.bit_length()} bits"
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text):,} characters)"


def suggestion(given: str, known: Iterable[str]) -> str:
    """What may have been meant instead of an unknown name, as the end of a message.

    Examples
    --------
    >>> suggestion("bas", ["independent", "bass"])
    "did you mean 'bass'?"
    >>> suggestion("x", ["independent", "bass"])
    'choose from independent, bass'
    """
    names = list(known)
    if close := difflib.get_close_matches(given.lower(), [name.lower() for name in names], n=1, cutoff=0.7):
        return f"did you mean {next(name for name in names if name.lower() == close[0])!r}?"
    return f"choose from {', '.join(names)}" if names else "there are none"


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {show(value)}")
    return str(value)


def seed_or_none(name: str, value: Any) -> int | None:
    """A non-negative integer, or None for a random seed."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name} must be a non-negative integer or None, got {show(value)}")
    return int(value)


def vector(name: str, value: Any, length: int) -> Vector:
    """A finite float64 vector of the given length."""
    array = _floats(name, value)
    if array.shape != (length,):
        raise ValueError(f"{name} must have shape ({length},), got {array.shape}")
    return _finite(name, array)


def matrix(name: str, value: Any, *, columns: int | None = None) -> Matrix:
    """A finite, non-empty float64 matrix with `columns` columns; None allows any number."""
    array = _floats(name, value)
    if array.ndim != 2 or array.size == 0 or array.shape[1] != (columns or array.shape[1]):
        wanted = "(n, d) with n and d" if columns is None else f"(n, {columns}) with n"
        raise ValueError(f"{name} must have shape {wanted} of at least 1, got {array.shape}")
    return _finite(name, array)


def features(name: str, value: Any, n: int, dim: int | None) -> Matrix:
    """Features of `n` agents, (n, dim) or, if that is None, of any number; NaN and None are missing."""
    array = _floats(name, value)
    if array.shape != (n, array.shape[-1] if dim is None and array.ndim else dim):
        wanted = "any number of features" if dim is None else f"agent_dim = {dim}"
        raise ValueError(f"{name} must have shape ({n}, p) with {wanted}, got {array.shape}")
    _finite(name, np.nan_to_num(array, nan=0.0, posinf=np.inf, neginf=-np.inf))
    return array


def scale(name: str, arms: Matrix, ridge: float) -> str:
    """Refuse arms (…, d) far too long for the ridge; return a warning, or "" if their scale is fine."""
    size = float(np.max(np.sum(arms * arms, axis=-1)))
    if size <= BAD_SCALE * ridge:
        return ""
    found = f"{name} with a squared length of {size:.3g}, {size / ridge:.2g} times ridge={ridge:g}"
    advice = "scale the features (to lengths of about 1) or raise ridge"
    if size > LARGEST_SCALE * ridge:
        raise ValueError(
            f"{name} must have a squared length of at most {LARGEST_SCALE:g} times ridge, "
            f"got {found}; {advice}"
        )
    return f"got {found}: the results are right, but rounds take longer, and ridge has no effect; {advice}"


def positive_definite(name: str, value: Any, dim: int) -> Matrix:
    """A finite, symmetric, positive-definite (dim, dim) matrix."""
    array = _floats(name, value)
    if array.shape != (dim, dim):
        raise ValueError(f"{name} must have shape ({dim}, {dim}), got {array.shape}")
    array = _finite(name, array)
    asymmetry = float(np.abs(array - array.T).max())
    if asymmetry > 1e-8 * float(np.abs(array).max()):
        raise ValueError(f"{name} must be symmetric, got a largest asymmetry of {asymmetry:g}")
    array = (array + array.T) / 2.0
    try:
        np.linalg.cholesky(array)
    except np.linalg.LinAlgError:
        raise ValueError(f"{name} must be positive definite, got a matrix that is not") from None
    return array


def _floats(name: str, value: Any) -> Matrix:
    try:
        return np.ascontiguousarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be an array of numbers, got {show(value)}") from None


def _finite(name: str, array: Matrix) -> Matrix:
    finite = np.abs(array) <= LARGEST
    if not finite.all():
        where = tuple(int(index) for index in np.argwhere(~finite)[0])
        wanted = f"at most {LARGEST:g} in size" if np.isfinite(array[where]) else "finite"
        raise ValueError(f"{name} must be {wanted}, got {array[where]} at index {where}")
    return array
