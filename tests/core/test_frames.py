"""Data frames of every library are read as files are, and made of what is recorded."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import shoal
from shoal.core.frames import Library
from shoal.core.logs import LogTable
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import load_spec
from shoal.live.evaluation.logs import read_log
from shoal.live.population.population import Population

ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "7": [0.6, 0.8]}
MAKERS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "mapping": lambda columns: columns,
    "arrays": lambda columns: {name: np.array(values) for name, values in columns.items()},
    "pandas": pd.DataFrame,
    "pandas by Arrow": lambda columns: pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.DataFrame,
    "polars, lazy": pl.LazyFrame,
    "Arrow": pa.table,
    "Arrow, one batch": lambda columns: pa.table(columns).to_batches()[0],
    "anything with a stream": lambda columns: Stream(pa.table(columns)),
}
FRAMES = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))


class Stream:
    """A frame that nobody knows, and that offers Arrow's stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self._table.__arrow_c_stream__(schema)


def a_log(n: int = 400) -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    arms = [list(ARMS)[k] for k in rng.integers(3, size=n)]
    return {
        "agent": [f"agent {k}" for k in rng.integers(5, size=n)],
        "arm": arms,
        "reward": [float(np.dot(ARMS[arm], [0.2, 0.9]) + 0.1 * rng.normal()) for arm in arms],
        "p": [1 / 3] * n,
    }


def features() -> dict[str, list[Any]]:
    return {"arm": list(ARMS), "a": [x[0] for x in ARMS.values()], "b": [x[1] for x in ARMS.values()]}


def shop() -> Population:
    return shoal.open(":memory:").population("shop", policy="bass", dim=2, seed=1, explore=0.0)


@pytest.fixture(scope="module")
def by_file(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    directory = tmp_path_factory.mktemp("files")
    pl.DataFrame(a_log()).write_csv(directory / "log.csv")
    pl.DataFrame(features()).write_csv(directory / "arms.csv")
    return answers(directory / "log.csv", directory / "arms.csv", directory)


def answers(log: Any, arms: Any, cache: Path) -> list[Any]:
    """What everything that takes a log makes of it."""
    world = shoal.LoggedRatings(log, features=arms, seed=0, cache=cache)
    found = shoal.recommend(log, features=arms, horizon=50, runs=2)
    population = shop()
    if isinstance(arms, dict):
        arms = ARMS  # here a mapping is by name
    imported = population.import_log(log, arm="arm", arms=arms)
    again = population.import_log(log, arm="arm", arms=arms)
    assert (again.added, again.known) == (0, 400)
    logged = read_log(log, probability="p", arm="arm", arms=arms, agent="agent")
    return [
        world.mean_rewards.tolist(), world.arm_ids.tolist(), str(found), imported,
        population.owner.read(lambda fold: fold.policy.to_bytes()), logged.rewards.tolist(),
    ]  # fmt: skip


@FRAMES
def test_a_frame_is_as_good_as_a_file(make: Any, by_file: list[Any], tmp_path: Path) -> None:
    assert answers(make(a_log()), make(features()), tmp_path) == by_file


@FRAMES
def test_lists_are_features_too(make: Any) -> None:
    population = shop()
    population.import_log(make({"agent": ["ada"], "features": [[1.0, 0.0]], "reward": [1.0]}))
    assert population.frame()["x"].to_pylist() == [[1.0, 0.0]]


def test_missing_values_are_named_by_row(tmp_path: Path) -> None:
    for frame in (
        pd.DataFrame({"agent": ["ada", None, "ben"], "reward": [1.0, 1.0, np.nan]}),
        pd.DataFrame({"agent": ["ada", pd.NA, "ben"], "reward": pd.array([1, 1, None], dtype="Int64")}),
        pl.DataFrame({"agent": ["ada", None, "ben"], "reward": [1.0, 1.0, None]}),
        pa.table({"agent": ["ada", None, "ben"], "reward": [1.0, 1.0, None]}),
    ):
        rows = list(LogTable(frame).rows(["agent", "reward"]))
        assert rows == [(1, ["ada", 1.0]), (2, "agent is empty"), (3, "reward is empty")]
    population = shop()
    with pytest.raises(ValueError, match=r"log, row 2: reward must be .*nan.* Nothing was imported"):
        population.import_log(
            pl.DataFrame({"agent": ["ada", "ben"], "reward": [1.0, np.nan], "features": [[1.0, 0.0]] * 2})
        )
    assert population.agents == []


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match=r"log must be a path, a mapping .* got list"):
        LogTable([["ada", 1.0]])
    with pytest.raises(ValueError, match=r"log must have columns of one length, got {'a': 1, 'b': 2}"):
        LogTable({"a": [1], "b": [1, 2]})
    for twice in (pa.table([[1], [2]], names=["a", "a"]), pd.DataFrame([[1, 2]], columns=["a", "a"])):
        with pytest.raises(ValueError, match="log has 2 columns 'a'"):
            LogTable(twice)
    with pytest.raises(ValueError, match="log has no column 'agent'; it has 'a'"):
        shop().import_log(pd.DataFrame({"a": [1]}))
    with pytest.raises(ValueError, match="features must be given with a log"):
        shoal.recommend(pl.DataFrame(a_log()))
    with pytest.raises(ValueError, match="features are for a log"):
        shoal.recommend(shoal.SyntheticClusters(4, 2, 2, 1.0, seed=0), features=features())


