"""The cache of compiled code: found again by the next process, and safe when several compile at once."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.core.attack.common import SCALE

import shoal
from shoal.core.jit import cache
from shoal.core.jit.narration import Narrator, names
from shoal.lab.warm import warm

RUN = (
    "import shoal\n"
    "world = shoal.GaussianClusters(4, 2, 2, seed=0)\n"
    "for name, own in (('independent', {}), ('oracle', {'labels': world.labels})):\n"
    "    policy = shoal.make_policy(name, 4, 2, alpha=0.5, **own)\n"
    "    trace = shoal.simulate(policy, world, horizon=50, seed=0)\n"
    "    print(name, trace.final_regret)\n"
    "from shoal.lab.simulation import play\n"
    "print('hits', sum(play.stats.cache_hits.values()), 'misses', sum(play.stats.cache_misses.values()))\n"
)


SOURCE = Path(shoal.__file__).parents[1]
JIT = {key: value for key, value in os.environ.items() if key not in ("NUMBA_DISABLE_JIT", "SHOAL_UNITS")}


def run(cache: Path) -> "subprocess.Popen[str]":
    environment = {**JIT, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", RUN],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def output(process: "subprocess.Popen[str]") -> list[str]:
    out, error = process.communicate(timeout=500)
    assert process.returncode == 0, error
    return out.splitlines()


@pytest.mark.slow
def test_processes_that_compile_at_once_and_one_that_comes_after(tmp_path: Path) -> None:
    first, second = (output(process) for process in [run(tmp_path), run(tmp_path)])
    assert first[:2] == second[:2]
    third = output(run(tmp_path))
    assert third[:2] == first[:2]
    assert third[2] == "hits 2 misses 0"


OTHER = """
from typing import Annotated, NamedTuple
import numpy as np
import shoal
from shoal.core.fields import AGENTS, rows
from shoal.core.policy.steps import LiveCommon, step
from shoal.core.statistics import Statistics, add_sample


class OtherState(NamedTuple):
    common: LiveCommon
    local: Annotated[Statistics, rows(AGENTS)]


class Other(shoal.Independent):
    name = "other"
    State = OtherState


@step("select", OtherState)
def select(state, agent, arms, t):
    return CHOICE


@step("observe", OtherState)
def observe(state, agent, x, reward, t):
    add_sample(state.local, agent, x, reward)


@step("revise", OtherState)
def revise(state, agent, t):
    pass
"""
LISTEN = """
from numba.core import event
names = []

class Listener(event.Listener):
    def on_start(self, event):
        names.append(event.data["dispatcher"].py_func.__qualname__)

    def on_end(self, event):
        pass

event.register("numba:compile", Listener())
"""
"""Collects the names of functions as they are compiled."""
PLAY_OTHER = LISTEN + (
    "import os, shoal, other_policy\n"
    "world = shoal.GaussianClusters(4, 2, 2, seed=0)\n"
    "policy = other_policy.Other(4, 2, alpha=0.5)\n"
    "print(policy.select(0, world.arms))\n"
    "if os.environ['SHOAL_UNITS'] == '1':  # as plain Numba it takes long to compile\n"
    "    print(*set(shoal.simulate(policy, world, horizon=20, seed=0).choices.tolist()))\n"
    "print(sorted(set(names)))\n"
)


def play(program: str, cache: Path, *paths: Path, **environment: str) -> list[str]:
    """The lines that a program prints in a process of its own."""
    path = os.pathsep.join(map(str, paths or (SOURCE,)))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**JIT, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def seeded(place: Path) -> Path:
    """A cache that begins with all that is compiled already, as units; what is new is compiled and added."""
    shutil.copytree(cache.directory(), place / "shoal" / cache.directory().name)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("units", ["1", "0"])
def test_another_package_s_policy_is_kept_and_never_stale(units: str, tmp_path: Path) -> None:
    module = tmp_path / "other_policy.py"
    seeded(tmp_path / "cache")
    for choice in ("1", "11"):
        module.write_text(OTHER.replace("CHOICE", choice))
        for compiled in (True, False):
            *played, count = play(PLAY_OTHER, tmp_path / "cache", tmp_path, SOURCE, SHOAL_UNITS=units)
            assert set(played) == {choice}
            assert (count != "[]") == compiled
    module.write_text("# a comment moves every line\n" + OTHER.replace("CHOICE", "11"))
    assert play(PLAY_OTHER, tmp_path / "cache", tmp_path, SOURCE, SHOAL_UNITS=units)[-1] == "[]"


EDITED = (
    LISTEN
    + """
