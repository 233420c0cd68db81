"""Saved policies: writing them whole or not at all, and reading them without trusting them.

A file is an uncompressed zip archive of `.npy` arrays, those of the state that are declared as kept
(`core.fields`), and one called `header`: JSON with the format, the policy's name, its sizes and parameters.
"""

import ast
import io
import json
import math
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from shoal.core import fields
from shoal.core.atomic import write_whole
from shoal.core.kernels.bits import WORD, as_set
from shoal.core.statistics import Statistics, make_statistics
from shoal.core.types import AnyArray

FORMAT = 9
"""Version of the files that are written."""
MOST_ARRAYS = 1000
HEADER = "header"
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


def write_atomically(target: Path, content: bytes | memoryview) -> None:
    """Write a file such that a crash leaves the old one, or none, whoever else writes to it."""
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
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise PolicyFileError(f"{path} has format {version!r}; this version reads formats 1 to {FORMAT}")
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
) -> dict[str, AnyArray]:
    """The arrays that a state keeps, each of the shape, type and range declared for it."""
    wanted = {leaf.name: leaf for leaf in fields.leaves(state_class) if leaf.field.role is fields.Role.KEPT}
    if strict and (unknown := sorted(set(arrays) - set(wanted))):
        raise PolicyFileError(f"{path} holds an array {unknown[0]!r}, which its policy does not have")
    for name, leaf in wanted.items():
        if name not in arrays:
            raise PolicyFileError(f"{path} lacks the array {name!r}")
        found, shape = arrays[name], leaf.shape(sizes)
        if leaf.field.count and found.ndim:
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
    return {name: arrays[name] for name in wanted}


