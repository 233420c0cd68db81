"""Fixtures: a PostgreSQL server for the session, and a place of each kind to keep journals in."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
from httpx._transports import default
from tests.live.places import Place
from tests.live.population.server import MISSING, Server, find_binaries

httpx._config.DEFAULT_TIMEOUT_CONFIG.read = 60.0  # five seconds are a clock on every test
# Reading all certificates takes 27 ms, and every `httpx.get` makes a client that does so.
default.create_ssl_context = cache(default.create_ssl_context)  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server, started once."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip(MISSING)
    server = Server(binaries)
    yield server
    server.remove()


def make_place(kind: str, directory: Path, request: pytest.FixtureRequest) -> Place:
    """An empty place of a kind."""
    if kind == "postgres":
        return Place(kind, request.getfixturevalue("server").room())
    return Place(kind, directory / "shop.db" if kind == "sqlite" else None)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each kind of store."""
    place = make_place(request.param, tmp_path, request)
    yield place
    place.close()


@pytest.fixture(params=["sqlite", "postgres"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each kind of store that survives the process."""
    place = make_place(request.param, tmp_path, request)
    yield place
    place.close()
