"""When sharing helps: closed forms, properties, and the bounds against simulated agents."""

import math

import numpy as np
import pytest

from shoal.core.types import Matrix
from shoal.lab import theory
from shoal.lab.separation import separated
from shoal.lab.theory.checks import Reading

DELTA, DIM, RUNS, ROUNDS = 0.2, 3, 120, 120


def unit(rng: np.random.Generator, n: int) -> Matrix:
    rows = rng.standard_normal((n, DIM))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.parametrize(("gap", "agents"), [(0.0, 1), (0.0, 2), (0.8, 2), (0.8, 3)])
def test_regret_of_optimistic_agents_is_within_the_bound_of_each_round(gap: float, agents: int) -> None:
    """OFUL of agents that pull the same arm in each round and pool as the proof does, ridges included."""
    within = 0
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        arms, theta = unit(rng, 6), np.tile(0.9 * unit(rng, 1), (agents, 1))
        theta[1:] += gap * unit(rng, 1)
        A, b, worst = np.eye(DIM), np.zeros((agents, DIM)), -math.inf
        for _ in range(ROUNDS):
            pooled = agents * A
            logdet = float(np.linalg.slogdet(A)[1])
            inverse = np.linalg.inv(pooled)
            radius = theory.beta(DELTA, logdet + DIM * math.log(agents), param_norm=math.sqrt(agents) * 1.7)
            scores = arms @ inverse @ b.sum(axis=0) + radius * np.sqrt(
                np.einsum("kd,de,ke->k", arms, inverse, arms)
            )
            x = arms[np.argmax(scores)]
            regret = float((arms @ theta[0]).max() - x @ theta[0])
            bound = theory.instantaneous_regret_bound(
                DELTA,
                logdet,
                math.sqrt(float(x @ np.linalg.solve(A, x))),
                gaps=[math.sqrt(float(v @ A @ v)) for v in theta[0] - theta[1:]],
                dim=DIM,
                param_norm=1.7,
            )
            worst = max(worst, regret - float(bound))
            A = A + np.outer(x, x)
            b += (theta @ x + rng.standard_normal(agents))[:, None] * x
        within += worst <= 0.0
    assert within >= (1.0 - DELTA) * RUNS


def test_instantaneous_bound_by_hand() -> None:
    radius = math.sqrt(2.0 * math.log(5.0) + 4.0 * math.log(2.0))
    assert theory.instantaneous_regret_bound(
        0.2, 0.0, 0.5, gaps=[0.3], dim=4, param_norm=0.0
    ) == pytest.approx(2.0 * radius * 0.5 / math.sqrt(2.0) + 0.3)
    many = theory.instantaneous_regret_bound(0.2, [0.0, 1.0], 0.5, param_norm=0.0)
    expected = [2.0 * theory.beta(0.2, logdet, param_norm=0.0) * 0.5 for logdet in (0.0, 1.0)]
    assert np.asarray(many) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"gaps=\[-1\.\] is out of range"):
        theory.instantaneous_regret_bound(0.2, 0.0, 0.5, gaps=[-1.0])


@pytest.mark.parametrize("gap", [0.0, 0.5, 1.5])
def test_the_estimate_of_two_agents_is_within_its_bound(gap: float) -> None:
    """The same arms for both, noise 1: ridge regression on the merged data, with the ridge's own error."""
    within = np.zeros((2, RUNS))
    for seed in range(RUNS):
        rng = np.random.default_rng([1, seed])
        theta = 0.7 * unit(rng, 1) + np.array([[0.0], [gap]]) * unit(rng, 1)
        x = unit(rng, 60)
        A = np.eye(DIM) + x.T @ x
        noise = rng.standard_normal((2, 60))
        own = np.linalg.solve(A, x.T @ (x @ theta[0] + noise[0]))
        merged = np.linalg.solve(2.0 * A, x.T @ (x @ (theta[0] + theta[1]) + noise.sum(axis=0)))
        difference = theta[0] - theta[1]
        distance = math.sqrt(float(difference @ A @ difference))
        radius = theory.beta(DELTA, float(np.linalg.slogdet(A)[1]), param_norm=0.0)
        norms = [math.sqrt(float(v @ A @ v)) for v in (own - theta[0], merged - theta[0])]
        ridge = float(np.linalg.norm(theta, axis=1).max())
        within[0, seed] = norms[0] <= radius + ridge
        within[1, seed] = norms[1] <= theory.pair_error_bound(distance, radius) + ridge
    assert (within.mean(axis=1) >= 1.0 - DELTA).all()


