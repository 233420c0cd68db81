"""What every registered environment promises, checked for each of them alike."""

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.types import Integers, Matrix
from shoal.lab.environments.registry import _registered, find_environment

N, D = 6, 4
OWN: dict[str, dict[str, Any]] = {
    "synthetic": {"n_clusters": 2, "angle": 1.0},
    "gaussian": {"n_clusters": 2},
    "unit": {"n_clusters": 2},
    "changing_arms": {"n_clusters": 2},
    "changing_agents": {"n_clusters": 2, "angle": 1.0, "change_after": 30},
    "jumping_agents": {"n_clusters": 2, "angle": 1.2, "last_jump": 80, "share": 0.5},
    "rotating_clusters": {"n_clusters": 2, "angle": 1.2, "quarter_turn": 60},
    "misspecified": {"n_clusters": 2, "angle": 1.0},
    "corrupted_agents": {"n_clusters": 2, "angle": 1.0, "share": 0.0},  # lies: test_synthetic.py
    "graph_clusters": {"n_clusters": 2, "angle": 1.0},
    "described_agents": {"n_clusters": 2},
    "continuum": {},
    "movielens": {"n_arms": 5},
    "letor": {"n_groups": 5, "n_arms": 4},
    "logged": {"features": "arms.csv"},
}
BERNOULLI: dict[str, dict[str, Any]] = {
    "synthetic": {"arm_spread": 0.0},
    "unit": {"positive": True},
    "changing_agents": {"arm_spread": 0.0},
    "logged": {},
}
"""With these, mean rewards are probabilities."""
PERSONAL = {"lastfm", "warfarin"}
"""Arms depend on who pulls, and rewards have no noise: test_offers.py."""
CLICKS = {"clicks"}
"""Rewards are clicks, with no other noise: test_synthetic.py."""

