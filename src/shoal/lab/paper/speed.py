"""How long the paper's experiments take on this machine, from the measured time of one run of each kind."""

import contextlib
import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shoal.core.atomic import write_whole
from shoal.lab.benchmark import processor
from shoal.lab.environments.base import Environment
from shoal.lab.environments.sources import cache_directory
from shoal.lab.environments.synthetic import GaussianClusters
from shoal.lab.experiments.runner import processors
from shoal.lab.experiments.spec import EnvironmentSpec, ExperimentSpec, build_environment, build_policy, cells
from shoal.lab.paper import published
from shoal.lab.simulation import simulate

ALPHA = published.ALPHAS[1]
"""The α of the measured runs: the best one for most methods."""


def run_seconds(
    spec: ExperimentSpec, *, cache: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> dict[str, float]:
    """Processor time of one run of each method in each environment, by "environment/method".

    Whole runs are timed, because rounds get cheaper or dearer as agents stop sharing. They are measured once
    and cached by machine and version. Real data has a stand-in, so that nothing need be downloaded.
    """
    kept = _kept_in(cache_directory(cache))
    known: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        known = {key: float(seconds) for key, seconds in json.loads(kept.read_bytes()).items()}
    wanted = {_key(spec, cell.environment.id, cell.method.id): cell for cell in cells(spec)}
    missing = {key: cell for key, cell in wanted.items() if key not in known}
    if missing:
        say(f"Measuring the speed of this machine, once: {len(missing)} runs …")
    for environment in spec.environments:
        here = [cell for cell in missing.values() if cell.environment.id == environment.id]
        if not here:
            continue
        built = _stand_in(environment) if environment.optional else build_environment(environment, spec.seed)
        for cell in here:
            for horizon in (1, spec.horizon):  # the first compiles
                policy = build_policy(cell.method, ALPHA, built, spec.seed)
                begin = time.thread_time()
                simulate(policy, built, horizon=horizon, seed=spec.seed, points=spec.points)
            known[_key(spec, environment.id, cell.method.id)] = time.thread_time() - begin
    if missing:
        with contextlib.suppress(OSError):  # measured again next time
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, json.dumps(known, indent=1).encode())
    return {f"{cell.environment.id}/{cell.method.id}": known[key] for key, cell in wanted.items()}


def minutes(spec: ExperimentSpec, seconds: Mapping[str, float]) -> float:
    """Minutes that a grid takes with all processors."""
    total = sum(seconds[f"{cell.environment.id}/{cell.method.id}"] * spec.runs for cell in cells(spec))
    return total / processors() / 60.0


def _stand_in(environment: EnvironmentSpec) -> Environment:
    """An environment of the same sizes as one of real data."""
    sizes: dict[str, Any] = {"n_agents": 100, "dim": 10, "n_arms": 30} | environment.parameters
    n_agents, dim, n_arms = (int(sizes[name]) for name in ("n_agents", "dim", "n_arms"))
    return GaussianClusters(n_agents, dim, n_clusters=3, n_arms=n_arms, seed=0)


def _key(spec: ExperimentSpec, environment: str, method: str) -> str:
    return f"{environment}/{method}/{spec.horizon}"


def _kept_in(directory: Path) -> Path:
    """A file for this machine and this version of the code."""
    said = (processor(), platform.machine(), *map(version, ("shoal", "numba", "numpy")))
    return directory / "speed" / f"{hashlib.sha256(repr(said).encode()).hexdigest()[:16]}.json"
