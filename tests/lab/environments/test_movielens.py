"""MovieLens in each of its formats, checked to the value; broken files; downloads; the real set."""

import functools
import hashlib
import http.server
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.lab.environments import datasets, movielens, sources
from shoal.lab.environments.movielens import GENRES, MovieLens
from shoal.lab.environments.ratings import FILLS, factorise, held_out_errors
from shoal.lab.environments.sources import DataUnavailable

REAL = Path(__file__).parents[4] / "shared" / "data" / "ml-latest-small"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real data is not here")

# Ids start at 1, have gaps, and the ratings are not in the order of the movies. User 9 rates one movie, once.
RATINGS = [(1, 5, 4.0), (1, 2, 3.0), (7, 1, 5.0), (7, 5, 2.0), (7, 2, 1.0), (9, 5, 5.0)]
MOVIES: list[tuple[int, str, list[str]]] = [
    (1, "Toy Story (1995)", ["Animation", "Children", "Comedy"]),
    (2, "American President, The (1995)", ["Drama"]),
    (3, "Never rated (1990)", ["Action"]),
    (5, "No genre (2000)", []),
]
FLAGS = {
    1: [0, 0, 1, 1, 1, 0, 0, 0, 0, 0],
    2: [0, 0, 0, 0, 0, 0, 0, 1, 0, 0],
    5: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
}
LAYOUTS = ["csv", "dat", "100k"]
README = "Summary\n=======\nRatings.\n\nUsage License\n=============\nBe kind.\n\nCitation\n========\nCite.\n"


