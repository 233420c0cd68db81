"""What a decision over HTTP costs, beside an endpoint in the same run that only parses and answers the same.

A second process sends requests over the loopback interface, through 1, 16 and 128 connections. Processor time
is the server's, of all its threads, so that other load on the machine matters little; times of requests are
those of a machine that is not idle. `make bench` runs this and writes a table of docs/performance.md.
With `--ids` it measures decisions with ids, and keeps the other figures.

    python benchmarks/service.py [SECONDS | --ids]
"""

import asyncio
import json
import multiprocessing
import os
import platform
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from starlette.responses import Response
from starlette.types import ASGIApp

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.controller import JOURNALS, lengthen  # noqa: E402
from tests.live.population.server import Server as PostgreSQL  # noqa: E402
from tests.live.population.server import find_binaries  # noqa: E402

from shoal.live.client.plans import new_id  # noqa: E402
from shoal.live.population.controller import Controller  # noqa: E402
from shoal.live.population.controller import open as open_controller  # noqa: E402
from shoal.live.protocol import messages as m  # noqa: E402
from shoal.live.protocol.answers import Decision  # noqa: E402
from shoal.live.service.app import make_app  # noqa: E402
from shoal.live.service.keys import open_keys  # noqa: E402
from shoal.live.service.routing import Call, Endpoint, route  # noqa: E402
from shoal.live.service.server import Server, config_of  # noqa: E402
from shoal.live.service.service import Service  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "service.json"
BEGIN, END = "<!-- written by benchmarks/service.py -->\n", "<!-- until there -->\n"
N, D, K = 1_000, 16, 50
CONNECTIONS = (1, 16, 128)
PATH = "/v1/populations/bench"

rng = np.random.default_rng(0)
CATALOGUE = {f"arm {k}": x.tolist() for k, x in enumerate(rng.normal(size=(K, D)) / 4)}
ANSWER = Decision(
    id="019301ab3c4d5e6f708192a3b4c5", agent="agent 17", arm="arm 3", ranking=("arm 3",), probability=0.9804,
    greedy="arm 3", own=0.1234567890123, pooled=0.2345678901234, sequence=123456,
)  # fmt: skip


