"""The benchmark of the field: who plays where, ranks and tests, the page, and a method of one's own."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from tests.commands import call

import shoal
from shoal.core.policies.registry import find_policy
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import ExperimentSpec, SpecError, build_environment, cells
from shoal.lab.experiments.stored import load_results
from shoal.lab.paper import field, presets
from shoal.lab.paper.reproduce import write_report

OWN = """
class First:
    "Always the first arm."
    label = "First (mine)"
    def __init__(self, n_agents, dim): ...
    def select(self, agent, arms): return 0
    def update(self, agent, x, reward): ...
"""


CLICKS = ("independent-clicks", "bass-clicks", "cluster_mixture-clicks")
"""Methods that learn rewards of 0 and 1 as clicks."""


def small(*more: str, methods: tuple[str, ...] = ("independent", "bass", "oracle")) -> ExperimentSpec:
    """A few methods in two scenarios, one of which has a graph."""
    spec = field.field_spec(more, runs=4)
    kept = [item for item in spec.methods if item.id in methods or item.policy in more]
    return msgspec.structs.replace(
        spec,
        horizon=120,
        points=5,
        alphas=(0.1, 0.6),
        environments=tuple(item for item in spec.environments if item.id in ("synthetic-m3-w7", "graph")),
        methods=tuple(
            msgspec.structs.replace(item, environments=item.environments and ("synthetic-m3-w7", "graph"))
            for item in kept
        ),
    )


def test_every_registered_policy_plays_wherever_it_fits() -> None:
    spec = field.field_spec()
    everywhere = [item.id for item in spec.environments]
    assert {item.policy for item in spec.methods} >= {*shoal.policy_names()} - {"first", "mine"}
    for method in spec.methods:
        if method.policy == "oracle" or method.id in CLICKS:
            continue
        assert "labels" not in method.parameters.values(), method.policy
        assert "n_clusters" not in method.parameters.values(), method.policy
        assert "gap" not in " ".join(map(str, method.parameters.values())), method.policy
        played = everywhere if method.environments is None else list(method.environments)
        if "graph" in inspect.signature(find_policy(method.policy)).parameters:
            assert method.parameters["graph"] == "graph"
            assert played == ["graph", "lastfm-log", "lastfm-unit", "lastfm-counts"]
        else:
            assert played == everywhere
    (bass,) = [item for item in spec.methods if item.id == "bass"]
    assert bass.parameters == {"noise_scale": "noise_scale", "param_norm": "param_norm"}
    (mixture,) = [item for item in spec.methods if item.id == "cluster_mixture"]
    assert mixture.parameters == {}  # it estimates the noise itself
    assert len({cell.id for cell in cells(spec)}) == len(cells(spec))


def test_oracle_plays_exactly_where_there_are_labels() -> None:
    spec = field.field_spec()
    (oracle,) = [item for item in spec.methods if item.policy == "oracle"]
    made = [item for item in spec.environments if not item.optional]
    labelled = [item.id for item in made if build_environment(item, 0).labels is not None]
    assert labelled == list(oracle.environments or ())


def test_clicks_are_learned_where_rewards_are_clicks() -> None:
    spec = field.field_spec()
    kinds = {item.id: item.kind for item in spec.environments}
    binary = [key for key, kind in kinds.items() if kind in ("lastfm", "warfarin")]
    found = [item for item in spec.methods if item.parameters.get("rewards") == "binary"]
    assert [item.id for item in found] == list(CLICKS)
    for item in found:
        assert list(item.environments or ()) == binary


def test_who_learns_clicks_is_neither_ranked_nor_a_yardstick() -> None:
    rows = [row(key, name, 1.0) for key in ("a", "b") for name in ("bass", "independent")]
    rows.append(row("b", "bass-clicks", 0.0, policy="bass"))
    assert set(field.rank(rows).methods) == {"bass", "independent"}
    yardstick = field._yardstick(rows[::-1], "b", "bass")
    assert yardstick is not None
    assert yardstick.method == "bass"


def test_given_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    class Joined:
        def __init__(self, n_agents: int, dim: int, graph: Any, noise_scale: float = 1.0) -> None: ...
        def select(self, agent: int, arms: Any) -> int:
            return 0

        def update(self, agent: int, x: Any, reward: float) -> None: ...

    monkeypatch.setattr(presets, "find_policy", lambda reference: Joined)
    assert field._method("some:Joined", ["graph"]) == {
        "id": "some.Joined",
        "policy": "some:Joined",
        "parameters": {"noise_scale": "noise_scale", "graph": "graph"},
        "environments": ["graph"],
    }


def row(environment: str, method: str, mean: float, policy: str = "") -> Any:
    return SimpleNamespace(
        environment=environment, method=method, policy=policy or method, regret=SimpleNamespace(mean=mean)
    )


def test_ranks_and_tests_against_the_textbook() -> None:
    """Demšar 2006, table 2: four classifiers over 14 data sets, with its own conclusions."""
    accuracy = np.array(
        [
            [0.763, 0.768, 0.771, 0.798],
            [0.599, 0.591, 0.590, 0.569],
            [0.954, 0.971, 0.968, 0.967],
            [0.628, 0.661, 0.654, 0.657],
            [0.882, 0.888, 0.886, 0.898],
            [0.936, 0.931, 0.916, 0.931],
            [0.661, 0.668, 0.609, 0.685],
            [0.583, 0.583, 0.563, 0.625],
            [0.775, 0.838, 0.866, 0.875],
            [1.000, 1.000, 1.000, 1.000],
            [0.940, 0.962, 0.965, 0.962],
            [0.619, 0.666, 0.614, 0.669],
            [0.972, 0.981, 0.9751, 0.975],  # printed as equal, ranked 2 and 3
            [0.957, 0.978, 0.946, 0.970],
        ]
    )
    names = ["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"]
    rows = [
        row(f"set {place}", name, 1.0 - value)
        for place, line in enumerate(accuracy)
        for name, value in zip(names, line, strict=True)
    ]
    rows += [row("set 0", "oracle", 0.0), row("set 0", "only there", 0.0), row("lastfm-unit", "C4.5", 0.0)]
    found = field.rank(rows)
    means = dict(zip(found.methods, found.means.round(3).tolist(), strict=True))
    assert means == {"C4.5": 3.143, "C4.5+m": 2.0, "C4.5+cf": 2.893, "C4.5+m+cf": 1.964}
    assert list(found.methods) == ["C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5"]
    assert found.critical == pytest.approx(1.25, abs=0.005)  # 2.569 √(4·5 / (6·14))
    # The book's statistic, 9.28, is not corrected for ties; scipy's is.
    assert found.friedman_p == pytest.approx(stats.friedmanchisquare(*(1.0 - accuracy).T).pvalue)
    assert 0.01 < found.friedman_p < 0.03
    assert found.cliques() == [(0, 3)]
    apart = field.Ranking(names, ["a"], np.array([[1.0, 1.4, 3.0, 3.3]]), 0.01, 1.7)
    assert apart.cliques() == [(0, 1), (1, 2), (2, 3)]


def test_too_little_to_rank() -> None:
    alone = field.rank([row("here", "one", 1.0)])
    assert list(alone.methods) == ["one"]
    assert np.isnan(alone.critical)
    assert field.rank([]).environments == []


def test_a_scenario_that_few_have_played_does_not_cost_the_others_their_ranks() -> None:
    methods = ["bass", "cluster_mixture", "independent", "lints", "sclub"]
    rows = [row(key, method, 1.0 + at) for key in "abc" for at, method in enumerate(methods)]
    rows += [row("a", "mine", 0.0), row("d", "bass", 9.0), row("d", "cluster_mixture", 1.0)]
    found = field.rank(rows)
    assert list(found.methods) == methods
    assert list(found.environments) == ["a", "b", "c"]
    np.testing.assert_array_equal(found.ranks, [[1, 2, 3, 4, 5]] * 3)


def test_a_method_of_one_s_own_joins_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine_in_the_field.py").write_text(OWN)
    out = tmp_path / "out"
    first = run_experiment(small(), out, jobs=1)
    assert first.computed == 12
    grown = run_experiment(small("mine_in_the_field:First"), out, jobs=1)
    assert (grown.computed, grown.found) == (4, 12)
    page = write_report(out)
    text = (page.parent / "tables.md").read_text(encoding="utf-8")
    assert (page.parent / "figures" / "critical-difference.png").stat().st_size > 5_000
    ranked = text[text.index("## All methods") : text.index("## Scenario by scenario")]
    assert "First (mine)" in ranked
    assert "Oracle" not in ranked[ranked.index("|") :]
    found = load_results(out)
    rows = field.finished(found)
    assert len(rows) == len(found.rows) == 8
    (own,) = [one for one in rows if one.policy == "mine_in_the_field:First" and one.environment == "graph"]
    (bass,) = [one for one in rows if one.policy == "bass" and one.environment == "graph"]
    said = f"{own.regret.mean - bass.regret.mean:+,.0f} ± "
    (line,) = [one for one in text.splitlines() if one.startswith("| First (mine)") and said in one]
    assert f"{own.regret.mean:,.0f} ± " in line


def test_ranks_with_the_parameter_chosen_on_other_runs() -> None:
    """By hand: lucky is best at α=1 on even runs and at α=2 on odd ones, and so pays for either choice."""
    regrets = {
        ("lucky", 1.0): [0.0, 9.0, 0.0, 9.0],
        ("lucky", 2.0): [9.0, 0.0, 9.0, 0.0],
        ("steady", 1.0): [5.0, 5.0, 5.0, 5.0],
        ("steady", 2.0): [6.0, 6.0, 6.0, 6.0],
    }
    names = ("environment", "method", "policy", "group", "alpha", "run", "final_regret")
    lines = [
        ("here", method, method, "main", alpha, run, value)
        for (method, alpha), values in regrets.items()
        for run, value in enumerate(values)
    ]
    table = pa.table(dict(zip(names, map(list, zip(*lines, strict=True)), strict=True)))
    ranking = field.Ranking(["lucky", "steady"], ["here"], np.array([[1.0, 2.0]]), 1.0, 1.0)
    several: Any = SimpleNamespace(table=table, spec=SimpleNamespace(runs=4))
    assert field._means_by_halves(several, ranking).tolist() == [2.0, 1.0]
    single: Any = SimpleNamespace(table=table, spec=SimpleNamespace(runs=1))
    assert np.isnan(field._means_by_halves(single, ranking)).all()


def test_what_is_not_finished_is_not_ranked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_experiment(small(), out, jobs=1, only="a0.10")
    run_experiment(small(), out, jobs=1, only="independent")
    found = load_results(out)
    assert {one.method for one in field.finished(found)} == {"independent"}
    page = field.document(found)
    assert page.lead.startswith("Too little has been played to rank methods: ")
    assert not page.sections[0].parts  # no empty table
    assert any("Not shown, as some values of α are missing: BASS, Oracle" in text for text in page.notices)


def test_with_is_for_the_field_alone() -> None:
    done = call("reproduce", "quick", "--with", "a:B")
    assert done.returncode == 2
    assert "--with adds a method to the preset 'field', not to 'quick'" in done.stderr
    with pytest.raises(SpecError, match=r"--with nowhere_at_all:B: .*no module 'nowhere_at_all'"):
        field.field_spec(["nowhere_at_all:B"])
