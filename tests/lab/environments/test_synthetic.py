"""The synthetic environments: published gaps, cluster sizes, mean rewards, and reproducible draws."""

import math
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.lab.environments.synthetic import (
    ClickClusters,
    CorruptedAgents,
    DescribedAgents,
    GraphClusters,
    MisspecifiedClusters,
)


@pytest.mark.parametrize(("angle", "gap"), [(math.pi / 16, 0.2), (7 * math.pi / 16, 1.27)])
@pytest.mark.parametrize("n_clusters", [3, 6])
def test_published_gaps(angle: float, gap: float, n_clusters: int) -> None:
    environment = shoal.SyntheticClusters(100, 10, n_clusters, angle, seed=0)
    assert round(environment.gap, 2) == gap
    assert environment.arms.shape == (5 * n_clusters, 10)
    assert environment.labels is not None
    sizes = np.bincount(environment.labels)
    assert sizes.max() - sizes.min() <= 1
    if n_clusters == 3:
        assert sorted(sizes) == [33, 33, 34]


def test_layout_of_the_parameters() -> None:
    environment = shoal.SyntheticClusters(4, 5, 4, 0.3, seed=0)
    expected = np.zeros((4, 5))
    expected[0, 0] = expected[2, 2] = 1.0
    expected[1, :2] = expected[3, 2:4] = math.cos(0.3), math.sin(0.3)
    assert environment.theta_star is not None
    np.testing.assert_allclose(environment.theta_star, expected)


def test_arms_scatter_around_the_parameters() -> None:
    environment = shoal.SyntheticClusters(3, 10, 3, 1.0, arms_per_cluster=2000, arm_spread=0.5, seed=0)
    assert environment.theta_star is not None
    for m in range(3):
        around = environment.arms[2000 * m : 2000 * (m + 1)] - environment.theta_star[m]
        assert np.abs(around.mean(axis=0)).max() < 0.05
        np.testing.assert_allclose(around.std(axis=0), 0.5, rtol=0.06)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: shoal.SyntheticClusters(9, 4, 3, 0.7, seed=seed),
        lambda seed: shoal.GaussianClusters(9, 4, 3, seed=seed),
        lambda seed: shoal.UnitClusters(9, 4, 3, seed=seed),
        lambda seed: shoal.ChangingArms(9, 4, 3, seed=seed),
        lambda seed: DescribedAgents(9, 4, 3, seed=seed),
        lambda seed: shoal.ChangingAgents(9, 4, 3, 0.7, change_after=7, seed=seed),
        lambda seed: shoal.JumpingAgents(9, 4, 3, 0.7, last_jump=7, seed=seed),
        lambda seed: shoal.Continuum(9, 4, seed=seed),
    ],
)
def test_every_environment(make: Any) -> None:
    environment, same, other = make(1), make(1), make(2)
    assert np.array_equal(environment.arms, same.arms)
    assert not np.array_equal(environment.arms, other.arms)
    assert environment.mean_rewards.shape == (9, environment.n_arms)
    np.testing.assert_allclose(
        environment.mean_rewards, environment.theta_star @ environment.arms.T, atol=1e-12
    )
    distances = [
        np.linalg.norm(one - two)
        for one in environment.theta_star
        for two in environment.theta_star
        if not np.array_equal(one, two)
    ]
    if environment.labels is not None:
        together = environment.labels[:, None] == environment.labels
        assert np.array_equal(together, (environment.theta_star[:, None] == environment.theta_star).all(2))
    assert environment.gap == pytest.approx(min(distances))
    with pytest.raises(ValueError, match="read-only"):
        environment.arms[0, 0] = 1.0
    agents = np.array([4, 0, 8])
    rounds = environment.arms_in(5, 7)
    means = environment.rewards_in(rounds, np.array([5, 6, 7]), agents, first=5)
    for n, agent in enumerate(agents):
        arms = rounds[n if len(rounds) > 1 else 0]
        np.testing.assert_allclose(means[n], arms @ environment.theta_star[agent], atol=1e-12)


