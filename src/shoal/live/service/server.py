"""The server process: where it listens, how it stops, and which connections it closes."""

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import math
import os
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

try:
    import uvicorn
    from starlette.types import ASGIApp
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:
    raise ImportError("the service needs uvicorn and others: pip install 'shoal[serve]'") from error

from shoal.live.journal.stores.base import LEASE, shown_url
from shoal.live.population.controller import open as open_controller
from shoal.live.population.quotas import Quotas
from shoal.live.service import logs
from shoal.live.service.app import make_app
from shoal.live.service.keys import Keys, open_keys
from shoal.live.service.middleware import MOST_CONNECTIONS
from shoal.live.service.service import HOSTS, Service
from shoal.live.service.sessions import Proxy, Sessions

if TYPE_CHECKING:
    from shoal.live.service.tracing import Tracing

log = logging.getLogger("shoal.service")
LARGEST_HEAD = 65_536
"""Bytes of a request before its body, or after it (trailers)."""
MOST_HEADERS = 100
PATIENCE = 20.0
"""Seconds within which a request must have arrived."""
LEAST_READ = 65_536
"""Bytes of a large answer that a caller must read every PATIENCE seconds."""
MOST_UNREAD = 100_000_000
"""Bytes of answers that callers have not read yet, over all connections."""
RESERVED = 200
"""Descriptors kept for the store, other servers and files."""
BACKLOG = 100
"""Connections that may wait to be accepted. All of them are accepted before the first is served."""
MOST_DESCRIPTORS = 65_536
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
_TOO_LARGE = f"The head of a request may have {LARGEST_HEAD:,} bytes and {MOST_HEADERS} headers."
HEAD_REFUSAL = (
    "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    f"content-length: {len(_TOO_LARGE)}\r\nconnection: close\r\n\r\n{_TOO_LARGE}"
).encode()


