"""This module is one NRI session: it registers, answers the runtime's calls by the handler, and calls the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from koord.koordlet.nri import handler_call
from koord.koordlet.nri.connection import NriConnection
from koord.koordlet.nri.settings import DEFAULT_REQUEST_TIMEOUT_S, NriSettings, handler_deadline_s
from koord.telemetry.clock import Clock
from koord.values.json_text import MalformedText
from koord.wire.nri_messages import (
    PLUGIN_SERVICE,
    RUNTIME_SERVICE,
    ConfigureRequest,
    ConfigureResponse,
    ContainerUpdate,
    CreateContainerRequest,
    CreateContainerResponse,
    NriContainer,
    NriEvent,
    NriPodSandbox,
    RegisterPluginRequest,
    StateChangeEvent,
    SynchronizeRequest,
    SynchronizeResponse,
    UpdateContainerRequest,
    UpdateContainerResponse,
    UpdateContainersRequest,
    UpdateContainersResponse,
    configured_events,
    decode_message,
    encode_message,
    overlay_resources,
)
from koord.wire.protobuf import WireError
from koord.wire.ttrpc import (
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    TtrpcRequest,
    TtrpcResponse,
    TtrpcStatus,
    error_status,
)

MAX_REMEMBERED_PODS = 2_000  # more than any node runs
MAX_SYNCHRONIZED = 100_000  # pods and containers of one Synchronize, however many messages it has
_EMPTY_METHODS = ("StopContainer", "UpdatePodSandbox", "ValidateContainerAdjustment")


class NriConnectError(msgspec.Struct, frozen=True):
    """NriConnectError says why no session came about. `stage` is connect, register or synchronize."""

    stage: str
    why: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.why}"


class SynchronizeSummary(msgspec.Struct, frozen=True):
    """The pods and containers that the runtime had when the session began; `at` is in seconds since the epoch."""

    pods: int
    containers: int
    at: float


class NriSession:
    """NriSession is one connection to a runtime. Make it with `open_session`; `close` it before the next one."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        settings: NriSettings,
        handler: handler_call.NriHandler,
        clock: Clock,
        on_outcome: handler_call.OutcomeObserver | None = None,
    ) -> None:
        self.runtime = ConfigureRequest()  # as the runtime told it, once it did
        self.synchronized: SynchronizeSummary | None = None
        self._settings = settings
        self._handler = handler
        self._clock = clock
        self._handlers = handler_call.HandlerCalls(clock, settings.failure_policy, on_outcome)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refusal = ""  # why the runtime is going to end the session, where that is known here
        self._collected: tuple[list[NriPodSandbox], list[NriContainer]] = ([], [])
        self._pods: dict[str, NriPodSandbox] = {}  # by id, for the runtimes that tell little of a pod that goes
        self._methods: dict[str, Callable[[TtrpcRequest], Awaitable[TtrpcResponse]]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create_container,
            "UpdateContainer": self._update_container,
            "StateChange": self._state_change,
            "Shutdown": self._shutdown,
            **dict.fromkeys(_EMPTY_METHODS, self._answer_empty),
        }
        self._connection = NriConnection(reader, writer, self._serve)

    # Life ----------------------------------------------------------------------------------------------------------

    async def establish(self) -> NriConnectError | None:
        """Register, and wait until the runtime has configured and synchronized this plugin.

        The runtime calls Configure, and often Synchronize, before it answers RegisterPlugin.
        """
        request = RegisterPluginRequest(plugin_name=self._settings.plugin_name, plugin_idx=self._settings.plugin_index)
        answer = await self._connection.call(
            RUNTIME_SERVICE, "RegisterPlugin", encode_message(request), self._settings.register_timeout_s
        )
        if isinstance(answer, TtrpcStatus):
            return NriConnectError("register", self._refusal or str(answer))
        waited: set[asyncio.Future[Any]] = {self._ready, self._connection.ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if self._connection.ended.done():
            return NriConnectError("synchronize", self._refusal or self._connection.ended.result())
        return None

    async def wait_ended(self) -> str:
        """Wait until the session is of no more use, and return why."""
        why = await asyncio.shield(self._connection.ended)
        return self._refusal or why

    async def close(self) -> None:
        """Close the connection and cancel the handlers that run; returns when the socket is closed."""
        await self._connection.close("koordlet closed the session")
        await self._handlers.close()

    async def update_containers(self, updates: Sequence[ContainerUpdate]) -> tuple[ContainerUpdate, ...] | TtrpcStatus:
        """Ask the runtime to update containers; returns those that it could not update."""
        try:
            payload = encode_message(UpdateContainersRequest(update=tuple(updates)))
        except WireError as error:
            return error_status(INVALID_ARGUMENT, str(error))
        timeout_s = self.runtime.request_timeout / 1000 if self.runtime.request_timeout > 0 else 0.0
        answer = await self._connection.call(
            RUNTIME_SERVICE, "UpdateContainers", payload, timeout_s or DEFAULT_REQUEST_TIMEOUT_S
        )
        if isinstance(answer, TtrpcStatus):
            return answer
        try:
            return decode_message(UpdateContainersResponse, answer).failed
        except WireError as error:
            return error_status(INTERNAL, str(error))

    # Calls of the runtime --------------------------------------------------------------------------------------------

    async def _serve(self, request: TtrpcRequest) -> TtrpcResponse:
        method = self._methods.get(request.method) if request.service == PLUGIN_SERVICE else None
        if method is None:
            return _failure(UNIMPLEMENTED, f"{request.service} has no method {request.method}")
        try:
            return await method(request)
        except WireError as error:
            return _failure(INTERNAL, str(error))

    async def _configure(self, request: TtrpcRequest) -> TtrpcResponse:
        self.runtime = decode_message(ConfigureRequest, request.payload)
        events = configured_events(self.runtime.config)
        if isinstance(events, MalformedText):
            self._refusal = f"the runtime's configuration of this plugin: {events}"
            return _failure(INVALID_ARGUMENT, self._refusal)
        return TtrpcResponse(payload=encode_message(ConfigureResponse(events=events)))

    async def _synchronize(self, request: TtrpcRequest) -> TtrpcResponse:
        part = decode_message(SynchronizeRequest, request.payload)
        pods, containers = self._collected
        if len(pods) + len(containers) + len(part.pods) + len(part.containers) > MAX_SYNCHRONIZED:
            self._collected = ([], [])
            self._refusal = f"Synchronize has more than {MAX_SYNCHRONIZED} pods and containers"
            return _failure(RESOURCE_EXHAUSTED, self._refusal)
        pods += part.pods
        containers += part.containers
        if part.more:
            return TtrpcResponse(payload=encode_message(SynchronizeResponse(more=True)))
        self._collected = ([], [])
        self._pods = {pod.id: pod for pod in pods[-MAX_REMEMBERED_PODS:]}
        subject = f"{len(pods)} pods and {len(containers)} containers"
        work = _await_and_answer_empty(self._handler.synchronize, tuple(pods), tuple(containers))
        response = await self._run_handler(handler_call.SYNCHRONIZE, subject, request, work)
        if response.status is None:
            self.synchronized = SynchronizeSummary(len(pods), len(containers), self._clock.time())
            if not self._ready.done():
                self._ready.set_result(None)
        else:
            self._refusal = f"Synchronize: {response.status}"
        return response

    async def _state_change(self, request: TtrpcRequest) -> TtrpcResponse:
        event = decode_message(StateChangeEvent, request.payload)
        pod = event.pod
        if event.event == NriEvent.RUN_POD_SANDBOX:
            self._remember_pod(pod)
            work = _await_and_answer_empty(self._handler.run_pod_sandbox, pod)
            return await self._run_handler(handler_call.PRE_RUN_POD_SANDBOX, _pod_text(pod), request, work)
        if event.event == NriEvent.REMOVE_POD_SANDBOX:
            whole = _complete_pod(pod, self._pods.pop(pod.id, None))
            work = _await_and_answer_empty(self._handler.remove_pod_sandbox, whole)
            return await self._run_handler(handler_call.PRE_REMOVE_RUN_POD_SANDBOX, _pod_text(pod), request, work)
        return TtrpcResponse()

    def _remember_pod(self, pod: NriPodSandbox) -> None:
        self._pods[pod.id] = pod
        if len(self._pods) > MAX_REMEMBERED_PODS:  # the runtime may be configured not to tell of removals
            del self._pods[next(iter(self._pods))]

    async def _create_container(self, request: TtrpcRequest) -> TtrpcResponse:
        asked = decode_message(CreateContainerRequest, request.payload)

        async def work() -> bytes:
            adjustment = await self._handler.create_container(asked.pod, asked.container)
            return encode_message(CreateContainerResponse(adjust=adjustment))

        subject = f"{_pod_text(asked.pod)}, container {asked.container.name}"
        return await self._run_handler(handler_call.PRE_CREATE_CONTAINER, subject, request, work())

    async def _update_container(self, request: TtrpcRequest) -> TtrpcResponse:
        asked = decode_message(UpdateContainerRequest, request.payload)
        linux = asked.container.linux
        resources = overlay_resources(None if linux is None else linux.resources, asked.linux_resources)

        async def work() -> bytes:
            update = await self._handler.update_container(asked.pod, asked.container, resources)
            if update is None:
                return b""
            if not update.container_id:  # the runtime would file it under no container
                update = msgspec.structs.replace(update, container_id=asked.container.id)
            return encode_message(UpdateContainerResponse(update=(update,)))

        subject = f"{_pod_text(asked.pod)}, container {asked.container.name}"
        return await self._run_handler(handler_call.PRE_UPDATE_CONTAINER_RESOURCES, subject, request, work())

    async def _shutdown(self, _: TtrpcRequest) -> TtrpcResponse:
        self._connection.end_after_answer("the runtime sent Shutdown")
        return TtrpcResponse()

    async def _answer_empty(self, _: TtrpcRequest) -> TtrpcResponse:
        return TtrpcResponse()

    async def _run_handler(
        self, stage: str, subject: str, request: TtrpcRequest, work: Coroutine[None, None, bytes]
    ) -> TtrpcResponse:
        told_s, caller_s = self.runtime.request_timeout / 1000, request.timeout_nano / 1_000_000_000
        return await self._handlers.run(stage, subject, handler_deadline_s(self._settings, told_s, caller_s), work)


async def open_session(
    settings: NriSettings,
    handler: handler_call.NriHandler,
    clock: Clock,
    on_outcome: handler_call.OutcomeObserver | None = None,
) -> NriSession | NriConnectError:
    """Connect, register and synchronize within the connect timeout; what does not come about is closed entirely."""
    session: NriSession | None = None
    established = False
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            reader, writer = await asyncio.open_unix_connection(settings.socket_path)
            session = NriSession(reader, writer, settings, handler, clock, on_outcome)
            error = await session.establish()
        established = error is None
        return error or session
    except TimeoutError:
        stage = "connect" if session is None else "synchronize"
        return NriConnectError(stage, f"not done after {settings.connect_timeout_s:g} s")
    except OSError as failed:
        return NriConnectError("connect", f"{settings.socket_path}: {failed.strerror or failed}")
    finally:
        if session is not None and not established:
            await session.close()


def _failure(code: int, text: str) -> TtrpcResponse:
    return TtrpcResponse(status=error_status(code, text))


async def _await_and_answer_empty(method: Callable[..., Awaitable[None]], *args: object) -> bytes:
    await method(*args)
    return b""


def _pod_text(pod: NriPodSandbox) -> str:
    return f"pod {pod.namespace}/{pod.name}"


def _complete_pod(told: NriPodSandbox, seen: NriPodSandbox | None) -> NriPodSandbox:
    """Return the pod with the annotations and cgroup that it had when it was seen, where the runtime omits them."""
    if seen is None:
        return told
    complete = told.linux is not None and told.linux.cgroups_path
    return msgspec.structs.replace(
        told,
        annotations=told.annotations or seen.annotations,
        linux=told.linux if complete else seen.linux or told.linux,
    )
