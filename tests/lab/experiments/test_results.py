"""Results on disk: whole files or none, and a clear word on damaged ones."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.core.atomic import write_whole
from shoal.lab.experiments import results
from shoal.lab.experiments.results import ResultsError, load_runs, read_cell, write_cell


def row(run: int) -> dict[str, Any]:
    rng = np.random.default_rng(run)
    texts = ("environment", "method", "policy", "group", "environment_parameters", "policy_parameters")
    curves = ("curve_rounds", "curve_regret", "curve_f1", "curve_edges")
    filled: dict[str, Any] = {name: 1 for name in results.columns().names}
    filled |= {name: "x" for name in texts} | {
        "run": run,
        "final_regret": rng.random(),
        "final_f1": float("nan"),
    }
    return (
        filled
        | {name: rng.integers(1 << 40, size=100) for name in curves}
        | {"curve_regret": rng.random(100)}
    )


def write(directory: Path, name: str, *, spec_hash: str = "abc") -> Path:
    (directory / "cells").mkdir(exist_ok=True)
    path = directory / "cells" / name
    write_cell(path, [row(run) for run in range(4)], cell_id="a/b/a0.10", spec_hash=spec_hash)
    return path


def test_what_is_written_is_read_back_exactly(tmp_path: Path) -> None:
    table = read_cell(write(tmp_path, "a.parquet"))
    assert table.schema.equals(results.columns())
    assert table.schema.metadata == {b"schema_version": b"1", b"spec_hash": b"abc", b"cell": b"a/b/a0.10"}
    for run in range(4):
        found, expected = table.slice(run, 1).to_pylist()[0], row(run)
        assert found["final_regret"] == expected["final_regret"]
        assert found["curve_regret"] == expected["curve_regret"].tolist()
        assert np.isnan(found["final_f1"])


def test_all_cells_make_one_table_and_leftovers_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet")
    write(tmp_path, "b.parquet")
    (tmp_path / "cells" / ".c.parquet.123.tmp").write_bytes(b"half a fi")
    assert load_runs(tmp_path).num_rows == 8
    results.remove_leftovers(tmp_path)
    assert sorted(path.name for path in (tmp_path / "cells").iterdir()) == ["a.parquet", "b.parquet"]


def test_an_empty_or_missing_directory_is_named(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(ResultsError, match=f"^{directory}: no results here"):
            load_runs(directory)


def test_results_of_two_specs_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet")
    write(tmp_path, "b.parquet", spec_hash="def")
    with pytest.raises(ResultsError, match=r"a\.parquet and b.parquet come from different specs"):
        load_runs(tmp_path)


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path: Path, keep: float) -> None:
    path = write(tmp_path, "a.parquet")
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ResultsError, match=r"a\.parquet: corrupt or truncated .* Delete it"):
        load_runs(tmp_path)


def test_a_single_flipped_bit_in_the_data_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet")
    content = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(results.columns().names.index("curve_regret"))
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ResultsError, match=r"a\.parquet: corrupt or truncated"):
        read_cell(path)


def test_parquet_files_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(ResultsError, match=r"a\.parquet: has results of schema none; this version reads 1"):
        read_cell(path)
    metadata = {"schema_version": "1", "spec_hash": "abc"}
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata(metadata), path)
    with pytest.raises(ResultsError, match=r"a\.parquet: does not have the columns"):
        read_cell(path)


def test_results_of_a_newer_schema_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet")
    newer = read_cell(path).replace_schema_metadata({"schema_version": "2", "spec_hash": "abc"})
    pq.write_table(newer, path)
    with pytest.raises(ResultsError, match=r"a\.parquet: has results of schema 2; this version reads 1"):
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
