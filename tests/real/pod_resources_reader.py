"""A reader of pod resources such as an exporter, over either socket."""

from __future__ import annotations

from pathlib import Path

import grpc

from koord.wire import pod_resources, raw_fields
from koord.wire.pod_resources import ContainerDevices


class PodResourcesReader:
    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")

    def call(self, method: str, message: bytes = b"") -> bytes:
        answer: bytes = self._channel.unary_unary(method)(message, timeout=30, wait_for_ready=True)
        return answer

    def pods(self, method: str = pod_resources.LIST, message: bytes = b"") -> dict[str, bytes]:
        """Return each PodResources by the pod's name."""
        found = raw_fields.chunks_of(self.call(method, message), 1)
        return {raw_fields.string_of(pod, 1): pod for pod in found}

    def close(self) -> None:
        self._channel.close()


def devices(pod: bytes) -> list[ContainerDevices]:
    """Return the devices of the pod's first container."""
    return pod_resources.devices_of(raw_fields.chunks_of(pod, 3)[0])
