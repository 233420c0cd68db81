"""What an experiment consists of, read from a TOML file: environments × methods × α, over a range of seeds.

Errors in a file raise a `SpecError` that names the file and the key. `docs/experiments.md` describes the
format.
"""

import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import numpy as np
import tomli_w

from shoal.core.policies.registry import find_policy
from shoal.lab.environments.base import Environment
from shoal.lab.environments.registry import find_environment
from shoal.lab.experiments.fingerprint import code_fingerprint, foreign_fingerprint
from shoal.lab.simulation import PullingWord, check_delay

SCHEMA_VERSION = 1
"""Version of the results' columns and of what a run is; part of every spec's hash."""

Scalar = bool | int | float | str
Parameters = dict[str, Scalar | list[Scalar]]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Delay = int | str | tuple[str | int | float, ...]
"""Rounds, ["uniform", low, high], ["geometric", mean] or "module:function"; see `shoal.simulate`."""

MAIN = "main"
"""The group of methods that the tables compare."""
LONGEST_ID = 100
"""Two ids and an α must fit into a file name."""
LARGEST_SEED = 2**63 - 1
"""The largest seed that the results' column can hold."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SYMBOL = re.compile(
    r"(?P<name>gap|labels|n_clusters|noise_scale|param_norm|theta_star|estimated)"
    r"|gap/(?P<divisor>[0-9]+(\.[0-9]+)?)"
)
_GIVEN_TO_POLICIES = ("self", "n_agents", "dim", "alpha", "seed")
_GIVEN_TO_ENVIRONMENTS = ("self", "seed")


class SpecError(ValueError):
    """A spec that cannot be run as written."""


Fail = Callable[[str, str], SpecError]
"""Makes the error for a key and a message."""


class EnvironmentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One environment; run r builds it with its parameters and seed + r."""

    id: str
    kind: str
    title: str = ""
    parameters: Parameters = {}
    pulling: PullingWord | None = None
    """Instead of the spec's own."""
    delay: Delay | None = None
    """Instead of the spec's own."""
    optional: bool = False
    """Whether to skip it when its data or packages are missing."""


class MethodSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One policy with its parameters; α comes from the grid.

    The values "gap", "gap/N" (N a number), "labels", "n_clusters", "noise_scale" (the largest if agents
    differ), "param_norm" and "theta_star" stand for those of the run's environment; "estimated" is None, by
    which policies know that they are to estimate the value themselves.
    """

    id: str
    policy: str
    label: str = ""
    parameters: Parameters = {}
    alphas: tuple[float, ...] | None = None
    """Instead of the spec's own."""
    environments: tuple[str, ...] | None = None
    """Ids of the environments it is run in; by default all."""
    group: str = MAIN
    """The table or figure of the report that it belongs to."""


class ExperimentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole experiment. Use `load_spec` to get one that has been checked."""

    name: str
    title: str = ""
    """Of its report."""
    reference: str = ""
    """Id of the method that the report compares the others with; by default the best in each environment."""
    horizon: Positive
    runs: Positive
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Run r uses seed + r for environment, order of agents, noise and policy alike."""
    points: Positive = 200
    pulling: PullingWord = "asynchronous"
    delay: Delay = 0
    """How late rewards are; see `shoal.simulate`."""
    alphas: tuple[float, ...] = ()
    environments: tuple[EnvironmentSpec, ...] = ()
    methods: tuple[MethodSpec, ...] = ()
    source: str = ""
    """Where it was read from, for error messages; `load_spec` sets it."""


class Cell(msgspec.Struct, frozen=True):
    """One environment, one method and one α, over all runs."""

    environment: EnvironmentSpec
    method: MethodSpec
    alpha: float

    @property
    def id(self) -> str:
        """A readable name such as `near/club-g4/a0.30`."""
        return f"{self.environment.id}/{self.method.id}/a{_alpha_text(self.alpha)}"

    @property
    def filename(self) -> str:
        """Name of its results file, unique to each cell.

        "__" separates the ids. Where an id itself has "__", a "~", which no id has, tells the two apart.
        """
        # Twice, because "___" still has a "__" after the first pass.
        return self.id.replace("__", "_~_").replace("__", "_~_").replace("/", "__") + ".parquet"