async def parse_and_answer(call: Call) -> Response:
    """The bare endpoint: behind the same key, with the same request and answer, it decides nothing."""
    msgspec.structs.replace(ANSWER, agent=call.body.agent)
    return Response(msgspec.json.encode(ANSWER), 201, {"location": "/somewhere"}, "application/json")


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The barest endpoint: no keys, limits, metrics or headers either."""
    message = await receive()
    decoder.decode(message["body"])
    content = msgspec.json.encode(ANSWER)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": content})


decoder = msgspec.json.Decoder(m.NewDecision)


def measured(service: Service) -> ASGIApp:
    """The application of a service, with a path that only parses, and one around all of it."""
    app = make_app(service)
    parse = Endpoint("POST", "/parse", "decide", parse_and_answer, {201: Decision}, m.NewDecision)
    app.routes.append(route(parse, service))

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        is_bare = scope["type"] == "http" and scope["path"] == "/bare"
        await (bare if is_bare else app)(scope, receive, send)

    return answer


def join(controller: Controller) -> None:
    """Make the population, and let its agents decide once."""
    shop = controller.population("bench", policy="bass", dim=D, seed=1)
    shop.set_arms(CATALOGUE)
    for start in range(0, N, 500):
        shop.decide_many({"agent": f"agent {i}"} for i in range(start, start + 500))


class Running:
    """A server in a thread of this process, without a log of requests."""

    def __init__(self, url: str) -> None:
        keys = open_keys(url)
        _, self.key = keys.add(["decide", "reward", "read", "admin"])
        controller = open_controller(url, snapshot_every=0)
        join(controller)
        service = Service(controller, keys)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        started = threading.Event()
        self._server = Server(config_of(measured(service)), service, started.set)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        started.wait(60)
        while not service.is_prepared:
            time.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


# The other process: as bare a client as can be, so that the machine is the server's


def drive(port: int, key: str, kind: str, connections: int, seconds: float, rate: float, out: Any) -> None:
    """Send requests of a kind for some seconds, as fast as they are answered or at a rate; returns times."""
    out.send("ready")
    out.send(asyncio.run(_drive(port, key, kind, connections, seconds, rate)))


async def _drive(
    port: int, key: str, kind: str, connections: int, seconds: float, rate: float
) -> list[float]:
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    draw = np.random.default_rng(connections)

    def message(method: str, path: str, body: bytes) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    async def ask(reader: Any, writer: Any, request: bytes) -> bytes:
        writer.write(request)
        head: bytes = await reader.readuntil(b"\r\n\r\n")
        assert head[9:10] == b"2", head
        start = head.find(b"content-length: ")
        length = 0 if start < 0 else int(head[start + 16 : head.index(b"\r\n", start)])
        return await reader.readexactly(length) if length else b""

    async def connection(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        due = time.perf_counter() + (draw.random() * connections / rate if rate else 0.0)
        while (start := time.perf_counter()) < deadline:
            if rate:
                if due > start:
                    await asyncio.sleep(due - start)
                start = due  # what waited for its turn waited for the server
                due += connections / rate
            body = b'{"agent":"agent %d"}' % draw.integers(N)
            if kind == "ids":
                body = body[:-1] + b',"id":"%s"}' % new_id().encode()
            path = f"{PATH}/decisions" if kind in ("decide", "ids", "pair") else f"/{kind}"
            answer = await ask(reader, writer, message("POST", path, body))
            times.append(time.perf_counter() - start)
            if kind == "pair":
                id = msgspec.json.decode(answer)["id"]
                start = time.perf_counter()
                await ask(reader, writer, message("PUT", f"{PATH}/decisions/{id}/reward", b'{"reward":0.5}'))
                times.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*map(connection, range(connections)))
    return times


def measure(
    server: Running, kind: str, connections: int, seconds: float, rate: float = 0.0
) -> dict[str, float]:
    """Requests a second, their times, and the server's processor time for each."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    driver = multiprocessing.get_context("spawn").Process(
        target=drive, args=(server.port, server.key, kind, connections, seconds, rate, there)
    )
    driver.start()
    here.recv()  # it is about to begin
    cpu, start = time.process_time(), time.perf_counter()
    times = here.recv()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - start
    driver.join()
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return {
        "requests_per_s": len(times) / seconds,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "cpu_us": cpu / len(times) * 1e6,
        "wall_s": wall,
    }


def compare(url: str, seconds: float, repeats: int = 2) -> dict[str, Any]:
    """All kinds of request with all numbers of connections, in turn; the cheapest run of each."""
    server = Running(url)
    try:
        measure(server, "pair", 16, seconds / 2)  # warm
        found: dict[str, Any] = {}
        for connections in CONNECTIONS:
            runs: dict[str, list[dict[str, float]]] = {"bare": [], "parse": [], "decide": []}
            for _ in range(repeats):
                for kind in runs:
                    runs[kind].append(measure(server, kind, connections, seconds))
            best = {kind: min(some, key=lambda one: one["cpu_us"]) for kind, some in runs.items()}
            cheapest = {kind: one["cpu_us"] for kind, one in best.items()}
            ratios = {kind: cheapest["decide"] / cheapest[kind] for kind in ("bare", "parse")}
            found[str(connections)] = {**best, "ratios": ratios}
            print(connections, json.dumps(found[str(connections)]), flush=True)
        found["steady"] = measure(server, "pair", 32, 2 * seconds, rate=500.0)
        print("500 + 500/s", found["steady"], flush=True)
        return found
    finally:
        server.close()


