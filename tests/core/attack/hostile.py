"""Load mutated files of every policy and use what loads: run as a process of its own, which may die.

Each array gets hostile values, and changes of shape, type and order; so does the header; bytes are flipped,
and the archive says what it does not hold. With a larger scale, all of that, and in more places.

Prints, as JSON, how many files were refused and accepted, and what went wrong otherwise. The last line on
stderr names the file that was being tried when the process died.
"""

import io
import json
import os
import struct
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.core.contracts.test_policies import D, grow, make, play

import shoal
from shoal.core.policies.registry import BUILT_IN

INTEGERS = (-1, -2, 7, 2**31, 2**40, -(2**40), 2**62, 2**63 - 1, -(2**63))
FLOATS = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e-300, 1e30, 1e300, -1e308)
SLOW = 5.0
"""Seconds that no file may take."""


def saved(name: str) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """A file of a policy that has lived: its bytes, header and arrays."""
    policy = make(name, epsilon=0.1)
    play(policy, 90)
    if isinstance(policy, shoal.LivePolicy):
        grow(policy, 2)
        policy.remove_agent(1)
        policy.remove_agent(2, withdraw=True)
        play(policy, 60)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy"
        policy.save(path)
        content = path.read_bytes()
    with np.load(io.BytesIO(content)) as archive:
        arrays = dict(archive)
    return content, json.loads(arrays.pop("header").tobytes()), arrays


def pack(header: Any, arrays: dict[str, Any]) -> bytes:
    """A file with this header (bytes, or what JSON can say) and these arrays."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(text, dtype=np.uint8), **arrays)
    return buffer.getvalue()


def mutated_arrays(
    header: Any, arrays: dict[str, Any], rng: np.random.Generator, scale: int
) -> Iterator[tuple[str, bytes]]:
    """One array of the file changed: an entry, all entries, shape, type, order."""
    for name, array in arrays.items():
        values: tuple[Any, ...] = INTEGERS if array.dtype.kind in "iu" else FLOATS
        if array.dtype.kind == "b":
            values = (2, 255)
        for value in [values[n] for n in rng.permutation(len(values))[: 3 * scale].tolist()]:
            for n in range(scale):
                everywhere = (n + rng.integers(2)) % 2
                changed = array.copy()
                target = changed.view(np.uint8) if array.dtype.kind == "b" else changed
                if not array.size:
                    continue
                where = ... if everywhere else np.unravel_index(rng.integers(array.size), array.shape)
                limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
                if limits is not None and not limits.min <= value <= limits.max:
                    continue
                target[where] = value
                yield f"{name} = {value} {where}", pack(header, arrays | {name: changed})
        shapes = [array[:-1], array[:0], array[None], array.ravel(), np.concatenate([array, array])]
        kinds = [array.astype(kind) for kind in (np.float32, np.int32, np.complex128, np.int64, ">f8", "S8")]
        odd = [*shapes, *kinds, np.asfortranarray(array), np.zeros(()), np.array("x")]
        for n in rng.permutation(len(odd))[: 2 * scale].tolist():
            changed = odd[n]
            label = f"{name} as {changed.dtype}{changed.shape}"
            yield label, pack(header, arrays | {name: changed})
        if array.size > 1:
            yield (
                f"{name} shuffled",
                pack(header, arrays | {name: rng.permutation(array.ravel()).reshape(array.shape)}),
            )
        yield f"{name} missing", pack(header, {key: value for key, value in arrays.items() if key != name})


def mutated_headers(header: dict[str, Any], arrays: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Another header in front of the same arrays."""
    odd: list[Any] = [0, -1, 15000, 2**31, 10**30, 1.5, True, None, "x", [], {"a": [1]}]
    for key in ("format", "policy", "n_agents", "dim", "parameters"):
        for value in odd:
            yield f"header {key} = {value!r:.20}", pack(header | {key: value}, arrays)
    for key in header["parameters"]:
        for value in [-1, 2**40, 1.5, None, "x", [1], 1e308]:
            parameters = header["parameters"] | {key: value}
            yield f"parameter {key} = {value!r:.20}", pack(header | {"parameters": parameters}, arrays)
    text = json.dumps(header)
    for label, content in (
        ("nested", "[" * 100_000),
        ("nested objects", '{"format":' * 50_000),
        ("NaN", text.replace("0.5", "NaN", 1)),
        ("infinite", text.replace("0.5", "1e999", 1)),
        ("unknown parameter", text.replace('"alpha"', '"alfa"')),
        ("empty", ""),
        ("a list", "[1, 2]"),
        ("not UTF-8", "\udcff"),
        ("many digits", text.replace("0.5", "9" * 5000, 1)),
    ):
        yield f"header {label}", pack(content.encode("utf-8", "surrogateescape"), arrays)


