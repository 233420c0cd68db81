"""Fixtures: a server in memory, a caller, and stores that survive a process."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.conftest import durable, server  # noqa: F401
from tests.live.service.running import Caller, InProcess
from tests.live.service.worker import Nursery


@pytest.fixture(scope="module")
def running() -> Iterator[InProcess]:
    """A server without keys, on a store in memory."""
    with InProcess() as found:
        yield found


@pytest.fixture
def call(running: InProcess) -> Iterator[Caller]:
    """Calls that server."""
    with Caller(running.url) as found:
        yield found


@pytest.fixture
def shop(call: Caller, request: pytest.FixtureRequest) -> str:
    """The path of a population of the test's own."""
    return call.make(f"shop-{zlib.crc32(request.node.name.encode())}")


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Where a store may be."""
    return str(tmp_path / "shop.db")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Starts servers as processes, and kills them."""
    nursery = Nursery("independent")
    yield nursery
    nursery.close()
