"""What is loaded and installed: no more than is needed, and without an extra a line that names it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
import yaml

from shoal.core import fields

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def python(program: str, *arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own, far from the sources."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=cwd, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def shoal_without(module: str, *arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line as if a module were not installed."""
    program = f"import sys; sys.modules[{module!r}] = None; from shoal.cli import main; main()"
    return python(program, *arguments, cwd=cwd, code=code)


DECIDING = """
import sys, numpy as np, shoal
before = set(sys.modules)
policy, arms = shoal.BASS(20, 4), np.eye(4)
policy.update(0, arms[policy.select(0, arms)], reward=1.0)
"""
LISTING = "\nimport sys; print(*sys.modules)"


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import shoal", {"numpy", "numba", "scipy", "matplotlib", "pyarrow"}),
        # Numba itself loads scipy.linalg, for its own @, which nothing here compiles.
        (
            DECIDING,
            {"scipy.special", "scipy.stats", "scipy.sparse", "scipy.spatial", "matplotlib", "pyarrow"},
        ),
        (
            "import shoal; shoal.open; shoal.simulate",
            {"scipy.special", "scipy.stats", "matplotlib", "pyarrow"},
        ),
    ],
    ids=["import", "deciding", "opening"],
)
def test_only_what_is_needed_is_loaded(program: str, absent: set[str], tmp_path: Path) -> None:
    assert absent.isdisjoint(python(program + LISTING, cwd=tmp_path).stdout.split())


def test_help_loads_no_numerics(tmp_path: Path) -> None:
    program = (
        "import atexit, sys; from shoal.cli import main; atexit.register(lambda: print(*sys.modules)); main()"
    )
    printed = python(program, "--help", cwd=tmp_path).stdout
    assert "reproduce" in printed
    loaded = printed.splitlines()[-1].split()
    assert "shoal.cli.app" in loaded
    assert {"numpy", "numba", "scipy", "matplotlib", "pyarrow", "dask"}.isdisjoint(loaded)


def test_single_runs_need_no_pyarrow(tmp_path: Path) -> None:
    options = ("--policy", "independent", "--horizon", "50", "--runs", "1")
    assert "regret" in shoal_without("pyarrow", "simulate", *options, cwd=tmp_path).stdout


def test_an_experiment_without_pyarrow_says_so_before_it_starts(tmp_path: Path) -> None:
    from shoal.lab.experiments.spec import to_toml
    from shoal.lab.paper.presets import load_preset

    (tmp_path / "some.toml").write_text(to_toml(load_preset("quick")))
    done = shoal_without("pyarrow", "run", "some.toml", cwd=tmp_path, code=2)
    assert done.stderr == (
        "shoal: Parquet files and experiments need pyarrow: pip install 'shoal[parquet]'\n"
    )
    assert os.listdir(tmp_path) == ["some.toml"]


def test_the_service_without_its_extra_says_so(tmp_path: Path) -> None:
    done = shoal_without("uvicorn", "demo", cwd=tmp_path, code=2)
    assert done.stderr == "shoal: the service needs uvicorn and others: pip install 'shoal[serve]'\n"


def test_populations_where_fcntl_is_missing_say_so(tmp_path: Path) -> None:
    done = shoal_without("fcntl", "population", "list", "some.db", cwd=tmp_path, code=2)
    assert done.stderr.startswith("shoal: populations need Linux or macOS: ")
    assert done.stderr.count("\n") == 1


def test_a_broken_import_is_a_bug_and_no_advice(tmp_path: Path) -> None:
    assert (
        "Traceback" in shoal_without("shoal.live.population.controller", "demo", cwd=tmp_path, code=1).stderr
    )


def test_the_makefile_installs_extras_that_exist_and_setup_all_of_them() -> None:
    found = re.findall(r"^(\w+)_EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    sets = {name: set(extras.split(",")) for name, extras in found}
    assert sets["all"] == set(PROJECT["optional-dependencies"]) - {"release"}
    assert all(extras <= sets["all"] for extras in sets.values())


def test_the_workflow_runs_the_pythons_that_are_claimed() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    tried = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    claimed = [line.split()[-1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert set(claimed) <= set(tried)
    assert f">={tried[0]}" == PROJECT["requires-python"]


def test_hooks_call_what_lint_calls() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    lint = (
        (ROOT / "Makefile")
        .read_text()
        .partition("\nlint: ")[2]
        .partition("\n\n")[0]
        .replace("$(BIN)", ".venv/bin")
    )
    assert {hook["entry"] for hook in repo["hooks"]} == {line.strip() for line in lint.splitlines()[1:]}


def test_entries_are_typed_by_arrays_of_numpy_before_and_since_2_5() -> None:
    """`NDArray[x]` was `ndarray[…, dtype[x]]` and is an alias with the one argument x, as lists have."""

    class State(NamedTuple):
        before: Annotated[np.ndarray[tuple[Any, ...], np.dtype[np.int64]], fields.kept("agents")]
        since: Annotated[list[np.int64], fields.kept("agents")]

    assert {leaf.field.dtype for leaf in fields.leaves(State)} == {np.dtype(np.int64)}
