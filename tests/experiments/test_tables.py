"""The numbers of the report, against hand computation and scipy."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from shoal.experiments import published, tables
from shoal.experiments.results import COLUMNS
from shoal.experiments.tables import Names

W1 = "synthetic-m3-w1"
NO_NAMES = Names({}, {})


def rows_of(
    method: str, policy: str, alpha: float, regrets: Sequence[float], **changes: Any
) -> list[dict[str, Any]]:
    """Rows of one cell, in the paper's setting unless changed."""
    f1 = changes.pop("f1", [0.5] * len(regrets))
    seeds = changes.pop("seeds", range(len(regrets)))
    base: dict[str, Any] = {
        "environment": W1,
        "method": method,
        "policy": policy,
        "group": "main",
        "alpha": alpha,
        "horizon": 50_000,
        "n_agents": 100,
        "dim": 10,
        "n_arms": 15,
        "gap": 0.196,
        "environment_parameters": "{}",
        "policy_parameters": json.dumps(changes.pop("parameters", {})),
        "final_edges": 1,
        "communication_cost": 1,
        "seconds": 1.0,
        "rounds_per_second": 1.0,
        "curve_rounds": [25_000, 50_000],
        "curve_edges": [1, 1],
        "first_separation": math.nan,
        "separated_share": 0.0,
        **changes,
    }
    return [
        {
            **base,
            "run": seed,
            "seed": seed,
            "final_regret": regret,
            "final_f1": score,
            "curve_regret": [regret / 2, regret],
            "curve_f1": [score, score],
        }
        for seed, regret, score in zip(seeds, regrets, f1, strict=True)
    ]


def make_table(*cells: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([row for cell in cells for row in cell], schema=COLUMNS)


def only_row(table: pa.Table, names: Names = NO_NAMES) -> tables.Row:
    (row,) = tables.main_rows(table, names)
    return row


def test_summary_by_hand() -> None:
    found = tables.summarize(np.array([1.0, 2.0, 3.0, 6.0]))
    assert found.mean == 3.0
    assert found.std == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3))
    assert found.median == 2.5
    assert found.runs == 4
    half = 3.182446305 * found.std / 2.0  # the t quantile with 3 degrees of freedom, from a table
    assert (found.low, found.high) == pytest.approx((3.0 - half, 3.0 + half))


def test_summary_of_a_single_run_has_no_interval() -> None:
    found = tables.summarize(np.array([4.0]))
    assert found.mean == found.median == 4.0
    assert math.isnan(found.std)
    assert math.isnan(found.low)
    assert tables.regret_line(only_row(make_table(rows_of("ind", "independent", 0.1, [4.0]))))[2:4] == [
        "4",
        "–",
    ]


def test_best_alpha_is_by_mean_over_all_runs_and_the_lower_on_ties() -> None:
    table = make_table(
        rows_of("ind", "independent", 0.6, [10.0, 50.0]),  # has the single best run, not the best mean
        rows_of("ind", "independent", 0.3, [20.0, 30.0]),
        rows_of("ind", "independent", 0.1, [25.0, 25.0]),
        rows_of("other", "independent", 0.1, [1.0, 2.0], group="gamma"),  # another group is not in the tables
    )
    row = only_row(table)
    assert row.alpha == 0.1
    assert row.regret_by_alpha.x.tolist() == [0.1, 0.3, 0.6]
    assert row.at_edge
    assert row.regret.mean == 25.0


def test_runs_are_put_in_order() -> None:
    table = make_table(rows_of("ind", "independent", 0.1, [7.0, 5.0, 6.0], seeds=[2, 0, 1]))
    (cell,) = tables.find_cells(table)
    assert tables.column(table, "final_regret", cell).tolist() == [5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("offset", "within", "word"), [(468.0, True, ""), (-469.0, False, "lower"), (469.0, False, "higher")]
)
def test_difference_from_print(offset: float, within: bool, word: str) -> None:
    mean = published.FINAL_REGRET[W1]["ind"].mean + offset
    names = Names({W1: "First"}, {"ind": "Ind"})
    row = only_row(make_table(rows_of("ind", "independent", 0.3, [mean - 1.0, mean + 1.0])), names)
    assert row.regret_printed is not None
    assert row.regret_printed.difference == pytest.approx(offset)
    assert row.regret_printed.within is within
    remark = tables.regret_remark(row)
    assert tables.regret_line(row)[-1] == ("yes" if within else "no")
    if within:
        assert remark is None
    else:
        assert remark is not None
        assert remark.startswith(
            f"Ind, First: {mean:,.0f} here, 6,100.7 in print, that is 469 {word}, 1.0 printed standard"
        )
        assert tables.REASONS["independent"] in remark


