"""The presets: the paper's experiments and ours, and single cells with their parameters."""

import inspect
import math

import msgspec
import pytest

from shoal.experiments import spec as specs
from shoal.experiments.spec import SpecError, cells, parse_spec, spec_hash
from shoal.paper.presets import PRESETS, is_preset, load_preset, single
from shoal.policies.registry import policy_class, policy_names


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="unknown preset 'quik'; known are quick, tables, paper, beyond"):
        load_preset("quik")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_survive_being_written_out(name: str) -> None:
    spec = load_preset(name)
    again = parse_spec(specs.to_toml(spec).encode(), source=spec.source)
    assert again == spec
    assert spec_hash(again) == spec_hash(spec)


def test_presets_are_the_paper_s_experiments() -> None:
    quick, tables, paper = map(load_preset, ("quick", "tables", "paper"))
    scenarios = {"synthetic-m3-w1", "synthetic-m3-w7"}
    assert {environment.id for environment in quick.environments} == scenarios
    assert {method.policy for method in quick.methods} == set(policy_names())
    assert {environment.id for environment in tables.environments} == scenarios
    expected = "ind oracle dynucb club-g4 club-g2 sclub-g4 sclub-g2 bass-d0.1 bass-d0.9 cmlb-g4 cmlb-g2"
    expected += " mixture mixture-best"
    assert " ".join(method.id for method in tables.methods if method.group == "main") == expected
    for spec in (tables, paper):
        assert (spec.horizon, spec.runs) == (50_000, 50)
        assert len(spec.alphas) >= 10
        assert (min(spec.alphas), max(spec.alphas)) == (0.1, 3.0)
        assert all(method.alphas == (0.1, 0.3, 0.6) for method in spec.methods if method.group == "gamma")
    angles = [
        environment.parameters["angle"]
        for environment in paper.environments
        if environment.kind == "synthetic"
    ]
    assert angles == [math.pi / 16, 7 * math.pi / 16] * 2
    sigmas = [item.parameters["noise_scale"] for item in paper.environments if item.kind == "gaussian"]
    assert sigmas == [0.5, 1.0, 2.0]
    optional = {item.id: item.parameters["fill"] for item in paper.environments if item.optional}
    assert optional == {
        "movielens": "paper",
        "movielens-tuned": "tuned",
        "yahoo-ltr": "paper",
        "yahoo-ltr-tuned": "tuned",
    }
    expected = (
        "ind club-0.1 club-1.0 sclub-0.1 sclub-1.0 cmlb-0.1 cmlb-1.0 dynucb-m5 dynucb-m20 bass-d0.1 bass-d0.9"
    )
    for environment in optional:
        found = [c.method.id for c in cells(paper) if c.environment.id == environment and c.alpha == 0.1]
        assert sorted(found) == sorted([*expected.split(), "mixture-best"])


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_can_be_had_by_its_name_alone(name: str) -> None:
    (cell,) = cells(single(name, "synthetic", alpha=0.3, horizon=10))
    assert cell.method.policy == name


@pytest.mark.parametrize("name", PRESETS)
def test_our_own_policies_are_in_every_preset_at_their_defaults_after_the_paper_s(name: str) -> None:
    spec = load_preset(name)
    fixed, searched = [method for method in spec.methods if method.group == "main"][-2:]
    assert fixed.policy == searched.policy == "cluster_mixture"
    default = inspect.signature(policy_class(fixed.policy)).parameters["alpha"].default
    assert fixed.alphas == (default,)
    assert searched.alphas is None
    assert fixed.parameters == searched.parameters == {}
    assert (fixed.label, searched.label) == ("ClusterMixture (ours)", "ClusterMixture (ours), best α")
    for method in (fixed, searched):
        assert {cell.environment.id for cell in cells(spec) if cell.method == method} == {
            environment.id for environment in spec.environments
        }


