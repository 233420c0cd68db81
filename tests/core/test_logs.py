"""The one reader of logs: what it makes of files, and that all who take a log take the same one."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.core.logs import LogTable, read_arms

ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "7": [0.6, 0.8]}


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow([json.dumps(value) if isinstance(value, list) else value for value in row])
    return path


def arms_in(path: Path, *, lists: bool) -> Path:
    """A table of arms: their features in a list, or a column for each."""
    if lists:
        return write(path, {"features": list(ARMS.values()), "arm": list(ARMS)})
    x, y = zip(*ARMS.values(), strict=True)
    return write(path, {"x": list(x), "arm": list(ARMS), "y": list(y)})


def run(*arguments: Any) -> str:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_the_same_files_go_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV or Parquet, features in columns or lists: `recommend`, `evaluate`, `import` and `LoggedRatings`."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    rng, n = np.random.default_rng(0), 300
    chosen = [list(ARMS)[k] for k in rng.integers(3, size=n)]
    columns: dict[str, list[Any]] = {
        "agent": [f"agent {k}" for k in rng.integers(5, size=n)],
        "arm": chosen,
        "reward": [float(np.dot(ARMS[arm], [0.2, 0.9]) + 0.1 * rng.normal()) for arm in chosen],
        "p": [1 / 3] * n,
        "note": [""] * n,
    }
    results = []
    for ending in ("csv", "parquet"):
        log = write(tmp_path / f"log.{ending}", columns)
        for lists in (False, True):
            arms = arms_in(tmp_path / f"arms-{lists}.{ending}", lists=lists)
            out, store = tmp_path / "report", tmp_path / f"{ending}-{lists}.db"
            recommended = run(
                "recommend", log, "--features", arms, "--horizon", 60, "--runs", 2, "--out", out
            )
            named = ("--agent", "agent", "--arm", "arm", "--arms", arms)
            evaluated = run("evaluate", log, "--probability", "p", *named, "--policy", "independent")
            imported = run("population", "import", store, "shop", log, *named, "--policy", "bass", "--dim", 2)
            with shoal.open(store) as controller:
                state = controller.population("shop").owner.read(
                    lambda fold: fold.policy.scores(0, np.eye(2))
                )
            world = shoal.LoggedRatings(log, features=arms, seed=0)
            assert dict(zip(world.arm_ids.tolist(), world.arms.tolist(), strict=True)) == ARMS
            said = (recommended, evaluated.replace(str(log), ""), imported)
            results.append((*said, state.mean.tolist(), world.mean_rewards.tolist()))
    assert "300 rows of 5 agents and 3 arms" in results[0][0]
    assert "300 decisions" in results[0][1]
    assert "300 of 300 rows learned" in results[0][2]
    for other in results[1:]:
        assert other == results[0]


def test_which_columns_are_features(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "arm": ["a", "b"],
        "x": [1, 2],
        "features": ["[3, 4]", "[5, 6]"],
        "y": [7, 8],
    }
    table = LogTable(write(tmp_path / "arms.csv", columns))

    def found(features: list[str] | None) -> dict[str, list[float]]:
        return {name: x.tolist() for name, x in read_arms(table, "arm", features).items()}

    assert found(None) == {"a": [3, 4], "b": [5, 6]}
    assert found(["y", "x"]) == {"a": [7, 1], "b": [8, 2]}
    with pytest.raises(ValueError, match=r"arms\.csv, line 2: features must have shape \(3,\), got \(2,\)"):
        read_arms(table, "arm", dim=3)
    with pytest.raises(ValueError, match=r"line 2: x must be a list such as \[0.5, 1.0\], got '1'"):
        read_arms(table, "arm", "x")
    with pytest.raises(ValueError, match=r"arms\.csv has no column 'z'; it has 'arm', 'x', 'features', 'y'"):
        read_arms(table, "arm", ["x", "z"])
    uneven: dict[str, list[Any]] = {"arm": ["a", "b", "c"], "features": [[1.0], [1.0, 2.0], [float("nan")]]}
    with pytest.raises(ValueError, match=r"row 2: features must .*row 3: features must be finite") as caught:
        read_arms(LogTable(write(tmp_path / "arms.parquet", uneven)), "arm")
    assert str(caught.value).endswith("Nothing was read; 1 of 3 rows are good")


def test_forms(tmp_path: Path) -> None:
    """The first bytes tell the form, and a damaged file that is called Parquet is not taken for CSV."""
    plain = write(tmp_path / "log.parquet", {"x": [1, 2]}).rename(tmp_path / "log.data")
    assert [row for _, row in LogTable(plain).rows(["x", "x"])] == [[1, 1], [2, 2]]
    (tmp_path / "log.parquet").write_text("x\n1\n")
    with pytest.raises(ValueError, match=r"log\.parquet: not a Parquet file, or a damaged one"):
        LogTable(tmp_path / "log.parquet").names()
    (tmp_path / "log.csv").write_text('\ufeffx,y\n1,"a\nb"\n\n2,\n')  # a byte order mark, a row of two lines
    assert list(LogTable(tmp_path / "log.csv").rows(["x", "y"])) == [(2, ["1", "a\nb"]), (5, "y is empty")]


def test_csv_files_need_no_pyarrow(tmp_path: Path) -> None:
    arms = arms_in(tmp_path / "arms.csv", lists=True)
    code = (
        "import sys; from shoal.core.logs import LogTable, read_arms; "
        f"assert len(read_arms(LogTable({str(arms)!r}), 'arm')) == 3; assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
