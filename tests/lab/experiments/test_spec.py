"""Specs: what a file may say, and what is said of a file that is wrong."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shoal.core.policies.registry import find_policy
from shoal.lab.environments.registry import find_environment, make_environment
from shoal.lab.experiments import spec as specs
from shoal.lab.experiments.spec import SpecError, cells, load_spec, parse_spec

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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            change('"bass"', '"bas"'),
            "tiny.toml: methods[2].policy: unknown policy 'bas'; did you mean 'bass'?",
        ),
        (
            change("delta = 0.1", "delt = 0.1"),
            "tiny.toml: methods[2].parameters.delt: unknown parameter of policy 'bass'; did you mean 'de",
        ),
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
            "tiny.toml: environments[1].kind: unknown environment 'gauss'; did you mean 'gaussian'?",
        ),
        (change("n_arms = 4", "n_arm = 4"), "tiny.toml: environments[1].parameters.n_arm: unknown parameter"),
        (change(", angle = 0.5", ""), "tiny.toml: environments[0].parameters.angle: missing"),
        (
            change('["near"]', '["nera"]'),
            "tiny.toml: methods[1].environments: unknown environment 'nera'; did you mean 'near'?",
        ),
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
    joined = make_environment("graph_clusters", n_agents=6, dim=3, n_clusters=2, angle=0.5, seed=0)
    assert specs.resolve({"a": "graph"}, joined)["a"] is joined.graph
    known = make_environment("described_agents", n_agents=6, dim=3, n_clusters=2, seed=0)
    features = specs.resolve({"agent_features": "agent_features"}, known)
    assert features["agent_features"] is known.agent_features
    method = specs.MethodSpec(
        id="m", policy="cluster_mixture", parameters={"agent_features": "agent_features"}
    )
    assert specs.build_policy(method, 0.6, known, 0).parameters["agent_dim"] == 4


def test_symbols_need_an_environment_that_has_them() -> None:
    from shoal.lab.environments.base import Environment

    bare = Environment(np.eye(2), mean_rewards=np.eye(2))
    for value in ("gap/4", "graph", "labels", "n_clusters", "param_norm", "theta_star", "agent_features"):
        with pytest.raises(ValueError, match="needs an environment with"):
            specs.resolve({"x": value}, bare)
    told = Environment(np.eye(2), mean_rewards=np.eye(2), param_norm=3.0)  # as data sets are
    assert specs.resolve({"x": "param_norm"}, told) == {"x": 3.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            change("delta = 0.1", "delta = 2.0"),
            "tiny.toml: method 'bass-d0.1': cannot be built for near: delta must be",
        ),
        (
            change('"gap/4"', '"labels"'),
            "tiny.toml: method 'club-g4': cannot be built for near: gamma must be a number",
        ),
        (
            change("delta = 0.1", 'rewards = "binary"'),
            "tiny.toml: method 'bass-d0.1': cannot be built for near: rewards=\"binary\" needs rewards of 0",
        ),
    ],
)
def test_values_are_checked_against_the_environment(text: str, message: str) -> None:
    spec = parse(text)
    environment = spec.environments[0]
    built = specs.build_environment(environment, spec.seed)
    (problem,) = specs.value_problems(spec, environment, built)
    assert problem.startswith(message)


def test_all_errors_are_found_at_once() -> None:
    wrong = TINY.replace("horizon = 200", "horizont = 200").replace("seed = 7", 'seed = "7"')
    wrong = wrong.replace('"gaussian"', '"gausian"').replace("angle = 0.5", "angel = 0.5")
    wrong = wrong.replace("label =", "lable =").replace('"bass"', '"bas"').replace("[0.125]", "[nan, -1]")
    with pytest.raises(SpecError) as caught:
        parse(wrong)
    assert [problem.removeprefix("tiny.toml: ") for problem in caught.value.problems] == [
        "methods[1].lable: unknown key; did you mean 'label'?",
        "horizont: unknown key; did you mean 'horizon'?",
        "seed: Expected `int`, got `str`",
        "horizon: missing",
        "environments[0].parameters.angel: unknown parameter of environment 'synthetic'; "
        "did you mean 'angle'?",
        "environments[0].parameters.angle: missing; environment 'synthetic' needs it",
        "environments[1].kind: unknown environment 'gausian'; did you mean 'gaussian'?",
        "methods[2].policy: unknown policy 'bas'; did you mean 'bass'?",
        "methods[2].alphas: must be finite numbers of at least 0, got nan",
        "methods[2].alphas: must be finite numbers of at least 0, got -1.0",
    ]


def test_names_may_be_written_with_either_line() -> None:
    names = [find_policy(name) for name in ("cluster-mixture", "cluster_mixture")]
    assert names[0] is names[1]
    kinds = [find_environment(name) for name in ("changing-arms", "changing_arms")]
    assert kinds[0] is kinds[1]


SWEPT = """
[[methods]]
id = "club"
policy = "club"
sweep = { gamma = ["gap/4", 0.5], ridge = [1.0, 2.0], alpha = [0.3, 2] }
"""


def test_a_sweep_is_a_method_for_each_combination() -> None:
    start = TINY.partition("[[methods]]")[0]
    swept = parse(start + SWEPT)
    assert [(method.id, method.label) for method in swept.methods] == [
        ("club-gammagap4-ridge1", "CLUB γ=gap/4 ridge=1"),
        ("club-gammagap4-ridge2", "CLUB γ=gap/4 ridge=2"),
        ("club-gamma0.5-ridge1", "CLUB γ=0.5 ridge=1"),
        ("club-gamma0.5-ridge2", "CLUB γ=0.5 ridge=2"),
    ]
    assert swept.methods[1].parameters == {"gamma": "gap/4", "ridge": 2.0}
    assert {method.alphas for method in swept.methods} == {(0.3, 2.0)}
    assert len(cells(swept)) == 2 * 4 * 2
    assert parse(specs.to_toml(swept)) == swept
    only_alpha = parse(start + SWEPT.replace('gamma = ["gap/4", 0.5], ridge = [1.0, 2.0], ', ""))
    assert [(method.id, method.label) for method in only_alpha.methods] == [("club", "CLUB")]


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (
            "{ gama = [1] }",
            "methods[0].parameters.gama: unknown parameter of policy 'club'; did you mean 'ga",
        ),
        ("{ gamma = [] }", "methods[0].sweep.gamma: must be a list of different values, got []"),
        ("{ gamma = [1, 1] }", "methods[0].sweep.gamma: must be a list of different values, got [1, 1]"),
        ("{ alpha = [0.1, -1] }", "methods[0].sweep.alpha: must be finite numbers of at least 0, got -1.0"),
        ('{ alpha = ["gap"] }', "methods[0].sweep.alpha: must be numbers, got ['gap']"),
        ("{ gamma = 1 }", "methods[0].sweep[...]: Expected `array`, got `int`"),
        ("{ gamma = [1] }\nparameters = { gamma = 2 }", "methods[0].sweep.gamma: is given as a single value"),
        ('{ gamma = ["a:b", "ab"] }', "methods[1].id: 'club-gammaab' is used twice"),
    ],
)
def test_a_wrong_sweep_is_named(sweep: str, message: str) -> None:
    start = TINY.partition("[[methods]]")[0]
    text = f'{start}\n[[methods]]\nid = "club"\npolicy = "club"\nsweep = {sweep}\n'
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"tiny.toml: {message}")


def test_a_label_is_by_default_the_policy_s_own_unless_others_have_it() -> None:
    text = TINY + '[[methods]]\nid = "bass-d0.9"\npolicy = "bass"\nparameters = { delta = 0.9 }\n'
    named = f'[[methods]]\nid = "mine"\npolicy = "{__name__}:Needy"\nparameters = {{ n_wishes = 3 }}\n'
    assert [method.label for method in parse(text + named).methods] == [
        *("Ind", "CLUB", "BASS (bass-d0.1)", "BASS (bass-d0.9)", "mine"),
    ]
