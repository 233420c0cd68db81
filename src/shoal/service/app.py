"""The API: a table of routes, what stands around each of them, and the handlers.

What handlers may use, also those of `shoal.service.dashboard.routes` (a list of Starlette routes, mounted if it is
there):

    request.app.state.service   the `Service`: `.controller`, `await .population(name)` (an `AsyncPopulation`),
                                `await .run(function, *args)` in a thread for what may take long,
                                `.metrics`, and `.stopping`, an `asyncio.Event` for streams to end by
    request.state.key           the `shoal.service.keys.Key` that the request was made with, by header or cookie;
                                `keys.ANYBODY` on a server of this machine without keys
    request.state.request_id    the request's id, which is in the log
    name_in(request, "agent")   a name from the path, percent-decoded: paths are matched before they are decoded

Routes of the dashboard under `/v1/` and `/dashboard/` need scope `read`, for the population in their path (as
`{population}`) or for all; others (the page itself, its files) are for anybody. `POST /session` with
`{"key": …}` signs in: it sets a cookie, HttpOnly and SameSite, which stands for the key; `GET /session` says
who is signed in, or 401; `DELETE /session` signs out. A handler raises `problems.Refusal(kind, detail)`, or an
error of the controller, or ValueError, and the answer is a problem document.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, unquote_to_bytes

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Message, Receive, Scope, Send

import shoal
from shoal.controller.answers import Decision, Explanation, PairExplanation
from shoal.controller.asynchronous import Arrivals, AsyncPopulation
from shoal.controller.controller import Controller
from shoal.controller.errors import ControllerError, UnavailableError, UnknownError
from shoal.controller.fold import Fold
from shoal.policies.registry import policy_names
from shoal.service import messages as m
from shoal.service.journal import events_of
from shoal.service.keys import ANYBODY, Key, Keys
from shoal.service.limits import Limits, whole_seconds
from shoal.service.logs import log_failure, log_request
from shoal.service.metrics import Metrics
from shoal.service.problems import MEDIA_TYPE, Refusal, headers_of, kind_of, problem_of

Result = TypeVar("Result")
Handler = Callable[..., Awaitable[Response]]
log = logging.getLogger("shoal.service")


class Endpoint(NamedTuple):
    """A row of the table."""

    method: str
    path: str
    scope: str | None
    """What the key must allow; None: nothing, anybody may call it."""
    handler: Handler
    answers: Mapping[int, Any]
    """What is answered when all goes well, by status; None for no content."""
    body: Any = None
    query: tuple[str, ...] = ()
    """Names of what may follow the `?`."""
    by_id: bool = False
    """Whether a conflict means that an id of the caller's stands for another request."""


def endpoints() -> list[Endpoint]:
    """The routes. In a path, `population`, `agent`, `id` and `arm` are names, percent-encoded."""
    p = "/v1/populations/{population}"
    return [
        Endpoint("GET", "/livez", None, live, {200: m.Health}),
        Endpoint("GET", "/readyz", None, ready, {200: m.Health}),
        Endpoint("GET", "/openapi.json", None, describe, {200: dict[str, Any]}),
        Endpoint("GET", "/metrics", "read", scrape, {200: str}),
        Endpoint("POST", "/session", None, sign_in, {200: m.Who}, m.Session),
        Endpoint("GET", "/session", "", who_is_there, {200: m.Who}),
        Endpoint("DELETE", "/session", None, sign_out, {204: None}),
        Endpoint("GET", "/v1/populations", "", list_populations, {200: m.Populations}),
        Endpoint("PUT", p, "admin", put_population, {200: m.Population, 201: m.Population}, m.NewPopulation),
        Endpoint("GET", p, "read", get_population, {200: m.Population, 304: None}),
        Endpoint(
            "POST", f"{p}/decisions", "decide", decide, {201: Decision, 200: Decision}, m.NewDecision, by_id=True
        ),
        Endpoint("GET", f"{p}/decisions/{{id}}", "read", get_decision, {200: m.DecisionStanding}),
        Endpoint("DELETE", f"{p}/decisions/{{id}}", "decide", cancel, {204: None}),
        Endpoint("PUT", f"{p}/decisions/{{id}}/reward", "reward", put_reward, {204: None}, m.Reward),
        Endpoint(
            "POST", f"{p}/decisions:batch", "decide", decide_many, {200: m.DecisionResults}, m.Decisions
        ),
        Endpoint("POST", f"{p}/rewards:batch", "reward", reward_many, {200: m.RewardResults}, m.Rewards),
        Endpoint(
            "POST", f"{p}/observations", "reward", observe, {200: m.Learned}, m.NewObservation, by_id=True
        ),
        Endpoint("GET", f"{p}/catalogue", "read", get_catalogue, {200: m.CatalogueContent, 304: None}),
        Endpoint("PATCH", f"{p}/catalogue", "admin", add_arms, {204: None}, m.Catalogue),
        Endpoint("DELETE", f"{p}/catalogue/{{arm}}", "admin", retire_arm, {204: None}),
        Endpoint("GET", f"{p}/agents/{{agent}}", "read", get_agent, {200: m.Agent, 304: None}),
        Endpoint("PUT", f"{p}/agents/{{agent}}", "admin", put_agent, {204: None}, m.SharingMode),
        Endpoint("DELETE", f"{p}/agents/{{agent}}", "admin", forget, {204: None}),
        Endpoint(
            "GET",
            f"{p}/agents/{{agent}}/explanation",
            "read",
            explain,
            {200: Explanation | PairExplanation, 304: None},
            query=("other",),
        ),
        Endpoint("GET", f"{p}/graph", "read", graph, {200: m.GraphContent, 304: None}, query=("at",)),
        Endpoint("GET", f"{p}/events", "read", events, {200: m.Events}, query=("after", "limit")),
    ]
