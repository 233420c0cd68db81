"""ClusterMixture against the others: every scenario, its differences, and what it loses."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.lab.experiments.test_summaries import make_table, rows_of

from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.stored import load_results
from shoal.lab.experiments.summaries import Names, main_rows
from shoal.lab.paper import beyond
from shoal.lab.paper.presets import load_preset
from shoal.lab.paper.report import reproduction
from shoal.reporting.sections import Table, Text

NAMES = Names(
    {"easy": "Easy", "hard": "Hard", "line": "Line", "none": "None of ours", "clicks": "Clicks"},
    {name: name for name in ("mixture-clicks", "mixture", "mixture-best")},
    frozenset({"mixture", "mixture-clicks"}),
)


def cell(environment: str, method: str, policy: str, alpha: float, regrets: list[float]) -> Any:
    return rows_of(method, policy, alpha, regrets, environment=environment)


def made_up() -> pa.Table:
    return make_table(
        cell("easy", "ind", "independent", 0.3, [100.0, 110.0, 120.0]),
        cell("easy", "oracle", "oracle", 0.1, [10.0, 10.0, 10.0]),
        cell("easy", "bass-d0.1", "bass", 0.3, [50.0, 51.0, 52.0]),
        cell("easy", "bass-d0.1", "bass", 0.1, [30.0, 31.0, 32.0]),  # the best α is what counts
        cell("easy", "mixture", "cluster_mixture", 0.6, [14.0, 15.0, 16.0]),
        cell("easy", "mixture-best", "cluster_mixture", 0.6, [14.0, 15.0, 16.0]),
        cell("easy", "mixture-best", "cluster_mixture", 1.0, [11.0, 12.0, 13.0]),
        cell("hard", "ind", "independent", 0.3, [100.0, 110.0, 120.0]),
        cell("hard", "bass-d0.1", "bass", 0.3, [90.0, 91.0, 92.0]),
        cell("hard", "mixture", "cluster_mixture", 0.6, [95.0, 96.5, 97.0]),
        cell("line", "mixture", "cluster_mixture", 0.6, [7.0]),
        cell("none", "ind", "independent", 0.3, [1.0, 2.0]),
        cell("none", "bass-d0.1", "bass", 0.3, [1.0, 2.0]),
    )


def clicks() -> beyond.Contest:
    """A scenario that only some methods are for, and ours with a setting of its own."""
    table = pa.concat_tables(
        [
            made_up(),
            make_table(
                cell("clicks", "ind-clicks", "independent", 0.3, [30.0, 40.0]),
                cell("clicks", "oracle-clicks", beyond.ORACLES[1], 0.3, [5.0, 5.0]),
                cell("clicks", "mixture", "cluster_mixture", 0.6, [22.0, 20.0]),
                cell("clicks", "mixture-best", "cluster_mixture", 1.0, [2.0, 2.0]),
                cell("clicks", "mixture-clicks", "cluster_mixture", 0.6, [10.0, 10.0]),
            ),
        ]
    )
    *before, contest = beyond.contests(table, main_rows(table, NAMES))
    assert [(one.title, one.defaults) for one in before] == [(one.title, None) for one in found()]
    return contest


def found() -> list[beyond.Contest]:
    table = made_up()
    return beyond.contests(table, main_rows(table, NAMES))


def test_a_scenario_is_judged_at_the_fixed_alpha_against_the_best_of_the_others() -> None:
    easy, hard, line = found()
    assert (easy.ours.method, easy.ours.alpha) == ("mixture", 0.6)
    assert easy.best is not None
    assert easy.best.alpha == 1.0
    assert [pair.method for pair in easy.pairs] == ["bass-d0.1", "ind", "oracle"]
    assert {pair.reference for pair in easy.pairs} == {"mixture"}
    assert [pair.difference for pair in easy.pairs] == [-16.0, -95.0, 5.0]
    assert easy.ratio == pytest.approx(1.5)
    assert (hard.oracle, hard.ratio, hard.best) == (None, None, None)
    assert line.pairs == []


def test_a_setting_for_one_scenario_is_judged_there_beside_the_defaults() -> None:
    contest = clicks()
    assert (contest.title, contest.ours.method, contest.bass, contest.best) == (
        "Clicks", "mixture-clicks", None, None,
    )  # fmt: skip
    assert contest.independent is not None
    assert contest.defaults is not None
    assert contest.defaults.method == "mixture"
    assert [(pair.method, pair.difference) for pair in contest.pairs] == [
        ("ind-clicks", -25.0), ("oracle-clicks", 5.0), ("mixture", -11.0),
    ]  # fmt: skip
    assert contest.ratio == 2.0
    assert "it is below Ind in 1 of 3 scenarios" in beyond.summary([*found(), contest])
    section = beyond.beyond_section([*found(), contest])
    means, differences, *_ = (part for part in section.parts if isinstance(part, Table))
    assert dict(zip(means.header, means.lines[-1], strict=True)) == {
        "scenario": "Clicks", "Oracle": "5 ± 0 (α=0.3)", "Ind": "35 ± 64 (α=0.3)", "BASS": "–",
        "fixed α": "10 ± 0", "best α": "–", "defaults": "21 ± 13", "fixed over Oracle": "2.00",
    }  # fmt: skip
    assert differences.header[-1] == "fixed minus defaults"
    assert [line[-1] for line in differences.lines] == ["–", "–", "–", "−11 (−24 to +2)"]
    assert Text(beyond.DEFAULTS_NOTE) in section.parts
    assert Text(beyond.DEFAULTS_NOTE) not in beyond.beyond_section(found()).parts


def test_what_it_loses_is_said() -> None:
    easy, hard, line = found()
    assert [beyond.verdict(easy.against(row)) for row in (easy.bass, easy.independent)] == ["yes", "yes"]
    assert beyond.verdict(hard.against(hard.bass)) == "no"
    assert beyond.verdict(hard.against(hard.independent)) == "unclear"  # −14 on average, but of 3 runs
    assert beyond.verdict(line.against(line.bass)) == "–"
    assert beyond.summary(found()) == (
        "ClusterMixture (ours, not in the paper) was run at fixed α = 0.6. Run by run it is below BASS in 1 "
        "of 2 scenarios and loses to it in 1: Hard. Run by run it is below Ind in 1 of 2 scenarios and loses "
        "to it in 0."
    )
    assert beyond.summary([]) == ""
    assert beyond.summary([line]).endswith("There is nothing to compare it with.")


def test_the_table_by_hand() -> None:
    section = beyond.beyond_section(found())
    means, differences, *_ = (part for part in section.parts if isinstance(part, Table))
    for table in (means, differences):
        assert [len(line) for line in table.lines] == [len(table.header)] * 3
    text, paired = (
        ["| " + " | ".join(line) + " |" for line in table.lines] for table in (means, differences)
    )
    half = 4.30265273 / math.sqrt(3.0)  # t with 2 degrees of freedom, standard deviation 1
    assert text[0] == (
        f"| Easy | 10 ± 0 (α=0.1) | 110 ± {10 * half:.0f} (α=0.3) | 31 ± {half:.0f} (α=0.1) "
        f"| 15 ± {half:.0f} | 12 ± {half:.0f} (α=1) | 1.50 |"
    )
    assert paired[0] == "| Easy | −16 (−16 to −16) | yes | −95 (−117 to −73) | yes |"
    assert "| +5 (+4 to +6) | no |" in paired[1]
    assert text[2] == "| Line | – | – | – | 7 | – | – |"
    assert paired[2] == "| Line | – | – | – | – |"
    without = [dataclasses.replace(contest, best=None) for contest in found()]
    assert (
        "best α" not in next(p for p in beyond.beyond_section(without).parts if isinstance(p, Table)).header
    )
    assert beyond.beyond_section([]).parts == []


def test_the_preset_plays_and_is_judged_in_every_scenario(tmp_path: Path) -> None:
    """The preset itself, but short, at one α, and without real data."""
    preset = load_preset("beyond")
    environments = tuple(item for item in preset.environments if not item.optional)
    played = {item.id for item in environments}
    methods = tuple(
        msgspec.structs.replace(
            method, environments=method.environments and tuple(n for n in method.environments if n in played)
        )
        for method in preset.methods
    )
    spec = msgspec.structs.replace(
        preset, horizon=40, runs=2, alphas=(0.3,), environments=environments, methods=methods
    )
    run_experiment(spec, tmp_path)
    judged = reproduction(load_results(tmp_path)).contests
    titles = [item.title for item in environments]
    assert [contest.title for contest in judged] == titles
    for contest in judged:
        assert contest.bass is not None
        assert contest.independent is not None
        assert (contest.ours.alpha, contest.ours.fixed) == (0.6, True)
        if contest.defaults is None:
            assert contest.best is not None
            assert contest.best.alpha in (0.3, 0.6)  # the fixed value is part of the search
            assert contest.best.regret.mean <= contest.ours.regret.mean
        assert {pair.runs for pair in contest.pairs} == {2}
    own = {contest.ours.environment: contest.ours.method for contest in judged if contest.defaults}
    assert own == {
        "clicks-0.5": "mixture-clicks", "clicks-0.05": "mixture-clicks", "described": "mixture-described",
    }  # fmt: skip
    without = [contest.ours.environment for contest in judged if contest.oracle is None]
    assert without == ["continuum", "change", "jump", "rotation", "change-late"]
