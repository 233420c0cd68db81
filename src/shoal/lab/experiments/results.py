"""Results on disk: one Parquet file per cell, one row per run.

A cell's file is named by its key, the hash of everything that its numbers depend on (`fingerprint`), so it is
found again however the rest of the grid changes. `grid.json` says which cells belong to the last grid.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from filelock import FileLock, Timeout

from shoal.core.atomic import write_whole
from shoal.lab.experiments.fingerprint import Facts, differences, same_but_code
from shoal.lab.experiments.spec import SCHEMA_VERSION

if TYPE_CHECKING:  # elsewhere where it is used: playing single runs needs no Parquet
    from shoal.core.parquet import pa

CELLS, SPEC, GRID, CODE = "cells", "spec.toml", "grid.json", "code"
PROVENANCE, LOCK = "provenance.json", ".lock"
"""Names in an output directory."""
LONGEST_NAME = 150
"""Characters of a cell's id in the name of its file."""


class ResultsError(ValueError):
    """A directory or file that does not hold the results it should."""


@cache
def columns() -> "pa.Schema":
    """The columns of a run, by name and type."""
    from shoal.core.parquet import pa

    return pa.schema(
        [
            ("environment", pa.string()),
            ("method", pa.string()),
            ("policy", pa.string()),
            ("group", pa.string()),
            ("alpha", pa.float64()),
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
            ("software", pa.string()),
            ("machine", pa.string()),
        ]
    )


class GridCell(msgspec.Struct, frozen=True):
    """A cell of the grid that was run last: its name there, and where its results are."""

    id: str
    environment: str
    method: str
    policy: str
    group: str
    alpha: float
    key: str
    facts: Facts


class Grid(msgspec.Struct, frozen=True):
    """The grid that was run last. Results outside it are kept, but left out of reports."""

    seed: int
    runs: int
    cells: list[GridCell]


class StoredCell(msgspec.Struct, frozen=True):
    """What the file of a cell says about itself."""

    id: str
    """The cell's name when it was first played."""
    key: str
    facts: Facts
    trusted: list[dict[str, Any]] = []
    """Changes of the code that were declared to alter no result: when, and what changed."""


def load_runs(directory: str | Path) -> "pa.Table":
    """The results of the grid that was run last as one table, one row per run; see `columns`.

    Raises
    ------
    ResultsError
        If there are none, or one is unreadable.
    """
    from shoal.core.parquet import pa

    directory = Path(directory)
    grid, files = load_grid(directory), files_by_key(directory)
    if grid is None or not files:
        raise ResultsError(f"{directory}: no results here ({GRID} and {CELLS}/*.parquet)")
    tables = [
        _as_called(read_cell(files[cell.key])[0], cell, grid) for cell in grid.cells if cell.key in files
    ]
    found = pa.concat_tables(tables) if tables else None
    if not found:
        raise ResultsError(f"{directory}: no results of the grid that was run last; see `shoal results`")
    return found


def load_grid(directory: Path) -> Grid | None:
    """The grid that was run last; None if there is none."""
    try:
        return msgspec.json.decode((directory / GRID).read_bytes(), type=Grid)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ResultsError(f"{directory / GRID}: cannot be read ({error}); run the grid again") from None


def cell_files(directory: Path) -> list[Path]:
    """The files of all cells, in order, without what a killed writer left behind."""
    return sorted((directory / CELLS).glob("*.parquet"))


def files_by_key(directory: Path) -> dict[str, Path]:
    """The files of all cells, by the key at the end of their names."""
    return {path.stem.rpartition("-")[2]: path for path in cell_files(directory)}


def cell_path(directory: Path, cell_id: str, key: str) -> Path:
    """Where the results of a cell are first written. Its name may change later, its key does not."""
    return directory / CELLS / f"{cell_id.replace('/', '__')[:LONGEST_NAME]}-{key}.parquet"


def write_cell(path: Path, table: "pa.Table", stored: StoredCell) -> None:
    """Write the runs of one cell; the file is complete when this returns."""
    from shoal.core.parquet import pa, pq

    metadata = {"schema_version": str(SCHEMA_VERSION), "cell": msgspec.json.encode(stored)}
    # Into memory first: the file appears whole or not at all.
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata(metadata), sink, compression="zstd", write_page_checksum=True
    )
    write_whole(path, sink.getvalue())


def read_cell(path: Path) -> "tuple[pa.Table, StoredCell]":
    """One cell's runs, verified and by seed, and what its file says about itself."""
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
    stored = _described(path, table.schema.metadata)
    if not table.schema.equals(columns()):
        raise ResultsError(f"{path}: does not have the columns of results schema {SCHEMA_VERSION}")
    return table.replace_schema_metadata(None), stored


def stored_cells(directory: Path) -> dict[str, StoredCell]:
    """The stored cells that can be read, by key; nothing is verified."""
    from shoal.core.parquet import pa, pq

    found = {}
    for key, path in files_by_key(directory).items():
        with contextlib.suppress(ResultsError, pa.ArrowException, OSError):
            found[key] = _described(path, pq.read_schema(str(path)).metadata)
    return found


