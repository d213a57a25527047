"""This module wraps a transport, to count its requests as rest_client_* metrics."""

from __future__ import annotations

from urllib.parse import urlsplit

from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport, Unreachable, WatchStream
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import MetricRegistry

_DURATION_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
NO_RESPONSE_CODE = "<error>"  # in place of a status code


class RestMetrics:
    """RestMetrics holds the request metrics of a program; its clients share it."""

    def __init__(self, registry: MetricRegistry) -> None:
        self.requests = registry.counter(
            "rest_client_requests_total",
            "Requests to the API server by status code, method and host.",
            ("code", "host", "method"),
        )
        self.seconds = registry.histogram(
            "rest_client_request_duration_seconds",
            "Time from a request to the API server to its answer, by verb and host.",
            ("verb", "host"),
            _DURATION_BUCKETS_S,
        )


class MeteredTransport:
    def __init__(self, inner: Transport, metrics: RestMetrics, server: str, clock: Clock) -> None:
        """Wrap `inner`. `server` is the URL whose host the metrics name."""
        self._inner = inner
        self._metrics = metrics
        self._host = urlsplit(server).netloc
        self._clock = clock

    async def send(self, request: ApiRequest) -> ApiResponse:
        started = self._clock.monotonic()
        code = NO_RESPONSE_CODE
        try:
            answer = await self._inner.send(request)
            code = str(answer.status)
            return answer
        finally:
            self._count(request, code, started)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        started = self._clock.monotonic()
        try:
            opened = await self._inner.watch(request)
        except Unreachable:
            self._count(request, NO_RESPONSE_CODE, started)
            raise
        self._count(request, str(opened.status) if isinstance(opened, ApiResponse) else "200", started)
        return opened

    async def close(self) -> None:
        await self._inner.close()

    def _count(self, request: ApiRequest, code: str, started: float) -> None:
        self._metrics.requests.labels(code, self._host, request.method).inc()
        self._metrics.seconds.labels(request.method, self._host).observe(self._clock.monotonic() - started)
