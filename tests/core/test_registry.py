"""Classes by name: registered, from other packages, or a user's own as `module:Class`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core import registry
from shoal.core.policies import registry as policies
from shoal.lab.environments import registry as environments
from shoal.lab.experiments.runner import play_single
from shoal.lab.paper.presets import single

MINE = """
import numpy as np
import shoal
from helper import LEVEL


class Greedy:
    def __init__(self, n_agents, dim, *, epsilon=0.1, seed=0):
        self.A, self.b = np.eye(dim), np.zeros(dim)
        self.epsilon, self.rng = epsilon, np.random.default_rng(seed)

    def select(self, agent, arms):
        if self.rng.random() < self.epsilon:
            return self.rng.integers(len(arms))
        return np.argmax(arms @ np.linalg.solve(self.A, self.b))

    def update(self, agent, x, reward):
        self.A += np.outer(x, x)
        self.b += reward * x


class Basis(shoal.Environment):
    \"\"\"Every agent likes one axis.\"\"\"

    def __init__(self, n_agents, dim, *, level=LEVEL, noise="gaussian", noise_scale=1.0, seed=None):
        rng = np.random.default_rng(seed)
        theta_star = level * np.eye(dim)[rng.integers(dim, size=n_agents)]
        super().__init__(np.eye(dim), theta_star=theta_star, noise=noise, noise_scale=noise_scale)


class Fixed(shoal.Environment):
    def __init__(self):
        super().__init__(np.eye(2), theta_star=np.eye(2))


def heavy(means, agents, rng):
    return means + rng.standard_t(3, size=(len(means), 1))
"""

SPEC = """
name = "mine"
horizon = 60
runs = 2
alphas = [0.3]

[[environments]]
id = "basis"
kind = "mine:Basis"
parameters = { n_agents = 4, dim = 3, noise = "mine:heavy" }

[[environments]]
id = "fixed"
kind = "mine:Fixed"

[[environments]]
id = "clicks"
kind = "synthetic"
parameters = { n_agents = 4, dim = 3, n_clusters = 2, angle = 1.0, arm_spread = 0.0, noise = "bernoulli" }

[[environments]]
id = "uneven"
kind = "gaussian"
parameters = { n_agents = 3, dim = 3, noise_scale = [0.1, 1.0, 3.0] }

[[environments]]
id = "log"
kind = "logged"
parameters = { path = "log.csv", features = "arms.csv" }

[[methods]]
id = "greedy"
policy = "mine:Greedy"
parameters = { epsilon = 0.2 }

[[methods]]
id = "bass"
policy = "bass"
parameters = { delta = 0.1, noise_scale = "noise_scale", param_norm = 1.0 }
environments = ["clicks", "uneven", "log"]
"""


def shoal_command(*arguments: str, cwd: Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """The installed command itself: its path on sys.path is not the user's."""
    command = [str(Path(sys.executable).parent / "shoal"), *arguments]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "SHOAL_CACHE": str(cwd / "cache")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "helper.py").write_text("LEVEL = 0.5\n")
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "log.csv").write_text("agent,arm,reward\na,1,1\na,2,0\nb,1,0\nb,2,1\n")
    (tmp_path / "arms.csv").write_text("arm,x,y\n1,1,0\n2,0,1\n")
    return tmp_path


class TestCommands:
    def test_run_and_report(self, here: Path) -> None:
        assert "8 cells computed, 0 found" in shoal_command("run", "spec.toml", cwd=here).stdout
        shoal_command("report", "results/mine", cwd=here)
        assert "greedy" in (here / "results/mine/report/index.html").read_text()
        # Results of an edited class are not taken for those of the new one.
        (here / "mine.py").write_text(MINE.replace("np.argmax", "np.argmin"))
        again = shoal_command("run", "spec.toml", cwd=here)
        assert "mine.Greedy.select changed: 5 cells to play again; --trust would keep" in again.stderr
        assert "5 cells computed, 3 found" in again.stdout

    def test_simulate(self, here: Path) -> None:
        shown = shoal_command(
            *("simulate", "--policy", "mine:Greedy", "--env", "mine:Basis", "--horizon", "50"),
            *("-p", "epsilon=0.3", "-e", "level=2.0", "-e", "dim=2", "-e", "noise=mine:heavy"),
            cwd=here,
        )
        assert "mine:Greedy in mine.Basis: 1 × 50 rounds" in shown.stdout

    def test_clicks(self, here: Path) -> None:
        shown = shoal_command(
            *("simulate", "--policy", "independent", "--env", "logged", "--horizon", "50"),
            *("-e", "path=log.csv", "-e", "features=arms.csv", "-e", "noise=bernoulli"),
            cwd=here,
        )
        assert "independent in logged" in shown.stdout

    def test_what_is_wrong_is_one_line(self, here: Path) -> None:
        done = shoal_command("simulate", "--policy", "nowhere:Greedy", cwd=here, code=2)
        assert done.stderr.endswith(
            "methods[0].policy: 'nowhere:Greedy': there is no module 'nowhere' here or on the path\n"
        )


