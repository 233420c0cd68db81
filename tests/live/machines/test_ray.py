"""Servers as actors on a real Ray cluster of two nodes, one of which is killed under load."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.live.machines.test_chaos import LEASE
from tests.live.places import Place
from tests.live.service.test_kill import free_port

from shoal.live.service.on_ray import start

pytestmark = pytest.mark.slow


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed here")
def test_a_node_is_killed(shared: Place) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.machines.cluster", shared.url, str(free_port())],
        capture_output=True,
        text=True,
        timeout=560,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))
    print(found)
    acknowledged, *rest = found["toll"]
    assert found["errors"] == []
    assert found["nodes"] == 2
    assert found["moved"]
    assert rest == [0, 0, 0, 0]
    assert acknowledged > 100
    assert found["gap"] < LEASE + 30.0


def test_only_a_database_can_be_shared() -> None:
    with pytest.raises(ValueError, match=r"STORE must be postgresql://… for several servers, got 'shop\.db'"):
        start("shop.db", "auto", servers=2)
