"""Forgetting a person: no bytes of theirs are left, and a state as if they had never been there."""

import random
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.live.places import Place, shop, sound
from tests.live.population.server import Server

from shoal.live.journal.stores.sqlite import SQLiteStore
from shoal.live.population.population import Population
from shoal.live.protocol.errors import GoneError, UnavailableError, UnknownError

NAME, OTHER_NAME, DECISION, OBSERVATION = (
    "zebulon-canary",
    "zeb-alias",
    "decision-canary-42",
    "seen-canary-17",
)
FEATURES = [[0.73105857863, -0.26894142137], [0.62245933120, 0.37754066880]]
REWARDS = [0.31830988618, 0.86602540378]


def live(one: Population) -> list[bytes]:
    """Let somebody live among others; what must not be found afterwards."""
    for n in range(30):
        one.observe(f"other {n % 3}", [0.6, 0.8], 0.5)
    one.decide(NAME, {"one": FEATURES[0], "two": [0.1, 0.2]}, id=DECISION)
    one.reward(DECISION, REWARDS[0])
    one.observe(NAME, FEATURES[1], REWARDS[1], id=OBSERVATION)
    one.decide(OTHER_NAME, [FEATURES[0]])
    one.merge(NAME, OTHER_NAME)
    estimates: list[float] = one.owner.read(
        lambda fold: [
            *fold.policy.local_estimate(fold.names[NAME]),
            *fold.policy.state.local.b[fold.names[NAME]],
        ]
    )
    texts = [text.encode() for text in (NAME, OTHER_NAME, DECISION, OBSERVATION)]
    numbers = [number for x in FEATURES for number in x] + REWARDS + [float(one) for one in estimates]
    return texts + [struct.pack(order, number) for number in numbers for order in ("<d", ">d")]


def found(directory: Path, canaries: list[bytes]) -> list[str]:
    """Where canaries are still alive."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [f"{one!r} in {path.name}" for path in files for one in canaries if one in path.read_bytes()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place("sqlite", tmp_path / "shop.db")
    yield place
    place.close()


def test_no_bytes_are_left(place: Place, tmp_path: Path) -> None:
    controller = place.open()
    one = shop(controller)
    canaries = live(one)
    one.snapshot()
    alive = found(tmp_path, canaries)
    assert len({text.split(" in ")[0] for text in alive}) > 10  # the test would see them
    assert any("snapshot" in text for text in alive)
    one.forget(OTHER_NAME)
    assert found(tmp_path, canaries) == []
    one.settle()
    one.snapshot()
    assert one.agents == ["other 0", "other 1", "other 2"]
    assert sound(controller)
    assert found(tmp_path, canaries) == []
    controller.close()
    assert found(tmp_path, canaries) == []


def test_no_rows_are_left_on_a_server(server: Server) -> None:
    place = Place("postgres", server.room())
    one = shop(place.open())
    canaries = live(one)
    one.snapshot()

    def everything() -> str:
        with psycopg.connect(place.url) as connection:
            tables = ["schema", "population", "journal", "arms", "gone", "snapshot"]
            rows = [connection.execute(f"SELECT t::text FROM shoal_{one} t").fetchall() for one in tables]
        return str(rows)

    def alive() -> list[bytes]:
        text = everything()
        return [one for one in canaries if one.hex() in text or repr(one)[2:-1] in text]

    assert len(alive()) > 10
    one.forget(NAME)
    assert alive() == []
    one.snapshot()
    assert alive() == []
    place.close()


@pytest.mark.parametrize("when", ["delete_snapshot", "scrub"])
def test_forgetting_that_was_interrupted_is_finished(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Killed after the commit: the next owner deletes snapshots and write-ahead file."""
    controller = place.open()
    one = shop(controller)
    canaries = live(one)
    one.snapshot()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(controller.store, when, killed)
        with pytest.raises(KeyboardInterrupt):
            one.forget(NAME)
    shutil.copytree(
        tmp_path, copy := tmp_path.with_name(f"{tmp_path.name}-copy")
    )  # what a killed process leaves
    assert found(copy, canaries)
    again = Place("sqlite", copy / "shop.db")
    controller = again.open()
    one = shop(controller)
    assert found(copy, canaries) == []
    with pytest.raises(GoneError):
        one.reward(DECISION, 1.0)
    assert sound(controller)
    again.close()


