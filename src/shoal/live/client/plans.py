"""What clients ask of the service: each a plan, which either kind of client carries out."""

import contextlib
import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from shoal.live.client.exchange import Plan, exchange
from shoal.live.protocol import messages as m
from shoal.live.protocol.answers import Decision, Explanation, PairExplanation
from shoal.live.protocol.errors import ConflictError, UnavailableError, UnknownError
from shoal.live.protocol.ids import new_id
from shoal.live.protocol.problems import error_of

AT_ONCE = 500
"""Requests in a batch."""
Arms = Any
"""Names with features, rows of features, names from the catalogue, or None for the whole catalogue."""


class Fallback(msgspec.Struct, frozen=True):
    """What is known of a decision that the service did not make: enough to let it learn the reward."""

    population: str
    agent: str
    x: list[float] | None
    arm: str | None


def path_of(*parts: str) -> str:
    """A path of names, percent-encoded; a full stop too, since `..` would lead elsewhere."""
    return "/v1/populations/" + "/".join(quote(part, safe="").replace(".", "%2E") for part in parts)


def populations(deadline: float) -> Plan[list[str]]:
    found = yield from exchange("GET", "/v1/populations", m.Populations, deadline=deadline)
    return found.populations


def make(name: str, settings: m.NewPopulation, deadline: float) -> Plan[m.Population]:
    return exchange("PUT", path_of(name), m.Population, settings, deadline=deadline)


def describe(name: str, deadline: float) -> Plan[m.Population]:
    return exchange("GET", path_of(name), m.Population, deadline=deadline)


def decide(name: str, request: m.NewDecision, deadline: float) -> Plan[Decision]:
    return exchange("POST", path_of(name) + "/decisions", Decision, request, deadline=deadline)


def decide_many(
    name: str, requests: Sequence[m.NewDecision], deadline: float
) -> Plan[list[Decision | Exception]]:
    found: list[Decision | Exception] = []
    for start in range(0, len(requests), AT_ONCE):
        body = m.Decisions(list(requests[start : start + AT_ONCE]))
        path = path_of(name) + "/decisions:batch"
        for one in (yield from exchange("POST", path, m.DecisionResults, body, deadline=deadline)).results:
            found.append(_error(one.problem) if isinstance(one.decision, msgspec.UnsetType) else one.decision)
    return found


def reward(name: str, id: str, body: m.Reward, deadline: float) -> Plan[None]:
    path = path_of(name, "decisions", id) + "/reward"
    return exchange("PUT", path, type(None), body, deadline=deadline)


def reward_many(
    name: str, rewards: Sequence[m.NamedReward], known: Mapping[str, Fallback], deadline: float
) -> Plan[list[Exception | None]]:
    """Send rewards in batches; of each, in the order given, its error or None.

    Those of decisions that the service did not make, which are in `known`, go first, as observations: if one
    of them gets no answer, no batch has been sent that would be sent again.
    """
    errors: dict[int, Exception | None] = {}
    for n, one in enumerate(rewards):
        fallback = known.get(one.id)
        if fallback is None:
            continue
        try:
            yield from observe_fallback(one.id, fallback, one.reward, deadline)
            errors[n] = None
        except UnavailableError:
            raise
        except Exception as error:
            errors[n] = error
    others = [n for n in range(len(rewards)) if n not in errors]
    path = path_of(name) + "/rewards:batch"
    for start in range(0, len(others), AT_ONCE):
        some = others[start : start + AT_ONCE]
        body = m.Rewards([rewards[n] for n in some])
        found = yield from exchange("POST", path, m.RewardResults, body, deadline=deadline)
        for n, one_found in zip(some, found.results, strict=True):
            problem = one_found.problem
            errors[n] = None if isinstance(problem, msgspec.UnsetType) else error_of(problem)
    return [errors[n] for n in range(len(rewards))]


def cancel(name: str, id: str, deadline: float) -> Plan[None]:
    return exchange("DELETE", path_of(name, "decisions", id), type(None), deadline=deadline)


def observe(name: str, body: m.NewObservation, deadline: float) -> Plan[bool]:
    found = yield from exchange("POST", path_of(name) + "/observations", m.Learned, body, deadline=deadline)
    return found.new


