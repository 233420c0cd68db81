"""The theory against simulation: what is measured, how it is kept, and when a bound counts as broken."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

import shoal
from shoal.lab import theory
from shoal.lab.experiments.measurements import DIRECTORY
from shoal.lab.experiments.report import line
from shoal.lab.experiments.runner import run_experiment
from shoal.lab.experiments.spec import parse_spec
from shoal.lab.metrics import misassigned_agents, same_cluster
from shoal.lab.paper import judging, measuring, theory_page
from shoal.lab.paper.judging import Check
from shoal.lab.paper.measuring import Band, ClusterRuns, Coverage, Measured, Sharing, TheorySetting

TINY = TheorySetting(
    coverage_deltas=(0.1, 0.9),
    coverage_scales=(0.1, 1.0),
    coverage_rounds=40,
    coverage_runs=300,
    gaps=(0.9, 2.0),
    pairs=12,
    one_arm=((0.1, "beta_squared"), (0.1, "beta")),
    one_arm_pairs=20,
    low_noise_gaps=(1.27,),
    low_noise_ratios=(0.1, 0.2),
    sharing_gaps=(0.0, 1.27),
    sharing_rounds=120,
    sharing_runs=4,
    n_agents=6,
    n_clusters=2,
    cluster_dim=2,
    cluster_rounds=300,
    cluster_runs=4,
    points=10,
)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measuring.measure(TINY)


# Verdicts


@pytest.mark.parametrize(
    ("numbers", "side", "bound", "expected"),
    [
        ((0.95, 0.90, 0.99), "at least", 0.9, "yes"),
        ((0.9, 0.80, 0.95), "at least", 0.9, "yes"),
        ((0.85, 0.80, 0.89), "at least", 0.9, "no"),
        ((0.88, 0.83, 0.92), "at least", 0.9, "not decided"),
        ((0.05, 0.01, 0.12), "at most", 0.1, "yes"),
        ((0.2, 0.11, 0.3), "at most", 0.1, "no"),
        ((0.2, 0.05, 0.3), "at most", 0.1, "not decided"),
    ],
)
def test_a_bound_is_broken_only_when_the_whole_interval_is_beyond_it(
    numbers: tuple[float, float, float], side: Any, bound: float, expected: str
) -> None:
    assert judging.verdict(*numbers, side, bound) == expected


@pytest.mark.parametrize(("successes", "runs"), [(0, 20), (3, 20), (20, 20), (190, 400)])
def test_share_interval_agrees_with_scipy(successes: int, runs: int) -> None:
    reference = stats.binomtest(successes, runs).proportion_ci(0.95, method="exact")
    assert judging.share_interval(successes, runs) == pytest.approx((reference.low, reference.high))
    wider = judging.share_interval(successes, runs, 0.99)
    assert wider[0] <= reference.low <= reference.high <= wider[1]


def test_band_interval_by_hand() -> None:
    mean, low, high = judging.band_interval(Band((5.0,), (2.0,)), 2)  # t with 1 degree of freedom
    assert (mean[0], low[0], high[0]) == pytest.approx((5.0, 5.0 - 25.4124095, 5.0 + 25.4124095))


def check(**changes: Any) -> Check:
    values: dict[str, Any] = {
        "result": "Result",
        "setting": "here",
        "reading": "printed",
        "unmet": (),
        "quantity": "share",
        "measured": 0.5,
        "low": 0.4,
        "high": 0.6,
        "side": "at least",
        "bound": 0.9,
        "runs": 1000,
        "holds": "no",
    }
    return Check(**{**values, **changes})


def test_a_broken_bound_is_said_with_the_reading_that_holds() -> None:
    checks = [
        check(),
        check(reading="derived", holds="no"),
        check(reading="corrected", holds="yes"),
        check(setting="there", holds="yes"),
        check(setting="there", reading="corrected", holds="yes"),
        check(result="Other", holds="yes"),
    ]
    assert theory_page.remarks(checks) == [
        "Result: broken as printed in 1 of 2 experiments, as derived in 1 of 1 experiment. It holds as "
        "corrected."
    ]
    lost = check(setting="there", unmet=(judging.UNSQUARED,))
    (text,) = theory_page.remarks([*checks[:3], lost])
    assert text.endswith(
        "It holds as corrected, except in what follows. No reading holds in this experiment: there, where "
        "the test is scaled by β, not β²."
    )
    assert theory_page.remarks([check(holds="yes"), check(holds="not decided")]) == []


def test_summary_counts_everything() -> None:
    verdicts = ("yes", "yes", "no", "not decided", "does not apply")
    assert theory_page.summary([check(holds=name) for name in verdicts]) == (
        "2 of 5 comparisons hold and 1 are broken; in 1 the interval does not decide; 1 cannot be made: the "
        "bound's condition cannot be met."
    )


def test_a_line_names_assumptions_interval_bound_and_runs() -> None:
    text = line(theory_page.COLUMNS, check(unmet=("one", "two"), note="worst at gap 2"))
    assert text == [
        "Result", "here", "printed", "not met: one; two", "share: 0.5 (0.4 to 0.6); worst at gap 2",
        "at least 0.9", "1,000", "no",
    ]  # fmt: skip
    assert len(text) == len(theory_page.COLUMNS)
    assert line(theory_page.COLUMNS, check())[3] == "all hold"
    assert line(theory_page.COLUMNS, check(bound=None, note="why"))[4:6] == ["why", "none"]


# Judging made-up measurements


def made_up(**changes: Any) -> Measured:
    """Measurements in which every bound is kept, as far as it can be."""
    runs, points = TINY.cluster_runs, (30, 300)
    never, late = (-1,) * TINY.one_arm_pairs, (50,) * TINY.pairs
    flat = Band((0.0, 0.0), (0.0, 0.0))
    cluster = ClusterRuns("beta_squared", points, flat, flat, flat, (1.0,) * runs, 5.0, (20.0,) * runs)
    values: dict[str, Any] = {
        "setting": TINY,
        "coverage": Coverage(((1.0, 1.0),) * 2, ((1.0, 1.0),) * 2),
        "separation": {radius: (late, late) for radius in measuring.RADII},
        "one_arm": ((never, never), (never, never)),
        "low_noise": (((1,) * TINY.pairs,) * 2,),
        "sharing": tuple(
            Sharing(gap, radius, (0.1, 0.1, 0.1), (-1,) * 4, ((1.0, 1.0),) * 4, points, flat, flat)
            for radius in measuring.RADII
            for gap in TINY.sharing_gaps
        ),
        "clusters": (cluster, msgspec.structs.replace(cluster, policy="oracle")),
        "exploring": (cluster,),
    }
    return Measured(**{**values, **changes})


def verdicts(found: Measured) -> dict[tuple[str, str, str], str]:
    return {(entry.result, entry.setting, entry.reading): entry.holds for entry in judging.judge(found)}


def broken(found: Measured) -> set[str]:
    return {
        f"{result}, {reading}" for (result, _, reading), holds in verdicts(found).items() if holds == "no"
    }


ALWAYS = {"Regret from below (ν/N), printed", "Communication, printed (T in rounds)"}
"""What nothing measured here can keep: regret is small, and rounds are fewer than pulls."""


def test_made_up_measurements_keep_every_bound() -> None:
    assert broken(made_up()) == ALWAYS
    assert "does not apply" in verdicts(made_up()).values()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"coverage": Coverage(((1.0, 1.0), (0.5, 1.0)), ((1.0, 1.0),) * 2)},
            {"Confidence ellipsoid, printed"},
        ),
        (
            {"separation": {radius: ((-1,) * TINY.pairs,) * 2 for radius in measuring.RADII}},
            {"Separation time, from above, derived", "Separation time, from above, corrected"},
        ),
        (
            {"low_noise": (((2,) * TINY.pairs, (10,) * TINY.pairs),)},
            {"Separation time, from above, printed"},
        ),
        (
            {"one_arm": (((1,) * TINY.one_arm_pairs, (-1,) * TINY.one_arm_pairs),) * 2},
            {f"Separation time, from below, {name}" for name in ("printed", "derived", "corrected")},
        ),
    ],
)
def test_measurements_beyond_a_bound_break_it(changes: dict[str, Any], expected: set[str]) -> None:
    assert broken(made_up(**changes)) - ALWAYS == expected


def test_regret_misassigned_agents_and_communication_can_be_broken_too() -> None:
    plain = made_up()
    sharing = tuple(msgspec.structs.replace(entry, regret=((1e6, 0.0),) * 4) for entry in plain.sharing)
    assert {name.rsplit(",", 1)[0] for name in broken(made_up(sharing=sharing)) - ALWAYS} == {
        "Regret while sharing, one agent",
        "Regret while sharing, mean of both",
    }
    worse = msgspec.structs.replace(
        plain.exploring[0], misassigned=Band((2.0, 2.0), (0.01, 0.01)), largest_cost=(31.0,) * 4
    )
    assert broken(made_up(exploring=(worse,))) - ALWAYS == {
        "Misassigned agents, printed",
        "Misassigned agents, derived",
        "Communication, derived (T in pulls)",
    }
    ruined = tuple(msgspec.structs.replace(entry, worst_regret=(1e6,) * 4) for entry in plain.clusters)
    assert broken(made_up(clusters=ruined)) - ALWAYS == {
        f"Regret {who}, {reading}"
        for who in ("under clusters", "of the oracle")
        for reading in ("printed", "derived")
    }


def test_the_worst_case_is_shown_with_an_interval_for_all_of_them() -> None:
    shares = ((0.95, 0.5), (0.86, 0.5))
    found = judging.check_coverage(made_up(coverage=Coverage(shares, shares)))[1]
    assert (found.measured, found.bound, found.runs) == (0.86, 0.9, 300)
    assert found.note == "worst at δ = 0.1; reached at δ = 0.9"
    assert (found.low, found.high) == pytest.approx(judging.share_interval(258, 300, 0.975))
    assert found.holds == "not decided"


# Measuring


def test_measurements_are_the_same_each_time_and_depend_on_the_seed(measured: Measured) -> None:
    small = msgspec.structs.replace(TINY, coverage_runs=50)
    assert measuring.measure_coverage(small) == measuring.measure_coverage(small)
    assert measuring.measure_separation(TINY, "beta") == measured.separation["beta"]
    assert measuring.measure_sharing(TINY, 1.27, "beta") in measured.sharing
    other = msgspec.structs.replace(TINY, seed=7)
    assert measuring.measure_separation(other, "beta") != measured.separation["beta"]


GRID = """
name = "one"
horizon = 5
runs = 1
alphas = [0.1]
[[environments]]
id = "world"
kind = "synthetic"
parameters = { n_agents = 4, dim = 2, n_clusters = 2, angle = 1.0 }
[[methods]]
id = "ind"
policy = "independent"
"""


def test_measurements_are_kept_and_made_again_when_they_do_not_fit(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parse_spec(GRID.encode(), source="one.toml")

    def run(setting: TheorySetting = TINY) -> int:
        listed = [item for item in measuring.measurements(setting) if "coverage" in item.id]
        return run_experiment(spec, tmp_path, jobs=1, measurements=listed).computed

    assert measuring.load_measured(tmp_path) is None
    listed = measuring.measurements(TINY)
    assert run_experiment(spec, tmp_path, jobs=1, measurements=listed).computed == 1 + len(listed)
    assert measuring.load_measured(tmp_path) == measured
    assert run() == 0  # although it could be measured, it is stored
    path = tmp_path / DIRECTORY / "theory__coverage.json"
    content = path.read_bytes()
    old = content.replace(b'"identity":"', b'"identity":"0')
    for spoiled in (b"{", b"[]", b"\xff", content[:-9], old):
        path.write_bytes(spoiled)
        assert (measuring.load_measured(tmp_path) is None) == (spoiled is not old)
        assert run() == 1
        assert path.read_bytes() == content
    other = msgspec.structs.replace(TINY, coverage_runs=50)
    assert run(other) == 1
    assert measuring.load_measured(tmp_path) is None  # measured at two sizes


def test_coverage_needs_the_ridge_when_noise_is_small(measured: Measured) -> None:
    plain, widened = np.array(measured.coverage.plain), np.array(measured.coverage.widened)
    assert plain[0].tolist() == [0.0, 0.0]  # R = 0.1: θ is outside before the first pull
    assert plain[1, 1] == 0.0  # δ = 0.9
    assert plain[1, 0] > 0.85
    assert np.all(widened >= 1.0 - np.array(TINY.coverage_deltas))


def test_separation_times_lie_between_the_bounds(measured: Measured) -> None:
    for gap, times in zip(TINY.gaps, measured.separation["beta_squared"], strict=True):
        upper = judging.upper_bound(TINY, gap, 1.0, "derived")
        assert upper is not None
        assert theory.separation_time_lower(0.1, gap, reading="corrected") < np.median(times) < upper
        assert judging.upper_bound(TINY, gap, 1.0, "printed") is None
    for default, proofs in zip(measured.separation["beta"], measured.separation["beta_squared"], strict=True):
        assert np.median(default) < np.median(proofs)
    assert judging.upper_bound(TINY, 1.27, 0.254, "printed") == 9


def test_one_arm_is_played_no_longer_than_the_bound_speaks_of(measured: Measured) -> None:
    readings = measuring.READINGS
    for times in measured.one_arm:
        for gap, row in zip(TINY.gaps, times, strict=True):
            assert max(row) <= max(theory.separation_time_lower(0.1, gap, reading=name) for name in readings)


def test_cheap_checks_hold_as_derived_with_the_radius_of_the_proofs(measured: Measured) -> None:
    """With few runs nothing holds by luck alone; what the theory proves must not be broken."""
    for entry in judging.judge(measured):
        if entry.reading in ("derived", "corrected", "derived (T in pulls)") and not entry.setting.endswith(
            "β"
        ):
            assert entry.holds in ("yes", "not decided"), entry
            assert entry.low <= entry.measured <= entry.high
            assert entry.runs > 0


def test_regret_of_agents_adds_up() -> None:
    world = shoal.GaussianClusters(5, 3, 2, n_arms=4, seed=0)
    trace = shoal.simulate(
        shoal.Independent(5, 3, alpha=0.5), world, horizon=30, seed=1, pulling="synchronous"
    )
    by_agent = measuring.agent_regret(trace, world)
    assert by_agent.shape == (30, 5)
    assert by_agent.sum(axis=1) == pytest.approx(trace.regret)


def test_misassigned_agents_over_rounds_are_those_of_the_graph() -> None:
    labels = np.array([0, 0, 0, 1, 1])
    theta = np.array([[1.0, 0.0], [-1.0, 0.0]])[labels]
    world = shoal.Environment(np.eye(2), theta_star=theta, labels=labels)
    truth = same_cluster(labels)

    def played(rounds: int) -> tuple[shoal.BASS, shoal.Trace]:
        policy = shoal.BASS(5, 2, alpha=1.0, delta=0.1, epsilon=1.0, seed=3)
        return policy, shoal.simulate(policy, world, horizon=rounds, seed=3, pulling="synchronous")

    found = measuring.misassigned_over_rounds(played(60)[1], truth, 60)
    wrong = [misassigned_agents(played(t)[0].graph, truth).mean() for t in range(1, 61)]
    assert found == pytest.approx(wrong)
    assert len(set(wrong)) > 3


def test_given_arms_are_the_same_for_all_agents() -> None:
    order = np.array([1, 0, 1, 1])
    theta = np.array([[3.0, 4.0], [5.0, 6.0]])
    world = measuring.GivenArms(np.eye(2), order, theta_star=theta, noise_scale=0.0)
    policy = shoal.Independent(2, 2, alpha=1.0)
    trace = shoal.simulate(policy, world, horizon=4, seed=0, pulling="synchronous")
    assert trace.rewards.tolist() == [4.0, 6.0, 3.0, 5.0, 4.0, 6.0, 4.0, 6.0]
    assert trace.final_regret == 0.0
    assert np.array_equal(policy.state.local.A[0], np.diag([2.0, 4.0]))
    assert np.array_equal(policy.state.local.A[0], policy.state.local.A[1])


def test_equidistant_vectors() -> None:
    vectors = measuring.equidistant(3, 5, 1.27)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert np.linalg.norm(vectors[first] - vectors[second]) == pytest.approx(1.27)
    with pytest.raises(ValueError, match="gap"):
        measuring.equidistant(3, 5, 1.9)
    with pytest.raises(ValueError, match="dim"):
        measuring.equidistant(3, 2, 1.0)


def test_pairs_are_unit_vectors_at_their_distance() -> None:
    for gap in (0.0, 0.2, 2.0):
        first, second = measuring.pair_at(gap)
        assert math.hypot(*first) == pytest.approx(math.hypot(*second)) == pytest.approx(1.0)
        assert math.dist(first, second) == pytest.approx(gap, abs=1e-7)