def write(folder: Path, layout: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.txt").write_text(README)
    if layout == "csv":
        lines = ["userId,movieId,rating,timestamp", *(f"{u},{m},{r},96498{u}" for u, m, r in RATINGS)]
        (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
        rows = [f'{m},"{title}",{"|".join(genres) or "(no genres listed)"}' for m, title, genres in MOVIES]
        (folder / "movies.csv").write_text(
            "\n".join(["movieId,title,genres", *rows]) + "\n", encoding="utf-8"
        )
    elif layout == "dat":
        (folder / "ratings.dat").write_text("".join(f"{u}::{m}::{r:g}::978300760\n" for u, m, r in RATINGS))
        rows = [f"{m}::{title} é::{'|'.join(genres)}" for m, title, genres in MOVIES]
        text = "\n".join(rows).replace("Children", "Children's")
        (folder / "movies.dat").write_text(text + "\n", encoding="latin-1")
    else:
        (folder / "u.data").write_text("".join(f"{u}\t{m}\t{r:g}\t881250949\n" for u, m, r in RATINGS))
        order = "unknown Action Adventure Animation Children Comedy Crime Documentary Drama Fantasy Film-Noir"
        order += " Horror Musical Mystery Romance Sci-Fi Thriller War Western"
        rows = []
        for m, title, genres in MOVIES:
            flags = [str(int(genre in (genres or ["unknown"]))) for genre in order.split()]
            rows.append("|".join([f"{m}|{title} é|01-Jan-1995||http://x", *flags]))
        (folder / "u.item").write_text("\n".join(rows) + "\n", encoding="latin-1")
    return folder


def zipped(folder: Path) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for entry in sorted(folder.iterdir()):
            file.write(entry, f"{folder.name}/{entry.name}")
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SHOAL_MOVIELENS", raising=False)
    return tmp_path / "cache"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["directory", "zip"])
class TestFormats:
    def path(self, tmp_path: Path, layout: str, form: str) -> Path:
        folder = write(tmp_path / "ml", layout)
        return zipped(folder) if form == "zip" else folder

    def test_to_the_value(self, tmp_path: Path, layout: str, form: str) -> None:
        files = movielens.locate(self.path(tmp_path, layout, form))
        ratings, features = movielens.read(files)
        users, movies = ratings.agent_ids[ratings.agents], ratings.arm_ids[ratings.arms]
        assert list(zip(users, movies, ratings.rewards, strict=True)) == RATINGS
        assert features.ids.tolist() == [1, 2, 3, 5]
        named = [[genre for genre, flag in zip(GENRES, row, strict=True) if flag] for row in features.values]
        assert named == [genres for _, _, genres in MOVIES]

    @pytest.mark.parametrize("arms", ["first", "most-rated"])
    def test_features_and_rewards_are_of_the_same_movie(
        self, tmp_path: Path, layout: str, form: str, arms: str
    ) -> None:
        world = MovieLens(self.path(tmp_path, layout, form), n_agents=3, n_arms=3, arms=arms, seed=0)
        assert world.arm_ids.tolist() == ([1, 2, 5] if arms == "first" else [5, 2, 1])
        assert world.arms.tolist() == [FLAGS[movie] for movie in world.arm_ids]
        assert sorted(world.agent_ids) == [1, 7, 9]
        rated = {(user, movie): rating for user, movie, rating in RATINGS}
        for i, user in enumerate(world.agent_ids.tolist()):
            for k, movie in enumerate(world.arm_ids.tolist()):
                assert world.observed[i, k] == ((user, movie) in rated)
                if world.observed[i, k]:
                    assert world.mean_rewards[i, k] == rated[user, movie]
                else:
                    assert 1.0 <= world.mean_rewards[i, k] <= 5.0

    def test_inspect_and_prepare(self, tmp_path: Path, layout: str, form: str) -> None:
        path = self.path(tmp_path, layout, form)
        record = datasets.inspect(path)
        assert (record.kind, record.layout, record.licence) == ("movielens", layout, "Be kind.")
        assert (record.n_agents, record.n_arms, record.n_observed, record.n_features) == (3, 3, 6, 19)
        assert (record.reward_low, record.reward_high) == (1.0, 5.0)
        assert record.reward_mean == pytest.approx(20 / 6)
        assert sum(record.files.values()) > 0
        prepared = datasets.prepare(path, n_arms=3)
        assert (prepared.n_agents, prepared.n_arms, prepared.dim, prepared.n_observed) == (3, 3, 10, 6)
        assert (prepared.n_zero_arms, prepared.n_distinct_arms, prepared.from_cache) == (1, 3, False)
        assert datasets.prepare(path, n_arms=3).from_cache


def test_genres_that_are_new_come_last(tmp_path: Path) -> None:
    folder = write(tmp_path / "ml", "csv")
    with (folder / "movies.csv").open("a") as file:
        file.write("6,New,Zebra|Action\n7,Newer,Anime\n")
    features = movielens.read_movies(movielens.locate(folder))
    assert features.values.shape == (6, 21)
    assert np.flatnonzero(features.values[-2]).tolist() == [0, 20]
    assert np.flatnonzero(features.values[-1]).tolist() == [19]


def test_readme_without_headings(tmp_path: Path) -> None:
    folder = write(tmp_path / "ml", "csv")
    (folder / "README.txt").write_text("Be kind.\n")
    assert datasets.inspect(folder).licence == "Be kind."


def test_simulation(tmp_path: Path) -> None:
    world = MovieLens(write(tmp_path / "ml", "csv"), n_agents=3, n_arms=3, dim=10, seed=0)
    trace = shoal.simulate(shoal.BASS(n_agents=3, dim=10, alpha=1.0, delta=0.1), world, horizon=200, seed=0)
    assert 0.0 < trace.final_regret < 200 * 4.0


def test_loaders(tmp_path: Path) -> None:
    path = write(tmp_path / "ml", "csv")

    def world(**given: Any) -> MovieLens:
        return MovieLens(path, n_agents=3, n_arms=3, seed=0, **given)

    def same(one: MovieLens, other: MovieLens) -> bool:
        equal = np.array_equal(one.mean_rewards, other.mean_rewards)
        return equal and one.arm_ids.tolist() == other.arm_ids.tolist()

    assert same(world(), world(arms="most-rated", fill="tuned"))
    assert same(world(loader="authors", dim=5), world(loader="authors", dim=5, arms="first", fill="paper"))
    with pytest.raises(ValueError, match="loader must be one of 'shoal', 'authors', got 'paper'"):
        world(loader="paper")
    with pytest.raises(ValueError, match="arms must be 'first' and n_arms a number with loader='authors'"):
        world(loader="authors", arms="most-rated")
    with pytest.raises(ValueError, match=r"movies\.csv: loader='authors' needs movies 1 to 4, no 4"):
        MovieLens(path, n_agents=3, n_arms=4, loader="authors")
    prepared = datasets.prepare(path, n_arms=3)
    assert (prepared.arms, prepared.fill) == ("most-rated", "tuned")


@pytest.mark.parametrize("layout", ["csv", "dat"])
def test_as_the_authors_read_it(tmp_path: Path, layout: str) -> None:
    """Arm k has the ratings of movie k and the genres of movie k + 1, in the order in which genres appear."""
    world = MovieLens(write(tmp_path / "ml", layout), n_agents=3, n_arms=3, dim=5, loader="authors", seed=0)
    animation, children, comedy, drama, action = np.eye(5)
    assert world.arms.tolist() == [(animation + children + comedy).tolist(), drama.tolist(), action.tolist()]
    by_user = dict(zip(world.agent_ids.tolist(), range(3), strict=True))
    assert world.observed[by_user[7]].tolist() == [False, True, True]
    assert world.mean_rewards[by_user[7], 1:].tolist() == [5.0, 1.0]
    assert world.observed[by_user[1]].tolist() == [False, False, True]
    assert not world.observed[by_user[9]].any()
    # Nobody can have rated movie 0: it is predicted by each user's mean, rounded.
    ratings = movielens.read_as_authors(movielens.locate(tmp_path / "ml"), 3)[0]
    fitted = factorise(ratings, FILLS["paper"])
    means = np.rint(np.clip(fitted.mean + fitted.agent_biases, 1.0, 5.0))
    order = [ratings.agent_ids.tolist().index(user) for user in world.agent_ids.tolist()]
    assert world.mean_rewards[:, 0].tolist() == means[order].tolist()


def test_path_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_MOVIELENS", str(write(tmp_path / "ml", "csv")))
    assert MovieLens(n_agents=2, n_arms=2, seed=0).n_agents == 2


class TestWhatIsWrong:
    @pytest.mark.parametrize(
        ("layout", "name", "line", "text", "expected"),
        [
            ("csv", "ratings.csv", 3, "1,2,three,9", "'userId,movieId,rating,timestamp'"),
            ("csv", "ratings.csv", 7, "9,5", "'userId,movieId,rating,timestamp'"),
            ("csv", "ratings.csv", 2, "1,5,nan,9", "'userId,movieId,rating,timestamp'"),
            ("csv", "ratings.csv", 1, "userId;movieId", "the header 'userId,movieId,rating,timestamp'"),
            ("csv", "movies.csv", 1, "movieId;title", "the header 'movieId,title,genres'"),
            ("csv", "movies.csv", 3, "2,Title", "'movieId,title,genre|genre|…'"),
            ("dat", "ratings.dat", 2, "1:2:3:4", "'userId::movieId::rating::timestamp'"),
            ("dat", "movies.dat", 4, "five::x::y", "'movieId::title::genre|genre|…'"),
            ("100k", "u.data", 1, "1 5 4 881250949", r"'userId\tmovieId\trating\ttimestamp'"),
            ("100k", "u.item", 2, "2|T|1|0", "'movie id|title|date|date|address|' and 19 flags, 0 or 1"),
            (
                "100k",
                "u.item",
                2,
                "2|T|d||a|" + "|".join("2" * 19),
                "'movie id|title|date|date|address|' and 19 flags, 0 or 1",
            ),
        ],
    )
    def test_broken_line(
        self, tmp_path: Path, layout: str, name: str, line: int, text: str, expected: str
    ) -> None:
        file = write(tmp_path / "ml", layout) / name
        lines = file.read_text(encoding="latin-1").splitlines()
        lines[line - 1] = text
        file.write_text("\n".join(lines), encoding="latin-1")
        with pytest.raises(ValueError, match="expected") as caught:
            MovieLens(tmp_path / "ml", n_agents=2, n_arms=2, seed=0)
        assert str(caught.value) == f"{file}:{line}: expected {expected}, got {text!r}"

    def test_truncated_zip(self, tmp_path: Path) -> None:
        path = zipped(write(tmp_path / "ml", "csv"))
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(ValueError, match=r"ml\.zip: damaged or incomplete .*; get the file again"):
            MovieLens(path, seed=0)

    @pytest.mark.parametrize("name", ["ratings.csv", "movies.csv"])
    def test_damage_inside_a_zip(self, tmp_path: Path, name: str) -> None:
        path = zipped(write(tmp_path / "ml", "csv"))
        content = path.read_bytes()
        with zipfile.ZipFile(path) as file:
            info = file.getinfo(f"ml/{name}")
        start = info.header_offset + 30 + len(info.filename)
        path.write_bytes(content[:start] + b"\xff" * 20 + content[start + 20 :])
        with pytest.raises(ValueError, match=r"ml\.zip: damaged or incomplete"):
            MovieLens(path, seed=0)

    def test_quote_that_never_ends(self, tmp_path: Path) -> None:
        with (write(tmp_path / "ml", "csv") / "movies.csv").open("a") as file:
            file.write('6,"A title' + "\n7,B,Drama" * 20_000)
        with pytest.raises(ValueError, match=r"ml: damaged or incomplete \(field larger"):
            MovieLens(tmp_path / "ml", seed=0)

    def test_rated_movie_without_a_row(self, tmp_path: Path) -> None:
        file = write(tmp_path / "ml", "csv") / "movies.csv"
        file.write_text("\n".join(file.read_text().splitlines()[:-1]))
        with pytest.raises(ValueError, match=r"movies\.csv: 1 arms with rewards have no row, the first is 5"):
            MovieLens(tmp_path / "ml", n_agents=2, n_arms=2, seed=0)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_agents": 4}, r"n_agents must be at most 3, .* in .*ratings\.csv, got 4"),
            ({"n_arms": 4}, r"n_arms must be at most 3, the arms of .*movies\.csv with rewards, got 4"),
            ({"dim": 20}, r"dim must be at most 19, the features in .*movies\.csv, got 20"),
        ],
    )
    def test_more_than_there_is(self, tmp_path: Path, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            MovieLens(write(tmp_path / "ml", "csv"), **{"n_agents": 2, "n_arms": 2, "seed": 0, **options})

    def test_no_such_path(self, tmp_path: Path) -> None:
        with pytest.raises(DataUnavailable, match=r"one of ml-latest-small, .* there is no .*nowhere"):
            MovieLens(tmp_path / "nowhere", seed=0)

    def test_another_directory(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(
            ValueError, match=r"not a MovieLens data set, which has ratings.csv and movies.csv"
        ):
            MovieLens(tmp_path / "empty", seed=0)

    def test_no_ratings(self, tmp_path: Path) -> None:
        (write(tmp_path / "ml", "dat") / "ratings.dat").write_text("")
        with pytest.raises(ValueError, match=r"ratings\.dat: no ratings"):
            MovieLens(tmp_path / "ml", seed=0)


class TestFetch:
    @pytest.fixture
    def served(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """The zip of a small set, served under a local address as ml-latest-small.zip."""
        path = zipped(write(tmp_path / "www" / "ml-latest-small", "csv"))

        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

        handler = functools.partial(Quiet, directory=str(path.parent))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            monkeypatch.setattr(sources, "MOVIELENS_ADDRESS", f"http://127.0.0.1:{server.server_port}/")
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            monkeypatch.setitem(sources.MOVIELENS_SHA256, "ml-latest-small", digest)
            yield path
            server.shutdown()
            thread.join()

    def test_download_once(self, served: Path, own_cache: Path) -> None:
        world = MovieLens(n_agents=3, n_arms=3, seed=0)
        assert world.arm_ids.tolist() == [5, 2, 1]  # the most-rated first
        assert (own_cache / "ml-latest-small.zip").read_bytes() == served.read_bytes()
        served.unlink()
        assert sources.fetch("ml-latest-small") == own_cache / "ml-latest-small.zip"

    def test_wrong_checksum(self, served: Path, own_cache: Path) -> None:
        served.write_bytes(b"something else")
        with pytest.raises(DataUnavailable, match=r"ml-latest-small\.zip has a wrong checksum"):
            MovieLens(seed=0)
        assert not (own_cache / "ml-latest-small.zip").exists()

    def test_progress_on_a_terminal(self, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bars: list[Any] = []

        class Bar(sources._Bar):
            def __init__(self) -> None:
                super().__init__()
                self.seen = 0
                bars.append(self)

            def update(self, count: int) -> None:
                self.seen += count
                super().update(count)

        monkeypatch.setattr(sources, "_Bar", Bar)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        size = served.stat().st_size
        sources.fetch("ml-latest-small")
        assert (bars[0].total, bars[0].seen >= size) == (size, True)

    def test_no_network(self, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(sources, "MOVIELENS_ADDRESS", "http://127.0.0.1:9/")
        with pytest.raises(DataUnavailable) as caught:
            MovieLens(seed=0)
        message = str(caught.value)
        assert message.startswith("could not download http://127.0.0.1:9/ml-latest-small.zip: download")
        assert f"put it at {own_cache / 'ml-latest-small.zip'}, or give the path" in message
        assert "SHOAL_MOVIELENS" in message

    def test_no_network_and_a_damaged_download(
        self, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(sources, "MOVIELENS_ADDRESS", "http://127.0.0.1:9/")
        own_cache.mkdir()
        (own_cache / "ml-1m.zip").write_bytes(b"half of it")
        with pytest.raises(DataUnavailable, match="is there but its checksum is not that of ml-1m"):
            MovieLens("ml-1m", seed=0)

    def test_unknown_name(self) -> None:
        with pytest.raises(ValueError, match=r"name must be one of 'ml-latest-small', .* got 'ml-2'"):
            sources.fetch("ml-2")

    def test_checksums_are_the_published_ones(self) -> None:
        starts = {name: digest[:8] for name, digest in sources.MOVIELENS_SHA256.items()}
        assert starts == {
            "ml-latest-small": "696d65a3",
            "ml-100k": "50d2a982",
            "ml-1m": "a6898adb",
            "ml-20m": "96f243c3",
            "ml-25m": "8b21cfb7",
        }
        assert all(len(digest) == 64 for digest in sources.MOVIELENS_SHA256.values())


@needs_real
class TestReal:
    def test_counts(self) -> None:
        record = datasets.inspect(REAL)
        assert (record.n_observed, record.n_agents, record.n_arms) == (100_836, 610, 9_724)
        assert len(movielens.read_movies(movielens.locate(REAL)).ids) == 9_742
        assert record.licence.startswith("Neither the University of Minnesota")
        assert "commercial" in record.licence
        assert "Citation" not in record.licence

    def test_first_arms(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            prepared = datasets.prepare(REAL, arms="first", fill="paper")
        assert (prepared.n_arms, prepared.n_agents, prepared.seconds < 20.0) == (30, 610, True)
        world = MovieLens(REAL, arms="first", fill="paper", seed=4)
        assert world.arm_ids.tolist() == list(range(1, 31))
        assert world.arms[0].tolist() == [0, 1, 1, 1, 1, 0, 0, 0, 1, 0]  # Toy Story
        assert world.mean_rewards.shape == (100, 30)

    def test_the_authors_settings_err_more_than_means_alone(self) -> None:
        errors = held_out_errors(movielens.read_ratings(movielens.locate(REAL)))
        assert errors["tuned"] < errors["mean-only"] < errors["paper, not rounded"] < errors["paper"]