def test_changing_arms_can_be_asked_for_in_any_pieces() -> None:
    environment = shoal.ChangingArms(3, 2, 2, n_arms=4, seed=5)
    whole = environment.arms_in(1, 1000)
    assert whole.shape == (1000, 4, 2)
    assert np.array_equal(whole[0], environment.arms)
    assert np.array_equal(whole[250:260], environment.arms_in(251, 260))
    assert np.array_equal(whole[511], environment.arms_in(512, 512)[0])
    assert not np.array_equal(whole[0], whole[1])
    norms = np.linalg.norm(whole, axis=2)
    assert norms.max() <= 1.0
    assert abs((norms < 0.5).mean() - 0.25) < 0.03  # uniform in the disc


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("rate", [0.5, 0.02])
def test_clicks_have_the_rate_and_strength_asked_for(fresh: bool, rate: float) -> None:
    own: dict[str, Any] = {"rate": rate, "strength": 2.0, "length": 1.5, "fresh": fresh}
    world, same, other = (ClickClusters(40, 6, 4, seed=seed, **own) for seed in (3, 3, 4))
    assert np.array_equal(world.arms_in(5, 9), same.arms_in(5, 9))
    assert not np.array_equal(world.arms, other.arms)
    assert world.labels is not None
    agents, rounds = np.arange(2000) % 40, np.arange(1, 2001)
    arms = world.arms_in(1, 2000)
    assert arms.shape == (2000 if fresh else 1, 15, 6)
    np.testing.assert_allclose(np.linalg.norm(arms, axis=2), 1.5)
    means = world.rewards_in(arms, rounds, agents, first=1)
    assert means.mean() == pytest.approx(rate, rel=0.1)
    logits = np.log(means / (1 - means)) - world.base
    assert np.abs(logits).max() <= 2.0 + 1e-9
    for label in range(4):  # members of a cluster have one parameter, and logits are linear in the arm
        mine = world.labels[agents] == label
        x = (arms[mine] if fresh else np.repeat(arms, mine.sum(), axis=0)).reshape(-1, 6)
        theta, *_ = np.linalg.lstsq(x, logits[mine].ravel(), rcond=None)
        np.testing.assert_allclose(x @ theta, logits[mine].ravel(), atol=1e-6)
    by_arm, shared = world.draw_rewards(means, agents, np.random.default_rng(0))
    assert set(np.unique(by_arm + shared[:, None])) == {0.0, 1.0}


def test_changing_agents_deal_out_their_parameters_anew_after_the_change() -> None:
    environment = shoal.ChangingAgents(30, 6, 3, 1.0, change_after=20, seed=4)
    before, after = environment.theta_star, environment.theta_after
    assert before is not None
    assert environment.labels is None
    assert not np.array_equal(before, after)
    assert np.array_equal(np.sort(before, axis=0), np.sort(after, axis=0))  # clusters keep their sizes
    assert np.array_equal(environment.arms, shoal.SyntheticClusters(30, 6, 3, 1.0, seed=4).arms)
    again = shoal.ChangingAgents(30, 6, 3, 1.0, change_after=20, seed=4)
    assert np.array_equal(after, again.theta_after)
    other = shoal.ChangingAgents(30, 6, 3, 1.0, change_after=20, seed=5)
    assert not np.array_equal(after, other.theta_after)

    agents, rounds = np.array([0, 3, 29, 29]), np.array([19, 20, 20, 21])
    means = environment.rewards_in(environment.arms_in(19, 21), rounds, agents, first=19)
    expected = [before[0], before[3], before[29], after[29]]
    np.testing.assert_allclose(means, np.array(expected) @ environment.arms.T, atol=1e-12)


@pytest.mark.parametrize("positive", [False, True])
def test_unit_vectors(positive: bool) -> None:
    world = shoal.UnitClusters(30, 5, 3, n_arms=40, positive=positive, seed=1)
    assert world.theta_star is not None
    assert world.labels is not None
    assert np.array_equal(np.unique(world.labels), [0, 1, 2])
    assert len(np.unique(world.theta_star, axis=0)) == 3
    for vectors in (world.theta_star, world.arms):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-12)
        assert (float(vectors.min()) >= 0.0) is positive
    # In one dimension every product is 1 up to rounding, and still a probability.
    shoal.UnitClusters(3, 1, 3, n_arms=40, positive=True, noise="bernoulli", seed=1)


