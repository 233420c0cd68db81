"""A user's own log, in CSV and Parquet, with features from a file or a table; what is wrong with files."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import shoal
from shoal.core.logs import LogTable, read_agents
from shoal.lab.environments.logged import LoggedRatings
from shoal.lab.environments.sources import DataUnavailable

# Ada was shown the banner twice; Cleo was shown one thing, once. Nobody was shown the poster.
LOG = [
    ("ada", 7, 1.0),
    ("ben", 3, 0.25),
    ("ada", 3, 0.5),
    ("ada", 7, 0.0),
    ("ben", 9, 1.0),
    ("cleo", 9, 0.75),
]
ARMS: dict[str, list[Any]] = {"size": [1.0, 2.0, 4.0, 3.0], "arm": [9, 5, 3, 7], "colour": [0, 1, 1, 0]}
OBSERVED = {("ada", "7"): 0.5, ("ada", "3"): 0.5, ("ben", "3"): 0.25, ("ben", "9"): 1.0, ("cleo", "9"): 0.75}
FEATURES = {"9": [1.0, 0.0], "3": [4.0, 1.0], "7": [3.0, 0.0]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    lines = ["when,agent,arm,reward", *(f'"1,5",{agent},{arm},{reward}' for agent, arm, reward in LOG)]
    path.write_text("\n".join(lines) + "\n\n")
    return path


@pytest.fixture
def arms(tmp_path: Path) -> Path:
    path = tmp_path / "arms.csv"
    rows = zip(*ARMS.values(), strict=True)
    path.write_text("\n".join([",".join(ARMS), *(",".join(map(str, row)) for row in rows)]))
    return path


def check(world: LoggedRatings) -> None:
    assert world.arm_ids.tolist() == ["9", "3", "7"]
    assert world.arms.tolist() == [FEATURES[arm] for arm in world.arm_ids]
    assert sorted(world.agent_ids) == ["ada", "ben", "cleo"]
    for i, agent in enumerate(world.agent_ids):
        for k, arm in enumerate(world.arm_ids):
            assert world.observed[i, k] == ((agent, arm) in OBSERVED)
            if world.observed[i, k]:
                assert world.mean_rewards[i, k] == OBSERVED[agent, arm]
            else:
                assert 0.25 <= world.mean_rewards[i, k] <= 1.0


class TestFormats:
    @pytest.mark.parametrize("features", ["csv", "parquet", "mapping", "arrow"])
    @pytest.mark.parametrize("form", ["csv", "parquet"])
    def test_to_the_value(self, tmp_path: Path, log: Path, arms: Path, form: str, features: str) -> None:
        table: Any = arms
        if features != "csv":
            table = ARMS if features == "mapping" else pyarrow.table(ARMS)
        if features == "parquet":
            pyarrow.parquet.write_table(table, tmp_path / "arms.parquet")
            table = str(tmp_path / "arms.parquet")
        if form == "csv":
            check(LoggedRatings.from_csv(log, features=table, seed=0))
        else:
            agents, shown, rewards = zip(*LOG, strict=True)
            columns = pyarrow.table({"reward": rewards, "agent": agents, "arm": shown})
            pyarrow.parquet.write_table(columns, tmp_path / "log.parquet", row_group_size=2)
            check(LoggedRatings.from_parquet(tmp_path / "log.parquet", features=table, seed=0))

    @pytest.mark.parametrize("form", [None, "csv", "parquet"])
    def test_the_first_bytes_tell_the_form(self, tmp_path: Path, log: Path, form: str | None) -> None:
        agents, shown, rewards = zip(*LOG, strict=True)
        columns = pyarrow.table({"agent": agents, "arm": shown, "reward": rewards})
        pyarrow.parquet.write_table(columns, tmp_path / "log")
        if form != "csv":
            check(LoggedRatings(tmp_path / "log", features=ARMS, form=form, seed=0))
        if form != "parquet":
            check(LoggedRatings(log, features=ARMS, form=form, seed=0))

    def test_other_names_of_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        path.write_text("user,ad,click\na,x,1\nb,y,0\n")
        features = {"ad": ["y", "x"], "f": [1.0, 2.0]}
        world = LoggedRatings.from_csv(
            path, agent="user", arm="ad", reward="click", features=features, n_agents=1, n_arms=1, seed=0
        )
        assert (world.arm_ids.tolist(), world.arms.tolist(), world.n_agents) == (["y"], [[1.0]], 1)

    def test_other_features_are_another_world(self, log: Path) -> None:
        LoggedRatings.from_csv(log, features=ARMS, seed=0)
        other = LoggedRatings.from_csv(log, features={**ARMS, "size": [5.0, 6.0, 7.0, 8.0]}, seed=0)
        assert other.arms[:, 0].tolist() == [5.0, 7.0, 8.0]

    def test_most_rated(self, log: Path) -> None:
        world = LoggedRatings.from_csv(log, features=ARMS, arms="most-rated", n_arms=2, dim=1, seed=0)
        assert (world.arm_ids.tolist(), world.arms.tolist()) == (["9", "3"], [[1.0], [4.0]])

    def test_three_lines_say_whether_sharing_would_have_helped(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        kinds = rng.standard_normal((12, 3))
        tastes = np.array([1.0, 0.5, 0.0]) + 0.05 * rng.standard_normal((20, 3))  # much alike
        rows = [
            f"u{i},{k},{tastes[i] @ kinds[k]}"
            for i in range(20)
            for k in range(12)
            if rng.random() < 0.9 or i == k
        ]
        (tmp_path / "log.csv").write_text("\n".join(["agent,arm,reward", *rows]))
        table = {"arm": list(range(12)), **{f"x{j}": kinds[:, j] for j in range(3)}}
        world = LoggedRatings.from_csv(tmp_path / "log.csv", features=table, seed=0)
        alone, together = (
            np.mean(
                [shoal.simulate(make(), world, horizon=5_000, seed=seed).final_regret for seed in range(5)]
            )
            for make in (
                lambda: shoal.Independent(n_agents=20, dim=3, alpha=0.3),
                lambda: shoal.BASS(n_agents=20, dim=3, alpha=0.3, delta=0.1),
            )
        )
        assert together < 0.5 * alone


def test_the_guide_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "your-data.md").read_text(encoding="utf-8")
    _, code, log, arms, users, _ = re.findall(r"```(?:python)?\n(.*?)```", guide, flags=re.DOTALL)
    (tmp_path / "log.csv").write_text(log)
    (tmp_path / "arms.csv").write_text(arms)
    (tmp_path / "users.csv").write_text(users)
    described = read_agents(LogTable(tmp_path / "users.csv"), "agent", ["ben", "ada", "eve"])
    assert described.columns == ["age", "mobile"]
    expected = [[np.nan, 0.0], [34.0, 1.0], [np.nan, np.nan]]
    assert np.array_equal(described.values, expected, equal_nan=True)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["world"].arms.tolist() == [[4.0, 2.0, 0.0], [2.0, 2.0, 1.0]]
    alone, together = re.findall(r"^(\w+) +([\d,]+)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert (alone[0], together[0]) == ("Independent", "ClusterMixture")
    assert int(alone[1].replace(",", "")) > 0
    assert int(together[1].replace(",", "")) > 0


def test_rewards_of_any_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"u{i},{k},{50.0 * rng.normal()}" for i in range(30) for k in range(20) if rng.random() < 0.5]
    (tmp_path / "log.csv").write_text("\n".join(["agent,arm,reward", *rows]))
    features = {"arm": list(range(20)), "x": rng.normal(size=20)}
    world = LoggedRatings.from_csv(tmp_path / "log.csv", features=features, seed=0)
    assert np.isfinite(world.mean_rewards).all()
    assert 5.0 < world.mean_rewards[~world.observed].std() < 50.0


class TestWhatIsWrong:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("agent,arm,reward\na,9,x\n", r"log\.csv, line 2: reward must be a number, got 'x'"),
            (
                "agent,arm,reward\na,9,1\na,9,nan\n",
                r"log\.csv, line 3: reward must be a finite number in .*, got 'nan'",
            ),
            (
                "agent,arm,reward\na,9,1\n\na,9\n",
                r"log\.csv, line 4: 2 fields, where the heading has 3: \['a', '9'\]",
            ),
            ("agent,arm,reward\n,9,1\n", r"log\.csv, line 2: agent is empty"),
            (
                "agent;arm;reward\na;9;1\n",
                r"log\.csv has no column 'agent'; it has 'agent;arm;reward' \(commas separate columns\)",
            ),
            ("agent,arm,reward\n", r"log\.csv has no rows"),
            (
                "agent,arm,reward,x,x,reward\na,9,1,0,0,0\n",
                r"log\.csv has 2 columns 'reward'; it has 'agent', 'arm', 'reward', 'x', 'x', 'reward'",
            ),
            ("", r"log\.csv has no column 'agent'; it has none at all"),
            ("agent,arm,reward\na,4,1\n", r"features: 1 arms with rewards have no row, the first is '4'"),
        ],
    )
    def test_broken_log(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "log.csv"
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            LoggedRatings.from_csv(path, features=ARMS, seed=0)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("arm,x\n9,1\n3,high\n7,1\n", r"arms\.csv, line 3: x must be a number, got 'high'"),
            ("arm,x\n9,1\n3,1\n9,2\n", r"arms\.csv, line 4: the arm '9' is there twice"),
            (
                "name,x\n9,1\n",
                r"arms\.csv has no column 'arm'; it has 'name', 'x'",
            ),
            ("arm\n9\n", r"arms\.csv, line 2: the arm '9' has no features"),
            ("arm,x\n", r"arms\.csv has no rows"),
            (
                "arm,x,y,x\n9,1,2,3\n",
                r"arms\.csv has 2 columns 'x'; it has 'arm', 'x', 'y', 'x'",
            ),
            ("arm,x,arm\n9,1,2\n", r"arms\.csv has 2 columns 'arm'"),
        ],
    )
    def test_broken_features(self, tmp_path: Path, log: Path, text: str, message: str) -> None:
        path = tmp_path / "arms.csv"
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            LoggedRatings.from_csv(log, features=path, seed=0)

    def test_a_feature_twice_in_parquet_or_a_table(self, tmp_path: Path, log: Path) -> None:
        table = pyarrow.Table.from_arrays([[9, 3, 7], [1, 2, 3], [1, 2, 3]], names=["arm", "x", "x"])
        with pytest.raises(ValueError, match="features has 2 columns 'x'"):
            LoggedRatings.from_csv(log, features=table, seed=0)
        pyarrow.parquet.write_table(table, tmp_path / "arms.parquet")
        with pytest.raises(ValueError, match=r"arms\.parquet has 2 columns 'x'"):
            LoggedRatings.from_csv(log, features=tmp_path / "arms.parquet", seed=0)

    def test_missing_values_in_parquet(self, tmp_path: Path) -> None:
        columns = pyarrow.table({"agent": ["a", "b"], "arm": [9, 3], "reward": [1.0, None]})
        pyarrow.parquet.write_table(columns, tmp_path / "log.parquet")
        with pytest.raises(ValueError, match=r"log\.parquet, row 2: reward is empty"):
            LoggedRatings.from_parquet(tmp_path / "log.parquet", features=ARMS, seed=0)

    def test_not_utf8(self, tmp_path: Path, log: Path) -> None:
        path = tmp_path / "latin.csv"
        path.write_bytes("agent,arm,reward\nandré,9,1\n".encode("latin-1"))
        with pytest.raises(
            ValueError,
            match=r"latin\.csv, line 1 or later: damaged, or not CSV in UTF-8 \('utf-8' codec can't decode",
        ):
            LoggedRatings.from_csv(path, features=ARMS, seed=0)
        with pytest.raises(
            ValueError,
            match=r"latin\.csv, line 1 or later: damaged, or not CSV in UTF-8 \('utf-8' codec can't decode",
        ):
            LoggedRatings.from_csv(log, features=path, seed=0)

    def test_not_parquet(self, log: Path) -> None:
        with pytest.raises(ValueError, match=r"log\.csv: not a Parquet file, or a damaged one"):
            LoggedRatings.from_parquet(log, features=ARMS, seed=0)

    def test_no_such_form(self, log: Path) -> None:
        with pytest.raises(ValueError, match="form must be one of 'csv', 'parquet', got 'json'"):
            LoggedRatings(log, features=ARMS, form="json")

    def test_no_downloader_is_asked_for(
        self, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pooch", None)
        monkeypatch.delenv("SHOAL_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        check(LoggedRatings(log, features=ARMS, seed=0))
        assert [path.name for path in (tmp_path / "home").iterdir()] == ["shoal"]

    def test_no_file(self, tmp_path: Path, log: Path) -> None:
        with pytest.raises(DataUnavailable, match=r"there is no file .*nowhere\.csv"):
            LoggedRatings.from_csv(tmp_path / "nowhere.csv", features=ARMS)
        with pytest.raises(DataUnavailable, match=r"there is no file .*nowhere\.csv"):
            LoggedRatings.from_csv(log, features=tmp_path / "nowhere.csv")

    def test_fewer_agents_than_asked_for(self, log: Path) -> None:
        with pytest.raises(ValueError, match=r"n_agents must be at most 3, .* in .*log\.csv, got 4"):
            LoggedRatings.from_csv(log, features=ARMS, n_agents=4, seed=0)
