"""Messages about gangs, word for word as Koordinator prints them."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.koordinator.protocol import A_GANG_NETWORK_TOPOLOGY_SPEC
from koord.scheduler.plugins.coscheduling.gang_cache import Gang, GangCache, GangGroup
from koord.values.go_format import quoted

GANG_NOT_FOUND = "gang is nil, may be already deleted"
ALL_MEMBERS_ATTEMPTED = "all pending pods is already been attempted"
GANG_SUCCEEDED = "gang is already succeed"


def gang_not_found(gang_id: str, pod: str) -> str:
    return f"can't find gang, gangName: {gang_id}, podName: {pod}"


def gang_not_initialized(gang_id: str, pod: str) -> str:
    return f"gang has not init, gangName: {gang_id}, podName: {pod}"


def group_incomplete(gangs: GangCache, group: GangGroup, gang: Gang, pod: str) -> str:
    """Return why the gangs of a group cannot be tried yet; "" when they can."""
    missing = [gang_id for gang_id in group.gangs if gang_id not in gangs.gangs]
    unset = [other.id for other in gangs.gangs_in_group(group) if other.spec is None]
    parts = []
    if missing:
        parts.append(f"memberGangs {_bracketed(missing)} doesn't exists")
    if unset:
        parts.append(f"memberGangs {_bracketed(unset)} has not init")
    if any(other.spec is not None and not other.is_complete for other in gangs.gangs_in_group(group)):
        parts.append(f"memberGangs {_bracketed(group.gangs)} child pod not collect enough")
    if not parts:
        return ""
    whole = _bracketed(group.gangs)
    return f"gangGroup {whole} basic check: {', '.join(parts)}, current gang: {gang.id}, podName: {pod}"


def group_is_scheduling(group_id: str) -> str:
    return f"gangGroup {group_id} is scheduling and this pod has not been attempted"


def has_representative(representative: str, group_id: str) -> str:
    return f"representative pod {representative} of gangGroupID {group_id} already exists"


def member_not_pending(pod: str) -> str:
    return f"pod {pod} is not exists in gangCache"


def group_rejected(group_id: str, pod: str, reason: str, waiting: int) -> str:
    return (
        f"GangGroup {quoted(group_id)} gets rejected due to member Pod {quoted(pod)} is unschedulable with reason "
        f"{quoted(reason)}, alreadyWaitForBound: {waiting}"
    )


def batch_failed(assumed: int, failed: int, pod: str, node: str, reason: str) -> str:
    """Return the message for members that were to take their planned nodes in one go."""
    return (
        f"job failed due to job batch schedule failed, assumed {assumed} pods, failed {failed} pods, "
        f"first failed pod {pod}@{node} failed due to {reason}"
    )


def topology_ignored(profile: str) -> str:
    """Return what is told of a gang whose rules for the network nobody reads."""
    return (
        f"{A_GANG_NETWORK_TOPOLOGY_SPEC} is ignored: the arguments of Coscheduling in profile {profile} do not set "
        "awareNetworkTopology: true"
    )


def member_unreserved(gang_id: str, pod: str) -> str:
    return f"Gang {quoted(gang_id)} gets rejected due to Pod {quoted(pod)} in Unreserve"


def _bracketed(ids: Iterable[str]) -> str:
    return f"[{' '.join(ids)}]"
