"""The simulation: reproducible, paired, the same for plain policies, and strict about its input."""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.types import Integers, Matrix, Vector
from shoal.lab import simulation
from shoal.lab.metrics import misassigned_agents, same_cluster
from shoal.lab.simulation import Trace, check_delay


def world(seed: int = 0, **own: Any) -> shoal.SyntheticClusters:
    return shoal.SyntheticClusters(10, 4, 3, 1.0, seed=seed, **own)


def bass(**own: Any) -> shoal.BASS:
    return shoal.BASS(10, 4, alpha=0.3, delta=0.1, **own)


def cumulative_regret(mean_rewards: Matrix, choices: Integers) -> Vector:
    """Cumulative pseudo-regret of choices, from the mean rewards (n, K) each choice could have had."""
    taken = np.take_along_axis(mean_rewards, choices[:, None], axis=1)[:, 0]
    return np.cumsum(mean_rewards.max(axis=1) - taken)


def assert_same(one: Trace, two: Trace) -> None:
    for field in ("agents", "choices", "rewards", "regret", "recorded", "f1", "edges", "communication"):
        assert np.array_equal(getattr(one, field), getattr(two, field)), field


class Plain:
    """A policy as a researcher starts one: two methods, no base class."""

    def __init__(self, inner: shoal.Policy) -> None:
        self.inner = inner

    def select(self, agent: int, arms: Any) -> int:
        return self.inner.select(agent, arms)

    def update(self, agent: int, x: Any, reward: float) -> None:
        self.inner.update(agent, x, reward)


def test_same_seed_same_trace_and_another_seed_another() -> None:
    one = shoal.simulate(bass(), world(), horizon=500, seed=3)
    assert_same(one, shoal.simulate(bass(), world(), horizon=500, seed=3))
    other = shoal.simulate(bass(), world(), horizon=500, seed=4)
    assert not np.array_equal(one.agents, other.agents)
    assert not np.array_equal(one.rewards, other.rewards)


def test_any_number_of_threads() -> None:
    def run(seed: int) -> Trace:
        return shoal.simulate(bass(epsilon=0.2, seed=seed), world(seed), horizon=400, seed=seed)

    alone = [run(seed) for seed in range(6)]
    with ThreadPoolExecutor(4) as pool:
        for one, two in zip(alone, pool.map(run, range(6)), strict=True):
            assert_same(one, two)


def test_draws_do_not_depend_on_the_policy() -> None:
    environment = world()
    traces = [
        shoal.simulate(shoal.make_policy("independent", 10, 4, alpha=alpha), environment, horizon=300, seed=1)
        for alpha in (0.1, 2.0)
    ]
    assert np.array_equal(traces[0].agents, traces[1].agents)
    noise = [t.rewards - environment.mean_rewards[t.agents, t.choices] for t in traces]
    np.testing.assert_allclose(noise[0], noise[1], atol=1e-12)
    assert not np.array_equal(traces[0].choices, traces[1].choices)


@pytest.mark.parametrize("pulling", ["asynchronous", "synchronous"])
@pytest.mark.parametrize("changing", [False, True])
def test_recording_and_blocks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, pulling: str, changing: bool
) -> None:
    environment: shoal.Environment = shoal.ChangingArms(10, 4, seed=2) if changing else world()
    full = shoal.simulate(bass(), environment, horizon=300, seed=3, pulling=pulling, points=300)
    few = shoal.simulate(bass(), environment, horizon=300, seed=3, pulling=pulling, points=4)
    assert np.array_equal(full.rewards, few.rewards)
    assert np.array_equal(full.f1[few.recorded - 1], few.f1)
    monkeypatch.setattr(simulation, "BLOCK_EVENTS", 7)
    assert_same(full, shoal.simulate(bass(), environment, horizon=300, seed=3, pulling=pulling, points=300))


