"""Saved policies: writing them whole or not at all, and reading them without trusting them.

A file is an uncompressed zip archive of `.npy` arrays, those of the state that are declared as kept
(`core.fields`), and one called `header`: JSON with the format, the policy's name, its sizes and parameters.
Of an array with many rows of zeros only the others are written, and one more array says which they are. Of
symmetric matrices the lower triangles are written.
"""

import ast
import io
import json
import math
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from shoal.core import fields
from shoal.core.atomic import write_whole
from shoal.core.types import AnyArray, Integers, Matrix

FORMAT = 1
"""Version of the files that are written."""
MOST_ARRAYS = 1000
SIZED = "local.A"
"""The array whose shape says the number of agents and the dimension; all of its rows are always there."""
MOST_TIMES = 256
"""How much larger than that one an array with rows left out may be: a short file gets no more memory."""
SMALL = 2**16
"""Bytes below which an array is written in full."""
FULL = 0.9
"""Share of rows that are not zero from which on all of them are written."""
HEADER = "header"
ROWS = "@rows"
"""What the name of the array ends with that says which rows of another are in the file."""
NEEDED = {"policy": str, "n_agents": int, "dim": int, "parameters": dict}


class PolicyFileError(ValueError):
    """A file that is not, or is no longer, a policy that this version can load.

    Examples
    --------
    >>> import shoal, tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     try:
    ...         shoal.load_policy(file.name)
    ...     except shoal.PolicyFileError:
    ...         print("not a policy")
    not a policy
    """


class Thinned(NamedTuple):
    """The rows of an array, along its last axis, that are not zero; in C order."""

    rows: Integers
    values: Matrix

    def put_into(self, array: AnyArray) -> None:
        """Write them into an array of zeros."""
        array.reshape(-1, array.shape[-1])[self.rows] = self.values


class Folded(NamedTuple):
    """The lower triangles of symmetric matrices, row after row."""

    values: Matrix

    def put_into(self, array: AnyArray) -> None:
        """Write them into an array of matrices, on both sides of the diagonal."""
        for row, first in _triangle(array.shape[-1]):
            part = self.values[:, first : first + row + 1]
            array[:, row, : row + 1] = part
            array[:, : row + 1, row] = part


class Contents(NamedTuple):
    """What a file holds, migrated to the present format; the arrays are not checked yet."""

    policy: str
    n_agents: int
    dim: int
    parameters: dict[str, Any]
    arrays: dict[str, AnyArray]
    strict: bool
    """Whether arrays that the policy does not have are an error."""


def pack(header: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> memoryview:
    """The bytes of a file."""
    buffer = io.BytesIO()
    text = json.dumps({"format": FORMAT, **header}, allow_nan=False).encode()
    np.savez(buffer, allow_pickle=False, **{HEADER: np.frombuffer(text, dtype=np.uint8)}, **arrays)
    return buffer.getbuffer()


def shortened(leaf: fields.Leaf, array: AnyArray, sizes: fields.Sizes) -> dict[str, AnyArray]:
    """The arrays of a file that hold this one: without its rows of zeros, if it has many, or folded."""
    if leaf.field.symmetric and _is_symmetric(array):
        d = array.shape[-1]
        folded = np.empty((len(array), _folded(d)))
        for row, first in _triangle(d):
            folded[:, first : first + row + 1] = array[:, row, : row + 1]
        return {leaf.name: folded}
    if can_be_thinned(leaf) and array.nbytes >= SMALL and _is_small(array.shape, sizes):
        flat = array.reshape(-1, array.shape[-1])
        rows = np.flatnonzero(flat.view(np.uint64).any(axis=1))  # by their bits: −0 is not left out
        if len(rows) < FULL * len(flat):
            return {leaf.name: flat[rows], leaf.name + ROWS: rows}
    return {leaf.name: array}


def can_be_thinned(leaf: fields.Leaf) -> bool:
    """Whether a file may leave out rows of an array, as far as its declaration says."""
    field = leaf.field
    is_plain = field.fill == 0 and field.dtype == np.float64 and not field.count
    return is_plain and len(field.shape) > 1 and not (leaf.is_table or field.symmetric)


def _triangle(d: int) -> Iterator[tuple[int, int]]:
    """Each row of a (d, d) matrix, and where its part of the triangle begins."""
    return ((row, _folded(row)) for row in range(d))


def _folded(d: int) -> int:
    """Entries of the lower triangle of a (d, d) matrix."""
    return d * (d + 1) // 2


def _is_symmetric(matrices: AnyArray) -> bool:
    """Whether each is its own transpose to the bit, one column at a time: that takes little memory."""
    bits = matrices.view(np.uint64)
    return all(np.array_equal(bits[:, k], bits[:, :, k]) for k in range(bits.shape[-1]))


def _is_small(shape: tuple[int, ...], sizes: fields.Sizes) -> bool:
    return math.prod(shape) <= MOST_TIMES * sizes["agents"] * sizes["dim"] ** 2


def write_atomically(target: Path, content: bytes | memoryview) -> None:
    """Write a file such that a crash leaves the old one, or none, even if others write to it."""
    if target.exists() and not target.is_file():
        raise ValueError(f"path must name a file, got {target}, which is something else")
    write_whole(target, content)


def read(path: Path) -> Contents:
    """Read a file whole, or say why it cannot be read."""
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):  # reading a pipe or device may never end
        raise PolicyFileError(f"{path} is not a file")
    return parse(path, path.read_bytes())


