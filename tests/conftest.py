"""Settings for all tests: the same hypothesis examples on every run, files in memory, long files first."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("shoal", deadline=None, derandomize=True)
settings.load_profile("shoal")

# Tests kill processes, not machines, so that nothing depends on a disk, which takes milliseconds per commit.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # where `tmp_path` is

HERE = Path(__file__).parent
LONG = (
    "test_site.py", "test_docs.py", "live/machines/test_ownership.py", "core/jit/test_compiled.py",
    "core/policies/test_against_reference.py", "lab/paper/test_report.py", "core/jit/test_units.py",
    "live/service/test_operation.py", "live/service/dashboard/test_page.py", "live/machines/test_ray.py",
    "live/machines/test_chaos.py", "live/service/test_kill.py", "live/service/test_schemathesis.py",
    "lab/experiments/test_runner.py", "lab/experiments/test_cli.py", "core/attack/test_files.py",
    "core/policies/test_crowd.py", "live/population/test_faults.py", "live/population/test_kill.py",
    "lab/experiments/test_report.py", "live/service/test_client.py", "lab/experiments/test_attacked.py",
    "live/evaluation/test_estimators.py", "live/population/test_snapshotter.py",
    "core/kernels/test_separation.py", "lab/experiments/test_figures.py", "lab/experiments/test_growing.py",
    "lab/paper/test_figures.py", "lab/paper/test_exhibits.py", "live/population/test_machine.py",
    "core/policies/test_noise.py",
)  # fmt: skip
"""Files that take longest. They begin first: one that began last would keep a process busy alone."""


REPEATED = ("core/policies", "core/kernels", "core/attack")
"""Where a test's cases play the same lines with other numbers."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count lines only once where cases repeat them; in one of several processes, long files come first."""
    seen = set()
    for item in items:
        name, place = item.nodeid.partition("[")[0], item.path.relative_to(HERE).as_posix()
        # Counting makes them half as slow again: their time goes into the naive reference, call by call.
        if name in seen and place.startswith(REPEATED) and "NUMBA_DISABLE_JIT" not in os.environ:
            item.add_marker("no_cover")
        seen.add(name)
    if "PYTEST_XDIST_WORKER" in os.environ:
        rank = {name: number for number, name in enumerate(LONG)}
        items.sort(key=lambda item: rank.get(item.path.relative_to(HERE).as_posix(), len(rank)))