import numpy as np, shoal, sys
for name, own in (("independent", {}), ("oracle", {"labels": [0, 0]})):
    names.clear()
    policy = shoal.make_policy(name, 2, 2, alpha=0.5, **own)
    policy.update(0, np.eye(2)[policy.select(0, np.eye(2))], 1.0)
    print(*sorted(set(names)))
"""
)
UNRELATED = "\n\n@compiled\ndef unrelated(x: float) -> float:\n    return x  # not used\n"


# As plain Numba it takes long to compile, and the cache is the same: `make chaos` does both.
@pytest.mark.slow
@pytest.mark.parametrize("units", ["1"] if SCALE == 1 else ["1", "0"])
def test_an_edit_recompiles_what_reaches_it_and_nothing_else(units: str, tmp_path: Path) -> None:
    shutil.copytree(Path(shoal.__file__).parent, tmp_path / "shoal", ignore=shutil.ignore_patterns("*.pyc"))

    def compiled() -> list[set[str]]:
        lines = play(EDITED, tmp_path / "cache", tmp_path, SHOAL_UNITS=units)
        return [set(line.split()) for line in lines]

    def edit(file: str, old: str, new: str) -> None:
        path = tmp_path / "shoal" / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    seeded(tmp_path / "cache")
    assert all(compiled()) or units == "1"  # what is the same elsewhere is found
    edit(
        "core/kernels/linalg.py", "\n\n@compiled", UNRELATED + "\n\n@compiled"
    )  # functions that nobody calls
    assert compiled() == [set(), set()]
    edit(
        "core/policies/independent.py",
        "    take_sample(state",
        "    state.common.cost[0] += 0\n    take_sample(state",
    )
    independent, oracle = compiled()
    assert {"observe", "finish_checked"} <= independent
    assert not independent & {"add_sample", "select", "choose_checked"}
    assert not oracle
    edit("core/validation.py", "LARGEST = 1e30", "LARGEST = 1e29")  # a constant
    assert [names & {"choose_checked", "observe"} for names in compiled()] == [{"choose_checked"}] * 2
    edit("core/kernels/ucb.py", "best = -math.inf", "best = -1e308")
    assert all("choose_checked" in names for names in compiled())
    assert compiled() == [set(), set()]


# What a user sees of it

FIRST = """
import warnings
import shoal.core.jit.cache as cache
from shoal.core.jit.narration import narrator
{before}
import numpy as np, shoal
policy = shoal.Independent(2, 2, alpha=0.5)
policy.update(0, np.eye(2)[policy.select(0, np.eye(2))], 1.0)
print(sum(sum(d.stats.cache_hits.values()) > 0 for d in narrator.known))
"""


def first_call(cache: Path | str, before: str = "") -> tuple[int, str]:
    """How many functions a first `select` and `update` find in a cache, and what stands on stderr."""
    environment = {**JIT, "NUMBA_CACHE_DIR": str(cache)}
    program = FIRST.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return int(done.stdout), done.stderr


@pytest.mark.slow
def test_a_line_says_that_it_compiles_and_only_then(tmp_path: Path) -> None:
    hits, said = first_call(tmp_path)
    assert hits == 0
    assert said.splitlines() == [
        f"shoal: compiling, which takes some seconds, once; kept in {next((tmp_path / 'shoal').iterdir())}"
    ]
    hits, said = first_call(tmp_path)
    assert hits >= 2
    assert said == ""
    # The same cache, where it can only be read: a container whose image ran `shoal warm`.
    held = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again, said = first_call(tmp_path, before="cache._can_write = lambda directory: False")
    assert (again, said) == (hits, "")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == held


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_which_policy_how_far_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    narrator, terminal, now = Narrator(), Terminal(), [0.0]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setitem(names, Terminal, "bass")
    functions: list[Any] = [Mock(py_func=k) for k in range(6)]
    narrator.known.update(functions[:5])

    def said() -> str:
        text = terminal.getvalue()
        terminal.seek(0)
        terminal.truncate()
        return text.rpartition("\r\x1b[K")[2]

    def hear(function: Any) -> Any:
        reach = SimpleNamespace(functions=list(range(5)))
        kinds = (SimpleNamespace(instance_class=Terminal),)
        return SimpleNamespace(data={"dispatcher": function, "args": kinds, "reach": reach})

    narrator.on_start(hear(functions[5]))  # of another package
    assert said() == ""
    narrator.on_start(hear(functions[0]))
    assert said() == "shoal: compiling bass"
    for count, text in enumerate(["", "", ", about 4 s left"], start=1):
        narrator.on_start(hear(functions[count]))
        now[0] += 2.0
        narrator.on_end(hear(functions[count]))
        assert said() == f"shoal: compiling bass, {count} of 5 functions{text}"
    narrator.on_end(hear(functions[0]))
    assert said() == ""  # and the line is empty
    narrator.silent = True
    narrator.on_start(hear(functions[4]))
    assert terminal.getvalue() == ""


def test_warm_in_processes_yields_every_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    done = dict(warm(("independent", "oracle"), workers=2, progress=told.append))
    assert set(done) == {"independent", "oracle"}
    assert all(took > 0 for took in done.values())
    assert told in (["oracle"], ["independent"])
    with pytest.raises(ValueError, match=r"workers must be .* got 0"):
        list(warm(("independent",), workers=0))


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wanted = tmp_path / "file" / "cache"  # below a file there is no directory, not even for root
    program = (
        f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "import numpy as np; from shoal.core.kernels.linalg import dot; dot(np.ones(2), np.ones(2))"
    )
    environment = {**JIT, "NUMBA_CACHE_DIR": str(wanted)}
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stderr
    assert (
        f"RuntimeWarning: compiled code cannot be kept in {wanted / 'shoal'}. It goes to {tmp_path}" in said
    )
    assert "Set NUMBA_CACHE_DIR" in said


@pytest.mark.skipif(sys.platform == "win32", reason="temporary directories are the user's own")
@pytest.mark.parametrize("hostile", ["open", "link", "file"])
def test_cached_code_is_never_taken_from_a_directory_that_others_can_write(
    hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    planted = tmp_path / f"shoal-{os.getuid()}"
    if hostile == "open":
        planted.mkdir()
        planted.chmod(0o777)
    elif hostile == "link":
        planted.symlink_to(tmp_path)
    else:
        planted.write_text("")
    assert cache._private_directory() != planted
    if hostile == "open":
        planted.chmod(0o700)
        assert cache._private_directory() == planted


def test_entries_that_nobody_used_for_long_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "numba-0-py3", tmp_path / "numba-1-py3"
    monkeypatch.setattr(cache, "directory", lambda: new)
    monkeypatch.setattr(cache, "LARGEST", 3_500)
    for n, name in enumerate(("unused", "used", "other", "last")):
        place = (old if n == 2 else new) / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(bytes(1_000))
        os.utime(place, (n, n))
    cache.load("used")
    cache._prune.cache_clear()
    assert cache.save("saved", "content")
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["last", "other", "saved", "used"]
    monkeypatch.setattr(cache, "LARGEST", 1_500)
    cache._prune.cache_clear()
    assert cache.save("saved", "content")
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["saved", "used"]
    assert cache.load("saved") == "content"


LIFE = """
import gc
import sys
import numpy as np
import shoal
from numba.core.dispatcher import Dispatcher
from shoal.lab.warm import warm

