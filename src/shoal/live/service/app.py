"""The table of routes, and below it the handlers of the API; `dashboard/handlers.py` has those of the page.

A row of the table says which scope a route needs: for the population in its path or, without one, for all.
A handler takes a `Call` (routing.py) and returns a response, or None for no content. What it raises becomes
a problem document: a `RefusedError`, an error of the controller, or a ValueError. A response that sets its
own Content-Security-Policy or Cache-Control keeps it.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Router

from shoal.core.policies.registry import for_live_use, policy_names
from shoal.live.evaluation.contests import begin, standing
from shoal.live.journal.fold import Fold
from shoal.live.population.asynchronous import AsyncPopulation
from shoal.live.population.commands import Commands, Turn
from shoal.live.population.explaining import Graph
from shoal.live.population.views import explained
from shoal.live.protocol import flags as f
from shoal.live.protocol import messages as m
from shoal.live.protocol.answers import (
    Decision,
    Dividend,
    Evaluation,
    Explanation,
    PairExplanation,
    Uplift,
    WhatIf,
)
from shoal.live.protocol.errors import ControllerError
from shoal.live.protocol.problems import ForbiddenError, RefusedError, kind_of
from shoal.live.service.callers import SIGNED_IN, address_of, key_of, unauthenticated
from shoal.live.service.dashboard import handlers as page
from shoal.live.service.journal import events_of
from shoal.live.service.keys import ANYBODY, Key
from shoal.live.service.limits import whole_seconds
from shoal.live.service.middleware import admitted, answered
from shoal.live.service.ofrep import FLAGS, evaluate_flag, evaluate_flags, refused
from shoal.live.service.openapi import document
from shoal.live.service.routing import Call, Endpoint, check_arms, json_response, route
from shoal.live.service.service import Result, Service
from shoal.reporting.words import counted

MOST_IN_GRAPH = 1_000
"""Agents up to which a graph is sent."""
MOST_COMPARED = 10_000
"""Agents up to which `what-if` compares two graphs."""
MOST_EVENTS = 1_000
MOST_LISTED = 1_000
"""Agents in an explanation."""
MOST_PAIRS = 1_000
"""Pairs of agents that are listed."""
OWN_SETTINGS = ("name", "by", "since", *m.NewPopulation.__struct_fields__)
"""Names that no parameter of a policy may have."""
get, post, put, patch, delete = (
    functools.partial(Endpoint, method) for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
)


def make_app(service: Service) -> Router:
    """The application of a service, for an ASGI server.

    Not a `Starlette`, whose error middleware logs error messages, which may hold names.
    """
    around = [Middleware(answered, service), Middleware(admitted, service)]
    routes = [route(one, service) for one in endpoints()]
    return Router(routes, redirect_slashes=False, lifespan=service.lifespan, middleware=around)


def endpoints() -> list[Endpoint]:
    """The table of routes. In a path, `population`, `agent`, `id` and `arm` are percent-encoded names.

    They are tried in order, so the busiest come first.
    """
    p, d = "/v1/populations/{population}", "/dashboard/{population}"
    facts, either = m.PopulationFacts, (Explanation, PairExplanation)
    location, cookie = ("Location",), ("Set-Cookie",)
    return [
        post(f"{p}/decisions", "decide", decide, {201: Decision}, m.NewDecision,
             by_id=True, headers=location, fills=True),
        put(f"{p}/decisions/{{id}}/reward", "reward", put_reward, {204: None}, m.Reward),
        post(f"{FLAGS}/{{population}}", "decide", evaluate_flag,
             {200: f.FlagEvaluation, 400: f.EvaluationFailure, 404: f.EvaluationFailure},
             f.EvaluationRequest, fills=True, refusal=refused),
        post(FLAGS, SIGNED_IN, evaluate_flags, {200: f.FlagEvaluations, 304: None, 400: f.EvaluationFailure},
             f.EvaluationRequest, query=None, fills=True, refusal=refused),
        get("/livez", None, live, {200: m.Health}),
        get("/readyz", None, ready, {200: m.Health}),
        get("/openapi.json", None, describe, {200: dict[str, Any]}),
        get("/metrics", "read", scrape, {200: str}),
        post("/session", None, sign_in, {200: m.Who}, m.Session, headers=cookie, audited=True),
        get("/session", SIGNED_IN, who_is_there, {200: m.Who}),
        delete("/session", None, sign_out, {204: None}, headers=cookie),
        get("/v1/populations", SIGNED_IN, list_populations, {200: m.Populations}),
        put(p, "admin", put_population, {200: facts, 201: facts}, m.NewPopulation, fills=True),
        get(p, "read", get_population, {200: facts, 304: None}),
        post(f"{p}/decisions:batch", "decide", decide_many, {200: m.DecisionResults}, m.Decisions,
             fills=True),
        get(f"{p}/decisions/{{id}}", "read", get_decision, {200: m.DecisionStanding, 304: None}),
        delete(f"{p}/decisions/{{id}}", "decide", cancel, {204: None}),
        post(f"{p}/rewards:batch", "reward", reward_many, {200: m.RewardResults}, m.Rewards),
        post(f"{p}/observations", "reward", observe, {200: m.Learned}, m.NewObservation,
             by_id=True, fills=True),
        get(f"{p}/catalogue", "read", get_catalogue, {200: m.CatalogueContent, 304: None}),
        patch(f"{p}/catalogue", "admin", add_arms, {204: None}, m.CatalogueChange, fills=True),
        delete(f"{p}/catalogue/{{arm}}", "admin", retire_arm, {204: None}),
        get(f"{p}/agents/{{agent}}", "read", get_agent, {200: m.Agent, 304: None}),
        put(f"{p}/agents/{{agent}}", "admin", put_agent, {204: None}, m.SharingMode, fills=True),
        put(
            f"{p}/agents/{{agent}}/features",
            "decide",
            put_features,
            {204: None},
            m.AgentFeatures,
            fills=True,
        ),
        delete(f"{p}/agents/{{agent}}", "admin", forget, {204: None}),
        get(f"{p}/agents/{{agent}}/explanation", "read", explain, {200: either, 304: None},
            query=("other",), audited=True),
        get(f"{p}/graph", "read", graph, {200: m.GraphContent, 304: None}, query=("at",)),
        get(f"{p}/settings", "read", list_settings, {200: m.Switches, 304: None}),
        put(f"{p}/settings", "admin", switch, {200: m.Switches}, m.Candidate),
        get(f"{p}/contest", "read", get_contest, {200: m.ContestNow, 304: None}),
        put(f"{p}/contest", "admin", put_contest, {204: None}, m.NewContest),
        delete(f"{p}/contest", "admin", end_contest, {204: None}),
        get(f"{p}/dividend", "read", dividend, {200: Dividend, 304: None}, query=("agent",)),
        get(f"{p}/alarms", "read", alarms, {200: m.Alarms, 304: None}),
        get(f"{p}/uplift", "read", uplift, {200: Uplift, 304: None}),
        get(f"{p}/evaluation", "read", evaluate_policy, {200: Evaluation, 304: None}, query=("policy",)),
        post(f"{p}/evaluation", "read", evaluate, {200: Evaluation}, m.Candidate),
        post(f"{p}/what-if", "read", what_if, {200: WhatIf}, m.Candidate),
        get(f"{p}/events", "read", events, {200: m.Events, 304: None}, query=("after", "limit")),
        get("/", None, page.page, query=None),
        get("/static/{path:path}", None, page.file, query=None),
        get("/dashboard/refusals", "read", page.refused),
        get(f"{d}/summary", "read", page.summary),
        get(f"{d}/overview", "read", page.overview, query=("step",)),
        get(f"{d}/graph", "read", page.graph, query=("at",)),
        get(f"{d}/agents", "read", page.agents, query=("search", "start", "from", "to", "at")),
        get(f"{d}/moment", "read", page.moment, query=("at",)),
        get(f"{d}/agents/{{agent}}", "read", page.agent, audited=True),
        get(f"{d}/arms", "read", page.arms),
        get(f"{d}/settings", "read", page.settings),
        get(f"{d}/live", "read", page.live),
    ]  # fmt: skip


# The service itself


async def live(call: Call) -> Response:
    """Whether the process is alive."""
    return json_response(m.Health("alive"))


async def ready(call: Call) -> Response:
    """Whether all of this server's populations are open, caught up and compiled."""
    service = call.service
    if service.stopping.is_set():
        raise RefusedError("unavailable", "the server is stopping", {"retry-after": "5"})
    if not service.is_prepared:
        raise RefusedError("unavailable", service.unprepared(), {"retry-after": "1"})
    if trouble := service.trouble():
        why = f": {trouble}" if _may_read_all(call) else ""
        raise RefusedError("unavailable", f"the store cannot commit{why}", {"retry-after": "1"})
    if unopened := service.unopened():
        count = len(unopened) + len(service.populations)
        said = f"{len(unopened)} of {count} populations cannot be opened"
        names = ", ".join(map(repr, unopened))
        named = f": {names}" if _may_read_all(call) else ""
        raise RefusedError("damaged", said + named, {"retry-after": "30"})
    if service.ownership is not None and service.ownership.trouble:
        said = f"takes over no population: the store {service.ownership.trouble}"
        return json_response(m.Health("ready", f"{counted(len(service.populations), 'population')}; {said}"))
    lost = sum(one.owner.is_lost for one in service.populations.values())
    if lost and service.ownership is None:
        raise RefusedError(
            "not-owner", f"owned by another process: {counted(lost, 'population')}", {"retry-after": "1"}
        )
    return json_response(m.Health("ready", counted(len(service.populations), "population")))


