"""How much CPU best-effort work may have, so that the node stays under its ceiling; by CPU sets or by quota.

Switched off, both are given back. What the node used and where groups lie arrives in the view.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.config.slo.defaults import CFS_QUOTA
from koord.api.qos_class import BE, LSE, LSR
from koord.koordlet.plan import UNLIMITED, Effect, Plan, WriteCgroup
from koord.koordlet.pod import PodView
from koord.koordlet.strategies.file import CPU_QUOTA, CPUSET
from koord.koordlet.strategies.processor import Processor, pick_between
from koord.values.cpuset import EMPTY, CPUSet

OWNER = "CPUSuppresss"  # upstream's name of the strategy, spelled so on the wire
CAUSE = "AdjustBEByNodeCPUUsage"
FLOOR_US = 2_000
FEWEST_CPUS = 2
BESTEFFORT_BASE = "KubepodsBesteffort"
ROOT, PODS, CONTAINERS = 0, 1, 2  # depths below the BE root


class Application(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The usage of a process outside of pods."""

    name: str
    used_milli: int
    qos: str = ""
    base: str = ""  # of its cgroup path

    @property
    def is_best_effort(self) -> bool:
        return self.qos == BE and self.base == BESTEFFORT_BASE


class BeGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A cgroup below the BE root."""
    path: str
    depth: int
    pod: str = ""  # uid


class SuppressView(msgspec.Struct, frozen=True, kw_only=True):
    """What the strategy observes. `enabled` is None until a NodeSLO was seen; a deleted or silent NodeSLO is False."""

    enabled: bool | None = None
    cpu_manager: bool = False  # whether BE pods are given CPUs of their own instead
    policy: str = "cpuset"
    threshold_percent: int = 65
    min_percent: int | None = None
    capacity_milli: int | None = None
    allocatable_milli: int | None = None
    reservation_milli: int = 0  # of the node's annotation
    node_used_milli: int | None = None
    pods: tuple[PodView, ...] = ()
    pod_used_milli: Mapping[str, int] = {}  # by uid
    applications: tuple[Application, ...] = ()
    processors: tuple[Processor, ...] = ()
    reserved_cpus: CPUSet = EMPTY
    exclusive_cpus: CPUSet = EMPTY  # of system QoS
    kubelet_static: bool = False
    groups: tuple[BeGroup, ...] = ()  # parents before children, the BE root first
    quota_us: int | None = None  # of the BE root now
    cpuset: CPUSet = EMPTY  # of the BE root now
    # cgroup v1 refuses a quota below that of a child; the largest of those, when they are bounded.
    least_quota_us: int = 0


class Room(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much CPU BE may use now, and why."""
    milli: int
    non_be_pods_milli: int
    why: str