def _add_param_norm(header: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Format 1 knew no `param_norm`: its radius was the printed one, which is that of norm 0."""
    if header["policy"] == "bass":
        header["parameters"]["param_norm"] = 0.0


def _add_tails(header: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Formats 1 and 2 knew no tails, what floats lack of the exact sums, nor traces."""
    for prefix in [name.removesuffix("A_inv") for name in arrays if name.endswith(".A_inv")]:
        A, A_inv = arrays[f"{prefix}A"], arrays[f"{prefix}A_inv"]
        n, d = A.shape[:2]
        arrays[f"{prefix}tail"] = np.zeros((n, d * (d + 1) // 2))
        arrays[f"{prefix}traces"] = np.trace([A, A_inv], axis1=2, axis2=3).T.copy()


def _clear_left_clusters(header: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Formats before 4 kept, of clusters that CMLB's agents had left, the statistics of their last member."""
    if header["policy"] != "cmlb":
        return
    labels = arrays["labels"]
    left = np.setdiff1d(np.arange(len(labels)), labels)
    fresh = make_statistics(len(left), header["dim"], header["parameters"]["ridge"])
    for leaf in fields.leaves(Statistics):
        if leaf.field.role is fields.Role.KEPT:
            arrays[f"pool.{leaf.name}"][left] = leaf.get(fresh)


def _add_pool(header: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Formats before 5 knew no late rewards, and of a mixture only members that are the same and stay so."""
    n, d = header["n_agents"], header["dim"]
    square = d * (d + 1) // 2
    arrays["common.pending.counts"] = np.zeros(n, np.int64)
    arrays["common.pending.sums"] = np.zeros((n, square))
    arrays["common.pending.total"] = np.zeros(1, np.int64)
    if header["policy"] != "cluster_mixture":
        return
    header["parameters"] |= {"scatter": 0.0, "drift": False, "ridge_bonus": 0.0}
    learns_noise = header["parameters"].get("noise_scale") is None
    for name in [name for name in arrays if name.startswith("clusters.")]:
        arrays[f"pool.{name}"] = arrays.pop(name)
    arrays["pool.model.noise"] = arrays.pop("noise")
    arrays["pool.members.lent"] = arrays.pop("lent")[None]
    arrays["pool.members.labels"] = arrays.pop("labels")[None]
    arrays["residuals"] = np.maximum(arrays["local.pulls"] - d, 0) * int(learns_noise)
    floats: dict[str, tuple[int, ...]] = {
        "pool.members.raw": (1, 0, square + d),
        "pool.clusters.scale": (n, 2),
        "pool.clusters.pending": (n + 1, square),
        "pool.clusters.recent": (0, square + d),
        "pool.clusters.cusum": (n,),
        "pool.clusters.fresh": (square + d,),
        "drift.ring": (0, 24, d + 2),
        "drift.past": (0, square + d),
        "drift.rate": (2,),
        "votes": (0, 1),
        "tally": (1,),
        "scale": (1,),
    }
    integers: dict[str, tuple[int, ...]] = {
        "pool.model.position": (1,),
        "pool.members.lent_at": (1, n),
        "pool.members.heeded": (1, n),
        "pool.clusters.waiting": (n + 1,),
        "pool.clusters.alarms": (n,),
        "drift.newest": (0,),
        "drift.held": (0,),
        "drift.forgot": (0,),
        "upkeep": (3,),
    }
    arrays.update({name: np.zeros(shape) for name, shape in floats.items()})
    arrays.update({name: np.zeros(shape, np.int64) for name, shape in integers.items()})
    arrays["pool.clusters.resummed"] = np.array([-1, 0])


def _add_total(header: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Formats before 6 did not keep the sum over all agents that BASS has in a crowd."""
    if header["policy"] == "bass":
        total = arrays["blocks"].sum(axis=0)
        arrays["total"] = np.stack([total, np.zeros_like(total)])


def _order_by_agent(header: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Formats before 7 kept tables of all pairs for CLUB, and a mixture's agents apart from their ghosts."""
    if header["policy"] == "cluster_mixture":
        for name in ("raw", "lent", "labels", "lent_at", "heeded"):
            arrays[f"pool.members.{name}"] = arrays[f"pool.members.{name}"].swapaxes(0, 1).copy()
    if header["policy"] == "club":
        connected, times = arrays.pop("connected"), arrays.pop("separation_time")
        first, second = np.nonzero(np.triu(times, 1) > 0)
        order = np.argsort(times[first, second], kind="stable")
        arrays["cuts.pairs"] = np.column_stack([first, second])[order].astype(np.int32)
        arrays["cuts.rounds"] = times[first, second][order]
        arrays["cuts.used"] = np.array([len(order)])
        itself = np.eye(len(connected), dtype=np.bool_)
        blocks = -(-len(connected) // WORD)
        arrays["apart"] = np.array([as_set(row) for row in ~connected & ~itself]).reshape(-1, blocks)


def _add_sharing(header: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Formats before 8 knew only agents that lend and borrow."""
    arrays["common.lends"] = np.ones(header["n_agents"], np.bool_)
    arrays["common.borrows"] = np.ones(header["n_agents"], np.bool_)
    arrays["common.reserved"] = np.zeros(1, np.int64)


def _add_squares(header: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Formats before 9 knew no estimates of the noise in BASS, nor the sums of squares that these take."""
    if header["policy"] == "bass":
        arrays["squares"] = np.zeros(0)


MIGRATIONS: dict[int, Callable[[dict[str, Any], dict[str, AnyArray]], None]] = {
    1: _add_param_norm,
    2: _add_tails,
    3: _clear_left_clusters,
    4: _add_pool,
    5: _add_total,
    6: _order_by_agent,
    7: _add_sharing,
    8: _add_squares,
}
"""From each format to the next, in place. What is no longer saved is left out without further ado."""


def to_json(value: Any) -> Any:
    """A parameter as JSON has it."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def check_sizes(path: Path, contents: Contents) -> None:
    """Refuse sizes that the file cannot have, before anything of these sizes is made."""
    n, d = contents.n_agents, contents.dim
    found = contents.arrays.get("local.A")
    if found is None or found.shape != (n, d, d) or d < 1:
        shape = None if found is None else found.shape
        raise PolicyFileError(f"{path}: n_agents = {n}, dim = {d}, but array 'local.A' has shape {shape}")