def test_a_commit_that_fails_forgets_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = place.open()
    one = shop(controller)
    live(one)
    before = one.sequence

    def broken(*_: Any) -> None:
        raise UnavailableError("the disk is full")

    with monkeypatch.context() as context:
        context.setattr(controller.store, "forget", broken)
        with pytest.raises(UnavailableError):
            one.forget(NAME)
    assert NAME in one.agents
    assert one.sequence == before
    one.forget(NAME)
    assert sound(controller)


def feed(one: Population, people: list[str], left_out: str | None = None, *, joins: bool = False) -> None:
    """The same calls each time, except those of one who is left out, or only joins and is forgotten."""
    draw = random.Random(3)
    likes = {name: (1.0, 0.1) if n % 2 else (0.1, 1.0) for n, name in enumerate(people)}
    for number in range(400):
        name = draw.choices(people, [1, 1, 3, 1, 1])[0]
        x = [draw.uniform(-1, 1), draw.uniform(-1, 1)]
        kind, noise = draw.random(), draw.gauss(0, 0.05)
        if name == left_out:
            if joins:
                one.add(name)
                one.forget(name)
                joins = False
            continue
        reward = float(np.dot(x, likes[name])) + noise
        if kind < 0.4:
            one.observe(name, x, reward)
            continue
        key = one.decide(name, [x], id=f"{number}").id
        if kind < 0.8:
            one.reward(key, reward)
        if kind < 0.5:
            one.reward(key, reward + 0.1, replaces=reward)
        elif kind > 0.95:
            one.cancel(key)


def known(one: Population) -> dict[str, tuple[list[float], list[float]]]:
    """The estimates of everybody, of their own samples and of all."""
    one.settle()
    return one.owner.read(
        lambda fold: {
            name: (fold.policy.local_estimate(agent).tolist(), fold.policy.estimate(agent).tolist())
            for name, agent in fold.names.items()
        }
    )


@pytest.mark.parametrize("policy", ["bass", "cluster_mixture"])
@pytest.mark.parametrize("gone", ["ada", "cleo"])
def test_the_state_is_as_if_they_had_never_been_there(policy: str, gone: str) -> None:
    """To the bit, as their place among the agents stays; BASS up to the last digits, had they never had one.

    ClusterMixture draws whom to reconsider among all places, and its ridge and noises move in steps, whose
    moments depend on how many places there are.
    """
    people = ["ada", "ben", "cleo", "dan", "eve"]
    places = [Place("memory", None) for _ in range(3)]
    forgotten, silent, absent = (shop(place.open(), policy=policy) for place in places)
    feed(forgotten, people)
    forgotten.forget(gone)
    feed(silent, people, left_out=gone, joins=True)
    feed(absent, people, left_out=gone)
    for _ in range(2):
        assert known(forgotten) == known(silent)
        assert sorted(known(forgotten)) == sorted(known(absent)) == sorted(set(people) - {gone})
        np.testing.assert_array_equal(forgotten.graph().edges, silent.graph().edges)
        if policy == "bass":
            for name, estimates in known(absent).items():
                np.testing.assert_allclose(estimates, known(forgotten)[name], rtol=1e-10)
            np.testing.assert_array_equal(forgotten.graph().edges, absent.graph().edges)
            assert np.count_nonzero(absent.graph().edges) < 4 * 3  # somebody was separated
        rounds = {one.owner.read(lambda fold: fold.policy.rounds) for one in (forgotten, silent, absent)}
        assert len(rounds) == 1
        for one in (forgotten, silent, absent):  # and it goes on in the same way
            assert sound(one._controller)
            for name in one.agents:
                one.observe(name, [0.3, -0.2], 0.7)
    for place in places:
        place.close()


