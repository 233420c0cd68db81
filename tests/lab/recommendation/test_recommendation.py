"""Which policy for this data: what is odd about a log, what it tells of tastes, what is played and chosen."""

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.attack.common import SCALE
from tests.lab.recommendation import noise
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.lab.recommendation import inspecting, logs, modelling, playing, report
from shoal.reporting.curves import Curve
from shoal.reporting.sections import Table, Text

RNG = np.random.default_rng(0)


def write(path: Path, header: list[str], rows: Any) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def log_of(rewards: Any, agents: Any = None, arms: Any = None, features: Any = None) -> inspecting.RewardLog:
    n = len(rewards)
    features = np.eye(3) if features is None else np.asarray(features, dtype=float)
    agents = np.arange(n) % 4 if agents is None else np.asarray(agents)
    arms = np.arange(n) // 4 % len(features) if arms is None else np.asarray(arms)
    return inspecting.RewardLog("log.csv", agents, arms, np.asarray(rewards, dtype=float), features)


# What is odd


def test_a_log_as_it_should_be_is_not_odd() -> None:
    assert inspecting.oddities(log_of(RNG.normal(size=120))) == []


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (log_of(np.ones(12)), "Every reward is 1"),
        (log_of(RNG.normal(size=12), range(12), range(12), np.eye(12)), "8.3% of the pairs"),
        (log_of([*RNG.normal(size=200), 1e4]), "1 reward more than 8 standard deviations"),
        (log_of([1.0] + [0.0] * 400), "so few that differences take long"),
        (log_of(RNG.normal(size=12), agents=[0] * 12), "There is one agent"),
        (log_of(RNG.normal(size=8), agents=[0, 1, 2, 3] * 2), "fewer than 3 rows"),
        (log_of([1, 0, 1, 1] * 6), "always had the same reward"),
        (log_of(RNG.normal(size=40), None, [0] * 30 + list(range(5)) * 2, np.eye(5)), "One arm has 80%"),
        (log_of(RNG.normal(size=120), features=50 * np.eye(3)), "norms from 50 to 50"),
        (log_of(RNG.normal(size=120), features=[[1, 0], [0, 0.001], [1, 0.001]]), "varies 1,000 times"),
        (log_of(RNG.normal(size=120), features=[[1, 1, 0], [1, 1, 1], [1, 1, 2]]), "2 features are the"),
        (log_of(RNG.normal(size=120), features=[[1, 2, 0], [2, 4, 0], [0, 0, 1]]), "3 features 2 are"),
        (log_of(RNG.normal(size=120), features=[[1, 0], [1, 0], [0, 1]]), "1 arm has the same features"),
    ],
)  # fmt: skip
def test_what_is_odd_is_said(log: inspecting.RewardLog, words: str) -> None:
    assert any(words in text for text in inspecting.oddities(log)), inspecting.oddities(log)


def test_nobody_is_advised_to_take_logarithms_of_clicks() -> None:
    rare = inspecting.oddities(log_of([1.0] + [0.0] * 400))
    assert not any("logarithm" in text or "cap" in text for text in rare)


def test_all_that_is_said_of_a_sparse_log_fits_together() -> None:
    log, _, _ = simulated(n=60, rows=7)
    said = " ".join([*inspecting.oddities(log), *logs.about(modelling.fit(log), modelling.fit(log))])
    assert "of the pairs of an agent and an arm were observed" in said
    assert "by a linear model of tastes" in said  # which `modelling` is; LoggedRatings factorises
    assert "factorisation" not in said
    assert "favours not sharing" in said
    assert "favours sharing" not in said


# What a log tells of tastes


