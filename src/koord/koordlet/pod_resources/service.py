"""The server of `v1.PodResourcesLister` on a Unix socket: every call passes to the kubelet, and devices are added to
what List and Get answer. It needs gRPC, which only an agent with this proxy imports.

The devices of a pod by the annotation device-allocated, under the names that readers of pod resources expect.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import AllocatedDevice, parse_device_allocated
from koord.api.koordinator.scheduling import GPU
from koord.host.unix_socket import NotExclusive, SocketClaim, claim_socket
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.pod_resources.settings import PodResourcesProxySettings
from koord.koordlet.problem_log import ProblemLog
from koord.telemetry.clock import Clock
from koord.wire import pod_resources
from koord.wire.pod_resources import ContainerDevices
from koord.wire.raw_fields import MalformedMessage

_RESOURCE_NAMES = {GPU: "nvidia.com/gpu"}
_PREFIX = "koordinator.sh/"


def allocated_devices(annotations: Mapping[str, str]) -> list[ContainerDevices]:
    """Return the devices by resource name. A pod without the annotation, or with one that cannot be read, has none:
    what the kubelet says of it stays as it is.
    """
    allocated = parse_device_allocated(annotations)
    if allocated is None or isinstance(allocated, MalformedAnnotation):
        return []
    found = [
        ContainerDevices(
            resource_name=_RESOURCE_NAMES.get(kind, f"{_PREFIX}{kind}"),
            device_ids=tuple(dict.fromkeys(id for device in devices for id in _ids(device))),
        )
        for kind, devices in sorted(allocated.items())
    ]
    return [one for one in found if one.device_ids]


def _ids(device: AllocatedDevice) -> tuple[str, ...]:
    """Return the bus addresses of the virtual functions, or the card's own id where the pod has none of them."""
    virtual = () if device.extension is None else device.extension.vfs
    ids = tuple(one.bus_id for one in virtual) or (device.id,)
    return tuple(id for id in ids if id)


_LOG = logging.getLogger(__name__)

