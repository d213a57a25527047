"""Read who uses a claim, and make the writes of its status: allocate and reserve it, release it, deallocate it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import RESOURCE_CLAIMS
from koord.api.kubernetes.dynamic_resources import AllocationResult, ResourceClaim
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.verdict import Fault, StatusWrite

FINALIZER = "resource.kubernetes.io/delete-protection"
MAX_CONSUMERS = 256


def key(claim: ResourceClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def is_reserved_for(claim: ResourceClaim, pod_uid: str) -> bool:
    return any(consumer.uid == pod_uid for consumer in claim.status.reserved_for)


def has_room(claim: ResourceClaim) -> bool:
    """Return whether one more pod may use an allocated claim."""
    return len(claim.status.reserved_for) < MAX_CONSUMERS


def is_used_by_nobody_but(claim: ResourceClaim, pod_uid: str) -> bool:
    return all(consumer.uid == pod_uid for consumer in claim.status.reserved_for)


def as_allocated(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim as it would be with devices, for an event that says that they are free again."""
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=AllocationResult()))


def reservation(
    claim: ResourceClaim, pod: PodInfo, result: dict[str, Any] | None, on_written: Callable[[ResourceClaim], None]
) -> StatusWrite:
    """Reserve a claim for a pod; `result` is the allocation to write with it, None where it has one already."""

    def make_status(live: ResourceClaim) -> dict[str, Any] | Fault | None:
        if live.metadata.deletion_timestamp is not None:
            return Fault(f"claim {key(live)} got deleted in the meantime")
        if is_reserved_for(live, pod.uid):
            return None
        if result is not None and live.status.allocation is not None:
            return Fault(f"claim {key(live)} got allocated elsewhere in the meantime")
        if result is None and live.status.allocation is None:
            return Fault(f"claim {key(live)} got deallocated elsewhere in the meantime")
        if not has_room(live):
            return Fault(f"claim {key(live)} is in use by {MAX_CONSUMERS} others")
        consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
        users = [*msgspec.to_builtins(live.status.reserved_for), consumer]
        return {"reservedFor": users} if result is None else {"allocation": result, "reservedFor": users}

    return _status_write(
        claim,
        make_status,
        lambda live: is_reserved_for(live, pod.uid),
        finalizer=FINALIZER if result is not None else "",
        on_written=on_written,
    )


def release(
    claim: ResourceClaim,
    pod_uid: str,
    on_written: Callable[[ResourceClaim], None],
    on_failed: Callable[[Fault], None],
) -> StatusWrite:
    """Take a pod off the users of a claim."""

    def make_status(live: ResourceClaim) -> dict[str, Any] | None:
        if not is_reserved_for(live, pod_uid):
            return None
        users = [consumer for consumer in live.status.reserved_for if consumer.uid != pod_uid]
        return {"reservedFor": msgspec.to_builtins(users) or None}

    return _status_write(
        claim,
        make_status,
        lambda live: not is_reserved_for(live, pod_uid),
        on_written=on_written,
        on_failed=on_failed,
    )


def deallocation(claim: ResourceClaim, pod_uid: str) -> StatusWrite:
    """Give back the devices of a claim that nobody but the pod uses."""

    def make_status(live: ResourceClaim) -> dict[str, Any] | Fault | None:
        if live.status.allocation is None:
            return None
        if not is_used_by_nobody_but(live, pod_uid):
            return Fault(f"claim {key(live)} got reserved for others in the meantime")
        return {"allocation": None, "reservedFor": None, "devices": None}

    return _status_write(claim, make_status, lambda live: live.status.allocation is None)


def _status_write(
    claim: ResourceClaim,
    make_status: Callable[[ResourceClaim], dict[str, Any] | Fault | None],
    is_written: Callable[[ResourceClaim], bool],
    *,
    finalizer: str = "",
    on_written: Callable[[ResourceClaim], None] | None = None,
    on_failed: Callable[[Fault], None] | None = None,
) -> StatusWrite:
    meta = claim.metadata
    return StatusWrite(
        RESOURCE_CLAIMS,
        meta.namespace,
        meta.name,
        meta.uid,
        make_status,
        is_written,
        finalizer=finalizer,
        known=claim,
        on_written=on_written,
        on_failed=on_failed,
    )