def simulated(n: int = 300, rows: int = 30, noise: float = 0.4, seed: int = 1) -> tuple[Any, ...]:
    """A log of agents whose tastes are known."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(40, 3))
    factor = np.array([[0.8, 0.0, 0.0], [0.3, 0.5, 0.0], [0.0, -0.2, 0.3]])
    tastes = np.array([0.5, -0.5, 1.0]) + rng.normal(size=(n, 3)) @ factor.T
    agents, arms = np.repeat(np.arange(n), rows), rng.integers(40, size=n * rows)
    rewards = np.einsum("nd,nd->n", tastes[agents], features[arms]) + noise * rng.normal(size=n * rows)
    return log_of(rewards, agents, arms, features), tastes, factor @ factor.T


def test_the_distribution_of_tastes_is_found() -> None:
    log, tastes, _ = simulated()
    found = modelling.fit(log)
    assert found.noise_scale == pytest.approx(0.4, rel=0.02)
    assert found.mean == pytest.approx(tastes.mean(axis=0), abs=0.02)
    assert found.covariance == pytest.approx(np.cov(tastes.T), abs=0.03)
    assert found.means == pytest.approx(tastes, abs=0.5)
    assert 0.9 < found.known < 1.0
    assert found.explained == pytest.approx(1.0 - 0.16 / log.rewards.var(), abs=0.01)


def test_an_agent_s_taste_is_that_of_a_regression_with_the_others_as_prior() -> None:
    log, _, _ = simulated(n=40, rows=5)
    found = modelling.fit(log)
    agent, noise = 7, found.noise_scale**2
    X, y = log.features[log.arms[log.agents == agent]], log.rewards[log.agents == agent]
    # The same by conditioning the joint normal distribution of taste and rewards.
    S = found.covariance
    gain = S @ X.T @ np.linalg.inv(X @ S @ X.T + noise * np.eye(len(y)))
    assert found.means[agent] == pytest.approx(found.mean + gain @ (y - X @ found.mean), rel=0.02, abs=0.01)
    assert found.covariances[agent] == pytest.approx(S - gain @ X @ S, rel=0.05, abs=0.002)


def test_worlds_are_as_varied_as_the_tastes() -> None:
    log, _, covariance = simulated(n=400, rows=3, noise=1.0)
    found = modelling.fit(log)
    assert found.known < 0.8
    drawn = [found.world(seed, 400).mean_rewards for seed in range(8)]
    spread = np.mean([(rewards - rewards.mean(axis=0)).var(axis=0).mean() for rewards in drawn])
    means = found.means @ log.features.T
    shrunk = (means - means.mean(axis=0)).var(axis=0).mean()
    true = np.mean([x @ covariance @ x for x in log.features])
    assert spread == pytest.approx(true, rel=0.15)
    assert shrunk < 0.8 * true  # what means alone would give
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[0], found.world(0, 400).mean_rewards)


def test_arms_may_have_more_than_their_features() -> None:
    log, _, _ = simulated()
    extra = np.where(np.arange(40) % 2, 1.0, -1.0)
    more = log_of(log.rewards + extra[log.arms], log.agents, log.arms, log.features)
    found = modelling.fit(more)
    left = extra - log.features @ np.linalg.lstsq(log.features, extra, rcond=None)[0]  # the rest is a taste
    assert np.corrcoef(found.effects, left)[0, 1] > 0.95
    assert found.noise_scale == pytest.approx(0.4, rel=0.15)
    assert np.abs(modelling.fit(log).effects).max() < 0.1


def test_worlds_of_clicks_have_clicks() -> None:
    log, _, _ = simulated(n=50)
    clicks = log_of((log.rewards > 0.0).astype(float), log.agents, log.arms, log.features)
    world = modelling.fit(clicks).world(0, 20)
    assert (world.n_agents, world.noise) == (20, "bernoulli")
    assert 0.0 < world.mean_rewards.min() < world.mean_rewards.max() < 1.0


@pytest.mark.parametrize("rate", [0.005, 0.05, 0.5])
def test_worlds_of_clicks_have_the_log_s_own_mean(rate: float) -> None:
    log = noise.clicks(rate, 8, seed=3)
    model = modelling.fit(log)
    for seed in (0, 1):
        rewards = model.world(seed, 200).mean_rewards
        assert rewards.shape == (200, 40)
        assert rewards.mean() == pytest.approx(log.rewards.mean(), rel=0.1)
        assert not np.isin(rewards, [0.0, 1.0]).any()
        assert np.mean(rewards < 0.02 * rate) < 0.05


def test_probabilities_keep_order_spread_and_mean() -> None:
    rng = np.random.default_rng(0)
    for mean, spread in ((0.005, 0.001), (0.005, 0.004), (0.5, 0.1)):
        linear = 7.0 + spread * rng.normal(size=(50, 40))  # wherever the linear model has its zero
        counts = rng.integers(1, 5, size=40)
        p = modelling._probabilities(linear, counts, mean)
        assert np.average(p.mean(axis=0), weights=counts) == pytest.approx(mean)
        assert p.std() == pytest.approx(spread, rel=0.15)
        assert np.array_equal(p.argsort(axis=1), linear.argsort(axis=1))


# Noise


@pytest.mark.parametrize(
    ("rate", "dim"), [(0.005, 8), (0.05, 29)] if SCALE == 1 else noise.CASES, ids=lambda value: f"{value:g}"
)
def test_nothing_is_found_in_noise_and_tastes_are(rate: float, dim: int) -> None:
    """Below 10% of shuffled logs; docs/your-data.md has the table."""
    n = min(50, 6 * SCALE)
    assert noise.found(rate, dim, n, shuffled=True) < 0.1 * n + 1
    if rate >= 0.05:
        assert noise.found(rate, dim, n // 2, shuffled=False) >= 0.8 * (n // 2)


def test_an_agent_s_fondness_of_everything_is_no_taste() -> None:
    rng = np.random.default_rng(0)
    agents, arms = np.repeat(np.arange(50), 40), np.tile(np.arange(40), 50)
    fond = np.linspace(0.1, 0.9, 50)
    log = log_of(rng.random(2000) < fond[agents], agents, arms, rng.normal(size=(40, 4)))
    assert modelling.chance(log) > 0.05


def test_a_log_of_noise_is_named(tmp_path: Path) -> None:
    log = noise.clicks(0.5, 8, seed=0, rows=3000)
    features = write(
        tmp_path / "arms.csv", ["arm", *"abcdefgh"], ((k, *x) for k, x in enumerate(log.features))
    )
    for name, rewards in (("real", log.rewards), ("shuffled", RNG.permutation(log.rewards))):
        path = write(
            tmp_path / f"{name}.csv",
            ["agent", "arm", "reward"],
            zip(log.agents, log.arms, rewards, strict=True),
        )
        found = shoal.recommend(path, features=features, horizon=300, runs=2, n_agents=30)
        says_noise = found.reason.startswith("Noise explains this log as well")
        assert says_noise == (name == "shuffled"), found.reason
        assert "where rewards are shuffled" in " ".join(found.notes)
        assert "ogarithm" not in " ".join(found.notes)
    assert found.policy == "independent"


# What is played and chosen


def test_sharing_is_recommended_where_it_helps() -> None:
    world = shoal.SyntheticClusters(30, 5, 2, 1.0, seed=0)
    found = shoal.recommend(world, horizon=4_000, runs=4)
    assert found.policy != "independent"
    assert "sharing helps" in found.reason
    by_label = {one.label: one for one in found.played}
    assert by_label["Independent"].mean > found.played[0].mean
    assert [one.mean for one in found.played] == sorted(one.mean for one in found.played)
    policy = found.make(4, 2)
    assert (policy.name, policy.n_agents, policy.dim) == (found.policy, 4, 2)
    assert found.call().startswith(f'shoal.make_policy("{found.policy}"')
    assert all(-0.5 < one.late <= 1.0 for one in found.played)
    again = shoal.recommend(world, horizon=4_000, runs=4)
    assert str(again) == str(found)


def test_every_method_is_tried_at_the_same_alphas() -> None:
    for noise_scale in (1.0, 0.25):
        tried = playing.methods(shoal.GaussianClusters(6, 3, 2, noise_scale=noise_scale, seed=0))
        assert {"independent", "bass", "cluster_mixture", "dynucb"} < {one.policy for one in tried}
        for method in tried:
            alphas = [parameters["alpha"] for parameters in method.grid]
            assert alphas == pytest.approx([noise_scale * alpha for alpha in playing.ALPHAS]), method.label


def test_clicks_are_played_as_clicks() -> None:
    world = shoal.make_environment("clicks", n_agents=12, dim=3, n_clusters=2, rate=0.3, seed=0)
    for method in playing.methods(world):
        binary = [parameters.get("rewards") == "binary" for parameters in method.grid]
        alphas = [parameters["alpha"] for parameters in method.grid]
        if method.is_live:
            # Widths are of log-odds, whose unit does not depend on the rewards' noise.
            assert all(binary), method.label
            assert alphas == list(playing.ALPHAS), method.label
        else:
            assert not any(binary), method.label
            assert alphas == pytest.approx([alpha * world.noise_bound for alpha in playing.ALPHAS])


def test_a_log_of_clicks_gives_a_policy_for_clicks(tmp_path: Path) -> None:
    log = noise.clicks(0.5, 4, seed=0, rows=4000)
    rows = {"agent": log.agents.tolist(), "arm": log.arms.tolist()}
    features = {"arm": list(range(log.n_arms)), **{f"x{j}": x.tolist() for j, x in enumerate(log.features.T)}}
    clicks = shoal.recommend({**rows, "reward": log.rewards.tolist()}, features=features, horizon=300, runs=2)
    assert clicks.parameters["rewards"] == "binary"
    assert playing.OF_CLICKS in clicks.notes
    assert "rewards='binary'" in clicks.call()
    assert clicks.make(3, 4).clicks
    # What the report tells to open is accepted, and learns clicks.
    line = next(
        part.text
        for section in report.document(clicks).sections
        for part in section.parts
        if isinstance(part, Text) and "shoal.open" in part.text
    )
    opened = line[line.index("shoal.open") :].replace('"shop.db"', repr(str(tmp_path / "shop.db")))
    shop = eval(opened, {"shoal": shoal})
    with pytest.raises(ValueError, match="0 or 1"):
        shop.observe("ada", np.eye(4)[0], 0.5)
    halves = {**rows, "reward": (log.rewards / 2.0).tolist()}
    numbers = shoal.recommend(halves, features=features, horizon=300, runs=2)
    assert "rewards" not in numbers.parameters
    assert playing.OF_CLICKS not in numbers.notes


def test_a_column_of_ones_is_advised_for_numbers_only() -> None:
    ones = [[1, 0, 2], [1, 1, 0], [1, 2, 1]]
    assert inspecting.oddities(log_of(RNG.normal(size=120), features=ones)) == []
    (said,) = inspecting.oddities(log_of(RNG.integers(2, size=120), features=ones))
    assert said.startswith("1 feature is the same for all arms: leave such columns out")


def played(label: str, regrets: list[float], *, taken: bool = True) -> playing.Played:
    zeros = np.zeros(2)
    method = playing.Method(label, label.lower(), [{"alpha": 1.0}], taken)
    return playing.Played(
        method, {"alpha": 1.0}, np.array(regrets), Curve(zeros, zeros, zeros, zeros), 0.5, at_edge=False
    )


def test_a_difference_that_chance_explains_is_no_reason_to_share() -> None:
    alone = played("Independent", [100.0, 101.0, 99.0])
    lucky = played("BASS", [70.0, 120.0, 80.0])
    choice, reason = playing.choose([alone, lucky])
    assert choice is alone
    assert "nothing says it helps" in reason
    assert "−10 ± " in reason
    better, best = played("BASS", [50.0, 51.0, 49.0]), played("Ours", [40.0, 41.0, 39.0])
    choice, reason = playing.choose([alone, better, best])
    assert choice is best
    assert "60% less regret" in reason
    one = played("everyone as one", [10.0, 11.0, 9.0], taken=False)
    choice, reason = playing.choose([alone, better, one])
    assert choice is better
    assert "as one agent does better still (−40 ± 0)" in reason
    tied = played("everyone as one", [51.0, 49.0, 51.0], taken=False)
    choice, reason = playing.choose([alone, better, tied])
    assert choice is better
    assert "as one agent does as well (+0 ± " in reason
    worse = played("everyone as one", [90.0, 91.0, 89.0], taken=False)
    assert "as one agent" not in playing.choose([alone, better, worse])[1]


def test_what_is_taken_in_the_laboratory_is_not_always_for_live_use() -> None:
    tried = [played(label, [n, n + 1.0]) for n, label in enumerate(("DynUCB", "BASS", "Independent"))]
    tried.append(played("everyone as one", [3.0, 4.0], taken=False))
    world = shoal.GaussianClusters(6, 3, 2, seed=0)
    found = playing.Recommendation("dynucb", {"alpha": 0.5}, "", tuple(tried), world, 10, 2, 1.0)
    said = "For live use: BASS, Independent; for comparison only: DynUCB."
    assert str(found).endswith(said)
    sections = report.document(found).sections
    texts = [part.text for section in sections for part in section.parts if isinstance(part, Text)]
    assert any(text.endswith(said) for text in texts)
    assert any(
        "populations do not accept DynUCB; BASS was the best that they accept" in text for text in texts
    )
    assert texts[-1].endswith('policy="bass", dim=3, alpha=1.0)')


def test_intervals_allow_for_how_many_are_compared() -> None:
    alone = played("Independent", [100.0, 100.0, 100.0])
    near = played("BASS", [97.0, 98.0, 98.6])  # surely below alone by itself, not as one of two
    assert playing.choose([alone, near])[0] is near
    assert playing.choose([alone, near, played("Ours", [130.0, 140.0, 150.0])])[0] is alone


# Agents that are described


def grouped(rows: int, *, clicks: bool = False) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Log, arms and users of three groups, whom their features tell apart."""
    rng = np.random.default_rng(3)
    n, arms = 90, rng.normal(size=(30, 3))
    groups, tastes = np.arange(n) % 3, rng.normal(size=(3, 3))
    agents, shown = np.repeat(np.arange(n), rows), rng.integers(30, size=n * rows)
    means = np.einsum("nd,nd->n", tastes[groups[agents]], arms[shown])
    if clicks:
        rewards = (rng.random(n * rows) < 1.0 / (1.0 + np.exp(-means))).astype(float)
    else:
        rewards = means + 0.7 * rng.normal(size=n * rows)
    log = {"agent": [f"u{a}" for a in agents], "arm": shown.tolist(), "reward": rewards.tolist()}
    features = {"arm": list(range(30)), **{f"x{j}": x.tolist() for j, x in enumerate(arms.T)}}
    means_of_groups = np.eye(3)[groups] * 6.0
    users = {
        "agent": [f"u{a}" for a in range(n)],
        **{f"z{j}": z.tolist() for j, z in enumerate((means_of_groups + rng.normal(size=(n, 3))).T)},
    }
    return log, features, users


