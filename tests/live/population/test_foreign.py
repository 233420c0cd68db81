"""What another store or population left behind under the same name is passed over, not believed."""

import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace
from tests.live.conftest import make_place
from tests.live.places import Place, shop, sound
from tests.live.population.server import Server
from tests.live.population.test_snapshotter import run

from shoal.live.journal.archives import base_of, pack_base
from shoal.live.journal.stores.base import Snapshot
from shoal.live.population.controller import open as open_controller
from shoal.live.population.population import Population
from shoal.live.protocol.errors import JournalError

FOREIGN = r"belongs to another journal"
X = [1.0, 0.0]


def learn(one: Population, reward: float, n: int = 20) -> int:
    """Ada likes X this much; the last sequence number."""
    for _ in range(n):
        one.observe("ada", X, reward)
    return one.sequence


def own(one: Population) -> float:
    """What Ada's own samples predict for X."""
    return one.decide("ada", [X]).own


def delete(place: Place) -> None:
    """Delete a store, but not its snapshots and its base."""
    place.close()
    if place.kind == "sqlite":
        Path(place.url).unlink()
        return
    with psycopg.connect(place.url, autocommit=True) as db:
        db.execute("TRUNCATE shoal_population, shoal_journal RESTART IDENTITY")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Place]:
    """Another store."""
    (tmp_path / "other").mkdir()
    place = Place("sqlite", tmp_path / "other" / "shop.db")
    yield place
    place.close()


def foreign_state(other: Place, seq: int) -> bytes:
    """The state of another store's population of the same name, number and length."""
    one = shop(other.open())
    learn(one, 1.0, seq - 2)
    content, at = one.owner.packed()
    assert at == seq
    return content


# Snapshots


def test_a_store_that_was_deleted_without_its_snapshots(durable: Place) -> None:
    one = shop(durable.open())
    learn(one, 1.0)
    one.decide("ada", [X], id="old")
    one.snapshot()
    delete(durable)
    with pytest.warns(RuntimeWarning, match=FOREIGN):
        one = shop(durable.open(snapshot_every=20))
    learn(one, 0.0, 30)
    one.decide("ada", [X], id="late")
    durable.close()  # and a snapshot is written, the only one
    controller = durable.open()
    one = shop(controller)
    assert own(one) == 0.0
    assert one.owner.store.snapshots(1) == [(1, 33)]
    one.reward("late", 0.0)
    assert sound(controller)


def test_a_snapshot_of_the_same_name_and_number(place: Place, other: Place) -> None:
    controller = place.open()
    one = shop(controller)
    seq = learn(one, 0.0)
    number, before = one.owner.lease.population, one.owner.packed()
    one.snapshot()
    one.owner.store.save_snapshot(number, Snapshot(one.owner.lease.epoch, seq, foreign_state(other, seq)))
    place.crash(controller)
    controller = place.open()
    with pytest.warns(RuntimeWarning, match=rf"snapshot {seq} .* {FOREIGN}; it is passed over"):
        one = shop(controller)
    assert one.owner.packed() == before
    assert one.owner.store.snapshots(number) == []
    assert own(one) == 0.0
    assert sound(controller)


def test_a_reader_passes_it_over_and_leaves_it(durable: Place, other: Place) -> None:
    one = shop(durable.open())
    seq = learn(one, 0.0)
    one.owner.store.save_snapshot(1, Snapshot(one.owner.lease.epoch, seq, foreign_state(other, seq)))
    with pytest.warns(RuntimeWarning, match=FOREIGN):
        same = durable.open(read_only=True).population("shop")
    assert same.owner.packed() == one.owner.packed()
    assert len(one.owner.store.snapshots(1)) == 1


def test_the_process_that_writes_snapshots(durable: Place, other: Place) -> None:
    one = shop(durable.open(lease=3.0, snapshot_every=0))
    seq = learn(one, 0.0)
    one.owner.store.save_snapshot(1, Snapshot(one.owner.lease.epoch, seq, foreign_state(other, seq)))
    done = run(durable.url)
    assert (done.returncode, done.stdout.split(",")[0]) == (0, f"snapshot {seq}")
    assert "belongs to another journal; it is passed over" in done.stderr
    assert one.owner.store.load_snapshot(1, one.owner.lease.epoch, seq) == one.owner.packed()[0]


def test_a_copy_brings_its_snapshots(tmp_path: Path) -> None:
    """Warnings are errors here: both are believed, the one of the copy from the first record's key."""
    with open_controller(tmp_path / "shop.db", snapshot_every=0) as controller:
        one = shop(controller)
        learn(one, 0.5)
        seq = one.snapshot()
    shutil.copy(tmp_path / "shop.db", tmp_path / "copy.db")
    shutil.copytree(tmp_path / "shop.db-snapshots", tmp_path / "copy.db-snapshots")
    with open_controller(tmp_path / "copy.db") as controller:
        one = shop(controller)
        assert one.owner.store.snapshots(1) == [(1, seq)]
        assert sound(controller)


