"""Errors as RFC 9457 problem documents, each kind with a stable type and one status."""

from typing import Any

import msgspec
from msgspec import UNSET

from shoal.live.protocol.errors import (
    ConflictError,
    ControllerError,
    GoneError,
    JournalError,
    LimitError,
    NotOwnerError,
    UnavailableError,
    UnknownError,
)
from shoal.live.protocol.messages import CHOICES, Problem

TYPE = "urn:shoal:problem:"
MEDIA_TYPE = "application/problem+json"

KINDS = {
    "malformed": (400, "The request cannot be read"),
    "unauthenticated": (401, "A key is needed"),
    "forbidden": (403, "The key does not allow this"),
    "unknown": (404, "No such thing"),
    "method": (405, "Not possible here"),
    "conflict": (409, "Something else is recorded"),
    "gone": (410, "It has been forgotten"),
    "too-large": (413, "The request is too large"),
    "media-type": (415, "The request must be JSON"),
    "host": (421, "Another host is meant"),
    "invalid": (422, "The request is not valid"),
    "id-reused": (422, "The id belongs to another request"),
    "too-many": (429, "Too many requests"),
    "limit": (507, "A limit is reached"),
    "internal": (500, "The server failed"),
    "unavailable": (503, "Not available now"),
    "damaged": (503, "The journal is damaged"),
    "not-owner": (503, "Another process owns the population"),
}
"""Status and title of each kind; docs/service.md has the table."""


AWAY = "the store cannot take it now; it may be recorded or not: repeat the request with the same id"
"""What clients read when a store fails."""


class RefusedError(Exception):
    """A request is refused by the service itself."""

    def __init__(
        self, kind: str, detail: str, headers: dict[str, str] | None = None, limit: str = ""
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.headers, self.limit = kind, detail, headers or {}, limit


class BusyError(UnavailableError):
    """The service itself cannot do it now; unlike a store's, its reason is for clients."""


class ForbiddenError(ControllerError):
    """The key does not allow what a command found that it would have to do."""


def kind_of(error: BaseException, *, by_id: bool = False) -> str:
    """The kind of an error; `by_id` for requests that name what they make by an id of the caller's."""
    match error:
        case RefusedError():
            return error.kind
        case ForbiddenError():
            return "forbidden"
        case GoneError():
            return "gone"
        case UnknownError():
            return "unknown"
        case ConflictError():
            return "id-reused" if by_id else "conflict"
        case LimitError():
            return "limit"
        case UnavailableError():
            return "unavailable"
        case NotOwnerError():
            return "not-owner"
        case JournalError():
            return "damaged"
        case msgspec.ValidationError():
            return "invalid"
        case msgspec.DecodeError() | UnicodeDecodeError():
            return "malformed"
        case ValueError():
            return "invalid"
    return "internal"


def problem_of(
    error: BaseException, request: str | Any = UNSET, *, by_id: bool = False, hidden: str = ""
) -> Problem:
    """An error as a document, which says nothing of where the store is (`hidden`) or of internal errors."""
    kind = kind_of(error, by_id=by_id)
    status, title = KINDS[kind]
    detail = "" if kind == "internal" else str(error) or title
    if hidden:
        detail = detail.replace(hidden, "the store")
    if isinstance(error, UnavailableError) and not isinstance(error, BusyError):
        detail = AWAY
    field = detail.rstrip("`").rpartition(".")[2]
    if isinstance(error, msgspec.ValidationError) and "enum value" in detail and field in CHOICES:
        detail += f"; choose from {', '.join(CHOICES[field])}"
    if isinstance(error, UnicodeDecodeError):  # whose message shows bytes
        detail = "text must be UTF-8"
    recorded = error.recorded if isinstance(error, ConflictError) else UNSET
    limit = getattr(error, "limit", "") or UNSET
    return Problem(TYPE + kind, title, status, detail, request, recorded, limit)


def headers_of(error: BaseException) -> dict[str, str]:
    """Further headers of an error's answer."""
    match error:
        case RefusedError():
            return error.headers
        case UnavailableError():
            return {"retry-after": str(max(1, round(error.retry_after)))}
        case NotOwnerError():
            return {"retry-after": "1"}
        case JournalError():
            return {"retry-after": "30"}  # somebody has to restore a backup
    return {}


def error_of(problem: Problem, retry_after: float = 1.0) -> Exception:
    """The exception that a problem stands for, on the client's side."""
    kind = problem.type.removeprefix(TYPE)
    match kind:
        case "gone":
            return GoneError(problem.detail)
        case "unknown":
            return UnknownError(problem.detail)
        case "conflict" | "id-reused":
            recorded = None if problem.recorded is UNSET else problem.recorded
            return ConflictError(problem.detail, recorded)
        case "unavailable" | "too-many":
            return UnavailableError(problem.detail, retry_after)
        case "limit":
            return LimitError(problem.detail, problem.limit if isinstance(problem.limit, str) else "")
        case "not-owner":
            return NotOwnerError(problem.detail)
        case "damaged":
            return JournalError(problem.detail)
        case "invalid" | "malformed" | "too-large":
            return ValueError(problem.detail)
        case "unauthenticated" | "forbidden":
            return PermissionError(problem.detail)
    return ControllerError(f"{problem.title}: {problem.detail}")
