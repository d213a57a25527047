"""The kubelet's pod resources (`v1.PodResourcesLister`): devices are added to the answers of List and Get.

Answers are changed field by field: whatever this version does not know keeps its bytes and its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from koord.wire import raw_fields
from koord.wire.protobuf import WireError
from koord.wire.raw_fields import MalformedMessage

_SERVICE = "v1.PodResourcesLister"
LIST = f"/{_SERVICE}/List"
GET = f"/{_SERVICE}/Get"
ALLOCATABLE = f"/{_SERVICE}/GetAllocatableResources"
LIST_V1ALPHA1 = "/v1alpha1.PodResourcesLister/List"  # older exporters; the fields have the same numbers

_POD_RESOURCES = 1  # ListPodResourcesResponse, GetPodResourcesResponse
_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3  # PodResources
_DEVICES = 2  # ContainerResources
_RESOURCE_NAME, _DEVICE_IDS = 1, 2  # ContainerDevices


class ContainerDevices(msgspec.Struct, frozen=True, kw_only=True):
    """ContainerDevices is the devices of one resource that a container has."""

    resource_name: str
    device_ids: tuple[str, ...]


PodDevices = Callable[[str, str], Sequence[ContainerDevices]]  # by namespace and name of the pod


def listed_pods(response: bytes) -> list[tuple[str, str]] | MalformedMessage:
    """Return namespace and name of the pods in an answer that have a container."""
    try:
        return [
            _identity(pod)
            for pod in raw_fields.chunks_of(response, _POD_RESOURCES)
            if raw_fields.chunks_of(pod, _CONTAINERS)
        ]
    except WireError as error:
        return MalformedMessage(str(error))


def add_devices(response: bytes, find: PodDevices) -> bytes | MalformedMessage:
    """Return an answer of List or Get with the devices that `find` returns, each pod's at its first container."""
    try:
        pods = raw_fields.chunks_of(response, _POD_RESOURCES)
        changed = [_with_devices(pod, find(*_identity(pod))) for pod in pods]
        if changed == pods:
            return response
        encoded = b"".join(raw_fields.encode_chunk(_POD_RESOURCES, pod) for pod in changed)
        return raw_fields.replace_field(response, _POD_RESOURCES, encoded)
    except WireError as error:
        return MalformedMessage(str(error))


def devices_of(container: bytes) -> list[ContainerDevices]:
    """Return the devices of a ContainerResources. Raise WireError where it cannot be read."""
    return [
        ContainerDevices(
            resource_name=raw_fields.string_of(entry, _RESOURCE_NAME),
            device_ids=tuple(raw_fields.decode_string(one) for one in raw_fields.chunks_of(entry, _DEVICE_IDS)),
        )
        for entry in raw_fields.chunks_of(container, _DEVICES)
    ]


def _identity(pod: bytes) -> tuple[str, str]:
    return raw_fields.string_of(pod, _NAMESPACE), raw_fields.string_of(pod, _NAME)


def _with_devices(pod: bytes, added: Sequence[ContainerDevices]) -> bytes:
    containers = raw_fields.chunks_of(pod, _CONTAINERS)
    if not containers:
        return pod
    new = _missing(added, containers[0])
    if not new:
        return pod
    entries = [*raw_fields.chunks_of(containers[0], _DEVICES), *map(_encode, new)]
    entries.sort(key=lambda entry: raw_fields.string_of(entry, _RESOURCE_NAME))
    devices = b"".join(raw_fields.encode_chunk(_DEVICES, entry) for entry in entries)
    first = raw_fields.replace_field(containers[0], _DEVICES, devices)
    encoded = b"".join(raw_fields.encode_chunk(_CONTAINERS, one) for one in (first, *containers[1:]))
    return raw_fields.replace_field(pod, _CONTAINERS, encoded)


def _missing(added: Sequence[ContainerDevices], container: bytes) -> list[ContainerDevices]:
    """Return what the kubelet does not list itself: a device that is listed twice would be counted twice."""
    there = {(one.resource_name, id) for one in devices_of(container) for id in one.device_ids}
    left = [
        msgspec.structs.replace(
            one, device_ids=tuple(id for id in one.device_ids if (one.resource_name, id) not in there)
        )
        for one in added
    ]
    return [one for one in left if one.device_ids]


def _encode(devices: ContainerDevices) -> bytes:
    ids = b"".join(raw_fields.encode_chunk(_DEVICE_IDS, one.encode()) for one in devices.device_ids)
    return raw_fields.encode_string(_RESOURCE_NAME, devices.resource_name) + ids
