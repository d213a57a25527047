"""The calls of CRI that hook servers take part in, and what is kept of them.

| call | asked before | told afterwards | kept |
|---|---|---|---|
| RunPodSandbox | PreRunPodSandbox | | the pod, under the id that the runtime gave it |
| StopPodSandbox | | PostStopPodSandbox | the pod is forgotten |
| CreateContainer | PreCreateContainer | | the container, under its id |
| StartContainer | PreStartContainer | PostStartContainer | |
| UpdateContainerResources | PreUpdateContainerResources | | its resources |
| StopContainer | | PostStopContainer | the container is forgotten |
| RemoveContainer, RemovePodSandbox | | | what was never stopped is forgotten |

What cannot be parsed, or is about a pod or container that is not known, passes as it is, without hooks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from koord.runtimeproxy.checkpoint import Checkpoint, ContainerRecord
from koord.runtimeproxy.hook_client import HookClient, HookServerFailure
from koord.runtimeproxy.metrics import RuntimeProxyMetrics
from koord.wire import cri
from koord.wire.raw_fields import MalformedMessage
from koord.wire.runtime_hook import (
    ContainerMetadata,
    ContainerResourceHookResponse,
    HookRequest,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    RuntimeHookStage,
)

_LOG = logging.getLogger(__name__)
R = TypeVar("R", PodSandboxHookResponse, ContainerResourceHookResponse)


class HookRefusal(msgspec.Struct, frozen=True):
    """HookRefusal is the answer to the kubelet where a hook server with the policy Fail failed."""

    message: str


class InterceptedCall(msgspec.Struct, frozen=True):
    """One call: its message, the way to the runtime, and how long the kubelet waits for it."""

    message: bytes
    forward: Callable[[bytes], Awaitable[bytes]]
    time_remaining: Callable[[], float | None]


class Interceptor:
    """Interceptor handles the intercepted calls. Errors of the runtime pass through it as exceptions."""

    def __init__(
        self, hooks: HookClient, checkpoint: Checkpoint, metrics: RuntimeProxyMetrics, opt_out: tuple[str, str]
    ) -> None:
        """Configure. `opt_out` is a label's key and value: pods with it are run without hooks."""
        self._hooks = hooks
        self._checkpoint = checkpoint
        self._metrics = metrics
        self._opt_out = opt_out
        self.handlers: Mapping[str, Callable[[InterceptedCall], Awaitable[bytes | HookRefusal]]] = {
            cri.runtime_method("RunPodSandbox"): self._run_pod_sandbox,
            cri.runtime_method("StopPodSandbox"): self._stop_pod_sandbox,
            cri.runtime_method("RemovePodSandbox"): self._remove_pod_sandbox,
            cri.runtime_method("CreateContainer"): self._create_container,
            cri.runtime_method("StartContainer"): self._start_container,
            cri.runtime_method("UpdateContainerResources"): self._update_container_resources,
            cri.runtime_method("StopContainer"): self._stop_container,
            cri.runtime_method("RemoveContainer"): self._remove_container,
        }

    # Pods ------------------------------------------------------------------------------------------------------------

    async def _run_pod_sandbox(self, call: InterceptedCall) -> bytes | HookRefusal:
        pod = cri.pod_request(call.message)
        if isinstance(pod, MalformedMessage):
            return await self._pass_unread("RunPodSandbox", call, pod)
        message = call.message
        answer = await self._before(RuntimeHookStage.PRE_RUN_POD_SANDBOX, pod, PodSandboxHookResponse, call)
        if isinstance(answer, HookRefusal):
            return answer
        if answer is not None:
            pod = cri.pod_with_answer(pod, answer)
            message = cri.run_pod_sandbox_with(message, pod)
        reply = await call.forward(message)
        id = cri.first_string(reply)
        if isinstance(id, str) and id:
            await self._checkpoint.put_pod(id, pod)
        return reply

    async def _stop_pod_sandbox(self, call: InterceptedCall) -> bytes:
        id = _id(call.message)
        pod = self._checkpoint.pods.get(id)
        try:
            return await call.forward(call.message)
        finally:
            if pod is not None:
                await self._checkpoint.remove_pod(id)
                await self._after(RuntimeHookStage.POST_STOP_POD_SANDBOX, pod, PodSandboxHookResponse, call)

    async def _remove_pod_sandbox(self, call: InterceptedCall) -> bytes:
        reply = await call.forward(call.message)
        id = _id(call.message)
        await self._checkpoint.remove_containers_of(id)
        await self._checkpoint.remove_pod(id)
        return reply

    # Containers ------------------------------------------------------------------------------------------------------

    async def _create_container(self, call: InterceptedCall) -> bytes | HookRefusal:
        sandbox_id = _id(call.message)
        pod = self._checkpoint.pods.get(sandbox_id)
        if pod is None:
            return await self._pass_unknown("CreateContainer", "pod sandbox", sandbox_id, call)
        container = cri.container_request(call.message, pod)
        if isinstance(container, MalformedMessage):
            return await self._pass_unread("CreateContainer", call, container)
        message = call.message
        answer = await self._before(
            RuntimeHookStage.PRE_CREATE_CONTAINER, container, ContainerResourceHookResponse, call
        )
        if isinstance(answer, HookRefusal):
            return answer
        if answer is not None:
            container = cri.container_with_answer(container, answer)
            message = cri.create_container_with(message, container)
            message = cri.create_container_with_devices(message, answer.container_devices)
        reply = await call.forward(message)
        id = cri.first_string(reply)
        if isinstance(id, str) and id:
            meta = msgspec.structs.replace(container.container_meta or ContainerMetadata(), id=id)
            container = msgspec.structs.replace(container, container_meta=meta)
            await self._checkpoint.put_container(id, ContainerRecord(sandbox_id, container))
        return reply

    async def _start_container(self, call: InterceptedCall) -> bytes | HookRefusal:
        id = _id(call.message)
        record = self._checkpoint.containers.get(id)
        if record is None:
            return await self._pass_unknown("StartContainer", "container", id, call)
        request = record.request
        # Nothing in a StartContainerRequest could be changed by an answer.
        answer = await self._before(RuntimeHookStage.PRE_START_CONTAINER, request, ContainerResourceHookResponse, call)
        if isinstance(answer, HookRefusal):
            return answer
        try:
            return await call.forward(call.message)
        finally:
            await self._after(RuntimeHookStage.POST_START_CONTAINER, request, ContainerResourceHookResponse, call)

    async def _update_container_resources(self, call: InterceptedCall) -> bytes | HookRefusal:
        id = _id(call.message)
        record = self._checkpoint.containers.get(id)
        if record is None:
            return await self._pass_unknown("UpdateContainerResources", "container", id, call)
        wanted = cri.updated_request(call.message, record.request)
        if isinstance(wanted, MalformedMessage):
            return await self._pass_unread("UpdateContainerResources", call, wanted)
        message = call.message
        stage = RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES
        answer = await self._before(stage, wanted, ContainerResourceHookResponse, call)
        if isinstance(answer, HookRefusal):
            return answer
        if answer is not None:
            wanted = cri.container_with_answer(wanted, answer)
            message = cri.update_container_resources_with(message, wanted)
        reply = await call.forward(message)
        await self._checkpoint.put_container(id, ContainerRecord(record.sandbox_id, wanted))
        return reply

    async def _stop_container(self, call: InterceptedCall) -> bytes:
        id = _id(call.message)
        record = self._checkpoint.containers.get(id)
        try:
            return await call.forward(call.message)
        finally:
            if record is not None:
                await self._checkpoint.remove_container(id)
                stage = RuntimeHookStage.POST_STOP_CONTAINER
                await self._after(stage, record.request, ContainerResourceHookResponse, call)

    async def _remove_container(self, call: InterceptedCall) -> bytes:
        reply = await call.forward(call.message)
        await self._checkpoint.remove_container(_id(call.message))
        return reply

    # Hooks -----------------------------------------------------------------------------------------------------------

    async def _before(
        self, stage: RuntimeHookStage, request: HookRequest, model: type[R], call: InterceptedCall
    ) -> R | HookRefusal | None:
        """Ask the stage's hook server; return None where there is nothing to apply."""
        if self._is_opted_out(request):
            return None
        answer = await self._hooks.ask(stage, request, model, call.time_remaining())
        if not isinstance(answer, HookServerFailure):
            return answer
        if not answer.fails_call:
            return None
        self._metrics.refused.labels(stage.value).inc()
        return HookRefusal(f"hook server err: {answer.message}")

    async def _after(
        self, stage: RuntimeHookStage, request: HookRequest, model: type[R], call: InterceptedCall
    ) -> None:
        """Tell the stage's hook server. What it answers changes nothing: the call has happened."""
        if not self._is_opted_out(request):
            await self._hooks.ask(stage, request, model, call.time_remaining())

    def _is_opted_out(self, request: HookRequest) -> bool:
        key, value = self._opt_out
        labels = request.labels if isinstance(request, PodSandboxHookRequest) else request.pod_labels
        return labels.get(key) == value

    async def _pass_unread(self, name: str, call: InterceptedCall, problem: MalformedMessage) -> bytes:
        _LOG.warning("%s passes without hooks: its request cannot be read: %s", name, problem)
        return await call.forward(call.message)

    async def _pass_unknown(self, name: str, kind: str, id: str, call: InterceptedCall) -> bytes:
        _LOG.info("%s passes without hooks: the %s %r is not known", name, kind, id)
        return await call.forward(call.message)


def _id(message: bytes) -> str:
    """Return the id that a request begins with; what cannot be read names nothing that is known."""
    found = cri.first_string(message)
    return found if isinstance(found, str) else ""