def observe_fallback(id: str, known: Fallback, reward: float, deadline: float) -> Plan[None]:
    """Let the service learn the reward of a decision that it did not make, or not in time.

    If it did make it after all, that one was not shown. The observation's id is made of the decision's, so
    that the same reward again is counted once.
    """
    until = time.monotonic() + deadline
    with contextlib.suppress(UnknownError):
        yield from cancel(known.population, id, deadline)
    own = f"fallback-{hashlib.blake2b(id.encode(), digest_size=16).hexdigest()}"
    body = m.NewObservation(known.agent, reward, known.x, known.arm, own)
    yield from observe(known.population, body, until - time.monotonic())


def agent(name: str, agent: str, deadline: float) -> Plan[m.Agent]:
    return exchange("GET", path_of(name, "agents", agent), m.Agent, deadline=deadline)


def add(name: str, agent: str, sharing: m.Sharing, deadline: float) -> Plan[None]:
    body = {"sharing": sharing}
    return exchange("PUT", path_of(name, "agents", agent), type(None), body, deadline=deadline)


def forget(name: str, agent: str, deadline: float) -> Plan[None]:
    return exchange("DELETE", path_of(name, "agents", agent), type(None), deadline=deadline, done=410)


def explain(name: str, agent: str, other: str | None, deadline: float) -> Plan[Explanation | PairExplanation]:
    path = path_of(name, "agents", agent) + "/explanation"
    if other is not None:
        return exchange("GET", f"{path}?other={quote(other, safe='')}", PairExplanation, deadline=deadline)
    return exchange("GET", path, Explanation, deadline=deadline)


def graph(name: str, at: int | None, deadline: float) -> Plan[m.GraphContent]:
    query = "" if at is None else f"?at={at}"
    return exchange("GET", f"{path_of(name)}/graph{query}", m.GraphContent, deadline=deadline)


def events(name: str, after: int, limit: int, deadline: float) -> Plan[m.Events]:
    path = f"{path_of(name)}/events?after={after}&limit={limit}"
    return exchange("GET", path, m.Events, deadline=deadline)


# What reads a whole journal: it may take minutes, so an attempt lasts until the deadline


def switches(name: str, deadline: float) -> Plan[list[m.Switch]]:
    found = yield from exchange("GET", f"{path_of(name)}/settings", m.Switches, deadline=deadline)
    return found.settings


def switch(name: str, body: m.Candidate, deadline: float) -> Plan[int]:
    path = f"{path_of(name)}/settings"
    found = yield from exchange("PUT", path, m.Switches, body, deadline=deadline, longest=deadline)
    return found.settings[-1].sequence


def switch_back(name: str, deadline: float) -> Plan[int]:
    """Say what to switch to, instead of "back": sent twice, that would lead forward again."""
    until = time.monotonic() + deadline
    known = yield from switches(name, deadline)
    if len(known) < 2:
        raise ConflictError(f"population {name!r} has never been switched", None)
    past = known[-2]
    return (yield from switch(name, m.Candidate(past.policy, past.parameters), until - time.monotonic()))


def dividend(name: str, agent: str | None, deadline: float) -> Plan[m.Dividend]:
    query = "" if agent is None else f"?agent={quote(agent, safe='')}"
    return exchange("GET", f"{path_of(name)}/dividend{query}", m.Dividend, deadline=deadline)


def uplift(name: str, deadline: float) -> Plan[m.Uplift]:
    path = f"{path_of(name)}/uplift"
    return exchange("GET", path, m.Uplift, deadline=deadline, longest=deadline)


def evaluate(name: str, body: m.Candidate, deadline: float) -> Plan[m.Evaluation]:
    path = f"{path_of(name)}/evaluation"
    return exchange("POST", path, m.Evaluation, body, deadline=deadline, longest=deadline)


def what_if(name: str, body: m.Candidate, deadline: float) -> Plan[m.WhatIf]:
    path = f"{path_of(name)}/what-if"
    return exchange("POST", path, m.WhatIf, body, deadline=deadline, longest=deadline)


# The catalogue


def catalogue(name: str, deadline: float) -> Plan[dict[str, list[float]]]:
    found = yield from exchange("GET", path_of(name) + "/catalogue", m.CatalogueContent, deadline=deadline)
    return found.arms


