"""Results on disk: whole files or none, and a clear word on damaged ones."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.core.atomic import write_whole
from shoal.lab.experiments import results
from shoal.lab.experiments.results import (
    Grid,
    GridCell,
    ResultsError,
    StoredCell,
    cell_path,
    load_runs,
    read_cell,
    write_cell,
)


def row(run: int) -> dict[str, Any]:
    rng = np.random.default_rng(run)
    texts = [
        *("environment", "method", "policy", "group", "environment_parameters", "policy_parameters"),
        *("software", "machine"),
    ]
    curves = ("curve_rounds", "curve_regret", "curve_f1", "curve_edges")
    filled: dict[str, Any] = {name: 1 for name in results.columns().names}
    filled |= {name: "x" for name in texts} | {
        "seed": run,
        "final_regret": rng.random(),
        "final_f1": float("nan"),
    }
    return (
        filled
        | {name: rng.integers(1 << 40, size=100) for name in curves}
        | {"curve_regret": rng.random(100)}
    )


def write(directory: Path, key: str, *, runs: int = 4) -> Path:
    """A stored cell, which is the only one of the grid, or the next."""
    (directory / "cells").mkdir(exist_ok=True)
    path = cell_path(directory, "a/b/a0.10", key)
    table = pa.Table.from_pylist([row(run) for run in range(runs)], schema=results.columns())
    write_cell(path, table, StoredCell("a/b/a0.10", key, {"alpha": 0.1}))
    before = results.load_grid(directory)
    cells = [*(before.cells if before else []), GridCell("a/b/a0.10", "a", "b", "bass", "main", 0.1, key, {})]
    write_whole(directory / "grid.json", msgspec.json.encode(Grid(0, 4, cells)))
    return path


def test_what_is_written_is_read_back_exactly(tmp_path: Path) -> None:
    path = write(tmp_path, "abc")
    assert path.name == "a__b__a0.10-abc.parquet"
    table, stored = read_cell(path)
    assert table.schema.equals(results.columns())
    assert stored == StoredCell("a/b/a0.10", "abc", {"alpha": 0.1}, [])
    assert results.stored_cells(tmp_path) == {"abc": stored}
    for run in range(4):
        found, expected = table.slice(run, 1).to_pylist()[0], row(run)
        assert found["final_regret"] == expected["final_regret"]
        assert found["curve_regret"] == expected["curve_regret"].tolist()
        assert np.isnan(found["final_f1"])


def test_the_grid_says_which_runs_count_and_what_they_are_called(tmp_path: Path) -> None:
    write(tmp_path, "abc", runs=6)
    cells = [
        GridCell(f"{name}/b/a0.30", name, "b", "club", "gamma", 0.3, "abc", {}) for name in ("near", "far")
    ]
    write_whole(tmp_path / "grid.json", msgspec.json.encode(Grid(2, 3, cells)))
    rows = load_runs(tmp_path).to_pylist()
    assert [(row["environment"], row["seed"], row["run"]) for row in rows] == [
        (name, run + 2, run) for name in ("near", "far") for run in range(3)
    ]
    assert {(row["method"], row["policy"], row["group"], row["alpha"]) for row in rows} == {
        ("b", "club", "gamma", 0.3)
    }


def test_all_cells_make_one_table_and_leftovers_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    (tmp_path / "cells" / ".c.parquet.123.tmp").write_bytes(b"half a fi")
    assert load_runs(tmp_path).num_rows == 8
    results.remove_leftovers(tmp_path)
    assert sorted(path.name for path in (tmp_path / "cells").iterdir()) == [
        "a__b__a0.10-a.parquet",
        "a__b__a0.10-b.parquet",
    ]


def test_an_empty_or_missing_directory_is_named(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(ResultsError, match=f"^{directory}: no results here"):
            load_runs(directory)


def test_what_is_not_of_the_grid_is_left_out_even_if_damaged(tmp_path: Path) -> None:
    write(tmp_path, "a")
    (tmp_path / "cells" / "b-old.parquet").write_bytes(b"PAR1")
    assert load_runs(tmp_path).num_rows == 4
    (tmp_path / "cells" / "a__b__a0.10-a.parquet").unlink()
    with pytest.raises(ResultsError, match="no results of the grid that was run last; see `shoal results`"):
        load_runs(tmp_path)


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path: Path, keep: float) -> None:
    path = write(tmp_path, "a")
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ResultsError, match=r"a\.parquet: corrupt or truncated .* Delete it"):
        load_runs(tmp_path)


def test_a_single_flipped_bit_in_the_data_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, "a")
    content = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(results.columns().names.index("curve_regret"))
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ResultsError, match=r"a\.parquet: corrupt or truncated"):
        read_cell(path)


def test_parquet_files_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(ResultsError, match=r"a\.parquet: has results of schema none; this version reads 2"):
        read_cell(path)
    metadata = {"schema_version": "2", "cell": '{"id": "a", "key": "b", "facts": {}}'}
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata(metadata), path)
    with pytest.raises(ResultsError, match=r"a\.parquet: does not have the columns"):
        read_cell(path)


def test_results_of_a_newer_schema_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a")
    newer = read_cell(path)[0].replace_schema_metadata({"schema_version": "3", "cell": "{}"})
    pq.write_table(newer, path)
    with pytest.raises(ResultsError, match=r"a\.parquet: has results of schema 3; this version reads 2"):
        load_runs(tmp_path)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with path.open() as reader:
        write_whole(path, b"new")
        assert reader.read() == "old"  # who is reading it meanwhile reads the old one to its end
    assert path.read_text() == "new"


def test_a_failed_write_leaves_the_old_file_and_no_leftover(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    program = (
        "import resource, sys; from pathlib import Path; from shoal.core.atomic import write_whole;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "write_whole(Path(sys.argv[1]), b'x' * 100_000)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"could not be written: File too large: '{path}'" in done.stderr
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_directory_has_one_writer_at_a_time(tmp_path: Path) -> None:
    with (
        results.only_writer(tmp_path),
        pytest.raises(ResultsError, match="another process is writing"),
        results.only_writer(tmp_path),
    ):
        pass
    with results.only_writer(tmp_path):
        pass
