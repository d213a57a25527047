"""Builders of claims, volumes and related objects for tests, and a handle whose listers hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.kubernetes.volume import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import Lister, SchedulerActions
from koord.scheduler.framework.plugin import Plugin
from tests.scheduler.fake_handles import FakeLister
from tests.scheduler.plugin_equivalence import profile_of

_KINDS: Mapping[type[Object], str] = {
    each.model: each.plural
    for each in (
        builtin_kinds.PERSISTENT_VOLUMES,
        builtin_kinds.PERSISTENT_VOLUME_CLAIMS,
        builtin_kinds.STORAGE_CLASSES,
        builtin_kinds.CSI_NODES,
        builtin_kinds.CSI_DRIVERS,
        builtin_kinds.CSI_STORAGE_CAPACITIES,
        builtin_kinds.VOLUME_ATTACHMENTS,
    )
}


class ObjectHandle:
    """A handle over a state and the objects that were put into it."""

    def __init__(self, state: ClusterState, *objects: Object) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self.held: dict[str, FakeLister] = {}
        self.put(*objects)

    def put(self, *objects: Object) -> None:
        for obj in objects:
            self._of(_KINDS[type(obj)]).put(obj)

    def drop(self, kind: Resource[Any], name: str, namespace: str = "") -> None:
        self._of(kind.plural).drop(name, namespace)

    def lister(self, resource: Resource[Any]) -> Lister[Any]:
        return self._of(resource.plural)

    def now(self) -> float:
        raise LookupError("this test has no clock")

    def _of(self, plural: str) -> FakeLister:
        return self.held.setdefault(plural, FakeLister())


def said(state: ClusterState, plugin: Plugin, pod: Pod) -> dict[str, str] | str:
    """Return the rejections by node; a sentence when no node was evaluated."""
    return told(SchedulingEngine(profile_of([plugin]), state), state, pod)


def told(engine: SchedulingEngine, state: ClusterState, pod: Pod) -> dict[str, str] | str:
    attempt = engine.decide(state.pod_info(pod))
    decision = attempt.decision
    if isinstance(decision, Unschedulable) and decision.pre_filter is not None:
        return decision.pre_filter[1].text
    if not isinstance(decision, Unschedulable | ChosenNode):
        return decision.message
    assert attempt.filter_results is not None
    refusals = attempt.filter_results.rejections()
    return {name: verdict.text for (_, verdict), nodes in refusals.items() for name in nodes}


def volumes(*claims: str) -> list[dict[str, Any]]:
    """A pod's volumes: one per claim."""
    return [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(claims)]


def make_claim(
    name: str = "c0",
    *,
    namespace: str = "default",
    volume: str = "",
    bound: bool = True,
    modes: Sequence[str] = ("ReadWriteOnce",),
    size: str = "1Gi",
    storage_class: str | None = None,
    annotations: Mapping[str, str] | None = None,
    phase: str = "",
    owner: str = "",
    deleted: bool = False,
    **spec: Any,
) -> PersistentVolumeClaim:
    """Bound to `volume` if one is given; `bound=False` only asks for that volume."""
    done = {"pv.kubernetes.io/bind-completed": "yes"} if volume and bound else {}
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p0", "uid": owner, "controller": True}] if owner else []
    return convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{name}",
                "annotations": {**done, **(annotations or {})},
                "ownerReferences": owners,
                "deletionTimestamp": "2024-01-01T00:00:00Z" if deleted else None,
            },
            "spec": {
                "accessModes": list(modes),
                "volumeName": volume,
                "storageClassName": storage_class,
                "resources": {"requests": {"storage": size}},
                **spec,
            },
            "status": {"phase": phase or ("Bound" if volume else "Pending")},
        },
        PersistentVolumeClaim,
    )


def make_volume(
    name: str = "pv0",
    *,
    labels: Mapping[str, str] | None = None,
    size: str = "1Gi",
    modes: Sequence[str] = ("ReadWriteOnce",),
    storage_class: str = "",
    driver: str = "",
    on: Sequence[str] = (),
    key: str = "kubernetes.io/hostname",
    phase: str = "Available",
    deleted: bool = False,
    **spec: Any,
) -> PersistentVolume:
    """`on` are values of the label `key` that a node must have one of."""
    near = {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": on}]}]}}
    return convert(
        {
            "metadata": {
                "name": name,
                "labels": dict(labels or {}),
                "deletionTimestamp": "2024-01-01T00:00:00Z" if deleted else None,
            },
            "spec": {
                "capacity": {"storage": size},
                "accessModes": list(modes),
                "storageClassName": storage_class,
                "csi": {"driver": driver, "volumeHandle": f"handle-{name}"} if driver else None,
                "nodeAffinity": near if on else None,
                **spec,
            },
            "status": {"phase": phase},
        },
        PersistentVolume,
    )


def make_class(
    name: str = "slow",
    *,
    waits: bool = True,
    provisioner: str = "disks.example.com",
    topologies: Sequence[Mapping[str, Sequence[str]]] = (),
) -> StorageClass:
    return convert(
        {
            "metadata": {"name": name},
            "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
            "allowedTopologies": [
                {"matchLabelExpressions": [{"key": key, "values": list(values)} for key, values in term.items()]}
                for term in topologies
            ],
        },
        StorageClass,
    )


def make_csi_node(name: str = "n0", **limits: int | None) -> CSINode:
    """Limits by driver, whose dots are written as underscores; None means that there is none."""
    drivers = [
        {"name": driver.replace("_", "."), "nodeID": name, "allocatable": None if n is None else {"count": n}}
        for driver, n in limits.items()
    ]
    return convert({"metadata": {"name": name}, "spec": {"drivers": drivers}}, CSINode)


def make_driver(name: str = "disks.example.com", *, capacity: bool | None = True) -> CSIDriver:
    return convert({"metadata": {"name": name}, "spec": {"storageCapacity": capacity}}, CSIDriver)


def make_capacity(
    name: str, *, storage_class: str, labels: Mapping[str, str] | None, size: str | None, largest: str | None = None
) -> CSIStorageCapacity:
    return convert(
        {
            "metadata": {"name": name, "namespace": "default"},
            "storageClassName": storage_class,
            "nodeTopology": None if labels is None else {"matchLabels": dict(labels)},
            "capacity": size,
            "maximumVolumeSize": largest,
        },
        CSIStorageCapacity,
    )


def make_attachment(name: str, *, node: str, volume: str | None, driver: str) -> VolumeAttachment:
    spec = {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}}
    return convert({"metadata": {"name": name}, "spec": spec}, VolumeAttachment)
