"""Specs: what a file may say, and what is said of a file that is wrong."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shoal.lab.environments.registry import make_environment
from shoal.lab.experiments import spec as specs
from shoal.lab.experiments.spec import SpecError, cells, load_spec, parse_spec, spec_hash

TINY = """
name = "tiny"
horizon = 200
runs = 3
seed = 7
points = 20
alphas = [0.1, 1.0]

[[environments]]
id = "near"
title = "Near"
kind = "synthetic"
parameters = { n_agents = 6, dim = 3, n_clusters = 2, angle = 0.5 }

[[environments]]
id = "far"
kind = "gaussian"
parameters = { n_agents = 6, dim = 3, n_clusters = 2, n_arms = 4 }

[[methods]]
id = "ind"
policy = "independent"

[[methods]]
id = "club-g4"
label = "CLUB"
policy = "club"
parameters = { gamma = "gap/4" }
environments = ["near"]

[[methods]]
id = "bass-d0.1"
policy = "bass"
parameters = { delta = 0.1 }
alphas = [0.125]
group = "gamma"
"""


class Needy:
    """A policy with a parameter that has no default."""

    def __init__(self, n_agents: int, dim: int, *, n_wishes: int) -> None: ...

    def select(self, agent: int, arms: object) -> int:
        return 0

    def update(self, agent: int, x: object, reward: float) -> None: ...


def parse(text: str) -> specs.ExperimentSpec:
    return parse_spec(text.encode(), source="tiny.toml")


def change(old: str, new: str) -> str:
    assert old in TINY
    return TINY.replace(old, new)


def test_cells_are_the_grid_policy_by_policy_with_overrides_and_restrictions() -> None:
    assert [cell.id for cell in cells(parse(TINY))] == [
        "near/ind/a0.10",
        "near/ind/a1.00",
        "far/ind/a0.10",
        "far/ind/a1.00",
        "near/club-g4/a0.10",
        "near/club-g4/a1.00",
        "near/bass-d0.1/a0.125",
        "far/bass-d0.1/a0.125",
    ]
    assert cells(parse(TINY))[0].filename == "near__ind__a0.10.parquet"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            change('"bass"', '"bas"'),
            "tiny.toml: methods[2].policy: unknown policy 'bas'; choose from independent, ",
        ),
        (change("delta = 0.1", "delt = 0.1"), "tiny.toml: methods[2].parameters.delt: unknown parameter"),
        (
            change("parameters = { delta = 0.1 }", "").replace('"bass"', f'"{__name__}:Needy"'),
            "tiny.toml: methods[2].parameters.n_wishes: missing",
        ),
        (
            change('policy = "independent"', 'policy = "independent"\nparameters = { own = 1 }'),
            "tiny.toml: methods[0].parameters.own: unknown parameter",
        ),
        (change('policy = "independent"', ""), "tiny.toml: methods[0].policy: missing"),
        (change("label =", "lable ="), "tiny.toml: methods[1].lable: unknown key"),
        (change("horizon = 200", "horizont = 200"), "tiny.toml: horizont: unknown key"),
        (change("horizon = 200", "horizon = 0"), "tiny.toml: horizon: Expected `int` >= 1"),
        (change("runs = 3", 'runs = "3"'), "tiny.toml: runs: Expected `int`"),
        (change("seed = 7", "seed = -7"), "tiny.toml: seed: Expected `int` >= 0"),
        (
            change('"gaussian"', '"gauss"'),
            "tiny.toml: environments[1].kind: unknown environment 'gauss'; choose from syn",
        ),
        (change("n_arms = 4", "n_arm = 4"), "tiny.toml: environments[1].parameters.n_arm: unknown parameter"),
        (change(", angle = 0.5", ""), "tiny.toml: environments[0].parameters.angle: missing"),
        (change('["near"]', '["nera"]'), "tiny.toml: methods[1].environments: unknown environment 'nera'"),
        (change('["near"]', "[]"), "tiny.toml: methods[1].environments: the grid is empty"),
        (change("[0.125]", "[]"), "tiny.toml: methods[2].alphas: the grid is empty"),
        (change("[0.1, 1.0]", "[]"), "tiny.toml: methods[0].alphas: the grid is empty"),
        (change("[0.1, 1.0]", "[0.1, 0.1]"), "tiny.toml: alphas: must differ"),
        (change("[0.1, 1.0]", "[-0.1]"), "tiny.toml: alphas: must be finite numbers of at least 0, got -0.1"),
        (change("[0.125]", "[nan]"), "tiny.toml: methods[2].alphas: must be finite"),
        (change('id = "far"', 'id = "near"'), "tiny.toml: environments[1].id: 'near' is used twice"),
        (change('id = "ind"', 'id = "../ind"'), "tiny.toml: methods[0].id: must consist of"),
        (TINY.partition("[[methods]]")[0], "tiny.toml: methods: the grid is empty"),
        ('name = "x"\nhorizon = 1\nruns = 1', "tiny.toml: environments: the grid is empty"),
        (change("name =", "name"), "tiny.toml: "),
        ('pulling = "now"\n' + TINY, "tiny.toml: pulling: Invalid enum value 'now'"),
        (
            change('title = "Near"', 'pulling = "now"'),
            "tiny.toml: environments[0].pulling: Invalid enum value 'now'",
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


def test_what_is_written_out_is_read_back_whatever_it_holds() -> None:
    title = 'quotes " and \\, tabs \t, lines \n, \x7f, Δ and 🐟'
    strange = msgspec.structs.replace(parse(TINY).environments[0], title=title)
    spec = msgspec.structs.replace(parse(TINY), environments=(strange, *parse(TINY).environments[1:]))
    assert parse(specs.to_toml(spec)) == spec


def test_the_hash_knows_what_determines_the_numbers_and_nothing_else() -> None:
    base = spec_hash(parse(TINY))
    for same in (change('"Near"', '"Close"'), change('"CLUB"', '"Club"'), change('"tiny"', '"small"')):
        assert spec_hash(parse(same)) == base
    others = [
        change("horizon = 200", "horizon = 201"),
        change("runs = 3", "runs = 4"),
        change("seed = 7", "seed = 8"),
        change("points = 20", "points = 21"),
        change("[0.1, 1.0]", "[0.1, 1.5]"),
        change("[0.125]", "[0.25]"),
        change("angle = 0.5", "angle = 0.6"),
        change("delta = 0.1", "delta = 0.2"),
        change('"gap/4"', '"gap/2"'),
        change('["near"]', '["far"]'),
        change('group = "gamma"', ""),
        'pulling = "synchronous"\n' + TINY,
        change('title = "Near"', 'title = "Near"\npulling = "zipf"'),
    ]
    assert len({base, *(spec_hash(parse(text)) for text in others)}) == len(others) + 1


def test_the_hash_changes_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = spec_hash(parse(TINY))
    monkeypatch.setattr(specs, "code_fingerprint", lambda kinds: "another")
    assert spec_hash(parse(TINY)) != before


def test_the_seed_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    assert load_spec(path).seed == 7
    assert load_spec(path, seed=3).seed == 3
    with pytest.raises(SpecError, match="seed: must be at least 0"):
        load_spec(path, seed=-1)


def test_symbols_stand_for_what_they_are_in_the_environment() -> None:
    world = make_environment("synthetic", n_agents=6, dim=3, n_clusters=2, angle=0.5, seed=0)
    given = {"a": "gap", "b": "gap/4", "c": "gap/2.5", "d": "n_clusters", "e": "beta", "f": "labelsx", "g": 3}
    gap = 2 * math.sin(0.25)
    found = specs.resolve(given, world)
    assert found == {
        "a": pytest.approx(gap),
        "b": gap / 4,
        "c": gap / 2.5,
        "d": 2,
        "e": "beta",
        "f": "labelsx",
        "g": 3,
    }
    np.testing.assert_array_equal(specs.resolve({"labels": "labels"}, world)["labels"], [0, 0, 0, 1, 1, 1])
    wide = make_environment("gaussian", n_agents=6, dim=3, n_clusters=2, n_arms=4, noise_scale=2.5, seed=0)
    assert wide.theta_star is not None
    assert specs.resolve({"a": "noise_scale", "b": "param_norm"}, wide) == {
        "a": 2.5,
        "b": max(np.linalg.norm(theta) for theta in wide.theta_star),
    }


def test_symbols_need_an_environment_that_has_them() -> None:
    from shoal.lab.environments.base import Environment

    bare = Environment(np.eye(2), mean_rewards=np.eye(2))
    for value in ("gap/4", "labels", "n_clusters", "param_norm"):
        with pytest.raises(ValueError, match="needs an environment with"):
            specs.resolve({"x": value}, bare)
    told = Environment(np.eye(2), mean_rewards=np.eye(2), param_norm=3.0)  # as data sets are
    assert specs.resolve({"x": "param_norm"}, told) == {"x": 3.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            change("delta = 0.1", "delta = 2.0"),
            "tiny.toml: methods[2]: cannot be built for near: delta must be",
        ),
        (
            change('"gap/4"', '"labels"'),
            "tiny.toml: methods[1]: cannot be built for near: gamma must be a number",
        ),
    ],
)
def test_values_are_checked_against_the_environment(text: str, message: str) -> None:
    spec = parse(text)
    environment = spec.environments[0]
    with pytest.raises(SpecError) as caught:
        specs.check_values(spec, environment, specs.build_environment(environment, spec.seed))
    assert str(caught.value).startswith(message)
