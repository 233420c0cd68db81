"""Servers as Ray actors, which Ray places on the nodes of a cluster and restarts when they die.

Each actor runs one server in a thread, at its node's address. Ray decides only where servers run; the
database decides which server owns a population, so a node that Ray wrongly believes dead does no harm.
"""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from shoal.live.journal.stores.base import shown_url

NAMESPACE = "shoal"
POLL = 1.0
"""Seconds between looks at where the servers are."""


class Machine:
    """A server, as an actor.

    Parameters
    ----------
    url : str
        Of the store.
    port : int
        To listen on; 0 for a free one.
    options : dict
        Of `shoal.live.service.server.serve`.
    secret : str, optional
        With which all servers sign cookies.
    """

    def __init__(self, url: str, port: int, options: dict[str, Any], secret: str | None = None) -> None:
        ray = _ray()
        self._url, self._port, self._options = url, port, {"host": ray.util.get_node_ip_address(), **options}
        self._until, self._listens = threading.Event(), threading.Event()
        self._where = ""
        if secret is not None:
            os.environ["SHOAL_SESSION_SECRET"] = secret
        self._thread = threading.Thread(target=self._serve, name="shoal-server", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        from shoal.core.jit.narration import say_nothing_of_compiling
        from shoal.live.service import logs
        from shoal.live.service.server import serve

        say_nothing_of_compiling()
        logs.set_up()
        try:
            serve(self._url, port=self._port, until=self._until, on_start=self._started, **self._options)
        except BaseException as error:
            print(f"shoal: {error}", flush=True)  # into Ray's log of this actor
        if not self._until.is_set():
            time.sleep(1.0)
            os._exit(1)  # Ray starts it again

    def _started(self, where: str) -> None:
        self._where = where
        self._listens.set()

    def where(self, patience: float) -> str:
        """The server's URL, or "" if it does not listen yet."""
        self._listens.wait(patience)
        return self._where

    def node(self) -> str:
        """The node that it is on, by Ray's name for it."""
        return str(_ray().get_runtime_context().get_node_id())

    def stop(self) -> None:
        """Finish requests, and release what is owned."""
        self._until.set()
        self._thread.join(60.0)


def start(
    url: str, address: str, *, servers: int, port: int = 0, options: dict[str, Any] | None = None
) -> list[Any]:
    """Run `servers` servers on a cluster; returns their actors, including those that run already.

    Parameters
    ----------
    url : str
        Of the store: `postgresql://…`.
    address : str
        Of the cluster, as `ray.init` takes it; "auto" for the one that this machine belongs to.
    servers : int
    port : int
        The first server listens there, the second on the next port, and so on; 0 for free ones.
    options : dict, optional
        Of `shoal.live.service.server.serve`.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError(f"STORE must be postgresql://… for several servers, got {shown_url(url)!r}")
    ray = _ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not ray.is_initialized():
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    kind = ray.remote(Machine)
    store = hashlib.blake2b(url.encode(), digest_size=4).hexdigest()
    return [
        kind.options(
            name=f"shoal-{store}-{n}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",  # they outlive the process that started them
            max_restarts=-1,
            max_concurrency=4,
            num_cpus=1,
            scheduling_strategy="SPREAD",
        ).remote(url, port and port + n, options or {}, os.environ.get("SHOAL_SESSION_SECRET"))
        for n in range(servers)
    ]


def stop(actors: list[Any]) -> None:
    """End servers: each finishes its requests and releases what it owns."""
    ray = _ray()
    ray.wait([actor.stop.remote() for actor in actors], num_returns=len(actors), timeout=60.0)
    for actor in actors:
        ray.kill(actor, no_restart=True)


def serve_on_ray(
    url: str, address: str, *, servers: int, port: int, options: dict[str, Any], say: Callable[[str], None]
) -> None:
    """Run servers until SIGTERM or SIGINT, and say where they are whenever that changes."""
    ray = _ray()
    ended = threading.Event()
    actors = start(url, address, servers=servers, port=port, options=options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    known = [""] * servers
    while not ended.is_set():
        for n, actor in enumerate(actors):
            try:
                where = str(ray.get(actor.where.remote(0.0), timeout=POLL))
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                continue  # it is being started again
            if where and where != known[n]:
                known[n] = where
                say(f"server {n} serves {shown_url(url)} at {where}")
        ended.wait(POLL)
    stop(actors)


def _ray() -> Any:
    """Ray, which is optional and takes seconds to import."""
    try:
        return import_module("ray")
    except ImportError as error:  # pragma: no cover
        raise ImportError("Ray is not installed: pip install 'shoal[ray]'") from error
