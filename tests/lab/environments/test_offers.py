"""LastFM and Warfarin, whose arms depend on who pulls: values, draws, broken files, the real data."""

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.lab.environments import lastfm, warfarin
from shoal.lab.environments.sources import DataUnavailable

REAL = Path(__file__).parents[4] / "shared" / "data"
needs_real = pytest.mark.skipif(not (REAL / "lastfm").is_dir(), reason="the real data is not here")

N_USERS, N_ARTISTS, N_TAGS = 8, 30, 7
PATIENTS = [  # site, dose, age, height, weight, race, VKORC1, CYP2C9, amiodarone
    (1, "20.9", "60 - 69", "170", "70", "White", "A/G", "*1/*1", "0.0"),
    (1, "21", "90+", "160", "", "Asian", "A/A", "*1/*3", "1.0"),
    (1, "", "50 - 59", "160", "60", "Asian", "A/A", "*1/*3", "1.0"),  # no dose: left out
    (5, "49.0", "", "", "90", "Black or African American", "G/G", "", ""),
    (5, "49.1", "20 - 29", "180", "110", "Unknown", "", "*2/*3", ""),
]


def write_lastfm(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    heard = [(u, a) for u in range(2, 2 + N_USERS) for a in rng.choice(N_ARTISTS, 6, replace=False)]
    heard += [(99, 3), (2, 999)]  # a user with one artist; an artist without a tag
    # Each artist has a set of tags of its own, and every other one has a tag twice.
    sets = list(itertools.combinations(range(N_TAGS), 3))
    tagged = [(a, t) for a in range(N_ARTISTS) for t in (*sets[a], *sets[a][: a % 2])]
    lines = {
        lastfm.LISTENED: ["userID\tartistID\tweight", *(f"{u}\t{a}\t7" for u, a in heard)],
        lastfm.TAGGED: [
            "userID\tartistID\ttagID\tday\tmonth\tyear",
            *(f"2\t{a}\t{t}\t1\t4\t2009" for a, t in tagged),
        ],
        lastfm.FRIENDS: ["userID\tfriendID", "2\t3", "3\t2", "4\t9", "9\t4", "4\t12345"],
    }
    for name, text in lines.items():
        (folder / name).write_text("\r\n".join(text) + "\r\n")
    return folder


def write_warfarin(folder: Path) -> Path:
    names = [*warfarin.COLUMNS[:9], *warfarin.INDUCERS, "Comments"]
    rows = [",".join([*(f'"{value}"' for value in row), "", "1.0", "0.0", "x"]) for row in PATIENTS]
    path = folder / "iwpc.csv"
    path.write_text("\n".join([",".join(f'"{name}"' for name in names), *rows]) + "\n")
    return path


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    folder, table = write_lastfm(tmp_path / "lastfm"), write_warfarin(tmp_path)

    def build(kind: str, seed: int | None = 0, **changed: Any) -> Any:
        if kind == "warfarin":
            return shoal.Warfarin(table, seed=seed, **changed)
        return shoal.LastFM(
            folder, seed=seed, **{"n_agents": 5, "n_arms": 9, "dim": 4, "least": 4, **changed}
        )

    return build


both = pytest.mark.parametrize("kind", ["lastfm", "warfarin"])


@both
def test_offers_follow_the_agent_and_the_draws_no_policy(kind: str, make: Callable[..., Any]) -> None:
    world = make(kind)
    one = shoal.simulate(shoal.Independent(world.n_agents, world.dim), world, horizon=600, seed=3)
    random = shoal.Independent(world.n_agents, world.dim, epsilon=0.9, seed=1)
    other = shoal.simulate(random, world, horizon=600, seed=3)
    rounds = np.arange(1, 601)
    arms, means = world.offers(rounds, one.agents)
    np.testing.assert_array_equal(one.rewards, means[rounds - 1, one.choices])
    np.testing.assert_array_equal(other.rewards, means[rounds - 1, other.choices])
    np.testing.assert_allclose(one.regret, np.cumsum(1.0 - one.rewards))
    assert (means.sum(axis=1) == 1.0).all()
    # Any pieces of the rounds have the same offers, and the policy is shown them.
    for first, last in ((1, 1), (200, 300), (600, 600)):
        room = world.arms_in(first, last)
        found = world.rewards_in(room, rounds[first - 1 : last], one.agents[first - 1 : last], first=first)
        np.testing.assert_array_equal(room, arms[first - 1 : last])
        np.testing.assert_array_equal(found, means[first - 1 : last])


@both
def test_arms_far_too_long_are_refused_though_they_depend_on_who_pulls(
    kind: str, make: Callable[..., Any]
) -> None:
    world = make(kind)
    policy = shoal.Independent(world.n_agents, world.dim, ridge=1e-20)
    with pytest.raises(ValueError, match="an arm must have a squared length of at most"):
        shoal.simulate(policy, world, horizon=600, seed=3)
    assert not policy.state.local.pulls.any()


@both
def test_seeds_pickling_and_attributes(kind: str, make: Callable[..., Any]) -> None:
    world, same, other = make(kind), make(kind), make(kind, 1)
    rounds, agents = np.arange(1, 41), np.arange(40) % world.n_agents
    for again in (same, pickle.loads(pickle.dumps(world))):
        np.testing.assert_array_equal(world.offers(rounds, agents).arms, again.offers(rounds, agents).arms)
    assert not np.array_equal(world.offers(rounds, agents).arms, other.offers(rounds, agents).arms)
    first = world.offers(np.ones(world.n_agents, dtype=np.int64), np.arange(world.n_agents))
    np.testing.assert_array_equal(world.arms, first.arms[0])
    np.testing.assert_array_equal(world.mean_rewards, first.means)
    assert world.noise_bound == 0.5
    assert world.labels is None
    assert world.data_files
    assert make(kind, None).n_agents == world.n_agents


@both
def test_two_agents_in_a_round_are_refused(kind: str, make: Callable[..., Any]) -> None:
    world = make(kind)
    policy = shoal.Independent(world.n_agents, world.dim)
    with pytest.raises(ValueError, match=f"one agent per round in {type(world).__name__}"):
        shoal.simulate(policy, world, horizon=5, seed=0, pulling="synchronous")


def test_lastfm_offers_one_artist_that_was_heard(make: Callable[..., Any], tmp_path: Path) -> None:
    world = make("lastfm", dim=6)
    text = (tmp_path / "lastfm" / lastfm.LISTENED).read_text().split()[3:]
    heard = {(int(u), int(a)) for u, a in zip(text[::3], text[1::3], strict=True)}
    data = lastfm.prepare(
        [tmp_path / "lastfm" / name for name in (lastfm.LISTENED, lastfm.TAGGED, lastfm.FRIENDS)],
        dim=6,
        recipe="log",
    )
    # Artists are told apart by their features here, and numbered in the order of the tag file.
    number = {row.tobytes(): a for a, row in enumerate(data["features"])}
    assert len(number) == N_ARTISTS
    rounds, agents = np.arange(1, 801), np.arange(800) % world.n_agents
    arms, means = world.offers(rounds, agents)
    counts = np.zeros((world.n_agents, N_ARTISTS))
    for offered, mean, agent in zip(arms, means, agents, strict=True):
        artists = [number[row.tobytes()] for row in offered]
        assert len(set(artists)) == world.n_arms
        known = [(int(world.agent_ids[agent]), artist) in heard for artist in artists]
        assert known == (mean == 1.0).tolist()
        counts[agent, artists] += 1
    assert (counts > 0).all()  # every artist comes up for everybody
    assert (means.mean(axis=0) > 0.05).all()  # the click is in every place


def test_lastfm_friends(make: Callable[..., Any]) -> None:
    world = make("lastfm", n_agents=N_USERS)
    ids = world.agent_ids.tolist()
    joined = {(ids[i], ids[j]) for i, j in np.argwhere(world.graph)}
    assert joined == {(2, 3), (3, 2), (4, 9), (9, 4)}


def test_lastfm_recipes(make: Callable[..., Any], tmp_path: Path) -> None:
    files = [tmp_path / "lastfm" / name for name in (lastfm.LISTENED, lastfm.TAGGED, lastfm.FRIENDS)]
    rows = files[1].read_text().split()[6:]
    counts = np.zeros((N_ARTISTS, N_TAGS))
    seen: dict[int, int] = {}
    for artist, tag in zip(map(int, rows[1::6]), map(int, rows[2::6]), strict=True):
        counts[artist, seen.setdefault(tag, len(seen))] += 1
    idf = np.log(N_ARTISTS / (counts > 0).sum(axis=0))
    shares = counts / counts.sum(axis=1, keepdims=True) * idf
    tables = {"unit": shares, "counts": np.log1p(counts) * idf, "log": np.log1p(counts) * idf}
    assert set(tables) == set(lastfm.RECIPES)
    for recipe, table in tables.items():
        found = lastfm.prepare(files, dim=4, recipe=recipe)["features"]
        left, values, _ = np.linalg.svd(table, full_matrices=False)
        expected = left[:, :3] * values[:3]
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        expected /= np.abs(expected).max() if recipe == "counts" else lengths
        assert (found[:, 3] == lastfm.CONSTANT).all()
        np.testing.assert_allclose(found[:, :3] @ found[:, :3].T, expected @ expected.T, atol=1e-8)


def test_warfarin_patients(make: Callable[..., Any]) -> None:
    world = make("warfarin")
    assert world.agent_ids.tolist() == [1, 5]
    arms, means = world.offers(np.arange(1, 101), np.arange(100) % 2)
    bands = {tuple(np.round(x[x != 0.0], 9)[:3]): y.argmax() for x, y in zip(arms[:, 0], means, strict=True)}
    assert sorted(bands.values()) == [0, 1, 1, 2]  # 20.9, 21, 49.0 and 49.1 mg
    n = len(warfarin.FEATURES)
    for band in range(3):
        outside = np.delete(arms[:, band], np.s_[band * n : (band + 1) * n], axis=1)
        assert (outside == 0.0).all()
        np.testing.assert_array_equal(arms[:, band, band * n : (band + 1) * n], arms[:, 0, :n])
    seen = np.unique(arms[:, 0, :n], axis=0)
    np.testing.assert_allclose((seen**2).sum(axis=1).mean(), 1.0)
    np.testing.assert_allclose(seen[:, 1:6].sum(axis=0), 0.0, atol=1e-12)  # standardised
    assert world.dim == 3 * n
    assert make("warfarin", n_agents=1).agent_ids.tolist() == [1]


@pytest.mark.parametrize(
    ("kind", "name", "edit", "message"),
    [
        ("lastfm", lastfm.LISTENED, ("userID\t", "user\t"), r":1: expected a heading with 'userID', got "),
        ("lastfm", lastfm.LISTENED, ("\t7\r", "\r"), r":2: expected 3 columns, got 2"),
        ("lastfm", lastfm.TAGGED, ("2\t0\t", "2\tx\t"), r":2: expected whole numbers as artistID and tagID"),
        ("lastfm", lastfm.FRIENDS, ("2\t3", "2\t-3"), r":2: expected whole numbers as userID and friendID"),
        ("warfarin", "iwpc.csv", ("Project Site", "Site"), "expected a heading with 'Project Site'"),
        ("warfarin", "iwpc.csv", ('"1","20.9"', '"one","20.9"'), r":2: expected a patient of the consortium"),
        ("warfarin", "iwpc.csv", ('"20.9"', '"-3"'), r":2: expected a patient .* got dose '-3'"),
        ("warfarin", "iwpc.csv", ('"170"', '"1e999"'), r":2: expected a patient .* got '1e999'"),
    ],
)
def test_broken_files_are_named(
    kind: str, name: str, edit: tuple[str, str], message: str, make: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / ("lastfm" if kind == "lastfm" else ".") / name
    text = path.read_bytes().decode()
    assert edit[0] in text
    path.write_bytes(text.replace(*edit, 1).encode())
    with pytest.raises(ValueError, match=message):
        make(kind)


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("lastfm", {"n_agents": 9}, "n_agents must be at most 8, the users of .* got 9"),
        ("lastfm", {"n_arms": 1}, "n_arms must be at least 2, got 1"),
        ("lastfm", {"n_arms": 26}, "n_arms must leave other artists to offer: there are 30"),
        ("lastfm", {"dim": 8}, "dim must be at most 7 for the tags"),
        ("lastfm", {"recipe": "best"}, "recipe must be one of 'log', 'unit', 'counts', got 'best'"),
        ("warfarin", {"n_agents": 3}, "n_agents must be at most 2, the sites"),
    ],
)
def test_bad_arguments(kind: str, changed: dict[str, Any], message: str, make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=message):
        make(kind, **changed)


