"""What every store does, and nothing of what the rows mean."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.live.places import Place
from tests.live.population.server import Server

from shoal.live.journal.records import Row
from shoal.live.journal.stores import open_store
from shoal.live.journal.stores.base import ArchivedPart, Batch, Lease, Snapshot, Store, Traces
from shoal.live.journal.stores.postgres import PostgresStore
from shoal.live.protocol.errors import NotOwnerError, UnavailableError, UnknownError
from shoal.live.service.keys import PostgresKeys

LEASE = 30.0
NOTE_SETTING = """
CREATE TABLE noted (setting text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO noted VALUES (current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON shoal_journal FOR EACH STATEMENT EXECUTE FUNCTION note();
"""
"""In PostgreSQL, note how a connection commits when it inserts records."""


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    store = place.store()
    yield store
    store.close()


@pytest.fixture
def lease(store: Store) -> Lease:
    return store.take(store.create("shop"), "one", LEASE)


def rows(start: int, n: int = 1, *, agent: int | None = 0, decision: str | None = None) -> list[Row]:
    return [Row(seq, 1_000 + seq, agent, decision, b"row %d" % seq) for seq in range(start, start + n)]


def append(
    store: Store, lease: Lease, new: list[Row], arms: list[tuple[bytes, bytes]] | None = None
) -> Lease:
    assert store.append([Batch(lease, new, arms or [])], LEASE) == [None]
    return lease._replace(last_seq=lease.last_seq + len(new))


def refusal(store: Store, batch: Batch) -> Exception:
    (error,) = store.append([batch], LEASE)
    assert error is not None
    return error


def test_populations_are_made_once(store: Store) -> None:
    first, second = store.create("shop"), store.create("a'; DROP TABLE journal; --")
    assert first != second
    assert store.create("shop") == first
    assert store.populations() == {"a'; DROP TABLE journal; --": second, "shop": first}
    assert store.last_seq(first) == 0


def test_taking_what_is_not_there(store: Store) -> None:
    with pytest.raises(UnknownError, match="population number 99"):
        store.take(99, "one", LEASE)


def test_epochs_count_owners(store: Store, lease: Lease) -> None:
    store.release(lease)
    again = store.take(lease.population, "two", LEASE)
    assert again == lease._replace(epoch=lease.epoch + 1, owner="two")


def test_rows_come_back_as_they_went(store: Store, lease: Lease) -> None:
    new = [
        Row(1, 10, None, None, b""),
        Row(2, 2**53, 2**40, "ü" * 128, bytes(range(256))),
        Row(3, 12, 0, "one", b"x" * 100_000),
    ]
    lease = append(store, lease, new)
    assert store.last_seq(lease.population) == 3
    assert list(store.read(lease.population, 0)) == new
    assert list(store.read(lease.population, 1, 2)) == new[1:2]
    assert list(store.read(lease.population, 3)) == []
    assert list(store.read(lease.population, 0, 0)) == []


def test_many_rows_are_read_in_order(store: Store, lease: Lease) -> None:
    append(store, lease, rows(1, 12_345))
    assert [row.seq for row in store.read(lease.population, 5)] == list(range(6, 12_346))


def test_reading_is_as_of_one_moment(store: Store, lease: Lease) -> None:
    lease = append(store, lease, rows(1, 3))
    reading = store.read(lease.population, 0)
    first = next(reading)
    append(store, lease, rows(4, 3))
    assert [first.seq, *(row.seq for row in reading)] == [1, 2, 3]


def test_populations_do_not_mix(store: Store, lease: Lease) -> None:
    other = store.take(store.create("bar"), "one", LEASE)
    new, theirs = rows(1, 2, decision="a"), [Row(1, 5, 3, "a", b"other")]
    assert store.append([Batch(lease, new, [(b"d", b"1")]), Batch(other, theirs, [(b"d", b"2")])], LEASE) == [
        None,
        None,
    ]
    assert list(store.read(lease.population, 0)) == new
    assert store.find(other.population, "a") == theirs
    assert store.arms(lease.population, b"d") == b"1"
    assert store.arms(other.population, b"d") == b"2"


def test_one_refused_batch_does_not_stop_the_others(store: Store, lease: Lease) -> None:
    other = store.take(store.create("bar"), "one", LEASE)
    stale = Batch(lease._replace(epoch=lease.epoch - 1), rows(1, 2), [])
    error, fine = store.append([stale, Batch(other, rows(1), [])], LEASE)
    assert isinstance(error, NotOwnerError)
    assert fine is None
    assert (store.last_seq(lease.population), store.last_seq(other.population)) == (0, 1)


def test_fence_refuses_a_former_owner(store: Store, lease: Lease) -> None:
    append(store, lease, rows(1, 2))
    store.release(lease)
    new = store.take(lease.population, "two", LEASE)
    old = lease._replace(last_seq=2)
    for n in (1, 2):
        assert isinstance(refusal(store, Batch(old, rows(3, n), [(b"d", b"1")])), NotOwnerError)
    append(store, new, rows(3))
    for n in (1, 2):  # not even if its rows would look as if they were there
        assert isinstance(refusal(store, Batch(old, rows(3, n), [(b"d", b"1")])), NotOwnerError)
    assert store.arms(lease.population, b"d") is None
    assert [row.seq for row in store.read(lease.population, 0)] == [1, 2, 3]


def test_refusal_names_the_new_owner(store: Store, lease: Lease) -> None:
    store.release(lease)
    store.take(lease.population, "process 7 on ship", LEASE)
    assert "process 7 on ship" in str(refusal(store, Batch(lease, rows(1), [])))


def test_fence_refuses_a_gap_and_an_overlap(store: Store, lease: Lease) -> None:
    lease = append(store, lease, rows(1, 4))
    for last_seq, n in ((5, 1), (2, 1), (2, 5), (0, 1)):
        refusal(store, Batch(lease._replace(last_seq=last_seq), rows(last_seq + 1, n), []))
    assert [row.seq for row in store.read(lease.population, 0)] == [1, 2, 3, 4]


def test_the_same_batch_again_is_found_to_be_there(store: Store, lease: Lease) -> None:
    batch = Batch(lease, rows(1, 3, decision="a"), [(b"d", b"1")])
    for _ in range(3):
        assert store.append([batch], LEASE) == [None]
    assert list(store.read(lease.population, 0)) == batch.rows
    assert store.find(lease.population, "a") == batch.rows


def test_other_rows_in_their_place_are_not_taken_for_a_batch(store: Store, lease: Lease) -> None:
    """An append that nobody waits for any more may still be carried out, before one of as many rows."""
    late = rows(1, 2, decision="a")
    append(store, lease, late)
    for other in (late[1]._replace(decision="b"), late[1]._replace(agent=1), late[1]._replace(body=b"?")):
        error = refusal(store, Batch(lease, [late[0], other], []))
        assert isinstance(error, UnavailableError)
    assert list(store.read(lease.population, 0)) == late


def test_two_owners_of_one_epoch(server: Server, request: pytest.FixtureRequest) -> None:
    """A failover that loses commits takes a population back to an epoch that another server still holds."""
    store = PostgresStore(server.room())
    request.addfinalizer(store.close)
    number = store.create("shop")
    lost = store.take(number, "one", LEASE)
    with store._on("write") as db:  # what the replica knows
        db.execute("UPDATE shoal_population SET epoch = 0, owner = '', lease_until = '-infinity'")
    found = store.take(number, "two", LEASE)
    assert found.epoch == lost.epoch
    assert store.renew([lost], LEASE) == {number: "two"}
    assert isinstance(refusal(store, Batch(lost, rows(1), [])), NotOwnerError)
    with pytest.raises(NotOwnerError):
        store.set_base(lost, b"stale")
    store.release(lost)
    append(store, found, rows(1))
    assert store.standings()["shop"].owner == "two"
    assert isinstance(refusal(store, Batch(lost, rows(1), [])), NotOwnerError)


def test_rows_about_a_decision(store: Store, lease: Lease) -> None:
    lease = append(store, lease, [Row(1, 1, 0, "a", b"1"), Row(2, 2, 0, "b", b"2"), Row(3, 3, 0, None, b"3")])
    append(store, lease, [Row(4, 4, 0, "a", b"4")])
    assert [row.body for row in store.find(lease.population, "a")] == [b"1", b"4"]
    assert store.find(lease.population, "A") == []


def test_arms_are_kept_once(store: Store, lease: Lease) -> None:
    lease = append(store, lease, rows(1), [(b"d", b"arms"), (b"e", b"")])
    append(store, lease, rows(2), [(b"d", b"arms")])
    assert store.arms(lease.population, b"d") == b"arms"
    assert store.arms(lease.population, b"e") == b""
    assert store.arms(lease.population, b"f") is None


def test_forgetting(store: Store, lease: Lease) -> None:
    lease = append(store, lease, rows(1, 3, decision="a"), [(b"d", b"1"), (b"e", b"2")])
    lease = append(store, lease, rows(4, decision="b", agent=1))
    tombstones = [Row(seq, 1_000 + seq, None, None, b"gone") for seq in (1, 2, 3)]
    store.forget(Batch(lease, rows(5, agent=None), []), Traces(tombstones, [b"h1", b"h2"], [b"d"]), LEASE)
    assert list(store.read(lease.population, 0)) == [
        *tombstones,
        *rows(4, decision="b", agent=1),
        *rows(5, agent=None),
    ]
    assert store.find(lease.population, "a") == []
    assert store.has_gone(lease.population, [b"?", b"h2"])
    assert not store.has_gone(lease.population, [b"?"])
    assert not store.has_gone(lease.population, [])
    assert store.arms(lease.population, b"d") is None
    assert store.arms(lease.population, b"e") == b"2"
    store.scrub()
    append(store, lease._replace(last_seq=5), rows(6))


def test_forgetting_is_fenced_and_all_or_nothing(store: Store, lease: Lease) -> None:
    lease = append(store, lease, rows(1, 2, decision="a"), [(b"d", b"1")])
    stale = Batch(lease._replace(epoch=lease.epoch - 1), rows(3), [])
    with pytest.raises(NotOwnerError):
        store.forget(stale, Traces([Row(1, 1, None, None, b"gone")], [b"h"], [b"d"]), LEASE)
    assert list(store.read(lease.population, 0)) == rows(1, 2, decision="a")
    assert not store.has_gone(lease.population, [b"h"])
    assert store.arms(lease.population, b"d") == b"1"


def test_dropping_what_is_archived(store: Store, lease: Lease) -> None:
    number = lease.population
    assert store.base(number) is None
    assert store.base_state(number) is None
    lease = append(store, lease, rows(1, 5, decision="a"), [(b"d", b"1"), (b"e", b"2")])
    for _ in range(2):
        store.drop(lease, ArchivedPart(3, b"base", b"state", [], [b"d"]))
    assert (store.base(number), store.base_state(number)) == (b"base", b"state")
    assert (store.arms(number, b"d"), store.arms(number, b"e")) == (None, b"2")
    assert store.last_seq(number) == 5
    assert [row.seq for row in store.read(number, 0)] == [4, 5]
    assert [row.seq for row in store.read(number, 4)] == [5]
    assert [row.seq for row in store.find(number, "a")] == [4, 5]
    append(store, lease, rows(6))
    assert [row.seq for row in store.read(number, 0)] == [4, 5, 6]


def test_dropping_keeps_what_is_awaited(store: Store, lease: Lease) -> None:
    number = lease.population
    lease = append(store, lease, rows(1, 2, decision="a"))
    lease = append(store, lease, rows(3, decision="b"))
    lease = append(store, lease, rows(4, decision="a"))
    store.drop(lease, ArchivedPart(3, b"base", b"state", ["a"], []))
    assert [row.seq for row in store.find(number, "a")] == [1, 2, 4]
    assert store.find(number, "b") == []
    assert [row.seq for row in store.read(number, 3)] == [4]
    lease = append(store, lease, rows(5, decision="c"))
    gone = Row(1, 1, None, None, b"gone")
    store.forget(Batch(lease, rows(6), []), Traces([gone], [b"h"], [], (b"new base", b"new state")), LEASE)
    assert (store.base(number), store.base_state(number)) == (b"new base", b"new state")
    lease = lease._replace(last_seq=6)
    store.drop(lease, ArchivedPart(5, b"base 2", b"state 2", [], []))
    assert store.find(number, "a") == []
    assert [row.seq for row in store.read(number, 0)] == [6]


def test_the_base_is_fenced(store: Store, lease: Lease) -> None:
    number = lease.population
    lease = append(store, lease, rows(1, 5))
    assert store.epoch(number) == lease.epoch
    store.set_base(lease, b"one", b"state")
    store.set_base(lease, b"two")
    assert (store.base(number), store.base_state(number)) == (b"two", b"state")
    stale = lease._replace(epoch=lease.epoch - 1)
    with pytest.raises(NotOwnerError):
        store.set_base(stale, b"stale")
    with pytest.raises(NotOwnerError):
        store.drop(stale, ArchivedPart(3, b"stale", b"stale", [], []))
    assert store.base(number) == b"two"
    assert len(list(store.read(number, 0))) == 5


def test_snapshots(store: Store, lease: Lease) -> None:
    number = lease.population
    assert store.snapshots(number) == []
    for seq in (3, 10, 7):
        store.save_snapshot(number, Snapshot(lease.epoch, seq, b"state %d" % seq))
    assert store.snapshots(number) == [(lease.epoch, 10), (lease.epoch, 7), (lease.epoch, 3)]
    assert store.load_snapshot(number, lease.epoch, 7) == b"state 7"
    assert store.load_snapshot(number, lease.epoch, 8) is None
    store.delete_snapshot(number, lease.epoch, 10)
    store.delete_snapshot(number, lease.epoch, 10)
    assert store.snapshots(number) == [(lease.epoch, 7), (lease.epoch, 3)]
    assert store.snapshots(store.create("bar")) == []


def test_snapshots_of_a_former_owner_are_not_kept(store: Store, lease: Lease) -> None:
    store.release(lease)
    new = store.take(lease.population, "two", LEASE)
    store.save_snapshot(lease.population, Snapshot(lease.epoch, 3, b"stale"))
    assert (lease.epoch, 3) not in store.snapshots(lease.population)
    store.save_snapshot(lease.population, Snapshot(new.epoch, 3, b"fresh"))
    assert store.snapshots(lease.population) == [(new.epoch, 3)]


def test_leases_are_kept_or_lost(store: Store, lease: Lease) -> None:
    assert not store.renew([lease], LEASE)
    store.release(lease)
    store.take(lease.population, "two", LEASE)
    if type(store).__name__ == "PostgresStore":  # the others are owned by whoever has the file, or the memory
        assert store.renew([lease], LEASE) == {lease.population: "two"}


def test_a_lease_is_never_cut_short(server: Server, request: pytest.FixtureRequest) -> None:
    """Not even by a statement that had to wait, whose end of the lease comes before the present one."""
    store = PostgresStore(server.room())
    request.addfinalizer(store.close)
    lease = store.take(store.create("shop"), "one", LEASE)
    assert store.append([Batch(lease, rows(1), [])], 0.0) == [None]
    with pytest.raises(NotOwnerError):
        store.take(lease.population, "two", LEASE)
    assert store.renew([lease], 0.0) == {}
    with pytest.raises(NotOwnerError):
        store.take(lease.population, "two", LEASE)


def test_what_was_released_is_not_renewed(server: Server, request: pytest.FixtureRequest) -> None:
    """By a beat that began before."""
    store = PostgresStore(server.room())
    request.addfinalizer(store.close)
    lease = append(store, store.take(store.create("shop"), "one", LEASE), rows(1))
    store.release(lease)
    assert store.renew([lease], LEASE) == {lease.population: "another process"}
    assert store.standings()["shop"].owner == ""
    assert store.take(lease.population, "two", LEASE).epoch == lease.epoch + 1


def test_clock_and_size(store: Store, lease: Lease) -> None:
    before = store.now()
    append(store, lease, rows(1, 100))
    assert 1_600_000_000_000_000 < before <= store.now()
    assert store.nbytes() > 0


def test_a_store_is_found_again(durable: Place) -> None:
    store = durable.store()
    lease = store.take(store.create("shop"), "one", LEASE)
    append(store, lease, rows(1, 3, decision="a"), [(b"d", b"1")])
    store.release(lease)
    store.close()
    store = durable.store()
    assert store.populations() == {"shop": lease.population}
    assert list(store.read(lease.population, 0)) == rows(1, 3, decision="a")
    assert store.take(lease.population, "two", LEASE) == Lease(lease.population, lease.epoch + 1, 3, "two")
    store.close()


@pytest.mark.parametrize(
    ("sync", "sqlite", "postgres"), [({}, "2 wal", "on"), ({"sync": "normal"}, "1 wal", "off")]
)  # fmt: skip
def test_what_a_commit_waits_for(
    durable: Place, monkeypatch: pytest.MonkeyPatch, sync: dict[str, Any], sqlite: str, postgres: str
) -> None:
    """By the settings of the very connection that inserts: that of a disk, unless told otherwise."""
    writers: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)

        def note(statement: str) -> None:
            if "INSERT INTO journal" in statement:
                writers.append(connection)

        connection.set_trace_callback(note)
        return connection

    monkeypatch.setattr(sqlite3, "connect", watched)
    with closing(open_store(durable.url, lease=LEASE, **sync)) as store:
        if durable.kind == "postgres":
            with psycopg.connect(durable.url, autocommit=True) as db:
                db.execute(NOTE_SETTING)
        append(store, store.take(store.create("shop"), "one", LEASE), rows(1))
        if durable.kind == "postgres":
            with psycopg.connect(durable.url) as db:
                assert db.execute("SELECT setting FROM noted").fetchall() == [(postgres,)]
        else:
            (writer,) = set(writers)
            found = [writer.execute(f"PRAGMA {name}").fetchone() for name in ("synchronous", "journal_mode")]
            assert "{} {}".format(*(value for (value,) in found)) == sqlite


def test_a_server_that_is_silently_gone_is_noticed(server: Server) -> None:
    """By what the operating system is told: a lost machine cannot be had without a network to take down."""
    names = ("tcp_user_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count")

    def told(connection: Any) -> list[str]:
        with closing(connection):
            found = connection.info.get_parameters()
            return [found.get(name, "") for name in names]

    for lease, milliseconds in ((5.0, "5000"), (0.3, "2000")):
        store = PostgresStore(server.room(), lease=lease)
        assert told(store.connect()) == [milliseconds, "5", "2", "3"]
        store.close()
    with closing(PostgresKeys(server.room())) as keys:
        assert told(keys._connect()) == ["3000", "5", "2", "3"]
    store = PostgresStore(f"{server.room()}?tcp_user_timeout=700&keepalives_count=9&connect_timeout=4")
    connection = store.connect()
    assert connection.info.get_parameters()["connect_timeout"] == "4"
    assert told(connection) == ["700", "5", "2", "9"]
    store.close()


def test_options_of_the_url_are_kept(server: Server) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA elsewhere")
    store = PostgresStore(f"{server.url()}?options=-c%20search_path%3Delsewhere", sync="normal")
    store.create("shop")
    store.close()
    with psycopg.connect(server.url()) as connection:
        assert connection.execute("SELECT name FROM elsewhere.shoal_population").fetchall() == [("shop",)]
