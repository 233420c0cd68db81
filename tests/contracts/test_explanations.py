"""Who lends how much to whom, and who stopped, when and by how much: the same for every policy."""

import numpy as np
import pytest
from tests.contracts.test_policies import N, play
from tests.contracts.test_sharing import build, kinds, samples

from shoal.policies.explanations import AgentExplanation, Lender, Stop


def called(agent: int) -> str:
    return f"<{agent}>"


@kinds
def test_lenders_are_those_whose_samples_are_used(kind: str) -> None:
    policy = build(kind)
    policy.set_sharing(2, "borrow")
    policy.set_sharing(4, "none")
    for agent, x, reward in samples(220):
        policy.update(agent, x, reward)
    policy.remove_agent(6)
    for agent in policy.agents.tolist():
        found = policy.explain(agent)
        assert (found.agent, found.sharing) == (agent, policy.sharing(agent))
        assert found.samples == policy.pulls[agent]
        lent = [lender.samples for lender in found.lenders]
        assert lent == sorted(lent, reverse=True)
        who = {lender.agent for lender in found.lenders}
        assert agent not in who
        assert not who & {2, 4}
        assert found.apart == len(policy.agents) - len(policy.neighbors(agent))
        if agent == 4:
            assert not found.lenders
        if kind not in ("cluster_mixture", "drift"):
            assert who == set(np.flatnonzero(policy._used(agent) & (policy.pulls > 0)).tolist()) - {agent}
            assert all(lender.samples == policy.pulls[lender.agent] for lender in found.lenders)
        elif agent != 4:
            assert all(0.0 < lender.samples <= policy.pulls[lender.agent] for lender in found.lenders)
            assert who >= set(policy.neighbors(agent).tolist()) - {agent} or policy.labels[agent] >= 0
        for other in policy.agents.tolist():
            if other != agent:
                pair = policy.explain(agent, other)
                by_other = {lender.agent: lender.samples for lender in found.lenders}.get(other, 0)
                assert pair.lent_by_other == pytest.approx(by_other, abs=0.05)
                assert (pair.agent, pair.other) == (agent, other)
                assert called(agent) in pair.text(called)
                assert called(other) in pair.text(called)
                assert str(pair).startswith(f"agent {agent} and agent {other} ")


@pytest.mark.parametrize("kind", ["bass", "crowd", "club"])
def test_who_stopped_when_and_by_how_much(kind: str) -> None:
    policy = build(kind, gamma=0.3 if kind == "club" else 1.0)
    for agent, x, reward in samples(300):
        policy.update(agent, x, reward)
    seen = 0
    for agent in range(N):
        found = policy.explain(agent)
        times = policy.separation_time[agent]
        assert {stop.agent for stop in found.stopped} == set(np.flatnonzero(times >= 0).tolist())
        rounds = [stop.round for stop in found.stopped]
        assert rounds == sorted(rounds, reverse=True)
        for stop in found.stopped:
            pair = policy.explain(agent, stop.agent)
            assert stop.round == times[stop.agent] == pair.separation_time
            value = pair.distance if kind == "club" else pair.statistic
            assert stop.margin == pytest.approx(value / pair.threshold, rel=1e-9)
            seen += 1
    assert seen > 10


def test_in_words() -> None:
    names = {3: "Ada", 0: "Ben"}

    def name(agent: int) -> str:
        return names.get(agent, f"no. {agent}")

    lenders = tuple(Lender(agent, 10.0 - agent) for agent in range(4, 11))
    found = AgentExplanation(3, "borrow", 1, lenders, (Stop(0, 12, 1.25),), apart=1)
    assert found.text(name) == (
        "Ada uses 1 sample of its own and 21 of 7 others: no. 4 (6), no. 5 (5), no. 6 (4), no. 7 (3), no. 8 "
        "(2) and 2 more. It stopped sharing with Ben (round 12, 1.25 times the threshold now). Nobody else "
        "uses its samples, because it does not lend them."
    )
    assert str(found._replace(lenders=lenders[:1])).startswith(
        "agent 3 uses 1 sample of its own and 6 of 1 other: agent 4 (6). It stopped sharing with agent 0 "
    )
    alone = found._replace(lenders=(), stopped=(), samples=4, sharing="none")
    assert alone.text(name) == "Ada uses 4 samples of its own. It neither lends nor borrows."
    assert alone._replace(sharing="both").text(name) == "Ada uses 4 samples of its own and nobody else's."


@kinds
def test_wrong_calls_are_named(kind: str) -> None:
    policy = build(kind)
    play(policy, 20)
    policy.remove_agent(1)
    with pytest.raises(ValueError, match="other must differ from agent, got 2 twice"):
        policy.explain(2, 2)
    for pair in ((1,), (1, 2), (2, 1)):
        with pytest.raises(ValueError, match="agent 1 has been removed"):
            policy.explain(*pair)
