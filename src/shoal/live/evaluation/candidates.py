"""What another policy would have earned: all estimates, or a sentence that says why there can be none.

A candidate is asked in two ways. *Step by step*: at each decision it knows all that was logged before, and is
asked for its choice; this estimates its worth if it took over. *Replayed*: it starts with nothing and learns
only from decisions that it would have made itself, thinned so that they are as frequent as under its own
choices; this estimates its worth from the start (Dudík, Erhan, Langford and Li 2012).
"""

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from shoal.core.policies.registry import find_live_policy
from shoal.core.policy.base import Policy
from shoal.core.types import Vector
from shoal.live.evaluation import estimators
from shoal.live.evaluation.estimators import ENOUGH, ESTIMATORS, Log, mean_of, why_no_target, why_not
from shoal.live.evaluation.logs import LoggedDecisions, complete, is_evaluable, outcomes
from shoal.live.evaluation.rehearsal import other_settings, rehearse
from shoal.live.journal.patience import go_on
from shoal.live.journal.records import Decided
from shoal.live.protocol.answers import Calibration, Estimate, Evaluation, Replayed

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner

Z99 = 2.5758293035489004
DRAWN = 10.0
"""Number of an agent's own rewards that weigh as much as the mean of all agents."""


def evaluate_population(
    owner: "Owner", policy: str | None, parameters: dict[str, Any], since: float | None = None
) -> Evaluation:
    """See `Population.evaluate`."""
    fold, exporter, found = outcomes(owner, since)
    some = [one for one in complete(fold.settings, found) if is_evaluable(one)]
    settings = other_settings(fold.settings, policy, parameters)
    # Decisions go on meanwhile; what is recorded from here on is left out.
    with owner.settled() as present:
        upto = present.seq
    _, opinions = rehearse(owner, settings, exporter, upto, chooses=True)
    some = [one for one in some if one.decided.id in opinions]
    thoughts = [opinions[one.decided.id] for one in some]
    events = LoggedDecisions(
        f"population {owner.name!r}",
        np.array([one.agent for one in some], dtype=np.int64),
        len(fold.called),
        np.array([one.reward for one in some], dtype=np.float64),
        np.array([one.decided.probability for one in some], dtype=np.float64),
        [exporter.offer(one.decided.arms).features for one in some],
        np.array([one.decided.shown[0] for one in some], dtype=np.int64),
    )
    log = Log(
        events.rewards,
        events.probabilities,
        np.array([float(a.greedy == b.decided.shown[0]) for a, b in zip(thoughts, some, strict=True)]),
        np.array([one.pooled for one in thoughts]),
        np.array([one.expected for one in thoughts]),
        np.array(
            [
                _chance(a.greedy, b.decided, len(exporter.offer(b.decided.arms)))
                for a, b in zip(thoughts, some, strict=True)
            ]
        ),
    )
    # Replaying needs a policy that has learned nothing yet.
    made = _fresh(settings.policy, events.n_agents, settings.dim, settings.parameters)
    return _judged(events, log, settings.policy, settings.parameters, _replayed(events, made))


def _chance(arm: int, decided: Decided, n_arms: int) -> float:
    """A decision's probability of an arm; all arms but the usual one have the same."""
    usual, p = decided.baseline[0] if decided.mode == "apprentice" else decided.greedy, decided.probability
    assert p is not None
    other = p if decided.shown[0] != usual else (1.0 - p) / max(n_arms - 1, 1)
    return 1.0 - (n_arms - 1) * other if arm == usual else other


def evaluate_log(events: LoggedDecisions, policy: str | None, parameters: dict[str, Any]) -> Evaluation:
    """Evaluate a policy, or the one in the log's column `target`, from a log from elsewhere.

    Parameters
    ----------
    events : LoggedDecisions
    policy : str, optional
        Name of a policy; it needs the arms' features.
    parameters : dict
        Of the policy.
    """
    if policy is None:
        if events.target is None:
            raise ValueError(
                "policy must be named, or a column of the log with its probability of the logged arm"
            )
        model = _running_means(events)
        log = Log(events.rewards, events.probabilities, events.target, model, model)
        return _judged(events, log, "target", {}, None)
    if events.offers is None or events.shown is None:
        raise ValueError(f"policy {policy!r} chooses by features: arms must provide them")
    dim = events.offers[0].shape[1]
    made = _fresh(policy, events.n_agents, dim, parameters)
    log = _step_by_step(events, made)
    again = _fresh(policy, events.n_agents, dim, parameters)
    return _judged(events, log, policy, dict(made.parameters), _replayed(events, again))


def _running_means(events: LoggedDecisions) -> Vector:
    """The mean of each agent's rewards so far, shrunk towards that of all agents, shape (n,).

    As it is the same for all arms, it is also this model's value of any policy.
    """
    found, sums, counts = np.zeros(len(events)), np.zeros(events.n_agents), np.zeros(events.n_agents)
    total = 0.0
    for t, (agent, reward) in enumerate(zip(events.agents.tolist(), events.rewards.tolist(), strict=True)):
        found[t] = (sums[agent] + DRAWN * total / max(t, 1)) / (counts[agent] + DRAWN)
        sums[agent] += reward
        counts[agent] += 1.0
        total += reward
    return found