def save_code(directory: Path, digest: str, parts: Mapping[str, str]) -> None:
    """Store the names and hashes of the code's parts, so that a later change can be named."""
    path = directory / CODE / f"{digest}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_whole(path, msgspec.json.encode(parts))


def load_code(directory: Path, digest: str) -> dict[str, str]:
    """What `save_code` kept; empty if it is not there."""
    try:
        return msgspec.json.decode((directory / CODE / f"{digest}.json").read_bytes(), type=dict[str, str])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def changed_code(directory: Path, old: Facts, new: Facts) -> list[str]:
    """Names of the functions and constants in which the code of two cells differs."""
    changed: list[str] = []
    for name, digest in new["code"].items():
        before, now = old["code"].get(name, ""), digest
        if before != now:
            parts, others = load_code(directory, before), load_code(directory, now)
            named = sorted(
                each for each in parts.keys() | others.keys() if parts.get(each) != others.get(each)
            )
            changed += named if parts and others else [f"the code of the {name}"]
    return changed


def code_words(changed: Sequence[str]) -> str:
    """A few of the names of what changed."""
    return ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")


class Entry(NamedTuple):
    """A stored cell, or one of the grid that is not stored."""

    id: str
    """Its name in the grid, or else its name when it was played."""
    runs: int
    seconds: float
    """Time that its runs took."""
    size: int
    """In bytes."""
    path: Path | None
    """None if it has not been played."""
    why: str
    """Why it is not in the grid; empty if it is."""


def inventory(directory: Path) -> list[Entry]:
    """All cells of a directory: those of the grid that was run last, then those left from earlier grids."""
    from shoal.core.parquet import pa, pq

    grid, files, stored = load_grid(directory), files_by_key(directory), stored_cells(directory)
    if grid is None:
        raise ResultsError(f"{directory}: no results here ({GRID} and {CELLS}/*.parquet)")
    ids: dict[str, list[str]] = {}
    for cell in grid.cells:
        ids.setdefault(cell.key, []).append(cell.id)
    found = []
    for key in [*ids, *(key for key in files if key not in ids)]:
        path, runs, seconds = files.get(key), 0, 0.0
        why = "" if key in ids else "cannot be read"
        name = ", ".join(ids.get(key, [])) or (path.name if path else key)
        if path is not None and key in stored:
            with contextlib.suppress(pa.ArrowException, OSError):
                times = pq.read_table(str(path), columns=["seconds"])["seconds"].to_pylist()
                runs, seconds = len(times), sum(times)
            if key not in ids:
                name, why = stored[key].id, _why_not(directory, stored[key], grid)
        found.append(Entry(name, runs, seconds, path.stat().st_size if path else 0, path, why))
    return found


def prune(directory: Path) -> list[Entry]:
    """Delete the stored cells that are not in the grid that was run last; returns them."""
    with only_writer(directory):
        removed = [entry for entry in inventory(directory) if entry.why and entry.path is not None]
        for entry in removed:
            if entry.path is not None:
                entry.path.unlink()
        used = {code for cell in stored_cells(directory).values() for code in cell.facts["code"].values()}
        for path in (directory / CODE).glob("*.json"):
            if path.stem not in used:
                path.unlink()
    return removed


def _why_not(directory: Path, stored: StoredCell, grid: Grid) -> str:
    alike = [cell for cell in grid.cells if same_but_code(stored.facts, cell.facts)]
    named = [cell for cell in grid.cells if cell.id == stored.id]
    if alike:
        return f"before {code_words(changed_code(directory, stored.facts, alike[0].facts))} changed"
    if named:
        return "; ".join(differences(stored.facts, named[0].facts))
    return "not in the grid"


def write_if_new(path: Path, content: bytes) -> None:
    """Write a file, unless it already has this content."""
    if not path.exists() or path.read_bytes() != content:
        write_whole(path, content)


def _described(path: Path, metadata: Mapping[bytes, bytes] | None) -> StoredCell:
    metadata = metadata or {}
    version = metadata.get(b"schema_version", b"none").decode()
    if version != str(SCHEMA_VERSION) or b"cell" not in metadata:
        raise ResultsError(f"{path}: has results of schema {version}; this version reads {SCHEMA_VERSION}")
    try:
        return msgspec.json.decode(metadata[b"cell"], type=StoredCell)
    except msgspec.DecodeError as error:
        raise ResultsError(f"{path}: does not say which cell it holds ({error})") from None


def _as_called(table: "pa.Table", cell: GridCell, grid: Grid) -> "pa.Table":
    """The grid's runs of a cell, with the ids that the grid gives them."""
    from shoal.core.parquet import pa, pc

    run = pc.subtract(table["seed"], grid.seed)
    table = table.filter(pc.and_(pc.greater_equal(run, 0), pc.less(run, grid.runs)))
    for name in ("environment", "method", "policy", "group", "alpha"):
        field = columns().field(name)
        value = pa.repeat(pa.scalar(getattr(cell, name), field.type), len(table))
        table = table.set_column(table.schema.get_field_index(name), field, value)
    run = pc.cast(pc.subtract(table["seed"], grid.seed), pa.int32())
    return table.add_column(table.schema.get_field_index("seed"), "run", run)


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
