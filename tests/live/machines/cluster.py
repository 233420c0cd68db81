"""A Ray cluster of two nodes with a server on each, one of which is killed under load; a program of its own.

    python -m tests.live.machines.cluster URL PORT

It prints, as JSON, how long a population had no service, what was acknowledged and what came of it, on which
nodes the servers were before and after. Ray warns of much and starts many threads, so no test imports it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import httpx
import psycopg
from tests.live.machines.test_chaos import AUDIT, LEASE, POPULATIONS, Fleet, Load
from tests.live.places import Place

from shoal.live.client import exchange
from shoal.live.service.on_ray import NAMESPACE, start

SMALL = {"object_store_memory": 80_000_000}
HASTY = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
"""Ray gives a node whose processes are dead up after two seconds; by default (3 s, five times) after 15."""


class Actors(Fleet):
    """Servers that Ray runs."""

    def __init__(self, place: Place, actors: list[Any], ports: list[int]) -> None:
        self.place, self.actors = place, actors
        place.store().close()
        with psycopg.connect(place.url, autocommit=True) as db:
            db.execute(AUDIT)
        self.children = dict.fromkeys(ports, 0)

    def stale(self) -> int:
        """Connections, beyond its owner's, by which rows came under an epoch; the database stays up."""
        with psycopg.connect(self.place.url) as db:
            rows = db.execute(
                "SELECT count(DISTINCT backend) - 1 FROM audit GROUP BY population, epoch"
            ).fetchall()
        assert rows
        return sum(n for (n,) in rows)


def wait_for(is_so: Any, seconds: float = 90.0) -> float:
    begin = time.monotonic()
    while not is_so():
        assert time.monotonic() < begin + seconds, "it did not come to that in time"
        time.sleep(0.1)
    return time.monotonic() - begin


def listens(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


def main(url: str, port: int) -> None:
    """Build it, break it, and say what came of it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # by which all of Ray listens on 127.0.0.1 alone
    import ray
    from ray.cluster_utils import Cluster

    exchange.LONGEST_ATTEMPT = 1.0
    head = {**SMALL, "num_cpus": 2, "include_dashboard": False, "_system_config": HASTY}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, **SMALL)
    ray.init(cluster.address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    place = Place("postgres", url)
    try:
        ports = [port, port + 1]
        place.store().close()
        command = subprocess.Popen(
            [sys.executable, "-m", "shoal.cli", "serve", url, "--ray", cluster.address, "--servers", "2",
             "--port", str(port), "--lease", str(LEASE), "--no-log-requests"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert command.stdout is not None
        said = sorted(command.stdout.readline() for _ in ports)
        assert [f"127.0.0.1:{one}" in line for one, line in zip(ports, said, strict=True)] == [True, True], (
            said
        )
        for one in ports:
            wait_for(lambda one=one: listens(one))
        actors = start(url, cluster.address, servers=2)  # those that are there
        fleet = Actors(place, actors, ports)
        before = [ray.get(actor.node.remote(), timeout=30) for actor in actors]
        load = Load(fleet)
        load.wait_for(20)
        worker = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
        victim = next(n for n, node in enumerate(before) if node == worker.node_id)
        begin = time.monotonic()
        cluster.remove_node(worker, allow_graceful=False)
        wait_for(lambda: not listens(ports[victim]))  # its processes notice it one by one
        load.wait_for(30)
        gap = load.gap(begin)
        back = wait_for(lambda: listens(ports[victim]))
        after = [ray.get(actor.node.remote(), timeout=30) for actor in actors]
        load.wait_for(20)
        load.finish()
        command.send_signal(signal.SIGTERM)
        assert command.wait(90) == 0
        toll = fleet.toll(load.promised)
        print(
            json.dumps(
                {
                    "errors": [repr(error) for error in load.errors],
                    "gap": gap,
                    "restarted": back,
                    "toll": toll,
                    "moved": before[victim] != after[victim],
                    "nodes": len(set(before)),
                    "populations": len(POPULATIONS),
                }
            )
        )
    finally:
        place.close()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
