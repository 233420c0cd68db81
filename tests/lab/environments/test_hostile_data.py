"""Damaged and hostile data: cached tables, zips, learning-to-rank files and logs."""

import os
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.lab.environments import datasets, letor, movielens
from shoal.lab.environments.logged import LoggedRatings
from shoal.lab.environments.movielens import MovieLens
from shoal.lab.environments.ratings import ArmFeatures, Prepared, Ratings, prepare_ratings
from shoal.lab.environments.sources import DataUnavailable

Damage = Callable[[bytes, np.random.Generator], bytes]


def flip(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for where in rng.integers(len(content), size=rng.integers(1, 4)):
        changed[where] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncate(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content))]


def lose_the_start(content: bytes, rng: np.random.Generator) -> bytes:
    return content[rng.integers(1, len(content)) :]


def overwrite(content: bytes, rng: np.random.Generator) -> bytes:
    where, length = rng.integers(len(content)), int(rng.integers(1, 64))
    filler = [b"\0" * length, b"\xff" * length, rng.bytes(length)][rng.integers(3)]
    return content[:where] + filler + content[where + length :]


def insert(content: bytes, rng: np.random.Generator) -> bytes:
    where = rng.integers(len(content))
    return content[:where] + rng.bytes(int(rng.integers(1, 64))) + content[where:]


