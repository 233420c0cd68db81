"""`shoal evaluate` and `shoal population switch`, as a user meets them; and the report in a browser."""

import getpass
import json
from pathlib import Path
from typing import Any

import pytest
from tests.browser import needs_browser, open_browser
from tests.commands import Done, call
from tests.live.evaluation.shops import shop
from tests.live.evaluation.test_baseline import serve
from tests.live.evaluation.test_logs import ARMS, rows, write

import shoal
from shoal.live.evaluation.report import document, write_evaluation


def run(*arguments: str, code: int = 0) -> Done:
    done = call(*arguments)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("evaluate") / "shop.db"
    with shoal.open(path, sync="normal") as controller:
        serve(shop(controller, holdout=0.3, explore=0.5), 30, 40)
    return str(path)


def test_a_population(store: str, tmp_path: Path) -> None:
    said = run("evaluate", store).stdout
    assert said.startswith("dividend  ")
    assert "(holdout; nobody was on both sides)" in said
    said = run(
        "evaluate", store, "--policy", "independent", "-p", "alpha=0.5", "--report", str(tmp_path)
    ).stdout
    assert "doubly robust" in said
    assert "what if   " in said
    assert (tmp_path / "index.html").is_file()
    found = json.loads(run("evaluate", store, "-p", "gamma=1", "--json").stdout)
    assert found["evaluations"][0]["parameters"]["gamma"] == 1
    assert found["what_if"][0]["policy"] == "bass"
    assert found["uplift"]["how"] == "holdout"
    assert found["dividend"]["count"] == 1200
    assert (
        json.loads(run("evaluate", store, "--since", "2020-01-01", "--json").stdout)["dividend"]["count"]
        == 1200
    )
    error = run("evaluate", store, "--since", "soon", code=2).stderr
    assert error.startswith("shoal: --since must be a date")


def test_a_log(tmp_path: Path) -> None:
    arms = write(
        tmp_path / "arms.csv", [{"arm": name, "features": json.dumps(x)} for name, x in ARMS.items()]
    )
    log = str(write(tmp_path / "log.parquet", rows(1500)))
    options = ["--probability", "p", "--arm", "arm", "--arms", str(arms), "--agent", "who"]
    said = run("evaluate", log, *options, "--policy", "independent").stdout
    assert "SWITCH" in said
    assert "Recorded probabilities agree" in said
    page = tmp_path / "page"
    reported = run("evaluate", log, *options, "--policy", "independent", "--report", str(page)).stdout
    assert reported == f"{said}report    {page / 'index.html'}\n"
    text = (page / "index.html").read_text()
    for words in ("What would other policies have earned? log.parquet", "doubly robust"):
        assert words in text, words
    found: Any = json.loads(run("evaluate", log, "--probability", "p", "--target", "q", "--json").stdout)
    assert [one["name"] for one in found[0]["estimates"]] == ["IPS", "SNIPS", "doubly robust"]
    assert run("evaluate", log, code=2).stderr.startswith("shoal: --probability must name the column")
    bad = rows(5)
    bad[2]["p"] = 0
    error = run(
        "evaluate", str(write(tmp_path / "bad.csv", bad)), "--probability", "p", "--target", "q", code=2
    )
    assert "bad.csv, line 4: p must be" in error.stderr


def test_switch(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shoal.open(path, sync="normal") as controller:
        serve(shop(controller), 3, 5)
    said = run("population", "switch", str(path), "shop", "--policy", "independent").stdout
    assert said == "'shop' goes on with independent from record 38\n"
    back = json.loads(run("population", "switch", str(path), "shop", "--back", "--json").stdout)
    assert (back["policy"], back["sequence"]) == ("bass", 39)
    with shoal.open(path, read_only=True) as controller:
        who = [one.by for one in controller.population("shop").switches]
    assert who == ["", getpass.getuser(), getpass.getuser()]
    error = run("population", "switch", str(path), "shop", "--back", "-p", "alpha=1", code=2).stderr
    assert "leave out --policy" in error
    again = run("population", "switch", str(path), "shop", "-p", "noise_scale=estimated", "--json").stdout
    assert json.loads(again)["parameters"]["noise_scale"] is None


@needs_browser
def test_the_report_in_a_browser(store: str, tmp_path: Path) -> None:
    with shoal.open(store, read_only=True) as controller:
        one = controller.population("shop")
        page = write_evaluation(one, tmp_path, [one.evaluate("independent")])
    with open_browser() as browser:
        complaints: list[str] = []
        for width in (1400, 420):
            view = browser.new_page(viewport={"width": width, "height": 900})
            view.on("pageerror", lambda error: complaints.append(str(error)))
            view.goto(page.as_uri())
            titles = view.locator("h2").all_inner_texts()
            assert [title for title in titles if title][:2] == ["Uplift", "The dividend of sharing over time"]
            assert view.locator("table").count() >= 5
            assert view.evaluate("document.documentElement.scrollWidth") <= width
            assert "::" not in view.locator("body").inner_text()
            assert not complaints
            view.close()
    text = (tmp_path / "tables.md").read_text()
    assert "Most helped" in text


def test_a_report_of_nothing() -> None:
    empty = document(shop())
    assert empty.lead == "Too early to say whether sharing pays: 0 rewards since the start."
    one = shop(apprentice=True, explore=0.0)
    serve(one, 1, 5)
    few = document(one)
    assert few.lead == "Too early to say whether sharing pays: 5 rewards since the start."
    assert "chance did so 0 times" in few.remarks[0]
