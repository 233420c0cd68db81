"""Logs go in, journals come out."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal.live.population.importing
from shoal.live.population.controller import Controller
from shoal.live.population.controller import open as open_controller
from shoal.live.population.population import Population

ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0]}


def shop(controller: Controller, **settings: Any) -> Population:
    return controller.population(
        "shop", **{"policy": "bass", "dim": 2, "seed": 1, "explore": 0.0, **settings}
    )


def write_csv(path: Path, heading: list[str], rows: list[list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([heading, *rows])
    return path


def a_log(n: int = 2_500, seed: int = 0) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    return [
        [f"agent {rng.integers(20)}", float(rng.normal()), *rng.normal(size=2).tolist()] for _ in range(n)
    ]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "log.csv", ["agent", "reward", "a", "b"], a_log())


def test_same_as_observing_row_by_row(log: Path) -> None:
    one, other = shop(open_controller(":memory:")), shop(open_controller(":memory:"))
    told: list[tuple[int, int]] = []
    done = one.import_log(log, features=["a", "b"], progress=lambda *given: told.append(given))
    for agent, reward, *x in a_log():
        other.observe(agent, x, reward)
    assert (done.rows, done.added, done.known, done.gone, done.n_bad) == (2_500, 2_500, 0, 0, 0)
    assert told == [(1_000, 2_500), (2_000, 2_500), (2_500, 2_500)]
    assert one.agents == other.agents
    states = [population.owner.read(lambda fold: fold.policy.to_bytes()) for population in (one, other)]
    assert states[0] == states[1]


@pytest.mark.parametrize(
    "kind", ["named columns", "list column", "arms in a file", "arms given", "catalogue"]
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_all_forms_of_a_log_say_the_same(kind: str, suffix: str, tmp_path: Path) -> None:
    rows = [("ada", 1.0, "tea"), ("ben", 0.5, "coffee"), ("ada", 0.0, "coffee")]
    columns: dict[str, Any] = {"agent": [row[0] for row in rows], "reward": [row[1] for row in rows]}
    options: dict[str, Any] = {}
    population = shop(open_controller(":memory:"))
    if kind == "named columns":
        columns |= {"a": [ARMS[row[2]][0] for row in rows], "b": [ARMS[row[2]][1] for row in rows]}
        options = {"features": ["a", "b"]}
    elif kind == "list column":
        columns |= {"features": [ARMS[row[2]] for row in rows]}
    else:
        columns |= {"arm": [row[2] for row in rows]}
        options = {"arm": "arm"}
    path = write(tmp_path / f"log{suffix}", columns)
    if kind == "arms in a file":
        given: dict[str, list[Any]] = {"arm": list(ARMS), "features": list(ARMS.values())}
        options["arms"] = write(tmp_path / f"arms{suffix}", given)
    elif kind == "arms given":
        options["arms"] = ARMS
    elif kind == "catalogue":
        population.set_arms(ARMS)
    assert population.import_log(path, **options).added == 3
    other = shop(open_controller(":memory:"))
    for agent, reward, arm in rows:
        other.observe(agent, ARMS[arm], reward)
    states = [one.owner.read(lambda fold: fold.policy.to_bytes()) for one in (population, other)]
    assert states[0] == states[1]


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    shown = [
        [json.dumps(value) if isinstance(value, list) else value for value in row]
        for row in zip(*columns.values(), strict=True)
    ]
    return write_csv(path, list(columns), shown)


def test_again_counts_nothing_twice(log: Path, tmp_path: Path) -> None:
    with open_controller(tmp_path / "shop.db") as controller:
        population = shop(controller)
        population.import_log(log, features=["a", "b"])
        before = population.sequence
        renamed = log.rename(tmp_path / "other.csv")
        done = population.import_log(renamed, features=["a", "b"])
        assert (done.added, done.known, population.sequence) == (0, 2_500, before)


def test_an_interrupted_import_goes_on(log: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 1_000:
            raise KeyboardInterrupt

    with open_controller(tmp_path / "shop.db") as controller, pytest.raises(KeyboardInterrupt):
        shop(controller).import_log(log, features=["a", "b"], progress=stop)
    with open_controller(tmp_path / "shop.db") as controller:
        done = shop(controller).import_log(log, features=["a", "b"])
        assert (done.added, done.known) == (1_500, 1_000)
        state = shop(controller).owner.read(lambda fold: fold.policy.to_bytes())
    whole = shop(open_controller(":memory:"))
    whole.import_log(log, features=["a", "b"])
    assert state == whole.owner.read(lambda fold: fold.policy.to_bytes())


def test_equal_rows_are_different_rows(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", ["agent", "reward", "a", "b"], [["ada", 1, 1, 0]] * 3)
    assert shop(open_controller(":memory:")).import_log(path, features=["a", "b"]).added == 3


def test_ids_of_its_own(tmp_path: Path) -> None:
    heading = ["agent", "reward", "a", "b", "event"]
    rows: list[list[Any]] = [["ada", 1, 1, 0, "e1"], ["ada", 1, 1, 0, "e1"], ["ben", 0, 0, 1, "e2"]]
    path = write_csv(tmp_path / "log.csv", heading, rows)
    population = shop(open_controller(":memory:"))
    done = population.import_log(path, features=["a", "b"], id="event")
    assert (done.added, done.known) == (2, 1)
    grown = write_csv(
        tmp_path / "grown.csv", heading, [*rows, ["cat", 1, 1, 1, "e3"], ["dan", 1, 1, 1, "e2"]]
    )
    with pytest.raises(ValueError, match=r"grown.csv, line 6: another observation .* 'e2'"):
        population.import_log(grown, features=["a", "b"], id="event")
    done = population.import_log(grown, features=["a", "b"], id="event", skip_bad=True)
    assert (done.added, done.known, done.n_bad) == (0, 4, 1)


def test_bad_rows_are_named_and_nothing_is_imported(tmp_path: Path) -> None:
    rows: list[list[Any]] = [
        ["ada", 1, 1, 0],
        ["", 1, 1, 0],
        ["ada", "much", 1, 0],
        ["ada", 1, 1],
        ["line\nbreak", 1, "nan", 0],
        ["ada", 9, 1, 0],
        ["ada", 1, 1, 0, 7],
        ["ben", 0.5, 0, 1],
    ]
    path = write_csv(tmp_path / "log.csv", ["agent", "reward", "a", "b"], rows)
    population = shop(open_controller(":memory:"), reward_range=(0.0, 1.0))
    before = population.sequence
    with pytest.raises(ValueError, match="Nothing was imported; 2 of 8 rows are good") as caught:
        population.import_log(path, features=["a", "b"])
    message = str(caught.value)
    for line, reason in [
        (3, "agent is empty"),
        (4, "reward must be a number, got 'much'"),
        (5, "3 fields, where the heading has 4: ['ada', '1', '1']"),
        (6, "a must be a finite number in [-1e+30, 1e+30], got 'nan'"),
        (8, "reward must be a finite number in [0, 1]"),
    ]:
        assert f"log.csv, line {line}: {reason}" in message
    assert message.count("; and 1 more") == 1
    assert population.sequence == before
    done = population.import_log(path, features=["a", "b"], skip_bad=True)
    assert (done.rows, done.added, done.n_bad) == (8, 2, 6)
    assert [row.line for row in done.bad] == [3, 4, 5, 6, 8, 9]


def test_bad_rows_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    columns = {
        "agent": ["ada", None, "cat"],
        "reward": [1.0, 1.0, 1.0],
        "features": [[1.0, 0.0], [1.0, 1.0], [1.0]],
    }
    pq.write_table(pa.table(columns), path)
    with pytest.raises(
        ValueError, match=r"row 2: agent is empty; .*row 3: x must have shape \(2,\), got \(1,\)"
    ):
        shop(open_controller(":memory:")).import_log(path)


def test_agents_may_be_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"agent": [7, 8], "reward": [1, 0], "features": [[1.0, 0.0], [0.0, 1.0]]}), path)
    population = shop(open_controller(":memory:"))
    population.import_log(path)
    assert population.agents == ["7", "8"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"agent,reward\nada,1\n", {}, "no column 'features'; it has 'agent', 'reward'"),
        (b"", {}, "no column 'agent'; it has none at all"),
        (b"agent,agent,reward,features\n", {}, "2 columns 'agent'"),
        (
            b"agent,reward,features\n\xff,1,[]\n",
            {},
            r"log\.csv, line 1 or later: damaged, or not CSV in UTF-8 \('utf-8' codec",
        ),
        (
            b"agent,reward,features\nada,1,1 2\n",
            {},
            r"features must be a list such as \[0.5, 1.0\], got '1 2'",
        ),
        (b"agent,reward,arm\nada,1,tea\n", {"arm": "arm"}, "has no catalogue"),
        (b"agent,reward,arm\nada,1,beer\n", {"arm": "arm", "arms": ARMS}, "line 2: no arm 'beer' among"),
        (b"agent,reward,features\n", {"arms": ARMS}, "arm does not say which column"),
    ],
)
def test_files_that_cannot_be_imported(content: bytes, options: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    population = shop(open_controller(":memory:"))
    with pytest.raises(ValueError, match=message):
        population.import_log(path, **options)
    assert population.sequence == 1


def test_other_files(tmp_path: Path) -> None:
    population = shop(open_controller(":memory:"))
    with pytest.raises(FileNotFoundError):
        population.import_log(tmp_path / "none.csv")
    (tmp_path / "log.txt").write_text('agent,reward,features\nada,1,"[1, 0]"\n')
    assert population.import_log(tmp_path / "log.txt").added == 1  # the first bytes tell the form
    (tmp_path / "log.parquet").write_bytes(b"PAR1 it is not")
    with pytest.raises(ValueError, match="not a Parquet file, or a damaged one"):
        population.import_log(tmp_path / "log.parquet")


def test_who_was_forgotten_stays_so(log: Path) -> None:
    population = shop(open_controller(":memory:"))
    population.import_log(log, features=["a", "b"])
    population.forget("agent 3")
    population.settle()
    theirs = sum(row[0] == "agent 3" for row in a_log())
    done = population.import_log(log, features=["a", "b"])
    assert (done.added, done.known, done.gone) == (0, 2_500 - theirs, theirs)
    assert "agent 3" not in population.agents


# Export


def a_life(population: Population) -> None:
    """A bit of everything."""
    for number in range(6):
        population.decide("ada", ARMS, id=f"d{number}")
    population.reward("d0", 1.0)
    population.reward("d1", 1.0)
    population.reward("d1", 0.25, replaces=1.0)
    population.cancel("d2")
    population.decide("ben", ARMS, id="ranking", top=2)
    population.reward("ranking", 0.5, arm="tea")
    population.observe("cat", [0.6, 0.8], 0.75)
    population.decide("dan", [[1.0, 0.0], [0.0, 1.0]], id="unnamed")
    population.rename("ben", "benjamin")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_export(suffix: str, tmp_path: Path) -> None:
    with open_controller(tmp_path / "shop.db") as controller:
        population = shop(controller)
        a_life(population)
        path = tmp_path / f"out{suffix}"
        assert population.export(path) == 10
    if suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    by_id = {(row["id"], row["place"]): row for row in rows}
    assert [by_id[f"d{number}", 0]["status"] for number in range(4)] == [
        "rewarded", "rewarded", "cancelled", "pending",
    ]  # fmt: skip
    assert by_id["d1", 0]["reward"] == 0.25
    assert by_id["d3", 0]["reward"] is None
    assert by_id["d3", 0]["probability"] == 1.0
    first = by_id["d0", 0]
    assert (first["agent"], first["n_arms"], first["x"]) == ("ada", 2, ARMS[first["arm"]])
    assert len(first["arms"]) == 32
    assert first["greedy"] == first["arm"]
    ranked = [by_id["ranking", place] for place in range(2)]
    assert {row["arm"] for row in ranked} == {"tea", "coffee"}
    assert [row["agent"] for row in ranked] == ["benjamin"] * 2
    assert {row["arm"]: row["reward"] for row in ranked} == {"tea": 0.5, "coffee": None}
    seen = by_id[None, None]
    assert (seen["kind"], seen["agent"], seen["x"], seen["reward"]) == (
        "observation",
        "cat",
        [0.6, 0.8],
        0.75,
    )
    assert by_id["unnamed", 0]["arm"] in ("0", "1")
    sequences = [row["sequence"] for row in rows]
    assert sequences == sorted(sequences)


def test_an_export_can_be_imported(tmp_path: Path) -> None:
    population = shop(open_controller(":memory:"))
    a_life(population)
    population.export(tmp_path / "out.parquet")
    other = shop(open_controller(":memory:"))
    done = other.import_log(tmp_path / "out.parquet", features="x", skip_bad=True)
    assert (done.added, done.n_bad) == (4, 6)
    assert {row.reason for row in done.bad} == {"reward is empty"}


def test_exports_appear_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    population = shop(open_controller(":memory:"))
    a_life(population)
    with pytest.raises(ValueError, match=r"path must end in \.parquet or \.jsonl"):
        population.export(tmp_path / "out.csv")
    monkeypatch.setattr(shoal.live.population.exporting, "restored", None)
    with pytest.raises(TypeError):
        population.export(tmp_path / "out.jsonl")
    assert not list(tmp_path.iterdir())