def test_sharing_helps_up_to_the_gap_at_which_the_bounds_meet() -> None:
    for logdet in (0.0, 3.0, 20.0):
        radius = theory.beta(DELTA, logdet)
        printed = theory.sharing_gap(DELTA, logdet, DIM)
        # Two-agent problem: the shared error bound is that of one agent alone.
        assert theory.pair_error_bound(printed, radius) == pytest.approx(radius)
        derived = theory.sharing_gap(DELTA, logdet, DIM, reading="derived")
        alone = theory.instantaneous_regret_bound(DELTA, logdet, 1.0)
        shared = theory.instantaneous_regret_bound(DELTA, logdet, 1.0, gaps=[float(derived)], dim=DIM)
        assert shared == pytest.approx(alone)
        assert derived < printed
    with pytest.raises(ValueError, match="reading='both' is unknown"):
        theory.sharing_gap(DELTA, 0.0, DIM, reading="both")  # type: ignore[arg-type]


@pytest.mark.parametrize(("reading", "factor"), [("printed", 1.0 + 0.5**0.5), ("derived", 1.0 - 0.5**0.5)])
def test_the_level_of_separation_has_the_radius_it_says(reading: Reading, factor: float) -> None:
    for norm, scale in ((0.0, 1.0), (0.2, 0.5)):
        level = theory.separation_delta(1e-6, 0.5, scale, param_norm=norm, reading=reading)
        radius = factor * theory.beta(1e-6, 0.5, scale, param_norm=norm)
        assert theory.beta(level, 0.5, scale, param_norm=norm) == pytest.approx(radius)
    # Early, a radius of 1 − 1/√2 is less than that of any level.
    assert theory.separation_delta(0.9, 5.0, reading="derived") == 1.0


def test_what_a_euclidean_test_separates_the_ellipsoids_separate_too() -> None:
    rng = np.random.default_rng(0)
    seen = {True: 0, False: 0}
    for _ in range(400):
        factor = rng.standard_normal((DIM, DIM)) * rng.uniform(0.1, 4.0, DIM)
        A = np.eye(DIM) + factor.T @ factor
        radius = float(rng.uniform(0.5, 3.0))
        v = rng.standard_normal(DIM) * rng.uniform(0.2, 6.0)
        test = theory.euclidean_test(A, radius)
        ball = float(np.linalg.eigvalsh(A)[0]) * np.eye(DIM)
        named = {"gamma": 2.0, "radius": "beta_squared"}
        by_distance = float(np.linalg.norm(v)) > test.threshold
        assert separated(v, ball, radius, np.zeros(DIM), ball, radius, **named) is by_distance  # type: ignore[arg-type]
        by_ellipsoids = separated(v, A, radius, np.zeros(DIM), A, radius, **named)  # type: ignore[arg-type]
        assert by_ellipsoids or not by_distance
        assert by_ellipsoids is bool(math.sqrt(float(v @ A @ v)) > 2.0 * radius)
        seen[by_distance] += by_ellipsoids
        assert 0.0 < test.kept <= 1.0
    assert min(seen.values()) > 20  # and often the ellipsoids alone
    assert theory.euclidean_test(4.0 * np.eye(2), 3.0) == (3.0, 1.0)
    with pytest.raises(ValueError, match="is not positive definite"):
        theory.euclidean_test(np.diag([1.0, 0.0]), 1.0)
    with pytest.raises(ValueError, match="symmetric matrix"):
        theory.euclidean_test([[1.0, 2.0], [0.0, 1.0]], 1.0)


def test_both_orders_of_the_cost() -> None:
    main, appendix = (theory.complexity(7, 5, 3, 2, reading=name) for name in ("printed", "derived"))
    assert (main, appendix) == (7 * (5 + 3 * 4 + 6 * 8), 7 * (5 + 3 * 4 + 4 * 8))


def test_assumptions_are_listed_from_the_weakest() -> None:
    listed = theory.clustering_assumptions()
    assert [len(one.made_by) for one in listed] == [1, 1, 6, 1]
    assert "Ghosh2022" in listed[2].made_by