def test_a_journal_that_went_on_differently(tmp_path: Path) -> None:
    """A copy is put back by hand, beside snapshots of what came after it."""
    path, copy = tmp_path / "shop.db", tmp_path / "copy.db"
    with open_controller(path, snapshot_every=0) as controller:
        learn(shop(controller), 0.0, 5)
    shutil.copy(path, copy)
    with open_controller(path, snapshot_every=0) as controller:
        one = shop(controller)
        learn(one, 1.0)
        one.snapshot()
    put_aside = tmp_path / "put aside"
    (tmp_path / "shop.db-snapshots").rename(put_aside)
    shutil.copy(copy, path)
    with open_controller(path, snapshot_every=0) as controller:
        one = shop(controller)
        learn(one, 0.0, 30)
        before = one.owner.packed()
    put_aside.rename(tmp_path / "shop.db-snapshots")
    with open_controller(path, snapshot_every=0) as controller:
        one = shop(controller)
        assert one.owner.packed() == before
        assert own(one) == 0.0
        assert sound(controller)


def test_a_reader_of_a_store_that_is_made_anew(server: Server) -> None:
    place = Place("postgres", server.room())
    learn(shop(place.open()), 1.0)
    reader = open_controller(place.url, read_only=True)
    same = reader.population("shop")
    assert same.sequence == 22
    delete(place)
    for n, seq in ((10, 12), (30, 42)):  # fewer records than the reader knows; then it goes on
        one = shop(place.open())
        learn(one, 0.0, n)
        assert (same.sequence, same.owner.packed()) == (seq, one.owner.packed())
        place.close()
    reader.close()


# Bases and archives


def test_a_first_record_that_cannot_be_read(tmp_path: Path) -> None:
    """It has the key."""
    path = tmp_path / "shop.db"
    with open_controller(path) as controller:
        learn(shop(controller), 0.0)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE journal SET body = x'c1' WHERE seq = 1")
        db.commit()
    with open_controller(path) as controller:
        assert "record 1 cannot be read" in controller.verify()["shop"][0]
        with pytest.raises(JournalError, match="record 1 cannot be read"):
            shop(controller)


def archived(place: Place, directory: Path, reward: float) -> Population:
    """A population of which the first part is archived."""
    one = shop(place.open(snapshot_every=0))
    learn(one, reward)
    time.sleep(0.002)
    assert one.archive(directory, before=time.time()) is not None
    learn(one, reward, 5)
    return one


def test_the_key_outlives_the_first_record(place: Place, tmp_path: Path) -> None:
    one = archived(place, tmp_path, 0.5)
    key = one.settings.key
    assert base_of(one.owner.store, one.owner.number).key == key
    one.switch(delta=0.3)
    one.forget("ada")
    one.settle()
    learn(one, 0.5)
    seq = one.snapshot()
    before = one.owner.packed()
    place.crash(place._open[0])
    controller = place.open()
    one = shop(controller)
    assert one.owner.packed() == before
    assert base_of(one.owner.store, one.owner.number).key == key
    assert one.owner.store.snapshots(one.owner.number)[0][1] == seq
    assert sound(controller)


def test_the_base_of_a_store_that_was_deleted(server: Server, tmp_path: Path) -> None:
    """On PostgreSQL; in an SQLite file it goes with the journal."""
    place = Place("postgres", server.room())
    archived(place, tmp_path, 1.0)
    (file,) = tmp_path.glob("*.parquet")
    delete(place)
    learn(shop(place.open(snapshot_every=0)), 0.0, 30)
    place.close()
    controller = place.open(snapshot_every=0)
    with pytest.warns(RuntimeWarning, match=f"the base of population 1 .* {FOREIGN}; it is passed over"):
        one = shop(controller)
    assert own(one) == 0.0
    with pytest.warns(RuntimeWarning, match=FOREIGN):
        assert sound(controller)
    with pytest.warns(RuntimeWarning, match=FOREIGN):
        one.archive(tmp_path, before=time.time() + 60.0)
    assert file.exists()
    learn(one, 0.0)
    assert sound(controller)  # nothing foreign is left
    place.close()


def test_the_state_of_another_base(place: Place, other: Place, tmp_path: Path) -> None:
    one = archived(place, tmp_path, 0.0)
    before, store, number = one.owner.packed(), one.owner.store, one.owner.number
    state = foreign_state(other, base_of(store, number).seq)
    store.set_base(one.owner.lease, store.base(number) or b"", state)
    place.crash(place._open[0])
    controller = place.open()
    with pytest.warns(RuntimeWarning, match=f"the base .* {FOREIGN}; the archives are read instead"):
        one = shop(controller)
    assert one.owner.packed() == before
    (file,) = tmp_path.glob("*.parquet")
    file.rename(tmp_path / "away")
    place.crash(controller)
    controller = place.open()
    with pytest.raises(JournalError, match=f"{FOREIGN}, and the archive .* cannot be read"):
        shop(controller)