def test_beyond_has_every_scenario_on_seeds_that_nothing_was_chosen_on() -> None:
    spec = load_preset("beyond")
    assert spec.seed >= 10_000
    assert spec.runs == 30
    found = {item.id: item for item in spec.environments}
    paper = {item.id: item for item in load_preset("paper").environments}
    assert all(found[name] == item for name, item in paper.items())
    ours = {name: item for name, item in found.items() if name not in paper}
    assert {name: (item.kind, item.pulling, item.delay) for name, item in ours.items()} == {
        "movielens-rated": ("movielens", None, None),
        "movielens-rated-tuned": ("movielens", None, None),
        "continuum": ("continuum", None, None),
        "zipf": ("synthetic", "zipf", None),
        "n20": ("synthetic", None, None),
        "n1000": ("synthetic", None, None),
        "d30": ("synthetic", None, None),
        "change": ("changing-agents", None, None),
        "jump": ("jumping-agents", None, None),
        "rotation": ("rotating-clusters", None, None),
        "changing-arms": ("changing-arms", None, None),
        "noise-per-agent": ("gaussian", None, None),
        "bernoulli": ("unit", None, None),
        "unit": ("unit", None, None),
        "delay-100": ("synthetic", None, 100),
        "delay-2000": ("synthetic", None, 2000),
        "delay-g500": ("synthetic", None, ("geometric", 500)),
        "delay-n1000": ("synthetic", None, 2000),
        "change-late": ("changing-agents", None, ("uniform", 0, 2000)),
    }
    sizes = [
        (ours[name].parameters["n_agents"], ours[name].parameters["dim"])
        for name in ("n20", "n1000", "d30", "unit")
    ]
    assert sizes == [(20, 10), (1000, 10), (100, 30), (1000, 16)]
    assert ours["unit"].parameters["n_arms"] == 200
    assert ours["bernoulli"].parameters["noise"] == "bernoulli"
    assert ours["continuum"].parameters["spread"] == 0.8
    assert ours["change"].parameters["change_after"] == spec.horizon // 2
    assert ours["jump"].parameters["last_jump"] == ours["rotation"].parameters["quarter_turn"] == spec.horizon
    assert ours["movielens-rated"].parameters["arms"] == "most-rated"
    assert ours["noise-per-agent"].parameters["noise_scale"] == [0.5, 1.0, 2.0] * 33 + [0.5]
    for item in spec.environments:
        if not item.optional:  # the oracle is there where there are clusters
            has_oracle = any(c.environment == item and c.method.id == "oracle" for c in cells(spec))
            assert has_oracle is (specs.build_environment(item, spec.seed).labels is not None)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_tell_bass_the_noise_and_the_norm_of_the_run_s_environment(name: str) -> None:
    for method in load_preset(name).methods:
        if method.policy == "bass":
            assert method.parameters["noise_scale"] == "noise_scale"
            assert method.parameters["param_norm"] == "param_norm"


def test_a_single_cell_takes_the_paper_s_parameters_unless_told_otherwise() -> None:
    spec = single("bass", "synthetic", alpha=0.3, horizon=10, environment_parameters={"n_agents": 8})
    (cell,) = cells(spec)
    assert cell.method.parameters == {"delta": 0.1, "noise_scale": "noise_scale", "param_norm": "param_norm"}
    assert cell.environment.parameters["n_agents"] == 8
    assert cell.environment.parameters["dim"] == 10
    with pytest.raises(
        SpecError, match=r"bass in synthetic: methods\[0\].parameters.detla: unknown parameter"
    ):
        single("bass", "synthetic", alpha=0.3, horizon=10, policy_parameters={"detla": 0.3})


@pytest.mark.parametrize("kind", ["synthetic", "gaussian", "changing-arms", "changing-agents", "continuum"])
def test_every_made_environment_can_be_had_by_its_name_alone(kind: str) -> None:
    (environment,) = single("bass", kind, alpha=0.3, horizon=10).environments
    assert specs.build_environment(environment, 0).n_agents == 100


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_known_whatever_its_sizes(name: str) -> None:
    spec = load_preset(name, seed=3)
    assert is_preset(spec)
    written = parse_spec(specs.to_toml(spec).encode(), source="spec.toml")
    assert is_preset(msgspec.structs.replace(written, horizon=10, runs=1))
    assert not is_preset(msgspec.structs.replace(spec, name="mine"))
    renamed = msgspec.structs.replace(spec.environments[0], id="mine")
    assert not is_preset(msgspec.structs.replace(spec, environments=(renamed,)))
