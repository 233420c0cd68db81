"""A server of the tests' own, as a thread or as a process, and a caller that checks its answers."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import httpx
import jsonschema_rs
import psycopg
from tests.live.places import Place

from shoal.live.population.controller import open as open_controller
from shoal.live.service.app import endpoints, make_app
from shoal.live.service.keys import MemoryKeys, open_keys
from shoal.live.service.openapi import document
from shoal.live.service.ownership import Ownership
from shoal.live.service.server import Server, config_of
from shoal.live.service.service import Service

ARMS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "water": [0.6, 0.8]}
DOCUMENT = document(endpoints())
LEASE = 0.3


class InProcess:
    """A server in a thread. Its stores are opened as tests of the controller open them.

    `shares` for one of several on a PostgreSQL database.
    """

    def __init__(
        self,
        url: str = ":memory:",
        *,
        check_ready: bool = True,
        shares: bool = False,
        lease: float = LEASE,
        **options: Any,
    ) -> None:
        self.keys = MemoryKeys() if url == ":memory:" else open_keys(url)
        self.app = Service(open_controller(url, lease=lease), self.keys, **{"is_open": True, **options})
        self.asgi = make_app(self.app)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        if shares:
            self.app.ownership = Ownership(self.app, self.url, lease)
        self._started = threading.Event()
        self._server = Server(config_of(self.asgi), self.app, self._started.set)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        assert self._started.wait(20)
        if check_ready:
            wait_until(lambda: httpx.get(f"{self.url}/readyz").status_code == 200)

    def waits_for_ever(self) -> None:
        """From now on, `close` fails if a connection keeps the server from stopping."""
        self._server.config.timeout_graceful_shutdown = 3600

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Caller:
    """Calls a server, and checks each answer against the OpenAPI document."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=500.0)

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        response = self.http.request(method, path, **options)
        check(method, response)
        return response

    def make(self, population: str = "shop", **settings: Any) -> str:
        """A population; its path."""
        path = f"/v1/populations/{population}"
        found = self(
            "PUT", path, {"policy": "bass", "dim": 2, "explore": 0.0, "parameters": {"seed": 1}, **settings}
        )
        assert found.status_code in (200, 201), found.text
        return path

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check(method: str, response: httpx.Response) -> None:
    """Compare an answer with the OpenAPI document."""
    path = response.request.url.raw_path.decode().partition("?")[0]
    operation = operation_of(method, path)
    for header in ("x-request-id", "x-content-type-options", "x-frame-options", "content-security-policy"):
        assert header in response.headers, header
    assert response.status_code != 500, response.text
    if operation is None:
        assert response.status_code in (404, 405, 421), response.text
        return
    described = operation["responses"].get(str(response.status_code))
    assert described is not None, f"{method} {path} answers {response.status_code}: {response.text}"
    check_headers(described, response)
    if "content" not in described:
        assert response.content == b""
        return
    ((media, content),) = described["content"].items()
    assert response.headers["content-type"].replace(" ", "") == media.replace(" ", "")
    if "json" in media:
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        jsonschema_rs.validator_for(schema).validate(response.json())


def check_headers(described: dict[str, Any], response: httpx.Response) -> None:
    """Compare an answer's headers with the document: those that must be there, and no others of its kinds."""
    for name, header in DOCUMENT["components"]["headers"].items():
        if name not in described.get("headers", {}):
            assert name not in response.headers, f"{name} is not described: {response.headers[name]}"
        elif name in response.headers:
            text = response.headers[name]
            value = int(text) if header["schema"]["type"] == "integer" else text
            jsonschema_rs.validator_for(header["schema"]).validate(value)
        else:
            assert not header["required"], f"{response.status_code} lacks {name}"


def operation_of(method: str, path: str) -> dict[str, Any] | None:
    """The part of the document that describes a request; those without a name in the path come first."""
    for template in sorted(DOCUMENT["paths"], key=lambda one: one.count("{")):
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in DOCUMENT["paths"][template]:
            found: dict[str, Any] = DOCUMENT["paths"][template][method.lower()]
            return found
    return None


class Process:
    """`shoal serve` as a process of its own."""

    def __init__(self, url: str, *options: str, log: Path | None = None) -> None:
        self.log = log
        self._err = open(log, "ab") if log else None  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal.cli", "serve", url, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=self._err or subprocess.DEVNULL,
            text=True,
            env={**os.environ},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        assert found, f"the server did not start: {line!r}"
        self.url = found[0]
        self.port = int(self.url.rpartition(":")[2])

    def wait_ready(self, seconds: float = 60.0) -> None:
        wait_until(lambda: httpx.get(f"{self.url}/readyz", timeout=10.0).status_code == 200, seconds)

    def kill(self, how: int = signal.SIGKILL) -> int:
        self.process.send_signal(how)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self._err is not None:
            self._err.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def damage(place: Place, population: str, body: bytes = b"\x00\xff") -> bytes:
    """Overwrite the second record of a population; what it was."""
    prefix, mark = ("", "?") if place.kind == "sqlite" else ("shoal_", "%s")
    where = f"seq = 2 AND population = (SELECT id FROM {prefix}population WHERE name = {mark})"
    connect: Any = sqlite3.connect if place.kind == "sqlite" else psycopg.connect
    with closing(connect(place.url)) as db:
        ((before,),) = db.execute(f"SELECT body FROM {prefix}journal WHERE {where}", (population,)).fetchall()
        db.execute(f"UPDATE {prefix}journal SET body = {mark} WHERE {where}", (body, population))
        db.commit()
    return bytes(before)


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait, but not for ever."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if is_so():
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.02)
