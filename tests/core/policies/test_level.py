"""`BASS(level=…)`: the γ it takes, what it refuses, that it keeps its word, and that files keep it."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.policies.bass.level import GAMMAS, LEVELS, RATIOS


def gamma(level: float, ratio: float = 1.0, dim: int = 4, **own: Any) -> float:
    return shoal.BASS(0, dim, level=level, param_norm=ratio, **own).gamma


def test_the_table_at_its_points_and_between() -> None:
    for dim, rows in GAMMAS.items():
        for ratio, row in zip(RATIOS, rows, strict=True):
            assert [gamma(level, ratio, dim) for level in LEVELS] == pytest.approx(list(row), rel=1e-12)
            assert list(row) == sorted(row, reverse=True)  # a smaller level needs a larger γ
    low, middle, high = gamma(0.1), gamma(0.07), gamma(0.05)
    assert low < middle < high
    assert gamma(0.05, math.sqrt(0.3)) == pytest.approx((gamma(0.05, 0.3) + gamma(0.05, 1.0)) / 2)


def test_only_the_ratio_to_the_noise_counts() -> None:
    same = gamma(0.05, 2.0)
    assert gamma(0.05, 4.0, noise_scale=2.0) == pytest.approx(same)
    assert gamma(0.05, 0.5, ridge=16.0) == pytest.approx(same)
    assert gamma(0.05, 2.0, dim=32) == gamma(0.05, 2.0, dim=10) < same


def test_it_is_the_proofs_test_with_that_gamma() -> None:
    world, graphs = shoal.SyntheticClusters(12, 4, 2, 1.2, seed=3), []
    level = shoal.BASS(12, 4, alpha=0.3, level=0.05)
    for policy in (level, shoal.BASS(12, 4, alpha=0.3, gamma=level.gamma, radius="beta_squared")):
        shoal.simulate(policy, world, horizon=3_000, seed=3)
        graphs.append(policy.separation_time)
    np.testing.assert_array_equal(graphs[0], graphs[1])
    assert (graphs[0] >= 0).any()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gamma": 2.0}, "level sets gamma: give level=0.05 or gamma, not both"),
        ({"radius": "beta"}, "level sets radius"),
        ({"level": 0.01}, "level must be from 0.02 to 0.2 .* got 0.01"),
        ({"level": 0.5}, "level must be from 0.02 to 0.2 .* got 0.5"),
        ({"level": 0.0}, "level must be a finite number in .0, 1."),
        ({"level": "low"}, "level must be a number"),
        ({"noise_scale": None}, "level needs to know the noise"),
        ({"noise_scale": 0.05}, "param_norm / noise_scale must be from 0.1 to 10 .* got 20"),
        ({"param_norm": 0.0}, "must be from 0.1 to 10 .* got 0"),
        ({"delta": 0.2}, "level is tabulated for delta=0.1, got 0.2"),
        ({"dim": 33}, "up to 32 dimensions, got dim=33"),
    ],
)
def test_what_is_not_tabulated_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        shoal.BASS(2, **{"dim": 4, "level": 0.05} | given)


def test_without_a_level_the_test_is_the_published_one() -> None:
    policy = shoal.BASS(2, 3)
    assert (policy.parameters["level"], policy.parameters["gamma"], policy.parameters["radius"]) == (
        None,
        2.0,
        "beta",
    )
    assert policy.gamma == 2.0
    assert policy.state.threshold == 1.0
    assert not policy.state.squared


def test_files_and_copies_keep_the_level(tmp_path: Path) -> None:
    policy = shoal.BASS(3, 4, level=0.1)
    policy.save(tmp_path / "policy.npz")
    for again in (shoal.BASS.load(tmp_path / "policy.npz"), copy.deepcopy(policy)):
        assert again.parameters == policy.parameters
        assert again.gamma == policy.gamma
        assert again.state.threshold == policy.state.threshold


@pytest.mark.parametrize(("level", "dim"), [(0.05, 3), (0.2, 10)])
def test_identical_agents_are_cut_no_more_often(level: float, dim: int) -> None:
    """Arms drawn at random are among the worst cases of the published setting."""
    cut: dict[str, list[float]] = {"level": [], "published": []}
    for seed in range(70_000, 70_008):
        world = shoal.UnitClusters(12, dim, 1, n_arms=20, seed=seed)
        for name, own in (("level", {"level": level}), ("published", {})):
            policy = shoal.BASS(12, dim, epsilon=1.0, seed=seed, **own)
            shoal.simulate(policy, world, horizon=12 * 400, seed=seed)
            cut[name].append(len(policy.cuts) / 66)
    assert np.mean(cut["level"]) <= level
    if dim == 10:
        assert np.mean(cut["published"]) > 0.4


def test_a_cut_says_its_level() -> None:
    policy = shoal.BASS(2, 1, level=0.05)
    for _ in range(40):
        policy.update(0, [1.0], 1.0)
        policy.update(1, [1.0], -1.0)
    assert "a test that cuts identical agents with probability 0.05 at most" in str(policy.explain(0, 1))
    assert policy.explain(0, 1).level == 0.05
