"""Requests as rest_client_* metrics count them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from koord.kube.controller.process import MeteredTransport, RestMetrics
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable, UnstructuredBody, WatchStream
from koord.telemetry import metrics
from koord.telemetry.clock import ManualClock
from koord.telemetry.metrics import MetricRegistry


class EmptyWatchStream:
    async def __aiter__(self) -> AsyncIterator[Any]:
        return
        yield

    async def close(self) -> None:
        return


class SlowTransport:
    def __init__(self, clock: ManualClock, outcome: int | None) -> None:
        self._clock = clock
        self._outcome = outcome

    async def send(self, request: ApiRequest) -> ApiResponse:
        self._clock.advance(0.2)
        if self._outcome is None:
            raise Unreachable("reset")
        return ApiResponse(status=self._outcome, body=UnstructuredBody({}))

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        return EmptyWatchStream() if self._outcome == 200 else await self.send(request)

    async def close(self) -> None:
        return


@pytest.mark.parametrize(
    ("outcome", "watch", "line"),
    [
        pytest.param(201, False, 'rest_client_requests_total{code="201",host="a:6443",method="GET"} 1', id="answer"),
        pytest.param(None, False, 'rest_client_requests_total{code="<error>",host="a:6443",method="GET"} 1', id="none"),
        pytest.param(200, True, 'rest_client_requests_total{code="200",host="a:6443",method="GET"} 1', id="watch"),
        pytest.param(410, True, 'rest_client_requests_total{code="410",host="a:6443",method="GET"} 1', id="no-watch"),
        pytest.param(
            None, True, 'rest_client_requests_total{code="<error>",host="a:6443",method="GET"} 1', id="watch-cut"
        ),
    ],
)
async def test_every_request_is_counted(outcome: int | None, watch: bool, line: str) -> None:
    clock, registry = ManualClock(), MetricRegistry()
    transport = MeteredTransport(SlowTransport(clock, outcome), RestMetrics(registry), "https://a:6443/prefix", clock)
    request = ApiRequest(method="GET", path="/x")
    try:
        await (transport.watch(request) if watch else transport.send(request))
    except Unreachable:
        assert outcome is None
    text = metrics.render([registry]).decode()
    assert line in text
    assert 'rest_client_request_duration_seconds_count{host="a:6443",verb="GET"} 1' in text
    if outcome != 200:
        assert 'rest_client_request_duration_seconds_bucket{host="a:6443",verb="GET",le="0.1"} 0' in text
