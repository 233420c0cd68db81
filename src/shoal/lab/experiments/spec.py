"""What an experiment consists of, read from a TOML file: environments × methods × α, over a range of seeds.

Errors in a file raise a `SpecError` that names the file and the key. `docs/experiments.md` describes the
format.
"""

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import msgspec
import numpy as np
import tomli_w

from shoal.core.policies.registry import find_policy
from shoal.core.validation import suggestion
from shoal.lab.environments.base import Environment
from shoal.lab.environments.registry import find_environment
from shoal.lab.simulation import PullingWord, check_delay

SCHEMA_VERSION = 2
"""Version of the results' columns and of what a run draws; part of every cell's key."""

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

GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "sigma": "σ"}
Part = TypeVar("Part", bound=msgspec.Struct)
_ODD = re.compile(r"[^A-Za-z0-9._+-]")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SYMBOL = re.compile(
    r"(?P<name>agent_features|gap|graph|labels|n_clusters|noise_scale|param_norm|theta_star|estimated)"
    r"|gap/(?P<divisor>[0-9]+(\.[0-9]+)?)"
)
_GIVEN_TO_POLICIES = ("self", "n_agents", "dim", "alpha", "seed")
_GIVEN_TO_ENVIRONMENTS = ("self", "seed")


class SpecError(ValueError):
    """A spec that cannot be run as written, with one line per error."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


Fail = Callable[[str, str], None]
"""Records an error in a key."""


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

    The values "agent_features", "gap", "gap/N" (N a number), "graph", "labels", "n_clusters", "noise_scale"
    (the largest if agents differ), "param_norm" and "theta_star" stand for those of the run's environment;
    "estimated" stands for None, which tells a policy to estimate the value itself.
    """

    id: str
    policy: str
    label: str = ""
    parameters: Parameters = {}
    sweep: dict[str, tuple[Scalar, ...]] = {}
    """Values of parameters to try, α included: `load_spec` makes a method for each combination."""
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
    """The title of its report."""
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


def load_spec(path: str | Path, *, seed: int | None = None) -> ExperimentSpec:
    """Read and check a spec; `seed` replaces the one in the file."""
    path = Path(path)
    return parse_spec(path.read_bytes(), source=str(path), seed=seed)


def parse_spec(text: bytes, *, source: str, seed: int | None = None) -> ExperimentSpec:
    """Decode and check the text of a spec; `source` names it in errors. All errors are found at once."""
    try:
        content = msgspec.toml.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{source}: {error}") from None
    problems: list[str] = []

    def fail(key: str, message: str) -> None:
        problems.append(f"{source}: {key}: {message}")

    environments = _tables(content, "environments", EnvironmentSpec, fail)
    methods = _tables(content, "methods", MethodSpec, fail)
    spec = _converted(content, ExperimentSpec, fail)
    if spec is not None:
        spec = msgspec.structs.replace(spec, source=source, seed=spec.seed if seed is None else seed)
    # The parts that could be decoded are checked, too.
    checked = spec or ExperimentSpec(name="", horizon=1, runs=1, alphas=(1.0,))
    _check(checked, environments, methods, fail)
    if problems or spec is None:
        raise SpecError(*problems)
    return _completed(spec, [each for each in environments if each], [each for each in methods if each])


def _tables(content: dict[str, Any], key: str, kind: type[Part], fail: Fail) -> list[Part | None]:
    """The entries of a list of tables; None in place of those with errors."""
    listed = content.pop(key, [])
    if not (isinstance(listed, list) and all(isinstance(each, dict) for each in listed)):
        fail(key, f"must be tables, each under a line [[{key}]]")
        return [None]
    return [_converted(each, kind, _below(fail, f"{key}[{index}]")) for index, each in enumerate(listed)]


def _converted(content: dict[str, Any], kind: type[Part], fail: Fail) -> Part | None:
    """A table of the file as a struct; None, with all errors recorded, if it cannot be one."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    values, is_whole = {}, True
    for name, value in content.items():
        if name not in known:
            fail(name, f"unknown key; {suggestion(name, known)}")
            is_whole = False
            continue
        try:
            values[name] = msgspec.convert(value, known[name].type)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at ")
            fail(name + place.strip("`").removeprefix("$"), message)
            is_whole = False
    for name, field in known.items():
        if field.required and name not in content:
            fail(name, "missing")
            is_whole = False
    return kind(**values) if is_whole else None


def _completed(
    spec: ExperimentSpec, environments: Sequence[EnvironmentSpec], given: Sequence[MethodSpec]
) -> ExperimentSpec:
    """The whole spec, with sweeps as methods, and a label for each: its policy's, unless another has it."""
    methods = [each for method in given for each in _swept(method)]
    labels = [_usual_label(method) for method in methods]
    for index, method in enumerate(methods):
        if not method.label:
            label = labels[index] if labels.count(labels[index]) == 1 else f"{labels[index]} ({method.id})"
            methods[index] = msgspec.structs.replace(method, label=label)
    completed = msgspec.structs.replace(spec, environments=tuple(environments), methods=tuple(methods))
    check_spec(completed)  # the ids of swept methods are new
    return completed


