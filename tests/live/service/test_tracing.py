"""OpenTelemetry: spans of a request on both of the servers that it passes, and nothing without the API."""

import subprocess
import sys
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.live.places import Place
from tests.live.service.running import ARMS, Caller, InProcess

from shoal.live.service.tracing import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ROUTE = "POST /v1/populations/{population}/decisions"


class Recorded:
    """A server's own providers, and what they recorded."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(tracers, MeterProvider([self.reader]))

    def spans(self) -> dict[str, Any]:
        """The spans of the trace that the test began, by name."""
        found = self.exporter.get_finished_spans()
        return {one.name: one for one in found if f"{one.context.trace_id:032x}" == TRACE}


def test_a_request_through_two_servers(server: Any) -> None:
    place, here, there = Place("postgres", server.room()), Recorded(), Recorded()
    try:
        with (
            InProcess(place.url, shares=True, lease=30.0, tracing=here.tracing) as first,
            InProcess(place.url, shares=True, lease=30.0, tracing=there.tracing) as second,
            Caller(second.url) as owner,
            Caller(first.url) as call,
        ):
            path = owner.make("shop")
            assert not first.app.is_here("shop")
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            body = {"agent": "agatha", "arms": ARMS}
            assert call("POST", f"{path}/decisions", body, headers=headers).status_code == 201
            for agent, status in (("ada", 201), ("ben", 422)):  # a refusal that quotes a name
                named = {"agent": agent, "arms": ARMS, "id": "agatha"}
                assert owner("POST", f"{path}/decisions", named).status_code == status
            assert owner("GET", f"{path}/agents/agatha2").status_code == 404
    finally:
        place.close()
    assert set(here.spans()) == {ROUTE, "forward"}
    assert set(there.spans()) == {ROUTE, "command", "commit"}
    asked, forward, answered = here.spans()[ROUTE], here.spans()["forward"], there.spans()[ROUTE]
    assert f"{asked.parent.span_id:016x}" == PARENT
    assert forward.parent.span_id == asked.context.span_id
    assert answered.parent.span_id == forward.context.span_id
    for name in ("command", "commit"):
        assert there.spans()[name].parent.span_id == answered.context.span_id
    assert answered.attributes["http.response.status_code"] == 201
    assert there.spans()["command"].attributes["shoal.population"] == "shop"
    every = *here.exporter.get_finished_spans(), *there.exporter.get_finished_spans()
    assert "agatha" not in "".join(one.to_json() for one in every)
    data: Any = there.reader.get_metrics_data()
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "http.server.request.duration"
    routes = {one.attributes["http.route"]: one.count for one in metric.data.data_points}
    assert routes[ROUTE.split()[1]] >= 1


def test_the_caller_s_trace_is_passed_on_without_it(server: Any) -> None:
    place, there = Place("postgres", server.room()), Recorded()
    try:
        with (
            InProcess(place.url, shares=True, lease=30.0) as first,
            InProcess(place.url, shares=True, lease=30.0, tracing=there.tracing) as second,
            Caller(second.url) as owner,
            Caller(first.url) as call,
        ):
            path = owner.make("shop")
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            assert call("GET", path, headers=headers).status_code == 200
    finally:
        place.close()
    (span,) = there.spans().values()
    assert f"{span.parent.span_id:016x}" == PARENT


def test_nothing_is_loaded_without_the_api() -> None:
    code = """
import sys, importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "opentelemetry" else find(name, *rest)
from shoal.live.service import server
assert server._tracing() is None
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