def be_room(seen: SuppressView) -> Room | None:
    """Compute what BE may use now; None when the node or its usage is not known."""
    if not seen.capacity_milli or seen.node_used_milli is None:
        return None
    best_effort = {pod.uid for pod in seen.pods if pod.is_best_effort}
    used = seen.pod_used_milli
    of_pods = sum(milli for uid, milli in used.items() if uid not in best_effort)
    of_applications = sum(one.used_milli for one in seen.applications if not one.is_best_effort)
    explained = sum(used.values()) + sum(one.used_milli for one in seen.applications)
    unallocatable = 0 if seen.allocatable_milli is None else max(0, seen.capacity_milli - seen.allocatable_milli)
    system = max(seen.node_used_milli - explained, unallocatable, seen.reservation_milli, 0)
    room = seen.capacity_milli * seen.threshold_percent // 100 - of_pods - of_applications - system
    why = (
        f"{seen.threshold_percent}% of {seen.capacity_milli}m less {of_pods}m of other pods,"
        f" {of_applications}m of applications and {system}m of the system leaves {room}m"
    )
    if seen.min_percent is not None and room < (least := seen.capacity_milli * seen.min_percent // 100):
        room, why = least, f"{why}, raised to {seen.min_percent}% of the node = {least}m"
    return Room(milli=room, non_be_pods_milli=of_pods, why=why)


def decide_suppress(seen: SuppressView) -> Plan:
    """Decide the cpuset or the quota of BE."""
    if seen.enabled is None:
        return Plan(why="no NodeSLO was seen yet")
    if not seen.enabled or seen.cpu_manager:
        why = "CPUs of BE pods are managed one by one" if seen.enabled else "suppression is off"
        return Plan(effects=(*_free_quota(seen, why), *_free_cpuset(seen, why)), why=why)
    room = be_room(seen)
    if room is None or not seen.processors or not seen.groups:
        return Plan(why="what the node has or uses is not known")
    figures = {"be_suppress_ls_used_cpu_cores": room.non_be_pods_milli / 1000}
    if seen.policy == CFS_QUOTA:
        quota, why = decide_quota(seen, room)
        writes: tuple[Effect, ...] = () if quota is None else (_quota(seen, quota, why),)
        shown = seen.quota_us if quota is None else quota
        if shown is not None and shown != UNLIMITED:
            figures["be_suppress_cpu_cores"] = shown / 100_000
        return Plan(effects=(*writes, *_free_cpuset(seen, "the policy is cfsQuota")), why=why, figures=figures)
    cpus, why = decide_cpuset(seen, room)
    figures["be_suppress_cpu_cores"] = len(cpus or seen.cpuset)
    freed = _free_quota(seen, "the policy is cpuset")
    return Plan(effects=(*_set_cpus(seen, cpus, why), *freed), why=why, figures=figures)


def decide_quota(seen: SuppressView, room: Room) -> tuple[int | None, str]:
    """Decide the quota of the BE root in microseconds; None leaves it, as a change under 1% of the node is jitter."""
    cores = -(-(seen.capacity_milli or 0) // 1000)
    target = max(room.milli * 100, FLOOR_US)
    why = f"{room.why}: {target}us"
    now = seen.quota_us
    if target < seen.least_quota_us:
        target, why = seen.least_quota_us, f"{why}, but a group below has {seen.least_quota_us}us"
    if now is None or now == UNLIMITED:  # a sentinel, not a size: comparing it would hide that nothing is held
        return target, why
    if target == now or (abs(target - now) < cores * 1000 and target != FLOOR_US):
        return None, f"{why}, now {now}us"
    if target - now > cores * 10_000:
        target, why = now + cores * 10_000, f"{why}, reached by 10% of the node a tick from {now}us"
    return target, why


def decide_cpuset(seen: SuppressView, room: Room) -> tuple[CPUSet, str]:
    """Decide the CPUs of BE; none when the node has none to give, and then nothing must be written."""
    want = max(-(-room.milli // 1000), FEWEST_CPUS)
    growth = len(seen.cpuset) + -(-len(seen.processors) // 10)
    lse, lsr = (_cpus_of(seen, qos) for qos in (LSE, LSR))
    barred = seen.reserved_cpus | seen.exclusive_cpus | lse
    free = [one for one in seen.processors if one.cpu not in barred] if barred else seen.processors
    theirs = [one for one in free if one.cpu in lsr] if lsr else ()
    chosen = pick_between(min(want, growth), theirs, [one for one in free if one.cpu not in lsr] if lsr else free)
    limit = f", at most {growth} this tick" if want > growth else ""
    return chosen, f"{room.why}: {want} CPUs of {len(free)}{limit}"


def unsuppressed(seen: SuppressView) -> CPUSet:
    """Return the CPUs that BE may use without suppression."""
    every = CPUSet.of(one.cpu for one in seen.processors)
    return every - seen.exclusive_cpus - seen.reserved_cpus - _cpus_of(seen, LSE)


def _cpus_of(seen: SuppressView, qos: str) -> CPUSet:
    return CPUSet.of(cpu for pod in seen.pods if pod.qos == qos for cpu in pod.cpuset)


def _set_cpus(seen: SuppressView, cpus: CPUSet, why: str) -> list[Effect]:
    if not cpus:
        return []
    if not seen.kubelet_static:
        return _resize(seen, seen.groups, cpus, why)
    # The kubelet's own CPU manager writes the upper levels, so only containers are narrowed.
    upper = [group for group in seen.groups if group.depth < CONTAINERS]
    lower = [group for group in seen.groups if group.depth == CONTAINERS]
    widened = _resize(seen, upper, unsuppressed(seen), "the kubelet's CPU manager is static")
    narrow = str(cpus)
    return [*widened, *(_cpuset(group, narrow, why) for group in lower)]


def _free_cpuset(seen: SuppressView, why: str) -> list[Effect]:
    pinned = {pod.uid for pod in seen.pods if pod.is_pinned} if seen.cpu_manager else frozenset[str]()
    groups = [group for group in seen.groups if group.depth < CONTAINERS or group.pod not in pinned]
    return _resize(seen, groups, unsuppressed(seen), why)


def _free_quota(seen: SuppressView, why: str) -> list[Effect]:
    return [_quota(seen, UNLIMITED, why)] if seen.groups and seen.quota_us not in (None, UNLIMITED) else []


def _resize(seen: SuppressView, groups: list[BeGroup] | tuple[BeGroup, ...], cpus: CPUSet, why: str) -> list[Effect]:
    """Return writes in a safe order: parents hold the old and the new CPUs until all below have changed, so that no
    child ever has a CPU that its parent lacks.
    """
    if not cpus:
        return []
    both = seen.cpuset | cpus
    wide, narrow = str(both), str(cpus)
    widened = [] if both == cpus else [_cpuset(group, wide, why) for group in groups]
    order = groups if both == cpus else reversed(groups)
    return [*widened, *(_cpuset(group, narrow, why) for group in order)]


def _cpuset(group: BeGroup, cpus: str, why: str) -> WriteCgroup:
    return WriteCgroup(group=group.path, file=CPUSET, value=cpus, owner=OWNER, cause=CAUSE, why=why)


def _quota(seen: SuppressView, quota_us: int, why: str) -> WriteCgroup:
    return WriteCgroup(
        group=seen.groups[0].path, file=CPU_QUOTA, value=str(quota_us), owner=OWNER, cause=CAUSE, why=why
    )
