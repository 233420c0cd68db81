"""`shoal demo`: three populations that live, and end cleanly."""

import heapq
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from shoal.live.population.controller import open as open_controller
from shoal.live.service.demo import FASTER, RUSH, WORLDS, Life, World, make


@pytest.fixture
def started(tmp_path: Path):  # type: ignore[no-untyped-def]
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli", "demo", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    yield process
    process.kill()
    process.communicate()


def processor_time(pid: int) -> float:
    """Seconds that a process has used, where the system tells."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def test_pairs_part_within_a_minute_and_ctrl_c_ends_it(
    started: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    assert started.stdout is not None
    assert "shops, antennas and clinics" in started.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", started.stdout.readline())
    assert found is not None
    began = time.monotonic()
    with httpx.Client(base_url=found[0], timeout=30.0) as http:
        assert sorted(http.get("/v1/populations").json()["populations"]) == sorted(w.name for w in WORLDS)
        parted: dict[str, int] = {}
        while len(parted) < len(WORLDS):
            assert time.monotonic() - began < 240.0, parted
            time.sleep(0.5)
            for world in WORLDS:
                summary = http.get(f"/dashboard/{world.name}/summary").json()
                # Records instead of seconds: decisions and rewards that are due within a minute, and joins.
                due = 2.0 * world.rate * (60.0 + RUSH * (FASTER - 1.0)) + len(world.agents) + 10.0
                assert summary["sizes"]["cuts"] or summary["sizes"]["sequence"] < due
                if summary["sizes"]["cuts"] and sum(summary["rewards"]):
                    parted[world.name] = summary["sizes"]["cuts"]
        before, since = processor_time(started.pid), time.monotonic()
        time.sleep(3.0)
        share = (processor_time(started.pid) - before) / (time.monotonic() - since)
        print(f"pairs parted after {since - began:.0f} s; {share:.1%} of a core")
        assert share < 0.3
    assert list(tmp_path.glob("shoal-demo-*/demo.db"))
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=20)
    assert (started.returncode, errors) == (0, "")
    assert list(tmp_path.glob("shoal-demo-*")) == []


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_sharing_does_no_harm_in_the_first_minutes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All share at first, though kinds differ: they must part before that costs more than it saves."""
    ids = itertools.count()  # exploration is drawn from ids and the key: the same in every run
    monkeypatch.setattr("shoal.live.population.commands.new_id", lambda: f"{next(ids)}")
    monkeypatch.setattr("secrets.token_bytes", lambda size: b"k" * size)
    harmed, means = 0, []
    for seed in range(6):
        with open_controller(":memory:") as controller:
            population = make(controller, world)
            visits = Life(population, world, lambda: False).visits(np.random.default_rng(seed))
            late: list[tuple[float, str, float]] = []
            verdicts, made = set(), 0
            for now in range(1, 121):
                while made < world.rate * (now + min(now, RUSH) * (FASTER - 1.0)):
                    made += 1
                    delay, decision, reward = next(visits)
                    heapq.heappush(late, (now + delay, decision, reward))
                while late and late[0][0] <= now:
                    _, decision, reward = heapq.heappop(late)
                    population.reward(decision, reward)
                verdicts.add(population.dividend().verdict)
            harmed += "harms" in verdicts
            means.append(population.dividend().mean)
    assert harmed <= 1, "a 95% interval may be wrong"
    assert np.mean(means) > 0.0


def test_kinds_differ_and_like_something_in_common() -> None:
    for world in WORLDS:
        kinds = world.kinds()
        assert kinds.shape == (world.n_kinds, 4)
        distances = [float(((one - two) ** 2).sum()) for k, one in enumerate(kinds) for two in kinds[:k]]
        assert min(distances) > 0.7
        assert len(set(world.agents)) == len(world.agents)
        assert len(world.features()) == len(world.arms) == len(set(world.arms))


def test_what_was_switched_lives_on(tmp_path: Path) -> None:
    world = WORLDS[0]
    with open_controller(str(tmp_path / "demo.db")) as controller:
        make(controller, world).switch(gamma=2.0)
    with open_controller(str(tmp_path / "demo.db")) as controller:
        again = make(controller, world)
        assert again.settings.parameters["gamma"] == 2.0
        assert list(again.catalogue) == list(world.arms)
