"""What a Prometheus server scrapes at /metrics; docs/service.md lists it."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import shoal
from shoal.core.policy.cuts import CuttingPolicy
from shoal.live.evaluation.alarms import ALARMS
from shoal.live.evaluation.dividends import summed
from shoal.live.journal.fold import Fold
from shoal.live.population.explaining import graph_of

if TYPE_CHECKING:
    from shoal.live.service.service import Service

MOST_COUNTED = 1_000
"""Agents whose edges are counted one by one."""
FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
LATE = (1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0, 30 * 86400.0)

SIZES = {
    "agents": "Agents",
    "pending": "Decisions awaiting rewards",
    "sequence": "Number of the last record",
    "edges": "Pairs that share",
    "dividend": "What sharing pays per reward, since the start",
    "dividend_low": "Lower end of its 95% confidence sequence",
    "dividend_high": "Upper end of its 95% confidence sequence",
    "cuts": "Pairs that stopped sharing",
    "snapshot_age_records": "Records since the last snapshot, which opening would apply",
}
"""Of a population, as they are now."""


class Metrics:
    """Counters that requests increment, and sizes that are looked up when scraped."""

    def __init__(self, service: "Service") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # an extra series per counter that nobody needs
        self.registry = CollectorRegistry()
        self._seconds = self._histogram("shoal_request_seconds", "Time to answer", ["route"], FAST)
        self._responses = self._counter("shoal_responses_total", "Answers", ["method", "route", "status"])
        self.decisions = self._counter("shoal_decisions_total", "Decisions made", ["population"])
        self.rewards = self._counter("shoal_rewards_total", "Rewards taken", ["population"])
        self.unmatched = self._counter(
            "shoal_rewards_unmatched_total", "Rewards for decisions that are not known", ["population"]
        )
        self.refused = self._counter(
            "shoal_rewards_refused_total", "Rewards out of range, or other than recorded", ["population"]
        )
        self.delay = self._histogram(
            "shoal_reward_delay_seconds", "Time from a decision to its first reward", ["population"], LATE
        )
        self.forwarded = self._counter(
            "shoal_forwarded_total", "Requests passed on to the owners of their populations", ["result"]
        )
        self.commit = self._histogram("shoal_commit_seconds", "Time of a commit", [], FAST)
        self.lag = self._histogram(
            "shoal_loop_lag_seconds", "How late the event loop woke a sleeper", [], FAST
        )
        self.taken = self._counter("shoal_taken_total", "Populations that this server took", [])
        self.lost = self._counter("shoal_lost_total", "Populations that others took from this server", [])
        self._children: dict[Any, Any] = {}
        self.registry.register(_Sizes(service))
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(name.removesuffix("_total"), text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def child(self, metric: Any, *labels: str) -> Any:
        """A metric with labels; looking one up in prometheus_client takes longer than counting."""
        found = self._children.get((metric, labels))
        if found is None:
            found = self._children[metric, labels] = metric.labels(*labels)
        return found

    def count(self, metric: Counter, population: str, n: int = 1) -> None:
        """Add `n` to a counter of a population."""
        self.child(metric, population).inc(n)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        known = method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
        self.child(self._seconds, route).observe(seconds)
        self.child(self._responses, known, route, str(status)).inc()

    def text(self) -> bytes:
        """All of it, in Prometheus's format."""
        return generate_latest(self.registry)


class _Sizes(Collector):
    """Sizes of queue and populations, as they are now."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._known: dict[str, dict[str, float]] = {}
        """Sizes of populations, as they were when the lock was free."""

    def collect(self) -> Iterator[Metric]:
        committer = self._service.controller.committer
        if committer is not None:
            yield GaugeMetricFamily("shoal_queue_rows", "Rows that wait to be committed", committer.in_flight)
            yield CounterMetricFamily(
                "shoal_commit_failures", "Commits that were given up", committer.failures
            )
            yield GaugeMetricFamily(
                "shoal_store_available", "Whether the store can commit", not committer.trouble
            )
        build = GaugeMetricFamily("shoal_build_info", "The version", labels=["version"])
        build.add_metric([shoal.__version__], 1.0)
        yield build
        size, free = self._service.disk
        yield GaugeMetricFamily("shoal_store_bytes", "Bytes of the store", size)
        if free < math.inf:
            yield GaugeMetricFamily("shoal_disk_free_bytes", "Bytes that are free beside the store", free)
        populations = list(self._service.populations.items())
        owned = sum(not one.owner.is_lost for _, one in populations)
        yield GaugeMetricFamily("shoal_owned_populations", "Populations that this server owns", owned)
        yield GaugeMetricFamily(
            "shoal_damaged_populations", "Populations that cannot be opened", len(self._service.unopened())
        )
        sizes = {
            key: GaugeMetricFamily(f"shoal_{key}", text, labels=["population"]) for key, text in SIZES.items()
        }
        for name, one in populations:
            # From memory, whether or not the store can be reached, and without waiting for a lock.
            self._known[name] = one.owner.peek(_sizes, waits=False) or self._known.get(name, {})
            for key, value in self._known[name].items():
                sizes[key].add_metric([name], value)
            if one.owner.snapshotter is not None:
                sizes["snapshot_age_records"].add_metric([name], one.owner.snapshotter.age(one.owner))
        yield from sizes.values()
        sounding = GaugeMetricFamily("shoal_alarm", "Whether an alarm sounds", labels=["population", "alarm"])
        for name, alarms in list(self._service.alarms.items()):
            loud = {one.name for one in alarms}
            for kind in ALARMS:
                sounding.add_metric([name, kind], kind in loud)
        yield sounding


def _sizes(fold: Fold) -> dict[str, float]:
    agents = sum(name is not None for name in fold.called)
    sizes: dict[str, float] = {"agents": agents, "pending": len(fold.pending), "sequence": fold.seq}
    if isinstance(fold.policy, CuttingPolicy):
        sizes["cuts"] = fold.count_cuts()
    if len(fold.called) <= MOST_COUNTED:
        sizes["edges"] = float(np.triu(graph_of(fold).edges, 1).sum())
    elif "cuts" in sizes:  # all pairs but those that were cut; agents who do not share are ignored
        sizes["edges"] = agents * (agents - 1) / 2 - sizes["cuts"]
    if (paid := summed(fold.tally.all(), fold.settings)).count:
        sizes["dividend"] = paid.mean
        if math.isfinite(paid.low):
            sizes["dividend_low"], sizes["dividend_high"] = paid.low, paid.high
    return sizes
