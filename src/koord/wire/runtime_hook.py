"""The messages of `runtime.v1alpha1.RuntimeHookService`, which a runtime proxy calls and koordlet serves.

Fields that this version does not know are dropped: both sides of the protocol state what they mean in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

from koord.wire import raw_fields
from koord.wire.protobuf import WireError
from koord.wire.raw_fields import MalformedMessage

SERVICE = "runtime.v1alpha1.RuntimeHookService"
T = TypeVar("T", bound=msgspec.Struct)


class RuntimeHookStage(Enum):
    """RuntimeHookStage is a moment in the life of a pod or container at which hook servers are called."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    POST_STOP_CONTAINER = "PostStopContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"

    @property
    def method(self) -> str:
        """Return the path of the stage's RPC."""
        return f"/{SERVICE}/{self.value}Hook"

    @property
    def is_of_pod(self) -> bool:
        return self in (RuntimeHookStage.PRE_RUN_POD_SANDBOX, RuntimeHookStage.POST_STOP_POD_SANDBOX)


class HugepageLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    page_size: str = ""
    limit: int = 0


class LinuxContainerResources(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The resources of a container or pod, with the field numbers of CRI. 0 and "" are what is not stated."""

    cpu_period: int = 0
    cpu_quota: int = 0
    cpu_shares: int = 0
    memory_limit_in_bytes: int = 0
    oom_score_adj: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    hugepage_limits: tuple[HugepageLimit, ...] = ()
    unified: dict[str, str] = {}
    memory_swap_limit_in_bytes: int = 0


class PodSandboxMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str = ""
    uid: str = ""
    namespace: str = ""
    attempt: int = 0


class ContainerMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str = ""
    attempt: int = 0
    id: str = ""


class PodSandboxHookRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pod_meta: PodSandboxMetadata | None = None
    runtime_handler: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    cgroup_parent: str = ""
    overhead: LinuxContainerResources | None = None
    resources: LinuxContainerResources | None = None


class PodSandboxHookResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    cgroup_parent: str = ""
    resources: LinuxContainerResources | None = None


class ContainerResourceHookRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pod_meta: PodSandboxMetadata | None = None
    container_meta: ContainerMetadata | None = None
    container_annotations: dict[str, str] = {}
    container_resources: LinuxContainerResources | None = None
    pod_resources: LinuxContainerResources | None = None
    pod_annotations: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    pod_cgroup_parent: str = ""
    container_envs: dict[str, str] = {}


class ContainerDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device of the host that a container gets; `permissions` are cgroup's: r, w and m."""

    container_path: str = ""
    host_path: str = ""
    permissions: str = ""


class ContainerResourceHookResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`container_devices` is not in Koordinator's protocol: its proxy passes over that field."""

    container_annotations: dict[str, str] = {}
    container_resources: LinuxContainerResources | None = None
    pod_cgroup_parent: str = ""
    container_envs: dict[str, str] = {}
    container_devices: tuple[ContainerDevice, ...] = ()


HookRequest = PodSandboxHookRequest | ContainerResourceHookRequest
HookResponse = PodSandboxHookResponse | ContainerResourceHookResponse


def echo_pod(request: PodSandboxHookRequest) -> PodSandboxHookResponse:
    """Return the response that changes nothing."""
    return PodSandboxHookResponse(
        labels=request.labels,
        annotations=request.annotations,
        cgroup_parent=request.cgroup_parent,
        resources=request.resources,
    )


def echo_container(request: ContainerResourceHookRequest) -> ContainerResourceHookResponse:
    """Return the response that changes nothing."""
    return ContainerResourceHookResponse(
        container_annotations=request.container_annotations,
        container_resources=request.container_resources,
        pod_cgroup_parent=request.pod_cgroup_parent,
        container_envs=request.container_envs,
    )


_CONTAINER_DEVICES = 1000  # far from the numbers that Koordinator may use next


class _Kind(Enum):
    INT = "int"
    UINT = "uint"
    STRING = "string"
    MAP = "map"


# Field names in order of their numbers, which begin at 1 in every message. A message type stands for an embedded one,
# a tuple of it for a repeated one.
_LAYOUTS: dict[type[msgspec.Struct], tuple[tuple[str, Any], ...]] = {
    HugepageLimit: (("page_size", _Kind.STRING), ("limit", _Kind.UINT)),
    LinuxContainerResources: (
        ("cpu_period", _Kind.INT),
        ("cpu_quota", _Kind.INT),
        ("cpu_shares", _Kind.INT),
        ("memory_limit_in_bytes", _Kind.INT),
        ("oom_score_adj", _Kind.INT),
        ("cpuset_cpus", _Kind.STRING),
        ("cpuset_mems", _Kind.STRING),
        ("hugepage_limits", (HugepageLimit,)),
        ("unified", _Kind.MAP),
        ("memory_swap_limit_in_bytes", _Kind.INT),
    ),
    PodSandboxMetadata: (
        ("name", _Kind.STRING),
        ("uid", _Kind.STRING),
        ("namespace", _Kind.STRING),
        ("attempt", _Kind.UINT),
    ),
    ContainerMetadata: (("name", _Kind.STRING), ("attempt", _Kind.UINT), ("id", _Kind.STRING)),
    PodSandboxHookRequest: (
        ("pod_meta", PodSandboxMetadata),
        ("runtime_handler", _Kind.STRING),
        ("labels", _Kind.MAP),
        ("annotations", _Kind.MAP),
        ("cgroup_parent", _Kind.STRING),
        ("overhead", LinuxContainerResources),
        ("resources", LinuxContainerResources),
    ),
    PodSandboxHookResponse: (
        ("labels", _Kind.MAP),
        ("annotations", _Kind.MAP),
        ("cgroup_parent", _Kind.STRING),
        ("resources", LinuxContainerResources),
    ),
    ContainerResourceHookRequest: (
        ("pod_meta", PodSandboxMetadata),
        ("container_meta", ContainerMetadata),
        ("container_annotations", _Kind.MAP),
        ("container_resources", LinuxContainerResources),
        ("pod_resources", LinuxContainerResources),
        ("pod_annotations", _Kind.MAP),
        ("pod_labels", _Kind.MAP),
        ("pod_cgroup_parent", _Kind.STRING),
        ("container_envs", _Kind.MAP),
    ),
    ContainerResourceHookResponse: (
        ("container_annotations", _Kind.MAP),
        ("container_resources", LinuxContainerResources),
        ("pod_cgroup_parent", _Kind.STRING),
        ("container_envs", _Kind.MAP),
    ),
    ContainerDevice: (
        ("container_path", _Kind.STRING),
        ("host_path", _Kind.STRING),
        ("permissions", _Kind.STRING),
    ),
}
_FIELDS: dict[type[msgspec.Struct], tuple[tuple[int, str, Any], ...]] = {
    model: tuple((number, name, kind) for number, (name, kind) in enumerate(layout, 1))
    for model, layout in _LAYOUTS.items()
}
_FIELDS[ContainerResourceHookResponse] += ((_CONTAINER_DEVICES, "container_devices", (ContainerDevice,)),)


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message of this protocol. Equal messages are equal bytes."""
    parts: list[bytes] = []
    for number, name, kind in _FIELDS[type(message)]:
        value = getattr(message, name)
        if kind in (_Kind.INT, _Kind.UINT):
            parts.append(raw_fields.encode_int(number, value))
        elif kind is _Kind.STRING:
            parts.append(raw_fields.encode_string(number, value))
        elif kind is _Kind.MAP:
            parts.append(raw_fields.encode_string_map(number, value))
        elif isinstance(kind, tuple):
            parts += (raw_fields.encode_chunk(number, encode(one)) for one in value)
        elif value is not None:
            parts.append(raw_fields.encode_chunk(number, encode(value)))
    return b"".join(parts)


def decode(data: bytes, model: type[T]) -> T | MalformedMessage:
    try:
        return decode_message(data, model)
    except WireError as error:
        return MalformedMessage(str(error))


def decode_message(data: bytes, model: type[T]) -> T:
    """Decode within another decoder: raise WireError where the bytes are no such message."""
    values: dict[str, Any] = {}
    for number, name, kind in _FIELDS[model]:
        if kind is _Kind.INT:
            values[name] = raw_fields.int_of(data, number)
        elif kind is _Kind.UINT:
            values[name] = raw_fields.uint_of(data, number)
        elif kind is _Kind.STRING:
            values[name] = raw_fields.string_of(data, number)
        elif kind is _Kind.MAP:
            values[name] = raw_fields.string_map_of(data, number)
        elif isinstance(kind, tuple):
            values[name] = tuple(decode_message(one, kind[0]) for one in raw_fields.chunks_of(data, number))
        else:
            inner = raw_fields.message_of(data, number)
            values[name] = None if inner is None else decode_message(inner, kind)
    return model(**values)


def merge_resources(
    base: LinuxContainerResources, over: LinuxContainerResources, *, answer: bool
) -> LinuxContainerResources:
    """Return resources with those of an update or of a hook server's answer laid over them.

    Only what is stated counts, so a memory limit of -1 is not applied while a quota of -1 is. An answer states CPU sets
    and the OOM score always: hook servers echo what they leave alone.
    """
    given: dict[str, Any] = {}
    for name in ("cpu_period", "cpu_shares", "memory_limit_in_bytes", "memory_swap_limit_in_bytes"):
        if getattr(over, name) > 0:
            given[name] = getattr(over, name)
    if over.cpu_quota != 0:
        given["cpu_quota"] = over.cpu_quota
    if answer and -1000 <= over.oom_score_adj <= 1000:
        given["oom_score_adj"] = over.oom_score_adj
    for name in ("cpuset_cpus", "cpuset_mems"):
        if answer or getattr(over, name):
            given[name] = getattr(over, name)
    given["unified"] = merged(base.unified, over.unified)
    return msgspec.structs.replace(base, **given)


def merged(base: Mapping[str, str], over: Mapping[str, str]) -> dict[str, str]:
    return {**base, **over}
