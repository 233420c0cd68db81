"""The OpenAPI 3.1 document, generated from the table of routes and the types in it."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

import shoal
from shoal.core.policies.registry import policy_names
from shoal.live.protocol.messages import Problem
from shoal.live.protocol.problems import KINDS, MEDIA_TYPE
from shoal.live.service.callers import SIGNED_IN
from shoal.live.service.routing import Endpoint

NAMES = {"population": 256, "agent": 256, "arm": 256, "id": 128}
"""Longest names in paths."""
STRING = {"type": "string"}
QUERY = {
    "agent": ("Name of an agent.", {"type": "string", "minLength": 1, "maxLength": 256}),
    "policy": ("Name of a policy.", {"type": "string", "enum": list(policy_names())}),
    "other": ("Name of another agent.", {"type": "string", "minLength": 1, "maxLength": 256}),
    "at": ("Number of a record.", {"type": "integer", "minimum": 0, "maximum": 2**62}),
    "after": ("Number of a record.", {"type": "integer", "minimum": 0, "maximum": 2**62}),
    "limit": ("The most to return.", {"type": "integer", "minimum": 0, "maximum": 1000}),
}
LINKS = {
    "put_population": ("get_population", "add_arms", "decide", "put_agent", "observe", "graph", "events"),
    "decide": ("put_reward", "get_decision", "cancel"),
    "put_agent": ("get_agent", "explain", "forget"),
}
"""Operations that may follow one that makes something."""
HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "X-Request-Id": ("Id of the request, as in the log.", {"type": "string"}),
    "ETag": ("Version of this answer.", {"type": "string", "pattern": '^"[0-9a-f-]+"$'}),
    "Location": ("Where the decision is.", {"type": "string", "pattern": "^/v1/populations/"}),
    "Set-Cookie": ("Signs the browser in or out.", {"type": "string"}),
    "Retry-After": ("Seconds to wait.", {"type": "integer", "minimum": 1}),
    "WWW-Authenticate": ("How to send a key.", {"type": "string", "const": "Bearer"}),
    "Allow": ("Methods of this path.", {"type": "string"}),
}
BY_STATUS = {
    304: ("ETag",),
    401: ("WWW-Authenticate",),
    405: ("Allow",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}
"""Headers that all answers of a status have, besides the id of the request."""
NOT_JSON = {"/metrics": "text/plain; version=0.0.4; charset=utf-8"}


def document(table: Sequence[Endpoint]) -> dict[str, Any]:
    """The document of a table of routes; those of the page, which declare no answers, are left out."""
    table = [one for one in table if one.answers]
    types = [one.body for one in table if one.body is not None]
    types += [kind for one in table for answer in one.answers.values() for kind in _kinds(answer)]
    schemas, components = msgspec.json.schema_components(
        [*types, Problem], ref_template="#/components/schemas/{name}"
    )
    components["NewPopulation"]["properties"]["policy"]["enum"] = list(policy_names())
    schema_of = dict(zip(map(str, [*types, Problem]), schemas, strict=True))
    paths: dict[str, Any] = {}
    for one in table:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shoal",
            "version": shoal.__version__,
            "description": "Decisions and rewards of agents that share their samples while it pays to.",
            "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": {
                name: {"description": text, "required": name != "ETag", "schema": schema}
                for name, (text, schema) in HEADERS.items()
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(one: Endpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": NAMES[name]},
        }
        for name in re.findall(r"{(\w+)}", one.path)
    ]
    query = [
        {"name": name, "in": "query", "description": QUERY[name][0], "schema": QUERY[name][1]}
        for name in one.query or ()
    ]
    if 304 in one.answers:
        said = "ETags of answers that the caller already has."
        query.append({"name": "If-None-Match", "in": "header", "description": said, "schema": STRING})
    operation: dict[str, Any] = {
        "operationId": one.handler.__name__,
        "summary": (one.handler.__doc__ or "").strip(),
        "parameters": path + query,
        "responses": {str(status): _answer(one, status, schema_of) for status in one.answers}
        | {
            str(status): {
                "description": "; ".join(title for code, title in KINDS.values() if code == status),
                "headers": _headers(status),
                "content": {MEDIA_TYPE: {"schema": schema_of[str(Problem)]}},
            }
            for status in sorted({code for code, _ in KINDS.values()} - {500, *one.answers})
        },
    }
    if one.handler.__name__ in LINKS:
        made = "201" if 201 in one.answers else "204"
        names = {name: f"$request.path.{name}" for name in re.findall(r"{(\w+)}", one.path)}
        if one.handler.__name__ == "decide":
            names["id"] = "$response.body#/id"
        operation["responses"][made]["links"] = {
            other: {"operationId": other, "parameters": names} for other in LINKS[one.handler.__name__]
        }
    if one.scope is not None:
        operation["security"] = [{"key": []}]
        if one.scope != SIGNED_IN:
            operation["description"] = f"Needs scope `{one.scope}`."
    if one.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[str(one.body)]}},
        }
    return operation


def _answer(one: Endpoint, status: int, schema_of: dict[str, Any]) -> dict[str, Any]:
    schemas = [schema_of[str(kind)] for kind in _kinds(one.answers[status])]
    if not schemas:
        return {"description": "Not modified" if status == 304 else "Done", "headers": _headers(status, one)}
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {
        "description": "Done" if status < 400 else "Refused",
        "headers": _headers(status, one),
        "content": {NOT_JSON.get(one.path, "application/json"): {"schema": schema}},
    }


def _headers(status: int, one: Endpoint | None = None) -> dict[str, Any]:
    names = ["X-Request-Id", *BY_STATUS.get(status, ())]
    if one is not None and status < 300:
        names += [*one.headers, *(["ETag"] if 304 in one.answers else [])]
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _kinds(answer: Any) -> tuple[Any, ...]:
    return () if answer is None else answer if isinstance(answer, tuple) else (answer,)