def test_features_that_help_are_recommended_and_said_how_to_give(tmp_path: Path) -> None:
    log, arms, users = grouped(20)
    found = shoal.recommend(log, features=arms, users=users, horizon=1_000, runs=4)
    by_label = {one.label: one for one in found.played}
    mean, margin = by_label[playing.WITH].against(by_label["ClusterMixture"])
    assert mean + margin < 0.0
    assert found.described
    assert found.chosen is by_label[playing.WITH]
    assert found.call().endswith(", agent_features=Z)")
    (said,) = [note for note in found.notes if note.startswith("What the features of agents bring")]
    assert f"(−{-mean:,.0f} ± {margin:,.0f}, run by run): they help." in said
    assert "90 of the 90 agents are described (z0, z1, z2)." in found.notes
    assert found.notes[-1].startswith("agent_features=Z: Z has a row for each agent")
    policy = found.make(2, 3, agent_features=[[1.0, np.nan, 2.0]] * 2)
    assert policy.agent_dim == 3
    with pytest.raises(ValueError, match="agent_features must be given"):
        found.make(2, 3)
    page = report.document(found)
    assert page.title.startswith("Take ClusterMixture with features and α = ")
    parts = [part for section in page.sections for part in section.parts]
    (table,) = (part for part in parts if isinstance(part, Table))
    assert table.marks.count("reference") == 1
    assert table.lines[table.marks.index("reference")][0] == playing.WITH
    line = next(part.text for part in parts if isinstance(part, Text) and "shoal.open" in part.text)
    opened = line[line.index("shoal.open") :].replace('"shop.db"', repr(str(tmp_path / "shop.db")))
    shop = eval(opened, {"shoal": shoal})
    shop.decide("ada", {"a": [1.0, 0.0, 0.0]}, agent_features=[1.0, None, 2.0])
    plain = shoal.recommend(log, features=arms, horizon=300, runs=2)
    assert playing.WITH not in {one.label for one in plain.played}
    assert not plain.described


