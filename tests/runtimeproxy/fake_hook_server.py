"""A hook server that answers what a test tells it to: an echo, a change, nonsense, an error, or nothing in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec

from koord.wire import runtime_hook
from koord.wire.runtime_hook import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    HookRequest,
    HookResponse,
    PodSandboxHookRequest,
    RuntimeHookStage,
    echo_container,
    echo_pod,
)

ALL_STAGES = tuple(stage.value for stage in RuntimeHookStage)
_BY_METHOD = {stage.method: stage for stage in RuntimeHookStage}


class FakeHookServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self) -> None:
        self.calls: list[tuple[RuntimeHookStage, HookRequest]] = []
        self.answers: dict[RuntimeHookStage, Callable[[Any], HookResponse | bytes]] = {}
        self.error = ""
        self.hang = False
        self._never = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self, path: str) -> None:
        self._server = grpc.aio.server(options=(("grpc.max_send_message_length", -1),))
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix://{path}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def stages(self) -> list[str]:
        return [stage.value for stage, _ in self.calls]

    def last(self, stage: RuntimeHookStage) -> Any:
        return next(request for one, request in reversed(self.calls) if one is stage)

    def changes_resources(self, stage: RuntimeHookStage, **fields: Any) -> None:
        """Answer with the container's resources changed in these fields, and all else echoed."""

        def answer(request: ContainerResourceHookRequest) -> ContainerResourceHookResponse:
            assert request.container_resources is not None
            changed = msgspec.structs.replace(request.container_resources, **fields)
            return msgspec.structs.replace(echo_container(request), container_resources=changed)

        self.answers[stage] = answer

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        stage = _BY_METHOD.get(details.method)
        if stage is None:
            return None

        async def behave(message: bytes, context: Any) -> bytes:
            return await self._answer(stage, message, context)

        return grpc.unary_unary_rpc_method_handler(behave)

    async def _answer(self, stage: RuntimeHookStage, message: bytes, context: Any) -> bytes:
        model = PodSandboxHookRequest if stage.is_of_pod else ContainerResourceHookRequest
        request = runtime_hook.decode(message, model)
        assert isinstance(request, PodSandboxHookRequest | ContainerResourceHookRequest), request
        self.calls.append((stage, request))
        if self.hang:
            await self._never.wait()
        if self.error:
            await context.abort(grpc.StatusCode.INTERNAL, self.error)
        if stage in self.answers:
            answer = self.answers[stage](request)
        else:
            answer = echo_pod(request) if isinstance(request, PodSandboxHookRequest) else echo_container(request)
        return answer if isinstance(answer, bytes) else runtime_hook.encode(answer)


def register(
    folder: Path, endpoint: str, policy: str = "", stages: tuple[str, ...] = ALL_STAGES, name: str = "t.json"
) -> None:
    folder.mkdir(exist_ok=True)
    partial = folder / f"{name}.new"
    partial.write_text(json.dumps({"remote-endpoint": endpoint, "failure-policy": policy, "runtime-hooks": stages}))
    partial.rename(folder / name)