def remark_on(*cells: list[dict[str, Any]]) -> str:
    remark = tables.regret_remark(only_row(make_table(*cells)))
    assert remark is not None
    return remark


def test_remark_says_whether_another_alpha_gives_the_printed_value() -> None:
    best = rows_of("ind", "independent", 0.3, [4000.0, 4001.0])
    explained = remark_on(best, rows_of("ind", "independent", 1.0, [6000.0, 6001.0]))
    assert explained.endswith(
        "1 comes nearest to print, with 6,000: another α is enough to explain the difference."
    )
    assert remark_on(best, rows_of("ind", "independent", 1.0, [5000.0, 5001.0])).endswith(
        "1 comes nearest to print, with 5,000: α alone does not explain the difference."
    )
    assert "α alone" not in remark_on(best)  # a single α says nothing


def test_remark_owns_up_to_too_few_runs() -> None:
    remark = remark_on(rows_of("ind", "independent", 0.3, [1000.0, 8000.0]))
    assert remark.endswith("with 2 runs chance alone can account for this.")
    assert tables.REASONS["independent"] not in remark


def test_remark_on_club_names_its_score_only_where_it_is_near_zero() -> None:
    assert "says that agents part early" in remark_on(
        rows_of("club-g4", "club", 0.3, [1.0, 2.0], f1=[0.0, 0.02])
    )
    assert "says that agents part early" not in remark_on(rows_of("club-g4", "club", 0.3, [1.0, 2.0]))


@pytest.mark.parametrize(
    "change", [{"horizon": 20_000}, {"n_agents": 50}, {"dim": 5}, {"n_arms": 30}, {"gap": 1.27}]
)
def test_another_setting_is_not_compared(change: Mapping[str, Any]) -> None:
    row = only_row(make_table(rows_of("ind", "independent", 0.3, [1.0, 2.0], **change)))
    assert row.regret_printed is not None
    assert row.regret_printed.within is None
    assert math.isnan(row.regret_printed.difference)
    assert tables.regret_remark(row) is None
    assert tables.f1_remark(row) is None
    assert tables.regret_line(row)[-3:] == ["6,100.7 ± 468.4", "–", "–"]


def test_scenarios_and_methods_without_print() -> None:
    table = make_table(
        rows_of("mine", "mine", 0.3, [1.0, 2.0]),
        rows_of("ind", "independent", 0.3, [1.0], environment="gaussian-s1"),
    )
    assert [row.regret_printed for row in tables.main_rows(table, NO_NAMES)] == [None, None]
    assert not tables.is_comparable(table, "gaussian-s1")


def test_f1_agrees_up_to_its_printed_digit_or_std() -> None:
    def verdict(method: str, policy: str, score: float) -> bool | None:
        row = only_row(make_table(rows_of(method, policy, 0.3, [1.0, 1.0], f1=[score, score])))
        assert row.f1_printed is not None
        assert (tables.f1_remark(row) is None) is row.f1_printed.within
        return row.f1_printed.within

    assert verdict("bass-d0.1", "bass", 0.6) is True  # print says 0.7
    assert verdict("bass-d0.1", "bass", 0.59) is False
    assert verdict("dynucb", "dynucb", 0.61) is True
    wide = published.F1["synthetic-m3-w7"]["cmlb-g4"]
    assert wide == (0.0, 0.2)
    row = only_row(
        make_table(rows_of("cmlb-g4", "cmlb", 0.3, [1.0], f1=[0.19], environment="synthetic-m3-w7", gap=1.27))
    )
    assert row.f1_printed is not None
    assert row.f1_printed.within is True


def test_no_f1_without_labels() -> None:
    table = make_table(rows_of("bass-d0.1", "bass", 0.3, [1.0, 2.0], f1=[math.nan] * 2))
    row = only_row(table)
    assert row.f1 is None
    assert row.f1_printed is None
    assert tables.curve(table, "curve_f1", row.cell) is None
    with pytest.raises(ValueError, match="no F1"):
        tables.f1_line(row)


