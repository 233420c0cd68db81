"""The server process: where it listens, how it stops, and what it does about connections that go nowhere."""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import shoal
from shoal.controller.stores.base import shown_url
from shoal.service import logs
from shoal.service.app import make_app
from shoal.service.core import HOSTS, Service
from shoal.service.keys import PostgresKeys, open_keys
from shoal.service.limits import Limits

log = logging.getLogger("shoal.service")
LARGEST_HEAD = 65_536
"""Bytes that may come before a request is complete, apart from its body."""
HEAD_PATIENCE = 20.0
"""Seconds within which a request's head must have arrived."""
MOST_CONNECTIONS = 5_000


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
    rate: float = 0.0,
    sync: str = "full",
    log_requests: bool = True,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve the populations of a store until SIGTERM or SIGINT.

    Parameters
    ----------
    url : str
        Of the store, as `shoal.open` takes it.
    host, port : str, int
        Where to listen; port 0 for a free one. Without a key, only where nobody else can reach it.
    allow_hosts : collection of str
        Names under which the server may be called, besides those of this machine and `host`; "*" for any.
    certificate, private_key : path, optional
        For HTTPS, in PEM format.
    rate : float
        Requests a second that a key may make, unless it says otherwise; 0 for any number.
    sync : {"full", "normal"}
        See `shoal.open`.
    log_requests : bool
        Whether each request is logged.
    on_start : callable, optional
        Called with the server's own URL when it listens.
    """
    keys = open_keys(url)
    try:
        if not is_loopback(host) and not keys.exist():
            raise ValueError(
                f"host must be an address that only this machine can reach, such as 127.0.0.1, got {host!r}: "
                f"{shown_url(url)} has no key. Make one: shoal keys add STORE --scope decide,reward"
            )
        sock = _listen(host, port)
    except BaseException:
        keys.close()
        raise
    with sock:
        controller = shoal.open(url, sync=sync)
        if isinstance(keys, PostgresKeys):
            keys.listen()
        app = make_app(
            controller,
            keys,
            is_open=is_loopback(host),
            hosts={*HOSTS, host.lower(), *(name.lower() for name in allow_hosts)},
            limits=Limits(rate),
            access_log=logs.request_log() if log_requests else None,
        )
        if not is_loopback(host) and certificate is None:
            log.warning("keys and data cross the network unencrypted; see docs/service.md on TLS")
        options: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": private_key}
        scheme = "http" if certificate is None else "https"
        name = f"[{host}]" if ":" in host else host
        run(app, sock, options, lambda: on_start and on_start(f"{scheme}://{name}:{sock.getsockname()[1]}"))


def run(
    app: Service,
    sock: socket.socket,
    options: dict[str, Any] | None = None,
    on_start: Callable[[], Any] = lambda: None,
) -> None:
    """Run the server of an application on a socket, until a signal."""
    Server(config_of(app, **(options or {})), app, on_start).run([sock])


def config_of(app: Service, **options: Any) -> uvicorn.Config:
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
        timeout_keep_alive=75,
        timeout_graceful_shutdown=20,
        limit_concurrency=MOST_CONNECTIONS,
        backlog=2048,
        **options,
    )


class Server(uvicorn.Server):
    """Uvicorn's, which tells the application as soon as it is to stop, so that streams end."""

    def __init__(self, config: uvicorn.Config, app: Service, on_start: Callable[[], Any]) -> None:
        super().__init__(config)
        self._app, self._on_start = app, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.stopping.set()
        await super().shutdown(sockets)


class Protocol(HttpToolsProtocol):
    """Uvicorn's, which also ends connections whose requests never become complete, or have endless heads."""

    _head_size = 0
    _in_head = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_size += len(data)
            if self._timer is None:  # a further request on this connection has begun
                self._timer = self.loop.call_later(HEAD_PATIENCE, self._give_up)
        super().data_received(data)
        if self._in_head and self._head_size > LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("The request's head is too large.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head_size = True, 0

    def _expect_head(self) -> None:
        self._in_head, self._head_size = True, 0
        self._timer = self.loop.call_later(HEAD_PATIENCE, self._give_up)

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