def test_clicks_of_described_agents_are_both() -> None:
    log, arms, users = grouped(20, clicks=True)
    found = shoal.recommend(log, features=arms, users=users, horizon=300, runs=2)
    (one,) = [one for one in found.played if one.label == playing.WITH]
    assert one.parameters["rewards"] == "binary"


def test_an_agent_of_the_log_brings_its_features_into_the_world() -> None:
    log, arms, users = grouped(20)
    users = {name: column[5:] for name, column in users.items()}
    users["agent"][0] = "nobody"  # so u0 to u5 are not described
    read = inspecting.read(log, arms, users, "agent", "arm", "reward")
    assert read.users is not None
    assert (read.users.known, read.users.others) == (84, 1)
    assert "84 of the 90 agents are described (z0, z1, z2); 1 row of" in " ".join(inspecting.oddities(read))
    tastes = modelling.fit(read)
    for seed in range(2):
        world = tastes.world(seed, 60)
        assert world.agent_features is not None
        chosen = np.random.default_rng([seed, 1]).choice(90, size=60, replace=False)
        assert np.array_equal(world.agent_features, read.users.values[chosen], equal_nan=True)
        assert np.isnan(world.agent_features[chosen < 6]).all()
        # Whom features put into a group likes what the group likes.
        liked = world.mean_rewards[chosen >= 6].argmax(axis=1)
        groups = world.agent_features[chosen >= 6].argmax(axis=1)
        likes = [np.bincount(liked[groups == group], minlength=30).max() for group in range(3)]
        assert sum(likes) > 0.5 * len(liked)


