"""Our figures beside the published ones."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from tests.lab.experiments.test_summaries import NO_NAMES, W1, make_table, rows_of

from shoal.lab.experiments.report import F1_COLUMNS, PAIRED_COLUMNS, REGRET_COLUMNS, line
from shoal.lab.experiments.summaries import Names, SummaryRow, curve, main_rows
from shoal.lab.paper import comparison, published
from shoal.lab.paper.comparison import Comparison, has_published_sizes
from shoal.lab.paper.gamma import gamma_points, gamma_table


def only_row(table: pa.Table, names: Names = NO_NAMES) -> SummaryRow:
    (found,) = main_rows(table, names)
    return found


def regret_of(
    method: str, policy: str, regrets: list[float], **changes: Any
) -> tuple[SummaryRow, Comparison]:
    """A row of made-up runs, and its comparison with print."""
    row = only_row(make_table(rows_of(method, policy, 0.825, regrets, **changes)), NAMES)
    found = comparison.compare_regret(row)
    assert found is not None
    return row, found


NAMES = Names({W1: "First"}, {"ind": "Ind", "cmlb-g4-e3000": "CMLB"})


def test_difference_in_standard_errors_by_hand() -> None:
    mean, std = published.FINAL_REGRET[W1]["ind"]
    row, found = regret_of("ind", "independent", [mean + 400.0, mean + 600.0] * 8)
    error = math.sqrt(row.regret.std**2 / 16 + std**2 / 50)
    assert found.printed == (mean, std)
    assert found.mean.ours == row.regret.mean
    assert found.mean.difference == pytest.approx(500.0)
    assert found.mean.errors == pytest.approx(500.0 / error)
    assert found.mean.errors > 3.0
    assert found.mean.agrees  # within 10%


def test_a_median_is_compared_by_the_same_rule_with_errors_by_bootstrap() -> None:
    value, spread = published.FINAL_REGRET[W1]["dynucb"]  # 5,765.5 ± 10,439.5
    rng = np.random.default_rng(0)
    regrets = value * np.exp(
        0.5 * rng.standard_normal(4_001)
    )  # the median is that of print, the mean 13% above
    row, found = regret_of("dynucb", "dynucb", regrets.tolist())
    # The median of many values has the standard error 1/(2 f(median) √n); here f = 1/(σ · median · √2π).
    expected = 0.5 * value * math.sqrt(2.0 * math.pi) / (2.0 * math.sqrt(4_001))
    theirs = spread / math.sqrt(50) * math.sqrt(math.pi / 2.0)
    assert found.median.ours == row.regret.median
    assert found.median.difference / found.median.errors == pytest.approx(
        math.hypot(expected, theirs), rel=0.01
    )
    assert found.median.difference / expected == pytest.approx(0.0, abs=3.0)
    assert found.mean.difference == pytest.approx(0.133 * value, rel=0.15)


@pytest.mark.parametrize(
    ("factor", "agrees"), [(0.25, False), (0.7, True), (1.0, True), (1.45, True), (3.0, False)]
)
def test_spreads_are_compared_on_a_logarithmic_scale(factor: float, agrees: bool) -> None:
    value, spread = published.FINAL_REGRET[W1]["ind"]
    normal = np.random.default_rng(1).standard_normal(50)
    normal = (normal - normal.mean()) / normal.std(ddof=1)
    row, found = regret_of("ind", "independent", (value + factor * spread * normal).tolist())
    assert found.mean.agrees  # the mean alone does not notice
    assert found.spread is not None
    assert found.spread.difference == pytest.approx(math.log(factor))
    assert found.spread.agrees is agrees
    # Of two normal samples of 50 the log of the ratio has a standard error of about √(2/98).
    assert factor == 1.0 or found.spread.difference / found.spread.errors == pytest.approx(
        math.sqrt(2 / 98), rel=0.2
    )
    text = comparison.difference_columns(comparison.compare_regret, "{:+,.0f}")[2].text(row)
    assert text == f"×{factor:.2f}" + ("" if agrees else ", differs")


@pytest.mark.parametrize(
    ("offset", "agrees", "word"), [(609.0, True, ""), (-612.0, False, "lower"), (612.0, False, "higher")]
)
def test_ten_per_cent_agree_if_the_errors_are_small(offset: float, agrees: bool, word: str) -> None:
    mean = published.FINAL_REGRET[W1]["ind"].value + offset
    row, found = regret_of("ind", "independent", [mean - 1.0, mean + 1.0])
    assert found.mean.agrees is agrees
    assert found.median.agrees is agrees
    remark = comparison.regret_remark(row, found)
    if agrees:
        assert remark is None
    else:
        assert remark == (
            f"Ind, First: mean {mean:,.0f} here, 6,100.7 in print, 10% {word}, "
            f"{abs(found.mean.errors):.1f} standard errors. {comparison.REASONS['independent']}"
        )


def test_three_standard_errors_agree_if_they_are_more_than_ten_per_cent() -> None:
    printed = published.FINAL_REGRET[W1]["oracle"]  # 318.5 ± 684.0
    error = printed.spread / math.sqrt(50)
    assert error > 0.1 * printed.value
    for times, agrees in ((2.9, True), (3.1, False)):
        _, found = regret_of("oracle", "oracle", [printed.value + times * error] * 2)
        assert found.mean.errors == pytest.approx(times)
        assert found.mean.agrees is agrees


def test_a_single_run_agrees_within_ten_per_cent() -> None:
    row, found = regret_of("ind", "independent", [1000.0])
    assert math.isnan(found.mean.errors)
    assert not found.mean.agrees
    assert found.spread is None
    assert "standard errors" not in (comparison.regret_remark(row, found) or "")
    assert (
        comparison.difference_columns(comparison.compare_regret, "{:+,.0f}")[0].text(row) == "−5,101, differs"
    )


def test_a_variant_is_compared_with_the_method_it_varies() -> None:
    _, found = regret_of("cmlb-g4-e3000", "cmlb", [5000.0, 6000.0])
    assert found.printed == published.FINAL_REGRET[W1]["cmlb-g4"]


@pytest.mark.parametrize(
    "change", [{"horizon": 20_000}, {"n_agents": 50}, {"dim": 5}, {"n_arms": 30}, {"gap": 1.27}]
)
def test_other_sizes_are_noticed(change: Mapping[str, Any]) -> None:
    assert has_published_sizes(make_table(rows_of("ind", "independent", 0.3, [1.0, 2.0])), W1)
    assert not has_published_sizes(make_table(rows_of("ind", "independent", 0.3, [1.0, 2.0], **change)), W1)


def test_real_data_has_no_gap() -> None:
    changes = {"environment": "movielens-rated", "n_arms": 30, "gap": math.nan}
    assert has_published_sizes(
        make_table(rows_of("ind", "independent", 0.3, [1.0], **changes)), "movielens-rated"
    )
    assert published.SETTINGS["movielens-rated"].data == "MovieLens 25M"


def test_scenarios_and_methods_without_print() -> None:
    table = make_table(
        rows_of("mine", "mine", 0.3, [1.0, 2.0]),
        rows_of("ind", "independent", 0.3, [1.0], environment="gaussian-s1"),
    )
    assert [comparison.compare_regret(row) for row in main_rows(table, NO_NAMES)] == [None, None]
    assert not has_published_sizes(table, "gaussian-s1")


def test_as_published_takes_the_best_of_the_five_values_where_all_were_run() -> None:
    def curve_of(method: str, policy: str, regrets: Mapping[float, float]) -> list[list[dict[str, Any]]]:
        return [rows_of(method, policy, alpha, [regret] * 2) for alpha, regret in regrets.items()]

    five = dict(zip(published.ALPHAS, (50.0, 20.0, 30.0, 40.0, 60.0), strict=True))
    table = make_table(
        *curve_of("ind", "independent", {**five, 0.3: 10.0}),
        *curve_of("club-g4", "club", {0.1: 5.0, 0.3: 4.0}),  # stopped early
        *curve_of("mixture", "cluster_mixture", {0.6: 3.0}),
    )
    names = Names({}, {}, frozenset({"mixture"}))
    assert {row.method: row.alpha for row in main_rows(table, names)} == {
        "ind": 0.3,
        "club-g4": 0.3,
        "mixture": 0.6,
    }
    found = comparison.as_published(table, names)
    assert {method: (row.alpha, row.regret.mean) for (_, method), row in found.items()} == {
        "ind": (0.825, 20.0),  # ours were not published
    }


def score_of(method: str, policy: str, scores: list[float], **changes: Any) -> tuple[SummaryRow, Comparison]:
    row = only_row(make_table(rows_of(method, policy, 0.3, [1.0] * len(scores), f1=scores, **changes)))
    found = comparison.compare_f1(row)
    assert found is not None
    return row, found


def test_f1_agrees_up_to_half_a_digit_of_a_number_that_rounds_to_it() -> None:
    for score, agrees in ((0.6, True), (0.59, False), (0.8, True), (0.81, False)):  # print says 0.7
        row, found = score_of("bass-d0.1", "bass", [score] * 2)
        assert found.mean.agrees is agrees
        assert (comparison.f1_remark(row, found) is None) is agrees
    assert score_of("bass-d0.1", "bass", [0.75] * 2)[1].mean.errors == 0.0  # rounding can explain it
    wide = {"environment": "synthetic-m3-w7", "gap": 1.27}
    assert published.F1["synthetic-m3-w7"]["cmlb-g4"] == (0.0, 0.2)
    assert score_of("cmlb-g4", "cmlb", [0.0, 0.2] * 8, **wide)[1].mean.agrees
    row, found = score_of("cmlb-g4", "cmlb", [0.4, 0.5] * 8, **wide)
    assert comparison.f1_remark(row, found) == (
        "cmlb-g4, synthetic-m3-w7: F1 0.45 here, 0.0 in print, 0.45 higher, "
        f"{found.mean.errors:.1f} standard errors."
    )


def test_no_f1_without_labels() -> None:
    table = make_table(rows_of("bass-d0.1", "bass", 0.3, [1.0, 2.0], f1=[math.nan] * 2))
    row = only_row(table)
    assert row.f1 is None
    assert comparison.compare_f1(row) is None
    assert curve(table, "curve_f1", row.cell) is None
    assert comparison.f1_remark(row, None) is None


def test_paired_comparison_agrees_with_scipy() -> None:
    rng = np.random.default_rng(5)
    ours, theirs = rng.normal(100.0, 20.0, 12), rng.normal(110.0, 20.0, 12)
    shuffled = rng.permutation(12)
    table = make_table(
        rows_of("bass-d0.1", "bass", 0.3, ours.tolist()),
        rows_of("bass-d0.9", "bass", 0.3, (ours + 5.0).tolist()),
        rows_of("ind", "independent", 0.6, theirs[shuffled].tolist(), seeds=shuffled.tolist()),
    )
    (pair,) = comparison.paired_comparisons(table, main_rows(table, NO_NAMES))  # not with another BASS
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
    (pair,) = comparison.paired_comparisons(table, main_rows(table, NO_NAMES))
    assert (pair.runs, pair.difference, pair.won) == (2, -2.0, 1.0)


def test_paired_comparison_of_equal_runs() -> None:
    table = make_table(
        rows_of("bass-d0.9", "bass", 0.3, [1.0, 2.0]), rows_of("ind", "independent", 0.3, [1.0, 2.0])
    )
    (pair,) = comparison.paired_comparisons(table, main_rows(table, NO_NAMES))
    assert (pair.difference, pair.won, pair.sign_p) == (0.0, 0.0, 1.0)
    assert line(PAIRED_COLUMNS, pair)[1:3] == ["+0", "+0 to +0"]


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
        varied("s0", 0.3, 6.0, gamma=1.5, radius="beta", param_norm=0.0),
        rows_of("bass-d0.9", "bass", 0.3, [2.0], parameters={"delta": 0.9}),
        rows_of("ind", "independent", 0.3, [2.0]),
    )
    found = [(p.radius, p.param_norm, p.gamma, p.alpha, p.regret.mean) for p in gamma_points(table)]
    assert found == [
        ("beta", 0.0, 1.5, 0.3, 6.0),
        ("beta", 1.0, 1.5, 0.3, 8.0),
        ("beta", 1.0, 2.0, 0.3, 7.0),
        ("beta_squared", 1.0, 1.25, 0.3, 5.0),
    ]
    assert [(p.gamma, p.alpha) for p in gamma_points(table, [0.1])] == [(1.5, 0.1)]
    shown = gamma_table("c", gamma_points(table), {W1: "First"})
    assert list(shown.header) == ["radius", "S", "γ", "First"]
    assert list(shown.lines)[1:3] == [
        ["β", "1", "1.5", "8, F1 0.50 at α=0.3"],
        ["β", "1", "2", "7, F1 0.50 at α=0.3"],
    ]


def test_our_own_method_is_marked_and_not_among_bass_s_rivals() -> None:
    table = make_table(
        rows_of("ind", "independent", 0.3, [10.0, 20.0]),
        rows_of("bass-d0.1", "bass", 0.3, [5.0, 6.0]),
        rows_of("mixture", "cluster_mixture", 0.6, [3.0, 4.0]),
        rows_of("mixture-best", "cluster_mixture", 0.6, [3.0, 4.0]),
        rows_of("mixture-best", "cluster_mixture", 1.0, [4.0, 5.0]),
    )
    rows = main_rows(table, Names({}, {}, frozenset({"mixture"})))
    assert [(row.method, comparison.is_ours(row), row.fixed) for row in rows] == [
        ("ind", False, False),
        ("bass-d0.1", False, False),
        ("mixture", True, True),
        ("mixture-best", True, False),
    ]
    assert [comparison.at(row, "{:,.0f}", row.regret) for row in rows[2:]] == [
        "4 ± 1 at α=0.6 (fixed)",
        "4 ± 1 at α=0.6 (edge)",
    ]
    assert [comparison.compare_regret(row) for row in rows[2:]] == [None, None]
    assert [pair.method for pair in comparison.paired_comparisons(table, rows)] == ["ind"]


def test_a_yardstick_is_neither_the_paper_s_nor_ours() -> None:
    table = make_table(
        [
            *rows_of("bass-d0.1", "bass", 0.3, [10.0, 11.0]),
            *rows_of("ind", "independent", 0.3, [30.0, 31.0]),
            *rows_of("informed", "shoal.lab.experiments.informed:Informed", 0.0, [1.0, 2.0]),
        ]
    )
    rows = main_rows(table, NO_NAMES)
    assert [pair.method for pair in comparison.paired_comparisons(table, rows)] == ["ind"]
    (told,) = (row for row in rows if row.method == "informed")
    assert not comparison.is_in_paper(told)
    assert not comparison.is_ours(told)


def test_numbers_as_text() -> None:
    row = only_row(make_table(rows_of("bass-d0.1", "bass", 0.3, [90.0, 110.0], f1=[0.0, 0.004])))
    # Intervals end where a regret and a score end: at 0.
    assert line(REGRET_COLUMNS, row) == ["bass-d0.1", "0.3", "100 ± 14", "0 to 227", "100", "2"]
    assert line(F1_COLUMNS, row)[:3] == ["bass-d0.1", "0.00 ± 0.00", "0.00 to 0.03"]
    columns = (
        comparison.printed_column(comparison.compare_regret, "{:,.1f}"),
        *comparison.difference_columns(comparison.compare_regret, "{:+,.0f}"),
    )
    assert line(columns, row) == [
        "1,096.8 ± 411.9",
        "−997 (−16.9), differs",
        "−997 (−13.6), differs",
        "×0.03, differs",
    ]
    assert line(columns, only_row(make_table(rows_of("mine", "mine", 0.3, [1.0])))) == ["–"] * 4


def test_published_figures_are_whole() -> None:
    assert set(published.FINAL_REGRET) == set(published.SETTINGS)
    assert {len(methods) for methods in published.FINAL_REGRET.values()} == {11}
    for environment, scores in published.F1.items():
        assert set(scores) == set(published.FINAL_REGRET[environment])
    assert published.FINAL_REGRET["synthetic-m3-w7"]["bass-d0.1"] == (1617.5, 689.8)
    assert published.FINAL_REGRET["yahoo-ltr"]["cmlb-0.1"] == (16812.5, 405.1)
    assert published.CPU_HOURS == 8400
    assert set(comparison.REASONS) == {
        "independent", "oracle", "dynucb", "club", "sclub", "bass", "cmlb",
    }  # fmt: skip


def test_a_search_of_alpha_includes_the_fixed_value_of_the_same_method() -> None:
    table = make_table(
        rows_of("mixture", "cluster_mixture", 0.6, [3.0, 5.0]),
        rows_of("searched", "cluster_mixture", 0.1, [9.0, 9.0]),
        rows_of("searched", "cluster_mixture", 1.0, [6.0, 6.0]),
    )
    names = Names({}, {}, frozenset({"mixture"}), {"searched": frozenset({"mixture"})})
    found = {row.method: row for row in main_rows(table, names)}
    assert (found["searched"].alpha, found["searched"].regret.mean) == (0.6, 4.0)
    assert found["searched"].regret_by_alpha.x.tolist() == [0.1, 0.6, 1.0]
    assert (found["mixture"].alpha, found["mixture"].fixed) == (0.6, True)
