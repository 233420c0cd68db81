"""What can be asked of a population of a service: each call is a plan, which either client carries out.

A plan's arguments and docstring are those of the method that carries it out, in both clients.
"""

import contextlib
import functools
import hashlib
import inspect
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints
from urllib.parse import quote

import msgspec

from shoal.live.client.buffer import AT_ONCE, Buffer, Fallback, Refused
from shoal.live.client.exchange import Plan, Work, exchange
from shoal.live.protocol import messages as m
from shoal.live.protocol.answers import (
    Alarm,
    ContestStanding,
    Decision,
    Dividend,
    Evaluation,
    Explanation,
    PairExplanation,
    Switch,
    Uplift,
    WhatIf,
)
from shoal.live.protocol.errors import ConflictError, NotOwnerError, UnavailableError, UnknownError
from shoal.live.protocol.ids import new_id
from shoal.live.protocol.problems import error_of

P = ParamSpec("P")
Request = TypeVar("Request")
Result = TypeVar("Result")
PATIENCE = 600.0
"""Seconds that a request that reads a whole journal may take."""
REMEMBERED = 100_000
"""Fallback decisions kept in memory, if there is no buffer for them."""


class Caller:
    """What both clients have: where to call, and facts about decisions that the service did not make."""

    def __init__(self, url: str, key: str | None, deadline: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {url!r}")
        self.url, self.deadline = url.rstrip("/"), deadline
        self._headers = {"content-type": "application/json"}
        if key is not None:
            if not re.fullmatch(r"[!-~]+", key):  # the message must not show it
                raise ValueError("key must be as `shoal keys add` showed it, without spaces")
            self._headers["authorization"] = f"Bearer {key}"
        self.fallbacks: OrderedDict[str, Fallback] = OrderedDict()
        self.buffer: Buffer | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    def remember(self, id: str, fallback: Fallback) -> None:
        """Keep what is known about a decision that the service did not make."""
        if self.buffer is not None:
            self.buffer.remember(id, fallback)
            return
        # Without a buffer they are kept in memory: rewards of the oldest will be unknown to the service.
        self.fallbacks[id] = fallback
        if len(self.fallbacks) > REMEMBERED:
            self.fallbacks.popitem(last=False)

    def refused(self) -> list[Refused]:
        """Rewards in the buffer that the service refused for good."""
        return [] if self.buffer is None else self.buffer.refused()

    def limit(self, deadline: float | None) -> float:
        """The seconds that a call may take."""
        return self.deadline if deadline is None else deadline


class Remote:
    """A population of a service, by its name."""

    def __init__(self, client: Caller, name: str, fallback: str | None = None) -> None:
        self.client, self.name, self.fallback = client, name, fallback

    def __repr__(self) -> str:
        return f"<population {self.name!r} of {self.client.url}>"

    def ask(
        self,
        method: str,
        path: str,
        kind: type[Result],
        body: Any = None,
        *,
        deadline: float | None = None,
        **options: Any,
    ) -> Plan[Result]:
        """Make a request of the population; see `exchange`. `path` is what follows the population's own."""
        limit = self.client.limit(deadline)
        return exchange(method, path_of(self.name) + path, kind, body, deadline=limit, **options)


class RemoteDecision(m.NewDecision, frozen=True, kw_only=True):
    """A decision to ask for, and what to do if there is no answer."""

    fallback: str | int | None = None
    deadline: float | None = None


def takes(
    kind: Callable[P, Request],
) -> Callable[[Callable[[Remote, Request], Plan[Result]]], Callable[Concatenate[Remote, P], Plan[Result]]]:
    """Give a plan the arguments of a request, which are defined there and nowhere else."""

    def decorate(
        plan: Callable[[Remote, Request], Plan[Result]],
    ) -> Callable[Concatenate[Remote, P], Plan[Result]]:
        @functools.wraps(plan)
        def call(to: Remote, /, *args: P.args, **options: P.kwargs) -> Plan[Result]:
            return plan(to, kind(*args, **options))

        known, hints = inspect.signature(plan), get_type_hints(kind)
        first, *_ = known.parameters.values()
        fields = inspect.signature(kind).parameters.values()
        arguments = [one.replace(annotation=hints[one.name]) for one in fields]
        call.__signature__ = known.replace(parameters=[first, *arguments])  # type: ignore[attr-defined]
        return call

    return decorate


# Populations


def populations(deadline: float) -> Plan[list[str]]:
    found = yield from exchange("GET", "/v1/populations", m.Populations, deadline=deadline)
    return found.populations


def prepare(to: Remote, policy: str | None, dim: int | None, settings: dict[str, Any]) -> Plan[None]:
    """Make a population, if policy and dim are given, and check its fallback against the catalogue.

    Settings that are not the population's own are its policy's. A service that does not answer is no reason
    not to start: that is what a fallback is for.
    """
    if policy is not None and dim is not None:
        own = {key: settings.pop(key) for key in m.NewPopulation.__struct_fields__ if key in settings}
        body = m.NewPopulation(policy, dim, **own, parameters=settings)
        yield from to.ask("PUT", "", m.PopulationFacts, body)
    elif settings:
        raise ValueError(f"{', '.join(settings)} cannot be set without policy and dim")
    if to.fallback is None:
        return
    with contextlib.suppress(UnavailableError, NotOwnerError):
        arms = yield from catalogue(to)
        if arms and to.fallback not in arms:
            known = ", ".join(list(arms)[:10]) + (", …" if len(arms) > 10 else "")
            raise ValueError(f"fallback must be an arm of the catalogue ({known}), got {to.fallback!r}")


def describe(to: Remote) -> Plan[m.PopulationFacts]:
    """Settings and sizes."""
    return to.ask("GET", "", m.PopulationFacts)


# Decisions


@takes(RemoteDecision)
def decide(to: Remote, request: RemoteDecision) -> Plan[Decision]:
    """Choose an arm for an agent; see `Population.decide`.

    Parameters
    ----------
    fallback : str or int, optional
        The arm to return if the service does not answer in time; by default, the population's fallback. Such
        a decision has sequence number 0, and the service learns its reward, when you report it, as an
        observation.
    deadline : float, optional
        Seconds to wait for the service.
    """
    # `fallback` and `deadline` are not for the service, and are not sent if None.
    body = ready_to_send(msgspec.structs.replace(request, fallback=None, deadline=None))
    fallback = to.fallback if request.fallback is None else request.fallback
    # Before anything is sent: an arm that is not on offer is an error even where the service answers.
    known = None if fallback is None else fallback_of(to.name, body, fallback)
    try:
        return (yield from to.ask("POST", "/decisions", Decision, body, deadline=request.deadline))
    except (UnavailableError, NotOwnerError):
        if known is None or fallback is None:
            raise
    # The service may have made the decision anyway; then `observe_fallback` cancels it.
    made = fallback_decision(body, fallback)
    yield Work(functools.partial(to.client.remember, made.id, known))
    return made


def decide_many(
    to: Remote, requests: Iterable[Mapping[str, Any]], *, deadline: float | None = None
) -> Plan[list[Decision | Exception]]:
    """`decide` for many requests, each a mapping of arguments; returns a decision or an error for each."""
    # Ids are given before anything is sent, so that a repeated batch gets the same decisions.
    bodies = [ready_to_send(m.request_of(m.NewDecision, one)) for one in requests]
    found: list[Decision | Exception] = []
    for start in range(0, len(bodies), AT_ONCE):
        body = m.Decisions(bodies[start : start + AT_ONCE])
        answer = yield from to.ask("POST", "/decisions:batch", m.DecisionResults, body, deadline=deadline)
        for one in answer.results:
            made = _error(one.problem) or one.decision
            assert not isinstance(made, msgspec.UnsetType)  # it has one or the other
            found.append(made)
    return found


def cancel(to: Remote, id: str) -> Plan[None]:
    """Take back a decision that was never shown."""
    return to.ask("DELETE", f"/decisions/{encoded(id)}", type(None))


# Rewards and observations


def reward(
    to: Remote,
    id: str,
    reward: float,
    *,
    replaces: float | None = None,
    arm: str | int | None = None,
    deadline: float | None = None,
) -> Plan[None]:
    """Report the reward of a decision; see `Population.reward`. With a buffer, it is sent later."""
    if to.client.buffer is not None:
        # Checked now: when the buffer sends it, the caller is gone.
        one = checked(m.NamedReward(id, reward, replaces=replaces, arm=arm))
        yield Work(functools.partial(to.client.buffer.put, to.name, [one]))
        return
    known = to.client.fallbacks.get(id)
    if known is not None:
        yield from observe_fallback(id, known, float(reward), to.client.limit(deadline))
    else:
        body = m.Reward(float(reward), replaces=replaces, arm=arm)
        yield from to.ask("PUT", f"/decisions/{encoded(id)}/reward", type(None), body, deadline=deadline)


def reward_many(
    to: Remote, rewards: Iterable[Mapping[str, Any]], *, deadline: float | None = None
) -> Plan[list[Exception | None]]:
    """`reward` for many decisions, each a mapping of its arguments; returns an error or None for each.

    With a buffer, all of them are put there at once, and none has an error yet.
    """
    made = [checked(m.request_of(m.NamedReward, one, "reward")) for one in rewards]
    if to.client.buffer is not None:
        yield Work(functools.partial(to.client.buffer.put, to.name, made))
        return [None] * len(made)
    return (yield from send_rewards(to.name, made, to.client.fallbacks, to.client.limit(deadline)))


def send_rewards(
    name: str, rewards: Sequence[m.NamedReward], known: Mapping[str, Fallback], deadline: float
) -> Plan[list[Exception | None]]:
    """Send rewards in batches; returns an error or None for each, in order.

    Rewards of decisions in `known`, which the service did not make, go first, as observations: if one of them
    gets no answer, no batch has been sent that would have to be sent again.
    """
    errors: dict[int, Exception | None] = {}
    for n, one in enumerate(rewards):
        fallback = known.get(one.id)
        if fallback is None:
            continue
        try:
            yield from observe_fallback(one.id, fallback, one.reward, deadline)
            errors[n] = None
        # The others would get no answer either; any other error concerns this reward alone.
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
        errors.update(zip(some, (_error(one.problem) for one in found.results), strict=True))
    return [errors[n] for n in range(len(rewards))]


def observe(
    to: Remote,
    agent: str,
    x: Sequence[float] | None = None,
    reward: float = 0.0,
    *,
    arm: str | None = None,
    id: str | None = None,
) -> Plan[bool]:
    """Let an agent learn from an arm tried elsewhere (features or a name); returns whether it was new."""
    # With an id of its own, a repeated attempt counts once.
    features, id = None if x is None else _floats(x), new_id() if id is None else id
    body = m.NewObservation(agent, float(reward), features, arm, id)
    return send_observation(to.name, body, to.client.deadline)


def send_observation(name: str, body: m.NewObservation, deadline: float) -> Plan[bool]:
    found = yield from exchange("POST", path_of(name) + "/observations", m.Learned, body, deadline=deadline)
    return found.new


def observe_fallback(id: str, known: Fallback, reward: float, deadline: float) -> Plan[None]:
    """Let the service learn the reward of a decision that it did not make, or not in time.

    A decision that it made after all was not shown, and is cancelled. The observation's id is derived from
    the decision's, so that a repeated reward is counted once.
    """
    until = time.monotonic() + deadline
    with contextlib.suppress(UnknownError):
        path = f"{path_of(known.population)}/decisions/{encoded(id)}"
        yield from exchange("DELETE", path, type(None), deadline=deadline)
    own = f"fallback-{hashlib.blake2b(id.encode(), digest_size=16).hexdigest()}"
    body = m.NewObservation(known.agent, reward, known.x, known.arm, own)
    yield from send_observation(known.population, body, until - time.monotonic())


# Agents


def agent(to: Remote, agent: str) -> Plan[m.Agent]:
    """How an agent shares, and how many rewards it has had."""
    return to.ask("GET", f"/agents/{encoded(agent)}", m.Agent)


def add(to: Remote, agent: str, *, sharing: m.Sharing = "both") -> Plan[None]:
    """Let an agent join before its first decision, or change how it shares."""
    return to.ask("PUT", f"/agents/{encoded(agent)}", type(None), {"sharing": sharing})


def set_features(to: Remote, agent: str, agent_features: Iterable[float | None]) -> Plan[None]:
    """Say what is known of an agent; see `Population.set_features`."""
    body = m.AgentFeatures(known_of(agent_features))
    return to.ask("PUT", f"/agents/{encoded(agent)}/features", type(None), body)


def known_of(agent_features: Iterable[float | None]) -> list[float | None]:
    """What is known of an agent, as JSON has it: null where nothing is."""
    return [None if one is None or one != one else float(one) for one in agent_features]


def forget(to: Remote, agent: str) -> Plan[None]:
    """Forget a person; see `Population.forget`."""
    # If a repeated attempt finds the person gone, the first one has succeeded.
    return to.ask("DELETE", f"/agents/{encoded(agent)}", type(None), done=410)


def explain(to: Remote, agent: str, other: str | None = None) -> Plan[Explanation | PairExplanation]:
    """Say whose samples an agent uses and with whom it stopped sharing, or the same for a pair."""
    path = f"/agents/{encoded(agent)}/explanation"
    if other is not None:
        return to.ask("GET", f"{path}?other={encoded(other)}", PairExplanation)
    return to.ask("GET", path, Explanation)


def graph(to: Remote, at: int | None = None) -> Plan[m.GraphContent]:
    """Who shares with whom, now or after the record `at`."""
    return to.ask("GET", "/graph" if at is None else f"/graph?at={at}", m.GraphContent)


def events(to: Remote, after: int = 0, limit: int = 100) -> Plan[m.Events]:
    """Records of the journal after the record `after`."""
    return to.ask("GET", f"/events?after={after}&limit={limit}", m.Events)


# Whether it pays. Reading a whole journal may take minutes, so such an attempt lasts until the deadline.


def dividend(to: Remote, agent: str | None = None) -> Plan[Dividend]:
    """What sharing pays, for all agents or one."""
    query = "" if agent is None else f"?agent={encoded(agent)}"
    return to.ask("GET", f"/dividend{query}", Dividend)


def alarms(to: Remote) -> Plan[list[Alarm]]:
    """What is wrong, or settled; see `Population.alarms`."""
    return (yield from to.ask("GET", "/alarms", m.Alarms)).alarms


def uplift(to: Remote, *, deadline: float = PATIENCE) -> Plan[Uplift]:
    """How much more the policy earns than the product's own rule, by `holdout` or as an `apprentice`."""
    return to.ask("GET", "/uplift", Uplift, deadline=deadline, longest=deadline)


def evaluate(
    to: Remote, /, policy: str | None = None, *, deadline: float = PATIENCE, **parameters: Any
) -> Plan[Evaluation]:
    """What another policy, or other parameters, would have earned."""
    body = m.Candidate(policy, parameters)
    return to.ask("POST", "/evaluation", Evaluation, body, deadline=deadline, longest=deadline)


def what_if(
    to: Remote, /, policy: str | None = None, *, deadline: float = PATIENCE, **parameters: Any
) -> Plan[WhatIf]:
    """Who would share with whom under another policy or other parameters, and what that would pay."""
    body = m.Candidate(policy, parameters)
    return to.ask("POST", "/what-if", WhatIf, body, deadline=deadline, longest=deadline)


def switch(
    to: Remote, /, policy: str | None = None, *, deadline: float = PATIENCE, **parameters: Any
) -> Plan[int]:
    """Switch to another policy or other parameters; see `Population.switch`."""
    return (yield from _switch_to(to, m.Candidate(policy, parameters), deadline))


def switch_back(to: Remote, *, deadline: float = PATIENCE) -> Plan[int]:
    """Return to the policy and parameters from before the last switch."""
    # The request names them instead of saying "back", which would lead forward again if sent twice.
    until = time.monotonic() + deadline
    known = yield from switches(to)
    if len(known) < 2:
        raise ConflictError(f"population {to.name!r} has never been switched", None)
    # Another client may switch between the two requests.
    past = m.Candidate(known[-2].policy, known[-2].parameters)
    return (yield from _switch_to(to, past, until - time.monotonic()))


def _switch_to(to: Remote, body: m.Candidate, deadline: float) -> Plan[int]:
    found = yield from to.ask("PUT", "/settings", m.Switches, body, deadline=deadline, longest=deadline)
    return found.settings[-1].sequence


def contest(
    to: Remote,
    /,
    *candidates: str | Mapping[str, Any],
    when: m.When | None = None,
    share: float | None = None,
    deadline: float = PATIENCE,
) -> Plan[ContestStanding | None]:
    """Let candidates compete with the present policy, or say how they stand; see `Population.contest`."""
    if candidates:
        named = [{"policy": one} if isinstance(one, str) else dict(one) for one in candidates]
        asked = [m.Candidate(one.pop("policy", None), one) for one in named]
        body = m.NewContest(asked, when, share)
        yield from to.ask("PUT", "/contest", type(None), body, deadline=deadline, longest=deadline)
    return (yield from to.ask("GET", "/contest", m.ContestNow, deadline=deadline, longest=deadline)).contest


def end_contest(to: Remote) -> Plan[None]:
    """End the contest, if there is one."""
    return to.ask("DELETE", "/contest", type(None))


def switches(to: Remote) -> Plan[list[Switch]]:
    """The policies and parameters so far, including the first ones, and who set them."""
    return (yield from to.ask("GET", "/settings", m.Switches)).settings


# The catalogue


def catalogue(to: Remote) -> Plan[dict[str, list[float]]]:
    """The arms that the population keeps, with their features."""
    return (yield from to.ask("GET", "/catalogue", m.CatalogueContent)).arms


def set_arms(to: Remote, arms: Mapping[str, Iterable[float]]) -> Plan[None]:
    """Add arms to the catalogue, or change their features."""
    return to.ask("PATCH", "/catalogue", type(None), {"arms": plain_arms(dict(arms))})


def retire(to: Remote, arm: str) -> Plan[None]:
    """Take an arm out of the catalogue."""
    return to.ask("DELETE", f"/catalogue/{encoded(arm)}", type(None), done=404)


# From what callers give to what is sent


def path_of(population: str) -> str:
    """The path of a population."""
    return f"/v1/populations/{encoded(population)}"


def encoded(name: str) -> str:
    """A name for a path, percent-encoded; a full stop too, since `..` would lead elsewhere."""
    return quote(name, safe="").replace(".", "%2E")


def ready_to_send(request: m.NewDecision) -> m.NewDecision:
    """A request with an id, so that it can be repeated, and with arms that JSON can hold."""
    id = new_id() if request.id is None else request.id
    known = None if request.agent_features is None else known_of(request.agent_features)
    return msgspec.structs.replace(request, id=id, arms=plain_arms(request.arms), agent_features=known)


def plain_arms(arms: m.Arms) -> Any:
    """Arms, arrays among them, as lists."""
    if arms is None:
        return None
    if isinstance(arms, Mapping):
        return {name: _floats(x) for name, x in arms.items()}
    return [one if isinstance(one, str) else _floats(one) for one in arms]


def checked(reward: m.NamedReward) -> m.NamedReward:
    """A reward to be sent later; ValueError if the service could not read it."""
    given = msgspec.structs.asdict(reward)
    # msgspec does not accept numbers of NumPy and others in place of floats.
    for key in ("reward", "replaces"):
        if given[key] is not None:
            given[key] = float(given[key])
    try:
        return msgspec.convert(given, m.NamedReward)
    except msgspec.ValidationError as error:
        raise ValueError(f"a reward that cannot be sent: {error}, got {given}") from None


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
    return Fallback(population, request.agent, x, str(arm))


def _floats(x: Iterable[float]) -> list[float]:
    return [float(one) for one in x]


def _error(problem: m.Problem | msgspec.UnsetType) -> Exception | None:
    return None if isinstance(problem, msgspec.UnsetType) else error_of(problem)
