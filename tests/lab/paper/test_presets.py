"""The presets: the paper's experiments and ours, and single cells with their parameters."""

import inspect
import math

import msgspec
import pytest

from shoal.core.policies.registry import BUILT_IN, policy_class, policy_names
from shoal.lab.experiments import spec as specs
from shoal.lab.experiments.spec import SpecError, cells, parse_spec
from shoal.lab.paper import published
from shoal.lab.paper.presets import PRESETS, is_preset, load_preset, single


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="unknown preset 'quik'; did you mean 'quick'"):
        load_preset("quik")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_survive_being_written_out(name: str) -> None:
    spec = load_preset(name)
    again = parse_spec(specs.to_toml(spec).encode(), source=spec.source)
    assert again == spec


def test_presets_are_the_paper_s_experiments() -> None:
    quick, tables, paper = map(load_preset, ("quick", "tables", "paper"))
    scenarios = {"synthetic-m3-w1", "synthetic-m3-w7"}
    assert {environment.id for environment in quick.environments} == scenarios
    assert {method.policy for method in quick.methods} == set(BUILT_IN)
    assert {environment.id for environment in tables.environments} == scenarios
    expected = "ind oracle dynucb club-g4 club-g2 sclub-g4 sclub-g2 bass-d0.1 bass-d0.9 cmlb-g4 cmlb-g2"
    expected += " cmlb-g4-e3000 cmlb-g2-e3000 cmlb-g4-e5000 cmlb-g2-e5000 cmlb-g4-e10000 cmlb-g2-e10000"
    expected += " dynucb-5 dynucb-20 mixture mixture-best"
    assert " ".join(method.id for method in tables.methods if method.group == "main") == expected
    for spec in (tables, paper):
        assert (spec.horizon, spec.runs) == (50_000, 50)
        assert spec.alphas == tables.alphas  # the finer grid, the same for every method that is searched
        assert set(published.ALPHAS) < set(spec.alphas)
        assert (min(spec.alphas), max(spec.alphas)) == (min(published.ALPHAS), max(published.ALPHAS))
        for method in spec.methods:
            if method.group == "main" and not ours(method) and method.alphas is not None:
                assert method.id in published.VARIANTS
                assert method.alphas == published.ALPHAS
    angles = [
        environment.parameters["angle"]
        for environment in paper.environments
        if environment.kind == "synthetic"
    ]
    assert angles == [math.pi / 16, 7 * math.pi / 16] * 2
    sigmas = [item.parameters["noise_scale"] for item in paper.environments if item.kind == "gaussian"]
    assert sigmas == [0.5, 1.0, 2.0]
    optional = {
        item.id: tuple(item.parameters.get(key, "") for key in ("loader", "fill", "arms"))
        for item in paper.environments
        if item.optional
    }
    assert optional == {
        "movielens-authors": ("authors", "", ""),
        "movielens-rated": ("", "paper", "most-rated"),
        "yahoo-ltr-authors": ("authors", "paper", ""),
        "yahoo-ltr": ("", "paper", ""),
    }
    expected = (
        "ind club-0.1 club-1.0 sclub-0.1 sclub-1.0 cmlb-0.1 cmlb-1.0 dynucb-m5 dynucb-m20 bass-d0.1 bass-d0.9"
    )
    for environment in optional:
        found = [c.method.id for c in cells(paper) if c.environment.id == environment and c.alpha == 0.1]
        more = []
        if environment == "movielens-rated":
            more = ["cmlb-0.1-e3000", "cmlb-1.0-e3000", "bass-d0.1-s5", "bass-d0.9-s5"]
        elif environment.endswith("authors"):
            more = [f"cmlb-{gamma}-e{rounds}" for gamma in ("0.1", "1.0") for rounds in (5000, 10000)]
        assert sorted(found) == sorted([*expected.split(), *more])


def ours(method: specs.MethodSpec) -> bool:
    return method.policy == "cluster_mixture"


