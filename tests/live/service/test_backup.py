"""Copies made while the server works, put back; and admin commands against a service."""

import json
import shutil
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.commands import Done, call
from tests.live.population.server import Server
from tests.live.service.running import ARMS, Caller, InProcess, Process, wait_until

import shoal
from shoal.live.journal.backups import backup, restore
from shoal.live.protocol.errors import JournalError
from shoal.live.service.keys import SQLiteKeys


def run(*arguments: str, key: str = "") -> Done:
    return call(*arguments, SHOAL_KEY=key)


def test_a_copy_made_under_load_holds_what_was_acknowledged_before(file: str, tmp_path: Path) -> None:
    acknowledged: list[str] = []
    with InProcess(file) as running:
        with Caller(running.url) as call:
            call.make("shop")
        stop = threading.Event()

        def work() -> None:
            with httpx.Client(base_url=running.url, timeout=60.0) as http:
                while not stop.is_set():
                    body = {"agent": "ada", "arms": ARMS, "id": f"d{len(acknowledged)}"}
                    assert http.post("/v1/populations/shop/decisions", json=body).status_code == 201
                    acknowledged.append(body["id"])  # type: ignore[arg-type]

        thread = threading.Thread(target=work)
        thread.start()
        copies = []
        for number in range(3):
            while len(acknowledged) < 40 * (number + 1):
                stop.wait(0.01)
            before = len(acknowledged)
            done = run("backup", file, str(tmp_path / f"copy{number}.db"))
            assert done.returncode == 0, done.stderr
            copies.append((before, len(acknowledged)))
        stop.set()
        thread.join()
    for number, (before, after) in enumerate(copies):
        path = tmp_path / f"restored{number}.db"
        restore(tmp_path / f"copy{number}.db", path)
        with shoal.open(path) as controller:
            found = controller.population("shop").sequence - 2  # settings, joined
            assert before <= found <= after + 1
            assert controller.verify() == {"shop": []}
    assert not list(tmp_path.glob(".*tmp*"))


