"""Old rows go to archives, and everything goes on as if they were still there."""

import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shoal.live.journal import archives, snapshots
from shoal.live.journal.archives import base_of
from shoal.live.population.controller import Controller
from shoal.live.population.controller import open as open_controller
from shoal.live.population.population import Population
from shoal.live.protocol.errors import JournalError, NotOwnerError, UnknownError

ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "water": [0.6, 0.8]}
CANARY = "canary-zq7"


def shop(controller: Controller) -> Population:
    return controller.population("shop", policy="bass", dim=2, seed=1, explore=0.0, delta=0.9)


def live(
    population: Population, tag: str, agents: tuple[str, ...] = ("ada", "ben", "cat"), n: int = 40
) -> None:
    """Decisions, most of them rewarded; `{tag}-open` stays open."""
    for number in range(n):
        agent = agents[number % len(agents)]
        decision = population.decide(agent, ARMS, id=f"{tag}-{number}")
        liking = 1.0 if (decision.arm == "tea") == (agent == "ada") else -1.0
        population.reward(decision.id, liking + 0.01 * number)
    population.decide(agents[0], ARMS, id=f"{tag}-open")


def state(population: Population) -> bytes:
    population.settle()
    return population.owner.packed()[0]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "old").mkdir()
    return tmp_path


def now() -> float:
    time.sleep(0.002)
    return time.time()