def raise_descriptors() -> None:
    """Raise the limit on open files and connections as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """How many connections may be open at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, soft - RESERVED))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def serve(
    url: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_hosts: Collection[str] = (),
    certificate: str | None = None,
    private_key: str | None = None,
    behind_tls: bool = False,
    limits: Collection[str] | Mapping[str, float] = (),
    archive: str | None = None,
    retain: float | None = None,
    sync: str = "full",
    lease: float = LEASE,
    forgotten: str | None = None,
    log_requests: bool = True,
    audit: str | None = None,
    proxies: Collection[str] = (),
    user_header: str | None = None,
    advertise: str | None = None,
    until: threading.Event | None = None,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve the populations of a store until SIGTERM or SIGINT.

    Parameters
    ----------
    url : str
        Of the store, as `shoal.open` takes it.
    host, port : str, int
        Where to listen; port 0 for a free one. Without a key, only where no other machine can reach it.
    allow_hosts : collection of str
        Host names that requests may use, besides those of this machine and `host`; "*" for any.
    certificate, private_key : path, optional
        For HTTPS, in PEM format.
    behind_tls : bool
        Whether a proxy in front serves HTTPS. Cookies are then for HTTPS only, and there has to be a key,
        since all requests then come from the proxy's address.
    limits : collection of str, or mapping
        Limits such as `agents=1000`, instead of the defaults (docs/service.md has the table).
    archive, retain : path, float, optional
        Directory to which records older than `retain` seconds are moved while it serves (`pip install
        'shoal[parquet]'`); see `Population.archive`.
    sync, lease, forgotten : {"full", "normal"}, float, path, optional
        See `shoal.open`.
    log_requests : bool
        Whether each request is logged.
    audit : path, optional
        Log of administrative calls, refused callers and views of explanations; stderr by default.
    proxies, user_header : collection of str, str, optional
        Addresses of a proxy in front that signs users in, and the header in which it names them.
    advertise : str, optional
        URL at which other servers on the same PostgreSQL database reach this one. By default the address
        that it listens on, or, if that is every address, the machine's name.
    until : threading.Event, optional
        When it is set, the server stops, as by a signal.
    on_start : callable, optional
        Called with the server's own URL once it listens.
    """
    if advertise is not None:
        if "://" not in url:
            raise ValueError("advertise is for servers that share a PostgreSQL database, not for a file")
        from shoal.live.population.servers import server_url

        advertise = server_url(advertise)
    if forgotten is not None:
        with open(forgotten, "ab"):  # fail now, rather than when a person has been forgotten
            pass
    write_audit = logs.writer("shoal.audit", audit)
    proxy = _proxy(proxies, user_header)
    is_alone = is_loopback(host) and not behind_tls and proxy is None
    quotas = Quotas.of(limits)
    if (archive is None) != (retain is None):
        raise ValueError("archive and retain go together: where old records are moved, and at what age")
    if archive is not None:
        if not os.path.isdir(archive):
            raise NotADirectoryError(20, "archive must be a directory that exists", archive)
        import shoal.core.parquet  # noqa: F401  fail now, rather than when something is to be moved
    sessions = Sessions(os.environ.get("SHOAL_SESSION_SECRET"))
    keys = open_keys(url)
    try:
        _check_keys(keys, url, host, "behind_tls" if behind_tls else "a proxy" if proxy else "")
        sock = _listen(host, port)
    except BaseException:
        keys.close()
        raise
    with sock:
        service = Service(
            open_controller(url, sync=sync, lease=lease, forgotten=forgotten),
            keys,
            is_open=is_alone,
            hosts={*HOSTS, host.lower(), *(name.lower() for name in allow_hosts)},
            behind_tls=behind_tls,
            quotas=quotas,
            retention=None if archive is None or retain is None else (archive, retain),
            sessions=sessions,
            proxy=proxy,
            access_log=logs.writer("shoal.requests") if log_requests else None,
            audit=write_audit,
            tracing=_tracing(),
        )
        scheme = "http" if certificate is None else "https"
        name = f"[{host}]" if ":" in host else host
        own_url = f"{scheme}://{name}:{sock.getsockname()[1]}"
        if "://" in url:
            everywhere = name in ("0.0.0.0", "[::]")
            default = own_url.replace(name, socket.gethostname(), 1) if everywhere else own_url
            _share(service, advertise or default, lease)
        if not is_loopback(host) and certificate is None and not behind_tls:
            log.warning("keys and data cross the network unencrypted; see docs/service.md on TLS")
        options = {"ssl_certfile": certificate, "ssl_keyfile": private_key}
        run(service, sock, options, lambda: on_start and on_start(own_url), until)


def _tracing() -> "Tracing | None":
    """Traces and metrics for OpenTelemetry, if its API is installed."""
    if importlib.util.find_spec("opentelemetry") is None:
        return None
    from shoal.live.service.tracing import Tracing

    return Tracing()


def _proxy(addresses: Collection[str], header: str | None) -> Proxy | None:
    if not addresses and header is None:
        return None
    if not addresses or header is None:
        raise ValueError("a proxy that signs users in needs an address and a header that names the user")
    reserved = ("authorization", "cookie", "host")
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", header) or header.lower() in reserved:
        raise ValueError(f"user_header must be the name of a header such as X-Forwarded-User, got {header!r}")
    found = frozenset(str(ipaddress.ip_address(one.strip("[]"))) for one in addresses)
    return Proxy(found, header.lower().encode())


def _check_keys(keys: Keys, url: str, host: str, behind: str) -> None:
    """Refuse to serve without a key where other machines can call, directly or through a proxy."""
    if keys.exist() or (is_loopback(host) and not behind):
        return
    said = f"{behind} needs a key, because all callers seem to be on the proxy's machine"
    if not is_loopback(host):
        said = f"host must be an address that only this machine can reach, such as 127.0.0.1, got {host!r}"
    raise ValueError(
        f"{said}: {shown_url(url)} has no key. Make one: shoal keys add STORE --scope decide,reward"
    )


def _share(service: Service, url: str, lease: float) -> None:
    """Let other servers on the same database reach this one at a URL."""
    from shoal.live.service.ownership import Ownership  # which needs the database's client, and ours

    service.ownership = Ownership(service, url, lease)
    host = str(urlsplit(url).hostname)
    service.hosts |= {f"[{host}]" if ":" in host else host}


def run(
    service: Service,
    sock: socket.socket,
    options: Mapping[str, Any] | None = None,
    on_start: Callable[[], Any] = lambda: None,
    until: threading.Event | None = None,
) -> None:
    """Serve on a socket, until a signal, or until an event is set."""
    raise_descriptors()
    Server(config_of(make_app(service), **(options or {})), service, on_start, until).run([sock])


def config_of(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """How uvicorn runs the application."""
    return uvicorn.Config(
        app,
        http=Protocol,
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=20,
        backlog=BACKLOG,
        **options,
    )


class Server(uvicorn.Server):
    """Uvicorn's server, except that streams end as soon as it begins to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        on_start: Callable[[], Any],
        until: threading.Event | None = None,
    ) -> None:
        super().__init__(config)
        self._service, self._on_start, self._until = service, on_start, until

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or (self._until is not None and self._until.is_set())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._service.connections = self.server_state.connections
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.end_streams()
        await super().shutdown(sockets)
        self._captured_signals.clear()  # which uvicorn would raise again at the end


