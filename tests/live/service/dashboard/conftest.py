"""Fixtures: a server with populations of three sizes, and a browser."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser import open_browser
from tests.live.service.dashboard.worlds import few, many
from tests.live.service.running import InProcess


@pytest.fixture(scope="module")
def running() -> Iterator[InProcess]:
    """A server without keys, with 20, 500 and 20,000 agents."""
    with InProcess() as found:
        controller = found.app.controller
        few(controller, "shops")
        many(controller, "500 agents", 500, 500, 14)
        many(controller, "20,000 agents", 20_000, 60, 12)
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as launched:
        yield launched
