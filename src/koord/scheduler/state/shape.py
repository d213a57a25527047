"""Derive what placement needs from a pod's spec, once for all pods with an equal spec."""

from __future__ import annotations

from typing import Any, cast
from weakref import WeakValueDictionary

import msgspec

from koord.api import pod as api_pod
from koord.api.pod_resources import nonzero_requests, pod_requests
from koord.api.volume import Volume
from koord.scheduler.state.transform import spec_of
from koord.scheduler.state.wire import Pod, PodSpec, signature
from koord.values.resources import CPU, MEMORY

# (protocol, address, port); an empty address means all of them
HostPort = tuple[str, str, int]


class Shape:
    """Hold what is derived from one spec, shared by every pod whose spec is equal.

    `memo` is where plugins keep what they parse from it, by their name.
    """

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

    def __init__(self, number: int, spec: PodSpec) -> None:
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


class Shapes:
    """Intern the shapes in use. Specs that differ only in what placement does not read share a shape."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, Shape] = WeakValueDictionary()
        self._made = 0  # numbers are never used again: verdicts are kept under them

    def of(self, pod: Pod) -> Shape:
        if pod.shape is not None:
            return cast(Shape, pod.shape)
        spec = spec_of(pod)
        volumes = _read(spec.volumes)
        key = signature((spec.containers, spec.init_containers, spec.resources, volumes, _rest(spec)))
        known = self._known.get(key)
        if known is None:
            if volumes is not spec.volumes:
                spec = msgspec.structs.replace(spec, volumes=volumes)
            known = self._known[key] = Shape(self._made, spec)
            self._made += 1
        return known

    def interned(self, pod: Pod) -> Pod:
        """Return the pod with its spec made of the shape's parts: a cluster has far fewer specs than pods."""
        shape, own = self.of(pod), pod.spec
        spec = msgspec.structs.replace(shape.spec, node_name=own.node_name, scheduling_gates=own.scheduling_gates)
        return msgspec.structs.replace(pod, spec=spec, shape=shape)

    def __len__(self) -> int:
        return len(self._known)


def _read(volumes: tuple[Volume, ...]) -> tuple[Volume, ...]:
    """Return the volumes that placement depends on.

    The others would make every pod unique: the volume of a service account token has a random name.
    """
    kept = tuple(v for v in volumes if any(getattr(v, source) is not None for source in _PLACED_SOURCES))
    return volumes if len(kept) == len(volumes) else kept


_PLACED_SOURCES = (
    "persistent_volume_claim",
    "ephemeral",
    "csi",
    "gce_persistent_disk",
    "aws_elastic_block_store",
    "azure_disk",
    "iscsi",
    "rbd",
)


def _rest(spec: PodSpec) -> tuple[object, ...]:
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


def _host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    sidecars = (c for c in spec.init_containers if c.restart_policy == "Always")
    found = {
        (port.protocol or "TCP", port.host_ip or "0.0.0.0", port.host_port): None
        for container in (*spec.containers, *sidecars)
        for port in container.ports
        if port.host_port > 0
    }
    return tuple(found)
