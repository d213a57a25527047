"""The messages of `runtime.v1alpha1.RuntimeHookService`, which a runtime proxy calls and koordlet serves.

Fields that this version does not know are dropped: both sides of the protocol state what they mean in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from koord.wire.protobuf import Int64, SortedStringMapField, Uint64, WireError, codec_of
from koord.wire.raw_fields import MalformedMessage

SERVICE = "runtime.v1alpha1.RuntimeHookService"
T = TypeVar("T", bound=msgspec.Struct)
StringMap = Annotated[dict[str, str], SortedStringMapField]
_CONTAINER_DEVICES = 1000  # far from the numbers that Koordinator may use next


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
    limit: Uint64 = 0


class LinuxContainerResources(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The resources of a container or pod, with the field numbers of CRI. 0 and "" are what is not stated."""

    cpu_period: Int64 = 0
    cpu_quota: Int64 = 0
    cpu_shares: Int64 = 0
    memory_limit_in_bytes: Int64 = 0
    oom_score_adj: Int64 = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    hugepage_limits: tuple[HugepageLimit, ...] = ()
    unified: StringMap = {}
    memory_swap_limit_in_bytes: Int64 = 0


class PodSandboxMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str = ""
    uid: str = ""
    namespace: str = ""
    attempt: Uint64 = 0


class ContainerMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str = ""
    attempt: Uint64 = 0
    id: str = ""


class PodSandboxHookRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pod_meta: PodSandboxMetadata | None = None
    runtime_handler: str = ""
    labels: StringMap = {}
    annotations: StringMap = {}
    cgroup_parent: str = ""
    overhead: LinuxContainerResources | None = None
    resources: LinuxContainerResources | None = None


class PodSandboxHookResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    labels: StringMap = {}
    annotations: StringMap = {}
    cgroup_parent: str = ""
    resources: LinuxContainerResources | None = None


class ContainerResourceHookRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pod_meta: PodSandboxMetadata | None = None
    container_meta: ContainerMetadata | None = None
    container_annotations: StringMap = {}
    container_resources: LinuxContainerResources | None = None
    pod_resources: LinuxContainerResources | None = None
    pod_annotations: StringMap = {}
    pod_labels: StringMap = {}
    pod_cgroup_parent: str = ""
    container_envs: StringMap = {}


class ContainerDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device of the host that a container gets; `permissions` are cgroup's: r, w and m."""

    container_path: str = ""
    host_path: str = ""
    permissions: str = ""


class ContainerResourceHookResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`container_devices` is not in Koordinator's protocol: its proxy passes over that field."""

    field_numbers: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, _CONTAINER_DEVICES)

    container_annotations: StringMap = {}
    container_resources: LinuxContainerResources | None = None
    pod_cgroup_parent: str = ""
    container_envs: StringMap = {}
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


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message of this protocol. Equal messages are equal bytes."""
    return codec_of(type(message)).encode(message)


def decode(data: bytes, model: type[T]) -> T | MalformedMessage:
    try:
        return codec_of(model).decode(data)
    except WireError as error:
        return MalformedMessage(str(error))


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