def _may_read_all(call: Call) -> bool:
    """Whether the caller may see the names of all populations; `/readyz` itself needs no key."""
    try:
        return key_of(call.service, call.request).allows("read", None)
    except RefusedError:
        return False


async def describe(call: Call) -> Response:
    """This document."""
    return json_response(document(endpoints()))


async def scrape(call: Call) -> Response:
    """Metrics in the text format of Prometheus."""
    text = await call.service.run(call.service.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def sign_in(call: Call) -> Response:
    """Sign a browser in with a key, by a cookie."""
    service = call.service
    if wait := service.limits.take(f"session {address_of(service, call.request)}", 5.0):
        headers = {"retry-after": whole_seconds(wait)}
        raise RefusedError("too-many", "too many attempts to sign in from this address", headers)
    key = service.keys.check(call.body.key)
    if key is None:
        raise unauthenticated("the key is not known, has expired or was revoked")
    call.request.scope["state"]["key"] = key  # for the logs
    cookie = service.sessions.begin(key.id, is_secure=_is_secure(call))
    return json_response(_who(key), headers={"set-cookie": cookie})


async def who_is_there(call: Call) -> Response:
    """The key that the request was made with."""
    return json_response(_who(call.key))


async def sign_out(call: Call) -> Response:
    """Sign out: the cookie is deleted."""
    cookie = call.service.sessions.end(is_secure=_is_secure(call))
    return Response(status_code=204, headers={"set-cookie": cookie})


def _who(key: Key) -> m.Who:
    populations = None if key.populations is None else sorted(key.populations)
    return m.Who("anybody" if key is ANYBODY else key.id, sorted(key.scopes), populations)


def _is_secure(call: Call) -> bool:
    """Whether the browser's connection is encrypted; headers are not trusted for that."""
    return call.service.behind_tls or str(call.request.scope["scheme"]) == "https"


# Populations


async def list_populations(call: Call) -> Response:
    """The populations that the key may see."""
    names = await call.service.run(call.service.controller.populations)
    allowed = call.key.populations
    return json_response(m.Populations([name for name in names if allowed is None or name in allowed]))


async def put_population(call: Call) -> Response:
    """Make a population, or find the existing one; settings other than the recorded ones are refused."""
    service, body, name = call.service, call.body, call.names["population"]
    _check_candidate(body)
    settings = {key: getattr(body, key) for key in m.NewPopulation.__struct_fields__ if key != "parameters"}
    is_known = name in service.populations
    if not is_known:
        names = await service.run(service.controller.populations)
        is_known = name in names
        if not is_known:
            service.quotas.check("populations", len(names) + 1, f"there are {len(names):,} populations")

    make = functools.partial(
        service.controller.population, name, **settings, **body.parameters, by=call.key.id
    )
    with _refusing_parameters():
        made = await service.run(make)
    population = await service.adopt(made)
    return json_response(await _described(population), 200 if is_known else 201)


@contextlib.contextmanager
def _refusing_parameters() -> Iterator[None]:
    """Refuse a request whose parameters do not fit its policy's signature."""
    try:
        yield
    except TypeError as error:
        raise ValueError(f"parameters must be those of the policy: {error}") from None


async def get_population(call: Call) -> Response:
    """Settings and sizes of a population."""
    population = await call.population()
    return json_response(await _described(population))


async def _described(population: AsyncPopulation) -> m.PopulationFacts:
    def question(fold: Fold) -> m.PopulationFacts:
        s = fold.settings
        known = None if s.reward_low is None or s.reward_high is None else [s.reward_low, s.reward_high]
        agents = sum(name is not None for name in fold.called)
        sizes: dict[str, Any] = {"agents": agents, "pending": len(fold.pending), "sequence": fold.seq}
        shared = set(m.PopulationFacts.__struct_fields__) & set(s.__struct_fields__)
        settings = {"reward_range": known, **{key: getattr(s, key) for key in shared}}
        return m.PopulationFacts(name=population.population.name, **settings, **sizes)

    return await population.read(question)


async def list_settings(call: Call) -> Response:
    """Policies and parameters so far, and who set them."""
    population = await call.population()
    return json_response(await call.service.run(_switches, population))


async def switch(call: Call) -> Response:
    """Switch to another policy or other parameters, which first learn the whole journal.

    Decisions go on meanwhile. If these settings are in force already, nothing is done.
    """
    population = await call.population()
    await _reading_all(call, population.population.switch, by=call.key.id)
    return json_response(await call.service.run(_switches, population))


def _switches(population: AsyncPopulation) -> m.Switches:
    return m.Switches(population.population.switches)


def _check_candidate(body: m.Candidate | m.NewPopulation) -> None:
    """Refuse unknown policies, so that clients cannot make the server import modules."""
    if body.policy is not None and body.policy not in policy_names():
        raise ValueError(f"policy must be {for_live_use()}, got {body.policy[:40]!r}")
    for key in body.parameters:
        if key in OWN_SETTINGS:
            raise ValueError(f"{key} is a setting of the population, not a parameter of its policy")


async def _reading_all(call: Call, function: Callable[..., Result], **options: Any) -> Result:
    """Call a function that reads the whole journal, with the policy and the parameters in the body."""
    body = call.body
    _check_candidate(body)
    with _refusing_parameters():
        return await call.ask(lambda: function(body.policy, **options, **body.parameters))


async def get_contest(call: Call) -> Response:
    """How the candidates of the present contest stand; they first read what is new in the journal."""
    population = await call.population()
    return json_response(m.ContestNow(await call.ask(lambda: standing(population.owner))))


async def put_contest(call: Call) -> None:
    """Let candidates learn in the shadow, and compare them with the present policy."""
    population, body = await call.population(), call.body
    for one in body.candidates:
        _check_candidate(one)
    candidates = [{**one.parameters, "policy": one.policy} for one in body.candidates]
    with _refusing_parameters():
        await call.ask(lambda: begin(population.owner, candidates, body.when, body.share, call.key.id))


async def end_contest(call: Call) -> None:
    """End the contest; nothing else changes."""
    population = await call.population()
    await population.call(population.population.end_contest, by=call.key.id)


# Decisions


async def decide(call: Call) -> Response:
    """Choose an arm for an agent. Repeated with the same id, a request gets the same decision."""
    body = call.body
    check_arms([body])
    population = await call.population()
    commands = population.commands
    one = _deciding(call, commands)
    made = await population.perform(commands.DECIDES, lambda turn: one(turn, body))
    call.service.metrics.count(call.service.metrics.decisions, population.population.name)
    where = f"{call.request.scope['path']}/{quote(made.id, safe='')}"
    return json_response(made, 201, {"location": where})


async def decide_many(call: Call) -> Response:
    """Choose for many agents, in one commit; a decision or a problem for each request."""
    requests = call.body.requests
    call.service.charge(call.key, len(requests))
    check_arms(requests)
    population = await call.population()
    commands = population.commands
    results = await population.perform_each(commands.DECIDES, requests, _deciding(call, commands))
    made = sum(isinstance(one, Decision) for one in results)
    call.service.metrics.count(call.service.metrics.decisions, population.population.name, made)
    return json_response(
        m.DecisionResults(
            [
                m.DecisionResult(decision=one)
                if isinstance(one, Decision)
                else m.DecisionResult(problem=call.service.problem_of(one, by_id=True))
                for one in results
            ]
        )
    )


def _deciding(call: Call, commands: Commands) -> Callable[[Turn, m.NewDecision], Decision]:
    """The command `decide`. Without scope `admin`, it may set how an agent shares only as the agent joins."""
    if call.key.allows("admin", call.names["population"]):
        return commands.decide

    def decide(turn: Turn, request: m.NewDecision) -> Decision:
        index = None if request.sharing is None else turn.fold.names.get(request.agent)
        if index is not None and request.sharing != turn.fold.sharing[index]:
            raise ForbiddenError(
                f"only a key with scope 'admin' may change how an agent shares once it has joined: "
                f"sharing must be {turn.fold.sharing[index]!r} or left out, got {request.sharing!r}"
            )
        return commands.decide(turn, request)

    return decide


async def get_decision(call: Call) -> Response:
    """What is recorded about a decision."""
    population = await call.population()
    commands, id = population.commands, call.names["id"]

    def question(fold: Fold) -> m.DecisionStanding:
        standing = commands.known(fold, id)
        offer = commands.offers.offered(fold, standing.decided.arms)
        return m.DecisionStanding(
            commands.decision(fold, standing.decided, standing.seq, offer),
            standing.at / 1e6,
            [standing.rewards.get(place) for place in range(len(standing.decided.shown))],
            bool(standing.missed),
            standing.cancelled,
        )

    return json_response(await population.call(population.owner.read, question))


async def cancel(call: Call) -> None:
    """Cancel a decision that was never shown."""
    population = await call.population()
    await population.perform(1, lambda turn: population.commands.cancel(turn, call.names["id"]))


# Rewards


async def put_reward(call: Call) -> None:
    """Report the reward of a decision; repeating it changes nothing, and `replaces` corrects it."""
    request = m.NamedReward(call.names["id"], **msgspec.structs.asdict(call.body))
    population = await call.population()
    name, commands = population.population.name, population.commands
    try:
        delay = await population.perform(commands.REWARDS, lambda turn: commands.reward(turn, request))
    except (ValueError, ControllerError) as error:
        _count_refused(call, name, error)
        raise
    _count_reward(call, name, delay)


async def reward_many(call: Call) -> Response:
    """Report many rewards, in one commit; each result is empty or a problem."""
    rewards = call.body.rewards
    call.service.charge(call.key, len(rewards))
    population = await call.population()
    name = population.population.name
    results = await population.perform_each(population.commands.REWARDS, rewards, population.commands.reward)
    answers = []
    for one in results:
        if isinstance(one, Exception):
            _count_refused(call, name, one)
            answers.append(m.RewardResult(problem=call.service.problem_of(one)))
        else:
            _count_reward(call, name, one)
            answers.append(m.RewardResult())
    return json_response(m.RewardResults(answers))


async def observe(call: Call) -> Response:
    """Learn from an arm that was tried elsewhere."""
    population, body = await call.population(), call.body
    commands = population.commands
    is_new = await population.perform(commands.OBSERVES, lambda turn: commands.observe(turn, body))
    return json_response(m.Learned(is_new))


def _count_reward(call: Call, population: str, delay: float | None) -> None:
    metrics = call.service.metrics
    metrics.count(metrics.rewards, population)
    if delay is not None:
        metrics.child(metrics.delay, population).observe(delay)


def _count_refused(call: Call, population: str, error: BaseException) -> None:
    metrics, kind = call.service.metrics, kind_of(error)
    if kind in ("unknown", "gone"):
        metrics.count(metrics.unmatched, population)
    elif kind in ("conflict", "invalid"):
        metrics.count(metrics.refused, population)


# The catalogue


async def get_catalogue(call: Call) -> Response:
    """The arms that the population keeps."""
    population = await call.population()
    inner, sequence = population.population, population.owner.sequence
    arms = await population.call(lambda: inner.catalogue)
    return json_response(m.CatalogueContent(arms, sequence))


async def add_arms(call: Call) -> None:
    """Add arms to the catalogue, or change their features."""
    population = await call.population()
    await population.call(population.population.set_arms, call.body.arms, by=call.key.id)


async def retire_arm(call: Call) -> None:
    """Take an arm out of the catalogue; decisions about it stay."""
    population = await call.population()
    await population.call(population.population.retire, call.names["arm"], by=call.key.id)


# Agents


async def get_agent(call: Call) -> Response:
    """How an agent shares, and how many rewards it has had."""
    population = await call.population()
    commands, name = population.commands, call.names["agent"]

    def question(fold: Fold) -> m.Agent:
        index = commands.agent(fold, name)
        return m.Agent(fold.called[index] or name, fold.sharing[index], fold.observed[index], fold.seq)

    return json_response(await population.read(question))


async def put_agent(call: Call) -> None:
    """Let an agent join before its first decision, or change how it shares."""
    population = await call.population()
    await population.call(population.population.add, call.names["agent"], sharing=call.body.sharing)


async def put_features(call: Call) -> None:
    """Say what is known of an agent, who joins if it is new."""
    population = await call.population()
    await population.call(population.population.set_features, call.names["agent"], call.body.agent_features)


async def forget(call: Call) -> None:
    """Forget a person: none of their numbers, names or records stays."""
    population = await call.population()
    await call.ask(lambda: population.population.forget(call.names["agent"]), ends=False)


async def explain(call: Call) -> Response:
    """Whose samples an agent uses, and with whom it stopped sharing; with `other`, the same for a pair."""
    population = await call.population()
    agent, other = call.names["agent"], call.query.get("other")
    if other is None:
        return json_response(await population.call(explained, population.owner, agent, MOST_LISTED))
    return json_response(await population.call(population.population.explain, agent, other))


async def graph(call: Call) -> Response:
    """Who shares with whom, now or after the record `at`, among up to a thousand agents."""
    population = await call.population()
    at = call.number("at")
    inner = population.population
    await _check_graph(population, MOST_IN_GRAPH, "sent")
    sequence = population.owner.sequence if at is None else at
    found: Graph = await call.ask(lambda: inner.graph(at))
    edges = [np.flatnonzero(row).tolist() for row in np.triu(found.edges, 1)]
    return json_response(m.GraphContent(sequence, found.agents, edges))


async def _check_graph(population: AsyncPopulation, most: int, what: str) -> None:
    """Refuse too many agents: a graph takes memory in proportion to their square."""
    n_agents = await population.read(lambda fold: len(fold.called))
    if n_agents > most:
        raise RefusedError("too-large", f"graphs of up to {most:,} agents are {what}, this has {n_agents:,}")


async def events(call: Call) -> Response:
    """Records of the journal after the record `after`, in order, up to a thousand."""
    population = await call.population()
    after, limit = call.number("after", 0), call.number("limit", 100, high=MOST_EVENTS)
    return json_response(await call.service.run(events_of, population.owner, after, limit))


# Whether it pays


async def dividend(call: Call) -> Response:
    """What sharing pays, for all agents or one."""
    population = await call.population()
    return json_response(await population.call(population.population.dividend, call.query.get("agent")))


async def alarms(call: Call) -> Response:
    """What is wrong, or settled; reads the last records."""
    population = await call.population()
    return json_response(m.Alarms(await call.ask(population.population.alarms)))


async def uplift(call: Call) -> Response:
    """How much more the policy earns than the product's own rule; reads the whole journal."""
    population = await call.population()
    return json_response(await call.ask(population.population.uplift))


async def what_if(call: Call) -> Response:
    """Who would share with whom under other settings, and what that would pay; reads the whole journal."""
    population = await call.population()
    await _check_graph(population, MOST_COMPARED, "compared")
    found = await _reading_all(call, population.population.what_if)
    gained, lost = found.gained[:MOST_PAIRS], found.lost[:MOST_PAIRS]
    return json_response(msgspec.structs.replace(found, gained=gained, lost=lost))


async def evaluate_policy(call: Call) -> Response:
    """What another policy, with its defaults, would have earned; reads the whole journal."""
    call.body = m.Candidate(call.query.get("policy"))
    return await evaluate(call)


async def evaluate(call: Call) -> Response:
    """What another policy, or other parameters, would have earned; reads the whole journal."""
    population = await call.population()
    return json_response(await _reading_all(call, population.population.evaluate))