def test_agents_that_jump() -> None:
    environment = shoal.JumpingAgents(50, 6, 3, 1.0, last_jump=100, share=0.3, seed=4)
    still = shoal.SyntheticClusters(50, 6, 3, 1.0, seed=4)
    assert environment.labels is None
    assert np.array_equal(environment.arms, still.arms)
    assert (environment.jumps_after <= 100).sum() == 15
    for agent in range(50):
        rounds, who = np.arange(1, 151), np.full(150, agent)
        means = environment.rewards_in(environment.arms[None], rounds, who, first=1)
        after = int(environment.jumps_after[agent])
        np.testing.assert_array_equal(means[:after], np.tile(still.mean_rewards[agent], (min(after, 150), 1)))
        if after <= 100:
            assert not np.array_equal(means[after], still.mean_rewards[agent])
            assert (np.abs(still.mean_rewards - means[after]).max(axis=1) == 0).any()  # one of the others'
            assert (means[after:] == means[after]).all()
    with pytest.raises(ValueError, match="n_clusters must be at least 2"):
        shoal.JumpingAgents(5, 3, 1, 1.0, last_jump=9)


@pytest.mark.parametrize("dim", [4, 5])
def test_clusters_that_turn(dim: int) -> None:
    """Lengths and angles between clusters stay; after two quarters a parameter is the opposite."""
    environment = shoal.RotatingClusters(9, dim, 3, 1.0, quarter_turn=100, seed=2)
    theta = environment.theta_star
    assert theta is not None
    assert environment.labels is None
    agents = np.repeat([0, 4, 8], 4)
    rounds = np.tile([51, 101, 201, 401], 3)  # after 50, 100, 200 and 400 rounds
    means = environment.rewards_in(environment.arms[None], rounds, agents, first=1)
    found = np.linalg.lstsq(environment.arms, means.T, rcond=None)[0].T.reshape(3, 4, dim)
    for quarter in range(4):
        np.testing.assert_allclose(
            found[:, quarter] @ found[:, quarter].T, theta[[0, 4, 8]] @ theta[[0, 4, 8]].T, atol=1e-12
        )
    np.testing.assert_allclose(found[:, 3], theta[[0, 4, 8]], atol=1e-12)
    if dim == 4:
        np.testing.assert_allclose(found[:, 2], -theta[[0, 4, 8]], atol=1e-12)
        np.testing.assert_allclose(np.sum(found[:, 1] * theta[[0, 4, 8]], axis=1), 0.0, atol=1e-12)


def test_a_continuum_is_a_line_with_arms_along_it() -> None:
    environment = shoal.Continuum(4000, 5, spread=0.6, n_arms=7, arm_spread=0.0, seed=3)
    assert environment.labels is None
    assert environment.n_arms == 7
    assert shoal.Continuum(3, 5, seed=0).n_arms == 15
    ends, theta = environment.arms[[0, -1]], environment.theta_star
    assert theta is not None
    middle = ends.mean(axis=0)
    direction = (ends[1] - ends[0]) / 1.2
    assert np.linalg.norm(middle) == pytest.approx(1.0)
    assert np.linalg.norm(direction) == pytest.approx(1.0)
    assert middle @ direction == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(np.diff(environment.arms, axis=0), np.tile(0.2 * direction, (6, 1)))
    z = (theta - middle) @ direction / 0.6
    np.testing.assert_allclose(theta, middle + 0.6 * z[:, None] * direction, atol=1e-12)
    assert abs(np.quantile(z, [0.0, 0.25, 0.5, 0.75, 1.0]) - [-1.0, -0.5, 0.0, 0.5, 1.0]).max() < 0.05
    scattered = shoal.Continuum(3, 5, n_arms=4000, arm_spread=0.5, seed=3).arms
    line = shoal.Continuum(3, 5, n_arms=4000, arm_spread=0.0, seed=3).arms
    around = (scattered - line) / np.linalg.norm(line, axis=1, keepdims=True)
    np.testing.assert_allclose(around.std(axis=0), 0.5, rtol=0.06)