def _usual_label(method: MethodSpec) -> str:
    return method.label or str(getattr(find_policy(method.policy), "label", "")) or method.id


def _swept(method: MethodSpec) -> list[MethodSpec]:
    """A method for each combination of the values that it sweeps."""
    sweep = dict(method.sweep)
    alphas = tuple(float(alpha) for alpha in sweep.pop("alpha", ())) or method.alphas
    found = []
    for values in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, values, strict=True))
        suffix = "".join(f"-{name}{_ODD.sub('', _value_text(value))}" for name, value in chosen.items())
        said = "".join(f" {GREEK.get(name, name)}={_value_text(value)}" for name, value in chosen.items())
        found.append(
            msgspec.structs.replace(
                method,
                id=method.id + suffix,
                label=_usual_label(method) + said if said else method.label,
                parameters={**method.parameters, **chosen},
                alphas=alphas,
                sweep={},
            )
        )
    return found


def read_spec(path: Path) -> ExperimentSpec:
    """The spec of stored results, which was checked when they were made. No code that it names is loaded."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=ExperimentSpec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: {error}") from None


def check_spec(spec: ExperimentSpec) -> None:
    """Raise a `SpecError` with all errors that can be found without building an environment."""
    problems: list[str] = []

    def fail(key: str, message: str) -> None:
        problems.append(f"{spec.source or spec.name}: {key}: {message}")

    _check(spec, spec.environments, spec.methods, fail)
    if problems:
        raise SpecError(*problems)


def _check(
    spec: ExperimentSpec,
    environments: Sequence[EnvironmentSpec | None],
    methods: Sequence[MethodSpec | None],
    fail: Fail,
) -> None:
    """Record errors in a spec of these entries; errors in entries that are None are recorded already."""
    if spec.seed < 0:
        fail("seed", f"must be at least 0, got {spec.seed}")
    if spec.seed + spec.runs - 1 > LARGEST_SEED:
        fail("seed", f"must be at most 2**63 − {spec.runs} for {spec.runs} runs, got {spec.seed}")
    if spec.pulling not in get_args(PullingWord):
        fail("pulling", f"must be one of {', '.join(get_args(PullingWord))}, got {spec.pulling!r}")
    _check_delay(spec.delay, fail)
    _check_ids("environments", [item.id if item else None for item in environments], fail)
    _check_ids("methods", [item.id if item else None for item in methods], fail)
    _check_alphas(spec.alphas, fail)
    compared = [method.id for method in methods if method and method.group == MAIN]
    if spec.reference and spec.reference not in compared and None not in methods:
        fail("reference", f"unknown method {spec.reference!r}; {suggestion(spec.reference, compared)}")
    for index, environment in enumerate(environments):
        if environment is not None:
            _check_environment(environment, _below(fail, f"environments[{index}]"))
            _check_delay(environment.delay or 0, _below(fail, f"environments[{index}]"))
    known = None if None in environments else [item.id for item in environments if item]
    for index, method in enumerate(methods):
        if method is not None:
            _check_method(method, spec.alphas, known, _below(fail, f"methods[{index}]"))


def directory_name(spec: ExperimentSpec) -> str:
    """The spec's name, checked to be a plain directory name that cannot lead elsewhere."""
    name = spec.name
    if name in ("", ".", "..") or len(name) > LONGEST_ID or not name.isprintable() or set(name) & set("/\\"):
        raise SpecError(
            f"{spec.source or spec.name}: name: cannot name the directory of the results; change it or use "
            f"--out, got {name[:LONGEST_ID]!r}"
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
    # An environment that is not random has no seed, and is the same in every run.
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
    """The parameters, with "gap" and the other words of `MethodSpec` replaced by values of `environment`."""
    return {key: _resolve_one(key, value, environment) for key, value in parameters.items()}


def value_problems(spec: ExperimentSpec, environment: EnvironmentSpec, built: Environment) -> list[str]:
    """Which methods that run in this environment cannot be built with their values, and why."""
    problems: dict[str, str] = {}
    for cell in cells(spec):
        if cell.environment.id == environment.id and cell.method.id not in problems:
            try:
                policy = build_policy(cell.method, cell.alpha, built, spec.seed)
                if getattr(policy, "clicks", False) and built.noise == "gaussian" and built.noise_bound > 0.0:
                    raise ValueError('rewards="binary" needs rewards of 0 and 1')
            except ValueError as error:
                place = f"{spec.source or spec.name}: method {cell.method.id!r}"
                problems[cell.method.id] = f"{place}: cannot be built for {environment.id}: {error}"
    return list(problems.values())


def _resolve_one(key: str, value: Any, environment: Environment) -> Any:
    match = _SYMBOL.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    if match["name"] == "estimated":
        return None
    if match["name"] in ("labels", "n_clusters"):
        if environment.labels is None:
            raise ValueError(f"{key} = {value!r} needs an environment with known clusters")
        return environment.labels if match["name"] == "labels" else len(np.unique(environment.labels))
    arrays = {"graph": "a graph", "theta_star": "true parameters", "agent_features": "described agents"}
    if (wanted := arrays.get(match["name"])) is not None:
        if (found := getattr(environment, match["name"], None)) is None:
            raise ValueError(f"{key} = {value!r} needs an environment with {wanted}")
        return found
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


def _check_ids(key: str, ids: Sequence[str | None], fail: Fail) -> None:
    if not ids:
        fail(key, "the grid is empty: at least one is needed")
    for index, name in enumerate(ids):
        if name is None:
            continue
        if not _ID.fullmatch(name):
            fail(f"{key}[{index}].id", f"must consist of letters, digits and . _ + -, got {name!r}")
        if len(name) > LONGEST_ID:
            fail(f"{key}[{index}].id", f"must have at most {LONGEST_ID} characters, got {len(name)}")
        for other in ids[:index]:
            if name == other:
                fail(f"{key}[{index}].id", f"{name!r} is used twice")
            elif other and name.casefold() == other.casefold():  # figures have one file on some systems
                fail(f"{key}[{index}].id", f"{name!r} and {other!r} differ in case only")


def _check_environment(environment: EnvironmentSpec, fail: Fail) -> None:
    try:
        built_by = find_environment(environment.kind)
    except ValueError as error:
        fail("kind", str(error))
    except ImportError as error:
        if not environment.optional:
            fail("kind", f"{environment.kind!r} needs an optional package: {error}")
    else:
        what = f"environment {environment.kind!r}"
        _check_names(
            built_by, environment.parameters, _GIVEN_TO_ENVIRONMENTS, what, _below(fail, "parameters")
        )


def _check_method(
    method: MethodSpec, alphas: tuple[float, ...], environments: Sequence[str] | None, fail: Fail
) -> None:
    """Record errors in a method, given the α and the environments (if known) of its spec."""
    try:
        built_by = find_policy(method.policy)
    except (ValueError, ImportError) as error:
        fail("policy", str(error))
    else:
        swept = {name: values for name, values in method.sweep.items() if name != "alpha"}
        named: Parameters = {**method.parameters, **dict.fromkeys(swept, "")}
        what = f"policy {method.policy!r}"
        _check_names(built_by, named, _GIVEN_TO_POLICIES, what, _below(fail, "parameters"))
    for name, values in method.sweep.items():
        if not values or len(set(values)) < len(values):
            fail(f"sweep.{name}", f"must be a list of different values, got {list(values)}")
        if name in method.parameters or (name == "alpha" and method.alphas is not None):
            fail(f"sweep.{name}", "is given as a single value, too")
    swept_alphas = method.sweep.get("alpha", ())
    if any(isinstance(alpha, bool | str) for alpha in swept_alphas):
        fail("sweep.alpha", f"must be numbers, got {list(swept_alphas)}")
    else:
        _check_alphas(tuple(map(float, swept_alphas)), _below(fail, "sweep"), "alpha")
    if not swept_alphas and not (alphas if method.alphas is None else method.alphas):
        fail("alphas", "the grid is empty: neither the method nor the spec has any")
    if method.alphas is not None:
        _check_alphas(method.alphas, fail)
    if method.environments is not None:
        for name in method.environments:
            if environments is not None and name not in environments:
                fail("environments", f"unknown environment {name!r}; {suggestion(name, environments)}")
        if not method.environments:
            fail("environments", "the grid is empty: leave the key out to run in all environments")


def _check_names(built_by: type, parameters: Parameters, given: Iterable[str], what: str, fail: Fail) -> None:
    """Compare parameters with the constructor's. Its `**rest` does not count: typos would vanish in it."""
    named = {
        name: parameter
        for name, parameter in inspect.signature(built_by).parameters.items()
        if name not in given and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    for name in parameters:
        if name not in named:
            fail(name, f"unknown parameter of {what}; {suggestion(name, named)}")
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in parameters:
            fail(name, f"missing; {what} needs it")


def _check_delay(delay: Delay, fail: Fail) -> None:
    try:
        check_delay(delay)
    except ValueError as error:
        fail("delay", str(error))


def _check_alphas(alphas: tuple[float, ...], fail: Fail, key: str = "alphas") -> None:
    for alpha in alphas:
        if not (math.isfinite(alpha) and alpha >= 0.0):
            fail(key, f"must be finite numbers of at least 0, got {alpha}")
    if len(set(alphas)) < len(alphas):
        fail(key, f"must differ from each other, got {list(alphas)}")


def _below(fail: Fail, place: str) -> Fail:
    return lambda key, text: fail(f"{place}.{key}", text)


def _value_text(value: Scalar) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _alpha_text(alpha: float) -> str:
    # Two digits where they are exact; otherwise two values could share a file name.
    short = f"{alpha:.2f}"
    return short if float(short) == alpha else repr(float(alpha))