def test_paired_comparison_agrees_with_scipy() -> None:
    rng = np.random.default_rng(5)
    ours, theirs = rng.normal(100.0, 20.0, 12), rng.normal(110.0, 20.0, 12)
    shuffled = rng.permutation(12)
    table = make_table(
        rows_of("bass-d0.1", "bass", 0.3, ours.tolist()),
        rows_of("bass-d0.9", "bass", 0.3, (ours + 5.0).tolist()),
        rows_of("ind", "independent", 0.6, theirs[shuffled].tolist(), seeds=shuffled.tolist()),
    )
    (pair,) = tables.paired_comparisons(table, tables.main_rows(table, NO_NAMES))  # not with another BASS
    expected = stats.ttest_rel(ours, theirs)
    assert pair.difference == pytest.approx(float(np.mean(ours - theirs)))
    assert (pair.low, pair.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    wins = int(np.sum(ours < theirs))
    assert pair.won == wins / 12
    assert pair.sign_p == pytest.approx(stats.binomtest(wins, 12).pvalue)
    assert pair.runs == 12
    reference = stats.bootstrap((ours - theirs,), np.mean, method="percentile", rng=np.random.default_rng(1))
    low, high = reference.confidence_interval
    assert (pair.bootstrap_low, pair.bootstrap_high) == pytest.approx((low, high), abs=0.06 * (high - low))


def test_pairing_uses_the_runs_that_both_have() -> None:
    table = make_table(
        rows_of("bass-d0.1", "bass", 0.3, [1.0, 2.0, 3.0], seeds=[0, 1, 2]),
        rows_of("ind", "independent", 0.3, [50.0, 5.0, 4.0], seeds=[7, 2, 1]),
    )
    (pair,) = tables.paired_comparisons(table, tables.main_rows(table, NO_NAMES))
    assert (pair.runs, pair.difference, pair.won) == (2, -2.0, 1.0)


def test_paired_comparison_of_equal_runs() -> None:
    table = make_table(
        rows_of("bass-d0.9", "bass", 0.3, [1.0, 2.0]), rows_of("ind", "independent", 0.3, [1.0, 2.0])
    )
    (pair,) = tables.paired_comparisons(table, tables.main_rows(table, NO_NAMES))
    assert (pair.difference, pair.won, pair.sign_p) == (0.0, 0.0, 1.0)
    assert tables.paired_line(pair)[1:3] == ["+0", "+0 to +0"]


def test_mean_curve_by_hand() -> None:
    table = make_table(rows_of("ind", "independent", 0.1, [10.0, 14.0]))
    found = tables.curve(table, "curve_regret", tables.find_cells(table)[0])
    assert found is not None
    assert found.x.tolist() == [25_000.0, 50_000.0]
    assert found.mean.tolist() == [6.0, 12.0]
    half = 12.70620474 * math.sqrt(8.0) / math.sqrt(2.0)  # t with 1 degree of freedom
    assert found.high[1] - 12.0 == pytest.approx(half)
    assert 12.0 - found.low[1] == pytest.approx(half)


def test_curves_recorded_after_different_rounds_are_refused() -> None:
    rows = rows_of("ind", "independent", 0.1, [10.0, 14.0])
    rows[1]["curve_rounds"] = [1, 2]
    table = make_table(rows)
    with pytest.raises(ValueError, match="synthetic-m3-w1/ind"):
        tables.curve(table, "curve_regret", tables.find_cells(table)[0])


def test_regret_by_alpha() -> None:
    table = make_table(
        rows_of("ind", "independent", 0.3, [1.0, 3.0]),
        rows_of("ind", "independent", 0.1, [6.0, 4.0]),
        rows_of("ind", "independent", 0.2, [9.0], group="gamma"),
    )
    found = only_row(table).regret_by_alpha
    assert found.x.tolist() == [0.1, 0.3]
    assert found.mean.tolist() == [5.0, 2.0]
    assert found.high[0] - 5.0 == pytest.approx(12.70620474)


def test_gamma_points_take_the_published_scale_from_the_tables_on_the_same_alphas() -> None:
    def varied(method: str, alpha: float, regret: float, **parameters: Any) -> list[dict[str, Any]]:
        group = "main" if method == "bass-d0.1" else "gamma"
        return rows_of(method, "bass", alpha, [regret], group=group, parameters={"delta": 0.1, **parameters})

    table = make_table(
        varied("bass-d0.1", 0.3, 7.0),
        varied("bass-d0.1", 0.9, 1.0),  # better, but no other γ was run with this α
        varied("g1.5", 0.1, 9.0, gamma=1.5, radius="beta"),
        varied("g1.5", 0.3, 8.0, gamma=1.5, radius="beta"),
        varied("s1.25", 0.3, 5.0, gamma=1.25, radius="beta_squared"),
        rows_of("bass-d0.9", "bass", 0.3, [2.0], parameters={"delta": 0.9}),
        rows_of("ind", "independent", 0.3, [2.0]),
    )
    found = [(p.radius, p.gamma, p.alpha, p.regret.mean) for p in tables.gamma_points(table)]
    assert found == [("beta", 1.5, 0.3, 8.0), ("beta", 2.0, 0.3, 7.0), ("beta_squared", 1.25, 0.3, 5.0)]


def test_our_own_method_is_marked_and_not_among_bass_s_rivals() -> None:
    table = make_table(
        rows_of("ind", "independent", 0.3, [10.0, 20.0]),
        rows_of("bass-d0.1", "bass", 0.3, [5.0, 6.0]),
        rows_of("mixture", "cluster_mixture", 0.6, [3.0, 4.0]),
        rows_of("mixture-best", "cluster_mixture", 0.6, [3.0, 4.0]),
        rows_of("mixture-best", "cluster_mixture", 1.0, [4.0, 5.0]),
    )
    rows = tables.main_rows(table, Names({}, {}, frozenset({"mixture"})))
    assert [(row.method, row.is_ours, row.fixed) for row in rows] == [
        ("ind", False, False),
        ("bass-d0.1", False, False),
        ("mixture", True, True),
        ("mixture-best", True, False),
    ]
    fixed, searched = map(tables.regret_line, rows[2:])
    assert fixed[1] == "0.6 (fixed)"
    assert searched[1] == "0.6 (edge)"
    assert fixed[-3:] == searched[-3:] == ["not in the paper", "–", "–"]
    assert tables.f1_line(rows[2])[-3:] == ["not in the paper", "–", "–"]
    assert [pair.method for pair in tables.paired_comparisons(table, rows)] == ["ind"]


def test_order_and_names_come_from_the_spec() -> None:
    table = make_table(
        rows_of("a", "independent", 0.1, [1.0]),
        rows_of("b", "club", 0.1, [1.0]),
        rows_of("stray", "club", 0.1, [1.0]),
        rows_of("a", "independent", 0.1, [1.0], environment="first"),
    )
    names = Names({"first": "First", W1: "Second"}, {"b": "Bee", "a": "Ay"})
    assert [(row.title, row.label) for row in tables.main_rows(table, names)] == [
        ("First", "Ay"),
        ("Second", "Bee"),
        ("Second", "Ay"),
        ("Second", "stray"),
    ]


def test_numbers_as_text() -> None:
    row = only_row(make_table(rows_of("bass-d0.1", "bass", 0.3, [90.0, 110.0], f1=[0.0, 0.004])))
    assert tables.regret_line(row) == [
        "bass-d0.1", "0.3", "100 ± 14", "−27 to 227", "100", "2", "1,096.8 ± 411.9", "−997", "no",
    ]  # fmt: skip
    assert tables.f1_line(row)[:3] == ["bass-d0.1", "0.00 ± 0.00", "−0.02 to 0.03"]


def test_markdown_table() -> None:
    assert tables.markdown_table(["a", "b"], [["x", "1"], ["y", "2"]]).splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        "| x | 1 |",
        "| y | 2 |",
    ]


def test_published_figures_are_whole() -> None:
    assert set(published.FINAL_REGRET) == set(published.SETTINGS)
    assert {len(methods) for methods in published.FINAL_REGRET.values()} == {11}
    for environment, scores in published.F1.items():
        assert set(scores) == set(published.FINAL_REGRET[environment])
    assert published.FINAL_REGRET["synthetic-m3-w7"]["bass-d0.1"] == (1617.5, 689.8)
    assert published.FINAL_REGRET["yahoo-ltr"]["cmlb-0.1"] == (16812.5, 405.1)
    assert published.CPU_HOURS == 8400
    assert set(tables.REASONS) == {
        "independent", "oracle", "dynucb", "club", "sclub", "bass", "cmlb",
    }  # fmt: skip
