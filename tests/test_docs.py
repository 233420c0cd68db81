"""What the documentation shows, runs."""

import doctest
import importlib
import itertools
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from tests.live.service.running import InProcess
from tools.website import FURTHER

import shoal
from shoal.core.policies import registry as policies
from shoal.lab.environments import registry as environments
from shoal.lab.experiments.spec import cells
from shoal.lab.paper.presets import load_preset
from shoal.live.client import clients

ROOT = Path(__file__).parents[1]


TUTORIALS = ROOT / "docs" / "tutorials"  # run by test_site.py, each as one program
NOT_RUN = {"docs/cluster.md": "asks SLURM for jobs, by dask-jobqueue"}
"""Pages whose code cannot run here, and why. It has to compile."""


def python_blocks(page: str) -> list[str]:
    return re.findall(
        r"^```py(?:thon)?\n(.*?)^```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE
    )


PAGES = [
    str(path.relative_to(ROOT))
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    if path.parent != TUTORIALS and python_blocks(str(path.relative_to(ROOT)))
]


def given(page: str, directory: Path) -> None:
    """Write the files that a page's reader has, small ones, and MovieLens as `ml-latest-small` has it."""
    rng = np.random.default_rng(0)

    def write(name: str, rows: Iterable[Iterable[object]], between: str = ",") -> None:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("".join(between.join(map(str, row)) + "\n" for row in rows))

    if page == "docs/your-data.md":
        write("arms.csv", [("arm", "x", "y"), *((f"arm {k}", *rng.normal(size=2)) for k in range(6))])
        rows = ((f"agent {i % 20}", f"arm {k}", rng.normal()) for i in range(200) for k in (i % 6,))
        write("log.csv", [("agent", "arm", "reward"), *rows])
    if page == "docs/experiments.md":
        spec = re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)[0]
        assert "horizon = 20000" in spec
        assert "runs = 20\n" in spec
        spec = spec.replace("horizon = 20000", "horizon = 300").replace("runs = 20\n", "runs = 2\n")
        (directory / "noise.toml").write_text(spec)
    if page in {"docs/experiments.md", "docs/real-data.md"}:
        genres = ["Action", "Adventure", "Animation", "Comedy", "Crime", "Drama", "Horror", "War"]
        movies = ((k, f"Movie {k}", "|".join(rng.choice(genres, 2, replace=False))) for k in range(40))
        write("ml/movies.csv", [("movieId", "title", "genres"), *movies])
        ratings = ((u, k, rng.integers(1, 6), 0) for u in range(110) for k in rng.permutation(40)[:10])
        write("ml/ratings.csv", [("userId", "movieId", "rating", "timestamp"), *ratings])
        with zipfile.ZipFile(directory / "ml-1m.zip", "w") as packed:
            for path in (directory / "ml").iterdir():
                packed.write(path, f"ml-1m/{path.name}")
        values = (
            (q, " ".join(f"{k}:{rng.random():.3f}" for k in range(1, 13)))
            for q in range(110)
            for _ in "12345"
        )
        write("set1.train.txt", ((rng.integers(5), f"qid:{q}", text) for q, text in values), between=" ")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path) -> None:
    blocks = python_blocks(page)
    given(page, tmp_path)
    environment = {
        **os.environ, "SHOAL_CACHE": str(tmp_path / "cache"), "SHOAL_MOVIELENS": str(tmp_path / "ml")
    }  # fmt: skip
    for number, block in enumerate(blocks):
        program = tmp_path / f"example_{number}.py"
        program.write_text(block)
        if page in NOT_RUN:
            compile(block, program, "exec")
            continue
        done = subprocess.run(
            [sys.executable, "-W", "error", program],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=300,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_pages_whose_code_does_not_run_are_few_and_have_code() -> None:
    assert len(PAGES) > 12
    assert set(NOT_RUN) <= set(PAGES)
    assert len(NOT_RUN) == 1


@pytest.mark.slow
def test_docstring_examples_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (policies, environments):  # examples register some of their own
        monkeypatch.setattr(module._registry, "_known", {**module._registry._known})
    tried = 0
    for module_info in pkgutil.walk_packages(shoal.__path__, "shoal."):
        if f"{module_info.name}.".startswith("shoal.cli."):  # not shoal.client
            continue
        module = importlib.import_module(module_info.name)
        if module is clients:
            with InProcess() as service:
                failed, attempted = doctest.testmod(module, extraglobs={"url": service.url})
            assert attempted
        else:
            failed, attempted = doctest.testmod(module)
        assert failed == 0, module_info.name
        tried += attempted
    assert tried > 100


def test_every_public_name_has_an_example() -> None:
    for name in (*shoal.__all__, *itertools.chain(*FURTHER.values())):
        assert ">>> " in (attrgetter(name)(shoal).__doc__ or ""), name


def test_the_version_to_cite_is_this_one() -> None:
    assert f"version: {shoal.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{shoal.__version__}}}" in (ROOT / "docs" / "citing.md").read_text()


def test_the_page_on_clusters_counts_the_paper_s_runs() -> None:
    paper = load_preset("paper")
    listed = cells(paper)
    synthetic = [cell for cell in listed if not cell.environment.optional]
    page = (ROOT / "docs" / "cluster.md").read_text()
    assert f"{len(listed) * paper.runs:,} runs in {len(listed):,} cells" in page
    assert f"{len(synthetic) * paper.runs:,} runs remain" in page


def test_badges_are_true() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())
    least, covered = known["project"]["requires-python"], known["tool"]["coverage"]["report"]["fail_under"]
    badges = re.findall(
        r"!\[([^]]*)\]\(https://img.shields.io/badge/([^)]*)-teal\)", (ROOT / "README.md").read_text()
    )
    assert [unquote(badge).replace("--", "_").replace("_", " ") for _, badge in badges] == [
        f"python-{least.removeprefix('>=')}+",
        f"licence-{known['project']['license'].replace('-', ' ')}",
        f"line coverage-≥ {covered}%",
    ]


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            if not target.startswith(("http", "mailto")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_public_names_are_documented_and_few() -> None:
    assert sorted(shoal.__all__, key=str.casefold) == sorted(set(shoal.__all__), key=str.casefold)
    assert len(shoal.__all__) <= 57
    for name in (*shoal.__all__, *itertools.chain(*FURTHER.values())):
        assert (attrgetter(name)(shoal).__doc__ or "").strip(), name


def test_another_package_s_entry_point_is_found(tmp_path: Path) -> None:
    (tmp_path / "other_package.py").write_text(
        "class Lazy:\n"
        "    def __init__(self, n_agents, dim, *, arm=0): self.arm = arm\n"
        "    def select(self, agent, arms): return self.arm\n"
        "    def update(self, agent, x, reward): pass\n"
    )
    information = tmp_path / "other_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[shoal.policies]\nlazy = other_package:Lazy\n")
    program = (
        "import shoal\n"
        "assert 'lazy' in shoal.policy_names()\n"
        "policy = shoal.make_policy('lazy', 3, 2, arm=1)\n"
        "world = shoal.GaussianClusters(3, 2, 1, n_arms=4, seed=0)\n"
        "assert set(shoal.simulate(policy, world, horizon=9, seed=0).choices) == {1}\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="name must be a new, non-empty policy name, got 'bass'"):
        shoal.register_policy("bass", dict)
