"""Derive what placement needs from a pod's spec, once for all pods with an equal spec."""

from __future__ import annotations

from typing import Any, cast
from weakref import WeakValueDictionary

import msgspec

from koord.api.kubernetes import pod as api_pod
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