def lie_in_a_record(content: bytes, rng: np.random.Generator) -> bytes:
    """Overwrite a field of one of the zip's records, where a parser believes what it reads."""
    marks = [at for mark in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06") for at in _all(content, mark)]
    where = marks[rng.integers(len(marks))] + 4 + 2 * int(rng.integers(0, 21))
    value = [0, 1, 0xFFFF, 0x7FFF, int(rng.integers(2**16))][rng.integers(5)]
    return content[:where] + struct.pack("<H", value) + content[where + 2 :]


DAMAGES: list[Damage] = [flip, truncate, lose_the_start, overwrite, insert, lie_in_a_record]


def _all(content: bytes, mark: bytes) -> Iterator[int]:
    at = content.find(mark)
    while at >= 0:
        yield at
        at = content.find(mark, at + 1)


def damaged(content: bytes, times: int) -> Iterator[bytes]:
    """Each kind of damage so many times."""
    rng = np.random.default_rng(0)
    for _ in range(times):
        for damage in DAMAGES:
            yield damage(content, rng)


def refusal(read: Callable[[], object]) -> str | None:
    """The message of our own error; any other error is one too many."""
    try:
        read()
    except ValueError as error:
        if type(error) not in (ValueError, DataUnavailable):
            raise  # such as a UnicodeDecodeError
        return str(error)
    return None


class TestCache:
    """Whatever is wrong with a cached table, it is computed again: same numbers, no exception."""

    ROWS = (("u", "a", 4.0), ("v", "b", 2.5), ("u", "c", 1.0), ("w", "a", 5.0), ("v", "c", 3.0))

    def prepare(self, folder: Path) -> Prepared:
        source = folder / "source.txt"
        if not source.exists():
            source.write_text("a file")

        def read() -> tuple[Ratings, ArmFeatures]:
            ids = ["u", "v", "w"], ["a", "b", "c"]
            agents = [ids[0].index(agent) for agent, _, _ in self.ROWS]
            arms = [ids[1].index(arm) for _, arm, _ in self.ROWS]
            ratings = Ratings.collect(*ids, agents, arms, [reward for _, _, reward in self.ROWS])
            return ratings, ArmFeatures(np.array(ids[1]), np.arange(6.0).reshape(3, 2), "features.csv")

        options: dict[str, Any] = {"arms": "first", "n_arms": 3, "dim": 2, "fill": "tuned"}
        return prepare_ratings("kind", [source], read, cache=folder / "cache", **options)

    def check_again(self, folder: Path, first: Prepared) -> bool:
        """Prepare again, expecting the same numbers; whether they came from the cache."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again = self.prepare(folder)
        for name, array in vars(first.filled).items():
            found = getattr(again.filled, name)
            assert found.dtype == array.dtype
            assert np.array_equal(found, array)
        told = [str(warning.message) for warning in caught if "is computed again" in str(warning.message)]
        assert again.from_cache == (not told)
        return again.from_cache

    def test_every_kind_of_damage(self, tmp_path: Path) -> None:
        first = self.prepare(tmp_path)
        content = first.cache_file.read_bytes()
        recomputed = 0
        for bad in damaged(content, 60):
            first.cache_file.write_bytes(bad)
            recomputed += not self.check_again(tmp_path, first)
        assert recomputed > 200  # what is left hit bytes that nobody reads

    @pytest.mark.parametrize(
        "header",
        [
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (100000, 100000, 100000), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 3.0), }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (9,), }",
            "{'descr': '<U2000000000', 'fortran_order': False, 'shape': (9,), }",
            "{'descr': [('a', '<f8', (1000000000,))], 'fortran_order': False, 'shape': (9,), }",
            "{'descr': '<f8', 'fortran_order': False}",
            "(" * 3000,
            "-" * 9000 + "1",
            "[" * 5000 + "]" * 5000,
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 3), }" + " " * 20000,
        ],
    )
    def test_headers_that_lie(self, tmp_path: Path, header: str) -> None:
        first = self.prepare(tmp_path)
        with zipfile.ZipFile(first.cache_file) as file:
            members = {name: file.read(name) for name in file.namelist()}
        text = header.encode().ljust(118) + b"\n"
        members["rewards.npy"] = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + b"\0" * 72
        with zipfile.ZipFile(first.cache_file, "w") as file:
            for name, content in members.items():
                file.writestr(name, content)
        assert not self.check_again(tmp_path, first)

    @pytest.mark.parametrize(
        "changes",
        [
            {"rewards": np.full((3, 3), np.nan)},
            {"rewards": np.full((3, 3), 1e300)},
            {"rewards": np.ones((3, 2))},
            {"rewards": np.ones((3, 3), dtype=np.float32)},
            {"rewards": np.ones((3, 3), dtype=complex)},
            {"features": np.ones((2, 2))},
            {"features": np.full((3, 2), np.inf)},
            {"features": np.ones((3, 1))},
            {"features": np.ones((3, 2), dtype=">f8")},
            {"observed": np.ones((3, 3))},
            {"observed": np.ones((3, 4), dtype=bool)},
            {"agent_ids": np.ones((3, 3))},
            {"agent_ids": np.array(["u", "v"])},
            {"arm_ids": np.array(["a", "b", "c", "d"])},
            {"rewards": None},
            {"more": np.ones(1)},
            {
                "arm_ids": np.array(["a", "b"]),
                "features": np.ones((2, 2)),
                "rewards": np.ones((3, 2)),
                "observed": np.ones((3, 2), dtype=bool),
            },
        ],
    )
    def test_tables_that_cannot_be(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        first = self.prepare(tmp_path)
        with np.load(first.cache_file) as stored:
            arrays = {name: stored[name] for name in stored.files}
        changed = {name: array for name, array in {**arrays, **changes}.items() if array is not None}
        np.savez(first.cache_file, **changed)
        assert not self.check_again(tmp_path, first)

    def test_a_file_that_grows_when_it_is_read(self, tmp_path: Path) -> None:
        first = self.prepare(tmp_path)
        with np.load(first.cache_file) as stored:
            arrays = {name: stored[name] for name in stored.files}
        np.savez_compressed(first.cache_file, **{**arrays, "more": np.zeros(10**6)})
        assert not self.check_again(tmp_path, first)

    @pytest.mark.parametrize("thing", ["directory", "pipe", "array", "link to nowhere"])
    def test_things_that_are_no_archive(self, tmp_path: Path, thing: str) -> None:
        first = self.prepare(tmp_path)
        path = first.cache_file
        path.unlink()
        if thing == "directory":
            path.mkdir()
        elif thing == "pipe":
            os.mkfifo(path)
        elif thing == "array":
            with path.open("wb") as file:
                np.save(file, np.ones(3))
        else:
            path.symlink_to(tmp_path / "nowhere")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = self.prepare(tmp_path)
        assert np.array_equal(again.filled.rewards, first.filled.rewards)
        assert not again.from_cache


class TestZips:
    """A damaged MovieLens zip is either read right or refused with an error that names it."""

    RATINGS = "userId,movieId,rating,timestamp\n1,5,4.0,9\n1,2,3.0,9\n7,1,5.0,9\n7,5,2.0,9\n9,2,5.0,9\n"
    MOVIES = "movieId,title,genres\n1,A,Action\n2,B,Drama\n5,C,Comedy|Drama\n"

    def zipped(self, path: Path, method: int = zipfile.ZIP_DEFLATED) -> bytes:
        with zipfile.ZipFile(path, "w", method) as file:
            file.writestr("ml/README.txt", "License\n=======\nBe kind.\n")
            file.writestr("ml/ratings.csv", self.RATINGS)
            file.writestr("ml/movies.csv", self.MOVIES)
        return path.read_bytes()

    def read_all(self, path: Path) -> str | None:
        """Read a set in every way there is; the error's message, if there is one."""
        ways: list[Callable[[], object]] = [
            lambda: MovieLens(path, n_agents=3, n_arms=3, seed=0, cache=path.parent / "cache"),
            lambda: datasets.inspect(path),
            lambda: movielens.read(movielens.locate(path)),
        ]
        messages = list(filter(None, map(refusal, ways)))
        assert all(str(path) in message for message in messages), messages
        return max(messages, default=None)

    @pytest.mark.parametrize(
        "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    )
    def test_every_kind_of_damage(self, tmp_path: Path, method: int) -> None:
        path = tmp_path / "ml.zip"
        content = self.zipped(path, method)
        assert self.read_all(path) is None
        refused = 0
        for bad in damaged(content, 25):
            path.write_bytes(bad)
            refused += self.read_all(path) is not None
        assert refused > 60

    def test_encrypted(self, tmp_path: Path) -> None:
        path = tmp_path / "ml.zip"
        content = bytearray(self.zipped(path))
        for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            for at in _all(bytes(content), mark):
                content[at + flags] |= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"ml\.zip: damaged or incomplete \(.*encrypted"):
            MovieLens(path, seed=0, cache=tmp_path)

    def test_a_method_nobody_knows(self, tmp_path: Path) -> None:
        path = tmp_path / "ml.zip"
        content = bytearray(self.zipped(path))
        for mark, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
            for at in _all(bytes(content), mark):
                content[at + method] = 97
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"ml\.zip: damaged or incomplete \(.*compression"):
            MovieLens(path, seed=0, cache=tmp_path)

    @pytest.mark.parametrize("line", ["99999999999999999999,1,3.0,9", "1,-99999999999999999999,3.0,9"])
    def test_ids_beyond_64_bits(self, tmp_path: Path, line: str) -> None:
        self.RATINGS += f"{line}\n"
        self.zipped(tmp_path / "ml.zip")
        with pytest.raises(ValueError, match=r"ratings\.csv:7: expected 'userId,movieId,rating,timestamp'"):
            MovieLens(tmp_path / "ml.zip", seed=0, cache=tmp_path)

    def test_rewards_beyond_what_can_be_computed(self, tmp_path: Path) -> None:
        self.RATINGS += "1,1,1e200,9\n"
        self.zipped(tmp_path / "ml.zip")
        with pytest.raises(ValueError, match=r"ratings\.csv:7: expected 'userId,movieId,rating,timestamp'"):
            MovieLens(tmp_path / "ml.zip", seed=0, cache=tmp_path)


