"""Who calls: the key of a request, what it allows and how often, the host it names, its origin."""

import re
import time
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.requests import Request

from shoal.live.protocol.problems import RefusedError
from shoal.live.service.keys import ANYBODY, Key
from shoal.live.service.limits import whole_seconds
from shoal.live.service.service import Service

SIGNED_IN = "signed in"
"""In the table of routes: any key will do."""


def authorise(service: Service, request: Request, scope: str | None, population: str | None) -> Key:
    """The key of a request, if it allows this."""
    key = key_of(service, request) if scope is not None else ANYBODY
    request.scope["state"]["key"] = key
    if key.id and (wait := service.limits.take(key.id, key.rate)):
        headers = {"retry-after": whole_seconds(wait)}
        raise RefusedError("too-many", f"the key {key.id} has to wait {wait:.2f} s", headers, "rate")
    if scope not in (None, SIGNED_IN) and not key.allows(scope, population):
        where = "all populations" if population is None else "this population"
        raise RefusedError("forbidden", f"the key {key.id} does not have scope {scope!r} for {where}")
    return key


def key_of(service: Service, request: Request) -> Key:
    """The key of a request: in its header, of the user whom the proxy names, or behind a browser's cookie."""
    headers = request.scope["state"]["headers"]
    given = headers.get(b"authorization")
    if given is not None:
        kind, _, text = given.decode("latin-1").partition(" ")
        if kind.lower() != "bearer":
            raise unauthenticated("send `Authorization: Bearer KEY`: no other form of authorization is known")
        if (key := service.keys.check(text.strip())) is None:
            raise unauthenticated("the key is not known, has expired or was revoked")
        return key
    if request.method not in ("GET", "HEAD"):
        _check_origin(headers)
    if (key := _vouched_for(service, request)) is not None:
        return key
    if (cookie := headers.get(b"cookie")) is not None and (id := service.sessions.key(cookie)) is not None:
        key = service.keys.find(id)
        if key is not None and key.is_valid(time.time()):
            return key
    if service.is_open and not service.keys.exist():
        return ANYBODY
    raise unauthenticated(
        "send a key as `Authorization: Bearer shoal_…`, for commands in SHOAL_KEY; `shoal keys add` makes one"
    )


def _vouched_for(service: Service, request: Request) -> Key | None:
    """The key of a user whom the proxy in front has signed in; from elsewhere, its header is ignored."""
    proxy, state = service.proxy, request.scope["state"]
    came_from = "" if request.client is None else request.client.host.removeprefix("::ffff:")
    if proxy is None or came_from not in proxy.addresses or proxy.header not in state["headers"]:
        return None
    if sum(name == proxy.header for name, _ in request.scope["headers"]) > 1:  # one may be the user's own
        raise RefusedError("malformed", f"a request must have one header {proxy.header.decode()!r}")
    user = state["user"] = state["headers"][proxy.header].decode("latin-1")
    if (key := service.keys.of_user(user)) is None:
        raise RefusedError("forbidden", "the signed-in user has no key; `shoal keys add --user` makes one")
    # A server that this request is passed on to believes a cookie of ours, not the header.
    state["headers"][b"cookie"] = service.sessions.begin(key.id, is_secure=True).partition(";")[0].encode()
    return key


def address_of(service: Service, request: Request) -> str:
    """Where a request comes from; behind a proxy, the address that this proxy reports."""
    client = request.client
    address = "" if client is None else client.host
    if service.behind_tls:
        seen = request.scope["state"]["headers"].get(b"x-forwarded-for", b"").decode("latin-1")
        address = seen.rpartition(",")[2].strip()[:64] or address
    return address


def unauthenticated(detail: str) -> RefusedError:
    """The refusal of a request without a valid key."""
    return RefusedError("unauthenticated", detail, {"www-authenticate": "Bearer"})


def check_host(hosts: Collection[str], headers: Mapping[bytes, bytes]) -> None:
    """Refuse a request for another host's name, against DNS rebinding."""
    if "*" in hosts:
        return
    host = headers.get(b"host", b"").decode("latin-1").lower()
    if host not in hosts and re.sub(r":\d+$", "", host) not in hosts:
        raise RefusedError("host", f"{host[:100]!r} is not a name of this server; --allow-host adds one")


def _check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Refuse cross-site requests; browsers say which site's page sent a request."""
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    host = headers.get(b"host", b"").lower()
    is_ours = origin is None or urlsplit(origin).netloc.lower() == host
    if site not in (None, b"same-origin", b"none") or not is_ours:
        raise RefusedError("forbidden", "other sites' pages may not call this server")
