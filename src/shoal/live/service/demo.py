"""Three simulated live populations: shops, antennas and clinics, as in the paper's examples.

Each agent belongs to one of a few kinds, unknown to the policy. Decisions are made at a modest pace, rewards
come late and in any order, and within a minute the first pairs have been told apart.
"""

import heapq
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import pdist

from shoal.core.types import Matrix
from shoal.live.population.controller import Controller
from shoal.live.population.controller import open as open_controller
from shoal.live.population.population import Population
from shoal.live.protocol.errors import ControllerError
from shoal.live.service.keys import open_keys
from shoal.live.service.server import run
from shoal.live.service.service import Service

TICK = 0.1
"""Seconds between looks at the clock."""
RUSH = 40.0
"""Seconds during which decisions come faster, so that there is something to see."""
FASTER = 3.0
DIM = 4


class World(NamedTuple):
    """Agents of a few kinds, the arms they choose from, and the pace of their decisions."""

    name: str
    agents: tuple[str, ...]
    arms: tuple[str, ...]
    n_kinds: int
    on_offer: int
    """Arms on offer at a time."""
    rate: float
    """Decisions a second."""
    delay: float
    """Mean seconds until a reward."""
    noise: float
    seed: int

    def features(self) -> Matrix:
        """Features of the arms, unit vectors, shape (K, d)."""
        return _unit(np.random.default_rng(self.seed).normal(size=(len(self.arms), DIM)))

    def kinds(self) -> Matrix:
        """The preferences of each kind of agent: unit vectors, shape (M, d).

        They have something in common, from which sharing gains, and differ enough to be told apart.
        """
        rng = np.random.default_rng(self.seed + 1)
        tries = [_unit(rng.normal(size=(self.n_kinds, DIM))) for _ in range(200)]
        return _unit(max(tries, key=lambda x: pdist(x).min()) + 0.4)


def _unit(x: Matrix) -> Matrix:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


_TOWNS = (
    "Lille", "Nantes", "Lyon", "Bordeaux", "Nice", "Rennes", "Dijon", "Metz", "Brest", "Tours", "Caen",
    "Nancy", "Pau", "Reims", "Angers", "Amiens", "Rouen", "Limoges", "Poitiers", "Grenoble", "Toulon",
    "Orléans", "Mulhouse", "Perpignan", "Besançon", "Avignon", "Calais", "Cannes", "Colmar", "Bourges",
    "Quimper", "Valence", "Troyes", "Lorient", "Chambéry", "Niort",
)  # fmt: skip
_WARES = (
    "lipstick", "sunscreen", "shampoo", "perfume", "hand cream", "gift set",
    "toothpaste", "face mask", "hair dye", "razor", "soap", "nail polish",
)  # fmt: skip

WORLDS = (
    World("shops", _TOWNS, _WARES, n_kinds=3, on_offer=4, rate=8.0, delay=4.0, noise=0.2, seed=11),
    World(
        "antennas",
        tuple(f"mast {row}{column:02d}" for row in "ABCDEF" for column in range(1, 11)),
        tuple(f"tilt {degrees}°" for degrees in range(10)),
        n_kinds=4,
        on_offer=4,
        rate=9.0,
        delay=1.5,
        noise=0.15,
        seed=23,
    ),
    World(
        "clinics",
        tuple(f"{town} clinic" for town in _TOWNS[:16]),
        ("letter", "text", "e-mail", "nurse calls", "doctor calls", "home visit", "leaflet", "reminder app"),
        n_kinds=2,
        on_offer=3,
        rate=3.0,
        delay=9.0,
        noise=0.2,
        seed=5,
    ),
)


def make(controller: Controller, world: World) -> Population:
    """The population of a world, with its catalogue; made at first use."""
    settings: dict[str, Any] = {
        "policy": "bass",
        "dim": DIM,
        "explore": 0.05,
        "reward_range": (-5.0, 5.0),
        "reward_window": 600.0,
        "alpha": 0.3,
        "gamma": 1.0,  # with 1.5, pairs that differ share long enough to make predictions surely worse
        "ridge": 0.3,
        "noise_scale": 0.15,
        "seed": 1,
    }
    is_known = world.name in controller.populations()  # and may have been switched to other settings
    population = controller.population(world.name, **({} if is_known else settings))
    if not population.catalogue:
        population.set_arms(dict(zip(world.arms, world.features().tolist(), strict=True)))
    return population


class Life(threading.Thread):
    """Makes decisions and reports rewards in one population, until it has ended."""

    def __init__(self, population: Population, world: World, has_ended: Callable[[], bool]) -> None:
        super().__init__(name=f"shoal-demo-{world.name}", daemon=True)
        self._population, self._world, self._has_ended = population, world, has_ended

    def run(self) -> None:
        """Decide and reward at the world's pace."""
        visits = self.visits(np.random.default_rng())
        began, made = time.monotonic(), 0.0
        late: list[tuple[float, str, float]] = []
        while not self._has_ended():
            time.sleep(TICK)
            now = time.monotonic()
            rushed = min(now - began, RUSH) * (FASTER - 1.0)
            due = self._world.rate * (now - began + rushed)
            try:
                # a slow machine skips the decisions that it cannot keep up with
                while made < due and not self._has_ended():
                    made = max(made + 1.0, due - 50.0)
                    delay, decision, reward = next(visits)
                    heapq.heappush(late, (now + delay, decision, reward))
                come = []
                while late and late[0][0] <= now:
                    _, decision, reward = heapq.heappop(late)
                    come.append({"id": decision, "reward": reward})
                self._population.reward_many(come[:1000])
            except ControllerError:  # it is stopping, or its disk is full
                time.sleep(1.0)

    def visits(self, rng: np.random.Generator) -> Iterator[tuple[float, str, float]]:
        """Decisions with the delays of their rewards, and the rewards."""
        world, kinds = self._world, self._world.kinds()
        features = dict(zip(world.arms, world.features(), strict=True))
        while True:
            agent = int(rng.integers(len(world.agents)))
            offer = rng.choice(len(world.arms), world.on_offer, replace=False)
            decision = self._population.decide(world.agents[agent], [world.arms[k] for k in offer])
            likes = kinds[agent % world.n_kinds]
            reward = float(likes @ features[str(decision.arm)] + world.noise * rng.normal())
            yield float(rng.exponential(world.delay)), decision.id, float(np.clip(reward, -5.0, 5.0))


def demo(url: str, port: int = 8000, on_start: Callable[[str], None] | None = None) -> None:
    """Serve three live populations, to this machine only, until SIGTERM or SIGINT.

    Parameters
    ----------
    url : str
        Of the store, as `shoal.open` takes it; populations from an earlier demo go on.
    port : int
        Where to listen; 0 for any free port.
    on_start : callable, optional
        Called with the server's URL when it listens.
    """
    keys = open_keys(url)
    with socket.create_server(("127.0.0.1", port)) as sock:
        controller = open_controller(url, sync="normal")  # a power failure may cost the last second
        service = Service(controller, keys, is_open=True)
        lives = [Life(make(controller, world), world, service.stopping.is_set) for world in WORLDS]

        def start() -> None:
            for life in lives:
                life.start()
            if on_start is not None:
                on_start(f"http://127.0.0.1:{sock.getsockname()[1]}")

        try:
            run(service, sock, on_start=start)
        finally:
            for life in lives:
                life.join(5.0)