def test_an_earlier_copy_is_replaced_only_if_asked(file: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with shoal.open(file) as controller:
        shop = controller.population("shop", policy="bass", dim=2)
        assert run("backup", file, str(copy)).returncode == 0
        first = copy.read_bytes()
        shop.decide("ada", ARMS)
        done = run("backup", file, str(copy))
        assert done.returncode == 2
        assert f"{copy} exists; `replace` (--replace) puts the copy in its place" in done.stderr
        assert copy.read_bytes() == first
        assert run("backup", file, str(copy), "--replace").returncode == 0
        sequence = shop.sequence
    with shoal.open(copy, read_only=True) as controller:
        assert controller.population("shop").sequence == sequence


def test_restoring(file: str, tmp_path: Path) -> None:
    with shoal.open(file) as controller:
        shop = controller.population("shop", policy="bass", dim=2)
        for agent in ("ada", "bob"):
            shop.reward(shop.decide(agent, ARMS).id, 1.0)
    keys = SQLiteKeys(file)
    kept, revoked = keys.add(["read"])[0], keys.add(["read"])[0]
    keys.close()
    backup(file, tmp_path / "copy.db")
    with shoal.open(file) as controller:
        controller.population("shop").forget("bob")
        with pytest.raises(shoal.NotOwnerError, match="open for writing"):
            restore(tmp_path / "copy.db", file, replace=True)
    keys = SQLiteKeys(file)
    keys.revoke(revoked.id)
    keys.close()
    with pytest.raises(shoal.ConflictError, match="exists"):
        restore(tmp_path / "copy.db", file)
    assert "--replace" in run("restore", str(tmp_path / "copy.db"), file).stderr
    done = run("restore", str(tmp_path / "copy.db"), file, "--replace")
    assert done.returncode == 0, done.stderr
    with shoal.open(file) as controller:
        shop = controller.population("shop")
        shop.settle()
        assert shop.agents == ["ada"]  # bob is forgotten again
        assert controller.verify() == {"shop": []}
    keys = SQLiteKeys(file)
    assert {key.id: key.revoked is not None for key in keys.all()} == {kept.id: False, revoked.id: True}
    keys.close()


def test_a_restored_database_forgets_again(server: Server, tmp_path: Path) -> None:
    """A dump of PostgreSQL brings somebody back whom the server was told to forget."""
    url, remembered, dump = server.room(), tmp_path / "forgotten", str(tmp_path / "dump")

    def postgres(program: str, *arguments: str) -> None:
        subprocess.run([server.binaries / program, *arguments, "-d", server.url()], check=True, timeout=120)

    with Process(url, "--forgotten", str(remembered)) as running:
        running.wait_ready()
        with Caller(running.url) as call:
            shop = call.make("shop", policy="independent")
            for agent in ("ada", "bob"):
                call("POST", f"{shop}/decisions", {"agent": agent, "arms": ARMS})
            postgres("pg_dump", "-Fc", "-n", str(urlsplit(url).username), "-f", dump)
            assert call("DELETE", f"{shop}/agents/bob").status_code == 204
        assert running.kill(signal.SIGTERM) == 0
    postgres("pg_restore", "--clean", dump)
    with shoal.open(url, read_only=True) as controller:
        assert controller.population("shop").agents == ["ada", "bob"]
    with Process(url, "--forgotten", str(remembered)) as running:
        running.wait_ready()
        with Caller(running.url) as call:
            # The lease of the server that ran when the dump was made is in it, and has to end.
            wait_until(lambda: call("GET", shop).status_code != 503)
            assert call("GET", f"{shop}/agents/bob").status_code == 410
            assert call("GET", f"{shop}/agents/ada").status_code == 200
            assert "bob" not in call("GET", f"{shop}/events").text


def test_a_file_of_the_forgotten_that_cannot_be(file: str, tmp_path: Path) -> None:
    done = run("serve", file, "--port", "0", "--forgotten", str(tmp_path / "nowhere" / "forgotten"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "nowhere/forgotten" in done.stderr


def test_copies_that_cannot_be(file: str, tmp_path: Path) -> None:
    with shoal.open(file) as controller:
        controller.population("shop", policy="bass", dim=2)
    with pytest.raises(FileNotFoundError):
        backup(tmp_path / "none.db", tmp_path / "copy.db")
    with pytest.raises(ValueError, match="another file"):
        backup(file, file)
    with pytest.raises(ValueError, match="pg_dump"):
        backup("postgresql://nowhere/shop", tmp_path / "copy.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE x (y)")
    other.close()
    with pytest.raises(JournalError, match="not a database of shoal"):
        backup(tmp_path / "other.db", tmp_path / "copy.db")
    shutil.copy(file, tmp_path / "torn.db")
    with (tmp_path / "torn.db").open("r+b") as torn:
        torn.truncate(9000)
    with pytest.raises(JournalError):
        restore(tmp_path / "torn.db", tmp_path / "new.db")
    assert not (tmp_path / "copy.db").exists()
    assert not (tmp_path / "new.db").exists()


def test_admin_commands_over_http(file: str) -> None:
    key = run("keys", "add", file, "--scope", "read,admin,decide").stdout.strip()
    with Process(file) as server:
        server.wait_ready()
        with Caller(server.url, key) as call:
            shop = call.make("shop")
            call("POST", f"{shop}/decisions", {"agent": "ada", "arms": ARMS})
        (row,) = json.loads(run("population", "list", server.url, "--json", key=key).stdout)
        assert (row["name"], row["agents"]) == ("shop", 1)
        assert "shop" in run("population", "list", server.url, key=key).stdout
        assert json.loads(run("population", "show", server.url, "shop", "--json", key=key).stdout)["dim"] == 2
        done = run("population", "switch", server.url, "shop", "--policy", "independent", "--json", key=key)
        assert json.loads(done.stdout)["policy"] == "independent", done.stderr
        with shoal.Client(server.url, key) as client:
            (_, switched) = client.population("shop").switches()
        assert switched.by == key.split("_")[1]  # the id of the key that did it
        done = run("population", "forget", server.url, "shop", "ada", "--yes", key=key)
        assert (done.returncode, done.stdout) == (0, "forgotten: 'ada'\n"), done.stderr
        done = run("population", "show", server.url, "shop")
        assert done.returncode == 2
        assert "key" in done.stderr
        done = run("population", "verify", server.url, key=key)
        assert done.returncode == 2
        assert "not a service" in done.stderr
