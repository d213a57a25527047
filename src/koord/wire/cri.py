"""The few fields of CRI `runtime.v1` messages that koord reads and changes; all else stays as it came.

Requests are bytes. What a hook server is asked is read from them, and what it answers is spliced into them: a value
that the answer leaves alone keeps its bytes, and so does every field that this version of CRI does not have. The
containers of one pod are listed and stopped by messages of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import ParamSpec, TypeVar

import msgspec

from koord.wire import raw_fields
from koord.wire.protobuf import WireError, codec_of
from koord.wire.raw_fields import MalformedMessage
from koord.wire.runtime_hook import (
    ContainerDevice,
    ContainerMetadata,
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    PodSandboxMetadata,
    encode,
    merge_resources,
    merged,
)

RUNTIME_SERVICE = "runtime.v1.RuntimeService"
IMAGE_SERVICE = "runtime.v1.ImageService"

_SANDBOX_CONFIG, _RUNTIME_HANDLER = 1, 2  # RunPodSandboxRequest
_METADATA, _LABELS, _ANNOTATIONS, _POD_LINUX, _CGROUP_PARENT = 1, 6, 7, 8, 1  # PodSandboxConfig
_CONFIG, _CREATE_SANDBOX_CONFIG = 2, 3  # CreateContainerRequest
_ENVS, _DEVICES, _CONTAINER_ANNOTATIONS, _CONTAINER_LINUX, _RESOURCES = 6, 8, 10, 15, 1  # ContainerConfig
_UPDATE_LINUX, _UPDATE_ANNOTATIONS = 2, 4  # UpdateContainerResourcesRequest
_INT_FIELDS = {
    1: "cpu_period",
    2: "cpu_quota",
    3: "cpu_shares",
    4: "memory_limit_in_bytes",
    5: "oom_score_adj",
    10: "memory_swap_limit_in_bytes",
}
_STRING_FIELDS = {6: "cpuset_cpus", 7: "cpuset_mems"}
_UNIFIED = 9

P = ParamSpec("P")
R = TypeVar("R")


def runtime_method(name: str) -> str:
    return f"/{RUNTIME_SERVICE}/{name}"


class ListedSandbox(msgspec.Struct, frozen=True):
    id: str
    pod: PodSandboxHookRequest


class ListedContainer(msgspec.Struct, frozen=True):
    id: str
    sandbox_id: str
    meta: ContainerMetadata
    annotations: dict[str, str]


def _returning_malformed(read: Callable[P, R]) -> Callable[P, R | MalformedMessage]:
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R | MalformedMessage:
        try:
            return read(*args, **kwargs)
        except WireError as error:
            return MalformedMessage(str(error))

    wrapped.__doc__ = read.__doc__
    return wrapped


@_returning_malformed
def first_string(message: bytes) -> str:
    """Return field 1 of a message: the id that almost every request and response of CRI begins with."""
    return raw_fields.string_of(message, 1)


# What a hook server is asked ----------------------------------------------------------------------------------------


@_returning_malformed
def pod_request(run_pod_sandbox: bytes) -> PodSandboxHookRequest:
    """Return the hook request of a RunPodSandboxRequest."""
    config = raw_fields.message_of(run_pod_sandbox, _SANDBOX_CONFIG)
    if config is None:
        raise WireError("there is no config")
    linux = raw_fields.message_of(config, _POD_LINUX)
    return PodSandboxHookRequest(
        pod_meta=_pod_metadata(config, _METADATA),
        runtime_handler=raw_fields.string_of(run_pod_sandbox, _RUNTIME_HANDLER),
        labels=raw_fields.string_map_of(config, _LABELS),
        annotations=raw_fields.string_map_of(config, _ANNOTATIONS),
        cgroup_parent="" if linux is None else raw_fields.string_of(linux, _CGROUP_PARENT),
    )


@_returning_malformed
def container_request(create_container: bytes, pod: PodSandboxHookRequest) -> ContainerResourceHookRequest:
    """Return the hook request of a CreateContainerRequest in a pod that is known."""
    config = raw_fields.message_of(create_container, _CONFIG)
    if config is None:
        raise WireError("there is no config")
    metadata = raw_fields.message_of(config, _METADATA) or b""
    resources = raw_fields.message_of(config, _CONTAINER_LINUX, _RESOURCES)
    linux = raw_fields.message_of(create_container, _CREATE_SANDBOX_CONFIG, _POD_LINUX)
    return ContainerResourceHookRequest(
        pod_meta=pod.pod_meta,
        pod_labels=pod.labels,
        pod_annotations=pod.annotations,
        pod_resources=pod.resources,
        container_meta=ContainerMetadata(
            name=raw_fields.string_of(metadata, 1), attempt=raw_fields.uint_of(metadata, 2)
        ),
        container_annotations=raw_fields.string_map_of(config, _CONTAINER_ANNOTATIONS),
        container_resources=None if resources is None else codec_of(LinuxContainerResources).decode(resources),
        pod_cgroup_parent="" if linux is None else raw_fields.string_of(linux, _CGROUP_PARENT),
        container_envs=_envs(config),
    )


@_returning_malformed
def updated_request(update: bytes, stored: ContainerResourceHookRequest) -> ContainerResourceHookRequest:
    """Return what is known of a container with an UpdateContainerResourcesRequest laid over it."""
    linux = raw_fields.message_of(update, _UPDATE_LINUX)
    annotations = raw_fields.string_map_of(update, _UPDATE_ANNOTATIONS)
    resources = stored.container_resources
    if linux is not None:
        wanted = codec_of(LinuxContainerResources).decode(linux)
        resources = wanted if resources is None else merge_resources(resources, wanted, answer=False)
    return msgspec.structs.replace(
        stored,
        container_annotations=merged(stored.container_annotations, annotations),
        container_resources=resources,
    )


# What its answer means for what is known -----------------------------------------------------------------------------


def pod_with_answer(sent: PodSandboxHookRequest, answer: PodSandboxHookResponse) -> PodSandboxHookRequest:
    """Return the pod as the answer makes it. CRI has no place for resources of a sandbox that a hook server sets."""
    return msgspec.structs.replace(
        sent,
        labels=merged(sent.labels, answer.labels),
        annotations=merged(sent.annotations, answer.annotations),
        cgroup_parent=answer.cgroup_parent or sent.cgroup_parent,
    )


def container_with_answer(
    sent: ContainerResourceHookRequest, answer: ContainerResourceHookResponse
) -> ContainerResourceHookRequest:
    resources = sent.container_resources
    if resources is not None and answer.container_resources is not None:
        resources = merge_resources(resources, answer.container_resources, answer=True)
    return msgspec.structs.replace(
        sent,
        container_annotations=merged(sent.container_annotations, answer.container_annotations),
        container_resources=resources,
        pod_cgroup_parent=answer.pod_cgroup_parent or sent.pod_cgroup_parent,
        container_envs=answer.container_envs or sent.container_envs,
    )


# What the runtime is asked then --------------------------------------------------------------------------------------


def run_pod_sandbox_with(request: bytes, wanted: PodSandboxHookRequest) -> bytes:
    """Return a RunPodSandboxRequest, from which `pod_request` was made, for the pod as it is wanted."""
    config = raw_fields.message_of(request, _SANDBOX_CONFIG) or b""
    config = raw_fields.merge_string_map(config, _LABELS, wanted.labels)
    config = raw_fields.merge_string_map(config, _ANNOTATIONS, wanted.annotations)
    config = _with_cgroup_parent(config, wanted.cgroup_parent)
    return raw_fields.set_message(request, config, _SANDBOX_CONFIG)


def create_container_with(request: bytes, wanted: ContainerResourceHookRequest) -> bytes:
    """Return a CreateContainerRequest, from which `container_request` was made, for the container as it is wanted."""
    config = raw_fields.message_of(request, _CONFIG) or b""
    config = raw_fields.merge_string_map(config, _CONTAINER_ANNOTATIONS, wanted.container_annotations)
    config = _with_envs(config, wanted.container_envs)
    resources = raw_fields.message_of(config, _CONTAINER_LINUX, _RESOURCES)
    if resources is not None and wanted.container_resources is not None:
        resources = _with_resources(resources, wanted.container_resources)
        config = raw_fields.set_message(config, resources, _CONTAINER_LINUX, _RESOURCES)
    request = raw_fields.set_message(request, config, _CONFIG)
    sandbox = raw_fields.message_of(request, _CREATE_SANDBOX_CONFIG)
    if sandbox is not None or wanted.pod_cgroup_parent:
        sandbox = _with_cgroup_parent(sandbox or b"", wanted.pod_cgroup_parent)
        request = raw_fields.set_message(request, sandbox, _CREATE_SANDBOX_CONFIG)
    return request


def create_container_with_devices(request: bytes, devices: Sequence[ContainerDevice]) -> bytes:
    """Return a CreateContainerRequest with more devices; one that the container has already stays as it is."""
    config = raw_fields.message_of(request, _CONFIG) or b""
    entries = raw_fields.chunks_of(config, _DEVICES)
    there = {raw_fields.string_of(entry, 1) for entry in entries}
    new = [encode(one) for one in devices if one.container_path not in there]
    if not new:
        return request
    encoded = b"".join(raw_fields.encode_chunk(_DEVICES, entry) for entry in (*entries, *new))
    return raw_fields.set_message(request, raw_fields.replace_field(config, _DEVICES, encoded), _CONFIG)


def update_container_resources_with(request: bytes, wanted: ContainerResourceHookRequest) -> bytes:
    """Return an UpdateContainerResourcesRequest that states all that is wanted of the container."""
    request = raw_fields.merge_string_map(request, _UPDATE_ANNOTATIONS, wanted.container_annotations)
    linux = raw_fields.message_of(request, _UPDATE_LINUX)
    if linux is None or wanted.container_resources is None:
        return request
    return raw_fields.set_message(request, _with_resources(linux, wanted.container_resources), _UPDATE_LINUX)


def _with_cgroup_parent(config: bytes, parent: str) -> bytes:
    linux = raw_fields.message_of(config, _POD_LINUX)
    if parent == ("" if linux is None else raw_fields.string_of(linux, _CGROUP_PARENT)):
        return config
    return raw_fields.set_message(config, raw_fields.set_string(linux or b"", _CGROUP_PARENT, parent), _POD_LINUX)


def _with_resources(raw: bytes, wanted: LinuxContainerResources) -> bytes:
    for number, name in _INT_FIELDS.items():
        raw = raw_fields.set_int(raw, number, getattr(wanted, name))
    for number, name in _STRING_FIELDS.items():
        raw = raw_fields.set_string(raw, number, getattr(wanted, name))
    return raw_fields.merge_string_map(raw, _UNIFIED, wanted.unified)


def _envs(config: bytes) -> dict[str, str]:
    """Return the environment that a hook server can be told: its protocol has strings, CRI has bytes."""
    found: dict[str, str] = {}
    for entry in raw_fields.chunks_of(config, _ENVS):
        key, value = _env(entry)
        if value is not None:
            found[key] = value
    return found


def _env(entry: bytes) -> tuple[str, str | None]:
    """Return a variable and its value, or None for a value that is no text."""
    value = raw_fields.chunks_of(entry, 2)
    try:
        text = value[-1].decode() if value else ""
    except UnicodeDecodeError:
        return raw_fields.string_of(entry, 1), None
    return raw_fields.string_of(entry, 1), text


def _with_envs(config: bytes, wanted: Mapping[str, str]) -> bytes:
    """Return the configuration with this environment. Entries that stay keep their order, their repetitions and their
    bytes; a variable that is changed stands where it first stood; new ones follow in order of their names.
    """
    before = _envs(config)
    if before == wanted:
        return config
    parts: list[bytes] = []
    placed: set[str] = set()
    for entry in raw_fields.chunks_of(config, _ENVS):
        key, _ = _env(entry)
        if wanted.get(key) == before.get(key):  # neither has it: a value that is no text, which nobody was told of
            parts.append(raw_fields.encode_chunk(_ENVS, entry))
        elif key in wanted and key not in placed:
            parts.append(_encode_env(key, wanted[key]))
        placed.add(key)
    parts += (_encode_env(key, value) for key, value in sorted(wanted.items()) if key not in placed)
    return raw_fields.replace_field(config, _ENVS, b"".join(parts))


def _encode_env(key: str, value: str) -> bytes:
    return raw_fields.encode_chunk(_ENVS, raw_fields.encode_string(1, key) + raw_fields.encode_string(2, value))


# What the runtime lists ----------------------------------------------------------------------------------------------


@_returning_malformed
def listed_sandboxes(response: bytes) -> list[ListedSandbox]:
    """Return the pods of a ListPodSandboxResponse; cgroup parent and resources are not listed."""
    return [
        ListedSandbox(
            id=raw_fields.string_of(item, 1),
            pod=PodSandboxHookRequest(
                pod_meta=_pod_metadata(item, 2),
                labels=raw_fields.string_map_of(item, 5),
                annotations=raw_fields.string_map_of(item, 6),
                runtime_handler=raw_fields.string_of(item, 7),
            ),
        )
        for item in raw_fields.chunks_of(response, 1)
    ]


@_returning_malformed
def listed_containers(response: bytes) -> list[ListedContainer]:
    """Return the containers of a ListContainersResponse; resources and environment are not listed."""
    found = []
    for item in raw_fields.chunks_of(response, 1):
        metadata = raw_fields.message_of(item, 3) or b""
        id = raw_fields.string_of(item, 1)
        found.append(
            ListedContainer(
                id=id,
                sandbox_id=raw_fields.string_of(item, 2),
                meta=ContainerMetadata(
                    name=raw_fields.string_of(metadata, 1), attempt=raw_fields.uint_of(metadata, 2), id=id
                ),
                annotations=raw_fields.string_map_of(item, 9),
            )
        )
    return found


def _pod_metadata(message: bytes, number: int) -> PodSandboxMetadata:
    metadata = raw_fields.message_of(message, number) or b""
    return PodSandboxMetadata(
        name=raw_fields.string_of(metadata, 1),
        uid=raw_fields.string_of(metadata, 2),
        namespace=raw_fields.string_of(metadata, 3),
    )


POD_UID_LABEL = "io.kubernetes.pod.uid"  # on every container that a kubelet made

_FILTER, _LABEL_SELECTOR = 1, 4  # ListContainersRequest, ContainerFilter
_CONTAINERS = 1  # ListContainersResponse
_ID, _CONTAINER_METADATA, _STATE, _CONTAINER_LABELS = 1, 3, 6, 8  # Container
_CONTAINER_ID, _TIMEOUT = 1, 2  # StopContainerRequest


class CriContainerState(IntEnum):
    CREATED = 0
    RUNNING = 1
    EXITED = 2
    UNKNOWN = 3


class PodContainer(msgspec.Struct, frozen=True, kw_only=True):
    """PodContainer is a container as the runtime lists it; `state` may be a number that this version does not know."""

    id: str
    name: str
    state: int
    pod_uid: str

    @property
    def can_be_stopped(self) -> bool:
        """Return whether StopContainer has an effect: runtimes report success for one that was only created."""
        return self.state in (CriContainerState.RUNNING, CriContainerState.UNKNOWN)


def list_containers_of_pod(uid: str) -> bytes:
    """Return the ListContainersRequest for the containers of the pod, whatever their state."""
    selector = raw_fields.encode_string_map(_LABEL_SELECTOR, {POD_UID_LABEL: uid})
    return raw_fields.encode_chunk(_FILTER, selector)


def pod_containers(response: bytes) -> list[PodContainer] | MalformedMessage:
    """Return the containers of a ListContainersResponse."""
    try:
        return [_pod_container(item) for item in raw_fields.chunks_of(response, _CONTAINERS)]
    except WireError as error:
        return MalformedMessage(str(error))


def stop_container(id: str, grace_s: int) -> bytes:
    """Return the StopContainerRequest; without a grace period the runtime kills at once."""
    return raw_fields.encode_string(_CONTAINER_ID, id) + raw_fields.encode_int(_TIMEOUT, grace_s)


def _pod_container(item: bytes) -> PodContainer:
    return PodContainer(
        id=raw_fields.string_of(item, _ID),
        name=raw_fields.string_of(raw_fields.message_of(item, _CONTAINER_METADATA) or b"", 1),
        state=raw_fields.int_of(item, _STATE),
        pod_uid=raw_fields.string_map_of(item, _CONTAINER_LABELS).get(POD_UID_LABEL, ""),
    )