class TestLetor:
    @pytest.mark.parametrize("index", [2**20 + 1, 2**31 - 1, 2**31, 2**31 + 1, 2**63, 10**40])
    def test_feature_indices_beyond_what_centres_hold(self, tmp_path: Path, index: int) -> None:
        path = tmp_path / "rank.txt"
        path.write_text(f"1 qid:1 1:1\n2 qid:1 2:0.5 {index}:1\n")
        message = rf"rank\.txt:2: feature {index} is too large: indices must be at most 1048576"
        with pytest.raises(ValueError, match=message):
            letor.read(letor.locate(path))

    def test_the_largest_index(self, tmp_path: Path) -> None:
        path = tmp_path / "rank.txt"
        path.write_text(f"1 qid:1 1:1\n2 qid:1 2:0.5 {2**20}:1\n")
        assert letor.read(letor.locate(path)).features.shape == (2, 2**20)

    @pytest.mark.parametrize("line", ["1e200 qid:1 1:1", "1 qid:1 1:1e200", f"1 qid:1 {'9' * 5000}:1"])
    def test_numbers_beyond_what_can_be_computed(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "rank.txt"
        path.write_text(f"1 qid:1 1:1\n{line}\n")
        with pytest.raises(ValueError, match=r"rank\.txt:2: expected 'relevance qid:query feature:value …'"):
            letor.read(letor.locate(path))

    @pytest.mark.parametrize("count", ["9" * 12, "9" * 5000])
    def test_counts_of_more_documents_than_fit_in_memory(self, tmp_path: Path, count: str) -> None:
        path = tmp_path / "rank.txt"
        path.write_text("1 1:1\n2 2:0.5\n")
        (tmp_path / "rank.txt.group").write_text(f"1\n{count}\n")
        message = r"rank\.txt: fewer documents than|rank\.txt\.group:2: expected a number of documents"
        with pytest.raises(ValueError, match=message):
            letor.read(letor.locate(path))

    def test_counts_that_are_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "rank.txt"
        path.write_text("1 1:1\n2 2:0.5\n")
        (tmp_path / "rank.txt.group").write_bytes(b"1\n\xff\xfe\n")
        with pytest.raises(ValueError, match=r"rank\.txt\.group: damaged or incomplete"):
            letor.read(letor.locate(path))


class TestLogs:
    def test_rewards_beyond_what_can_be_computed(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        path.write_text("agent,arm,reward\na,1,1\na,2,1e200\n")
        features = {"arm": [1, 2], "x": [1.0, 2.0]}
        with pytest.raises(ValueError, match=r"log\.csv, line 3: reward must be .*, got '1e200'"):
            LoggedRatings.from_csv(path, features=features, cache=tmp_path)

    def test_damaged_parquet(self, tmp_path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        path = tmp_path / "log.parquet"
        columns = {"agent": ["a", "b"] * 20, "arm": [1, 2] * 20, "reward": np.arange(40.0)}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        content = path.read_bytes()
        features = {"arm": [1, 2], "x": [1.0, 2.0]}
        rng = np.random.default_rng(0)
        for n in range(200):
            path.write_bytes((flip, truncate, overwrite)[n % 3](content, rng))
            message = refusal(
                lambda: LoggedRatings.from_parquet(path, features=features, cache=tmp_path / "cache")
            )
            assert message is None or str(path) in message or "features" in message, message