RETRY_S = 10.0
SERVED = "served"
STOP_GRACE_S = 2.0
MAX_MESSAGE_BYTES = 16 << 20  # what readers of the kubelet's own socket take
_ENRICHED = frozenset({pod_resources.LIST, pod_resources.GET, pod_resources.LIST_V1ALPHA1})
_SOCKET_UMASK = 0o117  # root and its group
_LIMITS = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", -1))
# gRPC would wait up to two minutes before it tries a kubelet again that was restarted.
_CHANNEL_OPTIONS = (
    *_LIMITS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
# A refresh asks the kubelet for its pods now; what it learns is in the pods afterwards.
Refresh = Callable[[], Awaitable[None]]


class PodResourcesServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """PodResourcesServer is a running server. `start` returns it or why it cannot run; `stop` ends it."""

    def __init__(
        self,
        settings: PodResourcesProxySettings,
        claim: SocketClaim,
        pods: Callable[[], tuple[PodMeta, ...] | None],
        refresh: Refresh,
    ) -> None:
        self._settings = settings
        self._claim = claim
        self._pods = pods
        self._refresh = refresh
        self._seen: tuple[PodMeta, ...] | None = None
        self._devices: Mapping[tuple[str, str], list[ContainerDevices]] = {}
        self._given_up: set[tuple[str, str]] = (
            set()
        )  # pods that the agent cannot learn of: no call waits for them again
        self._channel = grpc.aio.insecure_channel(f"unix://{settings.kubelet_socket}", options=_CHANNEL_OPTIONS)
        self._server = grpc.aio.server(options=_LIMITS)
        self._server.add_generic_rpc_handlers((self,))

    @staticmethod
    async def start(
        settings: PodResourcesProxySettings, pods: Callable[[], tuple[PodMeta, ...] | None], refresh: Refresh
    ) -> PodResourcesServer | NotExclusive:
        """Serve the socket. A socket file that no server answers on is removed first."""
        claim = claim_socket(settings.socket)
        if isinstance(claim, NotExclusive):
            return claim
        server = PodResourcesServer(settings, claim, pods, refresh)
        before = os.umask(_SOCKET_UMASK)
        try:
            server._server.add_insecure_port(f"unix://{settings.socket}")
        except RuntimeError as error:
            await server._channel.close()
            claim.release()
            return NotExclusive(f"cannot bind {settings.socket}: {error}")
        finally:
            os.umask(before)
        await server._server.start()
        return server

    async def stop(self) -> None:
        """Take no more calls, let those under way end for a while, and remove the socket."""
        await self._server.stop(STOP_GRACE_S)
        await self._channel.close()
        self._claim.release()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of any method; one that the kubelet does not have is refused by the kubelet."""
        method: str = details.method

        async def unary(message: bytes, context: Any) -> bytes:
            return await self._unary(method, message, context)

        return grpc.unary_unary_rpc_method_handler(unary)

    async def _unary(self, method: str, message: bytes, context: Any) -> bytes:
        try:
            answer: bytes = await self._channel.unary_unary(method)(message, timeout=context.time_remaining())
        except grpc.aio.AioRpcError as error:
            return await context.abort(error.code(), error.details() or "")  # type: ignore[no-any-return]
        if method not in _ENRICHED:
            return answer
        changed = await self._enriched(answer)
        if isinstance(changed, MalformedMessage):
            text = f"the kubelet's answer cannot be read: {changed}"
            return await context.abort(grpc.StatusCode.INTERNAL, text)  # type: ignore[no-any-return]
        return changed

    async def _enriched(self, answer: bytes) -> bytes | MalformedMessage:
        listed = pod_resources.listed_pods(answer)
        if isinstance(listed, MalformedMessage):
            return listed
        unknown = set(listed) - self._current().keys()
        if unknown - self._given_up:
            # A network plugin asks before the agent has heard of the pod: without its devices the pod would not start.
            await self._wait_for_pods(unknown)
        self._given_up = unknown - self._current().keys()
        devices = self._current()
        return pod_resources.add_devices(answer, lambda namespace, name: devices.get((namespace, name), ()))

    async def _wait_for_pods(self, wanted: set[tuple[str, str]]) -> None:
        """Ask for the pods until all are known; the second answer is surely newer than this call."""
        try:
            async with asyncio.timeout(self._settings.refresh_s):
                for _ in range(2):
                    await self._refresh()
                    if self._current().keys() >= wanted:
                        return
        except TimeoutError:
            _LOG.warning("the kubelet did not tell its pods in time: devices of new pods are not listed yet")

    def _current(self) -> Mapping[tuple[str, str], list[ContainerDevices]]:
        """Return the devices of all known pods, decoded once per change of the pods."""
        pods = self._pods()
        if pods is not self._seen:
            self._seen = pods
            self._devices = {(pod.namespace, pod.name): allocated_devices(pod.annotations) for pod in pods or ()}
        return self._devices


class PodResourcesProxy:
    """PodResourcesProxy keeps the server running for the agent's life. Run it in a task; `state` is for people."""

    def __init__(
        self,
        settings: PodResourcesProxySettings,
        clock: Clock,
        pods: Callable[[], tuple[PodMeta, ...] | None],
        refresh: Refresh,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._pods = pods
        self._refresh = refresh
        self.state = "not started yet"
        self._problems = ProblemLog(
            _LOG,
            "the pod resources are not served",
            f"pod resources are served on {settings.socket}",
            begins_unknown=True,
        )

    async def run(self) -> None:
        """Serve as soon as the socket can be had, until cancelled."""
        server = await PodResourcesServer.start(self._settings, self._pods, self._refresh)
        while isinstance(server, NotExclusive):
            self.state = str(server)
            self._problems.fails(server)
            await self._clock.sleep(RETRY_S)
            server = await PodResourcesServer.start(self._settings, self._pods, self._refresh)
        self.state = SERVED
        self._problems.works()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.state = "ended"
            await server.stop()