def test_features_that_bring_nothing_sure_are_not_asked_for() -> None:
    def described(regrets: list[float]) -> playing.Played:
        one = played("BASS", regrets)
        return replace(one, method=one.method._replace(label=playing.WITH, described=True))

    alone, plain = played("Independent", [100.0, 101.0, 99.0]), played("BASS", [50.0, 51.0, 49.0])
    lucky, right = described([40.0, 55.0, 45.0]), described([40.0, 41.0, 39.0])
    assert playing.choose([alone, plain, lucky])[0] is plain
    assert playing.choose([alone, plain, right])[0] is right
    unsure = played("BASS", [20.0, 51.0, 149.0])
    assert playing.choose([alone, unsure, right])[0] is right
    for one, words in ((lucky, "do not show that they matter"), (right, "they help")):
        assert words in " ".join(playing._of_features([alone, plain, one], plain))
    harmful = described([70.0, 71.0, 69.0])
    assert "they do harm" in " ".join(playing._of_features([alone, plain, harmful], plain))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"agent,age\na,34\na,35\n", r"users\.csv, line 3: the agent 'a' is there twice"),
        (b"agent,age\nc,34\nc,35\n", r"users\.csv, line 3: the agent 'c' is there twice"),
        (b"agent,device\na,phone\n", r"line 2: device must be a number, got 'phone'; for a category, give"),
        (b"agent,age\na,inf\n", r"line 2: age must be a finite number in .*, got 'inf'"),
        (b"agent,age\na,nan\n", r"line 2: age must be a finite number in .*, got 'nan'"),
        (b"agent,age\na,1e40\n", r"line 2: age must be a finite number in"),
        (b"agent,age\n,34\n", r"line 2: agent is empty"),
        (b"agent,age\na\n", r"line 2: 1 fields, where the heading has 2"),
        (b"name,age\na,34\n", r"users\.csv has no column 'agent'; it has 'name', 'age'"),
        (b"agent,age,age\na,1,2\n", r"users\.csv has 2 columns 'age'"),
        (b"agent\na\n", r"users\.csv has no column but 'agent'"),
        (b"agent,age\nc,34\n", r"users\.csv has no row of an agent of the log, whose first is 'a'"),
        (b"agent,age\n", r"users\.csv has no rows"),
        (b"", r"users\.csv has no column 'agent'; it has none at all"),
        (b"agent,age\na,\xff\xfe\n", r"users\.csv, line .* damaged, or not CSV in UTF-8"),
        (b"PAR1 and no more", r"users\.csv: not a Parquet file, or a damaged one"),
        (b"agent," + b",".join(b"x%d" % k for k in range(10_001)) + b"\n", r"has 10,001 columns of features"),
    ],
)
def test_bad_tables_of_users_are_refused_before_anything_is_played(
    content: bytes, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "log.csv", ["agent", "arm", "reward"], [("a", "x", 1), ("b", "y", 0.5)])
    arms = write(tmp_path / "arms.csv", ["arm", "f"], [("x", 1), ("y", 2)])
    (tmp_path / "users.csv").write_bytes(content)

    def progress(*_: Any) -> None:
        raise AssertionError("something was played")

    with pytest.raises(ValueError, match=words):
        shoal.recommend(path, features=arms, users=tmp_path / "users.csv", progress=progress)