def loaded():
    found = [one for one in gc.get_objects() if isinstance(one, Dispatcher)]
    return {f"{one.py_func.__module__}.{one.py_func.__qualname__}": len(one.overloads) for one in found}

list(warm((sys.argv[1],)))
before = loaded()
policy, rng, arms = shoal.make_policy(sys.argv[1], 40, 3), np.random.default_rng(0), np.eye(3)
for agent in range(40):
    policy.update(agent, arms[policy.choose(agent, arms).arm], float(rng.standard_normal()))
    policy.explain(agent)
# The second number takes BASS to its other engine.
for n in (40, 1200) if isinstance(policy, shoal.LivePolicy) else ():
    agents = policy.add_agents(n)[::20].tolist()
    for agent in agents:
        x = arms[policy.choose(agent, arms).arm]
        policy.begin(agent, x)
        policy.update(agent, x, float(rng.standard_normal()), begun=True)
        policy.explain(agent)
    policy.update(agents[0], arms[0], 1.0)
    policy.correct(agents[0], arms[0], 1.0, 0.5)
    policy.retract(agents[0], arms[0], 0.5, reconsider=True)
    policy.set_sharing(agents[0], "borrow")
    policy.merge(agents[0], agents[1])
    policy.remove_agent(agents[0], withdraw=True)
print(sorted(name for name, count in loaded().items() if count != before.get(name, 0)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bass", "cluster_mixture", "club"])
def test_after_warm_no_call_has_anything_left_to_compile(policy: str) -> None:
    """In a process of its own, where nothing else has loaded code."""
    done = subprocess.run(
        [sys.executable, "-c", LIFE, policy], capture_output=True, text=True, timeout=500, check=True
    )
    assert done.stdout == "[]\n"
