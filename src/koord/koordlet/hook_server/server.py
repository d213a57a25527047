"""The server of `runtime.v1alpha1.RuntimeHookService` on a Unix socket; stages without a decision echo."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
import msgspec

from koord.host.unix_socket import NotExclusive, SocketClaim, claim_socket
from koord.koordlet.hook_server.handler import HookFailed, RuntimeHookHandler
from koord.wire import runtime_hook
from koord.wire.raw_fields import MalformedMessage
from koord.wire.runtime_hook import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    RuntimeHookStage,
    echo_container,
    echo_pod,
)

STOP_GRACE_S = 2.0

_PodDecision = Callable[[PodSandboxHookRequest], Awaitable[PodSandboxHookResponse | HookFailed]]
_ContainerDecision = Callable[[ContainerResourceHookRequest], Awaitable[ContainerResourceHookResponse | HookFailed]]
_Behaviour = Callable[[bytes, Any], Awaitable[bytes]]


class HookServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """HookServer is a running server. `start` returns it or why it cannot run; `stop` ends it."""

    def __init__(self, handler: RuntimeHookHandler, claim: SocketClaim) -> None:
        self._claim = claim
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self._behaviours: Mapping[str, _Behaviour] = {
            RuntimeHookStage.PRE_RUN_POD_SANDBOX.method: _pod_stage(handler.pre_run_pod_sandbox),
            RuntimeHookStage.POST_STOP_POD_SANDBOX.method: _pod_stage(_echo_pod),
            RuntimeHookStage.PRE_CREATE_CONTAINER.method: _container_stage(handler.pre_create_container),
            RuntimeHookStage.PRE_START_CONTAINER.method: _container_stage(_echo_container),
            RuntimeHookStage.POST_START_CONTAINER.method: _container_stage(_echo_container),
            RuntimeHookStage.POST_STOP_CONTAINER.method: _container_stage(_echo_container),
            RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES.method: _container_stage(
                handler.pre_update_container_resources
            ),
        }

    @staticmethod
    async def start(path: str, handler: RuntimeHookHandler) -> HookServer | NotExclusive:
        """Serve the socket. A socket file that no server answers on is removed first."""
        claim = claim_socket(path)
        if isinstance(claim, NotExclusive):
            return claim
        server = HookServer(handler, claim)
        try:
            server._server.add_insecure_port(f"unix://{path}")
        except RuntimeError as error:
            claim.release()
            return NotExclusive(f"cannot bind {path}: {error}")
        await server._server.start()
        return server

    async def stop(self) -> None:
        """Take no more calls, let those under way end for a while, and remove the socket."""
        await self._server.stop(STOP_GRACE_S)
        self._claim.release()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a stage; None makes gRPC answer UNIMPLEMENTED."""
        behaviour = self._behaviours.get(details.method)
        return None if behaviour is None else grpc.unary_unary_rpc_method_handler(behaviour)


async def _echo_pod(request: PodSandboxHookRequest) -> PodSandboxHookResponse:
    return echo_pod(request)


async def _echo_container(request: ContainerResourceHookRequest) -> ContainerResourceHookResponse:
    return echo_container(request)


def _pod_stage(decide: _PodDecision) -> _Behaviour:
    async def behave(message: bytes, context: Any) -> bytes:
        request = runtime_hook.decode(message, PodSandboxHookRequest)
        if isinstance(request, MalformedMessage):
            return await _refuse_malformed(request, context)
        return await _reply(await decide(request), context)

    return behave


def _container_stage(decide: _ContainerDecision) -> _Behaviour:
    async def behave(message: bytes, context: Any) -> bytes:
        request = runtime_hook.decode(message, ContainerResourceHookRequest)
        if isinstance(request, MalformedMessage):
            return await _refuse_malformed(request, context)
        return await _reply(await decide(request), context)

    return behave


async def _reply(answer: msgspec.Struct, context: Any) -> bytes:
    if isinstance(answer, HookFailed):
        return await context.abort(grpc.StatusCode.UNKNOWN, answer.message)  # type: ignore[no-any-return]
    return runtime_hook.encode(answer)


async def _refuse_malformed(problem: MalformedMessage, context: Any) -> bytes:
    return await context.abort(grpc.StatusCode.INTERNAL, f"the request cannot be read: {problem}")  # type: ignore[no-any-return]
