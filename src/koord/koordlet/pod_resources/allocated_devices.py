"""The devices of a pod by the annotation device-allocated, under the names that readers of pod resources expect."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import AllocatedDevice, parse_device_allocated
from koord.api.koordinator.scheduling import GPU
from koord.wire.pod_resources import ContainerDevices

_RESOURCE_NAMES = {GPU: "nvidia.com/gpu"}
_PREFIX = "koordinator.sh/"


def allocated_devices(annotations: Mapping[str, str]) -> list[ContainerDevices]:
    """Return the devices by resource name. A pod without the annotation, or with one that cannot be read, has none:
    what the kubelet says of it stays as it is.
    """
    allocated = parse_device_allocated(annotations)
    if allocated is None or isinstance(allocated, MalformedAnnotation):
        return []
    found = [
        ContainerDevices(
            resource_name=_RESOURCE_NAMES.get(kind, f"{_PREFIX}{kind}"),
            device_ids=tuple(dict.fromkeys(id for device in devices for id in _ids(device))),
        )
        for kind, devices in sorted(allocated.items())
    ]
    return [one for one in found if one.device_ids]


def _ids(device: AllocatedDevice) -> tuple[str, ...]:
    """Return the bus addresses of the virtual functions, or the card's own id where the pod has none of them."""
    virtual = () if device.extension is None else device.extension.vfs
    ids = tuple(one.bus_id for one in virtual) or (device.id,)
    return tuple(id for id in ids if id)
