"""Downloads, the disk cache of prepared data, and errors for damaged files."""

import contextlib
import csv
import functools
import gzip
import hashlib
import importlib
import io
import json
import os
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import platformdirs

from shoal.core.atomic import write_whole
from shoal.core.types import AnyArray

PathLike = str | os.PathLike[str]

MOVIELENS_ADDRESS = "https://files.grouplens.org/datasets/movielens/"
MOVIELENS_SHA256 = {
    "ml-latest-small": "696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
    "ml-100k": "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
    "ml-1m": "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
    "ml-20m": "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
    "ml-25m": "8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
}
"""SHA-256 of each zip under `MOVIELENS_ADDRESS`."""

CACHE_FORMAT = 1
"""Part of every cache key; increase it when what is computed or stored changes."""


class Cached(NamedTuple):
    """What `cached` returns."""

    arrays: dict[str, AnyArray]
    path: Path
    """Where it is kept."""
    hit: bool
    """Whether it came from the cache."""


class DataUnavailable(ValueError):  # noqa: N818
    """The data, or a package needed to prepare it, is missing; the message says how to get it.

    Examples
    --------
    >>> import shoal
    >>> try:
    ...     world = shoal.LearningToRank("no such file")
    ... except shoal.DataUnavailable:
    ...     print("no data")
    no data
    """


def need(module: str) -> Any:
    """Import a module of the `data` extra, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"{module.partition('.')[0]} is needed for this data: pip install 'shoal[data]'"
        raise DataUnavailable(message) from error


def fetch(name: str, *, cache: PathLike | None = None) -> Path:
    """Download a MovieLens data set, unless it is in the cache, and return the path of its zip.

    Parameters
    ----------
    name : str
        One of the keys of `MOVIELENS_SHA256`.
    cache : path, optional
        Directory to keep it in; see `cache_directory`.

    Raises
    ------
    DataUnavailable
        Without a connection, or if the download does not have the expected checksum.
    """
    if name not in MOVIELENS_SHA256:
        known = ", ".join(map(repr, MOVIELENS_SHA256))
        raise ValueError(f"name must be one of {known}, got {name!r}")
    pooch = need("pooch")
    directory = cache_directory(cache)
    address, path = f"{MOVIELENS_ADDRESS}{name}.zip", directory / f"{name}.zip"
    by_hand = (
        f"download {address} by other means and put it at {path}, "
        "or give the path of the zip or of its unpacked directory (also as SHOAL_MOVIELENS)"
    )
    bar = _Bar() if sys.stderr.isatty() else False
    try:
        pooch.retrieve(
            address,
            known_hash=f"sha256:{MOVIELENS_SHA256[name]}",
            fname=path.name,
            path=directory,
            downloader=pooch.HTTPDownloader(progressbar=bar),
        )
    except OSError as error:
        if path.exists():
            by_hand = f"{path} is there but its checksum is not that of {name}; {by_hand}"
        raise DataUnavailable(
            f"could not download {address}: {by_hand}. What went wrong: {_first_line(error)}"
        ) from error
    except ValueError as error:  # what pooch raises for a wrong checksum
        raise DataUnavailable(
            f"what was downloaded from {address} has a wrong checksum ({_first_line(error)}); "
            f"try again, or {by_hand}"
        ) from error
    return path


def cache_directory(cache: PathLike | None = None) -> Path:
    """`cache`, else the environment variable SHOAL_CACHE, else `shoal` in the user's cache directory."""
    chosen = cache or os.environ.get("SHOAL_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("shoal")


def content_hash(path: PathLike) -> str:
    """SHA-256 of a file's bytes."""
    status = os.stat(path)
    return _hash_file(os.fspath(path), status.st_size, status.st_mtime_ns)


def cached(
    kind: str,
    sources: Sequence[PathLike],
    parameters: Mapping[str, Any],
    compute: Callable[[], dict[str, AnyArray]],
    *,
    check: Callable[[dict[str, AnyArray]], object] = dict,
    cache: PathLike | None = None,
) -> Cached:
    """What `compute` returns, from disk if it was computed before from the same content and parameters.

    Files appear whole or not at all (`core.atomic`). If a file is unusable (it cannot be read, has another
    key, or `check` raises an error on its contents), it is computed again, with a warning.
    """
    parts = [CACHE_FORMAT, kind, [content_hash(source) for source in sources], dict(parameters)]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    path = cache_directory(cache) / f"{kind}-{key[:32]}.npz"
    try:
        if path.is_file():  # reading a pipe would block forever
            arrays = _load(path, key)
            check(arrays)
            return Cached(arrays, path, hit=True)
    except Exception as error:  # parsers raise all kinds of errors on damaged files
        warnings.warn(
            f"{path} is damaged ({_first_line(error)}) and is computed again", RuntimeWarning, stacklevel=2
        )
    arrays = compute()
    try:
        _store(path, key, arrays)
    except OSError as error:
        reason = (error.strerror or str(error)).removeprefix("could not be written: ")
        warnings.warn(f"{path} could not be written: {reason}", RuntimeWarning, stacklevel=2)
    return Cached(arrays, path, hit=False)


@contextlib.contextmanager
def reading_file(path: PathLike) -> Iterator[None]:
    """Turn errors from damaged, truncated or otherwise unreadable files into one that names the file.

    Our own errors about a line are plain ValueErrors and pass through.
    """
    try:
        yield
    except _UNREADABLE as error:
        raise _damaged(path, error) from error


@contextlib.contextmanager
def reading_archive(path: PathLike) -> Iterator[None]:
    """The same for zips and Parquet files, whose parsers raise almost anything.

    Every error counts as damage, so put only calls of those parsers inside.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the file could not be opened, which says nothing about its contents
        raise _damaged(path, error) from error


_UNREADABLE = (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError, csv.Error)


class _Bar:
    """The progress bar interface that pooch expects, drawn with rich."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

        self._progress = Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), transient=True)
        self._task = self._progress.add_task("", total=None)
        self.total = 0

    def update(self, count: int) -> None:
        self._progress.start()
        self._progress.update(self._task, total=self.total or None, advance=count)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()


@functools.lru_cache(maxsize=256)
def _hash_file(path: str, size: int, modified: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(path: PathLike, error: Exception) -> ValueError:
    return ValueError(f"{path}: damaged or incomplete ({_first_line(error)}); get the file again")


def _load(path: Path, key: str) -> dict[str, AnyArray]:
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
        # We never compress, and a compressed file could fill the memory before its key is checked.
        if sum(member.file_size for member in stored.zip.infolist()) > os.fstat(file.fileno()).st_size:
            raise ValueError("it holds more than its size")
        arrays = {name: stored[name] for name in stored.files}
    if str(arrays.pop("key")) != key:
        raise ValueError("its key is another one")
    return arrays


def _store(path: Path, key: str, arrays: Mapping[str, AnyArray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, key=np.array(key), **arrays)  # type: ignore[arg-type]
    write_whole(path, content.getbuffer())


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
