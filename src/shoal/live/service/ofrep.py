"""OFREP, the OpenFeature Remote Evaluation Protocol: populations as flags, for stock providers.

Providers evaluate a flag again and again, and those in browsers poll all of them, so an evaluation is not yet
a decision. Without a `decisionId`, an agent has one decision at a time: evaluated again, the flag has the
same value and the same decision, until that decision's reward has come, the arms on offer or the baseline
change, or a reward window has passed. The decision's id is derived from these, so that every server, before
and after a restart, finds the same decision. Polling writes nothing, and the tag of a bulk answer is stable.
"""

import asyncio
import hashlib
import itertools
import time
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from shoal.live.journal.arms import checked_name
from shoal.live.journal.fold import Fold
from shoal.live.population.commands import Commands, Turn
from shoal.live.protocol.answers import Decision
from shoal.live.protocol.errors import ControllerError, UnknownError
from shoal.live.protocol.flags import (
    ErrorCode,
    EvaluationFailure,
    EvaluationRequest,
    FlagEvaluation,
    FlagEvaluations,
    FlagMetadata,
    FlagResult,
    Reason,
)
from shoal.live.protocol.messages import NewDecision, encoder
from shoal.live.protocol.problems import RefusedError, kind_of
from shoal.live.service.routing import Call, check_arms, json_response
from shoal.live.service.service import Service

FLAGS = "/ofrep/v1/evaluate/flags"
MOST_FLAGS = 100
"""Flags in a bulk evaluation."""
NO_FLAG: ErrorCode = "FLAG_NOT_FOUND"
CODES: dict[str, ErrorCode] = {
    "malformed": "PARSE_ERROR",
    "invalid": "INVALID_CONTEXT",
    "unknown": "INVALID_CONTEXT",
    "gone": "INVALID_CONTEXT",
    "conflict": "INVALID_CONTEXT",
}
"""The protocol's codes for our kinds of errors; for the others, the status says enough."""


class FlagError(RefusedError):
    """A flag cannot be evaluated, for a reason that has a code of its own."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__("invalid", detail)
        self.code = code


def refused(service: Service, error: Exception, key: str | None) -> Response | None:
    """The answer to a request that failed; None for a problem document, as after any other request."""
    if (code := _code(error)) is None:
        return None
    said = EvaluationFailure(code, service.problem_of(error).detail, msgspec.UNSET if key is None else key)
    return json_response(said, 404 if code == NO_FLAG else 400)


def _code(error: Exception) -> ErrorCode | None:
    return error.code if isinstance(error, FlagError) else CODES.get(kind_of(error))


async def evaluate_flag(call: Call) -> Response:
    """Evaluate a flag for a targeting key: a decision for an agent of the population."""
    return json_response(await _evaluated(call, call.names["population"], call.body))


async def evaluate_flags(call: Call) -> Response:
    """Evaluate all flags that the key may decide about, up to a hundred; 304 if nothing has changed."""
    service = call.service
    _target(call.body)
    names = await service.run(service.controller.populations)
    names = [name for name in names if call.key.allows("decide", name)]
    if len(names) > MOST_FLAGS:
        said = f"up to {MOST_FLAGS} populations are evaluated together, and this key is for {len(names)}"
        raise FlagError("GENERAL", said)
    service.charge(call.key, len(names))
    request = EvaluationRequest(msgspec.structs.replace(call.body.context, decision_id=None, arms=None))
    results = await asyncio.gather(*(_result(call, name, request) for name in names))
    body = encoder.encode(FlagEvaluations([one for one in results if one.error_code != NO_FLAG]))
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    seen = call.request.scope["state"]["headers"].get(b"if-none-match", b"")
    if tag.encode() in (one.strip() for one in seen.split(b",")):
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, "application/json")


async def _result(call: Call, name: str, request: EvaluationRequest) -> FlagResult:
    """One flag of several."""
    try:
        if not call.service.is_here(name) and (found := await _forwarded(call, name, request)) is not None:
            return found
        evaluation = await _evaluated(call, name, request)
        return FlagResult(**msgspec.structs.asdict(evaluation))
    except (ValueError, ControllerError, RefusedError) as error:
        said = call.service.problem_of(error).detail
        return FlagResult(name, error_code=_code(error) or "GENERAL", error_details=said)


async def _forwarded(call: Call, name: str, request: EvaluationRequest) -> FlagResult | None:
    """A flag of a population that another server owns; None if this server owns it by now."""
    body = encoder.encode(request)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {**call.request.scope, "path": f"{FLAGS}/{quote(name, safe='')}", "query_string": b""}
    assert call.service.ownership is not None
    answer = await call.service.ownership.answer(Request(scope, receive), name)
    if answer is None:
        return None
    if answer.status_code in (200, 400, 404):
        return msgspec.json.decode(answer.body, type=FlagResult)
    return FlagResult(name, error_code="GENERAL", error_details=f"its owner answered {answer.status_code}")


async def _evaluated(call: Call, name: str, request: EvaluationRequest) -> FlagEvaluation:
    """The decision for a flag's agent, as the protocol has it."""
    context, service = request.context, call.service
    wanted = NewDecision(_target(request), context.arms, id=context.decision_id, baseline=context.baseline)
    check_arms([wanted])
    try:
        population = await service.population(name)
    except (UnknownError, ValueError):  # or a name that no population can have
        raise FlagError(NO_FLAG, f"there is no population {name[:100]!r}") from None
    commands = population.commands

    def command(turn: Turn) -> tuple[Decision, bool]:
        before = turn.fold.seq
        id = wanted.id or _current(commands, turn.fold, wanted)
        made = commands.decide(turn, msgspec.structs.replace(wanted, id=id))
        return made, made.sequence > before

    made, is_new = await population.perform(commands.DECIDES, command)
    if is_new:
        service.metrics.count(service.metrics.decisions, name)
    assert made.probability is not None  # which only rankings lack
    reason: Reason = "TARGETING_MATCH" if made.arm == made.greedy else "SPLIT"
    value = {"true": True, "false": False}.get(str(made.arm), made.arm)
    return FlagEvaluation(name, value, str(made.arm), reason, FlagMetadata(made.id, made.probability))


def _target(request: EvaluationRequest) -> str:
    target = request.context.targeting_key
    if not target:
        raise FlagError("TARGETING_KEY_MISSING", "context.targetingKey must be the name of the agent")
    return checked_name("agent", target)


def _current(commands: Commands, fold: Fold, wanted: NewDecision) -> str:
    """The id of the decision that is in force for an agent: see the module."""
    index = fold.names.get(wanted.agent, len(fold.called))
    rewards = fold.observed[index] if index < len(fold.called) else 0
    window = fold.settings.reward_window
    period = None if window is None else int(time.time() // window)
    offer = commands.offers.requested(fold, wanted.arms)
    for attempt in itertools.count():  # the next one, if a decision was cancelled
        of = encoder.encode([index, rewards, period, offer.digest.hex(), wanted.baseline, attempt])
        id = "ofrep-" + hashlib.blake2b(of, key=fold.settings.key, digest_size=16).hexdigest()
        known = commands.find(fold, id)
        if known is None or not known.cancelled:
            return id
    raise AssertionError
