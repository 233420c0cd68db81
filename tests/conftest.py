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
    "core/policies/test_against_reference.py", "core/jit/test_compiled.py", "live/machines/test_chaos.py",
    "test_docs.py", "live/population/test_kill.py", "live/service/test_kill.py", "lab/paper/test_report.py",
    "live/machines/test_ownership.py", "live/service/dashboard/test_page.py", "live/machines/test_ray.py",
    "live/service/test_schemathesis.py", "lab/experiments/test_runner.py", "live/service/test_operation.py",
    "core/jit/test_units.py", "lab/experiments/test_attacked.py", "live/population/test_machine.py",
    "test_site.py", "test_install.py", "core/attack/test_saving.py", "core/attack/test_scales.py",
    "core/attack/test_files.py", "core/contracts/test_policies.py", "core/kernels/test_separation.py",
    "lab/experiments/test_cli.py", "live/population/test_faults.py",
)  # fmt: skip
"""Files that take longest. They begin first: one that began last would keep a process busy alone."""


WITH_SERVERS = ("live/service", "live/machines")
"""Where a module's tests share a server, whose threads would not be counted any more after a pause."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count lines only in the first case of each test. In one of several processes, long files come first."""
    seen = set()
    for item in items:
        name, place = item.nodeid.partition("[")[0], item.path.relative_to(HERE).as_posix()
        # Counting makes a test half as slow again, and further cases reach few further lines.
        if name in seen and not place.startswith(WITH_SERVERS) and "NUMBA_DISABLE_JIT" not in os.environ:
            item.add_marker("no_cover")
        seen.add(name)
    if "PYTEST_XDIST_WORKER" in os.environ:
        rank = {name: number for number, name in enumerate(LONG)}
        items.sort(key=lambda item: rank.get(item.path.relative_to(HERE).as_posix(), len(rank)))