def test_data_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for build, variable in ((shoal.LastFM, "SHOAL_LASTFM"), (shoal.Warfarin, "SHOAL_WARFARIN")):
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(DataUnavailable, match=f"path must be given, here or as {variable}"):
            build()
        monkeypatch.setenv(variable, str(tmp_path / "nowhere"))
        with pytest.raises(DataUnavailable, match=r"there is no file .*; docs/real-data.md says where"):
            build()
        with pytest.raises(DataUnavailable, match=r"there is no file .*; docs/real-data.md says where"):
            build(tmp_path / "nowhere")


@needs_real
def test_the_real_warfarin_table() -> None:
    world = shoal.Warfarin(REAL / "warfarin" / "iwpc.csv", seed=0)
    assert (world.n_agents, world.n_arms, world.dim) == (22, 3, 30)
    bands = np.bincount(world._bands)
    assert bands.tolist() == [1561, 3704, 772]  # counted with awk
    assert sum(map(len, world._patients)) == 6037


@needs_real
def test_the_real_listeners(tmp_path: Path) -> None:
    world = shoal.LastFM(REAL / "lastfm", n_agents=300, seed=0, cache=tmp_path)
    assert (world.n_arms, world.dim) == (25, 20)
    assert np.sum(world.graph) > 300
    assert len(world._features) == 12_523  # artists with a tag
    lengths = np.linalg.norm(world._features[:, :-1], axis=1)
    assert np.median(lengths) == pytest.approx(1.0)  # some have only tags that no component holds
