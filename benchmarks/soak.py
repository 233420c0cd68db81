"""A server under load for an hour: whether its memory stays flat, and no descriptor is leaked.

    python benchmarks/soak.py [MINUTES]

`shoal serve` runs as a process on an SQLite file. Clients decide and reward at a steady rate through
connections that come and go; every second memory, descriptors and threads of the server are read from /proc.
Memory may grow with the agents, whose number is fixed, and with nothing else: the median of the last sixth of
the time is compared with that of the second sixth.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import shoal

AGENTS = 500
RATE = 100.0
"""Decisions a second, each with its reward."""
ARMS = {"tea": [1.0, 0.0, 0.2], "coffee": [0.0, 1.0, 0.1], "water": [0.6, 0.8, 0.0]}


def sizes(process: int) -> tuple[float, int, int]:
    """Resident memory in MB, open descriptors, and threads of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    memory = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
    threads = int(re.search(r"Threads:\s+(\d+)", status)[1])  # type: ignore[index]
    return memory, len(os.listdir(f"/proc/{process}/fd")), threads


async def load(url: str, until: float) -> int:
    """Decide and reward until a time; returns how often."""
    made = 0

    async def some(number: int) -> None:
        nonlocal made
        while time.monotonic() < until:
            async with shoal.AsyncClient(url, deadline=30.0) as client:  # a new connection now and then
                shop = await client.population("soak")
                for _ in range(50):
                    start = time.monotonic()
                    agent = f"agent {made * 7919 % AGENTS}"
                    decision = await shop.decide(agent)
                    await shop.reward(decision.id, 1.0 if decision.arm == "tea" else 0.0)
                    made += 1
                    await asyncio.sleep(max(0.0, 8 / RATE - (time.monotonic() - start)))
                    if time.monotonic() > until:
                        return

    await asyncio.gather(*map(some, range(8)))
    return made


def main() -> None:
    """Run, and print what was measured."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "shoal.cli", "serve", f"{directory}/soak.db", "--port", "0"]
        with (
            open(f"{directory}/log", "wb") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server,
        ):
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            with shoal.Client(url, deadline=60.0) as client:
                shop = client.population("soak", policy="bass", dim=3, seed=1)
                shop.set_arms(ARMS)
                shop.decide_many({"agent": f"agent {n}"} for n in range(AGENTS))
            seen: list[tuple[float, int, int]] = []
            end = time.monotonic() + 60.0 * minutes

            async def watch() -> None:
                while time.monotonic() < end:
                    seen.append(sizes(server.pid))
                    await asyncio.sleep(1.0)

            async def both() -> int:
                made, _ = await asyncio.gather(load(url, end), watch())
                return made

            made = asyncio.run(both())
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
    sixth = max(1, len(seen) // 6)
    early, late = seen[sixth : 2 * sixth], seen[-sixth:]
    result = {
        "minutes": minutes,
        "decisions": made,
        "memory_mb": [round(median(one[0] for one in part), 1) for part in (early, late)],
        "descriptors": [median(one[1] for one in part) for part in (early, late)],
        "threads": [median(one[2] for one in part) for part in (early, late)],
        "exit_code": code,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