class Protocol(HttpToolsProtocol):
    """Uvicorn's protocol, except that slow callers, oversized requests and too many connections are refused.

    Uvicorn's own limit on connections refuses every client's requests, and accepts idle connections until
    there are no descriptors. Some names used here are not public in uvicorn: see pyproject.toml.
    """

    _warned = -math.inf
    """When this process last logged that there are too many connections."""

    _outside_body = 0
    """Bytes of an incomplete request since the last part of its body."""
    _is_complete = False
    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    """Fires if the caller has not read more of an answer by then."""
    _unread: ClassVar[dict["Protocol", int]] = {}
    """Connections whose callers read too slowly, the longest-standing first, and the bytes left."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > (most := most_connections()):
            if time.monotonic() > Protocol._warned + 60.0:
                Protocol._warned = time.monotonic()
                log.warning("there are %d connections; further ones are refused", most)
            transport.write(REFUSAL)
            transport.close()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # head and body are written one by one
        self._timer = self.loop.call_later(PATIENCE, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self.resume_writing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()
        while sum(self._unread.values()) > MOST_UNREAD:
            next(iter(self._unread))._drop_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.pop(self, None)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _await_reader(self) -> None:
        """Drop a caller that holds an answer in memory without reading it."""
        left = self.transport.get_write_buffer_size()
        if left > self._unread.get(self, math.inf) - LEAST_READ:
            self._drop_reader()
            return
        self._unread[self] = left
        self._reading = self.loop.call_later(PATIENCE, self._await_reader)

    def _drop_reader(self) -> None:
        self.resume_writing()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._is_complete = False
        self._outside_body += len(data)
        super().data_received(data)
        if self._is_complete:
            self._stop_timer()
        elif self._outside_body > LARGEST_HEAD:  # a header that does not end, or trailers
            self._refuse_head()
        elif self._timer is None:  # most requests come in one piece, and need none
            self._timer = self.loop.call_later(PATIENCE, self._give_up)

    def on_message_begin(self) -> None:
        self._is_complete = False  # even if the same piece of data held the end of another request
        self._stop_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > LARGEST_HEAD or len(self.headers) > MOST_HEADERS:
            self._refuse_head()
            raise ValueError("the request's head is too large")  # stops the parser
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._outside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._outside_body, self._is_complete = 0, True

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():  # or the request has been refused already
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(HEAD_REFUSAL)
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host.strip("[]"), port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen there: {error.strerror}", f"{host}:{port}") from None
    return sock