@pytest.mark.parametrize(
    ("policy", "kind", "parameters", "message"),
    [
        ("mine:Gready", "gaussian", {}, "'mine:Gready': there is no 'Gready' in .*mine.py"),
        ("mine:Basis", "gaussian", {}, "'mine:Basis' must be a class with the methods select and update"),
        ("mine:", "gaussian", {}, "a class or function must be named as 'module:name', got 'mine:'"),
        ("broken:Greedy", "gaussian", {}, r"methods\[0\].policy: No module named 'not_installed'"),
        ("bass", "mine:Greedy", {}, "'mine:Greedy' must be a class derived from shoal.Environment, got"),
        (
            "bass",
            "mine:Basis",
            {"levle": 1},
            "parameters.levle: unknown parameter of environment",
        ),
        ("bass", "mine:Basis", {"noise": "mine:loud"}, "'mine:loud': there is no 'loud' in .*mine.py"),
        (
            "bass",
            "mine:Basis",
            {"noise": "mine:heavy"},
            "noise_scale = 'noise_scale' needs an environment with noise of a known scale; give a number",
        ),
        (
            "bass",
            "gaussian",
            {"noise": "bernoulli"},
            r"mean_rewards must be in \[0, 1\] for noise='bernoulli', got",
        ),
    ],
)
def test_what_is_wrong_is_named(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    kind: str,
    parameters: dict[str, Any],
    message: str,
) -> None:
    (here / "broken.py").write_text("import not_installed\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("mine", "helper", "broken"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ValueError, match=message):
        play_single(single(policy, kind, alpha=0.3, horizon=5, environment_parameters=parameters))


class TestRegistering:
    @pytest.fixture(autouse=True)
    def forget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Names given here are not known to other tests."""
        for found in (policies, environments):
            known = dict(found._registered)
            monkeypatch.setattr(found._registry, "_known", known)

    def test_an_environment_s_name(self) -> None:
        class Mine(shoal.GaussianClusters):
            pass

        shoal.register_environment("mine", Mine)
        shoal.register_environment("mine", Mine)  # the same again does no harm
        assert "mine" in shoal.environment_names()
        assert isinstance(shoal.make_environment("mine", n_agents=3, dim=2, seed=0), Mine)

    @pytest.mark.parametrize(
        ("name", "found", "message"),
        [
            ("gaussian", shoal.Continuum, "name must be a new, non-empty environment name, got 'gaussian'"),
            ("", shoal.Continuum, "name must be a new, non-empty environment name, got ''"),
            ("a:b", shoal.Continuum, "name must not look like 'module:Class', got 'a:b'"),
            (
                "mine",
                dict,
                "environment 'mine' must be a class derived from shoal.Environment, got",
            ),
        ],
    )
    def test_what_cannot_be(self, name: str, found: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            shoal.register_environment(name, found)
        assert shoal.environment_names() == tuple(environments._registered)

    def test_a_policy_without_the_methods(self) -> None:
        with pytest.raises(
            ValueError, match="policy 'mine' must be a class with the methods select and update"
        ):
            shoal.register_policy("mine", dict)

    def test_unknown_names(self) -> None:
        with pytest.raises(ValueError, match="unknown environment 'gauss'; did you mean 'gaussian'"):
            shoal.make_environment("gauss")


def test_names_from_files_import_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`policy_class` is asked for names that stand in saved files, which may be anybody's."""
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="unknown policy 'trap:Policy'"):
        policies.policy_class("trap:Policy")


def test_a_failed_search_leaves_the_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    with pytest.raises(ValueError, match="there is no module 'nowhere'"):
        registry.load("nowhere:Thing")
    assert sys.path == before


def test_another_package_s_environment_is_found(tmp_path: Path) -> None:
    (tmp_path / "other_worlds.py").write_text("import shoal\nclass Other(shoal.GaussianClusters): pass\n")
    information = tmp_path / "other_worlds-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other-worlds\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[shoal.environments]\nother = other_worlds:Other\n")
    program = (
        "import shoal\n"
        "assert 'other' in shoal.environment_names()\n"
        "world = shoal.make_environment('other', n_agents=3, dim=2, seed=0)\n"
        "assert type(world).__name__ == 'Other'\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