def parse(path: Path, content: bytes) -> Contents:
    """What the bytes of a file hold; `path` is what errors call it."""
    try:
        header, arrays = _unpack(content)
        version = header["format"]
    except Exception as error:  # bytes from anywhere: whatever they do to the parsers, the file is at fault
        reason = str(error) or type(error).__name__
        raise PolicyFileError(f"{path} is not a readable policy file: {reason}") from error
    if type(version) is not int or (version != FORMAT and version not in MIGRATIONS):
        newer = ", which a newer version wrote" if type(version) is int and version > FORMAT else ""
        known = " and ".join(map(str, [*sorted(MIGRATIONS), FORMAT]))
        raise PolicyFileError(f"{path} has format {version!r}{newer}; this version of shoal reads {known}")
    for key, kind in NEEDED.items():
        if key not in header:
            raise PolicyFileError(f"{path} lacks {key!r} in its header")
        if type(header[key]) is not kind:
            raise PolicyFileError(f"{path}: {key!r} in its header is {header[key]!r:.100}")
    try:
        for earlier in range(version, FORMAT):
            MIGRATIONS[earlier](header, arrays)
    except Exception as error:  # nothing of the file has been checked yet
        raise PolicyFileError(f"{path} of format {version} cannot be brought to {FORMAT}: {error}") from error
    sizes = header["policy"], header["n_agents"], header["dim"]
    return Contents(*sizes, header["parameters"], arrays, version == FORMAT)


def _unpack(content: bytes) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    arrays: dict[str, AnyArray] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        # Uncompressed members that do not overlap cannot take more memory than the file itself.
        if len(members) > MOST_ARRAYS or sum(item.file_size for item in members) > len(content):
            raise ValueError("it holds more than its length allows")
        for item in members:
            name = item.filename.removesuffix(".npy")
            if item.compress_type != zipfile.ZIP_STORED or name in arrays:
                raise ValueError(f"member {name!r} is compressed, or there twice")
            arrays[name] = _array(archive.read(item))
    header = json.loads(arrays.pop(HEADER).tobytes())
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return header, arrays


def _array(data: bytes) -> AnyArray:
    """An array from the bytes of a `.npy` file, in C order and in this machine's byte order."""
    handle = io.BytesIO(data)
    version = npy.read_magic(handle)
    if version != (1, 0):  # versions 2 and 3 are for headers that ours never have
        raise ValueError(f"an array is of version {version} of the npy format")
    length = int.from_bytes(handle.read(2), "little")
    description = ast.literal_eval(handle.read(length).decode("latin1").strip())
    dtype, shape, is_fortran = (description[key] for key in ("descr", "shape", "fortran_order"))
    kind = np.dtype(str(dtype))
    if kind.hasobject or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"an array is described as {description!r:.200}")
    if math.prod(shape) * kind.itemsize != len(data) - handle.tell():
        raise ValueError(f"an array of shape {shape} has {len(data) - handle.tell()} bytes")
    array = np.frombuffer(data, dtype=kind, offset=handle.tell())
    shaped = array.reshape(shape, order="F" if is_fortran else "C")
    return np.array(shaped, dtype=kind.newbyteorder("="), order="C")  # aligned, writable