def test_missing_entries_of_users_and_columns_that_say_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", ["who", "arm", "reward"], [("a", "x", 1), (7, "y", 0.5)])
    arms = write(tmp_path / "arms.csv", ["arm", "f"], [("x", 1), ("y", 2)])
    csv_file = write(
        tmp_path / "users.csv", ["age", "who", "same", "none"], [("", 7, 3, ""), ("34.5", "a", 3, "")]
    )
    frame = {"age": [None, 34.5], "who": [7, "a"], "same": [3, True + 2], "none": [math.nan, None]}
    for users in (csv_file, frame):
        log = inspecting.read(path, arms, users, "who", "arm", "reward")
        assert log.users is not None
        assert log.users.columns == ["age", "same", "none"]
        expected = [[34.5, 3.0, np.nan], [np.nan, 3.0, np.nan]]
        assert np.array_equal(log.users.values, expected, equal_nan=True)
        said = " ".join(inspecting.oddities(log))
        assert "'age', 'same', 'none': the same for all agents with an entry" in said
    with pytest.raises(ValueError, match="users are for a log"):
        shoal.recommend(shoal.SyntheticClusters(4, 2, 2, 1.0, seed=0), users=csv_file)
    with pytest.raises(ValueError, match=r"there is no file .*nobody\.csv"):
        shoal.recommend(path, features=arms, users=tmp_path / "nobody.csv", agent="who")


