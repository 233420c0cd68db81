"""Breaks the code on purpose, one line at a time, and says whether the tests notice.

    python tools/mutants.py [WORD ...]    mutants whose name or file has one of the words; by default all

tools/mutants.toml lists what is replaced, and the tests that should notice: they run, until one fails, in a
temporary copy of the tracked files. After a change of the tests, mutants that were caught before must still
be caught. Kernels are not compiled for this. All mutants take about half an hour of one core.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PATIENCE = 1800.0
"""Seconds for the tests of one mutant."""


def main(words: list[str]) -> int:
    """Try the mutants that have one of the words; returns how many were missed."""
    listed = tomllib.loads(ROOT.joinpath("tools/mutants.toml").read_text())
    named = {one["name"]: one for one in listed["mutants"]}
    chosen = {
        name: one
        for name, one in named.items()
        if not words or any(word in name + one["file"] for word in words)
    }
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for file in filter(None, tracked.stdout.split("\0")):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, copy / file)
        for name, one in chosen.items():
            begin = time.monotonic()
            tests = [path for test in one["tests"] for path in listed["tests"].get(test, [test])]
            failed = notice(one, tests, copy)
            missed += failed is None
            verdict = "MISSED" if failed is None else "caught"
            print(f"{name:24} {verdict} {time.monotonic() - begin:5.0f} s  {failed or ''}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return missed


def notice(one: dict[str, Any], tests: list[str], copy: Path) -> str | None:
    """The test that fails with a mutant in a copy of the project, and passes without; None if none does."""
    path = copy / "src/shoal" / one["file"]
    whole = path.read_text()
    if whole.count(one["old"]) != 1:
        raise SystemExit(f"{one['name']}: {one['file']} has {whole.count(one['old'])} times {one['old']!r}")
    compiles = not one["file"].startswith("core/")  # else everything that reaches a kernel is compiled again
    path.write_text(whole.replace(one["old"], one["new"]))
    try:
        failed = first_failure([f"tests/{test}" for test in tests], copy, compiles=compiles)
    finally:
        path.write_text(whole)
    if failed is not None and first_failure([failed], copy, compiles=compiles) is not None:
        raise SystemExit(f"{one['name']}: {failed} fails without it, too")
    return failed


def first_failure(tests: list[str], copy: Path, *, compiles: bool) -> str | None:
    """The first of some tests that fails; None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "NUMBA_DISABLE_JIT": str(int(not compiles))}
    ran = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    if ran.returncode == 0:
        return None
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].partition(" ")[2].partition(" - ")[0] if lines else f"exit code {ran.returncode}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
