"""What results were computed by: every function that a run calls is found, and a change is named."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.core.jit.sources import Sources

CALLED = """
import json, sys
import shoal
from shoal.core.jit.sources import Sources
from shoal.core.policies.registry import BUILT_IN, policy_class
from shoal.lab.environments.registry import find_environment
from shoal.lab.experiments.fingerprint import _called_by_it, _simulation

WORLDS = {
    "synthetic": {"n_clusters": 2, "angle": 1.0},
    "unit": {"n_clusters": 2, "noise": "bernoulli", "positive": True},
    "gaussian": {"n_clusters": 2},
    "changing_arms": {"n_clusters": 2},
    "jumping_agents": {"n_clusters": 2, "angle": 1.0, "last_jump": 20},
    "continuum": {},
}
seen = set()

def watch(frame, event, argument):
    module = frame.f_globals.get("__name__", "")
    if event == "call" and module.startswith("shoal."):
        seen.add(f"{module}.{frame.f_code.co_qualname.partition('.<')[0]}")

missed = {}
for kind, more in WORLDS.items():
    world_class = find_environment(kind)
    for name in BUILT_IN if kind == "synthetic" else ["bass"]:
        found = policy_class(name)
        typical = {"labels": [0, 0, 0, 1, 1, 1]} if name == "oracle" else {}
        for delay in (0, ("geometric", 3)):
            seen.clear()
            sys.setprofile(watch)
            world = world_class(n_agents=6, dim=3, seed=0, **more)
            policy = found(6, 3, seed=0, **typical)
            shoal.simulate(policy, world, horizon=150, seed=0, delay=delay, points=5)
            sys.setprofile(None)
            listed = [_simulation(), _called_by_it((world_class,)), _called_by_it((found,))]
            parts = [part for sources in listed for part in sources.parts]
            names = {part.partition("#")[0].partition(".<")[0] for part in parts}
            calls = {each for each in seen if not each.startswith("shoal.core.jit.")}
            calls = {each for each in calls if not each.endswith(".__create_fn__")}  # made by dataclasses
            assert len(calls) > 40, calls
            missed |= {each: [kind, name] for each in calls - names}
print(json.dumps(missed))
"""
"""Plays without compiling, so that Python sees every call."""


def test_every_function_that_a_run_calls_is_found() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLED],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}, done.stdout


# What is a change


RATE, TABLE = 2.0, {"low": 1}


def helper(x: float) -> float:
    return x + RATE


class Base:
    limit = 3

    def start(self) -> int:
        return self.limit


class Own(Base):
    """A class of somebody else."""

    label = "Own"

    def __init__(self, *, size: int = 4) -> None:
        self.size = size

    @property
    def twice(self) -> float:
        return 2 * helper(self.size)

    @functools.cached_property
    def low(self) -> int:
        return TABLE["low"]

    def unnamed(self) -> int:
        return getattr(self, "sta" + "rt")()  # type: ignore[no-any-return]


def longer(x: float) -> float:
    """Another text, and a remark."""
    # The same code.
    return x + RATE


NAME = __name__


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda set_: set_(sys.modules[NAME], "RATE", 3.0), [f"{NAME}.RATE"]),
        (lambda set_: set_(sys.modules[NAME], "TABLE", {"low": 2}), [f"{NAME}.TABLE"]),
        (lambda set_: set_(helper, "__code__", (lambda x: x - RATE).__code__), [f"{NAME}.helper"]),
        (lambda set_: [set_(helper, name, getattr(longer, name)) for name in ("__code__", "__doc__")], []),
        (lambda set_: set_(Base, "limit", 4), [f"{NAME}.Base.limit"]),
        (lambda set_: set_(Base.start, "__code__", Own.unnamed.__code__), [f"{NAME}.Base.start"]),
        (lambda set_: set_(Own.__init__, "__kwdefaults__", {"size": 5}), [f"{NAME}.Own.__init__"]),
        (lambda set_: set_(Own, "label", "Other"), []),
        (lambda set_: set_(Own, "__doc__", "Other"), []),
        (lambda set_: set_(sys.modules[NAME], "NAME", NAME), []),
    ],
)
def test_a_change_is_named_and_what_is_shown_is_none(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None], named: list[str]
) -> None:
    before = Sources([Own])
    change(monkeypatch.setattr)
    after = Sources([Own])
    changed = {
        name
        for name in before.parts.keys() | after.parts.keys()
        if before.parts.get(name) != after.parts.get(name)
    }
    assert sorted(changed) == sorted(named)
    assert (before.digest == after.digest) == (not named)


def test_code_is_found_through_decorators_partial_calls_and_imports_inside() -> None:
    def imports() -> Any:
        from shoal.lab.metrics import f1_of_counts

        return f1_of_counts

    cached = functools.cache(helper)
    assert f"{NAME}.helper" in Sources([cached]).parts
    assert f"{NAME}.helper" in Sources([functools.partial(helper, 2.0)]).parts
    assert (
        Sources([functools.partial(helper, 2.0)]).digest == Sources([functools.partial(helper, 2.0)]).digest
    )
    assert "shoal.lab.metrics.f1_of_counts" in Sources([imports]).parts

    def solves(x: Any) -> Any:
        return np.linalg.solve(x, json.loads("[1]"))

    assert len(Sources([solves]).parts) == 1  # other packages are known by name


def test_an_edit_of_one_policy_or_of_what_no_run_calls_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from shoal.core.policies.registry import policy_class
    from shoal.core.policy.base import Policy
    from shoal.lab.rivals import club
    from shoal.lab.simulation import simulate

    def digests() -> dict[str, str]:
        simulation = Sources([simulate])
        classes = {name: Sources([policy_class(name)], simulation) for name in ("independent", "club")}
        return {"simulation": simulation.digest} | {name: each.digest for name, each in classes.items()}

    before = digests()
    monkeypatch.setattr(Policy, "save", lambda self, path: None)
    assert digests() == before
    monkeypatch.setattr(club.CLUB, "_edges", lambda self: None)
    after = digests()
    assert {name for name in before if before[name] != after[name]} == {"club"}
