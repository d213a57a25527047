"""This module holds NRI v1alpha1: pods, containers and resources, what a plugin may change of them, the requests and
responses that koord makes or answers, and the events that plugins subscribe to, with their mask.

Names are NRI's; `Nri` stands before those that Kubernetes or CRI use for something else. Fields that no struct has
(namespaces, OCI hooks, seccomp and the like) are skipped when they are read and cannot be written.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import ClassVar, TypeVar

import msgspec

from koord.values.json_text import MalformedText
from koord.values.yaml_text import load_yaml
from koord.wire.protobuf import Int32, Int64, Uint32, Uint64, codec_of

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

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
    """The changes to a container before it is created; a name in `env` that begins with `-` is removed."""

    field_numbers: ClassVar[tuple[int, ...]] = (2, 3, 4, 6, 9)
    annotations: dict[str, str] = {}
    mounts: tuple[NriMount, ...] = ()
    env: dict[str, str] = {}
    linux: LinuxContainerAdjustment | None = None
    args: tuple[str, ...] = ()


class LinuxContainerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    resources: LinuxResources | None = None


class ContainerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to a container that exists."""

    container_id: str = ""
    linux: LinuxContainerUpdate | None = None
    ignore_failure: bool = False


class ContainerEviction(msgspec.Struct, frozen=True, kw_only=True):
    container_id: str = ""
    reason: str = ""


T = TypeVar("T", bound=msgspec.Struct)


def encode_message(message: msgspec.Struct) -> bytes:
    """Encode a message of this module; raises WireError where a value does not fit its field."""
    return codec_of(type(message)).encode(message)


def decode_message(kind: type[T], data: bytes) -> T:
    """Decode a message of this module; raises WireError."""
    return codec_of(kind).decode(data)


class EmptyMessage(msgspec.Struct, frozen=True):
    """EmptyMessage is the answer that asks for nothing."""


class RegisterPluginRequest(msgspec.Struct, frozen=True, kw_only=True):
    plugin_name: str = ""
    plugin_idx: str = ""


class UpdateContainersRequest(msgspec.Struct, frozen=True, kw_only=True):
    update: tuple[ContainerUpdate, ...] = ()
    evict: tuple[ContainerEviction, ...] = ()


class UpdateContainersResponse(msgspec.Struct, frozen=True, kw_only=True):
    failed: tuple[ContainerUpdate, ...] = ()


class ConfigureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts are in milliseconds, 0 in runtimes that do not tell them; NRI before v0.12 does not tell its version."""

    config: str = ""
    runtime_name: str = ""
    runtime_version: str = ""
    registration_timeout: Int64 = 0
    request_timeout: Int64 = 0
    nri_version: str = ""


class ConfigureResponse(msgspec.Struct, frozen=True, kw_only=True):
    field_numbers: ClassVar[tuple[int, ...]] = (2,)
    events: Int32 = 0


class SynchronizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    pods: tuple[NriPodSandbox, ...] = ()
    containers: tuple[NriContainer, ...] = ()
    more: bool = False


class SynchronizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    update: tuple[ContainerUpdate, ...] = ()
    more: bool = False


class CreateContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    pod: NriPodSandbox = NriPodSandbox()
    container: NriContainer = NriContainer()


class CreateContainerResponse(msgspec.Struct, frozen=True, kw_only=True):
    adjust: ContainerAdjustment | None = None
    update: tuple[ContainerUpdate, ...] = ()
    evict: tuple[ContainerEviction, ...] = ()


class UpdateContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    pod: NriPodSandbox = NriPodSandbox()
    container: NriContainer = NriContainer()
    linux_resources: LinuxResources | None = None


class UpdateContainerResponse(msgspec.Struct, frozen=True, kw_only=True):
    update: tuple[ContainerUpdate, ...] = ()
    evict: tuple[ContainerEviction, ...] = ()


class StateChangeEvent(msgspec.Struct, frozen=True, kw_only=True):
    event: Int32 = 0
    pod: NriPodSandbox = NriPodSandbox()
    container: NriContainer | None = None


class NriEvent(enum.IntEnum):
    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14


def event_mask(events: Iterable[NriEvent]) -> int:
    mask = 0
    for event in events:
        mask |= 1 << (event - 1)
    return mask


_BY_NAME = {event.name.replace("_", "").lower(): event for event in NriEvent}
ALL_EVENTS = event_mask(NriEvent)
# What koordlet acts on: 141.
DEFAULT_EVENTS = event_mask(
    (NriEvent.RUN_POD_SANDBOX, NriEvent.REMOVE_POD_SANDBOX, NriEvent.CREATE_CONTAINER, NriEvent.UPDATE_CONTAINER)
)
_GROUPS = {
    "all": ALL_EVENTS,
    **{
        group: event_mask(event for name, event in _BY_NAME.items() if part in name)
        for group, part in (("pod", "pod"), ("podsandbox", "pod"), ("container", "container"))
    },
}


def parse_events(names: Iterable[str]) -> int | MalformedText:
    """Return the mask of event names. Case does not matter, and one text may hold several names with commas between."""
    mask = 0
    for text in names:
        for name in (part.strip() for part in text.lower().split(",")):
            if name in _GROUPS:
                mask |= _GROUPS[name]
            elif name in _BY_NAME:
                mask |= event_mask((_BY_NAME[name],))
            else:
                return MalformedText(f"unknown event {name!r}")
    return mask


def configured_events(config: str) -> int | MalformedText:
    """Return the mask that the runtime's configuration of this plugin asks for.

    The configuration is YAML whose key `events` replaces the default. No key or an empty list leaves the default, as
    the runtime takes the mask 0 for all events.
    """
    found = load_yaml(config)
    if isinstance(found, MalformedText):
        return found
    if found is None:
        return DEFAULT_EVENTS
    if not isinstance(found, dict):
        return MalformedText("the configuration is no mapping")
    listed = next((value for key, value in found.items() if str(key).lower() == "events"), None)
    if listed is None:
        return DEFAULT_EVENTS
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        return MalformedText("events is no list of names")
    return parse_events(listed) if listed else DEFAULT_EVENTS