def test_corrections_after_forgetting(place: Place) -> None:
    """Rounds are counted anew without the forgotten; a reward from before can still be corrected."""
    controller = place.open()
    one = shop(controller, policy="cluster_mixture")
    for n in range(20):
        one.observe("ada", [1.0, 0.0], 1.0)
        one.reward(one.decide("ben", [[0.0, 1.0]], id=f"{n}").id, 1.0)
    one.forget("ada")
    one.settle()
    before = one.owner.read(lambda fold: fold.policy.local_estimate(fold.names["ben"]).tolist())
    one.reward("3", 0.0, replaces=1.0)
    after = one.owner.read(lambda fold: fold.policy.local_estimate(fold.names["ben"]).tolist())
    assert after[1] < before[1]
    assert sound(controller)


def test_the_store_is_asked_who_is_gone_once_anybody_is(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = place.open()
    one = shop(controller)
    with monkeypatch.context() as context:
        context.setattr(controller.store, "has_gone", lambda *_: pytest.fail("nobody has been forgotten"))
        live(one)
        with pytest.raises(UnknownError):
            one.reward("unknown", 1.0)
    one.forget(NAME)
    one.settle()
    one.switch("independent")
    (tmp_path / "old").mkdir()
    assert one.archive(tmp_path / "old", before=time.time() + 1.0) is not None
    one.snapshot()
    for opened in range(2):
        with pytest.raises(GoneError):
            one.reward(DECISION, 1.0)
        with pytest.raises(GoneError):
            one.decide(NAME, [FEATURES[0]], id=DECISION)
        with pytest.raises(GoneError):
            one.observe(NAME, FEATURES[1], 1.0, id=OBSERVATION)
        if not opened:
            place.close()
            one = shop(place.open())


def test_restoring_a_backup_forgets_again(place: Place, tmp_path: Path) -> None:
    controller = place.open()
    one = shop(controller)
    live(one)
    assert isinstance(controller.store, SQLiteStore)
    controller.store.backup(tmp_path / "backup.db")
    one.forget(NAME)
    one.decide(NAME, [[1.0, 0.0]])  # somebody else of that name
    controller.close()
    place._open.clear()
    for beside in ("shop.db-wal", "shop.db-shm"):
        (tmp_path / beside).unlink(missing_ok=True)
    shutil.move(tmp_path / "backup.db", tmp_path / "shop.db")
    controller = place.open()
    one = shop(controller)
    one.settle()
    assert one.agents == ["other 0", "other 1", "other 2"]
    with pytest.raises(GoneError):
        one.reward(DECISION, REWARDS[0])
    assert sound(controller)


def test_forgetting_under_load(durable: Place) -> None:
    """Others go on while the state is rebuilt."""
    controller = durable.open()
    one = shop(controller)
    for n in range(50):
        one.observe(f"ada {n % 4}", [0.6, 0.8], 0.5)

    def work(thread: int) -> None:
        for n in range(15):
            one.reward(one.decide(f"agent {thread}", [[1.0, 0.0]], id=f"{thread}-{n}").id, 1.0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for n in range(4):
        one.forget(f"ada {n}")
    for thread in threads:
        thread.join()
    one.settle()
    assert sorted(one.agents) == [f"agent {n}" for n in range(3)]
    assert one.owner.read(lambda fold: [fold.observed[fold.names[name]] for name in one.agents]) == [15] * 3
    assert sound(controller)


def test_others_go_on_while_the_journal_is_searched(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what came meanwhile is read while they wait; what they did in that time is searched, too."""
    controller = place.open()
    one = shop(controller)
    canaries = live(one)
    read, lengths = SQLiteStore.read, []

    def watched(self: SQLiteStore, population: int, after: int, upto: int | None = None) -> Iterator[Any]:
        rows = list(read(self, population, after, upto))
        lengths.append(len(rows))
        if len(lengths) == 1:
            decides = threading.Thread(
                target=one.decide, args=(NAME, [FEATURES[0]]), kwargs={"id": f"{DECISION}-late"}
            )
            decides.start()
            decides.join(20.0)
            assert not decides.is_alive()
        return iter(rows)

    with monkeypatch.context() as patch:
        patch.setattr(SQLiteStore, "read", watched)
        before = one.sequence
        one.forget(NAME)
    assert lengths[:2] == [before, 1]
    one.settle()
    assert found(Path(place.url).parent, [*canaries, b"-late"]) == []
    with pytest.raises(GoneError):
        one.reward(f"{DECISION}-late", 1.0)
    assert sound(controller)
