"""Results on disk: one Parquet file per cell, one row per run."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from shoal.core.atomic import write_whole
from shoal.lab.experiments.spec import SCHEMA_VERSION

if TYPE_CHECKING:  # elsewhere where it is used: playing single runs needs no Parquet
    from shoal.core.parquet import pa

CELLS, SPEC, PROVENANCE, LOCK = "cells", "spec.toml", "provenance.json", ".lock"
"""Names in an output directory."""


class ResultsError(ValueError):
    """A directory or file that does not hold the results it should."""


@cache
def columns() -> "pa.Schema":
    """What is known of a run, by name and type."""
    from shoal.core.parquet import pa

    return pa.schema(
        [
            ("environment", pa.string()),
            ("method", pa.string()),
            ("policy", pa.string()),
            ("group", pa.string()),
            ("alpha", pa.float64()),
            ("run", pa.int32()),
            ("seed", pa.int64()),
            ("horizon", pa.int64()),
            ("n_agents", pa.int32()),
            ("dim", pa.int32()),
            ("n_arms", pa.int32()),
            ("gap", pa.float64()),
            ("environment_parameters", pa.string()),
            ("policy_parameters", pa.string()),
            ("final_regret", pa.float64()),
            ("final_f1", pa.float64()),
            ("final_edges", pa.int64()),
            ("communication_cost", pa.int64()),
            ("seconds", pa.float64()),
            ("rounds_per_second", pa.float64()),
            ("curve_rounds", pa.list_(pa.int64())),
            ("curve_regret", pa.list_(pa.float64())),
            ("curve_f1", pa.list_(pa.float64())),
            ("curve_edges", pa.list_(pa.int64())),
            ("first_separation", pa.float64()),
            ("separated_share", pa.float64()),
        ]
    )


def load_runs(directory: str | Path) -> "pa.Table":
    """All finished cells of an output directory as one table, one row per run; see `columns`.

    Raises
    ------
    ResultsError
        If there are none, one is unreadable, or they come from different specs.
    """
    from shoal.core.parquet import pa

    directory = Path(directory)
    paths = cell_files(directory)
    if not paths:
        raise ResultsError(f"{directory}: no results here ({CELLS}/*.parquet)")
    tables = []
    hashes: dict[bytes, Path] = {}
    for path in paths:
        table = read_cell(path)
        tables.append(table.replace_schema_metadata(None))
        hashes.setdefault(table.schema.metadata[b"spec_hash"], path)
    if len(hashes) > 1:
        first, second = list(hashes.values())[:2]
        raise ResultsError(f"{directory}: {first.name} and {second.name} come from different specs")
    return pa.concat_tables(tables)


def cell_files(directory: Path) -> list[Path]:
    """The finished cells' files, in order, without what a killed writer left behind."""
    return sorted((directory / CELLS).glob("*.parquet"))


def write_cell(path: Path, rows: Sequence[Mapping[str, Any]], *, cell_id: str, spec_hash: str) -> None:
    """Write the runs of one cell; the file is complete when this returns."""
    from shoal.core.parquet import pa, pq

    metadata = {"schema_version": str(SCHEMA_VERSION), "spec_hash": spec_hash, "cell": cell_id}
    table = pa.Table.from_pylist(list(rows), schema=columns().with_metadata(metadata))
    # Into memory first: the file appears whole or not at all.
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    write_whole(path, sink.getvalue())


def read_cell(path: Path) -> "pa.Table":
    """One cell's table, verified; its metadata has `schema_version`, `spec_hash` and `cell`."""
    from shoal.core.parquet import pa, pq

    try:
        # By path: if pyarrow's threads release a Python file handle while the interpreter exits, it aborts.
        with pq.ParquetFile(str(path), page_checksum_verification=True) as file:
            table = file.read()
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ResultsError(
            f"{path}: corrupt or truncated ({reason}). Delete it, then run the same command again"
        ) from None
    metadata = table.schema.metadata or {}
    version = metadata.get(b"schema_version", b"none").decode()
    if version != str(SCHEMA_VERSION) or b"spec_hash" not in metadata:
        raise ResultsError(f"{path}: has results of schema {version}; this version reads {SCHEMA_VERSION}")
    if not table.schema.equals(columns()):
        raise ResultsError(f"{path}: does not have the columns of results schema {SCHEMA_VERSION}")
    return table


def remove_leftovers(directory: Path) -> None:
    """Delete half-written files of killed writers. Only for the holder of the directory's lock."""
    for path in directory.rglob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, or raise a `ResultsError` if another process does.

    The operating system releases a dead process's lock.
    """
    try:
        with FileLock(directory / LOCK, timeout=0):
            yield
    except Timeout:
        raise ResultsError(f"{directory}: another process is writing results here") from None
