"""This module holds the pods, containers and resources of NRI v1alpha1, and what a plugin may change of them.

Names are NRI's; `Nri` stands before those that Kubernetes or CRI use for something else. Fields that no struct has
(namespaces, OCI hooks, seccomp and the like) are skipped when they are read and cannot be written.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec

from koord.wire.protobuf import Int32, Int64, Uint32, Uint64

T = TypeVar("T", bound=msgspec.Struct)


# Resources -------------------------------------------------------------------------------------------------------


class LinuxMemory(msgspec.Struct, frozen=True, kw_only=True):
    limit: Int64 | None = None
    reservation: Int64 | None = None
    swap: Int64 | None = None
    kernel: Int64 | None = None
    kernel_tcp: Int64 | None = None
    swappiness: Uint64 | None = None
    disable_oom_killer: bool | None = None
    use_hierarchy: bool | None = None


class LinuxCpu(msgspec.Struct, frozen=True, kw_only=True):
    """An empty `cpus` or `mems` asks for no change: NRI cannot clear a CPU set."""

    shares: Uint64 | None = None
    quota: Int64 | None = None
    period: Uint64 | None = None
    realtime_runtime: Int64 | None = None
    realtime_period: Uint64 | None = None
    cpus: str = ""
    mems: str = ""


class LinuxResources(msgspec.Struct, frozen=True, kw_only=True):
    field_numbers: ClassVar[tuple[int, ...]] = (1, 2, 4, 5, 6)
    memory: LinuxMemory | None = None
    cpu: LinuxCpu | None = None
    blockio_class: str | None = None
    rdt_class: str | None = None
    unified: dict[str, str] = {}


def overlay_resources(current: LinuxResources | None, requested: LinuxResources | None) -> LinuxResources:
    """Return the resources that a container has after an update.

    In a request for an update 0 and the empty text mean that a value is not given, so the current one stays.
    """
    below, above = current or LinuxResources(), requested or LinuxResources()
    return LinuxResources(
        memory=_overlay_struct(below.memory, above.memory),
        cpu=_overlay_struct(below.cpu, above.cpu),
        blockio_class=above.blockio_class or below.blockio_class,
        rdt_class=above.rdt_class or below.rdt_class,
        unified={**below.unified, **above.unified},
    )


def _overlay_struct(below: T | None, above: T | None) -> T | None:
    if below is None or above is None:
        return below if above is None else above
    given = {name: value for name in above.__struct_fields__ if (value := getattr(above, name))}
    return msgspec.structs.replace(below, **given)


# Pods and containers ---------------------------------------------------------------------------------------------


class NriMount(msgspec.Struct, frozen=True, kw_only=True):
    """A destination that begins with `-` removes the mount in an adjustment."""

    destination: str = ""
    type: str = ""
    source: str = ""
    options: tuple[str, ...] = ()


class LinuxDevice(msgspec.Struct, frozen=True, kw_only=True):
    path: str = ""
    type: str = ""
    major: Int64 = 0
    minor: Int64 = 0
    file_mode: Uint32 | None = None
    uid: Uint32 | None = None
    gid: Uint32 | None = None


class LinuxRdt(msgspec.Struct, frozen=True, kw_only=True):
    clos_id: str | None = None


class LinuxPodSandbox(msgspec.Struct, frozen=True, kw_only=True):
    field_numbers: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 6)
    pod_overhead: LinuxResources | None = None
    pod_resources: LinuxResources | None = None
    cgroup_parent: str = ""
    cgroups_path: str = ""
    resources: LinuxResources | None = None


class NriPodSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as the runtime knows it. When it is removed, containerd 2.2 gives no annotations and no cgroups_path."""

    id: str = ""
    name: str = ""
    uid: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    runtime_handler: str = ""
    linux: LinuxPodSandbox | None = None
    pid: Uint32 = 0
    ips: tuple[str, ...] = ()


class LinuxContainer(msgspec.Struct, frozen=True, kw_only=True):
    field_numbers: ClassVar[tuple[int, ...]] = (2, 3, 4, 5, 12)
    devices: tuple[LinuxDevice, ...] = ()
    resources: LinuxResources | None = None
    oom_score_adj: Int64 | None = None
    cgroups_path: str = ""
    rdt: LinuxRdt | None = None


class NriContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container as the runtime knows it; `env` holds `NAME=value`."""

    field_numbers: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 15, 16, 17)
    id: str = ""
    pod_sandbox_id: str = ""
    name: str = ""
    state: Int32 = 0  # 0 unknown, 1 created, 2 paused, 3 running, 4 stopped
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    mounts: tuple[NriMount, ...] = ()
    linux: LinuxContainer | None = None
    pid: Uint32 = 0
    created_at: Int64 = 0
    started_at: Int64 = 0
    finished_at: Int64 = 0
    exit_code: Int32 = 0


# Adjustments and updates -----------------------------------------------------------------------------------------


class LinuxContainerAdjustment(msgspec.Struct, frozen=True, kw_only=True):
    field_numbers: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 8, 11)
    devices: tuple[LinuxDevice, ...] = ()
    resources: LinuxResources | None = None
    cgroups_path: str = ""
    oom_score_adj: Int64 | None = None
    sysctl: dict[str, str] = {}
    rdt: LinuxRdt | None = None


class ContainerAdjustment(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin changes of a container before it is created; a name in `env` that begins with `-` is removed."""

    field_numbers: ClassVar[tuple[int, ...]] = (2, 3, 4, 6, 9)
    annotations: dict[str, str] = {}
    mounts: tuple[NriMount, ...] = ()
    env: dict[str, str] = {}
    linux: LinuxContainerAdjustment | None = None
    args: tuple[str, ...] = ()


class LinuxContainerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    resources: LinuxResources | None = None


class ContainerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin changes of a container that exists."""

    container_id: str = ""
    linux: LinuxContainerUpdate | None = None
    ignore_failure: bool = False


class ContainerEviction(msgspec.Struct, frozen=True, kw_only=True):
    container_id: str = ""
    reason: str = ""
