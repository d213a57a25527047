"""Builders of resource slices, device classes and claims, and a handle whose listers hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koord.api.kubernetes.builtin_kinds import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koord.api.kubernetes.dynamic_resources import DeviceClass, ResourceClaim, ResourceSlice
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from tests.scheduler.plugins.volumes.volume_objects import ObjectHandle

DRIVER = "gpu.example.com"


def make_device(name: str, *, memory: str = "", **attributes: Any) -> dict[str, Any]:
    kinds = {bool: "bool", int: "int", str: "string"}
    found: dict[str, Any] = {"name": name}
    if attributes:
        found["attributes"] = {key: {kinds[type(value)]: value} for key, value in attributes.items()}
    if memory:
        found["capacity"] = {"memory": {"value": memory}}
    return found


def make_slice(
    name: str,
    devices: Sequence[Mapping[str, Any]],
    *,
    node: str | None = None,
    pool: str = "",
    driver: str = DRIVER,
    generation: int = 1,
    slices: int = 1,
    **spec: Any,
) -> ResourceSlice:
    """Return a slice of one node; of all nodes where none is named and `spec` says nothing else."""
    reach: dict[str, Any] = {"nodeName": node} if node is not None else {}
    if node is None and not {"nodeSelector", "perDeviceNodeSelection"} & spec.keys():
        reach = {"allNodes": True}
    of_pool = {"name": pool or node or name, "generation": generation, "resourceSliceCount": slices}
    given = {"driver": driver, "pool": of_pool, "devices": [*devices], **reach, **spec}
    return convert({"metadata": {"name": name, "uid": f"uid-{name}-{generation}"}, "spec": given}, ResourceSlice)


def make_class(name: str = "gpu", *expressions: str, **spec: Any) -> DeviceClass:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return convert({"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}, DeviceClass)


def exactly(
    name: str = "r", count: int = 1, *expressions: str, device_class: str = "gpu", **more: Any
) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    wanted = {"deviceClassName": device_class, "count": count, "selectors": selectors, **more}
    return {"name": name, "exactly": wanted}


def first_of(name: str, *alternatives: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "firstAvailable": [{"name": each["name"], **each["exactly"]} for each in alternatives],
    }


def make_claim(
    name: str,
    *requests: dict[str, Any],
    constraints: Sequence[dict[str, Any]] = (),
    config: Sequence[dict[str, Any]] = (),
    owner: str = "",
    allocation: dict[str, Any] | None = None,
    reserved: Sequence[str] = (),
    version: int = 1,
    deleting: bool = False,
) -> ResourceClaim:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}] if owner else []
    users = [{"resource": "pods", "name": uid.removeprefix("uid-"), "uid": uid} for uid in reserved]
    devices = {"requests": [*(requests or (exactly(),))], "constraints": [*constraints], "config": [*config]}
    return convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "resourceVersion": str(version),
                "ownerReferences": owners,
                "deletionTimestamp": "2024-01-01T00:00:00Z" if deleting else None,
            },
            "spec": {"devices": devices},
            "status": {"allocation": allocation, "reservedFor": users},
        },
        ResourceClaim,
    )


def results(*devices: tuple[str, str, str], **more: Any) -> dict[str, Any]:
    """Return an allocation of these devices, as (driver, pool, device)."""
    listed = [{"request": "r", "driver": driver, "pool": pool, "device": device} for driver, pool, device in devices]
    return {"devices": {"results": listed}, **more}


def on_node(name: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def claimant(name: str, *claims: str, cpu: str = "1m") -> Pod:
    wanted = [{"name": f"c{i}", "resourceClaimName": claim} for i, claim in enumerate(claims)]
    return convert(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
                "resourceClaims": wanted,
            },
        },
        Pod,
    )


class DeviceHandle(ObjectHandle):
    """A handle over a state with classes, slices and claims. The class `gpu` takes every device."""

    def __init__(self, state: ClusterState, *objects: DeviceClass | ResourceSlice | ResourceClaim) -> None:
        super().__init__(state)
        self.claims, self.classes = self._of(RESOURCE_CLAIMS.plural), self._of(DEVICE_CLASSES.plural)
        self.slices = self._of(RESOURCE_SLICES.plural)
        self.classes.put(make_class())
        for each in objects:
            self.put_object(each)

    def put_object(self, given: DeviceClass | ResourceSlice | ResourceClaim) -> None:
        lister = {DeviceClass: self.classes, ResourceSlice: self.slices, ResourceClaim: self.claims}[type(given)]
        lister.put(given)
