"""A process to be killed: four threads decide, reward and so on, and write down what was acknowledged.

Started once as a nursery, which loads everything and then forks a worker for each line that it reads: so a
worker starts in milliseconds, and no thread is there to be forked.
"""

import hashlib
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.live.journal import committer
from shoal.live.journal.records import Rewarded, Row
from shoal.live.population.commands import Commands
from shoal.live.population.controller import Controller
from shoal.live.population.controller import open as open_controller
from shoal.live.population.population import Population
from shoal.live.protocol.errors import ConflictError
from shoal.live.protocol.messages import NamedReward

THREADS = 4
DIM = 4
LEASE = 0.3
AGENTS = [f"agent {n}" for n in range(6)]


def open_shop(url: str, policy: str) -> tuple[Controller, Population]:
    """The controller and its one population."""
    controller = open_controller(url, lease=LEASE)
    own: dict[str, Any] = {"agent_dim": 1} if policy == "cluster_mixture" else {}
    return controller, controller.population("shop", policy=policy, dim=DIM, explore=0.1, seed=1, **own)


def plan(key: str) -> list[tuple[str, float]]:
    """What is done under an id, step by step; a reward may be followed by its correction."""
    draw = random.Random(key)
    kind = draw.choices(["rewarded", "corrected", "cancelled", "observed", "left"], [5, 2, 1, 1, 1])[0]
    first, second = draw.random(), draw.random()
    return {
        "rewarded": [("decided", 0.0), ("rewarded", first)],
        "corrected": [("decided", 0.0), ("rewarded", first), ("corrected", second)],
        "cancelled": [("decided", 0.0), ("cancelled", 0.0)],
        "observed": [("observed", first)],
        "left": [("decided", 0.0)],
    }[kind]


def arms_of(key: str) -> dict[str, list[float]]:
    """The arms on offer under an id, some of them often the same."""
    draw = random.Random(hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % 50)
    return {f"arm {n}": [draw.uniform(-0.5, 0.5) for _ in range(DIM)] for n in range(3)}


def agent_of(key: str) -> str:
    """Whose an id is."""
    return AGENTS[hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % len(AGENTS)]


def follow(shop: Population, key: str, acknowledge: Callable[[str], None]) -> None:
    """Carry out the plan of an id, some steps twice; it may have been carried out before."""
    steps = plan(key)
    for number, (kind, value) in enumerate(steps):
        for _ in range(2 if hash(value) % 5 == 0 else 1):
            step(shop, key, kind, value, steps[number - 1][1])
        acknowledge(f"{key} {number + 1}")


def step(shop: Population, key: str, kind: str, value: float, before: float) -> None:
    """One step of a plan."""
    match kind:
        case "decided":
            # Over HTTP populations of this harness take no features.
            takes = isinstance(shop, Population) and shop.settings.policy == "cluster_mixture"
            features = [float(hash(arms_of(key)["arm 0"][0]) % 7)] if takes else None  # often others
            shop.decide(agent_of(key), arms_of(key), id=key, agent_features=features)
        case "rewarded":
            try:
                shop.reward(key, value)
            except ConflictError as error:  # corrected, in a former life
                if error.recorded != plan(key)[-1][1]:
                    raise
        case "corrected":
            shop.reward(key, value, replaces=before)
        case "cancelled":
            shop.cancel(key)
        case "observed":
            shop.observe(agent_of(key), arms_of(key)["arm 0"], value, id=key)


def acknowledged(log: Path) -> Counter[str]:
    """How many steps of each id's plan were acknowledged."""
    steps: Counter[str] = Counter()
    for line in log.read_text().splitlines() if log.exists() else []:
        key, number = line.split()
        steps[key] = max(steps[key], int(number))
    return steps


once = Commands.reward


def rewarding_twice(shop: Commands, turn: Any, request: NamedReward) -> None:
    """Count a reward that comes again once more."""
    key, reward = request.id, request.reward
    standing = shop.find(turn.fold, key)
    if standing is not None and standing.rewards.get(0) == reward:
        agent, x = standing.decided.agent, standing.x(0)
        turn.write(Rewarded(key, 0, reward, turn.fold.policy.rounds + 1, (), agent, x), agent, key)
    else:
        once(shop, turn, request)


def live(url: str, log: Path, policy: str, mutant: str) -> None:
    """Work until killed."""
    if mutant == "early":
        committer.Ticket.wait = lambda self: None  # type: ignore[method-assign]
        commit = committer.Committer._commit

        def later(self: Any, items: Any) -> None:
            time.sleep(0.05)  # what is acknowledged now is committed later, or never
            commit(self, items)

        committer.Committer._commit = later  # type: ignore[method-assign]
    if mutant == "twice":
        Commands.reward = rewarding_twice  # type: ignore[method-assign, assignment]
    reached: Counter[int] = Counter()
    for key in acknowledged(log):
        thread, n = map(int, key.split("-"))
        reached[thread] = max(reached[thread], n)
    _, shop = open_shop(url, policy)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def acknowledge(text: str) -> None:
        os.write(file, f"{text}\n".encode())

    def loop(thread: int) -> None:
        n = reached[thread]  # the last one again, and what was under way after it
        while True:
            follow(shop, f"{thread}-{n}", acknowledge)
            n += 1
            if n % 40 == 10 * thread:
                shop.snapshot()

    for thread in range(THREADS):
        threading.Thread(target=loop, args=(thread,), daemon=True).start()
    os.write(1, b"ready\n")
    threading.Event().wait()


def events(rows: list[Row], kinds: Callable[[bytes], Any]) -> dict[str, list[tuple[str, float]]]:
    """What the journal says was done under each id, in order."""
    done: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        record = kinds(row.body)
        kind = type(record).__name__.lower()
        if row.decision is not None:
            value = getattr(record, "new", getattr(record, "reward", 0.0))
            done.setdefault(row.decision, []).append((kind, value))
    return done


def nurse() -> None:
    """Load all there is, then fork a worker for each line, and tell when it has died."""
    for policy in sys.argv[1:]:
        controller, shop = open_shop(":memory:", policy)
        for n in range(40):
            follow(shop, f"0-{n}", lambda _: None)
        controller.close()
    os.write(1, b"loaded\n")
    for line in sys.stdin:
        url, log, policy, mutant = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            live(url, Path(log), policy, mutant)
        os.write(1, b"%d\n" % child)
        os.waitpid(child, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    nurse()
