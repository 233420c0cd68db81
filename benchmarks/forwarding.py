"""What it costs when a request reaches a server that does not own its population.

Two servers on one PostgreSQL database, each a process; the first owns the population. The same requests are
sent to both in turns, one decision each or a hundred together.

    python benchmarks/forwarding.py [SECONDS]
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.live.population.server import Server as PostgreSQL  # noqa: E402
from tests.live.population.server import find_binaries  # noqa: E402
from tests.live.service.running import ARMS, Caller, Process  # noqa: E402

PATH = "/v1/populations/bench"
CONNECTIONS = 16
TURNS = 3


async def drive(port: int, path: str, body: bytes, seconds: float) -> int:
    """The number of requests answered in this many seconds."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    until, answered = time.perf_counter() + seconds, 0

    async def ask() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head[9:10] == b"2", head
            (length,) = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
            await reader.readexactly(int(length.split(b":")[1]))
            answered += 1
        writer.close()

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    return answered


def processor_time(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(seconds: float) -> None:
    """Measure and print."""
    binaries = find_binaries()
    if binaries is None:
        sys.exit("PostgreSQL's server is not installed here")
    database = PostgreSQL(binaries)
    one = msgspec.json.encode({"agent": "ada", "arms": ARMS})
    many = msgspec.json.encode({"requests": [{"agent": f"agent {n}", "arms": ARMS} for n in range(100)]})
    try:
        url = database.room()
        with Process(url, "--no-log-requests") as owner, Process(url, "--no-log-requests") as other:
            owner.wait_ready()
            other.wait_ready()
            with Caller(owner.url) as call:
                call.make("bench", policy="independent")
            for what, path, body, count in (
                ("single decisions", "/decisions", one, 1),
                ("batches of 100", "/decisions:batch", many, 100),
            ):
                best = {"owner": 0.0, "other": 0.0}
                cost = {"owner": float("inf"), "other": float("inf")}
                for _ in range(TURNS):
                    for name, server in (("owner", owner), ("other", other)):
                        before = [processor_time(one.process.pid) for one in (owner, other)]
                        answered = asyncio.run(drive(server.port, PATH + path, body, seconds))
                        used = sum(processor_time(one.process.pid) for one in (owner, other)) - sum(before)
                        best[name] = max(best[name], answered * count / seconds)
                        cost[name] = min(cost[name], used / answered / count)
                print(
                    f"{what}: {best['owner']:,.0f} decisions/s at the owner, {best['other']:,.0f} at another "
                    f"({best['other'] / best['owner']:.2f} ×); processor time of both servers together "
                    f"{cost['owner'] * 1e6:,.0f} and {cost['other'] * 1e6:,.0f} µs a decision"
                )
    finally:
        database.remove()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
