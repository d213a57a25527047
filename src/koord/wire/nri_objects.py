"""This module holds the pods, containers and resources of NRI v1alpha1, and what a plugin may change of them.

Names are NRI's; `Nri` stands before those that Kubernetes or CRI use for something else. Fields that no table names
(namespaces, OCI hooks, seccomp and the like) are skipped when they are read and cannot be written.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from koord.wire.protobuf import (
    BOOL,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    MessageCodec,
    MessageField,
    MessageListField,
    OptionalField,
    ScalarField,
    StringListField,
    StringMapField,
)

T = TypeVar("T", bound=msgspec.Struct)


# Resources -------------------------------------------------------------------------------------------------------


class LinuxMemory(msgspec.Struct, frozen=True, kw_only=True):
    limit: int | None = None
    reservation: int | None = None
    swap: int | None = None
    kernel: int | None = None
    kernel_tcp: int | None = None
    swappiness: int | None = None
    disable_oom_killer: bool | None = None
    use_hierarchy: bool | None = None


class LinuxCpu(msgspec.Struct, frozen=True, kw_only=True):
    """An empty `cpus` or `mems` asks for no change: NRI cannot clear a CPU set."""

    shares: int | None = None
    quota: int | None = None
    period: int | None = None
    realtime_runtime: int | None = None
    realtime_period: int | None = None
    cpus: str = ""
    mems: str = ""


class LinuxResources(msgspec.Struct, frozen=True, kw_only=True):
    memory: LinuxMemory | None = None
    cpu: LinuxCpu | None = None
    blockio_class: str | None = None
    rdt_class: str | None = None
    unified: dict[str, str] = {}


MEMORY_CODEC = MessageCodec(
    LinuxMemory,
    OptionalField(1, "limit", INT64),
    OptionalField(2, "reservation", INT64),
    OptionalField(3, "swap", INT64),
    OptionalField(4, "kernel", INT64),
    OptionalField(5, "kernel_tcp", INT64),
    OptionalField(6, "swappiness", UINT64),
    OptionalField(7, "disable_oom_killer", BOOL),
    OptionalField(8, "use_hierarchy", BOOL),
)
CPU_CODEC = MessageCodec(
    LinuxCpu,
    OptionalField(1, "shares", UINT64),
    OptionalField(2, "quota", INT64),
    OptionalField(3, "period", UINT64),
    OptionalField(4, "realtime_runtime", INT64),
    OptionalField(5, "realtime_period", UINT64),
    ScalarField(6, "cpus", STRING),
    ScalarField(7, "mems", STRING),
)
RESOURCES_CODEC = MessageCodec(
    LinuxResources,
    MessageField(1, "memory", MEMORY_CODEC),
    MessageField(2, "cpu", CPU_CODEC),
    OptionalField(4, "blockio_class", STRING),
    OptionalField(5, "rdt_class", STRING),
    StringMapField(6, "unified"),
)


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
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


class LinuxRdt(msgspec.Struct, frozen=True, kw_only=True):
    clos_id: str | None = None


class LinuxPodSandbox(msgspec.Struct, frozen=True, kw_only=True):
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
    pid: int = 0
    ips: tuple[str, ...] = ()


class LinuxContainer(msgspec.Struct, frozen=True, kw_only=True):
    devices: tuple[LinuxDevice, ...] = ()
    resources: LinuxResources | None = None
    oom_score_adj: int | None = None
    cgroups_path: str = ""
    rdt: LinuxRdt | None = None


class NriContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container as the runtime knows it; `env` holds `NAME=value`."""

    id: str = ""
    pod_sandbox_id: str = ""
    name: str = ""
    state: int = 0  # 0 unknown, 1 created, 2 paused, 3 running, 4 stopped
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    mounts: tuple[NriMount, ...] = ()
    linux: LinuxContainer | None = None
    pid: int = 0
    created_at: int = 0
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0


