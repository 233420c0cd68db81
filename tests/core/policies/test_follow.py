"""Following a record of who separated when: the same state, to the byte, without a test."""

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.policies import bass
from shoal.core.policy.cuts import CuttingPolicy
from shoal.core.policy.steps import BEGIN, CANCEL, FINISH, PULL

N, D = 40, 3
POLICIES: dict[str, Any] = {"bass": shoal.BASS, "crowd": shoal.BASS}
POLICIES |= {"noise": shoal.BASS, "noise in a crowd": shoal.BASS}  # that is estimated


@pytest.fixture(params=POLICIES)
def fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes policies of one kind, all alike."""
    if request.param.endswith("crowd"):
        monkeypatch.setattr(bass.policy, "WITNESS_BYTES", 0)

    def make() -> CuttingPolicy:
        own: dict[str, Any] = {"gamma": 1.0}
        own |= {"noise_scale": None} if request.param.startswith("noise") else {}
        policy: CuttingPolicy = POLICIES[request.param](N, D, seed=1, **own)
        policy.remove_agent(3, withdraw=True)
        policy.set_sharing(5, "borrow")
        policy.set_sharing(6, "none")
        return policy

    return make


def pulls(seed: int, n: int = 500) -> tuple[list[int], list[int], list[Any], list[float]]:
    """Pulls of which some are rewarded later, or never."""
    rng = np.random.default_rng(seed)
    tastes = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    kinds: list[int] = []
    agents, xs, rewards, due = [], [], [], []
    for _ in range(n):
        agent = int(rng.choice([0, 1, 2, *range(4, N)]))
        x = rng.normal(size=D)
        reward = float(x @ tastes[agent % 2] + 0.1 * rng.normal())
        if later := rng.random() < 0.7:
            due.append((agent, x, reward))
        kinds.append(BEGIN if later else PULL)
        agents.append(agent)
        xs.append(x)
        rewards.append(reward)
        if len(due) > 9:
            agent, x, reward = due.pop(int(rng.integers(len(due))))
            kinds.append(CANCEL if rng.random() < 0.1 else FINISH)
            agents.append(agent)
            xs.append(x)
            rewards.append(reward)
    return kinds, agents, xs, rewards


def play(policy: CuttingPolicy, kinds: Any, agents: Any, xs: Any, rewards: Any) -> list[tuple[int, int]]:
    """Play pulls one by one; who separated from whom at which."""
    cuts = []
    for i, (kind, agent, x, reward) in enumerate(zip(kinds, agents, xs, rewards, strict=True)):
        before = len(policy.cuts)
        if kind == BEGIN:
            policy.begin(agent, x)
        elif kind == CANCEL:
            policy.cancel(agent, x)
        else:
            policy.update(agent, x, reward, begun=kind == FINISH)
        cuts += [(i, int(one + two - agent)) for one, two, _ in policy.cuts[before:]]
    return cuts


def content(policy: CuttingPolicy) -> bytes:
    """A policy's bytes, with the cuts of each round in order: tests may find them in any."""
    pairs, rounds, (used,) = policy.state.cuts
    order = np.lexsort((pairs[:used, 1], pairs[:used, 0], rounds[:used]))
    pairs[:used], rounds[:used] = pairs[order], rounds[order]
    return bytes(policy.to_bytes())


def test_following_gives_the_same_state(fresh: Any) -> None:
    one_by_one, followed = fresh(), fresh()
    for seed in range(6):  # followed and played in turn, while many agents still share
        given = pulls(seed, 150)
        cuts = play(one_by_one, *given)
        if seed % 2:
            assert sorted(play(followed, *given)) == sorted(cuts)
        else:
            followed.follow(*given, cuts)
        assert content(followed) == content(one_by_one)
    assert len(one_by_one.cuts) > 50


def test_no_cut_is_made_that_is_not_recorded(fresh: Any) -> None:
    policy = fresh()
    policy.follow(*pulls(1), [])
    assert len(policy.cuts) == 0


def test_cuts_with_the_withdrawn_are_passed_over(fresh: Any) -> None:
    policy = fresh()
    policy.follow([PULL], [0], [np.ones(D)], [1.0], [(0, 3), (0, 1)])
    assert policy.cuts.tolist() == [[0, 1, 1]]


@pytest.mark.parametrize(
    "cuts",
    [
        [(2, 1)],  # no such pull
        [(-1, 1)],
        [(1, 2), (0, 2)],  # not in order
        [(0, 1)],  # a pull without a reward
        [(1, 0)],  # from itself
        [(1, N)],  # nobody
        [(1, -1)],
    ],
)
def test_bad_cuts_change_nothing(fresh: Any, cuts: Any) -> None:
    policy = fresh()
    before = content(policy)
    with pytest.raises((ValueError, IndexError)):
        policy.follow([BEGIN, PULL], [0, 0], [np.ones(D)] * 2, [0.0, 1.0], cuts)
    assert content(policy) == before


def test_nobody_separates_twice(fresh: Any) -> None:
    policy = fresh()
    with pytest.raises(ValueError, match="pull 1 of agent 1 was refused"):
        policy.follow([PULL, PULL], [0, 1], [np.ones(D)] * 2, [1.0, 1.0], [(0, 1), (1, 0)])
    assert len(policy.cuts) == 1
