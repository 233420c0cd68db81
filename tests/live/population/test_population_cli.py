"""`shoal population`, as a user meets it."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Done, call

import shoal

ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0]}


def run(*arguments: str, code: int = 0, answer: str = "") -> Done:
    done = call("population", *arguments, answer=answer)
    assert done.returncode == code, done.stderr
    return done


def say(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two populations."""
    path = tmp_path_factory.mktemp("cli") / "shop.db"
    with shoal.open(path) as controller:
        shop = controller.population("shop", policy="bass", dim=2, seed=1, explore=0.0, reward_range=(0, 1))
        for number in range(12):
            agent = ("ada", "ben", "[cat]")[number % 3]
            shop.reward(shop.decide(agent, ARMS, id=f"d{number}").id, 1.0)
        shop.decide("ada", ARMS, id="open")
        controller.population("other", policy="independent", dim=3)
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> str:
    (tmp_path / "shop.db").write_bytes(made.read_bytes())
    return str(tmp_path / "shop.db")


def test_list_and_show(store: str) -> None:
    listed = run("list", store).stdout
    assert "independent" in listed
    assert [(one["name"], one["agents"], one["pending"]) for one in say("list", store)] == [
        ("other", 0, 0),
        ("shop", 3, 1),
    ]
    found = say("show", store, "shop")
    assert (found["policy"], found["dim"], found["records"], found["reward_range"]) == (
        "bass",
        2,
        29,
        "0 to 1",
    )
    assert "delta=" in run("show", store, "shop").stdout


def test_export_and_import(store: str, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert run("export", store, "shop", str(out)).stdout == f"13 rows written to {out}\n"
    new = str(tmp_path / "new.db")
    options = ["--features", "x", "--policy", "bass", "--dim", "2"]
    error = run("import", new, "shop", str(out), *options, code=2).stderr
    assert error.startswith("shoal: ")
    assert error.count("\n") == 1
    assert "row 13: reward is empty. Nothing was imported; 12 of 13 rows are good" in error
    said = run("import", new, "shop", str(out), *options, "--skip-bad").stdout
    assert said.startswith("12 of 13 rows learned; 0 were known, 0 forgotten\nskipped ")
    again = say("import", new, "shop", str(out), "--features", "x", "--skip-bad")
    assert again == {"rows": 13, "added": 0, "known": 12, "gone": 0, "n_bad": 1}


def test_forget_asks_first(store: str) -> None:
    assert run("forget", store, "shop", "ada", answer="n\n", code=1).stdout.strip() == ""
    assert say("show", store, "shop")["agents"] == 3
    assert run("forget", store, "shop", "ada", answer="y\n").stdout.strip() == "forgotten: 'ada'"
    assert run("forget", store, "shop", "[cat]", "--yes").stdout == "forgotten: '[cat]'\n"
    assert say("show", store, "shop")["agents"] == 1
    assert b"[cat]" not in Path(store).read_bytes()
    gone = run("forget", store, "shop", "ada", "--yes", code=2).stderr
    assert gone == "shoal: agent 'ada' of population 'shop' has been forgotten\n"


def test_verify(store: str) -> None:
    assert run("verify", store).stdout == "other: sound\nshop: sound\n"
    with sqlite3.connect(store) as database:
        database.execute("DELETE FROM journal WHERE population = 1 AND seq = 5")
    database.close()
    said = run("verify", store, "shop", code=1).stdout
    assert said.startswith("shop: 1 problem\n")
    assert "ends at record 4 of 29" in said


def test_archive(store: str, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    assert run("archive", store, "shop", str(tmp_path / "old"), "--before", "90d").stdout.startswith(
        "no rows"
    )
    assert "date such as" in run("archive", store, "shop", str(tmp_path), "--before", "then", code=2).stderr
    made = say("archive", store, "shop", str(tmp_path / "old"), "--before", "2999-01-01")
    assert (made["first"], made["last"]) == (1, 29)
    found = say("show", store, "shop")
    assert (found["archived_records"], found["archives"]) == (29, [made["path"]])
    assert say("verify", store) == {"other": [], "shop": []}
    Path(made["path"]).rename(tmp_path / "away")
    done = run("forget", store, "shop", "ben", "--yes")
    assert done.stderr == f"out of reach, and still holding their rows: {made['path']}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "{}", "none"], "has no population 'none'; it has 'other', 'shop'\n"),
        (["verify", "{}", "none"], "has no population 'none'; it has 'other', 'shop'\n"),
        (["archive", "{}", "none", ".", "--before", "1d"], "no population 'none'; it has 'other', 'shop'\n"),
        (["switch", "{}", "none", "--policy", "bass"], "no population 'none'; it has 'other', 'shop'\n"),
        (["forget", "{}", "none", "ada", "--yes"], "no population 'none'; it has 'other', 'shop'\n"),
        (["contest", "{}", "none", "--end"], "no population 'none'; it has 'other', 'shop'\n"),
        (["import", "{}", "none", "x.csv"], "it has 'other', 'shop'; give policy and dim to make it\n"),
        (["list", "{}.none"], "No such file"),
        (["forget", "{}.none", "shop", "ada", "--yes"], "No such file"),
        (["export", "{}", "shop", "out.txt"], "path must end in .parquet or .jsonl, got 'out.txt'"),
        (["import", "{}", "shop", "none.csv"], "none.csv: No such file"),
        (["forget", "{}", "shop", "dan", "--yes"], "population 'shop' has no agent 'dan'"),
    ],
)
def test_mistakes_take_one_line(arguments: list[str], message: str, store: str) -> None:
    error = run(*(argument.replace("{}", store) for argument in arguments), code=2).stderr
    assert message in error
    assert error.count("\n") == 1


def test_reading_beside_an_owner(store: str) -> None:
    with shoal.open(store) as controller:
        controller.population("shop").decide("ada", ARMS)
        assert say("show", store, "shop")["pending"] == 2
        assert "is open for writing in process" in run("forget", store, "shop", "ada", "--yes", code=2).stderr