def test_tables_vary_gamma_the_norm_and_the_form_of_the_radius() -> None:
    tables = load_preset("tables")
    varied = {
        (item.parameters["radius"], item.parameters["param_norm"], item.parameters["gamma"])
        for item in tables.methods
        if item.group == "gamma"
    }
    every = {("beta", norm, gamma) for norm in ("param_norm", 0.0) for gamma in (1.5, 2.0, 2.5)}
    every |= {
        ("beta_squared", norm, gamma) for norm in ("param_norm", 0.0) for gamma in (0.75, 1.0, 1.25, 1.5, 2.0)
    }
    assert varied == every - {("beta", "param_norm", 2.0)}  # BASS of the table
    for method in tables.methods:
        if method.group == "gamma":
            assert method.alphas is not None
            assert set(method.alphas) <= set(tables.alphas)  # so that BASS of the table joins them
            assert set(method.alphas) & set(published.ALPHAS)


def test_every_published_method_is_run_and_its_variants_are_known() -> None:
    paper = load_preset("paper")
    for environment, printed in published.FINAL_REGRET.items():
        run = {cell.method.id for cell in cells(paper) if cell.environment.id == environment}
        assert printed.keys() <= run
        assert {published.VARIANTS.get(name, name) for name in run} == {*printed, "mixture"}


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_can_be_had_by_its_name_alone(name: str) -> None:
    (cell,) = cells(single(name, "synthetic", alpha=0.3, horizon=10))
    assert cell.method.policy == name


@pytest.mark.parametrize("name", PRESETS)
def test_our_own_policy_is_in_every_preset_at_its_defaults_after_the_paper_s(name: str) -> None:
    spec = load_preset(name)
    main = [method for method in spec.methods if method.group == "main"]
    everywhere = [method for method in main if ours(method) and method.environments is None]
    fixed, *searched = everywhere
    assert main[-1 - len(searched) :] == [fixed, *searched]
    # Settings for single scenarios, which precede the defaults; see `beyond.contests`.
    special = [method for method in main if ours(method) and method not in everywhere]
    assert [(method.id, method.alphas) for method in special] == (
        [("mixture-clicks", (0.6,)), ("mixture-described", (0.6,))] if name == "beyond" else []
    )
    default = inspect.signature(policy_class(fixed.policy)).parameters["alpha"].default
    assert (fixed.label, fixed.alphas, fixed.parameters) == ("ClusterMixture (ours)", (default,), {})
    # Its α is searched as well, but not in the paper's other scenarios: "beyond" has them all.
    assert len(searched) == (0 if name == "paper" else 1)
    for method in searched:
        assert (method.label, method.alphas, method.parameters) == ("ClusterMixture (ours), best α", None, {})
    for method in (fixed, *searched):
        assert {cell.environment.id for cell in cells(spec) if cell.method == method} == {
            environment.id for environment in spec.environments
        }


