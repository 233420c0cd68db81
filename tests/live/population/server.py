"""A PostgreSQL server of the tests' own, in a temporary directory, run as an ordinary user."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from glob import glob
from pathlib import Path
from typing import Any

import psycopg

MISSING = (
    "PostgreSQL's server is not installed here (initdb was found neither in PATH nor in /usr/lib/postgresql)"
)


def find_binaries() -> Path | None:
    """The directory of `initdb` and `pg_ctl`, of the newest server that is installed."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += map(Path, sorted(glob("/usr/lib/postgresql/*/bin"), key=lambda one: float(Path(one).parts[-2])))
    return next((place for place in reversed(places) if (place / "pg_ctl").exists()), None)


class Server:
    """A running server. It does not wait for the disk: tests crash it, but not the machine."""

    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        self._directory = Path(tempfile.mkdtemp(prefix="shoal-postgres-"))
        self._data = self._directory / "data"
        self._user: str | None = None
        if os.getuid() == 0:  # the server refuses to run as root
            self._user = next(
                name for name in ("postgres", "nobody") if name in {one.pw_name for one in pwd.getpwall()}
            )
            shutil.chown(self._directory, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._rooms = 0
        self._call("initdb", "-D", self._data, "-U", "shoal", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = '127.0.0.1'\nport = {self.port}\n"
                f"unix_socket_directories = '{self._directory}'\nshared_buffers = 16MB\nfsync = off\n"
            )
        self.start()
        # Ends the server when our end of its pipe is closed, which a killed process does, too.
        self._guard = subprocess.Popen(
            [
                "sh",
                "-c",
                'cat; "$0" -D "$1/data" -m immediate stop; rm -rf "$1"',
                binaries / "pg_ctl",
                self._directory,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._identity(),
        )

    def _identity(self) -> dict[str, Any]:
        """Whom to run programs as."""
        if self._user is None:
            return {}
        return {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}

    def _call(self, program: str, *arguments: str | Path) -> None:
        with tempfile.TemporaryFile() as out:  # a pipe would stay open as long as the server runs
            done = subprocess.run(
                [self.binaries / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                **self._identity(),
            )
            out.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program} failed: {out.read().decode()}")

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._call("pg_ctl", "-D", self._data, "-l", self._directory / "log", "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop; "immediate" is what a crash of the server is like."""
        self._call("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def url(self, user: str = "shoal") -> str:
        """How a user connects."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres"

    def room(self) -> str:
        """The URL of a user whose tables nobody else sees: a schema, which is made faster than a database."""
        self._rooms += 1
        name = f"test{self._rooms}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN")
            connection.execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
        return self.url(name)

    def remove(self) -> None:
        """Stop, and leave nothing."""
        self._guard.communicate()