MOUNT_CODEC = MessageCodec(
    NriMount,
    ScalarField(1, "destination", STRING),
    ScalarField(2, "type", STRING),
    ScalarField(3, "source", STRING),
    StringListField(4, "options"),
)
DEVICE_CODEC = MessageCodec(
    LinuxDevice,
    ScalarField(1, "path", STRING),
    ScalarField(2, "type", STRING),
    ScalarField(3, "major", INT64),
    ScalarField(4, "minor", INT64),
    OptionalField(5, "file_mode", UINT32),
    OptionalField(6, "uid", UINT32),
    OptionalField(7, "gid", UINT32),
)
RDT_CODEC = MessageCodec(LinuxRdt, OptionalField(1, "clos_id", STRING))
LINUX_POD_SANDBOX_CODEC = MessageCodec(
    LinuxPodSandbox,
    MessageField(1, "pod_overhead", RESOURCES_CODEC),
    MessageField(2, "pod_resources", RESOURCES_CODEC),
    ScalarField(3, "cgroup_parent", STRING),
    ScalarField(4, "cgroups_path", STRING),
    MessageField(6, "resources", RESOURCES_CODEC),
)
POD_SANDBOX_CODEC = MessageCodec(
    NriPodSandbox,
    ScalarField(1, "id", STRING),
    ScalarField(2, "name", STRING),
    ScalarField(3, "uid", STRING),
    ScalarField(4, "namespace", STRING),
    StringMapField(5, "labels"),
    StringMapField(6, "annotations"),
    ScalarField(7, "runtime_handler", STRING),
    MessageField(8, "linux", LINUX_POD_SANDBOX_CODEC),
    ScalarField(9, "pid", UINT32),
    StringListField(10, "ips"),
)
LINUX_CONTAINER_CODEC = MessageCodec(
    LinuxContainer,
    MessageListField(2, "devices", DEVICE_CODEC),
    MessageField(3, "resources", RESOURCES_CODEC),
    OptionalField(4, "oom_score_adj", INT64),
    ScalarField(5, "cgroups_path", STRING),
    MessageField(12, "rdt", RDT_CODEC),
)
CONTAINER_CODEC = MessageCodec(
    NriContainer,
    ScalarField(1, "id", STRING),
    ScalarField(2, "pod_sandbox_id", STRING),
    ScalarField(3, "name", STRING),
    ScalarField(4, "state", INT32),
    StringMapField(5, "labels"),
    StringMapField(6, "annotations"),
    StringListField(7, "args"),
    StringListField(8, "env"),
    MessageListField(9, "mounts", MOUNT_CODEC),
    MessageField(11, "linux", LINUX_CONTAINER_CODEC),
    ScalarField(12, "pid", UINT32),
    ScalarField(14, "created_at", INT64),
    ScalarField(15, "started_at", INT64),
    ScalarField(16, "finished_at", INT64),
    ScalarField(17, "exit_code", INT32),
)


# Adjustments and updates -----------------------------------------------------------------------------------------


class LinuxContainerAdjustment(msgspec.Struct, frozen=True, kw_only=True):
    devices: tuple[LinuxDevice, ...] = ()
    resources: LinuxResources | None = None
    cgroups_path: str = ""
    oom_score_adj: int | None = None
    sysctl: dict[str, str] = {}
    rdt: LinuxRdt | None = None


class ContainerAdjustment(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin changes of a container before it is created; a name in `env` that begins with `-` is removed."""

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


LINUX_ADJUSTMENT_CODEC = MessageCodec(
    LinuxContainerAdjustment,
    MessageListField(1, "devices", DEVICE_CODEC),
    MessageField(2, "resources", RESOURCES_CODEC),
    ScalarField(3, "cgroups_path", STRING),
    OptionalField(4, "oom_score_adj", INT64),
    StringMapField(8, "sysctl"),
    MessageField(11, "rdt", RDT_CODEC),
)
ADJUSTMENT_CODEC = MessageCodec(
    ContainerAdjustment,
    StringMapField(2, "annotations"),
    MessageListField(3, "mounts", MOUNT_CODEC),
    StringMapField(4, "env"),
    MessageField(6, "linux", LINUX_ADJUSTMENT_CODEC),
    StringListField(9, "args"),
)
LINUX_UPDATE_CODEC = MessageCodec(LinuxContainerUpdate, MessageField(1, "resources", RESOURCES_CODEC))
UPDATE_CODEC = MessageCodec(
    ContainerUpdate,
    ScalarField(1, "container_id", STRING),
    MessageField(2, "linux", LINUX_UPDATE_CODEC),
    ScalarField(3, "ignore_failure", BOOL),
)
EVICTION_CODEC = MessageCodec(
    ContainerEviction, ScalarField(1, "container_id", STRING), ScalarField(2, "reason", STRING)
)