def test_bad_requests_are_refused_before_anything_is_played() -> None:
    world = shoal.SyntheticClusters(4, 2, 2, 1.0, seed=0)
    with pytest.raises(ValueError, match="runs must be at least 2"):
        shoal.recommend(world, runs=1)
    with pytest.raises(ValueError, match="horizon must be"):
        shoal.recommend(world, horizon=0)


# From a file to a page


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("log")
    log, _, _ = simulated(n=24, rows=40)
    path = write(
        directory / "log.csv",
        ["who", "arm", "y", "noted"],
        ((f"u{a}", f"arm {k}", y, "") for a, k, y in zip(log.agents, log.arms, log.rewards, strict=True)),
    )
    arms = write(
        directory / "arms.csv",
        ["arm", "a", "b", "c"],
        ((f"arm {k}", *row) for k, row in enumerate(log.features.tolist())),
    )
    return path, arms


def test_from_the_command_line(files: tuple[Path, Path], tmp_path: Path) -> None:
    path, arms = files
    out = tmp_path / "report"
    users = write(
        tmp_path / "users.csv", ["who", "age"], [(f"u{a}", 20 + a if a % 2 else "") for a in range(30)]
    )
    done = CliRunner().invoke(
        app,
        f"recommend {path} --features {arms} --users {users} --agent who --reward y --horizon 300 --runs 2 "
        f"--agents 20 --out {out}",
    )
    assert done.exit_code == 0, done.output
    assert 'Take shoal.make_policy("' in done.output
    assert "960 rows of 24 agents and 40 arms" in done.output
    assert "Of 24 agents 20 are drawn" in done.output
    assert "24 of the 24 agents are described (age); 6 rows" in done.output
    assert "What the features of agents bring: ClusterMixture with features has" in done.output
    page = (out / "index.html").read_text()
    for words in ("What was played", "What this cannot tell", "minus Independent", "shoal.open("):
        assert words in page
    assert (out / "figures" / "regret.png").stat().st_size > 10_000


def test_a_report_is_written_unless_its_place_is_a_file(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, arms = files
    monkeypatch.chdir(tmp_path)
    asked = f"recommend {path} --features {arms} --agent who --reward y --horizon 100 --runs 2 --agents 4"
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "The report is log-recommendation/index.html" in done.output
    assert "What this cannot tell" in (tmp_path / "log-recommendation" / "index.html").read_text()
    (tmp_path / "taken").write_text("mine")
    refused = CliRunner().invoke(app, f"{asked} --out taken")
    assert refused.exit_code != 0
    assert "runs" not in refused.output  # nothing was played
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("a", "x", "1"), ("b", "y", "nan")], r"log\.csv, line 3: reward must be a finite number"),
        ([("a", "x", "1"), ("b", "z", "2")], r"log\.csv, line 3: arm 'z' has no row in .*arms\.csv"),
        ([("a", "x", "1"), ("b", "y", "1")], r"log\.csv: every reward is 1"),
        ([], "no rows"),
    ],
)
def test_bad_logs_are_named(rows: Any, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", ["agent", "arm", "reward"], rows)
    arms = write(tmp_path / "arms.csv", ["arm", "f"], [("x", 1), ("y", 2)])
    with pytest.raises(ValueError, match=words):
        shoal.recommend(path, features=arms)


def test_one_agent_one_row_one_feature() -> None:
    found = modelling.fit(log_of([1.0, 2.0], [0, 0], [0, 1], [[1.0], [1.0]]))
    assert math.isfinite(found.noise_scale)
    assert np.isfinite(found.world(0, 1).mean_rewards).all()
