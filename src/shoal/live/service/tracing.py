"""OpenTelemetry, if its API is installed: spans of requests, commands, commits and forwarded requests.

Without it, this module is not loaded, and a caller's `traceparent` is still passed on to other servers. Spans
name routes and populations, never agents. `opentelemetry-instrument`, for example, sets up the SDK.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import shoal
from shoal.live.population.asynchronous import AsyncPopulation, Result
from shoal.live.population.commands import Turn

CARRIED = ("traceparent", "tracestate")
_propagator = TraceContextTextMapPropagator()


class Tracing:
    """The tracer and the meter of a service.

    Parameters
    ----------
    tracers : TracerProvider, optional
    meters : MeterProvider, optional
        By default those of the process.
    """

    def __init__(
        self, tracers: trace.TracerProvider | None = None, meters: metrics.MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("shoal", shoal.__version__, tracers)
        # Error messages are left out: they may hold names.
        self._span = functools.partial(
            self._tracer.start_as_current_span, record_exception=False, set_status_on_exception=False
        )
        meter = metrics.get_meter("shoal", shoal.__version__, meters)
        self._seconds = meter.create_histogram("http.server.request.duration", "s", "Duration of requests.")

    def around(self, app: ASGIApp) -> ASGIApp:
        """An application whose requests have spans, and are measured."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status, start, headers = 0, time.perf_counter(), dict(scope["headers"])

            async def send_on(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            given = {name: headers.get(name.encode(), b"").decode("latin-1") for name in CARRIED}
            parent = _propagator.extract({name: value for name, value in given.items() if value})
            kind = trace.SpanKind.SERVER
            with self._span(scope["method"], parent, kind) as span:
                await app(scope, receive, send_on)
                route = scope["state"]["route"]
                about = {
                    "http.request.method": scope["method"], "http.route": route,
                    "http.response.status_code": status,
                }  # fmt: skip
                span.update_name(f"{scope['method']} {route}")
                span.set_attributes({**about, "shoal.request": scope["state"]["request_id"]})
                if status >= 500:
                    span.set_status(trace.StatusCode.ERROR)
            self._seconds.record(time.perf_counter() - start, about)

        return answer

    @contextlib.contextmanager
    def forwarding(self, headers: dict[bytes, bytes], url: str) -> Iterator[None]:
        """A span of a request to another server, whose headers then name it."""
        about = {"server.address": url}
        with self._span("forward", None, trace.SpanKind.CLIENT, about):
            carried: dict[str, str] = {}
            _propagator.inject(carried)
            headers.update({name.encode(): value.encode() for name, value in carried.items()})
            yield

    def population(self, *parts: Any) -> AsyncPopulation:
        """A population whose commands have spans, made from an `AsyncPopulation`'s arguments."""
        return TracedPopulation(self, *parts)

    async def perform(
        self, population: AsyncPopulation, n_rows: int, command: Callable[[Turn], Result]
    ) -> Result:
        """Perform a command on a population, with one span for the command and one for its commit."""
        parent, done = context.get_current(), 0
        about = {"shoal.population": population.population.name}

        def traced(turn: Turn) -> Result:  # in any thread
            nonlocal done
            with self._span("command", parent, attributes=about):
                result = command(turn)
            done = time.time_ns()
            return result

        try:
            return await AsyncPopulation.perform(population, n_rows, traced)
        finally:
            if done:
                self._tracer.start_span("commit", parent, start_time=done, attributes=about).end()


class TracedPopulation(AsyncPopulation):
    """A population whose commands have spans."""

    def __init__(self, tracing: Tracing, *parts: Any) -> None:
        super().__init__(*parts)
        self._tracing = tracing

    async def perform(self, n_rows: int, command: Callable[[Turn], Result]) -> Result:
        return await self._tracing.perform(self, n_rows, command)
