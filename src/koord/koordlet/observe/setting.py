"""What the strategies look at that keep settings in place: memory, disks, caches, identities and the whole machine."""

from __future__ import annotations

from koord.api.qos_class import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.api.resource_name import MEMORY
from koord.api.slo_strategy import ResourceQOSStrategy
from koord.koordlet.observe.scene import Scene
from koord.koordlet.strategies import file
from koord.koordlet.strategies.blkio import THROTTLES, BlkioView
from koord.koordlet.strategies.group_identity import OWNER as IDENTITY
from koord.koordlet.strategies.group_identity import IdentityView
from koord.koordlet.strategies.memory_qos import MemoryQosView
from koord.koordlet.strategies.resctrl import GROUPS as CACHE_GROUPS
from koord.koordlet.strategies.resctrl import ResctrlView
from koord.koordlet.strategies.slo import class_of
from koord.koordlet.strategies.system_config import SystemConfigView

_DISK_FILES = (*THROTTLES, file.IO_WEIGHT, file.IO_QOS, file.IO_MODEL)


def observe_memory_qos(scene: Scene) -> MemoryQosView:
    """Observe the node's memory and the pods with their groups."""
    shape = scene.machine.shape
    return MemoryQosView(
        strategy=_strategy(scene),
        allocatable_bytes=scene.allocatable(MEMORY),
        pods=scene.pods,
        groups=dict(shape.groups),
        page_bytes=shape.page_bytes,
    )


def observe_system_config(scene: Scene) -> SystemConfigView:
    """Observe the system strategy and the node's memory."""
    slo = scene.facts.slo
    return SystemConfigView(
        strategy=None if slo is None else slo.system_strategy,
        capacity_bytes=scene.capacity(MEMORY),
        identity_taken=IDENTITY in scene.gates,
    )


def observe_resctrl(scene: Scene) -> ResctrlView:
    """Observe the cache, and the threads of pods and of resctrl groups."""
    machine, strategy = scene.machine, _strategy(scene)
    cache = machine.shape.cache
    enabled = strategy is not None and cache.is_divisible and any(_moves(strategy, one) for one in CACHE_GROUPS)
    pods = [pod for pod in scene.pods if pod.is_alive and pod.group] if enabled else []
    return ResctrlView(
        strategy=strategy,
        supported=cache.is_divisible,
        cache_mask=cache.mask,
        vendor=cache.vendor,
        caches=cache.ids,
        pods=scene.pods,
        # Every group in the pod's, so that of the sandbox as well.
        tasks={
            pod.uid: tuple(task for group in machine.below(pod.group) for task in machine.threads(group))
            for pod in pods
        },
        held={group: machine.cached_threads(group) for group in CACHE_GROUPS} if enabled else {},
    )


def observe_blkio(scene: Scene) -> BlkioView:
    """Observe the disks, the pods' volumes and the limits that exist now."""
    machine, besteffort = scene.machine, scene.machine.shape.besteffort
    groups = [besteffort, *(pod.group for pod in scene.pods if pod.group)]
    limited = {group: disks for group in ("", *groups) if (disks := machine.limited_disks(group))}
    return BlkioView(
        strategy=_strategy(scene),
        disks=machine.shape.disks,
        besteffort=besteffort,
        root="",
        pods=scene.pods,
        mounts=scene.facts.mounts,
        supported=frozenset(name for name in _DISK_FILES if machine.has(name)),
        present=limited,
    )


def observe_group_identity(scene: Scene) -> IdentityView:
    """Observe the kernel's switches and all groups that have an identity."""
    machine, slo = scene.machine, scene.facts.slo
    shape = machine.shape
    has_bvt = machine.has(file.CPU_BVT)
    pods = tuple(pod for pod in scene.pods if pod.group and pod.is_alive)
    system = None if slo is None else slo.system_strategy
    return IdentityView(
        strategy=_strategy(scene),
        has_bvt=has_bvt,
        identity_switch=scene.number("", file.GROUP_IDENTITY_ENABLED),
        identity_wish=None if system is None else system.sched_group_identity_enabled,
        core_switch=scene.number("", file.SCHED_CORE),
        has_idle=machine.has(file.CPU_IDLE),
        idle_stands_in=scene.settings.idle_stands_in,
        idle=scene.number(shape.besteffort, file.CPU_IDLE),
        groups=shape.groups,
        pods=pods,
        children={pod.group: machine.below(pod.group) for pod in pods} if has_bvt else {},
        leftovers=_leftovers(scene) if has_bvt else (),
        applications=_applications(scene) if has_bvt else (),
    )


def _strategy(scene: Scene) -> ResourceQOSStrategy | None:
    """Return the resource QoS strategy of the NodeSLO; None until a NodeSLO was seen."""
    return None if scene.facts.slo is None else scene.facts.slo.resource_qos_strategy


def _moves(strategy: ResourceQOSStrategy | None, qos: str) -> bool:
    """Return whether the class is enabled to have its threads moved into a resctrl group."""
    block = None if strategy is None else class_of(strategy, qos)
    return block is not None and block.resctrl_qos is not None and bool(block.resctrl_qos.enable)


def _leftovers(scene: Scene) -> tuple[tuple[str, str], ...]:
    """Return the groups of pods that exist on the machine and in no list, with their Kubernetes QoS class."""
    shape = scene.machine.shape
    if shape.layout is None:
        return ()
    known = {pod.group for pod in scene.pods}
    return tuple(
        (group, kube_qos)
        for kube_qos in (GUARANTEED, BURSTABLE, BEST_EFFORT)
        for group in scene.machine.below(shape.groups.get(kube_qos, ""))
        if group not in known and shape.layout.pod_of(group.rpartition("/")[2]) is not None
    )


def _applications(scene: Scene) -> tuple[tuple[str, str], ...]:
    slo, layout = scene.facts.slo, scene.machine.shape.layout
    if slo is None or layout is None:
        return ()
    found: list[tuple[str, str]] = []
    for one in slo.host_applications:
        path = one.cgroup_path
        group = layout.host_application_dir(
            one.name,
            one.qos,
            None if path is None else path.base,
            "" if path is None else path.parent_dir,
            "" if path is None else path.relative_path,
        )
        found.append((group, one.qos))
    return tuple(found)