def test_goes_on_as_before(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first")
        before = state(population)
        seq = population.sequence
        made = population.archive(place / "old", before=now())
        assert made is not None
        assert (made.first, made.last) == (1, seq)
        assert state(population) == before
        assert controller.verify() == {"shop": []}
        live(population, "second")
        after = state(population)
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        assert state(population) == after
        assert controller.verify() == {"shop": []}
        fold = archives_replayed(population)
        assert snapshots.pack(fold) == after


def archives_replayed(population: Population) -> Any:
    """The state by applying the whole journal, archives and store, from nothing."""
    from shoal.live.journal.fold import Fold

    fold = Fold()
    fold.apply_all(archives.journal(population.owner.store, population.owner.number))
    return fold


def test_the_key_is_not_shown(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        base = base_of(population.owner.store, population.owner.number)
        key = population.settings.key
        assert base.key == key != b""
        for shown in (population.settings, base):
            for text in (repr(shown), str(shown), repr(shown.__rich_repr__())):
                assert repr(key) not in text
                assert "key=" not in text
        assert repr(population.settings).startswith("Settings(policy='bass', dim=2, parameters={")


def test_only_what_is_older(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        assert population.archive(place / "old", before=1.0) is None
        live(population, "first")
        middle, seq = datetime.fromtimestamp(now(), UTC), population.sequence
        live(population, "second")
        made = population.archive(place / "old", before=middle)
        assert made is not None
        assert (made.last, made.until < middle) == (seq, True)
        rows = list(
            population.owner.store.read(population.owner.number, base_of(population.owner.store, 1).seq)
        )
        assert rows[0].seq == seq + 1
        again = population.archive(place / "old", before=now())
        assert again is not None
        assert (again.first, again.last) == (seq + 1, population.sequence)
        assert population.archive(place / "old", before=now()) is None
        assert controller.verify() == {"shop": []}
    assert len(list((place / "old").iterdir())) == 2


def test_the_file_holds_the_rows_as_they_were(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first")
        rows = list(population.owner.store.read(population.owner.number, 0))
        made = population.archive(place / "old", before=now())
    assert made is not None
    table = pq.read_table(made.path).to_pylist()
    found = [
        tuple(row[name] for name in ("seq", "at", "agent", "decision", "body")) for row in table if row["seq"]
    ]
    assert found == [tuple(row) for row in rows]
    assert len([row for row in table if row["digest"]]) == 1


def test_open_decisions_stay_open(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first")
        ranking = population.decide("ada", ARMS, id="ranking", top=2).ranking
        population.reward("ranking", 1.0, arm=ranking[0])
        population.archive(place / "old", before=now())
        population.reward("first-open", 0.5)
        population.reward("first-open", 0.5)
    with open_controller(place / "shop.db") as controller:  # nothing is remembered in memory now
        population = shop(controller)
        population.reward("first-open", 0.5)
        population.reward("first-open", 0.25, replaces=0.5)
        population.reward("ranking", 0.0, arm=ranking[1])
        assert population.decide("ada", ARMS, id="first-open").id == "first-open"
        assert controller.verify() == {"shop": []}
        population.archive(place / "old", before=now())
        assert not list(population.owner.store.read(population.owner.number, 0)), (
            "closed decisions need no rows any more"
        )
        assert controller.verify() == {"shop": []}


def test_what_rows_that_stay_are_about_is_known(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first")
        population.decide("ada", {"juice": [0.5, 0.5], "milk": [0.1, 0.2]}, id="corrected")
        population.reward("corrected", 1.0)
        middle = now()
        population.reward("corrected", 0.5, replaces=1.0)
        population.archive(place / "old", before=middle)
        population.reward(
            "corrected",
            0.25,
            replaces=0.5,
            arm=population.decide("ada", id="corrected", arms={"juice": [0.5, 0.5], "milk": [0.1, 0.2]}).arm,
        )
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        population.reward("corrected", 0.25)
        assert controller.verify() == {"shop": []}


def test_closed_decisions_are_archived(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first")
        population.archive(place / "old", before=now())
        with pytest.raises(
            UnknownError, match=r"'first-0' that is not closed and archived: .* up to 20\d\d-"
        ):
            population.reward("first-0", 1.0)
        with pytest.raises(UnknownError, match="was archived up to"):
            population.cancel("first-1")


def test_arms_that_no_row_needs_are_dropped(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        population.set_arms({**ARMS, "milk": [0.5, 0.5]})
        for number in range(30):
            population.reward(population.decide("ada", {"x": [float(number), 1.0]}).id, 1.0)
        population.decide("ada", ["tea", "milk"], id="part")  # a part of the catalogue, still open
        population.retire("milk")
        population.archive(place / "old", before=now())
        count = sqlite3.connect(place / "shop.db").execute("SELECT count(*) FROM arms").fetchone()[0]
        assert count == 3  # the catalogue, the part, and what it is a part of
        population.reward("part", 1.0)
        assert set(population.catalogue) == set(ARMS)
        assert population.decide("ben").arm in ARMS
        assert population.export(place / "out.jsonl") == 32


def test_looking_back(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first", n=20)
        seq, then = population.sequence, state(population)
        live(population, "second", n=20)
        made = population.archive(place / "old", before=now())
        assert made is not None
        store, number = population.owner.store, population.owner.number
        assert snapshots.pack(snapshots.load(store, number, seq)) == then
        Path(made.path).rename(place / "elsewhere")
        with pytest.raises(JournalError, match="cannot be read: No such file"):
            snapshots.load(store, number, seq)
        with pytest.raises(JournalError, match="cannot be read"):
            population.export(place / "out.jsonl")
        assert population.export(place / "out.jsonl", archived=False) == 2
        assert controller.verify() == {"shop": []}, "the archive is not needed to go on"


def test_damage_is_found(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first")
        before = state(population)
        made = population.archive(place / "old", before=now())
        assert made is not None
        whole = Path(made.path).read_bytes()
        Path(made.path).write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
        (problem,) = controller.verify()["shop"]
        assert "its checksum is another" in problem
        Path(made.path).write_bytes(whole)
    with sqlite3.connect(place / "shop.db") as database:
        database.execute("UPDATE base SET state = zeroblob(100)")
    database.close()
    with open_controller(place / "shop.db") as controller:
        with pytest.warns(RuntimeWarning, match="the archives are read instead"):
            population = shop(controller)
        assert state(population) == before
    Path(made.path).unlink()
    with (
        open_controller(place / "shop.db") as controller,
        pytest.raises(JournalError, match="is damaged, and the archive"),
    ):
        shop(controller)


def everything(place: Path) -> bytes:
    return b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())


def test_forgetting_reaches_archives(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first", ("ada", CANARY, "ben"))
        population.archive(place / "old", before=now())
        live(population, "second", ("ada", CANARY, "ben"))
        population.archive(place / "old", before=now())
        live(population, "third", ("ada", CANARY, "ben"))
        assert uncompressed(place).count(CANARY.encode()) > 0
        population.forget(CANARY)
        population.settle()
        assert CANARY.encode() not in everything(place) + uncompressed(place)
        assert len(list((place / "old").iterdir())) == 2
        assert controller.verify() == {"shop": []}
        assert not base_of(population.owner.store, population.owner.number).litter
        assert snapshots.pack(archives_replayed(population)) == state(population)
    with open_controller(place / "shop.db") as controller:
        assert shop(controller).agents == ["ada", "ben"]
        assert controller.verify() == {"shop": []}


def uncompressed(place: Path) -> bytes:
    """What the archives say, as compression may hide it."""
    tables = [pq.read_table(path) for path in (place / "old").glob("*.parquet")]
    return b"".join(body for table in tables for body in table["body"].to_pylist())


def test_forgetting_where_an_archive_is_away(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first", ("ada", CANARY, "ben"))
        made = population.archive(place / "old", before=now())
        assert made is not None
        away = Path(made.path).rename(place.parent / "away.parquet")
        live(population, "second", ("ada", CANARY, "ben"))
        population.forget(CANARY)
        population.settle()
        assert CANARY.encode() not in everything(place)
        assert controller.verify() == {"shop": []}
        held = state(population)
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        assert state(population) == held
        assert population.agents == ["ada", "ben"]
    away.rename(made.path)
    with open_controller(place / "shop.db") as controller:  # it is back, and is written again without them
        population = shop(controller)
        population.settle()
        assert CANARY.encode() not in everything(place) + uncompressed(place)
        assert snapshots.pack(archives_replayed(population)) == state(population)
        assert controller.verify() == {"shop": []}


def test_a_restored_backup_forgets_again(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first", ("ada", CANARY, "ben"))
        population.archive(place / "old", before=now())
        controller.store.backup(place / "backup.db")  # type: ignore[attr-defined]
        population.forget(CANARY)
    for path in place.glob("shop.db*"):
        if path.is_file() and path.suffix != ".forgotten":
            path.unlink()
    (place / "backup.db").rename(place / "shop.db")
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        population.settle()
        assert population.agents == ["ada", "ben"]
        assert CANARY.encode() not in everything(place)


def test_an_interrupted_archive_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first")
        before = state(population)

        def die(*args: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(controller.store, "drop", die)
        with pytest.raises(KeyboardInterrupt):
            population.archive(place / "old", before=now())
        assert len(list((place / "old").iterdir())) == 1
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        assert state(population) == before
        assert not list((place / "old").iterdir())
        assert controller.verify() == {"shop": []}


def test_somebody_is_forgotten_meanwhile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first", ("ada", CANARY, "ben"))
        write, times = archives.write, []

        def slow(*args: Any) -> bytes:
            checksum = write(*args)
            times.append(1)
            if len(times) == 1:
                population.forget(CANARY)
            return checksum

        monkeypatch.setattr(archives, "write", slow)
        population.archive(place / "old", before=now())
        population.settle()
        assert len(times) == 2
        assert CANARY.encode() not in everything(place) + uncompressed(place)
        assert controller.verify() == {"shop": []}


def test_imports_are_remembered(place: Path) -> None:
    path = place / "log.csv"
    path.write_text("agent,reward,a,b\n" + "ada,1,1,0\nben,0,0,1\n" * 20)
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        population.import_log(path, features=["a", "b"])
        population.archive(place / "old", before=now())
        done = population.import_log(path, features=["a", "b"])
        assert (done.added, done.known) == (0, 40)


def test_who_may_archive_and_where(place: Path) -> None:
    with open_controller(place / "shop.db") as controller:
        population = shop(controller)
        live(population, "first")
        with pytest.raises(NotADirectoryError, match="directory must not be a file"):
            population.archive(place / "shop.db", before=now())
        made = population.archive(place / "new" / "one", before=now())
        assert made is not None
        assert Path(made.path).parent == (place / "new" / "one").resolve()
        with pytest.raises(ValueError, match="before must have a time zone"):
            population.archive(place / "old", before=datetime(2026, 1, 1))
        with pytest.raises(ValueError, match="before must be a finite number"):
            population.archive(place / "old", before=-1.0)
        with open_controller(place / "shop.db", read_only=True) as reader:
            beside = reader.population("shop")
            with pytest.raises(NotOwnerError):
                beside.archive(place / "old", before=now())
            assert beside.agents == ["ada", "ben", "cat"]
            population.archive(place / "old", before=now())
            live(population, "second")
            assert beside.sequence == population.sequence, "a reader goes on across an archive"
            assert beside.owner.packed()[0] == state(population)


def test_in_memory(place: Path) -> None:
    with open_controller(":memory:") as controller:
        population = shop(controller)
        live(population, "first")
        population.archive(place / "old", before=now())
        population.reward("first-open", 1.0)
        population.reward("first-open", 1.0)
        live(population, "second")
        population.forget("ben")
        population.settle()
        assert controller.verify() == {"shop": []}
        assert snapshots.pack(archives_replayed(population)) == state(population)
