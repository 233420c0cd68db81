"""Who lends how much to whom, and who stopped, when and by how much: the same for every policy."""

import math

import numpy as np
import pytest
from tests.core.contracts.test_policies import N, every_policy, make, play
from tests.core.contracts.test_sharing import build, kinds, samples

import shoal
from shoal.core.policies.mixture.explanation import MembershipExplanation
from shoal.core.policy.explanations import AgentExplanation, Lender, PairComparison, Stop


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
        heard = {*policy.neighbors(agent).tolist(), *who}  # a mixture also uses those it may belong with
        assert found.apart == len(set(policy.agents.tolist()) - heard)
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


@pytest.mark.parametrize("kind", ["bass", "crowd", "noise", "noise in a crowd"])
def test_who_stopped_when_and_by_how_much(kind: str) -> None:
    policy = build(kind, gamma=1.0)
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
            assert stop.margin == pytest.approx(pair.statistic / pair.threshold, rel=1e-9)
            assert stop.distance == pytest.approx(pair.distance, rel=1e-9)
            assert stop.allowed == pytest.approx(pair.allowed, rel=1e-9)
            seen += 1
    assert seen > 10


def test_what_chance_allows_is_where_the_test_is_at_its_threshold() -> None:
    policy = build("bass", gamma=1.0)
    for agent, x, reward in samples(300):
        policy.update(agent, x, reward)
    found, local = policy.explain(0, 1), policy.state.local
    apart = local.theta_hat[0] - local.theta_hat[1]
    assert found.distance == pytest.approx(np.linalg.norm(apart))
    closer = local.theta_hat[1] + apart * found.allowed / found.distance
    statistic = shoal.separation_statistic(
        closer, local.A[0], found.radius_agent, local.theta_hat[1], local.A[1], found.radius_other
    )
    assert statistic == pytest.approx(found.threshold, rel=1e-6)


def test_in_words() -> None:
    names = {3: "Ada", 0: "Ben"}

    def name(agent: int) -> str:
        return names.get(agent, f"no. {agent}")

    lenders = tuple(Lender(agent, 1000.0 - agent) for agent in range(4, 11))
    stops = (
        Stop(0, 1812, 2.1, 1.3, 0.9),
        *(Stop(agent, 90 - agent, 2.0, 1.0, 0.5) for agent in range(11, 16)),
    )
    found = AgentExplanation(3, "both", 1204, lenders, stops, apart=6)
    assert found.text(name) == (
        "Ada has 1,204 samples and borrows 6,951 from 7 others, the most from no. 4 (996), no. 5 (995) and "
        "no. 6 (994). Ada and Ben stopped sharing in round 1,812: their estimates differ by 1.3 where the "
        "test allows 0.9. Before that, Ada stopped sharing with no. 11 (in round 79), no. 12 (in round 78), "
        "no. 13 (in round 77) and 2 more."
    )
    few = found._replace(lenders=(Lender(4, 1.0), Lender(5, 0.25)), stopped=(), samples=1, apart=1)
    assert few.text(name) == (
        "Ada has 1 sample and borrows 1.2 from 2 others: no. 4 (1) and no. 5 (0.25). 1 other lends Ada "
        "nothing."
    )
    closer = Stop(0, 7, 0.8, 0.4, 0.5)
    assert str(few._replace(stopped=(closer,))).endswith(
        "agent 3 and agent 0 stopped sharing in round 7: their estimates differ by 0.4 now, which the "
        "test allows (up to 0.5), but who stops does so for good."
    )
    alone = few._replace(lenders=(), apart=0, samples=4)
    assert alone.text(name) == "Ada has 4 samples and borrows none."
    assert alone._replace(sharing="none").text(name) == "Ada has 4 samples, and neither lends nor borrows."
    assert alone._replace(sharing="borrow").text(name) == (
        "Ada has 4 samples and borrows none. Ada does not lend: nobody else uses these samples."
    )
    assert str(found.text(name, lambda round_: f"on day {round_}")).count("on day 1812") == 1


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (40812.3, "40,812"),
        (99.6, "100"),
        (12.34, "12"),
        (0.123, "0.12"),
        (0.0, "0"),
        (3e-7, "less than 0.0001"),
    ],
)
def test_sizes_are_said_without_powers_of_ten(number: float, said: str) -> None:
    pair = PairComparison(0, 1, True, number, number, -1, 40812, 3)
    assert f"differ by {said} where the test allows {said}. " in str(pair)
    assert str(pair).endswith("lends 40,812.")


def test_pairs_in_words() -> None:
    pair = PairComparison(0, 1, True, 0.5, 0.9, -1, 1204, 3)
    assert str(pair) == (
        "agent 0 and agent 1 belong together: their estimates differ by 0.5 where the test allows 0.9. "
        "agent 0 borrows 3 samples from agent 1 and lends 1,204."
    )
    hardly = MembershipExplanation(False, 0.1, 0.1, 0.9, 9, 9, 1.4e-10, 0.9, 0.0, -1, -1, 0, 1)
    assert str(hardly).endswith("borrows 0.9 samples from agent 1 and lends less than 0.01.")
    apart = pair._replace(together=False, threshold=math.nan, lent_by_agent=0, lent_by_other=0)
    assert str(apart) == (
        "agent 0 and agent 1 do not share: their estimates differ by 0.5. Neither uses the other's samples."
    )


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


@every_policy
def test_what_every_policy_can_explain(name: str) -> None:
    policy = make(name)
    play(policy, 120)
    for agent in range(N):
        found = policy.explain(agent)
        assert found.samples == policy.pulls[agent]
        if name != "cluster_mixture":  # which also uses samples of those it may belong with
            lenders = {lender.agent for lender in found.lenders}
            used = {*policy.neighbors(agent).tolist()}
            assert lenders == {who for who in used - {agent} if policy.pulls[who]}
            assert found.apart == N - len(used)
        other = (agent + 1) % N
        pair = policy.explain(agent, other)
        assert (pair.agent, pair.other) == (agent, other)
        if name not in ("bass", "cluster_mixture"):
            assert pair.lent_by_other == (policy.pulls[other] if other in policy.neighbors(agent) else 0)