def set_arms(name: str, arms: Mapping[str, Iterable[float]], deadline: float) -> Plan[None]:
    body = {"arms": {arm: _floats(x) for arm, x in arms.items()}}
    return exchange("PATCH", path_of(name) + "/catalogue", type(None), body, deadline=deadline)


def retire(name: str, arm: str, deadline: float) -> Plan[None]:
    return exchange("DELETE", path_of(name, "catalogue", arm), type(None), deadline=deadline, done=404)


# From what callers give to what is sent


def new_decision(
    agent: str,
    arms: Arms,
    id: str | None,
    top: int,
    scores: bool,
    sharing: m.Sharing | None,
    baseline: str | int | None,
) -> m.NewDecision:
    """A request, with an id, so that it can be repeated."""
    id = new_id() if id is None else id
    return m.NewDecision(agent, plain_arms(arms), id, top, scores, sharing, baseline)


def new_decision_of(request: Mapping[str, Any]) -> m.NewDecision:
    """A request from a mapping of the arguments of `decide`."""
    known = {
        "agent": None,
        "arms": None,
        "id": None,
        "top": 1,
        "scores": False,
        "sharing": None,
        "baseline": None,
    }
    for key in request:
        if key not in known:
            raise ValueError(f"a request has no {key!r}; it may have {', '.join(sorted(known))}")
    if "agent" not in request:
        raise ValueError("each request must have 'agent'")
    return new_decision(**{**known, **request})


def named_reward(
    id: str, reward: float, replaces: float | None = None, arm: str | int | None = None
) -> m.NamedReward:
    """A reward to be sent in a batch; ValueError if the service could not read it."""
    given = {
        "id": id,
        "reward": float(reward),
        "replaces": None if replaces is None else float(replaces),
        "arm": arm,
    }
    try:
        return msgspec.convert(given, m.NamedReward)
    except msgspec.ValidationError as error:
        raise ValueError(f"a reward that cannot be sent: {error}, got {given}") from None


def named_reward_of(reward: Mapping[str, Any]) -> m.NamedReward:
    """A reward from a mapping of the arguments of `reward`."""
    known = m.NamedReward.__struct_fields__
    for key in reward:
        if key not in known:
            raise ValueError(f"a reward has no {key!r}; it may have {', '.join(sorted(known))}")
    for key in ("id", "reward"):
        if key not in reward:
            raise ValueError(f"each reward must have {key!r}")
    return named_reward(**reward)


def plain_arms(arms: Arms) -> Any:
    """Arms, arrays among them, as lists."""
    if arms is None:
        return None
    if isinstance(arms, Mapping):
        return {name: _floats(x) for name, x in arms.items()}
    return [one if isinstance(one, str) else _floats(one) for one in arms]


def fallback_decision(request: m.NewDecision, arm: str | int) -> Decision:
    """A decision for when the service cannot make one; its sequence number is 0."""
    return Decision(
        id=str(request.id),
        agent=request.agent,
        arm=arm,
        ranking=(arm,),
        probability=None,
        greedy=arm,
        own=math.nan,
        pooled=math.nan,
        sequence=0,
    )


def fallback_of(population: str, request: m.NewDecision, arm: str | int) -> Fallback:
    """What to remember of a decision that falls back on an arm; ValueError if the arm is not on offer."""
    arms: Any = request.arms
    x: list[float] | None = None
    if isinstance(arms, dict):
        is_there = arm in arms
        x = arms[arm] if is_there else None
    elif isinstance(arms, list) and not all(isinstance(one, str) for one in arms):
        is_there = isinstance(arm, int) and 0 <= arm < len(arms)
        x = arms[arm] if is_there and isinstance(arm, int) else None
    else:
        is_there = isinstance(arm, str) and (arms is None or arm in arms)
    if not is_there:
        raise ValueError(f"fallback must be one of the arms on offer, got {arm!r}")
    return Fallback(population, request.agent, x, None if x is not None else str(arm))


def _floats(x: Iterable[float]) -> list[float]:
    return [float(one) for one in x]


def _error(problem: m.Problem | msgspec.UnsetType) -> Exception:
    assert not isinstance(problem, msgspec.UnsetType)
    return error_of(problem)
