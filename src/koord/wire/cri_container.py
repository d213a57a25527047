"""The messages of CRI `runtime.v1` by which the containers of one pod are listed and stopped."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from koord.wire import raw_fields
from koord.wire.protobuf import WireError
from koord.wire.raw_fields import MalformedMessage

POD_UID_LABEL = "io.kubernetes.pod.uid"  # on every container that a kubelet made

_FILTER, _LABEL_SELECTOR = 1, 4  # ListContainersRequest, ContainerFilter
_CONTAINERS = 1  # ListContainersResponse
_ID, _METADATA, _STATE, _LABELS = 1, 3, 6, 8  # Container
_CONTAINER_ID, _TIMEOUT = 1, 2  # StopContainerRequest


class ContainerState(IntEnum):
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
        return self.state in (ContainerState.RUNNING, ContainerState.UNKNOWN)


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
        name=raw_fields.string_of(raw_fields.message_of(item, _METADATA) or b"", 1),
        state=raw_fields.int_of(item, _STATE),
        pod_uid=raw_fields.string_map_of(item, _LABELS).get(POD_UID_LABEL, ""),
    )
