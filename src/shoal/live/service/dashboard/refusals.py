"""Requests that were refused, counted from the metrics of the service."""

from collections import Counter
from collections.abc import Iterator

import msgspec
from prometheus_client.samples import Sample

from shoal.live.protocol.problems import KINDS
from shoal.live.service.metrics import Metrics

MOST_REQUESTS = 5
"""Kinds of requests listed with a status."""
MEANINGS = {
    499: "The caller left before the answer",
    **{status: title for status, title in reversed(KINDS.values())},
}
"""What a status means; if it stands for several kinds of problems, the first of them."""


class RefusedRequests(msgspec.Struct, frozen=True):
    """Requests that were answered with one status."""

    status: int
    meaning: str
    count: int
    requests: list[tuple[str, int]]
    """Method and route of the most frequent ones, and how many; rarer ones make up the rest of `count`."""


def samples(metrics: Metrics, name: str) -> Iterator[Sample]:
    """A counter's value for each of its labels, without collecting other metrics."""
    for metric in metrics.registry.restricted_registry([name]).collect():
        yield from metric.samples


def refused_rewards(metrics: Metrics, population: str) -> tuple[int, int]:
    """Rewards of a population since the service started: refused, and for unknown decisions."""
    refused, unmatched = (
        sum(one.value for one in samples(metrics, name) if one.labels["population"] == population)
        for name in ("shoal_rewards_refused_total", "shoal_rewards_unmatched_total")
    )
    return int(refused), int(unmatched)


def refusals(metrics: Metrics) -> list[RefusedRequests]:
    """Answers of 400 and above since the service started, by status.

    They are the whole server's: neither the counter nor most refused requests name a population.
    """
    found: dict[int, Counter[str]] = {}
    for one in samples(metrics, "shoal_responses_total"):
        if (status := int(one.labels["status"])) >= 400:
            request = f"{one.labels['method']} {_short(one.labels['route'])}"
            found.setdefault(status, Counter())[request] += int(one.value)
    return [
        RefusedRequests(status, MEANINGS.get(status, ""), counts.total(), counts.most_common(MOST_REQUESTS))
        for status, counts in sorted(found.items())
    ]


def _short(route: str) -> str:
    """A route as docs/service.md writes it."""
    return "of an unknown path" if route == "none" else route.replace("/v1/populations/{population}/", "…/")
