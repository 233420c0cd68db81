"""The preparation all real data goes through: choice of arms, factorisation, held-out errors, cache, draw."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.lab.environments import sources
from shoal.lab.environments.ratings import (
    FILLS,
    ArmFeatures,
    Fill,
    FilledRatings,
    RatedEnvironment,
    Ratings,
    factorise,
    fill_ratings,
    held_out_errors,
    means_only,
    prepare_ratings,
)
from shoal.lab.environments.sources import DataUnavailable, cached, content_hash

ROWS = [("u", "a", 4.0), ("v", "b", 2.5), ("u", "c", 1.0), ("w", "a", 5.0), ("v", "c", 3.0), ("u", "b", 0.5)]


def table(rows: list[tuple[str, str, float]]) -> Ratings:
    agent_ids = list(dict.fromkeys(agent for agent, _, _ in rows))
    arm_ids = list(dict.fromkeys(arm for _, arm, _ in rows))
    agents = [agent_ids.index(agent) for agent, _, _ in rows]
    arms = [arm_ids.index(arm) for _, arm, _ in rows]
    return Ratings.collect(agent_ids, arm_ids, agents, arms, [reward for _, _, reward in rows])


def random_table(n_agents: int = 40, n_arms: int = 25, share: float = 0.4, seed: int = 0) -> Ratings:
    rng = np.random.default_rng(seed)
    agents, arms = np.nonzero(rng.random((n_agents, n_arms)) < share)
    rewards = rng.integers(1, 11, size=len(agents)) / 2
    return table([(f"u{i}", f"m{k}", float(r)) for i, k, r in zip(agents, arms, rewards, strict=True)])


def features_of(ids: list[str], values: Any = None) -> ArmFeatures:
    values = np.arange(2.0 * len(ids)).reshape(-1, 2) if values is None else np.array(values)
    return ArmFeatures(np.array(ids), values, "features.csv")


def rows_of(ratings: Ratings) -> list[tuple[str, str, float]]:
    return [
        (str(ratings.agent_ids[i]), str(ratings.arm_ids[k]), float(r))
        for i, k, r in zip(ratings.agents, ratings.arms, ratings.rewards, strict=True)
    ]


class TestTable:
    def test_rows_of_an_agent_are_together_in_their_own_order(self) -> None:
        expected = [("u", "a", 4.0), ("u", "c", 1.0), ("u", "b", 0.5), ("v", "b", 2.5), ("v", "c", 3.0)]
        assert rows_of(table(ROWS)) == [*expected, ("w", "a", 5.0)]

    def test_repeated_pairs_are_averaged(self) -> None:
        ratings = table([*ROWS, ("u", "a", 1.0), ("u", "a", 4.0)])
        assert sorted(rows_of(ratings)) == sorted([("u", "a", 3.0), *ROWS[1:]])


class TestFactorisation:
    @pytest.mark.parametrize("fill", ["paper", "tuned"])
    def test_equal_to_surprise_on_its_own_data_structures(self, fill: str) -> None:
        from surprise import SVD, Dataset, Reader

        ratings = random_table()
        setting = {"paper": {"lr_all": 0.001, "reg_all": 0.005}, "tuned": {"lr_all": 0.01, "reg_all": 0.05}}[
            fill
        ]
        unit = float(ratings.rewards.std()) if fill == "tuned" else 1.0
        data = Dataset(Reader(rating_scale=(0.5 / unit, 5.0 / unit)))
        rows = [(agent, arm, reward / unit, None) for agent, arm, reward in rows_of(ratings)]
        theirs = SVD(n_epochs=20, n_factors=100, random_state=0, **setting)
        theirs.fit(data.construct_trainset(rows))
        filled = fill_ratings(ratings, features_of(sorted(ratings.arm_ids.tolist())), fill=fill)
        seen = {(agent, arm): reward for agent, arm, reward in rows_of(ratings)}
        assert not filled.observed.all()
        for i, agent in enumerate(filled.agent_ids):
            for k, arm in enumerate(filled.arm_ids):
                predicted = unit * theirs.predict(agent, arm).est
                if fill == "paper":
                    predicted = max(0.5, round(predicted))
                expected = seen.get((agent, arm), predicted)
                assert filled.rewards[i, k] == pytest.approx(expected, abs=1e-9)
                assert filled.observed[i, k] == ((agent, arm) in seen)

    def test_paper_rounds_predictions_and_keeps_what_was_observed(self) -> None:
        ratings = random_table()
        filled = fill_ratings(ratings, features_of(ratings.arm_ids.tolist()), fill="paper")
        predicted = filled.rewards[~filled.observed]
        assert np.array_equal(predicted, np.rint(predicted))
        assert np.any(filled.rewards[filled.observed] % 1.0 == 0.5)

    def test_predictions_stay_in_the_range_of_the_rewards(self) -> None:
        ratings = table(
            [(f"u{i}", f"m{k}", 5.0 if i % 2 else 1.0) for i in range(8) for k in range(8) if i != k]
        )
        factors = factorise(ratings, Fill(300, 5, 0.1, 0.0, rounded=False, scaled=False))
        every_arm = np.arange(8, dtype=np.int32)
        predictions = factors.predict_all(every_arm)
        assert predictions.min() >= 1.0
        assert predictions.max() <= 5.0
        pairs = factors.predict(np.repeat(every_arm, 8), np.tile(every_arm, 8))
        assert np.allclose(pairs.reshape(8, 8), predictions)

    @pytest.mark.parametrize(("factor", "level"), [(50.0, 0.0), (1e-6, 0.0), (1e20, 0.0), (3e4, -7e5)])
    def test_the_unit_of_the_rewards_does_not_matter(self, factor: float, level: float) -> None:
        ratings = random_table()
        other = replace(ratings, rewards=factor * ratings.rewards + level)
        features = features_of(ratings.arm_ids.tolist())
        filled, in_other_unit = (fill_ratings(part, features, fill="tuned") for part in (ratings, other))
        np.testing.assert_allclose((in_other_unit.rewards - level) / factor, filled.rewards, rtol=1e-6)

    def test_better_than_means_on_rewards_of_any_scale(self) -> None:
        rng = np.random.default_rng(0)
        tastes, kinds = rng.standard_normal((60, 2)), rng.standard_normal((2, 40))
        cells = np.argwhere(rng.random((60, 40)) < 0.7)
        rewards = [50.0 * float(tastes[i] @ kinds[:, k]) for i, k in cells]
        ratings = Ratings.collect(range(60), range(40), cells[:, 0], cells[:, 1], rewards)
        held = rng.random(len(ratings)) < 0.2
        train, test = ratings.part(~held), ratings.part(held)
        models = means_only(train), factorise(train, FILLS["tuned"])
        means, tuned = (np.std(model.predict(test.agents, test.arms) - test.rewards) for model in models)
        assert tuned < 0.8 * means

    def test_constant_rewards(self) -> None:
        ratings = random_table()
        constant = replace(ratings, rewards=np.full(len(ratings), 0.1))
        filled = fill_ratings(constant, features_of(ratings.arm_ids.tolist()), fill="tuned")
        assert np.array_equal(filled.rewards, np.full(filled.rewards.shape, 0.1))

    def test_divergence_is_an_error_that_says_what_to_do(self) -> None:
        ratings = random_table()
        large = replace(ratings, rewards=1e4 * ratings.rewards)
        message = r"rewards could not be factorised: their standard deviation is 14838\.1 .* fill='tuned'"
        with pytest.raises(ValueError, match=message):
            fill_ratings(large, features_of(ratings.arm_ids.tolist()), fill="paper")

    def test_the_same_every_time(self) -> None:
        features = features_of(random_table().arm_ids.tolist())
        first, again = (fill_ratings(random_table(), features, fill="tuned") for _ in range(2))
        assert np.array_equal(first.rewards, again.rewards)

    def test_agent_with_one_reward(self) -> None:
        filled = fill_ratings(table(ROWS), features_of(["a", "b", "c"]), fill="tuned")
        only = filled.agent_ids.tolist().index("w")
        assert filled.observed[only].tolist() == [True, False, False]
        assert filled.rewards[only, 0] == 5.0
        assert np.isfinite(filled.rewards[only]).all()


class TestChoiceOfArms:
    def test_first_follows_the_features_and_passes_over_arms_without_a_reward(self) -> None:
        features = features_of(["z", "c", "y", "b", "a"])
        filled = fill_ratings(table(ROWS), features, arms="first", n_arms=2, dim=1)
        assert filled.arm_ids.tolist() == ["c", "b"]
        assert filled.features.tolist() == [[2.0], [6.0]]

    def test_most_rated_with_ties_in_the_order_of_the_features(self) -> None:
        rows = [*ROWS, ("w", "c", 2.0)]
        filled = fill_ratings(table(rows), features_of(["b", "a", "c"]), arms="most-rated")
        assert filled.arm_ids.tolist() == ["c", "b", "a"]
        assert filled.features.tolist() == [[4.0, 5.0], [0.0, 1.0], [2.0, 3.0]]

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 1000), st.sampled_from(["first", "most-rated"]), st.integers(1, 12))
    def test_features_and_rewards_of_an_arm_belong_to_the_same_arm(
        self, seed: int, arms: str, n_arms: int
    ) -> None:
        rng = np.random.default_rng(seed)
        rows = [
            (f"u{i}", f"{k}", float(k))
            for i in range(15)
            for k in range(1, 13)
            if i == k or rng.random() < 0.3
        ]
        rng.shuffle(rows)
        ids = [str(k) for k in rng.permutation(20)]
        features = features_of(ids, [[float(k), 1.0] for k in ids])
        filled = fill_ratings(table(rows), features, arms=arms, n_arms=n_arms, fill="tuned")
        assert filled.features[:, 0].tolist() == [float(k) for k in filled.arm_ids]
        observed = np.where(filled.observed, filled.rewards, filled.features[:, 0])
        assert np.array_equal(observed, np.tile(filled.features[:, 0], (len(filled.agent_ids), 1)))
        seen = {(agent, arm) for agent, arm, _ in rows}
        expected = [[(agent, arm) in seen for arm in filled.arm_ids] for agent in filled.agent_ids]
        assert filled.observed.tolist() == expected

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_arms": 4}, "n_arms must be at most 3, the arms of features.csv with rewards, got 4"),
            ({"dim": 3}, "dim must be at most 2, the features in features.csv, got 3"),
            ({"fill": "best"}, "fill must be one of 'paper', 'tuned', got 'best'"),
            ({"arms": "last"}, "arms must be one of 'first', 'most-rated', got 'last'"),
            ({"n_arms": 0}, "n_arms must be an integer of at least 1, got 0"),
        ],
    )
    def test_what_cannot_be(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{message}$"):
            fill_ratings(table(ROWS), features_of(["a", "b", "c"]), **options)

    def test_arm_without_features(self) -> None:
        with pytest.raises(
            ValueError, match=r"^features.csv: 1 arms with rewards have no row, the first is 'b'$"
        ):
            fill_ratings(table(ROWS), features_of(["a", "c"]))


class TestHeldOutErrors:
    def test_means_by_hand(self) -> None:
        model = means_only(table([("u", "a", 4.0), ("u", "b", 2.0), ("v", "a", 5.0)]))
        # μ = 11/3; b_a = 5/6, b_b = −5/3; left over for u: −1/2 and 0, for v: 1/2.
        assert model.mean == pytest.approx(11 / 3)
        assert model.arm_biases == pytest.approx([5 / 6, -5 / 3])
        assert model.agent_biases == pytest.approx([-1 / 4, 1 / 2])
        codes = np.array([1], dtype=np.int32)
        assert model.predict(codes, codes) == pytest.approx([2.5])

    def test_errors_by_hand(self) -> None:
        ratings = random_table()
        held = np.random.default_rng(3).random(len(ratings)) < 0.25
        train, test = ratings.part(~held), ratings.part(held)
        errors = held_out_errors(ratings, share=0.25, seed=3)
        assert list(errors) == ["mean-only", "paper", "paper, not rounded", "tuned"]
        for name, model in [("mean-only", means_only(train)), ("tuned", factorise(train, FILLS["tuned"]))]:
            total = sum(
                (float(model.predict(test.agents[n : n + 1], test.arms[n : n + 1])[0]) - test.rewards[n]) ** 2
                for n in range(len(test))
            )
            assert errors[name] == pytest.approx(math.sqrt(total / len(test)))

    def test_agents_and_arms_seen_only_in_what_is_held_out_get_the_mean(self) -> None:
        ratings = table(ROWS)
        train = ratings.part(ratings.agents != 2)
        factors = factorise(train, FILLS["tuned"])
        only = np.array([2], dtype=np.int32)
        arm = np.array([0], dtype=np.int32)
        assert factors.predict(only, arm) == pytest.approx([factors.mean + factors.arm_biases[0]])

    @pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
    def test_share_must_leave_both_parts(self, share: float) -> None:
        with pytest.raises(ValueError, match="share must be"):
            held_out_errors(table(ROWS), share=share)


class TestDraw:
    def filled(self, n: int = 50) -> FilledRatings:
        ids = np.array([f"u{i}" for i in range(n)])
        rewards = np.arange(3.0 * n).reshape(n, 3)
        return FilledRatings(ids, np.array(["a", "b", "c"]), np.eye(3), rewards, rewards % 2 == 0)

    def draw(self, n_agents: int | None, seed: int | None) -> RatedEnvironment:
        return RatedEnvironment(
            self.filled(), n_agents=n_agents, noise_scale=0.5, seed=seed, source="log.csv"
        )

    def test_rows_belong_to_the_drawn_agents(self) -> None:
        world = self.draw(20, 1)
        numbers = [int(agent[1:]) for agent in world.agent_ids]
        assert len(set(numbers)) == 20
        assert world.mean_rewards[:, 0].tolist() == [3.0 * n for n in numbers]
        assert np.array_equal(world.observed, world.mean_rewards % 2 == 0)
        assert (world.theta_star, world.labels, world.noise_scale) == (None, None, 0.5)

    def test_the_seed_decides(self) -> None:
        assert self.draw(20, 1).agent_ids.tolist() == self.draw(20, 1).agent_ids.tolist()
        assert self.draw(20, 1).agent_ids.tolist() != self.draw(20, 2).agent_ids.tolist()

    def test_none_takes_all(self) -> None:
        assert sorted(self.draw(None, 0).agent_ids) == sorted(self.filled().agent_ids)

    def test_fewer_agents_than_asked_for(self) -> None:
        message = "n_agents must be at most 50, the number of agents with a reward in log.csv, got 51"
        with pytest.raises(ValueError, match=message):
            self.draw(51, 0)


class TestCache:
    def prepare(self, tmp_path: Path, *, n_arms: int = 2, source: str = "a file") -> tuple[Any, list[int]]:
        file = tmp_path / "source.txt"
        file.write_text(source)
        calls: list[int] = []

        def read() -> tuple[Ratings, ArmFeatures]:
            calls.append(1)
            return table(ROWS), features_of(["a", "b", "c"])

        options: dict[str, Any] = {"arms": "first", "dim": 2, "fill": "tuned", "cache": tmp_path / "cache"}
        return prepare_ratings("kind", [file], read, n_arms=n_arms, **options), calls

    def test_the_second_time_nothing_is_read(self, tmp_path: Path) -> None:
        first, calls = self.prepare(tmp_path)
        again, more_calls = self.prepare(tmp_path)
        assert (first.from_cache, again.from_cache, len(calls), len(more_calls)) == (False, True, 1, 0)
        assert first.cache_file == again.cache_file
        for name, array in vars(first.filled).items():
            assert np.array_equal(array, getattr(again.filled, name))
        assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.cache_file.name]

    def test_other_parameters_content_or_settings_are_other_entries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = {self.prepare(tmp_path)[0].cache_file}
        files.add(self.prepare(tmp_path, n_arms=3)[0].cache_file)
        files.add(self.prepare(tmp_path, source="b file")[0].cache_file)
        monkeypatch.setitem(FILLS, "tuned", Fill(1, 2, 0.1, 0.1, rounded=False, scaled=False))
        files.add(self.prepare(tmp_path)[0].cache_file)
        assert len(files) == 4

    @pytest.mark.parametrize("damage", ["truncated", "changed byte", "text", "empty", "other key"])
    def test_damaged_file_is_computed_anew(self, tmp_path: Path, damage: str) -> None:
        first, _ = self.prepare(tmp_path)
        good = first.cache_file.read_bytes()
        if damage == "other key":
            other, _ = self.prepare(tmp_path, n_arms=3)
            bad = other.cache_file.read_bytes()
        else:
            where = good.index(np.float64(4.0).tobytes())
            changed = good[:where] + np.float64(3.0).tobytes() + good[where + 8 :]
            bad = {"truncated": good[:-40], "changed byte": changed, "text": b"hello", "empty": b""}[damage]
        first.cache_file.write_bytes(bad)
        with pytest.warns(RuntimeWarning, match=r"is damaged .* and is computed again"):
            again, calls = self.prepare(tmp_path)
        assert (again.from_cache, len(calls)) == (False, 1)
        assert np.array_equal(again.filled.rewards, first.filled.rewards)
        assert self.prepare(tmp_path)[0].from_cache

    def test_failed_write_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(np, "savez", fail)
        with pytest.warns(RuntimeWarning, match="could not be written: disk full"):
            prepared, _ = self.prepare(tmp_path)
        assert prepared.filled.rewards.shape == (3, 2)
        assert list((tmp_path / "cache").iterdir()) == []

    def test_cache_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("in the way")
        with pytest.warns(RuntimeWarning, match="could not be written"):
            prepared, _ = self.prepare(tmp_path)
        assert prepared.filled.rewards.shape == (3, 2)

    def test_directory_from_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "elsewhere"))
        result = cached("kind", [], {}, lambda: {"x": np.ones(2)})
        assert result.path.parent == tmp_path / "elsewhere"
        monkeypatch.delenv("SHOAL_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        assert sources.cache_directory().name == "shoal"

    def test_hash_follows_the_content(self, tmp_path: Path) -> None:
        file = tmp_path / "f"
        file.write_text("one")
        before = content_hash(file)
        file.write_text("two")
        os.utime(file, ns=(1, 1))
        assert content_hash(file) != before


class TestExtra:
    def test_message_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "surprise", None)
        with pytest.raises(DataUnavailable, match=r"surprise is needed .* pip install 'shoal\[data\]'"):
            fill_ratings(table(ROWS), features_of(["a", "b", "c"]))

    def test_importing_the_environments_loads_nothing_heavy(self) -> None:
        code = (
            "import sys, shoal.lab.environments.datasets, shoal.lab.environments.logged\n"
            "heavy = {'surprise', 'sklearn', 'pooch', 'pandas'} & set(sys.modules)\n"
            "assert not heavy, heavy"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


PEAK = """
import json, re, sys
from pathlib import Path
import surprise  # what is loaded anyway does not grow with the data
from shoal.lab.environments import ratings
from shoal.lab.environments.movielens import MovieLens

