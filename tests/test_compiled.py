"""The cache of compiled code: found again by the next process, and safe when several compile at once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.kernels.compiled import FLOORS

RUN = (
    "import shoal, time\n"
    "world = shoal.GaussianClusters(4, 2, 2, seed=0)\n"
    "start = time.perf_counter()\n"
    "for name, own in (('independent', {}), ('oracle', {'labels': world.labels})):\n"
    "    policy = shoal.make_policy(name, 4, 2, alpha=0.5, **own)\n"
    "    trace = shoal.simulate(policy, world, horizon=50, seed=0)\n"
    "    print(name, trace.final_regret)\n"
    "from shoal.simulation import play\n"
    "print('hits', sum(play.stats.cache_hits.values()), 'misses', sum(play.stats.cache_misses.values()))\n"
)


def run(cache: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    environment.pop("NUMBA_DISABLE_JIT", None)
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


def test_compiled_code_lives_only_where_its_cache_looks() -> None:
    package = Path(shoal.__file__).parent
    for path in package.rglob("*.py"):
        name = path.relative_to(package).parts[0]
        if re.search(r"import .*(compiled|step)\b", path.read_text()):
            assert name in FLOORS or "cache_directory" in path.read_text(), path
    assert all((package / name).exists() for name in FLOORS)


@pytest.mark.slow
def test_processes_that_compile_at_once_and_one_that_comes_after(tmp_path: Path) -> None:
    first, second = (output(process) for process in [run(tmp_path), run(tmp_path)])
    assert first[:2] == second[:2]
    third = output(run(tmp_path))
    assert third[:2] == first[:2]
    assert third[2] == "hits 2 misses 0"


OTHER = """
from typing import NamedTuple
import numpy as np
import shoal
from shoal.policies.independent import IndependentState
from shoal.policies.steps import Common, step
from shoal.statistics import Statistics, add_sample


class OtherState(NamedTuple):
    common: Common
    local: Statistics


class Other(shoal.Independent):
    name = "other"

    def _initial_state(self, n_agents):
        return OtherState(*super()._initial_state(n_agents))


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
PLAY_OTHER = (
    "import shoal, other_policy\n"
    "world = shoal.GaussianClusters(4, 2, 2, seed=0)\n"
    "policy = other_policy.Other(4, 2, alpha=0.5)\n"
    "print(set(shoal.simulate(policy, world, horizon=20, seed=0).choices.tolist()))\n"
    "print(policy.select(0, world.arms))\n"
)


@pytest.mark.slow
def test_another_package_s_policy_leaves_no_trace_and_is_never_stale(tmp_path: Path) -> None:
    def play(program: str, path: str) -> list[str]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    module = tmp_path / "other_policy.py"
    module.write_text(OTHER.replace("CHOICE", "1"))
    assert play(PLAY_OTHER, str(tmp_path)) == ["{1}", "1"]
    module.write_text(OTHER.replace("CHOICE", "11"))
    assert play(PLAY_OTHER, str(tmp_path)) == ["{11}", "11"]
    assert play(RUN, "")[-1].startswith("hits")
