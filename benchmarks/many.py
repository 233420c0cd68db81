"""What one population of very many agents costs to open, look at, forget from and close.

    python benchmarks/many.py [AGENTS]    100,000 by default, with BASS, d = 8, one sample each, on SQLite

Prints seconds of the clock and of the processor for each step. The population is made anew, in a temporary
directory, which takes most of the time.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import shoal
from shoal.live.protocol.messages import encoder
from shoal.live.service.dashboard.data import SharingPicture, summary
from shoal.live.service.dashboard.following import Follower

DIM = 8
BATCH = 1_000


@contextmanager
def timed(what: str, note: Callable[[], str] = str) -> Iterator[None]:
    """Print how long a step took."""
    clock, cpu = time.perf_counter(), time.process_time()
    yield
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    print(f"{what:36} {clock:8.2f} s by the clock {cpu:8.2f} s of the processor  {note()}", flush=True)


def main(n_agents: int) -> None:
    """Make the population, then take one step after another."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(4, DIM))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.db"
        with timed(f"{n_agents:,} agents join"), shoal.open(path) as controller:
            shop = controller.population("shop", policy="bass", dim=DIM, seed=0)
            for first in range(0, n_agents, BATCH):
                x = rng.normal(size=(BATCH, DIM)) / np.sqrt(DIM)
                agents = np.arange(first, first + BATCH)
                rewards = (x * theta[agents % 4]).sum(1) + rng.normal(size=BATCH)
                shop.observe_many(
                    {"agent": f"a{agent}", "x": each.tolist(), "reward": float(reward)}
                    for agent, each, reward in zip(agents, x, rewards, strict=True)
                )
            shop.snapshot()
        controller = shoal.open(path)
        with timed("start, from a snapshot"):
            shop = controller.population("shop")
        said: list[bytes] = []
        with timed("explanation", lambda: f"{len(said[-1]):,} bytes in the library"):
            said.append(encoder.encode(shop.explain("a0")))
        with timed("the page's first summary"):
            picture = SharingPicture(Follower(shop))
            summary(picture)
        with timed("its heat map"):
            picture.draw()
        with timed("stop"):
            controller.close()
        controller = shoal.open(path)
        shop = controller.population("shop")
        with timed("forget a person"):
            shop.forget("a1")
        with timed("stop, with the journal folded anew"):
            controller.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