def test_another_content_is_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame is named by its content, to the last digit of a long list, whatever its library."""
    monkeypatch.setattr("shoal.core.frames.AT_ONCE", 2)
    long = list(map(float, range(2_000)))
    base: dict[str, list[Any]] = {"agent": ["ada"] * 3, "x": [long] * 3}
    changed = {**base, "x": [long, long, [*long[:1_000], 1000.5, *long[1_001:]]]}
    names = {LogTable(pl.DataFrame(one)).digest(["agent", "x"]) for one in (base, changed)}
    assert len(names) == 2
    arrays = pd.DataFrame({"agent": changed["agent"], "x": list(map(np.array, changed["x"]))})
    assert LogTable(arrays).digest(["agent", "x"]) in names


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
def test_a_population_as_a_frame(library: Library, tmp_path: Path) -> None:
    population = shop()
    empty = population.frame(library)
    assert len(empty) == 0
    population.decide("ada", arms={"tea": [1.0, 0.0], "coffee": [0.0, 1.0]}, id="first")
    population.decide("ada", arms={"tea": [1.0, 0.0], "coffee": [0.0, 1.0]}, id="second")
    population.reward("first", 0.5)
    population.observe("ben", [0.6, 0.8], 0.25)
    frame = population.frame(library)
    assert type(frame).__module__.split(".")[0] == library
    population.export(tmp_path / "log.parquet")
    table = pl.from_arrow(frame) if library == "pyarrow" else pl.DataFrame(frame)
    assert isinstance(table, pl.DataFrame)
    for name in ("sequence", "agent", "status", "reward", "x"):
        assert table[name].to_list() == pl.read_parquet(tmp_path / "log.parquet")[name].to_list()
    assert list(empty.columns if library != "pyarrow" else empty.column_names) == table.columns
    if library == "polars":
        assert table.schema == empty.schema
        assert table["at"][0].tzinfo is not None
        assert table["at"][0].astimezone(UTC) <= table["at"][2]
    other = shop()
    rewarded = table.filter(pl.col("status") == "rewarded")
    assert other.import_log(rewarded, features="x").added == 2


def test_results_as_a_frame(tmp_path: Path) -> None:
    spec = tmp_path / "grid.toml"
    spec.write_text(
        'name = "g"\nhorizon = 40\nruns = 2\nalphas = [0.5]\n[[environments]]\nid = "e"\nkind = "synthetic"\n'
        "[environments.parameters]\nn_agents = 4\ndim = 2\nn_clusters = 2\nangle = 1.0\n"
        '[[methods]]\nid = "m"\npolicy = "independent"\n'
    )
    run_experiment(load_spec(spec), tmp_path / "out")
    results = shoal.load_results(tmp_path / "out")
    for library in get_args(Library):
        frame = results.frame(library)
        assert type(frame).__module__.split(".")[0] == library
        assert list(frame["final_regret"].to_numpy()) == results.table["final_regret"].to_pylist()


def test_a_library_must_be_known_and_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"library must be one of .*pyarrow.*pandas.*polars"):
        shop().frame("excel")  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="polars is not installed"):
        shop().frame("polars")


def test_frames_of_others_are_not_imported() -> None:
    code = "import sys, shoal.core.logs; print({'pandas', 'polars', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
