"""Our figures beside the published ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from tests.experiments.test_summaries import NO_NAMES, W1, make_table, rows_of

from shoal.experiments.report import F1_COLUMNS, PAIRED_COLUMNS, REGRET_COLUMNS, line
from shoal.experiments.summaries import Names, Row, curve, main_rows
from shoal.paper import comparison, published
from shoal.paper.comparison import Comparison, is_comparable
from shoal.paper.gamma import gamma_points


@dataclass(frozen=True)
class Compared:
    """A row, and what the report says of it."""

    row: Row
    same: bool

    @property
    def regret_printed(self) -> Comparison | None:
        return comparison.compare_regret(self.row, same=self.same)

    @property
    def f1_printed(self) -> Comparison | None:
        return comparison.compare_f1(self.row, same=self.same)

    @property
    def regret_line(self) -> list[str]:
        more = comparison.regret_columns(lambda row: comparison.compare_regret(row, same=self.same))
        return line((*REGRET_COLUMNS, *more), self.row)

    @property
    def f1_line(self) -> list[str]:
        more = comparison.f1_columns(lambda row: comparison.compare_f1(row, same=self.same))
        return line((*F1_COLUMNS, *more), self.row)

    @property
    def regret_remark(self) -> str | None:
        return comparison.regret_remark(self.row, self.regret_printed)

    @property
    def f1_remark(self) -> str | None:
        return comparison.f1_remark(self.row, self.f1_printed)


def compared(table: pa.Table, names: Names = NO_NAMES) -> list[Compared]:
    return [Compared(row, is_comparable(table, row.environment)) for row in main_rows(table, names)]


def only_row(table: pa.Table, names: Names = NO_NAMES) -> Compared:
    (found,) = compared(table, names)
    return found


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
    remark = row.regret_remark
    assert row.regret_line[-1] == ("yes" if within else "no")
    if within:
        assert remark is None
    else:
        assert remark is not None
        assert remark.startswith(
            f"Ind, First: {mean:,.0f} here, 6,100.7 in print, that is 469 {word}, 1.0 printed standard"
        )
        assert comparison.REASONS["independent"] in remark


def remark_on(*cells: list[dict[str, Any]]) -> str:
    remark = only_row(make_table(*cells)).regret_remark
    assert remark is not None
    return remark


def test_remark_says_whether_another_alpha_gives_the_printed_value() -> None:
    best = rows_of("ind", "independent", 0.3, [4000.0, 4001.0])
    explained = remark_on(best, rows_of("ind", "independent", 1.0, [6000.0, 6001.0]))
    assert explained.endswith(
        "1 comes closest to the printed mean, with 6,000: another α is enough to explain the difference."
    )
    assert remark_on(best, rows_of("ind", "independent", 1.0, [5000.0, 5001.0])).endswith(
        "1 comes closest to the printed mean, with 5,000: α alone does not explain the difference."
    )
    assert "α alone" not in remark_on(best)  # a single α says nothing


def test_remark_owns_up_to_too_few_runs() -> None:
    remark = remark_on(rows_of("ind", "independent", 0.3, [1000.0, 8000.0]))
    assert remark.endswith("with 2 runs, chance alone can explain this.")
    assert comparison.REASONS["independent"] not in remark


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
    assert row.regret_remark is None
    assert row.f1_remark is None
    assert row.regret_line[-3:] == ["6,100.7 ± 468.4", "–", "–"]


def test_scenarios_and_methods_without_print() -> None:
    table = make_table(
        rows_of("mine", "mine", 0.3, [1.0, 2.0]),
        rows_of("ind", "independent", 0.3, [1.0], environment="gaussian-s1"),
    )
    assert [row.regret_printed for row in compared(table)] == [None, None]
    assert not is_comparable(table, "gaussian-s1")


def test_f1_agrees_up_to_its_printed_digit_or_std() -> None:
    def verdict(method: str, policy: str, score: float) -> bool | None:
        row = only_row(make_table(rows_of(method, policy, 0.3, [1.0, 1.0], f1=[score, score])))
        assert row.f1_printed is not None
        assert (row.f1_remark is None) is row.f1_printed.within
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
    assert row.row.f1 is None
    assert row.f1_printed is None
    assert curve(table, "curve_f1", row.row.cell) is None
    assert row.f1_remark is None


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
        rows_of("bass-d0.9", "bass", 0.3, [2.0], parameters={"delta": 0.9}),
        rows_of("ind", "independent", 0.3, [2.0]),
    )
    found = [(p.radius, p.gamma, p.alpha, p.regret.mean) for p in gamma_points(table)]
    assert found == [("beta", 1.5, 0.3, 8.0), ("beta", 2.0, 0.3, 7.0), ("beta_squared", 1.25, 0.3, 5.0)]


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
    fixed, searched = (Compared(row, True).regret_line for row in rows[2:])
    assert fixed[1] == "0.6 (fixed)"
    assert searched[1] == "0.6 (edge)"
    assert fixed[-3:] == searched[-3:] == ["not in the paper", "–", "–"]
    assert Compared(rows[2], True).f1_line[-3:] == ["not in the paper", "–", "–"]
    assert [pair.method for pair in comparison.paired_comparisons(table, rows)] == ["ind"]


def test_numbers_as_text() -> None:
    row = only_row(make_table(rows_of("bass-d0.1", "bass", 0.3, [90.0, 110.0], f1=[0.0, 0.004])))
    assert row.regret_line == [
        "bass-d0.1", "0.3", "100 ± 14", "−27 to 227", "100", "2", "1,096.8 ± 411.9", "−997", "no",
    ]  # fmt: skip
    assert row.f1_line[:3] == ["bass-d0.1", "0.00 ± 0.00", "−0.02 to 0.03"]


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