def load_spec(path: str | Path, *, seed: int | None = None) -> ExperimentSpec:
    """Read and check a spec; `seed` replaces the one in the file."""
    path = Path(path)
    return parse_spec(path.read_bytes(), source=str(path), seed=seed)


def parse_spec(text: bytes, *, source: str, seed: int | None = None) -> ExperimentSpec:
    """Decode and check the text of a spec; `source` names it in errors."""
    try:
        spec = msgspec.toml.decode(text, type=ExperimentSpec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{source}: {_in_our_words(str(error))}") from None
    spec = msgspec.structs.replace(spec, source=source, seed=spec.seed if seed is None else seed)
    check_spec(spec)
    return spec


def check_spec(spec: ExperimentSpec) -> None:
    """Raise a `SpecError` for any error that can be found without building an environment."""
    fail = _failure(spec)
    if spec.seed < 0:
        raise fail("seed", f"must be at least 0, got {spec.seed}")
    # Seeds are kept in 64-bit columns.
    if spec.seed + spec.runs - 1 > LARGEST_SEED:
        raise fail("seed", f"must be at most 2**63 − {spec.runs} for {spec.runs} runs, got {spec.seed}")
    if spec.pulling not in get_args(PullingWord):
        raise fail("pulling", f"must be one of {', '.join(get_args(PullingWord))}, got {spec.pulling!r}")
    _check_delay(spec.delay, fail)
    # Ids name files and columns, so they have to be unique before anything else is looked at.
    _check_ids("environments", [environment.id for environment in spec.environments], fail)
    _check_ids("methods", [method.id for method in spec.methods], fail)
    for index, environment in enumerate(spec.environments):
        _check_environment(environment, _below(fail, f"environments[{index}]"))
        _check_delay(environment.delay or 0, _below(fail, f"environments[{index}]"))
    _check_alphas(spec.alphas, fail)
    known = [method.id for method in spec.methods if method.group == MAIN]
    if spec.reference and spec.reference not in known:
        raise fail("reference", f"unknown method {spec.reference!r}; choose from {', '.join(known)}")
    for index, method in enumerate(spec.methods):
        _check_method(method, spec, _below(fail, f"methods[{index}]"))


def directory_name(spec: ExperimentSpec) -> str:
    """The spec's name, checked to be a plain directory name that cannot lead elsewhere."""
    name = spec.name
    if name in ("", ".", "..") or len(name) > LONGEST_ID or not name.isprintable() or set(name) & set("/\\"):
        raise _failure(spec)(
            "name",
            f"cannot name the directory of the results; change it or use --out, got {name[:LONGEST_ID]!r}",
        )
    return name


def cells(spec: ExperimentSpec) -> list[Cell]:
    """All cells, grouped by policy."""
    listed = [
        Cell(environment, method, alpha)
        for environment in spec.environments
        for method in spec.methods
        if method.environments is None or environment.id in method.environments
        for alpha in (spec.alphas if method.alphas is None else method.alphas)
    ]
    policies = list(dict.fromkeys(method.policy for method in spec.methods))
    # By policy, so that the first can be played while the next is compiled.
    return sorted(listed, key=lambda cell: policies.index(cell.method.policy))


def spec_hash(spec: ExperimentSpec) -> str:
    """Hash of everything that determines the numbers: the grid without its titles, and the code."""
    content = {
        "schema": SCHEMA_VERSION,
        "code": code_fingerprint(environment.kind for environment in spec.environments),
        "grid": grid(spec),
    }
    # Functions of the user's own are code that results depend on.
    noises = [item.parameters.get("noise") for item in spec.environments]
    functions = [noise for noise in noises if isinstance(noise, str) and ":" in noise]
    if foreign := foreign_fingerprint((method.policy for method in spec.methods), functions):
        content["foreign"] = foreign
    return hashlib.sha256(_canonical(content)).hexdigest()[:16]


def grid(spec: ExperimentSpec) -> dict[str, Any]:
    """The part of a spec that determines its numbers, as plain data."""
    return {
        **{key: getattr(spec, key) for key in ("horizon", "runs", "seed", "points", "pulling", "delay")},
        "environments": {
            item.id: [item.kind, item.parameters, item.pulling, item.delay] for item in spec.environments
        },
        "methods": {item.id: [item.policy, item.parameters, item.group] for item in spec.methods},
        "cells": sorted(cell.id for cell in cells(spec)),
    }


def to_toml(spec: ExperimentSpec) -> str:
    """The spec as a file that `load_spec` reads back, with every default written out."""
    content = msgspec.to_builtins(spec)
    del content["source"]
    # TOML has no null: what is not set is left out.
    for entry in (*content["environments"], *content["methods"]):
        for key in [key for key, value in entry.items() if value is None]:
            del entry[key]
    return tomli_w.dumps(content)


def build_environment(environment: EnvironmentSpec, seed: int) -> Environment:
    """The environment of one run."""
    found = find_environment(environment.kind)
    # A world that is not random has no seed, and every run plays in the same one.
    given = {"seed": seed} if "seed" in inspect.signature(found).parameters else {}
    return found(**environment.parameters, **given)  # type: ignore[arg-type]


def build_policy(method: MethodSpec, alpha: float, environment: Environment, seed: int) -> Any:
    """A fresh policy for one run in `environment`."""
    found = find_policy(method.policy)
    given = {"alpha": alpha, "seed": seed}
    known = inspect.signature(found).parameters
    parameters = {key: value for key, value in given.items() if key in known}
    return found(
        environment.n_agents, environment.dim, **parameters, **resolve(method.parameters, environment)
    )


def resolve(parameters: Mapping[str, Any], environment: Environment) -> dict[str, Any]:
    """The parameters with "gap" and the other words of `MethodSpec` replaced by values of `environment`."""
    return {key: _resolve_one(key, value, environment) for key, value in parameters.items()}


def check_values(spec: ExperimentSpec, environment: EnvironmentSpec, built: Environment) -> None:
    """Raise a `SpecError` if a method that runs in this environment cannot be built with its values."""
    for cell in cells(spec):
        if cell.environment.id == environment.id:
            try:
                build_policy(cell.method, cell.alpha, built, spec.seed)
            except ValueError as error:
                key = f"methods[{spec.methods.index(cell.method)}]"
                raise _failure(spec)(key, f"cannot be built for {environment.id}: {error}") from None


def _resolve_one(key: str, value: Any, environment: Environment) -> Any:
    # A value may name what only the environment knows, and is looked up when that is made.
    match = _SYMBOL.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    if match["name"] == "estimated":
        return None
    if match["name"] in ("labels", "n_clusters"):
        if environment.labels is None:
            raise ValueError(f"{key} = {value!r} needs an environment with known clusters")
        return environment.labels if match["name"] == "labels" else len(np.unique(environment.labels))
    if match["name"] == "theta_star":
        if environment.theta_star is None:
            raise ValueError(f"{key} = {value!r} needs an environment with true parameters")
        return environment.theta_star
    if match["name"] in ("noise_scale", "param_norm"):
        is_noise = match["name"] == "noise_scale"
        known = environment.noise_bound if is_noise else environment.param_norm
        if math.isnan(known):
            wanted = "noise of a known scale" if is_noise else "true parameters"
            raise ValueError(f"{key} = {value!r} needs an environment with {wanted}; give a number here")
        return known
    if math.isnan(environment.gap):
        raise ValueError(f"{key} = {value!r} needs an environment with a known gap")
    return environment.gap / float(match["divisor"] or 1.0)


def _check_ids(key: str, ids: list[str], fail: Fail) -> None:
    if not ids:
        raise fail(key, "the grid is empty: at least one is needed")
    for index, name in enumerate(ids):
        if not _ID.fullmatch(name):
            raise fail(f"{key}[{index}].id", f"must consist of letters, digits and . _ + -, got {name!r}")
        if len(name) > LONGEST_ID:
            raise fail(f"{key}[{index}].id", f"must have at most {LONGEST_ID} characters, got {len(name)}")
        for other in ids[:index]:
            if name == other:
                raise fail(f"{key}[{index}].id", f"{name!r} is used twice")
            if name.casefold() == other.casefold():  # the same file on some systems
                raise fail(f"{key}[{index}].id", f"{name!r} and {other!r} differ in case only")


def _check_environment(environment: EnvironmentSpec, fail: Fail) -> None:
    try:
        built_by = find_environment(environment.kind)
    except ValueError as error:
        raise fail("kind", str(error)) from None
    except ImportError as error:
        if environment.optional:
            return
        raise fail("kind", f"{environment.kind!r} needs an optional package: {error}") from None
    _check_names(
        built_by, environment.parameters, _GIVEN_TO_ENVIRONMENTS, f"environment {environment.kind!r}", fail
    )


def _check_method(method: MethodSpec, spec: ExperimentSpec, fail: Fail) -> None:
    try:
        built_by = find_policy(method.policy)
    except (ValueError, ImportError) as error:
        raise fail("policy", str(error)) from None
    _check_names(built_by, method.parameters, _GIVEN_TO_POLICIES, f"policy {method.policy!r}", fail)
    if method.alphas is not None:
        _check_alphas(method.alphas, fail)
    if not (spec.alphas if method.alphas is None else method.alphas):
        raise fail("alphas", "the grid is empty: neither the method nor the spec has any")
    if method.environments is not None:
        known = [environment.id for environment in spec.environments]
        for name in method.environments:
            if name not in known:
                raise fail("environments", f"unknown environment {name!r}; choose from {', '.join(known)}")
        if not method.environments:
            raise fail("environments", "the grid is empty: leave the key out to run in all environments")


def _check_names(
    built_by: type,
    parameters: Parameters,
    given: Iterable[str],
    what: str,
    fail: Fail,
) -> None:
    """Compare parameters with the constructor's. Its `**rest` does not count: typos would vanish in it."""
    named = {
        name: parameter
        for name, parameter in inspect.signature(built_by).parameters.items()
        if name not in given and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    for name in parameters:
        if name not in named:
            raise fail(f"parameters.{name}", f"unknown parameter of {what}; choose from {', '.join(named)}")
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in parameters:
            raise fail(f"parameters.{name}", f"missing; {what} needs it")


def _check_delay(delay: Delay, fail: Fail) -> None:
    try:
        check_delay(delay)
    except ValueError as error:
        raise fail("delay", str(error)) from None


def _check_alphas(alphas: tuple[float, ...], fail: Fail) -> None:
    for alpha in alphas:
        if not (math.isfinite(alpha) and alpha >= 0.0):
            raise fail("alphas", f"must be finite numbers of at least 0, got {alpha}")
    if len(set(alphas)) < len(alphas):
        raise fail("alphas", f"must differ from each other, got {list(alphas)}")


def _below(fail: Fail, place: str) -> Fail:
    return lambda key, text: fail(f"{place}.{key}", text)


def _failure(spec: ExperimentSpec) -> Fail:
    return lambda key, text: SpecError(f"{spec.source or spec.name}: {key}: {text}")


def _in_our_words(message: str) -> str:
    """`Object contains unknown field `x` - at `$.methods[2]`` as `methods[2].x: unknown key`."""
    text, _, place = message.partition(" - at ")
    place = place.strip("`").removeprefix("$").removeprefix(".")
    for wording, said in (("contains unknown field", "unknown key"), ("missing required field", "missing")):
        if wording in text:
            field = text.rpartition(wording)[2].strip(" `")
            return f"{place}.{field}: {said}".removeprefix(".")
    return f"{place}: {text}" if place else text


def _alpha_text(alpha: float) -> str:
    # Two digits where they say it exactly; otherwise two values could share a file name.
    short = f"{alpha:.2f}"
    return short if float(short) == alpha else repr(float(alpha))


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
