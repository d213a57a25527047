"""Calls of hook servers: one server for each stage, within a deadline, and each outcome a value and a metric."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import grpc
import grpc.aio
import msgspec

from koord.runtimeproxy.backend import CHANNEL_OPTIONS, socket_address
from koord.runtimeproxy.hook_config import HookServerConfig, server_of_stage
from koord.runtimeproxy.metrics import RuntimeProxyMetrics
from koord.telemetry.clock import Clock
from koord.wire import runtime_hook
from koord.wire.raw_fields import MalformedMessage
from koord.wire.runtime_hook import HookRequest, RuntimeHookStage

_LOG = logging.getLogger(__name__)
R = TypeVar("R", bound=msgspec.Struct)


class HookServerFailure(msgspec.Struct, frozen=True):
    """A hook server did not answer, or with nonsense; `fails_call` is its registration's policy."""

    message: str
    fails_call: bool


class HookClient:
    """HookClient asks the server that registered for a stage. Connections are kept while a registration names them."""

    def __init__(
        self,
        configs: Callable[[], Mapping[str, HookServerConfig]],
        metrics: RuntimeProxyMetrics,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._configs = configs
        self._metrics = metrics
        self._clock = clock
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def ask(
        self, stage: RuntimeHookStage, request: HookRequest, model: type[R], remaining_s: float | None
    ) -> R | HookServerFailure | None:
        """Return the answer, why there is none, or None where no server registered for the stage."""
        config = server_of_stage(self._configs(), stage)
        if config is None:
            return None
        limit_s = self._timeout_s if remaining_s is None else min(self._timeout_s, max(0.0, remaining_s))
        began_s = self._clock.monotonic()
        outcome, answer = await self._call(config.remote_endpoint, stage, request, model, limit_s)
        self._metrics.hook_s.labels(stage.value, outcome).observe(self._clock.monotonic() - began_s)
        if isinstance(answer, str):
            _LOG.warning("the hook server %s failed at %s: %s", config.remote_endpoint, stage.value, answer)
            return HookServerFailure(answer, config.fails_calls)
        return answer

    async def _call(
        self, endpoint: str, stage: RuntimeHookStage, request: HookRequest, model: type[R], limit_s: float
    ) -> tuple[str, R | str]:
        """Return the outcome as the metric names it, and the answer or what is wrong."""
        call = self._channel(endpoint).unary_unary(stage.method)
        try:
            reply = await call(runtime_hook.encode(request), timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            outcome = "timeout" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else "error"
            return outcome, f"{error.code().name}: {error.details()}"
        decoded = runtime_hook.decode(reply, model)
        if isinstance(decoded, MalformedMessage):
            return "malformed", f"its answer cannot be read: {decoded}"
        return "ok", decoded

    async def retain(self, endpoints: Collection[str]) -> None:
        """Close the connections to servers that are registered no more; calls under way may end."""
        for endpoint in [one for one in self._channels if one not in endpoints]:
            await self._channels.pop(endpoint).close(grace=self._timeout_s)

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        found = self._channels.get(endpoint)
        if found is None:
            found = grpc.aio.insecure_channel(socket_address(endpoint), options=CHANNEL_OPTIONS)
            self._channels[endpoint] = found
        return found
