"""Represent a pod in the scheduler's cache: its identity, its shape, its label group, and where it is.

A label group is all pods of one namespace with equal labels: no selector can tell them apart. Where they are placed is
counted by `selector_counts`.

A shape is what placement needs of a pod's spec, derived once for all pods with an equal spec.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, cast
from weakref import WeakValueDictionary

import msgspec

from koord.api.koordinator.protocol import A_RESERVE_POD, DOMAIN, L_POD_GROUP
from koord.api.kubernetes import pod as api_pod
from koord.api.kubernetes.meta import OwnerReference
from koord.api.kubernetes.pod import PodResourceClaim
from koord.api.kubernetes.pod_resources import nonzero_requests, pod_requests
from koord.api.kubernetes.volume import Volume
from koord.scheduler.cache.pod_model import Pod, SchedulerPodSpec, deterministic_bytes, normalised_spec
from koord.values.resources import CPU, MEMORY

# (protocol, address, port); an empty address means all of them
HostPort = tuple[str, str, int]


class PodShape:
    """Hold what is derived from one spec, shared by pods of an equal spec; `memo` keeps what plugins parse, by name."""

    __slots__ = (
        "__weakref__",
        "host_ports",
        "images",
        "memo",
        "nonzero_cpu",
        "nonzero_memory",
        "number",
        "priority",
        "requests",
        "spec",
    )

    def __init__(self, number: int, spec: SchedulerPodSpec) -> None:
        self.number = number
        self.spec = spec
        # The shared request functions read only attributes that this slim spec has too.
        same = cast(api_pod.PodSpec, spec)
        self.requests: dict[str, int] = {name: n for name, n in pod_requests(same).items() if n}
        scored = nonzero_requests(same)
        self.nonzero_cpu = scored.get(CPU, 0)
        self.nonzero_memory = scored.get(MEMORY, 0)
        self.priority = spec.priority or 0
        self.host_ports: tuple[HostPort, ...] = _host_ports(spec)
        self.images: tuple[str, ...] = tuple(c.image for c in (*spec.init_containers, *spec.containers))
        self.memo: dict[str, Any] = {}


class PodShapes:
    """Intern the shapes in use. Specs that differ only in what placement does not read share a shape."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, PodShape] = WeakValueDictionary()
        self._made = 0  # numbers are never used again: verdicts are kept under them

    def shape_of(self, pod: Pod) -> PodShape:
        if pod.shape is not None:
            return cast(PodShape, pod.shape)
        spec = normalised_spec(pod)
        if spec.resource_claims:
            spec = msgspec.structs.replace(spec, resource_claims=_unnamed_claims(spec.resource_claims))
        volumes = _placement_volumes(spec.volumes)
        key = deterministic_bytes(
            (spec.containers, spec.init_containers, spec.resources, volumes, _placement_fields(spec))
        )
        known = self._known.get(key)
        if known is None:
            if volumes is not spec.volumes:
                spec = msgspec.structs.replace(spec, volumes=volumes)
            known = self._known[key] = PodShape(self._made, spec)
            self._made += 1
        return known

    def intern(self, pod: Pod) -> Pod:
        """Return the pod with its spec made of the shape's parts: a cluster has far fewer specs than pods."""
        shape, own = self.shape_of(pod), pod.spec
        spec = msgspec.structs.replace(
            shape.spec,
            node_name=own.node_name,
            scheduling_gates=own.scheduling_gates,
            resource_claims=own.resource_claims,
        )
        return msgspec.structs.replace(pod, spec=spec, shape=shape)

    def __len__(self) -> int:
        return len(self._known)


def _placement_volumes(volumes: tuple[Volume, ...]) -> tuple[Volume, ...]:
    """Return the volumes that placement depends on; token volumes have random names and would make every pod unique."""
    kept = tuple(v for v in volumes if any(getattr(v, source) is not None for source in _PLACEMENT_VOLUME_SOURCES))
    return volumes if len(kept) == len(volumes) else kept


_PLACEMENT_VOLUME_SOURCES = (
    *("persistent_volume_claim", "ephemeral", "csi", "gce_persistent_disk", "aws_elastic_block_store", "azure_disk"),
    *("iscsi", "rbd"),
)


