"""The interfaces by which the evictor stops what is not evicted through the API server: a pod's containers through the
container runtime, with its settings, and containers of other orchestrators.
"""

from __future__ import annotations

import importlib.util
from typing import Protocol

import msgspec

CALL_TIMEOUT_S = 5.0
MAX_GRACE_S = 10  # a later victim is dropped when it had to wait for longer than its numbers are good for


class CriEvictionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The sockets at which a runtime may be, the first that has the pod counts, and the grace period of containers."""

    endpoints: tuple[str, ...]
    grace_s: int = 0
    timeout_s: float = CALL_TIMEOUT_S  # of one call, beside the grace period


class PodStopped(msgspec.Struct, frozen=True):
    containers: tuple[str, ...]


class PodNotStopped(msgspec.Struct, frozen=True):
    """PodNotStopped says why at least one container of a pod may still run."""

    reason: str


class PodStopper(Protocol):
    async def stop_pod(self, uid: str) -> PodStopped | PodNotStopped: ...

    async def close(self) -> None: ...


class ThirdPartyKiller(Protocol):
    """ThirdPartyKiller kills containers of another orchestrator, by uid."""

    async def kill(self, uid: str) -> str | None:
        """Kill one. Return None when it is gone, else why not."""
        ...

    async def is_running(self, uid: str) -> bool | str:
        """Return whether it is still there, or why that is not known."""
        ...


def missing_requirement() -> str:
    """Return what eviction by CRI lacks in this installation, or nothing."""
    if importlib.util.find_spec("grpc") is not None:
        return ""
    return (
        "--only-evict-by-api=false: eviction by CRI needs gRPC, which is not installed; it comes with the extra `hooks`"
    )