@cache
def bomb(method: int) -> bytes:
    """An archive of a few bytes whose header has 128 MB."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method, compresslevel=9) as archive:
        archive.writestr("header.npy", bytes(2**27))
    return content.getvalue()


def mutated_archives(content: bytes, header: Any, arrays: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Archives that do not hold what they say, or too much."""
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield f"bomb {method}", bomb(method)
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as archive:
        with zipfile.ZipFile(io.BytesIO(content)) as original:
            for item in original.infolist():
                archive.writestr(item.filename, original.read(item))
        archive.getinfo("header.npy").filename = "local.A.npy"
    yield "a member twice", twice.getvalue()
    directory = content.rindex(b"PK\x01\x02")
    for offset, width in ((8, 2), (10, 2), (20, 4), (24, 4), (28, 2), (42, 4)):  # flags, method, sizes, place
        for value in (1, 9, 99, 0xFFFF, 2 ** (8 * width) - 1):
            changed = bytearray(content)
            struct.pack_into(
                "<H" if width == 2 else "<I", changed, directory + offset, value % 2 ** (8 * width)
            )
            yield f"directory {offset} = {value}", bytes(changed)
    for shape in ("(9999999999999,)", "(-1,)", "(1.0,)", "('a',)", "(" * 200, "()" * 5, "(2**99,)"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
            data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64)
            for name in ("header", *arrays):
                archive.writestr(f"{name}.npy", data)
        yield f"npy shape {shape:.20}", buffer.getvalue()
    for descr in ("|O", "<f8,<i4", "V99999999", "", "🐟", "[('a','<f8')]"):
        yield f"npy descr {descr}", content.replace(b"'descr': '<f8'", f"'descr': '{descr}'".encode(), 1)


def flipped(content: bytes, rng: np.random.Generator, scale: int) -> Iterator[tuple[str, bytes]]:
    """Bytes changed, and files cut short."""
    for n in range(40 * scale):
        changed = bytearray(content)
        for position in rng.integers(len(content), size=1 + n % 3).tolist():
            changed[position] ^= 1 << int(rng.integers(8))
        yield f"flip {n}", bytes(changed)
    metadata = [n for n in range(len(content) - 1) if content[n : n + 2] == b"PK"]
    for n in range(40 * scale):  # the archive's own structures, where no checksum guards
        changed = bytearray(content)
        position = min(int(rng.choice(metadata)) + int(rng.integers(64)), len(content) - 1)
        changed[position] = int(rng.integers(256))
        yield f"structure {n}", bytes(changed)
    for length in rng.integers(len(content), size=10 * scale).tolist():
        yield f"cut to {length}", content[:length]


def use(policy: Any) -> None:
    """What a user does with a loaded policy."""
    for agent in policy.agents.tolist():
        if not np.isfinite(policy.estimate(agent)).all():
            raise AssertionError("an estimate is not finite")
        policy.neighbors(agent)
    is_live = isinstance(policy, shoal.LivePolicy)
    if not len(policy.agents) == policy.n_agents - 2 * is_live == 9 or policy.dim != D:
        raise AssertionError(f"there are {len(policy.agents)} agents of dimension {policy.dim}")
    policy.explain(*policy.agents[:2])
    play(policy, 40, seed=1)
    if is_live:
        grow(policy, 1)
        policy.remove_agent(int(policy.agents[2]), withdraw=True)
        play(policy, 20, seed=2)
    policy.graph, policy.count_edges()
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder) / "again")
        shoal.load_policy(Path(folder) / "again")


def main(seed: int, scale: int, names: list[str]) -> None:
    """Try every mutation of every policy's file."""
    rng = np.random.default_rng(seed)
    counts, failures = {"refused": 0, "accepted": 0}, []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile"
        for name in names or BUILT_IN:
            content, header, arrays = saved(name)
            path.write_bytes(content)
            use(shoal.load_policy(path))  # compiled now: from here on, slow is wrong
            cases = [
                *mutated_arrays(header, arrays, rng, scale),
                *mutated_headers(header, arrays),
                *mutated_archives(content, header, arrays),
                *flipped(content, rng, scale),
            ]
            for label, data in cases:
                print(f"{name}: {label}", file=sys.stderr, flush=True)
                path.write_bytes(data)
                start = time.process_time()
                try:
                    use(shoal.load_policy(path))
                    counts["accepted"] += 1
                except shoal.PolicyFileError:
                    counts["refused"] += 1
                except Exception as error:
                    failures.append(f"{name}: {label}: {type(error).__name__}: {error}")
                    print("FAILED", failures[-1], file=sys.stderr, flush=True)
                if time.process_time() - start > SLOW:
                    failures.append(f"{name}: {label}: took {time.process_time() - start:.1f} s")
    print(json.dumps({**counts, "failures": failures}))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
