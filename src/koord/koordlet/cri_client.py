"""A client of the container runtime's CRI that stops the containers of one pod.

This module imports gRPC, which is an optional dependency: only an agent that evicts by CRI imports it.
"""

from __future__ import annotations

import asyncio
import os

import grpc
import grpc.aio
import msgspec

from koord.koordlet.settings import CriEvictionSettings, PodNotStopped, PodStopped
from koord.wire import cri
from koord.wire.cri import PodContainer
from koord.wire.raw_fields import MalformedMessage

# gRPC would wait up to two minutes before it tries a runtime again that was restarted.
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),  # what the kubelet takes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class _CallFailed(msgspec.Struct, frozen=True):
    code: grpc.StatusCode
    reason: str


class CriClient:
    """CriClient stops pods through whichever runtime of the node has their containers."""

    def __init__(self, settings: CriEvictionSettings) -> None:
        self._settings = settings
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def stop_pod(self, uid: str) -> PodStopped | PodNotStopped:
        """Stop all containers of the pod of that UID, at the same time, so that it takes one grace period."""
        present = self._present_endpoints()
        if not present:
            return PodNotStopped(f"no container runtime has a socket at {', '.join(self._settings.endpoints)}")
        problems: list[str] = []
        for endpoint in present:
            found = await self._containers(endpoint, uid)
            if isinstance(found, str):
                problems.append(f"{endpoint}: {found}")
            elif found:
                return await self._stop(endpoint, found)
        return PodNotStopped("; ".join(problems) or "the runtime has no running container of it")

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _present_endpoints(self) -> list[str]:
        return [endpoint for endpoint in self._settings.endpoints if os.path.exists(endpoint)]

    async def _containers(self, endpoint: str, uid: str) -> list[PodContainer] | str:
        """Return the pod's running containers, or why they are not known."""
        reply = await self._call(endpoint, "ListContainers", cri.list_containers_of_pod(uid), self._settings.timeout_s)
        if isinstance(reply, _CallFailed):
            return reply.reason
        listed = cri.pod_containers(reply)
        if isinstance(listed, MalformedMessage):
            return f"ListContainers: its answer {listed}"
        # A runtime that does not know the filter lists everything: nobody else's container may be stopped.
        return [one for one in listed if one.pod_uid == uid and one.can_be_stopped]

    async def _stop(self, endpoint: str, containers: list[PodContainer]) -> PodStopped | PodNotStopped:
        results = await asyncio.gather(*(self._stop_one(endpoint, one) for one in containers))
        problems = [f"container {one.name}: {why}" for one, why in zip(containers, results) if why]
        stopped = tuple(sorted(one.name for one, why in zip(containers, results) if not why))
        if not problems:
            return PodStopped(stopped)
        return PodNotStopped("; ".join(problems) + (f"; stopped: {', '.join(stopped)}" if stopped else ""))

    async def _stop_one(self, endpoint: str, container: PodContainer) -> str:
        """Return why the container is not stopped, or nothing. One that is gone by now is stopped."""
        settings = self._settings
        message = cri.stop_container(container.id, settings.grace_s)
        reply = await self._call(endpoint, "StopContainer", message, settings.timeout_s + settings.grace_s)
        if isinstance(reply, _CallFailed) and reply.code is not grpc.StatusCode.NOT_FOUND:
            return reply.reason
        return ""

    async def _call(self, endpoint: str, method: str, message: bytes, limit_s: float) -> bytes | _CallFailed:
        call = self._channel(endpoint).unary_unary(cri.runtime_method(method))
        try:
            reply: bytes = await call(message, timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            return _CallFailed(error.code(), f"{method}: {error.code().name}: {error.details()}")
        return reply

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        found = self._channels.get(endpoint)
        if found is None:
            found = grpc.aio.insecure_channel(f"unix://{endpoint}", options=_CHANNEL_OPTIONS)
            self._channels[endpoint] = found
        return found