def test_members_within_a_ball_around_their_cluster() -> None:
    exact = shoal.SyntheticClusters(400, 3, 2, angle=1.0, seed=4)
    world = MisspecifiedClusters(400, 3, 2, angle=1.0, deviation=0.3, seed=4)
    assert np.array_equal(world.arms, exact.arms)
    assert world.theta_star is not None
    assert exact.theta_star is not None
    away = np.linalg.norm(world.theta_star - exact.theta_star, axis=1) / 0.3
    assert away.max() <= 1.0
    # Uniform in the ball: the cube of the distance is uniform, with mean 1/2 and variance 1/12.
    assert abs((away**3).mean() - 0.5) < 5.0 / np.sqrt(12 * 400)
    assert world.param_norm == np.linalg.norm(world.theta_star, axis=1).max()
    same = MisspecifiedClusters(400, 3, 2, angle=1.0, deviation=0.0, seed=4)
    np.testing.assert_array_equal(same.theta_star, exact.theta_star)


def test_liars_report_the_opposite_and_their_regret_does_not_count() -> None:
    honest = CorruptedAgents(10, 4, 2, angle=1.2, share=0.0, seed=1)
    world = CorruptedAgents(10, 4, 2, angle=1.2, share=0.3, seed=1)
    assert world.liars.sum() == 3
    assert honest.labels is not None
    np.testing.assert_array_equal(np.asarray(world.labels), honest.labels + 2 * world.liars)

    def play(where: shoal.Environment) -> shoal.Trace:
        # Always the first arm, so that rewards can be compared.
        return shoal.simulate(shoal.Independent(10, 4, alpha=0.0), where, horizon=400, seed=2)

    truth, told = play(honest), play(world)
    lies = world.liars[told.agents]
    same = truth.choices == told.choices
    assert same[~lies].all()
    np.testing.assert_array_equal(told.rewards[~lies], truth.rewards[~lies])
    np.testing.assert_array_equal(told.rewards[lies & same], -truth.rewards[lies & same])
    assert (lies & same).sum() > 0
    steps, true_steps = np.diff(told.regret, prepend=0.0), np.diff(truth.regret, prepend=0.0)
    np.testing.assert_allclose(steps, np.where(lies, 0.0, true_steps), atol=1e-9)


def test_liars_of_clicks() -> None:
    kind: dict[str, Any] = {"arm_spread": 0.0, "noise": "bernoulli", "seed": 1}
    worlds = [CorruptedAgents(10, 4, 2, angle=1.2, share=share, **kind) for share in (0.0, 1.0)]
    agents, means = np.arange(10), worlds[0].mean_rewards
    by_arm = [world.draw_rewards(means, agents, np.random.default_rng(3))[0] for world in worlds]
    np.testing.assert_array_equal(by_arm[0], 1.0 - by_arm[1])


def test_a_graph_with_errors() -> None:
    world = GraphClusters(100, 4, 2, angle=1.2, flip=0.1, seed=0)
    assert world.has_graph
    assert world.labels is not None
    assert np.array_equal(world.graph, world.graph.T)
    assert not world.graph.diagonal().any()
    wrong = (world.graph != (world.labels[:, None] == world.labels))[np.triu_indices(100, 1)]
    assert abs(wrong.mean() - 0.1) < 5.0 * np.sqrt(0.09 / 4950)


def test_what_is_passed_in_stays_the_caller_s() -> None:
    arms, theta = np.ones((2, 2)), np.ones((3, 2))
    environment = shoal.Environment(arms, theta_star=theta)
    arms[0, 0] = 5.0
    assert environment.arms[0, 0] == 1.0
    assert theta.flags.writeable
    with pytest.raises(ValueError, match="labels must be 3 integers, got float64"):
        shoal.Environment(arms, theta_star=theta, labels=np.array([0.7, 1.2, 0.0]))