def test_beyond_has_every_scenario_on_seeds_that_nothing_was_chosen_on() -> None:
    spec = load_preset("beyond")
    assert spec.seed >= 10_000
    assert spec.runs == 30
    found = {item.id: item for item in spec.environments}
    paper = {item.id: item for item in load_preset("paper").environments}
    assert all(found[name] == item for name, item in paper.items() if not name.endswith("-authors"))
    new = {name: item for name, item in found.items() if name not in paper}
    assert {name: (item.kind, item.pulling, item.delay) for name, item in new.items()} == {
        "movielens": ("movielens", None, None),
        "movielens-tuned": ("movielens", None, None),
        "movielens-rated-tuned": ("movielens", None, None),
        "yahoo-ltr-tuned": ("letor", None, None),
        "continuum": ("continuum", None, None),
        "zipf": ("synthetic", "zipf", None),
        "n20": ("synthetic", None, None),
        "n1000": ("synthetic", None, None),
        "d30": ("synthetic", None, None),
        "change": ("changing_agents", None, None),
        "jump": ("jumping_agents", None, None),
        "rotation": ("rotating_clusters", None, None),
        "changing-arms": ("changing_arms", None, None),
        "noise-per-agent": ("gaussian", None, None),
        "bernoulli": ("unit", None, None),
        "unit": ("unit", None, None),
        "delay-100": ("synthetic", None, 100),
        "delay-2000": ("synthetic", None, 2000),
        "delay-g500": ("synthetic", None, ("geometric", 500)),
        "delay-n1000": ("synthetic", None, 2000),
        "change-late": ("changing_agents", None, ("uniform", 0, 2000)),
        "clicks-0.5": ("clicks", None, None),
        "clicks-0.05": ("clicks", None, None),
        "described": ("described_agents", None, None),
    }
    sizes = [
        (new[name].parameters["n_agents"], new[name].parameters["dim"])
        for name in ("n20", "n1000", "d30", "unit")
    ]
    assert sizes == [(20, 10), (1000, 10), (100, 30), (1000, 16)]
    assert new["unit"].parameters["n_arms"] == 200
    assert [new[name].parameters["rate"] for name in ("clicks-0.5", "clicks-0.05")] == [0.5, 0.05]
    assert new["described"].parameters["n_agents"] == spec.horizon // 10
    clicks = [cell.method for cell in cells(spec) if cell.environment.kind == "clicks"]
    real = {method.id for method in clicks if method.parameters.get("rewards") != "binary"}
    assert real == {"mixture", "mixture-best", "oracle-clicks"}
    assert new["bernoulli"].parameters["noise"] == "bernoulli"
    assert new["continuum"].parameters["spread"] == 0.8
    assert new["change"].parameters["change_after"] == spec.horizon // 2
    assert new["jump"].parameters["last_jump"] == new["rotation"].parameters["quarter_turn"] == spec.horizon
    assert new["noise-per-agent"].parameters["noise_scale"] == [0.5, 1.0, 2.0] * 33 + [0.5]
    for item in spec.environments:
        if not item.optional:  # the oracle is there where there are clusters
            has_oracle = any(c.environment == item and c.method.id.startswith("oracle") for c in cells(spec))
            assert has_oracle is (specs.build_environment(item, spec.seed).labels is not None)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_tell_bass_the_noise_and_the_norm_of_the_run_s_environment(name: str) -> None:
    for method in load_preset(name).methods:
        if method.policy == "bass" and method.parameters.get("rewards") != "binary":  # clicks have no noise
            assert method.parameters["noise_scale"] == "noise_scale"
            if method.group == "main" and not method.id.endswith("-s5"):
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


GIVEN_A_GRAPH = ("goblin", "colin")


@pytest.mark.parametrize("name", GIVEN_A_GRAPH)
def test_policies_on_a_graph_are_given_the_environment_s(name: str) -> None:
    (cell,) = cells(single(name, "graph_clusters", alpha=0.3, horizon=10))
    world = specs.build_environment(cell.environment, 0)
    assert specs.build_policy(cell.method, 0.3, world, 0).n_agents == 100
    (cell,) = cells(single(name, "continuum", alpha=0.3, horizon=10))
    with pytest.raises(ValueError, match="graph = 'graph' needs an environment with a graph"):
        specs.build_policy(cell.method, 0.3, specs.build_environment(cell.environment, 0), 0)


@pytest.mark.parametrize("name", [name for name in policy_names() if name not in ("oracle", *GIVEN_A_GRAPH)])
def test_every_policy_plays_without_parameters_where_there_are_no_clusters(name: str) -> None:
    (cell,) = cells(single(name, "continuum", alpha=0.3, horizon=10))
    world = specs.build_environment(cell.environment, 0)
    built = specs.build_policy(cell.method, 0.3, world, 0)
    assert built.n_agents == 100
    if name == "bass":
        assert built.parameters["noise_scale"] == 1.0  # what the environment says


def test_parameters_of_a_kind_of_environment_are_those_that_presets_run_there() -> None:
    (cell,) = cells(single("club", "movielens", alpha=0.3, horizon=10))
    assert cell.method.parameters == {"gamma": 0.1}


def test_noise_that_is_to_be_estimated() -> None:
    spec = single("bass", "synthetic", alpha=0.3, horizon=10, policy_parameters={"noise_scale": "estimated"})
    (cell,) = cells(spec)
    built = specs.build_policy(cell.method, 0.3, specs.build_environment(cell.environment, 0), 0)
    assert built.parameters["noise_scale"] is None


@pytest.mark.parametrize("kind", ["synthetic", "gaussian", "changing_arms", "changing_agents", "continuum"])
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
