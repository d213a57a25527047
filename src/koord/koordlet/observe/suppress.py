"""What suppression of best-effort CPU looks at."""

from __future__ import annotations

from koord.api.config.slo.defaults import THRESHOLD
from koord.api.resource_name import CPU
from koord.koordlet.observe.scene import Scene
from koord.koordlet.plan import UNLIMITED
from koord.koordlet.series import kind
from koord.koordlet.strategies.file import CPU_QUOTA, CPUSET
from koord.koordlet.strategies.suppress import CONTAINERS, PODS, ROOT, Application, BeGroup, SuppressView
from koord.values.cpuset import CPUSet

MANAGER_GATE = "BECPUManager"


def observe_suppress(scene: Scene) -> SuppressView:
    """Observe the node's usage, its CPUs and the BE groups."""
    facts, shape, config = scene.facts, scene.machine.shape, scene.threshold
    node = facts.node
    groups = be_groups(scene)
    percent = config.cpu_suppress_threshold_percent
    held = scene.cpus(shape.besteffort, CPUSET)
    return SuppressView(
        enabled=scene.threshold_enabled,
        cpu_manager=MANAGER_GATE in scene.gates,
        policy=config.cpu_suppress_policy,
        threshold_percent=THRESHOLD.cpu_suppress_threshold_percent or 0 if percent is None else percent,
        min_percent=config.cpu_suppress_min_percent,
        capacity_milli=scene.capacity(CPU),
        allocatable_milli=scene.allocatable(CPU),
        reservation_milli=0 if node is None else node.reservation_milli,
        node_used_milli=scene.latest_milli(kind.NODE_CPU),
        pods=facts.pods,
        pod_used_milli=scene.pod_used_milli(),
        applications=applications(scene),
        processors=shape.processors,
        reserved_cpus=CPUSet() if node is None else node.reserved_cpus,
        exclusive_cpus=CPUSet() if node is None else node.exclusive_cpus,
        kubelet_static=facts.kubelet.is_static,
        groups=groups,
        quota_us=scene.number(shape.besteffort, CPU_QUOTA),
        # A version 2 group that says nothing has what its parent has: all of them, until somebody narrows it.
        cpuset=held or CPUSet.of(one.cpu for one in shape.processors),
        least_quota_us=_least_quota_us(scene, groups),
    )


def be_groups(scene: Scene) -> tuple[BeGroup, ...]:
    """Return the groups of the BE root, its pods and their containers, also of unknown pods; none
    when there is no root.
    """
    machine, root = scene.machine, scene.machine.shape.besteffort
    if not root or (machine.knob(root, CPU_QUOTA) is None and machine.knob(root, CPUSET) is None):
        return ()
    uids = {pod.group: pod.uid for pod in scene.pods if pod.group}
    pods = machine.below(root)
    found = [BeGroup(path=root, depth=ROOT)]
    found += [BeGroup(path=pod, depth=PODS, pod=uids.get(pod, "")) for pod in pods]
    found += [BeGroup(path=one, depth=CONTAINERS, pod=uids.get(pod, "")) for pod in pods for one in machine.below(pod)]
    return tuple(found)


def applications(scene: Scene) -> tuple[Application, ...]:
    """Return the host applications that were measured."""
    slo = scene.facts.slo
    found: list[Application] = []
    for one in () if slo is None else slo.host_applications:
        used = scene.latest_milli(kind.APPLICATION_CPU, one.name)
        if used is not None:
            base = "" if one.cgroup_path is None else one.cgroup_path.base
            found.append(Application(name=one.name, used_milli=used, qos=one.qos, base=base))
    return tuple(found)


def _least_quota_us(scene: Scene, groups: tuple[BeGroup, ...]) -> int:
    """Return the lowest quota that the kernel accepts: cgroup v1 refuses a parent's quota below a child's, v2 does
    not.
    """
    if scene.machine.shape.cgroup_version != 1:
        return 0
    pods = (scene.number(group.path, CPU_QUOTA) for group in groups if group.depth == PODS)
    return max((quota for quota in pods if quota is not None and quota != UNLIMITED), default=0)