def _unnamed_claims(claims: tuple[PodResourceClaim, ...]) -> tuple[PodResourceClaim, ...]:
    """Return the claims without what they are called or made from: what they ask for counts, which a plugin looks up.

    Pods that name a claim each would have a shape each otherwise.
    """
    return tuple(PodResourceClaim(name=claim.name) for claim in claims)


def _placement_fields(spec: SchedulerPodSpec) -> tuple[object, ...]:
    return (
        spec.scheduler_name,
        spec.priority,
        spec.priority_class_name,
        spec.preemption_policy,
        spec.overhead,
        spec.node_selector,
        spec.affinity,
        spec.tolerations,
        spec.topology_spread_constraints,
        spec.resource_claims,
        spec.host_network,
        spec.termination_grace_period_seconds,
    )


def _host_ports(spec: SchedulerPodSpec) -> tuple[HostPort, ...]:
    sidecars = (c for c in spec.init_containers if c.restart_policy == "Always")
    found = {
        (port.protocol or "TCP", port.host_ip or "0.0.0.0", port.host_port): None
        for container in (*spec.containers, *sidecars)
        for port in container.ports
        if port.host_port > 0
    }
    return tuple(found)


@lru_cache(maxsize=4096)
def is_koordinator_key(key: str) -> bool:
    """Return whether Koordinator's plugins read a label or annotation with this key, on some pod."""
    return DOMAIN in key or key.startswith(L_POD_GROUP)


class LabelGroup:
    """Hold a namespace and label set that some pods share; `memo` keeps what plugins derive until the last is gone."""

    __slots__ = ("__weakref__", "groups", "has_koordinator_keys", "labels", "memo", "namespace")

    def __init__(self, namespace: str, labels: Mapping[str, str], groups: LabelGroups) -> None:
        self.namespace = namespace
        self.labels = labels
        self.groups = groups  # it is one of these
        self.has_koordinator_keys = any(map(is_koordinator_key, labels))
        self.memo: dict[Hashable, Any] = {}

    def __repr__(self) -> str:
        return f"Peers({self.namespace}, {dict(self.labels)})"