def memory(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

ratings.FILLS["tuned"] = ratings.Fill(1, 100, 0.01, 0.05, False, True)  # epochs take time, not memory
before = memory("VmRSS")
world = MovieLens(sys.argv[1], fill="tuned", arms="most-rated", seed=0, cache=sys.argv[2])
print(json.dumps({"before": before, "peak": memory("VmHWM"), "shape": world.mean_rewards.shape}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_25_million_ratings_fit_in_4_gb(tmp_path: Path) -> None:
    """A file of a tenth of ml-25m in every direction; ten times what it takes stays below 4 GB."""
    import pyarrow
    import pyarrow.csv

    n_users, n_movies, n_ratings = 16_254, 6_242, 2_500_010
    rng = np.random.default_rng(0)
    users = np.sort(rng.integers(1, n_users + 1, size=n_ratings))
    movies = 1 + (n_movies * rng.random(n_ratings) ** 3).astype(np.int64)
    columns = {"userId": users, "movieId": movies, "rating": rng.integers(1, 11, size=n_ratings) / 2}
    file = tmp_path / "ratings.csv"
    options = pyarrow.csv.WriteOptions(quoting_style="none")
    pyarrow.csv.write_csv(pyarrow.table({**columns, "timestamp": 1147880044 + users}), file, options)
    file.write_bytes(file.read_bytes().replace(b'"', b""))
    lines = [f"{k},A movie ({k}),Action|Drama" for k in range(1, n_movies + 1)]
    (tmp_path / "movies.csv").write_text("\n".join(["movieId,title,genres", *lines]))
    command = [sys.executable, "-c", PEAK, str(tmp_path), str(tmp_path / "cache")]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["shape"] == [100, 30]
    growth = found["peak"] - found["before"]
    assert found["before"] + 10 * growth < 4096, found


def test_fills_are_those_of_the_paper_and_the_tuned_ones() -> None:
    paper, tuned = FILLS["paper"], FILLS["tuned"]
    assert paper == Fill(
        n_epochs=20, n_factors=100, learning_rate=0.001, regularisation=0.005, rounded=True, scaled=False
    )
    assert tuned == Fill(
        n_epochs=20, n_factors=100, learning_rate=0.01, regularisation=0.05, rounded=False, scaled=True
    )