def compare_ids(url: str, seconds: float = 1.0, repeats: int = 2) -> dict[str, Any]:
    """Decisions with ids and without, in turn, through 16 connections, by records in the journal."""
    found: dict[str, Any] = {}
    with open_controller(url, snapshot_every=0) as controller:
        join(controller)
    for records in JOURNALS:
        lengthen(url, "bench", records)
        server = Running(url)
        try:
            measure(server, "decide", 16, seconds)  # warm
            runs: dict[str, list[dict[str, float]]] = {"decide": [], "ids": []}
            for _ in range(repeats):
                for kind in runs:
                    runs[kind].append(measure(server, kind, 16, seconds))
        finally:
            server.close()
        best = {kind: min(some, key=lambda one: one["cpu_us"]) for kind, some in runs.items()}
        ratio = best["ids"]["cpu_us"] / best["decide"]["cpu_us"]
        found[str(records)] = {**best, "ratio": ratio}
        print(records, json.dumps(found[str(records)]), flush=True)
    return found


def main() -> None:
    """Measure, and write the table."""
    only_ids = sys.argv[1:] == ["--ids"]
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 and not only_ids else 2.0
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[1],
    }
    if only_ids:
        results = json.loads(RESULTS.read_text())
    results["ids"] = {"load": os.getloadavg()[1]}
    with tempfile.TemporaryDirectory() as directory:
        if not only_ids:
            results["sqlite"] = compare(f"{directory}/bench.db", seconds)
        results["ids"]["sqlite"] = compare_ids(f"{directory}/ids.db")
    write(results)
    binaries = find_binaries()
    if binaries is not None:
        server = PostgreSQL(binaries)
        try:
            if not only_ids:
                results["postgres"] = compare(server.room(), seconds)
            results["ids"]["postgres"] = compare_ids(server.room())
        finally:
            server.remove()
    write(results)


def write(results: dict[str, Any]) -> None:
    """Store the measurements, and show them on the page."""
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table(results)}{END}{rest.partition(END)[2]}")


def table(results: dict[str, Any]) -> str:
    """What was measured, for the page."""
    lines = [
        "| store, connections | decisions/s | p50 | p99 | processor time | of *parse* | of *bare* |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for store in ("sqlite", "postgres"):
        for connections, one in results.get(store, {}).items():
            if connections == "steady":
                continue
            made, ratios = one["decide"], one["ratios"]
            lines.append(
                f"| {store}, {connections} | {made['requests_per_s']:,.0f} | {made['p50_ms']:.1f} ms "
                f"| {made['p99_ms']:.1f} ms | {made['cpu_us']:.0f} µs "
                f"| {ratios['parse']:.1f} × {one['parse']['cpu_us']:.0f} µs "
                f"| {ratios['bare']:.1f} × {one['bare']['cpu_us']:.0f} µs |"
            )
    for store in ("sqlite", "postgres"):
        if store in results:
            one = results[store]["steady"]
            lines.append(
                f"| {store}, 500 decisions and 500 rewards a second | {one['requests_per_s']:,.0f} requests "
                f"| {one['p50_ms']:.1f} ms | {one['p99_ms']:.1f} ms | {one['cpu_us']:.0f} µs | | |"
            )
    lines.append(
        f"\nMeasured on {results['machine']}, with a load of {results['load']:.1f} from elsewhere.\n"
    )
    return "\n".join([*lines, *table_of_ids(results["ids"])])


def table_of_ids(results: dict[str, Any]) -> list[str]:
    """Decisions with ids, for the page."""
    lines = [
        "| store, records in the journal | with an id | without | ratio |",
        "|---|---:|---:|---:|",
    ]
    for store in ("sqlite", "postgres"):
        for records, one in results.get(store, {}).items():
            lines.append(
                f"| {store}, {int(records):,} | {one['ids']['cpu_us']:.0f} µs "
                f"| {one['decide']['cpu_us']:.0f} µs | {one['ratio']:.2f} × |"
            )
    load = results["load"]
    return [*lines, f"\nProcessor time of a decision, 16 connections, load {load:.1f} from elsewhere.\n"]


if __name__ == "__main__":
    main()
