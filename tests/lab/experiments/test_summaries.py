"""The numbers of the report, against hand computation and scipy."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from shoal.lab.experiments import summaries
from shoal.lab.experiments.report import F1_COLUMNS, PAIRED_COLUMNS, REGRET_COLUMNS, line
from shoal.lab.experiments.results import columns
from shoal.lab.experiments.summaries import Names, SummaryRow

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
    """Runs as `load_runs` gives them: what is stored, and the number of the run within its grid."""
    schema = columns().insert(columns().get_field_index("seed"), pa.field("run", pa.int32()))
    return pa.Table.from_pylist([row for cell in cells for row in cell], schema=schema)


def only_row(table: pa.Table, names: Names = NO_NAMES) -> SummaryRow:
    (row,) = summaries.main_rows(table, names)
    return row


def test_summary_by_hand() -> None:
    found = summaries.summarize(np.array([1.0, 2.0, 3.0, 6.0]))
    assert found.mean == 3.0
    assert found.std == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3))
    assert found.median == 2.5
    assert found.runs == 4
    half = 3.182446305 * found.std / 2.0  # the t quantile with 3 degrees of freedom, from a table
    assert (found.low, found.high) == pytest.approx((3.0 - half, 3.0 + half))


def test_summary_of_a_single_run_has_no_interval() -> None:
    found = summaries.summarize(np.array([4.0]))
    assert found.mean == found.median == 4.0
    assert math.isnan(found.std)
    assert math.isnan(found.low)
    assert line(REGRET_COLUMNS, only_row(make_table(rows_of("ind", "independent", 0.1, [4.0]))))[2:4] == [
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


def test_no_grid_is_wider_than_zero() -> None:
    best = {0.0: False, 0.1: False, 0.3: True}
    for alpha, is_edge in best.items():
        table = make_table(*(rows_of("ind", "independent", a, [1.0 + abs(a - alpha)] * 2) for a in best))
        assert only_row(table).alpha == alpha
        assert only_row(table).at_edge == is_edge


def test_runs_are_put_in_order() -> None:
    table = make_table(rows_of("ind", "independent", 0.1, [7.0, 5.0, 6.0], seeds=[2, 0, 1]))
    (cell,) = summaries.find_cells(table)
    assert summaries.column(table, "final_regret", cell).tolist() == [5.0, 6.0, 7.0]


def test_mean_curve_by_hand() -> None:
    table = make_table(rows_of("ind", "independent", 0.1, [10.0, 14.0]))
    found = summaries.curve(table, "curve_regret", summaries.find_cells(table)[0])
    assert found is not None
    assert found.x.tolist() == [25_000.0, 50_000.0]
    assert found.mean.tolist() == [6.0, 12.0]
    half = 12.70620474 * math.sqrt(8.0) / math.sqrt(2.0)  # t with 1 degree of freedom
    assert found.high[1] - 12.0 == pytest.approx(half)
    assert found.low[1] == 0.0  # a regret is not negative, so its interval ends there
    small = rows_of("ind", "independent", 0.1, [100.0, 104.0], f1=[0.9, 1.0])
    table = make_table(small)
    (cell,) = summaries.find_cells(table)
    low = summaries.curve(table, "curve_regret", cell)
    score = summaries.curve(table, "curve_f1", cell)
    assert low is not None
    assert score is not None
    assert low.low[1] == pytest.approx(102.0 - half)
    assert (score.high <= 1.0).all()
    assert (score.low >= 0.0).all()


def test_curves_recorded_after_different_rounds_are_refused() -> None:
    rows = rows_of("ind", "independent", 0.1, [10.0, 14.0])
    rows[1]["curve_rounds"] = [1, 2]
    table = make_table(rows)
    with pytest.raises(ValueError, match="synthetic-m3-w1/ind"):
        summaries.curve(table, "curve_regret", summaries.find_cells(table)[0])


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


def test_order_and_names_come_from_the_spec() -> None:
    table = make_table(
        rows_of("a", "independent", 0.1, [1.0]),
        rows_of("b", "club", 0.1, [1.0]),
        rows_of("stray", "club", 0.1, [1.0]),
        rows_of("a", "independent", 0.1, [1.0], environment="first"),
    )
    names = Names({"first": "First", W1: "Second"}, {"b": "Bee", "a": "Ay"})
    assert [(row.title, row.label) for row in summaries.main_rows(table, names)] == [
        ("First", "Ay"),
        ("Second", "Bee"),
        ("Second", "Ay"),
        ("Second", "stray"),
    ]


def test_no_f1_without_labels() -> None:
    table = make_table(rows_of("bass-d0.1", "bass", 0.3, [1.0, 2.0], f1=[math.nan] * 2))
    row = only_row(table)
    assert row.f1 is None
    assert summaries.curve(table, "curve_f1", row.cell) is None


def test_each_method_is_paired_with_the_best_of_its_environment() -> None:
    rng = np.random.default_rng(5)
    best, worse = rng.normal(100.0, 20.0, 12), rng.normal(150.0, 20.0, 12)
    table = make_table(
        rows_of("b", "club", 0.6, worse.tolist()),
        rows_of("a", "independent", 0.3, best.tolist()),
        rows_of("a", "independent", 0.3, [1.0], environment="alone"),
    )
    (pair,) = summaries.paired_with(table, summaries.main_rows(table, NO_NAMES), summaries.best_row)
    assert (pair.environment, pair.reference, pair.method) == (W1, "a", "b")
    assert pair.difference == pytest.approx(float(np.mean(best - worse)))
    expected = stats.ttest_rel(best, worse).confidence_interval(0.95)
    assert (pair.low, pair.high) == pytest.approx(tuple(expected))
    assert len(line(PAIRED_COLUMNS, pair)) == 7


def test_numbers_as_text() -> None:
    row = only_row(make_table(rows_of("a", "independent", 0.3, [90.0, 110.0], f1=[0.0, 0.004])))
    assert line(REGRET_COLUMNS, row) == ["a", "0.3", "100 ± 14", "0 to 227", "100", "2"]
    assert line(F1_COLUMNS, row) == ["a", "0.00 ± 0.00", "0.00 to 0.03", "2"]
