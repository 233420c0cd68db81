"""shoal in other libraries: the same choices, rewards and logs as without them."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import shoal
from shoal.lab.adapters.obp import from_obp, read_open_bandit, to_obp
from shoal.live.evaluation.logs import read_log

REAL = Path(__file__).parents[4] / "shared" / "data" / "open-bandit"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real data is not here")
WORLD = shoal.GaussianClusters(6, 3, 2, n_arms=4, seed=1)


# coba


def test_coba_plays_the_policy_that_we_do() -> None:
    coba = pytest.importorskip("coba")
    from shoal.lab.adapters.coba import CobaLearner

    rng = np.random.default_rng(0)
    agents, noise = rng.integers(6, size=300), rng.normal(size=300)
    arms = [tuple(x) for x in WORLD.arms.tolist()]

    def rewards(t: int, agent: int) -> list[float]:
        return (WORLD.mean_rewards[agent] + noise[t]).tolist()  # type: ignore[no-any-return]

    interactions = [
        coba.SimulatedInteraction([int(agent)], arms, rewards(t, agent)) for t, agent in enumerate(agents)
    ]

    class Source:
        params: ClassVar[dict[str, Any]] = {}

        def read(self) -> Any:
            return iter(interactions)

    learner = CobaLearner("bass", n_agents=6, dim=3, alpha=0.3)
    coba.CobaContext.logger = coba.NullLogger()
    result = coba.Experiment(coba.Environments(Source()), [learner]).run(quiet=True)
    policy = shoal.BASS(6, 3, alpha=0.3)
    expected = []
    for t, agent in enumerate(agents.tolist()):
        k = policy.select(agent, WORLD.arms)
        expected.append(rewards(t, agent)[k])
        policy.update(agent, WORLD.arms[k], expected[-1])
    table = result.interactions.to_dicts()
    np.testing.assert_allclose([row["reward"] for row in table], expected, atol=1e-5)  # coba rounds
    (described,) = result.learners.to_dicts()
    assert (described["family"], described["alpha"]) == ("shoal bass", 0.3)


def test_coba_reads_agents_and_refuses_chance() -> None:
    pytest.importorskip("coba")
    from shoal.lab.adapters.coba import CobaLearner, first_of

    assert [first_of(context) for context in (None, 4, [3, 0.1], {"agent": 2})] == [0, 4, 3, 2]
    learner = CobaLearner("independent", 6, 3)
    chosen, probability = learner.predict([5], [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)])
    assert probability == 1.0
    assert learner.score([5], [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)], chosen) == 1.0
    drawn: list[tuple[str, dict[str, Any]]] = [
        ("bass", {"epsilon": 0.1}),
        ("bass", {"exploration": "sample"}),
        ("lints", {}),
        ("hier_ts", {}),
        ("codband", {}),
    ]
    for name, parameters in drawn:
        with pytest.raises(ValueError, match=f"every action's probability, and {name} as asked for draws"):
            CobaLearner(name, 6, 3, **parameters)
    for name in ("hier_ucb", "cluster_mixture"):
        CobaLearner(name, 6, 3)
    CobaLearner("codband", 6, 3, exploration="ucb")
    with pytest.raises(ValueError, match="unknown policy 'basss'"):
        CobaLearner("basss", 6, 3)


# gymnasium


@pytest.mark.filterwarnings("ignore")  # the checker's advice on unbounded boxes
def test_gymnasium_s_own_checker_is_content() -> None:
    pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    from shoal.lab.adapters.gym import BanditEnv

    check_env(BanditEnv(WORLD, horizon=50), skip_render_check=True)


@pytest.mark.parametrize("world", [WORLD, shoal.ChangingArms(6, 3, 2, n_arms=4, seed=1)])
def test_gymnasium_steps_are_pulls(world: shoal.Environment) -> None:
    pytest.importorskip("gymnasium")
    from shoal.lab.adapters.gym import BanditEnv

    env = BanditEnv(world, horizon=600)
    seen, _ = env.reset(seed=3)
    assert world.theta_star is not None
    residuals, agents = [], set()
    for t in range(1, 601):
        arms, agent = seen["arms"], int(seen["agent"])
        agents.add(agent)
        np.testing.assert_array_equal(arms, world.arms_in(t, t)[0])
        means = arms @ world.theta_star[agent]
        seen, reward, ended, truncated, info = env.step(t % 4)
        assert info["regret"] == pytest.approx(means.max() - means[t % 4])
        residuals.append(reward - means[t % 4])
        assert not ended
        assert truncated == (t == 600)
    assert agents == set(range(6))
    assert abs(np.mean(residuals)) < 5.0 / np.sqrt(600)
    assert abs(np.std(residuals) - 1.0) < 0.15
    again, _ = env.reset(seed=3)
    assert int(again["agent"]) == int(BanditEnv(world).reset(seed=3)[0]["agent"])
    with pytest.raises(ValueError, match=r"action must be an arm in 0, …, 3, got 4"):
        env.step(4)
    with pytest.raises(ValueError, match="reset must be called before step"):
        BanditEnv(world).step(0)


# obp


FEEDBACK: dict[str, Any] = {
    "n_rounds": 4,
    "n_actions": 3,
    "action": np.array([2, 0, 1, 2]),
    "position": np.zeros(4, dtype=int),
    "reward": np.array([0, 1, 0, 1]),
    "pscore": np.array([0.5, 0.25, 0.25, 0.5]),
    "context": np.zeros((4, 1)),
    "action_context": np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
}
"""The structure that obp documents: obp 0.4.1 cannot be installed beside NumPy 2, and is not run here."""


def test_obp_there_and_back() -> None:
    again = to_obp(*from_obp(FEEDBACK))
    assert list(again) == list(FEEDBACK)
    for key, value in FEEDBACK.items():
        np.testing.assert_array_equal(again[key], value)


def test_obp_s_log_can_be_evaluated() -> None:
    log, arms = from_obp(FEEDBACK, agents=["a", "b", "a", "b"])
    found = read_log(log, probability="probability", agent="agent", arm="arm", arms=arms)
    assert found.n_agents == 2
    np.testing.assert_array_equal(found.probabilities, FEEDBACK["pscore"])
    assert found.shown is not None
    np.testing.assert_array_equal(found.shown, FEEDBACK["action"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pscore": None}, "feedback must have 'pscore', as obp's has; it has 'n_rounds', "),
        ({"pscore": [0.5, 0.0, 1.0, 1.0]}, r"feedback\['pscore'\] must be in \(0, 1\], got 0 to 1"),
        ({"reward": [1.0]}, r"feedback\['reward'\] must have shape \(4,\)"),
        ({"action": [0, 1, 2, 3]}, r"feedback\['action'\] must be integers in 0, …, 2"),
        ({"action": [], "reward": [], "pscore": []}, "feedback has no rounds"),
        ({"action": [0.0, 1.0, 2.0, 0.0]}, r"feedback\['action'\] must be integers"),
    ],
)
def test_bad_feedback_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_obp({**FEEDBACK, **changed})
    with pytest.raises(ValueError, match="agents must have 4 entries"):
        from_obp(FEEDBACK, agents=["a"])
    log, arms = from_obp(FEEDBACK)
    with pytest.raises(ValueError, match="arm '9' is not among the arms"):
        to_obp({**log, "arm": ["9", "0", "0", "0"]}, arms)


def write_open_bandit(folder: Path) -> Path:
    (folder / "item_context.csv").write_text(
        ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n"
        "0,0,-0.5,aa,x,p\n1,1,0.25,bb,x,q\n"
    )
    (folder / "men.csv").write_text(
        ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,user_feature_2,"
        "user_feature_3,user-item_affinity_0\n"
        "0,2019-11-24 00:00:02+00:00,1,3,1,0.25,u,v,w,z,0.0\n"
        "1,2019-11-24 00:00:01+00:00,0,1,0,0.75,u,v,w,y,0.0\n"
    )
    return folder


def test_open_bandit(tmp_path: Path) -> None:
    log, arms = read_open_bandit(write_open_bandit(tmp_path))
    assert log == {
        "agent": ["segment 1", "segment 0"],
        "arm": ["0", "1"],
        "reward": [0.0, 1.0],
        "probability": [0.75, 0.25],
    }
    assert arms == {"0": [-0.5, 1, 1, 1, 0, 0], "1": [0.25, 0, 1, 0, 1, 1]}
    path = tmp_path / "men.csv"
    (tmp_path / "all.csv").write_text(path.read_text().partition("\n")[0] + "\n")
    with pytest.raises(ValueError, match=r"all.csv has no rows"):
        read_open_bandit(tmp_path, "all")
    path.write_text(path.read_text().replace("1,0.25,u", "2,0.25,u"))
    with pytest.raises(ValueError, match=r"men.csv:2: expected a known item, a click of 0 or 1"):
        read_open_bandit(tmp_path)
    with pytest.raises(shoal.DataUnavailable, match="there is no file"):
        read_open_bandit(tmp_path, "women")


@needs_real
@pytest.mark.parametrize(("behaviour", "clicks"), [("random", 46), ("bts", 69)])
def test_the_real_open_bandit_sample(behaviour: str, clicks: int) -> None:
    log, arms = read_open_bandit(REAL / behaviour)
    found = read_log(log, probability="probability", agent="agent", arm="arm", arms=arms)
    assert len(found) == 10_000
    assert found.rewards.sum() == clicks
    assert len(arms) == 34
    if behaviour == "random":
        np.testing.assert_allclose(found.probabilities, 1 / 34)