def check_arrays(
    path: Path, state_class: type, arrays: Mapping[str, AnyArray], sizes: fields.Sizes, *, strict: bool
) -> dict[str, AnyArray | Thinned | Folded]:
    """The arrays that a state keeps, each of the shape, type and range declared for it."""
    wanted = {leaf.name: leaf for leaf in fields.leaves(state_class) if leaf.field.role is fields.Role.KEPT}
    folded = {
        name
        for name, leaf in wanted.items()
        if leaf.field.symmetric and name in arrays and arrays[name].ndim == 2
    }
    thin = {name for name, leaf in wanted.items() if can_be_thinned(leaf) and name + ROWS in arrays}
    if strict and (unknown := sorted(set(arrays) - set(wanted) - {name + ROWS for name in thin})):
        raise PolicyFileError(f"{path} holds an array {unknown[0]!r}, which its policy does not have")
    for name, leaf in wanted.items():
        if name not in arrays:
            raise PolicyFileError(f"{path} lacks the array {name!r}")
        found, shape = arrays[name], leaf.shape(sizes)
        if name in thin:
            if not _is_small(shape, sizes):
                raise PolicyFileError(f"{path}: array {name!r}, of shape {shape}, must be there in full")
            shape = _check_rows(path, name + ROWS, arrays[name + ROWS], shape)
        elif name in folded:
            shape = shape[0], _folded(shape[1])
        elif leaf.field.count and found.ndim:
            shape = (len(found), *shape[1:])
        if found.shape != shape or found.dtype != leaf.field.dtype:
            raise PolicyFileError(
                f"{path}: array {name!r} is {found.dtype}{found.shape}, expected {leaf.field.dtype}{shape}"
            )
    for name, leaf in wanted.items():
        if trouble := fields.problem(leaf, arrays[name], sizes):
            raise PolicyFileError(f"{path}: array {name!r} {trouble}")
        if leaf.field.count:
            beside = ".".join((*leaf.path[:-1], leaf.field.count))
            if int(arrays[beside].item()) != len(arrays[name]):
                raise PolicyFileError(
                    f"{path}: {beside} is {arrays[beside].item()}, but {name!r} has {len(arrays[name])} rows"
                )
    return {
        **{name: arrays[name] for name in wanted},
        **{name: Thinned(arrays[name + ROWS], arrays[name]) for name in thin},
        **{name: Folded(arrays[name]) for name in folded},
    }


def _check_rows(path: Path, name: str, rows: AnyArray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Check which rows of an array of this shape are there; the shape that they have."""
    count = math.prod(shape[:-1])
    if rows.ndim != 1 or rows.dtype != np.int64:
        raise PolicyFileError(f"{path}: array {name!r} is {rows.dtype}{rows.shape}, expected int64 in a row")
    if len(rows) and not (rows[0] >= 0 and rows[-1] < count and (np.diff(rows) > 0).all()):
        raise PolicyFileError(f"{path}: array {name!r} does not name rows below {count} in increasing order")
    return len(rows), shape[-1]


MIGRATIONS: dict[int, Callable[[dict[str, Any], dict[str, AnyArray]], None]] = {}
"""From each earlier format to the next, changing header and arrays in place.

There is none before format 1. Arrays that are no longer saved may stay: they are ignored.
"""


def to_json(value: Any) -> Any:
    """A parameter as JSON has it."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def check_sizes(path: Path, contents: Contents) -> None:
    """Refuse sizes that the file cannot have, before anything of these sizes is made."""
    n, d = contents.n_agents, contents.dim
    found, inner = contents.arrays.get(SIZED), d + (contents.parameters.get("rewards") == "binary")
    if found is None or found.shape not in ((n, inner, inner), (n, _folded(inner))) or d < 1:
        shape = None if found is None else found.shape
        raise PolicyFileError(f"{path}: n_agents = {n}, dim = {d}, but array {SIZED!r} has shape {shape}")