def test_the_gap_of_many_agents_takes_little_memory() -> None:
    environment = shoal.Continuum(20_000, 10, seed=0)  # all different; 20,000² distances would not do
    assert environment.theta_star is not None
    offsets = environment.theta_star - environment.theta_star[0]
    line = offsets[np.argmax(np.linalg.norm(offsets, axis=1))]
    along = np.sort(offsets @ line / np.linalg.norm(line))
    assert environment.gap == pytest.approx(np.diff(along).min(), rel=1e-6)


def test_one_cluster_has_no_gap() -> None:
    assert math.isnan(shoal.GaussianClusters(4, 2, 1, seed=0).gap)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shoal.SyntheticClusters(10, 2, 3, 1.0), "dim must be at least n_clusters = 3, got 2"),
        (lambda: shoal.SyntheticClusters(2, 5, 3, 1.0), "n_clusters must be at most n_agents = 2, got 3"),
        (lambda: shoal.SyntheticClusters(10, 5, 3, math.nan), "angle must be a finite number"),
        (
            lambda: shoal.SyntheticClusters(10, 5, 3, 1.0, noise_scale=-1.0),
            "noise_scale must be a finite number",
        ),
        (lambda: shoal.GaussianClusters(0, 5), "n_agents must be an integer of at least 1, got 0"),
        (lambda: shoal.GaussianClusters(5, 5, n_arms=0), "n_arms must be an integer of at least 1, got 0"),
        (lambda: shoal.ChangingArms(5, 5, seed=-3), "seed must be a non-negative integer or None, got -3"),
        (
            lambda: shoal.ChangingAgents(10, 5, 3, 1.0, change_after=0),
            "change_after must be an integer of at least 1, got 0",
        ),
        (lambda: shoal.ChangingAgents(10, 2, 3, 1.0, change_after=9), "dim must be at least n_clusters = 3"),
        (lambda: shoal.Continuum(10, 1), "dim must be at least 2, .* got 1"),
        (lambda: shoal.Continuum(10, 4, spread=-0.1), "spread must be a finite number"),
        (lambda: shoal.Continuum(10, 4, n_arms=0), "n_arms must be an integer of at least 1, got 0"),
        (lambda: shoal.Continuum(0, 4), "n_agents must be an integer of at least 1, got 0"),
        (lambda: MisspecifiedClusters(9, 4, 2, 1.0, deviation=-1.0), "deviation must be a finite number"),
        (lambda: CorruptedAgents(9, 4, 2, 1.0, share=1.1), "share must be a finite number in"),
        (lambda: GraphClusters(9, 4, 2, 1.0, flip=-0.1), "flip must be a finite number in"),
        (lambda: DescribedAgents(9, 4, 2, distance=-1.0), "distance must be a finite number in"),
        (lambda: shoal.Environment(np.ones((2, 2))), "theta_star or mean_rewards must be given"),
        (
            lambda: shoal.Environment(np.ones((2, 2)), theta_star=np.ones((3, 1))),
            r"theta_star must have shape",
        ),
        (
            lambda: shoal.Environment(
                np.ones((2, 2)), theta_star=np.ones((3, 2)), labels=np.zeros(2, dtype=int)
            ),
            r"labels must be 3 integers, got int64\(2,\)",
        ),
    ],
)
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("distance", "right"), [(0.84, 0.5), (1.8, 0.78), (2.7, 0.93), (0.0, 0.25)])
def test_features_tell_the_cluster_as_often_as_said(distance: float, right: float) -> None:
    world = DescribedAgents(20_000, 3, 4, distance=distance, useless=3, seed=1)
    assert world.agent_features is not None
    assert world.labels is not None
    assert world.agent_features.shape == (20_000, 7)
    usual = world.agent_features - np.median(world.agent_features, axis=0)
    spread = np.array([usual[world.labels != m % 4, m].std() for m in range(7)])
    guess = (usual / spread)[:, :4].argmax(axis=1)
    assert np.mean(guess == world.labels) == pytest.approx(right, abs=0.02)
    plain = shoal.ChangingArms(20_000, 3, 4, seed=1)
    assert np.array_equal(plain.arms, world.arms)
    assert np.array_equal(plain.mean_rewards, world.mean_rewards)
