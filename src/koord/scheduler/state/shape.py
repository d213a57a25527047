"""What placement derives from a pod's spec, worked out once for all pods with an equal spec."""

from __future__ import annotations

from typing import Any, cast

from koord.api import pod as api_pod
from koord.api.pod_resources import nonzero_requests, pod_requests
from koord.scheduler.state.wire import Pod, PodSpec, signature
from koord.values.resources import CPU, MEMORY

# (protocol, address, port); an empty address means all of them
HostPort = tuple[str, str, int]


class Shape:
    """Shared by every pod whose spec is equal. `memo` is where plugins keep what they parse from it, by their name."""

    __slots__ = (
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
    """The table of shapes in use. Specs that differ only in node and gates share a shape."""

    def __init__(self) -> None:
        self._known: dict[bytes, Shape] = {}

    def of(self, pod: Pod) -> Shape:
        spec = pod.spec
        key = signature((spec.containers, spec.init_containers, spec.resources, _rest(spec)))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Shape(len(self._known), spec)
        return known

    def __len__(self) -> int:
        return len(self._known)


def _rest(spec: PodSpec) -> tuple[object, ...]:
    return (
        spec.scheduler_name,
        spec.priority,
        spec.priority_class_name,
        spec.preemption_policy,
        spec.overhead,
        spec.volumes,
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