def test_zipf_draws_agents_by_rank_whatever_their_cluster() -> None:
    environment = world()
    policy = shoal.Independent(10, 4, alpha=0.3)
    trace = shoal.simulate(policy, environment, horizon=40_000, seed=5, pulling="zipf")
    counts = np.bincount(trace.agents, minlength=10)
    expected = 1.0 / np.arange(1, 11)
    np.testing.assert_allclose(np.sort(counts)[::-1] / 40_000, expected / expected.sum(), rtol=0.06)
    assert len(trace.agents) == 40_000  # one in each round

    def busiest(seed: int) -> int:
        drawn = shoal.simulate(
            shoal.Independent(10, 4, alpha=0.3), environment, horizon=2000, seed=seed, pulling="zipf"
        )
        return int(np.argmax(np.bincount(drawn.agents)))

    assert busiest(5) == np.argmax(counts)  # of the seed, not of the horizon
    assert len({busiest(seed) for seed in range(12)}) > 4  # agent 0 is not always the first


def test_regret_counts_the_means_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = shoal.ChangingAgents(10, 4, 3, 1.0, change_after=150, seed=1)
    assert environment.theta_star is not None
    means = np.stack([environment.theta_star, environment.theta_after]) @ environment.arms.T

    def check(pulling: Any, events: int) -> Trace:
        trace = shoal.simulate(
            shoal.BASS(10, 4, alpha=0.3, delta=0.1), environment, horizon=300, seed=2, pulling=pulling
        )
        after = (np.arange(len(trace.agents)) // events >= 150).astype(int)
        expected = cumulative_regret(means[after, trace.agents], trace.choices)[events - 1 :: events]
        np.testing.assert_allclose(trace.regret, expected, atol=1e-9)
        noise = trace.rewards - means[after, trace.agents, trace.choices]
        assert abs(noise.std() - 1.0) < 0.15
        return trace

    one = check("asynchronous", 1)
    check("synchronous", 10)
    assert np.isnan(one.f1).all()  # no clusters are true throughout
    monkeypatch.setattr(simulation, "BLOCK_EVENTS", 7)  # the change falls inside a block
    assert np.array_equal(one.choices, check("asynchronous", 1).choices)


def test_recorded_rounds() -> None:
    trace = shoal.simulate(bass(), world(), horizon=1000, seed=0, points=8)
    assert list(trace.recorded) == [125, 250, 375, 500, 625, 750, 875, 1000]
    assert len(trace.f1) == len(trace.edges) == len(trace.communication) == 8
    assert list(shoal.simulate(bass(), world(), horizon=3, seed=0).recorded) == [1, 2, 3]


def test_a_trace_is_shown_in_one_line() -> None:
    trace = shoal.simulate(bass(), world(), horizon=1000, seed=0)
    assert repr(trace) == str(trace)
    assert repr(trace) == (
        f"Trace(1,000 rounds of 10 agents, final regret {trace.final_regret:,.1f}, F1 {trace.f1[-1]:.2f}, "
        f"{trace.edges[-1]} edges)"
    )
    plain = shoal.simulate(Plain(bass()), world(), horizon=10, seed=0)
    assert repr(plain) == f"Trace(10 rounds of 10 agents, final regret {plain.final_regret:,.1f})"


def test_plain_policies_run_in_the_same_loop() -> None:
    compiled = shoal.simulate(bass(), world(), horizon=300, seed=1)
    plain = shoal.simulate(Plain(bass()), world(), horizon=300, seed=1)
    assert np.array_equal(compiled.agents, plain.agents)
    assert np.array_equal(compiled.rewards, plain.rewards)
    np.testing.assert_allclose(compiled.regret, plain.regret, atol=1e-9)
    assert np.isnan(plain.f1).all()
    assert (plain.edges == -1).all()
    schedule = [[3, 1], [], [0, 2, 5]] * 20
    alone = shoal.simulate(
        Plain(shoal.Independent(10, 4, alpha=0.3)), world(), horizon=60, seed=1, pulling=schedule
    )
    assert list(alone.agents[:5]) == [3, 1, 0, 2, 5]
    assert alone.regret[0] == alone.regret[1]  # nobody pulled in the second round


def test_a_subclass_s_own_choice_is_played() -> None:
    class Stubborn(shoal.Independent):
        def select(self, agent: int, arms: Any) -> int:
            return 3

    trace = shoal.simulate(Stubborn(10, 4, alpha=0.3), world(), horizon=50, seed=1)
    assert set(trace.choices) == {3}
    assert (trace.edges == 0).all()


def test_regret_is_that_of_the_choices() -> None:
    environment = world()
    trace = shoal.simulate(bass(), environment, horizon=200, seed=1)
    expected = cumulative_regret(environment.mean_rewards[trace.agents], trace.choices)
    np.testing.assert_allclose(trace.regret, expected, atol=1e-12)
    synchronous = shoal.simulate(bass(), environment, horizon=20, seed=1, pulling="synchronous")
    assert synchronous.regret.shape == (20,)
    assert synchronous.agents.shape == (200,)
    expected = cumulative_regret(environment.mean_rewards[synchronous.agents], synchronous.choices)[9::10]
    np.testing.assert_allclose(synchronous.regret, expected, atol=1e-12)


def test_online_calls_are_the_simulation() -> None:
    environment = world()
    trace = shoal.simulate(shoal.BASS(10, 4, alpha=0.3, delta=0.1), environment, horizon=300, seed=2)
    online = shoal.BASS(10, 4, alpha=0.3, delta=0.1)
    for agent, choice, reward in zip(trace.agents, trace.choices, trace.rewards, strict=True):
        assert online.select(agent, environment.arms) == choice
        online.update(agent, environment.arms[choice], reward)
    assert online.rounds == 300


def test_epsilon_explores() -> None:
    environment = world(noise_scale=0.0)
    greedy = shoal.simulate(bass(), environment, horizon=2000, seed=0)
    random = shoal.simulate(bass(epsilon=1.0, seed=0), environment, horizon=2000, seed=0)
    counts = np.bincount(random.choices, minlength=15)
    assert counts.min() > 80  # 133 expected of each
    assert np.bincount(greedy.choices, minlength=15).min() < 80
    half = shoal.simulate(bass(epsilon=0.5, seed=0), environment, horizon=2000, seed=0)
    assert greedy.final_regret < half.final_regret < random.final_regret


def test_progress_counts_every_round() -> None:
    seen: list[int] = []
    shoal.simulate(bass(), world(), horizon=777, seed=0, points=10, progress=seen.append)
    assert sum(seen) == 777


def test_misassigned_agents() -> None:
    truth = same_cluster(np.array([0, 0, 1, 1]))
    graph = truth.copy()
    graph[0, 2] = graph[2, 0] = True
    graph[0, 1] = graph[1, 0] = False
    assert list(misassigned_agents(graph, truth)) == [2, 1, 1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "horizon must be an integer of at least 1, got 0"),
        ({"horizon": 2.5}, "horizon must be an integer"),
        ({"seed": None}, "seed must be an integer"),
        ({"seed": -1}, "seed must be a non-negative integer"),
        ({"points": 0}, "points must be an integer"),
        ({"pulling": "sometimes"}, "pulling must be one of 'asynchronous', 'synchronous', 'zipf', got"),
        ({"pulling": [[0], [1]]}, "pulling must have one entry for each of the 5 rounds, got 2"),
        (
            {"pulling": [[0], [1], [10], [0], [0]]},
            r"pulling must name distinct agents in 0, …, 9, got \[10\] in round 3",
        ),
        ({"pulling": [[0, 0]] * 5}, r"got \[0 0\] in round 1"),
        ({"pulling": [[0.5]] * 5}, "pulling must name distinct agents"),
        ({"pulling": None}, "pulling must be a word or a sequence with one entry per round, got None"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    policy = bass()
    arguments: dict[str, Any] = {"horizon": 5, "seed": 0} | change
    with pytest.raises(ValueError, match=message):
        shoal.simulate(policy, world(), **arguments)
    assert policy.rounds == 0


def test_policy_and_environment_must_fit() -> None:
    with pytest.raises(ValueError, match="policy has dim = 3, the environment 4"):
        shoal.simulate(shoal.Independent(10, 3, alpha=1.0), world(), horizon=5, seed=0)
    with pytest.raises(ValueError, match="policy has n_agents = 9, the environment 10"):
        shoal.simulate(shoal.Independent(9, 4, alpha=1.0), world(), horizon=5, seed=0)
    with pytest.raises(ValueError, match="policy must have a method select"):
        shoal.simulate(object(), world(), horizon=5, seed=0)
    gone = bass()
    gone.remove_agent(1)
    with pytest.raises(ValueError, match="policy must not have removed agents"):
        shoal.simulate(gone, world(), horizon=5, seed=0)


def test_a_plain_policy_s_wrong_arm_is_named() -> None:
    class Wrong:
        def select(self, agent: int, arms: Any) -> int:
            return 99

        def update(self, agent: int, x: Any, reward: float) -> None: ...

    with pytest.raises(ValueError, match="select must return an arm in 0, …, 14, got 99"):
        shoal.simulate(Wrong(), world(), horizon=5, seed=0)


@pytest.mark.slow
def test_bass_lies_between_oracle_and_independent() -> None:
    """10 seeds of the first scenario: BASS below half of Independent's best, above Oracle's best."""
    horizon, seeds = 50_000, range(10)

    def mean_regret(name: str, alpha: float, **own: Any) -> float:
        def run(seed: int) -> float:
            environment = shoal.SyntheticClusters(100, 10, 3, math.pi / 16, seed=seed)
            if name == "oracle":
                own["labels"] = environment.labels
            policy = shoal.make_policy(name, 100, 10, alpha=alpha, **own)
            return shoal.simulate(policy, environment, horizon=horizon, seed=seed, points=1).final_regret

        with ThreadPoolExecutor() as pool:
            return float(np.mean(list(pool.map(run, seeds))))

    alphas = (0.3, 0.6, 1.0)
    independent = min(mean_regret("independent", alpha) for alpha in alphas)
    oracle = min(mean_regret("oracle", alpha) for alpha in alphas)
    bass_regret = mean_regret("bass", 0.3, delta=0.1)
    assert oracle < bass_regret < independent / 2


# Late rewards


def test_no_delay_is_no_delay() -> None:
    plain = shoal.simulate(bass(), world(), horizon=300, seed=3)
    for none in (0, ("uniform", 0, 0), ("geometric", 0.0), lambda rounds, agents, rng: 0 * rounds):
        assert_same(plain, shoal.simulate(bass(), world(), horizon=300, seed=3, delay=none))


def test_late_rewards_for_plain_policies_and_ours_alike() -> None:
    for delay in (7, ("uniform", 3, 60), ("geometric", 20)):
        ours = shoal.simulate(
            shoal.CLUB(10, 4, alpha=0.3, gamma=0.5), world(), horizon=300, seed=3, delay=delay
        )
        inner = shoal.CLUB(10, 4, alpha=0.3, gamma=0.5)
        plain = shoal.simulate(Plain(inner), world(), horizon=300, seed=3, delay=delay)
        assert np.array_equal(ours.agents, plain.agents)  # draws do not depend on the delay
        assert inner.rounds == inner.pulls.sum() < 300  # what is still due at the end is never learned


def test_rewards_are_learned_in_the_order_of_their_pulls_when_due() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.clock, self.learned = 0, list[tuple[int, int, float]]()

        def select(self, agent: int, arms: Any) -> int:
            self.clock += 1
            return agent % len(arms)

        def update(self, agent: int, x: Any, reward: float) -> None:
            self.learned.append((self.clock, agent, reward))

    def delay(rounds: Any, agents: Any, rng: np.random.Generator) -> Any:
        return rng.integers(0, 5, len(rounds)) * (agents % 2)

    policy = Recorder()
    trace = shoal.simulate(policy, world(), horizon=200, seed=1, delay=delay)
    waits = delay(
        np.arange(1, 201), trace.agents, np.random.default_rng(np.random.SeedSequence(1).spawn(3)[2])
    )
    due = sorted((t + 1 + int(waits[t]), t) for t in range(200) if t + 1 + waits[t] <= 200)
    assert policy.learned == [(when, trace.agents[t], trace.rewards[t]) for when, t in due]


def every_third_late(rounds: Any, agents: Any, rng: np.random.Generator) -> Any:
    return np.where(rounds % 3 == 0, 20, 0)


def test_a_function_named_in_a_spec_or_on_the_command_line() -> None:
    how: dict[str, Any] = {"horizon": 90, "seed": 1}
    ours, named = (
        shoal.simulate(bass(), world(), delay=delay, **how)
        for delay in (every_third_late, f"{__name__}:every_third_late")
    )
    assert_same(ours, named)
    assert shoal.simulate(bass(), world(), **how).final_regret != ours.final_regret
    check_delay(f"{__name__}:every_third_late")
    for name in ("nowhere:f", f"{__name__}:nothing", "a:b:c"):
        with pytest.raises(ValueError, match=re.escape(repr(name))):
            check_delay(name)


def test_delays_over_blocks_and_changing_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arms of earlier blocks are gone when their rewards come."""
    arms = shoal.ChangingArms(6, 3, 2, seed=0)
    whole = shoal.simulate(
        shoal.Independent(6, 3, alpha=0.5), arms, horizon=300, seed=0, delay=("uniform", 0, 90)
    )
    monkeypatch.setattr(simulation, "BLOCK_EVENTS", 16)
    parts = shoal.simulate(
        shoal.Independent(6, 3, alpha=0.5), arms, horizon=300, seed=0, delay=("uniform", 0, 90)
    )
    assert_same(whole, parts)


def test_everyone_waits_and_is_told_at_once() -> None:
    policy = shoal.Independent(10, 4, alpha=0.3)
    trace = shoal.simulate(policy, world(), horizon=30, seed=3, pulling="synchronous", delay=10)
    assert policy.pulls.tolist() == [20] * 10
    assert not policy.pending.any()
    assert len(trace.rewards) == 300


@pytest.mark.parametrize(
    ("delay", "message"),
    [
        (-1, "delay must be an integer of at least 0, got -1"),
        (1.5, "delay must be an integer of at least 0, got 1.5"),
        ("long", "delay must be a number of rounds"),
        ("math:pi", "delay must be a number of rounds"),
        (("uniform", 1), "delay must be a number of rounds"),
        (("uniform", 5, 2), "delay's low must be at most its high"),
        (("uniform", 0.5, 2), "delay's low must be an integer"),
        (("geometric", -1.0), "delay's mean must be a finite number"),
        (("poisson", 3), "delay must be a number of rounds"),
        (lambda rounds, agents, rng: [1], "delay must give 9 integers of at least 0"),
        (lambda rounds, agents, rng: 0.5 * rounds, "delay must give 9 integers of at least 0"),
        (lambda rounds, agents, rng: -rounds, "delay must give 9 integers of at least 0"),
    ],
)
def test_bad_delays(delay: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shoal.simulate(bass(), world(), horizon=9, seed=0, delay=delay)


@pytest.mark.parametrize("pulling", ["asynchronous", "synchronous"])
@pytest.mark.parametrize("delay", [0, 5])
def test_dividends_are_those_of_predictions_at_the_time(pulling: str, delay: int) -> None:
    """Against the same run played call by call; and recording them changes nothing."""
    world = shoal.SyntheticClusters(n_agents=6, dim=3, n_clusters=2, angle=1.0, seed=0)
    options: Any = {"horizon": 60, "seed": 3, "pulling": pulling, "delay": delay, "points": 7}
    policy = shoal.BASS(6, 3, alpha=0.3, delta=0.1)
    trace = shoal.simulate(policy, world, dividend=True, **options)
    plain = shoal.simulate(shoal.BASS(6, 3, alpha=0.3, delta=0.1), world, **options)
    np.testing.assert_array_equal(trace.choices, plain.choices)
    np.testing.assert_array_equal(trace.regret, plain.regret)
    assert plain.dividend is None
    assert trace.dividends is not None
    assert trace.dividend is not None
    per_round = 6 if pulling == "synchronous" else 1
    if pulling == "asynchronous":
        twin = shoal.BASS(6, 3, alpha=0.3, delta=0.1)
        for t, (agent, arm, reward) in enumerate(
            zip(trace.agents, trace.choices, trace.rewards, strict=True)
        ):
            own, pooled = twin.predict(agent, world.arms[arm])
            assert trace.dividends[t] == pytest.approx((own - reward) ** 2 - (pooled - reward) ** 2)
            if delay:
                twin.begin(agent, world.arms[arm])
                if t >= delay:
                    early = t - delay
                    x = world.arms[trace.choices[early]]
                    twin.update(trace.agents[early], x, trace.rewards[early], begun=True)
            else:
                twin.update(agent, world.arms[arm], reward)
    expected = [trace.dividends[: per_round * t].mean() for t in trace.recorded]
    np.testing.assert_allclose(trace.dividend, expected)


def test_dividends_need_predictions() -> None:
    world = shoal.SyntheticClusters(n_agents=2, dim=3, n_clusters=2, angle=1.0, seed=0)
    with pytest.raises(ValueError, match="dividend needs a policy that tells its predictions"):
        shoal.simulate(Plain(bass()), world, horizon=5, seed=0, dividend=True)