every_environment = pytest.mark.parametrize("name", [name for name in _registered if name in OWN])


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files for the environments that read some, in the current directory."""
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    cells = [(i, k) for i in range(9) for k in range(7) if rng.random() < 0.7 or i == k]
    ratings = [f"{i},{k},{rng.integers(1, 11) / 2},9" for i, k in cells]
    Path("ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *ratings]))
    movies = [f"{k},T,{genres}" for k, genres in enumerate(["Action", "Adventure|Children", "Animation"] * 3)]
    Path("movies.csv").write_text("\n".join(["movieId,title,genres", *movies]))
    documents = [
        f"{rng.integers(5)} qid:{q} 1:{rng.normal()} 2:{rng.normal()} 4:1" for q in range(9) for _ in range(5)
    ]
    Path("rank.txt").write_text("\n".join(documents))
    Path("log.csv").write_text(
        "\n".join(["agent,arm,reward", *(f"u{i},{k},{rng.random()}" for i, k in cells)])
    )
    arms = [f"{k},{','.join(map(str, rng.normal(size=D)))}" for k in range(7)]
    Path("arms.csv").write_text("\n".join(["arm,a,b,c,d", *arms]))


PATHS = {"movielens": ".", "letor": "rank.txt", "logged": "log.csv"}


def make(name: str, seed: int | None = 0, **changed: Any) -> shoal.Environment:
    path = {"path": PATHS[name]} if name in PATHS else {}
    return shoal.make_environment(
        name, **{"n_agents": N, "dim": D, **path, **OWN[name], **changed, "seed": seed}
    )


def play(world: shoal.Environment, *, epsilon: float = 0.0, horizon: int = 120, seed: int = 3) -> shoal.Trace:
    policy = shoal.Independent(world.n_agents, world.dim, alpha=0.5, epsilon=epsilon, seed=0)
    return shoal.simulate(policy, world, horizon=horizon, seed=seed)


def means_of(world: shoal.Environment, trace: shoal.Trace) -> Matrix:
    """(rounds, K) mean rewards of whoever pulled in each round."""
    rounds = np.arange(1, len(trace.agents) + 1)
    arms = world.arms_in(1, len(rounds))
    return world.rewards_in(arms, rounds, trace.agents, first=1)


def normals(n: int, seed: int = 3) -> Any:
    """The numbers behind the noise of a run: the second of the streams that come from its seed."""
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(2)[1]).standard_normal(n)


def counts(means: Matrix, agents: Integers, rng: np.random.Generator) -> Any:
    return rng.poisson(np.exp(means / 4.0)) + agents[:, None]


def test_every_built_in_environment_is_here() -> None:
    assert set(OWN) <= set(shoal.environment_names())
    assert set(OWN) | PERSONAL | CLICKS == {
        name for name, found in _registered.items() if "shoal." in str(found)
    }


@every_environment
def test_shapes(name: str) -> None:
    world = make(name)
    assert isinstance(world, shoal.Environment)
    assert (world.n_agents, world.dim) == (N, D)
    assert world.arms.shape == (world.n_arms, D)
    assert world.mean_rewards.shape == (N, world.n_arms)
    assert world.theta_star is None or world.theta_star.shape == (N, D)
    assert world.labels is None or (world.labels.shape == (N,) and world.labels.dtype == np.int64)
    for array in (world.arms, world.mean_rewards):
        assert array.dtype == np.float64
        assert np.isfinite(array).all()
        assert not array.flags.writeable
    arms = world.arms_in(5, 9)
    assert arms.shape in {(1, world.n_arms, D), (5, world.n_arms, D)}
    means = world.rewards_in(arms, np.array([5, 9, 9]), np.array([0, 3, 5]), first=5)
    assert means.shape == (3, world.n_arms)


@every_environment
def test_the_first_round_is_what_the_attributes_say(name: str) -> None:
    world = make(name)
    arms = world.arms_in(1, 1)
    agents = np.arange(N)
    assert np.array_equal(arms[0], world.arms)
    means = world.rewards_in(arms, np.ones(N, dtype=np.int64), agents, first=1)
    np.testing.assert_allclose(means, world.mean_rewards, atol=1e-12)
    if world.theta_star is not None:
        np.testing.assert_allclose(world.mean_rewards, world.theta_star @ world.arms.T, atol=1e-12)


@every_environment
def test_seeds_reproduce(name: str) -> None:
    world, same, other = make(name, 1), make(name, 1), make(name, 2)
    assert np.array_equal(world.arms, same.arms)
    assert np.array_equal(world.mean_rewards, same.mean_rewards)
    assert not np.array_equal(world.mean_rewards, other.mean_rewards)
    one, again = play(world), play(same)
    assert np.array_equal(one.rewards, again.rewards)
    assert np.array_equal(one.choices, again.choices)
    assert make(name, None).n_agents == N  # fresh randomness is allowed, too


@every_environment
def test_regret_is_what_the_best_arm_would_have_given(name: str) -> None:
    world = make(name)
    trace = play(world)
    means = means_of(world, trace)
    lost = means.max(axis=1) - means[np.arange(len(means)), trace.choices]
    assert (np.diff(trace.regret, prepend=0.0) >= 0.0).all()
    np.testing.assert_allclose(trace.regret, np.cumsum(lost), atol=1e-9)


@every_environment
def test_gaussian_noise(name: str) -> None:
    world = make(name, noise_scale=0.5)
    trace = play(world)
    means = means_of(world, trace)[np.arange(120), trace.choices]
    assert np.array_equal(trace.rewards, means + 0.5 * normals(120))


@every_environment
def test_a_noise_scale_for_each_agent(name: str) -> None:
    scales = [0.0, 0.1, 1.0, 0.5, 2.0, 3.0]
    world = make(name, noise_scale=scales)
    trace = play(world)
    means = means_of(world, trace)[np.arange(120), trace.choices]
    assert np.array_equal(trace.rewards, means + np.array(scales)[trace.agents] * normals(120))
    assert np.array_equal(play(make(name, noise_scale=[1.0] * N)).rewards, play(make(name)).rewards)


@every_environment
def test_noise_by_a_function(name: str) -> None:
    world = make(name, noise=counts)
    trace = play(world)
    means = means_of(world, trace)
    rng = np.random.default_rng(np.random.SeedSequence(3).spawn(2)[1])
    expected = rng.poisson(np.exp(means / 4.0)) + trace.agents[:, None]
    assert np.array_equal(trace.rewards, expected[np.arange(120), trace.choices])
    lost = means.max(axis=1) - means[np.arange(120), trace.choices]
    np.testing.assert_allclose(trace.regret, np.cumsum(lost), atol=1e-9)  # in means, whatever is drawn


@every_environment
def test_bernoulli_rewards(name: str) -> None:
    if name not in BERNOULLI:
        with pytest.raises(ValueError, match=r"mean_rewards must be in \[0, 1\] for noise='bernoulli', got "):
            make(name, noise="bernoulli")
        return
    world = make(name, noise="bernoulli", **BERNOULLI[name])
    trace = play(world, horizon=6_000)
    assert set(trace.rewards) == {0.0, 1.0}
    means = means_of(world, trace)[np.arange(6_000), trace.choices]
    # Six standard deviations of the sum of so many independent draws.
    assert abs(trace.rewards.sum() - means.sum()) < 6.0 * np.sqrt((means * (1.0 - means)).sum())


@every_environment
@pytest.mark.parametrize("noise", ["gaussian", "bernoulli", "function"])
def test_draws_do_not_depend_on_the_policy(name: str, noise: str) -> None:
    if noise == "bernoulli" and name not in BERNOULLI:
        pytest.skip("its mean rewards are no probabilities")
    own = BERNOULLI[name] if noise == "bernoulli" else {}
    world = make(name, noise=counts if noise == "function" else noise, **own)
    one, other = play(world), play(world, epsilon=0.5)
    assert np.array_equal(one.agents, other.agents)
    same = one.choices == other.choices
    assert 0 < same.sum() < len(same)
    assert np.array_equal(one.rewards[same], other.rewards[same])


@every_environment
def test_the_bound_on_the_noise(name: str) -> None:
    assert make(name, noise_scale=0.25).noise_bound == 0.25
    assert make(name, noise_scale=[0.5] * 5 + [2.0]).noise_bound == 2.0
    assert np.isnan(make(name, noise=counts).noise_bound)
    if name in BERNOULLI:
        # E exp(s (X − p)) ≤ exp(s² σ² / 2) for every p and s, and for no smaller σ.
        sigma = make(name, noise="bernoulli", **BERNOULLI[name]).noise_bound
        p, s = np.meshgrid(np.linspace(0.0, 1.0, 101), np.linspace(-9.0, 9.0, 181))
        log_mgf = np.log(p * np.exp(s * (1.0 - p)) + (1.0 - p) * np.exp(-s * p))
        assert (log_mgf <= (s * sigma) ** 2 / 2.0 + 1e-12).all()
        assert (log_mgf > (0.99 * s * sigma) ** 2 / 2.0 + 1e-12).any()


@every_environment
def test_repr(name: str) -> None:
    world = make(name)
    sizes = f"n_agents={N}, dim={D}, n_arms={world.n_arms}"
    kind = find_environment(name).__name__
    assert repr(world) == f"{kind}({sizes}, noise_scale=1)"
    assert repr(make(name, noise_scale=[0.5] * 5 + [2.0])) == f"{kind}({sizes}, noise_scale=[0.5 … 2])"
    assert repr(make(name, noise=counts)) == f"{kind}({sizes}, noise=counts)"


@every_environment
def test_wrong_noise_is_named(name: str) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"noise": "cauchy"}, "noise must be one of 'gaussian', 'bernoulli', got 'cauchy'"),
        ({"noise": 3.0}, "noise must be one of gaussian, bernoulli or a function, got 3.0"),
        ({"noise_scale": [1.0]}, r"noise_scale must have shape \(6,\), got \(1,\)"),
        ({"noise_scale": [1.0] * 5 + [-2.0]}, "noise_scale must be at least 0, got -2 for agent 5"),
        ({"noise_scale": -1.0}, "noise_scale must be a finite number in"),
        ({"noise": counts, "noise_scale": 0.5}, "noise_scale is that of Gaussian noise: leave it out"),
        ({"noise": "nowhere_to_be_found:noise"}, "there is no module 'nowhere_to_be_found'"),
    ]
    for changed, message in wrong:
        with pytest.raises(ValueError, match=message):
            make(name, **changed)


@every_environment
def test_a_function_s_wrong_rewards_are_named(name: str) -> None:
    for draw, message in [
        (
            lambda means, agents, rng: means[:, 0],
            r"noise must return rewards of shape \(\d+, \d+\), got \(\d+,\)",
        ),
        (lambda means, agents, rng: means * np.nan, "the rewards that noise returns must be finite, got nan"),
        (lambda means, agents, rng: np.add(means, 1.0, out=means), "read-only"),
    ]:
        with pytest.raises(ValueError, match=message):
            play(make(name, noise=draw))


@every_environment
def test_survives_pickling(name: str) -> None:
    world = make(name, noise=counts)
    again = pickle.loads(pickle.dumps(world))
    assert np.array_equal(play(world).rewards, play(again).rewards)


@every_environment
def test_parameters_are_documented(name: str) -> None:
    found = find_environment(name)
    text = found.__doc__ or ""
    for parameter in inspect.signature(found).parameters:
        assert (
            f"`{parameter}`" in text
            or f"{parameter} :" in text
            or f"{parameter}," in text
            or (f", {parameter}\n" in text)
        ), parameter
