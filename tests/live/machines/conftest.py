"""Fixtures: a PostgreSQL server, and an empty place on it."""

from collections.abc import Iterator

import pytest
from tests.live.conftest import server  # noqa: F401
from tests.live.places import Place
from tests.live.population.server import Server
from tests.live.service.conftest import nursery  # noqa: F401


@pytest.fixture
def shared(server: Server) -> Iterator[Place]:  # noqa: F811
    """A database that several servers may share."""
    place = Place("postgres", server.room())
    yield place
    place.close()
