"""What a cell depends on, and its key: the hash by which its results are found again.

Titles, ids and the rest of the grid are not part of it, so a grid can grow. Neither are seeds, which are rows
of the cell.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from shoal.core.jit.sources import Sources
from shoal.core.policies.registry import find_policy
from shoal.core.registry import load
from shoal.lab.environments.registry import find_environment
from shoal.lab.environments.sources import content_hash
from shoal.lab.experiments.spec import SCHEMA_VERSION, Cell, Delay, ExperimentSpec
from shoal.lab.simulation import simulate

Facts = dict[str, Any]
"""What the numbers of a cell depend on, as plain data; `code` has a hash for each of `CODE`."""
_REFERENCE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_FILE = "file "
CODE = ("simulation", "environment", "policy")


def cell_facts(spec: ExperimentSpec, cell: Cell, data: Sequence[str | PathLike[str]] = ()) -> Facts:
    """What the numbers of a cell depend on; `data` are the files that its environment is made from."""
    delay = delay_of(spec, cell)
    environment, method = find_environment(cell.environment.kind), find_policy(cell.method.policy)
    takes_alpha = "alpha" in inspect.signature(method).parameters
    return {
        "draws": SCHEMA_VERSION,
        "horizon": spec.horizon,
        "points": spec.points,
        "pulling": cell.environment.pulling or spec.pulling,
        "delay": _plain(delay),
        "environment": _name(environment),
        "environment parameters": _plain(cell.environment.parameters),
        "data": sorted(content_hash(file) for file in data),
        "policy": _name(method),
        "policy parameters": _plain(cell.method.parameters),
        "alpha": _plain(cell.alpha) if takes_alpha else None,
        "code": {name: sources.digest for name, sources in cell_sources(cell, delay).items()},
    }


def delay_of(spec: ExperimentSpec, cell: Cell) -> Delay:
    """How late rewards are in a cell."""
    return spec.delay if cell.environment.delay is None else cell.environment.delay


def cell_sources(cell: Cell, delay: Delay) -> dict[str, Sources]:
    """The code that plays a cell, by the names of `CODE`."""
    named = _functions([delay, *cell.environment.parameters.values()])
    environment = (find_environment(cell.environment.kind), *named)
    policy = (find_policy(cell.method.policy), *_functions(cell.method.parameters.values()))
    found = _simulation(), _called_by_it(environment), _called_by_it(policy)
    return dict(zip(CODE, found, strict=True))


def cell_key(facts: Facts) -> str:
    """The hash of what a cell depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def code_digest(function: Any) -> str:
    """Hash of the code that a function reaches."""
    return Sources([function]).digest


def differences(old: Facts, new: Facts) -> list[str]:
    """What differs between the settings of two cells, in words; their code is not compared."""
    said = []
    for name in new:
        if name == "code" or old.get(name) == new[name]:
            continue
        if name == "data":
            said.append("other data")
        elif isinstance(new[name], dict) and isinstance(old.get(name), dict):
            before, now = old[name], new[name]
            for key in sorted(before.keys() | now.keys()):
                if before.get(key) != now.get(key):
                    is_file = all(str(each.get(key)).startswith(_FILE) for each in (before, now))
                    values = f"{key} {_said(now, key)}, was {_said(before, key)}"
                    said.append(f"the content of {key}" if is_file else values)
        else:
            said.append(f"{name} {new[name]}, was {old.get(name)}")
    return said


def same_but_code(old: Facts, new: Facts) -> bool:
    """Whether two cells differ at most in the code that plays them."""
    return {**old, "code": None} == {**new, "code": None}


def _said(parameters: Mapping[str, Any], key: str) -> str:
    return repr(parameters[key]) if key in parameters else "by default"


@cache  # the code as imported, not as edited later
def _simulation() -> Sources:
    return Sources([simulate])


@cache
def _called_by_it(roots: tuple[Any, ...]) -> Sources:
    return Sources(roots, caller=_simulation())


def _functions(values: Any) -> list[Any]:
    """The functions among parameters that are named as `module:function`."""
    texts = (value for value in values if isinstance(value, str))
    return [load(text) for text in texts if _REFERENCE.fullmatch(text)]


def _name(found: type) -> str:
    return f"{found.__module__}:{found.__qualname__}"


def _plain(value: Any) -> Any:
    """A value as JSON has it; a file stands for its content."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1 and 1.0 are the same setting
    if isinstance(value, str) and len(value) < 4096 and Path(value).is_file():
        return f"{_FILE}{content_hash(value)[:16]}"
    return value
