"""The settings of the PodResources proxy, apart from its server, which needs gRPC."""

from __future__ import annotations

import importlib.util

import msgspec

FOLDER = "/var/run/koordlet/pod-resources"
SOCKET = "kubelet.sock"


class PodResourcesProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The sockets of the proxy and of the kubelet; `refresh_s` is how long a call waits for a pod that is new."""

    socket: str = f"{FOLDER}/{SOCKET}"
    kubelet_socket: str = f"/var/lib/kubelet/pod-resources/{SOCKET}"
    refresh_s: float = 3.0


def missing_requirement() -> str:
    """Return what the proxy lacks in this installation, or nothing."""
    if importlib.util.find_spec("grpc") is not None:
        return ""
    return "the gate PodResourcesProxy needs gRPC, which is not installed; it comes with the extra `hooks`"
