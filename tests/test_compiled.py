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