def _fresh(policy: str, n_agents: int, dim: int, parameters: dict[str, Any]) -> Policy:
    made = find_live_policy(policy)(n_agents, dim, **parameters)
    made.warns = False
    return made


def _step_by_step(events: LoggedDecisions, policy: Policy) -> Log:
    """Ask a policy at each decision, and let it learn from each."""
    assert events.offers is not None
    assert events.shown is not None
    n = len(events)
    target, predicted, expected = np.zeros(n), np.zeros(n), np.zeros(n)
    for t in range(n):
        agent, arms, shown = int(events.agents[t]), events.offers[t], int(events.shown[t])
        choice = policy.choose(agent, arms)
        target[t], expected[t] = choice.arm == shown, choice.pooled
        predicted[t] = policy.predict(agent, arms[shown]).pooled
        # Only now: it must be judged on rewards that it has not seen.
        policy.update(agent, arms[shown], float(events.rewards[t]))
    return Log(events.rewards, events.probabilities, target, predicted, expected)


def _replayed(events: LoggedDecisions, policy: Policy) -> Replayed:
    """Let a policy learn from the decisions that it would have made, thinned to its own frequencies.

    A decision is kept with a probability inverse to the logged one, so that among those kept each arm is as
    frequent as the policy wants it.
    """
    assert events.offers is not None
    assert events.shown is not None
    least, rng = float(events.probabilities.min(initial=1.0)), np.random.default_rng(0)
    # Rejection: a share least/p of the decisions with probability p is kept, as if arms were drawn uniformly.
    # Replaying is unbiased only on such a log.
    kept = events.probabilities * rng.random(len(events)) < least
    rewards = []
    for t in np.flatnonzero(kept).tolist():
        go_on()
        agent, arms, shown = int(events.agents[t]), events.offers[t], int(events.shown[t])
        if policy.choose(agent, arms).arm == shown:
            policy.update(agent, arms[shown], float(events.rewards[t]))
            rewards.append(float(events.rewards[t]))
    n, accepted = len(events), len(rewards)
    if accepted >= ENOUGH:
        return Replayed(accepted, mean_of(np.array(rewards), "replayed"), "")
    needed = f"about {math.ceil(n * ENOUGH / accepted):,}" if accepted else f"more than {n * ENOUGH:,}"
    sentence = (
        f"Replayed from the start, it could learn from {accepted} of {n:,} decisions: it would take {needed}."
    )
    return Replayed(accepted, None, sentence)


def _judged(
    events: LoggedDecisions, log: Log, policy: str, parameters: dict[str, Any], replayed: Replayed | None
) -> Evaluation:
    sentence, wanted = why_not(log), ESTIMATORS
    if replayed is None:  # a column of the log, whose other choices are not known
        sentence = why_no_target(log, "the target's probability") or sentence
        wanted = (estimators.ips, estimators.snips, estimators.doubly_robust)
    nothing = Estimate("as logged", math.nan, math.nan, math.nan, 0.0)
    found = Evaluation(
        events.source,
        policy,
        parameters,
        len(log),
        mean_of(log.rewards, "as logged") if len(log) else nothing,
        float(np.mean(log.target)) if len(log) else math.nan,
        estimators.effective_size(log.weights),
        [] if sentence else [estimate(log) for estimate in wanted],
        None
        if sentence
        else mean_of(estimators.doubly_robust_terms(log) - log.rewards, "difference", 0.0, log.further),
        sentence,
        calibration(log.probabilities, events.sizes),
        replayed,
        f"{policy}: {sentence}",
    )
    return found if sentence else msgspec.structs.replace(found, text=_in_words(found))


def _in_words(found: Evaluation) -> str:
    best = found.best
    return (
        f"{found.policy}: {best.value:.4g} [{best.low:.4g}, {best.high:.4g}] per decision ({best.name}), "
        f"where {found.logged.value:.4g} was earned"
    )


def calibration(probabilities: Vector, sizes: Vector | None) -> Calibration:
    """Test recorded probabilities, shape (n,), of decisions among `n_arms` arms, shape (n,)."""
    if sizes is None or len(probabilities) < ENOUGH:
        return Calibration(math.nan, math.nan, math.nan, "Probabilities were not tested.")
    if (probabilities == 1.0).all():
        return Calibration(math.nan, math.nan, math.nan, "No decision was left to chance.")
    # The weights of a policy that draws uniformly: if the probabilities are right, their mean is 1.
    terms = 1.0 / (sizes * probabilities)
    mean, error = float(terms.mean()), float(terms.std(ddof=1)) / math.sqrt(len(terms))
    low, high = mean - Z99 * error, mean + Z99 * error
    said = "Recorded probabilities agree with what was drawn."
    if high < 1.0:
        said = "Some arms were drawn less often than recorded, or had no chance at all: estimates are biased."
    elif low > 1.0:
        said = "Improbable arms were drawn more often than recorded: estimates are biased."
    return Calibration(mean, low, high, said)
