"""The paper's experiments and ours, as specs that come with the package."""

import inspect
import re
from collections.abc import Sequence
from importlib import resources
from inspect import Parameter
from typing import Any, cast

import msgspec
from msgspec.toml import decode

from shoal.core import validation
from shoal.core.policies.registry import find_policy, policy_names
from shoal.lab.environments.registry import find_environment
from shoal.lab.experiments.spec import (
    Delay,
    EnvironmentSpec,
    ExperimentSpec,
    MethodSpec,
    Parameters,
    SpecError,
    check_spec,
    parse_spec,
)
from shoal.lab.simulation import PullingWord

PRESETS = ("quick", "tables", "paper", "beyond")
TOLD = ("noise_scale", "param_norm", "graph")
"""Parameters for which a policy may be told the environment's values."""


def load_preset(name: str, *, seed: int | None = None, runs: int | None = None) -> ExperimentSpec:
    """Read one of the specs that come with the package, see `PRESETS`; `seed` and `runs` replace its own."""
    if name not in PRESETS:
        raise SpecError(f"unknown preset {name!r}; {validation.suggestion(name, PRESETS)}")
    spec = parse_spec(preset_text(name), source=f"presets/{name}.toml", seed=seed)
    return spec if runs is None else msgspec.structs.replace(spec, runs=runs)


def preset_text(name: str) -> bytes:
    """The file of a preset."""
    return (resources.files("shoal.lab.paper") / "presets" / f"{name}.toml").read_bytes()


def told(policy: str, names: Sequence[str] = TOLD) -> dict[str, Any]:
    """Those of `names` that are parameters of a policy, as words for the environment's (see `MethodSpec`).

    A policy whose noise or norm is None by default estimates it itself. Independent's noise only multiplies
    alpha, which grids search.
    """
    if policy == "independent":
        return {}
    known = inspect.signature(find_policy(policy)).parameters
    wanted = [name for name in names if name in known]
    return {name: name for name in wanted if name == "graph" or known[name].default is not None}


def is_preset(spec: ExperimentSpec) -> bool:
    """Whether a spec is one of the presets, from this or an earlier version, at any size."""
    if spec.name not in PRESETS:
        return False
    known = {(item.id, item.kind) for item in load_preset(spec.name).environments}
    return {(item.id, item.kind) for item in spec.environments} <= known


def single(
    policy: str,
    kind: str,
    *,
    alpha: float,
    horizon: int,
    runs: int = 1,
    seed: int = 0,
    pulling: str = "asynchronous",
    delay: Delay = 0,
    policy_parameters: Parameters | None = None,
    environment_parameters: Parameters | None = None,
) -> ExperimentSpec:
    """A spec of a single cell. Parameters not given are those of the presets "paper", "beyond" or "field".

    Where these run the policy in no environment of that kind, parameters that they would take from true
    clusters are left to the policy's defaults.
    """
    policy, kind = (name if ":" in name else name.replace("-", "_") for name in (policy, kind))
    known = [load_preset("paper"), load_preset("beyond")]
    worlds = [(item.kind, item.parameters) for preset in known for item in preset.environments]
    worlds += [
        (item["kind"], item.get("parameters", {})) for item in decode(preset_text("field"))["environments"]
    ]
    environment = next((dict(given) for name, given in worlds if name == kind), _sizes(kind))
    if "noise" in (environment_parameters or {}):
        environment.pop("noise_scale", None)  # that of the preset's own noise
    method = _usual(known, policy, kind)
    spec = ExperimentSpec(
        name="single",
        horizon=horizon,
        runs=runs,
        seed=seed,
        pulling=cast(PullingWord, pulling),
        delay=delay,
        alphas=(alpha,),
        environments=(
            EnvironmentSpec(
                id=as_id(kind), kind=kind, parameters=environment | (environment_parameters or {})
            ),
        ),
        methods=(MethodSpec(id=as_id(policy), policy=policy, parameters=method | (policy_parameters or {})),),
        source=f"{policy} in {kind}",
    )
    check_spec(spec)
    return spec


def _usual(presets: list[ExperimentSpec], policy: str, kind: str) -> dict[str, Any]:
    """Parameters with which presets run a policy in environments of a kind, or else elsewhere.

    A policy that is in no preset and needs a graph is told the environment's.
    """
    elsewhere: dict[str, Any] | None = None
    for preset in presets:
        here = {item.id for item in preset.environments if item.kind == kind}
        for method in preset.methods:
            if method.policy != policy:
                continue
            if here and (method.environments is None or here & set(method.environments)):
                return dict(method.parameters)
            if elsewhere is None:
                elsewhere = dict(method.parameters)
    if elsewhere is None and policy in policy_names():
        elsewhere = told(policy, ["graph"])
    of_environment = re.compile(r"gap(/.*)?|n_clusters")
    return {
        key: value for key, value in (elsewhere or {}).items() if not of_environment.fullmatch(str(value))
    }


def _sizes(kind: str) -> Parameters:
    """The paper's sizes, for those that an environment without a preset requires."""
    sizes: Parameters = {"n_agents": 100, "dim": 10}
    known = inspect.signature(find_environment(kind)).parameters
    required = {name for name, parameter in known.items() if parameter.default is Parameter.empty}
    return {key: size for key, size in sizes.items() if key in required}


def as_id(name: str) -> str:
    """`module:Class` as `module.Class`."""
    return re.sub(r"[^A-Za-z0-9._+-]", ".", name)