class LabelGroups:
    """Intern one group for each namespace and label set that some pod has."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, LabelGroup] = WeakValueDictionary()
        self.idle_version = 0  # see `ClusterState.invalidate_idle`

    def group_of(self, namespace: str, labels: Mapping[str, str]) -> LabelGroup:
        key = (namespace, frozenset(labels.items()))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = LabelGroup(namespace, labels, self)
        return known

    def __len__(self) -> int:
        return len(self._known)


_NO_ANNOTATIONS: Mapping[str, str] = {}


class HeldResources(msgspec.Struct, frozen=True):
    """Hold what a pod takes of its node where that is less than its requests: a part is counted for others."""

    requests: dict[str, int]
    nonzero_cpu: int = 0
    nonzero_memory: int = 0


class PodInfo:
    """Hold one pod; a changed pod is a new PodInfo. Requests of a placed pod include a resize in progress."""

    __slots__ = (
        "annotations",
        "claims",
        "created",
        "deleting",
        "gates",
        "has_koordinator_keys",
        "held",
        "initialized_at",
        "is_daemon_pod",
        "is_reserve_pod",
        "key",
        "label_group",
        "labels",
        "name",
        "namespace",
        "node_name",
        "nominated_node",
        "owner",
        "owners",
        "preempted",
        "requests",
        "resource_claims",
        "resource_version",
        "scheduled_at",
        "scheduler",
        "shape",
        "started",
        "uid",
    )

    def __init__(self, pod: Pod, shape: PodShape, label_group: LabelGroup) -> None:
        meta = pod.metadata
        self.uid = meta.uid
        self.namespace = meta.namespace
        self.name = meta.name
        self.key = f"{meta.namespace}/{meta.name}"
        self.resource_version = meta.resource_version
        self.label_group = label_group
        self.labels: Mapping[str, str] = label_group.labels
        self.annotations: Mapping[str, str] = meta.annotations or _NO_ANNOTATIONS
        self.has_koordinator_keys = label_group.has_koordinator_keys or (
            bool(meta.annotations) and any(map(is_koordinator_key, meta.annotations))
        )
        self.is_reserve_pod = A_RESERVE_POD in self.annotations  # it stands for a Reservation; no server has it
        self.owners: tuple[OwnerReference, ...] = meta.owner_references
        self.owner: OwnerReference | None = next((o for o in meta.owner_references if o.controller), None)
        self.is_daemon_pod = any(o.kind == "DaemonSet" for o in meta.owner_references)
        self.created: datetime | None = meta.creation_timestamp
        self.deleting = meta.deletion_timestamp is not None
        self.preempted = self.deleting and _is_preempted(pod)  # it is on its way out, to make room
        self.started: datetime | None = pod.status.start_time
        self.scheduled_at, self.initialized_at = _condition_times(pod)
        self.node_name = pod.spec.node_name
        self.nominated_node = pod.status.nominated_node_name
        self.scheduler = shape.spec.scheduler_name
        self.gates: tuple[str, ...] = tuple(gate.name for gate in pod.spec.scheduling_gates)
        self.claims = pod.status.resource_claim_statuses  # which ResourceClaims were made for it
        self.resource_claims = pod.spec.resource_claims  # with their names, which the shape does not have
        self.shape = shape
        self.requests: dict[str, int] = shape.requests
        self.held: HeldResources | None = None
        statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
        if any(status.resources is not None for status in statuses):
            resized = pod_requests(cast(api_pod.PodSpec, pod.spec), cast(api_pod.PodStatus, pod.status))
            self.requests = {name: n for name, n in resized.items() if n}

    @property
    def priority(self) -> int:
        return self.shape.priority

    def placed_on(self, node_name: str) -> PodInfo:
        """Return the same pod as if it were bound to that node."""
        other = self._copy()
        other.node_name = node_name
        return other

    def with_held(self, held: HeldResources | None) -> PodInfo:
        """Return the same pod, counted on its node with another amount; None for its requests."""
        other = self._copy()
        other.held = held
        return other

    def _copy(self) -> PodInfo:
        other = object.__new__(PodInfo)
        # Every placement makes a copy: written out it takes a quarter of the time of a loop over the slots.
        other.annotations = self.annotations
        other.claims = self.claims
        other.created = self.created
        other.deleting = self.deleting
        other.gates = self.gates
        other.has_koordinator_keys = self.has_koordinator_keys
        other.held = self.held
        other.initialized_at = self.initialized_at
        other.is_daemon_pod = self.is_daemon_pod
        other.is_reserve_pod = self.is_reserve_pod
        other.key = self.key
        other.label_group = self.label_group
        other.labels = self.labels
        other.name = self.name
        other.namespace = self.namespace
        other.node_name = self.node_name
        other.nominated_node = self.nominated_node
        other.owner = self.owner
        other.owners = self.owners
        other.preempted = self.preempted
        other.requests = self.requests
        other.resource_claims = self.resource_claims
        other.resource_version = self.resource_version
        other.scheduled_at = self.scheduled_at
        other.scheduler = self.scheduler
        other.shape = self.shape
        other.started = self.started
        other.uid = self.uid
        return other

    def __repr__(self) -> str:
        return f"PodInfo({self.key})"


def _condition_times(pod: Pod) -> tuple[float | None, float | None]:
    """Return when the pod was scheduled and initialized, in seconds since 1970; None while it was not."""
    scheduled = initialized = None
    for condition in pod.status.conditions:
        if condition.status == "True" and condition.last_transition_time is not None:
            if condition.type == "PodScheduled":
                scheduled = condition.last_transition_time.timestamp()
            elif condition.type == "Initialized":
                initialized = condition.last_transition_time.timestamp()
    return scheduled, initialized


def _is_preempted(pod: Pod) -> bool:
    target = next((c for c in pod.status.conditions if c.type == "DisruptionTarget"), None)
    return target is not None and target.status == "True" and target.reason == "PreemptionByScheduler"
