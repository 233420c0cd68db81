"""Learning-to-rank files in each form, checked to the value; groups; broken files; the real sample."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.lab.environments import datasets, letor
from shoal.lab.environments.letor import LearningToRank
from shoal.lab.environments.sources import DataUnavailable

REAL = Path(__file__).parents[4] / "shared" / "data" / "ltr" / "rank.letor.txt"
needs_real = pytest.mark.skipif(not REAL.is_file(), reason="the real data is not here")

# Two heaps of documents, around (1, 0, 0, 0) and (0, 0, 0, 9). Query 7 has none in the second heap.
LINES = [
    "# a comment on its own",
    "2 qid:7 1:1.0 # doc 1",
    "1 qid:7 1:1.25",
    "",
    "4 qid:12 4:9.0 1:0.0",
    "0 qid:12 4:9.0 #qid:99 1:5",
    "3 qid:12 1:0.75",
    "0 qid:3 4:9 2:0.5",
]
QUERIES = ["7", "7", "12", "12", "12", "3"]
RELEVANCE = [2.0, 1.0, 4.0, 0.0, 3.0, 0.0]
FEATURES = [[1, 0, 0, 0], [1.25, 0, 0, 0], [0, 0, 0, 9], [0, 0, 0, 9], [0.75, 0, 0, 0], [0, 0.5, 0, 9]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SHOAL_LETOR", raising=False)


def write(path: Path, lines: list[str]) -> Path:
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def without_qid(lines: list[str]) -> list[str]:
    return [" ".join(word for word in line.split() if not word.startswith("qid:")) for line in lines]


class TestFormats:
    @pytest.mark.parametrize("name", ["rank.txt", "rank.txt.gz"])
    def test_to_the_value(self, tmp_path: Path, name: str) -> None:
        documents = letor.read(letor.locate(write(tmp_path / name, LINES)))
        assert [documents.query_ids[query] for query in documents.queries] == QUERIES
        assert documents.relevance.tolist() == RELEVANCE
        assert documents.features.toarray().tolist() == FEATURES

    @pytest.mark.parametrize("name", ["rank.train", "rank.train.gz"])
    @pytest.mark.parametrize("end", [".group", ".query"])
    def test_counts_beside_the_file(self, tmp_path: Path, name: str, end: str) -> None:
        path = write(tmp_path / name, without_qid(LINES))
        (tmp_path / f"rank.train{end}").write_text("2\n3\n1\n")
        documents = letor.read(letor.locate(path))
        assert documents.queries.tolist() == [0, 0, 1, 1, 1, 2]
        assert documents.relevance.tolist() == RELEVANCE
        assert documents.features.toarray().tolist() == FEATURES

    def test_feature_1_is_the_first_column_and_the_query_is_none(self, tmp_path: Path) -> None:
        documents = letor.read([write(tmp_path / "rank", ["1 qid:1 1:0.5 2:0.25", "0 qid:2 1:0.75"])])
        assert documents.features.toarray().tolist() == [[0.5, 0.25], [0.75, 0.0]]

    def test_features_counted_from_0(self, tmp_path: Path) -> None:
        documents = letor.read([write(tmp_path / "rank", ["1 qid:1 0:0.5 2:0.25", "0 qid:2 1:0.75"])])
        assert documents.features.toarray().tolist() == [[0.5, 0.0, 0.25], [0.0, 0.75, 0.0]]

    @pytest.mark.parametrize("form", ["prefix", "directory"])
    def test_parts(self, tmp_path: Path, form: str) -> None:
        folder = tmp_path / "set1"
        stem = f"{folder}."
        if form == "directory":
            folder.mkdir()
            stem = f"{folder}/"
        write(Path(f"{stem}test.txt.gz"), ["3 qid:3 1:1"])
        write(Path(f"{stem}train.txt"), ["1 qid:1 1:1", "2 qid:2 2:1"])
        write(Path(f"{stem}valid.txt"), ["2 qid:2 1:1"])
        documents = letor.read(letor.locate(folder))
        assert documents.relevance.tolist() == [1.0, 2.0, 2.0, 3.0]
        assert documents.queries.tolist() == [0, 1, 1, 2]

    def test_counts_of_two_parts_are_of_different_queries(self, tmp_path: Path) -> None:
        for part in ("train", "test"):
            write(tmp_path / f"set1.{part}.txt", ["1 1:1", "2 2:1"])
            (tmp_path / f"set1.{part}.txt.group").write_text("2\n")
        assert letor.read(letor.locate(tmp_path / "set1")).queries.tolist() == [0, 0, 1, 1]


class TestGroups:
    def test_rewards_and_centres_to_the_value(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rank.txt", LINES)
        world = LearningToRank(path, n_agents=3, n_groups=2, n_arms=2, dim=4, fill="tuned", seed=0)
        # Groups are numbered by their first documents: group 0 is the first heap.
        assert world.arms == pytest.approx(np.array([[1.0, 0, 0, 0], [0, 0.5 / 3, 0, 9.0]]))
        rewards = dict(zip(world.agent_ids.tolist(), world.mean_rewards.tolist(), strict=True))
        observed = dict(zip(world.agent_ids.tolist(), world.observed.tolist(), strict=True))
        assert observed == {"7": [True, False], "12": [True, True], "3": [False, True]}
        assert rewards["7"][0] == 1.5
        assert rewards["12"] == [3.0, 2.0]
        assert rewards["3"][1] == 0.0

    def test_as_the_authors_read_it_the_first_document_of_a_group_counts(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rank.txt", LINES)
        world = LearningToRank(path, n_agents=3, n_groups=2, n_arms=2, dim=4, loader="authors", seed=0)
        rewards = dict(zip(world.agent_ids.tolist(), world.mean_rewards.tolist(), strict=True))
        assert rewards["7"][0] == 2.0  # of 2 and 1
        assert rewards["12"] == [3.0, 4.0]  # of 4 and 0 in the second group
        with pytest.raises(ValueError, match="loader must be one of 'shoal', 'authors', got 'paper'"):
            LearningToRank(path, loader="paper")

    def test_dim_takes_the_first_features(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rank.txt", LINES)
        world = LearningToRank(path, n_agents=3, n_groups=2, n_arms=2, dim=1, seed=0)
        assert world.arms.tolist() == [[1.0], [0.0]]

    def test_most_rated(self, tmp_path: Path) -> None:
        lines = [*LINES, "1 qid:4 4:9", "1 qid:5 4:9"]
        path = write(tmp_path / "rank.txt", lines)
        options: dict[str, Any] = {"n_agents": 5, "n_groups": 2, "n_arms": 1, "dim": 4, "seed": 0}
        assert LearningToRank(path, arms="first", **options).arms[0, 3] == 0.0
        assert LearningToRank(path, arms="most-rated", **options).arms[0, 3] == 9.0

    def test_empty_groups_are_no_arms(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rank.txt", ["1 qid:1 1:1", "2 qid:1 2:1", "3 qid:2 1:1", "0 qid:2 2:1"])
        ratings, features = letor.group(letor.read([path]), 4)
        assert features.values.tolist() == [[1.0, 0.0], [0.0, 1.0]]
        assert ratings.rewards.tolist() == [1.0, 2.0, 3.0, 0.0]
        with pytest.raises(
            ValueError, match=r"n_arms must be at most 2, the arms of .*rank\.txt with rewards"
        ):
            LearningToRank(path, n_agents=2, n_groups=4, n_arms=3, dim=2, seed=0)

    def test_empty_groups_between_others(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class KMeans:
            cluster_centers_ = np.arange(5.0)[:, None]

            def __init__(self, *_: Any, **__: Any) -> None: ...

            def fit_predict(self, _: Any) -> Any:
                return np.array([3, 1, 1, 4])

        monkeypatch.setattr("sklearn.cluster.KMeans", KMeans)
        path = write(tmp_path / "rank.txt", ["1 qid:1 1:1", "2 qid:1 2:1", "3 qid:2 1:1", "0 qid:2 2:1"])
        ratings, features = letor.group(letor.read([path]), 4)
        assert features.values.tolist() == [[3.0], [1.0], [4.0]]
        assert list(zip(ratings.agents, ratings.arms, ratings.rewards, strict=True)) == [
            (0, 0, 1.0),
            (0, 1, 2.0),
            (1, 1, 3.0),
            (1, 2, 0.0),
        ]

    def test_another_number_of_groups_is_another_world(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rank.txt", LINES)
        options: dict[str, Any] = {"n_agents": 3, "n_arms": 2, "dim": 4, "seed": 0}
        two, five = (LearningToRank(path, n_groups=n_groups, **options) for n_groups in (2, 5))
        assert not np.array_equal(two.arms, five.arms)

    def test_the_same_every_time_and_for_every_seed(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        lines = [f"{rng.integers(5)} qid:{n // 5} 1:{rng.random()} 2:{rng.random()}" for n in range(200)]
        path = write(tmp_path / "rank.txt", lines)
        options: dict[str, Any] = {"n_agents": 5, "n_groups": 10, "n_arms": 8, "dim": 2}
        worlds = [
            LearningToRank(path, seed=seed, cache=tmp_path / cache, **options)
            for seed, cache in [(0, "a"), (0, "b"), (1, "c")]
        ]
        assert np.array_equal(worlds[0].arms, worlds[1].arms)
        assert np.array_equal(worlds[0].arms, worlds[2].arms)
        assert np.array_equal(worlds[0].mean_rewards, worlds[1].mean_rewards)
        assert worlds[0].agent_ids.tolist() != worlds[2].agent_ids.tolist()


class TestWhatIsWrong:
    @pytest.mark.parametrize(
        "line",
        [
            "x qid:1 1:1",
            "1 qid:1 1:one",
            "1 qid:1 1=1",
            "1 qid:1 1:1 1:2",
            "1 qid:1 -1:1",
            "1 qid: 1:1",
            "nan qid:1 1:1",
            "1 qid:1 1:inf",
            "1 1:1 qid:1",
            "1,1,0.5",
        ],
    )
    def test_broken_line(self, tmp_path: Path, line: str) -> None:
        path = write(tmp_path / "rank.txt", [*LINES[:3], line, *LINES[3:]])
        with pytest.raises(ValueError, match="expected") as caught:
            LearningToRank(path, seed=0)
        expected = "expected 'relevance qid:query feature:value …'"
        assert str(caught.value) == f"{path}:4: {expected}, got {line!r}"

    def test_some_lines_without_a_query(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rank.txt", ["1 qid:1 1:1", "1 1:1"])
        with pytest.raises(ValueError, match=r"rank\.txt:2: expected 'qid:' on every line or on none"):
            LearningToRank(path, seed=0)

    def test_no_query_and_no_counts(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rank.txt", ["# nothing", "1 1:1"])
        with pytest.raises(
            ValueError, match=r"rank\.txt:2: no 'qid:', and no rank\.txt\.group or rank\.txt\.query"
        ):
            LearningToRank(path, seed=0)

    @pytest.mark.parametrize(
        ("counts", "message"),
        [
            ("1\n", r"rank\.txt:2: more documents than .*rank\.txt\.group counts"),
            ("1\n2\n", r"rank\.txt: fewer documents than .*rank\.txt\.group counts"),
            ("1\n\none\n", r"rank\.txt\.group:3: expected a number of documents, got 'one'"),
        ],
    )
    def test_counts_that_do_not_fit(self, tmp_path: Path, counts: str, message: str) -> None:
        path = write(tmp_path / "rank.txt", ["1 1:1", "1 1:1"])
        (tmp_path / "rank.txt.group").write_text(counts)
        with pytest.raises(ValueError, match=message):
            LearningToRank(path, seed=0)

    def test_truncated_gzip(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rank.txt.gz", LINES)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ValueError, match=r"rank\.txt\.gz: damaged or incomplete"):
            LearningToRank(path, seed=0)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_agents": 4}, r"n_agents must be at most 3, .* in .*rank\.txt, got 4"),
            ({"n_groups": 7}, r"n_groups must be at most 6, the documents in .*rank\.txt, got 7"),
            ({"n_groups": 0}, r"n_groups must be an integer of at least 1, got 0"),
            ({"dim": 5}, r"dim must be at most 4, the features in .*rank\.txt, got 5"),
        ],
    )
    def test_more_than_there_is(self, tmp_path: Path, options: dict[str, Any], message: str) -> None:
        path = write(tmp_path / "rank.txt", LINES)
        fine = {"n_agents": 3, "n_groups": 2, "n_arms": 2, "dim": 2, "seed": 0}
        with pytest.raises(ValueError, match=message):
            LearningToRank(path, **{**fine, **options})

    def test_no_documents(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no documents with features"):
            LearningToRank(write(tmp_path / "rank.txt", ["# none"]), seed=0)

    def test_no_path(self, tmp_path: Path) -> None:
        with pytest.raises(DataUnavailable, match=r"SHOAL_LETOR.*Webscope C14.*sign its agreement"):
            LearningToRank(seed=0)
        with pytest.raises(DataUnavailable, match=r"there is none at .*nowhere nor at .*nowhere.train.txt"):
            LearningToRank(tmp_path / "nowhere", seed=0)


def test_path_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_LETOR", str(write(tmp_path / "rank.txt", LINES)))
    assert LearningToRank(n_agents=2, n_groups=2, n_arms=2, dim=2, seed=0).n_agents == 2


def test_inspect_and_prepare(tmp_path: Path) -> None:
    path = write(tmp_path / "rank.txt", LINES)
    record = datasets.inspect(path)
    assert (record.kind, record.n_agents, record.n_arms, record.n_observed) == ("letor", 3, 6, 6)
    assert (record.n_features, record.reward_low, record.reward_high) == (4, 0.0, 4.0)
    assert record.files == {"rank.txt": path.stat().st_size}
    assert "Yahoo!" in record.licence
    prepared = datasets.prepare(path, n_groups=2, n_arms=2, dim=1, fill="tuned")
    assert (prepared.n_agents, prepared.n_arms, prepared.n_observed, prepared.n_zero_arms) == (3, 2, 4, 1)


@needs_real
class TestReal:
    def test_counts(self) -> None:
        record = datasets.inspect(REAL)
        assert (record.n_observed, record.n_agents, record.n_features) == (3_773, 251, 300)
        assert (record.reward_low, record.reward_high) == (0.0, 4.0)

    def test_playable(self) -> None:
        world = LearningToRank(REAL, seed=0)
        assert (world.arms.shape, world.mean_rewards.shape) == ((30, 10), (100, 30))
        policy = shoal.BASS(n_agents=100, dim=10, alpha=1.0, delta=0.1)
        assert shoal.simulate(policy, world, horizon=2_000, seed=0).final_regret > 0.0

    def test_errors(self) -> None:
        errors = datasets.errors(REAL)
        assert errors["tuned"] < errors["mean-only"] < errors["paper, not rounded"] < errors["paper"]