def test_the_archive_of_another_store(place: Place, other: Place, tmp_path: Path) -> None:
    """Its checksum, which the base has, is another."""
    (tmp_path / "old").mkdir()
    archived(other, tmp_path / "old", 1.0)
    one = archived(place, tmp_path, 0.0)
    (file,) = tmp_path.glob("*.parquet")
    (foreign,) = (tmp_path / "old").glob("*.parquet")
    shutil.copy(foreign, file)
    with pytest.raises(JournalError, match="its checksum is another"):
        one.export(tmp_path / "rows.jsonl")
    assert own(one) == 0.0
    (problem,) = place._open[0].verify("shop")["shop"]
    assert "its checksum is another" in problem


# Copies of a store, which refer to the same archives


@pytest.fixture
def copy(durable: Place, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Place]]:
    """Makes a copy of the store, which is closed, as an operator would."""
    made = make_place(durable.kind, tmp_path / "copy", request)

    def copied() -> Place:
        durable.close()
        if durable.kind == "sqlite":
            (tmp_path / "copy").mkdir()
            shutil.copy(durable.url, made.url)
            return made
        made.store().close()  # makes the tables
        names = [re.search(r"test\d+", one.url) for one in (durable, made)]
        old, new = (name[0] for name in names if name)
        with psycopg.connect(request.getfixturevalue("server").url(), autocommit=True) as db:
            for table in ("population", "journal", "arms", "gone", "base"):
                rows = f"OVERRIDING SYSTEM VALUE SELECT * FROM {old}.shoal_{table}"
                db.execute(f"INSERT INTO {new}.shoal_{table} {rows}")
        return made

    yield copied
    made.close()


def test_forgetting_in_a_copy_leaves_the_files_of_the_original(
    durable: Place, copy: Callable[[], Place], tmp_path: Path
) -> None:
    archived(durable, tmp_path, 1.0)
    (file,) = tmp_path.glob("*.parquet")
    before = file.read_bytes()
    place = copy()
    controller = place.open()
    one = shop(controller)
    for name in ("ada", "bob"):  # twice: the copy has a file of its own by then
        learn(one, 1.0) if name == "ada" else one.observe("bob", X, 1.0)
        one.forget(name)
        one.settle()
    (own_file,) = set(tmp_path.glob("*.parquet")) - {file}
    assert file.read_bytes() == before
    assert b"ada" not in own_file.read_bytes()
    assert sound(controller)
    place.close()
    controller = durable.open()
    one = shop(controller)
    assert one.agents == ["ada"]
    assert one.export(tmp_path / "rows.jsonl") == 25
    one.forget("ada")
    one.settle()
    assert not file.exists()
    assert sound(controller)


def test_what_the_original_was_about_to_delete_is_not_deleted_by_a_copy(
    durable: Place, copy: Callable[[], Place], tmp_path: Path
) -> None:
    """A copy made while a file is written calls it litter, and opens when it is an archive."""
    one = archived(durable, tmp_path, 1.0)
    (file,) = tmp_path.glob("*.parquet")
    owner = one.owner
    owner.store.set_base(owner.lease, pack_base(replace(owner.base, litter=(str(file),))))
    place = copy()
    shop(place.open()).settle()
    assert file.exists()
    place.close()
    one = shop(durable.open())
    one.settle()
    assert not file.exists()


def test_a_store_that_was_moved_deletes_its_files(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path / "shop.db")
    archived(place, tmp_path, 1.0)
    place.close()
    (file,) = tmp_path.glob("*.parquet")
    place = Place("sqlite", (tmp_path / "shop.db").rename(tmp_path / "moved.db"))
    one = shop(place.open())
    one.forget("ada")
    one.settle()
    place.close()
    assert not file.exists()


# Other files beside an SQLite store


def test_those_forgotten_in_a_store_that_was_deleted(tmp_path: Path) -> None:
    """Hashes of the forgotten are keyed with the journal's key: nobody else is taken for them."""
    path = tmp_path / "shop.db"
    with open_controller(path) as controller:
        one = shop(controller)
        learn(one, 1.0)
        one.forget("ada")
        one.settle()
    remembered = path.with_name("shop.db.forgotten").read_text()
    path.unlink()
    for _ in range(2):
        with open_controller(path) as controller:
            one = shop(controller)
            learn(one, 0.0)
            assert one.agents == ["ada"]
    assert path.with_name("shop.db.forgotten").read_text() == remembered


def test_the_write_ahead_file_of_a_store_that_was_deleted(tmp_path: Path) -> None:
    path, wal = tmp_path / "shop.db", tmp_path / "shop.db-wal"
    with open_controller(path) as controller:
        learn(shop(controller), 1.0)
        left = wal.read_bytes()
        assert left
    path.unlink()
    wal.write_bytes(left)
    with open_controller(path) as controller:
        assert controller.populations() == []
        learn(shop(controller), 0.0)
    with open_controller(path) as controller:
        assert own(shop(controller)) == 0.0
        assert sound(controller)
